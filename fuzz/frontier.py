"""Which inputs come where few do: in a native driver with coverage, changes to those lead deepest.

Two kinds of places count: those that were reached last of all, and those that the fewest inputs reach. The former lead
on where something new was found a moment ago, the latter also where that was long ago, and much else since.

The compiler's counters lie in a section of the driver's library; the fuzzer clears them before each input.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nnhal.types import Array

SECTION = b"__sancov_cntrs"
FOCUS = 0.7  # share of changes that are made to inputs of the frontier
RARE = 24  # edges that the fewest inputs meet
RARELY = 0.5  # share of those changes that are made to inputs which meet one of them; the rest go to the newest
RANKED = 64  # inputs between two looks at which are rare
NEWER = 0.3  # chance that of two edges one behind the other the newer one is taken
NEWEST = 12  # edges
KEPT = 8  # inputs of an edge
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # of a 64-bit ELF file
ENTRY = struct.Struct("<IIQQQQIIQQ")  # of its table of sections


class Frontier:
    """Knows when the edges of the libraries in this process were met first, how often since, and inputs that meet them.

    Args:
        record: file with the edges in the order in which any process of the target met them, to whose name their number
            is added, since another build has others; None for none.
        counters: of the libraries; None for those of the libraries in this process.
    """

    def __init__(self, record: Path | None, counters: Sequence[Array] | None = None) -> None:
        if counters is None:
            counters = [_at(*place) for place in _places()] if record is not None else []
        self._counters = list(counters)
        size = sum(map(len, self._counters))
        self._inputs: dict[int, list[bytes]] = {}
        self._record = None if record is None else record.with_name(f"{record.name}-{size}")
        self._order = [edge for edge in _recorded(self._record) if edge < size] if self._record is not None else []
        self._known = np.zeros(size, bool)
        self._known[self._order] = True
        self._hits = np.zeros(size, np.int64)
        self._rare: list[int] = []
        self._inputs_run = 0
        self._rng = random.Random(size)

    def note(self, data: bytes) -> None:
        """Takes in where an input came that has just been run."""
        if not self._counters:
            return
        counters = self._counters[0] if len(self._counters) == 1 else np.concatenate(self._counters)
        met = counters != 0
        for edge in np.flatnonzero(met & ~self._known).tolist():
            self._add(edge)
        sought = met & (self._hits < KEPT)
        sought[self._order[-NEWEST:] + self._rare] = True
        for edge in np.flatnonzero(sought & met).tolist():
            kept = self._inputs.setdefault(edge, [])
            kept.append(data)
            if len(kept) > KEPT:
                del kept[self._rng.randrange(KEPT)]
        self._hits += met
        self._inputs_run += 1
        if self._inputs_run % RANKED == 0:
            self._rank()

    def _rank(self) -> None:
        """Sees which edges are rare now; of as rare ones the newer."""
        place = {edge: number for number, edge in enumerate(self._order)}
        there = [edge for edge in np.flatnonzero(self._hits).tolist() if edge in place]
        there.sort(key=lambda edge: (self._hits[edge], -place[edge]))
        self._rare = there[:RARE]

    def _add(self, edge: int) -> None:
        self._known[edge] = True
        self._order.append(edge)
        if self._record is not None:
            with contextlib.suppress(OSError), self._record.open("a", encoding="ascii") as file:
                file.write(f"{edge}\n")

    def pick(self, rng: random.Random) -> bytes | None:
        """An input to change; None where the fuzzer's own choice has its turn."""
        if rng.random() >= FOCUS:
            return None
        edge = self._chosen(rng)
        kept = self._inputs.get(edge) if edge is not None else None
        return rng.choice(kept) if kept else None

    def _chosen(self, rng: random.Random) -> int | None:
        if self._rare and rng.random() < RARELY:
            return rng.choice(self._rare)
        back = 1
        while back < NEWEST and rng.random() >= NEWER:
            back += 1
        return self._order[-back] if back <= len(self._order) else None


def _recorded(record: Path) -> list[int]:
    """Edges that a file tells, each once."""
    try:
        words = record.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
    return list(dict.fromkeys(int(word) for word in words if word.isdecimal()))


def _at(address: int, size: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _places() -> Iterator[tuple[int, int]]:
    """Address and size of the counters in each library that has some."""
    seen = set()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or fields[2] != "00000000" or fields[5] in seen:
            continue
        seen.add(fields[5])
        found = _section(Path(fields[5]))
        if found is not None:
            yield int(fields[0].partition("-")[0], 16) + found[0], found[1]


def _section(path: Path) -> tuple[int, int] | None:
    """Address, from where the file is mapped, and size of the counters in a library; None where there are none."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER.size)
            if len(header) < HEADER.size or header[:5] != b"\x7fELF\x02":
                return None
            _, _, _, _, _, _, start, _, _, _, _, size, count, names = HEADER.unpack(header)
            file.seek(start)
            table = [ENTRY.unpack(file.read(ENTRY.size)) for _ in range(count)] if size == ENTRY.size else []
            if names >= len(table):
                return None
            file.seek(table[names][4])
            words = file.read(table[names][5])
    except (OSError, struct.error):
        return None
    for row in table:
        if words[row[0] :].split(b"\0", 1)[0] == SECTION:
            return row[3], row[5]
    return None
