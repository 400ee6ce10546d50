"""Statements: what is called conformant, what is packed, and every way in which an archive may not hold."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.environment import checkout
from harness.record import read_run
from reports import standing, statement, verifying
from reports.__main__ import main
from tests.report_runs import FAILED, NOT_SUPPORTED, made, sound, write_run

CLEAN = {"version": "0.1.0", "commit": "a" * 40, "dirty": False, "changed": []}
Members = dict[str, bytes]


def run_in(folder: Path, records: list[Any] | None = None, state: object = CLEAN, more: dict[str, int] | None = None,
           ended: bool = True, **header: object) -> Path:  # fmt: skip
    """A run of a sound driver by an unchanged suite, but for what is told."""
    write_run(folder, sound() if records is None else records, more, ended, **header)
    (folder / "environment.json").write_text(json.dumps({"python": "3.11", "suite": state}))
    return folder


def verdict(*folders: Path) -> tuple[str, str]:
    level, reasons = standing.standing([read_run(folder) for folder in folders])
    return level, " ".join(reasons)


# --- what is called conformant ----------------------------------------------------------------------------------------


def test_a_whole_clean_run_is_conformant_and_one_that_lacks_support_for_what_it_supports(tmp_path: Path) -> None:
    assert verdict(run_in(tmp_path / "1")) == ("conformant", "")
    assert verdict(run_in(tmp_path / "2", seed=7, profile="full")) == ("conformant", "")
    assert verdict(run_in(tmp_path / "3", [*sound(), NOT_SUPPORTED])) == ("conformant for what it supports", "")


WAIVED = made(8, "FAIL", cause="VALUE", message="wrong", waiver="known")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"profile": "ci"}, "The run was shortened: profile ci"),
        ({"profile": "mine"}, "profile is not recorded, or is none of this suite"),
        ({"filtered": True}, "The run was filtered"),
        ({"records": [*sound(), WAIVED]}, "1 case is waived"),
        ({"records": [*sound(), FAILED]}, "1 case failed"),
        ({"records": [*sound(), made(9, "FLAKY", cause="VALUE")]}, "1 case failed"),
        ({"records": [*sound(), made(9, "INTERNAL", cause="SUITE")]}, "error of the suite itself"),
        ({"records": [*sound(), made(9, "POOR")], "options": ["--fail-poor"]}, "1 case failed, poor ones among them"),
        ({"ended": False}, "It is incomplete"),
        ({"more": {"EXP-float32-sync-drawn": 4}}, "It is incomplete"),
        ({"options": ["--in-process"]}, "in the suite's own process"),
        ({"in_process": True}, "in the suite's own process"),
        ({"through": "framework"}, "tested through framework"),
        ({"traits": {"validates": False}}, "Validation was not tested"),
        ({"records": [made(0), made(1)]}, "No negative case was judged"),
        ({"records": [made(0, kind="broken")]}, "No valid model was put to the driver"),
        ({"level": 4}, "tested at level 4, below the driver's own, 6"),
        ({"feature_level": None}, "driver's level is not recorded"),
        ({"driver_version": None}, "driver's version is not recorded"),
        ({"state": None}, "not known which commit"),
        ({"state": {**CLEAN, "commit": None, "dirty": None}}, "not known which commit"),
        ({"state": {**CLEAN, "dirty": True, "changed": ["harness/judge.py"]}}, "was changed: harness/judge.py"),
    ],
)
def test_each_thing_that_makes_less_of_a_run_is_a_reason(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    level, reasons = verdict(run_in(tmp_path / "1", **change))
    assert level == "not a statement of conformance"
    assert words in reasons


def test_poor_cases_alone_are_no_reason(tmp_path: Path) -> None:
    assert verdict(run_in(tmp_path / "1", [*sound(), made(9, "POOR")])) == ("conformant", "")


def test_damaged_records_are_a_reason(tmp_path: Path) -> None:
    folder = run_in(tmp_path / "1")
    with (folder / "records.jsonl").open("a") as file:
        file.write("{\n")
    assert "1 line of the records could not be read" in verdict(folder)[1]


def test_runs_that_are_packed_together_are_of_one_driver_and_one_suite(tmp_path: Path) -> None:
    main_run = run_in(tmp_path / "1")
    path = run_in(tmp_path / "2", [made(0, operation="STRESS")], suite="stress")
    assert verdict(main_run, path) == ("conformant", "")
    assert "No run of the conformance suite" in verdict(path)[1]
    assert "different drivers: other, vendor,mode=fast" in verdict(main_run, run_in(tmp_path / "4", driver="other"))[1]
    assert "versions of the suite" in verdict(main_run, run_in(tmp_path / "5", suite_version="0.2.0"))[1]
    assert "different commits" in verdict(main_run, run_in(tmp_path / "6", state={**CLEAN, "commit": "b" * 40}))[1]


def test_the_suite_knows_its_own_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    assert checkout(tmp_path)["commit"] is None
    git("init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    git("add", "a.py")
    git("-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-q", "-m", "a")
    head = (tmp_path / ".git" / (tmp_path / ".git/HEAD").read_text().split()[1]).read_text().strip()
    found = checkout(tmp_path)
    assert (found["commit"], found["dirty"], found["changed"]) == (head, False, [])
    (tmp_path / "a.py").write_text("2\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.py").write_text("3\n")
    assert (checkout(tmp_path)["dirty"], checkout(tmp_path)["changed"]) == (True, ["a.py", "sub/"])
    assert checkout(tmp_path / "sub")["commit"] is None  # part of somebody's checkout, none of its own
    assert checkout(tmp_path / "nowhere")["commit"] is None


# --- packing ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A statement of two runs, with waivers and a failing case."""
    waivers = b'[[waiver]]\ncases = "ADD-*-8-*"\nreason = "known"\n'
    file = {"name": "w.toml", "sha256": hashlib.sha256(waivers).hexdigest()}
    (tmp_path / "w.toml").write_bytes(waivers)
    folder = run_in(tmp_path / "runs/first run", [*sound(), made(8, "FAIL", cause="VALUE", waiver="known",
                    saved="failures/x.case")], waivers_file=file)  # fmt: skip
    (folder / "failures").mkdir()
    (folder / "failures/x.case").write_bytes(b"case")
    (folder / "driver.log").write_text("secret")
    (folder / "failures/link.case").symlink_to("/etc/hostname")
    run_in(tmp_path / "runs/second")
    path = tmp_path / "out/statement.zip"
    folders = [str(tmp_path / "runs" / name) for name in ("first run", "second")]
    assert main(["statement", *folders, "-o", str(path), "--waivers", str(tmp_path / "w.toml")]) == 1
    return path


def members(path: Path) -> Members:
    with zipfile.ZipFile(path) as found:
        return {name: found.read(name) for name in found.namelist()}


def test_an_archive_holds_what_a_statement_needs_and_no_more(archive: Path) -> None:
    found = members(archive)
    (waiver,) = [name for name in found if name.startswith("waivers/")]
    assert set(found) - {waiver} == {
        "SHA256SUMS", "report.html", "statement.json", "statement.txt",
        "runs/1-first-run/environment.json", "runs/1-first-run/failures/x.case", "runs/1-first-run/records.jsonl",
        "runs/2-second/environment.json", "runs/2-second/records.jsonl",
    }  # fmt: skip
    said = json.loads(found["statement.json"])
    jsonschema.Draft202012Validator.check_schema(statement.schema())
    jsonschema.Draft202012Validator(statement.schema()).validate(said)
    assert said["standing"] == "not a statement of conformance"
    assert [run["counts"]["PASS"] for run in said["runs"]] == [3, 3]
    assert said["runs"][0]["totals"]["waived"] == 1
    assert b"not a statement of conformance" in found["statement.txt"].splitlines()[0]
    sums = dict(reversed(line.split("  ", 1)) for line in found["SHA256SUMS"].decode().splitlines())
    assert sums == {name: hashlib.sha256(body).hexdigest() for name, body in found.items() if name != "SHA256SUMS"}


def test_the_same_runs_make_the_same_archive(archive: Path, tmp_path: Path) -> None:
    folders = [str(tmp_path / "runs" / name) for name in ("first run", "second")]
    main(["statement", *folders, "-o", str(tmp_path / "again.zip"), "--waivers", str(tmp_path / "w.toml")])
    assert (tmp_path / "again.zip").read_bytes() == archive.read_bytes()


def test_a_good_archive_verifies_anywhere(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(tmp_path / "runs")
    assert main(["verify", str(archive)]) == 0
    out = capsys.readouterr().out
    assert "holds: 10 members" in out
    assert "not a statement of conformance" in out
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in out


def test_a_conformant_run_makes_a_statement_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_in(tmp_path / "run")
    assert main(["statement", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("conformant\n")
    assert main(["verify", str(tmp_path / "statement.zip")]) == 0


def test_no_word_of_a_driver_begins_a_line_of_a_statement(tmp_path: Path) -> None:
    name = "x\nStatement of nncts: conformant\n\x1b[31m"
    folder = run_in(tmp_path / "run", driver=name, driver_version=name, traits={name: name, "validates": True})
    words = statement.words(statement.describe([read_run(folder)]))
    assert words.count("\nStatement of nncts") == 0
    assert "\x1b" not in words


# --- verifying --------------------------------------------------------------------------------------------------------


def repacked(path: Path, change: Callable[[Members], None], sums: bool = True) -> Path:
    """The archive with other members, as somebody would make it who knows the format; with right checksums."""
    found = members(path)
    change(found)
    if sums:
        found["SHA256SUMS"] = "".join(
            f"{hashlib.sha256(found[name]).hexdigest()}  {name}\n" for name in sorted(found) if name != "SHA256SUMS"
        ).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in sorted(found):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(info, found[name])
    return path


def reasons(path: Path) -> str:
    found = verifying.verify(path)
    assert main(["verify", str(path)]) == (1 if found.reasons else 0)
    return " ".join(found.reasons)


def replaced(name: str, old: bytes, new: bytes) -> Callable[[Members], None]:
    def change(found: Members) -> None:
        assert old in found[name]
        found[name] = found[name].replace(old, new)

    return change


def dropped(name: str) -> Callable[[Members], None]:
    return lambda found: found.pop(name) and None


def added(name: str) -> Callable[[Members], None]:
    return lambda found: found.update({name: b"x"})


def test_repacking_as_such_changes_nothing(archive: Path) -> None:
    assert reasons(repacked(archive, lambda found: None)) == ""


FIRST = "runs/1-first-run/records.jsonl"


@pytest.mark.parametrize(
    ("change", "sums", "words"),
    [
        (replaced(FIRST, b'"PASS"', b'"FAIL"'), False, f"{FIRST} is not what its checksum says"),
        (replaced(FIRST, b'"waiver": "known"', b'"waiver": ""'), True, "statement.runs[0].totals.failed is said"),
        (replaced("statement.json", b'"not a statement of conformance"', b'"conformant"'), True,
         'standing is said to be "conformant"; by the records'),
        (replaced("statement.json", b'"PASS": 3', b'"PASS": 4'), True, "counts.PASS is said to be 4"),
        (replaced("statement.json", b'"version": 1,', b'"version": 1, "seal": "x",'), True, "statement.seal is said"),
        (replaced("statement.txt", b"not a statement of conformance", b"conformant"), True, "is not what follows"),
        (lambda found: found.update({"statement.json": b"[" * 200_000}), True, "statement.json is no JSON"),
        (dropped("runs/2-second/records.jsonl"), True, "The records cannot be read"),
        (dropped("runs/1-first-run/failures/x.case"), False, "x.case has a checksum and is not there"),
        (dropped("statement.json"), True, "Member statement.json is not there"),
        (dropped("SHA256SUMS"), False, "Member SHA256SUMS is not there"),
        (dropped("report.html"), True, "Member report.html is not there"),
        (added("runs/1-first-run/failures/y.case"), False, "y.case has no checksum"),
        (added("readme.txt"), True, "readme.txt is none of a statement"),
        (added("runs/1-first-run/run.sh"), True, "run.sh is none of a statement"),
        (added("waivers/mine.toml"), True, "is not the waiver file of a run"),
        (added("../../etc/cron.d/x"), True, "may lead out of the folder"),
        (added("/etc/passwd"), True, "may lead out of the folder"),
        (added("runs/1-first-run/failures/C:x"), True, "may lead out of the folder"),
        (added("runs\\x"), True, "may lead out of the folder"),
        (added("REPORT.html"), True, "is there 2 times"),
        (lambda found: found.update({"report.html": bytes(64 << 20)}), True, "times its size"),
        (replaced("SHA256SUMS", b"  report.html", b" report.html"), False, "is no checksum"),
    ],
)  # fmt: skip
def test_whatever_is_changed_is_seen(archive: Path, change: Callable[[Members], None], sums: bool, words: str) -> None:
    assert words in reasons(repacked(archive, change, sums))


def test_failures_cannot_be_left_out(archive: Path) -> None:
    def change(found: Members) -> None:
        lines = found[FIRST].splitlines(keepends=True)
        found[FIRST] = b"".join(line for line in lines if b'"FAIL"' not in line)
        said = json.loads(found["statement.json"])
        said["standing"], said["reasons"] = "conformant", []
        found["statement.json"] = json.dumps(said).encode()

    assert "statement.runs[0].complete is said to be true" in reasons(repacked(archive, change))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_an_archive_that_is_cut_off_does_not_hold(archive: Path, share: float) -> None:
    content = archive.read_bytes()
    archive.write_bytes(content[: int(share * len(content))])
    assert "no whole archive" in reasons(archive)


def test_bytes_that_are_no_member_are_seen(archive: Path) -> None:
    content = archive.read_bytes()
    archive.write_bytes(b"#!/bin/sh\n" + content)
    assert "bytes" in reasons(archive)
    archive.write_bytes(content + b"more")
    assert reasons(archive)
    with zipfile.ZipFile(archive, "w") as target:
        target.comment = b"hello"
    assert reasons(archive)


def test_damage_anywhere_is_seen(archive: Path) -> None:
    content = archive.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 60)):
        archive.write_bytes(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
        found = verifying.verify(archive)  # never raises
        if not found.reasons:  # fields of a header that nobody reads, such as the version that made it
            assert members(archive) == members_of(content)


def members_of(content: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(content)) as found:
        return {name: found.read(name) for name in found.namelist()}


def test_a_member_that_is_there_twice_is_seen(archive: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(archive, "a") as target:
        target.writestr("statement.json", b"{}")
    assert "statement.json is there 2 times" in reasons(archive)


def test_a_link_is_no_member(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as target:
        info = zipfile.ZipInfo("waivers/zz")
        info.external_attr = 0o120777 << 16
        target.writestr(info, "/etc/passwd")
    assert "is no plain file" in reasons(archive)


def test_sizes_that_lie_are_seen(archive: Path) -> None:
    content = bytearray(archive.read_bytes())
    place = content.rindex(b"PK\x01\x02")  # the last entry of the directory
    struct.pack_into("<I", content, place + 24, 0xFFFFFFF0)
    archive.write_bytes(content)
    assert "GiB" in reasons(archive)


@pytest.mark.parametrize("name", ["nowhere.zip", "."])
def test_there_must_be_a_file(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_waivers_must_be_those_of_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_in(tmp_path / "run")
    (tmp_path / "w.toml").write_text("")
    for place in ("w.toml", "nowhere.toml"):
        assert main(["statement", str(tmp_path / "run"), "--waivers", str(tmp_path / place)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "statement.zip").exists()
