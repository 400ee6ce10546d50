"""Compilation caching: saving, loading, and cache files that are not as they should be."""

from __future__ import annotations

import pytest

from conformance.behaviour import batches
from conformance.caching import SCENARIOS
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and scenario."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(batches(SCENARIOS, option("profile"), option("seed"))))


def test_caching(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver saves and loads prepared models as the contract says, and sees what is wrong with a cache."""
    check(batch_of_driver)
