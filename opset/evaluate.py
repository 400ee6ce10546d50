"""Computes: one call, or a whole model, in float64 and exact integers, and the error that is allowed per element.

One rounding and saturation at the end of each operation. What the reference driver answers and what cases expect both
come from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nnhal.types import Array, OperandType, info
from opset.call import Argument, Call
from opset.definition import Bound
from opset.quantization import (
    FLOATS,
    MANTISSA_BITS,
    QUANTIZED,
    clipped,
    limits,
    quantize,
    wrap_int32,
)
from opset.values import BASELINE, Arithmetic, Values

ATOL = {10: 5 * 2.0**-10, 23: 1e-5}  # NNAPI's absolute tolerance by mantissa bits
RTOL = {10: 5 * 2.0**-10, 23: 5 * 2.0**-23}
RELAXED_BITS = 10
SMALLEST_NORMAL = {10: 2.0**-14, 23: 2.0**-126}  # a result below it may be flushed to zero


class Result:
    """One result of a call.

    Attributes:
        stored: rounded and saturated, in the operand's type: what a driver should return.
    """

    def __init__(self, stored: Array, exact: Array | Callable[[], Array]) -> None:
        """Takes both, or what makes the exact values: a driver that only answers never asks for them."""
        self.stored = stored
        self._exact = exact

    @property
    def exact(self) -> Array:
        """Before rounding: real numbers for floats, saturated steps (not rounded) for quantised types."""
        if callable(self._exact):
            self._exact = self._exact()
        return self._exact

    def storing(self, stored: Array) -> Result:
        """The same, with another stored form."""
        return Result(stored, self._exact)


@dataclass(frozen=True)
class Allowance:
    """How far a driver may be off, per element, in the units in which outputs are stored.

    Attributes:
        required: largest legal difference; infinite where the specification leaves an element open.
        unit: size of one rounding unit, for the quality limits; None where quality is a mean of steps, or exact.
        terms: number of roundings behind an element (see `Bound`); 0 for values that are only moved.
    """

    required: Array
    unit: Array | None
    terms: float


def run_call(call: Call, arithmetic: Arithmetic = BASELINE) -> dict[str, Result]:
    """Runs one call whose results have types, shapes and quantisation.

    Raises:
        ValueError: an operand has no value.
    """
    if call.definition.graphs is not None:
        return dict(call.definition.graphs.run(call, arithmetic))
    with np.errstate(all="ignore"):
        computed = call.definition.kernel(Values(call, arithmetic))
        return arithmetic.settled(call, {name: store(computed[name], a) for name, a in call.results.items()})


def store(computed: Array, argument: Argument) -> Result:
    """Rounds and saturates what a kernel gave into an operand's type, once."""
    kind = argument.type
    if kind in FLOATS:
        return Result(computed.astype(info(kind).dtype), partial(np.asarray, computed, np.float64))
    if kind in QUANTIZED and computed.dtype.kind == "f":
        stored = quantize(computed, kind, argument.scale, argument.zero_point)
        return Result(stored, partial(_steps, computed, argument))
    # What is left are whole numbers, booleans, and stored values moved as they are.
    stored = wrap_int32(computed) if kind == OperandType.TENSOR_INT32 else computed.astype(info(kind).dtype)
    return Result(stored, partial(stored.astype, np.float64))


def _steps(computed: Array, argument: Argument) -> Array:
    """Real values as saturated steps of a quantised operand, not rounded."""
    low, high = limits(argument.type)
    with np.errstate(all="ignore"):
        steps = np.asarray(computed, np.float64) / argument.scale + argument.zero_point
        return clipped(np.where(np.isnan(steps), high, steps), low, high)


def allowance(call: Call, results: Mapping[str, Result], relaxed: bool = False) -> dict[str, Allowance]:
    """The error allowed in each result of a call whose inputs have values."""
    if call.definition.graphs is not None:
        tracked = call.definition.graphs.track(call, {}, relaxed)
        return {name: value.allowance() for name, value in tracked.items()}
    with np.errstate(all="ignore"):
        values = Values(call)
        exact = {name: result.exact for name, result in results.items()}
        left_open = call.definition.judging.left_open
        opened = left_open.masks(values, exact) if left_open is not None else {}
        allowed = {}
        for name, argument in call.results.items():
            allowed[name] = _allow(call, values, name, argument, exact, relaxed)
            if name in opened:
                required = np.where(opened[name], np.inf, allowed[name].required)
                allowed[name] = replace(allowed[name], required=required)
        return allowed


def _allow(
    call: Call,
    values: Values,
    name: str,
    argument: Argument,
    exact: Mapping[str, Array],
    relaxed: bool,
) -> Allowance:
    shape = exact[name].shape
    if argument.type in QUANTIZED:
        terms = 0.0 if _only_moved(call, values, name, argument, exact) else 1.0
        return Allowance(np.full(shape, float(call.definition.judging.steps_of(name))), None, terms)
    if argument.type not in FLOATS:
        return Allowance(np.zeros(shape), None, 0.0)
    bits = MANTISSA_BITS[argument.type]
    bits = RELAXED_BITS if relaxed else bits
    bound: Bound = call.definition.judging.bound(values, {name: exact[name]})
    unit = np.broadcast_to(np.asarray(bound.magnitude, np.float64) * 2.0 ** -(1 + bits), shape)
    flushed = (np.abs(exact[name]) < SMALLEST_NORMAL[bits]) & (unit > 0)
    unit = np.where(flushed, np.maximum(unit, SMALLEST_NORMAL[bits]), unit)
    required = np.maximum(tolerance(exact[name], bits), 2 * bound.terms * unit)
    # What is not finite is compared as it is: infinity with infinity of its sign, and NaN that was only moved with any
    # NaN. One that is computed is left open.
    required = np.where(np.isinf(exact[name]), 0.0, required)
    required = np.where(np.isnan(exact[name]), np.inf if bound.terms else 0.0, required)
    return Allowance(required, unit if bound.terms else None, bound.terms)


def _only_moved(call: Call, values: Values, name: str, argument: Argument, exact: Mapping[str, Array]) -> bool:
    """Whether a quantised result is made of stored values of inputs that have its scale and zero point."""
    judging = call.definition.judging
    sources = judging.moved_from(name, call)
    own = argument.scale, argument.zero_point
    if not sources or any((source.scale, source.zero_point) != own for source in sources):
        return False
    return not judging.bound(values, {name: exact[name]}).terms


def tolerance(exact: Array, bits: int) -> Array:
    """NNAPI's tolerance for floats with so many bits of mantissa, whatever is computed."""
    return np.asarray(ATOL[bits] + RTOL[bits] * np.abs(exact))
