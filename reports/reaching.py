"""What a campaign of random graphs came to as it went on: operations and distinct failures. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.record import Record
from nnhal.types import OperationType
from reports import charts
from reports.tables import DRIVER_FAULTS, JUDGED, NOT_SUPPORTED

POINTS = 200  # of a line
OPERATIONS = frozenset(operation.name for operation in OperationType)
_BEFORE = "operations: "  # in the detail of a graph's record; behind it its operations, each with how often
_NAME = re.compile(r"([A-Z][A-Z0-9_]*)(?: x\d+)?")


def names_of(record: Record) -> set[str]:
    """The operations of a record's graph, as its detail names them; what is none may be among them."""
    _, found, words = str(record.detail).partition(_BEFORE)
    return {match[1] for match in _NAME.finditer(words)} if found else set()


def operations(records: Iterable[Record]) -> tuple[dict[str, Counter[str]], int]:
    """How often graphs came to each operation.

    Returns:
        For each operation the number of `graphs` that hold it, and of those among them that were `judged`, `failed`
        or `unsupported`, those in most graphs first; and how many names are of no operation.
    """
    found: dict[str, Counter[str]] = {}
    strange: set[str] = set()
    for record in records:
        names = names_of(record)
        strange |= names - OPERATIONS
        for name in names & OPERATIONS:
            tally = found.setdefault(name, Counter())
            tally["graphs"] += 1
            tally["judged"] += record.verdict in JUDGED
            tally["failed"] += record.verdict in DRIVER_FAULTS
            tally["unsupported"] += record.verdict == NOT_SUPPORTED
    return dict(sorted(found.items(), key=lambda item: (-item[1]["graphs"], item[0]))), len(strange)


@dataclass(frozen=True)
class Discovery:
    """What was come to by then, at some moments of a campaign.

    Attributes:
        graphs: that had a record by then.
        operations: that one of them held.
        failures: distinct ones that one of them showed.
    """

    graphs: Sequence[int]
    operations: Sequence[int]
    failures: Sequence[int]

    def at(self, places: Iterable[int]) -> Discovery:
        """The same at some of its moments."""
        kept = list(places)
        columns = (self.graphs, self.operations, self.failures)
        return Discovery(*([column[place] for place in kept] for column in columns))

    @property
    def quarters(self) -> Discovery:
        """The same after each quarter of the graphs."""
        return self.at(charts.quarters(len(self.graphs))[1:])

    @property
    def chart(self) -> dict[str, object] | None:
        """Data of its chart; None with fewer than two graphs, or where nothing was come to."""
        ends = self.at(part[-1] for part in charts.parts_of(len(self.graphs), POINTS))
        panels = [(name, {name: [*map(float, column)]}) for name, column in (
            ("distinct failures", ends.failures), ("operations reached", ends.operations)) if any(column)]  # fmt: skip
        return charts.timeline([*map(float, ends.graphs)], "graphs", panels, stepped=True)


def discovery(records: Sequence[Record], failures: Iterable[Iterable[tuple[str, int]]]) -> Discovery:
    """What was come to after each graph.

    Args:
        records: of the graphs, in the order in which they were done.
        failures: of each distinct failure the graphs that show it, by mix and seed.
    """
    places = {
        (str(record.signature), record.number): place
        for place, record in enumerate(records)
        if type(record.number) is int
    }
    firsts = (min((places[graph] for graph in graphs if graph in places), default=None) for graphs in failures)
    new = Counter(place for place in firsts if place is not None)
    known: set[str] = set()
    so_far = 0
    reached, failing = [], []
    for place, record in enumerate(records):
        known |= names_of(record) & OPERATIONS
        so_far += new[place]
        reached.append(len(known))
        failing.append(so_far)
    return Discovery(range(1, len(records) + 1), reached, failing)
