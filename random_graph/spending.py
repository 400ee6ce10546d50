"""What time is spent on while a case is made; each thread counts for itself."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

GENERATION, ORACLE, DRIVER, HARNESS = "generation", "oracle", "driver", "harness"
STAGES = (GENERATION, ORACLE, DRIVER, HARNESS)
_HERE = threading.local()


@contextlib.contextmanager
def spending(on: str) -> Iterator[None]:
    """Counts the seconds until the end of the block."""
    started = time.perf_counter()
    try:
        yield
    finally:
        _spent()[on] += time.perf_counter() - started


def take_spent() -> defaultdict[str, float]:
    """Seconds by what they were spent on since this was asked last."""
    found = _spent()
    _HERE.spent = defaultdict(float)
    return found


def _spent() -> defaultdict[str, float]:
    found: defaultdict[str, float] | None = getattr(_HERE, "spent", None)
    if found is None:
        found = _HERE.spent = defaultdict(float)
    return found
