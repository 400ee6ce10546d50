"""Second opinions on convolutions: what the documents say in loops and integers, and ONNX's reference evaluator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from nnhal.types import Array, info
from opset.call import Call
from opset.convolution import DEPTHWISE_CONV_2D, TRANSPOSE_CONV_2D
from opset.quantization import limits
from opset.values import Values
from tests.judging import to_steps


def option(call: Call, name: str, otherwise: int) -> int:
    return call.integer(name) if name in call.inputs else otherwise


def steps_of(call: Call) -> tuple[tuple[int, int], tuple[int, int]]:
    """Strides and dilations, height first."""
    return (
        (call.integer("stride_h"), call.integer("stride_w")),
        (option(call, "dilation_h", 1), option(call, "dilation_w", 1)),
    )


def last(image: Array, call: Call) -> Array:
    return np.moveaxis(image, 1, 3) if call["nchw"].item() else image


def heads(call: Call) -> tuple[int, int]:
    """Rows above and columns left of the image."""
    if "pad_top" in call.inputs:
        return call.integer("pad_top"), call.integer("pad_left")
    if call.integer("padding_scheme") != 1:
        return 0, 0
    shapes = [last(np.empty(call[n].shape), call).shape for n in ("input", "output")]
    (strides, dilations), found = steps_of(call), []
    for axis in (0, 1):
        size, out = shapes[0][axis + 1], shapes[1][axis + 1]
        extent = (call["filter"].shape[axis + 1] - 1) * dilations[axis] + 1
        if call.definition is TRANSPOSE_CONV_2D:
            spare = (size - 1) * strides[axis] + extent - out
        else:
            spare = (out - 1) * strides[axis] + extent - size
        found.append(max(0, spare) // 2)
    return found[0], found[1]


def pair_of(call: Call, channel: int) -> tuple[slice, Callable[[int, int], Array]]:
    """Which input channels an output channel reads, and its weights for a tap."""
    weights = call["filter"].value.astype(np.int64) - call["filter"].zero_point
    if call.definition is DEPTHWISE_CONV_2D:
        source = channel // call.integer("multiplier")
        return slice(source, source + 1), lambda i, j: weights[0, i, j, channel : channel + 1]
    depth = weights.shape[3]
    group = channel // (weights.shape[0] // option(call, "num_groups", 1))
    return slice(group * depth, (group + 1) * depth), lambda i, j: weights[channel, i, j]


def accumulators(call: Call) -> Array:
    """Exact sums with bias, [batch, rows, columns, depth_out]."""
    image = last(call["input"].value.astype(np.int64) - call["input"].zero_point, call)
    batch, rows, columns, depth = last(np.empty(call["output"].shape), call).shape
    (stride_h, stride_w), (dilation_h, dilation_w) = steps_of(call)
    top, left = heads(call)
    total = np.zeros((batch, rows, columns, depth), np.int64) + call["bias"].value
    taps = list(itertools.product(range(call["filter"].shape[1]), range(call["filter"].shape[2])))
    for channel in range(depth):
        channels, weights = pair_of(call, channel)
        for i, j in taps:
            if call.definition is TRANSPOSE_CONV_2D:
                for h, w in itertools.product(range(image.shape[1]), range(image.shape[2])):
                    y, x = h * stride_h - top + i, w * stride_w - left + j
                    if 0 <= y < rows and 0 <= x < columns:
                        total[:, y, x, channel] += image[:, h, w] @ weights(i, j)
                continue
            for r, c in itertools.product(range(rows), range(columns)):
                y, x = r * stride_h - top + i * dilation_h, c * stride_w - left + j * dilation_w
                if 0 <= y < image.shape[1] and 0 <= x < image.shape[2]:
                    total[:, r, c, channel] += image[:, y, x, channels] @ weights(i, j)
    return total


def by_loops(call: Call) -> tuple[Array, Array]:
    """Stored results of a quantised call in exact arithmetic, and each one's distance from a tie."""
    output, total = call["output"], accumulators(call)
    channel = call["filter"].channel
    low, high = {0: (None, None), 1: (0, None), 2: (-1, 1), 3: (0, 6)}[call.integer("activation")]
    stored, margin = np.zeros(total.shape, info(output.type).dtype), np.ones(total.shape)
    for place in np.ndindex(total.shape):
        scale = call["filter"].scale if channel is None else channel.scales[place[-1]]
        real = int(total[place]) * Fraction(call["input"].scale) * Fraction(scale)
        real = real if low is None else max(real, Fraction(low))
        real = real if high is None else min(real, Fraction(high))
        stored[place], margin[place] = to_steps(real, output.scale, output.zero_point, *limits(output.type))
    back = (lambda a: np.moveaxis(a, 3, 1)) if call["nchw"].item() else (lambda a: a)
    return back(stored), back(margin)


def by_onnx(call: Call) -> Array:
    """Real results by ONNX's evaluator; where it can, its own SAME_UPPER finds the paddings."""
    real = Values(call)
    image = real["input"] if call["nchw"].item() else np.moveaxis(real["input"], 3, 1)
    weights = np.moveaxis(real["filter"], 3, 1)  # [depth_out, depth, height, width]
    (strides, dilations), shape = steps_of(call), last(np.empty(call["output"].shape), call).shape
    top, left = heads(call)
    settings: dict[str, Any] = {"strides": strides, "dilations": dilations, "kernel_shape": weights.shape[2:]}
    kind = "Conv"
    if call.definition is TRANSPOSE_CONV_2D:
        kind, weights = "ConvTranspose", np.moveaxis(real["filter"], 0, 3)  # [height, width, depth_in, depth_out]
        weights = weights.transpose(2, 3, 0, 1)
        whole = [(n - 1) * s + k for n, s, k in zip(image.shape[2:], strides, weights.shape[2:], strict=True)]
        tails = [n - head - out for n, head, out in zip(whole, (top, left), shape[1:3], strict=True)]
        settings["pads"] = [top, left, *(max(0, t) for t in tails)]
        settings["output_padding"] = [max(0, -t) for t in tails]
    else:
        if call.definition is DEPTHWISE_CONV_2D:
            weights = np.moveaxis(real["filter"], 3, 0)
            settings["group"] = image.shape[1]
        settings["group"] = settings.get("group", option(call, "num_groups", 1))
        if "padding_scheme" in call.inputs and dilations == (1, 1):
            settings["auto_pad"] = "SAME_UPPER" if call.integer("padding_scheme") == 1 else "VALID"
        else:
            spans = [(n - 1) * d + 1 for n, d in zip(weights.shape[2:], dilations, strict=True)]
            # The tail that makes the due number of outputs; what lies behind the last window is not read.
            tails = [
                max(0, (out - 1) * s + span - head - n)
                for out, s, span, head, n in zip(shape[1:3], strides, spans, (top, left), image.shape[2:], strict=True)
            ]
            settings["pads"] = [top, left, *tails]
    got = evaluator(kind, settings).run(None, {"x": image, "w": weights, "b": real["bias"]})[0]
    got = got[:, :, : shape[1], : shape[2]]
    low, high = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}[call.integer("activation")]
    got = np.clip(got, low, high)
    return got if call["nchw"].item() else np.moveaxis(got, 1, 3)


def evaluator(kind: str, settings: dict[str, Any]) -> ReferenceEvaluator:
    double = onnx.TensorProto.DOUBLE
    node = onnx.helper.make_node(kind, ["x", "w", "b"], ["y"], **settings)
    known = [onnx.helper.make_tensor_value_info(name, double, None) for name in "xwb"]
    result = [onnx.helper.make_tensor_value_info("y", double, None)]
    return ReferenceEvaluator(onnx.helper.make_model(onnx.helper.make_graph([node], "g", known, result)))
