"""Fixed-point steps of integer-defined kernels: multipliers of 31 bits, rounding shifts, saturation, gate functions."""

from __future__ import annotations

import math

import numpy as np

from nnhal.types import Array

INT16 = (-(2**15), 2**15 - 1)


def saturate(values: Array, low: int, high: int) -> Array:
    """Limits integers to a range."""
    return np.clip(values, low, high)


def rounding_shift(values: Array, bits: int) -> Array:
    """Values / 2^bits, ties away from zero; exact integers."""
    if bits <= 0:
        return np.asarray(values << -bits)
    whole = (np.abs(values) + (1 << (bits - 1))) >> bits
    return np.where(values < 0, -whole, whole)


def multiplier(real: float) -> tuple[int, int]:
    """A positive factor as (Q, e) with real = Q * 2^(e - 31) and 31 significant bits in Q."""
    if real == 0:
        return 0, 0
    fraction, exponent = math.frexp(real)
    factor = math.floor(fraction * 2**31 + 0.5)
    if factor == 2**31:
        factor, exponent = factor // 2, exponent + 1
    return (factor, exponent) if exponent >= -31 else (0, 0)


def rescale(values: Array, real: float) -> Array:
    """Values * real by a multiplier: a product of which the upper half is kept, rounded, then a rounding shift."""
    factor, exponent = multiplier(real)
    # Ties of the first rounding go up, those of the second away from zero.
    upper = ((values << max(exponent, 0)) * factor + 2**30) >> 31
    return rounding_shift(upper, max(-exponent, 0))


def over_root(values: Array, squares: Array) -> Array:
    """Values / sqrt(squares) by a multiplier; squares in 1 to 2^29.

    The multiplier's exponent follows the pairs of leading zeros of the square, so that it has 28 or 29 bits: how many
    are left for the second rounding shows in the result.
    """
    length = np.frexp(squares.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(12 - (31 - length) // 2, 0)
    factor = np.floor(2.0 ** (31 + shift) / np.sqrt(squares) + 0.5).astype(np.int64)
    upper = (values * factor + 2**30) >> 31
    half = (1 << shift) >> 1
    whole = (np.abs(upper) + half) >> shift
    return np.asarray(np.where(upper < 0, -whole, whole))


def product_q15(a: Array, b: Array) -> Array:
    """A product of which one factor is in steps of 2^-15, in steps of the other: ties go up, saturated at 16 bits."""
    return saturate((a * b + 2**14) >> 15, *INT16)


# --- sigmoid and tanh in 16 bits --------------------------------------------------------------------------------------
# exp on [-1/4, 0) is a series of four terms about -1/8; elsewhere it is multiplied by a constant for each bit of the
# quarters below. A quotient is three steps of Newton's division. Every product is rounded to 16 bits. The numbers are
# part of the definition: two units of 2^-15 here are several in a cell state.


def _constant(real: float, bits: int = 15) -> int:
    return math.floor(math.ldexp(real, bits) + 0.5)


EXP_EIGHTH, THIRD = _constant(math.exp(-1 / 8)), _constant(1 / 3)
DIVISION_START, DIVISION_SLOPE = _constant(48 / 17, 13), _constant(-32 / 17, 13)
EXP_BITS = tuple((power, _constant(math.exp(-(2.0**power)))) for power in range(-2, 5))


def _exp_near_zero(x: Array) -> Array:
    """exp(x) for x in [-1/4, 0), both in steps of 2^-15."""
    x = x + 2**12
    square = product_q15(x, x)
    cube, fourth = product_q15(square, x), product_q15(square, square)
    series = rounding_shift(product_q15(rounding_shift(fourth, 2) + cube, np.int64(THIRD)) + square, 1)
    return saturate(EXP_EIGHTH + product_q15(np.int64(EXP_EIGHTH), x + series), *INT16)


def _exp_of_negative(x: Array, bits: int) -> Array:
    """exp(x) in steps of 2^-15 for x <= 0 in steps of 2^-bits."""
    quarter = 2 ** (bits - 2)
    near = (x & (quarter - 1)) - quarter
    below = near - x
    y = _exp_near_zero(near << (15 - bits))
    for power, factor in EXP_BITS:
        if power < 15 - bits:
            y = np.where(below >> (bits + power) & 1, product_q15(y, np.int64(factor)), y)
    y = np.where(x < -(2 ** (bits + 5)), 0, y)
    return np.where(x == 0, INT16[1], y)


def _double_over_one_plus(x: Array) -> Array:
    """2 / (1 + x) in steps of 2^-13, for x in [0, 1] in steps of 2^-15."""
    half = (x + INT16[1] + 1) >> 1
    y = DIVISION_START + product_q15(half, np.int64(DIVISION_SLOPE))
    for _ in range(3):
        rest = 2**13 - product_q15(half, y)
        y = y + saturate(product_q15(y, rest) << 2, *INT16)
    return y


def logistic_q15(x: Array, bits: int = 12) -> Array:
    """1 / (1 + exp(-x)) in steps of 2^-15, for x in steps of 2^-bits."""
    above = saturate(_double_over_one_plus(_exp_of_negative(-np.abs(x), bits)) << 1, *INT16)
    return np.where(x == 0, 2**14, np.where(x > 0, above, INT16[1] - above))


def tanh_q15(x: Array, bits: int = 12) -> Array:
    """tanh(x) in steps of 2^-15, for x in steps of 2^-bits."""
    # The same number read in steps twice as large is 2 x.
    size = saturate((_double_over_one_plus(_exp_of_negative(-np.abs(x), bits - 1)) - 2**13) << 2, *INT16)
    return np.where(x == 0, 0, np.where(x > 0, size, -size))
