"""Class-wise suppression of boxes, hard or soft: BOX_WITH_NMS_LIMIT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nnhal.operations import TypeRow
from nnhal.types import FL3, FL4, Array, OperandType, OperationType
from opset.call import Call, with_value
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
    ExecutionRule,
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
    Decay,
    Margin,
    above_overlaps,
    box_scale_rule,
    gap,
    hard,
    on_box_grid,
    overlaps,
    put_boxes,
    put_indexes,
    put_new,
    put_scores,
    reals_of,
    size_rule,
    snap,
    suppress,
)
from opset.drawing import Draft
from opset.quantization import FLOATS, QUANTIZED, float32
from opset.values import Values
from opset.windows import execution_rank_rule

Q16 = OperandType.TENSOR_QUANT16_ASYMM
HARD, LINEAR, GAUSSIAN = range(3)
KEPT_APART, FLOATS_APART = 0.008, 0.012  # how far each decision of a drawn call should be from falling the other way
TRIES = 8
CROWD, CROWD_TRIES = 12, 60  # images, and draws of one
TERMS = 8  # roundings behind a decayed score, before its condition


@dataclass(frozen=True)
class Settings:
    """The scalars of a call."""

    score_threshold: float
    most: int
    kernel: int
    iou_threshold: float
    sigma: float
    floor: float

    def decay(self, dtype: type) -> Decay:
        """The factor for the scores of boxes that overlap one that was kept."""
        if self.kernel == HARD:
            return hard(self.iou_threshold)
        if self.kernel == GAUSSIAN:
            sigma = dtype(self.sigma)
            return lambda overlap: (np.exp(-overlap * overlap / sigma), 1 + 8 * overlap * overlap / sigma)
        return self._linear

    def _linear(self, overlap: Array) -> tuple[Array, Array]:
        below = overlap < self.iou_threshold
        factors = np.where(below, 1, 1 - overlap)
        return factors.astype(overlap.dtype), np.where(below, 0, 1 + 4 * overlap / np.maximum(1 - overlap, 1e-6))


@dataclass(frozen=True)
class Kept:
    """A box that is returned."""

    box: int
    kind: int
    score: float
    condition: float


def runs(batches: Array) -> list[Array]:
    """Indexes of the boxes of each image: equal values stand side by side."""
    if not len(batches):
        return []
    return np.split(np.arange(len(batches)), np.flatnonzero(np.diff(batches)) + 1)


def _of_image(scores: Array, boxes: Array, settings: Settings, margin: Margin) -> list[Kept]:
    """What is kept of one image: scores [boxes, classes], boxes [boxes, classes, 4]. By class, then falling score."""
    found: list[Kept] = []
    decay = settings.decay(scores.dtype.type)
    for kind in range(1, scores.shape[1]):
        margin.note(scores[:, kind] - settings.score_threshold, margin.scores)
        able = np.flatnonzero(scores[:, kind] > settings.score_threshold)
        shared = overlaps(boxes[able, kind])
        if settings.kernel != GAUSSIAN:
            margin.note((shared - settings.iou_threshold)[~np.eye(len(able), dtype=bool)], margin.overlap)
        picks = suppress(scores[able, kind], shared, decay, settings.floor, settings.most, margin)
        found += [Kept(int(able[p.box]), kind, p.score, p.condition) for p in picks]
    if 0 <= settings.most < len(found):
        found.sort(key=lambda kept: -kept.score)
        margin.note(found[settings.most - 1].score - found[settings.most].score, margin.scores)
        found = found[: settings.most]
    return sorted(found, key=lambda kept: (kept.kind, -kept.score))


def _keep(scores: Array, boxes: Array, batches: Array, settings: Settings, margin: Margin) -> list[Kept]:
    """What is kept of all images."""
    boxes = boxes.reshape(*scores.shape, 4)
    found = []
    for run in runs(batches):
        kept = _of_image(scores[run], boxes[run], settings, margin)
        found += [Kept(int(run[k.box]), k.kind, k.score, k.condition) for k in kept]
    return found


def _settings(call: Call) -> Settings:
    return Settings(
        call["score_threshold"].item(),
        call.integer("max_num_detections"),
        call.integer("kernel"),
        call["iou_threshold"].item(),
        call["sigma"].item(),
        call["nms_score_threshold"].item(),
    )


def _kept(v: Values) -> list[Kept]:
    return _keep(v["scores"], v["rois"], v.stored("batches"), _settings(v.call), Margin())


def _kernel(v: Values) -> Mapping[str, Array]:
    kept = _kept(v)
    at, kinds = np.array([k.box for k in kept], int), np.array([k.kind for k in kept], int)
    boxes = v["rois"].reshape(*v.call["scores"].shape, 4)
    return {
        "scores_out": np.array([k.score for k in kept], v.arithmetic.dtype),
        "rois_out": boxes[at, kinds].reshape(-1, 4),
        "classes": kinds,
        "batches_out": v.stored("batches")[at].astype(np.int64),
    }


def _bound(v: Values, results: Mapping[str, Array]) -> Bound:
    """Boxes are moved; so are scores, unless they decay."""
    if "scores_out" not in results or v.integer("kernel") == HARD:
        return EXACT
    kept = _kept(v)
    scores, conditions = np.array([k.score for k in kept]), np.array([k.condition for k in kept])
    return Bound(np.abs(scores) * (1 + conditions) * (conditions > 0), TERMS)


def _infer(call: Call) -> Shapes:
    del call
    return {"scores_out": (0,), "rois_out": (0, 4), "classes": (0,), "batches_out": (0,)}


def _quantization(call: Call) -> Quantization:
    scores = call["scores"]
    if scores.type not in QUANTIZED:
        return {}
    return {"scores_out": (scores.scale, scores.zero_point), **on_box_grid("rois_out")(call)}


# --- draws ------------------------------------------------------------------------------------------------------------


def _boxes(rng: np.random.Generator, images: Array, classes: int) -> Array:
    """Boxes in clusters, so that they overlap: [boxes, classes * 4]."""
    count = len(images)
    clusters = rng.uniform(10, 30, (int(images.max()) + 1, int(rng.integers(1, 3)), 2))
    centres = clusters[images, rng.integers(0, clusters.shape[1], count)] + rng.normal(0, 1.4, (count, 2))
    centres = centres[:, None] + rng.normal(0, 1.0, (count, classes, 2))
    half = rng.uniform(3.5, 6.0, (count, 1, 2)) * rng.uniform(0.8, 1.2, (count, classes, 2))
    return np.concatenate([centres - half, centres + half], axis=-1).clip(0, 60).reshape(count, -1)


def _all_overlaps(boxes: Array, batches: Array) -> Array:
    """Every overlap that may be compared."""
    parts = [np.zeros(1)]
    boxes = boxes.reshape(len(boxes), boxes.shape[1] // 4, 4)
    for run in runs(batches):
        parts += [overlaps(boxes[run, kind]).reshape(-1) for kind in range(1, boxes.shape[1])]
    return np.concatenate(parts)


def _draw_settings(draft: Draft, scores: Array, shared: Array, surely: bool) -> Settings:
    """Scalars for these scores and overlaps; `surely` for the few that are never close calls."""
    kernel = HARD if surely else draft.choose((HARD, LINEAR, GAUSSIAN))
    ladder = np.sort(scores[:, 1:].reshape(-1))
    rung = draft.integer(0, max(0, len(ladder) // 3 - 1))
    threshold = (ladder[rung] + ladder[rung + 1]) / 2
    if draft.chance(20):
        threshold = ladder[0] - 0.05
    floor = ladder[0] / 2 if surely else draft.real(0.02, 0.3)
    if kernel == HARD and not draft.chance(20):
        floor = max(ladder[0] / 2, 0.0002)
    most = -1 if draft.chance(50) else draft.integer(1, 4)
    overlap = gap(shared, 0.05, 0.95, lambda n: draft.integer(0, n - 1))
    if surely:
        threshold, most, overlap = ladder[0] - 0.05, -1, above_overlaps(shared)
    return Settings(threshold, most, kernel, overlap, draft.real(0.3, 1.1), floor)


def _apart(kind: OperandType) -> Margin:
    """How far the decisions of a drawn call should be from falling the other way. Relaxed models may use float16."""
    distance = FLOATS_APART if kind in FLOATS else KEPT_APART
    return Margin(distance, distance)


def _draw_crowd(draft: Draft) -> None:
    """Many images of few boxes: enough scores that decay, none of them in doubt, to show how they are rounded."""
    rng, kind, classes = draft.source.generator(), draft.type("scores"), 3
    low = -128 if kind == Q8S else 0
    scale, zero = float32(draft.real(0.0037, 0.0052)), low + draft.integer(0, 8)
    settings = Settings(0.05, -1, draft.choose((LINEAR, GAUSSIAN)), draft.real(0.1, 0.3), draft.real(0.4, 1.1), 0.02)
    images: list[tuple[Array, Array]] = []
    for _ in range(CROWD_TRIES):
        boxes = snap(_boxes(rng, np.zeros(4, int), classes))
        scores = rng.uniform(0.15, 0.9, (4, classes))
        scores = scores if kind in FLOATS else np.rint(scores / scale) * scale
        margin = _apart(kind)
        _keep(scores, boxes, np.zeros(4, int), settings, margin)
        if margin.wide and len(images) < CROWD:
            images.append((scores, boxes))
    put_new(draft, "scores", np.concatenate([scores for scores, _ in images]), scale, zero)
    put_boxes(draft, "rois", np.concatenate([boxes for _, boxes in images]), rng)
    put_indexes(draft, "batches", np.repeat(np.arange(len(images)), 4))
    _put_settings(draft, settings)


def _draw(draft: Draft) -> None:
    if draft.alone and draft.chance(15):
        _draw_crowd(draft)
    else:
        _draw_few(draft)


def _draw_few(draft: Draft) -> None:
    """A few boxes of one image to three, which crowd a limited number of places."""
    rng = draft.source.generator()
    count, classes = draft.integer(4, 12), draft.choose((2, 2, 3, 4))
    batches = np.sort(rng.integers(0, draft.choose((1, 1, 2, 3)), count))
    rois = put_boxes(draft, "rois", _boxes(rng, batches, classes), rng)
    scores = put_scores(draft, "scores", (count, classes), rng)
    put_indexes(draft, "batches", batches)
    reals, boxes = reals_of(scores), reals_of(rois)
    shared = _all_overlaps(boxes, batches)
    for attempt in range(TRIES):
        settings = _draw_settings(draft, reals, shared, attempt == TRIES - 1)
        margin = _apart(scores.type)
        if _keep(reals, boxes, batches, settings, margin) and margin.wide:
            break
    # Behind other operations, empty results go on to those that take them.
    nothing = draft.scope.reuse > 0 and draft.chance(10)
    _put_settings(draft, replace(settings, score_threshold=2 * float(np.abs(reals).max())) if nothing else settings)


def _put_settings(draft: Draft, settings: Settings) -> None:
    draft.scalar("score_threshold", settings.score_threshold)
    draft.scalar("max_num_detections", settings.most)
    draft.scalar("kernel", settings.kernel)
    draft.scalar("iou_threshold", settings.iou_threshold)
    draft.scalar("sigma", settings.sigma)
    draft.scalar("nms_score_threshold", settings.floor)


# --- definition -------------------------------------------------------------------------------------------------------

SCALARS = ("score_threshold", "iou_threshold", "sigma", "nms_score_threshold")


def _row(kind: OperandType) -> TypeRow:
    box = kind if kind in (F32, F16) else Q16
    types = {"scores": kind, "rois": box, "batches": I32}
    types |= dict.fromkeys(SCALARS, OperandType.FLOAT16 if kind == F16 else OperandType.FLOAT32)
    types |= {"scores_out": kind, "rois_out": box, "classes": I32, "batches_out": I32}
    return TypeRow(ROW_NAMES[kind], FL4 if kind == Q8S else FL3, types)


_SCORES = [[0.0, 0.875, 0.25], [0.0, 0.75, 0.5], [0.0, 0.625, 0.0]]
_BOXES = [[0.0, 0.0, 4.0, 4.0] * 3, [0.0, 2.0, 4.0, 6.0] * 3, [8.0, 8.0, 9.0, 9.0] * 3]
_EXAMPLE = {"scores": _SCORES, "rois": _BOXES, "batches": [0, 0, 1], "score_threshold": 0.375,
            "max_num_detections": -1, "iou_threshold": 0.25, "sigma": 0.5, "nms_score_threshold": 0.125}  # fmt: skip

BOX_WITH_NMS_LIMIT = OperationDef(
    code=OperationType.BOX_WITH_NMS_LIMIT,
    doc="For each image and each class but class 0: of the boxes with a score above score_threshold, the best is kept "
    "again and again, at most max_num_detections, and the scores of the rest are multiplied: hard, by 0 where the "
    "overlap is iou_threshold or more; linear, by 1 - overlap there; gaussian, by exp(-overlap^2 / sigma). What falls "
    "below nms_score_threshold goes. Then the best max_num_detections of an image stay. Within an image, the order is "
    "not specified; here by class, then by falling score. Scores on the threshold are kept by documents and dropped "
    "by public code; with FLOAT16 tensors the scalars are FLOAT16, although documents say FLOAT32; boxes have zero "
    "point 0 with signed scores too, although documents say -128. Draws keep away from ties and thresholds.",
    forms=(form(
        tensor("scores", "[num_rois, num_classes]; class 0 is the background.", 2, 2),
        tensor("rois", "x1, y1, x2, y2 for each class: [num_rois, num_classes * 4].", 2, 2),
        tensor("batches", "Image of each box, equal ones side by side: [num_rois].", 1, 1),
        real_scalar("score_threshold", "Boxes must score more."),
        int32("max_num_detections", "Most boxes an image; negative: no limit."),
        int32("kernel", "0 hard, 1 linear, 2 gaussian."),
        real_scalar("iou_threshold", "Overlap from which on hard and linear suppress."),
        real_scalar("sigma", "Width of the gaussian."),
        real_scalar("nms_score_threshold", "Decayed scores below it go."),
        since=FL3,
    ),),
    results=(
        tensor("scores_out", "Decayed scores, [num_out]; scale of scores.", 1, 1),
        tensor("rois_out", "Boxes of the class, [num_out, 4].", 2, 2),
        tensor("classes", "Classes, [num_out].", 1, 1),
        tensor("batches_out", "Images, [num_out].", 1, 1),
    ),
    rows=tuple(_row(kind) for kind in (F32, F16, Q8, Q8S)),
    rules=(
        execution_rank_rule("RANK_SCORES", "scores", 2),
        size_rule("ROIS", "rois", "rois has dimensions [num_rois, num_classes * 4]",
                  lambda c: (c["scores"].shape[0], 4 * c["scores"].shape[1])),
        size_rule("BATCHES", "batches", "batches has one element a box", lambda c: (c["scores"].shape[0],)),
        box_scale_rule("ROI_SCALE", "rois"),
        ExecutionRule(
            "KERNEL",
            "kernel is 0, 1 or 2",
            lambda call: call.integer("kernel") in (HARD, LINEAR, GAUSSIAN),
            lambda call: with_value(call, "kernel", 3),
        ),
    ),
    infer=_infer,
    kernel=_kernel,
    judging=Judging(
        _bound,
        f"scores that decayed: {half_units(TERMS, 'the score * (1 + what its factors make of errors in overlaps)')}; "
        "all other results exact: values are only moved",
        grouped_by="batches_out",
        moves={"scores_out": "scores", "rois_out": "rois"},
    ),
    draw=_draw,
    quantization=_quantization,
    examples=(
        # The first two boxes share 8 of 24: 1/3. Hard: of class 1 the second goes; class 2 has one box above 0.375.
        Example(
            "float32",
            {**_EXAMPLE, "kernel": HARD},
            {"scores_out": [0.875, 0.5, 0.625],
             "rois_out": [[0.0, 0.0, 4.0, 4.0], [0.0, 2.0, 4.0, 6.0], [8.0, 8.0, 9.0, 9.0]],
             "classes": [1, 2, 1], "batches_out": [0, 0, 1]},
        ),
        # Linear: it stays with 0.75 * 2/3.
        Example(
            "float32",
            {**_EXAMPLE, "kernel": LINEAR},
            {"scores_out": [0.875, 0.5, 0.5, 0.625],
             "rois_out": [[0.0, 0.0, 4.0, 4.0], [0.0, 2.0, 4.0, 6.0], [0.0, 2.0, 4.0, 6.0], [8.0, 8.0, 9.0, 9.0]],
             "classes": [1, 1, 2, 1], "batches_out": [0, 0, 0, 1]},
        ),
        # Gaussian: 0.75 * exp(-2/9), and one box an image.
        Example(
            "float32",
            {**_EXAMPLE, "kernel": GAUSSIAN, "max_num_detections": 1},
            {"scores_out": [0.875, 0.625], "rois_out": [[0.0, 0.0, 4.0, 4.0], [8.0, 8.0, 9.0, 9.0]],
             "classes": [1, 1], "batches_out": [0, 1]},
        ),
        # No score is above the threshold: nothing is left, and the results have no elements.
        Example(
            "float32",
            {**_EXAMPLE, "kernel": HARD, "score_threshold": 0.9375},
            {"scores_out": [], "rois_out": np.zeros((0, 4)), "classes": [], "batches_out": []},
        ),
    ),
    second_opinion="plain loops over boxes with rational overlaps and an order by sorting",
)  # fmt: skip
