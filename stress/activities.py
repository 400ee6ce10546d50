"""What the threads of clients do, by name. Each goes on until the time is over or the driver has ended."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

import psutil

from harness.case import TestCase
from harness.verdict import Cause, Judgement, Verdict
from stress.caches import cached
from stress.drawing import random_load, random_run
from stress.hostile import hostile
from stress.memories import interleaved, looks_for_secret, writes_secret
from stress.work import Worker

Activity = Callable[[Worker], None]
MIB = float(1 << 20)
CHUNK = 200  # executions on one prepared model, before it is prepared again


def _shuffled(worker: Worker) -> list[TestCase]:
    """The cases in an order of the thread's own."""
    cases = list(worker.cases)
    worker.rng.shuffle(cases)
    return cases


def _is_refusal(judgement: Judgement) -> bool:
    """Whether a driver answered with an error status where a result was due, or in Python's words for no memory."""
    no_memory = judgement.cause == Cause.UNCLEAN_ERROR and "MemoryError" in judgement.message
    return judgement.cause == Cause.STATUS or no_memory


def infer(worker: Worker) -> None:
    """Prepares a model and executes it again and again, then the next one; each result is judged.

    Parameters:
        chunk: executions on one prepared model.
        tolerant: refusals are no failures: they are legal under the circumstances of the run.
    """
    chunk = int(worker.parameters.get("chunk", CHUNK))
    if worker.parameters.get("tolerant"):
        worker.tolerant = _is_refusal
    left = _shuffled(worker)
    while left and worker.goes_on():
        case = left[0]
        with worker.standing(case) as again:
            if again is None and worker.tolerant is _is_refusal:
                worker.shared.over.wait(0.02)
                continue
            if again is None:
                left.pop(0)
                continue
            for _ in range(chunk):
                again()
                if not worker.goes_on():
                    return
        left.append(left.pop(0))


def load(worker: Worker) -> None:
    """Prepares models, one after another, and lets them go; with one execution each where `once` is given.

    Parameters:
        once: each is executed once.
    """
    once = bool(worker.parameters.get("once", False))
    left = _shuffled(worker)
    while left and worker.goes_on():
        case = left.pop(0)
        with worker.standing(case) as again:
            if again is None:
                continue
            if once:
                again()
        left.append(case)


def alone_then_beside(worker: Worker) -> None:
    """Executes alone at first, then beside others that begin later; tells the mean of both.

    Parameters:
        alone: seconds before the others begin.
        apart: seconds between both, which do not count.
    """
    begun = time.monotonic()
    alone, apart = float(worker.parameters["alone"]), float(worker.parameters["apart"])
    before: list[float] = []
    beside: list[float] = []
    for case in _shuffled(worker):
        with worker.standing(case) as again:
            if again is None:
                continue
            while worker.goes_on():
                started = time.perf_counter()
                again()
                seconds, passed = time.perf_counter() - started, time.monotonic() - begun
                if passed <= alone:
                    before.append(seconds)
                elif passed > alone + apart:
                    beside.append(seconds)
            break
    if before and beside:
        worker.tell(alone_mean=sum(before) / len(before), beside_mean=sum(beside) / len(beside))


def _wait(worker: Worker) -> None:
    worker.idle("waits for its turn")
    worker.shared.over.wait(float(worker.parameters["wait"]))


def wait_then_load(worker: Worker) -> None:
    """Loads models from a while after the start on.

    Parameters:
        wait: seconds before it begins.
    """
    _wait(worker)
    load(worker)


def each(worker: Worker) -> None:
    """Takes whole cases in turn: whatever their steps are."""
    left = _shuffled(worker)
    while left and worker.goes_on():
        case = left.pop(0)
        if worker.run(case).verdict != Verdict.NOT_SUPPORTED:
            left.append(case)


def hoard(worker: Worker) -> None:
    """Prepares as many models as it is told and keeps all, executing one of them now and then.

    Parameters:
        count: of prepared models.
    """
    left = _shuffled(worker)
    held: list[Callable[[], Judgement]] = []
    with contextlib.ExitStack() as stack:
        while left and len(held) < int(worker.parameters["count"]) and worker.goes_on():
            case = left.pop(0)
            again = stack.enter_context(worker.standing(case))
            if again is not None:
                held.append(again)
                left.append(case)
        worker.tell(held=float(len(held)))
        while held and worker.goes_on():
            worker.rng.choice(held)()


def hog(worker: Worker) -> None:
    """Keeps one processor busy: the one that disturbances pin the driver to."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    while worker.goes_on():
        sum(range(20_000))


def forks(worker: Worker) -> None:
    """Executes, and forks in between: the child ends at once, with copies of all that the client holds."""
    for case in _shuffled(worker):
        with worker.standing(case) as again:
            while again is not None and worker.goes_on():
                again()
                child = os.fork()
                if not child:
                    os._exit(0)
                os.waitpid(child, 0)


def greedy(worker: Worker) -> None:
    """Asks for more memory than there may be: whatever is answered, it must be an answer."""
    worker.tolerant = _is_refusal
    each(worker)


def wait_then_infer(worker: Worker) -> None:
    """Executes from a while after the start on. Parameters as `wait_then_load`."""
    _wait(worker)
    infer(worker)


def staged(worker: Worker) -> None:
    """Goes through a model's life with pauses, and looks at what the driver's process holds at each stage.

    Parameters:
        idle: seconds of a pause.
    """
    service, case = worker.order.service, worker.cases[0]
    if service is None:
        return
    process, pause = psutil.Process(service.pid), float(worker.parameters["idle"])

    def look(stage: str) -> None:
        with contextlib.suppress(psutil.Error):
            memory, times = process.memory_info(), process.cpu_times()
            worker.tell(**{f"{stage}_mib": round((memory.rss - memory.shared) / MIB, 2)})
            worker.tell(**{f"{stage}_cpu_seconds": round(times.user + times.system, 2)})

    def rest() -> None:
        worker.idle("rests")
        worker.shared.over.wait(pause)

    rest()
    look("idle")
    with worker.standing(case) as again:
        if again is None:
            return
        rest()
        look("prepared")
        again()
        look("executed")
        end = time.monotonic() + pause
        while time.monotonic() < end and worker.goes_on():
            again()
        look("busy")
        rest()
        look("rested")
    rest()
    look("released")


ACTIVITIES: dict[str, Activity] = {
    "infer": infer,
    "load": load,
    "alone_then_beside": alone_then_beside,
    "wait_then_load": wait_then_load,
    "each": each,
    "wait_then_infer": wait_then_infer,
    "staged": staged,
    "hostile": hostile,
    "interleaved": interleaved,
    "writes_secret": writes_secret,
    "looks_for_secret": looks_for_secret,
    "cached": cached,
    "hoard": hoard,
    "hog": hog,
    "forks": forks,
    "greedy": greedy,
    "random_load": random_load,
    "random_run": random_run,
}
