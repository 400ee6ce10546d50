"""Recurrent, quantised and nested ONNX graphs after import, and what an import says of itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from importers.onnx_file.reading import import_onnx
from nnhal.types import OperandLifeTime
from opset.graph import evaluate
from tests.onnx_models import MICROSOFT, agree, codes, imported, model_of, node, random, reference, run

X = random(1, 4, 7, 6)
IMAGE = {"x": X}
MATRIX = {"x": random(3, 4)}
W = random(8, 4, 3, 3, seed=1)
ints = np.array

# --- recurrent --------------------------------------------------------------------------------------------------------

STEPS, BATCH, SIZE, UNITS = 4, 2, 3, 5


def cell(operator, direction="forward", states=(), peepholes=False, opset=14, **attributes):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    count = 2 if direction == "bidirectional" else 1
    constants = {"w": random(count, gates * UNITS, SIZE, seed=1, low=-1, high=1),
                 "r": random(count, gates * UNITS, UNITS, seed=2, low=-0.5, high=0.5),
                 "b": random(count, 2 * gates * UNITS, seed=3, low=-0.5, high=0.5)}  # fmt: skip
    for place, name in enumerate(states):
        constants[name] = random(count, BATCH, UNITS, seed=4 + place, low=-0.8, high=0.8)
    names = ["x w r b _", *states] + (["p"] if peepholes else [])
    if peepholes:
        constants["p"] = random(count, 3 * UNITS, seed=9, low=-0.5, high=0.5)
    outputs = "y h c" if operator == "LSTM" else "y h"
    feeds = {"x": random(STEPS, BATCH, SIZE, low=-1, high=1)}
    one = node(operator, " ".join(names), outputs, hidden_size=UNITS, direction=direction, **attributes)
    return [one], feeds, constants, tuple(outputs.split()), opset


@pytest.mark.parametrize("attributes", [{}, {"states": ("h0", "c0")}, {"states": ("h0", "c0"), "peepholes": True}])
def test_lstm_forward(attributes):
    """The reference evaluator gives Y as a whole in one direction."""
    agree(*cell("LSTM", **attributes))


@pytest.mark.parametrize("operator", ["GRU", "RNN"])
def test_other_cells_forward(operator):
    agree(*cell(operator))
    agree(*cell(operator, states=("h0",)))


def test_a_gru_that_resets_after_its_product():
    agree(*cell("GRU", linear_before_reset=1))


def test_an_rnn_of_one_operation():
    found = agree(*cell("RNN", activations=["Relu"]), expected=_rnn_by_hand())
    assert "UNIDIRECTIONAL_SEQUENCE_RNN" in codes(found)


def _rnn_by_hand():
    _, feeds, constants, _, _ = cell("RNN")
    w, r, b = (constants[name][0].astype(np.float64) for name in "wrb")
    state, rows = np.zeros((BATCH, UNITS)), []
    for x in feeds["x"]:
        state = np.maximum(x @ w.T + state @ r.T + b[:UNITS] + b[UNITS:], 0)
        rows.append(state)
    return [np.array(rows)[:, None].astype(np.float32), state[None].astype(np.float32)]


def _parts(operator, constants, direction, feeds):
    """One direction of a bidirectional cell, forward: by the reference evaluator, on a reversed sequence perhaps."""
    own = {name: value[direction : direction + 1] for name, value in constants.items()}
    nodes, _, _, outputs, opset = cell(operator)
    x = feeds["x"][::-1].copy() if direction else feeds["x"]
    y, *ends = reference(model_of(nodes, {"x": x}, own, outputs, opset), {"x": x})
    return [y[::-1] if direction else y, *ends]


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_both_directions(operator):
    nodes, feeds, constants, outputs, opset = cell(operator, "bidirectional")
    parts = [_parts(operator, constants, n, feeds) for n in range(2)]
    due = [np.concatenate(pair, axis) for pair, axis in zip(zip(*parts, strict=True), (1, 0, 0), strict=False)]
    found = agree(nodes, feeds, constants, outputs, opset, expected=due)
    assert ("BIDIRECTIONAL_SEQUENCE_LSTM" in codes(found)) == (operator == "LSTM")


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_from_the_end(operator):
    nodes, feeds, constants, outputs, opset = cell(operator, "reverse")
    both = {name: np.concatenate([value, value]) for name, value in constants.items()}
    agree(nodes, feeds, constants, outputs, opset, expected=_parts(operator, both, 1, feeds))


# --- shape arithmetic, control flow, quantisation ---------------------------------------------------------------------


def test_shape_arithmetic_is_folded():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Gather", "s three", "w"),
        node("Unsqueeze", "n axes", "n1"),
        node("Unsqueeze", "w axes", "w1"),
        node("Mul", "w1 two", "w2"),
        node("Div", "w2 two", "w3"),
        node("Concat", "n1 minus w3", "shape", axis=0),
        node("Reshape", "x shape", "r"),
        node("ConstantOfShape", "shape2", "k"),
        node("Add", "r k", "a"),
        node("Range", "zero six one", "i"),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Mul", "a f"),
    ]
    constants = {"zero": ints(0), "three": ints(3), "axes": ints([0]), "two": ints([2]), "minus": ints([-1]),
                 "shape2": ints([28, 6]), "six": ints(6), "one": ints(1)}  # fmt: skip
    found = agree(nodes, IMAGE, constants)
    assert codes(found) == ["RESHAPE", "ADD", "MUL"]
    assert found.origins == (8, 10, 13)


def _graph(nodes, outputs, inputs=(), constants=None):
    values = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    return helper.make_graph(nodes, "inner", infos, results, values)


@pytest.mark.parametrize("limit", [-9.0, 9.0])
def test_branches(limit):
    then = _graph([node("Mul", "x two", "t")], ["t"], constants={"two": np.float32(2)})
    other = _graph([node("Identity", "x", "e")], ["e"])
    nodes = [node("ReduceSum", "x", "s", keepdims=0), node("Less", "s c", "b"),
             node("If", "b", "r", then_branch=then, else_branch=other), node("Neg", "r", "y")]  # fmt: skip
    found = agree(nodes, MATRIX, {"c": np.float32(limit)})
    assert "IF" in codes(found)
    known = [node("If", "b", "y", then_branch=then, else_branch=other)]
    assert "IF" not in codes(agree(known, MATRIX, {"b": np.array(limit > 0)}))


def test_a_loop_is_written_out():
    body = _graph([node("Add", "v x", "w"), node("Mul", "w half", "u"), node("Identity", "go", "on")],
                  ["on", "u", "w"], [("n", TensorProto.INT64, []), ("go", TensorProto.BOOL, []),
                                     ("v", TensorProto.FLOAT, None)], {"half": np.float32(0.5)})  # fmt: skip
    nodes = [node("Loop", "count go0 x", "y z", body=body)]
    state, rows = MATRIX["x"].astype(float), []
    for _ in range(3):
        rows.append(state + MATRIX["x"])
        state = rows[-1] / 2
    due = [state.astype(np.float32), np.array(rows, np.float32)]  # rows are stacked along a new first dimension
    agree(nodes, MATRIX, {"count": ints(3), "go0": np.array(True)}, ("y", "z"), expected=due)


def _affine(scale, zero, dtype, prefix):
    return {f"{prefix}s": np.float32(scale), f"{prefix}z": np.array(zero, dtype)}


QDQ = {
    "Conv": ("CONV_2D", X, {"w": W}, {"pads": [1, 1, 1, 1]}, 0.3),
    "ConvTranspose": ("TRANSPOSE_CONV_2D", X, {"w": random(4, 5, 3, 3)}, {"strides": [2, 2]}, 0.3),
    "Gemm": ("FULLY_CONNECTED", MATRIX["x"], {"w": random(4, 5)}, {}, 0.1),
    "MatMul": ("FULLY_CONNECTED", MATRIX["x"], {"w": random(4, 5)}, {}, 0.1),
    "Add": ("ADD", X, {"w": random(4, 1, 1)}, {}, 0.04),
    "Mul": ("MUL", X, {"w": random(4, 1, 1)}, {}, 0.04),
    "AveragePool": ("AVERAGE_POOL_2D", X, {}, {"kernel_shape": [3, 3]}, 0.02),
    "Sigmoid": ("LOGISTIC", X, {}, {}, 1 / 256),
    "Softmax": ("SOFTMAX", MATRIX["x"], {}, {"axis": 1}, 1 / 256),
    "HardSwish": ("HARD_SWISH", X, {}, {}, 0.02),
    "MaxPool": ("MAX_POOL_2D", X, {}, {"kernel_shape": [3, 3]}, 0.02),
    "ReduceMean": ("MEAN", X, {}, {"keepdims": 1}, 0.02),
}


NEWER = 19  # the evaluator knows the conversions from this opset on


def _between_conversions(operator, dtype, activation=False):
    """A quantised model of one operator between conversions: nodes, feeds, constants."""
    _, x, weights, attributes, scale = QDQ[operator]
    signed = dtype == np.int8
    zero = (-128 if signed else 0) if scale == 1 / 256 else (3 if signed else 131)
    if operator in ("AveragePool", "MaxPool", "ReduceMean"):
        zero = 5 if signed else 133
    constants = {**_affine(0.02, 5 if signed else 133, dtype, "x"), **_affine(scale, zero, dtype, "y")}
    nodes = [node("QuantizeLinear", "x xs xz", "xq"), node("DequantizeLinear", "xq xs xz", "xr")]
    names = "xr"
    for value in weights.values():
        constants |= {**_affine(0.016, 0, np.int8, "w"), "wq": np.rint(value / 0.016).astype(np.int8)}
        nodes.append(node("DequantizeLinear", "wq ws wz", "wr"))
        names += " wr"
    if operator in ("Add", "Mul"):
        constants |= {"wz": np.array(0 if signed else 128, dtype),
                      "wq": (constants["wq"].astype(int) + (0 if signed else 128)).astype(dtype)}  # fmt: skip
    if operator == "Conv":
        constants |= {"bq": np.arange(-400, 400, 100, dtype=np.int32), "bs": np.float32(0.02) * np.float32(0.016),
                      "bz": np.int32(0)}  # fmt: skip
        nodes.append(node("DequantizeLinear", "bq bs bz", "br"))
        names += " br"
    if operator == "ReduceMean":
        constants |= {"axes": ints([2, 3])}
        names += " axes"
    nodes.append(node(operator, names, "r", **attributes))
    if activation:
        nodes.append(node("Relu", "r", "a"))
    nodes.append(node("QuantizeLinear", f"{'a' if activation else 'r'} ys yz", "yq"))
    nodes.append(node("DequantizeLinear", "yq ys yz", "y"))
    return nodes, {"x": x}, constants


@pytest.mark.parametrize("operator", QDQ)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_operators_between_conversions_become_quantised_ones(operator, dtype):
    nodes, feeds, constants = _between_conversions(operator, dtype)
    found = agree(nodes, feeds, constants, ("yq", "y"), NEWER, steps=1, atol=1.01 * QDQ[operator][4])
    assert codes(found) == ["QUANTIZE", QDQ[operator][0], "DEQUANTIZE"]
    kinds = {found.model.main.operands[i].type.name for i in found.model.main.operations[1].inputs[:1]}
    assert kinds == {"TENSOR_QUANT8_ASYMM" if dtype == np.uint8 else "TENSOR_QUANT8_ASYMM_SIGNED"}


def test_an_activation_between_conversions_is_fused():
    nodes, feeds, constants = _between_conversions("Conv", np.uint8, activation=True)
    found = agree(nodes, feeds, constants, ("yq", "y"), NEWER, steps=1, atol=0.31)
    assert codes(found) == ["QUANTIZE", "CONV_2D", "DEQUANTIZE"]


def test_an_operator_that_no_quantised_operation_is_stays_between_conversions():
    nodes, feeds, constants = _between_conversions("Sigmoid", np.uint8)
    constants["ys"] = np.float32(1 / 200)
    found = agree(nodes, feeds, constants, ("yq", "y"), NEWER, steps=1, atol=1 / 150)
    assert codes(found) == ["QUANTIZE", "DEQUANTIZE", "LOGISTIC", "QUANTIZE", "DEQUANTIZE"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_filter_with_a_scale_for_each_channel(dtype):
    nodes, feeds, constants = _between_conversions("Conv", dtype)
    nodes = [n for n in nodes if n.output[0] != "br"]
    nodes[2].attribute.append(helper.make_attribute("axis", 0))
    conv = next(n for n in nodes if n.op_type == "Conv")
    del conv.input[2]
    scales = np.linspace(0.01, 0.02, 8).astype(np.float32)
    constants = {n: v for n, v in constants.items() if not n.startswith("b")}
    constants |= {"ws": scales, "wz": np.zeros(8, np.int8)}
    found = agree(nodes, feeds, constants, ("yq", "y"), NEWER, steps=1, atol=0.31)
    assert codes(found) == ["QUANTIZE", "CONV_2D", "DEQUANTIZE"]


def test_linear_convolution_on_quantised_tensors():
    x = np.rint(X / 0.02 + 131).clip(0, 255).astype(np.uint8)
    constants = {**_affine(0.02, 131, np.uint8, "x"), **_affine(0.016, 120, np.uint8, "w"),
                 **_affine(0.3, 127, np.uint8, "y"), "w": np.rint(W / 0.016 + 120).clip(0, 255).astype(np.uint8),
                 "b": np.arange(8, dtype=np.int32)}  # fmt: skip
    # The evaluator adds no bias; it is added to real numbers here, in the unit of the products.
    nodes = [node("QLinearConv", "x xs xz w ws wz ys yz b", "y")]
    real_x, real_w = (x.astype(float) - 131) * 0.02, (constants["w"].astype(float) - 120) * 0.016
    bias = (np.arange(8) * 0.02 * 0.016).astype(np.float32)
    plain = model_of([node("Conv", "x w b")], {"x": X}, {"w": real_w.astype(np.float32), "b": bias})
    due = reference(plain, {"x": real_x.astype(np.float32)})[0]
    stored = np.clip(np.rint(due / 0.3) + 127, 0, 255).astype(np.uint8)
    found = agree(nodes, {"x": x}, constants, expected=[stored], steps=1)
    assert codes(found) == ["CONV_2D"]
    assert (found.inputs[0].scale, found.inputs[0].zero_point) == (float(np.float32(0.02)), 131)


def test_linear_products_and_sums():
    constants = {**_affine(0.02, 3, np.int8, "x"), **_affine(0.016, 0, np.int8, "w"), **_affine(0.1, -7, np.int8, "y"),
                 "w": random(4, 5, low=-120, high=120).astype(np.int8)}  # fmt: skip
    x = random(3, 4, low=-120, high=120).astype(np.int8)
    found = agree([node("QLinearMatMul", "x xs xz w ws wz ys yz")], {"x": x}, constants, steps=1)
    assert codes(found) == ["FULLY_CONNECTED"]
    wide = {**constants, "w": random(4, low=-120, high=120).astype(np.int8)}
    due = np.clip(np.rint(((x.astype(float) - 3) * 0.02 + wide["w"] * 0.016) / 0.1) - 7, -128, 127).astype(np.int8)
    added = [node("QLinearAdd", "x xs xz w ws wz ys yz", domain=MICROSOFT)]
    assert codes(agree(added, {"x": x}, wide, expected=[due], steps=1)) == ["ADD"]


# --- names, places, refusals ------------------------------------------------------------------------------------------


def test_every_tensor_in_between_is_found():
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2]),
        node("Flatten", "p", "f"),
        node("Gemm", "f g", "m"),
        node("Softmax", "m", "y"),
    ]
    constants = {"w": W, "g": random(240, 3)}
    found = imported(model_of(nodes, IMAGE, constants))
    names = ["c", "r", "p", "f", "m", "y"]
    due = reference(model_of(nodes, IMAGE, constants, names), IMAGE)
    graph = found.model.main
    shown = tuple(
        replace(o, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT) if i in found.places.values() and i else o
        for i, o in enumerate(graph.operands)
    )
    places = tuple(found.places[name] for name in names)
    every = replace(found.model, main=replace(graph, operands=shown, output_indexes=places))
    for got, wanted in zip(evaluate(every, [X]), due, strict=True):
        np.testing.assert_allclose(got.stored, wanted, rtol=2e-5, atol=2e-5)
    assert found.origins == (0, 1, 2, 3, 4, 5)


def test_outputs_that_no_node_computes():
    feeds = {"x": random(2, 3), "b": np.array([True, False])}
    found = agree([node("Identity", "x", "y"), node("Identity", "x", "z"), node("Identity", "b", "d"),
                   node("Neg", "x", "n"), node("Identity", "n", "m")], feeds, {"c": random(2)},
                  ("y", "z", "d", "n", "m"))  # fmt: skip
    assert len(set(found.model.main.output_indexes)) == 5
    constant = model_of([node("Neg", "x", "y")], {"x": random(2)}, {"c": random(3)}, ("y", "c", "x"))
    np.testing.assert_array_equal(run(imported(constant), {"x": random(2)})[1], random(3))


def test_all_that_is_refused_is_named_at_once():
    nodes = [node("Erf", "x", "a"), node("Relu", "a", "b"), node("NonZero", "b", "c"), node("Cast", "b", "d", to=11),
             node("Blue", "b", "y")]  # fmt: skip
    found = import_onnx(model_of(nodes, MATRIX, outputs=("y",)).SerializeToString(), "m")
    assert found.model is None
    named = [(one.number, one.operator) for one in found.missing]
    assert named == [(0, "Erf"), (2, "NonZero"), (3, "Cast"), (4, "Blue")]
    assert "error function" in found.missing[0].reason
    assert "float64" in found.missing[2].reason
    assert found.operators == ("Erf", "Relu", "NonZero", "Cast", "Blue")
