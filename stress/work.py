"""What the threads of a client share with one another, and what each of them has: the tools of every activity."""

from __future__ import annotations

import contextlib
import importlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from harness.case import TestCase
from harness.case_file import dumps
from harness.client import MOST_DEADLINES
from harness.driver import load_in_process
from harness.guards import Arena
from harness.joined import join
from harness.judge import judge
from harness.outcome import Outcome, StepOutcome
from harness.remote import RemoteDevice, deadline_scale
from harness.run import Course
from harness.steps import Action
from harness.verdict import BAD, Cause, Judgement, Verdict
from nnhal.channel import Channel, Closed
from nnhal.device import Device
from nnhal.errors import DriverDied, SuiteError
from nnhal.loading import DriverSpec
from nnhal.model import Model
from nnhal.parts import Json, Parts
from nnhal.types import FeatureLevel
from stress.board import Board, Count, Place
from stress.order import Order, Service

TOLD = 20  # failures that a client tells one by one; more are counted
SAVED = 3  # of them with their case
LATENCIES = 50_000  # that a thread keeps
AGAIN_SECONDS = 60.0  # to wait for a driver that comes back
RETRY_SECONDS = 0.05


class Stop(Exception):
    """A thread has nothing more to do."""


class Lost(Exception):
    """The driver died and is there again: whatever was under way with it is gone."""


class Shared:
    """What the threads of a client share.

    Args:
        order: what the client is to do.
        cases: for its activity.
        board: where the threads say what they do.
        channel: to the supervisor.
    """

    def __init__(self, order: Order, cases: list[TestCase], board: Board, channel: Channel) -> None:
        self.order, self.cases, self.board = order, cases, board
        self.stop_at = 0.0
        self.over = threading.Event()
        self.told = 0
        self.numbers: dict[str, float] = {}
        self.hook = _hook(order.hook)
        self._channel = channel
        self._sending = threading.Lock()
        self._news = threading.Condition()
        self._service = order.service
        self._joined: Service | None = None  # the one that the present device is of
        self._device: Device | None = None
        self.spec = DriverSpec.parse(order.driver)

    @property
    def in_process(self) -> bool:
        """Whether the driver is in this very process."""
        return self.order.service is None

    def send(self, body: Json, parts: Parts | None = None) -> None:
        """Tells the supervisor; nothing happens when it is gone."""
        with self._sending, contextlib.suppress(Closed):
            self._channel.send(body, parts or Parts())

    def move(self, service: Service) -> None:
        """The driver is somewhere else from now on."""
        with self._news:
            self._service = service
            self._news.notify_all()

    def _settled(self, lost: Device) -> bool:
        """Whether there is no more to wait for after the loss of a device."""
        return self._device is not lost or self._moved() or self.over.is_set()

    def _moved(self) -> bool:
        """Whether the driver is elsewhere than where the present device is."""
        return self._service != self._joined

    def device(self) -> Device:
        """The driver.

        Raises:
            DriverDied: nobody is there.
        """
        with self._news:
            if self._device is None:
                self._joined = self._service
                self._device = load_in_process(self.spec) if self._service is None else self.join()
            return self._device

    def join(self) -> RemoteDevice:
        """The driver over a further connection."""
        service = self._service
        if service is None:
            raise SuiteError("a driver in this process has no service")
        return join(self.spec, service.name, service.pid, self.order.deadline)

    def lose(self, lost: Device) -> None:
        """Waits until the driver is there again, after a death.

        Raises:
            Stop: it does not come back in time.
        """
        with self._news:
            if self._device is not lost:
                return  # another thread has seen to it
            if not self._moved():
                self._news.wait_for(lambda: self._settled(lost), AGAIN_SECONDS)
            if self._device is not lost:
                return
            if not self._moved():
                raise Stop
            if isinstance(lost, RemoteDevice):
                lost.connection.close()
            self._device = None

    def close(self) -> None:
        """Lets the driver go."""
        if isinstance(self._device, RemoteDevice):
            self._device.connection.close()


Hook = Callable[["Worker", str], None]


def _hook(name: str) -> Hook | None:
    if not name:
        return None
    module, _, function = name.partition(":")
    found: Hook = getattr(importlib.import_module(module), function)
    return found


class Worker:
    """One thread of a client.

    Attributes:
        rng: decides what the thread draws.
        cases: of the client.
        seconds: of executions, in order.
        tolerant: answers that are no failures under the circumstances of the run.
    """

    def __init__(self, shared: Shared, thread: int) -> None:
        self.shared, self.thread = shared, thread
        order = shared.order
        self.order, self.cases, self.parameters = order, shared.cases, order.parameters
        self.rng = random.Random(f"{order.seed}/{order.number}/{thread}")
        self.arena = Arena()
        self.seconds: list[float] = []
        self.tolerant: Callable[[Judgement], bool] = lambda judgement: False
        self.turn = 0
        self._doing = ""
        self._lost_at = 0.0  # when the driver died that this thread has not heard of since

    # ---- time

    def goes_on(self) -> bool:
        """Whether there is time for another turn; rests before it where the order says so."""
        rest = self.order.rest * self.rng.uniform(0.55, 1.45) if self.turn else 0.0
        self.turn += 1
        if rest:
            self.idle("rests")
            self.shared.over.wait(min(rest, max(0.0, self.shared.stop_at - time.monotonic())))
        # Who has lost the driver goes on until it is there again: how long that takes is to be known.
        end = self.shared.stop_at + (AGAIN_SECONDS if self._lost_at else 0.0)
        return time.monotonic() < end and not self.shared.over.is_set()

    def idle(self, text: str) -> None:
        """Notes that nothing is done that could take long."""
        self.shared.board.enter(self.thread, Place.IDLE, text)

    @contextlib.contextmanager
    def own(self, text: str, limit: float = 0.0) -> Iterator[None]:
        """Notes work of the suite itself, which may take so many seconds; the deadline of a call where 0 is given."""
        before = self.shared.board.where(self.thread)
        self.shared.board.enter(self.thread, Place.SUITE, text, limit or self.order.deadline)
        try:
            yield
        finally:
            self.shared.board.enter(self.thread, *before)

    @contextlib.contextmanager
    def call(self, stage: str, model: Model | None = None) -> Iterator[None]:
        """Notes a call of the driver."""
        text = f"{stage} of {self._doing}" if self._doing else stage
        if self.shared.hook is not None:
            with self.own(f"before {text}"):
                self.shared.hook(self, stage)
        limit = self.order.deadline * (deadline_scale(model) if model is not None and stage == "prepare" else 1.0)
        if not self.shared.in_process:
            limit *= MOST_DEADLINES  # a starved driver gets them; then the client tells of its silence
        before = self.shared.board.where(self.thread)
        self.shared.board.enter(self.thread, Place.DRIVER, text, limit)
        yield
        # Not when an exception passes: what was done last is what the supervisor wants to know.
        self.shared.board.enter(self.thread, *before)

    # ---- the driver

    @property
    def device(self) -> Device:
        """The driver.

        Raises:
            Stop: nobody is there.
        """
        while True:
            try:
                return self.shared.device()
            except DriverDied as death:
                if not self.order.patient:
                    self.report_end("died", death.reason)
                    raise Stop from None
            if self.shared.over.wait(RETRY_SECONDS) or time.monotonic() > self.shared.stop_at + AGAIN_SECONDS:
                raise Stop

    @property
    def level(self) -> FeatureLevel:
        """At which the driver is tested."""
        return FeatureLevel(self.order.level)

    def run(self, case: TestCase, device: Device | None = None) -> Judgement:
        """Takes a case from its first step to its verdict.

        Raises:
            Stop: the driver has ended and does not come back.
        """
        with self._named(case):
            target = device or self.device
            course = self._course(case, target)
            with course:
                course.go()
                outcome = course.end()
            return self.take(case, outcome, outcome.steps, target)

    def _course(self, case: TestCase, device: Device) -> Course:
        in_process = self.shared.in_process
        return Course(case, device, self.arena, in_process=in_process, level=self.level, watch=self.call)

    @contextlib.contextmanager
    def standing(self, case: TestCase) -> Iterator[Callable[[], Judgement] | None]:
        """A case up to its last step, and what takes that step once more; None where the case ends before.

        Raises:
            Stop: the driver has ended and does not come back.
        """
        with self._named(case):
            target = self.device
            course = self._course(case, target)

            def again() -> Judgement:
                outcome = course.again()
                return self.take(case, outcome, outcome.steps[-1:], target)

            with course:
                ready = course.go(case.steps[:-1])
                begun = course.outcome
                judgement = self.take(case, begun, begun.steps, target)
                yield again if ready and judgement.verdict == Verdict.PASS else None
                before = len(course.outcome.steps)
                outcome = course.end()
                if len(outcome.steps) > before or outcome.died is not None or outcome.silent is not None:
                    self.take(case, outcome, (), target)

    @contextlib.contextmanager
    def _named(self, case: TestCase) -> Iterator[None]:
        before, self._doing = self._doing, f"{case.origin.batch}-{case.origin.number}"
        try:
            yield
        finally:
            self._doing = before

    def take(
        self, case: TestCase, outcome: Outcome, steps: Sequence[StepOutcome], device: Device | None = None
    ) -> Judgement:
        """Judges what came, counts it, and tells of it where it is bad.

        Args:
            case: what was done.
            outcome: what came of it.
            steps: those of the outcome that are new.
            device: whom it was done with.

        Raises:
            Stop: the driver has ended and does not come back.
            Lost: it has come back.
        """
        self._count(case, steps)
        if outcome.died is not None or outcome.silent is not None:
            self._take_end(outcome, device)
        judgement = judge(case, outcome)
        if judgement.verdict == Verdict.NOT_SUPPORTED:
            self.report_unsupported(case, judgement.message)
        elif judgement.verdict in BAD:
            if self.tolerant(judgement):
                self.count(Count.DECLINED)
            elif outcome.died is None:
                self.report_failure(case, judgement)
        return judgement

    def _take_end(self, outcome: Outcome, device: Device | None) -> None:
        silent = outcome.silent is not None
        if not silent and self.order.patient and device is not None:
            self.idle("waits for the driver")
            self._lost_at = self._lost_at or time.monotonic()
            self.shared.lose(device)
            raise Lost
        reason = f"no answer within {outcome.silent:g} s" if silent else outcome.died or ""
        self.report_end("silent" if silent else "died", reason, outcome.silent or 0.0)
        raise Stop

    def _count(self, case: TestCase, steps: Sequence[StepOutcome]) -> None:
        for step in steps:
            action = case.steps[step.step].action
            if action == Action.EXECUTE and step.status is not None:
                self.measured(step.seconds)
            elif action == Action.PREPARE:
                self.count(Count.PREPARATIONS)

    def measured(self, seconds: float) -> None:
        """Counts an execution."""
        if self._lost_at:
            self.tell(recovery_seconds=round(time.monotonic() - self._lost_at, 4))
            self._lost_at = 0.0
        self.count(Count.EXECUTIONS)
        self.count(Count.NANOSECONDS, int(seconds * 1e9))
        self.count(Count.LONGEST, int(seconds * 1e9))
        if len(self.seconds) < LATENCIES:
            self.seconds.append(seconds)
        else:  # each of all executions has the same chance to be kept
            place = self.rng.randrange(self.shared.board.read(self.thread).counts[Count.EXECUTIONS])
            if place < LATENCIES:
                self.seconds[place] = seconds

    def count(self, what: Count, number: int = 1) -> None:
        """Adds to a counter of the thread."""
        self.shared.board.count(self.thread, what, number)

    # ---- telling

    def report_failure(self, case: TestCase, judgement: Judgement) -> None:
        """Tells of a wrong answer."""
        self.count(Count.FAILURES)
        shared = self.shared
        shared.told += 1
        if shared.told > TOLD:
            return
        parts = Parts()
        saved = parts.add_blob(dumps(case)) if shared.told <= SAVED and case.steps else None
        shared.send(
            {
                "event": "failure",
                "id": case.id,
                "cause": judgement.cause.value,
                "stage": judgement.stage,
                "message": judgement.message,
                "thread": self.thread,
                "turn": self.turn,
                "saved": saved,
            },
            parts,
        )

    def fail(self, case: TestCase, cause: Cause, stage: str, message: str) -> None:
        """Tells of something that no case's expectations cover."""
        self.report_failure(case, Judgement(Verdict.FAIL, cause, stage, message))

    def report_unsupported(self, case: TestCase, reason: str) -> None:
        """Tells of a model that the driver does not do."""
        self.count(Count.UNSUPPORTED)
        text = f"{case.origin.batch}-{case.origin.number}"
        self.shared.send({"event": "unsupported", "model": text, "reason": reason[:300]})

    def report_end(self, how: str, reason: str, seconds: float = 0.0) -> None:
        """Tells that the driver has ended, or does not answer; the client has nothing more to do."""
        shared = self.shared
        if not shared.over.is_set():
            shared.over.set()
            where = shared.board.read(self.thread).text
            words: dict[str, Any] = {"event": how, "thread": self.thread, "step": where, "reason": reason}
            shared.send({**words, "seconds": seconds})

    def tell(self, **numbers: float) -> None:
        """Hands numbers on, which the run's record gets."""
        self.shared.numbers.update(numbers)
