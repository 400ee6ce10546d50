"""What a graph's results are held against besides the reference: those that the driver itself gives otherwise.

An oracle takes the case of a graph as `harness.make.graph_case` makes it, and gives the case that is run in its place.
Neither of those here needs the reference's values. The reference tells how far results may be off, and they are for
graphs for which it may be wrong about more than that.

`equal`: the graph is written in another way (`random_graph.rewrites`), and the driver has to give the same for both.
`fresh`: the graph is run twice, each time in a fresh process in which memory that nobody has written holds another
byte, and the driver has to give the same bits.
A third one, `random_graph.against.Against`, lets another driver run the graph first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from harness.batch import NotApplicableError, SettledError
from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Agreement, Agrees, Expected, Returns, Unspecified
from harness.make import expected_of_graph, graph_case
from harness.steps import Action, Restarting
from harness.verdict import Cause, Judgement, Verdict
from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.types import Array, ExecutionMode, FeatureLevel
from opset import OPSET
from opset.quantization import QUANTIZED
from random_graph.rewrites import Graph, Rewrite, level_of, named, rewrite, rewrite_at_random
from random_graph.rewrites_graph import NoRewriteError, is_determined

Oracle = Callable[[TestCase], TestCase]
Judge = Callable[[TestCase], Judgement]
REWRITES_AT_ONCE = 3  # done one after the other, at most
REFERENCE = "reference"  # the oracle where none is named
TRIES = 6  # ways to write a graph that may turn out to leave nothing to compare
FILLS = (0x55, 0xAA)  # as a float32 a huge number and a tiny one; as a step far above zero and far below
FRESH_TEXT = "the same request gives the same bits, whatever memory held that nobody has written"


def graph_of(case: TestCase) -> tuple[Model, tuple[Array | None, ...]]:
    """The model of a graph's case, and the values of its inputs."""
    return case.models[0], execution_of(case).inputs


def execution_of(case: TestCase) -> Step:
    """The step of a graph's case that runs it."""
    return next(step for step in case.steps if step.action == Action.EXECUTE)


def _due(case: TestCase) -> tuple[Expected, ...]:
    expect = execution_of(case).expect
    assert isinstance(expect, Returns)
    return expect.outputs


def opened(due: Expected) -> Expected:
    """An output of which only the shape is due."""
    nothing = np.zeros(due.shape)
    return Expected(due.name, due.type, due.shape, nothing, np.full(due.shape, np.inf), stored=due.stored)


def reference(case: TestCase) -> TestCase:
    """The reference's values are due: the case as it is."""
    return case


# --- equal graphs -----------------------------------------------------------------------------------------------------


def equal(case: TestCase) -> TestCase:
    """The case of a graph and the same graph written in another way, drawn from what the case is called.

    Raises:
        NotApplicableError: no rewrite has a place in the graph, or none leaves anything to compare.
    """
    model, inputs = graph_of(case)
    reason: ValueError = NoRewriteError("the graph has no place for any rewrite")
    for attempt in range(TRIES):
        seed = f"{case.origin.signature}/{case.origin.number}/{attempt}"
        count = random.Random(seed).randint(1, REWRITES_AT_ONCE)
        try:
            graph, done = rewrite_at_random(model, inputs, seed, case.level, count)
            return _pair(case, graph, done)
        except ValueError as error:
            reason = error
    raise NotApplicableError(str(reason))


def equal_graphs_case(
    model: Model,
    inputs: Sequence[Array | None],
    rewrites: Sequence[str],
    origin: Origin,
    *,
    seed: object = 0,
    level: FeatureLevel | None = None,
    mode: ExecutionMode = ExecutionMode.SYNCHRONOUS,
) -> TestCase:
    """A valid model and the same written in another way: both are run, and must give the same.

    They may differ by what both are allowed together. The reference's values are not looked at.

    Args:
        model: valid at the level.
        inputs: stored values in the order of the model's list; None for an omitted one.
        rewrites: names from `random_graph.rewrites.REWRITES`, done one after the other.
        origin: what the id is made of.
        seed: decides where each is done.
        level: at which both must be valid; the lowest at which the model is when None.
        mode: of both executions.

    Raises:
        UsageError: a rewrite has no such name.
        NoRewriteError: the model has no place for one of them; a ValueError.
        ValueError: how far results may be off is not determined, or nothing would be compared.
    """
    chance = random.Random(str(seed))
    chosen = named(rewrites)
    case = graph_case(model, inputs, origin, mode=mode, level=level_of(model) if level is None else level)
    graph = Graph.of(model, inputs, case.level)
    for each in chosen:
        graph = rewrite(graph, each, chance)
    return _pair(case, graph, chosen)


def _pair(case: TestCase, graph: Graph, done: Sequence[Rewrite]) -> TestCase:
    """The case of a graph's case and another graph that gives the same.

    Raises:
        ValueError: nothing would be compared, or by the specification the two do not give the same.
    """
    there = _due(case)
    here: Sequence[Expected]
    if all(each.alike for each in done):
        here = [there[link.position] for link in graph.links]
    else:
        here = expected_of_graph(graph.model, graph.inputs, graph.model.relax_computation_float32_to_float16)
    open_ = _undetermined(case.models[0])
    agreements = []
    for due, link in zip(here, graph.links, strict=True):
        other = there[link.position]
        rows = slice(link.first, None if link.first is None else link.first + due.shape[0])
        value, required = (array if link.first is None else array[rows] for array in (other.value, other.required))
        if value.shape != due.shape:
            raise ValueError(f"{due.name} has dimensions {list(due.shape)}, and {list(value.shape)} are due")
        allowed = due.required + required
        if link.position in open_ or due.distribution is not None:
            allowed = np.full(due.shape, np.inf)
        apart = _apart(due, value)
        if (apart > allowed).any():
            raise ValueError(f"by the specification {due.name} is not the same in both")
        allowed = np.where(np.isfinite(allowed), allowed + apart, np.inf)
        agreements.append(Agreement(link.position, allowed, first=link.first))
    if not any(np.isfinite(a.allowed).any() for a in agreements):
        raise ValueError("all that both give is left open")
    first = execution_of(case)
    text = f"the graph in another form ({', '.join(r.name for r in done)}) gives the same: "
    text += "; ".join(r.text for r in done)
    steps = (
        *(Step(Action.QUERY, number) for number in (0, 1)),
        *(Step(Action.PREPARE, number) for number in (0, 1)),
        Step(Action.EXECUTE, 0, Returns(tuple(opened(due) for due in there)), first.mode, first.inputs),
        Step(Action.EXECUTE, 1, Agrees(4, tuple(agreements), text), first.mode, graph.inputs),
    )
    detail = f"{case.origin.detail}; {text}" if case.origin.detail else text
    made = replace(case, origin=replace(case.origin, detail=detail), models=(case.models[0], graph.model), steps=steps)
    return seal(made)


def _apart(due: Expected, value: Array) -> Array:
    """How far apart the specification's own results are, as they are stored; none between alike infinities and NaN."""
    first, second = due.value, value
    if due.type in QUANTIZED:
        first, second = np.rint(first), np.rint(second)
    with np.errstate(invalid="ignore"):
        apart = np.abs(first - second)
    alike = (first == second) | (np.isnan(first) & np.isnan(second))
    return np.where(alike, 0.0, np.where(np.isnan(apart), np.inf, apart))


def _undetermined(model: Model) -> set[int]:
    """Positions of the outputs that hang on something random, or on rows that may come in any order."""
    found: set[int] = set()
    for operation in model.main.operations:
        if not is_determined(OPSET[operation.type]) or found.intersection(operation.inputs):
            found.update(operation.outputs)
    return {position for position, index in enumerate(model.main.output_indexes) if index in found}


# --- fresh processes --------------------------------------------------------------------------------------------------


def fresh(case: TestCase) -> TestCase:
    """The case of a graph that is run in two fresh processes, with other bytes in memory that nobody has written.

    In the second one other values go before, so that what a driver keeps from one execution to the next shows, too.
    Nothing but the shapes of the results is taken from the reference.

    Raises:
        NotApplicableError: the graph has a result that is drawn at random.
    """
    graphs = (case.models[0].main, *case.models[0].referenced)
    if any(OPSET[operation.type].judging.sampling for graph in graphs for operation in graph.operations):
        raise NotApplicableError("the graph has results that are drawn at random")
    first, due = execution_of(case), _due(case)
    agreements = tuple(Agreement(n, np.zeros(output.shape), bits=True) for n, output in enumerate(due))
    execution = replace(first, expect=Returns(tuple(opened(output) for output in due)))
    before = replace(first, expect=Unspecified(), inputs=tuple(_turned(value) for value in first.inputs))
    steps = (
        Step(Action.QUERY),
        Step(Action.RESTART, how=Restarting(FILLS[0])),
        Step(Action.PREPARE),
        execution,
        Step(Action.RESTART, how=Restarting(FILLS[1])),
        Step(Action.PREPARE),
        before,
        replace(first, expect=Agrees(3, agreements, FRESH_TEXT)),
    )
    detail = f"{case.origin.detail}; {FRESH_TEXT}" if case.origin.detail else FRESH_TEXT
    needs = tuple(dict.fromkeys((*case.needs, "deterministic")))
    return seal(replace(case, origin=replace(case.origin, detail=detail), steps=steps, needs=needs))


def _turned(value: Array | None) -> Array | None:
    """A value's elements in the opposite order: others in each place, and none that was not there before.

    Integers of 32 bits stay as they are: they may be indexes or sizes.
    """
    if value is None or value.dtype == np.int32:
        return value
    return np.ascontiguousarray(value.reshape(-1)[::-1].reshape(value.shape))


# --- all of them ------------------------------------------------------------------------------------------------------


ORACLES: dict[str, Oracle] = {REFERENCE: reference, "equal": equal, "fresh": fresh}


def oracle_of(name: str) -> Oracle:
    """The oracle of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in ORACLES:
        raise UsageError(f"--oracle={name} is unknown; there are {', '.join(ORACLES)}")
    return ORACLES[name]


def judge_by(oracle: Oracle, judged: Judge) -> Judge:
    """Judges cases of graphs by an oracle, as `harness.minimize.minimize` asks for it.

    Args:
        oracle: one of ORACLES, or a `random_graph.against.Against`.
        judged: runs and judges a case, such as `harness.probing.prober(driver)`.
    """

    def found(case: TestCase) -> Judgement:
        try:
            return judged(oracle(case))
        except NotApplicableError as reason:
            return Judgement(Verdict.NOT_APPLICABLE, Cause.TRAIT, "make", str(reason))
        except SettledError as settled:
            return settled.judgement

    return found
