"""Every operation a driver claims: worked examples and drawn calls of each signature."""

from __future__ import annotations

import pytest

from conformance.cases import positive_batches
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and batch."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(positive_batches(option("profile"), option("seed"))))


def test_operation(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver returns what the specification says, within what it allows."""
    check(batch_of_driver)
