"""Random graphs as cases: drawn from a mix and a seed, and drawn again where little can be said of the outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from harness.batch import Batch
from harness.case import Origin, TestCase
from harness.expectations import Returns
from harness.make import graph_case, graph_question
from harness.waivers import without_digest
from nnhal.errors import UsageError
from nnhal.types import OperandType, info
from opset.drawing import UnsatisfiableError
from opset.quantization import FLOATS, QUANTIZED
from opset.source import SwiftSource
from random_graph.generator import Drawn, draw_model
from random_graph.mixes import MIXES, Mix, mix
from random_graph.spending import GENERATION, ORACLE, spending

KIND = "drawn"
TRIES = 40  # draws of one seed; each is another graph
MASKED = 0.05  # share of the elements of all outputs that may say nothing, before a graph is drawn again
BATCH = 25  # graphs of one pytest item
FULL_NAME = re.compile(rf"GRAPH-(?P<mix>[a-z0-9_]+(?::[A-Z0-9_+]+)?)-sync-{KIND}-(?P<seed>\d+)")


@dataclass(frozen=True)
class Quality:
    """What can be said of a graph's outputs, as shares of their elements.

    Attributes:
        masked: open, or so far off legally that they say nothing.
        saturated: at an end of their quantised type.
        zero: exactly zero.
        attempts: draws that were given up before this one.
    """

    masked: float
    saturated: float
    zero: float
    attempts: int


def origin_of(mix_name: str, seed: int) -> Origin:
    """What the id of a graph's case is made of."""
    return Origin("GRAPH", mix_name, KIND, seed, seed=f"{mix_name}/{seed}")


@dataclass(frozen=True)
class Attempt:
    """A draw of a seed that is sound: a valid model with values in range, of which it is not known what is due.

    Attributes:
        number: of the draw; those that were given up count.
        drawn: the graph.
        question: asks whether the model is supported.
    """

    number: int
    drawn: Drawn
    question: TestCase

    @cached_property
    def whole(self) -> TestCase | None:
        """The case, however little can be said of its outputs; None where that is nothing."""
        origin, level = self.question.origin, self.question.level
        with spending(ORACLE):
            try:
                return graph_case(self.drawn.model, self.drawn.inputs, origin, level=level)
            except (UnsatisfiableError, ValueError):
                return None

    @cached_property
    def quality(self) -> Quality | None:
        """What can be said of the outputs."""
        whole = self.whole
        with spending(ORACLE):
            return None if whole is None else quality_of(whole, self.number)

    @property
    def good(self) -> bool:
        """Whether enough can be said of the outputs."""
        return self.quality is not None and self.quality.masked <= MASKED

    def make(self) -> TestCase | None:
        """The case, where enough can be said of its outputs."""
        return self.whole if self.good else None


def attempts(mix_name: str, seed: int) -> Iterator[Attempt]:
    """The sound draws of a seed, in order; the first good one makes its case, which no driver has a say in.

    A driver that is asked for support before goes through them in the same order: where it does not support one, that
    is what is said of the seed, and otherwise its case is the one that all others get.

    Raises:
        UsageError: there is no such mix.
    """
    chosen, origin = mix(mix_name), origin_of(mix_name, seed)
    for number in range(TRIES):
        try:
            drawn = draw(chosen, seed, number)
            with spending(GENERATION):
                sound = drawn.sound
            if not sound:
                continue
            with spending(ORACLE):
                question = graph_question(drawn.model, origin)
        except (UnsatisfiableError, ValueError):
            continue
        yield Attempt(number, drawn, question)


def graph_test_case(mix_name: str, seed: int) -> TestCase:
    """The case of a seed: always the same one.

    Raises:
        UsageError: there is no such mix.
    """
    return drawn_case(mix_name, seed)[0]


def drawn_case(mix_name: str, seed: int) -> tuple[TestCase, Quality]:
    """The case of a seed, and what can be said of its outputs.

    Raises:
        UsageError: there is no such mix.
        UnsatisfiableError: no draw was good enough.
    """
    for attempt in attempts(mix_name, seed):
        case, quality = attempt.make(), attempt.quality
        if case is not None and quality is not None:
            return case, quality
    raise UnsatisfiableError(f"mix {mix_name} seed {seed}: no graph in {TRIES} draws")


def draw(chosen: Mix, seed: int, attempt: int = 0) -> Drawn:
    """A graph of a mix.

    Raises:
        UnsatisfiableError: the draw ran dry.
    """
    with spending(GENERATION):
        return draw_model(SwiftSource(f"{chosen.name}/{seed}/{attempt}"), chosen)


def quality_of(case: TestCase, attempts: int = 0) -> Quality:
    """What can be said of the outputs of a graph's case."""
    returns = case.steps[-1].expect
    assert isinstance(returns, Returns)
    count, masked, saturated, zero = 0, 0.0, 0.0, 0.0
    for due in returns.outputs:
        size = due.value.size
        count += size
        if due.distribution is not None or not size:
            continue
        loose = np.isinf(due.required)
        if due.type in FLOATS:
            finite = due.value[np.isfinite(due.value)]
            loose |= due.required > 0.25 * max(float(np.abs(finite).max(initial=0.0)), 1e-3)
        elif due.type in QUANTIZED:
            ends = np.iinfo(info(due.type).dtype)
            loose |= due.required >= 32
            saturated += float(((due.value <= ends.min) | (due.value >= ends.max)).sum())
        masked += float(loose.sum())
        if due.type not in (OperandType.TENSOR_BOOL8, OperandType.BOOL):
            zero += float((due.value == 0).sum())
    count = max(count, 1)
    return Quality(masked / count, saturated / count, zero / count, attempts)


def batches(profile: str, seed: int, names: tuple[str, ...] = ()) -> Iterator[Batch]:
    """Batches of graphs of fixed seeds, for each mix its own number.

    Args:
        profile: decides how many.
        seed: shifts the seeds.
        names: of the only mixes; all when empty.
    """
    for chosen in (mix(name) for name in names) if names else MIXES.values():
        first = seed * 1_000_000
        count = chosen.count.get(profile, 0) or (1 if names else 0)
        numbers = range(first, first + count)
        for start in range(0, count, BATCH):
            yield _batch(chosen.name, tuple(numbers[start : start + BATCH]))


def _batch(name: str, numbers: tuple[int, ...]) -> Batch:
    made, drafts = partial(graph_test_case, name), partial(attempts, name)
    return Batch(replace(origin_of(name, 0)), numbers, made, drafts=drafts)


def _is_mix(name: str) -> bool:
    try:
        mix(name)
    except UsageError:
        return False
    return True


def named(patterns: Sequence[str], planned: Sequence[Batch]) -> list[Batch]:
    """The planned batches, and one for each graph that a pattern names in full and no batch holds.

    Args:
        patterns: ids, globs and files.
        planned: what the profile has.
    """
    there = {f"{batch.id}-{number}" for batch in planned for number in batch.numbers}
    more = []
    for pattern in patterns:
        found = FULL_NAME.fullmatch(pattern) or FULL_NAME.fullmatch(without_digest(pattern))
        if found and _is_mix(found["mix"]) and f"{origin_of(found['mix'], 0).batch}-{found['seed']}" not in there:
            more.append(_batch(found["mix"], (int(found["seed"]),)))
    return [*planned, *more]
