"""Steps beyond query, prepare, execute: what they ask of a device, in which order, and what comes of its answers."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest

from conformance.behaviour import batches
from conformance.execution import SCENARIOS
from conformance.quality_of_service import SCENARIOS as QOS
from harness import executing
from harness.case import Origin, Step, TestCase
from harness.expectations import Describes, Expected, Rejects, Returns
from harness.judge import judge
from harness.outcome import Outcome
from harness.run import run
from harness.steps import Action, Edit, Preparation, Releasing, Running, Thing
from harness.verdict import Cause, Verdict
from nnhal.device import ExecutionResult, OutputShape, PreparedModel, Timing
from nnhal.errors import DriverError
from nnhal.model import Model
from nnhal.types import FL2, FL8, ErrorStatus, ExecutionMode, FeatureLevel, OperandType
from reference_driver import ReferenceDevice
from tests.add_model import add_model

NONE, GF, IA = ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE, ErrorStatus.INVALID_ARGUMENT
MODEL = add_model((3,))
INPUTS = (np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32))
SUM = np.array([5.0, 7.0, 9.0])
DUE = Returns((Expected("sum", OperandType.TENSOR_FLOAT32, (3,), SUM, np.full(3, 1e-5)),))
START = (Step(Action.QUERY), Step(Action.PREPARE))
ASYNC, FENCED, BURST = ExecutionMode.ASYNCHRONOUS, ExecutionMode.FENCED, ExecutionMode.BURST


def case_of(*steps: Step) -> TestCase:
    return TestCase(Origin("X", "y", "behaviour", 0), (MODEL,), steps)


def tried(device: Any, *steps: Step, level: FeatureLevel = FL8) -> tuple[Outcome, Verdict, Cause, str]:
    case = case_of(*steps)
    outcome = run(case, device, in_process=True, level=level)
    judgement = judge(case, outcome)
    return outcome, judgement.verdict, judgement.cause, judgement.message


def execute(mode: ExecutionMode = ExecutionMode.SYNCHRONOUS, expect: Any = DUE, **rest: Any) -> Step:
    return Step(Action.EXECUTE, 0, expect, mode, INPUTS, **rest)


class Other(ReferenceDevice):
    """The reference driver with a prepared model that does something else."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self._kind = kind

    def prepare_model(self, model: Model, config: Any = None) -> PreparedModel:
        return self._kind(super().prepare_model(model))  # type: ignore[no-any-return]


class Passing(PreparedModel):
    """Hands everything on."""

    def __init__(self, inner: PreparedModel) -> None:
        self.inner = inner

    def execute_synchronously(self, request: Any, config: Any = None, deadline: Any = None) -> ExecutionResult:
        return self.inner.execute_synchronously(request, config, deadline)

    def execute(self, request: Any, callback: Any, config: Any = None, deadline: Any = None) -> None:
        self.inner.execute(request, callback, config, deadline)


# ---- asynchronous executions

REFUSED = Rejects((IA,), "R3", "no such pool")
BAD = Running(edits=(Edit("foreign_pool"),))


def test_a_refused_launch_without_notification() -> None:
    class Silent(Passing):
        def execute(self, request: Any, callback: Any, config: Any = None, deadline: Any = None) -> None:
            raise DriverError(IA, "no")

    found = tried(Other(Silent), *START, execute(ASYNC, REFUSED, how=BAD))
    assert found[1:3] == (Verdict.FAIL, Cause.MALFORMED)
    assert "the launch was refused (INVALID_ARGUMENT: no), and the callback not notified" in found[3]


def test_a_refused_launch_with_another_notification() -> None:
    class Elsewhere(Passing):
        def execute(self, request: Any, callback: Any, config: Any = None, deadline: Any = None) -> None:
            callback.notify(GF, ExecutionResult())
            raise DriverError(IA, "no")

    found = tried(Other(Elsewhere), *START, execute(ASYNC, REFUSED, how=BAD))
    assert "the callback got GENERAL_FAILURE" in found[3]


def test_a_callback_that_is_notified_twice() -> None:
    class Twice(Passing):
        def execute(self, request: Any, callback: Any, config: Any = None, deadline: Any = None) -> None:
            result = self.inner.execute_synchronously(request, config, deadline)
            callback.notify(NONE, result)
            callback.notify(NONE, result)

    found = tried(Other(Twice), *START, execute(ASYNC))
    assert found[1:3] == (Verdict.FAIL, Cause.MALFORMED)
    assert "notified 2 times, once is due" in found[3]


def test_an_error_with_shapes_or_timing() -> None:
    class Talkative(Passing):
        def execute(self, request: Any, callback: Any, config: Any = None, deadline: Any = None) -> None:
            callback.notify(GF, ExecutionResult(timing=Timing(1, 2)))

        def execute_synchronously(self, request: Any, config: Any = None, deadline: Any = None) -> ExecutionResult:
            raise DriverError(GF, "no", (OutputShape((3,)),))

    for mode in (ASYNC, ExecutionMode.SYNCHRONOUS):
        found = tried(Other(Talkative), *START, execute(mode, Rejects((), "X", "x")))
        assert found[1:3] == (Verdict.FAIL, Cause.MALFORMED)
        assert "none are due" in found[3]


# ---- levels


def test_levels_one_and_two_know_nothing_but_asynchronous_executions_without_timing() -> None:
    asked: list[str] = []

    class Old(Passing):
        def execute_synchronously(self, request: Any, config: Any = None, deadline: Any = None) -> ExecutionResult:
            asked.append("sync")
            return super().execute_synchronously(request, config, deadline)

        def execute(self, request: Any, callback: Any, config: Any = None, deadline: Any = None) -> None:
            asked.append(f"async {config.measure_timing}")
            super().execute(request, callback, config, deadline)

    assert tried(Other(Old), *START, execute(), level=FL2)[1] == Verdict.PASS
    assert tried(Other(Old), *START, execute())[1] == Verdict.PASS
    assert asked == ["async False", "sync"]


# ---- objects and threads


def test_what_stands_on_a_step_that_may_be_refused_is_left_out() -> None:
    missed = Returns(unless=(ErrorStatus.MISSED_DEADLINE_PERSISTENT,))
    prepare = Step(Action.PREPARE, 0, missed, how=Preparation(deadline=-1))
    outcome, verdict, *_ = tried(ReferenceDevice(), Step(Action.QUERY), prepare, execute())
    assert verdict == Verdict.PASS
    assert outcome.steps[2].skipped


def test_a_released_model_cannot_be_asked() -> None:
    release = Step(Action.RELEASE, how=Releasing(Thing.PREPARED))
    outcome, *_ = tried(ReferenceDevice(), *START, release, execute())
    assert [step.skipped for step in outcome.steps] == [False, False, False, True]


def test_threads_run_side_by_side() -> None:
    gate = threading.Barrier(3, timeout=5)

    class Meeting(Passing):
        def execute_synchronously(self, request: Any, config: Any = None, deadline: Any = None) -> ExecutionResult:
            gate.wait()  # passes only when three executions are under way at once
            return super().execute_synchronously(request, config, deadline)

    outcome, verdict, *_ = tried(Other(Meeting), *START, *(execute(thread=n + 1) for n in range(3)))
    assert verdict == Verdict.PASS
    assert [step.step for step in outcome.steps] == [0, 1, 2, 3, 4]


def test_fences_and_launches() -> None:
    launch = Step(Action.LAUNCH, 0, Returns(), FENCED, INPUTS, slot=1, how=Running(waits=(9,)))
    early = Step(Action.ASK, 0, Rejects((GF,), "H8", "too early"), FENCED, slot=1)
    steps = (*START, Step(Action.FENCE, slot=9), launch, early, Step(Action.SIGNAL, slot=9))
    assert tried(ReferenceDevice(), *steps, Step(Action.WAIT, 0, DUE, FENCED, slot=1))[1] == Verdict.PASS


def test_a_fence_that_says_something_else_than_the_report() -> None:
    class Lying(Passing):
        def execute_fenced(self, *given: Any) -> Any:
            from nnhal.device import FencedResult
            from nnhal.fences import SharedFence

            fence = SharedFence.create()
            fence.signal(GF)
            return fence, lambda: FencedResult(NONE)

    found = tried(Other(Lying), *START, execute(FENCED))
    assert found[1:3] == (Verdict.FAIL, Cause.MALFORMED)
    assert found[3] == "the fence ended with GENERAL_FAILURE, the report says NONE"


def test_a_description_asks_what_the_level_knows() -> None:
    ask = Step(Action.DESCRIBE, expect=Describes())
    outcome, verdict, *_ = tried(ReferenceDevice(level="2"), ask, level=FL2)
    found = outcome.steps[0].description
    assert verdict == Verdict.PASS
    assert found is not None
    assert (found.status, found.type, found.version, found.extensions, found.cache_files) == (0, None, None, None, None)
    outcome, *_ = tried(ReferenceDevice(), ask)
    found = outcome.steps[0].description
    assert found is not None
    assert (found.status, found.type) == (None, 2)


def test_a_restart_forgets_what_the_process_held() -> None:
    case = case_of(*START, Step(Action.RESTART), execute())
    fresh = ReferenceDevice()
    outcome = run(case, ReferenceDevice(), in_process=True, restart=lambda: fresh)
    assert outcome.steps[3].skipped


class Waiting(Passing):
    """Waits for the fences before it answers a launch, as a driver may."""

    def execute_fenced(
        self, request: Any, wait_for: Any, config: Any = None, deadline: Any = None, duration: Any = None
    ) -> Any:
        for fence in wait_for:
            fence.wait(None)
        return self.inner.execute_fenced(request, [], config)


class InOrder(Passing):
    """Does its work in the order of the calls: what waits for a fence holds up all that comes after it."""

    def __init__(self, inner: PreparedModel) -> None:
        super().__init__(inner)
        self._turn = threading.Lock()

    def execute_synchronously(self, request: Any, config: Any = None, deadline: Any = None) -> ExecutionResult:
        with self._turn:
            return super().execute_synchronously(request, config, deadline)

    def execute_fenced(
        self, request: Any, wait_for: Any, config: Any = None, deadline: Any = None, duration: Any = None
    ) -> Any:
        self._turn.acquire()  # until the fences have signalled
        fence, report = self.inner.execute_fenced(request, wait_for, config)

        def follow() -> None:
            with contextlib.suppress(DriverError):
                if fence is not None:
                    fence.wait(None)
            self._turn.release()

        threading.Thread(target=follow, daemon=True).start()
        return fence, report


@pytest.mark.parametrize("kind", [Waiting, InOrder])
@pytest.mark.parametrize("name", ["fence.first", "fence.both", "fence.chain", "fence.error", "duration.waits"])
def test_a_driver_may_wait_for_fences_before_it_answers_or_goes_on(
    name: str, kind: type[Passing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executing, "HELP_SECONDS", 0.05)
    (batch,) = batches([s for s in (*SCENARIOS, *QOS) if s.name == name], "ci", 0)
    case = batch.make(0)
    outcome = run(case, Other(kind), in_process=True)
    judgement = judge(case, outcome)
    assert (judgement.verdict, judgement.message) == (Verdict.PASS, "")
    assert outcome.steps[-1].status == NONE
