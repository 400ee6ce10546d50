"""Graphs a second of a campaign, and what the time goes to: `python -m benchmarks.campaign [SECONDS] [MIX]`.

Each driver in processes of its own, with one and with two jobs, one after the other; SECONDS for each of the four. The
start of the processes does not count. What a job does beside graphs does: failures are run again and minimised.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from random_graph.spending import STAGES

DRIVERS = ("reference", "litert")
JOBS = (1, 2)


def measure(driver: str, jobs: int, seconds: int, mix: str) -> tuple[dict[str, Any], str]:
    """The end marker of a campaign, and the counts of its verdicts."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"--driver={driver}", f"--mix={mix}", f"--for={seconds}s", f"--jobs={jobs}", f"--runs={folder}"]
        done = subprocess.run(
            [sys.executable, "-m", "random_graph", *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1):
            raise SystemExit(done.stderr)
        (records,) = Path(folder).glob("*/records.jsonl")
        end = json.loads(records.read_text(encoding="utf-8").splitlines()[-1])
    return end, ", ".join(f"{number} {verdict}" for verdict, number in end["counts"].items())


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    seconds = int(arguments[0]) if arguments else 30
    mix = arguments[1] if len(arguments) > 1 else "small"
    print(f"mix {mix}, {seconds} s each, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}\n")
    print(f"{'driver':<12}{'jobs':>4}{'graphs/s':>10}  " + "".join(f"{stage:>12}" for stage in STAGES) + "  verdicts")
    for driver in DRIVERS:
        for jobs in JOBS:
            end, verdicts = measure(driver, jobs, seconds, mix)
            total = sum(end["spent"].values())
            shares = "".join(f"{100 * end['spent'][stage] / total:>10.1f} %" for stage in STAGES)
            print(f"{driver:<12}{jobs:>4}{end['rate']:>10.1f}  {shares}  {verdicts}")


if __name__ == "__main__":
    main(sys.argv[1:])
