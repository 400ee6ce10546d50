"""Versions: a driver takes what its level knows and refuses the rest; conversion; the relaxed flag."""

from __future__ import annotations

import pytest

from conformance.versions import batches
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and scenario."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(batches(option("profile"), option("seed"))))


def test_versions(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver knows what its level knows."""
    check(batch_of_driver)
