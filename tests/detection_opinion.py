"""Second opinions on the detection family: plain loops over boxes, samples and pixels, apart from `opset`'s kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from nnhal.types import Array
from opset.call import Call

Box = tuple[float, float, float, float]


def real(call: Call, name: str) -> Array:
    """Real values of an input, dequantised in float64."""
    argument = call[name]
    stored = argument.value.astype(np.float64)
    return (stored - argument.zero_point) * argument.scale if argument.scale else stored


def pixels(call: Call, name: str) -> Array:
    """An image with the channels last."""
    image = real(call, name)
    return np.moveaxis(image, 1, 3) if call["nchw"].item() else image


def turned(call: Call, image: Array) -> Array:
    """An image with the channels last, in the layout of the call."""
    return np.moveaxis(image, 3, 1) if call["nchw"].item() else image


# --- regions ----------------------------------------------------------------------------------------------------------


def regions(call: Call) -> Iterator[tuple[int, list[Fraction]]]:
    """The image of each region and its corners on the feature map, exactly."""
    across, down = (Fraction(call[name].item()) for name in ("width_stride", "height_stride"))
    for image, box in zip(call["batches"].value, real(call, "rois"), strict=True):
        x1, y1, x2, y2 = (Fraction(float(edge)) for edge in box)
        yield int(image), [x1 / across, y1 / down, x2 / across, y2 / down]


def places(start: Fraction, end: Fraction, out: int, ratio: int) -> list[list[float]]:
    """Sample positions of each bin."""
    size = max(end - start, Fraction(1)) / out
    count = ratio or math.ceil(size)
    return [[float(start + bin_ * size + size * (2 * k + 1) / (2 * count)) for k in range(count)]
            for bin_ in range(out)]  # fmt: skip


def neighbours(place: float, length: int) -> list[tuple[int, float]]:
    """Elements that a sample reads, with their weights."""
    cell = math.floor(place)
    if cell >= length - 1:
        return [(length - 1, 1.0)]
    return [(cell, cell + 1 - place), (cell + 1, place - cell)]


def roi_align(call: Call, whole_weights: bool = False) -> Array:
    """The mean of bilinear samples; with weights rounded to 1/255, as fixed-point code has them, on request."""
    image = pixels(call, "feature")
    _, height, width, depth = image.shape
    outs = call.integer("out_height"), call.integer("out_width")
    found = np.zeros((call["rois"].shape[0], *outs, depth))
    for number, (batch, (x1, y1, x2, y2)) in enumerate(regions(call)):
        rows = places(y1, y2, outs[0], call.integer("sampling_h"))
        columns = places(x1, x2, outs[1], call.integer("sampling_w"))
        for r, c in np.ndindex(outs):
            total = np.zeros(depth)
            for y in rows[r]:
                for x in columns[c]:
                    for row, down in neighbours(y, height):
                        for column, right in neighbours(x, width):
                            weight = down * right
                            if whole_weights:
                                weight = math.floor(weight * 255 + 0.5) / 255
                            total += weight * image[batch, row, column]
            found[number, r, c] = total / (len(rows[r]) * len(columns[c]))
    return turned(call, found)


def away(value: Fraction) -> int:
    """Nearest integer, ties away from zero."""
    return math.floor(value + Fraction(1, 2)) if value >= 0 else math.ceil(value - Fraction(1, 2))


def roi_pooling(call: Call) -> Array:
    """The maximum over the pixels of each bin; 0 where there are none."""
    image = pixels(call, "feature")
    _, height, width, depth = image.shape
    outs = call.integer("out_height"), call.integer("out_width")
    found = np.zeros((call["rois"].shape[0], *outs, depth))
    for number, (batch, corners) in enumerate(regions(call)):
        x1, y1, x2, y2 = map(away, corners)
        down, right = (Fraction(max(b - a + 1, 1), out) for a, b, out in ((y1, y2, outs[0]), (x1, x2, outs[1])))
        for r, c in np.ndindex(outs):
            seen = [
                image[batch, y, x]
                for y in range(math.floor(y1 + r * down), math.ceil(y1 + (r + 1) * down))
                for x in range(math.floor(x1 + c * right), math.ceil(x1 + (c + 1) * right))
                if 0 <= y < height and 0 <= x < width
            ]
            if seen:
                found[number, r, c] = np.max(seen, axis=0)
    return turned(call, found)


# --- boxes ------------------------------------------------------------------------------------------------------------


def moved(box: Box, delta: Box, height: float, width: float) -> Box:
    """A box moved by shares of its size, stretched, and cut to an image."""
    x1, y1, x2, y2 = box
    dx, dy, dw, dh = delta
    new_width, new_height = math.exp(dw) * (x2 - x1), math.exp(dh) * (y2 - y1)
    x, y = x1 + (x2 - x1) / 2 + dx * (x2 - x1), y1 + (y2 - y1) / 2 + dy * (y2 - y1)
    return (
        min(max(x - new_width / 2, 0), width),
        min(max(y - new_height / 2, 0), height),
        min(max(x + new_width / 2, 0), width),
        min(max(y + new_height / 2, 0), height),
    )


def bbox_transform(call: Call) -> Array:
    """Each box by each of its deltas."""
    boxes, deltas, sizes = real(call, "rois"), real(call, "deltas"), real(call, "image_info")
    found = np.zeros(deltas.shape)
    for row, box in enumerate(boxes):
        height, width = sizes[call["batches"].value[row]]
        for at in range(0, deltas.shape[1], 4):
            found[row, at : at + 4] = moved(tuple(box), tuple(deltas[row, at : at + 4]), height, width)
    return found


def iou(a: Box, b: Box) -> float:
    """Intersection over union."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def hard_nms(boxes: list[tuple[float, Box]], threshold: float, most: int) -> list[int]:
    """Indexes that survive, by falling score."""
    left = sorted(range(len(boxes)), key=lambda i: -boxes[i][0])
    kept: list[int] = []
    while left and (most < 0 or len(kept) < most):
        first = left.pop(0)
        kept.append(first)
        left = [i for i in left if iou(boxes[first][1], boxes[i][1]) < threshold]
    return kept


def box_with_nms_limit(call: Call) -> dict[str, Array]:
    """Rows of score, box, class and image: by image, class and falling score."""
    scores, boxes, batches = real(call, "scores"), real(call, "rois"), call["batches"].value.tolist()
    most = call.integer("max_num_detections")
    rows = []
    for image in dict.fromkeys(batches):
        own = []
        for kind in range(1, scores.shape[1]):
            left = {
                i: scores[i, kind] for i, b in enumerate(batches)
                if b == image and scores[i, kind] > call["score_threshold"].item()
            }  # fmt: skip
            picked = 0
            while left and picked != most:
                first = max(left, key=left.__getitem__)
                score = left.pop(first)
                own.append((score, boxes[first, 4 * kind : 4 * kind + 4], kind, image))
                picked += 1
                for other in list(left):
                    shared = iou(tuple(own[-1][1]), tuple(boxes[other, 4 * kind : 4 * kind + 4]))
                    left[other] *= decay(call, shared)
                    if left[other] < call["nms_score_threshold"].item():
                        del left[other]
        own.sort(key=lambda row: -row[0])
        own = own if most < 0 else own[:most]
        rows += sorted(own, key=lambda row: row[2])
    return {
        "scores_out": np.array([row[0] for row in rows]),
        "rois_out": np.array([row[1] for row in rows]).reshape(-1, 4),
        "classes": np.array([row[2] for row in rows]),
        "batches_out": np.array([row[3] for row in rows]),
    }


def decay(call: Call, shared: float) -> float:
    """The factor of an overlap."""
    if call.integer("kernel") == 2:
        return math.exp(-(shared**2) / call["sigma"].item())
    if shared < call["iou_threshold"].item():
        return 1.0
    return 0.0 if call.integer("kernel") == 0 else 1 - shared


def generate_proposals(call: Call) -> dict[str, Array]:
    """Rows of score, box and image: by image and falling score."""
    scores, deltas = pixels(call, "scores"), pixels(call, "deltas")
    anchors, sizes = real(call, "anchors"), real(call, "image_info")
    down, right = call["height_stride"].item(), call["width_stride"].item()
    rows = []
    for image, (height, width) in enumerate(sizes):
        found: list[tuple[float, Box]] = []
        for r, c, a in np.ndindex(scores.shape[1:]):
            x1, y1, x2, y2 = anchors[a]
            shifted = (x1 + c * right, y1 + r * down, x2 + c * right, y2 + r * down)
            box = moved(shifted, tuple(deltas[image, r, c, 4 * a : 4 * a + 4]), height, width)
            found.append((scores[image, r, c, a], box))
        found.sort(key=lambda row: -row[0])
        if call.integer("pre_nms_max") > 0:
            found = found[: call.integer("pre_nms_max")]
        least = call["min_size"].item()
        found = [
            (score, b) for score, b in found
            if min(b[2] - b[0], b[3] - b[1]) > least and (b[0] + b[2]) / 2 < width and (b[1] + b[3]) / 2 < height
        ]  # fmt: skip
        kept = hard_nms(found, call["iou_threshold"].item(), call.integer("post_nms_max"))
        rows += [(*found[i], image) for i in kept]
    return {
        "scores_out": np.array([row[0] for row in rows]),
        "rois": np.array([row[1] for row in rows]).reshape(-1, 4),
        "batches": np.array([row[2] for row in rows]),
    }


def detection_postprocessing(call: Call) -> dict[str, Array]:
    """Slots of score, box and label; what is not used is 0."""
    scores, deltas, anchors = real(call, "scores"), real(call, "deltas"), real(call, "anchors")
    by_y, by_x, by_h, by_w = (call[f"scale_{name}"].item() for name in "yxhw")
    slots, regular = call.integer("max_num_detections"), call["use_regular_nms"].item()
    classes = call.integer("max_classes_per_detection")
    width = slots if regular else slots * classes
    shape = (len(scores), width)
    results = {"scores_out": np.zeros(shape), "boxes": np.zeros((*shape, 4)), "classes": np.zeros(shape),
               "num_detections": np.zeros(len(scores))}  # fmt: skip
    label = 0 if call["include_background"].item() else 1
    for image in range(len(scores)):
        boxes: list[Box] = []
        for (y, x, h, w), (dy, dx, dh, dw, *_) in zip(anchors, deltas[image], strict=True):
            middle_y, middle_x = y + h * dy / by_y, x + w * dx / by_x
            half_h, half_w = h * math.exp(dh / by_h) / 2, w * math.exp(dw / by_w) / 2
            boxes.append((middle_y - half_h, middle_x - half_w, middle_y + half_h, middle_x + half_w))
        found = []
        threshold, limit = call["iou_threshold"].item(), call["score_threshold"].item()
        if regular:
            for kind in range(1, scores.shape[2]):
                able = [a for a in range(len(boxes)) if scores[image, a, kind] > limit]
                pairs = [(scores[image, a, kind], boxes[a]) for a in able]
                kept = hard_nms(pairs, threshold, call.integer("max_detections_per_class"))
                found += [(scores[image, able[i], kind], able[i], kind) for i in kept]
            found = sorted(found, key=lambda row: -row[0])[:slots]
        else:
            able = [a for a in range(len(boxes)) if max(scores[image, a, 1:]) > limit]
            pairs = [(max(scores[image, a, 1:]), boxes[a]) for a in able]
            for i in hard_nms(pairs, threshold, slots):
                ranked = sorted(((s, able[i], k) for k, s in enumerate(scores[image, able[i]]) if k), reverse=True)
                found += ranked[:classes]
        results["num_detections"][image] = len(found)
        for slot, (score, anchor, kind) in enumerate(found):
            results["scores_out"][image, slot] = score
            results["boxes"][image, slot] = boxes[anchor]
            results["classes"][image, slot] = kind - label
    return results


# --- keypoints --------------------------------------------------------------------------------------------------------


def keypoint(heat: list[list[Fraction]], least: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """Refined column, row and score of one heatmap, in rational numbers."""
    size = len(heat)
    best, row, column = max((heat[r][c], -r, -c) for r in range(size) for c in range(size))
    row, column = -row, -column

    def at(r: int, c: int) -> Fraction:
        r, c = (1 if i < 0 else size - 2 if i == size else i for i in (r, c))
        return heat[r][c]

    up, down, left, right = at(row - 1, column), at(row + 1, column), at(row, column - 1), at(row, column + 1)
    a, d = left - 2 * best + right, up - 2 * best + down
    corners = at(row + 1, column + 1) - at(row + 1, column - 1) - at(row - 1, column + 1) + at(row - 1, column - 1)
    b = corners / 4
    p, q = (left - right) / 2, (up - down) / 2
    determinant = a * d - b * b
    x = y = Fraction(0)
    if abs(determinant) >= least + least * a * d:
        x, y = (p * d - b * q) / determinant, (a * q - b * p) / determinant
        longest = max(abs(x), abs(y))
        if longest > Fraction(3, 2):
            x, y = x * Fraction(3, 2) / longest, y * Fraction(3, 2) / longest
    score = best - p * x - q * y + (a * x * x + 2 * b * x * y + d * y * y) / 2
    return column + x, row + y, score


def heatmap_max_keypoint(call: Call) -> dict[str, Array]:
    """Each heatmap by itself."""
    image, boxes = pixels(call, "heatmap"), real(call, "boxes")
    count, size, _, points = image.shape
    least = Fraction(1, 1000 if call["heatmap"].value.dtype == np.float16 else 100_000)
    results = {"scores": np.zeros((count, points)), "keypoints": np.zeros((count, points, 2))}
    for n, k in np.ndindex(count, points):
        heat = [[Fraction(float(x)) for x in row] for row in image[n, :, :, k]]
        column, row, results["scores"][n, k] = keypoint(heat, least)
        x1, y1, x2, y2 = boxes[n]
        results["keypoints"][n, k] = (
            float(column + Fraction(1, 2)) / size * (x2 - x1) + x1,
            float(row + Fraction(1, 2)) / size * (y2 - y1) + y1,
        )
    return results
