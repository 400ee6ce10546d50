"""A model as a person reads it: one line for each operation, with its operands by name. Takes broken models, too.

Operands that an operation or a client gives are called by their index in the graph, `%3`; constants stand where they
are read, and the graphs that an operation runs below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.case import TestCase
from harness.steps import Action
from nnhal.model import ChannelQuant, Model, Operand, Operation, Subgraph, constant_value
from nnhal.operations import operations
from nnhal.types import Array, OperandLifeTime, OperandType, OperationType

MOST_ELEMENTS = 8  # of a value that are written out
MOST_SCALES = 4
INDENT = "  "
CONSTANTS = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)

Values = Mapping[int, "Array | None"]


def listing(source: TestCase | Model) -> str:
    """A model line by line; of a case its models, with the values that the first execution of each is given.

    Operations have a line each: results with type, shape and quantisation, then the operation with its operands by
    name. Long values are cut short.
    """
    if isinstance(source, Model):
        return _text(_model_lines(source, {}))
    lines = [_head(source)]
    for number, model in enumerate(source.models):
        if len(source.models) > 1:
            lines.append(f"model {number}")
        lines += _model_lines(model, _given(source, number))
    return _text(lines)


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


def _head(case: TestCase) -> str:
    modes = sorted({step.mode for step in case.steps if step.action in (Action.EXECUTE, Action.LAUNCH)})
    words = [f"level {case.level.version}", *(mode.name.lower() for mode in modes)]
    if any(model.relax_computation_float32_to_float16 for model in case.models):
        words.append("relaxed")
    return f"{case.id}: {', '.join(words)}"


def _given(case: TestCase, number: int) -> Values:
    """Values of a model's inputs by index, from its first execution."""
    indexes = case.models[number].main.input_indexes
    for step in case.steps:
        if step.model == number and step.action in (Action.EXECUTE, Action.LAUNCH):
            return dict(zip(indexes, step.inputs, strict=False))
    return {}


def _model_lines(model: Model, values: Values) -> list[str]:
    return list(_Lister(model).graph(model.main, values, ""))


@dataclass
class _Lister:
    """Writes the graphs of one model, each of those that operations run in full once."""

    model: Model
    written: set[int] = field(default_factory=set)

    def graph(self, graph: Subgraph, values: Values, indent: str) -> Iterator[str]:
        """The lines of a graph."""
        for index in graph.input_indexes:
            yield f"{indent}input {self._declared(graph, index)}{_shown(values[index]) if index in values else ''}"
        for operation in graph.operations:
            results = ", ".join(self._declared(graph, i) for i in operation.outputs)
            yield f"{indent}{results} = {self._operation(graph, operation)}"
            for index in operation.inputs:
                yield from self._below(graph, index, indent + INDENT)
        yield f"{indent}output {', '.join(f'%{index}' for index in graph.output_indexes)}"

    def _below(self, graph: Subgraph, index: int, indent: str) -> Iterator[str]:
        """The graph that an operand refers to, where it has not been written yet."""
        operand = _operand(graph, index)
        if operand is None or operand.lifetime != OperandLifeTime.SUBGRAPH:
            return
        number = operand.location.offset
        if number not in self.written and 0 <= number < len(self.model.referenced):
            self.written.add(number)  # before what is inside: broken models refer in circles
            yield f"{indent}graph {number}"
            yield from self.graph(self.model.referenced[number], {}, indent + INDENT)

    def _operation(self, graph: Subgraph, operation: Operation) -> str:
        names = _input_names(graph, operation)
        read = [f"{n}={self._read(graph, i)}" for n, i in zip(names, operation.inputs, strict=True)]
        return f"{_operation_name(operation.type)}({', '.join(read)})"

    def _declared(self, graph: Subgraph, index: int) -> str:
        operand = _operand(graph, index)
        return f"%{index} (does not exist)" if operand is None else f"%{index}: {_type(operand)}"

    def _read(self, graph: Subgraph, index: int) -> str:
        """An operand as an operation reads it."""
        operand = _operand(graph, index)
        if operand is None:
            return f"%{index} (does not exist)"
        if operand.lifetime == OperandLifeTime.NO_VALUE:
            return "omitted"
        if operand.lifetime == OperandLifeTime.SUBGRAPH:
            return f"graph {operand.location.offset}"
        if operand.lifetime in CONSTANTS:
            return self._constant(operand)
        return f"%{index}"

    def _constant(self, operand: Operand) -> str:
        try:
            value = constant_value(self.model, operand)
        except (ValueError, KeyError):
            return f"{_type(operand)} of {operand.location.length} bytes"
        if not value.shape:
            return _number(value.reshape(-1)[0])
        return f"{_type(operand)}{_shown(value)}"


def _operand(graph: Subgraph, index: int) -> Operand | None:
    return graph.operands[index] if 0 <= index < len(graph.operands) else None


def _input_names(graph: Subgraph, operation: Operation) -> Sequence[str]:
    """What the operation calls its inputs; their places where it does not take these."""
    numbered = [str(place) for place in range(len(operation.inputs))]
    described = operations().get(operation.type)
    read, written = ([_operand(graph, i) for i in indexes] for indexes in (operation.inputs, operation.outputs))
    if described is None or None in (*read, *written):
        return numbered
    signature = described.match([o.type for o in read if o], [o.type for o in written if o])
    return numbered if signature is None else signature.form.names(len(operation.inputs))


def _type(operand: Operand) -> str:
    """Type, shape and quantisation."""
    name = _type_name(operand.type)
    if operand.dimensions:
        name += "[" + ",".join("?" if size == 0 else str(size) for size in operand.dimensions) + "]"
    elif name.startswith("TENSOR_"):
        name += "[unknown rank]"
    if operand.scale or operand.zero_point:
        name += f" scale {operand.scale:.9g} zero point {operand.zero_point}"
    if isinstance(operand.extra_params, ChannelQuant):
        channel = operand.extra_params
        scales = ", ".join(f"{scale:.9g}" for scale in channel.scales[:MOST_SCALES])
        more = ", ..." if len(channel.scales) > MOST_SCALES else ""
        name += f" scales {scales}{more} along {channel.channel_dim}"
    return name


def _shown(value: Array | None) -> str:
    """A value, cut short; one number stands for as many."""
    if value is None:
        return " omitted"
    flat = np.asarray(value).reshape(-1)
    if flat.size > 1 and bool((flat == flat[0]).all()):
        return f" = {_number(flat[0])} everywhere"
    more = ", ..." if flat.size > MOST_ELEMENTS else ""
    return " = " + ", ".join(_number(x) for x in flat[:MOST_ELEMENTS]) + more


def _number(value: np.generic) -> str:
    return f"{value.item():.9g}" if isinstance(value, np.floating) else str(value.item())


def _type_name(code: int) -> str:
    try:
        return OperandType(code).name
    except ValueError:
        return f"type {code:#x}"


def _operation_name(code: int) -> str:
    try:
        return OperationType(code).name
    except ValueError:
        return f"operation {code:#x}"
