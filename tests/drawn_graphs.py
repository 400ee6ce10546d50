"""Graphs of several operations that are drawn in one scope, as models, for the tests of the framework."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from nnhal.model import Model, Operation, is_tensor
from nnhal.operations import Signature
from nnhal.types import Array, OperandLifeTime, OperandType
from opset import OPSET
from opset.building import GraphBuilder
from opset.call import Argument, Call
from opset.definition import OperationDef
from opset.drawing import Scope, UnsatisfiableError
from opset.drawn import draw_call
from opset.source import SeededSource

CONSTANTS = 25  # percent of the tensors that go in

Pair = tuple[OperationDef, Signature]


@dataclass(frozen=True)
class DrawnGraph:
    """The same operations twice.

    Attributes:
        closed: what one operation makes and another reads stays inside.
        opened: everything that an operation makes comes out, so that each can be judged on what it was given.
        inputs: of both.
    """

    closed: Model
    opened: Model
    inputs: tuple[Array, ...]


def pairs(codes: Sequence[int], rows: Sequence[str]) -> list[Pair]:
    """Operations with those of their signatures that are of the given type rows."""
    chosen = [OPSET[code] for code in codes]
    return [(d, s) for d in chosen for s in d.signatures if s.id.split("/")[0] in rows and s.results is None]


def draw_graph(seed: int, among: Sequence[Sequence[Pair]], count: int = 10) -> DrawnGraph | None:
    """Draws operations in one scope; None where the draw runs dry.

    Args:
        seed: decides everything.
        among: groups of operations; the first ones of a graph come from each group in turn, so that all take part.
        count: number of operations.
    """
    chooser = random.Random(seed)
    groups = [*among, *(chooser.choice(among) for _ in range(count - len(among)))]
    chooser.shuffle(groups)
    scope = Scope(SeededSource(seed), reuse=75)
    try:
        calls = [draw_call(*chooser.choice(group), scope) for group in groups]
    except UnsatisfiableError:
        return None
    if any(_takes_bias(call) for call in calls):
        return None
    constants = {key for key in range(len(scope.operands)) if chooser.randrange(100) < CONSTANTS}
    closed, values = _model(calls, constants, opened=False)
    opened, _ = _model(calls, constants, opened=True)
    return DrawnGraph(closed, opened, tuple(values))


def _takes_bias(call: Call) -> bool:
    """Whether a bias of whole numbers with a scale goes into an operation of plain integers, where it means nothing."""
    scaled = any(a.type == OperandType.TENSOR_INT32 and a.scale > 0 for a in call.inputs.values())
    return scaled and "bias" not in call.inputs


def _model(calls: Sequence[Call], constants: set[int], *, opened: bool) -> tuple[Model, list[Array]]:
    """One model of calls that share operands, and the values of its inputs."""
    graph, values, places = GraphBuilder(), [], {}
    read = {a.key for call in calls for a in call.inputs.values() if a.key is not None}

    def place(argument: Argument, lifetime: OperandLifeTime) -> int:
        index = graph.operand(argument, lifetime)
        if argument.key is not None:
            places[argument.key] = index
        return index

    def source(argument: Argument) -> int:
        if argument.key in places:
            return places[argument.key]
        if argument.omitted:
            return place(argument, OperandLifeTime.NO_VALUE)
        fixed = argument.key is None or argument.key in constants or not is_tensor(argument.type)
        if fixed or argument.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
            return place(argument, OperandLifeTime.CONSTANT_COPY)
        assert argument.value is not None
        values.append(argument.value)
        return place(argument, OperandLifeTime.SUBGRAPH_INPUT)

    for call in calls:
        inputs = tuple(source(argument) for argument in call.inputs.values())
        inside = OperandLifeTime.TEMPORARY_VARIABLE
        outputs = tuple(
            place(a, inside if a.key in read and not opened else OperandLifeTime.SUBGRAPH_OUTPUT)
            for a in call.results.values()
        )
        graph.operations.append(Operation(int(call.definition.code), inputs, outputs))
    return graph.model(), values
