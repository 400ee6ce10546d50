"""Post-training quantisation to TENSOR_QUANT8_ASYMM throughout, one scale for each tensor, as public models have it.

Sources of the rules: the NNAPI documentation of each operation (scale of a bias, of SOFTMAX's result, and of what is
only moved) and arXiv 1712.05877, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from importers.assembling import Kind
from mlts.observing import observe
from mlts.rebuilding import BIAS, FILTER, WEIGHTED, Place, rebuilt, weighted
from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.types import Array, OperandType, OperationType

STEPS = 255  # between the smallest and the largest stored value
UNIT = Kind(OperandType.TENSOR_QUANT8_ASYMM, 1 / 256, 0)  # what SOFTMAX and LOGISTIC give, by their definition
NARROWEST = 1e-6  # range of a tensor that is 0 throughout
FITTED = frozenset({*WEIGHTED, OperationType.ADD, OperationType.MUL, OperationType.CONCATENATION})
UNITS = frozenset({OperationType.SOFTMAX, OperationType.LOGISTIC})
# Their results have the scale and zero point of what they read.
KEEPING = frozenset(
    {OperationType.RESHAPE, OperationType.SQUEEZE, OperationType.PAD, OperationType.AVERAGE_POOL_2D,
     OperationType.MAX_POOL_2D}
)  # fmt: skip


def quantize(
    model: Model, calibration: Sequence[Sequence[Array]], input_range: tuple[float, float] | None = None
) -> Model:
    """A float model as one of TENSOR_QUANT8_ASYMM.

    Args:
        model: float32, of convolutions, dense layers, sums, pools and what moves values.
        calibration: inputs of some runs; ranges are what the float model shows on them.
        input_range: smallest and largest value of the inputs; None for what the calibration shows.

    Raises:
        UsageError: there is no calibration, or the model has an operation that is not quantised here.
    """
    seen = observe(model, calibration)
    kinds: dict[int, Kind] = {}
    for index in model.main.input_indexes:
        kinds[index] = asymmetric(*(input_range or seen[index].range))
    for number, operation in enumerate(model.main.operations):
        for index in operation.outputs:
            if operation.type in KEEPING:
                kinds[index] = kinds[operation.inputs[0]]
            elif operation.type in UNITS:
                kinds[index] = UNIT
            elif operation.type in FITTED:
                kinds[index] = asymmetric(*seen[index].range)
            else:
                name = OperationType(operation.type).name
                raise UsageError(f"operation {number}, {name}, is not quantised here; keep the model in float32")
    constants: dict[Place, tuple[Kind, Array]] = {}
    for one in weighted(model):
        kind = asymmetric(float(one.filter.min()), float(one.filter.max()))
        constants[one.number, FILTER] = (kind, stored(one.filter, kind))
        scale = float(np.float32(kinds[one.image].scale) * np.float32(kind.scale))
        constants[one.number, BIAS] = (Kind(OperandType.TENSOR_INT32, scale), _whole(one.bias, scale))
    return rebuilt(model, kinds, constants)


def asymmetric(low: float, high: float) -> Kind:
    """Scale and zero point for values from low to high; 0 is always among them, and is stored exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32(max(high - low, NARROWEST) / STEPS))
    zero_point = int(np.clip(np.round(-low / scale), 0, STEPS))
    return Kind(OperandType.TENSOR_QUANT8_ASYMM, scale, zero_point)


def stored(values: Array, kind: Kind) -> Array:
    """Real values as stored ones: the nearest step, halves to even, saturated."""
    steps = np.round(values.astype(np.float64) / kind.scale) + kind.zero_point
    return np.clip(steps, 0, STEPS).astype(np.uint8)


def real(values: Array, kind: Kind) -> Array:
    """Stored values as float32 ones."""
    return ((values.astype(np.float64) - kind.zero_point) * kind.scale).astype(np.float32)


def _whole(bias: Array, scale: float) -> Array:
    limits = np.iinfo(np.int32)
    return np.clip(np.round(bias.astype(np.float64) / scale), limits.min, limits.max).astype(np.int32)
