"""How a driver behaves, whatever it computes: scenarios, each tried on a few models, as batches of cases.

A scenario takes a vehicle (a valid model of one operation with its inputs and what is due) and makes steps of it. The
files beside this one hold the scenarios, each for one part of the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from conformance.cases import constants, drawn
from harness.batch import Batch
from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Expectation, Expected, Rejects, Returns
from harness.make import describe, expected_outputs, row_groups
from harness.steps import Action, How
from nnhal.model import Model, Operand
from nnhal.types import FL1, Array, ErrorStatus, ExecutionMode, FeatureLevel
from opset import OPSET
from opset.call import Call
from opset.graph import model_of
from opset.validation import needed_level

# Operations that most drivers have, of several types; a scenario's cases go through them in turn.
VEHICLES = (
    ("ADD", "float32"),
    ("CONV_2D", "quant8_asymm"),
    ("SOFTMAX", "float32"),
    ("RESHAPE", "quant8_asymm"),
    ("MUL", "quant8_asymm"),
    ("AVERAGE_POOL_2D", "float32"),
    ("FULLY_CONNECTED", "float32"),
    ("CONCATENATION", "float32"),
    ("LOGISTIC", "float32"),
    ("TRANSPOSE", "float32"),
)
DRAWS = 60  # in search of a vehicle whose results tell its inputs
CASES = {"ci": 2, "quick": 5, "full": 20, "nightly": 100}  # of each scenario
IA, GF, NONE = ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE, ErrorStatus.NONE
MISSED = (ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT)


@dataclass(frozen=True)
class Vehicle:
    """A valid model of one operation, its inputs and what is due."""

    call: Call
    words: str
    constant: frozenset[str]

    @cached_property
    def built(self) -> tuple[Model, tuple[Array, ...]]:
        """The model and its inputs."""
        model, values = model_of(self.call, self.constant)
        return model, tuple(values)

    @property
    def model(self) -> Model:
        """The model; its weights and parameters are constants."""
        return self.built[0]

    @property
    def inputs(self) -> tuple[Array, ...]:
        """Stored values in the order of the model's input list."""
        return self.built[1]

    @cached_property
    def returns(self) -> Returns:
        """What an execution must give."""
        return Returns(expected_outputs(self.call), row_groups(self.call))

    @property
    def level(self) -> FeatureLevel:
        """The lowest level that takes the model."""
        return needed_level(self.call)

    def outputs(self) -> list[Operand]:
        """The model's outputs."""
        return [self.model.main.operands[i] for i in self.model.main.output_indexes]

    def rolled(self, places: int) -> Vehicle:
        """The same model with other inputs: the values of each stand so many places further on."""
        call = self.call
        for name, argument in call.inputs.items():
            if name not in self.constant and argument.value is not None and argument.value.ndim:
                call = call.with_input(name, replace(argument, value=np.roll(argument.value, places)))
        return replace(self, call=call)

    def other(self, number: int) -> Vehicle:
        """Another draw of the same operation and type: another model."""
        definition, signature = self.call.definition, self.call.signature
        words = f"{self.words}/other{number}"
        return Vehicle(drawn(definition, signature, words), words, self.constant)


def vehicle(number: int, words: str, among: Sequence[tuple[str, str]] = VEHICLES) -> Vehicle:
    """The vehicle of a case: operations in turn, the first signature of the type or that of the given id.

    Of several draws it is the first whose results tell its inputs from those of `rolled`: with saturated or uniform
    values nobody could see that a driver mixes its executions up.
    """
    name, kind = among[number % len(among)]
    definition = next(d for d in OPSET.values() if d.name == name)
    signature = next(s for s in definition.signatures if s.id == kind or s.id.startswith(f"{kind}/"))
    found = []
    for attempt in range(DRAWS):
        text = f"{words}/{attempt}" if attempt else words
        call = drawn(definition, signature, text)
        found.append(Vehicle(call, text, constants(call, 0)))
        if _is_telling(found[-1]):
            return found[-1]
    return found[0]


def _is_telling(chosen: Vehicle) -> bool:
    """Whether the results of inputs rolled by 0 to 3 places are all different, by more than is allowed."""
    runs = [chosen.rolled(places).returns.outputs for places in range(4)]
    return all(_differ(a, b) for n, a in enumerate(runs) for b in runs[:n])


def _differ(first: Sequence[Expected], second: Sequence[Expected]) -> bool:
    with np.errstate(invalid="ignore"):
        return any(
            a.shape != b.shape or bool(np.any(np.abs(a.value - b.value) > 2 * a.required + 1e-3))
            for a, b in zip(first, second, strict=True)
        )


Maker = Callable[[Vehicle], TestCase]


@dataclass(frozen=True)
class Scenario:
    """One thing that a driver owes, to be tried on several vehicles.

    Attributes:
        topic: the part of the contract, in capitals: the place of an operation in case ids.
        name: of what is tried, with dots between words.
        make: the case for a vehicle; its origin is filled in afterwards. Raises NotApplicableError where there is none.
        text: what the driver owes, as a sentence.
        rule: label of the rule that is broken, where one is.
        once: it does not depend on the vehicle: one case is enough.
        among: the vehicles, where not the common ones.
        mode: as it stands in the ids.
    """

    topic: str
    name: str
    make: Maker
    text: str
    rule: str = ""
    once: bool = False
    among: tuple[tuple[str, str], ...] = VEHICLES
    mode: str = "sync"


def batches(scenarios: Sequence[Scenario], profile: str, seed: int) -> Iterator[Batch]:
    """One batch a scenario."""
    for scenario in scenarios:
        yield _batch(scenario, 1 if scenario.once else CASES[profile], seed)


def _batch(scenario: Scenario, count: int, seed: int) -> Batch:
    origin = Origin(scenario.topic, scenario.name, "behaviour", 0, scenario.mode, scenario.rule)

    def make(number: int) -> TestCase:
        words = f"{seed}/{origin.batch}/{number}"
        chosen = vehicle(number, words, scenario.among)
        made = scenario.make(chosen)
        model = made.origin.detail or f"{chosen.call.definition.name} of {describe(chosen.call)}"
        detail = f"{scenario.text}; {model}"
        return seal(replace(made, origin=replace(origin, number=number, seed=words, detail=detail)))

    return Batch(origin, tuple(range(count)), make)


def case(
    steps: Sequence[Step],
    *vehicles: Vehicle,
    models: Sequence[Model] = (),
    level: FeatureLevel = FL1,
    highest: FeatureLevel | None = None,
    needs: tuple[str, ...] = (),
    observe: tuple[str, ...] = (),
    detail: str = "",
) -> TestCase:
    """A case of these steps on the vehicles' models, or on the models given.

    Args:
        steps: in order.
        vehicles: their models are the case's, by number.
        models: what is used in their place.
        level: the lowest that has what is asked for; the vehicles may need a higher one.
        highest: the highest that has it.
        needs: traits.
        observe: what the record is to say beside the verdict.
        detail: the models in words, where the vehicle's own are not right.
    """
    used = tuple(models) or tuple(v.model for v in vehicles)
    lowest = max([level, *(v.level for v in vehicles)])
    nothing = Origin("", "", "", 0, detail=detail)
    return TestCase(nothing, used, tuple(steps), FeatureLevel(lowest), highest=highest, needs=needs, observe=observe)


def prepared(model: int = 0) -> tuple[Step, Step]:
    """The two steps before anything is done with a model."""
    return Step(Action.QUERY, model), Step(Action.PREPARE, model)


def execute(
    chosen: Vehicle,
    model: int = 0,
    *,
    mode: ExecutionMode = ExecutionMode.SYNCHRONOUS,
    how: How | None = None,
    expect: Expectation | None = None,
    thread: int = 0,
    slot: int | None = None,
    action: Action = Action.EXECUTE,
) -> Step:
    """An execution of a vehicle's model; right results are due where nothing else is said."""
    due = chosen.returns if expect is None else expect
    return Step(action, model, due, mode, chosen.inputs, thread=thread, slot=slot, how=how)


def refuses(rule: str, text: str, *statuses: ErrorStatus) -> Rejects:
    """INVALID_ARGUMENT is due, or one of the statuses."""
    return Rejects(statuses or (IA,), rule, text)


def with_outputs(model: Model, outputs: Sequence[Operand]) -> Model:
    """The model with other descriptions of its outputs, in their order."""
    operands = list(model.main.operands)
    for index, operand in zip(model.main.output_indexes, outputs, strict=True):
        operands[index] = operand
    return replace(model, main=replace(model.main, operands=tuple(operands)))
