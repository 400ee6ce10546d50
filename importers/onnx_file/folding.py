"""Operators whose inputs are known, computed at import: shape arithmetic above all.

Sizes are known before anything is allocated, and accounted for: a small file may ask for a tensor of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np

from importers.onnx_file.borders import pads_of
from importers.onnx_file.elementwise import common_shape
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.literals import DTYPES, dtype_name
from importers.onnx_file.moving import axes_of, axis_of, from_start, new_shape, slices_of, split_sizes
from importers.onnx_file.work import Work
from nnhal.types import Array

Fold = Callable[[Work, Node, list[Array]], list[Array]]
NUMPY_FAULTS = (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError)  # known values that do not fit


def fold(work: Work, node: Node) -> bool:
    """Computes a node whose inputs are all known; says whether it did.

    Raises:
        Refusal: the result is too large, or the values do not go together.
    """
    if node.domain:
        return False
    if node.operator in SHAPES:
        work.computed(node.outputs[0], SHAPES[node.operator](work, node))
        return True
    if node.operator not in FOLDS:
        return False
    tensors = [work.tensor(name) for name in node.inputs if name]
    values = [tensor.value for tensor in tensors if tensor.value is not None]
    if len(values) != len(tensors) or any(tensor.source is not None for tensor in tensors):
        return False
    try:
        results = FOLDS[node.operator](work, node, values)
    except NUMPY_FAULTS as error:
        raise Refusal(f"its known inputs do not go together: {error}") from None
    for name, value in zip(node.outputs, results, strict=False):
        if name:
            work.computed(name, value)
    return True


def _shape(work: Work, node: Node) -> Array:
    shape = work.input(node, 0).shape
    rank = len(shape)
    start, end = node.whole("start", 0), node.whole("end", rank)
    return np.array(shape[slice(start, end)], np.int64)


def _size(work: Work, node: Node) -> Array:
    return np.array(math.prod(work.input(node, 0).shape), np.int64)


def _constant(work: Work, node: Node, values: list[Array]) -> list[Array]:
    del work, values
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64), ("value_floats", np.float32),
                        ("value_ints", np.int64)):  # fmt: skip
        if name in node.attributes:
            return [np.array(node.attributes[name], dtype)]
    if isinstance(node.attributes.get("value"), str):
        raise Refusal(str(node.attributes["value"]))
    value = node.array("value")
    if value is None:
        raise Refusal("its value is of a kind that is not read")
    return [value]


def _constant_of_shape(work: Work, node: Node, values: list[Array]) -> list[Array]:
    shape = tuple(int(size) for size in values[0].reshape(-1))
    value = node.array("value")
    value = np.zeros(1, np.float32) if value is None else value
    if min(shape, default=0) < 0 or value.size != 1:
        raise Refusal(f"a shape of {list(shape)}")
    work.budget.spend(math.prod(shape))
    return [np.full(shape, value.reshape(()), value.dtype)]


def _range(work: Work, node: Node, values: list[Array]) -> list[Array]:
    del node
    start, limit, step = (value.reshape(()).item() for value in values)
    if step == 0 or not all(math.isfinite(number) for number in (start, limit, step)):
        raise Refusal(f"steps of {step} from {start} to {limit}")
    count = max(0, math.ceil((limit - start) / step))
    work.budget.spend(count)
    return [(start + np.arange(count) * step).astype(values[0].dtype)]


def _elementwise(function: Callable[..., Array]) -> Fold:
    def compute(work: Work, node: Node, values: list[Array]) -> list[Array]:
        del node
        work.budget.spend(math.prod(common_shape([value.shape for value in values])))
        return [np.asarray(reduce(function, values))]

    return compute


def _unary(function: Callable[[Array], Array]) -> Fold:
    def compute(work: Work, node: Node, values: list[Array]) -> list[Array]:
        del node
        work.budget.spend(values[0].size)
        return [np.asarray(function(values[0])).astype(values[0].dtype)]

    return compute


def _divide(first: Array, second: Array) -> Array:
    """Integers round toward 0."""
    if first.dtype.kind not in "iu":
        return np.asarray(first / second)
    if not second.all():
        raise Refusal("it divides by 0")
    whole = np.floor_divide(first, second)
    return np.asarray(whole + ((whole < 0) & (whole * second != first)).astype(first.dtype)).astype(first.dtype)


def _modulo(first: Array, second: Array) -> Array:
    if first.dtype.kind in "iu" and not second.all():
        raise Refusal("it divides by 0")
    return np.asarray(np.mod(first, second))


def _power(first: Array, second: Array) -> Array:
    return np.asarray(np.power(first, second)).astype(first.dtype)


def _cast(work: Work, node: Node, values: list[Array]) -> list[Array]:
    name = DTYPES.get(node.whole("to", 0))
    if name is None:
        raise Refusal(f"to {dtype_name(node.whole('to', 0))}")
    work.budget.spend(values[0].size)
    return [values[0].astype(name)]


def _where(work: Work, node: Node, values: list[Array]) -> list[Array]:
    del node
    work.budget.spend(math.prod(common_shape([value.shape for value in values])))
    condition, first, second = values
    return [np.where(condition, first, second).astype(first.dtype)]


def _reshaped(work: Work, node: Node, values: list[Array]) -> list[Array]:
    return [values[0].reshape(new_shape(work, node, work.input(node, 0)))]


def _transposed(work: Work, node: Node, values: list[Array]) -> list[Array]:
    work.budget.spend(values[0].size)
    return [np.ascontiguousarray(np.transpose(values[0], node.whole_list("perm")))]


def _concatenated(work: Work, node: Node, values: list[Array]) -> list[Array]:
    work.budget.spend(sum(value.size for value in values))
    return [np.concatenate(values, axis_of(node.whole("axis", 1), values[0].ndim))]


def _split(work: Work, node: Node, values: list[Array]) -> list[Array]:
    axis = axis_of(node.whole("axis", 0), values[0].ndim)
    sizes = split_sizes(work, node, values[0].shape[axis])
    return np.split(values[0], np.cumsum(sizes)[:-1].tolist(), axis)


def _sliced(work: Work, node: Node, values: list[Array]) -> list[Array]:
    parts = [slice(None)] * values[0].ndim
    for axis, (start, end, step) in slices_of(work, node, values[0].ndim).items():
        taken = range(values[0].shape[axis])[slice(start, end, step)]
        parts[axis] = slice(taken.start, None if taken.stop < 0 else taken.stop, taken.step)
    return [values[0][tuple(parts)]]


def _gathered(work: Work, node: Node, values: list[Array]) -> list[Array]:
    axis = axis_of(node.whole("axis", 0), values[0].ndim)
    length = values[0].shape[axis]
    work.budget.spend(values[0].size // max(length, 1) * values[1].size)
    return [np.take(values[0], from_start(values[1], length), axis)]


def _expanded(work: Work, node: Node, values: list[Array]) -> list[Array]:
    shape = common_shape([values[0].shape, tuple(int(size) for size in values[1].reshape(-1))])
    work.budget.spend(math.prod(shape))
    return [np.array(np.broadcast_to(values[0], shape))]


def _tiled(work: Work, node: Node, values: list[Array]) -> list[Array]:
    del node
    copies = tuple(int(count) for count in values[1].reshape(-1))
    if len(copies) != values[0].ndim or min(copies, default=0) < 0:
        raise Refusal(f"copies {list(copies)} of {values[0].ndim} dimensions")
    work.budget.spend(values[0].size * math.prod(copies))
    return [np.tile(values[0], copies)]


def _padded(work: Work, node: Node, values: list[Array]) -> list[Array]:
    pairs = pads_of(work, node, values[0].ndim)
    if node.text("mode", "constant") != "constant" or any(min(pair) < 0 for pair in pairs):
        raise Refusal("a known tensor is padded by less than nothing, or by what is in it")
    work.budget.spend(math.prod(size + sum(pair) for size, pair in zip(values[0].shape, pairs, strict=True)))
    value = values[2].reshape(()) if node.has_input(2) else node.real("value", 0.0)
    return [np.pad(values[0], pairs, constant_values=value)]


def _reduced(function: Callable[..., Array]) -> Fold:
    def compute(work: Work, node: Node, values: list[Array]) -> list[Array]:
        work.budget.spend(values[0].size)
        axes = axes_of(work, node, 1, values[0].ndim)
        if not axes and node.whole("noop_with_empty_axes", 0):
            return [values[0]]
        result = function(values[0], axis=axes or None, keepdims=bool(node.whole("keepdims", 1)))
        return [np.asarray(result).astype(values[0].dtype)]

    return compute


def _places(work: Work, node: Node, values: list[Array]) -> list[Array]:
    del node
    work.budget.spend(values[0].size * max(values[0].ndim, 1))
    return [np.array(np.nonzero(values[0]), np.int64)]


SHAPES: Mapping[str, Callable[[Work, Node], Array]] = {"Shape": _shape, "Size": _size}
FOLDS: Mapping[str, Fold] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "Div": _elementwise(_divide),
    "Mod": _elementwise(_modulo),
    "Pow": _elementwise(_power),
    "Min": _elementwise(np.minimum),
    "Max": _elementwise(np.maximum),
    "Sum": _elementwise(np.add),
    "Equal": _elementwise(np.equal),
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal),
    "And": _elementwise(np.logical_and),
    "Or": _elementwise(np.logical_or),
    "Not": _unary(np.logical_not),
    "Neg": _unary(np.negative),
    "Abs": _unary(np.abs),
    "Floor": _unary(np.floor),
    "Ceil": _unary(np.ceil),
    "Sqrt": _unary(np.sqrt),
    "Exp": _unary(np.exp),
    "Log": _unary(np.log),
    "Reciprocal": _unary(np.reciprocal),
    "Identity": lambda work, node, values: [values[0]],
    "Cast": _cast,
    "CastLike": lambda work, node, values: [values[0].astype(values[1].dtype)],
    "Where": _where,
    "Reshape": _reshaped,
    "Flatten": _reshaped,
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
    "Transpose": _transposed,
    "Concat": _concatenated,
    "Split": _split,
    "Slice": _sliced,
    "Gather": _gathered,
    "Expand": _expanded,
    "Tile": _tiled,
    "Pad": _padded,
    "ReduceSum": _reduced(np.sum),
    "ReduceProd": _reduced(np.prod),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "NonZero": _places,
}
