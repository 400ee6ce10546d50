"""What came of the steps of a case: plain data, for the judge."""

from __future__ import annotations

from dataclasses import dataclass

from nnhal.device import CacheFilesNeeded, Capabilities, Extension, OutputShape, Timing
from nnhal.types import Array, ErrorStatus, FeatureLevel


@dataclass(frozen=True)
class Description:
    """What a device said of itself; None where the level that is tested has no such question.

    Attributes:
        level: the driver's own.
        caching: as its traits say.
    """

    level: FeatureLevel
    caching: bool
    status: int | None
    capabilities: Capabilities
    type: int | None
    version: str | None
    extensions: tuple[Extension, ...] | None
    cache_files: CacheFilesNeeded | None


@dataclass(frozen=True)
class StepOutcome:
    """What came of one step.

    Attributes:
        step: index in the case.
        status: NONE when the driver answered well; None when it did not answer with a status.
        message: the driver's words.
        unclean: type and message of an exception that is not a DriverError.
        trace: the driver's traceback of that exception.
        supported: the answer to a query.
        reasons: why operations are not supported.
        outputs: what an execution left, None where its place was too small for the shape it reported, or is none of
            the suite's.
        shapes: the shapes it reported, or those declared where it reported none.
        reported: the shapes as they came, also with OUTPUT_INSUFFICIENT_SIZE.
        malformed: a sentence on an answer that does not fit the question.
        timing: of the execution, counted from the call.
        fenced: the same counted from when all fences had signalled, of fenced executions.
        measured: timing was asked for.
        findings: guards that were broken.
        skipped: what it stands on was not there, so that nothing was asked.
        description: what a device said of itself.
        seconds: that the step took.
    """

    step: int
    status: ErrorStatus | None
    message: str = ""
    unclean: str = ""
    trace: str = ""
    supported: tuple[bool, ...] = ()
    reasons: tuple[str | None, ...] = ()
    outputs: tuple[Array | None, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    reported: tuple[OutputShape, ...] = ()
    malformed: str = ""
    timing: Timing | None = None
    fenced: Timing | None = None
    measured: bool = True
    findings: tuple[tuple[str, str], ...] = ()
    skipped: bool = False
    description: Description | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What came of a case: its steps as far as they went, and how the driver ended if it did.

    Attributes:
        died: how the driver's process ended.
        silent: seconds waited for an answer that did not come.
        log: the end of the driver's log, after a death or silence.
    """

    steps: tuple[StepOutcome, ...] = ()
    died: str | None = None
    silent: float | None = None
    at: int = 0
    log: str = ""
