"""Lifetimes: each operand of each operation as constant, input, temporary, output, and without a value."""

from __future__ import annotations

import pytest

from conformance.lifetimes import batches
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and scenario, or row of types."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(batches(option("profile"), option("seed"))))


def test_lifetimes(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver takes a value wherever it comes from."""
    check(batch_of_driver)
