"""Campaigns of random graphs: which graphs they are, what becomes of them, what is told of failures, how they end."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from harness.record import Run, read_run
from harness.verdict import Cause, Verdict
from harness.waivers import Waivers, load_waivers
from nnhal.errors import UsageError
from random_graph.__main__ import main
from random_graph.campaign import Campaign
from random_graph.cases import graph_test_case
from random_graph.folder import DriverRun, read_campaign
from random_graph.jobs import Answer, Check, Graph, Lost, Reduce
from random_graph.plan import Plan, duration_words, seconds_of
from random_graph.progress import Progress, State
from random_graph.triage import EXPLAINED_PER_KEY, Look, look_at
from reports import headline
from tests.campaign_runs import (
    READY,
    ScriptedPool,
    failures,
    is_whole,
    look,
    record,
    rows,
)

NO_WAIVERS = load_waivers(None)


# ---- which graphs


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1h1m1s", 3661), ("100m", 6000)]
)
def test_times_are_read_and_written(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds
    assert seconds_of(duration_words(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "0s", "5", "h", "1d", "-3m", "1m1h", "1.5h", "2 h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time; write 90s"):
        seconds_of(text)


def graphs(plan: Plan, count: int) -> list[Graph]:
    return [graph for place in range(count) if (graph := plan.graph(place)) is not None]


def test_neither_count_nor_time_changes_which_graph_a_number_is() -> None:
    few, many = Plan(("x",), ("small",), 7, 10), Plan(("x",), ("small",), 7, 1000)
    timed = Plan(("x",), ("small",), 7, None, 60)
    assert len(graphs(few, 50)) == 10
    assert graphs(few, 10) == graphs(many, 10) == graphs(timed, 10)


def test_mixes_take_turns_and_each_has_the_seeds_that_it_has_alone() -> None:
    both = graphs(Plan(("x",), ("small", "wide"), 3, 9), 9)
    assert [graph.mix for graph in both] == ["small", "wide"] * 4 + ["small"]
    for mix in ("small", "wide"):
        assert [graph for graph in both if graph.mix == mix] == graphs(Plan(("x",), (mix,), 3, 9), 9)[
            : 5 if mix == "small" else 4
        ]


def test_campaigns_of_different_seeds_share_no_graph() -> None:
    found = [graph for seed in (0, 1, 2) for graph in graphs(Plan(("x",), ("small",), seed, 3000), 3000)]
    assert len(set(found)) == 9000


@pytest.mark.parametrize("count", [1, 2, 7, 9])
def test_the_plan_counts_what_will_be_run(count: int) -> None:
    plan = Plan(("x",), ("small", "wide"), 0, count)
    assert Counter(plan.selected()) == Counter(graph.origin.batch for graph in graphs(plan, count))


def test_single_graphs_are_run_of_each_mix() -> None:
    plan = Plan(("x",), ("small", "wide"), count=None, graphs=(5, 900))
    assert graphs(plan, 99) == [Graph("small", 5), Graph("wide", 5), Graph("small", 900), Graph("wide", 900)]
    assert plan.selected() == {"GRAPH-small-sync-drawn": 2, "GRAPH-wide-sync-drawn": 2}


# ---- wrong input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mix=smal"], "--mix=smal is unknown"),
        (["--for=5"], "--for=5 is no time"),
        (["--for=5m", "--count=3"], "--for and --count are given"),
        (["--graph=1", "--count=3"], "--count and --graph are given"),
        (["--graph=1", "--seed=3"], "--graph and --seed are given"),
        (["--graph=-1"], "--graph=-1 is no seed"),
        (["--count=0"], "--count=0 is no number"),
        (["--jobs=0"], "--jobs=0 is no number"),
        (["--count=many"], "argument --count: invalid int value"),
        (["--seed=-1"], "--seed=-1 is no seed of a campaign"),
        (["--seed=1000000000"], "--seed=1000000000 is no seed of a campaign"),
        (["--level=9"], "--level=9 is no feature level"),
        (["--memory=much"], "--memory=much is no size"),
        (["--deadline=0"], "--deadline=0 is no time"),
        (["--driver=,x=1"], "has no name"),
        (["--waivers=nowhere.toml"], "waiver file nowhere.toml cannot be read"),
        (["--resume=nowhere"], "nowhere holds no records"),
        (["--resource=x"], "--resource is of a scheduler's workers"),
        (["--scheduler=tcp://x:1", "--jobs=2"], "--jobs is of this machine"),
        (["--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--runs={tmp_path / 'runs'}", *arguments]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error: ")
    assert words in told.err
    assert told.err.count("\n") == 1
    assert not told.out
    assert not (tmp_path / "runs").exists()


# ---- the course of a campaign, without processes


def scripted(
    folder: Path, plan: Plan, pool: ScriptedPool, waivers: Waivers = NO_WAIVERS, resumed: Run | None = None
) -> tuple[Campaign, DriverRun, io.StringIO]:
    part, told = DriverRun(folder, "reference", (), waivers), io.StringIO()
    uncounted = []
    if resumed is None:
        part.begin(plan, READY, 0, [])
    else:
        uncounted = part.resume(plan, resumed)
    state = State(plan.total, plan.seconds, counts={"reference": part.counts})
    with contextlib.closing(part), Progress(state, told) as progress:
        campaign = Campaign(plan, [part], pool, progress, state)
        campaign.take_on(uncounted)
        campaign.go()
    return campaign, part, told


PLAN = Plan(("reference",), ("small",), 0, 30)
NEVER = Plan(("reference",), ("small",), 0, None, 3600)


def fails_every(number: int, seen: Look) -> ScriptedPool:
    return ScriptedPool(lambda graph: seen if graph.seed % number == 0 else None)


def test_every_graph_of_the_plan_has_one_record(tmp_path: Path) -> None:
    pool = ScriptedPool()
    _, part, _ = scripted(tmp_path, PLAN, pool)
    assert pool.checked == graphs(PLAN, 30)
    run = read_run(tmp_path)
    assert is_whole(run)
    assert run.counts()["PASS"] == 30
    assert part.failed == 0
    assert not (tmp_path / "failures.jsonl").exists()
    end = rows(tmp_path)[-1]
    assert end["record"] == "end"
    assert end["rate"] > 0
    assert end["spent"] == {"generation": 30.0, "oracle": 60.0, "driver": 90.0, "harness": 120.0}


def test_an_answer_that_comes_twice_is_recorded_once(tmp_path: Path) -> None:
    pool = ScriptedPool()
    pool.special = lambda job: [pool.check(job)] * 2 if isinstance(job, Check) else None
    scripted(tmp_path, PLAN, pool)
    assert is_whole(read_run(tmp_path))


def test_failures_become_few_and_are_saved_with_picture_and_words(tmp_path: Path) -> None:
    pool = fails_every(3, look("ADD float32", "TANH float32"))
    _, part, told = scripted(tmp_path, PLAN, pool)
    assert part.failed == 10
    (row,) = failures(tmp_path)
    assert row["count"] == 10
    assert row["operations"] == ["ADD float32"]
    assert sorted(row["seeds"]["small"] + row["alike"]["small"]) == list(range(0, 30, 3))
    assert 1 <= len(pool.reduced) <= 1 + EXPLAINED_PER_KEY
    files = {path.suffix: path for path in (tmp_path / "failures").iterdir()}
    assert set(files) == {".case", ".dot", ".txt"}
    assert files[".case"].read_bytes() == b"case"
    assert files[".dot"].read_text() == "dot"
    words = files[".txt"].read_text()
    assert "listing" in words
    assert f"repeat: pytest --driver=reference --case={files['.case']}" in words
    assert told.getvalue().count("new failure: FAIL VALUE (value) in ADD float32") == 1


def test_a_failure_behind_a_known_one_is_found_too(tmp_path: Path) -> None:
    def judged(graph: Graph) -> Look | None:
        if graph.seed < 20:
            return look("ADD float32", "MUL float32", giver="MUL")
        return look("DIV float32", "MUL float32", giver="MUL") if graph.seed == 29 else None

    pool = ScriptedPool(judged, lambda graph: ("DIV float32",) if graph.seed == 29 else ("ADD float32",))
    scripted(tmp_path, PLAN, pool)
    assert {tuple(row["operations"]): row["count"] for row in failures(tmp_path)} == {
        ("ADD float32",): 20,
        ("DIV float32",): 1,
    }


def test_all_failures_are_counted_whatever_they_are(tmp_path: Path) -> None:
    seen = [
        look("ADD float32"),
        look("ADD float32", verdict="FLAKY", repeated="differs"),
        look("ADD float32", repeated="sequence"),
        look(verdict="INTERNAL", cause="SUITE", stage="make", mismatch="not made"),
        look("ADD float32", verdict="CRASH", cause="DIED", stage="start", giver="", mismatch="does not start"),
    ]
    pool = ScriptedPool(lambda graph: seen[graph.seed] if graph.seed < len(seen) else None)
    _, part, _ = scripted(tmp_path, PLAN, pool)
    found = failures(tmp_path)
    assert part.failed == sum(row["count"] for row in found) == len(found) == 5
    assert pool.reduced == [Graph("small", 0)]


def test_a_lost_graph_is_an_error_of_the_suite_and_the_others_go_on(tmp_path: Path) -> None:
    def answer(job: Check | Reduce) -> list[Answer] | None:
        return [Lost(job, "it ended")] if isinstance(job, Check) and job.graph.seed == 4 else None

    scripted(tmp_path, PLAN, ScriptedPool(answer=answer))
    run = read_run(tmp_path)
    assert is_whole(run)
    assert (run.counts()["PASS"], run.counts()["INTERNAL"]) == (29, 1)
    lost = run.records["GRAPH-small-sync-drawn-4"]
    assert (lost.cause, lost.message) == ("SUITE", "it ended")
    assert lost.repeat == "python -m random_graph --driver=reference --mix=small --graph=4"


def test_a_failure_whose_minimising_is_lost_is_kept_as_it_is(tmp_path: Path) -> None:
    pool = fails_every(30, look("ADD float32"))
    pool.special = lambda job: [Lost(job, "it ended")] if isinstance(job, Reduce) else None
    scripted(tmp_path, PLAN, pool)
    (row,) = failures(tmp_path)
    assert (row["count"], row["note"]) == (1, "minimising it came to no end: it ended")


def test_what_a_waiver_covers_is_recorded_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "waivers.toml").write_text('[[waiver]]\ncases = "GRAPH-small-sync-drawn-1?"\nreason = "known"\n')
    pool = fails_every(10, look("ADD float32"))
    _, part, _ = scripted(tmp_path / "run", PLAN, pool, load_waivers(tmp_path / "waivers.toml"))
    assert part.failed == 2  # 0 and 20, while 10 is waived
    assert read_run(tmp_path / "run").records["GRAPH-small-sync-drawn-10"].waiver == "known"
    assert [row["seeds"] for row in failures(tmp_path / "run")] == [{"small": [0, 20]}]


def stops_after(count: int, seen: Look | None = None) -> ScriptedPool:
    """Signals after so many graphs, as Ctrl-C does."""
    pool = ScriptedPool(lambda graph: seen)

    def answer(job: Check | Reduce) -> list[Answer] | None:
        if isinstance(job, Check) and len(pool.checked) == count:
            os.kill(os.getpid(), signal.SIGINT)
        return None

    pool.special = answer
    return pool


def test_an_interruption_of_a_number_of_graphs_leaves_it_incomplete(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    pool = stops_after(9)
    ended, _, told = scripted(tmp_path, PLAN, pool)
    run = read_run(tmp_path)
    assert ended.interrupted
    assert 9 < len(run.records) < 30
    assert run.counts()["NOT_RUN"] == 30 - len(run.records)
    assert run.ended
    assert not run.complete
    assert rows(tmp_path)[-1]["interrupted"] is True
    assert "once more ends at once" in told.getvalue()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interruption_of_a_campaign_without_a_number_leaves_nothing_out(tmp_path: Path) -> None:
    scripted(tmp_path, NEVER, stops_after(40))
    run = read_run(tmp_path)
    assert len(run.records) > 40
    assert is_whole(run)


def test_a_plan_without_end_is_ahead_of_the_records_at_any_moment(tmp_path: Path) -> None:
    scripted(tmp_path, NEVER, stops_after(40))
    cut = tmp_path / "cut"
    cut.mkdir()
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    for count in range(1, len(lines)):  # as if the campaign had been killed then
        (cut / "records.jsonl").write_text("\n".join(lines[:count]) + "\n")
        run = read_run(cut)
        if count < len(lines) - 1:
            assert len(run.records) < run.selected or not run.records
        assert not run.complete
        known = headline.totals(run)
        assert not known.problems
        assert headline.headline(run, known).text.startswith("INCOMPLETE")


def test_two_interruptions_end_at_once(tmp_path: Path) -> None:
    pool = ScriptedPool()

    def answer(job: Check | Reduce) -> list[Answer] | None:
        if len(pool.checked) > 9:
            os.kill(os.getpid(), signal.SIGINT)
        return None

    pool.special = answer
    with pytest.raises(KeyboardInterrupt):
        scripted(tmp_path, PLAN, pool)
    run = read_run(tmp_path)
    assert not run.ended
    assert len(run.records) >= 10
    assert run.damaged == 0


def test_what_was_not_minimised_in_time_is_minimised_when_the_campaign_goes_on(tmp_path: Path) -> None:
    seen = look_at(graph_test_case("small", 0), record(Graph("small", 0), Verdict.FAIL, Cause.UNCLEAN_ERROR))
    pool = stops_after(9, seen)
    pool.smaller = lambda graph: pytest.fail("nothing is minimised before")
    pool.reduce = lambda job: None  # type: ignore[method-assign]
    scripted(tmp_path, PLAN, pool)
    before = failures(tmp_path)
    assert pool.dropped == 1
    assert all(row["pending"] for row in before)
    count = len(read_run(tmp_path).records)
    assert sum(row["count"] for row in before) == count

    plan, run_before = read_campaign(tmp_path)
    rest = ScriptedPool(lambda graph: look("ADD float32") if graph.seed < count else None)
    scripted(tmp_path, plan, rest, resumed=run_before)
    assert plan == PLAN
    assert rest.checked == graphs(PLAN, 30)[count:]
    assert is_whole(read_run(tmp_path))
    after = failures(tmp_path)
    assert sum(row["count"] for row in after) == count
    assert not any(row["pending"] for row in after)


def test_a_campaign_that_goes_on_counts_what_it_had(tmp_path: Path) -> None:
    scripted(tmp_path, PLAN, stops_after(9))
    done = len(read_run(tmp_path).records)
    plan, before = read_campaign(tmp_path)
    pool = ScriptedPool()
    _, part, _ = scripted(tmp_path, plan, pool, resumed=before)
    assert len(pool.checked) == 30 - done
    assert part.counts == {"PASS": 30}
    assert is_whole(read_run(tmp_path))


def test_drivers_of_which_more_says_nothing_get_no_more(tmp_path: Path) -> None:
    part, pool = DriverRun(tmp_path, "reference", (), NO_WAIVERS), ScriptedPool()
    part.begin(NEVER, READY, 0, [])
    state = State(limit=3600)
    with Progress(state, io.StringIO()) as progress:
        Campaign(NEVER, [part], pool, progress, state).go(2)
    part.close()
    assert pool.checked == graphs(NEVER, 2)
    assert is_whole(read_run(tmp_path))


# ---- what is shown


def test_the_state_says_how_far_it_is() -> None:
    counts = {"a": Counter(PASS=1900, FAIL=100)}
    state = State(planned=10_000, done=2000, counts=counts, distinct=1, minimising=2, last="FAIL VALUE in ADD")
    state.started -= 100
    state.counted = state.started + 80
    assert state.rate == Fraction(25)
    assert state.left == 320
    assert state.lines() == [
        "1:40  2,000 of 10,000 graphs, 25 graphs/s, 5:20 left, minimising 2 failures",
        "1,900 PASS, 100 FAIL",
        "1 distinct failure, last: FAIL VALUE in ADD",
    ]


def test_the_time_left_of_a_campaign_that_goes_on_counts_what_is_behind_it() -> None:
    state = State(limit=7200, before=(500, 3600.0), done=500)
    assert state.left == pytest.approx(3600, abs=5)
    assert state.first_line().startswith("1:00:00  500 graphs, 0 graphs/s, ")


def test_each_of_several_drivers_has_its_counts() -> None:
    state = State(counts={"a": Counter(PASS=1), "b": Counter(CRASH=1)})
    assert state.count_lines() == ["a: 1 PASS", "b: 1 CRASH"]


def test_what_a_driver_says_cannot_write_on_the_terminal() -> None:
    told = io.StringIO()
    with Progress(State(), told) as progress:
        progress.say("new failure: \x1b[2Jgone\x07")
    assert told.getvalue() == "new failure: gone\N{REPLACEMENT CHARACTER}\n"


def test_other_runs_are_not_gone_on_with(tmp_path: Path) -> None:
    plan = {"record": "plan", "format": 1, "selected": 1, "batches": {"A": 1}, "driver": "reference"}
    (tmp_path / "records.jsonl").write_text(json.dumps(plan) + "\n")
    with pytest.raises(UsageError, match="is no campaign of random graphs; go on with it by pytest --resume"):
        read_campaign(tmp_path)
