"""Reports: pages are whole, hold all cases, and let nothing through that a driver says; JUnit, program, plugin."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import zlib
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from harness.fates import Fate
from harness.record import Run, read_run
from nnhal.errors import UsageError
from reports import compare, html, junit, payload, plugin, text
from reports.__main__ import main
from tests.report_runs import FAILED, HEADER, NOT_SUPPORTED, made, sound, write_run

ROOT = Path(__file__).resolve().parent.parent
VOID = {"meta", "input", "wbr", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Looks at a page as a browser would: tags must close, and what they refer to is kept."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: list[str] = []  # what runs, and what is data by its type
        self.data: dict[str, str] = {}
        self.sheets: list[str] = []
        self._type = ""
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(content)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self._type = dict(attrs).get("type") or ""
            if not self._type:
                self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            if self._type:
                self.data[self._type] = self.data.get(self._type, "") + data
            else:
                self.scripts[-1] += data
        elif self.open and self.open[-1] == "style":
            self.sheets.append(data)
        elif self.open:
            self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


# --- pages ------------------------------------------------------------------------------------------------------------

HOSTILE = "</pre></script><script>alert('x')</script><img src=http://evil.example/x onerror=\"alert(1)\">{{ 7*7 }}"


def hostile_run(folder: Path) -> Run:
    """A run in which every text that a driver can say is hostile."""
    worst = {"output": HOSTILE, "index": [HOSTILE], "got": HOSTILE, "expected": "nan", "allowed": "inf", "ratio": "inf"}
    texts = {
        "message": HOSTILE,
        "detail": HOSTILE,
        "log": HOSTILE + "\x1b[31mred\x1b[0m\x00\u202e\ud800",
        "saved": HOSTILE,
    }
    records = [
        made(0, "FAIL", cause="VALUE", worst=worst, error=float("inf"), repeated=HOSTILE, **texts),
        made(1, "CRASH", cause="DIED", waiver=HOSTILE, **texts),
        made(2, "POOR", cause="QUALITY", **texts),
        made(3, "NOT_SUPPORTED", **texts),
        made(4, "NOT_APPLICABLE", **texts),
        made(5, "INTERNAL", cause="SUITE", **texts),
        made(0, "FAIL", kind="broken", cause="ACCEPTED", **{**texts, "rule": HOSTILE}),
        made(0, operation=HOSTILE.replace("-", ""), signature=HOSTILE.replace("-", "")),
    ]
    header = {name: HOSTILE for name in HEADER if name not in ("traits", "filtered", "options")}
    traits = {HOSTILE: HOSTILE, "execution_modes": [HOSTILE]}
    write_run(folder, records, **header, traits=traits, options=[HOSTILE])
    (folder / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE, "packages": {HOSTILE: HOSTILE}}))
    return read_run(folder)


def digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def cases_of(page: Page) -> list[dict[str, object]]:
    """What a page holds of each case, unpacked as its script does it."""
    found = json.loads(zlib.decompress(base64.b64decode(page.data["application/octet-stream"])))
    columns = {}
    for name, column in found["columns"].items():
        places = column["at"] or [0] * found["cases"]
        columns[name] = [column["words"][place] for place in places]
    rows = []
    for row in range(found["cases"]):
        case = {name: values[row] for name, values in columns.items()}
        operation, signature, mode, kind, type_, batch = found["batches"][case["batch"]]
        front = f"{batch or '-'.join((operation, signature, mode, kind))}-{case['number']}"
        end = found["digests"][row * found["width"] : (row + 1) * found["width"]].strip()
        case |= {"operation": operation, "signature": signature, "type": type_, "kind": kind, "mode": mode}
        case["id"] = found["odd"].get(str(row)) or (f"{front}-{end}" if end else front)
        case["repeat"] = case["repeat"].replace("{}", case["id"])
        rows.append(case)
    return rows


def check_page(content: str) -> Page:
    """A page is whole, opens offline and runs no script but ours."""
    page = Page(content)
    names = {path.read_text(encoding="utf-8"): path.name for path in html.FOLDER.rglob("*.js")}
    assert names[page.scripts[0]] == "script.js"
    assert all(script in names for script in page.scripts)
    policy = next(value for _, name, value in page.attributes if name == "content" and "default-src" in value)
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert rules["script-src"].split() == [f"'{digest(script)}'" for script in page.scripts]
    assert rules["style-src"].split() == [f"'{digest(sheet)}'" for sheet in page.sheets]
    assert not [a for a in page.attributes if a[1] == "style"]
    assert not [a for a in page.attributes if a[1].startswith("on") or a[1] in ("src", "srcdoc", "action", "data")]
    assert all(value.startswith("#") for _, name, value in page.attributes if name == "href")
    targets = {value for _, name, value in page.attributes if name == "id"}
    inner = {value[1:] for _, name, value in page.attributes if name == "href"}
    assert {value for value in inner if not value.startswith(("case=", "cases?"))} <= targets
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", content)
    assert "url(" not in content
    assert "@import" not in content
    return page


def test_nothing_that_a_driver_says_gets_through_the_pages(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "hostile")
    page = check_page(html.render(run))
    assert page.words.count("alert('x')") > 20  # shown as text
    assert len(cases_of(page)) == len(run.records)
    assert "49" not in page.words
    assert "red" in page.words
    other = write_run(tmp_path / "sound", [made(n) for n in range(3)])
    check_page(html.render_comparison(other, run, compare.compare(other, run)))
    check_page(html.render_comparison(run, other, compare.compare(run, other)))


def test_a_failure_is_told_in_full(tmp_path: Path) -> None:
    worst = {
        "output": "sum",
        "index": [0, 2, 1],
        "got": 131.0,
        "expected": 128.0,
        "allowed": 1.0,
        "ratio": 3.0,
        "ulp": None,
    }
    failed = made(
        8, "FAIL", cause="VALUE", stage="execute", message="output 'sum' differs", worst=worst, error=3.0,
        detail="a: TENSOR_FLOAT32[2,2]", log="assertion failed", saved="failures/x.case", repeated="same",
    )  # fmt: skip
    words = check_page(html.render(write_run(tmp_path, [*sound(), failed, NOT_SUPPORTED]))).words
    for expected in (
        "Not conformant: 1 of 5 cases failed", "(0, 2, 1)", "131", "128", "3 × allowed", "a: TENSOR_FLOAT32[2,2]",
        "assertion failed", "failures/x.case", failed.repeat, "failed again in a new process", "vendor,mode=fast",
        "1.4", "6 (FL6)", "ACCELERATOR", "numpy 2.0", "5 selected; 4 judged",
    ):  # fmt: skip
        assert expected in words


def test_an_adapter_that_does_not_validate_is_never_called_conformant(tmp_path: Path) -> None:
    records = [*sound()[:2], made(0, "NOT_APPLICABLE", kind="broken", message="does not validate")]
    words = check_page(html.render(write_run(tmp_path, records, traits={"validates": False}))).words
    assert "validation not tested" in words
    assert not re.search(r"\bconformant", words, re.IGNORECASE)


def test_a_page_is_made_of_next_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"record": "plan", "format": 1, "selected": 0}\n')
    check_page(html.render(read_run(tmp_path)))
    (tmp_path / "records.jsonl").write_text("")
    run = read_run(tmp_path)
    assert "no plan" in check_page(html.render(run)).words
    check_page(html.render_comparison(run, run, compare.compare(run, run)))


@pytest.mark.thorough
def test_a_page_of_many_hostile_failures_stays_small(tmp_path: Path) -> None:
    log = "'\"<&>" * 2000
    records = {}
    for number in range(20_000):
        word = "".join(chr(97 + int(digit)) for digit in str(number))
        record = made(number, "FAIL", f"OP{number % 100}", cause="VALUE", message=f"{word} {log}", log=log, detail=log)
        records[f"{record.batch}-{number}"] = record
    batches = Counter(record.batch for record in records.values())
    run = Run(tmp_path, {**HEADER, "selected": 20_000, "batches": batches}, records, True, 0, {})
    content = html.render(run)
    assert len(content.encode()) < 12_000_000
    page = check_page(content)
    assert len(cases_of(page)) == 20_000
    words = page.words
    assert "Not conformant: 20,000 of 20,000" in words
    assert "more groups with" in words


def test_a_page_holds_every_case(tmp_path: Path) -> None:
    texts = {
        "message": "wrong\nin two lines",
        "detail": "a: TENSOR_FLOAT32[2]",
        "log": "last words",
        "notes": ("a note",),
    }
    records = [made(n, error=n / 7, ulp=float(n), seconds=0.25) for n in range(300)]
    records += [made(n, "FAIL", "EXP", cause="VALUE", stage="execute", error=float("inf"), **texts) for n in range(3)]
    records += [replace(made(5, kind="broken", error=0.0), id="ADD-float32-sync-broken-5")]
    records += [
        replace(made(6, error=0.0), id="quite another name", batch="ADD-float32-sync-of.its.own", repeat="make it")
    ]
    run = write_run(tmp_path, records)
    found = {str(case["id"]): case for case in cases_of(check_page(html.render(run)))}
    assert found.keys() == {record.id for record in records}
    for record in records:
        case = found[record.id]
        for name in ("operation", "signature", "kind", "mode", "number", "verdict", "cause", "stage", "message", "rule",
                     "repeat", "saved", "waiver", "detail", "log"):  # fmt: skip
            assert case[name] == getattr(record, name)
        assert case["error"] == ("inf" if record.error == float("inf") else pytest.approx(record.error, rel=1e-3))
        assert case["notes"] == ("" if not record.notes else json.dumps(list(record.notes)))
        assert case["type"] == "f32"


def test_texts_of_failures_come_first_where_room_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "TEXTS", 250)
    refused = [made(n, "NOT_SUPPORTED", message="no", detail="d" * 100) for n in range(5)]
    failed = [made(10 + n, "FAIL", cause="VALUE", message="wrong", detail="e" * 100) for n in range(2)]
    page = check_page(html.render(write_run(tmp_path, [*refused, *failed])))
    assert [bool(case["detail"]) for case in cases_of(page)] == [False] * 5 + [True] * 2
    assert "those of 5 cases that did not pass are in records" in page.words


def test_runs_of_several_drivers_and_suites_make_one_page(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", [*sound(), FAILED]),
        write_run(tmp_path / "b", sound(), profile="full"),
        write_run(tmp_path / "c", sound(5), {"EXP-float32-sync-drawn": 2}, ended=False, driver="other"),
        write_run(tmp_path / "d", [], driver="other", suite="fuzz"),
    ]
    page = check_page(html.render(runs))
    assert "Failures in 1 of 4 runs: 1 of 14 cases failed; INCOMPLETE: 1 of 4 runs" in page.words
    assert "no run of: benchmark of real models, stress, random graphs" in page.words
    for words in ("Not conformant: 1 of 4 cases failed", "Conformant: 3 of 3 cases judged, none failed",
                  "INCOMPLETE: 5 of 7 cases have a record; the run did not end", "No failures: nothing was found",
                  "6/7", "5/5"):  # fmt: skip
        assert words in page.words  # both runs of the first driver are in one matrix
    assert Counter(case["run"] for case in cases_of(page)) == {0: 4, 1: 3, 2: 5}
    links = {value for _, name, value in page.attributes if name == "href"}
    assert "#case=ADD-float32-sync-drawn-0-abcdef%403" in links  # its run tells it from others of its name
    assert "#case=ADD-float32-sync-drawn-8-abcdef" in links
    with pytest.raises(UsageError, match="no run is given"):
        html.render([])


def test_what_became_of_waivers_stands_on_the_page_without_a_waived_case(tmp_path: Path) -> None:
    run = write_run(tmp_path, sound())
    assert 'id="waived"' not in html.render(run)
    run.waivers = [Fate("EXP-*", "tracker <7>", expires="2020-01-01", expired=True)]
    words = check_page(html.render(run)).words
    for expected in ("1 expired", "tracker <7>", "EXP-*", "No case is waived"):
        assert expected in words


def test_texts_are_cleaned_and_cut() -> None:
    assert text.clean("a\x1b[1;31mb\x1b[0m\x00c\u202ed\ud800\r\ne\tf") == "ab\ufffdc\ufffdd\ufffd\ne\tf"
    assert text.clip("abcdef", 3) == "abc… (3 characters more)"
    assert text.tail("abcdef\n", 3) == "(3 characters before) …def"
    numbers = [text.number(v) for v in (None, "nan", "inf", "-inf", 3.4028235e38, 0.123456, 12345.6, "2")]
    assert numbers == ["–", "NaN", "∞", "−∞", "∞", "0.123", "12,346", "2"]
    assert [text.percent(v) for v in (0.0, 0.0004, 0.0123, 0.5, 1.0)] == ["–", "< 0.1 %", "1.2 %", "50.0 %", "100.0 %"]
    assert [text.seconds(v) for v in (0.0123, 3.5, 150, "inf")] == ["12.3 ms", "3.5 s", "2 min 30 s", "–"]


def test_the_comparison_shows_differences_and_both_matrices(tmp_path: Path) -> None:
    first = write_run(tmp_path / "1", sound())
    changed = replace(FAILED, id="ADD-float32-sync-drawn-0-fedcba", number=0, message="now wrong")
    second = write_run(tmp_path / "2", [changed, *sound()[1:]], driver="vendor,mode=slow")
    page = check_page(html.render_comparison(first, second, compare.compare(first, second)))
    assert "Worse in 1 case: new failures 1; 2 cases ended alike" in page.words
    assert "1 case of one name" in page.words
    for words in ("now wrong", "1st", "2nd", "3/3", "2/3", "vendor,mode=fast", "vendor,mode=slow"):
        assert words in page.words


# --- JUnit ------------------------------------------------------------------------------------------------------------


def test_junit_has_one_testcase_for_each_case(tmp_path: Path) -> None:
    verdicts = ["PASS", "POOR", "FAIL", "FLAKY", "CRASH", "HANG", "INTERNAL", "NOT_SUPPORTED", "NOT_APPLICABLE"]
    records = [made(n, v, message=f"{v} \x00\x1b[0m\ud800", log="log\x07") for n, v in enumerate(verdicts)]
    records.append(made(20, "FAIL", cause="VALUE", waiver="tracker 7"))
    run = write_run(tmp_path, records, {"EXP-float32-sync-drawn": 2})
    junit.write(run, tmp_path / "junit.xml")
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    cases = root.findall("testsuite/testcase")
    assert len(cases) == run.selected + 1  # the one more says that the run is not whole
    assert root.attrib.items() >= {"tests": "13", "failures": "2", "errors": "4", "skipped": "5"}.items()
    by_name = {case.get("name"): case for case in cases}
    tags = {
        case: [child.tag for child in by_name[f"ADD-float32-sync-drawn-{n}-abcdef"]] for n, case in enumerate(verdicts)
    }
    assert ["failure" in tags[v] for v in verdicts] == [v in ("FAIL", "FLAKY") for v in verdicts]
    assert ["error" in tags[v] for v in verdicts] == [v in ("CRASH", "HANG", "INTERNAL") for v in verdicts]
    assert ["skipped" in tags[v] for v in verdicts] == [v.startswith("NOT") for v in verdicts]
    waived = by_name["ADD-float32-sync-drawn-20-abcdef"].find("skipped")
    assert waived is not None
    assert waived.get("message", "").startswith("waived (tracker 7)")
    end = by_name["end"].find("error")
    assert end is not None
    assert end.get("message", "").startswith("INCOMPLETE: 10 of 12")


def test_junit_of_a_whole_run_counts_what_was_selected(tmp_path: Path) -> None:
    run = write_run(tmp_path, sound(5))
    assert junit.document(run).get("tests") == "5"


# --- the program and the plugin ---------------------------------------------------------------------------------------


def test_the_program_writes_the_page_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "good", sound())
    assert main([str(tmp_path / "good"), "--junit", str(tmp_path / "j.xml")]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [str(tmp_path / "good/report.html"), str(tmp_path / "j.xml")]
    assert (tmp_path / "good/report.html").is_file()
    write_run(tmp_path / "bad", [*sound(), FAILED])
    assert main([str(tmp_path / "bad"), "-o", str(tmp_path / "x/y.html")]) == 1
    assert (tmp_path / "x/y.html").is_file()
    assert not (tmp_path / "bad/report.html").exists()


def test_a_killed_run_gives_a_page_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, sound(), {"EXP-float32-sync-drawn": 4}, ended=False)
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"record": "case", "id": "EXP-flo')
    assert main([str(tmp_path)]) == 1
    assert "INCOMPLETE: 3 of 7 cases" in capsys.readouterr().out
    words = check_page((tmp_path / "report.html").read_text(encoding="utf-8")).words
    assert "INCOMPLETE: 3 of 7 cases have a record; the run did not end" in words
    assert "1 line of the records could not be read" in words


def test_a_session_ends_with_its_pages(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", sound())
    (tmp_path / "runs/empty").mkdir()
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n"
        "def pytest_sessionfinish(session):\n"
        "    session.config.nncts_run_folders = [Path('runs/a'), Path('runs/empty')]\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "reports.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report: runs/a/report.html" in done.stdout
    assert "no report of runs/empty: runs/empty holds no records" in done.stdout
    check_page((tmp_path / "runs/a/report.html").read_text(encoding="utf-8"))
    assert ElementTree.parse(tmp_path / "runs/a/junit.xml").getroot().get("tests") == "3"


def test_the_plugin_leaves_pages_to_the_controller_and_does_nothing_without_runs(tmp_path: Path) -> None:
    write_run(tmp_path, sound())
    worker = SimpleNamespace(stash=pytest.Stash(), workerinput={}, nncts_run_folders=[tmp_path])
    plugin.pytest_sessionfinish(SimpleNamespace(config=worker))  # type: ignore[arg-type]
    assert not (tmp_path / "report.html").exists()
    other = SimpleNamespace(stash=pytest.Stash())
    plugin.pytest_sessionfinish(SimpleNamespace(config=other))  # type: ignore[arg-type]
    assert other.stash[plugin.LINES] == []
