"""Shared memory that a driver's process maps between pages that must not be touched: finds the first byte outside."""

from __future__ import annotations

import ctypes
import mmap
import weakref

from nnhal.memory import SharedMemory

_PROT_NONE = 0
_MAP_FIXED = 0x10
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _mapped_between_pages(descriptor: int, size: int, *, read_only: bool) -> memoryview:
    """The shared memory with one inaccessible page on each side; unmapped with the last view of it."""
    page = mmap.PAGESIZE
    inner = -(-size // page) * page
    length = inner + 2 * page
    start = _map(None, length, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    access = mmap.PROT_READ | (0 if read_only else mmap.PROT_WRITE)
    try:
        _map(start + page, inner, access, mmap.MAP_SHARED | _MAP_FIXED, descriptor)
    except OSError:
        _libc.munmap(start, length)
        raise
    array = (ctypes.c_ubyte * size).from_address(start + page)
    weakref.finalize(array, _libc.munmap, start, length)
    view = memoryview(array).cast("B")
    return view.toreadonly() if read_only else view


def _map(start: int | None, length: int, access: int, flags: int, descriptor: int) -> int:
    address = _libc.mmap(start, length, access, flags, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap failed")
    return int(address)


class GuardedMemory(SharedMemory):
    """Shared memory whose mapping in the driver's process lies between inaccessible pages.

    The first byte is at the start of a page; a size that is a multiple of the page also ends at the end of one.

    Args:
        read_only: the driver's mapping cannot be written.
        armed: this is the driver's side.
    """

    def __init__(self, descriptor: int, size: int, *, read_only: bool = False, armed: bool = False) -> None:
        super().__init__(descriptor, size)
        self.read_only = read_only
        self.armed = armed
        self._mapping: memoryview | None = None

    def view(self) -> memoryview:
        if not self.armed:
            return super().view()
        if self._mapping is None:
            if self.descriptor < 0:
                raise ValueError("the guarded pool is closed")
            self._mapping = _mapped_between_pages(self.descriptor, self.size, read_only=self.read_only)
        return self._mapping

    def close(self) -> None:
        super().close()
        self._mapping = None

    @classmethod
    def allocate(cls, size: int, *, read_only: bool = False) -> GuardedMemory:
        """New zeroed memory of `size` bytes (at least 1)."""
        plain = SharedMemory.create(size, "nncts-guarded")
        descriptor, plain.descriptor = plain.descriptor, -1
        return cls(descriptor, plain.size, read_only=read_only)
