"""A driver around another one, with a fault's hooks on every method of the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from drivers._faults import Allocating, CopyingBuffer, Fault, Loading, Preparing, Query, Run, State
from drivers._faults_running import FaultyPreparedModel
from nnhal import loading
from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    Adapter,
    Buffer,
    BufferDesc,
    BufferRole,
    CacheFilesNeeded,
    Capabilities,
    CompilationConfig,
    Device,
    ExecutionConfig,
    ExecutionResult,
    Extension,
    PreparedModel,
)
from nnhal.loading import DriverSpec
from nnhal.memory import Memory
from nnhal.model import BufferToken, Model, Request, Translation
from nnhal.types import DeviceStatus, DeviceType

INNER = "inner."
T = TypeVar("T")


def inner_spec(options: Mapping[str, str]) -> DriverSpec:
    """The driver that does the work."""
    name = options.get("inner", loading.REFERENCE)
    inner = {k[len(INNER) :]: v for k, v in options.items() if k.startswith(INNER)}
    return DriverSpec(name, name, inner)


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
