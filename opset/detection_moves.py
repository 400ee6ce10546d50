"""Boxes moved by deltas: AXIS_ALIGNED_BBOX_TRANSFORM."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnhal.operations import TypeRow
from nnhal.types import FL3, FL4, Array, OperandType, OperationType
from opset.call import Call
from opset.definition import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Bound,
    Example,
    Judging,
    OperationDef,
    Shapes,
    form,
    half_units,
    tensor,
)
from opset.detection_boxes import (
    CORNER,
    MOVE_TERMS,
    Moved,
    box_scale_rule,
    clip,
    image_index_rule,
    move,
    on_box_grid,
    ordered_boxes_rule,
    put_boxes,
    put_indexes,
    size_rule,
)
from opset.drawing import Draft
from opset.values import Values
from opset.windows import execution_rank_rule

Q16 = OperandType.TENSOR_QUANT16_ASYMM


def _row(name: str, box: OperandType, delta: OperandType) -> TypeRow:
    types = {"rois": box, "deltas": delta, "batches": I32, "image_info": box, "output": box}
    return TypeRow(name, FL4 if delta == Q8S else FL3, types)


def _moved(v: Values) -> tuple[Moved, Array]:
    """Moved boxes, [num_rois, num_classes, 4], and the size of the image of each."""
    boxes, deltas = v["rois"], v["deltas"]
    sizes = v["image_info"][v.stored("batches")]
    return move(boxes[:, None], deltas.reshape(len(boxes), deltas.shape[1] // 4, 4)), sizes[:, None]


def _kernel(v: Values) -> Mapping[str, Array]:
    moved, sizes = _moved(v)
    return {"output": clip(moved.corners, sizes).reshape(v.call["deltas"].shape)}


def _bound(v: Values, results: Mapping[str, Array]) -> Bound:
    del results
    return Bound(_moved(v)[0].magnitude.reshape(v.call["deltas"].shape), MOVE_TERMS)


def _infer(call: Call) -> Shapes:
    return {"output": call["deltas"].shape}


def _draw(draft: Draft) -> None:
    images, boxes, classes = draft.choose((1, 2, 2, 3)), draft.integer(1, 6), draft.integer(1, 4)
    rng = draft.source.generator()
    # Images of clearly different sizes: a box of one is cut by another.
    sizes = rng.permuted(np.array([9.0, 17.0, 30.0]))[:images, None] * rng.uniform(0.8, 1.2, (images, 2))
    sizes = sizes * rng.choice([1.0, 0.6], (images, 2))
    batches = np.sort(rng.integers(0, images, boxes))
    own = sizes[batches][:, [1, 0]]
    ends = np.sort(rng.random((2, boxes, 2)), axis=0) * own
    ends[1] = np.maximum(ends[1], ends[0])
    if draft.chance(20):
        ends[1, 0] = ends[0, 0]  # an empty box
    put_boxes(draft, "rois", np.concatenate([ends[0], ends[1]], axis=1))
    put_boxes(draft, "image_info", sizes)
    put_indexes(draft, "batches", batches)
    reach = draft.real(0.7, 1.4)
    draft.tensor("deltas", (boxes, 4 * classes), low=-reach, high=reach)


AXIS_ALIGNED_BBOX_TRANSFORM = OperationDef(
    code=OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
    doc="Moves the centre of each box by dx, dy times its width and height, multiplies these by e^dw, e^dh, and cuts "
    "the corners to [0, width] and [0, height] of the box's image, for each class. Quantised: of real values. Signed "
    "deltas exist from 1.3 on, although one public validator answers 1.2.",
    forms=(form(
        tensor("rois", "Boxes, [num_rois, 4]: x1, y1, x2, y2.", 2, 2),
        tensor("deltas", "dx, dy, dw, dh for each class: [num_rois, num_classes * 4].", 2, 2),
        tensor("batches", "Image of each box, [num_rois].", 1, 1),
        tensor("image_info", "Height and width of each image, [batches, 2].", 2, 2),
        since=FL3,
    ),),
    results=(tensor("output", "Moved boxes, [num_rois, num_classes * 4].", 2, 2),),
    rows=(
        _row("float32", F32, F32),
        _row("float16", F16, F16),
        _row("quant16_asymm_delta_quant8", Q16, Q8),
        _row("quant16_asymm_delta_signed", Q16, Q8S),
    ),
    rules=(
        execution_rank_rule("RANK_DELTAS", "deltas", 2),
        size_rule("ROIS", "rois", "rois has dimensions [rows of deltas, 4]", lambda c: (c["deltas"].shape[0], 4)),
        size_rule("BATCHES", "batches", "batches has one element a box", lambda c: (c["deltas"].shape[0],)),
        size_rule("IMAGE_INFO", "image_info", "image_info has dimensions [batches, 2]", lambda c: (None, 2)),
        box_scale_rule("ROI_SCALE", "rois"),
        box_scale_rule("IMAGE_SCALE", "image_info"),
        image_index_rule(lambda call: call["image_info"].shape[0]),
        ordered_boxes_rule("rois"),
    ),
    infer=_infer,
    kernel=_kernel,
    judging=Judging(_bound, half_units(MOVE_TERMS, CORNER)),
    draw=_draw,
    quantization=on_box_grid("output"),
    examples=(
        # 4 wide and 2 high around (4, 3); moved by (2, -1), the height doubled: rows 0 to 4, columns 4 to 8 cut at 7.
        Example(
            "float32",
            {"rois": [[2.0, 2.0, 6.0, 4.0]], "deltas": [[0.5, -0.5, 0.0, np.log(2.0)]], "batches": [0],
             "image_info": [[10.0, 7.0]]},
            {"output": [[4.0, 0.0, 7.0, 4.0]]},
        ),
        # The same in eighths: dx = dy = 0.5, so columns 4 to 8 and rows 3 to 5 of an image of 4 rows.
        Example(
            "quant16_asymm_delta_quant8",
            {"rois": [[16, 16, 48, 32]], "deltas": [[12, 12, 10, 10]], "batches": [0], "image_info": [[32, 800]]},
            {"output": [[32, 24, 64, 32]]},
            {"rois": (0.125, 0), "deltas": (0.25, 10), "image_info": (0.125, 0), "output": (0.125, 0)},
        ),
    ),
    second_opinion="plain loops over boxes and classes with math.exp",
)  # fmt: skip
