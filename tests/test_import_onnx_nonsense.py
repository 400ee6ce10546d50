"""ONNX operators on what they are not meant for: an import that can be run, or one sentence."""

from __future__ import annotations

import random as chances

import numpy as np
import pytest

from importers.onnx_file.folding import FOLDS
from importers.onnx_file.operators import REASONS, TRANSLATORS
from importers.onnx_file.quantized import QLINEAR
from tests.onnx_models import attempt, model_of, node, run

SEED = 20240

ATTRIBUTES = {
    "axis": (0, 1, -1, 2, 7), "axes": ([0], [1, 2], [-1], [5]), "perm": ([1, 0], [0, 2, 1], [3, 1, 2, 0]),
    "kernel_shape": ([2], [2, 2], [3, 1], [0, 2], [2**40, 1]), "strides": ([2], [1, 2], [0, 1], [2**40, 1]),
    "pads": ([1, 1], [0, 1, 1, 0], [9, 9, 9, 9], [-1, 0, 0, 0]), "dilations": ([2], [1, 2], [2**33, 1]),
    "auto_pad": ("SAME_UPPER", "SAME_LOWER", "VALID", "BLUE"), "group": (1, 2, 3, 0, -1), "to": (1, 6, 7, 9, 10, 11, 2),
    "keepdims": (0, 1), "noop_with_empty_axes": (0, 1), "mode": ("linear", "nearest", "reflect", "cubic", "CRD"),
    "count_include_pad": (0, 1), "ceil_mode": (0, 1), "alpha": (0.5, 0.0, float("nan")), "transA": (0, 1),
    "direction": ("reverse", "bidirectional"), "blocksize": (2, 0, 3), "block_size": (0, 2), "k": (1, 3),
    "num_groups": (2, 3), "size": (3, 4), "output_shape": ([4, 4], [2]), "output_padding": ([1, 1], [0, 1]),
    "coordinate_transformation_mode": ("asymmetric", "align_corners", "tf_crop_and_resize"), "largest": (0,),
    "split": ([1, 2], [2, 2]), "scales": ([1.0, 2.0], [1.0, 1.0, 2.0, 0.5]), "linear_before_reset": (1,),
    "epsilon": (1e-3, 0.0), "approximate": ("tanh",), "num_outputs": (2,), "allowzero": (1,),
}  # fmt: skip
SHAPES = [(), (1,), (4,), (2, 3), (3, 3), (1, 2, 4), (2, 4, 4), (1, 4, 4, 4), (4, 2, 3, 3), (1, 1, 2, 2, 3), (0, 2)]
LISTS = ([0], [-1], [1, 2], [2, 2], [0, 0, 1, 1], [1, 0, 0, 1], [1, 1, 2, 2], [2**40], [-(2**63)], [3, -1], [])
DTYPES = (np.float32, np.float32, np.float32, np.float16, np.int64, np.int32, np.bool_, np.uint8, np.int8, np.float64)


# Operators that hardly ever are right by chance, with inputs that are: shapes of inputs, or values of constants.
NEARLY = [
    ("Conv", [(1, 4, 5, 6), (6, 2, 3, 3), (6,)], {"group": 2}),
    ("Conv", [(1, 4, 5, 6), (8, 1, 2, 2)], {"group": 4}),
    ("Conv", [(2, 3, 9), (4, 3, 3)], {"dilations": [2]}),
    ("ConvTranspose", [(1, 3, 4, 4), (3, 2, 3, 3)], {}),
    ("MaxPool", [(1, 2, 6, 6)], {"kernel_shape": [2, 3]}),
    ("AveragePool", [(1, 2, 6)], {"kernel_shape": [3]}),
    ("LpPool", [(1, 2, 6, 6)], {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
    ("LSTM", [(3, 1, 2), (2, 8, 2), (2, 8, 2)], {"direction": "bidirectional"}),
    ("GRU", [(3, 1, 2), (1, 6, 2), (1, 6, 2)], {}),
    ("RNN", [(3, 1, 2), (1, 2, 2), (1, 2, 2), (1, 4)], {"activations": ["Relu"]}),
    ("Gemm", [(2, 3), (3, 4), (4,)], {}),
    ("MatMul", [(2, 1, 2, 3), (2, 3, 2)], {}),
    ("BatchNormalization", [(1, 3, 2, 2), (3,), (3,), (3,), (3,)], {}),
    ("LayerNormalization", [(2, 3, 4), (4,), (4,)], {}),
    ("InstanceNormalization", [(1, 3, 2, 2), (3,), (3,)], {}),
    ("GroupNormalization", [(1, 4, 3), (4,), (4,)], {"num_groups": 2}),
    ("Pad", [(2, 3), [1, 0, 0, 2]], {}),
    ("Slice", [(2, 5), [1], [4], [1], [2]], {}),
    ("Split", [(4, 2), [1, 3]], {}),
    ("Resize", [(1, 1, 3, 4), [1.0], [1.0, 1.0, 2.0, 1.5]], {"mode": "linear"}),
    ("TopK", [(2, 5), [2]], {}),
    ("Where", [(2, 3), (2, 3), (3,)], {}),
    ("SpaceToDepth", [(1, 2, 4, 4)], {"blocksize": 2}),
    ("Tile", [(2, 3), [2, 1]], {}),
    ("Reshape", [(2, 6), [3, -1]], {}),
    ("Gather", [(3, 4), [[0, 2]]], {"axis": 1}),
    ("Range", [0.0, 5.0, 2.0], {}),
    ("QuantizeLinear", [(2, 3), 0.1], {}),
    ("QLinearConv", [(1, 2, 4, 4), 0.1, 3, (3, 2, 2, 2), [0.1, 0.2, 0.3], [0, 0, 0], 0.2, 5], {}),
    ("QLinearMatMul", [(2, 3), 0.1, 3, (3, 4), 0.2, 4, 0.3, 5], {}),
]


def nearly(chance):
    """A model of one operator that is right but for what chance changes."""
    operator, inputs, attributes = chance.choice(NEARLY)
    numbers = np.random.default_rng(chance.randrange(2**32))
    feeds, constants = {}, {}
    for place, given in enumerate(inputs):
        name, value = f"t{place}", np.array(given)
        if isinstance(given, tuple):
            shape = given if chance.random() < 0.95 else chance.choice(SHAPES)
            value = numbers.uniform(-2, 2, shape)
        if value.dtype == np.float64:
            value = value.astype(np.float32)
        if operator.startswith("QLinear") and (isinstance(given, tuple) or value.dtype != np.float32):
            value = value.astype(np.int8)
        if operator == "Where" and place == 0:
            value = value > 0
        if chance.random() < 0.03:
            value = value.astype(chance.choice(DTYPES))
        known = not isinstance(given, tuple) or (place and chance.random() < 0.8)
        (constants if known or not value.size else feeds)[name] = value
    changed = {name: chance.choice(ATTRIBUTES[name]) for name in chance.sample(sorted(ATTRIBUTES), chance.randrange(4))}
    names = " ".join(f"t{n}" for n in range(len(inputs)))
    nodes = [node(operator, names, chance.choice(("y", "y z")), **{**attributes, **changed})]
    return model_of(nodes, feeds, constants, ("y",), chance.choice((10, 13, 17, 18, 21))), feeds


def nonsense(chance, operators):
    """A model of one operator, or two in a row, with operands and attributes that go together by chance alone."""
    if chance.random() < 0.5:
        return nearly(chance)
    domain, operator = chance.choice(operators)
    numbers = np.random.default_rng(chance.randrange(2**32))
    feeds, constants, names = {}, {}, []
    for place in range(chance.choice((1, 1, 2, 2, 3, 3, 4, 6, 8))):
        name = f"t{place}"
        if place and chance.random() < 0.3:
            constants[name] = np.array(chance.choice(LISTS), np.int64)
        else:
            dtype = chance.choice(DTYPES if chance.random() < 0.3 else DTYPES[:1])
            # Integers that a run is given are 0, so that they are indexes of everything.
            most = 0 if np.issubdtype(dtype, np.signedinteger) else 3
            value = numbers.uniform(0, most, chance.choice(SHAPES)).astype(dtype)
            (feeds if value.size and chance.random() < 0.6 else constants)[name] = value
        names.append(name if place == 0 or chance.random() < 0.95 else "_")
    attributes = {name: chance.choice(ATTRIBUTES[name]) for name in chance.sample(sorted(ATTRIBUTES), 6)}
    outputs = chance.choice(("y", "y", "y z", "_ z", "y z v"))
    nodes = [node(operator, " ".join(names), outputs.replace("_", "w"), domain=domain, **attributes)]
    if chance.random() < 0.3:
        domain, operator = chance.choice(operators)
        nodes.append(node(operator, " ".join([outputs.split()[-1], *names[1:]]), "u", domain=domain, **attributes))
    opset = chance.choice((7, 9, 10, 11, 12, 13, 17, 18, 21, 23))
    return model_of(nodes, feeds, constants, (nodes[-1].output[0],), opset), feeds


def nonsense_storm(times):
    """What becomes a model can be run, and its results have the shapes that the importer says."""
    chance = chances.Random(SEED)
    operators = sorted({*TRANSLATORS, *QLINEAR, *(("", name) for name in (*FOLDS, *REASONS))})
    ran = 0
    for _ in range(times):
        model, feeds = nonsense(chance, operators)
        found = attempt(model.SerializeToString())
        if found is None or found.model is None:
            continue
        with np.errstate(all="ignore"):
            results = run(found, feeds)
        assert [value.shape for value in results] == [port.dimensions for port in found.outputs]
        ran += 1
    assert ran > times // 50


def test_operators_on_what_they_are_not_meant_for():
    nonsense_storm(250)


@pytest.mark.thorough
def test_many_operators_on_what_they_are_not_meant_for():
    nonsense_storm(20_000)
