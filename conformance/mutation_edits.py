"""The edits of which mutations are made: another operand, another operation, another lifetime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from nnhal.memory import SharedMemory
from nnhal.model import DataLocation, Model, Operand, Operation, Subgraph, count_consumers, operand_size
from nnhal.types import OPERAND_TYPES, FeatureLevel, OperandLifeTime, OperandType

LARGEST_MODEL = 32 * 1024  # bytes of copied constants that an edit may lead to
MOST_BYTES = 1 << 24  # of any constant of a case

Change = tuple[str, Callable[[], Model]]  # what is changed, and what makes the changed model
Changes = Callable[[Model, FeatureLevel], Iterator[Change]]

LIFE = OperandLifeTime
CONSTANTS = (LIFE.CONSTANT_COPY, LIFE.CONSTANT_REFERENCE)
COMPUTED = (LIFE.TEMPORARY_VARIABLE, LIFE.SUBGRAPH_OUTPUT)


def with_main(model: Model, main: Subgraph) -> Model:
    """The model with another main graph, consumers counted anew."""
    return replace(model, main=count_consumers(main))


def with_operand(model: Model, index: int, operand: Operand) -> Model:
    """Another operand in place of one; nothing else changes."""
    operands = model.main.operands
    return replace(model, main=replace(model.main, operands=(*operands[:index], operand, *operands[index + 1 :])))


def with_operation(model: Model, number: int, operation: Operation) -> Model:
    """Another operation in place of one, consumers counted anew."""
    operations = model.main.operations
    return with_operations(model, (*operations[:number], operation, *operations[number + 1 :]))


def with_operations(model: Model, operations: tuple[Operation, ...]) -> Model:
    """Other operations, consumers counted anew."""
    return with_main(model, replace(model.main, operations=operations))


def without(indexes: Sequence[int], place: int) -> tuple[int, ...]:
    """The indexes without the one at a place."""
    return (*indexes[:place], *indexes[place + 1 :])


def placed(indexes: Sequence[int], place: int, index: int) -> tuple[int, ...]:
    """The indexes with another one at a place."""
    return (*indexes[:place], index, *indexes[place + 1 :])


def with_constant(model: Model, index: int, operand: Operand) -> Model:
    """The operand becomes a copied constant of zeros, with a legal location.

    Raises:
        ValueError: it would be larger than any constant of a case.
    """
    size = operand_size(operand)
    if size > MOST_BYTES:
        raise ValueError(f"a constant of {size} bytes")
    values = model.operand_values + bytes(-len(model.operand_values) % 4)
    place = DataLocation(0, len(values), size)
    constant = replace(operand, lifetime=LIFE.CONSTANT_COPY, location=place)
    return replace(with_operand(model, index, constant), operand_values=values + bytes(size))


def in_pool(model: Model, index: int) -> Model:
    """A copied constant lies in a pool of its own instead."""
    operand = model.main.operands[index]
    place = operand.location
    pool = SharedMemory.create(place.length)
    pool.view()[:] = model.operand_values[place.offset : place.offset + place.length]
    moved = replace(operand, lifetime=LIFE.CONSTANT_REFERENCE, location=DataLocation(len(model.pools), 0, place.length))
    return replace(with_operand(model, index, moved), pools=(*model.pools, pool))


def can_be_constant(model: Model, operand: Operand) -> bool:
    """Whether an operand's size is known and small enough for a copied constant."""
    size = operand_size(operand)
    return size > 0 and size + len(model.operand_values) <= LARGEST_MODEL


def describe(index: int, operand: Operand) -> str:
    """The words for an operand in the phrase that says what was changed."""
    name = operand.type.name if isinstance(operand.type, OperandType) else str(operand.type)
    return f"operand {index} ({name})"


def is_scalar(operand: Operand) -> bool:
    """Whether the type is a built-in scalar."""
    return operand.type in OPERAND_TYPES and not OPERAND_TYPES[OperandType(operand.type)].tensor


def changed(model: Model, index: int, **fields: object) -> Callable[[], Model]:
    """What makes the model with other fields of one operand."""
    return partial(_replaced, model, index, fields)


def _replaced(model: Model, index: int, fields: Mapping[str, object]) -> Model:
    return with_operand(model, index, replace(model.main.operands[index], **fields))  # type: ignore[arg-type]
