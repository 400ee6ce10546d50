"""Misbehaving drivers and clients, each classified by the supervisor of stress runs: how many rightly, how soon.

`python -m benchmarks.classification [--count=1000] [--jobs=2] [--seed=0] [--load]`. Each trial is a run of its own:
a kind of misbehaviour, at a stage, of the driver or of a client, in process or as a service, at a moment that is drawn.
With `--load` as many processes as there are processors are busy meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.process import tagged
from stress.result import Ending
from tests.misbehaving import MARK
from tests.stress_trials import DEADLINE, Trial, attempt, drawn, wrong

WHOLE = 1000
SHOWN = 30  # of what was classified wrongly


@dataclass(frozen=True)
class Came:
    """What came of a trial.

    Attributes:
        lateness: seconds from the misbehaviour to when a crash was seen, or from the deadline to when a hang was; None
            where that is not known.
        worker: the process that ran it.
    """

    trial: Trial
    ending: str
    wrong: tuple[str, ...]
    seconds: float
    lateness: float | None
    worker: int


def run(numbered: tuple[int, Trial]) -> Came:
    """Runs one trial."""
    number, trial = numbered
    begun = time.monotonic()
    result, evidence = attempt(trial, seed=str(number))
    lateness = None
    moments = re.findall(rf"{MARK}([0-9.]+)", result.log)
    if moments and evidence.start and result.ending in (Ending.CRASH, Ending.HANG):
        lateness = evidence.start + result.at - float(moments[-1])
        lateness -= DEADLINE if result.ending == Ending.HANG else 0.0
    words = tuple(wrong(trial, result, evidence))
    return Came(trial, result.ending.value, words, time.monotonic() - begun, lateness, os.getpid())


def _spin() -> None:
    while os.getppid() != 1:
        sum(range(100_000))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other processes that use the processors."""
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_spin, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def table(came: list[Came]) -> Iterator[str]:
    """A row for each kind: trials and right ones, by side and place."""
    places = list(itertools.product((True, False), (False, True)))
    words = [f"{'driver' if d else 'client'}, {'in process' if i else 'service'}" for d, i in places]
    yield f"| kind | {' | '.join(words)} |"
    yield f"| --- |{' --- |' * len(places)}"
    rows: dict[str, dict[tuple[bool, bool], list[Came]]] = defaultdict(lambda: defaultdict(list))
    for one in came:
        rows[one.trial.kind][one.trial.driver, one.trial.in_process].append(one)
    for kind in sorted(rows):
        cells = []
        for place in places:
            found = rows[kind][place]
            cells.append(f"{sum(not one.wrong for one in found)} of {len(found)}" if found else "")
        yield f"| {kind} | {' | '.join(cells)} |"


def main() -> int:
    """Runs all; the exit status says whether all were classified rightly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=WHOLE)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", action="store_true")
    options = parser.parse_args()
    came: list[Came] = []
    begun = time.monotonic()
    trials = list(enumerate(drawn(options.count, options.seed)))
    load = os.cpu_count() or 1
    with busy(load if options.load else 0), multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for one in pool.imap_unordered(run, trials):
            came.append(one)
            if one.wrong:
                print(f"{one.trial.name}, {one.trial.threads} threads: {'; '.join(one.wrong)}", flush=True)
            if len(came) % 50 == 0:
                sys.stderr.write(f"{len(came)} of {len(trials)}, {time.monotonic() - begun:.0f} s\n")
    right = sum(not one.wrong for one in came)
    print("\n".join(table(came)))
    state = "loaded" if options.load else "free"
    print(f"classified rightly: {right} of {len(came)}, seed {options.seed}, machine {state}")
    print(f"endings: {dict(Counter(one.ending for one in came))}")
    for ending, words in (("CRASH", "crashes seen after"), ("HANG", "hangs seen behind their deadline after")):
        late = sorted(one.lateness for one in came if one.lateness is not None and one.ending == ending)
        if late:
            median, most = late[len(late) // 2], late[int(len(late) * 0.99)]
            print(f"{words}: median {median:.3f} s, 99 % {most:.3f} s, latest {late[-1]:.3f} s, of {len(late)}")
    orphans = [pid for worker in {one.worker for one in came} for pid in tagged(f"{worker}-")]
    print(f"orphans: {len(orphans)}; took {time.monotonic() - begun:.0f} s")
    return 0 if right == len(came) and not orphans else 1


if __name__ == "__main__":
    sys.exit(main())
