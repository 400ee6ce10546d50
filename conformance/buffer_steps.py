"""What scenarios of driver-managed buffers are made of: small models, and steps with buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conformance.behaviour import GF, case
from conformance.sketch import Sketch, Sketched, quarters, words_of
from harness.case import Step, TestCase
from harness.expectations import Expectation, Returns
from harness.steps import Action, Allocation, Copying, Layout, Role, Running
from nnhal.types import FL4, Array, ErrorStatus, FeatureLevel, OperandType, OperationType
from opset.call import Argument, scalar

NEEDS = ("buffers",)
NO_MEMORY = (GF, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT)
A, B = Role(0, 0), Role(0, 1)
OUT = Role(0, 0, output=True)


def binary(code: OperationType, a: Argument, b: Argument) -> Sketched:
    """A model of two inputs and one output."""
    sketch = Sketch()
    sketch.apply(code, sketch.input(a), sketch.input(b), scalar(OperandType.INT32, 0), out=True)
    return sketch.finish()


def unary(code: OperationType, a: Argument, *rest: Argument) -> Sketched:
    """A model of one input, constants, and one output."""
    sketch = Sketch()
    sketch.apply(code, sketch.input(a), *rest, out=True)
    return sketch.finish()


def addition(first: int = 0, shape: tuple[int, ...] = (2, 3)) -> Sketched:
    """Adds two inputs of one type and shape, which is also that of the output."""
    return binary(OperationType.ADD, quarters(shape, first), quarters(shape, first + 5))


def product(first: int = 0, shape: tuple[int, ...] = (2, 3)) -> Sketched:
    """Multiplies where `addition` adds."""
    return binary(OperationType.MUL, quarters(shape, first), quarters(shape, first + 3))


def open_addition(shape: tuple[int, ...] = (2, 3)) -> Sketched:
    """The same model for any size along the first dimension; inputs are of the shape given."""
    made = addition(0, shape)
    for operand in (*made.model.main.input_indexes, *made.model.main.output_indexes):
        made = made.opened(operand, (0, *shape[1:]))
    return made


def ready(*made: Sketched) -> list[Step]:
    """Queries and preparations of all models."""
    return [Step(action, number) for number in range(len(made)) for action in (Action.QUERY, Action.PREPARE)]


def allocate(
    slot: int,
    *roles: Role,
    prepared: tuple[int, ...] = (0,),
    dimensions: tuple[int, ...] = (),
    expect: Expectation | None = None,
) -> Step:
    """An allocation; a driver may have no memory for it, and what stands on it is left out then."""
    due = Returns(unless=NO_MEMORY) if expect is None else expect
    return Step(Action.ALLOCATE, 0, due, slot=slot, how=Allocation(prepared, roles, dimensions))


def copy_in(
    slot: int,
    value: Array,
    expect: Expectation | None = None,
    dimensions: tuple[int, ...] = (),
    size: int | None = None,
    kind: str = "ashmem",
) -> Step:
    """A copy of a value into a buffer; it succeeds where nothing else is said."""
    how = Copying(dimensions, size, kind)
    return Step(Action.COPY_IN, 0, expect or Returns(), inputs=(value,), slot=slot, how=how)


def copy_out(slot: int, expect: Expectation, size: int | None = None, kind: str = "ashmem") -> Step:
    """A copy out of a buffer."""
    return Step(Action.COPY_OUT, 0, expect, slot=slot, how=Copying(size=size, kind=kind))


def held(made: Sketched, number: int = 0) -> Returns:
    """What a copy out of a buffer with the bytes of an input must give."""
    value = made.inputs[number]
    assert value is not None
    due = replace(made.outputs[0], name=f"input {number}", shape=value.shape, value=value.astype(np.float64))
    return Returns((replace(due, required=np.zeros(value.shape)),))


def using(*buffers: tuple[bool, int, int], **layout: object) -> Running:
    """An execution with driver-managed buffers: (is an output, its number, slot)."""
    return Running(layout=replace(Layout(buffers=buffers), **layout))  # type: ignore[arg-type]


def value_of(made: Sketched, number: int = 0) -> Array:
    """The value of an input."""
    value = made.inputs[number]
    assert value is not None
    return value


def buffered(
    steps: Sequence[Step],
    *made: Sketched,
    level: FeatureLevel = FL4,
    highest: FeatureLevel | None = None,
    needs: tuple[str, ...] = NEEDS,
) -> TestCase:
    """A case of these steps on the models."""
    lowest = FeatureLevel(max(level, *(m.level for m in made)))
    models = tuple(m.model for m in made)
    return case(steps, models=models, level=lowest, highest=highest, needs=needs, detail=words_of(*models))


def loose(made: Sketched) -> Returns:
    """What is due where an input is a result that may be off itself."""
    quantized = OperandType.TENSOR_QUANT8_ASYMM
    return Returns(tuple(replace(d, required=d.required * 8 + (d.type == quantized)) for d in made.outputs))
