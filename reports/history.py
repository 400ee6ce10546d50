"""All runs in a folder over time: what came of each, what newly fails, when a failure was first and last seen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from harness.record import Record, Run, read_run
from nnhal.errors import UsageError
from reports import compare as comparing
from reports import headline as heading
from reports.comparable import checkout, selection
from reports.parts import suite_of
from reports.speed import latency_ratios, rates
from reports.tables import DRIVER_FAULTS, INTERNAL, JUDGED, POOR, STRESS, first_line, real, shape
from reports.text import clip

RECORDS = "records*.jsonl"
TRACES = ("environment.json", "driver.log", "junit.xml", "failures")  # what a run leaves besides its records
_STAMP = re.compile(r"^\d{8}T\d{6}")

# What a run made of a case, a byte each, in the ledger of a series.
NOTHING, PASSED, FAILED, FLAKED, OTHER = range(5)


@dataclass(frozen=True)
class Failure:
    """How a case failed in a run."""

    name: str
    operation: str
    verdict: str
    cause: str
    message: str
    waived: bool

    @property
    def key(self) -> tuple[str, ...]:
        """What failures alike have in common."""
        return (self.operation, self.verdict, self.cause, shape(self.message))


@dataclass(frozen=True)
class Summary:
    """What is kept of a run.

    Attributes:
        folder: as it was found, below the folder that was read.
        time: when the run began, ISO 8601; of the folder's name where the plan lacks it, or empty.
        selection: what decides which cases a run makes; runs with the same are comparable.
        build: version of driver and suite: what may explain that a case ends otherwise.
        counts: cases by verdict.
        failed: cases that fail the run; `findings` is how many kinds of them there are.
        seconds: that the run took, by its end marker; None where there is none.
        rate: of stress runs, executions a second (the median); of campaigns, graphs or inputs a second.
        ratio: of benchmarks, latency over the baseline's (the median of the models).
    """

    folder: Path
    time: str
    suite: str
    driver: str
    version: str
    profile: str
    selection: tuple[str, ...]
    build: tuple[str, ...]
    complete: bool
    headline: heading.Headline
    counts: Mapping[str, int]
    selected: int
    failed: int
    waived: int
    findings: int
    seconds: float | None
    rate: float | None
    ratio: float | None
    failures: Mapping[str, Failure]


@dataclass(frozen=True)
class Seen:
    """A failure over the runs of a series, by their places.

    Attributes:
        first, last: places of the first and last run in which it failed.
        times: in how many runs it failed.
        passed: in how many it passed.
        now: it fails in the latest run in which it was judged.
    """

    failure: Failure
    first: int
    last: int
    times: int
    passed: int
    now: bool


@dataclass
class Series:
    """Runs of one suite on one driver, the oldest first.

    Attributes:
        fresh: for each run, what fails there and did not in the comparable run before; None where there is none.
        previous: for each run, the place of that run.
        seen: every failure, those of the latest runs first.
        flaky: names of cases that failed and passed on the same driver and suite, or that a run itself called FLAKY.
    """

    suite: str
    driver: str
    runs: list[Summary]
    fresh: list[list[Failure] | None] = field(default_factory=list)
    previous: list[int | None] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    flaky: list[Seen] = field(default_factory=list)


@dataclass(frozen=True)
class History:
    """What a folder holds.

    Attributes:
        series: by suite and driver.
        unread: folders that look like runs and could not be read, with the reason.
    """

    folder: Path
    series: tuple[Series, ...]
    unread: tuple[tuple[str, str], ...]


def read(folder: Path) -> History:
    """Reads all runs in a folder, in the folders right in it and in those one level below.

    Raises:
        UsageError: there is no such folder, or no run in it.
    """
    try:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder; give one with runs in it, such as runs")
        places = list(_places(folder))
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}") from None
    unread: list[tuple[str, str]] = []
    found: dict[tuple[str, str], _Gathered] = {}
    for place in places:
        name = str(place.relative_to(folder)) if place != folder else place.resolve().name
        try:
            summary, ends = _summary(place, name)
        except UsageError as error:
            unread.append((name, str(error)))
        except OSError as error:
            unread.append((name, error.strerror or str(error)))
        except Exception as error:  # whatever is wrong with one folder, the others have a history
            unread.append((name, f"the records make no sense: {type(error).__name__}: {clip(error, 200)}"))
        else:
            found.setdefault((summary.suite, summary.driver), _Gathered()).add(summary, ends)
    if not places:
        raise UsageError(f"{folder} holds no run, nor do the folders in it; give the folder that runs are written to")
    return History(folder, tuple(_series(*key, found[key]) for key in sorted(found)), tuple(unread))


class _Gathered:
    """Runs of a series in the order in which they are read, and how each case ended in them, a byte a run."""

    def __init__(self) -> None:
        self.runs: list[Summary] = []
        self._ledger: dict[str, bytearray] = {}

    def add(self, summary: Summary, ends: Mapping[str, int]) -> None:
        """Takes a run in."""
        place = len(self.runs)
        self.runs.append(summary)
        for name, end in ends.items():
            row = self._ledger.setdefault(name, bytearray())
            row.extend(bytes(place - len(row)))
            row.append(end)

    def order(self) -> list[int]:
        """Places of the runs, the oldest first."""
        return sorted(range(len(self.runs)), key=lambda place: (self.runs[place].time, str(self.runs[place].folder)))

    def ends(self, name: str) -> bytes:
        """How a case ended in each run."""
        row = self._ledger.get(name, b"")
        return bytes(row) + bytes(len(self.runs) - len(row))


def _places(folder: Path) -> Iterator[Path]:
    """Folders with runs, or with what is left of one, each once."""
    known = set()
    for place in (folder, *sorted(folder.iterdir())):
        if place.is_dir():
            inside = sorted(place.iterdir()) if place != folder and not _is_run(place) else []
            for one in (place, *inside):
                if one.is_dir() and _is_run(one) and one.resolve() not in known:
                    known.add(one.resolve())
                    yield one


def _is_run(place: Path) -> bool:
    try:
        return any(place.glob(RECORDS)) or (
            bool(_STAMP.match(place.name)) and any((place / trace).exists() for trace in TRACES)
        )
    except OSError:
        return True  # to be named with the reason


def _summary(place: Path, name: str) -> tuple[Summary, dict[str, int]]:
    run = read_run(place)
    totals = heading.totals(run)
    plan = run.plan
    ends: dict[str, int] = {}
    failures: dict[str, Failure] = {}
    faults = {*DRIVER_FAULTS, INTERNAL} | ({POOR} if heading.fail_poor(run) else set())
    for key, record in comparing.by_name(run).items():
        ends[key] = _end(record, faults)
        if record.verdict in faults:
            line = first_line(record.message, 200)
            failures[key] = Failure(key, record.operation, record.verdict, record.cause, line, bool(record.waiver))
    open_ones = [failure for failure in failures.values() if not failure.waived]
    stamp = _STAMP.match(place.name)
    text = {key: clip(plan.get(key) or "", 200) for key in ("driver", "driver_name", "driver_version", "suite_version")}
    summary = Summary(
        folder=Path(name),
        time=clip(plan.get("time") or (stamp[0] if stamp else ""), 40),
        suite=suite_of(run),
        driver=text["driver"] or text["driver_name"] or "unknown driver",
        version=text["driver_version"],
        profile=clip(plan.get("profile") or plan.get("preset") or "", 60),
        selection=selection(run),
        build=(text["driver_version"], text["suite_version"], str(checkout(run).get("commit"))),
        complete=run.complete,
        headline=heading.headline(run, totals),
        counts=run.counts(),
        selected=run.selected,
        failed=totals.failed + totals.internal,
        waived=totals.waived,
        findings=len({failure.key for failure in open_ones}),
        seconds=real(run.end.get("seconds")) if run.ended else None,
        rate=_rate(run),
        ratio=_middle(latency_ratios(run.records.values())),
        failures=failures,
    )
    return summary, ends


def _end(record: Record, faults: set[str]) -> int:
    if record.verdict == "FLAKY":
        return FLAKED
    if record.verdict in faults:
        return FAILED
    return PASSED if record.verdict in JUDGED else OTHER


def _rate(run: Run) -> float | None:
    """Executions a second of stress runs, or what a campaign did in a second."""
    found = [
        number
        for record in run.records.values()
        if record.operation == STRESS and (number := real(record.numbers.get("executions_per_second")))
    ]
    return _middle(found or list(rates(run).values()))


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _series(suite: str, driver: str, found: _Gathered) -> Series:
    order = found.order()
    series = Series(suite, driver, [found.runs[place] for place in order])
    latest: dict[tuple[str, ...], int] = {}
    for place, run in enumerate(series.runs):
        before = latest.get(run.selection)
        series.previous.append(before)
        series.fresh.append(None if before is None else _fresh(run, series.runs[before]))
        if run.complete:
            latest[run.selection] = place
    for name in dict.fromkeys(name for run in reversed(series.runs) for name in run.failures):
        row = found.ends(name)
        ends = [row[place] for place in order]
        places = [place for place, end in enumerate(ends) if end in (FAILED, FLAKED)]
        judged = [place for place, end in enumerate(ends) if end in (PASSED, FAILED, FLAKED)]
        failure = series.runs[places[-1]].failures[name]
        seen = Seen(failure, places[0], places[-1], len(places), ends.count(PASSED), judged[-1] == places[-1])
        series.seen.append(seen)
        if FLAKED in ends or _both_ways(series.runs, ends):
            series.flaky.append(seen)
    return series


def _fresh(run: Summary, before: Summary) -> list[Failure]:
    """What fails, not waived, and did not in the run before."""
    known = {name for name, failure in before.failures.items() if not failure.waived}
    return [failure for name, failure in run.failures.items() if not failure.waived and name not in known]


def _both_ways(runs: Sequence[Summary], ends: Sequence[int]) -> bool:
    """Whether a case both failed and passed in comparable runs of one driver and one suite."""
    found: dict[tuple[tuple[str, ...], ...], set[int]] = {}
    for run, end in zip(runs, ends, strict=True):
        if end in (PASSED, FAILED):
            found.setdefault((run.selection, run.build), set()).add(end)
    return any(len(both) == 2 for both in found.values())
