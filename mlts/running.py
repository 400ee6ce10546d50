"""One model of the list on one driver in one tier: measured, judged, and what of it goes on record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.driver import Driver, open_driver
from harness.through import FrameworkDriver
from harness.verdict import Cause, Judgement, Verdict
from mlts.accumulation import Blame, accumulate
from mlts.accuracy import exact_outputs
from mlts.judging import ASPECTS, LATENCY, RESULTS, STABILITY, Judged, judge_latency, judge_results, judge_stability
from mlts.measuring import Bench, DamageError, Show
from mlts.plan import Plan, Tier
from mlts.statistics import Paired
from mlts.subject import Measured, Subject
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, UncleanError
from nnhal.loading import DriverSpec

DEADLINE = 60.0  # seconds for a call: large models on a slow driver


@dataclass(frozen=True)
class Setting:
    """What models are measured on.

    Attributes:
        driver: as `--driver` names it; `{threads}` stands for the tier's threads.
        baseline: the same for the baseline.
        cache: folder for what is computed once.
        log: file for the drivers' output.
        partitioned: operations that the driver does not run go to the reference, by the framework.
    """

    driver: str
    baseline: str
    plan: Plan
    tier: Tier
    cache: Path
    log: Path
    partitioned: bool = True
    deadline: float = DEADLINE

    def spec(self) -> DriverSpec:
        """The driver in this tier."""
        return DriverSpec.parse(self.driver.replace("{threads}", str(self.tier.threads)))

    def baseline_spec(self) -> DriverSpec:
        """The baseline in this tier."""
        return DriverSpec.parse(self.baseline.replace("{threads}", str(self.tier.threads)))


@dataclass
class Outcome:
    """What came of a model.

    Attributes:
        judgements: for each aspect.
        measured, baseline: None where it did not come so far.
        judged: of the results, with the errors behind it.
        paired: the latency's test.
        scores: by the model's evaluator, driver's and baseline's.
        blames: each operation's part in the error.
    """

    judgements: dict[str, Judgement]
    measured: Measured | None = None
    baseline: Measured | None = None
    judged: Judged | None = None
    paired: Paired | None = None
    scores: Mapping[str, Any] = field(default_factory=dict)
    blames: Sequence[Blame] = ()
    log: str = ""
    seconds: float = 0.0


Evaluate = Callable[[Subject, list[Any], list[Any]], Mapping[str, Any]]


def run_subject(
    subject: Subject,
    setting: Setting,
    evaluate: Evaluate = lambda subject, ours, theirs: {},
    show: Show = lambda words, share: None,
) -> Outcome:
    """Measures and judges a model; nothing that a driver does is raised.

    Raises:
        UsageError: driver or baseline cannot be loaded.
        SuiteError: the baseline failed.
    """
    begun = time.monotonic()
    with (
        setting.tier.held(),
        closing(_open(setting.baseline_spec(), setting)) as baseline,
        closing(_open(setting.spec(), setting)) as driver,
    ):
        try:
            found = _measured(subject, setting, driver, baseline, evaluate, show)
        except (DriverError, DriverDied, DriverTimedOut, UncleanError, DamageError) as error:
            found = Outcome(_all(_failure(error)))
        found.log = driver.log
    found.seconds = time.monotonic() - begun
    return found


def _open(spec: DriverSpec, setting: Setting) -> Driver:
    return open_driver(spec, log_path=setting.log, deadline=setting.deadline, memory=setting.tier.memory, spare=False)


def _all(judgement: Judgement) -> dict[str, Judgement]:
    return {aspect: replace(judgement, stage=judgement.stage or aspect) for aspect in ASPECTS}


def _failure(error: Exception) -> Judgement:
    if isinstance(error, DriverDied):
        return Judgement(Verdict.CRASH, Cause.DIED, message=str(error))
    if isinstance(error, DriverTimedOut):
        return Judgement(Verdict.HANG, Cause.SILENT, message=str(error))
    if isinstance(error, DriverError):
        return Judgement(Verdict.FAIL, Cause.STATUS, message=f"the driver answered {error}")
    cause = Cause.OVERRUN if isinstance(error, DamageError) else Cause.UNCLEAN_ERROR
    return Judgement(Verdict.FAIL, cause, message=str(error))


def _measured(
    subject: Subject, setting: Setting, driver: Driver, baseline: Driver, evaluate: Evaluate, show: Show
) -> Outcome:
    """Measures a model where the driver runs it, whole or in parts."""
    model = subject.model
    supported = driver.device.get_supported_operations(model)
    reasons = driver.device.explain_unsupported(model)
    names = (str(setting.spec().text), str(setting.baseline_spec().text), setting.tier.name)
    if not any(supported) or not (all(supported) or setting.partitioned):
        words = next((f": {reason}" for reason in reasons if reason), ", and does not say why no others")
        text = f"the driver runs {sum(supported)} of {len(supported)} operations of the model{words}"
        return Outcome(_all(Judgement(Verdict.NOT_SUPPORTED, Cause.UNSUPPORTED, "query", text)))
    if all(supported):
        bench = Bench(subject, driver, baseline, setting.plan, names, show)
        return _judged(bench, setting, sum(supported), "", evaluate, show)
    framework = FrameworkDriver(
        [setting.spec()], log_path=setting.log, deadline=setting.deadline, memory=setting.tier.memory
    )
    with closing(framework):
        bench = Bench(subject, framework, baseline, setting.plan, names, show)
        return _judged(bench, setting, sum(supported), "framework", evaluate, show)


def _judged(bench: Bench, setting: Setting, on_driver: int, partition: str, evaluate: Evaluate, show: Show) -> Outcome:
    subject, mine = bench.subject, bench.ours.measured
    mine.operations, mine.on_driver = len(bench.ours.model.main.operations), on_driver
    bench.theirs.measured.operations = bench.theirs.measured.on_driver = mine.operations
    try:
        bench.run()
    except (DriverError, DriverDied, DriverTimedOut, UncleanError, DamageError) as error:
        return Outcome(_all(_failure(error)), mine, bench.theirs.measured)
    if partition:
        remarks = bench.ours.driver.remarks()
        mine.partition = remarks.partition
        mine.notes += remarks.notes
    latency, paired = judge_latency(mine)
    samples = subject.samples[: min(setting.plan.exact, len(bench.ours.outputs))]

    def told(done: int) -> None:
        show(f"reference {done} of {len(samples)}", 1.0)

    exact = exact_outputs(subject.model, samples, setting.cache, told)
    judged = judge_results(subject, bench.ours.outputs, bench.theirs.outputs, exact)
    scores = evaluate(subject, bench.ours.outputs, bench.theirs.outputs)
    judgements = {RESULTS: judged.judgement, LATENCY: latency, STABILITY: judge_stability(mine)}
    found = Outcome(judgements, mine, bench.theirs.measured, judged, paired, scores)
    try:
        inputs = subject.samples[: setting.plan.accumulated]
        found.blames = accumulate(bench.ours.device, subject.model, inputs, show) if inputs else ()
    except (
        DriverError,
        DriverDied,
        DriverTimedOut,
        UncleanError,
    ) as error:  # over a part of a model that it runs whole
        found.judgements[RESULTS] = replace(_failure(error), stage="an operation alone")
    return found
