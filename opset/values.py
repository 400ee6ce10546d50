"""What a kernel reads: the operands of a call as real numbers or exact integers, and the arithmetic to use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nnhal.types import Array, FusedActivation, OperandType
from opset.call import Argument, Call
from opset.quantization import FLOATS, QUANTIZED, limits

if TYPE_CHECKING:
    from opset.evaluate import Result

EXACT_IN_FLOAT32 = 2**24
EXACT_IN_FLOAT64 = 2**53
LARGEST_BIAS = 2**31
BLOCK = 8  # terms summed together in the blocked order


@dataclass(frozen=True)
class Arithmetic:
    """How floats are computed: the type, and the order in which sums are taken.

    Attributes:
        dtype: float64 for the baseline; float32 for the variants that are correct but different.
        order: `natural` (NumPy's), `reversed` (last term first, one by one) or `blocked` (partial sums of 8).
    """

    dtype: type[np.float64] | type[np.float32] = np.float64
    order: str = "natural"

    def sum(self, terms: Array, axis: int | tuple[int, ...], keepdims: bool = False) -> Array:
        """Sum along axes in this arithmetic; exact for integers."""
        if terms.dtype.kind in "iub" or self.order == "natural":
            return np.asarray(terms.sum(axis=axis, keepdims=keepdims))
        axes = axis if isinstance(axis, tuple) else (axis,)
        axes = tuple(a % terms.ndim for a in axes)
        rest = [a for a in range(terms.ndim) if a not in axes]
        count = math.prod(terms.shape[a] for a in axes)  # -1 would not do where there are no elements
        moved = terms.transpose([*axes, *rest]).reshape(count, *(terms.shape[a] for a in rest))
        total = self._ordered(moved)
        if keepdims:
            total = total.reshape([1 if a in axes else size for a, size in enumerate(terms.shape)])
        return total

    def _ordered(self, terms: Array) -> Array:
        """Sum along axis 0 in this order."""
        if self.order == "blocked":
            blocks = [terms[i : i + BLOCK].sum(axis=0) for i in range(0, len(terms), BLOCK)]
            terms = np.stack(blocks) if blocks else terms
            step = 1
        else:
            step = -1
        total = np.zeros(terms.shape[1:], terms.dtype)
        for term in terms[::step]:
            total = total + term
        return total

    def matmul(self, a: Array, b: Array) -> Array:
        """Matrix product `a @ b` in this arithmetic; exact (modulo 2^64) for integers."""
        if a.dtype.kind in "iu" and b.dtype.kind in "iu":
            most = float(np.abs(a).max(initial=0)) * float(np.abs(b).max(initial=0)) * a.shape[-1]
            if most < EXACT_IN_FLOAT64:
                return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
            return np.asarray(a @ b)
        if self.order == "natural":
            return np.asarray(a @ b)
        # Products first, one axis for the terms in front, then the sum in this order.
        products = np.moveaxis(a, -1, 0)[..., :, None] * np.moveaxis(b, -2, 0)[..., None, :]
        return self._ordered(products)

    def settled(self, call: Call, results: dict[str, Result]) -> dict[str, Result]:
        """The results of a call as they are handed on."""
        del call
        return results


BASELINE = Arithmetic()


@dataclass(frozen=True)
class Values:
    """The operands of a call for a kernel.

    `v["input"]` is real numbers in the arithmetic's type (quantised operands dequantised), exact int64 for plain
    integers, booleans for BOOL8.

    Attributes:
        linear: fused activations are left out, to fit an output scale or to measure magnitudes.
        absolute: real operands are taken without their sign, to measure the magnitude of what is summed.
    """

    call: Call
    arithmetic: Arithmetic = BASELINE
    linear: bool = False
    absolute: bool = False

    def __getitem__(self, name: str) -> Array:
        return self.real(self.call[name])

    def real(self, argument: Argument) -> Array:
        """The value of an argument as `v[name]` gives it."""
        stored, dtype = self._stored(argument), self.arithmetic.dtype
        if argument.type in FLOATS:
            real: Array = stored.astype(dtype)
        elif argument.type in QUANTIZED or self._is_scaled_bias(argument):
            centred = stored.astype(np.int64) - argument.zero_point
            real = centred.astype(dtype) * dtype(1) * np.asarray(self._scale(argument), dtype)
        elif argument.type in (OperandType.TENSOR_BOOL8, OperandType.BOOL):
            return np.asarray(stored != 0)
        else:
            return stored.astype(np.int64)
        return np.abs(real) if self.absolute else real

    def _is_scaled_bias(self, argument: Argument) -> bool:
        """INT32 tensors may have a scale; nothing but a bias uses it."""
        scaled = argument.type == OperandType.TENSOR_INT32 and argument.scale > 0
        return scaled and argument is self.call.inputs.get("bias")

    def stored(self, name: str) -> Array:
        """The value as it is stored, whatever scale and zero point say."""
        return self._stored(self.call[name])

    def factor(self, name: str, products: int | None = None) -> tuple[Array, Array | float]:
        """An operand as `terms` and `scale` with real value terms * scale.

        Quantised operands give exact integers and their scale (per channel: an array that broadcasts); floats give
        their real values and 1.0.

        Args:
            name: of the operand.
            products: how many products of two operands of such types are summed, before a bias of 32 bits is added.
                The integers are then of the quickest type in which every such sum is exact: float32, float64, int64.
        """
        argument = self.call[name]
        if argument.type not in QUANTIZED:
            return self.real(argument), 1.0
        stored, scale = self._stored(argument), self._scale(argument)
        dtype = np.int64 if products is None else _summing_type(products * _span(argument.type) ** 2)
        return np.subtract(stored, argument.zero_point, dtype=dtype), scale

    def quantized(self, name: str) -> bool:
        """Whether an operand's type is quantised."""
        return self.call[name].type in QUANTIZED

    def integer(self, name: str) -> int:
        """An integer scalar or its default."""
        return self.call.integer(name)

    def flag(self, name: str) -> bool:
        """A boolean scalar or its default."""
        return bool(self.call[name].item())

    def ints(self, name: str) -> tuple[int, ...]:
        """A tensor of integers as Python numbers."""
        return tuple(self._stored(self.call[name]).reshape(-1).tolist())

    def has(self, name: str) -> bool:
        """Whether an input was given and not omitted."""
        return self.call.has(name)

    def sum(self, terms: Array, axis: int | tuple[int, ...], keepdims: bool = False) -> Array:
        """Sum along axes in this arithmetic."""
        return self.arithmetic.sum(terms, axis, keepdims)

    def matmul(self, a: Array, b: Array) -> Array:
        """Matrix product in this arithmetic."""
        return self.arithmetic.matmul(a, b)

    def summing(self, name: str) -> Arithmetic:
        """The arithmetic for sums of products of what `factor` gives: whole numbers are exact in the quickest."""
        return BASELINE if self.quantized(name) else self.arithmetic

    def activate(self, real: Array, name: str = "activation", out: Array | None = None) -> Array:
        """Applies the fused activation that an input names.

        Args:
            real: what it is applied to.
            name: of the input.
            out: `real` itself, when it is no longer needed and may hold the result.
        """
        if self.linear or self.absolute:
            return real
        low, high = ACTIVATION_RANGE[FusedActivation(self.integer(name))]
        if low is not None:
            real = np.maximum(real, real.dtype.type(low), out=out)
        return real if high is None else np.minimum(real, real.dtype.type(high), out=out)

    @staticmethod
    def _stored(argument: Argument) -> Array:
        if argument.value is None:
            raise ValueError("a kernel needs the value of every operand that is not omitted")
        return argument.value

    @staticmethod
    def _scale(argument: Argument) -> Array | float:
        if argument.channel is None:
            return argument.scale
        shape = [1] * argument.rank
        shape[argument.channel.channel_dim] = -1
        return np.asarray(argument.channel.scales, np.float64).reshape(shape)


def _span(kind: OperandType) -> int:
    """Largest magnitude of a stored value less its zero point, both in the type's range."""
    low, high = limits(kind)
    return high - low


def _summing_type(largest: int) -> type[np.float32] | type[np.float64] | type[np.int64]:
    """The quickest type in which sums of integers up to a magnitude are exact, in any order."""
    if largest < EXACT_IN_FLOAT32:
        return np.float32
    return np.float64 if largest + LARGEST_BIAS < EXACT_IN_FLOAT64 else np.int64


ACTIVATION_RANGE: dict[FusedActivation, tuple[float | None, float | None]] = {
    FusedActivation.NONE: (None, None),
    FusedActivation.RELU: (0.0, None),
    FusedActivation.RELU1: (-1.0, 1.0),
    FusedActivation.RELU6: (0.0, 6.0),
}
