"""What is known of a driver before it is fuzzed: decides, beside its bytes, what an input becomes."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from conformance.execution import SINCE, UNTIL
from fuzz.vehicles import COUNT, TRIED, Vehicle, vehicle
from harness.case import Origin, Step, TestCase
from harness.driver import DriverFacts, ask_facts
from harness.guards import Arena
from harness.judge import judge
from harness.outcome import Outcome
from harness.remote import WatchedDevice
from harness.run import run
from harness.steps import Action
from harness.verdict import Verdict
from nnhal.device import Device, Traits
from nnhal.errors import DriverDied, DriverTimedOut, UsageError
from nnhal.types import ExecutionMode, FeatureLevel, OperationType
from opset import OPSET
from random_graph.cases import attempts
from random_graph.mixes import Mix

SIZES = (1, 3)  # operations of a graph
ASKED = 4  # graphs of each operation, to learn whether a driver has it


@dataclass(frozen=True)
class Known:
    """What decides, beside its bytes, what an input becomes.

    Attributes:
        level: at which the driver is asked.
        modes: in which it executes, the synchronous one first.
        caching: it declares compilation caching.
        buffers: it declares driver-managed buffers.
        dynamic_shapes: it declares them.
        validates: it checks models itself.
        operations: names of those that it has.
        seeds: of the vehicles that it does.
    """

    level: FeatureLevel
    modes: tuple[ExecutionMode, ...]
    caching: bool
    buffers: bool
    dynamic_shapes: bool
    validates: bool
    operations: tuple[str, ...]
    seeds: tuple[int, ...] = ()

    @classmethod
    def nothing(cls) -> Known:
        """What is known without a driver: all operations, and a few vehicles."""
        names = tuple(definition.name for definition in OPSET.values())
        return cls(max(FeatureLevel), (ExecutionMode.SYNCHRONOUS,), False, False, True, True, names, (1, 3, 4))

    @cached_property
    def mix(self) -> Mix:
        """The graphs that are drawn: of the driver's operations and no others, where it has not all."""
        return _mix(self)

    @property
    def vehicles(self) -> tuple[Vehicle, ...]:
        """Models that call sequences are about."""
        return tuple(made for seed in self.seeds if (made := _vehicle(self, seed)) is not None)

    def to_json(self) -> str:
        """All of it as text."""
        return json.dumps(
            {
                "level": int(self.level),
                "modes": [mode.name for mode in self.modes],
                **{name: getattr(self, name) for name in FLAGS},
                "operations": list(self.operations),
                "seeds": list(self.seeds),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Known:
        """What `to_json` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            row = json.loads(text)
            flags = {name: bool(row[name]) for name in FLAGS}
            modes = tuple(ExecutionMode[name] for name in row["modes"])
            operations, seeds = tuple(map(str, row["operations"])), tuple(map(int, row["seeds"]))
            return cls(FeatureLevel(row["level"]), modes, **flags, operations=operations, seeds=seeds)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"what is known of a driver is damaged: {error}") from None


FLAGS = ("caching", "buffers", "dynamic_shapes", "validates")


@lru_cache(maxsize=8)
def _mix(known: Known) -> Mix:
    codes = frozenset(OperationType[name] for name in known.operations)
    offered = {d.code for d in OPSET.values() if d.signatures[0].since <= known.level}
    some = not offered <= codes
    return Mix(
        "fuzz",
        SIZES,
        operations=codes if some else frozenset(),
        closed=some,
        level=known.level,
        largest=512,
        stretch=0.7,
        unknown=10 if known.dynamic_shapes else 0,
    )


@lru_cache(maxsize=64)
def _vehicle(known: Known, seed: int) -> Vehicle | None:
    return vehicle(known.mix, seed)


def modes_of(traits: Traits, level: FeatureLevel) -> tuple[ExecutionMode, ...]:
    """The modes that a driver declares and the level has."""
    declared = {ExecutionMode.SYNCHRONOUS, *traits.execution_modes}
    return tuple(m for m in ExecutionMode if m in declared and SINCE[m] <= level <= (UNTIL.get(m) or max(FeatureLevel)))


def ask(device: Device, level: FeatureLevel | None = None) -> tuple[DriverFacts, Known]:
    """What a driver says of itself and can do.

    Args:
        device: the driver.
        level: at which it is asked at most.

    Raises:
        UsageError: it does no operation.
        DriverDied, DriverTimedOut, UncleanError: it ended over a question.
    """
    facts = ask_facts(device)
    asked = facts.level if level is None else min(level, facts.level)
    names = tuple(_operations(device, asked))
    if not names:
        raise UsageError(f"the driver supports no graph of one operation at level {asked.version}; nothing to fuzz")
    traits = facts.traits
    known = Known(
        asked,
        modes_of(traits, asked),
        traits.caching,
        traits.buffers,
        traits.dynamic_shapes,
        traits.validates,
        names,
    )
    return facts, replace(known, seeds=tuple(itertools.islice(_seeds(device, known), COUNT)))


def _operations(device: Device, level: FeatureLevel) -> Iterator[str]:
    """Names of the operations of which a driver says that it does one of a few graphs of nothing else."""
    with contextlib.closing(Arena()) as arena:
        for definition in OPSET.values():
            if definition.signatures[0].since <= level and any(
                _does(device, arena, definition.name, number, level) for number in range(ASKED)
            ):
                yield definition.name


def _does(device: Device, arena: Arena, name: str, number: int, level: FeatureLevel) -> bool:
    """Whether a driver says that it does the first graph of a seed."""
    for attempt in attempts(f"single:{name}", number):
        question = attempt.question
        if question.level > level or (question.needs and not device.traits.dynamic_shapes):
            return False
        outcome = _asked(question, device, arena, level)
        return judge(question, outcome).verdict == Verdict.PASS
    return False


def _asked(case: TestCase, device: Device, arena: Arena, level: FeatureLevel) -> Outcome:
    outcome = run(case, device, arena, in_process=not isinstance(device, WatchedDevice), level=level)
    if outcome.died is not None:
        raise DriverDied(outcome.died, outcome.log)
    if outcome.silent is not None:
        raise DriverTimedOut(outcome.silent, outcome.log)
    return outcome


def _seeds(device: Device, known: Known) -> Iterator[int]:
    """Seeds of vehicles that the driver does."""
    with contextlib.closing(Arena()) as arena:
        for seed in range(TRIED):
            made = vehicle(known.mix, seed)
            if made is None or made.level > known.level:
                continue
            steps = (Step(Action.QUERY), Step(Action.PREPARE), made.execute(0))
            case = TestCase(Origin("FUZZ", "vehicle", "fuzzed", seed), (made.model,), steps, made.level)
            outcome = _asked(case, device, arena, known.level)
            if judge(case, outcome).verdict == Verdict.PASS:
                yield seed
