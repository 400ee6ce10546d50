"""Asynchronous and fenced executions on top of a synchronous one, for drivers that have nothing faster."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from nnhal.device import NO_TIMING, ExecutionCallback, ExecutionResult, Fence, FencedResult, Timing
from nnhal.errors import DriverError
from nnhal.fences import SharedFence
from nnhal.types import ErrorStatus

FencedReport = Callable[[], FencedResult]


@contextlib.contextmanager
def launching(callback: ExecutionCallback) -> Iterator[None]:
    """A block in which an execution is checked and started: a callback is told of a refusal as the caller is."""
    try:
        yield
    except DriverError as error:
        callback.notify(error.status, ExecutionResult())
        raise


@contextlib.contextmanager
def once_at_a_time(busy: threading.Lock) -> Iterator[None]:
    """A run of a reusable execution.

    Raises:
        DriverError: GENERAL_FAILURE where another one is under way.
    """
    if not busy.acquire(blocking=False):
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "a reusable execution runs once at a time")
    try:
        yield
    finally:
        busy.release()


def launch(
    callback: ExecutionCallback,
    run: Callable[[], ExecutionResult],
    name: str,
    lost: Callable[[Exception], None] | None = None,
) -> None:
    """Runs an execution in a thread of its own and notifies the callback of how it went.

    Args:
        callback: notified once.
        run: the execution; the request has been checked.
        name: of the thread.
        lost: takes what is raised and is no DriverError; the callback gets GENERAL_FAILURE then. None lets it pass.
    """

    def work() -> None:
        try:
            result = run()
        except DriverError as error:
            callback.notify(error.status, ExecutionResult())
        except Exception as error:
            if lost is None:
                raise
            lost(error)
            callback.notify(ErrorStatus.GENERAL_FAILURE, ExecutionResult())
        else:
            callback.notify(result.status, result)

    threading.Thread(target=work, name=name, daemon=True).start()


class FencedJob:
    """One fenced execution: waits for fences, runs, signals.

    Args:
        run: the execution with a deadline; the request has been checked.
        deadline: of the whole.
        duration: nanoseconds from when all fences have signalled.
    """

    def __init__(
        self, run: Callable[[int | None], ExecutionResult], deadline: int | None, duration: int | None
    ) -> None:
        self._run, self._deadline, self._duration = run, deadline, duration
        self._launched = time.perf_counter_ns()
        self._result: FencedResult | None = None
        self._lost: Exception | None = None
        self._fence = SharedFence.create()

    def start(self, wait_for: Sequence[Fence], name: str) -> tuple[Fence | None, FencedReport]:
        """Runs at once where there is nothing to wait for, else in a thread of that name."""
        if not wait_for:
            self._work(())
            if self._lost is not None:
                raise self._lost
            return None, self.report
        threading.Thread(target=self._work, args=(tuple(wait_for),), name=name, daemon=True).start()
        return self._fence, self.report

    def _work(self, wait_for: Sequence[Fence]) -> None:
        status, launched, fenced = ErrorStatus.NONE, NO_TIMING, NO_TIMING
        try:
            for fence in wait_for:
                fence.wait()
            ends = [] if self._deadline is None else [self._deadline]
            if self._duration is not None:
                ends.append(time.monotonic_ns() + self._duration)
            result = self._run(min(ends, default=None))
            status, fenced = result.status, result.timing
            if fenced.time_in_driver is not None:
                launched = Timing(fenced.time_on_device, time.perf_counter_ns() - self._launched)
        except DriverError as error:
            status = error.status
        except Exception as error:  # `report` hands it on
            status, self._lost = ErrorStatus.GENERAL_FAILURE, error
        self._result = FencedResult(status, launched, fenced)
        self._fence.signal(status)

    def report(self) -> FencedResult:
        """Status and timing; GENERAL_FAILURE while the work is not done.

        Raises:
            Exception: whatever the execution raised that is no DriverError.
        """
        if self._lost is not None:
            raise self._lost
        return self._result or FencedResult(ErrorStatus.GENERAL_FAILURE)
