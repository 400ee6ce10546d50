"""A run that was cut off at any byte, or damaged in any way, still gives counts that add up and a page that says so."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.fates import Fate
from harness.record import Record, RecordFile, Run, read_run
from nnhal.errors import UsageError
from reports import html, junit
from tests.report_runs import HEADER, made, write_run

PLANNED = 7
WAIVED = [Fate("ADD-*", "known", covered=1).row()]


def records() -> list[Record]:
    worst = {"output": "sum", "index": [0, 1], "got": 3.0, "expected": 2.0, "allowed": 0.5, "ratio": 2.0, "ulp": None}
    return [
        made(0, error=0.5, ulp=1.0, numbers={"first_run_seconds": 0.5}, sample={"rss": 1000.0}),
        made(1, "FAIL", cause="VALUE", message="größer als erlaubt ✗", worst=worst, error=float("inf")),
        made(2, "CRASH", cause="DIED", message="died", waiver="known", log="a\nb"),
        made(0, kind="broken"),
        made(3, "NOT_SUPPORTED", message="no", notes=("odd",)),
        made(4, "POOR", cause="QUALITY", message="biased"),
    ]


def write(folder: Path, names: tuple[str, ...], found: list[Record], **header: object) -> dict[str, bytes]:
    """A run of which each file has its share; the contents by name. One case has no record."""
    batches = Counter(record.batch for record in found)
    batches["ADD-float32-sync-drawn"] += PLANNED - len(found)
    for place, name in enumerate(names):
        file = RecordFile(folder / name)
        file.plan(batches, {**HEADER, **header})
        for record in found[place :: len(names)]:
            file.case(record)
        file.end({}, 1.0, part="1", waivers=WAIVED)
        file.close()
    (folder / "environment.json").write_text(
        json.dumps({"python": "3.11.7", "cpu": "größer", "packages": {"numpy": "2.0"}})
    )
    return {name: (folder / name).read_bytes() for name in names}


def adds_up(run: Run) -> None:
    """No case is counted twice and none is forgotten; without a plan nobody knows what is missing."""
    counts = run.counts()
    assert sum(counts.values()) == (run.selected if run.plan else len(run.records))
    assert sum(counts.values()) - counts["NOT_RUN"] == len(run.records)
    assert not run.complete


def whole_lines(data: bytes) -> list[dict[str, object]]:
    """What an independent reader finds: lines up to the cut, the last one if all of it is there."""
    *lines, last = data.split(b"\n")
    found = [json.loads(line) for line in lines]
    with contextlib.suppress(ValueError):
        found.append(json.loads(last))
    return found


def has_plan(contents: dict[str, bytes]) -> bool:
    return any(row["record"] == "plan" for data in contents.values() for row in whole_lines(data))


def expected_records(contents: dict[str, bytes]) -> set[str]:
    rows = [row for data in contents.values() for row in whole_lines(data)]
    return {f"{row['batch']}-{row['number']}" for row in rows if row["record"] == "case"}


FILES = {"one file": ("records.jsonl",), "workers": ("records-gw0.jsonl", "records-gw1.jsonl", "records-gw2.jsonl")}


@pytest.mark.parametrize(
    "names", [FILES["one file"], pytest.param(FILES["workers"], marks=pytest.mark.thorough)], ids=FILES
)
def test_a_cut_at_every_byte_of_each_file(names: tuple[str, ...], tmp_path: Path) -> None:
    contents = write(tmp_path, names, records())
    for name, data in contents.items():
        for length in range(len(data)):
            (tmp_path / name).write_bytes(data[:length])
            run = read_run(tmp_path)
            adds_up(run)
            cut = {**contents, name: data[:length]}
            assert set(run.records) == expected_records(cut)
            assert bool(run.plan) == has_plan(cut)
            assert run.damaged == (bool(data[:length].rpartition(b"\n")[2]) and length != len(data) - 1
                                   and data[length : length + 1] != b"\n")  # fmt: skip
            assert run.ended == (length == len(data) - 1)
            assert [fate.covered for fate in run.waivers] == ([len(names)] if run.ended else [])
        (tmp_path / name).write_bytes(data)


def test_files_of_workers_cut_together(tmp_path: Path) -> None:
    chance = random.Random(4)
    contents = write(tmp_path, FILES["workers"], records())
    for _ in range(150):
        cut = {name: data[: chance.randrange(len(data))] for name, data in contents.items()}
        for name, data in cut.items():
            (tmp_path / name).write_bytes(data)
        run = read_run(tmp_path)
        adds_up(run)
        assert set(run.records) == expected_records(cut)


def test_a_cut_at_every_byte_of_the_environment(tmp_path: Path) -> None:
    write(tmp_path, FILES["one file"], records())
    path = tmp_path / "environment.json"
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        assert read_run(tmp_path).environment == (json.loads(whole) if length == len(whole) else {})


def page_of(folder: Path) -> tuple[Run, str]:
    run = read_run(folder)
    return run, html.render(run)


def says_so(folder: Path) -> None:
    """The page says that the run is incomplete, and how much is there."""
    run, page = page_of(folder)
    adds_up(run)
    have = len(run.records)
    if run.plan:
        assert f"INCOMPLETE: {have} of {PLANNED} cases have a record" in page
    else:
        assert f"INCOMPLETE: {have} case{' has' if have == 1 else 's have'} a record; no plan says" in page
    assert ("1 line of the records could not be read" in page) == (run.damaged == 1)
    junit.document(run)


def cuts(data: bytes, step: int) -> Iterator[int]:
    """Lengths around each end of a line, and some bytes of the lines."""
    ends = [place for place, byte in enumerate(data) if byte == 10]
    near = {place + off for place in ends for off in (-1, 0, 1)}
    within = {*range(0, ends[0], step), *range(ends[-2], ends[-1], step)}
    return (length for length in sorted(near | within) if length < len(data))


def test_the_page_of_a_run_that_was_cut_off(tmp_path: Path) -> None:
    for name, data in write(tmp_path, FILES["one file"], records()).items():
        for length in cuts(data, 199):
            (tmp_path / name).write_bytes(data[:length])
            says_so(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("names", FILES.values(), ids=FILES)
def test_the_page_of_a_run_that_was_cut_off_at_every_byte(names: tuple[str, ...], tmp_path: Path) -> None:
    contents = write(tmp_path, names, records())
    for name, data in contents.items():
        for length in range(len(data)):
            (tmp_path / name).write_bytes(data[:length])
            says_so(tmp_path)
        (tmp_path / name).write_bytes(data)


# ---- what no cut leaves behind

LINE = json.dumps({"record": "case", **{
    "id": "ADD-float32-sync-drawn-5-abcdef", "batch": "ADD-float32-sync-drawn", "number": 5, "operation": "ADD",
    "signature": "float32", "kind": "drawn", "mode": "sync", "verdict": "PASS", "cause": "", "stage": "", "message": "",
    "level": 1, "rule": "", "worst": None, "error": None, "ulp": None, "masked": 0.0, "detail": "", "repeat": "",
    "saved": "", "repeated": "", "waiver": "", "log": "", "seconds": 0.0, "notes": [], "numbers": {}, "sample": {},
}})  # fmt: skip
TEXTS = ("id", "batch", "operation", "signature", "kind", "mode", "verdict", "cause", "stage", "message", "rule",
         "detail", "repeat", "saved", "repeated", "waiver", "log")  # fmt: skip
WRONG_TEXTS = (None, 3, 2.5, True, ["x"], {"a": "b"})
WRONG_COUNTS = (None, "3", 2.5, -1, True, [], {}, 10**30)
WRONG_REALS = ("3.5", "", True, [1.0], {"a": 1.0}, 10**400)
WRONG = [
    *((name, value) for name in TEXTS for value in WRONG_TEXTS),
    *((name, value) for name in ("number", "level") for value in WRONG_COUNTS),
    *((name, value) for name in ("error", "ulp", "masked", "seconds") for value in WRONG_REALS),
    *((name, None) for name in ("masked", "seconds", "notes", "numbers", "sample")),
    *((name, value) for name in ("numbers", "sample") for value in ([], 3, "x", {"a": "x"}, {"a": None}, {"a": [1]})),
    *(("notes", value) for value in ("abc", 3, {"a": "b"}, [3], [None], [["x"]])),
    *(("worst", value) for value in (3, "x", [], {"index": 3}, {"index": [[]]}, {"got": []}, {"output": {}})),
    ("verdict", "SPLENDID"), ("verdict", "pass"), ("cause", "MOON"), ("verdict", ""),
]  # fmt: skip


def damaged(folder: Path, extra: bytes) -> Run:
    """A run without its last case, with something else in the middle of its file."""
    (data,) = write(folder, FILES["one file"], records()).values()
    lines = data.splitlines(keepends=True)
    (folder / "records.jsonl").write_bytes(b"".join([*lines[:3], extra, *lines[3:]]))
    return read_run(folder)


def test_a_line_as_it_should_be(tmp_path: Path) -> None:
    run = damaged(tmp_path, LINE.encode() + b"\n")
    assert (run.damaged, len(run.records), run.complete) == (0, PLANNED, True)


def test_a_wrong_type_in_any_field_costs_that_line_alone(tmp_path: Path) -> None:
    rows = [json.dumps({**json.loads(LINE), name: value}) for name, value in WRONG]
    for number, row in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = damaged(folder, row.encode() + b"\n")
        adds_up(run)
        assert (run.damaged, len(run.records)) == (1, PLANNED - 1), row
        shutil.rmtree(folder)
    run = damaged(tmp_path, "".join(row + "\n" for row in rows).encode())
    adds_up(run)
    page = html.render(run)
    assert f"INCOMPLETE: {PLANNED - 1} of {PLANNED} cases have a record" in page
    assert f"{len(rows)} lines of the records could not be read" in page


def test_numbers_that_json_does_not_have_are_words(tmp_path: Path) -> None:
    line = LINE.replace('"error": null', '"error": NaN').replace('"ulp": null', '"ulp": 1e999')
    line = line.replace('"seconds": 0.0', '"seconds": Infinity').replace('"numbers": {}', '"numbers": {"a": -Infinity}')
    run = damaged(tmp_path, line.encode() + b"\n")
    record = run.records["ADD-float32-sync-drawn-5"]
    assert (record.error, record.ulp, record.seconds, record.numbers) == ("nan", "inf", 0.0, {"a": "-inf"})
    assert run.complete
    html.render(run)


GARBAGE = {
    "no JSON": b"garbage\n",
    "NUL": b"\0" * 5000 + b"\n",
    "NUL within": LINE.encode()[:40] + b"\0\0\0" + LINE.encode()[43:] + b"\n",
    "no UTF-8": b"\xff\xfe\x80\n",
    "half a character": LINE.encode()[:30] + "ß".encode()[:1] + b"\n",
    "deep": b"[" * 200_000 + b"\n",
    "deep object": b'{"a":' * 100_000 + b"\n",
    "huge number": b'{"record": "case", "number": ' + b"9" * 10_000 + b"}\n",
    "two lines in one": LINE.encode() + LINE.encode() + b"\n",
    "a list": b"[1, 2]\n",
    "nothing known": b'{"record": "song"}\n',
    "kind of another type": b'{"record": ["case"]}\n',
    "plan without format": b'{"record": "plan", "selected": 900, "batches": {}}\n',
    "plan of nonsense": b'{"record": "plan", "format": 1, "selected": "many", "batches": {}}\n',
    "plan of too many": b'{"record": "plan", "format": 1, "selected": 1e9, "batches": {"x": 1000000000000}}\n',
    "selected of nonsense": b'{"record": "selected", "selected": -1, "batches": {}}\n',
    "selected of odd seconds": b'{"record": "selected", "selected": 7, "batches": {}, "seconds": "long"}\n',
}


@pytest.mark.parametrize("extra", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_middle(extra: bytes, tmp_path: Path) -> None:
    run = damaged(tmp_path, extra)
    adds_up(run)
    assert (run.damaged, len(run.records), run.selected) == (1, PLANNED - 1, PLANNED)


def test_all_garbage_together_is_told_on_the_page(tmp_path: Path) -> None:
    run = damaged(tmp_path, b"".join(GARBAGE.values()))
    assert f"{len(GARBAGE)} lines of the records could not be read" in html.render(run)


def test_a_plan_that_is_there_twice_or_not_at_all(tmp_path: Path) -> None:
    (data,) = write(tmp_path, FILES["one file"], records()).values()
    plan, rest = data.split(b"\n", 1)
    (tmp_path / "records.jsonl").write_bytes(plan + b"\n" + plan + b"\n" + rest)
    says_so(tmp_path)
    (tmp_path / "records.jsonl").write_bytes(rest)
    says_so(tmp_path)


def test_a_line_of_fifty_megabytes(tmp_path: Path) -> None:
    text = "x" * 50_000_000
    run = damaged(tmp_path, text.encode() + b"\n")
    assert (run.damaged, len(run.records)) == (1, PLANNED - 1)
    said = LINE.replace('"verdict": "PASS"', '"verdict": "FAIL"').replace('"cause": ""', '"cause": "VALUE"')
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    run = damaged(tmp_path, said.replace('"message": ""', f'"message": "{text}"').encode() + b"\n")
    assert (run.damaged, len(run.records)) == (0, PLANNED)
    message = run.records["ADD-float32-sync-drawn-5"].message
    assert len(message) < 300_000
    assert message.endswith("… (49,737,856 characters more)")
    assert len(html.render(run)) < 2_000_000


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.record_lines.LINE", 4096)
    for extra in (b"y" * 4095 + b"\n", b"y" * 4096 + b"\n", b"y" * 4097 + b"\n", b"y" * 20_000 + b"\n"):
        run = damaged(tmp_path, extra)
        assert (run.damaged, len(run.records)) == (1, PLANNED - 1)
        (tmp_path / "records.jsonl").unlink()
    run = damaged(tmp_path, b"")
    with (tmp_path / "records.jsonl").open("ab") as file:
        file.write(b"z" * 10_000)
    run = read_run(tmp_path)
    assert (run.damaged, len(run.records)) == (1, PLANNED - 1)


def test_random_damage(tmp_path: Path) -> None:
    """Bytes flipped, cut out, doubled: a run, or the sentence that the format is another."""
    chance = random.Random(11)
    (data,) = write(tmp_path, FILES["one file"], records()).values()
    refused = 0
    for _ in range(400):
        made_wrong = bytearray(data)
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(made_wrong))
            end = place + chance.randint(0, 300)
            way = chance.randrange(3)
            if way == 0:
                made_wrong[place] = chance.randrange(256)
            elif way == 1:
                del made_wrong[place:end]
            else:
                made_wrong[place:place] = made_wrong[place:end]
        (tmp_path / "records.jsonl").write_bytes(made_wrong)
        try:
            run = read_run(tmp_path)
        except UsageError:  # a digit of the format
            refused += 1
            continue
        assert sum(run.counts().values()) >= len(run.records)
        assert all(type(record.number) is int and isinstance(record.message, str) for record in run.records.values())
    assert refused < 20


def test_every_header_may_be_anything(tmp_path: Path) -> None:
    """A plan's words are of the suite that wrote them; none of them stops the page."""
    values = (None, 3, "x", 2.5, True, [], [3], {}, {"a": [1]}, "\0", "9" * 5000)
    names = [name for name in HEADER if name != "suite"]
    for number, value in enumerate(values):
        folder = tmp_path / str(number)
        write(folder, FILES["one file"], records(), **dict.fromkeys(names, value), waivers_file=value, preset=value)
        page_of(folder)


def test_a_plan_of_a_billion_cases_makes_no_billion_elements(tmp_path):
    run = write_run(tmp_path, [made(0)], {"ADD-float32-sync-drawn": 10**9 - 1}, ended=False)
    cases = list(junit.document(run).iter("testcase"))
    assert len(cases) == 1 + junit.UNRUN + 1  # the record, what is missing, and the end
    assert [case.find("skipped").get("message") for case in cases[-2:-1]] == [
        f"NOT_RUN: selected, and without a record; {10**9 - 1 - (junit.UNRUN - 1):,} of them"
    ]
