"""Executions: every mode, several at once, many prepared models, timing, the same results each time."""

from __future__ import annotations

import pytest

from conformance.behaviour import batches
from conformance.execution import SCENARIOS, every_operation
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and scenario, and for each operation and mode."""
    option = metafunc.config.getoption
    scenarios = batches(SCENARIOS, option("profile"), option("seed"))
    parametrize(metafunc, [*scenarios, *every_operation(option("seed"))])


def test_execution(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver runs a prepared model as the contract says, in every mode."""
    check(batch_of_driver)
