"""What a target makes of its bytes, and how it is run and judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.case import TestCase
from harness.guards import Arena
from harness.judge import judge
from harness.outcome import Outcome
from harness.run import run
from harness.verdict import Judgement
from nnhal.device import Device
from nnhal.types import FeatureLevel


@dataclass(frozen=True)
class Attempt:
    """A case of bytes.

    Attributes:
        case: with what is due, or where that takes long to say, with what is certain at once.
        whole: the same steps with all that is due; None where `case` says it. May raise ValueError: it cannot be said.
        well: whether an outcome of `case` is so near to what is due that `whole` need not be made.
    """

    case: TestCase
    whole: Callable[[], TestCase] | None = None
    well: Callable[[Outcome], bool] | None = None

    @property
    def complete(self) -> TestCase:
        """The case with all that is due, as far as it can be said."""
        if self.whole is None:
            return self.case
        try:
            return self.whole()
        except ValueError:
            return self.case


def checked(attempt: Attempt, device: Device, arena: Arena, level: FeatureLevel, *, in_process: bool
            ) -> tuple[TestCase, Judgement, Outcome]:  # fmt: skip
    """Runs and judges an attempt; gives the case that it was judged by, too."""
    case = attempt.case
    outcome = run(case, device, arena, in_process=in_process, level=level)
    if attempt.well is not None and not attempt.well(outcome):
        case = attempt.complete
    return case, judge(case, outcome), outcome
