"""Minimising with drivers of every conduct, within a budget, and by command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.case import TestCase
from harness.case_file import load, save
from harness.driver import InProcessDriver, open_driver
from harness.judge import judge
from harness.make import graph_case, positive_case
from harness.minimize import Progress, main, minimize, prober
from harness.run import run
from harness.verdict import Cause, Judgement, Verdict
from nnhal.device import Device
from nnhal.errors import DriverDied, SuiteError, UsageError
from nnhal.loading import DriverSpec
from nnhal.types import ExecutionMode
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.branch_examples import graph_of
from opset.examples import from_example
from opset.graph import model_of
from opset.values import BASELINE
from reference_driver import ReferenceDevice
from tests.minimising import (
    ORIGIN,
    Tried,
    answers,
    codes_of,
    computed,
    convolved,
    graphs,
    line_of,
    negated,
    sizes,
    tensor,
    tried,
)

# --- drivers in their own processes -----------------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], object]]:
    monkeypatch.chdir(Path(__file__).parents[1])
    running = []

    def start(text: str, deadline: float = 10.0) -> object:
        running.append(
            open_driver(DriverSpec.parse(text), log_path=tmp_path / "driver.log", deadline=deadline, spare=True)
        )
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.mark.parametrize(
    ("fault", "verdict"), [("abort", Verdict.CRASH), ("value_error", Verdict.FAIL), ("wrong_value", Verdict.FAIL)]
)
def test_isolated_drivers(driver, fault: str, verdict: Verdict) -> None:
    found = minimize(line_of(Op.ABS, Op.RELU, Op.NEG), prober(driver(f"faulty,fault={fault},operation=RELU")))
    assert found.judgement.verdict == verdict
    assert sizes(found) == ([Op.RELU], 1)


@pytest.mark.thorough
def test_a_hang(driver) -> None:
    probe = prober(driver("faulty,fault=hang,operation=LOGISTIC", 1.0))
    found = minimize(line_of(Op.ABS, Op.LOGISTIC), probe, confirm=probe.patient)
    assert found.judgement.verdict == Verdict.HANG
    assert sizes(found) == ([Op.LOGISTIC], 1)
    assert probe.hurried


@pytest.mark.parametrize("mode", ExecutionMode)
def test_silence_is_no_crash_in_any_mode(driver, mode: ExecutionMode) -> None:
    """What is let go behind it, such as a burst, finds the driver dead, which must not hide why."""
    case = line_of(Op.RELU)
    silent = driver("faulty,fault=hang,operation=RELU", 0.5)
    found = prober(silent)(replace(case, steps=(*case.steps[:-1], replace(case.steps[-1], mode=mode))))
    assert (found.verdict, found.cause) == (Verdict.HANG, Cause.SILENT), found.message


def test_a_driver_in_this_process() -> None:
    driver = InProcessDriver(DriverSpec.parse("faulty,fault=wrong_value,operation=ABS"))
    assert sizes(minimize(convolved(), prober(driver))) == ([Op.ABS], 1)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (UsageError("driver 'x' could not be loaded"), Verdict.CRASH),
        (DriverDied("killed by SIGKILL"), Verdict.CRASH),
        (SuiteError("a defect"), Verdict.INTERNAL),
        (ZeroDivisionError("another defect"), Verdict.INTERNAL),
    ],
)
def test_a_driver_that_cannot_be_asked(error: Exception, verdict: Verdict) -> None:
    class Gone(InProcessDriver):
        def restart(self, fill: int | None = None) -> None:
            raise UsageError("driver 'x' could not be loaded")

        @property
        def device(self) -> Device:
            raise error

        @device.setter
        def device(self, value: Device) -> None:
            """There is none."""

    probe = prober(Gone(DriverSpec.parse("reference")))
    assert probe(convolved()).verdict == verdict
    assert probe.patient(convolved()).verdict == Verdict.CRASH
    found = minimize(convolved(), probe)
    assert found.probes == (1 if verdict == Verdict.INTERNAL else found.probes)
    assert found.judgement.verdict == verdict


# --- haste, budgets, and cases that cannot be minimised ---------------------------------------------------------------


def slow(least: int) -> Callable[[TestCase], Judgement]:
    """Silent where a model has so many operations."""

    def judged(case: TestCase) -> Judgement:
        silent = len(codes_of(case.models[0])) >= least
        return Judgement(Verdict.HANG, Cause.SILENT, "execute") if silent else Judgement(Verdict.PASS)

    return judged


def test_what_is_only_slow_is_no_hang() -> None:
    """The smallest case that hangs with all the time that a driver has."""
    hasty = minimize(convolved(), Tried(slow(1)))
    assert len(sizes(hasty)[0]) == 1
    found = minimize(convolved(), Tried(slow(1)), confirm=slow(3))
    assert 3 <= len(codes_of(found.case.models[0])) < 6
    assert found.probes > hasty.probes


def test_budget() -> None:
    case, fails = graphs(Op.CONV_2D, "float32")[0], tried(negated(Op.CONV_2D))
    shown: list[Progress] = []
    found = minimize(case, fails, budget=3, progress=shown.append)
    assert found.exhausted
    assert found.probes == 3 == len(fails.cases)
    assert [now.probes for now in shown] == [2, 3]
    assert (shown[1].budget, shown[1].operations) == (3, found.operations[1])
    whole = minimize(case, fails, progress=shown.append)
    assert whole.elements[1] <= found.elements[1]
    assert {now.stage for now in shown} >= {"operations", "shapes"}


def test_a_case_that_does_not_fail() -> None:
    case = convolved()
    found = minimize(case, Tried(lambda case: answers(case, computed(case))))
    assert (found.case, found.probes, found.fails) == (case, 1, False)
    assert "does not fail: PASS" in found.note


def test_cases_of_another_kind() -> None:
    case = convolved()
    failed = Judgement(Verdict.FAIL, Cause.VALUE, "execute")
    twice = replace(case, steps=(*case.steps, case.steps[2]))
    found = minimize(twice, lambda case: failed)
    assert (found.case, found.probes) == (twice, 1)
    assert "query, prepare, execute, execute" in found.note


def test_a_case_that_fails_only_as_it_was_made() -> None:
    """Poor arithmetic is seen in single operations alone: nothing of a graph's case is held to it."""
    call, _ = from_example(OPSET[Op.ADD], OPSET[Op.ADD].examples[0])
    case = positive_case(call, ORIGIN)
    poor = Judgement(Verdict.POOR, Cause.QUALITY, "execute")
    found = minimize(case, lambda asked: poor if asked is case else Judgement(Verdict.PASS))
    assert (found.case, found.probes) == (case, 2)
    assert "made again it does not fail alike: PASS" in found.note


def test_more_is_never_asked_of_a_driver() -> None:
    """Neither a higher level nor open sizes."""
    for case in graphs(Op.TRANSPOSE, "float32")[:2]:
        fails = tried(negated(Op.TRANSPOSE))
        minimize(case, fails)
        assert all(asked.level <= case.level and set(asked.needs) <= set(case.needs) for asked in fails.cases)


def test_open_sizes_are_declared_where_that_does_not_matter() -> None:
    call, _ = from_example(OPSET[Op.ADD], OPSET[Op.ADD].examples[0])
    open_ = {name: replace(a, declared=(0,) * a.rank) for name, a in call.results.items()}
    model, values = model_of(replace(call, results=open_))
    case = graph_case(model, values, ORIGIN)
    assert case.needs == ("dynamic_shapes",)
    assert minimize(case, tried(negated(Op.ADD))).case.needs == ()

    def opened(asked: TestCase) -> Judgement:
        return answers(asked, computed(asked, negated(Op.ADD) if asked.needs else BASELINE))

    assert minimize(case, Tried(opened)).case.needs == ("dynamic_shapes",)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(convolved(), tmp_path / "found.case")
    return tmp_path / "found.case"


def test_command(saved: Path, capsys) -> None:
    spec = "--driver=faulty,fault=wrong_value,operation=LOGISTIC"
    assert main([str(saved), spec, "--in-process"]) == 0
    out = saved.with_name("found.minimised.case")
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == str(out)
    assert "LOGISTIC(input=%0)" in text
    assert "left: 1 of 6 operations, 1 of 28 elements" in text
    assert f"repeat: pytest {spec} --case={out}" in text
    case = load(out)
    outcome = run(case, InProcessDriver(DriverSpec.parse(spec.removeprefix("--driver="))).device, in_process=True)
    assert judge(case, outcome).verdict == Verdict.FAIL
    assert judge(case, run(case, ReferenceDevice(), in_process=True)).verdict == Verdict.PASS


def test_command_with_a_place_to_write(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere" / "small.case"
    spec = "--driver=faulty,fault=wrong_value,operation=LOGISTIC"
    assert main([str(saved), spec, "--in-process", f"--out={out}"]) == 0
    assert len(load(out).models[0].main.operations) == 1


def test_command_on_a_driver_that_is_right(saved: Path, capsys) -> None:
    assert main([str(saved), "--driver=reference", "--in-process"]) == 1
    assert "nothing to make smaller, since it does not fail: PASS" in capsys.readouterr().out
    assert not saved.with_name("found.minimised.case").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no.case"], "no.case"),
        (["--driver=no_such_driver"], "no_such_driver"),
        (["--budget=0"], "--budget=0 is no number of times"),
        (["--deadline=-1"], "--deadline=-1 is no time"),
        (["--level=9"], "--level=9 is no feature level"),
        (["--out=/dev/null/small.case"], "/dev/null cannot be written or read"),
        (["--out=/"], "/ cannot be written; give another --out=FILE"),
        (["--surprise"], "see python -m harness.minimize --help"),
    ],
)
def test_wrong_input(saved: Path, capsys, arguments: list[str], words: str) -> None:
    given = arguments if arguments == ["no.case"] else [str(saved), *arguments]
    assert main([*given, "--in-process"]) == 2
    text = capsys.readouterr().err
    assert words in text
    assert len(text.strip().splitlines()) == 1


def test_files_of_another_kind(tmp_path: Path, capsys) -> None:
    case = convolved()
    save(replace(case, steps=case.steps[:2]), tmp_path / "short.case")
    assert main([str(tmp_path / "short.case")]) == 2
    assert "cannot be minimised: the case is to query, prepare" in capsys.readouterr().err


def test_a_level_that_is_too_low(saved: Path, capsys) -> None:
    case = load(saved)
    save(replace(case, level=max(type(case.level))), saved)
    assert main([str(saved), "--driver=reference", "--level=4", "--in-process"]) == 2
    assert "needs level FL8; the driver is asked at 1.3" in capsys.readouterr().err


READS_ON = """
import ctypes

import numpy as np

from reference_driver import ReferenceDevice
from reference_driver.execution import ReferencePreparedModel


class Prepared(ReferencePreparedModel):
    def execute_synchronously(self, request, *rest):
        if any(operation.type == 19 for operation in self.model.main.operations):  # RELU
            place = request.inputs[0].location
            pool = np.frombuffer(request.pools[place.pool_index].view(), np.uint8)
            ctypes.string_at(pool.ctypes.data + place.offset + place.length, 1)
        return super().execute_synchronously(request, *rest)


class Driver(ReferenceDevice):
    def prepare_model(self, model, *rest):
        made = super().prepare_model(model, *rest)
        made.__class__ = Prepared
        return made
"""


def test_command_on_a_driver_that_reads_behind_an_input(tmp_path: Path, capsys, monkeypatch) -> None:
    """Only between inaccessible pages does it show, where the input fills whole units of 64 bytes."""
    monkeypatch.chdir(Path(__file__).parents[1])
    (tmp_path / "reading.py").write_text(READS_ON)
    line = tensor(16)
    model = graph_of([line], [(Op.ABS, (0,), line, False), (Op.RELU, (1,), line, True)]).model
    save(graph_case(model, [np.ones(16, np.float32)], ORIGIN), tmp_path / "found.case")
    assert main([str(tmp_path / "found.case"), f"--driver={tmp_path / 'reading.py'}:Driver"]) == 0
    text = capsys.readouterr().out
    assert "CRASH (DIED) at execute" in text
    assert "input %0: TENSOR_FLOAT32[16] = 0 everywhere" in text
    assert "RELU(input=%0)" in text
    assert "ABS" not in text
