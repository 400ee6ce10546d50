"""Scenarios of quality of service: preferences, priorities, deadlines, durations, the time-out of loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from conformance.behaviour import MISSED, Scenario, Vehicle, case, execute, prepared
from conformance.control_flow import endless
from conformance.execution import BURST, FENCED, SINCE, SYNC, UNTIL, WORDS
from harness.case import Step, TestCase
from harness.expectations import Rejects, Returns
from harness.steps import SECOND, Action, Preparation, Running
from nnhal.types import FL2, FL4, ExecutionMode, ExecutionPreference, FeatureLevel, Priority

TOPIC = "QOS"
MILLISECOND = SECOND // 1000
PAST, NOW, TIGHT, GENEROUS = -SECOND, 0, 5 * MILLISECOND, 3600 * SECOND
ENDLESS = "a WHILE without end"
MAY_MISS = Returns(unless=MISSED)
DEADLINES = {"past": PAST, "now": NOW, "tight": TIGHT, "generous": GENEROUS}


def _preferences(v: Vehicle) -> TestCase:
    """Each preference gives right results; models of all live together."""
    steps = [Step(Action.QUERY)]
    for n, preference in enumerate(ExecutionPreference):
        steps += [Step(Action.PREPARE, slot=n, how=Preparation(preference=preference)), execute(v, slot=n)]
    return case([*steps, *(execute(v, slot=n) for n in (1, 0, 2))], v, level=FL2)


def _priorities(v: Vehicle) -> TestCase:
    """Each priority gives right results, also side by side."""
    steps = [Step(Action.QUERY)]
    for n, priority in enumerate(Priority):
        steps += [Step(Action.PREPARE, slot=n, how=Preparation(priority=priority)), execute(v, slot=n)]
    steps += [execute(v.rolled(n), slot=n, thread=n + 1) for n in range(3)]
    return case(steps, v, level=FL4)


def _prepared_by(name: str) -> Scenario:
    """Preparation with a deadline: done, or missed, and never anything else; the next preparation is not concerned."""

    def make(v: Vehicle) -> TestCase:
        how = Preparation(deadline=DEADLINES[name])
        due = Returns() if name == "generous" else MAY_MISS
        steps = [Step(Action.QUERY), Step(Action.PREPARE, 0, due, how=how), execute(v)]
        return case([*steps, Step(Action.PREPARE, slot=1), execute(v, slot=1)], v, level=FL4)

    may = "" if name == "generous" else ", or is missed with MISSED_DEADLINE_*"
    return Scenario(TOPIC, f"prepared.{name}", make, f"a preparation with a deadline ({name}) succeeds{may}")


def _executed_by(name: str, mode: ExecutionMode) -> Scenario:
    """Execution with a deadline: right results, or missed (outputs ignored); the next execution is not concerned."""

    def make(v: Vehicle) -> TestCase:
        how = Running(deadline=DEADLINES[name])
        due = v.returns if name == "generous" else replace(v.returns, unless=MISSED)
        steps = [*prepared(), execute(v, mode=mode, how=how, expect=due), execute(v, mode=mode)]
        steps += [execute(v, mode=mode, how=how, expect=due, thread=n + 1) for n in range(2)]
        return case([*steps, execute(v)], v, level=max(SINCE[mode], FL4), highest=UNTIL.get(mode))

    may = "" if name == "generous" else ", or is missed with MISSED_DEADLINE_* and without shapes and timing"
    text = f"an execution with a deadline ({name}) gives right results{may}"
    return Scenario(TOPIC, f"executed.{name}.{WORDS[mode]}", make, text, mode=WORDS[mode])


def _duration(name: str) -> Scenario:
    """A fenced execution's duration counts from when all fences have signalled."""

    def make(v: Vehicle) -> TestCase:
        how = Running(duration=max(DEADLINES[name], 1))
        due = v.returns if name == "generous" else replace(v.returns, unless=MISSED)
        return case([*prepared(), execute(v, mode=FENCED, how=how, expect=due), execute(v)], v, level=FL4)

    text = f"a fenced execution with a duration ({name}) gives right results or MISSED_DEADLINE_*"
    return Scenario(TOPIC, f"duration.{name}", make, text, mode="fenced")


def _duration_waits(v: Vehicle) -> TestCase:
    """Time spent on waiting for fences does not count as duration."""
    how = Running(duration=30 * SECOND, waits=(9,))
    steps = [*prepared(), Step(Action.FENCE, slot=9)]
    steps.append(execute(v, mode=FENCED, how=how, slot=0, action=Action.LAUNCH, expect=Returns()))
    steps += [execute(v), Step(Action.SIGNAL, slot=9), Step(Action.WAIT, 0, v.returns, FENCED, slot=0)]
    return case(steps, v, level=FL4)


def _loop(mode: ExecutionMode, timeout: int | None) -> Scenario:
    """An endless loop ends at its time-out with MISSED_DEADLINE_*, and the prepared model goes on as before."""

    def make(v: Vehicle) -> TestCase:
        program = endless()
        missed = Rejects(MISSED, "H8", "the loop has no end")
        how = Running(loop_timeout=timeout)
        run = Step(Action.EXECUTE, 0, missed, mode, program.inputs, how=how)
        steps = [*prepared(), *[run] * (1 if timeout is None else 2)]
        return case(
            steps,
            models=(program.model,),
            detail=ENDLESS,
            level=FeatureLevel(max(SINCE[mode], FL4)),
            highest=UNTIL.get(mode),
        )

    words = "after the 2 s that are the default" if timeout is None else f"after its time-out of {timeout / 1e6:g} ms"
    name = "default" if timeout is None else "short"
    text = f"a loop without end is ended {words}"
    return Scenario(TOPIC, f"loop.{name}.{WORDS[mode]}", make, text, "H8", once=True, mode=WORDS[mode])


def _loop_beside(v: Vehicle) -> TestCase:
    """While an endless loop runs into its time-out, executions of another model are not concerned."""
    program = endless()
    missed = Rejects(MISSED, "H8", "the loop has no end")
    how = Running(loop_timeout=200 * MILLISECOND)
    steps = [Step(Action.QUERY), Step(Action.PREPARE), *prepared(1)]
    steps.append(Step(Action.EXECUTE, 0, missed, SYNC, program.inputs, thread=1, how=how))
    steps += [execute(v, 1, thread=2), execute(v.rolled(1), 1, thread=2), execute(v, 1, thread=3), execute(v, 1)]
    return case(steps, models=(program.model, v.model), level=FeatureLevel(max(v.level, FL4)))


def _deadline_in_loop(v: Vehicle) -> TestCase:
    """A deadline ends a loop before its time-out does."""
    program = endless()
    missed = Rejects(MISSED, "H8", "the loop has no end")
    how = Running(deadline=20 * MILLISECOND, loop_timeout=SECOND)
    steps = [*prepared(), Step(Action.EXECUTE, 0, missed, SYNC, program.inputs, how=how)]
    return case(steps, models=(program.model,), detail=ENDLESS, level=FL4)


def _scenarios() -> Iterator[Scenario]:
    yield Scenario(TOPIC, "preferences", _preferences, "each execution preference gives right results")
    yield Scenario(TOPIC, "priorities", _priorities, "each priority gives right results")
    for name in DEADLINES:
        yield _prepared_by(name)
        for mode in WORDS:
            yield _executed_by(name, mode)
    yield from (_duration(name) for name in ("now", "tight", "generous"))
    yield Scenario(TOPIC, "duration.waits", _duration_waits, "waiting does not count as duration", mode="fenced")
    for mode in WORDS:
        if mode != BURST:  # the bursts of levels 3 and 4 have no time-out
            yield _loop(mode, MILLISECOND)
    yield _loop(SYNC, None)
    yield Scenario(TOPIC, "loop.beside", _loop_beside, "a loop that is timed out disturbs nobody", "H8", once=True)
    yield Scenario(TOPIC, "loop.deadline", _deadline_in_loop, "a deadline ends a loop", "H8", once=True)


SCENARIOS = tuple(_scenarios())
