"""Histories: series, what newly fails, first and last seen, flaky cases, folders that cannot be read, the page."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.record import Record
from reports import history, history_page
from reports.__main__ import main
from tests.report_runs import made, write_run

HOSTILE = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def failing(number: int, **rest: object) -> Record:
    return made(number, "FAIL", cause="VALUE", message=f"differs in {number} elements", **rest)


def day(folder: Path, number: int, records: list[Record], **header: object) -> None:
    write_run(folder / f"2026010{number}T000000-vendor", records, time=f"2026-01-0{number}T00:00:00+00:00", **header)


def runs(folder: Path) -> Path:
    """Four days of one driver: 1 fails on the first two, 2 comes and stays, 3 comes and goes on the same build."""
    day(folder, 2, [made(0), failing(1), failing(2), made(3)])
    day(folder, 1, [made(0), failing(1), made(2), made(3)])
    day(folder, 4, [made(0), made(1), failing(2), made(3)])
    day(folder, 3, [made(0), made(1), failing(2), failing(3)], driver_version="1.4")
    return folder


def only(folder: Path) -> history.Series:
    (series,) = history.read(folder).series
    return series


def test_runs_stand_in_the_order_of_time_each_beside_the_one_before(tmp_path: Path) -> None:
    series = only(runs(tmp_path))
    assert [run.time[:10] for run in series.runs] == [f"2026-01-0{n}" for n in range(1, 5)]
    assert [run.failed for run in series.runs] == [1, 2, 2, 1]
    assert [run.findings for run in series.runs] == [1, 1, 1, 1]  # alike but for their numbers
    fresh = [None if found is None else [one.name for one in found] for found in series.fresh]
    names = [f"ADD-float32-sync-drawn-{n}" for n in range(4)]
    assert fresh == [None, [names[2]], [names[3]], []]


def test_failures_have_a_first_and_a_last_run_and_may_be_flaky(tmp_path: Path) -> None:
    series = only(runs(tmp_path))
    seen = {one.failure.name[-1]: (one.first, one.last, one.times, one.passed, one.now) for one in series.seen}
    assert seen == {"1": (0, 1, 2, 2, False), "2": (1, 3, 3, 1, True), "3": (2, 2, 1, 3, False)}
    assert {one.failure.name[-1] for one in series.flaky} == {"1", "2", "3"}  # one build, both ways


def test_a_case_that_another_build_mended_is_not_flaky(tmp_path: Path) -> None:
    day(tmp_path, 1, [failing(1), made(2, "FLAKY", cause="VALUE")], driver_version="1")
    day(tmp_path, 2, [made(1), made(2)], driver_version="2")
    assert [one.failure.name[-1] for one in only(tmp_path).flaky] == ["2"]  # which the run itself says


def test_only_comparable_complete_runs_are_held_against_each_other(tmp_path: Path) -> None:
    day(tmp_path, 1, [made(0), made(1)])
    day(tmp_path, 2, [failing(0)], seed=7)
    write_run(tmp_path / "20260103T000000-vendor", [failing(0)], {"EXP-float32-sync-drawn": 3}, False,
              time="2026-01-03T00:00:00+00:00")  # fmt: skip
    day(tmp_path, 4, [failing(0), failing(1)])
    series = only(tmp_path)
    assert series.previous == [None, None, 0, 0]
    assert [run.complete for run in series.runs] == [True, True, False, True]
    assert [one.name[-1] for one in series.fresh[3] or []] == ["0", "1"]


def test_waived_failures_are_not_new(tmp_path: Path) -> None:
    day(tmp_path, 1, [made(0), failing(1, waiver="known")])
    day(tmp_path, 2, [failing(0, waiver="known"), failing(1)])
    assert [one.name[-1] for one in only(tmp_path).fresh[1] or []] == ["1"]


def test_suites_and_drivers_are_apart_with_their_own_measures(tmp_path: Path) -> None:
    day(tmp_path, 1, [made(0)])
    stress = [
        made(n, operation="STRESS", numbers={"executions_per_second": rate}) for n, rate in enumerate((5, 9, 100))
    ]
    write_run(tmp_path / "nested/s", stress, suite="stress")
    bench = [
        made(n, operation="MLTS", numbers={"times the baseline's latency": ratio}) for n, ratio in enumerate((2, 4))
    ]
    write_run(tmp_path / "nested/m", bench, suite="mlts", driver="other")
    write_run(tmp_path / "nested/deeper/x", [made(0)])  # two levels below: not looked at
    found = {(series.suite, series.driver): series.runs[0] for series in history.read(tmp_path).series}
    assert set(found) == {("conformance", "vendor,mode=fast"), ("stress", "vendor,mode=fast"), ("mlts", "other")}
    assert found["stress", "vendor,mode=fast"].rate == 9
    assert found["mlts", "other"].ratio == 3
    assert found["conformance", "vendor,mode=fast"].seconds == 1.0


def test_a_folder_that_is_a_run_itself_is_one(tmp_path: Path) -> None:
    write_run(tmp_path, [made(0)])
    assert len(only(tmp_path).runs) == 1


@pytest.mark.parametrize(
    "damage",
    [b'{"record": "plan", "format": 99, "selected": 0, "batches": {}}\n', b"", b"\xff\xfe\x00", b"[" * 100_000,
     b'{"record": "plan", "format": 1, "selected": -5, "batches": {"a": "b"}, "driver": {"x": []}, "seed": [[]]}\n',
     b'{"record": "case", "id": 1, "batch": [], "number": {}}\n{"record": "end", "seconds": {}, "rate": []}\n'],
)  # fmt: skip
def test_damaged_folders_do_not_keep_the_others_from_their_history(
    tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(tmp_path)
    broken = tmp_path / "20260109T000000-broken"
    broken.mkdir()
    (broken / "records.jsonl").write_bytes(damage)
    lost = tmp_path / "20260108T000000-lost"
    lost.mkdir()
    (lost / "environment.json").write_text("{}")
    (tmp_path / "notes").mkdir()  # nobody takes it for a run
    (tmp_path / "20260107T000000-file").write_text("")
    status = main(["history", str(tmp_path)])
    out = capsys.readouterr().out
    assert status in (0, 1)
    assert "not read: 20260108T000000-lost: " in out
    assert "Traceback" not in out
    assert "notes" not in out
    found = history.read(tmp_path)
    assert any(len(series.runs) == 4 for series in found.series)
    assert "99" not in str(damage) or "record format 99" in dict(found.unread)["20260109T000000-broken"]


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_wrong_folders_are_one_sentence(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert main(["history", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_status_tells_whether_a_latest_run_got_worse(tmp_path: Path) -> None:
    day(tmp_path / "a", 1, [made(0)])
    day(tmp_path / "a", 2, [failing(0)])
    assert main(["history", str(tmp_path / "a")]) == 1
    day(tmp_path / "a", 3, [failing(0)])
    assert main(["history", str(tmp_path / "a")]) == 0
    write_run(tmp_path / "b/x", [made(0)], {"EXP-float32-sync-drawn": 1}, ended=False)
    assert main(["history", str(tmp_path / "b")]) == 1


class Page(HTMLParser):
    """What a page shows and holds."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_has_charts_with_a_table_beside_them(tmp_path: Path) -> None:
    page = Page(history_page.page(history.read(runs(tmp_path))))
    assert page.tags.count("svg") == 4  # failed, kinds, passed, seconds
    assert page.tags.count("circle") == 4 * 4
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]
    words = re.sub(r"\s+", " ", page.words)
    for expected in ("Newly failing", "Flaky", "2026-01-04 00:00:00", "Failing when last judged: 1"):
        assert expected in words
    policy = dict(page.attributes)["content"] if ("http-equiv", "Content-Security-Policy") in page.attributes else ""
    assert "unsafe-inline" not in policy


def test_points_of_a_chart_stand_where_their_values_are(tmp_path: Path) -> None:
    series = only(runs(tmp_path))
    (failed,) = [chart for chart in history_page.charts(series) if chart.name == "failed"]
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', failed.picture)]
    places = [float(x) for x in re.findall(r'cx="([\d.]+)"', failed.picture)]
    assert heights == [32.0, 8.0, 8.0, 32.0]  # 1, 2, 2, 1 of 2 between the edges of 56 and 8
    assert places == pytest.approx([8.0, 89.3, 170.7, 252.0], abs=0.06)
    assert failed.last == 1


def test_nothing_that_a_driver_says_gets_through(tmp_path: Path) -> None:
    for number in (1, 2):
        day(tmp_path, number, [made(0, "FAIL", HOSTILE.replace("-", ""), cause="VALUE", message=HOSTILE)],
            driver=HOSTILE, driver_version=HOSTILE, profile=HOSTILE)  # fmt: skip
    broken = tmp_path / "20260109T000000-x&lt;b&gt;"
    broken.mkdir()
    (broken / "driver.log").write_text("")
    found = history.read(tmp_path)
    page = Page(history_page.page(found))
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert "alert(1)" in page.words
    summary = history_page.summary(found)
    assert "<script" not in summary
    assert "<img" not in summary


def test_json_and_markdown_tell_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs(tmp_path)
    places = [tmp_path / "h.json", tmp_path / "h.md"]
    main(["history", str(tmp_path), "--json", str(places[0]), "--markdown", str(places[1]), "-o", str(tmp_path / "p")])
    found = json.loads(places[0].read_text())
    (series,) = found["series"]
    assert [run["failed"] for run in series["runs"]] == [1, 2, 2, 1]
    assert series["runs"][1]["newly_failing"] == ["ADD-float32-sync-drawn-2"]
    assert {one["case"][-1]: one["first_seen"][:8] for one in series["failures"]} == {
        "1": "20260101", "2": "20260102", "3": "20260103",
    }  # fmt: skip
    assert "| conformance | <code>vendor,mode=fast</code> | 4 |" in places[1].read_text()
    assert str(tmp_path / "p") in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    runs(tmp_path)
    closed = tmp_path / "20260109T000000-closed"
    closed.mkdir(mode=0o000)
    assert [name for name, _ in history.read(tmp_path).unread] == [closed.name]
