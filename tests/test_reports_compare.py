"""Comparisons: what differs besides verdicts, how quick runs were, the page, the summary for pull requests, JSON."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt
from scipy import stats

from harness.record import Record, Run
from reports import compare, html, markdown, paired, speed
from reports.__main__ import main
from tests.report_runs import FAILED, made, sound, write_run

HOSTILE = (
    "|</code></table><script>alert(1)</script>\n\n# x ` @octocat #12 [a](http://evil.example) www.evil.example "
    "{{7*7}} \\"
)


# --- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(5, None, None), (6, 1, 6), (10, 2, 9), (20, 6, 15), (50, 18, 33)],  # the sign test's tables, 95 %
)
def test_a_median_lies_between_the_ranks_of_the_tables(count: int, low: int | None, high: int | None) -> None:
    found = paired.median_interval([float(n) for n in range(count, 0, -1)], 0.95)
    assert found == paired.Interval((count + 1) / 2, low, high, count)


@pytest.mark.parametrize("count", [501, 5000, 57308])
def test_ranks_of_many_values_are_those_of_the_binomial_distribution(count: int) -> None:
    found = paired.median_interval([float(n) for n in range(1, count + 1)], 0.99)
    assert found.low == pytest.approx(stats.binom.ppf(0.005, count, 0.5), abs=2)
    assert found.high == pytest.approx(count + 1 - stats.binom.ppf(0.005, count, 0.5), abs=2)


def drifting(draw: np.random.Generator, count: int) -> list[float]:
    """Times whose noise lasts for a few neighbours, with outliers, as on a busy machine."""
    noise = np.convolve(draw.normal(0, 0.1, count + 4), np.ones(5) / 5, "valid")
    return list(0.01 * np.exp(noise) * np.where(draw.random(count) < 0.05, 5.0, 1.0))


def test_a_ratio_of_medians_is_inside_its_interval() -> None:
    draw = np.random.default_rng(5)
    hits = 0
    for _ in range(15):
        old, new = drifting(draw, 120), [1.3 * value for value in drifting(draw, 90)]
        found = paired.ratio_interval(old, new)
        assert found.value == pytest.approx(np.median(new) / np.median(old), rel=0.02)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 1.3 <= found.high
    assert hits >= 13
    assert paired.ratio_interval(old, new) == found  # the generator is seeded
    assert not paired.ratio_interval(old[:11], new).bounded


@pytest.mark.parametrize(
    ("low", "high", "less", "expected"),
    [(1.06, 1.2, True, "slower"), (1.06, 1.2, False, "faster"), (0.7, 0.94, True, "faster"),
     (0.7, 0.94, False, "slower"), (0.97, 1.04, True, "alike"), (0.97, 1.2, True, "undecided"),
     (None, None, True, "undecided")],
)  # fmt: skip
def test_an_interval_is_judged_by_where_all_of_it_lies(
    low: float | None, high: float | None, less: bool, expected: str
) -> None:
    assert speed.judged(paired.Interval(1.0, low, high, 9), 0.05, less=less) == expected


# --- how quick --------------------------------------------------------------------------------------------------------


def timed(folder: Path, seed: int, slow: dict[str, float], machine: float = 1.0) -> Run:
    """A run whose cases take 1 to 5 ms but for noise of a third, and some much longer."""
    draw = random.Random(seed)
    base = random.Random(1)
    records = []
    for operation in ("ADD", "EXP", "MUL", "NEG"):
        for number in range(80):
            seconds = base.uniform(0.001, 0.005) * machine * slow.get(operation, 1.0)
            seconds *= math.exp(draw.gauss(0, 0.3)) * (20 if draw.random() < 0.03 else 1)
            records.append(made(number, operation=operation, seconds=seconds))
    return write_run(folder, records)


def table(first: Run, second: Run) -> dict[str, speed.Pace]:
    (found,) = speed.paces(first, second)
    return {row.name: row for row in found.rows}


def test_noise_raises_no_alarm_and_one_slow_operation_does(tmp_path: Path) -> None:
    first = timed(tmp_path / "1", 2, {})
    noisy = table(first, timed(tmp_path / "2", 3, {}))
    assert {row.verdict for row in noisy.values()} <= {"alike", "undecided"}
    assert noisy["all"].verdict == "alike"
    slow = table(first, timed(tmp_path / "3", 4, {"EXP": 3.0}))
    assert [name for name, row in slow.items() if row.verdict == "slower"] == ["EXP"]
    assert 2.4 < slow["EXP"].ratio.value < 3.6
    machine = table(first, timed(tmp_path / "4", 5, {}, machine=4.0))
    assert [name for name, row in machine.items() if row.verdict == "slower"] == ["all"]


def test_slowness_fails_only_where_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timed(tmp_path / "1", 2, {})
    timed(tmp_path / "2", 4, {"EXP": 3.0})
    folders = [str(tmp_path / "1"), str(tmp_path / "2")]
    assert main(["compare", *folders]) == 0
    assert "No difference" in capsys.readouterr().out
    assert main(["compare", *folders, "--fail-slower"]) == 1
    page = (tmp_path / "2/compare.html").read_text(encoding="utf-8")
    assert "1 measurement is slower" in page


def test_cases_of_other_content_or_that_failed_are_not_timed(tmp_path: Path) -> None:
    first = write_run(tmp_path / "1", [made(n, seconds=0.01) for n in range(30)])
    second = write_run(tmp_path / "2", [replace(made(n, seconds=1.0), id=f"x-{n}") for n in range(30)])
    failed = write_run(tmp_path / "3", [made(n, "FAIL", cause="VALUE", seconds=1.0) for n in range(30)])
    assert speed.paces(first, second) == speed.paces(first, failed) == ()


def bench(folder: Path, ratio: float, machine: float, seed: int, digest: str = "d") -> Run:
    """A benchmark of one model: the driver takes `ratio` times the baseline's time, on a machine of some speed."""
    record = made(0, operation="MLTS", signature="m", kind="latency",
                  numbers={"times the baseline's latency": ratio})  # fmt: skip
    run = write_run(folder, [record], suite="mlts")
    draw = random.Random(seed)
    pairs = []
    for _ in range(100):
        base = machine * math.exp(draw.gauss(0, 0.2))
        pairs.append([ratio * base * math.exp(draw.gauss(0, 0.02)), base])
    rows = [{"model": "m", "tier": "default", "digest": digest, "driver": {"pairs": [*pairs, ["x", 1], None, [0, 1]]}}]
    (folder / "measurements.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_the_speed_of_the_machine_cancels_where_a_baseline_was_measured(tmp_path: Path) -> None:
    first = bench(tmp_path / "1", 1.2, 0.01, 1)
    same = table(first, bench(tmp_path / "2", 1.2, 0.05, 2))["m default"]
    assert same.verdict == "alike"
    assert same.ratio.value == pytest.approx(1.0, abs=0.02)
    slow = table(first, bench(tmp_path / "3", 1.8, 0.002, 3))["m default"]
    assert slow.verdict == "slower"
    assert slow.ratio.value == pytest.approx(1.5, rel=0.02)
    assert slow.ratio.low is not None
    assert slow.ratio.high is not None
    assert slow.ratio.low < 1.5 < slow.ratio.high
    assert speed.paces(first, bench(tmp_path / "4", 1.8, 0.01, 4, digest="another model")) == ()
    (tmp_path / "3/measurements.jsonl").unlink()
    assert speed.paces(first, bench(tmp_path / "5", 1.0, 1.0, 5))
    assert speed.paces(first, write_run(tmp_path / "6", sound(), suite="mlts")) == ()


def stress(folder: Path, rate: float) -> Run:
    records = [
        made(0, operation="STRESS", signature=f"s{n}", kind="run",
             numbers={"executions_per_second": rate * (n + 1), "latency_p50": 1 / rate, "latency_p99": "nan"})
        for n in range(12)
    ]  # fmt: skip
    return write_run(folder, records, suite="stress")


def test_stress_runs_are_judged_together(tmp_path: Path) -> None:
    found = table(stress(tmp_path / "1", 100.0), stress(tmp_path / "2", 40.0))
    rate, latency = found["all: executions"], found["all: latency, median"]
    assert (rate.verdict, latency.verdict) == ("slower", "slower")
    assert (rate.ratio.value, latency.ratio.value) == (pytest.approx(0.4), pytest.approx(2.5))
    assert found["s0/run: executions"].verdict == "not judged"
    assert "all: latency, 99 in 100" not in found


def test_campaigns_are_told_and_not_judged(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, sound(), suite="fuzz") for name in "12"]
    runs[0].end = {"targets": {"wire": {"rate": 100.0}, "gone": {"rate": 1.0}, "odd": 7}}
    runs[1].end = {"targets": {"wire": {"rate": 10.0}, "new": {"rate": "nan"}}}
    row = table(*runs)["wire"]
    assert (row.before, row.after, row.ratio.value, row.verdict) == (100.0, 10.0, 0.1, "not judged")


# --- what else differs ------------------------------------------------------------------------------------------------


def test_in_what_runs_differ_is_said(tmp_path: Path) -> None:
    first = write_run(tmp_path / "1", sound())
    second = write_run(tmp_path / "2", sound(), driver="other", profile="full", seed=7, driver_version="2.0",
                       time="2025-01-01T00:00:00+00:00", filtered=True)  # fmt: skip
    (tmp_path / "2/environment.json").write_text(json.dumps({"cpu": "a", "suite": {"commit": "abc"}}))
    second = replace(second, environment=json.loads((tmp_path / "2/environment.json").read_text()))
    notes = " ".join(compare.headline(compare.compare(first, second)).notes)
    for words in (
        "different drivers: vendor,mode=fast and other", "profiles: quick and full", "seeds: 0 and 7",
        "versions of the driver: 1.4 and 2.0", "second run is the older one", "second run was filtered",
        "processors: not recorded and a", "commits of the suite: not recorded and abc",
    ):  # fmt: skip
        assert words in notes
    assert compare.headline(compare.compare(first, first)).notes == ()


def test_runs_with_nothing_in_common_are_no_good_news(tmp_path: Path) -> None:
    write_run(tmp_path / "1", [made(0)])
    write_run(tmp_path / "2", [made(0, operation="STRESS")], suite="stress")
    assert main(["compare", str(tmp_path / "1"), str(tmp_path / "2")]) == 1
    page = (tmp_path / "2/compare.html").read_text(encoding="utf-8")
    assert "Nothing was compared" in page
    assert "different suites, conformance and stress" in page


def test_an_incomplete_second_run_is_no_good_news_and_an_incomplete_first_one_is_told(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "1", sound())
    cut = write_run(tmp_path / "2", sound(), {"EXP-float32-sync-drawn": 4}, ended=False)
    assert main(["compare", str(tmp_path / "1"), str(tmp_path / "2")]) == 1
    found = compare.headline(compare.compare(whole, cut))
    assert found.text.startswith("INCOMPLETE second run. ")
    assert "3 of 7 cases have a record and it did not end" in " ".join(found.notes)
    assert main(["compare", str(tmp_path / "2"), str(tmp_path / "1")]) == 0
    assert "first run is incomplete" in " ".join(compare.headline(compare.compare(cut, whole)).notes)


def test_a_new_failure_that_is_waived_is_told_apart(tmp_path: Path) -> None:
    waived = made(0, "FAIL", cause="VALUE", message="wrong", waiver="tracker 7")
    first, second = write_run(tmp_path / "1", [made(0)]), write_run(tmp_path / "2", [waived])
    found = compare.compare(first, second)
    assert list(found.changes) == ["excused"]
    assert [record.waiver for record in found.waived] == ["tracker 7"]
    assert not found.regressed


def test_findings_of_fuzzing_are_known_by_what_they_are(tmp_path: Path) -> None:
    def finding(number: int, message: str) -> Record:
        return made(number, "CRASH", "FUZZ", "wire", cause="DIED", message=message)

    first = write_run(tmp_path / "1", [finding(1, "read of 8 bytes"), finding(2, "write of 4 bytes")], suite="fuzz")
    second = write_run(tmp_path / "2", [finding(1, "write of 16 bytes")], suite="fuzz")
    assert list(compare.compare(first, second).changes) == ["only1"]
    third = write_run(tmp_path / "3", [finding(1, "double free")], suite="fuzz")
    assert set(compare.compare(first, third).changes) == {"only1", "stranger"}
    nothing = write_run(tmp_path / "4", [], suite="fuzz")
    assert not compare.compare(nothing, nothing).regressed


# --- pages and summaries ----------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """Tags that open, rows with their numbers of cells, the text, and that of it which is not in code."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[int] = []
        self.styled: list[str] = []
        self.words = self.prose = ""
        self.quoting = 0
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.styled += [name for name, _ in attrs if name == "style" or name.startswith("on")]
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += 1
        self.quoting += tag in ("code", "pre")

    def handle_endtag(self, tag: str) -> None:
        self.quoting -= tag in ("code", "pre")

    def handle_data(self, data: str) -> None:
        self.words += data
        self.prose += "" if self.quoting else data


ALLOWED = {"h2", "h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "details", "summary",
           "code", "pre"}  # fmt: skip


def rendered(content: str) -> Tags:
    """A summary as GitHub shows it, as far as another renderer tells."""
    assert len(content) <= markdown.LIMIT
    assert content.count("<details>") == content.count("</details>")
    return Tags(MarkdownIt("commonmark", {"html": True}).enable("table").render(content))


def hostile(folder: Path, verdict: str) -> Run:
    cause = "VALUE" if verdict == "FAIL" else ""
    bad = made(0, verdict, "ADD" + HOSTILE, HOSTILE, cause=cause, message=HOSTILE, repeat=f"````\n{HOSTILE}")
    waived = made(1, "FAIL", cause="VALUE", message=HOSTILE, waiver=HOSTILE)
    return write_run(folder, [bad, waived, made(2)], driver=HOSTILE, driver_version=HOSTILE, profile=HOSTILE)


def test_no_word_of_a_driver_is_markup_in_a_summary(tmp_path: Path) -> None:
    first, second = hostile(tmp_path / "1", "PASS"), hostile(tmp_path / "2", "FAIL")
    other = write_run(tmp_path / "3", [made(2)], driver="x" + HOSTILE)
    for content in (
        markdown.of_run(second),
        markdown.of_comparison(first, second, compare.compare(first, second)),
        markdown.of_comparison(other, second, compare.compare(other, second)),
    ):
        found = rendered(content)
        assert set(found.tags) <= ALLOWED
        assert "alert(1)" in found.words  # as text
        assert len(set(found.rows)) <= 5  # tables of 2 to 6 columns, and none broken open
        assert "@octocat" in found.words
        assert not re.search(r"@\w|://|www\.|#1", found.prose)  # people, links and issues are named in code alone


def test_a_summary_names_regressions_with_the_lines_that_repeat_them(tmp_path: Path) -> None:
    first = write_run(tmp_path / "1", sound())
    second = write_run(tmp_path / "2", [*sound()[1:], made(0, "FAIL", cause="VALUE", message="off by 3")])
    content = markdown.of_comparison(first, second, compare.compare(first, second))
    found = rendered(content)
    assert "Worse in 1 case" in found.words
    assert "off by 3" in found.words
    assert "```text\npytest --driver=vendor --case=ADD-float32-sync-drawn-0-abcdef\n```" in content


@pytest.mark.thorough
def test_a_summary_of_many_regressions_fits_a_comment(tmp_path: Path) -> None:
    operations = [f"OP{n}" for n in range(3000)]
    good = [made(0, operation=name) for name in operations]
    bad = [made(0, "FAIL", name, cause="VALUE", message=f"{'ab' * n} {HOSTILE * 5}", repeat=HOSTILE * 20)
           for n, name in enumerate(operations)]  # fmt: skip
    first, second = write_run(tmp_path / "1", good), write_run(tmp_path / "2", bad)
    for content in (
        markdown.of_comparison(first, second, compare.compare(first, second)),
        markdown.of_run(second),
        markdown.of_run(second, 4_000),
    ):
        found = rendered(content)
        assert set(found.tags) <= ALLOWED
        assert "3,000 cases" in found.words
    assert len(markdown.of_run(second, 4_000)) <= 4_000


def test_the_page_obeys_its_own_policy_and_shows_everything(tmp_path: Path) -> None:
    first, second = timed(tmp_path / "1", 2, {}), timed(tmp_path / "2", 4, {"EXP": 3.0})
    found = replace(compare.compare(first, second), paces=speed.paces(first, second))
    page = html.render_comparison(first, second, found)
    seen = Tags(page)
    assert not seen.styled
    assert "'unsafe-inline'" not in page
    for words in ("Seconds of cases", "slower", "1st", "2nd"):
        assert words in seen.words
    bad = [hostile(tmp_path / "3", "PASS"), hostile(tmp_path / "4", "FAIL")]
    page = Tags(html.render_comparison(*bad, compare.compare(*bad)))
    assert page.tags.count("script") == 1
    assert "<script>alert(1)" in page.words


def test_what_differs_is_there_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "1", sound())
    write_run(tmp_path / "2", [*sound()[1:], replace(FAILED, id="ADD-float32-sync-drawn-0-abcdef", number=0)])
    assert main(["compare", str(tmp_path / "1"), str(tmp_path / "2"), "--json", "-"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["regressed"], found["worse"], found["same"]) == ("nncts-comparison", True, 1, 2)
    (new,) = [kind for kind in found["changes"] if kind["cases"]]
    assert new["kind"] == "new"
    assert new["cases"][0]["before"]["verdict"] == "PASS"
    assert new["cases"][0]["after"]["verdict"] == "FAIL"
    assert new["cases"][0]["case"] == "ADD-float32-sync-drawn-0"
