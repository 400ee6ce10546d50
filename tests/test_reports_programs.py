"""The programs of `python -m reports`: what they write, where they say it is, and wrong input."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from harness.record import Record, Run, read_run
from harness.verdict import Cause, Verdict
from reports import programs, tabular
from reports.__main__ import main
from tests.report_runs import FAILED, NOT_SUPPORTED, made, sound, write_run

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = "</script>&<b>\"'\x00\x1b[31m|\ud800,\r\n=1+1"


def varied(folder: Path) -> Run:
    """A run with a record of every verdict, odd numbers and hostile texts."""
    worst = {"output": "o", "index": [0, 1], "got": "nan", "expected": 1.0, "allowed": 0.0, "ratio": "inf", "ulp": None}
    records = [made(n, verdict.value, message=f"{verdict.value} {HOSTILE}") for n, verdict in enumerate(Verdict)]
    records += [
        made(20, "FAIL", cause="VALUE", error=float("inf"), ulp=float("nan"), worst=worst, log=HOSTILE, detail=HOSTILE),
        made(21, "FAIL", cause="VALUE", waiver=HOSTILE, notes=("=note", HOSTILE), numbers={"a": float("-inf")}),
        made(22, "FAIL", cause="VALUE", message="=HYPERLINK(1)", detail="@x", repeat="+1", log="-1", stage="'quoted"),
        made(0, kind="broken"),
    ]
    return write_run(folder, records, {"EXP-float32-sync-drawn": 2})


# --- the program ------------------------------------------------------------------------------------------------------


def test_the_page_of_several_runs_goes_above_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", sound())
    write_run(tmp_path / "b", sound(), driver="other")
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(tmp_path / "report.html")
    assert len(lines) == 3
    assert "other" in (tmp_path / "report.html").read_text(encoding="utf-8")
    write_run(tmp_path / "c", [*sound(), FAILED])
    assert main([str(tmp_path / "a"), str(tmp_path / "c"), "-o", str(tmp_path / "p.html")]) == 1


def test_the_page_is_opened_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    write_run(tmp_path / "a", sound())
    main([str(tmp_path / "a")])
    assert opened == []
    main([str(tmp_path / "a"), "--open"])
    assert opened == [(tmp_path / "a/report.html").as_uri()]


def test_every_program_explains_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reports", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for program in programs.PROGRAMS:
        assert program.name in done.stdout
    for program in programs.PROGRAMS:
        with pytest.raises(SystemExit) as end:
            main([program.name, "--help"])
        assert end.value.code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: RUN"),
        (["nowhere"], "nowhere does not exist"),
        (["plain"], "plain is a file"),
        (["empty"], "empty holds no records*.jsonl"),
        (["good", "nowhere"], "nowhere does not exist"),
        (["good", "empty/../good"], "is given twice"),
        (["good", "--colour"], "--colour"),
        (["good", "-o", "good/records.jsonl/x.html"], "cannot be written"),
        (["good", "-o", "empty"], "cannot be written"),
        (["good", "other", "--junit", "j.xml"], "--junit takes one run, not 2"),
        (["compare", "good"], "required: NEW"),
        (["compare", "good", "good"], "is given twice"),
        (["compare", "good", "nowhere"], "nowhere does not exist"),
        (["compare", "good", "other", "third"], "third"),
        (["compare", "good", "other", "--markdown", "plain/x"], "cannot be written"),
        (["export", "good"], "nothing to export"),
        (["export", "good", "--json", "x", "--csv", "x"], "same file"),
        (["export", "good", "--json", "-", "--csv", "-"], "same file"),
        (["compare", "good", "other", "--markdown", "x", "--json", "x"], "same file"),
        (["compare", "good", "other", "-o", "x", "--json", "x"], "same file"),
        (["export", "good", "--json", "good/records.jsonl"], "which would be lost"),
        (["export", "plain", "--json", "-"], "plain is a file"),
        (["export", "good", "--csv", "plain/x.csv"], "cannot be written"),
        (["history"], "required: DIR"),
        (["history", "good", "-o", "plain/x"], "cannot be written"),
        (["statement"], "required: RUN"),
        (["statement", "good", "good"], "is given twice"),
        (["statement", "good", "-o", "plain/x.zip"], "cannot be read or written"),
        (["schema", "colour"], "no schema colour"),
        (["newer"], "record format 2"),
    ],
)
def test_wrong_input_is_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    for name in ("good", "other"):
        write_run(tmp_path / name, sound())
    (tmp_path / "plain").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer/records.jsonl").write_text('{"record": "plan", "format": 2, "selected": 0, "batches": {}}\n')
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_folder_that_is_called_like_a_program_is_reached_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "history", sound())
    monkeypatch.chdir(tmp_path)
    assert main(["./history"]) == 0
    assert (tmp_path / "history/report.html").is_file()


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "reports/records.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def exported(run: Run, form: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["export", str(run.folder), f"--{form}", "-"]) == 0
    return capsys.readouterr().out


def test_json_follows_its_schema_and_holds_every_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], validator: jsonschema.Draft202012Validator
) -> None:
    run = varied(tmp_path)
    found = json.loads(exported(run, "json", capsys))
    validator.validate(found)
    assert found["counts"] == {**dict.fromkeys((v.value for v in Verdict), 1), "PASS": 2, "FAIL": 4, "NOT_RUN": 3}
    assert (found["totals"]["selected"], found["run"]["complete"]) == (16, False)
    assert [row["id"] for row in found["records"]] == [record.id for record in run.records.values()]
    odd = next(row for row in found["records"] if row["number"] == 20)
    assert (odd["error"], odd["ulp"], odd["worst"]["ratio"]) == ("inf", "nan", "inf")
    assert odd["detail"] == HOSTILE
    assert found["waivers"] == [{"reason": HOSTILE, "covered": 1}]
    assert found["plan"]["driver"] == "vendor,mode=fast"


def test_json_is_by_the_schema_whatever_a_run_holds(tmp_path: Path, validator: jsonschema.Draft202012Validator) -> None:
    odd = [None, True, -1, 1.5, 1e999, "x", "nan", [], ["x"], {}, {"x": 1}, {"x": [None]}, 10**400]
    sound_row = {"record": "case", **asdict(made(0))}
    plan = {"record": "plan", "format": 1, "selected": 0, "batches": {}, "driver": 1.5, "options": 3, "traits": [7]}
    rows = [{**sound_row, "number": n, name: value}
            for n, (name, value) in enumerate((name, value) for name in asdict(made(0)) for value in odd)]  # fmt: skip
    lines = [json.dumps(row) for row in (plan, *rows, {"record": "end", "waivers": odd, "rate": [1e999]})]
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "environment.json").write_text('{"python": Infinity, "suite": [1]}')
    run = read_run(tmp_path)
    assert run.damaged
    assert run.records
    validator.validate(json.loads(tabular.text(run)))
    (tmp_path / "records.jsonl").write_text("")
    validator.validate(json.loads(tabular.text(read_run(tmp_path))))


def test_the_schema_knows_the_words_of_records(validator: jsonschema.Draft202012Validator) -> None:
    known = validator.schema["$defs"]["record"]["properties"]
    assert set(known) == {field.name for field in fields(Record)}
    assert known["verdict"]["enum"] == [verdict.value for verdict in Verdict]
    assert set(known["cause"]["enum"]) == {cause.value for cause in Cause}
    for wrong in ({"format": "other"}, {"counts": {}}, {"records": [{"id": "x"}]}):
        document = tabular.document(Run(Path("x"), {}, {}, True, 0, {}))
        validator.validate(document)
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({**document, **wrong})


@pytest.mark.parametrize(("name", "file"), [("run", "records"), ("statement", "statement")])
def test_schemas_are_printed(name: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", name]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((ROOT / f"reports/{file}.schema.json").read_text())


# --- CSV --------------------------------------------------------------------------------------------------------------


def test_csv_holds_every_record_and_no_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = varied(tmp_path)
    rows = list(csv.reader(io.StringIO(exported(run, "csv", capsys), newline="")))
    names, body = rows[0], rows[1:]
    assert names == [field.name for field in fields(Record)]
    assert len(body) == len(run.records)
    assert not [cell for row in body for cell in row if re.match(r"[=+@\t\r\n]|-(?!\d+(\.\d+)?$)", cell)]
    found = {row[0]: dict(zip(names, row, strict=True)) for row in body}
    formulas = found[made(22).id]
    expected = {"message": "'=HYPERLINK(1)", "detail": "'@x", "repeat": "'+1", "log": "'-1", "stage": "''quoted"}
    assert {name: formulas[name] for name in expected} == expected
    assert {name: tabular.restored(cell) for name, cell in formulas.items() if name in expected} == {
        "message": "=HYPERLINK(1)", "detail": "@x", "repeat": "+1", "log": "-1", "stage": "'quoted",
    }  # fmt: skip
    assert json.loads(found[made(21).id]["notes"])[0] == "=note"
    assert found[made(20).id]["error"] == "inf"
    assert found[made(22).id]["number"] == "22"


@pytest.mark.parametrize("text", ["", "plain", "=1", "'=1", "''", "-5", "＝1", "a\nb", "@SUM(A1)", "+", "\t=1"])
def test_what_is_made_harmless_comes_back(text: str) -> None:
    assert tabular.restored(tabular.harmless(text)) == text
    assert not tabular.harmless(text).startswith(("=", "+", "-", "@", "\t", "＝"))


# --- JUnit ------------------------------------------------------------------------------------------------------------

# What readers of JUnit XML agree on: elements with their attributes, and the order of a testcase's children.
ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "testcase": {"name", "classname", "time"},
    "properties": set(),
    "property": {"name", "value"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
    "system-err": set(),
}
ORDER = ["properties", "skipped", "error", "failure", "system-out", "system-err"]


def test_junit_has_the_shape_that_its_readers_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = exported(varied(tmp_path), "junit", capsys)
    assert content.startswith("<?xml version='1.0' encoding='utf-8'?>")
    root = ElementTree.fromstring(content.encode())
    for element in root.iter():
        assert set(element.attrib) <= ATTRIBUTES[element.tag]
    for suite in root:
        cases = suite.findall("testcase")
        assert suite.tag == "testsuite"
        assert [child.tag for child in suite] == ["properties", *["testcase"] * len(cases)]
        assert int(suite.get("tests", "")) == len(cases)
        for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(key, "")) == sum(case.find(tag) is not None for case in cases)
        for case in cases:
            tags = [child.tag for child in case]
            assert tags == sorted(tags, key=ORDER.index)
            assert sum(tag in ("failure", "error", "skipped") for tag in tags) <= 1
            assert float(case.get("time", "")) >= 0
    for key in ("tests", "failures", "errors", "skipped"):
        assert int(root.get(key, "")) == sum(int(suite.get(key, "")) for suite in root)
    assert int(root.get("tests", "")) == 16 + 1  # what was selected, and the end that is not there


# --- together ---------------------------------------------------------------------------------------------------------


def test_formats_are_written_together_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [*sound(), NOT_SUPPORTED, FAILED])
    places = {form: tmp_path / f"out/x.{form}" for form in ("junit", "json", "csv", "markdown")}
    arguments = [word for form, place in places.items() for word in (f"--{form}", str(place))]
    assert main(["export", str(run.folder), *arguments]) == 0
    assert capsys.readouterr().out.splitlines() == [str(place) for place in places.values()]
    assert all(place.stat().st_size for place in places.values())
    assert "**Not conformant: 1 of 5 cases failed**" in places["markdown"].read_text()


def test_standard_output_holds_the_document_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        write_run(tmp_path / name, sound())
    main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json", "-"])
    found = capsys.readouterr()
    assert json.loads(found.out)["regressed"] is False
    assert "compare.html" in found.err


def test_whoever_stops_reading_gets_no_traceback(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [made(n, message="x" * 300) for n in range(2000)])
    command = f"{sys.executable} -m reports export {tmp_path / 'run'} --json - | head -c 10"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("{")
    assert done.stderr == ""
