"""The same values in another shape or order: RESHAPE SQUEEZE EXPAND_DIMS TRANSPOSE RANK."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import OperandDef, TypeRow
from nnhal.types import FL1, FL2, FL3, FL4, FL6, Array, OperandType, OperationType
from opset.call import Argument, Call, int32_tensor, with_shape, with_value
from opset.definition import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8CH,
    Q8S,
    ROW_NAMES,
    Example,
    ExecutionRule,
    OperationDef,
    Quantization,
    exact,
    form,
    int32,
    int32_list,
    moved,
    rank_rule,
    same,
    tensor,
)
from opset.drawing import SMALL, Draft
from opset.quantization import QUANTIZED
from opset.shapes import normal_axis
from opset.values import Values

NAMES = ("input", "output")
Q16, Q16S = OperandType.TENSOR_QUANT16_ASYMM, OperandType.TENSOR_QUANT16_SYMM
Q8Y = OperandType.TENSOR_QUANT8_SYMM
SECOND_OPINION = "a loop over elements that computes flat positions from row-major strides"


def same_quantization(*results: str) -> Callable[[Call], Quantization]:
    """Quantised results have the scale and zero point of the first input."""

    def quantization(call: Call) -> Quantization:
        source = next(iter(call.inputs.values()))
        return dict.fromkeys(results, (source.scale, source.zero_point)) if source.type in QUANTIZED else {}

    return quantization


def same_quantization_rule(source: str, result: str) -> ExecutionRule:
    """Quantised results have the scale and zero point of an input; a variadic name stands for its first result."""

    def holds(call: Call) -> bool:
        due = (call[source].scale, call[source].zero_point)
        return call[source].type not in QUANTIZED or all((a.scale, a.zero_point) == due for a in call.results.values())

    def broken(call: Call) -> Call | None:
        if call[source].type not in QUANTIZED:
            return None
        name = result if result in call.results else f"{result}0"
        return call.with_result(name, replace(call[name], scale=2 * call[name].scale))

    return ExecutionRule("QUANTIZATION", f"{result} has the scale and zero point of {source}", holds, broken)


def ints_of(call: Call, name: str) -> tuple[int, ...]:
    """The numbers of a shape tensor.

    Raises:
        ValueError: the value is not known.
    """
    value = call[name].value
    if value is None:
        raise ValueError(f"the value of {name} is not known")
    return tuple(value.reshape(-1).tolist())


def any_tensor(draft: Draft, ranks: tuple[int, int] = (1, 4), name: str = "input", *, with_one: bool = False,
               largest: int = SMALL, odd: bool = True) -> Argument:  # fmt: skip
    """Draws a tensor whose values do not matter: of a scope, any of that type and rank.

    Args:
        draft: the call under way.
        ranks: lowest and highest.
        name: which input.
        with_one: some dimension is 1.
        largest: a drawn dimension's largest size.
        odd: now and then with NaN and the like, since values are only moved.
    """
    kind = draft.type(name)

    def suits(a: Argument) -> bool:
        return (
            a.type == kind and ranks[0] <= a.rank <= ranks[1] and a.value is not None and (1 in a.shape or not with_one)
        )

    found = draft.scope.find(suits)
    if found is not None:
        return draft.put(name, found)
    shape = list(draft.shape(ranks, largest))
    if with_one:
        for _ in range(draft.integer(1, max(1, len(shape) - 1))):
            shape[draft.integer(0, len(shape) - 1)] = 1
    draft.tensor(name, tuple(shape))
    if odd:
        draft.seed_odd(name)
    return draft[name]


def _moved(change: Callable[[Values, Array], Array]) -> Callable[[Values], Mapping[str, Array]]:
    """A kernel that moves stored values, whatever they stand for."""
    return lambda v: {"output": change(v, v.stored("input"))}


# --- RESHAPE ----------------------------------------------------------------------------------------------------------


def _new_shape(call: Call) -> tuple[int, ...]:
    sizes = ints_of(call, "shape")
    if -1 not in sizes:
        return sizes
    others = math.prod(size for size in sizes if size != -1)
    missing = math.prod(call["input"].shape) // others if others else 0
    return tuple(missing if size == -1 else size for size in sizes)


def _with_size(call: Call, change: Callable[[int], int], *, whole: bool) -> Call | None:
    """The call with its last explicit size changed; only where there is no size to fill in, if so wanted."""
    sizes = list(ints_of(call, "shape"))
    places = [i for i, size in enumerate(sizes) if size != -1]
    if not places or (whole and -1 in sizes):
        return None
    sizes[places[-1]] = change(sizes[places[-1]])
    return call.with_input("shape", int32_tensor(sizes))


def _break_wildcards(call: Call) -> Call | None:
    sizes = ints_of(call, "shape")
    return call.with_input("shape", int32_tensor((-1, -1, *sizes[2:]))) if len(sizes) >= 2 else None


def _break_elements(call: Call) -> Call | None:
    """More elements than there are; beside a size to fill in, a size that leaves a remainder."""
    return _with_size(call, lambda size: math.prod(call["input"].shape) + 1, whole=False)


def _draw_reshape(draft: Draft) -> None:
    x = any_tensor(draft)
    left, rank = math.prod(x.shape), draft.integer(1, 4)
    sizes = []
    for _ in range(rank - 1):
        sizes.append(draft.choose([n for n in range(1, left + 1) if left % n == 0][:8]))
        left //= sizes[-1]
    sizes.insert(draft.integer(0, rank - 1), left)
    if draft.chance(40):
        sizes[draft.integer(0, rank - 1)] = -1
    draft.ints("shape", sizes)


RESHAPE = OperationDef(
    code=OperationType.RESHAPE,
    doc="The same values in row-major order under new dimensions, one of which may be -1: the elements over the "
    "product of the others.",
    forms=(
        form(
            tensor("input", "Source.", 1, 4),
            int32_list("shape", "Wanted dimensions; at most one is -1."),
        ),
    ),
    results=(tensor("output", "The wanted shape; scale and zero point of input.", 1, None),),
    rows=same(NAMES, (F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4), (I32, FL6)),
    rules=(
        rank_rule("RANK_INPUT", "input", 1, 4),
        ExecutionRule(
            "ONE_WILDCARD",
            "at most one wanted dimension is -1",
            lambda call: ints_of(call, "shape").count(-1) <= 1,
            _break_wildcards,
        ),
        ExecutionRule(
            "SIZES",
            "each other wanted dimension is greater than 0",
            lambda call: all(size == -1 or size > 0 for size in ints_of(call, "shape")),
            lambda call: _with_size(call, lambda size: -size - 1, whole=True),
        ),
        ExecutionRule(
            "ELEMENTS",
            "input and output have the same number of elements",
            lambda call: math.prod(_new_shape(call)) == math.prod(call["input"].shape),
            _break_elements,
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=lambda call: {"output": _new_shape(call)},
    kernel=_moved(lambda v, x: x.reshape(_new_shape(v.call))),
    judging=moved(),
    draw=_draw_reshape,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "quant8_asymm",
            {"input": [[1, 2, 3], [4, 5, 255]], "shape": [3, -1]},
            {"output": [[1, 2], [3, 4], [5, 255]]},
            {"input": (0.3, 77), "output": (0.3, 77)},
        ),
    ),
    second_opinion=SECOND_OPINION,
)

# --- SQUEEZE ----------------------------------------------------------------------------------------------------------


def _dropped(call: Call) -> set[int]:
    shape = call["input"].shape
    if call.has("axes"):
        return {normal_axis(axis, len(shape)) for axis in ints_of(call, "axes")}
    return {axis for axis, size in enumerate(shape) if size == 1}


def _squeezed(call: Call) -> tuple[int, ...]:
    dropped = _dropped(call)
    return tuple(size for axis, size in enumerate(call["input"].shape) if axis not in dropped) or (1,)


def _break_ones(call: Call) -> Call | None:
    if not call.has("axes"):
        return None
    shape = list(call["input"].shape)
    shape[next(iter(_dropped(call)))] = 2
    return with_shape(call, "input", tuple(shape))


def _in_range(name: str, least: Callable[[int], int]) -> Callable[[Call], bool]:
    def holds(call: Call) -> bool:
        rank = call["input"].rank
        return not call.has(name) or all(least(rank) <= axis < rank for axis in ints_of(call, name))

    return holds


def _too_large(name: str) -> Callable[[Call], Call | None]:
    def broken(call: Call) -> Call | None:
        if not call.has(name):
            return None
        return call.with_input(name, int32_tensor((*ints_of(call, name)[:-1], call["input"].rank)))

    return broken


def _draw_squeeze(draft: Draft) -> None:
    x = any_tensor(draft, with_one=True, largest=9)
    if draft.chance(25):
        draft.omit("axes")
        return
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    axes = [axis for axis in ones if draft.chance(60)] or ones[:1]
    if draft.chance(15):
        axes.append(axes[0])  # a repeated axis counts once
    draft.ints("axes", axes[::-1] if draft.chance(30) else axes)


SQUEEZE = OperationDef(
    code=OperationType.SQUEEZE,
    doc="Drops dimensions of size 1: those listed, or all when the list is omitted. When none is left the result has "
    "shape [1]. A repeated axis counts once. The documents count axes from 0; public code takes negative ones too, "
    "which are computed here but never drawn.",
    forms=(
        form(
            tensor("input", "Source.", 1, 4),
            int32_list("axes", "Dimensions to drop; all of size 1 when omitted.", omittable=True),
            since=FL2,
        ),
    ),
    results=(tensor("output", "Input without the dropped dimensions; scale and zero point of input.", 1, 4),),
    rows=same(NAMES, (F32, FL2), (Q8, FL2), (F16, FL3), (Q8S, FL4)),
    rules=(
        rank_rule("RANK_INPUT", "input", 1, 4),
        ExecutionRule("AXES", "each axis is in [-n, n)", _in_range("axes", lambda rank: -rank), _too_large("axes")),
        ExecutionRule(
            "SIZE_ONE",
            "each dropped dimension has size 1",
            lambda call: all(call["input"].shape[axis] == 1 for axis in _dropped(call)),
            _break_ones,
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=lambda call: {"output": _squeezed(call)},
    kernel=_moved(lambda v, x: x.reshape(_squeezed(v.call))),
    judging=moved(),
    draw=_draw_squeeze,
    quantization=same_quantization("output"),
    examples=(
        Example("float32", {"input": [[[[1.5], [-2.0]]]], "axes": [0, 3]}, {"output": [[1.5, -2.0]]}),
        Example("float32", {"input": [[[[1.5], [-2.0]]]], "axes": None}, {"output": [1.5, -2.0]}),
        Example("float32", {"input": [[7.0]], "axes": [0, 1]}, {"output": [7.0]}),
    ),
    second_opinion=SECOND_OPINION,
)

# --- EXPAND_DIMS ------------------------------------------------------------------------------------------------------


def _expanded(call: Call) -> tuple[int, ...]:
    shape = call["input"].shape
    axis = normal_axis(call.integer("axis"), len(shape) + 1)
    return (*shape[:axis], 1, *shape[axis:])


def _draw_expand(draft: Draft) -> None:
    x = any_tensor(draft)
    draft.scalar("axis", draft.integer(-x.rank - 1, x.rank))


EXPAND_DIMS = OperationDef(
    code=OperationType.EXPAND_DIMS,
    doc="Inserts a dimension of size 1 at an axis of the result; negative axes count from its end.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, None),
            int32("axis", "Position, in [-(n+1), n+1)."),
            since=FL3,
        ),
    ),
    results=(tensor("output", "1 inserted at the axis; scale and zero point of input.", 2, None),),
    rows=same(NAMES, (F32, FL3), (F16, FL3), (I32, FL3), (Q8, FL3), (Q8S, FL4)),
    rules=(
        ExecutionRule(
            "AXIS",
            "axis is in [-(n+1), n+1) for input of rank n",
            lambda call: -call["input"].rank - 1 <= call.integer("axis") <= call["input"].rank,
            lambda call: with_value(call, "axis", call["input"].rank + 1),
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=lambda call: {"output": _expanded(call)},
    kernel=_moved(lambda v, x: x.reshape(_expanded(v.call))),
    judging=moved(),
    draw=_draw_expand,
    quantization=same_quantization("output"),
    examples=(
        Example("int32", {"input": [[1, 2], [3, -4]], "axis": 1}, {"output": [[[1, 2]], [[3, -4]]]}),
        Example("int32", {"input": [[1, 2], [3, -4]], "axis": -1}, {"output": [[[1], [2]], [[3], [-4]]]}),
    ),
    second_opinion=SECOND_OPINION,
)

# --- TRANSPOSE --------------------------------------------------------------------------------------------------------


def _permutation(call: Call) -> tuple[int, ...]:
    return ints_of(call, "perm") if call.has("perm") else tuple(reversed(range(call["input"].rank)))


def _break_length(call: Call) -> Call | None:
    if not call.has("perm"):
        return None
    return call.with_input("perm", int32_tensor((*ints_of(call, "perm"), 0)))


def _draw_transpose(draft: Draft) -> None:
    x = any_tensor(draft)
    if x.rank == 2 and draft.chance(35):
        draft.omit("perm")
        return
    left = list(range(x.rank))
    draft.ints("perm", [left.pop(draft.integer(0, len(left) - 1)) for _ in range(x.rank)])


TRANSPOSE = OperationDef(
    code=OperationType.TRANSPOSE,
    doc="Dimension i of the result is dimension perm[i] of the input. Without a permutation the dimensions are "
    "reversed; public code does that for rank 2 only, so it is omitted only there. Repeated entries are not detected "
    "by public code and never drawn.",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, 4),
            int32_list("perm", "A permutation of 0 to n-1; the reverse order when omitted.", omittable=True),
            since=FL2,
        ),
    ),
    results=(tensor("output", "Permuted dimensions; scale and zero point of input.", 1, 4),),
    rows=same(NAMES, (F32, FL2), (Q8, FL2), (F16, FL3), (Q8S, FL4)),
    rules=(
        rank_rule("RANK_INPUT", "input", 1, 4),
        ExecutionRule(
            "PERM_LENGTH",
            "perm has one entry for each dimension of input",
            lambda call: not call.has("perm") or len(ints_of(call, "perm")) == call["input"].rank,
            _break_length,
        ),
        ExecutionRule("PERM", "each entry of perm is in [0, n)", _in_range("perm", lambda rank: 0), _too_large("perm")),
        same_quantization_rule("input", "output"),
    ),
    infer=lambda call: {"output": tuple(call["input"].shape[axis] for axis in _permutation(call))},
    kernel=_moved(lambda v, x: x.transpose(_permutation(v.call))),
    judging=moved(),
    draw=_draw_transpose,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "float32",
            {"input": [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]], "perm": [2, 0, 1]},
            {"output": [[[1.0, 4.0]], [[2.0, 5.0]], [[3.0, 6.0]]]},
        ),
        Example(
            "quant8_asymm",
            {"input": [[1, 2, 3], [4, 5, 6]], "perm": None},
            {"output": [[1, 4], [2, 5], [3, 6]]},
            {"input": (0.1, 3), "output": (0.1, 3)},
        ),
    ),
    second_opinion=SECOND_OPINION,
)

# --- RANK -------------------------------------------------------------------------------------------------------------

ANY_TENSOR = {**ROW_NAMES, Q16S: "quant16_symm", Q8CH: "per_channel", Q16: "quant16_asymm", Q8Y: "quant8_symm"}
ANY_TENSOR_ORDER = (F32, F16, I32, Q8, Q16S, B8, Q8CH, Q16, Q8Y, Q8S)


def _draw_rank(draft: Draft) -> None:
    kind = draft.type("input")
    found = draft.scope.find(lambda a: a.type == kind)
    if found is not None:
        draft.put("input", found)
        return
    shape = draft.shape((1, draft.choose((4, 4, 6))), draft.choose((3, SMALL)))
    draft.tensor("input", shape, channel_dim=draft.integer(0, len(shape) - 1) if kind == Q8CH else None)


RANK = OperationDef(
    code=OperationType.RANK,
    doc="The number of dimensions, whatever the tensor holds. The result is a scalar, as of no other operation.",
    forms=(form(tensor("input", "Source, of any type.", 1, None), since=FL4),),
    results=(OperandDef("output", "The rank.", OperandType.INT32),),
    rows=tuple(TypeRow(ANY_TENSOR[kind], FL4, {"input": kind}) for kind in ANY_TENSOR_ORDER),
    rules=(),
    infer=lambda call: {"output": ()},
    kernel=lambda v: {"output": np.array(v.call["input"].rank)},
    judging=exact("the number that the operand's record has"),
    draw=_draw_rank,
    examples=(
        Example("float32", {"input": [[[1.5], [-2.0]]]}, {"output": 3}),
        Example("per_channel", {"input": [[1, -2], [3, 4]]}, {"output": 2}, {"input": ((0.5, 0.25), 1)}),
    ),
    second_opinion="the number of sizes in the model's own record of the operand",
)
