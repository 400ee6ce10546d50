"""Boxes: how they are drawn, moved by deltas and compared, and the rules on them.

What the operations of object detection share. A box is its left, top, right and bottom edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnhal.types import Array, OperandType, info
from opset.call import Argument, Call, with_shape
from opset.definition import ExecutionRule, Quantization
from opset.drawing import Draft
from opset.quantization import FLOATS, QUANTIZED, float32

BOX_SCALE = 0.125  # of quantised coordinates, whose zero point is 0
MOVE_TERMS = 10  # roundings behind a corner of a moved box
CORNER = "|centre| + |shift| + half the moved size * (1 + |logarithm of its factor|)"  # size of what is summed for one
SCORE_MARGIN = 0.002  # draws: see Margin
# Coarse arithmetic shifts the overlaps of computed boxes, that of float16 most, which relaxed models may use for
# float32 too; fixed-point code may round the boxes before.
FLOAT_OVERLAP_MARGIN, OVERLAP_MARGIN = 0.03, 0.01
SIDE_MARGIN = 0.08  # pixels
OFF_GRID = 2.0**-10  # of float32 boxes in draws: no float16 from 4 on holds it, and rounding to float16 takes it away


# --- computing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """Boxes after a move.

    Attributes:
        corners: [..., 4].
        magnitude: what was summed for each corner.
    """

    corners: Array
    magnitude: Array


def move(boxes: Array, deltas: Array) -> Moved:
    """Moves a box's centre by shares of its size and multiplies its size by powers of e: dx, dy, dw, dh."""
    low, high = boxes[..., :2], boxes[..., 2:]
    size = high - low
    shift = deltas[..., :2] * size
    centre = (low + high) / 2
    half = np.exp(deltas[..., 2:]) * size / 2
    corners = np.concatenate([centre + shift - half, centre + shift + half], axis=-1)
    summed = np.abs(centre) + np.abs(shift) + half * (1 + np.abs(deltas[..., 2:]))
    return Moved(corners, np.concatenate([summed, summed], axis=-1))


def clip(corners: Array, sizes: Array) -> Array:
    """Corners cut to images whose sizes are [..., 2]: height and width."""
    ends = sizes[..., [1, 0, 1, 0]].astype(corners.dtype)
    return np.asarray(np.minimum(np.maximum(corners, corners.dtype.type(0)), ends))


def overlaps(boxes: Array) -> Array:
    """Intersection over union of each box with each other; 0 where both are empty."""
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = np.maximum(high - low, 0).prod(axis=-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=-1)
    union = area[:, None] + area[None, :] - shared
    return np.asarray(np.where(union > 0, shared / np.where(union > 0, union, 1), 0))


@dataclass
class Margin:
    """The closest of the decisions taken so far, in units of how far it should be from falling the other way.

    Attributes:
        scores: how far two scores, or a score and a threshold, should be apart.
        overlap: how far an overlap should be from the threshold.
        sides: how far a side of a box should be from the smallest one allowed.
    """

    scores: float = 1.0
    overlap: float = 1.0
    sides: float = 1.0
    least: float = np.inf

    def note(self, distances: Array | float, due: float) -> None:
        """Takes in one decision or several."""
        self.least = min(self.least, float(np.min(np.abs(distances), initial=np.inf)) / due)

    @property
    def wide(self) -> bool:
        """Whether no decision is a close call."""
        return self.least > 1


@dataclass(frozen=True)
class Pick:
    """A box that was kept.

    Attributes:
        box: which.
        score: after decay.
        condition: how much larger the score's error may be than the score's own rounding.
    """

    box: int
    score: float
    condition: float


Decay = Callable[[Array], tuple[Array, Array]]  # of overlaps: factors, and how far their error exceeds a rounding


def hard(threshold: float) -> Decay:
    """Scores of boxes that overlap by the threshold or more become 0."""
    return lambda overlap: ((overlap < threshold).astype(overlap.dtype), np.zeros_like(overlap))


def suppress(scores: Array, overlap: Array, decay: Decay, floor: float, most: int, margin: Margin) -> list[Pick]:
    """Keeps the best box again and again; each time the scores of the rest decay, and those below the floor go.

    Args:
        scores: one a box.
        overlap: of each box with each other.
        decay: the method.
        floor: the smallest score that stays.
        most: number of boxes to keep; negative for no limit.
        margin: learns how close the decisions were.
    """
    current = scores.copy()
    condition = np.zeros(len(scores))
    left = np.ones(len(scores), bool)
    picks: list[Pick] = []
    while left.any() and (most < 0 or len(picks) < most):
        ranked = np.where(left, current, -np.inf)
        best = int(np.argmax(ranked))
        left[best] = False
        margin.note((current[best] - current)[left], margin.scores)
        picks.append(Pick(best, current[best], float(condition[best])))
        factors, conditions = decay(overlap[best])
        current = np.where(left, current * factors, current)
        condition = np.where(left, condition + conditions, condition)
        margin.note((current - floor)[left], margin.scores)
        left &= current >= floor
    return picks


def suppress_hard(scores: Array, overlap: Array, threshold: float, most: int, margin: Margin) -> list[int]:
    """Keeps the best box again and again; what overlaps it by the threshold or more goes."""
    order = np.argsort(-scores, kind="stable")
    margin.note(np.diff(scores[order]), margin.scores)
    kept: list[int] = []
    for box in order:
        if 0 <= most <= len(kept):
            break
        most_shared = overlap[box, kept].max(initial=0)
        if kept:
            margin.note(most_shared - threshold, margin.overlap)
        if most_shared < threshold or not kept:
            kept.append(int(box))
    return kept


# --- quantisation and rules -------------------------------------------------------------------------------------------


def on_box_grid(*results: str) -> Callable[[Call], Quantization]:
    """Quantised boxes among the results have the one scale and zero point there is."""

    def quantization(call: Call) -> Quantization:
        types = call.signature.row.types
        return {name: (BOX_SCALE, 0) for name in results if types[name] in QUANTIZED}

    return quantization


def box_scale_rule(label: str, *names: str, types: tuple[OperandType, ...] = ()) -> ExecutionRule:
    """Quantised coordinates have the one scale and zero point.

    Args:
        label: see ExecutionRule.
        names: inputs; the first is the one to break.
        types: of the first input of the call, where alone the rule is surely checked; empty for any.
    """

    def holds(call: Call) -> bool:
        return all((a.scale, a.zero_point) == (BOX_SCALE, 0) for a in map(call.__getitem__, names)
                   if a.type in QUANTIZED)  # fmt: skip

    def broken(call: Call) -> Call | None:
        first = call[names[0]]
        if first.type not in QUANTIZED or (types and next(iter(call.inputs.values())).type not in types):
            return None
        return call.with_input(names[0], replace(first, scale=2 * BOX_SCALE))

    return ExecutionRule(label, f"{', '.join(names)}: scale 0.125 and zero point 0 where quantised", holds, broken)


def size_rule(label: str, name: str, words: str, due: Callable[[Call], tuple[int | None, ...]]) -> ExecutionRule:
    """An input has the dimensions that others ask for; None leaves one free."""

    def holds(call: Call) -> bool:
        sizes = due(call)
        shape = call[name].shape
        return len(shape) == len(sizes) and all(want in (None, got) for want, got in zip(sizes, shape, strict=True))

    def broken(call: Call) -> Call | None:
        sizes = due(call)
        axis = max(i for i, size in enumerate(sizes) if size is not None)
        shape = list(call[name].shape)
        shape[axis] += 1
        return with_shape(call, name, tuple(shape))

    return ExecutionRule(label, words, holds, broken)


def with_stored(call: Call, name: str, value: Array) -> Call:
    """The call with other stored values of an input."""
    return call.with_input(name, replace(call[name], value=value.astype(_stored(call, name).dtype)))


def _stored(call: Call, name: str) -> Array:
    value = call[name].value
    if value is None:
        raise ValueError(f"{name} has no value")
    return value


def ordered_boxes_rule(name: str) -> ExecutionRule:
    """No box ends before it begins."""

    def holds(call: Call) -> bool:
        boxes = _stored(call, name).reshape(-1, 4)
        return bool((boxes[:, :2] <= boxes[:, 2:]).all())

    def broken(call: Call) -> Call | None:
        boxes = _stored(call, name).copy()
        if not len(boxes):
            return None
        # Still inside the image: only the order of the edges is wrong.
        boxes[0, 2], boxes[0, 0] = boxes[0, 0], max(boxes[0, 2], boxes[0, 0] + 1)
        return with_stored(call, name, boxes)

    return ExecutionRule("BOX", f"{name}: x1 <= x2 and y1 <= y2", holds, broken)


def image_index_rule(images: Callable[[Call], int]) -> ExecutionRule:
    """The image of each box exists."""

    def holds(call: Call) -> bool:
        batches = _stored(call, "batches")
        return bool(((batches >= 0) & (batches < images(call))).all())

    def broken(call: Call) -> Call | None:
        batches = _stored(call, "batches").copy()
        if not len(batches):
            return None
        batches[-1] = images(call)
        return with_stored(call, "batches", batches)

    return ExecutionRule("BATCH_INDEX", "batches: 0 <= value < number of images", holds, broken)


# --- draws ------------------------------------------------------------------------------------------------------------


def put_new(draft: Draft, name: str, real: Array, scale: float = 0.0, zero_point: int = 0) -> Argument:
    """Makes a new operand with these real values the input of that name; quantised ones are rounded."""
    kind = draft.type(name)
    dtype: type = np.float32 if kind == OperandType.TENSOR_FLOAT32 else np.float16
    stored = real.astype(dtype) if kind in FLOATS else _steps(kind, real, scale, zero_point)
    argument = Argument(kind, stored.shape, scale if kind not in FLOATS else 0.0,
                        zero_point if kind not in FLOATS else 0, value=stored)  # fmt: skip
    return draft.put(name, draft.scope.add(argument))


def _steps(kind: OperandType, real: Array, scale: float, zero_point: int) -> Array:
    steps = np.rint(real / scale) + zero_point if scale else real
    ends = np.iinfo(info(kind).dtype)
    return np.asarray(np.clip(steps, ends.min, ends.max).astype(info(kind).dtype))


def reals_of(argument: Argument) -> Array:
    """Real values of an operand, in float64."""
    if argument.value is None:
        raise ValueError("the operand has no value")
    stored = argument.value.astype(np.float64)
    return np.asarray((stored - argument.zero_point) * argument.scale) if argument.type in QUANTIZED else stored


def put_boxes(draft: Draft, name: str, real: Array, rng: np.random.Generator | None = None) -> Argument:
    """Makes boxes, or sizes of images, the input of that name: multiples of 1/8, which every type holds exactly.

    With a generator those of float32 lie a little beside, where float16 does not hold them.
    """
    snapped = snap(real)
    if rng is not None and draft.type(name) == OperandType.TENSOR_FLOAT32:
        snapped = snapped + rng.uniform(0, OFF_GRID, real.shape)
    return put_new(draft, name, snapped, BOX_SCALE, 0)


def snap(real: Array) -> Array:
    """The nearest multiples of 1/8."""
    return np.asarray(np.rint(real * 8) / 8)


def put_indexes(draft: Draft, name: str, values: Sequence[int] | Array) -> Argument:
    """Makes a new TENSOR_INT32 the input of that name."""
    stored = np.asarray(values, np.int32)
    return draft.put(name, draft.scope.add(Argument(OperandType.TENSOR_INT32, stored.shape, value=stored)))


def put_scores(draft: Draft, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Argument:
    """Makes scores the input of that name, no two of them alike or close: a shuffled ladder of equal rungs."""
    kind, count = draft.type(name), int(np.prod(shape))
    rungs = rng.permutation(count).reshape(shape)
    if kind in FLOATS:
        return put_new(draft, name, (rungs + 0.3 + 0.4 * rng.random(shape)) / count)
    rung = max(1, 250 // count)
    low = -128 if kind == OperandType.TENSOR_QUANT8_ASYMM_SIGNED else 0
    scale = float32(draft.real(0.0021, 0.0052))
    start = int(rng.integers(0, 256 - rung * (count - 1)))
    zero_point = low + int(rng.integers(0, 1 + start // 2)) if draft.chance(50) else low
    return put_new(draft, name, (rungs * rung + start + low - zero_point) * scale, scale, zero_point)


def gap(values: Array, low: float, high: float, choice: Callable[[int], int], best: int = 3) -> float:
    """A number between low and high in the middle of one of the widest gaps between values."""
    inside = np.unique(values[(values > low) & (values < high)])
    edges = np.concatenate([[low], inside, [high]])
    middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    widest = np.argsort(-widths)[:best]
    return float(middles[widest[choice(len(widest))]])


def above_overlaps(shared: Array) -> float:
    """A threshold that no overlap comes near, but those of boxes that coincide."""
    return min(float(shared[shared < 0.9999].max(initial=0.5)) + 0.1, 0.99)


def draw_margin(kind: OperandType) -> Margin:
    """How far the decisions on computed boxes should be from falling the other way in a draw."""
    return Margin(SCORE_MARGIN, FLOAT_OVERLAP_MARGIN if kind in FLOATS else OVERLAP_MARGIN, SIDE_MARGIN)
