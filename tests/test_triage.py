"""What tells failures of random graphs apart, which of them are minimised, and how they are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from harness.verdict import Cause, Verdict
from nnhal.errors import UsageError
from nnhal.types import OperationType
from random_graph.cases import graph_test_case
from random_graph.jobs import Graph
from random_graph.triage import EXPLAINED, EXPLAINED_PER_KEY, NEW_PER_KEY, Distinct, Failures, Look, look_at, mismatch
from tests.campaign_runs import (
    look,
    record,
)


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [(1.0, 2.0, "value"), (0.0, 1.0, "value"), (float("nan"), 2.0, "NaN"), (float("inf"), 2.0, "infinite"),
     (-float("inf"), 2.0, "infinite"), (1.0, float("nan"), "finite"), (1.0, float("inf"), "finite")],
)  # fmt: skip
def test_values_are_wrong_in_few_ways(got: float, expected: float, words: str) -> None:
    worst = {"output": "output0", "got": got, "expected": expected}
    assert mismatch(record(Graph("small", 1), Verdict.FAIL, Cause.VALUE, worst=worst)) == words


def test_numbers_in_messages_tell_nothing_apart() -> None:
    first, other = (
        record(Graph("small", 1), Verdict.CRASH, Cause.DIED, message=f"died at 0x{number:x} after {number}.5 s\nmore")
        for number in (17, 4711)
    )
    assert mismatch(first) == mismatch(other) == "died at # after # s"


def test_a_look_at_a_failure_names_the_operation_that_gives_the_output() -> None:
    case = graph_test_case("small", 5)
    main_graph = case.models[0].main
    due = case.steps[-1].expect.outputs  # type: ignore[union-attr]
    for position, output in enumerate(due):
        worst = {"output": output.name, "got": 1.0, "expected": 2.0}
        found = look_at(case, record(Graph("small", 5), Verdict.FAIL, Cause.VALUE, worst=worst))
        (giver,) = [o for o in main_graph.operations if main_graph.output_indexes[position] in o.outputs]
        assert found.operation == OperationType(giver.type).name
    every = [o for graph in (main_graph, *case.models[0].referenced) for o in graph.operations]
    assert Counter(words.split()[0] for words in found.operations) == Counter(OperationType(o.type).name for o in every)
    assert list(found.operations) == sorted(found.operations)


def distinct(seen: Look, seed: int, note: str = "", *, pending: bool = False) -> Distinct:
    found = record(Graph("small", seed), Verdict(seen.verdict), Cause(seen.cause))
    return Distinct(replace(found, id=f"{found.id}.minimised"), seen, note, pending)


def test_failures_are_one_where_verdict_cause_mismatch_and_operations_are(tmp_path: Path) -> None:
    found = Failures(tmp_path)
    add = look("ADD float32")
    assert found.add(distinct(add, 1), "small", 1)
    assert not found.add(distinct(replace(add, operation="MUL"), 2), "small", 2)
    assert found.add(distinct(look("ADD float16"), 3), "small", 3)
    assert found.add(distinct(look("ADD float32", "ADD float32"), 4), "small", 4)
    assert found.add(distinct(look("ADD float32", mismatch="NaN"), 5), "small", 5)
    assert found.add(distinct(look("ADD float32", verdict="CRASH", cause="DIED"), 6), "small", 6)
    assert not found.add(distinct(add, 7), "wide", 7)
    assert [one.count for one in found.distinct] == [3, 1, 1, 1, 1]
    assert found.distinct[0].seeds == {"small": [1, 2], "wide": [7]}


def test_what_is_explained_is_counted_to_what_explains_it(tmp_path: Path) -> None:
    found = Failures(tmp_path)
    found.add(distinct(look("ADD float32"), 1), "small", 1)
    found.add(distinct(look("ADD float32", "TANH float32"), 2), "small", 2)
    graph = look("ADD float32", "MUL float32", "TANH float32", giver="MUL")
    assert found.count(graph, "small", 3)
    assert found.count(look("ADD float32", "MUL float32", giver="MUL"), "small", 4)
    assert not found.count(look("ADD float16", "MUL float32", giver="MUL"), "small", 5)
    assert not found.count(replace(graph, mismatch="NaN"), "small", 6)
    assert [(one.seeds, one.alike) for one in found.distinct] == [
        ({"small": [1]}, {"small": [4]}),
        ({"small": [2]}, {"small": [3]}),
    ]
    assert found.knows("small", 3)
    assert not found.knows("small", 5)


def test_no_more_failures_alike_are_minimised_than_say_something_new(tmp_path: Path) -> None:
    found = Failures(tmp_path)
    assert [found.wants(look("MUL float32")) for _ in range(NEW_PER_KEY + 1)] == [True] * NEW_PER_KEY + [False]
    found.add(distinct(look("ADD float32"), 1), "small", 1)
    explained = look("ADD float32", "TANH float32", giver="TANH")
    assert [found.wants(explained) for _ in range(EXPLAINED_PER_KEY + 1)] == [True] * EXPLAINED_PER_KEY + [False]
    assert not found.wants(replace(explained, operation="ABS"), closing=True)
    assert found.wants(look("ABS float32", giver="ABS"), closing=True)
    for seed in range(2, EXPLAINED + 1):
        found.add(distinct(look("ADD float32"), seed), "small", seed)
    assert not found.wants(replace(explained, operation="NEG"))


@pytest.mark.parametrize(
    "seen",
    [
        look("ADD float32", repeated="sequence"),
        look("ADD float32", verdict="FLAKY", repeated="differs"),
        look("ADD float32", verdict="INTERNAL", cause="SUITE"),
        look("ADD float32", stage="start", verdict="CRASH", cause="DIED"),
        look(verdict="INTERNAL", cause="SUITE", stage="make"),
    ],
)
def test_what_no_graph_fails_by_itself_is_not_minimised(seen: Look, tmp_path: Path) -> None:
    assert not Failures(tmp_path).wants(seen)


def test_failures_are_read_as_they_were_written_and_what_was_not_come_to_is_open_again(tmp_path: Path) -> None:
    found = Failures(tmp_path)
    found.add(distinct(look("ADD float32", mismatch="NaN"), 1), "small", 1)
    found.count(look("ADD float32", "ABS float32", giver="ABS", mismatch="NaN"), "wide", 9)
    found.add(distinct(look("TANH float32"), 2, "not reached", pending=True), "small", 2)
    found.write(soon=True)
    again = Failures(tmp_path)
    assert again.distinct == found.distinct[:1]
    assert again.knows("wide", 9)
    assert not again.knows("small", 2)


def test_a_damaged_list_of_failures_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "failures.jsonl").write_text('{"id": 3}\n')
    with pytest.raises(UsageError, match=r"is damaged .* delete it"):
        Failures(tmp_path)
