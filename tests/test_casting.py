from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import FL3, FL4, Array, OperandType, info
from opset.call import Call, with_shape
from opset.casting import CAST, DEQUANTIZE, QUANTIZE
from opset.definition import F16, F32, I32, Q8, OperationDef
from opset.drawing import Scope, UnsatisfiableError
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.quantization import QUANTIZED, limits
from opset.source import SeededSource
from opset.validation import violations
from opset.values import Values
from tests.judging import complaints_on_variants, detection, draws, noticed, to_steps

SIGNATURES = [(d, s) for d in (CAST, QUANTIZE, DEQUANTIZE) for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]
FORMATS = {F32: "<f", F16: "<e"}


def in_float(value: object, kind: OperandType) -> float:
    """A number as the C library's conversion stores it."""
    layout = FORMATS[kind]
    return struct.unpack(layout, struct.pack(layout, value))[0]


def cast(value: object, source: OperandType, target: OperandType) -> object:
    if source == target:
        return value
    if target in FORMATS:
        return in_float(value, target)
    return min(max(int(value), 0), 255) if target == Q8 else int(value)


def scale_of(call: Call, place: tuple[int, ...]) -> float:
    x = call["input"]
    return x.scale if x.channel is None else x.channel.scales[place[x.channel.channel_dim]]


def by_numbers(call: Call, place: tuple[int, ...]) -> tuple[object, bool]:
    """One element of the result by Python's own numbers, and whether it is clear of a tie that rounding moves."""
    x, output = call["input"], call["output"]
    value = x.value[place].item()
    if call.definition is CAST:
        return cast(value, x.type, output.type), True
    if call.definition is QUANTIZE:
        steps, margin = to_steps(Fraction(value), output.scale, output.zero_point, *limits(output.type))
        return steps, margin == 0 or margin > 1e-9
    return in_float(float((value - x.zero_point) * Fraction(scale_of(call, place))), output.type), True


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_second_opinion(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 30, "opinion"):
        result = run_call(call)["output"].stored
        for place in np.ndindex(result.shape):
            due, clear = by_numbers(call, place)
            assert result[place].item() == due or not clear


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 200 if definition is not CAST else 60) == []


def by_reciprocal(call: Call) -> Mapping[str, Array]:
    """Multiplied by 1 / scale in float32, ties to even: within a step, and rarely off."""
    output = call["output"]
    steps = call["input"].value.astype(np.float32) * (np.float32(1) / np.float32(output.scale))
    return {"output": np.clip(np.rint(steps) + output.zero_point, *limits(output.type)).astype(info(output.type).dtype)}


@pytest.mark.parametrize("signature", QUANTIZE.signatures, ids=lambda s: s.id)
def test_quantisation_by_the_reciprocal_passes(signature: Signature) -> None:
    assert detection(QUANTIZE, signature, by_reciprocal, 200)[0] == 0


def affine(call: Call) -> Mapping[str, Array] | None:
    """scale * q - scale * zero point, each product rounded to float32."""
    x = call["input"]
    if x.channel is not None:
        return None
    scale = np.float32(x.scale)
    real = scale * x.value.astype(np.float32) - scale * np.float32(x.zero_point)
    return {"output": real.astype(info(call["output"].type).dtype)}


@pytest.mark.parametrize("signature", DEQUANTIZE.signatures, ids=lambda s: s.id)
def test_dequantisation_in_affine_form_passes(signature: Signature) -> None:
    assert detection(DEQUANTIZE, signature, affine, 400)[0] == 0


# --- faults -----------------------------------------------------------------------------------------------------------


def of_type(values: Array, call: Call) -> Mapping[str, Array]:
    return {"output": values.astype(info(call["output"].type).dtype)}


def from_float_to(*kinds: OperandType) -> Callable[[Call], bool]:
    return lambda call: call["input"].type in (F32, F16) and call["output"].type in kinds


def rounded_cast(call: Call) -> Mapping[str, Array] | None:
    if not from_float_to(Q8, I32)(call):
        return None
    return of_type(np.clip(np.rint(call["input"].value.astype(np.float64)), *limits(call["output"].type)), call)


def floored_cast(call: Call) -> Mapping[str, Array] | None:
    return of_type(np.floor(call["input"].value), call) if from_float_to(I32)(call) else None


def wrapped_cast(call: Call) -> Mapping[str, Array] | None:
    if call["output"].type != Q8 or call["input"].type == Q8:
        return None
    return of_type(call["input"].value.astype(np.int64), call)


def real_values(call: Call) -> Mapping[str, Array] | None:
    """Scale and zero point are not ignored."""
    if call["input"].type != Q8 or call["output"].type == Q8:
        return None
    return of_type(Values(call)["input"], call)


def as_signed(call: Call) -> Mapping[str, Array] | None:
    if call["input"].type != Q8 or call["output"].type == Q8:
        return None
    return of_type(call["input"].value.astype(np.int8), call)


def through_half(call: Call) -> Mapping[str, Array] | None:
    if call["output"].type != F32 or call["input"].type in (F16, Q8):
        return None
    with np.errstate(over="ignore"):
        return of_type(call["input"].value.astype(np.float16), call)


def requantised(call: Call) -> Mapping[str, Array] | None:
    """An identity that minds the scales."""
    x, output = call["input"], call["output"]
    if x.type != output.type or x.type not in QUANTIZED:
        return None
    steps = np.rint(Values(call)["input"] / output.scale) + output.zero_point
    return of_type(np.clip(steps, *limits(output.type)), call)


def steps_of(call: Call) -> Array:
    return Values(call)["input"] / call["output"].scale + call["output"].zero_point


def cut(call: Call) -> Mapping[str, Array] | None:
    """Truncated toward the zero point."""
    output = call["output"]
    steps = np.trunc(steps_of(call) - output.zero_point) + output.zero_point
    return of_type(np.clip(steps, *limits(output.type)), call)


def rounded_down(call: Call) -> Mapping[str, Array] | None:
    return of_type(np.clip(np.floor(steps_of(call)), *limits(call["output"].type)), call)


def wrapped(call: Call) -> Mapping[str, Array] | None:
    steps = steps_of(call) - call["output"].zero_point
    return of_type(np.trunc(steps + np.copysign(0.5, steps)).astype(np.int64) + call["output"].zero_point, call)


def no_zero_point(call: Call) -> Mapping[str, Array] | None:
    name = "output" if call.definition is QUANTIZE else "input"
    other = call.with_operand(name, replace(call[name], zero_point=0))
    return {n: r.stored for n, r in run_call(other).items()}


def zero_point_off_by_one(call: Call) -> Mapping[str, Array] | None:
    x = call["input"]
    return {"output": run_call(call.with_input("input", replace(x, zero_point=x.zero_point + 1)))["output"].stored}


def scales_of_another_dimension(call: Call) -> Mapping[str, Array] | None:
    x = call["input"]
    if x.channel is None or x.rank < 2:
        return None
    scales = np.resize(np.asarray(x.channel.scales), x.value.size).reshape(x.shape)
    return of_type(x.value * scales, call)


def first_scale_only(call: Call) -> Mapping[str, Array] | None:
    x = call["input"]
    return of_type(x.value * x.channel.scales[0], call) if x.channel is not None else None


FAULTS: list[tuple[OperationDef, Callable[[Call], Mapping[str, Array] | None], float]] = [
    (CAST, rounded_cast, 0.65),
    (CAST, floored_cast, 0.9),
    (CAST, wrapped_cast, 0.9),
    (CAST, real_values, 0.9),
    (CAST, as_signed, 0.9),
    (CAST, through_half, 0.9),
    (CAST, requantised, 0.9),
    (QUANTIZE, cut, 0.25),
    (QUANTIZE, rounded_down, 0.4),
    (QUANTIZE, wrapped, 0.9),
    (QUANTIZE, no_zero_point, 0.9),
    (DEQUANTIZE, no_zero_point, 0.9),
    (DEQUANTIZE, zero_point_off_by_one, 0.8),
    (DEQUANTIZE, scales_of_another_dimension, 0.9),
    (DEQUANTIZE, first_scale_only, 0.9),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_faults_are_noticed(definition: OperationDef, fault, least: float) -> None:
    counts = [detection(definition, signature, fault, 60) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 0
    assert seen >= least * changed, f"{seen} of {changed}"


# --- what is drawn, left open and ruled -------------------------------------------------------------------------------


def test_both_ends_saturate() -> None:
    for definition, signature in SIGNATURES:
        if definition is DEQUANTIZE or signature.row.types["output"] != Q8:
            continue
        ends = {value for c in draws(definition, signature, 60, "ends") for value in np.unique(c["output"].value)}
        assert {0, 255} <= ends


def test_ties_are_drawn_and_go_away_from_zero() -> None:
    signature = QUANTIZE.signature("float16_to_quant8_asymm_signed")
    ties = 0
    for call in draws(QUANTIZE, signature, 100, "ties"):
        output = call["output"]
        for value, stored in zip(call["input"].value.reshape(-1), output.value.reshape(-1), strict=True):
            steps = Fraction(float(value)) / Fraction(output.scale)
            if steps % 1 == Fraction(1, 2) and -128 < stored < 127:
                ties += 1
                assert abs(int(stored) - output.zero_point) > abs(steps)
    assert ties > 50


def test_infinities_saturate_and_nan_is_open() -> None:
    call = next(draws(QUANTIZE, QUANTIZE.signature("float32_to_quant8_asymm"), 1, "open"))
    value = np.array([np.inf, -np.inf, np.nan, 0.0], np.float32)
    odd = call.with_input("input", replace(call["input"], shape=(4,), value=value))
    odd = odd.with_result("output", replace(call["output"], shape=(4,)))
    stored = run_call(odd)["output"].stored
    assert stored[:2].tolist() == [255, 0]
    for byte in (0, 255):
        assert not noticed(odd, {"output": np.array([*stored[:2], byte, stored[3]], np.uint8)})


def test_float_beyond_int32_is_open() -> None:
    call = next(draws(CAST, CAST.signature("float32_to_int32"), 1, "open"))
    value = np.array([2.0**31, -(2.0**31), 3e9, np.nan, -7.9], np.float32)
    odd = call.with_input("input", replace(call["input"], shape=(5,), value=value))
    odd = odd.with_result("output", replace(call["output"], shape=(5,)))
    for other in (0, 2**31 - 1):
        assert not noticed(odd, {"output": np.array([other, -(2**31), other, other, -7], np.int32)})
    assert noticed(odd, {"output": np.array([0, 0, 0, 0, -7], np.int32)})
    assert noticed(odd, {"output": np.array([0, -(2**31), 0, 0, -8], np.int32)})


def test_cast_to_another_shape_is_refused() -> None:
    call = next(draws(CAST, CAST.signature("int32_to_float32"), 1, "shape"))
    assert violations(with_shape(call, "output", (*call["output"].shape, 1))) == ["SHAPE"]


def test_int32_to_int32_is_asked_for_from_level_4_on() -> None:
    signature = CAST.signature("int32_to_int32")
    assert signature.since == FL3
    with pytest.raises(UnsatisfiableError, match=r"1\.3"):
        draw_call(CAST, signature, Scope(SeededSource("early"), level=FL3))
    assert violations(draw_call(CAST, signature, Scope(SeededSource("late"), level=FL4))) == []


def test_results_of_symmetric_types_have_zero_point_0() -> None:
    for name in ("quant16_symm_identity", "quant8_symm_identity"):
        for call in draws(CAST, CAST.signature(name), 40, "symmetric"):
            assert call["input"].zero_point == call["output"].zero_point == 0
            assert call["output"].scale > 0


def test_channels_lie_along_every_dimension() -> None:
    signature = DEQUANTIZE.signature("per_channel_to_float32")
    found = {(c["input"].rank, c["input"].channel.channel_dim) for c in draws(DEQUANTIZE, signature, 200, "channels")}
    assert found == {(rank, axis) for rank in (1, 2, 3, 4) for axis in range(rank)}
