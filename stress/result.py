"""How a run ended, and why: the words of its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from harness.verdict import Cause, Verdict


class Ending(str, Enum):
    """How a run of a scene ended."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    HANG = "HANG"
    CRASH = "CRASH"
    NOT_SUPPORTED = "NOT_SUPPORTED"  # nothing was done, since the driver does none of the models
    NOT_APPLICABLE = "NOT_APPLICABLE"
    INTERNAL = "INTERNAL"  # a defect of the suite

    @property
    def verdict(self) -> Verdict:
        """The word for it in the records of all suites."""
        words = {Ending.SUCCESS: Verdict.PASS, Ending.FAILURE: Verdict.FAIL}
        return words.get(self) or Verdict(self.value)


class Side(str, Enum):
    """Whose process it was."""

    NONE = ""
    DRIVER = "driver"
    CLIENT = "client"


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        at: seconds from the start at which it was seen.
        step: the last one, in words.
        exit: status, or minus the signal, of the process that ended.
        stack: of the process that hung or died, as far as it could be had.
        log: the end of what it wrote.
        saved: bytes of the case's file that a client failed with.
    """

    ending: Ending
    side: Side = Side.NONE
    cause: Cause = Cause.NONE
    step: str = ""
    message: str = ""
    at: float = 0.0
    exit: int | None = None
    stack: str = ""
    log: str = ""
    notes: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    saved: bytes = b""
