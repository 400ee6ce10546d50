"""Running a case: which questions are put in which order, what ends them, and what becomes of every kind of answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import harness.executing
from harness.case import Origin, Step, TestCase
from harness.expectations import Expectation, Expected, MayReject, Rejects, Returns, Unspecified
from harness.judge import judge
from harness.outcome import Outcome
from harness.run import run
from harness.steps import Action
from nnhal.buffers import read_inputs, write_outputs
from nnhal.device import (
    Burst,
    Device,
    Execution,
    ExecutionResult,
    FencedResult,
    OutputShape,
    PreparedModel,
    Timing,
)
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError, invalid
from nnhal.fences import SharedFence
from nnhal.model import Model
from nnhal.types import ErrorStatus, ExecutionMode, OperandType
from tests.add_model import add_model

NONE, GENERAL = ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE
INPUTS = (np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32))
SUM = np.array([5, 7, 9], np.float32)
MODEL, TWIN = add_model((3,)), add_model((3,))
REFUSE = Rejects((ErrorStatus.INVALID_ARGUMENT,), "RULE", "a rule")


class Adder(PreparedModel):
    """Adds, in every mode; `instead` stands for the result of an execution where given."""

    def __init__(self, device: Scripted, model: Model) -> None:
        self.device, self.model = device, model

    def execute_synchronously(self, request: Any, config: Any = None, deadline: Any = None) -> ExecutionResult:
        self.device.asked.append("execute")
        a, b = read_inputs(self.model, request)
        assert a is not None
        assert b is not None
        result = write_outputs(self.model, request, [a + b])
        return self.device.instead(request) if self.device.instead else result

    def execute(self, request: Any, callback: Any, config: Any = None, deadline: Any = None) -> None:
        if self.device.notify:
            thread = threading.Thread(
                target=lambda: callback.notify(self.device.notify, self.execute_synchronously(request))
            )
            thread.start()
        elif self.device.notify is not None:
            callback.notify(NONE, self.execute_synchronously(request))

    def execute_fenced(
        self, request: Any, wait_for: Any, config: Any = None, deadline: Any = None, duration: Any = None
    ) -> Any:
        fence = SharedFence.create()
        self.execute_synchronously(request)
        fence.signal(NONE)
        status = self.device.notify if self.device.notify is not None else NONE
        return fence, lambda: FencedResult(status, Timing(1, 2), Timing(1, 2))

    def configure_execution_burst(self) -> Burst:
        prepared = self

        class Once(Burst):
            def execute_synchronously(
                self, request: Any, memory_tokens: Any, config: Any = None, deadline: Any = None
            ) -> ExecutionResult:
                assert list(memory_tokens) == [-1, -1]
                return prepared.execute_synchronously(request)

            def release_memory_resource(self, token: int) -> None: ...

            def close(self) -> None:
                prepared.device.asked.append("end of burst")

        return Once()

    def create_reusable_execution(self, request: Any, config: Any = None) -> Execution:
        prepared = self

        class Again(Execution):
            def execute_synchronously(self, deadline: Any = None) -> ExecutionResult:
                return prepared.execute_synchronously(request)

        return Again()

    def close(self) -> None:
        self.device.asked.append("close")
        if self.device.close_error:
            raise self.device.close_error


class Scripted(Device):
    """A device that answers as it is told, and notes what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.query: Any = answers.get("query", [True])
        self.prepare: Any = answers.get("prepare")
        self.instead: Callable[[Any], Any] | None = answers.get("instead")
        self.reasons: Any = answers.get("reasons", ["why not"])
        self.notify: ErrorStatus | None = answers.get("notify", NONE)
        self.close_error: Exception | None = answers.get("close_error")
        self.asked: list[str] = []

    def get_supported_operations(self, model: Model) -> list[bool]:
        self.asked.append("query" if model is MODEL else "query twin")
        answer = self.query(model) if callable(self.query) else self.query
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    def explain_unsupported(self, model: Model) -> list[str | None]:
        return self.reasons  # type: ignore[no-any-return]

    def prepare_model(self, model: Model, config: Any = None) -> PreparedModel:
        self.asked.append("prepare" if model is MODEL else "prepare twin")
        if isinstance(self.prepare, Exception):
            raise self.prepare
        return Adder(self, model) if self.prepare is None else self.prepare(model)  # type: ignore[no-any-return]


def case_of(*steps: Step) -> TestCase:
    return TestCase(Origin("ADD", "float32", "drawn", 0), (MODEL, TWIN), steps)


def execute(expect: Expectation | None = None, mode: ExecutionMode = ExecutionMode.SYNCHRONOUS) -> Step:
    return Step(Action.EXECUTE, 0, expect or Returns(), mode, INPUTS)


QUERY, PREPARE = Step(Action.QUERY), Step(Action.PREPARE)
POSITIVE = case_of(QUERY, PREPARE, execute())
NEGATIVE = case_of(
    Step(Action.QUERY, 1), Step(Action.PREPARE, 1), Step(Action.QUERY, 0, REFUSE), Step(Action.PREPARE, 0, REFUSE)
)
UNEXECUTABLE = case_of(
    Step(Action.QUERY, 1),
    Step(Action.PREPARE, 1),
    Step(Action.QUERY, 0, Unspecified()),
    Step(Action.PREPARE, 0, MayReject("RULE", "a rule")),
    execute(Rejects((), "RULE", "a rule")),
)


def tried(device: Scripted, case: TestCase = POSITIVE, in_process: bool = True) -> Outcome:
    return run(case, device, in_process=in_process)


def statuses(outcome: Outcome) -> list[ErrorStatus | None]:
    return [step.status for step in outcome.steps]


# ---- the order of questions


def test_a_valid_model_is_asked_for_prepared_and_executed() -> None:
    device = Scripted()
    found = tried(device)
    assert device.asked == ["query", "prepare", "execute", "close"]
    assert statuses(found) == [NONE, NONE, NONE]
    np.testing.assert_array_equal(found.steps[2].outputs[0], SUM)
    assert found.steps[2].shapes == ((3,),)
    assert found.steps[0].supported == (True,)


def test_not_supported_ends_the_case_with_the_reasons() -> None:
    device = Scripted(query=[False])
    found = tried(device)
    assert device.asked == ["query"]
    assert found.steps[0].reasons == ("why not",)


def test_an_error_ends_a_valid_model() -> None:
    device = Scripted(query=invalid("no"))
    found = tried(device)
    assert device.asked == ["query"]
    assert (found.steps[0].status, found.steps[0].message) == (ErrorStatus.INVALID_ARGUMENT, "no")
    device = Scripted(prepare=DriverError(GENERAL, "hot"))
    assert statuses(tried(device)) == [NONE, GENERAL]


def test_an_invalid_model_is_asked_on_whatever_its_twin_got() -> None:
    for query in ([True], [False], invalid("no")):
        device = Scripted(query=query)
        tried(device, NEGATIVE)
        assert device.asked[:4] == ["query twin", "prepare twin", "query", "prepare"]


def test_a_refusal_at_prepare_ends_what_may_be_refused_there() -> None:
    device = Scripted(prepare=lambda model: Adder(device, model))
    tried(device, UNEXECUTABLE)
    assert "execute" in device.asked
    device = Scripted(prepare=lambda model: _refuse() if model is MODEL else Adder(device, model))
    found = tried(device, UNEXECUTABLE)
    assert "execute" not in device.asked
    assert judge(UNEXECUTABLE, found).verdict.value == "PASS"


def _refuse() -> PreparedModel:
    raise invalid("refused")


def test_a_model_that_could_not_be_prepared_is_not_executed() -> None:
    case = case_of(Step(Action.PREPARE, 0, Unspecified()), execute(Unspecified()))
    device = Scripted(prepare=invalid("no"))
    found = tried(device, case)
    assert found.steps[1].skipped
    assert device.asked == ["prepare"]


# ---- answers that make no sense


@pytest.mark.parametrize("answer", [[], [True, True], None, True, "yes"])
def test_a_query_that_does_not_answer_for_each_operation(answer: object) -> None:
    found = tried(Scripted(query=answer))
    assert "booleans for 1 operations" in found.steps[0].malformed
    assert judge(POSITIVE, found).cause.value == "MALFORMED"


def test_a_preparation_that_gives_nothing() -> None:
    found = tried(Scripted(prepare=lambda model: None))
    assert found.steps[1].unclean == "TypeError: prepare_model answered NoneType, PreparedModel is due"
    assert judge(POSITIVE, found).cause.value == "UNCLEAN_ERROR"


def test_too_many_output_shapes() -> None:
    found = tried(Scripted(instead=lambda request: ExecutionResult((OutputShape((3,)), OutputShape((3,))))))
    assert found.steps[2].malformed == "2 output shapes for 1 outputs"


def test_no_output_shapes_stand_for_those_declared() -> None:
    assert tried(Scripted(instead=lambda request: ExecutionResult())).steps[2].shapes == ((3,),)


@pytest.mark.parametrize("shape", [(4,), (-1, -1), (1 << 40, 1 << 40), (0,), ()])
def test_shapes_that_do_not_fit_are_shapes_all_the_same(shape: tuple[int, ...]) -> None:
    found = tried(Scripted(instead=lambda request: ExecutionResult((OutputShape(shape),))))
    assert found.steps[2].shapes == (shape,)


def test_a_buffer_that_is_called_too_small() -> None:
    result = ExecutionResult((OutputShape((3,), False),), output_sufficient_size=False)
    found = tried(Scripted(instead=lambda request: result))
    assert found.steps[2].status == ErrorStatus.OUTPUT_INSUFFICIENT_SIZE


def test_outputs_of_unknown_size_get_the_room_that_is_due() -> None:
    model = add_model((3,))
    operands = (*model.main.operands[:3], replace(model.main.operands[3], dimensions=(0,)))
    unknown = replace(model, main=replace(model.main, operands=operands))
    due = Expected("output", OperandType.TENSOR_FLOAT32, (3,), SUM.astype(np.float64), np.zeros(3))
    for expect, status in ((Returns((due,)), NONE), (Returns(), ErrorStatus.OUTPUT_INSUFFICIENT_SIZE)):
        steps = (QUERY, PREPARE, execute(expect))
        found = tried(Scripted(), TestCase(POSITIVE.origin, (unknown,), steps))
        assert found.steps[2].status == status
        assert found.steps[2].shapes == (((3,),) if status == NONE else ())


# ---- exceptions


@pytest.mark.parametrize("where", ["query", "prepare"])
def test_any_exception_of_a_driver_in_this_process_is_its_own(where: str) -> None:
    found = tried(Scripted(**{where: ValueError("odd")}))
    last = found.steps[-1]
    assert last.status is None
    assert last.unclean == "ValueError: odd"
    assert "Traceback" in last.trace


def test_an_exception_in_an_execution_keeps_what_the_guards_saw() -> None:
    def instead(request: Any) -> Any:
        request.pools[0].view()[0] = 0
        raise UncleanError("KeyError", "3", "trace")

    found = tried(Scripted(instead=instead))
    assert found.steps[2].unclean == "KeyError: 3"
    assert found.steps[2].findings[0][0] == "OVERRUN"
    assert judge(POSITIVE, found).cause.value == "OVERRUN"


def test_an_exception_when_a_model_is_let_go() -> None:
    found = tried(Scripted(close_error=ValueError("late")))
    assert found.steps[-1].unclean == "ValueError: late (in close)"
    assert judge(POSITIVE, found).cause.value == "UNCLEAN_ERROR"


def test_an_unexpected_exception_elsewhere_is_the_suite_s() -> None:
    with pytest.raises(SuiteError, match="ValueError in the suite while a step ran: odd"):
        tried(Scripted(query=ValueError("odd")), in_process=False)


def test_death_and_silence_say_at_which_step() -> None:
    found = tried(Scripted(prepare=DriverDied("killed by SIGSEGV", "the log")), in_process=False)
    assert (found.died, found.at, found.log) == ("killed by SIGSEGV", 1, "the log")
    assert len(found.steps) == 1
    found = tried(Scripted(query=DriverTimedOut(3.0, "stacks")), in_process=False)
    assert (found.silent, found.at, found.log) == (3.0, 0, "stacks")


# ---- modes


@pytest.mark.parametrize("mode", list(ExecutionMode))
def test_every_mode_gives_the_same(mode: ExecutionMode) -> None:
    device = Scripted()
    found = tried(device, case_of(QUERY, PREPARE, execute(mode=mode)))
    np.testing.assert_array_equal(found.steps[2].outputs[0], SUM)
    assert ("end of burst" in device.asked) == (mode == ExecutionMode.BURST)


def test_the_status_of_a_notification_counts() -> None:
    case = case_of(QUERY, PREPARE, execute(mode=ExecutionMode.ASYNCHRONOUS))
    assert tried(Scripted(notify=GENERAL), case).steps[2].status == GENERAL
    fenced = case_of(QUERY, PREPARE, execute(mode=ExecutionMode.FENCED))
    assert tried(Scripted(notify=GENERAL), fenced).steps[2].status == GENERAL


def test_a_callback_that_never_comes_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.executing, "CALLBACK_SECONDS", 0.01)
    case = case_of(QUERY, PREPARE, execute(mode=ExecutionMode.ASYNCHRONOUS))
    found = tried(Scripted(notify=None), case)
    assert (found.silent, found.at) == (0.01, 2)
