"""Networks with drawn weights that behave like trained ones: no activation vanishes, and few reach ReLU6's end."""

from __future__ import annotations

import numpy as np

from mlts.nets import plan
from mlts.nets.layers import Layer, Norm, filter_shape, fold
from mlts.nets.plan import CLASSIFIER, Convolution, Plan
from mlts.pictures import smooth
from nnhal.errors import UsageError
from nnhal.types import Array

PLANS = {"mobilenet_v1": plan.v1, "mobilenet_v2": plan.v2}
CLASSES = 1001  # of the public models: ImageNet's and the background
PICTURES, EDGE = 8, 96  # on which statistics are taken
EPSILON = 1e-3
# Mean and deviation of what a batch norm adds. Mostly within ReLU6: else each layer would enlarge rounding errors more
# than what pictures differ in, and correct drivers would differ in the class that comes first.
BETA = (2.0, 0.3)
LOGITS = 2.0  # deviation over classes of what hangs on the picture, and of what does not
SIX = 6.0


def seeded(architecture: str, width: float, seed: int) -> dict[str, Layer]:
    """Layers of a network: He-scaled filters, batch norm statistics of a few smooth pictures, folded.

    Args:
        architecture: "mobilenet_v1" or "mobilenet_v2".
        width: factor of the numbers of channels.
        seed: for the same weights again.

    Raises:
        UsageError: the architecture is unknown.
    """
    if architecture not in PLANS:
        raise UsageError(f"there are no seeded weights for {architecture!r}; choose {', '.join(PLANS)}")
    network: Plan = PLANS[architecture](width)
    source = np.random.default_rng(seed)
    images = np.stack(list(smooth(EDGE, EDGE, PICTURES, seed))).astype(np.float32) / 128 - 1
    layers: dict[str, Layer] = {}
    given: dict[str, Array] = {}
    for one in network.convolutions:
        layers[one.name] = _drawn(one, images, source)
        images = convolve(images, layers[one.name], one)
        if one.joins:
            images = images + given[one.joins]
        given[one.name] = images
    layers[CLASSIFIER] = _classifier(images.mean(axis=(1, 2)), source)
    return layers


def _drawn(one: Convolution, images: Array, source: np.random.Generator) -> Layer:
    """A convolution whose results have a drawn mean and deviation in each channel."""
    shape = filter_shape(one)
    terms = one.window**2 * (1 if one.depthwise else one.inputs)
    filters = source.standard_normal(shape).astype(np.float32) * np.float32(np.sqrt(2 / terms))
    raw = convolve(images, Layer(filters, np.zeros(one.outputs, np.float32)), one, activate=False)
    mean, variance = raw.mean(axis=(0, 1, 2)), raw.var(axis=(0, 1, 2))
    gamma = source.uniform(0.6, 1.4, one.outputs)
    beta = source.normal(*BETA, one.outputs) if one.relu6 else np.zeros(one.outputs)
    return fold(filters, Norm(gamma, beta, mean, variance, EPSILON), depthwise=one.depthwise)


def _classifier(features: Array, source: np.random.Generator) -> Layer:
    """Logits of which a part is the same for all pictures; the mean of the features takes no part in the other."""
    weights = source.standard_normal((CLASSES, features.shape[1]))
    centred = features.astype(np.float64) - features.mean(axis=0)
    weights *= LOGITS / (centred @ weights.T).std()
    bias = LOGITS * source.standard_normal(CLASSES) - weights @ features.mean(axis=0)
    return Layer(weights.astype(np.float32)[:, None, None, :], bias.astype(np.float32))


def convolve(images: Array, layer: Layer, one: Convolution, *, activate: bool = True) -> Array:
    """A convolution with SAME padding, tap by tap.

    Args:
        images: [count, height, width, inputs], float32, square.
        layer: filter and bias.
        one: window, stride and activation.
        activate: with the activation.
    """
    side = images.shape[1]
    size = -(-side // one.stride)
    total = max(0, (size - 1) * one.stride + one.window - side)
    around = (total // 2, total - total // 2)
    padded = np.pad(images, ((0, 0), around, around, (0, 0)))
    reach = (size - 1) * one.stride + 1
    result = np.zeros((len(images), size, size, one.outputs), np.float32)
    for row in range(one.window):
        for column in range(one.window):
            covered = padded[:, row : row + reach : one.stride, column : column + reach : one.stride]
            taps = layer.filter[:, row, column]
            result += covered * taps[0] if one.depthwise else covered @ taps.T
    result += layer.bias
    return np.clip(result, 0, SIX) if one.relu6 and activate else result
