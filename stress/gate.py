"""Whether the machine is quiet: what battery and temperature are to phones."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

BUSY = 0.35  # share of all processors that others may use
LOOK_SECONDS = 0.25
WAIT_SECONDS = 60.0


def is_quiet() -> bool:
    """Whether little else runs now; nothing of a run may be under way."""
    return float(psutil.cpu_percent(LOOK_SECONDS)) / 100 <= BUSY


def wait_until_quiet(seconds: float = WAIT_SECONDS, say: Callable[[str], None] = lambda words: None) -> bool:
    """Waits for a quiet machine; False where it does not become quiet in time.

    Args:
        seconds: to wait at most; 0 looks once.
        say: is told when it has to wait.
    """
    end = time.monotonic() + seconds
    told = False
    while not is_quiet():
        if time.monotonic() >= end:
            return False
        if not told:
            say("waiting for the machine to be quiet")
            told = True
    return True
