"""Reads the inputs of a request and writes its outputs: what every driver in Python needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnhal.device import NO_TIMING, ExecutionResult, OutputShape, Timing
from nnhal.errors import invalid
from nnhal.memory import HardwareBuffer, Memory
from nnhal.model import Model, Operand, Request, RequestArgument, is_tensor
from nnhal.types import Array, info


def argument_bytes(request: Request, argument: RequestArgument) -> memoryview:
    """The bytes that an input or output of a request refers to, in place.

    Raises:
        DriverError: INVALID_ARGUMENT when the location lies outside its pool or the pool is a driver-managed buffer.
    """
    place = argument.location
    if not 0 <= place.pool_index < len(request.pools):
        raise invalid(f"pool index {place.pool_index} of {len(request.pools)} pools")
    pool = request.pools[place.pool_index]
    if not isinstance(pool, Memory):
        raise invalid("a driver-managed buffer is used where this driver needs plain memory")
    if isinstance(pool, HardwareBuffer) and not pool.blob:
        return pool.view()  # it is used whole
    if place.offset < 0 or place.length < 0 or place.offset + place.length > pool.size:
        raise invalid(f"location {place.offset}+{place.length} lies outside its pool of {pool.size} bytes")
    return pool.view()[place.offset : place.offset + place.length]


def argument_shape(operand: Operand, argument: RequestArgument) -> tuple[int, ...]:
    """Dimensions of an input or output: the request's where given, else the model's; () for scalars."""
    return (argument.dimensions or operand.dimensions) if is_tensor(operand.type) else ()


ElementTypes = Mapping[int, "np.dtype[Any]"]
NO_EXTENSIONS: ElementTypes = {}


def read_inputs(model: Model, request: Request, element_types: ElementTypes = NO_EXTENSIONS) -> list[Array | None]:
    """Inputs in the order of the model's list, as read-only arrays in the stored form; None where omitted.

    Args:
        model: says types and dimensions.
        request: says where the bytes are.
        element_types: how the elements of extension operand types are stored, by their codes in this model.

    Raises:
        DriverError: INVALID_ARGUMENT when the bytes do not fit the dimensions.
    """
    values: list[Array | None] = []
    for index, argument in zip(model.main.input_indexes, request.inputs, strict=True):
        if argument.has_no_value:
            values.append(None)
            continue
        operand = model.main.operands[index]
        shape, dtype = argument_shape(operand, argument), _dtype(operand, element_types)
        data = argument_bytes(request, argument)
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise invalid(f"input of {len(data)} bytes for dimensions {shape} of {dtype}")
        value = np.frombuffer(data, dtype).reshape(shape)
        value.flags.writeable = False
        values.append(value)
    return values


def _dtype(operand: Operand, element_types: ElementTypes) -> np.dtype[Any]:
    return element_types[operand.type] if operand.type in element_types else info(operand.type).dtype


def write_outputs(
    model: Model,
    request: Request,
    values: Sequence[Array],
    timing: Timing = NO_TIMING,
    element_types: ElementTypes = NO_EXTENSIONS,
) -> ExecutionResult:
    """Writes results into the request's memory and says their shapes, whatever the model declares.

    When a buffer is too small nothing is written to any, and the result says which.
    """
    shapes: list[OutputShape] = []
    places: list[tuple[memoryview, Array]] = []
    for index, argument, value in zip(model.main.output_indexes, request.outputs, values, strict=True):
        operand = model.main.operands[index]
        stored = np.asarray(value, _dtype(operand, element_types), order="C")
        if argument.has_no_value:
            shapes.append(OutputShape(stored.shape))
            continue
        data = argument_bytes(request, argument)
        shapes.append(OutputShape(stored.shape, len(data) >= stored.nbytes))
        places.append((data, stored))
    if not all(shape.is_sufficient for shape in shapes):
        return ExecutionResult(tuple(shapes), NO_TIMING, output_sufficient_size=False)
    for data, stored in places:
        if stored.nbytes:
            data[: stored.nbytes] = stored.reshape(-1).view(np.uint8).data
    return ExecutionResult(tuple(shapes), timing)
