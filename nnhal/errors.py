"""The kinds of trouble, told apart by type and never caught for one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnhal.types import ErrorStatus

if TYPE_CHECKING:
    from nnhal.device import OutputShape


class DriverError(Exception):
    """A driver's answer other than NONE. Anything else that a driver raises is an unclean error, its fault.

    Args:
        status: the answer; NONE is not an error and is refused.
        message: for a person; may be empty.
        output_shapes: with OUTPUT_INSUFFICIENT_SIZE, what is known of each output.
    """

    def __init__(self, status: ErrorStatus, message: str = "", output_shapes: Sequence[OutputShape] = ()) -> None:
        if status == ErrorStatus.NONE:
            raise ValueError("DriverError needs a status other than NONE")
        super().__init__(status, message)
        self.status = ErrorStatus(status)
        self.message = message
        self.output_shapes = tuple(output_shapes)

    def __str__(self) -> str:
        return f"{self.status.name}: {self.message}" if self.message else self.status.name


def invalid(message: str) -> DriverError:
    """A DriverError with INVALID_ARGUMENT, the commonest answer to bad input."""
    return DriverError(ErrorStatus.INVALID_ARGUMENT, message)


class UncleanError(Exception):
    """A driver raised something that is not a DriverError: its fault. Holds type, message and traceback."""

    def __init__(self, type_name: str, message: str, trace: str = "") -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message
        self.trace = trace

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


class DriverDied(Exception):
    """The driver's process ended while it owed an answer.

    Attributes:
        reason: one sentence, such as `killed by SIGABRT` or `exited with status 0`.
        log: the end of what the process wrote to its standard outputs.
    """

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.log = log


class DriverTimedOut(Exception):
    """The driver did not answer in time; its process has been stopped.

    Attributes:
        seconds: how long it was waited for.
        log: the end of the driver's log, with a stack where one could be had.
    """

    def __init__(self, seconds: float, log: str = "") -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds
        self.log = log


class SuiteError(Exception):
    """A defect of the suite itself: verdict INTERNAL, never charged to a driver."""


class UsageError(Exception):
    """Bad input from a user: one sentence that names the thing and the mend."""
