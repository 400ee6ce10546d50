"""Memory pools that models and requests refer to: bytes, shared memory, mapped files, hardware buffers.

A pool's bytes are reached through `view()`. Pools that rest on a file descriptor can be sent to another process.
"""

from __future__ import annotations

import errno
import mmap
import os
from abc import ABC, abstractmethod
from typing import ClassVar


class Memory(ABC):
    """A pool of bytes. `kind` is the HAL's name for it."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of bytes."""

    @abstractmethod
    def view(self) -> memoryview:
        """The bytes, in place. Read-only where the pool is.

        Raises:
            ValueError: the pool is closed, or cannot be mapped (an opaque hardware buffer).
            MemoryError: there is no room to map it.
        """

    def close(self) -> None:
        """Lets the pool's resources go. A second call does nothing. Views that still exist stay usable."""


class BytesMemory(Memory):
    """A pool in this process's own memory: for drivers in process and for tests."""

    kind = "bytes"

    def __init__(self, data: bytes | bytearray | int) -> None:
        self._data = bytearray(data)

    @property
    def size(self) -> int:
        return len(self._data)

    def view(self) -> memoryview:
        return memoryview(self._data)


class _Mapped(Memory):
    """What the pools with a file descriptor share. The descriptor is owned: it goes with the pool."""

    def __init__(
        self,
        descriptor: int,
        size: int,
        offset: int = 0,
        protection: int = mmap.PROT_READ | mmap.PROT_WRITE,
    ) -> None:
        if size <= 0:
            os.close(descriptor)
            raise ValueError(f"a {self.kind} pool needs at least one byte, {size} asked for")
        self.descriptor = descriptor
        self.offset = offset
        self.protection = protection
        self._size = size
        self._map: mmap.mmap | None = None

    @property
    def size(self) -> int:
        return self._size

    def view(self) -> memoryview:
        if self._map is None:
            if self.descriptor < 0:
                raise ValueError(f"the {self.kind} pool is closed")
            start = self.offset - self.offset % mmap.ALLOCATIONGRANULARITY
            flags = mmap.MAP_SHARED
            try:
                self._map = mmap.mmap(
                    self.descriptor,
                    self._size + self.offset - start,
                    flags,
                    self.protection,
                    offset=start,
                )
            except OSError as error:
                if error.errno == errno.ENOMEM:
                    raise MemoryError(f"no room to map {self._size} bytes") from None
                raise
        skip = self.offset % mmap.ALLOCATIONGRANULARITY
        return memoryview(self._map)[skip : skip + self._size]

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._map = None  # the mapping lives until its last view is gone

    def __del__(self) -> None:
        if getattr(self, "descriptor", -1) >= 0:
            self.close()


class SharedMemory(_Mapped):
    """Anonymous shared memory (memfd): ashmem's equivalent. Nothing is left behind when all processes die."""

    kind = "ashmem"

    @classmethod
    def create(cls, size: int, name: str = "nncts") -> SharedMemory:
        """New zeroed shared memory of `size` bytes (at least 1)."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, max(size, 1))
        return cls(descriptor, max(size, 1))


class MappedFile(_Mapped):
    """Part of a file: `mmap_fd` in HIDL, `mappableFile` in AIDL."""

    kind = "mmap_fd"

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        offset: int = 0,
        size: int | None = None,
        writable: bool = False,
    ) -> MappedFile:
        """Maps `size` bytes from `offset` of a file (to its end when None)."""
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        length = os.fstat(descriptor).st_size - offset if size is None else size
        return cls(descriptor, length, offset, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))


class HardwareBuffer(_Mapped):
    """The equivalent of an AHardwareBuffer: a BLOB is plain bytes; any other format is opaque and used whole."""

    kind = "hardware_buffer"

    def __init__(self, descriptor: int, size: int, *, blob: bool = True) -> None:
        super().__init__(descriptor, size)
        self.blob = blob

    @classmethod
    def allocate(cls, size: int, *, blob: bool = True) -> HardwareBuffer:
        """New zeroed buffer of `size` bytes."""
        descriptor = os.memfd_create("nncts-hardware-buffer", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, max(size, 1))
        return cls(descriptor, max(size, 1), blob=blob)
