"""What a process of a campaign does: makes graphs, checks them with each driver, minimises what fails."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.batch import Batch
from harness.case import TestCase
from harness.case_file import save
from harness.driver import Driver, DriverFacts, open_driver
from harness.listing import listing
from harness.minimize import minimize, prober
from harness.option_values import level_of, memory_of
from harness.record import Record, RecordFile, record_of
from harness.searching import alike
from harness.session import Options, Session, facts_header
from harness.verdict import BAD, Judgement, Verdict
from harness.waivers import load_waivers
from nnhal.graph_dump import to_dot
from nnhal.loading import DriverSpec
from random_graph import cases
from random_graph.jobs import Answer, Check, Checked, Graph, Job, Lost, Ready, Reduce, Reduced, Setting
from random_graph.spending import DRIVER, GENERATION, HARNESS, ORACLE, take_spent
from random_graph.triage import Look, look_at

BUDGET = 400  # times that a driver is asked while a failure is minimised
BUDGETS = {Verdict.HANG: 40, Verdict.CRASH: 120}  # the same where each time costs a wait or a process
NOT_AGAIN = "it did not fail again when it was to be minimised"
NOT_SMALLER = "what was left of it after minimising did not fail in a fresh process"


_Found = tuple[Record, Look | None, Mapping[str, float], bytes]


class _Unwritten(RecordFile):
    """Records go to the campaign, which writes them."""

    def __init__(self) -> None:
        """No file is opened."""

    def case(self, record: Record) -> None:
        """Left to the campaign."""

    def close(self) -> None:
        """Nothing is open."""


class Worker:
    """Drivers in processes of their own, and what is to be done with them.

    Raises:
        UsageError: a driver cannot be loaded.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._folder = tempfile.TemporaryDirectory(prefix="nncts-")
        self._drivers: list[Driver] = []
        self._sessions: list[Session] = []
        self._made: tuple[Graph, TestCase] | None = None
        try:
            for number, text in enumerate(setting.drivers):
                self._sessions.append(self._open(number, DriverSpec.parse(text)))
        except BaseException:
            self.close()
            raise

    def _open(self, number: int, spec: DriverSpec) -> Session:
        setting, folder = self.setting, Path(self._folder.name) / str(number)
        folder.mkdir()
        driver = open_driver(
            spec,
            log_path=Path(setting.logs[number]) if setting.logs else folder / "driver.log",
            deadline=setting.deadline,
            memory=memory_of(setting.memory),
        )
        self._drivers.append(driver)
        _ = driver.device  # it can be loaded, or nothing is run at all
        options = Options(spec.text, level_of(setting.level), setting.arguments)
        return Session(driver, folder, _Unwritten(), load_waivers(None), options)

    def ready(self) -> Ready:
        """What the drivers say of themselves."""
        headers, silent = [], []
        for session in self._sessions:
            facts = session.facts
            headers.append(facts_header(facts) if isinstance(facts, DriverFacts) else {})
            silent.append("" if isinstance(facts, DriverFacts) else facts.message)
        return Ready(tuple(headers), tuple(silent))

    def do(self, job: Job) -> Answer:
        """Does a job; what goes wrong in the suite itself is told as a lost one."""
        try:
            return self._check(job) if isinstance(job, Check) else self._reduce(job)
        except Exception as error:  # a defect of the suite; it must not end the campaign or be charged to a driver
            return Lost(job, f"{type(error).__name__} in the suite: {error}")

    def close(self) -> None:
        """Ends the drivers."""
        for session in self._sessions:
            session.close()
        for driver in self._drivers[len(self._sessions) :]:
            driver.close()
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    def rest(self) -> None:
        """Ends the drivers' processes; the next job starts them again."""
        for driver in self._drivers:
            driver.rest()

    # ---- checking

    def _make(self, graph: Graph) -> TestCase:
        """The case of a graph; the last one made is kept for the next driver."""
        if self._made is None or self._made[0] != graph:
            self._made = None
            self._made = graph, cases.graph_test_case(graph.mix, graph.seed)
        return self._made[1]

    def _check(self, job: Check) -> Checked:
        graph = job.graph
        take_spent()
        started = time.perf_counter()
        with contextlib.suppress(Exception):  # told by each session below
            self._make(graph)
        making = time.perf_counter() - started
        generation = min(take_spent()[GENERATION], making)
        made = {GENERATION: generation, ORACLE: making - generation}
        found = [self._check_with(number, graph, made) for number in range(len(self._sessions))]
        records, looks, spent, saved = zip(*found, strict=True)
        return Checked(job, records, looks, spent, saved)

    def _check_with(self, number: int, graph: Graph, made: Mapping[str, float]) -> _Found:
        session = self._sessions[number]
        batch = Batch(graph.origin, (graph.seed,), lambda seed: self._make(graph))
        started, asked = time.perf_counter(), session.asking
        record = session.check_number(batch, graph.seed)
        asked = session.asking - asked
        spent = {**made, DRIVER: asked, HARNESS: time.perf_counter() - started - asked}
        data = _taken(session.folder, record)
        saved = record.saved if data else ""
        record = replace(record, repeat=repeat_line(self.setting, number, graph), saved=saved)
        look = look_at(self._made[1] if self._made else graph.unmade, record) if record.bad else None
        return record, look, spent, data

    # ---- minimising

    def _reduce(self, job: Reduce) -> Reduced:
        session, case = self._sessions[job.driver], self._make(job.graph)
        for pages in (False, True):  # memory between canaries, then between inaccessible pages
            with contextlib.closing(prober(session.driver, level=session.level, pages=pages)) as probe:
                first = probe.patient(case)
                if first.verdict not in BAD:
                    continue
                budget = BUDGETS.get(first.verdict, BUDGET)
                found = minimize(case, probe, budget=budget, confirm=probe.patient)
                if found.note:
                    return self._reduced(job, case, first, found.note)
                last = probe.patient(found.case)
                if not alike(first, last):
                    return self._reduced(job, case, first, NOT_SMALLER)
                return self._reduced(job, found.case, last)
        judgement = Judgement(Verdict.FLAKY, first.cause, first.stage, f"{NOT_AGAIN}; other graphs went before it then")
        return self._reduced(job, case, judgement, NOT_AGAIN)

    def _reduced(self, job: Reduce, case: TestCase, judgement: Judgement, note: str = "") -> Reduced:
        record = record_of(case, judgement)
        path = Path(self._folder.name) / "minimised.case"
        save(case, path)
        look = look_at(case, record)
        words = listing(case)
        return Reduced(job, record, look, path.read_bytes(), to_dot(case.models[0], case.id), words, note)


def _taken(folder: Path, record: Record) -> bytes:
    """The file of a case that its seed alone does not make again; what else was saved is not needed."""
    if not record.saved:
        return b""
    file = folder / record.saved
    data = file.read_bytes() if record.repeated in ("sequence", "differs") else b""
    file.unlink()
    return data


def repeat_line(setting: Setting, number: int, graph: Graph) -> str:
    """The command that runs one graph again."""
    driver = f"--driver={setting.drivers[number]}"
    words = ["python", "-m", "random_graph", driver, *setting.arguments, f"--mix={graph.mix}", f"--graph={graph.seed}"]
    return shlex.join(words)
