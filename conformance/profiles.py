"""How many cases of each kind a profile asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """Numbers for one signature.

    Attributes:
        draws: drawn cases; twice as many where the form has a layout operand, since some drivers have one layout only.
        breaks: cases for each rule that is broken.
        mutants: cases for each mutation of a model.
        every: models of one signature in so many are mutated; what is broken there hardly depends on types.
    """

    draws: int
    breaks: int
    mutants: int
    every: int


PROFILES = {
    "ci": Profile(6, 1, 1, 16),
    "quick": Profile(24, 1, 1, 4),
    "full": Profile(120, 3, 2, 1),
    "nightly": Profile(600, 8, 4, 1),
}
