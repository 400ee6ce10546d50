"""Changes of any field of a model: values at the edges of their types, and those of neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from nnhal.memory import BytesMemory
from nnhal.model import (
    ChannelQuant,
    DataLocation,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    Operation,
    Subgraph,
)
from nnhal.types import OperandLifeTime, OperandType, OperationType
from opset.source import Source, choice

T = TypeVar("T")
WORD = 1 << 32
EDGES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 63, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 16,
         (1 << 31) - 1, 1 << 31, WORD - 4, WORD - 1, WORD, -1, -2, -(1 << 31))  # fmt: skip
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 3.4e38, 1e39, math.inf, -math.inf, math.nan, 1 / 256)
MOST_RANK = 9
NUMBER = 4  # bytes of a constant that is one number

Edit = Callable[[Source, Model], tuple[Model, str]]


def number_near(source: Source, value: int) -> int:
    """An integer at an edge, or near the given one."""
    kind = source.integer(0, 3)
    if kind == 0:
        return value + choice(source, (1, -1, 2, -2, 4, -4))
    if kind == 1:
        return source.integer(0, 15)
    return choice(source, EDGES)


def edit_model(source: Source, model: Model) -> tuple[Model, str]:
    """A model with one field changed, and the change in words. Wrong numbers are what is wanted."""
    edit = choice(source, EDITS)
    return edit(source, model)


def _graph(source: Source, model: Model) -> tuple[Subgraph, int]:
    """One of the graphs, by its number; the main one is -1 and comes most often."""
    if model.referenced and source.integer(0, 1):
        number = source.integer(0, len(model.referenced) - 1)
        return model.referenced[number], number
    return model.main, -1


def _with_graph(model: Model, number: int, graph: Subgraph) -> Model:
    if number < 0:
        return replace(model, main=graph)
    return replace(model, referenced=_placed(model.referenced, number, graph))


def _placed(items: Sequence[T], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _where(number: int) -> str:
    return "" if number < 0 else f" of referenced graph {number}"


def _operand(source: Source, model: Model) -> tuple[Model, str]:
    graph, number = _graph(source, model)
    if not graph.operands:
        return model, "nothing"
    place = source.integer(0, len(graph.operands) - 1)
    before = graph.operands[place]
    after, words = choice(source, OPERAND_EDITS)(source, before)
    graph = replace(graph, operands=_placed(graph.operands, place, after))
    return _with_graph(model, number, graph), f"operand {place}{_where(number)} {words}"


def _type(source: Source, operand: Operand) -> tuple[Operand, str]:
    kind: int = choice(source, tuple(OperandType)) if source.integer(0, 3) else number_near(source, operand.type)
    return replace(operand, type=kind), f"has type {int(kind)}"


def _dimension(source: Source, operand: Operand) -> tuple[Operand, str]:
    if not operand.dimensions:
        return _rank(source, operand)
    axis = source.integer(0, len(operand.dimensions) - 1)
    size = number_near(source, operand.dimensions[axis])
    return replace(operand, dimensions=_placed(operand.dimensions, axis, size)), f"has size {size} along {axis}"


def _rank(source: Source, operand: Operand) -> tuple[Operand, str]:
    rank = source.integer(0, MOST_RANK)
    sizes = (operand.dimensions + (1,) * rank)[:rank]
    return replace(operand, dimensions=sizes), f"has {rank} dimensions"


def _scale(source: Source, operand: Operand) -> tuple[Operand, str]:
    scale = choice(source, (*REALS, operand.scale * 2, operand.scale / 1024))
    return replace(operand, scale=scale), f"has scale {scale:g}"


def _zero_point(source: Source, operand: Operand) -> tuple[Operand, str]:
    point = number_near(source, operand.zero_point)
    return replace(operand, zero_point=point), f"has zero point {point}"


def _lifetime(source: Source, operand: Operand) -> tuple[Operand, str]:
    lifetime: int = choice(source, (*OperandLifeTime, 7, -1))
    return replace(operand, lifetime=lifetime), f"has lifetime {int(lifetime)}"  # type: ignore[arg-type]


def _location(source: Source, operand: Operand) -> tuple[Operand, str]:
    name = choice(source, ("pool_index", "offset", "length", "padding"))
    value = number_near(source, getattr(operand.location, name))
    return replace(operand, location=replace(operand.location, **{name: value})), f"has {name} {value}"


def _parameters(source: Source, operand: Operand) -> tuple[Operand, str]:
    count = source.integer(0, 4)
    kind = source.integer(0, 3)
    if kind == 0:
        return replace(operand, extra_params=None), "has no parameters"
    if kind == 1:
        return replace(operand, extra_params=bytes(count)), f"has {count} bytes of an extension's parameters"
    scales = tuple(choice(source, REALS) for _ in range(count))
    dimension = number_near(source, 0)
    made = replace(operand, extra_params=ChannelQuant(dimension, scales))
    return made, f"has {count} scales along {dimension}"


def _consumers(source: Source, operand: Operand) -> tuple[Operand, str]:
    count = number_near(source, operand.number_of_consumers)
    return replace(operand, number_of_consumers=count), f"says that it has {count} consumers"


OPERAND_EDITS = (_type, _dimension, _rank, _scale, _zero_point, _lifetime, _location, _parameters, _consumers,
                 _dimension, _location)  # fmt: skip


def _operation(source: Source, model: Model) -> tuple[Model, str]:
    graph, number = _graph(source, model)
    if not graph.operations:
        return model, "nothing"
    place = source.integer(0, len(graph.operations) - 1)
    after, words = _changed_operation(source, graph.operations[place], len(graph.operands))
    graph = replace(graph, operations=_placed(graph.operations, place, after))
    return _with_graph(model, number, graph), f"operation {place}{_where(number)} {words}"


def _changed_operation(source: Source, operation: Operation, count: int) -> tuple[Operation, str]:
    kind = source.integer(0, 4)
    if kind == 0:
        some = source.integer(0, 3)
        code: int = choice(source, tuple(OperationType)) if some else number_near(source, operation.type)
        return replace(operation, type=code), f"has code {int(code)}"
    if source.integer(0, 1):
        indexes, words = _indexes(source, operation.outputs, count)
        return replace(operation, outputs=indexes), f"has outputs {words}"
    indexes, words = _indexes(source, operation.inputs, count)
    return replace(operation, inputs=indexes), f"has inputs {words}"


def _indexes(source: Source, indexes: tuple[int, ...], count: int) -> tuple[tuple[int, ...], str]:
    """Other indexes into a table of so many operands."""
    kind = source.integer(0, 3)
    place = source.integer(0, max(len(indexes) - 1, 0))
    if kind == 0 and indexes:
        made = indexes[:place] + indexes[place + 1 :]
    elif kind == 1 or not indexes:
        made = (*indexes, _index_near(source, indexes[-1] if indexes else 0, count))
    elif kind == 2:
        made = _placed(indexes, place, indexes[source.integer(0, len(indexes) - 1)])
    else:
        made = _placed(indexes, place, _index_near(source, indexes[place], count))
    return made, str(list(made))


def _index_near(source: Source, index: int, count: int) -> int:
    """An index at the end of a table, or any number."""
    return count + choice(source, (0, 0, -1, 1)) if source.integer(0, 1) else number_near(source, index)


def _lists(source: Source, model: Model) -> tuple[Model, str]:
    graph, number = _graph(source, model)
    if source.integer(0, 1):
        indexes, words = _indexes(source, graph.output_indexes, len(graph.operands))
        return _with_graph(model, number, replace(graph, output_indexes=indexes)), f"the outputs are {words}"
    indexes, words = _indexes(source, graph.input_indexes, len(graph.operands))
    return _with_graph(model, number, replace(graph, input_indexes=indexes)), f"the inputs are {words}"


def _values(source: Source, model: Model) -> tuple[Model, str]:
    data = model.operand_values
    if not data or not source.integer(0, 7):
        length = source.integer(0, 255)
        return replace(model, operand_values=data[:length]), f"only {length} bytes of constants are left"
    place = source.integer(0, len(data) - 1)
    word = place // 4 * 4
    if source.integer(0, 1) and word + 4 <= len(data):
        model, value = _with_number(source, model, word)
        return model, f"constant at {word} is {value}"
    raw = bytes([source.integer(0, 255)])
    return replace(model, operand_values=data[:place] + raw + data[place + 1 :]), f"byte {place} of constants differs"


def _number(source: Source, model: Model) -> tuple[Model, str]:
    """Another value of a constant that is one number, as axes, strides and activations are: most depends on those."""
    graph, number = _graph(source, model)
    size = len(model.operand_values)
    places = [(place, operand.location.offset) for place, operand in enumerate(graph.operands)
              if operand.lifetime == OperandLifeTime.CONSTANT_COPY and operand.location.length == NUMBER
              and 0 <= operand.location.offset <= size - NUMBER]  # fmt: skip
    if not places:
        return _values(source, model)
    place, at = choice(source, places)
    model, value = _with_number(source, model, at)
    return model, f"operand {place}{_where(number)} is {value}"


def _with_number(source: Source, model: Model, at: int) -> tuple[Model, int]:
    """Another number at a place of the constants, and which."""
    data = model.operand_values
    value = number_near(source, int.from_bytes(data[at : at + NUMBER], "little", signed=True))
    raw = (value % WORD).to_bytes(NUMBER, "little")
    return replace(model, operand_values=data[:at] + raw + data[at + NUMBER :]), value


def _omission(source: Source, model: Model) -> tuple[Model, str]:
    """An operand that an operation takes is left out."""
    graph, number = _graph(source, model)
    operation = choice(source, graph.operations) if graph.operations else None
    known = [] if operation is None else [i for i in operation.inputs if 0 <= i < len(graph.operands)]
    if not known:
        return model, "nothing"
    place = choice(source, known)
    after = replace(graph.operands[place], lifetime=OperandLifeTime.NO_VALUE, location=DataLocation())
    graph = replace(graph, operands=_placed(graph.operands, place, after))
    return _with_graph(model, number, graph), f"operand {place}{_where(number)} is left out"


def _rest(source: Source, model: Model) -> tuple[Model, str]:
    kind = source.integer(0, 3)
    if kind == 0:
        relaxed = not model.relax_computation_float32_to_float16
        return replace(model, relax_computation_float32_to_float16=relaxed), f"relaxed computation is {relaxed}"
    if kind == 1:
        row = ExtensionNameAndPrefix(choice(source, ("", "org.nncts.none", "a" * 300)), number_near(source, 1))
        table = (*model.extension_name_to_prefix, row)
        return replace(model, extension_name_to_prefix=table), f"extension {row.name[:20]!r} has prefix {row.prefix}"
    if kind == 2:
        graphs = model.referenced[:-1] if source.integer(0, 1) else (*model.referenced, model.main)
        return replace(model, referenced=graphs), f"there are {len(graphs)} referenced graphs"
    pools = model.pools[:-1] if source.integer(0, 1) else (*model.pools, BytesMemory(bytes(source.integer(1, 64))))
    return replace(model, pools=pools), f"there are {len(pools)} pools"


EDITS: tuple[Edit, ...] = (_operand, _operation, _lists, _values, _rest, _operand, _operand, _operation, _number,
                            _number, _omission)  # fmt: skip
