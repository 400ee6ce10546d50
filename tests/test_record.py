"""Records: appended line by line, read back whatever happened to the last one, and always adding up to the plan."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from harness.case import Origin, TestCase
from harness.case_file import seal
from harness.record import FORMAT, Record, RecordFile, read_run, record_of, tally
from harness.verdict import Cause, Judgement, Verdict, Worst
from nnhal.errors import UsageError

VERDICTS = ("PASS", "FAIL", "POOR", "CRASH", "HANG", "FLAKY", "INTERNAL", "NOT_SUPPORTED", "NOT_APPLICABLE")


def record(number: int, verdict: str = "PASS", **rest: object) -> Record:
    batch = "ADD-float32-sync-drawn"
    return Record(f"{batch}-{number}-abcdef", batch, number, "ADD", "float32", "drawn", "sync", verdict, **rest)  # type: ignore[arg-type]


def written(folder: Path, numbers: range, selected: int, *, name: str = "records.jsonl", end: bool = True) -> Path:
    file = RecordFile(folder / name)
    file.plan({"ADD-float32-sync-drawn": selected}, {"driver": "mydriver", "seed": 3})
    for number in numbers:
        file.case(record(number))
    if end:
        file.end({"PASS": len(numbers)}, 1.5)
    file.close()
    return folder / name


def test_a_run_comes_back(tmp_path: Path) -> None:
    written(tmp_path, range(3), 3)
    (tmp_path / "environment.json").write_text('{"python": "3.x"}')
    run = read_run(tmp_path)
    assert run.plan["driver"] == "mydriver"
    assert run.plan["batches"] == {"ADD-float32-sync-drawn": 3}
    assert list(run.records) == [f"ADD-float32-sync-drawn-{n}" for n in range(3)]
    assert run.records["ADD-float32-sync-drawn-1"] == record(1)
    assert (run.selected, run.complete, run.ended, run.damaged) == (3, True, True, 0)
    assert run.environment == {"python": "3.x"}


def test_every_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    file.plan({"b": 1}, {})
    file.case(record(0))
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 2
    file.close()


def test_counts_add_up_to_what_was_selected(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    file.plan({"b": 20}, {})
    for number, verdict in enumerate(VERDICTS):
        file.case(record(number, verdict))
        run = read_run(tmp_path)
        assert sum(run.counts().values()) == run.selected == 20
        assert run.counts()["NOT_RUN"] == 19 - number
    assert set(run.counts()) == {verdict.value for verdict in Verdict}
    assert not run.complete
    file.close()


def test_the_last_record_of_a_case_counts(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    file.plan({"b": 1}, {})
    file.case(record(0, "FAIL"))
    file.case(record(0, "PASS"))
    file.close()
    assert read_run(tmp_path).counts()["PASS"] == 1
    assert sum(read_run(tmp_path).counts().values()) == 1


# ---- runs that were cut off


def test_a_run_without_its_end_is_incomplete(tmp_path: Path) -> None:
    written(tmp_path, range(3), 3, end=False)
    run = read_run(tmp_path)
    assert (run.ended, run.complete) == (False, False)


def test_a_run_that_ended_without_all_cases_is_incomplete(tmp_path: Path) -> None:
    written(tmp_path, range(2), 3)
    assert not read_run(tmp_path).complete


def test_a_file_cut_off_anywhere_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, range(3), 3)
    whole = path.read_bytes()
    lines = whole.decode().splitlines(keepends=True)
    for length in range(0, len(whole), 53):
        path.write_bytes(whole[:length])
        run = read_run(tmp_path)
        complete_lines = sum(1 for i in range(len(lines)) if len("".join(lines[: i + 1])) <= length + 1)
        assert len(run.records) == min(max(complete_lines - 1, 0), 3)
        assert run.damaged <= 1
        assert not run.complete
        if run.plan:
            assert sum(run.counts().values()) == run.selected


def test_what_follows_a_line_that_was_cut_off_is_not_lost(tmp_path: Path) -> None:
    path = written(tmp_path, range(2), 3, end=False)
    with path.open("a") as file:
        file.write('{"record": "case", "id": "ADD-fl')
    again = RecordFile(path)
    again.resume()
    again.case(record(2))
    again.end({}, 1.0, resumed=True)
    again.close()
    run = read_run(tmp_path)
    assert (len(run.records), run.damaged, run.complete) == (3, 1, True)


def test_lines_that_are_no_records_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, range(2), 2)
    with path.open("ab") as file:
        file.write(b'17\n[]\n{}\n{"record": "song"}\n{"record": "case"}\n{"record": "case", "id": "x"}\n\xff\xfe\n\n')
    run = read_run(tmp_path)
    assert run.damaged == 7
    assert len(run.records) == 2


def test_a_resumed_run_is_complete_though_files_of_the_first_have_no_end(tmp_path: Path) -> None:
    written(tmp_path, range(2), 4, name="records-gw0.jsonl", end=False)
    written(tmp_path, range(2, 3), 4, name="records-gw1.jsonl", end=False)
    file = RecordFile(tmp_path / "records.jsonl")
    file.resume()
    assert not read_run(tmp_path).complete
    file.end({}, 1.0, resumed=True)
    assert not read_run(tmp_path).ended  # a case is missing yet
    file.case(record(3))
    file.end({}, 1.0, resumed=True)
    file.close()
    assert read_run(tmp_path).complete


def test_a_resumption_takes_an_earlier_end_back(tmp_path: Path) -> None:
    path = written(tmp_path, range(2), 3)
    file = RecordFile(path)
    file.resume()
    file.close()
    assert not read_run(tmp_path).ended


def test_files_of_several_workers_are_one_run(tmp_path: Path) -> None:
    written(tmp_path, range(2), 5, name="records-gw0.jsonl")
    written(tmp_path, range(2, 5), 5, name="records-gw1.jsonl")
    run = read_run(tmp_path)
    assert (len(run.records), run.selected, run.complete) == (5, 5, True)
    written(tmp_path, range(0), 5, name="records-gw2.jsonl", end=False)
    assert not read_run(tmp_path).ended


# ---- values


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    worst = {"got": math.inf, "expected": -math.inf, "allowed": math.nan, "index": (1, 2), "output": "output"}
    file.case(record(0, "FAIL", worst=worst, error=np.float64(np.inf), sample={"rss": math.nan}))
    file.close()
    line = (tmp_path / "records.jsonl").read_text()
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    found = next(iter(read_run(tmp_path).records.values()))
    assert found.worst == {"got": "inf", "expected": "-inf", "allowed": "nan", "index": [1, 2], "output": "output"}
    assert found.error == "inf"


def test_the_record_of_a_judged_case() -> None:
    case = seal(TestCase(Origin("ADD", "float32", "broken", 4, rule="RANK_A", detail="a: [2]"), (), ()))
    worst = Worst("output", (1,), 3.0, 2.0, 0.5, 2.0, 7.0)
    judgement = Judgement(Verdict.FAIL, Cause.VALUE, "execute", "differs", worst, 2.0, 7.0, 0.25)
    found = record_of(case, judgement, repeat="pytest ...", seconds=0.5)
    assert found.id == f"ADD-float32-sync-broken-4-{case.digest}"
    assert (found.batch, found.number, found.rule) == ("ADD-float32-sync-broken", 4, "RANK_A")
    assert (found.verdict, found.cause, found.stage) == ("FAIL", "VALUE", "execute")
    assert found.worst is not None
    assert found.worst["ratio"] == 2.0
    assert (found.error, found.ulp, found.masked, found.seconds) == (2.0, 7.0, 0.25, 0.5)
    assert found.bad
    assert not record(0, "POOR").bad
    assert not record(0, "NOT_SUPPORTED").bad
    assert all(record(0, verdict).bad for verdict in ("FAIL", "CRASH", "HANG", "FLAKY", "INTERNAL"))


def test_unknown_fields_of_a_later_suite_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, range(1), 1, end=False)
    row = json.loads(path.read_text().splitlines()[1])
    path.write_text(json.dumps({**row, "colour": "red"}) + "\n")
    assert len(read_run(tmp_path).records) == 1


def test_tally() -> None:
    assert tally([record(0), record(1), record(2, "FAIL")]) == {"PASS": 2, "FAIL": 1}


# ---- what is no run


def sentence(folder: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_without_records(tmp_path: Path) -> None:
    assert "holds no records*.jsonl; give the folder of a run" in sentence(tmp_path)
    assert "holds no records*.jsonl" in sentence(tmp_path / "none")


def test_records_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"record": "plan", "format": 99}\n')
    assert f"format 99, {FORMAT} is understood" in sentence(tmp_path)


def test_records_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").mkdir()
    assert sentence(tmp_path).endswith("records.jsonl cannot be read: Is a directory")


def test_a_verdict_or_cause_of_a_later_suite_costs_its_line_alone(tmp_path: Path) -> None:
    written(tmp_path, range(2), 5)
    file = RecordFile(tmp_path / "records.jsonl")
    for number, verdict, cause in ((2, "SPLENDID", ""), (3, "FAIL", "MOON"), (4, "PASS", "")):
        file.case(record(number, verdict, cause=cause))
    file.end({}, 1.0)
    file.close()
    run = read_run(tmp_path)
    assert (run.damaged, run.foreign) == (2, ("MOON", "SPLENDID"))
    assert sorted(one.number for one in run.records.values()) == [0, 1, 4]
    assert run.counts()["NOT_RUN"] == 2
    assert not run.complete


def test_a_record_that_belongs_elsewhere_does_not_stand_for_one_that_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path, range(3), 3)
    text = path.read_text()
    path.write_text(
        text.replace('"batch": "ADD-float32-sync-drawn", "number": 1', '"batch": "ADD-floot32-sync-drawn", "number": 1')
    )
    run = read_run(tmp_path)
    assert len(run.records) == 3
    assert run.missing() == {"ADD-float32-sync-drawn": 1}
    assert not run.complete


def test_an_environment_that_is_damaged_is_empty(tmp_path: Path) -> None:
    written(tmp_path, range(1), 1)
    for content in ("{", "[]"):
        (tmp_path / "environment.json").write_text(content)
        assert read_run(tmp_path).environment == {}
