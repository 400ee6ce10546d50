"""Networks that classify pictures, as models."""

from __future__ import annotations

from mlts.nets import plan
from mlts.nets.building import build
from mlts.nets.layers import Layers
from nnhal.model import Model


def mobilenet_v1(weights: Layers, width: float, size: int) -> Model:
    """MobileNetV1: [1, size, size, 3] float32 in -1..1 to [1, classes] probabilities.

    Args:
        weights: by name, as `layers.of_mobilenet_v1` or `seeding.seeded` gives them.
        width: factor of the numbers of channels.
        size: edge of the square picture, in pixels.

    Raises:
        UsageError: the picture is too small, or the weights are of another network.
    """
    return build(plan.v1(width), weights, size)


def mobilenet_v2(weights: Layers, width: float, size: int, *, symmetric: bool = False) -> Model:
    """MobileNetV2; see `mobilenet_v1`.

    Args:
        weights: as `layers.of_mobilenet_v2` or `seeding.seeded` gives them.
        width: factor of the numbers of channels.
        size: edge of the square picture, in pixels.
        symmetric: padding as torchvision's weights need it; else SAME.
    """
    return build(plan.v2(width), weights, size, symmetric=symmetric)


def efficientnet_lite0(weights: Layers, size: int = 224) -> Model:
    """EfficientNet-Lite0; see `mobilenet_v1`."""
    return build(plan.lite0(), weights, size)
