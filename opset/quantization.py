"""Between real values and their stored form: scales, zero points, ranges, rounding, saturation."""

from __future__ import annotations

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


def float32(value: float) -> float:
    """The nearest float32 value, as scales are stored."""
    return float(np.float32(value))


def round_half_away(values: Array) -> Array:
    """Nearest integer, ties away from zero, as floats."""
    whole = np.trunc(values)
    return np.asarray(whole + np.where(np.abs(values - whole) >= 0.5, np.sign(values), 0.0))


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
    steps = np.asarray(real, np.float64) / scale
    steps = clipped(np.where(np.isnan(steps), np.inf, steps), low - zero_point - 1, high - zero_point + 1)
    # x / scale is rounded before the zero point is added, so that a tie goes away from the real zero.
    rounded = round_half_away(steps) + zero_point
    return np.asarray(clipped(rounded, low, high).astype(info(operand_type).dtype))


def wrap_int32(values: Array) -> Array:
    """Two's-complement int32 of exact 64-bit integers."""
    return values.astype(np.int64).astype(np.int32)
