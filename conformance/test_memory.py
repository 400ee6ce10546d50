"""Memory of executions and models: pools of every kind and layout, opaque and driver-managed buffers."""

from __future__ import annotations

import pytest

from conformance.behaviour import batches
from conformance.memory import SCENARIOS
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and scenario."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(batches(SCENARIOS, option("profile"), option("seed"))))


def test_memory(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver uses memory of every kind as the contract says, and touches no other."""
    check(batch_of_driver)
