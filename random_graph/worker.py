"""What a process of a campaign does: makes graphs, checks them with each driver, minimises what fails."""

from __future__ import annotations

import contextlib
import itertools
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.batch import Batch, NotApplicableError, SettledError
from harness.case import TestCase
from harness.case_file import save
from harness.driver import Driver, DriverFacts, open_driver
from harness.listing import listing
from harness.minimize import minimize, prober
from harness.option_values import level_of, memory_of
from harness.record import Record, RecordFile, record_of
from harness.searching import alike
from harness.session import Options, Session, facts_header
from harness.steps import Action
from harness.verdict import BAD, Judgement, Verdict
from harness.waivers import load_waivers
from nnhal.graph_dump import to_dot
from nnhal.loading import DriverSpec
from random_graph.against import LOG, Against, of_second
from random_graph.cases import Attempt, attempts
from random_graph.jobs import Answer, Check, Checked, Graph, Job, Lost, Ready, Reduce, Reduced, Setting
from random_graph.oracles import Judge, Oracle, judge_by, oracle_of
from random_graph.spending import DRIVER, GENERATION, HARNESS, ORACLE, spending, take_spent
from random_graph.triage import Look, look_at

BUDGET = 400  # times that a driver is asked while a failure is minimised
BUDGETS = {Verdict.HANG: 40, Verdict.CRASH: 120}  # the same where each time costs a wait or a process
ORACLE_BUDGETS = {"fresh": 100}  # or two of them
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


@dataclass
class _Held:
    """A draft of a graph whose case is held against what the campaign says.

    Attributes:
        attempt: the draft.
        oracle: gives the case that is run.
        made: that case; the question while there is none.
    """

    attempt: Attempt
    oracle: Oracle
    made: TestCase

    @property
    def question(self) -> TestCase:
        """Asks whether the model is supported."""
        return self.attempt.question

    def make(self) -> TestCase | None:
        """The case that is run."""
        case = self.attempt.make()
        if case is None:
            return None
        with spending(ORACLE):
            self.made = self.oracle(case)
        return self.made


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
        self._against: list[Against] = []
        self._oracles: list[Oracle] = []
        self._graph: Graph | None = None
        self._attempts: Iterator[Attempt] = iter(())
        try:
            for number, text in enumerate(setting.drivers):
                self._sessions.append(self._open(number, DriverSpec.parse(text)))
                self._oracles.append(self._held_against(number))
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

    def _held_against(self, number: int) -> Oracle:
        """What the results of a driver are held against."""
        setting = self.setting
        if not setting.against:
            return oracle_of(setting.oracle)
        folder = Path(setting.logs[number]).parent if setting.logs else Path(self._folder.name) / str(number)
        first, second, memory = setting.drivers[number], setting.against, memory_of(setting.memory)
        found = Against(first, second, folder / LOG, deadline=setting.deadline, memory=memory)
        self._against.append(found)
        return found

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
        for second in self._against:
            second.close()
        for session in self._sessions:
            session.close()
        for driver in self._drivers[len(self._sessions) :]:
            driver.close()
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    def rest(self) -> None:
        """Ends the drivers' processes; the next job starts them again."""
        for driver in (*self._drivers, *(second.driver for second in self._against)):
            driver.rest()

    # ---- checking

    def _attempts_at(self, graph: Graph) -> Iterator[Attempt]:
        """The draws of a graph; what was drawn and computed is kept for the next driver."""
        if self._graph != graph:
            self._graph, self._attempts = graph, attempts(graph.mix, graph.seed)
        self._attempts, found = itertools.tee(self._attempts)
        return found

    def _check(self, job: Check) -> Checked:
        found = [self._check_with(number, job.graph) for number in range(len(self._sessions))]
        records, looks, spent, saved = zip(*found, strict=True)
        return Checked(job, records, looks, spent, saved)

    def _check_with(self, number: int, graph: Graph) -> _Found:
        session, oracle = self._sessions[number], self._oracles[number]
        held: list[_Held] = []

        def drafts(seed: int) -> Iterator[_Held]:
            for attempt in self._attempts_at(graph):
                held.append(_Held(attempt, oracle, attempt.question))
                yield held[-1]

        batch = Batch(graph.origin, (graph.seed,), lambda seed: graph.unmade, drafts=drafts)
        take_spent()
        started, asked = time.perf_counter(), session.asking
        record = session.check_number(batch, graph.seed)
        taken, asked, making = time.perf_counter() - started, session.asking - asked, take_spent()
        spent = {GENERATION: making[GENERATION], ORACLE: making[ORACLE], DRIVER: asked}
        spent[HARNESS] = max(taken - sum(spent.values()), 0.0)
        data = _taken(session.folder, record)
        saved = record.saved if data else ""
        record = replace(record, repeat=repeat_line(self.setting, number, graph), saved=saved)
        look = None
        if record.bad:
            nothing = not held or of_second(self.setting.against, record.message)
            look = look_at(graph.unmade if nothing else held[-1].made, record)
        return record, look, spent, data

    # ---- minimising

    def _reduce(self, job: Reduce) -> Reduced:
        session, held = self._sessions[job.driver], _or_question(self._oracles[job.driver])
        for pages in (False, True):  # memory between canaries, then between inaccessible pages
            with contextlib.closing(prober(session.driver, level=session.level, pages=pages)) as probe:
                fails, patient = judge_by(held, probe), judge_by(held, probe.patient)
                case, first = self._failing(job.graph, patient)
                if first.verdict not in BAD:
                    continue
                budget = min(BUDGETS.get(first.verdict, BUDGET), ORACLE_BUDGETS.get(self.setting.oracle, BUDGET))
                found = minimize(case, fails, budget=budget, confirm=patient)
                if found.note:
                    return self._reduced(job, case, first, found.note)
                last = patient(found.case)
                if not alike(first, last):
                    return self._reduced(job, case, first, NOT_SMALLER)
                return self._reduced(job, found.case, last)
        judgement = Judgement(Verdict.FLAKY, first.cause, first.stage, f"{NOT_AGAIN}; other graphs went before it then")
        return self._reduced(job, case, judgement, NOT_AGAIN)

    def _failing(self, graph: Graph, judged: Judge) -> tuple[TestCase, Judgement]:
        """The case of a graph and the verdict on it; of an earlier draw, where the driver fails when asked about it."""
        case, judgement = graph.unmade, Judgement(Verdict.NOT_RUN)
        for attempt in self._attempts_at(graph):
            if attempt.whole is None:
                continue
            case, judgement = attempt.whole, judged(attempt.whole)
            if attempt.good or (judgement.verdict in BAD and judgement.stage == Action.QUERY.value):
                break
        return case, judgement

    def _reduced(self, job: Reduce, case: TestCase, judgement: Judgement, note: str = "") -> Reduced:
        with contextlib.suppress(NotApplicableError, SettledError):  # then it stays what it is
            case = self._oracles[job.driver](case)
        record = record_of(case, judgement)
        path = Path(self._folder.name) / "minimised.case"
        save(case, path)
        look = look_at(case, record)
        words = listing(case)
        return Reduced(job, record, look, path.read_bytes(), to_dot(case.models[0], case.id), words, note)


def _or_question(oracle: Oracle) -> Oracle:
    """An oracle to minimise by: where it has no case, a driver may still fail when it is asked for support."""

    def held(case: TestCase) -> TestCase:
        try:
            return oracle(case)
        except Exception:  # also what a rewrite does not foresee in odd graphs, and what another driver fails at
            return replace(case, steps=case.steps[:1])

    return held


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
    words = ["python", "-m", "random_graph", driver, *setting.graph_arguments]
    words += [f"--mix={graph.mix}", f"--graph={graph.seed}"]
    return shlex.join(words)
