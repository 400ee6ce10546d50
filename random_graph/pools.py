"""Processes that do a campaign's jobs: what a campaign needs of them, and those on this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Protocol

from harness.process import describe_exit
from nnhal.errors import UsageError
from random_graph.jobs import Answer, Check, Job, Lost, Ready, Reduce, Setting
from random_graph.worker import Worker

AHEAD = 2  # jobs that a process has, so that it need not wait for the next one
TRIES = 2  # processes that may die of one job
END_SECONDS = 10.0


class Pool(Protocol):
    """Does jobs in any order; each gets one answer."""

    def start(self) -> Ready:
        """Begins; what the drivers say of themselves.

        Raises:
            UsageError: a driver cannot be loaded, or there is nothing that could do jobs.
        """

    def size(self) -> int:
        """How many jobs can be under way at the same time."""

    def room(self) -> int:
        """How many graphs are welcome now."""

    def submit(self, jobs: Sequence[Check]) -> None:
        """Hands over graphs."""

    def reduce(self, job: Reduce) -> None:
        """Hands over a failure to be minimised."""

    def answers(self, seconds: float) -> list[Answer]:
        """What has come; waits for so long at most.

        Raises:
            UsageError: nothing can come any more; one sentence says why.
        """

    def drop_reductions(self) -> None:
        """Gives up minimising; those jobs get no answer."""

    def close(self) -> None:
        """Ends all, whatever is under way."""


@dataclass
class _Process:
    """A process with the jobs that it has."""

    process: SpawnProcess
    connection: Connection
    jobs: deque[Job] = field(default_factory=deque)

    @property
    def load(self) -> int:
        """Number of its jobs; minimising takes as long as many graphs."""
        return sum(AHEAD if isinstance(job, Reduce) else 1 for job in self.jobs)

    def send(self, job: Job) -> None:
        """Hands a job over."""
        self.jobs.append(job)
        with contextlib.suppress(OSError):  # it has ended, which the next look at it tells
            self.connection.send(job)


def serve(connection: Connection, setting: Setting) -> None:
    """What a process does: jobs as they come, until nobody asks for more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the campaign decides what is left to do
    try:
        worker = Worker(setting)
    except UsageError as error:
        with contextlib.suppress(OSError):
            connection.send(str(error))
        return
    try:
        with contextlib.suppress(EOFError, OSError):
            connection.send(worker.ready())
            while True:
                connection.send(worker.do(connection.recv()))
    finally:
        worker.close()


class LocalPool:
    """Processes on this machine, each with drivers of its own. One that ends is replaced, and its jobs are kept."""

    def __init__(self, setting: Setting, count: int) -> None:
        self._setting = setting
        self._count = count
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[_Process] = []
        self._deaths: dict[Job, int] = {}
        self._lost: list[Answer] = []

    def start(self) -> Ready:
        self._processes = [self._begin() for _ in range(self._count)]
        greetings = [self._greet(process) for process in self._processes]
        return greetings[0]

    def _begin(self) -> _Process:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs, self._setting), daemon=True)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: it must not die of it while it starts
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()
        return _Process(process, ours)

    def _greet(self, process: _Process) -> Ready:
        try:
            found = process.connection.recv()
        except EOFError:
            raise UsageError(f"a process of the campaign {self._end_of(process)} before it was ready") from None
        if not isinstance(found, Ready):
            raise UsageError(str(found))
        return found

    def size(self) -> int:
        return self._count

    def room(self) -> int:
        return sum(max(AHEAD - process.load, 0) for process in self._processes)

    def submit(self, jobs: Sequence[Check]) -> None:
        for job in jobs:
            min(self._processes, key=lambda process: process.load).send(job)

    def reduce(self, job: Reduce) -> None:
        min(self._processes, key=lambda process: process.load).send(job)

    def answers(self, seconds: float) -> list[Answer]:
        found, self._lost = self._lost, []
        by_connection = {process.connection: process for process in self._processes}
        for ready in wait(list(by_connection), 0 if found else seconds):
            process = by_connection[ready]  # type: ignore[index]
            try:
                answer: Answer = process.connection.recv()
            except (EOFError, OSError):
                found += self._replace(process)
                continue
            self._deaths.pop(process.jobs.popleft(), None)
            found.append(answer)
        return found

    def _replace(self, process: _Process, blame: bool = True) -> list[Answer]:
        """Another process for one that ended, with the same jobs but one that has ended too many; gives that."""
        how = self._end_of(process)
        lost: list[Answer] = []
        if process.jobs and blame:
            first = process.jobs[0]
            self._deaths[first] = self._deaths.get(first, 0) + 1
            if self._deaths[first] >= TRIES:
                lost.append(Lost(process.jobs.popleft(), f"the suite's own process {how}, {TRIES} times"))
        other = self._begin()
        self._processes[self._processes.index(process)] = other
        self._greet(other)
        for job in process.jobs:
            other.send(job)
        return lost

    def _end_of(self, process: _Process) -> str:
        process.connection.close()
        process.process.join(END_SECONDS)
        code = process.process.exitcode
        return "did not end" if code is None else describe_exit(code)

    def drop_reductions(self) -> None:
        for process in list(self._processes):
            if not any(isinstance(job, Reduce) for job in process.jobs):
                continue
            process.process.kill()
            process.jobs = deque(job for job in process.jobs if not isinstance(job, Reduce))
            self._replace(process, blame=False)

    def close(self) -> None:
        for process in self._processes:
            process.connection.close()
            if process.jobs:
                process.process.kill()  # its drivers end with it
        for process in self._processes:
            process.process.join(END_SECONDS)
            if process.process.is_alive():
                process.process.kill()
                process.process.join()
        self._processes = []
