"""How long the benchmark measures, and on what share of the machine."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nnhal.errors import UsageError

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
DEFAULT_TIER = "default"


@dataclass(frozen=True)
class Plan:
    """What is measured of each model on each driver.

    Attributes:
        name: on the command line.
        text: what it is for, in a sentence.
        warm_up: seconds of executions that are not counted.
        seconds: of executions in pairs, driver and baseline in turns, at most.
        mode_seconds: of executions in each other mode, and with each number of requests in flight.
        preparations: of each kind, at most.
        prepare_seconds: for each kind, at most; one is made in any case.
        samples: inputs whose outputs are judged, at most; None for all that there are.
        exact: of them, how many are held against the reference in float64.
        in_flight: requests at the same time whose throughput is measured.
        accumulated: inputs with which every operation is looked at for its part in the error.
        rounds: pairs at least, whatever the time.
    """

    name: str
    text: str
    warm_up: float
    seconds: float
    mode_seconds: float
    preparations: int
    prepare_seconds: float
    samples: int | None
    exact: int
    accumulated: int
    in_flight: tuple[int, ...] = (1, 2, 4)
    rounds: int = 12


PLANS = {
    plan.name: plan
    for plan in (
        Plan("smoke", "every part for a moment: what pytest runs", 0.05, 0.4, 0.1, 2, 0.2, 12, 12, 0, (1, 2)),
        Plan("short", "a first look", 0.5, 4.0, 0.5, 10, 1.0, 40, 12, 1),
        Plan("mlts", "the lengths of the public benchmark", 2.0, 10.0, 2.0, 100, 10.0, None, 40, 3, (1, 2, 4, 8)),
    )
}


def plan_of(name: str) -> Plan:
    """The plan of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in PLANS:
        raise UsageError(f"--preset={name} is unknown; there are {', '.join(PLANS)}")
    return PLANS[name]


@dataclass(frozen=True)
class Tier:
    """A device class: what drivers and baseline may use of the machine.

    Attributes:
        threads: of the baseline, and of a driver whose options say `{threads}`.
        cpus: processors that the processes may use; empty for all.
        memory: bytes of address space of each process; None for any.
    """

    name: str = DEFAULT_TIER
    threads: int = 1
    cpus: tuple[int, ...] = ()
    memory: int | None = None

    def __str__(self) -> str:
        words = [f"{self.threads} thread{'s' if self.threads > 1 else ''}"]
        if self.cpus:
            words.append(f"processors {','.join(map(str, self.cpus))}")
        if self.memory is not None:
            words.append(f"{self.memory >> 20} MiB of address space")
        return f"{self.name} ({', '.join(words)})"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Processes that start meanwhile have the processors of this tier alone."""
        if not self.cpus:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cpus)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def tier_of(text: str, threads: int = 1) -> Tier:
    """A tier as the command line has it: `NAME[:threads=N][:cpus=0-1,3][:memory=512M]`.

    Raises:
        UsageError: it is not of this form, or the machine has no such processor.
    """
    name, *parts = text.split(":")
    if not re.fullmatch(r"[\w-]+", name):
        raise UsageError(f"--tier={text} has no name; write --tier=low:threads=1:cpus=0:memory=512M")
    tier = Tier(name, threads)
    for part in parts:
        key, _, value = part.partition("=")
        if key == "threads" and value.isdecimal() and int(value) > 0:
            tier = replace(tier, threads=int(value))
        elif key == "cpus":
            tier = replace(tier, cpus=_cpus(value, text))
        elif key == "memory" and (found := re.fullmatch(r"(\d+)([KMG]?)", value)):
            tier = replace(tier, memory=int(found[1]) * UNITS[found[2]])
        else:
            raise UsageError(
                f"--tier={text}: {part!r} is not understood; parts are threads=N, cpus=0-1 and memory=512M"
            )
    return tier


def _cpus(value: str, text: str) -> tuple[int, ...]:
    found: list[int] = []
    for piece in value.split(","):
        matched = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
        if not matched:
            raise UsageError(f"--tier={text}: {value!r} names no processors; write cpus=0-1 or cpus=0,2")
        found += range(int(matched[1]), int(matched[2] or matched[1]) + 1)
    there = os.sched_getaffinity(0)
    lacking = [cpu for cpu in found if cpu not in there]
    if lacking:
        raise UsageError(f"--tier={text}: there is no processor {lacking[0]}; this machine has {sorted(there)}")
    return tuple(sorted(set(found)))
