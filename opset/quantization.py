"""Between real values and their stored form: scales, zero points, ranges, rounding, saturation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnhal.types import Array, OperandType, info

FloatArray = NDArray[np.floating[Any]]

QUANTIZED = frozenset(
    {
        OperandType.TENSOR_QUANT8_ASYMM,
        OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
        OperandType.TENSOR_QUANT8_SYMM,
        OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        OperandType.TENSOR_QUANT16_SYMM,
        OperandType.TENSOR_QUANT16_ASYMM,
    }
)
FLOATS = frozenset(
    {
        OperandType.TENSOR_FLOAT32,
        OperandType.TENSOR_FLOAT16,
        OperandType.FLOAT32,
        OperandType.FLOAT16,
    }
)
MANTISSA_BITS = {
    OperandType.TENSOR_FLOAT32: 23,
    OperandType.FLOAT32: 23,
    OperandType.TENSOR_FLOAT16: 10,
    OperandType.FLOAT16: 10,
}


CACHED = 2**15  # elements that are taken through several steps at a time: in float64 they stay in a core's own cache


def pieces(count: int, size: int = 1) -> Iterator[slice]:
    """Consecutive parts of `count` rows of `size` elements, small enough to stay in the cache from step to step."""
    rows = max(1, CACHED // max(size, 1))
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))


def float32(value: float) -> float:
    """The nearest float32 value, as scales are stored."""
    return float(np.float32(value))


def round_half_away(values: Array) -> Array:
    """Nearest integer, ties away from zero, as floats."""
    return np.asarray(np.trunc(_outwards(values)))


def _outwards(values: Array) -> Array:
    """Values moved away from zero by a half, so that cutting off what follows the point rounds them."""
    # The largest float below a half: a tie still reaches the next integer, and what lies just below a tie does not.
    half = np.nextafter(values.dtype.type(0.5), values.dtype.type(0))
    return np.asarray(values + np.copysign(half, values))


@cache
def limits(operand_type: OperandType) -> tuple[int, int]:
    """Smallest and largest stored value of an integer type."""
    kind = np.iinfo(info(operand_type).dtype)
    return int(kind.min), int(kind.max)


def clipped(values: Array, low: float, high: float) -> Array:
    """Floats within a range, as `np.clip` does it in three times as long."""
    return np.asarray(np.minimum(np.maximum(values, low), high))


def quantize(real: Array, operand_type: OperandType, scale: float, zero_point: int) -> Array:
    """Stored form of real values: zeroPoint + round_half_away(x / scale), saturated; NaN becomes the largest."""
    low, high = limits(operand_type)
    flat = np.asarray(real).reshape(-1)
    stored = np.empty(flat.shape, info(operand_type).dtype)
    for part in pieces(flat.size):
        steps = np.divide(flat[part], scale, dtype=np.float64)
        np.fmin(steps, high - zero_point, out=steps)  # NaN gives way to the limit
        np.maximum(steps, low - zero_point, out=steps)
        # x / scale is rounded before the zero point is added, so that a tie goes away from the real zero.
        stored[part] = _outwards(steps).astype(np.int32) + zero_point
    return stored.reshape(np.shape(real))


def wrap_int32(values: Array) -> Array:
    """Two's-complement int32 of exact 64-bit integers."""
    return values.astype(np.int64).astype(np.int32)
