"""Filters and biases of convolutions: operands, types, rules, and how to draw them. `convolution` builds on it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from nnhal.operations import OperandDef, RuleKind, TypeRow, ValidationRule
from nnhal.types import FL3, FL4, Array, FeatureLevel, OperandType, info
from opset.call import Argument, Call, with_shape, with_value
from opset.definition import F16, F32, I32, Q8, Q8CH, Q8S, ROW_NAMES, ExecutionRule, rank_rule, tensor
from opset.drawing import Draft
from opset.quantization import QUANTIZED, float32, limits
from opset.windows import Size, draw_image, draw_span, execution_rank_rule, image_size, is_nchw

INPUT = tensor("input", "Image batch: [batch, height, width, depth_in], or with the channels first.", 4, 4)
BIAS = tensor(
    "bias",
    "[depth_out]. TENSOR_INT32 counts in input scale * filter scale; beside a per-channel filter its scale is 0.",
    1,
    1,
)
OUTPUT = tensor(
    "output", "[batch, rows, columns, depth_out] in the input's layout; scale and zero point are free.", 4, 4
)
BIAS_TOLERANCE = 1e-6  # by which the bias scale may differ from the product, relative to the smaller
REACH = 64.0  # largest magnitude of an operand taken from a scope: sums stay far below float16's largest number


def filter_operand(shape: str) -> OperandDef:
    """The filter, of a shape in words."""
    return tensor("filter", f"Weights {shape}, the same in both layouts.", 4, 4)


def type_rows(since: FeatureLevel) -> tuple[TypeRow, ...]:
    """The table of types; `since` is that of FLOAT32 and QUANT8_ASYMM."""

    def row(kind: OperandType, start: FeatureLevel, channel: bool = False) -> TypeRow:
        floating = kind in (F32, F16)
        types = {
            "input": kind,
            "filter": Q8CH if channel else kind,
            "bias": kind if floating else I32,
            "output": kind,
        }
        return TypeRow(ROW_NAMES[kind] + ("_per_channel" if channel else ""), start, types)

    return (
        row(F32, since),
        row(Q8, since),
        row(F16, FL3),
        row(Q8, FL3, True),
        row(Q8S, FL4),
        row(Q8S, FL4, True),
    )


def filter_size(call: Call) -> Size:
    """Height and width of the filter."""
    return call["filter"].shape[1], call["filter"].shape[2]


# --- rules ------------------------------------------------------------------------------------------------------------

RANKS_AT_EXECUTION = (execution_rank_rule("RANK_INPUT", "input", 4), execution_rank_rule("RANK_FILTER", "filter", 4))
RANKS_AT_VALIDATION = (rank_rule("RANK_INPUT", "input", 4, 4), rank_rule("RANK_FILTER", "filter", 4, 4))
SCALE = ValidationRule(
    "SCALE",
    "the output scale is greater than input scale * filter scale",
    RuleKind.SCALE_ABOVE_PRODUCT,
    ("output", "input", "filter"),
    until=FL3,
    types=(Q8,),
)


def depth_of(call: Call) -> int:
    """Channels of the input."""
    return image_size(call["input"].shape, is_nchw(call))[3]


def _grown(call: Call, operand: str, dimension: int) -> Call:
    """The call with one dimension of an operand one larger, scales of channels along."""
    shape = list(call[operand].shape)
    shape[dimension] += 1
    grown = with_shape(call, operand, tuple(shape))
    channel = grown[operand].channel
    if channel is None or channel.channel_dim != dimension:
        return grown
    scales = (*channel.scales, channel.scales[-1])
    return grown.with_input(operand, replace(grown[operand], channel=replace(channel, scales=scales)))


DEPTH = ExecutionRule(
    "DEPTH",
    "the filter's depth equals the input's",
    lambda call: call["filter"].shape[3] == depth_of(call),
    lambda call: _grown(call, "filter", 3),
)


def bias_rule(output_channels: int) -> ExecutionRule:
    """One value for each output channel, which a dimension of the filter counts."""
    return ExecutionRule(
        "BIAS",
        "the bias has one value for each output channel of the filter",
        lambda call: call["bias"].shape == (call["filter"].shape[output_channels],),
        lambda call: _grown(call, "bias", 0),
    )


def _bias_scale_fits(call: Call) -> bool:
    """Whether the unit of the bias is that of the sums; public code takes any scale beside a per-channel filter."""
    if call["filter"].type not in QUANTIZED or call["filter"].channel is not None:
        return True
    product = float32(call["input"].scale * call["filter"].scale)
    scale = call["bias"].scale
    return abs(scale - product) <= BIAS_TOLERANCE * min(scale, product)


def _bias_scale_broken(call: Call) -> Call | None:
    if call["filter"].type not in QUANTIZED or call["filter"].channel is not None:
        return None
    return call.with_input("bias", replace(call["bias"], scale=float32(call["bias"].scale * 1.5)))


BIAS_SCALE = ExecutionRule(
    "BIAS_SCALE",
    "beside a filter with one scale, the scale of a TENSOR_INT32 bias is input scale * filter scale",
    _bias_scale_fits,
    _bias_scale_broken,
)


def channel_rule(output_channels: int) -> ExecutionRule:
    """Scales belong to the output channels."""

    def holds(call: Call) -> bool:
        channel = call["filter"].channel
        return channel is None or channel.channel_dim == output_channels

    def broken(call: Call) -> Call | None:
        channel, shape = call["filter"].channel, call["filter"].shape
        if channel is None:
            return None
        other = 3 - output_channels
        scales = (channel.scales * shape[other])[: shape[other]]
        moved = replace(channel, channel_dim=other, scales=scales)
        return call.with_input("filter", replace(call["filter"], channel=moved))

    return ExecutionRule(
        "CHANNEL_DIM", f"scales of a per-channel filter lie along dimension {output_channels}", holds, broken
    )


SINGLE = ExecutionRule(
    "SINGLE",
    "dimension 0 of the filter is 1",
    lambda call: call["filter"].shape[0] == 1,
    lambda call: _grown(call, "filter", 0),
)
MULTIPLIER = ExecutionRule(
    "MULTIPLIER",
    "multiplier is positive, and dimension 3 of the filter is the input's depth * multiplier",
    lambda call: (
        call.integer("multiplier") > 0 and call["filter"].shape[3] == depth_of(call) * call.integer("multiplier")
    ),
    lambda call: with_value(call, "multiplier", call.integer("multiplier") + 1),
)
GROUPS = ExecutionRule(
    "GROUPS",
    "num_groups is positive and divides the number of output channels",
    lambda call: call.integer("num_groups") > 0 and call["filter"].shape[0] % call.integer("num_groups") == 0,
    lambda call: with_value(call, "num_groups", call["filter"].shape[0] + 1),
)
GROUP_DEPTH = ExecutionRule(
    "GROUP_DEPTH",
    "the input's depth is num_groups * the filter's depth",
    lambda call: call["filter"].shape[3] * call.integer("num_groups") == depth_of(call),
    lambda call: _grown(call, "filter", 3),
)
# --- draws ------------------------------------------------------------------------------------------------------------


def _centred(a: Argument) -> Array:
    value = np.asarray(a.value, np.float64)
    return value - a.zero_point if a.type in QUANTIZED else value


def _root_mean_square(values: Array) -> float:
    flat = values.reshape(-1)
    return math.sqrt(float(flat @ flat) / max(flat.size, 1))


def _faint(draft: Draft, name: str, shape: tuple[int, ...], steps: int) -> Argument:
    """A quantised operand of a few steps about its zero point."""
    kind = draft.type(name)
    low, high = limits(kind)
    zero = draft.integer(low + steps, high - steps)
    value = zero + draft.source.generator().integers(-steps, steps + 1, shape)
    return Argument(kind, shape, draft.real(0.1, 0.95), zero, value=value.astype(info(kind).dtype))


def draw_input(
    draft: Draft, depths: tuple[int, ...] = (1, 2, 3, 4, 5, 6), largest: int = 8
) -> tuple[int, int, int, int]:
    """Activation, layout and input; returns batch, height, width and channels."""
    draft.activation()
    span = draw_span(draft, draft.choose((1.0, 2.0, 2.0, 4.0)))
    if not _may_be_faint(draft):
        return draw_image(draft, span, REACH, depths, largest)
    return draw_image(draft, span, REACH, depths, largest, lambda d, shape: _faint(d, "input", shape, 6))


def _may_be_faint(draft: Draft) -> bool:
    """Now and then sums of few steps: the output scale is then below the product of scales, legal from level 3 on."""
    return draft.type("filter") in (Q8, Q8S) and draft.scope.level >= FL3 and draft.chance(10)


def _symmetric(draft: Draft, span: tuple[float, float]) -> tuple[float | None, int | None]:
    """Parameters of a filter without a zero point, as most weights have them; None where it is drawn freely."""
    kind = draft.type("filter")
    if kind not in (Q8, Q8S) or not draft.chance(75 if kind == Q8S else 30):
        return None, None
    return float32(max(abs(end) for end in span) * draft.real(0.55, 1.0) / 127), 0 if kind == Q8S else 128


LARGEST_BIAS = 2**20  # keeps sums far from the ends of int32


def draw_weights(draft: Draft, shape: tuple[int, ...], output_channels: int, terms: int) -> None:
    """Filter and bias. The bias is drawn in proportion to the sums, so that its loss shows.

    Filter scales stay below 1, where the documented scale rule and the one in public code agree.
    """
    image = draft["input"]
    if image.type in (Q8, Q8S) and np.abs(_centred(image)).max() <= 6 and draft.type("filter") != Q8CH:
        draft.put("filter", draft.scope.add(_faint(draft, "filter", shape, 2)))
    else:
        span = draw_span(draft, draft.choose((0.5, 1.0, 2.0)))
        scale, zero_point = _symmetric(draft, span)
        draft.tensor("filter", shape, low=span[0], high=span[1], channel_dim=output_channels, scale=scale,
                     zero_point=zero_point, fits=lambda a: a.scale < 1)  # fmt: skip
    weights = draft["filter"]
    reach = _root_mean_square(_centred(image)) * _root_mean_square(_centred(weights)) * math.sqrt(terms)
    channels = (shape[output_channels],)
    if draft.type("bias") != I32:
        reach = max(reach, 7.0 if draft["activation"].item() == 3 else 0.5)  # beyond 6, so that RELU6 clips
        draft.tensor("bias", channels, low=-reach, high=reach)
        return
    if draft["activation"].item() == 3:  # beyond 6, so that RELU6 clips
        unit = image.scale * (weights.scale if weights.channel is None else float(np.mean(weights.channel.scales)))
        reach = max(reach, 7.0 / unit)
    most = max(3, min(round(reach), LARGEST_BIAS))
    scale = float32(image.scale * weights.scale)  # 0 beside a per-channel filter, which has no scale of its own
    draft.tensor("bias", channels, low=-most, high=most, scale=scale)
