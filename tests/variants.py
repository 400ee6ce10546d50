"""Correct but different arithmetic on drawn calls, judged by the suite's own judge: it must find nothing wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from conformance.cases import may_be_relaxed
from harness.judge_output import judge_output
from harness.make import expected_outputs
from harness.verdict import Verdict
from nnhal.operations import Signature
from nnhal.types import Array, OperandType
from opset.call import Call
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.source import SeededSource
from opset.values import Arithmetic

ORDERS = ("natural", "reversed", "blocked")


def drawn(definition: OperationDef, signature: Signature, count: int, salt: str = "") -> Iterator[Call]:
    """Calls from fixed seeds; another salt gives others."""
    for number in range(count):
        seed = f"{salt}/{definition.name}/{signature.id}/{number}"
        yield draw_call(definition, signature, Scope(SeededSource(seed)))


def complaints(call: Call, stored: Mapping[str, Array], *, relaxed: bool = False) -> list[str]:
    """What the judge says against results; nothing where they are right and good."""
    found = []
    for due in expected_outputs(call, relaxed):
        got = stored[due.name]
        if got.shape != due.shape:
            found.append(f"{due.name} has shape {got.shape}, {due.shape} is due")
            continue
        judgement = judge_output(due, got)
        if judgement.verdict != Verdict.PASS:
            found.append(f"{judgement.verdict.value}: {judgement.message}")
    return found


def in_float32(call: Call, order: str = "natural") -> dict[str, Array]:
    """Results of a kernel that computes in float32 throughout."""
    return {name: result.stored for name, result in run_call(call, Arithmetic(np.float32, order)).items()}


def in_float16(call: Call) -> dict[str, Array]:
    """Results of a kernel that rounds each operand, step and result to float16, as relaxed models allow."""
    inputs = {
        name: replace(a, value=a.value.astype(np.float16).astype(np.float32))
        if a.type == OperandType.TENSOR_FLOAT32 and a.value is not None
        else a
        for name, a in call.inputs.items()
    }
    half = Arithmetic(np.float16)  # type: ignore[arg-type]
    return {
        name: result.stored.astype(np.float16).astype(result.stored.dtype)
        if call.results[name].type == OperandType.TENSOR_FLOAT32
        else result.stored
        for name, result in run_call(replace(call, inputs=inputs), half).items()
    }


def objections(definition: OperationDef, signature: Signature, count: int = 200) -> list[str]:
    """What is found against float32 in each order of sums, and against float16 where type or relaxed flag allow it."""
    found = []
    for call in drawn(definition, signature, count, "variants"):
        for order in ORDERS:
            found += [f"{order}: {text}" for text in complaints(call, in_float32(call, order))]
        kinds = {a.type for a in (*call.inputs.values(), *call.results.values())}
        if OperandType.TENSOR_FLOAT32 in kinds and may_be_relaxed(call):
            texts = complaints(call, in_float16(call), relaxed=True)
            # One slope or divisor, rounded to float16 and broadcast, moves many results the same way.
            found += [f"relaxed: {text}" for text in texts if "sum of errors" not in text]
        if OperandType.TENSOR_FLOAT16 in kinds:
            found += [f"float16: {text}" for text in complaints(call, in_float16(call))]
    return found
