"""Memory between inaccessible pages: a driver dies at the first byte outside, and cannot write into its inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Expected, Returns
from harness.guards import Arena, guard
from harness.isolation import IsolatedDriver
from harness.judge import judge
from harness.run import run
from harness.steps import Action
from harness.verdict import Cause, Judgement, Verdict
from nnhal.types import OperandType
from tests.add_model import add_model

Isolate = Callable[..., IsolatedDriver]


def add_case(elements: int) -> TestCase:
    """ADD of float32 vectors; 16 elements fill 64 bytes, so that the output ends at the page."""
    first = np.arange(elements, dtype=np.float32)
    second = np.ones(elements, np.float32)
    due = Expected(
        "output", OperandType.TENSOR_FLOAT32, (elements,), (first + second).astype(np.float64), np.full(elements, 1e-5)
    )
    steps = (Step(Action.QUERY), Step(Action.PREPARE), Step(Action.EXECUTE, 0, Returns((due,)), inputs=(first, second)))
    return seal(TestCase(Origin("ADD", "float32", "drawn", 0), (add_model((elements,)),), steps))


def verdict(isolate: Isolate, fault: str, elements: int, *, pages: bool) -> Judgement:
    driver = isolate(f"faulty,inner=tests/minimal_driver.py:MinimalDriver,fault={fault}")
    case = add_case(elements)
    return judge(case, run(case, driver.device, Arena(pages=pages)))


def test_a_byte_behind_a_full_page_kills_the_driver(isolate: Isolate) -> None:
    died = verdict(isolate, "write_outside", 16, pages=True)
    assert (died.verdict, died.cause) == (Verdict.CRASH, Cause.DIED)
    assert "SIGSEGV" in died.message


def test_a_byte_behind_an_output_that_ends_before_the_page_is_seen_in_the_canary(isolate: Isolate) -> None:
    seen = verdict(isolate, "write_outside", 10, pages=True)
    assert (seen.verdict, seen.cause) == (Verdict.FAIL, Cause.OVERRUN)


def test_canaries_name_what_pages_only_show(isolate: Isolate) -> None:
    named = verdict(isolate, "write_outside", 16, pages=False)
    assert (named.verdict, named.cause) == (Verdict.FAIL, Cause.OVERRUN)


def test_inputs_between_pages_cannot_be_written(isolate: Isolate) -> None:
    stopped = verdict(isolate, "write_input", 16, pages=True)
    assert stopped.verdict in (Verdict.FAIL, Verdict.CRASH)
    assert stopped.cause in (Cause.UNCLEAN_ERROR, Cause.DIED)
    named = verdict(isolate, "write_input", 16, pages=False)
    assert (named.verdict, named.cause) == (Verdict.FAIL, Cause.INPUT_WRITTEN)


def test_a_sound_driver_passes_between_pages(isolate: Isolate) -> None:
    driver = isolate("tests/minimal_driver.py:MinimalDriver")
    for elements in (1, 16, 1000, 1024):
        case = add_case(elements)
        assert judge(case, run(case, driver.device, Arena(pages=True))).verdict == Verdict.PASS


def test_each_value_ends_within_the_alignment_of_its_page() -> None:
    values = [np.ones(n, np.float32) for n in (3, 16)]
    made = guard(Arena(pages=True), add_model((16,)), values, [64])
    for place, area in zip([*made.inputs, *made.outputs], made.areas, strict=True):
        assert place is not None
        assert area.memory.size % 4096 == 0
        assert 0 <= area.memory.size - place.offset - place.length < 64
    assert made.findings() == []
