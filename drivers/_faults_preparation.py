"""Faults of preparing: what is accepted, what is refused, deadlines, priorities, models that live together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import cast

from drivers._faults import Fault, Faults, Preparing, Query, Run, State
from drivers._faults_memory import Outputs
from drivers._faults_process import accept_model, accept_query
from nnhal.device import ExecutionResult, PreparedModel
from nnhal.errors import DriverError
from nnhal.model import Model
from nnhal.types import (
    ErrorStatus,
    ExecutionPreference,
    FeatureLevel,
    OperandType,
    Priority,
)
from nnhal.validate import MODEL_RULES, violations

BY_LEVEL = ("G21", "G23")  # rules whose breach is a matter of the level
PREPARATION, MODELS = "Preparation", "Model rules"
EXECUTION = "Execution"
DEADLINE = "a deadline that is past or cannot be met gives MISSED_DEADLINE_TRANSIENT or _PERSISTENT"
ALIVE = "several prepared models work side by side and are let go in any order"

Ready = Callable[[], PreparedModel]
Asked = Callable[[], list[bool]]
Go = Callable[[], ExecutionResult]


def _skips(pattern: str) -> tuple[Callable[[Query, Asked], list[bool]], Callable[[Preparing, Ready], PreparedModel]]:
    """Takes models in which the first thing that is wrong breaks a certain rule."""

    def only(model: Model, level: FeatureLevel) -> bool:
        found = violations(model, level)
        return bool(found) and fnmatchcase(found[0].label, pattern)

    def query(occasion: Query, go: Asked) -> list[bool]:
        return accept_query(occasion, go) if only(occasion.model, occasion.state.inner.feature_level) else go()

    def prepare(occasion: Preparing, go: Ready) -> PreparedModel:
        return accept_model(occasion, go) if only(occasion.model, occasion.state.inner.feature_level) else go()

    return query, prepare


def _accepts(label: str) -> Fault:
    query, prepare = _skips(label)
    catch, breaks = ("VERSIONS-*", f"*{label}") if label in BY_LEVEL else ("*-mutated-*", f"*:{label}")
    rule = MODEL_RULES[label]
    text = f"does not check that {rule}"
    return Fault(text, "FAIL", "ACCEPTED", MODELS, rule, catch, breaks, query=query, prepare=prepare)


def _config(wrong: Callable[[Preparing], bool], **right: object) -> Callable[[Preparing, Ready], PreparedModel]:
    """Puts something right in place of what should be refused."""

    def hook(occasion: Preparing, go: Ready) -> PreparedModel:
        if wrong(occasion):
            occasion.config = replace(occasion.config, **right)  # type: ignore[arg-type]
        return go()

    return hook


def _past(occasion: Preparing) -> bool:
    deadline = occasion.config.deadline
    return deadline is not None and deadline <= time.monotonic_ns()


def _refuses(
    when: Callable[[Preparing], bool], status: ErrorStatus, text: str
) -> Callable[[Preparing, Ready], PreparedModel]:
    def hook(occasion: Preparing, go: Ready) -> PreparedModel:
        if when(occasion):
            raise DriverError(status, text)
        return go()

    return hook


def _late(occasion: Preparing, go: Ready) -> PreparedModel:
    """Prepares in spite of a past deadline, badly."""
    late = _past(occasion)
    occasion.config = replace(occasion.config, deadline=None)
    made = go()
    if late:
        occasion.state.kept["bad", id(made)] = made
    return made


def _kept_bad(run: Run, go: Go) -> ExecutionResult:
    result = go()
    if ("bad", id(run.prepared)) in run.state.kept:
        run.outputs.damage()
    return result


def _sticky(occasion: Preparing, go: Ready) -> PreparedModel:
    """A deadline once missed is missed for ever."""
    state = occasion.state
    if state.kept.get("missed") or _past(occasion):
        state.kept["missed"] = True
        raise DriverError(ErrorStatus.MISSED_DEADLINE_PERSISTENT, "a deadline was missed before")
    return go()


def _null(occasion: Preparing, go: Ready) -> PreparedModel:
    go()
    return cast(PreparedModel, None)


def _twice(occasion: Preparing, go: Ready) -> PreparedModel:
    if occasion.state.count(("prepared", occasion.model)) > 1:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "this model is prepared already")
    return go()


def _last_wins(occasion: Preparing, go: Ready) -> PreparedModel:
    occasion.state.kept["newest"] = occasion.model
    return go()


def _older(run: Run, go: Go) -> ExecutionResult:
    """All models but the one that was prepared last use its memory."""
    result = go()
    if run.state.kept.get("newest") is not run.model:
        run.outputs.damage()
    return result


def _after_release(run: Run, go: Go) -> ExecutionResult:
    result = go()
    if run.state.kept.get("released"):
        run.outputs.damage()
    return result


def _released(state: State, go: Callable[[], None]) -> None:
    state.kept["released"] = True
    go()


def _forgets_priority(priority: int) -> Callable[[Preparing, Ready], PreparedModel]:
    def hook(occasion: Preparing, go: Ready) -> PreparedModel:
        made = go()
        if int(occasion.config.priority) == priority:
            occasion.state.kept["bad", id(made)] = made
        return made

    return hook


def _forgets_preference(occasion: Preparing, go: Ready) -> PreparedModel:
    made = go()
    if occasion.config.preference == ExecutionPreference.LOW_POWER:
        occasion.state.kept["bad", id(made)] = made
    return made


def _side_by_side(occasion: Preparing, go: Ready) -> PreparedModel:
    """Cannot prepare two models at once."""
    state = occasion.state
    if not state.lock.acquire(blocking=False):
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "another model is being prepared")
    try:
        time.sleep(0.02)
        return go()
    finally:
        state.lock.release()


def _support_first(occasion: Query, go: Asked) -> list[bool]:
    """Looks at support before validity: what it would not run anyway is answered with False."""
    try:
        return go()
    except DriverError:
        return [False] * len(occasion.model.main.operations)


def _cannot(occasion: Preparing, go: Ready) -> PreparedModel:
    try:
        return go()
    except DriverError as error:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, f"cannot be prepared: {error.message}") from None


def _promises(kind: int) -> Callable[[Preparing, Ready], PreparedModel]:
    """Has claimed to support a type that it cannot prepare."""

    def hook(occasion: Preparing, go: Ready) -> PreparedModel:
        if any(operand.type == kind for operand in occasion.model.main.operands):
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "there are no kernels for this type")
        return go()

    return hook


def _holds(model: Model | None, kinds: tuple[int, ...]) -> bool:
    return model is not None and any(operand.type in kinds for operand in model.main.operands)


def _no_signed(occasion: Query, go: Asked) -> list[bool]:
    answer = go()
    return [False] * len(answer) if _holds(occasion.model, (OperandType.TENSOR_QUANT8_ASYMM_SIGNED,)) else answer


def _signed_off(run: Run, go: Go) -> ExecutionResult:
    """Signed results are as many as 16 steps off the unsigned ones."""
    result = go()
    outputs = Outputs(run.model, run.request)
    for view, kind in zip(outputs.views, outputs.kinds, strict=True):
        if kind == OperandType.TENSOR_QUANT8_ASYMM_SIGNED:
            view[:] = bytes((value + 16 if value <= 127 - 16 or value >= 128 else value - 16) & 0xFF for value in view)
    return result


def _of_kind(*kinds: int) -> Callable[[Run, Go], ExecutionResult]:
    def hook(run: Run, go: Go) -> ExecutionResult:
        result = go()
        run.outputs.damage(kinds)
        return result

    return hook


FAULTS: Faults = {
    **{f"accept.{label}": _accepts(label) for label in MODEL_RULES if label not in ("G0",)},
    "accept.signature": Fault(
        "does not look at the number and types of an operation's operands", "FAIL", "ACCEPTED", MODELS,
        "an operation's operands are as its signature says, at the device's version", "ADD-*-mutated-*",
        "*.SIGNATURE", query=_skips("*.SIGNATURE")[0], prepare=_skips("*.SIGNATURE")[1],
    ),
    "accept.rank": Fault(
        "does not look at the ranks of operands", "FAIL", "ACCEPTED", MODELS,
        "the rules of single operations are checked", "ADD-*-broken-*", "RANK_*", query=_skips("*.RANK_*")[0],
        prepare=_skips("*.RANK_*")[1],
    ),
    "accept.query": Fault(
        "accepts invalid models in the support query alone", "FAIL", "ACCEPTED", PREPARATION,
        "every method that takes a model validates it first", "ADD-*-mutated-*", always=True, query=accept_query,
    ),
    "accept.prepare": Fault(
        "accepts invalid models in the preparation alone", "FAIL", "ACCEPTED", PREPARATION,
        "every method that takes a model validates it first", "ADD-*-mutated-*", always=True, prepare=accept_model,
    ),
    "accept.support_first": Fault(
        "answers an invalid model with \"not supported\"", "FAIL", "ACCEPTED", "Driver tests: validation",
        "validity comes before support", "ADD-*-mutated-*", query=_support_first, prepare=_cannot,
    ),
    "accept.cycle": Fault(
        "accepts operations that read one another's results in a circle", "FAIL", "ACCEPTED", "Driver tests: basic",
        "a cyclic model is refused by the support query and not prepared", "*-mutated-*", "circle:*",
        query=_skips("G18")[0], prepare=_skips("G18")[1],
    ),
    "accept.general_failure": Fault(
        "answers an invalid model with GENERAL_FAILURE at preparation", "FAIL", "STATUS", PREPARATION,
        "an invalid model is answered with INVALID_ARGUMENT", "ADD-*-mutated-*", prepare=_cannot,
    ),
    "accept.preference": Fault(
        "accepts execution preferences that there are none of", "FAIL", "ACCEPTED", PREPARATION,
        "an invalid preference is answered with INVALID_ARGUMENT", "*-configured-*", "preference",
        prepare=_config(
            lambda o: o.config.preference not in list(ExecutionPreference),
            preference=ExecutionPreference.FAST_SINGLE_ANSWER,
        ),
    ),
    "accept.priority": Fault(
        "accepts priorities that there are none of", "FAIL", "ACCEPTED", PREPARATION,
        "an invalid priority is answered with INVALID_ARGUMENT", "*-configured-*", "priority",
        prepare=_config(lambda o: o.config.priority not in list(Priority), priority=Priority.MEDIUM),
    ),
    "prepare.null": Fault(
        "gives no prepared model with NONE", "FAIL", "UNCLEAN_ERROR", PREPARATION,
        "NONE comes with a prepared model", "EXECUTION-mode.*", prepare=_null,
    ),
    "prepare.once": Fault(
        "refuses to prepare a model a second time", "FAIL", "STATUS", PREPARATION,
        "what the support query promised can be prepared", "EXECUTION-prepared.twice-*", prepare=_twice,
    ),
    "prepare.alone": Fault(
        "cannot prepare two models at once", "FAIL", "STATUS", PREPARATION,
        "any number of preparations may go on at once", "EXECUTION-prepared.at.once-*", prepare=_side_by_side,
    ),
    "prepare.type": Fault(
        "claims a type that it cannot prepare", "FAIL", "STATUS", PREPARATION,
        "all true in the support query is a promise to prepare", "ADD-quant8_asymm-sync-drawn-*",
        prepare=_promises(OperandType.TENSOR_QUANT8_ASYMM),
    ),
    "prepare.newest": Fault(
        "gives all models the memory of the one prepared last", "FAIL", "VALUE", EXECUTION, ALIVE,
        "EXECUTION-many.models-*", prepare=_last_wins, run=_older,
    ),
    "prepare.released": Fault(
        "computes wrongly once another prepared model is let go", "FAIL", "VALUE", EXECUTION, ALIVE,
        "EXECUTION-many.models-*", close=_released, run=_after_release,
    ),
    "prepare.shared": Fault(
        "lets models that were prepared twice go together", "FAIL", "VALUE", EXECUTION, ALIVE,
        "EXECUTION-prepared.twice-*", close=_released, run=_after_release,
    ),
    "prepare.deadline.invalid": Fault(
        "answers INVALID_ARGUMENT to a deadline that is past", "FAIL", "STATUS", PREPARATION, DEADLINE,
        "QOS-prepared.past-*", prepare=_refuses(_past, ErrorStatus.INVALID_ARGUMENT, "the deadline is past"),
    ),
    "prepare.deadline.failure": Fault(
        "answers GENERAL_FAILURE to a deadline that is past", "FAIL", "STATUS", PREPARATION, DEADLINE,
        "QOS-prepared.now-*", prepare=_refuses(_past, ErrorStatus.GENERAL_FAILURE, "too late"),
    ),
    "prepare.deadline.generous": Fault(
        "misses every deadline", "FAIL", "STATUS", PREPARATION, DEADLINE, "QOS-prepared.generous-*",
        prepare=_refuses(lambda o: o.config.deadline is not None, ErrorStatus.MISSED_DEADLINE_TRANSIENT, "missed"),
    ),
    "prepare.deadline.half": Fault(
        "gives half a prepared model when the deadline is past", "FAIL", "VALUE", PREPARATION,
        "a deadline that is met anyway gives a working model", "QOS-prepared.past-*", prepare=_late, run=_kept_bad,
    ),
    "prepare.deadline.sticky": Fault(
        "misses the deadlines of all preparations after one", "FAIL", "STATUS", PREPARATION,
        "a deadline concerns one preparation", "QOS-prepared.past-*", prepare=_sticky,
    ),
    "prepare.priority": Fault(
        "computes wrongly at low priority", "FAIL", "VALUE", PREPARATION, "a priority changes no result",
        "QOS-priorities-*", prepare=_forgets_priority(Priority.LOW), run=_kept_bad,
    ),
    "prepare.priority.refused": Fault(
        "does not know the priority HIGH", "FAIL", "STATUS", PREPARATION, "each priority is taken",
        "QOS-priorities-*",
        prepare=_refuses(lambda o: o.config.priority == Priority.HIGH, ErrorStatus.INVALID_ARGUMENT, "too high"),
    ),
    "prepare.preference": Fault(
        "computes wrongly to save power", "FAIL", "VALUE", PREPARATION, "a preference changes no result",
        "QOS-preferences-*", prepare=_forgets_preference, run=_kept_bad,
    ),
    "prepare.preference.refused": Fault(
        "does not know the preference SUSTAINED_SPEED", "FAIL", "STATUS", PREPARATION, "each preference is taken",
        "QOS-preferences-*",
        prepare=_refuses(
            lambda o: o.config.preference == ExecutionPreference.SUSTAINED_SPEED, ErrorStatus.INVALID_ARGUMENT, "no"
        ),
    ),
    "coupling.support": Fault(
        "supports unsigned 8-bit and not signed 8-bit", "FAIL", "SUPPORT", "Driver tests: quantization coupling",
        "what is supported with unsigned 8-bit is supported with signed 8-bit", "LOGISTIC-*-signed-*", query=_no_signed,
    ),
    "coupling.values": Fault(
        "gives other results with signed 8-bit than with unsigned", "FAIL", "INCONSISTENT",
        "Driver tests: quantization coupling", "the signed results are the unsigned ones less 128",
        "LOGISTIC-*-signed-*", run=_signed_off,
    ),
    "wrong.bool": Fault(
        "gets booleans wrong", "FAIL", "VALUE", "Driver tests: generated",
        "booleans and scalars are compared like tensors", "LESS-float32-sync-drawn-*",
        run=_of_kind(OperandType.TENSOR_BOOL8, OperandType.BOOL),
    ),
    "wrong.int32": Fault(
        "gets whole numbers wrong", "FAIL", "VALUE", "Driver tests: generated", "integers are exact",
        "ADD-int32-sync-drawn-*", run=_of_kind(OperandType.TENSOR_INT32),
    ),
}  # fmt: skip
