"""Blocks between batch and space: BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nnhal.operations import OperandDef, RuleKind, ValidationRule
from nnhal.types import FL2, FL3, FL4, Array, OperandType, OperationType
from opset.call import Argument, Call, int32_tensor
from opset.definition import F16, F32, Q8, Q8S, Example, ExecutionRule, OperationDef, int32_list, moved, same, tensor
from opset.drawing import Draft
from opset.quantization import QUANTIZED
from opset.rearrangement import (
    IMAGE,
    KEPT,
    NAMES,
    SECOND_OPINION,
    Sizes,
    draw_blocks_of,
    draw_piece,
    image_forms,
    image_kernel,
    infer_image,
    sizes_of,
)
from opset.reshaping import ints_of, same_quantization, same_quantization_rule
from opset.values import Values
from opset.windows import execution_rank_rule

LARGEST_BLOCK = 4

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


def _from_batch(call: Call, sizes: Sizes) -> Sizes:
    (batch, height, width, depth), (rows, columns) = sizes, _blocks(call)
    return batch // (rows * columns), height * rows, width * columns, depth


def _batch_to_space(v: Values, x: Array) -> Array:
    batch, height, width, depth = x.shape
    rows, columns = _blocks(v.call)
    split = x.reshape(rows, columns, batch // (rows * columns), height, width, depth)
    return np.asarray(split.transpose(2, 3, 0, 4, 1, 5).reshape(_from_batch(v.call, x.shape)))


def _draw_blocks(draft: Draft) -> tuple[int, int]:
    """Rows and columns of a block, different ones in most draws, now and then 1."""
    rows, columns = draft.integer(1, LARGEST_BLOCK), draft.integer(1, LARGEST_BLOCK)
    draft.ints("block_shape", (rows, columns))
    return rows, columns


def _draw_batch_to_space(draft: Draft) -> None:
    rows, columns = _draw_blocks(draft)

    def sizes() -> Sizes:
        batch, height, width, depth = draw_piece(draft)
        return batch * rows * columns, height, width, min(depth, 3)

    draw_blocks_of(draft, sizes, lambda image: image[0] % (rows * columns) == 0)


BATCH_TO_SPACE_ND = OperationDef(
    code=OperationType.BATCH_TO_SPACE_ND,
    doc="Undoes SPACE_TO_BATCH_ND without padding: output[n, y * r + i, x * s + j, c] = input[(i * s + j) * batch_out "
    "+ n, y, x, c] for blocks of r rows and s columns. Documented for any number of dimensions; public code takes "
    "rank 4 and two blocks only. The layout comes with 1.2, where one text names an Android version.",
    forms=image_forms(IMAGE, BLOCK_SHAPE, since=FL2),
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
            lambda call: sizes_of(call)[0] % (_blocks(call)[0] * _blocks(call)[1]) == 0,
            lambda call: call.with_input("block_shape", int32_tensor((sizes_of(call)[0] + 1, 1))),
        ),
        same_quantization_rule("input", "output"),
    ),
    infer=infer_image(_from_batch),
    kernel=image_kernel(_batch_to_space),
    judging=moved(),
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
    _, height, width, _ = sizes_of(call)
    top, bottom, left, right = _paddings(call)
    return height + top + bottom, width + left + right


def _to_batch(call: Call, sizes: Sizes) -> Sizes:
    (height, width), (rows, columns) = _padded(call), _blocks(call)
    return sizes[0] * rows * columns, height // rows, width // columns, sizes[3]


def _space_to_batch(v: Values, x: Array) -> Array:
    top, bottom, left, right = _paddings(v.call)
    edges = ((0, 0), (top, bottom), (left, right), (0, 0))
    padded = np.pad(x, edges, constant_values=v.call["input"].zero_point)
    batch, height, width, depth = padded.shape
    rows, columns = _blocks(v.call)
    split = padded.reshape(batch, height // rows, rows, width // columns, columns, depth)
    return np.asarray(split.transpose(2, 4, 0, 1, 3, 5).reshape(_to_batch(v.call, x.shape)))


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

    def sizes() -> Sizes:
        batch, _, _, depth = draw_piece(draft)
        return min(batch, 2), draft.integer(1, 9), draft.integer(1, 9), min(depth, 3)

    kind = draft.type("input")
    zeroed = (kind in QUANTIZED and draft.chance(15)) or (kind == Q8 and draft.scope.level < FL3)
    few = LARGEST_BLOCK * 6
    _, height, width, _ = draw_blocks_of(
        draft, sizes, lambda image: image[0] * image[3] <= few, zero_point=0 if zeroed else None
    )
    edges = [*_draw_fill(draft, height, rows), *_draw_fill(draft, width, columns)]
    value = np.array(edges, np.int32).reshape(2, 2)
    draft.put("paddings", Argument(OperandType.TENSOR_INT32, (2, 2), value=value))


SPACE_TO_BATCH_ND = OperationDef(
    code=OperationType.SPACE_TO_BATCH_ND,
    doc="Pads rows and columns with the real value 0, then blocks of r rows and s columns become batch: output[(i * s "
    "+ j) * batch + n, y, x, c] = padded[n, y * r + i, x * s + j, c]. Documented for any number of dimensions; public "
    "code takes rank 4 and two blocks only.",
    forms=image_forms(IMAGE, BLOCK_SHAPE, PADDINGS, since=FL2),
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
    infer=infer_image(_to_batch),
    kernel=image_kernel(_space_to_batch),
    judging=moved(),
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
