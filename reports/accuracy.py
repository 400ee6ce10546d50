"""How accurate a driver is, operation by operation and type by type: observed errors over what is allowed."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.record import Record
from reports.tables import column, is_behaviour, largest
from reports.text import number

# Bounds of the histogram's bars, in units of what is allowed; before the first is what is exact, behind 1 what fails.
EDGES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
BARS = len(EDGES) + 2
_WIDTH, _STEP, _HEIGHT = 5, 6, 20  # of a bar, from one to the next, of the highest
_SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Profile:
    """Observed errors of an operation in one type, in units of what is allowed.

    A case counts with the error of its worst element. The quantiles are errors that were observed, and at least the
    stated share of cases lies at or below each.

    Attributes:
        type: a column of the matrix.
        compared: number of cases whose results were compared.
        median, most, nearly: at or below it are one half, 90 % and 99 % of the cases.
        largest: infinite where something differs and nothing may.
        ulp: largest error in units in the last place, or None where no case has one.
        bars: number of cases in each bar of the histogram.
    """

    operation: str
    type: str
    compared: int
    median: float
    most: float
    nearly: float
    largest: float
    ulp: float | None
    bars: tuple[int, ...]

    @property
    def words(self) -> str:
        """The histogram in words."""
        names = ["exact", *(f"up to {number(edge)}" for edge in EDGES), "above what is allowed"]
        return ", ".join(f"{name}: {count:,}" for name, count in zip(names, self.bars, strict=True) if count)

    @property
    def picture(self) -> Markup:
        """The histogram as a drawing, with its words for who does not see it."""
        top = max(self.bars)
        drawn = [
            f"M{_STEP * place} {_HEIGHT}v-{max(_HEIGHT * count / top, 1):.3g}h{_WIDTH}V{_HEIGHT}z" if count else ""
            for place, count in enumerate(self.bars)
        ]
        size = f'width="{_STEP * BARS}" height="{_HEIGHT}" viewBox="0 0 {_STEP * BARS} {_HEIGHT}"'
        over = f'<path class="over" d="{drawn[-1]}"/>' if drawn[-1] else ""
        return Markup(f'<svg class="bars" {size} role="img"><title>{self.words}</title>'
                      f'<path d="{"".join(drawn[:-1])}"/>{over}</svg>')  # fmt: skip


def profiles(records: Iterable[Record]) -> list[Profile]:
    """The accuracy of each operation in each type, by name; behaviour is no operation."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    ulps: dict[tuple[str, str], list[object]] = defaultdict(list)
    for record in records:
        error = largest((record.error,))
        if error is not None and not is_behaviour(record.batch):
            key = record.operation, column(record.signature)
            errors[key].append(abs(error))
            ulps[key].append(record.ulp)
    return [_profile(*key, sorted(errors[key]), largest(ulps[key])) for key in sorted(errors)]


def _profile(operation: str, name: str, ordered: Sequence[float], ulp: float | None) -> Profile:
    count = len(ordered)
    median, most, nearly = (ordered[max(math.ceil(share * count) - 1, 0)] for share in _SHARES)
    bars = [0] * BARS
    for error in ordered:
        bars[0 if not error else 1 + bisect.bisect_left(EDGES, error)] += 1
    return Profile(operation, name, count, median, most, nearly, ordered[-1], ulp, tuple(bars))
