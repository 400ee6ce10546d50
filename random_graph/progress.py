"""What a campaign shows while it runs: a few lines that change on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TextIO, TypeVar

from rich.console import Console
from rich.live import Live
from rich.text import Text

from reports.tables import ORDER
from reports.text import clean, count_words

PLAIN_SECONDS = 10.0
FRESH_SECONDS = 0.25
T = TypeVar("T", bound="Screen")
LONGEST = 400  # characters of a line that stays


@dataclass
class State:
    """Where a campaign is.

    Attributes:
        planned: number of graphs; None where the time decides.
        limit: seconds that the campaign may take; None where the number decides.
        before: graphs and seconds of the parts that this one goes on with.
        counts: records by verdict, for each driver.
        distinct: number of distinct failures.
        minimising: failures being minimised now.
        last: the last distinct failure in one line.
        trouble: what keeps the campaign waiting; empty when nothing does.
        counted: when the last graph was.
    """

    planned: int | None = None
    limit: float | None = None
    before: tuple[int, float] = (0, 0.0)
    done: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    distinct: int = 0
    minimising: int = 0
    last: str = ""
    trouble: str = ""
    started: float = field(default_factory=time.monotonic)
    counted: float = 0.0

    def count(self, done: int) -> None:
        """Notes how many graphs have a record."""
        if done != self.done:
            self.done, self.counted = done, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds so far, those of earlier parts included."""
        return self.before[1] + time.monotonic() - self.started

    @property
    def rate(self) -> float:
        """Graphs a second in this part, up to the last one; failures may still be minimised then."""
        return (self.done - self.before[0]) / max(self.counted - self.started, 1e-9)

    @property
    def left(self) -> float | None:
        """Seconds to the end, as far as can be told."""
        if self.limit is not None:
            return max(self.limit - self.seconds, 0.0)
        if self.planned is None or not self.rate:
            return None
        return (self.planned - self.done) / self.rate

    def first_line(self) -> str:
        """How far it is."""
        of = "" if self.planned is None else f" of {self.planned:,}"
        left = self.left
        parts = [f"{clock(self.seconds)}  {self.done:,}{of} graphs", f"{self.rate:.3g} graphs/s"]
        parts += [f"{clock(left)} left"] if left is not None else []
        parts += [f"minimising {count_words(self.minimising, 'failure', 'failures')}"] if self.minimising else []
        return ", ".join(parts)

    def count_lines(self) -> list[str]:
        """What came of it, a line for each driver."""
        many = len(self.counts) > 1
        return [f"{driver}: {verdicts(found)}" if many else verdicts(found) for driver, found in self.counts.items()]

    def lines(self) -> list[str]:
        """All of it."""
        lines = [self.first_line(), *self.count_lines()]
        lines.append(count_words(self.distinct, "distinct failure", "distinct failures"))
        if self.last:
            lines[-1] += f", last: {self.last}"
        return lines + ([self.trouble] if self.trouble else [])


def clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def verdicts(counts: Mapping[str, int]) -> str:
    """Counts in the order of the pages."""
    return ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in ORDER if counts.get(verdict)) or "nothing yet"


class Screen:
    """A few lines that change on a terminal, and lines that stay. Use as a context.

    Args:
        stream: standard error, where the summary does not go.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._console = Console(file=self._stream, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._shown = 0.0

    def __enter__(self: T) -> T:
        self._shown = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def is_due(self, seconds: float) -> bool:
        """Whether so much time has passed since it was last so."""
        now = time.monotonic()
        due = now - self._shown >= seconds
        if due:
            self._shown = now
        return due

    def draw(self, live: Live, lines: Iterable[str]) -> None:
        """The lines that change."""
        text = Text("\n".join(clean(line) for line in lines), no_wrap=True, overflow="ellipsis")
        live.update(text, refresh=True)

    def say(self, line: str) -> None:
        """A line that stays."""
        text = clean(line)
        text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
        if self._live is not None:
            self._console.print(Text(text))
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()


class Progress(Screen):
    """Shows a state. Use as a context.

    Args:
        state: looked at each time.
        stream: standard error, where the summary does not go.
    """

    def __init__(self, state: State, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._state = state

    def show(self) -> None:
        """Shows the state, when it is time to."""
        if not self.is_due(PLAIN_SECONDS if self._live is None else FRESH_SECONDS):
            return
        if self._live is not None:
            self.draw(self._live, self._state.lines())
        else:
            self.say("; ".join(self._state.lines()))
