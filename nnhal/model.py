"""Models and requests: what a client hands to a driver. Frozen data, in the HAL's own shape and words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from nnhal.memory import Memory
from nnhal.types import OPERAND_TYPES, Array, OperandLifeTime, OperandType, info, is_extension


@dataclass(frozen=True)
class DataLocation:
    """Where bytes are: pool, first byte, number of bytes, and bytes that may be touched behind them (AIDL)."""

    pool_index: int = 0
    offset: int = 0
    length: int = 0
    padding: int = 0


@dataclass(frozen=True)
class ChannelQuant:
    """Scales of TENSOR_QUANT8_SYMM_PER_CHANNEL, one for each index along `channel_dim`."""

    channel_dim: int
    scales: tuple[float, ...]


@dataclass(frozen=True)
class Operand:
    """A value in a graph: its type, dimensions, quantisation and origin.

    `dimensions` is empty for scalars; for a tensor empty means unknown rank and 0 an unknown size. `type` is a plain
    integer when it is an extension's code or no type at all. `number_of_consumers` exists up to level 4.
    """

    type: OperandType | int
    dimensions: tuple[int, ...] = ()
    scale: float = 0.0
    zero_point: int = 0
    lifetime: OperandLifeTime = OperandLifeTime.TEMPORARY_VARIABLE
    location: DataLocation = DataLocation()
    extra_params: ChannelQuant | bytes | None = None
    number_of_consumers: int = 0


@dataclass(frozen=True)
class Operation:
    """One step of a graph: a code and the indexes of what it reads and writes."""

    type: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Subgraph:
    """Operands, the operations in an order that can be executed, and which operands go in and out."""

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    input_indexes: tuple[int, ...]
    output_indexes: tuple[int, ...]


@dataclass(frozen=True)
class ExtensionNameAndPrefix:
    """A row of the model's extension table: prefix is the high half of that extension's codes in this model."""

    name: str
    prefix: int


@dataclass(frozen=True)
class Translation:
    """What an adapter's `translate` made of a model.

    Attributes:
        artifact: the runtime's own form of the model; None when some operation has none.
        unsupported: for each operation of the main graph why it was not translated, or None.
    """

    artifact: bytes | None
    unsupported: tuple[str | None, ...]


@dataclass(frozen=True)
class Model:
    """A graph with everything it refers to. `operand_values` holds the CONSTANT_COPY values.

    `translation` is there only on the way to an adapter's runner; it is no part of the contract's model.
    """

    main: Subgraph
    referenced: tuple[Subgraph, ...] = ()
    operand_values: bytes = b""
    pools: tuple[Memory, ...] = ()
    relax_computation_float32_to_float16: bool = False
    extension_name_to_prefix: tuple[ExtensionNameAndPrefix, ...] = ()
    translation: Translation | None = None


@dataclass(frozen=True)
class BufferToken:
    """A driver-managed buffer standing as a pool of a request, by the token that `allocate` gave."""

    token: int


@dataclass(frozen=True)
class RequestArgument:
    """One input or output of an execution. `dimensions` may be empty where the model says them."""

    location: DataLocation = DataLocation()
    dimensions: tuple[int, ...] = ()
    has_no_value: bool = False


@dataclass(frozen=True)
class Request:
    """Inputs and outputs of one execution, in the order of the model's index lists."""

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    pools: tuple[Memory | BufferToken, ...] = field(default=())


def is_tensor(operand_type: int) -> bool:
    """Whether operands of this type have dimensions. Extension types count as tensors: only their driver knows."""
    kind = OPERAND_TYPES.get(operand_type)  # type: ignore[call-overload]  # codes as plain integers find their type too
    return kind.tensor if kind is not None else is_extension(operand_type) or info(operand_type).tensor


def is_known(dimensions: tuple[int, ...]) -> bool:
    """Whether a tensor's dimensions are all given (a rank of 0 means unknown)."""
    return bool(dimensions) and all(size > 0 for size in dimensions)


def operand_size(operand: Operand, dimensions: tuple[int, ...] | None = None) -> int:
    """Number of bytes of an operand's value; 0 where it is not known or the type is an extension's.

    Args:
        operand: its type says the bytes of an element.
        dimensions: the operand's own when None.
    """
    if is_extension(operand.type) or operand.type not in OperandType.__members__.values():
        return 0
    shape = operand.dimensions if dimensions is None else dimensions
    kind = info(operand.type)
    if not kind.tensor:
        return kind.size
    return kind.size * math.prod(shape) if shape else 0


def size_overflows(operand: Operand, dimensions: tuple[int, ...] | None = None) -> bool:
    """Whether an operand's bytes do not fit the 32 bits that a runtime allows."""
    return operand_size(operand, dimensions) > 2**32 - 1


def combine_dimensions(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...] | None:
    """What two partial descriptions of one shape say together; None where they contradict each other.

    Empty dimensions are an unknown rank, 0 is an unknown size.
    """
    if not first or not second:
        return first or second
    if len(first) != len(second) or any(a != b and a and b for a, b in zip(first, second, strict=True)):
        return None
    return tuple(a or b for a, b in zip(first, second, strict=True))


def constant_bytes(model: Model, operand: Operand) -> memoryview:
    """The bytes of a constant operand, in place.

    Raises:
        ValueError: the operand is not a constant, or its location lies outside its pool.
    """
    place = operand.location
    if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
        pool = memoryview(model.operand_values)
    elif operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
        if not 0 <= place.pool_index < len(model.pools):
            raise ValueError(f"constant refers to pool {place.pool_index} of {len(model.pools)}")
        pool = model.pools[place.pool_index].view()
    else:
        raise ValueError(f"operand with lifetime {operand.lifetime.name} is not a constant")
    if place.offset < 0 or place.length < 0 or place.offset + place.length > len(pool):
        raise ValueError(f"constant at {place.offset}+{place.length} lies outside its pool of {len(pool)} bytes")
    return pool[place.offset : place.offset + place.length]


def constant_value(model: Model, operand: Operand) -> Array:
    """A constant operand's value in its dimensions, in its type's stored form; scalars have shape ().

    Raises:
        ValueError: as `constant_bytes`, or the bytes do not fit the dimensions.
    """
    data = constant_bytes(model, operand)
    shape = operand.dimensions if is_tensor(operand.type) else ()
    return np.frombuffer(data, info(operand.type).dtype).reshape(shape)


def count_consumers(graph: Subgraph) -> Subgraph:
    """The same graph with `number_of_consumers` set to the number of reads by its operations."""
    reads = [0] * len(graph.operands)
    for operation in graph.operations:
        for index in operation.inputs:
            if 0 <= index < len(reads):
                reads[index] += 1
    operands = tuple([_counted(o, n) for o, n in zip(graph.operands, reads, strict=True)])
    return replace(graph, operands=operands)


def _counted(operand: Operand, reads: int) -> Operand:
    """A copy in a quarter of the time that `replace` takes: graphs have hundreds of operands."""
    if operand.number_of_consumers == reads:
        return operand
    changed = object.__new__(Operand)
    changed.__dict__.update(operand.__dict__, number_of_consumers=reads)
    return changed
