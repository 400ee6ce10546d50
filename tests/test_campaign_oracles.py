"""Campaigns that hold results against something else than the reference: what is run, minimised, saved and repeated."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from harness.batch import SettledError
from harness.case import TestCase
from harness.case_file import load
from harness.driver import open_driver
from harness.judge import judge
from harness.probing import prober
from harness.record import Record
from harness.run import run
from harness.steps import Action
from harness.verdict import Cause, Verdict
from nnhal.device import CompilationConfig, PreparedModel
from nnhal.errors import DriverDied, DriverError, UsageError
from nnhal.loading import DriverSpec
from nnhal.model import Model
from nnhal.types import DeviceType, ErrorStatus, OperationType
from random_graph.__main__ import main
from random_graph.against import Against
from random_graph.campaign import NOT_IT
from random_graph.cases import Attempt, attempts, graph_test_case
from random_graph.folder import read_campaign
from random_graph.jobs import Check, Checked, Graph, Reduce, Reduced, Setting
from random_graph.oracles import equal
from random_graph.plan import Plan, plan_of
from random_graph.triage import look_at, mismatch
from random_graph.worker import ORACLE_BUDGETS, Worker, repeat_line
from reference_driver import ReferenceDevice
from tests.campaign_runs import FAULTY_ADD, campaign, failing, failures, is_whole, record
from tests.plugin_runs import LIGHT, ROOT

UNINITIALIZED = "tests/uninitialized_driver.py"
MUTE, REFUSING, ASKED = (f"{__file__}:{name}" for name in ("Mute", "Refusing", "FailingAtCast"))


class Mute(ReferenceDevice):
    """Does not say what it is."""

    def get_type(self) -> DeviceType:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "out of order")


class Refusing(ReferenceDevice):
    """Prepares nothing."""

    def prepare_model(self, model: Model, config: CompilationConfig | None = None) -> PreparedModel:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "out of order")


class FailingAtCast(ReferenceDevice):
    """Fails when it is asked about a model with CAST."""

    def get_supported_operations(self, model: Model) -> list[bool]:
        if has_cast(model):
            raise RuntimeError("no answer")
        return super().get_supported_operations(model)


# ---- what is asked for


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--oracle=equals"], "--oracle=equals is unknown; there are reference, equal, fresh"),
        (["--oracle=equal", "--against=litert"], "--oracle and --against are given"),
        (["--oracle=reference", "--against=litert"], "--oracle and --against are given"),
        (["--against=reference"], "--against=reference is the driver under test itself"),
        (["--driver=litert", "--driver=x", "--against=x"], "--against=x is the driver under test itself"),
        (["--against=,x=1"], "has no name"),
        (["--against=litert,x"], "is not key=value"),
    ],
)
def test_what_results_cannot_be_held_against_is_refused(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--runs={tmp_path / 'runs'}", *arguments]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error: ")
    assert words in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


PLAN = Plan(("litert",), ("small",), 7, 30, deadline=3.0)
EQUAL, OTHER = replace(PLAN, oracle="equal"), replace(PLAN, against="litert,resolver=reference")


@pytest.mark.parametrize(
    ("plan", "option"), [(PLAN, ""), (EQUAL, "--oracle=equal "), (OTHER, "--against=litert,resolver=reference ")]
)
def test_the_lines_that_repeat_say_what_results_are_held_against(plan: Plan, option: str) -> None:
    assert plan.command() == (
        f"python -m random_graph --driver=litert --mix=small --count=30 --seed=7 {option}--deadline=3"
    )
    line = repeat_line(plan.setting(), 0, Graph("small", 4))
    assert line == f"python -m random_graph --driver=litert {option}--deadline=3 --mix=small --graph=4"
    assert plan.setting().arguments == ("--deadline=3",)  # a saved case has it in itself
    assert plan_of("litert", plan.header()) == plan


def test_a_campaign_of_before_there_were_oracles_goes_on() -> None:
    header = {k: v for k, v in PLAN.header().items() if k not in ("oracle", "against")}
    assert plan_of("litert", header) == PLAN


# ---- campaigns


def additions(count: int = 1) -> list[int]:
    """Seeds of single graphs that a driver of ADD of float32 supports."""
    found: list[int] = []
    light = open_driver(DriverSpec.parse(LIGHT), log_path=Path("/dev/null"), in_process=True).device
    for seed in itertools.count():
        model = next(attempts("single", seed)).drawn.model
        operation = model.main.operations[0]
        if operation.type == OperationType.ADD and all(light.get_supported_operations(model)):
            found.append(seed)
        if len(found) == count:
            return found
    raise AssertionError


def worked(setting: Setting, graph: Graph) -> tuple[Record, Reduced]:
    """What a process of a campaign finds out about a graph, and makes of it."""
    worker = Worker(setting)
    try:
        checked, reduced = worker.do(Check(graph)), worker.do(Reduce(graph, 0))
    finally:
        worker.close()
    assert isinstance(checked, Checked)
    assert isinstance(reduced, Reduced)
    return checked.records[0], reduced


@pytest.mark.thorough
def test_memory_that_nobody_has_written_is_found_minimised_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ORACLE_BUDGETS, "fresh", 4)  # each starts two processes
    (seed,) = additions()
    driver = f"{ROOT / UNINITIALIZED},how=output"
    found, reduced = worked(Setting((driver,), oracle="fresh"), Graph("single", seed))
    assert (found.verdict, found.cause, found.repeated) == ("FAIL", "INCONSISTENT", "same")
    assert found.repeat == f"python -m random_graph --driver={driver} --oracle=fresh --mix=single --graph={seed}"
    assert (reduced.note, reduced.look.operations, reduced.look.mismatch) == ("", ("ADD float32",), "value")
    (tmp_path / "kept.case").write_bytes(reduced.case)
    kept = load(tmp_path / "kept.case")
    assert [step.action for step in kept.steps].count(Action.RESTART) == 2
    for how, verdict in (("output", Verdict.FAIL), ("nothing", Verdict.PASS)):
        one = open_driver(DriverSpec.parse(f"{ROOT / UNINITIALIZED},how={how}"), log_path=tmp_path / "log", spare=False)
        assert prober(one)(kept).verdict == verdict
        one.close()


def test_a_campaign_of_equal_graphs(tmp_path: Path) -> None:
    ran = campaign(tmp_path, "--oracle=equal", "--count=4", "--mix=float32")
    assert ran.status == 0, ran.out
    assert read_campaign(ran.folder)[0].oracle == "equal"
    for option in ("--oracle=fresh", "--oracle=reference", "--against=litert"):
        assert main([f"--resume={ran.folder}", option]) == 2
    assert is_whole(ran.run)
    made = [found for found in ran.run.records.values() if found.verdict == "PASS"]
    assert made
    for found in made:
        assert "; the graph in another form (" in found.detail
        assert found.id == equal(graph_test_case("float32", found.number)).id


@pytest.mark.thorough
def test_results_are_held_against_another_driver(tmp_path: Path) -> None:
    (seed,) = failing(FAULTY_ADD, "small")
    asked = [f"--driver={FAULTY_ADD}", "--driver=reference,order=reversed", "--against=reference", f"--graph={seed}"]
    ran = campaign(tmp_path, *asked)
    assert ran.status == 1, ran.err
    folders = {read_campaign(folder)[0].drivers[0]: folder for folder in tmp_path.iterdir()}
    (row,) = failures(folders[FAULTY_ADD])
    assert (row["verdict"], row["note"]) == ("FAIL", "")
    assert [words.split()[0] for words in row["operations"]] == ["ADD"]
    assert f"(ADD), {FAULTY_ADD} against reference' differs in " in row["record"]["message"]
    assert row["look"]["operation"] == "ADD"
    assert failures(folders["reference,order=reversed"]) == []
    for plan in (read_campaign(folder)[0] for folder in folders.values()):
        assert (plan.oracle, plan.against) == ("reference", "reference")
    assert {path.name for path in folders[FAULTY_ADD].iterdir()} >= {"driver.log", "against.log"}


def test_a_failure_of_the_driver_that_results_are_held_against_is_told_and_not_minimised(tmp_path: Path) -> None:
    (seed,) = additions()
    ran = campaign(tmp_path, f"--driver={LIGHT}", f"--against={REFUSING}", "--mix=single", f"--graph={seed}")
    assert ran.status == 1, ran.err
    (row,) = failures(ran.folder)
    assert (row["verdict"], row["cause"], row["note"], row["operations"]) == ("FAIL", "STATUS", NOT_IT, [])
    assert row["record"]["message"].startswith(f"{REFUSING}, against which {LIGHT} is held: prepare of a valid model ")
    again = shlex.split(row["record"]["repeat"])
    assert again[3:] == [f"--driver={LIGHT}", f"--against={REFUSING}", "--mix=single", f"--graph={seed}"]


def test_another_driver_that_cannot_be_loaded_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = campaign(tmp_path, f"--driver={LIGHT}", "--against=nowhere", "--count=3")
    assert ran.status == 2
    assert ran.err.startswith("error: driver 'nowhere' not found; installed: ")
    assert ran.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_another_driver_that_does_not_say_what_it_is_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not say what it is: .*out of order"):
        Against(LIGHT, MUTE, tmp_path / "log", in_process=True)


@pytest.mark.parametrize("error", [UsageError("it is gone"), DriverDied("was killed", "")])
def test_another_driver_that_does_not_start_again_is_no_error_of_the_suite(tmp_path: Path, error: Exception) -> None:
    class Gone:
        in_process = True

        def restart(self, fill: int | None = None) -> None:
            raise error

        def __getattr__(self, name: str) -> Any:
            raise error

    with Against(LIGHT, "reference", tmp_path / "log", in_process=True) as second:
        driver, second.driver = second.driver, Gone()
        with pytest.raises(SettledError) as settled:
            second(graph_test_case("single", 0))
        second.driver = driver
    found = settled.value.judgement
    assert (found.verdict, found.cause, found.stage) == (Verdict.CRASH, Cause.DIED, "start")
    assert "does not start again: " in found.message


# ---- failures of drivers that are asked before results are held against anything


def has_cast(model: Model) -> bool:
    return any(operation.type == OperationType.CAST for operation in model.main.operations)


@cache
def given_up() -> int:
    """The first seed of which a draw with CAST was given up, for one without."""
    for seed in itertools.count():
        given: list[Attempt] = []
        for attempt in attempts("small", seed):
            if attempt.good:
                break
            given.append(attempt)
        if any(has_cast(each.drawn.model) for each in given if each.whole) and not has_cast(attempt.drawn.model):
            return seed
    raise AssertionError


@pytest.mark.parametrize("against", ["", LIGHT])
def test_a_failure_when_asked_about_a_draw_that_says_too_little_is_minimised(
    tmp_path: Path, against: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIGHT supports nothing of it: there is no case to minimise by, and the driver fails all the same."""
    monkeypatch.setattr("random_graph.worker.open_driver", partial(open_driver, in_process=True))
    monkeypatch.setattr("random_graph.worker.BUDGET", 40)
    found, reduced = worked(Setting((ASKED,), against=against), Graph("small", given_up()))
    assert (found.verdict, found.cause, found.stage, found.repeated) == ("FAIL", "UNCLEAN_ERROR", "query", "same")
    assert (reduced.note, reduced.record.verdict, reduced.record.cause) == ("", "FAIL", "UNCLEAN_ERROR")
    assert [words.split()[0] for words in reduced.look.operations] == ["CAST"]
    (tmp_path / "kept.case").write_bytes(reduced.case)
    kept = load(tmp_path / "kept.case")
    for driver, verdict in ((FailingAtCast(), Verdict.FAIL), (ReferenceDevice(), Verdict.PASS)):
        assert judge(kept, run(kept, driver, in_process=True)).verdict == verdict


# ---- what tells such failures apart


def with_outputs(made: Callable[[TestCase], TestCase]) -> TestCase:
    """A case of a graph with several outputs."""
    for seed in itertools.count():
        case = graph_test_case("float32", seed)
        if len(case.models[0].main.output_indexes) > 2:
            return made(case)
    raise AssertionError


def test_a_look_at_graphs_that_differ_names_the_operation_of_the_first(tmp_path: Path) -> None:
    case = with_outputs(equal)
    graph, agreements = case.models[0].main, case.steps[5].expect.outputs  # type: ignore[union-attr]
    for number, agreement in enumerate(agreements):
        worst = {"output": f"output {number}", "got": 1.0, "expected": 2.0}
        found = record(Graph("float32", 0), Verdict.FAIL, Cause.INCONSISTENT, worst=worst)
        (giver,) = [o for o in graph.operations if graph.output_indexes[agreement.position] in o.outputs]
        assert look_at(case, found).operation == OperationType(giver.type).name
        assert mismatch(found) == "value"


def test_a_look_at_drivers_that_differ_names_the_operation(tmp_path: Path) -> None:
    with Against("a", "reference", tmp_path / "log", in_process=True) as second:
        held = with_outputs(second)
    graph, outputs = held.models[0].main, held.steps[2].expect.outputs  # type: ignore[union-attr]
    for due, index in zip(outputs, graph.output_indexes, strict=True):
        worst = {"output": due.name, "got": 1.0, "expected": 2.0}
        found = record(Graph("float32", 0), Verdict.FAIL, Cause.VALUE, worst=worst)
        (giver,) = [o for o in graph.operations if index in o.outputs]
        for case in (held, with_outputs(lambda case: case)):  # a campaign that goes on has the reference's case
            assert look_at(case, found).operation == OperationType(giver.type).name


def test_a_process_that_is_told_nothing_holds_results_against_the_reference() -> None:
    assert Setting(("x",)).graph_arguments == ()
