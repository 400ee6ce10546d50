"""Memory of an execution in any kind of pool and any layout, with canaries around the values all the same."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.guards import CANARY, CANARY_BYTE, UNWRITTEN_BYTE, Area, Guarded, Placed, aligned
from harness.steps import Layout
from nnhal.memory import HardwareBuffer, MappedFile, Memory, SharedMemory
from nnhal.model import BufferToken, DataLocation, Model, Request, RequestArgument, is_tensor
from nnhal.types import Array

Tokens = Mapping[tuple[bool, int], int]  # (is an output, its number) to the token of a driver-managed buffer
PART_OFFSET = mmap.PAGESIZE + 192  # where a pool that is part of a file begins in it
STEP = 4  # bytes of which overlapping inputs share a multiple, so that both have the alignment of their types


def pool_of(kind: str, size: int) -> Memory:
    """A new pool of at least one byte; nothing of it stays behind."""
    size = max(size, 1)
    if kind in ("mmap_fd", "mmap_fd_read_only"):
        return MappedFile(_file(size), size)
    if kind == "mmap_fd_part":
        return MappedFile(_file(PART_OFFSET + size + mmap.PAGESIZE), size, PART_OFFSET)
    if kind in ("hardware_buffer", "opaque"):
        return HardwareBuffer.allocate(size, blob=kind != "opaque")
    if kind != "ashmem":
        raise ValueError(f"there is no kind of pool {kind!r}")
    return SharedMemory.create(size, "nncts-pool")


def _file(size: int) -> int:
    with tempfile.TemporaryFile(prefix="nncts-pool-") as file:
        file.truncate(size)
        return os.dup(file.fileno())


def read_only(pool: Memory) -> Memory:
    """The same pool as one who may not write it gets it."""
    if not isinstance(pool, MappedFile):
        raise ValueError(f"a {pool.kind} pool has no protection")
    descriptor = os.open(f"/proc/self/fd/{pool.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    return MappedFile(descriptor, pool.size, pool.offset, mmap.PROT_READ)


def pool_with(kind: str, content: bytes) -> Memory:
    """A pool that holds these bytes, as a driver gets it."""
    pool = pool_of(kind, len(content))
    pool.view()[: len(content)] = content
    return read_only(pool) if kind == "mmap_fd_read_only" else pool


@dataclass
class _Pools:
    """Values placed one behind the other, in one pool of each kind of argument, in one for all, or each in its own."""

    layout: Layout
    areas: list[Area] = field(default_factory=list)

    def place(
        self, kind: str, sizes: Sequence[int | None], values: Sequence[Array | None], outputs: int = 0
    ) -> list[Placed | None]:
        """Makes the memory for values of these lengths and gives the places, by number.

        Args:
            kind: of the arguments, for messages.
            sizes: bytes of each; None has no place.
            values: what they hold, as far as that is known.
            outputs: how many at the end are outputs, which share no byte with anything.
        """
        layout = self.layout
        numbers = [number for number, size in enumerate(sizes) if size is not None]
        each = layout.separate or layout.kind == "opaque"
        groups = [[number] for number in numbers] if each else [numbers]
        places: list[Placed | None] = [None] * len(sizes)
        last = len(sizes) - outputs  # inputs stand in front of it
        contents = [b"" if n >= min(last, len(values)) else _bytes(values[n]) for n in range(len(sizes))]
        for group in groups if numbers else []:
            self._pool(kind, group, [sizes[n] or 0 for n in group], [contents[n] for n in group], places)
        return places

    def _pool(
        self,
        kind: str,
        group: Sequence[int],
        sizes: Sequence[int],
        contents: Sequence[bytes],
        places: list[Placed | None],
    ) -> None:
        layout, pool = self.layout, len(self.areas)
        whole = layout.kind == "opaque"
        edge = 0 if layout.tight or whole else CANARY
        position, end = edge, 0
        held: list[tuple[int, bytes]] = []  # where something lies, and what
        for number, size, content in zip(group, sizes, contents, strict=True):
            length = max(size, 1)
            shared = _shared_place(content, held) if layout.overlap and content else None
            start = position + layout.shift if shared is None else shared
            places[number] = Placed(pool, start, length, 0 if whole else layout.padding)
            held.append((start, content))
            end = max(end, start + length + layout.padding)
            position = aligned(end) + CANARY
        size = end + edge if layout.tight or whole else position
        memory = pool_of(layout.kind, size)
        mine = tuple(place if number in group else None for number, place in enumerate(places))
        self.areas.append(Area(memory, size, mine, kind))
        np.frombuffer(memory.view(), np.uint8)[:size] = CANARY_BYTE

    def memories(self) -> list[Memory]:
        """The pools as the request names them."""
        protected = self.layout.kind == "mmap_fd_read_only"
        return [read_only(a.memory) if protected and a.kind == "input" else a.memory for a in self.areas]


def _bytes(value: Array | None) -> bytes:
    return b"" if value is None else value.tobytes()


def _shared_place(content: bytes, held: Sequence[tuple[int, bytes]]) -> int | None:
    """Where a value can lie on the bytes of earlier ones: inside one, or on the end of the last and beyond it."""
    for start, other in held:
        found = other.find(content)
        if found >= 0 and found % STEP == 0:
            return start + found
    if not held:
        return None
    start, other = held[-1]
    longest = min(len(other), len(content)) // STEP * STEP
    for common in range(longest, 0, -STEP):
        if other.endswith(content[:common]):
            return start + len(other) - common
    return None


def arrange(
    model: Model, values: Sequence[Array | None], lengths: Sequence[int], layout: Layout, tokens: Tokens
) -> Guarded:
    """Puts inputs into memory of a layout and makes room for outputs.

    Args:
        model: its input and output lists give the order.
        values: stored inputs; None for an omitted one, and for one in a driver-managed buffer.
        lengths: bytes of each output.
        layout: where everything lies.
        tokens: of the driver-managed buffers that arguments are in.
    """
    pools = _Pools(layout)
    sizes = [None if value is None else value.nbytes for value in values]
    room = layout.output_bytes or tuple(lengths)
    wanted = [None if (True, n) in tokens else length for n, length in enumerate(room)]
    if layout.together:
        both = pools.place("argument", [*sizes, *wanted], values, len(wanted))
        inputs, outputs = both[: len(sizes)], both[len(sizes) :]
    else:
        inputs, outputs = pools.place("input", sizes, values), pools.place("output", wanted, ())
    guarded = Guarded(Request((), ()), pools.areas, inputs, outputs, values)
    guarded.refill(values)
    for place in outputs:
        if place is not None:
            guarded.bytes_at(place)[:] = bytes([UNWRITTEN_BYTE]) * place.length
    buffers = tuple(dict.fromkeys(tokens.values()))
    index = {token: len(pools.areas) + number for number, token in enumerate(buffers)}
    opaque = layout.kind == "opaque"
    arguments = [
        _argument(inputs[number], tokens.get((False, number)), index, shape, whole=opaque)
        for number, shape in enumerate(_input_shapes(model, values, layout))
    ]
    results = []
    for number in range(len(model.main.output_indexes)):
        shape = layout.output_dimensions[number] if layout.output_dimensions else ()
        results.append(_argument(outputs[number], tokens.get((True, number)), index, shape, whole=opaque))
    memories: list[Memory | BufferToken] = [*pools.memories(), *(BufferToken(token) for token in buffers)]
    guarded.request = Request(tuple(arguments), tuple(results), tuple(memories))
    return guarded


def _input_shapes(model: Model, values: Sequence[Array | None], layout: Layout) -> list[tuple[int, ...]]:
    """What the request says of each input's dimensions."""
    if layout.input_shapes:
        return list(layout.input_shapes)
    shapes = []
    for value, index in zip(values, model.main.input_indexes, strict=True):
        told = value is not None and layout.input_dimensions and is_tensor(model.main.operands[index].type)
        shapes.append(tuple(value.shape) if told and value is not None else ())
    return shapes


def _argument(
    place: Placed | None, token: int | None, index: Mapping[int, int], shape: tuple[int, ...], *, whole: bool
) -> RequestArgument:
    if token is not None:
        return RequestArgument(DataLocation(index[token], 0, 0), shape)
    if place is None:
        return RequestArgument(has_no_value=True)
    if whole:
        return RequestArgument(DataLocation(place.pool, 0, 0), shape)
    return RequestArgument(DataLocation(place.pool, place.offset, place.length, place.padding), shape)
