"""Whether a process keeps what it should let go: the slope of what it holds over time, with its confidence interval.

One difference between start and end says little: allocators take memory in steps, and keep it. So the run is cut into
windows, the least that was held in each is taken, and a line laid through these. A leak goes on: it must show in the
whole run and in its second half, in most windows, and be faster than a limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.verdict import Cause
from nnhal.types import Array
from stress.evidence import Evidence, Timed
from stress.result import Ending, Result, Side
from stress.scene import Scene

SETTLE = 0.2  # share of the run at its start that does not count
WINDOWS = 24
FEWEST = 8  # windows, below which nothing is said
Z = 3.0902  # of the normal distribution: one in a thousand on one side
RISING = 0.5  # share of windows above the one before
HOUR = 3600.0
MIB = float(1 << 20)


@dataclass(frozen=True)
class Slope:
    """Growth for each hour, with the interval that holds the true one in 998 of 1,000 runs.

    Attributes:
        rise: from the first window to the last one.
        rising: share of windows that are above the one before.
    """

    value: float
    low: float
    high: float
    rise: float
    rising: float


def quantile(freedom: int) -> float:
    """That of Student's distribution for `Z`: Hill's expansion, off by less than 2 % from 6 degrees of freedom on."""
    z = Z
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third


def floors(times: Array, values: Array, windows: int = WINDOWS) -> tuple[Array, Array]:
    """The least value of each window, and the middle of the window; windows without a sample are left out."""
    edges = np.linspace(times[0], times[-1], windows + 1)
    place = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, windows - 1)
    found = [n for n in range(windows) if (place == n).any()]
    middles = (edges[:-1] + edges[1:]) / 2
    return middles[found], np.array([values[place == n].min() for n in found], np.float64)


def slope(times: Array, values: Array) -> Slope | None:
    """The line through points in seconds, as growth for each hour; None for too few."""
    if len(times) < FEWEST:
        return None
    apart = times - times.mean()
    spread = float((apart**2).sum())
    value = float((apart * values).sum()) / spread
    left = values - values.mean() - value * apart
    freedom = len(times) - 2
    error = math.sqrt(float((left**2).sum()) / freedom / spread)
    room = quantile(freedom) * error
    rising = float((np.diff(values) > 0).mean())
    return Slope(value * HOUR, (value - room) * HOUR, (value + room) * HOUR, float(values[-1] - values[0]), rising)


@dataclass(frozen=True)
class Kind:
    """Something that a process can leak.

    Attributes:
        name: in the numbers of a record.
        words: in messages, with the unit.
        unit: what one of it is.
        limit: growth for each hour that is no leak yet, in units.
        least: rise over the run that is no noise, in units.
    """

    name: str
    words: str
    unit: float
    limit: float
    least: float


KINDS = (
    Kind("rss", "MiB of memory", MIB, 4.0, 0.4),
    Kind("shared", "MiB of shared memory", MIB, 4.0, 0.4),
    Kind("descriptors", "file descriptors", 1.0, 20.0, 4.0),
    Kind("threads", "threads", 1.0, 20.0, 4.0),
)


def _held(timed: Timed, name: str) -> int:
    if name == "rss":
        return timed.sample.rss - timed.shared
    return timed.shared if name == "shared" else int(getattr(timed.sample, name))


def _series(samples: Sequence[Timed], kind: Kind) -> Array:
    return np.array([_held(sample, kind.name) for sample in samples], np.float64) / kind.unit


def slopes(evidence: Evidence) -> dict[str, tuple[Slope, Slope]]:
    """By kind the growth over the whole run and over its second half; nothing where the run was too short."""
    samples = _settled(evidence)
    if len(samples) < 2 * FEWEST:
        return {}
    times = np.array([sample.at for sample in samples])
    found = {}
    for kind in KINDS:
        at, held = floors(times, _series(samples, kind))
        whole, half = slope(at, held), slope(at[len(at) // 2 :], held[len(at) // 2 :])
        if whole is not None and half is not None:
            found[kind.name] = (whole, half)
    return found


def _settled(evidence: Evidence) -> list[Timed]:
    return [sample for sample in evidence.samples if sample.at >= SETTLE * evidence.seconds]


def slope_numbers(evidence: Evidence) -> dict[str, float]:
    """The slopes, for a record."""
    numbers = {}
    for name, (whole, _) in slopes(evidence).items():
        numbers[f"{name}_per_hour"] = round(whole.value, 4)
        numbers[f"{name}_per_hour_low"] = round(whole.low, 4)
        numbers[f"{name}_per_hour_high"] = round(whole.high, 4)
    return numbers


def judge_leak(scene: Scene, evidence: Evidence, told: Mapping[str, float]) -> Result | None:
    """Memory, shared memory, descriptors and threads may not grow with the number of executions without end.

    Args:
        scene: what was run.
        evidence: with the samples.
        told: `limit`, in MiB for each hour, in place of that of the memory kinds.
    """
    found = slopes(evidence)
    for kind in KINDS:
        if kind.name not in found:
            continue
        whole, half = found[kind.name]
        limit = told.get("limit", kind.limit) if kind.unit == MIB else kind.limit
        if whole.low > limit and half.low > limit and whole.rise >= kind.least and half.rising >= RISING:
            text = _words(kind, whole, limit, _settled(evidence))
            return Result(Ending.FAILURE, Side.DRIVER, Cause.LEAK, "execute", text, evidence.seconds)
    return None


def _words(kind: Kind, whole: Slope, limit: float, samples: Sequence[Timed]) -> str:
    done = samples[-1].executions - samples[0].executions
    seconds = samples[-1].at - samples[0].at
    each = f" ({whole.rise * kind.unit / done:.4g} for each)" if done else ""
    return (
        f"the driver's process kept {whole.rise:.4g} {kind.words} more in {seconds:.4g} s and {done} executions{each}: "
        f"{whole.value:.4g} for each hour, between {whole.low:.4g} and {whole.high:.4g} (99.8 %); up to {limit:g} is "
        f"taken for noise"
    )
