"""Pooling of images, and what is pooled over all of an image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from importers.onnx_file.convolutions import Window, give_image, image, window_of
from importers.onnx_file.elementwise import Translate
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.work import Tensor, Work
from nnhal.types import OperationType


def _prepared(work: Work, node: Node) -> tuple[Tensor, int, Window, bool]:
    """The input of a pooling operator, its operand as an image, the window, and whether it has one dimension."""
    tensor = work.input(node, 0)
    shape, planar = image(tensor)
    sizes = node.whole_list("kernel_shape")
    if sizes is None or len(sizes) != (1 if planar else 2):
        raise Refusal("kernel_shape does not have a size for each dimension")
    size = (1, sizes[0]) if planar else (sizes[0], sizes[1])
    window = window_of(node, size, (shape[2], shape[3]), planar)
    if window.dilations != (1, 1):
        raise Refusal("dilations: pooling operations have none")
    if node.whole("ceil_mode", 0):
        window = _rounded_up(window, (shape[2], shape[3]))
    return tensor, work.operand(tensor, shape), window, planar


def _rounded_up(window: Window, lengths: tuple[int, int]) -> Window:
    """The window with padding for the places that ceil_mode adds; those that start behind the data do not count."""
    tails = []
    for axis in range(2):
        length, size, stride = lengths[axis], window.size[axis], window.strides[axis]
        head, tail = window.head[axis], window.tail[axis]
        places = -((size - length - head - tail) // stride) + 1
        if (places - 1) * stride >= length + head:
            places -= 1
        tails.append(max(tail, (places - 1) * stride + size - length - head))
    return replace(window, tail=(tails[0], tails[1]))


def _pooled(work: Work, node: Node, code: OperationType, x: int, window: Window) -> int:
    (top, left), (bottom, right) = window.head, window.tail
    numbers = (left, right, top, bottom, *reversed(window.strides), *reversed(window.size))
    parameters = (*(work.whole(number) for number in numbers), work.activation(node), work.flag(True))
    return work.emit(code, (x, *parameters), work.result_kind(node, x))


def _filled(work: Work, x: int, window: Window) -> tuple[int, Window]:
    """The image with its padding as zeros that count, and the window without."""
    if not window.padded:
        return x, window
    pads = [(0, 0), (0, 0), *zip(window.head, window.tail, strict=True)]
    return work.emit(OperationType.PAD, (x, work.whole_tensor(np.array(pads)))), replace(
        window, head=(0, 0), tail=(0, 0)
    )


def _max_pool(work: Work, node: Node) -> None:
    if len(node.outputs) > 1 and node.outputs[1]:
        raise Refusal("the places of the largest values are asked for")
    tensor, x, window, planar = _prepared(work, node)
    give_image(work, node, _pooled(work, node, OperationType.MAX_POOL_2D, x, window), planar, tensor)


def _average_pool(work: Work, node: Node) -> None:
    """AVERAGE_POOL_2D leaves padding out of its means; where it counts, the image is padded first."""
    tensor, x, window, planar = _prepared(work, node)
    if node.whole("count_include_pad", 0):
        if node.whole("ceil_mode", 0):
            raise Refusal("padding that counts together with ceil_mode")
        x, window = _filled(work, x, window)
    give_image(work, node, _pooled(work, node, OperationType.AVERAGE_POOL_2D, x, window), planar, tensor)


def _lp_pool(work: Work, node: Node) -> None:
    """The root of the sum of squares is that of their mean, which L2_POOL_2D gives, times that of their number."""
    if node.whole("p", 2) != 2:
        raise Refusal(f"p is {node.whole('p', 2)}: only L2_POOL_2D exists")
    tensor, x, window, planar = _prepared(work, node)
    if node.whole("ceil_mode", 0):
        raise Refusal("ceil_mode: L2_POOL_2D takes the mean of what lies in the image")
    x, window = _filled(work, x, window)
    mean = _pooled(work, node, OperationType.L2_POOL_2D, x, window)
    give_image(work, node, _times_root(work, mean, math.prod(window.size)), planar, tensor)


def _times_root(work: Work, x: int, count: int) -> int:
    return work.emit(OperationType.MUL, (x, work.reals(x, math.sqrt(count)), work.activation()))


def _whole_image(work: Work, node: Node) -> None:
    """Global pooling: a window as large as the image."""
    tensor = work.input(node, 0)
    if len(tensor.shape) < 3:
        raise Refusal(f"an input of rank {len(tensor.shape)}")
    batch, channels, *lengths = tensor.shape
    height, width = (1, lengths[0]) if len(lengths) == 1 else (lengths[0], math.prod(lengths[1:]))
    x = work.operand(tensor, (batch, channels, height, width))
    window = Window((height, width), (1, 1), (1, 1), (0, 0), (0, 0))
    code = {"GlobalAveragePool": OperationType.AVERAGE_POOL_2D, "GlobalMaxPool": OperationType.MAX_POOL_2D,
            "GlobalLpPool": OperationType.L2_POOL_2D}[node.operator]  # fmt: skip
    if code == OperationType.L2_POOL_2D and node.whole("p", 2) != 2:
        raise Refusal(f"p is {node.whole('p', 2)}: only L2_POOL_2D exists")
    pooled = _pooled(work, node, code, x, window)
    if code == OperationType.L2_POOL_2D:
        pooled = _times_root(work, pooled, height * width)
    work.give(node, pooled, (batch, channels, *(1 for _ in lengths)), tensor.dtype)


POOLS: Mapping[str, Translate] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _whole_image,
    "GlobalMaxPool": _whole_image,
    "GlobalLpPool": _whole_image,
}
