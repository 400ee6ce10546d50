"""Takes IF and WHILE out of a net, or makes the graphs that they run smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.cuts import kept
from harness.editable import LIFE, MAIN, Graph, Net, Place
from harness.searching import Search
from nnhal.model import DataLocation, Operation
from nnhal.types import Array, OperationType
from opset import OPSET


def open_graphs(search: Search) -> None:
    """Replaces each operation that runs graphs by the operations of one of them, while the failure stays."""
    search.stage = "control flow"
    while any(_open(search, name) for name in _runners(search.net.main)):
        pass


def _runners(graph: Graph) -> list[int]:
    """Operations that run graphs, each called by its first result."""
    return [o.outputs[0] for o in graph.operations if OPSET[o.type].graphs is not None]


def _open(search: Search, name: int) -> bool:
    net, trace = search.net, search.trace
    position = net.main.written()[name]
    operation = net.main.operations[position]
    graphs = net.run_by(MAIN, operation)
    chosen = trace.chosen.get((MAIN, position))
    ways: list[Net] = []
    if chosen is not None:
        ways.append(_in_place(net, (MAIN, position), chosen))
    order = sorted(set(graphs), key=lambda number: number != chosen)
    for number in order:
        # At the first turn of a loop, and at the last.
        ways += [_beside(search, name, number, runs[number]) for runs in (trace.first, trace.last) if number in runs]
    return search.attempt_any(ways)


def _in_place(net: Net, at: Place, number: int) -> Net:
    """The operations of a graph in place of the one that runs it, on what is handed to it: one turn of a loop."""
    home, position = at
    outer, graph = net.graphs[home], net.graphs[number]
    operation = outer.operations[position]
    results = dict(zip(graph.outputs, operation.outputs, strict=False))
    copied = _copied(outer, graph, {**dict(zip(graph.inputs, _handed(outer, operation), strict=True)), **results})
    before, behind = outer.operations[:position], outer.operations[position + 1 :]
    return net.with_graph(home, replace(copied.outer, operations=(*before, *copied.operations, *behind)))


def _beside(search: Search, name: int, number: int, given: Sequence[Array | None]) -> Net:
    """A graph's operations on values of their own, beside what is left when the operation that runs it is dropped."""
    net = search.net
    others = [o.outputs[0] for o in net.main.operations if o.outputs[0] != name]
    rest = kept(net, search.trace, others, LIFE.SUBGRAPH_INPUT).main
    graph = net.graphs[number]
    copied = _copied(rest, graph, {})
    operands, values = dict(copied.outer.operands), dict(copied.outer.values)
    inputs = [copied.names[i] for i in graph.inputs]
    for old, value in zip(graph.inputs, given, strict=True):
        new = copied.names[old]
        if value is not None:
            values[new] = value
        operands[new] = replace(operands[new], lifetime=LIFE.SUBGRAPH_INPUT)
    outputs = [copied.names[i] for i in graph.outputs]
    for new in outputs:
        operands[new] = replace(operands[new], lifetime=LIFE.SUBGRAPH_OUTPUT)
    read = {i for operation in copied.operations for i in operation.inputs}
    main = replace(
        copied.outer,
        operands=operands,
        values=values,
        inputs=(*rest.inputs, *(i for i in inputs if i in read)),
        outputs=(*rest.outputs, *outputs),
        operations=(*rest.operations, *copied.operations),
    )
    return net.with_main(main)


def _handed(graph: Graph, operation: Operation) -> tuple[int, ...]:
    """What an operation hands to the graphs that it runs."""
    graphs = sum(graph.operands[i].lifetime == LIFE.SUBGRAPH for i in operation.inputs)
    return operation.inputs[graphs + (operation.type == OperationType.IF) :]


@dataclass(frozen=True)
class _Copied:
    """A graph copied into another.

    Attributes:
        outer: the other, with the operands, and without the operations.
        operations: in the numbers of the other.
        names: numbers in the other by those in the graph.
    """

    outer: Graph
    operations: tuple[Operation, ...]
    names: Mapping[int, int]


def _copied(outer: Graph, graph: Graph, names: Mapping[int, int]) -> _Copied:
    """Brings the operands of a graph into another, but for those that have a name there already."""
    free = outer.free
    new = {i: free + place for place, i in enumerate(i for i in sorted(graph.operands) if i not in names)}
    operands, values = dict(outer.operands), dict(outer.values)
    for old, number in new.items():
        operand = graph.operands[old]
        inside = operand.lifetime in (LIFE.SUBGRAPH_INPUT, LIFE.SUBGRAPH_OUTPUT)
        operands[number] = replace(operand, lifetime=LIFE.TEMPORARY_VARIABLE) if inside else operand
        if old in graph.values:
            values[number] = graph.values[old]
    every = {**names, **new}
    operations = tuple(
        Operation(o.type, tuple(every[i] for i in o.inputs), tuple(every[i] for i in o.outputs))
        for o in graph.operations
    )
    return _Copied(replace(outer, operands=operands, values=values), operations, every)


# --- graphs that stay -------------------------------------------------------------------------------------------------


def shrink_graphs(search: Search) -> None:
    """Takes operations, operands and results out of the graphs that operations run."""
    search.stage = "control flow"
    for number in search.net.live():
        if number in search.net.live() and number != MAIN:
            _drop_inside(search, number)
    for number in search.net.live():
        for name in _runners(search.net.graphs[number]) if number in search.net.live() else ():
            if number == MAIN or not _open_inside(search, number, name):
                _narrow(search, number, name)


def _open_inside(search: Search, number: int, name: int) -> bool:
    """Replaces an operation of a referenced graph by those of the graph that it runs."""
    at = number, search.net.graphs[number].written()[name]
    chosen = search.trace.chosen.get(at)
    return chosen is not None and search.attempt(_in_place(search.net, at, chosen))


def _drop_inside(search: Search, number: int) -> None:
    """Replaces results inside of a graph by constants: all at once, then one by one, the last first."""
    graph = search.net.graphs[number]
    names = [o.outputs[0] for o in graph.operations if not set(o.outputs) & set(graph.outputs)]
    if names and not search.attempt(_settled_inside(search, number, names)):
        for name in reversed(names):
            search.attempt(_settled_inside(search, number, [name]))


def _settled_inside(search: Search, number: int, names: Sequence[int]) -> Net:
    net, values = search.net, search.trace.values
    graph = net.graphs[number]
    gone = [o for o in graph.operations if o.outputs[0] in names]
    operations = tuple(o for o in graph.operations if o.outputs[0] not in names)
    read = {i for o in operations for i in o.inputs}
    graph = replace(graph, operations=operations)
    for operand in (i for o in gone for i in o.outputs if i in read):
        if (number, operand) in values:
            graph = _as_constant(graph, operand, values[number, operand])
    return net.with_graph(number, graph)


def _as_constant(graph: Graph, number: int, value: Array) -> Graph:
    constant = replace(graph.operands[number], lifetime=LIFE.CONSTANT_COPY, location=DataLocation())
    return graph.with_operand(number, constant).with_value(number, value)


def _narrow(search: Search, number: int, name: int) -> None:
    """One graph for both of IF, and fewer operands and results, from the last on."""
    if not _alone(search.net, number, name):
        return
    position = search.net.graphs[number].written()[name]
    operation = search.net.graphs[number].operations[position]
    if operation.type == OperationType.IF:
        chosen = search.trace.chosen.get((number, position))
        if chosen is not None:
            search.attempt(_same_graph(search.net, number, operation, chosen))
    for place in reversed(range(len(_handed(search.net.graphs[number], operation)))):
        _attempt(search, number, name, partial(_without_operand, search, number, place))
    for place in reversed(range(len(operation.outputs))):  # the first, by which it is called, comes last
        _attempt(search, number, name, partial(_without_result, search.net, number, place))


def _attempt(search: Search, number: int, name: int, edit: Callable[[Operation], Net | None]) -> None:
    graph = search.net.graphs[number]
    edited = edit(graph.operations[graph.written()[name]])
    if edited is not None:
        search.attempt(edited)


def _alone(net: Net, number: int, name: int) -> bool:
    """Whether nothing else refers to the graphs that an operation runs."""
    position = net.graphs[number].written()[name]
    mine = set(net.run_by(number, net.graphs[number].operations[position]))
    for live in net.live():
        for place, other in enumerate(net.graphs[live].operations):
            if (live, place) != (number, position) and mine & set(net.run_by(live, other)):
                return False
    return True


def _same_graph(net: Net, number: int, operation: Operation, chosen: int) -> Net:
    graph = net.graphs[number]
    for operand in operation.inputs:
        shown = graph.operands[operand]
        if shown.lifetime == LIFE.SUBGRAPH:
            graph = graph.with_operand(operand, replace(shown, location=DataLocation(offset=chosen - 1)))
    return net.with_graph(number, graph)


def _replaced(net: Net, number: int, old: Operation, new: Operation) -> Net:
    graph = net.graphs[number]
    position = graph.operations.index(old)
    graph = graph.with_operation(position, new)
    if number == MAIN:
        read = graph.read()
        graph = replace(graph, inputs=tuple(i for i in graph.inputs if i in read))
    return net.with_graph(number, graph)


def _without_result(net: Net, number: int, place: int, operation: Operation) -> Net | None:
    """Without one result, which nothing reads; of a loop it lives on inside."""
    graph, result = net.graphs[number], operation.outputs[place]
    if len(operation.outputs) == 1 or result in graph.read() or result in graph.outputs:
        return None
    fewer = replace(operation, outputs=operation.outputs[:place] + operation.outputs[place + 1 :])
    net = _replaced(net, number, operation, fewer)
    if operation.type == OperationType.IF:
        for inner in set(net.run_by(number, fewer)):
            net = net.with_graph(inner, _without_output(net.graphs[inner], place))
        return net
    return net if place == len(operation.outputs) - 1 else None


def _without_output(graph: Graph, place: int) -> Graph:
    number = graph.outputs[place]
    inside = replace(graph.operands[number], lifetime=LIFE.TEMPORARY_VARIABLE)
    return replace(graph.with_operand(number, inside), outputs=graph.outputs[:place] + graph.outputs[place + 1 :])


def _without_operand(search: Search, number: int, place: int, operation: Operation) -> Net | None:
    """Without one operand that is handed on; where a graph reads it, it has a constant in its place."""
    net = search.net
    loop = operation.type == OperationType.WHILE
    if loop and place < len(operation.outputs):
        return None
    first = len(operation.inputs) - len(_handed(net.graphs[number], operation))
    inputs = operation.inputs[: first + place] + operation.inputs[first + place + 1 :]
    graphs = net.run_by(number, operation)
    net = _replaced(net, number, operation, replace(operation, inputs=inputs))
    for inner in set(graphs):
        graph, given = net.graphs[inner], search.trace.first.get(inner)
        own = graph.inputs[place]
        graph = replace(graph, inputs=graph.inputs[:place] + graph.inputs[place + 1 :])
        if own in graph.read():
            value = None if given is None else given[place]
            if value is None:
                return None
            graph = _as_constant(graph, own, value)
        if loop and inner == graphs[1] and place < len(graph.outputs):
            graph = _without_output(graph, place)
        net = net.with_graph(inner, graph)
    return net
