"""Small valid models made by hand, for tests that break them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nnhal.memory import SharedMemory
from nnhal.model import (
    ChannelQuant,
    DataLocation,
    Model,
    Operand,
    Operation,
    Request,
    RequestArgument,
    Subgraph,
    count_consumers,
)
from nnhal.types import FL8, FeatureLevel, OperandLifeTime, OperandType, OperationType
from nnhal.validate import violations

LIFE = OperandLifeTime
F32, I32, B8 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8
Q8 = OperandType.TENSOR_QUANT8_ASYMM


def scalar_int(offset: int = 0) -> Operand:
    """An INT32 constant in the model's values."""
    return Operand(OperandType.INT32, lifetime=LIFE.CONSTANT_COPY, location=DataLocation(0, offset, 4))


def addition(shape: tuple[int, ...] = (2, 3), kind: OperandType = F32, scale: float = 0.0) -> Model:
    """c = a + b, then d = a + c: operands a, b, activation, c (temporary), d (output)."""
    tensor = Operand(kind, shape, scale)
    operands = (
        replace(tensor, lifetime=LIFE.SUBGRAPH_INPUT),
        replace(tensor, lifetime=LIFE.SUBGRAPH_INPUT),
        scalar_int(),
        tensor,
        replace(tensor, lifetime=LIFE.SUBGRAPH_OUTPUT),
    )
    add = int(OperationType.ADD)
    operations = (Operation(add, (0, 1, 2), (3,)), Operation(add, (0, 3, 2), (4,)))
    return Model(count_consumers(Subgraph(operands, operations, (0, 1), (4,))), operand_values=bytes(8))


def request_for(shape: tuple[int, ...] = (2, 3)) -> Request:
    """A request for `addition` of float32, in one pool."""
    size = 4
    for length in shape:
        size *= length
    arguments = tuple(RequestArgument(DataLocation(0, size * i, size)) for i in range(3))
    return Request(arguments[:2], arguments[2:], (SharedMemory.create(3 * size),))


def channels() -> Model:
    """DEQUANTIZE of a per-channel tensor."""
    operands = (
        Operand(
            OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
            (2, 3),
            lifetime=LIFE.SUBGRAPH_INPUT,
            extra_params=ChannelQuant(1, (0.5, 0.25, 2.0)),
        ),
        Operand(F32, (2, 3), lifetime=LIFE.SUBGRAPH_OUTPUT),
    )
    operations = (Operation(int(OperationType.DEQUANTIZE), (0,), (1,)),)
    return Model(count_consumers(Subgraph(operands, operations, (0,), (1,))))


def _unary_graph(code: OperationType, result: Operand, operand: Operand) -> Subgraph:
    operands = (replace(operand, lifetime=LIFE.SUBGRAPH_INPUT), replace(result, lifetime=LIFE.SUBGRAPH_OUTPUT))
    return count_consumers(Subgraph(operands, (Operation(int(code), (0,), (1,)),), (0,), (1,)))


def subgraph_operand(number: int) -> Operand:
    """An operand that refers to a graph."""
    return Operand(OperandType.SUBGRAPH, lifetime=LIFE.SUBGRAPH, location=DataLocation(offset=number))


def branching() -> Model:
    """IF: FLOOR or RELU of a quantised or float tensor."""
    tensor = Operand(F32, (2,))
    branches = tuple(_unary_graph(code, tensor, tensor) for code in (OperationType.FLOOR, OperationType.RELU))
    operands = (
        Operand(B8, (1,), lifetime=LIFE.SUBGRAPH_INPUT),
        subgraph_operand(0),
        subgraph_operand(1),
        replace(tensor, lifetime=LIFE.SUBGRAPH_INPUT),
        replace(tensor, lifetime=LIFE.SUBGRAPH_OUTPUT),
    )
    operations = (Operation(int(OperationType.IF), (0, 1, 2, 3), (4,)),)
    return Model(count_consumers(Subgraph(operands, operations, (0, 3), (4,))), branches)


def looping() -> Model:
    """WHILE: the condition turns the one-element state into a boolean, the body takes its absolute value."""
    state = Operand(F32, (1,))
    inner = (
        replace(state, lifetime=LIFE.SUBGRAPH_INPUT),
        replace(state, lifetime=LIFE.SUBGRAPH_INPUT),
        Operand(B8, (1,), lifetime=LIFE.SUBGRAPH_OUTPUT),
    )
    less = Operation(int(OperationType.LESS), (0, 1), (2,))
    condition = count_consumers(Subgraph(inner, (less,), (0, 1), (2,)))
    body_operands = (*inner[:2], replace(state, lifetime=LIFE.SUBGRAPH_OUTPUT))
    body_step = Operation(int(OperationType.FLOOR), (0,), (2,))
    body = count_consumers(Subgraph(body_operands, (body_step,), (0, 1), (2,)))
    operands = (
        subgraph_operand(0),
        subgraph_operand(1),
        replace(state, lifetime=LIFE.SUBGRAPH_INPUT),
        replace(state, lifetime=LIFE.SUBGRAPH_INPUT),
        replace(state, lifetime=LIFE.SUBGRAPH_OUTPUT),
    )
    operations = (Operation(int(OperationType.WHILE), (0, 1, 2, 3), (4,)),)
    return Model(count_consumers(Subgraph(operands, operations, (2, 3), (4,))), (condition, body))


# --- edits ---


def labels(model: Model, level: FeatureLevel = FL8) -> list[str]:
    """Labels of what is wrong with a model."""
    return [violation.label for violation in violations(model, level)]


def edit(model: Model, index: int, **changes: Any) -> Model:
    """The model with other fields of one operand."""
    operands = list(model.main.operands)
    operands[index] = replace(operands[index], **changes)
    return replace(model, main=replace(model.main, operands=tuple(operands)))


def main(model: Model, **changes: Any) -> Model:
    """The model with other fields of its main graph, consumers counted anew."""
    return replace(model, main=count_consumers(replace(model.main, **changes)))


def operation(model: Model, number: int, **changes: Any) -> Model:
    """The model with other fields of one operation, consumers counted anew."""
    steps = list(model.main.operations)
    steps[number] = replace(steps[number], **changes)
    return main(model, operations=tuple(steps))


def grown(model: Model, *operands: Operand) -> Model:
    """The model with more operands."""
    return main(model, operands=(*model.main.operands, *operands))


def in_pool(model: Model, *pools: Any) -> Model:
    """The model of `addition` with its constant in pool 0 of these."""
    constant = {"lifetime": LIFE.CONSTANT_REFERENCE, "location": DataLocation(0, 4, 4)}
    return replace(edit(model, 2, **constant), pools=pools)


def closed() -> SharedMemory:
    """A pool that is closed."""
    memory = SharedMemory.create(8)
    memory.close()
    return memory


def one_operation(code: OperationType, inputs: list[Operand], outputs: list[Operand]) -> Model:
    """A model of one operation whose operands are all inputs."""
    operands = [replace(o, lifetime=LIFE.SUBGRAPH_INPUT) for o in inputs]
    operands += [replace(o, lifetime=LIFE.SUBGRAPH_OUTPUT) for o in outputs]
    ins, outs = tuple(range(len(inputs))), tuple(range(len(inputs), len(operands)))
    return Model(count_consumers(Subgraph(tuple(operands), (Operation(int(code), ins, outs),), ins, outs)))
