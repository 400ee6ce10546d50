"""Compares one output element by element with what is due, then judges its quality."""

from __future__ import annotations

import math

import numpy as np

from harness import distribution
from harness.expectations import Expected
from harness.steps import Action
from harness.verdict import Cause, Judgement, Verdict, Worst
from nnhal.types import Array, OperandType, info

MEAN_LIMIT_STEPS = 0.25  # of a step, for requantisation
SQUARE_LIMIT_STEPS = 0.125  # of what rounding leaves, 1/12; truncation in any direction leaves 1/3, which is 1/4 more
QUALITY_ELEMENTS = 32  # fewer elements say nothing about a mean
TIE = 1e-3  # steps: closer to a tie, either neighbour is as good
WHOLE = 1e-6  # steps: closer to a whole step, nothing is rounded
ONE_SIDED = 0.8  # share of results of one sign from which on the sum of errors is not judged


def judge_output(due: Expected, got: Array) -> Judgement:
    """Compares one output element by element, then its quality."""
    if not due.value.size:
        return Judgement(Verdict.PASS, stage=Action.EXECUTE.value, error=0.0)
    if due.distribution is not None:
        return _judge_samples(due, got, due.distribution)
    actual = got.astype(np.float64)
    quantized = due.type not in _FLOATS
    target = _nearest_steps(due.value, actual) if quantized else _in_type(due.value, due.type)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(actual - (target if quantized else due.value))
        same = (actual == target) | ((actual != actual) & (target != target))
        difference = np.where(same & ~np.isfinite(difference), 0.0, difference)
        difference = np.where(np.isnan(difference), np.inf, difference)
        open_ = np.isinf(due.required)
        ratio = np.where(open_, 0.0, difference / np.where(due.required > 0, due.required, np.finfo(np.float64).tiny))
        ratio = np.where((due.required == 0) & (difference == 0), 0.0, ratio)
    masked = float(open_.mean())
    ulp = None if quantized else float(np.max(_ulps(difference, due, open_), initial=0.0))
    error = float(ratio.max(initial=0.0))
    wrong = ratio > 1.0
    if wrong.any():
        return _mismatch(due, actual, target, ratio, wrong, masked, ulp)
    poor = _quality(due, actual, target, difference, open_)
    verdict = Verdict.POOR if poor else Verdict.PASS
    cause = Cause.QUALITY if poor else Cause.NONE
    worst = _worst(due, actual, target, ratio) if error > 0 else None
    return Judgement(verdict, cause, Action.EXECUTE.value, poor, worst, error, ulp, masked)


def _judge_samples(due: Expected, got: Array, probabilities: Array) -> Judgement:
    """Samples are classes, and no class comes so often, or so rarely, that it cannot be chance."""
    stage, classes = Action.EXECUTE.value, probabilities.shape[1]
    outside = (got < 0) | (got >= classes)
    if outside.any():
        place = tuple(int(i) for i in np.argwhere(outside)[0])
        text = f"output '{due.name}' has {got[place]} at {place}: classes are 0 to {classes - 1}"
        return Judgement(Verdict.FAIL, Cause.VALUE, stage, text, error=float(outside.sum()))
    ratio = distribution.excess(got, probabilities)
    row, number = (int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    off = float(min(ratio[row, number], np.finfo(np.float32).max))
    if off <= 1.0:
        return Judgement(Verdict.PASS, stage=stage, error=off)
    count, chance = int((got[row] == number).sum()), float(probabilities[row, number])
    text = (
        f"output '{due.name}' has class {number} of row {row} {count} times in {got.shape[1]} samples, where its "
        f"probability is {chance:.4g}: that comes by chance less than once in {1 / distribution.FALSE_ALARM:.0e} runs"
    )
    worst = Worst(due.name, (row, number), count / got.shape[1], chance, 0.0, off)
    return Judgement(Verdict.FAIL, Cause.VALUE, stage, text, worst, off)


_FLOATS = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16, OperandType.FLOAT32, OperandType.FLOAT16)


def _nearest_steps(values: Array, actual: Array) -> Array:
    """Steps as they are stored. At a tie it is the neighbour on the side of what came: both are as good."""
    below = np.floor(values)
    tie = np.abs(values - below - 0.5) <= TIE
    up = np.where(tie, actual > below, values - below > 0.5)
    return np.where(up, below + 1, below)


def _in_type(values: Array, kind: OperandType) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(info(kind).dtype).astype(np.float64)


def _ulps(difference: Array, due: Expected, open_: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = np.spacing(np.abs(due.value).astype(info(due.type).dtype)).astype(np.float64)
        ulps = np.where(open_ | ~np.isfinite(spacing), 0.0, difference / spacing)
    return np.where(np.isfinite(ulps), ulps, np.finfo(np.float32).max)


def _worst(due: Expected, actual: Array, target: Array, ratio: Array) -> Worst:
    place = np.unravel_index(int(np.argmax(ratio)), ratio.shape) if ratio.ndim else ()
    index = tuple(int(i) for i in place)
    off = float(ratio[place])
    ulp = None
    if due.type in _FLOATS:
        with np.errstate(over="ignore", invalid="ignore"):  # infinity has no spacing
            spacing = float(np.spacing(np.abs(due.value[place]).astype(info(due.type).dtype)))
        ulp = abs(float(actual[place]) - float(due.value[place])) / spacing if spacing > 0 else None
    return Worst(due.name, index, float(actual[place]), float(target[place]), float(due.required[place]), off, ulp)


def _mismatch(
    due: Expected, actual: Array, target: Array, ratio: Array, wrong: Array, masked: float, ulp: float | None
) -> Judgement:
    worst = _worst(due, actual, target, ratio)
    count, size = int(wrong.sum()), wrong.size
    unit = "" if due.type in _FLOATS else " (steps)" if info(due.type).scaled else ""
    off = abs(worst.got - worst.expected)
    index = ", ".join(str(i) for i in worst.index)
    text = (
        f"output '{due.name}' differs in {count} of {size} elements ({100 * count / size:.3g} %)\n"
        f"  worst at ({index}): got {worst.got:.9g}, expected {worst.expected:.9g}, "
        f"off by {off:.6g} where {worst.allowed:.6g} is allowed{unit}"
    )
    error = worst.ratio if math.isfinite(worst.ratio) else float(np.finfo(np.float32).max)
    return Judgement(Verdict.FAIL, Cause.VALUE, Action.EXECUTE.value, text, worst, error, ulp, masked)


def _quality(due: Expected, actual: Array, target: Array, difference: Array, open_: Array) -> str:
    """A sentence on what one step, or the absolute tolerance, allows and yet is not good arithmetic; else empty."""
    quantized = due.type not in _FLOATS
    if due.exact:
        whole = due.value == np.rint(due.value) if quantized else True
        changed = (actual != target) & whole & ~open_ & ~(np.isnan(actual) & np.isnan(target))
        if not quantized:  # a subnormal may be flushed to zero
            changed &= ~((actual == 0) & (np.abs(due.value) < _smallest(due.type)))
        off = int(changed.sum())
        if off or not quantized:
            return f"{off} of {actual.size} elements were changed where values are only moved" if off else ""
    if not due.quality:
        return ""
    if quantized:
        if not info(due.type).scaled:
            return ""
        # Where several steps are allowed, they say nothing of the rounding at the end.
        counted = ~open_ & _tells_of_rounding(due) & (due.required <= 1)
        if counted.sum() < QUALITY_ELEMENTS:
            return ""
        mean = float((actual - target)[counted].mean())
        if abs(mean) > MEAN_LIMIT_STEPS:
            return f"mean error {mean:.3g} steps over {int(counted.sum())} elements, allowed {MEAN_LIMIT_STEPS}"
        apart = ((actual - due.value) ** 2 - (target - due.value) ** 2)[counted]
        if apart.mean() > SQUARE_LIMIT_STEPS:
            return (
                f"mean squared distance to the unrounded values {apart.mean():.3g} above that of rounding, "
                f"over {int(counted.sum())} elements, allowed {SQUARE_LIMIT_STEPS}: truncation, or coarse arithmetic"
            )
        return ""
    return _float_quality(due, actual, difference, open_)


def _tells_of_rounding(due: Expected) -> Array:
    """Which quantised elements count for the mean: no ties, nothing saturated, whole steps only for want of others."""
    ends = np.iinfo(info(due.type).dtype)
    apart = np.abs(due.value - np.rint(due.value))
    inside: Array = (apart < 0.5 - TIE) & (due.value > ends.min) & (due.value < ends.max)
    between = inside & (apart > WHOLE)
    return between if between.sum() >= QUALITY_ELEMENTS else inside


def _float_quality(due: Expected, actual: Array, difference: Array, open_: Array) -> str:
    if due.unit is None or not due.terms:
        return ""
    counted = ~open_ & (due.unit > 0) & np.isfinite(difference) & (np.abs(due.value) > _smallest(due.type))
    number = int(counted.sum())
    if number < QUALITY_ELEMENTS:
        return ""
    scaled = ((actual - due.value)[counted]) / due.unit[counted]
    squares, limit = float((scaled**2).sum()), 1.6 * due.terms * number
    if squares > limit:
        return (
            f"sum of squared errors {squares:.4g} over {number} elements, allowed {limit:.4g} "
            f"(in units of the last place of what is summed)"
        )
    signs = np.sign(due.value[counted])
    one_sided = max((signs > 0).mean(), (signs < 0).mean()) > ONE_SIDED
    total, bound = float(abs(scaled.sum())), math.sqrt(16 * due.terms * number)
    if due.sums and total > bound and not one_sided:
        return f"sum of errors {total:.4g} over {number} elements, allowed {bound:.4g}: the arithmetic is biased"
    return ""


def _smallest(kind: OperandType) -> float:
    """Smallest normal number of a float type: below it, flushing to zero is legal."""
    return float(np.finfo(info(kind).dtype).tiny)
