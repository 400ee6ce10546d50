"""What an interruption does, while something long goes on."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Somebody wants it to end."""


def interrupt() -> NoReturn:
    """Ends what goes on at once.

    Raises:
        Interrupted: always.
    """
    raise Interrupted


@contextlib.contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Has SIGINT and SIGTERM call a function, in the main thread; what they did before comes back at the end."""
    before = [signal.signal(number, lambda number, frame: stop()) for number in NUMBERS]
    try:
        yield
    finally:
        for number, handler in zip(NUMBERS, before, strict=True):
            signal.signal(number, handler)
