"""What many elements become: reductions, places of extremes, the largest ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from importers.assembling import Kind, Shape
from importers.onnx_file.elementwise import Translate, unary
from importers.onnx_file.emitting import LARGEST_INT32
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.moving import axes_of, axis_of
from importers.onnx_file.work import KNOWN_RANK, Tensor, Work
from nnhal.types import OperationType
from opset.definition import B8, F32, I32

LARGEST_REVERSED = 2**20  # elements that are listed from the last to the first
ADD, MUL, SUB = OperationType.ADD, OperationType.MUL, OperationType.SUB


def folded_axes(shape: Shape, axes: Sequence[int]) -> tuple[Shape, list[int]]:
    """A shape of fewer dimensions, and its axes that the given ones become: neighbours of one fate are joined."""
    sizes: list[int] = []
    marks: list[bool] = []
    for n, size in enumerate(shape):
        if marks and marks[-1] == (n in axes):
            sizes[-1] *= size
        else:
            sizes.append(size)
            marks.append(n in axes)
    return tuple(sizes) or (1,), [n for n, mark in enumerate(marks) if mark]


def _parts(work: Work, node: Node) -> tuple[Tensor, int, list[int], Shape] | None:
    """A reduction's input, its operand, the axes there, and the shape of the result; None where nothing is reduced."""
    tensor = work.input(node, 0)
    rank = len(tensor.shape)
    axes = axes_of(work, node, 1, rank)
    if not axes:
        if node.whole("noop_with_empty_axes", 0):
            return None
        axes = tuple(range(rank))
    keep = node.whole("keepdims", 1)
    shape = tuple(1 if n in axes else size for n, size in enumerate(tensor.shape) if keep or n not in axes)
    own, own_axes = (tensor.shape, list(axes)) if 0 < rank <= KNOWN_RANK else folded_axes(tensor.shape, axes)
    return tensor, work.operand(tensor, own), own_axes or [0], shape


def reduced(work: Work, code: OperationType, x: int, axes: Sequence[int], kind: Kind | None = None) -> int:
    """An operand reduced along axes, which stay with one element."""
    keep = work.whole(1) if code == OperationType.MEAN else work.flag(True)
    return work.emit(code, (x, work.whole_tensor(axes), keep), kind)


def reduction_of(code: OperationType, truths: OperationType | None = None) -> Translate:
    """The translator of a reduction that one operation is.

    Args:
        code: the operation.
        truths: that for boolean tensors.
    """

    def translate(work: Work, node: Node) -> None:
        parts = _parts(work, node)
        if parts is None:
            work.same(node, work.input(node, 0))
            return
        tensor, x, axes, shape = parts
        chosen = truths if truths is not None and work.kind_of(x).type == B8 else code
        work.give(node, reduced(work, chosen, x, axes, work.result_kind(node, x)), shape, tensor.dtype)

    return translate


def _chained(work: Work, node: Node) -> None:
    """Reductions of a function of the elements, or with a function of the result."""
    parts = _parts(work, node)
    if parts is None:
        raise Refusal("there are no axes, and noop_with_empty_axes")
    tensor, x, axes, shape = parts
    plain = work.activation()
    if node.operator == "ReduceLogSumExp":
        most = reduced(work, OperationType.REDUCE_MAX, x, axes)
        powers = unary(work, OperationType.EXP, work.emit(SUB, (x, most, plain)))
        total = unary(work, OperationType.LOG, reduced(work, OperationType.REDUCE_SUM, powers, axes))
        work.give(node, work.emit(ADD, (total, most, plain)), shape, tensor.dtype)
        return
    if node.operator == "ReduceL1":
        x = unary(work, OperationType.ABS, x)
    elif node.operator in ("ReduceL2", "ReduceSumSquare"):
        x = work.emit(MUL, (x, x, plain))
    total = reduced(work, OperationType.REDUCE_SUM, x, axes)
    last = {"ReduceL2": OperationType.SQRT, "ReduceLogSum": OperationType.LOG}.get(node.operator)
    work.give(node, total if last is None else unary(work, last, total), shape, tensor.dtype)


def _place_of(code: OperationType) -> Translate:
    def translate(work: Work, node: Node) -> None:
        if node.whole("select_last_index", 0):
            raise Refusal("of equal elements the last one is asked for")
        tensor = work.input(node, 0)
        axis = axis_of(node.whole("axis", 0), len(tensor.shape))
        place = work.emit(code, (work.operand(tensor), work.whole(axis)), Kind(I32))
        kept = (1,) if node.whole("keepdims", 1) else ()
        work.give(node, place, (*tensor.shape[:axis], *kept, *tensor.shape[axis + 1 :]), np.dtype(np.int64))

    return translate


def _largest(work: Work, node: Node) -> None:
    """TopK: TOPK_V2 knows the last dimension only, and the largest ones: others are turned and negated.

    Of equal elements the operator takes the first, TOPK_V2 the last: where indexes are asked for it looks from the end.
    """
    tensor = work.input(node, 0)
    rank = len(tensor.shape)
    axis = axis_of(node.whole("axis", -1), rank)
    k = (node.whole("k", 0),) if node.version < 10 else work.whole_list(node, 1, "k")
    if k is None or len(k) != 1:
        raise Refusal("k is no single number")
    length = tensor.shape[axis]
    order = [n for n in range(rank) if n != axis] + [axis]
    back = [order.index(n) for n in range(rank)]
    x = work.operand(tensor)
    smallest, placed = not node.whole("largest", 1), any(node.outputs[1:2])
    if length > (LARGEST_REVERSED if placed else LARGEST_INT32):
        raise Refusal(f"{length} elements")
    x = unary(work, OperationType.NEG, x) if smallest else x
    x = work.transposed(x, order)
    if placed:
        x = work.emit(OperationType.GATHER, (x, work.whole(rank - 1), work.whole_tensor(range(length - 1, -1, -1))))
    values, places = work.emit_all(OperationType.TOPK_V2, (x, work.whole(k[0])), [work.kind_of(x), Kind(I32)])
    values = unary(work, OperationType.NEG, values) if smallest else values
    shape = (*tensor.shape[:axis], k[0], *tensor.shape[axis + 1 :])
    if node.outputs[0]:
        work.give(node, work.transposed(values, back), shape, tensor.dtype)
    if placed:
        places = work.emit(SUB, (work.whole_tensor([length - 1]), places, work.activation()))
        if back != sorted(back):  # TRANSPOSE moves no integers; float32 holds all that count so few elements
            real = work.emit(OperationType.CAST, (places,), Kind(F32))
            places = work.emit(OperationType.CAST, (work.transposed(real, back),), Kind(I32))
        work.give(node, places, shape, np.dtype(np.int64), 1)


REDUCTIONS: Mapping[str, Translate] = {
    "ReduceMean": reduction_of(OperationType.MEAN),
    "ReduceSum": reduction_of(OperationType.REDUCE_SUM),
    "ReduceProd": reduction_of(OperationType.REDUCE_PROD),
    "ReduceMax": reduction_of(OperationType.REDUCE_MAX, OperationType.REDUCE_ANY),
    "ReduceMin": reduction_of(OperationType.REDUCE_MIN, OperationType.REDUCE_ALL),
    "ReduceL1": _chained,
    "ReduceL2": _chained,
    "ReduceSumSquare": _chained,
    "ReduceLogSum": _chained,
    "ReduceLogSumExp": _chained,
    "ArgMax": _place_of(OperationType.ARGMAX),
    "ArgMin": _place_of(OperationType.ARGMIN),
    "TopK": _largest,
}
