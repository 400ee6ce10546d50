"""Control flow: IF and WHILE in one another, in every mode, side by side."""

from __future__ import annotations

import pytest

from conformance.behaviour import batches
from conformance.control_flow import SCENARIOS
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and scenario."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(batches(SCENARIOS, option("profile"), option("seed"))))


def test_control_flow(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver keeps the contract."""
    check(batch_of_driver)
