"""Detections from scores and anchors, in a fixed number of slots: DETECTION_POSTPROCESSING."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nnhal.operations import TypeRow
from nnhal.types import FL3, Array, OperandType, OperationType
from opset.call import Call, with_value
from opset.definition import (
    EXACT,
    F16,
    F32,
    I32,
    ROW_NAMES,
    Bound,
    Example,
    ExecutionRule,
    Judging,
    OperationDef,
    Shapes,
    boolean,
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
    draw_margin,
    gap,
    overlaps,
    put_new,
    put_scores,
    reals_of,
    size_rule,
    suppress_hard,
)
from opset.drawing import Draft
from opset.values import Values
from opset.windows import execution_rank_rule

SCALES = ("scale_y", "scale_x", "scale_h", "scale_w")
TRIES = 6


@dataclass(frozen=True)
class Settings:
    """The scalars of a call that choose among detections."""

    regular: bool
    slots: int
    classes: int
    each: int
    score_threshold: float
    iou_threshold: float


@dataclass(frozen=True)
class Detection:
    """An anchor and a class."""

    anchor: int
    kind: int


def _settings(call: Call) -> Settings:
    return Settings(
        bool(call["use_regular_nms"].item()),
        call.integer("max_num_detections"),
        call.integer("max_classes_per_detection"),
        call.integer("max_detections_per_class"),
        call["score_threshold"].item(),
        call["iou_threshold"].item(),
    )


def _decoded(deltas: Array, anchors: Array, scales: Array) -> tuple[Array, Array]:
    """Corners y1, x1, y2, x2 of [..., anchors] boxes, and what is summed for each."""
    shares = deltas[..., :4] / scales
    centre, size = anchors[:, :2], anchors[:, 2:]
    shift = shares[..., :2] * size
    half = np.exp(shares[..., 2:]) * size / 2
    corners = np.concatenate([centre + shift - half, centre + shift + half], axis=-1)
    summed = np.abs(centre) + np.abs(shift) + half * (1 + np.abs(shares[..., 2:]))
    return corners, np.concatenate([summed, summed], axis=-1)


def _regular(scores: Array, shared: Array, settings: Settings, margin: Margin) -> list[Detection]:
    """Suppression in each class, then the best of all classes."""
    found: list[Detection] = []
    for kind in range(1, scores.shape[1]):
        able = np.flatnonzero(scores[:, kind] > settings.score_threshold)
        pairs = shared[np.ix_(able, able)]
        kept = suppress_hard(scores[able, kind], pairs, settings.iou_threshold, settings.each, margin)
        found += [Detection(int(able[i]), kind) for i in kept]
    found.sort(key=lambda d: -scores[d.anchor, d.kind])
    return found[: settings.slots]


def _fast(scores: Array, shared: Array, settings: Settings, margin: Margin) -> list[Detection]:
    """Suppression of anchors by their best class; each that is kept stands for its best classes."""
    best = scores[:, 1:].max(axis=1)
    able = np.flatnonzero(best > settings.score_threshold)
    pairs = shared[np.ix_(able, able)]
    kept = suppress_hard(best[able], pairs, settings.iou_threshold, settings.slots, margin)
    found = []
    for anchor in able[kept]:
        kinds = 1 + np.argsort(-scores[anchor, 1:], kind="stable")[: settings.classes]
        found += [Detection(int(anchor), int(kind)) for kind in kinds]
    return found


def _chosen(scores: Array, corners: Array, settings: Settings, margin: Margin) -> list[Detection]:
    """Detections of one image, by falling score of their anchors."""
    ladder = np.sort(scores[:, 1:].reshape(-1))
    margin.note(np.diff(ladder), margin.scores)
    margin.note(ladder - settings.score_threshold, margin.scores)
    choose = _regular if settings.regular else _fast
    return choose(scores, overlaps(corners), settings, margin)


def _width(call: Call) -> int:
    settings = _settings(call)
    return settings.slots if settings.regular else settings.slots * settings.classes


def _infer(call: Call) -> Shapes:
    batch, width = call["scores"].shape[0], _width(call)
    return {
        "scores_out": (batch, width),
        "boxes": (batch, width, 4),
        "classes": (batch, width),
        "num_detections": (batch,),
    }


def _scales(v: Values) -> Array:
    return np.array([v.call[name].item() for name in SCALES], v.arithmetic.dtype)


def _slots(v: Values) -> tuple[dict[str, Array], Array]:
    """Results with unused slots 0, and what is summed for the boxes."""
    scores, settings = v["scores"], _settings(v.call)
    corners, summed = _decoded(v["deltas"], v["anchors"], _scales(v))
    dtype = scores.dtype
    results = {
        name: np.zeros(shape, dtype if name in ("scores_out", "boxes") else np.int64)
        for name, shape in _infer(v.call).items()
    }
    magnitude = np.zeros(results["boxes"].shape)
    first = 0 if v.flag("include_background") else 1
    for image in range(len(scores)):
        found = _chosen(scores[image], corners[image], settings, Margin())
        results["num_detections"][image] = len(found)
        for slot, detection in enumerate(found):
            results["scores_out"][image, slot] = scores[image, detection.anchor, detection.kind]
            results["boxes"][image, slot] = corners[image, detection.anchor]
            magnitude[image, slot] = summed[image, detection.anchor]
            results["classes"][image, slot] = detection.kind - first
    return results, magnitude


def _kernel(v: Values) -> Mapping[str, Array]:
    return _slots(v)[0]


def _bound(v: Values, results: Mapping[str, Array]) -> Bound:
    return Bound(_slots(v)[1], MOVE_TERMS) if "boxes" in results else EXACT


# --- rules ------------------------------------------------------------------------------------------------------------


def _positive(label: str, name: str, applies: str = "") -> ExecutionRule:
    """A count is positive, in the mode that uses it."""

    def used(call: Call) -> bool:
        regular = bool(call["use_regular_nms"].item())
        return not applies or regular == (applies == "regular")

    words = f" in {applies} mode" if applies else ""
    return ExecutionRule(
        label,
        f"{name} is positive{words}",
        lambda call: not used(call) or call.integer(name) > 0,
        lambda call: with_value(call, name, 0) if used(call) else None,
    )


def _scales_positive(call: Call) -> bool:
    return all(call[name].item() > 0 for name in SCALES)


# --- draws ------------------------------------------------------------------------------------------------------------


def _draw_settings(draft: Draft, scores: Array, shared: Array, surely: bool) -> Settings:
    ladder = np.sort(scores[..., 1:].reshape(-1))
    rung = draft.integer(1, max(1, 2 * len(ladder) // 3))
    threshold = 0.0 if draft.chance(40) else float(ladder[rung - 1] + ladder[rung]) / 2
    iou = gap(shared, 0.1, 0.9, lambda n: draft.integer(0, n - 1))
    if surely:
        threshold, iou = 0.0, above_overlaps(shared)
    # More than one class a detection: documents and public code disagree about the width of the results.
    return Settings(draft.chance(50), draft.integer(1, 10), 1, draft.integer(1, 5), threshold, iou)


def _draw(draft: Draft) -> None:
    rng = draft.source.generator()
    batch, count, classes = draft.choose((1, 1, 2, 3)), draft.integer(2, 8), draft.integer(2, 4)
    drawn = put_scores(draft, "scores", (batch, count, classes), rng)
    spare = draft.choose((0, 0, 1, 3))
    scales = [draft.choose((5.0, 10.0)) if draft.chance(30) else draft.real(2.0, 12.0) for _ in SCALES]
    reach = np.concatenate([np.array(scales) * (0.4, 0.4, 0.7, 0.7), np.full(spare, 3.0)])
    deltas = put_new(draft, "deltas", rng.uniform(-1, 1, (batch, count, 4 + spare)) * reach)
    # Clusters, so that boxes overlap; heights and widths differ.
    centres = rng.uniform(1, 7, (2, 2))[rng.integers(0, 2, count)] + rng.normal(0, 0.4, (count, 2))
    anchors = put_new(draft, "anchors", np.concatenate([centres, rng.uniform(1.0, 2.5, (count, 2))], axis=1))
    for name, scale in zip(SCALES, scales, strict=True):
        draft.scalar(name, scale)
    reals = reals_of(drawn)
    corners, _ = _decoded(reals_of(deltas), reals_of(anchors), np.array([draft[n].item() for n in SCALES]))
    shared = np.concatenate([overlaps(boxes).reshape(-1) for boxes in corners])
    for attempt in range(TRIES):
        settings = _draw_settings(draft, reals, shared, attempt == TRIES - 1)
        margin = draw_margin(drawn.type)
        for scores, boxes in zip(reals, corners, strict=True):
            _chosen(scores, boxes, settings, margin)
        if margin.wide:
            break
    draft.scalar("use_regular_nms", settings.regular)
    draft.scalar("max_num_detections", settings.slots)
    draft.scalar("max_classes_per_detection", settings.classes)
    draft.scalar("max_detections_per_class", settings.each)
    draft.scalar("score_threshold", settings.score_threshold)
    draft.scalar("iou_threshold", settings.iou_threshold)
    draft.scalar("include_background", draft.chance(50))


# --- definition -------------------------------------------------------------------------------------------------------


def _row(kind: OperandType) -> TypeRow:
    types = dict.fromkeys(("scores", "deltas", "anchors", "scores_out", "boxes"), kind)
    real = OperandType.FLOAT16 if kind == F16 else OperandType.FLOAT32
    types |= dict.fromkeys((*SCALES, "score_threshold", "iou_threshold"), real)
    return TypeRow(ROW_NAMES[kind], FL3, {**types, "classes": I32, "num_detections": I32})


_EXAMPLE = {
    # The second anchor is moved by 10 / 10 of its height onto the third; the fourth is twice as high.
    "scores": [[[0.0, 0.5, 0.25], [0.0, 0.75, 0.625], [0.0, 0.375, 0.875], [0.0, 0.125, 0.0]]],
    "deltas": [[[0.0, 0.0, 0.0, 0.0], [10.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5 * np.log(2.0), 0.0]]],
    "anchors": [[1.0, 1.0, 2.0, 2.0], [1.0, 5.0, 2.0, 2.0], [3.0, 5.0, 2.0, 2.0], [9.0, 9.0, 2.0, 2.0]],
    "scale_y": 10.0,
    "scale_x": 10.0,
    "scale_h": 5.0,
    "scale_w": 5.0,
}
_THIRD, _FIRST, _FOURTH = [2.0, 4.0, 4.0, 6.0], [0.0, 0.0, 2.0, 2.0], [7.0, 8.0, 11.0, 10.0]

DETECTION_POSTPROCESSING = OperationDef(
    code=OperationType.DETECTION_POSTPROCESSING,
    doc="Boxes are decoded: centre = anchor centre + anchor size * (dy / scale_y, dx / scale_x), size = anchor size * "
    "e^(dh / scale_h, dw / scale_w). Regular: for each class but class 0, of the anchors scoring above "
    "score_threshold, the best is kept again and again, at most max_detections_per_class, and what overlaps it by "
    "iou_threshold or more goes; then the best max_num_detections of all classes, by falling score. Fast: the same "
    "once, with the best score of each anchor, at most max_num_detections, each with its best classes. Unused slots "
    "are 0. In fast mode documents give max_num_detections slots and public code max_classes_per_detection times as "
    "many: only 1 is drawn. With FLOAT16 tensors the scalars are FLOAT16, although documents say FLOAT32. Draws keep "
    "away from ties and thresholds.",
    forms=(form(
        tensor("scores", "[batches, num_anchors, num_classes]; class 0 is the background.", 3, 3),
        tensor("deltas", "dy, dx, dh, dw, then ignored values: [batches, num_anchors, 4 or more].", 3, 3),
        tensor("anchors", "Centre y, centre x, height, width: [num_anchors, 4].", 2, 2),
        real_scalar("scale_y", "Divisor of dy."),
        real_scalar("scale_x", "Divisor of dx."),
        real_scalar("scale_h", "Divisor of dh."),
        real_scalar("scale_w", "Divisor of dw."),
        boolean("use_regular_nms", "True: suppression in each class; false: once for all, faster."),
        int32("max_num_detections", "Slots of an image."),
        int32("max_classes_per_detection", "Classes of an anchor, in fast mode."),
        int32("max_detections_per_class", "Most of a class, in regular mode."),
        real_scalar("score_threshold", "Scores must be above it."),
        real_scalar("iou_threshold", "Overlap from which on a box goes."),
        boolean("include_background", "True: labels start at 1; false: at 0."),
        since=FL3,
    ),),
    results=(
        tensor("scores_out", "[batches, slots].", 2, 2),
        tensor("boxes", "y1, x1, y2, x2: [batches, slots, 4].", 3, 3),
        tensor("classes", "Labels, [batches, slots].", 2, 2),
        tensor("num_detections", "Slots in use, [batches].", 1, 1),
    ),
    rows=(_row(F32), _row(F16)),
    rules=(
        execution_rank_rule("RANK_SCORES", "scores", 3),
        execution_rank_rule("RANK_DELTAS", "deltas", 3),
        size_rule("DELTAS", "deltas", "deltas has dimensions [batches, num_anchors, length]",
                  lambda c: (c["scores"].shape[0], c["scores"].shape[1], None)),
        size_rule("ANCHORS", "anchors", "anchors has dimensions [num_anchors, 4]", lambda c: (c["scores"].shape[1], 4)),
        ExecutionRule(
            "SCALES",
            "scale_y, scale_x, scale_h and scale_w are positive",
            _scales_positive,
            lambda call: with_value(call, "scale_y", 0.0),
        ),
        _positive("SLOTS", "max_num_detections"),
        _positive("CLASSES", "max_classes_per_detection", "fast"),
        _positive("EACH", "max_detections_per_class", "regular"),
        ExecutionRule(
            "SCORE_THRESHOLD",
            "score_threshold is not negative",
            lambda call: call["score_threshold"].item() >= 0,
            lambda call: with_value(call, "score_threshold", -0.5),
        ),
        ExecutionRule(
            "IOU_THRESHOLD",
            "iou_threshold is not negative",
            lambda call: call["iou_threshold"].item() >= 0,
            lambda call: with_value(call, "iou_threshold", -0.5),
        ),
    ),
    infer=_infer,
    kernel=_kernel,
    judging=Judging(_bound, f"boxes: {half_units(MOVE_TERMS, CORNER)}; other results exact: values are only moved"),
    draw=_draw,
    examples=(
        # Class 1: anchors 2 and 1 (2 and 3 coincide); class 2: 3 and 1. The best three of these four.
        Example(
            "float32",
            {**_EXAMPLE, "use_regular_nms": 1, "max_num_detections": 3, "max_classes_per_detection": 1,
             "max_detections_per_class": 2, "score_threshold": 0.125, "iou_threshold": 0.5, "include_background": 0},
            {"scores_out": [[0.875, 0.75, 0.5]], "boxes": [[_THIRD, _THIRD, _FIRST]], "classes": [[1, 0, 0]],
             "num_detections": [3]},
        ),
        # Best classes 0.5, 0.75, 0.875, 0.125: the third, not the second, the first, the fourth; one slot is left.
        Example(
            "float32",
            {**_EXAMPLE, "use_regular_nms": 0, "max_num_detections": 4, "max_classes_per_detection": 1,
             "max_detections_per_class": 1, "score_threshold": 0.0, "iou_threshold": 0.5, "include_background": 1},
            {"scores_out": [[0.875, 0.5, 0.125, 0.0]], "boxes": [[_THIRD, _FIRST, _FOURTH, [0.0] * 4]],
             "classes": [[2, 1, 1, 0]], "num_detections": [3]},
        ),
    ),
    second_opinion="plain loops over anchors, classes and pairs of boxes",
)  # fmt: skip
