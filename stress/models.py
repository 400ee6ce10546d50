"""Models for the workloads: drawn graphs that the driver says it does, each with its inputs and what is due."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.case import Origin, TestCase
from harness.case_file import seal
from harness.guards import Arena
from harness.judge import judge
from harness.make import graph_case
from harness.run import run
from harness.steps import Action, Preparation
from harness.verdict import Verdict
from nnhal.device import Device
from nnhal.errors import DriverDied, DriverTimedOut
from nnhal.memory import BytesMemory
from nnhal.model import DataLocation, Model, Operand, Operation, Subgraph
from nnhal.types import FeatureLevel, OperandLifeTime
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.building import GraphBuilder
from opset.call import Argument, Call
from random_graph.cases import attempts

TRIES = 20  # graphs that a driver is asked about for each one that is wanted
SECONDS = 30.0  # that the search may take
ASKED = 4  # graphs of each operation, to learn whether a driver has it
OWN_MIXES = ("small", "single", "ten")  # of the operations that a driver has
MIXES = ("small", "float32", "quant8_asymm", "convolution", "pooling", "matmul", "elementwise", "large", "wide")


@dataclass(frozen=True)
class Found:
    """Models for a driver.

    Attributes:
        cases: those that it does: asked, prepared, executed.
        refused: those that it does not, with its reason.
    """

    cases: tuple[TestCase, ...]
    refused: dict[str, str]


def find_models(device: Device, count: int, seed: int, level: FeatureLevel, mixes: Sequence[str] = MIXES) -> Found:
    """The first graphs of fixed seeds that a driver does, mix by mix in turn.

    A driver that has too few operations for those gets graphs of the ones that it has.

    Raises:
        DriverDied, DriverTimedOut, UncleanError: the driver ended over a question.
    """
    found = _among(device, count, seed, level, mixes)
    if len(found.cases) >= count:
        return found
    names = "+".join(operations_of(device, seed, level))
    if not names:
        return found
    own = _among(device, count - len(found.cases), seed, level, [f"{mix}:{names}" for mix in OWN_MIXES])
    return Found((*found.cases, *own.cases), found.refused | own.refused)


def operations_of(device: Device, seed: int, level: FeatureLevel) -> list[str]:
    """Names of the operations of which a driver does one of a few graphs of nothing else.

    Raises:
        DriverDied, DriverTimedOut, UncleanError: the driver ended over a question.
    """
    with contextlib.closing(Arena()) as arena:
        return [
            definition.name
            for definition in OPSET.values()
            if definition.signatures[0].since <= level
            and any(
                _asked(device, f"single:{definition.name}", seed * 1_000_000 + number, level, {}, arena) is not None
                for number in range(ASKED)
            )
        ]


def _among(device: Device, count: int, seed: int, level: FeatureLevel, mixes: Sequence[str]) -> Found:
    cases: list[TestCase] = []
    refused: dict[str, str] = {}
    end = time.monotonic() + SECONDS
    with contextlib.closing(Arena()) as arena:
        for number in range(TRIES * count):
            mix = mixes[number % len(mixes)]
            graph = seed * 1_000_000 + number // len(mixes)
            case = _asked(device, mix, graph, level, refused, arena)
            if case is not None:
                cases.append(case)
            if len(cases) >= count or time.monotonic() > end:
                break
    return Found(tuple(cases), refused)


def _asked(
    device: Device, mix: str, seed: int, level: FeatureLevel, refused: dict[str, str], arena: Arena
) -> TestCase | None:
    """The case of a graph, where the driver does it."""
    for attempt in attempts(mix, seed):
        question = attempt.question
        if question.level > level or (question.needs and not device.traits.dynamic_shapes):
            return None
        outcome = run(question, device, arena, level=level)
        if outcome.died is not None:
            raise DriverDied(outcome.died, outcome.log)
        if outcome.silent is not None:
            raise DriverTimedOut(outcome.silent, outcome.log)
        judgement = judge(question, outcome)
        if judgement.verdict != Verdict.PASS:
            refused[f"{question.origin.batch}-{question.origin.number}"] = judgement.message
            return None
        case = attempt.make()
        if case is not None:
            return case
    return None


def mapped(case: TestCase) -> TestCase:
    """The case with the model's constants in a file that is mapped."""
    how = Preparation(pools="mmap_fd")
    asked = (Action.QUERY, Action.PREPARE)
    steps = tuple(replace(step, how=how) if step.action in asked else step for step in case.steps)
    return seal(replace(case, models=tuple(with_pool(model) for model in case.models), steps=steps))


def with_pool(model: Model) -> Model:
    """The model with all its constants in a pool."""
    number = len(model.pools)

    def moved(operand: Operand) -> Operand:
        if operand.lifetime != OperandLifeTime.CONSTANT_COPY:
            return operand
        place = DataLocation(number, operand.location.offset, operand.location.length)
        return replace(operand, lifetime=OperandLifeTime.CONSTANT_REFERENCE, location=place)

    def graph_of(graph: Subgraph) -> Subgraph:
        return replace(graph, operands=tuple(moved(operand) for operand in graph.operands))

    if not model.operand_values:
        return model
    return replace(
        model,
        main=graph_of(model.main),
        referenced=tuple(graph_of(graph) for graph in model.referenced),
        operand_values=b"",
        pools=(*model.pools, BytesMemory(bytes(model.operand_values))),
    )


Layers = Sequence[tuple[Op, Sequence[Argument]]]


def built(name: str, layers: Layers, first: Argument) -> TestCase:
    """A chain of operations as a case.

    Args:
        name: stands in the case's id.
        layers: as for `chain`.
        first: the model's input, with a value.
    """
    assert first.value is not None
    return graph_case(chain(layers, first), (first.value,), Origin("CHAIN", name, "built", 0))


def chain(layers: Layers, first: Argument) -> Model:
    """A model of operations one behind the other: each takes the result of the one before as its first input.

    Args:
        layers: operations, each with its further inputs, all constants.
        first: the model's input.
    """
    graph = GraphBuilder()
    at = graph.operand(first, OperandLifeTime.SUBGRAPH_INPUT)
    now = first
    for number, (code, others) in enumerate(layers):
        definition = OPSET[code]
        signature = definition.info.match([now.type, *(a.type for a in others)], [now.type])
        assert signature is not None
        names = signature.form.names(1 + len(others))
        call = Call(definition, signature, dict(zip(names, (now, *others), strict=True)))
        shape = next(iter(definition.infer(call).values()))
        now = Argument(now.type, tuple(shape), now.scale, now.zero_point)
        last = number == len(layers) - 1
        given = [graph.operand(other, OperandLifeTime.CONSTANT_COPY) for other in others]
        out = graph.operand(now, OperandLifeTime.SUBGRAPH_OUTPUT if last else OperandLifeTime.TEMPORARY_VARIABLE)
        graph.operations.append(Operation(int(code), (at, *given), (out,)))
        at = out
    return graph.model()
