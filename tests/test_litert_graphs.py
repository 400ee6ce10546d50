"""The LiteRT adapter where operations meet in a graph: states that others read, neighbours of loops, changed types."""

from __future__ import annotations

import numpy as np
import pytest

from nnhal.model import Model, Operation
from nnhal.types import Array, OperandLifeTime, OperandType, OperationType
from opset.branch import Branch
from opset.building import GraphBuilder
from opset.call import Argument, scalar
from opset.graph import evaluate

pytest.importorskip("ai_edge_litert.schema_py_generated")
pytest.importorskip("flatbuffers")

from drivers.litert import LiteRT
from tests.test_litert import run, translated
from tests.test_litert_more import B8, CONSTANT, F16, F32, GRAPH, I32, INPUT, NUMBER, OUTPUT, Q8, branch, tensor

TEMPORARY = OperandLifeTime.TEMPORARY_VARIABLE
SIGNED = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
XNNPACK_AND_NOT = pytest.mark.parametrize("resolver", ["builtin", "xnnpack"])


def agree(resolver: str, model: Model, values: list[Array]) -> None:
    """LiteRT gives what the baseline gives."""
    due = [result.stored for result in evaluate(model, values)]
    for found, expected in zip(run(LiteRT(resolver=resolver), model, values, due), due, strict=True):
        assert np.allclose(found, expected, rtol=1e-3, atol=1e-6)


def reason_of(model: Model, resolver: str = "builtin") -> str:
    """Why no operation runs; the same of all."""
    (reason,) = set(LiteRT(resolver=resolver).explain_unsupported(translated(model)))
    return str(reason)


# --- states that others read ------------------------------------------------------------------------------------------


def rnn(
    graph: GraphBuilder, taken: int, state: int, given: OperandLifeTime, after: OperandLifeTime = TEMPORARY
) -> tuple[int, int]:
    """Adds an RNN whose output is input + state; the indexes of its two results, new state and output."""
    eye = tensor(F32, np.eye(2))
    weights = [graph.operand(eye, CONSTANT), graph.operand(eye, CONSTANT), graph.operand(tensor(F32, [0, 0]), CONSTANT)]
    none = graph.operand(scalar(NUMBER, 0), CONSTANT)
    results = tuple(graph.operand(Argument(F32, (1, 2)), lives) for lives in (after, given))
    graph.operations.append(Operation(OperationType.RNN, (taken, *weights, state, none), results))
    return results[0], results[1]


def tanh(graph: GraphBuilder, taken: int, lives: OperandLifeTime = OUTPUT) -> int:
    """Adds a TANH, which XNNPACK takes and LiteRT's own kernels have; the index of its result."""
    result = graph.operand(Argument(F32, (1, 2)), lives)
    graph.operations.append(Operation(OperationType.TANH, (taken,), (result,)))
    return result


@XNNPACK_AND_NOT
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("before", [0, 1, 150])
def test_what_reads_a_state_gets_what_the_operation_left_in_it(resolver: str, constant: bool, before: int) -> None:
    """XNNPACK takes the operations around an RNN in one go, before it, when it is not told that they have an order."""
    graph = GraphBuilder()
    last = graph.operand(Argument(F32, (1, 2)), INPUT)
    for _ in range(before):
        last = tanh(graph, last, TEMPORARY)
    held = np.array([[0.5, -2]], np.float32)
    state = graph.operand(tensor(F32, held), CONSTANT) if constant else graph.operand(Argument(F32, (1, 2)), INPUT)
    new, _ = rnn(graph, last, state, OUTPUT)
    tanh(graph, tanh(graph, new))
    tanh(graph, new)
    agree(resolver, graph.model(), [np.array([[1, 3]], np.float32), *([] if constant else [held])])


@XNNPACK_AND_NOT
def test_a_state_that_becomes_the_state_of_another_operation(resolver: str) -> None:
    graph = GraphBuilder()
    first, second, state = (graph.operand(Argument(F32, (1, 2)), INPUT) for _ in range(3))
    new, output = rnn(graph, tanh(graph, first), state, OUTPUT)
    newer, _ = rnn(graph, second, new, OUTPUT, OUTPUT)
    for index in (output, new, newer):
        tanh(graph, index)
    agree(resolver, graph.model(), [np.array([[n, -n]], np.float32) for n in (1, 2, 3)])


@XNNPACK_AND_NOT
def test_a_state_that_is_read_in_a_graph(resolver: str) -> None:
    inner = GraphBuilder()
    taken, state = (inner.operand(Argument(F32, (1, 2)), INPUT) for _ in range(2))
    new, _ = rnn(inner, tanh(inner, taken, TEMPORARY), state, OUTPUT)
    tanh(inner, new)
    other = GraphBuilder()
    for _ in range(2):
        tanh(other, other.operand(Argument(F32, (1, 2)), INPUT))
    graph = GraphBuilder()
    condition = graph.operand(Argument(B8, (1,)), INPUT)
    operands = [graph.operand(Argument(F32, (1, 2)), INPUT) for _ in range(2)]
    runs = [graph.operand(Argument(OperandType.SUBGRAPH, branch=Branch(b.model())), GRAPH) for b in (inner, other)]
    results = tuple(graph.operand(Argument(F32, (1, 2)), OUTPUT) for _ in range(2))
    graph.operations.append(Operation(OperationType.IF, (condition, *runs, *operands), results))
    values = [np.array([[1, 2]], np.float32), np.array([[0.5, -3]], np.float32)]
    for choice in (1, 0):
        agree(resolver, graph.model(), [np.array([choice], np.uint8), *values])


# --- types that an operator changes -----------------------------------------------------------------------------------


def to_half(graph: GraphBuilder, taken: int) -> int:
    """Adds a DEQUANTIZE to float16 and a RESHAPE of its result, which is an output."""
    half = graph.operand(Argument(F16, (2, 2)), TEMPORARY)
    graph.operations.append(Operation(OperationType.DEQUANTIZE, (taken,), (half,)))
    flat = graph.operand(Argument(F16, (4,)), OUTPUT)
    shape = graph.operand(tensor(I32, [4]), CONSTANT)
    graph.operations.append(Operation(OperationType.RESHAPE, (half, shape), (flat,)))
    return flat


HALF_REFUSED = "an operator gives float32 where its result is float16"


def test_an_operator_that_gives_another_type_is_refused_before_it_runs() -> None:
    """LiteRT's DEQUANTIZE turns its result to float32, twice as long as what RESHAPE has for it."""
    graph = GraphBuilder()
    to_half(graph, graph.operand(Argument(Q8, (2, 2), 0.5, 3), INPUT))
    assert HALF_REFUSED in reason_of(graph.model())
    agree("xnnpack", graph.model(), [np.array([[0, 3], [4, 255]], np.uint8)])


def test_the_same_in_a_graph_that_an_operation_runs() -> None:
    inner = GraphBuilder()
    to_half(inner, inner.operand(Argument(Q8, (2, 2), 0.5, 3), INPUT))
    graph = GraphBuilder()
    condition = graph.operand(Argument(B8, (1,)), INPUT)
    taken = graph.operand(Argument(Q8, (2, 2), 0.5, 3), INPUT)
    runs = [graph.operand(Argument(OperandType.SUBGRAPH, branch=Branch(inner.model())), GRAPH) for _ in range(2)]
    result = graph.operand(Argument(F16, (4,)), OUTPUT)
    graph.operations.append(Operation(OperationType.IF, (condition, *runs, taken), (result,)))
    assert HALF_REFUSED in reason_of(graph.model())


# --- trying out -------------------------------------------------------------------------------------------------------


def loop(graph: GraphBuilder, start: int, limit: int, step: int, lives: OperandLifeTime) -> int:
    """Adds a WHILE that counts from an operand to a limit; the index of its result."""
    number = Argument(I32, (1,))
    graphs = [
        branch(OperationType.LESS, I32, tensor(I32, [limit]), Argument(B8, (1,))),
        branch(OperationType.ADD, I32, tensor(I32, [step]), number),
    ]
    runs = [graph.operand(Argument(OperandType.SUBGRAPH, branch=b), GRAPH) for b in graphs]
    result = graph.operand(number, lives)
    graph.operations.append(Operation(OperationType.WHILE, (*runs, start), (result,)))
    return result


def test_what_is_beside_a_loop_is_tried() -> None:
    """There is no float16 kernel for SUB, which only a run tells."""
    for kind, reason in ((F16, "SUB"), (F32, "None")):
        graph = GraphBuilder()
        given, start = graph.operand(Argument(kind, (1,)), INPUT), graph.operand(Argument(I32, (1,)), INPUT)
        count = loop(graph, start, 5, 1, TEMPORARY)
        none = graph.operand(scalar(NUMBER, 0), CONSTANT)
        results = [graph.operand(Argument(k, (1,)), OUTPUT) for k in (kind, I32)]
        graph.operations.append(Operation(OperationType.SUB, (given, given, none), (results[0],)))
        graph.operations.append(Operation(OperationType.ADD, (count, count, none), (results[1],)))
        assert reason in reason_of(graph.model())
    agree("builtin", graph.model(), [np.array([2.5], np.float32), np.array([3], np.int32)])


def test_what_a_loop_gives_may_be_an_output_and_read() -> None:
    graph = GraphBuilder()
    count = loop(graph, graph.operand(Argument(I32, (1,)), INPUT), 7, 2, OUTPUT)
    none, total = graph.operand(scalar(NUMBER, 0), CONSTANT), graph.operand(Argument(I32, (1,)), OUTPUT)
    graph.operations.append(Operation(OperationType.ADD, (count, count, none), (total,)))
    for resolver in ("builtin", "xnnpack"):
        agree(resolver, graph.model(), [np.array([2], np.int32)])


def chosen(model: Model) -> Model:
    """An IF, both of whose graphs are that of a model of tensors."""
    graph, within = GraphBuilder(), model.main
    condition = graph.operand(Argument(B8, (1,)), INPUT)
    inputs, results = (
        [
            graph.operand(Argument(OperandType(within.operands[i].type), within.operands[i].dimensions), lives)
            for i in indexes
        ]
        for indexes, lives in ((within.input_indexes, INPUT), (within.output_indexes, OUTPUT))
    )
    runs = [graph.operand(Argument(OperandType.SUBGRAPH, branch=Branch(model)), GRAPH) for _ in range(2)]
    graph.operations.append(Operation(OperationType.IF, (condition, *runs, *inputs), tuple(results)))
    return graph.model()


def test_a_loop_inside_a_graph_is_not_run_on_made_up_values() -> None:
    """It would never end: ones are below the limit, and nothing is added. What is beside it there is tried."""
    for kind, reason in ((F16, "SUB"), (F32, "None")):
        inner = GraphBuilder()
        given, start = inner.operand(Argument(kind, (1,)), INPUT), inner.operand(Argument(I32, (1,)), INPUT)
        loop(inner, start, 5, 0, OUTPUT)
        none, result = inner.operand(scalar(NUMBER, 0), CONSTANT), inner.operand(Argument(kind, (1,)), OUTPUT)
        inner.operations.append(Operation(OperationType.SUB, (given, given, none), (result,)))
        assert reason in reason_of(chosen(chosen(inner.model())))


def test_an_interpreter_that_has_failed_is_not_used_again() -> None:
    """The first run of a DEQUANTIZE of a constant fails with XNNPACK, the next ones give what lies in memory."""
    graph = GraphBuilder()
    value = graph.operand(Argument(SIGNED, (2, 2), 0.5, 3, value=np.array([[0, 3], [4, 100]], np.int8)), CONSTANT)
    result = graph.operand(Argument(F32, (2, 2)), OUTPUT)
    graph.operations.append(Operation(OperationType.DEQUANTIZE, (value,), (result,)))
    agree("builtin", graph.model(), [])
    reason = reason_of(graph.model(), "xnnpack")
    if reason == "None":
        agree("xnnpack", graph.model(), [])
    else:
        assert "failed to setup XNNPACK runtime" in reason
