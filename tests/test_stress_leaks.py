"""Leaks: slopes against SciPy's, series that grow and series that only look so."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness.isolation import Sample
from harness.verdict import Cause
from stress.evidence import Evidence, Timed
from stress.leaks import HOUR, MIB, WINDOWS, Z, floors, judge_leak, quantile, slope, slope_numbers
from stress.result import Ending
from stress.scene import Scene

SCENE = Scene("soak", "light", "", (), 600.0, judges={"leak": {}})
RSS = 80 << 20


def evidence(
    rss: np.ndarray, seconds: float = 600.0, descriptors: np.ndarray | None = None, threads: int = 4
) -> Evidence:
    times = np.linspace(0, seconds, len(rss))
    held = np.full(len(rss), 9) if descriptors is None else descriptors
    found = Evidence(seconds=seconds)
    found.samples = [
        Timed(float(at), Sample(int(used), int(number), threads, 0.1), 0, n)
        for n, (at, used, number) in enumerate(zip(times, rss, held, strict=True))
    ]
    return found


@pytest.mark.parametrize("freedom", [6, 10, 22, 100])
def test_the_quantile_is_that_of_student(freedom: int) -> None:
    assert quantile(freedom) == pytest.approx(stats.t.ppf(stats.norm.cdf(Z), freedom), rel=0.02)


def test_the_slope_is_that_of_a_regression() -> None:
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 500, 24))
    values = 5 + 0.01 * times + rng.normal(0, 0.3, 24)
    found, due = slope(times, values), stats.linregress(times, values)
    assert found is not None
    assert found.value == pytest.approx(due.slope * HOUR)
    room = stats.t.ppf(stats.norm.cdf(Z), 22) * due.stderr * HOUR
    assert found.high - found.value == pytest.approx(room, rel=0.01)
    assert found.low == pytest.approx(found.value - room, rel=0.01)


def test_floors_are_the_least_of_each_window() -> None:
    times = np.arange(240.0)
    values = np.where(times % 10 == 7, 1.0, 50.0)
    middles, least = floors(times, values)
    assert len(middles) == WINDOWS
    assert set(least) == {1.0}


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_ten_mib_an_hour_are_found_in_ten_minutes(noise: float) -> None:
    rng = np.random.default_rng(1)
    times = np.linspace(0, 600, 1200)
    rss = RSS + MIB * (10 * times / HOUR + noise * rng.exponential(size=1200))
    found = judge_leak(SCENE, evidence(rss), {})
    assert found is not None
    assert (found.ending, found.cause) == (Ending.FAILURE, Cause.LEAK)
    assert "MiB of memory" in found.message
    assert slope_numbers(evidence(rss))["rss_per_hour"] == pytest.approx(10, rel=0.15)


@pytest.mark.parametrize("seed", range(20))
def test_what_settles_is_no_leak(seed: int) -> None:
    """Allocators take memory in steps, and more of them at first; garbage comes and goes."""
    rng = np.random.default_rng(seed)
    times = np.linspace(0, 600, 1200)
    settling = 6 * (1 - np.exp(-times / 60))
    step = np.where(times > rng.uniform(100, 500), rng.uniform(0.2, 1.0), 0.0)
    garbage = 3 * ((times / rng.uniform(3, 30)) % 1)
    rss = RSS + MIB * (settling + step + garbage + 0.05 * rng.standard_normal(1200))
    assert judge_leak(SCENE, evidence(rss), {}) is None


def test_descriptors_are_counted() -> None:
    held = 9 + np.arange(1200) // 60
    found = judge_leak(SCENE, evidence(np.full(1200, RSS), descriptors=held), {})
    assert found is not None
    assert "file descriptors" in found.message


def test_few_samples_say_nothing() -> None:
    assert judge_leak(SCENE, evidence(RSS + MIB * np.arange(8.0)), {}) is None
    assert slope_numbers(evidence(np.full(3, RSS))) == {}
