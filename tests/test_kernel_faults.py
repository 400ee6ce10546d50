"""Each single fault put into a kernel is noticed by the quick profile; what differs legally is not."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import opset.evaluate
from conformance.cases import positive_batches
from harness.case import TestCase
from harness.expectations import Returns
from harness.judge import judge
from harness.outcome import Outcome, StepOutcome
from harness.steps import Action
from harness.verdict import Judgement
from nnhal.types import Array, ErrorStatus, OperationType
from opset import OPSET
from opset.graph import evaluate
from tests.kernel_faults import FAULTS, LEGAL
from tests.wrong_kernels import Fault

NOTICED = ("FAIL", "POOR")
ROWS: list[str] = []


@cache
def batches() -> dict[tuple[str, str], list]:
    found: dict[tuple[str, str], list] = {}
    for batch in positive_batches("quick", 0):
        found.setdefault((batch.origin.operation, batch.origin.signature), []).append(batch)
    return found


@cache
def cases(operation: str, signature: str) -> tuple[TestCase, ...]:
    """The quick profile's cases of a signature, as a driver gets them."""
    return tuple(batch.make(number) for batch in batches()[operation, signature] for number in batch.numbers)


def fitted(value: Array, shape: tuple[int, ...]) -> Array:
    """What a driver that computes in the wrong shape leaves in an output of the due one."""
    if value.shape == shape:
        return value
    if value.ndim != len(shape):
        return np.resize(value, shape)
    result = np.zeros(shape, value.dtype)
    common = tuple(slice(0, min(sizes)) for sizes in zip(value.shape, shape, strict=True))
    result[common] = value[common]
    return result


def answered(case: TestCase) -> Judgement:
    """The verdict on what the specification in force computes, as if a driver had returned it."""
    step = case.steps[-1]
    assert step.action == Action.EXECUTE
    assert isinstance(step.expect, Returns)
    results = evaluate(case.models[0], step.inputs)
    shapes = tuple(due.shape for due in step.expect.outputs)
    outputs = tuple(fitted(r.stored, shape) for r, shape in zip(results, shapes, strict=True))
    none = ErrorStatus.NONE
    steps = (
        StepOutcome(0, none, supported=(True,)),
        StepOutcome(1, none),
        StepOutcome(2, none, outputs=outputs, shapes=shapes),
    )
    return judge(case, Outcome(steps, at=2))


def tried(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """Verdicts by signature, with the fault in force."""
    definition = OPSET[OperationType[fault.operation]]
    signatures = [s.id.replace("/", ".") for s in definition.signatures if fault.where(s)]
    made = {signature: cases(fault.operation, signature) for signature in signatures}
    wrong = definition if fault.wrong is None else replace(definition, kernel=fault.wrong(definition.kernel))
    with monkeypatch.context() as patch:
        patch.setitem(OPSET, definition.code, wrong)
        patch.setattr(opset.evaluate, "store", fault.store)
        return {name: Counter(answered(case).verdict.value for case in some) for name, some in made.items()}


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if request.config.getoption("verbose") < 1:
        return
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        head = "fault | operation | noticed of cases run | verdicts | least share in a signature"
        sys.stdout.write("\n".join(["", head, *ROWS, ""]))


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_is_noticed(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = tried(fault, monkeypatch)
    assert verdicts
    total = sum(verdicts.values(), Counter())
    least = min(share(counts) for counts in verdicts.values())
    words = ", ".join(f"{number} {verdict}" for verdict, number in sorted(total.items()))
    ROWS.append(f"{fault.text} | {fault.operation} | {share(total):.0%} of {total.total()} | {words} | {least:.0%}")
    for signature, counts in verdicts.items() if fault.everywhere else [("all", total)]:
        assert counts[fault.verdict], f"{signature}: {dict(counts)}"
        assert share(counts) >= fault.share, f"{signature}: {dict(counts)}"


def share(counts: Counter[str]) -> float:
    """How many of the cases notice."""
    return sum(counts[verdict] for verdict in NOTICED) / counts.total()


@pytest.mark.parametrize("fault", LEGAL, ids=lambda fault: fault.id)
def test_a_legal_difference_is_not_reported(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = tried(fault, monkeypatch)
    assert verdicts
    assert set(sum(verdicts.values(), Counter())) == {"PASS"}


def test_the_right_kernels_pass() -> None:
    for operation in ("ADD", "CONCATENATION", "QUANTIZE", "SOFTMAX", "FULLY_CONNECTED"):
        for known, signature in batches():
            if known == operation:
                assert {answered(case).verdict.value for case in cases(known, signature)} == {"PASS"}
