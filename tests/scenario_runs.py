"""Runs one scenario on a driver of a test's own, in this process: does the scenario see what is wrong with it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance.behaviour import Scenario, batches
from harness.judge import judge
from harness.run import run
from harness.verdict import Judgement, Verdict
from nnhal.device import Device
from nnhal.types import FL8, FeatureLevel

Make = Callable[[], Device]


def judged(
    scenarios: Sequence[Scenario], name: str, make: Make, number: int = 0, level: FeatureLevel = FL8
) -> Judgement:
    """The verdict on one case of a scenario."""
    batch = next(b for b in batches(scenarios, "quick", 0) if b.origin.signature == name)
    case = batch.make(number)
    return judge(case, run(case, make(), in_process=True, level=level, restart=make))


def caught(scenarios: Sequence[Scenario], name: str, make: Make, count: int = 5) -> str:
    """The message of the first of a scenario's cases that fails; empty when none does."""
    for number in range(count):
        found = judged(scenarios, name, make, number)
        if found.verdict == Verdict.FAIL:
            return f"{found.cause.value}: {found.message}"
    return ""
