"""What the stress runs show while they go on: a line that changes on a terminal, else a line for each run."""

from __future__ import annotations

import time
from typing import TextIO

from harness.record import Record
from random_graph.progress import FRESH_SECONDS, Screen, clock, verdicts
from stress.records import StressFolder
from stress.result import Ending
from stress.supervision import Supervision


class Progress(Screen):
    """Shows what goes on. Use as a context.

    Args:
        total: number of runs.
        stream: standard error, where the summary does not go.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.total, self.number = total, 0
        self._started = time.monotonic()

    def show(self, supervision: Supervision, folder: StressFolder) -> None:
        """Shows a run that is under way, when it is time to."""
        if self._live is None or not self.is_due(FRESH_SECONDS):
            return
        scene = supervision.scene
        alive = sum(client.alive for client in supervision.clients)
        passed = time.monotonic() - self._started
        lines = [
            f"{clock(passed)}  run {self.number} of {self.total}: {folder.driver} {scene.name}, "
            f"{clock(supervision.now)} of {clock(scene.seconds)}",
            f"{supervision.executions:,} executions, {alive} clients; {verdicts(folder.counts)}",
        ]
        self.draw(self._live, lines)

    def done(self, name: str, record: Record, ending: Ending) -> None:
        """A run is over."""
        rate = record.numbers.get("executions_per_second")
        speed = f", {rate:.4g} executions/s" if rate else ""
        waived = " (waived)" if record.waiver else ""
        first = record.message.splitlines()[0] if record.message else ""
        self.say(f"{ending.value}{waived}  {name}  {record.seconds:.1f} s{speed}{': ' if first else ''}{first}")
