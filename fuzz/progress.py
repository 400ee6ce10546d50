"""What a fuzzing run shows while it runs: a few lines that change on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TextIO

from random_graph.progress import FRESH_SECONDS, PLAIN_SECONDS, Screen, clock
from reports.text import count_words


@dataclass
class Tally:
    """What a target came to.

    Attributes:
        inputs: that were run.
        cases: of them, that became something to ask of the driver.
        unsupported: of these, what it does not do.
        seconds: of its processes.
        edges: places of the driver's code that were reached, answers included.
        corpus: inputs that are kept.
        findings: distinct ones.
        ends: of processes that were not asked for.
    """

    inputs: int = 0
    cases: int = 0
    unsupported: int = 0
    seconds: float = 0.0
    edges: int = 0
    corpus: int = 0
    findings: int = 0
    ends: int = 0

    @property
    def rate(self) -> float:
        """Inputs a second of a process."""
        return self.inputs / self.seconds if self.seconds else 0.0

    def row(self) -> dict[str, float]:
        """The numbers for the records."""
        return {**vars(self), "rate": round(self.rate, 3), "seconds": round(self.seconds, 3)}


@dataclass
class Standing:
    """Where a run is.

    Attributes:
        limit: seconds that it may take.
        before: seconds of the parts that this one goes on with.
        tallies: by target.
        active: targets that have their turn.
        looking: inputs that are looked at again, and those that wait for it.
        new: distinct findings that were not known.
        known: those that were.
        last: the last finding in one line.
    """

    limit: float
    before: float = 0.0
    tallies: dict[str, Tally] = field(default_factory=dict)
    active: tuple[str, ...] = ()
    looking: int = 0
    new: int = 0
    known: int = 0
    last: str = ""
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds so far, those of earlier parts included."""
        return self.before + time.monotonic() - self.started

    @property
    def inputs(self) -> int:
        """Inputs so far."""
        return sum(tally.inputs for tally in self.tallies.values())

    def totals(self) -> dict[str, int]:
        """Of all targets: inputs, places reached, inputs that are kept, and findings."""
        tallies = self.tallies.values()
        sums = {name: sum(getattr(tally, name) for tally in tallies) for name in ("inputs", "edges", "corpus")}
        return {**sums, "findings": self.new}

    def lines(self) -> list[str]:
        """All of it."""
        wall = max(time.monotonic() - self.started, 1e-9)
        left = max(self.limit - self.seconds, 0.0)
        first = f"{clock(self.seconds)}  {self.inputs:,} inputs, {self.inputs / wall:.3g}/s, {clock(left)} left"
        if self.active:
            first += f", at {', '.join(self.active)}"
        lines = [first, *self.target_lines()]
        found = f"{count_words(self.new, 'new finding', 'new findings')}, {self.known} known"
        if self.looking:
            found += f", looking at {count_words(self.looking, 'input', 'inputs')}"
        lines.append(found + (f", last: {self.last}" if self.last else ""))
        return lines

    def target_lines(self) -> list[str]:
        """A line for each target that has had a turn."""
        return [line_of(name, tally) for name, tally in self.tallies.items() if tally.seconds]


def line_of(name: str, tally: Tally) -> str:
    """A target's numbers in a line."""
    return (
        f"  {name:<13} {tally.inputs:>9,} inputs {tally.rate:>7.4g}/s  reached {tally.edges:>6,}"
        f"  corpus {tally.corpus:>5,}  findings {tally.findings}"
    )


def rows_of(tallies: Mapping[str, Tally]) -> dict[str, dict[str, float]]:
    """The numbers of all targets for the records."""
    return {name: tally.row() for name, tally in tallies.items()}


class Progress(Screen):
    """Shows where a run is. Use as a context."""

    def __init__(self, standing: Standing, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._standing = standing

    def show(self) -> None:
        """Shows it, when it is time to."""
        if not self.is_due(PLAIN_SECONDS if self._live is None else FRESH_SECONDS):
            return
        if self._live is not None:
            self.draw(self._live, self._standing.lines())
        else:
            first, *_, last = self._standing.lines()
            self.say(f"{first}; {last}")
