"""pytest's part of random graphs: `--mix` is looked at before anything is collected, exploring goes by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnhal.errors import UsageError
from random_graph.mixes import mix

EXPLORING = "test_explore.py"


def pytest_configure(config: pytest.Config) -> None:
    """Refuses unknown mixes."""
    try:
        for name in config.getoption("mix"):
            mix(name)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Exploring is no counted test: only a command that names its file runs it."""
    named = any(EXPLORING in argument for argument in config.args)
    return True if collection_path.name == EXPLORING and not named else None
