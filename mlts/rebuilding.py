"""The same graph once more with other constants and types: what quantisation and its repair have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from importers.assembling import Assembly, Kind
from nnhal.errors import UsageError
from nnhal.model import Model, Operand, constant_value, is_tensor
from nnhal.types import Array, FusedActivation, OperandLifeTime, OperandType, OperationType

CONSTANTS = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)
WEIGHTED = frozenset({OperationType.CONV_2D, OperationType.DEPTHWISE_CONV_2D, OperationType.FULLY_CONNECTED})
INPUT, FILTER, BIAS = 0, 1, 2  # positions among the inputs of these
Place = tuple[int, int]  # number of an operation, position among its inputs


@dataclass(frozen=True)
class Weighted:
    """An operation that multiplies with constants.

    Attributes:
        number: of the operation.
        image: operand that it reads.
        result: operand that it writes.
    """

    number: int
    code: int
    image: int
    result: int
    filter: Array
    bias: Array
    relu6: bool

    @property
    def depthwise(self) -> bool:
        """Whether each channel has a filter of its own."""
        return self.code == OperationType.DEPTHWISE_CONV_2D


def weighted(model: Model) -> list[Weighted]:
    """The operations with constant filters and biases, in order.

    Raises:
        UsageError: a filter or bias is no constant of float32.
    """
    found = []
    graph = model.main
    for number, operation in enumerate(graph.operations):
        if operation.type not in WEIGHTED:
            continue
        parts = [graph.operands[operation.inputs[position]] for position in (FILTER, BIAS)]
        if any(p.lifetime not in CONSTANTS or p.type != OperandType.TENSOR_FLOAT32 for p in parts):
            raise UsageError(f"operation {number} of the model has a filter or bias that is no constant of float32")
        values = [constant_value(model, part) for part in parts]
        activation = int(constant_value(model, graph.operands[operation.inputs[-1]]).item())
        image, result = operation.inputs[INPUT], operation.outputs[0]
        clips = activation == FusedActivation.RELU6
        found.append(Weighted(number, operation.type, image, result, values[0], values[1], clips))
    return found


def rebuilt(model: Model, kinds: Mapping[int, Kind], constants: Mapping[Place, tuple[Kind, Array]]) -> Model:
    """The model with other types and constants; what is not named stays as it is.

    Args:
        model: without graphs of its own within operations.
        kinds: for operands that are no constants, by index.
        constants: for constant tensors, by where they are read.
    """
    graph, assembly = model.main, Assembly()
    places = {i: assembly.input(_kind(graph.operands[i], i, kinds), graph.operands[i].dimensions)
              for i in graph.input_indexes}  # fmt: skip
    for number, operation in enumerate(graph.operations):
        assembly.origin = number
        inputs = []
        for position, index in enumerate(operation.inputs):
            operand = graph.operands[index]
            if (number, position) in constants:
                kind, value = constants[number, position]
                inputs.append(assembly.constant(kind, value))
            elif index in places:
                inputs.append(places[index])
            else:
                inputs.append(_constant(model, assembly, operand))
        for index in operation.outputs:
            operand = graph.operands[index]
            places[index] = assembly.temporary(_kind(operand, index, kinds), operand.dimensions)
        assembly.add(OperationType(operation.type), inputs, [places[index] for index in operation.outputs])
    return assembly.finish([places[i] for i in graph.output_indexes], model.relax_computation_float32_to_float16)


def _kind(operand: Operand, index: int, kinds: Mapping[int, Kind]) -> Kind:
    own = Kind(OperandType(operand.type), operand.scale, operand.zero_point)
    return kinds.get(index, own)


def _constant(model: Model, assembly: Assembly, operand: Operand) -> int:
    """A constant, or an omitted input, as it is."""
    kind = OperandType(operand.type)
    if operand.lifetime == OperandLifeTime.NO_VALUE:
        return assembly.omitted(kind)
    value = constant_value(model, operand)
    if is_tensor(kind):
        return assembly.constant(Kind(kind, operand.scale, operand.zero_point), value)
    return assembly.scalar(kind, np.asarray(value).item())
