"""Parameters of which `make test` takes one in three, and `make thorough` the others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def one_in_three(values: Iterable[object]) -> list[object]:
    """The values as parameters; all but each third are marked as thorough."""
    marked = pytest.mark.thorough
    return [pytest.param(value, marks=marked) if number % 3 else value for number, value in enumerate(values)]
