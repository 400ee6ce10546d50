"""Memory for one execution, guarded around every input and output.

In a normal run canaries stand around each value, and the parent checks them and the inputs, not the worker. With pages
each value has a pool of its own that ends at an inaccessible page, and inputs cannot be written: the driver dies at the
first byte outside, reads included.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnhal.guarded import GuardedMemory
from nnhal.memory import Memory, SharedMemory
from nnhal.model import DataLocation, Model, Request, RequestArgument, is_tensor
from nnhal.types import Array

ALIGNMENT = 64
CANARY = 64  # bytes in front of and behind each value
CANARY_BYTE = 0xA5
UNWRITTEN_BYTE = 0xCD  # what outputs hold before an execution
INPUTS, OUTPUTS = 0, 1


def aligned(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Placed:
    """A value's place: which pool of the request, offset, number of bytes, and how many behind it may be touched."""

    pool: int
    offset: int
    length: int
    padding: int = 0


@dataclass(frozen=True)
class Area:
    """A pool, how much of it is used from its start on, and the places in it."""

    memory: Memory
    used: int
    places: tuple[Placed | None, ...]
    kind: str  # `input` or `output`
    first: int = 0  # number of the first place among the inputs or outputs
    canary: int = CANARY_BYTE


class Arena:
    """Where the memory of executions comes from.

    Two pools are reused from case to case, and grow when a case needs more. A pool is written whole before each
    execution, so nothing of an earlier case is left in it.

    Args:
        pages: each value gets a pool of its own between inaccessible pages instead.
    """

    def __init__(self, *, pages: bool = False) -> None:
        self.pages = pages
        self._pools: dict[int, SharedMemory] = {}

    def areas(self, which: int, first_pool: int, lengths: Sequence[int | None]) -> list[Area]:
        """Memory for values of these lengths; None has no place."""
        kind = "input" if which == INPUTS else "output"
        if self.pages:
            made: list[Area] = []
            for number, length in enumerate(lengths):
                if length is not None:
                    made.append(_paged(kind, number, first_pool + len(made), length))
            return made
        places: list[Placed | None] = []
        position = CANARY
        for length in lengths:
            places.append(None if length is None else Placed(first_pool, position, length))
            position = aligned(position + (length or 0)) + CANARY
        return [Area(self._pool(which, position), position, tuple(places), kind)]

    def _pool(self, which: int, size: int) -> SharedMemory:
        """The pool of the inputs or outputs, of at least that size."""
        pool = self._pools.get(which)
        if pool is None or pool.size < size:
            if pool is not None:
                pool.close()
            pool = SharedMemory.create(max(1 << 16, 1 << (size - 1).bit_length()), "nncts-pool")
            self._pools[which] = pool
        return pool

    def close(self) -> None:
        """Lets the pools go."""
        for pool in self._pools.values():
            pool.close()
        self._pools = {}


def _paged(kind: str, number: int, pool: int, length: int) -> Area:
    """A value at the end of a pool that ends where a page does; the last bytes up to the alignment are canary."""
    size = -(-max(length, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = GuardedMemory.allocate(size, read_only=kind == "input")
    return Area(memory, size, (Placed(pool, size - aligned(max(length, 1)), length),), kind, number)


@dataclass
class Guarded:
    """A request in guarded memory.

    Attributes:
        inputs: where each input is; None for an omitted one.
        outputs: where each output is; None for one in a driver-managed buffer.
        values: what the inputs hold.
    """

    request: Request
    areas: list[Area]
    inputs: list[Placed | None]
    outputs: list[Placed | None]
    values: Sequence[Array | None]

    def output(self, number: int, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array | None:
        """A copy of an output in a shape, or None when its place is too small for it, or it is no shape."""
        place = self.outputs[number]
        if place is None:
            return None
        count = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or count > place.length:
            return None
        return np.frombuffer(bytes(self.bytes_at(place)[:count]), dtype).reshape(shape)

    def findings(self) -> list[tuple[str, str]]:
        """What a driver did to memory that it must not touch: (`OVERRUN` or `INPUT_WRITTEN`, a sentence)."""
        found = []
        for area in self.areas:
            found += _overruns(area)
        for number, (place, value) in enumerate(zip(self.inputs, self.values, strict=True)):
            if place is None or value is None:
                continue
            now = np.frombuffer(self.bytes_at(place), np.uint8)
            changed = np.flatnonzero(now != np.frombuffer(value.tobytes(), np.uint8))
            if len(changed):
                text = f"input {number}: {len(changed)} of {place.length} bytes changed, the first at {changed[0]}"
                found.append(("INPUT_WRITTEN", text))
        return found

    def refill(self, values: Sequence[Array | None]) -> None:
        """Puts other values into the inputs' places."""
        self.values = values
        for place, value in zip(self.inputs, values, strict=True):
            if place is not None and value is not None:
                self.bytes_at(place)[:] = value.tobytes()

    def bytes_at(self, place: Placed) -> memoryview:
        """The bytes of a place, which can be written."""
        return self.areas[place.pool].memory.view()[place.offset : place.offset + place.length]


def _overruns(area: Area) -> list[tuple[str, str]]:
    data = np.frombuffer(area.memory.view()[: area.used], np.uint8)
    free = np.ones(len(data), bool)
    known = [(area.first + number, place) for number, place in enumerate(area.places) if place is not None]
    for _, place in known:
        free[place.offset : place.offset + place.length + place.padding] = False
    hit = np.flatnonzero(free & (data != area.canary))
    if not len(hit):
        return []
    first, kind = int(hit[0]), area.kind
    if not known:
        return [("OVERRUN", f"{len(hit)} bytes written where there is no {kind}, the first at {first}")]
    number, place = min(known, key=lambda pair: _distance(pair[1], first))
    where = (
        f"{place.offset - first} bytes before {kind} {number}"
        if first < place.offset
        else f"{first - place.offset - place.length} bytes behind the end of {kind} {number}"
    )
    return [("OVERRUN", f"{len(hit)} bytes written outside, the first {where}")]


def _distance(place: Placed, position: int) -> int:
    return place.offset - position if position < place.offset else position - place.offset - place.length


def guard(
    arena: Arena, model: Model, values: Sequence[Array | None], lengths: Sequence[int], fill: int | None = None
) -> Guarded:
    """Puts inputs into guarded memory and makes room for outputs of these lengths in bytes.

    Args:
        arena: where the memory comes from.
        model: its input and output lists give the order.
        values: stored inputs; None for an omitted one.
        lengths: bytes of each output; 0 becomes 1, as a pool location needs at least one.
        fill: what outputs and all around values hold; None for the usual bytes.
    """
    sizes = [None if value is None else value.nbytes for value in values]
    areas = arena.areas(INPUTS, 0, sizes)
    areas += arena.areas(OUTPUTS, len(areas), [max(length, 1) for length in lengths])
    if fill is not None:
        areas = [replace(area, canary=fill) for area in areas]
    for area in areas:
        np.frombuffer(area.memory.view(), np.uint8)[: area.used] = area.canary
    inputs = _places(areas, "input", sizes)
    outputs = _places(areas, "output", list(lengths))
    arguments = []
    for place, value, index in zip(inputs, values, model.main.input_indexes, strict=True):
        if place is None or value is None:
            arguments.append(RequestArgument(has_no_value=True))
            continue
        _fill(areas, place, np.frombuffer(value.tobytes(), np.uint8))
        shape = tuple(value.shape) if is_tensor(model.main.operands[index].type) else ()
        arguments.append(RequestArgument(DataLocation(place.pool, place.offset, place.length), shape))
    results = []
    for place in outputs:
        assert place is not None  # each output has been given a length
        _fill(areas, place, np.uint8(UNWRITTEN_BYTE if fill is None else fill))
        results.append(RequestArgument(DataLocation(place.pool, place.offset, place.length)))
    request = Request(tuple(arguments), tuple(results), tuple(area.memory for area in areas))
    return Guarded(request, areas, inputs, outputs, values)


def _places(areas: Sequence[Area], kind: str, lengths: Sequence[int | None]) -> list[Placed | None]:
    """The place of each input or output, in order; None where there is none."""
    places: list[Placed | None] = [None] * len(lengths)
    for area in areas:
        if area.kind == kind:
            for number, place in enumerate(area.places):
                places[area.first + number] = place
    return places


def _fill(areas: Sequence[Area], place: Placed, content: Array | np.uint8) -> None:
    view = np.frombuffer(areas[place.pool].memory.view(), np.uint8)
    view[place.offset : place.offset + place.length] = content
