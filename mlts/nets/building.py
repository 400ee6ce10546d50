"""Plans and layers become models: NHWC, activations fused, batch norm folded already."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from importers.assembling import FLOAT32, INT32, Assembly, Shape
from mlts.nets.layers import Layer, Layers
from mlts.nets.plan import CLASSIFIER, PICTURE_CHANNELS, Convolution, Plan
from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.types import FusedActivation, OperationType, PaddingScheme


def build(plan: Plan, layers: Layers, size: int, *, symmetric: bool = False) -> Model:
    """A network as a model: [1, size, size, 3] float32 to [1, classes] probabilities.

    Args:
        plan: its convolutions.
        layers: by name of the convolution, and the classifier.
        size: edge of the square picture, in pixels.
        symmetric: a convolution with a stride is padded alike on both sides, as PyTorch does it; else as SAME says,
            which pads an even size at its end alone.

    Raises:
        UsageError: the picture is too small, or a layer is missing.
    """
    if size < 32:
        raise UsageError(f"pictures of {size} pixels vanish in the network; take 32 or more")
    net = _Net(symmetric)
    picture = net.assembly.input(FLOAT32, (1, size, size, PICTURE_CHANNELS))
    given: dict[str, int] = {}
    last = picture
    for one in plan.convolutions:
        last = net.convolution(last, one, _layer(layers, one.name))
        if one.joins:
            last = net.sum(given[one.joins], last)
        given[one.name] = last
    return net.assembly.finish([net.classify(last, _layer(layers, CLASSIFIER), dense=plan.dense)])


def _layer(layers: Mapping[str, Layer], name: str) -> Layer:
    if name not in layers:
        raise UsageError(f"there are no weights for {name}: they are of another network")
    return layers[name]


class _Net:
    """A model under way."""

    def __init__(self, symmetric: bool) -> None:
        self.assembly = Assembly()
        self._symmetric = symmetric

    def convolution(self, image: int, one: Convolution, layer: Layer) -> int:
        """A CONV_2D or DEPTHWISE_CONV_2D with its activation."""
        make = self.assembly
        side = make.what(image).dimensions[1]
        around = one.window // 2
        # With a stride of 1 SAME is symmetric, and says so in every driver's own words.
        explicit = self._symmetric and one.stride > 1
        if explicit:
            size = (side + 2 * around - one.window) // one.stride + 1
            padding = [make.int32(around)] * 4
        else:
            size = -(-side // one.stride)
            padding = [make.int32(PaddingScheme.SAME)]
        multiplier = [make.int32(1)] if one.depthwise else []
        activation = make.int32(FusedActivation.RELU6 if one.relu6 else FusedActivation.NONE)
        result = make.temporary(FLOAT32, (1, size, size, one.outputs))
        weights = [make.constant(FLOAT32, layer.filter), make.constant(FLOAT32, layer.bias)]
        strides = [make.int32(one.stride)] * 2
        code = OperationType.DEPTHWISE_CONV_2D if one.depthwise else OperationType.CONV_2D
        make.add(code, [image, *weights, *padding, *strides, *multiplier, activation], [result])
        return result

    def sum(self, first: int, second: int) -> int:
        """An ADD of two images."""
        make = self.assembly
        result = make.temporary(FLOAT32, make.what(first).dimensions)
        make.add(OperationType.ADD, [first, second, make.int32(FusedActivation.NONE)], [result])
        return result

    def classify(self, image: int, layer: Layer, *, dense: bool) -> int:
        """Mean over the picture, classifier, and SOFTMAX."""
        make = self.assembly
        _, height, width, features = make.what(image).dimensions
        mean = make.temporary(FLOAT32, (1, 1, 1, features))
        valid, one, none = make.int32(PaddingScheme.VALID), make.int32(1), make.int32(FusedActivation.NONE)
        window = [make.int32(width), make.int32(height)]
        make.add(OperationType.AVERAGE_POOL_2D, [image, valid, one, one, *window, none], [mean])
        weights = [make.constant(FLOAT32, layer.filter), make.constant(FLOAT32, layer.bias)]
        classes = len(layer.bias)
        if dense:
            logits = make.temporary(FLOAT32, (1, classes))
            row = self._row(mean, (1, features))
            make.add(OperationType.FULLY_CONNECTED, [row, *weights, none], [logits])
        else:
            spread = make.temporary(FLOAT32, (1, 1, 1, classes))
            make.add(OperationType.CONV_2D, [mean, *weights, valid, one, one, none], [spread])
            logits = self._row(spread, (1, classes))
        result = make.temporary(FLOAT32, (1, classes))
        make.add(OperationType.SOFTMAX, [logits, make.float32(1.0)], [result])
        return result

    def _row(self, tensor: int, shape: Shape) -> int:
        make = self.assembly
        result = make.temporary(FLOAT32, shape)
        make.add(OperationType.RESHAPE, [tensor, make.constant(INT32, np.array(shape))], [result])
        return result
