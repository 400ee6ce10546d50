"""Files on which LiteRT and the imported model must agree: what the translator of the LiteRT adapter never writes."""

from __future__ import annotations

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from opset.drawing import Scope
from opset.drawn import draw_call
from opset.graph import model_of
from opset.source import SeededSource
from tests.tflite_files import File, per_channel, steps

CASES = {}


def case(tolerance=1e-5, low=-2.0, high=2.0, steps_off=1, runs=1):
    """A file that LiteRT and the imported model must agree on."""

    def keep(build):
        CASES[build.__name__.strip("_")] = (build, tolerance, low, high, steps_off, runs)
        return build

    return keep


# --- files that the translator never writes ---------------------------------------------------------------------------


@case()
def squared_difference(f):
    a, b = f.input((2, 3)), f.input((3,))
    return f.add("SQUARED_DIFFERENCE", [a, b], (2, 3), options="SquaredDifferenceOptions")


@case()
def squared_difference_of_steps(f):
    a, b = f.input((2, 3), "int8", steps(0.02, 3)), f.input((2, 3), "int8", steps(0.03, -4))
    return f.add("SQUARED_DIFFERENCE", [a, b], (2, 3), "int8", steps(0.2, -128), options="SquaredDifferenceOptions")


@case()
def pack(f):
    parts = [f.input((2, 3)) for _ in range(3)]
    return f.add("PACK", parts, (2, 3, 3), options="PackOptions", ValuesCount=3, Axis=1)


@case()
def pack_of_scalars(f):
    parts = [f.input((), "int32") for _ in range(3)]
    return f.add("PACK", parts, (3,), "int32", options="PackOptions", ValuesCount=3, Axis=0)


@case()
def pack_of_steps(f):
    parts = [f.input((2, 3), "uint8", steps(0.5, 7)) for _ in range(2)]
    return f.add("PACK", parts, (2, 3, 2), "uint8", steps(0.5, 7), options="PackOptions", ValuesCount=2, Axis=-1)


def several(f, name, inputs, shapes, kind="float32", known=None, options=None, **fields):
    results = [f.tensor(shape, kind, known) for shape in shapes]
    f.graph.operator(name, inputs, results, options, **fields)
    return results


@case()
def unpack(f):
    return several(f, "UNPACK", [f.input((2, 3, 4))], [(2, 4)] * 3, options="UnpackOptions", Num=3, Axis=1)


@case()
def unpack_to_scalars(f):
    return several(f, "UNPACK", [f.input((3,))], [()] * 3, options="UnpackOptions", Num=3, Axis=0)


@case()
def split_v(f):
    inputs = [f.input((2, 7)), f.constant([2, -1, 1], "int32"), f.constant(1, "int32")]
    return several(f, "SPLIT_V", inputs, [(2, 2), (2, 4), (2, 1)], options="SplitVOptions", NumSplits=3)


@case()
def split_v_of_steps(f):
    inputs = [f.input((5, 2), "int8", steps(0.1, 5)), f.constant([2, 3], "int32"), f.constant(-2, "int32")]
    known = steps(0.1, 5)
    return several(f, "SPLIT_V", inputs, [(2, 2), (3, 2)], "int8", known, options="SplitVOptions", NumSplits=2)


@case()
def squeeze_all(f):
    return f.add("SQUEEZE", [f.input((1, 3, 1))], (3,), options="SqueezeOptions")


@case()
def squeeze_negative_axis(f):
    return f.add("SQUEEZE", [f.input((1, 3, 1), "int32")], (1, 3), "int32", options="SqueezeOptions", SqueezeDims=[-1])


@case()
def expand_a_scalar(f):
    return f.add("EXPAND_DIMS", [f.input(()), f.constant(0, "int32")], (1,), options="ExpandDimsOptions")


@case()
def leaky_relu(f):
    return f.add("LEAKY_RELU", [f.input((2, 9))], (2, 9), options="LeakyReluOptions", Alpha=0.125)


@case()
def leaky_relu_of_steps(f):
    given = f.input((2, 9), "uint8", steps(0.02, 100))
    return f.add("LEAKY_RELU", [given], (2, 9), "uint8", steps(0.03, 20), options="LeakyReluOptions", Alpha=0.3)


@case(low=-8, high=8)
def relu_0_to_1(f):
    return f.add("RELU_0_TO_1", [f.input((2, 9))], (2, 9))


@case()
def relu_to_another_scale(f):
    return f.add("RELU", [f.input((40,), "int8", steps(0.05, -3))], (40,), "int8", steps(0.03, -128))


@case()
def elu(f):
    return f.add("ELU", [f.input((4, 9))], (4, 9))


@case()
def elu_of_steps(f):
    return f.add("ELU", [f.input((40,), "int8", steps(0.04, 3))], (40,), "int8", steps(0.03, -90))


@case()
def gelu_approximate(f):
    return f.add("GELU", [f.input((4, 9))], (4, 9), options="GeluOptions", Approximate=True)


@case()
def cosine(f):
    return f.add("COS", [f.input((4, 9))], (4, 9), options="CosOptions")


@case()
def square(f):
    return f.add("SQUARE", [f.input((4, 9))], (4, 9), options="SquareOptions")


@case()
def add_n(f):
    return f.add("ADD_N", [f.input((2, 3)) for _ in range(4)], (2, 3), options="AddNOptions")


@case(low=1, high=5)
def floor_div_and_mod(f):
    a, b = f.input((2, 3), "int32"), f.constant([[-2, 3, 2]], "int32")
    return [
        f.add("FLOOR_DIV", [a, b], (2, 3), "int32", options="FloorDivOptions"),
        f.add("FLOOR_MOD", [a, b], (2, 3), "int32", options="FloorModOptions"),
    ]


@case()
def floor_div_of_floats(f):
    a, b = f.input((2, 3)), f.constant([0.3, -0.7, 1.1], "float32")
    return f.add("FLOOR_DIV", [a, b], (2, 3), options="FloorDivOptions")


@case()
def requantize(f):
    given = f.input((60,), "int8", steps(0.05, 3))
    return f.add("QUANTIZE", [given], (60,), "uint8", steps(0.04, 120), options="QuantizeOptions")


@case()
def mean_to_another_scale(f):
    inputs = [f.input((2, 5, 3), "int8", steps(0.05, 3)), f.constant([1], "int32")]
    return f.add("MEAN", inputs, (2, 3), "int8", steps(0.02, -7), options="ReducerOptions")


@case()
def multiply_with_a_fine_result(f):
    a, b = f.input((30,), "int8", steps(0.5, 3)), f.input((30,), "int8", steps(0.5, -4))
    return f.add("MUL", [a, b], (30,), "int8", steps(0.2, 1), options="MulOptions")


@case()
def argmax_to_int64(f):
    inputs = [f.input((3, 7)), f.constant(-1, "int32")]
    largest = f.add("ARG_MAX", inputs, (3,), "int64", options="ArgMaxOptions", OutputType=schema.TensorType.INT64)
    return f.add("CAST", [largest], (3,), "float32", options="CastOptions")


@case()
def cast_int64_to_int32(f):
    return f.add("CAST", [f.input((3,), "int64")], (3,), "int32", options="CastOptions")


@case()
def cast_of_truths(f):
    truths = f.add("CAST", [f.input((9,), "int32")], (9,), "bool", options="CastOptions")
    return [f.add("CAST", [truths], (9,), kind, options="CastOptions") for kind in ("float32", "int32")]


@case()
def constant_shape_in_64_bits(f):
    inputs = [f.input((2, 3, 4)), f.constant([0, 1, 0], "int64"), f.constant([2, 2, -1], "int64")]
    return f.add("SLICE", inputs, (2, 2, 4), options="SliceOptions")


@case()
def shape_arithmetic(f):
    """What converters leave of a flattening whose sizes they did not know."""
    given = f.input((2, 3, 4))
    shape = f.add("SHAPE", [given], (3,), "int32", options="ShapeOptions", OutType=schema.TensorType.INT32)
    ends = [f.constant([value], "int32") for value in (0, 1, 1)]
    batch = f.add("STRIDED_SLICE", [shape, *ends], (), "int32", options="StridedSliceOptions", ShrinkAxisMask=1)
    rest = f.constant(12, "int32")
    due = f.add("PACK", [batch, rest], (2,), "int32", options="PackOptions", ValuesCount=2, Axis=0)
    return f.add("RESHAPE", [given, due], (2, 12), options="ReshapeOptions")


@case()
def float16_weights(f):
    weights = f.constant(np.linspace(-1, 1, 12).reshape(3, 4), "float16")
    real = f.add("DEQUANTIZE", [weights], (3, 4), options="DequantizeOptions")
    bias = f.add("DEQUANTIZE", [f.constant([0.5, 1, 2], "float16")], (3,), options="DequantizeOptions")
    return f.add("FULLY_CONNECTED", [f.input((2, 4)), real, bias], (2, 3), options="FullyConnectedOptions")


@case(tolerance=0.06)
def hybrid_dense(f):
    """LiteRT rounds the input to 8 bits, the imported model does not: off by a step of the input for each product."""
    weights = f.constant(np.arange(-6, 6).reshape(3, 4) * 10, "int8", steps(0.01))
    return f.add("FULLY_CONNECTED", [f.input((2, 4)), weights, -1], (2, 3), options="FullyConnectedOptions")


@case(tolerance=0.06)
def hybrid_convolution(f):
    weights = np.random.default_rng(5).integers(-100, 100, (2, 3, 3, 2))
    filters = f.constant(weights, "int8", per_channel((0.002, 0.001)))
    inputs = [f.input((1, 5, 5, 2)), filters, f.constant([0.5, -1], "float32")]
    return f.add("CONV_2D", inputs, (1, 5, 5, 2), options="Conv2DOptions", StrideW=1, StrideH=1)


def convolution_inputs(f, units, shape, depthwise=False, kind="int8"):
    rng = np.random.default_rng(units)
    scales = [0.002 * (n + 1) for n in range(units)]
    filters = f.constant(rng.integers(-127, 128, shape), "int8", per_channel(scales, 3 if depthwise else 0))
    bias = f.constant(rng.integers(-300, 300, units), "int32", per_channel([0.05 * s for s in scales]))
    return [filters, bias]


@case()
def convolution_per_channel(f):
    inputs = [f.input((1, 6, 5, 2), "int8", steps(0.05, -3)), *convolution_inputs(f, 4, (4, 3, 2, 2))]
    fields = {"StrideW": 1, "StrideH": 2, "FusedActivationFunction": 1}
    return f.add("CONV_2D", inputs, (1, 3, 5, 4), "int8", steps(0.04, -128), options="Conv2DOptions", **fields)


@case()
def transposed_convolution_without_bias(f):
    filters = f.constant(np.linspace(-1, 1, 36).reshape(2, 3, 3, 2), "float32")
    inputs = [f.constant([1, 6, 8, 2], "int32"), filters, f.input((1, 3, 4, 2))]
    return f.add("TRANSPOSE_CONV", inputs, (1, 6, 8, 2), options="TransposeConvOptions", StrideW=2, StrideH=2)


@case()
def dilated_convolution(f):
    filters = f.constant(np.linspace(-1, 1, 24).reshape(2, 3, 2, 2), "float32")
    inputs = [f.input((1, 6, 5, 2)), filters, f.constant([0.5, -1], "float32")]
    fields = {"StrideW": 1, "StrideH": 1, "Padding": schema.Padding.VALID, "DilationHFactor": 2}
    return f.add("CONV_2D", inputs, (1, 2, 4, 2), options="Conv2DOptions", **fields)


@case()
def grouped_convolution(f):
    inputs = [f.input((1, 4, 4, 4)), f.constant(np.linspace(-1, 1, 72).reshape(4, 3, 3, 2), "float32")]
    inputs.append(f.constant([0, 1, 2, 3], "float32"))
    return f.add("CONV_2D", inputs, (1, 4, 4, 4), options="Conv2DOptions", StrideW=1, StrideH=1)


@case()
def depthwise_per_channel(f):
    inputs = [f.input((1, 6, 5, 2), "int8", steps(0.05, 4)), *convolution_inputs(f, 4, (1, 3, 3, 4), True)]
    fields = {"StrideW": 1, "StrideH": 1, "DepthMultiplier": 2, "FusedActivationFunction": 3}
    return f.add("DEPTHWISE_CONV_2D", inputs, (1, 6, 5, 4), "int8", steps(0.04, -9), options="DepthwiseConv2DOptions",
                 **fields)  # fmt: skip


@case()
def dense_per_channel(f):
    inputs = [f.input((2, 3, 4), "int8", steps(0.05, 4)), *convolution_inputs(f, 5, (5, 4))]
    fields = {"KeepNumDims": True, "FusedActivationFunction": 1}
    return f.add("FULLY_CONNECTED", inputs, (2, 3, 5), "int8", steps(0.04, -9), options="FullyConnectedOptions",
                 **fields)  # fmt: skip


@case()
def dense_keeps_dimensions(f):
    inputs = [f.input((2, 3, 4)), f.constant(np.linspace(-1, 1, 20).reshape(5, 4), "float32"), -1]
    return f.add("FULLY_CONNECTED", inputs, (2, 3, 5), options="FullyConnectedOptions", KeepNumDims=True)


@case()
def crops(f):
    inputs = [f.input((4, 2, 3, 1)), f.constant([2, 2], "int32"), f.constant([[1, 0], [0, 2]], "int32")]
    return f.add("BATCH_TO_SPACE_ND", inputs, (1, 3, 4, 1), options="BatchToSpaceNDOptions")


@case()
def strided_slice_masks(f):
    given = f.input((3, 4, 5, 6))
    inputs = [given, *(f.constant(row, "int32") for row in ([1, 0, -1], [3, 0, -6], [1, 1, -2]))]
    fields = {"EllipsisMask": 2, "BeginMask": 1}
    return f.add("STRIDED_SLICE", inputs, (3, 4, 5, 3), options="StridedSliceOptions", **fields)


@case()
def strided_slice_new_axis(f):
    inputs = [f.input((3, 4)), *(f.constant(row, "int32") for row in ([0, 0, 1], [0, 3, 2], [1, 2, 1]))]
    fields = {"NewAxisMask": 1, "ShrinkAxisMask": 4}
    return f.add("STRIDED_SLICE", inputs, (1, 2), options="StridedSliceOptions", **fields)


@case()
def strided_slice_of_integers(f):
    inputs = [f.input((3, 4), "int32"), *(f.constant(row, "int32") for row in ([1, 1], [2, 3], [1, 1]))]
    return f.add("STRIDED_SLICE", inputs, (2,), "int32", options="StridedSliceOptions", ShrinkAxisMask=1)


@case()
def gather_one(f):
    inputs = [f.input((3, 4)), f.constant(2, "int32")]
    return f.add("GATHER", inputs, (3,), options="GatherOptions", Axis=1)


@case()
def reverse_two_axes(f):
    inputs = [f.input((3, 4, 2)), f.constant([1, 0], "int32")]
    return f.add("REVERSE_V2", inputs, (3, 4, 2), options="ReverseV2Options")


@case()
def select_broadcast(f):
    inputs = [f.input((3, 1), "bool"), f.input((4,)), f.input((3, 4))]
    return f.add("SELECT_V2", inputs, (3, 4), options="SelectV2Options")


@case(low=0)
def one_hot(f):
    inputs = [f.input((2, 3), "int32"), f.constant(3, "int32"), f.constant(2.5, "float32"), f.constant(-1, "float32")]
    return f.add("ONE_HOT", inputs, (2, 3, 3), options="OneHotOptions", Axis=-1)


@case()
def fill_with_an_input(f):
    return f.add("FILL", [f.constant([2, 3], "int32"), f.input(())], (2, 3), options="FillOptions")


@case()
def zeros_like_and_fill(f):
    a = f.input((2, 3))
    zeros = f.add("ZEROS_LIKE", [a], (2, 3), options="ZerosLikeOptions")
    filled = f.add("FILL", [f.constant([3], "int64"), f.constant(1.5, "float32")], (3,), options="FillOptions")
    return f.add("ADD", [f.add("ADD", [a, zeros], (2, 3), options="AddOptions"), filled], (2, 3), options="AddOptions")


@case()
def top_k(f):
    inputs, results = [f.input((3, 7)), f.constant(3, "int32")], [f.tensor((3, 3)), f.tensor((3, 3), "int32")]
    f.graph.operator("TOPK_V2", inputs, results, "TopKV2Options")
    return results


@case()
def outputs_that_no_operator_writes(f):
    a = f.input((2, 3))
    return [a, f.constant([1, 2], "int32"), f.add("ABS", [a], (2, 3), options="AbsOptions"), a]


@case()
def bytes_without_a_scale(f):
    return f.add("CAST", [f.input((2, 9), "uint8")], (2, 9), options="CastOptions")


@case()
def resize_with_flags(f):
    inputs = [f.input((1, 3, 4, 2)), f.constant([5, 7], "int32")]
    return [
        f.add("RESIZE_BILINEAR", inputs, (1, 5, 7, 2), options="ResizeBilinearOptions", AlignCorners=True),
        f.add("RESIZE_BILINEAR", inputs, (1, 5, 7, 2), options="ResizeBilinearOptions", HalfPixelCenters=True),
        f.add("RESIZE_NEAREST_NEIGHBOR", inputs, (1, 5, 7, 2), options="ResizeNearestNeighborOptions"),
    ]


@case(runs=3)
def svdf(f):
    rng = np.random.default_rng(3)
    feature, slots = (f.constant(rng.standard_normal(shape), "float32") for shape in ((4, 3), (4, 5)))
    inputs = [f.input((2, 3)), feature, slots, f.constant([0.5, 1], "float32"), f.variable((2, 20))]
    return f.add("SVDF", inputs, (2, 2), options="SVDFOptions", Rank=2, FusedActivationFunction=1)


@case(runs=3)
def rnn(f):
    rng = np.random.default_rng(3)
    weights = [f.constant(rng.standard_normal(shape), "float32") for shape in ((4, 3), (4, 4), (4,))]
    inputs = [f.input((2, 3)), *weights, f.variable((2, 4))]
    return f.add("RNN", inputs, (2, 4), options="RNNOptions", FusedActivationFunction=1)


@case(runs=3)
def sequence_rnn(f):
    rng = np.random.default_rng(3)
    weights = [f.constant(rng.standard_normal(shape), "float32") for shape in ((4, 3), (4, 4), (4,))]
    inputs = [f.input((5, 2, 3)), *weights, f.variable((2, 4))]
    fields = {"TimeMajor": True, "FusedActivationFunction": 3}
    return f.add("UNIDIRECTIONAL_SEQUENCE_RNN", inputs, (5, 2, 4), options="SequenceRNNOptions", **fields)


def lstm_weights(f, kind="float32"):
    """Weights of a cell with 4 units and an input of 3, as Keras has them: no peepholes, no projection."""
    rng = np.random.default_rng(11)
    shapes = [(4, 3)] * 4 + [(4, 4)] * 4
    if kind == "int8":
        weights = [f.constant(rng.integers(-127, 128, shape), "int8", steps(0.008)) for shape in shapes]
    else:
        weights = [f.constant(rng.standard_normal(shape), "float32") for shape in shapes]
    biases = [f.constant(rng.standard_normal(4), "float32") for _ in range(4)]
    return [*weights, -1, -1, -1, *biases, -1, -1, f.variable((2, 4)), f.variable((2, 4))]


@case(runs=3)
def sequence_lstm(f):
    inputs = [f.input((2, 6, 3)), *lstm_weights(f)]
    fields = {"FusedActivationFunction": 4, "CellClip": 1.5}
    options = "UnidirectionalSequenceLSTMOptions"
    return f.add("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, (2, 6, 4), options=options, **fields)


@case(runs=3, tolerance=0.05)
def hybrid_lstm(f):
    inputs = [f.input((2, 6, 3)), *lstm_weights(f, "int8")]
    options = "UnidirectionalSequenceLSTMOptions"
    return f.add("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, (2, 6, 4), options=options, FusedActivationFunction=4)


@case(runs=3)
def lstm(f):
    inputs = [f.input((2, 3)), *lstm_weights(f)]
    return f.add("LSTM", inputs, (2, 4), options="LSTMOptions", FusedActivationFunction=4)


@case()
def basic_lstm(f):
    rng = np.random.default_rng(4)
    given, output, cell = f.input((2, 3)), f.input((2, 4)), f.input((2, 4))
    matrix, bias = f.constant(rng.standard_normal((16, 7)), "float32"), f.constant(rng.standard_normal(16), "float32")
    results = [f.tensor((2, 4)), f.tensor((2, 4)), f.tensor((2, 7)), f.tensor((2, 16))]
    fields = {"FusedActivationFunction": 4, "KernelType": schema.LSTMKernelType.BASIC}
    f.graph.operator("LSTM", [given, output, matrix, bias, cell], results, "LSTMOptions", **fields)
    return results[:2]


@case()
def basic_lstm_of_steps(f):
    rng = np.random.default_rng(4)
    real, cell = steps(1 / 128, 128), steps(2.0**-11)
    given, output = f.input((2, 3), "uint8", real), f.input((2, 4), "uint8", real)
    state = f.input((2, 4), "int16", cell)
    matrix = f.constant(rng.integers(0, 256, (16, 7)), "uint8", steps(0.01, 120))
    bias = f.constant(rng.integers(-900, 900, 16), "int32", steps(0.01 / 128))
    results = [f.tensor((2, 4), "uint8", real), f.tensor((2, 4), "int16", cell)]
    results += [f.tensor((2, 7), "uint8", real), f.tensor((2, 16), "int16", steps(2.0**-12))]
    fields = {"FusedActivationFunction": 4, "KernelType": schema.LSTMKernelType.BASIC}
    f.graph.operator("LSTM", [given, output, matrix, bias, state], results, "LSTMOptions", **fields)
    return results[:2]


def built(name):
    file = File()
    results = CASES[name][0](file)
    return file.finish(*(results if isinstance(results, list) else [results]))


def drawn(definition, signature, number):
    """A call and its model; parameters and biases are constants, in every second one all but the data and states."""
    source = SeededSource(f"test_import_tflite/{definition.name}/{signature.id}/{number}")
    call = draw_call(definition, signature, Scope(source))
    weights = [name for name in list(call.inputs)[1:] if number % 2 and "state" not in name and "prev" not in name]
    constants = [name for name in call.inputs if signature.form.operand(name).parameter or name == "bias"]
    return call, *model_of(call, {*constants, *weights})


def chain():
    """A small network in steps: convolution, pool, dense layer, softmax."""
    f, known = File(), steps(0.04, -9)
    x = f.input((1, 6, 6, 2), "int8", steps(0.05, 4))
    fields = {"StrideW": 1, "StrideH": 1, "FusedActivationFunction": 1}
    x = f.add("CONV_2D", [x, *convolution_inputs(f, 4, (4, 3, 3, 2))], (1, 6, 6, 4), "int8", known,
              options="Conv2DOptions", **fields)  # fmt: skip
    pool = {"StrideW": 2, "StrideH": 2, "FilterWidth": 2, "FilterHeight": 2}
    x = f.add("MAX_POOL_2D", [x], (1, 3, 3, 4), "int8", known, options="Pool2DOptions", **pool)
    x = f.add("RESHAPE", [x, f.constant([1, 36], "int32")], (1, 36), "int8", known, options="ReshapeOptions")
    x = f.add("FULLY_CONNECTED", [x, *convolution_inputs(f, 5, (5, 36))], (1, 5), "int8", steps(0.1, 0),
              options="FullyConnectedOptions")  # fmt: skip
    x = f.add("SOFTMAX", [x], (1, 5), "int8", steps(1 / 256, -128), options="SoftmaxOptions", Beta=1.0)
    return f.finish(f.add("DEQUANTIZE", [x], (1, 5), options="DequantizeOptions"))
