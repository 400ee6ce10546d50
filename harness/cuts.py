"""Takes operations, results and operands out of a net: what a kept operation needs of the rest it gets as a value.

Which operations matter is found by delta debugging: halves first, then ever smaller pieces, at last one by one
(A. Zeller and R. Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from harness.editable import LIFE, MAIN, Graph, Net
from harness.expectations import Returns
from harness.searching import Search
from harness.settling import Trace
from nnhal.model import Operand, Operation
from nnhal.operations import OperandDef
from opset import OPSET


def drop_operations(search: Search) -> None:
    """Leaves only operations without any of which the failure is another; what they need of others goes in."""
    search.stage = "operations"
    _single_output(search)
    _drop(search, LIFE.SUBGRAPH_INPUT)


def fix_operations(search: Search) -> None:
    """The same, but what is needed of others becomes a constant: some drivers take certain operands in no other way."""
    search.stage = "operations"
    _drop(search, LIFE.CONSTANT_COPY)


def _drop(search: Search, given: LIFE) -> None:
    names = [operation.outputs[0] for operation in search.net.main.operations]
    minimise_set(names, partial(_keep, search, given))


def _keep(search: Search, given: LIFE, names: Sequence[int]) -> bool:
    return search.attempt(kept(search.net, search.trace, names, given))


def _single_output(search: Search) -> None:
    """The output that was furthest off, alone, with what leads to it."""
    worst = search.judgement.worst
    expect = search.case.steps[-1].expect
    if worst is not None and isinstance(expect, Returns):
        names = [due.name for due in expect.outputs]
        if len(names) > 1 and worst.output in names:
            number = search.net.main.outputs[names.index(worst.output)]
            search.attempt(needed(search.net, [number]))


def minimise_set(items: Sequence[int], keeps: Callable[[Sequence[int]], bool]) -> list[int]:
    """A part of the items from which none can be left out, by delta debugging.

    Args:
        items: in order.
        keeps: whether the failure is still there with some of them alone; it makes them what is left then.
    """
    left, pieces = list(items), 2
    while len(left) > 1:
        pieces = min(pieces, len(left))
        bounds = [len(left) * i // pieces for i in range(pieces + 1)]
        parts = [left[a:b] for a, b in itertools.pairwise(bounds)]
        found = next((part for part in parts if keeps(part)), None)
        if found is not None:
            left, pieces = found, 2
            continue
        rests = ([x for x in left if x not in part] for part in parts if pieces > 2)
        found = next((rest for rest in rests if keeps(rest)), None)
        if found is not None:
            left, pieces = found, max(pieces - 1, 2)
        elif pieces == len(left):
            break
        else:
            pieces *= 2
    return left


def kept(net: Net, trace: Trace, names: Collection[int], given: LIFE) -> Net:
    """The net with some of its operations alone.

    Args:
        net: whose main graph is cut.
        trace: of its run.
        names: the operations that stay, each called by its first result.
        given: what the results of the others become where they are read: inputs or constants.
    """
    graph = net.main
    operations = tuple(o for o in graph.operations if o.outputs[0] in names)
    read = {number for operation in operations for number in operation.inputs}
    made = [number for operation in operations for number in operation.outputs]
    operands, values = dict(graph.operands), dict(graph.values)
    lost = sorted(read & set(graph.written()) - set(made))
    for number in lost:
        operands[number] = replace(operands[number], lifetime=given)
        values[number] = trace.values[MAIN, number]
    inputs = tuple(i for i in graph.inputs if i in read)
    if given == LIFE.SUBGRAPH_INPUT:
        inputs += tuple(lost)
    outputs = tuple(i for i in graph.outputs if i in made)
    fresh = tuple(_newly_seen(graph, operations, read, outputs))
    for number in fresh:
        operands[number] = replace(operands[number], lifetime=LIFE.SUBGRAPH_OUTPUT)
    outputs += fresh
    return net.with_main(Graph(operands, operations, inputs, outputs, values))


def _newly_seen(
    graph: Graph, operations: Sequence[Operation], read: Collection[int], outputs: Collection[int]
) -> Iterator[int]:
    """Results that must come out, since nobody else would see them: what was read, and one of each operation."""
    before = graph.read()
    for operation in operations:
        if not any(i in read or i in outputs or i in before for i in operation.outputs):
            yield operation.outputs[0]
        yield from (i for i in operation.outputs if i in before and i not in read and i not in outputs)


def needed(net: Net, outputs: Collection[int]) -> Net:
    """The net with some of its outputs alone, and the operations that lead to them."""
    graph = net.main
    wanted = set(outputs)
    operations: list[Operation] = []
    for operation in reversed(graph.operations):
        if wanted & set(operation.outputs):
            operations.insert(0, operation)
            wanted |= set(operation.inputs)
    inside = {i for i in graph.outputs if i not in outputs}
    operands = {
        i: replace(o, lifetime=LIFE.TEMPORARY_VARIABLE) if i in inside else o for i, o in graph.operands.items()
    }
    read = {number for operation in operations for number in operation.inputs}
    inputs = tuple(i for i in graph.inputs if i in read)
    ordered = tuple(i for i in graph.outputs if i in outputs)
    return net.with_main(Graph(operands, tuple(operations), inputs, ordered, graph.values))


def bypass_operations(search: Search) -> None:
    """Takes out operations whose readers can do with one of their inputs in place of the result, the last first."""
    search.stage = "operations"
    for name in reversed([operation.outputs[0] for operation in search.net.main.operations]):
        position = search.net.main.written().get(name)
        if position is not None and len(search.net.main.operations) > 1:
            search.attempt_any(_bypassed(search.net, search.net.main.operations[position]))


def _bypassed(net: Net, operation: Operation) -> Iterator[Net]:
    graph, read = net.main, net.main.read()
    for result in (i for i in operation.outputs if i in read):
        for source in dict.fromkeys(operation.inputs):
            if not _exchangeable(graph.operands[result], graph.operands[source]):
                continue
            others = (o for o in graph.operations if o is not operation)
            operations = tuple(replace(o, inputs=tuple(source if i == result else i for i in o.inputs)) for o in others)
            outputs = [i for i in graph.outputs if i not in operation.outputs]
            yield needed(net.with_main(replace(graph, operations=operations)), outputs)


def _exchangeable(first: Operand, second: Operand) -> bool:
    """Whether two operands differ in nothing that an operation must find in them, but for dimensions."""
    unvalued = second.lifetime in (LIFE.NO_VALUE, LIFE.SUBGRAPH)
    same = (first.type, first.scale, first.zero_point, first.extra_params)
    return not unvalued and same == (second.type, second.scale, second.zero_point, second.extra_params)


def drop_outputs(search: Search) -> None:
    """Leaves only outputs that the failure needs."""
    search.stage = "outputs"
    for number in search.net.main.outputs:
        left = [i for i in search.net.main.outputs if i != number]
        if left:
            search.attempt(needed(search.net, left))


def drop_operands(search: Search) -> None:
    """Leaves off trailing operands, omits optional ones, and takes out some of a list of operands."""
    search.stage = "operands"
    for number in search.net.live():
        for name in [operation.outputs[0] for operation in search.net.graphs[number].operations]:
            position = search.net.graphs[number].written().get(name)
            if position is not None:
                _drop_trailing(search, number, position)
                _omit(search, number, position)
                _drop_listed(search, number, position)


def _drop_trailing(search: Search, number: int, position: int) -> None:
    operation = search.net.graphs[number].operations[position]
    counts = range(1, len(operation.inputs))
    shorter = (replace(operation, inputs=operation.inputs[:count]) for count in counts)
    search.attempt_any(_with_operation(search.net, number, position, o) for o in shorter)


def _omit(search: Search, number: int, position: int) -> None:
    """Omits optional operands, as many neighbours at once as can be."""
    places = [place for place, definition in definitions(search, number, position) if definition.omittable]
    operands = search.net.graphs[number].operands
    there = [p for p in places if operands[_input(search, number, position, p)].lifetime != LIFE.NO_VALUE]
    length = len(there)
    while length:
        for start in range(len(there) - length + 1):
            run = there[start : start + length]
            if search.attempt(_omitted(search.net, number, position, run)):
                there = there[:start] + there[start + length :]
                break
        length = min(length - 1, len(there))


def _input(search: Search, number: int, position: int, place: int) -> int:
    return search.net.graphs[number].operations[position].inputs[place]


def definitions(search: Search, number: int, position: int) -> list[tuple[int, OperandDef]]:
    """The definitions of an operation's inputs, by place."""
    call = search.trace.calls.get((number, position))
    if call is None:
        return []
    return [(place, call.signature.form.operand(name)) for place, name in enumerate(call.inputs)]


def _omitted(net: Net, number: int, position: int, places: Collection[int]) -> Net:
    graph = net.graphs[number]
    operation = graph.operations[position]
    inputs = list(operation.inputs)
    for place in places:
        free = graph.free
        old = graph.operands[inputs[place]]
        graph = graph.with_operand(free, Operand(old.type, (0,), old.scale, 0, LIFE.NO_VALUE, extra_params=None))
        inputs[place] = free
    return _with_operation(net.with_graph(number, graph), number, position, replace(operation, inputs=tuple(inputs)))


def _drop_listed(search: Search, number: int, position: int) -> None:
    """Takes operands out of a list of them, as of CONCATENATION, one by one."""
    operation = search.net.graphs[number].operations[position]
    if OPSET[operation.type].graphs is not None:
        return  # what the graphs take must go with it: `harness.branches`
    for place, definition in reversed(definitions(search, number, position)):
        if definition.variadic:
            inputs = search.net.graphs[number].operations[position].inputs
            fewer = replace(operation, inputs=inputs[:place] + inputs[place + 1 :])
            search.attempt(_with_operation(search.net, number, position, fewer))


def _with_operation(net: Net, number: int, position: int, operation: Operation) -> Net:
    """The net with one operation exchanged, and without inputs that nothing reads any more.

    A referenced graph keeps its inputs: they are handed to it.
    """
    graph = net.graphs[number].with_operation(position, operation)
    if number == MAIN:
        read = graph.read()
        graph = replace(graph, inputs=tuple(i for i in graph.inputs if i in read))
    return net.with_graph(number, graph)
