"""Drivers are asked for support before it is computed what is due: of drafts in order, and nothing is lost by it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.batch import Batch, NotApplicableError
from harness.case import Origin, TestCase
from harness.case_file import load
from harness.driver import open_driver
from harness.make import graph_question
from harness.record import Record, RecordFile
from harness.session import Options, Session
from harness.steps import Action
from harness.waivers import load_waivers
from nnhal.loading import DriverSpec
from nnhal.model import Model
from nnhal.types import FL1, OperationType
from random_graph import cases
from random_graph.cases import attempts, drawn_case, graph_test_case, origin_of
from random_graph.generator import Drawn
from random_graph.mixes import Mix
from reference_driver import ReferenceDevice
from tests.plugin_runs import LIGHT

ORIGIN = Origin("GRAPH", "small", "drawn", 0)
SEEDS = tuple(range(20))


class Watching(ReferenceDevice):
    """The reference; keeps what it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Model] = []

    def get_supported_operations(self, model: Model) -> list[bool]:
        self.asked.append(model)
        return super().get_supported_operations(model)


class Failing(ReferenceDevice):
    """Fails when it is asked."""

    traits = replace(ReferenceDevice.traits, deterministic=False)

    def get_supported_operations(self, model: Model) -> list[bool]:
        raise RuntimeError("no answer")


class FailingOnce(ReferenceDevice):
    """Fails the first time that it is asked, in whatever object."""

    times = 0

    def get_supported_operations(self, model: Model) -> list[bool]:
        FailingOnce.times += 1
        if FailingOnce.times == 1:
            raise RuntimeError("no answer")
        return super().get_supported_operations(model)


class WithoutAdd(ReferenceDevice):
    """Says that it does not support ADD."""

    def get_supported_operations(self, model: Model) -> list[bool]:
        found = super().get_supported_operations(model)
        operations = model.main.operations
        return [known and o.type != OperationType.ADD for known, o in zip(found, operations, strict=True)]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def start(text: str, **options: Any) -> Session:
        driver = open_driver(DriverSpec.parse(text), log_path=tmp_path / "driver.log", in_process=True)
        records = RecordFile(tmp_path / f"records{len(opened)}.jsonl")
        opened.append(Session(driver, tmp_path, records, load_waivers(None), Options(text, **options)))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@dataclass
class Made:
    """A draft that counts how often it is made.

    Attributes:
        whole: the case of a graph.
        given: what it makes: the case, nothing, or an exception.
    """

    whole: TestCase
    given: TestCase | Exception | None
    times: int = 0

    @property
    def question(self) -> TestCase:
        return graph_question(self.whole.models[0], ORIGIN)

    def make(self) -> TestCase | None:
        self.times += 1
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def batch(*drafts: Made) -> Batch:
    return Batch(ORIGIN, (0,), lambda number: pytest.fail("drafts go before"), drafts=lambda number: drafts)


def plain(seed: int = 0) -> TestCase:
    return replace(graph_test_case("small", seed), origin=ORIGIN)


def with_add(*, there: bool) -> TestCase:
    """A graph with ADD in it, or without."""
    found = (plain(seed) for seed in itertools.count())
    return next(c for c in found if there == any(o.type == OperationType.ADD for o in c.models[0].main.operations))


def facts(record: Record) -> tuple[object, ...]:
    return (record.verdict, record.cause, record.stage, record.message, record.detail, record.level, record.notes)


GRAPHS = Batch(origin_of("small", 0), SEEDS, partial(graph_test_case, "small"), drafts=partial(attempts, "small"))


# ---- graphs


def test_a_question_is_what_its_case_begins_with() -> None:
    for seed in SEEDS:
        case = graph_test_case("small", seed)
        question = graph_question(case.models[0], origin_of("small", seed))
        assert question == replace(case, steps=case.steps[:1], digest="")


def test_a_draw_that_is_valid_at_no_level_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(chosen: Mix, seed: int, attempt: int = 0) -> Drawn:
        drawn = right(chosen, seed, attempt)
        if attempt:
            return drawn
        main = drawn.model.main
        return replace(drawn, model=replace(drawn.model, main=replace(main, operations=main.operations[:0])))

    right = cases.draw
    monkeypatch.setattr(cases, "draw", draw)
    assert 0 not in [attempt.number for attempt in attempts("small", 2)]
    assert drawn_case("small", 2)[1].attempts > 0


def test_nothing_is_computed_of_a_graph_that_is_not_supported(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict and the words are those that the whole case gives."""
    light = session(LIGHT)
    due = {seed: light.check(next(a.whole for a in attempts("small", seed) if a.whole)) for seed in SEEDS}
    monkeypatch.setattr(cases, "graph_case", lambda *rest, **more: pytest.fail("what is due was computed"))
    for number in SEEDS:
        record = light.check_number(GRAPHS, number)
        assert record.verdict in ("NOT_SUPPORTED", "NOT_APPLICABLE")
        assert facts(record) == facts(due[number])
        assert record.id == f"GRAPH-small-sync-drawn-{number}"
        assert (record.sample, record.seconds > 0) == (due[number].sample, due[number].seconds > 0)


def test_a_graph_above_the_driver_s_level_is_not_made_either(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "graph_case", lambda *rest, **more: pytest.fail("what is due was computed"))
    seed = next(n for n in SEEDS if next(attempts("small", n)).question.level > FL1)
    record = session("reference", level=FL1).check_number(GRAPHS, seed)
    assert (record.verdict, record.cause, record.stage) == ("NOT_APPLICABLE", "LEVEL", "select")


def test_a_supported_graph_is_the_one_that_every_driver_gets(session: Any) -> None:
    """Whatever draws go before it, each of which is asked about."""
    watching = session(f"{__file__}:Watching")
    tries: set[int] = set()
    for number in itertools.count():
        due, quality = drawn_case("small", number)
        record = watching.check_number(GRAPHS, number)
        assert (record.id, record.verdict) == (due.id, "PASS")
        asked = watching.driver.device.asked
        before = [a.question.models[0] for a in attempts("small", number) if a.number <= quality.attempts]
        assert [model for n, model in enumerate(asked) if model not in asked[:n]] == before
        asked.clear()
        tries.add(len(before))
        if len(tries) > 1 and number > 3:
            return


# ---- drafts


def test_a_draft_that_is_not_supported_is_not_made(session: Any) -> None:
    first, second = Made(with_add(there=True), None), Made(with_add(there=False), None)
    record = session(f"{__file__}:WithoutAdd").check_number(batch(first, second), 0)
    assert (record.verdict, record.stage, first.times, second.times) == ("NOT_SUPPORTED", "query", 0, 0)


def test_a_draft_that_gives_no_case_makes_room_for_the_next(session: Any) -> None:
    case = with_add(there=False)
    first, second = Made(case, None), Made(case, case)
    record = session(f"{__file__}:WithoutAdd").check_number(batch(first, second), 0)
    assert (record.verdict, record.id, first.times, second.times) == ("PASS", case.id, 1, 1)
    third = Made(with_add(there=True), None)
    assert session(f"{__file__}:WithoutAdd").check_number(batch(first, third), 0).verdict == "NOT_SUPPORTED"


def test_drafts_that_all_give_no_case_are_an_error_of_the_suite(session: Any) -> None:
    record = session("reference").check_number(batch(Made(plain(), None)), 0)
    assert (record.verdict, record.stage) == ("INTERNAL", "make")
    assert record.message.endswith("ValueError: none of its drafts can be GRAPH-small-sync-drawn-0")


def test_a_driver_that_fails_when_asked_fails_the_case(session: Any) -> None:
    case = plain()
    failing = session(f"{__file__}:Failing")
    due, record = failing.check(case), failing.check_number(batch(Made(case, case)), 0)
    assert facts(record) == facts(due)
    assert (record.verdict, record.cause, record.stage, record.repeated) == ("FAIL", "UNCLEAN_ERROR", "query", "same")
    assert record.id == due.id


@pytest.mark.parametrize("given", [None, NotApplicableError("not written otherwise"), ValueError("not finite")])
def test_a_driver_that_fails_when_asked_fails_whatever_comes_of_the_case(
    session: Any, tmp_path: Path, given: Exception | None
) -> None:
    failing = session(f"{__file__}:Failing")
    record = failing.check_number(batch(Made(plain(), given)), 0)
    assert (record.verdict, record.cause, record.stage, record.repeated) == ("FAIL", "UNCLEAN_ERROR", "query", "same")
    kept = load(tmp_path / record.saved)
    assert [step.action for step in kept.steps] == [Action.QUERY]
    assert kept.id == record.id


def test_a_driver_that_fails_once_when_asked_is_not_taken_for_right(session: Any) -> None:
    FailingOnce.times = 0
    case = plain()
    record = session(f"{__file__}:FailingOnce").check_number(batch(Made(case, case)), 0)
    assert (record.verdict, record.repeated) == ("FLAKY", "differs")


def test_a_failure_when_asked_is_not_hidden_by_what_the_case_needs(session: Any) -> None:
    case = plain()
    made = replace(case, needs=("deterministic",))
    record = session(f"{__file__}:Failing").check_number(batch(Made(case, made)), 0)
    assert (record.verdict, record.stage) == ("FAIL", "query")
