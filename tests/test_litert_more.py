"""The LiteRT adapter on operations with states, graphs, chance, padding or results of rank 0; and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from nnhal.errors import DriverError
from nnhal.memory import BytesMemory
from nnhal.model import Model, Operation
from nnhal.types import OperandLifeTime, OperandType, OperationType
from opset import OPSET
from opset.branch import Branch
from opset.building import GraphBuilder
from opset.call import Argument, Call, scalar, with_value
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.graph import model_of
from opset.source import SeededSource

pytest.importorskip("ai_edge_litert.schema_py_generated")
pytest.importorskip("flatbuffers")

from drivers.litert import LiteRT
from drivers.litert_translate import UNKNOWN, windows
from tests.test_litert import parameters, request_for, run, translated

F32, F16, Q8, I32 = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_INT32,
)
B8, NUMBER, FLAG = OperandType.TENSOR_BOOL8, OperandType.INT32, OperandType.BOOL
INPUT, OUTPUT = OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT
CONSTANT, GRAPH = OperandLifeTime.CONSTANT_COPY, OperandLifeTime.SUBGRAPH


def definition_of(name: str) -> OperationDef:
    return OPSET[OperationType[name]]


def drawn(name: str, signature: str, number: int = 0) -> Call:
    definition = definition_of(name)
    source = SeededSource(f"test_litert_more/{name}/{signature}/{number}")
    return draw_call(definition, definition.signature(signature), Scope(source))


def tensor(kind: OperandType, value: object, scale: float = 0.0, zero_point: int = 0) -> Argument:
    stored = np.asarray(value, {F32: np.float32, F16: np.float16, Q8: np.uint8, I32: np.int32, B8: np.uint8}[kind])
    return Argument(kind, stored.shape, scale, zero_point, value=stored)


def one_operation(code: OperationType, inputs: list[Argument], result: Argument, given: int = 1) -> tuple[Model, int]:
    """A model of one operation, whose first inputs are the model's; and the number of these."""
    graph = GraphBuilder()
    taken = [graph.operand(argument, INPUT if place < given else CONSTANT) for place, argument in enumerate(inputs)]
    graph.operations.append(Operation(int(code), tuple(taken), (graph.operand(result, OUTPUT),)))
    return graph.model(), given


def result_of(code: OperationType, inputs: list[Argument], result: Argument, given: int = 1) -> list[object]:
    """What LiteRT returns for one operation, checked for its shape."""
    model, count = one_operation(code, inputs, result, given)
    values = [argument.value for argument in inputs[:count] if argument.value is not None]
    kind = {F32: np.float32, F16: np.float16, Q8: np.uint8, I32: np.int32, NUMBER: np.int32}[result.type]
    (value,) = run(LiteRT(), model, values, [np.zeros(result.shape, kind)])
    found: list[object] = value.reshape(-1).tolist()
    return found


def reason_of(model: Model) -> str:
    (reason,) = LiteRT().explain_unsupported(translated(model))
    return str(reason)


# --- results of rank 0 and stored values ------------------------------------------------------------------------------

SIX = tensor(F32, [[1, 2, 3], [4, 5, 7]])
ROW = tensor(F32, [3, 9, 4])


def test_a_full_reduction_gives_a_vector_of_one() -> None:
    axes = tensor(I32, [0, -1])
    assert result_of(OperationType.REDUCE_SUM, [SIX, axes, scalar(FLAG, 0)], Argument(F32, (1,))) == [22]
    assert result_of(OperationType.REDUCE_SUM, [SIX, axes, scalar(FLAG, 1)], Argument(F32, (1, 1))) == [22]
    assert result_of(OperationType.MEAN, [ROW, tensor(I32, [0]), scalar(NUMBER, 0)], Argument(F32, (1,))) == [
        pytest.approx(16 / 3)
    ]


def test_only_positive_numbers_keep_the_dimensions_of_a_mean() -> None:
    for number, shape in ((-1, (2,)), (0, (2,)), (2, (2, 1))):
        found = result_of(OperationType.MEAN, [SIX, tensor(I32, [1]), scalar(NUMBER, number)], Argument(F32, shape))
        assert found == [2, pytest.approx(16 / 3)]


def test_the_place_of_an_extreme_in_a_vector_is_a_vector_of_one() -> None:
    assert result_of(OperationType.ARGMAX, [ROW, scalar(NUMBER, -1)], Argument(I32, (1,))) == [1]
    assert result_of(OperationType.ARGMIN, [SIX, scalar(NUMBER, 0)], Argument(I32, (3,))) == [0, 0, 0]


def test_a_slice_without_dimensions_is_a_vector_of_one() -> None:
    places = [tensor(I32, [1, -1]), tensor(I32, [2, 3]), tensor(I32, [1, 1])]
    masks = [scalar(NUMBER, 0), scalar(NUMBER, 0), scalar(NUMBER, 3)]
    assert result_of(OperationType.STRIDED_SLICE, [SIX, *places, *masks], Argument(F32, (1,))) == [7]


def test_a_rank_is_a_scalar() -> None:
    assert result_of(OperationType.RANK, [SIX], Argument(NUMBER)) == [2]


def test_the_padding_of_quantised_values_is_the_low_byte() -> None:
    image = tensor(Q8, [5, 6], 0.5, 3)
    for number, stored in ((7, 7), (-1, 255), (256 + 9, 9)):
        inputs = [image, tensor(I32, [[1, 0]]), scalar(NUMBER, number)]
        assert result_of(OperationType.PAD_V2, inputs, Argument(Q8, (3,), 0.5, 3)) == [stored, 5, 6]


def test_values_to_fill_with_may_be_inputs() -> None:
    found = run(LiteRT(), fill_model(), [np.float32(2.5)], [np.zeros((2, 2), np.float32)])
    assert found[0].tolist() == [[2.5, 2.5], [2.5, 2.5]]


def fill_model() -> Model:
    graph = GraphBuilder()
    dims = graph.operand(tensor(I32, [2, 2]), CONSTANT)
    value = graph.operand(Argument(OperandType.FLOAT32), INPUT)
    graph.operations.append(
        Operation(OperationType.FILL, (dims, value), (graph.operand(Argument(F32, (2, 2)), OUTPUT),))
    )
    return graph.model()


def test_an_index_that_may_only_be_0_is_tried_with_0() -> None:
    inputs = [tensor(I32, [0, 0]), tensor(F32, [[1, 2]])]
    assert result_of(OperationType.EMBEDDING_LOOKUP, inputs, Argument(F32, (2, 2)), given=2) == [1, 2, 1, 2]


# --- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("name", ["RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "LSTM", "QUANTIZED_16BIT_LSTM"])
def test_a_state_is_an_input_and_a_result_of_each_execution(name: str, constant: bool) -> None:
    """The same request twice gives the same: nothing is kept from the first."""
    definition = definition_of(name)
    calls = [drawn(name, definition.signatures[0].id, number) for number in range(30)]
    call = next(c for c in calls if "activation" not in c.inputs or c.integer("activation") in (1, 3, 4))
    states = {"hidden_state_in", "output_state_in", "cell_state_in", "prev_cell_state", "prev_output"}
    constants = set(call.inputs) - {"input"} - (set() if constant else states)
    model, values = model_of(call, constants)
    due = run_call(call)
    prepared = LiteRT().prepare_model(translated(model))
    for _ in range(2):
        request = request_for(values, [result.stored for result in due.values()])
        prepared.execute_synchronously(request)
        for pool, (result, expected) in zip(request.pools[len(values) :], due.items(), strict=True):
            assert isinstance(pool, BytesMemory)
            found = np.frombuffer(pool.view(), expected.stored.dtype).reshape(expected.stored.shape)
            if result != "scratch":
                step = 10 if expected.stored.dtype == np.int16 else 1 if expected.stored.dtype == np.uint8 else 1e-5
                assert np.allclose(found, expected.stored, rtol=1e-5, atol=step)


def test_a_state_that_others_read_is_left_alone() -> None:
    """h feeds an RNN and, after it, an ADD: the ADD must find what was given."""
    graph = GraphBuilder()
    shapes = {"x": (1, 2), "w": (2, 2), "r": (2, 2), "b": (2,)}
    eye = np.eye(2, dtype=np.float32)
    x = graph.operand(Argument(F32, shapes["x"]), INPUT)
    w, r = (graph.operand(tensor(F32, eye), CONSTANT) for _ in range(2))
    b = graph.operand(tensor(F32, [0, 0]), CONSTANT)
    h = graph.operand(Argument(F32, shapes["x"]), INPUT)
    none = graph.operand(scalar(NUMBER, 0), CONSTANT)
    state, output, total = (graph.operand(Argument(F32, shapes["x"]), OUTPUT) for _ in range(3))
    graph.operations.append(Operation(OperationType.RNN, (x, w, r, b, h, none), (state, output)))
    graph.operations.append(Operation(OperationType.ADD, (h, h, none), (total,)))
    given = [np.array([[1, 2]], np.float32), np.array([[10, 20]], np.float32)]
    found = run(LiteRT(), graph.model(), given, [np.zeros((1, 2), np.float32)] * 3)
    assert [value.tolist() for value in found] == [[[11, 22]], [[11, 22]], [[20, 40]]]


# --- chance -----------------------------------------------------------------------------------------------------------


def test_samples_come_from_the_distribution_of_the_logits() -> None:
    logits = tensor(F32, np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    inputs = [logits, scalar(NUMBER, 4000), tensor(I32, [3, 17])]
    model, _ = one_operation(OperationType.RANDOM_MULTINOMIAL, inputs, Argument(I32, (2, 4000)))
    assert logits.value is not None
    (samples,) = run(LiteRT(), model, [logits.value], [np.zeros((2, 4000), np.int32)])
    for row, due in zip(samples, ([0.5, 0.25, 0.25], [0.1, 0.8, 0.1]), strict=True):
        assert np.abs(np.bincount(row, minlength=3) / 4000 - due).max() < 0.04  # five standard deviations


# --- graphs -----------------------------------------------------------------------------------------------------------


def branch(code: OperationType, kind: OperandType, second: Argument, result: Argument, others: int = 0) -> Branch:
    """A graph: x with a constant, under an arithmetic operation or a comparison; inputs that nobody reads follow."""
    graph = GraphBuilder()
    taken = [graph.operand(Argument(kind, (1,)), INPUT), graph.operand(second, CONSTANT)]
    if code in (OperationType.ADD, OperationType.SUB):
        taken.append(graph.operand(scalar(NUMBER, 0), CONSTANT))
    for _ in range(others):
        graph.operand(Argument(F32, (2,)), INPUT)
    graph.operations.append(Operation(code, tuple(taken), (graph.operand(result, OUTPUT),)))
    return Branch(graph.model())


def controlled(
    code: OperationType, graphs: list[Branch], inputs: Mapping[str, Argument], results: list[Argument]
) -> Model:
    """An IF, whose condition comes before its graphs, or a WHILE."""
    graph = GraphBuilder()
    taken = [graph.operand(argument, INPUT) for argument in inputs.values()]
    runs = [graph.operand(Argument(OperandType.SUBGRAPH, branch=b), GRAPH) for b in graphs]
    places = [*taken[:1], *runs, *taken[1:]] if code == OperationType.IF else [*runs, *taken]
    given = [graph.operand(argument, OUTPUT) for argument in results]
    graph.operations.append(Operation(int(code), tuple(places), tuple(given)))
    return graph.model()


@pytest.mark.parametrize(("condition", "due"), [(1, [12.0]), (0, [8.0]), (7, [12.0])])
def test_a_condition_chooses_the_graph(condition: int, due: list[float]) -> None:
    two, result = tensor(F32, [2]), Argument(F32, (1,))
    graphs = [branch(code, F32, two, result) for code in (OperationType.ADD, OperationType.SUB)]
    inputs = {"condition": Argument(B8, (1,)), "x": Argument(F32, (1,))}
    model = controlled(OperationType.IF, graphs, inputs, [result])
    assert (
        run(LiteRT(), model, [np.array([condition], np.uint8), np.array([10], np.float32)], [np.zeros(1, np.float32)])[
            0
        ].tolist()
        == due
    )


def counting(limit: int, others: int = 0) -> Model:
    """Counts up while below a limit, and hands operands through that nobody reads."""
    number = Argument(I32, (1,))
    graphs = [
        branch(OperationType.LESS, I32, tensor(I32, [limit]), Argument(B8, (1,)), others),
        branch(OperationType.ADD, I32, tensor(I32, [1]), number, others),
    ]
    inputs = {"i": number, **{f"other{n}": Argument(F32, (2,)) for n in range(others)}}
    return controlled(OperationType.WHILE, graphs, inputs, [number])


@pytest.mark.parametrize("others", [0, 2])
def test_a_loop_counts(others: int) -> None:
    rest = [np.zeros(2, np.float32)] * others
    for start, due in ((0, 5), (4, 5), (9, 9)):
        assert run(LiteRT(), counting(5, others), [np.array([start], np.int32), *rest], [np.zeros(1, np.int32)])[
            0
        ].tolist() == [due]


def test_a_loop_that_never_ends_on_made_up_values_is_not_run_on_them() -> None:
    number = Argument(I32, (1,))
    graphs = [
        branch(OperationType.NOT_EQUAL, I32, tensor(I32, [0]), Argument(B8, (1,))),
        branch(OperationType.SUB, I32, tensor(I32, [0]), number),
    ]
    model = controlled(OperationType.WHILE, graphs, {"i": number}, [number])
    assert LiteRT().get_supported_operations(translated(model)) == [True]


def test_each_graph_is_tried_whichever_the_condition_chooses() -> None:
    """There is a float16 kernel for ADD, none for SUB, and made-up conditions are true."""
    result = Argument(F16, (1,))
    codes = (OperationType.ADD, OperationType.SUB)
    graphs = [branch(code, F16, tensor(F16, [2]), result) for code in codes]
    inputs = {"condition": Argument(B8, (1,)), "x": Argument(F16, (1,))}
    assert "SUB" in reason_of(controlled(OperationType.IF, graphs, inputs, [result]))
    assert reason_of(controlled(OperationType.IF, graphs[:1] * 2, inputs, [result])) == "None"
    body = controlled(OperationType.WHILE, [branch(OperationType.LESS, F16, tensor(F16, [2]), Argument(B8, (1,))),
                                            graphs[1]], {"x": result}, [result])  # fmt: skip
    assert "SUB" in reason_of(body)


def test_what_a_graph_lacks_is_the_reason() -> None:
    result = Argument(F32, (1,))
    strange = branch(OperationType.ADD, F32, tensor(F32, [2]), result).model
    operations = (replace(strange.main.operations[0], type=1000),)
    odd = Branch(replace(strange, main=replace(strange.main, operations=operations)))
    inputs = {"condition": Argument(B8, (1,)), "x": Argument(F32, (1,))}
    reason = reason_of(controlled(OperationType.IF, [odd, odd], inputs, [result]))
    assert reason == "in a graph that it runs: the adapter has no translation of this operation"


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(UNKNOWN))
def test_operations_that_litert_lacks_say_so(code: OperationType) -> None:
    call = drawn(code.name, definition_of(code.name).signatures[0].id)
    assert reason_of(model_of(call)[0]) == f"LiteRT has no builtin operator for {code.name}"


REFUSED: list[tuple[str, str, dict[str, float], str]] = [
    ("TOPK_V2", "float32", {}, "smaller index of equal values first"),
    ("SVDF", "float32", {}, "makes room in its memory before"),
    ("LSH_PROJECTION", "float16_hash_int32", {"type": 2}, "as float32"),
    ("LSH_PROJECTION", "float32_hash_int32", {"type": 1}, "no type 1"),
    ("LSTM", "float32/default/in23", {"activation": 6}, "no activation with code 6"),
    ("MIRROR_PAD", "float32", {"mode": 5}, "mirror mode 5"),
    ("RESIZE_BILINEAR", "float32/by_shape/in4", {"nchw": 1}, "NHWC only"),
    ("DEPTH_TO_SPACE", "float32/default/in3", {"nchw": 1}, "NHWC only"),
]


@pytest.mark.parametrize(("name", "signature", "scalars", "words"), REFUSED, ids=[row[0] + row[1] for row in REFUSED])
def test_other_rules_are_refused(name: str, signature: str, scalars: dict[str, float], words: str) -> None:
    call = drawn(name, signature)
    for scalar_name, value in scalars.items():
        call = with_value(call, scalar_name, value)
    assert words in reason_of(model_of(call, parameters(call))[0])


def test_norms_along_other_axes_and_of_other_ranks_are_refused() -> None:
    calls = [drawn("LOCAL_RESPONSE_NORMALIZATION", "float32/default/in6", number) for number in range(40)]
    by_rank = {call["input"].rank: with_value(call, "axis", -1) for call in calls}
    assert "rank 4 only" in reason_of(model_of(by_rank[3])[0])
    assert reason_of(model_of(by_rank[4])[0]) == "None"
    assert "last axis only" in reason_of(model_of(with_value(by_rank[4], "axis", 1))[0])


def bidirectional(norm: bool = False, units: bool = False) -> Model:
    """A drawn BIDIRECTIONAL_SEQUENCE_LSTM, with layer normalisation or without, with cells of two sizes or of one."""
    name = "BIDIRECTIONAL_SEQUENCE_LSTM"
    for number in range(400):
        call = drawn(name, "float32/out2", number)
        given = {way: call[f"{way}_recurrent_to_output_w"].shape for way in ("fw", "bw")}
        normal = any(call.has(f"{way}_forget_layer_norm_w") for way in ("fw", "bw"))
        parallel = call.has("aux_input") and not call.has("fw_aux_input_to_forget_w")
        if call.integer("activation") == 4 and not parallel and (normal, given["fw"] != given["bw"]) == (norm, units):
            return model_of(call)[0]
    raise AssertionError("no such draw")


def test_bidirectional_cells_have_one_size_and_no_layer_norm() -> None:
    assert reason_of(bidirectional()) == "None"
    assert "cells of one size" in reason_of(bidirectional(units=True))
    assert "no layer normalisation" in reason_of(bidirectional(norm=True))


def test_quantised_cells_need_constant_weights() -> None:
    """LiteRT would read them before they are there, and die."""
    model, _ = model_of(drawn("QUANTIZED_LSTM", "quant8_asymm_signed"))
    assert "reads it before the first run" in reason_of(model)


def test_parameters_that_are_inputs_are_refused() -> None:
    model, _ = one_operation(
        OperationType.REDUCE_SUM, [SIX, tensor(I32, [0]), scalar(FLAG, 0)], Argument(F32, (3,)), given=2
    )
    assert reason_of(model) == "axes is no constant, and the translation needs it"
    with pytest.raises(DriverError, match="axes"):
        LiteRT().prepare_model(translated(model))


# --- padding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("window", range(1, 6))
@pytest.mark.parametrize("stride", range(1, 5))
def test_padding_is_translated_to_the_windows_that_it_means(size: int, window: int, stride: int) -> None:
    """Windows as lists of positions: two paddings are alike when they make the same list."""

    def places(head: int, tail: int) -> list[int]:
        return list(range(-head, size + tail - window + 1, stride))

    extent = windows._Extent(size, window, stride, (0, 0))
    head, tail = extent.same()
    assert len(places(head, tail)) == -(-size // stride)  # SAME: one window for each stride, however begun
    assert head <= tail <= head + 1
    for explicit in [(h, t) for h in range(window) for t in range(window) if size + h + t >= window]:
        given = windows._Extent(size, window, stride, explicit)
        for other in ((0, 0), (head, tail)):
            if size + sum(other) >= window:
                assert given.is_padded_like(other) == (places(*explicit) == places(*other))
