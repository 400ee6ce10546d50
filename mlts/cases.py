"""The benchmark as pytest items: a batch for each model and aspect, of one case that a run of the model settles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

from harness.batch import Batch, NotApplicableError, SettledError
from harness.case import TestCase
from harness.session import Session
from mlts.folder import LOG_KEPT, MEASUREMENTS, SUITE, append, origin_of
from mlts.judging import ASPECTS
from mlts.packages import cache_folder
from mlts.plan import PLANS, Plan, Tier
from mlts.rows import row_of
from mlts.running import DEADLINE, Outcome, Setting, run_subject
from mlts.subjects import Named, evaluation, listed, subject_of
from nnhal.errors import UsageError

BASELINE = "litert,resolver=auto,threads={threads}"
PLAN_OF = {"ci": "smoke", "quick": "smoke", "full": "short", "nightly": "mlts"}
_found: dict[tuple[str, str, str], Outcome | UsageError] = {}


def plan_for(profile: str) -> Plan:
    """The plan that a profile of pytest has."""
    return PLANS[PLAN_OF[profile]]


def batches(profile: str) -> Iterator[tuple[Named, Batch]]:
    """A batch for each model and aspect; in the short profiles of the models for which nothing has to be fetched."""
    for named in listed():
        if plan_for(profile).name == "smoke" and not named.quick:
            continue
        for aspect in ASPECTS:
            yield named, Batch(origin_of(named.name, Tier().name, aspect), (0,), _unmade)


def _unmade(number: int) -> NoReturn:
    raise NotApplicableError("only a test that has the driver can run it")


def performing(session: Session, batch: Batch, profile: str) -> Batch:
    """The batch with what runs it on a session's driver."""

    def make(number: int) -> TestCase:
        raise _performed(session, batch, plan_for(profile))

    return replace(batch, make=make)


def _performed(session: Session, batch: Batch, plan: Plan) -> SettledError:
    """Runs a model, unless another aspect has done so; gives what settles the case.

    Raises:
        NotApplicableError: the driver or the model cannot be had here.
    """
    options = session.options
    if session.driver.in_process or options.selection[:1] != (f"--driver={options.driver}",):
        raise NotApplicableError("the benchmark starts the driver's processes itself")
    origin = batch.origin
    (named,) = [one for one in listed() if origin_of(one.name, Tier().name, origin.kind).batch == origin.batch]
    key = options.driver, named.name, plan.name
    if key not in _found:
        _found[key] = _run(session, named, plan)
    found = _found[key]
    if isinstance(found, UsageError):
        raise NotApplicableError(str(found))
    again = f"alone: python -m {SUITE} --driver={options.driver} --only={named.name} --preset={plan.name}"
    judgement = found.judgements[origin.kind]
    judgement = replace(judgement, notes=(*judgement.notes, again))
    return SettledError(judgement, log=found.log[-LOG_KEPT:] if judgement.message else "", seconds=found.seconds)


def _run(session: Session, named: Named, plan: Plan) -> Outcome | UsageError:
    cache, log = cache_folder(), (session.folder / "driver.log").absolute()
    try:
        subject = subject_of(named, cache, plan.samples, relaxed=True)
        setting = Setting(session.options.driver, BASELINE, plan, Tier(), cache, log, deadline=DEADLINE)
        found = run_subject(subject, setting, evaluation(named))
    except UsageError as error:  # a package that cannot be fetched
        return error
    append(session.folder / MEASUREMENTS, row_of(named, subject, Tier(), found))
    return found
