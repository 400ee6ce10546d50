"""Arithmetic with broadcasting against ONNX, rational numbers and decimals; correct variants; faults; open results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import FL1, FL2, Array, FusedActivation
from opset import broadcast
from opset.broadcast import ADD, DIV, MAXIMUM, MUL, POW, SUB
from opset.call import Argument, Call, scalar
from opset.definition import I32, OperationDef
from opset.evaluate import allowance, run_call, store
from opset.quantization import FLOATS, QUANTIZED
from opset.validation import violations
from opset.values import Values
from tests.naive import assert_real, assert_steps, decimal, for_onnx, onnx_result, rational
from tests.variants import complaints, drawn, objections

DEFINITIONS = [d for d in vars(broadcast).values() if isinstance(d, OperationDef)]
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]

TRUTH: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "ADD": lambda a, b: a + b,
    "SUB": lambda a, b: a - b,
    "MUL": lambda a, b: a * b,
    "DIV": lambda a, b: a / b,
    "MAXIMUM": max,
    "MINIMUM": min,
}
ONNX = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "MAXIMUM": "Max", "MINIMUM": "Min", "POW": "Pow"}
CLIPS: dict[int, Callable[[Fraction], Fraction]] = {
    FusedActivation.NONE: lambda x: x,
    FusedActivation.RELU: lambda x: max(x, Fraction(0)),
    FusedActivation.RELU1: lambda x: min(max(x, Fraction(-1)), Fraction(1)),
    FusedActivation.RELU6: lambda x: min(max(x, Fraction(0)), Fraction(6)),
}


def clip(call: Call, real: Fraction) -> Fraction:
    return CLIPS[call.integer("activation")](real) if call.has("activation") else real


@pytest.mark.parametrize(("definition", "signature"), [p for p in SIGNATURES if p[0] is not POW])
def test_second_opinion_in_rational_numbers(definition: OperationDef, signature: Signature) -> None:
    for call in drawn(definition, signature, 10, "rational"):
        (result,) = run_call(call).values()
        output = call.results["output"]
        for place in np.ndindex(result.stored.shape):
            a, b = rational(call["a"], place), rational(call["b"], place)
            if output.type == I32 and definition is DIV:
                assert int(result.stored[place]) == a // b
                continue
            real = clip(call, TRUTH[definition.name](a, b))
            if output.type in FLOATS:
                assert_real(result, place, real, condition=float(abs(a) + abs(b)))
            elif output.type in QUANTIZED:
                assert_steps(result, output, place, real)
            else:
                assert result.stored[place] == real


@pytest.mark.parametrize("signature", POW.signatures, ids=lambda s: s.id)
def test_second_opinion_on_pow_in_decimals(signature: Signature) -> None:
    for call in drawn(POW, signature, 20, "decimal"):
        (result,) = run_call(call).values()
        for place in np.ndindex(result.stored.shape):
            base, exponent = (decimal(rational(call[name], place)) for name in ("base", "exponent"))
            with localcontext() as context:
                context.prec = 40
                assert_real(result, place, Decimal(base) ** Decimal(exponent))


@pytest.mark.parametrize(
    ("definition", "signature"),
    [p for p in SIGNATURES if not p[1].id.startswith("quant8") and (p[0] is not DIV or p[1].id != "int32")],
)
def test_second_opinion_of_onnx(definition: OperationDef, signature: Signature) -> None:
    """Broadcasting above all. ONNX divides integers toward zero, so that it has nothing to say on DIV of INT32."""
    names = ("base", "exponent") if definition is POW else ("a", "b")
    for call in drawn(definition, signature, 40, "onnx"):
        bare = call.with_input("activation", scalar(call["activation"].type, 0)) if call.has("activation") else call
        found = onnx_result(ONNX[definition.name], *(for_onnx(bare, name) for name in names))
        assert complaints(bare, {"output": found}) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_variants_pass(definition: OperationDef, signature: Signature) -> None:
    assert objections(definition, signature) == []


# --- what is open, what is refused ------------------------------------------------------------------------------------


def int32_call(definition: OperationDef, a: list[int], b: list[int]) -> Call:
    """A call on plain integers without activation."""
    call = next(c for c in drawn(definition, definition.signature("int32"), 1))
    for name, values in (("a", a), ("b", b)):
        value = np.array(values, np.int32)
        call = call.with_input(name, replace(call[name], shape=value.shape, value=value))
    return call.with_result("output", replace(call["output"], shape=(len(a),)))


@pytest.mark.parametrize(
    ("definition", "a", "b", "opened"),
    [
        (ADD, [2**31 - 1, 2**31 - 1, -(2**31)], [1, 0, -1], [True, False, True]),
        (SUB, [-(2**31), -1, 0], [1, 2**31 - 1, -(2**31)], [True, False, True]),
        (MUL, [46341, 46340, -65536], [46341, 46340, 32768], [True, False, False]),
        (DIV, [1, -(2**31), -(2**31)], [0, -1, 1], [True, True, False]),
    ],
)
def test_integers_that_do_not_fit_are_left_open(
    definition: OperationDef, a: list[int], b: list[int], opened: list[bool]
) -> None:
    call = int32_call(definition, a, b)
    required = allowance(call, run_call(call))["output"].required
    assert np.isinf(required).tolist() == opened
    assert [x == 0 for x in required] == [not o for o in opened]


def test_division_by_zero_and_powers_of_zero_are_left_open() -> None:
    for definition, names, first, second in (
        (DIV, ("a", "b"), [1.0, 0.0, 1.0], [0.0, 0.0, 2.0]),
        (POW, ("base", "exponent"), [0.0, 0.0, 0.0], [0.0, -1.0, 2.0]),
    ):
        call = next(drawn(definition, definition.signature("float32"), 1))
        for name, values in zip(names, (first, second), strict=True):
            value = np.array(values, np.float32)
            call = call.with_input(name, replace(call[name], shape=(3,), value=value))
        call = call.with_result("output", replace(call["output"], shape=(3,)))
        required = allowance(call, run_call(call))["output"].required
        assert np.isinf(required).tolist() == [True, True, False]


def test_the_scale_rule_of_mul_compares_in_float32() -> None:
    call = next(drawn(MUL, MUL.signature("quant8_asymm"), 1))
    scales = {"a": 0.5, "b": 0.25, "output": 0.125}
    for name, value in scales.items():
        call = call.with_operand(name, replace(call[name], scale=value))
    assert violations(call, FL1) == ["OUTPUT_SCALE"]
    larger = float(np.nextafter(np.float32(0.125), np.float32(1)))
    assert violations(call.with_operand("output", replace(call["output"], scale=larger)), FL1) == []


def test_levels_are_those_of_the_signatures() -> None:
    call = next(drawn(SUB, SUB.signature("quant8_asymm"), 1))
    assert violations(call, FL2) == ["SIGNATURE"]


# --- faults -----------------------------------------------------------------------------------------------------------


def without_activation(call: Call) -> Array | None:
    if call.integer("activation") == 0:
        return None
    return run_call(call.with_input("activation", scalar(call["activation"].type, 0)))["output"].stored


def remade(call: Call, change: Callable[[Array], Array]) -> Array:
    """The results with the real numbers changed before they are rounded and stored."""
    with np.errstate(all="ignore"):
        real = call.definition.kernel(Values(call))["output"]
        return store(change(real), call.results["output"]).stored


def truncated(call: Call) -> Array | None:
    output = call.results["output"]
    steps = run_call(call)["output"].exact
    return (np.trunc(steps - output.zero_point) + output.zero_point).astype(output.value.dtype)  # type: ignore[union-attr,no-any-return]


def rounded_down(call: Call) -> Array | None:
    return np.floor(run_call(call)["output"].exact).astype(call.results["output"].value.dtype)  # type: ignore[union-attr]


def wrapped(call: Call) -> Array | None:
    """Without saturation: the steps overflow."""
    output = call.results["output"]
    with np.errstate(all="ignore"):
        steps = np.rint(call.definition.kernel(Values(call))["output"] / output.scale) + output.zero_point
    stored = steps.astype(np.int64).astype(np.int32).astype(output.value.dtype)  # type: ignore[union-attr]
    return None if np.array_equal(steps, stored) else stored


def second_not_broadcast(call: Call) -> Array | None:
    """Takes the first element of the second operand wherever it is smaller than the result."""
    names = list(call.inputs)
    b = call[names[1]]
    assert b.value is not None
    if b.shape == call.results["output"].shape or b.value.size == 1:
        return None
    first = np.broadcast_to(b.value.reshape(-1)[:1], b.shape)
    return run_call(call.with_input(names[1], replace(b, value=first)))["output"].stored


def same_scale(call: Call) -> Array | None:
    """Reads the second operand with the scale and zero point of the first."""
    b = replace(call["b"], scale=call["a"].scale, zero_point=call["a"].zero_point)
    return run_call(call.with_input("b", b))["output"].stored


def in_half(call: Call) -> Array | None:
    return remade(call, lambda real: real.astype(np.float16).astype(np.float64))


def in_single(call: Call) -> Array | None:
    """Plain integers by way of float32."""
    a, b = (call[n].value.astype(np.float32) for n in ("a", "b"))  # type: ignore[union-attr]
    real = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "MAXIMUM": np.maximum}[call.definition.name](a, b)
    return np.clip(real.astype(np.float64), -(2**31), 2**31 - 1).astype(np.int32)


def toward_zero(call: Call) -> Array | None:
    a, b = (call[n].value.astype(np.int64) for n in ("a", "b"))  # type: ignore[union-attr]
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(np.int32)  # type: ignore[no-any-return]


def magnitude_of_base(call: Call) -> Array | None:
    base = call["base"]
    assert base.value is not None
    if base.value.min() >= 0:
        return None
    return run_call(call.with_input("base", replace(base, value=np.abs(base.value))))["output"].stored


# What goes wrong, in which definitions and type, and in which share of the draws that it changes it must be noticed.
FAULTS: dict[str, tuple[Callable[[Call], Array | None], tuple[OperationDef, ...], str, float]] = {
    "activation skipped": (without_activation, (ADD, SUB, MUL, DIV), "float32", 0.7),
    "activation skipped, quantised": (without_activation, (ADD, SUB, MUL), "quant8_asymm", 0.6),
    "truncates": (truncated, (ADD, SUB, MUL, MAXIMUM), "quant8_asymm", 0.1),
    "rounds down": (rounded_down, (ADD, SUB, MUL, MAXIMUM), "quant8_asymm_signed", 0.2),
    "wraps instead of saturating": (wrapped, (ADD, SUB, MUL, MAXIMUM), "quant8_asymm", 0.95),
    "second operand not broadcast": (second_not_broadcast, (ADD, SUB, MUL, DIV, MAXIMUM, POW), "float32", 0.7),
    "one scale for both": (same_scale, (ADD, SUB, MUL, MAXIMUM), "quant8_asymm", 0.8),
    "float16 arithmetic": (in_half, (ADD, SUB, MUL, DIV, POW), "float32", 0.6),
    "integers by way of float32": (in_single, (ADD, SUB, MUL, MAXIMUM), "int32", 0.25),
    "division toward zero": (toward_zero, (DIV,), "int32", 0.7),
    "sign of the base lost": (magnitude_of_base, (POW,), "float32", 0.7),
}


def detection(fault: str, count: int = 80) -> dict[str, tuple[int, int]]:
    """For each definition how often a fault was noticed, and how often it could change anything."""
    wrong, definitions, signature, _ = FAULTS[fault]
    found = {}
    for definition in definitions:
        noticed = tried = 0
        for call in drawn(definition, definition.signature(signature), count, "faults"):
            with np.errstate(all="ignore"):
                stored = wrong(call)
            if stored is None or np.array_equal(stored, call.results["output"].value):  # type: ignore[arg-type]
                continue
            tried += 1
            noticed += bool(complaints(call, {"output": stored}))
        found[definition.name] = (noticed, tried)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(fault: str) -> None:
    for name, (noticed, tried) in detection(fault).items():
        assert tried > 0, name
        assert noticed >= FAULTS[fault][3] * tried, f"{name}: {noticed} of {tried}"


def test_draws_broadcast_both_ways_and_reach_both_ends() -> None:
    first = second = both = low = high = 0
    for call in drawn(ADD, ADD.signature("quant8_asymm"), 200, "coverage"):
        shape = call.results["output"].shape
        one, two = call["a"].shape != shape, call["b"].shape != shape
        first, second, both = first + one, second + two, both + (one and two)
        value = call.results["output"].value
        assert value is not None
        low, high = low + bool((value == 0).any()), high + bool((value == 255).any())
    assert min(first, second) >= 30
    assert both >= 5
    assert min(low, high) >= 10


def test_the_scale_of_an_integer_tensor_means_nothing() -> None:
    a = Argument(I32, (2,), 0.5, value=np.array([4879, 1], np.int32))
    b = Argument(I32, (2,), value=np.array([3, 4], np.int32))
    definition = MAXIMUM
    signature = next(s for s in definition.signatures if s.id.startswith("int32"))
    call = Call(definition, signature, {"a": a, "b": b}, {"output": Argument(I32, (2,))})
    assert run_call(call)["output"].stored.tolist() == [4879, 4]
