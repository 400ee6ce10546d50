"""Makes a float network fit for one scale for each tensor of weights, without a change of what it computes.

MobileNetV1 needs it: some of its channels never fire, and have weights thirty times as large as the others'.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from importers.assembling import Kind
from mlts.observing import Seen, observe
from mlts.rebuilding import BIAS, FILTER, Place, Weighted, rebuilt, weighted
from nnhal.model import Model
from nnhal.types import Array, OperandType

SIX = 6.0
BELOW_SIX = 0.98 * SIX  # an activation may be scaled up to here
CONSTANT = 1e-6  # a channel whose values differ by less is constant
ROUNDS = 40  # of equalisation; ranges settle in half of them


def repaired(model: Model, calibration: Sequence[Sequence[Array]]) -> Model:
    """A float model that does on the calibration what it did, but bears one scale for each tensor of weights.

    Where ReLU6 follows, channels that never change have their weights set to 0 and their bias to what they are; then
    each channel of two layers in a row is scaled so that its weights are as large in the one as in the other
    (arXiv 1906.04721, section 4.1), as far as no activation comes to ReLU6's 6.

    Args:
        model: as `quantize` takes it.
        calibration: the same.
    """
    seen = observe(model, calibration)
    layers = weighted(model)
    filters = {one.number: one.filter.astype(np.float64) for one in layers}
    biases = {one.number: one.bias.astype(np.float64) for one in layers}
    for one in layers:
        if one.relu6:
            _silence(one, seen[one.result], filters[one.number], biases[one.number])
    pairs = _pairs(model, layers)
    highs = {first.number: seen[first.result].high.astype(np.float64) for first, _ in pairs}
    for _ in range(ROUNDS):
        for first, second in pairs:
            factor = _factors(first, second, filters, highs[first.number])
            _outputs(filters[first.number], first)[...] /= factor
            biases[first.number] /= factor
            highs[first.number] /= factor
            filters[second.number] *= factor  # what goes in is the last dimension of every filter
    float32 = Kind(OperandType.TENSOR_FLOAT32)
    constants: dict[Place, tuple[Kind, Array]] = {}
    for one in layers:
        constants[one.number, FILTER] = (float32, filters[one.number])
        constants[one.number, BIAS] = (float32, biases[one.number])
    return rebuilt(model, {}, constants)


def _silence(one: Weighted, seen: Seen, filters: Array, bias: Array) -> None:
    """Sets weights to 0, in place, where a channel is constant, and its bias to that value."""
    constant = seen.high - seen.low < CONSTANT
    _outputs(filters, one)[..., constant] = 0.0
    bias[constant] = seen.mean[constant]


def _pairs(model: Model, layers: Sequence[Weighted]) -> list[tuple[Weighted, Weighted]]:
    """Layers of which the second alone reads what the first gives through ReLU6."""
    readers: dict[int, list[int]] = {}
    for number, operation in enumerate(model.main.operations):
        for index in operation.inputs:
            readers.setdefault(index, []).append(number)
    by_number = {one.number: one for one in layers}
    pairs = []
    for first in layers:
        after = readers.get(first.result, [])
        if first.relu6 and len(after) == 1 and after[0] in by_number and by_number[after[0]].image == first.result:
            pairs.append((first, by_number[after[0]]))
    return pairs


def _factors(first: Weighted, second: Weighted, filters: dict[int, Array], high: Array) -> Array:
    """By what each channel between two layers is divided: near the root of the ratio of the weights around it."""
    before = np.abs(_outputs(filters[first.number], first)).reshape(-1, len(high)).max(axis=0)
    after = np.abs(filters[second.number]).reshape(-1, len(high)).max(axis=0)
    free = (before > 0) & (after > 0) & (high < BELOW_SIX)
    ratio = np.sqrt(np.where(free, before, 1.0) / np.where(free, after, 1.0))
    return np.where(free, np.maximum(ratio, high / BELOW_SIX), 1.0)


def _outputs(filters: Array, one: Weighted) -> Array:
    """A filter with the channels that come out in the last dimension, in place."""
    return filters if one.depthwise else np.moveaxis(filters, 0, -1)
