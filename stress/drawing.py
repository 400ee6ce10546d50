"""Activities on graphs that the client draws itself."""

from __future__ import annotations

from dataclasses import replace

from harness.case import Step, TestCase
from harness.case_file import seal
from harness.steps import Action
from harness.verdict import Verdict
from random_graph.cases import attempts
from stress.work import Worker

DRAW_SECONDS = 120.0  # for a graph of 600 operations, and what is due of it


def random_load(worker: Worker) -> None:
    """Prepares random graphs, each once.

    Parameters:
        mix: of the graphs.
        count: of graphs at most.
        seed: of the whole.
    """
    _draw(worker, execute=False)


def random_run(worker: Worker) -> None:
    """Prepares and executes random graphs, each once, and judges what comes. Parameters as `random_load`."""
    _draw(worker, execute=True)


def _draw(worker: Worker, *, execute: bool) -> None:
    mix, first = str(worker.parameters["mix"]), int(worker.parameters["seed"]) * 1_000_000
    for number in range(worker.thread, int(worker.parameters["count"]), worker.order.threads):
        if not worker.goes_on():
            return
        case = _graph(worker, mix, first + number, execute)
        if case is not None:
            worker.run(case)


def _graph(worker: Worker, mix: str, seed: int, execute: bool) -> TestCase | None:
    """A graph's case; None where the driver does not do it, which is told."""
    with worker.own(f"draws graph {seed} of {mix}", DRAW_SECONDS):
        for attempt in attempts(mix, seed):
            question = attempt.question
            if question.level > worker.level:
                return None
            if not execute:
                return seal(replace(question, steps=(*question.steps, Step(Action.PREPARE))))
            if worker.run(seal(question)).verdict != Verdict.PASS:
                return None
            case = attempt.make()
            if case is not None:
                return case
    return None
