from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from nnhal.operations import Signature
from nnhal.types import FL1, FL3, FL8, Array, OperandType, info
from opset.call import Call, scalar, with_shape
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.normalization import LOG_SOFTMAX, SOFTMAX
from opset.quantization import QUANTIZED
from opset.source import SeededSource
from opset.validation import needed_level, violations
from opset.values import Values
from tests.judging import complaints_on_variants, detection, draws, noticed

SIGNATURES = [(d, s) for d in (SOFTMAX, LOG_SOFTMAX) for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]


def by_scipy(call: Call) -> Array:
    x = Values(call)[next(iter(call.inputs))]
    function = softmax if call.definition is SOFTMAX else log_softmax
    real = function(np.float64(call["beta"].item()) * x, axis=call.integer("axis"))
    output = call["output"]
    if output.type not in QUANTIZED:
        return real
    steps = np.trunc(real * 256 + 0.5) + output.zero_point
    return np.clip(steps, output.zero_point, output.zero_point + 255)


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_second_opinion(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 200, "opinion"):
        result = run_call(call)["output"]
        if call["output"].type in QUANTIZED:
            near_tie = np.abs(np.abs(result.exact % 1) - 0.5) < 1e-6
            assert np.array_equal(result.stored[~near_tie], by_scipy(call)[~near_tie])
        else:
            np.testing.assert_allclose(result.exact, by_scipy(call), rtol=1e-11, atol=1e-11)


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 200) == []


def products_first(call: Call) -> Mapping[str, Array]:
    """beta * x rounded before the largest is subtracted, and a sum taken one by one: correct, and less accurate."""
    real = Values(call)
    x = real[next(iter(call.inputs))].astype(np.float32)
    axis, beta = call.integer("axis"), np.float32(call["beta"].item())
    scaled = np.moveaxis(x * beta, axis, 0)
    z = scaled - scaled.max(axis=0)
    e = np.exp(z)
    total = np.zeros_like(e[0])
    for term in e:
        total = total + term
    result = e * (np.float32(1) / total) if call.definition is SOFTMAX else z - np.log(total)
    return {"output": np.moveaxis(result, 0, axis).astype(info(call["output"].type).dtype)}


def in_half(call: Call) -> Mapping[str, Array]:
    """Every step in float16, as hardware for it does; the sum too."""
    x = next(iter(call.inputs.values())).value
    axis, beta = call.integer("axis"), call["beta"].value
    moved = np.moveaxis(x, axis, 0)
    z = (moved - moved.max(axis=0)) * beta
    e = np.exp(z)
    total = np.zeros_like(e[0])
    for term in e:
        total = total + term
    result = e / total if call.definition is SOFTMAX else z - np.log(total)
    assert result.dtype == np.float16
    return {"output": np.moveaxis(result, 0, axis)}


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_other_orders_of_steps_pass(definition: OperationDef, signature: Signature) -> None:
    if signature.row.types["output"] in QUANTIZED:
        return
    for call in draws(definition, signature, 200, "orders"):
        assert not noticed(call, products_first(call))
        if call["output"].type == OperandType.TENSOR_FLOAT16:
            assert not noticed(call, in_half(call))


# --- faults -----------------------------------------------------------------------------------------------------------


def stored(call: Call) -> Mapping[str, Array]:
    return {name: result.stored for name, result in run_call(call).items()}


def other_axis(call: Call) -> Mapping[str, Array] | None:
    """The last axis whatever was asked for."""
    x = next(iter(call.inputs.values()))
    if not call.has("axis") or call.integer("axis") in (-1, x.rank - 1):
        return None
    return stored(call.with_input("axis", scalar(OperandType.INT32, -1)))


def axis_from_end(call: Call) -> Mapping[str, Array] | None:
    """A negative axis read as if -1 were the last but one."""
    x = next(iter(call.inputs.values()))
    if not call.has("axis") or not -x.rank < call.integer("axis") < 0:
        return None
    return stored(call.with_input("axis", scalar(OperandType.INT32, call.integer("axis") - 1)))


def no_beta(call: Call) -> Mapping[str, Array] | None:
    return stored(call.with_input("beta", scalar(call["beta"].type, 1.0)))


def overflowing(call: Call) -> Mapping[str, Array] | None:
    """The largest is not subtracted."""
    if call["output"].type != OperandType.TENSOR_FLOAT32:
        return None
    x, beta = next(iter(call.inputs.values())).value, np.float32(call["beta"].item())
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.exp(x * beta)
        y = e / e.sum(axis=call.integer("axis"), keepdims=True)
    if np.all(np.isfinite(y)) and np.all(y > 0):
        return None
    return {"output": y if call.definition is SOFTMAX else x * beta - np.log(e.sum(keepdims=True))}


def coarse(call: Call) -> Mapping[str, Array] | None:
    """Exponentials good to 10 bits only."""
    if call["output"].type != OperandType.TENSOR_FLOAT32:
        return None
    exact = run_call(call)["output"].exact
    return {"output": exact.astype(np.float16).astype(np.float32)}


def wrapped(call: Call) -> Mapping[str, Array] | None:
    output = call["output"]
    if output.type not in QUANTIZED:
        return None
    steps = SOFTMAX.kernel(Values(call))["output"] / output.scale + output.zero_point
    return {"output": np.rint(steps).astype(np.int64).astype(info(output.type).dtype)}


def input_scale_ignored(call: Call) -> Mapping[str, Array] | None:
    x = call.inputs.get("input")
    if x is None or x.type not in QUANTIZED:
        return None
    return stored(call.with_input("input", replace(x, scale=1.0)))


FAULTS: list[tuple[OperationDef, Callable[[Call], Mapping[str, Array] | None], float]] = [
    (SOFTMAX, other_axis, 0.9),
    (SOFTMAX, axis_from_end, 0.9),
    (SOFTMAX, no_beta, 0.75),
    (SOFTMAX, overflowing, 0.9),
    (SOFTMAX, coarse, 0.7),
    (SOFTMAX, wrapped, 0.9),
    (SOFTMAX, input_scale_ignored, 0.9),
    (LOG_SOFTMAX, other_axis, 0.9),
    (LOG_SOFTMAX, axis_from_end, 0.9),
    (LOG_SOFTMAX, no_beta, 0.75),
    (LOG_SOFTMAX, coarse, 0.9),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_faults_are_noticed(definition: OperationDef, fault, least: float) -> None:
    counts = [detection(definition, signature, fault, 80) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 0
    assert seen >= least * changed, f"{seen} of {changed}"


# --- rules and levels -------------------------------------------------------------------------------------------------


def test_ranks_1_and_3_need_level_3() -> None:
    signature = SOFTMAX.signature("float32/default/in2")
    levels = {call["input"].rank: needed_level(call) for call in draws(SOFTMAX, signature, 100, "levels")}
    assert levels == {1: FL3, 2: FL1, 3: FL3, 4: FL1}


@pytest.mark.parametrize("level", [FL1, FL3, FL8])
def test_draws_keep_to_their_level(level: int) -> None:
    for signature in SOFTMAX.signatures:
        if signature.since > level:
            continue
        for number in range(60):
            call = draw_call(SOFTMAX, signature, Scope(SeededSource(f"level/{number}"), level=level))
            assert violations(call) == []


def test_rules_of_quantised_results_and_ranks() -> None:
    call = next(draws(SOFTMAX, SOFTMAX.signature("quant8_asymm_signed/default/in2"), 1, "rules"))
    shifted = call.with_result("output", replace(call["output"], zero_point=0))
    assert violations(shifted) == ["OUTPUT_QUANTIZATION"]
    assert violations(with_shape(call, "input", (1, 1, 1, 2, 2))) == ["RANK_INPUT"]
    assert violations(with_shape(call, "input", (2, 2, 2)), FL1)[1:] == ["RANK_2_OR_4"]  # after SIGNATURE
    assert violations(call.with_input("beta", scalar(OperandType.FLOAT32, -1.0))) == ["BETA"]


def test_one_share_of_all_saturates() -> None:
    signature = SOFTMAX.signature("quant8_asymm/default/in2")
    tops = [run_call(call)["output"].stored.max() for call in draws(SOFTMAX, signature, 100, "saturation")]
    assert tops.count(255) >= 20


def test_empty_input_gives_empty_output() -> None:
    call = next(draws(SOFTMAX, SOFTMAX.signature("float32/default/in3"), 1, "empty"))
    for shape in ((0, 3), (3, 0)):
        empty = call.with_input("input", replace(call["input"], shape=shape, value=np.zeros(shape, np.float32)))
        empty = empty.with_input("axis", scalar(OperandType.INT32, 1))
        assert SOFTMAX.kernel(Values(empty))["output"].shape == shape
