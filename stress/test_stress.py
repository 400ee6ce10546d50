"""Stress: every workload for a moment; `python -m stress` runs them as long as wanted."""

from __future__ import annotations

import pytest

from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session
from stress.cases import batches, performing


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and run."""
    parametrize(metafunc, list(batches()))


def test_stress(batch_of_driver: tuple[Session, Batch], request: pytest.FixtureRequest) -> None:
    """A driver lives on and gives right answers, whatever happens around it."""
    session, batch = batch_of_driver
    option = request.config.getoption
    check((session, performing(session, batch, option("profile"), option("seed"), option("deadline"))))
