"""Faults of the sample native library that lie deep: how soon the fuzzer finds each, from an empty corpus.

`python -m benchmarks.seeded_faults [--seeds=5] [--minutes=10] [--jobs=2] [--only=NAME]`. For each fault of
tests/native/deep.c a library is built by clang and fuzzed by `python -m fuzz --bare` with all targets, until the fault
is found or the time is over. It is found when a finding's reason or log names it, or, where it shows in results alone,
when one is of that kind.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.native_library import build, compiler

COUNTED = ("-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=undefined")
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Fault:
    """A fault and how it shows.

    Attributes:
        words: one of which stands in the log or reason of its finding.
        verdicts: of a finding that shows it.
        own: the library validates itself; else the adapter does, so that nothing invalid comes to it.
    """

    words: tuple[str, ...]
    verdicts: tuple[str, ...] = ("CRASH",)
    own: bool = False


FAULTS = {
    "DEEP_HEAP": Fault(("in heap ",)),
    "DEEP_STACK": Fault(("in stack ", "stack-buffer-overflow", "out of bounds")),
    "DEEP_LOOP": Fault(("no end of an input", "no answer to execute"), ("HANG",)),
    "DEEP_UNINITIALISED": Fault(("differs in",), ("FAIL", "FLAKY")),
    "DEEP_DIVIDE": Fault(("division by zero",)),
    "DEEP_VALUE": Fault(("differs in",), ("FAIL",)),
    "DEEP_LEAK": Fault(("each run keeps",), ("FAIL",)),
    "DEEP_RACE": Fault(("differs in", "differ"), ("FAIL", "FLAKY")),
    "DEEP_SIGNED": Fault(("signed integer overflow",), own=True),
    "DEEP_NULL": Fault(("in null ", "null pointer"), own=True),
    "DEEP_INDEX": Fault(("heap-buffer-overflow", "heap-use-after-free", "SEGV"), own=True),
    "DEEP_WRAP": Fault(("SEGV", "heap-buffer-overflow", "SIGSEGV", "SIGBUS"), own=True),
    "DEEP_RELEASE": Fault(("heap-use-after-free",)),
    "DEEP_TOKEN": Fault(("heap-use-after-free",)),
    "DEEP_TWICE": Fault(("double-free", "attempting double")),
}


def is_found(folder: Path, fault: Fault) -> bool:
    """Whether the records of a run show the fault."""
    for path in folder.glob("*/records.jsonl"):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if row.get("record") != "case" or row.get("verdict") not in fault.verdicts:
                continue
            text = f"{row.get('message', '')}\n{row.get('log', '')}"
            if any(word in text for word in fault.words):
                return True
    return False


def seconds_to(library: Path, fault: Fault, seed: int, minutes: float, jobs: int) -> float | None:
    """Seconds until the fault is found; None when it is not."""
    with tempfile.TemporaryDirectory(prefix="nncts-faults-") as place:
        driver = str(library) + ("" if fault.own else ",validation=suite")
        line = [sys.executable, "-m", "fuzz", f"--driver={driver}", "--bare", f"--for={int(minutes * 60)}s"]
        line += [f"--jobs={jobs}", f"--seed={seed}", f"--runs={place}/runs", f"--state={place}/state"]
        begun = time.monotonic()
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                while process.poll() is None:
                    if is_found(Path(place) / "runs", fault):
                        return time.monotonic() - begun
                    if time.monotonic() - begun > minutes * 60:
                        return None
                    time.sleep(POLL_SECONDS)
                return time.monotonic() - begun if is_found(Path(place) / "runs", fault) else None
            finally:
                for _ in range(2):  # the first ends it in order, the second at once
                    process.send_signal(signal.SIGINT)
                    time.sleep(0.2)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()


def main() -> int:
    """Prints a row for each fault; the exit status says whether all were found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", choices=sorted(FAULTS))
    options = parser.parse_args()
    clang = compiler("clang")
    if clang is None:
        print("needs clang: apt-get install clang")
        return 2
    missed = 0
    print(f"| fault | {' | '.join(f'seed {seed}' for seed in range(options.seeds))} |", flush=True)
    print(f"| --- |{' --- |' * options.seeds}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nncts-library-") as folder:
        for name in options.only or FAULTS:
            library = build(Path(folder), name, program=clang, options=COUNTED)
            cells = []
            for seed in range(options.seeds):
                taken = seconds_to(library, FAULTS[name], seed, options.minutes, options.jobs)
                missed += taken is None
                cells.append("not found" if taken is None else f"{taken:.0f} s")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"not found: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
