"""Scenarios of the device itself: what it says of itself, and its support query."""

from __future__ import annotations

from conformance.behaviour import Scenario, Vehicle, case, execute, prepared
from harness.case import Step, TestCase
from harness.expectations import Describes, Repeats, Unspecified
from harness.steps import Action, Releasing, Thing

TOPIC = "DEVICE"


def _describe(same_as: int | None = None) -> Step:
    return Step(Action.DESCRIBE, expect=Describes(same_as))


def _sane(v: Vehicle) -> TestCase:
    """Capabilities, type, version, extensions, number of cache files: each answer complete and sane, twice the same."""
    return case([_describe(), _describe(0)], models=(v.model,))


def _constant(v: Vehicle) -> TestCase:
    """The answers do not depend on what the device does meanwhile."""
    steps = [_describe(), *prepared(), _describe(0), execute(v), _describe(0)]
    steps += [Step(Action.RELEASE, how=Releasing(Thing.PREPARED)), _describe(0)]
    return case(steps, v)


def _restarted(v: Vehicle) -> TestCase:
    """The answers are those of the driver's next process, too."""
    steps = [_describe(), *prepared(), Step(Action.RESTART), _describe(0), *prepared(), execute(v)]
    return case([*steps, Step(Action.RESTART), _describe(0)], v)


def _asked_at_once(v: Vehicle) -> TestCase:
    """Several threads ask at once."""
    steps = [_describe(), *prepared()]
    steps += [Step(Action.DESCRIBE, expect=Describes(0), thread=t + 1) for t in range(3)]
    steps += [execute(v, thread=4)]
    return case([*steps, _describe(0)], v)


def _query_twice(v: Vehicle) -> TestCase:
    """The same answer to the same model, whatever else was asked in between."""
    all_ = [v, v.other(1), v.other(2)]
    steps = [Step(Action.QUERY, n) for n in range(3)]
    steps += [Step(Action.QUERY, n, Repeats(n)) for n in (2, 0, 1)]
    steps += [Step(Action.PREPARE, 0), Step(Action.QUERY, 0, Repeats(0)), execute(v), Step(Action.QUERY, 0, Repeats(0))]
    steps += [Step(Action.PREPARE, 1), Step(Action.PREPARE, 2)]
    return case(steps, *all_)


def _query_alone(v: Vehicle) -> TestCase:
    """Queries leave no trace: a prepared model goes on as before, and nothing has to be prepared after a query."""
    other = v.other(1)
    steps = [*prepared(), execute(v)]
    for _ in range(4):
        steps += [Step(Action.QUERY, 1, Unspecified()), execute(v)]
    return case(steps, v, other, observe=("bits",))


def _query_at_once(v: Vehicle) -> TestCase:
    """Queries side by side give what each gives alone."""
    all_ = [v, v.other(1), v.other(2), v.other(3)]
    steps = [Step(Action.QUERY, n) for n in range(4)]
    steps += [Step(Action.QUERY, n, Repeats(n), thread=n + 1) for n in range(4)]
    return case([*steps, Step(Action.PREPARE, 0), execute(v)], *all_)


def _query_after_restart(v: Vehicle) -> TestCase:
    """What is supported does not change with the driver's process."""
    steps = [*prepared(), execute(v), Step(Action.RESTART), Step(Action.QUERY, 0, Repeats(0))]
    return case([*steps, Step(Action.PREPARE), execute(v)], v)


SCENARIOS = (
    Scenario(TOPIC, "sane", _sane, "what the device says of itself is complete and sane", once=True),
    Scenario(TOPIC, "constant", _constant, "what the device says of itself does not change while it works"),
    Scenario(TOPIC, "restarted", _restarted, "what the device says of itself is the same after a restart", once=True),
    Scenario(TOPIC, "asked.at.once", _asked_at_once, "what the device says of itself is the same to several threads"),
    Scenario(TOPIC, "query.twice", _query_twice, "a support query has the same answer twice, and it is kept"),
    Scenario(TOPIC, "query.alone", _query_alone, "a support query has no side effects"),
    Scenario(TOPIC, "query.at.once", _query_at_once, "support queries side by side give the same answers"),
    Scenario(TOPIC, "query.restarted", _query_after_restart, "support is the same after a restart", once=True),
)
