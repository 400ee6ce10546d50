"""What goes between a campaign and the processes that do its work, on this machine or on others. All of it is data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.case import Origin, TestCase
from harness.environment import environment
from harness.isolation import DEADLINE
from harness.record import Record
from random_graph.cases import origin_of
from random_graph.oracles import REFERENCE
from random_graph.triage import Look

GRAPHS = 10**9  # of one mix in a campaign, at most; so seeds of two campaigns never meet


@dataclass(frozen=True)
class Graph:
    """One graph: what makes it again."""

    mix: str
    seed: int

    @property
    def origin(self) -> Origin:
        """What its case's id is made of."""
        return origin_of(self.mix, self.seed)

    @property
    def unmade(self) -> TestCase:
        """Stands for its case where that cannot be made."""
        return TestCase(self.origin, (), ())

    @property
    def name(self) -> str:
        """Its case's id without the digest."""
        return f"{self.origin.batch}-{self.seed}"


def graph_of(mixes: tuple[str, ...], seed: int, place: int) -> Graph:
    """The graph at a place of a campaign: the mixes take turns, and each has seeds of its own.

    Args:
        mixes: of the campaign, in order.
        seed: of the campaign.
        place: from 0.
    """
    number, mix = divmod(place, len(mixes))
    return Graph(mixes[mix], seed * GRAPHS + number)


@dataclass(frozen=True)
class Setting:
    """What a process must know before its first job.

    Attributes:
        drivers: as `--driver` names them.
        level: highest level to test at; None for the driver's own.
        memory: limit of a driver's address space, as `--memory` says it.
        deadline: seconds that a driver gets for an answer.
        logs: file for what each driver writes; none where nobody could read them.
        campaign: tells campaigns that share workers apart.
        suite: version of the suite that asks.
        oracle: what results are held against, a name in `random_graph.oracles.ORACLES`.
        against: the driver whose results are due in place of that, as `--against` names it; empty where there is none.
    """

    drivers: tuple[str, ...]
    level: int | None = None
    memory: str | None = None
    deadline: float = DEADLINE
    logs: tuple[str, ...] = ()
    campaign: str = ""
    suite: str = ""
    oracle: str = REFERENCE
    against: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Options besides the driver that a repetition of a case needs."""
        given = {"level": self.level, "memory": self.memory}
        found = [f"--{name}={value}" for name, value in given.items() if value is not None]
        if self.deadline != DEADLINE:
            found.append(f"--deadline={self.deadline:g}")
        return tuple(found)

    @property
    def graph_arguments(self) -> tuple[str, ...]:
        """Those that one of a graph needs, whose case is made again."""
        held = (f"--against={self.against}",) if self.against else (f"--oracle={self.oracle}",)
        return (*(held if self.against or self.oracle != REFERENCE else ()), *self.arguments)


@dataclass(frozen=True)
class Ready:
    """A process has its drivers loaded.

    Attributes:
        headers: what each driver says of itself, for the plan.
        silent: by driver the sentence on one that does not say what it is; empty where it does.
        environment: of the machine.
    """

    headers: tuple[Mapping[str, object], ...]
    silent: tuple[str, ...]
    environment: Mapping[str, object] = field(default_factory=environment)


@dataclass(frozen=True)
class Check:
    """Job: make a graph and check it with each driver."""

    graph: Graph


@dataclass(frozen=True)
class Reduce:
    """Job: minimise the failure of a graph with one driver, by number."""

    graph: Graph
    driver: int


@dataclass(frozen=True)
class Checked:
    """What came of a graph.

    Attributes:
        records: of each driver.
        looks: at each driver's failure; None where it did not fail.
        spent: seconds by each driver's run, by what they were spent on: generation, oracle, driver, harness.
        saved: by driver the file of a case that its seed does not make again: a sequence; empty otherwise.
    """

    job: Check
    records: tuple[Record, ...]
    looks: tuple[Look | None, ...]
    spent: tuple[Mapping[str, float], ...]
    saved: tuple[bytes, ...]


@dataclass(frozen=True)
class Reduced:
    """What came of minimising.

    Attributes:
        record: of the minimised case, or of the case as it was where it could not be minimised.
        look: at that case.
        case: its file.
        dot: its model as a picture.
        listing: its model in words.
        note: why it is as it was; empty when it was minimised.
    """

    job: Reduce
    record: Record
    look: Look
    case: bytes
    dot: str
    listing: str
    note: str = ""


@dataclass(frozen=True)
class Lost:
    """A job that no process came back from.

    Attributes:
        reason: a sentence.
    """

    job: Check | Reduce
    reason: str


Job = Check | Reduce
Answer = Checked | Reduced | Lost
