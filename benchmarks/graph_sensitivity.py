"""How much random graphs notice: one operation of a graph with one generic fault, judged at the graph's outputs.

`python -m benchmarks.graph_sensitivity [--mix=small ...] [--graphs=400] [--seed=0]` takes operations of random graphs
and puts faults into them, one by one, that the judge of single operations fails on the same operands. It prints the
share that still fails at the outputs of the graph; by fault and by operation, with what was missed most.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.generic_faults import FAULTS, Answer, Seen, answered, fitted, unseeded
from harness.case import TestCase
from harness.expectations import Returns
from harness.judge_output import judge_output
from harness.make import expected_outputs
from harness.verdict import Verdict
from nnhal.types import Array
from opset.call import Call
from opset.evaluate import run_call
from opset.graph import call_of
from random_graph.cases import graph_test_case

PLACES = 3  # operations of a graph that faults are put into


@dataclass
class Tally:
    """Faults that the judge of single operations fails, and those of them that the graph's outputs show."""

    tried: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    def add(self, keys: tuple[str, ...], seen: bool) -> None:
        """Counts one fault under several heads."""
        for key in keys:
            self.tried[key] += 1
            self.seen[key] += seen

    def share(self, key: str) -> float:
        """Of those tried under a head."""
        return self.seen[key] / max(self.tried[key], 1)


def measure(mix: str, graphs: int, seed: int) -> Tally:
    """Puts faults into the graphs of a mix."""
    tally, chooser = Tally(), random.Random(seed)
    for number in range(graphs):
        case = graph_test_case(mix, seed * 1_000_000 + number)
        _measure(case, tally, chooser)
    return tally


def _measure(case: TestCase, tally: Tally, chooser: random.Random) -> None:
    model = case.models[0]
    count = len(model.main.operations)
    for place in chooser.sample(range(count), min(PLACES, count)):
        call = _call_at(case, place)
        if call is None or call.definition.judging.sampling is not None or unseeded(call):
            continue
        due = {d.name: d for d in expected_outputs(call, model.relax_computation_float32_to_float16)}
        seen = Seen(call, run_call(call), due)
        for key, answer in _wrong(seen, chooser):
            shown = _shows(case, place, answer)
            if shown is not None:
                tally.add(("all", f"fault {key}", f"operation {call.definition.name}"), shown)


def _wrong(seen: Seen, chooser: random.Random) -> Iterator[tuple[str, Answer]]:
    """Each fault at one of its places, as far as a single operation fails with it."""
    for fault in FAULTS:
        places = list(fault.places(seen.call).values())
        if not places:
            continue
        answer = answered(fault, seen, chooser.choice(places))
        if answer is None:
            continue
        answer = {name: fitted(value, seen.truth[name].stored.shape) for name, value in answer.items()}
        if any(judge_output(seen.due[n], value).verdict == Verdict.FAIL for n, value in answer.items()):
            yield fault.key, answer


def _call_at(case: TestCase, place: int) -> Call | None:
    calls = dict(_run(case, -1, {}))
    return calls.get(place)


def _run(case: TestCase, place: int, answer: Mapping[str, Array], outputs: dict[int, Array] | None = None
         ) -> Iterator[tuple[int, Call]]:  # fmt: skip
    """Runs a graph, one operation of which gives the answer; yields the calls."""
    model, graph = case.models[0], case.models[0].main
    known = {i: v for i, v in zip(graph.input_indexes, case.steps[-1].inputs, strict=True) if v is not None}
    for number, operation in enumerate(graph.operations):
        call = call_of(model, graph, operation, known)
        shapes = call.definition.infer(call)
        call = call.holding(call.inputs, {n: replace(a, shape=tuple(shapes[n])) for n, a in call.results.items()})
        yield number, call
        stored = answer if number == place else {n: r.stored for n, r in run_call(call).items()}
        for name, index in zip(call.results, operation.outputs, strict=True):
            known[index] = stored[name]
    if outputs is not None:
        outputs.update((i, known[i]) for i in graph.output_indexes)


def _shows(case: TestCase, place: int, answer: Answer) -> bool | None:
    """Whether a graph's outputs fail with a wrong answer of one operation; None where that gives no outputs."""
    outputs: dict[int, Array] = {}
    try:
        with np.errstate(all="ignore"):
            for _ in _run(case, place, answer, outputs):
                pass
    except (ValueError, IndexError, KeyError, ZeroDivisionError, OverflowError):
        return None
    returns = case.steps[-1].expect
    assert isinstance(returns, Returns)
    for due, got in zip(returns.outputs, outputs.values(), strict=True):
        if got.shape != due.shape or judge_output(due, got).verdict == Verdict.FAIL:
            return True
    return False


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graph_sensitivity", description=__doc__)
    parser.add_argument("--mix", action="append", help="may be given several times; small and large by default")
    parser.add_argument("--graphs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.mix or ("small", "large"):
        tally = measure(name, options.graphs, options.seed)
        print(f"{name}: {tally.seen['all']} of {tally.tried['all']} faults seen, {tally.share('all'):.3f}")
        for head in ("fault ", "operation "):
            keys = sorted((k for k in tally.tried if k.startswith(head)), key=lambda k: tally.share(k))
            print("  " + "; ".join(f"{k} {tally.share(k):.2f} of {tally.tried[k]}" for k in keys[:40]))


if __name__ == "__main__":
    main()
