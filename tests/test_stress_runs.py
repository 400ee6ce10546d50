"""Stress as its users meet it: the command, the pytest items, resumption, bad input, what a killed run leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.process import TAG
from harness.record import read_run
from nnhal.loading import DriverSpec
from stress.__main__ import BAD, GOOD, WRONG, main
from stress.performing import get_ready, scenes_of, stand_in
from stress.presets import PRESETS
from stress.workloads import WORKLOADS, Kit
from tests.misbehaving import MisbehavingDriver
from tests.plugin_runs import LIGHT, ROOT, adds_up, pytest_run, until
from tests.stress_trials import FILE

FEW = ("parallel_inference/threads8", "client_early_termination", "driver_restart")


def command(runs: Path, *arguments: str) -> list[str]:
    return [f"--runs={runs}", "--preset=smoke", *arguments]


def only(*names: str) -> list[str]:
    return [f"--only={name}" for name in names]


def test_a_right_driver_succeeds_and_all_is_on_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, f"--driver={LIGHT}", *only(*FEW))) == GOOD
    out, err = capsys.readouterr()
    (folder,) = tmp_path.iterdir()
    adds_up(read_run(folder))
    records = read_run(folder).records
    assert {record.verdict for record in records.values()} == {"PASS"}
    threads = records["STRESS-parallel_inference-run-threads8-0"]
    assert threads.numbers["executions"] >= 8  # each of the threads has come to one at least
    assert any(note.startswith("shortened: 0.6 s, where the public test takes 1800 s") for note in threads.notes)
    assert "--only=parallel_inference/threads8 --seed=0" in threads.repeat
    killed = records["STRESS-client_early_termination-run-killed-0"]
    assert "1 of 2 clients were killed by plan" in killed.notes
    assert records["STRESS-driver_restart-run-killed-0"].numbers["recovery_seconds"] > 0
    assert "3 runs: 3 PASS" in out
    assert "runs are shorter than those of the public crash tests" in out
    assert err.count("SUCCESS") == 3
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(records)
    assert all(len(sample) == 8 for row in rows for sample in row["samples"])
    assert read_run(folder).plan["shortened"] is True


def test_a_wrong_answer_under_load_fails_with_its_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = f"{FILE}:DRIVER,kind=wrong,every=10"  # on a busy machine there are not a hundred
    assert main(command(tmp_path, f"--driver={driver}", "--for=2s", *only("multi_process_inference/killed80"))) == BAD
    (folder,) = tmp_path.iterdir()
    (record,) = read_run(folder).records.values()
    assert (record.verdict, record.cause) == ("FAIL", "VALUE")
    assert record.message.splitlines()[0].endswith("executions")
    assert "turn" in record.message
    assert (folder / record.saved).is_file()
    assert "repeat: python -m stress" in capsys.readouterr().out


def test_a_run_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = only("parallel_inference", "remnants")
    assert main(command(tmp_path, f"--driver={LIGHT}", *names)) == GOOD
    (folder,) = tmp_path.iterdir()
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"record": "end"' not in line][:2]
    (folder / "records.jsonl").write_text("".join(kept) + '{"record": "ca')
    assert not read_run(folder).complete
    assert main([f"--resume={folder}"]) == GOOD
    assert read_run(folder).complete
    assert len(read_run(folder).records) == 3
    assert capsys.readouterr().err.count("SUCCESS") == 5  # three, then the two that had no record


def test_only_what_a_driver_can_have_is_run(tmp_path: Path) -> None:
    names = only("cache_corruption", "burst_cut")
    assert main(command(tmp_path, f"--driver={LIGHT}", *names)) == GOOD
    (folder,) = tmp_path.iterdir()
    found = {record.signature: (record.verdict, record.message) for record in read_run(folder).records.values()}
    assert found["cache_corruption"] == ("NOT_APPLICABLE", "the driver does not declare caching")
    assert found["burst_cut"] == ("NOT_APPLICABLE", "the driver does not declare burst execution")


def test_a_driver_that_dies_when_it_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = f"{FILE}:DRIVER,kind=abort,stage=query"
    assert main(command(tmp_path, f"--driver={driver}", *only("remnants"))) == BAD
    (folder,) = tmp_path.iterdir()
    (record,) = read_run(folder).records.values()
    assert (record.verdict, record.stage) == ("CRASH", "driver, query")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset=shot"], "--preset=shot is unknown; there are smoke, short, mlts, night"),
        (["--only=paralel_inference"], "--only=paralel_inference is no workload; such as parallel_inference"),
        (["--only=soak/heavy"], "--only=soak/heavy is no run of it; there are light"),
        (["--for=soon"], "--for=soon is no time; write 90s, 30m, 2h or 1h30m"),
        (["--deadline=0"], "--deadline=0 is no time; give seconds above 0"),
        (["--level=9"], "--level=9 is no feature level; give 1 to 8"),
        (["--driver=nobody"], "'nobody'"),
        (["--driver-match=("], "--driver-match=( is no regular expression"),
        (["--resume=nowhere"], "nowhere holds no records*.jsonl"),
        (["--wait-quiet=-1"], "--wait-quiet=-1 is no time"),
        (["--nonsense"], "unrecognized arguments: --nonsense; see python -m stress --help"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_input_is_told_in_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments if arguments[0].startswith("--driver") else [f"--driver={LIGHT}", *arguments]
    assert main([f"--runs={tmp_path}", *given]) == WRONG
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_settings_are_those_that_are_told() -> None:
    """Without a driver the number of runs must be known."""
    kit = Kit(PRESETS["smoke"], (stand_in(),) * 3, MisbehavingDriver.traits, 8, 0)
    for found in WORKLOADS.values():
        assert tuple(scene.setting for scene in found.make(kit)) == found.settings, found.name


def test_the_public_parameters_are_those_of_the_public_tests() -> None:
    """Threads, processes, lengths and shares of the crash tests."""
    kit = Kit(PRESETS["mlts"], (stand_in(),) * 2, MisbehavingDriver.traits, 8, 0)
    scenes = {scene.name: scene for name in WORKLOADS for scene in scenes_of(WORKLOADS[name], "", kit)}
    minutes = {name: scene.seconds / 60 for name, scene in scenes.items()}
    assert minutes["inference_stress/model0"] == 60
    assert minutes["model_loading_stress/model1"] == 30
    assert (minutes["parallel_inference/threads8"], minutes["parallel_inference/threads12"]) == (30, 20)
    assert [group.threads for group in scenes["parallel_inference_in_process/threads12"].groups] == [12]
    early = scenes["client_early_termination/killed"]
    assert early.seconds == 70
    assert [early.seconds * share for share in early.groups[0].window] == [17.5, 35]
    for share, killed, length in ((0, 0, 20), (50, 3, 20), (80, 5, 20), (100, 6, 10)):
        scene = scenes[f"multi_process_model_load/killed{share}"]
        group = scene.groups[0]
        assert (group.processes, group.threads, group.killed, minutes[scene.name]) == (6, 10, killed, length)
    assert minutes["multi_process_inference/killed0"] == 30
    assert scenes["random_graph_load/ten"].groups[0].parameters["count"] == 600
    assert minutes["random_graph_execution/huge"] == 15
    assert scenes["performance_degradation/beside.loads"].judges == {"slowdown": {"most": 1.5}}
    assert all(scene.shortened is None for scene in scenes.values())


def test_models_are_looked_for_until_the_driver_does_some() -> None:
    ready = get_ready(DriverSpec.parse(LIGHT), PRESETS["smoke"], 0, 10.0)
    assert ready.trouble is None
    assert ready.kit.cases


def processes(tag: str) -> list[int]:
    """Processes that carry a mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if tag.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_killed_supervisor_leaves_nothing_and_loses_nothing(tmp_path: Path) -> None:
    arguments = command(tmp_path, f"--driver={LIGHT}", "--for=300s", *only("multi_process_inference/killed0"))
    process = subprocess.Popen(
        [sys.executable, "-m", "stress", *arguments], cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    mark = f"{TAG}={process.pid}-"
    try:
        until(lambda: len(processes(mark)) > 6)
        time.sleep(0.5)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    until(lambda: not processes(mark))
    (folder,) = tmp_path.iterdir()
    run = read_run(folder)
    assert run.selected == 1
    assert not run.complete
    assert run.counts()["NOT_RUN"] == 1
    assert not list(Path("/dev/shm").glob("*nncts*"))


def test_ctrl_c_ends_a_run_that_can_go_on(tmp_path: Path) -> None:
    arguments = command(tmp_path, f"--driver={LIGHT}", "--for=300s", *only("parallel_inference/threads8"))
    process = subprocess.Popen(
        [sys.executable, "-m", "stress", *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    mark = f"{TAG}={process.pid}-"
    until(lambda: len(processes(mark)) > 3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "go on: python -m stress --resume=" in out
    until(lambda: not processes(mark))


def test_stress_is_part_of_pytest(tmp_path: Path) -> None:
    chosen = "STRESS-remnants-*", "STRESS-cache_corruption-*", "STRESS-deadline_storm-*"
    ran = pytest_run(tmp_path, f"--driver={LIGHT}", *(f"--case={pattern}" for pattern in chosen))
    assert ran.status == 0, ran.out
    adds_up(ran.run)
    found = {record.signature: record for record in ran.run.records.values()}
    assert found["remnants"].verdict == "PASS"
    assert found["cache_corruption"].verdict == "NOT_APPLICABLE"
    assert any(note.startswith("alone: python -m stress") for note in found["remnants"].notes)
    assert found["remnants"].repeat == f"pytest --driver={LIGHT} --case=STRESS-remnants-run-pattern-0"


def test_a_failure_in_pytest_says_why(tmp_path: Path) -> None:
    ran = pytest_run(
        tmp_path, f"--driver={FILE}:DRIVER,kind=segv,after=40", "--case=STRESS-parallel_inference-run-threads8-0"
    )
    assert ran.status == 1
    (record,) = ran.run.records.values()
    assert (record.verdict, record.cause) == ("CRASH", "DIED")
    assert "killed by SIGSEGV" in ran.out
