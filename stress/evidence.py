"""What is known of a run when it is over: plain data, for the judge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.isolation import Sample
from stress.board import Count, Place, Slot, latest, total
from stress.scene import Group

_CULPRIT = re.compile(r"^Current thread (0x[0-9a-f]+)", re.MULTILINE)  # as faulthandler writes it


@dataclass(frozen=True)
class Failure:
    """A wrong answer that a client told of.

    Attributes:
        at: seconds from the start of the run.
        cause: as of a case's verdict.
        turn: of the thread.
        saved: bytes of the case's file; empty where it is not kept.
    """

    at: float
    client: int
    thread: int
    turn: int
    id: str
    cause: str
    stage: str
    message: str
    saved: bytes = b""


@dataclass(frozen=True)
class Silence:
    """A hang.

    Attributes:
        at: seconds from the start at which it was seen.
        driver: it is the driver that does not answer, or holds a client's process; otherwise the client.
        client: who waits, or hangs.
        step: what it is in.
        seconds: for how long.
        stopped: the process that hangs was stopped by a signal.
        stacks: native ones, where they could be had; Python's are in the log.
    """

    at: float
    driver: bool
    client: int
    thread: int
    step: str
    seconds: float
    stopped: bool = False
    stacks: str = ""


@dataclass(frozen=True)
class ClientEnd:
    """How a client ended.

    Attributes:
        number: in the run.
        at: seconds from the start; None where it was still there at the end.
        exit: status, or minus a signal.
        reason: in words.
        killed: the run's plan killed it.
        stopped: the supervisor stopped it because the run was over, or it hung.
        done: it said that it has come to its end.
        slots: where its threads were.
        numbers: that it measured.
        nonsense: what it sent that is no message.
        closed: its connection ended.
        refused: why it could not load the driver.
        suite: a defect of the suite itself, with its trace.
        strays: processes that it left behind.
        log: the end of what it wrote.
    """

    number: int
    group: Group
    at: float | None
    exit: int | None
    reason: str
    killed: bool = False
    stopped: bool = False
    done: bool = False
    slots: tuple[Slot, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    nonsense: str = ""
    closed: bool = False
    refused: str = ""
    suite: str = ""
    strays: int = 0
    log: str = ""

    @property
    def place(self) -> Slot:
        """The slot of the thread that the process died of, as far as can be told.

        A crash trace names the thread. A thread that no slot is of belongs to whoever the process has besides the
        client: a driver. Without a trace it is the thread that did something last.
        """
        found = _CULPRIT.search(self.log)
        if found is not None and self.exit is not None and self.exit < 0:
            ident = int(found[1], 16)
            named = [slot for slot in self.slots if slot.ident == ident]
            inside = [slot for slot in self.slots if slot.place == Place.DRIVER]
            if named or inside:
                return (named or inside)[0]
            if self.group.in_process and not any(slot.place == Place.SUITE for slot in self.slots):
                return Slot(Place.DRIVER, text="no call of a client")
        return latest(self.slots)


@dataclass(frozen=True)
class DriverEnd:
    """How the driver's service ended.

    Attributes:
        at: seconds from the start; None where it lived until it was let go.
        exit: status, or minus a signal.
        reason: in words.
        loading: it had not been ready yet.
        refused: nobody died; its own code raised something when it was loaded.
        step: what a client was in when it died.
        strays: processes that it left behind.
        log: the end of what it wrote.
        restarts: how often the run's plan had it restarted.
    """

    at: float | None = None
    exit: int | None = None
    reason: str = ""
    loading: bool = False
    refused: bool = False
    step: str = ""
    strays: int = 0
    log: str = ""
    restarts: int = 0


@dataclass(frozen=True)
class Timed:
    """What a process used at a moment, and how much had been done by then.

    Attributes:
        at: seconds from the start.
        shared: bytes of shared memory among the resident ones.
        executions: of all clients.
        working: seconds that these took, one after the other.
    """

    at: float
    sample: Sample
    shared: int = 0
    executions: int = 0
    working: float = 0.0


@dataclass
class Evidence:
    """All of it.

    Attributes:
        start: CLOCK_MONOTONIC seconds of the go; 0 where it did not come to that.
        seconds: from the go to the end.
        failures: wrong answers in the order in which they were told.
        unsupported: models that the driver does not do, with its reason.
        probe: what came of the last question; empty where all was well or nothing was asked.
        leftovers: what is still there and should not be.
        marks: what happened when, for the page: seconds from the start, and words.
        numbers: measured by the supervisor.
    """

    start: float = 0.0
    seconds: float = 0.0
    clients: list[ClientEnd] = field(default_factory=list)
    driver: DriverEnd | None = None
    silence: Silence | None = None
    failures: list[Failure] = field(default_factory=list)
    failed: int = 0
    unsupported: dict[str, str] = field(default_factory=dict)
    samples: list[Timed] = field(default_factory=list)
    probe: str = ""
    leftovers: list[str] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    quiet: bool = True

    def counts(self, roles: tuple[str, ...]) -> dict[str, int]:
        """Counters over all clients of some roles."""
        slots = [slot for client in self.clients if client.group.role in roles for slot in client.slots]
        return {what.name.lower(): total(slots, what) for what in Count}
