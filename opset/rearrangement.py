"""Blocks moved between depth, batch and space: CHANNEL_SHUFFLE DEPTH_TO_SPACE SPACE_TO_DEPTH and the two ..._ND."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import Form, OperandDef, RuleKind, ValidationRule
from nnhal.types import FL1, FL2, FL3, FL4, Array, FeatureLevel, OperandType, OperationType
from opset.call import Argument, Call, int32_tensor, with_value
from opset.definition import (
    F16,
    F32,
    Q8,
    Q8S,
    Example,
    ExecutionRule,
    OperationDef,
    Shapes,
    exact,
    form,
    int32,
    int32_list,
    rank_rule,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.elementwise import infer_same
from opset.normalization import axis_rule
from opset.reshaping import ints_of, same_quantization, same_quantization_rule
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

NAMES = ("input", "output")
SECOND_OPINION = "loops over the elements of the result, each taken from where the documents' formula says"
IMAGE = tensor("input", "Image batch: [batch, height, width, depth], or with the channels first.", 4, 4)
KEPT = "scale and zero point of input"
SMALLEST_PIECE = 4  # most of each dimension of what a block is repeated over, so that images stay small
LARGEST_BLOCK = 4


def _moved(change: Callable[[Values, Array], Array]) -> Callable[[Values], Mapping[str, Array]]:
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
        draft.tensor("input", tuple(shape), fits=lambda a: False)
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
    bound=exact,
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


def _forms(*operands: OperandDef, since: FeatureLevel = FL1) -> tuple[Form]:
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


def _sizes(call: Call) -> tuple[int, int, int, int]:
    """Batch, height, width, depth of the input."""
    return image_size(call["input"].shape, is_nchw(call))


def _infer_image(change: Callable[[Call, tuple[int, int, int, int]], tuple[int, int, int, int]]
                 ) -> Callable[[Call], Shapes]:  # fmt: skip
    """Inference from the input's batch, height, width, depth to the result's."""
    return lambda call: {"output": image_shape(*change(call, _sizes(call)), is_nchw(call))}


def _to_space(call: Call, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    (batch, height, width, depth), block = sizes, _block(call)
    return batch, height * block, width * block, depth // block**2


def _to_depth(call: Call, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    (batch, height, width, depth), block = sizes, _block(call)
    return batch, height // block, width // block, depth * block**2


def _depth_to_space(v: Values, x: Array) -> Array:
    batch, height, width, depth = x.shape
    block = _block(v.call)
    split = x.reshape(batch, height, width, block, block, depth // block**2)
    return split.transpose(0, 1, 3, 2, 4, 5).reshape(_to_space(v.call, x.shape))


def _space_to_depth(v: Values, x: Array) -> Array:
    batch, height, width, depth = x.shape
    block = _block(v.call)
    split = x.reshape(batch, height // block, block, width // block, block, depth)
    return split.transpose(0, 1, 3, 2, 4, 5).reshape(_to_depth(v.call, x.shape))


def _draw_image(draft: Draft, sizes: Callable[[], tuple[int, int, int, int]],
                suits: Callable[[tuple[int, int, int, int]], bool]) -> tuple[int, int, int, int]:  # fmt: skip
    """Draws layout and input, new or of the scope; returns batch, height, width, depth.

    Args:
        draft: the call under way.
        sizes: draws those of a new image.
        suits: whether those of an image of the scope will do.
    """
    nchw = draft.has("nchw") and draft.chance(50)
    draft.scalar("nchw", nchw)
    kind = draft.type("input")
    found = draft.scope.find(
        lambda a: a.type == kind and a.rank == 4 and a.value is not None and suits(image_size(a.shape, nchw))
    )
    if found is None:
        found = draft.tensor("input", image_shape(*sizes(), nchw), fits=lambda a: False)
    draft.put("input", found)
    return image_size(found.shape, nchw)


def _piece(draft: Draft) -> tuple[int, int, int, int]:
    """Sizes before blocks come in: height and width differ in most draws, depth is at times prime."""
    small = SMALLEST_PIECE
    return draft.choose((1, 1, 2, 3)), draft.integer(1, small), draft.integer(1, small), draft.choose((1, 2, 3, 4, 5))


def _draw_depth_to_space(draft: Draft) -> None:
    block = draft.choose((1, 2, 2, 2, 3, 3))

    def sizes() -> tuple[int, int, int, int]:
        batch, height, width, depth = _piece(draft)
        return batch, height, width, min(depth, 36 // block**2) * block**2

    _draw_image(draft, sizes, lambda image: image[3] % block**2 == 0)
    draft.scalar("block_size", block)


def _draw_space_to_depth(draft: Draft) -> None:
    block = draft.choose((1, 2, 2, 2, 3, 3, 4))

    def sizes() -> tuple[int, int, int, int]:
        batch, height, width, depth = _piece(draft)
        return batch, min(height, 12 // block) * block, min(width, 12 // block) * block, depth

    _draw_image(draft, sizes, lambda image: image[1] % block == 0 and image[2] % block == 0)
    draft.scalar("block_size", block)


DEPTH_TO_SPACE = OperationDef(
    code=OperationType.DEPTH_TO_SPACE,
    doc="Depth becomes blocks of b rows and columns: output[n, y * b + i, x * b + j, c] = input[n, y, x, (i * b + j) "
    "* depth_out + c]. One text gives the output's width as input_depth * block_size; input_width is meant.",
    forms=_forms(IMAGE, int32("block_size", "Rows and columns of a block; its square divides the depth.")),
    results=(tensor("output", f"[batch, height * b, width * b, depth / b^2] in the input's layout; {KEPT}.", 4, 4),),
    rows=same(NAMES, (F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4)),
    rules=(
        execution_rank_rule("RANK_INPUT", "input", 4),
        BLOCK_SIZE,
        ExecutionRule(
            "DEPTH",
            "the square of block_size divides the depth",
            lambda call: _sizes(call)[3] % _block(call) ** 2 == 0,
            lambda call: with_value(call, "block_size", _sizes(call)[3] + 1),
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=_infer_image(_to_space),
    kernel=_moved(_depth_to_space),
    bound=exact,
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
    return with_value(call, "block_size", _sizes(call)[1] + 1)


SPACE_TO_DEPTH = OperationDef(
    code=OperationType.SPACE_TO_DEPTH,
    doc="Blocks of b rows and columns become depth: output[n, y, x, (i * b + j) * depth + c] = input[n, y * b + i, "
    "x * b + j, c].",
    forms=_forms(IMAGE, int32("block_size", "Rows and columns of a block; divides height and width.")),
    results=(tensor("output", f"[batch, height / b, width / b, depth * b^2] in the input's layout; {KEPT}.", 4, 4),),
    rows=same(NAMES, (F32, FL1), (Q8, FL1), (F16, FL3), (Q8S, FL4)),
    rules=(
        execution_rank_rule("RANK_INPUT", "input", 4),
        BLOCK_SIZE,
        ExecutionRule(
            "DIVISIBLE",
            "block_size divides height and width",
            lambda call: not any(size % _block(call) for size in _sizes(call)[1:3]),
            _indivisible,
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=_infer_image(_to_depth),
    kernel=_moved(_space_to_depth),
    bound=exact,
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

# --- batch and space --------------------------------------------------------------------------------------------------

BLOCK_SHAPE = int32_list("block_shape", "Rows and columns of a block.")
BLOCK_LENGTH = ExecutionRule(
    "BLOCK_LENGTH",
    "block_shape has two elements",
    lambda call: call["block_shape"].shape == (2,),
    lambda call: call.with_input("block_shape", int32_tensor((*ints_of(call, "block_shape"), 1))),
)
BLOCKS = ExecutionRule(
    "BLOCK",
    "each element of block_shape is at least 1",
    lambda call: min(ints_of(call, "block_shape")) >= 1,
    lambda call: call.with_input("block_shape", int32_tensor((ints_of(call, "block_shape")[0], 0))),
)


def _blocks(call: Call) -> tuple[int, int]:
    rows, columns = ints_of(call, "block_shape")
    return rows, columns


def _from_batch(call: Call, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    (batch, height, width, depth), (rows, columns) = sizes, _blocks(call)
    return batch // (rows * columns), height * rows, width * columns, depth


def _batch_to_space(v: Values, x: Array) -> Array:
    batch, height, width, depth = x.shape
    rows, columns = _blocks(v.call)
    split = x.reshape(rows, columns, batch // (rows * columns), height, width, depth)
    return split.transpose(2, 3, 0, 4, 1, 5).reshape(_from_batch(v.call, x.shape))


def _draw_blocks(draft: Draft) -> tuple[int, int]:
    """Rows and columns of a block, different ones in most draws, now and then 1."""
    rows, columns = draft.integer(1, LARGEST_BLOCK), draft.integer(1, LARGEST_BLOCK)
    draft.ints("block_shape", (rows, columns))
    return rows, columns


def _draw_batch_to_space(draft: Draft) -> None:
    rows, columns = _draw_blocks(draft)

    def sizes() -> tuple[int, int, int, int]:
        batch, height, width, depth = _piece(draft)
        return batch * rows * columns, height, width, min(depth, 3)

    _draw_image(draft, sizes, lambda image: image[0] % (rows * columns) == 0)


BATCH_TO_SPACE_ND = OperationDef(
    code=OperationType.BATCH_TO_SPACE_ND,
    doc="Undoes SPACE_TO_BATCH_ND without padding: output[n, y * r + i, x * s + j, c] = input[(i * s + j) * batch_out "
    "+ n, y, x, c] for blocks of r rows and s columns. Documented for any number of dimensions; public code takes "
    "rank 4 and two blocks only. The layout comes with 1.2, where one text names an Android version.",
    forms=_forms(IMAGE, BLOCK_SHAPE, since=FL2),
    results=(
        tensor("output", f"[batch / (r * s), height * r, width * s, depth] in the input's layout; {KEPT}.", 4, 4),
    ),
    rows=same(NAMES, (F32, FL2), (Q8, FL2), (F16, FL3), (Q8S, FL4)),
    rules=(
        execution_rank_rule("RANK_INPUT", "input", 4),
        BLOCK_LENGTH,
        BLOCKS,
        ExecutionRule(
            "BATCH",
            "the product of block_shape divides the batch",
            lambda call: _sizes(call)[0] % (_blocks(call)[0] * _blocks(call)[1]) == 0,
            lambda call: call.with_input("block_shape", int32_tensor((_sizes(call)[0] + 1, 1))),
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=_infer_image(_from_batch),
    kernel=_moved(_batch_to_space),
    bound=exact,
    draw=_draw_batch_to_space,
    quantization=same_quantization("output"),
    examples=(
        Example(
            "float32/default/in2",
            {"input": [[[[1.0]]], [[[2.0]]], [[[3.0]]], [[[4.0]]], [[[5.0]]], [[[6.0]]]], "block_shape": [2, 3]},
            {"output": [[[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]]]},
        ),
    ),
    second_opinion=SECOND_OPINION,
)

PADDINGS = OperandDef(
    "paddings", "[[top, bottom], [left, right]]: rows and columns added.", OperandType.TENSOR_INT32, (2, 2),
    parameter=True,
)  # fmt: skip


def _paddings(call: Call) -> tuple[int, int, int, int]:
    top, bottom, left, right = ints_of(call, "paddings")
    return top, bottom, left, right


def _padded(call: Call) -> tuple[int, int]:
    """Rows and columns with their paddings."""
    _, height, width, _ = _sizes(call)
    top, bottom, left, right = _paddings(call)
    return height + top + bottom, width + left + right


def _to_batch(call: Call, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    (height, width), (rows, columns) = _padded(call), _blocks(call)
    return sizes[0] * rows * columns, height // rows, width // columns, sizes[3]


def _space_to_batch(v: Values, x: Array) -> Array:
    top, bottom, left, right = _paddings(v.call)
    edges = ((0, 0), (top, bottom), (left, right), (0, 0))
    padded = np.pad(x, edges, constant_values=v.call["input"].zero_point)
    batch, height, width, depth = padded.shape
    rows, columns = _blocks(v.call)
    split = padded.reshape(batch, height // rows, rows, width // columns, columns, depth)
    return split.transpose(2, 4, 0, 1, 3, 5).reshape(_to_batch(v.call, x.shape))


def _put_paddings(call: Call, values: tuple[int, int, int, int]) -> Call:
    return call.with_input("paddings", replace(call["paddings"], value=np.array(values, np.int32).reshape(2, 2)))


def _grow_top(call: Call) -> Call | None:
    """One more row than blocks can share."""
    top, bottom, left, right = _paddings(call)
    return _put_paddings(call, (top + 1, bottom, left, right)) if _blocks(call)[0] > 1 else None


def _draw_fill(draft: Draft, length: int, block: int) -> tuple[int, int]:
    """Padding at both ends that makes a length a multiple of a block; at times a block more, and not evenly split."""
    total = -length % block + (block if draft.chance(35) else 0)
    head = draft.integer(0, total)
    return head, total - head


def _draw_space_to_batch(draft: Draft) -> None:
    rows, columns = _draw_blocks(draft)

    def sizes() -> tuple[int, int, int, int]:
        batch, _, _, depth = _piece(draft)
        return min(batch, 2), draft.integer(1, 9), draft.integer(1, 9), min(depth, 3)

    _, height, width, _ = _draw_image(draft, sizes, lambda image: image[0] * image[3] <= 24)
    if draft.scope.level < FL3 and draft.type("input") == Q8 and draft["input"].zero_point:
        zeroed = draft.scope.add(replace(draft["input"], zero_point=0, key=None))
        draft.put("input", zeroed)
    edges = [*_draw_fill(draft, height, rows), *_draw_fill(draft, width, columns)]
    value = np.array(edges, np.int32).reshape(2, 2)
    draft.put("paddings", Argument(OperandType.TENSOR_INT32, (2, 2), value=value))


SPACE_TO_BATCH_ND = OperationDef(
    code=OperationType.SPACE_TO_BATCH_ND,
    doc="Pads rows and columns with the real value 0, then blocks of r rows and s columns become batch: output[(i * s "
    "+ j) * batch + n, y, x, c] = padded[n, y * r + i, x * s + j, c]. Documented for any number of dimensions; public "
    "code takes rank 4 and two blocks only.",
    forms=_forms(IMAGE, BLOCK_SHAPE, PADDINGS, since=FL2),
    results=(tensor("output", f"[batch * r * s, rows / r, columns / s, depth] in the input's layout; {KEPT}.", 4, 4),),
    rows=same(NAMES, (F32, FL2), (Q8, FL2), (F16, FL3), (Q8S, FL4)),
    rules=(
        ValidationRule("ZERO_POINT", "zero point of input is 0", RuleKind.ZERO_POINT, ("input",), (0,), FL3, (Q8,)),
        execution_rank_rule("RANK_INPUT", "input", 4),
        BLOCK_LENGTH,
        BLOCKS,
        ExecutionRule(
            "PADDINGS",
            "paddings has shape [2, 2] and each is at least 0",
            lambda call: call["paddings"].shape == (2, 2) and min(_paddings(call)) >= 0,
            lambda call: _put_paddings(call, (-1, *_paddings(call)[1:])),
        ),
        ExecutionRule(
            "DIVISIBLE",
            "block_shape divides the padded rows and columns",
            lambda call: not any(size % block for size, block in zip(_padded(call), _blocks(call), strict=True)),
            _grow_top,
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=_infer_image(_to_batch),
    kernel=_moved(_space_to_batch),
    bound=exact,
    draw=_draw_space_to_batch,
    quantization=same_quantization("output"),
    examples=(
        # A column of zeros in front: columns 0 and 2 of 0 1 2 3, then columns 1 and 3.
        Example(
            "float32/default/in3",
            {"input": [[[[1.0], [2.0], [3.0]]]], "block_shape": [1, 2], "paddings": [[0, 0], [1, 0]]},
            {"output": [[[[0.0], [2.0]]], [[[1.0], [3.0]]]]},
        ),
        # Real 0 is stored as 7; a row below, with the channels first.
        Example(
            "quant8_asymm/default/in4",
            {"input": [[[[1, 2]], [[3, 4]]]], "block_shape": [2, 1], "paddings": [[0, 1], [0, 0]], "nchw": True},
            {"output": [[[[1, 2]], [[3, 4]]], [[[7, 7]], [[7, 7]]]]},
            {"input": (0.5, 7), "output": (0.5, 7)},
        ),
    ),
    second_opinion=SECOND_OPINION,
)
