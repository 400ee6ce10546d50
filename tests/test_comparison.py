"""Comparisons, logic and choice against ONNX and rational numbers; correct variants; ties; faults."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import Array
from opset import comparison
from opset.call import Call
from opset.comparison import EQUAL, GREATER, GREATER_EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_OR, NOT_EQUAL, SELECT
from opset.definition import OperationDef
from opset.evaluate import allowance, run_call
from opset.quantization import QUANTIZED
from opset.validation import violations
from tests.naive import assert_steps, for_onnx, onnx_result, rational
from tests.variants import complaints, drawn, objections

DEFINITIONS = [d for d in vars(comparison).values() if isinstance(d, OperationDef)]
COMPARISONS = [EQUAL, NOT_EQUAL, GREATER, GREATER_EQUAL, LESS, LESS_EQUAL]
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]

TRUTH: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "EQUAL": operator.eq,
    "NOT_EQUAL": operator.ne,
    "GREATER": operator.gt,
    "GREATER_EQUAL": operator.ge,
    "LESS": operator.lt,
    "LESS_EQUAL": operator.le,
    "LOGICAL_AND": lambda a, b: a != 0 and b != 0,
    "LOGICAL_OR": lambda a, b: a != 0 or b != 0,
}
ONNX = {
    "EQUAL": "Equal",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
}


@pytest.mark.parametrize(("definition", "signature"), [p for p in SIGNATURES if p[0] is not SELECT])
def test_second_opinion_in_rational_numbers(definition: OperationDef, signature: Signature) -> None:
    for call in drawn(definition, signature, 15, "rational"):
        (result,) = run_call(call).values()
        for place in np.ndindex(result.stored.shape):
            want = TRUTH[definition.name](rational(call["a"], place), rational(call["b"], place))
            assert int(result.stored[place]) == want


@pytest.mark.parametrize("signature", SELECT.signatures, ids=lambda s: s.id)
def test_second_opinion_on_select(signature: Signature) -> None:
    for call in drawn(SELECT, signature, 15, "rational"):
        (result,) = run_call(call).values()
        condition = call["condition"].value
        assert condition is not None
        for place in np.ndindex(result.stored.shape):
            taken = call["a"] if condition[place] else call["b"]
            if taken.type in QUANTIZED:
                assert_steps(result, call.results["output"], place, rational(taken, place))
            else:
                assert taken.value is not None
                assert np.array_equal(result.stored[place], taken.value[place], equal_nan=True)


ORDERED = (GREATER, GREATER_EQUAL, LESS, LESS_EQUAL)  # ONNX orders no booleans


@pytest.mark.parametrize(
    ("definition", "signature"),
    [p for p in SIGNATURES if not p[1].id.startswith("quant8") and (p[0] not in ORDERED or p[1].id != "bool8")],
)
def test_second_opinion_of_onnx(definition: OperationDef, signature: Signature) -> None:
    for call in drawn(definition, signature, 40, "onnx"):
        if definition is SELECT:
            found = onnx_result("Where", *(for_onnx(call, name) for name in ("condition", "a", "b")))
        elif definition is NOT_EQUAL:
            found = ~onnx_result("Equal", for_onnx(call, "a"), for_onnx(call, "b"))
        else:
            found = onnx_result(ONNX[definition.name], for_onnx(call, "a"), for_onnx(call, "b"))
        assert complaints(call, {"output": found}) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_variants_pass(definition: OperationDef, signature: Signature) -> None:
    assert objections(definition, signature) == []


# --- ties -------------------------------------------------------------------------------------------------------------


def quantized_call(a: list[int], b: list[int], scales: tuple[float, float], zero_points: tuple[int, int]) -> Call:
    call = next(drawn(LESS_EQUAL, LESS_EQUAL.signature("quant8_asymm"), 1))
    for name, values, scale, zero_point in zip("ab", (a, b), scales, zero_points, strict=True):
        value = np.array(values, np.uint8)
        exact = float(np.float32(scale))
        argument = replace(call[name], shape=value.shape, value=value, scale=exact, zero_point=zero_point)
        call = call.with_input(name, argument)
    return call.with_result("output", replace(call["output"], shape=(len(a),)))


def test_near_ties_across_scales_are_open_and_exact_ties_are_not() -> None:
    # 0.3 and 0.1 as float32 are not in the ratio 3; 0 equals 0, and 2 * 0.3 differs from 5 * 0.1 by a whole step
    call = quantized_call([10, 11, 12], [20, 23, 25], (0.3, 0.1), (10, 20))
    required = allowance(call, run_call(call))["output"].required
    assert np.isinf(required).tolist() == [False, True, False]
    call = quantized_call([10, 11, 12], [20, 22, 25], (0.5, 0.25), (10, 20))
    assert not np.isinf(allowance(call, run_call(call))["output"].required).any()
    assert run_call(call)["output"].stored.tolist() == [1, 1, 1]


def test_one_scale_leaves_nothing_open() -> None:
    call = quantized_call([10, 11, 12], [20, 21, 25], (0.3, 0.3), (10, 20))
    assert not np.isinf(allowance(call, run_call(call))["output"].required).any()
    assert run_call(call)["output"].stored.tolist() == [1, 1, 1]


@pytest.mark.parametrize("definition", COMPARISONS, ids=lambda d: d.name)
def test_few_elements_are_left_open_and_ties_are_common(definition: OperationDef) -> None:
    for name in ("quant8_asymm", "float32", "int32"):
        opened = ties = size = 0
        for call in drawn(definition, definition.signature(name), 150, "ties"):
            result = run_call(call)
            required = allowance(call, result)["output"].required
            opened += int(np.isinf(required).sum())
            size += required.size
            equal = run_call(replace(call, definition=EQUAL, signature=EQUAL.signature(name)))
            ties += int(equal["output"].stored.sum())
        assert opened <= 0.02 * size
        assert ties >= 0.02 * size


def test_select_does_not_broadcast() -> None:
    call = next(c for c in drawn(SELECT, SELECT.signature("float32"), 20) if c["a"].shape[-1] > 1)
    short = replace(call["a"], shape=(*call["a"].shape[:-1], 1), value=call["a"].value[..., :1])  # type: ignore[index]
    assert violations(call.with_input("a", short)) == ["SHAPE_A"]


# --- faults -----------------------------------------------------------------------------------------------------------


def _as(definition: OperationDef) -> Callable[[Call], Array]:
    """The result of another operation on the same operands."""
    return lambda call: run_call(replace(call, definition=definition))["output"].stored


def _swapped(call: Call) -> Array:
    return run_call(replace(call, inputs={**call.inputs, "a": call["b"], "b": call["a"]}))["output"].stored


def _stored_values(call: Call) -> Array:
    """Compares stored values, whatever scales and zero points say."""
    bare = {n: replace(a, scale=1.0, zero_point=0) for n, a in call.inputs.items()}
    return run_call(replace(call, inputs=bare))["output"].stored


def _without_zero_points(call: Call) -> Array:
    bare = {n: replace(a, zero_point=0) for n, a in call.inputs.items()}
    return run_call(replace(call, inputs=bare))["output"].stored


def _in_float32(call: Call) -> Array:
    a, b = (call[name].value.astype(np.float32) for name in ("a", "b"))  # type: ignore[union-attr]
    return np.asarray({"EQUAL": np.equal, "LESS": np.less}[call.definition.name](a, b).astype(np.uint8))


def _xor(call: Call) -> Array:
    a, b = (call[name].value != 0 for name in ("a", "b"))
    return np.asarray(np.logical_xor(a, b).astype(np.uint8))


def _moved_as_stored(call: Call) -> Array:
    """Moves the stored values of a and b, without requantising them."""
    condition, a, b = (call[name].value for name in ("condition", "a", "b"))
    return np.asarray(np.where(condition, a, b), a.dtype)  # type: ignore[union-attr,arg-type]


def _inverted(call: Call) -> Array:
    inputs = {**call.inputs, "a": call["b"], "b": call["a"]}
    return run_call(replace(call, inputs=inputs))["output"].stored


# What goes wrong, where, in which type, and in which share of the draws that it changes it must be noticed.
FAULTS: dict[str, tuple[OperationDef, str, Callable[[Call], Array], float]] = {
    "> is >=": (GREATER, "float32", _as(GREATER_EQUAL), 0.99),
    "< is <=": (LESS, "quant8_asymm", _as(LESS_EQUAL), 0.95),
    ">= is >": (GREATER_EQUAL, "int32", _as(GREATER), 0.99),
    "sides swapped": (LESS, "float16", _swapped, 0.99),
    "compares stored values": (LESS, "quant8_asymm", _stored_values, 0.95),
    "forgets zero points": (EQUAL, "quant8_asymm_signed", _without_zero_points, 0.9),
    "integers by way of float32": (EQUAL, "int32", _in_float32, 0.99),
    "neighbours by way of float32": (LESS, "int32", _in_float32, 0.99),
    "and is or": (LOGICAL_AND, "bool8", _as(LOGICAL_OR), 0.99),
    "or is exclusive": (LOGICAL_OR, "bool8", _xor, 0.99),
    "choice inverted": (SELECT, "quant8_asymm", _inverted, 0.9),
    "stored values moved": (SELECT, "quant8_asymm", _moved_as_stored, 0.9),
}


def detection(fault: str, count: int = 80) -> dict[str, tuple[int, int]]:
    """How often a fault was noticed, and how often it could change anything."""
    definition, signature, wrong, _ = FAULTS[fault]
    noticed = tried = 0
    for call in drawn(definition, definition.signature(signature), count, "faults"):
        stored = wrong(call)
        value = call.results["output"].value
        assert value is not None
        if not np.array_equal(stored, value, equal_nan=True):
            tried += 1
            noticed += bool(complaints(call, {"output": stored}))
    return {definition.name: (noticed, tried)}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(fault: str) -> None:
    for noticed, tried in detection(fault).values():
        assert tried >= 10
        assert noticed >= FAULTS[fault][3] * tried, f"{noticed} of {tried}"
