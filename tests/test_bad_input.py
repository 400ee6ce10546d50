"""Bad input on pytest's command line: one sentence that names the thing and the mend, exit status 4, nothing left."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.plugin_runs import DRIVERS, ROOT, SECONDS, USAGE, once, pytest_run, write_driver

EMPTY, UNPLANNED, OTHERS = "empty", "unplanned", "others"
BAD_INPUT: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown driver": (("--driver=nosuch",), "driver 'nosuch' not found; installed: "),
    "no such module": (("--driver=no.such:DRIVER",), "there is no module 'no.such'"),
    "no such file": (("--driver=no/such.py:DRIVER",), "driver file 'no/such.py' does not exist; give path/to/file.py"),
    "no name": (("--driver=,a=1",), "has no name; write NAME[,key=value...]"),
    "raises": (("--driver={raises}",), "fails to import: RuntimeError: no licence"),
    "syntax error": (("--driver={syntax}",), "fails to import: SyntaxError: "),
    "missing package": (("--driver={extra}",), "No module named 'a_runtime_that_is_not_here'"),
    "missing extra": (("--driver={told}",), "install the extra: pip install 'x[runtime]'"),
    "no attribute": (("--driver={empty}",), "has no attribute 'DRIVER'; define DRIVER = YourDevice"),
    "a number": (("--driver={number}",), "is int; a Device is needed"),
    "no device": (("--driver={other}",), "gives object, which is no nnhal.device.Device"),
    "not complete": (("--driver={abstract}",), "is not complete: "),
    "leaves": (("--driver={exits}",), "fails to import: SystemExit: 3"),
    "dies": (("--driver={dies}",), "could not be loaded: its process exited with status 7"),
    "fails to start": (("--driver={starts}",), "fails to start: OSError: no such device"),
    "unknown option": (("--driver=reference,colour=red",), "does not take these options (given: colour)"),
    "wrong option": (("--driver=reference,order=odd",), "order=odd of reference is unknown; give one of natural"),
    "no option": (("--driver=reference,odd",), "driver option 'odd' of 'reference,odd' is not key=value"),
    "in this process": (("--driver={raises}", "--in-process"), "fails to import: RuntimeError: no licence"),
    "second driver": (("--driver=reference", "--driver=nosuch"), "driver 'nosuch' not found"),
    "no match": (("--driver-match=nosuch",), "--driver-match=nosuch matches none of faulty, "),
    "no expression": (("--driver-match=(",), "--driver-match=( is no regular expression: "),
    "low level": (("--level=0",), "--level=0 is no feature level; give 1 to 8"),
    "high level": (("--level=9",), "--level=9 is no feature level"),
    "memory": (("--memory=lots",), "--memory=lots is no size; write a number of bytes, or 512M, or 4G"),
    "no time": (("--deadline=0",), "--deadline=0 is no time; give seconds above 0"),
    "not a number": (("--deadline=nan",), "--deadline=nan is no time"),
    "no waivers": (("--waivers=no/such.toml",), "waiver file no/such.toml cannot be read: No such file"),
    "no TOML": (("--waivers={tmp}/bad.toml",), "bad.toml is not TOML: "),
    "bad waiver": (("--waivers={tmp}/waivers.toml",), "entry 1: 'reason' is missing; give a text"),
    "no case": (("--case=NOSUCH-*",), "no case matches NOSUCH-*; see the ids in a run's records.jsonl"),
    "no case file": (("--case=no/such.case",), "case file no/such.case does not exist; give a case id, a glob"),
    "bad case file": (("--case={tmp}/bad.toml",), "bad.toml is not a case file; save one with a failing run"),
    "no run": (("--resume=no/such",), "no/such holds no records*.jsonl; give the folder of a run"),
    "run without a plan": (("--resume={tmp}/unplanned",), "unplanned has no plan, so that nobody knows what is left"),
    "another driver": (("--resume={tmp}/others", "--driver=faulty"), "is a run of driver reference; --resume goes on"),
    "another seed": (("--resume={tmp}/others", "--seed=5"), "was started with --seed=3; --resume goes on with that"),
}
SCRIPT = """
import contextlib, io, json, sys, pytest
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = pytest.main(arguments)
    print(json.dumps([int(status), out.getvalue(), err.getvalue()]))
"""


@dataclass(frozen=True)
class Refused:
    """What came of bad input: by name, status, output and error output; and what was left in the folder for runs."""

    ran: dict[str, tuple[int, str, str]]
    left: list[str]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Refused:
    folder, rows = once(tmp_path_factory, "bad_input", refuse)
    ran = {name: (row[0], row[1], row[2]) for name, row in zip(BAD_INPUT, rows, strict=True)}
    return Refused(ran, [path.name for path in (folder / "runs").glob("*")])


def refuse(tmp: Path) -> object:
    """All bad input, in one process after another `pytest.main`: what is imported once serves all."""
    runs = tmp / "runs"
    (tmp / "bad.toml").write_text("[[waiver")
    (tmp / "waivers.toml").write_text("[[waiver]]\ncases = 'x'\n")
    for name, line in (
        (UNPLANNED, {"record": "resume"}),
        (OTHERS, {"record": "plan", "format": 1, "driver": "reference", "seed": 3, "batches": {}}),
    ):
        (tmp / name).mkdir()
        (tmp / name / "records.jsonl").write_text(json.dumps(line) + "\n")
    named = {name: write_driver(tmp, name) for name in DRIVERS}
    always = ["-q", "-p", "no:cacheprovider", f"--runs={runs}"]
    calls = []
    for arguments, _ in BAD_INPUT.values():
        few = [] if any("--case" in a or "--resume" in a for a in arguments) else ["--case=ADD-float32-*"]
        calls.append([*always, *few, *(a.format(tmp=tmp, **named) for a in arguments)])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, input=json.dumps(calls), capture_output=True, text=True,
        timeout=SECONDS, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_told_in_one_sentence(refused: Refused, name: str) -> None:
    status, out, err = refused.ran[name]
    assert status == USAGE
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith("ERROR: ")
    assert BAD_INPUT[name][1] in lines[0]
    assert "Traceback" not in out + err
    assert "INTERNALERROR" not in out + err


def test_bad_input_leaves_no_folders(refused: Refused) -> None:
    assert [name for name in refused.left if "reference" not in name] == []


def test_a_process_of_its_own_ends_with_the_same_status(tmp_path: Path) -> None:
    ran = pytest_run(tmp_path, "--driver=nosuch", "--case=ADD-float32-*")
    assert (ran.status, ran.runs) == (USAGE, ())
    assert len(ran.err.strip().splitlines()) == 1
