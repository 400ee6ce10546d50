"""Chains through tensors without elements: which there are, what is due of them, and that right answers pass."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from conformance.zero_sized import ACCEPTING, zero_sized_cases
from harness.case import TestCase
from harness.expectations import Expected, Returns
from harness.judge import judge
from harness.run import run
from harness.verdict import Verdict
from nnhal.types import OperandLifeTime, OperationType
from nnhal.validate import violations
from opset import OPSET
from reference_driver.device import ReferenceDevice

pytestmark = pytest.mark.thorough  # `make test` runs such cases against a driver
SETTINGS = ({}, {"arithmetic": "float32", "order": "reversed"}, {"arithmetic": "float32", "order": "blocked"})
# Types that no operation gives without elements.
UNREACHED = {"DEQUANTIZE": 4, "AXIS_ALIGNED_BBOX_TRANSFORM": 2, "BOX_WITH_NMS_LIMIT": 0}


@pytest.fixture(scope="module")
def cases() -> list[TestCase]:
    return list(zero_sized_cases(2, 0))


def due(case: TestCase) -> tuple[Expected, ...]:
    expect = case.steps[-1].expect
    assert isinstance(expect, Returns)
    return expect.outputs


def test_every_operation_and_signature_that_takes_them_is_there(cases: list[TestCase]) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        found[case.origin.operation].add(case.origin.signature)
    assert set(found) == {code.name for code in ACCEPTING}
    for name, signatures in found.items():
        definition = OPSET[OperationType[name]]
        assert len(signatures) == len(definition.signatures) - UNREACHED.get(name, 0)


def test_models_are_valid_and_hold_no_tensor_without_elements(cases: list[TestCase]) -> None:
    for case in cases:
        (model,) = case.models
        assert not violations(model, case.level), case.id
        assert all(value is None or value.size for value in case.steps[-1].inputs)
        given = (OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.CONSTANT_COPY)
        assert not any(0 in o.dimensions for o in model.main.operands if o.lifetime in given), case.id


def test_the_operation_at_the_end_gives_nothing_but_where_others_have_elements(cases: list[TestCase]) -> None:
    for case in cases:
        last = due(case)[-1]
        assert last.value.shape == last.shape
        assert 0 in last.shape or case.origin.operation == "CONCATENATION", case.id
        assert all(0 in output.shape for output in due(case)[:-1])
    joined = [due(case)[-1] for case in cases if case.origin.operation == "CONCATENATION"]
    assert any(output.value.size for output in joined)


def test_both_ways_to_make_them_are_used(cases: list[TestCase]) -> None:
    lengths = defaultdict(set)
    for case in cases:
        lengths[case.origin.operation].add(len(case.models[0].main.operations))
    assert {2, 3} <= lengths["RELU"]
    assert lengths["CONV_2D"] == {3}
    assert lengths["ROI_ALIGN"] == {2}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: s.get("order", "float64"))
def test_a_correct_driver_passes(cases: list[TestCase], settings: dict[str, str]) -> None:
    device = ReferenceDevice(**settings)
    for case in cases:
        judgement = judge(case, run(case, device, in_process=True))
        assert judgement.verdict == Verdict.PASS, f"{case.id}: {judgement.message}"


def test_a_driver_that_gives_elements_fails(cases: list[TestCase]) -> None:
    """What is due is the shape: one row where there is none must not pass."""
    case = next(c for c in cases if c.origin.operation == "RELU")
    outputs = tuple(
        replace(o, shape=(1, *o.shape[1:]), value=np.zeros((1, *o.shape[1:])), required=np.zeros((1, *o.shape[1:])))
        for o in due(case)
    )
    steps = (*case.steps[:-1], replace(case.steps[-1], expect=Returns(outputs)))
    judgement = judge(case := replace(case, steps=steps), run(case, ReferenceDevice(), in_process=True))
    assert judgement.verdict == Verdict.FAIL


def test_the_same_seed_gives_the_same_cases(cases: list[TestCase]) -> None:
    first = [c.id for c in islice(zero_sized_cases(1, 0), 60)]
    assert first == [c.id for c in cases if c.origin.number == 0][:60]
    assert {c.id for c in islice(zero_sized_cases(1, 1), 60)}.isdisjoint(c.id for c in cases)
