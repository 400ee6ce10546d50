"""Listings: every operation in a line, with names, types, shapes, quantisation, parameters and short values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.case import Origin, TestCase
from harness.listing import listing
from harness.make import graph_case, invalid_model_case
from nnhal.model import DataLocation
from nnhal.types import FL1, OperandLifeTime, OperandType, OperationType
from opset import OPSET
from opset.branch_examples import COUNT, graph_of
from opset.call import Argument, scalar
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.graph import model_of
from opset.source import SeededSource
from tests.small_models import addition, branching, channels, edit, in_pool, looping, operation

F32, Q8 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM
ORIGIN = Origin("GRAPH", "hand", "example", 0)


def tensor(*shape: int, value: object = None) -> Argument:
    return Argument(F32, shape, value=None if value is None else np.asarray(value, np.float32).reshape(shape))


def pooled() -> TestCase:
    """RESHAPE and then MAX_POOL_2D of sixteen elements, and the sum with a constant."""
    ones = [scalar(OperandType.INT32, n) for n in (2, 1, 1, 2, 2, 3)]
    shape = Argument(OperandType.TENSOR_INT32, (4,), value=np.array([1, 4, 4, 1], np.int32))
    steps = [
        (OperationType.RESHAPE, (0, shape), tensor(1, 4, 4, 1), False),
        (OperationType.MAX_POOL_2D, (1, *ones), tensor(1, 3, 3, 1), False),
        (OperationType.ADD, (2, tensor(1, value=[0.5]), scalar(OperandType.INT32, 0)), tensor(1, 3, 3, 1), True),
    ]
    return graph_case(graph_of([tensor(16)], steps).model, [np.arange(16, dtype=np.float32)], ORIGIN)


def test_case() -> None:
    case = pooled()
    assert listing(case).splitlines() == [
        f"{case.id}: level 1.0, synchronous",
        "input %0: TENSOR_FLOAT32[16] = 0, 1, 2, 3, 4, 5, 6, 7, ...",
        "%2: TENSOR_FLOAT32[1,4,4,1] = RESHAPE(input=%0, shape=TENSOR_INT32[4] = 1, 4, 4, 1)",
        "%9: TENSOR_FLOAT32[1,3,3,1] = MAX_POOL_2D(input=%2, padding_scheme=2, stride_w=1, stride_h=1, filter_w=2, "
        "filter_h=2, activation=3)",
        "%12: TENSOR_FLOAT32[1,3,3,1] = ADD(a=%9, b=TENSOR_FLOAT32[1] = 0.5, activation=0)",
        "output %12",
    ]


def test_relaxed_and_omitted() -> None:
    case = pooled()
    relaxed = replace(case.models[0], relax_computation_float32_to_float16=True)
    execution = replace(case.steps[2], inputs=(None,))
    text = listing(replace(case, models=(relaxed,), steps=(*case.steps[:2], execution)))
    assert ": level 1.0, synchronous, relaxed\n" in text
    assert "input %0: TENSOR_FLOAT32[16] omitted\n" in text


def test_quantisation() -> None:
    assert "%4: TENSOR_QUANT8_ASYMM[2,3] scale 0.5 zero point 0 = ADD(" in listing(addition(kind=Q8, scale=0.5))
    shown = "TENSOR_QUANT8_SYMM_PER_CHANNEL[2,3] scales 0.5, 0.25, 2 along 1"
    assert f"input %0: {shown}\n" in listing(channels())


def test_sizes_that_are_open() -> None:
    model = edit(edit(addition(), 3, dimensions=()), 4, dimensions=(0, 3))
    assert "%3: TENSOR_FLOAT32[unknown rank] = ADD(" in listing(model)
    assert "%4: TENSOR_FLOAT32[?,3] = ADD(" in listing(model)


def test_graphs_stand_below_what_runs_them() -> None:
    lines = listing(branching()).splitlines()
    at = next(i for i, line in enumerate(lines) if " = IF(" in line)
    assert lines[at].endswith("= IF(condition=%0, then_graph=graph 0, else_graph=graph 1, inputs0=%3)")
    assert lines[at + 1 : at + 5] == [
        "  graph 0",
        "    input %0: TENSOR_FLOAT32[2]",
        "    %1: TENSOR_FLOAT32[2] = FLOOR(input=%0)",
        "    output %1",
    ]
    assert "    %2: TENSOR_BOOL8[1] = LESS(a=%0, b=%1)" in listing(looping()).splitlines()


def test_a_graph_is_written_once() -> None:
    again = edit(branching(), 2, location=DataLocation(offset=0))
    assert listing(again).count("  graph 0\n") == 1


@pytest.mark.parametrize("definition", OPSET.values(), ids=lambda d: d.name)
def test_every_operation_has_a_line_with_its_operands(definition) -> None:
    call = draw_call(definition, definition.signatures[-1], Scope(SeededSource(definition.name)))
    lines = listing(model_of(call)[0]).splitlines()
    line = next(line for line in lines if f" = {definition.name}(" in line)
    assert all(f"{name}=" in line for name in call.inputs)
    assert line.count("%") >= len(call.results)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (operation(addition(), 0, inputs=(0, 99, 2)), "0=%0, 1=%99 (does not exist), 2=0"),
        (operation(addition(), 0, type=98765), "operation 0x181cd(0=%0"),
        (operation(addition(), 1, inputs=(0,)), "ADD(0=%0)"),
        (edit(addition(), 0, type=77), "input %0: type 0x4d[2,3]"),
        (edit(addition(), 2, location=DataLocation(0, 4, 400)), "activation=INT32 of 400 bytes"),
        (in_pool(addition()), "activation=INT32 of 4 bytes"),
        (edit(branching(), 1, location=DataLocation(offset=7)), "then_graph=graph 7"),
        (edit(addition(), 1, lifetime=OperandLifeTime.NO_VALUE), "b=omitted"),
    ],
)  # fmt: skip
def test_broken_models(model, words: str) -> None:
    assert words in listing(model)


def test_several_models() -> None:
    bad = edit(addition(), 0, scale=1.0)
    lines = listing(invalid_model_case(bad, addition(), ORIGIN, "", FL1)).splitlines()
    assert [lines.index("model 0") < lines.index("model 1"), lines.count("output %4")] == [True, 2]


def test_equal_values_are_written_once() -> None:
    model = graph_of(
        [COUNT], [(OperationType.ABS, (Argument(F32, (3,), value=np.ones(3, np.float32)),), tensor(3), True)]
    )
    assert "ABS(input=TENSOR_FLOAT32[3] = 1 everywhere)" in listing(model.model)
