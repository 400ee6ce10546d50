"""Second opinions on definitions: rational numbers, decimals of 40 digits, loops over elements, ONNX's evaluator."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from nnhal.types import Array, OperandType, info
from opset.call import Argument, Call
from opset.evaluate import Result

DIGITS = 40
NEAR_TIE = Fraction(1, 10**9)  # of a step: float64 may fall on either side
ONNX_OPSET = 20
ONNX_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.bool_): TensorProto.BOOL,
}


def rational(argument: Argument, place: tuple[int, ...]) -> Fraction:
    """The real value of one element, exactly; a place of more dimensions is broadcast."""
    assert argument.value is not None
    own = place[len(place) - argument.rank :]
    stored = argument.value[tuple(0 if size == 1 else i for i, size in zip(own, argument.shape, strict=True))].item()
    if argument.scale:
        return (int(stored) - argument.zero_point) * Fraction(argument.scale)
    return Fraction(stored)


def rounded_away(value: Fraction) -> int:
    """Nearest integer; ties go away from zero."""
    half = Fraction(1, 2)
    return math.floor(value + half) if value >= 0 else math.ceil(value - half)


def assert_steps(result: Result, argument: Argument, place: tuple[int, ...], real: Fraction) -> None:
    """A quantised element is the rational number, rounded and saturated; next to a tie either neighbour will do."""
    steps = real / Fraction(argument.scale)
    ends = np.iinfo(info(argument.type).dtype)
    want = min(max(rounded_away(steps) + argument.zero_point, int(ends.min)), int(ends.max))
    got = int(result.stored[place])
    if got != want:
        from_tie = abs(steps - math.floor(steps) - Fraction(1, 2))
        assert 0 < from_tie < NEAR_TIE, f"{got} at {place}, {want} expected"
        assert abs(got - want) == 1
    clipped = min(max(steps + argument.zero_point, Fraction(int(ends.min))), Fraction(int(ends.max)))
    assert math.isclose(result.exact[place], float(clipped), abs_tol=1e-9)


def assert_real(result: Result, place: tuple[int, ...], real: Decimal | Fraction, condition: float = 0.0) -> None:
    """An element of the float64 baseline is the true number, apart from float64's own rounding.

    Args:
        condition: size of what cancels on the way.
    """
    want = float(real)
    assert abs(result.exact[place] - want) <= 1e-13 * (abs(want) + condition), f"{result.exact[place]}, {want} expected"


def decimal(value: Fraction) -> Decimal:
    """A rational number with 40 digits; exact for what float32 and float16 hold, since a power of two divides it."""
    with localcontext() as context:
        context.prec = 400
        return Decimal(value.numerator) / Decimal(value.denominator)


def precisely(function: Callable[[Decimal], Decimal]) -> Callable[[Fraction], Decimal]:
    """A function of decimals as a function of rational numbers, computed with 40 digits."""

    def computed(value: Fraction) -> Decimal:
        with localcontext() as context:
            context.prec = DIGITS
            return function(decimal(value))

    return computed


def sine(x: Decimal) -> Decimal:
    """The sine by its series; the context has digits to spare for arguments up to 30."""
    with localcontext() as context:
        context.prec = DIGITS + 20
        term = total = x
        n = 1
        while abs(term) > Decimal(10) ** -(DIGITS + 10):
            term = -term * x * x / ((n + 1) * (n + 2))
            total += term
            n += 2
        return total


@cache
def _onnx(operator: str, types: tuple[int, ...], attributes: tuple[tuple[str, float], ...]) -> ReferenceEvaluator:
    names = [f"x{i}" for i in range(len(types))]
    inputs = [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, types, strict=True)]
    output = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    node = helper.make_node(operator, names, ["y"], **dict(attributes))  # type: ignore[arg-type]
    graph = helper.make_graph([node], "one", inputs, [output])
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", ONNX_OPSET)]))


def onnx_result(operator: str, *inputs: Array, **attributes: float) -> Array:
    """What ONNX's reference evaluator makes of arrays."""
    types = tuple(ONNX_TYPES[x.dtype] for x in inputs)
    evaluator = _onnx(operator, types, tuple(sorted(attributes.items())))
    feeds: dict[str, Any] = {f"x{i}": x for i, x in enumerate(inputs)}
    with np.errstate(all="ignore"):
        return np.asarray(next(iter(evaluator.run(None, feeds))))


def for_onnx(call: Call, name: str) -> Array:
    """A stored operand as ONNX takes it: booleans are a type of their own."""
    value = call[name].value
    assert value is not None
    return value.astype(np.bool_) if call[name].type == OperandType.TENSOR_BOOL8 else value
