from __future__ import annotations

import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

from nnhal.model import Model, Operation
from nnhal.types import Array, OperandLifeTime, OperandType, OperationType
from opset import values
from opset.building import GraphBuilder
from opset.call import Argument, Call, scalar
from opset.convolution import CONV_2D, DEPTHWISE_CONV_2D
from opset.definition import OperationDef
from opset.evaluate import run_call
from opset.graph import evaluate
from opset.pooling import AVERAGE_POOL_2D, MAX_POOL_2D
from opset.quantization import CACHED, QUANTIZED, limits, pieces, quantize, round_half_away

F32, Q8, Q8S = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
I32 = OperandType.TENSOR_INT32
HEIGHT, WIDTH = 90, 70  # of images that no cache holds whole
INPUT_SCALE, FILTER_SCALE, OUTPUT_SCALE = 0.5, 0.25, 4.0


def tensor(kind: OperandType, value: Array, scale: float = 0.0, zero_point: int = 0) -> Argument:
    return Argument(kind, value.shape, scale, zero_point, value=value)


def call_of(definition: OperationDef, row: str, inputs: dict[str, Argument], numbers: dict[str, int], output: Argument
            ) -> Call:  # fmt: skip
    inputs = {**inputs, **{name: scalar(OperandType.INT32, number) for name, number in numbers.items()}}
    call = Call(definition, definition.signature(f"{row}/implicit/in{len(inputs)}"), inputs, {"output": output})
    return call.with_result("output", Argument(output.type, call.definition.infer(call)["output"], output.scale,
                                               output.zero_point))  # fmt: skip


def convolution(definition: OperationDef, kind: OperandType, depth: int, outputs: int, stride: int) -> Call:
    rng = np.random.default_rng(depth)
    shape = (1, 3, 3, depth) if definition is DEPTHWISE_CONV_2D else (outputs, 3, 3, depth)
    numbers = {"padding_scheme": 1, "stride_w": stride, "stride_h": stride}
    numbers |= {"multiplier": 1, "activation": 1} if definition is DEPTHWISE_CONV_2D else {"activation": 1}
    if kind == F32:
        drawn = [rng.standard_normal(s).astype(np.float32) for s in ((1, HEIGHT, WIDTH, depth), shape, (outputs,))]
        inputs = dict(zip(("input", "filter", "bias"), (tensor(F32, one) for one in drawn), strict=True))
        return call_of(definition, "float32", inputs, numbers, Argument(F32))
    low, high = limits(kind)
    image, filters = (rng.integers(low, high + 1, s).astype(np.dtype("u1" if low == 0 else "i1"))
                      for s in ((1, HEIGHT, WIDTH, depth), shape))  # fmt: skip
    inputs = {
        "input": tensor(kind, image, INPUT_SCALE, low + 100),
        "filter": tensor(kind, filters, FILTER_SCALE, low + 120),
        "bias": tensor(I32, rng.integers(-500, 500, outputs).astype(np.int32), INPUT_SCALE * FILTER_SCALE),
    }
    row = "quant8_asymm" if kind == Q8 else "quant8_asymm_signed"
    return call_of(definition, row, inputs, numbers, Argument(kind, (), OUTPUT_SCALE, low + 9))


def centred(call: Call, name: str) -> Array:
    value = np.asarray(call[name].value)
    return value.astype(np.float64) if value.dtype.kind == "f" else value.astype(np.int64) - call[name].zero_point


def by_pixels(call: Call) -> Array:
    """The sums with their bias, a pixel at a time: in integers, or in float64."""
    image, filters, bias = (centred(call, name) for name in ("input", "filter", "bias"))
    _, rows, columns, outputs = call.results["output"].shape
    stride, depthwise = call.integer("stride_h"), call.definition is DEPTHWISE_CONV_2D
    before = [max(0, (n - 1) * stride + 3 - size) // 2 for n, size in ((rows, HEIGHT), (columns, WIDTH))]
    padded = np.pad(image[0], ((before[0], 3), (before[1], 3), (0, 0)))
    sums = np.empty((1, rows, columns, outputs), image.dtype)
    for i, j in np.ndindex(rows, columns):
        window = padded[i * stride : i * stride + 3, j * stride : j * stride + 3]
        products = window * filters[0] if depthwise else window * filters
        sums[0, i, j] = products.sum(axis=(0, 1) if depthwise else (1, 2, 3)) + bias
    return sums


def steps_of(real: Fraction, zero_point: int, low: int, high: int) -> int:
    """The nearest step, ties away from the real zero, saturated."""
    whole = math.floor(abs(real) + Fraction(1, 2))
    return min(max((whole if real > 0 else -whole) + zero_point, low), high)


CONVOLUTIONS = [(CONV_2D, 3, 11, 2), (CONV_2D, 16, 5, 1), (DEPTHWISE_CONV_2D, 24, 24, 1),
                (DEPTHWISE_CONV_2D, 40, 40, 2), (DEPTHWISE_CONV_2D, 1, 1, 1)]  # fmt: skip
ZERO_POINTS = {Q8: 9, Q8S: -119}


@pytest.mark.parametrize(("definition", "depth", "outputs", "stride"), CONVOLUTIONS)
def test_float_convolutions_of_large_images(definition, depth, outputs, stride):
    call = convolution(definition, F32, depth, outputs, stride)
    due = np.maximum(by_pixels(call), 0)
    np.testing.assert_allclose(run_call(call)["output"].exact, due, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", [Q8, Q8S], ids=["unsigned", "signed"])
@pytest.mark.parametrize(("definition", "depth", "outputs", "stride"), CONVOLUTIONS)
def test_quantized_convolutions_of_large_images(definition, depth, outputs, stride, kind):
    call = convolution(definition, kind, depth, outputs, stride)
    got = run_call(call)["output"].stored
    sums = by_pixels(call)
    unit = round(OUTPUT_SCALE / (INPUT_SCALE * FILTER_SCALE))  # so many units of the sum are a step
    due = np.clip((np.maximum(sums, 0) + unit // 2) // unit + ZERO_POINTS[kind], *limits(kind))
    assert len(np.unique(due)) > 50
    assert np.array_equal(got, due)
    # Where float32, or float64 too, would not be exact the same comes out of the next type.
    for patched, dtype in (({"EXACT_IN_FLOAT32": 2**24}, np.float32), ({"EXACT_IN_FLOAT32": 1}, np.float64),
                           ({"EXACT_IN_FLOAT32": 1, "EXACT_IN_FLOAT64": 1}, np.int64)):  # fmt: skip
        with mock.patch.multiple(values, **patched):
            assert values.Values(call).factor("input", 9)[0].dtype == dtype
            assert np.array_equal(run_call(call)["output"].stored, due)


# 258 products of 255 * 255 are below 2^24, and so many more below 2^53 less 2^31.
@pytest.mark.parametrize(
    ("products", "dtype"),
    [(None, np.int64), (1, np.float32), (258, np.float32), (259, np.float64), (138_518_986_655, np.float64),
     (138_518_986_656, np.int64)],
)  # fmt: skip
def test_sums_are_taken_in_a_type_that_holds_the_largest(products, dtype):
    call = convolution(CONV_2D, Q8, 3, 1, 2)
    assert values.Values(call).factor("input", products)[0].dtype == dtype


def test_the_largest_sums_are_exact():
    """Of products of 255 * 255: sums next to where float32, then float64 takes over."""
    for depth in (256, 257, 258, 259, 300):
        image = np.full((1, 2, 3, depth), 255, np.uint8)
        filters = np.full((2, 1, 1, depth), 255, np.uint8)
        filters[1, ..., :1] = 254
        inputs = {"input": tensor(Q8, image, 1.0), "filter": tensor(Q8, filters, 1.0),
                  "bias": tensor(I32, np.array([2**31 - 1, -(2**31)], np.int32), 1.0)}  # fmt: skip
        numbers = {"padding_scheme": 2, "stride_w": 1, "stride_h": 1, "activation": 0}
        call = call_of(CONV_2D, "quant8_asymm", inputs, numbers, Argument(Q8, (), 1.0, 0))
        due = [255 * 255 * depth + 2**31 - 1, 255 * 255 * depth - 255 - 2**31]
        assert (CONV_2D.kernel(values.Values(call))["output"] == due).all()


def pool(definition: OperationDef, image: Array) -> Call:
    numbers = {"padding_scheme": 2, "stride_w": 2, "stride_h": 3, "filter_w": 2, "filter_h": 3, "activation": 0}
    output = Argument(Q8, (), 0.5, 20)
    return call_of(definition, "quant8_asymm", {"input": tensor(Q8, image, 0.5, 20)}, numbers, output)


def test_pools_of_large_images():
    image = np.random.default_rng(5).integers(0, 256, (2, HEIGHT, WIDTH, 8)).astype(np.uint8)
    windows = image.reshape(2, HEIGHT // 3, 3, WIDTH // 2, 2, 8).astype(np.int64).transpose(0, 1, 3, 5, 2, 4)
    assert np.array_equal(run_call(pool(MAX_POOL_2D, image))["output"].stored, windows.max(axis=(4, 5)))
    sums = (windows - 20).sum(axis=(4, 5))
    due = np.vectorize(lambda total: steps_of(Fraction(int(total), 6), 20, 0, 255))(sums)
    assert np.array_equal(run_call(pool(AVERAGE_POOL_2D, image))["output"].stored, due)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_at_ties_and_beside_them(dtype):
    halves = np.arange(-300, 301).astype(dtype) / 2
    beside = [np.nextafter(halves, dtype(end)) for end in (-np.inf, np.inf)]
    values_ = np.concatenate([halves, *beside, np.array([2.0**23 + 1, -(2.0**23) - 1, 2.0**22 + 0.5], dtype)])
    due = [steps_of(Fraction(float(x)), 0, -(2**30), 2**30) for x in values_]
    assert round_half_away(values_).tolist() == due
    assert round_half_away(np.array([np.inf, -np.inf], dtype)).tolist() == [np.inf, -np.inf]
    assert np.isnan(round_half_away(np.array([np.nan], dtype))).all()


@pytest.mark.parametrize("kind", sorted(QUANTIZED))
def test_quantized_values_at_ties_ends_and_beyond(kind):
    low, high = limits(kind)
    zero_point = {0: 128 if high == 255 else 1000}.get(low, 0)
    scale = 0.375  # three eighths: the quotients are not exact in float64
    around = np.concatenate([np.linspace(low - 3, low + 3, 25), np.linspace(high - 3, high + 3, 25),
                             np.linspace(-3, 3, 25) + zero_point])  # fmt: skip
    ties = (np.floor(around) + 0.5 - zero_point) * scale
    real = np.concatenate(
        [(around - zero_point) * scale, ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf)]
    )
    # x / scale in float64 is what is rounded.
    due = [steps_of(Fraction(float(x) / scale), zero_point, low, high) for x in real]
    assert quantize(real, kind, scale, zero_point).tolist() == due
    odd = np.array([np.nan, np.inf, -np.inf, 1e300, -1e300])
    assert quantize(odd, kind, scale, zero_point).tolist() == [high, high, low, high, low]
    assert quantize(np.float64(scale), kind, scale, zero_point).shape == ()


def test_quantized_values_in_many_pieces():
    real = np.random.default_rng(1).normal(0, 40, (3, 7, CACHED // 8)).transpose(2, 0, 1)
    got = quantize(real, Q8S, 0.5, 3)
    due = np.clip(np.sign(real) * np.floor(np.abs(real) * 2 + 0.5) + 3, -128, 127)
    assert np.array_equal(got, due)


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 1), (5, 0), (CACHED + 1, 1), (1000, 999), (3, 10 * CACHED)])
def test_pieces_cover_each_row_once(count, size):
    parts = list(pieces(count, size))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(count))
    assert all((part.stop - part.start) * size <= CACHED or part.stop - part.start == 1 for part in parts)


def test_values_stay_as_long_as_they_are_read():
    """x is read first and last, b by three operations, twice by one of them; b and d leave the model."""
    graph = GraphBuilder()
    kinds = {"x": OperandLifeTime.SUBGRAPH_INPUT, "a": OperandLifeTime.TEMPORARY_VARIABLE,
             "b": OperandLifeTime.SUBGRAPH_OUTPUT, "c": OperandLifeTime.TEMPORARY_VARIABLE,
             "d": OperandLifeTime.SUBGRAPH_OUTPUT, "unread": OperandLifeTime.TEMPORARY_VARIABLE}  # fmt: skip
    index = {name: graph.operand(Argument(F32, (4,)), lifetime) for name, lifetime in kinds.items()}
    none = graph.operand(scalar(OperandType.INT32, 0), OperandLifeTime.CONSTANT_COPY)
    for target, left, right in ("axx", "bax", "cbb", ("unread", "b", "c"), "dcx"):
        operands = (index[left], index[right], none)
        graph.operations.append(Operation(int(OperationType.ADD), operands, (index[target],)))
    model: Model = graph.model()
    x = np.array([1, -2, 0.5, 8], np.float32)
    due = {index["b"]: 3 * x, index["d"]: 7 * x}
    results = evaluate(model, [x])
    assert len(results) == len(due)
    for one, result in zip(model.main.output_indexes, results, strict=True):
        assert np.array_equal(result.stored, due[one])
        assert np.array_equal(result.exact, due[one].astype(np.float64))
