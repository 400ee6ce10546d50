"""What a campaign is asked for: which graphs, for how long, and the command that asks for the same again."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.isolation import DEADLINE
from nnhal.errors import UsageError
from random_graph.jobs import GRAPHS, Graph, Setting, graph_of
from random_graph.oracles import REFERENCE

DEFAULT_COUNT = 1000
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


@dataclass(frozen=True)
class Plan:
    """Decides the graphs of a campaign; how many processes do it, and where, changes none of them.

    Attributes:
        drivers: as `--driver` names them.
        mixes: take turns.
        seed: of the campaign.
        count: number of graphs; None where the time decides.
        seconds: that are spent on graphs; None where the number decides.
        graphs: seeds of single graphs, which are then run of each mix and nothing else.
        level: highest level to test at; None for the driver's own.
        memory: limit of a driver's address space.
        deadline: seconds for an answer.
        oracle: what results are held against, by name.
        against: the driver whose results are due in place of that; empty where there is none.
    """

    drivers: tuple[str, ...]
    mixes: tuple[str, ...]
    seed: int = 0
    count: int | None = DEFAULT_COUNT
    seconds: int | None = None
    graphs: tuple[int, ...] = ()
    level: int | None = None
    memory: str | None = None
    deadline: float = DEADLINE
    oracle: str = REFERENCE
    against: str = ""

    @property
    def total(self) -> int | None:
        """Number of graphs, where it is known."""
        return len(self.graphs) * len(self.mixes) if self.graphs else self.count

    def graph(self, place: int) -> Graph | None:
        """The graph at a place; None behind the last one."""
        if self.total is not None and place >= self.total:
            return None
        if self.graphs:
            number, mix = divmod(place, len(self.mixes))
            return Graph(self.mixes[mix], self.graphs[number])
        return graph_of(self.mixes, self.seed, place)

    def selected(self) -> dict[str, int]:
        """Number of graphs by batch, as far as it is known before."""
        counts = Counter({Graph(mix, 0).origin.batch: 0 for mix in self.mixes})
        for mix in range(len(self.mixes)):
            counts[Graph(self.mixes[mix], 0).origin.batch] += len(range(mix, self.total or 0, len(self.mixes)))
        return dict(counts)

    def setting(self, **more: Any) -> Setting:
        """What a process must know."""
        known = {"oracle": self.oracle, "against": self.against, **more}
        return Setting(self.drivers, self.level, self.memory, self.deadline, **known)

    def command(self) -> str:
        """The line that runs the same graphs again."""
        words = ["python", "-m", "random_graph", *(f"--driver={driver}" for driver in self.drivers)]
        words += [f"--mix={mix}" for mix in self.mixes]
        if self.graphs:
            words += [f"--graph={seed}" for seed in self.graphs]
        else:
            size = f"--count={self.count}" if self.seconds is None else f"--for={duration_words(self.seconds)}"
            words += [size, f"--seed={self.seed}"]
        return shlex.join([*words, *self.setting().graph_arguments])

    def header(self) -> dict[str, Any]:
        """What the plan's line of a run says of the campaign."""
        return {
            "suite": "graphs",
            "mixes": list(self.mixes),
            "seed": self.seed,
            "count": self.count,
            "for": self.seconds,
            "graphs": list(self.graphs),
            "level": self.level,
            "memory": self.memory,
            "deadline": self.deadline,
            "oracle": self.oracle,
            "against": self.against,
        }


def plan_of(driver: str, header: Mapping[str, Any]) -> Plan:
    """The plan that a run's first line tells.

    Raises:
        KeyError, TypeError, ValueError: it is none of a campaign.
    """
    return Plan(
        (driver,),
        tuple(str(mix) for mix in header["mixes"]),
        int(header["seed"]),
        None if header["count"] is None else int(header["count"]),
        None if header["for"] is None else int(header["for"]),
        tuple(int(seed) for seed in header["graphs"]),
        header["level"],
        header["memory"],
        float(header["deadline"]),
        str(header.get("oracle", REFERENCE)),
        str(header.get("against", "")),
    )


def seconds_of(text: str) -> int:
    """The seconds that `--for` gives.

    Raises:
        UsageError: it is no time.
    """
    match = _DURATION.fullmatch(text)
    hours, minutes, seconds = (int(found or 0) for found in (match.groups() if match else ("", "", "")))
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise UsageError(f"--for={text} is no time; write 90s, 30m, 2h or 1h30m")
    return total


def duration_words(seconds: int) -> str:
    """A time as `--for` takes it."""
    hours, rest = divmod(seconds, 3600)
    parts = ((hours, "h"), (rest // 60, "m"), (rest % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number)


def checked_seed(seed: int) -> int:
    """The seed that `--seed` gives.

    Raises:
        UsageError: it is none.
    """
    if not 0 <= seed < GRAPHS:
        raise UsageError(f"--seed={seed} is no seed of a campaign; give 0 to {GRAPHS - 1}")
    return seed
