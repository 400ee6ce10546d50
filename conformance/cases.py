"""OPSET to batches of valid cases: worked examples and drawn calls. What must be refused: `conformance.negative`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from conformance.profiles import PROFILES, Profile
from harness.batch import Batch
from harness.case import Origin, TestCase
from harness.make import positive_case
from nnhal.operations import Signature
from nnhal.types import OperandType
from opset import OPSET
from opset.call import Call
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.examples import from_example
from opset.source import SeededSource

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
