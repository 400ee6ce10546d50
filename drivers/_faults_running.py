"""Prepared models, bursts and reusable executions of a faulty driver: its hooks around every way to execute."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from drivers._faults import ASYNC, BURST, FENCED, REUSABLE, SYNC, Fault, Fenced, Run
from nnhal.device import (
    DEFAULT_EXECUTION,
    Burst,
    Execution,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Fence,
    FencedResult,
    PreparedModel,
)
from nnhal.errors import DriverError
from nnhal.fences import SharedFence
from nnhal.model import Model, Request
from nnhal.types import ErrorStatus, ExecutionMode

if TYPE_CHECKING:
    from drivers._faults_wrapping import FaultyDevice

Go = Callable[[], ExecutionResult]


class _Callback(ExecutionCallback):
    """What the inner driver notifies: the fault's way to the client's callback."""

    def __init__(self, run: Run, fault: Fault, client: ExecutionCallback) -> None:
        super().__init__()
        self._run, self._fault, self._client = run, fault, client

    def notify(self, status: ErrorStatus, result: ExecutionResult) -> None:
        hook = self._fault.notify
        if hook is None or not self._run.due():
            self._client.notify(status, result)
        else:
            hook(self._run, self._client, status, result)


class _Work:
    """An execution that goes on in a thread of its own once the inner driver has launched it."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._begun = threading.Event()
        self._launched = False
        self._error: BaseException | None = None
        self._body = body

    def launched(self) -> None:
        """The inner driver has taken the request: the caller may go on."""
        self._launched = True
        self._begun.set()

    def start(self) -> None:
        """Returns once the request is launched, or raises why it was not."""
        threading.Thread(target=self._work, name="faulty-execution", daemon=True).start()
        self._begun.wait()
        if self._error is not None and not self._launched:
            raise self._error

    def _work(self) -> None:
        try:
            self._body()
        except BaseException as error:  # raised in the caller's thread
            self._error = error
            if self._launched and not isinstance(error, DriverError):
                raise
        finally:
            self._begun.set()


class FaultyPreparedModel(PreparedModel):
    """A prepared model with the fault's hooks around its executions. Without an inner one it does nothing, well."""

    def __init__(self, inner: PreparedModel | None, model: Model | None, device: FaultyDevice) -> None:
        self.inner = inner
        self.model = model
        self.device = device

    def occasion(self, mode: ExecutionMode, request: Request, config: ExecutionConfig, deadline: int | None) -> Run:
        """An execution that is asked for."""
        return Run(self.device.state, self, mode, request, config, deadline)

    def take(self, run: Run, go: Go) -> ExecutionResult:
        """An execution from call to end, with the hook around it."""
        hook, fault = self.device.fault.run, self.device.fault
        if hook is None or run.mode not in fault.modes or not (fault.always or run.due()):
            return go()
        return hook(run, go)

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        run = self.occasion(SYNC, request, config, deadline)
        inner = self.inner

        def go() -> ExecutionResult:
            if inner is None:
                return ExecutionResult()
            return inner.execute_synchronously(run.request, run.config, run.deadline)

        return self.take(run, go)

    def execute(
        self,
        request: Request,
        callback: ExecutionCallback,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> None:
        run = self.occasion(ASYNC, request, config, deadline)
        client = _Callback(run, self.device.fault, callback)
        inner = self.inner
        if inner is None:
            client.notify(ErrorStatus.NONE, ExecutionResult())
            return
        if self.device.fault.run is None or ASYNC not in self.device.fault.modes:
            inner.execute(request, client, config, deadline)
            return

        def go() -> ExecutionResult:
            ended = ExecutionCallback()
            inner.execute(run.request, ended, run.config, run.deadline)
            work.launched()
            notified = ended.wait()
            assert notified is not None
            status, result = notified
            if status not in (ErrorStatus.NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE):
                raise DriverError(status)
            return replace(result, output_sufficient_size=status == ErrorStatus.NONE)

        def body() -> None:
            try:
                result = self.take(run, go)
            except DriverError as error:
                client.notify(error.status, ExecutionResult(error.output_shapes))
                raise
            client.notify(result.status, result)

        work = _Work(body)
        work.start()

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
        duration: int | None = None,
    ) -> Fenced:
        run = self.occasion(FENCED, request, config, deadline)
        run.wait_for, run.duration = wait_for, duration
        inner = self.inner

        def begin() -> Fenced:
            if inner is None:
                return None, FencedResult
            return inner.execute_fenced(run.request, run.wait_for, run.config, run.deadline, run.duration)

        return self.fenced(run, begin)

    def fenced(self, run: Run, begin: Callable[[], Fenced]) -> Fenced:
        """A fenced execution with the hook around its launch, or around all of it."""
        fault = self.device.fault
        if fault.launch is not None and run.due():
            return fault.launch(run, begin)
        if fault.run is None or FENCED not in fault.modes:
            return begin()
        reports: list[FencedResult] = []
        fence = SharedFence.create()

        def go() -> ExecutionResult:
            inner_fence, ask = begin()
            work.launched()
            if inner_fence is not None:
                inner_fence.wait()
            found = ask()
            run.fenced = found.timing_fenced
            if found.status != ErrorStatus.NONE:
                raise DriverError(found.status)
            return ExecutionResult((), found.timing_launched)

        def body() -> None:
            try:
                result = self.take(run, go)
                reports.append(FencedResult(ErrorStatus.NONE, result.timing, run.fenced))
                fence.signal()
            except DriverError as error:
                reports.append(FencedResult(error.status))
                fence.signal(error.status)
                raise

        work = _Work(body)
        work.start()
        if not run.wait_for:
            try:
                fence.wait()
            except DriverError:
                return None, lambda: reports[0]
            return None, lambda: reports[0]
        return fence, lambda: reports[0] if reports else FencedResult(ErrorStatus.GENERAL_FAILURE)

    def configure_execution_burst(self) -> Burst:
        return FaultyBurst(None if self.inner is None else self.inner.configure_execution_burst(), self)

    def create_reusable_execution(self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION) -> Execution:
        if self.inner is None:
            return FaultyExecution(None, None, self, request, config)
        try:
            made = self.inner.create_reusable_execution(request, config)
        except DriverError as error:
            if self.device.fault.run is None or REUSABLE not in self.device.fault.modes:
                raise
            return FaultyExecution(None, error, self, request, config)  # the hook may still take it
        return FaultyExecution(made, None, self, request, config)

    def close(self) -> None:
        def go() -> None:
            if self.inner is not None:
                self.inner.close()

        hook = self.device.fault.close
        if hook is None or not self.device.is_due(self.model):
            go()
        else:
            hook(self.device.state, go)


class FaultyBurst(Burst):
    """A burst with the hooks around it."""

    def __init__(self, inner: Burst | None, prepared: FaultyPreparedModel) -> None:
        self._inner = inner
        self._prepared = prepared

    def execute_synchronously(
        self,
        request: Request,
        memory_tokens: Sequence[int],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        run = self._prepared.occasion(BURST, request, config, deadline)
        run.tokens, run.owner = list(memory_tokens), self

        def go() -> ExecutionResult:
            if self._inner is None:
                return ExecutionResult()
            return self._inner.execute_synchronously(run.request, run.tokens or (), run.config, run.deadline)

        return self._prepared.take(run, go)

    def release_memory_resource(self, token: int) -> None:
        def go() -> None:
            if self._inner is not None:
                self._inner.release_memory_resource(token)

        hook = self._prepared.device.fault.forget
        if hook is None:
            go()
        else:
            hook(self._prepared.device.state, token, go)

    def close(self) -> None:
        def go() -> None:
            if self._inner is not None:
                self._inner.close()

        hook = self._prepared.device.fault.end
        if hook is None:
            go()
        else:
            hook(self._prepared.device.state, go)


class FaultyExecution(Execution):
    """A reusable execution with the hooks around its runs. Why there is no inner one is told when it runs."""

    def __init__(
        self,
        inner: Execution | None,
        refusal: DriverError | None,
        prepared: FaultyPreparedModel,
        request: Request,
        config: ExecutionConfig,
    ) -> None:
        self._inner, self._refusal = inner, refusal
        self._prepared, self._request, self._config = prepared, request, config

    def execute_synchronously(self, deadline: int | None = None) -> ExecutionResult:
        run = self._prepared.occasion(REUSABLE, self._request, self._config, deadline)
        run.owner = self

        def go() -> ExecutionResult:
            if self._refusal is not None:
                raise self._refusal
            return ExecutionResult() if self._inner is None else self._inner.execute_synchronously(run.deadline)

        return self._prepared.take(run, go)

    def execute_fenced(
        self, wait_for: Sequence[Fence], deadline: int | None = None, duration: int | None = None
    ) -> Fenced:
        run = self._prepared.occasion(FENCED, self._request, self._config, deadline)
        run.owner, run.wait_for, run.duration = self, wait_for, duration

        def begin() -> Fenced:
            if self._refusal is not None:
                raise self._refusal
            if self._inner is None:
                return None, FencedResult
            return self._inner.execute_fenced(run.wait_for, run.deadline, run.duration)

        return self._prepared.fenced(run, begin)
