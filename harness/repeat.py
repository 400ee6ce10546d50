"""Runs a failure again: in a fresh process, and if it does not repeat, behind the cases that went before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Unspecified
from harness.verdict import BAD, Cause, Judgement, Verdict
from nnhal.model import Model

NAMING = frozenset({Cause.OVERRUN, Cause.INPUT_WRITTEN})  # causes that say more than a death does
HISTORY = 40  # cases that are kept to be replayed before a failure that does not repeat alone
SHORTENINGS = 20  # runs that are spent on finding out which of them matter
SHORTENINGS_OF_HANG = 4  # each of them waits a deadline


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
        better = again.cause in NAMING or (again.verdict == first.verdict and first.cause not in NAMING)
        return Repeated(again if better else first, "same", case)
    before = list(history)[-HISTORY:]
    if before and fresh([*before, case]).verdict in BAD:
        runs = SHORTENINGS_OF_HANG if first.verdict == Verdict.HANG else SHORTENINGS
        shortest = _shorten(before, case, fresh, runs)
        return Repeated(first, "sequence", chain([*shortest, case]))
    text = f"did not repeat, alone or behind the {len(before)} cases before it; at first: {first.message}"
    return Repeated(replace(first, verdict=Verdict.FLAKY, message=text), "differs", case)


def _shorten(
    before: list[TestCase], case: TestCase, fresh: Callable[[Sequence[TestCase]], Judgement], runs: int
) -> list[TestCase]:
    """What of the history is needed, found by leaving out ever smaller pieces, in so many runs at most."""
    size = len(before)
    while size > 1:
        size = (size + 1) // 2
        start = 0
        while start < len(before):
            fewer = before[:start] + before[start + size :]
            start += size
            if not fewer:
                continue
            if not runs:
                return before
            runs -= 1
            if fresh([*fewer, case]).verdict in BAD:
                before, start = fewer, start - size
        size = min(size, len(before))
    return before
