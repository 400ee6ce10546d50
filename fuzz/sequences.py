"""Call sequences out of bytes: over the whole interface, in any order and from several threads.

A small state machine goes along and says what each call owes: right results of what is prepared, a refusal of buffers
that are released, empty or made for something else, of tokens and deadlines that are wrong. What the contract leaves to
the client (a model that is let go while something of it runs) is not done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.behaviour import refuses
from conformance.buffer_steps import NO_MEMORY
from fuzz.attempt import Attempt
from fuzz.graphs import origin_of
from fuzz.known import Known
from fuzz.vehicles import Vehicle
from harness.case import Step, TestCase
from harness.expectations import Describes, Expectation, Expected, Rejects, Returns, Unspecified
from harness.steps import (
    SECOND,
    Action,
    Allocation,
    Copying,
    Layout,
    Preparation,
    Releasing,
    Role,
    Running,
    Signalling,
    Thing,
)
from nnhal.types import FL3, FL4, FL8, Array, ErrorStatus, ExecutionMode, OperandType
from opset.source import Source, choice

MODELS = 2  # of a case
SLOTS = 3  # of each kind of object
STEPS = (3, 24)
THREADS = 3
LAUNCHED = 10  # slots of launches and fences stand beyond those of other objects
OWN_FENCE = 20
GF = ErrorStatus.GENERAL_FAILURE
ASYNC, BURST, FENCED = ExecutionMode.ASYNCHRONOUS, ExecutionMode.BURST, ExecutionMode.FENCED
REUSABLE, SYNC = ExecutionMode.REUSABLE, ExecutionMode.SYNCHRONOUS


@dataclass
class _Held:
    """A driver-managed buffer.

    Attributes:
        slot: of the prepared model that its roles are of.
        role: what it is for: (is an output, number).
        twice: it is for the other end, too: (is an output, number), of the same type and shape.
        content: what is in it; None for nothing that may be read.
        gone: it is released.
    """

    slot: int
    role: tuple[bool, int]
    serial: int
    content: Expected | None = None
    gone: bool = False


@dataclass
class _State:
    """What exists while a sequence runs, and the steps so far."""

    source: Source
    known: Known
    vehicles: list[Vehicle]
    steps: list[Step] = field(default_factory=list)
    prepared: dict[int, int] = field(default_factory=dict)  # slot to number of the model
    serials: dict[int, int] = field(default_factory=dict)  # which preparation is in a slot
    bursts: dict[int, int] = field(default_factory=dict)  # slot to number of the model
    executions: dict[int, int] = field(default_factory=dict)
    buffers: dict[int, _Held] = field(default_factory=dict)
    launches: dict[int, tuple[int, ExecutionMode, int]] = field(default_factory=dict)  # model, mode, run
    fences: list[int] = field(default_factory=list)  # of ours, not signalled
    count: int = 0  # of preparations
    token: int = 7
    buffered: bool = False

    def add(self, *steps: Step) -> None:
        self.steps += steps

    def pick(self, among: dict[int, object] | dict[int, int]) -> int | None:
        """A slot in which something is."""
        return choice(self.source, sorted(among)) if among else None

    def slot(self) -> int:
        return self.source.integer(0, SLOTS - 1)

    def run(self, slot: int, mode: ExecutionMode = SYNC, **more: object) -> Step:
        """An execution of what is prepared in a slot."""
        number = self.prepared[slot]
        step = self.vehicles[number].execute(number, self.source.integer(0, 1))
        return replace(step, mode=mode, slot=slot, **more)  # type: ignore[arg-type]


Act = Callable[[_State], None]


def call_sequence(source: Source, known: Known) -> Attempt | None:
    """A sequence of calls, with what is due at each."""
    vehicles = known.vehicles
    if not vehicles:
        return None
    first = source.integer(0, len(vehicles) - 1)
    chosen = [vehicles[(first + n) % len(vehicles)] for n in range(min(MODELS, len(vehicles)))]
    state = _State(source, known, chosen)
    for number in range(len(chosen)):
        state.add(Step(Action.QUERY, number))
    _prepare(state)
    acts = _acts(known)
    for _ in range(source.integer(*STEPS)):
        choice(source, acts)(state)
    _settle(state)
    needs = ("buffers",) if state.buffered else ()
    level = max(known.level if state.buffered else FL3, *(v.level for v in chosen))
    highest = None if known.level >= FL8 else known.level
    words = ", ".join(step.action.value for step in state.steps[len(chosen) :])
    origin = origin_of("sequences", words)
    models = tuple(v.model for v in chosen)
    return Attempt(TestCase(origin, models, tuple(state.steps), min(level, known.level), highest=highest, needs=needs))


def _acts(known: Known) -> tuple[Act, ...]:
    """What may come next, common things more often."""
    acts: list[Act] = [_execute, _execute, _prepare, _release_prepared, _side_by_side, _refused, _describe]
    modes = known.modes
    if ASYNC in modes or FENCED in modes:
        acts += [_launch, _launch, _wait]
    if FENCED in modes:
        acts += [_fence, _signal]
    if BURST in modes:
        acts += [_open_burst, _in_burst, _in_burst, _close_burst]
    if REUSABLE in modes:
        acts += [_create, _reuse, _reuse, _drop]
    if known.buffers and known.level >= FL4:
        acts += [_allocate, _allocate, _copy_in, _copy_out, _with_buffers, _with_buffers, _release_buffer]
    return tuple(acts)


# --- preparing and executing ------------------------------------------------------------------------------------------


def _prepare(state: _State) -> None:
    slot, number = state.slot(), state.source.integer(0, len(state.vehicles) - 1)
    if slot in state.prepared:
        _release(state, slot)
    state.add(Step(Action.PREPARE, number, slot=slot))
    state.prepared[slot] = number
    state.count += 1
    state.serials[slot] = state.count


def _release_prepared(state: _State) -> None:
    slot = state.pick(state.prepared)
    if slot is not None and len(state.prepared) > 1:
        _release(state, slot)


def _release(state: _State, slot: int) -> None:
    """Lets a prepared model go; what runs on it is waited for first, what hangs on it goes first."""
    number = state.prepared[slot]
    for launch, (model, _, _) in sorted(state.launches.items()):
        if model == number:
            _wait_for(state, launch)
    for burst in [b for b, model in state.bursts.items() if model == number]:
        state.add(Step(Action.RELEASE, slot=burst, how=Releasing(Thing.BURST)))
        del state.bursts[burst]
    for execution in [e for e, model in state.executions.items() if model == number]:
        state.add(Step(Action.RELEASE, slot=execution, how=Releasing(Thing.EXECUTION)))
        del state.executions[execution]
    state.add(Step(Action.RELEASE, slot=slot, how=Releasing(Thing.PREPARED)))
    del state.prepared[slot]


def _execute(state: _State) -> None:
    slot = state.pick(state.prepared)
    if slot is None:
        return _prepare(state)
    how = None if state.source.integer(0, 3) else Running(deadline=60 * SECOND)
    return state.add(state.run(slot, choice(state.source, state.known.modes), how=how))


def _side_by_side(state: _State) -> None:
    """Executions in several threads at once."""
    if not state.prepared:
        return _prepare(state)
    for thread in range(1, state.source.integer(2, THREADS) + 1):
        slot = choice(state.source, sorted(state.prepared))
        for _ in range(state.source.integer(1, 2)):
            state.add(state.run(slot, choice(state.source, state.known.modes), thread=thread))
    return None


def _refused(state: _State) -> None:
    """A call that must be refused, after which all goes on."""
    kind = state.source.integer(0, 2)
    number = state.source.integer(0, len(state.vehicles) - 1)
    if kind == 0 and state.known.validates:
        bad = choice(state.source, (-1, 3, 1 << 20))
        due = refuses("P", f"the execution preference is {bad}")
        state.add(Step(Action.PREPARE, number, due, slot=SLOTS, how=Preparation(preference=bad)))
    elif kind == 1 and state.bursts:
        slot = choice(state.source, sorted(state.bursts))
        token = choice(state.source, (-1, -2, -(1 << 31)))
        due = refuses("T", f"memory of token {token} is to be forgotten")
        state.add(Step(Action.FORGET, 0, due, BURST, slot=slot, how=Releasing(Thing.BURST, token)))
    elif state.known.level >= FL4 and state.prepared:
        state.add(replace(state.run(choice(state.source, sorted(state.prepared))), expect=Unspecified(),
                          how=Running(deadline=-SECOND)))  # fmt: skip


def _describe(state: _State) -> None:
    state.add(Step(Action.DESCRIBE, expect=Describes()))


# --- launches and fences ----------------------------------------------------------------------------------------------


def _launch(state: _State) -> None:
    slot = state.pick(state.prepared)
    free = [LAUNCHED + n for n in range(SLOTS) if LAUNCHED + n not in state.launches]
    if slot is None or not free:
        return
    mode = choice(state.source, [m for m in (ASYNC, FENCED) if m in state.known.modes])
    number, run = state.prepared[slot], state.source.integer(0, 1)
    waits: tuple[int, ...] = ()
    if mode == FENCED and state.fences and state.source.integer(0, 1):
        waits = (choice(state.source, state.fences),)
    inputs, _ = state.vehicles[number].runs[run]
    # A launch's own slot names it; the prepared model is that of the slot of the model's number.
    if number not in state.prepared or state.prepared[number] != number:
        return
    state.add(Step(Action.LAUNCH, number, Returns(), mode, inputs, slot=free[0], how=Running(waits=waits)))
    state.launches[free[0]] = (number, mode, run)


def _wait(state: _State) -> None:
    launch = choice(state.source, sorted(state.launches)) if state.launches else None
    if launch is not None:
        _wait_for(state, launch)


def _wait_for(state: _State, launch: int) -> None:
    """Waits for a launch; all fences of ours are signalled before."""
    while state.fences:
        _signal_one(state, state.fences[0])
    number, mode, run = state.launches.pop(launch)
    state.add(Step(Action.WAIT, number, state.vehicles[number].runs[run][1], mode, slot=launch))


def _fence(state: _State) -> None:
    if len(state.fences) < SLOTS:
        number = OWN_FENCE + len(state.steps)
        state.add(Step(Action.FENCE, slot=number))
        state.fences.append(number)


def _signal(state: _State) -> None:
    if state.fences:
        _signal_one(state, choice(state.source, state.fences))


def _signal_one(state: _State, fence: int) -> None:
    state.fences.remove(fence)
    state.add(Step(Action.SIGNAL, slot=fence, how=Signalling()))


# --- bursts and reusable executions -----------------------------------------------------------------------------------


def _open_burst(state: _State) -> None:
    number = _in_own_slot(state)
    free = [slot for slot in range(SLOTS) if slot not in state.bursts]
    if number is not None and free:
        state.add(Step(Action.OPEN_BURST, number, slot=free[0]))
        state.bursts[free[0]] = number


def _in_own_slot(state: _State) -> int | None:
    """Number of a model that is prepared in the slot of its number, which is what steps without a slot mean."""
    found = [slot for slot, number in sorted(state.prepared.items()) if slot == number]
    return choice(state.source, found) if found else None


def _in_burst(state: _State) -> None:
    """An execution in a burst; each token stands for one memory until it is forgotten."""
    slot = state.pick(state.bursts)
    if slot is None:
        return _open_burst(state)
    number = state.bursts[slot]
    made = state.vehicles[number].execute(number, state.source.integer(0, 1))
    pools = 2 if any(value is not None for value in made.inputs) else 1
    keeps = state.source.integer(0, 1)
    tokens = tuple(range(state.token, state.token + pools)) if keeps else None
    state.add(replace(made, mode=BURST, slot=number, how=Running(uses=slot, tokens=tokens, layout=Layout())))
    if tokens is None:
        return None
    if state.source.integer(0, 1):
        state.add(*(Step(Action.FORGET, slot=slot, how=Releasing(Thing.BURST, token)) for token in tokens))
        return None  # the same numbers may come again, for other memory
    state.token += pools
    return None


def _close_burst(state: _State) -> None:
    slot = state.pick(state.bursts)
    if slot is not None:
        del state.bursts[slot]
        state.add(Step(Action.RELEASE, slot=slot, how=Releasing(Thing.BURST)))


def _create(state: _State) -> None:
    number = _in_own_slot(state)
    free = [slot for slot in range(SLOTS) if slot not in state.executions]
    if number is not None and free:
        inputs, returns = state.vehicles[number].runs[0]
        state.add(Step(Action.CREATE, number, returns, inputs=inputs, slot=free[0]))
        state.executions[free[0]] = number


def _reuse(state: _State) -> None:
    slot = state.pick(state.executions)
    if slot is None:
        return _create(state)
    number = state.executions[slot]
    made = state.vehicles[number].execute(number, state.source.integer(0, 1))
    mode = choice(state.source, [m for m in (REUSABLE, FENCED) if m in state.known.modes])
    return state.add(replace(made, mode=mode, slot=number, how=Running(uses=slot)))


def _drop(state: _State) -> None:
    slot = state.pick(state.executions)
    if slot is not None:
        del state.executions[slot]
        state.add(Step(Action.RELEASE, slot=slot, how=Releasing(Thing.EXECUTION)))


# --- buffers ----------------------------------------------------------------------------------------------------------


def _allocate(state: _State) -> None:
    prepared = state.pick(state.prepared)
    slot = state.slot()
    if prepared is None or (slot in state.buffers and not state.buffers[slot].gone):
        return
    chosen = state.vehicles[state.prepared[prepared]]
    output = bool(state.source.integer(0, 1))
    places = [n for n, shape in enumerate(chosen.shapes(output=output)) if shape and 0 not in shape]
    if not places:
        return
    place = choice(state.source, places)
    how = Allocation((prepared,), (Role(0, place, output=output),))
    state.add(Step(Action.ALLOCATE, 0, Returns(unless=NO_MEMORY), slot=slot, how=how))
    state.buffers[slot] = _Held(prepared, (output, place), state.serials[prepared])
    state.buffered = True


def _value(state: _State, held: _Held, run: int) -> Array | None:
    """The input of a run that a buffer is for, if it is for one."""
    number = state.prepared[held.slot]
    value = state.vehicles[number].runs[run][0][held.role[1]]
    return None if held.role[0] else value


def _whole(state: _State, held: _Held) -> bool:
    """Whether the prepared model that a buffer was made for is still in its slot."""
    return state.serials.get(held.slot) == held.serial and held.slot in state.prepared


def _live(state: _State) -> list[int]:
    return [slot for slot, held in sorted(state.buffers.items()) if not held.gone]


def _copy_in(state: _State) -> None:
    slots = [slot for slot in _live(state) if _whole(state, state.buffers[slot]) and not state.buffers[slot].role[0]]
    if not slots:
        return _allocate(state)
    slot = choice(state.source, slots)
    held = state.buffers[slot]
    value = _value(state, held, state.source.integer(0, 1))
    if value is None:
        return None
    wrong = state.source.integer(0, 5) == 0
    size = value.nbytes + choice(state.source, (-1, 1, 64)) if wrong else None
    due: Expectation = refuses("B4", f"{size} bytes are copied into a buffer of {value.nbytes}") if wrong else Returns()
    state.add(Step(Action.COPY_IN, 0, due, inputs=(value,), slot=slot, how=Copying(size=size)))
    number, place = state.prepared[held.slot], held.role[1]
    kind = state.vehicles[number].model.main.operands[state.vehicles[number].model.main.input_indexes[place]].type
    exact = Expected(f"input {place}", OperandType(kind), value.shape, value.astype(np.float64), np.zeros(value.shape))
    held.content = None if wrong else exact
    return None


def _copy_out(state: _State) -> None:
    slots = _live(state)
    if not slots:
        return _allocate(state)
    slot = choice(state.source, slots)
    held = state.buffers[slot]
    due: Expectation
    if held.content is None:
        due = refuses("B3", "nothing was put into the buffer, or a copy or execution into it failed", GF)
    else:
        due = Returns((held.content,))
    return state.add(Step(Action.COPY_OUT, 0, due, slot=slot, how=Copying()))


def _with_buffers(state: _State) -> None:
    """An execution that reads from or writes to a buffer: a right one, or one that is gone, empty or another's."""
    slots = sorted(state.buffers)
    if not slots:
        return _allocate(state)
    slot = choice(state.source, slots)
    held = state.buffers[slot]
    if held.slot not in state.prepared:
        return None
    number = state.prepared[held.slot]
    output, place = held.role
    run = state.source.integer(0, 1)
    inputs, returns = state.vehicles[number].runs[run]
    ends = returns.outputs if output else inputs
    if place >= len(ends) or (not output and inputs[place] is None):
        return None
    due: Expectation = returns
    if held.gone:
        due = refuses("B2", "the buffer has been released")
    elif not _whole(state, held):
        due = refuses("B2", "the buffer was made for another prepared model")
    elif not output and held.content is None:
        due = refuses("B3", "nothing is in the buffer", GF)
    elif not output:
        value = inputs[place]
        assert value is not None
        assert held.content is not None
        if not np.array_equal(value.astype(np.float64), held.content.value, equal_nan=True):
            run = 1 - run  # what was copied in is of the other run, or of none
            inputs, returns = state.vehicles[number].runs[run]
            other = inputs[place]
            if other is None or not np.array_equal(other.astype(np.float64), held.content.value, equal_nan=True):
                return None
            due = returns
    given = tuple(None if not output and n == place else value for n, value in enumerate(inputs))
    modes = [m for m in state.known.modes if m in (SYNC, BURST, REUSABLE)]
    how = Running(layout=Layout(buffers=((output, place, slot),)))
    state.add(Step(Action.EXECUTE, number, due, choice(state.source, modes), given, slot=held.slot, how=how))
    if output and not isinstance(due, Rejects):
        held.content = returns.outputs[place]
    return None


def _release_buffer(state: _State) -> None:
    slots = _live(state)
    if slots:
        slot = choice(state.source, slots)
        state.buffers[slot].gone = True
        state.buffers[slot].content = None
        state.add(Step(Action.RELEASE, slot=slot, how=Releasing(Thing.BUFFER)))


def _settle(state: _State) -> None:
    """Ends what is under way, and sees that all still works."""
    for launch in sorted(state.launches):
        _wait_for(state, launch)
    while state.fences:
        _signal_one(state, state.fences[0])
    slot = state.pick(state.prepared)
    if slot is not None:
        state.add(state.run(slot))
