"""What the page of a large run costs: `python -m benchmarks.pages [--count=N ...] [--pytest-html=PATH/TO/python]`.

Records as a driver with faults gives them, of every operation and signature, are written and made into a page in a
process of its own; headless Chromium opens it. Seconds of making are those of the processor; seconds of the browser go
by the clock and are the median of several openings. Beside them stand the time that it takes to read the same lines as
JSON and write them again, and, with --pytest-html, what pytest-html does with as many tests, the time of pytest alone
taken off. Ends with 1 where a limit does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.record import Record, RecordFile
from nnhal.errors import UsageError
from opset import OPSET

COUNTS = (30_000, 60_000)
FAILURES, CAUSES = 300, 40
OTHERS = {"NOT_SUPPORTED": (0.06, "UNSUPPORTED"), "NOT_APPLICABLE": (0.03, "LEVEL"), "POOR": (0.01, "QUALITY")}
KINDS = ("drawn",) * 7 + ("broken",) * 2 + ("example",)
RENDERING_S = 5.0  # of the processor, for the first of the counts; more records may take longer in proportion
OPENINGS = 5
PATIENCE_S = 120  # for a page to open
CHROMIUM = "/usr/bin/chromium"
RECIPE = "python3 -m venv VENV && VENV/bin/pip install pytest-html"
BROKEN = (
    "FAIL VALUE execute",
    "FAIL SHAPE execute",
    "FAIL STATUS prepare",
    "CRASH DIED execute",
    "HANG SILENT execute",
)
MESSAGES = (
    "output 'output' differs at ({a}, {b}): got {x:.6g}, due {y:.6g}, allowed {z:.3g}",
    "output 'output' has dimensions ({a}, {b}), due ({b}, {a})",
    "prepared with GENERAL_FAILURE, due NONE: scratch of {a} bytes is too small",
    "the driver died of signal 11 after {x:.3f} s",
    "no answer within {a} s",
)
MAKE = """
import json, sys, time
from pathlib import Path
from harness.record import read_run
from reports import html
start = time.process_time()
run = read_run(Path(sys.argv[1]))
read = time.process_time()
html.write(html.render(run), Path(sys.argv[2]))
assert run.complete and not run.damaged
print(json.dumps({"reading": read - start, "rendering": time.process_time() - read}))
"""
ROUND_TRIP = """
import json, sys, time
start = time.process_time()
with open(sys.argv[1], encoding="utf-8") as lines:
    written = sum(len(json.dumps(json.loads(line))) for line in lines)
print(json.dumps({"seconds": time.process_time() - start}))
"""
TESTS = """
import pytest
@pytest.mark.parametrize("number", range({count}), ids=lambda number: f"ADD-float32-sync-drawn-{{number}}")
def test_case(number):
    if number % {each} == 0:
        pytest.fail(f"output 'output' differs at (0, {{number}}): got 1.5, due 1.25, allowed 0.1", pytrace=False)
"""
FILTERED = """
() => new Promise((resolve) => {
  const start = performance.now();
  location.hash = "#cases?text=conv&verdict=FAIL";
  const look = () => {
    const status = document.querySelector("#cases .status");
    if (status && / of /.test(status.textContent)) resolve((performance.now() - start) / 1000);
    else if (performance.now() - start > 30000) resolve(null);
    else requestAnimationFrame(look);
  };
  look();
})
"""


@dataclass(frozen=True)
class Line:
    """One measured number; `limit` is None where it is only told."""

    name: str
    value: float | None
    unit: str
    limit: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it is within its limit."""
        return self.limit is None or (self.value is not None and self.value < self.limit)

    def words(self) -> str:
        """As a row of the table."""
        value = "not in time" if self.value is None else f"{self.value:.2f}"
        limit = "" if self.limit is None else f"< {self.limit:g}"
        return (
            f"  {self.name:<44}{value:>12} {self.unit:<6}{limit:>8}  {'' if self.holds else 'DOES NOT HOLD'}".rstrip()
        )


def records(count: int, seed: int = 0) -> Iterator[Record]:
    """Records of every signature in turns: failures in so many causes, the rest of the verdicts by their shares."""
    chance = random.Random(seed)
    definitions = OPSET.values()
    pairs = [(one.name, signature.id.replace("/", ".")) for one in definitions for signature in one.signatures]
    faulty = {pairs[place * len(pairs) // CAUSES]: place for place in range(CAUSES)}
    numbers: Counter[str] = Counter()
    failing = {place * count // FAILURES for place in range(FAILURES)}
    owners = list(faulty)
    for place in range(count):
        fails = place in failing
        operation, signature = chance.choice(owners) if fails else pairs[place % len(pairs)]
        kind = "drawn" if fails else KINDS[(place // len(pairs)) % len(KINDS)]
        batch = f"{operation}-{signature}-sync-{kind}"
        number = numbers[batch]
        numbers[batch] += 1
        name = f"{batch}-{number}-{chance.randrange(16**6):06x}"
        told = _failure(chance, faulty[operation, signature]) if fails else _success(chance, kind)
        shapes = [[chance.randint(1, 64) for _ in range(chance.randint(1, 4))] for _ in range(2)]
        detail = f"input0: {signature} {shapes[0]}; input1: {signature} {shapes[1]}; activation NONE"
        repeat = f"pytest --driver=vendor,mode=fast --profile=full --case={name}"
        used = {"seconds": chance.lognormvariate(-5, 1), "sample": {"rss": 2e8 + 1e6 * chance.random()}}
        rest = {"detail": detail, "repeat": repeat, **used, **told}
        yield Record(name, batch, number, operation, signature, kind, "sync", **rest)


def _failure(chance: random.Random, place: int) -> dict[str, Any]:
    verdict, cause, stage = BROKEN[place % len(BROKEN)].split()
    values = {"a": chance.randint(1, 99), "b": chance.randint(1, 99), **{name: chance.gauss(0, 9) for name in "xyz"}}
    found = {"verdict": verdict, "cause": cause, "stage": stage, "message": MESSAGES[place % 5].format(**values),
             "repeated": "same", "log": "driver: scratch exhausted\n" * 20 if verdict == "CRASH" else ""}  # fmt: skip
    if cause == "VALUE":
        ratio = 1 + chance.expovariate(0.1)
        worst = {"output": "output", "index": [values["a"], values["b"]], "got": values["x"], "expected": values["y"],
                 "allowed": 0.1, "ratio": ratio, "ulp": 40 * ratio}  # fmt: skip
        found |= {"worst": worst, "error": ratio, "ulp": 40 * ratio}
    return found


def _success(chance: random.Random, kind: str) -> dict[str, Any]:
    draw = chance.random()
    for verdict, (share, _) in OTHERS.items():
        if draw < share:
            return {"verdict": verdict, "cause": OTHERS[verdict][1], "message": f"of rank {chance.randint(1, 8)}"}
        draw -= share
    if kind == "broken":
        return {"verdict": "PASS", "rule": f"RANK_{chance.choice('ABCDE')}"}
    return {"verdict": "PASS", "error": chance.random(), "ulp": 2 * chance.random()}


def write(folder: Path, count: int) -> Path:
    """Writes a run of so many records; gives the file."""
    found = list(records(count))
    header = {"driver": "vendor,mode=fast", "driver_name": "vendor", "driver_version": "1.4", "profile": "full",
              "time": "2026-01-02T03:04:05+00:00", "traits": {"validates": True}, "feature_level": 8, "options": [],
              "driver_type": "ACCELERATOR", "filtered": False, "suite_version": "0.1.0", "seed": 0}  # fmt: skip
    folder.mkdir(parents=True)
    path = folder / "records.jsonl"
    file = RecordFile(path)
    file.plan(Counter(record.batch for record in found), header)
    for record in found:
        file.case(record)
    file.end(Counter(record.verdict for record in found), 3600.0)
    file.close()
    return path


def measured(command: Sequence[str], folder: Path) -> tuple[str, float, float]:
    """Runs a command: what it writes, seconds of its processor time, megabytes at its peak."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    out = folder / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, cwd=folder, env=environment)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise UsageError(f"{' '.join(command[:4])} ended with {process.returncode}")
    return out.read_text(encoding="utf-8"), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def making(folder: Path, count: int) -> tuple[list[Line], Path]:
    """Makes the page; gives what it cost and the page."""
    path, page = write(folder / "run", count), folder / "report.html"
    out, _, peak = measured([sys.executable, "-c", MAKE, str(folder / "run"), str(page)], folder)
    told = json.loads(out)
    again, _, _ = measured([sys.executable, "-c", ROUND_TRIP, str(path)], folder)
    whole, yardstick = told["reading"] + told["rendering"], json.loads(again)["seconds"]
    return [
        Line("records read", told["reading"], "s"),
        Line("page rendered and written", told["rendering"], "s", RENDERING_S * max(1.0, count / COUNTS[0])),
        Line("both", whole, "s"),
        Line("json.loads and json.dumps of the same lines", yardstick, "s"),
        Line("times as long as that", whole / yardstick, ""),
        Line("peak memory of the process", peak, "MB", 500.0),
        Line("records.jsonl", path.stat().st_size / 1e6, "MB"),
        Line("page", page.stat().st_size / 1e6, "MB", 2.0),
    ], page


def opening(page: Path, chromium: str, times: int = OPENINGS) -> list[Line]:
    """Opens a page in headless Chromium; what does not come in time has no number.

    Raises:
        UsageError: there is none, or the page reports an error.
    """
    try:
        from playwright.sync_api import Error, TimeoutError, sync_playwright
    except ImportError:
        raise UsageError("the browser is driven by Playwright: pip install playwright") from None
    paints: dict[str, list[float]] = {"first-paint": [], "first-contentful-paint": [], "load": [], "filter": []}
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for _ in range(times):
                tab = browser.new_page()
                errors: list[str] = []
                tab.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
                tab.goto(page.absolute().as_uri(), wait_until="load", timeout=1000 * PATIENCE_S)
                tab.wait_for_function("performance.getEntriesByType('paint').length > 1")
                for entry in tab.evaluate("performance.getEntriesByType('paint').map((e) => [e.name, e.startTime])"):
                    paints[entry[0]].append(entry[1] / 1000)
                paints["load"].append(tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000)
                filtered = tab.evaluate(FILTERED)
                paints["filter"] += [filtered] if filtered is not None else []
                tab.close()
                if errors:
                    raise UsageError(f"the page has an error: {errors[0]}")
            browser.close()
    except TimeoutError:
        pass
    except Error as error:
        raise UsageError(f"{chromium} does not open the page: {str(error).splitlines()[0]}") from None
    middle = {name: statistics.median(values) if values else None for name, values in paints.items()}
    return [
        Line("first paint", middle["first-paint"], "s", 1.0),
        Line("first contentful paint", middle["first-contentful-paint"], "s", 1.0),
        Line("page loaded", middle["load"], "s"),
        Line("first filter of the cases applied", middle["filter"], "s", 1.0),
    ]


def peer(folder: Path, python: str, count: int, chromium: str) -> list[Line]:
    """What pytest-html makes of as many tests with as many failures.

    Raises:
        UsageError: that Python has none.
    """
    known = [python, "-c", "import pytest_html"]
    if not Path(python).is_file() or subprocess.run(known, capture_output=True, check=False).returncode:
        raise UsageError(f"--pytest-html={python} has no pytest-html; {RECIPE} makes one")
    (folder / "test_peer.py").write_text(TESTS.format(count=count, each=count // FAILURES), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    plain = [python, "-m", "pytest", "-q", "--tb=no", "-rN", "-p", "no:cacheprovider", "test_peer.py"]
    _, alone, _ = measured(plain, folder)
    page = folder / "peer.html"
    _, seconds, peak = measured([*plain, f"--html={page}", "--self-contained-html"], folder)
    return [
        Line("pytest-html: processor time beside pytest's", seconds - alone, "s"),
        Line("pytest-html: peak memory, pytest's included", peak, "MB"),
        Line("pytest-html: page", page.stat().st_size / 1e6, "MB"),
        *(Line(f"pytest-html: {line.name}", line.value, line.unit) for line in opening(page, chromium, 1)[:3]),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--count", type=int, action="append", metavar="N", help="records; default 30000, then 60000")
    parser.add_argument("--chromium", default=CHROMIUM, metavar="FILE", help=f"browser (default: {CHROMIUM})")
    parser.add_argument("--pytest-html", metavar="PYTHON", help=f"of an environment with pytest-html: {RECIPE}")
    options = parser.parse_args(arguments)
    holds = True
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}")
    try:
        for count in options.count or COUNTS:
            with tempfile.TemporaryDirectory() as folder:
                lines, page = making(Path(folder), count)
                lines += opening(page, options.chromium)
                print(f"\n{count:,} records, {FAILURES} failures of {CAUSES} causes, {len(OPSET)} operations\n")
                print("\n".join(line.words() for line in lines), flush=True)
                for line in (
                    peer(Path(folder), options.pytest_html, count, options.chromium) if options.pytest_html else ()
                ):
                    print(line.words(), flush=True)
            holds = holds and all(line.holds for line in lines)
    except UsageError as error:
        print(f"benchmarks.pages: {error}", file=sys.stderr)
        return 2
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
