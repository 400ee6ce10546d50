"""Images in another size: Resize and Upsample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from importers.assembling import Shape
from importers.onnx_file.elementwise import Translate
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.moving import axis_of
from importers.onnx_file.work import Tensor, Work
from nnhal.types import Array, OperationType
from opset.resize import Axis

LARGEST_SIZE = 2**14  # rows or columns of an image whose places are computed one by one
PLACE_COST = 1024  # elements that could be copied while a place is computed
UPSAMPLE_BY_INPUT = 9  # opset from which the scales of Upsample are an input


def _resize(work: Work, node: Node) -> None:
    """Resize and Upsample: RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR; other nearest elements by GATHER."""
    tensor = work.input(node, 0)
    sizes, scales = _target(work, node, tensor.shape)
    changed = [n for n in range(len(sizes)) if sizes[n] != tensor.shape[n] or scales[n] != 1]
    mode = node.text("mode", "nearest")
    if node.whole("antialias", 0) or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Refusal("antialias, or a policy on the aspect ratio")
    if not changed:
        work.same(node, tensor)
        return
    if max(sizes) > LARGEST_SIZE or min(sizes) < 1:
        raise Refusal(f"the result has shape {list(sizes)}")
    rule = node.text("coordinate_transformation_mode", "half_pixel" if node.version >= 11 else "asymmetric")
    if mode == "nearest":
        work.budget.charge(PLACE_COST * sum(sizes[n] for n in changed))
        rounding = node.text("nearest_mode", "round_prefer_floor" if node.version >= 11 else "floor")
        _nearest(work, node, tensor, sizes, {n: _places(rule, rounding, tensor.shape[n], sizes[n], scales[n])
                                             for n in changed})  # fmt: skip
    elif mode in ("linear", "bilinear"):
        _linear(work, node, tensor, sizes, scales, rule)
    else:
        raise Refusal(f"mode {mode}")


def _target(work: Work, node: Node, shape: Shape) -> tuple[Shape, list[Fraction]]:
    """The shape of the result, and its elements per element of the input along each dimension."""
    rank = len(shape)
    axes = node.whole_list("axes")
    places = list(range(rank)) if axes is None else [axis_of(axis, rank) for axis in axes]
    where = 1 if node.version < 11 else 2
    if node.version >= 11 and node.has_input(3):
        wanted = work.whole_list(node, 3, "the sizes") or ()
        if len(wanted) != len(places):
            raise Refusal(f"{len(wanted)} sizes for {len(places)} dimensions")
        sizes = list(shape)
        for place, size in zip(places, wanted, strict=True):
            sizes[place] = size
        return tuple(sizes), [Fraction(size, length) for size, length in zip(sizes, shape, strict=True)]
    if node.version < UPSAMPLE_BY_INPUT:
        given: object = node.attributes.get("scales")
    else:
        given = work.known(node, where, "the scales").reshape(-1).tolist()
    if not isinstance(given, (list, tuple)) or len(given) != len(places):
        raise Refusal(f"the scales are not one for each of {len(places)} dimensions")
    scales = [Fraction(1)] * rank
    for place, scale in zip(places, given, strict=True):
        if not isinstance(scale, (int, float)) or not 0 < scale < LARGEST_SIZE:
            raise Refusal(f"a scale of {scale}")
        scales[place] = Fraction(scale)
    return tuple(math.floor(scale * length) for scale, length in zip(scales, shape, strict=True)), scales


def _coordinate(rule: str, place: int, length: int, outputs: int, scale: Fraction) -> Fraction:
    """Where a place of the result lies in the input.

    Raises:
        Refusal: the rule is one that is not known here.
    """
    if rule == "asymmetric":
        return place / scale
    if rule == "half_pixel" or (rule == "pytorch_half_pixel" and outputs > 1):
        return (place + Fraction(1, 2)) / scale - Fraction(1, 2)
    if rule == "pytorch_half_pixel":
        return Fraction(0)
    if rule == "align_corners":
        wanted = scale * length  # before it is rounded down to the size
        return Fraction(0) if place == 0 or wanted == 1 else place * (length - 1) / (wanted - 1)
    if rule == "half_pixel_symmetric":
        wanted = scale * length
        centre = Fraction(length, 2) * (1 - outputs / wanted)
        return centre + (place + Fraction(1, 2)) / scale - Fraction(1, 2)
    raise Refusal(f"coordinates by {rule}")


def _places(rule: str, rounding: str, length: int, outputs: int, scale: Fraction) -> Array:
    """The element of the input that each place of the result takes."""
    half = Fraction(1, 2)
    rounds = {"floor": math.floor, "ceil": math.ceil, "round_prefer_floor": lambda x: math.ceil(x - half),
              "round_prefer_ceil": lambda x: math.floor(x + half)}  # fmt: skip
    if rounding not in rounds:
        raise Refusal(f"nearest_mode {rounding}")
    places = [rounds[rounding](_coordinate(rule, n, length, outputs, scale)) for n in range(outputs)]
    return np.clip(np.array(places, np.int64), 0, length - 1)


def _nearest(work: Work, node: Node, tensor: Tensor, sizes: Shape, places: Mapping[int, Array]) -> None:
    flags = _nearest_flags(tensor.shape, sizes, places)
    x = work.operand(tensor)
    if flags is not None:
        image = (math.prod(tensor.shape[:2]), 1, *((1,) * (4 - len(tensor.shape))), *tensor.shape[2:])
        x = work.operand(tensor) if len(tensor.shape) == 4 else work.operand(tensor, image)
        height, width = (1, *sizes[2:]) if len(sizes) == 3 else sizes[2:]
        inputs = (x, work.whole(width), work.whole(height), *(work.flag(value) for value in (True, *flags)))
        moved = work.emit(OperationType.RESIZE_NEAREST_NEIGHBOR, inputs, work.result_kind(node, x))
    else:
        moved = x
        for axis, indexes in places.items():
            moved = work.emit(OperationType.GATHER, (moved, work.whole(axis), work.whole_tensor(indexes)),
                              work.result_kind(node, x))  # fmt: skip
    work.give(node, moved, sizes, tensor.dtype)


def _nearest_flags(shape: Shape, sizes: Shape, places: Mapping[int, Array]) -> tuple[bool, bool] | None:
    """The flags with which RESIZE_NEAREST_NEIGHBOR takes those elements beyond doubt; None where there are none."""
    if len(shape) not in (3, 4) or min(places) < 2:
        return None
    for align, half in ((False, False), (True, False), (False, True)):
        for axis in range(2, len(shape)):
            own, undecided = Axis(shape[axis], sizes[axis], align, half).nearest()
            if undecided.any() or not np.array_equal(own, places.get(axis, np.arange(shape[axis]))):
                break
        else:
            return align, half
    return None


def _linear(work: Work, node: Node, tensor: Tensor, sizes: Shape, scales: Sequence[Fraction], rule: str) -> None:
    """RESIZE_BILINEAR, whose coordinates follow from the two lengths: the scale has to be their ratio."""
    rank = len(tensor.shape)
    if rank not in (3, 4) or sizes[:2] != tensor.shape[:2]:
        raise Refusal(f"from {list(tensor.shape)} to {list(sizes)}: RESIZE_BILINEAR knows images only")
    lengths, wanted = ((1, *each[2:]) if rank == 3 else each[2:] for each in (tensor.shape, sizes))
    ratios = [Fraction(a, b) for a, b in zip(wanted, lengths, strict=True)]
    own = [scales[n] for n in range(2, rank)]
    exact = ratios[-len(own) :] == own
    flags = {"asymmetric": (False, False), "align_corners": (True, False), "half_pixel": (False, True),
             "half_pixel_symmetric": (False, True), "pytorch_half_pixel": (False, True)}.get(rule)  # fmt: skip
    if not exact or flags is None or (rule == "pytorch_half_pixel" and 1 in sizes[2:]):
        raise Refusal(f"coordinates by {rule}, with scales {[float(scale) for scale in own]}")
    x = work.operand(tensor, (*tensor.shape[:2], *lengths))
    inputs = (x, work.whole(wanted[1]), work.whole(wanted[0]), *(work.flag(value) for value in (True, *flags)))
    result = work.emit(OperationType.RESIZE_BILINEAR, inputs, work.result_kind(node, x))
    work.give(node, result, sizes, tensor.dtype)


RESIZING: Mapping[str, Translate] = {
    "Resize": _resize,
    "Upsample": _resize,
}
