"""Every rule broken alone: a driver refuses what is invalid, and only that."""

from __future__ import annotations

import pytest

from conformance.behaviour import batches
from conformance.mutation_sizes import SCENARIOS
from conformance.negative import negative_batches
from harness.batch import Batch
from harness.plugin import check, parametrize
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and batch."""
    option = metafunc.config.getoption
    profile, seed = option("profile"), option("seed")
    parametrize(metafunc, [*negative_batches(profile, seed), *batches(SCENARIOS, profile, seed)])


def test_rule(batch_of_driver: tuple[Session, Batch]) -> None:
    """A driver refuses a model or call that breaks a rule, after it has taken the unbroken twin."""
    check(batch_of_driver)
