"""Normalisations: known factors and offsets for each channel, or chains of MEAN and RSQRT."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from importers.assembling import Shape
from importers.onnx_file.elementwise import Translate, common_shape
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.work import KNOWN_RANK, Tensor, Work
from nnhal.types import Array, OperationType

MANY_GROUPS_VERSION = 21  # from here on GroupNormalization has a scale for each channel


def along(tensor: Tensor, value: Array) -> Array:
    """Numbers for the channels, dimension 1, in a shape that broadcasts to the tensor."""
    channels = tensor.shape[1] if len(tensor.shape) > 1 else 1
    if value.size != channels:
        raise Refusal(f"{value.size} numbers for {channels} channels")
    return value.reshape(channels, *(1 for _ in tensor.shape[2:]))


def channel_values(work: Work, node: Node, names: Sequence[str]) -> list[Array]:
    """Known inputs from the second one on, as many numbers in each."""
    values = [work.known(node, place, name).astype(np.float64).reshape(-1) for place, name in enumerate(names, 1)]
    if len({value.size for value in values}) > 1 or not values[0].size:
        raise Refusal(f"{', '.join(names)} have {', '.join(str(value.size) for value in values)} numbers")
    return values


def affine(work: Work, x: int, factor: Array | float | None, offset: Array | float | None) -> int:
    """A tensor times a constant factor, and a constant offset added."""
    for value, code in ((factor, OperationType.MUL), (offset, OperationType.ADD)):
        if value is not None:
            x = work.emit(code, (x, work.reals(x, value), work.activation()))
    return x


def _batch_normalization(work: Work, node: Node) -> None:
    """A factor and an offset for each channel, computed at import in double precision."""
    if node.whole("training_mode", 0) or not node.whole("spatial", 1):
        raise Refusal("it is in training mode, or not spatial")
    tensor = work.input(node, 0)
    scale, bias, mean, variance = channel_values(work, node, ("scale", "bias", "mean", "variance"))
    factor = scale / np.sqrt(variance + node.real("epsilon", 1e-5))
    offset = bias - mean * factor
    shape = _flat_image(tensor.shape)
    view = Tensor(tensor.name, tensor.dtype, shape)
    x = affine(work, work.operand(tensor, shape), along(view, factor), along(view, offset))
    work.give(node, x, tensor.shape, tensor.dtype)


def _flat_image(shape: Shape) -> Shape:
    return shape if len(shape) <= KNOWN_RANK else (*shape[:3], math.prod(shape[3:]))


def normalized(work: Work, x: int, axes: Sequence[int], epsilon: float, *, centred: bool = True) -> int:
    """A tensor less its mean along axes, over the root of its variance and a small number."""
    plain, keep = work.activation(), work.whole(1)
    places = work.whole_tensor(axes)
    if centred:
        x = work.emit(OperationType.SUB, (x, work.emit(OperationType.MEAN, (x, places, keep)), plain))
    square = work.emit(OperationType.MUL, (x, x, plain))
    mean = work.emit(OperationType.MEAN, (square, places, keep))
    root = work.emit(OperationType.RSQRT, (work.emit(OperationType.ADD, (mean, work.reals(x, epsilon), plain)),))
    return work.emit(OperationType.MUL, (x, root, plain))


def _instance_normalization(work: Work, node: Node) -> None:
    """INSTANCE_NORMALIZATION has one factor and offset, the operator one for each channel: those come after."""
    tensor = work.input(node, 0)
    scale, bias = channel_values(work, node, ("scale", "bias"))
    if len(tensor.shape) < 3:
        raise Refusal(f"an input of rank {len(tensor.shape)}")
    shape = (*tensor.shape[:2], math.prod(tensor.shape[2:-1]), tensor.shape[-1])
    x = work.operand(tensor, shape)
    alike = bool((scale == scale[0]).all() and (bias == bias[0]).all())
    gamma, beta = (float(scale[0]), float(bias[0])) if alike else (1.0, 0.0)
    parameters = (*(work.real(x, value) for value in (gamma, beta, node.real("epsilon", 1e-5))), work.flag(True))
    result = work.emit(OperationType.INSTANCE_NORMALIZATION, (x, *parameters))
    if not alike:
        view = Tensor(tensor.name, tensor.dtype, shape)
        result = affine(work, result, along(view, scale), along(view, bias))
    work.give(node, result, tensor.shape, tensor.dtype)


def _layer_normalization(work: Work, node: Node) -> None:
    """LayerNormalization and RMSNormalization, by MEAN and RSQRT."""
    tensor = work.input(node, 0)
    if any(node.outputs[1:]):
        raise Refusal("mean or deviation is asked for besides")
    rank = len(tensor.shape)
    axis = node.whole("axis", -1)
    if not -rank <= axis < rank:
        raise Refusal(f"axis {axis} of {rank} dimensions")
    axis %= rank
    shape = (math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:]))
    x = work.operand(tensor, shape)
    centred = node.operator == "LayerNormalization"
    x = normalized(work, x, [1], node.real("epsilon", 1e-5), centred=centred)
    for place, code in ((1, OperationType.MUL), (2, OperationType.ADD)):
        other = work.optional(node, place) if place == 1 or centred else None
        if other is None:
            continue
        if math.prod(other.shape) == shape[1]:
            second = work.operand(other, (shape[1],))
        elif common_shape([other.shape, tensor.shape]) == tensor.shape and other.value is not None:
            second = work.operand(Tensor(other.name, other.dtype, tensor.shape,
                                         np.broadcast_to(other.value, tensor.shape)), shape)  # fmt: skip
        else:
            raise Refusal(f"a factor or offset of shape {list(other.shape)}")
        x = work.emit(code, (x, second, work.activation()))
    work.give(node, x, tensor.shape, tensor.dtype)


def _group_normalization(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    groups = node.whole("num_groups", 0)
    scale, bias = channel_values(work, node, ("scale", "bias"))
    if len(tensor.shape) < 3 or groups < 1 or tensor.shape[1] % groups:
        raise Refusal(f"{groups} groups of a tensor of shape {list(tensor.shape)}")
    channels = tensor.shape[1]
    if node.version < MANY_GROUPS_VERSION:
        scale, bias = (np.repeat(value, channels // groups) for value in (scale, bias))
    area = math.prod(tensor.shape[2:])
    x = work.operand(tensor, (tensor.shape[0], groups, channels // groups * area))
    x = work.reshape(normalized(work, x, [2], node.real("epsilon", 1e-5)), (tensor.shape[0], channels, area))
    view = Tensor(tensor.name, tensor.dtype, (tensor.shape[0], channels, area))
    work.give(node, affine(work, x, along(view, scale), along(view, bias)), tensor.shape, tensor.dtype)


def _mean_variance(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    axes = node.whole_list("axes") or (0, 2, 3)
    x = normalized(work, work.operand(tensor), axes, 1e-9)
    work.give(node, x, tensor.shape, tensor.dtype)


def _local_response(work: Work, node: Node) -> None:
    """The operator divides alpha by the number of channels, LOCAL_RESPONSE_NORMALIZATION does not."""
    tensor = work.input(node, 0)
    size = node.whole("size", 0)
    if size < 1 or size % 2 == 0:
        raise Refusal(f"{size} channels: LOCAL_RESPONSE_NORMALIZATION takes as many on either side")
    shape = _flat_image(tensor.shape)
    x = work.operand(tensor, shape)
    numbers = (node.real("bias", 1.0), node.real("alpha", 1e-4) / size, node.real("beta", 0.75))
    inputs = (x, work.whole(size // 2), *(work.real(x, number) for number in numbers), work.whole(1))
    result = work.emit(OperationType.LOCAL_RESPONSE_NORMALIZATION, inputs)
    work.give(node, result, tensor.shape, tensor.dtype)


def _lp_normalization(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    if node.whole("p", 2) != 2:
        raise Refusal(f"p is {node.whole('p', 2)}: only L2_NORMALIZATION exists")
    x = work.operand(tensor)
    result = work.emit(OperationType.L2_NORMALIZATION, (x, work.whole(node.whole("axis", -1))))
    work.give(node, result, tensor.shape, tensor.dtype)


NORMS: Mapping[str, Translate] = {
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _layer_normalization,
    "GroupNormalization": _group_normalization,
    "MeanVarianceNormalization": _mean_variance,
    "LRN": _local_response,
    "LpNormalization": _lp_normalization,
}
