"""What measured numbers carry, against SciPy and against draws from known distributions. Seeds are in the tests."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from mlts import statistics
from mlts.statistics import Comparison, compare, compare_pairs, drift, least_count, outliers, percentile, warm_up


def test_the_least_counts_are_those_of_the_rule() -> None:
    # P(fewer than two of n values above the percentile) <= 1 %, by SciPy's binomial distribution.
    for at in (50, 75, 90, 95, 99):
        count = least_count(at)
        assert stats.binom.cdf(1, count, 1 - at / 100) <= 0.01 < stats.binom.cdf(1, count - 1, 1 - at / 100)
    assert (least_count(90), least_count(99)) == (64, 662)


@pytest.mark.parametrize(("count", "at"), [(30, 50), (64, 90), (200, 90), (662, 99)])
def test_intervals_of_percentiles_hold_what_they_promise(count: int, at: float) -> None:
    rng = np.random.default_rng(count)
    right, inside, tries = -math.log(1 - at / 100), 0, 1500
    for _ in range(tries):
        found = percentile(rng.exponential(size=count), at)
        inside += (found.low is None or found.low <= right) and (found.high is None or right <= found.high)
    assert inside / tries >= 0.985  # 99 % is promised


def test_few_values_bound_no_percentile_from_above() -> None:
    found = percentile([1.0, 2.0, 3.0], 99)
    assert found.high is None
    assert found.width == math.inf


def test_chances_of_ranks_are_those_of_scipy() -> None:
    rng = np.random.default_rng(5)
    for count in (5, 12, 30):
        values = rng.normal(0.2, 1, count)
        due = stats.wilcoxon(values, alternative="greater", method="exact").pvalue
        assert statistics._signed_rank(values) == pytest.approx(due, rel=1e-9)
    many = rng.normal(0.1, 1, 300)
    due = stats.wilcoxon(many, alternative="greater", method="asymptotic", correction=True).pvalue
    assert statistics._signed_rank(many) == pytest.approx(due, rel=1e-6)


def test_the_middle_of_ratios_lies_in_its_interval() -> None:
    rng = np.random.default_rng(8)
    inside = 0
    for _ in range(600):
        pairs = [(math.exp(value), 1.0) for value in rng.normal(0.1, 0.05, 16)]
        ratio = compare_pairs(pairs).ratio
        assert ratio.low is not None
        assert ratio.high is not None
        inside += ratio.low <= math.exp(0.1) <= ratio.high
    assert inside / 600 > 0.97


def test_a_driver_is_called_worse_beyond_the_margin_alone() -> None:
    rng = np.random.default_rng(3)
    base = rng.lognormal(0, 0.05, 40)
    noise = rng.lognormal(0, 0.02, 40)
    assert compare(base * noise * 1.2, base).verdict == Comparison.WORSE
    assert compare(base * noise, base).verdict == Comparison.NOT_WORSE
    assert compare(base * noise * 0.5, base).verdict == Comparison.NOT_WORSE
    assert compare(base[:3] * 1.2, base[:3]).verdict == Comparison.UNDECIDED  # 1 in 8 at best
    assert compare(base, base).verdict == Comparison.NOT_WORSE


def test_equal_drivers_are_hardly_ever_called_worse() -> None:
    rng = np.random.default_rng(9)
    worse = 0
    for _ in range(1500):
        pair = rng.lognormal(0, 0.1, (2, 30))
        worse += compare(pair[0] * 1.05, pair[1]).verdict == Comparison.WORSE  # at the margin itself
    assert worse <= 6  # one in a thousand


def test_drift_is_a_trend_and_a_change() -> None:
    rng = np.random.default_rng(4)
    noise = rng.lognormal(0, 0.02, 60)
    rising = noise * np.linspace(1, 1.3, 60)
    found = drift(rising)
    assert found.drifts
    assert found.change == pytest.approx(0.23, abs=0.05)
    due = stats.kendalltau(np.arange(60), rising).pvalue
    assert found.p == pytest.approx(due, rel=0.2, abs=1e-12)
    assert not drift(noise).drifts
    assert not drift(noise * np.linspace(1, 1.02, 60)).drifts  # sure, but below the margin
    assert not drift([1.0, 2.0, 3.0]).drifts
    assert sum(drift(rng.lognormal(0, 0.2, 30), margin=0.0).drifts for _ in range(1500)) <= 6


def test_warm_up_and_outliers() -> None:
    assert warm_up([3.0, 2.0, 1.5, 1.01, 1.0, 1.0, 1.0, 1.0]) == 3
    assert warm_up([1.0] * 8) == 0
    assert warm_up(list(range(10, 0, -1))) <= 5
    values = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 9.0]
    assert outliers(values) == [6]
    assert outliers([1.0] * 5) == []
    assert outliers([]) == []


def test_all_sums_of_ranks_are_counted() -> None:
    ways = statistics._rank_sums(5)
    counted = np.zeros(16)
    for signs in itertools.product((0, 1), repeat=5):
        counted[sum(rank for rank, sign in zip(range(1, 6), signs, strict=True) if sign)] += 1 / 32
    assert ways == pytest.approx(counted)
