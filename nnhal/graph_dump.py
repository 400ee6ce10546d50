"""Draws a model as text for Graphviz (.dot): every operand with its type, shape and value, every operation.

Takes broken models too: an index that is out of range is drawn as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nnhal.model import ChannelQuant, Model, Operand, Subgraph, constant_value
from nnhal.types import OperandLifeTime, OperandType, OperationType

MOST_ELEMENTS = 8  # of a constant that are written out
_COLOURS = {
    OperandLifeTime.TEMPORARY_VARIABLE: "white",
    OperandLifeTime.SUBGRAPH_INPUT: "palegreen",
    OperandLifeTime.SUBGRAPH_OUTPUT: "lightskyblue",
    OperandLifeTime.CONSTANT_COPY: "lightyellow",
    OperandLifeTime.CONSTANT_REFERENCE: "khaki",
    OperandLifeTime.NO_VALUE: "gray85",
    OperandLifeTime.SUBGRAPH: "plum",
}


@dataclass(frozen=True)
class Group:
    """Operations of the main graph that are drawn together, such as those that one device runs.

    Attributes:
        label: what stands over them.
        operations: their numbers.
        colour: a name that Graphviz knows.
    """

    label: str
    operations: Sequence[int]
    colour: str = "lightgray"


def to_dot(model: Model, title: str = "model", groups: Sequence[Group] = ()) -> str:
    """The model as a directed graph: operands are boxes, operations ellipses, referenced graphs clusters.

    Args:
        model: to draw.
        title: of the graph.
        groups: operations that are put into a cluster of their own each, and filled with its colour.
    """
    lines = [f"digraph {_quote(title)} {{", "  rankdir=TB;", "  compound=true;", "  node [fontname=monospace];"]
    lines += _graph(model, model.main, "main")
    for number, group in enumerate(groups):
        lines += [f"  subgraph cluster_group{number} {{", f"    label={_quote(group.label)};"]
        lines.append(f"    style=dashed; color={_quote(group.colour)};")
        colour = f"style=filled, fillcolor={_quote(group.colour)}"
        lines += [f"    main_operation{operation} [{colour}];" for operation in group.operations]
        lines.append("  }")
    for number, graph in enumerate(model.referenced):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quote(f'graph {number}')};"]
        lines += [f"  {line}" for line in _graph(model, graph, f"graph{number}")]
        lines.append("  }")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _graph(model: Model, graph: Subgraph, prefix: str) -> Iterator[str]:
    for index, operand in enumerate(graph.operands):
        label = _operand_label(model, graph, index, operand)
        colour = _COLOURS.get(operand.lifetime, "tomato")
        yield f'  {prefix}_operand{index} [shape=box, style=filled, fillcolor="{colour}", label={_quote(label)}];'
        if operand.lifetime == OperandLifeTime.SUBGRAPH and 0 <= operand.location.offset < len(model.referenced):
            target = f"graph{operand.location.offset}_operation0"
            cluster = f"cluster_{operand.location.offset}"
            if model.referenced[operand.location.offset].operations:
                yield f"  {prefix}_operand{index} -> {target} [style=dashed, lhead={cluster}];"
    for number, operation in enumerate(graph.operations):
        name = f"{prefix}_operation{number}"
        yield f"  {name} [shape=ellipse, label={_quote(f'{number}: {_operation_name(operation.type)}')}];"
        for place, index in enumerate(operation.inputs):
            yield from _missing(graph, prefix, index)
            yield f'  {prefix}_operand{_node(index)} -> {name} [label="{place}"];'
        for place, index in enumerate(operation.outputs):
            yield from _missing(graph, prefix, index)
            yield f'  {name} -> {prefix}_operand{_node(index)} [label="{place}"];'


def _missing(graph: Subgraph, prefix: str, index: int) -> Iterator[str]:
    if not 0 <= index < len(graph.operands):
        label = _quote(f"operand {index} does not exist")
        yield f'  {prefix}_operand{_node(index)} [shape=box, style=filled, fillcolor="tomato", label={label}];'


def _node(index: int) -> str:
    return str(index) if index >= 0 else f"_minus{-index}"


def _operand_label(model: Model, graph: Subgraph, index: int, operand: Operand) -> str:
    lines = [f"{index}: {_type_name(operand.type)}{_shape(operand)}", _lifetime(graph, index, operand)]
    if operand.scale or operand.zero_point:
        lines.append(f"scale {operand.scale:.9g}, zero point {operand.zero_point}")
    if isinstance(operand.extra_params, ChannelQuant):
        channel = operand.extra_params
        lines.append(f"dimension {channel.channel_dim} scales {_short([f'{s:.6g}' for s in channel.scales])}")
    elif operand.extra_params is not None:
        lines.append(f"{len(operand.extra_params)} bytes of extension parameters")
    value = _value(model, operand)
    return "\n".join([*lines, value] if value else lines)


def _lifetime(graph: Subgraph, index: int, operand: Operand) -> str:
    try:
        name = OperandLifeTime(operand.lifetime).name
    except ValueError:
        return f"lifetime {operand.lifetime}"
    if index in graph.input_indexes:
        name += f" {list(graph.input_indexes).index(index)}"
    if index in graph.output_indexes:
        name += f" {list(graph.output_indexes).index(index)}"
    return f"{name} graph {operand.location.offset}" if operand.lifetime == OperandLifeTime.SUBGRAPH else name


def _shape(operand: Operand) -> str:
    if operand.dimensions:
        return "[" + ", ".join("?" if size == 0 else str(size) for size in operand.dimensions) + "]"
    return "[unknown rank]" if _type_name(operand.type).startswith("TENSOR_") else ""


def _value(model: Model, operand: Operand) -> str:
    """The first elements of a constant; empty for other operands and where there is nothing to show."""
    if operand.lifetime not in (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE):
        return ""
    try:
        value = constant_value(model, operand)
    except (ValueError, KeyError):
        return f"{operand.location.length} bytes"
    numbers = value.reshape(-1)[: MOST_ELEMENTS + 1]
    digits = "{:.6g}" if np.issubdtype(numbers.dtype, np.floating) else "{}"
    return "= " + _short([digits.format(number.item()) for number in numbers])


def _short(words: list[str]) -> str:
    return ", ".join(words[:MOST_ELEMENTS]) + (", ..." if len(words) > MOST_ELEMENTS else "")


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


def _quote(text: str) -> str:
    """A quoted string of the dot language; line ends become its own."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n")
    return f'"{escaped}"'
