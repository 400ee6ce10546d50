"""Ranges along dimensions: what STRIDED_SLICE's begin, end, strides and masks mean, its rules, and how to draw them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opset.call import Call, int32_tensor, with_value
from opset.definition import ExecutionRule
from opset.drawing import Draft
from opset.reshaping import ints_of

FAR = 7  # how far beyond an end of a dimension an index is drawn that is to be cut to it


@dataclass(frozen=True)
class Range:
    """Indexes along a dimension: from `first` by `stride`, up to `last`, which is not among them."""

    first: int
    last: int
    stride: int

    @property
    def size(self) -> int:
        """Number of indexes."""
        return max(0, -((self.first - self.last) // self.stride))

    @property
    def slice(self) -> slice:
        """The same for NumPy, where -1 as an end would mean the last element."""
        return slice(self.first, None if self.last < 0 else self.last, self.stride) if self.size else slice(0, 0)


def _bit(mask: int, axis: int) -> bool:
    return bool(mask >> axis & 1)


def _range(size: int, begin: int | None, end: int | None, stride: int) -> Range:
    """The range along a dimension; None where a mask says that begin or end does not count."""
    low, high = (0, size) if stride > 0 else (-1, size - 1)
    ends = []
    for given, default in ((begin, low if stride > 0 else high), (end, high if stride > 0 else low)):
        if given is None:
            ends.append(default)
            continue
        from_start = given + size if given < 0 else given
        ends.append(min(max(from_start, low), high))
    return Range(ends[0], ends[1], stride)


def ranges_of(call: Call) -> list[Range]:
    """The range along each dimension of the input."""
    begin_mask, end_mask = call.integer("begin_mask"), call.integer("end_mask")
    columns = zip(
        call["input"].shape, ints_of(call, "begin"), ints_of(call, "end"), ints_of(call, "strides"), strict=True
    )
    return [
        _range(size, None if _bit(begin_mask, axis) else begin, None if _bit(end_mask, axis) else end, stride)
        for axis, (size, begin, end, stride) in enumerate(columns)
    ]


def dropped_axes(call: Call) -> list[int]:
    """Dimensions of which one element is taken."""
    return [axis for axis in range(call["input"].rank) if _bit(call.integer("shrink_axis_mask"), axis)]


def with_entry(call: Call, name: str, place: int, number: int) -> Call:
    """The call with one number of a list exchanged."""
    numbers = list(ints_of(call, name))
    numbers[place] = number
    return call.with_input(name, int32_tensor(numbers))


# --- rules ------------------------------------------------------------------------------------------------------------


def lengths_rule(*names: str) -> ExecutionRule:
    """Each list has one entry for each dimension of the input."""
    return ExecutionRule(
        "LENGTHS",
        f"{', '.join(names[:-1])} and {names[-1]} have one entry for each dimension of input",
        lambda call: all(call[name].shape == (call["input"].rank,) for name in names),
        lambda call: call.with_input(names[-1], int32_tensor((*ints_of(call, names[-1]), 1))),
    )


def _break_shrink(call: Call) -> Call | None:
    """Another dimension, of more than one element, is dropped too; or a dropped one gets a negative stride."""
    mask, dropped = call.integer("shrink_axis_mask"), dropped_axes(call)
    for axis, taken in enumerate(ranges_of(call)):
        if axis not in dropped and taken.size != 1:
            return with_value(call, "shrink_axis_mask", mask | 1 << axis)
    return with_entry(call, "strides", dropped[0], -1) if dropped else None


STRIDES_RULE = ExecutionRule(
    "STRIDES",
    "no stride is 0",
    lambda call: 0 not in ints_of(call, "strides"),
    lambda call: with_entry(call, "strides", 0, 0),
)
SHRINK_RULE = ExecutionRule(
    "SHRINK",
    "where the dimension is dropped the stride is greater than 0 and the range has one element",
    lambda call: all(
        ranges_of(call)[axis].size == 1 and ranges_of(call)[axis].stride > 0 for axis in dropped_axes(call)
    ),
    _break_shrink,
)

# --- draws ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """What the operands say of one dimension."""

    begin: int
    end: int
    stride: int
    begin_masked: bool = False
    end_masked: bool = False
    dropped: bool = False


def draw_ranges(draft: Draft, shape: tuple[int, ...]) -> None:
    """Begin, end, strides and masks that take at least one element of each dimension, written in every legal way."""
    entries = [_draw_entry(draft, size) for size in shape]
    draft.ints("begin", [entry.begin for entry in entries])
    draft.ints("end", [entry.end for entry in entries])
    draft.ints("strides", [entry.stride for entry in entries])
    draft.scalar("begin_mask", sum(entry.begin_masked << axis for axis, entry in enumerate(entries)))
    draft.scalar("end_mask", sum(entry.end_masked << axis for axis, entry in enumerate(entries)))
    draft.scalar("shrink_axis_mask", sum(entry.dropped << axis for axis, entry in enumerate(entries)))


def _draw_entry(draft: Draft, size: int) -> _Entry:
    if draft.chance(15):
        first = draft.integer(0, size - 1)
        stride = draft.choose((1, 1, 1, 2))
        last = draft.integer(first + 1, min(first + stride, size))
        return replace(_written(draft, size, first, last, stride), dropped=True)
    stride = draft.choose((1, 1, 2, 2, 3, -1, -1, -2, -3) if draft.chance(90) else (size + 1, -size - 1))
    starts, ends = (0, size) if stride > 0 else (size - 1, -1)
    # From end to end, or from about one end to about the other, so that more than a little is taken.
    left = 0 if draft.chance(30) else size - 1
    before = draft.integer(0, left // 2)
    behind = draft.integer(0, left - before) if draft.chance(20) else draft.integer(0, left // 2)
    first, last = (before, size - behind) if stride > 0 else (size - 1 - before, behind - 1)
    entry = _written(draft, size, first, last, stride)
    if first == starts and draft.chance(30):
        entry = replace(entry, begin=draft.integer(-size - FAR, size + FAR), begin_masked=True)
    if last == ends and draft.chance(30):
        entry = replace(entry, end=draft.integer(-size - FAR, size + FAR), end_masked=True)
    return entry


def _written(draft: Draft, size: int, first: int, last: int, stride: int) -> _Entry:
    """Begin and end as numbers: counted from either end of the dimension, or beyond it where they are cut to it."""
    low, high = (0, size) if stride > 0 else (-1, size - 1)
    begin, end = (_number(draft, size, place, low, high) for place in (first, last))
    return _Entry(begin, end, stride)


def _number(draft: Draft, size: int, place: int, low: int, high: int) -> int:
    ways = [place] if place >= 0 else []
    if 0 <= place < size:
        ways.append(place - size)
    if place == low:
        ways.append(-size - draft.integer(1, FAR))
    if place == high:
        ways.append(size + draft.integer(0, FAR))
    return draft.choose(ways)
