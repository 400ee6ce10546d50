"""Scenarios of versions: a driver gets what its level knows and refuses the rest; conversion; the relaxed flag."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from conformance import behaviour
from conformance.behaviour import CASES, Scenario, Vehicle, case, execute, prepared, refuses, vehicle
from conformance.cases import TRIES, constants, drawn, may_be_relaxed, parameters
from harness.batch import Batch
from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Agreement, Agrees, Returns
from harness.make import describe, expected_outputs, row_groups
from harness.steps import Action
from nnhal.memory import HardwareBuffer
from nnhal.model import ExtensionNameAndPrefix, Model, Operand, Operation
from nnhal.operations import ValidationRule
from nnhal.types import (
    FL1,
    FL2,
    FL3,
    FL4,
    FL5,
    FL8,
    FeatureLevel,
    OperandLifeTime,
    OperandType,
    OperationType,
    info,
)
from nnhal.validate import violations
from nnhal.versions import LossyConversionWarning, convert_to
from opset import OPSET
from opset.call import Call
from opset.definition import OperationDef
from opset.graph import model_of
from opset.validation import needed_level

TOPIC = "VERSIONS"
SIMPLE = (("ADD", "float32"),)
FLOATS_OF_1 = (("ADD", "float32"), ("AVERAGE_POOL_2D", "float32"), ("SOFTMAX", "float32"), ("MUL", "float32"))
FLOATS = tuple(chosen for chosen in behaviour.VEHICLES if chosen[1] == "float32")
ROUNDS = {"ci": 1, "quick": 1, "full": 6, "nightly": 40}  # models of each operation that a level adds something to
LATER = tuple(level for level in FeatureLevel if level > FL1)
REFUSED = "a driver refuses models that need a later level than its own"
ACCEPTED = "a driver takes models that need its own level"


# --- models by the level that they need ------------------------------------------------------------------------------


@cache
def newcomers(level: FeatureLevel) -> tuple[OperationDef, ...]:
    """The operations to which a level adds something: signatures, or what a rule forbade before."""
    return tuple(
        definition
        for definition in OPSET.values()
        if any(signature.since == level for signature in definition.signatures)
        or any(isinstance(rule, ValidationRule) and rule.until == level for rule in definition.rules)
    )


def needing(definition: OperationDef, level: FeatureLevel, words: str) -> Call | None:
    """A call of an operation that needs exactly this level; None where draws give none."""
    chance = random.Random(words)
    signatures = [signature for signature in definition.signatures if signature.since <= level]
    signatures = [s for s in signatures if s.since == level] or signatures
    for attempt in range(TRIES):
        call = drawn(definition, chance.choice(signatures), f"{words}/{attempt}")
        if needed_level(call) == level:
            return call
    return None


def _refused(call: Call, level: FeatureLevel, twin: Vehicle) -> TestCase:
    """Behind a model that every level takes, one that needs a later level."""
    model, _ = model_of(call, parameters(call))
    for lower in FeatureLevel:
        if lower < level and not violations(model, lower):
            raise ValueError(f"the model is valid at level {lower.version} already")
    due = refuses("VERSION", f"the model needs level {level.version}")
    steps = [*prepared(1), Step(Action.QUERY, 0, due), Step(Action.PREPARE, 0, due)]
    return replace(case(steps, models=(model, twin.model), level=twin.level), until=level)


def _level_batches(level: FeatureLevel, profile: str, seed: int) -> Iterator[Batch]:
    added = newcomers(level)
    if not added:
        return
    refused = Origin(TOPIC, f"refused.below.{level.version}", "behaviour", 0, rule="VERSION")
    accepted = Origin(TOPIC, f"accepted.from.{level.version}", "behaviour", 0)

    def make_refused(number: int) -> TestCase:
        words = f"{seed}/{refused.batch}/{number}"
        call = _some(added, level, number, words)
        named = replace(refused, number=number, seed=words, detail=f"{REFUSED}; {_name(call)}")
        return seal(replace(_refused(call, level, vehicle(0, words, SIMPLE)), origin=named))

    def make_accepted(number: int) -> TestCase:
        words = f"{seed}/{accepted.batch}/{number}"
        call = _some(added, level, number * 7, words)
        named = replace(accepted, number=number, seed=words, detail=f"{ACCEPTED}; {_name(call)}")
        model, values = model_of(call, constants(call, 0))
        due = Returns(expected_outputs(call), row_groups(call))
        steps = [*prepared(), Step(Action.EXECUTE, 0, due, inputs=tuple(values))]
        return seal(replace(case(steps, models=(model,), level=level), origin=named))

    yield Batch(refused, tuple(range(ROUNDS[profile] * len(added))), make_refused)
    yield Batch(accepted, tuple(range(CASES[profile])), make_accepted)


def _some(added: Sequence[OperationDef], level: FeatureLevel, number: int, words: str) -> Call:
    """A call of one of the operations in turn; of the next where the draws of one give none for the level."""
    for step in range(len(added)):
        call = needing(added[(number + step) % len(added)], level, words)
        if call is not None:
            return call
    raise ValueError(f"no call needs level {level.version}")


def _name(call: Call) -> str:
    return f"{call.definition.name} of {describe(call)}"


# --- single parts of a model that need a level ------------------------------------------------------------------------


def _newer_part(
    level: FeatureLevel, rule: str, words: str, change: Callable[[Vehicle], Model]
) -> Callable[[Vehicle], TestCase]:
    def make(v: Vehicle) -> TestCase:
        due = refuses(rule, f"{words}, which needs level {level.version}")
        steps = [*prepared(1), Step(Action.QUERY, 0, due), Step(Action.PREPARE, 0, due)]
        return replace(case(steps, models=(change(v), v.model), level=v.level), until=level)

    return make


def with_operand(model: Model, operand: Operand) -> Model:
    """The model with an operand more, which nothing uses."""
    return replace(model, main=replace(model.main, operands=(*model.main.operands, operand)))


def _unused(kind: OperandType) -> Operand:
    known = info(kind)
    shape = (2,) if known.tensor else ()
    return Operand(kind, shape, 1.0 if known.scaled else 0.0, lifetime=OperandLifeTime.NO_VALUE)


def _unused_of(kinds: Sequence[OperandType]) -> Callable[[Vehicle], Model]:
    return lambda v: with_operand(v.model, _unused(random.Random(v.words).choice(kinds)))


def _unknown_rank(v: Vehicle) -> Model:
    """An input whose rank the model leaves open."""
    operands, index = list(v.model.main.operands), v.model.main.input_indexes[0]
    operands[index] = replace(operands[index], dimensions=())
    return replace(v.model, main=replace(v.model.main, operands=tuple(operands)))


def in_pool(v: Vehicle) -> Model:
    """The model with its constants in one hardware buffer."""
    model = v.model
    pool = HardwareBuffer.allocate(max(len(model.operand_values), 1))
    pool.view()[: len(model.operand_values)] = model.operand_values
    operands = tuple(
        replace(o, lifetime=OperandLifeTime.CONSTANT_REFERENCE) if o.lifetime == OperandLifeTime.CONSTANT_COPY else o
        for o in model.main.operands
    )
    return replace(model, main=replace(model.main, operands=operands), operand_values=b"", pools=(pool,))


def _with_graph(v: Vehicle) -> Model:
    """A referenced graph that no operand refers to."""
    return replace(v.model, referenced=(v.model.main,))


TYPES_OF_3 = (OperandType.TENSOR_FLOAT16, OperandType.TENSOR_BOOL8, OperandType.BOOL, OperandType.TENSOR_QUANT16_SYMM,
              OperandType.FLOAT16, OperandType.TENSOR_QUANT16_ASYMM, OperandType.TENSOR_QUANT8_SYMM)  # fmt: skip
TYPES_OF_4 = (OperandType.TENSOR_QUANT8_ASYMM_SIGNED,)


def _part(name: str, level: FeatureLevel, rule: str, words: str, change: Callable[[Vehicle], Model]) -> Scenario:
    return Scenario(TOPIC, name, _newer_part(level, rule, words, change), REFUSED, rule, among=SIMPLE)


def _oem(v: Vehicle) -> TestCase:
    """Codes of the makers of devices ended with level 1.3."""
    operands = [replace(_unused(OperandType.TENSOR_FLOAT32), type=kind, dimensions=()) for kind in (10000, 10001)]
    models = [with_operand(v.model, operand) for operand in operands]
    first = v.model.main.operations[0]
    operation = Operation(OperationType.OEM_OPERATION, first.inputs, first.outputs)
    models.append(replace(v.model, main=replace(v.model.main, operations=(operation,))))
    steps = [*prepared()]
    for number, what in enumerate(("operand type 10000", "operand type 10001", "operation 10000")):
        due = refuses("G15" if number == 2 else "G2", f"the model has the OEM {what}, which ended with level 1.3")
        steps += [Step(Action.QUERY, number + 1, due), Step(Action.PREPARE, number + 1, due)]
    return case(steps, models=(v.model, *models), level=FL5)


# --- conversion -------------------------------------------------------------------------------------------------------


def converted(model: Model, level: FeatureLevel) -> Model:
    """The model as an interface of a level carries it; what is lost is lost."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossyConversionWarning)
        return convert_to(model, level)


def _same(v: Vehicle, step: int, text: str) -> Agrees:
    """As another step of the same call, within what both are allowed."""
    outputs = tuple(Agreement(n, 2 * due.required) for n, due in enumerate(v.returns.outputs))
    return Agrees(step, outputs, text)


def _there_and_back(old: bool) -> Callable[[Vehicle], TestCase]:
    """Down to the lowest level that carries the model, and up again."""

    def make(v: Vehicle) -> TestCase:
        lowest = converted(v.model, v.level)
        # Up to level 1.3 consumers are counted; later nobody looks at the numbers, and they are left out.
        back = converted(lowest, FL4 if old else FL8)
        steps = [*prepared(0), *prepared(1), execute(v, 0)]
        steps.append(execute(v, 1, expect=_same(v, 4, "conversion to an older level and back changes no result")))
        return case(steps, models=(v.model, back), level=v.level if old else FeatureLevel(max(FL5, v.level)))

    return make


def _down(level: FeatureLevel) -> Scenario:
    """What a level does not know, and nothing uses, is left out on the way to it."""

    def make(v: Vehicle) -> TestCase:
        target = FeatureLevel(max(level, v.level))
        rich = with_operand(with_operand(v.model, _unused(OperandType.TENSOR_FLOAT16)), _unused(TYPES_OF_4[0]))
        rich = replace(rich, referenced=(v.model.main,))
        rich = replace(rich, extension_name_to_prefix=(ExtensionNameAndPrefix("org.nncts.nobody.has.this", 5),))
        return case([*prepared(), execute(v)], models=(converted(rich, target),), level=target)

    text = "a model that was made for a later level and handed down runs as it should"
    return Scenario(TOPIC, f"down.to.{level.version}", make, text)


# --- relaxed ----------------------------------------------------------------------------------------------------------


def _relaxable(v: Vehicle, highest: FeatureLevel = FL8) -> Vehicle:
    """The vehicle, or another draw of it, whose values are well inside the range of float16."""
    for number in range(TRIES):
        found = v.other(number) if number else v
        if may_be_relaxed(found.call) and found.level <= highest:
            return found
    raise ValueError("no draw stays inside the range of float16")


def _relaxed(v: Vehicle) -> tuple[Model, Returns]:
    model = replace(v.model, relax_computation_float32_to_float16=True)
    return model, Returns(expected_outputs(v.call, relaxed=True))


def _relaxed_beside(v: Vehicle) -> TestCase:
    """Each model keeps its own flag, in whatever order they are prepared and run."""
    v = _relaxable(v)
    model, due = _relaxed(v)
    first, second = (0, 1) if random.Random(v.words).random() < 0.5 else (1, 0)
    runs = {0: execute(v, 0, expect=due), 1: execute(v, 1)}
    steps = [*prepared(first), *prepared(second), *(runs[n] for n in (0, 1, first, second, 1, 0))]
    return case(steps, models=(model, v.model), level=FeatureLevel(max(v.level, FL2)))


def _relaxed_down(v: Vehicle) -> TestCase:
    """Level 1.0 does not know the flag, and computes exactly."""
    v = _relaxable(v, FL1)
    model, _ = _relaxed(v)
    return case([*prepared(), execute(v)], models=(converted(model, FL1),), level=v.level)


SCENARIOS = (
    _part("refused.operand.1.2", FL3, "G2", "an operand's type is one of 6 to 13", _unused_of(TYPES_OF_3)),
    _part("refused.operand.1.3", FL4, "G2", "an operand's type is 14", _unused_of(TYPES_OF_4)),
    _part("refused.rank", FL3, "G3", "an input's rank is unknown", _unknown_rank),
    _part("refused.pool", FL3, "G21", "constants are in a hardware buffer", in_pool),
    _part("refused.graph", FL4, "G23", "there is a referenced graph", _with_graph),
    Scenario(TOPIC, "refused.oem", _oem, "later levels have no OEM codes", "G15", among=SIMPLE),
    Scenario(TOPIC, "back.hidl", _there_and_back(old=True), "conversion there and back up to level 1.3"),
    Scenario(TOPIC, "back.aidl", _there_and_back(old=False), "conversion there and back from level FL5 on"),
    *(_down(level) for level in (FL1, FL2, FL3, FL4, FL5, FL8)),
    Scenario(TOPIC, "relaxed.beside", _relaxed_beside, "the relaxed flag is each model's own", among=FLOATS),
    Scenario(TOPIC, "relaxed.down", _relaxed_down, "level 1.0 does not know the relaxed flag", among=FLOATS_OF_1),
)


def batches(profile: str, seed: int) -> Iterator[Batch]:
    """One batch a scenario, and two for each level that adds something."""
    yield from behaviour.batches(SCENARIOS, profile, seed)
    for level in LATER:
        yield from _level_batches(level, profile, seed)
