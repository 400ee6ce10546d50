"""Regions of a feature map sampled to one size: ROI_ALIGN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nnhal.types import FL3, Array, OperationType
from opset.call import with_value
from opset.definition import (
    Q8,
    Bound,
    Example,
    ExecutionRule,
    Judging,
    LeftOpen,
    OperationDef,
    form,
    half_units,
    int32,
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
from opset.quantization import MANTISSA_BITS, QUANTIZED
from opset.values import Values
from opset.windows import (
    MANDATORY_LAYOUT,
    channels_last,
    image_size,
    is_nchw,
)

# --- ROI_ALIGN --------------------------------------------------------------------------------------------------------


PLACE_TERMS = 4  # roundings behind the place of a sample


@dataclass(frozen=True)
class Samples:
    """Where a region is sampled along one dimension.

    Attributes:
        cell: index of the element before each sample, [out, samples].
        share: of the element behind it.
        reach: size of the coordinates that went into the positions.
        bin: length of a bin.
    """

    cell: Array
    share: Array
    reach: float
    bin: float


def _samples(start: float, end: float, out: int, ratio: int, length: int, dtype: type) -> Samples:
    """Sample positions of one region; from the last element on, that element alone counts."""
    bin_size = np.maximum(end - start, dtype(1)) / dtype(out)
    count = ratio if ratio > 0 else max(1, math.ceil(bin_size))
    inner = (np.arange(count).astype(dtype) + dtype(0.5)) * (bin_size / dtype(count))
    places = start + np.arange(out).astype(dtype)[:, None] * bin_size + inner
    cell = np.minimum(np.floor(places).astype(np.int64), length - 1)
    share = np.where(cell >= length - 1, dtype(0), places - cell.astype(dtype))
    return Samples(cell, share.astype(dtype), abs(float(start)) + abs(float(end)) + float(bin_size) * out,
                   float(bin_size))  # fmt: skip


def _weights(samples: Samples, length: int) -> Array:
    """How much each element counts in each bin, [out, length]: the mean over the samples."""
    here = samples.cell[..., None] == np.arange(length)
    behind = np.minimum(samples.cell + 1, length - 1)[..., None] == np.arange(length)
    share = samples.share[..., None]
    both = np.where(here, 1 - share, 0) + np.where(behind, share, 0)
    return np.asarray(both.astype(samples.share.dtype).mean(axis=1, dtype=samples.share.dtype))


def _counts(samples: Samples, length: int) -> Array:
    """Share of a bin's samples that lie behind each element, [out, length]."""
    return np.asarray((samples.cell[..., None] == np.arange(length)).mean(axis=1))


def _region_samples(v: Values, height: int, width: int) -> list[tuple[Samples, Samples]]:
    """Samples of each region along height and width."""
    dtype = v.arithmetic.dtype
    rows, columns = v.integer("out_height"), v.integer("out_width")
    down, right = v.integer("sampling_h"), v.integer("sampling_w")
    return [
        (_samples(y1, y2, rows, down, height, dtype), _samples(x1, x2, columns, right, width, dtype))
        for x1, y1, x2, y2 in coordinates(replace(v, absolute=False))
    ]


def _applied(v: Values, rows: Array, columns: Array, image: Array) -> Array:
    """Weights along height and width on an image of [height, width, depth]."""
    height, width, depth = image.shape
    down = v.matmul(rows, image.reshape(height, width * depth)).reshape(-1, width, depth)
    return v.matmul(np.broadcast_to(columns, (len(down), *columns.shape)), down)


def _align(v: Values) -> Mapping[str, Array]:
    image = channels_last(v["feature"], is_nchw(v.call))
    _, height, width, depth = image.shape
    pooled = [
        _applied(v, _weights(rows, height), _weights(columns, width), image[batch])
        for batch, (rows, columns) in zip(v.ints("batches"), _region_samples(v, height, width), strict=True)
    ]
    return {"output": assembled(v, pooled, depth)}


def _steepness(image: Array, axis: int) -> Array:
    """Largest difference of neighbours in each element's cell and the two beside it."""
    steps = np.abs(np.diff(image, axis=axis))
    pad = [(0, 0)] * image.ndim
    pad[axis] = (1, 2)
    steps = np.pad(steps, pad)
    length = image.shape[axis]
    parts = [np.take(steps, range(i, i + length), axis=axis) for i in range(3)]
    return np.asarray(np.maximum(np.maximum(parts[0], parts[1]), parts[2]))


def _align_bound(v: Values, results: Mapping[str, Array]) -> Bound:
    """Of what is summed, and of what a sample moved by the rounding of its coordinates changes."""
    del results
    image = channels_last(v["feature"], is_nchw(v.call))
    _, height, width, depth = image.shape
    down, right = _steepness(image, 1), _steepness(image, 2)
    parts = []
    batches, samples = v.ints("batches"), _region_samples(v, height, width)
    terms = 8 + 4 * max((rows.cell.shape[1] * columns.cell.shape[1] for rows, columns in samples), default=1)
    for batch, (rows, columns) in zip(batches, samples, strict=True):
        by_rows, by_columns = _weights(rows, height), _weights(columns, width)
        summed = _applied(v, by_rows, by_columns, np.abs(image[batch]))
        moved = rows.reach * _applied(v, _counts(rows, height), by_columns, down[batch])
        moved += columns.reach * _applied(v, by_rows, _counts(columns, width), right[batch])
        parts.append(summed + moved * PLACE_TERMS / terms)
    return Bound(assembled(v, parts, depth), terms)


def _near_whole(v: Values, samples: Samples, ratio: int) -> bool:
    """Whether rounding may decide how many samples an adaptive bin has."""
    if ratio > 0:
        return False
    step = COARSE if v.call["feature"].type in MANTISSA_BITS else FINE
    return abs(samples.bin - round(samples.bin)) <= step * max(samples.reach, 1) and not _exact(v, samples.bin)


def _exact(v: Values, size: float) -> bool:
    """Whether a bin is the same in all arithmetic: powers of two divide, and eighths are divided."""
    strides = [v.call[f"{axis}_stride"].item() for axis in ("width", "height")]
    whole = [v["rois"] * 8, np.array([size * 64])]
    outs = (v.integer("out_height"), v.integer("out_width"))
    return (
        all(math.frexp(stride)[0] == 0.5 for stride in strides)
        and all(out & (out - 1) == 0 for out in outs)
        and all(bool((x == np.rint(x)).all()) for x in whole)
    )


def _align_open(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    opened = np.zeros(results["output"].shape, bool)
    _, height, width, _ = image_size(v.call["feature"].shape, is_nchw(v.call))
    ratios = v.integer("sampling_h"), v.integer("sampling_w")
    for number, both in enumerate(_region_samples(v, height, width)):
        opened[number] = any(_near_whole(v, s, ratio) for s, ratio in zip(both, ratios, strict=True))
    return {"output": opened}


# --- rule and draws ---------------------------------------------------------------------------------------------------

SAMPLING = ExecutionRule(
    "SAMPLING",
    "sampling_h and sampling_w are not negative",
    lambda call: call.integer("sampling_h") >= 0 and call.integer("sampling_w") >= 0,
    lambda call: with_value(call, "sampling_h", -1),
)


def _draw_align(draft: Draft) -> None:
    sizes = draw_feature(draft)
    outs = (draft["out_height"].item(), draft["out_width"].item())
    ratios = tuple(0 if draft.chance(40) else draft.integer(1, 4) for _ in range(2))
    draft.scalar("sampling_h", ratios[0])
    draft.scalar("sampling_w", ratios[1])

    def off_whole_bins(edges: Array, axis: int) -> Array:
        if ratios[axis]:
            return edges
        length = np.maximum(edges[:, 1] - edges[:, 0], 1)
        near = np.abs(length / outs[axis] - np.rint(length / outs[axis])) < 0.07
        harmless = (edges[:, 1] - edges[:, 0] < 0.9) & (outs[axis] == 1)
        shorter = np.stack([edges[:, 0], edges[:, 1] - 0.17 * outs[axis]], axis=1)
        moved = np.where((near & ~harmless)[:, None], shorter, edges)
        return np.stack([np.minimum(moved[:, 0], moved[:, 1]).clip(0), moved[:, 1].clip(0)], axis=1)

    put_regions(draft, sizes, off_whole_bins)
    source = draft["feature"]
    if source.type in QUANTIZED:
        # Public code rounds weights to 1/255: with two input steps to an output step it is a step off at most.
        scale = source.scale * draft.real(2.0, 4.0)
        ends = (0, 255) if source.type == Q8 else (-128, 127)
        centre = source.zero_point if draft.chance(40) else ends[0] + draft.integer(0, 255)
        draft.wanted["output"] = (scale, int(np.clip(centre, *ends)))


# --- definition -------------------------------------------------------------------------------------------------------

ROI_ALIGN = OperationDef(
    code=OperationType.ROI_ALIGN,
    doc="Mean of bilinear samples over each bin of each region. Corners are divided by the strides; a region is at "
    "least 1 wide and high; bin = size / out; samples a bin as given, or ceil(bin) where 0; sample k lies at (k + 0.5) "
    "/ samples of the bin; from the last row or column on, that one alone counts. Quantised: of real values; boxes are "
    "QUANT16_ASYMM for unsigned and signed features alike (documents name only the unsigned ones). Where the "
    f"adaptive number of samples hangs on rounding, the region is left open. {STRIDE_WORDS}",
    forms=(form(
        *REGION_INPUTS,
        int32("sampling_h", "Samples a bin along the height; 0: adaptive."),
        int32("sampling_w", "Samples a bin along the width; 0: adaptive."),
        MANDATORY_LAYOUT,
        since=FL3,
    ),),
    results=(region_output("; scale and zero point are free"),),
    rows=REGION_ROWS,
    rules=region_rules(SAMPLING),
    infer=infer_regions,
    kernel=_align,
    judging=Judging(
        _align_bound,
        half_units("(8 + 4 * most samples of a bin)", "the mean of absolute samples")
        + f", and 2 x {PLACE_TERMS} of a sample's coordinate times the slope there",
        LeftOpen("regions whose adaptive number of samples hangs on rounding", _align_open),
    ),
    draw=_draw_align,
    examples=(
        # One bin over the whole map of 2 x 2, one sample in its middle, (1, 1): the last column and row, 4.
        # Two samples a side: at 0.5 and 1.5, so 1.5 + 0.5 * 1 + ... = the mean of 2.5, 3, 3.5, 4.
        Example(
            "float32",
            {"feature": [[[[1.0], [2.0]], [[3.0], [4.0]]]], "rois": [[0.0, 0.0, 4.0, 4.0]], "batches": [0],
             "out_height": 1, "out_width": 1, **strides_of_example(2.0, 2.0), "sampling_h": 2, "sampling_w": 2,
             "nchw": 0},
            {"output": [[[[3.25]]]]},
        ),
        # Real values 0, 4 on a map of 1 x 2; the region is 0.5 wide, taken as 1: samples at 0.25 and 0.75 in bins.
        Example(
            "quant8_asymm",
            {"feature": [[[[10], [18]]]], "rois": [[0, 0, 8, 8]], "batches": [0], "out_height": 1, "out_width": 2,
             **strides_of_example(2.0, 2.0), "sampling_h": 1, "sampling_w": 0, "nchw": 0},
            {"output": [[[[5], [7]]]]},
            {"feature": (0.5, 10), "rois": (0.125, 0), "output": (1.0, 4)},
        ),
    ),
    second_opinion="a loop over samples in rational numbers; for quantised types also in weights of 1/255",
)  # fmt: skip
