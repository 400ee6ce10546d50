"""Faults that a driver may have in the detection of objects, one at a time: the suite notices each in most draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest

from harness.expectations import Returns
from harness.judge import judge_execution
from harness.make import expected_outputs, row_groups
from harness.outcome import StepOutcome
from nnhal.types import Array, ErrorStatus, OperandType, OperationType, info
from opset import (
    OPSET,
    detection_align,
    detection_boxes,
    detection_keypoints,
    detection_moves,
    detection_outcome,
    detection_pooling,
    detection_proposals,
    detection_suppression,
)
from opset.call import Call, scalar
from opset.evaluate import run_call
from opset.quantization import QUANTIZED, limits
from tests.judging import draws

Answer = Mapping[str, Array]
Wrong = Callable[[Call], Answer]
DRAWS = 30  # of each signature


@dataclass(frozen=True)
class Fault:
    """One thing done wrong.

    Attributes:
        share: of the draws in which results change at all, those that must notice.
    """

    operation: str
    text: str
    wrong: Wrong
    share: float = 0.9

    @property
    def id(self) -> str:
        return f"{self.operation}: {self.text}"


def answer(call: Call) -> Answer:
    return {name: result.stored for name, result in run_call(call).items()}


def noticed(call: Call, got: Answer) -> bool:
    """Whether the judge objects; rows may come in any order where the specification says so."""
    expect = Returns(expected_outputs(call), row_groups(call))
    outputs = tuple(got.values())
    done = StepOutcome(2, ErrorStatus.NONE, outputs=outputs, shapes=tuple(x.shape for x in outputs))
    return judge_execution(expect, done).verdict.value != "PASS"


# --- ways to be wrong -------------------------------------------------------------------------------------------------


def fixed(**values: float | bool) -> Wrong:
    """Scalars are taken for others."""

    def wrong(call: Call) -> Answer:
        for name, value in values.items():
            call = call.with_input(name, scalar(call[name].type, value))
        return answer(call)

    return wrong


def swapped(first: str, second: str) -> Wrong:
    """Two scalars are taken for each other."""
    return lambda call: answer(call.with_input(first, call[second]).with_input(second, call[first]))


def given(name: str, change: Callable[[Call, Array], Array]) -> Wrong:
    """A tensor is read wrongly."""

    def wrong(call: Call) -> Answer:
        value = np.ascontiguousarray(change(call, call[name].value))
        return answer(call.with_input(name, replace(call[name], value=value, shape=value.shape)))

    return wrong


def patched(module: ModuleType, name: str, change: Callable[[Any], Any]) -> Wrong:
    """A function of a kernel is another one."""

    def wrong(call: Call) -> Answer:
        with mock.patch.object(module, name, change(getattr(module, name))):
            return answer(call)

    return wrong


def changed(change: Callable[[Call, Answer], Answer]) -> Wrong:
    """Right results are changed once more."""
    return lambda call: change(call, answer(call))


def truncated(*names: str) -> Wrong:
    """Quantised results are floored."""

    def wrong(call: Call) -> Answer:
        got = dict(answer(call))
        for name in names:
            kind = call.results[name].type
            if kind in QUANTIZED:
                got[name] = np.floor(run_call(call)[name].exact + 1e-9).astype(info(kind).dtype)
        return got

    return wrong


def permuted(order: tuple[int, ...]) -> Callable[[Call, Array], Array]:
    """The four values of each box or delta in another order."""
    return lambda call, value: value.reshape(*value.shape[:-1], -1, 4)[..., order].reshape(value.shape)


def first_image(call: Call, value: Array) -> Array:
    """Every region on the first image."""
    return np.zeros_like(value)


def reread(call: Call, value: Array) -> Array:
    """Data with the channels first read as if they came last."""
    if not call["nchw"].item():
        return value
    batch, depth, height, width = value.shape
    return value.reshape(batch, height, width, depth).transpose(0, 3, 1, 2)


def as_drawn(**changes: Callable[[Call], float]) -> Wrong:
    """Scalars are taken for others that depend on the call."""
    return lambda call: fixed(**{name: change(call) for name, change in changes.items()})(call)


# --- functions of kernels, wrong --------------------------------------------------------------------------------------


def no_least_size(right: Any) -> Any:
    """Regions may be smaller than an element."""

    def samples(start: float, end: float, out: int, ratio: int, length: int, dtype: type) -> Any:
        found = right(start, end, out, ratio, length, dtype)
        if end - start >= 1:
            return found
        count = ratio or 1
        size = (end - start) / out
        places = start + size * (np.arange(out)[:, None] + (np.arange(count) + 0.5) / count)
        cell = np.minimum(np.floor(places).astype(int), length - 1)
        return replace(found, cell=cell, share=np.where(cell >= length - 1, 0, places - cell))

    return samples


def sampled_at_edges(right: Any) -> Any:
    """Sample k at k / samples of a bin."""

    def samples(start: float, end: float, out: int, ratio: int, length: int, dtype: type) -> Any:
        found = right(start, end, out, ratio, length, dtype)
        back = found.bin / found.cell.shape[1] / 2
        return right(max(start - back, 0), max(end - back, 0), out, found.cell.shape[1], length, dtype)

    return samples


def cells_alone(right: Any) -> Any:
    """Nearest lower element in place of bilinear samples."""
    return lambda *a: (lambda found: replace(found, share=np.zeros_like(found.share)))(right(*a))


def edges_as(first: Callable[[Array], Array], last: Callable[[Array], Array], more: int = 1) -> Callable[[Any], Any]:
    """Bins with other edges."""

    def change(right: Any) -> Any:
        def edges(v: Any, start: int, end: int, out: int, length: int) -> tuple[Array, Array]:
            step = max(end - start + more, 1) / out
            bins = np.arange(out)
            low, high = first(start + bins * step), last(start + (bins + 1) * step)
            return np.clip(low, 0, length).astype(int), np.clip(high, 0, length).astype(int)

        return edges

    return change


def rounded_by(function: Callable[[Array], Array]) -> Callable[[Any], Any]:
    """Corners rounded in another way."""
    return lambda right: function


def lowest_where_empty(call: Call, got: Answer) -> Answer:
    """An empty bin keeps the value that a maximum starts with."""
    output = call["output"]
    quantized = output.type in QUANTIZED
    start = limits(output.type)[0] if quantized else np.finfo(info(output.type).dtype).min
    filled = answer(call.with_input("feature", _ones(call)))["output"]
    empty = filled == (output.zero_point if quantized else 0)
    return {"output": np.where(empty, start, got["output"]).astype(got["output"].dtype)}


def _ones(call: Call) -> Any:
    """A feature map that is nowhere 0."""
    feature = call["feature"]
    away = 1 if feature.zero_point < 100 else -1
    return replace(feature, value=np.full_like(feature.value, feature.zero_point + away))


def moved_as(change: Callable[[Array, Array], tuple[Array, Array]]) -> Callable[[Any], Any]:
    """Boxes and deltas are changed before the move."""
    return lambda right: lambda boxes, deltas: right(*change(boxes, deltas))


def linear_growth(boxes: Array, deltas: Array) -> tuple[Array, Array]:
    """Sizes grow by 1 + delta."""
    return boxes, np.concatenate([deltas[..., :2], np.log1p(np.maximum(deltas[..., 2:], -0.99))], axis=-1)


def not_clipped(right: Any) -> Any:
    return lambda corners, sizes: corners


def other_axis_clipped(right: Any) -> Any:
    return lambda corners, sizes: right(corners, sizes[..., ::-1])


@contextmanager
def refined_as(change: Callable[[Any], Any]) -> Iterator[None]:
    right = detection_keypoints._refine
    with mock.patch.object(detection_keypoints, "_refine", lambda v: change(right(v))):
        yield


def refinement(change: Callable[[Any], Any]) -> Wrong:
    """Peaks are changed before they are placed."""

    def wrong(call: Call) -> Answer:
        with refined_as(change):
            return answer(call)

    return wrong


def edge_repeated(right: Any) -> Any:
    """Beyond an edge the edge itself."""

    def around(maps: Array) -> tuple[Array, Array]:
        places, near = right(maps)
        padded = np.pad(maps, [(0, 0)] * (maps.ndim - 2) + [(1, 1), (1, 1)], mode="edge")
        for index in np.ndindex(maps.shape[:-2]):
            r, c = places[index]
            near[index] = padded[index][r : r + 3, c : c + 3]
        return places, near

    return around


def never_longer(right: Any) -> Any:
    return 1e9


def with_decay(function: Callable[[Any, Array], Array]) -> Wrong:
    """Another factor for scores."""

    def wrong(call: Call) -> Answer:
        def decay(settings: Any, dtype: type) -> Any:
            return lambda overlap: (function(settings, overlap), np.zeros_like(overlap))

        with mock.patch.object(detection_suppression.Settings, "decay", decay):
            return answer(call)

    return wrong


def decayed_linearly(settings: Any, overlap: Array) -> Array:
    """Linear decay below the threshold too; the rest as it is due."""
    if settings.kernel == 1:
        return 1 - overlap
    if settings.kernel == 2:
        return np.exp(-overlap * overlap / settings.sigma)
    return (overlap < settings.iou_threshold).astype(float)


def not_squared(settings: Any, overlap: Array) -> Array:
    if settings.kernel == 2:
        return np.exp(-overlap / settings.sigma)
    below = overlap < settings.iou_threshold
    return np.where(below, 1, 0 if settings.kernel == 0 else 1 - overlap)


def intersection_over_smaller(right: Any) -> Any:
    """Overlap as a share of the smaller box."""

    def overlaps(boxes: Array) -> Array:
        area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=-1)
        low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        shared = np.maximum(high - low, 0).prod(axis=-1)
        return shared / np.maximum(np.minimum(area[:, None], area[None, :]), 1e-9)

    return overlaps


def with_pixels(right: Any) -> Any:
    """Sides one longer, as for boxes of whole pixels."""
    return lambda boxes: right(boxes + np.array([0, 0, 1, 1], boxes.dtype))


def one_image(call: Call) -> Answer:
    """Suppression across images."""
    batches = call["batches"]
    return answer(call.with_input("batches", replace(batches, value=np.zeros_like(batches.value))))


def with_background(right: Any) -> Any:
    """Class 0 is suppressed and returned like any other."""

    def of_image(scores: Array, boxes: Array, settings: Any, margin: Any) -> Any:
        more = np.concatenate([scores[:, :1], scores], axis=1)
        found = right(more, np.concatenate([boxes[:, :1], boxes], axis=1), settings, margin)
        return [replace(kept, kind=kept.kind - 1) for kept in found]

    return of_image


def other_mode(call: Call) -> Answer:
    return fixed(use_regular_nms=not call["use_regular_nms"].item())(call)


def labels_shifted(call: Call) -> Answer:
    return fixed(include_background=not call["include_background"].item())(call)


def anchors_first(call: Call, value: Array) -> Array:
    """Scores read anchor by anchor, then row by row."""
    if call["nchw"].item():
        return np.moveaxis(value, 1, 3).reshape(value.shape)
    return np.moveaxis(value, 3, 1).reshape(value.shape)


def packed(call: Call, value: Array) -> Array:
    """Deltas read without a gap, whatever their length."""
    batch, anchors, length = value.shape
    rows = np.ascontiguousarray(value).reshape(batch, -1)[:, : anchors * 4].reshape(batch, anchors, 4)
    return np.concatenate([rows, np.zeros((batch, anchors, length - 4), value.dtype)], axis=2)


YX = (1, 0, 3, 2)
ALIGN, POOL, AXIS, HEAT = "ROI_ALIGN", "ROI_POOLING", "AXIS_ALIGNED_BBOX_TRANSFORM", "HEATMAP_MAX_KEYPOINT"
LIMIT, PROPOSE, OUTCOME = "BOX_WITH_NMS_LIMIT", "GENERATE_PROPOSALS", "DETECTION_POSTPROCESSING"

FAULTS = (
    Fault(ALIGN, "strides swapped", swapped("height_stride", "width_stride")),
    Fault(ALIGN, "x and y swapped", given("rois", permuted(YX))),
    Fault(ALIGN, "numbers of samples swapped", swapped("sampling_h", "sampling_w"), share=0.8),
    Fault(ALIGN, "one sample where adaptive", as_drawn(
        sampling_h=lambda c: c.integer("sampling_h") or 1, sampling_w=lambda c: c.integer("sampling_w") or 1)),
    Fault(ALIGN, "regions may be smaller than 1", patched(detection_align, "_samples", no_least_size)),
    Fault(ALIGN, "samples at the start of their part", patched(detection_align, "_samples", sampled_at_edges)),
    Fault(ALIGN, "nearest in place of bilinear", patched(detection_align, "_samples", cells_alone)),
    Fault(ALIGN, "first image for all", given("batches", first_image)),
    Fault(ALIGN, "channels-first data read as channels-last", given("feature", reread)),
    Fault(ALIGN, "results floored", truncated("output"), share=0.4),
    Fault(POOL, "strides swapped", swapped("height_stride", "width_stride")),
    Fault(POOL, "x and y swapped", given("rois", permuted(YX))),
    Fault(POOL, "corners floored", patched(detection_pooling, "round_half_away", rounded_by(np.floor))),
    Fault(POOL, "size without 1", patched(detection_pooling, "_edges", edges_as(np.floor, np.ceil, 0))),
    Fault(POOL, "end of a bin floored", patched(detection_pooling, "_edges", edges_as(np.floor, np.floor))),
    Fault(POOL, "start of a bin rounded up", patched(detection_pooling, "_edges", edges_as(np.ceil, np.ceil))),
    Fault(POOL, "lowest value where empty", changed(lowest_where_empty)),
    Fault(POOL, "first image for all", given("batches", first_image)),
    Fault(POOL, "channels-first data read as channels-last", given("feature", reread)),
    Fault(AXIS, "x and y of deltas swapped", given("deltas", permuted(YX))),
    Fault(AXIS, "sizes grow by 1 + delta", patched(detection_moves, "move", moved_as(linear_growth))),
    Fault(AXIS, "not cut to the image", patched(detection_moves, "clip", not_clipped)),
    Fault(AXIS, "cut to height by width", patched(detection_moves, "clip", other_axis_clipped)),
    Fault(AXIS, "first image for all", given("batches", first_image)),
    Fault(AXIS, "results floored", truncated("output"), share=0.3),
    Fault(HEAT, "no refinement", refinement(lambda p: replace(p, steps=np.zeros_like(p.steps)))),
    Fault(HEAT, "step turned round", refinement(lambda p: replace(p, steps=-p.steps))),
    Fault(HEAT, "x and y of the step swapped", refinement(lambda p: replace(p, steps=p.steps[..., ::-1]))),
    Fault(HEAT, "row and column swapped", refinement(lambda p: replace(p, places=p.places[..., ::-1]))),
    Fault(HEAT, "corner of the element, not its middle",
          refinement(lambda p: replace(p, steps=p.steps - 0.5))),
    Fault(HEAT, "steps of any length", patched(detection_keypoints, "LONGEST_STEP", never_longer), share=0.6),
    Fault(HEAT, "edge repeated, not mirrored", patched(detection_keypoints, "_neighbourhoods", edge_repeated)),
    Fault(HEAT, "channels-first data read as channels-last", given("heatmap", reread)),
    Fault(HEAT, "last maximum in a row-wise map read column by column",
          given("heatmap", lambda c, x: x.swapaxes(2, 3) if c["nchw"].item() else x.swapaxes(1, 2))),
    Fault(LIMIT, "class 0 returned too", patched(detection_suppression, "_of_image", with_background)),
    Fault(LIMIT, "hard for every kernel", fixed(kernel=0)),
    Fault(LIMIT, "linear for every kernel", fixed(kernel=1)),
    Fault(LIMIT, "linear below the threshold too", with_decay(decayed_linearly)),
    Fault(LIMIT, "overlap not squared", with_decay(not_squared)),
    Fault(LIMIT, "no limit of detections", fixed(max_num_detections=-1)),
    Fault(LIMIT, "no score threshold", fixed(score_threshold=-1.0)),
    Fault(LIMIT, "decayed scores never go", fixed(nms_score_threshold=0.0)),
    Fault(LIMIT, "suppression across images", one_image),
    Fault(LIMIT, "overlap with the smaller box", patched(detection_suppression, "overlaps", intersection_over_smaller)),
    Fault(LIMIT, "sides one longer", patched(detection_suppression, "overlaps", with_pixels)),
    Fault(PROPOSE, "strides swapped", swapped("height_stride", "width_stride")),
    Fault(PROPOSE, "x and y of deltas swapped",
          given("deltas", lambda c, x: permuted(YX)(c, np.moveaxis(x, 1, 3)).transpose(0, 3, 1, 2)
                if c["nchw"].item() else permuted(YX)(c, x))),
    Fault(PROPOSE, "all scores take part", fixed(pre_nms_max=0)),
    Fault(PROPOSE, "no limit of detections", fixed(post_nms_max=-1)),
    Fault(PROPOSE, "no smallest size", fixed(min_size=0.0)),
    Fault(PROPOSE, "nothing suppressed", fixed(iou_threshold=2.0)),
    Fault(PROPOSE, "sides one longer", patched(detection_proposals, "overlaps", with_pixels)),
    Fault(PROPOSE, "not cut to the image", patched(detection_proposals, "clip", not_clipped)),
    Fault(PROPOSE, "cut to height by width", patched(detection_proposals, "clip", other_axis_clipped)),
    Fault(PROPOSE, "sizes grow by 1 + delta", patched(detection_proposals, "move", moved_as(linear_growth))),
    Fault(PROPOSE, "scores read anchor by anchor", given("scores", anchors_first)),
    Fault(OUTCOME, "regular and fast exchanged", other_mode),
    Fault(OUTCOME, "labels off by one", labels_shifted),
    Fault(OUTCOME, "scales of y and x swapped", swapped("scale_y", "scale_x")),
    Fault(OUTCOME, "scales of h and w swapped", swapped("scale_h", "scale_w"), share=0.8),
    Fault(OUTCOME, "x and y of anchors swapped", given("anchors", permuted(YX))),
    Fault(OUTCOME, "deltas read without a gap", given("deltas", packed)),
    Fault(OUTCOME, "no score threshold", fixed(score_threshold=0.0)),
    Fault(OUTCOME, "nothing suppressed", fixed(iou_threshold=2.0)),
    Fault(OUTCOME, "no limit in a class", as_drawn(
        max_detections_per_class=lambda c: 99 if c["use_regular_nms"].item() else 1)),
    Fault(OUTCOME, "overlap with the smaller box", patched(detection_outcome, "overlaps", intersection_over_smaller)),
    Fault(OUTCOME, "slots in use not counted", changed(
        lambda c, got: {**got, "num_detections": np.full_like(got["num_detections"], got["scores_out"].shape[1])})),
)  # fmt: skip


def rate(fault: Fault) -> tuple[int, int, int]:
    """In how many draws a fault is noticed, in how many it changes results, and of how many."""
    definition = OPSET[OperationType[fault.operation]]
    seen = different = total = 0
    for signature in definition.signatures:
        for call in draws(definition, signature, DRAWS, "faults"):
            total += 1
            right, got = answer(call), fault.wrong(call)
            if all(got[n].shape == x.shape and np.array_equal(got[n], x, equal_nan=True) for n, x in right.items()):
                continue
            different += 1
            seen += noticed(call, got)
    return seen, different, total


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_is_noticed(fault: Fault) -> None:
    seen, different, _ = rate(fault)
    assert different >= 5, different
    assert seen >= fault.share * different, f"{seen} of {different}"


def test_the_right_answers_are_not_noticed() -> None:
    for name in (ALIGN, POOL, AXIS, HEAT, LIMIT, PROPOSE, OUTCOME):
        definition = OPSET[OperationType[name]]
        for signature in definition.signatures:
            for call in draws(definition, signature, 10, "right"):
                assert not noticed(call, answer(call))


def test_moves_are_shared() -> None:
    """The faults above replace functions by name in the modules that use them."""
    assert detection_moves.move is detection_proposals.move is detection_boxes.move
    assert OperandType.BOOL in {o.type for o in OPSET[OperationType.ROI_ALIGN].forms[0].operands}
