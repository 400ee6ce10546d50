"""Campaigns by a Dask scheduler: two workers of which one is killed, what is told where something is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.record import read_run
from nnhal.errors import UsageError
from random_graph.cases import graph_test_case
from random_graph.jobs import Check, Graph, Setting
from random_graph.plan import Plan
from random_graph.scheduling import DaskPool, _Keeper
from tests.campaign_runs import FAULTY_ADD, command, failing, failures, is_whole, names
from tests.plugin_runs import ROOT, SECONDS, until

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="needs distributed: pip install -e '.[dask]'"
)
SLOW = "faulty,inner=reference,fault=slow,seconds=0.3"


@dataclass
class Cluster:
    """A scheduler on this machine, and processes that offer it a device each."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(json.loads((self.folder / "scheduler.json").read_text())["address"])

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{len(self.processes)}.log").open("wb")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments, "--no-dashboard"], cwd=self.folder, env=environment,
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        log.close()
        self.processes.append(process)
        return process

    def scheduler(self) -> None:
        self.start("scheduler", "--host=127.0.0.1", "--port=0", "--scheduler-file=scheduler.json")
        file = self.folder / "scheduler.json"
        until(lambda: file.exists() and file.read_bytes().rstrip().endswith(b"}"))

    def worker(self, resources: str = "device=1") -> subprocess.Popen[bytes]:
        name = f"worker{len(self.processes)}"
        return self.start(
            "worker", self.address, f"--resources={resources}", "--nthreads=1", "--no-nanny", f"--name={name}",
            f"--local-directory={name}", "--host=127.0.0.1",
        )  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    found.scheduler()
    yield found
    for process in reversed(found.processes):
        process.kill()
        process.wait()


def started(runs: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(runs, *arguments), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def services_of(worker: subprocess.Popen[bytes]) -> list[int]:
    """The supervisors of the drivers that a worker has started."""
    found = []
    for path in Path(f"/proc/{worker.pid}/task").glob("*/children"):
        found += [int(word) for word in path.read_text().split()]
    return [pid for pid in found if b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def records_in(runs: Path) -> int:
    return sum(path.read_text().count('"record": "case"') for path in runs.glob("*/records.jsonl"))


@needs_dask
@pytest.mark.thorough
def test_a_worker_that_is_killed_loses_nothing(cluster: Cluster) -> None:
    workers = [cluster.worker(), cluster.worker()]
    runs = cluster.folder / "runs"
    arguments = [f"--driver={SLOW}", "--mix=single", "--count=40"]
    process = started(runs, f"--scheduler={cluster.address}", *arguments)
    until(lambda: records_in(runs) >= 6 and all(services_of(worker) for worker in workers))
    drivers = services_of(workers[0])
    workers[0].send_signal(signal.SIGKILL)  # in the middle of a batch, since there is always one more than it does
    workers[0].wait()
    at_death = records_in(runs)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert at_death < 40
    (folder,) = runs.glob("*/")
    run = read_run(folder)
    assert is_whole(run)
    assert run.counts()["PASS"] == 40
    assert "40 graphs: 40 PASS" in out
    plan = Plan((SLOW,), ("single",), 0, 40)
    assert {record.number for record in run.records.values()} == {plan.graph(place).seed for place in range(40)}  # type: ignore[union-attr]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in drivers))
    until(lambda: not services_of(workers[1]))  # a worker that lives on has let the device go


@needs_dask
@pytest.mark.thorough
def test_failures_are_minimised_by_workers_and_saved_where_the_campaign_is(cluster: Cluster) -> None:
    cluster.worker()
    runs = cluster.folder / "runs"
    (seed,) = failing(FAULTY_ADD, "small")
    asked = [f"--driver={FAULTY_ADD}", f"--graph={seed}", f"--graph={seed + 1000}"]
    process = started(runs, f"--scheduler={cluster.address}", *asked)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, err
    (folder,) = runs.glob("*/")
    assert is_whole(read_run(folder))
    for row in failures(folder):
        assert [words.split()[0] for words in row["operations"]] == ["ADD"]
        assert (folder / row["record"]["saved"]).is_file()
    assert names(read_run(folder)) == {graph_test_case("small", number).id for number in (seed, seed + 1000)}


@needs_dask
@pytest.mark.thorough
def test_a_driver_that_no_worker_can_load_is_told_in_one_sentence(cluster: Cluster) -> None:
    cluster.worker("npu=1")
    runs = cluster.folder / "runs"
    process = started(runs, f"--scheduler={cluster.address}", "--resource=npu", "--driver=nowhere")
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert err.startswith("error: driver 'nowhere' not found")
    assert not out
    assert list(runs.iterdir()) == []


@needs_dask
def test_an_address_that_is_none_is_told_in_one_sentence(tmp_path: Path) -> None:
    process = started(tmp_path, "--scheduler=nothing://here")
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert err == "error: --scheduler=nothing://here is no address; give one such as tcp://host:8786\n"


def test_a_missing_package_is_told_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"--scheduler needs the package distributed: pip install -e '\.\[dask\]'"):
        DaskPool(Setting(("reference",)), "tcp://127.0.0.1:1")


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a worker of the scheduler has version .*, the campaign 0\.0\.0"):
        _Keeper().ready(Setting(("reference",), suite="0.0.0"))


@dataclass
class Future:
    """What a scheduler gives back, done before it is asked for."""

    key: str
    status: str
    found: object

    def result(self) -> object:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Killed(Exception):
    """Stands for Dask's: every worker that ran a task ended."""


class DoneAtOnce(DaskPool):
    """A pool whose batches are answered by a function."""

    def __init__(self, answer: object) -> None:
        self._setting, self._address, self._resource = Setting(("reference",)), "tcp://here", "device"
        self._killed = Killed
        self._client = type("Client", (), {"status": "running"})()
        self.answer = answer
        self.handed: list[Sequence[object]] = []
        self._jobs = {}

    def _hand_over(self, jobs: tuple[object, ...]) -> None:
        self.handed.append(jobs)

    def come(self, jobs: tuple[Check, ...], found: object, status: str = "error") -> list[object]:
        future = Future("1", status, found)
        self._jobs["1"] = (future, jobs)
        return list(self._take(future))


def test_a_batch_that_ends_its_workers_is_taken_apart_and_the_graph_that_does_it_is_told() -> None:
    pool = DoneAtOnce(None)
    jobs = tuple(Check(Graph("small", seed)) for seed in range(3))
    assert pool.come(jobs, Killed()) == []
    assert pool.handed == [(job,) for job in jobs]
    (lost,) = pool.come(jobs[:1], Killed())
    assert lost.job == jobs[0]  # type: ignore[attr-defined]
    assert lost.reason == "every worker of the scheduler that ran it ended"  # type: ignore[attr-defined]


def test_what_a_worker_lacks_is_told_with_the_mend() -> None:
    pool = DoneAtOnce(None)
    with pytest.raises(UsageError, match=r"No module named 'random_graph'.*with PYTHONPATH naming it"):
        pool.come((Check(Graph("small", 1)),), ModuleNotFoundError("No module named 'random_graph'"))


def test_a_scheduler_that_is_gone_is_told_with_how_to_go_on() -> None:
    pool = DoneAtOnce(None)
    with pytest.raises(UsageError, match="the scheduler at tcp://here is gone; go on with --resume"):
        pool.come((Check(Graph("small", 1)),), RuntimeError("cancelled"), "cancelled")
