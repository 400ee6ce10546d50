"""What a native driver's case costs beside the reference driver's: the same one-operation models, both isolated.

`python -m benchmarks.native [ROUNDS]` builds the sample library of tests/native/ and runs cases of its six operations
in turns on both. A case is the support query, preparation and one synchronous execution; aim: below 1.5 times.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from conformance.cases import positive_batches
from harness.case import TestCase
from harness.guards import Arena
from harness.isolation import IsolatedDriver
from harness.judge import judge
from harness.run import run
from harness.verdict import Verdict
from nnhal.device import Device
from tests.native_library import build

OPERATIONS = ("ADD", "MUL", "CONV_2D", "RELU", "RESHAPE", "SOFTMAX")
CASES = 120
ROUNDS = 10
WARM_UP = 2
AIM = 1.5


def cases(native: Device) -> list[TestCase]:
    """Drawn cases that the library passes."""
    found, arena = [], Arena()
    for batch in positive_batches("quick", 0):
        if batch.origin.operation not in OPERATIONS or "-sync-drawn" not in f"{batch.id}-":
            continue
        for number in batch.numbers[:2]:
            case = batch.make(number)
            if judge(case, run(case, native, arena)).verdict == Verdict.PASS:
                found.append(case)
        if len(found) >= CASES:
            break
    return found


def seconds_of(case: TestCase, device: Device, arena: Arena) -> float:
    """Seconds for a case; judging does not count."""
    start = time.perf_counter()
    run(case, device, arena)
    return time.perf_counter() - start


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    rounds = int(arguments[0]) if arguments else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        with IsolatedDriver(str(library), spare=False) as one, IsolatedDriver("reference", spare=False) as other:
            native, reference, arena = one.device, other.device, Arena()
            chosen = cases(native)
            for case in chosen * WARM_UP:
                seconds_of(case, reference, arena)
            ratios, mine, theirs = [], [], []
            for _ in range(rounds):
                a = [seconds_of(case, native, arena) for case in chosen]
                b = [seconds_of(case, reference, arena) for case in chosen]
                mine.append(float(np.median(a)))
                theirs.append(float(np.median(b)))
                ratios.append(sum(a) / sum(b))
            low, high = np.percentile(ratios, (10, 90))
            print(f"{len(chosen)} cases, {rounds} rounds, load {os.getloadavg()[0]:.1f}")
            print(f"native    {np.median(mine) * 1e6:8.0f} us a case (median)")
            print(f"reference {np.median(theirs) * 1e6:8.0f} us a case (median)")
            print(f"ratio of the sums {np.median(ratios):.2f} (10 to 90 %: {low:.2f} to {high:.2f}), aim below {AIM}")


if __name__ == "__main__":
    main(sys.argv[1:])
