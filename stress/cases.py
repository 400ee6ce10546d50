"""Stress runs as pytest items: one batch for each, of one case, which has no steps but a run of a scene."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

from harness.batch import Batch, NotApplicableError, SettledError
from harness.case import Origin, TestCase
from harness.session import Session
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from stress.gate import is_quiet
from stress.performing import Ready, get_ready, perform, scenes_of
from stress.presets import PRESETS, Preset
from stress.records import LOG_KEPT, command, judgement_of, save_failure
from stress.workloads import WORKLOADS

PRESET_OF = {"ci": "smoke", "quick": "smoke", "full": "short", "nightly": "night"}
_ready: dict[tuple[str, str], Ready] = {}


def preset_for(profile: str) -> Preset:
    """The preset that a profile of pytest has."""
    return PRESETS[PRESET_OF[profile]]


def batches() -> Iterator[Batch]:
    """A batch for each run."""
    for workload in WORKLOADS.values():
        for setting in workload.settings:
            yield Batch(Origin("STRESS", workload.name, setting, 0, mode="run"), (0,), _unmade)


def _unmade(number: int) -> NoReturn:
    raise NotApplicableError("only a test that has the driver can run it")


def performing(session: Session, batch: Batch, profile: str, seed: int, deadline: float) -> Batch:
    """The batch with what runs it on a session's driver."""

    def make(number: int) -> TestCase:
        raise _performed(session, batch, _get_ready(session, preset_for(profile), seed, deadline))

    return replace(batch, make=make)


def _performed(session: Session, batch: Batch, ready: Ready) -> SettledError:
    """Runs a scene; gives what settles the case.

    Raises:
        NotApplicableError: the driver cannot have it.
    """
    workload, setting = WORKLOADS[batch.origin.signature], batch.origin.kind
    if ready.trouble is not None:
        return SettledError(judgement_of(ready.trouble), log=ready.trouble.log[-LOG_KEPT:])
    reason = workload.needs(ready.kit.traits)
    if reason:
        raise NotApplicableError(reason)
    try:
        (scene,) = scenes_of(workload, setting, ready.kit)
    except UsageError:
        raise NotApplicableError(f"there is no such run below the driver's level {ready.kit.level}") from None
    log = (session.folder / "driver.log").absolute()
    result, _, seconds = perform(scene, ready, log_path=log, quiet=is_quiet())
    saved = save_failure(session.folder, f"{batch.id}-0", result)
    again = command(session.options.driver, ready.kit.preset.name, ready.kit.seed, scene.name)
    judgement = replace(judgement_of(result), notes=(*result.notes, f"alone: {again}"))
    return SettledError(judgement, saved=saved, log=result.log[-LOG_KEPT:], seconds=seconds)


def _get_ready(session: Session, preset: Preset, seed: int, deadline: float) -> Ready:
    options = session.options
    if session.driver.in_process or options.selection[:1] != (f"--driver={options.driver}",):
        raise NotApplicableError("stress runs start the driver's processes themselves")
    key = options.driver, preset.name
    if key not in _ready:
        level = None if options.level is None else int(options.level)
        _ready[key] = get_ready(DriverSpec.parse(options.driver), preset, seed, deadline, level)
    return _ready[key]
