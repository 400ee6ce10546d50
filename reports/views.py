"""What a page shows of runs: one line for each run, and what the runs of one driver come to together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlencode

from harness.record import Record, Run
from reports import accuracy, remarks, tables, text
from reports import groups as grouping
from reports import headline as heading
from reports import waived as waiving
from reports.parts import SUITES, suite_of
from reports.tables import real

# What a page holds at most, so that 50,000 failures still make a page that opens. Records hold everything.
NAMED, MOST = 11, 2000  # cases named of a group; characters shown of a text
FAILURE_BUDGET, OTHER_BUDGET = 600_000, 150_000  # characters of the examples of all groups
GROUPS_SHOWN, ROWS_SHOWN, REASONS_SHOWN = 400, 3000, 250
SLOWEST, OBSERVATIONS, MISSING = 15, 40, 60
TABLED = ("conformance", "graphs")  # suites whose cases are of an operation and a type
SUITE_WORDS = {
    "conformance": "conformance",
    "mlts": "benchmark of real models",
    "stress": "stress",
    "fuzz": "fuzzing",
    "graphs": "random graphs",
}


@dataclass(frozen=True)
class Line:
    """A run as the summary shows it.

    Attributes:
        place: of the run on the page, beginning with 1.
        name: of the driver.
    """

    run: Run
    place: int
    name: str
    headline: heading.Headline
    totals: heading.Totals

    @property
    def suite(self) -> str:
        """The suite whose run it is."""
        return suite_of(self.run)

    @property
    def suite_words(self) -> str:
        """The suite in words."""
        return SUITE_WORDS[self.suite]

    @property
    def version(self) -> str:
        """The driver's version, or nothing."""
        return text.clip(self.run.plan.get("driver_version") or "", 120)

    @property
    def extent(self) -> str:
        """Profile or preset."""
        plan = self.run.plan
        return text.clip(plan.get("profile") or plan.get("preset") or "", 40)

    @property
    def time(self) -> str:
        """When the run began, as ISO 8601 writes it, or nothing."""
        return text.clip(self.run.plan.get("time") or "", 40)

    @property
    def seconds(self) -> float | None:
        """How long the run took, as far as it was recorded."""
        return real(self.run.end.get("seconds", self.run.plan.get("seconds")))

    @property
    def options(self) -> list[str]:
        """The command line's arguments."""
        return heading.options(self.run)

    @property
    def missing(self) -> list[tuple[str, str, int]]:
        """Operations and signatures with cases that were selected and have no record, the most first."""
        return [(*key, count) for key, count in tables.missing(self.run).most_common()]


def lines(runs: Sequence[Run], names: Sequence[str]) -> list[Line]:
    """A line for each run; `names` are those of their drivers."""
    found = []
    for place, (run, name) in enumerate(zip(runs, names, strict=True), 1):
        known = heading.totals(run)
        found.append(Line(run, place, name, heading.headline(run, known), known))
    return found


@dataclass(frozen=True)
class Groups:
    """Groups of failing cases.

    Attributes:
        total: number of cases.
        groups: those that a page shows.
        more: those that it has no room for.
    """

    total: int
    groups: Sequence[grouping.Group]
    more: Sequence[grouping.Group]


class View:
    """The runs of one driver put together.

    Attributes:
        name, version: of the driver.
        prefix: of ids on the page, empty for the first driver.
        lines: its runs.
    """

    def __init__(self, name: str, version: str, prefix: str, lines: Sequence[Line], alone: bool) -> None:
        """`alone`: no other driver has a run on the page."""
        self.name, self.version, self.prefix, self.lines = name, version, prefix, lines
        self._alone = alone
        self._tabled = [line for line in lines if line.suite in TABLED]

    @cached_property
    def records(self) -> list[Record]:
        """Of all runs."""
        return [record for line in self.lines for record in line.run.records.values()]

    @cached_property
    def tabled(self) -> list[Record]:
        """Of runs whose cases are of an operation and a type."""
        return [record for line in self._tabled for record in line.run.records.values()]

    @cached_property
    def tally(self) -> tables.Tally:
        """All verdicts."""
        found = tables.Tally()
        for line in self.lines:
            found.merge(line.totals.tally)
        return found

    @cached_property
    def shown(self) -> list[str]:
        """Verdicts that a table has a column for."""
        return [verdict for verdict in tables.ORDER if self.tally[verdict] or verdict == "PASS"]

    @cached_property
    def _rows(self) -> list[tables.SignatureRow]:
        return tables.joined([tables.signatures(line.run) for line in self._tabled])

    @cached_property
    def matrix(self) -> tables.Matrix:
        """Operations by types."""
        return tables.matrix(self._rows)

    @cached_property
    def signatures(self) -> list[tables.SignatureRow]:
        """Signatures of operations."""
        return [row for row in self._rows if not row.behaviour]

    @cached_property
    def behaviours(self) -> list[tables.SignatureRow]:
        """Scenarios of the parts of the contract."""
        return [row for row in self._rows if row.behaviour and row.operation != tables.STRESS]

    @cached_property
    def observations(self) -> list[remarks.Observation]:
        """What was seen and is no failure."""
        return remarks.observations(self.tabled)[:OBSERVATIONS]

    @cached_property
    def first_runs(self) -> tuple[float, float, int] | None:
        """How many times as long as later ones first executions took: median and largest, over so many cases."""
        return remarks.first_runs(self.tabled)

    @cached_property
    def rules(self) -> list[remarks.RuleRow]:
        """What came of rules."""
        return remarks.rules(self.tabled)

    @cached_property
    def operation_rules(self) -> list[remarks.OperationRules]:
        """The same by operation."""
        return remarks.by_operation(self.rules)

    @cached_property
    def accuracy(self) -> list[accuracy.Profile]:
        """Observed errors."""
        return accuracy.profiles(self.tabled)

    @cached_property
    def slowest(self) -> list[tuple[Line, Record]]:
        """The cases that took longest, each with its run."""
        found = []
        for line in self.lines:
            found += [(line, record) for record in remarks.slowest(line.run.records.values(), SLOWEST)]
        return sorted(found, key=lambda pair: -(real(pair[1].seconds) or 0.0))[:SLOWEST]

    def reasons(self, verdict: str) -> list[remarks.Reason]:
        """Why cases were not judged."""
        return remarks.reasons(self.records, verdict)

    @cached_property
    def failures(self) -> Groups:
        """What fails a run and is the driver's, without the waived."""
        return _grouped(self._kinds.get("failures", ()), FAILURE_BUDGET)

    @cached_property
    def internal(self) -> Groups:
        """Errors of the suite."""
        return _grouped(self._kinds.get("internal", ()), OTHER_BUDGET)

    @cached_property
    def waivers(self) -> list[waiving.Row]:
        """What became of waivers."""
        return waiving.rows([line.run for line in self.lines])

    @cached_property
    def waiver_words(self) -> str:
        """The same in a few words."""
        return waiving.summary(self.waivers)

    @cached_property
    def waived(self) -> Groups:
        """What a waiver covers."""
        return _grouped(self._kinds.get("waived", ()), OTHER_BUDGET)

    @cached_property
    def poor(self) -> Groups:
        """Poor arithmetic that fails no run."""
        return _grouped(self._kinds.get("poor", ()), OTHER_BUDGET)

    @cached_property
    def _kinds(self) -> dict[str, list[Record]]:
        """Cases that are no pass, by the heading under which they stand."""
        found: dict[str, list[Record]] = {}
        for line in self.lines:
            fails = heading.fail_poor(line.run)
            for record in line.run.records.values():
                if kind := _kind(record, fails):
                    found.setdefault(kind, []).append(record)
        return found

    @cached_property
    def places(self) -> dict[int, int]:
        """Place of the run by record."""
        return {id(record): line.place for line in self.lines for record in line.run.records.values()}

    def link(self, tabled: bool = False, **wanted: object) -> str:
        """The target that shows the cases which fit in the list of all cases.

        Args:
            tabled: of runs whose cases are of an operation and a type, alone.
            wanted: what a case must have, by name; several values for one name are alternatives.
        """
        lines = self._tabled if tabled else self.lines
        runs = [] if self._alone and len(lines) == len(self.lines) else [line.place for line in lines]
        pairs: dict[str, object] = {name: value for name, value in wanted.items() if value not in (None, "")}
        return "#cases?" + urlencode({**pairs, **({"run": runs} if runs else {})}, doseq=True)


def _kind(record: Record, poor_fails: bool) -> str:
    """Under which heading a case that is no pass stands; empty for none."""
    if record.waiver:
        return "waived"
    if record.verdict in tables.DRIVER_FAULTS or (record.verdict == tables.POOR and poor_fails):
        return "failures"
    return {tables.INTERNAL: "internal", tables.POOR: "poor"}.get(record.verdict, "")


def _grouped(records: Sequence[Record], budget: int) -> Groups:
    found = grouping.groups(records, grouping.Budget(budget), NAMED, MOST)
    return Groups(len(records), found[:GROUPS_SHOWN], found[GROUPS_SHOWN:])


def views(found: Sequence[Line]) -> list[View]:
    """The drivers of a page in the order in which they come first; another version is another driver."""
    drivers: dict[tuple[str, str], list[Line]] = {}
    for line in found:
        drivers.setdefault((line.name, line.version), []).append(line)
    return [
        View(name, version, f"d{place}-" if place else "", members, len(drivers) == 1)
        for place, ((name, version), members) in enumerate(drivers.items())
    ]


def not_run(found: Sequence[Line]) -> list[str]:
    """What was not run, a sentence each: suites without a run, cases without a record, filters."""
    have = {line.suite for line in found}
    lacking = [SUITE_WORDS[suite] for suite in SUITES if suite not in have]
    words = [f"no run of: {', '.join(lacking)}"] if lacking else []
    counts: Counter[str] = Counter()
    for line in found:
        counts["NOT_RUN"] += line.totals.tally[tables.NOT_RUN]
        for verdict in (tables.NOT_SUPPORTED, tables.NOT_APPLICABLE):
            counts[verdict] += line.totals.tally[verdict]
        counts["limited"] += bool(line.run.plan.get("filtered") or line.run.plan.get("shortened"))
    if counts["NOT_RUN"]:
        words.append(f"{heading.cases(counts['NOT_RUN'])} selected and without a record")
    if counts["limited"]:
        words.append(f"{text.count_words(counts['limited'], 'run', 'runs')} filtered or shortened")
    if counts[tables.NOT_SUPPORTED] or counts[tables.NOT_APPLICABLE]:
        refused, ruled_out = counts[tables.NOT_SUPPORTED], counts[tables.NOT_APPLICABLE]
        words.append(f"not judged: {refused:,} not supported, {ruled_out:,} not applicable")
    return words
