"""Unsigned 8-bit models and their signed twins: both supported or neither, and the same results but for the shift."""

from __future__ import annotations

import pytest

from conformance.signed_quantization import batches
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and pair of signatures."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(batches(option("profile"), option("seed"))))


def test_signed_quantization(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver that supports an operation on unsigned 8-bit values supports the signed one, with the same results."""
    check(batch_of_driver)
