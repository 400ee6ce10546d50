"""Finds the cases that a fault names, runs them on the faulty driver and says how they end."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import conformance
from drivers._faults import Fault
from harness.batch import Batch, NotApplicableError
from harness.case import TestCase
from harness.driver import open_driver
from harness.judge import judge
from harness.run import run
from harness.verdict import Judgement
from nnhal.loading import DriverSpec
from nnhal.types import FL8, FeatureLevel

CASES = 3  # of each fault, from as many batches as there are; one where a process dies
MADE = 400  # cases that are made in search of some that break a rule
DEADLINE = 0.7  # seconds until an isolated driver counts as silent


OPTIONS = {"profile": "quick", "seed": 1}


@cache
def all_batches() -> tuple[Batch, ...]:
    """Every batch that pytest collects from the suite in the profile that is the default."""
    found: list[Batch] = []
    metafunc = SimpleNamespace(config=SimpleNamespace(getoption=OPTIONS.get))
    for module in pkgutil.iter_modules(conformance.__path__):
        if module.name.startswith("test_") and module.name != "test_saved":
            loaded = importlib.import_module(f"conformance.{module.name}")
            with mock.patch.object(loaded, "parametrize", lambda _, batches: found.extend(batches)):
                loaded.pytest_generate_tests(metafunc)
    return tuple(found)


def named(fault: Fault) -> list[list[tuple[Batch, int]]]:
    """The cases that a fault's glob names, batch by batch, without making them."""
    found = []
    for batch in all_batches():
        numbers = [(batch, n) for n in batch.numbers if fnmatchcase(f"{batch.id}-{n}", fault.catch)]
        if numbers:
            found.append(numbers)
    return found


def _in_turn(groups: list[list[tuple[Batch, int]]]) -> Iterator[tuple[Batch, int]]:
    """One of each batch, then the next of each."""
    for number in range(max((len(group) for group in groups), default=0)):
        yield from (group[number] for group in groups if number < len(group))


@cache
def made(batch: Batch, number: int) -> TestCase | None:
    """A case; None where there is none."""
    try:
        return batch.make(number)
    except NotApplicableError:
        return None


def chosen(fault: Fault) -> list[TestCase]:
    """A few of the cases that have to catch a fault."""
    found: list[TestCase] = []
    groups = named(fault)
    order = chain.from_iterable(groups) if fault.breaks else _in_turn(groups)
    for tries, (batch, number) in enumerate(order):
        if len(found) == (1 if fault.isolated else CASES) or tries == MADE:
            break
        case = made(batch, number)
        if case is not None and fnmatchcase(case.origin.rule, fault.breaks or "*"):
            found.append(case)
    return found


@dataclass(frozen=True)
class Levels:
    """At which level a case is run: of the driver, and asked."""

    own: FeatureLevel
    asked: FeatureLevel


def levels(case: TestCase, fault: Fault) -> Levels:
    """The highest levels at which the case applies and the fault shows."""
    own = FeatureLevel(min(fault.level or FL8, FL8 if case.until is None else case.until - 1))
    return Levels(own, min(own, case.highest or FL8))


def driver_text(name: str, level: FeatureLevel, base: str = "reference") -> str:
    """What stands after `--driver=`."""
    return f"faulty,inner={base},fault={name},inner.level={int(level)}" if name else f"{base},level={int(level)}"


def judged(case: TestCase, name: str, fault: Fault, folder: Path) -> Judgement:
    """How a case ends on the faulty driver; on the right one where the name is empty."""
    found = levels(case, fault)
    spec = DriverSpec.parse(driver_text(name, found.own))
    apart = bool(name) and fault.isolated
    driver = open_driver(spec, log_path=folder / "driver.log", in_process=not apart, deadline=DEADLINE)
    try:
        device = driver.device

        def restart() -> object:
            driver.restart()
            return driver.device

        outcome = run(case, device, in_process=not apart, level=found.asked, restart=restart)  # type: ignore[arg-type]
        return judge(case, outcome)
    finally:
        driver.close()
