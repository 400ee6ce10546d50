"""Runs a failure again: in a fresh process, and if it does not repeat, behind the cases that went before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.case import Origin, Step, TestCase, Unspecified, seal
from harness.judge import BAD, Judgement, Verdict
from nnhal.model import Model

HISTORY = 40  # cases that are kept to be replayed before a failure that does not repeat alone


@dataclass(frozen=True)
class Repeated:
    """What came of it.

    Attributes:
        judgement: the verdict to record.
        how: `same`, `sequence` (only behind other cases) or `differs` (not again: FLAKY).
        case: the case to save: the failing one, or one with the whole sequence in it.
    """

    judgement: Judgement
    how: str
    case: TestCase


def chain(cases: Sequence[TestCase]) -> TestCase:
    """One case that takes the steps of all, in order; only the last one's expectations count."""
    models: list[Model] = []
    steps: list[Step] = []
    for case in cases:
        shift = len(models)
        models += case.models
        for step in case.steps:
            moved = replace(step, model=step.model + shift)
            steps.append(moved if case is cases[-1] else replace(moved, expect=Unspecified()))
    last = cases[-1]
    origin = Origin(**{**last.origin.__dict__, "kind": f"{last.origin.kind}.sequence{len(cases)}"})
    return seal(replace(last, origin=origin, models=tuple(models), steps=tuple(steps)))


def confirm(
    case: TestCase,
    first: Judgement,
    history: Sequence[TestCase],
    fresh: Callable[[Sequence[TestCase]], Judgement],
) -> Repeated:
    """Looks whether a failure repeats.

    Args:
        case: the failing one.
        first: its judgement.
        history: what the same process ran before it, oldest first.
        fresh: runs cases in order in a fresh process and judges the last.
    """
    again = fresh([case])
    if again.verdict in BAD:
        return Repeated(again if again.verdict == first.verdict else first, "same", case)
    before = list(history)[-HISTORY:]
    if before and fresh([*before, case]).verdict in BAD:
        shortest = _shorten(before, case, fresh)
        return Repeated(first, "sequence", chain([*shortest, case]))
    text = f"did not repeat, alone or behind the {len(before)} cases before it; at first: {first.message}"
    return Repeated(replace(first, verdict=Verdict.FLAKY, message=text), "differs", case)


def _shorten(
    before: list[TestCase], case: TestCase, fresh: Callable[[Sequence[TestCase]], Judgement]
) -> list[TestCase]:
    """A short end of the history, by halving, then without the cases that do not matter (at most a dozen runs)."""
    while len(before) > 1:
        half = before[len(before) // 2 :]
        if fresh([*half, case]).verdict not in BAD:
            break
        before = half
    for position in range(min(len(before) - 1, 6)):
        fewer = [c for i, c in enumerate(before) if i != position]
        if fresh([*fewer, case]).verdict in BAD:
            return _shorten(fewer, case, fresh) if len(fewer) < 4 else fewer
    return before
