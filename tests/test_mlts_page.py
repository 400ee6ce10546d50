"""The benchmark's page: what stands in a run's files stands on it, and nothing in them breaks it."""

import base64
import hashlib
import json
import re
import statistics

import numpy as np
import pytest

from harness.verdict import Cause, Judgement, Verdict
from harness.waivers import Waiver, Waivers
from mlts.page import write_page
from nnhal.errors import UsageError
from tests.mlts_pages import GENUINE, HOSTILE, SEEDED, Page, all_judged, interval, page_of, row_of, write_run

MACHINE = {"cpu": "a processor of the tests", "cores": 3, "platform": "Linux", "packages": {"ai-edge-litert": "9.9"}}


@pytest.fixture(autouse=True)
def _machine(monkeypatch):  # to ask for all packages takes longer than a page
    def write(folder, more):
        (folder / "environment.json").write_text(json.dumps({**MACHINE, **more}))

    monkeypatch.setattr("mlts.folder.write_environment", write)


def test_numbers_of_rows_stand_on_the_page(tmp_path):
    driver = {
        "to_cache": [0.3],
        "from_cache": [0.0625],
        "cache_bytes": 4321,
        "modes": {"burst": [0.004] * 100},
        "in_flight": {"1": [123.0, 0.008125], "4": [456.0, 0.0321]},
        "told": [[0.0105, 0.0091, 0.0094]] * 3,
        "memory": {"before": 3 << 20, "largest": 77 << 20},
        "processor": 0.0123,
        "notes": ["a remark of the driver"],
    }
    row = row_of(driver=driver, expected={"top 1": 0.8, "top 5": None, "count": 20})
    page = page_of(tmp_path / "run", [row])
    header, mine, base = page.table("mobilenet_v1: latency")
    middle = 1000 * statistics.median(row["driver"]["latency"])
    assert header[6:9] == ["p50 ms", "p90 ms", "p99 ms"]
    assert mine[0] == row["model"]
    assert mine[4] == "31 of 31"
    assert mine[9] == "700"
    assert float(mine[6].split()[0]) == pytest.approx(middle, rel=1e-3)
    low, high = re.match(r"[\d.]+ ([\d.]+) to ([\d.]+)", mine[6]).groups()
    assert float(low) < middle < float(high)
    assert float(mine[8].split()[0]) == pytest.approx(1000 * np.percentile(row["driver"]["latency"], 99), rel=1e-3)
    assert mine[10] == "1.25 × 1.24 to 1.26"
    assert mine[11] == "not worse"
    assert float(base[1].split()[0]) == pytest.approx(1000 * statistics.median(row["baseline"]["latency"]), rel=1e-3)
    header, mine, base, due = page.table("mobilenet_v1: results")
    assert header[3:5] == ["top 1", "top 1 agrees beside the baseline"]
    assert mine[3:9] == ["85 % 56 % to 96 %, of 20", "95 % 68 % to 100 %, of 20", "4e-06", "1e-08", "-9e-05", "0.00012"]
    assert base[1] == "90 % 60 % to 98 %, of 20"
    assert due[1] == "80 % of 20"
    assert mine[9].startswith("0.75 × 0.5 to 1.5 3 inputs")
    preparation = page.table("Milliseconds to prepare")
    assert preparation[1][1:4] == ["500", "250 to 750", "3"]
    assert preparation[3][1] == "62.5"
    assert page.table("Executions a second")[2][:3] == ["4", "456", "32.1"]
    assert ["burst", "4 4 to 4", "4 ? to ?", "too few 100 of 662"][0] == page.table("Executions in milli")[3][0]
    assert page.table("Memory")[2] == ["largest", "77.0 MiB", "–"]
    for words in (
        "4,321 bytes",
        "87.5 ms",
        "7 executions",
        "12.3 ms an inference",
        "not measured",
        "9.4 ms in the driver, 9.1 ms on the device; seen from here 10.5 ms",
        "a remark of the driver",
        "python -m mlts --only=mobilenet_v1_1.0_224_float",
    ):
        assert words in page.text


def test_headline_counts_by_respect(tmp_path):
    worse = Judgement(Verdict.FAIL, Cause.VALUE, "results", "errors are 3 times the baseline's", numbers={})
    slow = Judgement(Verdict.POOR, Cause.SLOWDOWN, "latency", "latency is 1.4 times the baseline's")
    died = all_judged(Judgement(Verdict.CRASH, Cause.DIED, message="died with signal 11"))
    refused = all_judged(Judgement(Verdict.NOT_SUPPORTED, Cause.UNSUPPORTED, "query", "no LSTM"))
    open_one = Judgement(Verdict.PASS, stage="latency", numbers={"p not worse": 0.4, "p worse": 0.2})
    verdicts = {"a": {"results": worse}, "b": {"latency": slow}, "c": died, "d": refused, "e": {"latency": open_one}}
    rows = [row_of(name, slot="asr") for name in "abcdef"]
    for row in rows[2:4]:
        row |= {"driver": None, "baseline": None, "ratio": None, "error_ratio": None, "scores": {}, "errors": []}
    page = page_of(tmp_path / "run", rows, verdicts, log="last words")
    header, *found = page.table("How many models")
    assert header == [
        "in",
        "verdict",
        "not worse",
        "worse",
        "undecided",
        "not supported",
        "failed",
        "not run",
        "waived",
    ]
    assert [row[2:] for row in found] == [
        ["3", "1", "0", "1", "1", "0", "0"],
        ["2", "1", "1", "1", "1", "0", "0"],
        ["4", "0", "0", "1", "1", "0", "0"],
    ]
    assert "Of 6 models, 1 failed, 1 worse than the baseline, 1 slower" in page.text
    failures = page.table("What failed")
    assert [row[:2] for row in failures[1:]] == [
        ["a", "results"],
        ["b", "latency"],
        ["c", "results, latency, stability"],
    ]
    assert "died with signal 11" in failures[3][3]
    assert "last words" in failures[3][3]
    assert "no LSTM" in page.table("Models that the driver does not run")[1][3]


def test_a_good_run_is_called_good_and_a_waived_failure_is_none(tmp_path):
    page = page_of(tmp_path / "good", [row_of("a"), row_of("b")])
    assert "Not worse than the baseline in all 2 models" in page.text
    assert "shorter than the public benchmark" not in page.text
    worse = Judgement(Verdict.FAIL, Cause.VALUE, "results", "errors are 3 times the baseline's")
    known = Waivers([Waiver("MLTS-a-*", "table has 64 entries")], None)
    page = page_of(tmp_path / "waived", [row_of("a"), row_of("b")], {"a": {"results": worse}}, waivers=known)
    assert page.table("How many models")[1][2:] == ["1", "1", "0", "0", "0", "0", "1"]
    assert "No failures that are not waived; 1 of 2 models surely not worse" in page.text
    assert "waived: table has 64 entries" in page.text


def test_a_short_run_says_so(tmp_path):
    page = page_of(tmp_path / "run", [row_of()], driver_version="1.2.3", preset="smoke", shortened=True, filtered=True)
    assert "shorter than the public benchmark" in page.text
    assert "The run was filtered" in page.text
    assert all(word in page.text for word in ("1.2.3", "a processor of the tests", "9.9"))


def test_seeded_weights_show_no_accuracy(tmp_path):
    page = page_of(tmp_path / "run", [row_of(reality=SEEDED), row_of("b", reality=GENUINE)])
    _, mine, _, genuine, *_ = page.table("mobilenet_v1: results")
    assert mine[1] == SEEDED
    assert mine[3] == "none weights not trained"
    assert mine[4].startswith("95 %")
    assert genuine[1] == GENUINE
    assert genuine[3].startswith("85 %")
    assert "1 model of 2 without trained weights" in page.text


def test_percentiles_of_few_executions_are_not_shown(tmp_path):
    _, mine, _ = page_of(tmp_path / "run", [row_of(executions=63)]).table("mobilenet_v1: latency")
    assert mine[7:9] == ["too few 63 of 64", "too few 63 of 662"]


def test_every_slot_has_its_place(tmp_path):
    page = page_of(tmp_path / "run", [row_of("a", slot="tts"), row_of("b", slot="somebody's")])
    places = [page.ids.index(f"slot-{slot}") for slot in ("mobilenet_v1", "mobilenet_v2", "tts", "asr", "other")]
    assert places == sorted(places)
    assert page.text.count("Not run: no model of this slot was selected.") == 3
    assert page.table("tts: latency")[1][0] == "a"
    assert page.table("other: latency")[1][0] == "b"


def test_planned_models_without_a_record_are_not_run(tmp_path):
    planned = [("a", "default"), ("mobilenet_v2_1.0_224_quant", "default")]
    page = page_of(tmp_path / "run", [row_of("a")], planned=planned, ended=False)
    assert page.table("mobilenet_v2: latency")[1][0] == "mobilenet_v2_1.0_224_quant"
    assert "not run" in page.table("mobilenet_v2: latency")[1]
    assert "INCOMPLETE, 1 of 2 judged" in page.text
    assert "The run did not end" in page.text


def test_tiers_side_by_side(tmp_path):
    rows = [row_of("a", tier="low"), row_of("a", tier="high-end"), row_of("b", tier="low")]
    page = page_of(tmp_path / "run", rows)
    header, first, second = page.table("Median latency of the driver")
    assert header == ["model", "low", "high-end"]
    assert first[0] == "a"
    assert "1.25 ×" in first[1]
    assert "1.25 ×" in first[2]
    assert second[2] == "not run"
    assert {"model=a&tier=low", "model=a&tier=high-end"} <= set(page.ids)


def test_links_and_ids_fit(tmp_path):
    page = page_of(tmp_path / "run", [row_of("a b/ü#"), row_of("plain")])
    assert len(page.ids) == len(set(page.ids))
    assert not any(re.search(r"\s", name) for name in page.ids)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert "model=plain&tier=default" in page.ids
    assert "model=a%20b%2F%C3%BC%23&tier=default" in page.ids


def test_outliers_and_drift(tmp_path):
    latency = [0.010 + 1e-5 * (n % 7) for n in range(100)]
    latency[50] = 0.5
    pairs = [(0.010 * (1 + n / 40), 0.010) for n in range(40)]
    page = page_of(tmp_path / "run", [row_of(driver={"latency": latency, "pairs": pairs})])
    synchronous = page.table("Executions in milliseconds")[1]
    assert synchronous[5:] == ["10 to 500", "1: 500"]
    quarters = page.table("Driver over baseline in the quarters")[1]
    assert quarters[:5] == ["1.11 ×", "1.36 ×", "1.61 ×", "1.86 ×", "+67.4 %"]
    shares, ratios = page.charts
    assert sum(shares["driver"]) == pytest.approx(100)
    assert sum(shares["baseline"]) == pytest.approx(100)
    assert 10 ** shares["edges"][-1] == pytest.approx(500, rel=1e-4)  # milliseconds
    assert ratios["ratio"] == pytest.approx([mine / base for mine, base in pairs], rel=1e-5)


def test_accumulation_is_ranked_by_effect(tmp_path):
    steps = [
        {
            "number": n,
            "operation": f"OP_{n}",
            "shape": [1, n],
            "error": 0.001 * (n + 1),
            "allowed": 0.01,
            "effect": effect,
        }
        for n, effect in enumerate([0.1, 0.7, 0.0, 0.3])
    ]
    page = page_of(tmp_path / "run", [row_of(accumulation=steps)])
    _, *ranking = page.table("Operations by what each does")
    assert [row[1] for row in ranking] == ["OP_1", "OP_3", "OP_0", "OP_2"]
    assert ranking[0] == ["1", "OP_1", "[1, 1]", "0.002", "0.01", "0.7"]
    assert page.charts[-1]["error"] == [0.001, 0.002, 0.003, 0.004]


def test_hostile_words_stay_text(tmp_path):
    row = row_of(
        HOSTILE,
        driver={
            "notes": [HOSTILE],
            "modes": {HOSTILE: [0.01]},
            "partition": HOSTILE,
            "in_flight": {HOSTILE: [1.0, 2.0]},
            "memory": {HOSTILE: 5},
        },
        size=HOSTILE,
        type=HOSTILE,
        reality=HOSTILE,
        note=HOSTILE,
        scores={"driver": {HOSTILE: interval(1.0)}},
        tier_words=HOSTILE,
        licence=HOSTILE,
        data_set=HOSTILE,
        accumulation=[{"number": HOSTILE, "operation": HOSTILE, "shape": HOSTILE, "error": 1, "effect": 2}] * 3,
    )
    failure = Judgement(Verdict.FAIL, Cause.VALUE, "results", HOSTILE)
    waivers = Waivers([Waiver("*", HOSTILE)], None)
    page = page_of(
        tmp_path / "run",
        [row],
        {HOSTILE: {"results": failure}},
        waivers=waivers,
        log=HOSTILE,
        preset=HOSTILE,
        baseline=HOSTILE,
        driver_version=HOSTILE,
        driver_type=HOSTILE,
        tiers=[HOSTILE],
    )
    scripts = [kind for tag, kind, _ in page.inline if tag == "script"]
    assert [kind for kind in scripts if not kind] == [""] * 3  # ours; the others are data of charts
    assert page.text.count('<script>alert("1")</script>&amp;') > 10
    assert not re.search("[\x1b\u202e]", page.source)


def test_the_policy_names_what_is_inline_and_nothing_else(tmp_path):
    page = page_of(tmp_path / "run", [row_of()])
    policy = next(found["content"] for tag, found in page.tags if found.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    due = {
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for _, kind, text in page.inline if not kind
    }
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == due
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//|url\(|@import""", page.source)


def test_tables_can_be_read_aloud(tmp_path):
    page = page_of(tmp_path / "run", [row_of("a", tier="low"), row_of("a", tier="high")])
    tables = sum(tag == "table" for tag, _ in page.tags)
    assert tables
    assert sum(tag == "caption" for tag, _ in page.tags) == tables
    assert all("scope" in found for tag, found in page.tags if tag == "th")
    plots = [found for tag, found in page.tags if found.get("role") == "img"]
    assert plots
    assert all(found["aria-label"] for found in plots)


def test_without_measurements_the_page_says_so(tmp_path):
    folder = write_run(tmp_path / "run", [], planned=[("a", "default")], ended=False)
    page = Page(write_page(folder))
    assert "Nothing was measured" in page.text
    assert "1 model of 1 not measured" in page.text
    assert not page.charts


def test_records_without_measurements_are_told(tmp_path):
    folder = write_run(tmp_path / "run", [row_of("a"), row_of("b")])
    first = (folder / "measurements.jsonl").read_text().splitlines(keepends=True)[0]
    (folder / "measurements.jsonl").write_text(first)
    page = Page(write_page(folder))
    assert "1 model has a record and no measurements" in page.text
    assert "There are no measurements of it." in page.text


def test_a_file_that_is_cut_off_anywhere_gives_a_page(tmp_path):
    folder = write_run(tmp_path / "run", [row_of("a", executions=20), row_of("b", executions=20)])
    path = folder / "measurements.jsonl"
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole), 9, dtype=int):
        path.write_bytes(whole[:length])
        page = Page(write_page(folder))
        shown = sum(row[:1] == ["synchronous"] for row in page.tables.get("Executions in milliseconds", []))
        assert shown == (whole[:length].count(b"\n") > 0 or length >= len(whole.splitlines()[0]))


@pytest.mark.parametrize(
    "junk",
    [
        [["a", None]],
        *(pytest.param(j, marks=pytest.mark.thorough) for j in (None, "NaN", [None], {"ratio": "x"}, -1e400)),
    ],
)
def test_rows_of_any_form_give_a_page(tmp_path, junk):
    row = row_of("a", executions=12)
    names = sorted({*row, "accumulation"} - {"model", "tier"})
    rows = [{**row, name: junk, "model": f"m{n}"} for n, name in enumerate(names)]
    rows += [{**row, "model": f"d{n}", "driver": {**row["driver"], name: junk}} for n, name in enumerate(row["driver"])]
    rows += [
        {**row, "model": f"b{n}", "baseline": {**row["baseline"], name: junk}} for n, name in enumerate(row["driver"])
    ]
    rows += [{"model": "bare", "tier": "default"}]
    page = page_of(tmp_path / "run", rows)
    assert "bare" in page.text
    assert not re.search(r"\b(Infinity|NaN)\b", json.dumps(page.charts))


def test_wrong_folders_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"holds no records"):
        write_page(tmp_path)
    folder = write_run(tmp_path / "run", [row_of()], suite="stress")
    with pytest.raises(UsageError, match="is no run of this benchmark"):
        write_page(folder)
    folder = write_run(tmp_path / "other", [row_of()])
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_page(folder, tmp_path / "file" / "page.html")


def test_the_page_goes_where_it_is_wanted(tmp_path):
    folder = write_run(tmp_path / "run", [row_of()])
    assert write_page(folder) == folder / "page.html"
    assert write_page(folder, tmp_path / "deep" / "p.html").is_file()


@pytest.mark.thorough
def test_thirty_models_of_a_thousand_executions_stay_below_two_megabytes(tmp_path):
    steps = [
        {
            "number": n,
            "operation": "CONV_2D",
            "shape": [1, 7, 7, 512],
            "error": 0.001234567 * n,
            "allowed": 0.1,
            "effect": 1 / (n + 1),
        }
        for n in range(150)
    ]
    rows = []
    for n in range(30):
        row = row_of(f"mobilenet_v1_{n}", executions=1000, seed=n, accumulation=steps)
        row["driver"]["pairs"] = [
            (a, b) for a, b in zip(row["driver"]["latency"], row["baseline"]["latency"], strict=True)
        ]
        rows.append(row)
    page = page_of(tmp_path / "run", rows)
    assert len(page.source.encode()) < 2_000_000
    assert all(len(chart["round"]) <= 300 for chart in page.charts if "round" in chart)
    assert len(page.charts) == 90
