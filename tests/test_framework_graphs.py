"""LiteRT and the reference driver in one framework: graphs of ten operations give the reference's results.

How results are compared, so that an error that LiteRT may have does not grow into an alarm behind a comparison or a
rounding, and nothing is let through either:

1. With every value coming out, each operation is judged alone, on the values that really went into it: what the
   reference ran has to be the reference's result bit by bit, what LiteRT ran may be off by what that operation allows.
2. With the values in between kept inside, all that comes out is bit by bit what came out before: so parts, the memory
   between them and their order change nothing.
3. Against the reference alone on the whole graph, every output is within the error that the operations before it may
   have left, as far as that can be told (`opset.tracking`); for the rest 1 and 2 stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from framework import Event, EventKind, Framework, Plan
from harness.driver import InProcessDriver
from harness.guards import Arena, guard
from nnhal.loading import DriverSpec
from nnhal.model import Model, operand_size
from nnhal.types import Array, OperandType, info
from nnhal.types import OperationType as Op
from opset.branch import Branch
from opset.call import Argument
from opset.evaluate import allowance, run_call
from opset.graph import call_of, evaluate
from opset.tracking import certain, track_graph
from reference_driver import ReferenceDevice
from tests.drawn_graphs import DrawnGraph, draw_graph, pairs

pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert: pip install -e '.[litert]'")

GRAPHS = 200
SEEDS = 400  # that are tried for so many graphs
NATIVE = ("float32", "quant8_asymm", "quant8_asymm_signed", "int32", "bool8")
BOTH_HAVE = pairs(
    (
        Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM, Op.MINIMUM, Op.ABS, Op.NEG, Op.EXP, Op.RELU, Op.RELU6, Op.TANH, Op.LOGISTIC,
        Op.RESHAPE, Op.TRANSPOSE, Op.CONCATENATION, Op.SLICE, Op.PAD, Op.MAX_POOL_2D, Op.AVERAGE_POOL_2D,
        Op.FULLY_CONNECTED, Op.CONV_2D, Op.SOFTMAX, Op.LESS, Op.LOGICAL_OR, Op.SELECT, Op.FLOOR,
    ),
    NATIVE,
)  # fmt: skip
REFERENCE_HAS = [
    *pairs((Op.CHANNEL_SHUFFLE, Op.INSTANCE_NORMALIZATION), NATIVE),  # LiteRT has no operator for these
    *pairs((Op.ADD, Op.MUL, Op.TANH, Op.RESHAPE, Op.MAX_POOL_2D, Op.TRANSPOSE), ("float16",)),  # nor kernels
]


@dataclass
class Compared:
    """What was run and compared.

    Attributes:
        elements: judged operation by operation.
        results: elements that came out of the whole graphs.
        told: those of them whose legal error against the reference alone can be told.
    """

    graphs: int = 0
    parts: int = 0
    most_parts: int = 0
    on_litert: int = 0
    on_reference: int = 0
    elements: int = 0
    results: int = 0
    told: int = 0


class Runner:
    """LiteRT first, the reference second, and another reference as the CPU, which is to have nothing to do."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        litert = InProcessDriver(DriverSpec.parse("litert")).device
        candidates = [("litert", litert), ("reference", ReferenceDevice())]
        self.framework = Framework(candidates, ReferenceDevice(), report=self.events.append)
        self.arena = Arena()

    def run(self, model: Model, inputs: tuple[Array, ...]) -> tuple[Plan, dict[int, Array]]:
        """The partition, and the values of the model's outputs by operand."""
        self.events.clear()
        prepared = self.framework.prepare_model(model)
        main = model.main
        lengths = [operand_size(main.operands[index]) for index in main.output_indexes]
        guarded = guard(self.arena, model, inputs, lengths)
        result = prepared.execute_synchronously(guarded.request)
        prepared.close()
        assert guarded.findings() == []
        assert result.output_sufficient_size
        values = {}
        for number, index in enumerate(main.output_indexes):
            operand = main.operands[index]
            value = guarded.output(number, np.dtype(info(operand.type).dtype), operand.dimensions)
            assert value is not None
            values[index] = value
        hidden = [event.text for event in self.events if event.kind not in (EventKind.PREPARED, EventKind.UNCLAIMED)]
        assert hidden == []
        (plan,) = [event.plan for event in self.events if event.kind == EventKind.PREPARED]
        assert plan is not None
        return plan, values


def judge_each(model: Model, plan: Plan, values: Mapping[int, Array]) -> int:
    """Each operation alone, on what it was given; the number of elements."""
    runs_on = {number: part.member.name for part in plan.parts for number in part.operations}
    elements = 0
    for number, operation in enumerate(model.main.operations):
        call = call_of(model, model.main, operation, values)
        truth = run_call(call)
        allowed = allowance(call, truth)
        for name, index in zip(call.results, operation.outputs, strict=True):
            got, due = values[index], truth[name]
            elements += got.size
            where = f"operation {number} ({call.definition.name}) on {runs_on[number]}"
            if runs_on[number] != "litert":
                np.testing.assert_array_equal(got, due.stored, where)
                continue
            with np.errstate(invalid="ignore"):
                off = np.abs(got.astype(np.float64) - due.exact)
            right = (off <= allowed[name].required) | (got == due.stored) | np.isinf(allowed[name].required)
            assert right.all(), f"{where}: {got[~right][:3]} for {due.stored[~right][:3]}"
    return elements


def judge_whole(model: Model, inputs: tuple[Array, ...], values: Mapping[int, Array]) -> int:
    """Against the reference alone; the number of elements whose error could be told."""
    alone = evaluate(model, inputs)
    branch = Branch(model)
    operands = [model.main.operands[index] for index in model.main.input_indexes]
    known = [certain(_argument(operand.type, value)) for operand, value in zip(operands, inputs, strict=True)]
    compared = 0
    for index, due, tracked in zip(model.main.output_indexes, alone, track_graph(branch, known, False), strict=True):
        got = values[index].astype(np.float64)
        finite = np.isfinite(tracked.error)
        compared += int(finite.sum())
        with np.errstate(invalid="ignore"):
            right = (np.abs(got - due.exact) <= tracked.error) | (values[index] == due.stored) | ~finite
        assert right.all(), f"operand {index}: {got[~right][:3]} for {due.exact[~right][:3]}"
    return compared


def _argument(kind: OperandType | int, value: Array) -> Argument:
    return Argument(OperandType(kind), value.shape, value=value)


def _with_inputs(model: Model, inputs: tuple[Array, ...], values: Mapping[int, Array]) -> dict[int, Array]:
    return {**dict(zip(model.main.input_indexes, inputs, strict=True)), **values}


def graphs() -> Iterator[DrawnGraph]:
    for seed in range(SEEDS):
        drawn = draw_graph(seed, (BOTH_HAVE, BOTH_HAVE, REFERENCE_HAS))
        if drawn is not None:
            yield drawn


def compare() -> Compared:
    """Runs and judges graphs until enough had a part on both devices."""
    runner, seen = Runner(), Compared()
    for drawn in graphs():
        plan, opened = runner.run(drawn.opened, drawn.inputs)
        if set(plan.counts) != {"litert", "reference"}:
            continue
        seen.elements += judge_each(drawn.opened, plan, _with_inputs(drawn.opened, drawn.inputs, opened))
        other, closed = runner.run(drawn.closed, drawn.inputs)
        assert [part.operations for part in other.parts] == [part.operations for part in plan.parts]
        for index, value in closed.items():
            assert value.tobytes() == opened[index].tobytes(), f"operand {index} with the values in between inside"
        seen.results += sum(value.size for value in closed.values())
        seen.told += judge_whole(drawn.closed, drawn.inputs, closed)
        seen.graphs += 1
        seen.parts += len(plan.parts)
        seen.most_parts = max(seen.most_parts, len(plan.parts))
        seen.on_litert += plan.counts["litert"]
        seen.on_reference += plan.counts["reference"]
        if seen.graphs == GRAPHS:
            break
    return seen


@pytest.mark.thorough
def test_two_drivers_in_one_framework_give_the_results_of_the_reference() -> None:
    seen = compare()
    assert seen.graphs == GRAPHS, f"{SEEDS} seeds gave {seen.graphs} graphs with a part on both devices"
    assert seen.on_litert + seen.on_reference == GRAPHS * 10
    assert min(seen.on_litert, seen.on_reference) > GRAPHS * 3
    assert seen.parts > GRAPHS * 2  # not a single cut alone
    assert seen.most_parts >= 4
    assert seen.told > seen.results / 2
