"""Asynchronous and fenced executions made of a synchronous one: who is told what, and when."""

from __future__ import annotations

import pytest

from nnhal.device import NO_TIMING, ExecutionCallback, ExecutionResult, FencedResult, OutputShape, Timing
from nnhal.errors import DriverError
from nnhal.fences import SharedFence
from nnhal.running import FencedJob, launch
from nnhal.types import ErrorStatus

NONE, GF = ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE
SHORT = ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
SECOND = 1_000_000_000
DONE = ExecutionResult((OutputShape((2,)),), Timing(1, 2))


def refuse(*given: object) -> ExecutionResult:
    raise DriverError(GF, "no")


def break_down(*given: object) -> ExecutionResult:
    raise ValueError("a defect")


def test_a_callback_is_told_how_it_went() -> None:
    short = ExecutionResult((OutputShape((2,), is_sufficient=False),), output_sufficient_size=False)
    for result, status in ((DONE, NONE), (short, SHORT)):
        callback = ExecutionCallback()
        launch(callback, lambda result=result: result, "test")  # type: ignore[misc]
        assert callback.wait(5) == (status, result)
    callback = ExecutionCallback()
    launch(callback, refuse, "test")
    assert callback.wait(5) == (GF, ExecutionResult())
    assert callback.notifications == 1


def test_what_is_no_driver_error_is_handed_over() -> None:
    lost: list[Exception] = []
    callback = ExecutionCallback()
    launch(callback, break_down, "test", lost.append)
    assert callback.wait(5) == (GF, ExecutionResult())
    assert [str(error) for error in lost] == ["a defect"]


def test_a_fenced_execution_waits_and_says_nothing_before() -> None:
    ends: list[int | None] = []

    def run(end: int | None) -> ExecutionResult:
        ends.append(end)
        return DONE

    first = SharedFence.create()
    fence, report = FencedJob(run, None, 5 * SECOND).start([first], "test")
    assert fence is not None
    assert (report(), ends) == (FencedResult(GF), [])
    first.signal()
    assert fence.wait(5 * SECOND)
    found = report()
    assert (found.status, found.timing_fenced) == (NONE, Timing(1, 2))
    assert (found.timing_launched.time_in_driver or 0) > 2  # the wait counts there
    assert ends[0] is not None


def test_a_fenced_execution_without_fences_is_done_at_once() -> None:
    fence, report = FencedJob(lambda end: ExecutionResult(), 7, None).start([], "test")
    assert (fence, report()) == (None, FencedResult(NONE, NO_TIMING, NO_TIMING))
    fence, report = FencedJob(refuse, None, None).start([], "test")
    assert (fence, report().status) == (None, GF)
    with pytest.raises(ValueError, match="a defect"):
        FencedJob(break_down, None, None).start([], "test")


def test_a_fence_in_error_ends_what_waits_for_it() -> None:
    first = SharedFence.create()
    fence, report = FencedJob(lambda end: DONE, None, None).start([first], "test")
    first.signal(GF)
    assert fence is not None
    with pytest.raises(DriverError):
        fence.wait(5 * SECOND)
    assert report() == FencedResult(GF)


def test_what_a_fenced_execution_raises_is_raised_by_its_report() -> None:
    first = SharedFence.create()
    fence, report = FencedJob(break_down, None, None).start([first], "test")
    first.signal()
    assert fence is not None
    with pytest.raises(DriverError):
        fence.wait(5 * SECOND)
    with pytest.raises(ValueError, match="a defect"):
        report()
