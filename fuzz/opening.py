"""A driver under test outside of fuzzing processes: opened in a process of its own, and asked what it can do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fuzz.known import Known, ask
from fuzz.plan import Plan, Way, way_of
from harness.driver import Driver, DriverFacts, open_driver
from harness.option_values import level_of, memory_of
from nnhal.errors import DriverDied, DriverTimedOut, UncleanError, UsageError
from nnhal.loading import DriverSpec


@contextlib.contextmanager
def opened(plan: Plan, log_path: Path = Path(os.devnull)) -> Iterator[tuple[Way, Driver]]:
    """How the plan's driver is fuzzed, and the driver.

    Raises:
        UsageError: it cannot be loaded.
    """
    way = way_of(plan.driver, isolated=plan.isolated)
    driver = open_driver(
        DriverSpec.parse(way.text),
        log_path=log_path,
        deadline=plan.deadline,
        memory=memory_of(plan.memory),
        spare=False,
    )
    try:
        yield way, driver
    finally:
        driver.close()


def asked(plan: Plan, driver: Driver) -> tuple[DriverFacts, Known]:
    """What is known of a driver before it is fuzzed.

    Raises:
        UsageError: it does not say what it is.
    """
    try:
        return ask(driver.device, level_of(plan.level))
    except (DriverDied, DriverTimedOut, UncleanError) as error:
        raise UsageError(f"driver {plan.driver!r} does not answer what comes before fuzzing: {error}") from None
