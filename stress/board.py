"""Where each thread of a client is, in memory shared with the supervisor: readable whatever becomes of the client."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

HEAD = struct.Struct("<QQ")  # the last beat in CLOCK_MONOTONIC nanoseconds, and how many there were
SLOT = struct.Struct("<IIQQQI8QH")  # edition, place, since, limit, thread twice, counters, bytes of the text
SLOT_BYTES = 512
TEXT = 380  # bytes of what a thread does, at most
READS = 50  # in search of a slot that nobody writes meanwhile


class Place(IntEnum):
    """What a thread is in."""

    IDLE = 0  # nothing that could take long
    SUITE = 1  # the suite's own work
    DRIVER = 2  # a call of the driver


class Count(IntEnum):
    """What is counted."""

    CASES = 0
    EXECUTIONS = 1
    PREPARATIONS = 2
    UNSUPPORTED = 3
    FAILURES = 4
    DECLINED = 5  # refusals that are legal under the circumstances of the run
    NANOSECONDS = 6  # of executions
    LONGEST = 7  # of them, in nanoseconds


@dataclass(frozen=True)
class Slot:
    """One thread of a client.

    Attributes:
        since: CLOCK_MONOTONIC seconds at which it got where it is.
        limit: seconds that it may be there; 0 for any time.
        text: what it does.
        ident: the thread's, as crash traces name it.
        number: the thread's, as the system counts it.
        counts: by `Count`.
    """

    place: Place = Place.IDLE
    since: float = 0.0
    limit: float = 0.0
    text: str = ""
    ident: int = 0
    number: int = 0
    counts: tuple[int, ...] = (0,) * len(Count)

    def overdue(self, now: float) -> float:
        """Seconds by which it is too late; 0 or less while it is not."""
        return now - self.since - self.limit if self.limit and self.place != Place.IDLE else 0.0


@dataclass
class _Writing:
    """What a thread has written last."""

    edition: int = 0
    place: Place = Place.IDLE
    since: int = 0
    limit: int = 0
    ident: int = 0
    number: int = 0
    text: bytes = b""
    counts: list[int] = field(default_factory=lambda: [0] * len(Count))
    lock: threading.Lock = field(default_factory=threading.Lock)


class Board:
    """The slots of one client's threads.

    Args:
        descriptor: of the shared memory; the board takes it over.
        threads: number of slots.
    """

    def __init__(self, descriptor: int, threads: int) -> None:
        self.descriptor = descriptor
        self.threads = threads
        self._map = mmap.mmap(descriptor, _size(threads))
        self._slots = [_Writing() for _ in range(threads)]
        self._left = False

    @classmethod
    def create(cls, threads: int) -> Board:
        """A board of memory that is gone with the last process that has it."""
        descriptor = os.memfd_create("nncts-board", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _size(threads))
        return cls(descriptor, threads)

    # ---- the client's side

    def beat(self) -> None:
        """Says that the client as a whole still runs."""
        _, number = HEAD.unpack_from(self._map)
        HEAD.pack_into(self._map, 0, time.monotonic_ns(), number + 1)

    def enter(self, thread: int, place: Place, text: str, limit: float = 0.0) -> None:
        """Notes where a thread is from now on; nothing any more when the process is about to end."""
        slot = self._slots[thread]
        with slot.lock:
            if self._left:
                return
            slot.place, slot.text = place, text.encode()[:TEXT]
            slot.since, slot.limit = time.monotonic_ns(), int(limit * 1e9)
            slot.ident, slot.number = threading.get_ident(), threading.get_native_id()
            self._write(thread, slot)

    def leave(self) -> None:
        """Notes that the calling thread ends the process now: it is the one that did something last."""
        ident = threading.get_ident()
        for thread, slot in enumerate(self._slots):
            if slot.ident == ident:
                self.enter(thread, *self.where(thread))
                self._left = True

    def where(self, thread: int) -> tuple[Place, str, float]:
        """Where a thread is, to go back there."""
        slot = self._slots[thread]
        return slot.place, slot.text.decode(errors="replace"), slot.limit / 1e9

    def count(self, thread: int, what: Count, number: int = 1) -> None:
        """Adds to a counter."""
        slot = self._slots[thread]
        with slot.lock:
            if what == Count.LONGEST:
                slot.counts[what] = max(slot.counts[what], number)
            else:
                slot.counts[what] += number
            self._write(thread, slot)

    def _write(self, thread: int, slot: _Writing) -> None:
        start = HEAD.size + thread * SLOT_BYTES
        slot.edition += 1  # odd while it is written
        struct.pack_into("<I", self._map, start, slot.edition & 0xFFFFFFFF)
        self._map[start + SLOT.size : start + SLOT.size + len(slot.text)] = slot.text
        slot.edition += 1
        head = (slot.edition & 0xFFFFFFFF, int(slot.place), slot.since, slot.limit, slot.ident, slot.number)
        SLOT.pack_into(self._map, start, *head, *slot.counts, len(slot.text))

    # ---- the supervisor's side

    def last_beat(self) -> float:
        """CLOCK_MONOTONIC seconds of the last beat; 0 before the first."""
        return int(HEAD.unpack_from(self._map)[0]) / 1e9

    def read(self, thread: int) -> Slot:
        """A thread's slot, as whole as it can be had: a client may have died while it wrote."""
        start = HEAD.size + thread * SLOT_BYTES
        data = b""
        for _ in range(READS):
            data = self._map[start : start + SLOT_BYTES]
            again = self._map[start : start + 4]
            if data[:4] == again and not data[0] & 1:
                break
        _, place, since, limit, ident, number, *counts, length = SLOT.unpack_from(data)
        text = data[SLOT.size : SLOT.size + min(length, TEXT)].decode(errors="replace")
        known = Place(place) if place in list(Place) else Place.IDLE  # a client may write anything here
        return Slot(known, since / 1e9, limit / 1e9, text, ident, number, tuple(counts))

    def slots(self) -> list[Slot]:
        """All slots."""
        return [self.read(thread) for thread in range(self.threads)]

    def close(self) -> None:
        """Lets the memory go. A second call does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            self._map.close()
            with contextlib.suppress(OSError):
                os.close(descriptor)


def latest(slots: Sequence[Slot]) -> Slot:
    """Of those that are in something, who did something last; a thread that is idle brings nothing about."""
    return max(slots, key=lambda slot: (slot.place != Place.IDLE, slot.since), default=Slot())


def _size(threads: int) -> int:
    return HEAD.size + threads * SLOT_BYTES


def total(slots: list[Slot], what: Count) -> int:
    """A counter over all threads."""
    numbers = [slot.counts[what] for slot in slots]
    return max(numbers, default=0) if what == Count.LONGEST else sum(numbers)
