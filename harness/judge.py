"""Judges an outcome: a pure function of the case and what happened, with the words for a person."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.case import Step, TestCase
from harness.expectations import Agrees, Describes, MayReject, Rejects, Repeats, Returns, Short, Supports, Unspecified
from harness.judge_behaviour import (
    buffered,
    judge_agreement,
    judge_description,
    judge_repetition_of_query,
    judge_short,
    judge_support,
    judge_timing,
    observations,
)
from harness.judge_output import judge_output
from harness.outcome import Outcome, StepOutcome
from harness.row_order import in_due_order
from harness.steps import Action
from harness.verdict import Cause, Judgement, Verdict
from nnhal.types import ErrorStatus

RUNS = (Action.EXECUTE, Action.WAIT, Action.COPY_OUT)  # steps that give values
EXECUTION = Step(Action.EXECUTE)
INVALID = ErrorStatus.INVALID_ARGUMENT


def judge(case: TestCase, outcome: Outcome) -> Judgement:
    """The verdict on a case. Never looks anything up: all that is due is in the case."""
    if outcome.died is not None or outcome.silent is not None:
        return _ended(case, outcome)
    best = Judgement(Verdict.PASS)
    notes, numbers = observations(case, outcome)
    supported: dict[int, bool] = {}  # by model, as the driver answered
    for done in outcome.steps:
        step = case.steps[done.step]
        if done.skipped:
            continue
        if step.action == Action.QUERY and done.status == ErrorStatus.NONE:
            supported[step.model] = all(done.supported)
        found = _unclean(step, done) or _judge_step(case, outcome, done, supported.get(step.model, True))
        if found is not None:
            if found.verdict not in (Verdict.PASS, Verdict.POOR) or found.stage == "end":
                return found
            best = _worse(best, found)
        repeated = _judge_repetition(outcome, step, done)
        if repeated is not None:
            return repeated
    return replace(best, notes=notes, numbers=numbers)


def _worse(first: Judgement, second: Judgement) -> Judgement:
    """Of two steps that did not fail, what the case is to say: poor arithmetic first, then the larger error."""
    if (first.verdict == Verdict.POOR) != (second.verdict == Verdict.POOR):
        return first if first.verdict == Verdict.POOR else second
    return first if (first.error or 0.0) > (second.error or 0.0) else second


def _ended(case: TestCase, outcome: Outcome) -> Judgement:
    action = case.steps[outcome.at].action.value
    if outcome.died is not None:
        text = f"the driver's process {outcome.died} during {action}"
        return Judgement(Verdict.CRASH, Cause.DIED, action, text)
    text = f"no answer to {action} within {outcome.silent:g} s; the driver's process was stopped"
    return Judgement(Verdict.HANG, Cause.SILENT, action, text)


def _unclean(step: Step, done: StepOutcome) -> Judgement | None:
    """Faults that are faults whatever was due: guards, exceptions, malformed answers."""
    stage = step.action.value
    for kind, text in done.findings:
        return Judgement(Verdict.FAIL, Cause(kind), stage, text)
    if done.unclean:
        text = f"{stage} raised {done.unclean}; a driver answers with a result or raises DriverError"
        return Judgement(Verdict.FAIL, Cause.UNCLEAN_ERROR, stage, text)
    if done.malformed:
        return Judgement(Verdict.FAIL, Cause.MALFORMED, stage, done.malformed)
    return None


def _judge_step(case: TestCase, outcome: Outcome, done: StepOutcome, supported: bool) -> Judgement | None:
    step = case.steps[done.step]
    expect = step.expect
    if isinstance(expect, Unspecified):
        return None
    if isinstance(expect, MayReject):
        return Judgement(Verdict.PASS, stage="end") if done.status != ErrorStatus.NONE else None
    if isinstance(expect, Rejects):
        return _judge_rejection(step, expect, done)
    if isinstance(expect, (Returns, Short)) and done.status in expect.declines:
        text = f"{step.action.value} answered {_answer(done)}: the driver does not do this"
        return Judgement(Verdict.NOT_SUPPORTED, Cause.UNSUPPORTED, step.action.value, text)
    if isinstance(expect, Short):
        return judge_short(step, expect, done)
    if isinstance(expect, Agrees):
        return judge_agreement(case, outcome, step, expect, done)
    if isinstance(expect, Describes):
        return judge_description(case, outcome, expect, done)
    if isinstance(expect, Repeats):
        return judge_repetition_of_query(outcome, expect, done)
    if isinstance(expect, Supports):
        return judge_support(outcome, expect, done)
    return _judge_success(case, step, expect, done, supported)


def _judge_rejection(step: Step, expect: Rejects, done: StepOutcome) -> Judgement | None:
    due = " or ".join(status.name for status in expect.statuses) or "any status but NONE"
    stage = step.action.value
    if done.status == ErrorStatus.NONE:
        text = f"{stage} accepted what breaks {expect.rule} ({expect.text}); {due} is required"
        return Judgement(Verdict.FAIL, Cause.ACCEPTED, stage, text)
    if expect.statuses and done.status not in expect.statuses:
        assert done.status is not None
        text = f"{stage} answered {_answer(done)} to what breaks {expect.rule} ({expect.text}); {due} is required"
        return Judgement(Verdict.FAIL, Cause.STATUS, stage, text)
    return Judgement(Verdict.PASS, stage=stage)


def _answer(done: StepOutcome) -> str:
    name = done.status.name if done.status is not None else "nothing"
    return f"{name} ({done.message})" if done.message else name


def _judge_success(case: TestCase, step: Step, expect: Returns, done: StepOutcome, supported: bool) -> Judgement | None:
    stage = step.action.value
    if done.status in expect.unless:
        return Judgement(Verdict.PASS, stage=stage)
    if done.status != ErrorStatus.NONE:
        if case.negative and step.action == Action.PREPARE and not supported:
            return None  # a valid twin that is not supported need not be prepared
        twin = case.negative and case.origin.kind != "behaviour"
        what = "the valid twin of this model" if twin else "a valid model"
        text = f"{stage} of {what} answered {_answer(done)}; NONE is required"
        return Judgement(Verdict.FAIL, Cause.REFUSED if case.negative else Cause.STATUS, stage, text)
    if step.action == Action.QUERY and not supported:
        if case.negative and _breach_at_validation(case):
            return None  # validity comes before support
        text = "; ".join(sorted({reason for reason in done.reasons if reason})) or "the driver gives no reason"
        return Judgement(Verdict.NOT_SUPPORTED, Cause.UNSUPPORTED, stage, text)
    return judge_execution(expect, done, step) if step.action in RUNS else None


def _breach_at_validation(case: TestCase) -> bool:
    return any(
        isinstance(s.expect, Rejects)
        and (s.action == Action.QUERY or (s.action == Action.PREPARE and INVALID in s.expect.statuses))
        for s in case.steps
    )


def judge_execution(expect: Returns, done: StepOutcome, step: Step = EXECUTION) -> Judgement:
    """Shapes, timing, then every element of every output."""
    stage = step.action.value
    timing = judge_timing(step, done)
    if timing:
        return Judgement(Verdict.FAIL, Cause.TIMING, stage, timing)
    judgements = []
    elsewhere = buffered(step)
    outputs = in_due_order(expect, done.outputs) if expect.groups else done.outputs
    for position, due in enumerate(expect.outputs):
        shape = done.shapes[position]
        if shape != due.shape:
            text = f"output '{due.name}' has dimensions {list(shape)}, {list(due.shape)} are due"
            return Judgement(Verdict.FAIL, Cause.SHAPE, stage, text)
        got = outputs[position]
        if position in elsewhere:
            continue
        if got is None:
            text = f"output '{due.name}' is in no place of the suite's"
            return Judgement(Verdict.INTERNAL, Cause.SUITE, stage, text)
        judgements.append(judge_output(due, got))
    if not judgements:
        return Judgement(Verdict.PASS, stage=stage)
    order = [Verdict.FAIL, Verdict.POOR, Verdict.PASS]
    worst = min(judgements, key=lambda j: (order.index(j.verdict), -(j.error or 0.0)))
    ulps = [j.ulp for j in judgements if j.ulp is not None]
    sizes = [due.value.size for position, due in enumerate(expect.outputs) if position not in elsewhere]
    masked = sum(j.masked * size for j, size in zip(judgements, sizes, strict=True)) / max(sum(sizes), 1)
    error = max(j.error or 0.0 for j in judgements)
    return replace(worst, error=error, ulp=max(ulps, default=None), masked=masked)


def _judge_repetition(outcome: Outcome, step: Step, done: StepOutcome) -> Judgement | None:
    """Outputs that must not be those of an earlier step."""
    if not isinstance(step.expect, Returns) or done.status != ErrorStatus.NONE:
        return None
    for position, due in enumerate(step.expect.outputs):
        earlier = [o for o in outcome.steps if due.differs_from and o.step == done.step - due.differs_from]
        for other in earlier:
            before, now = other.outputs[position : position + 1], done.outputs[position]
            if before and before[0] is not None and now is not None and np.array_equal(before[0], now):
                text = f"output '{due.name}' is that of an execution with other seeds: no chance makes them alike"
                return Judgement(Verdict.FAIL, Cause.VALUE, step.action.value, text)
    return None
