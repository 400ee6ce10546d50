"""From a driver to its runs: what it says of itself, models that it does, and each scene from start to result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from harness.case import TestCase
from harness.driver import DriverFacts, ask_facts
from harness.isolation import IsolatedDriver
from harness.verdict import Cause
from nnhal.device import Traits
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, UncleanError, UsageError
from nnhal.loading import DriverSpec
from nnhal.types import FeatureLevel, OperandType
from nnhal.types import OperationType as Op
from opset.call import Argument, scalar
from stress import beyond, mlts
from stress.evidence import Evidence
from stress.judging import judge_run
from stress.models import built, find_models
from stress.presets import Preset
from stress.result import Ending, Result, Side
from stress.scene import Scene
from stress.supervision import Supervision
from stress.workloads import WORKLOADS, Kit, Workload, workload_of

__all__ = ["Ready", "get_ready", "perform", "scenes_of", "selected"]
PUBLIC, OWN = mlts.__name__, beyond.__name__  # the modules whose import fills the table of workloads


@dataclass(frozen=True)
class Ready:
    """A driver that can be put under stress.

    Attributes:
        kit: what scenes are made of.
        refused: models that it does not do, with its reason.
        trouble: what became of it when it was asked; None where all was well.
    """

    spec: DriverSpec
    facts: DriverFacts | None
    kit: Kit
    refused: dict[str, str]
    trouble: Result | None = None


@cache
def stand_in() -> TestCase:
    """A model that stands for those of a driver which does none, and for all while runs are only counted."""
    values = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    tensor = Argument(OperandType.TENSOR_FLOAT32, (3, 4), value=values)
    return built("stand.in", [(Op.ADD, (tensor, scalar(OperandType.INT32, 0)))], tensor)


def get_ready(
    spec: DriverSpec, preset: Preset, seed: int, deadline: float, level: int | None = None, length: float | None = None
) -> Ready:
    """Asks a driver what it is and which models it does.

    Raises:
        UsageError: it cannot be loaded.
    """
    kit = Kit(preset, (stand_in(),), Traits(), level or int(max(FeatureLevel)), seed, deadline, length)
    with IsolatedDriver(spec, deadline=deadline, spare=False) as driver:
        try:
            device = driver.device
            facts = ask_facts(device)
            chosen = FeatureLevel(min(facts.level, level or facts.level))
            found = find_models(device, preset.models, seed, chosen)
        except (DriverDied, DriverTimedOut, DriverError, UncleanError) as error:
            return Ready(spec, None, kit, {}, _trouble(error, driver.log))
    cases = found.cases or (stand_in(),)
    return Ready(spec, facts, replace(kit, cases=cases, traits=facts.traits, level=int(chosen)), found.refused)


def _trouble(error: Exception, log: str) -> Result:
    """A driver that does not even say what it is and does."""
    text = f"while it was asked what it is and which models it does: {error}"
    if isinstance(error, DriverTimedOut):
        return Result(Ending.HANG, Side.DRIVER, Cause.SILENT, "query", text, log=log)
    if isinstance(error, DriverDied):
        return Result(Ending.CRASH, Side.DRIVER, Cause.DIED, "query", text, log=log)
    cause = Cause.STATUS if isinstance(error, DriverError) else Cause.UNCLEAN_ERROR
    return Result(Ending.FAILURE, Side.DRIVER, cause, "query", text, log=log)


def selected(only: Sequence[str]) -> list[tuple[Workload, str]]:
    """Workloads, each with the only setting of it that is wanted; empty for all.

    Args:
        only: names, `workload` or `workload/setting`; all when empty.

    Raises:
        UsageError: there is no such workload.
    """
    if not only:
        return [(found, "") for found in WORKLOADS.values()]
    pairs = [name.partition("/")[::2] for name in dict.fromkeys(only)]
    return [(workload_of(name), setting) for name, setting in pairs]


def scenes_of(workload: Workload, setting: str, kit: Kit) -> list[Scene]:
    """The runs of a workload; of a setting alone where one is wanted.

    Raises:
        UsageError: there is no such setting.
    """
    scenes = list(workload.make(kit))
    if not setting:
        return scenes
    found = [scene for scene in scenes if scene.setting == setting]
    if not found:
        known = ", ".join(scene.setting for scene in scenes) or "none at this level"
        raise UsageError(f"--only={workload.name}/{setting} is no run of it; there are {known}")
    return found


def perform(
    scene: Scene,
    ready: Ready,
    *,
    log_path: Path | None = None,
    quiet: bool = True,
    show: Callable[[Supervision], None] = lambda supervision: None,
) -> tuple[Result, Evidence, float]:
    """A run from start to result; and the seconds that all of it took."""
    begun = time.monotonic()
    kit = ready.kit
    supervision = Supervision(
        scene,
        ready.spec,
        seed=str(kit.seed),
        deadline=kit.deadline,
        level=kit.level,
        log_path=log_path,
        show=show,
    )
    evidence = supervision.run()
    evidence.quiet = quiet
    return judge_run(scene, evidence), evidence, time.monotonic() - begun
