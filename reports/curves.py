"""What a fuzzing run came to as it went on, told by progress.jsonl of its folder: rate, coverage, corpus, findings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.record import Run
from reports import charts, sections

PROGRESS = "progress.jsonl"
POINTS = 200
COLUMNS = {"inputs": "inputs", "edges": "places reached", "corpus": "inputs kept", "findings": "new findings"}


@dataclass(frozen=True)
class Curve:
    """Numbers over time.

    Attributes:
        moments: seconds, ascending; then a number for each of `COLUMNS`, None where one is not known.
        damaged: lines that could not be read.
    """

    moments: Sequence[tuple[float, Sequence[float | None]]] = field(default_factory=list)
    damaged: int = 0

    def _column(self, name: str, places: Sequence[int]) -> list[float | None]:
        column = list(COLUMNS).index(name)
        return [self.moments[place][1][column] for place in places]

    @property
    def chart(self) -> dict[str, Any] | None:
        """Data of its chart; None where there is too little for one."""
        places = [part[-1] for part in charts.parts_of(len(self.moments), POINTS)]
        seconds = [self.moments[place][0] for place in places]
        panels: list[tuple[str, dict[str, list[float | None]]]] = [
            (label, {label: self._column(name, places)})
            for name, label in COLUMNS.items()
            if name in ("edges", "corpus")
        ]
        rates: list[float | None] = [None]
        inputs = self._column("inputs", places)
        for (before, first), (after, last) in itertools.pairwise(zip(seconds, inputs, strict=True)):
            rates.append(None if first is None or last is None or last < first else (last - first) / (after - before))
        panels.insert(0, ("inputs a second", {"inputs a second": rates}))
        return charts.timeline(seconds, "seconds", panels)

    @property
    def quarters(self) -> tuple[list[float], list[tuple[str, list[float | None]]]]:
        """Seconds at the start, after each quarter of the notes, and at the end; and what was come to by then."""
        places = charts.quarters(len(self.moments))
        return [self.moments[place][0] for place in places], [
            (label, self._column(name, places)) for name, label in COLUMNS.items()
        ]


def curve_of(run: Run) -> Curve:
    """The curve of a run's folder; an empty one where there is none. Of two lines of one moment the later counts."""
    found: dict[float, list[float | None]] = {}
    damaged = 0
    for row in sections.rows_of(run.folder / PROGRESS):
        at = sections.amount_of(row.get("seconds")) if row is not None else None
        if row is None or at is None:
            damaged += 1
            continue
        found[at] = [sections.amount_of(row.get(name)) for name in COLUMNS]
    return Curve(sorted(found.items()), damaged)
