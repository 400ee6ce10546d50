"""A model that is ready to run on several devices: every way of running it, and the CPU where a device fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from framework.buffers import BufferTable
from framework.calls import Await, BurstCall, PlainCall
from framework.events import Event, EventKind, Report
from framework.levels import execution_at
from framework.members import Member, lost
from framework.parts import Compilation, Compiled, Reserve
from framework.running import HANDED_ON, Call, DeviceFailedError, Job
from nnhal.device import (
    DEFAULT_EXECUTION,
    Burst,
    Execution,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Fence,
    PreparedModel,
)
from nnhal.errors import DriverError
from nnhal.model import BufferToken, Request
from nnhal.running import FencedJob, FencedReport, launch, launching, once_at_a_time
from nnhal.types import FL3, FL4, FL8, ExecutionMode, FeatureLevel
from nnhal.validate import validate_execution, validate_request, validate_token, validate_tokens


class FrameworkPreparedModel(PreparedModel):
    """A compiled model. Any number of executions may be under way at once.

    Args:
        compilation: the plan with its parts.
        level: the framework's.
        report: told when the CPU takes over.
        wait: waits for a device's notification.
        on_cpu: compiles the whole model for the CPU; None where there is none.
        buffers: driver-managed buffers that requests may refer to.
        lose: keeps an error of a thread of ours that ended a device.
    """

    def __init__(
        self,
        compilation: Compilation,
        level: FeatureLevel,
        report: Report,
        wait: Await,
        on_cpu: Callable[[], Compilation] | None,
        buffers: BufferTable,
        lose: Callable[[Exception], None],
    ) -> None:
        self.compilation = compilation
        self.report = report
        self.lose = lose
        self.plain = PlainCall(wait)
        self._level = level
        self._reserve = Reserve(compilation)
        self._on_cpu = on_cpu
        self._buffers = buffers
        self._taking_over = threading.Lock()
        self._cpu: Compilation | None = None

    # ---- what every way of running needs

    def checked(
        self, request: Request, config: ExecutionConfig, deadline: int | None = None, duration: int | None = None,
        *, fenced: bool = False,
    ) -> Request:  # fmt: skip
        """A valid request with the buffers in it under their device's tokens.

        Raises:
            DriverError: INVALID_ARGUMENT.
        """
        validate_request(request, self.compilation.model, self._level, fenced=fenced)
        validate_execution(config, deadline, duration)
        return self._buffers.handed_on(request, self.only_part)

    @property
    def only_part(self) -> Compiled | None:
        """The part that is the whole model, if one is."""
        return self.compilation.parts[0] if self.compilation.simple else None

    def run(
        self, request: Request, config: ExecutionConfig, deadline: int | None, call: Call | None = None
    ) -> ExecutionResult:
        """Runs a checked request on the devices of the plan, or on the CPU when one of them fails."""
        try:
            return Job(
                self.compilation, self._reserve, request, config, deadline, call or self.plain, self.report
            ).run()
        except DeviceFailedError as failure:
            return self.run_on_cpu(request, config, deadline, failure)

    def run_on_cpu(
        self, request: Request, config: ExecutionConfig, deadline: int | None, failure: DeviceFailedError
    ) -> ExecutionResult:
        """Runs the whole model on the CPU, for one execution, after a device failed.

        Raises:
            DriverError: the device's, where the CPU cannot help; or the CPU's own.
        """
        if any(isinstance(pool, BufferToken) for pool in request.pools):
            raise failure.error  # what is in the device's memory only the device can reach
        whole = self._whole_on_cpu(failure.error)
        result = Job(whole, Reserve(whole), request, config, deadline, self.plain, self.report).run()
        text = f"{failure.text}; the CPU ran the whole model"
        self.report(Event(failure.kind, failure.part.member.name, text, whole.plan))
        return result

    def _whole_on_cpu(self, error: DriverError) -> Compilation:
        if self._on_cpu is None:
            raise error
        with self._taking_over:
            if self._cpu is None:
                try:
                    self._cpu = self._on_cpu()
                except DriverError:
                    raise error from None  # the CPU does not have it either
            return self._cpu

    # ---- the ways of running

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        return self.run(self.checked(request, config, deadline), config, deadline)

    def execute(
        self,
        request: Request,
        callback: ExecutionCallback,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> None:
        with launching(callback):
            mine = self.checked(request, config, deadline)
        launch(callback, lambda: self.run(mine, config, deadline), "framework-execution", self.lose)

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
        duration: int | None = None,
    ) -> tuple[Fence | None, FencedReport]:
        mine = self.checked(request, config, deadline, duration, fenced=True)
        part = self.only_part
        if part is not None and part.member.level >= FL4 and _has(part.member, ExecutionMode.FENCED):
            settings = execution_at(config, part.member.level)
            try:
                return part.prepared.execute_fenced(mine, wait_for, settings, deadline, duration)
            except DriverError as error:
                if error.status in HANDED_ON or part.member.cpu or self._on_cpu is None:
                    raise
                text = f"{part.member.name} answered {error} to a fenced execution"
                self.report(Event(EventKind.EXECUTION_FELL_BACK, part.member.name, text))
            except Exception as error:
                lost(part.member, error, self.report)
        job = FencedJob(lambda end: self.run(mine, config, end), deadline, duration)
        return job.start(wait_for, "framework-fenced")

    def configure_execution_burst(self) -> Burst:
        return _FrameworkBurst(self)

    def create_reusable_execution(self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION) -> Execution:
        return _FrameworkExecution(self, self.checked(request, config), request, config)

    def close(self) -> None:
        self.compilation.close()
        if self._cpu is not None:
            self._cpu.close()
        self._reserve.close()


def _has(member: Member, mode: ExecutionMode) -> bool:
    return mode in member.device.traits.execution_modes


class _FrameworkBurst(Burst):
    """A burst on every part whose device has bursts."""

    def __init__(self, prepared: FrameworkPreparedModel) -> None:
        self._prepared = prepared
        self._bursts: dict[int, Burst] = {}
        for number, part in enumerate(prepared.compilation.parts):
            if part.member.level < FL3 or not _has(part.member, ExecutionMode.BURST):
                continue
            try:
                self._bursts[number] = part.prepared.configure_execution_burst()
            except DriverError as error:
                text = f"{part.member.name} answered {error} when it was asked for a burst"
                prepared.report(Event(EventKind.EXECUTION_FELL_BACK, part.member.name, text))
            except Exception as error:
                lost(part.member, error, prepared.report)

    def execute_synchronously(
        self,
        request: Request,
        memory_tokens: Sequence[int],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        validate_tokens(request, memory_tokens)
        mine = self._prepared.checked(request, config, deadline)
        tokens = {id(pool): token for pool, token in zip(mine.pools, memory_tokens, strict=True)}
        call = BurstCall(self._prepared.plain, self._prepared.compilation.parts, self._bursts, tokens)
        return self._prepared.run(mine, config, deadline, call)

    def release_memory_resource(self, token: int) -> None:
        validate_token(token)
        for burst in self._bursts.values():
            burst.release_memory_resource(token)

    def close(self) -> None:
        for burst in self._bursts.values():
            burst.close()


class _FrameworkExecution(Execution):
    """A request that was checked once; the device's own reusable execution where one device runs all."""

    def __init__(
        self, prepared: FrameworkPreparedModel, request: Request, original: Request, config: ExecutionConfig
    ) -> None:
        self._prepared, self._request, self._original, self._config = prepared, request, original, config
        self._busy = threading.Lock()
        self._part = prepared.only_part
        self._inner: Execution | None = None
        part = self._part
        if part is not None and part.member.level >= FL8 and _has(part.member, ExecutionMode.REUSABLE):
            try:
                self._inner = part.prepared.create_reusable_execution(request, config)
            except DriverError as error:
                if error.status in HANDED_ON or part.member.cpu:
                    raise
                text = f"{part.member.name} answered {error} when it was asked for a reusable execution"
                prepared.report(Event(EventKind.EXECUTION_FELL_BACK, part.member.name, text))
            except Exception as error:
                lost(part.member, error, prepared.report)

    def execute_synchronously(self, deadline: int | None = None) -> ExecutionResult:
        with once_at_a_time(self._busy):
            validate_execution(self._config, deadline)
            call = self._run_inner if self._inner is not None else None
            return self._prepared.run(self._request, self._config, deadline, call)

    def _run_inner(
        self, part: Compiled, request: Request, config: ExecutionConfig, deadline: int | None
    ) -> ExecutionResult:
        assert self._inner is not None
        return self._inner.execute_synchronously(deadline)

    def execute_fenced(
        self, wait_for: Sequence[Fence], deadline: int | None = None, duration: int | None = None
    ) -> tuple[Fence | None, FencedReport]:
        return self._prepared.execute_fenced(self._original, wait_for, self._config, deadline, duration)
