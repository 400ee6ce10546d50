"""Writes a .tflite file: tensors, operators and buffers, through the builder functions of the schema that LiteRT ships.

Stands between the translators, which add tensors and operators, and the runner, which gets the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

FILE_IDENTIFIER = b"TFL3"
SCHEMA_VERSION = 3
ALIGNMENT = 16  # bytes; what LiteRT asks of constant data
LARGEST_OLD_CODE = 127  # operator codes above it stand in the new field alone
NO_TENSOR = -1  # an optional input that is left out
ORDER_KEY = "model_control_dependencies"  # without it a delegate may run operators earlier than the file has them
ORDER_VERSION = 1
GROUP, LAST_GROUP = 7, 127  # bits of a number in that entry, and the largest number of a last byte

OptionValue = int | float | bool | Sequence[int]


@dataclass(frozen=True)
class Quantization:
    """Scales and zero points of a tensor: one of each, or one for every index along `dimension`."""

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    dimension: int = 0


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    type: int
    buffer: int
    quantization: Quantization | None
    variable: bool = False


@dataclass(frozen=True)
class _Operator:
    code: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: str | None
    fields: Mapping[str, OptionValue]
    intermediates: tuple[int, ...] = ()

    @property
    def graphs(self) -> tuple[int, ...]:
        """Numbers of the graphs that it runs."""
        return tuple(int(str(value)) for name, value in self.fields.items() if name.endswith("SubgraphIndex"))


class FlatModel:
    """A file under way: its graphs, the first of which is the one that is run, and their constant data.

    The other graphs get a name, so that a runner can try them out. For one with a loop, which might not end, a graph of
    its other operators is added and gets a name instead; also for the first one.
    """

    def __init__(self) -> None:
        self._buffers: list[bytes | memoryview] = [b""]  # the first one stays empty: tensors without data
        self._graphs: list[FlatGraph] = []

    def graph(self) -> FlatGraph:
        """Adds a graph without tensors."""
        self._graphs.append(FlatGraph(self._buffers, len(self._graphs)))
        return self._graphs[-1]

    def finish(self) -> bytes:
        """The file."""
        loops = {graph.number: self._loops(graph) for graph in self._graphs}
        tried = [graph for graph in self._graphs[1:] if not loops[graph.number]]
        rests = [graph for graph in self._graphs if 0 < len(loops[graph.number]) < len(graph.operators)]
        graphs = list(self._graphs)
        for graph in rests:
            graphs.append(graph.without(loops[graph.number], len(graphs)))
        tried += graphs[len(self._graphs) :]
        order = _order(graphs)
        metadata = len(self._buffers)
        data = [*self._buffers, order] if order else self._buffers
        out = _Writer(1024 + sum(len(part) + ALIGNMENT for part in data))
        buffers = out.tables([out.buffer(part) for part in data])
        codes = sorted({operator.code for graph in graphs for operator in graph.operators})
        subgraphs = out.tables([out.subgraph(graph, codes) for graph in graphs])
        signatures = out.tables([out.signature(graph) for graph in tried]) if tried else 0
        kept = out.tables([out.metadata(ORDER_KEY, metadata)]) if order else 0
        return out.model(out.tables([out.operator_code(code) for code in codes]), subgraphs, buffers, signatures, kept)

    def _loops(self, graph: FlatGraph) -> tuple[_Operator, ...]:
        """The operators of a graph that are loops, or run graphs with loops."""
        return tuple(operator for operator in graph.operators if self._loop(operator))

    def _loop(self, operator: _Operator) -> bool:
        if operator.code == schema.BuiltinOperator.WHILE:
            return True
        return any(self._loops(self._graphs[number]) for number in operator.graphs)


class FlatGraph:
    """A graph under way, whose tensors and operators are known by index.

    Attributes:
        number: of the graph in its file.
        tensors: in order.
        operators: in order of execution.
        inputs: indexes of the tensors that go in, in order.
        outputs: indexes of the tensors that come out, in order.
    """

    def __init__(self, buffers: list[bytes | memoryview], number: int) -> None:
        self._buffers = buffers
        self.number = number
        self.tensors: list[_Tensor] = []
        self.operators: list[_Operator] = []
        self.inputs: tuple[int, ...] = ()
        self.outputs: tuple[int, ...] = ()

    def without(self, left_out: Sequence[_Operator], number: int) -> FlatGraph:
        """The graph of the other operators, which is given what these would give."""
        rest = FlatGraph(self._buffers, number)
        rest.tensors = self.tensors
        rest.operators = [operator for operator in self.operators if operator not in left_out]
        rest.inputs = (*self.inputs, *(index for operator in left_out for index in operator.outputs))
        rest.outputs = self.outputs
        return rest

    def order(self) -> list[tuple[int, int]]:
        """Which operator must come before which other ones, beside those that take what it gives.

        An operator that changes a variable tensor is the first to read it; those that read it later want the change.
        """
        pairs = []
        for index, tensor in enumerate(self.tensors):
            if tensor.variable:
                readers = [place for place, operator in enumerate(self.operators) if index in operator.inputs]
                pairs += [(readers[0], later) for later in readers[1:]]
        return pairs

    def tensor(
        self,
        shape: Sequence[int],
        tensor_type: int,
        data: bytes | memoryview | None = None,
        quantization: Quantization | None = None,
    ) -> int:
        """Adds a tensor, a constant if it has data, and gives its index."""
        buffer = 0
        if data is not None:
            buffer = len(self._buffers)
            self._buffers.append(data)
        self.tensors.append(_Tensor(tuple(shape), tensor_type, buffer, quantization))
        return len(self.tensors) - 1

    def ints(self, values: Sequence[int], shape: Sequence[int] | None = None) -> int:
        """Adds a constant INT32 tensor, of rank 1 unless a shape is given."""
        data = np.asarray(values, np.int32)
        return self.tensor(data.shape if shape is None else shape, schema.TensorType.INT32, data.tobytes())

    def like(self, index: int, shape: Sequence[int] | None = None) -> int:
        """Adds a tensor with the type and quantisation of another one, and its shape unless one is given."""
        known = self.tensors[index]
        return self.tensor(known.shape if shape is None else shape, known.type, None, known.quantization)

    def make_variable(self, index: int) -> None:
        """Lets a tensor keep what an operator leaves in it."""
        self.tensors[index] = replace(self.tensors[index], variable=True)

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str | None = None,
        **fields: OptionValue,
    ) -> None:
        """Adds an operator.

        Args:
            name: of the builtin operator, as in the schema.
            inputs: indexes of tensors, NO_TENSOR where one is left out.
            outputs: indexes of tensors.
            options: name of its table of options, None for an operator without one.
            fields: the options by their names in the schema's builder functions; what is left out has its default.
        """
        code: int = getattr(schema.BuiltinOperator, name)
        self.operators.append(_Operator(code, tuple(inputs), tuple(outputs), options, fields))

    def scale_between(self, tensors: Sequence[int]) -> None:
        """Gives the last operator tensors without values: they say the scales of what it computes on the way."""
        self.operators[-1] = replace(self.operators[-1], intermediates=tuple(tensors))


def _order(graphs: Sequence[FlatGraph]) -> bytes:
    """What a delegate must know of the order of operators, as LiteRT keeps it in a file; empty where there is nothing.

    Numbers are in groups of seven bits, the lowest first; those of operators, which could be negative, are doubled.
    """
    pairs = [graph.order() for graph in graphs]
    if not any(pairs):
        return b""
    numbers = [ORDER_VERSION, len(pairs)]
    for own in pairs:
        numbers += [len(own), *(2 * place for pair in own for place in pair)]
    return b"".join(_groups(number) for number in numbers)


def _groups(number: int) -> bytes:
    groups = bytearray()
    while number > LAST_GROUP:
        groups.append(number & LAST_GROUP | LAST_GROUP + 1)
        number >>= GROUP
    return bytes([*groups, number])


class _Writer:
    """The file being written, back to front: what a table refers to is there before the table.

    Vectors and quantisation that several tables have in common are written once, which halves the time.
    """

    def __init__(self, size: int) -> None:
        self._builder = flatbuffers.Builder(size)
        self._vectors: dict[tuple[type[np.generic], tuple[float, ...]], int] = {}
        self._quantizations: dict[Quantization, int] = {}

    def vector(self, values: tuple[float, ...], dtype: type[np.generic] = np.int32) -> int:
        """A vector of numbers."""
        key = (dtype, values)
        if key not in self._vectors:
            self._vectors[key] = self._builder.CreateNumpyVector(np.array(values, dtype))
        return self._vectors[key]

    def tables(self, offsets: Sequence[int]) -> int:
        """A vector of tables that are written already."""
        builder = self._builder
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        end: int = builder.EndVector()
        return end

    def buffer(self, data: bytes | memoryview) -> int:
        """A buffer; its data begin at a multiple of ALIGNMENT."""
        builder, vector = self._builder, 0
        if len(data):
            builder.Prep(ALIGNMENT, len(data))
            vector = builder.CreateByteVector(bytes(data))
        schema.BufferStart(builder)
        if vector:
            schema.BufferAddData(builder, vector)
        end: int = schema.BufferEnd(builder)
        return end

    def quantization(self, known: Quantization) -> int:
        """Scales and zero points of a tensor."""
        if known not in self._quantizations:
            scales = self.vector(known.scales, np.float32)
            zero_points = self.vector(known.zero_points, np.int64)
            schema.QuantizationParametersStart(self._builder)
            schema.QuantizationParametersAddScale(self._builder, scales)
            schema.QuantizationParametersAddZeroPoint(self._builder, zero_points)
            schema.QuantizationParametersAddQuantizedDimension(self._builder, known.dimension)
            self._quantizations[known] = schema.QuantizationParametersEnd(self._builder)
        return self._quantizations[known]

    def tensor(self, tensor: _Tensor) -> int:
        """A tensor without a name."""
        shape = self.vector(tensor.shape)
        quantization = self.quantization(tensor.quantization) if tensor.quantization else 0
        schema.TensorStart(self._builder)
        schema.TensorAddShape(self._builder, shape)
        schema.TensorAddType(self._builder, tensor.type)
        schema.TensorAddBuffer(self._builder, tensor.buffer)
        if quantization:
            schema.TensorAddQuantization(self._builder, quantization)
        if tensor.variable:
            schema.TensorAddIsVariable(self._builder, True)
        schema.TensorAddHasRank(self._builder, True)
        end: int = schema.TensorEnd(self._builder)
        return end

    def operator(self, operator: _Operator, code_index: int) -> int:
        """An operator and its options."""
        options = self.options(operator.options, operator.fields) if operator.options else 0
        inputs, outputs = self.vector(operator.inputs), self.vector(operator.outputs)
        intermediates = self.vector(operator.intermediates) if operator.intermediates else 0
        schema.OperatorStart(self._builder)
        schema.OperatorAddOpcodeIndex(self._builder, code_index)
        schema.OperatorAddInputs(self._builder, inputs)
        schema.OperatorAddOutputs(self._builder, outputs)
        if operator.options:
            kind = getattr(schema.BuiltinOptions, operator.options)
            schema.OperatorAddBuiltinOptionsType(self._builder, kind)
            schema.OperatorAddBuiltinOptions(self._builder, options)
        if intermediates:
            schema.OperatorAddIntermediates(self._builder, intermediates)
        end: int = schema.OperatorEnd(self._builder)
        return end

    def options(self, table: str, fields: Mapping[str, OptionValue]) -> int:
        """A table of options; the schema has a function for its start, for its end and for each of its fields."""
        written = {n: self.vector(tuple(v)) if isinstance(v, Sequence) else v for n, v in fields.items()}
        _function(f"{table}Start")(self._builder)
        for name, value in written.items():
            _function(f"{table}Add{name}")(self._builder, value)
        end: int = _function(f"{table}End")(self._builder)
        return end

    def operator_code(self, code: int) -> int:
        """Which operator a number in the file means."""
        schema.OperatorCodeStart(self._builder)
        schema.OperatorCodeAddDeprecatedBuiltinCode(self._builder, min(code, LARGEST_OLD_CODE))
        schema.OperatorCodeAddBuiltinCode(self._builder, code)
        end: int = schema.OperatorCodeEnd(self._builder)
        return end

    def subgraph(self, graph: FlatGraph, codes: Sequence[int]) -> int:
        """A graph.

        Args:
            graph: complete.
            codes: which operators the numbers in the file mean.
        """
        operators = self.tables([self.operator(o, codes.index(o.code)) for o in graph.operators])
        tensors = self.tables([self.tensor(tensor) for tensor in graph.tensors])
        taken, given = self.vector(graph.inputs), self.vector(graph.outputs)
        schema.SubGraphStart(self._builder)
        schema.SubGraphAddTensors(self._builder, tensors)
        schema.SubGraphAddInputs(self._builder, taken)
        schema.SubGraphAddOutputs(self._builder, given)
        schema.SubGraphAddOperators(self._builder, operators)
        end: int = schema.SubGraphEnd(self._builder)
        return end

    def signature(self, graph: FlatGraph) -> int:
        """A name for a graph: its number; and for what goes in and out, without inputs that nothing reads."""
        read = {index for operator in graph.operators for index in operator.inputs}.union(graph.outputs)
        inputs = [index for index in graph.inputs if index in read]
        taken, given = self.tables(self.names(inputs)), self.tables(self.names(graph.outputs))
        key = self._builder.CreateString(str(graph.number))
        schema.SignatureDefStart(self._builder)
        schema.SignatureDefAddInputs(self._builder, taken)
        schema.SignatureDefAddOutputs(self._builder, given)
        schema.SignatureDefAddSignatureKey(self._builder, key)
        schema.SignatureDefAddSubgraphIndex(self._builder, graph.number)
        end: int = schema.SignatureDefEnd(self._builder)
        return end

    def names(self, indexes: Sequence[int]) -> list[int]:
        """Tensors with their places in a list as names."""
        tables = []
        for place, index in enumerate(indexes):
            name = self._builder.CreateString(str(place))
            schema.TensorMapStart(self._builder)
            schema.TensorMapAddName(self._builder, name)
            schema.TensorMapAddTensorIndex(self._builder, index)
            tables.append(schema.TensorMapEnd(self._builder))
        return tables

    def metadata(self, key: str, buffer: int) -> int:
        """An entry that the schema does not know; its value is a buffer."""
        name = self._builder.CreateString(key)
        schema.MetadataStart(self._builder)
        schema.MetadataAddName(self._builder, name)
        schema.MetadataAddBuffer(self._builder, buffer)
        end: int = schema.MetadataEnd(self._builder)
        return end

    def model(self, operator_codes: int, subgraphs: int, buffers: int, signatures: int, metadata: int) -> bytes:
        """Ends the file and gives its bytes."""
        schema.ModelStart(self._builder)
        schema.ModelAddVersion(self._builder, SCHEMA_VERSION)
        schema.ModelAddOperatorCodes(self._builder, operator_codes)
        schema.ModelAddSubgraphs(self._builder, subgraphs)
        schema.ModelAddBuffers(self._builder, buffers)
        if signatures:
            schema.ModelAddSignatureDefs(self._builder, signatures)
        if metadata:
            schema.ModelAddMetadata(self._builder, metadata)
        self._builder.Finish(schema.ModelEnd(self._builder), file_identifier=FILE_IDENTIFIER)
        return bytes(self._builder.Output())


@cache
def _function(name: str) -> Callable[..., int]:
    found: Callable[..., int] = getattr(schema, name)
    return found
