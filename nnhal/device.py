"""The contract: what a driver implements. `Device` and `PreparedModel` are enough; the rest has defaults.

A method answers with a result or raises `DriverError`. Whatever else it raises is an unclean error, the driver's fault.
Deadlines are absolute CLOCK_MONOTONIC nanoseconds (`time.monotonic_ns()`), durations are nanoseconds, None is "none".
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nnhal.errors import DriverError
from nnhal.memory import Memory
from nnhal.model import ExtensionNameAndPrefix, Model, Request, Translation
from nnhal.types import (
    FL8,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionMode,
    ExecutionPreference,
    FeatureLevel,
    OperandType,
    Priority,
)

UNLISTED_PERFORMANCE = 3.4028234663852886e38  # FLT_MAX: a type that a driver does not list


@dataclass(frozen=True)
class PerformanceInfo:
    """Execution time and power use relative to the CPU (below 1 is better); both above 0."""

    exec_time: float = 1.0
    power_usage: float = 1.0


UNLISTED = PerformanceInfo(UNLISTED_PERFORMANCE, UNLISTED_PERFORMANCE)


@dataclass(frozen=True)
class OperandPerformance:
    """Performance of one operand type; a list of them is sorted by type, without repeats."""

    type: OperandType
    info: PerformanceInfo


@dataclass(frozen=True)
class Capabilities:
    """How fast and how hungry a driver is, per operand type. The same between calls and restarts."""

    operand_performance: tuple[OperandPerformance, ...] = ()
    relaxed_float32_to_float16_performance_scalar: PerformanceInfo = UNLISTED
    relaxed_float32_to_float16_performance_tensor: PerformanceInfo = UNLISTED
    if_performance: PerformanceInfo = UNLISTED
    while_performance: PerformanceInfo = UNLISTED


@dataclass(frozen=True)
class OutputShape:
    """Dimensions of an output after execution (0 where unknown), and whether its buffer was large enough."""

    dimensions: tuple[int, ...]
    is_sufficient: bool = True


@dataclass(frozen=True)
class Timing:
    """Nanoseconds on the device and in the driver (the latter includes the former); None where not measured."""

    time_on_device: int | None = None
    time_in_driver: int | None = None


NO_TIMING = Timing()


@dataclass(frozen=True)
class ExecutionResult:
    """What an execution answers. `output_shapes` may be empty only when all were known beforehand.

    With `output_sufficient_size` False (the status OUTPUT_INSUFFICIENT_SIZE) every output has a shape, `is_sufficient`
    marks the short ones, and timing is not measured.
    """

    output_shapes: tuple[OutputShape, ...] = ()
    timing: Timing = NO_TIMING
    output_sufficient_size: bool = True

    @property
    def status(self) -> ErrorStatus:
        """What a callback is told of an execution that ended so."""
        return ErrorStatus.NONE if self.output_sufficient_size else ErrorStatus.OUTPUT_INSUFFICIENT_SIZE


@dataclass(frozen=True)
class FencedResult:
    """After a fenced execution: status, and timing counted from the call and from when all waits were signalled."""

    status: ErrorStatus = ErrorStatus.NONE
    timing_launched: Timing = NO_TIMING
    timing_fenced: Timing = NO_TIMING


@dataclass(frozen=True)
class OperandTypeInformation:
    """An operand type of an extension: its number, whether it has dimensions, bytes of an element."""

    type: int
    is_tensor: bool
    byte_size: int


@dataclass(frozen=True)
class Extension:
    """A vendor extension that a driver supports."""

    name: str
    operand_types: tuple[OperandTypeInformation, ...] = ()


@dataclass(frozen=True)
class CacheFilesNeeded:
    """Number of model and data cache files, each 0 to 32; 0 and 0 mean that caching is not supported."""

    num_model_cache: int = 0
    num_data_cache: int = 0


@dataclass(frozen=True)
class BufferRole:
    """A use that a driver-managed buffer is for: which prepared model, which input or output, how probable (0, 1]."""

    model_index: int
    io_index: int
    probability: float = 1.0


@dataclass(frozen=True)
class BufferDesc:
    """Dimensions wanted of a driver-managed buffer; empty leaves them to the roles."""

    dimensions: tuple[int, ...] = ()


@dataclass(frozen=True)
class CompilationConfig:
    """Everything that preparation may be told besides the model.

    Attributes:
        model_cache: file descriptors to save to, as many as `get_number_of_cache_files_needed` says, or none.
        data_cache: the same for data files.
        cache_token: 32 bytes; ignored when both lists are empty.
        compilation_hints: token and value pairs (level 8), with their own extension table.
    """

    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM
    deadline: int | None = None
    model_cache: tuple[int, ...] = ()
    data_cache: tuple[int, ...] = ()
    cache_token: bytes = bytes(32)
    compilation_hints: tuple[tuple[int, bytes], ...] = ()
    extension_name_to_prefix: tuple[ExtensionNameAndPrefix, ...] = ()


@dataclass(frozen=True)
class ExecutionConfig:
    """Everything that an execution may be told besides the request and a deadline."""

    measure_timing: bool = False
    loop_timeout_duration: int | None = None
    execution_hints: tuple[tuple[int, bytes], ...] = ()
    extension_name_to_prefix: tuple[ExtensionNameAndPrefix, ...] = ()


DEFAULT_COMPILATION = CompilationConfig()
DEFAULT_EXECUTION = ExecutionConfig()


@dataclass(frozen=True)
class Traits:
    """What a driver declares of itself, so that what it rules out is NOT_APPLICABLE and not a failure.

    Attributes:
        execution_modes: ways of running beside the synchronous one.
        caching: compilation caching works.
        buffers: driver-managed buffers can be allocated.
        dynamic_shapes: unknown dimensions of outputs and internal operands are resolved at execution.
        deterministic: the same request gives the same bits.
        validates: models and requests are checked as the contract says. Only an adapter with `translate` may say False.
    """

    execution_modes: frozenset[ExecutionMode] = frozenset({ExecutionMode.SYNCHRONOUS})
    caching: bool = False
    buffers: bool = False
    dynamic_shapes: bool = True
    deterministic: bool = True
    validates: bool = True


class Fence(ABC):
    """A sync fence: unsignalled, then signalled or in error, once."""

    @abstractmethod
    def wait(self, timeout: int | None = None) -> bool:
        """Waits for the signal.

        Args:
            timeout: nanoseconds; None waits for ever.

        Returns:
            True when signalled, False when the time ran out.

        Raises:
            DriverError: the fence ended in error; the status says which.
        """


class ExecutionCallback:
    """What `execute` reports to: the driver calls `notify` exactly once, from any thread."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._result: tuple[ErrorStatus, ExecutionResult] | None = None
        self.notifications = 0

    def notify(self, status: ErrorStatus, result: ExecutionResult) -> None:
        """Takes the status and the result of the execution."""
        self.notifications += 1
        if self._result is None:
            self._result = (status, result)
        self._done.set()

    def wait(self, timeout: float | None = None) -> tuple[ErrorStatus, ExecutionResult] | None:
        """The first notification, or None after `timeout` seconds without one."""
        self._done.wait(timeout)
        return self._result


class Execution(ABC):
    """A reusable execution (level 8): one request, run any number of times, one run at a time."""

    @abstractmethod
    def execute_synchronously(self, deadline: int | None = None) -> ExecutionResult:
        """Runs the request and waits for the end."""

    def execute_fenced(
        self, wait_for: Sequence[Fence], deadline: int | None = None, duration: int | None = None
    ) -> tuple[Fence | None, Callable[[], FencedResult]]:
        """Runs the request after the fences, as `PreparedModel.execute_fenced`."""
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "fenced execution is not supported")


class Burst(ABC):
    """A fast path for many executions of one prepared model; the driver may keep memory by its token."""

    @abstractmethod
    def execute_synchronously(
        self,
        request: Request,
        memory_tokens: Sequence[int],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        """Runs a request.

        Args:
            request: as everywhere.
            memory_tokens: one for each pool of the request; -1 says "do not keep".

        Raises:
            DriverError: INVALID_ARGUMENT for a wrong number of tokens or one below -1.
        """

    @abstractmethod
    def release_memory_resource(self, token: int) -> None:
        """Lets go of what is kept under a token; an unknown one is not an error, a negative one INVALID_ARGUMENT."""

    def close(self) -> None:
        """Ends the burst."""


class Buffer(ABC):
    """A driver-managed buffer. `token` names it in requests and is above 0."""

    token: int

    @abstractmethod
    def copy_to(self, destination: Memory) -> None:
        """Copies the content out; INVALID_ARGUMENT for a wrong size, GENERAL_FAILURE when nothing is in it."""

    @abstractmethod
    def copy_from(self, source: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """Copies content in; empty dimensions mean those of the buffer."""

    def close(self) -> None:
        """Lets the buffer go."""


class PreparedModel(ABC):
    """A model ready to run. Any number of executions may be under way at once; inputs are never changed."""

    @abstractmethod
    def execute_synchronously(
        self,
        request: Request,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        """Runs a request and waits for the end; outputs are in the request's pools then.

        Raises:
            DriverError: INVALID_ARGUMENT for a bad request; MISSED_DEADLINE_*; whatever else went wrong.
        """

    def execute(
        self,
        request: Request,
        callback: ExecutionCallback,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> None:
        """Starts a request and returns; the callback is notified once (levels 1 to 4).

        Raises:
            DriverError: the launch failed; the callback has been notified with the same status.
        """
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "asynchronous execution is not supported")

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
        duration: int | None = None,
    ) -> tuple[Fence | None, Callable[[], FencedResult]]:
        """Starts a request after all fences have signalled (level 4 on).

        Returns:
            A fence, or None when the work is done already, and the callback that gives status and timing.

        Raises:
            DriverError: INVALID_ARGUMENT also for outputs whose size is not fully known.
        """
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "fenced execution is not supported")

    def configure_execution_burst(self) -> Burst:
        """A burst object (level 3 on)."""
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "bursts are not supported")

    def create_reusable_execution(self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION) -> Execution:
        """An execution that can be run again and again (level 8)."""
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "reusable executions are not supported")

    def close(self) -> None:
        """Lets the model's resources go."""


class Device(ABC):
    """A driver. The smallest one implements `get_supported_operations` and `prepare_model`."""

    feature_level: FeatureLevel = FL8
    traits: Traits = Traits()

    def get_status(self) -> DeviceStatus:
        """State of the device (levels 1 to 4)."""
        return DeviceStatus.AVAILABLE

    def get_capabilities(self) -> Capabilities:
        """Performance per operand type; constant."""
        return Capabilities()

    def get_type(self) -> DeviceType:
        """Kind of device (level 3 on)."""
        return DeviceType.OTHER

    def get_version_string(self) -> str:
        """Version of the driver, not empty (level 3 on)."""
        return "0"

    def get_supported_extensions(self) -> tuple[Extension, ...]:
        """Vendor extensions (level 3 on)."""
        return ()

    def get_number_of_cache_files_needed(self) -> CacheFilesNeeded:
        """Files for compilation caching (level 3 on); 0 and 0 when it is not supported."""
        return CacheFilesNeeded()

    @abstractmethod
    def get_supported_operations(self, model: Model) -> list[bool]:
        """One boolean for each operation of the main graph; all True promises that preparation succeeds.

        Raises:
            DriverError: INVALID_ARGUMENT for an invalid model, whether supported or not.
        """

    def explain_unsupported(self, model: Model) -> list[str | None]:
        """For each operation of the main graph why it is not supported, None where it is or nothing is known."""
        return [None] * len(model.main.operations)

    @abstractmethod
    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        """Makes a model ready to run.

        Raises:
            DriverError: INVALID_ARGUMENT for an invalid model, preference or priority; MISSED_DEADLINE_*; any other
                status when the model cannot be prepared, which is allowed only where the support query said so.
        """

    def prepare_model_from_cache(
        self,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
        deadline: int | None = None,
    ) -> PreparedModel:
        """A prepared model out of cache files (level 3 on)."""
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "compilation caching is not supported")

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        """A driver-managed buffer for the given roles (level 4 on)."""
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "driver-managed buffers are not supported")


class Adapter(Device):
    """A driver made of two halves: `translate`, which runs beside the suite, and the rest, which runs the artifact.

    The runner gets models whose `translation` is filled in, and refuses one without.
    """

    @staticmethod
    @abstractmethod
    def translate(model: Model, options: Mapping[str, str]) -> Translation:
        """The runtime's own form of a valid model, or why there is none. Imports what it needs when called.

        Raises:
            UsageError: a package is missing; the message has the line that installs it.
        """
