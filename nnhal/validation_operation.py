"""The rules of single operations: signature, the data rules of `operations.json`, and the agreement of subgraphs.

Tables are compiled when an operation is first met, one entry for each combination of types, so that checking an
operation is one look-up and the rules that are left for that combination.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from nnhal.model import Model, Operand, Subgraph, combine_dimensions, is_known
from nnhal.operations import OperationInfo, RuleKind, Signature, ValidationRule, operations
from nnhal.types import (
    FL1,
    FeatureLevel,
    OperandLifeTime,
    OperandType,
    OperationType,
)

Key = tuple[tuple[int, ...], tuple[int, ...]]
Holds = Callable[[ValidationRule, list[Operand], list[Operand]], bool]
_MOST_KEYS = 4096  # combinations of types kept for an operation; garbage must not fill the memory
_LONGEST_KEY = 256  # operands of a combination that is kept, for the same reason
_SHOWN = 40  # operands that a sentence names
_NO_VALUE = int(OperandLifeTime.NO_VALUE)
_SUBGRAPH = int(OperandLifeTime.SUBGRAPH)


@dataclass(frozen=True)
class CompiledRule:
    """A rule whose names have become positions among the inputs and results of one signature."""

    rule: ValidationRule
    compare: Holds
    first: tuple[int, ...]
    others: tuple[int, ...]
    known: tuple[int, ...]

    def holds(self, operands: Sequence[Operand]) -> bool:
        """Whether the operands keep the rule; what is unknown passes."""
        for position in self.known:
            if not operands[position].dimensions:
                return True
        return self.compare(self.rule, [operands[i] for i in self.first], [operands[i] for i in self.others])


@dataclass(frozen=True)
class Match:
    """The signature that a combination of types makes, and the rules in force for it.

    Attributes:
        since: the first level that knows it.
        rules: those in force at a level, by level.
    """

    since: FeatureLevel
    rules: dict[int, tuple[CompiledRule, ...]]


class OperationTable:
    """What combinations of types an operation takes."""

    def __init__(self, operation: OperationInfo) -> None:
        self.operation = operation
        self._matches: dict[Key, Match | None] = {}

    def match(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Match | None:
        """The oldest signature that these types make, or None."""
        key = (inputs, outputs)
        try:
            return self._matches[key]
        except KeyError:
            found = self._find(inputs, outputs)
            if len(inputs) + len(outputs) <= _LONGEST_KEY:
                if len(self._matches) >= _MOST_KEYS:
                    self._matches.clear()
                self._matches[key] = found
            return found

    def _find(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Match | None:
        result_since = self._result_since(len(outputs))
        if result_since is None:
            return None
        result_names = self.operation.result_names(len(outputs))
        best: Match | None = None
        for signature in self.operation.signatures:
            names = self._input_names(signature, len(inputs))
            if names is None or signature.results not in (None, len(outputs)):
                continue
            due = [_type(signature, self.operation, name) for name in (*names, *result_names)]
            since = max(signature.since, result_since)
            fits = all(kind is None or kind == given for kind, given in zip(due, (*inputs, *outputs), strict=True))
            if fits and (best is None or since < best.since):
                best = Match(since, self._rules(names, result_names, (*inputs, *outputs)))
        return best

    def _result_since(self, count: int) -> FeatureLevel | None:
        """The first level that takes so many results, or None."""
        results = self.operation.results
        if any(result.variadic for result in results):
            return FL1 if count >= len(results) else None
        counts = dict(self.operation.result_counts or ((len(results), FL1),))
        return counts.get(count)

    @staticmethod
    def _input_names(signature: Signature, count: int) -> tuple[str, ...] | None:
        form = signature.form
        fits = count >= _fewest(signature) if form.variadic else count == signature.count
        return form.names(count) if fits else None

    def _rules(
        self, names: tuple[str, ...], results: tuple[str, ...], types: tuple[int, ...]
    ) -> dict[int, tuple[CompiledRule, ...]]:
        everything = (*names, *results)

        def positions(name: str) -> tuple[int, ...]:
            if name in everything:
                return (everything.index(name),)
            return tuple(i for i, n in enumerate(everything) if n.startswith(name) and n[len(name) :].isdigit())

        compiled = []
        for rule in self.operation.rules:
            first = positions(rule.operands[0])
            if not first or (rule.types and types[first[0]] not in rule.types):
                continue
            others = tuple(i for name in rule.operands[1:] for i in positions(name))
            known = tuple(i for name in rule.known_ranks for i in positions(name))
            compiled.append(CompiledRule(rule, HOLDS[rule.kind], first, others, known))
        return {
            int(level): tuple(c for c in compiled if c.rule.until is None or level < c.rule.until)
            for level in FeatureLevel
        }


def _fewest(signature: Signature) -> int:
    return signature.form.fewest


def _type(signature: Signature, operation: OperationInfo, name: str) -> int | None:
    """The type that an operand must have; None for any."""
    try:
        operand = signature.form.operand(name)
    except KeyError:
        operand = next(r for r in operation.results if r.name == name or (r.variadic and name.startswith(r.name)))
    return None if operand.any_type else operation.type_of(signature, operand)


@lru_cache(maxsize=1)
def tables() -> dict[int, OperationTable]:
    """A table for each described operation, by code."""
    return {code: OperationTable(operation) for code, operation in operations().items()}


def operation_violations(
    code: int, inputs: Sequence[Operand], outputs: Sequence[Operand], level: FeatureLevel
) -> Iterator[tuple[str, str]]:
    """Label and sentence for what a built-in operation breaks by itself. One that is not described breaks nothing."""
    table = tables().get(code)
    if table is None:
        return
    name = table.operation.name
    match = table.match(tuple([o.type for o in inputs]), tuple([o.type for o in outputs]))
    if match is None:
        given = f"({_names(inputs)}) -> ({_names(outputs)})"
        yield f"{name}.SIGNATURE", f"takes no operands of these types: {given}"
        return
    if match.since > level:
        needed = f"these operands need level {match.since.version}, this is {FeatureLevel(level).version}"
        yield f"{name}.SIGNATURE", needed
        return
    rules = match.rules[level]
    if rules:
        operands = [*inputs, *outputs]
        for compiled in rules:
            if not compiled.holds(operands):
                until = compiled.rule.until
                also = "" if until is None else f" (below level {until.version})"
                yield f"{name}.{compiled.rule.label}", f"breaks the rule: {compiled.rule.text}{also}"
                return  # a later rule may assume the earlier


def _names(operands: Sequence[Operand]) -> str:
    more = f", and {len(operands) - _SHOWN} more" if len(operands) > _SHOWN else ""
    return ", ".join(type_name(operand.type) for operand in operands[:_SHOWN]) + more


def type_name(code: int) -> str:
    """The name of an operand type, or its number."""
    try:
        return OperandType(code).name
    except ValueError:
        return f"type {code}"


# --- what the kinds of rules compare ----------------------------------------------------------------------------------


def _float32(value: float) -> float:
    return ctypes.c_float(value).value


def _rank(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    low, high = rule.values[:2]
    for operand in first:
        if operand.dimensions and operand.lifetime != _NO_VALUE and not low <= len(operand.dimensions) <= high:
            return False
    return True


def _rank_known(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    low, high = rule.values[:2]
    return all(low <= len(o.dimensions) <= high for o in first if o.lifetime != _NO_VALUE)


def _rank_in(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    return all(len(o.dimensions) in rule.values for o in first if o.dimensions and o.lifetime != _NO_VALUE)


def _scale_above_product(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    product = 1.0
    for factor in others:  # a product of two float32 is exact in float64, so this rounds once
        product = _float32(product * _float32(factor.scale))
    return all(_float32(operand.scale) > product for operand in first)


def _same_quantization(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    scale, zero_point = first[0].scale, first[0].zero_point
    return all(o.scale == scale and o.zero_point == zero_point for o in (*first[1:], *others))


def _zero_point(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    return all(operand.zero_point == rule.values[0] for operand in first)


def _same_shape(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    return len({tuple(o.dimensions) for o in (*first, *others) if is_known(o.dimensions)}) <= 1


def _dimension(operand: Operand, number: int) -> int:
    """A dimension, or 0 where it is not known."""
    dimensions = operand.dimensions
    return dimensions[number] if -len(dimensions) <= number < len(dimensions) else 0


def _multiple(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    if not others or not is_known(first[0].dimensions):
        return True
    divisor = _dimension(others[0], rule.values[0])
    if divisor <= 0:
        return True
    rest = 1 % divisor
    for size in first[0].dimensions:  # a client's list may be long: the product itself could fill the memory
        rest = rest * size % divisor
    return rest == 0


def _same_dimension(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    if not others:
        return True
    one, other = _dimension(first[0], rule.values[0]), _dimension(others[0], rule.values[1])
    return one <= 0 or other <= 0 or one == other


def _condition(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    return all(_is_condition(operand) for operand in first)


def _elsewhere(rule: ValidationRule, first: list[Operand], others: list[Operand]) -> bool:
    """What needs the whole model is checked by `control_flow_violations`."""
    return True


HOLDS: dict[RuleKind, Holds] = {
    RuleKind.RANK: _rank,
    RuleKind.RANK_KNOWN: _rank_known,
    RuleKind.RANK_IN: _rank_in,
    RuleKind.SCALE_ABOVE_PRODUCT: _scale_above_product,
    RuleKind.SAME_QUANTIZATION: _same_quantization,
    RuleKind.ZERO_POINT: _zero_point,
    RuleKind.SAME_SHAPE: _same_shape,
    RuleKind.MULTIPLE: _multiple,
    RuleKind.SAME_DIMENSION: _same_dimension,
    RuleKind.CONDITION: _condition,
    RuleKind.GRAPH: _elsewhere,
    RuleKind.GRAPH_SIZES: _elsewhere,
}


# --- control flow: a signature that the referenced graphs decide ------------------------------------------------------


def control_flow_violations(
    code: int, inputs: Sequence[Operand], outputs: Sequence[Operand], model: Model
) -> Iterator[tuple[str, str]]:
    """Label and sentence for what IF and WHILE break; nothing for other codes."""
    if code == OperationType.IF:
        yield from _check_if(inputs, outputs, model)
    elif code == OperationType.WHILE:
        yield from _check_while(inputs, outputs, model)


def _check_if(inputs: Sequence[Operand], outputs: Sequence[Operand], model: Model) -> Iterator[tuple[str, str]]:
    if len(inputs) < 3 or not outputs:
        yield "IF.SIGNATURE", "needs a condition, two graphs and at least one output"
        return
    if not _is_condition(inputs[0]):
        yield "IF.CONDITION", "the condition is not a TENSOR_BOOL8 of shape [1]"
    for words, operand in (("first", inputs[1]), ("second", inputs[2])):
        graph = _graph(operand, model)
        if graph is None:
            yield "IF.BRANCH", f"the {words} branch is no referenced graph"
            continue
        problem = _miscount(inputs[3:], graph.input_indexes, "inputs")
        problem = problem or _miscount(outputs, graph.output_indexes, "outputs")
        if not problem:
            takes, gives = _ends(graph)
            problem = _agreement(inputs[3:], takes, "inputs") or _agreement(outputs, gives, "outputs")
        if problem:
            yield "IF.BRANCH", f"the {words} branch does not fit: {problem}"


def _check_while(inputs: Sequence[Operand], outputs: Sequence[Operand], model: Model) -> Iterator[tuple[str, str]]:
    if len(inputs) < 3 or not outputs:
        yield "WHILE.SIGNATURE", "needs two graphs, at least one operand and at least one output"
        return
    condition, body = _graph(inputs[0], model), _graph(inputs[1], model)
    signature = [*inputs[2:], *outputs]
    if condition is None:
        yield "WHILE.CONDITION", "the condition is no referenced graph"
    else:
        problem, single = _miscount(inputs[2:], condition.input_indexes, "inputs"), len(condition.output_indexes) == 1
        takes, gives = _ends(condition) if single and not problem else ([], [])
        if not single or (gives and not _is_condition(gives[0])):
            yield "WHILE.CONDITION", "the condition's output is not one TENSOR_BOOL8 of shape [1]"
        if single and not problem:
            problem = _agreement(inputs[2:], takes, "inputs")
        if problem:
            yield "WHILE.CONDITION", f"the condition does not fit: {problem}"
        signature += takes + gives
    if body is None:
        yield "WHILE.BODY", "the body is no referenced graph"
    else:
        problem = _miscount(inputs[2:], body.input_indexes, "inputs")
        counts = len(outputs), len(body.output_indexes), len(body.input_indexes)
        if not problem and not counts[0] <= counts[1] <= counts[2]:
            problem = f"{counts[0]} outputs, {counts[1]} of the body, {counts[2]} inputs do not increase"
        takes, gives = ([], []) if problem else _ends(body)
        problem = (
            problem
            or _agreement(inputs[2:], takes, "inputs")
            or _agreement(outputs, gives[: len(outputs)], "outputs")
            or _agreement(takes[: len(gives)], gives, "outputs and inputs of the body")
        )
        if problem:
            yield "WHILE.BODY", f"the body does not fit: {problem}"
        signature += takes + gives
    if any(_open(operand) for operand in signature):
        yield "WHILE.SIZES", "an operand of unknown size, which no level of the driver interface takes"


def _is_condition(operand: Operand) -> bool:
    return operand.type == OperandType.TENSOR_BOOL8 and tuple(operand.dimensions) == (1,)


def _graph(operand: Operand, model: Model) -> Subgraph | None:
    """The graph that a subgraph operand refers to, or None."""
    if operand.type != OperandType.SUBGRAPH or operand.lifetime != _SUBGRAPH:
        return None
    number = operand.location.offset
    return model.referenced[number] if 0 <= number < len(model.referenced) else None


def _ends(graph: Subgraph) -> tuple[list[Operand], list[Operand]]:
    """Inputs and outputs of a graph; indexes out of range are another rule's matter."""
    count = len(graph.operands)
    return (
        [graph.operands[i] for i in graph.input_indexes if 0 <= i < count],
        [graph.operands[i] for i in graph.output_indexes if 0 <= i < count],
    )


def _open(operand: Operand) -> bool:
    scalar = not operand.dimensions and operand.type in _SCALARS
    return not scalar and operand.type in _BUILT_IN and not is_known(operand.dimensions)


_BUILT_IN = frozenset(int(t) for t in OperandType) - {int(OperandType.OEM), int(OperandType.TENSOR_OEM_BYTE)}
_SCALARS = frozenset(
    {
        OperandType.FLOAT32,
        OperandType.INT32,
        OperandType.UINT32,
        OperandType.BOOL,
        OperandType.FLOAT16,
        OperandType.SUBGRAPH,
    }
)


def _miscount(outer: Sequence[Operand], indexes: Sequence[int], words: str) -> str:
    """Why a graph has too few or too many ends; asked first, so that many operations may name one large graph."""
    return f"{len(indexes)} {words} where {len(outer)} are due" if len(outer) != len(indexes) else ""


def _agreement(outer: Sequence[Operand], inner: Sequence[Operand], words: str) -> str:
    """Why two lists of operands do not fit together; empty when they do."""
    if len(outer) != len(inner):
        return f"{len(inner)} {words} where {len(outer)} are due"
    for number, (one, other) in enumerate(zip(outer, inner, strict=True)):
        if one.type != other.type:
            return f"number {number} of the {words} is {type_name(other.type)}, not {type_name(one.type)}"
        if (one.scale, one.zero_point, one.extra_params) != (other.scale, other.zero_point, other.extra_params):
            return f"number {number} of the {words} has another quantisation"
        if combine_dimensions(one.dimensions, other.dimensions) is None:
            return f"number {number} of the {words} has dimensions {other.dimensions}, not {one.dimensions}"
    return ""
