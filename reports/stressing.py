"""The section of stress runs: how each scene ended, and what its driver used and did over time. Reads a run's folder.

Records of scenes occur in sessions of pytest, too. What went on over time is in samples.jsonl of `python -m stress`:
for each scene its id, `marks` (seconds, words) and `samples` (seconds, resident bytes, shared bytes among them,
descriptors, threads, processor seconds, executions so far, seconds that these took one after the other).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from harness.record import Record, Run
from reports import charts, sections, text
from reports.parts import Part
from reports.tables import ENDINGS, ORDER, STRESS, real
from reports.text import count_words

ANCHOR = "stress"
SAMPLES = "samples.jsonl"
COLUMNS = ("rss", "shared", "descriptors", "threads", "cpu", "executions", "working")
POINTS, LEAST, ALL = 160, 20, 8000  # of a timeline at most; that it may have in any case; of all timelines of a page
SCENES = 300  # of all runs on a page, failing ones first where there are more
MARKS = 60  # of a scene
OTHERS = 40  # numbers of a scene besides the usual ones
SIDES = ("driver", "client")
PERCENTILES = {"p50": "latency_p50", "p90": "latency_p90", "p99": "latency_p99", "longest": "latency_max"}
RATE = "executions_per_second"
_SEEN = "seen_after"
_TOLD = {_SEEN, "seconds", "executions", RATE, "working_seconds", *PERCENTILES.values()}
_MIB = 2.0**20
_GROWTH = "_per_hour"
_LABELS = {
    "rss": "resident, MiB",
    "shared": "of it shared, MiB",
    "cpu": "processor seconds",
    "executions": "executions so far",
    "working": "seconds in them",
}


@dataclass(frozen=True)
class Used:
    """How much of a resource was used: at the moments of `Timeline.moments`, least and most."""

    name: str
    then: Sequence[float | None]
    least: float
    most: float


@dataclass(frozen=True)
class Timeline:
    """What was seen of a scene over time.

    Attributes:
        samples: seconds, then values in the order of `COLUMNS`, None where one is not known; ascending.
        marks: seconds, and what happened then.
        unmarked: how many marks there are besides.
    """

    samples: Sequence[tuple[float, Sequence[float | None]]] = ()
    marks: Sequence[tuple[float, str]] = ()
    unmarked: int = 0

    def chart(self, most: int) -> dict[str, Any] | None:
        """Data of its chart, of so many points; of neighbours the most that each resource came to."""
        parts = list(charts.parts_of(len(self.samples), most))
        ends = [self.samples[part[-1]] for part in parts]

        def peaks(name: str, unit: float = 1.0) -> list[float | None]:
            column = COLUMNS.index(name)
            found = ([self.samples[place][1][column] for place in part] for part in parts)
            return [max((value / unit for value in some if value is not None), default=None) for some in found]

        panels = [
            ("MiB", {"resident": peaks("rss", _MIB), "of it shared": peaks("shared", _MIB)}),
            ("executions a second", {"executions a second": _rates(ends)}),
            ("ms", {"mean latency": _latencies(ends)}),
            ("number", {"descriptors": peaks("descriptors"), "threads": peaks("threads")}),
        ]
        return charts.timeline([at for at, _ in ends], "seconds", panels, self.marks)

    @property
    def moments(self) -> list[float]:
        """Seconds of the first sample, of the last one, and of those after each quarter."""
        return [self.samples[place][0] for place in charts.quarters(len(self.samples))]

    @property
    def used(self) -> list[Used]:
        """Of each resource, and the executions so far; memory in MiB."""
        found = []
        for column, name in enumerate(COLUMNS):
            unit = _MIB if name in ("rss", "shared") else 1.0
            values = [None if (value := row[column]) is None else value / unit for _, row in self.samples]
            known = [value for value in values if value is not None]
            if known:
                then = [values[place] for place in charts.quarters(len(values))]
                found.append(Used(_LABELS.get(name, name), then, min(known), max(known)))
        return found


@dataclass(frozen=True)
class Scene:
    """A stress run as the section shows it.

    Attributes:
        chart: data of its timeline, or None.
    """

    record: Record
    anchor: str
    timeline: Timeline
    chart: Mapping[str, Any] | None

    @property
    def ending(self) -> str:
        """SUCCESS, FAILURE, or the verdict itself."""
        return ENDINGS.get(self.record.verdict, self.record.verdict)

    @property
    def side(self) -> str:
        """Whose process failed, as the stage tells; empty where nobody's did."""
        word = str(self.record.stage).partition(",")[0]
        return word if word in SIDES and self.record.bad else ""

    @property
    def step(self) -> str:
        """What it was in; empty where it is not known."""
        return str(self.record.stage).partition(", ")[2] if self.side else ""

    @property
    def seen(self) -> float | None:
        """Seconds after which the failure was seen; None where there is none, or it is not known."""
        at = self.number(_SEEN)
        return at if self.record.bad and at else None

    def number(self, name: str) -> float | None:
        """A number of the record."""
        found = real(sections.mapping_of(self.record.numbers).get(name))
        return found if found is not None and math.isfinite(found) else None

    @property
    def latencies(self) -> dict[str, float | None]:
        """Latency in milliseconds by percentile."""
        found = {label: self.number(name) for label, name in PERCENTILES.items()}
        return {label: None if value is None else 1000 * value for label, value in found.items()}

    @property
    def growth(self) -> list[tuple[str, list[float | None]]]:
        """What grew over the scene: the resource; growth for each hour, and the limits between which it lies."""
        names = [name.removesuffix(_GROWTH) for name in self._others if name.endswith(_GROWTH)]
        ends = (_GROWTH, f"{_GROWTH}_low", f"{_GROWTH}_high")
        return [(_LABELS.get(name, name), [self.number(name + end) for end in ends]) for name in names]

    @property
    def others(self) -> list[tuple[str, float | None]]:
        """What else was measured."""
        return [(name.replace("_", " "), self.number(name)) for name in self._others if _GROWTH not in name]

    @property
    def _others(self) -> list[str]:
        known = [str(name) for name in sections.mapping_of(self.record.numbers) if name not in _TOLD]
        return [name for name in known if self.number(name) is not None][:OTHERS]

    @property
    def detailed(self) -> bool:
        """Whether there is more to show than its row holds."""
        return bool(self.chart or self.timeline.marks or self.timeline.samples or self._others)


@dataclass(frozen=True)
class Stressed:
    """The scenes of a run.

    Attributes:
        endings: number of scenes by how they ended.
        died: number of crashes by whose process it was.
        stray: number of timelines without a record.
        damaged: lines of samples.jsonl that could not be read.
        hidden: number of scenes that are not shown.
    """

    run: Run
    scenes: Sequence[Scene]
    endings: Mapping[str, int] = field(default_factory=dict)
    died: Mapping[str, int] = field(default_factory=dict)
    stray: int = 0
    damaged: int = 0
    hidden: int = 0

    @property
    def problems(self) -> list[str]:
        """What is wrong with the files, in sentences."""
        found = []
        if self.damaged:
            found.append(f"{count_words(self.damaged, 'line', 'lines')} of {SAMPLES} could not be read.")
        if self.stray:
            found.append(f"{count_words(self.stray, 'timeline has', 'timelines have')} no record, and are not shown.")
        if self.hidden:
            found.append(f"{count_words(self.hidden, 'scene', 'scenes')} more stand in the records alone.")
        return found


def parts(runs: Sequence[Run]) -> list[Part]:
    """The section of all stress runs, where there are any."""
    known = [(run, [record for record in run.records.values() if record.operation == STRESS]) for run in runs]
    known = [(run, records) for run, records in known if records]
    if not known:
        return []
    total = sum(len(records) for _, records in known)
    points = max(LEAST, min(POINTS, ALL // total))
    room = max(SCENES // len(known), 1)
    stressed = [
        _stressed(run, records, f"{ANCHOR}-{number}", points, room) for number, (run, records) in enumerate(known, 1)
    ]
    template = sections.environment().get_template("stressing.html")
    body = template.render(
        stressed=stressed, anchor=ANCHOR, endings=_endings(stressed), sides=SIDES, percentiles=PERCENTILES
    )
    return [Part(ANCHOR, "Stress", Markup(body), total, charts=True, styles=(sections.sheet(),))]


def _endings(stressed: Sequence[Stressed]) -> list[str]:
    there = {ending for one in stressed for ending in one.endings}
    usual = ["SUCCESS", "FAILURE", "HANG", "CRASH"]
    return usual + [name for name in ORDER if name in there and name not in usual]


def _stressed(run: Run, records: Sequence[Record], prefix: str, points: int, room: int) -> Stressed:
    timelines, damaged = timelines_of(run)
    shown = records if len(records) <= room else sorted(records, key=lambda record: not record.bad)[:room]
    names = [_name(record) for record in shown]
    found = []
    for record, name, anchor in zip(shown, names, sections.anchors(prefix, names), strict=True):
        timeline = _with_failure(timelines.get(name, Timeline()), record)
        found.append(Scene(record, anchor, timeline, timeline.chart(points)))
    endings = Counter(ENDINGS.get(record.verdict, record.verdict) for record in records)
    died = Counter(str(record.stage).partition(",")[0] for record in records if record.verdict == "CRASH")
    stray = len(set(timelines) - set(map(_name, records)))
    return Stressed(run, found, endings, died, stray, damaged, len(records) - len(shown))


def _name(record: Record) -> str:
    return f"{record.batch}-{record.number}"


def _with_failure(timeline: Timeline, record: Record) -> Timeline:
    """A timeline with the moment at which a failure was seen among its marks."""
    at = sections.amount_of(sections.mapping_of(record.numbers).get(_SEEN))
    if not (record.bad and at and timeline.samples):
        return timeline
    mark = (at, f"{ENDINGS.get(record.verdict, record.verdict)} is seen")
    return replace(timeline, marks=sorted([*timeline.marks, mark], key=lambda one: one[0]))


def timelines_of(run: Run) -> tuple[dict[str, Timeline], int]:
    """What samples.jsonl of a run tells of each scene, and how many lines of it could not be read."""
    found: dict[str, Timeline] = {}
    damaged = 0
    for row in sections.rows_of(run.folder / SAMPLES):
        name = row.get("id") if row is not None else None
        if row is None or not isinstance(name, str):
            damaged += 1
            continue
        marks = [
            (at, text.clip(mark[1], charts.NAME))
            for mark in sections.list_of(row.get("marks"))
            if isinstance(mark, list) and len(mark) >= 2 and (at := sections.amount_of(mark[0])) is not None
        ]
        marks.sort(key=lambda mark: mark[0])
        found[name] = Timeline(_samples(row.get("samples")), marks[:MARKS], max(len(marks) - MARKS, 0))
    return found, damaged


def _samples(value: object) -> list[tuple[float, list[float | None]]]:
    found: dict[float, list[float | None]] = {}
    for sample in sections.list_of(value):
        if not isinstance(sample, list) or not sample:
            continue
        at = sections.amount_of(sample[0])
        values = [sections.amount_of(one) for one in sample[1 : 1 + len(COLUMNS)]]
        if at is not None and any(one is not None for one in values):
            found[at] = values + [None] * (len(COLUMNS) - len(values))
    return sorted(found.items())


def _between(ends: Sequence[tuple[float, Sequence[float | None]]], column: str) -> list[float | None]:
    """By how much a count has grown since the moment before; one that falls tells nothing."""
    place = COLUMNS.index(column)
    found: list[float | None] = [None]
    for (_, first), (_, last) in itertools.pairwise(ends):
        before, after = first[place], last[place]
        found.append(None if before is None or after is None or after < before else after - before)
    return found


def _rates(ends: Sequence[tuple[float, Sequence[float | None]]]) -> list[float | None]:
    """Executions a second between one moment and the next."""
    seconds = [0.0, *(after[0] - before[0] for before, after in itertools.pairwise(ends))]
    return [
        None if done is None else done / passed
        for done, passed in zip(_between(ends, "executions"), seconds, strict=True)
    ]


def _latencies(ends: Sequence[tuple[float, Sequence[float | None]]]) -> list[float | None]:
    """Milliseconds that an execution took between one moment and the next, on average."""
    both = zip(_between(ends, "working"), _between(ends, "executions"), strict=True)
    return [None if working is None or not done else 1000 * working / done for working, done in both]
