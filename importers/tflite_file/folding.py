"""Operators on constants alone: sizes of tensors, and what is computed from them, become constants.

Converters leave such arithmetic in files for shapes that they did not know. Only whole numbers and truths are computed
here, and only few of them; real constants are at most converted (`DEQUANTIZE`) or transposed, without a rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from importers.tflite_file.kinds import InexpressibleError
from importers.tflite_file.layout import strided_parts
from importers.tflite_file.node import Node
from importers.tflite_file.schema import DTYPES
from nnhal.types import Array

Folder = Callable[[Node, "list[Array]"], Array]
MOST_ELEMENTS = 1 << 16


def fold(node: Node) -> bool:
    """Makes the first output a constant where it can; whether it did.

    Raises:
        InexpressibleError: the file gives the constant another shape.
    """
    name = node.operator.name
    if name in ("SHAPE", "RANK"):
        shape = node.tensor(0).shape
        if min(shape, default=1) <= 0:
            raise InexpressibleError(f"its tensor has the shape {list(shape)}")
        node.fold(_typed(node, np.array(shape if name == "SHAPE" else len(shape), np.int64)))
        return True
    folder = FOLDERS.get(name)
    if folder is None or len(node.operator.outputs) != 1 or not node.count:
        return False
    values = [node.value(place) if node.has(place) else None for place in range(node.count)]
    known = [value for value in values if value is not None]
    if len(known) < len(values) or any(value.size > MOST_ELEMENTS for value in known):
        return False
    if name not in MOVES and any(value.dtype.kind not in "biu" for value in known):
        return False
    if min(node.output().shape, default=1) < 0 or np.prod(node.output().shape, dtype=object) > MOST_ELEMENTS:
        return False
    if node.output().scales.size or node.tensor(0).scales.size or node.output().type not in DTYPES:
        return False
    with np.errstate(all="ignore"):
        node.fold(_typed(node, folder(node, known)))
    return True


def _typed(node: Node, value: Array) -> Array:
    """A value in the output's type.

    Raises:
        InexpressibleError: the type is none of numbers.
    """
    due = DTYPES.get(node.output().type)
    if due is None:
        raise InexpressibleError(f"it gives {node.output().type}")
    return np.asarray(value).astype(due)


def _reshaped(node: Node, values: list[Array]) -> Array:
    if values[0].size != np.prod(node.output().shape, dtype=object):
        raise InexpressibleError("its input and output have different numbers of elements")
    return values[0].reshape(node.output().shape)


def _shapes_fit(values: list[Array]) -> list[Array]:
    try:
        np.broadcast_shapes(*(value.shape for value in values))
    except ValueError:
        raise InexpressibleError("its inputs do not broadcast") from None
    return values


def _pairwise(function: Callable[[Array, Array], Array]) -> Folder:
    """Two tensors with broadcasting; a divisor of 0 gives what there is no operation for either."""

    def compute(node: Node, values: list[Array]) -> Array:
        if len(values) != 2:
            raise InexpressibleError(f"it has {len(values)} inputs")
        a, b = _shapes_fit(values)
        if node.operator.name in ("DIV", "FLOOR_DIV", "FLOOR_MOD") and not np.all(b):
            raise InexpressibleError("it divides by 0")
        return function(a, b)

    return compute


def _quotient(a: Array, b: Array) -> Array:
    """Rounded towards zero, as .tflite divides integers."""
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))


def _reduced(function: Callable[..., Array]) -> Folder:
    def compute(node: Node, values: list[Array]) -> Array:
        axes = tuple({node.axis(int(a), values[0].ndim) for a in node.integers(1, "the axes")})
        keep = bool(node.options("ReducerOptions")["keep_dims"])
        return np.asarray(function(values[0], axis=axes, keepdims=keep))

    return compute


def _strided(node: Node, values: list[Array]) -> Array:
    taken = values[0].reshape(node.shape(0))
    parts = strided_parts(node, taken.shape)
    return _reshaped(node, [taken[tuple(part for part, _ in parts)]])


def _sliced(node: Node, values: list[Array]) -> Array:
    begin, size = node.integers(1, "the start"), node.integers(2, "the size")
    if not len(begin) == len(size) == values[0].ndim or min(begin, default=0) < 0:
        raise InexpressibleError("start and size do not describe a part")
    return values[0][tuple(slice(b, None if s < 0 else b + s) for b, s in zip(begin, size, strict=True))]


def _gathered(node: Node, values: list[Array]) -> Array:
    known = node.options("GatherOptions")
    axis = node.axis(known["axis"], values[0].ndim)
    size, indices = values[0].shape[axis], values[1]
    if known["batch_dims"] or indices.dtype.kind not in "iu" or (indices < 0).any() or (indices >= size).any():
        raise InexpressibleError("its indices do not fit its input")
    return np.take(values[0], indices, axis)


def _joined(node: Node, values: list[Array]) -> Array:
    shapes = {value.ndim for value in values}
    rank = values[0].ndim
    axis = node.axis(node.options("ConcatenationOptions")["axis"], rank)
    if len(shapes) > 1 or len({v.shape[:axis] + v.shape[axis + 1 :] for v in values}) > 1:
        raise InexpressibleError("the shapes of its inputs do not fit")
    return np.concatenate(values, axis)


def _packed(node: Node, values: list[Array]) -> Array:
    axis = node.axis(node.options("PackOptions")["axis"], values[0].ndim + 1)
    if len({value.shape for value in values}) > 1:
        raise InexpressibleError("the shapes of its inputs do not fit")
    return np.stack(values, axis)


def _range(node: Node, values: list[Array]) -> Array:
    start, limit, step = (node.integer(place, "an end") for place in range(3))
    if not step or len(range(start, limit, step)) > MOST_ELEMENTS:
        raise InexpressibleError("it describes no range, or a very long one")
    return np.array(list(range(start, limit, step)), values[0].dtype)


def _transposed(node: Node, values: list[Array]) -> Array:
    order = node.integers(1, "the order")
    if sorted(order) != list(range(values[0].ndim)):
        raise InexpressibleError("its order is none of its dimensions")
    return np.transpose(values[0], order)


MOVES = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE"})
FOLDERS: Mapping[str, Folder] = {
    "ADD": _pairwise(np.add),
    "CAST": lambda node, values: values[0],
    "CONCATENATION": _joined,
    "DIV": _pairwise(_quotient),
    "EXPAND_DIMS": _reshaped,
    "FLOOR_DIV": _pairwise(np.floor_divide),
    "FLOOR_MOD": _pairwise(np.mod),
    "GATHER": _gathered,
    "MAXIMUM": _pairwise(np.maximum),
    "MINIMUM": _pairwise(np.minimum),
    "MUL": _pairwise(np.multiply),
    "PACK": _packed,
    "RANGE": _range,
    "REDUCE_PROD": _reduced(np.prod),
    "RESHAPE": _reshaped,
    "SLICE": _sliced,
    "SQUEEZE": _reshaped,
    "STRIDED_SLICE": _strided,
    "SUB": _pairwise(np.subtract),
    "SUM": _reduced(np.sum),
    "TRANSPOSE": _transposed,
}
