"""Vendor extensions: those that nobody knows, and one that a driver may have."""

from __future__ import annotations

import pytest

from conformance.behaviour import batches
from conformance.extensions import SCENARIOS
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and scenario."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(batches(SCENARIOS, option("profile"), option("seed"))))


def test_extensions(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver knows its own extensions, and says so of all others."""
    check(batch_of_driver)
