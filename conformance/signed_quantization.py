"""Unsigned models and their signed twins: stored values and zero points 128 lower, and nothing else changed.

A driver supports both or neither, and gives the same results but for the shift. Five operations are excepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from conformance.cases import constants, drawn
from harness.batch import Batch
from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Agreement, Agrees, Returns, Supports
from harness.make import describe, expected_outputs, row_groups
from harness.steps import Action
from nnhal.operations import Signature
from nnhal.types import FeatureLevel, OperandType
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.call import Argument, Call
from opset.definition import Q8, Q8S, OperationDef
from opset.evaluate import run_call
from opset.graph import model_of
from opset.validation import needed_level, violations

# What MISSION names: no driver needs a signed form of these, or it is no shift of the unsigned one.
EXCEPTIONS = frozenset({Op.CAST, Op.HASHTABLE_LOOKUP, Op.LSH_PROJECTION, Op.PAD_V2, Op.QUANTIZED_16BIT_LSTM})
SHIFT = 128
CASES = {"ci": 1, "quick": 2, "full": 10, "nightly": 50}  # of each pair of signatures
TEXT = "an operation on unsigned 8-bit values and its signed twin are both supported or neither"
WHY = "the signed twin's results are the unsigned ones, 128 lower"


def signed_types(types: Mapping[str, OperandType]) -> dict[str, OperandType]:
    """A row of types with signed ones in place of the unsigned."""
    return {name: Q8S if kind == Q8 else kind for name, kind in types.items()}


def twin_of(definition: OperationDef, signature: Signature) -> Signature | None:
    """The signature that differs in nothing but signed types in place of unsigned ones."""
    if Q8 not in signature.row.types.values():
        return None
    due = signed_types(signature.row.types)
    for other in definition.signatures:
        same = other.form is signature.form and (other.count, other.results) == (signature.count, signature.results)
        if same and dict(other.row.types) == due:
            return other
    return None


def pairs() -> Iterator[tuple[OperationDef, Signature, Signature]]:
    """Every unsigned signature with its signed twin."""
    for definition in OPSET.values():
        for signature in definition.signatures if definition.code not in EXCEPTIONS else ():
            twin = twin_of(definition, signature)
            if twin is not None:
                yield definition, signature, twin


def _shifted(argument: Argument) -> Argument:
    if argument.type != Q8:
        return argument
    value = None if argument.value is None else (argument.value.astype(np.int16) - SHIFT).astype(np.int8)
    zero_point = argument.zero_point - (0 if argument.omitted else SHIFT)
    return replace(argument, type=Q8S, zero_point=zero_point, value=value)


def signed_call(call: Call, twin: Signature) -> Call:
    """The signed twin of a call.

    Raises:
        ValueError: by the specification it is not valid, or gives something else.
    """
    inputs = {name: _shifted(argument) for name, argument in call.inputs.items()}
    results = {name: _shifted(argument) for name, argument in call.results.items()}
    signed = replace(call, signature=twin, inputs=inputs, results=results)
    if violations(signed):
        raise ValueError(f"the signed twin breaks {violations(signed)[0]}")
    for name, result in run_call(signed).items():
        due = results[name].value
        if due is None or not np.array_equal(result.stored, due, equal_nan=due.dtype.kind == "f"):
            raise ValueError(f"the signed twin's {name} is not the unsigned one's, {SHIFT} lower")
    return signed


def batches(profile: str, seed: int) -> Iterator[Batch]:
    """One batch for each pair of signatures."""
    for definition, signature, twin in pairs():
        yield _batch(definition, signature, twin, CASES[profile], seed)


def _batch(definition: OperationDef, signature: Signature, twin: Signature, count: int, seed: int) -> Batch:
    origin = Origin(definition.name, signature.id.replace("/", "."), "signed", 0)

    def make(number: int) -> TestCase:
        words = f"{seed}/{origin.batch}/{number}"
        call = drawn(definition, signature, words)
        named = replace(origin, number=number, seed=words, detail=f"{TEXT}; {describe(call)}")
        return seal(replace(_case(call, signed_call(call, twin), constants(call, number)), origin=named))

    return Batch(origin, tuple(range(count)), make)


def _case(call: Call, signed: Call, fixed: frozenset[str]) -> TestCase:
    """Both are asked for, then both run, and are held against one another.

    Rows that may come in any order are held against what is due of each.
    """
    calls = (call, signed)
    made = [model_of(c, fixed) for c in calls]
    due = [expected_outputs(c) for c in calls]
    groups = row_groups(call)
    steps = [
        Step(Action.QUERY, 0, Supports(text=TEXT)),
        Step(Action.QUERY, 1, Supports(step=0, alike=True, text=TEXT)),
        Step(Action.PREPARE, 0),
        Step(Action.PREPARE, 1),
        Step(Action.EXECUTE, 0, Returns(due[0], groups) if groups else Returns(), inputs=tuple(made[0][1])),
    ]
    agreements = tuple(
        Agreement(position, unsigned.required + twin.required, shift=-SHIFT if unsigned.type == Q8 else 0)
        for position, (unsigned, twin) in enumerate(zip(*due, strict=True))
    )
    expect = Returns(due[1], groups) if groups else Agrees(4, agreements, WHY)
    steps.append(Step(Action.EXECUTE, 1, expect, inputs=tuple(made[1][1])))
    level = FeatureLevel(max(needed_level(c) for c in calls))
    return TestCase(Origin("", "", "", 0), tuple(model for model, _ in made), tuple(steps), level)
