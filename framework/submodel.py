"""Cuts a part out of a model: some of its operations with what they need, as a model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nnhal.memory import Memory
from nnhal.model import (
    DataLocation,
    Model,
    Operand,
    Subgraph,
    constant_bytes,
    count_consumers,
)
from nnhal.types import OperandLifeTime

ALIGNMENT = 4  # bytes; where a constant starts in the values of a part
_CONSTANTS = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)
_MADE = (OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_OUTPUT)


@dataclass(frozen=True)
class Cut:
    """A part as a model.

    Attributes:
        inputs: operands of the whole model's main graph that go in, in the order of the part's input list.
        outputs: those that come out.
    """

    model: Model
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def producers(graph: Subgraph) -> dict[int, int]:
    """The operation that writes each operand that is written."""
    return {index: number for number, operation in enumerate(graph.operations) for index in operation.outputs}


@dataclass
class _Cutter:
    """Gathers what a part needs. Constants, pools and graphs that others need are left behind."""

    whole: Model
    values: bytearray = field(default_factory=bytearray)
    pools: list[Memory] = field(default_factory=list)
    graphs: list[Subgraph] = field(default_factory=list)
    _pool_numbers: dict[int, int] = field(default_factory=dict)
    _graph_numbers: dict[int, int] = field(default_factory=dict)

    def carried(self, operand: Operand) -> Operand:
        """An operand whose constant, pool or graph has been taken along."""
        if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
            data = constant_bytes(self.whole, operand)
            self.values += bytes(-len(self.values) % ALIGNMENT)
            place = DataLocation(0, len(self.values), len(data))
            self.values += data
            return replace(operand, location=place)
        if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
            old = operand.location.pool_index
            if old not in self._pool_numbers:
                self._pool_numbers[old] = len(self.pools)
                self.pools.append(self.whole.pools[old])
            return replace(operand, location=replace(operand.location, pool_index=self._pool_numbers[old]))
        if operand.lifetime == OperandLifeTime.SUBGRAPH:
            return replace(operand, location=DataLocation(offset=self._graph(operand.location.offset)))
        return operand

    def _graph(self, old: int) -> int:
        """The number of a graph that an operation runs; with all that it refers to, it is kept whole."""
        if old not in self._graph_numbers:
            number = self._graph_numbers[old] = len(self.graphs)
            graph = self.whole.referenced[old]
            self.graphs.append(graph)
            self.graphs[number] = replace(graph, operands=tuple(self.carried(operand) for operand in graph.operands))
        return self._graph_numbers[old]


def cut(whole: Model, operations: Sequence[int]) -> Cut:
    """A part of a valid model.

    What another part made becomes an input, what another part or the client needs an output, the rest stays inside.
    Where nobody needs anything of a part, all that it makes comes out: a model has outputs.

    Args:
        whole: valid, as all parts come from it.
        operations: numbers in the main graph, ascending.
    """
    main = whole.main
    mine = set(operations)
    made_by = producers(main)
    wanted = set(main.output_indexes)
    for number, operation in enumerate(main.operations):
        if number not in mine:
            wanted.update(operation.inputs)
    used: dict[int, None] = {}  # in order
    for number in operations:
        used.update(dict.fromkeys((*main.operations[number].inputs, *main.operations[number].outputs)))
    kept = sorted(used)
    made = [index for index in kept if made_by.get(index) in mine]
    outputs = [index for index in made if index in wanted] or made
    inputs = [index for index in kept if _goes_in(main.operands[index], index in made)]
    inputs = [i for i in main.input_indexes if i in inputs] + [i for i in inputs if i not in main.input_indexes]
    cutter = _Cutter(whole)
    lifetimes = {
        **dict.fromkeys(made, OperandLifeTime.TEMPORARY_VARIABLE),
        **dict.fromkeys(outputs, OperandLifeTime.SUBGRAPH_OUTPUT),
        **dict.fromkeys(inputs, OperandLifeTime.SUBGRAPH_INPUT),
    }
    operands = tuple(
        replace(cutter.carried(main.operands[index]), lifetime=lifetimes.get(index, main.operands[index].lifetime))
        for index in kept
    )
    place = {old: new for new, old in enumerate(kept)}

    def moved(indexes: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[index] for index in indexes)

    steps = tuple(
        replace(main.operations[n], inputs=moved(main.operations[n].inputs), outputs=moved(main.operations[n].outputs))
        for n in operations
    )
    graph = count_consumers(Subgraph(operands, steps, moved(inputs), moved(outputs)))
    model = replace(
        whole,
        main=graph,
        referenced=tuple(count_consumers(inner) for inner in cutter.graphs),
        operand_values=bytes(cutter.values),
        pools=tuple(cutter.pools),
        translation=None,
    )
    return Cut(model, tuple(inputs), tuple(outputs))


def _goes_in(operand: Operand, made_here: bool) -> bool:
    if operand.lifetime == OperandLifeTime.SUBGRAPH_INPUT:
        return True
    return operand.lifetime in _MADE and not made_here
