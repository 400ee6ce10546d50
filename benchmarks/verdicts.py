"""Drivers made worse on purpose, and ones that are not: how often the benchmark says so, of so many repeats.

`python -m benchmarks.verdicts [--repeats=20] [--only=NAME] [--model=NAME] [--seed=0]`. LiteRT beside itself: the same,
20 % slower, and slower by and by; the reference beside itself: the same, and with a kernel that rounds down. And for
each of five layers drawn by the seed a fault in its kernel, which the accumulation of errors must rank first.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from harness.driver import open_driver
from harness.verdict import Verdict
from mlts.accumulation import accumulate, ranking
from mlts.judging import LATENCY, RESULTS, STABILITY
from mlts.packages import cache_folder
from mlts.plan import PLANS, Plan, Tier
from mlts.running import Outcome, Setting, run_subject
from mlts.subject import Subject
from mlts.subjects import chosen, listed, subject_of
from nnhal.loading import DriverSpec
from nnhal.types import Array
from opset.graph import call_of
from tests.worse_reference import filter_of

ROOT = Path(__file__).resolve().parent.parent
LITERT, REFERENCE = str(ROOT / "tests/worse_litert.py"), str(ROOT / "tests/worse_reference.py")
PLAN = replace(PLANS["smoke"], warm_up=0.2, seconds=2.5, rounds=40, in_flight=())
RESULTS_PLAN = replace(PLANS["smoke"], seconds=0.1, rounds=2, in_flight=())
LAYERS = 5
SAMPLES, OFFERED = 12, 50
KERNELS = ("CONV_2D", "DEPTHWISE_CONV_2D")


def filters(subject: Subject) -> dict[int, int]:
    """The operations of a model that have a filter, and its checksum."""
    model = subject.model
    known: dict[int, Array] = dict(zip(model.main.input_indexes, subject.samples[0], strict=True))
    found = {}
    for number, operation in enumerate(model.main.operations):
        checksum = filter_of(call_of(model, model.main, operation, known))
        if checksum:
            found[number] = checksum
    return found


def flagged(outcome: Outcome, aspect: str) -> bool:
    """Whether the benchmark says that the driver is worse."""
    return outcome.judgements[aspect].verdict in (Verdict.POOR, Verdict.FAIL)


def repeat(
    subject: Subject, driver: str, baseline: str, plan: Plan, cache: Path, log: Path, times: int
) -> list[Outcome]:
    """Outcomes of so many runs."""
    setting = Setting(driver, baseline, plan, Tier(), cache, log, deadline=60.0)
    return [run_subject(subject, setting) for _ in range(times)]


def main() -> int:
    """Prints a row for each driver; the exit status says whether all was as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", action="append", choices=("same", "slow", "drift", "results", "layers"))
    parser.add_argument("--model", default="mobilenet_v1_0.25_128_quant")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cache, wanted = cache_folder(), options.only or ("same", "slow", "drift", "results", "layers")
    (named,) = chosen(listed(), [options.model])
    subject = subject_of(named, cache, OFFERED)
    layers = filters(subject)
    rng = random.Random(options.seed)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="nncts-verdicts-") as folder:
        log = Path(folder) / "driver.log"

        def row(name: str, outcomes: Sequence[Outcome], due: Callable[[Outcome], bool]) -> None:
            nonlocal wrong
            right = sum(map(due, outcomes))
            wrong += len(outcomes) - right
            print(f"| {name} | {right} of {len(outcomes)} |", flush=True)

        print(f"{options.model}, {SAMPLES} inputs\n\n| driver | judged rightly |\n| --- | --- |", flush=True)
        for way in ("same", "slow", "drift"):
            if way not in wanted:
                continue
            found = repeat(subject, f"{LITERT},way={way}", f"{LITERT},way=same", PLAN, cache, log, options.repeats)
            judged: dict[str, Callable[[Outcome], bool]] = {
                "same": lambda one: not any(flagged(one, aspect) for aspect in (RESULTS, LATENCY, STABILITY)),
                "slow": lambda one: flagged(one, LATENCY) and not flagged(one, RESULTS),
                "drift": lambda one: flagged(one, STABILITY) and not flagged(one, RESULTS),
            }
            row(f"LiteRT, {way}", found, judged[way])
        for kernel in ("", *KERNELS) if "results" in wanted else ():
            found = []
            for _ in range(options.repeats):  # with other inputs each time: neither driver leaves anything to chance
                drawn = replace(subject, samples=tuple(rng.sample(subject.samples, SAMPLES)))
                found += repeat(drawn, f"{REFERENCE},kernel={kernel}", REFERENCE, RESULTS_PLAN, cache, log, 1)
            name = f"reference, {kernel} rounds down" if kernel else "reference, same"
            row(name, found, lambda one, bad=bool(kernel): flagged(one, RESULTS) == bad)  # type: ignore[misc]
        if "layers" in wanted:
            for number in rng.sample(sorted(layers), LAYERS):
                spec = DriverSpec.parse(f"{REFERENCE},filter={layers[number]}")
                with closing(open_driver(spec, log_path=log, deadline=60.0, spare=False)) as driver:
                    first = ranking(accumulate(driver.device, subject.model, subject.samples[:2]))[0]
                wrong += first.number != number
                print(f"| fault in operation {number} | ranked first: {first.number} {first.operation} |", flush=True)
    print(f"\nwrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
