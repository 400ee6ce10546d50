"""Puts the model of a file together, operation by operation: what the importers of all file kinds have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nnhal.model import ChannelQuant, DataLocation, Model, Operand, Operation
from nnhal.types import Array, OperandLifeTime, OperandType, OperationType, info
from opset.building import GraphBuilder
from opset.call import Argument, omitted, scalar

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """What a tensor is, but for its dimensions."""

    type: OperandType
    scale: float = 0.0
    zero_point: int = 0
    channel: ChannelQuant | None = None


FLOAT32 = Kind(OperandType.TENSOR_FLOAT32)
INT32 = Kind(OperandType.TENSOR_INT32)


@dataclass
class Assembly:
    """A model under way: operands by number, operations in the order in which they are added.

    Attributes:
        origin: number of the file's operator whose operations are being added.
        origins: for each operation, that number.
        values: of the constants, by operand.
    """

    origin: int = 0
    origins: list[int] = field(default_factory=list)
    values: dict[int, Array] = field(default_factory=dict)
    _builder: GraphBuilder = field(default_factory=GraphBuilder)
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def input(self, kind: Kind, shape: Shape) -> int:
        """An input of the model; 0 in its shape is a size that only a run knows."""
        return self._operand(kind, shape, OperandLifeTime.SUBGRAPH_INPUT)

    def temporary(self, kind: Kind, shape: Shape) -> int:
        """A tensor that an operation writes; `finish` makes outputs of some."""
        return self._operand(kind, shape, OperandLifeTime.TEMPORARY_VARIABLE)

    def constant(self, kind: Kind, value: Array) -> int:
        """A constant tensor; equal ones share an operand. A value without dimensions becomes one of rank 1."""
        value = np.ascontiguousarray(value, info(kind.type).dtype)
        value = value.reshape(1) if value.ndim == 0 else value
        key = (kind, value.shape, hashlib.blake2b(value.data).digest())
        if key not in self._known:
            argument = Argument(kind.type, value.shape, kind.scale, kind.zero_point, kind.channel, value)
            self._known[key] = self._constant(argument)
        return self._known[key]

    def scalar(self, kind: OperandType, value: float | bool) -> int:
        """A constant without dimensions: a parameter of an operation."""
        key = (kind, "scalar", repr(value))
        if key not in self._known:
            self._known[key] = self._constant(scalar(kind, value))
        return self._known[key]

    def int32(self, value: int) -> int:
        """An INT32 parameter."""
        return self.scalar(OperandType.INT32, value)

    def float32(self, value: float) -> int:
        """A FLOAT32 parameter."""
        return self.scalar(OperandType.FLOAT32, value)

    def flag(self, value: bool) -> int:
        """A BOOL parameter."""
        return self.scalar(OperandType.BOOL, value)

    def omitted(self, kind: OperandType) -> int:
        """An optional input that has no value."""
        key = (kind, "omitted")
        if key not in self._known:
            self._known[key] = self._builder.operand(omitted(kind), OperandLifeTime.NO_VALUE)
        return self._known[key]

    def graph(self, model: Model) -> int:
        """An operand that refers to a graph: the main one of a model, taken in with all it refers to."""
        index = len(self._builder.operands)
        location = DataLocation(offset=self._builder.embed(model))
        self._builder.operands.append(Operand(OperandType.SUBGRAPH, (), 0.0, 0, OperandLifeTime.SUBGRAPH, location))
        return index

    def add(self, operation: OperationType, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Adds an operation of the operator `origin`."""
        self._builder.operations.append(Operation(int(operation), tuple(inputs), tuple(outputs)))
        self.origins.append(self.origin)

    def mark(self) -> tuple[int, int]:
        """A point to go back to: numbers of operands and operations."""
        return len(self._builder.operands), len(self._builder.operations)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Takes back operands and operations that were added since a point. Inputs may not be among them."""
        operands, operations = mark
        del self._builder.operands[operands:], self._builder.operations[operations:], self.origins[operations:]
        while self._known and next(reversed(self._known.values())) >= operands:
            self._known.popitem()

    def what(self, operand: int) -> Operand:
        """What has been said of an operand so far."""
        return self._builder.operands[operand]

    def finish(self, outputs: Sequence[int], relaxed: bool = False) -> Model:
        """The model, whose outputs are these temporary operands."""
        builder = self._builder
        for index in outputs:
            builder.operands[index] = replace(builder.operands[index], lifetime=OperandLifeTime.SUBGRAPH_OUTPUT)
        builder.outputs = list(outputs)
        return builder.model(relaxed)

    def _constant(self, argument: Argument) -> int:
        index = self._builder.operand(argument, OperandLifeTime.CONSTANT_COPY)
        if argument.value is not None:
            self.values[index] = argument.value
        return index

    def _operand(self, kind: Kind, shape: Shape, lifetime: OperandLifeTime) -> int:
        declared = shape if 0 in shape else None
        argument = Argument(kind.type, shape, kind.scale, kind.zero_point, channel=kind.channel, declared=declared)
        return self._builder.operand(argument, lifetime)
