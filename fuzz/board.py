"""The input that a fuzzing process is at, in memory shared with who watches it: known whatever becomes of it."""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

# Inputs, begun at (ns, 0 between two), cases, unsupported, findings, changes, bytes of the input.
HEAD = struct.Struct("<QQQQQQI")
ROOM = 1 << 16  # longest input


@dataclass(frozen=True)
class Reading:
    """What the board says.

    Attributes:
        inputs: number of inputs so far.
        since: CLOCK_MONOTONIC seconds since when the present one runs; 0 between two.
        cases: inputs that became something to ask of the driver.
        unsupported: cases that the driver does not do.
        findings: failures that were seen.
        changes: inputs that the suite's own changes made of others (`fuzz.mutating`).
        data: the present or last input.
    """

    inputs: int = 0
    since: float = 0.0
    cases: int = 0
    unsupported: int = 0
    findings: int = 0
    changes: int = 0
    data: bytes = b""


class Board:
    """A file of fixed size that is mapped.

    Args:
        path: made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, HEAD.size + ROOM)
            self._map = mmap.mmap(descriptor, HEAD.size + ROOM)
        finally:
            os.close(descriptor)
        self.inputs = self.cases = self.unsupported = self.findings = self.changes = 0
        self._size = 0

    # ---- the fuzzing process

    def begin(self, data: bytes) -> None:
        """Notes the input that is about to be run."""
        self.inputs += 1
        self._size = min(len(data), ROOM)
        self._map[HEAD.size : HEAD.size + self._size] = data[:ROOM]
        self._write(time.monotonic_ns())

    def end(self) -> None:
        """Notes that the input is done."""
        self._write(0)

    def _write(self, since: int) -> None:
        counts = self.cases, self.unsupported, self.findings, self.changes
        HEAD.pack_into(self._map, 0, self.inputs, since, *counts, self._size)

    # ---- who watches

    def read(self) -> Reading:
        """What stands there now."""
        inputs, since, cases, unsupported, findings, changes, size = HEAD.unpack_from(self._map)
        data = self._map[HEAD.size : HEAD.size + min(size, ROOM)]
        return Reading(inputs, since / 1e9, cases, unsupported, findings, changes, data)

    def close(self) -> None:
        """Lets the memory go."""
        self._map.close()
