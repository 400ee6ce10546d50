"""The fuzz targets on small inputs: what `python -m fuzz` begins with, and what once showed a fault."""

from __future__ import annotations

import pytest

from fuzz.cases import batches, fitted
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and target."""
    parametrize(metafunc, list(batches(metafunc.config.getoption("profile"))))


def test_fuzz(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver answers what is valid, refuses what is not, and survives the rest."""
    session, batch = batch_of_driver
    check((session, fitted(session, batch)))
