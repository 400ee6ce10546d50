"""A compiled model of the library, and every way to run it that the library has."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from ctypes import c_void_p

from drivers._nnapi_library import Library
from drivers._nnapi_memory import BufferMemories, Pools, by_pointer, memory_from
from drivers._nnapi_model import NativeModel
from drivers._nnapi_request import FENCED_IN_DRIVER, FENCED_ON_HARDWARE, BoundExecution
from drivers._nnapi_rules import refuse_unsaid_request
from nnhal.device import (
    DEFAULT_EXECUTION,
    NO_TIMING,
    Burst,
    Execution,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Fence,
    FencedResult,
    PreparedModel,
)
from nnhal.errors import DriverError, invalid
from nnhal.fences import SharedFence, SyncFence
from nnhal.memory import Memory
from nnhal.model import Request
from nnhal.running import FencedReport, launch, launching, once_at_a_time
from nnhal.types import ErrorStatus, FeatureLevel
from nnhal.validate import validate_execution, validate_token, validate_tokens


class NativePreparedModel(PreparedModel):
    """A compilation. It goes when it is closed and nothing of it runs any more.

    Args:
        library: whose compilation.
        native: the model that was compiled.
        address: of the compilation.
        level: of the device.
        buffers: driver-managed memory.
        all_rules: the adapter checks requests by every rule, and not only by those that the interface cannot express.
    """

    def __init__(
        self,
        library: Library,
        native: NativeModel,
        address: int,
        level: FeatureLevel,
        buffers: BufferMemories,
        *,
        all_rules: bool,
    ) -> None:
        self.library = library
        self.model = native.model
        self.address = address
        self.buffers = buffers
        self._native = native
        self._level = level
        self._all_rules = all_rules
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._free()

    def _free(self) -> None:
        with self._lock:
            if not self._closed or self._users or not self.address:
                return
            address, self.address = self.address, 0
        self.library.free("Compilation_free", address)
        self._native.close()

    def keep(self) -> None:
        """Makes sure that the compilation stays until `release`."""
        with self._lock:
            if not self.address:
                raise invalid("the prepared model is closed")
            self._users += 1

    def release(self) -> None:
        """The end of a `keep`."""
        with self._lock:
            self._users -= 1
        self._free()

    def bind(self, request: Request, config: ExecutionConfig, pools: Pools) -> BoundExecution:
        """An execution of a request; `keep` must have been called."""
        return BoundExecution(self.library, self.address, self.model, request, config, pools, self.buffers)

    def check(self, request: Request, config: ExecutionConfig, deadline: int | None, *, fenced: bool = False) -> None:
        """Refuses what the C interface cannot express, or what breaks any rule where so wanted."""
        refuse_unsaid_request(request, self.model, self._level, fenced=fenced, all_rules=self._all_rules)
        validate_execution(config, deadline)

    @contextlib.contextmanager
    def bound(self, request: Request, config: ExecutionConfig, pools: Pools | None = None) -> Iterator[BoundExecution]:
        """An execution for the time of a block, with the compilation kept."""
        self.keep()
        own = Pools(self.library, request.pools) if pools is None else pools
        try:
            execution = self.bind(request, config, own)
            try:
                yield execution
            finally:
                execution.close()
        finally:
            if pools is None:
                own.close()
            self.release()

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        self.check(request, config, deadline)
        with self.bound(request, config) as execution:
            execution.set_deadline(deadline)
            return execution.result(self.library.code("Execution_compute", execution.address), "Execution_compute")

    def execute(
        self,
        request: Request,
        callback: ExecutionCallback,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> None:
        with launching(callback):
            self.check(request, config, deadline)
            flight = _Flight(self, request, config)
            try:
                flight.execution.set_deadline(deadline)
                flight.start("Execution_startCompute")
            except BaseException:
                flight.close()
                raise
        launch(callback, flight.end, "nnapi-execution", lost=_report_lost)

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
        duration: int | None = None,
    ) -> tuple[Fence | None, FencedReport]:
        self.check(request, config, deadline, fenced=True)
        validate_execution(DEFAULT_EXECUTION, None, duration)
        return _Fenced(_Flight(self, request, config), wait_for).start(deadline, duration)

    def configure_execution_burst(self) -> Burst:
        return _NativeBurst(self)

    def create_reusable_execution(self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION) -> Execution:
        self.check(request, config, None)
        return _NativeExecution(self, request, config)


def _report_lost(error: Exception) -> None:
    """An answer that is none, of an execution that nobody waits for: the process's end tells of it."""
    raise error


class _Flight:
    """An execution that is started now and ends later."""

    def __init__(self, prepared: NativePreparedModel, request: Request, config: ExecutionConfig) -> None:
        self.library = prepared.library
        self._prepared = prepared
        self._event = 0
        self._name = ""
        prepared.keep()
        self._pools = Pools(self.library, request.pools)
        try:
            self.execution = prepared.bind(request, config, self._pools)
        except BaseException:
            self._pools.close()
            prepared.release()
            raise

    def start(self, name: str, *arguments: object) -> None:
        """Starts it with one of the functions that give an event."""
        self._name = name
        self._event = self.library.make(name, self.execution.address, *arguments)

    def wait(self) -> int:
        """Waits for the end and gives its result code."""
        return self.library.code("Event_wait", self._event)

    def end(self) -> ExecutionResult:
        """Waits for the end, gives the result and frees everything."""
        try:
            return self.execution.result(self.wait(), self._name)
        finally:
            self.close()

    def close(self) -> None:
        """Frees everything."""
        event, self._event = self._event, 0
        self.library.free("Event_free", event)
        self.execution.close()
        self._pools.close()
        self._prepared.release()


class _Fenced:
    """A fenced execution: the library waits for descriptors, a thread waits for the library."""

    def __init__(self, flight: _Flight, wait_for: Sequence[Fence]) -> None:
        self._flight = flight
        self._wait_for = tuple(wait_for)
        self._result: FencedResult | None = None
        self._lost: Exception | None = None
        self._fence = SharedFence.create()

    def start(self, deadline: int | None, duration: int | None) -> tuple[Fence | None, FencedReport]:
        library, events = self._flight.library, []
        try:
            for fence in self._wait_for:
                if not isinstance(fence, SyncFence):
                    raise invalid("a fence without a descriptor")
                events.append(library.make("Event_createFromSyncFenceFd", fence.event))
            self._flight.execution.set_deadline(deadline)
            given = (c_void_p * len(events))(*events)
            name = "Execution_startComputeWithDependencies"
            # A duration of 0 would mean that there is none.
            self._flight.start(name, given, len(events), 0 if duration is None else max(1, duration))
        except BaseException:
            self._flight.close()
            raise
        finally:
            for event in events:
                library.free("Event_free", event)
        threading.Thread(target=self._work, name="nnapi-fenced", daemon=True).start()
        return self._fence, self.report

    def _work(self) -> None:
        execution, status = self._flight.execution, ErrorStatus.NONE
        launched = fenced = NO_TIMING
        try:
            status = execution.result(self._flight.wait(), "Event_wait").status
            if not status:
                launched, fenced = execution.timing(), execution.timing(FENCED_ON_HARDWARE, FENCED_IN_DRIVER)
            for fence in self._wait_for:  # the interface has no word for a fence that ended in error
                fence.wait()
        except DriverError as error:
            status, launched, fenced = error.status, NO_TIMING, NO_TIMING
        except Exception as error:  # an answer that is none; `report` hands it on
            status, self._lost = ErrorStatus.GENERAL_FAILURE, error
        finally:
            self._flight.close()
            self._result = FencedResult(status, launched, fenced)
            self._fence.signal(status)

    def report(self) -> FencedResult:
        """Status and timing; GENERAL_FAILURE while the work is not done.

        Raises:
            Exception: the library answered what is no answer.
        """
        if self._lost is not None:
            raise self._lost
        return self._result or FencedResult(ErrorStatus.GENERAL_FAILURE)


class _KeptPools(Pools):
    """Pools of a burst's request: memory objects stay, by token, from one request to the next."""

    def __init__(self, library: Library, pools: Sequence[object], tokens: Sequence[int], kept: dict[int, int]) -> None:
        super().__init__(library, pools)
        self._tokens, self._kept = tokens, kept

    def memory(self, number: int) -> int:
        token, pool = self._tokens[number], self._pools[number]
        if token < 0 or not isinstance(pool, Memory) or by_pointer(pool):
            return super().memory(number)
        if token not in self._kept:
            self._kept[token] = memory_from(self._library, pool)
        return self._kept[token]


class _NativeBurst(Burst):
    """A burst object of the library."""

    def __init__(self, prepared: NativePreparedModel) -> None:
        self._prepared = prepared
        self._memories: dict[int, int] = {}
        prepared.keep()
        try:
            self._address = prepared.library.make("Burst_create", prepared.address)
        except BaseException:
            prepared.release()
            raise

    def execute_synchronously(
        self,
        request: Request,
        memory_tokens: Sequence[int],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        validate_tokens(request, memory_tokens)
        self._prepared.check(request, config, deadline)
        library = self._prepared.library
        pools = _KeptPools(library, request.pools, memory_tokens, self._memories)
        try:
            with self._prepared.bound(request, config, pools) as execution:
                execution.set_deadline(deadline)
                name = "Execution_burstCompute"
                return execution.result(library.code(name, execution.address, self._address), name)
        finally:
            pools.close()

    def release_memory_resource(self, token: int) -> None:
        validate_token(token)
        self._prepared.library.free("Memory_free", self._memories.pop(token, 0))

    def close(self) -> None:
        address, self._address = self._address, 0
        if not address:
            return
        self._prepared.library.free("Burst_free", address)
        while self._memories:
            self._prepared.library.free("Memory_free", self._memories.popitem()[1])
        self._prepared.release()


class _NativeExecution(Execution):
    """A reusable execution of the library."""

    def __init__(self, prepared: NativePreparedModel, request: Request, config: ExecutionConfig) -> None:
        self._prepared, self._request, self._config = prepared, request, config
        self._busy = threading.Lock()
        prepared.keep()
        self._pools: Pools | None = Pools(prepared.library, request.pools)
        self._execution: BoundExecution | None = None
        try:
            self._execution = prepared.bind(request, config, self._pools)
            prepared.library.call("Execution_setReusable", self._execution.address, True)
        except BaseException:
            self.close()
            raise

    def execute_synchronously(self, deadline: int | None = None) -> ExecutionResult:
        with once_at_a_time(self._busy):
            validate_execution(DEFAULT_EXECUTION, deadline)
            execution, library = self._execution, self._prepared.library
            if execution is None:
                raise invalid("the execution is closed")
            if deadline is None:
                execution.clear_deadline()
            else:
                execution.set_deadline(deadline)
            return execution.result(library.code("Execution_compute", execution.address), "Execution_compute")

    def execute_fenced(
        self, wait_for: Sequence[Fence], deadline: int | None = None, duration: int | None = None
    ) -> tuple[Fence | None, FencedReport]:
        return self._prepared.execute_fenced(self._request, wait_for, self._config, deadline, duration)

    def close(self) -> None:
        """Frees it. A second call does nothing."""
        execution, self._execution = self._execution, None
        if execution is not None:
            execution.close()
        pools, self._pools = self._pools, None
        if pools is not None:
            pools.close()
            self._prepared.release()

    def __del__(self) -> None:
        if hasattr(self, "_execution"):
            self.close()
