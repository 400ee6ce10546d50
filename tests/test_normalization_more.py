from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import FL1, FL3, FL4, FL8, Array, OperandType, info
from opset.call import Call, scalar, with_shape
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.norms import INSTANCE_NORMALIZATION, L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION
from opset.quantization import QUANTIZED
from opset.source import SeededSource
from opset.validation import needed_level, violations
from opset.values import Values
from tests.judging import complaints_on_variants, detection, draws, noticed
from tests.naive import assert_real, assert_steps, decimal, onnx_result, rational
from tests.variants import objections

DEFINITIONS = (L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION, INSTANCE_NORMALIZATION)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]
DIGITS = 40


def axis_of(call: Call) -> int:
    return (call.integer("axis") if call.has("axis") else -1) % call["input"].rank


def line(place: tuple[int, ...], axis: int, size: int) -> list[tuple[int, ...]]:
    """All places along an axis through one."""
    return [(*place[:axis], i, *place[axis + 1 :]) for i in range(size)]


def is_nchw(call: Call) -> bool:
    return bool(call["nchw"].item())


# --- second opinions --------------------------------------------------------------------------------------------------


def l2_by_decimals(call: Call, place: tuple[int, ...]) -> Decimal | Fraction:
    x, axis = call["input"], axis_of(call)
    squares = sum(rational(x, p) ** 2 for p in line(place, axis, x.shape[axis]))
    if not squares:
        return Fraction(0)
    with localcontext() as context:
        context.prec = DIGITS
        square = Decimal(squares.numerator) / Decimal(squares.denominator)
        return decimal(rational(x, place)) / square.sqrt()


def local_by_decimals(call: Call, place: tuple[int, ...]) -> Decimal:
    x, axis, radius = call["input"], axis_of(call), call.integer("radius")
    around = [p for p in line(place, axis, x.shape[axis]) if abs(p[axis] - place[axis]) <= radius]
    base = Fraction(call["bias"].item()) + Fraction(call["alpha"].item()) * sum(rational(x, p) ** 2 for p in around)
    with localcontext() as context:
        context.prec = DIGITS
        power = (-decimal(Fraction(call["beta"].item())) * decimal(base).ln()).exp()
        return decimal(rational(x, place)) * power


@pytest.mark.parametrize("signature", L2_NORMALIZATION.signatures, ids=lambda s: s.id)
def test_l2_agrees_with_decimals(signature: Signature) -> None:
    for call in draws(L2_NORMALIZATION, signature, 12, "opinion"):
        result, output = run_call(call)["output"], call["output"]
        for place in list(np.ndindex(output.shape))[::3]:
            real = l2_by_decimals(call, place)
            if output.type in QUANTIZED:
                assert_steps(result, output, place, Fraction(real))
            else:
                assert_real(result, place, real)


@pytest.mark.parametrize("signature", LOCAL_RESPONSE_NORMALIZATION.signatures, ids=lambda s: s.id)
def test_local_response_agrees_with_decimals(signature: Signature) -> None:
    for call in draws(LOCAL_RESPONSE_NORMALIZATION, signature, 12, "opinion"):
        result = run_call(call)["output"]
        for place in list(np.ndindex(call["output"].shape))[::5]:
            assert_real(result, place, local_by_decimals(call, place), 1e-3)


@pytest.mark.parametrize("signature", INSTANCE_NORMALIZATION.signatures, ids=lambda s: s.id)
def test_instances_agree_with_onnx(signature: Signature) -> None:
    for call in draws(INSTANCE_NORMALIZATION, signature, 60, "onnx"):
        x = call["input"].value.astype(np.float32)
        x = x if is_nchw(call) else np.moveaxis(x, 3, 1)
        factors = [np.full(x.shape[1], call[name].item(), np.float32) for name in ("gamma", "beta")]
        got = onnx_result("InstanceNormalization", x, *factors, epsilon=float(call["epsilon"].item()))
        got = got if is_nchw(call) else np.moveaxis(got, 1, 3)
        np.testing.assert_allclose(got, run_call(call)["output"].exact, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("signature", INSTANCE_NORMALIZATION.signatures, ids=lambda s: s.id)
def test_instances_agree_with_numpy(signature: Signature) -> None:
    """Planes one by one, with NumPy's own mean and variance."""
    for call in draws(INSTANCE_NORMALIZATION, signature, 100, "opinion"):
        x = call["input"].value.astype(np.float64)
        x = x if is_nchw(call) else np.moveaxis(x, 3, 1)
        gamma, beta, epsilon = (float(call[name].item()) for name in ("gamma", "beta", "epsilon"))
        due = np.empty_like(x)
        for image, channel in np.ndindex(x.shape[:2]):
            plane = x[image, channel]
            due[image, channel] = (plane - np.mean(plane)) / (np.var(plane) + epsilon) ** 0.5 * gamma + beta
        due = due if is_nchw(call) else np.moveaxis(due, 1, 3)
        np.testing.assert_allclose(run_call(call)["output"].exact, due, rtol=1e-11, atol=1e-11)


# --- correct but different --------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 200) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_half_precision_passes_where_it_may(definition: OperationDef, signature: Signature) -> None:
    assert objections(definition, signature, 100) == []


def one_pass(call: Call) -> Mapping[str, Array]:
    """Variance as mean of squares less square of the mean, sums one by one, all in the tensor's type."""
    x = call["input"].value
    x = np.moveaxis(x, 1, 3) if is_nchw(call) else x
    total = squares = np.zeros((x.shape[0], x.shape[3]), x.dtype)
    for row, column in np.ndindex(x.shape[1:3]):
        total = total + x[:, row, column]
        squares = squares + x[:, row, column] * x[:, row, column]
    count = x.dtype.type(x.shape[1] * x.shape[2])
    mean = total / count
    variance = np.maximum(squares / count - mean * mean, x.dtype.type(0))
    gamma, beta, epsilon = (x.dtype.type(call[name].item()) for name in ("gamma", "beta", "epsilon"))
    factor = gamma / np.sqrt(variance + epsilon)
    y = x * factor[:, None, None] + (beta - mean * factor)[:, None, None]
    return {"output": np.moveaxis(y, 3, 1) if is_nchw(call) else y}


@pytest.mark.parametrize("signature", INSTANCE_NORMALIZATION.signatures, ids=lambda s: s.id)
def test_one_pass_over_an_instance_passes(signature: Signature) -> None:
    for call in draws(INSTANCE_NORMALIZATION, signature, 200, "pass"):
        assert not noticed(call, one_pass(call))


def by_logarithm(call: Call) -> Mapping[str, Array]:
    """Powers as exponentials of a product, in the tensor's type."""
    x = np.moveaxis(call["input"].value, axis_of(call), 0)
    bias, alpha, beta = (x.dtype.type(call[name].item()) for name in ("bias", "alpha", "beta"))
    radius, total = min(call.integer("radius"), len(x)), np.zeros_like(x)
    for shift in range(-radius, radius + 1):
        low, high = max(0, -shift), min(len(x), len(x) - shift)
        if low < high:
            total[low:high] = total[low:high] + x[low + shift : high + shift] ** 2
    y = x * np.exp(-beta * np.log(bias + alpha * total))
    return {"output": np.moveaxis(y, 0, axis_of(call))}


@pytest.mark.parametrize("signature", LOCAL_RESPONSE_NORMALIZATION.signatures, ids=lambda s: s.id)
def test_powers_by_logarithms_pass(signature: Signature) -> None:
    for call in draws(LOCAL_RESPONSE_NORMALIZATION, signature, 200, "log"):
        assert not noticed(call, by_logarithm(call))


def fixed_point(call: Call) -> Mapping[str, Array]:
    """An inverse root as an integer of 30 bits and a product that is rounded once: what public code does."""
    x, axis, output = call["input"], axis_of(call), call["output"]
    centred = x.value.astype(np.int64) - x.zero_point
    squares = (centred * centred).sum(axis=axis, keepdims=True)
    inverse = np.rint(2.0**30 / np.sqrt(np.maximum(squares, 1))).astype(np.int64)
    scaled = (centred * 128 * inverse + 2**29) >> 30
    ends = np.iinfo(info(output.type).dtype)
    return {"output": np.clip(scaled + output.zero_point, ends.min, ends.max).astype(info(output.type).dtype)}


@pytest.mark.parametrize("signature", L2_NORMALIZATION.signatures[4:], ids=lambda s: s.id)
def test_fixed_point_norms_pass(signature: Signature) -> None:
    for call in draws(L2_NORMALIZATION, signature, 200, "fixed"):
        assert not noticed(call, fixed_point(call))


# --- faults -----------------------------------------------------------------------------------------------------------


def stored(call: Call) -> Mapping[str, Array]:
    return {name: result.stored for name, result in run_call(call).items()}


def finished(call: Call, real: Array) -> Mapping[str, Array]:
    """A real result in the output's type."""
    output = call["output"]
    if output.type not in QUANTIZED:
        return {"output": real.astype(info(output.type).dtype)}
    ends = np.iinfo(info(output.type).dtype)
    steps = np.trunc(real * 128 + np.copysign(0.5, real)) + output.zero_point
    return {"output": np.clip(steps, ends.min, ends.max).astype(info(output.type).dtype)}


def last_axis(call: Call) -> Mapping[str, Array] | None:
    if not call.has("axis") or axis_of(call) == call["input"].rank - 1:
        return None
    return stored(call.with_input("axis", scalar(OperandType.INT32, -1)))


def axis_from_end(call: Call) -> Mapping[str, Array] | None:
    if not call.has("axis") or not -call["input"].rank < call.integer("axis") < 0:
        return None
    return stored(call.with_input("axis", scalar(OperandType.INT32, call.integer("axis") - 1)))


def no_root(call: Call) -> Mapping[str, Array]:
    x = Values(call)["input"]
    squares = (x * x).sum(axis=axis_of(call), keepdims=True)
    return finished(call, x / np.maximum(squares, 1e-6))


def largest_norm(call: Call) -> Mapping[str, Array]:
    x = Values(call)["input"]
    return finished(call, x / np.maximum(np.abs(x).max(axis=axis_of(call), keepdims=True), 1e-6))


def divided_by_zero(call: Call) -> Mapping[str, Array] | None:
    """A slice of zeros gives NaN, or the lowest step."""
    x = Values(call)["input"]
    zero = ~(x != 0).any(axis=axis_of(call), keepdims=True)
    if not zero.any():
        return None
    answer = stored(call)["output"]
    wrong = np.nan if answer.dtype.kind == "f" else np.iinfo(answer.dtype).min
    return {"output": np.where(zero, np.array(wrong, answer.dtype), answer)}


def zero_point_ignored(call: Call) -> Mapping[str, Array] | None:
    if call["input"].type not in QUANTIZED:
        return None
    return stored(call.with_input("input", replace(call["input"], zero_point=0)))


def truncated(call: Call) -> Mapping[str, Array] | None:
    output = call["output"]
    if output.type not in QUANTIZED or output.value.size < 32:
        return None
    return {"output": np.floor(run_call(call)["output"].exact).astype(output.value.dtype)}


def coarse(call: Call) -> Mapping[str, Array] | None:
    """Good to 10 bits only."""
    if call["output"].type != OperandType.TENSOR_FLOAT32:
        return None
    return {"output": run_call(call)["output"].exact.astype(np.float16).astype(np.float32)}


def with_scalar(name: str, change: Callable[[float], float]) -> Callable[[Call], Mapping[str, Array]]:
    def fault(call: Call) -> Mapping[str, Array]:
        return stored(call.with_input(name, scalar(call[name].type, change(call[name].item()))))

    fault.__name__ = f"{name}_is_another"
    return fault


def divided_alpha(call: Call) -> Mapping[str, Array]:
    """Alpha over the size of the window, as other frameworks have it."""
    alpha = call["alpha"].item() / (2 * call.integer("radius") + 1)
    return stored(call.with_input("alpha", scalar(call["alpha"].type, alpha)))


def one_sided(call: Call) -> Mapping[str, Array]:
    """Only elements before and at the place count."""
    v, axis = Values(call), axis_of(call)
    x = np.moveaxis(v["input"], axis, 0)
    squares = np.stack([(x[max(0, i - call.integer("radius")) : i + 1] ** 2).sum(axis=0) for i in range(len(x))])
    return finished(call, np.moveaxis(x * (v["bias"] + v["alpha"] * squares) ** -v["beta"], 0, axis))


def sample_variance(call: Call) -> Mapping[str, Array] | None:
    """The variance over one less than the number of elements."""
    v = Values(call)
    axes = (2, 3) if is_nchw(call) else (1, 2)
    x = v["input"]
    count = int(np.prod([x.shape[a] for a in axes]))
    if count < 2:
        return None
    variance = x.var(axis=axes, keepdims=True, ddof=1)
    real = (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(variance + v["epsilon"]) * v["gamma"] + v["beta"]
    return finished(call, real)


def whole_batch(call: Call) -> Mapping[str, Array] | None:
    """Mean and variance over the batch too."""
    v = Values(call)
    axes = (0, 2, 3) if is_nchw(call) else (0, 1, 2)
    x = v["input"]
    if x.shape[0] == 1:
        return None
    centred = x - x.mean(axis=axes, keepdims=True)
    real = centred / np.sqrt(x.var(axis=axes, keepdims=True) + v["epsilon"]) * v["gamma"] + v["beta"]
    return finished(call, real)


def outside_epsilon(call: Call) -> Mapping[str, Array]:
    """Epsilon added to the deviation in place of the variance."""
    v = Values(call)
    axes = (2, 3) if is_nchw(call) else (1, 2)
    x = v["input"]
    deviation = x.std(axis=axes, keepdims=True) + v["epsilon"]
    return finished(call, (x - x.mean(axis=axes, keepdims=True)) / deviation * v["gamma"] + v["beta"])


def other_layout(call: Call) -> Mapping[str, Array]:
    return stored(call.with_input("nchw", scalar(OperandType.BOOL, not is_nchw(call))))


L2, LOCAL, INSTANCE = DEFINITIONS
FAULTS: list[tuple[OperationDef, Callable[[Call], Mapping[str, Array] | None], float]] = [
    (L2, last_axis, 0.95),
    (L2, axis_from_end, 0.95),
    (L2, no_root, 0.95),
    (L2, largest_norm, 0.9),
    (L2, divided_by_zero, 0.95),
    (L2, zero_point_ignored, 0.9),
    (L2, truncated, 0.85),
    (L2, coarse, 0.8),
    (LOCAL, last_axis, 0.9),
    (LOCAL, axis_from_end, 0.9),
    (LOCAL, divided_alpha, 0.9),
    (LOCAL, one_sided, 0.9),
    (LOCAL, with_scalar("bias", lambda x: x + 0.5), 0.9),
    (LOCAL, with_scalar("alpha", lambda x: 0.0), 0.9),
    (LOCAL, with_scalar("beta", lambda x: 0.5), 0.8),
    (LOCAL, with_scalar("radius", lambda x: x + 1), 0.9),
    (LOCAL, coarse, 0.8),
    (INSTANCE, sample_variance, 0.75),
    (INSTANCE, whole_batch, 0.9),
    (INSTANCE, outside_epsilon, 0.75),
    (INSTANCE, with_scalar("gamma", lambda x: 1.0), 0.9),
    (INSTANCE, with_scalar("beta", lambda x: 0.0), 0.9),
    (INSTANCE, with_scalar("epsilon", lambda x: 0.0), 0.5),
    (INSTANCE, other_layout, 0.9),
    (INSTANCE, coarse, 0.7),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_faults_are_noticed(definition: OperationDef, fault, least: float) -> None:
    counts = [detection(definition, signature, fault, 80) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 10
    assert seen >= least * changed, f"{seen} of {changed}"


# --- what is drawn, rules and levels ----------------------------------------------------------------------------------


def test_zero_slices_need_level_4_and_other_ranks_level_3() -> None:
    signature = L2_NORMALIZATION.signature("float32/default/in1")
    seen = set()
    for call in draws(L2_NORMALIZATION, signature, 200, "levels"):
        zero = bool((~call["input"].value.any(axis=-1)).any())
        due = FL4 if zero else FL1 if call["input"].rank == 4 else FL3
        assert needed_level(call) == due
        seen.add(due)
    assert seen == {FL1, FL3, FL4}


@pytest.mark.parametrize("level", [FL1, FL3, FL8])
def test_draws_keep_to_their_level_and_serve_a_graph(level: int) -> None:
    for definition, signature in SIGNATURES:
        if signature.since > level:
            continue
        scope = Scope(SeededSource(f"level/{definition.name}/{signature.id}"), level=level, reuse=60)
        for _ in range(20):
            assert violations(draw_call(definition, signature, scope)) == []


def test_one_saturates_and_zero_points_stand_at_the_ends() -> None:
    calls = list(draws(L2_NORMALIZATION, L2_NORMALIZATION.signature("quant8_asymm/default/in2"), 200, "ends"))
    assert sum(255 in c["output"].value for c in calls) >= 30
    assert {0, 255} <= {c["input"].zero_point for c in calls}


def test_rules_of_results_and_ranks() -> None:
    call = next(draws(L2_NORMALIZATION, L2_NORMALIZATION.signature("quant8_asymm_signed/default/in1"), 1, "rules"))
    assert violations(call.with_result("output", replace(call["output"], zero_point=1))) == ["OUTPUT_QUANTIZATION"]
    assert violations(with_shape(call, "input", (1, 1, 1, 2, 2))) == ["RANK_INPUT"]
