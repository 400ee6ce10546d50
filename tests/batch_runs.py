"""Runs the cases of a batch on a driver of a test's own, in this process: do they see what is wrong with it?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from harness.batch import Batch
from harness.judge import judge
from harness.run import run
from harness.verdict import Judgement, Verdict
from nnhal.device import Device
from nnhal.types import FL8, FeatureLevel


def judgements(batches: Iterable[Batch], glob: str, make: Callable[[], Device], level: FeatureLevel = FL8,
               most: int = 4) -> dict[str, Judgement]:  # fmt: skip
    """The verdicts on a few of the cases that a glob names, by id."""
    found = {}
    for batch in batches:
        for number in batch.numbers:
            name = f"{batch.id}-{number}"
            if fnmatchcase(name, glob) and len(found) < most:
                case = batch.make(number)
                assert case.level <= level, f"{name} needs level {case.level.version}"
                found[name] = judge(case, run(case, make(), in_process=True, level=level, restart=make))
    assert found, f"no case is named {glob}"
    return found


def caught(batches: Iterable[Batch], glob: str, make: Callable[[], Device], level: FeatureLevel = FL8,
           most: int = 4) -> str:  # fmt: skip
    """Cause and message of the first of the cases that fails; empty when none does."""
    for found in judgements(batches, glob, make, level, most).values():
        if found.verdict == Verdict.FAIL:
            return f"{found.cause.value}: {found.message}"
    return ""
