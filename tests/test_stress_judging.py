"""The judge of stress runs on evidence made by hand: what came first decides, and whose fault it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.verdict import Cause, Verdict
from stress.board import Count, Place, Slot
from stress.evidence import ClientEnd, DriverEnd, Evidence, Failure, Silence
from stress.judging import judge_run
from stress.records import judgement_of
from stress.result import Ending, Side
from stress.scene import HOSTILE, JUDGED, Group, Scene

GROUP = Group("infer")
SCENE = Scene("x", "y", "what happens", (GROUP,), 10.0)
COUNTS = tuple(5 if what == Count.EXECUTIONS else 0 for what in Count)
IN_DRIVER = Slot(Place.DRIVER, 5.0, 10.0, "execute of ADD", 11, counts=COUNTS)
AT_WORK = Slot(Place.SUITE, 6.0, 10.0, "draws", 12, counts=COUNTS)


def client(number: int = 0, group: Group = GROUP, **more: Any) -> ClientEnd:
    words: dict[str, Any] = {"at": 10.0, "exit": 0, "reason": "", "done": True, "slots": (IN_DRIVER,), **more}
    return ClientEnd(number, group, **words)


def evidence(*clients: ClientEnd, **more: Any) -> Evidence:
    found = Evidence(seconds=10.0, clients=list(clients), driver=DriverEnd(None, 0))
    for name, value in more.items():
        setattr(found, name, value)
    return found


def ends(found: Evidence, scene: Scene = SCENE) -> tuple[Ending, Side, Cause]:
    result = judge_run(scene, found)
    return result.ending, result.side, result.cause


def test_all_well() -> None:
    result = judge_run(SCENE, evidence(client()))
    assert result.ending == Ending.SUCCESS
    assert result.numbers["executions"] == 5
    assert result.numbers["executions_per_second"] == 0.5
    assert judgement_of(result).verdict == Verdict.PASS


def test_a_driver_that_died() -> None:
    died = DriverEnd(3.0, -11, "killed by SIGSEGV", step="execute of ADD", log="Fatal Python error: Segmentation")
    result = judge_run(SCENE, evidence(client(), driver=died))
    assert (result.ending, result.side, result.cause, result.exit) == (Ending.CRASH, Side.DRIVER, Cause.DIED, -11)
    assert "SIGSEGV during execute of ADD" in result.message
    assert "Fatal Python error" in result.stack


@pytest.mark.parametrize(("slot", "side"), [(IN_DRIVER, Side.DRIVER), (AT_WORK, Side.CLIENT)])
def test_in_process_the_place_says_whose_fault_a_death_was(slot: Slot, side: Side) -> None:
    inside = replace(GROUP, in_process=True)
    dead = client(group=inside, done=False, exit=-6, slots=(slot,))
    assert ends(evidence(dead, driver=None)) == (Ending.CRASH, side, Cause.DIED)


def test_a_trace_names_the_thread_that_died() -> None:
    """Not the one that did something last."""
    inside = replace(GROUP, in_process=True)
    later = replace(AT_WORK, since=9.0)
    log = "Fatal Python error: Aborted\n\nCurrent thread 0x0000000b (most recent call first):\n"
    dead = client(group=inside, done=False, exit=-6, slots=(IN_DRIVER, later), log=log)
    assert ends(evidence(dead, driver=None))[1] == Side.DRIVER
    assert ends(evidence(replace(dead, log=log.replace("0b", "0c")), driver=None))[1] == Side.CLIENT
    # A thread of the driver's own.
    assert ends(evidence(replace(dead, log=log.replace("0b", "ff")), driver=None))[1] == Side.DRIVER
    # A signal that came when nobody called: what the suite does is its own, and nothing else is but the driver's.
    idle = replace(IN_DRIVER, place=Place.IDLE)
    stray = replace(dead, log=log.replace("0b", "ff"), slots=(idle, replace(idle, since=9.0)))
    assert ends(evidence(stray, driver=None))[1] == Side.DRIVER
    assert ends(evidence(replace(stray, slots=(idle, later)), driver=None))[1] == Side.CLIENT


def test_a_client_of_a_service_dies_by_itself() -> None:
    assert ends(evidence(client(done=False, exit=-11))) == (Ending.CRASH, Side.CLIENT, Cause.DIED)


def test_clients_that_were_killed_by_plan_are_no_crash() -> None:
    assert ends(evidence(client(done=False, exit=-9, killed=True), client(1)))[0] == Ending.SUCCESS


def test_what_came_first_decides() -> None:
    silent = Silence(2.0, True, 0, 0, "execute", 1.0)
    first = client(1, done=False, exit=-11, at=1.0)
    assert ends(evidence(client(), first, silence=silent)) == (Ending.CRASH, Side.CLIENT, Cause.DIED)
    later = replace(first, at=3.0)
    assert ends(evidence(client(), later, silence=silent)) == (Ending.HANG, Side.DRIVER, Cause.SILENT)


def test_hostile_clients_are_nobody_s_fault() -> None:
    bad = client(1, replace(GROUP, role=HOSTILE), done=False, exit=-11)
    assert ends(evidence(client(), bad))[0] == Ending.SUCCESS


def test_wrong_answers_under_load_are_failures() -> None:
    failure = Failure(4.0, 2, 1, 17, "ADD-1", "VALUE", "execute", "output 'x' differs", b"case")
    result = judge_run(SCENE, evidence(client(), failures=[failure], failed=40))
    assert (result.ending, result.side, result.cause) == (Ending.FAILURE, Side.DRIVER, Cause.VALUE)
    assert "40 wrong answers in 5 executions" in result.message
    assert "client 2, thread 1, turn 17" in result.message
    assert result.saved == b"case"


def test_a_cause_that_nobody_knows_is_a_value() -> None:
    """A client is not trusted."""
    failure = Failure(4.0, 2, 1, 17, "ADD-1", "<script>", "execute", "x")
    assert ends(evidence(client(), failures=[failure]))[2] == Cause.VALUE


def test_the_last_question_counts() -> None:
    assert ends(evidence(client(), probe="refused"))[:2] == (Ending.FAILURE, Side.DRIVER)


def test_what_is_left_behind() -> None:
    assert ends(evidence(client(), driver=DriverEnd(None, 0, strays=50))) == (
        Ending.FAILURE, Side.DRIVER, Cause.LEFTOVERS,
    )  # fmt: skip
    assert ends(evidence(client(strays=2))) == (Ending.FAILURE, Side.CLIENT, Cause.LEFTOVERS)
    inside = client(group=replace(GROUP, in_process=True), strays=2)
    assert ends(evidence(inside, driver=None)) == (Ending.FAILURE, Side.DRIVER, Cause.LEFTOVERS)
    assert ends(evidence(client(), leftovers=["process 7"]))[0] == Ending.INTERNAL


def test_nothing_supported_is_no_success() -> None:
    none = client(slots=(Slot(),))
    result = judge_run(SCENE, evidence(none, unsupported={"GRAPH-1": "no LSTM"}))
    assert result.ending == Ending.NOT_SUPPORTED
    assert "GRAPH-1: no LSTM" in result.message
    assert judge_run(SCENE, evidence(client(), unsupported={"GRAPH-1": "no LSTM"})).ending == Ending.SUCCESS


def test_a_defect_of_the_suite_is_never_the_driver_s() -> None:
    died = DriverEnd(3.0, -11, "killed by SIGSEGV")
    assert ends(evidence(client(suite="Traceback ..."), driver=died))[0] == Ending.INTERNAL


def test_a_slowdown() -> None:
    slow = client(numbers={"alone_mean": 0.001, "beside_mean": 0.0016})
    scene = replace(SCENE, judges={"slowdown": {"most": 1.5}})
    assert ends(evidence(slow), scene) == (Ending.FAILURE, Side.DRIVER, Cause.SLOWDOWN)
    assert ends(evidence(client(numbers={"alone_mean": 0.001, "beside_mean": 0.0014})), scene)[0] == Ending.SUCCESS


def test_shortness_is_told() -> None:
    notes = judge_run(replace(SCENE, shortened=3600.0), evidence(client(), quiet=False)).notes
    assert notes[0] == "shortened: 10 s, where the public test takes 3600 s"
    assert notes[1] == "the machine was not quiet when it began"


def test_counts_are_of_the_roles_asked_for() -> None:
    found = evidence(client(), client(1, replace(GROUP, role=HOSTILE)))
    assert found.counts((JUDGED,))["executions"] == 5
    assert found.counts((JUDGED, HOSTILE))["executions"] == 10
