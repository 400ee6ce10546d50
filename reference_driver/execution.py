"""Every way to run a prepared model: synchronous, asynchronous, in a burst, fenced, and reusable."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from nnhal.buffers import read_inputs, write_outputs
from nnhal.device import (
    DEFAULT_EXECUTION,
    NO_TIMING,
    Burst,
    Execution,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Fence,
    PreparedModel,
    Timing,
)
from nnhal.errors import DriverError
from nnhal.model import Model, Request
from nnhal.running import FencedJob, FencedReport, launch, launching, once_at_a_time
from nnhal.types import FL4, LOOP_TIMEOUT_DEFAULT_NS, Array, ErrorStatus, FeatureLevel
from nnhal.validate import validate_execution, validate_request, validate_token, validate_tokens
from opset.branch import LoopTimedOutError
from opset.call import Call
from opset.evaluate import Result
from opset.validation import violations
from opset.values import Arithmetic
from reference_driver.buffers import Buffers
from reference_driver.sample_extension import element_types, evaluate

_NUMBERS = itertools.count(1)


class ReferencePreparedModel(PreparedModel):
    """A validated model, evaluated anew at each execution.

    Args:
        model: valid, all its operations supported.
        arithmetic: to compute with.
        level: of the device.
        buffers: of the device.
    """

    def __init__(self, model: Model, arithmetic: Arithmetic, level: FeatureLevel, buffers: Buffers) -> None:
        self.model = replace(model, translation=None)
        self.number = next(_NUMBERS)
        self.buffers = buffers
        self._arithmetic = arithmetic
        self._level = level

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        started = time.perf_counter_ns()
        self.check(request)
        validate_execution(config, deadline)
        return self._run(request, config, deadline, started)

    def execute(
        self,
        request: Request,
        callback: ExecutionCallback,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> None:
        started = time.perf_counter_ns()
        with launching(callback):
            self.check(request)
            validate_execution(config, deadline)
        launch(callback, lambda: self._run(request, config, deadline, started), "reference-execution")

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
        duration: int | None = None,
    ) -> tuple[Fence | None, FencedReport]:
        self.check(request, fenced=True)
        validate_execution(config, deadline, duration)
        job = FencedJob(lambda end: self._run(request, config, end, time.perf_counter_ns()), deadline, duration)
        return job.start(wait_for, "reference-fenced")

    def configure_execution_burst(self) -> Burst:
        return _ReferenceBurst(self)

    def create_reusable_execution(self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION) -> Execution:
        self.check(request)
        validate_execution(config)
        return _ReferenceExecution(self, request, config)

    def check(self, request: Request, *, fenced: bool = False) -> None:
        """Refuses a request that breaks a rule, or uses a driver-managed buffer for what it was not made for.

        Raises:
            DriverError: INVALID_ARGUMENT.
        """
        validate_request(request, self.model, self._level, fenced=fenced)
        self.buffers.check(request, self)

    def _run(self, request: Request, config: ExecutionConfig, deadline: int | None, started: int) -> ExecutionResult:
        try:
            return self._run_in_memory(request, config, deadline, started)
        except MemoryError as error:
            status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT if self._level >= FL4 else ErrorStatus.GENERAL_FAILURE
            raise DriverError(status, f"there is not enough memory: {error}") from None

    def _run_in_memory(
        self, request: Request, config: ExecutionConfig, deadline: int | None, started: int
    ) -> ExecutionResult:
        if deadline is not None and time.monotonic_ns() >= deadline:
            raise DriverError(ErrorStatus.MISSED_DEADLINE_PERSISTENT, "the deadline for executing is past")
        attached = self.buffers.attach(request, self)
        inputs = read_inputs(self.model, attached.request, element_types(self.model))
        launched = time.perf_counter_ns()
        results = self._evaluate(inputs, config, deadline)
        done = time.perf_counter_ns()
        timing = Timing(done - launched, done - started) if config.measure_timing else NO_TIMING
        stored = [result.stored for result in results]
        result = write_outputs(self.model, attached.request, stored, timing, element_types(self.model))
        if result.output_sufficient_size:
            attached.fill(stored)
        return result

    def _evaluate(self, inputs: Sequence[Array | None], config: ExecutionConfig, deadline: int | None) -> list[Result]:
        last: list[Call] = []

        def check(call: Call) -> None:
            last[:] = [call]
            if deadline is not None and time.monotonic_ns() >= deadline:
                raise DriverError(ErrorStatus.MISSED_DEADLINE_TRANSIENT, "the deadline passed while executing")
            _check(call)

        limit = config.loop_timeout_duration
        try:
            limit = LOOP_TIMEOUT_DEFAULT_NS if limit is None else limit
            return evaluate(self.model, inputs, self._arithmetic, check, limit)
        except LoopTimedOutError as error:
            raise DriverError(ErrorStatus.MISSED_DEADLINE_TRANSIENT, str(error)) from None
        except ArithmeticError as error:  # scales that no fixed-point multiplier holds
            raise DriverError(ErrorStatus.GENERAL_FAILURE, f"the numbers go too far: {error}") from None
        except (ValueError, IndexError):
            if not last or not _takes_nothing(last[0]):
                raise
            text = f"{last[0].definition.name} has no result for an operand without elements"
            raise DriverError(ErrorStatus.GENERAL_FAILURE, text) from None


def _takes_nothing(call: Call) -> bool:
    """Whether an operand has no elements: the largest of none, or one step of none, is nothing that anybody defines."""
    return any(0 in argument.shape for argument in call.inputs.values() if not argument.omitted)


def _check(call: Call) -> None:
    """Refuses a call that breaks a rule of stage EXECUTION, or lacks a value that it needs."""
    for name, argument in call.inputs.items():
        if argument.omitted and not call.signature.form.operand(name).omittable:
            raise DriverError(ErrorStatus.GENERAL_FAILURE, f"{call.definition.name} needs its operand {name}")
    found = violations(call)
    if found:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, f"{call.definition.name} breaks {found[0]}")


class _ReferenceBurst(Burst):
    """A burst that keeps nothing: memory is cheap to map here."""

    def __init__(self, prepared: ReferencePreparedModel) -> None:
        self._prepared = prepared

    def execute_synchronously(
        self,
        request: Request,
        memory_tokens: Sequence[int],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        validate_tokens(request, memory_tokens)
        return self._prepared.execute_synchronously(request, config, deadline)

    def release_memory_resource(self, token: int) -> None:
        validate_token(token)


class _ReferenceExecution(Execution):
    """A request that was checked once."""

    def __init__(self, prepared: ReferencePreparedModel, request: Request, config: ExecutionConfig) -> None:
        self._prepared, self._request, self._config = prepared, request, config
        self._busy = threading.Lock()

    def execute_synchronously(self, deadline: int | None = None) -> ExecutionResult:
        with once_at_a_time(self._busy):
            validate_execution(self._config, deadline)
            return self._prepared._run(self._request, self._config, deadline, time.perf_counter_ns())

    def execute_fenced(
        self, wait_for: Sequence[Fence], deadline: int | None = None, duration: int | None = None
    ) -> tuple[Fence | None, FencedReport]:
        return self._prepared.execute_fenced(self._request, wait_for, self._config, deadline, duration)
