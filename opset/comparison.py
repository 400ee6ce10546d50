"""Comparisons, logic, choice: EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR SELECT."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nnhal.operations import TypeRow
from nnhal.types import FL3, FL4, Array, FeatureLevel, OperandType, OperationType
from opset.broadcast import BROADCAST_SHAPE, INT32, broadcast_rule, broadcast_shapes, infer_broadcast
from opset.call import Call, with_shape
from opset.definition import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    ROW_NAMES,
    Example,
    ExecutionRule,
    LeftOpen,
    OperationDef,
    Shapes,
    exact,
    form,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.elementwise import FINITE
from opset.quantization import QUANTIZED, limits
from opset.values import Values

OPINION = "ONNX reference evaluator; for quantised types rational numbers"
LEVELS: tuple[tuple[OperandType, FeatureLevel], ...] = ((F32, FL3), (F16, FL3), (I32, FL3), (Q8, FL3), (Q8S, FL4))
TIE_STEPS = 64  # a fixed-point kernel may see values as equal that differ by this fraction of a step

Compare = Callable[[Array, Array], Array]


# --- comparisons ------------------------------------------------------------------------------------------------------


def _open_near_ties(values: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    del results
    first, second = values.call["a"], values.call["b"]
    if first.type not in QUANTIZED or first.scale == second.scale:
        return {}
    apart = np.abs(values["a"] - values["b"])
    return {"output": (apart > 0) & (apart < max(first.scale, second.scale) / TIE_STEPS)}


def _on_grid(parts: int) -> Callable[[Array], Array]:
    """Rounds to multiples of 1 / parts, exact in float16 too: ties are common, and nothing else is nearly one."""
    return lambda stored: np.rint(stored * stored.dtype.type(parts)) / stored.dtype.type(parts)


def _thinned(step: int) -> Callable[[Array], Array]:
    """Stored values that are multiples of a step."""
    return lambda stored: stored // step * step


def _draw_quantized(draft: Draft, shapes: tuple[tuple[int, ...], tuple[int, ...]], step: int) -> None:
    """Sides of equal scale, their zero points apart or not; of scales 1 to 2 that meet exactly; of unrelated scales."""
    a = draft.tensor("a", shapes[0], low=-2.0, high=2.0, adjust=_thinned(step))
    way = draft.choose(("same", "shifted", "double", "free"))
    if way == "free":
        draft.tensor("b", shapes[1], low=-2.0, high=draft.choose((1.0, 3.0)))
        return
    scale, zero_point = a.scale, a.zero_point
    lowest, highest = limits(a.type)
    if way == "double" and zero_point % 2 == 0:
        scale, zero_point, step = 2 * scale, zero_point // 2, step // 2
    elif way == "shifted":  # by a step, so that values still meet
        zero_point += step if zero_point + step <= highest else -step if zero_point - step >= lowest else 0
    reach = 256 * scale
    draft.tensor("b", shapes[1], low=-reach, high=reach, scale=scale, zero_point=zero_point, adjust=_thinned(step))


def _comparison_draw(equality: bool) -> Callable[[Draft], None]:
    """Draws with many ties, and more of them for the two operations that see nothing else."""

    def draw(draft: Draft) -> None:
        kind = draft.type("a")
        shapes = broadcast_shapes(draft, "a", (1, 5))
        if kind in QUANTIZED:
            _draw_quantized(draft, shapes, 64 if equality else draft.choose((8, 64)))
            return
        if kind == I32:  # the last: neighbours that float32 cannot tell apart
            low, high = draft.choose(((-2, 1), (-3, 3), (2**30 - 2, 2**30 + 2)))
            draft.tensor("a", shapes[0], low=low, high=high, accept=(INT32.min, INT32.max))
            draft.tensor("b", shapes[1], low=low, high=high, accept=(INT32.min, INT32.max))
            return
        adjust = None if kind == B8 else _on_grid(draft.choose((1, 1, 2) if equality else (1, 2, 64)))
        reach = 2.0 if equality else draft.choose((2.0, 8.0))
        draft.tensor("a", shapes[0], low=-reach, high=reach, adjust=adjust)
        draft.tensor("b", shapes[1], low=-reach, high=reach, adjust=adjust)

    return draw


def _comparison(code: OperationType, sign: str, compare: Compare, *examples: Example) -> OperationDef:
    return OperationDef(
        code=code,
        doc=f"a {sign} b as BOOL8, broadcasting; false is below true. Quantised: real values are compared; where the "
        "scales differ, values closer than 1/64 of a step are left open unless exactly equal.",
        forms=(form(tensor("a", "Left operand."), tensor("b", "Right operand; its own scale."), since=FL3),),
        results=(tensor("output", f"{BROADCAST_SHAPE}."),),
        rows=tuple(TypeRow(ROW_NAMES[kind], since, {"a": kind, "b": kind, "output": B8})
                   for kind, since in ((B8, FL3), *LEVELS)),
        rules=(broadcast_rule("a", "b"),),
        infer=infer_broadcast,
        kernel=lambda v: {"output": compare(v["a"], v["b"])},
        judging=exact(
            "truth values",
            LeftOpen(
                "across scales, values that are almost but not exactly equal: kernels round both before they compare",
                _open_near_ties,
            ),
        ),
        draw=_comparison_draw(code in (OperationType.EQUAL, OperationType.NOT_EQUAL)),
        examples=examples,
        second_opinion=OPINION,
    )  # fmt: skip


def _worked(outcome: str) -> tuple[Example, Example]:
    """Examples from the outcomes for a below b, a equal to b, a above b: 1 is true."""
    below, equal, above = (int(digit) for digit in outcome)
    return (
        Example("float32", {"a": [[1.0], [2.0]], "b": [1.0, 2.0, -3.0]},
                {"output": [[equal, below, above], [above, equal, above]]}),
        # a stands for -1, 0, 1.5 and b for 0.25 * (6 - 0) = 1.5
        Example("quant8_asymm", {"a": [8, 10, 13], "b": [6]}, {"output": [below, below, equal]},
                {"a": (0.5, 10), "b": (0.25, 0)}),
    )  # fmt: skip


EQUAL = _comparison(OperationType.EQUAL, "=", np.equal, *_worked("010"))
NOT_EQUAL = _comparison(OperationType.NOT_EQUAL, "≠", np.not_equal, *_worked("101"))
GREATER = _comparison(OperationType.GREATER, ">", np.greater, *_worked("001"))
GREATER_EQUAL = _comparison(OperationType.GREATER_EQUAL, "≥", np.greater_equal, *_worked("011"))
LESS = _comparison(OperationType.LESS, "<", np.less, *_worked("100"))
LESS_EQUAL = _comparison(OperationType.LESS_EQUAL, "≤", np.less_equal, *_worked("110"))


# --- logic ------------------------------------------------------------------------------------------------------------


def _draw_logic(draft: Draft) -> None:
    first, second = broadcast_shapes(draft, "a", (1, 5))
    draft.tensor("a", first)
    draft.tensor("b", second)


def _logic(code: OperationType, word: str, compute: Compare, example: Example) -> OperationDef:
    return OperationDef(
        code=code,
        doc=f"a {word} b, broadcasting. A byte other than 0 is true; results are 0 or 1.",
        forms=(form(tensor("a", "Left operand."), tensor("b", "Right operand."), since=FL3),),
        results=(tensor("output", f"{BROADCAST_SHAPE}."),),
        rows=same(("a", "b", "output"), (B8, FL3)),
        rules=(broadcast_rule("a", "b"),),
        infer=infer_broadcast,
        kernel=lambda v: {"output": compute(v["a"], v["b"])},
        judging=exact("truth values"),
        draw=_draw_logic,
        examples=(example,),
        second_opinion="ONNX reference evaluator",
    )


LOGICAL_AND = _logic(
    OperationType.LOGICAL_AND,
    "and",
    np.logical_and,
    Example("bool8", {"a": [[1], [0]], "b": [1, 0]}, {"output": [[1, 0], [0, 0]]}),
)
LOGICAL_OR = _logic(
    OperationType.LOGICAL_OR,
    "or",
    np.logical_or,
    Example("bool8", {"a": [[1], [0]], "b": [1, 0]}, {"output": [[1, 1], [1, 0]]}),
)


# --- SELECT -----------------------------------------------------------------------------------------------------------


def _infer_select(call: Call) -> Shapes:
    return {"output": call["condition"].shape}


def _draw_select(draft: Draft) -> None:
    condition = draft.tensor("condition", ranks=(1, 5))
    whole = draft.type("a") == I32
    low, high = draft.choose(((-100, 100), (INT32.min, INT32.max))) if whole else (-2.0, 2.0)
    accept = (INT32.min, INT32.max) if whole else FINITE
    draft.tensor("a", condition.shape, low=low, high=high, accept=accept)
    scale, zero = draft.common("a")
    draft.tensor("b", condition.shape, low=low, high=high, scale=scale, zero_point=zero, accept=accept)
    draft.seed_odd("a", "b")


def _same_shape_rule(name: str) -> ExecutionRule:
    def broken(call: Call) -> Call | None:
        shape = call[name].shape
        return with_shape(call, name, (*shape[:-1], shape[-1] + 1))

    return ExecutionRule(
        f"SHAPE_{name.upper()}",
        f"{name} has the shape of condition: nothing is broadcast",
        lambda call: call[name].shape == call["condition"].shape,
        broken,
    )


SELECT = OperationDef(
    code=OperationType.SELECT,
    doc="a where condition is true, b elsewhere, all of one shape. Quantised: a, b and output may all have different "
    "scales. TENSOR_QUANT8_ASYMM_SIGNED exists from 1.3 on, although one public validator answers 1.2.",
    forms=(
        form(
            tensor("condition", "True takes a."),
            tensor("a", "Taken where true."),
            tensor("b", "Taken where false; its own scale."),
            since=FL3,
        ),
    ),
    results=(tensor("output", "Shape of condition; scale and zero point are free."),),
    rows=tuple(
        TypeRow(ROW_NAMES[kind], since, {"condition": B8, "a": kind, "b": kind, "output": kind})
        for kind, since in LEVELS
    ),
    rules=(_same_shape_rule("a"), _same_shape_rule("b")),
    infer=_infer_select,
    kernel=lambda v: {"output": np.where(v["condition"], v["a"], v["b"])},
    judging=exact("one of the values is taken"),
    draw=_draw_select,
    examples=(
        Example("int32", {"condition": [[1, 0]], "a": [[3, 4]], "b": [[5, 6]]}, {"output": [[3, 6]]}),
        # 1.5 is 3 steps; 2.25 is 4.5 and goes away from zero
        Example("quant8_asymm", {"condition": [1, 0], "a": [13, 30], "b": [9, 9]}, {"output": [103, 105]},
                {"a": (0.5, 10), "b": (0.25, 0), "output": (0.5, 100)}),
    ),
    second_opinion=OPINION,
)  # fmt: skip
