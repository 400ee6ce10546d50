"""Random graphs of fixed seeds: what single operations cannot find."""

from __future__ import annotations

import pytest

from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session
from random_graph.cases import batches, named


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and batch; graphs that `--case` names by number are there, whatever the profile has."""
    option = metafunc.config.getoption
    planned = list(batches(option("profile"), option("seed"), tuple(option("mix"))))
    parametrize(metafunc, named(option("case"), planned))


def test_graph(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver returns what the graph gives, within what its operations together allow."""
    check(batch_of_driver)
