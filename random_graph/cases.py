"""Random graphs as cases: drawn from a mix and a seed, and drawn again where little can be said of the outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.batch import Batch
from harness.case import Origin, TestCase
from harness.expectations import Returns
from harness.make import graph_case
from harness.waivers import DIGEST, without_digest
from nnhal.types import OperandType, info
from opset.drawing import UnsatisfiableError
from opset.quantization import FLOATS, QUANTIZED
from opset.source import SwiftSource
from random_graph.generator import Drawn, draw_model
from random_graph.mixes import MIXES, Mix, mix
from random_graph.spending import GENERATION, spending

KIND = "drawn"
TRIES = 40  # draws of one seed; each is another graph
MASKED = 0.05  # share of the elements of all outputs that may say nothing, before a graph is drawn again
BATCH = 25  # graphs of one pytest item
FULL_NAME = re.compile(rf"GRAPH-(?P<mix>[a-z0-9_]+)-sync-{KIND}-(?P<seed>\d+)")


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
    chosen = mix(mix_name)
    for attempt in range(TRIES):
        try:
            drawn = draw(chosen, seed, attempt)
            if not drawn.sound:
                continue
            case = graph_case(drawn.model, drawn.inputs, origin_of(mix_name, seed), level=None)
        except (UnsatisfiableError, ValueError):
            continue
        quality = quality_of(case, attempt)
        if quality.masked <= MASKED:
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
    return Batch(replace(origin_of(name, 0)), numbers, lambda number: graph_test_case(name, number))


def named(patterns: Sequence[str], planned: Sequence[Batch]) -> list[Batch]:
    """The planned batches, and one for each graph that a pattern names in full and no batch holds.

    Args:
        patterns: ids, globs and files.
        planned: what the profile has.
    """
    there = {f"{batch.id}-{number}" for batch in planned for number in batch.numbers}
    more = []
    for pattern in patterns:
        found = FULL_NAME.fullmatch(without_digest(pattern) if DIGEST.search(pattern) else pattern)
        if found and found["mix"] in MIXES and f"{origin_of(found['mix'], 0).batch}-{found['seed']}" not in there:
            more.append(_batch(found["mix"], (int(found["seed"]),)))
    return [*planned, *more]
