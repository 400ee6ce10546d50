"""What measured numbers carry: percentiles with their intervals, paired tests against a baseline, warm-up and drift.

No distribution is assumed: order statistics for percentiles, ranks of signed differences for pairs, concordant pairs
for trends. Latencies have long tails, and what a busy machine does to a run is no bell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from statistics import NormalDist

import numpy as np

from nnhal.types import Array
from reports.paired import Interval

ALPHA = 0.001  # of wrongly calling a driver worse, or not worse: one in a thousand verdicts
CONFIDENCE = 0.99  # of intervals
ABOVE = 0.01  # chance that fewer than two values lie above a percentile, at the least count for it
EXACT = 60  # pairs up to which ranks are counted out; beyond, their sum is nearly normal
WARM = 0.05  # by which the first values must lie above the rest to be taken for warming up
MOST_WARM = 0.5  # share of values that may be warm-up
MARGIN = 0.05  # by which a driver may be slower, or less exact, than the baseline before it is called worse


# --- percentiles ------------------------------------------------------------------------------------------------------


@cache
def least_count(percentile: float) -> int:
    """Values that a percentile needs: then two lie above it but for one time in a hundred (64 for p90, 662 for p99)."""
    inside = percentile / 100
    for count in itertools.count(2):
        if inside**count + count * (1 - inside) * inside ** (count - 1) <= ABOVE:
            return count
    raise AssertionError


def percentile(values: Sequence[float], at: float) -> Interval:
    """A percentile (0 to 100) with the interval between two order statistics.

    Args:
        values: at least one.
        at: which percentile.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    count, share = len(ordered), at / 100
    below = _binomial_cdf(count, share)
    tail = (1 - CONFIDENCE) / 2
    # The k-th smallest value (from 1) lies above the percentile with the chance that fewer than k values lie below it.
    low = int(np.searchsorted(below, tail, side="right")) - 1  # P(at most low values below) <= tail
    high = int(np.searchsorted(below, 1 - tail)) + 1
    return Interval(
        float(np.percentile(ordered, at)),
        float(ordered[low]) if 0 <= low < count else None,
        float(ordered[high]) if high < count else None,
        count,
    )


def _binomial_cdf(count: int, share: float) -> Array:
    """P(X <= k) for k = 0 .. count."""
    k = np.arange(count + 1)
    steps = np.log(np.arange(1, count + 1, dtype=np.float64))
    factorial = np.concatenate(([0.0], np.cumsum(steps)))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = factorial[-1] - factorial[k] - factorial[count - k]
        logs = logs + k * math.log(share) + (count - k) * math.log1p(-share)
    chances: Array = np.minimum(np.cumsum(np.exp(logs)), 1.0)
    return chances


# --- pairs ------------------------------------------------------------------------------------------------------------


class Comparison(Enum):
    """What a paired test says of a driver beside its baseline."""

    WORSE = "worse"
    NOT_WORSE = "not worse"
    UNDECIDED = "undecided"  # too few pairs, or too close to the margin


@dataclass(frozen=True)
class Paired:
    """A driver beside its baseline.

    Attributes:
        ratio: driver's number over the baseline's; the median of the averages of all pairs of ratios, in logarithms.
        p_worse: chance of ranks like these if the ratio were at the margin or better.
        p_not_worse: chance of them if it were at the margin or worse.
    """

    ratio: Interval
    p_worse: float
    p_not_worse: float
    margin: float

    @property
    def verdict(self) -> Comparison:
        """By the signed-rank test at the level `ALPHA`, each side for itself."""
        if self.p_worse <= ALPHA:
            return Comparison.WORSE
        return Comparison.NOT_WORSE if self.p_not_worse <= ALPHA else Comparison.UNDECIDED


def compare_pairs(pairs: Sequence[tuple[float, float]]) -> Paired:
    """Compares pairs of a driver's number and the baseline's."""
    return compare([ours for ours, _ in pairs], [theirs for _, theirs in pairs])


def compare(driver: Sequence[float], baseline: Sequence[float], margin: float = MARGIN) -> Paired:
    """Compares numbers taken in pairs, of which less is better.

    Args:
        driver: numbers above 0.
        baseline: as many.
        margin: by which the driver's may be larger.
    """
    logs = np.log(np.asarray(driver, np.float64)) - np.log(np.asarray(baseline, np.float64))
    shifted = logs - math.log1p(margin)
    return Paired(_shift(logs), _signed_rank(shifted), _signed_rank(-shifted), margin)


def _signed_rank(values: Array) -> float:
    """Chance that the ranks of positive values sum up to what they do, or more, where the middle is 0 (Wilcoxon)."""
    values = values[values != 0]
    count = len(values)
    if not count:
        return 1.0
    sizes = np.abs(values)
    _, place, times = np.unique(sizes, return_inverse=True, return_counts=True)
    last = np.cumsum(times)
    ranks = (last - (times - 1) / 2)[place]
    total = float(ranks[values > 0].sum())
    if count <= EXACT and len(times) == count:
        ways = _rank_sums(count)
        return float(ways[round(total) :].sum())
    mean = count * (count + 1) / 4
    spread = math.sqrt(float((ranks**2).sum()) / 4)
    return 1 - NormalDist().cdf((total - mean - 0.5) / spread)


@cache
def _rank_sums(count: int) -> Array:
    """Chance of each sum of ranks 1 .. count, each of which is in it or not."""
    ways = np.ones(1)
    for rank in range(1, count + 1):
        longer = np.zeros(len(ways) + rank)
        longer[: len(ways)] += ways / 2
        longer[rank:] += ways / 2
        ways = longer
    return ways


def _shift(logs: Array) -> Interval:
    """The middle of the values, as a ratio, with the interval that the signed-rank test does not refuse."""
    count = len(logs)
    rows, columns = np.triu_indices(count)
    averages = np.sort((logs[rows] + logs[columns]) / 2)
    tail = (1 - CONFIDENCE) / 2
    if count <= EXACT:
        cut = int(np.searchsorted(np.cumsum(_rank_sums(count)), tail)) - 1
    else:
        spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        cut = math.floor(count * (count + 1) / 4 + NormalDist().inv_cdf(tail) * spread)
    bounded = 0 <= cut < len(averages) // 2
    return Interval(
        math.exp(float(np.median(averages))),
        math.exp(float(averages[cut])) if bounded else None,
        math.exp(float(averages[-1 - cut])) if bounded else None,
        count,
    )


# --- time -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drift:
    """How numbers change over a run.

    Attributes:
        change: the last quarter's median over the first quarter's, less 1.
        p: chance of a trend like this, or a stronger one either way, where there is none.
        drifts: the trend is sure at the level `ALPHA`, and the change is beyond the margin.
    """

    change: float
    p: float
    drifts: bool


def drift(values: Sequence[float], margin: float = MARGIN) -> Drift:
    """Whether numbers above 0, in the order in which they were taken, rise or fall (Mann and Kendall's test)."""
    taken = np.asarray(values, np.float64)
    count = len(taken)
    if count < 8:  # quarters of fewer are single values
        return Drift(0.0, 1.0, False)
    signs = np.sign(taken[None, :] - taken[:, None])
    total = float(np.triu(signs, 1).sum())
    _, times = np.unique(taken, return_counts=True)
    tied = float((times * (times - 1) * (2 * times + 5)).sum())
    spread = math.sqrt(max(count * (count - 1) * (2 * count + 5) - tied, 1.0) / 18)
    p = 2 * (1 - NormalDist().cdf(max(abs(total) - 1, 0.0) / spread))
    quarter = count // 4
    change = float(np.median(taken[-quarter:]) / np.median(taken[:quarter])) - 1
    return Drift(change, p, p <= ALPHA and abs(change) > margin)


def warm_up(values: Sequence[float]) -> int:
    """How many values at the start belong to warming up: they lie above what the second half settles at.

    The first value within `WARM` of the second half's median, or below, ends it.
    """
    taken = np.asarray(values, np.float64)
    if len(taken) < 4:
        return 0
    settled = float(np.median(taken[len(taken) // 2 :])) * (1 + WARM)
    inside = np.flatnonzero(taken <= settled)
    return int(min(inside[0] if len(inside) else 0, int(len(taken) * MOST_WARM)))


def outliers(values: Sequence[float]) -> list[int]:
    """Places of values far above the rest: beyond the upper quartile by three times the distance of the quartiles."""
    taken = np.asarray(values, np.float64)
    low, high = np.percentile(taken, (25, 75)) if len(taken) else (0.0, 0.0)
    return [int(place) for place in np.flatnonzero(taken > high + 3 * (high - low))] if high > low else []
