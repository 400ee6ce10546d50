"""Regions of a feature map: what ROI_ALIGN and ROI_POOLING share."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nnhal.operations import OperandDef, TypeRow
from nnhal.types import FL3, FL4, Array, OperandType
from opset.call import Argument, Call, with_value
from opset.definition import (
    F16,
    F32,
    Q8,
    Q8S,
    ROW_NAMES,
    ExecutionRule,
    Shapes,
    int32,
    real_scalar,
    tensor,
)
from opset.detection_boxes import (
    BOX_SCALE,
    box_scale_rule,
    image_index_rule,
    ordered_boxes_rule,
    put_boxes,
    put_indexes,
    reals_of,
    size_rule,
    with_stored,
)
from opset.drawing import Draft
from opset.quantization import QUANTIZED
from opset.values import Values
from opset.windows import (
    draw_span,
    execution_rank_rule,
    image_shape,
    image_size,
    in_layout,
    is_nchw,
)

Q16 = OperandType.TENSOR_QUANT16_ASYMM
COARSE = 2.0**-8  # of a coordinate: closer to a tie, arithmetic in float16 may decide otherwise
FINE = 1e-5  # the same for quantised types, whose boxes are computed in float32
TRIES = 6
REACH = 64.0  # largest magnitude of a feature taken from a scope

REGION_INPUTS = (
    tensor("feature", "Feature map: [batch, height, width, depth], or with the channels first.", 4, 4),
    tensor("rois", "Regions, [num_rois, 4]: x1, y1, x2, y2 in coordinates of the image, inside it.", 2, 2),
    tensor("batches", "Image of each region, [num_rois].", 1, 1),
    int32("out_height", "Rows of the output."),
    int32("out_width", "Columns of the output."),
    real_scalar("height_stride", "Height of the image over that of the feature map."),
    real_scalar("width_stride", "Width of the image over that of the feature map."),
)
REGION_ROWS = tuple(
    TypeRow(
        ROW_NAMES[kind],
        since,
        {
            "feature": kind,
            "rois": kind if kind in (F32, F16) else Q16,
            "batches": OperandType.TENSOR_INT32,
            "height_stride": OperandType.FLOAT16 if kind == F16 else OperandType.FLOAT32,
            "width_stride": OperandType.FLOAT16 if kind == F16 else OperandType.FLOAT32,
            "output": kind,
        },
    )
    for kind, since in ((F32, FL3), (F16, FL3), (Q8, FL3), (Q8S, FL4))
)
STRIDE_WORDS = "With FLOAT16 tensors the strides are FLOAT16, although documents say FLOAT32."


def infer_regions(call: Call) -> Shapes:
    """One image of the wanted size for each region."""
    depth = image_size(call["feature"].shape, is_nchw(call))[3]
    size = call.integer("out_height"), call.integer("out_width")
    return {"output": image_shape(call["rois"].shape[0], *size, depth, is_nchw(call))}


def coordinates(v: Values) -> Array:
    """Regions in coordinates of the feature map, [num_rois, 4]."""
    dtype = v.arithmetic.dtype
    strides = [dtype(v.call[f"{axis}_stride"].item()) for axis in ("width", "height")] * 2
    return np.asarray(v["rois"] / np.array(strides, dtype))


def assembled(v: Values, pooled: list[Array], depth: int) -> Array:
    """Regions of [rows, columns, depth] as the output."""
    shape = (0, v.integer("out_height"), v.integer("out_width"), depth)
    stacked = np.stack(pooled) if pooled else np.zeros(shape, v.arithmetic.dtype)
    return in_layout(stacked, is_nchw(v.call))


# --- rules ------------------------------------------------------------------------------------------------------------


def _images(call: Call) -> int:
    return call["feature"].shape[0]


def _inside(call: Call) -> bool:
    _, height, width, _ = image_size(call["feature"].shape, is_nchw(call))
    ends = [call["width_stride"].item() * width, call["height_stride"].item() * height] * 2
    rois = Values(call)["rois"]
    # A corner on the very edge may come out a trace behind it.
    return bool((rois >= 0).all() and (rois <= np.array(ends) * (1 + COARSE)).all())


def _outside(call: Call) -> Call | None:
    rois = call["rois"]
    if rois.value is None or not len(rois.value):
        return None
    _, height, _, _ = image_size(call["feature"].shape, is_nchw(call))
    bad = rois.value.astype(np.float64)
    far = 2 * call["height_stride"].item() * height + 4
    bad[0, 3] = far / (rois.scale or 1.0)
    return with_stored(call, "rois", bad)


def region_rules(*more: ExecutionRule) -> tuple[ExecutionRule, ...]:
    """The rules of both operations, with more among them."""
    return (
        execution_rank_rule("RANK_FEATURE", "feature", 4),
        size_rule("ROIS", "rois", "rois has dimensions [num_rois, 4]", lambda call: (None, 4)),
        size_rule("BATCHES", "batches", "batches has one element a region", lambda call: (call["rois"].shape[0],)),
        box_scale_rule("ROI_SCALE", "rois"),
        ExecutionRule(
            "OUT_SIZE",
            "out_height and out_width are positive",
            lambda call: call.integer("out_height") > 0 and call.integer("out_width") > 0,
            lambda call: with_value(call, "out_height", 0),
        ),
        ExecutionRule(
            "STRIDE",
            "height_stride and width_stride are positive",
            lambda call: call["height_stride"].item() > 0 and call["width_stride"].item() > 0,
            lambda call: with_value(call, "width_stride", 0.0),
        ),
        *more,
        image_index_rule(_images),
        ordered_boxes_rule("rois"),
        ExecutionRule("INSIDE", "each region lies inside the image", _inside, _outside),
    )


# --- draws ------------------------------------------------------------------------------------------------------------


def draw_feature(draft: Draft) -> tuple[int, int, int]:
    """Layout, feature map, output size; returns batch, height and width."""
    nchw = draft.chance(40)
    draft.scalar("nchw", nchw)
    batch, height, width = draft.choose((1, 1, 2, 3)), *(draft.integer(2, 8) for _ in range(2))
    if draft.chance(8):
        height = 1
    if draft.chance(8):
        width = 1
    shape = image_shape(batch, height, width, draft.choose((1, 2, 3, 5)), nchw)
    span = draw_span(draft, 2.0)
    draft.tensor("feature", shape, low=span[0], high=span[1], accept=(-REACH, REACH))
    for name in ("out_height", "out_width"):
        draft.scalar(name, draft.choose((1, 2, 2, 3, 4, 5)))
    for name in ("height_stride", "width_stride"):
        draft.scalar(name, draft.choose((1.0, 2.0, 4.0, 8.0)) if draft.chance(40) else draft.real(0.6, 9.0))
    return batch, height, width


def _corners(rng: np.random.Generator, count: int, length: int) -> tuple[Array, Array]:
    """Starts and ends of regions along a dimension of the map: short, long, the whole, empty, from the far edge."""
    kinds = rng.random(count)
    ends = np.sort(rng.random((2, count)) * length, axis=0)
    first = np.where(kinds < 0.15, 0.0, ends[0])
    last = np.where(kinds < 0.15, float(length), ends[1])
    last = np.where((kinds > 0.15) & (kinds < 0.25), first, last)
    first = np.where(kinds > 0.9, np.maximum(length - 0.6, first), first)
    first = np.where(kinds > 0.95, float(length), first)
    return first, np.maximum(last, first)


def put_regions(draft: Draft, sizes: tuple[int, int, int], safe: Callable[[Array, int], Array]) -> None:
    """Regions, those of a producer in the scope or new ones, and their images.

    Args:
        draft: the call under way; it has strides and layout.
        sizes: batch, height and width of the feature map.
        safe: moves new regions, as (start, end) in coordinates of the map, off ties along dimension 0 or 1.
    """
    if _known_regions(draft, sizes):
        return
    batch, *lengths = sizes
    rng = draft.source.generator()
    count = draft.choose((1, 2, 3, 4, 6))
    strides = [float(draft[name].item()) for name in ("height_stride", "width_stride")]
    down = _on_eighths(rng, count, lengths[0], strides[0], lambda edges: safe(edges, 0))
    across = _on_eighths(rng, count, lengths[1], strides[1], lambda edges: safe(edges, 1))
    put_boxes(draft, "rois", np.stack([across[:, 0], down[:, 0], across[:, 1], down[:, 1]], axis=1))
    put_indexes(draft, "batches", np.sort(rng.integers(0, batch, count)))


def _on_eighths(rng: np.random.Generator, count: int, length: int, stride: float, safe: Callable[[Array], Array]
                ) -> Array:  # fmt: skip
    """Starts and ends of regions along a dimension of the image, in eighths; what is near a tie is drawn again."""
    last = math.floor(length * stride * 8) / 8
    edges = safe(np.stack(_corners(rng, count, length), axis=1))
    for _ in range(TRIES):
        eighths = np.sort(np.clip(np.rint(edges * stride * 8) / 8, 0, last), axis=1)
        moved = np.abs(safe(eighths / stride) - eighths / stride).max(axis=1) > 1e-9
        if not moved.any():
            break
        other = safe(np.stack(_corners(rng, count, length), axis=1))
        edges = np.where(moved[:, None], other, eighths / stride)
    return np.asarray(eighths)


def _known_regions(draft: Draft, sizes: tuple[int, int, int]) -> bool:
    """Takes regions that an operation before made, none at all included; false where none fit."""
    batch, height, width = sizes
    ends = np.array([draft["width_stride"].item() * width, draft["height_stride"].item() * height] * 2)
    kind = draft.type("rois")

    def suits(a: Argument) -> bool:
        if a.type != kind or a.rank != 2 or a.shape[1] != 4 or a.value is None:
            return False
        if a.type in QUANTIZED and (a.scale, a.zero_point) != (BOX_SCALE, 0):
            return False
        boxes = reals_of(a)
        return bool((boxes >= 0).all() and (boxes <= ends).all() and (boxes[:, :2] <= boxes[:, 2:]).all())

    rois = draft.scope.find(suits, empty=True)
    if rois is None:
        return False

    def indexes(a: Argument) -> bool:
        if a.type != OperandType.TENSOR_INT32 or a.shape != rois.shape[:1] or a.value is None:
            return False
        return bool(((a.value >= 0) & (a.value < batch)).all())

    batches = draft.scope.find(indexes, empty=True)
    if batches is not None:
        draft.put("batches", batches)
    elif rois.shape[0]:
        put_indexes(draft, "batches", np.sort(draft.source.generator().integers(0, batch, rois.shape[0])))
    else:
        return False  # a model cannot be given an empty tensor
    draft.put("rois", rois)
    return True


def region_output(words: str) -> OperandDef:
    """The result, with words on its scale."""
    return tensor("output", f"[num_rois, out_height, out_width, depth] in the input's layout{words}.", 4, 4)


def strides_of_example(height: float, width: float) -> dict[str, float]:
    """Both strides of an example."""
    return {"height_stride": height, "width_stride": width}
