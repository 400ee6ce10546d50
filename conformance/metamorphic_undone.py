"""Pairs of two operations of which one undoes what the other does, and an operation that keeps the value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.metamorphic_twins import closed
from conformance.nets import COPY, INPUT, OUTPUT, TEMPORARY, Chain, Link, Net, NoPairError, Pair, Value, bare, movers
from nnhal.model import is_tensor
from nnhal.operations import Signature
from nnhal.types import OperandType
from nnhal.types import OperationType as Op
from opset.call import Argument, Call, int32_tensor, scalar
from opset.definition import F16, F32, I32, Q8, Q8S, OperationDef

Undo = Callable[[Chain, Call, list[Value], Argument], None]


def undone(call: Call, number: int) -> Pair:
    """What an operation does, and another one undoes, against an operation that keeps the value."""
    call = closed(call)
    names = [n for n, a in call.inputs.items() if is_tensor(a.type) and not call.signature.form.operand(n).parameter]
    chain, first = Chain(), Net()
    sources = {n: chain.input(call[n]).index for n in names}
    inner = dict.fromkeys(call.results, TEMPORARY)
    indexes = chain.net.call(replace(call, inputs=_plain(call)), sources, inner)
    results = [Value(index, call.results[n]) for n, index in indexes.items()]
    UNDOES[call.definition.code](chain, call, results, call[names[0]])
    for name in names:
        ways = list(movers(call[name]))
        if not ways or len(ways[0]) > 1:
            raise NoPairError
        keeper = ways[number % len(ways)][0]
        rest = {n: COPY for n in keeper.inputs if n != "input"}
        first.call(keeper, {}, {"input": INPUT, **rest, "output": OUTPUT})
    words = " and ".join(dict.fromkeys(c.definition.name for c in chain.net.calls))
    links = tuple(Link(position) for position in range(len(names)))
    return Pair(first, chain.net, links, f"{words} keep a value as it is")


def _plain(call: Call) -> dict[str, Argument]:
    return {n: replace(a, key=None) for n, a in call.inputs.items()}


def _back_to_shape(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
    chain.end(Op.RESHAPE, bare(source), input=results[0], shape=int32_tensor(source.shape))


def _turned_back(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
    perm = np.arange(source.rank)[::-1] if not call.has("perm") else np.asarray(call["perm"].value)
    chain.end(Op.TRANSPOSE, bare(source), input=results[0], perm=int32_tensor(np.argsort(perm)))


def _again(*parameters: str) -> Undo:
    def undo(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
        rest = {n: call[n] for n in parameters}
        chain.end(Op(call.definition.code), bare(source), input=results[0], **rest)

    return undo


def _layout_of(call: Call) -> dict[str, Argument]:
    return {"nchw": call["nchw"]} if call.has("nchw") else {}


def _blocks(code: Op) -> Undo:
    def undo(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
        rest = {"block_size": call["block_size"], **_layout_of(call)}
        chain.end(code, bare(source), input=results[0], **rest)

    return undo


def _to_batch(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
    nothing = Argument(I32, (2, 2), value=np.zeros((2, 2), np.int32))
    rest = {"block_shape": call["block_shape"], "paddings": nothing, **_layout_of(call)}
    chain.end(Op.SPACE_TO_BATCH_ND, bare(source), input=results[0], **rest)


def _from_batch(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
    [y] = chain.apply(Op.BATCH_TO_SPACE_ND, input=results[0], block_shape=call["block_shape"], **_layout_of(call))
    first = 2 if call.has("nchw") and call["nchw"].item() else 1
    begin, pads = [0] * 4, call["paddings"].value
    assert pads is not None
    begin[first : first + 2] = [int(p) for p in pads[:, 0]]
    chain.end(Op.SLICE, bare(source), input=y, begin=int32_tensor(begin), size=int32_tensor(source.shape))


def _cut_out(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
    """The middle of what was padded, or one copy of what was repeated."""
    begin = np.zeros(source.rank, np.int32) if call.definition.code == Op.TILE else call["paddings"].value[:, 0]  # type: ignore[index]
    rest = {"begin": int32_tensor(begin), "size": int32_tensor(source.shape)}
    chain.end(Op.SLICE, bare(source), input=results[0], **rest)


def _parted(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
    """Each of the values that were put together, cut out again."""
    axis, at = call.integer("axis"), 0
    packed = call.definition.code == Op.PACK
    for name, argument in call.inputs.items():
        if name == "axis":
            continue
        shape = (*argument.shape[:axis], 1, *argument.shape[axis:]) if packed else argument.shape
        begin = [at if place == axis else 0 for place in range(len(shape))]
        at += shape[axis]
        like, size = bare(argument), int32_tensor(shape)
        add = chain.apply if packed else chain.end
        [y] = add(Op.SLICE, like, input=results[0], begin=int32_tensor(begin), size=size)
        if packed:
            chain.end(Op.RESHAPE, like, input=y, shape=int32_tensor(argument.shape))


def _put_together(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
    parts = {f"inputs{number}": value for number, value in enumerate(results)}
    axis = scalar(OperandType.INT32, call.integer("axis") % source.rank)
    chain.end(Op.CONCATENATION, bare(source), **parts, axis=axis)


def _shuffled_back(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
    groups = source.shape[call.integer("axis")] // call.integer("num_groups")
    rest = {"num_groups": scalar(OperandType.INT32, groups), "axis": call["axis"]}
    chain.end(Op.CHANNEL_SHUFFLE, bare(source), input=results[0], **rest)


def _by(code: Op) -> Undo:
    def undo(chain: Chain, call: Call, results: list[Value], source: Argument) -> None:
        chain.end(code, bare(source), input=results[0])

    return undo


UNDOES: dict[Op, Undo] = {
    Op.TRANSPOSE: _turned_back, Op.RESHAPE: _back_to_shape, Op.SQUEEZE: _back_to_shape,
    Op.EXPAND_DIMS: _back_to_shape, Op.REVERSE: _again("axis"), Op.NEG: _again(),
    Op.SPACE_TO_DEPTH: _blocks(Op.DEPTH_TO_SPACE), Op.DEPTH_TO_SPACE: _blocks(Op.SPACE_TO_DEPTH),
    Op.BATCH_TO_SPACE_ND: _to_batch, Op.SPACE_TO_BATCH_ND: _from_batch, Op.PAD: _cut_out, Op.PAD_V2: _cut_out,
    Op.MIRROR_PAD: _cut_out, Op.TILE: _cut_out, Op.CONCATENATION: _parted, Op.PACK: _parted,
    Op.SPLIT: _put_together, Op.CHANNEL_SHUFFLE: _shuffled_back, Op.DEQUANTIZE: _by(Op.QUANTIZE), Op.CAST: _by(Op.CAST),
}  # fmt: skip
LOSSLESS = ("float16_to_float32", "quant8_asymm_to_float32", "quant8_asymm_to_int32", "quant8_asymm_to_float16")
KEPT = frozenset({F32, F16, I32, Q8, Q8S})  # types that an operation keeps, to compare with


def concerns(definition: OperationDef, signature: Signature) -> bool:
    """Whether what calls of a signature do can be undone."""
    code = definition.code
    if code == Op.CAST:
        return signature.row.id in LOSSLESS
    kind = next(iter(signature.row.types.values()), None)
    return code in UNDOES and kind in KEPT and not (code == Op.SPLIT and kind == I32)  # CONCATENATION has no integers
