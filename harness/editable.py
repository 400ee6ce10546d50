"""A case's model taken apart so that it can be edited, and put together again.

Operands keep their numbers from edit to edit, whatever comes and goes around them. Values stand beside the operands:
an edit that changes a value changes its shape with it, and `harness.settling` makes the dimensions of the rest fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from harness.case import TestCase
from harness.expectations import Returns
from harness.steps import Action
from nnhal.memory import BytesMemory
from nnhal.model import (
    DataLocation,
    Model,
    Operand,
    Operation,
    Subgraph,
    constant_value,
    count_consumers,
)
from nnhal.types import Array, ExecutionMode, OperandLifeTime
from opset import OPSET
from opset.building import CONSTANT_ALIGNMENT

LIFE = OperandLifeTime
CONSTANTS = (LIFE.CONSTANT_COPY, LIFE.CONSTANT_REFERENCE)
STEPS = (Action.QUERY, Action.PREPARE, Action.EXECUTE)
MAIN = 0  # number of the main graph

Place = tuple[int, int]  # an operand: number of its graph, and its own


@dataclass(frozen=True)
class Graph:
    """One graph.

    Attributes:
        operands: by number. Where a value lies is left open.
        operations: in an order that can be executed; none is there twice.
        inputs: numbers of the operands that go in, in order.
        outputs: the same of those that come out.
        values: of constants and, in the main graph, of inputs; stored form. An omitted input has none.
    """

    operands: Mapping[int, Operand]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    values: Mapping[int, Array]

    def with_operand(self, number: int, operand: Operand) -> Graph:
        """The graph with one operand exchanged or added."""
        return replace(self, operands={**self.operands, number: operand})

    def with_value(self, number: int, value: Array) -> Graph:
        """The graph with another value of a constant or input."""
        return replace(self, values={**self.values, number: value})

    def with_operation(self, position: int, operation: Operation) -> Graph:
        """The graph with one operation exchanged."""
        operations = (*self.operations[:position], operation, *self.operations[position + 1 :])
        return replace(self, operations=operations)

    @property
    def free(self) -> int:
        """The lowest number above those of all operands."""
        return max(self.operands, default=-1) + 1

    def read(self) -> set[int]:
        """Operands that an operation reads."""
        return {number for operation in self.operations for number in operation.inputs}

    def written(self) -> dict[int, int]:
        """Position of the operation that writes an operand."""
        return {n: position for position, operation in enumerate(self.operations) for n in operation.outputs}


@dataclass(frozen=True)
class Net:
    """Everything of a case that an edit may change.

    Attributes:
        graphs: the main graph, then the referenced ones; operands of type SUBGRAPH refer to number `offset` + 1.
        relaxed: float32 may be computed as float16.
        mode: of the execution.
    """

    graphs: tuple[Graph, ...]
    relaxed: bool
    mode: ExecutionMode

    @property
    def main(self) -> Graph:
        """The main graph."""
        return self.graphs[MAIN]

    def with_graph(self, number: int, graph: Graph) -> Net:
        """The net with one graph exchanged."""
        return replace(self, graphs=(*self.graphs[:number], graph, *self.graphs[number + 1 :]))

    def with_main(self, graph: Graph) -> Net:
        """The net with another main graph."""
        return self.with_graph(MAIN, graph)

    def run_by(self, number: int, operation: Operation) -> list[int]:
        """Numbers of the graphs that an operation of a graph refers to, in the order of its inputs."""
        operands = (self.graphs[number].operands[i] for i in operation.inputs)
        return [operand.location.offset + 1 for operand in operands if operand.lifetime == LIFE.SUBGRAPH]

    def live(self) -> list[int]:
        """Numbers of the graphs that are run or may be: the main one and all that operations of those refer to."""
        found, left = [MAIN], [MAIN]
        while left:
            number = left.pop()
            for operation in self.graphs[number].operations:
                new = [n for n in dict.fromkeys(self.run_by(number, operation)) if n not in found]
                found += new
                left += new
        return sorted(found)

    def valued(self) -> Iterator[Place]:
        """Operands with a value of their own that some operation reads."""
        for number in self.live():
            graph = self.graphs[number]
            read = graph.read()
            yield from ((number, i) for i in sorted(graph.values) if i in read)


def take_apart(case: TestCase) -> Net:
    """What a case asks for, as a net.

    Raises:
        ValueError: it is none of one valid model that is asked for, prepared and executed once; the text says how.
    """
    actions = tuple(step.action for step in case.steps)
    if len(case.models) != 1 or actions != STEPS or any(step.how is not None for step in case.steps):
        words = ", ".join(action.value for action in actions) or "nothing"
        raise ValueError(f"the case is to {words} with {len(case.models)} models, not to query, prepare, execute one")
    if not all(isinstance(step.expect, Returns) for step in case.steps):
        raise ValueError("the case is to be refused, not to give results")
    model, execution = case.models[0], case.steps[-1]
    unknown = [o.type for graph in (model.main, *model.referenced) for o in graph.operations if o.type not in OPSET]
    if unknown or model.extension_name_to_prefix:
        raise ValueError("the case has operations or types of an extension, whose results nobody can foretell")
    main = _graph(model, model.main)
    given = zip(main.inputs, execution.inputs, strict=True)
    main = replace(main, values={**main.values, **{number: value for number, value in given if value is not None}})
    graphs = (main, *(_graph(model, graph) for graph in model.referenced))
    return Net(graphs, model.relax_computation_float32_to_float16, execution.mode)


def _graph(model: Model, graph: Subgraph) -> Graph:
    operands = dict(enumerate(graph.operands))
    values = {i: constant_value(model, o) for i, o in operands.items() if o.lifetime in CONSTANTS}
    return Graph(operands, graph.operations, graph.input_indexes, graph.output_indexes, values)


@dataclass(frozen=True)
class Assembled:
    """A net as a model.

    Attributes:
        model: without what nothing refers to.
        inputs: values in the order of the model's list.
        numbers: by number of each graph that is in the model: the net's numbers of its operands, by index.
    """

    model: Model
    inputs: tuple[Array | None, ...]
    numbers: Mapping[int, tuple[int, ...]]

    def graph(self, number: int) -> Subgraph:
        """The model's graph for one of the net's."""
        at = list(self.numbers).index(number)
        return self.model.main if at == 0 else self.model.referenced[at - 1]


def assemble(net: Net) -> Assembled:
    """A model of what a net holds."""
    live = net.live()
    places = {number: place - 1 for place, number in enumerate(live)}  # in the model's list of referenced graphs
    store = _Store()
    numbers = {number: tuple(_used(net.graphs[number])) for number in live}
    main, *referenced = (_subgraph(net.graphs[n], numbers[n], places, store) for n in live)
    pools = tuple(BytesMemory(store.pools[pool] or bytearray(1)) for pool in range(len(store.pools)))
    model = Model(main, tuple(referenced), bytes(store.copies), pools, net.relaxed)
    return Assembled(model, tuple(net.main.values.get(i) for i in net.main.inputs), numbers)


def _used(graph: Graph) -> Iterable[int]:
    touched = {i for operation in graph.operations for i in (*operation.inputs, *operation.outputs)}
    return sorted(touched | set(graph.inputs) | set(graph.outputs))


class _Store:
    """Where constants lie: in the model itself, or in pools."""

    def __init__(self) -> None:
        self.copies = bytearray()
        self.pools: dict[int, bytearray] = {}

    def add(self, operand: Operand, value: Array) -> DataLocation:
        """Takes a value in."""
        pool = 0
        area = self.copies
        if operand.lifetime == LIFE.CONSTANT_REFERENCE:
            pool = operand.location.pool_index
            for number in range(pool + 1):
                self.pools.setdefault(number, bytearray())
            area = self.pools[pool]
        area += bytes(-len(area) % CONSTANT_ALIGNMENT)
        data = value.tobytes()
        location = DataLocation(pool, len(area), len(data))
        area += data
        return location


def _subgraph(graph: Graph, numbers: tuple[int, ...], places: Mapping[int, int], store: _Store) -> Subgraph:
    index = {number: i for i, number in enumerate(numbers)}

    def placed(number: int) -> Operand:
        operand = graph.operands[number]
        if operand.lifetime in CONSTANTS:
            value = graph.values[number]
            return replace(operand, dimensions=value.shape, location=store.add(operand, value))
        if operand.lifetime == LIFE.SUBGRAPH:
            return replace(operand, location=DataLocation(offset=places[operand.location.offset + 1]))
        return replace(operand, location=DataLocation())

    def indexed(group: Iterable[int]) -> tuple[int, ...]:
        return tuple(index[number] for number in group)

    operands = tuple(placed(number) for number in numbers)
    steps = tuple(Operation(o.type, indexed(o.inputs), indexed(o.outputs)) for o in graph.operations)
    return count_consumers(Subgraph(operands, steps, indexed(graph.inputs), indexed(graph.outputs)))
