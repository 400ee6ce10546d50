"""Convolutions and pooling: images stay with their channels first, weights are turned at import."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from importers.assembling import Kind, Shape
from importers.onnx_file.elementwise import Translate
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.work import Tensor, Work
from nnhal.model import ChannelQuant
from nnhal.types import OperationType
from opset.definition import F32, I32, Q8, Q8CH, Q8S

MOST_GROUPS = 64  # convolutions that one dilated convolution in groups is divided into


@dataclass(frozen=True)
class Window:
    """How a window slides along height and width.

    Attributes:
        head: elements that are added, or cropped, before the first row and column.
        tail: the same behind the last ones.
    """

    size: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    head: tuple[int, int]
    tail: tuple[int, int]

    @property
    def reach(self) -> tuple[int, int]:
        """Elements from the first to the last one of a window."""
        rows, columns = ((s - 1) * d + 1 for s, d in zip(self.size, self.dilations, strict=True))
        return rows, columns

    @property
    def padded(self) -> bool:
        """Whether it leaves the image."""
        return any(self.head) or any(self.tail)


def _pair(values: Sequence[int] | None, default: int, planar: bool, what: str) -> tuple[int, int]:
    """The numbers of an attribute for height and width; of one dimension they are those of the width."""
    if values is None:
        return default, default
    if len(values) != (1 if planar else 2):
        raise Refusal(f"{what} has {len(values)} numbers")
    return (1 if what != "pads" else 0, values[0]) if planar else (values[0], values[1])


def image(tensor: Tensor) -> tuple[Shape, bool]:
    """The shape of a tensor as an image [batch, channels, height, width], and whether it has one dimension only.

    Raises:
        Refusal: it has three dimensions.
    """
    shape = tensor.shape
    if len(shape) == 3:
        return (shape[0], shape[1], 1, shape[2]), True
    if len(shape) != 4:
        raise Refusal(f"an input of rank {len(shape)}: operations know images of one and two dimensions")
    return shape, False


def window_of(node: Node, size: tuple[int, int], lengths: tuple[int, int], planar: bool) -> Window:
    """The window that a node's attributes describe.

    Args:
        node: with strides, dilations, pads, auto_pad.
        size: of the window.
        lengths: height and width of the image; `auto_pad` asks for them.
        planar: the attributes speak of the width alone.
    """
    strides = _pair(node.whole_list("strides"), 1, planar, "strides")
    dilations = _pair(node.whole_list("dilations"), 1, planar, "dilations")
    if min(*size, *strides, *dilations) < 1:
        raise Refusal("a size, stride or dilation is less than 1")
    scheme = node.text("auto_pad", "NOTSET")
    if scheme in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
                  for n, s, k, d in zip(lengths, strides, size, dilations, strict=True)]  # fmt: skip
        small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
        head, tail = (small, large) if scheme == "SAME_UPPER" else (large, small)
        return Window(size, strides, dilations, (head[0], head[1]), (tail[0], tail[1]))
    pads = node.whole_list("pads") if scheme == "NOTSET" else None
    if scheme not in ("NOTSET", "VALID"):
        raise Refusal(f"auto_pad is {scheme}")
    half = len(pads) // 2 if pads else 0
    head = _pair(pads[:half] if pads else None, 0, planar, "pads")
    tail = _pair(pads[half:] if pads else None, 0, planar, "pads")
    return Window(size, strides, dilations, head, tail)


def _parameters(work: Work, window: Window) -> tuple[int, ...]:
    """Explicit paddings and strides in the order of all operations with windows: columns before rows."""
    (top, left), (bottom, right) = window.head, window.tail
    numbers = (left, right, top, bottom, window.strides[1], window.strides[0])
    return tuple(work.whole(number) for number in numbers)


# --- weights ----------------------------------------------------------------------------------------------------------


def weights_as(work: Work, tensor: Tensor, like: Kind, shape: Shape, axes: Sequence[int], channels: int) -> int:
    """A filter as an operand: its dimensions in another order, stored as the image is.

    Unsigned and signed bytes that stand for the same numbers differ by 128 in value and zero point, so a constant
    filter takes the image's form, or that of signed bytes with a scale for each channel where it has such.

    Args:
        work: the graph.
        tensor: the filter in the file's order.
        like: of the image.
        shape: the filter's, with four dimensions.
        axes: where each dimension of the result comes from.
        channels: the dimension of the result along which scales lie.
    """
    if like.type not in (Q8, Q8S):
        if tensor.value is None:
            return work.transposed(work.operand(tensor, shape), axes)
        return work.constant(work.kind(tensor), tensor.value.reshape(shape).transpose(axes), tensor.name)
    quantization = work.quantization.get(tensor.name)
    if tensor.value is None or quantization is None:
        raise Refusal("a quantised filter that is not constant")
    value = tensor.value.reshape(shape).transpose(axes).astype(np.int64)
    zeros = np.array(quantization.zero_points, np.int64)
    if tensor.dtype == np.uint8:
        value, zeros = value - 128, zeros - 128
    if quantization.axis is None and zeros[0] != 0:
        shift = 128 if like.type == Q8 else 0
        return work.constant(Kind(like.type, quantization.scales[0], int(zeros[0]) + shift), value + shift)
    if zeros.any():
        raise Refusal("a filter with several scales, and zero points other than 0")
    if quantization.axis is None and like.type == Q8S:
        return work.constant(Kind(Q8S, quantization.scales[0], 0), value)
    count = value.shape[channels]
    scales = quantization.scales * (count if quantization.axis is None else 1)
    if len(scales) != count:
        raise Refusal(f"a filter of {count} channels has {len(scales)} scales")
    return work.constant(Kind(Q8CH, channel=ChannelQuant(channels, scales)), value)


def bias_as(work: Work, tensor: Tensor | None, like: Kind, filters: int, count: int) -> int:
    """A bias as an operand; zeros where there is none. A quantised one is in the unit of the products.

    Args:
        work: the graph.
        tensor: the bias, or None.
        like: of the image.
        filters: operand of the filter.
        count: of output channels.
    """
    if tensor is not None and math.prod(tensor.shape) != count:
        raise Refusal(f"a bias of shape {list(tensor.shape)} beside {count} channels")
    if like.type not in (Q8, Q8S):
        if tensor is None:
            return work.constant(Kind(like.type), np.zeros(count))
        return work.operand(tensor, (count,))
    weights = work.kind_of(filters)
    scales = np.float32(like.scale) * np.array(weights.channel.scales if weights.channel else [weights.scale],
                                               np.float32)  # fmt: skip
    kind = Kind(I32, 0.0 if weights.channel else float(scales[0]))
    if tensor is None:
        return work.constant(kind, np.zeros(count, np.int32))
    if tensor.value is None:
        raise Refusal("a quantised bias that is not constant")
    value = tensor.value.reshape(count)
    given = work.quantization.get(tensor.name)
    if tensor.dtype == np.int32 and given is not None and not np.allclose(given.scales, scales, rtol=1e-5, atol=0):
        raise Refusal("the bias is not in the unit of the products")
    if tensor.dtype.kind == "f":
        value = np.rint(value.astype(np.float64) / scales)
    return work.constant(kind, np.asarray(value, np.int64), tensor.name)


# --- convolutions -----------------------------------------------------------------------------------------------------


def convolution(work: Work, node: Node) -> None:
    """Conv: CONV_2D, DEPTHWISE_CONV_2D or GROUPED_CONV_2D."""
    tensor, filters, bias = work.input(node, 0), work.input(node, 1), work.optional(node, 2)
    shape, planar = image(tensor)
    if len(filters.shape) != len(tensor.shape):
        raise Refusal(f"a filter of rank {len(filters.shape)} for an input of rank {len(tensor.shape)}")
    turned = (*filters.shape[:2], 1, filters.shape[2]) if planar else filters.shape
    groups = node.whole("group", 1)
    count = turned[0]
    if groups < 1 or turned[1] * groups != shape[1] or count % groups:
        raise Refusal(f"{groups} groups of {turned[1]} channels, of {shape[1]} to {count}")
    window = window_of(node, (turned[2], turned[3]), (shape[2], shape[3]), planar)
    x = work.operand(tensor, shape)
    like = work.kind_of(x)
    kind = work.result_kind(node, x)
    if turned[1] == 1 and groups > 1:
        w = weights_as(work, filters, like, turned, (1, 2, 3, 0), 3)
        parameters = (*_parameters(work, window), work.whole(count // groups), work.activation(node))
        code = OperationType.DEPTHWISE_CONV_2D
    elif groups == 1 or window.dilations == (1, 1):
        w = weights_as(work, filters, like, turned, (0, 2, 3, 1), 0)
        grouped = (work.whole(groups),) if groups > 1 else ()
        parameters = (*_parameters(work, window), *grouped, work.activation(node))
        code = OperationType.GROUPED_CONV_2D if groups > 1 else OperationType.CONV_2D
    else:
        _divided(work, node, window, (tensor, filters, bias), groups)
        return
    b = bias_as(work, bias, like, w, count)
    spread = (work.whole(window.dilations[1]), work.whole(window.dilations[0]))
    dilated = () if code == OperationType.GROUPED_CONV_2D else spread
    result = work.emit(code, (x, w, b, *parameters, work.flag(True), *dilated), kind)
    give_image(work, node, result, planar, tensor)


def give_image(work: Work, node: Node, operand: int, planar: bool, tensor: Tensor) -> None:
    """Makes an image the result of a node whose input has one or two dimensions of space."""
    batch, channels, height, width = work.dimensions(operand)
    work.give(node, operand, (batch, channels, width) if planar else (batch, channels, height, width), tensor.dtype)


def _divided(
    work: Work, node: Node, window: Window, tensors: tuple[Tensor, Tensor, Tensor | None], groups: int
) -> None:
    """A dilated convolution in groups, which no operation is: one convolution for each group."""
    tensor, filters, bias = tensors
    shape, planar = image(tensor)
    if groups > MOST_GROUPS or filters.value is None or (bias is not None and bias.value is None):
        raise Refusal(f"{groups} groups with dilations: GROUPED_CONV_2D has none")
    x = work.operand(tensor, shape)
    like = work.kind_of(x)
    if like.type != F32:
        raise Refusal("quantised groups with dilations: GROUPED_CONV_2D has none")
    inputs = work.emit_all(OperationType.SPLIT, (x, work.whole(1), work.whole(groups)), [like] * groups)
    kernels = np.split(filters.value.reshape(filters.shape[0], filters.shape[1], *window.size), groups)
    given = None if bias is None else bias.value
    offsets = np.split(np.zeros(filters.shape[0]) if given is None else given, groups)
    rest = (*_parameters(work, window), work.activation(node), work.flag(True),
            work.whole(window.dilations[1]), work.whole(window.dilations[0]))  # fmt: skip
    parts = [
        work.emit(OperationType.CONV_2D, (part, work.constant(like, w.transpose(0, 2, 3, 1)), work.constant(like, b),
                                          *rest))
        for part, w, b in zip(inputs, kernels, offsets, strict=True)
    ]  # fmt: skip
    give_image(work, node, work.emit(OperationType.CONCATENATION, (*parts, work.whole(1))), planar, tensor)


def transposed_convolution(work: Work, node: Node) -> None:
    """ConvTranspose: TRANSPOSE_CONV_2D. Dilations become zeros between the weights."""
    tensor, filters, bias = work.input(node, 0), work.input(node, 1), work.optional(node, 2)
    shape, planar = image(tensor)
    if len(filters.shape) != len(tensor.shape):
        raise Refusal(f"a filter of rank {len(filters.shape)} for an input of rank {len(tensor.shape)}")
    if node.whole("group", 1) != 1:
        raise Refusal("groups: TRANSPOSE_CONV_2D has none")
    turned = (*filters.shape[:2], 1, filters.shape[2]) if planar else filters.shape
    if turned[0] != shape[1]:
        raise Refusal(f"a filter of {turned[0]} channels for an input of {shape[1]}")
    window = _crops(node, (turned[2], turned[3]), (shape[2], shape[3]), planar)
    if window.dilations != (1, 1):
        filters, turned = _spaced(work, filters, turned, window), (*turned[:2], *window.reach)
    x = work.operand(tensor, shape)
    like = work.kind_of(x)
    w = weights_as(work, filters, like, turned, (1, 2, 3, 0), 0)
    b = bias_as(work, bias, like, w, turned[1])
    inputs = (x, w, b, *_parameters(work, window), work.activation(node), work.flag(True))
    result = work.emit(OperationType.TRANSPOSE_CONV_2D, inputs, work.result_kind(node, x))
    give_image(work, node, result, planar, tensor)


def _spaced(work: Work, filters: Tensor, turned: Shape, window: Window) -> Tensor:
    quantization = work.quantization.get(filters.name)
    if filters.value is None or quantization is not None:
        raise Refusal("dilations beside a filter that is quantised or not constant")
    shape = (*turned[:2], *window.reach)
    work.budget.spend(math.prod(shape))
    value = np.zeros(shape, filters.dtype)
    value[:, :, :: window.dilations[0], :: window.dilations[1]] = filters.value.reshape(turned)
    return Tensor(filters.name, filters.dtype, shape, value)


def _crops(node: Node, size: tuple[int, int], lengths: tuple[int, int], planar: bool) -> Window:
    """What ConvTranspose crops. Output padding takes from what is cropped at the end."""
    scheme = node.text("auto_pad", "NOTSET")
    bare = {name: value for name, value in node.attributes.items() if name != "auto_pad"}
    window = window_of(Node(node.number, node.operator, "", (), (), bare), size, lengths, planar)
    extra = _pair(node.whole_list("output_padding"), 0, planar, "pads")
    wanted = node.whole_list("output_shape")
    # Some files give the batch and the channels too.
    sizes = None if wanted is None else _pair(wanted[-1 if planar else -2 :], 1, planar, "output_shape")
    ends = []
    for axis in range(2):
        full = (lengths[axis] - 1) * window.strides[axis] + window.reach[axis] + extra[axis]
        head, tail = window.head[axis], window.tail[axis] - extra[axis]
        due = None if sizes is None else sizes[axis]
        if due is None and scheme in ("SAME_UPPER", "SAME_LOWER"):
            due = lengths[axis] * window.strides[axis]
        if due is not None:
            total = full - due
            head = total // 2 if scheme == "SAME_UPPER" else total - total // 2
            tail = total - head - extra[axis]
        ends.append((head, tail))
    if min(min(pair) for pair in ends) < 0:
        raise Refusal("the output has places that no input reaches: TRANSPOSE_CONV_2D crops only")
    return Window(window.size, window.strides, window.dilations, (ends[0][0], ends[1][0]), (ends[0][1], ends[1][1]))


CONVOLUTIONS: Mapping[str, Translate] = {"Conv": convolution, "ConvTranspose": transposed_convolution}
