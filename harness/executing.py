"""Executions in every mode, from the request in memory to the answer: steps that run a prepared model."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TypeVar

from harness.answers import MalformedAnswer, check_error, check_launch, collect, output_lengths, refused
from harness.cache_files import CacheFiles
from harness.case import Step, TestCase
from harness.guards import Arena, Guarded, guard
from harness.layouts import arrange
from harness.outcome import StepOutcome
from harness.remote import WatchedDevice
from harness.requests import edited
from harness.steps import (
    SECOND,
    Action,
    Releasing,
    Running,
    Signalling,
    Thing,
)
from nnhal.device import (
    Buffer,
    Burst,
    Device,
    Execution,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Fence,
    FencedResult,
    PreparedModel,
    Timing,
)
from nnhal.errors import DriverError, DriverTimedOut, SuiteError, UncleanError
from nnhal.fences import SharedFence
from nnhal.types import FL3, FL8, ErrorStatus, ExecutionMode, FeatureLevel

CALLBACK_SECONDS = 10.0
HELP_SECONDS = 0.5  # that a call may take before the suite takes the driver for waiting for its fences
LONG_LOOP = 2 * SECOND  # a loop that may run for longer needs a longer call


class Missing(Exception):
    """What a step stands on is not there: it was refused before, as it may be."""


Restart = Callable[..., Device]
T = TypeVar("T")
Member = TypeVar("Member", bound=IntEnum)


def how_of(step: Step, kind: type[T], default: T | None) -> T:
    """What goes with a step."""
    if isinstance(step.how, kind):
        return step.how
    if default is None or step.how is not None:
        raise SuiteError(f"a step that is to {step.action.value} says too little: {step.how}")
    return default


def member_of(kind: type[Member], number: int) -> Member:
    """The member of an enumeration; the plain number where it has none."""
    return kind(number) if number in list(kind) else number  # type: ignore[return-value]


def from_now(nanoseconds: int | None) -> int | None:
    """The deadline that lies so far ahead, or behind."""
    return None if nanoseconds is None else time.monotonic_ns() + nanoseconds


@dataclass
class _Launch:
    """An execution that is under way."""

    guarded: Guarded
    step: Step
    callback: ExecutionCallback | None = None
    fence: Fence | None = None
    report: Callable[[], FencedResult] | None = None
    refused: DriverError | None = None  # by a driver that waited for a fence in error before it answered


@dataclass
class _Kept:
    """A reusable execution and the memory of its request."""

    execution: Execution
    guarded: Guarded


@dataclass
class Executing:
    """What exists on both sides while a case runs, and how executions are done with it.

    Attributes:
        level: the level that the driver is asked at.
        restart: goes on with a fresh process of the driver and gives its device; may be handed the byte `fill`.
        fill: byte that memory holds which nobody has written; None for the usual ones.
    """

    case: TestCase
    device: Device
    arena: Arena
    in_process: bool
    level: FeatureLevel = FL8
    restart: Restart | None = None
    fill: int | None = None
    prepared: dict[int, PreparedModel] = field(default_factory=dict)
    bursts: dict[int, Burst] = field(default_factory=dict)
    executions: dict[int, _Kept] = field(default_factory=dict)
    buffers: dict[int, Buffer] = field(default_factory=dict)
    spent: dict[int, int] = field(default_factory=dict)  # tokens of buffers that were released
    fences: dict[int, Fence | None] = field(default_factory=dict)
    launches: dict[int, _Launch] = field(default_factory=dict)
    caches: dict[int, CacheFiles] = field(default_factory=dict)
    callbacks: dict[int, ExecutionCallback] = field(default_factory=dict)
    arenas: list[Arena] = field(default_factory=list)
    own: set[int] = field(default_factory=set)  # slots of the suite's fences
    hurried: bool = False  # fences were signalled early, for a driver that waits for them before it answers a launch

    def _execute(self, number: int, step: Step, arena: Arena) -> StepOutcome:
        how = how_of(step, Running, Running())
        measured = how.measure and self.level >= FL3
        prepared = self.prepared.get(self._model_slot(step))
        reused = step.mode in (ExecutionMode.REUSABLE, ExecutionMode.FENCED) and how.uses in self.executions
        if prepared is None and not reused:
            raise Missing
        if reused:
            guarded = self.executions[how.uses or 0].guarded
            guarded.refill(step.inputs)
        else:
            guarded = self._memory(step, how, arena)
        try:
            if step.action == Action.LAUNCH:
                self._launch(prepared, guarded, step, how)
                return StepOutcome(number, ErrorStatus.NONE, measured=measured)
            result, fenced = self._run(prepared, guarded, step, how)
        except DriverError as error:
            return replace(refused(number, error, guarded), measured=measured)
        except UncleanError as error:
            findings = tuple(guarded.findings())
            return StepOutcome(number, None, unclean=str(error), trace=error.trace, findings=findings)
        return replace(
            collect(number, self.case.models[step.model], guarded, result, step), measured=measured, fenced=fenced
        )

    def _model_slot(self, step: Step) -> int:
        """The slot of the prepared model; a launch's own slot names the launch."""
        return step.model if step.action in (Action.LAUNCH, Action.CREATE, Action.OPEN_BURST) else step.place

    def _memory(self, step: Step, how: Running, arena: Arena) -> Guarded:
        model, lengths = self.case.models[step.model], output_lengths(self.case.models[step.model], step)
        if how.layout is None:
            guarded = guard(arena, model, step.inputs, lengths, self.fill)
        else:
            tokens = {(out, place): self._token(slot) for out, place, slot in how.layout.buffers}
            guarded = arrange(model, step.inputs, lengths, how.layout, tokens)
        guarded.request = edited(guarded.request, how.edits)
        return guarded

    def _token(self, slot: int) -> int:
        """The token of the buffer in a slot; of one that was released, the token that it had."""
        return self.spent[slot] if slot in self.spent else self.thing(self.buffers, slot).token

    def _mode(self, step: Step) -> ExecutionMode:
        """The step's mode; levels 1 and 2 have nothing but the asynchronous one."""
        waits = step.mode == ExecutionMode.SYNCHRONOUS and self.level < FL3
        can = ExecutionMode.ASYNCHRONOUS in self.device.traits.execution_modes
        return ExecutionMode.ASYNCHRONOUS if waits and can else step.mode

    def _config(self, how: Running) -> ExecutionConfig:
        return ExecutionConfig(how.measure and self.level >= FL3, how.loop_timeout)

    def _run(
        self, prepared: PreparedModel | None, guarded: Guarded, step: Step, how: Running
    ) -> tuple[ExecutionResult, Timing | None]:
        """One execution from call to end; the second part is the timing counted from the fences, if there is one."""
        deadline = how.deadline if how.absolute else from_now(how.deadline)
        config, request = self._config(how), guarded.request
        step = replace(step, mode=self._mode(step))
        if step.mode == ExecutionMode.REUSABLE and how.uses is not None:
            return self.thing(self.executions, how.uses).execution.execute_synchronously(deadline), None
        if step.mode in (ExecutionMode.ASYNCHRONOUS, ExecutionMode.FENCED):
            launch = self._begin(prepared, guarded, step, how)
            return self._end(launch)
        if prepared is None:
            raise Missing
        if step.mode == ExecutionMode.BURST:
            tokens = [-1] * len(request.pools) if how.tokens is None else list(how.tokens)
            if how.uses is not None:
                burst = self.thing(self.bursts, how.uses)
                return burst.execute_synchronously(request, tokens, config, deadline), None
            with contextlib.closing(prepared.configure_execution_burst()) as burst:
                return burst.execute_synchronously(request, tokens, config, deadline), None
        if step.mode == ExecutionMode.REUSABLE:
            return prepared.create_reusable_execution(request, config).execute_synchronously(deadline), None
        return prepared.execute_synchronously(request, config, deadline), None

    def _launch(self, prepared: PreparedModel | None, guarded: Guarded, step: Step, how: Running) -> None:
        self.launches[step.place] = launch = self._begin(prepared, guarded, step, how)
        if step.mode == ExecutionMode.FENCED and launch.refused is None:
            self.fences[step.place] = launch.fence

    def _begin(self, prepared: PreparedModel | None, guarded: Guarded, step: Step, how: Running) -> _Launch:
        deadline = how.deadline if how.absolute else from_now(how.deadline)
        config, request, launch = self._config(how), guarded.request, _Launch(guarded, step)
        if step.mode == ExecutionMode.ASYNCHRONOUS:
            if prepared is None:
                raise Missing
            launch.callback = self.callbacks[len(self.callbacks)] = ExecutionCallback()
            try:
                prepared.execute(request, launch.callback, config, deadline)
            except DriverError as error:
                check_launch(launch.callback, error)
                raise
            return launch
        waits = [fence for slot in how.waits if (fence := self.thing(self.fences, slot)) is not None]
        if how.uses is None and prepared is None:
            raise Missing
        try:
            if how.uses is not None:
                kept = self.thing(self.executions, how.uses)
                launch.fence, launch.report = kept.execution.execute_fenced(waits, deadline, how.duration)
            elif prepared is not None:
                launch.fence, launch.report = prepared.execute_fenced(request, waits, config, deadline, how.duration)
        except DriverError as error:
            if not (self.hurried and any(self._end_of(slot) for slot in self.own.intersection(how.waits))):
                raise
            launch.refused = error
        return launch

    @contextlib.contextmanager
    def helping(self) -> Iterator[None]:
        """Signals the suite's fences when a call takes long.

        A driver may wait for them before it answers the launch, or do its work in the order of the calls. Then the
        client, which signals later, would wait for ever.
        """
        found = {slot: self.fences.get(slot) for slot in tuple(self.own)}
        open_ = {slot: f for slot, f in found.items() if isinstance(f, SharedFence) and f.status is None}

        def help_on() -> None:
            self.hurried = True
            for slot, fence in open_.items():
                fence.signal(self._end_of(slot))

        if not open_:
            yield
            return
        timer = threading.Timer(HELP_SECONDS, help_on)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end_of(self, slot: int) -> ErrorStatus:
        """How a later step ends a fence of the suite."""
        signals = [step for step in self.case.steps if step.action == Action.SIGNAL and step.place == slot]
        return how_of(signals[0], Signalling, Signalling()).status if signals else ErrorStatus.NONE

    def _end(self, launch: _Launch) -> tuple[ExecutionResult, Timing | None]:
        """Waits for a launched execution.

        Raises:
            DriverError: it ended with another status than NONE.
        """
        if launch.refused is not None:
            raise launch.refused
        if launch.callback is not None:
            status, result = self._notified(launch)
            if status not in (ErrorStatus.NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE):
                check_error(status, result)
                raise DriverError(status)
            short = status == ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
            return replace(result, output_sufficient_size=not short and result.output_sufficient_size), None
        ended = ErrorStatus.NONE
        if launch.fence is not None:
            try:
                if not launch.fence.wait(int(CALLBACK_SECONDS * SECOND)):
                    raise self._late("the fence of a fenced execution was never signalled")
            except DriverError as error:
                ended = error.status
        assert launch.report is not None
        fenced = launch.report()
        if launch.fence is not None and bool(ended) != bool(fenced.status):
            text = f"the fence ended with {ended.name}, the report says {fenced.status.name}"
            raise MalformedAnswer(fenced.status, text)
        if fenced.status != ErrorStatus.NONE:
            if fenced.timing_launched != Timing() or fenced.timing_fenced != Timing():
                raise MalformedAnswer(fenced.status, f"{fenced.status.name} came with timing, none is due")
            raise DriverError(fenced.status)
        return ExecutionResult((), fenced.timing_launched), fenced.timing_fenced

    def _notified(self, launch: _Launch) -> tuple[ErrorStatus, ExecutionResult]:
        """What a callback was notified with; a driver elsewhere may die or fall silent meanwhile."""
        assert launch.callback is not None
        if isinstance(self.device, WatchedDevice):
            return self.device.connection.wait_for_callback(launch.callback)
        notified = launch.callback.wait(CALLBACK_SECONDS)
        if notified is None:
            raise self._late("the callback of an asynchronous execution was never notified")
        return notified

    def _late(self, text: str) -> DriverTimedOut:
        if isinstance(self.device, WatchedDevice):
            self.device.connection.give_up(CALLBACK_SECONDS)
        return DriverTimedOut(CALLBACK_SECONDS, text)

    def _wait(self, number: int, step: Step) -> StepOutcome:
        launch = self.thing(self.launches, step.place)
        how = how_of(launch.step, Running, Running())
        measured = how.measure and self.level >= FL3
        try:
            result, fenced = self._end(launch)
        except DriverError as error:
            return replace(refused(number, error, launch.guarded), measured=measured)
        model = self.case.models[launch.step.model]
        return replace(collect(number, model, launch.guarded, result, launch.step), measured=measured, fenced=fenced)

    def _ask(self, number: int, step: Step) -> StepOutcome:
        launch = self.thing(self.launches, step.place)
        if launch.report is None:
            raise Missing  # it was not fenced
        found = launch.report()
        if self.hurried:
            raise Missing  # the work could begin before it was asked for
        if found.status != ErrorStatus.NONE:
            raise DriverError(found.status)
        return StepOutcome(number, ErrorStatus.NONE)

    def _fence(self, number: int, step: Step) -> StepOutcome:
        self.fences[step.place] = SharedFence.create()
        self.own.add(step.place)
        return StepOutcome(number, ErrorStatus.NONE)

    def _signal(self, number: int, step: Step) -> StepOutcome:
        fence = self.thing(self.fences, step.place)
        if not isinstance(fence, SharedFence) or step.place not in self.own:
            raise SuiteError("a fence of the driver is the driver's to signal")
        fence.signal(how_of(step, Signalling, Signalling()).status)
        return StepOutcome(number, ErrorStatus.NONE)

    def _open_burst(self, number: int, step: Step) -> StepOutcome:
        burst = self.thing(self.prepared, step.model).configure_execution_burst()
        if not isinstance(burst, Burst):
            text = f"TypeError: configure_execution_burst answered {type(burst).__name__}, Burst is due"
            return StepOutcome(number, None, unclean=text)
        self.bursts[step.place] = burst
        return StepOutcome(number, ErrorStatus.NONE)

    def _create(self, number: int, step: Step) -> StepOutcome:
        how = how_of(step, Running, Running())
        prepared = self.thing(self.prepared, step.model)
        arena = Arena(pages=self.arena.pages)
        self.arenas.append(arena)
        guarded = self._memory(step, how, arena)
        execution = prepared.create_reusable_execution(guarded.request, self._config(how))
        self.executions[step.place] = _Kept(execution, guarded)
        return StepOutcome(number, ErrorStatus.NONE)

    def _forget(self, number: int, step: Step) -> StepOutcome:
        self.thing(self.bursts, step.place).release_memory_resource(how_of(step, Releasing, None).token)
        return StepOutcome(number, ErrorStatus.NONE)

    def _release(self, number: int, step: Step) -> StepOutcome:
        kind = how_of(step, Releasing, Releasing()).thing
        if kind == Thing.EXECUTION:
            self.thing(self.executions, step.place)
            del self.executions[step.place]
            return StepOutcome(number, ErrorStatus.NONE)
        if kind == Thing.PREPARED:
            self.thing(self.prepared, step.place).close()
            del self.prepared[step.place]
        elif kind == Thing.BURST:
            self.thing(self.bursts, step.place).close()
            del self.bursts[step.place]
        else:
            buffer = self.thing(self.buffers, step.place)
            self.spent[step.place] = buffer.token
            buffer.close()
            del self.buffers[step.place]
        return StepOutcome(number, ErrorStatus.NONE)

    @staticmethod
    def thing(table: dict[int, T], slot: int) -> T:
        """An object of the driver.

        Raises:
            Missing: there is none in the slot.
        """
        if slot not in table:
            raise Missing
        return table[slot]
