"""One saved input again: run in a process of its own, or made smaller first."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path

from fuzz.folder import KNOWN
from fuzz.graphs import with_digest
from fuzz.known import Known
from fuzz.opening import asked, opened
from fuzz.plan import Plan
from fuzz.reducing import reduced
from fuzz.targets import TARGETS, Target
from fuzz.triage import BUDGET, USUAL
from harness.case import TestCase
from harness.case_file import load
from harness.driver import Driver
from harness.listing import listing
from harness.minimize import main as minimize_case
from harness.minimize import prober
from harness.record import record_of
from harness.searching import alike
from harness.session import failure_text
from harness.verdict import BAD, Judgement
from nnhal.errors import UsageError
from reports.text import clean

GOOD, BAD_STATUS = 0, 1
CASE = ".case"


def target_of(file: Path, names: tuple[str, ...]) -> Target:
    """The target that an input is of: the one named, or that of the file's name or folder.

    Raises:
        UsageError: none is.
    """
    if len(names) == 1 and names[0] in TARGETS:
        return TARGETS[names[0]]
    for name in sorted(TARGETS, key=len, reverse=True):
        if file.name.startswith(f"{name}-") or file.resolve().parent.name == name:
            return TARGETS[name]
    raise UsageError(f"{file} does not say of which target it is; give --target=NAME, one of {', '.join(TARGETS)}")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None


def _known(file: Path, driver: Driver, plan: Plan) -> Known:
    """What was known when the input was found, if the run's folder tells; else what the driver says now."""
    for folder in file.resolve().parents[:2]:
        with contextlib.suppress(OSError, ValueError):
            return Known.from_json((folder / KNOWN).read_text(encoding="utf-8"))
    return asked(plan, driver)[1]


def reproduced(plan: Plan, file: Path, names: tuple[str, ...]) -> int:
    """Runs a saved input or case and says what comes of it; returns the exit status.

    Raises:
        UsageError: it cannot be read, or the driver not loaded.
    """
    if file.suffix != CASE and (target := target_of(file, names)).read is not None:
        target.read(_read(file))
        sys.stdout.write(f"{file}: read or refused as it should be\n")
        return GOOD
    with opened(plan) as (_, driver):
        case, known = _case_of(plan, file, names, driver)
        for pages in (False, True):
            with contextlib.closing(prober(driver, level=known.level, pages=pages)) as probe:
                judgement = probe.patient(case)
            if judgement.verdict in BAD:
                break
        _tell(plan, case, judgement, driver.log, file)
    return BAD_STATUS if judgement.verdict in BAD else GOOD


def _case_of(plan: Plan, file: Path, names: tuple[str, ...], driver: Driver) -> tuple[TestCase, Known]:
    known = _known(file, driver, plan)
    if file.suffix == CASE:
        return load(file), known
    target = target_of(file, names)
    attempt = target.decode(_read(file), known)
    if attempt is None:
        raise UsageError(f"{file} becomes no case of target {target.name} for this driver")
    return with_digest(attempt.complete), known


def _tell(plan: Plan, case: TestCase, judgement: Judgement, log: str, file: Path) -> None:
    """Says what came of it."""
    line = shlex.join(["python", "-m", "fuzz", f"--driver={plan.driver}", f"--reproduce={file}"])
    bad = judgement.verdict in BAD
    record = record_of(case, judgement, repeat=line, log=log if bad else "")
    text = failure_text(record, plan.driver) if bad else f"{record.id} on {plan.driver}: {record.verdict}"
    parts = [text, listing(case)] + ([log[-8192:]] if bad and log else [])
    sys.stdout.write("\n".join(clean(one) for one in "\n".join(parts).split("\n")) + "\n")


def minimized(plan: Plan, file: Path, names: tuple[str, ...]) -> int:
    """Makes a saved input smaller while it fails alike; returns the exit status.

    Raises:
        UsageError: it cannot be read, or the driver not loaded.
    """
    if file.suffix == CASE:
        return minimize_case([str(file), f"--driver={plan.driver}"])
    target = target_of(file, names)
    if target.read is not None:
        raise UsageError(f"target {target.name} is a reader of the suite's own; its findings are small already")
    data = _read(file)
    with opened(plan) as (_, driver):
        known = _known(file, driver, plan)

        def case_of(found: bytes) -> TestCase | None:
            attempt = target.decode(found, known)
            return None if attempt is None else attempt.complete

        case = case_of(data)
        if case is None:
            raise UsageError(f"{file} becomes no case of target {target.name} for this driver")
        with contextlib.closing(prober(driver, level=known.level)) as probe:
            first = probe.patient(case)
            if first.verdict not in BAD:
                sys.stdout.write(f"{file}: nothing to make smaller, since it does not fail: {first.verdict.value}\n")
                return BAD_STATUS

            def fails(found: bytes) -> bool:
                made = case_of(found)
                return made is not None and alike(first, probe(made))

            small, asked = reduced(data, fails, BUDGET.get(first.verdict, USUAL))
            made = case_of(small)
            assert made is not None
            last = probe.patient(made)
        out = file.with_name(f"{file.stem}.minimised{file.suffix}")
        out.write_bytes(small)
        _tell(plan, with_digest(made), last, driver.log, out)
        sys.stdout.write(f"{len(small)} of {len(data)} bytes are left; the driver was asked {asked} times\n{out}\n")
    return GOOD
