"""Reports: what the tables count, what the headline says, and what a comparison calls a change."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.record import Record, Run
from reports import accuracy, compare, groups, headline, remarks, tables
from reports.__main__ import main
from tests.report_runs import FAILED, NOT_SUPPORTED, made, sound, write_run


def said(run: Run) -> headline.Headline:
    return headline.headline(run, headline.totals(run))


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("float32", "f32"),
        ("float16.explicit.in11", "f16"),
        ("quant8_asymm.default.in2", "q8"),
        ("quant8_asymm_signed", "q8s"),
        ("quant8_asymm_per_channel.explicit.in10", "q8ch"),
        ("quant8_asymm_signed_per_channel.implicit.in7", "q8sch"),
        ("per_channel_to_float16", "q8ch"),
        ("quant8_symm_to_float32", "q8sy"),
        ("quant16_asymm_delta_quant8", "q16"),
        ("float32_to_quant8_asymm_signed", "f32"),
        ("int32_to_float32", "i32"),
        ("bool8_identity", "b8"),
        ("any", "any"),
        ("q8ch", "q8ch"),
        ("", "other"),
    ],
)
def test_a_signature_stands_under_the_type_of_its_first_part(signature: str, expected: str) -> None:
    assert tables.column(signature) == expected


def test_counts_add_up_to_what_was_selected_and_missing_cases_are_not_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, sound(), {"ADD-float32-sync-drawn": 4, "EXP-float16-sync-drawn": 5})
    totals = headline.totals(run)
    assert totals.tally.total == run.selected == 12
    assert (totals.tally["PASS"], totals.tally["NOT_RUN"]) == (3, 9)
    matrix = tables.matrix(tables.signatures(run))
    assert matrix.total.counts == totals.tally.counts
    assert matrix.cells["ADD", "f32"]["NOT_RUN"] == 4
    assert matrix.cells["EXP", "f16"].state == "unrun"
    assert not totals.problems


def test_stress_is_no_operation(tmp_path: Path) -> None:
    numbers = {"seconds": 8.0, "executions": 100.0, "executions_per_second": 12.5, "latency_p50": 0.002}
    rest = {"kind": "threads8", "detail": "eight threads <b>execute</b>", "notes": ("shortened: 8 s",)}
    records = [
        made(0, "PASS", "STRESS", "parallel_inference", numbers=numbers, **rest),
        made(1, "FAIL", "STRESS", "soak", cause="LEAK", message="kept 5 MiB", **rest),
        made(2),
    ]
    run = write_run(tmp_path, records)
    assert tables.matrix(tables.signatures(run)).operations == ("ADD",)
    assert main([str(tmp_path)]) == 1
    page = (tmp_path / "report.html").read_text()
    assert 'id="stress"' in page
    assert "eight threads &lt;b&gt;execute" in page
    assert "shortened: 8 s" in page


def test_behaviour_is_no_operation(tmp_path: Path) -> None:
    rest = {"kind": "behaviour", "detail": "results are right; ADD of a: TENSOR_FLOAT32[3]"}
    records = [*sound(), made(0, operation="EXECUTION", signature="at.once.sync", **rest)]
    run = write_run(tmp_path, records, {"CACHING-save-sync-behaviour": 2})
    rows = {row.operation: row for row in tables.signatures(run)}
    assert {name for name, row in rows.items() if row.behaviour} == {"EXECUTION", "CACHING"}
    assert rows["EXECUTION"].owed == "results are right"
    assert rows["CACHING"].tally["NOT_RUN"] == 2
    assert tables.matrix(rows.values()).operations == ("ADD",)


def test_what_was_seen_is_summed_up(tmp_path: Path) -> None:
    notes = [("the first took 3.5 times as long",), ("the first took 1.5 times as long", "bits differ"), ()]
    times = [{"first_run_seconds": 0.7, "later_run_seconds": 0.2}, {"first_run_seconds": 0.3, "later_run_seconds": 0.2}]
    records = [replace(made(n), notes=words) for n, words in enumerate(notes)]
    records[:2] = [replace(record, numbers=found) for record, found in zip(records, times, strict=False)]
    run = write_run(tmp_path, records)
    found = remarks.observations(run.records.values())
    assert [(row.text, row.count) for row in found] == [("the first took 3.5 times as long", 2), ("bits differ", 1)]
    assert found[0].operations == ("ADD",)
    assert remarks.first_runs(run.records.values()) == (pytest.approx(2.5), pytest.approx(3.5), 2)
    assert remarks.first_runs([]) is None


def test_records_that_do_not_fit_the_plan_are_a_problem(tmp_path: Path) -> None:
    run = write_run(tmp_path, sound())
    run.records["x"] = made(9, operation="EXP")
    problems = " ".join(headline.totals(run).problems)
    assert "add up to 4, but 3 cases were selected" in problems
    assert "1 records belong to no batch" in problems


def test_a_cell_is_grey_where_only_rules_held(tmp_path: Path) -> None:
    refused = [made(n, "NOT_SUPPORTED", cause="UNSUPPORTED", message="no float16") for n in range(3)]
    run = write_run(tmp_path, [*refused, made(0, kind="broken"), made(0, operation="EXP"), made(1, operation="EXP")])
    matrix = tables.matrix(tables.signatures(run))
    cell = matrix.cells["ADD", "f32"]
    assert (cell.judged, cell.valid, cell.total, cell.state) == (1, 0, 4, "unsupported")
    assert matrix.by_operation["EXP"].state == "passed"
    assert matrix.operations == ("ADD", "EXP")
    assert matrix.columns == ("f32",)


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([made(0), made(1, "FAIL", cause="VALUE"), made(2, "INTERNAL")], "failed"),
        ([made(0), made(1, "HANG", cause="SILENT", waiver="known"), made(2, "POOR")], "waived"),
        ([made(0), made(1, "CRASH"), made(2, "CRASH", waiver="known")], "failed"),
        ([made(0), made(1, "POOR")], "poor"),
        ([made(0), made(1, "INTERNAL"), made(2, "POOR")], "internal"),
        ([made(0, "NOT_APPLICABLE")], "inapplicable"),
        ([], "empty"),
    ],
)
def test_the_worst_verdict_gives_a_cell_its_colour(records: list[Record], state: str) -> None:
    tally = tables.Tally()
    for record in records:
        tally.add(record)
    assert tally.state == state


def test_a_signature_keeps_its_largest_error_even_where_it_has_no_number(tmp_path: Path) -> None:
    rows = [
        made(0, error=0.25, ulp=2.0, masked=0.5),
        made(1, error=0.75, ulp=1.0),
        made(0, "FAIL", "EXP", cause="VALUE", error=float("inf"), ulp=float("nan")),
        made(1, operation="EXP", error=0.5, ulp=4.0),
        made(0, operation="ABS"),
    ]
    found = {row.operation: row for row in tables.signatures(write_run(tmp_path, rows))}
    assert (found["ADD"].error, found["ADD"].ulp, found["ADD"].masked, found["ADD"].compared) == (0.75, 2.0, 0.25, 2)
    assert found["EXP"].error == found["EXP"].ulp == float("inf")
    assert found["ABS"].error is None


def test_failures_that_differ_in_numbers_only_are_one_group() -> None:
    records = [
        made(0, "FAIL", cause="VALUE", message="output 'o' differs in 3 of 48 elements (6.25 %)\n  worst at (0, 1)"),
        made(1, "FAIL", cause="VALUE", message="output 'o' differs in 11 of 1200 elements (9.2e-01 %)"),
        made(2, "FAIL", cause="SHAPE", message="output 'o' has dimensions [1, 2, 3], [1, 2] are due"),
        made(3, "FAIL", cause="SHAPE", message="output 'o' has dimensions [4], [4, 1, 1, 1] are due"),
        made(4, "FAIL", operation="EXP", cause="VALUE", message="output 'o' differs in 3 of 48 elements (6.25 %)"),
        made(5, "CRASH", operation="EXP", cause="DIED", message="died"),
    ]
    found = groups.groups(records, groups.Budget(10_000), named=0, most=100)
    assert [(g.operation, g.verdict, g.cause, g.total, g.example in records, g.more) for g in found] == [
        ("EXP", "CRASH", "DIED", 1, True, 0),
        ("ADD", "FAIL", "SHAPE", 2, True, 1),
        ("ADD", "FAIL", "VALUE", 2, True, 1),
        ("EXP", "FAIL", "VALUE", 1, True, 0),
    ]


def test_the_smallest_case_that_fails_alone_stands_for_its_group() -> None:
    shapes = ["[2,3,4]", "[5]", "[1,1]", "[2,2]"]
    repeated = ["same", "same", "sequence", "same"]
    records = [
        made(n, "FAIL", cause="VALUE", message="wrong", detail=f"a: TENSOR_FLOAT32{words}; o: T[2]", repeated=again)
        for n, (words, again) in enumerate(zip(shapes, repeated, strict=True))
    ]
    (group,) = groups.groups(records, groups.Budget(10_000), named=2, most=100)
    assert group.example is records[3]
    assert group.others == (records[0], records[1])
    assert (group.total, group.more) == (4, 1)


def test_what_exceeds_the_budget_is_counted_and_not_shown() -> None:
    records = [made(n, "FAIL", cause="VALUE", message="x" * 500) for n in range(10)]
    records += [made(n, "FAIL", cause="SHAPE", message="y" * 500) for n in range(2)]
    first, second = groups.groups(records, groups.Budget(1200), named=3, most=2000)
    assert (first.total, first.example, len(first.others), first.more) == (10, records[0], 3, 6)
    assert (second.total, second.example, second.others, second.more) == (2, None, (), 2)


def test_reasons_are_counted_over_operations() -> None:
    records = [made(n, "NOT_SUPPORTED", message=f"tensor {n}: no kernel\nmore") for n in range(3)]
    records += [
        made(3, "NOT_SUPPORTED", message="NCHW"),
        made(4),
        made(0, "NOT_APPLICABLE", kind="example", message="level"),
    ]
    records += [made(5, "NOT_SUPPORTED", "EXP", message="tensor 9: no kernel"), made(6, "NOT_SUPPORTED", cause="LEVEL")]
    found = remarks.reasons(records, "NOT_SUPPORTED")
    assert [(r.text[:6], r.count, r.variants, r.operations) for r in found] == [
        ("tensor", 4, 4, {"ADD": 3, "EXP": 1}),
        ("LEVEL", 1, 1, {"ADD": 1}),
        ("NCHW", 1, 1, {"ADD": 1}),
    ]


def test_rules_are_counted_by_operation_and_mutations_over_all() -> None:
    records = [
        made(0, kind="broken"),
        made(1, "FAIL", kind="broken", cause="ACCEPTED"),
        made(2, "NOT_SUPPORTED", kind="broken"),
        made(0, operation="EXP", kind="broken", rule="RANK"),
        made(0, kind="mutated", rule="G7"),
        made(0, operation="EXP", kind="mutated", rule="G7"),
        made(0),
    ]
    found = {(row.operation, row.rule): row for row in remarks.rules(records)}
    assert list(found) == [("ADD", "RANK_A"), ("EXP", "RANK"), ("every operation", "G7")]
    broken = found["ADD", "RANK_A"]
    assert (broken.state, broken.tally.total, broken.tally.passed, broken.causes) == ("failed", 3, 1, {"ACCEPTED": 1})
    assert (found["every operation", "G7"].tally.passed, found["EXP", "RANK"].state) == (2, "held")
    by_name = {row.operation: row for row in remarks.by_operation(found.values())}
    assert [row.rule for row in by_name["ADD"].failed] == ["RANK_A"]
    assert [row.rule for row in by_name["EXP"].held] == ["RANK"]


def test_a_profile_tells_errors_over_what_is_allowed() -> None:
    errors = [0.0, 0.0, 0.0005, 0.001, 0.0015, 0.3, 0.5, 0.6, 1.0, 3.0]
    records = [made(n, error=error, ulp=float(n)) for n, error in enumerate(errors)]
    records += [made(n, operation="EXP", error=0.25) for n in range(99)] + [made(99, operation="EXP", error="inf")]
    records += [made(0, operation="ABS"), made(0, operation="DEVICE", kind="behaviour", error=0.5)]
    add, exp = accuracy.profiles(records)
    assert (add.operation, add.type, add.compared, add.largest, add.ulp) == ("ADD", "f32", 10, 3.0, 9.0)
    assert (add.median, add.most, add.nearly) == (0.0015, 1.0, 3.0)
    assert add.bars == (2, 2, 1, 0, 0, 0, 0, 0, 0, 2, 2, 1)
    assert add.words == ("exact: 2, up to 0.001: 2, up to 0.002: 1, up to 0.5: 2, up to 1: 2, above what is allowed: 1")
    assert (exp.median, exp.nearly, exp.largest, exp.ulp) == (0.25, 0.25, math.inf, None)
    assert add.words in add.picture


def test_runs_of_one_driver_are_put_together(tmp_path: Path) -> None:
    first = write_run(tmp_path / "1", [made(0, error=0.25, masked=0.5), made(1, error=0.5)])
    second = write_run(tmp_path / "2", [made(0, "FAIL", cause="VALUE", error=2.0), made(0, operation="EXP")])
    add, exp = tables.joined([tables.signatures(run) for run in (first, second)])
    assert (add.operation, add.tally.total, add.tally.failed, add.error, add.compared) == ("ADD", 3, 1, 2.0, 3)
    assert add.masked == pytest.approx(0.5 / 3)
    assert exp.tally.passed == 1


# --- headline ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "header", "tone", "expected"),
    [
        (sound(), {}, "good", "Conformant: 3 of 3 cases judged, none failed"),
        ([*sound(), NOT_SUPPORTED], {}, "good",
         "Conformant for what it supports: 3 of 4 cases judged, none failed; 1 not supported"),
        ([*sound(), FAILED], {}, "bad", "Not conformant: 1 of 4 cases failed"),
        ([*sound(), replace(FAILED, waiver="known")], {}, "warn",
         "No failures that are not waived: 4 of 4 cases judged, 1 waived"),
        ([*sound(), made(8, "INTERNAL", cause="SUITE")], {}, "warn",
         "No verdict: 1 case ended in an error of the suite itself, of 4; none failed"),
        ([*sound(), made(8, "POOR", cause="QUALITY")], {}, "good", "Conformant: 4 of 4 cases judged, none failed"),
        ([*sound(), made(8, "POOR", cause="QUALITY")], {"options": ["--fail-poor"]}, "bad",
         "Not conformant: 1 of 4 cases failed"),
        (sound(), {"filtered": True}, "warn", "No failures: 3 of 3 cases judged"),
        (sound(), {"profile": "ci"}, "warn", "No failures: 3 of 3 cases judged"),
        (sound(), {"traits": {"validates": False}}, "warn", "No failures; validation not tested"),
        ([*sound(), FAILED], {"traits": {"validates": False}}, "bad",
         "Not conformant: 1 of 4 cases failed; validation not tested"),
        ([made(0)], {}, "warn", "No failures; validation not tested"),
        ([NOT_SUPPORTED, made(0, "NOT_SUPPORTED", kind="broken")], {}, "warn",
         "Nothing was judged: none of 2 cases could be put to the driver; validation not tested"),
    ],
)  # fmt: skip
def test_the_headline_is_the_verdict(
    tmp_path: Path, records: list[Record], header: dict[str, object], tone: str, expected: str
) -> None:
    found = said(write_run(tmp_path, records, **header))
    assert (found.tone, found.text) == (tone, expected)


def test_the_headline_of_a_run_that_was_stopped_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", sound(), {"EXP-float32-sync-drawn": 1000}, ended=False)
    assert said(run).text == "INCOMPLETE: 3 of 1,003 cases have a record; the run did not end"
    run = write_run(tmp_path / "b", [*sound(), FAILED], {"EXP-float32-sync-drawn": 1})
    assert said(run).text == "INCOMPLETE: 4 of 5 cases have a record; 1 failed"
    assert said(run).tone == "bad"


@pytest.mark.parametrize(
    ("suite", "records", "header", "tone", "expected"),
    [
        ("stress", [made(0)], {}, "good", "No failures: 1 of 1 cases judged"),
        ("stress", [made(0)], {"shortened": True}, "warn", "No failures: 1 of 1 cases judged"),
        ("mlts", [made(0), FAILED], {}, "bad", "Failures: 1 of 2 cases failed"),
        ("fuzz", [], {}, "good", "No failures: nothing was found"),
        ("graphs", [NOT_SUPPORTED], {}, "warn", "Nothing was judged: none of 1 case could be put to the driver"),
    ],
)
def test_no_suite_but_conformance_speaks_of_it(
    tmp_path: Path, suite: str, records: list[Record], header: dict[str, object], tone: str, expected: str
) -> None:
    found = said(write_run(tmp_path, records, suite=suite, **header))
    assert (found.tone, found.text) == (tone, expected)


def test_the_headline_of_several_runs_is_that_of_the_worst(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "1", sound()), write_run(tmp_path / "2", sound(), filtered=True)]

    def overall(*some: Run) -> tuple[str, str]:
        found = headline.overall(some, [(said(run), headline.totals(run)) for run in some])
        return found.tone, found.text

    assert overall(runs[0]) == ("good", "Conformant: 3 of 3 cases judged, none failed")
    assert overall(*runs) == ("warn", "No failures in 2 runs: 6 of 6 cases judged")
    runs.append(write_run(tmp_path / "3", [*sound(), FAILED], {"EXP-float32-sync-drawn": 1}, ended=False))
    assert overall(*runs) == (
        "bad",
        "Failures in 1 of 3 runs: 1 of 11 cases failed; INCOMPLETE: 1 of 3 runs",
    )


def test_what_limits_a_verdict_is_in_the_notes(tmp_path: Path) -> None:
    records = [*sound(), replace(FAILED, waiver="known"), made(9, "POOR"), made(5, "NOT_APPLICABLE"), NOT_SUPPORTED]
    notes = " ".join(said(write_run(tmp_path, records, filtered=True, profile="ci")).notes)
    for words in ("filtered", "profile ci", "1 case is waived", "poor as a whole", "1 case of 7", "1 case left out"):
        assert words in notes


# --- comparison -------------------------------------------------------------------------------------------------------

FAIL, WAIVED = made(0, "FAIL", cause="VALUE"), made(0, "FAIL", cause="VALUE", waiver="known")


@pytest.mark.parametrize(
    ("before", "after", "kind", "worse"),
    [
        (made(0), FAIL, "new", True),
        (WAIVED, FAIL, "new", True),
        (made(0, "NOT_SUPPORTED"), made(0, "CRASH"), "new", True),
        (None, FAIL, "stranger", True),
        (made(0), made(0, "INTERNAL"), "suite", True),
        (made(0), made(0, "POOR"), "poor", True),
        (made(0), made(0, "NOT_SUPPORTED"), "refused", True),
        (made(0), made(0, "NOT_RUN"), "lost", True),
        (FAIL, made(0, "CRASH", cause="DIED"), "otherwise", False),
        (FAIL, made(0), "fixed", False),
        (made(0, "POOR"), made(0), "better", False),
        (FAIL, made(0, "NOT_SUPPORTED"), "withdrawn", False),
        (FAIL, WAIVED, "waived", False),
        (made(0, "NOT_SUPPORTED"), made(0), "supported", False),
        (made(0, "NOT_SUPPORTED"), made(0, "NOT_APPLICABLE"), "other", False),
        (made(0), None, "only1", False),
        (None, made(0), "only2", False),
        (made(0), made(0), None, False),
        (FAIL, FAIL, None, False),
    ],
)
def test_a_change_of_verdict_has_a_kind(
    tmp_path: Path, before: Record | None, after: Record | None, kind: str | None, worse: bool
) -> None:
    rest = made(0, operation="EXP")
    first = write_run(tmp_path / "1", [rest, *([before] if before else [])])
    second = write_run(tmp_path / "2", [rest, *([after] if after else [])])
    found = compare.compare(first, second)
    assert {key: len(changes) for key, changes in found.changes.items()} == ({kind: 1} if kind else {})
    assert bool(found.worse) is worse
    assert found.same == (1 if kind else 2)
    assert compare.headline(found).tone == ("bad" if worse else "good")
    assert main(["compare", str(tmp_path / "1"), str(tmp_path / "2")]) == (1 if worse else 0)


@pytest.mark.parametrize(
    ("before", "after", "altered"), [("-abc123", "-abc123", 0), ("-abc123", "-def456", 1), ("", "-abc123", 0)]
)
def test_a_case_is_altered_where_two_that_were_made_differ(
    tmp_path: Path, before: str, after: str, altered: int
) -> None:
    name = made(0).id.rpartition("-")[0]
    runs = [
        write_run(tmp_path / end, [replace(made(0, "NOT_SUPPORTED"), id=name + digest)])
        for end, digest in (("1", before), ("2", after))
    ]
    assert compare.compare(*runs).altered == altered


def test_a_case_that_was_selected_and_lost_is_worse_and_one_that_was_not_selected_is_not(tmp_path: Path) -> None:
    first = write_run(tmp_path / "1", [made(0), made(0, operation="EXP")])
    second = write_run(tmp_path / "2", [made(0)], {"EXP-float32-sync-drawn": 1}, ended=False)
    assert list(compare.compare(first, second).changes) == ["lost"]
    third = write_run(tmp_path / "3", [made(0)])
    assert list(compare.compare(first, third).changes) == ["only1"]


def test_changes_that_are_alike_stand_together(tmp_path: Path) -> None:
    first = write_run(tmp_path / "1", [made(n) for n in range(4)] + [made(0, operation="EXP")])
    failing = [made(n, "FAIL", cause="VALUE", message=f"differs in {n + 1} of 9 elements") for n in range(3)]
    other = [made(3, "CRASH", cause="DIED", message="died"), made(0, "FAIL", "EXP", cause="VALUE", message="differs")]
    second = write_run(tmp_path / "2", failing + other)
    found = compare.bundles(compare.compare(first, second).changes["new"])
    assert [(b.one.record.operation, b.one.record.verdict, len(b.changes)) for b in found] == [
        ("ADD", "FAIL", 3),
        ("ADD", "CRASH", 1),
        ("EXP", "FAIL", 1),
    ]


def test_accuracy_is_compared_over_the_cases_of_both(tmp_path: Path) -> None:
    first = [made(0, error=0.2, ulp=1.0), made(1, error=0.3, ulp=2.0), made(2, error=9.0)]
    second = [made(0, error=0.6, ulp=3.0), made(1, error=0.1, ulp=0.5)]
    steady = [made(0, operation="EXP", error=0.5)]
    runs = [write_run(tmp_path / n, rows + steady) for n, rows in (("1", first), ("2", second))]
    (found,) = compare.compare(*runs).accuracy
    assert (found.operation, found.compared, found.before, found.after) == ("ADD", 2, 0.3, 0.6)
    assert (found.factor, found.ulp_before, found.ulp_after) == (2.0, 2.0, 3.0)
