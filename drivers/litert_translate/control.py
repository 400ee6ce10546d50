"""Operations that run graphs: IF and WHILE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from drivers.litert_translate.node import Node
from nnhal.types import OperationType

Translator = Callable[[Node], None]
IF_OPERANDS, WHILE_OPERANDS = 3, 2  # before those that are handed to the graphs


def _if(node: Node) -> None:
    """IF."""
    taken = [node.tensor_of(index) for index in node.inputs[IF_OPERANDS:]]
    node.add(
        "IF",
        [node.tensor("condition"), *taken],
        node.all_results(),
        "IfOptions",
        ThenSubgraphIndex=node.branch(node.graph("then_graph")),
        ElseSubgraphIndex=node.branch(node.graph("else_graph")),
    )


def _while(node: Node) -> None:
    """WHILE. LiteRT's body gives back all that it takes: state, which NNAPI ends with, and what never changes."""
    taken = [node.tensor_of(index) for index in node.inputs[WHILE_OPERANDS:]]
    body = node.graph("body_graph")
    changing = len(body.output_indexes)
    body = replace(body, output_indexes=(*body.output_indexes, *body.input_indexes[changing:]))
    results = node.all_results()
    left = [node.flat.like(tensor) for tensor in taken[len(results) :]]
    node.add(
        "WHILE",
        taken,
        [*results, *left],
        "WhileOptions",
        CondSubgraphIndex=node.branch(node.graph("cond_graph")),
        BodySubgraphIndex=node.branch(body),
    )


TRANSLATORS: Mapping[int, Translator] = {
    OperationType.IF: _if,
    OperationType.WHILE: _while,
}
