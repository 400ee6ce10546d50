"""Memory pools as the C interface takes them: mapped by the library from descriptors, or pointed at in place."""

from __future__ import annotations

import mmap
import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np

from drivers._nnapi_library import Library
from nnhal.errors import DriverError, invalid
from nnhal.guarded import GuardedMemory
from nnhal.memory import HardwareBuffer, Memory
from nnhal.types import ErrorStatus


def address_of(view: memoryview) -> int:
    """Where bytes lie; the view must be kept while the address is used."""
    return int(np.frombuffer(view, np.uint8).ctypes.data) if len(view) else 0


def by_pointer(pool: Memory) -> bool:
    """Whether a pool's bytes are pointed at: there is nothing to map, or guards around its mapping would be lost."""
    return isinstance(pool, GuardedMemory) or getattr(pool, "descriptor", -1) < 0


def memory_from(library: Library, pool: Memory) -> int:
    """A memory object of the library that maps a pool; to be freed with Memory_free.

    Raises:
        DriverError: the library cannot.
    """
    if isinstance(pool, HardwareBuffer) and not pool.blob:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "an opaque hardware buffer needs Android's own")
    descriptor = getattr(pool, "descriptor", -1)
    if descriptor < 0:
        raise invalid(f"a {pool.kind} pool has no descriptor")
    protection = getattr(pool, "protection", mmap.PROT_READ | mmap.PROT_WRITE)
    if isinstance(pool, GuardedMemory) and pool.read_only:
        protection = mmap.PROT_READ
    return library.make("Memory_createFromFd", pool.size, protection, descriptor, getattr(pool, "offset", 0))


class BufferMemories:
    """Memory objects of driver-managed buffers by token. One that is let go stays until no execution uses it."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._addresses: dict[int, int] = {}
        self._uses: Counter[int] = Counter()
        self._parting: dict[int, int] = {}

    def add(self, token: int, address: int) -> None:
        """Takes a new one over."""
        with self._lock:
            self._addresses[token] = address

    def take(self, token: int) -> int:
        """The address of one, which is in use from now on.

        Raises:
            DriverError: INVALID_ARGUMENT when there is none.
        """
        with self._lock:
            address = self._addresses.get(token)
            if address is None:
                raise invalid(f"no buffer has the token {token}")
            self._uses[token] += 1
            return address

    def give_back(self, token: int) -> None:
        """The end of a use."""
        with self._lock:
            self._uses[token] -= 1
            address = 0 if self._uses[token] else self._parting.pop(token, 0)
        self._library.free("Memory_free", address)

    def forget(self, token: int) -> None:
        """The token names none from now on; nothing happens where it did not before."""
        with self._lock:
            address = self._addresses.pop(token, 0)
            if self._uses[token]:
                self._parting[token], address = address, 0
        self._library.free("Memory_free", address)


class Pools:
    """The memory objects of a model's or request's pools, made when they are first needed, freed with `close`."""

    def __init__(self, library: Library, pools: Sequence[object]) -> None:
        self._library = library
        self._pools = pools
        self._made: dict[int, int] = {}

    def memory(self, number: int) -> int:
        """The address of a pool's memory object.

        Raises:
            DriverError: see `memory_from`.
        """
        if number not in self._made:
            pool = self._pools[number]
            if not isinstance(pool, Memory):
                raise invalid("a driver-managed buffer is no memory of a model")
            self._made[number] = memory_from(self._library, pool)
        return self._made[number]

    def close(self) -> None:
        """Frees them. A second call does nothing."""
        while self._made:
            self._library.free("Memory_free", self._made.popitem()[1])
