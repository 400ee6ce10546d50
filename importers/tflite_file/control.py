"""Operators that run graphs: IF and WHILE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from importers.assembling import Kind
from importers.tflite_file.kinds import InexpressibleError
from importers.tflite_file.node import Node
from nnhal.model import Model, Operand
from nnhal.types import OperandType, OperationType

Translator = Callable[[Node], None]
CONDITION = Operand(OperandType.TENSOR_BOOL8, (1,))


def _if(node: Node) -> None:
    """IF."""
    options = node.options("IfOptions")
    condition, *taken = node.operands()
    results = _results(node)
    branches = [node.build.branch(int(options[f"{way}_subgraph"])) for way in ("then", "else")]
    for branch in branches:
        _check(node, branch, taken, results)
    _agree([node.build.assembly.what(condition)], [CONDITION], "condition")
    graphs = [node.build.embed(branch) for branch in branches]
    node.build.assembly.add(OperationType.IF, [condition, *graphs, *taken], results)


def _while(node: Node) -> None:
    """WHILE."""
    options = node.options("WhileOptions")
    taken, results = node.operands(), _results(node)
    condition, body = (node.build.branch(int(options[f"{part}_subgraph"])) for part in ("cond", "body"))
    _check(node, body, taken, results)
    _agree(_ends(condition, condition.main.input_indexes), _whats(node, taken), "inputs of the condition")
    _agree(_ends(condition, condition.main.output_indexes), [CONDITION], "outputs of the condition")
    graphs = [node.build.embed(branch) for branch in (condition, body)]
    node.build.assembly.add(OperationType.WHILE, [*graphs, *taken], results)


def _results(node: Node) -> list[int]:
    return [node.result(place) for place in range(len(node.operator.outputs))]


def _check(node: Node, branch: Model, taken: Sequence[int], results: Sequence[int]) -> None:
    """Refuses a graph that takes or gives other operands than the operator has."""
    _agree(_ends(branch, branch.main.input_indexes), _whats(node, taken), "inputs")
    _agree(_ends(branch, branch.main.output_indexes), _whats(node, results), "outputs")


def _whats(node: Node, operands: Sequence[int]) -> list[Operand]:
    return [node.build.assembly.what(operand) for operand in operands]


def _ends(branch: Model, indexes: Sequence[int]) -> list[Operand]:
    return [branch.main.operands[index] for index in indexes]


def _agree(found: Sequence[Operand], due: Sequence[Operand], what: str) -> None:
    if [_facts(operand) for operand in found] != [_facts(operand) for operand in due]:
        raise InexpressibleError(f"the {what} of a graph that it runs are not those of the operator")


def _facts(operand: Operand) -> tuple[tuple[int, ...], Kind]:
    return operand.dimensions, Kind(OperandType(operand.type), operand.scale, operand.zero_point)


TRANSLATORS: Mapping[str, Translator] = {"IF": _if, "WHILE": _while}
