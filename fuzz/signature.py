"""What tells findings apart: the place of a crash where a log names it, else the way in which a case fails."""

from __future__ import annotations

import re
from pathlib import Path

from harness.case import TestCase
from harness.expectations import Returns
from harness.record import Record
from harness.verdict import Verdict
from random_graph.triage import look_at, mismatch

FRAMES = 3  # that tell two crashes apart
FRAME = re.compile(r"#\d+ 0x[0-9a-f]+ in (?P<name>[^\s(]+)(?:\([^)]*\))? (?P<place>\S+)")
ERROR = re.compile(r"ERROR: AddressSanitizer: (?P<kind>[\w-]+)")
UNDEFINED = re.compile(r"(?P<place>\S+?):(?P<line>\d+):\d+: runtime error: (?P<kind>.+)")
PYTHON = re.compile(r'  File "(?P<file>[^"]+)", line \d+ in (?P<name>\S+)')
# Frames of what stands around a driver: sanitizers, the fuzzer, the interpreter, the C library.
AROUND = re.compile(
    r"^(?:__(?:asan|ubsan|interceptor|sanitizer)\w*|_?_?(?:GI_)?(?:raise|abort|libc_start\w*)|_?Py\w+|ffi_\w+)"
    r"|^(?:malloc|calloc|realloc|free|memcpy|memset|memmove|strlen)$"
)
SUITE = ("/fuzz/", "/harness/", "runpy", "/threading.py")
_DIGITS = re.compile(r"-?\d+(?:\.\d+)?")


def crash_place(log: str) -> tuple[str, ...]:
    """Where a crash happened, as a log tells: a sanitizer's kind and functions, or a Python driver's; else nothing."""
    undefined = UNDEFINED.search(log)
    if undefined:
        kind = _DIGITS.sub("#", undefined["kind"])[:80]
        return (kind, f"{Path(undefined['place']).name}:{undefined['line']}")
    address = ERROR.search(log)
    if address:
        own = [m["name"] for m in FRAME.finditer(log, address.end()) if not AROUND.match(m["name"])]
        return (address["kind"], *own[:FRAMES])
    return _python_place(log)


def _python_place(log: str) -> tuple[str, ...]:
    """The innermost functions of the thread that crashed, in front of the suite's."""
    start = log.rfind("Current thread")
    if start < 0:
        start = log.rfind("Thread 0x")
    if start < 0:
        return ()
    found = []
    for match in PYTHON.finditer(log, start):
        if any(part in match["file"] for part in SUITE):
            break
        found.append(f"{Path(match['file']).name} {match['name']}")
    return tuple(found[:FRAMES])


def key_of(case: TestCase, record: Record, log: str) -> tuple[str, ...]:
    """What tells a finding from others."""
    if record.verdict in (Verdict.CRASH.value, Verdict.HANG.value):
        place = crash_place(log)
        if place:
            return (record.verdict, *place)
    if record.verdict == Verdict.INTERNAL.value:  # of no model: its words tell one defect of the suite from another
        return (record.verdict, record.stage, _DIGITS.sub("#", record.message)[:160])
    if case.negative and record.rule:
        return (record.verdict, record.cause, record.stage, record.rule)
    returns = all(isinstance(step.expect, Returns) for step in case.steps)
    if len(case.models) == 1 and returns:
        return look_at(case, record).key
    return (record.verdict, record.cause, record.stage, case.origin.signature, record.rule, mismatch(record))
