"""Whole campaigns of random graphs in processes of their own: what they find, how they end, how they go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness.case_file import load
from harness.judge import judge
from harness.record import read_run
from harness.run import run
from harness.verdict import Verdict
from nnhal import loading
from nnhal.loading import DriverSpec
from random_graph.__main__ import main
from tests.campaign_runs import (
    FAULTY_ADD,
    Ran,
    campaign,
    command,
    failing,
    failures,
    is_whole,
    names,
)
from tests.plugin_runs import LIGHT, ROOT, SECONDS, once, until

LIGHT_ONE = f"--driver={LIGHT}"  # says of most graphs that it does not support them


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A campaign in two processes on a driver that gets ADD wrong, which two of the graphs show."""

    def compute(folder: Path) -> list[object]:
        count = failing(FAULTY_ADD, "small", 2)[-1] + 1
        ran = campaign(folder / "runs", f"--driver={FAULTY_ADD}", f"--count={count}", "--jobs=2")
        return [ran.status, ran.out, ran.err]

    folder, (status, out, err) = once(tmp_path_factory, "faulty-campaign", compute)
    return Ran(status, out, err, next((folder / "runs").glob("*/")))


def test_a_fault_in_one_kernel_is_found_and_minimised_to_that_operation(faulty: Ran) -> None:
    assert faulty.status == 1
    assert is_whole(faulty.run)
    found = failures(faulty.folder)
    assert found
    assert all(len(row["operations"]) == 1 and row["operations"][0].startswith("ADD ") for row in found)
    assert sum(row["count"] for row in found) == faulty.run.counts()["FAIL"] == 2
    for row in found:
        case = load(faulty.folder / row["record"]["saved"])
        right, wrong = (loading.load(DriverSpec.parse(text)) for text in ("reference", FAULTY_ADD))
        assert judge(case, run(case, right, in_process=True)).verdict == Verdict.PASS
        assert judge(case, run(case, wrong, in_process=True)).verdict == Verdict.FAIL


def test_the_summary_tells_each_failure_and_how_to_go_on(faulty: Ran) -> None:
    lines = faulty.out.splitlines()
    counts, number = faulty.run.counts(), faulty.run.selected
    assert lines[0] == f"{FAULTY_ADD}: {number} graphs: {counts['PASS']} PASS, {counts['FAIL']} FAIL"
    for row in failures(faulty.folder):
        assert any(line.startswith(f"{row['id']} on {FAULTY_ADD}: FAIL (VALUE) at execute") for line in lines)
        assert f"  repeat: pytest --driver={FAULTY_ADD} --case={faulty.folder}/{row['record']['saved']}" in lines
    assert f"again: python -m random_graph --driver={FAULTY_ADD} --mix=small --count={number} --seed=0" in lines
    assert any(line.startswith(f"time of {FAULTY_ADD}: generation ") for line in lines)


def test_a_graph_is_repeated_by_its_line(faulty: Ran, tmp_path: Path) -> None:
    failed = next(record for record in faulty.run.records.values() if record.verdict == "FAIL")
    words = failed.repeat.split()
    assert words[:3] == ["python", "-m", "random_graph"]
    again = campaign(tmp_path, *words[3:])
    assert again.status == 1
    assert names(again.run) == {failed.id}


def test_the_page_is_made_of_a_campaign_as_of_any_run(faulty: Ran) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reports", str(faulty.folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout.startswith(f"Failures: 2 of {faulty.run.selected} cases failed")


def test_neither_processes_nor_count_change_the_graphs(faulty: Ran, tmp_path: Path) -> None:
    alone = campaign(tmp_path, "--count=6")
    assert alone.status == 0
    assert is_whole(alone.run)
    first = {record.id for record in faulty.run.records.values() if record.number < 6}
    assert names(alone.run) == first


def test_time_ends_a_campaign_that_has_all_its_records(tmp_path: Path) -> None:
    ran = campaign(tmp_path, "--for=2s", "--mix=single", "--mix=bool8", "--seed=4")
    assert ran.status == 0
    assert is_whole(ran.run)
    counts = Counter(record.batch for record in ran.run.records.values())
    assert set(counts) == {"GRAPH-single-sync-drawn", "GRAPH-bool8-sync-drawn"}
    assert abs(counts["GRAPH-single-sync-drawn"] - counts["GRAPH-bool8-sync-drawn"]) <= 1
    assert all(record.number >= 4 * 10**9 for record in ran.run.records.values())
    again = campaign(tmp_path / "other", f"--resume={ran.folder}", "--mix=single")
    assert again.status == 2
    assert again.err.startswith(
        f"error: --mix is not that of {ran.folder}, which was begun by: python -m random_graph "
    )


def started(runs: Path, *arguments: str) -> subprocess.Popen[str]:
    """A campaign under way, in a process group of its own as a terminal makes it."""
    return subprocess.Popen(
        command(runs, *arguments), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def records_in(runs: Path) -> int:
    return sum(path.read_text().count('"record": "case"') for path in runs.glob("*/records.jsonl"))


def test_a_killed_campaign_is_incomplete_and_goes_on_with_what_is_left(tmp_path: Path) -> None:
    process = started(tmp_path, LIGHT_ONE, "--count=60", "--mix=single", "--jobs=2")
    until(lambda: records_in(tmp_path) >= 5)
    process.kill()
    process.communicate()
    (folder,) = tmp_path.glob("*/")
    killed = read_run(folder)
    assert not killed.complete
    assert killed.counts()["NOT_RUN"] == 60 - len(killed.records) > 0
    for option in ("--seed=1", "--count=61", "--mix=small", "--driver=litert", "--level=5", "--for=1h", "--deadline=3"):
        assert main([f"--resume={folder}", option]) == 2
    again = campaign(tmp_path, f"--resume={folder}", "--jobs=2", "--count=60", LIGHT_ONE)
    assert again.status == 0, again.err
    assert is_whole(read_run(folder))


def test_ctrl_c_ends_a_campaign_in_order(tmp_path: Path) -> None:
    process = started(tmp_path, LIGHT_ONE, "--for=1h", "--mix=single", "--jobs=2")
    until(lambda: records_in(tmp_path) >= 5)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted; go on: python -m random_graph --resume=" in out
    (folder,) = tmp_path.glob("*/")
    assert is_whole(read_run(folder))


def children(pid: int) -> list[int]:
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def workers(pid: int) -> list[int]:
    return [child for child in children(pid) if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_a_process_that_ends_is_replaced_and_its_graphs_are_not_lost(tmp_path: Path) -> None:
    process = started(tmp_path, LIGHT_ONE, "--count=60", "--mix=single", "--jobs=2")
    until(lambda: records_in(tmp_path) >= 5)
    os.kill(workers(process.pid)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert "60 graphs: " in out
    (folder,) = tmp_path.glob("*/")
    assert is_whole(read_run(folder))


@pytest.mark.thorough
def test_a_driver_that_dies_is_minimised_too(tmp_path: Path) -> None:
    fault = "faulty,inner=reference,fault={},operation=LOGICAL_NOT"
    (seed,) = failing(fault.format("value_error"), "bool8")
    ran = campaign(tmp_path, f"--driver={fault.format('segfault')}", "--mix=bool8", f"--graph={seed}")
    assert ran.status == 1
    assert is_whole(ran.run)
    (row,) = failures(ran.folder)
    assert (row["verdict"], row["operations"]) == ("CRASH", ["LOGICAL_NOT bool8"])


def test_a_driver_that_cannot_be_loaded_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = campaign(tmp_path, "--driver=nowhere", "--jobs=2")
    assert ran.status == 2
    assert ran.err.startswith("error: driver 'nowhere' not found; installed: ")
    assert ran.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
