"""Quality of service: preferences, priorities, deadlines, durations, time-outs of loops."""

from __future__ import annotations

import pytest

from conformance.behaviour import batches
from conformance.quality_of_service import SCENARIOS
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and scenario."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(batches(SCENARIOS, option("profile"), option("seed"))))


def test_quality_of_service(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver keeps the contract."""
    check(batch_of_driver)
