"""One driver's part of a campaign: the folder with its records, its distinct failures, and the counts."""

from __future__ import annotations

import datetime
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.environment import SUITE_VERSION, write_environment
from harness.record import Record, RecordFile, Run, read_run, record_of
from harness.session import failure_text
from harness.verdict import Cause, Judgement, Verdict
from harness.waivers import Waivers
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from random_graph.against import LOG
from random_graph.jobs import Graph, Ready, Reduced
from random_graph.plan import Plan, plan_of
from random_graph.spending import STAGES
from random_graph.triage import Distinct, Failures

RECORDS = "records.jsonl"
AHEAD = 16  # graphs by which a plan without end is ahead of what is handed out


class DriverRun:
    """A driver's records and failures.

    Attributes:
        driver: as `--driver` names it.
        counts: records by verdict, those of an earlier part included.
        spent: seconds by what they were spent on, in this part.
        failed: number of failing graphs that no waiver covers.
    """

    def __init__(self, folder: Path, driver: str, arguments: Sequence[str], waivers: Waivers) -> None:
        self.folder, self.driver, self.waivers = folder, driver, waivers
        self.counts: Counter[str] = Counter()
        self.spent = dict.fromkeys(STAGES, 0.0)
        self.failed = 0
        self.failures = Failures(folder)
        self._arguments = tuple(arguments)
        self._done: set[tuple[str, int]] = set()
        self._selected: Counter[str] = Counter()
        self._planned: Counter[str] | None = None  # of a plan that grows: what the records tell
        self._records = RecordFile(folder / RECORDS)
        self._resumed = False

    def begin(self, plan: Plan, ready: Ready, number: int, options: Sequence[str]) -> None:
        """Writes the plan and what it runs on."""
        spec = DriverSpec.parse(self.driver)
        header = {
            "driver": spec.text,
            "driver_name": spec.name,
            **plan.header(),
            "options": list(options),
            "filtered": bool(plan.graphs),
            "time": datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds"),
            "suite_version": SUITE_VERSION,
            **self.waivers.header(),
            **ready.headers[number],
        }
        self._grows(plan)
        self._records.plan(plan.selected(), header)
        write_environment(self.folder, {**ready.environment, "driver_python": spec.python or ""})

    def resume(self, plan: Plan, run: Run) -> list[tuple[Graph, Record]]:
        """Goes on with a run; gives the failures that are not counted yet.

        Raises:
            UsageError: it was begun with other waivers.
        """
        self.waivers.check_resumed(run.plan, self.folder)
        self._grows(plan)
        self._resumed = True
        uncounted = []
        mixes = {Graph(mix, 0).origin.batch: mix for mix in plan.mixes}
        for record in run.records.values():
            graph = Graph(mixes[record.batch], record.number)
            self._done.add((graph.mix, graph.seed))
            self.counts[record.verdict] += 1
            self._selected[record.batch] += 1
            reason = self.waivers.cover(record.id, record.verdict)
            failing = record.bad and not reason
            self.failed += failing
            if failing and not self.failures.knows(graph.mix, graph.seed):
                uncounted.append((graph, record))
        self._records.resume()
        return uncounted

    def _grows(self, plan: Plan) -> None:
        if plan.total is None:
            self._planned = Counter()

    @property
    def done(self) -> int:
        """Number of graphs that have a record."""
        return len(self._done)

    def has(self, graph: Graph) -> bool:
        """Whether a graph has a record."""
        return (graph.mix, graph.seed) in self._done

    def select(self, graphs: Sequence[Graph], seconds: float) -> None:
        """Notes graphs that are about to be handed out, before any of them can have a record."""
        self._selected.update(graph.origin.batch for graph in graphs)
        if self._planned is not None and any(n > self._planned[batch] for batch, n in self._selected.items()):
            self._planned = Counter({batch: n + AHEAD for batch, n in self._selected.items()})
            self._records.selected(self._planned, seconds)

    def add(self, graph: Graph, record: Record, spent: Mapping[str, float], saved: bytes) -> Record | None:
        """Records a graph, once; gives the record as it is written, None for a graph that has one."""
        if self.has(graph):
            return None
        if saved:
            file = self.folder / record.saved
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(saved)
            record = replace(record, repeat=self._repeat(file))
        record = replace(record, waiver=self.waivers.cover(record.id, record.verdict))
        self._records.case(record)
        self._done.add((graph.mix, graph.seed))
        self.counts[record.verdict] += 1
        for stage, seconds in spent.items():
            self.spent[stage] += seconds
        self.failed += record.bad and not record.waiver
        return record

    def add_lost(self, graph: Graph, reason: str, repeat: str) -> Record | None:
        """Records a graph that the suite itself did not come to an end with."""
        judgement = Judgement(Verdict.INTERNAL, Cause.SUITE, "run", reason)
        record = record_of(graph.unmade, judgement, repeat=repeat)
        return self.add(graph, replace(record, id=graph.name), {}, b"")

    def add_failure(self, graph: Graph, found: Distinct) -> bool:
        """Counts a failure that has no file of its own; says whether it is new."""
        return self.failures.add(found, graph.mix, graph.seed)

    def add_reduced(self, answer: Reduced) -> Distinct | None:
        """Counts a failure that was minimised, and saves it where it is new; gives it then."""
        file = self.folder / "failures" / f"{answer.record.id}.case"
        record = replace(answer.record, saved=f"failures/{file.name}", repeat=self._repeat(file))
        found = Distinct(record, answer.look, answer.note)
        graph = answer.job.graph
        if not self.failures.add(found, graph.mix, graph.seed):
            return None
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(answer.case)
        file.with_suffix(".dot").write_text(answer.dot, encoding="utf-8")
        words = f"{failure_text(record, self.driver, self.folder)}\n\n{answer.listing}\n"
        file.with_suffix(".txt").write_text(words, encoding="utf-8")
        return found

    def _repeat(self, file: Path) -> str:
        return shlex.join(["pytest", f"--driver={self.driver}", *self._arguments, f"--case={file}"])

    def end(self, seconds: float, rate: float, *, interrupted: bool) -> None:
        """Writes the end marker, and what a growing plan has come to.

        Args:
            seconds: of the campaign.
            rate: graphs a second.
            interrupted: it was asked to end.
        """
        if self._planned is not None:
            selected = dict.fromkeys(self._selected, 0)
            selected.update(Counter(Graph(mix, 0).origin.batch for mix, _ in self._done))
            self._records.selected(selected, seconds)
        spent = {stage: round(total, 3) for stage, total in self.spent.items()}
        more = {"interrupted": interrupted, "rate": round(rate, 3), "spent": spent, **self.waivers.ending()}
        self._records.end(self.counts, seconds, self._resumed, **more)

    def close(self) -> None:
        """Writes what is not written yet."""
        self.failures.write(soon=True)
        self._records.close()


def file_name(driver: str) -> str:
    """A driver's name as it can stand in that of a folder."""
    return re.sub(r"[^A-Za-z0-9.=-]+", "-", driver)[-80:].strip("-")


def new_folder(runs: Path, driver: str, suite: str = "graphs") -> Path:
    """A folder for a driver's run that nobody has."""
    stamp = datetime.datetime.now(tz=datetime.timezone.utc).strftime("%Y%m%dT%H%M%S")
    name = file_name(driver)
    number = 1
    while True:
        folder = runs / (f"{stamp}-{suite}-{name}" + (f"-{number}" if number > 1 else ""))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UsageError(f"--runs={runs}: {folder} cannot be made: {error.strerror}") from None
        else:
            return folder


def drop_folder(folder: Path) -> None:
    """Removes the folder of a run that did not begin; a driver's log is kept."""
    for file in (folder / RECORDS, folder / "driver.log", folder / LOG):
        if file.is_file() and not file.stat().st_size:
            file.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def read_campaign(folder: Path) -> tuple[Plan, Run]:
    """The campaign in a folder.

    Raises:
        UsageError: there is none.
    """
    run = read_run(folder)
    try:
        plan = plan_of(str(run.plan["driver"]), run.plan)
        batches = set(plan.selected())
        if any(record.batch not in batches for record in run.records.values()):
            raise ValueError("records of other cases")
        return plan, run
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"{folder} is no campaign of random graphs; go on with it by pytest --resume") from None
