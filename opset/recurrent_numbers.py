"""Numbers that recurrent kernels are written in: plain arrays, or arrays that carry the reach of rounding errors.

A kernel is written once. On arrays it gives results; on `Reached` it gives the bound of their errors as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from nnhal.types import Array, LstmActivation
from opset.values import Values

NORM_EPSILON = 1e-8  # in the layer normalisation's square root; public code takes it for a variance of 0 alone
HALF_UNIT_OF_FLOAT16 = 2.0**-11  # the coarsest arithmetic that a type or the relaxed flag allows
NORM_EPSILON_UNITS = 2.0**24  # float32 units in 1: what leaving the epsilon out may cost
REACH_WORDS = (
    "what is summed and of what each rounding before makes of it, carried to first order through sums, products, "
    "functions, clips and steps"
)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), in the type of x."""
    one = x.dtype.type(1)
    return np.asarray(one / (one + np.exp(-x)))


def activated(x: Array, code: int) -> Array:
    """An activation of the LSTM family, in the type of x."""
    if code == LstmActivation.TANH:
        return np.tanh(x)
    if code == LstmActivation.SIGMOID:
        return sigmoid(x)
    if code == LstmActivation.NONE:
        return x
    x = np.maximum(x, x.dtype.type(0))
    return np.minimum(x, x.dtype.type(6)) if code == LstmActivation.RELU6 else x


@dataclass(frozen=True)
class Reached:
    """A number and how far rounding may have moved it, in halves of a unit in the last place of 1.

    First order throughout: what an operand's error becomes behind an operation, plus the size of what is rounded.

    Attributes:
        single: what one rounding counts, where a sum of K products counts 1 for each unit of its magnitude.
    """

    value: Array
    reach: Array
    single: float

    def __add__(self, other: Reached | Array) -> Reached:
        value, reach = _parts(other)
        total = self.value + value
        return Reached(total, self.reach + reach + self.single * np.abs(total), self.single)

    def __mul__(self, other: Reached | Array) -> Reached:
        value, reach = _parts(other)
        product = self.value * value
        moved = self.reach * np.abs(value) + np.abs(self.value) * reach
        return Reached(product, moved + self.single * np.abs(product), self.single)


Number = TypeVar("Number", "Array", "Reached")


def _parts(number: Reached | Array) -> tuple[Array, Array | float]:
    return (number.value, number.reach) if isinstance(number, Reached) else (number, 0.0)


class Numbers(Protocol[Number]):
    """The operations of a recurrent kernel."""

    def known(self, array: Array) -> Number:
        """An operand, exact as it is."""

    def dense(self, x: Number, weights: Array) -> Number:
        """X . weights^T for x of [batch, size] and weights of [units, size]."""

    def complement(self, x: Number) -> Number:
        """1 - x."""

    def sigmoid(self, x: Number) -> Number:
        """1 / (1 + exp(-x))."""

    def activate(self, x: Number, code: int) -> Number:
        """An activation of the LSTM family."""

    def clip(self, x: Number, bound: Array) -> Number:
        """Limits x to [-bound, bound]; a bound of 0 does not."""

    def fused(self, x: Number) -> Number:
        """The fused activation that the call asks for."""

    def normalize(self, x: Number) -> Number:
        """(x - mean) / sqrt(variance + 1e-8) over the last axis."""

    def join(self, parts: list[Number], axis: int) -> Number:
        """Puts numbers side by side along an axis they have."""

    def stack(self, parts: list[Number]) -> Number:
        """Puts numbers one behind the other along a new first axis."""

    def swap(self, x: Number) -> Number:
        """Exchanges the first two axes."""


class PlainNumbers:
    """Arrays in the arithmetic of the values."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def known(self, array: Array) -> Array:
        return array

    def dense(self, x: Array, weights: Array) -> Array:
        return self._values.matmul(x, weights.T)

    def complement(self, x: Array) -> Array:
        return np.asarray(x.dtype.type(1) - x)

    def sigmoid(self, x: Array) -> Array:
        return sigmoid(x)

    def activate(self, x: Array, code: int) -> Array:
        return activated(x, code)

    def clip(self, x: Array, bound: Array) -> Array:
        return np.clip(x, -bound, bound) if bound > 0 else x

    def fused(self, x: Array) -> Array:
        return self._values.activate(x)

    def normalize(self, x: Array) -> Array:
        size, dtype = x.dtype.type(x.shape[-1]), x.dtype.type
        centred = x - self._values.sum(x, -1, keepdims=True) / size
        variance = self._values.sum(centred * centred, -1, keepdims=True) / size
        return np.asarray(centred / np.sqrt(variance + dtype(NORM_EPSILON)))

    def join(self, parts: list[Array], axis: int) -> Array:
        return np.concatenate(parts, axis)

    def stack(self, parts: list[Array]) -> Array:
        return np.stack(parts)

    def swap(self, x: Array) -> Array:
        return np.asarray(x.swapaxes(0, 1))


class ReachedNumbers:
    """Float64 values with the reach of the errors of any other arithmetic.

    A bound of K terms allows 2 K units of reach, and 1.6 K in the mean of squares. That is made for sums of products;
    one rounding, or a function's few, is fully covered by 2 / sqrt(K) of its size.
    """

    def __init__(self, values: Values, terms: float) -> None:
        self._values = values
        self._single = 2 / math.sqrt(terms)
        self._coarsest = 2 * terms * HALF_UNIT_OF_FLOAT16

    def _of(self, value: Array, reach: Array) -> Reached:
        return Reached(value, reach, self._single)

    def known(self, array: Array) -> Reached:
        return self._of(array, np.zeros(array.shape))

    def dense(self, x: Reached, weights: Array) -> Reached:
        # Errors of different units are taken as independent: their squares add up.
        moved = np.sqrt((x.reach * x.reach) @ (weights * weights).T)
        return self._of(x.value @ weights.T, np.abs(x.value) @ np.abs(weights).T + moved)

    def complement(self, x: Reached) -> Reached:
        return self._of(1 - x.value, x.reach + self._single * np.abs(1 - x.value))

    def sigmoid(self, x: Reached) -> Reached:
        y = sigmoid(x.value)
        return self._of(y, y * (1 - y) * x.reach + self._single * y)

    def activate(self, x: Reached, code: int) -> Reached:
        if code == LstmActivation.SIGMOID:
            return self.sigmoid(x)
        y = activated(x.value, code)
        if code == LstmActivation.TANH:
            return self._of(y, (1 - y * y) * x.reach + self._single * np.abs(y))
        return self._clipped(x, y)

    def clip(self, x: Reached, bound: Array) -> Reached:
        return self._clipped(x, np.clip(x.value, -bound, bound)) if bound > 0 else x

    def fused(self, x: Reached) -> Reached:
        return self._clipped(x, self._values.activate(x.value))

    def _clipped(self, x: Reached, y: Array) -> Reached:
        """What is further outside than any error reaches is at the end of the range without error."""
        outside = np.abs(x.value - y) > self._coarsest * x.reach
        return self._of(y, np.where(outside, 0.0, x.reach))

    def normalize(self, x: Reached) -> Reached:
        mean = x.value.mean(axis=-1, keepdims=True)
        centred = x.value - mean
        variance = (centred * centred).mean(axis=-1, keepdims=True) + NORM_EPSILON
        deviation = np.sqrt(variance)
        y = centred / deviation
        # Errors of x, of the mean, of the deviation (also where it comes from the mean of squares), of the epsilon.
        # Those of different units are taken as independent.
        one = self._single
        moved = x.reach + _mean_of_independent(x.reach) + one * (np.abs(x.value) + np.abs(mean))
        stretched = _mean_of_independent(y * x.reach) / deviation
        cancelled = one * (variance + 2 * mean * mean) / (2 * variance)
        left_out = NORM_EPSILON_UNITS * NORM_EPSILON / (2 * variance)
        return self._of(y, moved / deviation + np.abs(y) * (stretched + cancelled + left_out + one))

    def join(self, parts: list[Reached], axis: int) -> Reached:
        return self._of(*(np.concatenate(same, axis) for same in _columns(parts)))

    def stack(self, parts: list[Reached]) -> Reached:
        return self._of(*(np.stack(same) for same in _columns(parts)))

    def swap(self, x: Reached) -> Reached:
        return self._of(x.value.swapaxes(0, 1), x.reach.swapaxes(0, 1))


def _columns(parts: list[Reached]) -> tuple[list[Array], list[Array]]:
    return [part.value for part in parts], [part.reach for part in parts]


def _mean_of_independent(reach: Array) -> Array:
    """Reach of the mean along the last axis, kept."""
    squares = (reach * reach).sum(axis=-1, keepdims=True)
    return np.asarray(np.sqrt(squares) / reach.shape[-1])
