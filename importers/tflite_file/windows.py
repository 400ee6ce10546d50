"""Operators that slide a window over an image: convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from importers.assembling import Kind
from importers.tflite_file.kinds import InexpressibleError
from importers.tflite_file.node import Node
from nnhal.types import OperandType, OperationType, PaddingScheme
from opset.quantization import float32

Translator = Callable[[Node], None]
SCHEMES: Mapping[int, PaddingScheme] = {0: PaddingScheme.SAME, 1: PaddingScheme.VALID}
IMAGE_RANK = 4
DEPTH = 3  # dimension of an image, and of a filter of CONV_2D
FLOATS = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)


def bias_of(node: Node, place: int, image: int, weights: int, channels: int) -> int:
    """The operand of a bias; zeros where the operator has none.

    An INT32 bias gets the scale that the contract demands and .tflite takes for granted: that of the image times that
    of the weights, and none beside scales per channel.
    """
    kind = node.kind(image)
    if kind.type not in FLOATS:
        kind = Kind(OperandType.TENSOR_INT32, float32(node.kind(image).scale * node.kind(weights).scale))
    if not node.has(place):
        return node.filled(0, kind, (channels,))
    value = node.value(place)
    if value is not None:
        return node.build.constant(kind, value.reshape(-1))
    return node.operand(place)


def filter_of(node: Node, place: int, image: int) -> int:
    """The operand of a filter.

    Raises:
        InexpressibleError: it has steps with a zero point that .tflite does not look at.
    """
    weights = node.weights(place, image)
    kind = node.kind(weights)
    if kind.type == OperandType.TENSOR_QUANT8_ASYMM_SIGNED and kind.zero_point:
        raise InexpressibleError(f"its weights of type INT8 have the zero point {kind.zero_point}")
    if len(node.dims(weights)) != IMAGE_RANK or len(node.shape(image)) != IMAGE_RANK:
        raise InexpressibleError("its image and its filter do not both have rank 4")
    return weights


def _sliding(node: Node, options: Mapping[str, float]) -> list[int]:
    """Padding scheme and strides as parameters."""
    return [padding_of(node, options), node.whole(options["stride_w"]), node.whole(options["stride_h"])]


def padding_of(node: Node, options: Mapping[str, float]) -> int:
    """The padding scheme as a parameter.

    Raises:
        InexpressibleError: there is no such scheme.
    """
    if options["padding"] not in SCHEMES:
        raise InexpressibleError(f"the padding {int(options['padding'])} is neither SAME nor VALID")
    return node.whole(SCHEMES[int(options["padding"])])


def _dilation(node: Node, options: Mapping[str, float]) -> list[int]:
    """Layout and dilations, where there are any."""
    dilations = [options["dilation_w"], options["dilation_h"]]
    return [] if dilations == [1, 1] else [node.flag(False), *(node.whole(value) for value in dilations)]


def _convolution(node: Node) -> None:
    """CONV_2D; with a filter that is not as deep as the image GROUPED_CONV_2D."""
    options = node.options("Conv2DOptions")
    image, weights = node.operand(0), filter_of(node, 1, 0)
    depth, taken = node.dims(image)[DEPTH], node.dims(weights)[DEPTH]
    inputs = [image, weights, bias_of(node, 2, image, weights, node.dims(weights)[0]), *_sliding(node, options)]
    activation = node.activation(options["activation"])
    dilation = _dilation(node, options)
    if depth == taken or depth % taken:
        node.apply(OperationType.CONV_2D, [*inputs, activation, *dilation], node.result())
    elif dilation:
        raise InexpressibleError("it has groups and dilation")
    else:
        groups = node.whole(depth // taken)
        node.apply(OperationType.GROUPED_CONV_2D, [*inputs, groups, activation, node.flag(False)], node.result())


def _depthwise(node: Node) -> None:
    """DEPTHWISE_CONV_2D."""
    options = node.options("DepthwiseConv2DOptions")
    image, weights = node.operand(0), filter_of(node, 1, 0)
    channels = node.dims(weights)[DEPTH]
    inputs = [image, weights, bias_of(node, 2, image, weights, channels), *_sliding(node, options)]
    inputs += [node.whole(channels // node.dims(image)[DEPTH]), node.activation(options["activation"])]
    node.apply(OperationType.DEPTHWISE_CONV_2D, [*inputs, *_dilation(node, options)], node.result())


def _transposed(node: Node) -> None:
    """TRANSPOSE_CONV."""
    options = node.options("TransposeConvOptions")
    image, weights, result = node.operand(2), filter_of(node, 1, 2), node.result()
    bias = bias_of(node, 3, image, weights, node.dims(weights)[0])
    parameters = [node.row(node.dims(result)), *_sliding(node, options), node.activation(options["activation"])]
    inputs = [image, weights, bias, *parameters, node.flag(False)]
    node.apply(OperationType.TRANSPOSE_CONV_2D, inputs, result)


def _pool(code: OperationType) -> Translator:
    """AVERAGE_POOL_2D, MAX_POOL_2D and L2_POOL_2D."""

    def write(node: Node) -> None:
        options = node.options("Pool2DOptions")
        sizes = [node.whole(options[name]) for name in ("filter_w", "filter_h")]
        parameters = [*_sliding(node, options), *sizes, node.activation(options["activation"])]
        node.compute(code, node.operands(1), parameters)

    return write


def _fully_connected(node: Node) -> None:
    """FULLY_CONNECTED; its result may keep the dimensions of its input. With scales per channel it is CONV_2D."""
    options = node.options("FullyConnectedOptions")
    if options["weights_format"]:
        raise InexpressibleError("its weights are shuffled")
    given, weights, result = node.operand(0), node.weights(1, 0), node.result()
    if len(node.dims(weights)) != 2:
        raise InexpressibleError("its weights do not have rank 2")
    units, size = node.dims(weights)
    bias = bias_of(node, 2, given, weights, units)
    activation = node.activation(options["activation"])
    rows = math.prod(node.dims(given)) // size
    if node.kind(weights).channel is not None:
        _as_convolution(node, given, bias, activation, (rows, units, size))
        return
    if len(node.dims(given)) == 1:
        given = node.view(given, (rows, size))
    inputs = [given, weights, bias, activation]
    if node.dims(result) == (rows, units):
        node.apply(OperationType.FULLY_CONNECTED, inputs, result)
    else:
        node.reshaped(node.apply(OperationType.FULLY_CONNECTED, inputs, node.result_kind()), result)


def _as_convolution(node: Node, given: int, bias: int, activation: int, sizes: tuple[int, int, int]) -> None:
    """A dense layer as a convolution of images of one pixel, whose filter may have a scale per channel.

    Args:
        node: the operator.
        given: its input.
        bias: its bias.
        activation: its activation.
        sizes: rows of the input, units, and columns of the input.
    """
    rows, units, size = sizes
    kind, weights = node.kind(node.operand(1)), node.constant(1, "the weights with scales per channel")
    pixels = node.view(given, (rows, 1, 1, size))
    filters = node.build.constant(kind, weights.reshape(units, 1, 1, size))
    one, scheme = node.whole(1), node.whole(PaddingScheme.VALID)
    inputs = [pixels, filters, bias, scheme, one, one, activation]
    node.reshaped(node.apply(OperationType.CONV_2D, inputs, node.result_kind()))


def _batch_matmul(node: Node) -> None:
    """BATCH_MATMUL."""
    options = node.options("BatchMatMulOptions")
    flags = [node.flag(options["adj_x"]), node.flag(options["adj_y"])]
    node.compute(OperationType.BATCH_MATMUL, [node.operand(0), node.weights(1, 0)], flags)


TRANSLATORS: Mapping[str, Translator] = {
    "AVERAGE_POOL_2D": _pool(OperationType.AVERAGE_POOL_2D),
    "BATCH_MATMUL": _batch_matmul,
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _fully_connected,
    "L2_POOL_2D": _pool(OperationType.L2_POOL_2D),
    "MAX_POOL_2D": _pool(OperationType.MAX_POOL_2D),
    "TRANSPOSE_CONV": _transposed,
}
