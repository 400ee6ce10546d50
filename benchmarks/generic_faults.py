"""Faults that any operation can have: wrong results, or the right computation on operands that were read wrongly.

`benchmarks.mutation_score` puts each of them into every operation. None knows a particular operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from harness.expectations import Expected
from harness.guards import UNWRITTEN_BYTE
from nnhal.types import Array, OperandType, info
from opset.branch import LoopTimedOutError
from opset.call import Argument, Call, scalar
from opset.evaluate import Result, run_call
from opset.quantization import FLOATS, QUANTIZED
from opset.values import Values

Answer = Mapping[str, Array]  # stored results by name
# What kernels raise on operands that no driver would be given: there is no answer then, and nothing to judge.
NO_ANSWER = (ValueError, IndexError, KeyError, ZeroDivisionError, OverflowError, LoopTimedOutError)
LAYOUTS = {"nchw": (0, 2, 3, 1), "time_major": (1, 0, 2)}  # flags, and the order of dimensions read without them


@dataclass(frozen=True)
class Seen:
    """What a driver was given and what is due of it.

    Attributes:
        truth: the right results.
        due: the same as the case states them, with what is allowed.
    """

    call: Call
    truth: Mapping[str, Result]
    due: Mapping[str, Expected]

    @property
    def stored(self) -> dict[str, Array]:
        """The right results as they are stored."""
        return {name: result.stored for name, result in self.truth.items()}


@dataclass(frozen=True)
class Fault:
    """One thing done wrong, in each of the places where it can be done.

    Attributes:
        key: a short name, for the head of a column.
        text: what is done wrong.
        places: operands (or pairs of them) at which it can be done, each with the label under which it is counted.
        answer: what is returned then; None where it cannot be done.
    """

    key: str
    text: str
    places: Callable[[Call], Mapping[str, str]]
    answer: Callable[[Seen, str], Answer | None]


# --- places -----------------------------------------------------------------------------------------------------------


def once(call: Call) -> Mapping[str, str]:
    """The operation as a whole."""
    return {"": ""}


def each_result(call: Call) -> Mapping[str, str]:
    """Every result; of a variadic one the last."""
    known = {operand.name for operand in call.definition.results}
    return {n if n in known else n.rstrip("0123456789"): n for n in call.results}


def each_input(call: Call) -> Mapping[str, str]:
    """Every input that holds data; of a variadic one the last."""
    return {call.signature.form.operand(n).name: n for n in data(call)}


def each_scalar(call: Call) -> Mapping[str, str]:
    """Every real scalar."""
    real = (OperandType.FLOAT32, OperandType.FLOAT16)
    return {n: n for n, a in call.inputs.items() if a.type in real and not a.omitted}


def each_flag(call: Call) -> Mapping[str, str]:
    """Every boolean scalar but those of a layout."""
    return {n: n for n, a in call.inputs.items() if a.type == OperandType.BOOL and n not in LAYOUTS and not a.omitted}


def each_layout(call: Call) -> Mapping[str, str]:
    """Every flag of a layout."""
    return {n: n for n in LAYOUTS if call.has(n)}


def alike_inputs(call: Call) -> Mapping[str, str]:
    """Each input that holds data with the next one of its type and shape."""
    operand = call.signature.form.operand
    pairs = _alike({n: call.inputs[n] for n in data(call)})
    return {" and ".join(operand(n).name for n in pair): " ".join(pair) for pair in pairs}


def alike_results(call: Call) -> Mapping[str, str]:
    """Each result with the next one of its type and shape."""
    labels = {name: label for label, name in each_result(call).items()}
    return {" and ".join(labels.get(n, n.rstrip("0123456789")) for n in p): " ".join(p) for p in _alike(call.results)}


def data(call: Call) -> list[str]:
    """Names of the inputs that hold data: no parameters, no graphs, nothing omitted."""
    operand = call.signature.form.operand
    return [n for n, a in call.inputs.items() if a.value is not None and a.value.size and not operand(n).parameter]


def _alike(arguments: Mapping[str, Argument]) -> list[tuple[str, str]]:
    before: dict[tuple[OperandType, tuple[int, ...]], str] = {}
    pairs = []
    for name, argument in arguments.items():
        kind = (argument.type, argument.shape)
        if kind in before:
            pairs.append((before[kind], name))
        before[kind] = name
    return pairs


# --- wrong results ----------------------------------------------------------------------------------------------------

Change = Callable[[Seen, str], "Array | None"]


def result(key: str, text: str, change: Change) -> Fault:
    """A fault that changes one result."""

    def answer(seen: Seen, name: str) -> Answer | None:
        wrong = change(seen, name) if seen.truth[name].stored.size else None
        return None if wrong is None else {**seen.stored, name: np.ascontiguousarray(wrong)}

    return Fault(key, text, each_result, answer)


def moved(key: str, text: str, move: Callable[[Array], Array]) -> Fault:
    """A fault that puts the values of a result elsewhere."""
    return result(key, text, lambda seen, name: move(seen.truth[name].stored))


def negated(seen: Seen, name: str) -> Array:
    """The other sign; the other truth; all bits of a whole number the other way."""
    value = seen.truth[name].stored
    if seen.call.results[name].type == OperandType.TENSOR_BOOL8:
        return np.asarray(value == 0).astype(value.dtype)
    return np.negative(value) if value.dtype.kind == "f" else np.invert(value)


def exchanged_axes(value: Array) -> Array:
    """Written in the order of the first two dimensions exchanged."""
    return value.swapaxes(0, 1).reshape(value.shape) if value.ndim > 1 else value


def first_row(value: Array) -> Array:
    """Every row, along the last dimension, is the first; every element, where there is one row."""
    width = value.shape[-1] if value.ndim > 1 else 1
    rows = value.reshape(-1, width)
    return np.broadcast_to(rows[:1], rows.shape).reshape(value.shape)


def unwritten(value: Array) -> Array:
    """The last element is left as the output was before."""
    raw = np.array(value, order="C").reshape(-1)
    raw[-1:] = np.frombuffer(bytes([UNWRITTEN_BYTE]) * value.itemsize, value.dtype)
    return raw.reshape(value.shape)


def truncated(seen: Seen, name: str) -> Array | None:
    """Quantised results lose what follows the point, as a cast of C does it."""
    if seen.call.results[name].type not in QUANTIZED:
        return None
    value = seen.truth[name]
    return np.trunc(value.exact).astype(value.stored.dtype)


def step_up(seen: Seen, name: str) -> Array | None:
    """Quantised results are all one step too large."""
    if seen.call.results[name].type not in QUANTIZED:
        return None
    value = seen.truth[name].stored
    return np.where(value < np.iinfo(value.dtype).max, value + 1, value).astype(value.dtype)


def one_off(seen: Seen, name: str) -> Array | None:
    """One element, in the middle of those that are not left open, is off by more than is allowed.

    By 4 times of it for floats, twice for quantised values (two steps, as a rule), by 1 for whole numbers.
    """
    value: Array = seen.truth[name].stored.copy()
    kind, due = seen.call.results[name].type, seen.due[name]
    places = np.flatnonzero(np.isfinite(due.required) & np.isfinite(due.value))
    if due.distribution is not None or not places.size:
        return None
    flat, place = value.reshape(-1), places[places.size // 2]
    allowed, old = float(due.required.reshape(-1)[place]), flat[place]
    if kind == OperandType.TENSOR_BOOL8:
        flat[place] = not old
    elif kind in FLOATS:
        flat[place] = np.float64(old) + 4 * allowed
    else:
        off = int(2 * allowed) or 1
        flat[place] = old + off if int(old) + off <= np.iinfo(flat.dtype).max else old - off
    return value


def coarse(bits: int, *kinds: OperandType) -> Change:
    """Floats keep so many significant bits."""

    def change(seen: Seen, name: str) -> Array | None:
        if seen.call.results[name].type not in kinds:
            return None
        value = seen.truth[name].stored
        fraction, exponent = np.frexp(value.astype(np.float64))
        wrong: Array = np.ldexp(np.rint(fraction * 2.0**bits), exponent - bits).astype(value.dtype)
        return wrong

    return change


def wrapped(seen: Seen, name: str) -> Array | None:
    """Quantised results keep their low bits in place of saturating."""
    argument = seen.call.results[name]
    if argument.type not in QUANTIZED:
        return None
    computed = np.asarray(seen.call.definition.kernel(Values(seen.call))[name])
    if computed.dtype.kind != "f":
        return None
    real = computed.astype(np.float64) / argument.scale
    steps = np.trunc(real + np.copysign(0.5, real)) + argument.zero_point
    whole: Array = np.nan_to_num(steps, posinf=2.0**40, neginf=-(2.0**40)).astype(np.int64)
    return whole.astype(info(argument.type).dtype)


def exchanged_results(seen: Seen, names: str) -> Answer:
    """One result is returned in the place of another and the other way round."""
    first, second = names.split()
    stored = seen.stored
    return {**stored, first: stored[second], second: stored[first]}


# --- wrong operands ---------------------------------------------------------------------------------------------------


def misread(key: str, text: str, places: Callable[[Call], Mapping[str, str]],
            change: Callable[[Call, str], Call | None]) -> Fault:  # fmt: skip
    """The right computation on a wrong call."""

    def answer(seen: Seen, name: str) -> Answer | None:
        wrong = change(seen.call, name)
        return None if wrong is None or unseeded(wrong) else {n: r.stored for n, r in run_call(wrong).items()}

    return Fault(key, text, places, answer)


def unseeded(call: Call) -> bool:
    """Whether results are random and do not come again."""
    return call.has("seeds") and not np.any(call["seeds"].value)


def zeros(call: Call, name: str) -> Call:
    """An input is taken as zero."""
    old = call.inputs[name]
    assert old.value is not None
    return call.with_input(name, replace(old, value=np.full_like(old.value, old.zero_point)))


def first_element(call: Call, name: str) -> Call:
    """An input is taken as its first element throughout."""
    old = call.inputs[name]
    assert old.value is not None
    return call.with_input(name, replace(old, value=np.full_like(old.value, old.value.reshape(-1)[0])))


def exchanged(call: Call, names: str) -> Call:
    """Two inputs are taken for each other."""
    first, second = names.split()
    return call.with_input(first, call.inputs[second]).with_input(second, call.inputs[first])


def no_activation(call: Call, name: str) -> Call | None:
    """The fused activation is skipped."""
    if not call.has("activation") or not call.integer("activation"):
        return None
    return call.with_input("activation", scalar(OperandType.INT32, 0))


def no_zero_point(call: Call, name: str) -> Call | None:
    """The zero point of an operand is left out."""
    operand = call[name]
    if operand.type not in QUANTIZED or operand.omitted or not operand.zero_point:
        return None
    return call.with_operand(name, replace(operand, zero_point=0))


def one_scale(call: Call, name: str) -> Call | None:
    """The scale of the first quantised input is used for all inputs."""
    scaled = [n for n in data(call) if call.inputs[n].type in QUANTIZED and call.inputs[n].channel is None]
    if len({call.inputs[n].scale for n in scaled}) < 2:
        return None
    for other in scaled[1:]:
        call = call.with_input(other, replace(call.inputs[other], scale=call.inputs[scaled[0]].scale))
    return call


def one_channel(call: Call, name: str) -> Call | None:
    """The scale of the first channel is used for all."""
    channel = call.inputs[name].channel
    if channel is None:
        return None
    scales = (channel.scales[0],) * len(channel.scales)
    return call.with_input(name, replace(call.inputs[name], channel=replace(channel, scales=scales)))


def unscaled(call: Call, name: str) -> Call | None:
    """A result has the scale and zero point of the first input of its type: it is not requantised."""
    due = call.results[name]
    same = [call.inputs[n] for n in data(call) if call.inputs[n].type == due.type]
    if due.type not in QUANTIZED or not same or (same[0].scale, same[0].zero_point) == (due.scale, due.zero_point):
        return None
    return call.with_result(name, replace(due, scale=same[0].scale, zero_point=same[0].zero_point))


def unset(call: Call, name: str) -> Call | None:
    """A flag is taken as false."""
    if not call.inputs[name].item():
        return None
    return call.with_input(name, scalar(call.inputs[name].type, 0))


def other_layout(call: Call, name: str) -> Call | None:
    """Data are read, and results written, as if the flag of their layout were not set."""
    order = LAYOUTS[name]
    image = next((n for n in data(call) if call.inputs[n].rank == len(order)), None)
    if not call[name].item() or image is None:
        return None
    old = call.inputs[image]
    assert old.value is not None
    shape = tuple(old.shape[axis] for axis in order)
    reread = call.with_input(image, replace(old, value=old.value.reshape(shape), shape=shape))
    return unset(reread, name)


def clamped_axis(call: Call, name: str) -> Call | None:
    """An axis below 0 is taken as 0."""
    for given in ("axis", "axes"):
        operand = call.inputs.get(given)
        if operand is not None and operand.value is not None and np.any(operand.value < 0):
            return call.with_input(given, replace(operand, value=np.maximum(operand.value, 0)))
    return None


def as_one(call: Call, name: str) -> Call:
    """A real scalar is taken as 1."""
    return call.with_input(name, scalar(call.inputs[name].type, 1))


F32, F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16

FAULTS = (
    moved("ze", "a result is zero", np.zeros_like),
    result("ne", "a result has the other sign, its bits complemented, or the other truth", negated),
    moved("ro", "a result is rolled by one element", lambda x: np.roll(x, 1)),
    moved("re", "the last dimension of a result is reversed", lambda x: x[..., ::-1] if x.ndim else x),
    moved("ex", "a result is written with its first two dimensions exchanged", exchanged_axes),
    moved("fr", "every row of a result is the first", first_row),
    moved("un", "the last element of a result is not written", unwritten),
    result("of", "one element is off by 4 allowances (floats), 2 allowances (steps) or 1 (whole numbers)", one_off),
    result("tr", "quantised results are truncated", truncated),
    result("up", "quantised results are all one step too large", step_up),
    result("wr", "quantised results wrap in place of saturating", wrapped),
    result("b8", "float results have 8 significant bits, as bfloat16 has", coarse(8, F32, F16)),
    result("b11", "float32 results have 11 significant bits, as float16 has", coarse(11, F32)),
    Fault("xr", "two results of one shape are exchanged", alike_results, exchanged_results),
    misread("iz", "an input is taken as zero", each_input, zeros),
    misread("if", "an input is taken as its first element throughout", each_input, first_element),
    misread("xi", "two inputs of one shape are exchanged", alike_inputs, exchanged),
    misread("ac", "the fused activation is skipped", once, no_activation),
    misread("zi", "the zero point of an input is left out", each_input, no_zero_point),
    misread("zo", "the zero point of a result is left out", each_result, no_zero_point),
    misread("sc", "the scale of the first input is used for all", once, one_scale),
    misread("ch", "the scale of the first channel is used for all", each_input, one_channel),
    misread("rq", "a result is left in the scale and zero point of an input", each_result, unscaled),
    misread("la", "the flag of the layout is ignored", each_layout, other_layout),
    misread("fl", "another flag is taken as false", each_flag, unset),
    misread("ax", "an axis below 0 is taken as 0", once, clamped_axis),
    misread("rs", "a real scalar is taken as 1", each_scalar, as_one),
)


def answered(fault: Fault, seen: Seen, place: str) -> Answer | None:
    """What a driver with the fault returns; None where the fault cannot be there, or no answer comes of it."""
    try:
        with np.errstate(all="ignore"):
            return fault.answer(seen, place)
    except NO_ANSWER:
        return None


def fitted(value: Array, shape: Iterable[int]) -> Array:
    """What is found in an output of the due shape when values of another were written to it in their order."""
    shape = tuple(shape)
    return value if value.shape == shape else np.resize(value, shape)
