"""Groups and blocks in another order: CHANNEL_SHUFFLE DEPTH_TO_SPACE SPACE_TO_DEPTH, and what images share there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nnhal.operations import Form, OperandDef
from nnhal.types import FL1, FL3, FL4, Array, FeatureLevel, OperationType
from opset.call import Call, with_value
from opset.definition import (
    F16,
    F32,
    Q8,
    Q8S,
    Example,
    ExecutionRule,
    OperationDef,
    Shapes,
    form,
    int32,
    moved,
    rank_rule,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.elementwise import infer_same
from opset.normalization import axis_rule
from opset.reshaping import same_quantization, same_quantization_rule
from opset.shapes import normal_axis
from opset.values import Values
from opset.windows import (
    OPTIONAL_LAYOUT,
    channels_last,
    execution_rank_rule,
    image_shape,
    image_size,
    in_layout,
    is_nchw,
)

Sizes = tuple[int, int, int, int]  # batch, height, width, depth

NAMES = ("input", "output")
SECOND_OPINION = "loops over the elements of the result, each taken from where the documents' formula says"
IMAGE = tensor("input", "Image batch: [batch, height, width, depth], or with the channels first.", 4, 4)
KEPT = "scale and zero point of input"
SMALLEST_PIECE = 4  # most of each dimension of what a block is repeated over, so that images stay small


def image_kernel(change: Callable[[Values, Array], Array]) -> Callable[[Values], Mapping[str, Array]]:
    """A kernel that moves the stored values of an image of [batch, height, width, depth]."""

    def kernel(v: Values) -> Mapping[str, Array]:
        nchw = is_nchw(v.call)
        return {"output": in_layout(change(v, channels_last(v.stored("input"), nchw)), nchw)}

    return kernel


# --- CHANNEL_SHUFFLE --------------------------------------------------------------------------------------------------


def _axis_size(call: Call) -> int:
    return call["input"].shape[normal_axis(call.integer("axis"), call["input"].rank)]


def _shuffle(v: Values) -> Mapping[str, Array]:
    x, groups = v.stored("input"), v.integer("num_groups")
    axis = normal_axis(v.integer("axis"), x.ndim)
    split = x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    return {"output": split.swapaxes(axis, axis + 1).reshape(x.shape)}


def _draw_shuffle(draft: Draft) -> None:
    """Groups by members, both more than one in most draws; a scope's tensor takes what divides it."""
    kind, rank = draft.type("input"), draft.integer(1, 4)
    found = draft.scope.find(lambda a: a.type == kind and 1 <= a.rank <= 4 and a.value is not None)
    if found is None:
        axis, groups, members = draft.integer(0, rank - 1), draft.integer(1, 5), draft.integer(1, 5)
        if draft.chance(70):
            groups, members = max(groups, 2), max(members, 3)
        shape = [draft.integer(1, 4) for _ in range(rank)]
        shape[axis] = groups * members
        draft.tensor("input", tuple(shape))
        draft.seed_odd("input")
    else:
        draft.put("input", found)
        axis, rank = draft.integer(0, found.rank - 1), found.rank
        groups = draft.choose([n for n in range(1, found.shape[axis] + 1) if found.shape[axis] % n == 0])
    draft.scalar("num_groups", groups)
    draft.scalar("axis", axis - rank if draft.chance(50) else axis)


CHANNEL_SHUFFLE = OperationDef(
    code=OperationType.CHANNEL_SHUFFLE,
    doc="Interleaves groups along an axis: of g groups with m members each, output[k * g + i] = input[i * m + k].",
    forms=(
        form(
            tensor("input", "Source of rank n.", 1, 4),
            int32("num_groups", "Number of groups; divides the size of the axis."),
            int32("axis", "Axis, in [-n, n)."),
            since=FL3,
        ),
    ),
    results=(tensor("output", f"Shape of input; {KEPT}.", 1, 4),),
    rows=same(NAMES, (F32, FL3), (F16, FL3), (Q8, FL3), (Q8S, FL4)),
    rules=(
        rank_rule("RANK_INPUT", "input", 1, 4),
        axis_rule("input"),
        ExecutionRule(
            "GROUPS",
            "num_groups is greater than 0",
            lambda call: call.integer("num_groups") > 0,
            lambda call: with_value(call, "num_groups", 0),
        ),
        ExecutionRule(
            "DIVISIBLE",
            "num_groups divides the size of the axis",
            lambda call: _axis_size(call) % call.integer("num_groups") == 0,
            lambda call: with_value(call, "num_groups", _axis_size(call) + 1),
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=infer_same,
    kernel=_shuffle,
    judging=moved(),
    draw=_draw_shuffle,
    quantization=same_quantization("output"),
    examples=(
        # Groups a b c and d e f become a d b e c f.
        Example(
            "float32",
            {"input": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], "num_groups": 2, "axis": -1},
            {"output": [[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]]},
        ),
    ),
    second_opinion=SECOND_OPINION,
)

# --- depth and space --------------------------------------------------------------------------------------------------


def image_forms(*operands: OperandDef, since: FeatureLevel = FL1) -> tuple[Form]:
    """Operands, and from 1.2 on the layout behind them."""
    counts = ((len(operands), since), (len(operands) + 1, FL3))
    return (Form("default", (*operands, OPTIONAL_LAYOUT), counts),)


def _block(call: Call) -> int:
    return call.integer("block_size")


BLOCK_SIZE = ExecutionRule(
    "BLOCK",
    "block_size is at least 1",
    lambda call: _block(call) >= 1,
    lambda call: with_value(call, "block_size", 0),
)


def sizes_of(call: Call) -> Sizes:
    """Batch, height, width, depth of the input."""
    return image_size(call["input"].shape, is_nchw(call))


def infer_image(change: Callable[[Call, Sizes], Sizes]
                 ) -> Callable[[Call], Shapes]:  # fmt: skip
    """Inference from the input's batch, height, width, depth to the result's."""
    return lambda call: {"output": image_shape(*change(call, sizes_of(call)), is_nchw(call))}


def _to_space(call: Call, sizes: Sizes) -> Sizes:
    (batch, height, width, depth), block = sizes, _block(call)
    return batch, height * block, width * block, depth // block**2


def _to_depth(call: Call, sizes: Sizes) -> Sizes:
    (batch, height, width, depth), block = sizes, _block(call)
    return batch, height // block, width // block, depth * block**2


def _depth_to_space(v: Values, x: Array) -> Array:
    batch, height, width, depth = x.shape
    block = _block(v.call)
    split = x.reshape(batch, height, width, block, block, depth // block**2)
    return np.asarray(split.transpose(0, 1, 3, 2, 4, 5).reshape(_to_space(v.call, x.shape)))


def _space_to_depth(v: Values, x: Array) -> Array:
    batch, height, width, depth = x.shape
    block = _block(v.call)
    split = x.reshape(batch, height // block, block, width // block, block, depth)
    return np.asarray(split.transpose(0, 1, 3, 2, 4, 5).reshape(_to_depth(v.call, x.shape)))


def draw_blocks_of(draft: Draft, sizes: Callable[[], Sizes], suits: Callable[[Sizes], bool],
                   zero_point: int | None = None) -> Sizes:  # fmt: skip
    """Draws layout and input, new or of the scope; returns its sizes.

    Args:
        draft: the call under way.
        sizes: draws those of a new image.
        suits: whether those of an image of the scope will do.
        zero_point: the only one that will do; any when None.
    """
    nchw = draft.has("nchw") and draft.chance(42)  # fewer drivers have it
    draft.scalar("nchw", nchw)
    kind = draft.type("input")
    found = draft.scope.find(
        lambda a: (
            a.type == kind
            and a.rank == 4
            and a.value is not None
            and zero_point in (None, a.zero_point)
            and suits(image_size(a.shape, nchw))
        )
    )
    if found is None:
        scale = None if zero_point is None else draft.real(0.003, 0.05)
        shape = image_shape(*sizes(), nchw)
        found = draft.tensor("input", shape, scale=scale, zero_point=zero_point)
    draft.put("input", found)
    draft.seed_odd("input")
    return image_size(found.shape, nchw)


def draw_piece(draft: Draft) -> Sizes:
    """Sizes before blocks come in: height and width differ in most draws, depth is at times prime."""
    small = SMALLEST_PIECE
    return draft.choose((1, 1, 2, 3)), draft.integer(1, small), draft.integer(1, small), draft.choose((1, 2, 3, 4, 5))


def _draw_depth_to_space(draft: Draft) -> None:
    block = draft.choose((1, 2, 2, 2, 3, 3))

    def sizes() -> Sizes:
        batch, height, width, depth = draw_piece(draft)
        return batch, height, width, min(depth, 36 // block**2) * block**2

    draw_blocks_of(draft, sizes, lambda image: image[3] % block**2 == 0)
    draft.scalar("block_size", block)


def _draw_space_to_depth(draft: Draft) -> None:
    block = draft.choose((1, 2, 2, 2, 3, 3, 4))

    def sizes() -> Sizes:
        batch, height, width, depth = draw_piece(draft)
        return batch, min(height, 12 // block) * block, min(width, 12 // block) * block, depth

    draw_blocks_of(draft, sizes, lambda image: image[1] % block == 0 and image[2] % block == 0)
    draft.scalar("block_size", block)


DEPTH_TO_SPACE = OperationDef(
    code=OperationType.DEPTH_TO_SPACE,
    doc="Depth becomes blocks of b rows and columns: output[n, y * b + i, x * b + j, c] = input[n, y, x, (i * b + j) "
    "* depth_out + c]. One text gives the output's width as input_depth * block_size; input_width is meant.",
    forms=image_forms(IMAGE, int32("block_size", "Rows and columns of a block; its square divides the depth.")),
    results=(tensor("output", f"[batch, height * b, width * b, depth / b^2] in the input's layout; {KEPT}.", 4, 4),),
    rows=same(NAMES, (F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4)),
    rules=(
        execution_rank_rule("RANK_INPUT", "input", 4),
        BLOCK_SIZE,
        ExecutionRule(
            "DEPTH",
            "the square of block_size divides the depth",
            lambda call: sizes_of(call)[3] % _block(call) ** 2 == 0,
            lambda call: with_value(call, "block_size", sizes_of(call)[3] + 1),
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=infer_image(_to_space),
    kernel=image_kernel(_depth_to_space),
    judging=moved(),
    draw=_draw_depth_to_space,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "float32/default/in2",
            {"input": [[[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]]], "block_size": 2},
            {"output": [[[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]]},
        ),
        # The same with the channels first.
        Example(
            "float32/default/in3",
            {"input": [[[[n]] for n in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)]], "block_size": 2, "nchw": True},
            {"output": [[[[1.0, 3.0], [5.0, 7.0]], [[2.0, 4.0], [6.0, 8.0]]]]},
        ),
    ),
    second_opinion=f"{SECOND_OPINION}; ONNX's DepthToSpace",
)


def _indivisible(call: Call) -> Call:
    """A block that is one larger than the height."""
    return with_value(call, "block_size", sizes_of(call)[1] + 1)


SPACE_TO_DEPTH = OperationDef(
    code=OperationType.SPACE_TO_DEPTH,
    doc="Blocks of b rows and columns become depth: output[n, y, x, (i * b + j) * depth + c] = input[n, y * b + i, "
    "x * b + j, c].",
    forms=image_forms(IMAGE, int32("block_size", "Rows and columns of a block; divides height and width.")),
    results=(tensor("output", f"[batch, height / b, width / b, depth * b^2] in the input's layout; {KEPT}.", 4, 4),),
    rows=same(NAMES, (F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4)),
    rules=(
        execution_rank_rule("RANK_INPUT", "input", 4),
        BLOCK_SIZE,
        ExecutionRule(
            "DIVISIBLE",
            "block_size divides height and width",
            lambda call: not any(size % _block(call) for size in sizes_of(call)[1:3]),
            _indivisible,
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=infer_image(_to_depth),
    kernel=image_kernel(_space_to_depth),
    judging=moved(),
    draw=_draw_space_to_depth,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "float32/default/in2",
            {"input": [[[[1.0], [2.0], [5.0], [6.0]], [[3.0], [4.0], [7.0], [8.0]]]], "block_size": 2},
            {"output": [[[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]]]},
        ),
    ),
    second_opinion=f"{SECOND_OPINION}; ONNX's SpaceToDepth",
)
