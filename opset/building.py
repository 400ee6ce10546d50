"""Puts graphs of the contract together, operand by operand, with the constants and graphs that they refer to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nnhal.model import (
    DataLocation,
    Model,
    Operand,
    Operation,
    Subgraph,
    constant_bytes,
    is_tensor,
)
from nnhal.types import OperandLifeTime, OperandType
from opset.call import Argument

CONSTANT_ALIGNMENT = 4  # bytes; where a constant starts in the model's values
SCALARS = frozenset(kind for kind in OperandType if not is_tensor(kind))
NOWHERE = DataLocation()
_CONSTANTS = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)


@dataclass
class GraphBuilder:
    """Puts a graph together operand by operand; constants gather in `values`, graphs it refers to in `referenced`."""

    operands: list[Operand] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    values: bytearray = field(default_factory=bytearray)
    referenced: list[Subgraph] = field(default_factory=list)

    def operand(self, argument: Argument, lifetime: OperandLifeTime) -> int:
        """Adds an operand with the type, shape and quantisation of an argument, and its value if it is a constant."""
        location = NOWHERE
        if lifetime == OperandLifeTime.CONSTANT_COPY:
            if argument.value is None:
                raise ValueError("a constant needs a value")
            location = self._constant(argument.value.tobytes())
        elif lifetime == OperandLifeTime.SUBGRAPH:
            if argument.branch is None:
                raise ValueError("a subgraph operand needs a graph")
            location = DataLocation(offset=self.embed(argument.branch.model))
        made = object.__new__(Operand)
        own = made.__dict__
        own["type"] = argument.type
        own["dimensions"] = (argument.declared or argument.shape) if argument.type not in SCALARS else ()
        own["scale"] = argument.scale
        own["zero_point"] = argument.zero_point
        own["lifetime"] = lifetime
        own["location"] = location
        own["extra_params"] = argument.channel
        own["number_of_consumers"] = 0
        index = len(self.operands)
        self.operands.append(made)
        if lifetime == OperandLifeTime.SUBGRAPH_INPUT:
            self.inputs.append(index)
        elif lifetime == OperandLifeTime.SUBGRAPH_OUTPUT:
            self.outputs.append(index)
        return index

    def embed(self, model: Model) -> int:
        """Takes a model's main graph in as a referenced one, with all it refers to, and gives its number."""
        numbers: dict[int, int] = {}  # of the model's referenced graphs that are taken in already

        def place(graph: Subgraph) -> int:
            number = len(self.referenced)
            self.referenced.append(graph)
            self.referenced[number] = replace(graph, operands=tuple(moved(operand) for operand in graph.operands))
            return number

        def moved(operand: Operand) -> Operand:
            if operand.lifetime in _CONSTANTS:
                location = self._constant(bytes(constant_bytes(model, operand)))
                return replace(operand, lifetime=OperandLifeTime.CONSTANT_COPY, location=location)
            if operand.type == OperandType.SUBGRAPH:
                due = operand.location.offset
                if due not in numbers:
                    numbers[due] = place(model.referenced[due])
                return replace(operand, location=DataLocation(offset=numbers[due]))
            return operand

        return place(model.main)

    def subgraph(self) -> Subgraph:
        """The finished graph, consumers counted."""
        reads = [0] * len(self.operands)
        for operation in self.operations:
            for index in operation.inputs:
                reads[index] += 1
        for operand, number in zip(self.operands, reads, strict=True):
            operand.__dict__["number_of_consumers"] = number  # nobody else holds them yet
        return Subgraph(tuple(self.operands), tuple(self.operations), tuple(self.inputs), tuple(self.outputs))

    def model(self, relaxed: bool = False) -> Model:
        """The finished graph with its constants and the graphs it refers to."""
        return Model(
            self.subgraph(),
            tuple(self.referenced),
            bytes(self.values),
            relax_computation_float32_to_float16=relaxed,
        )

    def _constant(self, data: bytes) -> DataLocation:
        values = self.values
        over = len(values) % CONSTANT_ALIGNMENT
        if over:
            values += bytes(CONSTANT_ALIGNMENT - over)
        location = object.__new__(DataLocation)
        own = location.__dict__
        own["pool_index"] = 0
        own["offset"] = len(values)
        own["length"] = len(data)
        own["padding"] = 0
        values += data
        return location
