"""Slices and elements picked by index, key or size: GATHER EMBEDDING_LOOKUP HASHTABLE_LOOKUP TOPK_V2."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import OperandDef, TypeRow
from nnhal.types import FL1, FL3, FL4, Array, FeatureLevel, OperandType, OperationType
from opset.call import Argument, Call, with_shape, with_value
from opset.definition import (
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
    Quantization,
    form,
    int32,
    moved,
    same,
    tensor,
)
from opset.drawing import LARGEST_TENSOR, Draft
from opset.normalization import axis_rule
from opset.quantization import QUANTIZED
from opset.reshaping import any_tensor, ints_of
from opset.shapes import normal_axis
from opset.values import Values
from opset.windows import execution_rank_rule

SECOND_OPINION = "loops over elements on lists"
SMALLEST_INT32, LARGEST_INT32 = -(2**31), 2**31 - 1


def indices(name: str, doc: str, low: int = 1, high: int | None = 1) -> OperandDef:
    """A TENSOR_INT32 that is data: which places are read."""
    return OperandDef(name, doc, OperandType.TENSOR_INT32, (low, high))


def kept(source: str, result: str, **fixed: tuple[float, int]) -> Callable[[Call], Quantization]:
    """A quantised result has the scale and zero point of an input; others have fixed ones."""

    def quantization(call: Call) -> Quantization:
        argument = call[source]
        own = {result: (argument.scale, argument.zero_point)} if argument.type in QUANTIZED else {}
        return {**own, **fixed}

    return quantization


def _quantization_rule(text: str) -> ExecutionRule:
    """Results have the scale and zero point that their definition says."""

    def holds(call: Call) -> bool:
        due = call.definition.quantization(call)
        return all((call[name].scale, call[name].zero_point) == pair for name, pair in due.items())

    def broken(call: Call) -> Call | None:
        for name in call.definition.quantization(call):
            return call.with_result(name, replace(call[name], scale=2 * call[name].scale))
        return None

    return ExecutionRule("QUANTIZATION", text, holds, broken)


def _range_rule(name: str, size: Callable[[Call], int], of: str) -> ExecutionRule:
    """Each index is one of a dimension."""

    def broken(call: Call) -> Call:
        bad = np.array(call[name].value)
        bad.reshape(-1)[-1] = size(call)
        return call.with_input(name, replace(call[name], value=bad, key=None))

    return ExecutionRule(
        "INDEX",
        f"each of {name} is at least 0 and less than {of}",
        lambda call: all(0 <= index < size(call) for index in ints_of(call, name)),
        broken,
    )


def _draw_indices(draft: Draft, name: str, shape: tuple[int, ...], size: int) -> None:
    """New ones always: a computed index that is one off elsewhere would be another case, not an error."""
    draft.tensor(name, shape, low=0, high=size - 1, fits=lambda a: False)


def _room(others: int, most: int) -> int:
    """How many slices of a size a result may hold."""
    return max(1, min(most, LARGEST_TENSOR // max(others, 1)))


# --- GATHER -----------------------------------------------------------------------------------------------------------


def _axis(call: Call) -> int:
    return normal_axis(call.integer("axis"), call["input"].rank)


def _infer_gather(call: Call) -> Mapping[str, tuple[int, ...]]:
    shape, axis = call["input"].shape, _axis(call)
    return {"output": (*shape[:axis], *call["indices"].shape, *shape[axis + 1 :])}


def _draw_gather(draft: Draft) -> None:
    x = any_tensor(draft, (1, 5), largest=draft.choose((4, 7)))
    axis = draft.integer(0, x.rank - 1)
    size = x.shape[axis]
    draft.scalar("axis", axis - x.rank if draft.chance(50) else axis)
    left = _room(math.prod(x.shape) // size, 24)
    shape = []
    for _ in range(draft.choose((1, 1, 1, 2, 2, 3))):
        shape.append(draft.integer(1, min(left, 6)))
        left //= shape[-1]
    _draw_indices(draft, "indices", tuple(shape), size)


GATHER = OperationDef(
    code=OperationType.GATHER,
    doc="Slices of the input along an axis, as the indices say; their dimensions take the axis's place.",
    forms=(
        form(
            tensor("input", "Source of rank n."),
            int32("axis", "Axis, in [-n, n)."),
            indices("indices", "Which slices; any rank.", 1, None),
            since=FL3,
        ),
    ),
    results=(tensor("output", "input[:axis] + indices + input[axis + 1:]; scale and zero point of input."),),
    rows=same(("input", "output"), (F32, FL3), (F16, FL3), (I32, FL3), (Q8, FL3), (Q8S, FL4)),
    rules=(
        axis_rule("input"),
        _range_rule("indices", lambda call: call["input"].shape[_axis(call)], "the size of the axis"),
        _quantization_rule("a quantised output has the scale and zero point of input"),
    ),
    infer=_infer_gather,
    kernel=lambda v: {"output": v.stored("input").take(v.stored("indices").astype(np.int64), _axis(v.call))},
    judging=moved(),
    draw=_draw_gather,
    quantization=kept("input", "output"),
    examples=(
        Example(
            "int32",
            {"input": [[1, 2, 3], [4, 5, 6]], "axis": -1, "indices": [[2, 0], [2, 1]]},
            {"output": [[[3, 1], [3, 2]], [[6, 4], [6, 5]]]},
        ),
    ),
    second_opinion=f"{SECOND_OPINION}; ONNX's Gather",
)

# --- EMBEDDING_LOOKUP, HASHTABLE_LOOKUP -------------------------------------------------------------------------------


def _infer_slices(call: Call) -> Mapping[str, tuple[int, ...]]:
    return {"output": (*call["lookups"].shape, *call["values"].shape[1:])}


def _table_rule() -> ExecutionRule:
    return ExecutionRule(
        "RANK_VALUES",
        "values has rank 2 or more",
        lambda call: call["values"].rank >= 2,
        lambda call: with_shape(call, "values", (call["values"].shape[0],)),
    )


def _draw_table(draft: Draft) -> tuple[int, int]:
    """Draws the values; returns their number of slices and how many may be looked up."""
    table = any_tensor(draft, (2, 4), "values", largest=draft.choose((4, 7)))
    size = table.shape[0]
    return size, draft.integer(1, _room(math.prod(table.shape) // size, 9))


def _draw_embedding(draft: Draft) -> None:
    size, count = _draw_table(draft)
    _draw_indices(draft, "lookups", (count,), size)


EMBEDDING_LOOKUP = OperationDef(
    code=OperationType.EMBEDDING_LOOKUP,
    doc="Slices of the values' first dimension, one for each lookup.",
    forms=(form(indices("lookups", "Which slices."), tensor("values", "[n, ...]: the table.", 2)),),
    results=(tensor("output", "[lookups, ...]; scale and zero point of values.", 2),),
    rows=same(("values", "output"), (F32, FL1), (I32, FL3), (Q8, FL3), (F16, FL4), (Q8S, FL4)),
    rules=(
        execution_rank_rule("RANK_LOOKUPS", "lookups", 1),
        _table_rule(),
        _range_rule("lookups", lambda call: call["values"].shape[0], "the number of slices"),
        _quantization_rule("a quantised output has the scale and zero point of values"),
    ),
    infer=_infer_slices,
    kernel=lambda v: {"output": v.stored("values")[v.stored("lookups")]},
    judging=moved(),
    draw=_draw_embedding,
    quantization=kept("values", "output"),
    examples=(
        Example(
            "float32",
            {"lookups": [2, 0, 2], "values": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]},
            {"output": [[5.0, 6.0], [1.0, 2.0], [5.0, 6.0]]},
        ),
    ),
    second_opinion=SECOND_OPINION,
)


def _found(v: Values) -> tuple[Array, Array]:
    """Whether each lookup is a key, and where."""
    equal = v.stored("lookups")[:, None] == v.stored("keys")[None, :]
    return equal.any(axis=1), equal.argmax(axis=1)


def _look_up(v: Values) -> Mapping[str, Array]:
    hits, places = _found(v)
    slices = v.stored("values")[places]
    thin = hits.reshape(-1, *[1] * (slices.ndim - 1))
    return {"output": np.where(thin, slices, slices.dtype.type(0)), "hits": hits.astype(np.uint8)}


def _open_misses(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    if not v.call["values"].zero_point:
        return {}
    missed = ~_found(v)[0]
    return {"output": np.broadcast_to(missed.reshape(-1, *[1] * (results["output"].ndim - 1)), results["output"].shape)}


def _draw_hashtable(draft: Draft) -> None:
    """Keys rise by one or more, near 0 or anywhere; lookups hit, miss between keys, and miss outside."""
    if draft.type("values") == Q8 and draft.chance(50):
        shape = draft.shape((2, 4), draft.choose((4, 7)))
        table = draft.tensor("values", shape, scale=draft.real(0.003, 0.1), zero_point=0)
        size = table.shape[0]
        count = draft.integer(1, _room(math.prod(table.shape) // size, 9))
    else:
        size, count = _draw_table(draft)
        draft.seed_odd("values")  # once more: float32 is the only float type here
    start = draft.choose((0, -5, 7, SMALLEST_INT32, LARGEST_INT32 - 40 * size, 2**24))
    step = draft.choose((1, 3, 40))
    keys = [start]
    for _ in range(size - 1):
        keys.append(keys[-1] + draft.integer(1, step))
    beside = [key + 1 for key in keys] + [max(start - 1, SMALLEST_INT32), 0]
    lookups = [draft.choose(keys) if draft.chance(60) else draft.choose(beside) for _ in range(count)]
    for name, numbers in (("keys", keys), ("lookups", lookups)):
        value = np.array(numbers, np.int64).astype(np.int32)
        draft.put(name, draft.scope.add(Argument(OperandType.TENSOR_INT32, value.shape, value=value)))


def _grown_keys(call: Call) -> Call:
    return with_shape(call, "keys", (call["keys"].shape[0] + 1,))


HASHTABLE_LOOKUP = OperationDef(
    code=OperationType.HASHTABLE_LOOKUP,
    doc="The slice of values whose key each lookup is, and zeros where there is none; hits says which, 1 or 0. Any "
    "other byte is a hit by the documents, but public suites take no more than 1, and it is what is demanded here. "
    "Missed slices of quantised values are bytes of 0 in public code and 'zeroes' in the documents: left open where "
    "that differs. Keys rise; values of rank 1, which public code takes, are against the documents.",
    forms=(
        form(
            indices("lookups", "[k]: keys wanted."),
            indices("keys", "[n]: keys that there are, each greater than the one before."),
            tensor("values", "[n, ...]: a slice for each key.", 2),
        ),
    ),
    results=(
        tensor("output", "[k, ...]; scale and zero point of values.", 2),
        OperandDef("hits", "[k]: 1 or 0; scale 1 and zero point 0.", Q8, (1, 1)),
    ),
    rows=same(("values", "output"), (F32, FL1), (I32, FL1), (Q8, FL1)),
    rules=(
        execution_rank_rule("RANK_LOOKUPS", "lookups", 1),
        execution_rank_rule("RANK_KEYS", "keys", 1),
        ExecutionRule(
            "KEYS",
            "there are as many keys as slices of values",
            lambda call: call["keys"].shape[0] == call["values"].shape[0],
            _grown_keys,
        ),
        _quantization_rule("a quantised output has the scale and zero point of values, hits has scale 1, zero point 0"),
    ),
    infer=lambda call: {**_infer_slices(call), "hits": call["lookups"].shape},
    kernel=_look_up,
    judging=moved(
        LeftOpen(
            "missed slices of quantised values whose zero point is not 0: bytes of 0, or the real number 0",
            _open_misses,
        ),
        steps={"hits": 0},
    ),
    draw=_draw_hashtable,
    quantization=kept("values", "output", hits=(1.0, 0)),
    examples=(
        Example(
            "float32",
            {"lookups": [7, 1, -2], "keys": [-2, 3, 7], "values": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]},
            {"output": [[5.0, 6.0], [0.0, 0.0], [1.0, 2.0]], "hits": [1, 0, 1]},
            {"hits": (1.0, 0)},
        ),
    ),
    second_opinion=f"{SECOND_OPINION} and a dictionary",
)

# --- TOPK_V2 ----------------------------------------------------------------------------------------------------------


def _largest(v: Values) -> Mapping[str, Array]:
    """A stable order from the smallest up, read from its end: of equal values the larger index comes first."""
    x = v.stored("input")
    order = np.argsort(x, axis=-1, kind="stable")[..., ::-1][..., : v.integer("k")]
    return {"values": np.take_along_axis(x, order, -1), "indices": order.astype(np.int64)}


def _infer_largest(call: Call) -> Mapping[str, tuple[int, ...]]:
    shape = (*call["input"].shape[:-1], call.integer("k"))
    return {"values": shape, "indices": shape}


NEAR = 2.0**-16  # what is left of a distance: float32 sees it, float16 and coarse comparison do not


def _tied(parts: int, near: bool) -> Callable[[Array], Array]:
    """Values that often meet: floats of a coarse grid, stored values that are multiples of a power of two.

    Args:
        parts: grid points per unit.
        near: floats come close to the grid and do not meet.
    """

    def adjust(stored: Array) -> Array:
        if stored.dtype.kind == "f":
            grid = np.rint(stored * stored.dtype.type(parts)) / stored.dtype.type(parts)
            beside = (stored - grid) * stored.dtype.type(NEAR if near else 0.0)
            return np.asarray(grid + beside + stored.dtype.type(0))  # no zero below zero
        step = 64 // parts if stored.dtype.itemsize == 1 else 1
        return np.asarray(stored // step * step)

    return adjust


def _draw_largest(draft: Draft) -> None:
    kind = draft.type("input")
    parts = draft.choose((1, 2, 8, 0))
    low, high = -2.0, 2.0
    if kind == I32:  # the last two: neighbours that float32 cannot tell apart, and both ends
        low, high = draft.choose(((-3, 2), (-100, 100), (2**30 - 3, 2**30 + 3), (SMALLEST_INT32, LARGEST_INT32)))
    rank = draft.integer(1, 4)
    shape = (*draft.shape((rank, rank), 3)[:-1], 1 if draft.chance(5) else draft.integer(2, 14))
    found = draft.scope.find(lambda a: a.type == kind and a.rank >= 1 and _ordered(a))
    if found is None:
        adjust = _tied(parts, draft.chance(35)) if parts else None
        found = draft.tensor("input", shape, low=low, high=high, adjust=adjust, fits=_ordered)
    draft.put("input", found)
    size = found.shape[-1]
    draft.scalar("k", size if draft.chance(25) else draft.integer(1, size))


def _ordered(argument: Argument) -> bool:
    """Whether values differ by more than rounding elsewhere could undo."""
    if argument.value is None or not argument.value.size:
        return False
    if argument.value.dtype.kind != "f":
        return True
    apart = np.diff(np.sort(argument.value.astype(np.float64), axis=-1), axis=-1)
    return bool(np.isfinite(argument.value).all() and (apart > 1e-2).all())


LEVELS: tuple[tuple[OperandType, FeatureLevel], ...] = ((F32, FL3), (F16, FL3), (I32, FL3), (Q8, FL3), (Q8S, FL4))

TOPK_V2 = OperationDef(
    code=OperationType.TOPK_V2,
    doc="The k largest elements along the last dimension, in falling order, and their indices. Of equal values the "
    "one with the larger index comes first.",
    forms=(form(tensor("input", "Source."), int32("k", "How many; at most the last dimension."), since=FL3),),
    results=(
        tensor("values", "Last dimension k; scale and zero point of input."),
        OperandDef("indices", "Shape of values.", I32, (1, None)),
    ),
    rows=tuple(TypeRow(ROW_NAMES[kind], since, {"input": kind, "values": kind}) for kind, since in LEVELS),
    rules=(
        ExecutionRule(
            "K",
            "k is at least 1 and at most the last dimension",
            lambda call: 1 <= call.integer("k") <= call["input"].shape[-1],
            lambda call: with_value(call, "k", call["input"].shape[-1] + 1),
        ),
        _quantization_rule("quantised values have the scale and zero point of input"),
    ),
    infer=_infer_largest,
    kernel=_largest,
    judging=moved(),
    draw=_draw_largest,
    quantization=kept("input", "values"),
    examples=(
        # 5 at 3 before 5 at 1, then 4; in the second row three zeros.
        Example(
            "int32",
            {"input": [[1, 5, 4, 5], [0, 0, -1, 0]], "k": 3},
            {"values": [[5, 5, 4], [0, 0, 0]], "indices": [[3, 1, 2], [3, 1, 0]]},
        ),
    ),
    second_opinion="Python's sort by value, then index",
)
