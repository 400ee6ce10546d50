"""The first message of a driver's service: what it says of itself, or why there is nobody to say it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from harness.client import MOST_DEADLINES, Watched
from harness.process import interpreter
from nnhal.channel import Channel, Closed
from nnhal.device import Traits
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from nnhal.parts import Json, Parts
from nnhal.types import FeatureLevel
from nnhal.wire import decode


class Unready(UsageError):
    """A driver's service is not there: its process ended before it was ready, or took too long.

    Args:
        text: one sentence.
        exit: how the process ended; None where it did not.
        silent: seconds waited for it in vain; None where it ended.
        log: the end of what it wrote.
    """

    def __init__(self, text: str, exit: int | None = None, silent: float | None = None, log: str = "") -> None:
        super().__init__(text)
        self.exit, self.silent, self.log = exit, silent, log


@dataclass(frozen=True)
class Hello:
    """What a service says of itself when it is ready.

    Attributes:
        name: abstract name of the socket where it takes further clients.
        adapter: class name of an adapter, whose `translate` runs on this side.
    """

    name: str
    level: FeatureLevel
    traits: Traits
    adapter: str | None
    python: str
    numpy: str


def last_line(text: str) -> str:
    """The last line of a log, to stand behind a sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1][:500]}" if lines else ""


def greet(process: Watched, spec: DriverSpec, channel: Channel, seconds: float) -> Hello:
    """Waits until a service is ready.

    A process that got little of the processor has more time, as with a call.

    Raises:
        UsageError: the driver could not be loaded.
    """
    name = spec.name
    begun = time.monotonic()
    try:
        while (message := channel.take()) is None:
            taken = time.monotonic() - begun
            if taken > seconds and not (taken < MOST_DEADLINES * seconds and _starved(process, taken)):
                process.stop("did not load in time", stacks=True)
                log = process.log()
                text = f"driver {name!r} was not ready within {seconds:g} s{last_line(log)}"
                raise Unready(text, silent=seconds, log=log)
            if not channel.fill() and process.wait(0.002) and not channel.fill():
                raise Closed
        words, parts = message
        parts.close()
        return _understand(words)
    except Closed:
        process.wait(3)
        reason = f"its process {process.reason}{last_line(process.log())}"
        if "No module named 'numpy'" in reason:
            reason += f"; run {interpreter(spec)} -m pip install 'numpy>=1.24'"
        raise Unready(f"driver {name!r} could not be loaded: {reason}", process.exit, log=process.log()) from None
    except ValueError as error:
        process.stop("sent nonsense at its start")
        raise Unready(f"driver {name!r} wrote to its service's socket: {error}", log=process.log()) from None


def _starved(process: Watched, taken: float) -> bool:
    """Whether a process that has lived so long had less than half of that time, and would run if it could."""
    return process.cpu_seconds() < taken / 2 and process.is_runnable()


def _understand(words: Json) -> Hello:
    if not isinstance(words, dict):
        raise ValueError("malformed wire data: the greeting has the wrong form")
    if "usage" in words:
        raise UsageError(str(words["usage"]))
    adapter, level = words.get("adapter"), words.get("level")
    traits = Traits() if level is None else decode(Traits, words.get("traits"), Parts())
    return Hello(
        name=str(words.get("name")),
        level=FeatureLevel.FL8 if level is None else FeatureLevel(decode(int, level, Parts())),
        traits=traits,
        adapter=None if adapter is None else str(adapter),
        python=str(words.get("python")),
        numpy=str(words.get("numpy")),
    )
