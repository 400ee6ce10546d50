"""Real models on a driver, beside LiteRT on the CPU: `python -m mlts` measures for longer, and writes a page."""

from __future__ import annotations

import pytest

from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session
from mlts.cases import batches, performing


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver, model and aspect."""
    parametrize(metafunc, [batch for _, batch in batches(metafunc.config.getoption("profile"))])


def test_mlts(batch_of_driver: tuple[Session, Batch], request: pytest.FixtureRequest) -> None:
    """A driver's results are as good as the CPU's, its latency as short, and both last."""
    session, batch = batch_of_driver
    check((session, performing(session, batch, request.config.getoption("profile"))))
