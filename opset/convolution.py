"""Convolutions of images: CONV_2D DEPTHWISE_CONV_2D GROUPED_CONV_2D TRANSPOSE_CONV_2D.

Sums of products run through BLAS on strided views, or over the taps of the filter; never over pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from nnhal.operations import Form, OperandDef
from nnhal.types import FL1, FL3, Array, OperationType, PaddingScheme
from opset.call import Call
from opset.definition import (
    ACTIVATION,
    Example,
    Judging,
    Kernel,
    OperationDef,
    Shapes,
    activation_rule,
    int32,
    int32_list,
    sums,
)
from opset.drawing import Draft
from opset.filters import (
    BIAS,
    BIAS_SCALE,
    DEPTH,
    GROUP_DEPTH,
    GROUPS,
    INPUT,
    MULTIPLIER,
    OUTPUT,
    RANKS_AT_EXECUTION,
    RANKS_AT_VALIDATION,
    SCALE,
    SINGLE,
    bias_rule,
    channel_rule,
    draw_input,
    draw_weights,
    filter_operand,
    filter_size,
    type_rows,
)
from opset.quantization import pieces
from opset.spreads import CROP, OUTPUT_SHAPE, OUTPUT_SIZE, draw_spread, spaced, spreads_of
from opset.values import Values
from opset.windows import (
    DILATIONS,
    EXPLICIT_PADDING,
    IMPLICIT_PADDING,
    MANDATORY_LAYOUT,
    OPTIONAL_LAYOUT,
    STRIDES,
    channels_last,
    covered,
    dilation_rule,
    draw_windows,
    explicit,
    image_shape,
    image_size,
    implicit,
    in_layout,
    is_nchw,
    padding_rule,
    put_int32,
    put_paddings,
    stride_rule,
    sum_terms,
    taps,
    window_outputs,
    windows_of,
)

LARGEST_DEPTH = 8  # drawn output channels
SCALE_WORDS = (
    "Before level 3 the output scale of QUANT8_ASYMM exceeds input scale * filter scale. Newer public validators read "
    "the input's scale in place of the output's; draws keep the filter scale below 1, where that makes no difference."
)
SECOND_OPINION = "ONNX reference evaluator for floats; for quantised types loops over elements in Python integers"


# --- kernels ----------------------------------------------------------------------------------------------------------


def _products(v: Values, patches: Array, filters: Array, groups: int = 1) -> Array:
    """Sums of products of what windows cover with filters [depth_out, height, width, depth_in / groups]."""
    matmul = v.summing("input").matmul
    batch, rows, columns, height, width, depth = patches.shape
    places, terms, outputs = batch * rows * columns, height * width * depth // groups, filters.shape[0]
    if groups == 1:
        sums: Array = matmul(patches.reshape(places, terms), filters.reshape(outputs, terms).T)
        return sums.reshape(batch, rows, columns, outputs)
    split = patches.reshape(places, height * width, groups, depth // groups)
    left = split.transpose(2, 0, 1, 3).reshape(groups, places, terms)
    right = filters.reshape(groups, outputs // groups, terms).transpose(0, 2, 1)
    return np.asarray(matmul(left, right).transpose(1, 0, 2).reshape(batch, rows, columns, outputs))


def _finished(v: Values, sums: Array, scale: Array | float) -> Mapping[str, Array]:
    """Scale, bias, activation and layout, for sums [batch, rows, columns, depth_out] of what `factor` gives."""
    dtype = v.arithmetic.dtype
    scales: Array = np.asarray(scale).reshape(-1).astype(dtype)
    bias = v.stored("bias") if v.quantized("input") else v["bias"]
    places = sums.reshape(math.prod(sums.shape[:3]), sums.shape[3])
    real = np.empty(places.shape, dtype) if v.quantized("input") else places
    for part in pieces(*places.shape):
        if v.quantized("input"):
            # The bias counts in the unit of the sums; NumPy adds it to float32 in float64, so the total is exact.
            total: Array = places[part] + bias
            np.multiply(total.astype(dtype, copy=False), scales, out=real[part])
        else:
            real[part] += bias
        v.activate(real[part], out=real[part])
    return {"output": in_layout(real.reshape(sums.shape), is_nchw(v.call))}


def _operands(v: Values, products: int) -> tuple[Array, Array, Array | float]:
    """The image with its channels last, the filter, and the scale of their products, of which some are summed."""
    image, image_scale = v.factor("input", products)
    filters, filter_scale = v.factor("filter", products)
    return channels_last(image, is_nchw(v.call)), filters, np.multiply(image_scale, filter_scale)


def _convolve(v: Values) -> Mapping[str, Array]:
    """CONV_2D and GROUPED_CONV_2D."""
    image, filters, scale = _operands(v, _terms(v.call))
    groups = v.integer("num_groups") if v.has("num_groups") else 1
    sums = _products(v, covered(image, windows_of(v.call, filter_size(v.call))), filters, groups)
    return _finished(v, sums, scale)


def _convolve_depthwise(v: Values) -> Mapping[str, Array]:
    image, filters, scale = _operands(v, _terms_depthwise(v.call))
    multiplier = v.integer("multiplier")
    if multiplier > 1:
        image = image.repeat(multiplier, axis=3)
    patches = covered(image, windows_of(v.call, filter_size(v.call)))
    if v.summing("input").order == "natural":
        return _finished(v, np.einsum("byxijc,ijc->byxc", patches, filters[0]), scale)
    weights = filters.reshape(-1, filters.shape[3])
    return _finished(v, sum_terms(v, (tap * w for tap, w in zip(taps(patches), weights, strict=True))), scale)


def _convolve_transposed(v: Values) -> Mapping[str, Array]:
    """Each output gathers what the inputs scatter: the image with gaps, under the filter turned by half a turn."""
    image, filters, scale = _operands(v, _terms(v.call))
    batch, height, width, depth = image.shape
    rows, columns = spreads_of(v.call)
    spread = np.zeros((batch, spaced(height, rows.stride), spaced(width, columns.stride), depth), image.dtype)
    spread[:, :: rows.stride, :: columns.stride] = image
    patches = covered(spread, (rows.gathering(), columns.gathering()))
    kept = patches[:, rows.head :, columns.head :][:, : rows.outputs(height), : columns.outputs(width)]
    return _finished(v, _products(v, kept, filters[:, ::-1, ::-1]), scale)


def _judging(terms_of: Callable[[Call], int], kernel: Kernel) -> Judging:
    """For a sum of products and a bias."""
    return sums(kernel, lambda call: terms_of(call) + 1, "(products + 1)", "the sum of absolute products and bias")


def _terms(call: Call) -> int:
    """Products behind an output of CONV_2D and GROUPED_CONV_2D."""
    return math.prod(call["filter"].shape[1:])


def _terms_depthwise(call: Call) -> int:
    return math.prod(call["filter"].shape[1:3])


def _terms_transposed(call: Call) -> int:
    (height, width), depth = filter_size(call), call["filter"].shape[3]
    return -(-height // call.integer("stride_h")) * -(-width // call.integer("stride_w")) * depth


# --- shapes -----------------------------------------------------------------------------------------------------------


def _infer(output_channels: int) -> Callable[[Call], Shapes]:
    """Shapes of a sliding window; the argument says which dimension of the filter counts the output channels."""

    def infer(call: Call) -> Shapes:
        nchw = is_nchw(call)
        batch, height, width, _ = image_size(call["input"].shape, nchw)
        rows, columns = window_outputs(windows_of(call, filter_size(call)), height, width)
        return {"output": image_shape(batch, rows, columns, call["filter"].shape[output_channels], nchw)}

    return infer


def _infer_transposed(call: Call) -> Shapes:
    nchw = is_nchw(call)
    batch, height, width, _ = image_size(call["input"].shape, nchw)
    rows, columns = spreads_of(call)
    places = max(0, rows.outputs(height)), max(0, columns.outputs(width))
    return {"output": image_shape(batch, *places, call["filter"].shape[0], nchw)}


# --- draws ------------------------------------------------------------------------------------------------------------


def _draw_convolution(draft: Draft) -> None:
    _, height, width, depth = draw_input(draft)
    rows, columns = draw_windows(draft, height, width)
    shape = (draft.integer(1, LARGEST_DEPTH), rows.size, columns.size, depth)
    draw_weights(draft, shape, 0, math.prod(shape[1:]))


def _draw_depthwise(draft: Draft) -> None:
    _, height, width, depth = draw_input(draft, (1, 2, 3, 4, 5, 7))
    rows, columns = draw_windows(draft, height, width)
    multiplier = draft.choose((1, 1, 2, 3))
    put_int32(draft, multiplier=multiplier)
    shape = (1, rows.size, columns.size, depth * multiplier)
    draw_weights(draft, shape, 3, rows.size * columns.size)


def _draw_grouped(draft: Draft) -> None:
    _, height, width, depth = draw_input(draft, (1, 2, 3, 4, 4, 6, 6, 9))
    rows, columns = draw_windows(draft, height, width)
    groups = draft.choose([g for g in range(1, depth + 1) if depth % g == 0])
    put_int32(draft, num_groups=groups)
    shape = (groups * draft.integer(1, 3), rows.size, columns.size, depth // groups)
    draw_weights(draft, shape, 0, math.prod(shape[1:]))


def _draw_transposed(draft: Draft) -> None:
    batch, height, width, depth = draw_input(draft, largest=4)
    scheme = draft.choose((PaddingScheme.SAME, PaddingScheme.VALID))
    implicitly = draft.has("output_shape")
    exactly = implicitly or draft.chance(50)
    rows, columns = (draw_spread(draft, length, scheme, exactly) for length in (height, width))
    if not implicitly:
        put_paddings(draft, rows, columns)
    put_int32(draft, stride_w=columns.stride, stride_h=rows.stride)
    shape = (draft.integer(1, LARGEST_DEPTH // 2), rows.size, columns.size, depth)
    if implicitly:
        put_int32(draft, padding_scheme=scheme)
        places = rows.outputs(height), columns.outputs(width)
        draft.ints("output_shape", image_shape(batch, *places, shape[0], bool(draft["nchw"].item())))
    draw_weights(draft, shape, 0, math.prod(shape[1:]))


# --- definitions ------------------------------------------------------------------------------------------------------


def _forms(weights: OperandDef, middle: tuple[OperandDef, ...] = ()) -> tuple[Form, Form]:
    """Explicit and implicit padding, of CONV_2D and DEPTHWISE_CONV_2D: layout, then dilations may be left off."""

    def made(name: str, paddings: tuple[OperandDef, ...]) -> Form:
        operands = (INPUT, weights, BIAS, *paddings, *STRIDES, *middle, ACTIVATION, OPTIONAL_LAYOUT, *DILATIONS)
        number = len(operands)
        return Form(name, operands, ((number - 3, FL1), (number - 2, FL3), (number, FL3)))

    return made("explicit", EXPLICIT_PADDING), made("implicit", IMPLICIT_PADDING)


def _mandatory_forms(weights: OperandDef, middle: tuple[OperandDef, ...] = (),
                     before_scheme: tuple[OperandDef, ...] = ()) -> tuple[Form, Form]:  # fmt: skip
    """Explicit and implicit padding where every operand must be there."""
    tail = (*STRIDES, *middle, ACTIVATION, MANDATORY_LAYOUT)
    explicit = (INPUT, weights, BIAS, *EXPLICIT_PADDING, *tail)
    implicit = (INPUT, weights, BIAS, *before_scheme, *IMPLICIT_PADDING, *tail)
    return (
        Form("explicit", explicit, ((len(explicit), FL3),)),
        Form("implicit", implicit, ((len(implicit), FL3),)),
    )


CONV_2D = OperationDef(
    code=OperationType.CONV_2D,
    doc="output[b, i, j, c] = act(bias[c] + sum over di, dj, k of input[b, i * stride_h - pad_top + di * dilation_h, "
    "j * stride_w - pad_left + dj * dilation_w, k] * filter[c, di, dj, k]); taps outside the image count as the real "
    "value 0. " + SCALE_WORDS,
    forms=_forms(filter_operand("[depth_out, height, width, depth_in]")),
    results=(OUTPUT,),
    rows=type_rows(FL1),
    rules=(
        *RANKS_AT_VALIDATION,
        SCALE,
        stride_rule(),
        dilation_rule(),
        DEPTH,
        bias_rule(0),
        channel_rule(0),
        BIAS_SCALE,
        padding_rule(filter_size),
        activation_rule(),
    ),
    infer=_infer(0),
    kernel=_convolve,
    judging=_judging(_terms, _convolve),
    draw=_draw_convolution,
    examples=(
        # Surplus of SAME at the end: the 2 x 2 window hangs over the right and the bottom edge only.
        Example(
            "float32/implicit/in7",
            {
                "input": [[[[1.0], [2.0]], [[3.0], [4.0]]]],
                "filter": [[[[1.0], [10.0]], [[100.0], [1000.0]]]],
                "bias": [0.5],
                **implicit(1),
                "activation": 0,
            },
            {"output": [[[[4321.5], [402.5]], [[43.5], [4.5]]]]},
        ),
        # Real values 1, 2, 4 after one column of padding; taps two apart. Channel 0: weights 0.5 and 0.25, bias 0.375;
        # channel 1: weights -2 and 2, bias -5. Sums 0.875, -1, 1.875, 1, in steps of 1/16 from 18, after RELU.
        Example(
            "quant8_asymm_per_channel/explicit/in13",
            {
                "input": [[[[12], [14], [18]]]],
                "filter": [[[[2], [1]]], [[[-4], [4]]]],
                "bias": [3, -20],
                **explicit(1, 0),
                "activation": 1,
                "nchw": False,
                "dilation_w": 2,
                "dilation_h": 1,
            },
            {"output": [[[[32, 18], [48, 34]]]]},
            {"input": (0.5, 10), "filter": ((0.25, 0.5), 0), "output": (0.0625, 18)},
        ),
    ),
    second_opinion=SECOND_OPINION,
)

DEPTHWISE_CONV_2D = OperationDef(
    code=OperationType.DEPTHWISE_CONV_2D,
    doc="As CONV_2D, each input channel on its own: output channel ic * multiplier + m is the sum over di, dj of input "
    "channel ic times filter[0, di, dj, ic * multiplier + m]. Ranks are looked at only at execution. " + SCALE_WORDS,
    forms=_forms(
        filter_operand("[1, height, width, depth_out]"), (int32("multiplier", "Output channels per input channel."),)
    ),
    results=(OUTPUT,),
    rows=type_rows(FL1),
    rules=(
        SCALE,
        *RANKS_AT_EXECUTION,
        stride_rule(),
        dilation_rule(),
        SINGLE,
        MULTIPLIER,
        bias_rule(3),
        channel_rule(3),
        BIAS_SCALE,
        padding_rule(filter_size),
        activation_rule(),
    ),
    infer=_infer(3),
    kernel=_convolve_depthwise,
    judging=_judging(_terms_depthwise, _convolve_depthwise),
    draw=_draw_depthwise,
    examples=(
        # One row, two channels, two filters each: 1*1 + 3*2, 1*0 + 3*-1, 2*10 + 4*1, 2*1 + 4*1, then RELU.
        Example(
            "float32/implicit/in8",
            {
                "input": [[[[1.0, 2.0], [3.0, 4.0]]]],
                "filter": [[[[1.0, 0.0, 10.0, 1.0], [2.0, -1.0, 1.0, 1.0]]]],
                "bias": [0.0, 1.0, 0.25, -10.0],
                **implicit(2),
                "multiplier": 2,
                "activation": 1,
            },
            {"output": [[[[7.0, 0.0, 24.25, 0.0]]]]},
        ),
    ),
    second_opinion=SECOND_OPINION,
)

GROUPED_CONV_2D = OperationDef(
    code=OperationType.GROUPED_CONV_2D,
    doc="As CONV_2D without dilation, in groups: output channel g * (depth_out / num_groups) + q reads the input "
    "channels of group g alone. The layout is always given.",
    forms=_mandatory_forms(
        filter_operand("[depth_out, height, width, depth_in / num_groups]"),
        (int32("num_groups", "Groups of input and of output channels."),),
    ),
    results=(OUTPUT,),
    rows=type_rows(FL3),
    rules=(
        *RANKS_AT_EXECUTION,
        stride_rule(),
        GROUPS,
        GROUP_DEPTH,
        bias_rule(0),
        channel_rule(0),
        BIAS_SCALE,
        padding_rule(filter_size),
        activation_rule(),
    ),
    infer=_infer(0),
    kernel=_convolve,
    judging=_judging(_terms, _convolve),
    draw=_draw_grouped,
    examples=(
        # Channels first. Group 0: 1*1 + 2*1 and 1*2 + 2*3; group 1: 3*1 + 4*-1 and 3*0 + 4*1, each with its bias.
        Example(
            "float32/explicit",
            {
                "input": [[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]],
                "filter": [[[[1.0, 1.0]]], [[[2.0, 3.0]]], [[[1.0, -1.0]]], [[[0.0, 1.0]]]],
                "bias": [0.5, 0.0, 0.0, 4.0],
                **explicit(0, 0),
                "num_groups": 2,
                "activation": 3,
                "nchw": True,
            },
            {"output": [[[[3.5]], [[6.0]], [[0.0]], [[6.0]]]]},
        ),
    ),
    second_opinion=SECOND_OPINION,
)

TRANSPOSE_CONV_2D = OperationDef(
    code=OperationType.TRANSPOSE_CONV_2D,
    doc="Each input value adds its filter image to the output at (h * stride_h - pad_top, w * stride_w - pad_left); "
    "bias and activation come last. Right and bottom padding may be negative, which public code allows to reach every "
    "size with strides above 1. With implicit padding, public code reads height and width of output_shape only to "
    "derive SAME paddings, and takes the output's size from the input: draws keep the operand consistent with both.",
    forms=_mandatory_forms(
        filter_operand("[depth_out, height, width, depth_in]"),
        before_scheme=(int32_list("output_shape", "Wanted shape of the output, in the layout used."),),
    ),
    results=(OUTPUT,),
    rows=type_rows(FL3),
    rules=(
        *RANKS_AT_EXECUTION,
        stride_rule(),
        DEPTH,
        bias_rule(0),
        channel_rule(0),
        BIAS_SCALE,
        OUTPUT_SHAPE,
        CROP,
        OUTPUT_SIZE,
        activation_rule(),
    ),
    infer=_infer_transposed,
    kernel=_convolve_transposed,
    judging=_judging(_terms_transposed, _convolve_transposed),
    draw=_draw_transposed,
    examples=(
        # Stride 2, filter 3: the two images meet in the third column; the first column is cropped, one is added.
        Example(
            "float32/explicit",
            {
                "input": [[[[1.0], [10.0]]]],
                "filter": [[[[1.0], [2.0], [3.0]]]],
                "bias": [0.5],
                **explicit(1, -1, stride_w=2),
                "activation": 0,
                "nchw": False,
            },
            {"output": [[[[2.5], [13.5], [20.5], [30.5], [0.5]]]]},
        ),
        # SAME to a width of 4 with stride 2 and filter 3: one column too many, and it is cropped at the end.
        Example(
            "float32/implicit",
            {
                "input": [[[[1.0], [10.0]]]],
                "filter": [[[[1.0], [2.0], [3.0]]]],
                "bias": [0.0],
                "output_shape": [1, 1, 4, 1],
                **implicit(1, stride_w=2),
                "activation": 0,
                "nchw": False,
            },
            {"output": [[[[1.0], [2.0], [13.0], [20.0]]]]},
        ),
    ),
    second_opinion=SECOND_OPINION,
)
