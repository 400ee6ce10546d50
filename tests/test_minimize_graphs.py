"""Failing cases with IF and WHILE made smaller: the graphs come out, or become as small as they can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.case import TestCase
from harness.make import graph_case
from harness.minimize import minimize
from harness.verdict import Judgement
from nnhal.model import Operation
from nnhal.types import OperandType
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.branch_examples import graph_of, pair
from opset.building import GraphBuilder
from opset.call import Argument, Call
from opset.evaluate import Result
from opset.examples import from_example
from opset.graph import model_of
from tests.minimising import (
    LIFE,
    ORIGIN,
    Faulty,
    Tried,
    answers,
    computed,
    negated,
    sizes,
    tried,
)


def controlled(code: Op, number: int = 0) -> TestCase:
    """The worked example of IF or WHILE."""
    call, _ = from_example(OPSET[code], OPSET[code].examples[number])
    model, inputs = model_of(call)
    return graph_case(model, inputs, ORIGIN)


@pytest.mark.parametrize(
    ("code", "number", "wrong"), [(Op.IF, 0, Op.ADD), (Op.IF, 1, Op.MUL), (Op.WHILE, 0, Op.MUL), (Op.WHILE, 0, Op.LESS)]
)
def test_faults_inside_of_graphs_come_out(code: Op, number: int, wrong: Op) -> None:
    found = minimize(controlled(code, number), tried(negated(wrong)))
    assert sizes(found)[0] == [wrong]
    assert found.case.models[0].referenced == ()
    assert sizes(found)[1] <= 3


def last_turn(case: TestCase) -> Judgement:
    """MUL is wrong where its first input is 12 or more."""

    def wrong(call: Call, results: dict[str, Result]) -> dict[str, Result]:
        value = call.inputs["a"].value if call.definition.code == Op.MUL else None
        if value is None or not (value >= 12).any():
            return results
        return {"output": Result(results["output"].stored + 1, results["output"].exact)}

    return answers(case, computed(case, Faulty(wrong=wrong)))


def test_a_fault_of_the_last_turn() -> None:
    """The body comes out on what it is given when it fails."""
    assert sizes(minimize(controlled(Op.WHILE), Tried(last_turn)))[0] == [Op.MUL]


def runs_wrongly(code: Op) -> Tried:
    """A driver that gets results of IF or WHILE wrong, whatever the graphs do."""

    def judged(case: TestCase) -> Judgement:
        main = case.models[0].main
        wrong = {i for o in main.operations if o.type == code for i in o.outputs}
        outputs = [v + 1 if i in wrong else v for i, v in zip(main.output_indexes, computed(case), strict=True)]
        return answers(case, [np.asarray(v) for v in outputs])

    return Tried(judged)


def test_if_that_is_wrong_itself() -> None:
    found = minimize(controlled(Op.IF), runs_wrongly(Op.IF))
    assert len(found.case.models[0].referenced) == 1  # for both ways
    assert sizes(found)[0] == [Op.IF, Op.ADD]


def test_while_that_is_wrong_itself() -> None:
    found = minimize(controlled(Op.WHILE), runs_wrongly(Op.WHILE))
    assert len(found.case.models[0].referenced) == 2
    assert len(sizes(found)[0]) <= 4
    assert sizes(found)[1] <= 6


def test_graphs_within_graphs() -> None:
    """NEG in a branch of a branch."""
    line = pair(1, -2)
    inner = graph_of((replace(line, value=None),), [(Op.NEG, (0,), replace(line, value=None), True)])
    plain = graph_of((replace(line, value=None),), [(Op.ABS, (0,), replace(line, value=None), True)])
    outer = GraphBuilder()
    given = outer.operand(replace(line, value=None), LIFE.SUBGRAPH_INPUT)
    yes = outer.operand(Argument(OperandType.TENSOR_BOOL8, (1,), value=np.ones(1, np.uint8)), LIFE.CONSTANT_COPY)
    graphs_ = [outer.operand(Argument(OperandType.SUBGRAPH, branch=b), LIFE.SUBGRAPH) for b in (inner, plain)]
    result = outer.operand(replace(line, value=None), LIFE.SUBGRAPH_OUTPUT)
    outer.operations.append(Operation(int(Op.IF), (yes, *graphs_, given), (result,)))
    call, _ = from_example(OPSET[Op.IF], OPSET[Op.IF].examples[0])
    then = replace(call.inputs["then_graph"].branch, model=outer.model())  # type: ignore[type-var]
    other = replace(call.inputs["else_graph"].branch, model=plain.model)  # type: ignore[type-var]
    inputs = {
        "condition": call.inputs["condition"],
        "then_graph": Argument(OperandType.SUBGRAPH, branch=then),
        "else_graph": Argument(OperandType.SUBGRAPH, branch=other),
        "inputs0": line,
    }
    model, values = model_of(replace(call, inputs=inputs))
    found = minimize(graph_case(model, values, ORIGIN), tried(negated(Op.NEG)))
    assert sizes(found) == ([Op.NEG], 1)
