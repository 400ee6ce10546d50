"""What a .tflite file says: graphs of tensors and operators, checked so that later stages may believe it.

Every index is one that exists, the bytes of a constant fit its shape, and operators come in an order in which they can
be run. What the contract cannot express is not looked at here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

import numpy as np

from importers.tflite_file.flat import Flat, Table
from importers.tflite_file.schema import (
    DTYPES,
    FILE_IDENTIFIER,
    IDENTIFIER_AT,
    LARGEST_OLD_CODE,
    LARGEST_RANK,
    NO_TENSOR,
    OPERATORS,
    SCHEMA_VERSION,
    TYPES,
    options_table,
)
from nnhal.types import Array

CUSTOM = "CUSTOM"
MOST_ELEMENTS = 1 << 40  # of a tensor: more than any memory holds
STORED_BEHIND = 1  # offsets of a buffer above it count from the start of the file, not within the flatbuffer


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph.

    Attributes:
        number: in its graph.
        type: its name in the schema.
        shape: sizes as the file has them; -1 and 0 are possible.
        data: of a constant, None for a tensor that a run gives a value.
        scales: none, one, or one for each index along `dimension`.
        zero_points: as many as scales, or none.
        variable: keeps what an operator leaves in it from run to run.
        peculiar: why its data are not plain, such as "sparse"; empty where they are.
    """

    number: int
    name: str
    type: str
    shape: tuple[int, ...]
    data: memoryview | None
    scales: Array
    zero_points: Array
    dimension: int
    variable: bool
    peculiar: str = ""

    @cached_property
    def value(self) -> Array | None:
        """The value of a constant in its dimensions, in place; None where there is none, or of no NumPy type."""
        if self.data is None or self.type not in DTYPES or self.peculiar:
            return None
        if self.type == "BOOL":
            return np.asarray(np.frombuffer(self.data, np.uint8).reshape(self.shape) != 0)
        return np.frombuffer(self.data, DTYPES[self.type]).reshape(self.shape)


@dataclass(frozen=True)
class Operator:
    """An operator of a graph: its name, and the numbers of the tensors that it reads, writes and sizes its work by."""

    number: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    _table: Table

    def options(self, name: str) -> Mapping[str, float] | None:
        """The numbers among its options, with defaults where the file says nothing; None where it has others."""
        table = self._options(name)
        if table is None:
            return None
        fields = options_table(name)[1]
        return {key: table.number(place, form, default) for key, place, form, default in fields if form != "v"}

    def vector(self, name: str, field: str) -> tuple[int, ...]:
        """A vector of integers among its options; empty where the file has none."""
        table = self._options(name)
        places = {key: place for key, place, _, _ in options_table(name)[1]}
        return table.integers(places[field]) if table is not None else ()

    def _options(self, name: str) -> Table | None:
        kind = self._table.integer(3, "B")
        if kind not in (0, options_table(name)[0]):
            return None
        return (self._table.table(4) if kind else None) or Table(_NOTHING, _NOTHING.number("I", 0))


# A file whose root has no fields: options that are left out read as their defaults.
_NOTHING = Flat(bytes((8, 0, 0, 0, 4, 0, 4, 0, 4, 0, 0, 0)), "options")


@dataclass(frozen=True)
class Graph:
    """A graph: tensors by number, operators in order, and the tensors that go in and come out."""

    number: int
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def read(data: bytes, name: str) -> tuple[Graph, ...]:
    """The graphs of a .tflite file, of which the first is the one that is run.

    Raises:
        UnreadableFile: the file is damaged, or its schema is another one.
    """
    flat = Flat(data, name)
    if data[IDENTIFIER_AT : IDENTIFIER_AT + len(FILE_IDENTIFIER)] != FILE_IDENTIFIER:
        flat.fail("it does not have the identifier of the format")
    root = flat.root()
    version = root.integer(0, "I")
    if version != SCHEMA_VERSION:
        flat.fail(f"its schema has version {version}, and {SCHEMA_VERSION} is read")
    buffers = [_buffer(flat, table) for table in root.tables(4)]
    codes = [_operator_name(table) for table in root.tables(1)]
    graphs = tuple(_Reader(flat, buffers, codes, n, table).graph() for n, table in enumerate(root.tables(2)))
    if not graphs:
        flat.fail("it has no graph")
    return graphs


def _buffer(flat: Flat, table: Table) -> memoryview | None:
    """The bytes of a buffer, in the flatbuffer or behind it; None where it has none."""
    offset, size = table.integer(1, "Q"), table.integer(2, "Q")
    if offset > STORED_BEHIND:
        if offset + size > len(flat.data):
            flat.fail(f"a buffer at byte {offset} ends behind the file")
        return memoryview(flat.data)[offset : offset + size]
    return table.array(0, np.uint8).data if table.has(0) else None


def _operator_name(table: Table) -> str:
    code = table.integer(0, "b")
    code = max(code, table.integer(3)) if 0 <= code <= LARGEST_OLD_CODE else table.integer(3)
    if not 0 <= code < len(OPERATORS):
        return f"BUILTIN_{code}"
    return f"{CUSTOM} {table.text(1)}".strip() if OPERATORS[code] == CUSTOM else OPERATORS[code]


class _Reader:
    """Reads one graph."""

    def __init__(
        self, flat: Flat, buffers: Sequence[memoryview | None], codes: Sequence[str], number: int, table: Table
    ) -> None:
        self._flat = flat
        self._buffers = buffers
        self._codes = codes
        self._number = number
        self._table = table

    def graph(self) -> Graph:
        """The graph.

        Raises:
            UnreadableFile: see the module.
        """
        table = self._table
        tensors = tuple(self._tensor(number, each) for number, each in enumerate(table.tables(0)))
        operators = tuple(self._operator(number, each) for number, each in enumerate(table.tables(3)))
        inputs = table.integers(1)
        computed = {number for operator in operators for number in operator.outputs}.union(inputs)
        # A constant without elements needs no bytes, so nothing but its place in the graph tells that it is one.
        tensors = tuple(
            replace(t, data=None if t.number in computed else memoryview(b"")) if min(t.shape, default=1) == 0 else t
            for t in tensors
        )
        graph = Graph(self._number, tensors, operators, inputs, table.integers(2))
        self._check_flow(graph)
        return graph

    def _fail(self, words: str) -> NoReturn:
        self._flat.fail(f"in graph {self._number} {words}")

    def _tensor(self, number: int, table: Table) -> Tensor:
        shape = table.array(0, np.int32)
        if shape.size > LARGEST_RANK:
            self._fail(f"tensor {number} has {shape.size} dimensions")
        place, code = table.integer(2, "I"), table.integer(1, "b")
        if place >= max(len(self._buffers), 1):
            self._fail(f"tensor {number} refers to buffer {place} of {len(self._buffers)}")
        known = table.table(4)
        none = np.empty(0, np.float32)
        tensor = Tensor(
            number,
            table.text(3),
            TYPES[code] if 0 <= code < len(TYPES) else f"type {code}",
            tuple(shape.tolist()),
            self._buffers[place] if self._buffers else None,
            known.array(2, np.float32) if known else none,
            known.array(3, np.int64) if known else none,
            known.integer(6) if known else 0,
            bool(table.integer(5, "?")),
            self._peculiar(table, known),
        )
        return self._checked(tensor)

    def _peculiar(self, table: Table, known: Table | None) -> str:
        if table.has(6):
            return "sparse"
        if table.integer(10, "I"):
            return "kept in another file"
        return "quantised by rules of its own" if known is not None and known.integer(4, "B") else ""

    def _checked(self, tensor: Tensor) -> Tensor:
        """The tensor, once its data fit its shape; a buffer without bytes is a value for no elements only."""
        if tensor.zero_points.size not in (0, tensor.scales.size):
            sizes = f"{tensor.scales.size} scales and {tensor.zero_points.size} zero points"
            self._fail(f"tensor {tensor.number} has {sizes}")
        if math.prod(abs(size) or 1 for size in tensor.shape) > MOST_ELEMENTS:
            self._fail(f"tensor {tensor.number} has the shape {list(tensor.shape)}")
        if tensor.type not in DTYPES or tensor.peculiar:
            return tensor
        if min(tensor.shape, default=0) < 0 and tensor.data:
            self._fail(f"tensor {tensor.number} has data and the shape {list(tensor.shape)}")
        due = math.prod(tensor.shape) * np.dtype(DTYPES[tensor.type]).itemsize
        if not tensor.data:
            return replace(tensor, data=None)
        if len(tensor.data) != due:
            self._fail(f"tensor {tensor.number} has {len(tensor.data)} bytes of data, and its shape has {due}")
        return tensor

    def _operator(self, number: int, table: Table) -> Operator:
        code = table.integer(0, "I")
        if code >= len(self._codes):
            self._fail(f"operator {number} has code {code} of {len(self._codes)}")
        numbers = table.integers(1), table.integers(2), table.integers(8)
        return Operator(number, self._codes[code], *numbers, table)

    def _check_flow(self, graph: Graph) -> None:
        """Each tensor has a value before it is read, and gets one from one place only."""
        tensors = graph.tensors
        for words, numbers in (("inputs", graph.inputs), ("outputs", graph.outputs)):
            if not all(0 <= number < len(tensors) for number in numbers):
                self._fail(f"the {words} name a tensor that there is none of")
        if len(set(graph.inputs)) < len(graph.inputs):
            self._fail("the inputs name a tensor twice")
        computed = {number for operator in graph.operators for number in operator.outputs}
        given = {t.number for t in tensors if t.data is not None or (t.variable and t.number not in computed)}
        given.update(graph.inputs)
        for operator in graph.operators:
            for number in (*operator.inputs, *operator.intermediates):
                if not NO_TENSOR <= number < len(tensors):
                    self._fail(f"operator {operator.number} reads tensor {number} of {len(tensors)}")
            for number in operator.inputs:
                if number != NO_TENSOR and number not in given:
                    self._fail(f"operator {operator.number} reads tensor {number} before it has a value")
            for number in operator.outputs:
                if not 0 <= number < len(tensors):
                    self._fail(f"operator {operator.number} writes tensor {number} of {len(tensors)}")
                if number in given:
                    self._fail(f"operator {operator.number} writes tensor {number}, which has a value already")
                given.add(number)
        for number in graph.outputs:
            if number not in given:
                self._fail(f"output tensor {number} gets no value")
