"""What stands beside the JSON of one message or file: raw bytes, file descriptors, and the pools made of them."""

from __future__ import annotations

import os
from typing import TypeAlias

from nnhal.guarded import GuardedMemory
from nnhal.memory import BytesMemory, HardwareBuffer, MappedFile, Memory, SharedMemory

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Parts:
    """What stands beside the JSON of one message: raw bytes and file descriptors.

    Args:
        blobs: the raw bytes, when reading.
        descriptors: descriptors that came along and belong to the message until something takes them.
        inline: write the bytes of every pool instead of its descriptor, as a file needs.
    """

    def __init__(
        self,
        blobs: list[memoryview] | None = None,
        descriptors: list[int] | None = None,
        *,
        inline: bool = False,
    ) -> None:
        self.blobs: list[bytes | memoryview] = list(blobs or ())
        self.descriptors = descriptors if descriptors is not None else []
        self.inline = inline
        self._written: dict[int, Json] = {}
        self._read: dict[tuple[str, int], Memory] = {}
        self._taken: set[int] = set()
        self._kept: list[object] = []

    def add_blob(self, data: bytes | memoryview) -> int:
        """Adds raw bytes and says their number."""
        self.blobs.append(data)
        return len(self.blobs) - 1

    def add_descriptor(self, descriptor: int) -> int:
        """Adds a descriptor, which stays the caller's, and says its number."""
        if self.inline:
            raise ValueError("a file descriptor cannot be written to a file")
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1

    def blob(self, index: Json) -> memoryview:
        """Raw bytes by their number."""
        return memoryview(self.blobs[index_below(index, len(self.blobs))])

    def borrow(self, index: Json) -> int:
        """A descriptor by its number; `close` closes it."""
        return self.descriptors[index_below(index, len(self.descriptors))]

    def take(self, index: Json) -> int:
        """A descriptor by its number, which from now on belongs to the caller."""
        descriptor = self.borrow(index)
        if descriptor in self._taken:
            raise ValueError("a descriptor is used twice")
        self._taken.add(descriptor)
        return descriptor

    def write_memory(self, memory: Memory) -> Json:
        """A pool's JSON. The same object is written once."""
        found = self._written.get(id(memory))
        if found is None:
            found = self._written[id(memory)] = self._memory_json(memory)
            self._kept.append(memory)  # an id is only good while its object lives
        return found

    def _memory_json(self, memory: Memory) -> Json:
        if self.inline or not isinstance(memory, (SharedMemory, MappedFile, HardwareBuffer)):
            return ["bytes", self.add_blob(bytes(memory.view()))]
        if memory.descriptor < 0:
            raise ValueError(f"a closed {memory.kind} pool cannot be sent")
        last: Json = None
        if isinstance(memory, HardwareBuffer):
            last = memory.blob
        elif isinstance(memory, GuardedMemory):
            last = memory.read_only
        kind = "guarded" if isinstance(memory, GuardedMemory) else memory.kind
        number = self.add_descriptor(memory.descriptor)
        return [kind, number, memory.size, memory.offset, memory.protection, last]

    def read_memory(self, data: Json) -> Memory:
        """The pool that `write_memory` wrote."""
        if not isinstance(data, list) or len(data) not in (2, 6) or not isinstance(data[0], str):
            raise ValueError("a pool has the wrong form")
        key = (data[0], index_below(data[1], 1 << 31))
        if key not in self._read:
            self._read[key] = self._make_memory(data)
        return self._read[key]

    def _make_memory(self, data: list[Json]) -> Memory:
        if data[0] == "bytes" and len(data) == 2:
            return BytesMemory(bytes(self.blob(data[1])))
        if len(data) != 6:
            raise ValueError("a pool has the wrong form")
        kind, number, *rest, last = data
        size, offset, protection = (index_below(value, 1 << 48) for value in rest)
        if size == 0:
            raise ValueError("a pool with a descriptor is empty")
        if kind == "ashmem":
            return SharedMemory(self.take(number), size, offset, protection)
        if kind == "mmap_fd":
            return MappedFile(self.take(number), size, offset, protection)
        if kind == "hardware_buffer":
            return HardwareBuffer(self.take(number), size, blob=last is True)
        if kind == "guarded":
            return GuardedMemory(self.take(number), size, read_only=last is True, armed=True)
        raise ValueError(f"unknown kind of pool {kind!r}")

    def close(self) -> None:
        """Closes the descriptors that came along and were not taken."""
        for descriptor in self.descriptors:
            if descriptor not in self._taken:
                os.close(descriptor)
        self.descriptors = []


def index_below(value: Json, count: int) -> int:
    """The value itself, if it is a number from 0 to below the count."""
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"{value!r} is not a number below {count}")
    return value
