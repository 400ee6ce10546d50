"""pytest --through=framework, as a user runs it: one run for all drivers, the CPU behind, deaths that are not lost."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from framework import Event, EventKind, Member, Part, Plan
from harness.case import Origin, TestCase
from harness.judge import judge
from harness.make import positive_case
from harness.record import Record, RecordFile
from harness.remarks import Remarks, remarked
from harness.run import run
from harness.session import Options, Session
from harness.through import FrameworkDriver, combined, remarks_on
from harness.verdict import Cause, Judgement, Verdict
from harness.waivers import Waivers
from nnhal.device import Capabilities
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from nnhal.types import FL8, DeviceType, ExecutionMode
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.source import SeededSource
from tests.framework_devices import network
from tests.light_driver import LightDriver
from tests.plugin_runs import LIGHT, OK, USAGE, Ran, adds_up, faulty, pytest_run, shared_run, write_driver
from tests.thorough import one_in_three

ADD, FLOOR, BROKEN = "ADD-float32-sync-drawn-0", "FLOOR-float32-sync-drawn-0", "ADD-float32-sync-broken-0"
ONLY = ("conformance/test_operations.py", "conformance/test_validation.py")
SHOWN = {
    "abort": ("CRASH", "DIED"),
    "hang": ("HANG", "SILENT"),
    "write_outside": ("FAIL", "OVERRUN"),
    "write_input": ("FAIL", "INPUT_WRITTEN"),
    "wrong_value": ("FAIL", "VALUE"),
    "value_error": ("FAIL", "UNCLEAN_ERROR"),
    "wrong_count": ("FAIL", "UNCLEAN_ERROR"),
}


# ---- one driver


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    cases = [f"--case={case}" for case in (ADD, FLOOR, BROKEN)]
    return shared_run(tmp_path_factory, "alone", f"--driver={LIGHT}", "--through=framework", *cases, *ONLY)


def test_what_the_driver_has_not_the_cpu_runs_and_the_record_says_so(alone: Ran) -> None:
    adds_up(alone.run)
    assert alone.status == OK
    assert {record.verdict for record in alone.run.records.values()} == {"PASS"}
    assert alone.run.records[ADD].numbers == {"parts": 1, f"operations on {LIGHT}": 1}
    assert alone.run.records[FLOOR].numbers == {"parts": 1, "operations on cpu": 1}
    assert alone.run.plan["driver"] == f"framework({LIGHT})"
    assert alone.run.plan["drivers"] == [LIGHT]
    assert alone.run.plan["through"] == "framework"
    assert alone.run.plan["driver_version"].startswith(f"framework of {LIGHT} (0), cpu (nncts-reference")


def test_the_line_that_repeats_a_case_says_through_what(alone: Ran) -> None:
    line = alone.run.records[ADD].repeat
    assert shlex.split(line)[:3] == ["pytest", f"--driver={LIGHT}", "--through=framework"]


# ---- drivers that do something wrong


def add_case(mode: ExecutionMode = ExecutionMode.SYNCHRONOUS) -> TestCase:
    definition = OPSET[Op.ADD]
    call = draw_call(definition, definition.signatures[0], Scope(SeededSource(3)))
    return positive_case(call, Origin("ADD", "float32", "drawn", 0), mode=mode)


def checked(text: str, folder: Path) -> Record:
    """The record of an ADD on a driver behind a framework."""
    driver = FrameworkDriver([DriverSpec.parse(text)], log_path=folder / "driver.log", deadline=2)
    options = Options("framework(x)", selection=("--driver=x", "--through=framework"))
    session = Session(driver, folder, RecordFile(folder / "records.jsonl"), Waivers([], None), options)
    try:
        return session.check(add_case())
    finally:
        session.close()


@pytest.mark.parametrize("fault", one_in_three(SHOWN))
def test_a_fault_is_found_behind_the_framework(fault: str, tmp_path: Path) -> None:
    record = checked(faulty(fault), tmp_path)
    assert (record.verdict, record.cause) == SHOWN[fault]
    assert record.repeated == "same"
    assert record.repeat.startswith("pytest --driver=x --through=framework --case=")
    if fault == "abort":
        assert "the driver's process (faulty) killed by SIGABRT during execute" in record.message
    if fault != "wrong_count":  # it never came to a partition
        assert "partition: faulty: 0" in record.notes
        drawn = (tmp_path / "partitions" / f"{record.id}.dot").read_text()
        assert 'label="part 0: faulty";' in drawn


def test_a_failure_that_the_cpu_hides_is_no_failure_and_stands_in_the_record(tmp_path: Path) -> None:
    refusing = tmp_path / "refusing.py"
    refusing.write_text(
        "from nnhal.errors import DriverError\n"
        "from tests.light_driver import LightDriver\n"
        "class DRIVER(LightDriver):\n"
        "    def prepare_model(self, *rest): raise DriverError(2, 'no memory')\n"
    )
    ran = pytest_run(tmp_path / "runs", f"--driver={refusing}:DRIVER", "--through=framework", f"--case={ADD}", *ONLY)
    record = ran.run.records[ADD]
    assert (ran.status, record.verdict) == (OK, "PASS")
    assert record.numbers["taken over by the cpu"] == 1
    assert record.notes == (
        f"{refusing}:DRIVER claimed its part and answered GENERAL_FAILURE: no memory when it was to prepare it; "
        "the CPU has it all",
    )
    assert (ran.runs[0] / "partitions" / f"{record.id}.dot").is_file()


def test_a_driver_that_does_not_say_what_it_is_fails_and_the_cpu_does_not_pass_for_it(tmp_path: Path) -> None:
    record = checked(write_driver(tmp_path, "speechless"), tmp_path)
    assert (record.verdict, record.stage) == ("FAIL", "start")
    assert "ValueError: no version" in record.message


# ---- two drivers


@pytest.mark.thorough
def test_two_drivers_are_one_run(tmp_path: Path) -> None:
    drivers = [f"--driver={LIGHT}", "--driver=reference,level=4"]
    ran = pytest_run(tmp_path, *drivers, "--through=framework", f"--case={ADD}", f"--case={FLOOR}", "-n", "2", *ONLY)
    adds = ran.run.records[ADD].numbers
    assert ran.status == OK
    assert ran.run.plan["driver"] == f"framework({LIGHT},reference,level=4)"
    assert adds in ({"parts": 1, f"operations on {LIGHT}": 1}, {"parts": 1, "operations on reference": 1})
    assert ran.run.records[FLOOR].numbers == {"parts": 1, "operations on reference": 1}


def test_a_run_through_a_framework_goes_on_as_one(tmp_path: Path) -> None:
    drivers = [f"--driver={LIGHT}", "--through=framework", f"--case={ADD}", *ONLY]
    first = pytest_run(tmp_path, *drivers)
    again = pytest_run(tmp_path, f"--resume={first.runs[0]}", *ONLY)
    assert (first.status, again.status) == (OK, OK)
    assert again.run.plan["drivers"] == [LIGHT]
    wrong = pytest_run(tmp_path, f"--resume={first.runs[0]}", "--driver=reference", *ONLY)
    assert wrong.status == USAGE
    assert f"is a run of driver framework({LIGHT})" in wrong.err


# ---- bad usage


@pytest.mark.parametrize(
    ("through", "words"),
    [
        ("litert", "--through=litert is not offered; give --through=framework, or leave it out"),
        ("nothing", "--through=nothing is unknown; give --through=framework, or leave it out"),
    ],
)
def test_another_framework_is_a_usage_error(through: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        combined([DriverSpec.parse("reference")], through)


def test_without_a_framework_drivers_are_by_themselves() -> None:
    specs = [DriverSpec.parse("reference"), DriverSpec.parse("litert")]
    assert combined(specs, None) == specs
    assert [spec.text for spec in combined(specs, "framework")] == ["framework(reference,litert)"]


# ---- what is remarked


def member(name: str) -> Member:
    return Member(name, LightDriver(), FL8, "0", DeviceType.OTHER, Capabilities())


def test_numbers_are_those_of_the_model_with_most_parts() -> None:
    model = network(1, (Op.ABS, (0,)), (Op.FLOOR, (1,)), (Op.NEG, (2,)))
    plans = [
        Plan(model, (Part(member("x"), (0, 1, 2)),)),
        Plan(model, (Part(member("x"), (0,)), Part(member("cpu"), (1, 2)))),
    ]
    found = remarks_on([Event(EventKind.PREPARED, "", "", plan) for plan in plans])
    assert found.numbers == {"parts": 2, "operations on x": 1, "operations on cpu": 2}
    assert (found.partition, found.notes, found.hidden) == ("x: 0, then cpu: 1-2", (), False)


def test_a_write_between_parts_fails_a_case_that_passed() -> None:
    found = remarks_on([Event(EventKind.OVERRUN, "x", "x: 3 bytes written outside")])
    judged = remarked(Judgement(Verdict.PASS), found)
    assert (judged.verdict, judged.cause, judged.message) == (Verdict.FAIL, Cause.OVERRUN, "x: 3 bytes written outside")
    crash = Judgement(Verdict.CRASH, Cause.DIED, "execute", "gone")
    assert remarked(crash, found).cause == Cause.DIED
    assert remarked(crash, Remarks()) is crash


# ---- isolation


def test_after_a_death_the_framework_goes_on_with_a_fresh_process(tmp_path: Path) -> None:
    driver = FrameworkDriver([DriverSpec.parse(faulty("abort") + ",after=1")], log_path=tmp_path / "driver.log")
    try:
        verdicts = []
        for mode in (ExecutionMode.SYNCHRONOUS, ExecutionMode.ASYNCHRONOUS, ExecutionMode.FENCED) * 2:
            case = add_case(mode)
            verdicts.append(judge(case, run(case, driver.device)).verdict)
        assert verdicts == [Verdict.PASS, Verdict.CRASH] * 3
    finally:
        driver.close()
