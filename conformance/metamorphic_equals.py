"""Pairs of an operation and a chain of others that together do the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from conformance.metamorphic_twins import closed
from conformance.nets import Chain, Link, NoPairError, Pair, Value, alone, bare
from nnhal.model import is_tensor
from nnhal.operations import Signature
from nnhal.types import Array, OperandType
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.call import Argument, Call, int32_tensor, omitted, scalar
from opset.definition import F16, F32, I32, Q8, Q8S, OperationDef
from opset.quantization import QUANTIZED, limits

NONE = scalar(OperandType.INT32, 0)  # no activation


class Given(Protocol):
    """Gives an input of the call as a value of the chain; each is there once."""

    def __call__(self, name: str) -> Value:
        """The value of that name."""


Build = Callable[[Chain, Call, Given], None]


def _number(like: Argument, value: float) -> Argument:
    """A constant of one element, of the type and quantisation of another operand."""
    if like.type in QUANTIZED:
        low, high = limits(like.type)
        step = np.clip(round(value / like.scale) + like.zero_point, low, high)
        return replace(like, shape=(1,), value=np.array([step]).astype(np.uint8 if like.type == Q8 else np.int8))
    dtype = {F32: np.float32, F16: np.float16, I32: np.int32}[like.type]
    return Argument(like.type, (1,), value=np.array([value], dtype))


# --- the same done by others ------------------------------------------------------------------------------------------


def equal(call: Call, number: int) -> Pair:
    """The operation, and a chain of others that gives the same."""
    del number
    call = closed(call)
    chain, known = Chain(), dict[str, Value]()
    first = next(n for n, a in call.inputs.items() if is_tensor(a.type))

    def given(name: str) -> Value:
        if name not in known:
            known[name] = (chain.input if name == first else chain.constant)(call[name])
        return known[name]

    EQUALS[call.definition.code](chain, call, given)
    links = tuple(Link(position) for position in range(len(chain.net.outputs)))
    if call.definition.code in CELLS:
        links = (Link(list(call.results).index("output")),)
    words = " and ".join(dict.fromkeys(c.definition.name for c in chain.net.calls))
    text = f"{call.definition.name} gives what {words} give"
    return Pair(alone(call), chain.net, links, text)


def _output(call: Call) -> Argument:
    return bare(next(iter(call.results.values())))


def _relu(chain: Chain, call: Call, given: Given) -> None:
    low, high = {Op.RELU: (0, None), Op.RELU1: (-1, 1), Op.RELU6: (0, 6)}[call.definition.code]
    x, like = given("input"), _output(call)
    [y] = (chain.apply if high else chain.end)(Op.MAXIMUM, like, a=x, b=_number(x.argument, low))
    if high is not None:
        chain.end(Op.MINIMUM, like, a=y, b=_number(like, high))


def _abs(chain: Chain, call: Call, given: Given) -> None:
    [y] = chain.apply(Op.NEG, input=given("input"))
    chain.end(Op.MAXIMUM, a=given("input"), b=y)


def _sub(chain: Chain, call: Call, given: Given) -> None:
    [b] = chain.apply(Op.NEG, input=given("b"))
    chain.end(Op.ADD, a=given("a"), b=b, activation=call["activation"])


def _extreme(chain: Chain, call: Call, given: Given) -> None:
    other = Op.MINIMUM if call.definition.code == Op.MAXIMUM else Op.MAXIMUM
    [a], [b] = chain.apply(Op.NEG, input=given("a")), chain.apply(Op.NEG, input=given("b"))
    [y] = chain.apply(other, a=a, b=b)
    chain.end(Op.NEG, input=y)


def _power(exponent: float) -> Build:
    def build(chain: Chain, call: Call, given: Given) -> None:
        x = given("input")
        chain.end(Op.POW, base=x, exponent=_number(x.argument, exponent))

    return build


def _other_order(code: Op) -> Build:
    def build(chain: Chain, call: Call, given: Given) -> None:
        chain.end(code, a=given("b"), b=given("a"))

    return build


def _opposite(code: Op) -> Build:
    def build(chain: Chain, call: Call, given: Given) -> None:
        [y] = chain.apply(code, a=given("a"), b=given("b"))
        chain.end(Op.LOGICAL_NOT, input=y)

    return build


def _de_morgan(code: Op) -> Build:
    def build(chain: Chain, call: Call, given: Given) -> None:
        [a], [b] = chain.apply(Op.LOGICAL_NOT, input=given("a")), chain.apply(Op.LOGICAL_NOT, input=given("b"))
        [y] = chain.apply(code, a=a, b=b)
        chain.end(Op.LOGICAL_NOT, input=y)

    return build


def _over(front: Op, code: Op) -> Build:
    """A reduction between two of an operation that turns its order round."""

    def build(chain: Chain, call: Call, given: Given) -> None:
        [x] = chain.apply(front, input=given("input"))
        rest = {n: call[n] for n in ("axes", "keep_dims")}
        [y] = chain.apply(code, input=x, **rest)
        chain.end(front, input=y)

    return build


def _scaled(chain: Chain, value: Value, factor: float, *, last: bool = False) -> Value:
    add = chain.end if last else chain.apply
    return add(Op.MUL, a=value, b=_number(value.argument, factor), activation=NONE)[0]


def _plus(chain: Chain, value: Value, term: float, *, last: bool = False) -> Value:
    add = chain.end if last else chain.apply
    return add(Op.ADD, a=value, b=_number(value.argument, term), activation=NONE)[0]


def _logistic(chain: Chain, call: Call, given: Given) -> None:
    [y] = chain.apply(Op.TANH, input=_scaled(chain, given("input"), 0.5))
    _plus(chain, _scaled(chain, y, 0.5), 0.5, last=True)


def _tanh(chain: Chain, call: Call, given: Given) -> None:
    [y] = chain.apply(Op.LOGISTIC, input=_scaled(chain, given("input"), 2))
    _plus(chain, _scaled(chain, y, 2), -1, last=True)


def _hard_swish(chain: Chain, call: Call, given: Given) -> None:
    x = given("input")
    [y] = chain.apply(Op.RELU6, input=_plus(chain, x, 3))
    [z] = chain.apply(Op.MUL, a=x, b=y, activation=NONE)
    _scaled(chain, z, 1 / 6, last=True)


def _prelu(chain: Chain, call: Call, given: Given) -> None:
    x = given("input")
    [high] = chain.apply(Op.RELU, input=x)
    [low] = chain.apply(Op.MINIMUM, a=x, b=_number(x.argument, 0))
    [low] = chain.apply(Op.MUL, a=low, b=given("alpha"), activation=NONE)
    chain.end(Op.ADD, a=high, b=low, activation=NONE)


def _elu(chain: Chain, call: Call, given: Given) -> None:
    x = given("input")
    [low] = chain.apply(Op.MINIMUM, a=x, b=_number(x.argument, 0))
    [low] = chain.apply(Op.EXP, input=low)
    low = _scaled(chain, _plus(chain, low, -1), float(call["alpha"].item()))
    [high] = chain.apply(Op.RELU, input=x)
    chain.end(Op.ADD, a=high, b=low, activation=NONE)


def _softmax(chain: Chain, call: Call, given: Given) -> None:
    axis = call["axis"] if call.has("axis") else scalar(OperandType.INT32, -1)
    [y] = chain.apply(Op.LOG_SOFTMAX, logits=given("input"), beta=call["beta"], axis=axis)
    chain.end(Op.EXP, input=y)


def _mean(chain: Chain, call: Call, given: Given) -> None:
    x, like = given("input"), _output(call)
    count = int(np.prod(x.argument.shape)) / max(int(np.prod(like.shape)), 1)
    other, factor = (Op.REDUCE_SUM, 1 / count) if call.definition.code == Op.MEAN else (Op.MEAN, count)
    keep = call["keep_dims"]
    kind = OperandType.BOOL if other == Op.REDUCE_SUM else OperandType.INT32
    [y] = chain.apply(other, input=x, axes=call["axes"], keep_dims=scalar(kind, bool(keep.item())))
    _scaled(chain, y, factor, last=True)


def _first_of_top(chain: Chain, call: Call, given: Given) -> None:
    x, axis = given("input"), call.integer("axis")
    if axis not in (-1, x.argument.rank - 1) or x.argument.rank < 2:
        raise NoPairError
    top = chain.apply(Op.TOPK_V2, input=x, k=scalar(OperandType.INT32, 1))
    chain.end(Op.RESHAPE, input=top[1], shape=int32_tensor(x.argument.shape[:-1]))


def _topk(chain: Chain, call: Call, given: Given) -> None:
    """The first of all, in order."""
    x = given("input")
    shape = (*x.argument.shape[:-1], call.integer("k"))
    for value in chain.apply(Op.TOPK_V2, input=x, k=scalar(OperandType.INT32, x.argument.shape[-1])):
        begin = int32_tensor([0] * len(shape))
        chain.end(Op.SLICE, input=value, begin=begin, size=int32_tensor(shape))


def _grouped(chain: Chain, call: Call, given: Given) -> None:
    """A convolution as a grouped one: of one group, or of one channel a group."""
    if any(call.has(n) and call.integer(n) != 1 for n in ("dilation_w", "dilation_h")):
        raise NoPairError
    weights, groups = call["filter"], 1
    if call.definition.code == Op.DEPTHWISE_CONV_2D:
        image = call["input"].shape
        groups = image[1] if call.has("nchw") and call["nchw"].item() else image[3]
        assert weights.value is not None
        value = np.ascontiguousarray(np.transpose(weights.value, (3, 1, 2, 0)))
        channel = None if weights.channel is None else replace(weights.channel, channel_dim=0)
        weights = replace(weights, value=value, shape=value.shape, channel=channel)
    sides = ("padding_scheme",) if call.signature.form.name == "implicit" else PADS
    rest = {n: call[n] for n in (*sides, "stride_w", "stride_h")}
    nchw = call["nchw"] if call.has("nchw") else scalar(OperandType.BOOL, False)
    inputs: dict[str, Value | Argument] = {"input": given("input"), "filter": weights, "bias": given("bias"), **rest}
    inputs |= {"num_groups": scalar(OperandType.INT32, groups), "activation": call["activation"], "nchw": nchw}
    chain.end(Op.GROUPED_CONV_2D, _output(call), **inputs)


PADS = ("pad_left", "pad_right", "pad_top", "pad_bottom")


def _connected(chain: Chain, call: Call, given: Given) -> None:
    """A fully connected layer as a convolution of images of one element."""
    x, weights, like = call["input"], call["weights"], _output(call)
    assert x.value is not None
    assert weights.value is not None
    units, size = weights.shape
    image = replace(x, value=x.value.reshape(-1, 1, 1, size), shape=(x.value.size // size, 1, 1, size))
    filter_ = replace(weights, value=weights.value.reshape(units, 1, 1, size), shape=(units, 1, 1, size))
    one = scalar(OperandType.INT32, 1)
    [y] = chain.apply(Op.CONV_2D, like, input=chain.input(image), filter=filter_, bias=given("bias"),
                      padding_scheme=scalar(OperandType.INT32, 2), stride_w=one, stride_h=one,
                      activation=call["activation"])  # fmt: skip
    chain.end(Op.RESHAPE, input=y, shape=int32_tensor(like.shape))


def _turned_side(chain: Chain, call: Call, given: Given) -> None:
    """Matrices that are transposed beforehand, with the flag the other way round."""
    side = call["rhs"]
    assert side.value is not None
    value = np.ascontiguousarray(side.value.swapaxes(-1, -2))
    turned = chain.constant(replace(side, value=value, shape=value.shape))
    flag = scalar(OperandType.BOOL, not call["adj_rhs"].item())
    chain.end(Op.BATCH_MATMUL, _output(call), lhs=given("lhs"), rhs=turned, adj_lhs=call["adj_lhs"], adj_rhs=flag)


def _strided(chain: Chain, call: Call, given: Given) -> None:
    begin, shape = call["begin"].value, _output(call).shape
    assert begin is not None
    zero = scalar(OperandType.INT32, 0)
    ones = int32_tensor([1] * len(shape))
    chain.end(Op.STRIDED_SLICE, input=given("input"), begin=call["begin"], end=int32_tensor(begin + np.array(shape)),
                strides=ones, begin_mask=zero, end_mask=zero, shrink_axis_mask=zero)  # fmt: skip


def _lookup(chain: Chain, call: Call, given: Given) -> None:
    axis = scalar(OperandType.INT32, 0)
    chain.end(Op.GATHER, _output(call), input=given("values"), axis=axis, indices=given("lookups"))


def _gathered(indexes: Callable[[Call], dict[int, Array]]) -> Build:
    """An operation that moves whole slices along dimensions: GATHER for each."""

    def build(chain: Chain, call: Call, given: Given) -> None:
        x, wanted = given("input"), indexes(call)
        for number, (axis, index) in enumerate(wanted.items()):
            last = number == len(wanted) - 1
            place = scalar(OperandType.INT32, axis)
            add = chain.end if last else chain.apply
            [x] = add(Op.GATHER, _output(call), input=x, axis=place, indices=int32_tensor(index))

    return build


def _reversed(call: Call) -> dict[int, Array]:
    shape, axes = call["input"].shape, call["axis"].value
    assert axes is not None
    return {int(a) % len(shape): np.arange(shape[int(a)])[::-1] for a in axes.reshape(-1)}


def _tiled(call: Call) -> dict[int, Array]:
    multiples = call["multiples"].value
    assert multiples is not None
    return {axis: np.arange(size * int(m)) % size
            for axis, (size, m) in enumerate(zip(call["input"].shape, multiples, strict=True))}  # fmt: skip


def _mirrored(call: Call) -> dict[int, Array]:
    pads = call["paddings"].value
    assert pads is not None
    mode = "symmetric" if call.integer("mode") else "reflect"
    return {axis: np.pad(np.arange(size), tuple(int(p) for p in pads[axis]), mode=mode)  # type: ignore[call-overload]
            for axis, size in enumerate(call["input"].shape)}  # fmt: skip


def _shuffled(call: Call) -> dict[int, Array]:
    shape, axis = call["input"].shape, call.integer("axis")
    return {axis % len(shape): np.arange(shape[axis]).reshape(call.integer("num_groups"), -1).T.reshape(-1)}


def _pad_value(chain: Chain, call: Call, given: Given) -> None:
    x = given("input")
    kinds = {F32: OperandType.FLOAT32, F16: OperandType.FLOAT16}
    value = scalar(kinds.get(x.argument.type, OperandType.INT32), x.argument.zero_point)
    chain.end(Op.PAD_V2, _output(call), input=x, paddings=call["paddings"], pad_value=value)


def _reshape(chain: Chain, call: Call, given: Given) -> None:
    """A new shape at once, and over another one."""
    x, like = given("input"), _output(call)
    if call.definition.code == Op.RESHAPE:
        [x] = chain.apply(Op.RESHAPE, like, input=x, shape=int32_tensor([-1]))
    chain.end(Op.RESHAPE, like, input=x, shape=int32_tensor(like.shape))


def _two_turns(chain: Chain, call: Call, given: Given) -> None:
    x, rank = given("input"), call["input"].rank
    perm = np.arange(rank)[::-1] if not call.has("perm") else call["perm"].value
    assert perm is not None
    [y] = chain.apply(Op.TRANSPOSE, input=x, perm=int32_tensor(np.arange(rank)[::-1]))
    chain.end(Op.TRANSPOSE, input=y, perm=int32_tensor(rank - 1 - perm))


def _joined_in_steps(chain: Chain, call: Call, given: Given) -> None:
    names, like, axis = [n for n in call.inputs if n != "axis"], _output(call), call["axis"]
    if len(names) < 2:
        raise NoPairError
    front = {f"inputs{i}": given(n) for i, n in enumerate(names[:-1])}
    [y] = chain.apply(Op.CONCATENATION, like, **front, axis=axis)
    chain.end(Op.CONCATENATION, like, inputs0=y, inputs1=given(names[-1]), axis=axis)


def _slices(chain: Chain, call: Call, given: Given) -> None:
    x, axis = given("input"), call.integer("axis") % call["input"].rank
    for number, part in enumerate(call.results.values()):
        begin = [number * size if place == axis else 0 for place, size in enumerate(part.shape)]
        chain.end(Op.SLICE, input=x, begin=int32_tensor(begin), size=int32_tensor(part.shape))


def _expanded(chain: Chain, call: Call, given: Given) -> None:
    axis, parts = call["axis"], {}
    for name in [n for n in call.inputs if n != "axis"]:
        [parts[name]] = chain.apply(Op.EXPAND_DIMS, input=given(name), axis=axis)
    chain.end(Op.CONCATENATION, _output(call), **parts, axis=axis)


def _select(chain: Chain, call: Call, given: Given) -> None:
    [c] = chain.apply(Op.LOGICAL_NOT, input=given("condition"))
    chain.end(Op.SELECT, _output(call), condition=c, a=given("b"), b=given("a"))


def _dequantize(chain: Chain, call: Call, given: Given) -> None:
    x, like = given("input"), _output(call)
    [y] = chain.apply(Op.CAST, like, input=x)
    _scaled(chain, _plus(chain, y, -x.argument.zero_point), x.argument.scale, last=True)


def _one_step(code: Op) -> Build:
    """A cell, and a sequence of one step."""

    def build(chain: Chain, call: Call, given: Given) -> None:
        x, like = call["input"], call.results["output"]
        assert x.value is not None
        long = replace(x, value=x.value[:, None], shape=(x.shape[0], 1, *x.shape[1:]))
        kind = OperandType.BOOL if code == Op.UNIDIRECTIONAL_SEQUENCE_LSTM else OperandType.INT32
        inputs: dict[str, Value | Argument] = {}
        for name, argument in call.inputs.items():
            if name == "input":
                inputs[name] = chain.input(long)
                continue
            inputs[name] = argument if not is_tensor(argument.type) or argument.omitted else given(name)
            if name == ("proj_clip" if code == Op.UNIDIRECTIONAL_SEQUENCE_LSTM else "activation"):
                inputs["time_major"] = scalar(kind, 0)
        for operand in OPSET[code].forms[0].operands[len(inputs) :]:  # normalisation that the cell was not given
            inputs[operand.name] = omitted(like.type)
        y = chain.apply(code, bare(like), **inputs)[0]
        chain.end(Op.RESHAPE, input=y, shape=int32_tensor(like.shape))

    return build


CELLS = frozenset({Op.RNN, Op.LSTM})
PLAIN: frozenset[OperandType] = frozenset({F32, F16})
EXACT_TOO = PLAIN | {I32}
MOVED = PLAIN | {Q8, Q8S}
ANY = MOVED | {I32, OperandType.TENSOR_BOOL8}
EQUALS: dict[Op, Build] = {
    Op.RELU: _relu, Op.RELU1: _relu, Op.RELU6: _relu, Op.ABS: _abs, Op.SUB: _sub, Op.MAXIMUM: _extreme,
    Op.MINIMUM: _extreme, Op.SQRT: _power(0.5), Op.RSQRT: _power(-0.5), Op.GREATER: _other_order(Op.LESS),
    Op.LESS: _other_order(Op.GREATER), Op.GREATER_EQUAL: _other_order(Op.LESS_EQUAL),
    Op.LESS_EQUAL: _other_order(Op.GREATER_EQUAL), Op.EQUAL: _opposite(Op.NOT_EQUAL),
    Op.NOT_EQUAL: _opposite(Op.EQUAL), Op.LOGICAL_AND: _de_morgan(Op.LOGICAL_OR),
    Op.LOGICAL_OR: _de_morgan(Op.LOGICAL_AND), Op.REDUCE_MAX: _over(Op.NEG, Op.REDUCE_MIN),
    Op.REDUCE_MIN: _over(Op.NEG, Op.REDUCE_MAX), Op.REDUCE_ALL: _over(Op.LOGICAL_NOT, Op.REDUCE_ANY),
    Op.REDUCE_ANY: _over(Op.LOGICAL_NOT, Op.REDUCE_ALL), Op.LOGISTIC: _logistic, Op.TANH: _tanh,
    Op.HARD_SWISH: _hard_swish, Op.PRELU: _prelu, Op.ELU: _elu, Op.SOFTMAX: _softmax, Op.MEAN: _mean,
    Op.REDUCE_SUM: _mean, Op.ARGMAX: _first_of_top, Op.TOPK_V2: _topk, Op.CONV_2D: _grouped,
    Op.DEPTHWISE_CONV_2D: _grouped, Op.FULLY_CONNECTED: _connected, Op.BATCH_MATMUL: _turned_side,
    Op.SLICE: _strided, Op.EMBEDDING_LOOKUP: _lookup, Op.REVERSE: _gathered(_reversed), Op.TILE: _gathered(_tiled),
    Op.MIRROR_PAD: _gathered(_mirrored), Op.CHANNEL_SHUFFLE: _gathered(_shuffled), Op.PAD: _pad_value,
    Op.RESHAPE: _reshape, Op.EXPAND_DIMS: _reshape, Op.SQUEEZE: _reshape, Op.TRANSPOSE: _two_turns,
    Op.CONCATENATION: _joined_in_steps, Op.SPLIT: _slices, Op.PACK: _expanded, Op.SELECT: _select,
    Op.DEQUANTIZE: _dequantize, Op.RNN: _one_step(Op.UNIDIRECTIONAL_SEQUENCE_RNN),
    Op.LSTM: _one_step(Op.UNIDIRECTIONAL_SEQUENCE_LSTM),
}  # fmt: skip

# Types of the first tensor with which an operation has its chain: what the others take.
ROWS: dict[Op, frozenset[OperandType]] = {
    **dict.fromkeys(EQUALS, PLAIN),
    **dict.fromkeys((Op.RELU, Op.RELU1, Op.RELU6, Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.FULLY_CONNECTED, Op.PAD,
                     Op.SLICE, Op.PACK, Op.CONCATENATION, Op.TRANSPOSE, Op.SQUEEZE, Op.CHANNEL_SHUFFLE), MOVED),
    **dict.fromkeys((Op.ABS, Op.SUB, Op.MAXIMUM, Op.MINIMUM), EXACT_TOO),
    **dict.fromkeys((Op.GREATER, Op.LESS, Op.GREATER_EQUAL, Op.LESS_EQUAL, Op.EQUAL, Op.NOT_EQUAL, Op.LOGICAL_AND,
                     Op.LOGICAL_OR, Op.REDUCE_ALL, Op.REDUCE_ANY, Op.ARGMAX, Op.TOPK_V2, Op.EMBEDDING_LOOKUP,
                     Op.REVERSE, Op.TILE, Op.MIRROR_PAD, Op.RESHAPE, Op.EXPAND_DIMS, Op.SPLIT, Op.SELECT,
                     Op.BATCH_MATMUL), ANY),
    Op.DEQUANTIZE: frozenset({Q8}),
}  # fmt: skip
FIRST = ("input", "a", "values", "lhs", "inputs")


def concerns(definition: OperationDef, signature: Signature) -> bool:
    """Whether calls of a signature have a chain that does the same."""
    types = signature.row.types
    kind = next((types[name] for name in FIRST if name in types), None)
    return definition.code in EQUALS and kind in ROWS[Op(definition.code)]
