"""What the stress runs show while they go on: a line that changes on a terminal, else a line for each run."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.record import Record
from random_graph.progress import clock, verdicts
from reports.text import clean
from stress.records import StressFolder
from stress.result import Ending
from stress.supervision import Supervision

FRESH_SECONDS = 0.25
LONGEST = 300


class Progress:
    """Shows what goes on. Use as a context.

    Args:
        total: number of runs.
        stream: standard error, where the summary does not go.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total, self.number = total, 0
        self._stream = stream or sys.stderr
        self._console = Console(file=self._stream, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._shown = 0.0
        self._started = time.monotonic()

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, supervision: Supervision, folder: StressFolder) -> None:
        """Shows a run that is under way, when it is time to."""
        if self._live is None or time.monotonic() - self._shown < FRESH_SECONDS:
            return
        self._shown = time.monotonic()
        scene = supervision.scene
        alive = sum(client.alive for client in supervision.clients)
        lines = [
            f"{clock(self._shown - self._started)}  run {self.number} of {self.total}: {folder.driver} {scene.name}, "
            f"{clock(supervision.now)} of {clock(scene.seconds)}",
            f"{supervision.executions:,} executions, {alive} clients; {verdicts(folder.counts)}",
        ]
        text = Text("\n".join(clean(line) for line in lines), no_wrap=True, overflow="ellipsis")
        self._live.update(text, refresh=True)

    def done(self, name: str, record: Record, ending: Ending) -> None:
        """A run is over."""
        rate = record.numbers.get("executions_per_second")
        speed = f", {rate:.4g} executions/s" if rate else ""
        waived = " (waived)" if record.waiver else ""
        first = record.message.splitlines()[0] if record.message else ""
        self.say(f"{ending.value}{waived}  {name}  {record.seconds:.1f} s{speed}{': ' if first else ''}{first}")

    def say(self, line: str) -> None:
        """A line that stays."""
        text = clean(line)
        text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
        if self._live is not None:
            self._console.print(Text(text))
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()
