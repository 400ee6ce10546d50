"""Operators that add borders to tensors, and those that trade space for channels."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from importers.onnx_file.elementwise import Translate
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.moving import axis_of, sliced
from importers.onnx_file.work import Work
from nnhal.types import OperationType, info
from opset.definition import F16, F32, Q8, Q8S

REFLECT = 0  # mode of MIRROR_PAD


def pads_of(work: Work, node: Node, rank: int) -> list[tuple[int, int]]:
    """What a Pad adds before and behind each dimension; where negative, what it takes away."""
    pads = node.whole_list("pads") if node.version < 11 else work.whole_list(node, 1, "pads")
    axes = work.whole_list(node, 3, "axes") if node.version >= 18 else None
    places = list(range(rank)) if axes is None else [axis_of(axis, rank) for axis in axes]
    if pads is None or len(pads) != 2 * len(places):
        raise Refusal(f"pads {pads} for {len(places)} dimensions")
    pairs = [(0, 0)] * rank
    for n, axis in enumerate(places):
        pairs[axis] = (pads[n], pads[n + len(places)])
    return pairs


def _pad(work: Work, node: Node) -> None:
    """PAD, PAD_V2 for values other than 0, MIRROR_PAD for reflections, SLICE for what is taken away."""
    tensor = work.input(node, 0)
    pairs = pads_of(work, node, len(tensor.shape))
    mode = node.text("mode", "constant")
    shape = tuple(size + sum(pair) for size, pair in zip(tensor.shape, pairs, strict=True))
    if not shape or min(shape) < 1:
        raise Refusal(f"the result has shape {list(shape)}")
    x = work.operand(tensor)
    kind = work.result_kind(node, x)
    if any(min(pair) < 0 for pair in pairs):
        begin = [max(0, -head) for head, _ in pairs]
        sizes = [n + min(head, 0) + min(tail, 0) for n, (head, tail) in zip(tensor.shape, pairs, strict=True)]
        x = sliced(work, x, begin, sizes)
    paddings = work.whole_tensor(np.array([[max(side, 0) for side in pair] for pair in pairs]))
    if mode == "reflect":
        result = work.emit(OperationType.MIRROR_PAD, (x, paddings, work.whole(REFLECT)), kind)
        work.give(node, result, shape, tensor.dtype)
        return
    if mode != "constant":
        raise Refusal(f"mode {mode}: MIRROR_PAD reflects only")
    value = node.real("value", 0.0)
    if node.version >= 11 and node.has_input(2):
        given = work.known(node, 2, "the value")
        value = float(given.reshape(-1)[0]) if given.size == 1 else math.nan
    if kind.type in (Q8, Q8S):
        # A value beside quantised tensors that stand for real ones is real; otherwise it is a stored one.
        stored = round(value / kind.scale) + kind.zero_point if node.rewired else int(value)
        limits = info(kind.type).zero_points or (0, 0)
        stored = min(max(stored, limits[0]), limits[1])
        result = work.emit(OperationType.PAD_V2, (x, paddings, work.whole(stored)), kind)
    elif value == 0.0 and kind.type in (F32, F16):
        result = work.emit(OperationType.PAD, (x, paddings), kind)
    else:
        result = work.emit(OperationType.PAD_V2, (x, paddings, work.real(x, value)), kind)
    work.give(node, result, shape, tensor.dtype)


def _depth_to_space(work: Work, node: Node) -> None:
    """DEPTH_TO_SPACE counts channels last within a block (DCR); for CRD they are put in that order first."""
    tensor = work.input(node, 0)
    block = node.whole("blocksize", 0)
    if len(tensor.shape) != 4 or block < 1 or tensor.shape[1] % block**2:
        raise Refusal(f"blocks of {block} of a tensor of shape {list(tensor.shape)}")
    batch, channels, height, width = tensor.shape
    x = work.operand(tensor)
    kind = work.result_kind(node, x)
    if node.text("mode", "DCR") == "CRD":
        apart = work.reshape(x, (batch, channels // block**2, block**2, height * width))
        x = work.reshape(work.transposed(apart, (0, 2, 1, 3)), tensor.shape)
    moved = work.emit(OperationType.DEPTH_TO_SPACE, (x, work.whole(block), work.flag(True)), kind)
    work.give(node, moved, (batch, channels // block**2, height * block, width * block), tensor.dtype)


def _space_to_depth(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    if node.text("mode", "DCR") != "DCR":
        raise Refusal(f"mode {node.text('mode', 'DCR')}")
    x = work.operand(tensor)
    inputs = (x, work.whole(node.whole("blocksize", 0)), work.flag(True))
    moved = work.emit(OperationType.SPACE_TO_DEPTH, inputs, work.result_kind(node, x))
    work.give(node, moved, work.dimensions(moved), tensor.dtype)


BORDERS: Mapping[str, Translate] = {
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
