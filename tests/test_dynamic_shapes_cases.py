"""Drivers that get shapes wrong which no model tells, each seen by the scenario that is there for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from conformance.dynamic_shapes import SCENARIOS, zero_sized_batches
from conformance.zero_sized import zero_sized_cases
from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    CompilationConfig,
    ExecutionConfig,
    ExecutionResult,
    OutputShape,
    PreparedModel,
    Timing,
)
from nnhal.errors import DriverError
from nnhal.memory import Memory
from nnhal.model import Model, Request
from nnhal.types import ErrorStatus, OperandLifeTime
from reference_driver import ReferenceDevice
from reference_driver.execution import ReferencePreparedModel
from tests.scenario_runs import caught

GF = ErrorStatus.GENERAL_FAILURE


class Answering(ReferencePreparedModel):
    """Gives another answer than the right one."""

    def answer(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        return result

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        return self.answer(request, super().execute_synchronously(request, config, deadline))


class FirstShape(Answering):
    """Finds the shapes once."""

    def answer(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        self.__dict__.setdefault("shapes", result.output_shapes)
        return replace(result, output_shapes=self.shapes)


class NoShapes(Answering):
    def answer(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        return replace(result, output_shapes=())


class AllShort(Answering):
    """Does not say which output has no room."""

    def answer(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        if result.output_sufficient_size:
            return result
        return replace(result, output_shapes=tuple(replace(s, is_sufficient=False) for s in result.output_shapes))


class ForgetsKnown(Answering):
    """Reports no sizes where there is no room."""

    def answer(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        if result.output_sufficient_size:
            return result
        shapes = tuple(OutputShape((0,) * len(s.dimensions), s.is_sufficient) for s in result.output_shapes)
        return replace(result, output_shapes=shapes)


class Measured(Answering):
    def answer(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        return result if result.output_sufficient_size else replace(result, timing=Timing(1, 2))


class Fails(Answering):
    """Has no word for a lack of room."""

    def answer(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        if not result.output_sufficient_size:
            raise DriverError(ErrorStatus.INVALID_ARGUMENT, "no room")
        return result


class Broken(Answering):
    """Cannot go on after a lack of room."""

    def answer(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        if "over" in self.__dict__:
            raise DriverError(GF, "no more")
        if not result.output_sufficient_size:
            self.__dict__["over"] = True
        return result


class WritesAnyway(Answering):
    """Writes one byte behind the room that was too small."""

    def answer(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        if not result.output_sufficient_size:
            place = request.outputs[0].location
            pool = request.pools[place.pool_index]
            assert isinstance(pool, Memory)
            pool.view()[place.offset + place.length] ^= 1
        return result


class GuessesInputs(Answering):
    """Takes one for each size that the request should have said."""

    def check(self, request: Request, *, fenced: bool = False) -> None:
        main = self.model.main
        inputs = []
        for argument, index in zip(request.inputs, main.input_indexes, strict=True):
            told = argument.dimensions or main.operands[index].dimensions
            inputs.append(replace(argument, dimensions=tuple(size or 1 for size in told)))
        if any(min(a.dimensions, default=1) < 1 for a in inputs):
            super().check(request, fenced=fenced)

    def _run(self, request: Request, config: ExecutionConfig, deadline: int | None, started: int) -> ExecutionResult:
        shapes = [self.model.main.operands[i].dimensions for i in self.model.main.output_indexes]
        try:
            return super()._run(request, config, deadline, started)
        except DriverError:
            return ExecutionResult(tuple(OutputShape(tuple(n or 1 for n in shape)) for shape in shapes))


def running(kind: type[Answering]) -> Callable[[], ReferenceDevice]:
    class Faulty(ReferenceDevice):
        def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
            prepared = super().prepare_model(model, config)
            prepared.__class__ = kind
            return prepared

    return Faulty


def refusing(lifetime: OperandLifeTime) -> Callable[[], ReferenceDevice]:
    class Faulty(ReferenceDevice):
        def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
            if any(o.lifetime == lifetime and 0 in o.dimensions for o in model.main.operands):
                raise DriverError(GF, "unknown sizes")
            return super().prepare_model(model, config)

    return Faulty


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (running(FirstShape), "sizes.by.turns.sync", "SHAPE: output 'output 0' has dimensions [2, 3], [1, 3] are due"),
        (running(FirstShape), "ranks.by.turns", "SHAPE"),
        (running(NoShapes), "output.first", "SHAPE"),
        (running(NoShapes), "output.rank", "SHAPE"),
        (running(AllShort), "short.of.two.sync", "output 0, 1 is marked as insufficient where output 0 is"),
        (running(ForgetsKnown), "short.by.request", "was known before"),
        (running(ForgetsKnown), "short.first.sync", "was known before"),
        (running(Measured), "short.all.sync", "TIMING"),
        (running(Fails), "short.last.sync", "OUTPUT_INSUFFICIENT_SIZE is required"),
        (running(Broken), "short.rank.sync", "answered GENERAL_FAILURE (no more); NONE is required"),
        (running(WritesAnyway), "short.all.sync", "OVERRUN"),
        (running(GuessesInputs), "input.all.not.told", "says nothing of the input's dimensions"),
        (refusing(OperandLifeTime.TEMPORARY_VARIABLE), "internal.behind.all", "prepare of a valid model answered"),
        (refusing(OperandLifeTime.TEMPORARY_VARIABLE), "internal.in.front.first", "prepare of a valid model answered"),
        (refusing(OperandLifeTime.SUBGRAPH_INPUT), "input.first", "prepare of a valid model answered"),
        (refusing(OperandLifeTime.SUBGRAPH_OUTPUT), "output.first.told", "prepare of a valid model answered"),
    ],
)
def test_a_fault_is_seen(make: Callable[[], ReferenceDevice], name: str, words: str) -> None:
    assert words in caught(SCENARIOS, name, make)


def test_chains_are_made_in_any_order_and_again() -> None:
    batches = list(zero_sized_batches("full", 0))[:3]
    first = [batches[n].make(k).id for n, k in ((1, 0), (0, 3), (0, 1), (1, 0), (2, 2), (0, 3))]
    wanted = {(c.origin.batch, c.origin.number): c.id for c in itertools.islice(zero_sized_cases(4, 0), 12)}
    assert first == [wanted[batches[n].id, k] for n, k in ((1, 0), (0, 3), (0, 1), (1, 0), (2, 2), (0, 3))]


@pytest.mark.parametrize(("profile", "most"), [("quick", 1), ("ci", 4)])
def test_no_signature_that_can_be_reached_is_left_out(profile: str, most: int) -> None:
    named = [batch.id for batch in zero_sized_batches(profile, 0)]
    # 267 signatures take tensors without elements; six are of types that no operation gives without elements.
    assert len(named) == len(set(named))
    assert 261 / most <= len(named) <= 261 / most + 1
