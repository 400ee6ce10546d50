"""A driver around another one, with a fault's hooks on every method of the contract."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from drivers._faults import (
    ASYNC,
    BURST,
    FENCED,
    REUSABLE,
    SYNC,
    Allocating,
    CopyingBuffer,
    Fault,
    Fenced,
    Loading,
    Preparing,
    Query,
    Run,
    State,
)
from nnhal import loading
from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    Adapter,
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
)
from nnhal.errors import DriverError
from nnhal.fences import SharedFence
from nnhal.loading import DriverSpec
from nnhal.memory import Memory
from nnhal.model import BufferToken, Model, Request, Translation
from nnhal.types import DeviceStatus, DeviceType, ErrorStatus, ExecutionMode

INNER = "inner."
T = TypeVar("T")
Go = Callable[[], ExecutionResult]


def inner_spec(options: Mapping[str, str]) -> DriverSpec:
    """The driver that does the work."""
    name = options.get("inner", loading.REFERENCE)
    inner = {k[len(INNER) :]: v for k, v in options.items() if k.startswith(INNER)}
    return DriverSpec(name, name, inner)


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


def _status(result: ExecutionResult) -> ErrorStatus:
    return ErrorStatus.NONE if result.output_sufficient_size else ErrorStatus.OUTPUT_INSUFFICIENT_SIZE


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
            client.notify(_status(result), result)

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
        if self._inner is not None:
            self._inner.close()


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


class FaultyBuffer(Buffer):
    """A driver-managed buffer with the hooks around its copies.

    Attributes:
        asked: the allocation that it came from.
    """

    def __init__(self, inner: Buffer | None, token: int, device: FaultyDevice, asked: Allocating) -> None:
        self.inner = inner
        self.token = token
        self.asked = asked
        self._device = device

    def copy_to(self, destination: Memory) -> None:
        def go() -> None:
            if self.inner is not None:
                self.inner.copy_to(destination)

        hook = self._device.fault.copy_to
        if hook is None:
            go()
        else:
            hook(CopyingBuffer(self._device.state, self, destination), go)

    def copy_from(self, source: Memory, dimensions: tuple[int, ...] = ()) -> None:
        occasion = CopyingBuffer(self._device.state, self, source, dimensions)

        def go() -> None:
            if self.inner is not None:
                self.inner.copy_from(occasion.memory, occasion.dimensions)

        hook = self._device.fault.copy_from
        if hook is None:
            go()
        else:
            hook(occasion, go)

    def close(self) -> None:
        self._device.state.buffers.pop(self.token, None)
        if self.inner is not None:
            self.inner.close()


class FaultyDevice(Device):
    """A device that passes everything on to the inner one, but for the fault."""

    def __init__(self, state: State, name: str, fault: Fault) -> None:
        self.state = state
        self.fault = fault
        self.feature_level = state.inner.feature_level
        self.traits = state.inner.traits if fault.traits is None else fault.traits(state.inner.traits)
        self._name = name

    def is_due(self, model: Model | None) -> bool:
        """Whether a hook is to be called."""
        return self.fault.always or self.state.trigger.is_due(model)

    def _say(self, hook: Callable[[State, T], T] | None, answer: T) -> T:
        return answer if hook is None or not self.is_due(None) else hook(self.state, answer)

    def get_status(self) -> DeviceStatus:
        return self._say(self.fault.status, self.state.inner.get_status())

    def get_capabilities(self) -> Capabilities:
        return self._say(self.fault.capabilities, self.state.inner.get_capabilities())

    def get_type(self) -> DeviceType:
        return self._say(self.fault.kind, self.state.inner.get_type())

    def get_version_string(self) -> str:
        text = f"{self.state.inner.get_version_string()} with fault {self._name}"
        return self._say(self.fault.version, text)

    def get_supported_extensions(self) -> tuple[Extension, ...]:
        return self._say(self.fault.extensions, self.state.inner.get_supported_extensions())

    def get_number_of_cache_files_needed(self) -> CacheFilesNeeded:
        return self._say(self.fault.cache_files, self.state.inner.get_number_of_cache_files_needed())

    def get_supported_operations(self, model: Model) -> list[bool]:
        hook = self.fault.query
        if hook is None or not self.is_due(model):
            return self.state.inner.get_supported_operations(model)
        return hook(Query(self.state, model), lambda: self.state.inner.get_supported_operations(model))

    def explain_unsupported(self, model: Model) -> list[str | None]:
        return self.state.inner.explain_unsupported(model)

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        occasion = Preparing(self.state, model, config)
        hook = self.fault.prepare

        def go() -> PreparedModel:
            return FaultyPreparedModel(self.state.inner.prepare_model(occasion.model, occasion.config), model, self)

        made = go() if hook is None or not self.is_due(model) else hook(occasion, go)
        if config.model_cache or config.data_cache:
            self.state.kept["saved", config.cache_token] = model
        return self._wrapped(made, model)

    def prepare_model_from_cache(
        self,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
        deadline: int | None = None,
    ) -> PreparedModel:
        occasion = Loading(self.state, model_cache, data_cache, token, deadline)
        hook = self.fault.load
        saved = self.state.kept.get(("saved", token))

        def go() -> PreparedModel:
            o = occasion
            made = self.state.inner.prepare_model_from_cache(o.model_cache, o.data_cache, o.token, o.deadline)
            return FaultyPreparedModel(made, saved, self)

        if hook is None or not self.is_due(None):
            return go()
        return self._wrapped(hook(occasion, go), saved)

    def _wrapped(self, made: PreparedModel, model: Model | None) -> PreparedModel:
        return FaultyPreparedModel(None, model, self) if isinstance(made, Nothing) else made

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        occasion = Allocating(self.state, desc, prepared_models, input_roles, output_roles)
        hook = self.fault.allocate

        def go() -> Buffer:
            o = occasion
            inner = [m.inner if isinstance(m, FaultyPreparedModel) and m.inner else m for m in o.models]
            made = self.state.inner.allocate(o.desc, inner, o.inputs, o.outputs)
            return FaultyBuffer(made, made.token, self, occasion)

        made = go() if hook is None or not self.is_due(None) else hook(occasion, go)
        if isinstance(made, NoBuffer):
            made = FaultyBuffer(None, made.token, self, occasion)
        if isinstance(made, FaultyBuffer):
            self.state.buffers[made.token] = made
        return made


class Nothing(PreparedModel):
    """What a hook gives where the inner driver has prepared nothing: it accepts every request and does nothing."""

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        return ExecutionResult()


class NoBuffer(Buffer):
    """What a hook gives where the inner driver has allocated nothing."""

    def __init__(self, token: int = 4711) -> None:
        self.token = token

    def copy_to(self, destination: Memory) -> None:
        """Nothing."""

    def copy_from(self, source: Memory, dimensions: tuple[int, ...] = ()) -> None:
        """Nothing."""


def buffers_of(run: Run) -> list[FaultyBuffer]:
    """The driver-managed buffers of a request."""
    tokens = [pool.token for pool in run.request.pools if isinstance(pool, BufferToken)]
    return [run.state.buffers[token] for token in tokens if token in run.state.buffers]


class FaultyAdapter(FaultyDevice, Adapter):
    """The same around an adapter."""

    @staticmethod
    def translate(model: Model, options: Mapping[str, str]) -> Translation:
        """The inner adapter's translation."""
        spec = inner_spec(options)
        return loading.adapter_of(spec).translate(model, spec.options)
