"""Parts of tensors and tensors of parts: CONCATENATION SPLIT PACK SLICE STRIDED_SLICE."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnhal.operations import RuleKind, ValidationRule
from nnhal.types import FL1, FL2, FL3, FL4, FL6, Array, OperationType
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
    int32_list,
    moved,
    quantization_rule,
    rank_rule,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.quantization import QUANTIZED
from opset.reshaping import any_tensor, ints_of, same_quantization, same_quantization_rule
from opset.shapes import normal_axis
from opset.slicing_ranges import (
    SHRINK_RULE,
    STRIDES_RULE,
    draw_ranges,
    dropped_axes,
    lengths_rule,
    ranges_of,
    with_entry,
)
from opset.values import Values

PART_OPINION = "a loop over the output's elements that asks where each comes from"

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
        draft.seed_odd(f"inputs{i}")
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
    judging=exact("values are only moved, and requantised where scale or zero point differ"),
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
    judging=moved(),
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

# --- PACK -------------------------------------------------------------------------------------------------------------


def _packed(call: Call) -> Shapes:
    shapes = [a.shape for a in call.all("inputs")]
    axis = call.integer("axis")
    return {"output": (*shapes[0][:axis], len(shapes), *shapes[0][axis:])}


def _break_packed_shapes(call: Call) -> Call | None:
    if len(call.all("inputs")) < 2:
        return None
    shape = call["inputs1"].shape
    return with_shape(call, "inputs1", (*shape[:-1], shape[-1] + 1))


def _packed_quantization(call: Call) -> Quantization:
    first = call["inputs0"]
    return {"output": (first.scale, first.zero_point)} if first.type in QUANTIZED else {}


def _draw_pack(draft: Draft) -> None:
    number = draft.choose((1, 2, 2, 3, 3, 4, 5))
    draft.count = number + 1
    first = any_tensor(draft, name="inputs0", largest=draft.choose((4, 6)))
    quantized = first.type in QUANTIZED
    for i in range(1, number):
        draft.tensor(
            f"inputs{i}",
            first.shape,
            scale=first.scale if quantized else None,
            zero_point=first.zero_point if quantized else None,
            accept=(-np.inf, np.inf),
        )
        draft.seed_odd(f"inputs{i}")
    draft.scalar("axis", draft.integer(0, first.rank))


PACK = OperationDef(
    code=OperationType.PACK,
    doc="Tensors of one shape, one beside the other along a new dimension. The axis counts from 0.",
    forms=(
        form(
            int32("axis", "Where the new dimension stands, in [0, n]."),
            tensor("inputs", "Tensors of one shape of rank n.", 1, None, variadic=True),
        ),
    ),
    results=(tensor("output", "The inputs' shape with their number inserted at the axis; their scale.", 2, None),),
    rows=same(("inputs", "output"), (F32, FL6), (F16, FL6), (Q8, FL6), (Q8S, FL6), (I32, FL6)),
    rules=(
        quantization_rule("output", "inputs"),
        ExecutionRule(
            "AXIS",
            "axis is in [0, n] for inputs of rank n",
            lambda call: 0 <= call.integer("axis") <= call["inputs0"].rank,
            lambda call: with_value(call, "axis", call["inputs0"].rank + 1),
        ),
        ExecutionRule(
            "SHAPES",
            "the inputs have one shape",
            lambda call: len({a.shape for a in call.all("inputs")}) == 1,
            _break_packed_shapes,
        ),
    ),
    infer=_packed,
    kernel=lambda v: {"output": np.stack([v.stored(n) for n in v.call.inputs if n != "axis"], v.integer("axis"))},
    judging=moved(),
    draw=_draw_pack,
    quantization=_packed_quantization,
    examples=(
        Example(
            "float32", {"axis": 0, "inputs0": [1.0, 2.0], "inputs1": [3.0, 4.0]}, {"output": [[1.0, 2.0], [3.0, 4.0]]}
        ),
        Example(
            "quant8_asymm_signed",
            {"axis": 1, "inputs0": [1, -2], "inputs1": [3, 4], "inputs2": [-128, 127]},
            {"output": [[1, 3, -128], [-2, 4, 127]]},
            {"inputs0": (0.5, 5), "inputs1": (0.5, 5), "inputs2": (0.5, 5), "output": (0.5, 5)},
        ),
    ),
    second_opinion=PART_OPINION,
)

# --- SLICE ------------------------------------------------------------------------------------------------------------


def _sizes(call: Call) -> tuple[int, ...]:
    """Size of each dimension of the part; -1 takes all that is left."""
    columns = zip(call["input"].shape, ints_of(call, "begin"), ints_of(call, "size"), strict=True)
    return tuple(whole - begin if size == -1 else size for whole, begin, size in columns)


def _slice(v: Values) -> Mapping[str, Array]:
    places = zip(v.ints("begin"), _sizes(v.call), strict=True)
    return {"output": v.stored("input")[tuple(slice(begin, begin + size) for begin, size in places)]}


def _draw_slice(draft: Draft) -> None:
    x = any_tensor(draft, (1, 5), largest=draft.choose((6, 9, 13)))
    begins = [0 if draft.chance(25) else draft.integer(0, (size - 1) // draft.choose((1, 2, 3))) for size in x.shape]
    sizes = []
    for begin, whole in zip(begins, x.shape, strict=True):
        left = whole - begin
        size = left if draft.chance(40) else draft.integer(1, left)
        sizes.append(-1 if size == left and draft.chance(50) else size)
    draft.ints("begin", begins)
    draft.ints("size", sizes)


SLICE = OperationDef(
    code=OperationType.SLICE,
    doc="A part of the input: `size` elements from `begin` on along each dimension, -1 for all that is left.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, None),
            int32_list("begin", "Where the part begins; n numbers, each in [0, size of the dimension]."),
            int32_list("size", "Size of the part; n numbers, -1 for the rest."),
            since=FL3,
        ),
    ),
    results=(tensor("output", "Of the part's size; scale and zero point of input.", 1, None),),
    rows=same(("input", "output"), (F32, FL3), (F16, FL3), (I32, FL3), (Q8, FL3), (Q8S, FL4)),
    rules=(
        lengths_rule("begin", "size"),
        ExecutionRule(
            "BEGIN",
            "each begin is in [0, size of the dimension]",
            lambda call: all(0 <= b <= n for b, n in zip(ints_of(call, "begin"), call["input"].shape, strict=True)),
            lambda call: with_entry(call, "begin", 0, call["input"].shape[0] + 1 if ints_of(call, "begin")[0] else -1),
        ),
        ExecutionRule(
            "SIZE",
            "each size is -1, or not negative and ends within the dimension",
            lambda call: all(
                size >= 0 and begin + size <= whole
                for whole, begin, size in zip(call["input"].shape, ints_of(call, "begin"), _sizes(call), strict=True)
            ),
            lambda call: with_entry(call, "size", -1, call["input"].shape[-1] - ints_of(call, "begin")[-1] + 1),
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=lambda call: {"output": _sizes(call)},
    kernel=_slice,
    judging=moved(),
    draw=_draw_slice,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "float32",
            {"input": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], "begin": [1, 0], "size": [-1, 2]},
            {"output": [[4.0, 5.0], [7.0, 8.0]]},
        ),
        Example("int32", {"input": [[1, 2, 3], [4, 5, 6]], "begin": [0, 2], "size": [1, 1]}, {"output": [[3]]}),
    ),
    second_opinion=f"{PART_OPINION}; ONNX reference evaluator (Slice)",
)

# --- STRIDED_SLICE ----------------------------------------------------------------------------------------------------


def _strided_shape(call: Call) -> tuple[int, ...]:
    dropped = dropped_axes(call)
    return tuple(taken.size for axis, taken in enumerate(ranges_of(call)) if axis not in dropped) or (1,)


def _strided_slice(v: Values) -> Mapping[str, Array]:
    part = v.stored("input")[tuple(taken.slice for taken in ranges_of(v.call))]
    return {"output": part.reshape(_strided_shape(v.call))}


def _draw_strided_slice(draft: Draft) -> None:
    x = any_tensor(draft, largest=draft.choose((9, 13, 17)))
    draft.seed_odd("input")  # once more: little of it is taken
    draw_ranges(draft, x.shape)


STRIDED_SLICE = OperationDef(
    code=OperationType.STRIDED_SLICE,
    doc="Every so many-th element from `begin` to before `end` along each dimension. Negative numbers count from the "
    "end of the dimension first; then both are cut to [0, n], or to [-1, n-1] where the stride is negative. So with a "
    "negative stride an explicit end of -1 is the last element, and only a mask or a number below -n reaches element "
    "0. A bit of begin_mask or end_mask stands for the farthest begin or end. A bit of shrink_axis_mask takes one "
    "element and drops the dimension; public code then asks for a positive stride and a range of one element.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, 4),
            int32_list("begin", "Where to begin; n numbers."),
            int32_list("end", "Where to end, itself not taken; n numbers."),
            int32_list("strides", "Steps; n numbers, none 0."),
            int32("begin_mask", "Bit i: begin[i] does not count."),
            int32("end_mask", "Bit i: end[i] does not count."),
            int32("shrink_axis_mask", "Bit i: dimension i is dropped."),
            since=FL2,
        ),
    ),
    results=(tensor("output", "What is taken, less dropped dimensions; [1] when none is left. Input's scale.", 1, 4),),
    rows=same(("input", "output"), (F32, FL2), (Q8, FL2), (F16, FL3), (Q8S, FL4)),
    rules=(
        rank_rule("RANK_INPUT", "input", 1, 4),
        lengths_rule("begin", "end", "strides"),
        STRIDES_RULE,
        SHRINK_RULE,
        same_quantization_rule("input", "output"),
    ),
    infer=lambda call: {"output": _strided_shape(call)},
    kernel=_strided_slice,
    judging=moved(),
    draw=_draw_strided_slice,
    quantization=same_quantization("output"),
    examples=(
        # Rows 1 and 0; of each, columns 1 and 3.
        Example(
            "float32",
            {
                "input": [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 10.0, 11.0, 12.0]],
                "begin": [-2, 1],
                "end": [-4, 9],
                "strides": [-1, 2],
                "begin_mask": 0,
                "end_mask": 0,
                "shrink_axis_mask": 0,
            },
            {"output": [[6.0, 8.0], [2.0, 4.0]]},
        ),
        # The last row alone, from its end on; what begin and end say of the columns does not count.
        Example(
            "quant8_asymm",
            {
                "input": [[1, 2, 3], [4, 5, 6]],
                "begin": [1, 0],
                "end": [2, 3],
                "strides": [1, -1],
                "begin_mask": 2,
                "end_mask": 2,
                "shrink_axis_mask": 1,
            },
            {"output": [6, 5, 4]},
            {"input": (0.3, 9), "output": (0.3, 9)},
        ),
    ),
    second_opinion=f"{PART_OPINION}; ONNX reference evaluator (Slice)",
)
