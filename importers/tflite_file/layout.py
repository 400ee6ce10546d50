"""Operators that move values and compute nothing: shapes, parts, copies, padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from importers.assembling import Shape
from importers.tflite_file.elementwise import spread
from importers.tflite_file.kinds import InexpressibleError, check_plain
from importers.tflite_file.node import LARGEST_INT32, Node
from importers.tflite_file.schema import DTYPES
from nnhal.types import OperandType, OperationType

Translator = Callable[[Node], None]
LARGEST_RANK = 8  # of a tensor whose parts are taken
JOINED_RANK = 4  # the largest of CONCATENATION
REFLECT, SYMMETRIC = 0, 1  # one code in both


def _reshape(node: Node) -> None:
    """RESHAPE, SQUEEZE and EXPAND_DIMS: the file says what shape is due."""
    node.reshaped(node.operand(0))


def _squeeze(node: Node) -> None:
    """SQUEEZE; RESHAPE where the contract's does not take the type, or would keep another dimension."""
    operand, result = node.operand(0), node.result()
    given = node.tensor(0).shape
    axes = node.vector("SqueezeOptions", "squeeze_dims") or [d for d, size in enumerate(given) if size == 1]
    axes = [node.axis(axis, len(given)) for axis in axes]
    inputs = [operand, node.row(axes)] if axes else []
    if inputs and node.build.fits(OperationType.SQUEEZE, inputs, [result]):
        node.apply(OperationType.SQUEEZE, inputs, result)
    else:
        node.reshaped(operand)


def _expand_dims(node: Node) -> None:
    """EXPAND_DIMS; RESHAPE where there was no dimension."""
    operand, given = node.operand(0), node.tensor(0).shape
    axis = node.axis(node.integer(1, "the axis"), len(given) + 1)
    if given:
        node.apply(OperationType.EXPAND_DIMS, [operand, node.whole(axis)], node.result())
    else:
        node.reshaped(operand)


def _transpose(node: Node) -> None:
    """TRANSPOSE."""
    node.apply(OperationType.TRANSPOSE, [node.operand(0), node.row(node.integers(1, "the order"))], node.result())


def _concatenation(node: Node) -> None:
    """CONCATENATION; a fused activation follows as an operation."""
    options = node.options("ConcatenationOptions")
    if options["activation"]:
        raise InexpressibleError("it has a fused activation")
    operands = node.operands()
    axis = node.whole(node.axis(options["axis"], len(node.dims(node.result()))))
    node.apply(OperationType.CONCATENATION, [*operands, axis], node.result())


def _pack(node: Node) -> None:
    """PACK: each input gets the new dimension by RESHAPE, then CONCATENATION, which older levels have.

    It is PACK for integers and for more dimensions.
    """
    operands, result = node.operands(), node.result()
    axis, due = node.axis(node.options("PackOptions")["axis"], len(node.dims(result))), node.dims(result)
    if node.kind(result).type != OperandType.TENSOR_INT32 and len(due) <= JOINED_RANK:
        slices = [node.view(operand, (*due[:axis], 1, *due[axis + 1 :])) for operand in operands]
        node.apply(OperationType.CONCATENATION, [*slices, node.whole(axis)], result)
    elif node.tensor(0).shape:
        node.apply(OperationType.PACK, [node.whole(axis), *operands], result)
    else:
        node.reshaped(node.apply(OperationType.PACK, [node.whole(0), *operands], node.kind(result)))


def _unpack(node: Node) -> None:
    """UNPACK: SLICE and RESHAPE for each result."""
    operand, given = node.operand(0), node.shape(0)
    axis = node.axis(node.options("UnpackOptions")["axis"], len(given))
    if len(node.operator.outputs) != given[axis]:
        raise InexpressibleError(f"it has {len(node.operator.outputs)} outputs for {given[axis]} slices")
    for place in range(given[axis]):
        part = _part(node, operand, axis, place, 1)
        node.reshaped(part, node.result(place))


def _part(node: Node, operand: int, axis: int, start: int, size: int, result: int | None = None) -> int:
    """A range along one axis."""
    given = node.dims(operand)
    begin = [start if d == axis else 0 for d in range(len(given))]
    sizes = [size if d == axis else extent for d, extent in enumerate(given)]
    return node.apply(OperationType.SLICE, [operand, node.row(begin), node.row(sizes)], result)


def _split(node: Node) -> None:
    """SPLIT."""
    operand, count = node.operand(1), len(node.operator.outputs)
    axis = node.axis(node.integer(0, "the axis"), len(node.shape(1)))
    results = [node.result(place) for place in range(count)]
    node.add(OperationType.SPLIT, [operand, node.whole(axis), node.whole(count)], *results)


def _split_by_sizes(node: Node) -> None:
    """SPLIT_V: a SLICE for each result; -1 among the sizes is what is left."""
    operand, sizes = node.operand(0), node.integers(1, "the sizes")
    axis = node.axis(node.integer(2, "the axis"), len(node.shape(0)))
    if len(sizes) != len(node.operator.outputs):
        raise InexpressibleError(f"it has {len(node.operator.outputs)} outputs for {len(sizes)} sizes")
    rest = node.shape(0)[axis] - sum(size for size in sizes if size >= 0)
    start = 0
    for place, size in enumerate(rest if size < 0 else size for size in sizes):
        _part(node, operand, axis, start, size, node.result(place))
        start += size


def _slice(node: Node) -> None:
    """SLICE; -1 among the sizes is what is left."""
    operand = node.operand(0)
    begin, size = node.integers(1, "the start"), node.integers(2, "the size")
    node.apply(OperationType.SLICE, [operand, node.row(begin), node.row(size)], node.result())


def _strided_slice(node: Node) -> None:
    """STRIDED_SLICE; of integers SLICE. New dimensions come by RESHAPE."""
    given = node.shape(0)
    parts = strided_parts(node, given)
    operand, result = node.operand(0), node.result()
    kept = tuple(len(range(*part.indices(size))) for (part, _), size in zip(parts, given, strict=True))
    kind = node.kind(operand)
    if kind.type == OperandType.TENSOR_INT32:
        if any(part.step != 1 for part, _ in parts):
            raise InexpressibleError("STRIDED_SLICE does not take TENSOR_INT32, and SLICE has no strides")
        begin = [part.indices(size)[0] for (part, _), size in zip(parts, given, strict=True)]
        inputs = [operand, node.row(begin), node.row(kept)]
        if kept == node.dims(result):
            node.apply(OperationType.SLICE, inputs, result)
        else:
            node.reshaped(node.apply(OperationType.SLICE, inputs))
        return
    rows, masks = _strided_inputs(parts)
    inputs = [operand, *(node.row(row) for row in rows), *(node.whole(mask) for mask in masks)]
    if node.build.fits(OperationType.STRIDED_SLICE, inputs, [result]):
        node.apply(OperationType.STRIDED_SLICE, inputs, result)
    else:
        node.reshaped(node.apply(OperationType.STRIDED_SLICE, inputs))


def _strided_inputs(parts: Sequence[tuple[slice, bool]]) -> tuple[list[list[int]], list[int]]:
    """First, last and stride of every dimension; then the masks: without first, without last, dropped."""
    rows = [[part.start or 0 for part, _ in parts], [part.stop or 0 for part, _ in parts], [p.step for p, _ in parts]]
    open_at = ([part.start is None for part, _ in parts], [part.stop is None for part, _ in parts])
    dropped = [drop for _, drop in parts]
    return rows, [sum(bit << d for d, bit in enumerate(bits)) for bits in (*open_at, dropped)]


def strided_parts(node: Node, given: Shape) -> list[tuple[slice, bool]]:
    """What STRIDED_SLICE takes of each dimension, and whether the dimension is dropped.

    Raises:
        InexpressibleError: only a run knows it, or it makes no sense for the shape.
    """
    options = node.options("StridedSliceOptions")
    masks = {name: int(options[f"{name}_mask"]) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    begin, end = node.integers(1, "the start"), node.integers(2, "the end")
    strides = node.integers(3, "the stride")
    if not len(begin) == len(end) == len(strides) <= LARGEST_RANK or 0 in strides:
        raise InexpressibleError("start, end and stride do not describe parts")
    if masks["ellipsis"] & (masks["ellipsis"] - 1):
        raise InexpressibleError("it has several ellipses")

    def bit(name: str, place: int) -> bool:
        return bool(masks[name] >> place & 1)

    parts: list[tuple[slice, bool]] = []
    whole = (slice(None, None, 1), False)
    named = sum(not bit("ellipsis", i) and not bit("new_axis", i) for i in range(len(begin)))
    for i, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        if bit("ellipsis", i):
            parts += [whole] * (len(given) - named)
        elif bit("new_axis", i):
            continue
        elif bit("shrink_axis", i):
            size = given[len(parts)] if len(parts) < len(given) else 0
            first = 0 if bit("begin", i) else first
            first = max(0, min(first + size if first < 0 else first, size - 1))
            parts.append((slice(first, first + 1, 1), True))
        else:
            last = first + last if options["offset"] else last
            parts.append((slice(_limited(first, bit("begin", i)), _limited(last, bit("end", i)), step), False))
    parts += [whole] * (len(given) - len(parts))
    if len(parts) != len(given):
        raise InexpressibleError(f"it describes {len(parts)} dimensions, and its input has {len(given)}")
    return parts


def _limited(place: int, is_open: bool) -> int | None:
    return None if is_open else max(-LARGEST_INT32, min(LARGEST_INT32, place))


def _tile(node: Node) -> None:
    """TILE."""
    node.apply(OperationType.TILE, [node.operand(0), node.row(node.integers(1, "the multiples"))], node.result())


def _reverse(node: Node) -> None:
    """REVERSE_V2: a REVERSE for each axis."""
    operand, axes = node.operand(0), sorted({node.axis(a, len(node.shape(0))) for a in node.integers(1, "the axes")})
    if not axes:
        node.reshaped(operand)
    for axis in axes:
        last = axis == axes[-1]
        operand = node.apply(OperationType.REVERSE, [operand, node.row([axis])], node.result() if last else None)


def _fill(node: Node) -> None:
    """FILL: a constant where its value is one, TILE where not."""
    shape, value = node.output().shape, node.value(1)
    if node.value(0) is not None and tuple(node.integers(0, "the shape")) != shape:
        raise InexpressibleError(f"the file gives its result the shape {list(shape)}, and another one is due")
    if value is None:
        spread(node, node.operand(1), node.dims(node.result()), node.result())
    elif value.size != 1:
        raise InexpressibleError("its value has several elements")
    else:
        _fold_filled(node, value.reshape(-1)[0])


def _zeros_like(node: Node) -> None:
    """ZEROS_LIKE: a constant."""
    if node.output().type not in DTYPES:
        raise InexpressibleError(f"it gives {node.output().type}")
    _fold_filled(node, DTYPES[node.output().type](0))


def _fold_filled(node: Node, value: np.generic) -> None:
    check_plain(node.output())
    node.build.allowance.take(math.prod(node.output().shape) * value.dtype.itemsize)
    node.fold(np.full(node.output().shape, value))


def _pad(node: Node) -> None:
    """PAD: zeros, or the zero point."""
    node.apply(OperationType.PAD, [node.operand(0), _paddings(node)], node.result())


def _paddings(node: Node) -> int:
    value = node.constant(1, "the padding")
    return node.build.constant(node.kind(node.row([0])), value)


def _pad_with(node: Node) -> None:
    """PADV2 with a constant; that of steps is a stored value."""
    operand, value = node.operand(0), node.constant(2, "the value of the padding")
    if value.size != 1:
        raise InexpressibleError("the value of the padding has several elements")
    number = value.reshape(-1)[0].item()
    if node.build.is_quantized(operand):
        if node.kind(operand) != node.kind(node.operand(2)):
            raise InexpressibleError("the value of the padding has a scale of its own")
        parameter = node.whole(number)
    else:
        parameter = node.real(number, operand)
    node.apply(OperationType.PAD_V2, [operand, _paddings(node), parameter], node.result())


def _mirror_pad(node: Node) -> None:
    """MIRROR_PAD."""
    mode = node.options("MirrorPadOptions")["mode"]
    if mode not in (REFLECT, SYMMETRIC):
        raise InexpressibleError(f"the mode {int(mode)} is neither REFLECT nor SYMMETRIC")
    node.apply(OperationType.MIRROR_PAD, [node.operand(0), _paddings(node), node.whole(mode)], node.result())


TRANSLATORS: Mapping[str, Translator] = {
    "CONCATENATION": _concatenation,
    "EXPAND_DIMS": _expand_dims,
    "FILL": _fill,
    "MIRROR_PAD": _mirror_pad,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad_with,
    "RESHAPE": _reshape,
    "REVERSE_V2": _reverse,
    "SLICE": _slice,
    "SPLIT": _split,
    "SPLIT_V": _split_by_sizes,
    "SQUEEZE": _squeeze,
    "STRIDED_SLICE": _strided_slice,
    "TILE": _tile,
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
    "ZEROS_LIKE": _zeros_like,
}
