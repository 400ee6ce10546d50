"""Parts of tensors and tensors of parts: CONCATENATION SPLIT."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnhal.operations import RuleKind, ValidationRule
from nnhal.types import FL1, FL3, FL4, Array, OperationType
from opset.call import Call, with_shape, with_value
from opset.definition import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Example,
    ExecutionRule,
    OperationDef,
    Quantization,
    Shapes,
    exact,
    form,
    int32,
    rank_rule,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.quantization import QUANTIZED
from opset.reshaping import any_tensor, same_quantization, same_quantization_rule
from opset.shapes import normal_axis
from opset.values import Values

# --- CONCATENATION ----------------------------------------------------------------------------------------------------


def _joined(call: Call) -> Shapes:
    shapes = [a.shape for a in call.all("inputs")]
    axis = call.integer("axis")
    length = sum(shape[axis] for shape in shapes)
    return {"output": (*shapes[0][:axis], length, *shapes[0][axis + 1 :])}


def _concatenate(v: Values) -> Mapping[str, Array]:
    parts = [v.real(argument) for argument in v.call.all("inputs")]
    return {"output": np.concatenate(parts, axis=v.integer("axis"))}


def _one_quantization(call: Call) -> Quantization:
    first = call["inputs0"]
    return {"output": (first.scale, first.zero_point)} if first.type == Q8 and call.level < FL3 else {}


def _shapes_agree(call: Call) -> bool:
    axis = call.integer("axis")
    rest = {shape[:axis] + shape[axis + 1 :] for shape in (a.shape for a in call.all("inputs"))}
    return len({a.rank for a in call.all("inputs")}) == 1 and len(rest) == 1


def _break_shapes(call: Call) -> Call | None:
    shape = call["inputs0"].shape
    others = [d for d in range(len(shape)) if d != call.integer("axis")]
    if len(call.all("inputs")) < 2 or not others:
        return None
    return with_shape(call, "inputs1", tuple(size + (d == others[-1]) for d, size in enumerate(call["inputs1"].shape)))


def _draw_concatenation(draft: Draft) -> None:
    number = draft.choose((1, 2, 2, 3, 3, 4, 5))
    draft.count = number + 1
    first = any_tensor(draft, name="inputs0", largest=draft.choose((4, 6, 9)))
    axis = draft.integer(0, first.rank - 1)
    quantized = first.type in QUANTIZED
    # Inputs that share their scale with the output are moved, others requantised. Before 1.2 all must share it.
    alike = quantized and (draft.chance(50) or (first.type == Q8 and draft.scope.level < FL3))
    for i in range(1, number):
        size = first.shape[axis] if draft.chance(35) else draft.integer(1, 5)
        shape = (*first.shape[:axis], size, *first.shape[axis + 1 :])
        if alike:
            draft.tensor(f"inputs{i}", shape, low=-1e9, high=1e9, scale=first.scale, zero_point=first.zero_point)
        else:
            # Ranges of their own, so that scales differ by more than a little.
            reach = draft.choose((0.5, 2.0, 4.0)) if quantized else 2.0
            draft.tensor(f"inputs{i}", shape, low=-reach, high=reach)
    if alike:
        draft.wanted["output"] = (first.scale, first.zero_point)
    draft.scalar("axis", axis)


CONCATENATION = OperationDef(
    code=OperationType.CONCATENATION,
    doc="The inputs one after another along an axis; equal in all other dimensions. Quantised inputs whose scale or "
    "zero point is not the output's are requantised; a TENSOR_QUANT8_ASYMM one needs 1.2 for that. The axis counts "
    "from 0: public code refuses negative ones.",
    forms=(
        form(
            tensor("inputs", "Tensors to join.", 1, 4, variadic=True),
            int32("axis", "Axis to join along, in [0, n)."),
        ),
    ),
    results=(tensor("output", "As the inputs, the sum of their sizes at the axis; free scale from 1.2 on.", 1, 4),),
    rows=same(("inputs", "output"), (F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4)),
    rules=(
        rank_rule("RANK_INPUTS", "inputs", 1, 4),
        ValidationRule(
            "SAME_QUANTIZATION",
            "every input has the scale and zero point of output",
            RuleKind.SAME_QUANTIZATION,
            ("output", "inputs"),
            until=FL3,
            types=(Q8,),
        ),
        ExecutionRule(
            "AXIS",
            "axis is in [0, n) for inputs of rank n",
            lambda call: 0 <= call.integer("axis") < call["inputs0"].rank,
            lambda call: with_value(call, "axis", call["inputs0"].rank),
        ),
        ExecutionRule(
            "SHAPES",
            "the inputs have one rank, and one size in each dimension but the axis",
            _shapes_agree,
            _break_shapes,
        ),
    ),
    infer=_joined,
    kernel=_concatenate,
    bound=exact,
    draw=_draw_concatenation,
    quantization=_one_quantization,
    examples=(
        Example(
            "float32",
            {"inputs0": [[1.0, 2.0], [3.0, 4.0]], "inputs1": [[5.0], [6.0]], "axis": 1},
            {"output": [[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]]},
        ),
        # The second input at half the output's scale: -5.5, 0 and 70 steps from its zero, ties away from zero.
        Example(
            "quant8_asymm_signed",
            {"inputs0": [9, -128], "inputs1": [-1, 10, 127], "axis": 0},
            {"output": [9, -128, -1, 5, 64]},
            {"inputs0": (0.5, 5), "inputs1": (0.25, 10), "output": (0.5, 5)},
        ),
    ),
    second_opinion="elements copied one by one; quantised ones requantised in rational numbers",
)

# --- SPLIT ------------------------------------------------------------------------------------------------------------


def _split_axis(call: Call) -> int:
    return normal_axis(call.integer("axis"), call["input"].rank)


def _parts(call: Call) -> Shapes:
    shape, axis, number = call["input"].shape, _split_axis(call), call.integer("num_splits")
    part = (*shape[:axis], shape[axis] // number, *shape[axis + 1 :])
    return {f"parts{i}": part for i in range(number)}


def _split(v: Values) -> Mapping[str, Array]:
    parts = np.split(v.stored("input"), v.integer("num_splits"), axis=_split_axis(v.call))
    return {f"parts{i}": part for i, part in enumerate(parts)}


def _break_division(call: Call) -> Call | None:
    if call.integer("num_splits") == 1:
        return None
    axis = _split_axis(call)
    shape = call["input"].shape
    return with_shape(call, "input", (*shape[:axis], shape[axis] + 1, *shape[axis + 1 :]))


def _draw_split(draft: Draft) -> None:
    x = any_tensor(draft, largest=draft.choose((6, 12)))
    divisible = [d for d, size in enumerate(x.shape) if size > 1]
    axis = draft.choose(divisible) if divisible and draft.chance(90) else draft.integer(0, x.rank - 1)
    size = x.shape[axis]
    numbers = [n for n in range(1, min(size, 6) + 1) if size % n == 0]
    draft.scalar("axis", axis)
    draft.scalar("num_splits", draft.choose(numbers[1:] if len(numbers) > 1 and draft.chance(90) else numbers))


SPLIT = OperationDef(
    code=OperationType.SPLIT,
    doc="Cuts the input into equal parts along an axis, as many as there are results. Validation in public code does "
    "not compare num_splits with the number of results; execution does. Negative axes, which only public code knows, "
    "are computed here but never drawn.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, None),
            int32("axis", "Axis to cut along, in [-n, n)."),
            int32("num_splits", "Number of parts; divides the axis."),
            since=FL3,
        ),
    ),
    results=(tensor("parts", "Input with its axis divided by num_splits; its scale.", 1, None, variadic=True),),
    rows=same(("input", "parts"), (F32, FL3), (F16, FL3), (I32, FL3), (Q8, FL3), (Q8S, FL4)),
    rules=(
        ExecutionRule(
            "AXIS",
            "axis is in [-n, n) for input of rank n",
            lambda call: -call["input"].rank <= call.integer("axis") < call["input"].rank,
            lambda call: with_value(call, "axis", call["input"].rank),
        ),
        ExecutionRule(
            "NUM_SPLITS",
            "num_splits is the number of results",
            lambda call: not call.results or call.integer("num_splits") == len(call.all("parts")),
            lambda call: with_value(call, "num_splits", call.integer("num_splits") + 1),
        ),
        ExecutionRule(
            "DIVISION",
            "num_splits divides the size of input at the axis",
            lambda call: call["input"].shape[_split_axis(call)] % call.integer("num_splits") == 0,
            _break_division,
        ),
        same_quantization_rule("input", "parts"),
    ),
    infer=_parts,
    kernel=_split,
    bound=exact,
    draw=_draw_split,
    quantization=same_quantization("parts"),
    examples=(
        Example(
            "float32",
            {"input": [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], "axis": 1, "num_splits": 2},
            {"parts0": [[1.0, 2.0], [5.0, 6.0]], "parts1": [[3.0, 4.0], [7.0, 8.0]]},
        ),
        Example(
            "int32",
            {"input": [[1, -2], [3, 4], [5, 6]], "axis": -2, "num_splits": 3},
            {"parts0": [[1, -2]], "parts1": [[3, 4]], "parts2": [[5, 6]]},
        ),
    ),
    second_opinion="ONNX reference evaluator (Split); for quantised types the stored values",
)
