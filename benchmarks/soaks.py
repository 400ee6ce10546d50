"""Soaks of a driver that leaks a little, and of one that does not: is the leak found, and nothing else?

`python -m benchmarks.soaks [--seconds=600] [--clean=10] [--rate=10] [--jobs=2]`. The leaking driver keeps so many MiB
an hour, spread over its executions; the clean one is the reference driver. Each soak is the workload `soak`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

from nnhal.loading import DriverSpec
from stress.performing import get_ready, perform, scenes_of
from stress.presets import PRESETS
from stress.result import Ending
from stress.workloads import WORKLOADS

LEAKING = Path(__file__).parents[1] / "tests" / "leaking_driver.py"


def soak(job: tuple[str, float, int]) -> tuple[str, str, str, dict[str, float]]:
    """One soak: driver, ending, message, numbers."""
    driver, seconds, seed = job
    ready = get_ready(DriverSpec.parse(driver), PRESETS["short"], seed, 10.0, length=seconds)
    (scene,) = scenes_of(WORKLOADS["soak"], "", ready.kit)
    result, _, _ = perform(scene, ready)
    return driver, result.ending.value, result.message, dict(result.numbers)


def main() -> int:
    """Soaks and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clean", type=int, default=10, help="soaks of the clean driver")
    parser.add_argument("--leaks", type=int, default=1, help="soaks of the leaking driver")
    parser.add_argument("--rate", type=float, default=10.0, help="MiB an hour that it keeps")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    leaking = f"{LEAKING}:DRIVER,rate={options.rate:g}"
    jobs = [(leaking, options.seconds, n) for n in range(options.leaks)]
    jobs += [("reference", options.seconds, n) for n in range(options.clean)]
    wrong = 0
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for driver, ending, message, numbers in pool.imap_unordered(soak, jobs):
            due = Ending.FAILURE if driver == leaking else Ending.SUCCESS
            wrong += ending != due.value
            words = ", ".join(
                f"{name} {numbers[f'{name}_per_hour']:.2f} ({numbers[f'{name}_per_hour_low']:.2f} to "
                f"{numbers[f'{name}_per_hour_high']:.2f})"
                for name in ("rss", "shared", "descriptors")
                if f"{name}_per_hour" in numbers
            )
            print(
                f"{'leaking' if driver == leaking else 'clean'}: {ending}; for each hour: {words}. {message}",
                flush=True,
            )
    print(f"{len(jobs) - wrong} of {len(jobs)} as due")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
