"""Models that call sequences, requests and caches are about: each with inputs, and what a driver must give for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from harness.case import Origin, Step, TestCase
from harness.expectations import Returns
from harness.make import graph_case
from harness.steps import Action
from nnhal.model import Model, is_known, is_tensor
from nnhal.types import FL3, Array, FeatureLevel, OperandType
from nnhal.validate import violations
from opset.drawing import UnsatisfiableError
from opset.quantization import FLOATS, QUANTIZED
from opset.source import SwiftSource
from random_graph.cases import MASKED, quality_of
from random_graph.generator import draw_model
from random_graph.mixes import Mix

COUNT = 6  # of different models
TRIED = 120  # seeds for them
SIZES = (1, 3)
CLEAR = 0.1  # by how much results of two inputs differ at least, in units of the largest
CARRIES = FLOATS | QUANTIZED  # types of which one value is as good as another


@dataclass(frozen=True)
class Vehicle:
    """A valid model whose sizes are all known, with two sets of inputs whose results differ.

    Attributes:
        seed: that it is drawn from.
        runs: (inputs, what is due), two of them.
    """

    seed: int
    model: Model
    level: FeatureLevel
    runs: tuple[tuple[tuple[Array | None, ...], Returns], ...]

    @cached_property
    def opened(self) -> Vehicle | None:
        """The same where the model leaves the sizes of its outputs open; None where an operation must know them."""
        main, level = self.model.main, max(self.level, FL3)
        operands = list(main.operands)
        for index in main.output_indexes:
            operands[index] = replace(operands[index], dimensions=(0,) * len(operands[index].dimensions))
        model = replace(self.model, main=replace(main, operands=tuple(operands)))
        return None if violations(model, level) else replace(self, model=model, level=level)

    def execute(self, model: int, run: int = 0) -> Step:
        """An execution of it.

        Args:
            model: its number in the case.
            run: which of the inputs.
        """
        inputs, returns = self.runs[run]
        return Step(Action.EXECUTE, model, returns, inputs=inputs)

    def shapes(self, *, output: bool) -> list[tuple[int, ...]]:
        """Dimensions of the inputs or outputs."""
        main = self.model.main
        return [main.operands[i].dimensions for i in (main.output_indexes if output else main.input_indexes)]


def vehicle(mix: Mix, seed: int) -> Vehicle | None:
    """The vehicle of a seed; None where what it draws will not do."""
    chosen = replace(mix, sizes=SIZES, unknown=0, relaxed=0, constants=30, largest=64)
    try:
        drawn = draw_model(SwiftSource(f"vehicle/{seed}"), chosen)
        if not drawn.sound or not drawn.inputs or not all(is_known_size(drawn.model, i) for i in _ends(drawn.model)):
            return None
        found = [_run(drawn.model, inputs) for inputs in (drawn.inputs, _rolled(drawn.model, drawn.inputs))]
    except (UnsatisfiableError, ValueError):
        return None
    cases = [case for case in found if case is not None]
    if len(cases) < 2 or not _differ(*cases):
        return None
    runs = tuple((case.steps[-1].inputs, _due(case)) for case in cases)
    return Vehicle(seed, drawn.model, cases[0].level, runs)


def is_known_size(model: Model, index: int) -> bool:
    """Whether the model says all of an operand's dimensions."""
    operand = model.main.operands[index]
    return not is_tensor(operand.type) or is_known(operand.dimensions)


def _ends(model: Model) -> tuple[int, ...]:
    return (*model.main.input_indexes, *model.main.output_indexes)


def _rolled(model: Model, inputs: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
    kinds = [OperandType(model.main.operands[i].type) for i in model.main.input_indexes]
    return tuple(
        np.roll(value, 1) if value is not None and kind in CARRIES else value
        for value, kind in zip(inputs, kinds, strict=True)
    )


def _run(model: Model, inputs: tuple[Array | None, ...]) -> TestCase | None:
    case = graph_case(model, inputs, Origin("FUZZ", "vehicle", "fuzzed", 0))
    return case if quality_of(case).masked <= MASKED and not _due(case).groups else None


def _due(case: TestCase) -> Returns:
    due = case.steps[-1].expect
    assert isinstance(due, Returns)
    return due


def _differ(first: TestCase, second: TestCase) -> bool:
    """Whether the results of two sets of inputs can be told from each other."""
    for one, other in zip(_due(first).outputs, _due(second).outputs, strict=True):
        if one.distribution is not None or one.shape != other.shape:
            return False
    return any(
        bool(np.any(np.abs(one.value - other.value) > 2 * one.required + CLEAR * np.abs(one.value).max(initial=0.0)))
        for one, other in zip(_due(first).outputs, _due(second).outputs, strict=True)
        if one.value.size
    )
