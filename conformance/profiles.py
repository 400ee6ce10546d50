"""How many cases of each kind a profile asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """Numbers for one signature.

    Attributes:
        draws: drawn cases; twice as many where the form has a layout operand, since some drivers have one layout only.
        breaks: cases for each rule that is broken.
        mutants: cases for each graph-level mutation, on one signature of an operation in `every`.
    """

    draws: int
    breaks: int
    mutants: int


PROFILES = {
    "ci": Profile(6, 1, 1),
    "quick": Profile(24, 1, 1),
    "full": Profile(120, 3, 2),
    "nightly": Profile(600, 8, 4),
}
