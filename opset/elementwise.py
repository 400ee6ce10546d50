"""Functions of one operand, element by element: ABS EXP FLOOR LOG NEG RSQRT SIN SQRT LOGICAL_NOT."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nnhal.operations import ValidationRule
from nnhal.types import FL1, FL3, FL4, FL7, Array, FeatureLevel, OperandType, OperationType
from opset.call import Call
from opset.definition import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Bound,
    Example,
    ExecutionRule,
    Judging,
    Kernel,
    LeftOpen,
    OperationDef,
    Shapes,
    exact,
    form,
    half_units,
    rank_rule,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.values import Values

INT32_MIN = -(2**31)
FINITE = (-6e4, 6e4)  # what float16 holds, with room
# What an operation may be told to put in every element: -0, and what is below the smallest normal float16.
PLACED = (-0.0, 3e-6, np.inf, -np.inf, np.nan)
SECOND_OPINION = "decimal arithmetic of 40 digits, or rational numbers where the result is one"

# A library that is never off by more than 3 ULP, and anything up to that equally often, has a mean square error of 6
# units; 1.6 * 4 lies just above. GPUs' "3 + 2|x| ULP" for EXP is covered by the condition of the function.
FUNCTION_TERMS = 4


def infer_same(call: Call) -> Shapes:
    """The shape of the input."""
    return {"output": call["input"].shape}


def unary(compute: Callable[[Array], Array]) -> Kernel:
    """A kernel that applies a function to the input."""
    return lambda v: {"output": compute(v["input"])}


def conditioned(sensitivity: Callable[[Array], Array], words: str, left_open: LeftOpen | None = None) -> Judging:
    """Judging of functions: as if argument and result were rounded a few times each.

    Args:
        sensitivity: |x * f'(x)|, what a relative change of the argument makes of the result.
        words: the same as a formula.
        left_open: elements that are not compared.
    """

    def bound(values: Values, results: Mapping[str, Array]) -> Bound:
        size = np.abs(results["output"]) + np.abs(sensitivity(values["input"]))
        return Bound(np.nan_to_num(size, posinf=0.0), FUNCTION_TERMS)  # what is not finite has no rounding

    return Judging(bound, half_units(FUNCTION_TERMS, f"|result| + {words}"), left_open)


def roomy(draft: Draft, ranks: tuple[int, int]) -> tuple[int, int]:
    """Leans toward the higher ranks: means say something from 32 elements on."""
    return (max(ranks[0], ranks[1] - 2), ranks[1]) if draft.chance(50) else ranks


def drawer(
    *spans: tuple[float, float],
    ranks: tuple[int, int] = (1, 5),
    adjust: Callable[[Array], Array] | None = None,
    accept: tuple[float, float] | None = None,
) -> Callable[[Draft], None]:
    """Draws the input from one of several ranges, each a path of its own."""

    def draw(draft: Draft) -> None:
        low, high = draft.choose(spans)
        draft.tensor("input", ranks=roomy(draft, ranks), low=low, high=high, adjust=adjust, accept=accept)

    return draw


def _elementwise(
    code: OperationType,
    doc: str,
    rows: tuple[tuple[OperandType, FeatureLevel], ...],
    kernel: Kernel,
    judging: Judging,
    draw: Callable[[Draft], None],
    *examples: Example,
    rules: tuple[ValidationRule | ExecutionRule, ...] = (),
    highest_rank: int | None = None,
) -> OperationDef:
    return OperationDef(
        code=code,
        doc=doc,
        forms=(form(tensor("input", "Source.", 1, highest_rank), since=min(level for _, level in rows)),),
        results=(tensor("output", "Shape of input.", 1, highest_rank),),
        rows=same(("input", "output"), *rows),
        rules=rules,
        infer=infer_same,
        kernel=kernel,
        judging=judging,
        draw=draw,
        examples=examples,
        second_opinion=SECOND_OPINION,
    )


def _open_minimum(values: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    del results
    x = values["input"]
    return {"output": x == INT32_MIN} if x.dtype.kind == "i" else {}


SIGN_ONLY = exact(
    "only the sign changes", LeftOpen("the INT32 result for -2^31, which has no counterpart", _open_minimum)
)


def _open_at(words: str, outside: Callable[[Array], Array]) -> LeftOpen:
    """Leaves open what is outside a function's domain."""
    return LeftOpen(words, lambda values, results: {"output": outside(values["input"])})


def _draw_signed(draft: Draft) -> None:
    whole = draft.type("input") == I32
    spans = ((-1000, 1000), (INT32_MIN, -INT32_MIN - 1)) if whole else ((-2.0, 2.0), FINITE)
    drawer(*spans, accept=spans[1])(draft)


ABS = _elementwise(
    OperationType.ABS,
    "|x|. The INT32 result for -2^31 is left open.",
    ((F32, FL3), (F16, FL3), (I32, FL4)),
    unary(np.abs),
    SIGN_ONLY,
    _draw_signed,
    Example("float32", {"input": [[-1.5, 2.0], [0.0, -7.25]]}, {"output": [[1.5, 2.0], [0.0, 7.25]]}),
    Example("int32", {"input": [-3, 4, -2147483647]}, {"output": [3, 4, 2147483647]}),
)

NEG = _elementwise(
    OperationType.NEG,
    "-x. The INT32 result for -2^31 is left open.",
    ((F32, FL3), (F16, FL3), (I32, FL3)),
    unary(np.negative),
    SIGN_ONLY,
    _draw_signed,
    Example("float16", {"input": [-1.5, 0.25, 3.0]}, {"output": [1.5, -0.25, -3.0]}),
    Example("int32", {"input": [7, -2147483647]}, {"output": [-7, 2147483647]}),
)

EXP = _elementwise(
    OperationType.EXP,
    "e^x. Its condition is |x|: an argument that is off by one rounding moves the result by |x| roundings.",
    ((F32, FL3), (F16, FL3)),
    unary(np.exp),
    conditioned(lambda x: x * np.exp(x), "|x * e^x|"),
    drawer((-2.0, 2.0), (-9.0, 10.0), accept=(-9.0, 10.0)),  # results are normal and finite in float16
    Example("float32", {"input": [0.0, 1.0, -1.0]}, {"output": [1.0, 2.718281828459045, 0.36787944117144233]}),
)


def _keep_off_integers(stored: Array) -> Array:
    """Values so near an integer that rounding to float16 would reach it become that integer: those are ties then."""
    x = stored.astype(np.float64)
    near = (np.abs(x - np.rint(x)) <= np.abs(x) * 2.0**-10) & (np.abs(x) < 256)
    return np.where(near, np.rint(x), x)


FLOOR = _elementwise(
    OperationType.FLOOR,
    "The largest integer that is not above x: rounds toward minus infinity.",
    ((F32, FL1), (F16, FL3)),
    unary(np.floor),
    exact("whole numbers"),
    drawer((-2.5, 2.5), (-9.0, 9.0), (-6e4, 6e4), ranks=(1, 4), adjust=_keep_off_integers),
    Example("float32", {"input": [-1.5, 1.5, 2.0, -0.25, -3.0]}, {"output": [-2.0, 1.0, 2.0, -1.0, -3.0]}),
    rules=(rank_rule("RANK", "input", 1, 4),),
    highest_rank=4,
)

LOG = _elementwise(
    OperationType.LOG,
    "The natural logarithm. Near 1 the result is small, so the error is counted from the argument too. "
    "Arguments of 0 and below are left open (NaN or minus infinity).",
    ((F32, FL3), (F16, FL3)),
    unary(np.log),
    conditioned(np.ones_like, "1", _open_at("arguments of 0 and below", lambda x: x <= 0)),
    drawer((0.001, 2.0), (0.5, 2.0), (0.1, 100.0), (1.0, 6e4), accept=(0.001, 6e4)),
    Example("float32", {"input": [1.0, 7.38905609893065, 0.5]}, {"output": [0.0, 2.0, -0.6931471805599453]}),
)


def _plant_zeros(stored: Array) -> Array:
    return np.where(stored < stored.dtype.type(0.05), stored.dtype.type(0), stored)


SQRT = _elementwise(
    OperationType.SQRT,
    "The square root. Negative arguments give NaN, which is left open.",
    ((F32, FL3), (F16, FL3)),
    unary(np.sqrt),
    conditioned(lambda x: np.sqrt(x) / 2, "sqrt(x) / 2"),
    drawer((0.0, 2.0), (0.0, 100.0), (0.0, 6e4), adjust=_plant_zeros, accept=(0.0, 6e4)),
    Example("float32", {"input": [[4.0, 2.25, 0.0, 2.0]]}, {"output": [[2.0, 1.5, 0.0, 1.4142135623730951]]}),
)

RSQRT = _elementwise(
    OperationType.RSQRT,
    "1 / sqrt(x). Quantised: computed in real numbers with a free output scale; infinity (x = 0) saturates to the "
    "largest value. Negative arguments give NaN, which is left open.",
    ((F32, FL3), (F16, FL3), (Q8, FL7), (Q8S, FL7)),
    unary(lambda x: x.dtype.type(1) / np.sqrt(x)),
    conditioned(lambda x: 0.5 / np.sqrt(x), "1 / (2 * sqrt(x))", _open_at("negative arguments", lambda x: x < 0)),
    drawer((0.01, 2.0), (0.1, 50.0), accept=(0.01, 6e4)),
    Example("float32", {"input": [4.0, 0.25, 1.0]}, {"output": [0.5, 2.0, 1.0]}),
    Example("quant8_asymm", {"input": [16, 1, 0]}, {"output": [42, 138, 255]},
            {"input": (0.25, 0), "output": (1 / 64, 10)}),
)  # fmt: skip

SIN = _elementwise(
    OperationType.SIN,
    "The sine of x in radians. Its condition grows with |x|: large arguments must be reduced.",
    ((F32, FL3), (F16, FL3)),
    unary(np.sin),
    conditioned(lambda x: x * np.cos(x), "|x * cos(x)|"),
    drawer((-1.6, 1.6), (-7.0, 7.0), (-30.0, 30.0), accept=(-30.0, 30.0)),
    Example("float32", {"input": [0.0, 0.5235987755982988, -1.5707963267948966]}, {"output": [0.0, 0.5, -1.0]}),
)

LOGICAL_NOT = _elementwise(
    OperationType.LOGICAL_NOT,
    "True where x is false. A byte other than 0 is true; results are 0 or 1.",
    ((B8, FL3),),
    unary(np.logical_not),
    exact("truth values"),
    drawer((0, 1)),
    Example("bool8", {"input": [[1, 0], [0, 0]]}, {"output": [[0, 1], [1, 1]]}),
)
