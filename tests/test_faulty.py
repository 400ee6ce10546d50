"""Every misbehaving driver is caught by the cases that it names, and the right driver by none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivers.faulty import FAULTS
from harness import executing
from harness.case import TestCase
from harness.verdict import Verdict
from tests.catching import chosen, judged
from tests.thorough import one_in_three

CAUGHT = {name: fault for name, fault in FAULTS.items() if fault.catch}
RIGHT: dict[str, str] = {}  # how the reference driver fares, by case and level


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callbacks and fences that never come are waited for less long."""
    monkeypatch.setattr(executing, "CALLBACK_SECONDS", 0.4)


def _right(case: TestCase, name: str, folder: Path) -> str:
    fault = FAULTS[name]
    key = f"{case.id} {fault.level}"
    if key not in RIGHT:
        found = judged(case, "", fault, folder)
        RIGHT[key] = "" if found.verdict == Verdict.PASS else f"{case.id}: {found.verdict.value}: {found.message}"
    return RIGHT[key]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", one_in_three(CAUGHT))
def test_a_fault_is_caught_by_the_cases_that_it_names(name: str, tmp_path: Path) -> None:
    fault = CAUGHT[name]
    cases = chosen(fault)
    assert cases, f"no case is named {fault.catch} {fault.breaks}"
    complaints = []
    for case in cases:
        found = judged(case, name, fault, tmp_path)
        if (found.verdict.value, found.cause.value) != (fault.verdict, fault.cause):
            words = f"{found.verdict.value} {found.cause.value} at {found.stage}: {found.message}"
            complaints.append(f"{case.id}: {words}; {fault.verdict} {fault.cause} is due")
        right = _right(case, name, tmp_path)
        if right:
            complaints.append(f"the right driver is caught: {right}")
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_says_what_rule_it_breaks(name: str) -> None:
    fault = FAULTS[name]
    assert fault.text
    assert fault.section
    assert bool(fault.catch) <= bool(fault.rule)
