"""Campaigns of random graphs in a process of their own, and a pool that needs no process, for the tests of both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.judge import judge
from harness.record import Record, Run, read_run, record_of
from harness.run import run as run_case
from harness.verdict import Cause, Judgement, Verdict
from nnhal import loading
from nnhal.loading import DriverSpec
from random_graph.cases import graph_test_case
from random_graph.jobs import Answer, Check, Checked, Graph, Ready, Reduce, Reduced
from random_graph.triage import Look
from tests.plugin_runs import ROOT, SECONDS

FAULTY_ADD = "faulty,inner=reference,fault=wrong_value,operation=ADD"
SPENT = {"generation": 1.0, "oracle": 2.0, "driver": 3.0, "harness": 4.0}


def command(runs: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "random_graph", f"--runs={runs}", *arguments]


@dataclass(frozen=True)
class Ran:
    """A campaign that has ended."""

    status: int
    out: str
    err: str
    folder: Path

    @property
    def run(self) -> Run:
        return read_run(self.folder)


def campaign(runs: Path, *arguments: str) -> Ran:
    done = subprocess.run(
        command(runs, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    return Ran(done.returncode, done.stdout, done.stderr, next(iter(runs.glob("*/")), runs))


def failing(driver: str, mix: str, count: int = 1) -> list[int]:
    """The first seeds whose graphs a driver fails, found out without a campaign."""
    found: list[int] = []
    seed = 0
    while len(found) < count:
        case = graph_test_case(mix, seed)
        outcome = run_case(case, loading.load(DriverSpec.parse(driver)), in_process=True)
        if judge(case, outcome).verdict == Verdict.FAIL:
            found.append(seed)
        seed += 1
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def failures(folder: Path) -> list[dict[str, Any]]:
    path = folder / "failures.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def is_whole(run: Run) -> bool:
    """Whether each selected graph has one record, the counts add up, and the run came to its end."""
    count = Counter((row["batch"], row["number"]) for row in rows(run.folder) if row["record"] == "case")
    assert not count or max(count.values()) == 1
    return len(count) == len(run.records) == run.selected == sum(run.counts().values()) and run.complete


def names(run: Run) -> set[str]:
    return {record.id for record in run.records.values()}


# ---- without processes

READY = Ready(({},), ("",), {})


def record(graph: Graph, verdict: Verdict = Verdict.PASS, cause: Cause = Cause.NONE, **rest: Any) -> Record:
    stage = "" if verdict == Verdict.PASS else "execute"
    found = record_of(graph.unmade, Judgement(verdict, cause, stage, "something"), repeat="again")
    return replace(found, id=f"{graph.name}-123456", **rest)


def look(*operations: str, giver: str = "ADD", verdict: str = "FAIL", cause: str = "VALUE", **rest: Any) -> Look:
    values: dict[str, Any] = {"stage": "execute", "mismatch": "value"}
    return Look(verdict, cause, operation=giver, operations=tuple(sorted(operations)), **(values | rest))


class ScriptedPool:
    """Answers at once, in order.

    Args:
        judge: by graph the look at its failure; None where it passes.
        reduce: what a failing graph is minimised to: the operations that are left.
        answer: what comes of a job instead, where it is something else.
    """

    def __init__(
        self,
        judge: Callable[[Graph], Look | None] = lambda graph: None,
        reduce: Callable[[Graph], tuple[str, ...]] = lambda graph: ("ADD float32",),
        answer: Callable[[Check | Reduce], list[Answer] | None] = lambda job: None,
        room: int = 4,
    ) -> None:
        self.judge, self.smaller, self.special, self.most = judge, reduce, answer, room
        self.jobs: deque[Check | Reduce] = deque()
        self.checked: list[Graph] = []
        self.reduced: list[Graph] = []
        self.dropped = 0

    def start(self) -> Ready:
        return READY

    def size(self) -> int:
        return 2

    def room(self) -> int:
        return max(self.most - len(self.jobs), 0)

    def submit(self, jobs: Sequence[Check]) -> None:
        self.jobs += jobs

    def reduce(self, job: Reduce) -> None:
        self.jobs.append(job)

    def answers(self, seconds: float) -> list[Answer]:
        if not self.jobs:
            return []
        job = self.jobs.popleft()
        special = self.special(job)
        if special is not None:
            return special
        return [self.check(job) if isinstance(job, Check) else self.minimise(job)]

    def check(self, job: Check) -> Checked:
        self.checked.append(job.graph)
        seen = self.judge(job.graph)
        found = record(job.graph)
        if seen is not None:
            found = record(job.graph, Verdict(seen.verdict), Cause(seen.cause), repeated=seen.repeated)
        return Checked(job, (found,), (seen,), (SPENT,), (b"",))

    def minimise(self, job: Reduce) -> Reduced:
        self.reduced.append(job.graph)
        seen = self.judge(job.graph)
        assert seen is not None
        small = replace(seen, operations=self.smaller(job.graph))
        found = record(job.graph, Verdict(seen.verdict), Cause(seen.cause))
        return Reduced(job, replace(found, id=f"{job.graph.name}.minimised"), small, b"case", "dot", "listing")

    def drop_reductions(self) -> None:
        self.dropped += 1
        self.jobs = deque(job for job in self.jobs if isinstance(job, Check))

    def close(self) -> None:
        pass
