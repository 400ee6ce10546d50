"""The measure of how much the suite notices: what it counts on a few cases, and what its page is about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import mutation_score
from benchmarks.generic_faults import FAULTS, NO_ANSWER, Fault, answered, fitted
from benchmarks.mutation_page import Pair, Scores, Tally, page, share
from benchmarks.mutation_reasons import CONFORMING, EQUIVALENT, REASONS, UNREACHED
from benchmarks.mutation_score import Work, drawn_batches, given, measure, right_answers, verdict_on
from harness.verdict import Judgement, Verdict
from nnhal.types import Array
from opset import OPSET
from opset.call import Call

PAGE = Path(__file__).parents[1] / "docs" / "mutation-score.md"
BY_KEY = {fault.key: fault for fault in FAULTS}
NAMES = {definition.name for definition in OPSET.values()}


@pytest.mark.parametrize(
    ("operation", "signature"),
    [("ADD", "quant8_asymm"), ("SPLIT", "int32"), ("LSTM", "float32.default.in27"), ("IF", "any"),
     ("BOX_WITH_NMS_LIMIT", "float32"), ("RANDOM_MULTINOMIAL", "float32")],
)  # fmt: skip
def test_right_answers_pass(operation: str, signature: str) -> None:
    batch = drawn_batches("ci", 0)[operation, signature]
    for number in batch.numbers[:4]:
        answers = right_answers(batch.make(number))
        if answers is None:
            continue
        right = [given(answers, n, seen.stored.values()) for n, seen in enumerate(answers.seen)]
        assert verdict_on(answers, right).verdict == Verdict.PASS


def tallies(operation: str, signature: str, count: int) -> Mapping[Pair, Tally]:
    return measure(Work(operation, signature, "ci", count=count))


def test_what_a_fault_changes_is_noticed_and_what_it_does_not_is_not() -> None:
    found = tallies("ADD", "quant8_asymm", 6)
    zero, exchanged = found[Pair("ADD", "ze", "output")], found[Pair("ADD", "xi", "a and b")]
    assert (zero.tried, zero.changed, zero.noticed) == (6, 6, 6)
    assert zero.noticing == {"quant8_asymm"}
    assert exchanged.tried > 0
    assert (exchanged.changed, exchanged.noticed) == (0, 0)
    assert Pair("ADD", "b8", "output") not in found  # nothing is a float
    assert Pair("ADD", "iz", "activation") not in found  # a parameter is no data


def test_a_judge_that_accepts_everything_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation_score, "judge", lambda case, outcome: Judgement(Verdict.PASS))
    found = tallies("ADD", "float32", 3)
    assert sum(tally.changed for tally in found.values()) > 20
    assert not any(tally.noticed for tally in found.values())


def test_only_the_pairs_asked_for_are_tried() -> None:
    wanted = Pair("RELU", "ro", "output")
    found = measure(Work("RELU", "float32", "ci", first=2, count=3, pairs=frozenset({wanted})))
    assert set(found) == {wanted}
    assert found[wanted].tried == 3


def result_of(key: str, value: object) -> Array:
    """What a fault makes of the result of a first case of ADD whose result is the value."""
    answers = right_answers(drawn_batches("ci", 0)["ADD", "float32"].make(0))
    assert answers is not None
    seen = answers.seen[0]
    truth = {"output": seen.truth["output"].storing(np.array(value, np.float32))}
    answer = answered(BY_KEY[key], replace(seen, truth=truth), "output")
    assert answer is not None
    return answer["output"]


def test_results_are_changed_as_said() -> None:
    assert result_of("ro", [1, 2, 3]).tolist() == [3, 1, 2]
    assert result_of("re", [[1, 2], [3, 4]]).tolist() == [[2, 1], [4, 3]]
    assert result_of("ex", [[1, 2, 3], [4, 5, 6]]).tolist() == [[1, 4, 2], [5, 3, 6]]
    assert result_of("fr", [[1, 2], [3, 4]]).tolist() == [[1, 2], [1, 2]]
    assert result_of("fr", [1, 2]).tolist() == [1, 1]
    assert result_of("ne", [1, -2]).tolist() == [-1, 2]
    assert result_of("b8", [1 + 2**-7, 1 + 2**-9]).tolist() == [1 + 2**-7, 1]
    assert result_of("b11", [1 + 2**-10, 1 + 2**-12]).tolist() == [1 + 2**-10, 1]
    assert result_of("un", [1, 2]).tobytes()[4:] == b"\xcd" * 4


def test_a_result_of_another_shape_is_found_in_the_order_of_its_values() -> None:
    assert fitted(np.arange(6).reshape(2, 3), (3, 2)).tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("error", NO_ANSWER)
def test_what_cannot_be_computed_is_no_answer(error: type[Exception]) -> None:
    def fails(*_: object) -> None:
        raise error

    def once(call: Call) -> dict[str, str]:
        return {"": ""}

    answers = right_answers(drawn_batches("ci", 0)["ADD", "float32"].make(0))
    assert answers is not None
    assert answered(Fault("", "", once, fails), answers.seen[0], "") is None


def tally(changed: int, noticed: int, tried: int = 5) -> Tally:
    return Tally(tried, changed, noticed, {"float32"}, {"float32"} if changed else set(),
                 {"float32"} if noticed else set())  # fmt: skip


def test_the_score() -> None:
    at_once, later, never, none, late = (Pair("ABS", key, "output") for key in ("ze", "ro", "re", "ne", "ex"))
    scores = Scores(
        {at_once: tally(5, 4), later: tally(5, 0), never: tally(5, 0), none: tally(0, 0), late: tally(0, 0)},
        {later: tally(3, 1), never: tally(2, 0)},
        {none: tally(0, 0, 200), late: tally(1, 0, 200)},
    )
    assert scores.counted(scores.pairs()) == (2, 4)
    assert scores.missed() == [late, never]
    assert [pair for pair in scores.pairs() if scores.equivalent(pair)] == [none]
    assert scores.cases(scores.pairs()).changed == 15
    text = page(scores, "quick", 12, 200)
    assert "| pairs | 2 | 4 | 0.500 |" in text
    assert re.search(r"\| ABS \| 2/4 \| 0.500 \| 4/5 \| = \| 0/5\* \| 0/5! \| 0/0! \|", text)
    assert "changes 1 of 200 other draws" in text


def test_what_conforms_is_not_counted() -> None:
    scratch = Pair("LSTM", "ze", "scratch")
    scores = Scores({scratch: tally(5, 0)})
    assert scores.conforming(scratch)
    assert scores.counted(scores.pairs()) == (0, 0)
    assert not Scores({scratch: tally(5, 1)}).conforming(scratch)


def test_a_share_of_1_means_all() -> None:
    assert share(9999, 10000) == "0.999"
    assert share(3, 3) == "1.000"
    assert share(0, 0) == "-"


def test_keys_and_reasons_are_of_faults_and_operations_that_exist() -> None:
    assert len(BY_KEY) == len(FAULTS)
    named = {*REASONS, *UNREACHED}
    assert {operation for operation, *_ in [*named, *CONFORMING]} <= NAMES
    assert {fault for _, fault, _ in named} | set(EQUIVALENT) <= set(BY_KEY)
    assert {fault for faults, _ in CONFORMING.values() for fault in faults} <= set(BY_KEY)


def test_the_page_is_of_all_operations_and_faults() -> None:
    rows = re.findall(r"^\| ([A-Z0-9_]+) \| \d+/\d+ \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) == NAMES
    heads = re.search(r"^\| operation \| pairs \| share \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert heads is not None
    assert heads[1].split(" | ") == list(BY_KEY)


def test_the_command_prints_one_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutation_score.main(["--profile=ci", "--operation", "FLOOR", "--cases=2", "--processes=1"]) == 0
    assert "| FLOOR | " in capsys.readouterr().out
