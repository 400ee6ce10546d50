"""A scene: which clients meet a driver, for how long, and what else happens meanwhile. All of it is data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.case import Origin, TestCase

JUDGED, LIVENESS, HOSTILE = "judged", "liveness", "hostile"
ROLES = (JUDGED, LIVENESS, HOSTILE)


@dataclass(frozen=True)
class Group:
    """Client processes that do the same.

    Attributes:
        activity: what each of their threads does, a name in `stress.activities.ACTIVITIES`.
        cases: for the activity.
        processes: how many.
        threads: of each.
        parameters: of the activity.
        role: `judged`; `liveness`: judged, and meant to show that others get their answers; `hostile`: whatever comes
            of such a client itself is no failure of the driver.
        rest: seconds between two turns of a thread.
        patient: the driver may end and come back.
        killed: how many of the processes are killed with SIGKILL, each at a moment of its own.
        window: between which shares of the run's length.
        in_process: each client has the driver in its own process.
        hook: `module:function` called at each step of a client, for clients that misbehave on purpose.
        hooking: what the hook is told.
    """

    activity: str
    cases: tuple[TestCase, ...] = ()
    processes: int = 1
    threads: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)
    role: str = JUDGED
    rest: float = 0.0
    patient: bool = False
    killed: int = 0
    window: tuple[float, float] = (0.0, 1.0)
    in_process: bool = False
    hook: str = ""
    hooking: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Disturbance:
    """Something that happens to the driver's process.

    Attributes:
        act: a name in `stress.disturbances.ACTS`.
        first: share of the run's length at which it happens first.
        every: share after which it happens again; 0 for once.
        value: what the act needs.
        last: share after which it does not happen again.
    """

    act: str
    first: float = 0.5
    every: float = 0.0
    value: float = 0.0
    last: float = 1.0


@dataclass(frozen=True)
class Scene:
    """One run of a workload.

    Attributes:
        workload: its name.
        setting: what tells it from the workload's other runs, in a word.
        text: what happens, in a sentence.
        groups: the clients.
        seconds: how long they go on.
        disturbances: what happens to the driver meanwhile.
        probe: asked of the driver when the clients are gone: it must still answer, and rightly.
        judges: what is looked at besides, names in `stress.judging.JUDGES`, each with what it is told.
        sampling: seconds between two looks at what the driver's process uses.
        shortened: the length that the public test has, where this one is shorter.
    """

    workload: str
    setting: str
    text: str
    groups: tuple[Group, ...]
    seconds: float
    disturbances: tuple[Disturbance, ...] = ()
    probe: TestCase | None = None
    judges: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sampling: float = 0.25
    shortened: float | None = None

    @property
    def service(self) -> bool:
        """Whether a driver's service runs."""
        return any(not group.in_process for group in self.groups)

    @property
    def origin(self) -> Origin:
        """What the id of its record is made of."""
        return Origin("STRESS", self.workload, self.setting, 0, mode="run", detail=self.text)

    @property
    def name(self) -> str:
        """Workload and setting."""
        return f"{self.workload}/{self.setting}" if self.setting else self.workload
