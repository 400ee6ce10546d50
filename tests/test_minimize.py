"""Failing cases made smaller: one faulty operation in a graph comes down to itself, two that belong together to two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.case import TestCase
from harness.cuts import minimise_set
from harness.make import graph_case
from harness.minimize import minimize
from harness.verdict import Cause, Judgement, Verdict
from nnhal.types import ExecutionMode
from nnhal.types import OperationType as Op
from opset.branch_examples import graph_of
from opset.call import Call
from opset.evaluate import Result
from opset.graph import call_of
from opset.values import BASELINE
from tests.minimising import (
    LIFE,
    NO_ACTIVATION,
    ORIGIN,
    Faulty,
    Tried,
    answers,
    codes_of,
    computed,
    convolved,
    generic,
    graphs,
    negated,
    sizes,
    tensor,
    tried,
)
from tests.thorough import one_in_three

# Operation, type, fault, place of the fault, most elements that may be left. An operation has some that it cannot do
# without: a convolution has an input, a filter and a bias, an LSTM some fifteen weights and states.
SINGLE = [
    (Op.ADD, "float32", "of", "output", 2),
    (Op.ADD, "quant8_asymm", "sc", "", 4),
    (Op.ADD, "int32", "ro", "output", 4),
    (Op.MUL, "quant8_asymm_signed", "zi", "a", 3),
    (Op.CONV_2D, "float32", "ro", "output", 16),
    (Op.CONV_2D, "float16", "iz", "bias", 10),
    (Op.CONV_2D, "quant8_asymm", "zo", "output", 10),
    (Op.CONV_2D, "quant8_asymm_per_channel", "ch", "filter", 14),
    (Op.DEPTHWISE_CONV_2D, "quant8_asymm", "fr", "output", 24),
    (Op.FULLY_CONNECTED, "float32", "re", "output", 8),
    (Op.AVERAGE_POOL_2D, "quant8_asymm", "un", "output", 12),
    (Op.SOFTMAX, "float32", "rs", "beta", 4),
    (Op.SOFTMAX, "quant8_asymm", "fr", "output", 8),
    (Op.TRANSPOSE, "float32", "if", "input", 4),
    (Op.TRANSPOSE, "quant8_asymm", "ro", "output", 8),
    (Op.RESHAPE, "float32", "re", "output", 4),
    (Op.CONCATENATION, "float32", "xi", "inputs and inputs", 4),
    (Op.LSTM, "float32", "ne", "output", 25),
    (Op.RNN, "float32", "fr", "output", 20),
    (Op.RESIZE_BILINEAR, "float32", "if", "input", 8),
    (Op.L2_NORMALIZATION, "float32", "b8", "output", 6),
    (Op.TOPK_V2, "float32", "iz", "input", 4),
]


@pytest.mark.parametrize(
    ("code", "row", "key", "place", "most"), one_in_three(SINGLE), ids=lambda x: getattr(x, "name", str(x))
)
def test_one_faulty_operation(code: Op, row: str, key: str, place: str, most: int) -> None:
    fails = tried(generic(code, key, place))
    case = next(case for case in graphs(code, row) if fails.judged(case).verdict == Verdict.FAIL)
    first = fails.judged(case)
    found = minimize(case, fails)
    assert found.note == ""
    left, elements = sizes(found)
    assert left == [code]
    assert elements <= most
    assert (found.judgement.verdict, found.judgement.cause) == (first.verdict, first.cause)
    assert fails.judged(found.case) == found.judgement
    assert found.operations == (10, 1)
    assert found.removed == 9
    assert not found.exhausted
    assert len(fails.cases) == found.probes <= 120


def test_the_same_case_gives_the_same_result() -> None:
    (case, *_), fails = graphs(Op.SOFTMAX, "float32"), tried(generic(Op.SOFTMAX, "ro", "output"))
    first, second = minimize(case, fails), minimize(case, fails)
    assert (first.case.id, first.judgement, first.probes) == (second.case.id, second.judgement, second.probes)


def test_what_is_left_is_plain() -> None:
    """Zeros, sizes of 1, no activation, a padding that needs no thought; and where it comes from stays."""
    case, fails = graphs(Op.CONV_2D, "float32")[0], tried(negated(Op.CONV_2D))
    found = minimize(case, fails).case
    call = call_of_case(found)
    assert all(size == 1 for argument in call.inputs.values() for size in argument.shape)
    assert not any(np.any(argument.value) for argument in (call["input"], call["filter"], call["bias"]))
    assert (call.integer("activation"), call.integer("stride_w"), call.integer("stride_h")) == (0, 1, 1)
    assert found.origin == replace(case.origin, kind="drawn.minimised", detail="1 operations: CONV_2D")
    assert found.steps[2].mode == ExecutionMode.SYNCHRONOUS
    again = minimize(found, fails)
    assert again.case == found or again.case.id == found.id


def call_of_case(case: TestCase) -> Call:
    model = case.models[0]
    known = dict(zip(model.main.input_indexes, case.steps[2].inputs, strict=True))
    return call_of(model, model.main, model.main.operations[0], known)


# --- several operations -----------------------------------------------------------------------------------------------


def fused(case: TestCase) -> Judgement:
    """A driver that merges CONV_2D with the RELU behind it, and forgets the RELU."""
    model = case.models[0]
    givers = {i: o.type for o in model.main.operations for i in o.outputs}

    def wrong(call: Call, results: dict[str, Result]) -> dict[str, Result]:
        source = call.inputs.get("input")
        if call.definition.code != Op.RELU or source is None or givers.get(source.key or -1) != Op.CONV_2D:
            return results
        assert source.value is not None
        return {"output": Result(source.value, results["output"].exact)}

    return answers(case, computed(case, Faulty(wrong=wrong)))


def test_two_operations_that_belong_together() -> None:
    found = minimize(convolved(), Tried(fused))
    assert sizes(found)[0] == [Op.CONV_2D, Op.RELU]
    assert sizes(found)[1] <= 10
    graph = found.case.models[0].main
    assert graph.operations[0].outputs[0] == graph.operations[1].inputs[0]
    assert graph.operands[graph.operations[0].outputs[0]].lifetime == LIFE.TEMPORARY_VARIABLE


def test_two_operations_apart() -> None:
    """A driver that is wrong where a model has both TANH and NEG, wherever they stand."""

    def judged(case: TestCase) -> Judgement:
        both = {Op.TANH, Op.NEG} <= set(codes_of(case.models[0]))
        return answers(case, computed(case, negated(Op.NEG) if both else BASELINE))

    found = minimize(convolved(3), Tried(judged))
    assert sorted(sizes(found)[0]) == [Op.TANH, Op.NEG]


def test_an_operation_between_two_is_taken_out() -> None:
    """NEG behind RELU is wrong, at any distance through ABS: its input stands for its result."""

    def judged(case: TestCase) -> Judgement:
        codes = codes_of(case.models[0])
        chained = codes[0] == Op.RELU and codes[-1] == Op.NEG and set(codes[1:-1]) <= {Op.ABS}
        chained = chained and len(case.models[0].main.input_indexes) == 1
        return answers(case, computed(case, negated(Op.NEG) if chained else BASELINE))

    line = tensor(4)
    steps = [(Op.RELU, (0,), line, False), *((Op.ABS, (n + 1,), line, False) for n in range(4))]
    model = graph_of([line], [*steps, (Op.NEG, (5,), line, True)]).model
    found = minimize(graph_case(model, [np.arange(4, dtype=np.float32)], ORIGIN), Tried(judged))
    assert sizes(found) == ([Op.RELU, Op.NEG], 1)


def test_one_of_three_hundred() -> None:
    """Halves first: it takes few probes, however long the graph is."""
    line = tensor(3)
    codes = [(Op.ABS, Op.NEG)[n % 2] for n in range(300)]
    codes[211] = Op.TANH
    model = graph_of([line], [(code, (n,), line, n == 299) for n, code in enumerate(codes)]).model
    fails = tried(generic(Op.TANH, "iz", "input"))
    found = minimize(graph_case(model, [np.array([-1, 0.5, 2], np.float32)], ORIGIN), fails)
    assert sizes(found) == ([Op.TANH], 1)
    assert found.operations == (300, 1)
    assert found.probes <= 40


def test_minimise_set() -> None:
    asked: list[int] = []

    def keeps(some: Sequence[int]) -> bool:
        asked.append(len(some))
        return {3, 77, 78} <= set(some)

    assert minimise_set(range(200), keeps) == [3, 77, 78]
    assert len(asked) < 120
    assert minimise_set(range(64), lambda some: 40 in some) == [40]
    assert minimise_set([5], lambda some: False) == [5]


# --- the failure stays the same ---------------------------------------------------------------------------------------


def test_another_failure_is_not_followed() -> None:
    """Where a smaller graph is refused in place of being wrong, it stays large enough to be wrong."""

    def judged(case: TestCase) -> Judgement:
        codes = codes_of(case.models[0])
        if Op.RELU in codes and len(codes) < 3:
            return Judgement(Verdict.FAIL, Cause.STATUS, "prepare", "answered GENERAL_FAILURE")
        return answers(case, computed(case, negated(Op.RELU)))

    found = minimize(convolved(), Tried(judged))
    assert len(sizes(found)[0]) == 3
    assert Op.RELU in sizes(found)[0]
    assert found.judgement.cause == Cause.VALUE


def test_the_stage_stays() -> None:
    def judged(case: TestCase) -> Judgement:
        stage = "execute" if len(codes_of(case.models[0])) > 2 else "prepare"
        return Judgement(Verdict.FAIL, Cause.UNCLEAN_ERROR, stage, "raised KeyError")

    assert len(sizes(minimize(convolved(), Tried(judged)))[0]) == 3


def test_a_constant_stays_where_the_driver_needs_one() -> None:
    """NOT_SUPPORTED is another verdict: an operand that must be a constant becomes one."""

    def judged(case: TestCase) -> Judgement:
        graph = case.models[0].main
        filters = [graph.operands[o.inputs[1]] for o in graph.operations if o.type == Op.FULLY_CONNECTED]
        if any(o.lifetime == LIFE.SUBGRAPH_INPUT for o in filters):
            return Judgement(Verdict.NOT_SUPPORTED, Cause.UNSUPPORTED, "query")
        return answers(case, computed(case, negated(Op.FULLY_CONNECTED)))

    square = tensor(2, 2)
    steps = [
        (Op.TANH, (0,), square, False),
        (Op.FULLY_CONNECTED, (0, 1, tensor(2, value=[1, 2]), NO_ACTIVATION), square, True),
    ]
    case = graph_case(graph_of([square], steps).model, [np.eye(2, dtype=np.float32)], ORIGIN)
    found = minimize(case, Tried(judged))
    assert sizes(found)[0] == [Op.FULLY_CONNECTED]
    graph = found.case.models[0].main
    assert graph.operands[graph.operations[0].inputs[1]].lifetime == LIFE.CONSTANT_COPY


def test_outputs_that_the_failure_needs_stay() -> None:
    line = tensor(2)
    model = graph_of(
        [line], [(Op.ABS, (0,), line, True), (Op.NEG, (0,), line, True), (Op.RELU, (0,), line, True)]
    ).model

    def judged(case: TestCase) -> Judgement:
        short = len(case.models[0].main.output_indexes) < 2
        return Judgement(Verdict.PASS) if short else Judgement(Verdict.FAIL, Cause.MALFORMED, "execute")

    found = minimize(graph_case(model, [np.ones(2, np.float32)], ORIGIN), Tried(judged))
    assert len(found.case.models[0].main.output_indexes) == 2
