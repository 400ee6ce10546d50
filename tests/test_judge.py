"""The judge: elements at and over what is allowed, the quality of arithmetic, and every way in which a case can end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.case import Origin, Step, TestCase
from harness.expectations import Expectation, Expected, MayReject, Rejects, Returns, Unspecified
from harness.judge import judge, judge_execution
from harness.judge_output import judge_output
from harness.outcome import Outcome, StepOutcome
from harness.steps import Action
from harness.verdict import Cause, Judgement, Verdict
from nnhal.device import Timing
from nnhal.types import Array, ErrorStatus, OperandType
from tests.add_model import add_model

F32, F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
Q8, Q8S, I32, B8 = (
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_BOOL8,
)
DTYPES = {F32: np.float32, F16: np.float16, Q8: np.uint8, Q8S: np.int8, I32: np.int32, B8: np.uint8}
ATOL, RTOL = 1e-5, 5 * 2.0**-23


def due(kind: OperandType, value: object, required: object = None, **rest: object) -> Expected:
    exact = np.asarray(value, np.float64)
    if required is None:
        required = ATOL + RTOL * np.abs(exact) if kind == F32 else 1.0 if kind in (Q8, Q8S) else 0.0
    allowed = np.broadcast_to(np.asarray(required, np.float64), exact.shape)
    return Expected("output", kind, exact.shape, exact, allowed, **rest)  # type: ignore[arg-type]


def verdict(expected: Expected, got: object) -> Judgement:
    return judge_output(expected, np.asarray(got).astype(DTYPES[expected.type]))


# ---- floats


def test_floats_at_the_limit_pass_and_over_it_fail() -> None:
    expected = due(F32, [1.0, 100.0], [0.5, 0.5])
    assert verdict(expected, [1.5, 99.5]).verdict == Verdict.PASS
    assert verdict(expected, [1.5, 99.5]).error == 1.0
    found = verdict(expected, [1.0, np.nextafter(np.float32(100.5), np.float32(200))])
    assert (found.verdict, found.cause, found.stage) == (Verdict.FAIL, Cause.VALUE, "execute")
    assert found.worst is not None
    assert found.worst.index == (1,)
    assert found.worst.allowed == 0.5
    assert found.worst.ratio > 1
    assert found.error == found.worst.ratio


def test_the_message_says_how_many_where_and_by_how_much() -> None:
    found = verdict(due(F32, [[1.0, 2.0], [3.0, 4.0]], 0.5), [[1.0, 4.0], [0.0, 4.25]])
    assert found.message == (
        "output 'output' differs in 2 of 4 elements (50 %)\n"
        "  worst at (1, 0): got 0, expected 3, off by 3 where 0.5 is allowed"
    )


def test_the_rule_of_the_interface_for_float32() -> None:
    for value in (0.0, 1.0, -3.7e4, 1e-20):
        allowed = ATOL + RTOL * abs(value)
        expected = due(F32, [value])
        assert verdict(expected, [value + 0.8 * allowed]).verdict == Verdict.PASS
        assert verdict(expected, [value - 1.5 * allowed]).verdict == Verdict.FAIL


def test_errors_are_told_in_units_of_the_last_place() -> None:
    found = verdict(due(F32, [1.0, 1024.0], 1.0), [1.0 + 2.0**-22, 1024.0 + 3 * 2.0**-13])
    assert found.verdict == Verdict.PASS
    assert found.ulp == 3.0
    assert found.worst is not None
    assert found.worst.ulp == 3.0
    assert verdict(due(F16, [1.0], 1.0), [1.0 + 2.0**-10]).ulp == 1.0
    assert verdict(due(Q8, [1.0]), [2]).ulp is None


def test_a_value_between_two_floats_counts_from_its_exact_place() -> None:
    third = verdict(due(F32, [1 / 3], 1.0), [np.float32(1 / 3)])
    assert third.ulp is not None
    assert 0 < third.ulp <= 0.5


def test_nan_where_a_number_is_due_and_the_other_way_round() -> None:
    assert verdict(due(F32, [1.0]), [np.nan]).verdict == Verdict.FAIL
    assert verdict(due(F32, [np.nan], 1.0), [np.nan]).verdict == Verdict.PASS
    assert verdict(due(F32, [np.nan], 1.0), [1.0]).verdict == Verdict.FAIL
    assert verdict(due(F32, [np.nan], np.inf), [1.0]).verdict == Verdict.PASS


def test_infinities() -> None:
    inf = np.inf
    assert verdict(due(F32, [inf, -inf], 1.0), [inf, -inf]).verdict == Verdict.PASS
    assert verdict(due(F32, [inf], 1.0), [-inf]).verdict == Verdict.FAIL
    assert verdict(due(F32, [inf], 1.0), [3e38]).verdict == Verdict.FAIL
    assert verdict(due(F32, [1.0]), [inf]).verdict == Verdict.FAIL
    assert verdict(due(F32, [1e39], 1.0), [inf]).verdict == Verdict.PASS  # beyond the type
    assert verdict(due(F16, [70000.0], 1.0), [inf]).verdict == Verdict.PASS
    failed = verdict(due(F32, [1.0]), [inf])
    assert failed.error is not None
    assert np.isfinite(failed.error)


def test_masked_elements_do_not_count_and_their_share_is_told() -> None:
    expected = due(F32, [1.0, 2.0, 3.0, 4.0], [np.inf, 1e-5, np.inf, 1e-5])
    found = verdict(expected, [np.nan, 2.0, -77.0, 4.0])
    assert (found.verdict, found.masked, found.error) == (Verdict.PASS, 0.5, 0.0)
    assert verdict(expected, [1.0, 2.0, 3.0, 5.0]).verdict == Verdict.FAIL


def test_an_empty_output_passes() -> None:
    assert verdict(due(F32, np.zeros((0, 3)), 0.0), np.zeros((0, 3))).verdict == Verdict.PASS


def test_a_scalar_output() -> None:
    assert verdict(due(F32, 2.0), 2.0).verdict == Verdict.PASS
    found = verdict(due(F32, 2.0), 3.0)
    assert found.worst is not None
    assert found.worst.index == ()


# ---- integers, booleans, steps


def test_integers_are_exact() -> None:
    value = [2**31 - 1, -(2**31), 2**24 + 1]
    assert verdict(due(I32, value), value).verdict == Verdict.PASS
    found = verdict(due(I32, value), [2**31 - 1, -(2**31), 2**24])
    assert found.verdict == Verdict.FAIL
    assert "off by 1 where 0 is allowed" in found.message


def test_true_is_one_and_nothing_else() -> None:
    assert verdict(due(B8, [0, 1]), [0, 1]).verdict == Verdict.PASS
    for byte in (2, 255):
        assert verdict(due(B8, [0, 1]), [0, byte]).verdict == Verdict.FAIL
    assert verdict(due(B8, [0, 1]), [1, 1]).verdict == Verdict.FAIL


@pytest.mark.parametrize(
    ("value", "passes"),
    [(100.2, (99, 100, 101)), (100.8, (100, 101, 102)), (100.0, (99, 100, 101)), (100.5, (99, 100, 101, 102))],
)
def test_quantised_values_may_be_off_by_one_step(value: float, passes: tuple[int, ...]) -> None:
    for got in range(97, 105):
        wanted = Verdict.PASS if got in passes else Verdict.FAIL
        assert verdict(due(Q8, [value]), [got]).verdict == wanted, got


def test_either_neighbour_of_a_tie_has_no_error() -> None:
    for value in (2.5, 100.5, 100.5004):
        for got in (np.floor(value), np.ceil(value)):
            assert verdict(due(Q8, [value]), [got]).error == 0.0
            assert verdict(due(Q8S, [-value]), [-got]).error == 0.0


def test_steps_in_the_message() -> None:
    found = verdict(due(Q8, [100.2]), [103])
    assert found.message.endswith("got 103, expected 100, off by 3 where 1 is allowed (steps)")


# ---- quality of quantised arithmetic

RNG = np.random.default_rng(5)
SPREAD = RNG.uniform(10, 240, 400)


def test_rounding_is_good_and_truncation_is_poor() -> None:
    rounded = np.trunc(SPREAD + 0.5)
    assert verdict(due(Q8, SPREAD), rounded).verdict == Verdict.PASS
    found = verdict(due(Q8, SPREAD), np.floor(SPREAD))
    assert (found.verdict, found.cause) == (Verdict.POOR, Cause.QUALITY)
    assert found.message.startswith("mean error -0.474 steps over 399 elements")
    assert verdict(due(Q8, SPREAD), np.ceil(SPREAD)).verdict == Verdict.POOR


def test_truncation_toward_a_zero_in_the_middle_is_poor_too() -> None:
    centred = RNG.uniform(-110, 110, 400)  # the errors cancel in the mean
    assert verdict(due(Q8S, centred), np.trunc(centred + np.copysign(0.5, centred))).verdict == Verdict.PASS
    found = verdict(due(Q8S, centred), np.trunc(centred))
    assert found.verdict == Verdict.POOR
    assert "mean squared distance" in found.message


def test_a_constant_output_that_rounds_far_is_good() -> None:
    assert verdict(due(Q8, np.full(400, 7.45)), np.full(400, 7)).verdict == Verdict.PASS


def test_few_elements_say_nothing() -> None:
    few = SPREAD[:31]
    assert verdict(due(Q8, few), np.floor(few)).verdict == Verdict.PASS
    more = SPREAD[:40]
    assert verdict(due(Q8, more), np.floor(more)).verdict == Verdict.POOR


def test_ties_do_not_count() -> None:
    ties = np.arange(10, 200) + 0.5
    for rounded in (np.floor(ties), np.ceil(ties), np.rint(ties)):
        assert verdict(due(Q8, ties), rounded).verdict == Verdict.PASS


def test_what_saturates_does_not_thin_out_the_mean() -> None:
    values = np.concatenate([SPREAD[:60], np.full(600, 255.0), np.full(600, 0.0)])
    assert verdict(due(Q8, values), np.floor(values)).verdict == Verdict.POOR
    assert verdict(due(Q8, values), np.rint(values)).verdict == Verdict.PASS


def test_clipped_whole_steps_do_not_thin_out_the_mean() -> None:
    values = np.concatenate([SPREAD[:60], np.full(600, 10.0)])
    assert verdict(due(Q8, values), np.floor(values)).verdict == Verdict.POOR


def test_moved_steps_that_are_all_off_by_one_are_poor() -> None:
    values = np.arange(10.0, 200.0)
    assert verdict(due(Q8, values), values).verdict == Verdict.PASS
    assert verdict(due(Q8, values), values + 1).verdict == Verdict.POOR


def test_one_moved_step_that_is_off_by_one_is_poor() -> None:
    moved = due(Q8, [1.0, 7.0, 255.0], [1.0, 1.0, np.inf], exact=True)  # the last one is open
    assert verdict(moved, [1, 7, 200]).verdict == Verdict.PASS
    assert verdict(moved, [1, 8, 255]).verdict == Verdict.POOR
    assert verdict(moved, [1, 9, 255]).verdict == Verdict.FAIL


def test_an_end_between_two_steps_is_rounded_though_the_rest_is_moved() -> None:
    assert verdict(due(Q8, [2.0, 47.4], exact=True), [2, 48]).verdict == Verdict.PASS
    assert verdict(due(Q8, np.full(60, 47.4), exact=True), np.full(60, 48)).verdict == Verdict.POOR  # in the mean


def test_masked_elements_do_not_count_for_quality() -> None:
    required = np.where(np.arange(400) < 380, np.inf, 1.0)
    assert verdict(due(Q8, SPREAD, required), np.floor(SPREAD)).verdict == Verdict.PASS


def test_integers_and_booleans_have_no_quality() -> None:
    assert verdict(due(I32, np.arange(100.0), 5.0), np.arange(100) + 1).verdict == Verdict.PASS


# ---- quality of float arithmetic

UNIT = 2.0**-24


def floats(values: Array, terms: float) -> Expected:
    """What is due where each element is a sum of size 1, so that one unit is 2^-24."""
    return due(F32, values, 1e-3, unit=np.full(values.shape, UNIT), terms=terms)


def test_errors_within_the_limit_of_the_sum_of_squares() -> None:
    values = RNG.uniform(-1, 1, 1000).astype(np.float32).astype(np.float64)
    noise = RNG.choice([-1.0, 1.0], 1000)
    good = floats(values, 4)
    assert judged(good, values + 2 * UNIT * noise).verdict == Verdict.PASS  # mean square 4, limit 6.4
    found = judged(good, values + 3 * UNIT * noise)  # mean square 9
    assert (found.verdict, found.cause) == (Verdict.POOR, Cause.QUALITY)
    assert "sum of squared errors" in found.message


def judged(expected: Expected, actual: Array) -> Judgement:
    """Judges float64 numbers, so that the errors are what the test says."""
    return judge_output(expected, actual)


def test_a_biased_sum_is_poor() -> None:
    values = RNG.uniform(-1, 1, 1000)
    good = floats(values, 4)
    found = judged(good, values + UNIT)  # |sum| 1000, limit 253; mean square 1
    assert found.verdict == Verdict.POOR
    assert "the arithmetic is biased" in found.message


def test_one_sided_data_are_not_judged_for_bias() -> None:
    values = RNG.uniform(0, 1, 1000)
    assert judged(floats(values, 4), values + UNIT).verdict == Verdict.PASS
    assert judged(floats(-values, 4), UNIT - values).verdict == Verdict.PASS
    mixed = np.where(np.arange(1000) % 4 == 0, -values, values)  # 75 % of one sign
    assert judged(floats(mixed, 4), mixed + UNIT).verdict == Verdict.POOR


def test_few_floats_say_nothing() -> None:
    values = RNG.uniform(-1, 1, 31)
    assert judged(floats(values, 1), values + 5 * UNIT).verdict == Verdict.PASS


def test_subnormal_results_may_be_flushed() -> None:
    values = np.where(np.arange(1000) % 2 == 0, 1e-39, -1e-39)
    expected = replace(floats(values, 1), unit=np.abs(values) * UNIT)
    assert judged(expected, np.zeros(1000)).verdict == Verdict.PASS


def test_values_that_are_only_moved_must_not_change() -> None:
    expected = due(F32, [1.0, np.nan, np.inf, 2.0], [1e-5, np.inf, 1e-5, np.inf], exact=True)
    assert verdict(expected, [1.0, np.nan, np.inf, 7.0]).verdict == Verdict.PASS
    found = verdict(expected, [np.nextafter(np.float32(1), np.float32(2)), 0.0, np.inf, 2.0])
    assert (found.verdict, found.cause) == (Verdict.POOR, Cause.QUALITY)
    assert found.message.startswith("1 of 4 elements were changed")


# ---- executions


def returned(*outputs: object, shapes: tuple[tuple[int, ...], ...] | None = None, **rest: object) -> StepOutcome:
    arrays = tuple(np.asarray(o, np.float32) for o in outputs)
    given = tuple(a.shape for a in arrays) if shapes is None else shapes
    return StepOutcome(2, ErrorStatus.NONE, outputs=arrays, shapes=given, **rest)  # type: ignore[arg-type]


def test_the_worst_of_several_outputs_is_told_with_the_largest_error_of_all() -> None:
    expect = Returns((due(F32, [1.0], 0.5), replace(due(F32, [1.0, 2.0, 3.0], [0.5, 0.5, np.inf]), name="more")))
    found = judge_execution(expect, returned([1.25], [1.0, 2.0, 3.0]))
    assert (found.verdict, found.error, found.masked) == (Verdict.PASS, 0.5, 0.25)
    found = judge_execution(expect, returned([1.75], [1.0, 5.0, 3.0]))
    assert found.message.startswith("output 'more' differs")
    assert found.error == 6.0
    found = judge_execution(expect, returned([9.0], [1.0, 2.0, 3.0]))
    assert (found.verdict, found.error) == (Verdict.FAIL, 16.0)


def test_a_wrong_shape() -> None:
    found = judge_execution(Returns((due(F32, [1.0, 2.0]),)), returned([[1.0], [2.0]]))
    assert (found.verdict, found.cause) == (Verdict.FAIL, Cause.SHAPE)
    assert found.message == "output 'output' has dimensions [2, 1], [2] are due"


def test_a_shape_too_large_for_its_place() -> None:
    done = StepOutcome(2, ErrorStatus.NONE, outputs=(None,), shapes=((1 << 40,),))
    assert judge_execution(Returns((due(F32, [1.0]),)), done).cause == Cause.SHAPE


def test_timing() -> None:
    expect = Returns((due(F32, [1.0]),))
    for timing in (None, Timing(), Timing(5, None), Timing(None, 5), Timing(5, 5), Timing(0, 0)):
        assert judge_execution(expect, returned([1.0], timing=timing)).verdict == Verdict.PASS
    found = judge_execution(expect, returned([1.0], timing=Timing(6, 5)))
    assert (found.verdict, found.cause) == (Verdict.FAIL, Cause.TIMING)
    assert "time on the device (6 ns) exceeds time in the driver (5 ns)" in found.message


def test_nothing_expected_passes() -> None:
    assert judge_execution(Returns(), returned([1.0])).verdict == Verdict.PASS


# ---- outcomes of whole cases

ORIGIN = Origin("ADD", "float32", "drawn", 0)
NONE, INVALID, GENERAL = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
REFUSE = Rejects((INVALID,), "RANK_A", "a has rank 1 to 4")


def case_of(*steps: tuple[Action, Expectation] | tuple[Action, Expectation, int]) -> TestCase:
    made = tuple(Step(s[0], s[2] if len(s) == 3 else 0, s[1]) for s in steps)
    return TestCase(ORIGIN, (add_model(), add_model()), made)


POSITIVE = case_of(
    (Action.QUERY, Returns()), (Action.PREPARE, Returns()), (Action.EXECUTE, Returns((due(F32, [1.0]),)))
)
INVALID_MODEL = case_of(
    (Action.QUERY, Returns(), 1), (Action.PREPARE, Returns(), 1), (Action.QUERY, REFUSE), (Action.PREPARE, REFUSE)
)
UNEXECUTABLE = case_of(
    (Action.QUERY, Returns(), 1),
    (Action.PREPARE, Returns(), 1),
    (Action.QUERY, Unspecified()),
    (Action.PREPARE, MayReject("RANK_A", "a rule")),
    (Action.EXECUTE, Rejects((), "RANK_A", "a rule")),
)
YES, NO = {"supported": (True,)}, {"supported": (False,)}


def outcome(*steps: tuple[ErrorStatus | None, dict[str, object]] | ErrorStatus | None, **end: object) -> Outcome:
    done = []
    for number, step in enumerate(steps):
        status, rest = step if isinstance(step, tuple) else (step, {})
        done.append(StepOutcome(number, status, **rest))  # type: ignore[arg-type]
    return Outcome(tuple(done), **end)  # type: ignore[arg-type]


def ended(case: TestCase, *steps: object, **end: object) -> tuple[str, str, str]:
    found = judge(case, outcome(*steps, **end))  # type: ignore[arg-type]
    assert found.message or found.verdict == Verdict.PASS
    return found.verdict.value, found.cause.value, found.stage


RETURNED = (NONE, {"outputs": (np.array([1.0], np.float32),), "shapes": ((1,),)})
OFF = (NONE, {"outputs": (np.array([2.0], np.float32),), "shapes": ((1,),)})


def test_a_valid_model() -> None:
    assert ended(POSITIVE, (NONE, YES), NONE, RETURNED) == ("PASS", "", "execute")
    assert ended(POSITIVE, (NONE, YES), NONE, OFF) == ("FAIL", "VALUE", "execute")
    assert ended(POSITIVE, INVALID) == ("FAIL", "STATUS", "query")
    assert ended(POSITIVE, (NONE, YES), GENERAL) == ("FAIL", "STATUS", "prepare")
    assert ended(POSITIVE, (NONE, YES), NONE, GENERAL) == ("FAIL", "STATUS", "execute")
    assert ended(POSITIVE, (NONE, YES), NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE) == ("FAIL", "STATUS", "execute")


def test_the_driver_s_words_are_in_the_message() -> None:
    found = judge(POSITIVE, outcome((NONE, YES), (GENERAL, {"message": "too hot"})))
    assert found.message == "prepare of a valid model answered GENERAL_FAILURE (too hot); NONE is required"


def test_what_is_not_supported() -> None:
    assert ended(POSITIVE, (NONE, NO)) == ("NOT_SUPPORTED", "UNSUPPORTED", "query")
    found = judge(POSITIVE, outcome((NONE, {**NO, "reasons": ("no ADD", None, "no ADD", "too large")})))
    assert found.message == "no ADD; too large"
    assert judge(POSITIVE, outcome((NONE, NO))).message == "the driver gives no reason"


def test_death_and_silence() -> None:
    for at, stage in enumerate(("query", "prepare", "execute")):
        assert ended(POSITIVE, died="killed by SIGABRT", at=at) == ("CRASH", "DIED", stage)
        assert ended(POSITIVE, silent=10.0, at=at) == ("HANG", "SILENT", stage)
    assert judge(POSITIVE, Outcome(died="killed by SIGABRT", at=2)).message == (
        "the driver's process killed by SIGABRT during execute"
    )
    assert "no answer to execute within 10 s" in judge(POSITIVE, Outcome(silent=10.0, at=2)).message


def test_exceptions_that_no_driver_may_raise() -> None:
    unclean = (None, {"unclean": "ValueError: odd"})
    assert ended(POSITIVE, unclean) == ("FAIL", "UNCLEAN_ERROR", "query")
    assert ended(POSITIVE, (NONE, YES), unclean) == ("FAIL", "UNCLEAN_ERROR", "prepare")
    assert ended(POSITIVE, (NONE, YES), NONE, unclean) == ("FAIL", "UNCLEAN_ERROR", "execute")
    assert ended(INVALID_MODEL, (NONE, YES), NONE, unclean) == ("FAIL", "UNCLEAN_ERROR", "query")
    everything_else = case_of((Action.EXECUTE, Unspecified()))
    assert ended(everything_else, unclean) == ("FAIL", "UNCLEAN_ERROR", "execute")


def test_malformed_answers() -> None:
    text = {"malformed": "the support query gave 2 booleans for 1 operations"}
    assert ended(POSITIVE, (NONE, text)) == ("FAIL", "MALFORMED", "query")
    assert ended(POSITIVE, (NONE, YES), NONE, (NONE, text)) == ("FAIL", "MALFORMED", "execute")


def test_broken_guards_come_before_everything_else() -> None:
    for kind in ("OVERRUN", "INPUT_WRITTEN"):
        hurt = {"findings": ((kind, "3 bytes"),)}
        assert ended(POSITIVE, (NONE, YES), NONE, (NONE, {**OFF[1], **hurt})) == ("FAIL", kind, "execute")
        assert ended(POSITIVE, (NONE, YES), NONE, (GENERAL, hurt)) == ("FAIL", kind, "execute")
        assert ended(POSITIVE, (NONE, YES), NONE, (None, {**hurt, "unclean": "ValueError"})) == (
            ("FAIL", kind, "execute")
        )


def test_an_invalid_model_must_be_refused_at_query_and_at_prepare() -> None:
    assert ended(INVALID_MODEL, (NONE, YES), NONE, INVALID, INVALID) == ("PASS", "", "prepare")
    assert ended(INVALID_MODEL, (NONE, YES), NONE, (NONE, YES), INVALID) == ("FAIL", "ACCEPTED", "query")
    assert ended(INVALID_MODEL, (NONE, YES), NONE, (NONE, NO), INVALID) == ("FAIL", "ACCEPTED", "query")
    assert ended(INVALID_MODEL, (NONE, YES), NONE, INVALID, NONE) == ("FAIL", "ACCEPTED", "prepare")
    assert ended(INVALID_MODEL, (NONE, YES), NONE, GENERAL, INVALID) == ("FAIL", "STATUS", "query")
    assert ended(INVALID_MODEL, (NONE, YES), NONE, INVALID, GENERAL) == ("FAIL", "STATUS", "prepare")


def test_the_rule_is_in_the_message() -> None:
    found = judge(INVALID_MODEL, outcome((NONE, YES), NONE, (NONE, YES), INVALID))
    assert found.message == ("query accepted what breaks RANK_A (a has rank 1 to 4); INVALID_ARGUMENT is required")
    found = judge(INVALID_MODEL, outcome((NONE, YES), NONE, (GENERAL, {"message": "no"}), INVALID))
    assert found.message == (
        "query answered GENERAL_FAILURE (no) to what breaks RANK_A (a has rank 1 to 4); INVALID_ARGUMENT is required"
    )


def test_a_refusal_counts_only_behind_an_accepted_twin() -> None:
    assert ended(INVALID_MODEL, INVALID, INVALID, INVALID, INVALID) == ("FAIL", "REFUSED", "query")
    assert ended(INVALID_MODEL, (NONE, YES), GENERAL, INVALID, INVALID) == ("FAIL", "REFUSED", "prepare")


def test_validity_comes_before_support() -> None:
    assert ended(INVALID_MODEL, (NONE, NO), GENERAL, INVALID, INVALID) == ("PASS", "", "prepare")
    assert ended(INVALID_MODEL, (NONE, NO), GENERAL, (NONE, NO), INVALID) == ("FAIL", "ACCEPTED", "query")


def test_a_call_that_cannot_be_executed_is_refused_at_prepare_or_at_execute() -> None:
    twin = ((NONE, YES), NONE)
    assert ended(UNEXECUTABLE, *twin, INVALID, GENERAL) == ("PASS", "", "end")
    assert ended(UNEXECUTABLE, *twin, (NONE, YES), NONE, INVALID) == ("PASS", "", "execute")
    assert ended(UNEXECUTABLE, *twin, (NONE, NO), GENERAL) == ("PASS", "", "end")
    assert ended(UNEXECUTABLE, *twin, (NONE, YES), NONE, NONE) == ("FAIL", "ACCEPTED", "execute")
    assert ended(UNEXECUTABLE, INVALID) == ("FAIL", "REFUSED", "query")
    assert ended(UNEXECUTABLE, (NONE, YES), GENERAL) == ("FAIL", "REFUSED", "prepare")
    assert ended(UNEXECUTABLE, (NONE, NO), GENERAL, INVALID, GENERAL) == ("NOT_SUPPORTED", "UNSUPPORTED", "query")


def test_what_is_not_specified_may_end_in_any_way_but_death() -> None:
    case = case_of((Action.QUERY, Unspecified()), (Action.PREPARE, Unspecified()), (Action.EXECUTE, Unspecified()))
    skipped = (None, {"skipped": True})
    for steps in (((NONE, NO), GENERAL, skipped), (INVALID, NONE, (NONE, OFF[1])), ((NONE, YES), NONE, GENERAL)):
        assert ended(case, *steps)[0] == "PASS"
    assert ended(case, died="exited with status 0", at=1)[0] == "CRASH"


def test_a_subnormal_that_is_moved_may_be_flushed() -> None:
    expected = due(F32, [1e-40, -1e-40, 1.0], exact=True)
    assert verdict(expected, [0.0, -0.0, 1.0]).verdict == Verdict.PASS
    assert verdict(expected, [2e-40, -1e-40, 1.0]).verdict == Verdict.POOR
