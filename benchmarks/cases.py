"""Judged cases a second on one core, isolated: `python -m benchmarks.cases [DRIVER]`.

Everything is counted: making the case, running it in the driver's process, judging, recording. Suite and driver share
one core. Beside it stands the same without isolation, and the share that each stage takes.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from conformance.cases import positive_batches
from harness.driver import open_driver
from harness.guards import Arena
from harness.judge import judge
from harness.record import RecordFile, record_of
from harness.run import run
from nnhal.loading import DriverSpec

CASES = 1500
AIM = 300


def measure(spec: DriverSpec, folder: Path, *, in_process: bool) -> tuple[float, dict[str, float], Counter[str]]:
    """Cases a second, milliseconds a case by stage, and verdicts."""
    chooser = random.Random(1)
    batches = list(positive_batches("quick", 0))
    chosen = [(batch, chooser.choice(batch.numbers)) for batch in (chooser.choice(batches) for _ in range(CASES))]
    driver = open_driver(spec, log_path=folder / "driver.log", in_process=in_process)
    records, arena = RecordFile(folder / "records.jsonl"), Arena()
    stages: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    started = time.perf_counter()
    for batch, number in chosen:
        marks = [time.perf_counter()]
        case = batch.make(number)
        marks.append(time.perf_counter())
        outcome = run(case, driver.device, arena, in_process=in_process)
        marks.append(time.perf_counter())
        judgement = judge(case, outcome)
        marks.append(time.perf_counter())
        records.case(record_of(case, judgement))
        marks.append(time.perf_counter())
        for stage, first, last in zip(("make", "run", "judge", "record"), marks, marks[1:], strict=False):
            stages[stage] += last - first
        verdicts[judgement.verdict.value] += 1
    seconds = time.perf_counter() - started
    driver.close()
    records.close()
    return CASES / seconds, {stage: total / CASES * 1e3 for stage, total in stages.items()}, verdicts


def main() -> None:
    """Prints the rates."""
    spec = DriverSpec.parse(sys.argv[1] if len(sys.argv) > 1 else "reference")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        for in_process in (True, False):
            rate, stages, verdicts = measure(spec, Path(folder), in_process=in_process)
            words = ", ".join(f"{stage} {ms:.2f}" for stage, ms in stages.items())
            where = "in process" if in_process else f"isolated (aim {AIM})"
            print(f"{spec.text} {where}: {rate:.0f} cases/s on one core; ms a case: {words}; {dict(verdicts)}")


if __name__ == "__main__":
    main()
