"""Writes `docs/faults.md`: every fault, the rule that it breaks, and what catches it.

Run as `python -m drivers._faults_page [--check]`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from drivers._faults import Fault
from drivers._faults_all import FAULTS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "faults.md"

HEAD = """\
# Misbehaving drivers

Generated from `drivers/_faults*.py` by `python -m drivers._faults_page`; do not edit.

`--driver=faulty,fault=NAME` is the reference driver with one fault, `--driver=faulty,inner=DRIVER,fault=NAME` another.
Each fault breaks one rule and names the cases that have to catch it, with verdict and cause. `tests/test_faulty.py`
runs a few of them on each fault, and the same on the right driver, which none of them may catch.

A case's id is a glob here; where a rule stands beside it, only cases that break such a rule are meant.
"""

SECTIONS = (
    "Preparation",
    "Compilation cache",
    "Model rules",
    "Requests",
    "Output shapes and timing",
    "Deadlines",
    "Fenced execution",
    "Burst",
    "Device memory",
    "Capabilities",
    "Driver: support query",
    "Driver tests: basic",
    "Driver tests: generated",
    "Driver tests: dynamic output shape",
    "Driver tests: quantization coupling",
    "Driver tests: infinite loop timeout",
    "Driver tests: validation",
    "Execution",
    "Reusable execution",
    "Versions",
    "Extensions",
)

# Rules without a fault: section, rule, why.
WITHOUT: tuple[tuple[str, str, str], ...] = (
    ("Preparation", "a null callback is refused", "a preparation answers by returning: it has no callback"),
    ("Preparation", "callbacks of preparations come exactly once", "the same; those of executions are `callback.*`"),
    ("Preparation", "a launch that cannot start is GENERAL_FAILURE", "nothing that a client does provokes it"),
    ("Preparation", "a device that is offline is DEVICE_UNAVAILABLE", "a device under test is there: `status.busy`"),
    ("Compilation cache", "a handle has one descriptor and no integers", "a handle is one descriptor in the contract"),
    (
        "Compilation cache",
        "a descriptor that is used after the call is duplicated",
        "one that is not is closed by then, and nothing is saved: `cache.not_saved`",
    ),
    (
        "Compilation cache",
        "a file that changes in the midst of a load gives right results or GENERAL_FAILURE",
        "a race that no fault wins each time; a change afterwards is `cache.mapped`",
    ),
    ("Requests", "areas of outputs do not overlap one another, inputs or constants", "undefined, and not tested"),
    ("Requests", "an output of a model below level 1.2 is fully specified", "the same check as `request.R7`"),
    ("Output shapes and timing", "levels 1.0 and 1.1 have no shapes", "a matter of the transport"),
    (
        "Output shapes and timing",
        "HIDL counts in microseconds",
        "a matter of the transport: the contract has nanoseconds",
    ),
    ("Output shapes and timing", "too little room is no exception in AIDL", "the contract takes both forms"),
    ("Output shapes and timing", "outputs that are too small have undefined contents", "a permission"),
    ("Output shapes and timing", "suspended time counts", "the suite does not suspend its machine"),
    (
        "Driver tests: dynamic output shape",
        "an output that is one byte short is OUTPUT_INSUFFICIENT_SIZE",
        "GENERAL_FAILURE is as good there: a driver may not know more",
    ),
    ("Deadlines", "HIDL uses the steady clock, AIDL the boot clock", "a matter of the transport"),
    ("Deadlines", "bursts of levels 1.2 and 1.3 have no loop time-out", "a permission"),
    ("Fenced execution", "each fence to wait for is a valid descriptor", "fences are objects in the contract"),
    ("Fenced execution", "outputs have elements", "only a run shows it: a size of 0 in a model means unknown"),
    (
        "Fenced execution",
        "waiting does not count as duration",
        "a limit short enough to show it may be missed by a slow driver, which is legal",
    ),
    (
        "Burst",
        "all rules of the queues of levels 1.2 and 1.3",
        "a matter of the transport: packets, unused bytes, sizes",
    ),
    ("Burst", "one execution of a burst is in flight", "a duty of the client"),
    ("Device memory", "too little memory is GENERAL_FAILURE or RESOURCE_EXHAUSTED", "nothing provokes it everywhere"),
    ("Device memory", "every allocation may be refused", "a permission"),
    ("Capabilities", "fields of each version, and their conversion", "a runtime's part, not a driver's"),
    (
        "Capabilities",
        "a type that is not listed has the performance FLT_MAX",
        "what a driver leaves out cannot be wrong",
    ),
    (
        "Driver: support query",
        "the answer is the same after a restart",
        "as `capabilities.restart`; booleans say too little",
    ),
    ("Driver tests: memory domain", "inputs and outputs lie in every kind of memory", "`request.*` and `buffer.*`"),
    ("Driver tests: fenced compute", "models run fenced", "`wrong.fenced` and those of fenced execution"),
    ("Driver tests: caching", "the table of the compilation cache", "`cache.*`"),
    ("Driver tests: deadline", "the rules of deadlines", "`deadline.*` and `prepare.deadline.*`"),
    ("Execution", "the first execution costs about as much as later ones", "reported, and no failure"),
)


def page_text() -> str:
    """The content of the page."""
    parts = [HEAD, f"{len(FAULTS)} faults.\n"]
    for section in SECTIONS:
        rows = [(name, fault) for name, fault in FAULTS.items() if fault.section == section]
        parts.append(f"## {section}\n")
        parts.append("| fault | the driver | the rule | caught by | verdict, cause |\n|---|---|---|---|---|")
        parts += [_row(name, fault) for name, fault in rows]
        parts.append("")
    parts.append("## Rules without a fault\n")
    parts.append("| section | rule | why |\n|---|---|---|")
    parts += [f"| {' | '.join(_cell(text) for text in row)} |" for row in WITHOUT]
    return "\n".join(parts) + "\n"


def _row(name: str, fault: Fault) -> str:
    cells = [f"`{name}`", fault.text, fault.rule, "; ".join(_catches(fault)), f"{fault.verdict} {fault.cause}".strip()]
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _catches(fault: Fault) -> Iterator[str]:
    if not fault.catch:
        yield "the run as a whole" if fault.verdict != "PASS" else "no case: seen in the records"
        return
    yield f"`{fault.catch}`"
    if fault.breaks:
        yield f"rule `{fault.breaks}`"
    if fault.level is not None:
        yield f"up to level {fault.level}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def stale() -> bool:
    """Whether the page does not say what the faults say."""
    return not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page_text()


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page, or says whether it is stale."""
    parser = argparse.ArgumentParser(prog="python -m drivers._faults_page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the page is stale")
    if not parser.parse_args(arguments).check:
        PAGE.write_text(page_text(), encoding="utf-8")
        return 0
    if stale():
        sys.stderr.write("docs/faults.md does not match the faults; run `python -m drivers._faults_page`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
