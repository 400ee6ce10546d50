"""Pairs of models of one operation each: the same call written in another way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from conformance.nets import COPY, INPUT, TEMPORARY, Link, Net, NoPairError, Pair, alone, call_by_hand, recomputed
from nnhal.model import Model, Operation, Subgraph, count_consumers, is_tensor
from nnhal.operations import Signature
from nnhal.types import Array, FusedActivation, OperandType, PaddingScheme
from nnhal.types import OperationType as Op
from opset.call import Argument, Call, int32_tensor, scalar
from opset.definition import OperationDef
from opset.shapes import broadcast, same_padding

NCHW = (0, 3, 1, 2)  # where each dimension of an image with channels first comes from
IMAGES = frozenset({"input", "feature", "heatmap", "scores", "deltas"})
ACTIVATIONS = {FusedActivation.RELU: Op.RELU, FusedActivation.RELU1: Op.RELU1, FusedActivation.RELU6: Op.RELU6}
RECURRENT = frozenset({Op.RNN, Op.SVDF, Op.LSTM, Op.UNIDIRECTIONAL_SEQUENCE_LSTM, Op.BIDIRECTIONAL_SEQUENCE_LSTM,
                       Op.UNIDIRECTIONAL_SEQUENCE_RNN, Op.BIDIRECTIONAL_SEQUENCE_RNN})  # fmt: skip


def _names(signature: Signature) -> tuple[str, ...]:
    return tuple(operand.name for operand in signature.form.operands[: signature.count])


def _judged(definition: OperationDef) -> bool:
    """Whether a result says the same twice: neither drawn at random, nor rows in any order; and no graphs are run."""
    return definition.graphs is None and definition.judging.sampling is None and not definition.judging.grouped_by


def _tensors(call: Call) -> list[str]:
    """Tensor inputs with a value that are no parameters."""
    return [
        n
        for n, a in call.inputs.items()
        if is_tensor(a.type) and not a.omitted and not call.signature.form.operand(n).parameter
    ]


def closed(call: Call) -> Call:
    """A call whose results have the shapes that the model declares."""
    if any(a.declared for a in call.results.values()):
        raise NoPairError
    bare = {n: replace(a, key=None) for n, a in call.inputs.items()}
    return replace(call, inputs=bare, results={n: replace(a, key=None) for n, a in call.results.items()})


def _all(call: Call) -> tuple[Link, ...]:
    return tuple(Link(position) for position in range(len(call.results)))


# --- for every operation ----------------------------------------------------------------------------------------------


def constant(call: Call, number: int) -> Pair:
    """Tensors as inputs of the model, and the same as constants: all but one in turn, or the only one."""
    call, names = closed(call), _tensors(call)
    if not names:
        raise NoPairError
    free = dict.fromkeys(names, INPUT)
    kept = names[number % len(names)] if len(names) > 1 else ""
    fixed = {n: INPUT if n == kept else COPY for n in names}
    return Pair(alone(call, free), alone(call, fixed), _all(call), "a value that is a constant does what an input does")


class _Renumbered(Net):
    """A net whose operands are numbered in another order."""

    seed = 0

    def model(self, *, relaxed: bool = False) -> Model:
        model = super().model(relaxed=relaxed)
        graph = model.main
        order = list(range(len(graph.operands)))
        random.Random(self.seed).shuffle(order)
        if order == sorted(order):
            order.reverse()
        place = {old: new for new, old in enumerate(order)}

        def moved(indexes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(place[i] for i in indexes)

        operations = tuple(Operation(o.type, moved(o.inputs), moved(o.outputs)) for o in graph.operations)
        operands = tuple(graph.operands[i] for i in order)
        ends = moved(graph.input_indexes), moved(graph.output_indexes)
        return replace(model, main=count_consumers(Subgraph(operands, operations, *ends)))


def numbering(call: Call, number: int) -> Pair:
    """Operands in another order."""
    call = closed(call)
    first = alone(call)
    second = _Renumbered()
    second.seed = number
    given = [n for n, a in call.inputs.items() if is_tensor(a.type) and not a.omitted]
    second.call(call, {}, dict.fromkeys(given[1:], COPY))
    return Pair(first, second, _all(call), "how operands are numbered means nothing")


def copies(call: Call, number: int) -> Pair:
    """The operation twice in one model, on the same operands."""
    call = closed(call)
    first, second = alone(call), alone(call)
    operation = second.graph.operations[0]
    sources = dict(zip(call.inputs, operation.inputs, strict=True))
    second.call(call, sources)
    links = (*_all(call), *_all(call))
    return Pair(first, second, links, "an operation that is in a model twice gives the same twice")


def batch(call: Call, number: int) -> Pair:
    """Some rows of a batch alone. What carries the batch is found by trying; the specification decides."""
    call = closed(call)
    if not next(iter(call.results.values())).shape:
        raise NoPairError
    rows = next(iter(call.results.values())).shape[0]
    if rows < 2:
        raise NoPairError
    names = [n for n in _tensors(call) if call[n].shape and call[n].shape[0] == rows]
    chance = random.Random(number)
    first = chance.randrange(rows)
    count = chance.randint(1, min(rows - first, rows - 1))
    for chosen in _choices(names):
        inputs = {n: _rows(a, first, count) if n in chosen else a for n, a in call.inputs.items()}
        try:
            part = recomputed(replace(call, inputs=inputs))
        except NoPairError:
            continue
        if all(_is_part(part.results[n], a, first) for n, a in call.results.items()):
            links = tuple(Link(n, first=first) for n in range(len(call.results)))
            return Pair(alone(call), alone(part), links, "rows of a batch alone give what they give in the batch")
    raise NoPairError


def _choices(names: list[str]) -> Iterator[list[str]]:
    """Which inputs may carry the batch: the first alone, all, and all but one."""
    yield from ([names[:1]] if names else [])
    if len(names) > 1:
        yield names
        for name in names[1:]:
            yield [n for n in names if n != name]


def _rows(argument: Argument, first: int, count: int) -> Argument:
    assert argument.value is not None
    value = np.ascontiguousarray(argument.value[first : first + count])
    return replace(argument, value=value, shape=value.shape)


def _is_part(part: Argument, whole: Argument, first: int) -> bool:
    if part.value is None or whole.value is None or part.shape[:1] == whole.shape[:1]:
        return False
    due = whole.value[first : first + part.shape[0]]
    return due.shape == part.shape and due.tobytes() == part.value.tobytes()


# --- layouts ----------------------------------------------------------------------------------------------------------


def _turned(argument: Argument, axes: tuple[int, ...]) -> Argument:
    assert argument.value is not None
    value = np.ascontiguousarray(np.transpose(argument.value, axes))
    return replace(argument, value=value, shape=value.shape)


def layout(call: Call, number: int) -> Pair:
    """Channels last, and channels first."""
    call = closed(call)
    if call["nchw"].item():
        raise NoPairError
    inputs = {n: _turned(a, NCHW) if n in IMAGES and a.rank == 4 else a for n, a in call.inputs.items()}
    inputs["nchw"] = scalar(OperandType.BOOL, True)
    ways = [inputs]
    if "output_shape" in inputs:
        shape = inputs["output_shape"].value
        assert shape is not None
        ways.append({**inputs, "output_shape": int32_tensor([shape[i] for i in NCHW])})
    for given in ways:
        twin = recomputed(replace(call, inputs=given))
        links = tuple(_layout_link(n, a, twin) for n, a in enumerate(call.results.items()))
        if all(links):
            text = "channels first and channels last give the same, each in its layout"
            return Pair(alone(call), alone(twin), tuple(link for link in links if link), text)
    raise NoPairError


def _layout_link(position: int, result: tuple[str, Argument], twin: Call) -> Link | None:
    name, argument = result
    other = twin.results[name]
    if argument.rank == 4 and other.shape == tuple(argument.shape[i] for i in NCHW):
        return Link(position, NCHW)
    return Link(position) if argument.shape == other.shape else None


TIME = (1, 0, 2)


def time_major(call: Call, number: int) -> Pair:
    """Time first, and the batch first."""
    call = closed(call)
    inputs = {
        n: _turned(a, TIME) if n in ("input", "aux_input") and not a.omitted else a for n, a in call.inputs.items()
    }
    inputs["time_major"] = scalar(call["time_major"].type, not call["time_major"].item())
    twin = recomputed(replace(call, inputs=inputs))
    links = []
    for position, name in enumerate(call.results):
        turned = name in ("output", "fw_output", "bw_output")
        links.append(Link(position, TIME if turned else ()))
    text = "time first and the batch first give the same, each in its layout"
    return Pair(alone(call), alone(twin), tuple(links), text)


# --- one call written in two ways -------------------------------------------------------------------------------------


def activation(call: Call, number: int) -> Pair:
    """A fused activation, and the operation for it behind."""
    call = closed(call)
    code = FusedActivation(call.integer("activation"))
    if code == FusedActivation.NONE:
        code = (FusedActivation.RELU, FusedActivation.RELU1, FusedActivation.RELU6)[number % 3]
        call = recomputed(call.with_input("activation", scalar(OperandType.INT32, int(code))))
    linear = recomputed(call.with_input("activation", scalar(OperandType.INT32, 0)))
    second = Net()
    given = [n for n, a in linear.inputs.items() if is_tensor(a.type) and not a.omitted]
    between = second.call(linear, {}, {**dict.fromkeys(given[1:], COPY), "output": TEMPORARY})
    behind = call_by_hand(ACTIVATIONS[code], {"input": linear.results["output"]}, {"output": call.results["output"]})
    if behind is None:
        raise NoPairError
    second.call(behind, {"input": between["output"]})
    return Pair(
        alone(call), second, (Link(0),), f"a fused activation does what {ACTIVATIONS[code].name} behind it does"
    )


def padding(call: Call, number: int) -> Pair:
    """A padding scheme, and the same padding in numbers."""
    call = closed(call)
    scheme = call.integer("padding_scheme")
    images = [i + (1 if call.has("nchw") and call["nchw"].item() else 0) for i in (1, 2)]
    image, sides = call["input"].shape, []
    for axis, size, stride, dilation in zip(images, _window(call), ("stride_h", "stride_w"), ("h", "w"), strict=True):
        step, spread = call.integer(stride), _optional(call, f"dilation_{dilation}")
        if call.definition.code == Op.TRANSPOSE_CONV_2D:
            out = call.results["output"].shape[axis]
            total = max(0, (image[axis] - 1) * step + size - out) if scheme == PaddingScheme.SAME else 0
            sides.append((total // 2, total - total // 2))
        else:
            same = same_padding(image[axis], size, step, spread)
            sides.append(same if scheme == PaddingScheme.SAME else (0, 0))
    (top, bottom), (left, right) = sides
    pads = {"pad_left": left, "pad_right": right, "pad_top": top, "pad_bottom": bottom}
    for signature in call.definition.signatures:
        if signature.form.name != "explicit" or signature.row is not call.signature.row:
            continue
        names = signature.form.names(signature.count or 0)
        if set(names) - set(pads) != set(call.inputs) - {"padding_scheme", "output_shape"}:
            continue
        inputs = {n: scalar(OperandType.INT32, pads[n]) if n in pads else call[n] for n in names}
        twin = recomputed(replace(call, signature=signature, inputs=inputs))
        text = "a padding scheme does what the same padding in numbers does"
        return Pair(alone(call), alone(twin), (Link(0),), text)
    raise NoPairError


def _window(call: Call) -> tuple[int, int]:
    if "filter_h" in call.inputs:
        return call.integer("filter_h"), call.integer("filter_w")
    return call["filter"].shape[1], call["filter"].shape[2]


def _optional(call: Call, name: str) -> int:
    try:
        return call.integer(name)
    except KeyError:
        return 1


def swapped(call: Call, number: int) -> Pair:
    """Two inputs that change places."""
    call = closed(call)
    inputs = {**call.inputs, "a": call["b"], "b": call["a"]}
    twin = recomputed(replace(call, inputs=inputs))
    first = alone(call, {"b": INPUT})
    return Pair(first, alone(twin, {"b": INPUT}), (Link(0),), "which operand comes first does not matter")


def broadcasting(call: Call, number: int) -> Pair:
    """Broadcast operands, and the same written out."""
    call, names = closed(call), _tensors(call)
    shape = broadcast(*(call[n].shape for n in names))
    if shape is None or all(call[n].shape == shape for n in names):
        raise NoPairError
    inputs = {n: _wide(a, shape) if n in names else a for n, a in call.inputs.items()}
    twin = recomputed(replace(call, inputs=inputs))
    text = "an operand that is broadcast does what one of full size does"
    return Pair(alone(call), alone(twin), (Link(0),), text)


def _wide(argument: Argument, shape: tuple[int, ...]) -> Argument:
    assert argument.value is not None
    value: Array = np.ascontiguousarray(np.broadcast_to(argument.value, shape))
    return replace(argument, value=value, shape=value.shape)


def defaults(call: Call, number: int) -> Pair:
    """Trailing operands that are left off, and the same with their defaults."""
    call = closed(call)
    longer = [s for s in call.definition.signatures if s.form is call.signature.form and s.row is call.signature.row
              and s.results == call.signature.results and (s.count or 0) > (call.signature.count or 0)]  # fmt: skip
    if not longer:
        raise NoPairError
    signature = longer[number % len(longer)]
    added = signature.form.operands[call.signature.count : signature.count]
    inputs = dict(call.inputs)
    for operand in added:
        if operand.default is None or operand.type is None:
            raise NoPairError
        inputs[operand.name] = scalar(operand.type, operand.default)
    twin = recomputed(replace(call, signature=signature, inputs=inputs))
    text = "an operand that is left off does what its default does"
    return Pair(alone(call), alone(twin), _all(call), text)


def _has_defaults(definition: OperationDef, signature: Signature) -> bool:
    return _judged(definition) and any(
        s.form is signature.form and (s.count or 0) > (signature.count or 0)
        and all(o.default is not None for o in s.form.operands[signature.count : s.count])
        for s in definition.signatures
    )  # fmt: skip


def axis(call: Call, number: int) -> Pair:
    """An axis counted from the front, and from the end."""
    call = closed(call)
    name = "axis" if "axis" in call.inputs else "axes"
    given, first = call[name], next(a for n, a in call.inputs.items() if n in ("input", "logits", "inputs0"))
    if given.value is None:
        raise NoPairError
    rank = first.rank + (call.definition.code in (Op.EXPAND_DIMS, Op.PACK))
    other = np.where(given.value < 0, given.value + rank, given.value - rank).astype(np.int32)
    twin = recomputed(call.with_input(name, replace(given, value=other)))
    text = "an axis counted from the front is that counted from the end"
    return Pair(alone(call), alone(twin), _all(call), text)


def by_scale(call: Call, number: int) -> Pair:
    """A size as such, and the same size as a multiple of the input's."""
    call = closed(call)
    first = 2 if call.has("nchw") and call["nchw"].item() else 1
    kind = {OperandType.TENSOR_FLOAT16: OperandType.FLOAT16}.get(call["input"].type, OperandType.FLOAT32)
    sizes = {"height_scale": ("out_height", first), "width_scale": ("out_width", first + 1)}
    for signature in call.definition.signatures:
        same = signature.row.types["input"] == call["input"].type and signature.count == call.signature.count
        if signature.form.name != "by_scale" or not same:
            continue
        inputs: dict[str, Argument] = {}
        for n in signature.form.names(signature.count or 0):
            if n in sizes:
                source, place = sizes[n]
                inputs[n] = scalar(kind, call.integer(source) / call["input"].shape[place])
            else:
                inputs[n] = call[n]
        twin = recomputed(replace(call, signature=signature, inputs=inputs))
        return Pair(alone(call), alone(twin), (Link(0),), "a size does what the same multiple of the input's size does")
    raise NoPairError


NO_TENSOR = frozenset({Op.FILL})  # all its operands are parameters
# What becomes of a batch there is no batch, or hardly ever one.
NO_BATCH = NO_TENSOR | {Op.RANK, Op.RESHAPE, Op.STRIDED_SLICE, Op.BATCH_TO_SPACE_ND, Op.SPACE_TO_BATCH_ND}
NO_AXIS = frozenset({Op.CONCATENATION, Op.PACK, Op.REVERSE, Op.SQUEEZE})  # no axis, or none below 0, is allowed
SYMMETRIC = frozenset({Op.ADD, Op.MUL, Op.MAXIMUM, Op.MINIMUM, Op.EQUAL, Op.NOT_EQUAL, Op.LOGICAL_AND, Op.LOGICAL_OR})
BROADCAST = SYMMETRIC | {Op.SUB, Op.DIV, Op.POW, Op.PRELU, Op.GREATER, Op.GREATER_EQUAL, Op.LESS, Op.LESS_EQUAL}

KINDS = (
    ("constant", lambda d, s: _judged(d) and d.code not in NO_TENSOR, constant),
    ("numbering", lambda d, s: _judged(d), numbering),
    ("copies", lambda d, s: _judged(d), copies),
    ("batch", lambda d, s: _judged(d) and d.code not in NO_BATCH, batch),
    ("layout", lambda d, s: _judged(d) and "nchw" in _names(s), layout),
    ("time.major", lambda d, s: "time_major" in _names(s), time_major),
    ("activation", lambda d, s: "activation" in _names(s) and d.code not in RECURRENT
     and OperandType.TENSOR_INT32 not in s.row.types.values(), activation),
    ("padding", lambda d, s: s.form.name == "implicit", padding),
    ("swapped", lambda d, s: d.code in SYMMETRIC, swapped),
    ("broadcasting", lambda d, s: d.code in BROADCAST, broadcasting),
    ("defaults", _has_defaults, defaults),
    ("axis", lambda d, s: _judged(d) and bool({"axis", "axes"} & set(_names(s))) and d.code not in NO_AXIS, axis),
    ("by.scale", lambda d, s: s.form.name == "by_shape" and len(_names(s)) >= 3, by_scale),
)  # fmt: skip
