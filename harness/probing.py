"""Asks a driver whether a case fails, again and again, whatever it does: a death or silence costs a fresh process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from harness.case import TestCase
from harness.driver import Driver
from harness.guards import Arena
from harness.judge import judge
from harness.remarks import remarked
from harness.remote import WatchedDevice
from harness.run import run
from harness.verdict import Cause, Judgement, Verdict
from nnhal.device import Device
from nnhal.errors import DriverDied, DriverTimedOut, SuiteError, UsageError
from nnhal.types import FL8, FeatureLevel

HURRIED = 2.0  # seconds for a call once a driver was seen to hang; what is slow and no hang, `patient` finds out


class Prober:
    """Runs and judges cases: in the driver's present process while that lives, else in a fresh one. Never raises.

    Attributes:
        hurried: a hang was seen, so that no more than `HURRIED` seconds are waited for an answer.
    """

    def __init__(self, driver: Driver, level: FeatureLevel, *, pages: bool) -> None:
        self.hurried = False
        self._driver = driver
        self._level = level
        self._arena = Arena(pages=pages and not driver.in_process)

    def __call__(self, case: TestCase) -> Judgement:
        """The verdict on a case."""
        judgement = self._judged(case, HURRIED if self.hurried else None)
        self.hurried = self.hurried or judgement.verdict == Verdict.HANG
        return judgement

    def patient(self, case: TestCase) -> Judgement:
        """The verdict on a case in a fresh process that has all the time that a driver has."""
        try:
            self._driver.restart()
        except UsageError as error:
            return _not_started(error)
        return self._judged(case, None)

    def close(self) -> None:
        """Lets the memory of executions go; the driver is the caller's."""
        self._arena.close()

    def _judged(self, case: TestCase, seconds: float | None) -> Judgement:
        in_process = self._driver.in_process
        try:
            device = self._driver.device
            with _within(device, seconds):
                outcome = run(
                    case, device, self._arena, in_process=in_process, level=self._level, restart=self._restarted
                )
            return remarked(judge(case, outcome), self._driver.remarks())
        except UsageError as error:  # it could be loaded before
            return _not_started(error)
        except (DriverDied, DriverTimedOut) as error:  # at its start, before the first step
            return Judgement(Verdict.CRASH, Cause.DIED, "start", f"does not start again: {error}")
        except SuiteError as error:
            return Judgement(Verdict.INTERNAL, Cause.SUITE, "run", str(error))
        except Exception as error:  # a defect of the suite; it must not end the search or be charged to the driver
            return Judgement(Verdict.INTERNAL, Cause.SUITE, "run", f"{type(error).__name__} in the suite: {error}")

    def _restarted(self, fill: int | None = None, /) -> Device:
        self._driver.restart(fill)
        return self._driver.device


def prober(driver: Driver, *, level: FeatureLevel = FL8, pages: bool = False) -> Prober:
    """What `harness.minimize.minimize` asks for a driver.

    Args:
        driver: in a process of its own, or in this one.
        level: at which it is asked.
        pages: memory lies between inaccessible pages.
    """
    return Prober(driver, level, pages=pages)


@contextlib.contextmanager
def _within(device: Device, seconds: float | None) -> Iterator[None]:
    """Another deadline for a driver in a process of its own; never a longer one."""
    if seconds is None or not isinstance(device, WatchedDevice):
        yield
        return
    with device.connection.within(min(seconds, device.connection.limit())):
        yield


def _not_started(error: UsageError) -> Judgement:
    return Judgement(Verdict.CRASH, Cause.DIED, "start", f"does not start again: {error}")
