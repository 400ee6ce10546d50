"""Functions of one operand against decimals and rational numbers, correct variants, open results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import OperandType
from opset import elementwise
from opset.call import Argument
from opset.definition import OperationDef
from opset.evaluate import allowance, run_call
from opset.quantization import FLOATS
from tests.naive import assert_real, assert_steps, precisely, rational, sine
from tests.variants import complaints, drawn, objections

DEFINITIONS = [d for d in vars(elementwise).values() if isinstance(d, OperationDef)]
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]

TRUTH: dict[str, Callable[[Fraction], Decimal | Fraction]] = {
    "ABS": lambda x: x if x >= 0 else -x,
    "NEG": lambda x: -x,
    "FLOOR": lambda x: Fraction(math.floor(x)),
    "LOGICAL_NOT": lambda x: Fraction(x == 0),
    "EXP": precisely(lambda x: x.exp()),
    "LOG": precisely(lambda x: x.ln()),
    "SQRT": precisely(lambda x: x.sqrt()),
    "RSQRT": precisely(lambda x: 1 / x.sqrt()),
    "SIN": precisely(sine),
}


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_second_opinion(definition: OperationDef, signature: Signature) -> None:
    truth = TRUTH[definition.name]
    for call in drawn(definition, signature, 8, "second opinion"):
        (result,) = run_call(call).values()
        output = call.results["output"]
        for place in np.ndindex(result.stored.shape):
            x = rational(call["input"], place)
            if definition.name == "RSQRT" and x == 0:
                assert result.stored[place] == np.iinfo(result.stored.dtype).max
            elif output.type in FLOATS:
                assert_real(result, place, truth(x), condition=float(abs(x)) if definition.name == "SIN" else 1.0)
            elif output.scale:
                assert_steps(result, output, place, Fraction(truth(x)))
            else:
                assert int(result.stored[place]) == truth(x)


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_variants_pass(definition: OperationDef, signature: Signature) -> None:
    assert objections(definition, signature) == []


@pytest.mark.parametrize("name", ["ABS", "NEG"])
def test_the_smallest_integer_is_left_open(name: str) -> None:
    definition = next(d for d in DEFINITIONS if d.name == name)
    call = next(drawn(definition, definition.signature("int32"), 1))
    value = np.array([-(2**31), -(2**31) + 1], np.int32)
    call = call.with_input("input", replace(call["input"], shape=(2,), value=value))
    call = call.with_result("output", replace(call["output"], shape=(2,)))
    allowed = allowance(call, run_call(call))["output"]
    assert allowed.required.tolist() == [math.inf, 0.0]


@pytest.mark.parametrize(("name", "value"), [("LOG", 0.0), ("LOG", -1.0), ("SQRT", -1.0), ("RSQRT", -4.0)])
def test_arguments_outside_the_domain_are_left_open(name: str, value: float) -> None:
    definition = next(d for d in DEFINITIONS if d.name == name)
    call = next(drawn(definition, definition.signature("float32"), 1))
    operand = Argument(OperandType.TENSOR_FLOAT32, (2,), value=np.array([value, 4.0], np.float32))
    call = call.with_input("input", operand).with_result("output", replace(call["output"], shape=(2,)))
    allowed = allowance(call, run_call(call))["output"]
    assert np.isinf(allowed.required).tolist() == [True, False]


# Each fault with the share of draws in which it must be noticed, for the signature that shows it.
FAULTS: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray], float]] = {
    "truncates for floor": ("FLOOR", "float32", np.trunc, 0.7),
    "rounds for floor": ("FLOOR", "float32", np.rint, 0.9),
    "floor by way of 16 bits": ("FLOOR", "float32", lambda x: np.clip(np.floor(x), -32768, 32767), 0.2),
    "base 2": ("EXP", "float32", np.exp2, 0.95),
    "exp by a series of 8 terms": (
        "EXP", "float32", lambda x: sum((x**n / math.factorial(n) for n in range(8)), np.zeros_like(x)), 0.9),
    "log base 2": ("LOG", "float32", np.log2, 0.95),
    "log(1 + x)": ("LOG", "float32", np.log1p, 0.95),
    "forgets the reciprocal": ("RSQRT", "float32", np.sqrt, 0.9),
    "degrees": ("SIN", "float32", lambda x: np.sin(np.radians(x)), 0.95),
    "unreduced sine": ("SIN", "float32", lambda x: np.sin(np.clip(x, -math.pi, math.pi)), 0.5),
    "in float16": ("EXP", "float32", lambda x: np.exp(x.astype(np.float16)).astype(np.float64), 0.9),
    "absolute by halves": ("ABS", "int32", lambda x: np.maximum(x, 0), 0.8),
    "negates floats only": ("NEG", "int32", lambda x: x.astype(np.float32).astype(np.int64) * -1, 0.3),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(fault: str) -> None:
    name, signature, wrong, share = FAULTS[fault]
    definition = next(d for d in DEFINITIONS if d.name == name)
    noticed = 0
    for call in drawn(definition, definition.signature(signature), 100, "faults"):
        value = call["input"].value
        assert value is not None
        with np.errstate(all="ignore"):
            stored = wrong(value.astype(np.float64 if value.dtype.kind == "f" else np.int64))
        noticed += bool(complaints(call, {"output": stored}))
    assert noticed >= share * 100, f"{noticed} of 100"
