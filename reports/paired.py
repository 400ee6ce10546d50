"""What two sets of measured times tell of each other, without a distribution assumed: medians with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

import numpy as np

from nnhal.types import Array

CONFIDENCE = 0.99
EXACT = 500  # values up to which ranks are counted out; beyond, their number is nearly normal
DRAWS = 2000  # of the bootstrap
TOGETHER = 1 << 20  # values that are drawn at a time
FEWEST = 12  # values of each run, below which nothing bounds a bootstrap
SEED = 20240229  # the same runs give the same interval, always


@dataclass(frozen=True)
class Interval:
    """A number and where it lies with some confidence; a limit is None where too few values bound it."""

    value: float
    low: float | None
    high: float | None
    count: int

    @property
    def bounded(self) -> bool:
        """Whether both limits are known."""
        return self.low is not None and self.high is not None

    @property
    def width(self) -> float:
        """Half of the interval's width as a share of the value; infinite where it is not bounded."""
        if self.low is None or self.high is None or not self.value:
            return math.inf
        return (self.high - self.low) / 2 / abs(self.value)


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median with the interval between two order statistics, which holds whatever the values' distribution is.

    Of `n` values the number below the median is binomial; the k-th smallest and the k-th largest enclose it unless
    fewer than k values lie on one side.

    Args:
        values: at least one.
        confidence: of the interval.
    """
    ordered = sorted(values)
    count = len(ordered)
    cut = _rank(count, (1 - confidence) / 2)
    if cut < 1:
        return Interval(median(ordered), None, None, count)
    return Interval(median(ordered), ordered[cut - 1], ordered[count - cut], count)


def _rank(count: int, tail: float) -> int:
    """The largest k for which fewer than k of `count` values lie below the median with a chance of at most `tail`."""
    if count > EXACT:
        return max(math.floor(count / 2 + NormalDist().inv_cdf(tail) * math.sqrt(count) / 2), 0)
    below, rank = 0.0, 0
    for hits in range(count // 2):
        below += math.comb(count, hits) / 2**count
        if below > tail:
            break
        rank = hits + 1
    return rank


def ratio_interval(before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The ratio of two runs' medians, `after` over `before`, with an interval by a bootstrap of blocks.

    Neighbouring measurements of a run are alike, so blocks of neighbours are drawn, as long as the cube root of their
    number; the generator is seeded. The interval covers what varies within the runs, and not what differs from one
    start of a driver to the next.

    Args:
        before: numbers above 0, in the order in which they were taken.
        after: the same of the other run.
        confidence: of the interval.
    """
    old, new = (np.log(np.asarray(values, np.float64)) for values in (before, after))
    value = math.exp(float(np.median(new)) - float(np.median(old)))
    count = min(len(old), len(new))
    if count < FEWEST:
        return Interval(value, None, None, count)
    generator = np.random.default_rng(SEED)
    shifts = _medians(new, generator) - _medians(old, generator)
    low, high = np.quantile(shifts, ((1 - confidence) / 2, (1 + confidence) / 2))
    return Interval(value, math.exp(float(low)), math.exp(float(high)), count)


def _medians(values: Array, generator: np.random.Generator) -> Array:
    """Medians of `DRAWS` samples made of blocks of neighbours, the last value beside the first."""
    count = len(values)
    length = max(1, round(count ** (1 / 3)))
    drawn: list[Array] = []
    left, most = DRAWS, max(1, TOGETHER // count)
    while left > 0:
        some = min(left, most)
        starts = generator.integers(0, count, (some, -(-count // length)))
        places = (starts[:, :, None] + np.arange(length)) % count
        drawn.append(np.median(values[places.reshape(some, -1)[:, :count]], axis=1))
        left -= some
    return np.concatenate(drawn)
