"""What cases tell beside their counts: rules that held, reasons, what was seen, times, resources. Pure."""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.record import Record
from reports.tables import DRIVER_FAULTS, Tally, first_line, real, shape


@dataclass
class RuleRow:
    """What came of the cases that break one rule.

    Attributes:
        causes: why the driver failed cases.
    """

    operation: str
    rule: str
    tally: Tally = field(default_factory=Tally)
    causes: Counter[str] = field(default_factory=Counter)

    @property
    def state(self) -> str:
        """`held`, `failed`, or `unjudged`."""
        return "failed" if self.tally.failed else "held" if self.tally.judged else "unjudged"


@dataclass(frozen=True)
class OperationRules:
    """The rules of an operation, by what came of them."""

    operation: str
    held: tuple[RuleRow, ...]
    failed: tuple[RuleRow, ...]
    unjudged: tuple[RuleRow, ...]


def by_operation(rows: Iterable[RuleRow]) -> list[OperationRules]:
    """Rules put together by operation, in the order of names."""
    found: dict[str, dict[str, list[RuleRow]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(rows, key=lambda row: (row.operation, row.rule)):
        found[row.operation][row.state].append(row)
    return [
        OperationRules(name, *(tuple(states[state]) for state in ("held", "failed", "unjudged")))
        for name, states in found.items()
    ]


def rules(records: Iterable[Record]) -> list[RuleRow]:
    """What came of the negative cases, rule by rule; mutations of whole models are counted over all operations."""
    rows: dict[tuple[str, str], RuleRow] = {}
    for record in records:
        if record.rule:
            key = ("every operation" if record.kind.startswith("mutated") else record.operation, record.rule)
            row = rows.setdefault(key, RuleRow(*key))
            row.tally.add(record)
            if record.verdict in DRIVER_FAULTS:
                row.causes[record.cause or record.verdict] += 1
    return [rows[key] for key in sorted(rows, key=lambda key: (-rows[key].tally.failed, key))]


@dataclass(frozen=True)
class Reason:
    """Why cases were not judged: one text of several that differ in numbers only.

    Attributes:
        alike: shape of the messages.
        count: number of cases that gave it.
        variants: number of its wordings.
        operations: number of cases by operation, the most first.
    """

    text: str
    alike: str
    count: int
    variants: int
    operations: dict[str, int]


def reasons(records: Iterable[Record], verdict: str) -> list[Reason]:
    """The reasons for a verdict that does not judge, the commonest first."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.verdict == verdict:
            alike = shape(record.message)
            found[alike, "" if alike else record.cause].append(record)
    rows = []
    for (alike, cause), members in found.items():
        wordings = Counter(first_line(record.message, 300) for record in members)
        text = wordings.most_common(1)[0][0] or cause or "no reason given"
        operations = dict(Counter(record.operation for record in members).most_common())
        rows.append(Reason(text, alike, len(members), len(wordings), operations))
    return sorted(rows, key=lambda row: (-row.count, row.text))


@dataclass(frozen=True)
class Observation:
    """What cases noted beside their verdict: one text of several that differ in numbers only."""

    text: str
    count: int
    operations: tuple[str, ...]
    example: str


def observations(records: Iterable[Record]) -> list[Observation]:
    """What the suite saw and does not judge, the commonest first."""
    found: dict[str, list[tuple[str, Record]]] = defaultdict(list)
    for record in records:
        for note in record.notes:
            found[shape(note)].append((first_line(note, 300), record))
    rows = []
    for members in found.values():
        names = tuple(sorted({record.operation for _, record in members}))
        rows.append(Observation(members[0][0], len(members), names, members[0][1].id))
    return sorted(rows, key=lambda row: (-row.count, row.text))


def first_runs(records: Iterable[Record]) -> tuple[float, float, int] | None:
    """How many times as long as later ones first executions took: median and largest, over so many cases."""
    found = []
    for record in records:
        first, later = (real(record.numbers.get(name)) for name in ("first_run_seconds", "later_run_seconds"))
        if first is not None and later:
            found.append(first / later)
    return (statistics.median(found), max(found), len(found)) if found else None


def slowest(records: Iterable[Record], number: int) -> list[Record]:
    """The cases that took longest."""
    return heapq.nlargest(number, records, key=lambda record: (real(record.seconds) or 0.0, record.id))


def resources(records: Sequence[Record]) -> dict[str, float]:
    """The largest value of each resource that the driver's process was seen to use."""
    found: dict[str, float] = {}
    for record in records:
        for name, value in record.sample.items():
            number = real(value)
            if number is not None and math.isfinite(number):
                found[name] = max(found.get(name, number), number)
    return found
