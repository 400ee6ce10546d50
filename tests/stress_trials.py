"""Runs of drivers and clients that misbehave on purpose, and how each has to be classified."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from harness.case import TestCase
from harness.verdict import Cause
from nnhal.loading import DriverSpec
from nnhal.types import OperandType
from nnhal.types import OperationType as Op
from opset.call import Argument, scalar
from stress.evidence import Evidence
from stress.judging import judge_run
from stress.models import built
from stress.result import Ending, Result, Side
from stress.scene import Group, Scene
from stress.supervision import Supervision
from tests.misbehaving import CRASHES, HANGS, KINDS, MARK, ONLY_DRIVER, STAGES

FILE = Path(__file__).with_name("misbehaving.py")
DEADLINE = 1.0
LOAD_DEADLINE = 4.0
SECONDS = 1.5
LONG_SECONDS = 8.0
MOST_BEFORE = 12  # calls of a stage before the one that goes wrong
NONE = "none"


@dataclass(frozen=True)
class Trial:
    """One misbehaviour.

    Attributes:
        after: how often the stage is taken well before.
        threads: of the client.
    """

    kind: str
    stage: str = "execute"
    driver: bool = True
    in_process: bool = False
    after: int = 3
    threads: int = 1

    @property
    def name(self) -> str:
        side = "driver" if self.driver else "client"
        where = "in.process" if self.in_process else "service"
        return f"{self.kind}-{self.stage}-{side}-{where}-{self.after}"

    @property
    def due(self) -> tuple[Ending, Side, tuple[Cause, ...]]:
        """How it has to end, whose fault it is, and what may be named as the cause."""
        side = Side.DRIVER if self.driver else Side.CLIENT
        if self.kind == NONE:
            return Ending.SUCCESS, Side.NONE, (Cause.NONE,)
        if self.kind in CRASHES:
            return Ending.CRASH, side, (Cause.DIED, Cause.MALFORMED)
        if self.kind in HANGS:
            return Ending.HANG, side, (Cause.SILENT,)
        if self.kind == "children":
            return Ending.FAILURE, side, (Cause.LEFTOVERS,)
        if self.kind in ("error", "grow"):
            if not self.driver:  # the client is the suite's: an exception in it is nobody else's
                return Ending.INTERNAL, side, (Cause.SUITE,)
            return Ending.FAILURE, side, (Cause.UNCLEAN_ERROR,)
        causes = {"wrong": Cause.VALUE, "leak": Cause.LEAK, "descriptors": Cause.LEAK, "slow": Cause.SLOWDOWN}
        return Ending.FAILURE, side, (causes[self.kind],)


@cache
def cases() -> tuple[TestCase, ...]:
    """Models that the light driver does."""

    def tensor(*shape: int) -> Argument:
        values = np.random.default_rng(shape[-1]).standard_normal(shape).astype(np.float32)
        return Argument(OperandType.TENSOR_FLOAT32, shape, value=values)

    activation = scalar(OperandType.INT32, 0)
    return tuple(built(f"add{n}", [(Op.ADD, (tensor(4, n), activation))], tensor(4, n)) for n in (7, 8, 9))


def scene_of(trial: Trial, seconds: float = SECONDS) -> Scene:
    """What is run for so long to see a misbehaviour."""
    told = {"kind": trial.kind, "stage": trial.stage, "after": trial.after}
    hook = {} if trial.driver else {"hook": "tests.misbehaving:client", "hooking": told}
    group = Group(
        "infer",
        cases(),
        threads=trial.threads,
        parameters={"chunk": 10},
        in_process=trial.in_process,
        **hook,  # type: ignore[arg-type]
    )
    if trial.kind == "slow":
        alone = {"alone": 0.8, "apart": 0.1}
        measured = Group("alone_then_beside", cases()[:1], parameters=alone)
        others = Group("wait_then_load", cases(), parameters={"wait": 0.85})
        return Scene("trial", "slow", "", (measured, others), 2.0, judges={"slowdown": {"most": 1.5}})
    if trial.kind in ("leak", "descriptors"):
        return Scene("trial", trial.kind, "", (group,), 3.0, judges={"leak": {}}, sampling=0.04)
    return Scene("trial", trial.kind, "", (group,), seconds)


def driver_of(trial: Trial) -> str:
    kind, stage = (trial.kind, trial.stage) if trial.driver else (NONE, "execute")
    return f"{FILE}:DRIVER,kind={kind},stage={stage},after={trial.after}"


def attempt(trial: Trial, *, native: bool = False, seed: str = "0") -> tuple[Result, Evidence]:
    """Runs a trial, for longer where the machine was so busy that its moment did not come."""
    result, evidence = _attempt(trial, SECONDS, native, seed)
    if not trial.driver and trial.stage != "load" and not any(MARK in client.log for client in evidence.clients):
        result, evidence = _attempt(trial, LONG_SECONDS, native, seed)
    return result, evidence


def _attempt(trial: Trial, seconds: float, native: bool, seed: str) -> tuple[Result, Evidence]:
    scene = scene_of(trial, seconds)
    supervision = Supervision(
        scene,
        DriverSpec.parse(driver_of(trial)),
        seed=seed,
        deadline=DEADLINE,
        load_deadline=LOAD_DEADLINE,
        native=native,
    )
    evidence = supervision.run()
    return judge_run(scene, evidence), evidence


def wrong(trial: Trial, result: Result, evidence: Evidence) -> list[str]:
    """What is not as it is due; empty when all is right."""
    ending, side, causes = trial.due
    found = []
    if (result.ending, result.side) != (ending, side) or result.cause not in causes:
        is_due = f"{ending.value} of {side.value or 'nobody'} ({' or '.join(c.value for c in causes)})"
        came = f"{result.ending.value} of {result.side.value or 'nobody'} ({result.cause.value}): {result.message}"
        found.append(f"{is_due} is due, came {came}")
    if evidence.leftovers:
        found.append(f"left behind: {evidence.leftovers}")
    return found


def combinations() -> Iterator[Trial]:
    """Each kind at each stage on each side, in process and as a service, where there is such a thing."""
    for kind, stage, driver, inside in itertools.product((*KINDS, *ONLY_DRIVER), STAGES, (True, False), (False, True)):
        if kind in ONLY_DRIVER and (stage != "execute" or not driver or (inside and kind != "wrong")):
            continue
        if kind == "children" and inside and not driver:
            continue  # whose they are nobody can tell: the process that forked is the same
        yield Trial(kind, stage, driver, inside)


def drawn(count: int, seed: int, among: Sequence[Trial] | None = None) -> Iterator[Trial]:
    """Trials, every combination in turn, with the moment and the number of threads drawn."""
    rng = random.Random(seed)
    found = list(among if among is not None else combinations())
    rng.shuffle(found)
    for trial in itertools.islice(itertools.cycle(found), count):
        after = 0 if trial.stage == "load" else rng.randrange(MOST_BEFORE)
        # Which of several threads in a process wrote to its connection, or closed it, nobody can tell.
        alone = trial.kind in ("leak", "slow") or (trial.in_process and trial.kind in ("garbage", "close"))
        threads = 1 if alone else rng.choice((1, 1, 2, 3))
        yield Trial(trial.kind, trial.stage, trial.driver, trial.in_process, after, threads)
