"""How soon random graphs find a fault in one kernel, and how small they make it: `python -m benchmarks.fault_finding`.

Each of ten faults, in ten families, is put into the reference driver (`tests/wrong_driver.py`), and a campaign is run
against it. Printed are the seconds until the first graph failed and until the first failure was minimised, the start of
the processes included; the number of distinct failures; and how many operations are left in each. A campaign ends when
its first failure is minimised, unless `--whole` is given: then it runs for as long as --for says.

Exit status 1 when a fault is not found, or one to two operations are not what is left of each failure.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.generic_faults import FAULTS as GENERIC

DRIVER = "tests/wrong_driver.py"
FAULTS = (
    ("ADD", "ac"),
    ("CONV_2D", "zi"),
    ("SOFTMAX", "of"),
    ("TRANSPOSE", "ro"),
    ("GATHER", "fr"),
    ("REDUCE_MAX", "ze"),
    ("LOGISTIC", "b8"),
    ("PAD_V2", "re"),
    ("QUANTIZE", "zo"),
    ("GREATER", "ne"),
)
MOST_LEFT = 2  # operations of a minimised failure
LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Found:
    """What a campaign found.

    Attributes:
        failed: seconds until the first graph failed; None where none did.
        minimised: seconds until a failure was minimised.
        graphs: number of graphs that have a record.
        sizes: operations that are left of each distinct failure that was minimised.
        others: distinct failures that could not be; what the end of the campaign left undone does not count.
    """

    failed: float | None
    minimised: float | None
    graphs: int
    sizes: tuple[int, ...]
    others: int

    @property
    def good(self) -> bool:
        """Whether the fault was found, and every failure made small."""
        return bool(self.sizes) and max(self.sizes) <= MOST_LEFT and not self.others


def search(operation: str, fault: str, options: argparse.Namespace) -> Found:
    """Runs a campaign against a driver with a fault."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "random_graph", f"--driver={DRIVER},operation={operation},fault={fault}"]
        command += [f"--mix={options.mix}", f"--for={options.time}", f"--jobs={options.jobs}", f"--seed={options.seed}"]
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, f"--runs={folder}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        failed = minimised = None
        while process.poll() is None:
            time.sleep(LOOK_SECONDS)
            seconds = time.monotonic() - started
            if failed is None and any(row["verdict"] == "FAIL" for row in _cases(folder)):
                failed = seconds
            if minimised is None and any(map(_is_minimised, _rows(folder, "failures.jsonl"))):
                minimised = seconds
                if not options.whole:
                    process.send_signal(signal.SIGINT)
        if process.returncode not in (0, 1):
            raise SystemExit(process.stderr.read() if process.stderr else "")
        rows = _rows(folder, "failures.jsonl")
        sizes = tuple(len(row["operations"]) for row in rows if _is_minimised(row))
        others = sum(bool(row["note"]) and not row["pending"] for row in rows)
        return Found(failed, minimised, len(_cases(folder)), sizes, others)


def _rows(folder: str, name: str) -> list[dict[str, Any]]:
    """The whole lines of a file in the campaign's folder."""
    lines: list[str] = []
    for path in Path(folder).glob(f"*/{name}"):
        lines += [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in lines]


def _cases(folder: str) -> list[dict[str, Any]]:
    return [row for row in _rows(folder, "records.jsonl") if row["record"] == "case"]


def _is_minimised(row: dict[str, Any]) -> bool:
    return not row["note"] and not row["pending"]


def _pair(text: str) -> tuple[str, str]:
    operation, separator, fault = text.partition("/")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text} is no OPERATION/FAULT")
    return operation, fault


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fault_finding", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--fault", action="append", type=_pair, metavar="OPERATION/FAULT", help="only these; may be repeated")
    add("--whole", action="store_true", help="go on after the first failure is minimised")
    add("--for", dest="time", default="2m", metavar="TIME", help="of a campaign, at most (default: %(default)s)")
    add("--mix", default="small")
    add("--jobs", type=int, default=2)
    add("--seed", type=int, default=0)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    options = _parser().parse_args(arguments)
    texts = {fault.key: fault.text for fault in GENERIC}
    cores = len(os.sched_getaffinity(0))
    print(f"mix {options.mix}, {options.jobs} jobs, {cores} cores, load {os.getloadavg()[0]:.1f}\n")
    print(f"{'operation':<16}{'failed':>8}{'minimised':>11}{'graphs':>8}{'distinct':>10}  operations left, fault")
    good = True
    for operation, fault in options.fault or FAULTS:
        found = search(operation, fault, options)
        good &= found.good
        first, second = (f"{s:.1f} s" if s is not None else "never" for s in (found.failed, found.minimised))
        left = ", ".join(map(str, found.sizes)) + (f", {found.others} not minimised" if found.others else "")
        distinct = len(found.sizes) + found.others
        line = f"{operation:<16}{first:>8}{second:>11}{found.graphs:>8}{distinct:>10}  {left or 'none'}: "
        print(f"{line}{texts.get(fault, fault)}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
