"""How much the conformance cases notice: every operation with every generic fault, judged as if a driver had it.

`python -m benchmarks.mutation_score [--profile=quick] [--operation=NAME ...]` prints the scores; over all operations it
also writes `docs/mutation-score.md`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.generic_faults import FAULTS, Fault, Seen, answered, fitted, unseeded
from benchmarks.mutation_page import Pair, Scores, Tallies, Tally, gather, page
from conformance.cases import positive_batches
from conformance.profiles import PROFILES
from harness.batch import Batch
from harness.case import Step, TestCase
from harness.expectations import Expected, Returns
from harness.judge import judge
from harness.outcome import Outcome, StepOutcome
from harness.steps import Action
from harness.verdict import Judgement, Verdict
from nnhal.types import Array, ErrorStatus
from opset import OPSET
from opset.call import Call
from opset.evaluate import run_call
from opset.graph import call_of

PAGE = Path(__file__).parents[1] / "docs" / "mutation-score.md"
CASES = 12  # of a signature, in the first round
OTHER_DRAWS = 200  # of an operation, to show that a fault is none
OTHER_SEED = 97
TURNS = 4  # of those draws, until there are enough in which the fault can be
NOTICED = (Verdict.FAIL, Verdict.POOR)
LOOP_NANOSECONDS = 500_000_000  # a fault may keep a loop from ending


@dataclass(frozen=True)
class Work:
    """Cases of a signature to judge.

    Attributes:
        seed: of the profile's draws.
        first: number of the first case.
        count: how many from there; None for all the rest.
        pairs: the faults to try with their places; None for all.
    """

    operation: str
    signature: str
    profile: str
    seed: int = 0
    first: int = 0
    count: int | None = None
    pairs: frozenset[Pair] | None = None


@dataclass(frozen=True)
class Answers:
    """A case and what is right at each of its executions."""

    case: TestCase
    seen: tuple[Seen, ...]
    open_sizes: tuple[bool, ...]


@cache
def drawn_batches(profile: str, seed: int) -> dict[tuple[str, str], Batch]:
    """The drawn cases of a profile by operation and signature."""
    batches = (b for b in positive_batches(profile, seed) if b.origin.kind == "drawn")
    return {(b.origin.operation, b.origin.signature): b for b in batches}


def call_at(case: TestCase, step: Step) -> Call:
    """The call that a driver gets at an execution."""
    model, (operation,) = case.models[step.model], case.models[step.model].main.operations
    graph = model.main
    known = {i: v for i, v in zip(graph.input_indexes, step.inputs, strict=True) if v is not None}
    call = call_of(model, graph, operation, known)
    inputs = {
        name: replace(a, branch=replace(a.branch, loop_timeout=LOOP_NANOSECONDS)) if a.branch else a
        for name, a in call.inputs.items()
    }
    shapes = call.definition.infer(call)
    results = {name: replace(a, shape=tuple(shapes[name])) for name, a in call.results.items()}
    return replace(call, inputs=inputs, results=results)


def right_answers(case: TestCase) -> Answers | None:
    """The case with its right results; None where they are random and do not come again."""
    seen = []
    for step in case.steps:
        if step.action != Action.EXECUTE or not isinstance(step.expect, Returns):
            continue
        call = call_at(case, step)
        if unseeded(call):
            return None
        due = dict(zip(call.results, step.expect.outputs, strict=True))
        seen.append(Seen(call, run_call(call), due))
    graph = case.models[0].main
    sizes = tuple(0 in graph.operands[i].dimensions or not graph.operands[i].dimensions for i in graph.output_indexes)
    return Answers(case, tuple(seen), sizes)


def given(answers: Answers, number: int, stored: Iterable[Array]) -> tuple[Array, ...]:
    """Results as they stand in the outputs of an execution: of the due shape, unless the driver decides on it."""
    due = answers.seen[number].due.values()
    return tuple(
        value if open_ else fitted(value, expected.shape)
        for value, expected, open_ in zip(stored, due, answers.open_sizes, strict=True)
    )


def verdict_on(answers: Answers, outputs: Sequence[tuple[Array, ...]]) -> Judgement:
    """The verdict on results, as if a driver had returned them."""
    steps, left = [], iter(outputs)
    for number, step in enumerate(answers.case.steps):
        done = StepOutcome(number, ErrorStatus.NONE)
        if step.action == Action.QUERY:
            done = replace(done, supported=(True,))
        elif step.action == Action.EXECUTE:
            values = next(left)
            done = replace(done, outputs=values, shapes=tuple(value.shape for value in values))
        steps.append(done)
    return judge(answers.case, Outcome(tuple(steps), at=len(steps) - 1))


def places(answers: Answers, wanted: frozenset[Pair] | None) -> Iterator[tuple[Fault, str, str]]:
    """Faults with label and place, of those wanted."""
    call = answers.seen[0].call
    for fault in FAULTS:
        for label, place in fault.places(call).items():
            if wanted is None or Pair(call.definition.name, fault.key, label) in wanted:
                yield fault, label, place


def tried(answers: Answers, fault: Fault, place: str) -> tuple[bool, Judgement] | None:
    """Whether a fault changes the results of a case, and the verdict; None where it cannot be put there."""
    wrong = []
    for number, seen in enumerate(answers.seen):
        answer = answered(fault, seen, place)
        if answer is None:
            return None
        wrong.append(given(answers, number, (answer[name] for name in seen.call.results)))
    right = [given(answers, n, (seen.stored[r] for r in seen.call.results)) for n, seen in enumerate(answers.seen)]
    changes = any(
        not _same(a, b, due)
        for seen, before, after in zip(answers.seen, right, wrong, strict=True)
        for a, b, due in zip(before, after, seen.due.values(), strict=True)
    )
    return changes, verdict_on(answers, wrong) if changes else Judgement(Verdict.PASS)


def _same(first: Array, second: Array, due: Expected) -> bool:
    """Whether an output says the same; where it is drawn at random, in whatever order each row comes."""
    if due.distribution is not None:
        first, second = np.sort(first, axis=-1), np.sort(second, axis=-1)
    return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


def measure(work: Work) -> Tallies:
    """Judges the cases of a signature with each fault."""
    tallies: Tallies = {}
    batch = drawn_batches(work.profile, work.seed)[work.operation, work.signature]
    end = None if work.count is None else work.first + work.count
    for number in batch.numbers[work.first : end]:
        answers = right_answers(batch.make(number))
        if answers is None:
            continue
        for fault, label, place in places(answers, work.pairs):
            found = tried(answers, fault, place)
            if found is None:
                continue
            changes, judgement = found
            tally = tallies.setdefault(Pair(work.operation, fault.key, label), Tally())
            tally.count(work.signature, changes, judgement.verdict in NOTICED, judgement.error)
    return tallies


def works(operations: Collection[str], profile: str, count: int) -> list[Work]:
    """The first round: the slowest first."""
    chosen = [key for key in drawn_batches(profile, 0) if key[0] in operations]
    sizes = {d.name: sum(len(form.operands) for form in d.forms) for d in OPSET.values()}
    return [Work(o, s, profile, count=count) for o, s in sorted(chosen, key=lambda key: -sizes[key[0]])]


@dataclass
class Rounds:
    """Runs work on all processors and shows how far it is."""

    progress: Progress
    pool: ProcessPoolExecutor

    def run(self, title: str, work: Sequence[Work]) -> Tallies:
        """The tallies of all work."""
        if not work:
            return {}
        bar = self.progress.add_task(f"{title:<25}", total=len(work))
        found: Tallies = {}
        for done in as_completed([self.pool.submit(measure, item) for item in work]):
            gather(found, done.result())
            self.progress.advance(bar)
        return found


def narrowed(work: Sequence[Work], pairs: Collection[Pair]) -> Iterator[Work]:
    """The work of those operations that have one of the pairs, for these pairs alone."""
    for item in work:
        some = frozenset(pair for pair in pairs if pair.operation == item.operation)
        if some:
            yield replace(item, pairs=some)


def other_draws(work: Iterable[Work], scores: Scores, pairs: Iterable[Pair], turn: int) -> Iterator[Work]:
    """A share of the draws with another seed, in the signatures where a pair can be."""
    where = {pair: scores.all(pair).where for pair in pairs}
    for item in work:
        some = frozenset(p for p, names in where.items() if p.operation == item.operation and item.signature in names)
        if some:
            count = max(-(-OTHER_DRAWS // len(where[pair])) for pair in some)
            yield replace(item, profile="nightly", seed=OTHER_SEED, first=turn * count, count=count, pairs=some)


def score(operations: Collection[str], profile: str, count: int, processes: int, console: Console) -> Scores:
    """Measures operations: a few cases for all, more where nothing was noticed, other draws where nothing changed."""
    work, scores = works(operations, profile, count), Scores()
    with Progress(console=console) as progress, ProcessPoolExecutor(processes) as pool:
        rounds = Rounds(progress, pool)
        scores.first = rounds.run("first cases", work)
        missed = [pair for pair in scores.first if not scores.noticed(pair)]
        rest = [replace(item, first=count, count=None) for item in narrowed(work, missed)]
        scores.rest = rounds.run("the profile's other cases", rest)
        for turn in range(TURNS):
            same = [pair for pair in scores.pairs() if scores.doubtful(pair, OTHER_DRAWS)]
            gather(scores.others, rounds.run("other draws", list(other_draws(work, scores, same, turn))))
    return scores.in_order([definition.name for definition in OPSET.values()])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the scores, and writes the page when all operations were measured."""
    names = [definition.name for definition in OPSET.values()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation_score", description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="quick")
    parser.add_argument("--operation", nargs="+", choices=names, metavar="NAME", help="only these; writes no page")
    parser.add_argument(
        "--cases", type=int, default=CASES, help="of a signature, in the first round (default %(default)s)"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    scores = score(options.operation or names, options.profile, options.cases, options.processes, console)
    text = page(scores, options.profile, options.cases, OTHER_DRAWS)
    if options.operation:
        sys.stdout.write(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
        console.print(f"{scores.summary()}; written to {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
