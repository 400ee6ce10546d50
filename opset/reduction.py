"""Reductions over axes: MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_SUM ARGMAX ARGMIN."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import TypeRow
from nnhal.types import FL2, FL3, FL4, Array, FeatureLevel, OperandType, OperationType
from opset.call import Argument, Call, int32_tensor
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
    ExecutionRule,
    OperationDef,
    Shapes,
    boolean,
    exact,
    form,
    int32,
    int32_list,
    magnitude,
    rank_rule,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.normalization import axis_rule
from opset.quantization import QUANTIZED
from opset.reshaping import ints_of, same_quantization, same_quantization_rule
from opset.shapes import normal_axis
from opset.values import Values

NAMES = ("input", "output")
INT32 = np.iinfo(np.int32)
LARGEST = {F32: float(np.finfo(np.float32).max), F16: float(np.finfo(np.float16).max)}
LOOP = "a loop over the elements, each put into the place that its remaining coordinates name"
RANK_INPUT = rank_rule("RANK_INPUT", "input", 1, 4)
AXES = int32_list("axes", "Dimensions to reduce, each in [-n, n); a repeated one counts once.")
KEEP_DIMS = boolean("keep_dims", "Reduced dimensions stay, with size 1.")
REDUCED = "Input without the reduced dimensions, or with 1 in their place; [1] when none is left"

# --- shapes and rules -------------------------------------------------------------------------------------------------


def _axes(call: Call) -> tuple[int, ...]:
    """The reduced dimensions, each once, in rising order."""
    rank = call["input"].rank
    return tuple(sorted({normal_axis(axis, rank) for axis in ints_of(call, "axes")}))


def _count(call: Call) -> int:
    """Number of elements behind each of the result."""
    return math.prod(call["input"].shape[axis] for axis in _axes(call))


def _reduced(call: Call) -> Shapes:
    axes, shape = _axes(call), call["input"].shape
    if call["keep_dims"].item() > 0:
        return {"output": tuple(1 if axis in axes else size for axis, size in enumerate(shape))}
    return {"output": tuple(size for axis, size in enumerate(shape) if axis not in axes) or (1,)}


def _in_front(call: Call, x: Array) -> Array:
    """An array of the input's shape, with all that is reduced along axis 0 and the result's shape behind it."""
    axes = _axes(call)
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    return x.transpose([*axes, *rest]).reshape(_count(call), *_reduced(call)["output"])


def _axes_in_range(call: Call) -> bool:
    rank = call["input"].rank
    return all(-rank <= axis < rank for axis in ints_of(call, "axes"))


def _break_axes(call: Call) -> Call:
    return call.with_input("axes", int32_tensor((*ints_of(call, "axes")[:-1], call["input"].rank)))


AXES_RULE = ExecutionRule("AXES", "each axis is in [-n, n) for input of rank n", _axes_in_range, _break_axes)

# --- draws ------------------------------------------------------------------------------------------------------------


def _draw_axes(draft: Draft, shape: tuple[int, ...]) -> int:
    """Axes in any order, negative or not, at times repeated; all of them one time in eight. Returns their size."""
    rank = len(shape)
    number = rank if draft.chance(12) else draft.integer(1, max(1, rank - 1))
    left = list(range(rank))
    axes = [left.pop(draft.integer(0, len(left) - 1)) for _ in range(number)]
    listed = [axis - rank if draft.chance(35) else axis for axis in axes]
    if draft.chance(25):
        again = draft.choose(axes)
        listed.append(again - rank if draft.chance(50) else again)
    draft.ints("axes", listed)
    return math.prod(shape[axis] for axis in axes)


def _draw_shape(draft: Draft) -> tuple[int, ...]:
    """Mostly several dimensions, so that something is left; at times one long one, for sums of many terms."""
    if draft.chance(12):
        return (draft.integer(200, 600), draft.integer(1, 6))
    rank = draft.choose((1, 2, 2, 3, 3, 3, 4, 4, 4))
    return draft.shape((rank, rank), draft.choose((5, 7, 9) if rank > 2 else (7, 13, 40)))


def _draw_reduction(draft: Draft, low: float, high: float, accept: tuple[float, float] | None = None,
                    adjust: Callable[[Array], Array] | None = None) -> None:  # fmt: skip
    found = draft.scope.find(lambda a: a.type == draft.type("input") and 1 <= a.rank <= 4 and _inside(a, accept))
    if found is not None:
        draft.put("input", found)
    else:
        draft.tensor("input", _draw_shape(draft), low=low, high=high, adjust=adjust)
    _draw_axes(draft, draft["input"].shape)
    draft.scalar("keep_dims", draft.choose((0, 1)))


def _inside(argument: Argument, span: tuple[float, float] | None) -> bool:
    """Whether an operand has values, and floats within a range."""
    value = argument.value
    if value is None or not value.size:
        return False
    return span is None or value.dtype.kind != "f" or bool(span[0] <= value.min() and value.max() <= span[1])


# --- MEAN, REDUCE_SUM -------------------------------------------------------------------------------------------------


def _sum(v: Values) -> Mapping[str, Array]:
    terms, scale = v.factor("input")
    total = v.sum(_in_front(v.call, terms), 0)
    return {"output": total if terms.dtype.kind == "f" else total * scale}


def _mean(v: Values) -> Mapping[str, Array]:
    total = _sum(v)["output"]
    return {"output": total / total.dtype.type(_count(v.call))}


def _bound_sum(kernel: Callable[[Values], Mapping[str, Array]], more: int) -> Callable[..., Bound]:
    """One rounding for each term, and more for what follows."""
    return lambda v, results: Bound(magnitude(kernel, v, "output"), _count(v.call) + more)


def _draw_sum(draft: Draft) -> None:
    low, high = draft.choose(((-2.0, 2.0), (-2.0, 2.0), (0.3, 2.0), (-2.0, 0.5), (-30.0, 30.0)))
    # The sum of all magnitudes stays below what float16 holds, whatever the order.
    _draw_reduction(draft, low, high, accept=(-10.0, 10.0))


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
    infer=_reduced,
    kernel=_mean,
    bound=_bound_sum(_mean, 2),
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
    second_opinion="sums of rational numbers by a loop over the elements; float32 also by LiteRT where it is installed",
)

REDUCE_SUM = OperationDef(
    code=OperationType.REDUCE_SUM,
    doc="The sum over the reduced dimensions. Public code accumulates FLOAT16 in float16.",
    forms=(form(tensor("input", "Source of rank n.", 1, 4), AXES, KEEP_DIMS, since=FL3),),
    results=(tensor("output", f"{REDUCED}.", 1, 4),),
    rows=same(NAMES, (F32, FL3), (F16, FL3)),
    rules=(RANK_INPUT, AXES_RULE),
    infer=_reduced,
    kernel=_sum,
    bound=_bound_sum(_sum, 0),
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
    second_opinion="sums of rational numbers by a loop over the elements",
)

# --- REDUCE_PROD ------------------------------------------------------------------------------------------------------

PRODUCT_BITS = 12.0  # binary orders of magnitude that a product may have: float16 holds 14 below 1 without loss
DEVIATIONS = 4.5  # of the logarithm of a product; no draw comes near


def _product(v: Values) -> Mapping[str, Array]:
    factors = _in_front(v.call, v["input"])
    if v.arithmetic.order == "reversed":
        factors = factors[::-1]
    return {"output": np.multiply.reduce(factors, axis=0)}


def _bound_product(v: Values, results: Mapping[str, Array]) -> Bound:
    return Bound(np.abs(results["output"]), _count(v.call))


def _orders(argument: Argument) -> float:
    """Binary orders of magnitude that a product of any elements of an operand may reach."""
    assert argument.value is not None
    sizes = np.abs(argument.value.astype(np.float64))
    return float(np.abs(np.log2(sizes[sizes > 0])).sum())


def _draw_product(draft: Draft) -> None:
    kind = draft.type("input")
    found = draft.scope.find(
        lambda a: a.type == kind and 1 <= a.rank <= 4 and _inside(a, (-1e3, 1e3)) and _orders(a) <= PRODUCT_BITS
    )
    shape = found.shape if found is not None else draft.shape((1, 4), draft.choose((3, 4, 5)))
    factors = _draw_axes(draft, shape)
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
    infer=_reduced,
    kernel=_product,
    bound=_bound_product,
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
    second_opinion="products of rational numbers by a loop over the elements",
)

# --- REDUCE_MAX, REDUCE_MIN, REDUCE_ALL, REDUCE_ANY -------------------------------------------------------------------


def _chosen(choose: np.ufunc) -> Callable[[Values], Mapping[str, Array]]:
    """A kernel that gives one of the stored values."""

    def kernel(v: Values) -> Mapping[str, Array]:
        return {"output": choose.reduce(_in_front(v.call, v.stored("input")), axis=0)}

    return kernel


def _infinite(sign: float) -> Callable[[Values, Mapping[str, Array]], Mapping[str, Array]]:
    def left_open(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
        """Elements behind which there is nothing but infinity: public code starts with the last finite value."""
        return {"output": results["output"] == sign * np.inf}

    return left_open


def _draw_extremum(sign: float) -> Callable[[Draft], None]:
    """Values on both sides of zero, on one, or large; at times with infinities, which must not win or must win."""

    def draw(draft: Draft) -> None:
        kind = draft.type("input")
        floats = kind in (F32, F16)
        spans = [(-2.0, 2.0), (-2.0, -0.3), (0.3, 2.0)]
        spans += [(-LARGEST[kind], LARGEST[kind])] if floats else []
        low, high = draft.choose(spans)
        won, lost = floats and draft.chance(15), floats and draft.chance(15)

        def plant(value: Array) -> Array:
            """The infinity that loses stands beside a finite value wherever more than one value is reduced."""
            flat = value.reshape(-1)
            if won:
                flat[-1] = sign * np.inf
            if lost:
                flat[0] = -sign * np.inf
            return value

        _draw_reduction(draft, low, high, adjust=plant)

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
        infer=_reduced,
        kernel=_chosen(np.maximum if sign > 0 else np.minimum),
        bound=exact,
        draw=_draw_extremum(sign),
        quantization=same_quantization("output"),
        left_open=_infinite(-sign),
        examples=examples,
        second_opinion=LOOP,
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
        found = draft.scope.find(lambda a: a.type == B8 and 1 <= a.rank <= 4 and _inside(a, None))
        shape = found.shape if found is not None else _draw_shape(draft)
        factors = _draw_axes(draft, shape)
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
        infer=_reduced,
        kernel=lambda v: {"output": choose.reduce(_in_front(v.call, v["input"]), axis=0)},
        bound=exact,
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
    """Elements behind which there is a NaN."""
    unknown = np.isnan(v.stored("input").astype(np.float64)).any(axis=v.integer("axis"))
    return {"output": unknown.reshape(results["output"].shape)}


def _draw_position(sign: float) -> Callable[[Draft], None]:
    """Values with ties at the winning end, or alike in what float32 keeps of them, or infinite, or any."""

    def draw(draft: Draft) -> None:
        kind = draft.type("input")
        way = draft.choose(("ties", "ties", "any", "large"))
        rank = draft.choose((1, 2, 3, 3, 4, 4, 5))
        found = draft.scope.find(lambda a: a.type == kind and 1 <= a.rank <= 5 and _inside(a, None))
        shape = found.shape if found is not None else draft.shape((rank, rank), draft.choose((4, 6, 9)))
        low, high, step = _levels(kind, way)

        def plant(value: Array) -> Array:
            if way == "large":
                return value if kind in QUANTIZED or kind == I32 else _with_infinity(value, sign)
            return value if way == "any" else value // step * step

        if found is not None:
            draft.put("input", found)
        else:
            draft.tensor("input", shape, low=low, high=high, adjust=plant)
        draft.scalar("axis", draft.integer(-len(shape), len(shape) - 1))

    return draw


def _levels(kind: OperandType, way: str) -> tuple[float, float, float]:
    """Range of the values, and the distance of the levels that make ties."""
    if kind == I32:
        if way == "large":
            return INT32.max - 40, INT32.max, 1
        return (-3, 3, 1) if way == "ties" else (INT32.min, INT32.max, 1)
    if kind in QUANTIZED:
        return -2.0, 2.0, 64
    return -2.0, 2.0, 1.0


def _with_infinity(value: Array, sign: float) -> Array:
    flat = value.reshape(-1)
    flat[-1] = sign * np.inf
    flat[0] = -sign * np.inf
    return value


def _to_int32(kind: OperandType, since: FeatureLevel) -> TypeRow:
    return TypeRow(ROW_NAMES[kind], since, {"input": kind, "output": I32})


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
        rows=tuple(
            _to_int32(kind, since) for kind, since in ((F32, FL3), (F16, FL3), (I32, FL3), (Q8, FL3), (Q8S, FL4))
        ),
        rules=(axis_rule("input"),),
        infer=_without_axis,
        kernel=_first(np.argmax if sign > 0 else np.argmin),
        bound=exact,
        draw=_draw_position(sign),
        left_open=_beside_nan,
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
