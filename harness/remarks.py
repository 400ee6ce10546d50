"""What a driver's side knows of a case besides its outcome: which device ran what, and what the client was spared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from harness.verdict import BAD, Cause, Judgement, Verdict


@dataclass(frozen=True)
class Remarks:
    """Gathered while a case ran.

    Attributes:
        notes: sentences for the record.
        numbers: measured, by name.
        overrun: a write outside of places in memory that the suite does not see; empty when there was none.
        partition: which device ran what, as words.
        draw: gives the same for Graphviz; None where there is nothing to draw.
        hidden: the CPU did what a device had failed at.
    """

    notes: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    overrun: str = ""
    partition: str = ""
    draw: Callable[[], str] | None = None
    hidden: bool = False


NO_REMARKS = Remarks()


def remarked(judgement: Judgement, remarks: Remarks) -> Judgement:
    """A judgement with the remarks in it; a write outside of places is a failure of its own."""
    if remarks == NO_REMARKS:
        return judgement
    if remarks.overrun and judgement.verdict not in BAD:
        judgement = replace(judgement, verdict=Verdict.FAIL, cause=Cause.OVERRUN, message=remarks.overrun)
    notes = (*judgement.notes, *remarks.notes)
    if judgement.verdict in BAD and remarks.partition:
        notes = (*notes, f"partition: {remarks.partition}")
    return replace(judgement, notes=notes, numbers={**judgement.numbers, **remarks.numbers})
