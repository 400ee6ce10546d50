"""Shapes that are not told before an execution, outputs without room, and tensors without elements."""

from __future__ import annotations

import pytest

from conformance.behaviour import batches
from conformance.dynamic_shapes import SCENARIOS, zero_sized_batches
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and scenario, and for each signature that takes tensors without elements."""
    profile, seed = metafunc.config.getoption("profile"), metafunc.config.getoption("seed")
    parametrize(metafunc, [*batches(SCENARIOS, profile, seed), *zero_sized_batches(profile, seed)])


def test_dynamic_shapes(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver finds the shapes that the model leaves open, and says when there is no room for them."""
    check(batch_of_driver)
