"""Borders around tensors: PAD PAD_V2 MIRROR_PAD."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import OperandDef, RuleKind, TypeRow, ValidationRule
from nnhal.types import FL2, FL3, FL4, FL7, Array, OperandType, OperationType
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
    OperationDef,
    Shapes,
    form,
    int32,
    moved,
    quantization_rule,
    rank_rule,
    real_scalar,
    same,
    tensor,
)
from opset.drawing import LARGEST_TENSOR, Draft
from opset.elementwise import FINITE, PLACED
from opset.quantization import QUANTIZED, limits
from opset.reshaping import any_tensor, ints_of, same_quantization, same_quantization_rule
from opset.values import Values

NAMES = ("input", "output")
REFLECT, SYMMETRIC = 0, 1
PADDED = "Input with its dimensions grown by what stands before and behind; scale and zero point of input."
SECOND_OPINION = "a loop over the output's elements that asks where each comes from"

# --- shapes and rules -------------------------------------------------------------------------------------------------


def _paddings(doc: str) -> OperandDef:
    """The TENSOR_INT32 of shape [n, 2] that says how far each dimension grows."""
    return OperandDef("paddings", doc, OperandType.TENSOR_INT32, (2, 2), parameter=True)


def _pairs(call: Call) -> list[tuple[int, int]]:
    """Elements before and behind, for each dimension."""
    flat = ints_of(call, "paddings")
    return list(zip(flat[::2], flat[1::2], strict=True))


def _padded(call: Call) -> Shapes:
    shape = call["input"].shape
    return {"output": tuple(size + sum(pair) for size, pair in zip(shape, _pairs(call), strict=True))}


def _with_last(call: Call, number: int) -> Call:
    """The call with another padding behind the last dimension."""
    old = call["paddings"]
    assert old.value is not None
    value = old.value.copy()
    value[-1, -1] = number
    return call.with_input("paddings", replace(old, value=value))


PADDINGS_SHAPE = ExecutionRule(
    "PADDINGS_SHAPE",
    "paddings has shape [n, 2] for input of rank n",
    lambda call: call["paddings"].shape == (call["input"].rank, 2),
    lambda call: with_shape(call, "paddings", (call["input"].rank + 1, 2)),
)
PADDINGS_RULE = ExecutionRule(
    "PADDINGS",
    "no padding is negative",
    lambda call: min(ints_of(call, "paddings")) >= 0,
    lambda call: _with_last(call, -1),
)


def _moved(fill: Callable[[Values], float | int]) -> Callable[[Values], Mapping[str, Array]]:
    """A kernel that puts stored values among copies of one stored value."""

    def kernel(v: Values) -> Mapping[str, Array]:
        stored = v.stored("input")
        output = np.full(_padded(v.call)["output"], fill(v), np.int64 if stored.dtype.kind in "iu" else stored.dtype)
        inner = tuple(slice(before, before + n) for (before, _), n in zip(_pairs(v.call), stored.shape, strict=True))
        output[inner] = stored
        return {"output": output.astype(stored.dtype)}

    return kernel


# --- draws ------------------------------------------------------------------------------------------------------------


def _draw_paddings(draft: Draft, shape: tuple[int, ...], reach: Callable[[int], int]) -> None:
    """Paddings that differ on the two sides, none on some; not too many elements in all."""
    value = np.zeros((len(shape), 2), np.int32)
    elements = int(np.prod(shape))
    for axis in range(len(shape) - 1, -1, -1):
        if draft.chance(25) and value.any():
            continue
        for side in (0, 1):
            most = min(reach(shape[axis]), draft.choose((1, 2, 3, 5)))
            wanted = draft.integer(0, max(most, 0))
            grown = elements // (shape[axis] + int(value[axis].sum())) * (shape[axis] + int(value[axis].sum()) + wanted)
            if grown <= LARGEST_TENSOR:
                value[axis, side], elements = wanted, grown
    draft.put("paddings", Argument(I32, value.shape, value=value))


def _draw_pad(draft: Draft) -> None:
    if draft.type("input") == Q8 and (draft.scope.level < FL3 or draft.chance(25)):
        # Below 1.2 the zero point is 0: what a border holds was not said before. Results of RELU have it at any level.
        x = draft.tensor("input", low=0.0, high=draft.real(0.5, 60.0), zero_point=0, accept=(0.0, np.inf))
    else:
        x = any_tensor(draft)
    _draw_paddings(draft, x.shape, lambda size: 5)


def _draw_pad_value(draft: Draft) -> None:
    x = any_tensor(draft)
    _draw_paddings(draft, x.shape, lambda size: 5)
    if x.type in QUANTIZED:
        low, high = limits(x.type)
        draft.scalar("pad_value", draft.choose((low, high)) if draft.chance(25) else draft.integer(low, high))
    elif draft.chance(30):
        draft.scalar("pad_value", draft.choose((0.0, *FINITE, *PLACED) if draft.alone else (0.0, *FINITE)))
    else:
        draft.scalar("pad_value", draft.real(-10.0, 10.0))


def _draw_mirror(draft: Draft) -> None:
    x = any_tensor(draft, (1, 5))
    mode = draft.choose((REFLECT, SYMMETRIC))
    whole = draft.chance(40)  # the farthest that the mode allows
    _draw_paddings(draft, x.shape, lambda size: (size if whole else min(size, 3)) - (mode == REFLECT))
    draft.scalar("mode", mode)


# --- PAD, PAD_V2 ------------------------------------------------------------------------------------------------------

PAD = OperationDef(
    code=OperationType.PAD,
    doc="The input with a border of zeros: of the stored zero point where it is quantised. Below 1.2 the zero point of "
    "a TENSOR_QUANT8_ASYMM is 0, since documents left the border's value undefined; with that both readings agree.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, 4),
            _paddings("Elements before and behind each dimension, [n, 2]; none is negative."),
            since=FL2,
        ),
    ),
    results=(tensor("output", PADDED, 1, 4),),
    rows=same(NAMES, (F32, FL2), (Q8, FL2), (F16, FL3), (Q8S, FL4)),
    rules=(
        rank_rule("RANK_INPUT", "input", 1, 4),
        ValidationRule(
            "ZERO_POINT", "input has zero point 0", RuleKind.ZERO_POINT, ("input",), (0,), until=FL3, types=(Q8,)
        ),
        PADDINGS_SHAPE,
        PADDINGS_RULE,
        same_quantization_rule("input", "output"),
    ),
    infer=_padded,
    kernel=_moved(lambda v: v.call["input"].zero_point),
    judging=moved(),
    draw=_draw_pad,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "float32",
            {"input": [[1.0, -2.0]], "paddings": [[0, 1], [2, 1]]},
            {"output": [[0.0, 0.0, 1.0, -2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]]},
        ),
        Example(
            "quant8_asymm_signed",
            {"input": [5, -128], "paddings": [[1, 2]]},
            {"output": [-3, 5, -128, -3, -3]},
            {"input": (0.5, -3), "output": (0.5, -3)},
        ),
    ),
    second_opinion=f"{SECOND_OPINION}; ONNX reference evaluator (Pad)",
)

FILLS = {
    F32: OperandType.FLOAT32,
    F16: OperandType.FLOAT16,
    Q8: OperandType.INT32,
    Q8S: OperandType.INT32,
}

PAD_V2 = OperationDef(
    code=OperationType.PAD_V2,
    doc="The input with a border of one value, given as it is stored: for quantised types an INT32 in the type's "
    "range. Beyond it public code stores the low byte, which is computed here but never drawn.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, 4),
            _paddings("Elements before and behind each dimension, [n, 2]; none is negative."),
            real_scalar("pad_value", "What the border holds; the stored value for quantised types."),
            since=FL3,
        ),
    ),
    results=(tensor("output", PADDED, 1, 4),),
    rows=tuple(
        TypeRow(ROW_NAMES[kind], since, {"input": kind, "output": kind, "pad_value": FILLS[kind]})
        for kind, since in ((F32, FL3), (F16, FL3), (Q8, FL3), (Q8S, FL4))
    ),
    rules=(
        rank_rule("RANK_INPUT", "input", 1, 4),
        PADDINGS_SHAPE,
        PADDINGS_RULE,
        same_quantization_rule("input", "output"),
    ),
    infer=_padded,
    kernel=_moved(lambda v: v.call["pad_value"].item()),
    judging=moved(),
    draw=_draw_pad_value,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "float16",
            {"input": [[1.0], [2.5]], "paddings": [[1, 0], [0, 1]], "pad_value": -7.5},
            {"output": [[-7.5, -7.5], [1.0, -7.5], [2.5, -7.5]]},
        ),
        Example(
            "quant8_asymm",
            {"input": [5, 0], "paddings": [[2, 1]], "pad_value": 255},
            {"output": [255, 255, 5, 0, 255]},
            {"input": (0.5, 3), "output": (0.5, 3)},
        ),
    ),
    second_opinion=f"{SECOND_OPINION}; ONNX reference evaluator (Pad)",
)

# --- MIRROR_PAD -------------------------------------------------------------------------------------------------------


def _mirrored(v: Values) -> Mapping[str, Array]:
    output = v.stored("input")
    border = int(v.integer("mode") == SYMMETRIC)
    for axis, (before, behind) in enumerate(_pairs(v.call)):
        places = np.arange(-before, output.shape[axis] + behind)
        places = np.where(places < 0, -places - border, places)
        last = output.shape[axis] - 1
        places = np.where(places > last, 2 * last - places + border, places)
        output = np.take(output, places, axis=axis)
    return {"output": output}


def _most(call: Call) -> list[int]:
    """How far each dimension can be mirrored."""
    border = call.integer("mode") == REFLECT
    return [size - border for size in call["input"].shape]


MIRROR_PAD = OperationDef(
    code=OperationType.MIRROR_PAD,
    doc="The input with a border of its own values, mirrored at each end: REFLECT leaves the outermost value out, so "
    "that it stands once, SYMMETRIC repeats it.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, None),
            _paddings("Elements before and behind each dimension, [n, 2]; at most its size, less 1 for REFLECT."),
            int32("mode", "0 REFLECT, 1 SYMMETRIC."),
            since=FL7,
        ),
    ),
    results=(tensor("output", PADDED, 1, None),),
    rows=same(NAMES, (F32, FL7), (F16, FL7), (Q8, FL7), (Q8S, FL7), (I32, FL7)),
    rules=(
        rank_rule("RANK_PADDINGS", "paddings", 2, 2),
        quantization_rule("output", "input"),
        PADDINGS_SHAPE,
        ExecutionRule(
            "MODE",
            "mode is 0 or 1",
            lambda call: call.integer("mode") in (REFLECT, SYMMETRIC),
            lambda call: with_value(call, "mode", 2),
        ),
        PADDINGS_RULE,
        ExecutionRule(
            "REACH",
            "no padding exceeds its dimension, less 1 for REFLECT",
            lambda call: all(max(pair) <= most for pair, most in zip(_pairs(call), _most(call), strict=True)),
            lambda call: _with_last(call, _most(call)[-1] + 1),
        ),
    ),
    infer=_padded,
    kernel=_mirrored,
    judging=moved(),
    draw=_draw_mirror,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "float32",
            {"input": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "paddings": [[1, 0], [2, 1]], "mode": 0},
            {
                "output": [
                    [6.0, 5.0, 4.0, 5.0, 6.0, 5.0],
                    [3.0, 2.0, 1.0, 2.0, 3.0, 2.0],
                    [6.0, 5.0, 4.0, 5.0, 6.0, 5.0],
                ]
            },
        ),
        Example("int32", {"input": [1, 2, 3], "paddings": [[3, 2]], "mode": 1}, {"output": [3, 2, 1, 1, 2, 3, 3, 2]}),
    ),
    second_opinion=f"{SECOND_OPINION}; ONNX reference evaluator (Pad) for REFLECT, NumPy's pad for SYMMETRIC",
)
