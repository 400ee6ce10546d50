"""ONNX operators after import, against the reference evaluator of the onnx package."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from tests.onnx_models import agree, codes, model_of, node, random, reference

X = random(1, 4, 7, 6)
IMAGE = {"x": X}
ROW = {"x": random(2, 3, 9)}
MATRIX = {"x": random(3, 4)}
POSITIVE = {"x": random(2, 3, 4, low=0.1, high=3.0)}
SIX = {"x": random(1, 2, 3, 2, 2, 3)}
W = random(8, 4, 3, 3, seed=1)
ints = np.array


def only(operator, feeds, *inputs, opset=17, outputs="y", constants=None, **attributes):
    """One operator; its inputs are the feeds, then further constants."""
    named = {f"c{n}": value for n, value in enumerate(inputs) if value is not None}
    names = " ".join([*feeds, *(f"c{n}" if value is not None else "_" for n, value in enumerate(inputs))])
    return agree([node(operator, names, outputs, **attributes)], feeds, named, tuple(outputs.split()), opset)


CONVOLUTIONS = {
    "plain": (IMAGE, (W,), {}),
    "bias, asymmetric pads, strides": (IMAGE, (W, random(8)), {"pads": [0, 1, 2, 1], "strides": [2, 1]}),
    "dilations": (IMAGE, (W,), {"dilations": [2, 1], "pads": [2, 0, 2, 0]}),
    "groups": (IMAGE, (random(6, 2, 3, 2, seed=2), random(6)), {"group": 2}),
    "groups and dilations": (IMAGE, (random(6, 2, 3, 2, seed=2), random(6)), {"group": 2, "dilations": [2, 2]}),
    "depthwise": (IMAGE, (random(8, 1, 3, 3, seed=3),), {"group": 4, "pads": [1, 1, 1, 1]}),
    "same upper": (IMAGE, (random(2, 4, 2, 4, seed=4),), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    "same lower": (IMAGE, (random(2, 4, 2, 4, seed=4),), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "valid": (IMAGE, (W,), {"auto_pad": "VALID"}),
    "one dimension": (ROW, (random(5, 3, 4, seed=5), random(5)), {"pads": [2, 1], "strides": [2]}),
    "depthwise, one dimension": (ROW, (random(3, 1, 3, seed=6),), {"group": 3, "dilations": [2]}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    feeds, weights, attributes = CONVOLUTIONS[name]
    only("Conv", feeds, *weights, **attributes)


def test_a_convolution_with_weights_that_are_no_constants():
    agree([node("Conv", "x w b")], {"x": X, "w": W, "b": random(8)})


TRANSPOSED = {
    "plain": {},
    "strides and pads": {"strides": [2, 3], "pads": [1, 0, 1, 2]},
    "output padding": {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]},
    "dilations": {"dilations": [2, 1], "pads": [1, 0, 0, 1]},
    "same upper": {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions(name):
    only("ConvTranspose", IMAGE, random(4, 5, 3, 3, seed=7), random(5), **TRANSPOSED[name])


def test_a_transposed_convolution_with_a_wanted_size():
    weights = random(4, 5, 3, 3, seed=7)
    whole = model_of([node("ConvTranspose", "x w", strides=[2, 2])], IMAGE, {"w": weights})
    due = reference(whole, IMAGE)[0]
    assert due.shape == (1, 5, 15, 13)
    for scheme, start in (("NOTSET", 1), ("SAME_UPPER", 0), ("SAME_LOWER", 1)):
        cut = due[:, :, start : start + 14, start : start + 12]
        agree([node("ConvTranspose", "x w", strides=[2, 2], output_shape=[14, 12], auto_pad=scheme)], IMAGE,
              {"w": weights}, expected=[cut])  # fmt: skip


def test_a_transposed_convolution_of_one_dimension():
    only("ConvTranspose", ROW, random(3, 2, 4, seed=7), strides=[2], pads=[1, 1])


POOLS = {
    "max": ("MaxPool", IMAGE, {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    "max, rounded up": ("MaxPool", IMAGE, {"kernel_shape": [2, 4], "strides": [2, 3], "ceil_mode": 1}),
    "max of one dimension": ("MaxPool", ROW, {"kernel_shape": [3], "strides": [2]}),
    "average": ("AveragePool", IMAGE, {"kernel_shape": [3, 3], "pads": [1, 1, 0, 1]}),
    "average, padding counts": ("AveragePool", IMAGE, {"kernel_shape": [3, 3], "pads": [1, 1, 0, 1],
                                                       "count_include_pad": 1}),
    "average, same": ("AveragePool", IMAGE, {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "lp": ("LpPool", IMAGE, {"kernel_shape": [2, 3], "p": 2}),
    "global average": ("GlobalAveragePool", IMAGE, {}),
    "global max": ("GlobalMaxPool", IMAGE, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_pools(name):
    operator, feeds, attributes = POOLS[name]
    only(operator, feeds, **attributes)


def test_global_max_pool_of_one_dimension():
    agree([node("GlobalMaxPool", "x")], ROW, expected=[ROW["x"].max(2, keepdims=True)])


def test_global_lp_pool_is_the_root_of_a_sum_of_squares():
    agree([node("GlobalLpPool", "x", p=2)], IMAGE, expected=[np.sqrt((X.astype(float)**2).sum((2, 3), keepdims=True))
                                                             .astype(np.float32)])  # fmt: skip


UNARY = ["Relu", "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "LeakyRelu", "HardSigmoid", "HardSwish", "Softplus",
         "Softsign", "Neg", "Abs", "Exp", "Sin", "Cos", "Floor", "Ceil", "Sign", "Mish", "ThresholdedRelu"]  # fmt: skip


@pytest.mark.parametrize("operator", UNARY)
def test_functions_of_an_element(operator):
    only(operator, MATRIX, opset=18)


@pytest.mark.parametrize("operator", ["Neg", "Abs", "Exp", "Sin", "Elu", "HardSwish"])
def test_functions_of_six_dimensions(operator):
    only(operator, SIX, opset=18)


@pytest.mark.parametrize("operator", ["Log", "Sqrt", "Reciprocal"])
def test_functions_of_positive_elements(operator):
    only(operator, POSITIVE)


def test_a_gelu_by_tanh():
    only("Gelu", MATRIX, opset=20, approximate="tanh")


CLIPS = {
    "0..6": ([0.0, 6.0], ["RELU6"]),
    "-1..1": ([-1.0, 1.0], ["RELU1"]),
    "from 0": ([0.0, None], ["RELU"]),
    "-0.5..1.5": ([-0.5, 1.5], ["MAXIMUM", "MINIMUM"]),
    "to 0.25": ([None, 0.25], ["MINIMUM"]),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clips(name):
    bounds, due = CLIPS[name]
    found = only("Clip", MATRIX, *(None if b is None else np.float32(b) for b in bounds))
    assert codes(found) == due


def test_an_older_clip_has_attributes():
    assert codes(only("Clip", MATRIX, opset=7, min=0.0, max=6.0)) == ["RELU6"]


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("axis", "opset"), [(1, 13), (-1, 13), (2, 13)])
def test_normalised_exponentials(operator, axis, opset):
    only(operator, IMAGE, opset=opset, axis=axis)


@pytest.mark.parametrize(("axis", "shape"), [(1, (1, 168)), (2, (4, 42)), (3, (28, 6))])
def test_an_older_softmax_flattens(axis, shape):
    flat = X.reshape(shape).astype(np.float64)
    powers = np.exp(flat - flat.max(1, keepdims=True))
    due = (powers / powers.sum(1, keepdims=True)).reshape(X.shape).astype(np.float32)
    agree([node("Softmax", "x", axis=axis)], IMAGE, opset=11, expected=[due])


@pytest.mark.parametrize("slope", [random(1, seed=3), random(4, 1, 1, seed=3), random(4, 7, 6, seed=3)])
def test_slopes(slope):
    only("PRelu", IMAGE, slope)


PAIRS = [((2, 3), (2, 3)), ((4, 1, 6), (5, 1)), ((1,), (2, 2)), ((), (3,)), ((2, 1, 3, 2, 2, 1), (2, 5, 3, 2, 2, 1)),
         ((1, 2, 3, 4, 5), (4, 1))]  # fmt: skip


@pytest.mark.parametrize("shapes", PAIRS, ids=str)
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Greater", "LessOrEqual", "Equal"])
def test_two_tensors(operator, shapes):
    a = random(*shapes[0], low=0.5)
    constants = {"b": random(*shapes[1], seed=1, low=0.5)}
    agree([node(operator, "b x")], {"x": a}, constants, opset=18) if len(shapes[0]) <= 4 else agree(
        [node("Reshape", "f s", "x"), node(operator, "b x")], {"f": a.reshape(-1)},
        {**constants, "s": ints(shapes[0])}, opset=18)  # fmt: skip


def test_whole_numbers():
    feeds = {"x": ints([[-7, 5, 12]]), "z": ints([[3], [-4]])}
    found = agree([node("Mod", "x z", "m"), node("Add", "m x", "a"), node("Greater", "a z", "g"),
                   node("Cast", "g", "y", to=TensorProto.FLOAT)], feeds, outputs=("m", "a", "y"))  # fmt: skip
    assert [port.dtype for port in found.inputs] == ["int64", "int64"]


def test_sums_powers_and_means_of_several():
    feeds = {"x": random(2, 3, low=0.2), "z": random(3, low=0.2), "v": random(1, low=0.2)}
    nodes = [node("Sum", "x z v", "s"), node("Mean", "x z v", "m"), node("Pow", "x z", "p"), node("Pow", "x two", "q")]
    agree(nodes, feeds, {"two": ints(2)}, ("s", "m", "p", "q"))


def test_truths():
    feeds = {"x": random(2, 1, 3), "z": random(4, 3)}
    nodes = [node("Greater", "x z", "g"), node("Less", "x c", "l"), node("And", "g l", "a"), node("Or", "g l", "o"),
             node("Xor", "g l", "e"), node("Not", "a", "n"), node("Unsqueeze", "n axes", "u"),
             node("Where", "u x z", "w"), node("IsNaN", "x", "i"), node("Transpose", "o", "t")]  # fmt: skip
    agree(nodes, feeds, {"c": np.float32([0.5]), "axes": ints([0])}, ("a", "o", "e", "n", "u", "w", "i", "t"))


CASTS = [(np.float32, TensorProto.INT32), (np.float32, TensorProto.BOOL), (np.int32, TensorProto.FLOAT),
         (np.float32, TensorProto.FLOAT16), (np.bool_, TensorProto.INT64), (np.int64, TensorProto.INT32),
         (np.uint8, TensorProto.FLOAT), (np.float32, TensorProto.UINT8)]  # fmt: skip


@pytest.mark.parametrize(("dtype", "to"), CASTS, ids=str)
def test_casts(dtype, to):
    value = np.array([0.0, 0.5, 1.0, 3.75, 100.25]).astype(dtype)
    only("Cast", {"x": value}, to=to)


PRODUCTS = {
    "plain": ((3, 4), (4, 5)),
    "stacked times matrix": ((2, 3, 4), (4, 5)),
    "stacked": ((2, 3, 4), (2, 4, 5)),
    "spread": ((1, 3, 4), (2, 1, 4, 5)),
    "row": ((4,), (4, 5)),
    "column": ((2, 3, 4), (4,)),
    "five dimensions": ((2, 1, 2, 3, 4), (2, 2, 4, 3)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("constant", [True, False])
def test_matrix_products(name, constant):
    first, second = PRODUCTS[name]
    if len(first) > 4:
        constants = {"s": ints(first), "b": random(*second, seed=1)}
        agree([node("Reshape", "x s", "a"), node("MatMul", "a b")], {"x": random(*first).reshape(-1)}, constants)
        return
    feeds = {"x": random(*first)}
    if constant:
        only("MatMul", feeds, random(*second, seed=1))
    else:
        only("MatMul", {**feeds, "z": random(*second, seed=1)})


GEMMS = {
    "plain": ((4, 5), None, {}),
    "bias": ((4, 5), (5,), {}),
    "turned": ((5, 4), (1, 5), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    "matrix": ((4, 5), (3, 5), {"beta": 0.25}),
    "number": ((4, 5), (1,), {"alpha": 1.5}),
    "column": ((4, 5), (3, 1), {}),
}


@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("constant", [True, False])
def test_gemm(name, constant):
    second, third, attributes = GEMMS[name]
    others = {"b": random(*second, seed=1)} | ({} if third is None else {"c": random(*third, seed=2)})
    names = " ".join(["x", *others])
    if constant:
        agree([node("Gemm", names, **attributes)], MATRIX, others)
    else:
        agree([node("Gemm", names, **attributes)], {**MATRIX, **others})
    agree([node("Gemm", names, transA=1, **attributes)], {"x": MATRIX["x"].T.copy(), **others})


def test_batch_normalization():
    values = [random(4, seed=n, low=0.2) for n in range(4)]
    only("BatchNormalization", IMAGE, *values, epsilon=1e-3)


@pytest.mark.parametrize("feeds", [IMAGE, {"x": random(2, 4, 9)}], ids=["image", "row"])
def test_instance_normalization(feeds):
    only("InstanceNormalization", feeds, random(4, seed=1), random(4, seed=2))
    found = only("InstanceNormalization", feeds, np.full(4, 1.5, np.float32), np.full(4, 0.5, np.float32))
    assert "MUL" not in codes(found)


def test_layer_and_group_normalization():
    only("LayerNormalization", {"x": random(2, 3, 8)}, random(8, seed=1), random(8, seed=2), axis=-1)
    only("LayerNormalization", {"x": random(2, 3, 8)}, random(3, 8, seed=1), axis=1)
    only("GroupNormalization", IMAGE, random(4, seed=1), random(4, seed=2), num_groups=2, opset=21)
    only("GroupNormalization", IMAGE, random(2, seed=1), random(2, seed=2), num_groups=2, opset=18)
    only("RMSNormalization", {"x": random(2, 3, 8)}, random(8, seed=1), axis=-1, opset=23)


def test_other_normalizations():
    squares = np.pad(X.astype(float) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    around = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    due = (X / (1.5 + 0.1 / 3 * around) ** 0.6).astype(np.float32)
    agree([node("LRN", "x", size=3, alpha=0.1, beta=0.6, bias=1.5)], IMAGE, expected=[due])
    only("MeanVarianceNormalization", IMAGE)
    due = X / np.sqrt((X.astype(float) ** 2).sum(1, keepdims=True))
    agree([node("LpNormalization", "x", axis=1, p=2)], IMAGE, expected=[due.astype(np.float32)])


REDUCTIONS = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
              "ReduceSumSquare", "ReduceLogSum"]  # fmt: skip


@pytest.mark.parametrize("operator", [*REDUCTIONS, "ReduceLogSumExp"])
def test_reductions(operator):
    for feeds, axes, keep in ((POSITIVE, [1], 1), (POSITIVE, [0, -1], 0), (POSITIVE, None, 1)):
        only(operator, feeds, None if axes is None else ints(axes), opset=18, keepdims=keep)
    if operator != "ReduceSum":  # its axes are an input since 13
        only(operator, POSITIVE, opset=13, axes=[2])


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_places_of_extremes(operator):
    only(operator, IMAGE, axis=1)
    only(operator, IMAGE, axis=-1, keepdims=0)


@pytest.mark.parametrize(("axis", "largest"), [(-1, 1), (1, 1), (1, 0)])
def test_the_largest(axis, largest):
    found = only("TopK", IMAGE, ints([3]), axis=axis, largest=largest, outputs="y z")
    assert "TOPK_V2" in codes(found)


MOVES = {
    "reshape": ("Reshape", IMAGE, (ints([0, -1, 6]),), {}),
    "flatten": ("Flatten", IMAGE, (), {"axis": 2}),
    "squeeze": ("Squeeze", {"x": random(1, 3, 1, 2)}, (ints([0, 2]),), {}),
    "squeeze all": ("Squeeze", {"x": random(1, 1)}, (), {}),
    "unsqueeze": ("Unsqueeze", MATRIX, (ints([0, -1]),), {}),
    "transpose": ("Transpose", IMAGE, (), {"perm": [0, 2, 3, 1]}),
    "turned round": ("Transpose", MATRIX, (), {}),
    "split": ("Split", IMAGE, (ints([1, 3]),), {"axis": 1, "outputs": "y z"}),
    "halves": ("Split", IMAGE, (), {"axis": 1, "outputs": "y z"}),
    "slice": ("Slice", IMAGE, (ints([1, -5]), ints([3, 2**62]), ints([1, -1])), {}),
    "steps": ("Slice", IMAGE, (ints([0, 6]), ints([7, -(2**62)]), ints([2, 3]), ints([3, -2])), {}),
    "gather": ("Gather", IMAGE, (ints([[0, -1], [2, 1]]),), {"axis": 1}),
    "one row": ("Gather", MATRIX, (ints(1),), {}),
    "tile": ("Tile", MATRIX, (ints([2, 3]),), {}),
    "expand": ("Expand", {"x": random(3, 1)}, (ints([2, 1, 4]),), {}),
    "expand to six": ("Expand", {"x": random(3, 1)}, (ints([2, 1, 2, 1, 3, 4]),), {}),
    "pad": ("Pad", MATRIX, (ints([1, 0, 0, 2]),), {}),
    "pad with": ("Pad", MATRIX, (ints([1, 0, 0, 2]), np.float32(1.5)), {}),
    "reflect": ("Pad", MATRIX, (ints([1, 0, 2, 2]),), {"mode": "reflect"}),
    "pad an axis": ("Pad", MATRIX, (ints([1, 2]), np.float32(0), ints([1])), {"opset": 18}),
    "blocks": ("DepthToSpace", IMAGE, (), {"blocksize": 2}),
    "blocks by column": ("DepthToSpace", {"x": random(2, 12, 2, 3)}, (), {"blocksize": 2, "mode": "CRD"}),
    "depth": ("SpaceToDepth", {"x": random(1, 3, 4, 6)}, (), {"blocksize": 2}),
    "identity": ("Identity", MATRIX, (), {}),
    "dropout": ("Dropout", MATRIX, (), {}),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name):
    operator, feeds, others, attributes = MOVES[name]
    only(operator, feeds, *others, **attributes)


def test_what_a_pad_takes_away():
    due = np.pad(MATRIX["x"][1:], ((0, 1), (0, 2)))
    agree([node("Pad", "x p")], MATRIX, {"p": ints([-1, 0, 1, 2])}, expected=[due])


def test_gather_by_indexes_that_only_a_run_knows():
    agree([node("Gather", "x i", axis=1)], {"x": X, "i": ints([[3, 0]])})


def test_channels_are_shuffled_over_five_dimensions():
    shuffle = [node("Reshape", "x s", "a"), node("Transpose", "a", "b", perm=[0, 2, 1, 3, 4]), node("Reshape", "b t")]
    found = agree(shuffle, IMAGE, {"s": ints([1, 2, 2, 7, 6]), "t": ints([1, 4, 7, 6])})
    assert "TRANSPOSE" in codes(found)


def test_the_first_of_equal_elements_is_the_largest():
    only("TopK", {"x": np.float32([[1, 3, 3, 2, 3]])}, ints([4]), outputs="y z")
    agree([node("TopK", "x k", "y z", largest=0)], {"x": np.float32([2, 1, 1, 1])}, {"k": ints([2])}, ("y", "z"),
          expected=[np.float32([1, 1]), ints([1, 2])])  # fmt: skip


def test_concatenations():
    agree([node("Concat", "x z c", axis=1)], {"x": random(1, 2, 3), "z": random(1, 1, 3)}, {"c": random(1, 4, 3)})
    six = {"x": random(24)}
    agree([node("Reshape", "x s", "a"), node("Concat", "a a", "b", axis=2), node("Flatten", "b")], six,
          {"s": ints([1, 2, 3, 2, 1, 2])})  # fmt: skip


RESIZES = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "nearest, half": {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    "nearest, default": {"mode": "nearest"},
    "nearest, corners": {"mode": "nearest", "coordinate_transformation_mode": "align_corners"},
    "linear, half": {"mode": "linear"},
    "linear, corners": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    "linear, asymmetric": {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    "linear, as in PyTorch": {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
}


@pytest.mark.parametrize("name", RESIZES)
@pytest.mark.parametrize("scales", [(2.0, 2.0), (0.5, 3.0)], ids=str)
def test_images_in_another_size(name, scales):
    feeds = {"x": random(1, 2, 4, 6)}
    only("Resize", feeds, None, np.float32([1, 1, *scales]), **RESIZES[name])
    size = ints([1, 2, int(4 * scales[0]), int(6 * scales[1])])
    only("Resize", feeds, None, None, size, **RESIZES[name])


def test_older_ways_to_enlarge():
    due = X.repeat(2, 2).repeat(3, 3)
    scales = np.float32([1, 1, 2, 3])
    for operator, opset in (("Upsample", 9), ("Resize", 10)):
        agree([node(operator, "x s", mode="nearest")], IMAGE, {"s": scales}, opset=opset, expected=[due])
    agree([node("Upsample", "x", mode="nearest", scales=[1.0, 1.0, 2.0, 3.0])], IMAGE, opset=7, expected=[due])
