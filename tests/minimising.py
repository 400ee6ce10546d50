"""Graphs, and drivers that get one operation wrong, for the tests of minimisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks.generic_faults import FAULTS, Seen, answered, fitted
from harness.case import Origin, TestCase
from harness.judge import judge
from harness.make import expected_outputs, graph_case
from harness.minimize import Minimised
from harness.outcome import Outcome, StepOutcome
from harness.verdict import Cause, Judgement, Verdict
from nnhal.model import Model
from nnhal.types import Array, ErrorStatus, OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from nnhal.validate import violations
from opset.branch import LoopTimedOutError
from opset.branch_examples import graph_of
from opset.call import Argument, Call, scalar
from opset.evaluate import Result
from opset.graph import evaluate
from opset.values import BASELINE, Arithmetic
from tests.drawn_graphs import draw_graph, pairs

F32, Q8 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM
LIFE = OperandLifeTime
ORIGIN = Origin("GRAPH", "hand", "drawn", 0)
NONE, SECOND = ErrorStatus.NONE, 1_000_000_000
NO_ACTIVATION = scalar(OperandType.INT32, 0)
COMMON = (Op.RELU, Op.TANH, Op.LOGISTIC, Op.MUL, Op.RESHAPE, Op.MAX_POOL_2D, Op.CONCATENATION)

Wrong = Callable[[Call, dict[str, Result]], dict[str, Result]]
Values = Sequence["Array | None"]


# --- drivers that are wrong -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Faulty(Arithmetic):
    """The reference's arithmetic with one operation wrong, wherever it stands."""

    wrong: Wrong = lambda call, results: results

    def settled(self, call: Call, results: dict[str, Result]) -> dict[str, Result]:
        return self.wrong(call, results)


def generic(code: Op, key: str, label: str) -> Faulty:
    """A fault of `benchmarks.generic_faults` in one operation."""
    fault = next(fault for fault in FAULTS if fault.key == key)

    def wrong(call: Call, results: dict[str, Result]) -> dict[str, Result]:
        places = fault.places(call) if call.definition.code == code else {}
        if label not in places:
            return results
        due = {due.name: due for due in expected_outputs(call)} if key == "of" else {}
        answer = answered(fault, Seen(call, results, due), places[label])
        if answer is None:
            return results
        return {n: r.storing(fitted(answer[n], r.stored.shape)) for n, r in results.items()}

    return Faulty(wrong=wrong)


def negated(*codes: Op) -> Faulty:
    """Results of the other sign, and one more; of the other truth."""

    def wrong(call: Call, results: dict[str, Result]) -> dict[str, Result]:
        if call.definition.code not in codes:
            return results
        return {n: r.storing((1 - r.stored).astype(r.stored.dtype)) for n, r in results.items()}

    return Faulty(wrong=wrong)


def answers(case: TestCase, outputs: Values) -> Judgement:
    """The verdict on results, as if a driver had returned them."""
    stored = tuple(outputs)
    shapes = tuple(due.shape for due in case.steps[2].expect.outputs)  # type: ignore[union-attr]
    supported = (True,) * len(case.models[0].main.operations)
    steps = (
        StepOutcome(0, NONE, supported=supported),
        StepOutcome(1, NONE),
        StepOutcome(2, NONE, outputs=stored, shapes=shapes),
    )
    return judge(case, Outcome(steps, at=2))


def computed(case: TestCase, arithmetic: Arithmetic = BASELINE) -> list[Array]:
    results = evaluate(case.models[0], case.steps[2].inputs, arithmetic, loop_timeout=SECOND // 10)
    return [result.stored for result in results]


class Tried:
    """What a minimisation asks; looks whether each case is a good one: valid, and passed by a right driver."""

    def __init__(self, judged: Callable[[TestCase], Judgement]) -> None:
        self.judged = judged
        self.cases: list[TestCase] = []

    def __call__(self, case: TestCase) -> Judgement:
        self.cases.append(case)
        assert violations(case.models[0], case.level) == []
        assert answers(case, computed(case)).verdict == Verdict.PASS
        return self.judged(case)


def tried(arithmetic: Arithmetic) -> Tried:
    def judged(case: TestCase) -> Judgement:
        try:
            return answers(case, computed(case, arithmetic))
        except LoopTimedOutError:
            return Judgement(Verdict.FAIL, Cause.STATUS, "execute", "answered MISSED_DEADLINE_TRANSIENT")

    return Tried(judged)


def codes_of(model: Model) -> list[Op]:
    return [Op(operation.type) for graph in (model.main, *model.referenced) for operation in graph.operations]


def sizes(found: Minimised) -> tuple[list[Op], int]:
    """What is left: operations, and elements of constants and inputs."""
    return codes_of(found.case.models[0]), found.elements[1]


# --- cases ------------------------------------------------------------------------------------------------------------


@cache
def graphs(code: Op, row: str) -> tuple[TestCase, ...]:
    """Cases of ten operations with one of this kind among common ones."""
    found = []
    for seed in range(40):
        graph = draw_graph(seed, [pairs([code], [row]), pairs(COMMON, [row.removesuffix("_per_channel")])], 10)
        if graph is not None and len(found) < 5:
            found.append(graph_case(graph.closed, graph.inputs, replace(ORIGIN, number=seed)))
    return tuple(found)


def tensor(*shape: int, value: object = None) -> Argument:
    return Argument(F32, shape, value=None if value is None else np.asarray(value, np.float32).reshape(shape))


def convolved(count: int = 1) -> TestCase:
    """TANH, CONV_2D, RELU, and a tail of LOGISTIC and ABS; 3 x 3 pixels of 2 channels."""
    image = tensor(1, 3, 3, 2)
    weights = tensor(2, 1, 1, 2, value=[1, -2, -3, 0.5])
    parameters = [scalar(OperandType.INT32, n) for n in (1, 1, 1, 0)]
    steps = [
        (Op.TANH, (0,), image, False),
        (Op.CONV_2D, (1, weights, tensor(2, value=[-0.5, 0.25]), *parameters), image, False),
        (Op.RELU, (2,), image, False),
    ]
    for _ in range(count):
        steps += [(Op.LOGISTIC, (len(steps),), image, False), (Op.ABS, (len(steps) + 1,), image, False)]
    steps.append((Op.NEG, (len(steps),), image, True))
    value = np.linspace(-2, 2, 18, dtype=np.float32).reshape(image.shape)
    return graph_case(graph_of([image], steps).model, [value], ORIGIN)


def line_of(*codes: Op) -> TestCase:
    """Operations one behind the other, on two numbers."""
    steps = [(code, (n,), tensor(2), n + 1 == len(codes)) for n, code in enumerate(codes)]
    return graph_case(graph_of([tensor(2)], steps).model, [np.array([0.5, 2], np.float32)], ORIGIN)
