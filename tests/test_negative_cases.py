"""The cases that must be refused: each operation meets each mutation, and drivers that refuse wrongly are caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from conformance import negative, request_mutations
from conformance.cases import TRIES
from conformance.execution import ASYNC, SINCE, WORDS
from conformance.mutations import BAD_SETTINGS, MUTATIONS
from conformance.negative import negative_batches
from conformance.profiles import PROFILES
from conformance.request_mutations import ALL, REQUEST_MUTATIONS, request_batches
from conformance.unconcerned import break_of, concerns, unconcerned
from harness.batch import Batch
from harness.case import TestCase
from harness.judge import judge
from harness.run import run
from harness.verdict import Cause, Judgement, Verdict
from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    Burst,
    CompilationConfig,
    Execution,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Fence,
    FencedResult,
    PreparedModel,
)
from nnhal.errors import DriverError
from nnhal.model import Model, Request
from nnhal.types import FL4, FL8, ErrorStatus, FeatureLevel
from opset import OPSET
from reference_driver import ReferenceDevice

T = TypeVar("T")
NEGATIVE = [b for b in negative_batches("quick", 0) if b.origin.kind != "broken"]
REQUESTS = list(request_batches("quick", 0))


def test_each_operation_meets_each_mutation_in_quick() -> None:
    met: dict[str, set[int]] = {}
    for batch in NEGATIVE:
        if batch.origin.kind == "mutated":
            met.setdefault(batch.origin.operation, set()).update(batch.numbers)
    assert set(met) == {d.name for d in OPSET.values()}
    for definition in OPSET.values():
        due = {n for n, m in enumerate(MUTATIONS) if m.concerns(definition.code, definition.info.since)}
        assert met[definition.name] == due
        left_out = {MUTATIONS[n].name for n in set(range(len(MUTATIONS))) - due}
        assert left_out <= {"branches", "consumers"}, "only what needs a branch, or consumers"


def test_mutations_find_something_in_every_kind_of_model() -> None:
    rng = random.Random("test_negative_cases")
    for batch in rng.sample(NEGATIVE, 30):
        for number in rng.sample(batch.numbers, min(6, len(batch.numbers))):
            batch.make(number)  # raises where there is no such case


def test_each_operation_meets_bad_settings_and_odd_numbers() -> None:
    for kind in ("configured", "odd"):
        batches = [b for b in NEGATIVE if b.origin.kind == kind]
        assert {b.origin.operation for b in batches} == {d.name for d in OPSET.values()}
        assert all(len(b.numbers) == 2 for b in batches)
    settings = {n for b in NEGATIVE if b.origin.kind == "configured" for n in b.numbers}
    assert settings == set(range(len(BAD_SETTINGS)))
    case = next(b for b in NEGATIVE if b.origin.kind == "configured").make(2)
    assert [step.how.priority for step in case.steps if step.how] == [-1]  # type: ignore[union-attr]
    assert case.level == FL4


def test_each_operation_meets_each_bad_request_in_quick() -> None:
    met: dict[str, set[int]] = {}
    for batch in REQUESTS:
        met.setdefault(batch.origin.operation, set()).update(batch.numbers)
    open_ = {request_mutations.BY_NAME[name] for name in ("open-input", "open-output")}
    for definition in OPSET.values():
        missing = set(range(len(REQUEST_MUTATIONS))) - met[definition.name]
        assert missing <= (open_ if definition.name in ("IF", "WHILE", "RANK") else set())
    modes = {(n, b.origin.mode) for b in REQUESTS for n in b.numbers}
    for number, mutation in enumerate(REQUEST_MUTATIONS):
        for mode in mutation.modes:
            assert (number, WORDS[mode]) in modes


def test_the_list_of_rules_that_do_not_concern_a_signature() -> None:
    for name, labels in unconcerned().items():
        definition = next(d for d in OPSET.values() if d.name == name)
        assert set(labels) <= {rule.label for rule in definition.rules}
        for signatures in labels.values():
            assert set(signatures) <= {s.id for s in definition.signatures}
    everything = [(d, s, r) for d in OPSET.values() for s in d.signatures for r in d.rules]
    for definition, signature, rule in random.Random("unconcerned").sample(everything, 60):
        found = break_of(definition, signature, rule, f"test/{definition.name}/{signature.id}", TRIES)
        assert (found is not None) == concerns(definition, signature, rule), (definition.name, signature.id, rule.label)


@pytest.mark.parametrize("name", ["QUANTIZED_LSTM", "QUANTIZED_16BIT_LSTM", "CONV_2D", "SVDF"])
def test_the_reference_survives_every_odd_number(name: str) -> None:
    """Scales from denormal to infinite: no fixed-point multiplier holds some of them."""
    found = [b for b in negative_batches("full", 0) if b.origin.kind == "odd" and b.origin.operation == name]
    for batch in found[-2:]:
        for number in batch.numbers:
            case = batch.make(number)
            judgement = judge(case, run(case, ReferenceDevice(), in_process=True))
            assert judgement.verdict == Verdict.PASS, (case.id, judgement.message)


# --- drivers that answer wrongly --------------------------------------------------------------------------------------


class Answering(PreparedModel):
    """A prepared model that changes what the reference answers when it refuses, in every way to execute."""

    def __init__(self, inner: PreparedModel, device: Wrong) -> None:
        self.inner = inner
        self.device = device

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        return self.device.refusing(lambda: self.inner.execute_synchronously(request, config, deadline))

    def execute(
        self,
        request: Request,
        callback: ExecutionCallback,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> None:
        hidden = ExecutionCallback()
        try:
            self.inner.execute(request, hidden, config, deadline)
        except DriverError as error:
            status = self.device.status(error)
            callback.notify(status, ExecutionResult())
            if status != ErrorStatus.NONE:
                raise DriverError(status) from None
            return
        found = hidden.wait(10)
        assert found is not None
        callback.notify(*found)

    def execute_fenced(
        self,
        request: Request,
        wait_for: list[Fence],  # type: ignore[override]
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
        duration: int | None = None,
    ) -> tuple[Fence | None, Callable[[], FencedResult]]:
        def work() -> tuple[Fence | None, Callable[[], FencedResult]]:
            return self.inner.execute_fenced(request, wait_for, config, deadline, duration)

        return self.device.refusing(work, (None, lambda: FencedResult(ErrorStatus.NONE)))

    def configure_execution_burst(self) -> Burst:
        return AnsweringBurst(self.inner.configure_execution_burst(), self.device)

    def create_reusable_execution(self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION) -> Execution:
        return AnsweringExecution(self, request, config)


class AnsweringBurst(Burst):
    def __init__(self, inner: Burst, device: Wrong) -> None:
        self.inner = inner
        self.device = device

    def execute_synchronously(
        self,
        request: Request,
        memory_tokens: list[int],  # type: ignore[override]
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        return self.device.refusing(lambda: self.inner.execute_synchronously(request, memory_tokens, config, deadline))

    def release_memory_resource(self, token: int) -> None:
        self.device.refusing(lambda: self.inner.release_memory_resource(token), None)


class AnsweringExecution(Execution):
    """Refuses each time it is to run, which is as good."""

    def __init__(self, prepared: Answering, request: Request, config: ExecutionConfig) -> None:
        self.prepared, self.request, self.config = prepared, request, config

    def execute_synchronously(self, deadline: int | None = None) -> ExecutionResult:
        return self.prepared.execute_synchronously(self.request, self.config, deadline)

    def execute_fenced(
        self,
        wait_for: list[Fence],  # type: ignore[override]
        deadline: int | None = None,
        duration: int | None = None,
    ) -> tuple[Fence | None, Callable[[], FencedResult]]:
        return self.prepared.execute_fenced(self.request, wait_for, self.config, deadline, duration)


class Wrong(ReferenceDevice):
    """The reference, which answers another status where it refuses; NONE is an answer too."""

    def __init__(self, instead: ErrorStatus, level: FeatureLevel) -> None:
        super().__init__(level=str(int(level)))
        self.instead = instead

    def status(self, error: DriverError) -> ErrorStatus:
        return self.instead if error.status == ErrorStatus.INVALID_ARGUMENT else error.status

    def refusing(self, work: Callable[[], T], otherwise: object = ExecutionResult()) -> T:
        try:
            return work()
        except DriverError as error:
            status = self.status(error)
            if status == ErrorStatus.NONE:
                return otherwise  # type: ignore[return-value]
            raise DriverError(status, error.message) from None

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        return Answering(super().prepare_model(model, config), self)


def bad_requests() -> list[tuple[TestCase, FeatureLevel]]:
    """Every mutation in every mode, of one operation, with a level that has both."""
    profile = replace(PROFILES["quick"], all_settings=True)
    definition = next(d for d in OPSET.values() if d.name == "ADD")
    found = []
    for batch in request_mutations._batches(definition, definition.signatures[0], 0, profile, 0):
        for number in batch.numbers:
            case = batch.make(number)
            found.append((case, FL4 if case.highest == FL4 else FL8))
    return found


BAD_REQUESTS = bad_requests()


def asked(case: TestCase, device: ReferenceDevice, level: FeatureLevel = FL8) -> Judgement:
    return judge(case, run(case, device, in_process=True, level=level))


def test_every_mutation_is_made_in_every_mode() -> None:
    found = {(case.origin.rule.split(":")[0], case.origin.mode) for case, _ in BAD_REQUESTS}
    assert found == {(m.name, WORDS[mode]) for m in REQUEST_MUTATIONS for mode in m.modes}


def test_the_reference_refuses_all_of_them_and_goes_on() -> None:
    for case, level in BAD_REQUESTS:
        judgement = asked(case, ReferenceDevice(level=str(int(level))), level)
        assert judgement.verdict == Verdict.PASS, (case.id, judgement.message)


@pytest.mark.parametrize("instead", [ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE], ids=lambda s: s.name)
def test_a_driver_with_another_answer_is_caught_in_every_mode(instead: ErrorStatus) -> None:
    for case, level in BAD_REQUESTS:
        judgement = asked(case, Wrong(instead, level), level)
        due = Cause.ACCEPTED if instead == ErrorStatus.NONE else Cause.STATUS
        assert (judgement.verdict, judgement.cause) == (Verdict.FAIL, due), (case.id, judgement)


class Spoiled(ReferenceDevice):
    """A prepared model that is of no use any more once it has refused a request."""

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        inner = super().prepare_model(model, config)
        before = inner.execute_synchronously
        spoiled: list[DriverError] = []

        def execute(
            request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
        ) -> ExecutionResult:
            if spoiled:
                return ExecutionResult()  # nothing is written
            try:
                return before(request, config, deadline)
            except DriverError as error:
                spoiled.append(error)
                raise

        inner.execute_synchronously = execute  # type: ignore[method-assign]
        return inner


def test_a_model_that_a_bad_request_spoils_is_caught() -> None:
    plain = [(c, n) for c, n in BAD_REQUESTS if c.origin.mode == "sync" and c.level <= FL8]
    assert len(plain) > 20
    for case, level in plain:
        judgement = asked(case, Spoiled(level=str(int(level))), level)
        assert (judgement.verdict, judgement.cause) == (Verdict.FAIL, Cause.VALUE), (case.id, judgement)


def batch_of(kind: str, operation: str) -> Batch:
    return next(b for b in NEGATIVE if b.origin.kind == kind and b.origin.operation == operation)


class Careless(ReferenceDevice):
    """Looks at no setting of preparation."""

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        return super().prepare_model(model)


def test_a_driver_that_looks_at_no_setting_is_caught() -> None:
    for operation in ("ADD", "CONV_2D", "SOFTMAX"):
        batch = batch_of("configured", operation)
        for number in batch.numbers:
            case = batch.make(number)
            assert asked(case, ReferenceDevice(), FL8).verdict == Verdict.PASS
            found = asked(case, Careless(), FL8)
            assert (found.verdict, found.cause, found.stage) == (Verdict.FAIL, Cause.ACCEPTED, "prepare")


class Unable(ReferenceDevice):
    """Supports nothing; `polite` says whether it looks at the settings all the same."""

    def __init__(self, polite: bool) -> None:
        super().__init__()
        self.polite = polite

    def get_supported_operations(self, model: Model) -> list[bool]:
        return [False] * len(super().get_supported_operations(model))

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        return super().prepare_model(model, config if self.polite else DEFAULT_COMPILATION)


def test_settings_come_before_support() -> None:
    case = batch_of("configured", "ADD").make(1)
    assert asked(case, Unable(polite=True)).verdict == Verdict.PASS
    assert asked(case, Unable(polite=False)).cause == Cause.STATUS


class Brittle(ReferenceDevice):
    """Takes infinity for impossible."""

    def get_supported_operations(self, model: Model) -> list[bool]:
        for operand in model.main.operands:
            int(operand.scale)
        return super().get_supported_operations(model)


def test_a_driver_that_an_infinite_scale_breaks_is_caught() -> None:
    definition = next(d for d in OPSET.values() if d.name == "RELU")
    signature = definition.signature("quant8_asymm")
    case = negative._odd(definition, signature, 0, replace(PROFILES["quick"], all_settings=True), 0).make(0)
    assert asked(case, ReferenceDevice(), FL8).verdict == Verdict.PASS
    assert asked(case, Brittle(), FL8).cause == Cause.UNCLEAN_ERROR


def test_modes_have_their_levels() -> None:
    for case, _ in BAD_REQUESTS:
        mode = next(m for m in ALL if WORDS[m] == case.origin.mode)
        assert case.level >= SINCE[mode]
        assert (case.highest == FL4) == (mode == ASYNC)
