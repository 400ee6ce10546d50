"""pytest with the suite's plugin, as a user runs it: exit statuses, totals, repetitions, and runs that were cut off."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drivers.faulty import FAULTS
from harness.case_file import load
from harness.record import read_run
from tests.plugin_runs import (
    FAILED,
    OK,
    ROOT,
    SECONDS,
    USAGE,
    Ran,
    adds_up,
    command,
    faulty,
    pytest_run,
    shared_run,
    until,
    verdicts,
    write_driver,
)


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Writes a driver file and gives what to say after `--driver=`."""
    folder = tmp_path_factory.mktemp("drivers")
    return lambda name: write_driver(folder, name)


# ---- drivers that do something wrong

POSITIVE, NEGATIVE = "ADD-float32-sync-drawn-0", "ADD-float32-sync-broken-0"
SHOWN = (
    "abort", "hang", "write_outside", "write_input", "wrong_shape", "wrong_value", "no_output", "lie_timing",
    "value_error", "refuse_all", "accept_all", "wrong_count",
)  # fmt: skip


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run over a driver for each fault."""
    options = [f"--driver={faulty(fault)}" for fault in SHOWN]
    cases = [f"--case={POSITIVE}", f"--case={NEGATIVE}"]
    return shared_run(tmp_path_factory, "wrong", *options, *cases, "--deadline=2")


@pytest.mark.parametrize("fault", SHOWN)
def test_each_fault_has_its_verdict_and_cause_and_the_run_goes_on(wrong: Ran, fault: str) -> None:
    run = wrong.of(faulty(fault))
    adds_up(run)
    positive, negative = run.records[POSITIVE], run.records[NEGATIVE]
    if fault == "accept_all":
        assert (positive.verdict, negative.verdict, negative.cause) == ("PASS", "FAIL", "ACCEPTED")
        return
    assert (positive.verdict, positive.cause) == (FAULTS[fault].verdict, FAULTS[fault].cause)
    assert positive.message
    expected = {"refuse_all": ("FAIL", "REFUSED"), "wrong_count": ("FAIL", "MALFORMED")}
    assert (negative.verdict, negative.cause) == expected.get(fault, ("PASS", ""))


def test_several_drivers_have_a_folder_each_and_fail_the_run(wrong: Ran) -> None:
    assert wrong.status == FAILED
    assert len(wrong.runs) == len(SHOWN)
    assert wrong.err == ""
    for fault in SHOWN:
        assert f"nncts: {faulty(fault)}" in wrong.out
        assert f"test_operation[{faulty(fault)}:ADD-float32-sync-drawn]" in wrong.out or fault == "accept_all"


def test_a_failure_says_what_where_and_how_to_repeat_it(wrong: Ran) -> None:
    record = wrong.of(faulty("wrong_value")).records[POSITIVE]
    for words in (
        f"{record.id} on {faulty('wrong_value')}: FAIL (VALUE) at execute",
        "output 'output' differs in 1 of",
        "operands: a: TENSOR_FLOAT32[",
        f"repeat: {record.repeat}",
    ):
        assert words in wrong.out
    assert "Traceback" not in wrong.out.split("fault=value_error")[0]


def test_a_death_leaves_the_end_of_the_log(wrong: Ran) -> None:
    run = wrong.of(faulty("abort"))
    assert "Fatal Python error: Aborted" in run.records[POSITIVE].log
    assert "Fatal Python error: Aborted" in (run.folder / "driver.log").read_text()


def test_the_line_that_repeats_a_case_selects_it_alone(wrong: Ran, tmp_path: Path) -> None:
    record = wrong.of(faulty("wrong_shape")).records[POSITIVE]
    program, *arguments = shlex.split(record.repeat)
    assert program == "pytest"
    again = pytest_run(tmp_path, *arguments)
    assert again.status == FAILED
    adds_up(again.run)
    (found,) = again.run.records.values()
    assert (found.id, found.verdict, found.cause, found.message) == (
        record.id, record.verdict, record.cause, record.message
    )  # fmt: skip


def test_a_saved_failure_is_replayed_from_its_file(wrong: Ran, tmp_path: Path) -> None:
    run = wrong.of(faulty("wrong_value"))
    file = run.folder / run.records[POSITIVE].saved
    assert load(file).id == run.records[POSITIVE].id
    ran = pytest_run(tmp_path, "--driver=reference", f"--driver={faulty('wrong_value')}", f"--case={file}")
    assert ran.status == FAILED
    assert verdicts(ran.of("reference")) == {load(file).id: "PASS"}
    failed = ran.of(faulty("wrong_value"))
    adds_up(failed)
    assert failed.records[POSITIVE].verdict == "FAIL"
    assert failed.records[POSITIVE].repeat.endswith(f"--case={file}")


def test_what_does_not_repeat_is_flaky(drivers: Callable[[str], str], tmp_path: Path) -> None:
    ran = pytest_run(tmp_path, f"--driver={drivers('once')}", "--case=ADD-float32-sync-drawn-[012]")
    assert ran.status == FAILED
    adds_up(ran.run)
    assert [r.verdict for r in ran.run.records.values()] == ["FLAKY", "PASS", "PASS"]
    assert ran.run.records[POSITIVE].repeated == "differs"


def test_a_driver_that_fails_only_behind_others_is_caught_with_the_sequence(tmp_path: Path) -> None:
    driver = f"{faulty('wrong_value')},after=1"
    ran = pytest_run(tmp_path / "first", f"--driver={driver}", "--case=ADD-float32-sync-drawn-[01]")
    adds_up(ran.run)
    record = ran.run.records["ADD-float32-sync-drawn-1"]
    assert (record.verdict, record.repeated) == ("FAIL", "sequence")
    again = pytest_run(tmp_path / "second", *shlex.split(record.repeat)[1:])
    assert again.status == FAILED
    adds_up(again.run)
    assert [r.kind for r in again.run.records.values()] == ["drawn.sequence2"]


# ---- runs that end well

PLAIN = ("--case=ADD-float32-sync-example-0", "--case=ADD-float32-sync-drawn-[0-9]")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The reference driver, isolated; no driver is named."""
    return shared_run(tmp_path_factory, "plain", *PLAIN)


def test_a_run_without_failures_ends_with_0(plain: Ran) -> None:
    assert plain.status == OK
    adds_up(plain.run)
    assert set(verdicts(plain.run).values()) == {"PASS"}
    assert plain.run.plan["filtered"] is True
    assert plain.run.environment["python"]
    assert plain.run.plan["driver"] == "reference"
    assert "11 cases: 11 PASS" in plain.out
    assert all(record.sample["rss"] > 0 for record in plain.run.records.values())


def test_in_this_process_the_results_are_the_same(plain: Ran, tmp_path: Path) -> None:
    ran = pytest_run(tmp_path, *PLAIN, "--in-process")
    assert ran.status == OK
    adds_up(ran.run)
    assert verdicts(ran.run) == verdicts(plain.run)
    assert "--in-process" in ran.run.plan["options"]


def test_in_this_process_an_exception_is_the_driver_s(tmp_path: Path) -> None:
    ran = pytest_run(
        tmp_path, f"--driver={faulty('value_error')}", f"--driver={faulty('write_outside')}", "--in-process",
        f"--case={POSITIVE}", f"--case={NEGATIVE}",
    )  # fmt: skip
    assert ran.status == FAILED
    for fault in ("value_error", "write_outside"):
        run = ran.of(faulty(fault))
        adds_up(run)
        assert run.records[POSITIVE].cause == FAULTS[fault].cause
        assert run.records[NEGATIVE].verdict == "PASS"


def test_nothing_supported_is_no_failure_and_no_pass(drivers: Callable[[str], str], tmp_path: Path) -> None:
    ran = pytest_run(tmp_path, f"--driver={drivers('nothing')}", "--in-process", "--case=ADD-float32-sync-drawn-*")
    assert ran.status == OK
    adds_up(ran.run)
    assert set(verdicts(ran.run).values()) == {"NOT_SUPPORTED"}
    assert {record.message for record in ran.run.records.values()} == {"nothing is"}
    assert "1 skipped" in ran.out


def test_a_driver_that_does_not_say_what_it_is(drivers: Callable[[str], str], tmp_path: Path) -> None:
    ran = pytest_run(tmp_path, f"--driver={drivers('speechless')}", "--case=ADD-float32-sync-drawn-[01]")
    assert ran.status == FAILED
    adds_up(ran.run)
    for record in ran.run.records.values():
        assert (record.verdict, record.cause, record.stage) == ("FAIL", "UNCLEAN_ERROR", "start")
        assert record.message == "the driver does not say what it is: ValueError: no version"


@pytest.mark.thorough
def test_poor_arithmetic_fails_only_when_asked(drivers: Callable[[str], str], tmp_path: Path) -> None:
    options = (f"--driver={drivers('coarse')}", "--in-process", "--case=ADD-quant8_asymm-sync-drawn-*")
    ran = pytest_run(tmp_path / "first", *options)
    assert ran.status == OK
    assert set(verdicts(ran.run).values()) == {"PASS", "POOR"}
    strict = pytest_run(tmp_path / "second", *options, "--fail-poor")
    assert strict.status == FAILED
    assert verdicts(strict.run) == verdicts(ran.run)
    assert "POOR (QUALITY) at execute" in strict.out


# ---- waivers and workers

WAIVERS = """
[[waiver]]
cases = "ADD-float32-sync-drawn-*"
reason = "the middle element is wrong"

[[waiver]]
cases = "ADD-float32-sync-example-*"
reason = "the middle element is wrong"
"""


@pytest.fixture(scope="module")
def waivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("waivers") / "waivers.toml"
    path.write_text(WAIVERS)
    return path


FEW = ("--case=ADD-float32-sync-example-0", "--case=ADD-float32-sync-drawn-[0-3]", f"--case={NEGATIVE}")


def test_waived_failures_do_not_fail_the_run(waivers: Path, tmp_path: Path) -> None:
    ran = pytest_run(tmp_path, f"--driver={faulty('wrong_value')}", *FEW, f"--waivers={waivers}", "--in-process")
    assert ran.status == OK
    adds_up(ran.run)
    assert ran.run.counts()["FAIL"] == 5
    assert {r.waiver for r in ran.run.records.values() if r.bad} == {"the middle element is wrong"}


def test_a_waiver_that_covers_nothing_fails_the_run(waivers: Path, tmp_path: Path) -> None:
    ran = pytest_run(tmp_path, *FEW, f"--waivers={waivers}", "--in-process")
    assert ran.status == FAILED
    assert ran.run.counts()["FAIL"] == 0
    assert ran.out.count("covers nothing: nothing that it names fails; delete it") == 2


def test_a_waiver_counts_over_all_drivers_of_a_run(waivers: Path, tmp_path: Path) -> None:
    ran = pytest_run(
        tmp_path,
        f"--driver={faulty('wrong_value')}",
        "--driver=reference",
        *FEW,
        f"--waivers={waivers}",
        "--in-process",
    )
    assert ran.status == OK


@pytest.mark.thorough
def test_workers_give_the_same_totals_and_share_a_folder(waivers: Path, tmp_path: Path) -> None:
    options = (f"--driver={faulty('wrong_value')}", *FEW, f"--waivers={waivers}")
    one = pytest_run(tmp_path / "one", *options, "--in-process")
    two = pytest_run(tmp_path / "two", *options, "-n", "2")
    assert (one.status, two.status) == (OK, OK)
    assert verdicts(one.run) == verdicts(two.run)
    assert one.run.counts() == two.run.counts()
    assert two.run.complete
    assert two.run.selected == one.run.selected
    assert len(list(two.run.folder.glob("records-gw*.jsonl"))) == 2
    assert f"{two.run.selected} cases: 1 PASS, 5 FAIL" in two.out


@pytest.mark.thorough
def test_workers_do_not_make_a_sentence_a_crash(tmp_path: Path) -> None:
    for option, words in (("--driver=nosuch", "driver 'nosuch' not found"), ("--case=NOSUCH-*", "no case matches")):
        ran = pytest_run(tmp_path, option, "-n", "2")
        assert ran.status == USAGE
        assert words in ran.out + ran.err
        assert "Traceback" not in ran.out + ran.err


# ---- runs that are cut off


@pytest.fixture
def killed(drivers: Callable[[str], str], tmp_path: Path) -> Iterator[Path]:
    """The folder of a run whose pytest was killed while the driver was silent."""
    driver = drivers("stalls")
    marker = Path(driver.rpartition("/")[0]) / "stalls.marker"
    marker.unlink(missing_ok=True)
    started = subprocess.Popen(
        command(tmp_path, f"--driver={driver}", *PLAIN, "--deadline=60"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: sum(len(p.read_text().splitlines()) for p in tmp_path.glob("*/records.jsonl")) >= 4)
        noted = marker.parent / f"{marker.name}.pid"
        until(lambda: noted.exists() and noted.read_text() != "")
        pid = int(noted.read_text())
    finally:
        started.kill()
        started.wait()
    until(lambda: not Path(f"/proc/{pid}").exists())  # the driver does not outlive the suite
    (folder,) = tmp_path.glob("*/")
    yield folder
    marker.unlink(missing_ok=True)


def test_a_killed_run_is_read_reported_and_finished(killed: Path, drivers: Callable[[str], str]) -> None:
    run = read_run(killed)
    assert not run.complete
    assert not run.ended
    assert len(run.records) == 3
    assert run.selected == 11
    assert sum(run.counts().values()) == run.selected
    assert run.counts()["NOT_RUN"] == 8

    pages = subprocess.run(
        [sys.executable, "-m", "reports", str(killed)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert pages.returncode == FAILED, pages.stderr
    assert "INCOMPLETE: 3 of 11 cases" in (killed / "report.html").read_text()

    with (killed / "records.jsonl").open("a") as file:
        file.write('{"record": "case", "id": "ADD-fl')  # as a kill in the middle of a line would leave it
    marker = Path(drivers("stalls").rpartition("/")[0]) / "stalls.marker"
    marker.touch()
    ran = pytest_run(killed.parent, f"--resume={killed}")
    assert ran.status == OK
    assert ran.runs == (killed,)
    assert ran.run.complete
    assert ran.run.damaged == 1
    assert ran.run.counts()["PASS"] == 11
    lines = [line for line in (killed / "records.jsonl").read_text().splitlines() if '"verdict"' in line]
    assert len(lines) == 11  # nothing was run again
    assert "INCOMPLETE" not in (killed / "report.html").read_text()


def test_a_run_that_stops_at_the_first_failure_is_incomplete(tmp_path: Path) -> None:
    options = (f"--driver={faulty('wrong_value')}", "--in-process", *FEW)
    ran = pytest_run(tmp_path, *options, "-x")
    assert ran.status == FAILED
    assert not ran.run.complete
    assert ran.run.counts()["NOT_RUN"] > 0
    assert sum(ran.run.counts().values()) == ran.run.selected
    again = pytest_run(tmp_path, f"--resume={ran.runs[0]}", "--in-process")
    assert again.status == FAILED  # what failed before fails the run
    assert again.run.complete
    assert again.run.selected == 6


def test_an_interrupted_run_is_incomplete(drivers: Callable[[str], str], tmp_path: Path) -> None:
    started = subprocess.Popen(
        command(tmp_path, f"--driver={faulty('slow')},seconds=30", f"--case={POSITIVE}", "--deadline=60"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until(lambda: any(tmp_path.glob("*/records.jsonl")))
    time.sleep(0.3)
    os.kill(started.pid, signal.SIGINT)
    started.communicate(timeout=SECONDS)
    assert started.returncode == int(pytest.ExitCode.INTERRUPTED)
    (folder,) = tmp_path.glob("*/")
    assert not read_run(folder).ended
