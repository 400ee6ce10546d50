"""What the benchmark shows while it runs: a line that changes on a terminal, else a line for each model."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from reports.text import clean


class Progress:
    """A bar over the models.

    Args:
        total: models, each on each driver in each tier.
    """

    def __init__(self, total: int) -> None:
        console = Console(file=sys.stderr, highlight=False)
        self._terminal = console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console, transient=True, disable=not self._terminal)
        self._task = self._bar.add_task("", total=total)
        self._done = 0
        self._total = total
        self._begun = time.monotonic()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, model: str, words: str, share: float) -> None:
        """Says what a model is at."""
        self._bar.update(self._task, description=clean(f"{model}: {words}"), completed=self._done + share)

    def done(self, line: str) -> None:
        """A model has its records; the line stays."""
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        if self._terminal:
            self._bar.console.print(clean(line), markup=False, soft_wrap=True)
        else:
            seconds = int(time.monotonic() - self._begun)
            sys.stderr.write(f"{seconds // 60}:{seconds % 60:02} {self._done} of {self._total}: {clean(line)}\n")
            sys.stderr.flush()
