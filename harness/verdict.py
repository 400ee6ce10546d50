"""How a case ends, and why: the words of every record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Verdict(str, Enum):
    """How a case ended."""

    PASS = "PASS"
    FAIL = "FAIL"
    POOR = "POOR"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    NOT_APPLICABLE = "NOT_APPLICABLE"
    CRASH = "CRASH"
    HANG = "HANG"
    FLAKY = "FLAKY"
    INTERNAL = "INTERNAL"
    NOT_RUN = "NOT_RUN"


BAD = frozenset({Verdict.FAIL, Verdict.CRASH, Verdict.HANG, Verdict.FLAKY, Verdict.INTERNAL})


class Cause(str, Enum):
    """Why a case did not pass."""

    NONE = ""
    VALUE = "VALUE"
    SHAPE = "SHAPE"
    STATUS = "STATUS"
    ACCEPTED = "ACCEPTED"
    REFUSED = "REFUSED"
    OVERRUN = "OVERRUN"
    INPUT_WRITTEN = "INPUT_WRITTEN"
    UNCLEAN_ERROR = "UNCLEAN_ERROR"
    MALFORMED = "MALFORMED"
    TIMING = "TIMING"
    DIED = "DIED"
    SILENT = "SILENT"
    QUALITY = "QUALITY"
    LEAK = "LEAK"
    SLOWDOWN = "SLOWDOWN"
    LEFTOVERS = "LEFTOVERS"
    REMNANT = "REMNANT"
    INCONSISTENT = "INCONSISTENT"
    UNSUPPORTED = "UNSUPPORTED"
    SUPPORT = "SUPPORT"
    LEVEL = "LEVEL"
    TRAIT = "TRAIT"
    SUITE = "SUITE"


@dataclass(frozen=True)
class Worst:
    """The element that is furthest off, in the units in which outputs are stored.

    Attributes:
        ratio: observed difference over the allowed one.
        ulp: difference in units in the last place of the expected value, for floats.
    """

    output: str
    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float
    ratio: float
    ulp: float | None = None


@dataclass(frozen=True)
class Judgement:
    """A verdict and everything that a person needs to believe it.

    Attributes:
        error: largest observed error in units of the allowed one, over all outputs; None where nothing was compared.
        ulp: largest observed error in ULP.
        masked: share of elements that the specification leaves open.
        notes: what is worth knowing and no failure, as sentences.
        numbers: measured, by name.
    """

    verdict: Verdict
    cause: Cause = Cause.NONE
    stage: str = ""
    message: str = ""
    worst: Worst | None = None
    error: float | None = None
    ulp: float | None = None
    masked: float = 0.0
    notes: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
