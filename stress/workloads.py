"""The workloads by name: those of the public crash tests, then those beyond them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from harness.case import TestCase
from nnhal.device import Traits
from nnhal.errors import UsageError
from stress.presets import Preset
from stress.scene import Scene


@dataclass(frozen=True)
class Kit:
    """What scenes are made of.

    Attributes:
        preset: lengths and numbers.
        cases: models that the driver does.
        traits: what it declares.
        level: at which it is tested.
        seed: of the whole.
        deadline: seconds for a call of the driver.
        length: seconds of each run, in place of the preset's; None for that.
    """

    preset: Preset
    cases: tuple[TestCase, ...]
    traits: Traits
    level: int
    seed: int
    deadline: float = 10.0
    length: float | None = None

    def public(self, seconds: float) -> float:
        """The length of a run that the public test has so long."""
        return self.length or self.preset.seconds(seconds)

    def shortened(self, seconds: float) -> float | None:
        """The public length, where this one is shorter."""
        return seconds if self.public(seconds) < seconds else None

    @property
    def own(self) -> float:
        """The length of a run that no public test has."""
        return self.length or self.preset.private

    @property
    def soak(self) -> float:
        """The length of a soak."""
        return self.length or self.preset.soak

    @cached_property
    def small(self) -> tuple[TestCase, ...]:
        """The cases, the quickest half of them: by the number of operations."""
        return tuple(sorted(self.cases, key=lambda case: len(case.models[0].main.operations)))[
            : max(2, len(self.cases) // 2)
        ]


@dataclass(frozen=True)
class Workload:
    """A workload.

    Attributes:
        text: what happens, in a sentence, for lists and pages.
        make: its runs.
        settings: of a driver that does everything, in presets that take all models in turn.
        public: the public crash tests have it.
        needs: why a driver with such traits cannot have it; empty where it can.
    """

    name: str
    text: str
    make: Callable[[Kit], Iterator[Scene]]
    settings: tuple[str, ...]
    public: bool = False
    needs: Callable[[Traits], str] = lambda traits: ""


WORKLOADS: dict[str, Workload] = {}


def workload(
    name: str, settings: str, text: str, *, public: bool = False, needs: Callable[[Traits], str] = lambda traits: ""
) -> Callable[[Callable[[Kit], Iterator[Scene]]], Callable[[Kit], Iterator[Scene]]]:
    """Makes a function that gives scenes a workload; `settings` are theirs, with spaces between."""

    def register(make: Callable[[Kit], Iterator[Scene]]) -> Callable[[Kit], Iterator[Scene]]:
        WORKLOADS[name] = Workload(name, text, make, tuple(settings.split()), public, needs)
        return make

    return register


def workload_of(name: str) -> Workload:
    """The workload of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in WORKLOADS:
        near = difflib.get_close_matches(name, WORKLOADS, 3) or list(WORKLOADS)
        raise UsageError(f"--only={name} is no workload; such as {', '.join(near)}: python -m stress --list has all")
    return WORKLOADS[name]
