"""Faults of the ways to execute: fences, bursts, reusable executions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from drivers._faults import BURST, FENCED, REUSABLE, Fault, Faults, Fenced, Run, State
from nnhal.device import (
    ExecutionResult,
    Fence,
    FencedResult,
    Timing,
)
from nnhal.errors import DriverError, invalid
from nnhal.fences import SharedFence
from nnhal.types import ErrorStatus

FENCES, BURSTS, REUSE = "Fenced execution", "Burst", "Reusable execution"
PASSED_ON = "a fence that ends in error ends the execution in error, and its report says so"
UNTIL_DONE = "the report is GENERAL_FAILURE before the end"
FIRST, IN_ERROR = "EXECUTION-fence.first-*", "EXECUTION-fence.error-*"
Go = Callable[[], ExecutionResult]
Begin = Callable[[], Fenced]


# ---- fences


class _Deaf(Fence):
    """Takes an error for a signal, and may take its time."""

    def __init__(self, fence: Fence, seconds: float = 0.0) -> None:
        self._fence = fence
        self._seconds = seconds

    def wait(self, timeout: int | None = None) -> bool:
        try:
            return self._fence.wait(timeout)
        except DriverError:
            return True
        finally:
            time.sleep(self._seconds)


def _never(run: Run, begin: Begin) -> Fenced:
    begin()
    return SharedFence.create(), lambda: FencedResult(ErrorStatus.GENERAL_FAILURE)


def _early(run: Run, begin: Begin) -> Fenced:
    """Signals its fence when the work has begun."""
    begin()
    fence = SharedFence.create()
    fence.signal()
    return fence, FencedResult


def _early_report(run: Run, begin: Begin) -> Fenced:
    fence, _ = begin()
    return fence, FencedResult


def _does_not_wait(run: Run, begin: Begin) -> Fenced:
    run.wait_for = ()
    return begin()


def _waits_for_one(run: Run, begin: Begin) -> Fenced:
    run.wait_for = run.wait_for[:1]
    return begin()


def _waits_for_last(run: Run, begin: Begin) -> Fenced:
    run.wait_for = run.wait_for[-1:]
    return begin()


def _error_unseen(run: Run, begin: Begin) -> Fenced:
    run.wait_for = [_Deaf(fence) for fence in run.wait_for]
    return begin()


def _error_kept(run: Run, begin: Begin) -> Fenced:
    """The fence ends well, the report in error."""
    fence, ask = begin()
    return None if fence is None else _Deaf(fence), ask


def _error_not_told(run: Run, begin: Begin) -> Fenced:
    """The fence ends in error, the report well."""
    fence, ask = begin()
    return fence, ask if fence is None else FencedResult


def _timed_error(run: Run, begin: Begin) -> Fenced:
    fence, ask = begin()

    def report() -> FencedResult:
        found = ask()
        return found if found.status == ErrorStatus.NONE else FencedResult(found.status, Timing(1, 2), Timing(1, 2))

    return fence, report


def _poisoned(run: Run, begin: Begin) -> Fenced:
    """One fence in error spoils all fenced executions that come."""
    if run.state.kept.get("poisoned"):
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "a fence ended in error before")
    fence, ask = begin()

    def report() -> FencedResult:
        found = ask()
        run.state.kept["poisoned"] = found.status != ErrorStatus.NONE
        return found

    return fence, report


def _no_fence(run: Run, begin: Begin) -> Fenced:
    """Gives no fence, and the work is not done."""
    run.wait_for = [_Deaf(fence, 0.2) for fence in run.wait_for]
    _, ask = begin()
    return None, ask


def _late_refusal(run: Run, begin: Begin) -> Fenced:
    """Launches anything; what is wrong is told by the fence."""
    try:
        return begin()
    except DriverError as error:
        fence, status = SharedFence.create(), error.status
        fence.signal(status)
        return fence, lambda: FencedResult(status)


def _no_report(run: Run, begin: Begin) -> Fenced:
    """Forgets how an execution went once its fence is signalled."""
    fence, _ = begin()
    return fence, lambda: FencedResult(ErrorStatus.GENERAL_FAILURE)


def _no_duration(run: Run, begin: Begin) -> Fenced:
    if run.duration is not None:
        raise invalid("durations are not supported")
    return begin()


def _any_duration(run: Run, begin: Begin) -> Fenced:
    if run.duration is not None:
        raise DriverError(ErrorStatus.MISSED_DEADLINE_PERSISTENT, "the duration is too short")
    return begin()


# ---- bursts and reusable executions


def _negative_tokens(run: Run, go: Go) -> ExecutionResult:
    run.tokens = [max(token, -1) for token in run.tokens or ()]
    return go()


def _any_count(run: Run, go: Go) -> ExecutionResult:
    count = len(run.request.pools)
    run.tokens = [*(run.tokens or ()), *[-1] * count][:count]
    return go()


def _remembers(lowest: int) -> Callable[[Run, Go], ExecutionResult]:
    """Keeps memory under its token for ever, those that are forgotten included."""

    def hook(run: Run, go: Go) -> ExecutionResult:
        pools = [
            run.state.kept.setdefault((id(run.owner), token, place), pool) if token >= lowest else pool
            for place, (token, pool) in enumerate(zip(run.tokens or (), run.request.pools, strict=False))
        ]
        run.state.kept["owner", id(run.owner)] = run.owner  # so that no other gets its id
        if len(pools) == len(run.request.pools):
            run.request = replace(run.request, pools=tuple(pools))
        return go()

    return hook


def _negative_forgotten(state: State, token: int, go: Callable[[], None]) -> None:
    if token >= 0:
        go()


def _unknown_refused(state: State, token: int, go: Callable[[], None]) -> None:
    if token > 1000:
        raise invalid("there is no such memory")
    go()


def _spent(run: Run, go: Go) -> ExecutionResult:
    """Runs once."""
    run.state.kept["owner", id(run.owner)] = run.owner
    if run.state.count(("ran", id(run.owner))) > 1:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "this has run before")
    return go()


def _ends_all(state: State, go: Callable[[], None]) -> None:
    state.kept["ended"] = True
    go()


def _ended(run: Run, go: Go) -> ExecutionResult:
    """Prepared models end with their bursts."""
    if run.state.kept.get("ended"):
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "the prepared model is gone")
    return go()


def _first_run(run: Run, go: Go) -> ExecutionResult:
    """Has read its inputs when it was made."""
    result = go()
    outputs = run.outputs
    if run.owner is not None:
        run.state.kept["owner", id(run.owner)] = run.owner
        outputs.write(run.state.kept.setdefault(("first", id(run.owner)), outputs.copy()))
    return result


def _fenced_reuse(run: Run, go: Go) -> ExecutionResult:
    result = go()
    if run.owner is not None:
        run.outputs.damage()
    return result


ON_BURST, ON_FENCED, ON_REUSABLE = frozenset({BURST}), frozenset({FENCED}), frozenset({REUSABLE})

FAULTS: Faults = {
    "fence.never": Fault(
        "never signals its fence", "HANG", "SILENT", FENCES, "the fence is signalled when the work is done",
        "EXECUTION-fence.first-*-0", launch=_never,
    ),
    "fence.early": Fault(
        "signals its fence before the work is done", "FAIL", "ACCEPTED", FENCES,
        "the fence is signalled when the work is done", FIRST, launch=_early,
    ),
    "fence.report.early": Fault(
        "reports NONE before the end", "FAIL", "ACCEPTED", FENCES, UNTIL_DONE, FIRST, launch=_early_report,
    ),
    "fence.report.lost": Fault(
        "reports GENERAL_FAILURE after the end, too", "FAIL", "MALFORMED", FENCES,
        "after the end the report has the execution's status", FIRST, launch=_no_report,
    ),
    "fence.ignored": Fault(
        "does not wait for fences", "FAIL", "ACCEPTED", FENCES,
        "an execution begins when all fences that it waits for are signalled", FIRST, launch=_does_not_wait,
    ),
    "fence.first_only": Fault(
        "waits for the first fence alone", "FAIL", "ACCEPTED", FENCES,
        "an execution begins when all fences that it waits for are signalled", "EXECUTION-fence.both-*",
        launch=_waits_for_one,
    ),
    "fence.last_only": Fault(
        "waits for the last fence alone", "FAIL", "ACCEPTED", FENCES,
        "an execution begins when all fences that it waits for are signalled", "EXECUTION-fence.both-*",
        launch=_waits_for_last,
    ),
    "fence.none": Fault(
        "gives no fence though the work is not done", "FAIL", "REFUSED", FENCES,
        "without a fence the work is done when the call returns", FIRST, launch=_no_fence,
    ),
    "fence.error.ignored": Fault(
        "runs though a fence has ended in error", "FAIL", "ACCEPTED", FENCES, PASSED_ON, IN_ERROR,
        launch=_error_unseen,
    ),
    "fence.error.kept": Fault(
        "signals its fence well though the execution has failed", "FAIL", "MALFORMED", FENCES, PASSED_ON, IN_ERROR,
        launch=_error_kept,
    ),
    "fence.error.report": Fault(
        "reports NONE though its fence has ended in error", "FAIL", "MALFORMED", FENCES, PASSED_ON, IN_ERROR,
        launch=_error_not_told,
    ),
    "fence.error.timing": Fault(
        "reports timing with an error", "FAIL", "MALFORMED", FENCES, "timing comes with NONE alone", IN_ERROR,
        launch=_timed_error,
    ),
    "fence.error.lasts": Fault(
        "runs nothing fenced once a fence has ended in error", "FAIL", "REFUSED", FENCES,
        "an error concerns the executions that wait for it", IN_ERROR, launch=_poisoned,
    ),
    "fence.late_refusal": Fault(
        "launches bad requests and tells it by the fence", "FAIL", "ACCEPTED", FENCES,
        "an error at launch comes without a fence", "*-fenced-request-*", launch=_late_refusal,
    ),
    "duration.unknown": Fault(
        "does not know durations", "FAIL", "STATUS", FENCES, "the duration of a fenced execution can be limited",
        "QOS-duration.generous-*", launch=_no_duration,
    ),
    "duration.generous": Fault(
        "exceeds every duration", "FAIL", "STATUS", FENCES,
        "the duration counts from when all waits are signalled to the end", "QOS-duration.generous-*",
        launch=_any_duration,
    ),
    "burst.negative": Fault(
        "accepts memory tokens below -1", "FAIL", "ACCEPTED", BURSTS, "a memory token is -1 or not negative",
        "*-burst-request-*", "tokens-negative:*", modes=ON_BURST, run=_negative_tokens,
    ),
    "burst.count": Fault(
        "accepts any number of memory tokens", "FAIL", "ACCEPTED", BURSTS, "there is one token for each pool",
        "*-burst-request-*", "tokens-*er:*", modes=ON_BURST, run=_any_count,
    ),
    "burst.forget.negative": Fault(
        "forgets memory with a negative token", "FAIL", "ACCEPTED", BURSTS,
        "a negative token cannot be released", "*-burst-request-*", "forgotten:*", forget=_negative_forgotten,
    ),
    "burst.forget.unknown": Fault(
        "refuses to forget memory that it does not know", "FAIL", "STATUS", BURSTS,
        "to release an unknown token is no error", "EXECUTION-burst.reused-*", forget=_unknown_refused,
    ),
    "burst.forgotten": Fault(
        "uses memory that was released", "FAIL", "VALUE", BURSTS, "memory is kept until its token is released",
        "EXECUTION-burst.reused-*", modes=ON_BURST, run=_remembers(0),
    ),
    "burst.unkept": Fault(
        "keeps memory with the token -1", "FAIL", "VALUE", BURSTS, "-1 says that memory is not to be kept",
        "EXECUTION-burst.reused-*", modes=ON_BURST, run=_remembers(-1),
    ),
    "burst.once": Fault(
        "runs a burst once", "FAIL", "STATUS", BURSTS, "a burst runs any number of requests",
        "EXECUTION-burst.reused-*", modes=ON_BURST, run=_spent,
    ),
    "burst.end": Fault(
        "lets the prepared model go with its burst", "FAIL", "STATUS", BURSTS,
        "the end of a burst is not that of the prepared model", "EXECUTION-burst.reused-*", end=_ends_all,
        run=_ended,
    ),
    "reusable.inputs": Fault(
        "reads the inputs of a reusable execution once", "FAIL", "VALUE", REUSE,
        "each run takes the inputs as they are then", "EXECUTION-reusable.again-*", modes=ON_REUSABLE,
        run=_first_run,
    ),
    "reusable.once": Fault(
        "runs a reusable execution once", "FAIL", "STATUS", REUSE, "a reusable execution runs any number of times",
        "EXECUTION-reusable.again-*", modes=ON_REUSABLE, run=_spent,
    ),
    "reusable.fenced": Fault(
        "computes wrongly when a reusable execution is fenced", "FAIL", "VALUE", REUSE,
        "a reusable execution runs fenced, too", "EXECUTION-reusable.again-*", modes=ON_FENCED, run=_fenced_reuse,
    ),
}  # fmt: skip
