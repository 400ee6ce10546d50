"""Rewrites that only put things into another order, or do one thing twice: nothing new is computed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nnhal.model import Operation, Subgraph
from nnhal.types import OperationType as Op
from opset import OPSET
from random_graph.rewrites_graph import CONSTANTS, OUTPUT, TEMPORARY, Draft, Graph, Link, packed

SYMMETRIC = frozenset({Op.ADD, Op.MUL, Op.MAXIMUM, Op.MINIMUM, Op.EQUAL, Op.NOT_EQUAL, Op.LOGICAL_AND, Op.LOGICAL_OR})
ORDERS = 4  # that are drawn in search of one that is another


def reordered(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """The operations in another order in which they can be executed."""
    for _ in range(ORDERS):
        order = _topological(graph.model.main, chance)
        if order != sorted(order):
            draft = Draft.of(graph)
            draft.operations = [draft.operations[n] for n in order]
            yield draft.finish()


def _topological(graph: Subgraph, chance: random.Random) -> list[int]:
    """Numbers of the operations, each drawn among those whose inputs are there."""
    maker = {index: number for number, operation in enumerate(graph.operations) for index in operation.outputs}
    waits = [{maker[i] for i in operation.inputs if i in maker} for operation in graph.operations]
    followers: list[list[int]] = [[] for _ in waits]
    for number, others in enumerate(waits):
        for other in others:
            followers[other].append(number)
    ready = [number for number, others in enumerate(waits) if not others]
    order = []
    while ready:
        number = ready.pop(chance.randrange(len(ready)))
        order.append(number)
        for follower in followers[number]:
            waits[follower].discard(number)
            if not waits[follower]:
                ready.append(follower)
    return order


def renumbered(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """Operands numbered in another order, in the graphs that are referred to as well, and constants laid out anew."""
    for _ in range(ORDERS):
        model = graph.model
        main, *referenced = (_shuffled(g, chance) for g in (model.main, *model.referenced))
        if main != model.main:
            other = replace(model, main=main, referenced=tuple(referenced), translation=None)
            yield replace(graph, model=packed(other, chance))


def _shuffled(graph: Subgraph, chance: random.Random) -> Subgraph:
    order = list(range(len(graph.operands)))
    chance.shuffle(order)
    place = {old: new for new, old in enumerate(order)}

    def moved(indexes: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[index] for index in indexes)

    operations = tuple(Operation(o.type, moved(o.inputs), moved(o.outputs)) for o in graph.operations)
    operands = tuple(graph.operands[index] for index in order)
    return Subgraph(operands, operations, moved(graph.input_indexes), moved(graph.output_indexes))


def ends_reordered(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """The model's inputs and its outputs listed in another order."""
    for _ in range(ORDERS):
        draft = Draft.of(graph)
        taken, given = (list(range(len(ends))) for ends in (draft.inputs, draft.outputs))
        chance.shuffle(taken)
        chance.shuffle(given)
        if taken == sorted(taken) and given == sorted(given):
            continue
        draft.inputs, draft.given = [draft.inputs[n] for n in taken], [draft.given[n] for n in taken]
        draft.outputs, draft.links = [draft.outputs[n] for n in given], [Link(n) for n in given]
        yield draft.finish()


def swapped(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """The operands of operations that do not mind their order, the other way round: of one, or of all."""
    numbers = [
        n for n, o in enumerate(graph.model.main.operations) if o.type in SYMMETRIC and o.inputs[0] != o.inputs[1]
    ]
    chance.shuffle(numbers)
    every = chance.random() < 0.5
    for chosen in [numbers] if every and numbers else [[n] for n in numbers]:
        draft = Draft.of(graph)
        for number in chosen:
            old = draft.operations[number]
            draft.operations[number] = replace(old, inputs=(old.inputs[1], old.inputs[0], *old.inputs[2:]))
        yield draft.finish()


def duplicated(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """An operation, or a constant, of which several read a result, once more for one of them."""
    main = graph.model.main
    maker = {index: number for number, operation in enumerate(main.operations) for index in operation.outputs}
    shared = [
        index
        for index, places in graph.reads.items()
        if len(places) + (main.operands[index].lifetime == OUTPUT) > 1
        and (main.operands[index].lifetime in CONSTANTS or _repeats(main, maker.get(index)))
    ]
    chance.shuffle(shared)
    for index in shared:
        places = list(graph.reads[index])
        reader, place = places[chance.randrange(len(places))]
        draft = Draft.of(graph)
        if index in maker:
            number = maker[index]
            old = main.operations[number]
            outputs = tuple(draft.operand(main.operands[i], lifetime=TEMPORARY) for i in old.outputs)
            draft.read(reader, place, outputs[old.outputs.index(index)])
            # Anywhere between the operation itself and the one that reads.
            draft.operations.insert(chance.randint(number + 1, reader), replace(old, outputs=outputs))
        else:
            draft.read(reader, place, draft.constant(main.operands[index], graph.known[index]))
        yield draft.finish()


def _repeats(graph: Subgraph, number: int | None) -> bool:
    """Whether an operation gives the same when it is done once more."""
    if number is None:
        return False
    judging = OPSET[graph.operations[number].type].judging
    return judging.sampling is None and not judging.grouped_by
