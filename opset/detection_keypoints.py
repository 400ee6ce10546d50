"""The brightest points of heatmaps, finer than their elements: HEATMAP_MAX_KEYPOINT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nnhal.operations import TypeRow
from nnhal.types import FL3, FL4, Array, OperandType, OperationType
from opset.call import Call, with_shape
from opset.definition import (
    F16,
    F32,
    Q8,
    Q8S,
    ROW_NAMES,
    Bound,
    Example,
    ExecutionRule,
    Judging,
    LeftOpen,
    OperationDef,
    Shapes,
    form,
    half_units,
    tensor,
)
from opset.detection_boxes import box_scale_rule, on_box_grid, ordered_boxes_rule, put_boxes, put_new, size_rule
from opset.drawing import Draft
from opset.quantization import MANTISSA_BITS, float32
from opset.values import Values
from opset.windows import MANDATORY_LAYOUT, channels_last, execution_rank_rule, image_size, in_layout, is_nchw

Q16 = OperandType.TENSOR_QUANT16_ASYMM
LONGEST_STEP = 1.5  # of a refined position along either axis, in elements
SINGULAR = {F16: 1e-3}  # determinants below this, absolutely and of A00 * A11, mean no step
SINGULAR_ELSE = 1e-5
TERMS = 8
CLOSE = 1.5  # times the error of a determinant: closer to singular, the step is left open


@dataclass(frozen=True)
class Peaks:
    """Refined maxima of heatmaps, [boxes, keypoints, ...].

    Attributes:
        places: row and column of the first maximum.
        steps: x and y of the refinement.
        scores: refined value.
        step_error: of the steps, in units of the type's rounding.
        score_error: of the scores, likewise.
        unsure: rounding may decide whether there is a step at all.
    """

    places: Array
    steps: Array
    scores: Array
    step_error: Array
    score_error: Array
    unsure: Array


def _neighbourhoods(maps: Array) -> tuple[Array, Array]:
    """Place of the first maximum of [..., size, size], and the 3 x 3 around it; beyond an edge the map is mirrored."""
    size = maps.shape[-1]
    flat = maps.reshape(*maps.shape[:-2], -1).argmax(axis=-1)
    places = np.stack([flat // size, flat % size], axis=-1)
    around = places[..., None] + np.arange(-1, 2)
    around = np.where(around < 0, 1, np.where(around >= size, size - 2, around))
    lead = tuple(index[..., None, None] for index in np.ogrid[tuple(slice(n) for n in maps.shape[:-2])])
    near = (around[..., 0, :, None], around[..., 1, None, :])
    return places, maps[lead + near]


def _refine(v: Values) -> Peaks:
    """A Newton step from first and second differences around each maximum."""
    kind = v.call["heatmap"].type
    maps = channels_last(v["heatmap"], is_nchw(v.call)).transpose(0, 3, 1, 2)
    dtype = maps.dtype.type
    places, near = _neighbourhoods(maps)
    middle = near[..., 1, 1]
    slope = np.stack([near[..., 1, 2] - near[..., 1, 0], near[..., 2, 1] - near[..., 0, 1]], axis=-1) / dtype(2)
    bend_x = near[..., 1, 0] - 2 * middle + near[..., 1, 2]
    bend_y = near[..., 0, 1] - 2 * middle + near[..., 2, 1]
    twist = (near[..., 2, 2] - near[..., 2, 0] - near[..., 0, 2] + near[..., 0, 0]) / dtype(4)
    straight = bend_x * bend_y
    determinant = straight - twist * twist
    least = SINGULAR.get(kind, SINGULAR_ELSE)
    singular = np.abs(determinant) < dtype(least) + dtype(least) * straight
    divisor = np.where(singular, 1, determinant)
    whole = np.stack(
        [
            -(bend_y * slope[..., 0] - twist * slope[..., 1]) / divisor,
            -(bend_x * slope[..., 1] - twist * slope[..., 0]) / divisor,
        ],
        axis=-1,
    )
    longest = np.abs(whole).max(axis=-1)
    shrink = np.where(longest > LONGEST_STEP, dtype(LONGEST_STEP) / np.where(longest > 0, longest, 1), 1)
    steps = np.where(singular[..., None], 0, whole * shrink[..., None]).astype(maps.dtype)
    x, y = steps[..., 0], steps[..., 1]
    linear = slope[..., 0] * x + slope[..., 1] * y
    square = (bend_x * x * x + 2 * twist * x * y + bend_y * y * y) / dtype(2)
    # How rounding grows: each difference is off by a few units of the largest value around.
    unit = np.abs(near).max(axis=(-1, -2)) * 4
    adjoint = np.abs(bend_x) + np.abs(bend_y) + 2 * np.abs(twist)
    determinant_error = unit * adjoint + np.abs(straight) + twist * twist
    length = np.abs(whole).max(axis=-1)
    error = (unit * adjoint * (1 + length) + adjoint * np.abs(slope).max(axis=-1)) / np.abs(divisor)
    error = np.where(singular, 0, (error + length * (1 + determinant_error / np.abs(divisor))) * shrink)
    gradient = np.abs(slope + np.stack([bend_x * x + twist * y, twist * x + bend_y * y], axis=-1)).sum(axis=-1)
    reach = np.abs(steps).max(axis=-1)
    terms = np.abs(middle) + np.abs(linear) + np.abs(square)
    score_error = terms + unit * (2 * reach + 2 * reach * reach) + gradient * error
    rounding = 2.0 ** -(1 + (10 if kind in MANTISSA_BITS else 23))  # relaxed models may compute in float16
    doubt = np.maximum(CLOSE * rounding * determinant_error, 3 * least * (1 + np.abs(straight)))
    unsure = (np.abs(determinant) < doubt) & (determinant != 0)
    return Peaks(places, steps, middle + linear + square, error, score_error, unsure)


def _keypoints(v: Values, peaks: Peaks) -> tuple[Array, Array]:
    """Positions x, y in the image, and what is summed for each."""
    boxes, size = v["boxes"], v.call["heatmap"].shape[2]
    low, extent = boxes[:, None, :2], boxes[:, None, 2:] - boxes[:, None, :2]
    dtype = boxes.dtype.type
    inner = peaks.places[..., ::-1].astype(boxes.dtype) + peaks.steps + dtype(0.5)
    summed = np.abs(low) + (np.abs(inner) + 1 + peaks.step_error[..., None]) * np.abs(extent) / size
    return inner / dtype(size) * extent + low, summed


def _kernel(v: Values) -> Mapping[str, Array]:
    peaks = _refine(v)
    return {"scores": peaks.scores, "keypoints": _keypoints(v, peaks)[0]}


def _bound(v: Values, results: Mapping[str, Array]) -> Bound:
    peaks = _refine(v)
    return Bound(peaks.score_error if "scores" in results else _keypoints(v, peaks)[1], TERMS)


def _open(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    unsure = _refine(v).unsure
    maps = channels_last(v.stored("heatmap"), is_nchw(v.call)).transpose(0, 3, 1, 2)
    tied = (maps == maps.max(axis=(2, 3), keepdims=True)).sum(axis=(2, 3)) > 1
    both = unsure | tied
    return {"scores": both, "keypoints": np.broadcast_to(both[..., None], results["keypoints"].shape)}


def _infer(call: Call) -> Shapes:
    boxes, _, _, points = image_size(call["heatmap"].shape, is_nchw(call))
    return {"scores": (boxes, points), "keypoints": (boxes, points, 2)}


# --- rules ------------------------------------------------------------------------------------------------------------


def _square(call: Call) -> bool:
    _, height, width, _ = image_size(call["heatmap"].shape, is_nchw(call))
    return height == width >= 2


def _oblong(call: Call) -> Call:
    shape = list(call["heatmap"].shape)
    shape[2] += 1  # a size in either layout
    return with_shape(call, "heatmap", tuple(shape))


# --- draws ------------------------------------------------------------------------------------------------------------

PLAIN, RIDGE, FLAT = range(3)


def _peak(rng: np.random.Generator, kind: int) -> Array:
    """Values around a maximum of 1: a plain peak, a slanting ridge with a long step, or a determinant of exactly 0."""
    near = 1 - rng.uniform(0.25, 1.2, (3, 3))
    if kind == RIDGE:
        side, slant = rng.uniform(0.2, 0.4), 1 if rng.random() < 0.5 else -1
        lower = rng.uniform(0.9, 1.5)
        near[[0, 1, 1, 2], [1, 0, 2, 1]] = 1 - side * rng.uniform(0.5, 1.5, 4)
        near[[0, 2], [0, 2]], near[[0, 2], [2, 0]] = 1 - 0.1, 1 - lower
        near = near[:, ::slant]
    elif kind == FLAT:
        near[:] = 0.875
        near[[0, 2], [2, 0]] = 0.375
    near[1, 1] = 1
    return near


def _heatmap(rng: np.random.Generator, size: int, kind: int) -> Array:
    """A map with one clear maximum, anywhere; what is around it lies below it."""
    noise = rng.uniform(-1, 0.6, (size, size))
    inner = kind != PLAIN and size >= 3
    row, column = (int(rng.integers(1, size - 1)) if inner else int(rng.integers(0, size)) for _ in range(2))
    near = _peak(rng, kind if inner else PLAIN)
    for r in range(3):
        for c in range(3):
            if 0 <= row + r - 1 < size and 0 <= column + c - 1 < size:
                noise[row + r - 1, column + c - 1] = near[r, c]
    return noise


def _draw(draft: Draft) -> None:
    nchw = draft.chance(40)
    draft.scalar("nchw", nchw)
    boxes, points, size = draft.choose((1, 2, 3, 4, 9)), draft.choose((1, 2, 3, 4, 6)), draft.integer(2, 7)
    rng = draft.source.generator()
    maps = np.stack([_heatmap(rng, size, int(rng.choice(3, p=(0.6, 0.25, 0.15)))) for _ in range(boxes * points)])
    maps = maps.reshape(boxes, points, size, size).transpose(0, 2, 3, 1)
    kind = draft.type("heatmap")
    low = -128 if kind == Q8S else 0
    # Exact halves stay exact: the scale of quantised maps is a power of two at times.
    scale = 2.0**-6 if draft.chance(40) else float32(draft.real(0.0112, 0.016))
    factor = 1.0 if kind in MANTISSA_BITS or scale == 2.0**-6 else draft.real(0.8, 1.2)
    put_new(draft, "heatmap", in_layout(maps * factor, nchw), scale, low + draft.integer(110, 140))
    ends = np.sort(rng.random((2, boxes, 2)), axis=0) * 40
    corners = np.concatenate([ends[0], ends[1] + rng.uniform(1, 30, (boxes, 2))], axis=1)
    put_boxes(draft, "boxes", corners)


def _row(kind: OperandType) -> TypeRow:
    box = kind if kind in (F32, F16) else Q16
    types = {"heatmap": kind, "boxes": box, "scores": kind, "keypoints": box}
    return TypeRow(ROW_NAMES[kind], FL4 if kind == Q8S else FL3, types)


HEATMAP_MAX_KEYPOINT = OperationDef(
    code=OperationType.HEATMAP_MAX_KEYPOINT,
    doc="The first maximum D of each heatmap, refined by a Newton step: with b the negated slope and A the second "
    "differences in the 3 x 3 around it (mirrored beyond an edge), step = A^-1 b, scaled back so that its larger "
    "component is at most 1.5, and none where |det A| < e + e * A00 * A11, e = 1e-5 (1e-3 for float16). Score = D - "
    "b.step + step.A.step / 2; keypoint = (index + step + 0.5) / size * box size + box corner. Boxes are "
    "QUANT16_ASYMM with zero point 0 for signed heatmaps too, although documents say -128. Left open: maps with "
    "several equal maxima, and steps that hang on rounding the determinant.",
    forms=(form(
        tensor("heatmap", "[num_boxes, size, size, num_keypoints], or with the keypoints second; size is 2 or more.",
               4, 4),
        tensor("boxes", "[num_boxes, 4]: x1, y1, x2, y2.", 2, 2),
        MANDATORY_LAYOUT,
        since=FL3,
    ),),
    results=(
        tensor("scores", "[num_boxes, num_keypoints]; scale and zero point are free.", 2, 2),
        tensor("keypoints", "x and y in the image, [num_boxes, num_keypoints, 2].", 3, 3),
    ),
    rows=tuple(_row(kind) for kind in (F32, F16, Q8, Q8S)),
    rules=(
        execution_rank_rule("RANK_HEATMAP", "heatmap", 4),
        ExecutionRule("SQUARE", "heatmaps are square and have 2 rows or more", _square, _oblong),
        size_rule("BOXES", "boxes", "boxes has dimensions [num_boxes, 4]", lambda c: (c["heatmap"].shape[0], 4)),
        box_scale_rule("BOX_SCALE", "boxes"),
        ordered_boxes_rule("boxes"),
    ),
    infer=_infer,
    kernel=_kernel,
    judging=Judging(
        _bound,
        half_units(
            TERMS,
            "what is summed for a score or a position, and of what the Newton step makes of errors in its differences",
        ),
        LeftOpen(
            "keypoints for which rounding may decide whether there is a step, or where the maximum is one of several",
            _open,
        ),
    ),
    draw=_draw,
    quantization=on_box_grid("keypoints"),
    examples=(
        # Slopes 0.5 and 0, second differences -3 and -4, no twist: step (1/6, 0), score 4 + 1/12 - 1/24; the point is
        # (1 + 1/6 + 0.5) / 3 and 0.5 of a box of 6 by 2 at (1, 2).
        Example(
            "float32",
            {"heatmap": [[[[0.0], [2.0], [0.0]], [[2.0], [4.0], [3.0]], [[0.0], [2.0], [0.0]]]],
             "boxes": [[1.0, 2.0, 7.0, 4.0]], "nchw": 0},
            {"scores": [[4 + 1 / 24]], "keypoints": [[[13 / 3, 3.0]]]},
        ),
        # The maximum in a corner: mirrored, so without slope; it stays in the middle of its element.
        Example(
            "quant8_asymm",
            {"heatmap": [[[[1, 3], [4, 9]]]], "boxes": [[8, 8, 40, 24]], "nchw": 1},
            {"scores": [[19]], "keypoints": [[[32, 20]]]},
            {"heatmap": (0.5, 0), "boxes": (0.125, 0), "scores": (0.25, 1), "keypoints": (0.125, 0)},
        ),
    ),
    second_opinion="plain loops over maps with rational numbers and Cramer's rule",
)  # fmt: skip
