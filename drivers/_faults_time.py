"""Faults of time: deadlines of executions, and loops and branches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from drivers._faults import SYNC, Fault, Faults, Run
from nnhal.device import ExecutionCallback, ExecutionResult, OutputShape, Timing
from nnhal.errors import DriverError
from nnhal.model import Model
from nnhal.types import ErrorStatus, OperationType

DEADLINES, LOOPS = "Deadlines", "Driver tests: infinite loop timeout"
MISSED = (ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT)
LATE = "a deadline that is past gives right results or MISSED_DEADLINE_TRANSIENT or _PERSISTENT"
ENDS = "a loop without end gives MISSED_DEADLINE_TRANSIENT or _PERSISTENT after its time-out"
PAST, GENEROUS, ENDLESS = "QOS-executed.past.*", "QOS-executed.generous.*", "QOS-loop.short.*"
Go = Callable[[], ExecutionResult]


def _is_past(run: Run) -> bool:
    return run.deadline is not None and run.deadline <= time.monotonic_ns()


def _fails(when: Callable[[Run], bool], status: ErrorStatus) -> Callable[[Run, Go], ExecutionResult]:
    def hook(run: Run, go: Go) -> ExecutionResult:
        if when(run):
            raise DriverError(status, "the deadline")
        return go()

    return hook


def _half_done(run: Run, go: Go) -> ExecutionResult:
    """Stops at the deadline and gives what is there."""
    late = _is_past(run)
    if late:
        run.deadline = None
    result = go()
    if late:
        run.outputs.damage()
    return result


def _for_ever(run: Run, go: Go) -> ExecutionResult:
    """A prepared model that has missed one deadline misses all that come, though there are none."""
    key = "missed", id(run.prepared)
    if _is_past(run) or key in run.state.kept:
        run.state.kept[key] = run.prepared
        raise DriverError(ErrorStatus.MISSED_DEADLINE_PERSISTENT, "a deadline was missed before")
    return go()


def _missed_with_shapes(run: Run, go: Go) -> ExecutionResult:
    if _is_past(run):
        raise DriverError(ErrorStatus.MISSED_DEADLINE_TRANSIENT, "too late", [OutputShape((1,))])
    return go()


def _missed_with_timing(run: Run, callback: ExecutionCallback, status: ErrorStatus, result: ExecutionResult) -> None:
    callback.notify(status, replace(result, timing=Timing(1, 2)) if status in MISSED else result)


def _time_out_error(run: Run, go: Go) -> ExecutionResult:
    if _is_past(run):
        raise TimeoutError("too late")
    return go()


def _has(model: Model | None, code: OperationType) -> bool:
    return model is not None and any(operation.type == code for operation in model.main.operations)


def _loops(act: Callable[[Run, DriverError], ExecutionResult]) -> Callable[[Run, Go], ExecutionResult]:
    """Does something else at a loop's time-out."""

    def hook(run: Run, go: Go) -> ExecutionResult:
        try:
            return go()
        except DriverError as error:
            if error.status not in MISSED or not _has(run.model, OperationType.WHILE):
                raise
            return act(run, error)

    return hook


def _sleep(run: Run, error: DriverError) -> ExecutionResult:
    while True:
        time.sleep(3600)


def _all_well(run: Run, error: DriverError) -> ExecutionResult:
    return ExecutionResult()


def _failure(run: Run, error: DriverError) -> ExecutionResult:
    raise DriverError(ErrorStatus.GENERAL_FAILURE, "the loop has no end")


def _everything_ends(run: Run, go: Go) -> ExecutionResult:
    """The time-out of a loop ends whatever goes on besides."""
    if run.state.kept.get("stopped"):
        raise DriverError(ErrorStatus.MISSED_DEADLINE_TRANSIENT, "another execution's loop was stopped")
    try:
        return go()
    except DriverError:
        run.state.kept["stopped"] = True
        raise


def _unrolled(run: Run, go: Go) -> ExecutionResult:
    """Loops turn as often as the first time."""
    return _first_outcome(run, go, OperationType.WHILE)


def _decided(run: Run, go: Go) -> ExecutionResult:
    """The branch of an IF is chosen once, at the first execution."""
    return _first_outcome(run, go, OperationType.IF)


def _first_outcome(run: Run, go: Go, code: OperationType) -> ExecutionResult:
    result = go()
    if _has(run.model, code):
        outputs = run.outputs
        outputs.write(run.state.kept.setdefault(("first", id(run.prepared)), outputs.copy()))
    return result


FAULTS: Faults = {
    "deadline.invalid": Fault(
        "answers INVALID_ARGUMENT to a deadline that is past", "FAIL", "STATUS", DEADLINES, LATE, PAST,
        run=_fails(_is_past, ErrorStatus.INVALID_ARGUMENT),
    ),
    "deadline.failure": Fault(
        "answers GENERAL_FAILURE to a deadline that is past", "FAIL", "STATUS", DEADLINES, LATE,
        "QOS-executed.now.*", run=_fails(_is_past, ErrorStatus.GENERAL_FAILURE),
    ),
    "deadline.generous": Fault(
        "misses every deadline", "FAIL", "STATUS", DEADLINES, "without need no deadline is missed", GENEROUS,
        run=_fails(lambda run: run.deadline is not None, ErrorStatus.MISSED_DEADLINE_TRANSIENT),
    ),
    "deadline.unknown": Fault(
        "does not know deadlines", "FAIL", "STATUS", DEADLINES, "deadlines are known from level 1.3 on", GENEROUS,
        run=_fails(lambda run: run.deadline is not None, ErrorStatus.INVALID_ARGUMENT),
    ),
    "deadline.half": Fault(
        "gives half a result with NONE when the deadline is past", "FAIL", "VALUE", DEADLINES, LATE, PAST,
        run=_half_done,
    ),
    "deadline.for_ever": Fault(
        "misses all deadlines after one", "FAIL", "STATUS", DEADLINES, "a deadline concerns one execution", PAST,
        run=_for_ever,
    ),
    "deadline.shapes": Fault(
        "gives output shapes with a missed deadline", "FAIL", "MALFORMED", DEADLINES,
        "on a missed deadline there are no shapes", "QOS-executed.past.sync-*", modes=frozenset({SYNC}),
        run=_missed_with_shapes,
    ),
    "deadline.timing": Fault(
        "gives timing with a missed deadline", "FAIL", "MALFORMED", DEADLINES,
        "on a missed deadline there is no timing", "QOS-executed.past.async-*", notify=_missed_with_timing,
    ),
    "deadline.error": Fault(
        "raises TimeoutError at a deadline", "FAIL", "UNCLEAN_ERROR", DEADLINES, LATE, "QOS-executed.past.sync-*",
        run=_time_out_error,
    ),
    "loop.ignored": Fault(
        "runs a loop without end for ever", "HANG", "SILENT", LOOPS, ENDS, "QOS-loop.short.sync-*", isolated=True,
        run=_loops(_sleep),
    ),
    "loop.none": Fault(
        "stops a loop at its time-out and succeeds", "FAIL", "ACCEPTED", LOOPS, ENDS, ENDLESS,
        run=_loops(_all_well),
    ),
    "loop.failure": Fault(
        "answers GENERAL_FAILURE at a loop's time-out", "FAIL", "STATUS", LOOPS, ENDS, ENDLESS,
        run=_loops(_failure),
    ),
    "loop.disturbs": Fault(
        "stops all executions at a loop's time-out", "FAIL", "REFUSED", LOOPS,
        "a loop that is stopped disturbs no other execution", "QOS-loop.beside-*", run=_everything_ends,
    ),
    "loop.unrolled": Fault(
        "turns a loop as often as the first time", "FAIL", "VALUE", "Execution",
        "the condition of a loop is computed at each turn", "CONTROL_FLOW-loop.starts-*", run=_unrolled,
    ),
    "branch.once": Fault(
        "chooses the branch of an IF once", "FAIL", "VALUE", "Execution",
        "the branch of an IF is chosen at each execution", "CONTROL_FLOW-either.branch-*", run=_decided,
    ),
}  # fmt: skip
