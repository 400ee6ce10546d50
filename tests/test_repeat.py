"""Failures run again: the same, only behind other cases, or not at all; and a session that sees a case through."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.batch import Batch, NotApplicableError
from harness.case import Origin, Step, TestCase
from harness.case_file import load, seal
from harness.expectations import Expected, Rejects, Returns, Unspecified
from harness.judge import judge
from harness.record import RecordFile, read_run
from harness.remarks import NO_REMARKS, Remarks
from harness.repeat import HISTORY, SHORTENINGS, SHORTENINGS_OF_HANG, Repeated, chain, confirm
from harness.run import run
from harness.session import REPEATS, REPEATS_PER_KIND, SAVED_PER_KIND, Options, Session, driver_log, failure_text
from harness.steps import Action
from harness.verdict import Cause, Judgement, Verdict
from harness.waivers import Waiver, Waivers
from nnhal.buffers import read_inputs, write_outputs
from nnhal.device import Device, ExecutionResult, PreparedModel, Traits
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, UncleanError, UsageError, invalid
from nnhal.model import Model
from nnhal.types import FL2, FL4, DeviceType, ErrorStatus, ExecutionMode, FeatureLevel, OperandType
from tests.add_model import add_model


def case_of(number: int, operation: str = "ADD") -> TestCase:
    """1 + 2 for case 0, and so on: each case has a model of its own."""
    a, b = np.full(2, number + 1, np.float32), np.full(2, number + 2, np.float32)
    due = Expected("output", OperandType.TENSOR_FLOAT32, (2,), (a + b).astype(np.float64), np.full(2, 1e-5))
    steps = (Step(Action.QUERY), Step(Action.PREPARE), Step(Action.EXECUTE, 0, Returns((due,)), inputs=(a, b)))
    return seal(TestCase(Origin(operation, "float32", "drawn", number), (add_model((2,)),), steps))


CASES = [case_of(number) for number in range(60)]
FAILED = Judgement(Verdict.FAIL, Cause.VALUE, "execute", "differs")
PASSED = Judgement(Verdict.PASS)


class Fresh:
    """A fresh process in which a failure depends on what went before."""

    def __init__(self, fails: Callable[[list[int]], bool]) -> None:
        self._fails = fails
        self.runs: list[list[int]] = []

    def __call__(self, cases: Sequence[TestCase]) -> Judgement:
        numbers = [case.origin.number for case in cases]
        self.runs.append(numbers)
        return FAILED if self._fails(numbers) else PASSED


def confirmed(fails: Callable[[list[int]], bool], before: int, first: Judgement = FAILED) -> tuple[Repeated, Fresh]:
    fresh = Fresh(fails)
    return confirm(CASES[50], first, CASES[:before], fresh), fresh


# ---- confirming


def test_a_failure_that_repeats_is_the_same() -> None:
    found, fresh = confirmed(lambda numbers: True, 10)
    assert (found.how, found.judgement.verdict, found.case) == ("same", Verdict.FAIL, CASES[50])
    assert fresh.runs == [[50]]


def test_another_verdict_at_the_second_time_leaves_the_first() -> None:
    crashed = Judgement(Verdict.CRASH, Cause.DIED, "execute", "died")
    found, _ = confirmed(lambda numbers: True, 10, crashed)
    assert (found.how, found.judgement) == ("same", crashed)


def test_a_failure_that_does_not_repeat_is_flaky() -> None:
    found, fresh = confirmed(lambda numbers: False, 10)
    assert (found.how, found.judgement.verdict, found.judgement.cause) == ("differs", Verdict.FLAKY, Cause.VALUE)
    assert found.judgement.message == ("did not repeat, alone or behind the 10 cases before it; at first: differs")
    assert fresh.runs == [[50], [*range(10), 50]]


def test_the_first_case_of_a_process_has_no_history() -> None:
    found, fresh = confirmed(lambda numbers: False, 0)
    assert found.judgement.verdict == Verdict.FLAKY
    assert fresh.runs == [[50]]


@pytest.mark.parametrize("needed", [{0}, {9}, {4}, {0, 9}, {3, 4}, {1, 5, 8}, set(range(10))])
def test_a_sequence_is_found_and_shortened_to_what_matters(needed: set[int]) -> None:
    found, fresh = confirmed(lambda numbers: needed <= set(numbers[:-1]), 10)
    assert (found.how, found.judgement) == ("sequence", FAILED)
    assert len(found.case.models) == len(needed) + 1
    assert found.case.origin.kind == f"drawn.sequence{len(needed) + 1}"
    assert len(fresh.runs) <= 2 + SHORTENINGS


def test_a_sequence_that_depends_on_a_number_of_executions() -> None:
    found, _ = confirmed(lambda numbers: len(numbers) >= 4, 33)
    assert len(found.case.models) == 4


def test_a_long_history_is_cut_and_its_search_ends() -> None:
    found, fresh = confirmed(lambda numbers: len(numbers) > HISTORY // 2, 49)
    assert fresh.runs[1] == [*range(49 - HISTORY, 49), 50]
    assert found.how == "sequence"
    assert len(fresh.runs) <= 2 + SHORTENINGS


def test_the_search_for_a_hang_is_short() -> None:
    hung = Judgement(Verdict.HANG, Cause.SILENT, "execute", "silent")
    _, fresh = confirmed(lambda numbers: len(numbers) > 9, 20, hung)
    assert len(fresh.runs) <= 2 + SHORTENINGS_OF_HANG


# ---- chains


class Counting(Device):
    """Adds; gets the sum wrong from the n-th execution on."""

    def __init__(self, wrong_from: int = 99, **facts: Any) -> None:
        self.wrong_from = wrong_from
        self.executions = 0
        self.facts = facts
        self.feature_level = facts.get("level", FeatureLevel.FL8)
        self.traits = facts.get("traits", Traits())

    def get_type(self) -> DeviceType:
        return self._answer("type", DeviceType.CPU)  # type: ignore[no-any-return]

    def get_version_string(self) -> str:
        return self._answer("version", "7")  # type: ignore[no-any-return]

    def _answer(self, name: str, usual: object) -> Any:
        answer = self.facts.get(name, usual)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get_supported_operations(self, model: Model) -> list[bool]:
        return [True]

    def prepare_model(self, model: Model, config: Any = None) -> PreparedModel:
        return _Adder(self, model)


class _Adder(PreparedModel):
    def __init__(self, device: Counting, model: Model) -> None:
        self.device, self.model = device, model

    def execute_synchronously(self, request: Any, config: Any = None, deadline: Any = None) -> ExecutionResult:
        self.device.executions += 1
        a, b = read_inputs(self.model, request)
        assert a is not None
        assert b is not None
        wrong = self.device.executions >= self.device.wrong_from
        return write_outputs(self.model, request, [a + b + np.float32(wrong)])


def test_a_chain_takes_the_steps_of_all_and_judges_the_last() -> None:
    chained = chain(CASES[:3])
    assert [step.model for step in chained.steps] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert all(isinstance(step.expect, Unspecified) for step in chained.steps[:6])
    assert chained.steps[6:] == tuple(replace(step, model=2) for step in CASES[2].steps)
    assert chained.digest not in {case.digest for case in CASES[:3]}
    found = run(chained, Counting(), in_process=True)
    assert len(found.steps) == 9
    assert judge(chained, found).verdict == Verdict.PASS
    assert judge(chained, run(chained, Counting(3), in_process=True)).verdict == Verdict.FAIL
    assert judge(chained, run(chained, Counting(4), in_process=True)).verdict == Verdict.PASS


def test_a_chain_goes_on_behind_models_that_are_refused() -> None:
    class Choosy(Counting):
        def get_supported_operations(self, model: Model) -> list[bool]:
            if model is CASES[0].models[0]:
                raise invalid("not this one")
            return [model is not CASES[1].models[0]]

        def prepare_model(self, model: Model, config: Any = None) -> PreparedModel:
            if model in (CASES[0].models[0], CASES[1].models[0]):
                raise DriverError(ErrorStatus.GENERAL_FAILURE, "no")
            return super().prepare_model(model)

    last = replace(CASES[2], models=(add_model((3,)),))
    inputs = tuple(np.resize(value, 3) for value in last.steps[2].inputs if value is not None)
    due = Expected("output", OperandType.TENSOR_FLOAT32, (3,), np.full(3, 7.0), np.zeros(3))
    last = replace(last, steps=(*last.steps[:2], Step(Action.EXECUTE, 0, Returns((due,)), inputs=inputs)))
    chained = chain([CASES[0], CASES[1], last])
    found = run(chained, Choosy(), in_process=True)
    assert judge(chained, found).verdict == Verdict.PASS
    assert [step.step for step in found.steps if step.skipped] == [2, 5]


def test_a_chain_is_saved_and_loaded(tmp_path: Path) -> None:
    from harness.case_file import save

    chained = chain(CASES[:3])
    save(chained, tmp_path / "a.case")
    assert load(tmp_path / "a.case").id == chained.id


# ---- a session


class Here:
    """A driver in this process that can be started again."""

    in_process = True
    log = ""

    def __init__(self, make: Callable[[], Device], in_process: bool = True) -> None:
        self._make = make
        self.in_process = in_process
        self.device = make()
        self.restarts = 0

    def restart(self) -> None:
        self.restarts += 1
        self.device = self._make()

    def sample(self) -> dict[str, float]:
        return {"rss": 5.0}

    def remarks(self) -> Remarks:
        return NO_REMARKS

    def close(self) -> None: ...


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def start(driver: object, **rest: Any) -> Session:
        records = RecordFile(tmp_path / "records.jsonl")
        waivers = rest.pop("waivers", Waivers([], rest.pop("today", None)))  # type: ignore[arg-type]
        options = rest.pop("options", Options("mydriver"))
        opened.append(Session(driver, tmp_path, records, waivers, options, **rest))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_case_that_passes(session: Any) -> None:
    record = session(Here(Counting)).check(CASES[0])
    assert (record.verdict, record.stage, record.repeated, record.saved) == ("PASS", "execute", "", "")
    assert record.repeat == f"pytest --driver=mydriver --case={CASES[0].id}"
    assert record.sample == {"rss": 5.0}
    assert record.seconds > 0


def test_a_failure_is_repeated_saved_and_written_down(session: Any, tmp_path: Path) -> None:
    driver = Here(lambda: Counting(1))
    found = session(driver)
    record = found.check(CASES[0])
    assert (record.verdict, record.cause, record.repeated) == ("FAIL", "VALUE", "same")
    assert driver.restarts == 1
    assert load(tmp_path / record.saved).id == CASES[0].id == record.id
    assert found.failed == 1
    text = failure_text(record, "mydriver")
    assert text.splitlines()[0] == f"{record.id} on mydriver: FAIL (VALUE) at execute"
    assert f"  repeat: pytest --driver=mydriver --case={record.id}" in text
    assert f"  saved: {record.saved}" in text


def test_a_failure_behind_others_is_saved_whole_and_repeated_by_its_file(session: Any, tmp_path: Path) -> None:
    found = session(Here(lambda: Counting(3)))
    records = [found.check(case) for case in CASES[:4]]
    assert [r.verdict for r in records[:3]] == ["PASS", "PASS", "FAIL"]
    record = records[2]
    assert record.repeated == "sequence"
    saved = load(tmp_path / record.saved)
    assert len(saved.models) == 3
    assert record.repeat.endswith(f"--case={tmp_path / record.saved}")
    assert "fails only behind the cases before it" in failure_text(record, "mydriver")
    assert judge(saved, run(saved, Counting(3), in_process=True)).verdict == Verdict.FAIL


def test_what_does_not_repeat_is_flaky_and_fails_the_run(session: Any) -> None:
    devices = iter([Counting(1), *[Counting() for _ in range(9)]])
    found = session(Here(lambda: next(devices)))
    record = found.check(CASES[0])
    assert (record.verdict, record.repeated, record.bad, found.failed) == ("FLAKY", "differs", True, 1)


def test_many_failures_of_a_kind_are_repeated_a_few_times(session: Any) -> None:
    driver = Here(lambda: Counting(1))
    found = session(driver)
    records = [found.check(case) for case in CASES[: SAVED_PER_KIND + 3]]
    assert driver.restarts == REPEATS_PER_KIND
    assert [r.repeated for r in records] == ["same"] * REPEATS_PER_KIND + [""] * (len(records) - REPEATS_PER_KIND)
    assert sum(bool(r.saved) for r in records) == SAVED_PER_KIND


def test_many_failures_of_one_kind_do_not_use_up_the_repeats_of_another(session: Any) -> None:
    driver = Here(lambda: Counting(1))
    found = session(driver)
    for number in range(REPEATS + 5):
        found.check(case_of(number))
    assert found.check(case_of(0, "SUB")).repeated == "same"


def test_the_history_goes_on_when_a_failure_is_not_repeated(session: Any) -> None:
    found = session(Here(lambda: Counting(1)))
    for case in CASES[: REPEATS_PER_KIND + 2]:
        found.check(case)
    assert [case.origin.number for case in found._history] == [4, 5, 6]


def test_waived_and_poor(session: Any) -> None:
    waiver = Waiver("ADD-*", "known")
    found = session(Here(lambda: Counting(1)), waivers=Waivers([waiver], None))  # type: ignore[arg-type]
    record = found.check(CASES[0])
    assert (record.verdict, record.waiver, found.failed, waiver.covered) == ("FAIL", "known", 0, 1)
    batch = Batch(CASES[0].origin, (0, 1), lambda number: CASES[number])
    assert found.check_batch(batch) == []


def test_a_batch_gives_its_failing_records_and_leaves_out_what_is_done(session: Any) -> None:
    batch = Batch(CASES[0].origin, tuple(range(4)), lambda number: CASES[number])
    found = session(Here(lambda: Counting(1)), done=frozenset({f"{batch.id}-1", f"{batch.id}-2"}))
    assert [record.number for record in found.check_batch(batch)] == [0, 3]


def test_a_case_that_cannot_be_made(session: Any) -> None:
    def make(number: int) -> TestCase:
        raise NotApplicableError("no such rule") if number else ZeroDivisionError("oh")

    batch = Batch(CASES[0].origin, (0, 1), make)
    (record,) = session(Here(Counting)).check_batch(batch)
    assert (record.verdict, record.cause, record.id) == ("INTERNAL", "SUITE", f"{batch.id}-0")
    assert record.message == "the case could not be made: ZeroDivisionError: oh"


@pytest.mark.parametrize(
    ("level", "option", "case", "words"),
    [
        (FL2, None, {"level": FL4}, "needs level 1.3; the driver is tested at 1.1"),
        (FL4, FL2, {"level": FL4}, "needs level 1.3; the driver is tested at 1.1"),
        (FL4, None, {"until": FL4}, "the rule is lifted at level 1.3; the driver is of 1.3"),
    ],
)
def test_levels(session: Any, level: FeatureLevel, option: FeatureLevel | None, case: Any, words: str) -> None:
    found = session(Here(lambda: Counting(level=level)), options=Options("mydriver", option))
    record = found.check(replace(CASES[0], **case))
    assert (record.verdict, record.cause, record.message) == ("NOT_APPLICABLE", "LEVEL", words)


def test_traits(session: Any) -> None:
    found = session(Here(lambda: Counting(traits=Traits(validates=False))))
    negative = replace(CASES[0], steps=(Step(Action.QUERY, 0, Rejects((), "R", "")),))
    assert found.check(negative).cause == "TRAIT"
    burst = replace(CASES[0], steps=(replace(CASES[0].steps[2], mode=ExecutionMode.BURST),))
    record = found.check(burst)
    assert (record.verdict, record.message) == ("NOT_APPLICABLE", "the driver does not declare burst execution")


@pytest.mark.parametrize(
    ("facts", "isolated", "verdict", "cause"),
    [
        ({"version": ValueError("odd")}, False, "FAIL", "UNCLEAN_ERROR"),
        ({"version": UncleanError("ValueError", "odd")}, True, "FAIL", "UNCLEAN_ERROR"),
        ({"type": None}, False, "FAIL", "UNCLEAN_ERROR"),
        ({"level": 12}, False, "FAIL", "UNCLEAN_ERROR"),
        ({"type": DriverError(ErrorStatus.GENERAL_FAILURE, "no")}, True, "FAIL", "STATUS"),
        ({"type": DriverDied("killed by SIGABRT")}, True, "CRASH", "DIED"),
        ({"type": DriverTimedOut(3.0)}, True, "HANG", "SILENT"),
        ({"type": ValueError("a defect of ours")}, True, "INTERNAL", "SUITE"),
    ],
)
def test_a_driver_that_does_not_say_what_it_is(
    session: Any, tmp_path: Path, facts: dict[str, object], isolated: bool, verdict: str, cause: str
) -> None:
    found = session(Here(lambda: Counting(**facts), in_process=not isolated))
    assert found.header() == {"waivers_file": None}  # there is none
    records = [found.check(case) for case in CASES[:2]]
    assert [(r.verdict, r.cause, r.stage) for r in records] == [(verdict, cause, "start")] * 2
    assert len(read_run(tmp_path).records) == 2


def test_a_driver_that_does_not_start_again(session: Any) -> None:
    class Once(Here):
        def restart(self) -> None:
            raise UsageError("driver 'x' could not be loaded")

    record = session(Once(lambda: Counting(1))).check(CASES[0])
    assert (record.verdict, record.repeated) == ("FAIL", "same")


def test_the_plan_says_what_the_driver_says(session: Any) -> None:
    header = session(Here(lambda: Counting(level=FL4))).header()
    assert header["driver_version"] == "7"
    assert header["feature_level"] == 4
    assert header["traits"]["execution_modes"] == ["synchronous"]
    json.dumps(header)


def test_the_driver_s_own_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 9000 + b"the end\xff")
    assert driver_log(str(log)).endswith("the end\ufffd")
    assert len(driver_log(str(log))) <= 4096
    assert driver_log("echo out; echo err >&2").split() == ["out", "err"]
    assert driver_log("") == ""
