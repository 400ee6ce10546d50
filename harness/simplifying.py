"""Makes values, parameters and the rest of a net plainer: zeros and ones, whole numbers, no activation, no flags."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from harness.editable import CONSTANTS, LIFE, Net, Place
from harness.searching import Search
from harness.settling import known_sizes
from harness.shrinking import data, parameters
from nnhal.types import Array, ExecutionMode, OperandType, OperationType, PaddingScheme, info
from opset.quantization import QUANTIZED

MOST_LISTED = 16  # elements of a parameter that are made plainer one by one
MOST_READ = 4096
REACH = 8  # whole numbers beyond it are no plainer than others
TRUTHS = (OperandType.BOOL, OperandType.TENSOR_BOOL8)
# Parameters whose numbers are names. 0 is no padding scheme of the documents.
NAMES: dict[str, tuple[int, ...]] = {"padding_scheme": (PaddingScheme.VALID,), "mode": (), "type": (), "kernel": ()}

Form = Callable[[Array], Array]


def simplify_values(search: Search) -> None:
    """Gives constants and inputs values that are easier to read: all of them, then each."""
    search.stage = "values"
    for form in (_zeros, _ones, _whole):
        search.attempt(_formed(search.net, data(search.net, search.trace), form))
    for place in data(search.net, search.trace):
        while any(_try_value(search, place, form) for form in FORMS):
            pass


def _zeros(steps: Array) -> Array:
    return np.zeros_like(steps)


def _ones(steps: Array) -> Array:
    return np.ones_like(steps)


def _signs(steps: Array) -> Array:
    return np.asarray(np.sign(steps))


def _single(steps: Array) -> Array:
    """The largest element alone."""
    flat = steps.reshape(-1)
    result = np.zeros_like(flat)
    if flat.size:
        place = int(np.argmax(np.abs(flat)))
        result[place] = flat[place]
    return result.reshape(steps.shape)


def _whole(steps: Array) -> Array:
    return np.asarray(np.clip(np.rint(steps), -REACH, REACH))


def _halves(steps: Array) -> Array:
    return np.asarray(np.rint(steps * 2) / 2)


FORMS: tuple[Form, ...] = (
    _zeros,
    _ones,
    lambda steps: _signs(_single(steps)),
    _signs,
    lambda steps: _whole(_single(steps)),
    _whole,
    _halves,
    _single,
)


def _formed(net: Net, places: Sequence[Place], form: Form) -> Net:
    """A net with plainer values, where they are plainer. Quantised ones are counted from the zero point."""
    for number, operand in places:
        graph = net.graphs[number]
        shown, value = graph.operands[operand], graph.values[operand]
        kind = OperandType(shown.type)
        zero = shown.zero_point if kind in QUANTIZED else 0
        steps = value.astype(np.float64) - zero
        with np.errstate(all="ignore"):
            new = form(steps)
        if kind in TRUTHS:
            new = np.abs(new)
        if value.dtype.kind != "f":
            limits = np.iinfo(info(kind).dtype)
            new = np.clip(np.trunc(new), limits.min - zero, limits.max - zero)
        if _cost(new) < _cost(steps):
            net = net.with_graph(number, graph.with_value(operand, (new + zero).astype(value.dtype)))
    return net


def _cost(steps: Array) -> tuple[int, int]:
    """How hard values are to read: those that are not 0, and the digits of the first ones."""
    some = steps[steps != 0]
    return some.size, sum(len(f"{abs(x):.9g}") for x in some[:MOST_READ].tolist())


def _try_value(search: Search, place: Place, form: Form) -> bool:
    number, operand = place
    if number not in search.net.live() or operand not in search.net.graphs[number].values:
        return False
    changed = _formed(search.net, [place], form)
    return changed is not search.net and search.attempt(changed)


# --- parameters -------------------------------------------------------------------------------------------------------


def simplify_parameters(search: Search) -> None:
    """Gives parameters the plainest values that they may have."""
    search.stage = "parameters"
    for operation_number, position in sorted(search.trace.calls):
        for name, place in _named(search, operation_number, position):
            value = search.net.graphs[place[0]].values.get(place[1])
            if value is not None and place in parameters(search.trace, search.net):
                _simplify_parameter(search, name, place)


def _named(search: Search, number: int, position: int) -> list[tuple[str, Place]]:
    """The inputs of an operation by name."""
    operation = search.net.graphs[number].operations[position]
    call = search.trace.calls.get((number, position))
    names = () if call is None else call.inputs
    return [(name, (number, operand)) for name, operand in zip(names, operation.inputs, strict=False)]


def _simplify_parameter(search: Search, name: str, place: Place) -> None:
    value = search.net.graphs[place[0]].values[place[1]]
    resolved = _resolved(search, name, place)
    if resolved is not None:
        search.attempt(_with_value(search.net, place, resolved))
    if value.size > 1:
        for new in (np.zeros_like(value), np.ones_like(value)):
            if search.attempt(_with_value(search.net, place, new)):
                return
    for index in range(min(value.size, MOST_LISTED)):
        for number in _plainer(name, value.reshape(-1)[index].item()):
            flat = search.net.graphs[place[0]].values[place[1]].reshape(-1).copy()
            flat[index] = number
            if search.attempt(_with_value(search.net, place, flat.reshape(value.shape))):
                break


def _with_value(net: Net, place: Place, value: Array) -> Net:
    return net.with_graph(place[0], net.graphs[place[0]].with_value(place[1], value))


def _plainer(name: str, number: float) -> Iterator[float]:
    """Numbers that are plainer than one, the plainest first."""
    if name in NAMES:
        yield from (n for n in NAMES[name] if n != number)
        return
    if isinstance(number, float):
        offered = [0.0, 1.0, float(np.rint(number)), float(np.rint(number * 2) / 2)]
        yield from itertools.takewhile(lambda x: x != number, dict.fromkeys(offered))
        return
    yield from dict.fromkeys(n for n in (0, 1, number // 2, number - 1) if 0 <= n < number)
    if number < 0:
        yield from (0, 1)


def _resolved(search: Search, name: str, place: Place) -> Array | None:
    """What RESHAPE makes of a size that is left to it."""
    number, operand = place
    graph = search.net.graphs[number]
    value = graph.values[operand]
    if name != "shape" or not (value == -1).any():
        return None
    for operation in graph.operations:
        if operation.type == OperationType.RESHAPE and operation.inputs[1] == operand:
            result = search.trace.values.get((number, operation.outputs[0]))
            return None if result is None else np.array(result.shape, value.dtype)
    return None


# --- the rest ---------------------------------------------------------------------------------------------------------


def simplify_rest(search: Search) -> None:
    """Declares sizes, moves constants into the model, and takes the plainest way to execute."""
    search.stage = "flags"
    search.attempt(known_sizes(search.settled))
    search.attempt(_copied(search.net))
    search.attempt(replace(search.net, relaxed=False))
    search.attempt(replace(search.net, mode=ExecutionMode.SYNCHRONOUS))


def _copied(net: Net) -> Net:
    """A net whose constants are all in the model itself."""
    for number in net.live():
        graph = net.graphs[number]
        operands = {
            i: replace(o, lifetime=LIFE.CONSTANT_COPY) if o.lifetime in CONSTANTS else o
            for i, o in graph.operands.items()
        }
        net = net.with_graph(number, replace(graph, operands=operands))
    return net
