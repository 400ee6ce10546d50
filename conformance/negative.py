"""OPSET to batches of cases that must be refused: each rule broken alone, models that are wrong as graphs, settings.

And models whose numbers are legal and make no sense, which must do no harm.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from conformance.cases import TRIES, constants, drawn, origin, parameters
from conformance.mutation_edits import with_operand
from conformance.mutation_models import lowest_level, starting_models
from conformance.mutations import BAD_SETTINGS, MUTATIONS, OLDER_CODES, Mutant, Mutation
from conformance.profiles import PROFILES, Profile
from conformance.unconcerned import break_of, concerns
from harness.batch import Batch, NotApplicableError
from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Rejects, Returns, Unspecified
from harness.make import INVALID, describe, expected_outputs, invalid_model_case, row_groups, unexecutable_case
from harness.steps import Action
from nnhal.model import Model
from nnhal.operations import Signature, ValidationRule
from nnhal.types import FL2, FL3, FL4, FL5, FL8, Array, FeatureLevel, OperandType
from nnhal.validate import violations as model_violations
from opset import OPSET
from opset.call import Call
from opset.definition import ExecutionRule, OperationDef
from opset.graph import model_of
from opset.quantization import QUANTIZED
from opset.validation import needed_level

# A mutant is for the levels from its model's first to one of these, and to those from the second on no driver is asked.
SPANS: tuple[tuple[FeatureLevel, FeatureLevel | None], ...] = ((FL8, None), (FL4, FL5), (FL2, FL3))
LEAST_FLOAT = 2.0**-149
ODD_SCALES = (math.inf, LEAST_FLOAT, 2.0**-127, 3.4028234663852886e38)
# Of these not even an attempt to allocate them can succeed; 2^64 and 2^62 elements are 0 bytes where the product wraps.
ODD_SIZES = ((2**16,) * 4, (2**31 - 1,) * 4, (2**16, 2**16, 2**16, 2**14), (2**31 - 1, 2**31 - 1), (2**20,) * 3)
VALIDATES = ("validates",)  # an adapter without validation of its own may do what it likes with these

Odd = Callable[[Call, int], tuple[Model, list[Array]]]


def negative_batches(profile: str, seed: int) -> Iterator[Batch]:
    """Every rule of every operation broken alone, in each signature; and models that are wrong as graphs."""
    numbers = PROFILES[profile]
    for number, definition in enumerate(OPSET.values()):
        for place, signature in enumerate(definition.signatures):
            yield _broken(definition, signature, numbers, seed)
            if place % numbers.every == 0:
                yield _mutated(definition, signature, number, numbers, seed)
            if place % numbers.every == 0 and number % numbers.share == 0:
                yield _configured(definition, signature, number, numbers, seed)
                yield _older(definition, signature, number, numbers, seed)
                yield _odd(definition, signature, number, numbers, seed)


# --- rules of operations ----------------------------------------------------------------------------------------------


def _broken(definition: OperationDef, signature: Signature, profile: Profile, seed: int) -> Batch:
    batch = origin(definition, signature, "broken")
    rules = [rule for rule in definition.rules if isinstance(rule, ValidationRule) or rule.until is None]
    concerned = [number for number, rule in enumerate(rules) if concerns(definition, signature, rule)]
    numbers = [number for number in range(len(rules) * profile.breaks) if number // profile.breaks in concerned]

    def make(number: int) -> TestCase:
        rule = rules[number // profile.breaks]
        words = f"{seed}/{batch.batch}/{number}"
        named = replace(batch, number=number, rule=rule.label, seed=words)
        call, bad = find_break(definition, signature, rule, words)
        if isinstance(rule, ExecutionRule):
            return unexecutable_case(bad, call, named, rule.text, constants(call, 0))
        return _invalid(call, bad, rule, named)

    return Batch(batch, tuple(numbers), make)


def _invalid(call: Call, bad: Call, rule: ValidationRule, named: Origin) -> TestCase:
    model, _ = model_of(bad, parameters(call))
    twin, _ = model_of(call, parameters(call))
    level = call.level
    found = model_violations(model, level)
    if not found or model_violations(twin, level):
        raise ValueError(f"{rule.label} is not what tells the model from its twin: {found}")
    return invalid_model_case(model, twin, named, rule.text, level, rule.until)


def find_break(
    definition: OperationDef, signature: Signature, rule: ValidationRule | ExecutionRule, words: str
) -> tuple[Call, Call]:
    """A valid call and the same call with a rule broken.

    Raises:
        NotApplicableError: no draw offers a way to break it.
    """
    found = break_of(definition, signature, rule, words, TRIES)
    if found is None:
        raise NotApplicableError(f"no call was drawn in which {rule.label} can be broken")
    return found


# --- models that are wrong as graphs ----------------------------------------------------------------------------------


def _mutated(definition: OperationDef, signature: Signature, place: int, profile: Profile, seed: int) -> Batch:
    batch = origin(definition, signature, "mutated")
    numbers = [
        number
        for number in range(len(MUTATIONS) * profile.mutants)
        if MUTATIONS[number // profile.mutants].concerns(definition.code, signature.since)
        and (number + place) % profile.share == 0
    ]

    def make(number: int) -> TestCase:
        mutation = MUTATIONS[number // profile.mutants]
        words = f"{seed}/{batch.batch}/{number}"
        call = drawn(definition, signature, words)
        return _mutant_case(mutation, call, replace(batch, number=number, seed=words), SPANS)

    return Batch(batch, tuple(numbers), make)


def _mutant_case(
    mutation: Mutation, call: Call, named: Origin, spans: tuple[tuple[FeatureLevel, FeatureLevel | None], ...]
) -> TestCase:
    """A mutant of a call's models, for the widest span of levels that has one."""
    models = _Repeatable(starting_models(call, named.number))
    for level, until in spans:
        for model, lowest in models:
            first = max(lowest, mutation.since)
            if first > level:
                continue
            mutant = _mutant(mutation, model, level, first, named.seed)
            if mutant is not None:
                named = replace(named, rule=f"{mutation.name}:{mutant.label}")
                text = f"{mutation.sentence}: {mutant.change}"
                return invalid_model_case(mutant.model, model, named, text, first, until)
    raise NotApplicableError(f"the mutation {mutation.name} leaves this model valid")


class _Repeatable:
    """Models with the first level of each, made as far as they are asked for, and only once."""

    def __init__(self, models: Iterator[Model]) -> None:
        self._rest = models
        self._made: list[tuple[Model, FeatureLevel]] = []

    def __iter__(self) -> Iterator[tuple[Model, FeatureLevel]]:
        yield from self._made
        for model in self._rest:
            level = lowest_level(model)
            if level is not None:
                self._made.append((model, level))
                yield model, level


def _mutant(mutation: Mutation, model: Model, level: FeatureLevel, lowest: FeatureLevel, words: str) -> Mutant | None:
    """A mutant that is invalid at a level and at all below that take the model; None where there is none."""
    levels = [FeatureLevel(number) for number in range(lowest, level)]
    for mutant in mutation.apply(model, level, random.Random(words), 3):
        if all(model_violations(mutant.model, lower) for lower in levels):
            return mutant
    return None


def _older(definition: OperationDef, signature: Signature, place: int, profile: Profile, seed: int) -> Batch:
    """Codes that the older levels do not know: all tables in turn, or one of each kind."""
    batch = origin(definition, signature, "older")
    known = [n for n, codes in enumerate(OLDER_CODES) if signature.since <= codes.level]
    if not profile.all_settings:
        known = known[place % len(known) :][:1] if known else []

    def make(number: int) -> TestCase:
        codes = OLDER_CODES[number]
        words = f"{seed}/{batch.batch}/{number}"
        call = drawn(definition, signature, words)
        named = replace(batch, number=number, seed=words)
        return _mutant_case(codes.mutation, call, named, ((codes.level, codes.mutation.until),))

    return Batch(batch, tuple(known), make)


# --- settings of preparation ------------------------------------------------------------------------------------------


def _configured(definition: OperationDef, signature: Signature, place: int, profile: Profile, seed: int) -> Batch:
    """Execution preferences and priorities that there are none of; one of each in the shorter profiles."""
    batch = origin(definition, signature, "configured")
    numbers = range(len(BAD_SETTINGS)) if profile.all_settings else (place % 2, 2 + place // 2 % 2)

    def make(number: int) -> TestCase:
        words = f"{seed}/{batch.batch}/{number}"
        call = drawn(definition, signature, words)
        model, _ = model_of(call, constants(call, number))
        bad = BAD_SETTINGS[number]
        named = replace(batch, number=number, rule=bad.name, seed=words, detail=describe(call))
        refuse = Rejects(INVALID, bad.name, bad.text)
        prepare = Step(Action.PREPARE)
        steps = (Step(Action.QUERY), prepare, Step(Action.PREPARE, 0, refuse, how=bad.how), prepare)
        return seal(TestCase(named, (model,), steps, max(needed_level(call), bad.since)))

    return Batch(batch, tuple(numbers), make)


# --- legal numbers that make no sense ---------------------------------------------------------------------------------


def _odd(definition: OperationDef, signature: Signature, place: int, profile: Profile, seed: int) -> Batch:
    """Infinite, denormal and largest scales, and sizes that no memory holds: any answer, but neither death nor silence.

    Afterwards the twin still gives right results.
    """
    batch = origin(definition, signature, "odd")
    kinds: list[tuple[Odd, int]] = [(_vast, n) for n in range(len(ODD_SIZES))]
    if any(kind in QUANTIZED for kind in signature.row.types.values()):
        kinds = [*((_odd_scale, n) for n in range(len(ODD_SCALES))), *kinds]
    chosen = range(len(kinds)) if profile.all_settings else sorted({place % len(kinds), (place + 1) % len(kinds)})

    def make(number: int) -> TestCase:
        change, which = kinds[number]
        words = f"{seed}/{batch.batch}/{number}"
        call = drawn(definition, signature, words)
        bad, values = change(call, which)
        twin, inputs = model_of(call, constants(call, number))
        steps = [Step(Action.QUERY, 1), Step(Action.PREPARE, 1)]
        steps += [Step(action, 0, Unspecified()) for action in (Action.QUERY, Action.PREPARE)]
        if change is _odd_scale:
            steps.append(Step(Action.EXECUTE, 0, Unspecified(), inputs=tuple(values)))
        due = Returns(expected_outputs(call), row_groups(call))
        steps.append(Step(Action.EXECUTE, 1, due, inputs=tuple(inputs)))
        named = replace(batch, number=number, seed=words, detail=describe(call))
        return seal(TestCase(named, (bad, twin), tuple(steps), needed_level(call), needs=VALIDATES))

    return Batch(batch, tuple(chosen), make)


def _odd_scale(call: Call, which: int) -> tuple[Model, list[Array]]:
    """Every quantised operand has the same odd scale, so that no rule on scales is broken that need not be."""
    model, values = model_of(call, constants(call, 0))
    for index, operand in enumerate(model.main.operands):
        if operand.type in QUANTIZED and operand.scale > 0:
            model = with_operand(model, index, replace(operand, scale=ODD_SCALES[which]))
    return model, values


def _vast(call: Call, which: int) -> tuple[Model, list[Array]]:
    """Every tensor that is no constant has vast dimensions."""
    model, values = model_of(call, parameters(call))
    for index, operand in enumerate(model.main.operands):
        if operand.dimensions and operand.location.length == 0 and operand.type != OperandType.SUBGRAPH:
            model = with_operand(model, index, replace(operand, dimensions=ODD_SIZES[which]))
    return model, values
