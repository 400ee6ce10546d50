"""Reductions over axes: MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_SUM ARGMAX ARGMIN."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from nnhal.operations import TypeRow
from nnhal.types import FL2, FL3, FL4, Array, OperandType, OperationType
from opset.call import Call
from opset.definition import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    ROW_NAMES,
    Bound,
    Example,
    Judging,
    LeftOpen,
    OperationDef,
    Shapes,
    exact,
    form,
    half_units,
    int32,
    same,
    sums,
    tensor,
)
from opset.drawing import Draft
from opset.elementwise import FINITE
from opset.normalization import axis_rule
from opset.quantization import QUANTIZED
from opset.reduction_axes import (
    AXES,
    AXES_RULE,
    KEEP_DIMS,
    RANK_INPUT,
    REDUCED,
    crowded,
    draw_axes,
    draw_reduction,
    draw_shape,
    in_front,
    infer_reduced,
    is_inside,
    orders,
    reduced_count,
)
from opset.reshaping import same_quantization, same_quantization_rule
from opset.shapes import normal_axis
from opset.values import Values

NAMES = ("input", "output")
INT32 = np.iinfo(np.int32)
BEYOND_HALF = 1e6  # float16 does not reach it, so no model with such values is relaxed
GRID = 64  # float16 holds such parts of small numbers, so relaxed models see the ties that are there and no others
COMPARED = ((F32, FL3), (F16, FL3), (I32, FL3), (Q8, FL3), (Q8S, FL4))
LOOP = "a loop over the elements, each put into the place that its remaining coordinates name"

# --- MEAN, REDUCE_SUM -------------------------------------------------------------------------------------------------


def _sum(v: Values) -> Mapping[str, Array]:
    terms, scale = v.factor("input")
    total = v.sum(in_front(v.call, terms), 0)
    return {"output": total if terms.dtype.kind == "f" else total * scale}


def _mean(v: Values) -> Mapping[str, Array]:
    total = _sum(v)["output"]
    return {"output": total / total.dtype.type(reduced_count(v.call))}


def _draw_sum(draft: Draft) -> None:
    low, high = draft.choose(((-2.0, 2.0), (-2.0, 2.0), (0.3, 2.0), (-2.0, 0.5), (-30.0, 30.0)))
    side = draft.choose((0, 0, 1, -1)) if draft.type("input") in QUANTIZED else 0
    # The sum of all magnitudes stays below what float16 holds, whatever the order.
    draw_reduction(draft, low, high, accept=(-10.0, 10.0), adjust=lambda value: crowded(value, side))


def _draw_mean(draft: Draft) -> None:
    _draw_sum(draft)
    # Only numbers above 0 keep the dimensions.
    draft.scalar("keep_dims", draft.choose((1, 0, 1, 0, 100, -1)))


MEAN = OperationDef(
    code=OperationType.MEAN,
    doc="The sum over the reduced dimensions, divided by the number of elements behind it. Quantised: the mean of the "
    "real values, rounded; public code divides stored sums and truncates toward zero, which one step allows and which "
    "is no good arithmetic. No axes reduce nothing (early documents: everything), but an empty list is no operand that "
    "a model can have.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, 4),
            AXES,
            int32("keep_dims", "Reduced dimensions stay, with size 1, when greater than 0."),
            since=FL2,
        ),
    ),
    results=(tensor("output", f"{REDUCED}; scale and zero point of input.", 1, 4),),
    rows=same(NAMES, (F32, FL2), (Q8, FL2), (F16, FL3), (Q8S, FL4)),
    rules=(RANK_INPUT, AXES_RULE, same_quantization_rule("input", "output")),
    infer=infer_reduced,
    kernel=_mean,
    judging=sums(_mean, lambda call: reduced_count(call) + 2, "(elements reduced + 2)", "the mean of absolute values"),
    draw=_draw_mean,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "float32",
            {"input": [[[1.0, 2.5], [-4.0, 3.0]], [[0.5, 8.0], [2.5, 0.0]]], "axes": [2, 0, -1], "keep_dims": 0},
            {"output": [3.0, 0.375]},
        ),
        Example("float32", {"input": [[3.0, 4.0], [-1.0, 0.5]], "axes": [1, 0], "keep_dims": -1}, {"output": [1.625]}),
        # Stored sums -10 and 8 over three: -3.33 and 2.67.
        Example(
            "quant8_asymm_signed",
            {"input": [[-1, 0, -9], [1, 2, 5]], "axes": [-1], "keep_dims": 2},
            {"output": [[-3], [3]]},
            {"input": (0.7, 5), "output": (0.7, 5)},
        ),
    ),
    second_opinion="sums of rational numbers by a loop over the elements; ONNX reference evaluator (ReduceMean)",
)

REDUCE_SUM = OperationDef(
    code=OperationType.REDUCE_SUM,
    doc="The sum over the reduced dimensions. Public code accumulates FLOAT16 in float16.",
    forms=(form(tensor("input", "Source of rank n.", 1, 4), AXES, KEEP_DIMS, since=FL3),),
    results=(tensor("output", f"{REDUCED}.", 1, 4),),
    rows=same(NAMES, (F32, FL3), (F16, FL3)),
    rules=(RANK_INPUT, AXES_RULE),
    infer=infer_reduced,
    kernel=_sum,
    judging=sums(_sum, reduced_count, "(elements reduced)", "the sum of absolute values"),
    draw=_draw_sum,
    examples=(
        Example(
            "float32",
            {"input": [[[1.0, 2.5], [-4.0, 3.0]]], "axes": [-2, 1], "keep_dims": False},
            {"output": [[-3.0, 5.5]]},
        ),
        Example(
            "float16", {"input": [[1.5, 2.0], [-4.0, 0.25]], "axes": [0, 1], "keep_dims": True}, {"output": [[-0.25]]}
        ),
    ),
    second_opinion="sums of rational numbers by a loop over the elements; ONNX reference evaluator (ReduceSum)",
)

# --- REDUCE_PROD ------------------------------------------------------------------------------------------------------

PRODUCT_BITS = 12.0  # binary orders of magnitude that a product may have: float16 holds 14 below 1 without loss
DEVIATIONS = 4.5  # of the logarithm of a product; no draw comes near


def _product(v: Values) -> Mapping[str, Array]:
    factors = in_front(v.call, v["input"])
    if v.arithmetic.order == "reversed":
        factors = factors[::-1]
    return {"output": np.multiply.reduce(factors, axis=0)}


def _bound_product(v: Values, results: Mapping[str, Array]) -> Bound:
    return Bound(np.abs(results["output"]), reduced_count(v.call))


def _draw_product(draft: Draft) -> None:
    kind = draft.type("input")
    found = draft.scope.find(
        lambda a: a.type == kind and 1 <= a.rank <= 4 and is_inside(a, (-1e3, 1e3)) and orders(a) <= PRODUCT_BITS
    )
    shape = (
        found.shape
        if found is not None
        else draft.shape((1, 2) if draft.chance(20) else (3, 4), draft.choose((5, 7, 9)))
    )
    factors = draw_axes(draft, shape)
    reach = min(1.0, PRODUCT_BITS / DEVIATIONS / math.sqrt(factors))
    zero = draft.chance(20)

    def spread(value: Array) -> Array:
        """Factors of either sign about 1 in size, so that products are as well."""
        factor = np.copysign(2.0 ** (2 * reach * (np.abs(value) - 0.5)), value)
        if zero:
            factor.reshape(-1)[0] = 0.0
        return factor

    if found is not None:
        draft.put("input", found)
    else:
        draft.tensor("input", shape, low=-1.0, high=1.0, adjust=spread)
    draft.scalar("keep_dims", draft.choose((0, 1)))


REDUCE_PROD = OperationDef(
    code=OperationType.REDUCE_PROD,
    doc="The product over the reduced dimensions. Public code accumulates FLOAT16 in float16, and gives 0 where a "
    "factor is 0 even beside infinity or NaN; that is left open here and never drawn.",
    forms=(form(tensor("input", "Source of rank n.", 1, 4), AXES, KEEP_DIMS, since=FL3),),
    results=(tensor("output", f"{REDUCED}.", 1, 4),),
    rows=same(NAMES, (F32, FL3), (F16, FL3)),
    rules=(RANK_INPUT, AXES_RULE),
    infer=infer_reduced,
    kernel=_product,
    judging=Judging(_bound_product, half_units("(factors)", "the result")),
    draw=_draw_product,
    examples=(
        Example(
            "float32",
            {"input": [[1.5, -2.0, 0.5], [3.0, 0.0, 7.0]], "axes": [1], "keep_dims": True},
            {"output": [[-1.5], [0.0]]},
        ),
        Example(
            "float16", {"input": [[1.5, -2.0], [-0.5, 3.0]], "axes": [0, -1], "keep_dims": False}, {"output": [4.5]}
        ),
    ),
    second_opinion="products of rational numbers by a loop over the elements; ONNX reference evaluator (ReduceProd)",
)

# --- REDUCE_MAX, REDUCE_MIN, REDUCE_ALL, REDUCE_ANY -------------------------------------------------------------------


def _chosen(choose: np.ufunc) -> Callable[[Values], Mapping[str, Array]]:
    """A kernel that gives one of the stored values."""

    def kernel(v: Values) -> Mapping[str, Array]:
        return {"output": choose.reduce(in_front(v.call, v.stored("input")), axis=0)}

    return kernel


def _infinite(sign: float) -> LeftOpen:
    return LeftOpen(
        "elements behind which there is nothing but infinity: public code starts with the last finite value",
        lambda v, results: {"output": results["output"] == sign * np.inf},
    )


def _draw_extremum(sign: float) -> Callable[[Draft], None]:
    """Values on both sides of zero, on one, or large; at times with infinities, which must not win or must win."""

    def draw(draft: Draft) -> None:
        kind = draft.type("input")
        floats = kind in (F32, F16)
        spans = [(-2.0, 2.0), (-2.0, -0.3), (0.3, 2.0)]
        spans += [FINITE] if floats else []
        low, high = draft.choose(spans)
        infinite = floats and draft.alone
        won, lost = infinite and draft.chance(15), infinite and draft.chance(15)

        def plant(value: Array) -> Array:
            """The infinity that loses stands beside a finite value wherever more than one value is reduced."""
            flat = value.reshape(-1)
            if won:
                flat[-1] = sign * np.inf
            if lost:
                flat[0] = -sign * np.inf
            return value

        draw_reduction(draft, low, high, adjust=plant)

    return draw


def _extremum(code: OperationType, words: str, sign: float, examples: tuple[Example, ...]) -> OperationDef:
    return OperationDef(
        code=code,
        doc=f"The {words} value over the reduced dimensions. Where all of them are infinite on the other side, public "
        "code gives the last finite value of the type; that is left open, and so is NaN.",
        forms=(form(tensor("input", "Source of rank n.", 1, 4), AXES, KEEP_DIMS, since=FL3),),
        results=(tensor("output", f"{REDUCED}; scale and zero point of input.", 1, 4),),
        rows=same(NAMES, (F32, FL3), (F16, FL3), (Q8, FL3), (Q8S, FL4)),
        rules=(RANK_INPUT, AXES_RULE, same_quantization_rule("input", "output")),
        infer=infer_reduced,
        kernel=_chosen(np.maximum if sign > 0 else np.minimum),
        judging=exact("one of the values is taken", _infinite(-sign)),
        draw=_draw_extremum(sign),
        quantization=same_quantization("output"),
        examples=examples,
        second_opinion=f"{LOOP}; ONNX reference evaluator",
    )


REDUCE_MAX = _extremum(
    OperationType.REDUCE_MAX,
    "largest",
    1.0,
    (
        Example(
            "float32",
            {"input": [[[-1.0, -2.5], [-4.0, -3.0]]], "axes": [1, -2], "keep_dims": False},
            {"output": [[-1.0, -2.5]]},
        ),
        Example(
            "quant8_asymm",
            {"input": [[3, 200], [199, 0]], "axes": [0, 1], "keep_dims": False},
            {"output": [200]},
            {"input": (0.3, 128), "output": (0.3, 128)},
        ),
    ),
)
REDUCE_MIN = _extremum(
    OperationType.REDUCE_MIN,
    "smallest",
    -1.0,
    (
        Example(
            "float16",
            {"input": [[1.0, 2.5], [4.0, 0.5]], "axes": [-1], "keep_dims": True},
            {"output": [[1.0], [0.5]]},
        ),
        Example(
            "quant8_asymm_signed",
            {"input": [[3, -120], [127, 0]], "axes": [0], "keep_dims": False},
            {"output": [3, -120]},
            {"input": (0.3, -7), "output": (0.3, -7)},
        ),
    ),
)


def _draw_logical(common: int) -> Callable[[Draft], None]:
    """Booleans of which so many are the common one that results of either kind are about as frequent."""

    def draw(draft: Draft) -> None:
        found = draft.scope.find(lambda a: a.type == B8 and 1 <= a.rank <= 4 and is_inside(a, None))
        shape = found.shape if found is not None else draw_shape(draft)
        factors = draw_axes(draft, shape)
        if found is not None:
            draft.put("input", found)
        else:
            rare = draft.source.generator().random(shape) >= 0.5 ** (1 / factors)
            draft.tensor("input", shape, adjust=lambda value: rare ^ common)
        draft.scalar("keep_dims", draft.choose((0, 1)))

    return draw


def _logical(code: OperationType, words: str, common: int, choose: np.ufunc, example: Example) -> OperationDef:
    return OperationDef(
        code=code,
        doc=f"Whether {words} of the values over the reduced dimensions is true.",
        forms=(form(tensor("input", "Source of rank n.", 1, 4), AXES, KEEP_DIMS, since=FL3),),
        results=(tensor("output", f"{REDUCED}.", 1, 4),),
        rows=same(NAMES, (B8, FL3)),
        rules=(RANK_INPUT, AXES_RULE),
        infer=infer_reduced,
        kernel=lambda v: {"output": choose.reduce(in_front(v.call, v["input"]), axis=0)},
        judging=exact("truth values"),
        draw=_draw_logical(common),
        examples=(example,),
        second_opinion=LOOP,
    )


REDUCE_ALL = _logical(
    OperationType.REDUCE_ALL,
    "each",
    1,
    np.logical_and,
    Example("bool8", {"input": [[1, 1], [1, 0]], "axes": [0], "keep_dims": False}, {"output": [1, 0]}),
)
REDUCE_ANY = _logical(
    OperationType.REDUCE_ANY,
    "any",
    0,
    np.logical_or,
    Example("bool8", {"input": [[0, 0], [1, 0]], "axes": [-1], "keep_dims": True}, {"output": [[0], [1]]}),
)

# --- ARGMAX, ARGMIN ---------------------------------------------------------------------------------------------------


def _without_axis(call: Call) -> Shapes:
    shape = call["input"].shape
    axis = normal_axis(call.integer("axis"), len(shape))
    return {"output": (*shape[:axis], *shape[axis + 1 :]) or (1,)}


def _first(find: Callable[..., Array]) -> Callable[[Values], Mapping[str, Array]]:
    def kernel(v: Values) -> Mapping[str, Array]:
        places = find(v.stored("input"), axis=v.integer("axis"))
        return {"output": np.asarray(places, np.int64).reshape(_without_axis(v.call)["output"])}

    return kernel


def _beside_nan(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    unknown = np.isnan(v.stored("input").astype(np.float64)).any(axis=v.integer("axis"))
    return {"output": unknown.reshape(results["output"].shape)}


def _draw_position(sign: float) -> Callable[[Draft], None]:
    """Values with ties at the winning end, or close to one another, or infinite, or any."""

    def draw(draft: Draft) -> None:
        kind = draft.type("input")
        way = draft.choose(("ties", "ties", "any", "close", "infinite"))
        rank = draft.choose((1, 2, 3, 3, 4, 4, 5))
        found = draft.scope.find(lambda a: a.type == kind and 1 <= a.rank <= 5 and is_inside(a, None))
        shape = found.shape if found is not None else draft.shape((rank, rank), draft.choose((4, 6, 9)))
        low, high, step = _levels(kind, way)

        def plant(value: Array) -> Array:
            if way == "infinite" and kind in (F32, F16) and draft.alone:
                return _with_infinity(value, sign)
            if way == "any" and kind == F32:
                return np.asarray(np.rint(value * GRID) / GRID)
            return value // step * step if way == "ties" else value

        if found is not None:
            draft.put("input", found)
        else:
            draft.tensor("input", shape, low=low, high=high, adjust=plant)
        draft.scalar("axis", draft.integer(-len(shape), len(shape) - 1))

    return draw


def _levels(kind: OperandType, way: str) -> tuple[float, float, float]:
    """Range of the values, and the distance of the levels that make ties. Close ones are so in fewer bits alone."""
    if kind == I32:
        spans = {"ties": (-3, 3), "close": (INT32.max - 40, INT32.max)}
        return (*spans.get(way, (INT32.min, INT32.max)), 1)
    if kind == F32 and way == "close":
        return BEYOND_HALF, BEYOND_HALF + 32, 1.0
    return -2.0, 2.0, 64 if kind in QUANTIZED else 1.0


def _with_infinity(value: Array, sign: float) -> Array:
    flat = value.reshape(-1)
    flat[-1] = sign * np.inf
    flat[0] = -sign * np.inf
    return value


def _position(code: OperationType, words: str, sign: float, examples: tuple[Example, ...]) -> OperationDef:
    return OperationDef(
        code=code,
        doc=f"The index of the {words} value along an axis; the first of equal ones. Stored values are compared. The "
        "type TENSOR_QUANT8_ASYMM_SIGNED needs 1.3, though one public validator answers 1.2 for it.",
        forms=(
            form(
                tensor("input", "Source of rank n.", 1, None),
                int32("axis", "Axis to look along, in [-n, n)."),
                since=FL3,
            ),
        ),
        results=(tensor("output", "Input without the axis; [1] for an input of rank 1.", 1, None),),
        rows=tuple(TypeRow(ROW_NAMES[kind], since, {"input": kind, "output": I32}) for kind, since in COMPARED),
        rules=(axis_rule("input"),),
        infer=_without_axis,
        kernel=_first(np.argmax if sign > 0 else np.argmin),
        judging=exact("positions", LeftOpen("elements behind which there is a NaN", _beside_nan)),
        draw=_draw_position(sign),
        examples=examples,
        second_opinion="a loop over the elements that keeps the first one found; ONNX reference evaluator",
    )


ARGMAX = _position(
    OperationType.ARGMAX,
    "largest",
    1.0,
    (
        Example("float32", {"input": [[1.0, 7.5, 7.5], [-3.0, -4.0, -3.0]], "axis": -1}, {"output": [1, 0]}),
        Example("int32", {"input": [4, -5, 6, 6], "axis": 0}, {"output": [2]}),
    ),
)
ARGMIN = _position(
    OperationType.ARGMIN,
    "smallest",
    -1.0,
    (
        Example("float16", {"input": [[1.0, 7.5, 1.0], [-3.0, 9.0, -3.0]], "axis": 0}, {"output": [1, 0, 1]}),
        Example(
            "quant8_asymm_signed",
            {"input": [[4, -128, 6, -128]], "axis": -1},
            {"output": [1]},
            {"input": (0.5, 3)},
        ),
    ),
)
