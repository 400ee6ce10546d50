"""Pooling of images: AVERAGE_POOL_2D L2_POOL_2D MAX_POOL_2D."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import Form, OperandDef
from nnhal.types import FL1, FL3, FL4, Array, FeatureLevel, OperandType, OperationType
from opset.call import Call, with_value
from opset.definition import (
    ACTIVATION,
    F16,
    F32,
    Q8,
    Q8S,
    Example,
    ExecutionRule,
    Judging,
    Kernel,
    OperationDef,
    Quantization,
    Shapes,
    activation_rule,
    exact,
    int32,
    same,
    sums,
    tensor,
)
from opset.drawing import Draft
from opset.quantization import QUANTIZED, float32
from opset.values import Values
from opset.windows import (
    EXPLICIT_PADDING,
    IMPLICIT_PADDING,
    OPTIONAL_LAYOUT,
    STRIDES,
    Size,
    channels_last,
    covered,
    draw_image,
    draw_span,
    draw_windows,
    execution_rank_rule,
    explicit,
    image_shape,
    image_size,
    implicit,
    in_layout,
    is_nchw,
    padding_rule,
    put_int32,
    stride_rule,
    sum_terms,
    tap_counts,
    taps,
    window_outputs,
    windows_of,
)

FILTER = (int32("filter_w", "Columns of the window."), int32("filter_h", "Rows of the window."))
REACH = 64.0  # largest magnitude of an operand taken from a scope: sums of squares stay below float16's largest number
ROOT_ROUNDINGS = 4  # half the error of a mean of squares, and a square root that is off by one or two units


def _forms() -> tuple[Form, Form]:
    source = tensor("input", "Image batch: [batch, height, width, depth], or with the channels first.", 4, 4)

    def made(name: str, paddings: tuple[OperandDef, ...]) -> Form:
        operands = (source, *paddings, *STRIDES, *FILTER, ACTIVATION, OPTIONAL_LAYOUT)
        return Form(name, operands, ((len(operands) - 1, FL1), (len(operands), FL3)))

    return made("explicit", EXPLICIT_PADDING), made("implicit", IMPLICIT_PADDING)


def _size(call: Call) -> Size:
    return call.integer("filter_h"), call.integer("filter_w")


def _infer(call: Call) -> Shapes:
    nchw = is_nchw(call)
    batch, height, width, depth = image_size(call["input"].shape, nchw)
    return {"output": image_shape(batch, *window_outputs(windows_of(call, _size(call)), height, width), depth, nchw)}


def _quantization(call: Call) -> Quantization:
    source = call["input"]
    return {"output": (source.scale, source.zero_point)} if source.type in QUANTIZED else {}


# --- kernels ----------------------------------------------------------------------------------------------------------


def _mean(v: Values, power: int) -> Array:
    """Mean of powers over the elements of each window that lie in the image, without scale."""
    image = channels_last(v.factor("input", math.prod(_size(v.call)))[0], is_nchw(v.call))
    windows = windows_of(v.call, _size(v.call))
    counts = tap_counts(windows, *image.shape[1:3])
    sums = sum_terms(v, (tap**power for tap in taps(covered(image, windows))))
    dtype = v.arithmetic.dtype
    return np.asarray(sums.astype(dtype) / counts.astype(dtype))


def _finished(v: Values, pooled: Array) -> Mapping[str, Array]:
    return {"output": in_layout(v.activate(pooled), is_nchw(v.call))}


def _average(v: Values) -> Mapping[str, Array]:
    scale = v.arithmetic.dtype(v.factor("input")[1])
    return _finished(v, _mean(v, 1) * scale)


def _root_mean_square(v: Values) -> Mapping[str, Array]:
    return _finished(v, np.sqrt(_mean(v, 2)))


def _maximum(v: Values) -> Mapping[str, Array]:
    terms, scale = v.factor("input", 1)
    image = channels_last(terms, is_nchw(v.call))
    windows = windows_of(v.call, _size(v.call))
    best: Array | None = None
    for tap in taps(covered(image, windows, -np.inf)):
        best = np.array(tap) if best is None else np.maximum(best, tap, out=best)
    dtype = v.arithmetic.dtype
    return _finished(v, np.asarray(best).astype(dtype) * dtype(scale))


# --- rules ------------------------------------------------------------------------------------------------------------


def _quantization_kept(call: Call) -> bool:
    source, output = call["input"], call["output"]
    return source.type not in QUANTIZED or (source.scale, source.zero_point) == (output.scale, output.zero_point)


def _quantization_broken(call: Call) -> Call | None:
    output = call["output"]
    if output.type not in QUANTIZED:
        return None
    return call.with_result("output", replace(output, scale=float32(output.scale * 1.5)))


SAME_SCALE = ExecutionRule(
    "SAME_SCALE",
    "the output has the input's scale and zero point",
    _quantization_kept,
    _quantization_broken,
)
FILTER_SIZE = ExecutionRule(
    "FILTER",
    "filter_w and filter_h are positive",
    lambda call: call.integer("filter_w") > 0 and call.integer("filter_h") > 0,
    lambda call: with_value(call, "filter_w", 0),
)


# --- draws ------------------------------------------------------------------------------------------------------------


def _draw(draft: Draft) -> None:
    code = draft.activation()
    # Values reach beyond 6 where RELU6 shall clip, and are not all negative where RELU would leave nothing.
    span = (-4.0, 9.0) if code == 3 else draw_span(draft, 2.0)
    if code == 1 and span[1] <= 0:
        span = (span[0], -span[0])
    _, height, width, _ = draw_image(draft, span, REACH, largest=10)
    rows, columns = draw_windows(draft, height, width)
    put_int32(draft, filter_w=columns.size, filter_h=rows.size)


# --- definitions ------------------------------------------------------------------------------------------------------


def _pool(code: OperationType, doc: str, rows: tuple[tuple[OperandType, FeatureLevel], ...],
          kernel: Kernel,
          judging: Judging,
          examples: tuple[Example, ...]) -> OperationDef:  # fmt: skip
    quantized = any(kind in QUANTIZED for kind, _ in rows)
    return OperationDef(
        code=code,
        doc=f"{doc} Elements in the padding do not count.",
        forms=_forms(),
        results=(tensor("output", "[batch, rows, columns, depth] in the input's layout and scale.", 4, 4),),
        rows=same(("input", "output"), *rows),
        rules=(
            execution_rank_rule("RANK_INPUT", "input", 4),
            stride_rule(),
            FILTER_SIZE,
            padding_rule(_size),
            *((SAME_SCALE,) if quantized else ()),
            activation_rule(),
        ),
        infer=_infer,
        kernel=kernel,
        judging=judging,
        draw=_draw,
        quantization=_quantization,
        examples=examples,
        second_opinion="ONNX reference evaluator for floats; loops over windows in integers for quantised types",
    )  # fmt: skip


_IMAGE = [[[[3.0], [-1.0], [0.0]], [[5.0], [2.0], [-4.0]]]]  # two rows of three
_SAME_2X2 = {**implicit(1), "filter_w": 2, "filter_h": 2}

AVERAGE_POOL_2D = _pool(
    OperationType.AVERAGE_POOL_2D,
    "act(mean over the window). Public code averages stored values, uint8 rounded half up and int8 half away from "
    "zero: both are within a step of the mean.",
    ((F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4)),
    _average,
    sums(_average, lambda call: math.prod(_size(call)) + 1, "(size of the window + 1)", "the mean of absolute values"),
    (
        Example(
            "float32/implicit/in7",
            {"input": _IMAGE, **_SAME_2X2, "activation": 3},
            {"output": [[[[2.25], [0.0], [0.0]], [[3.5], [0.0], [0.0]]]]},
        ),
        # Real values 4, 1.5, -1: the first alone beside the padding, then means 2.75 and 0.25 (a tie), under RELU1.
        Example(
            "quant8_asymm/explicit/in10",
            {
                "input": [[[[108], [103], [98]]]],
                **explicit(1, 0),
                "filter_w": 2,
                "filter_h": 1,
                "activation": 2,
            },
            {"output": [[[[102], [102], [101]]]]},
            {"input": (0.5, 100), "output": (0.5, 100)},
        ),
    ),
)

L2_POOL_2D = _pool(
    OperationType.L2_POOL_2D,
    "act(square root of the mean of squares over the window).",
    ((F32, FL1), (F16, FL3)),
    _root_mean_square,
    # Of the size of the root: an error in the mean of squares counts half.
    sums(
        _root_mean_square,
        lambda call: math.prod(_size(call)) / 2 + ROOT_ROUNDINGS,
        f"(size of the window / 2 + {ROOT_ROUNDINGS})",
        "the root",
    ),
    (
        # The last column is a window of its own: |0| and |-4|.
        Example(
            "float32/implicit/in7",
            {"input": [[[[3.0], [4.0], [0.0]], [[5.0], [0.0], [-4.0]]]], **implicit(1, stride_w=2), "filter_w": 2,
             "filter_h": 1, "activation": 0},
            {"output": [[[[12.5**0.5], [0.0]], [[12.5**0.5], [4.0]]]]},
        ),
    ),
)  # fmt: skip

MAX_POOL_2D = _pool(
    OperationType.MAX_POOL_2D,
    "act(maximum over the window).",
    ((F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4)),
    _maximum,
    exact("one of the values is taken, or an end of the activation's range"),
    (
        # Negative values at the edge: padding must not win.
        Example(
            "float32/implicit/in7",
            {"input": _IMAGE, **_SAME_2X2, "activation": 0},
            {"output": [[[[5.0], [2.0], [0.0]], [[5.0], [2.0], [-4.0]]]]},
        ),
    ),
)
