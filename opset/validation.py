"""Rules in use: which does a call break, and how is one broken alone. Model-wide rules are `nnhal.validate`'s."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nnhal.model import Operand, Subgraph, is_known
from nnhal.operations import RuleKind, ValidationRule
from nnhal.types import FeatureLevel, OperandLifeTime, OperandType
from nnhal.validation_operation import control_flow_violations
from opset.call import Argument, Call, with_shape
from opset.definition import ExecutionRule
from opset.quantization import float32


def arguments(call: Call, name: str) -> list[Argument]:
    """The operands a rule's name stands for: one, or all of a variadic one; none where it was left off."""
    if name in call.inputs or name in call.results:
        return [call[name]]
    return call.all(name)


def applies(rule: ValidationRule, call: Call, level: FeatureLevel) -> bool:
    """Whether a rule is in force for this call at a level."""
    if rule.until is not None and level >= rule.until:
        return False
    first = arguments(call, rule.operands[0])
    return bool(first) and (not rule.types or first[0].type in rule.types)


def holds(rule: ValidationRule | ExecutionRule, call: Call) -> bool:
    """Whether a call keeps a rule. Calls have known shapes, so nothing passes for being unknown."""
    if isinstance(rule, ExecutionRule):
        return rule.holds(call)
    if rule.kind in (RuleKind.GRAPH, RuleKind.GRAPH_SIZES):
        return _graphs_fit(rule, call)
    return _HOLDS[rule.kind](rule, [a for name in rule.operands for a in arguments(call, name)])


def broken(rule: ValidationRule | ExecutionRule, call: Call) -> Call | None:
    """A valid call made to break a rule alone; None where this call offers no way."""
    if isinstance(rule, ExecutionRule):
        return rule.broken(call)
    return _BROKEN[rule.kind](rule, call)


def violations(call: Call, level: FeatureLevel | None = None) -> list[str]:
    """Labels of the operation's rules that a call breaks at a level, in order. Later rules assume the earlier."""
    at = call.level if level is None else level
    found: list[str] = []
    if call.signature.since > at:
        found.append("SIGNATURE")
    for rule in call.definition.rules:
        if not (applies(rule, call, at) if isinstance(rule, ValidationRule) else rule.until is None or at < rule.until):
            continue
        if not holds(rule, call):
            found.append(rule.label)
            break
    return found


def needed_level(call: Call) -> FeatureLevel:
    """The lowest level at which a valid call breaks nothing."""
    for level in FeatureLevel:
        if level >= call.signature.since and not violations(call, level):
            return level
    return max(FeatureLevel)


def scale_floor(call: Call) -> float:
    """The product of scales that the output scale must exceed at the call's level; 0 where there is no such rule."""
    floor = 0.0
    for rule in call.definition.rules:
        if (
            isinstance(rule, ValidationRule)
            and rule.kind == RuleKind.SCALE_ABOVE_PRODUCT
            and applies(rule, call, call.level)
        ):
            factors = [a.scale for name in rule.operands[1:] for a in arguments(call, name)]
            floor = max(floor, float32(math.prod(factors)))
    return floor


def _rank(rule: ValidationRule, operands: list[Argument]) -> bool:
    return all(rule.values[0] <= operand.rank <= rule.values[1] for operand in operands)


def _rank_in(rule: ValidationRule, operands: list[Argument]) -> bool:
    return operands[0].rank in rule.values


def _scale_above(rule: ValidationRule, operands: list[Argument]) -> bool:
    del rule
    output, *factors = operands
    product = np.float32(1)
    for factor in factors:
        product = product * np.float32(factor.scale)
    return bool(np.float32(output.scale) > product)


def _same_quantization(rule: ValidationRule, operands: list[Argument]) -> bool:
    del rule
    return len({(a.scale, a.zero_point) for a in operands}) <= 1


def _zero_point(rule: ValidationRule, operands: list[Argument]) -> bool:
    return operands[0].zero_point == rule.values[0]


def _same_shape(rule: ValidationRule, operands: list[Argument]) -> bool:
    """A result of an executed model has no known shape before it is computed, where the model leaves it open."""
    del rule
    return len({a.shape for a in operands if is_known(a.shape)}) <= 1


def _multiple(rule: ValidationRule, operands: list[Argument]) -> bool:
    divisor = operands[1].shape[rule.values[0]]
    return divisor > 0 and math.prod(operands[0].shape) % divisor == 0


def _same_dimension(rule: ValidationRule, operands: list[Argument]) -> bool:
    return operands[0].shape[rule.values[0]] == operands[1].shape[rule.values[1]]


def _condition(rule: ValidationRule, operands: list[Argument]) -> bool:
    del rule
    return operands[0].type == OperandType.TENSOR_BOOL8 and operands[0].shape == (1,)


def _graphs_fit(rule: ValidationRule, call: Call) -> bool:
    from opset.graph import model_of  # it knows all operations, and so their rules

    model, _ = model_of(call)
    operation, operands = model.main.operations[0], model.main.operands
    inputs, outputs = [operands[i] for i in operation.inputs], [operands[i] for i in operation.outputs]
    found = control_flow_violations(operation.type, inputs, outputs, model)
    return f"{call.definition.name}.{rule.label}" not in [label for label, _ in found]


_HOLDS: dict[RuleKind, Callable[[ValidationRule, list[Argument]], bool]] = {
    RuleKind.RANK: _rank,
    RuleKind.RANK_KNOWN: _rank,
    RuleKind.RANK_IN: _rank_in,
    RuleKind.SCALE_ABOVE_PRODUCT: _scale_above,
    RuleKind.SAME_QUANTIZATION: _same_quantization,
    RuleKind.ZERO_POINT: _zero_point,
    RuleKind.SAME_SHAPE: _same_shape,
    RuleKind.MULTIPLE: _multiple,
    RuleKind.SAME_DIMENSION: _same_dimension,
    RuleKind.CONDITION: _condition,
}


def _first_name(rule: ValidationRule, call: Call, position: int = 0) -> str | None:
    """The name of an operand as the call has it: numbered where it is variadic."""
    name = rule.operands[position]
    if name in call.inputs or name in call.results:
        return name
    return f"{name}0" if call.all(name) else None


def _break_rank(rule: ValidationRule, call: Call) -> Call | None:
    name = _first_name(rule, call)
    if name is None:
        return None
    shape = call[name].shape
    added = rule.values[1] + 1 - len(shape)
    bad = with_shape(call, name, (1,) * added + shape)
    channel = bad[name].channel
    if channel is None:
        return bad
    moved = replace(channel, channel_dim=channel.channel_dim + added)
    return bad.with_operand(name, replace(bad[name], channel=moved))


def _break_rank_known(rule: ValidationRule, call: Call) -> Call | None:
    """A rank below those allowed, where there is one: a rule on the range of ranks may stand beside this one."""
    name = _first_name(rule, call)
    if name is None or rule.values[0] < 2:
        return _break_rank(rule, call)
    shape = call[name].shape
    extra = len(shape) - rule.values[0] + 1
    return with_shape(call, name, (math.prod(shape[: extra + 1]), *shape[extra + 1 :]))


def _break_rank_in(rule: ValidationRule, call: Call) -> Call | None:
    """A rank between those allowed, so that no rule on the range is broken; leading dimensions are added or joined."""
    name = _first_name(rule, call)
    between = [r for r in range(min(rule.values), max(rule.values)) if r not in rule.values]
    if name is None or not between:
        return None
    shape = call[name].shape
    extra = len(shape) - between[0]
    joined = (math.prod(shape[: extra + 1]), *shape[extra + 1 :]) if extra >= 0 else (1,) * -extra + shape
    return with_shape(call, name, joined)


def _break_scale(rule: ValidationRule, call: Call) -> Call | None:
    name = _first_name(rule, call)
    if name is None:
        return None
    last = rule.operands[-1]
    if call[last].scale < 1:
        # Newer public validators read the input's scale in place of a convolution's output: with a filter scale of 1
        # they see a breach too, so no driver is asked about a model on which documents and public code disagree.
        call = call.with_operand(last, replace(call[last], scale=1.0))
    product = np.float32(1)
    for factor in rule.operands[1:]:
        product = product * np.float32(call[factor].scale)
    return call.with_operand(name, replace(call[name], scale=float(product)))


def _break_quantization(rule: ValidationRule, call: Call) -> Call | None:
    name = _first_name(rule, call)
    if name is None:
        return None
    return call.with_operand(name, replace(call[name], scale=float32(call[name].scale * 1.5)))


def _break_zero_point(rule: ValidationRule, call: Call) -> Call | None:
    name = _first_name(rule, call)
    if name is None:
        return None
    return call.with_operand(name, replace(call[name], zero_point=rule.values[0] + 1))


def _break_same_shape(rule: ValidationRule, call: Call) -> Call | None:
    name = _first_name(rule, call)
    if name is None or not call[name].shape:
        return None
    shape = call[name].shape
    return with_shape(call, name, (*shape[:-1], shape[-1] + 1))


def _break_multiple(rule: ValidationRule, call: Call) -> Call | None:
    name = _first_name(rule, call, 1)
    if name is None:
        return None
    shape = list(call[name].shape)
    shape[rule.values[0]] = math.prod(call[rule.operands[0]].shape) + 1
    return with_shape(call, name, tuple(shape))


def _break_dimension(rule: ValidationRule, call: Call) -> Call | None:
    name = _first_name(rule, call)
    if name is None:
        return None
    shape = list(call[name].shape)
    shape[rule.values[0]] += 1
    return with_shape(call, name, tuple(shape))


def _break_condition(rule: ValidationRule, call: Call) -> Call | None:
    return with_shape(call, rule.operands[0], (2,))


def _break_graph(rule: ValidationRule, call: Call) -> Call | None:
    """A graph that takes one operand more than there are."""
    return _with_graph(rule, call, lambda graph: _with_input(graph, Operand(OperandType.INT32)))


def _break_sizes(rule: ValidationRule, call: Call) -> Call | None:
    """A graph that leaves a size of what it takes open."""

    def opened(graph: Subgraph) -> Subgraph:
        index = next(i for i in graph.input_indexes if graph.operands[i].dimensions)
        operands = list(graph.operands)
        operands[index] = replace(operands[index], dimensions=(0, *operands[index].dimensions[1:]))
        return replace(graph, operands=tuple(operands))

    return _with_graph(rule, call, opened)


def _with_graph(rule: ValidationRule, call: Call, change: Callable[[Subgraph], Subgraph]) -> Call | None:
    name = rule.operands[0]
    branch = call[name].branch
    if branch is None:
        return None
    model = replace(branch.model, main=change(branch.model.main))
    return call.with_input(name, replace(call[name], branch=replace(branch, model=model)))


def _with_input(graph: Subgraph, operand: Operand) -> Subgraph:
    taken = replace(operand, lifetime=OperandLifeTime.SUBGRAPH_INPUT)
    indexes = (*graph.input_indexes, len(graph.operands))
    return replace(graph, operands=(*graph.operands, taken), input_indexes=indexes)


_BROKEN: dict[RuleKind, Callable[[ValidationRule, Call], Call | None]] = {
    RuleKind.RANK: _break_rank,
    RuleKind.RANK_KNOWN: _break_rank_known,
    RuleKind.RANK_IN: _break_rank_in,
    RuleKind.SCALE_ABOVE_PRODUCT: _break_scale,
    RuleKind.SAME_QUANTIZATION: _break_quantization,
    RuleKind.ZERO_POINT: _break_zero_point,
    RuleKind.SAME_SHAPE: _break_same_shape,
    RuleKind.MULTIPLE: _break_multiple,
    RuleKind.SAME_DIMENSION: _break_dimension,
    RuleKind.CONDITION: _break_condition,
    RuleKind.GRAPH: _break_graph,
    RuleKind.GRAPH_SIZES: _break_sizes,
}
