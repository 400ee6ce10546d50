"""Misbehaving drivers and clients, each classified as what it is. `benchmarks.classification` runs a thousand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stress.result import Ending
from tests.misbehaving import KINDS, ONLY_DRIVER, STAGES
from tests.stress_trials import DEADLINE, Trial, attempt, combinations, drawn, wrong
from tests.thorough import one_in_three

# Every kind once, each stage and side several times.
CHOSEN = [
    Trial("segv", "execute"),
    Trial("segv", "query", in_process=True, threads=3),
    Trial("abort", "prepare", driver=False),
    Trial("kill", "release"),
    Trial("fpe", "load", after=0),
    Trial("exit", "execute", driver=False, in_process=True),
    Trial("overflow", "prepare", in_process=True),
    Trial("deadlock", "execute", threads=2),
    Trial("deadlock", "query", driver=False),
    Trial("livelock", "execute", in_process=True),
    Trial("stop", "execute"),
    Trial("stop", "load", driver=False, after=0),
    Trial("output", "prepare"),
    Trial("children", "execute"),
    Trial("children", "release", driver=False),
    Trial("grow", "execute"),
    Trial("close", "execute"),
    Trial("close", "prepare", driver=False),
    Trial("garbage", "query"),
    Trial("error", "load", in_process=True, after=0),
    Trial("error", "execute", driver=False),
    Trial("wrong", "execute", in_process=True),
    Trial("leak", "execute"),
    Trial("descriptors", "execute"),
    Trial("slow", "execute"),
    Trial("none", "execute", threads=2),
    Trial("none", "execute", in_process=True, threads=2),
]


@pytest.mark.parametrize("trial", one_in_three(CHOSEN), ids=lambda trial: trial.name)
def test_a_misbehaviour_is_classified(trial: Trial) -> None:
    result, evidence = attempt(trial)
    assert wrong(trial, result, evidence) == []


def test_every_kind_is_tried() -> None:
    assert {trial.kind for trial in CHOSEN} == {*KINDS, *ONLY_DRIVER, "none"}
    assert {trial.stage for trial in CHOSEN} == set(STAGES)
    found = list(combinations())
    assert len({replace(trial, after=0) for trial in found}) == len(found) > 250
    assert list(drawn(30, 1)) == list(drawn(30, 1)) != list(drawn(30, 2))


def test_a_death_comes_with_its_stack_and_signal() -> None:
    result, _ = attempt(Trial("segv", "execute"))
    assert result.exit == -11
    assert "Fatal Python error: Segmentation fault" in result.stack
    assert "execute" in result.step


def test_a_hang_comes_with_stacks_of_all_threads() -> None:
    result, evidence = attempt(Trial("deadlock", "execute"))
    assert evidence.silence is not None
    assert evidence.silence.seconds == pytest.approx(DEADLINE, abs=1.0)
    assert "misbehaving.py" in result.stack or "misbehaving.py" in result.log


def test_a_stopped_process_is_told_from_one_that_is_busy() -> None:
    result, _ = attempt(Trial("stop", "execute"))
    assert result.ending == Ending.HANG
    assert "was stopped by a signal" in result.message
    spinning, _ = attempt(Trial("livelock", "execute"))
    assert "did not go on" in spinning.message
