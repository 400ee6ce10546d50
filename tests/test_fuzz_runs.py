"""Whole fuzzing runs in processes of their own: what they find, keep, say, and how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.__main__ import main
from fuzz.targets import TARGETS
from harness.case_file import load
from harness.record import read_run
from tests.campaign_runs import Ran
from tests.native_library import build, compiler
from tests.plugin_runs import ROOT, SECONDS, once

RELEASED = "faulty,fault=buffer.released"
CLANG = compiler("clang")
COUNTED = ("-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=undefined")


def command(place: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "fuzz", f"--runs={place / 'runs'}", f"--state={place / 'state'}", *arguments]


def fuzz(place: Path, *arguments: str) -> Ran:
    done = subprocess.run(
        command(place, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    runs = sorted((place / "runs").glob("*/"))
    return Ran(done.returncode, done.stdout, done.stderr, runs[-1] if runs else place)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A run that finds that a buffer can be used after it was released: it takes a sequence of calls."""

    def compute(folder: Path) -> list[object]:
        ran = fuzz(folder, f"--driver={RELEASED}", "--target=sequences", "--for=10m", "--first")
        return [ran.status, ran.out, ran.err]

    folder, (status, out, err) = once(tmp_path_factory, "fuzz-released", compute)
    return folder, Ran(status, out, err, next((folder / "runs").glob("*/")))


def test_a_fault_that_takes_a_sequence_of_calls_is_found(found: tuple[Path, Ran]) -> None:
    _, ran = found
    assert ran.status == 1, ran.err
    (record,) = [r for r in ran.run.records.values() if "released" in r.message]
    assert (record.verdict, record.cause) == ("FAIL", "ACCEPTED")
    assert "execute accepted what breaks B2 (the buffer has been released)" in ran.out
    actions = [step.action.value for step in load(ran.folder / record.saved).steps]
    assert actions.index("allocate") < actions.index("release") < len(actions) - 1


def test_a_finding_has_its_case_its_input_and_words(found: tuple[Path, Ran]) -> None:
    place, ran = found
    record = next(iter(ran.run.records.values()))
    failures = ran.folder / "failures"
    assert {path.suffix for path in failures.iterdir()} >= {".case", ".bin", ".txt"}
    (data,) = failures.glob("sequences-*.bin")
    again = fuzz(place, f"--driver={RELEASED}", f"--reproduce={data}")
    assert again.status == 1
    assert "breaks B2" in again.out
    sound = fuzz(place, "--driver=reference", f"--reproduce={ran.folder / record.saved}")
    assert sound.status == 0, sound.out
    assert "PASS" in sound.out


@pytest.mark.thorough
def test_what_is_known_is_not_new_again(found: tuple[Path, Ran]) -> None:
    place, ran = found
    names = {finding["id"] for finding in json.loads((place / "state" / "findings.json").read_text())["findings"]}
    assert {record.id for record in ran.run.records.values()} <= names
    again = fuzz(place, f"--driver={RELEASED}", "--target=sequences", "--for=12s")
    known = [r for r in again.run.records.values() if "breaks B2" in r.message]
    assert again.status == (1 if any(not r.notes for r in again.run.records.values() if r.bad) else 0)
    assert all("known since" in r.notes[0] for r in known)


def test_each_target_runs_on_the_reference_and_finds_nothing(tmp_path: Path) -> None:
    ran = fuzz(tmp_path, "--driver=reference", "--target=driver", "--target=own", "--for=5s", "--jobs=2")
    assert ran.status == 0, ran.out
    assert not ran.run.records
    assert ran.run.ended
    targets = ran.run.end["targets"]
    assert set(targets) == set(TARGETS)
    assert all(row["inputs"] for row in targets.values()), targets
    page = subprocess.run(
        [sys.executable, "-m", "reports", str(ran.folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert page.returncode == 0, page.stderr


def test_the_suites_own_readers_need_no_driver(tmp_path: Path) -> None:
    ran = fuzz(tmp_path, "--target=parse-waivers", "--for=5s")
    assert ran.status == 0, ran.out
    assert "1 at once" in ran.out


@pytest.mark.thorough
def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    line = command(tmp_path, "--driver=reference", "--target=wire", "--for=20s")
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for text in process.stderr:
            if " inputs, " in text:
                break
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "interrupted; go on: python -m fuzz --resume=" in out
    (folder,) = (tmp_path / "runs").glob("*/")
    before = read_run(folder).end["targets"]["wire"]["inputs"]
    other = fuzz(tmp_path, "--driver=reference", f"--resume={folder}", "--seed=5")
    assert other.status == 2
    assert "--seed is not that of" in other.err
    ran = fuzz(tmp_path, f"--resume={folder}")
    assert ran.status == 0, ran.err
    end = read_run(folder).end
    assert end["targets"]["wire"]["inputs"] > before
    assert not end["interrupted"]


@pytest.mark.thorough
@pytest.mark.skipif(CLANG is None, reason="needs clang: apt-get install clang")
def test_a_native_driver_is_guided_by_its_own_counters(tmp_path: Path) -> None:
    """An operation may name the operand behind the last one; a sanitizer tells the line."""
    library = build(tmp_path, "DEEP_INDEX", program=CLANG, options=COUNTED)
    ran = fuzz(tmp_path, f"--driver={library}", "--target=mutants", "--for=10m", "--first", "--jobs=2")
    crashes = [r for r in ran.run.records.values() if r.verdict == "CRASH"]
    assert ran.status == 1, ran.out
    if crashes:  # what comes first is new, too: the sample library does not check all that it should
        assert "AddressSanitizer" in crashes[0].message or "model.c" in crashes[0].log


@pytest.mark.thorough
def test_pages_of_what_is_reached(tmp_path: Path) -> None:
    ran = fuzz(tmp_path, "--driver=reference", "--target=wire", "--for=6s")
    assert ran.status == 0, ran.out
    done = fuzz(tmp_path, "--driver=reference", "--target=wire", f"--coverage={tmp_path / 'pages'}")
    assert done.status == 0, done.err
    assert "models read from bytes" in (tmp_path / "pages" / "index.html").read_text()
    assert "reference_driver" in (tmp_path / "pages" / "lines" / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target=nothing"], "--target=nothing is unknown; there are driver, own, models"),
        (["--for=soon"], "soon"),
        (["--jobs=0"], "--jobs=0 is no number of jobs; give 1 or more"),
        (["--driver=nobody"], "driver 'nobody' not found"),
        (["--driver=gone.so"], "driver 'gone.so' cannot be read: No such file or directory"),
        (["--reproduce=nothing.bin"], "does not say of which target it is; give --target=NAME"),
        (["--reproduce=nothing.bin", "--target=models"], "nothing.bin cannot be read: No such file or directory"),
        (["--reproduce=a", "--minimize=b"], "--reproduce and --minimize are given; one of them at a time"),
        (["--resume=nowhere"], "nowhere holds no records*.jsonl"),
        (["--coverage=pages", "--bare", "--state={}/empty"], "holds no corpus; fuzz first"),
        (["--level=9"], "level"),
        (["--nonsense"], "see python -m fuzz --help"),
    ],
)
def test_wrong_input_gets_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([*(a.format(tmp_path) for a in arguments), f"--runs={tmp_path / 'runs'}"])
    err = capsys.readouterr().err
    assert status == 2
    assert words in err
    assert err.startswith("error: ")
    assert len([line for line in err.splitlines() if line]) <= 2, err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


@pytest.mark.thorough
def test_a_process_that_dies_at_once_is_not_tried_for_ever(tmp_path: Path) -> None:
    driver = tmp_path / "dying.py"
    driver.write_text(
        "import os\n"
        "from reference_driver import DRIVER as Reference\n"
        "def DRIVER():\n"
        "    if os.environ.get('NNCTS_FUZZ'):\n"
        "        os._exit(3)\n"
        "    return Reference()\n"
    )
    ran = fuzz(tmp_path, f"--driver={driver}", "--target=models", "--for=60s")
    assert ran.status == 2, ran.out
    assert "target models cannot be fuzzed: it could not begin: exited with status 3" in ran.err
