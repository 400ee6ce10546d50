"""Rewrites that divide a batch: rows of values are computed apart where every operation on the way lets them be.

Which operands of an operation carry the batch is found by trying: the operation is done on some of the rows, and must
give those rows of what it gives on all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nnhal.model import Operand, Operation, is_tensor
from nnhal.types import Array, OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from opset.call import Call, scalar
from opset.definition import F16, F32, Q8, Q8S
from opset.validation import violations
from random_graph.rewrites_graph import (
    CONSTANTS,
    INPUT,
    TEMPORARY,
    Draft,
    Graph,
    Link,
    NoRewriteError,
    close_values,
    computed,
    is_determined,
)

SIZED = frozenset({"shape", "size", "output_shape"})  # parameters that begin with the number of rows
JOINED = frozenset({F32, F16, Q8, Q8S})  # what CONCATENATION puts together


@dataclass(frozen=True)
class Rows:
    """Some rows of a batch."""

    first: int
    count: int


@dataclass
class _Division:
    """A graph in which rows are computed apart.

    Attributes:
        rows: the parts.
        batch: rows of the whole.
        parts: for an operand that is divided the index of each part.
        whole: operands of the whole that are there.
        joins: whether parts may be put together again.
        divided: number of operations that are done for each part.
    """

    graph: Graph
    rows: tuple[Rows, ...]
    batch: int
    joins: bool
    draft: Draft
    parts: dict[int, list[int]] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    divided: int = 0

    def inputs(self, chosen: Sequence[int]) -> None:
        """Puts parts of the chosen inputs in their places."""
        draft, main = self.draft, self.graph.model.main
        draft.inputs, draft.given = [], []
        for index, value in zip(main.input_indexes, self.graph.inputs, strict=True):
            if index not in chosen or value is None:
                draft.inputs.append(index)
                draft.given.append(value)
                continue
            self.parts[index] = [self._part(index, rows, INPUT) for rows in self.rows]
            draft.inputs += self.parts[index]
            draft.given += [np.ascontiguousarray(value[r.first : r.first + r.count]) for r in self.rows]

    def _part(self, index: int, rows: Rows, lifetime: OperandLifeTime) -> int:
        like = self.graph.model.main.operands[index]
        return self.draft.operand(like, dimensions=_fewer(like, rows), lifetime=lifetime)

    def operation(self, number: int) -> None:
        """Takes an operation over: for each part where that can be, else for the whole.

        Raises:
            NoRewriteError: it needs a whole that cannot be put together.
        """
        operation = self.graph.model.main.operations[number]
        carried = [index for index in dict.fromkeys(operation.inputs) if index in self.parts]
        split = _divisible(self.graph, number, carried, self.rows, self.batch) if carried else None
        if split is None:
            for index in carried:
                self._join(index)
            self.draft.operations.append(operation)
            return
        self.divided += 1
        lifetimes = [self.graph.model.main.operands[i].lifetime for i in operation.outputs]
        for index in operation.outputs:
            self.parts[index] = []
        for place, rows in enumerate(self.rows):
            inputs = tuple(
                self.parts[i][place] if i in self.parts else self._of_part(i, split.get(position), rows)
                for position, i in enumerate(operation.inputs)
            )
            outputs = tuple(self._part(i, rows, life) for i, life in zip(operation.outputs, lifetimes, strict=True))
            for index, part in zip(operation.outputs, outputs, strict=True):
                self.parts[index].append(part)
            self.draft.operations.append(Operation(operation.type, inputs, outputs))

    def _of_part(self, index: int, change: str | None, rows: Rows) -> int:
        """What a part reads in place of a constant: the constant itself, its rows, or the shape of a part."""
        if change is None:
            return index
        value = _changed(self.graph.known[index], change, rows)
        return self.draft.constant(self.graph.model.main.operands[index], value)

    def _join(self, index: int) -> None:
        """Puts the parts of a value together."""
        operand = self.graph.model.main.operands[index]
        if index in self.whole:
            return
        if not self.joins or operand.type not in JOINED:
            raise NoRewriteError(f"parts of type {operand.type} cannot be put together")
        axis = self.draft.argument(scalar(OperandType.INT32, 0))
        self.whole.add(index)
        self.draft.operands[index] = replace(operand, lifetime=TEMPORARY)
        self.draft.operations.append(Operation(int(Op.CONCATENATION), (*self.parts[index], axis), (index,)))

    def finish(self) -> Graph:
        """The graph, with an output for each part of an output that is divided."""
        draft = self.draft
        draft.outputs, draft.links = [], []
        for position, index in enumerate(self.graph.model.main.output_indexes):
            if index not in self.parts:
                draft.outputs.append(index)
                draft.links.append(Link(position))
                continue
            draft.outputs += self.parts[index]
            draft.links += [Link(position, rows.first) for rows in self.rows]
        return draft.finish()


def _fewer(like: Operand, rows: Rows) -> tuple[int, ...]:
    """The declared dimensions of a part; what the model leaves open stays open."""
    declared = like.dimensions
    return (rows.count, *declared[1:]) if declared and declared[0] else declared


def _divisible(
    graph: Graph, number: int, carried: Sequence[int], rows: Sequence[Rows], batch: int
) -> Mapping[int, str] | None:
    """What an operation needs to be done for each part: by place of an input how it changes; None where it cannot.

    Args:
        graph: the whole.
        number: of the operation.
        carried: operands that come in parts.
        rows: the parts.
        batch: rows of the whole.
    """
    operation, call = graph.model.main.operations[number], graph.call(number)
    if call.definition.graphs is not None or not is_determined(call.definition):
        return None
    results = [graph.known[index] for index in operation.outputs]
    if any(value.shape[:1] != (batch,) for value in results):
        return None
    for changes in _changes(graph, operation, call, carried, batch):
        if all(_gives_rows(call, operation, carried, changes, part, results) for part in rows):
            return changes
    return None


def _changes(
    graph: Graph, operation: Operation, call: Call, carried: Sequence[int], batch: int
) -> Iterator[dict[int, str]]:
    """What may have to change besides the operands that carry the batch: constants of as many rows, sizes."""
    operands = graph.model.main.operands
    rows: dict[int, str] = {}
    sizes: dict[int, str] = {}
    for place, (name, index) in enumerate(zip(call.inputs, operation.inputs, strict=True)):
        fixed = operands[index].lifetime in CONSTANTS and is_tensor(operands[index].type) and index not in carried
        value = graph.known.get(index)
        if not fixed or value is None or not value.size:
            continue
        if call.signature.form.operand(name).parameter:
            if name in SIZED and value.ndim == 1 and value[0] == batch:
                sizes[place] = "size"
        elif value.shape[0] == batch and operands[index].extra_params is None:
            rows[place] = "rows"
    yield {}
    for found in (sizes, rows, {**sizes, **rows}):
        if found:
            yield found


def _gives_rows(
    call: Call,
    operation: Operation,
    carried: Sequence[int],
    changes: Mapping[int, str],
    rows: Rows,
    results: Sequence[Array],
) -> bool:
    """Whether an operation on some rows gives those rows of what it gives on all."""
    inputs = {}
    for place, (name, index) in enumerate(zip(call.inputs, operation.inputs, strict=True)):
        argument, change = call.inputs[name], "rows" if index in carried else changes.get(place)
        if change is not None:
            assert argument.value is not None
            value = _changed(argument.value, change, rows)
            argument = replace(argument, value=value, shape=value.shape)
        inputs[name] = argument
    part = replace(call, inputs=inputs)
    try:
        shapes = call.definition.infer(part)
        part = replace(part, results={n: replace(a, shape=tuple(shapes[n])) for n, a in call.results.items()})
        if violations(part):
            return False
        found = computed(part)
    except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError):
        return False  # inference relies on rules, and some of these look at the results
    return all(
        close_values(found[name], whole[rows.first : rows.first + rows.count], argument.type)
        for (name, argument), whole in zip(part.results.items(), results, strict=True)
    )


def _changed(value: Array, change: str, rows: Rows) -> Array:
    """Some rows of a value; or of a list of sizes the one that such a part needs."""
    if change == "rows":
        return np.ascontiguousarray(value[rows.first : rows.first + rows.count])
    return np.array([rows.count, *value[1:]], value.dtype)


# --- rewrites ---------------------------------------------------------------------------------------------------------


def divided(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """A batch in two parts, put together again where an operation needs the whole."""
    for batch, chosen in _batches(graph, chance):
        cut = chance.randint(1, batch - 1)
        parts = (Rows(0, cut), Rows(cut, batch - cut))
        yield from _divide(graph, parts, batch, chosen, joins=True)


def rows_alone(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """Some rows of a batch without the others."""
    for batch, chosen in _batches(graph, chance):
        count = chance.randint(1, batch - 1)
        yield from _divide(graph, (Rows(chance.randint(0, batch - count), count),), batch, chosen, joins=False)


def _divide(graph: Graph, rows: tuple[Rows, ...], batch: int, chosen: Sequence[int], *, joins: bool) -> Iterator[Graph]:
    draft = Draft.of(graph)
    draft.operations = []
    division = _Division(graph, rows, batch, joins, draft)
    division.inputs(chosen)
    try:
        for number in range(len(graph.model.main.operations)):
            division.operation(number)
    except NoRewriteError:
        return
    if division.divided:
        yield division.finish()


def _batches(graph: Graph, chance: random.Random) -> list[tuple[int, list[int]]]:
    """Numbers of rows, and the inputs that may carry as many: all of them, or one."""
    main = graph.model.main
    sizes: dict[int, list[int]] = {}
    for index, value in zip(main.input_indexes, graph.inputs, strict=True):
        if value is not None and value.ndim and value.shape[0] > 1 and value.size and index in graph.reads:
            sizes.setdefault(value.shape[0], []).append(index)
    found = []
    for batch, indexes in sizes.items():
        found.append((batch, indexes))
        found += [(batch, [index]) for index in indexes if len(indexes) > 1]
    chance.shuffle(found)
    return found
