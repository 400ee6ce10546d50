"""Judges an outcome: a pure function of the case and what happened, with the words for a person."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from harness import distribution
from harness.case import Action, Expected, MayReject, Rejects, Returns, Step, TestCase, Unspecified
from harness.row_order import in_due_order
from harness.run import Outcome, StepOutcome
from nnhal.device import Timing
from nnhal.types import Array, ErrorStatus, OperandType, info

MEAN_LIMIT_STEPS = 0.25  # of a step, for requantisation
SQUARE_LIMIT_STEPS = 0.125  # of what rounding leaves, 1/12; truncation in any direction leaves 1/3, which is 1/4 more
QUALITY_ELEMENTS = 32  # fewer elements say nothing about a mean
TIE = 1e-3  # steps: closer to a tie, either neighbour is as good
WHOLE = 1e-6  # steps: closer to a whole step, nothing is rounded
ONE_SIDED = 0.8  # share of results of one sign from which on the sum of errors is not judged


class Verdict(str, Enum):
    """How a case ended."""

    PASS = "PASS"
    FAIL = "FAIL"
    POOR = "POOR"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    NOT_APPLICABLE = "NOT_APPLICABLE"
    CRASH = "CRASH"
    HANG = "HANG"
    FLAKY = "FLAKY"
    INTERNAL = "INTERNAL"
    NOT_RUN = "NOT_RUN"


BAD = frozenset({Verdict.FAIL, Verdict.CRASH, Verdict.HANG, Verdict.FLAKY, Verdict.INTERNAL})


class Cause(str, Enum):
    """Why a case did not pass."""

    NONE = ""
    VALUE = "VALUE"
    SHAPE = "SHAPE"
    STATUS = "STATUS"
    ACCEPTED = "ACCEPTED"
    REFUSED = "REFUSED"
    OVERRUN = "OVERRUN"
    INPUT_WRITTEN = "INPUT_WRITTEN"
    UNCLEAN_ERROR = "UNCLEAN_ERROR"
    MALFORMED = "MALFORMED"
    TIMING = "TIMING"
    DIED = "DIED"
    SILENT = "SILENT"
    QUALITY = "QUALITY"
    UNSUPPORTED = "UNSUPPORTED"
    LEVEL = "LEVEL"
    TRAIT = "TRAIT"
    SUITE = "SUITE"


@dataclass(frozen=True)
class Worst:
    """The element that is furthest off, in the units in which outputs are stored.

    Attributes:
        ratio: observed difference over the allowed one.
        ulp: difference in units in the last place of the expected value, for floats.
    """

    output: str
    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float
    ratio: float
    ulp: float | None = None


@dataclass(frozen=True)
class Judgement:
    """A verdict and everything that a person needs to believe it.

    Attributes:
        error: largest observed error in units of the allowed one, over all outputs; None where nothing was compared.
        ulp: largest observed error in ULP.
        masked: share of elements that the specification leaves open.
    """

    verdict: Verdict
    cause: Cause = Cause.NONE
    stage: str = ""
    message: str = ""
    worst: Worst | None = None
    error: float | None = None
    ulp: float | None = None
    masked: float = 0.0


def judge(case: TestCase, outcome: Outcome) -> Judgement:
    """The verdict on a case. Never looks anything up: all that is due is in the case."""
    if outcome.died is not None or outcome.silent is not None:
        return _ended(case, outcome)
    best = Judgement(Verdict.PASS)
    supported: dict[int, bool] = {}  # by model, as the driver answered
    for done in outcome.steps:
        step = case.steps[done.step]
        if done.skipped:
            continue
        if step.action == Action.QUERY and done.status == ErrorStatus.NONE:
            supported[step.model] = all(done.supported)
        found = _unclean(step, done) or _judge_step(case, step, done, supported.get(step.model, True))
        if found is not None:
            if found.verdict != Verdict.PASS or found.stage == "end":
                return found
            best = found
        repeated = _judge_repetition(outcome, step, done)
        if repeated is not None:
            return repeated
    return best


def _ended(case: TestCase, outcome: Outcome) -> Judgement:
    action = case.steps[outcome.at].action.value
    if outcome.died is not None:
        text = f"the driver's process {outcome.died} during {action}"
        return Judgement(Verdict.CRASH, Cause.DIED, action, text)
    text = f"no answer to {action} within {outcome.silent:g} s; the driver's process was stopped"
    return Judgement(Verdict.HANG, Cause.SILENT, action, text)


def _unclean(step: Step, done: StepOutcome) -> Judgement | None:
    """Faults that are faults whatever was due: guards, exceptions, malformed answers."""
    stage = step.action.value
    for kind, text in done.findings:
        return Judgement(Verdict.FAIL, Cause(kind), stage, text)
    if done.unclean:
        text = f"{stage} raised {done.unclean}; a driver answers with a result or raises DriverError"
        return Judgement(Verdict.FAIL, Cause.UNCLEAN_ERROR, stage, text)
    if done.malformed:
        return Judgement(Verdict.FAIL, Cause.MALFORMED, stage, done.malformed)
    return None


def _judge_step(case: TestCase, step: Step, done: StepOutcome, supported: bool) -> Judgement | None:
    expect = step.expect
    if isinstance(expect, Unspecified):
        return None
    if isinstance(expect, MayReject):
        return Judgement(Verdict.PASS, stage="end") if done.status != ErrorStatus.NONE else None
    if isinstance(expect, Rejects):
        return _judge_rejection(step, expect, done)
    return _judge_success(case, step, expect, done, supported)


def _judge_rejection(step: Step, expect: Rejects, done: StepOutcome) -> Judgement | None:
    due = ", ".join(status.name for status in expect.statuses) or "any status but NONE"
    stage = step.action.value
    if done.status == ErrorStatus.NONE:
        text = f"{stage} accepted what breaks {expect.rule} ({expect.text}); {due} is required"
        return Judgement(Verdict.FAIL, Cause.ACCEPTED, stage, text)
    if expect.statuses and done.status not in expect.statuses:
        assert done.status is not None
        text = f"{stage} answered {_answer(done)} to what breaks {expect.rule} ({expect.text}); {due} is required"
        return Judgement(Verdict.FAIL, Cause.STATUS, stage, text)
    return Judgement(Verdict.PASS, stage=stage)


def _answer(done: StepOutcome) -> str:
    name = done.status.name if done.status is not None else "nothing"
    return f"{name} ({done.message})" if done.message else name


def _judge_success(case: TestCase, step: Step, expect: Returns, done: StepOutcome, supported: bool) -> Judgement | None:
    stage = step.action.value
    if done.status != ErrorStatus.NONE:
        if case.negative and step.action == Action.PREPARE and not supported:
            return None  # a valid twin that is not supported need not be prepared
        what = "the valid twin of this model" if case.negative else "a valid model"
        text = f"{stage} of {what} answered {_answer(done)}; NONE is required"
        return Judgement(Verdict.FAIL, Cause.REFUSED if case.negative else Cause.STATUS, stage, text)
    if step.action == Action.QUERY and not supported:
        if case.negative and _breach_at_validation(case):
            return None  # validity comes before support
        text = "; ".join(sorted({reason for reason in done.reasons if reason})) or "the driver gives no reason"
        return Judgement(Verdict.NOT_SUPPORTED, Cause.UNSUPPORTED, stage, text)
    return judge_execution(expect, done) if step.action == Action.EXECUTE else None


def _breach_at_validation(case: TestCase) -> bool:
    return any(isinstance(s.expect, Rejects) and s.action == Action.QUERY for s in case.steps)


def judge_execution(expect: Returns, done: StepOutcome) -> Judgement:
    """Shapes, timing, then every element of every output."""
    stage = Action.EXECUTE.value
    timing = _judge_timing(done.timing)
    if timing:
        return Judgement(Verdict.FAIL, Cause.TIMING, stage, timing)
    judgements = []
    outputs = in_due_order(expect, done.outputs) if expect.groups else done.outputs
    for position, due in enumerate(expect.outputs):
        shape = done.shapes[position]
        if shape != due.shape:
            text = f"output '{due.name}' has dimensions {list(shape)}, {list(due.shape)} are due"
            return Judgement(Verdict.FAIL, Cause.SHAPE, stage, text)
        got = outputs[position]
        assert got is not None  # its place was made for the due shape
        judgements.append(judge_output(due, got))
    if not judgements:
        return Judgement(Verdict.PASS, stage=stage)
    order = [Verdict.FAIL, Verdict.POOR, Verdict.PASS]
    worst = min(judgements, key=lambda j: (order.index(j.verdict), -(j.error or 0.0)))
    ulps = [j.ulp for j in judgements if j.ulp is not None]
    sizes = [due.value.size for due in expect.outputs]
    masked = sum(j.masked * size for j, size in zip(judgements, sizes, strict=True)) / max(sum(sizes), 1)
    error = max(j.error or 0.0 for j in judgements)
    return replace(worst, error=error, ulp=max(ulps, default=None), masked=masked)


def _judge_timing(timing: Timing | None) -> str:
    if timing is None or timing.time_on_device is None or timing.time_in_driver is None:
        return ""
    if timing.time_on_device > timing.time_in_driver:
        return (
            f"time on the device ({timing.time_on_device} ns) exceeds time in the driver ({timing.time_in_driver} ns)"
        )
    return ""


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


def _judge_repetition(outcome: Outcome, step: Step, done: StepOutcome) -> Judgement | None:
    """Outputs that must not be those of an earlier step."""
    if not isinstance(step.expect, Returns) or done.status != ErrorStatus.NONE:
        return None
    for position, due in enumerate(step.expect.outputs):
        earlier = [o for o in outcome.steps if due.differs_from and o.step == done.step - due.differs_from]
        for other in earlier:
            before, now = other.outputs[position : position + 1], done.outputs[position]
            if before and before[0] is not None and now is not None and np.array_equal(before[0], now):
                text = f"output '{due.name}' is that of an execution with other seeds: no chance makes them alike"
                return Judgement(Verdict.FAIL, Cause.VALUE, step.action.value, text)
    return None


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
    if due.exact:
        off = int(((actual != target) & ~open_ & ~(np.isnan(actual) & np.isnan(target))).sum())
        return f"{off} of {actual.size} elements were changed where values are only moved" if off else ""
    if due.type not in _FLOATS:
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
