"""Activations against ONNX, rational numbers and decimals; correct variants; faults; what is fixed or open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import Array
from opset import activation
from opset.activation import ELU, HARD_SWISH, LOGISTIC, PRELU, RELU, RELU1, RELU6, TANH
from opset.call import Call, scalar
from opset.definition import Q8, OperationDef
from opset.evaluate import allowance, run_call, store
from opset.quantization import FLOATS
from opset.validation import violations
from opset.values import Values
from tests.naive import assert_real, assert_steps, for_onnx, onnx_result, precisely, rational
from tests.variants import complaints, drawn, objections

DEFINITIONS = [d for d in vars(activation).values() if isinstance(d, OperationDef)]
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]


def _tanh(x: Decimal) -> Decimal:
    return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())


def _hard_swish(x: Fraction) -> Fraction:
    return x * max(Fraction(0), min(Fraction(6), x + 3)) / 6


TRUTH: dict[str, Callable[[Fraction, Fraction], Fraction | Decimal]] = {
    "RELU": lambda x, _: max(x, Fraction(0)),
    "RELU1": lambda x, _: min(max(x, Fraction(-1)), Fraction(1)),
    "RELU6": lambda x, _: min(max(x, Fraction(0)), Fraction(6)),
    "TANH": lambda x, _: precisely(_tanh)(x),
    "LOGISTIC": lambda x, _: precisely(lambda d: 1 / (1 + (-d).exp()))(x),
    "ELU": lambda x, alpha: x if x >= 0 else alpha * Fraction(precisely(lambda d: d.exp() - 1)(x)),
    "HARD_SWISH": lambda x, _: _hard_swish(x),
    "PRELU": lambda x, alpha: x if x >= 0 else x * alpha,
}


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_second_opinion(definition: OperationDef, signature: Signature) -> None:
    for call in drawn(definition, signature, 8, "second opinion"):
        (result,) = run_call(call).values()
        output = call.results["output"]
        for place in np.ndindex(result.stored.shape):
            x = rational(call["input"], place)
            alpha = rational(call["alpha"], place) if "alpha" in call.inputs else Fraction(0)
            with localcontext() as context:
                context.prec = 40
                real = TRUTH[definition.name](x, alpha)
            if output.type in FLOATS:
                assert_real(result, place, real, condition=float(abs(x)))
            else:
                assert_steps(result, output, place, Fraction(real))


def _by_onnx(call: Call) -> Array:
    x = for_onnx(call, "input")
    limit = {name: np.array(value, x.dtype) for name, value in (("0", 0), ("-1", -1), ("1", 1), ("6", 6))}
    if call.definition is RELU1:
        return onnx_result("Clip", x, limit["-1"], limit["1"])
    if call.definition is RELU6:
        return onnx_result("Clip", x, limit["0"], limit["6"])
    if call.definition is ELU:
        return onnx_result("Elu", x, alpha=float(call["alpha"].item()))
    if call.definition is PRELU:
        return onnx_result("PRelu", x, for_onnx(call, "alpha"))
    names = {RELU.name: "Relu", TANH.name: "Tanh", LOGISTIC.name: "Sigmoid", HARD_SWISH.name: "HardSwish"}
    return onnx_result(names[call.definition.name], x)


@pytest.mark.parametrize(("definition", "name"), [(d, n) for d in DEFINITIONS for n in ("float32", "float16")])
def test_second_opinion_of_onnx(definition: OperationDef, name: str) -> None:
    for call in drawn(definition, definition.signature(name), 30, "onnx"):
        assert complaints(call, {"output": _by_onnx(call)}) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_variants_pass(definition: OperationDef, signature: Signature) -> None:
    assert objections(definition, signature) == []


# --- fixed-point kernels as they are in use must pass too -------------------------------------------------------------


def _doubling_high(a: Array, b: int, *, rounding: bool) -> Array:
    """Upper 16 bits of twice the product of 16-bit numbers."""
    product = a.astype(np.int64) * b
    return (product + np.where(product >= 0, 1 << 14, 1 - (1 << 14))) // (1 << 15) if rounding else product >> 15


def hard_swish_in_16_bits(call: Call) -> Array:
    """HARD_SWISH with inputs scaled by 128 in 16 bits, the last product truncated, as mobile kernels do."""
    source, output = call["input"], call.results["output"]
    assert source.value is not None
    value = (source.value.astype(np.int64) - source.zero_point) * 128
    ends = np.iinfo(source.value.dtype)

    def multiplier(real: float) -> tuple[int, int]:
        mantissa, exponent = np.frexp(real)
        return int(min(round(float(mantissa) * 32768), 32767)), int(exponent)

    output_multiplier, output_shift = multiplier(source.scale / 128 / output.scale)
    relu_multiplier, relu_shift = multiplier(source.scale / 128 / (3 / 32768))
    assert output_shift <= 0
    gate = value
    if relu_shift > 0:
        gate = np.clip(gate << (relu_shift - 1), -32768, 32767)
    gate = _doubling_high(gate, relu_multiplier, rounding=True)
    if relu_shift > 0:
        gate = np.clip(gate * 2, -32768, 32767)
    elif relu_shift < 0:
        gate = (gate + (1 << (-relu_shift - 1))) >> -relu_shift
    gate = (gate + 32768) >> 1
    scaled = _doubling_high(value, output_multiplier, rounding=True)
    product = (gate * scaled) >> 15
    if output_shift < 0:
        product = (product + (1 << (-output_shift - 1))) >> -output_shift
    stored: Array = np.clip(product + output.zero_point, ends.min, ends.max).astype(source.value.dtype)
    return stored


@pytest.mark.parametrize("name", ["quant8_asymm", "quant8_asymm_signed"])
def test_hard_swish_in_fixed_point_passes(name: str) -> None:
    for call in drawn(HARD_SWISH, HARD_SWISH.signature(name), 300, "fixed point"):
        assert complaints(call, {"output": hard_swish_in_16_bits(call)}) == []


# --- rules and open results -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "scale", "zero_points"), [(TANH, 1 / 128, (128, 0)), (LOGISTIC, 1 / 256, (0, -128))]
)
def test_sigmoids_have_fixed_output_quantisation(
    definition: OperationDef, scale: float, zero_points: tuple[int, int]
) -> None:
    for name, zero_point in zip(("quant8_asymm", "quant8_asymm_signed"), zero_points, strict=True):
        call = next(drawn(definition, definition.signature(name), 1))
        output = call.results["output"]
        assert (output.scale, output.zero_point) == (scale, zero_point)
        other = replace(output, zero_point=zero_point + 1)
        assert violations(call.with_result("output", other)) == ["OUTPUT_QUANTIZATION"]


def test_elu_with_a_negative_slope_is_left_open() -> None:
    call = next(drawn(ELU, ELU.signature("float32"), 1))
    call = call.with_input("alpha", scalar(call["alpha"].type, -1.0))
    assert np.isinf(allowance(call, run_call(call))["output"].required).all()


def test_hard_swish_draws_keep_the_output_scale_within_what_kernels_take() -> None:
    for call in drawn(HARD_SWISH, HARD_SWISH.signature("quant8_asymm"), 300, "scale"):
        assert call["input"].scale / (128 * call.results["output"].scale) < 1


# --- faults -----------------------------------------------------------------------------------------------------------


def _stored(call: Call, change: Callable[[Array], Array]) -> Array:
    """A result that another function of the real input gives."""
    return store(change(Values(call)["input"]), call.results["output"]).stored


def _integers(call: Call, low: float, high: float) -> Array:
    """Clips stored values at ends that forget scale and zero point."""
    value = call["input"].value
    assert value is not None
    return np.clip(value, low, high).astype(value.dtype)


def _slope_everywhere(call: Call) -> Array:
    v = Values(call)
    return store(v["input"] * v["alpha"], call.results["output"]).stored


def _slope_one(call: Call) -> Array:
    v = Values(call)
    return store(v["input"] + 0 * v["alpha"], call.results["output"]).stored


def _one_slope(call: Call) -> Array:
    v = Values(call)
    x, alpha = v["input"], v["alpha"]
    real = np.where(x >= 0, x, x * alpha.reshape(-1)[0]) + 0 * alpha
    return store(real, call.results["output"]).stored


def _down(call: Call) -> Array:
    output = call.results["output"]
    assert output.value is not None
    return np.floor(run_call(call)["output"].exact).astype(output.value.dtype)


# What goes wrong, where, in which type, and in which share of the draws that it changes it must be noticed.
FAULTS: dict[str, tuple[OperationDef, str, Callable[[Call], Array], float]] = {
    "RELU does nothing": (RELU, "float32", lambda c: _stored(c, lambda x: x), 0.95),
    "RELU at stored 0": (RELU, "quant8_asymm_signed", lambda c: _integers(c, 0, 127), 0.7),
    "RELU1 is RELU": (RELU1, "float32", lambda c: _stored(c, lambda x: np.maximum(x, 0)), 0.95),
    "RELU1 below 0": (RELU1, "quant8_asymm", lambda c: _stored(c, lambda x: np.clip(x, 0, 1)), 0.9),
    "RELU6 is RELU": (RELU6, "quant8_asymm", lambda c: _stored(c, lambda x: np.maximum(x, 0)), 0.9),
    "RELU6 at stored 6": (RELU6, "quant8_asymm", lambda c: _integers(c, 0, 6), 0.95),
    "TANH is its linear part": (TANH, "float32", lambda c: _stored(c, lambda x: np.clip(x, -1, 1)), 0.95),
    "TANH rational": (
        TANH, "float32", lambda c: _stored(c, lambda x: x * (27 + x * x) / (27 + 9 * x * x)), 0.95),
    "TANH rounds down": (TANH, "quant8_asymm", _down, 0.2),
    "LOGISTIC hard": (LOGISTIC, "quant8_asymm", lambda c: _stored(c, lambda x: np.clip(0.2 * x + 0.5, 0, 1)), 0.8),
    "LOGISTIC rounds down": (LOGISTIC, "quant8_asymm_signed", _down, 0.2),
    "ELU is RELU": (ELU, "float32", lambda c: _stored(c, lambda x: np.maximum(x, 0)), 0.95),
    "ELU without slope": (ELU, "float32", lambda c: _stored(c, lambda x: np.where(x < 0, np.expm1(x), x)), 0.95),
    "ELU without 1": (ELU, "float32", lambda c: _stored(c, lambda x: np.where(x < 0, np.exp(x), x)), 0.95),
    "HARD_SWISH is SWISH": (HARD_SWISH, "float32", lambda c: _stored(c, lambda x: x / (1 + np.exp(-x))), 0.95),
    "HARD_SWISH without 6": (
        HARD_SWISH, "quant8_asymm", lambda c: _stored(c, lambda x: x * np.maximum(x + 3, 0) / 6), 0.8),
    "HARD_SWISH rounds down": (HARD_SWISH, "quant8_asymm", _down, 0.2),
    "PRELU on both sides": (PRELU, "float32", _slope_everywhere, 0.95),
    "PRELU without slope": (PRELU, "quant8_asymm", _slope_one, 0.9),
    "PRELU with one slope": (PRELU, "float32", _one_slope, 0.95),
    "PRELU rounds down": (PRELU, "quant8_asymm_signed", _down, 0.2),
}  # fmt: skip


def detection(fault: str, count: int = 80) -> dict[str, tuple[int, int]]:
    """How often a fault was noticed, and how often it could change anything."""
    definition, signature, wrong, _ = FAULTS[fault]
    noticed = tried = 0
    for call in drawn(definition, definition.signature(signature), count, "faults"):
        with np.errstate(all="ignore"):
            stored = wrong(call)
        value = call.results["output"].value
        assert value is not None
        if not np.array_equal(stored, value):
            tried += 1
            noticed += bool(complaints(call, {"output": stored}))
    return {definition.name: (noticed, tried)}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(fault: str) -> None:
    for noticed, tried in detection(fault).values():
        assert tried > 0
        assert noticed >= FAULTS[fault][3] * tried, f"{noticed} of {tried}"


def test_quantised_ends_are_counted_in_steps_of_the_input() -> None:
    """RELU6 with scale 0.7: 6 / 0.7 is 8.57, so the upper end is 9 steps above the zero point."""
    call = next(drawn(RELU6, RELU6.signature("quant8_asymm"), 1))
    value = np.array([0, 100, 108, 109, 200], np.uint8)
    operand = replace(call["input"], shape=(5,), scale=float(np.float32(0.7)), zero_point=100, value=value)
    call = call.with_input("input", operand).with_result("output", replace(operand, type=Q8, value=None))
    assert run_call(call)["output"].stored.tolist() == [100, 100, 108, 109, 109]
