"""The driver interface over a connection: each object here stands for one in the driver's process."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from harness.client import Again, Connection
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
    Device,
    Execution,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Extension,
    Fence,
    FencedResult,
    PreparedModel,
    Traits,
)
from nnhal.errors import DriverError, SuiteError
from nnhal.fences import SharedFence
from nnhal.memory import BytesMemory, Memory, SharedMemory
from nnhal.model import BufferToken, Model, Request
from nnhal.parts import Json, Parts
from nnhal.types import DeviceStatus, DeviceType, ErrorStatus, FeatureLevel
from nnhal.wire import decode, encode

T = TypeVar("T")
MODELS_KEPT = 8  # below what the service keeps
FENCE_SLICE = 20_000_000  # nanoseconds between looks whether the driver still lives
BYTES_PER_DEADLINE = 32 << 20
OPERATIONS_PER_DEADLINE = 500
MOST_SCALE = 10.0
Translate = Callable[[Model], Model]


def _write(hint: object, value: object, parts: Parts) -> Json:
    try:
        return encode(hint, value, parts)
    except (TypeError, ValueError) as error:
        raise SuiteError(f"this cannot be sent to a driver: {error}") from error


def _read(hint: type[T], answer: tuple[Json, Parts], connection: Connection) -> T:
    data, parts = answer
    try:
        return decode(hint, data, parts)
    except (ValueError, OverflowError) as error:
        raise connection.malformed(f"an answer of the wrong form ({error})") from None
    finally:
        parts.close()


class Staged:
    """A request whose pools in this process's own memory have been replaced by shared memory."""

    def __init__(self, request: Request) -> None:
        self._copies: dict[int, tuple[BytesMemory, SharedMemory]] = {}
        pools = tuple(self._shared(pool) for pool in request.pools)
        self.request = dataclasses.replace(request, pools=pools) if self._copies else request

    def _shared(self, pool: Memory | BufferToken) -> Memory | BufferToken:
        if not isinstance(pool, BytesMemory) or not pool.size:
            return pool
        if id(pool) not in self._copies:
            self._copies[id(pool)] = (pool, SharedMemory.create(pool.size))
            self._copies[id(pool)][1].view()[:] = pool.view()
        return self._copies[id(pool)][1]

    def copy_in(self) -> None:
        """Brings what the pools hold now to the shared memory."""
        for pool, shared in self._copies.values():
            shared.view()[:] = pool.view()

    def copy_back(self) -> None:
        """Brings what the driver wrote to the pools."""
        for pool, shared in self._copies.values():
            pool.view()[:] = shared.view()


class _Handle:
    """An object in the driver's process: released there when this one is closed or gone."""

    def __init__(self, connection: Connection, handle: int) -> None:
        self.connection = connection
        self.handle = handle
        self._released = False

    def release(self) -> None:
        """Has the driver let go of it now. A second call does nothing, nor one to a driver that is known to have ended.

        Objects are let go behind a failure, too; a further error would hide why.
        """
        if not self._released:
            self._released = True
            if self.connection.has_failed:
                return
            self.connection.call("release", [self.handle])

    def __del__(self) -> None:
        if not getattr(self, "_released", True):
            self.connection.released.append(self.handle)


class RemoteFence(SharedFence):
    """A fence that the driver signals; waiting for it ends when the driver does."""

    def __init__(self, fence: SharedFence, connection: Connection, done: Callable[[], None]) -> None:
        super().__init__(fence.event, fence.word)
        fence.event = -1
        self._connection = connection
        self._done = done

    def wait(self, timeout: int | None = None) -> bool:
        limit = int(self._connection.limit() * 1e9) if timeout is None else timeout
        left = limit
        while not super().wait(min(left, FENCE_SLICE)):
            left -= FENCE_SLICE
            self._connection.check()
            if left <= 0:
                if timeout is None:
                    self._connection.give_up(limit / 1e9)
                return False
        self._done()
        return True


def _fenced(
    connection: Connection, answer: tuple[Json, Parts], staged: Staged
) -> tuple[Fence | None, Callable[[], FencedResult]]:
    handle, shared = _read(tuple[int, SharedFence | None], answer, connection)
    information = _Handle(connection, handle)

    def ask() -> FencedResult:
        result = connection.call("fenced_info", [information.handle])
        staged.copy_back()
        return _read(FencedResult, result, connection)

    if shared is None:
        staged.copy_back()
        return None, ask
    return RemoteFence(shared, connection, staged.copy_back), ask


class RemoteBuffer(Buffer):
    """A driver-managed buffer."""

    def __init__(self, connection: Connection, handle: int, token: int) -> None:
        self.token = token
        self._handle = _Handle(connection, handle)

    def _pass(self, name: str, memory: Memory, rest: Sequence[Json] = ()) -> None:
        staged = Staged(Request((), (), (memory,)))
        parts = Parts()
        pool = _write(Memory, staged.request.pools[0], parts)
        try:
            self._handle.connection.call(name, [self._handle.handle, pool, *rest], parts)
        finally:
            staged.copy_back()

    def copy_to(self, destination: Memory) -> None:
        self._pass("copy_to", destination)

    def copy_from(self, source: Memory, dimensions: tuple[int, ...] = ()) -> None:
        self._pass("copy_from", source, [_write(tuple[int, ...], dimensions, Parts())])

    def close(self) -> None:
        self._handle.release()


class RemoteBurst(Burst):
    """A burst."""

    def __init__(self, connection: Connection, handle: int) -> None:
        self._handle = _Handle(connection, handle)

    def execute_synchronously(
        self,
        request: Request,
        memory_tokens: Sequence[int],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        staged, parts, connection = Staged(request), Parts(), self._handle.connection
        arguments = [
            self._handle.handle,
            _write(Request, staged.request, parts),
            _write(list[int], memory_tokens, parts),
            _write(ExecutionConfig, config, parts),
            deadline,
        ]
        try:
            answer = connection.call("burst_execute", arguments, parts)
        finally:
            staged.copy_back()
        return _read(ExecutionResult, answer, connection)

    def release_memory_resource(self, token: int) -> None:
        self._handle.connection.call("release_memory_resource", [self._handle.handle, token])

    def close(self) -> None:
        self._handle.release()


class RemoteExecution(Execution):
    """A reusable execution. Its request stays with the driver."""

    def __init__(self, connection: Connection, handle: int, staged: Staged) -> None:
        self._handle = _Handle(connection, handle)
        self._staged = staged

    def execute_synchronously(self, deadline: int | None = None) -> ExecutionResult:
        connection = self._handle.connection
        self._staged.copy_in()
        try:
            answer = connection.call("run", [self._handle.handle, deadline])
        finally:
            self._staged.copy_back()
        return _read(ExecutionResult, answer, connection)

    def execute_fenced(
        self, wait_for: Sequence[Fence], deadline: int | None = None, duration: int | None = None
    ) -> tuple[Fence | None, Callable[[], FencedResult]]:
        connection, parts = self._handle.connection, Parts()
        fences = _write(list[SharedFence], wait_for, parts)
        self._staged.copy_in()
        arguments: list[Json] = [self._handle.handle, fences, deadline, duration]
        return _fenced(connection, connection.call("run_fenced", arguments, parts), self._staged)


class RemotePreparedModel(PreparedModel):
    """A prepared model."""

    def __init__(self, connection: Connection, handle: int) -> None:
        self._handle = _Handle(connection, handle)

    @property
    def number(self) -> int:
        """What the driver's process knows it by."""
        return self._handle.handle

    @property
    def connection(self) -> Connection:
        """Where it lives."""
        return self._handle.connection

    def _arguments(
        self, request: Request, config: ExecutionConfig, rest: Sequence[Json] = ()
    ) -> tuple[Staged, list[Json], Parts]:
        staged, parts = Staged(request), Parts()
        arguments = [
            self._handle.handle,
            _write(Request, staged.request, parts),
            _write(ExecutionConfig, config, parts),
            *rest,
        ]
        return staged, arguments, parts

    def execute_synchronously(
        self,
        request: Request,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        staged, arguments, parts = self._arguments(request, config, [deadline])
        try:
            answer = self.connection.call("execute_synchronously", arguments, parts)
        finally:
            staged.copy_back()
        return _read(ExecutionResult, answer, self.connection)

    def execute(
        self,
        request: Request,
        callback: ExecutionCallback,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> None:
        staged, arguments, parts = self._arguments(request, config, [deadline])
        number = self.connection.expect(callback, staged.copy_back)
        try:
            self.connection.call("execute", [*arguments, number], parts)
        except DriverError:
            self.connection.forget(number)
            raise

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
        duration: int | None = None,
    ) -> tuple[Fence | None, Callable[[], FencedResult]]:
        staged, arguments, parts = self._arguments(request, config, [deadline])
        arguments += [_write(list[SharedFence], wait_for, parts), duration]
        return _fenced(self.connection, self.connection.call("execute_fenced", arguments, parts), staged)

    def configure_execution_burst(self) -> RemoteBurst:
        answer = self.connection.call("configure_execution_burst", [self._handle.handle])
        return RemoteBurst(self.connection, _read(int, answer, self.connection))

    def create_reusable_execution(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION
    ) -> RemoteExecution:
        staged, arguments, parts = self._arguments(request, config)
        answer = self.connection.call("create_reusable_execution", arguments, parts)
        return RemoteExecution(self.connection, _read(int, answer, self.connection), staged)

    def close(self) -> None:
        self._handle.release()


class _Models:
    """The last few models that were sent, by identity: each goes over the socket once."""

    def __init__(self, translate: Translate) -> None:
        self._translate = translate
        self._known: OrderedDict[int, tuple[Model, Model, int]] = OrderedDict()
        self._number = 0
        self._lock = threading.Lock()

    def find(self, model: Model) -> tuple[Model, int, bool]:
        """The model to send, its number, and whether it has to go whole."""
        with self._lock:
            found = self._known.get(id(model))
            if found is not None:
                self._known.move_to_end(id(model))
                return found[1], found[2], False
        ready = self._translate(model)  # may take long
        with self._lock:
            self._number += 1
            self._known[id(model)] = (model, ready, self._number)  # holds the model: its id stays its own
            while len(self._known) > MODELS_KEPT:
                self._known.popitem(last=False)
            return ready, self._number, True


def deadline_scale(model: Model) -> float:
    """How many deadlines the preparation of a model may take: it grows with the model."""
    size = len(model.operand_values) + sum(pool.size for pool in model.pools)
    steps = len(model.main.operations) + sum(len(graph.operations) for graph in model.referenced)
    return min(1 + size / BYTES_PER_DEADLINE + steps / OPERATIONS_PER_DEADLINE, MOST_SCALE)


class Link(Protocol):
    """What a session needs of the way to a driver elsewhere."""

    def limit(self) -> float:
        """Seconds that a call of this thread may take."""

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Another deadline for the calls of this thread meanwhile."""

    def wait_for_callback(
        self, callback: ExecutionCallback, seconds: float | None = None
    ) -> tuple[ErrorStatus, ExecutionResult]:
        """The first notification of a callback given to `execute`."""

    def give_up(self, seconds: float) -> None:
        """Stops a driver that was waited for in vain outside a call, and raises accordingly."""

    def check(self) -> None:
        """Raises when the driver has ended, also between calls."""


class WatchedDevice(Device):
    """A driver elsewhere: its death and silence are seen, also outside calls."""

    connection: Link


class RemoteDevice(WatchedDevice):
    """A driver in another process.

    Args:
        connection: to its service.
        level: the driver's feature level.
        traits: what it declares.
        translate: makes a model ready for it; gives the model itself for most drivers.
    """

    connection: Connection

    def __init__(self, connection: Connection, level: FeatureLevel, traits: Traits, translate: Translate) -> None:
        self.connection = connection
        self.feature_level = level
        self.traits = traits
        self._models = _Models(translate)

    def _ask(self, name: str, hint: type[T]) -> T:
        return _read(hint, self.connection.call(name, []), self.connection)

    def _call_with_model(
        self, name: str, model: Model, config: CompilationConfig | None = None, scale: float = 1.0
    ) -> tuple[Json, Parts]:
        ready, number, whole = self._models.find(model)
        while True:
            parts = Parts()
            data: list[Json] = [number, _write(Model, ready, parts)] if whole else [number]
            arguments: list[Json] = [data]
            if config is not None:
                arguments.append(_write(CompilationConfig, config, parts))
            try:
                return self.connection.call(name, arguments, parts, scale)
            except Again:
                if whole:
                    raise SuiteError("the service did not take a whole model") from None
                whole = True

    def get_status(self) -> DeviceStatus:
        return self._ask("get_status", DeviceStatus)

    def get_capabilities(self) -> Capabilities:
        return self._ask("get_capabilities", Capabilities)

    def get_type(self) -> DeviceType:
        return self._ask("get_type", DeviceType)

    def get_version_string(self) -> str:
        return self._ask("get_version_string", str)

    def get_supported_extensions(self) -> tuple[Extension, ...]:
        return self._ask("get_supported_extensions", tuple[Extension, ...])

    def get_number_of_cache_files_needed(self) -> CacheFilesNeeded:
        return self._ask("get_number_of_cache_files_needed", CacheFilesNeeded)

    def get_supported_operations(self, model: Model) -> list[bool]:
        answer = self._call_with_model("get_supported_operations", model)
        return _read(list[bool], answer, self.connection)

    def explain_unsupported(self, model: Model) -> list[str | None]:
        answer = self._call_with_model("explain_unsupported", model)
        return _read(list[str | None], answer, self.connection)

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> RemotePreparedModel:
        answer = self._call_with_model("prepare_model", model, config, deadline_scale(model))
        return RemotePreparedModel(self.connection, _read(int, answer, self.connection))

    def prepare_model_from_cache(
        self,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
        deadline: int | None = None,
    ) -> RemotePreparedModel:
        files = CompilationConfig(
            model_cache=tuple(model_cache),
            data_cache=tuple(data_cache),
            cache_token=token,
            deadline=deadline,
        )
        parts = Parts()
        arguments = [_write(CompilationConfig, files, parts)]
        answer = self.connection.call("prepare_model_from_cache", arguments, parts)
        return RemotePreparedModel(self.connection, _read(int, answer, self.connection))

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> RemoteBuffer:
        parts = Parts()
        mine: list[Json] = [
            m.number if isinstance(m, RemotePreparedModel) and m.connection is self.connection else None
            for m in prepared_models
        ]
        arguments = [
            _write(BufferDesc, desc, parts),
            mine,
            _write(list[BufferRole], input_roles, parts),
            _write(list[BufferRole], output_roles, parts),
        ]
        answer = self.connection.call("allocate", arguments, parts)
        handle, token = _read(tuple[int, int], answer, self.connection)
        return RemoteBuffer(self.connection, handle, token)
