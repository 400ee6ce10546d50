"""Behaviour judged: short outputs, agreement of steps, descriptions, timing, and what is only reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.case import Origin, Step, TestCase
from harness.expectations import Agreement, Agrees, Describes, Expectation, Repeats, Returns, Short
from harness.judge import judge
from harness.outcome import Description, Outcome, StepOutcome
from harness.steps import Action, Running
from harness.verdict import Cause, Judgement, Verdict
from nnhal.capabilities import uniform
from nnhal.device import (
    CacheFilesNeeded,
    Capabilities,
    Extension,
    OperandPerformance,
    OperandTypeInformation,
    OutputShape,
    PerformanceInfo,
    Timing,
)
from nnhal.types import FL1, FL3, FL8, ErrorStatus, ExecutionMode, OperandType
from tests.add_model import add_model

NONE, SHORT = ErrorStatus.NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
GF, IA = ErrorStatus.GENERAL_FAILURE, ErrorStatus.INVALID_ARGUMENT
F32 = OperandType.TENSOR_FLOAT32


def judged(*pairs: tuple[Step, StepOutcome], observe: tuple[str, ...] = ()) -> Judgement:
    """The verdict on steps and what came of them."""
    case = TestCase(Origin("X", "y", "behaviour", 0), (add_model((3,)),), tuple(s for s, _ in pairs), observe=observe)
    return judge(case, Outcome(tuple(replace(o, step=n) for n, (_, o) in enumerate(pairs))))


def execution(expect: Expectation, mode: ExecutionMode = ExecutionMode.SYNCHRONOUS) -> Step:
    return Step(Action.EXECUTE, 0, expect, mode)


def values(*numbers: float) -> StepOutcome:
    array = np.array(numbers, np.float32)
    return StepOutcome(0, NONE, outputs=(array,), shapes=((len(numbers),),))


# ---- short outputs

DUE = Short((1,), ((2, 3), (4,)), ((2, 0), ()))


def short(*shapes: OutputShape, **rest: object) -> Judgement:
    found = StepOutcome(0, SHORT, reported=shapes)
    return judged((execution(DUE), replace(found, **rest)))  # type: ignore[arg-type]


def test_a_short_output_is_marked_and_shapes_are_told_as_far_as_they_are_known() -> None:
    assert short(OutputShape((2, 3)), OutputShape((4,), False)).verdict == Verdict.PASS
    assert short(OutputShape((2, 0)), OutputShape((0,), False)).verdict == Verdict.PASS
    assert short(OutputShape((2, 3)), OutputShape((), False)).verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("shapes", "cause", "words"),
    [
        ((), Cause.SHAPE, "0 shapes for 2 outputs"),
        ((OutputShape((2, 3), False), OutputShape((4,))), Cause.SHAPE, "output 0 is marked"),
        ((OutputShape((2, 3), False), OutputShape((4,), False)), Cause.SHAPE, "output 0, 1 is marked"),
        ((OutputShape((2, 3)), OutputShape((4,))), Cause.SHAPE, "output none is marked"),
        ((OutputShape((2, 4)), OutputShape((4,), False)), Cause.SHAPE, "[2, 4], it would be [2, 3]"),
        ((OutputShape((0, 3)), OutputShape((4,), False)), Cause.SHAPE, "[2, 0] was known before"),
        ((OutputShape(()), OutputShape((4,), False)), Cause.SHAPE, "output 0 is reported as []"),
    ],
)
def test_shapes_of_a_short_execution_that_are_wrong(shapes: tuple[OutputShape, ...], cause: Cause, words: str) -> None:
    found = short(*shapes)
    assert (found.verdict, found.cause) == (Verdict.FAIL, cause)
    assert words in found.message


def test_a_short_execution_with_timing_or_another_status() -> None:
    good = (OutputShape((2, 3)), OutputShape((4,), False))
    assert short(*good, timing=Timing(1, 2)).cause == Cause.TIMING
    assert short(*good, timing=Timing()).verdict == Verdict.PASS
    assert judged((execution(DUE), StepOutcome(0, NONE))).cause == Cause.STATUS
    assert judged((execution(DUE), StepOutcome(0, GF))).cause == Cause.STATUS
    assert judged((execution(replace(DUE, unless=(GF,))), StepOutcome(0, GF))).verdict == Verdict.PASS


def test_a_driver_may_say_that_it_does_not_do_this() -> None:
    for expect in (replace(DUE, declines=(GF,)), Returns(declines=(GF,))):
        found = judged((execution(expect), StepOutcome(0, GF, "no")))
        assert (found.verdict, found.cause) == (Verdict.NOT_SUPPORTED, Cause.UNSUPPORTED)
        assert judged((execution(expect), StepOutcome(0, IA))).verdict == Verdict.FAIL


# ---- agreement


def agreement(one: StepOutcome, two: StepOutcome, /, **relation: object) -> Judgement:
    allowed = relation.pop("allowed", np.full(two.shapes[0] if two.shapes else (2,), 0.5))
    due = Agrees(0, (Agreement(0, allowed, **relation),), "they are to agree")  # type: ignore[arg-type]
    return judged((execution(Returns()), one), (execution(due), two))


def test_outputs_agree_within_what_is_allowed() -> None:
    assert agreement(values(1, 2), values(1.5, 2)).verdict == Verdict.PASS
    assert agreement(values(1, 2), values(1.5, 2)).error == 1.0
    found = agreement(values(1, 2), values(1, 2.75))
    assert (found.verdict, found.cause, found.error) == (Verdict.FAIL, Cause.INCONSISTENT, 1.5)
    assert found.message.startswith("they are to agree; output 0 differs in 1 of 2 elements")
    assert "2.75 here, 2 there, 0.5 allowed" in found.message


def test_outputs_agree_after_a_permutation_a_shift_and_a_cut() -> None:
    first = replace(values(0), outputs=(np.arange(6, dtype=np.float32).reshape(3, 2),), shapes=((3, 2),))
    turned = np.arange(6, dtype=np.float32).reshape(3, 2).T - 128
    second = replace(first, outputs=(turned,), shapes=((2, 3),))
    assert agreement(first, second, axes=(1, 0), shift=-128).verdict == Verdict.PASS
    assert agreement(first, second, axes=(1, 0), shift=-126).verdict == Verdict.FAIL
    assert agreement(first, second).cause == Cause.SHAPE
    cut = replace(first, outputs=(np.array([[2, 3]], np.float32),), shapes=((1, 2),))
    assert agreement(first, cut, first=1).verdict == Verdict.PASS
    assert agreement(first, cut, first=0).verdict == Verdict.FAIL


def test_nan_infinity_and_what_is_left_open_agree() -> None:
    nan, inf = float("nan"), float("inf")
    assert agreement(values(nan, inf), values(nan, inf)).verdict == Verdict.PASS
    assert agreement(values(1, inf), values(nan, inf)).verdict == Verdict.FAIL
    assert agreement(values(1, 2), values(9, 2), allowed=np.array([np.inf, 0])).verdict == Verdict.PASS


def test_a_step_that_is_refused_does_not_agree() -> None:
    assert agreement(values(1, 2), StepOutcome(0, GF)).cause == Cause.STATUS


# ---- queries


def test_a_query_with_another_answer() -> None:
    first, second = StepOutcome(0, NONE, supported=(True,)), StepOutcome(0, NONE, supported=(False,))
    query, again = Step(Action.QUERY), Step(Action.QUERY, 0, Repeats(0))
    assert judged((query, first), (again, first)).verdict == Verdict.PASS
    found = judged((query, first), (again, second))
    assert (found.verdict, found.cause) == (Verdict.FAIL, Cause.INCONSISTENT)
    assert "answered NONE [True] and later NONE [False]" in found.message


# ---- descriptions

SANE = Description(FL8, False, None, uniform(PerformanceInfo(0.5, 2.0)), 2, "1.0", (), CacheFilesNeeded())


def described(**fields: object) -> Judgement:
    found = replace(SANE, **fields)  # type: ignore[arg-type]
    return judged((Step(Action.DESCRIBE, expect=Describes()), StepOutcome(0, NONE, description=found)))


def listed(*rows: tuple[OperandType, float, float]) -> Capabilities:
    entries = tuple(OperandPerformance(kind, PerformanceInfo(time, power)) for kind, time, power in rows)
    return replace(SANE.capabilities, operand_performance=entries)


GOOD_TYPE = OperandTypeInformation(0, True, 8)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"capabilities": listed((F32, 0.0, 1.0))}, "execution time of operand type TENSOR_FLOAT32 is 0.0"),
        ({"capabilities": listed((F32, 1.0, -1.0))}, "power use of operand type TENSOR_FLOAT32 is -1.0"),
        ({"capabilities": listed((F32, float("nan"), 1.0))}, "is nan, not above 0"),
        ({"capabilities": listed((F32, 1.0, 1.0), (OperandType.FLOAT32, 1.0, 1.0))}, "not sorted"),
        ({"capabilities": listed((F32, 1.0, 1.0), (F32, 1.0, 1.0))}, "listed twice"),
        ({"capabilities": listed((OperandType.SUBGRAPH, 1.0, 1.0))}, "SUBGRAPH"),
        ({"level": FL1}, "operand type 6, which the driver's level 1.0 does not know"),
        ({"type": 0}, "get_type answered 0"),
        ({"version": ""}, "version string is empty"),
        ({"status": 2}, "get_status answered 2"),
        ({"extensions": (Extension("NoDot"),)}, "'NoDot'"),
        ({"extensions": (Extension("a.b"), Extension("a.b"))}, "listed twice"),
        ({"extensions": (Extension("a.b", (GOOD_TYPE, GOOD_TYPE)),)}, "operand type twice"),
        ({"extensions": (Extension("a.b", (replace(GOOD_TYPE, byte_size=0),)),)}, "of 0 bytes"),
        ({"cache_files": CacheFilesNeeded(33, 0), "caching": True}, "33 model cache files"),
        ({"cache_files": CacheFilesNeeded(1, -1), "caching": True}, "-1 data cache files"),
        ({"cache_files": CacheFilesNeeded(1, 0)}, "does not declare caching"),
        ({"caching": True}, "declares caching"),
    ],
)
def test_what_no_device_may_say(fields: dict[str, object], words: str) -> None:
    found = described(**fields)
    assert (found.verdict, found.cause) == (Verdict.FAIL, Cause.MALFORMED)
    assert words in found.message


def test_what_a_device_may_say() -> None:
    assert described().verdict == Verdict.PASS
    rows = ((OperandType.FLOAT32, 1e-3, 5.0), (F32, 1.0, 1.0), (OperandType.TENSOR_BOOL8, 3.4e38, 1.0))
    assert described(capabilities=listed(*rows), level=FL3, status=0).verdict == Verdict.PASS
    assert described(caching=True, cache_files=CacheFilesNeeded(32, 32)).verdict == Verdict.PASS
    assert described(extensions=(Extension("org.vendor_1.x", (GOOD_TYPE,)), Extension("a."))).verdict == Verdict.PASS


def test_answers_that_change() -> None:
    first = StepOutcome(0, NONE, description=SANE)
    other = StepOutcome(0, NONE, description=replace(SANE, version="1.1"))
    ask, again = Step(Action.DESCRIBE, expect=Describes()), Step(Action.DESCRIBE, expect=Describes(0))
    assert judged((ask, first), (again, first)).verdict == Verdict.PASS
    found = judged((ask, first), (again, other))
    assert (found.verdict, found.cause) == (Verdict.FAIL, Cause.INCONSISTENT)
    assert "version changed when it was asked again: '1.0', then '1.1'" in found.message
    restart = (Step(Action.RESTART), StepOutcome(0, NONE))
    assert "after a restart" in judged((ask, first), restart, (again, other)).message


def test_a_device_that_does_not_answer() -> None:
    found = judged((Step(Action.DESCRIBE, expect=Describes()), StepOutcome(0, GF, "busy")))
    assert (found.verdict, found.cause) == (Verdict.FAIL, Cause.STATUS)
    assert "GENERAL_FAILURE busy" in found.message


# ---- timing


def timed(timing: Timing, fenced: Timing | None = None, **rest: object) -> Judgement:
    done = replace(values(1.0), timing=timing, fenced=fenced, seconds=1.0)
    step = Step(Action.EXECUTE, 0, Returns(), how=Running())
    return judged((step, replace(done, **rest)))  # type: ignore[arg-type]


def test_timing_that_fits() -> None:
    assert timed(Timing()).verdict == Verdict.PASS
    assert timed(Timing(5, 5)).verdict == Verdict.PASS
    assert timed(Timing(None, 10**9), Timing(3, 4)).verdict == Verdict.PASS
    assert timed(Timing(), measured=False).verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("timing", "fenced", "measured", "words"),
    [
        (Timing(6, 5), None, True, "(6 ns) exceeds time in the driver (5 ns)"),
        (Timing(5, 6), None, False, "nobody asked"),
        (Timing(-1, 5), None, True, "negative"),
        (Timing(5, 10), Timing(4, 3), True, "after the fences (4 ns) exceeds"),
        (Timing(5, 10), Timing(5, 11), True, "from the fences on (11 ns) exceeds time from the call on (10 ns)"),
        (Timing(), Timing(1, 2), False, "nobody asked"),
        (Timing(5, 2 * 10**9), None, True, "exceeds what the call took (1000000000 ns)"),
    ],
)
def test_timing_that_does_not_fit(timing: Timing, fenced: Timing | None, measured: bool, words: str) -> None:
    found = timed(timing, fenced, measured=measured)
    assert (found.verdict, found.cause) == (Verdict.FAIL, Cause.TIMING)
    assert words in found.message


# ---- what is reported and no failure


def test_other_bits_are_noted() -> None:
    runs = (execution(Returns()), execution(Returns(), ExecutionMode.BURST))
    found = judged((runs[0], values(1, 2)), (runs[1], values(1, 2)), observe=("bits",))
    assert (found.verdict, found.notes) == (Verdict.PASS, ())
    found = judged((runs[0], values(0.0, 2)), (runs[1], values(-0.0, 2)), observe=("bits",))
    assert found.verdict == Verdict.PASS
    assert found.notes == ("two executions of one request differ in bits (burst and synchronous)",)


def test_the_first_execution_is_compared_with_the_median_of_the_others() -> None:
    runs = [replace(values(1.0), seconds=seconds) for seconds in (0.9, 0.1, 0.5, 0.3)]
    found = judged(*((execution(Returns()), run) for run in runs), observe=("first_run",))
    assert found.numbers == {"first_run_seconds": 0.9, "later_run_seconds": 0.3}
    assert found.notes == ("the first execution took 3.00 times as long as later ones",)


def test_a_later_failure_is_not_hidden_by_poor_arithmetic() -> None:
    from harness.expectations import Expected

    due = Expected("o", F32, (2,), np.array([1.0, 2.0]), np.full(2, 0.5), exact=True)
    wrong = Expected("o", F32, (2,), np.array([9.0, 2.0]), np.full(2, 0.5))
    poor = (execution(Returns((due,))), values(1.25, 2.0))
    assert judged(poor).verdict == Verdict.POOR
    assert judged(poor, (execution(Returns((wrong,))), values(1, 2))).verdict == Verdict.FAIL
    assert judged(poor, (execution(Returns((replace(wrong, value=np.array([1.0, 2.0])),))), values(1, 2))).verdict == (
        Verdict.POOR
    )
