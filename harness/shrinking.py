"""Makes the values of a net smaller along their dimensions. What belongs together is mostly of one size.

Constants and inputs are cut, and the dimensions of all else follow. Parameters that hold sizes are changed with them
where that is needed: several ways are offered, of which the first that is valid is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from harness.editable import Net, Place
from harness.searching import Search
from harness.settling import Trace
from nnhal.model import ChannelQuant, is_tensor
from nnhal.types import Array, OperandType, OperationType

MOST_PAIRED = 10  # axes of one size of which every two are tried together
MOST_RANK = 5  # of the result of RESHAPE, of whose sizes one is left to the driver
PADDING = "pad_"  # a filter must be larger than what is padded
INTEGERS = (OperandType.INT32, OperandType.TENSOR_INT32)

Axis = tuple[Place, int]


def shrink_shapes(search: Search) -> None:
    """Cuts every dimension as far as the failure allows: those of one size together, then alone and in pairs."""
    search.stage = "shapes"
    search.attempt(sliced(search.net, dict.fromkeys(axes(search.net, search.trace), 1), tail=False))
    while any(_cut_group(search, group) for group in _groups(search)) or any(
        _cut_group(search, some) for group in _groups(search) for some in _parts(group)
    ):
        pass
    search.attempt_any(_squeezed(search.net, search.trace))


def parameters(trace: Trace, net: Net) -> dict[Place, str]:
    """Operands that an operation reads as a parameter, with the name that it has there."""
    found: dict[Place, str] = {}
    for (number, position), call in trace.calls.items():
        if number in net.live() and position < len(net.graphs[number].operations):
            inputs = net.graphs[number].operations[position].inputs
            for operand, name in zip(inputs, call.inputs, strict=False):
                if call.signature.form.operand(name).parameter:
                    found[number, operand] = name
    return found


def data(net: Net, trace: Trace) -> list[Place]:
    """Constants and inputs that are tensors and no parameters."""
    left_out = parameters(trace, net)
    return [p for p in net.valued() if p not in left_out and is_tensor(net.graphs[p[0]].operands[p[1]].type)]


def axes(net: Net, trace: Trace) -> list[Axis]:
    """All dimensions above 1 of what holds data."""
    return [
        (place, axis) for place in data(net, trace) for axis, size in enumerate(_value(net, place).shape) if size > 1
    ]


def _value(net: Net, place: Place) -> Array:
    return net.graphs[place[0]].values[place[1]]


def _groups(search: Search) -> list[list[Axis]]:
    """Axes by size, the largest first."""
    groups: dict[int, list[Axis]] = {}
    for place, axis in axes(search.net, search.trace):
        groups.setdefault(_size(search.net, (place, axis)), []).append((place, axis))
    return [groups[size] for size in sorted(groups, reverse=True)]


def _parts(group: Sequence[Axis]) -> Iterator[list[Axis]]:
    if len(group) > 1:
        yield from ([axis] for axis in group)
    if 2 < len(group) <= MOST_PAIRED:
        yield from (list(pair) for pair in itertools.combinations(group, 2))


def _cut_group(search: Search, group: Sequence[Axis]) -> bool:
    """Cuts axes of one size to 1, to a half, or by 1: what stands at the head stays, or at the tail."""
    size = _size(search.net, group[0])
    targets = dict.fromkeys(target for target in (1, size // 2, size - 1) if 0 < target < size)
    return any(_cut(search, group, target, tail) for target in targets for tail in (False, True))


def _cut(search: Search, group: Sequence[Axis], target: int, tail: bool) -> bool:
    """Cuts axes of one size to another; larger ones with them, by the same ratio, where it does not do without."""
    size = _size(search.net, group[0])
    larger = [axis for axis in axes(search.net, search.trace) if axis not in group]
    larger = [axis for axis in larger if _size(search.net, axis) % size == 0]
    ways = _ways(sliced(search.net, dict.fromkeys(group, target), tail), search.trace, size, target)
    if larger:
        lengths = {axis: _size(search.net, axis) // size * target for axis in (*group, *larger)}
        ways = itertools.chain(ways, _ways(sliced(search.net, lengths, tail), search.trace, size, target))
    return search.attempt_first(ways)


def _size(net: Net, axis: Axis) -> int:
    return int(_value(net, axis[0]).shape[axis[1]])


def sliced(net: Net, lengths: Mapping[Axis, int], tail: bool) -> Net:
    """A net whose values are cut along some axes, with the scales of channels."""
    for ((number, operand), axis), length in lengths.items():
        graph = net.graphs[number]
        value = graph.values[operand]
        start = value.shape[axis] - length if tail else 0
        part = np.ascontiguousarray(value.take(range(start, start + length), axis))
        shown = graph.operands[operand]
        channel = shown.extra_params
        if isinstance(channel, ChannelQuant) and channel.channel_dim == axis:
            scales = channel.scales[start : start + length]
            graph = graph.with_operand(operand, replace(shown, extra_params=replace(channel, scales=scales)))
        net = net.with_graph(number, graph.with_value(operand, part))
    return net


def _ways(net: Net, trace: Trace, size: int, target: int) -> Iterator[Net]:
    """A cut as it is, and with parameters and indexes that go with the new size."""

    def exchanged(name: str, number: int) -> int:
        return target if number == size else number

    def divided(name: str, number: int) -> int:
        return number * target // size if number % size == 0 else number

    def unpadded(name: str, number: int) -> int:
        return min(number, target - 1) if name.startswith(PADDING) else exchanged(name, number)

    clipped = _clipped(net, trace, target)
    for cut in (net, clipped) if clipped is not net else (net,):
        yield cut
        yield from (_changed(cut, trace, change) for change in (exchanged, divided, unpadded))
        yield from _left_open(cut)


def _changed(net: Net, trace: Trace, change: Callable[[str, int], int]) -> Net:
    """A net in whose parameters of whole numbers some are exchanged."""
    for (number, operand), name in sorted(parameters(trace, net).items()):
        graph = net.graphs[number]
        value = graph.values.get(operand)
        if value is not None and graph.operands[operand].type in INTEGERS:
            new = np.array([change(name, int(n)) for n in value.reshape(-1)], value.dtype).reshape(value.shape)
            net = net.with_graph(number, graph.with_value(operand, new))
    return net


def _clipped(net: Net, trace: Trace, target: int) -> Net:
    """A net whose tensors of whole numbers, which may be indexes, stay below a size."""
    for number, operand in data(net, trace):
        graph = net.graphs[number]
        value = graph.values[operand]
        if graph.operands[operand].type == OperandType.TENSOR_INT32 and (value >= target).any():
            net = net.with_graph(number, graph.with_value(operand, np.minimum(value, target - 1).astype(value.dtype)))
    return net


def _left_open(net: Net) -> Iterator[Net]:
    """A net in which RESHAPE works one of its sizes out, the first, the second and so on."""
    for place in range(MOST_RANK):
        opened = net
        for number in net.live():
            for operation in net.graphs[number].operations:
                graph = opened.graphs[number]
                wanted = graph.values.get(operation.inputs[1]) if operation.type == OperationType.RESHAPE else None
                if wanted is not None and place < wanted.size:
                    sizes = wanted.copy()
                    sizes[sizes == -1] = 1
                    sizes[place] = -1
                    opened = opened.with_graph(number, graph.with_value(operation.inputs[1], sizes))
        if opened is not net:
            yield opened


def _squeezed(net: Net, trace: Trace) -> Iterator[Net]:
    """A net without the first dimensions of those tensors that have the most, where they are 1: many, then fewer."""
    places = data(net, trace)
    most = max((_value(net, place).ndim for place in places), default=0)
    for count in range(most - 1, 0, -1):
        squeezed = net
        for number, operand in places:
            graph = squeezed.graphs[number]
            value, shown = graph.values[operand], graph.operands[operand]
            fewer = min(count, value.ndim - most + count)
            if fewer > 0 and value.shape[:fewer] == (1,) * fewer:
                channel = shown.extra_params
                if isinstance(channel, ChannelQuant):
                    shown = replace(shown, extra_params=replace(channel, channel_dim=channel.channel_dim - fewer))
                shown = replace(shown, dimensions=shown.dimensions[fewer:])
                flat = value.reshape(value.shape[fewer:])
                squeezed = squeezed.with_graph(number, graph.with_operand(operand, shown).with_value(operand, flat))
        if squeezed is not net:
            yield squeezed
