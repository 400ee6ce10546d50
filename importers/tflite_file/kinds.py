"""What tensors of a .tflite file are in the contract: operand types, scales and zero points."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from importers.assembling import Kind
from importers.tflite_file.contents import Tensor
from importers.tflite_file.schema import DTYPES
from nnhal.model import ChannelQuant
from nnhal.types import Array, OperandType, info

PLAIN: Mapping[str, OperandType] = {
    "FLOAT32": OperandType.TENSOR_FLOAT32,
    "FLOAT16": OperandType.TENSOR_FLOAT16,
    "INT32": OperandType.TENSOR_INT32,
    "INT64": OperandType.TENSOR_INT32,  # where all values fit
    "BOOL": OperandType.TENSOR_BOOL8,
}
STEPS: Mapping[str, OperandType] = {
    "UINT8": OperandType.TENSOR_QUANT8_ASYMM,
    "INT8": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    "INT16": OperandType.TENSOR_QUANT16_SYMM,
    "UINT16": OperandType.TENSOR_QUANT16_ASYMM,
}
QUANTIZED = frozenset({OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED})
CONSTANT_LIMIT = 4  # the constants of a model have at most so many times the bytes of its file, and the slack
CONSTANT_SLACK = 32 << 20


class InexpressibleError(Exception):
    """An operator has no equivalent; the message is the reason, half a sentence."""


def dimensions(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape as the contract has it: there is no rank 0."""
    return shape or (1,)


def check_plain(tensor: Tensor) -> None:
    """Refuses tensors that no operand can be.

    Raises:
        InexpressibleError: its sizes are open or none, or its data are not plain.
    """
    if min(tensor.shape, default=1) < 0:
        raise InexpressibleError(f"tensor {tensor.number} has dimensions that only a run knows")
    if 0 in tensor.shape:
        raise InexpressibleError(f"tensor {tensor.number} has no elements")
    if tensor.peculiar:
        raise InexpressibleError(f"tensor {tensor.number} is {tensor.peculiar}")


def kind_of(tensor: Tensor) -> Kind:
    """Type, scale and zero point of a tensor. Bytes without a scale are steps of 1.

    Raises:
        InexpressibleError: the contract has no such type.
    """
    check_plain(tensor)
    if tensor.type in PLAIN:
        scaled = tensor.type == "INT32" and tensor.scales.size == 1 and not tensor.zero_points.any()
        return Kind(PLAIN[tensor.type], _scale(tensor) if scaled else 0.0)  # a bias that is no constant
    if tensor.type not in STEPS:
        raise InexpressibleError(f"tensor {tensor.number} has the type {tensor.type}")
    kind = STEPS[tensor.type]
    if tensor.scales.size > 1:
        return _per_channel(tensor)
    scale, zero_point = _quantization(tensor)
    low, high = info(kind).zero_points or (0, 0)
    if not low <= zero_point <= high:
        raise InexpressibleError(f"tensor {tensor.number} has the type {tensor.type} with the zero point {zero_point}")
    return Kind(kind, scale, zero_point)


def _quantization(tensor: Tensor) -> tuple[float, int]:
    if not tensor.scales.size:
        if tensor.type not in ("UINT8", "INT8"):
            raise InexpressibleError(f"tensor {tensor.number} has the type {tensor.type} without a scale")
        return 1.0, 0
    return _scale(tensor), int(tensor.zero_points[0]) if tensor.zero_points.size else 0


def _scale(tensor: Tensor) -> float:
    scale = float(tensor.scales[0])
    if not 0 < scale < math.inf:
        raise InexpressibleError(f"tensor {tensor.number} has the scale {scale}")
    return scale


def _per_channel(tensor: Tensor) -> Kind:
    dimension, scales = tensor.dimension, tensor.scales
    if tensor.type != "INT8" or tensor.zero_points.any():
        raise InexpressibleError(
            f"tensor {tensor.number} has scales per channel, and not the type INT8 and zero points 0"
        )
    if not 0 <= dimension < len(tensor.shape) or tensor.shape[dimension] != scales.size:
        raise InexpressibleError(f"tensor {tensor.number} has {scales.size} scales along dimension {dimension}")
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise InexpressibleError(f"tensor {tensor.number} has a scale that is not positive")
    channel = ChannelQuant(dimension, tuple(scales.tolist()))
    return Kind(OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, channel=channel)


def dequantized(tensor: Tensor, value: Array) -> Array:
    """The real numbers, float32, that a constant stands for.

    Raises:
        InexpressibleError: scales and type do not make any.
    """
    if tensor.type in ("FLOAT32", "FLOAT16"):
        return value.astype(np.float32)
    kind = kind_of(tensor)
    if kind.channel is None:
        if kind.type not in STEPS.values():
            raise InexpressibleError(f"tensor {tensor.number} of type {tensor.type} stands for no real numbers")
        return np.asarray((value.astype(np.float32) - np.float32(kind.zero_point)) * np.float32(kind.scale))
    along = [1] * value.ndim
    along[kind.channel.channel_dim] = -1
    return np.asarray(value.astype(np.float32) * np.array(kind.channel.scales, np.float32).reshape(along))


def dtype_name(tensor: Tensor) -> str:
    """The NumPy name of a tensor's type; the schema's in small letters where NumPy has none."""
    known = DTYPES.get(tensor.type)
    return np.dtype(known).name if known is not None else tensor.type.lower()
