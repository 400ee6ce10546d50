"""Numbers of a run's files as cells of the benchmark's tables; what is no number is left out, and nothing is raised."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlts.statistics import least_count, percentile
from reports import text
from reports.tables import real

SHORTEST, LONGEST = 1e-12, 1e12  # seconds


@dataclass(frozen=True)
class Cell:
    """A number as tables show it.

    Attributes:
        range: where it lies with the confidence of intervals, or empty.
        note: what must be known beside it, or empty.
        value: for sorting; None where there is no number.
    """

    text: str = "–"
    range: str = ""
    note: str = ""
    value: float | None = None


def table(value: object) -> Mapping[str, Any]:
    """A table of a row; empty where there is none."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> Sequence[Any]:
    """A list of a row; empty where there is none."""
    return value if isinstance(value, (list, tuple)) else ()


def times(value: object) -> list[float]:
    """The durations of a list; what is none that can be (and be divided) is left out."""
    return [found for found in map(real, listed(value)) if found is not None and SHORTEST < found < LONGEST]


def time_cell(values: Sequence[float], at: float) -> Cell:
    """A percentile in milliseconds, where there are enough values for it."""
    if not values:
        return Cell()
    if len(values) < least_count(at):
        return Cell("too few", note=f"{len(values):,} of {least_count(at):,}")
    found = percentile(values, at)
    return Cell(milliseconds(found.value), _range(found.low, found.high, milliseconds), value=found.value)


def interval_cell(
    value: object, words: Callable[[float], str], bounds: Callable[[float], str] | None = None, *, counted: bool = False
) -> Cell:
    """An interval of a row: value, low, high, count.

    Args:
        value: what the row holds.
        words: writes the value.
        bounds: writes the limits, where otherwise than the value.
        counted: whether the count is shown.
    """
    numbers = [real(one) for one in listed(value)]
    if len(numbers) != 4 or numbers[0] is None:
        return Cell()
    count = numbers[3]
    note = f"of {count:,.0f}" if counted and count is not None and math.isfinite(count) else ""
    return Cell(words(numbers[0]), _range(numbers[1], numbers[2], bounds or words), note, numbers[0])


def _range(low: float | None, high: float | None, words: Callable[[float], str]) -> str:
    if low is None and high is None:
        return ""
    return f"{'?' if low is None else words(low)} to {'?' if high is None else words(high)}"


def milliseconds(seconds: float) -> str:
    """A time for tables in milliseconds."""
    return text.number(1000 * seconds, 4)


def number_words(value: float) -> str:
    """A number of any kind."""
    return text.number(value, 3)


def times_words(value: float) -> str:
    """A ratio."""
    return f"{text.number(value, 3)} ×"


def percent_words(value: float) -> str:
    """A share in per cent."""
    return f"{text.number(100 * value, 3)} %"


def is_share(name: str) -> bool:
    """Whether a score is a share, for per cent."""
    return name.startswith("top ") or "error rate" in name
