"""A campaign: hands graphs to processes, records what comes back, has failures minimised, and ends in order."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.interrupting import interruptible
from harness.record import Record
from harness.verdict import Verdict
from random_graph import cases
from random_graph.against import of_second
from random_graph.folder import DriverRun
from random_graph.jobs import Answer, Check, Checked, Graph, Lost, Reduce, Reduced
from random_graph.oracles import oracle_of
from random_graph.plan import Plan
from random_graph.pools import Pool
from random_graph.progress import Progress, State
from random_graph.triage import Distinct, Look, look_at
from random_graph.worker import repeat_line
from reports.text import count_words

TURN_SECONDS = 0.2
NOT_REACHED = "the campaign ended before it was minimised"
NOT_MINIMISED = "there are as many minimised failures like it as a campaign takes on"
NOT_ALONE = "the graph alone does not fail"
NO_GRAPH = "it does not depend on the graph"
NOT_IT = "it is of the driver that results are held against; a campaign on that one alone minimises it"
OURS = "it is an error of the suite itself"


@dataclass(frozen=True)
class _Suspect:
    """A failure that is not counted yet."""

    driver: int
    graph: Graph
    record: Record
    look: Look


class Campaign:
    """Graphs of a plan, checked with each driver.

    Attributes:
        interrupted: it was asked to end before all graphs were made.
    """

    def __init__(self, plan: Plan, runs: Sequence[DriverRun], pool: Pool, progress: Progress, state: State) -> None:
        self._plan, self._runs, self._pool = plan, runs, pool
        self._progress, self._state = progress, state
        self.interrupted = False
        self._exhausted = False
        self._told = False
        self._most: int | None = None
        self._left = self._graphs()
        self._under_way: set[Graph] = set()
        self._suspects: deque[_Suspect] = deque()
        self._reducing: dict[Reduce, _Suspect] = {}
        self._waiting: list[_Suspect] = []  # to be counted when those that are minimised now are known

    def take_on(self, uncounted: Sequence[tuple[Graph, Record]]) -> None:
        """Failures of an earlier part that were not come to; a resumed campaign has one driver."""
        oracle = oracle_of(self._plan.oracle)
        for graph, record in uncounted:
            case = graph.unmade
            if not of_second(self._plan.against, record.message):
                with contextlib.suppress(Exception):  # then the record says that it could not be made
                    case = cases.graph_test_case(graph.mix, graph.seed)
                    case = oracle(case)
            self._suspects.append(_Suspect(0, graph, record, look_at(case, record)))

    def go(self, most: int | None = None) -> None:
        """Runs until all is done, time is up, or it is interrupted.

        Args:
            most: graphs to make at most, for drivers of which more would say nothing.

        Raises:
            UsageError: nothing can do jobs any more.
        """
        self._most = most
        with interruptible(self._interrupt):
            while True:
                self._hand_out()
                if not self._under_way and not self._reducing and (self.interrupted or not self._suspects):
                    break
                for answer in self._pool.answers(TURN_SECONDS):
                    self._take(answer)
                self._show()
        self._finish()

    def _interrupt(self) -> None:
        """The first signal ends the campaign in order, the second at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    # ---- handing out

    def _graphs(self) -> Iterator[Graph]:
        """Graphs that have no record, in order."""
        place = 0
        while (graph := self._plan.graph(place)) is not None:
            place += 1
            if not all(run.has(graph) for run in self._runs):
                yield graph

    def _hand_out(self) -> None:
        if self.interrupted:
            self._stop()
            return
        if self._plan.seconds is not None and self._state.seconds >= self._plan.seconds:
            self._exhausted = True
        self._reduce()
        while not self._exhausted and (room := self._pool.room()):
            graphs = self._next(room)
            if not graphs:
                self._exhausted = True
                return
            for run in self._runs:
                run.select(graphs, self._state.seconds)
            self._under_way.update(graphs)
            self._pool.submit([Check(graph) for graph in graphs])

    def _next(self, number: int) -> list[Graph]:
        if self._most is not None:
            number = min(number, self._most)
            self._most -= number
        return list(itertools.islice(self._left, number))

    def _reduce(self) -> None:
        """Has failures minimised, some at a time, so that what one shows is known before the next like it is begun."""
        closing = self._exhausted and not self._under_way
        while self._suspects and len(self._reducing) < max(1, self._pool.size() // 2):
            suspect = self._suspects.popleft()
            if not self._runs[suspect.driver].failures.wants(suspect.look, closing):
                self._count(suspect)
                continue
            job = Reduce(suspect.graph, suspect.driver)
            self._reducing[job] = suspect
            self._pool.reduce(job)

    def _stop(self) -> None:
        """Nothing more is begun, and what was found and not minimised is kept as it is."""
        if not self._told:
            self._told = True
            first = f"{count_words(len(self._under_way), 'graph', 'graphs')} under way come to their end first; "
            self._progress.say(f"stopping: {first if self._under_way else ''}once more ends at once")
            if self._reducing:
                self._pool.drop_reductions()
                self._suspects.extendleft(self._reducing.values())
                self._reducing = {}

    # ---- taking in

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, Checked):
            self._under_way.discard(answer.job.graph)
            for number, record in enumerate(answer.records):
                self._record(number, answer.job.graph, record, answer)
        elif isinstance(answer, Reduced):
            if self._reducing.pop(answer.job, None) is not None:
                self._tell(self._runs[answer.job.driver].add_reduced(answer))
                self._recount()
        else:
            self._take_lost(answer)
        self._state.count(self._runs[0].done)

    def _record(self, number: int, graph: Graph, record: Record, answer: Checked) -> None:
        written = self._runs[number].add(graph, record, answer.spent[number], answer.saved[number])
        look = answer.looks[number]
        if written is not None and written.bad and not written.waiver and look is not None:
            self._suspects.append(_Suspect(number, graph, written, look))

    def _take_lost(self, answer: Lost) -> None:
        graph = answer.job.graph
        if isinstance(answer.job, Check):
            self._under_way.discard(graph)
            for number, run in enumerate(self._runs):
                record = run.add_lost(graph, answer.reason, repeat_line(self._plan.setting(), number, graph))
                if record is not None and not record.waiver:
                    look = look_at(graph.unmade, record)
                    self._suspects.append(_Suspect(number, graph, record, look))
        else:
            suspect = self._reducing.pop(answer.job, None)
            if suspect is not None:
                self._keep(suspect, f"minimising it came to no end: {answer.reason}")
                self._recount()

    def _count(self, suspect: _Suspect) -> None:
        """Counts a failure that is not minimised to one that is, now or when it is known."""
        failures = self._runs[suspect.driver].failures
        if not suspect.look.minimisable:
            self._keep(suspect, _why_not(suspect.look))
        elif not failures.count(suspect.look, suspect.graph.mix, suspect.graph.seed):
            self._waiting.append(suspect)

    def _recount(self) -> None:
        waiting, self._waiting = self._waiting, []
        for suspect in waiting:
            self._count(suspect)

    def _keep(self, suspect: _Suspect, note: str, *, pending: bool = False) -> None:
        found = Distinct(suspect.record, suspect.look, note, pending)
        if self._runs[suspect.driver].add_failure(suspect.graph, found) and not pending:
            self._tell(found)

    def _tell(self, found: Distinct | None) -> None:
        if found is not None:
            self._state.last = found.line
            self._progress.say(f"new failure: {found.line}")

    def _show(self) -> None:
        self._state.distinct = sum(len(run.failures.distinct) for run in self._runs)
        self._state.minimising = len(self._reducing)
        self._state.trouble = "" if self._pool.size() else "no worker is there; it goes on when one comes"
        self._progress.show()

    def _finish(self) -> None:
        """Counts what is left, and writes the ends."""
        for suspect in self._suspects:
            if suspect.look.minimisable:
                self._keep(suspect, NOT_REACHED, pending=True)
            else:
                self._count(suspect)
        for suspect in self._waiting:
            self._keep(suspect, NOT_REACHED if self.interrupted else NOT_MINIMISED, pending=self.interrupted)
        self._suspects.clear()
        self._waiting = []
        for run in self._runs:
            run.end(self._state.seconds, self._state.rate, interrupted=self.interrupted)


def _why_not(look: Look) -> str:
    """Why a failure cannot be minimised."""
    if look.verdict == Verdict.INTERNAL.value:
        return OURS
    if look.stage == "start":
        return NO_GRAPH
    return NOT_ALONE if look.operations else NOT_IT
