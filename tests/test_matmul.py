from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from nnhal.operations import Signature
from nnhal.types import FL1, FL2, FL3, FL8, Array, OperandType, info
from opset.call import Call, scalar, with_shape
from opset.definition import Q8, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.matmul import BATCH_MATMUL, FULLY_CONNECTED
from opset.quantization import QUANTIZED, limits, quantize
from opset.source import SeededSource
from opset.validation import needed_level, violations
from opset.values import Values
from tests.judging import complaints_on_variants, detection, draws, noticed, to_steps

SIGNATURES = [(d, s) for d in (FULLY_CONNECTED, BATCH_MATMUL) for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]
DOUBLE = onnx.TensorProto.DOUBLE


def evaluator(operation: str, inputs: int, **attributes: object) -> ReferenceEvaluator:
    """ONNX's reference evaluator of one operation in double precision."""
    names = [f"i{n}" for n in range(inputs)]
    node = onnx.helper.make_node(operation, names, ["o"], **attributes)
    known = [onnx.helper.make_tensor_value_info(name, DOUBLE, None) for name in names]
    result = [onnx.helper.make_tensor_value_info("o", DOUBLE, None)]
    return ReferenceEvaluator(onnx.helper.make_model(onnx.helper.make_graph([node], "g", known, result)))


GEMM = evaluator("Gemm", 3, transB=1)
MATMUL = evaluator("MatMul", 2)


def by_onnx(call: Call) -> Array:
    """Real results by ONNX's evaluator, the activation by the documents' formula."""
    real = {name: Values(call)[name] for name in list(call.inputs)[:2]}
    if call.definition is FULLY_CONNECTED:
        size = call["weights"].shape[1]
        x = real["input"].reshape(-1, size)
        total = GEMM.run(None, {"i0": x, "i1": real["weights"], "i2": Values(call)["bias"]})[0]
        code = call.integer("activation")
        low, high = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}[code]
        return np.clip(total, low, high)
    sides = [v.swapaxes(-1, -2) if call[f"adj_{n}"].item() else v for n, v in real.items()]
    return MATMUL.run(None, {"i0": sides[0], "i1": sides[1]})[0]


def by_loops(call: Call) -> tuple[Array, Array]:
    """Stored results of an integer type by exact loops, and each one's distance from a tie."""
    shape = call["output"].shape
    first, second = list(call.inputs)[:2]
    a, b = (call[n].value.astype(object) - call[n].zero_point for n in (first, second))
    if call.definition is FULLY_CONNECTED:
        a, b = a.reshape(-1, call["weights"].shape[1]), b.T
    else:
        a = a.swapaxes(-1, -2) if call["adj_lhs"].item() else a
        b = b.swapaxes(-1, -2) if call["adj_rhs"].item() else b
    output = call["output"]
    stored, margin = np.zeros(shape, object), np.ones(shape)
    for place in itertools.product(*map(range, shape)):
        *lead, row, column = place
        left, right = a[(*lead, row)], b[tuple(lead)][:, column]
        total = sum(int(p) * int(q) for p, q in zip(left, right, strict=True))
        if output.type not in QUANTIZED:
            stored[place] = total
            continue
        if "bias" in call.inputs:
            total += int(call["bias"].value[column])
        real = total * Fraction(call[first].scale) * Fraction(call[second].scale)
        if "activation" in call.inputs:
            code = call.integer("activation")
            real = max(real, Fraction(-1 if code == 2 else 0)) if code else real
            real = min(real, Fraction({2: 1, 3: 6}[code])) if code > 1 else real
        stored[place], margin[place] = to_steps(real, output.scale, output.zero_point, *limits(output.type))
    return stored.astype(info(output.type).dtype), margin


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_second_opinion(definition: OperationDef, signature: Signature) -> None:
    floats = signature.row.types["output"] in (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)
    for call in draws(definition, signature, 200 if floats else 60, "opinion"):
        result = run_call(call)["output"]
        if floats:
            np.testing.assert_allclose(result.exact, by_onnx(call), rtol=1e-12, atol=1e-11)
        else:
            stored, margin = by_loops(call)
            assert np.array_equal(result.stored[margin > 1e-9], stored[margin > 1e-9])


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 200) == []


# --- a fixed-point implementation, as public code has it -------------------------------------------------------------


def fixed_point(total: int, multiplier: float) -> int:
    """total * multiplier by a 31-bit factor and a shift, each with its own rounding."""
    fraction, exponent = math.frexp(multiplier)
    factor = math.floor(fraction * 2**31 + 0.5)
    if factor == 2**31:
        factor, exponent = factor // 2, exponent + 1
    product = total * 2 ** max(exponent, 0) * factor
    nudge = 2**30 if product >= 0 else 1 - 2**30
    high = int(Fraction(product + nudge, 2**31))
    shift = max(-exponent, 0)
    whole = (abs(high) + (2**shift >> 1)) >> shift
    return whole if high >= 0 else -whole


def in_fixed_point(call: Call) -> Mapping[str, Array]:
    wide = replace(call["output"], type=OperandType.TENSOR_INT32, scale=0.0, zero_point=0)
    plain = call.with_result("output", wide)
    first, second = list(call.inputs)[:2]
    product = float(np.float32(call[first].scale) * np.float32(call[second].scale))
    totals = np.rint(call.definition.kernel(Values(plain, linear=True))["output"] / product).astype(np.int64)
    output = call["output"]
    low, high = limits(output.type)
    ends = {1: (0, None), 2: (-1, 1), 3: (0, 6)}.get(call.integer("activation") if call.has("activation") else 0)
    if ends is not None:
        low, high = (
            end if real is None else int(quantize(np.float64(real), output.type, output.scale, output.zero_point))
            for end, real in zip((low, high), ends, strict=True)
        )
    multiplier = product / output.scale
    steps = [min(max(fixed_point(int(t), multiplier) + output.zero_point, low), high) for t in totals.reshape(-1)]
    return {"output": np.array(steps, info(output.type).dtype).reshape(totals.shape)}


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_fixed_point_requantisation_passes(definition: OperationDef, signature: Signature) -> None:
    if signature.row.types["output"] not in QUANTIZED:
        return
    for call in draws(definition, signature, 150, "fixed point"):
        assert not noticed(call, in_fixed_point(call))


# --- faults -----------------------------------------------------------------------------------------------------------


def rerun(call: Call, **changes: object) -> Mapping[str, Array]:
    """Results with an input's value, scale or zero point exchanged; of the call's own shape and quantisation."""
    for name, change in changes.items():
        call = call.with_input(name, replace(call[name], **change))
    return {name: result.stored for name, result in run_call(call).items()}


def no_bias(call: Call) -> Mapping[str, Array] | None:
    return rerun(call, bias={"value": np.zeros_like(call["bias"].value)})


def no_activation(call: Call) -> Mapping[str, Array] | None:
    return {n: r.stored for n, r in run_call(call.with_input("activation", scalar(OperandType.INT32, 0))).items()}


def weights_not_transposed(call: Call) -> Mapping[str, Array] | None:
    value = call["weights"].value
    return rerun(call, weights={"value": value.reshape(value.shape[::-1]).T})


def no_zero_point(name: str):
    def fault(call: Call) -> Mapping[str, Array] | None:
        return rerun(call, **{name: {"zero_point": 0}}) if call[name].type in QUANTIZED else None

    return fault


def rounded_down(call: Call) -> Mapping[str, Array] | None:
    output = call["output"]
    if output.type not in QUANTIZED:
        return None
    return {"output": np.floor(run_call(call)["output"].exact).astype(info(output.type).dtype)}


def toward_zero(call: Call) -> Mapping[str, Array] | None:
    output = call["output"]
    if output.type not in QUANTIZED:
        return None
    steps = run_call(call)["output"].exact - output.zero_point
    return {"output": (np.trunc(steps) + output.zero_point).astype(info(output.type).dtype)}


def wrapped(call: Call) -> Mapping[str, Array] | None:
    output = call["output"]
    if output.type not in QUANTIZED:
        return None
    steps = call.definition.kernel(Values(call))["output"] / output.scale + output.zero_point
    return {"output": np.rint(steps).astype(np.int64).astype(info(output.type).dtype)}


def last_term_dropped(call: Call) -> Mapping[str, Array] | None:
    first = next(iter(call.inputs))
    value = call[first].value.copy()
    if call.definition is FULLY_CONNECTED:
        value.reshape(-1, call["weights"].shape[1])[:, -1] = call[first].zero_point
    else:
        value[(..., -1, slice(None)) if call["adj_lhs"].item() else (..., -1)] = call[first].zero_point
    return rerun(call, **{first: {"value": value}})


def flags_ignored(call: Call) -> Mapping[str, Array] | None:
    """The memory is read as if the matrix were not transposed."""
    changes = {}
    for name in ("lhs", "rhs"):
        value = call[name].value
        if call[f"adj_{name}"].item():
            turned = value.reshape(*value.shape[:-2], value.shape[-1], value.shape[-2])
            changes[name] = {"value": turned.swapaxes(-1, -2)}
    return rerun(call, **changes) if changes else None


def first_batch_only(call: Call) -> Mapping[str, Array] | None:
    value = call["rhs"].value
    if value.ndim == 2:
        return None
    return rerun(call, rhs={"value": np.broadcast_to(value[:1], value.shape)})


def float_sum(call: Call) -> Mapping[str, Array] | None:
    if call["output"].type != OperandType.TENSOR_INT32:
        return None
    lhs, rhs = (call[n].value.astype(np.float32) for n in ("lhs", "rhs"))
    lhs = lhs.swapaxes(-1, -2) if call["adj_lhs"].item() else lhs
    rhs = rhs.swapaxes(-1, -2) if call["adj_rhs"].item() else rhs
    return {"output": (lhs @ rhs).astype(np.int32)}


FAULTS = [
    (FULLY_CONNECTED, no_bias, 0.9),
    (FULLY_CONNECTED, no_activation, 0.9),
    (FULLY_CONNECTED, weights_not_transposed, 0.9),
    (FULLY_CONNECTED, no_zero_point("input"), 0.9),
    (FULLY_CONNECTED, no_zero_point("weights"), 0.9),
    (FULLY_CONNECTED, rounded_down, 0.35),
    (FULLY_CONNECTED, toward_zero, 0.2),
    (FULLY_CONNECTED, wrapped, 0.9),
    (FULLY_CONNECTED, last_term_dropped, 0.9),
    (BATCH_MATMUL, flags_ignored, 0.9),
    (BATCH_MATMUL, first_batch_only, 0.9),
    (BATCH_MATMUL, float_sum, 0.9),
    (BATCH_MATMUL, no_zero_point("lhs"), 0.9),
    (BATCH_MATMUL, rounded_down, 0.5),
    (BATCH_MATMUL, toward_zero, 0.2),
    (BATCH_MATMUL, wrapped, 0.9),
    (BATCH_MATMUL, last_term_dropped, 0.9),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_faults_are_noticed(definition: OperationDef, fault, least: float) -> None:
    counts = [detection(definition, signature, fault, 60) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 0
    assert seen >= least * changed, f"{seen} of {changed}"


# --- rules and levels -------------------------------------------------------------------------------------------------


def test_small_output_scale_needs_level_3() -> None:
    signature = FULLY_CONNECTED.signature("quant8_asymm")
    found = set()
    for call in draws(FULLY_CONNECTED, signature, 200, "levels"):
        product = np.float32(call["input"].scale) * np.float32(call["weights"].scale)
        small = bool(call["output"].scale <= product)
        assert needed_level(call) == (FL3 if small else FL1)
        found.add(small)
    assert found == {True, False}


@pytest.mark.parametrize("level", [FL1, FL2, FL3, FL8])
def test_draws_keep_to_their_level(level: int) -> None:
    for signature in FULLY_CONNECTED.signatures:
        if signature.since > level:
            continue
        for number in range(40):
            call = draw_call(FULLY_CONNECTED, signature, Scope(SeededSource(f"level/{number}"), level=level))
            assert violations(call) == []


def test_shapes_of_fully_connected_are_checked_at_validation() -> None:
    signature = FULLY_CONNECTED.signature("float32")
    call = next(draws(FULLY_CONNECTED, signature, 1, "shapes"))
    units, size = call["weights"].shape
    assert violations(with_shape(call, "bias", (units + 1,))) == ["BIAS_LENGTH"]
    assert violations(with_shape(call, "weights", (units, size * 1000 + 1))) == ["INPUT_SIZE"]
    assert violations(with_shape(call, "input", (*call["input"].shape[:1], 1, 1, 1, size))) == ["RANK_INPUT"]


def test_input_of_several_ranks_is_flattened() -> None:
    seen = set()
    for call in draws(FULLY_CONNECTED, FULLY_CONNECTED.signature("float32"), 200, "ranks"):
        seen.add((call["input"].rank, call["input"].shape[-1] == call["weights"].shape[1]))
    assert seen >= {(rank, whole) for rank in (2, 3, 4) for whole in (True, False)}


def test_every_activation_clips_in_most_draws() -> None:
    clips: dict[int, list[bool]] = {1: [], 2: [], 3: []}
    for call in draws(FULLY_CONNECTED, FULLY_CONNECTED.signature("float32"), 300, "clips"):
        code = call.integer("activation")
        if code:
            linear = FULLY_CONNECTED.kernel(Values(call, linear=True))["output"]
            clips[code].append(bool(np.any(linear != run_call(call)["output"].exact)))
    assert all(np.mean(share) > 0.8 for share in clips.values())


def test_integer_sum_beyond_32_bits_is_left_open() -> None:
    signature = BATCH_MATMUL.signature("int32")
    call = next(draws(BATCH_MATMUL, signature, 1, "open"))
    big = call.with_input("lhs", replace(call["lhs"], value=np.full_like(call["lhs"].value, 2**30)))
    big = big.with_input("rhs", replace(call["rhs"], value=np.full_like(call["rhs"].value, 4)))
    zero = {"output": np.zeros_like(call["output"].value)}
    assert not noticed(big, zero)
    assert noticed(call, zero)


def test_empty_batch_gives_empty_output() -> None:
    call = next(draws(FULLY_CONNECTED, FULLY_CONNECTED.signature("quant8_asymm"), 1, "empty"))
    size = call["weights"].shape[1]
    empty = call.with_input("input", replace(call["input"], shape=(0, size), value=np.zeros((0, size), np.uint8)))
    shape = FULLY_CONNECTED.infer(empty)["output"]
    assert shape == (0, call["weights"].shape[0])
    assert FULLY_CONNECTED.kernel(Values(empty))["output"].shape == shape
    assert empty["input"].type == Q8
