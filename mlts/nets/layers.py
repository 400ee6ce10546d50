"""Filters and biases of a network, batch norm folded in, and where each source of weights has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlts.nets.plan import CLASSIFIER, Convolution, Plan
from nnhal.errors import UsageError
from nnhal.types import Array

TORCHVISION_EPSILON = 1e-5
LITE0_EPSILON = 1e-3
TF = "MobilenetV1"


@dataclass(frozen=True)
class Layer:
    """What a convolution multiplies with and adds.

    Attributes:
        filter: [depth_out, height, width, depth_in]; depthwise [1, height, width, depth]; dense [units, features].
        bias: [depth_out].
    """

    filter: Array
    bias: Array


Layers = Mapping[str, Layer]


@dataclass(frozen=True)
class Norm:
    """Batch norm at inference: (x - mean) / sqrt(variance + epsilon) * gamma + beta, each of them [channels]."""

    gamma: Array
    beta: Array
    mean: Array
    variance: Array
    epsilon: float


def fold(filters: Array, norm: Norm, *, depthwise: bool) -> Layer:
    """A convolution without bias and the batch norm behind it as one layer, computed in float64.

    Args:
        filters: as in `Layer`.
        norm: one number for each channel that comes out.
        depthwise: the channel is the filter's last dimension, else its first.
    """
    factor = norm.gamma.astype(np.float64) / np.sqrt(norm.variance.astype(np.float64) + norm.epsilon)
    along = factor if depthwise else factor[:, None, None, None]
    bias = norm.beta.astype(np.float64) - norm.mean.astype(np.float64) * factor
    return Layer((filters.astype(np.float64) * along).astype(np.float32), bias.astype(np.float32))


def of_mobilenet_v1(constants: Mapping[str, Array], plan: Plan) -> dict[str, Layer]:
    """Layers out of the constants of TensorFlow's graph of MobileNetV1.

    Args:
        constants: filters [height, width, depth_in, depth_out], depthwise [height, width, depth, 1].
        plan: the network.

    Raises:
        UsageError: a constant is missing or has another shape.
    """
    layers = {}
    for one in plan.convolutions:
        base = f"{TF}/{one.name}"
        weights = _get(constants, f"{base}/{'depthwise_weights' if one.depthwise else 'weights'}", 4)
        filters = weights.transpose(3, 0, 1, 2)  # of a depthwise one, the multiplier of 1 comes to the front
        parts = [_get(constants, f"{base}/BatchNorm/{part}", 1) for part in _TF_NORM]
        epsilon = _get(constants, f"{TF}/{base}/BatchNorm/batchnorm/add/y", 0)
        layers[one.name] = _folded(one, filters, Norm(parts[0], parts[1], parts[2], parts[3], float(epsilon)))
    base = f"{TF}/Logits/Conv2d_1c_1x1"
    weights = _get(constants, f"{base}/weights", 4)
    layers[CLASSIFIER] = Layer(weights.transpose(3, 0, 1, 2), _get(constants, f"{base}/biases", 1))
    return layers


def of_mobilenet_v2(tensors: Mapping[str, Array], plan: Plan) -> dict[str, Layer]:
    """Layers out of torchvision's state dict of MobileNetV2; arguments and errors as `_of_torch`."""
    names = {"stem": ("features.0.0", "features.0.1"), "head": ("features.18.0", "features.18.1")}
    for one in plan.convolutions[1:-1]:
        block, part = one.name.split("/")
        base = f"features.{int(block.removeprefix('block')) + 1}.conv"
        expanded = block != "block0"  # the first block has nothing to expand, and its convolutions move up
        place = {"expand": 0, "depthwise": int(expanded), "project": 1 + int(expanded)}[part]
        pair = (f"{base}.{place}", f"{base}.{place + 1}")
        names[one.name] = pair if part == "project" else (f"{base}.{place}.0", f"{base}.{place}.1")
    return _of_torch(tensors, plan, names, "classifier.1", TORCHVISION_EPSILON)


def of_lite0(tensors: Mapping[str, Array], plan: Plan) -> dict[str, Layer]:
    """Layers out of the state dict of EfficientNet-Lite0; arguments and errors as `_of_torch`."""
    names = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for one in plan.convolutions[1:-1]:
        block, part = one.name.split("/")
        norms = ("_bn1", "_bn2") if block == "block0" else ("_bn0", "_bn1", "_bn2")
        norm = norms[("expand", "depthwise", "project").index(part) - (3 - len(norms))]
        base = f"_blocks.{block.removeprefix('block')}"
        names[one.name] = (f"{base}._{part}_conv", f"{base}.{norm}")
    return _of_torch(tensors, plan, names, "_fc", LITE0_EPSILON)


_TF_NORM = ("gamma", "beta", "moving_mean", "moving_variance")
_TORCH_NORM = ("weight", "bias", "running_mean", "running_var")


def _of_torch(
    tensors: Mapping[str, Array], plan: Plan, names: Mapping[str, tuple[str, str]], dense: str, epsilon: float
) -> dict[str, Layer]:
    """Layers out of a state dict.

    Args:
        tensors: filters [depth_out, depth_in, height, width], depthwise [depth, 1, height, width].
        plan: the network.
        names: for each convolution the prefix of its filter and of its batch norm.
        dense: the classifier's prefix.
        epsilon: of all batch norms; state dicts do not hold it.

    Raises:
        UsageError: a tensor is missing or has another shape.
    """
    layers = {}
    for one in plan.convolutions:
        filters, norm = names[one.name]
        weights = _get(tensors, f"{filters}.weight", 4)
        parts = [_get(tensors, f"{norm}.{part}", 1) for part in _TORCH_NORM]
        turned = weights.transpose(1, 2, 3, 0) if one.depthwise else weights.transpose(0, 2, 3, 1)
        layers[one.name] = _folded(one, turned, Norm(parts[0], parts[1], parts[2], parts[3], epsilon))
    weights = _get(tensors, f"{dense}.weight", 2)
    spread = weights if plan.dense else weights[:, None, None, :]
    layers[CLASSIFIER] = Layer(spread, _get(tensors, f"{dense}.bias", 1))
    return layers


def _folded(one: Convolution, filters: Array, norm: Norm) -> Layer:
    if filters.shape != filter_shape(one):
        raise UsageError(f"the weights of {one.name} have shape {filters.shape}, not {filter_shape(one)}: other width?")
    sizes = {part.shape for part in (norm.gamma, norm.beta, norm.mean, norm.variance)}
    if sizes != {(one.outputs,)}:
        raise UsageError(f"the batch norm of {one.name} has not {one.outputs} channels: other weights?")
    return fold(filters, norm, depthwise=one.depthwise)


def filter_shape(one: Convolution) -> tuple[int, int, int, int]:
    """Dimensions of a convolution's filter as in `Layer`."""
    return (
        (1, one.window, one.window, one.outputs) if one.depthwise else (one.outputs, one.window, one.window, one.inputs)
    )


def _get(tensors: Mapping[str, Array], name: str, rank: int) -> Array:
    found = tensors.get(name)
    if found is None or found.ndim != rank or found.dtype.kind != "f":
        raise UsageError(f"the weights have no float tensor {name} of rank {rank}: they are of another network")
    return found
