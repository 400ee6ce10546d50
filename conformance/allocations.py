"""Scenarios of allocations of driver-managed buffers: good ones, and each way in which one can be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from conformance.behaviour import GF, IA, Scenario, Vehicle, refuses
from conformance.buffer_steps import (
    OUT,
    A,
    B,
    addition,
    allocate,
    binary,
    buffered,
    copy_in,
    ready,
    using,
    value_of,
)
from conformance.sketch import Sketch, Sketched, tensor
from harness.case import Step, TestCase
from harness.expectations import Rejects
from harness.steps import Role
from nnhal.model import ChannelQuant, DataLocation
from nnhal.types import OperandLifeTime, OperandType, OperationType
from opset.call import Argument, scalar

TOPIC = "MEMORY"
ANY_ROLE_RULE = "B1"


def _bad(name: str, text: str, make: Callable[[Rejects], tuple[Sequence[Sketched], Sequence[Step]]]) -> Scenario:
    """An allocation that is refused, beside one that is not and works."""

    def refused(v: Vehicle) -> TestCase:
        made, steps = make(refuses(ANY_ROLE_RULE, text, IA, GF))
        first = made[0]
        good = [allocate(8, A), copy_in(8, value_of(first)), first.execute(how=using((False, 0, 8)), without=(0,))]
        return buffered([*ready(*made), *good, *steps, first.execute()], *made)

    return Scenario(TOPIC, f"allocate.{name}", refused, text, ANY_ROLE_RULE, once=True)


def _bad_roles(name: str, text: str, *allocations: tuple[Role, ...], prepared: tuple[int, ...] = (0,)) -> Scenario:
    def make(due: Rejects) -> tuple[Sequence[Sketched], Sequence[Step]]:
        return [addition()], [allocate(9, *roles, prepared=prepared, expect=due) for roles in allocations]

    return _bad(name, text, make)


def _differing(name: str, text: str, *others: Callable[[], Sketched]) -> Scenario:
    """Roles of two models that do not fit one another: input 0 of one and input 0, then output 0, of the other."""

    def make(due: Rejects) -> tuple[Sequence[Sketched], Sequence[Step]]:
        made = [addition(), *(other() for other in others)]
        steps = []
        for number in range(1, len(made)):
            for first, second in ((A, Role(1, 0)), (OUT, Role(1, 0)), (A, Role(1, 0, output=True))):
                steps.append(allocate(9, first, second, prepared=(0, number), expect=due))
        return made, steps

    return _bad(name, text, make)


def _quantized_sum(scale: float, zero_point: int, out_scale: float, out_zero_point: int) -> Sketched:
    """Adds quantised inputs of one scale and zero point into an output of another."""
    a, b = tensor([[3, 200, 128]], scale, zero_point), tensor([[7, 1, 130]], scale, zero_point)
    made = binary(OperationType.ADD, a, b)
    (index,) = made.model.main.output_indexes
    operands = list(made.model.main.operands)
    operands[index] = replace(operands[index], scale=out_scale, zero_point=out_zero_point)
    return replace(made, model=replace(made.model, main=replace(made.model.main, operands=tuple(operands))))


def _quantization_differs(name: str, out_scale: float, out_zero_point: int) -> Scenario:
    text = f"the roles differ in {name}"

    def make(due: Rejects) -> tuple[Sequence[Sketched], Sequence[Step]]:
        second = _quantized_sum(0.5, 128, out_scale, out_zero_point)
        steps = [allocate(9, A, OUT, prepared=(1,), expect=due), allocate(10, B, OUT, prepared=(1,), expect=due)]
        return [addition(), second], steps

    return _bad(f"differing.{name.replace(' ', '.')}", text, make)


def _channels_differ(name: str, *scales: tuple[float, ...]) -> Scenario:
    """Weights as inputs of two models, quantised by channel."""

    def made(channels: tuple[float, ...]) -> Sketched:
        return _per_channel(channels)

    def make(due: Rejects) -> tuple[Sequence[Sketched], Sequence[Step]]:
        all_ = [addition(), *(made(channels) for channels in scales)]
        steps = [allocate(9, Role(0, 1), Role(1, 1), prepared=(1, 2), expect=due)]
        return all_, steps

    return _bad(name, "the roles differ in their scales by channel", make)


def _per_channel(scales: tuple[float, ...]) -> Sketched:
    """A convolution of 8-bit values whose filter, quantised by channel, is an input."""
    channels = len(scales)
    data = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1)
    weights = np.ones((channels, 1, 1, 1), np.int8)
    kind = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    bias = Argument(OperandType.TENSOR_INT32, (channels,), value=np.zeros(channels, np.int32))
    sketch = Sketch()
    at = sketch.input(tensor(data, 0.5, 0))
    filters = sketch.input(Argument(kind, weights.shape, channel=ChannelQuant(0, scales), value=weights))
    rest = [scalar(OperandType.INT32, value) for value in (1, 1, 1, 0)]
    sketch.apply(OperationType.CONV_2D, at, filters, bias, *rest, out=True)
    return sketch.finish()


def _shape_differs() -> Iterator[Scenario]:
    yield _differing(
        "differing.dimensions",
        "the roles differ in dimensions",
        lambda: addition(0, (3, 2)),
        lambda: addition(0, (6,)),
        lambda: addition(0, (2, 3, 1)),
    )

    def described(due: Rejects) -> tuple[Sequence[Sketched], Sequence[Step]]:
        shapes = ((3, 2), (6,), (2, 3, 1), (2, 4), (0, 4))
        return [addition()], [allocate(9, A, dimensions=shape, expect=due) for shape in shapes]

    yield _bad("dimensions", "the dimensions asked for are not those of the role", described)

    def of_scalar(due: Rejects) -> tuple[Sequence[Sketched], Sequence[Step]]:
        made = _scalar_input()
        return [addition(), made], [allocate(9, Role(0, 2), prepared=(1,), dimensions=(1,), expect=due)]

    yield _bad("dimensions.of.scalar", "dimensions are asked for a scalar", of_scalar)


def _scalar_input() -> Sketched:
    """A sum whose activation is an input: a scalar."""
    made = addition()
    operands = list(made.model.main.operands)
    (place,) = (i for i, o in enumerate(operands) if o.type == OperandType.INT32)
    operands[place] = replace(operands[place], lifetime=OperandLifeTime.SUBGRAPH_INPUT, location=DataLocation())
    main = made.model.main
    main = replace(main, operands=tuple(operands), input_indexes=(*main.input_indexes, place))
    return replace(made, model=replace(made.model, main=main, operand_values=b""))


def _bad_allocations() -> Iterator[Scenario]:
    yield _bad_roles("no.roles", "there is no role", ())
    yield _bad_roles("no.models", "there is no prepared model", (A,), (), prepared=())
    yield _bad_roles("foreign.model", "a prepared model is another driver's", (Role(1, 0),), prepared=(0, -1))
    wrong_models = tuple((Role(number, 0, output),) for number in (1, 2**31 - 1, -1) for output in (False, True))
    yield _bad_roles("model.index", "a role names a prepared model that is not there", *wrong_models)
    places = ((Role(0, 2),), (Role(0, 1, output=True),), (Role(0, 2**31 - 1),), (Role(0, -1),))
    yield _bad_roles("io.index", "a role names an input or output that is not there", *places)
    numbers = (0.0, -0.5, 1.5, float("nan"), float("inf"))
    frequencies = tuple((replace(role, frequency=f),) for f in numbers for role in (A, OUT))
    yield _bad_roles("frequency", "the frequency is not above 0 and up to 1", *frequencies)
    yield _bad_roles("role.twice", "a role is given twice", (A, A), (OUT, OUT), (A, B, A), (A, OUT, OUT))
    again = (A, Role(1, 0)), (OUT, Role(1, 0, output=True))
    yield _bad_roles("role.twice.by.two.entries", "a role is given twice, by two entries", *again, prepared=(0, 0))
    yield _differing("differing.type", "the roles differ in type", lambda: _quantized_sum(0.5, 128, 0.5, 128))
    yield _quantization_differs("scale", 1.0, 128)
    yield _quantization_differs("zero point", 0.5, 100)
    yield _channels_differ("differing.channels", (0.5, 0.25), (0.5, 0.125))
    yield from _shape_differs()


def _good_allocations(v: Vehicle) -> TestCase:
    """Allocations that are all right: frequencies up to 1, dimensions that are partly or wholly said."""
    made = addition()
    frequencies = (1.0, 0.5, 1e-6)
    steps = [*ready(made), *(allocate(n, replace(A, frequency=f)) for n, f in enumerate(frequencies))]
    steps += [allocate(3 + n, A, OUT, dimensions=d) for n, d in enumerate(((2, 3), (0, 3), (0, 0)))]
    for slot in range(6):
        steps += [copy_in(slot, value_of(made)), made.execute(how=using((False, 0, slot)), without=(0,))]
    return buffered(steps, made)


def _scenarios() -> Iterator[Scenario]:
    yield Scenario(TOPIC, "allocate.good", _good_allocations, "valid allocations work", once=True)
    yield from _bad_allocations()


SCENARIOS = tuple(_scenarios())
