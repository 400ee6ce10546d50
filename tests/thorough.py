"""Parameters of which `make test` takes one in three, and `make thorough` the others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def one_in_three(values: Iterable[object]) -> list[object]:
    """The values, of which a tuple is one for each argument, as parameters; all but each third are thorough."""
    marked = pytest.mark.thorough
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=marked if number % 3 else ()) for number, row in enumerate(rows)]
