"""One ADD of float32 tensors, its request, and a check of its result: what the tests of the wire run."""

from __future__ import annotations

import numpy as np

from nnhal.memory import BytesMemory, Memory, SharedMemory
from nnhal.model import (
    DataLocation,
    Model,
    Operand,
    Operation,
    Request,
    RequestArgument,
    Subgraph,
)
from nnhal.types import Array, OperandLifeTime, OperandType, OperationType

SHAPE = (1, 8, 8, 3)
BYTES = 768


def add_model(shape: tuple[int, ...] = SHAPE) -> Model:
    tensor = OperandType.TENSOR_FLOAT32
    operands = (
        Operand(tensor, shape, lifetime=OperandLifeTime.SUBGRAPH_INPUT),
        Operand(tensor, shape, lifetime=OperandLifeTime.SUBGRAPH_INPUT),
        Operand(
            OperandType.INT32,
            lifetime=OperandLifeTime.CONSTANT_COPY,
            location=DataLocation(0, 0, 4),
        ),
        Operand(tensor, shape, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT),
    )
    graph = Subgraph(operands, (Operation(OperationType.ADD, (0, 1, 2), (3,)),), (0, 1), (3,))
    return Model(graph, operand_values=bytes(4))


def add_request(*, shared: bool = True, extra: int = 0, room: int = 64) -> Request:
    """Inputs 1, 2, 3, ... and 0.5; `room` bytes stand before and behind the output."""
    pools: list[Memory] = [_pool(BYTES, shared), _pool(BYTES, shared), _pool(BYTES + 2 * room, shared)]
    values(pools[0])[:] = np.arange(1, 193)
    values(pools[1])[:] = 0.5
    pools += [_pool(1, shared) for _ in range(extra)]
    return Request(
        tuple(RequestArgument(DataLocation(i, 0, BYTES)) for i in (0, 1)),
        (RequestArgument(DataLocation(2, room, BYTES)),),
        tuple(pools),
    )


def _pool(size: int, shared: bool) -> Memory:
    return SharedMemory.create(size) if shared else BytesMemory(size)


def values(pool: Memory) -> Array:
    return np.frombuffer(pool.view(), np.float32)


def output(request: Request) -> Array:
    place = request.outputs[0].location
    pool = request.pools[place.pool_index]
    assert isinstance(pool, Memory)
    return np.frombuffer(pool.view()[place.offset : place.offset + place.length], np.float32)


EXPECTED: Array = np.arange(1, 193, dtype=np.float32) + np.float32(0.5)
