"""Cases saved as files, given by `--case=FILE`: a failure of an earlier run, or of another machine's."""

from __future__ import annotations

import pytest

from harness.batch import Batch
from harness.plugin import check, parametrize_saved
from harness.session import Session


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and file."""
    parametrize_saved(metafunc)


def test_saved(batch_of_driver: tuple[Session, Batch]) -> None:
    """A saved case, as it was."""
    check(batch_of_driver)
