"""What a translator sees of an operation: operands by name, constants as values, and the file under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from ai_edge_litert.schema_py_generated import TensorType

from drivers.litert_translate.flatbuffer import NO_TENSOR, FlatGraph, Quantization
from nnhal.model import (
    ChannelQuant,
    Model,
    Operand,
    Operation,
    Subgraph,
    constant_bytes,
    constant_value,
    is_known,
    is_tensor,
    operand_size,
)
from nnhal.operations import OperandDef, operations
from nnhal.types import Array, OperandLifeTime, OperandType

MOST_FUSED = 3  # the highest code of a fused activation
CONSTANTS = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)

TENSOR_TYPES: dict[int, int] = {
    OperandType.TENSOR_FLOAT32: TensorType.FLOAT32,
    OperandType.TENSOR_FLOAT16: TensorType.FLOAT16,
    OperandType.TENSOR_INT32: TensorType.INT32,
    OperandType.TENSOR_BOOL8: TensorType.BOOL,
    OperandType.TENSOR_QUANT8_ASYMM: TensorType.UINT8,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: TensorType.INT8,
    OperandType.TENSOR_QUANT8_SYMM: TensorType.INT8,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: TensorType.INT8,
    OperandType.TENSOR_QUANT16_SYMM: TensorType.INT16,
    OperandType.TENSOR_QUANT16_ASYMM: TensorType.UINT16,
    OperandType.FLOAT32: TensorType.FLOAT32,  # scalars, where they are not attributes: tensors of rank 0
    OperandType.FLOAT16: TensorType.FLOAT16,
    OperandType.INT32: TensorType.INT32,
    OperandType.UINT32: TensorType.UINT32,
    OperandType.BOOL: TensorType.BOOL,
}


class UntranslatableError(Exception):
    """An operation has no equivalent; the message is the reason, half a sentence."""


class Tensors:
    """The tensors of a graph in a file that stand for the operands of a model's graph, added when first asked for.

    Attributes:
        model: holds the constants.
        graph: the main one or one that it refers to.
        flat: the graph in the file.
    """

    def __init__(self, model: Model, graph: Subgraph, flat: FlatGraph, branch: Callable[[Subgraph], int]) -> None:
        self.model = model
        self.graph = graph
        self.flat = flat
        self.branch = branch
        self._indexes: dict[int, int] = {}

    def index(self, operand_index: int) -> int:
        """The tensor of an operand.

        Raises:
            UntranslatableError: the operand has no equivalent.
        """
        if operand_index not in self._indexes:
            self._indexes[operand_index] = self._add(operand_index)
        return self._indexes[operand_index]

    def _add(self, operand_index: int) -> int:
        operand = self.graph.operands[operand_index]
        kind = TENSOR_TYPES.get(operand.type)
        if kind is None:
            raise UntranslatableError(f"operand {operand_index} has a type for which LiteRT has no tensor")
        if is_tensor(operand.type) and not is_known(operand.dimensions):
            raise UntranslatableError(f"operand {operand_index} has dimensions that are known at execution only")
        data = constant_bytes(self.model, operand) if operand.lifetime in CONSTANTS else None
        return self.flat.tensor(operand.dimensions, kind, data, quantization(operand))

    def share(self, operand_index: int, tensor: int) -> None:
        """Lets an operand that has no tensor yet be one that is there."""
        if operand_index in self._indexes:
            raise UntranslatableError(f"operand {operand_index} has a tensor before the operation that gives it")
        self._indexes[operand_index] = tensor

    def readers(self, operand_index: int) -> int:
        """How often an operand is read: by operations, and as an output of the graph."""
        reads = sum(operation.inputs.count(operand_index) for operation in self.graph.operations)
        return reads + self.graph.output_indexes.count(operand_index)


def quantization(operand: Operand) -> Quantization | None:
    """Scales and zero points of an operand, None where it has none."""
    channels = operand.extra_params
    if isinstance(channels, ChannelQuant):
        return Quantization(channels.scales, (0,) * len(channels.scales), channels.channel_dim)
    if operand.scale > 0:
        return Quantization((operand.scale,), (operand.zero_point,))
    return None


@lru_cache(maxsize=4096)
def _layout(
    code: int, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], Mapping[str, OperandDef]] | None:
    """Names of the inputs and results of an operation, and the operands of its form."""
    described = operations().get(code)
    signature = described.match(inputs, outputs) if described is not None else None
    if described is None or signature is None:
        return None
    operands = {operand.name: operand for operand in signature.form.operands}
    return signature.form.names(len(inputs)), described.result_names(len(outputs)), operands


class Node:
    """One operation of a model, and where to put its translation.

    Attributes:
        flat: the file under way.
        inputs: indexes of the operands that go in, in order.
        results: indexes of the operands that come out, in order.
    """

    def __init__(self, tensors: Tensors, operation: Operation) -> None:
        self._tensors = tensors
        self._model = tensors.model
        self.flat = tensors.flat
        self.inputs = operation.inputs
        self.results = operation.outputs
        self._operands = operands = tensors.graph.operands
        kinds = tuple(operands[i].type for i in operation.inputs)
        layout = _layout(operation.type, kinds, tuple(operands[i].type for i in operation.outputs))
        if layout is None:
            raise UntranslatableError("the operation has no signature with these operand types")
        self._names = dict(zip(layout[0], self.inputs, strict=True))
        self._names.update(zip(layout[1], self.results, strict=True))
        self._form = layout[2]
        for name in layout[0]:
            if not self.has(name) and not self._may_be_omitted(name):
                raise UntranslatableError(f"{name} is left out, and LiteRT needs it")

    def __getitem__(self, name: str) -> Operand:
        """The operand of that name."""
        return self._operands[self._names[name]]

    def has(self, name: str) -> bool:
        """Whether an input is given and not omitted."""
        return name in self._names and self[name].lifetime != OperandLifeTime.NO_VALUE

    def _may_be_omitted(self, name: str) -> bool:
        described = self._form.get(name)  # none where the name is one of several that one operand stands for
        return described is not None and (described.omittable or described.default is not None)

    def is_constant(self, name: str) -> bool:
        """Whether the value of an operand stands in the model."""
        return self[name].lifetime in CONSTANTS

    def tensor(self, name: str) -> int:
        """The tensor that stands for an operand."""
        return self._tensors.index(self._names[name])

    def tensor_of(self, index: int) -> int:
        """The tensor that stands for an operand known by index, where a name stands for several."""
        return self._tensors.index(index)

    def constant_with(self, name: str, known: Quantization) -> int:
        """A constant operand's value once more, with scales that the operand itself does not have."""
        data = constant_bytes(self._model, self[name])
        return self.flat.tensor(self.shape(name), TENSOR_TYPES[self[name].type], data, known)

    def optional(self, name: str) -> int:
        """The tensor that stands for an operand, or none where it is omitted or left off."""
        return self.tensor(name) if self.has(name) else NO_TENSOR

    def optionals(self, *names: Sequence[str]) -> list[int]:
        """The same of several operands."""
        return [self.optional(name) for group in names for name in group]

    def tensors(self, *names: str) -> list[int]:
        """The tensors that stand for several operands."""
        return [self.tensor(name) for name in names]

    def quantizations(self) -> set[Quantization | None]:
        """What scales and zero points the quantised inputs and results have."""
        operands = [self._operands[i] for i in (*self.inputs, *self.results)]
        return {quantization(operand) for operand in operands if operand.scale > 0}

    def all_inputs(self, count: int | None = None) -> list[int]:
        """The tensors that stand for the first inputs, all that are tensors when no number is given."""
        return [self._tensors.index(i) for i in self.inputs[:count] if is_tensor(self._operands[i].type)]

    def all_results(self) -> list[int]:
        """The tensors that stand for the results."""
        return [self._tensors.index(i) for i in self.results]

    def value(self, name: str) -> Array:
        """The value of a constant operand in its stored form.

        Raises:
            UntranslatableError: the operand is not constant.
        """
        if not self.is_constant(name):
            what = "the translation needs it" if is_tensor(self[name].type) else "LiteRT has it as an attribute"
            raise UntranslatableError(f"{name} is no constant, and {what}")
        return constant_value(self._model, self[name])

    def integer(self, name: str) -> int:
        """An integer scalar, or its default where it is left off."""
        if name not in self._names:
            return int(self._form[name].default or 0)
        return int(self.value(name).item())

    def knows(self, name: str) -> bool:
        """Whether the operation's form has an operand of that name, given or left off."""
        return name in self._form

    def flag(self, name: str) -> bool:
        """A boolean scalar, or its default where it is left off."""
        return self.integer(name) != 0

    def fused(self) -> int:
        """The activation that is fused to the operation: its code is the same in LiteRT's files."""
        code = self.integer("activation")
        if not 0 <= code <= MOST_FUSED:
            raise UntranslatableError(f"there is no activation with code {code}")
        return code

    def real(self, name: str) -> float:
        """A real scalar."""
        return float(self.value(name).item())

    def ints(self, name: str) -> tuple[int, ...]:
        """A constant tensor of integers as Python numbers."""
        return tuple(int(x) for x in np.atleast_1d(self.value(name)))

    def shape(self, name: str) -> tuple[int, ...]:
        """Dimensions of a tensor operand, all known."""
        self.tensor(name)
        return self[name].dimensions

    def axis(self, name: str, rank: int) -> int:
        """An axis counted from the front."""
        axis = self.integer(name)
        return axis + rank if axis < 0 else axis

    def state(self, name: str, result: str = "") -> int:
        """A tensor for an operator that changes an input in place: what it leaves there is a result.

        It stands for both operands where the input is the graph's and nothing else reads it, else it holds a copy.

        Args:
            name: of the input.
            result: of the result; it need not be there.
        """
        index = self._names[name]
        tensor = self._tensors.index(index)
        if self[name].lifetime != OperandLifeTime.SUBGRAPH_INPUT or self._tensors.readers(index) > 1:
            given, tensor = tensor, self.flat.like(tensor)
            whole = [self.flat.ints([0, 0]), self.flat.ints(self.shape(name))]
            self.add("SLICE", [given, *whole], [tensor], "SliceOptions")
        self.flat.make_variable(tensor)
        if result in self._names:
            self._tensors.share(self._names[result], tensor)
        return tensor

    def copy(self, given: int, tensor: int, shape: Sequence[int]) -> None:
        """Copies a tensor into another one of the same elements, whose shape is told."""
        self.add("RESHAPE", [given, self.flat.ints(shape)], [tensor], "ReshapeOptions", NewShape=shape)

    def zeros(self, name: str) -> None:
        """Gives a result that no operator writes, because it may hold anything."""
        operand = self[name]
        data = bytes(operand_size(operand))
        tensor = self.flat.tensor(operand.dimensions, TENSOR_TYPES[operand.type], data, quantization(operand))
        self._tensors.share(self._names[name], tensor)

    def branch(self, graph: Subgraph) -> int:
        """Translates a graph that the operation runs; its number in the file."""
        return self._tensors.branch(graph)

    def graph(self, name: str) -> Subgraph:
        """The graph that an operand refers to."""
        return self._model.referenced[self[name].location.offset]

    def add(
        self,
        operator: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str | None = None,
        **fields: int | float | bool | Sequence[int],
    ) -> None:
        """Adds an operator to the file; see `FlatGraph.operator`."""
        self.flat.operator(operator, inputs, outputs, options, **fields)

    def add_to_vector(
        self,
        operator: str,
        inputs: Sequence[int],
        options: str | None = None,
        **fields: int | float | bool | Sequence[int],
    ) -> None:
        """Adds an operator whose only result has rank 0 in LiteRT; NNAPI, which has no such tensors, calls it [1]."""
        (output,) = self.all_results()
        scalar = self.flat.like(output, ())
        self.flat.operator(operator, inputs, [scalar], options, **fields)
        self.copy(scalar, output, (1,))
