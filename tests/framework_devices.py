"""Devices and small models for the tests of the framework: who has which operation is written in the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from framework import Event, EventKind, Framework
from nnhal.capabilities import uniform
from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    NO_TIMING,
    Burst,
    Capabilities,
    CompilationConfig,
    ExecutionConfig,
    ExecutionResult,
    PerformanceInfo,
    PreparedModel,
    Timing,
    Traits,
)
from nnhal.errors import DriverError
from nnhal.memory import SharedMemory
from nnhal.model import DataLocation, Model, Operand, Operation, Request, RequestArgument, Subgraph, count_consumers
from nnhal.types import Array, ErrorStatus, ExecutionMode, OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from reference_driver import ReferenceDevice

LIFE = OperandLifeTime
BYTES = 24  # of a float tensor of 2 by 3
FAR = 2**62  # a deadline
BINARY = (Op.ADD, Op.MUL, Op.SUB)


def network(
    inputs: int,
    *steps: tuple[int, tuple[int, ...]],
    outputs: Collection[int] = (),
    shape: tuple[int, ...] = (2, 3),
    inside: tuple[int, ...] | None = None,
    kind: OperandType = OperandType.TENSOR_FLOAT32,
) -> Model:
    """A model of operations on tensors of one shape.

    Value k below `inputs` is input k, value `inputs` + n the result of operation n; operand k is value k. ADD, MUL and
    SUB get an activation, the operand behind all values.

    Args:
        inputs: how many.
        steps: code and values that go in, of each operation.
        outputs: values that come out besides those that nobody reads.
        shape: of all tensors.
        inside: dimensions that the model declares of what operations make.
        kind: of all tensors.
    """
    read = {index for _, taken in steps for index in taken}
    activation = inputs + len(steps)
    operands = [Operand(kind, shape, lifetime=LIFE.SUBGRAPH_INPUT)] * inputs
    operations = []
    for number, (code, taken) in enumerate(steps):
        index = inputs + number
        out = index not in read or index in outputs
        lifetime = LIFE.SUBGRAPH_OUTPUT if out else LIFE.TEMPORARY_VARIABLE
        operands.append(Operand(kind, shape if inside is None else inside, lifetime=lifetime))
        operations.append(Operation(int(code), (*taken, activation) if code in BINARY else taken, (index,)))
    operands.append(Operand(OperandType.INT32, lifetime=LIFE.CONSTANT_COPY, location=DataLocation(0, 4, 4)))
    came_out = tuple(i for i, o in enumerate(operands) if o.lifetime == LIFE.SUBGRAPH_OUTPUT)
    graph = Subgraph(tuple(operands), tuple(operations), tuple(range(inputs)), came_out)
    return Model(count_consumers(graph), operand_values=bytes(8))


def two_parts() -> Model:
    """ABS, then FLOOR of it."""
    return network(1, (Op.ABS, (0,)), (Op.FLOOR, (1,)))


def due(value: Array) -> Array:
    """What `two_parts` gives."""
    return np.floor(np.abs(value))


def request_for(inputs: Sequence[Array], lengths: Sequence[int]) -> Request:
    """A request with all inputs in one pool and all outputs in another."""
    given, taken, position = [], [], 0
    pool = SharedMemory.create(sum(value.nbytes for value in inputs))
    for value in inputs:
        pool.view()[position : position + value.nbytes] = value.tobytes()
        given.append(RequestArgument(DataLocation(0, position, value.nbytes), value.shape))
        position += value.nbytes
    position = 0
    for length in lengths:
        taken.append(RequestArgument(DataLocation(1, position, length)))
        position += length
    return Request(tuple(given), tuple(taken), (pool, SharedMemory.create(position)))


def output(request: Request, number: int, shape: tuple[int, ...] = (2, 3)) -> Array:
    place = request.outputs[number].location
    pool = request.pools[place.pool_index]
    assert isinstance(pool, SharedMemory)
    count = int(np.prod(shape))
    return np.frombuffer(bytes(pool.view()[place.offset : place.offset + 4 * count]), np.float32).reshape(shape)


def ramp(shape: tuple[int, ...] = (2, 3), start: float = -1.25) -> Array:
    size = int(np.prod(shape))
    return (start + 0.5 * np.arange(size, dtype=np.float32)).reshape(shape)


def failure(status: ErrorStatus = ErrorStatus.GENERAL_FAILURE) -> DriverError:
    return DriverError(status, "so the test wants it")


@dataclass
class Some(ReferenceDevice):
    """A right driver that has some operations only, and does what else the test says.

    Attributes:
        codes: the operations that it claims.
        raises: what a method raises, by name: `query`, `prepare`, `execute`.
        during: what happens in each execution before it answers.
        shapes: what an execution answers instead of the right shapes.
        timing: what an execution answers where timing is asked for.
        spill: bytes that an execution writes behind its first output.
        claims: decides about a model instead of `codes`.
        reason: why it does not support what it does not.
    """

    codes: Collection[int]
    cost: float = 1.0
    power: float = 1.0
    capabilities: Capabilities | None = None
    at: int = 8
    raises: dict[str, BaseException] = field(default_factory=dict)
    during: Callable[[], None] | None = None
    timing: Timing | None = None
    spill: int = 0
    claims: Callable[[Model], list[bool]] | None = None
    reason: str | None = None
    modes: frozenset[ExecutionMode] = frozenset(ExecutionMode)
    queried: list[Model] = field(default_factory=list)
    models: list[Model] = field(default_factory=list)
    configs: list[CompilationConfig] = field(default_factory=list)
    runs: list[tuple[Request, ExecutionConfig, int | None]] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    closed: int = 0

    def __post_init__(self) -> None:
        super().__init__(level=str(self.at))
        self.traits = Traits(execution_modes=self.modes, buffers=True)

    def get_capabilities(self) -> Capabilities:
        return self.capabilities or uniform(PerformanceInfo(self.cost, self.power))

    def get_supported_operations(self, model: Model) -> list[bool]:
        self.queried.append(model)
        if "query" in self.raises:
            raise self.raises["query"]
        right = super().get_supported_operations(model)
        if self.claims is not None:
            return self.claims(model)
        return [known and o.type in self.codes for known, o in zip(right, model.main.operations, strict=True)]

    def explain_unsupported(self, model: Model) -> list[str | None]:
        return [None if yes else self.reason for yes in self.get_supported_operations(model)]

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        self.models.append(model)
        self.configs.append(config)
        if "prepare" in self.raises:
            raise self.raises["prepare"]
        return SomePrepared(self, super()._prepare(model, config.deadline))

    def allocate(self, desc, prepared_models, input_roles, output_roles):  # type: ignore[no-untyped-def]
        inner = [prepared.inner for prepared in prepared_models]
        return super().allocate(desc, inner, input_roles, output_roles)


class SomePrepared(PreparedModel):
    def __init__(self, device: Some, inner: PreparedModel) -> None:
        self._device = device
        self.inner = inner

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        device = self._device
        device.runs.append((request, config, deadline))
        if "execute" in device.raises:
            raise device.raises["execute"]
        result = self.inner.execute_synchronously(request, config, deadline)
        if device.during is not None:
            device.during()
        if device.spill:
            place = request.outputs[0].location
            end = place.offset + place.length
            request.pools[place.pool_index].view()[end : end + device.spill] = bytes(device.spill)  # type: ignore[union-attr]
        timing = device.timing if device.timing is not None and config.measure_timing else NO_TIMING
        return replace(result, timing=timing)

    def execute(self, request, callback, config=DEFAULT_EXECUTION, deadline=None) -> None:  # type: ignore[no-untyped-def]
        self._device.runs.append((request, config, deadline))
        self.inner.execute(request, callback, config, deadline)

    def execute_fenced(self, request, wait_for, config=DEFAULT_EXECUTION, deadline=None, duration=None):  # type: ignore[no-untyped-def]
        if "execute" in self._device.raises:
            raise self._device.raises["execute"]
        self._device.runs.append((request, config, deadline))
        return self.inner.execute_fenced(request, wait_for, config, deadline, duration)

    def create_reusable_execution(self, request, config=DEFAULT_EXECUTION):  # type: ignore[no-untyped-def]
        self._device.runs.append((request, config, None))
        return self.inner.create_reusable_execution(request, config)

    def configure_execution_burst(self) -> Burst:
        return SomeBurst(self, self._device)

    def close(self) -> None:
        self._device.closed += 1


class SomeBurst(Burst):
    def __init__(self, prepared: SomePrepared, device: Some) -> None:
        self._prepared, self._device = prepared, device

    def execute_synchronously(self, request, memory_tokens, config=DEFAULT_EXECUTION, deadline=None):  # type: ignore[no-untyped-def]
        self._device.tokens.append(tuple(memory_tokens))
        return self._prepared.execute_synchronously(request, config, deadline)

    def release_memory_resource(self, token: int) -> None:
        self._device.released.append(token)


class Together:
    """A framework of such devices, and what it reported."""

    def __init__(self, *devices: Some, cpu: bool = True) -> None:
        self.events: list[Event] = []
        names = "abcdef"
        self.cpu = Some(tuple(Op)) if cpu else None
        self.framework = Framework(list(zip(names, devices, strict=False)), self.cpu, report=self.events.append)

    def parts(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> list[tuple[str, tuple[int, ...]]]:
        """The partition of a model: device and operations of each part."""
        self.framework.prepare_model(model, config).close()
        plan = [event.plan for event in self.events if event.kind == EventKind.PREPARED][-1]
        assert plan is not None
        return [(part.member.name, part.operations) for part in plan.parts]

    def kinds(self) -> list[EventKind]:
        """What was reported besides partitions."""
        return [event.kind for event in self.events if event.kind != EventKind.PREPARED]


def prepared(together: Together, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
    return together.framework.prepare_model(model, config)


def until_past(moment: int) -> None:
    """Returns when a moment has passed."""
    while time.monotonic_ns() < moment:
        threading.Event().wait(0.001)
