"""What a fault is: a record of the rule that is broken, what the driver does, and what has to catch it.

A hook stands in for one method of the contract: it gets the occasion and `go`, which does what the inner driver does.
`drivers._faults_wrapping` puts hooks around a driver; the modules beside this one hold the faults.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivers._faults_memory import Outputs
from nnhal.device import (
    NO_TIMING,
    Buffer,
    BufferDesc,
    BufferRole,
    CacheFilesNeeded,
    Capabilities,
    CompilationConfig,
    Device,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Extension,
    Fence,
    FencedResult,
    PreparedModel,
    Timing,
    Traits,
)
from nnhal.memory import Memory
from nnhal.model import Model, Request
from nnhal.types import DeviceStatus, DeviceType, ErrorStatus, ExecutionMode

if TYPE_CHECKING:
    from drivers._faults_running import FaultyPreparedModel
    from drivers._faults_wrapping import FaultyBuffer

SYNC, ASYNC, BURST, FENCED, REUSABLE = (
    ExecutionMode.SYNCHRONOUS,
    ExecutionMode.ASYNCHRONOUS,
    ExecutionMode.BURST,
    ExecutionMode.FENCED,
    ExecutionMode.REUSABLE,
)
EVERY_MODE = frozenset(ExecutionMode)
Fenced = tuple[Fence | None, Callable[[], FencedResult]]


class Trigger:
    """Says whether a fault is due: from the (after + 1)-th occasion on, for models with the operation."""

    def __init__(self, after: int = 0, operation: int | None = None) -> None:
        self._after = after
        self._operation = operation
        self._count = 0
        self._lock = threading.Lock()

    def concerns(self, model: Model | None) -> bool:
        """Whether the model holds the operation that the fault is limited to."""
        if self._operation is None or model is None:
            return self._operation is None
        graphs = (model.main, *model.referenced)
        return any(operation.type == self._operation for graph in graphs for operation in graph.operations)

    def is_due(self, model: Model | None) -> bool:
        """Counts an occasion."""
        if not self.concerns(model):
            return False
        with self._lock:
            self._count += 1
            return self._count > self._after


@dataclass
class State:
    """One faulty driver from its start on.

    Attributes:
        inner: the driver that does the work.
        seconds: how long a slow fault takes.
        buffers: driver-managed buffers by token.
        kept: whatever a fault remembers.
        chance: differs from process to process.
    """

    inner: Device
    trigger: Trigger = field(default_factory=Trigger)
    seconds: float = 1.0
    buffers: dict[int, FaultyBuffer] = field(default_factory=dict)
    kept: dict[object, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    chance: int = field(default_factory=lambda: int.from_bytes(os.urandom(4), "little"))

    def count(self, key: object) -> int:
        """How often this was asked with a key: 1 the first time."""
        with self.lock:
            self.kept[key] = number = int(self.kept.get(key, 0)) + 1
        return number


@dataclass
class Query:
    """A support query."""

    state: State
    model: Model


@dataclass
class Preparing:
    """A preparation; `config` may be changed before the inner driver gets it."""

    state: State
    model: Model
    config: CompilationConfig


@dataclass
class Loading:
    """A preparation from cache files."""

    state: State
    model_cache: Sequence[int]
    data_cache: Sequence[int]
    token: bytes
    deadline: int | None


@dataclass
class Run:
    """An execution in any mode; what it is made of may be changed before the inner driver gets it.

    Attributes:
        model: None for one that came out of cache files which this process has not saved.
        owner: the burst or reusable execution that runs it.
        fenced: the timing counted from the fences on.
    """

    state: State
    prepared: FaultyPreparedModel
    mode: ExecutionMode
    request: Request
    config: ExecutionConfig
    deadline: int | None = None
    duration: int | None = None
    wait_for: Sequence[Fence] = ()
    tokens: list[int] | None = None
    owner: object = None
    fenced: Timing = NO_TIMING

    @property
    def model(self) -> Model | None:
        """The model that is run."""
        return self.prepared.model

    @property
    def outputs(self) -> Outputs:
        """The outputs in place."""
        return Outputs(self.model, self.request)

    def due(self) -> bool:
        """Counts an occasion: for faults that look at every execution themselves."""
        return self.state.trigger.is_due(self.model)


@dataclass
class Allocating:
    """An allocation."""

    state: State
    desc: BufferDesc
    models: Sequence[PreparedModel]
    inputs: Sequence[BufferRole]
    outputs: Sequence[BufferRole]


@dataclass
class CopyingBuffer:
    """A copy into a driver-managed buffer or out of it."""

    state: State
    buffer: FaultyBuffer
    memory: Memory
    dimensions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fault:
    """A fault and what has to catch it.

    Attributes:
        text: what the driver does wrong.
        verdict: of the case in which it happens.
        cause: beside the verdict.
        section: part of the contract whose rule is broken.
        rule: the rule, as a sentence.
        catch: glob of ids: every case that it names has to end with this verdict and cause.
        breaks: glob of rules: of those cases only the ones that break such a rule are meant.
        isolated: the driver's process dies or falls silent.
        level: highest level at which the driver shows it; None for any.
        modes: of executions, that `run` concerns.
        always: hooks are called on every occasion, and count for themselves.
    """

    text: str
    verdict: str
    cause: str
    section: str = ""
    rule: str = ""
    catch: str = ""
    breaks: str = ""
    isolated: bool = False
    level: int | None = None
    modes: frozenset[ExecutionMode] = EVERY_MODE
    always: bool = False
    # What the device says of itself: the inner driver's answer in, the faulty one out.
    traits: Callable[[Traits], Traits] | None = None
    status: Callable[[State, DeviceStatus], DeviceStatus] | None = None
    capabilities: Callable[[State, Capabilities], Capabilities] | None = None
    kind: Callable[[State, DeviceType], DeviceType] | None = None
    version: Callable[[State, str], str] | None = None
    extensions: Callable[[State, tuple[Extension, ...]], tuple[Extension, ...]] | None = None
    cache_files: Callable[[State, CacheFilesNeeded], CacheFilesNeeded] | None = None
    # What it does.
    query: Callable[[Query, Callable[[], list[bool]]], list[bool]] | None = None
    prepare: Callable[[Preparing, Callable[[], PreparedModel]], PreparedModel] | None = None
    load: Callable[[Loading, Callable[[], PreparedModel]], PreparedModel] | None = None
    run: Callable[[Run, Callable[[], ExecutionResult]], ExecutionResult] | None = None
    notify: Callable[[Run, ExecutionCallback, ErrorStatus, ExecutionResult], None] | None = None
    launch: Callable[[Run, Callable[[], Fenced]], Fenced] | None = None
    forget: Callable[[State, int, Callable[[], None]], None] | None = None
    close: Callable[[State, Callable[[], None]], None] | None = None
    end: Callable[[State, Callable[[], None]], None] | None = None  # of a burst
    allocate: Callable[[Allocating, Callable[[], Buffer]], Buffer] | None = None
    copy_to: Callable[[CopyingBuffer, Callable[[], None]], None] | None = None
    copy_from: Callable[[CopyingBuffer, Callable[[], None]], None] | None = None


Faults = Mapping[str, Fault]
