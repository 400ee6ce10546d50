"""Memory for one execution, with canaries around every input and output. The parent checks them, not the worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnhal.memory import Memory, SharedMemory
from nnhal.model import DataLocation, Model, Request, RequestArgument, is_tensor
from nnhal.types import Array

ALIGNMENT = 64
CANARY = 64  # bytes in front of and behind each value
CANARY_BYTE = 0xA5
UNWRITTEN_BYTE = 0xCD  # what outputs hold before an execution
INPUTS, OUTPUTS = 0, 1


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Placed:
    """A value's place in a pool: offset and number of bytes."""

    offset: int
    length: int


def _layout(lengths: Sequence[int]) -> tuple[list[Placed], int]:
    """Places for values of these lengths, a canary before, between and behind; and the bytes in all."""
    places = []
    position = CANARY
    for length in lengths:
        places.append(Placed(position, length))
        position = _aligned(position + length) + CANARY
    return places, position


class Arena:
    """Two pools that are reused from case to case, and grow when a case needs more.

    A pool is written whole before each execution, so nothing of an earlier case is left in it.
    """

    def __init__(self) -> None:
        self._pools: dict[int, SharedMemory] = {}

    def pool(self, which: int, size: int) -> SharedMemory:
        """A pool of at least that size."""
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


@dataclass
class Guarded:
    """A request in guarded memory."""

    request: Request
    inputs: list[Placed | None]
    outputs: list[Placed]
    values: Sequence[Array | None]
    used: tuple[int, int]

    def output(self, number: int, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array | None:
        """A copy of an output in a shape, or None when its place is too small for it, or it is no shape."""
        place = self.outputs[number]
        count = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or count > place.length:
            return None
        data = self._view(OUTPUTS)[place.offset : place.offset + count]
        return np.frombuffer(bytes(data), dtype).reshape(shape)

    def findings(self) -> list[tuple[str, str]]:
        """What a driver did to memory that it must not touch: (`OVERRUN` or `INPUT_WRITTEN`, a sentence)."""
        found = []
        for which, kind, places in (
            (INPUTS, "input", self.inputs),
            (OUTPUTS, "output", self.outputs),
        ):
            found += _overruns(self._view(which)[: self.used[which]], places, kind)
        view = self._view(INPUTS)
        for number, (place, value) in enumerate(zip(self.inputs, self.values, strict=True)):
            if place is None or value is None:
                continue
            now = np.frombuffer(view[place.offset : place.offset + place.length], np.uint8)
            changed = np.flatnonzero(now != np.frombuffer(value.tobytes(), np.uint8))
            if len(changed):
                text = f"input {number}: {len(changed)} of {place.length} bytes changed, the first at {changed[0]}"
                found.append(("INPUT_WRITTEN", text))
        return found

    def _view(self, which: int) -> memoryview:
        pool = self.request.pools[which]
        assert isinstance(pool, Memory)
        return pool.view()


def _overruns(view: memoryview, places: Sequence[Placed | None], kind: str) -> list[tuple[str, str]]:
    data = np.frombuffer(view, np.uint8)
    free = np.ones(len(data), bool)
    known = [(number, place) for number, place in enumerate(places) if place is not None]
    for _, place in known:
        free[place.offset : place.offset + place.length] = False
    hit = np.flatnonzero(free & (data != CANARY_BYTE))
    if not len(hit):
        return []
    first = int(hit[0])
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


def guard(arena: Arena, model: Model, values: Sequence[Array | None], lengths: Sequence[int]) -> Guarded:
    """Puts inputs into guarded memory and makes room for outputs of these lengths in bytes.

    Args:
        arena: where the memory comes from.
        model: its input and output lists give the order.
        values: stored inputs; None for an omitted one.
        lengths: bytes of each output; 0 becomes 1, as a pool location needs at least one.
    """
    main = model.main
    places, used = _layout([0 if value is None else value.nbytes for value in values])
    pool = arena.pool(INPUTS, used)
    view = np.frombuffer(pool.view(), np.uint8)
    view[:used] = CANARY_BYTE
    arguments = []
    kept: list[Placed | None] = []
    for place, value, index in zip(places, values, main.input_indexes, strict=True):
        if value is None:
            arguments.append(RequestArgument(has_no_value=True))
            kept.append(None)
            continue
        view[place.offset : place.offset + place.length] = np.frombuffer(value.tobytes(), np.uint8)
        shape = tuple(value.shape) if is_tensor(main.operands[index].type) else ()
        arguments.append(RequestArgument(DataLocation(INPUTS, place.offset, place.length), shape))
        kept.append(place)
    rooms, wanted = _layout([max(length, 1) for length in lengths])
    out = arena.pool(OUTPUTS, wanted)
    view = np.frombuffer(out.view(), np.uint8)
    view[:wanted] = CANARY_BYTE
    results = []
    for place in rooms:
        view[place.offset : place.offset + place.length] = UNWRITTEN_BYTE
        results.append(RequestArgument(DataLocation(OUTPUTS, place.offset, place.length)))
    request = Request(tuple(arguments), tuple(results), (pool, out))
    return Guarded(request, kept, rooms, values, (used, wanted))
