"""Regions of a feature map pooled to one size: ROI_POOLING."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from nnhal.types import FL3, Array, OperationType
from opset.definition import (
    Example,
    LeftOpen,
    OperationDef,
    exact,
    form,
)
from opset.detection_regions import (
    COARSE,
    FINE,
    REGION_INPUTS,
    REGION_ROWS,
    STRIDE_WORDS,
    assembled,
    coordinates,
    draw_feature,
    infer_regions,
    put_regions,
    region_output,
    region_rules,
    strides_of_example,
)
from opset.drawing import Draft
from opset.quantization import MANTISSA_BITS, round_half_away
from opset.reshaping import same_quantization, same_quantization_rule
from opset.values import Values
from opset.windows import (
    MANDATORY_LAYOUT,
    channels_last,
    in_layout,
    is_nchw,
)

# --- ROI_POOLING ------------------------------------------------------------------------------------------------------


def _edges(v: Values, start: int, end: int, out: int, length: int) -> tuple[Array, Array]:
    """First element of each bin and the one behind its last, cut at the map."""
    size, bins = max(end - start + 1, 1), np.arange(out)
    dtype = v.arithmetic.dtype
    if dtype == np.float64:
        first, last = start + bins * size // out, start - (-(bins + 1) * size // out)
    else:
        step = dtype(size) / dtype(out)
        first = np.floor(bins.astype(dtype) * step + dtype(start)).astype(np.int64)
        last = np.ceil((bins + 1).astype(dtype) * step + dtype(start)).astype(np.int64)
    return np.clip(first, 0, length), np.clip(last, 0, length)


def _pool_region(v: Values, image: Array, corners: Array) -> Array:
    x1, y1, x2, y2 = (int(c) for c in corners)
    height, width, depth = image.shape
    rows = _edges(v, y1, y2, v.integer("out_height"), height)
    columns = _edges(v, x1, x2, v.integer("out_width"), width)
    pooled = np.zeros((len(rows[0]), len(columns[0]), depth), image.dtype)
    for r, (top, bottom) in enumerate(zip(*rows, strict=True)):
        if top >= bottom:
            continue
        best = image[top:bottom].max(axis=0)
        for c, (left, right) in enumerate(zip(*columns, strict=True)):
            if left < right:
                pooled[r, c] = best[left:right].max(axis=0)
    return pooled


def _pool(v: Values) -> Mapping[str, Array]:
    terms, scale = v.factor("feature")
    image = channels_last(terms, is_nchw(v.call))
    corners = round_half_away(coordinates(v))
    pooled = [_pool_region(v, image[batch], corner) for batch, corner in zip(v.ints("batches"), corners, strict=True)]
    dtype = v.arithmetic.dtype
    return {"output": assembled(v, pooled, image.shape[3]).astype(dtype) * dtype(scale)}


def _unsure_edges(start: int, end: int, out: int) -> Array:
    """Bins whose whole edges come out of arithmetic that is not exact."""
    size = max(end - start + 1, 1)
    whole = np.array([bin_ * size % out == 0 for bin_ in range(out + 1)])
    unsure = np.zeros(out + 1, bool)
    for dtype in (np.float32, np.float16):
        step = dtype(size) / dtype(out)
        for edges in ((np.arange(out + 1).astype(dtype) * step), np.arange(out + 1).astype(dtype) * dtype(size)
                      * (dtype(1) / dtype(out))):  # fmt: skip
            unsure |= whole & (edges != np.arange(out + 1) * size // out)
    return unsure[:-1] | unsure[1:]


def _pool_open(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    opened = channels_last(np.zeros(results["output"].shape, bool), is_nchw(v.call))
    opened = np.array(opened)
    places = coordinates(v)
    step = COARSE if v.call["feature"].type in MANTISSA_BITS else FINE
    tie = np.abs(np.abs(places - np.trunc(places)) - 0.5)
    close = (tie > 0) & (tie <= step * np.maximum(np.abs(places), 1))
    strides = [v.call[f"{axis}_stride"].item() for axis in ("width", "height")]
    if any(math.frexp(stride)[0] != 0.5 for stride in strides):
        close |= tie == 0
    for number, (x1, y1, x2, y2) in enumerate(round_half_away(places).astype(int)):
        opened[number] |= close[number].any()
        opened[number, _unsure_edges(y1, y2, v.integer("out_height"))] = True
        opened[number, :, _unsure_edges(x1, x2, v.integer("out_width"))] = True
    return {"output": in_layout(opened, is_nchw(v.call))}


# --- draws ------------------------------------------------------------------------------------------------------------


def _off_ties(edges: Array, axis: int) -> Array:
    """Corners that are not halfway between two elements."""
    del axis
    near = np.abs(edges - np.floor(edges) - 0.5) < 0.04
    return np.where(near, np.floor(edges) + 0.4, edges)


def _draw_pool(draft: Draft) -> None:
    put_regions(draft, draw_feature(draft), _off_ties)


# --- definition -------------------------------------------------------------------------------------------------------

ROI_POOLING = OperationDef(
    code=OperationType.ROI_POOLING,
    doc="Maximum over each bin of each region. Corners are divided by the strides and rounded half away from zero; "
    "size = end - start + 1; bin j runs from floor(start + j * size / out) to ceil(start + (j + 1) * size / out), cut "
    "at the map; an empty bin gives 0. Where a corner is near a tie, or the edge of a bin hangs on rounding, the "
    f"result is left open. {STRIDE_WORDS}",
    forms=(form(*REGION_INPUTS, MANDATORY_LAYOUT, since=FL3),),
    results=(region_output(" and scale"),),
    rows=REGION_ROWS,
    rules=region_rules(same_quantization_rule("feature", "output")),
    infer=infer_regions,
    kernel=_pool,
    judging=exact(
        "one of the values is taken",
        LeftOpen("regions with a corner near a tie of rounding, and bins whose edges hang on rounding", _pool_open),
        moves={"output": "feature"},
    ),
    draw=_draw_pool,
    quantization=same_quantization("output"),
    examples=(
        # Corners (0, 0) and (2.4, 1.2) become (0, 0) and (2, 1): 3 columns for 2 bins, [0, 2) and [1, 3).
        Example(
            "float32",
            {"feature": [[[[-1.0], [-2.0], [-3.0], [9.0]], [[-4.0], [-5.0], [-2.5], [9.0]]]],
             "rois": [[0.0, 0.0, 4.75, 2.5]], "batches": [0], "out_height": 1, "out_width": 2,
             **strides_of_example(2.0, 2.0), "nchw": 0},
            {"output": [[[[-1.0], [-2.0]]]]},
        ),
        # A region that begins behind the last column is empty: the zero point.
        Example(
            "quant8_asymm_signed",
            {"feature": [[[[1, 2], [3, 7]]]], "rois": [[16, 0, 16, 0]], "batches": [0], "out_height": 1,
             "out_width": 1, **strides_of_example(1.0, 1.0), "nchw": 1},
            {"output": [[[[-5]]]]},
            {"feature": (0.5, -5), "rois": (0.125, 0), "output": (0.5, -5)},
        ),
    ),
    second_opinion="a loop over bins and elements in rational numbers",
)  # fmt: skip
