"""Requests that are wrong, on models of every operation and in every way to execute."""

from __future__ import annotations

import pytest

from conformance.request_mutations import request_batches
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and batch."""
    option = metafunc.config.getoption
    parametrize(metafunc, list(request_batches(option("profile"), option("seed"))))


def test_request(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver refuses a bad request, and the prepared model goes on giving right results."""
    check(batch_of_driver)
