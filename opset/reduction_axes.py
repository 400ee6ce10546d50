"""What reductions share: the axes, what stands behind each element of a result, rules, and how to draw them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nnhal.types import Array
from opset.call import Argument, Call, int32_tensor
from opset.definition import ExecutionRule, Shapes, boolean, int32_list, rank_rule
from opset.drawing import Draft
from opset.reshaping import ints_of
from opset.shapes import normal_axis

RANK_INPUT = rank_rule("RANK_INPUT", "input", 1, 4)
AXES = int32_list("axes", "Dimensions to reduce, each in [-n, n); a repeated one counts once.")
KEEP_DIMS = boolean("keep_dims", "Reduced dimensions stay, with size 1.")
REDUCED = "Input without the reduced dimensions, or with 1 in their place; [1] when none is left"

# --- shapes and rules -------------------------------------------------------------------------------------------------


def reduced_axes(call: Call) -> tuple[int, ...]:
    """The reduced dimensions, each once, in rising order."""
    rank = call["input"].rank
    return tuple(sorted({normal_axis(axis, rank) for axis in ints_of(call, "axes")}))


def reduced_count(call: Call) -> int:
    """Number of elements behind each of the result."""
    return math.prod(call["input"].shape[axis] for axis in reduced_axes(call))


def infer_reduced(call: Call) -> Shapes:
    """The shape of the result: [1] when no dimension is left."""
    axes, shape = reduced_axes(call), call["input"].shape
    if call["keep_dims"].item() > 0:
        return {"output": tuple(1 if axis in axes else size for axis, size in enumerate(shape))}
    return {"output": tuple(size for axis, size in enumerate(shape) if axis not in axes) or (1,)}


def in_front(call: Call, x: Array) -> Array:
    """An array of the input's shape, with all that is reduced along axis 0 and the result's shape behind it."""
    axes = reduced_axes(call)
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    moved: Array = x.transpose([*axes, *rest])
    return moved.reshape((reduced_count(call), *infer_reduced(call)["output"]))


def _axes_in_range(call: Call) -> bool:
    rank = call["input"].rank
    return all(-rank <= axis < rank for axis in ints_of(call, "axes"))


def _break_axes(call: Call) -> Call:
    return call.with_input("axes", int32_tensor((*ints_of(call, "axes")[:-1], call["input"].rank)))


AXES_RULE = ExecutionRule("AXES", "each axis is in [-n, n) for input of rank n", _axes_in_range, _break_axes)

# --- draws ------------------------------------------------------------------------------------------------------------


def draw_axes(draft: Draft, shape: tuple[int, ...]) -> int:
    """Axes in any order, negative or not, at times repeated; all of them one time in five. Returns their size."""
    rank = len(shape)
    number = rank if draft.chance(20) else min(draft.choose((1, 1, 1, 2, 2, 3)), max(1, rank - 1))
    left = list(range(rank))
    axes = [left.pop(draft.integer(0, len(left) - 1)) for _ in range(number)]
    listed = [axis - rank if draft.chance(35) else axis for axis in axes]
    if draft.chance(25):
        again = draft.choose(axes)
        listed.append(again - rank if draft.chance(50) else again)
    draft.ints("axes", listed)
    return math.prod(shape[axis] for axis in axes)


def draw_shape(draft: Draft) -> tuple[int, ...]:
    """Mostly several dimensions, so that something is left; at times one long one, for sums of many terms."""
    if draft.chance(12):
        return (draft.integer(200, 1000), draft.integer(1, 4))
    rank = draft.choose((1, 2, 2, 2, 3, 3, 3, 4, 4, 4))
    return draft.shape((rank, rank), draft.choose((5, 9, 11) if rank > 2 else (9, 40, 80)))


def draw_reduction(draft: Draft, low: float, high: float, accept: tuple[float, float] | None = None,
                   adjust: Callable[[Array], Array] | None = None) -> None:  # fmt: skip
    """Draws input, axes and keep_dims; `accept` is the range for an operand of the scope."""
    found = draft.scope.find(lambda a: a.type == draft.type("input") and 1 <= a.rank <= 4 and is_inside(a, accept))
    if found is not None:
        draft.put("input", found)
    else:
        draft.tensor("input", draw_shape(draft), low=low, high=high, adjust=adjust)
    draw_axes(draft, draft["input"].shape)
    draft.scalar("keep_dims", draft.choose((0, 1)))


def is_inside(argument: Argument, span: tuple[float, float] | None) -> bool:
    """Whether an operand has values, and floats within a range."""
    value = argument.value
    if value is None or not value.size:
        return False
    return span is None or value.dtype.kind != "f" or bool(span[0] <= value.min() and value.max() <= span[1])


def crowded(value: Array, side: int) -> Array:
    """Stored bytes moved to the upper (1) or lower (-1) third of their range: sums that need more than 16 bits."""
    if side == 0:
        return value
    ends = np.iinfo(value.dtype)
    third = (value.astype(np.int64) - ends.min) // 3
    return ends.max - third if side > 0 else ends.min + third


def orders(argument: Argument) -> float:
    """Binary orders of magnitude that a product of any elements of an operand may reach."""
    assert argument.value is not None
    sizes = np.abs(argument.value.astype(np.float64))
    return float(np.abs(np.log2(sizes[sizes > 0])).sum())
