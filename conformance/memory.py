"""Scenarios of memory: pools of every kind and layout, constants in pools, opaque and driver-managed buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from conformance.allocations import SCENARIOS as ALLOCATION_SCENARIOS
from conformance.behaviour import GF, IA, Scenario, Vehicle, case, execute
from conformance.buffer_steps import binary
from conformance.buffers import SCENARIOS as BUFFER_SCENARIOS
from conformance.cases import parameters
from conformance.execution import BURST, FENCED, SINCE, SYNC, UNTIL, WORDS
from conformance.sketch import tensor, with_constants_in_pools, words_of
from harness.case import Step, TestCase
from harness.expectations import Expectation, Rejects, Returns, Unspecified
from harness.steps import (
    KINDS,
    Action,
    Edit,
    Layout,
    Preparation,
    Running,
)
from nnhal.types import (
    FL1,
    FL3,
    FL5,
    ExecutionMode,
    FeatureLevel,
    OperationType,
)

TOPIC = "MEMORY"
PLAIN = tuple(kind for kind in KINDS if kind != "opaque")
SHARED = {"hardware_buffer": FL3, "opaque": FL3}  # the level that brings a kind of pool


# --- layouts of plain memory ------------------------------------------------------------------------------------------


def _with_inputs(v: Vehicle) -> Vehicle:
    """The vehicle with all its operands as inputs, where it takes several of one kind."""
    several = v.call.definition.name in ("ADD", "MUL", "CONCATENATION")
    return replace(v, constant=parameters(v.call)) if several else v


def _laid_out(name: str, text: str, *layouts: Layout, level: FeatureLevel = FL1) -> Scenario:
    """Executions of one prepared model in several layouts."""

    def make(given: Vehicle) -> TestCase:
        v = _with_inputs(given)
        steps = [Step(Action.QUERY), Step(Action.PREPARE)]
        for number, layout in enumerate(layouts):
            steps.append(execute(v.rolled(number), how=Running(layout=layout)))
        return case(steps, v, level=level)

    return Scenario(TOPIC, name, make, text)


def _layouts() -> Iterator[Scenario]:
    for kind in PLAIN:
        text = f"inputs and outputs lie in pools of kind {kind}"
        layouts = (Layout(kind), Layout(kind, separate=True), Layout(kind, tight=True), Layout(kind, shift=4))
        yield _laid_out(f"pool.{kind.replace('_', '.')}", text, *layouts, level=SHARED.get(kind, FL1))
    shifts = [Layout(shift=shift) for shift in (1, 2, 3, 7)]
    yield _laid_out("unaligned", "values begin at any byte of a pool", *shifts)
    together = (Layout(together=True), Layout(together=True, tight=True), Layout("mmap_fd", together=True, shift=4))
    yield _laid_out("one.pool", "inputs and outputs lie in one pool", *together)
    separate = (Layout(separate=True), Layout(separate=True, tight=True), Layout(separate=True, shift=4))
    yield _laid_out("separate.pools", "each value has a pool of its own", *separate)
    padded = [Layout(padding=p, tight=t) for p, t in ((1, False), (64, False), (61, True), (4096, False))]
    yield _laid_out("padding", "the driver may touch what is behind a value, and must not need it", *padded, level=FL5)
    told = (Layout(), Layout(input_dimensions=False), Layout())
    yield _laid_out("dimensions.left.out", "the model alone says all dimensions of inputs", *told)


def _overlapping(v: Vehicle) -> TestCase:
    """Inputs that are one area, one inside the other, and one on the end of the other."""
    data = (np.arange(24, dtype=np.float32) - 8) / 4
    pairs = ((data[:12], data[:12]), (data[:12], data[8:20]), (data[:12], data[4:8]), (data[:12], data[11:23]))
    steps, models, level = [], [], FL1
    for number, (first, second) in enumerate(pairs):
        made = binary(OperationType.ADD, tensor(first.reshape(-1, 4)), tensor(second.reshape(-1, 4)))
        models.append(made.model)
        level = FeatureLevel(max(level, made.level))
        steps += [Step(Action.QUERY, number), Step(Action.PREPARE, number)]
        layouts = (Layout(overlap=True), Layout("mmap_fd", overlap=True, tight=True), Layout())
        steps += [made.execute(number, how=Running(layout=layout)) for layout in layouts]
    return case(steps, models=models, level=level, detail=words_of(*models))


def _opaque(mode: ExecutionMode) -> Scenario:
    """A driver may refuse memory that it cannot map, but gives right results where it does not."""

    def make(given: Vehicle) -> TestCase:
        v = _with_inputs(given)
        either = Returns(v.returns.outputs, v.returns.groups, unless=(IA, GF))
        how = Running(layout=Layout("opaque"))
        steps = [Step(Action.QUERY), Step(Action.PREPARE), execute(v, mode=mode)]
        steps += [execute(v, mode=mode, how=how, expect=either), execute(v, mode=mode)]
        return case(steps, v, level=FeatureLevel(max(FL3, SINCE[mode])), highest=UNTIL.get(mode))

    text = "inputs and outputs lie in opaque hardware buffers"
    return Scenario(TOPIC, f"opaque.{WORDS[mode]}", make, text, mode=WORDS[mode])


def _opaque_in_parts(v: Vehicle) -> TestCase:
    """An opaque buffer is used whole."""
    steps = [Step(Action.QUERY), Step(Action.PREPARE), execute(v)]
    for change, output in (("offset", False), ("length", False), ("offset", True), ("length", True)):
        how = Running(layout=Layout("opaque"), edits=(Edit(change, value=(1,), output=output),))
        text = f"{change} 1 of an {'output' if output else 'input'} in an opaque hardware buffer, which is used whole"
        steps.append(execute(v, how=how, expect=Rejects((), "R4", text)))
    return case([*steps, execute(v)], v, level=FL3)


def _constants(kind: str) -> Scenario:
    """The model's constants lie in pools."""

    def make(v: Vehicle) -> TestCase:
        opaque = kind == "opaque"
        model, how = with_constants_in_pools(v.model, 2), Preparation(pools=kind)
        due: Expectation = Unspecified() if opaque else Returns()
        steps = [Step(Action.QUERY, expect=due, how=how), Step(Action.PREPARE, expect=due, how=how)]
        results: Expectation = Unspecified() if opaque else v.returns
        steps += [execute(v, expect=results), execute(v.rolled(1), expect=Unspecified() if opaque else None)]
        return case(steps, v, models=(model,), level=SHARED.get(kind, FL1))

    text = f"constants lie in pools of kind {kind}"
    if kind == "opaque":
        text += ", which may be refused; the driver must neither die nor hang"
    return Scenario(TOPIC, f"constants.{kind.replace('_', '.')}", make, text)


def _scenarios() -> Iterator[Scenario]:
    yield from _layouts()
    yield Scenario(TOPIC, "overlapping.inputs", _overlapping, "inputs may lie on one another", once=True)
    yield from (_opaque(mode) for mode in (SYNC, BURST, FENCED))
    yield Scenario(TOPIC, "opaque.in.parts", _opaque_in_parts, "an opaque buffer is used whole", "R4")
    yield from (_constants(kind) for kind in KINDS)
    yield from BUFFER_SCENARIOS
    yield from ALLOCATION_SCENARIOS


SCENARIOS = tuple(_scenarios())
