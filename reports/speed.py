"""How quick two runs were beside each other: seconds of cases, latency of models, rates of stress runs and campaigns.

Ratios are always the second run's over the first's. What a machine's speed does to both is left out where a run
measured a baseline beside the driver (`mlts`); elsewhere it is part of the ratio, and the tables say so.
"""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.record import Record, Run
from nnhal.errors import UsageError
from reports.paired import CONFIDENCE, Interval, median_interval, ratio_interval
from reports.parts import suite_of
from reports.tables import POOR, STRESS, real

SLOWER, FASTER, ALIKE, UNDECIDED, TOLD = "slower", "faster", "alike", "undecided", "not judged"

LATENCY_MARGIN = 0.05  # of a model, where the machine's speed is left out
MACHINE_MARGIN = 0.5  # where it is not: a busy machine makes that much of the same driver
CASES_CONFIDENCE = 0.9999  # of each of a hundred operations, so that one run in a hundred has a wrong one
FEWEST_CASES = 10
SHORTEST = 1e-4  # seconds: below it a case's time is that of the suite
ALL = "all"

SECONDS, PER_SECOND, TIMES = "seconds", "per second", "times the baseline's"
_STRESS_NUMBERS = {
    "executions_per_second": ("executions", PER_SECOND),
    "latency_p50": ("latency, median", SECONDS),
    "latency_p90": ("latency, 90 in 100", SECONDS),
    "latency_p99": ("latency, 99 in 100", SECONDS),
}


@dataclass(frozen=True)
class Pace:
    """One thing that both runs measured.

    Attributes:
        name: of it.
        unit: of `before` and `after`: `SECONDS`, `PER_SECOND` or `TIMES`.
        ratio: second run over first, with its interval.
        verdict: one of the words above.
    """

    name: str
    unit: str
    before: float
    after: float
    ratio: Interval
    verdict: str


@dataclass(frozen=True)
class Paces:
    """A table of them.

    Attributes:
        title: heading.
        doc: what was compared, how, and what makes one slower.
    """

    title: str
    doc: str
    rows: tuple[Pace, ...]

    @property
    def slower(self) -> int:
        """Number of rows that are surely slower."""
        return sum(row.verdict == SLOWER for row in self.rows)


def paces(first: Run, second: Run) -> tuple[Paces, ...]:
    """What both runs measured, table by table; empty where they have nothing in common."""
    if suite_of(first) != suite_of(second):
        return ()
    made = {"mlts": _models, "stress": _stress, "fuzz": _campaigns, "graphs": _campaigns}.get(suite_of(first), _cases)
    found = [made(first, second)]
    if made is _cases and any(record.operation == STRESS for record in second.records.values()):
        found.append(_stress(first, second))
    return tuple(table for table in found if table.rows)


def judged(ratio: Interval, margin: float, *, less: bool = True) -> str:
    """What an interval says of a ratio: beyond the margin as a whole, within it as a whole, or neither.

    Args:
        ratio: second run over first.
        margin: by which numbers may differ and still be alike.
        less: whether less is better.
    """
    if ratio.low is None or ratio.high is None:
        return UNDECIDED
    if ratio.low > 1 + margin:
        return SLOWER if less else FASTER
    if ratio.high < 1 / (1 + margin):
        return FASTER if less else SLOWER
    return ALIKE if ratio.low >= 1 / (1 + margin) and ratio.high <= 1 + margin else UNDECIDED


# --- cases ------------------------------------------------------------------------------------------------------------


def _cases(first: Run, second: Run) -> Paces:
    """Seconds of the same cases, by operation, each beside the middle of all."""
    ratios: dict[str, list[float]] = defaultdict(list)
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for before, after in _same(first, second):
        if before.operation == STRESS:
            continue
        old, new = _positive(before.seconds), _positive(after.seconds)
        if old is not None and new is not None and max(old, new) >= SHORTEST:
            ratios[after.operation].append(math.log(new / old))
            times[after.operation].append((old, new))
    everything = [ratio for some in ratios.values() for ratio in some]
    if len(everything) < FEWEST_CASES:
        return Paces("", "", ())
    middle = median(everything)
    rows = [_case_row(ALL, everything, [pair for some in times.values() for pair in some], 0.0)]
    rows += [_case_row(name, ratios[name], times[name], middle) for name in ratios if len(ratios[name]) >= FEWEST_CASES]
    rows[1:] = sorted(rows[1:], key=lambda row: (-row.ratio.value, row.name))
    doc = (
        f"Median seconds of a case, over cases of the same content that passed in both runs. The row {ALL!r} compares "
        "the runs as they are, so that another machine or a busier one shows there; the others are divided by its "
        "ratio. "
        f"Slower or faster: the interval of the ratio ({100 * CASES_CONFIDENCE:g} %, of ranks) lies beyond "
        f"{1 + MACHINE_MARGIN:g} times."
    )
    return Paces("Seconds of cases", doc, tuple(rows))


def _case_row(name: str, ratios: Sequence[float], times: Sequence[tuple[float, float]], middle: float) -> Pace:
    found = _exponential(median_interval([ratio - middle for ratio in ratios], CASES_CONFIDENCE))
    before, after = (median(side) for side in zip(*times, strict=True))
    return Pace(name, SECONDS, before, after, found, judged(found, MACHINE_MARGIN))


def _same(first: Run, second: Run) -> Iterator[tuple[Record, Record]]:
    """Records of cases with the same content that passed in both runs."""
    for name, before in first.records.items():
        after = second.records.get(name)
        if after is not None and before.id == after.id and {before.verdict, after.verdict} <= {"PASS", POOR}:
            yield before, after


# --- models -----------------------------------------------------------------------------------------------------------


def _models(first: Run, second: Run) -> Paces:
    """Latency of models in units of the baseline's, which each run measured beside the driver's."""
    old, new = _measurements(first), _measurements(second)
    rows = []
    for key in sorted(old.keys() & new.keys()):
        before, after = _pairs(old[key]), _pairs(new[key])
        if not before or not after or old[key].get("digest") != new[key].get("digest"):
            continue
        ratio = ratio_interval(before, after)
        verdict = judged(ratio, LATENCY_MARGIN)
        rows.append(Pace(" ".join(key), TIMES, median(before), median(after), ratio, verdict))
    doc = (
        "Median latency of a model in units of the baseline's. Each run measured the baseline in turns with the "
        "driver, and the ratios of those pairs are compared, so that the speed of the machine cancels. The interval "
        f"({100 * CONFIDENCE:g} %, a bootstrap of blocks) covers what varies within the runs, not from one start of "
        f"the driver to the next. Slower or faster: it lies beyond {1 + LATENCY_MARGIN:g} times."
    )
    return Paces("Latency of models", doc, tuple(rows))


def _measurements(run: Run) -> dict[tuple[str, str], Mapping[str, Any]]:
    """A benchmark's lines of measurements by model and tier; the suite above this package knows their file."""
    read = importlib.import_module("mlts.folder").measurements
    try:
        return {(row["model"], row["tier"]): row for row in read(run.folder)}
    except (UsageError, OSError):
        return {}


def _pairs(row: Mapping[str, Any]) -> list[float]:
    """Ratios driver over baseline of a line, in order; what is no pair of times is left out."""
    side = row.get("driver")
    pairs = side.get("pairs") if isinstance(side, dict) else None
    found = []
    for pair in pairs if isinstance(pairs, list) else ():
        if isinstance(pair, list) and len(pair) == 2:
            ours, theirs = map(_positive, pair)
            if ours is not None and theirs is not None:
                found.append(ours / theirs)
    return found


# --- stress runs and campaigns ----------------------------------------------------------------------------------------


def _stress(first: Run, second: Run) -> Paces:
    """Rates and latencies of stress runs: all of them together are judged, single ones told."""
    ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rows = []
    for before, after in _same(first, second):
        if before.operation != STRESS:
            continue
        for key, (words, unit) in _STRESS_NUMBERS.items():
            old, new = _positive(before.numbers.get(key)), _positive(after.numbers.get(key))
            if old is not None and new is not None:
                ratios[key].append((old, new))
                rows.append(_told(f"{after.signature}/{after.kind}: {words}", unit, old, new))
    sums = []
    for key, pairs in ratios.items():
        words, unit = _STRESS_NUMBERS[key]
        found = _exponential(median_interval([math.log(new / old) for old, new in pairs]))
        before, after = (median(side) for side in zip(*pairs, strict=True))
        verdict = judged(found, MACHINE_MARGIN, less=unit == SECONDS)
        sums.append(Pace(f"{ALL}: {words}", unit, before, after, found, verdict))
    doc = (
        "Each stress run is one number, so single runs are told and not judged. The rows 'all' are medians over the "
        f"runs that succeeded in both, with the interval of their ratio ({100 * CONFIDENCE:g} %, of ranks); the speed "
        f"of the machine is part of them. Slower or faster: the interval lies beyond {1 + MACHINE_MARGIN:g} times."
    )
    return Paces("Rates and latencies of stress runs", doc, (*sums, *rows))


def _campaigns(first: Run, second: Run) -> Paces:
    """Graphs or inputs a second, as the end markers tell them."""
    old, new = rates(first), rates(second)
    rows = [_told(name, PER_SECOND, old[name], new[name]) for name in old if name in new]
    doc = "One number of each run, the speed of the machine included: told, not judged."
    return Paces("Rates", doc, tuple(rows))


def rates(run: Run) -> dict[str, float]:
    """What a campaign did in a second, by target, as its end marker tells; a campaign of graphs has one target."""
    found = {"graphs": _positive(run.end.get("rate"))}
    targets = run.end.get("targets")
    if isinstance(targets, dict):
        found |= {str(name): _positive(of.get("rate")) for name, of in targets.items() if isinstance(of, dict)}
    return {name: rate for name, rate in found.items() if rate is not None}


def _told(name: str, unit: str, before: float, after: float) -> Pace:
    return Pace(name, unit, before, after, Interval(after / before, None, None, 1), TOLD)


def _exponential(logs: Interval) -> Interval:
    low, high = (None if limit is None else math.exp(limit) for limit in (logs.low, logs.high))
    return Interval(math.exp(logs.value), low, high, logs.count)


def _positive(value: object) -> float | None:
    found = real(value)
    return found if found is not None and 0 < found < math.inf else None


def latency_ratios(records: Iterable[Record]) -> list[float]:
    """How many times the baseline's latency the models of a benchmark took, as their records tell."""
    found = [_positive(record.numbers.get("times the baseline's latency")) for record in records]
    return [ratio for ratio in found if ratio is not None]
