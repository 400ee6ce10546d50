"""OPSET to batches of cases: worked examples, drawn calls, each rule broken alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from conformance.mutations import MUTATIONS, Mutant, Mutation
from conformance.profiles import PROFILES, Profile
from harness.batch import Batch, NotApplicableError
from harness.case import Origin, TestCase
from harness.make import invalid_model_case, positive_case, unexecutable_case
from nnhal.model import Model
from nnhal.operations import Signature, ValidationRule
from nnhal.types import FL4, FL5, FeatureLevel, OperandType
from nnhal.validate import violations as model_violations
from opset import OPSET
from opset.call import Call
from opset.definition import ExecutionRule, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.examples import from_example
from opset.graph import model_of
from opset.source import SeededSource
from opset.validation import applies, broken, holds, needed_level, violations

RELAXED = 6  # one drawn case in so many allows float16 range and precision, where it concerns float32
FLOAT16_SAFE = 1000.0
TRIES = 60  # draws in search of a call in which a rule can be broken


def origin(definition: OperationDef, signature: Signature, kind: str) -> Origin:
    """What the ids of a batch are made of."""
    return Origin(definition.name, signature.id.replace("/", "."), kind, 0)


def positive_batches(profile: str, seed: int) -> Iterator[Batch]:
    """Examples and drawn calls of every signature."""
    numbers = PROFILES[profile]
    for definition in OPSET.values():
        for signature in definition.signatures:
            yield from _examples(definition, signature)
            yield _drawn(definition, signature, numbers, seed)


def _examples(definition: OperationDef, signature: Signature) -> Iterator[Batch]:
    found = tuple(i for i, e in enumerate(definition.examples) if e.signature == signature.id)
    if not found:
        return
    batch = origin(definition, signature, "example")

    def make(number: int) -> TestCase:
        call, outputs = from_example(definition, definition.examples[number])
        for name, value in outputs.items():
            call = call.with_result(name, replace(call.results[name], value=value))
        return positive_case(call, replace(batch, number=number), parameters(call))

    yield Batch(batch, found, make)


def draws(signature: Signature, profile: Profile) -> int:
    """Number of drawn cases of a signature."""
    given = signature.form.operands[: signature.count]
    return profile.draws + profile.more * sum(operand.parameter for operand in given)


def _drawn(definition: OperationDef, signature: Signature, profile: Profile, seed: int) -> Batch:
    batch = origin(definition, signature, "drawn")

    def make(number: int) -> TestCase:
        words = f"{seed}/{batch.batch}/{number}"
        call = drawn(definition, signature, words)
        relaxed = number % RELAXED == RELAXED - 1 and may_be_relaxed(call)
        named = replace(batch, number=number, seed=words)
        return positive_case(call, named, constants(call, number), relaxed=relaxed)

    return Batch(batch, tuple(range(draws(signature, profile))), make)


def drawn(definition: OperationDef, signature: Signature, words: str) -> Call:
    """The call of a seed."""
    return draw_call(definition, signature, Scope(SeededSource(words)))


def may_be_relaxed(call: Call) -> bool:
    """Whether float16 range and precision may be allowed: float32 values well inside that range."""
    floats = [a for a in (*call.inputs.values(), *call.results.values()) if a.type == OperandType.TENSOR_FLOAT32]
    return bool(floats) and all(a.value is None or np.abs(a.value).max(initial=0.0) < FLOAT16_SAFE for a in floats)


def parameters(call: Call) -> frozenset[str]:
    """Inputs that decide shapes: constants in nearly every model."""
    return frozenset(name for name in call.inputs if call.signature.form.operand(name).parameter)


def constants(call: Call, number: int) -> frozenset[str]:
    """Which tensor inputs are constants in a case: four ways in turn, so that each lifetime is met.

    Weights and the like constant; only parameters; every second input; and, one time in eight, none.
    """
    given = [name for name, a in call.inputs.items() if not a.omitted and a.type != OperandType.SUBGRAPH]
    rest = given[1:]
    ways = number % 8
    if ways == 7:
        return frozenset()
    if ways in (2, 6):
        return parameters(call)
    if ways == 4:
        return parameters(call) | frozenset(rest[::2])
    return parameters(call) | frozenset(rest)


def negative_batches(profile: str, seed: int) -> Iterator[Batch]:
    """Every rule of every operation broken alone, in each signature; and models that are wrong as graphs."""
    numbers = PROFILES[profile]
    for definition in OPSET.values():
        for place, signature in enumerate(definition.signatures):
            yield _broken(definition, signature, numbers, seed)
            if place % numbers.every == 0:
                yield _mutated(definition, signature, numbers, seed)


def _broken(definition: OperationDef, signature: Signature, profile: Profile, seed: int) -> Batch:
    batch = origin(definition, signature, "broken")
    rules = [rule for rule in definition.rules if isinstance(rule, ValidationRule) or rule.until is None]

    def make(number: int) -> TestCase:
        rule = rules[number // profile.breaks]
        words = f"{seed}/{batch.batch}/{number}"
        named = replace(batch, number=number, rule=rule.label, seed=words)
        call, bad = find_break(definition, signature, rule, words)
        if isinstance(rule, ExecutionRule):
            return unexecutable_case(bad, call, named, rule.text, constants(call, 0))
        return _invalid(call, bad, rule, named)

    return Batch(batch, tuple(range(len(rules) * profile.breaks)), make)


def _invalid(call: Call, bad: Call, rule: ValidationRule, named: Origin) -> TestCase:
    model, _ = model_of(bad, parameters(call))
    twin, _ = model_of(call, parameters(call))
    level = call.level
    found = model_violations(model, level)
    if not found or model_violations(twin, level):
        raise ValueError(f"{rule.label} is not what tells the model from its twin: {found}")
    return invalid_model_case(model, twin, named, rule.text, level, rule.until)


def _mutated(definition: OperationDef, signature: Signature, profile: Profile, seed: int) -> Batch:
    batch = origin(definition, signature, "mutated")

    def make(number: int) -> TestCase:
        mutation = MUTATIONS[number // profile.mutants]
        words = f"{seed}/{batch.batch}/{number}"
        call = drawn(definition, signature, words)
        model, _ = model_of(call, constants(call, number))
        level, until = max(FeatureLevel), None
        mutant = _mutant(mutation, model, level, needed_level(call), words)
        if mutant is None:  # some rules are those of the older levels alone
            level, until = FL4, FL5
            mutant = _mutant(mutation, model, level, needed_level(call), words)
        if mutant is None:
            raise NotApplicableError(f"the mutation {mutation.name} leaves this model valid")
        named = replace(batch, number=number, rule=f"{mutation.name}:{mutant.label}", seed=words)
        text = f"{mutation.sentence}: {mutant.change}"
        return invalid_model_case(mutant.model, model, named, text, needed_level(call), until)

    return Batch(batch, tuple(range(len(MUTATIONS) * profile.mutants)), make)


def _mutant(mutation: Mutation, model: Model, level: FeatureLevel, lowest: FeatureLevel, words: str) -> Mutant | None:
    """A mutant that is invalid at a level and at all below that take the model; None where there is none."""
    if lowest > level:
        return None
    levels = [FeatureLevel(number) for number in range(lowest, level)]
    for mutant in mutation.apply(model, level, random.Random(words), 3):
        if all(model_violations(mutant.model, lower) for lower in levels):
            return mutant
    return None


def find_break(
    definition: OperationDef, signature: Signature, rule: ValidationRule | ExecutionRule, words: str
) -> tuple[Call, Call]:
    """A valid call and the same call with a rule broken.

    Raises:
        NotApplicableError: the rule does not concern the signature.
    """
    level = max(FeatureLevel)
    if isinstance(rule, ValidationRule) and rule.until is not None:
        level = FeatureLevel(rule.until - 1)
        if signature.since > level:
            raise NotApplicableError(
                f"{rule.label} is lifted before level {signature.since.version}, the signature's first"
            )
    for attempt in range(TRIES):
        scope = Scope(SeededSource(f"{words}/{attempt}"), level)
        call = draw_call(definition, signature, scope)
        if violations(call, level) or (isinstance(rule, ValidationRule) and not applies(rule, call, level)):
            continue
        bad = broken(rule, call)
        if bad is not None and not holds(rule, bad):
            return call, bad
    raise NotApplicableError(f"{rule.label} does not concern this signature")
