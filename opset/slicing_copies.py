"""Values turned round, repeated, or one for all: REVERSE TILE FILL. Belongs to the slicing family."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from nnhal.operations import TypeRow
from nnhal.types import FL3, FL4, FL7, Array, OperandType, OperationType
from opset.call import Call, int32_tensor, with_shape
from opset.definition import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    ROW_NAMES,
    Example,
    ExecutionRule,
    OperationDef,
    Shapes,
    form,
    int32_list,
    moved,
    quantization_rule,
    rank_rule,
    real_scalar,
    same,
    tensor,
)
from opset.drawing import LARGEST_TENSOR, Draft
from opset.elementwise import FINITE, PLACED
from opset.reshaping import any_tensor, ints_of, same_quantization, same_quantization_rule
from opset.slicing_ranges import with_entry
from opset.values import Values

NAMES = ("input", "output")
INT32 = np.iinfo(np.int32)
SECOND_OPINION = "a loop over the output's elements that asks where each comes from"

# --- REVERSE ----------------------------------------------------------------------------------------------------------

MOST_DIMENSIONS = 8


def _reversed(v: Values) -> Mapping[str, Array]:
    return {"output": np.flip(v.stored("input"), axis=v.ints("axis")[0])}


def _break_rank(call: Call) -> Call:
    shape = (1,) * (MOST_DIMENSIONS + 1 - call["input"].rank) + call["input"].shape
    return with_shape(with_shape(call, "input", shape), "output", shape)


def _draw_reverse(draft: Draft) -> None:
    x = any_tensor(draft, (1, 4) if draft.chance(60) else (5, MOST_DIMENSIONS), largest=draft.choose((4, 7)))
    longer = [axis for axis, size in enumerate(x.shape) if size > 1]
    draft.ints("axis", [draft.choose(longer) if longer and draft.chance(90) else draft.integer(0, x.rank - 1)])


REVERSE = OperationDef(
    code=OperationType.REVERSE,
    doc="The input with one of its dimensions in reverse order. The axis counts from 0.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, MOST_DIMENSIONS),
            int32_list("axis", "The dimension to reverse, in [0, n): a list of one."),
            since=FL7,
        ),
    ),
    results=(tensor("output", "The shape, scale and zero point of input.", 1, MOST_DIMENSIONS),),
    rows=same(NAMES, (F32, FL7), (F16, FL7), (Q8, FL7), (Q8S, FL7), (I32, FL7)),
    rules=(
        rank_rule("RANK_AXIS", "axis", 1, 1),
        quantization_rule("output", "input"),
        ExecutionRule(
            "RANK_INPUT",
            f"input has rank 1 to {MOST_DIMENSIONS}",
            lambda call: 1 <= call["input"].rank <= MOST_DIMENSIONS,
            _break_rank,
        ),
        ExecutionRule(
            "ONE_AXIS",
            "axis has one element",
            lambda call: call["axis"].shape == (1,),
            lambda call: call.with_input("axis", int32_tensor((*ints_of(call, "axis"), 0))),
        ),
        ExecutionRule(
            "AXIS",
            "axis is in [0, n) for input of rank n",
            lambda call: 0 <= ints_of(call, "axis")[0] < call["input"].rank,
            lambda call: call.with_input("axis", int32_tensor([call["input"].rank])),
        ),
    ),
    infer=lambda call: {"output": call["input"].shape},
    kernel=_reversed,
    judging=moved(),
    draw=_draw_reverse,
    quantization=same_quantization("output"),
    examples=(
        Example("int32", {"input": [[1, 2, 3], [4, 5, 6]], "axis": [1]}, {"output": [[3, 2, 1], [6, 5, 4]]}),
        Example(
            "quant8_asymm",
            {"input": [[1, 2, 3], [4, 5, 255]], "axis": [0]},
            {"output": [[4, 5, 255], [1, 2, 3]]},
            {"input": (0.1, 3), "output": (0.1, 3)},
        ),
    ),
    second_opinion=SECOND_OPINION,
)

# --- TILE -------------------------------------------------------------------------------------------------------------


def _tiled(call: Call) -> Shapes:
    pairs = zip(call["input"].shape, ints_of(call, "multiples"), strict=True)
    return {"output": tuple(size * times for size, times in pairs)}


def _draw_tile(draft: Draft) -> None:
    x = any_tensor(draft, (1, 5), largest=draft.choose((3, 5)))
    room = LARGEST_TENSOR // math.prod(x.shape)
    multiples = []
    for _ in x.shape:
        times = draft.integer(1, max(1, min(draft.choose((2, 3, 5)), room)))
        room //= times
        multiples.append(times)
    draft.ints("multiples", multiples)


TILE = OperationDef(
    code=OperationType.TILE,
    doc="The input repeated along each of its dimensions.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, None),
            int32_list("multiples", "How often to repeat it along each dimension; n numbers greater than 0."),
            since=FL3,
        ),
    ),
    results=(tensor("output", "Each size times its multiple; scale and zero point of input.", 1, None),),
    rows=same(NAMES, (F32, FL3), (F16, FL3), (I32, FL3), (Q8, FL3), (Q8S, FL4)),
    rules=(
        ExecutionRule(
            "MULTIPLES_LENGTH",
            "multiples has one entry for each dimension of input",
            lambda call: call["multiples"].shape == (call["input"].rank,),
            lambda call: call.with_input("multiples", int32_tensor((*ints_of(call, "multiples"), 1))),
        ),
        ExecutionRule(
            "MULTIPLES",
            "each multiple is greater than 0",
            lambda call: min(ints_of(call, "multiples")) > 0,
            lambda call: with_entry(call, "multiples", 0, -1),
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=_tiled,
    kernel=lambda v: {"output": np.tile(v.stored("input"), v.ints("multiples"))},
    judging=moved(),
    draw=_draw_tile,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "float32",
            {"input": [[1.0, 2.0], [3.0, 4.0]], "multiples": [1, 2]},
            {"output": [[1.0, 2.0, 1.0, 2.0], [3.0, 4.0, 3.0, 4.0]]},
        ),
        Example("int32", {"input": [[7, -8]], "multiples": [3, 1]}, {"output": [[7, -8], [7, -8], [7, -8]]}),
    ),
    second_opinion=f"{SECOND_OPINION}; ONNX reference evaluator (Tile)",
)

# --- FILL -------------------------------------------------------------------------------------------------------------


def _filled(v: Values) -> Mapping[str, Array]:
    return {"output": np.full(v.ints("dims"), v.stored("value"))}


def _draw_fill(draft: Draft) -> None:
    draft.ints("dims", draft.shape((1, 5), draft.choose((4, 7))))
    if draft.type("output") == I32:
        low, high = draft.choose(((-100, 100), (INT32.min, INT32.max)))
        draft.scalar("value", draft.integer(low, high))
    else:
        special = (0.0, *FINITE, *PLACED) if draft.alone else (0.0, *FINITE)
        draft.scalar("value", draft.choose(special) if draft.chance(40) else draft.real(-9.0, 9.0))


FILL = OperationDef(
    code=OperationType.FILL,
    doc="A tensor of given dimensions that holds one value throughout.",
    forms=(
        form(
            int32_list("dims", "Dimensions of the output, each greater than 0."),
            real_scalar("value", "What each element is."),
            since=FL4,
        ),
    ),
    results=(tensor("output", "The wanted dimensions.", 1, None),),
    rows=tuple(
        TypeRow(ROW_NAMES[kind], FL4, {"value": value, "output": kind})
        for kind, value in ((F32, OperandType.FLOAT32), (F16, OperandType.FLOAT16), (I32, OperandType.INT32))
    ),
    rules=(
        ExecutionRule(
            "DIMS",
            "each dimension is greater than 0",
            lambda call: min(ints_of(call, "dims")) > 0,
            lambda call: with_entry(call, "dims", 0, -1),
        ),
    ),
    infer=lambda call: {"output": ints_of(call, "dims")},
    kernel=_filled,
    judging=moved(),
    draw=_draw_fill,
    examples=(
        Example("float32", {"dims": [2, 3], "value": -1.5}, {"output": [[-1.5, -1.5, -1.5], [-1.5, -1.5, -1.5]]}),
        Example("int32", {"dims": [2], "value": 16777217}, {"output": [16777217, 16777217]}),
    ),
    second_opinion="a loop over the output's elements",
)
