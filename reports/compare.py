"""Two runs put side by side: which cases ended otherwise, where accuracy changed, and in what the runs differ. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.record import Record, Run
from reports.comparable import differences
from reports.headline import Headline, cases, fail_poor
from reports.parts import suite_of
from reports.speed import Paces
from reports.tables import DRIVER_FAULTS, INTERNAL, JUDGED, NOT_RUN, POOR, largest, planned, real, shape

ACCURACY_FACTOR = 1.1  # smaller changes of the largest error are noise between two drivers
ACCURACY_FLOOR = 0.02  # in units of what is allowed: below it nobody cares

FAILING, ERRING, WAIVED, POORLY, PASSING, UNJUDGED, UNRUN, ABSENT = (
    "failing", "erring", "waived", "poor", "passing", "unjudged", "unrun", "absent",
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A way in which a case's verdict changed.

    Attributes:
        worse: whether one such case makes the second run worse than the first.
    """

    key: str
    title: str
    doc: str
    worse: bool = False


KINDS = (
    Kind("new", "New failures", "failed in the second run and not in the first, or was waived there", True),
    Kind("stranger", "Failures of cases that only the second run has", "nothing to compare them with", True),
    Kind("suite", "New errors of the suite", "a defect of the suite itself hides what the driver does", True),
    Kind("poor", "Newly poor", "passed before; now within what is allowed, but poor as a whole", True),
    Kind("refused", "Newly not supported", "judged and not failing before; now not supported or not applicable", True),
    Kind("lost", "No longer run", "judged in the first run; selected in the second, and without a record there", True),
    Kind("otherwise", "Failing in another way", "failing in both, with another verdict or cause"),
    Kind("fixed", "Fixed", "failed in the first run and not in the second"),
    Kind("better", "No longer poor", "poor before, passed now"),
    Kind("withdrawn", "Failing before, not supported now", "neither fixed nor failing"),
    Kind("waived", "Waived now", "failed before; fails still, and a waiver covers it"),
    Kind("excused", "New failures that are waived", "did not fail before; fails now, and a waiver covers it"),
    Kind("supported", "Newly supported", "not judged before, passed or poor now"),
    Kind("other", "Other changes", "neither judged in both runs nor the same"),
    Kind("only1", "Only in the first run", "not selected in the second"),
    Kind("only2", "Only in the second run", "not selected in the first, and not failing"),
)

_CHANGES = {
    **{(before, FAILING): "new" for before in (ERRING, WAIVED, POORLY, PASSING, UNJUDGED, UNRUN)},
    (ABSENT, FAILING): "stranger",
    **{(before, ERRING): "suite" for before in (FAILING, WAIVED, POORLY, PASSING, UNJUDGED, UNRUN, ABSENT)},
    (PASSING, POORLY): "poor",
    **{(before, UNJUDGED): "refused" for before in (PASSING, POORLY)},
    **{(before, UNRUN): "lost" for before in (PASSING, POORLY, FAILING, WAIVED)},
    **{(before, after): "fixed" for before in (FAILING, ERRING, WAIVED) for after in (PASSING, POORLY)},
    (POORLY, PASSING): "better",
    **{(before, UNJUDGED): "withdrawn" for before in (FAILING, WAIVED)},
    **{(before, WAIVED): "waived" for before in (FAILING, ERRING)},
    **{(before, WAIVED): "excused" for before in (POORLY, PASSING, UNJUDGED, UNRUN)},
    **{(before, after): "supported" for before in (UNJUDGED, UNRUN) for after in (PASSING, POORLY)},
    **{(before, ABSENT): "only1" for before in (FAILING, ERRING, WAIVED, POORLY, PASSING, UNJUDGED, UNRUN)},
    **{(ABSENT, after): "only2" for after in (WAIVED, POORLY, PASSING, UNJUDGED)},
}


@dataclass(frozen=True)
class Change:
    """A case that ended otherwise.

    Attributes:
        name: the id without the digest.
        before: its record in the first run, or None.
        after: its record in the second run, or None.
    """

    name: str
    before: Record | None
    after: Record | None

    @property
    def record(self) -> Record:
        """The newer of the records."""
        found = self.after or self.before
        assert found is not None  # a change is of a case that one of the runs has
        return found

    @property
    def altered(self) -> bool:
        """Whether the two cases of this name differ in their content, as far as both were made."""
        front = f"{self.name}-"
        return len({one.id for one in (self.before, self.after) if one is not None and one.id.startswith(front)}) > 1


@dataclass(frozen=True)
class Bundle:
    """Changes of one operation that are alike: the same verdicts and causes, and one message but for its numbers."""

    changes: tuple[Change, ...]

    @property
    def one(self) -> Change:
        """The change that stands for all."""
        return self.changes[0]


def bundles(changes: Iterable[Change]) -> list[Bundle]:
    """Changes put together by likeness; the largest bundles first."""
    found: dict[tuple[object, ...], list[Change]] = defaultdict(list)
    for change in changes:
        ends = [(r.verdict, r.cause, bool(r.waiver)) if r else None for r in (change.before, change.after)]
        found[change.record.operation, ends[0], ends[1], shape(change.record.message)].append(change)
    order = sorted(found.values(), key=lambda alike: (-len(alike), alike[0].name))
    return [Bundle(tuple(alike)) for alike in order]


@dataclass(frozen=True)
class Accuracy:
    """The largest error of a signature over the cases that both runs compared, in units of the allowed one."""

    operation: str
    signature: str
    compared: int
    before: float
    after: float
    ulp_before: float | None
    ulp_after: float | None

    @property
    def factor(self) -> float:
        """How many times as large the error is as it was."""
        return self.after / self.before if self.before else math.inf


@dataclass(frozen=True)
class Comparison:
    """What differs between two runs.

    Attributes:
        changes: cases by the key of their kind of change.
        same: number of cases with the same verdict and cause in both.
        still_failing: how many of these fail.
        altered: number of cases of one name whose content differs between the runs.
        common: number of cases that have a record in both.
        findings: whether records are findings alone, of which none need be in both.
        waived: records of the second run that a waiver covers, by name.
        complete: whether the second run is.
        notes: in what else the runs differ, and what they lack, as sentences.
        paces: tables of how quick the runs were.
    """

    changes: dict[str, list[Change]]
    same: int
    still_failing: int
    altered: int
    accuracy: tuple[Accuracy, ...]
    common: int
    findings: bool
    waived: tuple[Record, ...]
    complete: bool
    notes: tuple[str, ...]
    paces: tuple[Paces, ...] = ()

    @property
    def worse(self) -> int:
        """Number of cases that make the second run worse."""
        return sum(len(self.changes.get(kind.key, ())) for kind in KINDS if kind.worse)

    @property
    def regressed(self) -> bool:
        """Whether the second run is worse, or cannot show that it is not."""
        return bool(self.worse) or not self.complete or not self.compared

    @property
    def compared(self) -> bool:
        """Whether there was anything to compare."""
        return bool(self.common) or self.findings

    @property
    def slower(self) -> int:
        """Number of measurements that are surely slower in the second run."""
        return sum(table.slower for table in self.paces)

    @property
    def changed(self) -> int:
        """Number of cases that are in a list of changes."""
        return sum(map(len, self.changes.values()))


def _state(record: Record | None, planned_still: bool, poor_fails: bool) -> str:
    if record is None:
        return UNRUN if planned_still else ABSENT
    if record.verdict == INTERNAL and not record.waiver:
        return ERRING
    if record.verdict in DRIVER_FAULTS or record.verdict == INTERNAL or (record.verdict == POOR and poor_fails):
        return WAIVED if record.waiver else FAILING
    if record.verdict == POOR:
        return POORLY
    if record.verdict == NOT_RUN:
        return UNRUN
    return PASSING if record.verdict in JUDGED else UNJUDGED


class _Lacking:
    """Which cases without a record a run had selected: those of a batch that holds fewer records than were planned."""

    def __init__(self, run: Run) -> None:
        have = Counter(record.batch for record in run.records.values())
        self._short = {batch for batch, count in planned(run).items() if count > have[batch]}

    def __contains__(self, record: Record) -> bool:
        return record.batch in self._short


def by_name(run: Run) -> Mapping[str, Record]:
    """Records by what tells the same case in another run: its id without the digest.

    Findings of fuzzing are numbered as they come, so they are known by what they are.
    """
    if suite_of(run) != "fuzz":
        return run.records
    return {
        f"{one.operation} {one.signature} {one.verdict} {one.cause}: {shape(one.message)}": one
        for one in run.records.values()
    }


def compare(first: Run, second: Run) -> Comparison:
    """Compares two runs case by case."""
    olds, news = by_name(first), by_name(second)
    changes: dict[str, list[Change]] = defaultdict(list)
    lacking, poor = (_Lacking(first), _Lacking(second)), (fail_poor(first), fail_poor(second))
    same = still_failing = altered = 0
    for name in sorted({*olds, *news}):
        change = Change(name, olds.get(name), news.get(name))
        before = _state(change.before, change.record in lacking[0], poor[0])
        after = _state(change.after, change.record in lacking[1], poor[1])
        altered += change.altered
        key = _CHANGES.get((before, after), "" if before == after else "other")
        if before == after and change.before and change.after:
            verdicts = change.before.verdict == change.after.verdict
            alike = verdicts and (before != FAILING or change.before.cause == change.after.cause)
            key = "" if alike else "otherwise" if before == FAILING else "other"
            still_failing += alike and before == FAILING
        if key:
            changes[key].append(change)
        else:
            same += 1
    return Comparison(
        dict(changes),
        same,
        still_failing,
        altered,
        accuracy(first, second),
        len(olds.keys() & news.keys()),
        {suite_of(first), suite_of(second)} == {"fuzz"},
        tuple(record for record in second.records.values() if record.waiver),
        second.complete,
        tuple(differences(first, second)),
    )


def accuracy(first: Run, second: Run) -> tuple[Accuracy, ...]:
    """Signatures whose largest error changed, over the cases that both runs compared; the largest changes first."""
    pairs: dict[tuple[str, str], list[tuple[Record, Record]]] = defaultdict(list)
    for name, before in first.records.items():
        after = second.records.get(name)
        if after is not None and real(before.error) is not None and real(after.error) is not None:
            pairs[after.operation, after.signature].append((before, after))
    found = []
    for key, both in pairs.items():
        old, new = (_largest(records) for records in zip(*both, strict=True))
        if max(old[0], new[0]) < ACCURACY_FLOOR or old[0] == new[0]:
            continue
        low, high = sorted((old[0], new[0]))
        if not low or high / low >= ACCURACY_FACTOR:
            found.append(Accuracy(*key, len(both), old[0], new[0], old[1], new[1]))
    return tuple(sorted(found, key=lambda a: (-abs(_logarithm(a.after) - _logarithm(a.before)), a.operation)))


def _largest(records: Iterable[Record]) -> tuple[float, float | None]:
    rows = list(records)
    return largest(record.error for record in rows) or 0.0, largest(record.ulp for record in rows)


def _logarithm(error: float) -> float:
    return math.log(min(max(error, 1e-6), 1e38))


def headline(comparison: Comparison) -> Headline:
    """What the comparison amounts to, in one sentence."""
    parts = [
        f"{kind.title[0].lower()}{kind.title[1:]} {len(comparison.changes[kind.key]):,}"
        for kind in KINDS
        if comparison.changes.get(kind.key)
    ]
    notes = list(comparison.notes)
    if comparison.altered:
        notes.append(
            f"{cases(comparison.altered)} of one name have another content in the two runs (another seed, or the suite "
            "changed): their verdicts are compared all the same."
        )
    if comparison.still_failing:
        notes.append(f"{cases(comparison.still_failing)} fail in both runs in the same way.")
    if comparison.slower:
        what = "measurement is" if comparison.slower == 1 else "measurements are"
        notes.append(f"{comparison.slower:,} {what} slower, beyond the margin.")
    worse = comparison.worse
    same = f"{cases(comparison.same)} ended alike"
    if not comparison.compared:
        text = "Nothing was compared: no case has a record in both runs"
    elif worse:
        text = f"Worse in {cases(worse)}: {', '.join(parts)}; {same}"
    elif parts:
        text = f"Nothing is newly bad: {', '.join(parts)}; {same}"
    else:
        text = f"No difference: {same}"
    if comparison.compared and not comparison.complete:
        text = f"INCOMPLETE second run. {text}"
    return Headline("bad" if comparison.regressed else "good", text, tuple(notes))
