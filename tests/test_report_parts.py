"""The sections that suites add to a page: values of made-up files stand in them, and no file breaks them."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from harness.record import RecordFile, read_run
from mlts import page_part
from reports import campaigns, charts, parts, reaching, sections, stressing
from tests.mlts_pages import HOSTILE, Page, row_of
from tests.mlts_pages import write_run as write_benchmark
from tests.report_runs import made, write_run

SCENE = "STRESS-{}-run-light-0"
END = {"models": {"inputs": 4000, "cases": 3000, "unsupported": 500, "seconds": 40.0, "edges": 591, "corpus": 38,
                  "findings": 1, "ends": 2, "rate": 100.0}}  # fmt: skip
FUZZ = {"suite": "fuzz", "fuzz": {"targets": ["models", "wire"], "seconds": 60, "jobs": 2, "seed": 6}}
JUNK = [
    None,
    [],
    {},
    "NaN",
    "x",
    -1,
    1e400,
    [[None]],
    {"models": 3},
    {"a": {"seconds": "x", "inputs": [1]}},
    True,
    "9" * 400,
    10**400,
    -(10**400),
]


@pytest.fixture(autouse=True)
def _machine(monkeypatch):  # to ask for all packages takes longer than a section
    monkeypatch.setattr("mlts.folder.write_environment", lambda folder, more: None)


def scene(name, verdict="PASS", **rest):
    values = {"detail": "8 threads execute", "repeat": f"python -m stress --only={name}", "numbers": {}, **rest}
    record = replace(made(0, verdict, "STRESS", name, "light"), **values)
    return replace(record, id=SCENE.format(name), batch=SCENE.format(name)[:-2], mode="run")


def graph(number, verdict="PASS", operations="ADD", mix="small", **rest):
    return made(number, verdict, "GRAPH", mix, "drawn", **{"detail": f"2 operations: {operations}", **rest})


def found(number, verdict="FAIL", target="models", **rest):
    name = f"FUZZ-{target}-sync-fuzzed-{number}-0a{number}"
    values = {"cause": "VALUE", "saved": f"failures/{name}.case", **rest}
    return replace(made(number, verdict, "FUZZ", target, "fuzzed", **values), id=name)


def run_of(folder, records, end=None, **header):
    """A run with its end marker, which has more in it than `write_run` knows."""
    write_run(folder, records, ended=end is None, **header)
    if end is not None:
        file = RecordFile(folder / "records.jsonl")
        file.end({}, end.pop("seconds", 50.0), **{"interrupted": False, **end})
        file.close()
    return read_run(folder)


def write_samples(folder, *rows):
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def page_of(found_parts):
    (part,) = found_parts
    page = Page(f'<section id="{part.anchor}"><h2>{part.title}</h2>{part.body}</section>')
    assert len(page.ids) == len(set(page.ids))
    assert all(name == part.anchor or name.startswith(f"{part.anchor}-") for name in page.ids)
    assert {link[1:] for link in page.links} <= set(page.ids)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 2
    assert min(levels[1:], default=3) > 2
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    tables = sum(tag == "table" for tag, _ in page.tags)
    assert sum(tag == "caption" for tag, _ in page.tags) == tables
    assert all("scope" in found for tag, found in page.tags if tag == "th")
    assert all(found.get("aria-label") for _, found in page.tags if found.get("role") == "img")
    return page


# --- charts -----------------------------------------------------------------------------------------------------------


def test_data_of_a_figure_cannot_end_it():
    words = '</script><script>alert("1")</script><!--'
    figure = charts.figure("timeline", words, {"x": [1.0, float("nan")], "name": words, "marks": [(2, words)]}, words)
    page = Page(figure)
    assert [tag for tag, _ in page.tags] == ["figure", "figcaption", "div", "script"]
    assert page.charts == [{"x": [1, None], "name": words, "marks": [[2, words]]}]
    assert page.text == words
    assert charts.figure("timeline", "none", None, "none") == ""


def test_parts_hold_each_place_once():
    for count, most in ((0, 5), (1, 5), (7, 3), (1000, 160), (3, 3)):
        found = [place for part in charts.parts_of(count, most) for place in part]
        assert found == list(range(count))
        lengths = [len(part) for part in charts.parts_of(count, most)]
        assert len(lengths) == min(count, most)
        assert not lengths or max(lengths) - min(lengths) <= 1
    assert charts.quarters(9) == [0, 2, 4, 6, 8]
    assert charts.quarters(2) == [0, 1]
    assert charts.quarters(0) == []


def test_timelines_leave_out_what_is_not_there():
    panels = [("MiB", {"resident": [1.0, None], "shared": [None, None]}), ("number", {"threads": [None, None]})]
    found = charts.timeline([0.0, 1.0], "seconds", panels, [(0.5, "killed")])
    assert found["panels"] == [{"label": "MiB", "series": [{"name": "resident", "values": [1.0, None]}]}]
    assert found["marks"] == [[0.5, "killed"]]
    assert charts.timeline([0.0], "seconds", panels) is None


def test_every_kind_of_chart_is_drawn_by_the_script():
    style, script = charts.styles()[1], charts.scripts()[1]
    for kind in charts.KINDS:
        assert f"    {kind}(data) {{" in script
    assert set(re.findall(r"color\([\"`]--([a-z-]+)", script)) <= set(re.findall(r"--([a-z-]+):", style))
    assert "MIT" in charts.scripts()[0][:40]
    assert not any(re.search(r"</script|</style|url\(|@import", text) for text in (*charts.scripts(), *charts.styles()))


# --- stress -----------------------------------------------------------------------------------------------------------


def test_endings_sides_and_percentiles(tmp_path):
    numbers = {"seconds": 5.25, "executions": 963, "executions_per_second": 183.4, "latency_p50": 0.0295,
               "latency_p90": 0.0568, "latency_p99": 0.0856, "latency_max": 0.1066}  # fmt: skip
    records = [
        scene("parallel", numbers=numbers, notes=("shortened: 5 s",)),
        scene(
            "dies", "CRASH", cause="DIED", stage="driver, execute", message="died with 11", numbers={"seen_after": 3.5}
        ),
        scene("client", "CRASH", cause="DIED", stage="client", message="client 3 ended"),
        scene("silent", "HANG", cause="SILENT", stage="driver, prepare", waiver="a known one"),
        scene("wrong", "FAIL", cause="VALUE", stage="driver, execute", message="2 wrong answers"),
        scene("none", "NOT_APPLICABLE", message="no burst"),
    ]
    page = page_of(stressing.parts([write_run(tmp_path / "run", [*records, made(0)], suite="stress")]))
    header, row = page.table("How the scenes ended")
    assert header[1:] == ["SUCCESS", "FAILURE", "HANG", "CRASH", "NOT APPLICABLE", "driver died", "client died", "all"]
    assert row[1:] == ["1", "1", "1", "2", "1", "1", "1", "6"]
    _, *rows = page.table("Scenes in the order")
    due = ["SUCCESS", "CRASH after 3.5 s driver, execute", "CRASH client", "HANG driver, prepare waived"]
    assert [row[1] for row in rows] == [*due, "FAILURE driver, execute", "NOT APPLICABLE"]
    assert rows[0][3:] == ["5.25", "963", "183.4", "29.5", "56.8", "85.6", "106.6"]
    assert rows[5][3:] == ["–"] * 7
    assert "shortened: 5 s" in rows[0][2]
    assert not page.charts


def test_a_timeline_shows_what_was_sampled(tmp_path):
    draw = np.random.default_rng(3)
    count = 500
    at = np.cumsum(draw.uniform(0.2, 0.4, count)).round(3)
    rss = (draw.integers(40, 80, count) * 2**20).tolist()
    rss[123] = 999 * 2**20  # a peak that must not be thinned away
    done = np.cumsum(draw.integers(0, 50, count)).tolist()
    samples = [[at[n], rss[n], 2**20, 5 + n % 3, 7, 0.1 * n, done[n]] for n in range(count)]
    numbers = {
        "seen_after": 60.0,
        "rss_per_hour": 2.5,
        "rss_per_hour_low": 1.5,
        "rss_per_hour_high": 3.5,
        "restarts": 2,
    }
    run = write_run(tmp_path / "run", [scene("soak", "FAIL", cause="LEAK", numbers=numbers)], suite="stress")
    write_samples(
        run.folder, {"id": SCENE.format("soak"), "marks": [[80.5, "killed"], [1.5, "begun"]], "samples": samples}
    )
    page = page_of(stressing.parts([run]))
    (chart,) = page.charts
    memory, rate, counts = chart["panels"]
    assert len(chart["x"]) == stressing.POINTS
    assert chart["marks"] == [[1.5, "begun"], [60, "FAILURE is seen"], [80.5, "killed"]]
    assert "60.00 s: FAILURE is seen" in page.text
    assert max(memory["series"][0]["values"]) == 999
    assert set(counts["series"][0]["values"]) == {7}
    ends = [int(np.flatnonzero(np.isclose(at, x, atol=1e-3))[0]) for x in chart["x"]]
    assert ends[-1] == count - 1
    due = np.diff(np.asarray(done)[ends]) / np.diff(at[ends])
    assert rate["series"][0]["values"][0] is None
    assert np.allclose(rate["series"][0]["values"][1:], due, rtol=1e-5)
    header, resident, _, _, _, processor, executions = page.table("What the driver's process used, in 500 samples")
    assert header[-2:] == ["least", "most"]
    assert resident[1] == f"{rss[0] / 2**20:g}"
    assert resident[-1] == "999"
    assert processor[1:6] == ["0", "12.4", "24.9", "37.4", "49.9"]
    assert executions[5] == f"{done[-1]:,}"
    assert page.table("Growth for each hour")[1] == ["resident, MiB", "2.5", "1.5", "3.5"]
    assert page.table("What else was measured") == [["restarts", "2"]]


def test_counts_that_fall_have_no_rate(tmp_path):
    samples = [
        [1.0, 5, 0, 1, 1, 0, 100],
        [2.0, 5, 0, 1, 1, 0, 40],
        [3.0, 5, 0, 1, 1, 0, 50],
        [4.0, 5, 0, 1, 1, 0, None],
    ]
    run = write_run(tmp_path / "run", [scene("a")], suite="stress")
    write_samples(run.folder, {"id": SCENE.format("a"), "samples": samples[::-1]})
    (chart,) = page_of(stressing.parts([run])).charts
    assert chart["x"] == [1, 2, 3, 4]
    assert chart["panels"][1]["series"][0]["values"] == [None, None, 10, None]


def test_latency_over_time_is_that_of_what_was_done_meanwhile(tmp_path):
    samples = [
        [1.0, 5, 0, 1, 1, 0, 10, 0.5],
        [2.0, 5, 0, 1, 1, 0, 30, 0.9],  # 20 executions in 0.4 s
        [3.0, 5, 0, 1, 1, 0, 30, 0.9],  # none
        [4.0, 5, 0, 1, 1, 0, 40, 0.8],  # a time that falls tells nothing
        [5.0, 5, 0, 1, 1, 0, 50],
    ]
    run = write_run(tmp_path / "run", [scene("a")], suite="stress")
    write_samples(run.folder, {"id": SCENE.format("a"), "samples": samples})
    (chart,) = page_of(stressing.parts([run])).charts
    (latency,) = [panel for panel in chart["panels"] if panel["label"] == "ms"]
    assert latency["series"] == [{"name": "mean latency", "values": [None, 20, None, None, None]}]


def test_a_fuzzing_run_is_shown_as_it_went_on(tmp_path):
    run = write_run(tmp_path / "run", [], suite="fuzz", fuzz={"targets": ["models"]})
    rows = [{"seconds": n, "inputs": 100 * n * n, "edges": 7 * n, "corpus": 2 * n, "findings": 0} for n in range(1, 7)]
    rows.insert(2, {"seconds": 2.5, "inputs": 10, "edges": "many"})  # fewer inputs than before: no rate
    lines = [*map(json.dumps, rows), "{", json.dumps({"inputs": 5}), json.dumps([1])]
    (run.folder / "progress.jsonl").write_text("\n".join(lines))
    page = page_of(campaigns.fuzzing([run]))
    (chart,) = page.charts
    assert chart["x"] == [1, 2, 2.5, 3, 4, 5, 6]
    rate, reached, kept = (panel["series"][0]["values"] for panel in chart["panels"])
    assert rate == [None, 300, None, 1780, 700, 900, 1100]
    assert reached == [7, 14, None, 21, 28, 35, 42]
    assert kept == [2, 4, None, 6, 8, 10, 12]
    assert page.table("What was come to")[1] == ["inputs", "100", "400", "900", "1,600", "3,600"]
    assert "3 lines of progress.jsonl could not be read." in page.text


def test_scenes_of_a_session_have_no_timeline_and_runs_stand_apart(tmp_path):
    session = write_run(tmp_path / "session", [scene("a", numbers={"executions": 5}), *map(made, range(3))])
    run = write_run(tmp_path / "run", [scene("a")], suite="stress", driver="other")
    write_samples(run.folder, {"id": SCENE.format("a"), "samples": [[1, 2], [2, 3]]})
    (part,) = stressing.parts([session, run, write_run(tmp_path / "none", [made(0)])])
    page = page_of([part])
    assert part.count == 2
    assert [row[0].split()[0] for row in page.table("How the scenes ended")[1:]] == ["vendor,mode=fast", "other"]
    assert len(page.charts) == 1
    assert stressing.parts([write_run(tmp_path / "nothing", [made(0)])]) == []


def test_samples_that_are_cut_off_anywhere_give_a_section(tmp_path):
    run = write_run(tmp_path / "run", [scene("a"), scene("b")], suite="stress")
    rows = [
        {"id": SCENE.format(n), "marks": [[1, "x"]], "samples": [[t, 2**20, 0, 1, 1, 1, t] for t in range(6)]}
        for n in "ab"
    ]
    write_samples(run.folder, *rows)
    path = run.folder / "samples.jsonl"
    whole = path.read_bytes()
    first = len(whole.splitlines()[0])
    for length in np.linspace(0, len(whole), 12, dtype=int):
        path.write_bytes(whole[:length])
        page = page_of(stressing.parts([run]))
        complete = int(length >= first) + int(length >= len(whole) - 1)
        assert len(page.charts) == complete
        cut = length not in (0, first, first + 1, len(whole) - 1, len(whole))
        assert ("1 line of samples.jsonl could not be read." in page.text) == cut


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk)[:20])
def test_samples_and_numbers_of_any_form_give_a_section(tmp_path, junk):
    names = ("seconds", "executions", "latency_p50", "seen_after", "rss_per_hour")
    run = write_run(tmp_path / "run", [scene(n, "FAIL", cause="VALUE") for n in "abcdef"], suite="stress")
    for record in list(run.records.values())[:3]:
        run.records[f"{record.batch}-0"] = replace(record, numbers=dict.fromkeys(names, junk))
    write_samples(
        run.folder,
        junk,
        {"id": junk},
        {"id": SCENE.format("a"), "samples": junk, "marks": junk},
        {
            "id": SCENE.format("b"),
            "samples": [junk, [junk], [1, junk], [2, 3, junk, junk]],
            "marks": [junk, [junk, "x"], [1, junk]],
        },
        {"id": "stranger", "samples": [[1, 2]]},
    )
    page = page_of(stressing.parts([run]))
    assert "have no record" in page.text or "has no record" in page.text
    assert not re.search(r"\b(Infinity|NaN)\b", json.dumps(page.charts))


def test_many_scenes_are_few_on_a_page_and_failing_ones_are_there(tmp_path):
    count = 2 * stressing.SCENES
    records = [scene(f"s{n}", *(("FAIL",) if n == count - 1 else ()), detail="x" * 5000) for n in range(count)]
    run = write_run(tmp_path / "run", records, suite="stress")
    samples = [[n, 50e6 + n * 1e4, 1e6, 5, 6, n, 10 * n] for n in range(60)]
    write_samples(run.folder, *({"id": record.id, "samples": samples} for record in records))
    (part,) = stressing.parts([run])
    assert len(part.body) < 1_600_000
    page = page_of([part])
    assert page.table("Scenes in the order")[1][1] == "FAILURE"
    assert f"{count - stressing.SCENES} scenes more stand in the records alone." in page.text
    assert page.table("How the scenes ended")[1][-1] == f"{count}"


# --- fuzzing ----------------------------------------------------------------------------------------------------------


def test_what_targets_came_to(tmp_path):
    records = [found(1, message="wrong value"), found(2, "CRASH", cause="DIED", message="died"),
               found(3, message="again", saved="", notes=("known since 2026-01-01: FUZZ-models-sync-fuzzed-9-aa",)),
               found(4, "INTERNAL", target="wire", cause="SUITE", message="a defect")]  # fmt: skip
    run = run_of(tmp_path / "run", records, {"targets": END}, **FUZZ)
    (run.folder / "failures").mkdir()
    (run.folder / "failures" / "models-0a1.bin").write_bytes(b"x")
    (part,) = campaigns.fuzzing([run])
    page = page_of([part])
    assert part.count == 2
    _, models, wire = page.table("What each target came to")
    assert models == ["models", "4,000", "3,000", "500", "40", "100", "591", "", "38", "2", "1", "2"]
    assert wire == ["wire not recorded", "–", "–", "–", "–", "–", "–", "", "–", "0", "0", "–"]
    for words in (
        "inputs a second80",
        "inputs4,000",
        "new findings2",
        "time50 s; 60 s asked for",
        "seed6",
        "to its end",
    ):
        assert words in page.text
    new = page.table("2 distinct findings")
    assert [row[1] for row in new[1:]] == ["FAIL VALUE", "CRASH DIED"]
    assert "failures/FUZZ-models-sync-fuzzed-1-0a1.case failures/models-0a1.bin" in new[1][2]
    assert ".bin" not in new[2][2]
    assert "known since 2026-01-01" in page.table("Known findings")[1][2]
    assert page.table("Looked at again")[1][2] == "a defect"


def test_without_an_end_marker_records_tell(tmp_path):
    page = page_of(campaigns.fuzzing([write_run(tmp_path / "run", [found(1)], ended=False, **FUZZ)]))
    assert "The run has no numbers of its targets" in page.text
    assert "no end marker" in page.text
    assert page.table("What each target came to")[1][9] == "1"
    page = page_of(campaigns.fuzzing([run_of(tmp_path / "cut", [], {"interrupted": True, "targets": END}, **FUZZ)]))
    assert "endedinterrupted" in page.text


def test_files_outside_of_a_run_are_not_named(tmp_path):
    (tmp_path / "models-0a1.bin").write_bytes(b"x")
    run = run_of(tmp_path / "run", [found(1, saved="failures/../../x.case")], {"targets": END}, **FUZZ)
    assert ".bin" not in page_of(campaigns.fuzzing([run])).text


# --- random graphs ----------------------------------------------------------------------------------------------------


def failure(count, graphs, **more):
    record = {"message": "output differs", "repeat": "pytest --case=x", "saved": "failures/small.case"}
    row = {"verdict": "FAIL", "cause": "VALUE", "mismatch": "value", "operations": ["ADD int32"], "count": count,
           "note": "", "pending": False, "seeds": graphs, "alike": {}, "record": record}  # fmt: skip
    return {**row, **more}


def campaign(folder, records, failures=(), end=None, **header):
    given = {"suite": "graphs", "mixes": ["small", "chain"], "seed": 3, "for": 60, "oracle": "reference", **header}
    run = run_of(folder, records, end, **given)
    if failures:
        (folder / "failures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in failures))
    return run


def test_what_a_campaign_came_to(tmp_path):
    records = [
        graph(0, operations="ADD x2, RELU"),
        graph(1, "FAIL", "ADD, CONV_2D", cause="VALUE"),
        graph(2, "NOT_SUPPORTED", "RELU, LSTM"),
        graph(0, "FAIL", "ADD, NO_SUCH_THING", "chain", cause="VALUE"),
        graph(1, "FAIL", "MUL", "chain", cause="VALUE"),
    ]
    failures = [failure(1, {"chain": [1]}, operations=["MUL float32"], note="it takes too long"),
                failure(2, {"small": [1]}, alike={"chain": [0]})]  # fmt: skip
    spent = {"generation": 1.0, "oracle": 2.0, "driver": 5.0}
    run = campaign(tmp_path / "run", records, failures, {"rate": 12.5, "spent": spent})
    (run.folder / "failures").mkdir()
    (run.folder / "failures" / "small.case").write_bytes(b"x")
    (part,) = campaigns.graphs([run])
    page = page_of([part])
    assert part.count == 2
    assert page.table("Seconds of all processes")[1:] == [
        ["generation", "1", "12.5 %"],
        ["oracle", "2", "25.0 %"],
        ["driver", "5", "62.5 %"],
    ]
    assert page.table("Number of graphs") == [
        ["mix", "pass", "fail", "not supported", "all"],
        ["small", "1", "1", "1", "3"],
        ["chain", "0", "2", "0", "2"],
    ]
    _, first, second = page.table("2 failures, those in most graphs first")
    assert first[:3] == ["2", "FAIL VALUE", "ADD int32"]
    assert "in small 1, chain 0 failures/small.case" in first[3]
    assert "not minimised: it takes too long" in second[3]
    assert page.table("Number of graphs that hold")[1:] == [
        ["ADD", "3", "3", "2", "0"], ["RELU", "2", "1", "0", "1"], ["CONV_2D", "1", "1", "1", "0"],
        ["LSTM", "1", "0", "0", "1"], ["MUL", "1", "1", "1", "0"]]  # fmt: skip
    assert "1 other name is left out" in page.text
    for words in ("graphs a second12.5", "distinct failures2", "seed3", "held againstreference"):
        assert words in page.text
    (chart,) = page.charts
    assert chart["x"] == [1, 2, 3, 4, 5]
    assert chart["panels"][0]["series"][0]["values"] == [0, 1, 1, 1, 2]
    assert chart["panels"][1]["series"][0]["values"] == [2, 3, 4, 4, 5]
    assert page.table("After each quarter")[1:] == [
        ["distinct failures", "1", "1", "1", "2"],
        ["operations reached", "3", "4", "4", "5"],
    ]


def test_discovery_of_many_graphs_is_thinned_and_whole_at_its_end():
    draw = np.random.default_rng(5)
    names = sorted(reaching.OPERATIONS)
    chosen = [set(draw.choice(names, 2, replace=False)) for _ in range(1000)]
    records = [graph(n, operations=", ".join(some)) for n, some in enumerate(chosen)]
    failures = [[("small", int(seed)) for seed in draw.integers(0, 2000, 3)] for _ in range(40)]
    found = reaching.discovery(records, failures)
    for place in (0, 10, 500, 999):
        assert found.operations[place] == len(set().union(*chosen[: place + 1]))
        assert found.failures[place] == sum(any(seed <= place for _, seed in some) for some in failures)
    assert len(found.chart["x"]) == reaching.POINTS
    assert found.chart["x"][-1] == 1000
    assert reaching.discovery([], []).chart is None


def test_failures_that_were_not_told_apart(tmp_path):
    run = campaign(tmp_path / "run", [graph(0, "FAIL", cause="VALUE")])
    page = page_of(campaigns.graphs([replace(run, end={}, ended=False)]))
    assert "1 failure was not told apart" in page.text
    assert "no end marker" in page.text


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk)[:20])
def test_files_of_any_form_give_sections(tmp_path, junk):
    keys = [*failure(1, {}), "x"]
    rows = [junk, *({**failure(1, {"small": [0]}), key: junk} for key in keys)]
    rows += [failure(1, {"small": junk, "x": [junk]}, record={"saved": junk, "repeat": junk, "message": junk})]
    run = campaign(tmp_path / "graphs", [graph(0)], rows)
    marker = dict.fromkeys(("seconds", "rate", "spent", "targets", "interrupted"), junk)
    header = dict.fromkeys(
        ("seed", "for", "count", "mixes", "oracle", "against", "graphs", "fuzz", "driver_version", "time"), junk
    )
    fuzz = write_run(tmp_path / "fuzz", [found(1)], **FUZZ)
    for part, one in ((campaigns.graphs, run), (campaigns.fuzzing, fuzz)):
        page_of(part([one]))
        page = page_of(part([replace(one, end=marker, plan={**one.plan, **header})]))
        assert not re.search(r"\b(Infinity|NaN)\b", json.dumps(page.charts))
    for name, row in (("targets", {"models": junk}), ("spent", {"driver": junk})):
        page_of(campaigns.fuzzing([replace(fuzz, end={name: row})]))
        page_of(campaigns.graphs([replace(run, end={name: row})]))


def test_damaged_lines_of_failures_are_told(tmp_path):
    run = campaign(tmp_path / "run", [graph(0, "FAIL", cause="VALUE")], [failure(1, {"small": [0]})] * 2)
    path = run.folder / "failures.jsonl"
    path.write_bytes(path.read_bytes()[:-40] + b"\n" + b"[" * 100_000)
    page = page_of(campaigns.graphs([run]))
    assert "2 lines of failures.jsonl could not be read." in page.text
    assert len(page.table("1 failure, those")) == 2


# --- the benchmark, and all together ----------------------------------------------------------------------------------


def test_benchmarks_of_two_drivers_stand_one_below_the_other(tmp_path):
    folders = [
        write_benchmark(tmp_path / name, [row_of("a"), row_of("b", slot="asr")], driver=name)
        for name in ("faulty", "light")
    ]
    (part,) = page_part.parts([read_run(folder) for folder in folders])
    page = page_of([part])
    assert part.count == 4
    assert [name for name in page.ids if name.endswith("-run")] == ["benchmark-1-run", "benchmark-2-run"]
    assert {"benchmark-1-model=a&tier=default", "benchmark-2-model=b&tier=default"} <= set(page.ids)
    assert page.text.count("Not worse than the baseline in all 2 models") == 2
    assert len(page.charts) == 8
    median = 1000 * np.median(row_of("a")["driver"]["latency"])
    assert float(page.table("mobilenet_v1: latency")[1][6].split()[0]) == pytest.approx(median, rel=1e-3)
    assert page.text.count("How to read these tables") == 1


def test_a_session_with_measurements_has_a_benchmark_and_a_damaged_one_has_none(tmp_path):
    run = write_run(tmp_path / "session", [made(0)])
    assert page_part.parts([run]) == []
    (run.folder / "measurements.jsonl").write_text(json.dumps(row_of("a")) + "\n" + "[" * 100_000)
    assert page_of(page_part.parts([run])).text
    (run.folder / "measurements.jsonl").unlink()
    (run.folder / "measurements.jsonl").mkdir()
    assert page_part.parts([run]) == []


def test_all_parts_of_hostile_runs_are_text(tmp_path):
    header = dict.fromkeys(("driver", "driver_version", "time", "oracle", "against"), HOSTILE)
    texts = dict.fromkeys(("detail", "message", "repeat", "waiver", "stage", "log", "saved"), HOSTILE)
    texts |= {"notes": (HOSTILE,), "numbers": {HOSTILE: 1.0, f"{HOSTILE}_per_hour": 1.0}}
    stress = write_run(tmp_path / "stress", [scene(HOSTILE, "FAIL", cause="VALUE", **texts)], suite="stress", **header)
    marks = [[1, HOSTILE], [2, HOSTILE]]
    write_samples(stress.folder, {"id": SCENE.format(HOSTILE), "marks": marks, "samples": [[1, 2, 3], [2, 3, 4]]})
    fuzz = run_of(
        tmp_path / "fuzz",
        [found(1, target=HOSTILE, **texts)],
        {"targets": {HOSTILE: END["models"]}},
        **{**header, **FUZZ},
    )
    words = dict.fromkeys(("verdict", "cause", "mismatch", "note"), HOSTILE)
    record = dict.fromkeys(("message", "repeat", "saved", "waiver"), HOSTILE)
    row = failure(1, {HOSTILE: [1]}, **words, operations=[HOSTILE], record=record)
    records = [graph(1, "FAIL", mix=HOSTILE, cause="VALUE", **{**texts, "detail": f"1 operations: {HOSTILE}"})]
    rest = {"mixes": [HOSTILE], "driver": HOSTILE, "against": HOSTILE}
    graphs = campaign(tmp_path / "graphs", records, [row], {"spent": {HOSTILE: 1.0}}, **rest)
    for part in parts.parts([stress, fuzz, graphs]):
        page = page_of([part])
        assert all(kind for tag, kind, _ in page.inline if tag == "script")
        assert page.text.count('<script>alert("1")</script>&amp;') > 5
        assert part.charts
        assert sections.sheet() in part.styles


def test_parts_stand_in_the_order_of_the_page(tmp_path):
    runs = [
        campaign(tmp_path / "graphs", [graph(0)]),
        write_run(tmp_path / "fuzz", [found(1)], **FUZZ),
        write_run(tmp_path / "stress", [scene("a")], suite="stress"),
        read_run(write_benchmark(tmp_path / "mlts", [row_of("a")])),
        write_run(tmp_path / "conformance", [made(0)]),
    ]
    assert [part.anchor for part in parts.parts(runs)] == ["benchmark", "stress", "fuzz", "graphs"]
    assert parts.parts(runs[-1:]) == []
