"""What a fuzzing run is asked for, and the command that asks for it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.covering import is_covered, parts_of, preload_of
from harness.isolation import DEADLINE
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec, adapter_of
from random_graph.folder import file_name

DEFAULT_SECONDS = 600
INPUT_SECONDS = 10.0  # that one input may take in the fuzzing process
MOST_RSS = 2 << 30  # bytes that the fuzzing process may hold
SHORTEST, LONGEST = 3, 120  # seconds of a slice
ROUNDS = 4  # slices of each target in a run, unless they would be longer or shorter than those


@dataclass(frozen=True)
class Plan:
    """What is fuzzed, and for how long.

    Attributes:
        driver: as `--driver` names it; empty where only the suite's own readers are fuzzed.
        targets: take turns.
        seconds: of the whole.
        jobs: processes at once.
        seed: of the first choices.
        state: folder that is kept from run to run.
        isolated: the driver has a process of its own, whatever could be loaded beside the fuzzer.
        bare: begins without inputs made from the definitions.
        first: ends with the first new finding.
        level: highest level to ask at; None for the driver's own.
        memory: limit of the driver's address space, as `--memory` says it.
        deadline: seconds for a call of a driver in a process of its own.
    """

    driver: str
    targets: tuple[str, ...]
    seconds: int
    jobs: int
    seed: int
    state: str
    isolated: bool = False
    bare: bool = False
    first: bool = False
    level: int | None = None
    memory: str | None = None
    deadline: float = DEADLINE

    def command(self) -> str:
        """The line that asks for the same again."""
        words = ["python", "-m", "fuzz", *([f"--driver={self.driver}"] if self.driver else [])]
        words += [f"--target={name}" for name in self.targets]
        words += [f"--for={self.seconds}s", f"--jobs={self.jobs}", f"--seed={self.seed}", f"--state={self.state}"]
        words += ["--isolated"] if self.isolated else []
        words += ["--bare"] if self.bare else []
        words += [f"--level={self.level}"] if self.level is not None else []
        words += [f"--memory={self.memory}"] if self.memory else []
        words += [f"--deadline={self.deadline:g}"] if self.deadline != DEADLINE else []
        return shlex.join(words)

    @property
    def slice_seconds(self) -> int:
        """Seconds for which a target has its turn."""
        fair = self.seconds * self.jobs // (ROUNDS * max(len(self.targets), 1))
        return max(SHORTEST, min(LONGEST, fair))

    def header(self) -> dict[str, Any]:
        """What the plan's line of the records says of it."""
        names = ("targets", "seconds", "jobs", "seed", "state", "isolated", "bare", "level", "memory", "deadline")
        return {"suite": "fuzz", "fuzz": {name: getattr(self, name) for name in names}}


def plan_of(driver: str, row: Mapping[str, Any]) -> Plan:
    """The plan that a run's records tell.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    told = dict(row["fuzz"])
    told["targets"] = tuple(map(str, told["targets"]))
    return Plan(driver, **told)


@dataclass(frozen=True)
class Way:
    """How a driver is fuzzed.

    Attributes:
        text: the driver, with what must be loaded before it.
        in_process: beside the fuzzer.
        guided: the fuzzer sees where it has been.
        covered: files and folders whose code is looked at.
    """

    text: str
    in_process: bool
    guided: bool
    covered: tuple[str, ...]

    @property
    def words(self) -> str:
        """For a person."""
        if self.in_process:
            return "in the fuzzing process, guided by coverage"
        return "in a process of its own, guided by its answers alone"


def way_of(driver: str, *, isolated: bool) -> Way:
    """How a driver is fuzzed: beside the fuzzer where that tells something, else apart.

    Raises:
        UsageError: its library cannot be read, or counts coverage in a way that the fuzzer refuses.
    """
    spec = DriverSpec.parse(driver)
    preload = preload_of(spec)
    text = driver
    if preload is not None and preload != spec.preload:
        text = f"{driver},preload={preload}"
    if spec.is_native:
        covered = is_covered(spec)
        return Way(text, covered and not isolated, covered and not isolated, ())
    apart = isolated or spec.python is not None or _is_adapter(spec)
    return Way(text, not apart, not apart, () if apart else parts_of(spec))


def _is_adapter(spec: DriverSpec) -> bool:
    """Whether a driver hands models to a runtime of which the fuzzer sees nothing."""
    try:
        adapter_of(spec)
    except UsageError:
        return False
    return True


def default_state(driver: str) -> Path:
    """Where the state of a driver is kept when nothing else is said."""
    return Path("runs") / "fuzz" / (file_name(driver or "own") or "driver")
