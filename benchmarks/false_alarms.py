"""How often random graphs blame correct implementations: the reference's kernels in float32, in other orders of sums.

`python -m benchmarks.false_alarms [--mix=small ...] [--graphs=1000] [--seed=0] [--jobs=2]` judges both on each graph,
as a driver's answers would be. It prints how many graphs fail or are poor, how near the nearest was to a failure, and
what can be said of the graphs: the share of elements that are masked, saturated or zero, and of draws that were given
up. Exit status 1 when there is an alarm. Campaigns on LiteRT's reference kernels are the third implementation.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from harness.case import TestCase
from harness.expectations import Returns
from harness.judge_output import judge_output
from harness.verdict import Verdict
from opset.drawing import UnsatisfiableError
from opset.graph import evaluate
from opset.values import Arithmetic
from random_graph.cases import Quality, drawn_case
from random_graph.mixes import MIXES

VARIANTS = {order: Arithmetic(np.float32, order) for order in ("reversed", "blocked")}
CHUNK = 25  # graphs that one process takes at a time


@dataclass
class Found:
    """What came of some graphs.

    Attributes:
        counts: verdicts of graphs by variant, and `undrawn` seeds.
        nearest: largest error in units of the allowed one, of graphs that pass.
        alarms: what was blamed.
    """

    counts: Counter[str] = field(default_factory=Counter)
    nearest: float = 0.0
    qualities: list[Quality] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    def take(self, other: Found) -> None:
        """Adds what came of others."""
        self.counts.update(other.counts)
        self.nearest = max(self.nearest, other.nearest)
        self.qualities += other.qualities
        self.alarms += other.alarms


def examine(mix: str, seeds: Sequence[int]) -> Found:
    """Draws graphs and judges what each variant gives."""
    found = Found()
    for seed in seeds:
        try:
            case, quality = drawn_case(mix, seed)
        except UnsatisfiableError:
            found.counts["undrawn"] += 1
            continue
        found.qualities.append(quality)
        for name, arithmetic in VARIANTS.items():
            _judge(case, name, arithmetic, found)
    return found


def _judge(case: TestCase, name: str, arithmetic: Arithmetic, found: Found) -> None:
    step = case.steps[-1]
    assert isinstance(step.expect, Returns)
    verdict = Verdict.PASS
    results = evaluate(case.models[0], step.inputs, arithmetic)
    for due, result in zip(step.expect.outputs, results, strict=True):
        if result.stored.shape != due.shape:
            verdict, words = Verdict.FAIL, f"shape {result.stored.shape} in place of {due.shape}"
        else:
            judgement = judge_output(due, result.stored)
            words = judgement.message
            if judgement.verdict == Verdict.PASS:
                found.nearest = max(found.nearest, judgement.error or 0.0 if due.distribution is None else 0.0)
                continue
            verdict = judgement.verdict if verdict != Verdict.FAIL else verdict
        found.alarms.append(f"{case.id} {name}: {words}")
    found.counts[f"{name} {verdict.value}"] += 1


def main() -> None:
    """Examines and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.false_alarms", description=__doc__)
    parser.add_argument("--mix", action="append", help="may be given several times; all by default")
    parser.add_argument("--graphs", type=int, default=1000, help="of each mix")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    alarms = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for mix in options.mix or list(MIXES):
            first = options.seed * 1_000_000
            starts = range(first, first + options.graphs, CHUNK)
            chunks = [range(start, min(start + CHUNK, first + options.graphs)) for start in starts]
            found = Found()
            for part in pool.map(examine, [mix] * len(chunks), chunks):
                found.take(part)
            alarms += len(found.alarms)
            print(_words(mix, found), *found.alarms[:20], sep="\n  ", flush=True)
    sys.exit(bool(alarms))


def _words(mix: str, found: Found) -> str:
    counts = ", ".join(f"{name} {number}" for name, number in sorted(found.counts.items()))
    graphs = found.qualities
    if not graphs:
        return f"{mix}: {counts}"
    masked, saturated, zero = (
        float(np.mean([getattr(quality, name) for quality in graphs])) for name in ("masked", "saturated", "zero")
    )
    given_up = sum(quality.attempts for quality in graphs) / (sum(q.attempts for q in graphs) + len(graphs))
    return (
        f"{mix}: {counts}; nearest {found.nearest:.3f} of what is allowed; elements masked {masked:.2%}, saturated "
        f"{saturated:.2%}, zero {zero:.2%}; draws given up {given_up:.1%}"
    )


if __name__ == "__main__":
    main()
