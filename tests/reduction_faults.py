"""What a driver may get wrong in reductions, one thing at a time, on drawn calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from nnhal.types import Array, OperandType, info
from opset.call import Call, int32_tensor, scalar
from opset.definition import F32, I32, OperationDef
from opset.evaluate import run_call
from opset.quantization import QUANTIZED
from opset.reduction import (
    ARGMAX,
    ARGMIN,
    MEAN,
    REDUCE_ALL,
    REDUCE_ANY,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_PROD,
    REDUCE_SUM,
)
from opset.values import Values

REDUCTIONS = (MEAN, REDUCE_SUM, REDUCE_PROD, REDUCE_MAX, REDUCE_MIN, REDUCE_ALL, REDUCE_ANY)
POSITIONS = (ARGMAX, ARGMIN)

Answer = Mapping[str, Array] | None


def axes_of(call: Call) -> tuple[int, ...]:
    return tuple(sorted({axis % call["input"].rank for axis in call["axes"].value.tolist()}))


def stored_sums(call: Call) -> tuple[Array, int]:
    """Sums of stored values in the result's shape, and how many stand behind each."""
    axes = axes_of(call)
    sums = call["input"].value.astype(np.int64).sum(axis=axes).reshape(call["output"].shape)
    return sums, math.prod(call["input"].shape[axis] for axis in axes)


def stored(call: Call) -> dict[str, Array]:
    return {name: result.stored for name, result in run_call(call).items()}


def last_dropped(call: Call) -> Answer:
    """The last element along the first reduced axis is never read."""
    axis, x = axes_of(call)[0], call["input"]
    if x.shape[axis] < 2:
        return None
    value = np.take(x.value, range(x.shape[axis] - 1), axis=axis)
    return stored(call.with_input("input", replace(x, value=value, shape=value.shape)))


def first_axis_only(call: Call) -> Answer:
    axes = [axis % call["input"].rank for axis in call["axes"].value.tolist()]
    return stored(call.with_input("axes", int32_tensor(axes[:1])))


def negative_axis_as_zero(call: Call) -> Answer:
    return stored(call.with_input("axes", int32_tensor([max(axis, 0) for axis in call["axes"].value.tolist()])))


def dimensions_kept(call: Call) -> Answer:
    return stored(call.with_input("keep_dims", scalar(call["keep_dims"].type, True)))


def dimensions_dropped(call: Call) -> Answer:
    return stored(call.with_input("keep_dims", scalar(call["keep_dims"].type, False)))


def not_zero_keeps(call: Call) -> Answer:
    """A keep_dims below 0 is taken for true."""
    return dimensions_kept(call) if call["keep_dims"].item() < 0 else None


def rank_zero(call: Call) -> Answer:
    """Nothing left is a scalar."""
    full = len(axes_of(call)) == call["input"].rank and not call["keep_dims"].item() > 0
    return {"output": stored(call)["output"].reshape(())} if full else None


def repeats_counted(call: Call) -> Answer:
    """A repeated axis divides by its size once more."""
    listed = [axis % call["input"].rank for axis in call["axes"].value.tolist()]
    more = math.prod(call["input"].shape[axis] for axis in listed) / stored_sums(call)[1]
    if call["input"].type in QUANTIZED or more == 1:
        return None
    output = call["output"].value
    return {"output": (output / more).astype(output.dtype)}


def divided_by_all(call: Call) -> Answer:
    if call["input"].type in QUANTIZED:
        return None
    output = call["output"].value
    return {"output": (output * stored_sums(call)[1] / call["input"].value.size).astype(output.dtype)}


def without_division(call: Call) -> Answer:
    if call["input"].type in QUANTIZED:
        return None
    return {"output": REDUCE_SUM.kernel(values(call))["output"].astype(call["output"].value.dtype)}


def values(call: Call) -> Values:
    return Values(call)


def wrapped(bits: int) -> Callable[[Call], Answer]:
    """The accumulator has too few bits."""

    def fault(call: Call) -> Answer:
        if call["input"].type not in QUANTIZED:
            return None
        sums, count = stored_sums(call)
        half = 2 ** (bits - 1)
        sums = (sums + half) % (2 * half) - half if info(call["input"].type).dtype.kind == "i" else sums % (2 * half)
        if np.array_equal(sums, stored_sums(call)[0]):
            return None
        mean = np.floor(sums / count + 0.5)
        return {"output": mean.astype(info(call["output"].type).dtype)}

    fault.__name__ = f"wrapped{bits}"
    return fault


def rounded_down(call: Call) -> Answer:
    if call["input"].type not in QUANTIZED or call["output"].value.size < 32:
        return None
    sums, count = stored_sums(call)
    return {"output": (sums // count).astype(info(call["output"].type).dtype)}


def in_halves(call: Call) -> Answer:
    """FLOAT32 accumulated in float16."""
    if call["input"].type != F32:
        return None
    ufunc = np.multiply if call.definition is REDUCE_PROD else np.add
    total = ufunc.reduce(call["input"].value.astype(np.float16), axis=axes_of(call), dtype=np.float16)
    total = total.astype(np.float32) / (stored_sums(call)[1] if call.definition is MEAN else 1)
    return {"output": total.astype(np.float32).reshape(call["output"].shape)}


def zero_factors_skipped(call: Call) -> Answer:
    value = np.where(call["input"].value == 0, 1, call["input"].value)
    if np.array_equal(value, call["input"].value):
        return None
    product = np.multiply.reduce(value, axis=axes_of(call)).reshape(call["output"].shape)
    return {"output": product.astype(call["output"].value.dtype)}


def starts_at_zero(call: Call) -> Answer:
    """An extremum is never on the other side of the stored 0."""
    limit = np.maximum if call.definition is REDUCE_MAX else np.minimum
    output = call["output"].value
    return {"output": limit(output, output.dtype.type(0))}


def other_sign(call: Call) -> Answer:
    """Bytes are compared as if they had a sign, or none."""
    x = call["input"]
    if x.type not in QUANTIZED:
        return None
    other = x.value.view(np.int8 if x.value.dtype == np.uint8 else np.uint8)
    axes = axes_of(call)
    found = other.max(axis=axes) if call.definition is REDUCE_MAX else other.min(axis=axes)
    return {"output": np.asarray(found).view(x.value.dtype).reshape(call["output"].shape)}


def by_size(call: Call) -> Answer:
    """Compared without signs."""
    x = call["input"]
    if x.type in QUANTIZED:
        return None
    size, axes = np.abs(x.value), axes_of(call)
    found = size.max(axis=axes) if call.definition is REDUCE_MAX else size.min(axis=axes)
    return {"output": np.asarray(found).reshape(call["output"].shape)}


def and_for_or(call: Call) -> Answer:
    x, axes = call["input"].value, axes_of(call)
    found = x.all(axis=axes) if call.definition is REDUCE_ANY else x.any(axis=axes)
    return {"output": np.asarray(found).reshape(call["output"].shape).astype(np.uint8)}


def found_at(call: Call, value: Array) -> Answer:
    find = np.argmax if call.definition is ARGMAX else np.argmin
    places = np.asarray(find(value, axis=call.integer("axis")))
    return {"output": places.astype(np.int32).reshape(call["output"].shape)}


def last_of_equals(call: Call) -> Answer:
    axis = call.integer("axis")
    places = found_at(call, np.flip(call["input"].value, axis))["output"]
    return {"output": (call["input"].shape[axis] - 1 - places).astype(np.int32)}


def compared_in_float32(call: Call) -> Answer:
    return found_at(call, call["input"].value.astype(np.float32)) if call["input"].type == I32 else None


def compared_in_float16(call: Call) -> Answer:
    if call["input"].type != F32:
        return None
    with np.errstate(over="ignore"):
        return found_at(call, call["input"].value.astype(np.float16))


def compared_with_other_sign(call: Call) -> Answer:
    x = call["input"]
    if x.type not in QUANTIZED:
        return None
    return found_at(call, x.value.view(np.int8 if x.value.dtype == np.uint8 else np.uint8))


def compared_by_size(call: Call) -> Answer:
    return found_at(call, np.abs(call["input"].value.astype(np.float64)))


def least_for_most(call: Call) -> Answer:
    return found_at(call, -call["input"].value.astype(np.float64))


def last_axis(call: Call) -> Answer:
    return stored(call.with_input("axis", scalar(OperandType.INT32, -1)))


def place_in_whole(call: Call) -> Answer:
    """The index in the flattened tensor."""
    x, axis = call["input"].value, call.integer("axis")
    stride = math.prod(x.shape[axis % x.ndim + 1 :])
    return {"output": (call["output"].value * stride).astype(np.int32)}


ALL = [(definition, fault, 0.9) for definition in REDUCTIONS for fault in (
    first_axis_only, negative_axis_as_zero, dimensions_kept, dimensions_dropped, rank_zero)]  # fmt: skip
FAULTS: list[tuple[OperationDef, Callable[[Call], Answer], float]] = [
    *ALL,
    *[(definition, last_dropped, 0.95) for definition in (REDUCE_MAX, REDUCE_MIN, REDUCE_ALL, REDUCE_ANY)],
    *[(definition, last_dropped, 0.85) for definition in (MEAN, REDUCE_SUM, REDUCE_PROD)],
    (MEAN, not_zero_keeps, 0.95),
    (MEAN, repeats_counted, 0.95),
    (MEAN, divided_by_all, 0.95),
    (MEAN, without_division, 0.95),
    (MEAN, wrapped(8), 0.95),
    (MEAN, wrapped(16), 0.95),
    (MEAN, rounded_down, 0.8),
    (MEAN, in_halves, 0.85),
    (REDUCE_SUM, in_halves, 0.9),
    (REDUCE_PROD, in_halves, 0.9),
    (REDUCE_PROD, zero_factors_skipped, 0.95),
    *[(d, f, 0.95) for d in (REDUCE_MAX, REDUCE_MIN) for f in (starts_at_zero, other_sign, by_size)],
    (REDUCE_ALL, and_for_or, 0.95),
    (REDUCE_ANY, and_for_or, 0.95),
    *[(d, f, 0.95) for d in POSITIONS for f in (
        last_of_equals, compared_in_float32, compared_in_float16, compared_with_other_sign, compared_by_size,
        least_for_most, last_axis, place_in_whole)],
]  # fmt: skip
