"""How many cases of each kind a profile asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """Numbers for one signature.

    Attributes:
        draws: drawn cases of a form without parameters; `more` come with each parameter, since a driver may have only
            some of its values (one layout, one axis).
        breaks: cases for each rule that is broken.
        mutants: cases for each mutation of a model.
        every: models of one signature in so many are mutated; what is broken there hardly depends on types.
        share: of the mutations each operation gets one in so many, in turn; and one operation in so many gets the odd
            numbers, settings and older codes.
        all_settings: all bad settings, tables of older codes, odd numbers and modes for each of these models; otherwise
            they take turns from operation to operation.
    """

    draws: int
    more: int
    breaks: int
    mutants: int
    every: int
    share: int = 1
    all_settings: bool = False


PROFILES = {
    "ci": Profile(12, 1, 1, 1, 16, share=4),
    "quick": Profile(48, 4, 1, 1, 8),
    "full": Profile(160, 10, 3, 2, 1, all_settings=True),
    "nightly": Profile(800, 50, 8, 4, 1, all_settings=True),
}
