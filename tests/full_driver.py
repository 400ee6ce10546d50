"""A driver for tests of the wire: ADD in every execution mode, buffers, caching, and odd answers on request."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence

from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    Buffer,
    BufferDesc,
    BufferRole,
    Burst,
    CacheFilesNeeded,
    Capabilities,
    CompilationConfig,
    Execution,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Extension,
    Fence,
    FencedResult,
    OperandPerformance,
    OperandTypeInformation,
    OutputShape,
    PerformanceInfo,
    PreparedModel,
    Timing,
    Traits,
)
from nnhal.errors import DriverError, invalid
from nnhal.memory import Memory
from nnhal.model import Model, Request
from nnhal.types import FL7, DeviceStatus, DeviceType, ErrorStatus, ExecutionMode, OperandType
from tests.minimal_driver import MinimalDriver, PreparedAdd

ALIVE: list[str] = []  # kinds of the objects that have not been closed


class FullDriver(MinimalDriver):
    feature_level = FL7
    traits = Traits(frozenset(ExecutionMode), caching=True, buffers=True)

    def __init__(self, odd: str = "", fork: str = "") -> None:
        self.odd = odd
        self.preparing = 0
        if odd == "talk":
            sys.stdout.write("hello from the driver" + "\n")
            sys.stderr.write("and from its stderr" + "\n")
        if odd == "slow_start":
            time.sleep(0.3)
        if odd == "die_at_start":
            os.abort()

    def get_status(self) -> DeviceStatus:
        return DeviceStatus.BUSY

    def get_capabilities(self) -> Capabilities:
        info = PerformanceInfo(0.5, 0.25)
        return Capabilities((OperandPerformance(OperandType.TENSOR_FLOAT32, info),), info)

    def get_type(self) -> DeviceType:
        return DeviceType.ACCELERATOR

    def get_version_string(self) -> str:
        if self.odd == "version":
            return 7  # type: ignore[return-value]
        return ",".join(ALIVE) if self.odd == "alive" else "1.0"

    def get_supported_extensions(self) -> tuple[Extension, ...]:
        return (Extension("com.example", (OperandTypeInformation(3, True, 2),)),)

    def get_number_of_cache_files_needed(self) -> CacheFilesNeeded:
        return CacheFilesNeeded(1, 1)

    def get_supported_operations(self, model: Model) -> list[bool]:
        if self.odd == "none":
            return None  # type: ignore[return-value]
        if self.odd == "system_exit":
            sys.exit(4)
        if self.odd == "talk":
            sys.stdout.write("x" * 200_000 + "\n")
            sys.stdout.write("the end" + "\n")
        return super().get_supported_operations(model)

    def explain_unsupported(self, model: Model) -> list[str | None]:
        return ["too hot"]

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        if self.odd == "no_model":
            return None  # type: ignore[return-value]
        if config.priority not in (0, 1, 2):
            raise invalid(f"priority {config.priority}")
        for descriptor in config.model_cache:
            os.write(descriptor, b"cache of " + config.cache_token[:4])
        return FullPreparedModel(model, self)

    def prepare_model_from_cache(
        self,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
        deadline: int | None = None,
    ) -> PreparedModel:
        content = [os.pread(descriptor, 100, 0) for descriptor in (*model_cache, *data_cache)]
        raise DriverError(ErrorStatus.GENERAL_FAILURE, f"{content} {token[:2]!r} {deadline}")

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        if not all(isinstance(model, FullPreparedModel) for model in prepared_models):
            raise invalid("a prepared model of somebody else")
        return FullBuffer(desc, len(input_roles) + len(output_roles))


class FullBuffer(Buffer):
    def __init__(self, desc: BufferDesc, token: int) -> None:
        self.token = token
        self._desc = desc
        self._content: bytes | None = None
        ALIVE.append("buffer")

    def copy_to(self, destination: Memory) -> None:
        if self._content is None:
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "empty")
        destination.view()[:] = self._content

    def copy_from(self, source: Memory, dimensions: tuple[int, ...] = ()) -> None:
        self._content = bytes(source.view())

    def close(self) -> None:
        ALIVE.remove("buffer")


class OwnFence(Fence):
    """A fence as a driver might have it: knows nothing of processes."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.status = ErrorStatus.NONE

    def wait(self, timeout: int | None = None) -> bool:
        done = self.event.wait(None if timeout is None else timeout / 1e9)
        if self.status:
            raise DriverError(self.status)
        return done


class FullPreparedModel(PreparedAdd):
    def __init__(self, model: Model, device: FullDriver) -> None:
        super().__init__(model)
        self.odd = device.odd
        self.barrier = threading.Barrier(2, timeout=5)
        ALIVE.append("model")

    def close(self) -> None:
        ALIVE.remove("model")

    def execute_synchronously(
        self,
        request: Request,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        if self.odd == "meet":
            self.barrier.wait()  # passes only if two executions are under way at once
        if self.odd == "short":
            shapes = (OutputShape((1, 9), False),)
            raise DriverError(ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, "too short", shapes)
        if self.odd == "count":
            raise DriverError(ErrorStatus.GENERAL_FAILURE, str(len(request.pools)))
        if self.odd == "sleep":
            time.sleep(0.3)
        if self.odd == "abort_second" and request.inputs[0].location.offset:
            os.abort()
        return super().execute_synchronously(request, config, deadline)

    def execute(
        self,
        request: Request,
        callback: ExecutionCallback,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> None:
        if self.odd == "never":
            return
        if self.odd == "refuse_launch":
            callback.notify(ErrorStatus.INVALID_ARGUMENT, ExecutionResult())
            raise invalid("no launch")

        def work() -> None:
            time.sleep(0.02)
            if self.odd == "die_in_callback":
                os.abort()
            if self.odd == "bad_notify":
                callback.notify(ErrorStatus.NONE, None)  # type: ignore[arg-type]
                return
            callback.notify(ErrorStatus.NONE, self.execute_synchronously(request))
            if self.odd == "twice":
                callback.notify(ErrorStatus.GENERAL_FAILURE, ExecutionResult())

        threading.Thread(target=work, daemon=True).start()

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
        duration: int | None = None,
    ) -> tuple[Fence | None, Callable[[], FencedResult]]:
        fence = OwnFence()

        def work() -> None:
            try:
                for other in wait_for:
                    other.wait()
                if self.odd == "fence_hangs":
                    time.sleep(3600)
                self.execute_synchronously(request)
            except DriverError as error:
                fence.status = error.status
            fence.event.set()

        def information() -> FencedResult:
            if not fence.event.is_set():
                raise DriverError(ErrorStatus.GENERAL_FAILURE, "not finished")
            return FencedResult(fence.status, Timing(1, 2), Timing(None, deadline))

        if not wait_for:
            work()
            return None, information
        threading.Thread(target=work, daemon=True).start()
        return fence, information

    def configure_execution_burst(self) -> Burst:
        return FullBurst(self)

    def create_reusable_execution(self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION) -> Execution:
        return FullExecution(self, request)


class FullBurst(Burst):
    def __init__(self, prepared: FullPreparedModel) -> None:
        self._prepared = prepared
        ALIVE.append("burst")

    def execute_synchronously(
        self,
        request: Request,
        memory_tokens: Sequence[int],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        if len(memory_tokens) != len(request.pools) or min(memory_tokens) < -1:
            raise invalid("tokens")
        return self._prepared.execute_synchronously(request)

    def release_memory_resource(self, token: int) -> None:
        if token < 0:
            raise invalid("token")

    def close(self) -> None:
        ALIVE.remove("burst")


class FullExecution(Execution):
    def __init__(self, prepared: FullPreparedModel, request: Request) -> None:
        self._prepared = prepared
        self._request = request

    def execute_synchronously(self, deadline: int | None = None) -> ExecutionResult:
        return self._prepared.execute_synchronously(self._request)

    def execute_fenced(
        self, wait_for: Sequence[Fence], deadline: int | None = None, duration: int | None = None
    ) -> tuple[Fence | None, Callable[[], FencedResult]]:
        return self._prepared.execute_fenced(self._request, wait_for, deadline=deadline)


DRIVER = FullDriver
