"""What the benchmark's page says of a model: its line of measurements and its records, as words for tables.

A line may be cut off, of an older suite, or of a hostile driver: what is missing or of another form is left out, and
nothing here is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.parse import quote

from harness.record import Record, Run
from harness.verdict import Cause, Verdict
from mlts import page_charts
from mlts.catalogue import SEEDED, SLOTS
from mlts.folder import origin_of
from mlts.judging import ASPECTS, STABILITY
from mlts.page_cells import (
    Cell,
    interval_cell,
    is_share,
    listed,
    number_words,
    percent_words,
    table,
    time_cell,
    times,
    times_words,
)
from mlts.rows import PERCENTILES
from mlts.statistics import ALPHA, MARGIN, drift, outliers
from reports.tables import DRIVER_FAULTS, real

NOT_WORSE, WORSE, UNDECIDED, UNSUPPORTED = "not worse", "worse", "undecided", "not supported"
FAILED, NOT_RUN = "failed", "not run"
OUTCOMES = (NOT_WORSE, WORSE, UNDECIDED, UNSUPPORTED, FAILED, NOT_RUN)
OTHER = SLOTS[-1]
MOST_ROWS = 40  # of a table within a model
NO_ACCURACY = "top "  # scores that begin so compare with truths, which a model without trained weights does not know
AGREES = ("agree", "overlap")  # but for these, which compare with the baseline

# Scores that the tables show, the first of them that there are; a model's section shows all.
MAIN_SCORES = (
    "top 1",
    "top 5",
    "top 1 agrees",
    "phone error rate",
    "mel-cepstral distortion",
    "log F0 error",
    "cosine",
    "mean squared error",
)
MAIN = 4


@dataclass(frozen=True)
class Aspect:
    """What is said of a model in one respect.

    Attributes:
        outcome: one of `OUTCOMES`.
        record: None where there is none.
    """

    name: str
    outcome: str
    record: Record | None

    @property
    def waiver(self) -> str:
        """The reason of the waiver that covers it, or empty."""
        return str(self.record.waiver) if self.record else ""

    @property
    def tone(self) -> str:
        """The verdict whose colour it has."""
        if self.outcome in (FAILED, WORSE):
            poor = self.record is not None and self.record.verdict == Verdict.POOR.value
            return Verdict.POOR.value if poor else Verdict.FAIL.value
        return Verdict.PASS.value if self.outcome == NOT_WORSE else Verdict.NOT_RUN.value


@dataclass(frozen=True)
class Side:
    """The driver, or the baseline; times in seconds, in the order in which they were taken."""

    row: Mapping[str, Any]
    latency: Sequence[float]

    def count(self, name: str) -> int | None:
        """A whole number of the row."""
        found = real(self.row.get(name))
        return int(found) if found is not None and abs(found) < 1e15 else None

    def number(self, name: str) -> float | None:
        """A number of the row."""
        return real(self.row.get(name))

    def times(self, name: str) -> list[float]:
        """A list of times of the row."""
        return times(self.row.get(name))

    @property
    def percentiles(self) -> list[Cell]:
        """Of the latency, in milliseconds."""
        return [time_cell(self.latency, at) for at in PERCENTILES]

    @property
    def outliers(self) -> list[float]:
        """Latencies far above the rest, largest first."""
        return sorted((self.latency[place] for place in outliers(self.latency)), reverse=True)

    @property
    def modes(self) -> list[tuple[str, int, list[Cell]]]:
        """For each other mode the executions and their percentiles."""
        found = [(name, times(values)) for name, values in list(table(self.row.get("modes")).items())[:MOST_ROWS]]
        return [(name, len(values), [time_cell(values, at) for at in PERCENTILES]) for name, values in found if values]

    @property
    def in_flight(self) -> dict[str, tuple[float | None, float | None]]:
        """For each number of requests at the same time: executions a second, and the median of one."""
        rows = list(table(self.row.get("in_flight")).items())[:MOST_ROWS]
        return {
            name: (real(pair[0]), real(pair[1])) for name, pair in rows if isinstance(pair, list) and len(pair) == 2
        }

    @property
    def memory(self) -> Mapping[str, Any]:
        """Bytes by moment."""
        return dict(list(table(self.row.get("memory")).items())[:MOST_ROWS])

    @property
    def told(self) -> tuple[int, list[float | None]]:
        """Number of timed executions, and the medians: as seen here, on the device, in the driver."""
        rows = [row for row in listed(self.row.get("told")) if isinstance(row, list) and len(row) == 3]
        columns = [times([row[place] for row in rows]) for place in range(3)]
        return len(rows), [median(values) if values else None for values in columns]

    @property
    def notes(self) -> list[str]:
        """What else was seen."""
        return [str(note) for note in listed(self.row.get("notes"))[:MOST_ROWS]]


@dataclass(frozen=True)
class ModelView:
    """A model in a tier as the page shows it.

    Attributes:
        row: its line of measurements; empty where there is none.
        driver, baseline: None where nothing was measured.
        pairs: medians of each round, driver's and baseline's.
    """

    model: str
    tier: str
    slot: str
    reality: str
    aspects: Mapping[str, Aspect]
    row: Mapping[str, Any] = field(default_factory=dict)
    driver: Side | None = None
    baseline: Side | None = None
    pairs: Sequence[tuple[float, float]] = ()

    @property
    def anchor(self) -> str:
        """The target of links to its section."""
        return f"model={quote(self.model, safe='')}&tier={quote(self.tier, safe='')}"

    @property
    def tier_words(self) -> str:
        """The tier with what it allows."""
        return self.word("tier_words") or self.tier

    @property
    def seeded(self) -> bool:
        """Whether its weights were drawn and not trained, so that no accuracy can be known."""
        return self.reality == SEEDED

    @property
    def repeat(self) -> str:
        """The line that measures it again."""
        return next((one.record.repeat for one in self.aspects.values() if one.record and one.record.repeat), "")

    @property
    def waived(self) -> bool:
        """Whether a waiver covers one of its failures."""
        return any(one.waiver for one in self.aspects.values())

    def word(self, name: str) -> str:
        """A text of the row; empty where there is none."""
        found = self.row.get(name)
        return found if isinstance(found, str) else ""

    @property
    def ratio(self) -> Cell:
        """Latency over the baseline's."""
        return interval_cell(table(self.row.get("ratio")).get("ratio"), times_words, number_words)

    @property
    def error_ratio(self) -> Cell:
        """Root mean square error over the baseline's."""
        return interval_cell(table(self.row.get("error_ratio")).get("ratio"), times_words, number_words)

    @property
    def steps(self) -> bool:
        """Whether errors are in quantisation steps; else in units of the outputs' own root mean square."""
        return self.word("type").startswith("quant")

    def errors(self, side: str) -> tuple[int, dict[str, float]]:
        """Inputs held against the reference, and over them the middle, mean, lowest and highest error.

        Args:
            side: "driver" or "baseline".
        """
        rows = [table(one) for one in listed(self.row.get("errors" if side == "driver" else "baseline_errors"))]
        known = {name: [v for v in (real(row.get(name)) for row in rows) if v is not None] for name in ERROR_NAMES}
        return len(rows), {name: ERROR_NAMES[name](values) for name, values in known.items() if values}

    def scores(self, side: str) -> Mapping[str, Any]:
        """Scores of "driver" or "baseline"."""
        return table(table(self.row.get("scores")).get(side))

    def score(self, name: str, side: str) -> Cell:
        """A score of driver or baseline; where weights are not trained, one against truths says so instead."""
        found = self.scores(side).get(name)
        if self.seeded and name.startswith(NO_ACCURACY) and not any(word in name for word in AGREES):
            return Cell("none", note="weights not trained")
        return interval_cell(found, percent_words if is_share(name) else number_words, counted=True)

    def expected(self, name: str) -> str:
        """The score that is known for these weights and inputs; empty where there is none."""
        known = table(self.row.get("expected"))
        value, count = real(known.get(name)), real(known.get("count"))
        words = percent_words if is_share(name) else number_words
        return "" if value is None else words(value) + (f" of {count:.0f}" if count else "")

    def expects(self, names: Iterable[str]) -> bool:
        """Whether one of these scores is known beforehand."""
        return any(self.expected(name) for name in names)

    @property
    def score_names(self) -> list[str]:
        """All scores of driver or baseline."""
        return list(dict.fromkeys([*self.scores("driver"), *self.scores("baseline")]))[:MOST_ROWS]

    @property
    def quarters(self) -> list[float]:
        """Medians of driver over baseline in the quarters of the run; empty where there are too few rounds."""
        ratios, quarter = self.ratios, len(self.pairs) // 4
        if quarter < 2:
            return []
        return [median(ratios[n * quarter : (n + 1) * quarter]) for n in range(3)] + [median(ratios[-quarter:])]

    @property
    def ratios(self) -> list[float]:
        """Driver over baseline by round."""
        return [mine / base for mine, base in self.pairs]

    @property
    def drift(self) -> tuple[float, float]:
        """Change over the run, and the chance of such a trend where there is none."""
        found = drift(self.ratios)
        return found.change, found.p

    @property
    def accumulation(self) -> list[Mapping[str, Any]]:
        """Operations with their errors, in order."""
        return [one for one in listed(self.row.get("accumulation")) if isinstance(one, dict)]

    @property
    def ranking(self) -> list[Mapping[str, Any]]:
        """Operations by what each does to the result, worst first."""
        found = [one for one in self.accumulation if real(one.get("effect")) is not None]
        return sorted(found, key=lambda one: -(real(one.get("effect")) or 0.0))

    @property
    def charts(self) -> dict[str, Any]:
        """What its charts are drawn from."""
        mine, base = (side.latency if side else () for side in (self.driver, self.baseline))
        return {
            "distribution": page_charts.distribution(mine, base),
            "rounds": page_charts.rounds(self.ratios),
            "accumulation": page_charts.accumulation(self.accumulation),
        }


ERROR_NAMES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "rms": lambda values: sorted(values)[len(values) // 2],
    "mean": lambda values: sum(values) / len(values),
    "lowest": min,
    "highest": max,
}


# --- rows to views ----------------------------------------------------------------------------------------------------


def views(run: Run, rows: Sequence[Mapping[str, Any]], known: Mapping[str, tuple[str, str]]) -> list[ModelView]:
    """All models of a run, by slot; those that were to run and have no line of measurements as well.

    Args:
        run: plan and records.
        rows: lines of measurements.
        known: slot and reality by name as ids have it, for models without a line.
    """
    found, seen = [], set()
    for row in rows:
        seen.add(_key(origin_of(row["model"], row["tier"], ASPECTS[0]).batch))
        found.append(_view(run, row))
    batches = [*table(run.plan.get("batches")), *(record.batch for record in run.records.values())]
    keys = dict.fromkeys(key for key in map(_key, map(str, batches)) if key is not None)
    for name, tier in (key for key in keys if key not in seen):
        slot, reality = known.get(name, (OTHER, ""))
        found.append(ModelView(name, tier, slot, reality, _aspects(run, name, tier)))
    places = {key: place for place, key in enumerate(keys)}

    def order(view: ModelView) -> tuple[int, int]:
        key = _key(origin_of(view.model, view.tier, ASPECTS[0]).batch)
        return SLOTS.index(view.slot), places.get(key, len(places)) if key else len(places)

    return sorted(found, key=order)


def _key(batch: str) -> tuple[str, str] | None:
    """Name and tier of a batch of records; names hold no hyphen in ids, tiers may."""
    suite, _, rest = batch.partition("-")
    name, _, rest = rest.partition("-")
    tier, _, aspect = rest.rpartition("-")
    return (name, tier) if suite == "MLTS" and aspect in ASPECTS else None


def _view(run: Run, row: Mapping[str, Any]) -> ModelView:
    name, tier, slot = str(row["model"]), str(row["tier"]), row.get("slot")
    sides = [table(row.get(side)) for side in ("driver", "baseline")]
    mine, base = (Side(side, times(side.get("latency"))) if side else None for side in sides)
    pairs = [times(pair) for pair in listed(sides[0].get("pairs")) if isinstance(pair, list)]
    return ModelView(
        model=name,
        tier=tier,
        slot=slot if slot in SLOTS else OTHER,
        reality=str(row.get("reality") or ""),
        aspects=_aspects(run, name, tier),
        row=row,
        driver=mine,
        baseline=base,
        pairs=[(pair[0], pair[1]) for pair in pairs if len(pair) == 2],
    )


def _aspects(run: Run, name: str, tier: str) -> dict[str, Aspect]:
    found = {}
    for aspect in ASPECTS:
        record = run.records.get(f"{origin_of(name, tier, aspect).batch}-0")
        found[aspect] = Aspect(aspect, NOT_RUN if record is None else outcome(aspect, record), record)
    return found


def outcome(aspect: str, record: Record) -> str:
    """What a record says of a driver beside its baseline.

    A pass says no more than that the driver is not surely worse; that it is not worse takes the second test.
    """
    verdict, numbers = record.verdict, table(record.numbers)
    if verdict in (Verdict.NOT_SUPPORTED.value, Verdict.NOT_APPLICABLE.value):
        return UNSUPPORTED
    if verdict == Verdict.NOT_RUN.value:
        return NOT_RUN
    if verdict == Verdict.POOR.value or (verdict == Verdict.FAIL.value and record.cause == Cause.VALUE.value):
        return WORSE
    if verdict in (*DRIVER_FAULTS, Verdict.INTERNAL.value):
        return FAILED
    if aspect == STABILITY:
        change = real(numbers.get("change over the run"))
        return NOT_WORSE if change is not None and change <= MARGIN else UNDECIDED
    chance = real(numbers.get("p not worse"))
    return NOT_WORSE if chance is not None and chance <= ALPHA else UNDECIDED
