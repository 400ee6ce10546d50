"""Proposals of regions from anchors: GENERATE_PROPOSALS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nnhal.operations import TypeRow
from nnhal.types import FL3, FL4, Array, OperandType, OperationType
from opset.call import Call
from opset.definition import (
    EXACT,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    ROW_NAMES,
    Bound,
    Example,
    Judging,
    OperationDef,
    Quantization,
    Shapes,
    form,
    half_units,
    int32,
    real_scalar,
    tensor,
)
from opset.detection_boxes import (
    CORNER,
    MOVE_TERMS,
    Margin,
    above_overlaps,
    box_scale_rule,
    clip,
    draw_margin,
    gap,
    move,
    on_box_grid,
    overlaps,
    put_boxes,
    put_scores,
    reals_of,
    size_rule,
    suppress_hard,
)
from opset.drawing import Draft
from opset.quantization import FLOATS, QUANTIZED
from opset.values import Values
from opset.windows import (
    MANDATORY_LAYOUT,
    channels_last,
    execution_rank_rule,
    image_shape,
    image_size,
    is_nchw,
)

Q16, Q16S = OperandType.TENSOR_QUANT16_ASYMM, OperandType.TENSOR_QUANT16_SYMM
TRIES = 6


@dataclass(frozen=True)
class Limits:
    """The scalars of a call that choose among boxes."""

    before: int
    after: int
    iou_threshold: float
    min_size: float


@dataclass(frozen=True)
class Candidates:
    """All boxes of one image.

    Attributes:
        scores: [boxes]: row by row, column by column, anchor by anchor.
        boxes: [boxes, 4], moved and cut to the image.
        magnitude: what was summed for each corner.
        size: height and width of the image.
    """

    scores: Array
    boxes: Array
    magnitude: Array
    size: Array


def _candidates(scores: Array, deltas: Array, anchors: Array, sizes: Array, strides: tuple[float, float]
                ) -> list[Candidates]:  # fmt: skip
    """Boxes of each image; scores and deltas with the anchors last."""
    dtype = scores.dtype.type
    _, height, width, count = scores.shape
    down = np.arange(height).astype(dtype)[:, None, None] * dtype(strides[0])
    right = np.arange(width).astype(dtype)[None, :, None] * dtype(strides[1])
    down, right = np.broadcast_arrays(down, right)
    shifts = np.concatenate([right, down, right, down], axis=-1)
    shifted = (anchors + shifts[:, :, None]).reshape(-1, 4)
    found = []
    for image in range(len(scores)):
        moved = move(shifted, deltas[image].reshape(height * width * count, 4))
        found.append(
            Candidates(scores[image].reshape(-1), clip(moved.corners, sizes[image]), moved.magnitude, sizes[image])
        )
    return found


def _chosen(image: Candidates, limits: Limits, margin: Margin) -> Array:
    """Indexes of the boxes that are proposed, by falling score."""
    order = np.argsort(-image.scores, kind="stable")
    margin.note(np.diff(image.scores[order]), margin.scores)
    if 0 < limits.before < len(order):
        order = order[: limits.before]
    boxes = image.boxes[order]
    sides = boxes[:, 2:] - boxes[:, :2]
    # A box that lies outside the image has no extent, in any arithmetic.
    margin.note((sides - limits.min_size)[(sides > 0) | (limits.min_size > 0)], margin.sides)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    able = order[(sides > limits.min_size).all(axis=1) & (centres < image.size[[1, 0]]).all(axis=1)]
    shared = overlaps(image.boxes[able])
    kept = suppress_hard(image.scores[able], shared, limits.iou_threshold, limits.after, margin)
    return np.asarray(able[kept])


def _limits(call: Call) -> Limits:
    return Limits(
        call.integer("pre_nms_max"),
        call.integer("post_nms_max"),
        call["iou_threshold"].item(),
        call["min_size"].item(),
    )


def _all(v: Values) -> list[tuple[Candidates, Array]]:
    nchw = is_nchw(v.call)
    strides = v.call["height_stride"].item(), v.call["width_stride"].item()
    images = _candidates(
        channels_last(v["scores"], nchw), channels_last(v["deltas"], nchw), v["anchors"], v["image_info"], strides
    )
    return [(image, _chosen(image, _limits(v.call), Margin())) for image in images]


def _kernel(v: Values) -> Mapping[str, Array]:
    found = _all(v)
    return {
        "scores_out": np.concatenate([image.scores[at] for image, at in found]),
        "rois": np.concatenate([image.boxes[at] for image, at in found]),
        "batches": np.repeat(np.arange(len(found)), [len(at) for _, at in found]),
    }


def _bound(v: Values, results: Mapping[str, Array]) -> Bound:
    if "rois" not in results:
        return EXACT
    return Bound(np.concatenate([image.magnitude[at] for image, at in _all(v)]), MOVE_TERMS)


def _infer(call: Call) -> Shapes:
    del call
    return {"scores_out": (0,), "rois": (0, 4), "batches": (0,)}


def _quantization(call: Call) -> Quantization:
    scores = call["scores"]
    if scores.type not in QUANTIZED:
        return {}
    return {"scores_out": (scores.scale, scores.zero_point), **on_box_grid("rois")(call)}


# --- rules ------------------------------------------------------------------------------------------------------------


def _deltas_shape(call: Call) -> tuple[int, ...]:
    batch, height, width, anchors = image_size(call["scores"].shape, is_nchw(call))
    return image_shape(batch, height, width, 4 * anchors, is_nchw(call))


def _anchors_shape(call: Call) -> tuple[int, ...]:
    return image_size(call["scores"].shape, is_nchw(call))[3], 4


# --- draws ------------------------------------------------------------------------------------------------------------


def _anchors(rng: np.random.Generator, count: int) -> Array:
    centre = rng.uniform(1, 6, (count, 2))
    half = rng.uniform(3, 7, (count, 2))
    return np.concatenate([centre - half, centre + half], axis=1)


def _draw_limits(draft: Draft, images: list[Candidates], surely: bool) -> Limits:
    """Scalars for these boxes; `surely` for those that are hardly close calls."""
    count = len(images[0].scores)
    before = draft.choose((0, -1)) if draft.chance(50) else draft.integer(2, max(2, count - 1))
    after = -1 if draft.chance(60) else draft.integer(1, 6)
    sides = np.concatenate([i.boxes[:, 2:] - i.boxes[:, :2] for i in images]).reshape(-1)
    smallest = 0.0 if draft.chance(25) else gap(sides, 0.3, max(1.0, float(np.quantile(sides, 0.15))), lambda n: 0)
    shared = np.concatenate([overlaps(i.boxes).reshape(-1) for i in images])
    threshold = gap(shared, 0.1, 0.9, lambda n: draft.integer(0, n - 1))
    if surely:
        threshold, before, smallest = above_overlaps(shared), 0, 0.0
    return Limits(before, after, threshold, smallest)


def _draw(draft: Draft) -> None:
    nchw = draft.chance(40)
    draft.scalar("nchw", nchw)
    # Now and then so many boxes, and so far apart, that what is kept shows how it is rounded.
    many = draft.alone and draft.chance(15)
    places = (4, 5) if many else (1, 2, 3, 3)
    batch, height, width = 2 if many else draft.choose((1, 1, 2)), draft.choose(places), draft.choose(places)
    anchors = draft.integer(1, 2 if many else 3)
    rng = draft.source.generator()
    drawn = put_scores(draft, "scores", image_shape(batch, height, width, anchors, nchw), rng)
    shape = image_shape(batch, height, width, 4 * anchors, nchw)
    deltas = draft.tensor("deltas", shape, low=-0.8, high=0.8, accept=(-1.0, 1.0))
    boxes = put_boxes(draft, "anchors", _anchors(rng, anchors), rng)
    # Images that cut some of the boxes, and differ in height and width.
    sizes = put_boxes(draft, "image_info", rng.uniform(8, 20, (batch, 2)) * (3 if many else 1), rng)
    strides = [draft.choose((2.0, 4.0, 8.0)) if draft.chance(30) else draft.real(1.5, 5.0) for _ in range(2)]
    strides = [draft.real(9.0, 14.0) for _ in range(2)] if many else strides
    draft.scalar("height_stride", strides[0])
    draft.scalar("width_stride", strides[1])
    images = _candidates(
        channels_last(reals_of(drawn), nchw), channels_last(reals_of(deltas), nchw), reals_of(boxes),
        reals_of(sizes), (draft["height_stride"].item(), draft["width_stride"].item()),
    )  # fmt: skip
    for attempt in range(TRIES):
        limits = _draw_limits(draft, images, attempt == TRIES - 1)
        limits = replace(limits, before=0, after=-1) if many else limits
        margin = draw_margin(drawn.type)
        if sum(len(_chosen(image, limits, margin)) for image in images) and margin.wide:
            break
    draft.scalar("pre_nms_max", limits.before)
    draft.scalar("post_nms_max", limits.after)
    draft.scalar("iou_threshold", limits.iou_threshold)
    draft.scalar("min_size", limits.min_size)


# --- definition -------------------------------------------------------------------------------------------------------


def _row(kind: OperandType) -> TypeRow:
    plain = kind in FLOATS
    types = {"scores": kind, "deltas": kind, "anchors": kind if plain else Q16S, "image_info": kind if plain else Q16}
    real = OperandType.FLOAT16 if kind == F16 else OperandType.FLOAT32
    types |= dict.fromkeys(("height_stride", "width_stride", "iou_threshold", "min_size"), real)
    types |= {"scores_out": kind, "rois": kind if plain else Q16, "batches": I32}
    return TypeRow(ROW_NAMES[kind], FL4 if kind == Q8S else FL3, types)


def _example(pre_nms_max: int, min_size: float) -> dict[str, object]:
    # Two anchors at two places 6 columns apart: 4 x 4 in the middle of (2, 2), and its neighbour 1 further right.
    return {
        "scores": [[[[0.5, 0.75], [0.25, 0.125]]]],
        "deltas": [[[[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]]],
        "anchors": [[0.0, 0.0, 4.0, 4.0], [1.0, 0.0, 5.0, 4.0]],
        "image_info": [[8.0, 9.0]],
        "height_stride": 2.0,
        "width_stride": 6.0,
        "pre_nms_max": pre_nms_max,
        "post_nms_max": -1,
        "iou_threshold": 0.5,
        "min_size": min_size,
        "nchw": 0,
    }


GENERATE_PROPOSALS = OperationDef(
    code=OperationType.GENERATE_PROPOSALS,
    doc="For each image: anchors are shifted to each place by the strides, moved by their deltas and cut to the image "
    "as in AXIS_ALIGNED_BBOX_TRANSFORM. The pre_nms_max best scores stay, of these the boxes wider and higher than "
    "min_size with a centre in the image; then the best is kept again and again, at most post_nms_max, and what "
    "overlaps it by iou_threshold or more goes. The order within an image is not specified; here by falling score. "
    "post_nms_max of 0 is unlimited by documents and nothing by public code: never drawn. With FLOAT16 tensors the "
    "scalars are FLOAT16, although documents say FLOAT32. Quantised: of real values; image_info is QUANT16_ASYMM, "
    "although documents say QUANT16_SYMM. Draws keep away from ties and thresholds.",
    forms=(form(
        tensor("scores", "[batches, height, width, num_anchors], or with the anchors second.", 4, 4),
        tensor("deltas", "dx, dy, dw, dh for each anchor: [batches, height, width, num_anchors * 4], likewise.", 4, 4),
        tensor("anchors", "[num_anchors, 4]: x1, y1, x2, y2.", 2, 2),
        tensor("image_info", "Height and width of each image, [batches, 2].", 2, 2),
        real_scalar("height_stride", "Pixels from one row to the next."),
        real_scalar("width_stride", "Pixels from one column to the next."),
        int32("pre_nms_max", "Best scores that take part; 0 or less: all."),
        int32("post_nms_max", "Most boxes an image; negative: no limit."),
        real_scalar("iou_threshold", "Overlap from which on a box goes."),
        real_scalar("min_size", "Width and height must be more."),
        MANDATORY_LAYOUT,
        since=FL3,
    ),),
    results=(
        tensor("scores_out", "[num_out]; scale of scores.", 1, 1),
        tensor("rois", "[num_out, 4]: x1, y1, x2, y2.", 2, 2),
        tensor("batches", "Images, [num_out].", 1, 1),
    ),
    rows=tuple(_row(kind) for kind in (F32, F16, Q8, Q8S)),
    rules=(
        execution_rank_rule("RANK_SCORES", "scores", 4),
        size_rule("DELTAS", "deltas", "deltas has four values for each score", _deltas_shape),
        size_rule("ANCHORS", "anchors", "anchors has dimensions [num_anchors, 4]", _anchors_shape),
        size_rule("IMAGE_INFO", "image_info", "image_info has dimensions [batches, 2]",
                  lambda c: (c["scores"].shape[0], 2)),
        box_scale_rule("ANCHOR_SCALE", "anchors", types=(Q8,)),
        box_scale_rule("IMAGE_SCALE", "image_info", types=(Q8,)),
    ),
    infer=_infer,
    kernel=_kernel,
    judging=Judging(
        _bound,
        f"rois: {half_units(MOVE_TERMS, CORNER)}; other results exact: values are only moved",
        grouped_by="batches",
        moves={"scores_out": "scores"},
    ),
    draw=_draw,
    quantization=_quantization,
    examples=(
        # At the first place the second anchor is best; it shares 12 of 20 with the first, which goes. At the second,
        # columns 6 to 10 move by 1 and are cut: 7 to 9; the other anchor lies on 7 to 11, cut to 7 to 9 as well.
        Example(
            "float32",
            _example(0, 1.0),
            {"scores_out": [0.75, 0.25], "rois": [[1.0, 0.0, 5.0, 4.0], [7.0, 0.0, 9.0, 4.0]], "batches": [0, 0]},
        ),
        Example("float32", _example(0, 3.0),
                {"scores_out": [0.75], "rois": [[1.0, 0.0, 5.0, 4.0]], "batches": [0]}),
        Example("float32", _example(2, 1.0),
                {"scores_out": [0.75], "rois": [[1.0, 0.0, 5.0, 4.0]], "batches": [0]}),
    ),
    second_opinion="plain loops over places, anchors and pairs of boxes",
)  # fmt: skip
