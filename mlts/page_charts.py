"""What the charts of the benchmark's page are drawn from: few numbers, however many were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from mlts.statistics import MARGIN
from reports import charts
from reports.tables import real

BINS = 64  # of a histogram
POINTS = 300  # of a line


def distribution(driver: Sequence[float], baseline: Sequence[float]) -> dict[str, list[float | None]] | None:
    """Shares of executions by latency, on an axis that driver and baseline share.

    The axis is logarithmic: a driver may be many times as slow as the baseline, and outliers stay in.

    Args:
        driver: latencies in seconds, above 0.
        baseline: the same.

    Returns:
        `edges` of the bins as decimal logarithms of milliseconds, and per cent for each bin; None without latencies.
    """
    every = np.asarray([*driver, *baseline], np.float64) * 1000
    if not len(every):
        return None
    low, high = math.log10(every.min()), math.log10(every.max())
    if high - low < 0.01:  # all but equal: a bin of a thousandth would make a pattern of the clock's steps
        low, high = low - 0.005, high + 0.005
    edges = np.linspace(low, high, BINS + 1)
    found = {"edges": charts.rounded(edges.tolist())}
    for name, values in (("driver", driver), ("baseline", baseline)):
        if values:
            # The ends are rounded logarithms of values that must fall inside.
            logs = np.clip(np.log10(np.asarray(values, np.float64) * 1000), low, high)
            found[name] = charts.rounded((np.histogram(logs, edges)[0] * (100 / len(values))).tolist())
    return found


def rounds(ratios: Sequence[float]) -> dict[str, Any] | None:
    """Driver over baseline by round; medians of neighbours where there are more than `POINTS`."""
    if len(ratios) < 2:
        return None
    parts = list(charts.parts_of(len(ratios), POINTS))
    return {
        "round": [part[len(part) // 2] + 1 for part in parts],
        "ratio": charts.rounded([median(ratios[part.start : part.stop]) for part in parts]),
        "margin": 1 + MARGIN,
    }


def accumulation(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Error and allowed error by position in the model; the largest of neighbours where there are too many."""
    if len(steps) < 2:
        return None
    found: dict[str, Any] = {"number": [], "operation": [], "error": [], "allowed": []}
    for part in charts.parts_of(len(steps), POINTS):
        worst = max((steps[place] for place in part), key=lambda step: _size(step.get("error")))
        number = _size(worst.get("number"), float(part[0]))
        found["number"].append(number if abs(number) < math.inf else part[0])
        found["operation"].append(str(worst.get("operation", ""))[:40])
        for name in ("error", "allowed"):
            size = _size(worst.get(name))
            found[name].append(float(f"{size:.{charts.DIGITS}g}") if 0 < size < math.inf else None)
    return found


def _size(value: object, lacking: float = 0.0) -> float:
    """A number for ordering: what is no number counts as `lacking`, NaN as infinite."""
    found = real(value)
    if found is None:
        return lacking
    return math.inf if math.isnan(found) else found
