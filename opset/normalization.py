"""Normalisation along an axis: SOFTMAX LOG_SOFTMAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import Form, RuleKind, TypeRow, ValidationRule
from nnhal.types import FL1, FL3, FL4, Array, OperandType, OperationType
from opset.call import Call, with_value
from opset.definition import (
    F16,
    F32,
    Q8,
    Q8S,
    Bound,
    Example,
    ExecutionRule,
    Judging,
    OperationDef,
    Quantization,
    form,
    half_units,
    int32,
    rank_rule,
    real_scalar,
    tensor,
)
from opset.drawing import Draft
from opset.elementwise import infer_same
from opset.quantization import QUANTIZED, float32
from opset.shapes import normal_axis
from opset.values import Values

SMALLEST_NORMAL_HALF = 2.0**-14  # below it float16 loses digits
PROBABILITY_SCALE = 1 / 256
FUNCTION_ROUNDINGS = 5  # of an exponential or a logarithm, with what stands around it


def axis_rule(operand: str) -> ExecutionRule:
    """The axis is one of an operand's; negative ones count from the end."""
    return ExecutionRule(
        "AXIS",
        f"axis is in [-n, n) for {operand} of rank n",
        lambda call: -call[operand].rank <= call.integer("axis") < call[operand].rank,
        lambda call: with_value(call, "axis", call[operand].rank) if call.has("axis") else None,
    )


BETA_RULE = ExecutionRule(
    "BETA",
    "beta is greater than 0",
    lambda call: call["beta"].item() > 0,
    lambda call: with_value(call, "beta", 0.0),
)


def _exponents(v: Values, name: str) -> tuple[Array, int, Array]:
    """Beta * (x - max) along the axis, the axis, and its magnitude whichever way it is computed."""
    x, beta = v[name], v["beta"]
    axis = normal_axis(v.integer("axis"), x.ndim)
    largest = x.max(axis=axis, keepdims=True, initial=-np.inf)
    z = (x - largest) * beta
    # Some compute beta * x first, so that both products are rounded before they cancel.
    return z, axis, np.abs(x * beta) + np.abs(largest * beta)


SPREAD = (
    f"(1 + (r + mean r) / {FUNCTION_ROUNDINGS}), with n elements along the axis, r = |beta * x| + |beta * max|, and "
    "its mean weighted by the shares"
)


def _softmax(v: Values) -> Mapping[str, Array]:
    z, axis, _ = _exponents(v, "input")
    e = np.exp(z)
    return {"output": e / v.sum(e, axis, keepdims=True)}


def _bound_softmax(v: Values, results: Mapping[str, Array]) -> Bound:
    del results
    z, axis, reach = _exponents(v, "input")
    e = np.exp(z)
    y = e / e.sum(axis=axis, keepdims=True)
    # A relative error of exp is the absolute one of its argument; the sum brings in the mean of all.
    condition = 1 + (reach + (reach * y).sum(axis=axis, keepdims=True)) / FUNCTION_ROUNDINGS
    floor = SMALLEST_NORMAL_HALF if v.call["input"].type == F16 else 0.0
    return Bound(np.maximum(y, floor) * condition, z.shape[axis] + FUNCTION_ROUNDINGS)


def _log_softmax(v: Values) -> Mapping[str, Array]:
    z, axis, _ = _exponents(v, "logits")
    return {"output": z - np.log(v.sum(np.exp(z), axis, keepdims=True))}


def _bound_log_softmax(v: Values, results: Mapping[str, Array]) -> Bound:
    z, axis, reach = _exponents(v, "logits")
    e = np.exp(z)
    share = e / e.sum(axis=axis, keepdims=True)
    condition = 1 + (reach + (reach * share).sum(axis=axis, keepdims=True)) / FUNCTION_ROUNDINGS
    return Bound(condition + np.abs(results["output"]), z.shape[axis] + FUNCTION_ROUNDINGS)


def _draw(draft: Draft, name: str) -> None:
    """Logits whose spread keeps the smallest share a normal number, at times far from 0 (exp alone would overflow)."""
    kind = draft.type(name)
    far = 0.0 if kind != F32 or draft.chance(85) else draft.choose((-100.0, 100.0))
    rank = draft.choose((2, 4))
    ranks = (rank, rank) if draft.scope.level < FL3 else (1, 4)
    x = draft.tensor(name, ranks=ranks, largest=draft.choose((5, 6, 15)), low=far - 2.0, high=far + 2.0)
    draft.scalar("beta", 1.0 if draft.chance(50) else draft.real(0.3, 4.0 if kind in QUANTIZED else 1.5))
    draft.scalar("axis", draft.choose((-1, x.rank - 1)) if draft.chance(60) else draft.integer(-x.rank, x.rank - 1))


def _fixed(call: Call) -> Quantization:
    return {
        Q8: {"output": (PROBABILITY_SCALE, 0)},
        Q8S: {"output": (PROBABILITY_SCALE, -128)},
    }.get(call["input"].type, {})


def fixed_quantization_rule(due: str) -> ExecutionRule:
    """A quantised result has the scale and zero point that its definition fixes."""

    def holds(call: Call) -> bool:
        fixed = call.definition.quantization(call)
        return all(
            (float32(fixed[n][0]), fixed[n][1]) == (a.scale, a.zero_point)
            for n, a in call.results.items()
            if n in fixed
        )

    def broken(call: Call) -> Call | None:
        output = call["output"]
        return call.with_result("output", replace(output, scale=2 * output.scale)) if output.scale else None

    return ExecutionRule("OUTPUT_QUANTIZATION", f"a quantised output has {due}", holds, broken)


BETA = real_scalar("beta", "Positive factor of the exponents; FLOAT16 beside float16 tensors, else FLOAT32.")

SOFTMAX = OperationDef(
    code=OperationType.SOFTMAX,
    doc="exp(beta * (x - max)) / sum, along an axis; the last one unless given. Quantised results have scale 1/256 "
    "and the smallest zero point, so that 1 saturates. Public code computes quantised exponentials in fixed point; "
    "one rounding at the end is the definition. Before 1.2 only ranks 2 and 4, and no axis.",
    forms=(
        Form(
            "default",
            (
                tensor("input", "Logits.", 1, 4),
                BETA,
                int32("axis", "Axis, in [-n, n).", -1),
            ),
            ((2, FL1), (3, FL3)),
        ),
    ),
    results=(tensor("output", "Shape of input; a quantised one has scale 1/256, zero point 0 (signed -128).", 1, 4),),
    rows=(
        TypeRow("float32", FL1, {"input": F32, "beta": OperandType.FLOAT32, "output": F32}),
        TypeRow("quant8_asymm", FL1, {"input": Q8, "beta": OperandType.FLOAT32, "output": Q8}),
        TypeRow("float16", FL3, {"input": F16, "beta": OperandType.FLOAT16, "output": F16}),
        TypeRow("quant8_asymm_signed", FL4, {"input": Q8S, "beta": OperandType.FLOAT32, "output": Q8S}),
    ),
    rules=(
        rank_rule("RANK_INPUT", "input", 1, 4),
        ValidationRule("RANK_2_OR_4", "input has rank 2 or 4", RuleKind.RANK_IN, ("input",), (2, 4), until=FL3),
        BETA_RULE,
        axis_rule("input"),
        fixed_quantization_rule("scale 1/256 and zero point 0, or -128 where signed"),
    ),
    infer=infer_same,
    kernel=_softmax,
    judging=Judging(
        _bound_softmax,
        half_units(f"(n + {FUNCTION_ROUNDINGS})", f"the result (in float16 of 2^-14 at least) * {SPREAD}"),
    ),
    draw=lambda draft: _draw(draft, "input"),
    quantization=_fixed,
    examples=(
        # exp: 1, 2, 4 over 7, and 1, 1, 2 over 4.
        Example(
            "float32/default/in2",
            {"input": [[0.0, 1.0, 2.0], [5.0, 5.0, 6.0]], "beta": 0.69314718},
            {"output": [[0.14285714, 0.28571429, 0.57142857], [0.25, 0.25, 0.5]]},
        ),
        # Along axis 0, beta * scale = ln 2: shares 1/2 and 1/2, 1 and 0, 1/5 and 4/5, in steps of 1/256.
        Example(
            "quant8_asymm_signed/default/in3",
            {"input": [[7, 100, -3], [7, 0, -1]], "beta": 1.3862944, "axis": 0},
            {"output": [[0, 127, -77], [0, -128, 77]]},
            {"input": (0.5, 10), "output": (PROBABILITY_SCALE, -128)},
        ),
    ),
    second_opinion="SciPy's softmax of beta * x",
)

LOG_SOFTMAX = OperationDef(
    code=OperationType.LOG_SOFTMAX,
    doc="z - ln(sum exp(z)) with z = beta * (x - max), along an axis that is always given. Public code keeps the sum "
    "and the differences in the tensor's type, float16 too, which the bound allows for.",
    forms=(
        form(
            tensor("logits", "Logits.", 1, None),
            BETA,
            int32("axis", "Axis, in [-n, n)."),
            since=FL3,
        ),
    ),
    results=(tensor("output", "Shape of logits.", 1, None),),
    rows=(
        TypeRow("float32", FL3, {"logits": F32, "beta": OperandType.FLOAT32, "output": F32}),
        TypeRow("float16", FL3, {"logits": F16, "beta": OperandType.FLOAT16, "output": F16}),
    ),
    rules=(BETA_RULE, axis_rule("logits")),
    infer=lambda call: {"output": call["logits"].shape},
    kernel=_log_softmax,
    judging=Judging(_bound_log_softmax, half_units(f"(n + {FUNCTION_ROUNDINGS})", f"|result| + {SPREAD}")),
    draw=lambda draft: _draw(draft, "logits"),
    examples=(
        # beta * x in multiples of ln 2: shares 1/8, 1/8, 1/4, 1/2.
        Example(
            "float32",
            {"logits": [1.0, 1.0, 3.0, 5.0], "beta": 0.34657359, "axis": -1},
            {"output": [-2.0794415, -2.0794415, -1.3862944, -0.69314718]},
        ),
    ),
    second_opinion="SciPy's log_softmax of beta * x",
)
