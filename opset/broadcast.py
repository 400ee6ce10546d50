"""Arithmetic on two operands with broadcasting: ADD SUB MUL DIV MAXIMUM MINIMUM POW."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nnhal.operations import RuleKind, ValidationRule
from nnhal.types import FL1, FL2, FL3, FL4, Array, FeatureLevel, OperandType, OperationType
from opset.call import Argument, Call, with_shape
from opset.definition import (
    ACTIVATION,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Bound,
    Example,
    ExecutionRule,
    Judging,
    LeftOpen,
    OperationDef,
    Shapes,
    activation_rule,
    exact,
    form,
    half_units,
    rank_rule,
    relative,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.elementwise import FINITE, roomy
from opset.shapes import broadcast
from opset.values import Values

NAMES = ("a", "b", "output")
BROADCAST_SHAPE = "Broadcast shape"
INT32 = np.iinfo(np.int32)
POWER_TERMS = 4  # roundings of base, exponent and result, each weighted by its condition
OPINION = "ONNX reference evaluator; for quantised types a loop over elements in rational numbers"

Masks = Mapping[str, Array]
Results = Mapping[str, Array]


def infer_broadcast(call: Call) -> Shapes:
    """The broadcast shape of the two tensor inputs."""
    first, second = list(call.inputs.values())[:2]
    shape = broadcast(first.shape, second.shape)
    return {"output": shape if shape is not None else first.shape}


def broadcast_rule(first: str, second: str) -> ExecutionRule:
    """The shapes of two operands are compatible."""

    def broken(call: Call) -> Call | None:
        shape = call[first].shape
        if not shape or not call[second].shape:
            return None
        size = max(shape[-1], call[second].shape[-1], 2)
        bad = with_shape(call, first, (*shape[:-1], size))
        return with_shape(bad, second, (*call[second].shape[:-1], size + 1))

    return ExecutionRule(
        "BROADCAST",
        f"the shapes of {first} and {second}, aligned at the end, are equal or 1 in each dimension",
        lambda call: broadcast(call[first].shape, call[second].shape) is not None,
        broken,
    )


# --- draws ------------------------------------------------------------------------------------------------------------


def broadcast_shapes(
    draft: Draft, name: str, ranks: tuple[int, int] = (1, 4)
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two compatible shapes; either or both are stretched, and one may lack leading dimensions.

    Args:
        name: an input of the type; in a scope that has one, one shape is that of an operand there.
        ranks: smallest and largest rank.
    """
    kind = draft.type(name)
    known = draft.scope.find(lambda a: a.type == kind and ranks[0] <= a.rank <= ranks[1])
    shape = known.shape if known is not None else draft.shape(roomy(draft, ranks))
    if draft.chance(30):
        return shape, shape
    sides = [[size, size] if draft.chance(60) else draft.choose(([1, size], [size, 1])) for size in shape]
    first, second = tuple(side[0] for side in sides), tuple(side[1] for side in sides)
    if known is not None:
        first = shape
    if draft.chance(40):
        second = second[draft.integer(0, len(shape) - 1) :]
    return (first, second) if draft.chance(50) else (second, first)


def _span(draft: Draft, reach: float) -> tuple[float, float]:
    """Both signs, or one: rounding toward zero shows where results lie on one side."""
    return draft.choose(((-reach, reach), (-reach, reach), (0.0, reach), (-reach, 0.0)))


def _draw_arithmetic(whole: tuple[int, ...], accept: float) -> Callable[[Draft], None]:
    """Draws for ADD, SUB, MUL.

    Args:
        whole: reaches of plain integers; the last shows a kernel that computes in float32.
        accept: largest real number that is taken from a scope, so that the result stays finite in float16.
    """

    def draw(draft: Draft) -> None:
        code = draft.activation()
        reach: float = 7.0 if code == 3 else draft.choose((2.0, 2.0, 20.0))  # beyond 6, so that RELU6 clips
        if draft.type("a") == I32:
            reach = draft.choose(whole)
        first, second = broadcast_shapes(draft, "a")
        most = whole[-1] if draft.type("a") == I32 else accept
        for name, shape in (("a", first), ("b", second)):
            low, high = _span(draft, reach)
            draft.tensor(name, shape, low=low, high=high, accept=(-most, most))

    return draw


def _nonzero(stored: Array) -> Array:
    """Divisors kept well away from 0, so that quotients stay moderate."""
    if stored.dtype.kind == "i":
        return np.where(stored == 0, 3, stored)
    return np.where(np.abs(stored) < 0.25, np.copysign(0.25 + np.abs(stored), stored), stored)


def _is_nonzero(argument: Argument) -> bool:
    return argument.value is not None and float(np.abs(argument.value.astype(np.float64)).min(initial=1)) >= 0.25


def _draw_division(draft: Draft) -> None:
    code = draft.activation()
    first, second = broadcast_shapes(draft, "a")
    if draft.type("a") == I32:
        reach, divisor = draft.choose(((1000, 30), (INT32.max, 50), (INT32.max, INT32.max)))
    else:
        reach, divisor = (9 if code == 3 else 2), draft.choose((2, 20))
    most = INT32.max if draft.type("a") == I32 else 1e4
    draft.tensor("a", first, low=-reach, high=reach, accept=(-most, most))
    draft.tensor("b", second, low=-divisor, high=divisor, fits=_is_nonzero, adjust=_nonzero, accept=(-most, most))


def _draw_extremum(draft: Draft) -> None:
    first, second = broadcast_shapes(draft, "a", (1, 5))
    low, high, bottom, top, accept = -2.0, 2.0, 1.0, 1.0, FINITE
    if draft.type("a") == I32:
        low, high = draft.choose(((-100, 100), (INT32.min, INT32.max), (2**30, 2**30 + 40)))
        accept = (INT32.min, INT32.max)
    else:  # ranges that overlap in part: each side wins somewhere, and quantised scales differ
        low, high = draft.choose(((-2.0, 2.0), (-30.0, 30.0)))
        bottom, top = draft.choose((0.3, 1.0)), draft.choose((0.6, 1.0))
    draft.tensor("a", first, low=low, high=high, accept=accept)
    scale, zero = draft.common("a")
    draft.tensor("b", second, low=low * bottom, high=high * top, scale=scale, zero_point=zero, accept=accept)


def _draw_power(draft: Draft) -> None:
    first, second = broadcast_shapes(draft, "base", (1, 5))
    if draft.chance(25):  # any base but 0 with exponents that are integers
        draft.tensor("base", first, low=-3.0, high=3.0, fits=_is_nonzero, adjust=_nonzero)
        draft.tensor("exponent", second, low=-3.0, high=4.0, fits=_is_whole, adjust=np.rint)
    elif draft.chance(20):  # 0 among the bases
        draft.tensor("base", first, low=0.0, high=3.0, adjust=lambda x: np.where(x < 0.3, 0, x))
        draft.tensor("exponent", second, low=0.25, high=4.0)
    else:
        draft.tensor("base", first, low=0.05, high=draft.choose((1.5, 4.0)))
        draft.tensor("exponent", second, low=-2.0, high=4.0)


def _is_whole(argument: Argument) -> bool:
    return argument.value is not None and bool(np.all(argument.value == np.rint(argument.value)))


# --- ADD, SUB, MUL, DIV -----------------------------------------------------------------------------------------------


def _computed(compute: Callable[[Array, Array], Array]) -> Callable[[Values], Results]:
    return lambda v: {"output": v.activate(compute(v["a"], v["b"]))}


def _overflow(compute: Callable[[Array, Array], Array]) -> LeftOpen:
    def masks(values: Values, results: Results) -> Masks:
        del results
        if values.call["a"].type != I32:
            return {}
        true = compute(values["a"], values["b"])
        return {"output": (true < INT32.min) | (true > INT32.max)}

    return LeftOpen("INT32 results that do not fit: the documents do not say that they wrap", masks)


def _sum_of_magnitudes(values: Values, results: Results) -> Bound:
    """One rounding of what is added: relaxed float32 may round both operands first, and they may cancel."""
    del results
    return Bound(np.abs(values["a"]) + np.abs(values["b"]), 1)


def _added(compute: Callable[[Array, Array], Array]) -> Judging:
    return Judging(_sum_of_magnitudes, half_units(1, "|a| + |b|"), _overflow(compute))


def _arithmetic(
    code: OperationType,
    doc: str,
    rows: tuple[tuple[OperandType, FeatureLevel], ...],
    compute: Callable[[Array, Array], Array],
    judging: Judging,
    draw: Callable[[Draft], None],
    *examples: Example,
    rules: tuple[ValidationRule, ...] = (),
) -> OperationDef:
    """ADD, SUB, MUL and DIV: two operands, a fused activation, an output scale of its own."""
    since = min(level for _, level in rows)
    inputs = (tensor("a", "First operand.", 1, 4), tensor("b", "Second operand; its own scale.", 1, 4), ACTIVATION)
    return OperationDef(
        code=code,
        doc=doc,
        forms=(form(*inputs, since=since),),
        results=(tensor("output", f"{BROADCAST_SHAPE}; scale and zero point are free.", 1, 4),),
        rows=same(NAMES, *rows),
        rules=(
            rank_rule("RANK_A", "a", 1, 4),
            rank_rule("RANK_B", "b", 1, 4),
            *rules,
            broadcast_rule("a", "b"),
            activation_rule(),
        ),
        infer=infer_broadcast,
        kernel=_computed(compute),
        judging=judging,
        draw=draw,
        examples=examples,
        second_opinion=OPINION,
    )


ADD = _arithmetic(
    OperationType.ADD,
    "act(a + b). INT32 overflow is left open.",
    ((F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4), (I32, FL4)),
    np.add,
    _added(np.add),
    _draw_arithmetic((1000, 2**30 - 1), 2e4),
    Example("float32", {"a": [[1.0, -4.0]], "b": [[2.0], [3.0]], "activation": 1},
            {"output": [[3.0, 0.0], [4.0, 0.0]]}),
    # 1.5 + 2.25 = 3.75; -1 + 2.25 = 1.25; 100 + 2.25 saturates
    Example("quant8_asymm", {"a": [13, 8, 210], "b": [9], "activation": 0}, {"output": [115, 105, 255]},
            {"a": (0.5, 10), "b": (0.25, 0), "output": (0.25, 100)}),
)  # fmt: skip
SUB = _arithmetic(
    OperationType.SUB,
    "act(a - b). INT32 overflow is left open.",
    ((F32, FL2), (Q8, FL3), (F16, FL3), (Q8S, FL4), (I32, FL4)),
    np.subtract,
    _added(np.subtract),
    _draw_arithmetic((1000, 2**30 - 1), 2e4),
    Example("float32", {"a": [[1.0], [4.0]], "b": [2.0, -3.0], "activation": 3},
            {"output": [[0.0, 4.0], [2.0, 6.0]]}),
    # 1.5 - 2.25 = -0.75; -1 - 2.25 = -3.25; 58.5 - 2.25 = 56.25 saturates
    Example("quant8_asymm_signed", {"a": [13, 8, 127], "b": [9], "activation": 0}, {"output": [-13, -23, 127]},
            {"a": (0.5, 10), "b": (0.25, 0), "output": (0.25, -10)}),
)  # fmt: skip
MUL = _arithmetic(
    OperationType.MUL,
    "act(a * b). Quantised: the output scale must be greater than the product of the input scales, at every level. "
    "INT32 overflow is left open.",
    ((F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4), (I32, FL4)),
    np.multiply,
    relative(1, _overflow(np.multiply)),
    _draw_arithmetic((1000, 46340), 200.0),  # 46340 squared just fits
    Example("float32", {"a": [[2.0, -0.5]], "b": [[3.0], [-0.5]], "activation": 2},
            {"output": [[1.0, -1.0], [-1.0, 0.25]]}),
    # 1.5 * 2.25 = 3.375 is 6.75 steps; -1 * 2.25 is -4.5 steps and goes away from zero; 100 * 2.25 saturates
    Example("quant8_asymm", {"a": [13, 8, 210], "b": [9], "activation": 0}, {"output": [107, 95, 255]},
            {"a": (0.5, 10), "b": (0.25, 0), "output": (0.5, 100)}),
    rules=(
        ValidationRule(
            "OUTPUT_SCALE",
            "the scale of output is greater than the product of the scales of a and b",
            RuleKind.SCALE_ABOVE_PRODUCT,
            ("output", "a", "b"),
            types=(Q8, Q8S),
        ),
    ),
)  # fmt: skip


def _quotient(a: Array, b: Array) -> Array:
    return np.asarray(a // b if a.dtype.kind == "i" else a / b)


def _open_quotient(values: Values, results: Results) -> Masks:
    del results
    a, b = values["a"], values["b"]
    opened = np.broadcast_to(b == 0, np.broadcast_shapes(a.shape, b.shape))
    if a.dtype.kind == "i":
        opened = opened | ((a == INT32.min) & (b == -1))
    return {"output": opened}


DIV = _arithmetic(
    OperationType.DIV,
    "act(a / b). INT32 is rounded toward minus infinity. Division by zero is left open. One public validator takes "
    "TENSOR_QUANT8_ASYMM_SIGNED, which the documents do not know and its kernel refuses: no signature here.",
    ((F32, FL2), (F16, FL3), (I32, FL4)),
    _quotient,
    # A reciprocal and a product: up to 2.5 ULP on GPUs.
    relative(3, LeftOpen("division by zero, and the one INT32 quotient that does not fit", _open_quotient)),
    _draw_division,
    Example("float32", {"a": [[3.0, -1.0]], "b": [[2.0], [-4.0]], "activation": 1},
            {"output": [[1.5, 0.0], [0.0, 0.25]]}),
    Example("int32", {"a": [7, -7, 7, -7, -6], "b": [2, 2, -2, -2, 3], "activation": 0},
            {"output": [3, -4, -4, 3, -2]}),
)  # fmt: skip


# --- MAXIMUM, MINIMUM, POW --------------------------------------------------------------------------------------------


def _extremum(
    code: OperationType, word: str, compute: Callable[[Array, Array], Array], *examples: Example
) -> OperationDef:
    return OperationDef(
        code=code,
        doc=f"The {word} of a and b. Quantised: a, b and output may all have different scales, for signed values too, "
        "whose documents name the unsigned type twice; each side is brought to the output's.",
        forms=(form(tensor("a", "First operand."), tensor("b", "Second operand; its own scale."), since=FL3),),
        results=(tensor("output", f"{BROADCAST_SHAPE}; scale and zero point are free."),),
        rows=same(NAMES, (F32, FL3), (F16, FL3), (I32, FL3), (Q8, FL3), (Q8S, FL4)),
        rules=(broadcast_rule("a", "b"),),
        infer=infer_broadcast,
        kernel=lambda v: {"output": compute(v["a"], v["b"])},
        judging=exact("one of the values is taken"),
        draw=_draw_extremum,
        examples=examples,
        second_opinion=OPINION,
    )


MAXIMUM = _extremum(
    OperationType.MAXIMUM,
    "larger",
    np.maximum,
    Example("float32", {"a": [[1.0, -4.0]], "b": [[0.5], [-5.0]]},
            {"output": [[1.0, 0.5], [1.0, -4.0]]}),
    # 1.5 and 2.25 gives 2.25: 4.5 steps, away from zero
    Example("quant8_asymm", {"a": [13, 30], "b": [9]}, {"output": [105, 120]},
            {"a": (0.5, 10), "b": (0.25, 0), "output": (0.5, 100)}),
)  # fmt: skip
MINIMUM = _extremum(
    OperationType.MINIMUM,
    "smaller",
    np.minimum,
    Example("int32", {"a": [[1, -4]], "b": [[0], [-5]]},
            {"output": [[0, -4], [-5, -5]]}),
    # -1.5 and 2.25 gives -1.5: 3 steps below
    Example("quant8_asymm_signed", {"a": [7, 30], "b": [9]}, {"output": [-13, -5]},
            {"a": (0.5, 10), "b": (0.25, 0), "output": (0.5, -10)}),
)  # fmt: skip


def _power(v: Values) -> Results:
    return {"output": np.power(v["base"], v["exponent"])}


def _power_bound(values: Values, results: Results) -> Bound:
    """Conditions |b| of the base and |b ln a| of the exponent: kernels raise e to b * ln a."""
    size, exponent = np.abs(results["output"]), np.abs(values["exponent"])
    logarithm = np.abs(np.log(np.abs(values["base"])))
    moved = size * (1 + exponent + exponent * logarithm)
    return Bound(np.where(np.isfinite(moved), moved, 0.0), POWER_TERMS)


def _open_power(values: Values, results: Results) -> Masks:
    del results
    return {"output": (values["base"] == 0) & (values["exponent"] <= 0)}


POW = OperationDef(
    code=OperationType.POW,
    doc="base to the power of exponent, broadcasting. A negative base with an exponent that is no integer gives NaN, "
    "which is left open, as is 0 to a power that is not positive.",
    forms=(form(tensor("base", "Base."), tensor("exponent", "Exponent."), since=FL3),),
    results=(tensor("output", f"{BROADCAST_SHAPE}."),),
    rows=same(("base", "exponent", "output"), (F32, FL3), (F16, FL3)),
    rules=(broadcast_rule("base", "exponent"),),
    infer=infer_broadcast,
    kernel=_power,
    judging=Judging(
        _power_bound,
        half_units(POWER_TERMS, "|result| * (1 + |exponent| + |exponent * ln(|base|)|)"),
        LeftOpen("0 to a power that is not positive; what is not a number is open anyway", _open_power),
    ),
    draw=_draw_power,
    examples=(
        Example("float32", {"base": [[4.0, -2.0, 0.25]], "exponent": [[2.0], [3.0], [-1.0]]},
                {"output": [[16.0, 4.0, 0.0625], [64.0, -8.0, 0.015625], [0.25, -0.5, 4.0]]}),
    ),
    second_opinion="decimal arithmetic of 40 digits",
)  # fmt: skip
