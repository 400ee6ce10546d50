"""Operators that move values: other dimensions, another order, parts, copies and borders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from importers.assembling import Kind, Shape
from importers.onnx_file.elementwise import Translate
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.work import KNOWN_RANK, Tensor, Work
from nnhal.types import Array, OperationType

REFLECT = 0  # mode of MIRROR_PAD


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the start.

    Raises:
        Refusal: there is none such.
    """
    if not -rank <= axis < rank:
        raise Refusal(f"axis {axis} of {rank} dimensions")
    return axis % rank


def axes_of(work: Work, node: Node, position: int, rank: int) -> tuple[int, ...] | None:
    """Axes that are an attribute in older opsets and an input in newer ones; None where there are none."""
    axes = node.whole_list("axes") if "axes" in node.attributes else work.whole_list(node, position, "axes")
    return None if axes is None else tuple(sorted({axis_of(axis, rank) for axis in axes}))


def wanted_shape(shape: Shape, wanted: Sequence[int], *, zeros_copy: bool) -> Shape:
    """What Reshape's second input means.

    Raises:
        Refusal: it does not fit the elements.
    """
    sizes = [shape[n] if size == 0 and zeros_copy and n < len(shape) else size for n, size in enumerate(wanted)]
    count = math.prod(shape)
    if sizes.count(-1) == 1:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = count // rest if rest else 0
    if min(sizes, default=1) < 0 or math.prod(sizes) != count:
        raise Refusal(f"shape {list(wanted)} for {count} elements")
    return tuple(sizes)


def new_shape(work: Work, node: Node, tensor: Tensor) -> Shape:
    """The dimensions that Reshape, Flatten, Squeeze or Unsqueeze give a tensor."""
    shape, rank = tensor.shape, len(tensor.shape)
    if node.operator == "Reshape":
        wanted = work.whole_list(node, 1, "the shape")
        if wanted is None:
            raise Refusal("there is no shape")
        return wanted_shape(shape, wanted, zeros_copy=not node.whole("allowzero", 0))
    if node.operator == "Flatten":
        axis = node.whole("axis", 1)
        axis = rank if axis == rank else axis_of(axis, rank)
        return math.prod(shape[:axis]), math.prod(shape[axis:])
    if node.operator == "Squeeze":
        axes = axes_of(work, node, 1, rank)
        dropped = [n for n, size in enumerate(shape) if size == 1] if axes is None else list(axes)
        if any(shape[n] != 1 for n in dropped):
            raise Refusal(f"dimensions {dropped} of {list(shape)} are not all 1")
        return tuple(size for n, size in enumerate(shape) if n not in dropped)
    added = node.whole_list("axes") if "axes" in node.attributes else work.whole_list(node, 1, "axes")
    if added is None:
        raise Refusal("there are no axes")
    total = rank + len(added)
    places = {axis_of(axis, total) for axis in added}
    if len(places) != len(added):
        raise Refusal(f"axes {list(added)} name one dimension twice")
    left = iter(shape)
    return tuple(1 if n in places else next(left) for n in range(total))


def _reshape(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    work.give(node, work.operand_as_is(tensor), new_shape(work, node, tensor), tensor.dtype)


def permuted(shape: Shape, order: Sequence[int]) -> tuple[Shape, list[int]]:
    """A shape and an order of dimensions, with dimensions of 1 left out and neighbours that stay together joined."""
    kept = [n for n in order if shape[n] != 1]
    runs: list[list[int]] = []
    for n in kept:
        follows = runs and n > runs[-1][-1] and all(shape[m] == 1 for m in range(runs[-1][-1] + 1, n))
        if follows:
            runs[-1].append(n)
        else:
            runs.append([n])
    sources = sorted(runs)
    joined = tuple(math.prod(shape[n] for n in run) for run in sources) or (1,)
    return joined, [sources.index(run) for run in runs] or [0]


def _transpose(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    rank = len(tensor.shape)
    order = node.whole_list("perm") or tuple(reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        raise Refusal(f"order {list(order)} of {rank} dimensions")
    shape = tuple(tensor.shape[n] for n in order)
    if rank <= KNOWN_RANK and rank:
        x = work.movable(tensor)
        moved = work.emit(OperationType.TRANSPOSE, (x, work.whole_tensor(order)), work.result_kind(node, x))
    else:
        simple, simple_order = permuted(tensor.shape, order)
        moved = work.transposed(work.movable(tensor, simple), simple_order)
    work.give(node, moved, shape, tensor.dtype)


def concatenated(work: Work, operands: Sequence[int], axis: int, kind: Kind | None = None) -> int:
    """Operands behind each other along a dimension."""
    if len(operands) == 1 and kind in (None, work.kind_of(operands[0])):
        return operands[0]
    return work.emit(OperationType.CONCATENATION, (*operands, work.whole(axis)), kind)


def _concat(work: Work, node: Node) -> None:
    tensors = [work.input(node, place) for place in range(len(node.inputs))]
    if not tensors or not tensors[0].shape:
        raise Refusal("tensors without dimensions")
    axis = axis_of(node.whole("axis", 1), len(tensors[0].shape))
    tensors = [tensor for tensor in tensors if 0 not in tensor.shape] or tensors
    first = tensors[0].shape
    if any(t.shape[:axis] != first[:axis] or t.shape[axis + 1 :] != first[axis + 1 :] for t in tensors):
        raise Refusal("the shapes differ along other dimensions too")
    shape = (*first[:axis], sum(t.shape[axis] for t in tensors), *first[axis + 1 :])
    if len(shape) > KNOWN_RANK:
        sides = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        operands = [work.movable(t, (sides[0], t.shape[axis], sides[1])) for t in tensors]
        axis = 1
    else:
        operands = [work.movable(t) for t in tensors]
    if len(operands) == 1 and work.result_kind(node, operands[0]) == work.kind_of(operands[0]):
        work.same(node, tensors[0])
        return
    work.give(node, concatenated(work, operands, axis, work.result_kind(node, operands[0])), shape, tensors[0].dtype)


def split_sizes(work: Work, node: Node, length: int) -> tuple[int, ...]:
    """Lengths of the parts of a Split."""
    count = len(node.outputs)
    sizes = node.whole_list("split") if "split" in node.attributes else work.whole_list(node, 1, "the lengths")
    if sizes is None:
        if not 0 < count <= max(length, 1):
            raise Refusal(f"{count} parts of {length} elements")
        size = -(-length // count)
        sizes = (*[size] * (count - 1), length - size * (count - 1))
    if len(sizes) != count or sum(sizes) != length or min(sizes) < 0:
        raise Refusal(f"lengths {list(sizes)} of {length} elements")
    return sizes


def _split(work: Work, node: Node) -> None:
    """SPLIT where all parts are alike, SLICE otherwise."""
    tensor = work.input(node, 0)
    axis = axis_of(node.whole("axis", 0), len(tensor.shape))
    sizes = split_sizes(work, node, tensor.shape[axis])
    if len(sizes) == 1:
        work.same(node, tensor)
        return
    x = work.movable(tensor)
    if len(set(sizes)) == 1:
        kinds = [work.result_kind(node, x, place) for place in range(len(sizes))]
        parts = work.emit_all(OperationType.SPLIT, (x, work.whole(axis), work.whole(len(sizes))), kinds)
    else:
        parts, start = [], 0
        for place, size in enumerate(sizes):
            begin = [start if n == axis else 0 for n in range(len(tensor.shape))]
            kind = work.result_kind(node, x, place)
            parts.append(sliced(work, x, begin, [*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]], kind))
            start += size
    for place, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        work.give(node, part, (*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]), tensor.dtype, place)


def sliced(work: Work, x: int, begin: Sequence[int], sizes: Sequence[int], kind: Kind | None = None) -> int:
    """A part of an operand."""
    return work.emit(OperationType.SLICE, (x, work.whole_tensor(begin), work.whole_tensor(sizes)), kind)


def slices_of(work: Work, node: Node, rank: int) -> dict[int, tuple[int, int, int]]:
    """Start, end and step of a Slice for each axis that it names."""
    if node.version < 10:
        starts, ends, axes, steps = node.whole_list("starts"), node.whole_list("ends"), node.whole_list("axes"), None
    else:
        starts, ends, axes, steps = (work.whole_list(node, n, what) for n, what in
                                     enumerate(("starts", "ends", "axes", "steps"), 1))  # fmt: skip
    if starts is None or ends is None:
        raise Refusal("there are no starts or ends")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Refusal("starts, ends, axes and steps do not go together")
    return {axis_of(a, rank): (b, e, s) for a, b, e, s in zip(axes, starts, ends, steps, strict=True)}


def _slice(work: Work, node: Node) -> None:
    """SLICE; with steps STRIDED_SLICE."""
    tensor = work.input(node, 0)
    rank = len(tensor.shape)
    ranges = [range(size) for size in tensor.shape]
    for axis, (begin, end, step) in slices_of(work, node, rank).items():
        ranges[axis] = range(tensor.shape[axis])[slice(begin, end, step)]
    shape = tuple(len(one) for one in ranges)
    if 0 in shape:
        raise Refusal("the result has no elements")
    x = work.movable(tensor)
    kind = work.result_kind(node, x)
    if all(one.step == 1 for one in ranges):
        moved = sliced(work, x, [one.start for one in ranges], shape, kind)
    else:
        # An end before the first element cannot be written as an index; the mask says the same.
        mask = sum(1 << n for n, one in enumerate(ranges) if one.stop < 0)
        lists = ([one.start for one in ranges], [max(one.stop, 0) for one in ranges], [one.step for one in ranges])
        parameters = (*(work.whole_tensor(one) for one in lists), *(work.whole(n) for n in (0, mask, 0)))
        moved = work.emit(OperationType.STRIDED_SLICE, (x, *parameters), kind)
    work.give(node, moved, shape, tensor.dtype)


def _gather(work: Work, node: Node) -> None:
    tensor, indexes = work.input(node, 0), work.input(node, 1)
    axis = axis_of(node.whole("axis", 0), len(tensor.shape))
    places = indexes
    if indexes.value is not None:
        places = Tensor(indexes.name, indexes.dtype, indexes.shape, from_start(indexes.value, tensor.shape[axis]))
    x = work.movable(tensor)
    inputs = (x, work.whole(axis), work.operand(places))
    moved = work.emit(OperationType.GATHER, inputs, work.result_kind(node, x))
    work.give(node, moved, (*tensor.shape[:axis], *indexes.shape, *tensor.shape[axis + 1 :]), tensor.dtype)


def from_start(indexes: Array, length: int) -> Array:
    """Indexes counted from the start.

    Raises:
        Refusal: some is none.
    """
    if indexes.dtype.kind not in "iu":
        raise Refusal(f"indexes of type {indexes.dtype}")
    if indexes.size and not (-length <= int(indexes.min()) and int(indexes.max()) < length):
        raise Refusal(f"an index outside {length} elements")
    return np.where(indexes < 0, indexes + length, indexes)


def _tile(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    copies = work.whole_list(node, 1, "the numbers of copies")
    if copies is None or len(copies) != len(tensor.shape) or min(copies, default=1) < 1:
        raise Refusal(f"copies {copies} of {len(tensor.shape)} dimensions")
    x = work.movable(tensor)
    moved = work.emit(OperationType.TILE, (x, work.whole_tensor(copies)), work.result_kind(node, x)) if copies else x
    work.give(node, moved, tuple(a * b for a, b in zip(tensor.shape, copies, strict=True)), tensor.dtype)


def _same(work: Work, node: Node) -> None:
    """Identity, and Dropout where nothing is trained."""
    if any(node.outputs[1:]):
        raise Refusal("the mask is asked for")
    if node.operator == "Dropout" and node.has_input(2) and work.known(node, 2, "the training mode").any():
        raise Refusal("it is in training mode")
    work.same(node, work.input(node, 0))


MOVING: Mapping[str, Translate] = {
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Tile": _tile,
    "Identity": _same,
    "Dropout": _same,
}
