"""Metamorphic pairs: two models that must give the same, on one driver, without an oracle."""

from __future__ import annotations

import pytest

from conformance.metamorphic import batches
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver , operation and kind of pair."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(batches(option("profile"), option("seed"))))


def test_metamorphic(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver gives the same for what means the same."""
    check(batch_of_driver)
