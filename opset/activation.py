"""Activations of one operand: RELU RELU1 RELU6 TANH LOGISTIC ELU HARD_SWISH, and PRELU with its slopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import TypeRow
from nnhal.types import FL1, FL3, FL4, Array, FeatureLevel, OperandType, OperationType
from opset.broadcast import BROADCAST_SHAPE, broadcast_rule, broadcast_shapes, infer_broadcast
from opset.call import Argument, Call
from opset.definition import (
    F16,
    F32,
    Q8,
    Q8S,
    Bound,
    Example,
    ExecutionRule,
    Judging,
    Kernel,
    LeftOpen,
    OperationDef,
    Quantization,
    exact,
    form,
    half_units,
    rank_rule,
    real_scalar,
    relative,
    same,
    sums,
    tensor,
)
from opset.drawing import Draft
from opset.elementwise import FINITE, FUNCTION_TERMS, conditioned, drawer, infer_same, unary
from opset.quantization import QUANTIZED, float32
from opset.values import Values

ONNX_OPINION = "ONNX reference evaluator; for quantised types rational numbers"
DECIMAL_OPINION = "decimal arithmetic of 40 digits"
RANK = rank_rule("RANK", "input", 1, 4)


def output_quantization_rule(fixed: Callable[[Call], Quantization], words: str) -> ExecutionRule:
    """The result has the scale and zero point that the operation fixes."""

    def holds(call: Call) -> bool:
        output = call.results["output"]
        return output.type not in QUANTIZED or (output.scale, output.zero_point) == fixed(call)["output"]

    def broken(call: Call) -> Call | None:
        output = call.results["output"]
        if output.type not in QUANTIZED:
            return None
        return call.with_result("output", replace(output, scale=float32(output.scale * 1.5)))

    return ExecutionRule("OUTPUT_QUANTIZATION", f"output has {words}", holds, broken)


# --- clipping ---------------------------------------------------------------------------------------------------------


def _as_input(call: Call) -> Quantization:
    return {"output": (call["input"].scale, call["input"].zero_point)}


def _clip(
    code: OperationType,
    doc: str,
    low: float,
    high: float | None,
    spans: tuple[tuple[float, float], ...],
    *examples: Example,
) -> OperationDef:
    return OperationDef(
        code=code,
        doc=f"{doc} Quantised: the ends are rounded to steps of the input, whose scale and zero point the output has.",
        forms=(form(tensor("input", "Source.", 1, 4)),),
        results=(tensor("output", "Shape, scale and zero point of input.", 1, 4),),
        rows=same(("input", "output"), (F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4)),
        rules=(RANK, output_quantization_rule(_as_input, "the scale and zero point of input")),
        infer=infer_same,
        kernel=unary(lambda x: np.clip(x, low, high)),
        judging=exact("values are moved, or replaced by an end of the range"),
        draw=drawer(*spans, ranks=(1, 4), accept=FINITE),
        quantization=_as_input,
        examples=examples,
        second_opinion=ONNX_OPINION,
    )


RELU = _clip(
    OperationType.RELU,
    "max(0, x).",
    0.0,
    None,
    ((-2.0, 2.0), (-300.0, 200.0)),
    Example("float32", {"input": [[-1.5, 0.0, 2.5]]}, {"output": [[0.0, 0.0, 2.5]]}),
    Example("quant8_asymm", {"input": [0, 100, 120, 255]}, {"output": [100, 100, 120, 255]},
            {"input": (0.5, 100), "output": (0.5, 100)}),
)  # fmt: skip
RELU1 = _clip(
    OperationType.RELU1,
    "min(1, max(-1, x)).",
    -1.0,
    1.0,
    ((-2.0, 2.0), (-0.4, 5.0), (-5.0, 0.4)),
    Example("float32", {"input": [[-1.5, -0.5, 0.75, 2.5]]}, {"output": [[-1.0, -0.5, 0.75, 1.0]]}),
    # 1 / 0.3 is 3.33 steps, rounded to 3
    Example("quant8_asymm_signed", {"input": [-128, -4, 1, 127]}, {"output": [-3, -3, 1, 3]},
            {"input": (0.3, 0), "output": (0.3, 0)}),
)  # fmt: skip
RELU6 = _clip(
    OperationType.RELU6,
    "min(6, max(0, x)).",
    0.0,
    6.0,
    ((-3.0, 9.0), (-20.0, 30.0), (-1.0, 5.0)),
    Example("float32", {"input": [[-1.5, 2.5], [6.5, 100.0]]}, {"output": [[0.0, 2.5], [6.0, 6.0]]}),
    # 6 / 0.08 is 75 steps above the zero point
    Example("quant8_asymm", {"input": [0, 50, 90, 255]}, {"output": [20, 50, 90, 95]},
            {"input": (0.08, 20), "output": (0.08, 20)}),
)  # fmt: skip


# --- sigmoids ---------------------------------------------------------------------------------------------------------


def _sigmoid(
    code: OperationType,
    doc: str,
    rows: tuple[tuple[OperandType, FeatureLevel], ...],
    fixed: Mapping[OperandType, tuple[float, int]],
    words: str,
    kernel: Kernel,
    judging: Judging,
    spans: tuple[tuple[float, float], ...],
    *examples: Example,
) -> OperationDef:
    def quantization(call: Call) -> Quantization:
        kind = call["input"].type
        return {"output": fixed[kind]} if kind in fixed else {}

    return OperationDef(
        code=code,
        doc=doc,
        forms=(form(tensor("input", "Source.", 1, 4)),),
        results=(tensor("output", f"Shape of input; quantised: {words}.", 1, 4),),
        rows=same(("input", "output"), *rows),
        rules=(RANK, output_quantization_rule(quantization, words)),
        infer=infer_same,
        kernel=kernel,
        judging=judging,
        draw=drawer(*spans, ranks=(1, 4), accept=(spans[-1][0], FINITE[1])),
        quantization=quantization,
        examples=examples,
        second_opinion=DECIMAL_OPINION,
    )


def _logistic(x: Array) -> Array:
    one = x.dtype.type(1)
    return np.asarray(one / (one + np.exp(-x)))


TANH = _sigmoid(
    OperationType.TANH,
    "The hyperbolic tangent. Implementations of quantised types work in fixed point with 4 integer bits.",
    ((F32, FL1), (F16, FL3), (Q8, FL3), (Q8S, FL4)),
    {Q8: (1 / 128, 128), Q8S: (1 / 128, 0)},
    "scale 1/128 and zero point 128 (signed: 0)",
    unary(np.tanh),
    conditioned(lambda x: x * (1 - np.tanh(x) ** 2), "|x| * (1 - result^2)"),
    ((-2.0, 2.0), (-6.0, 6.0), (-20.0, 20.0)),
    Example("float32", {"input": [0.0, 0.5493061443340549, -20.0]}, {"output": [0.0, 0.5, -1.0]}),
    Example("quant8_asymm", {"input": [10, 14, 255, 0]}, {"output": [128, 225, 255, 2]},
            {"input": (0.25, 10), "output": (1 / 128, 128)}),
)  # fmt: skip
LOGISTIC = _sigmoid(
    OperationType.LOGISTIC,
    "1 / (1 + e^-x). Implementations of quantised types work in fixed point with 4 integer bits.",
    ((F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4)),
    {Q8: (1 / 256, 0), Q8S: (1 / 256, -128)},
    "scale 1/256 and zero point 0 (signed: -128)",
    unary(_logistic),
    conditioned(lambda x: x * _logistic(x) * _logistic(-x), "|x| * result * (1 - result)"),
    ((-2.0, 2.0), (-6.0, 6.0), (-9.0, 20.0)),  # results are normal in float16
    Example("float32", {"input": [0.0, 1.0986122886681098, -1.0986122886681098]}, {"output": [0.5, 0.75, 0.25]}),
    Example("quant8_asymm_signed", {"input": [0, 4, 127]}, {"output": [0, 59, 127]},
            {"input": (0.25, 0), "output": (1 / 256, -128)}),
)  # fmt: skip


# --- ELU, HARD_SWISH --------------------------------------------------------------------------------------------------


def _elu(v: Values) -> Mapping[str, Array]:
    x, alpha = v["input"], v["alpha"]
    return {"output": np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)}


def _elu_bound(values: Values, results: Mapping[str, Array]) -> Bound:
    """e^x - 1 may be computed as it stands, so that 1 counts among what is summed."""
    del results
    x, alpha = values["input"], np.abs(values["alpha"])
    below = np.minimum(x, 0)
    return Bound(np.where(x < 0, alpha * (np.exp(below) * (1 - below) + 1), x), FUNCTION_TERMS)


def _draw_elu(draft: Draft) -> None:
    draft.tensor("input", ranks=(1, 5), low=draft.choose((-2.0, -8.0)), high=2.0, accept=(-8.0, FINITE[1]))
    draft.scalar("alpha", draft.choose((0.0, 1.0, 1.0, 1.0)) if draft.chance(60) else draft.real(0.1, 3.0))


ELU = OperationDef(
    code=OperationType.ELU,
    doc="x where it is 0 or above, alpha * (e^x - 1) below. A negative alpha is left open: the documents' "
    "max(0, x) + min(0, alpha * (e^x - 1)) means something else then.",
    forms=(form(tensor("input", "Source."), real_scalar("alpha", "Factor of the negative part."), since=FL4),),
    results=(tensor("output", "Shape of input."),),
    rows=(
        TypeRow("float32", FL4, {"input": F32, "alpha": OperandType.FLOAT32, "output": F32}),
        TypeRow("float16", FL4, {"input": F16, "alpha": OperandType.FLOAT16, "output": F16}),
    ),
    rules=(),
    infer=infer_same,
    kernel=_elu,
    judging=Judging(
        _elu_bound,
        half_units(FUNCTION_TERMS, "x where it is 0 or above, |alpha| * (e^x * (1 - x) + 1) below"),
        LeftOpen(
            "all results where alpha is negative",
            lambda values, results: {"output": np.full(results["output"].shape, bool(values["alpha"] < 0))},
        ),
    ),
    draw=_draw_elu,
    examples=(
        Example("float32", {"input": [1.5, 0.0, -0.6931471805599453], "alpha": 3.0}, {"output": [1.5, 0.0, -1.5]}),
    ),
    second_opinion=DECIMAL_OPINION,
)


def _hard_swish(v: Values) -> Mapping[str, Array]:
    x = v["input"]
    return {"output": x * np.clip(x + x.dtype.type(3), 0, 6) / x.dtype.type(6)}


def _plant_largest(stored: Array) -> Array:
    """A clearly positive value among quantised ones: fixed-point kernels refuse an output scale below input / 128."""
    if stored.dtype.kind in "iu":
        stored = stored.copy()
        stored.reshape(-1)[0] = np.iinfo(stored.dtype).max
    return stored


def _not_flat(argument: Argument) -> bool:
    if argument.type not in QUANTIZED or argument.value is None:
        return True
    return (int(argument.value.max()) - argument.zero_point) * argument.scale >= 1.0


def _draw_hard_swish(draft: Draft) -> None:
    reach = draft.choose((2.0, 4.0, 10.0))
    draft.tensor("input", ranks=(1, 5), low=-reach, high=reach, fits=_not_flat, adjust=_plant_largest,
                 accept=(-200.0, 200.0))  # fmt: skip


HARD_SWISH = OperationDef(
    code=OperationType.HARD_SWISH,
    doc="x * max(0, min(6, x + 3)) / 6. Quantised: the output scale is free, in practice above input scale / 128.",
    forms=(form(tensor("input", "Source."), since=FL4),),
    results=(tensor("output", "Shape of input; scale and zero point are free."),),
    rows=same(("input", "output"), (F32, FL4), (F16, FL4), (Q8, FL4), (Q8S, FL4)),
    rules=(),
    infer=infer_same,
    kernel=_hard_swish,
    judging=sums(
        _hard_swish, lambda call: FUNCTION_TERMS, f"{FUNCTION_TERMS}", of="|x| * min(6, |x| + 3) / 6"
    ),
    draw=_draw_hard_swish,
    examples=(
        Example("float32", {"input": [-4.0, -1.5, 0.0, 1.0, 5.0]}, {"output": [0.0, -0.375, 0.0, 2 / 3, 5.0]}),
        Example("quant8_asymm", {"input": [4, 7, 10, 12, 20]}, {"output": [8, 5, 8, 13, 48]},
                {"input": (0.5, 10), "output": (0.125, 8)}),
    ),
    second_opinion=ONNX_OPINION,
)  # fmt: skip


# --- PRELU ------------------------------------------------------------------------------------------------------------


def _prelu(v: Values) -> Mapping[str, Array]:
    x, alpha = v["input"], v["alpha"]
    return {"output": np.where(x >= 0, x, x * alpha)}


def _draw_prelu(draft: Draft) -> None:
    first, second = broadcast_shapes(draft, "input", (1, 5))
    reach = draft.choose((2.0, 20.0))
    draft.tensor("input", first, low=-reach, high=reach, accept=(-1e4, 1e4))
    draft.tensor("alpha", second, low=draft.choose((-1.0, 0.0)), high=1.5)


PRELU = OperationDef(
    code=OperationType.PRELU,
    doc="x where it is 0 or above, alpha * x below, broadcasting. Quantised: input, alpha and output have scales of "
    "their own.",
    forms=(form(tensor("input", "x."), tensor("alpha", "Slopes below 0; their own scale."), since=FL3),),
    results=(tensor("output", f"{BROADCAST_SHAPE}; scale and zero point are free."),),
    rows=same(("input", "alpha", "output"), (F32, FL3), (F16, FL3), (Q8, FL3), (Q8S, FL4)),
    rules=(broadcast_rule("input", "alpha"),),
    infer=infer_broadcast,
    kernel=_prelu,
    judging=relative(1),
    draw=_draw_prelu,
    examples=(
        Example("float32", {"input": [[-1.0, 2.0], [-4.0, 0.0]], "alpha": [0.5, 0.25]},
                {"output": [[-0.5, 2.0], [-2.0, 0.0]]}),
        Example("quant8_asymm", {"input": [8, 12, 10], "alpha": [3]}, {"output": [122, 128, 126]},
                {"input": (0.5, 10), "alpha": (2.0, 2), "output": (0.5, 126)}),
    ),
    second_opinion=ONNX_OPINION,
)  # fmt: skip
