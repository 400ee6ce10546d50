"""Verdicts on what was measured: results against the reference and the baseline, latency, and how both last."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.verdict import Cause, Judgement, Verdict
from mlts.accuracy import Errors, Exact, errors, steps_apart, worse
from mlts.statistics import MARGIN, Comparison, Paired, compare_pairs, drift, least_count
from mlts.subject import Measured, Subject
from nnhal.types import Array

RESULTS, LATENCY, STABILITY = "results", "latency", "stability"
ASPECTS = (RESULTS, LATENCY, STABILITY)


@dataclass(frozen=True)
class Judged:
    """What is said of a model's results.

    Attributes:
        judgement: for the record.
        errors, baseline_errors: for each input that was held against the reference.
        paired: the test that stands behind it; None where it could not be made.
    """

    judgement: Judgement
    errors: Sequence[Errors] = ()
    baseline_errors: Sequence[Errors] = ()
    paired: Paired | None = None


def judge_results(
    subject: Subject,
    outputs: Sequence[Sequence[Array]],
    baseline: Sequence[Sequence[Array]],
    exact: Sequence[Exact],
) -> Judged:
    """Whether a driver's outputs are as good as the baseline's.

    They are worse when their errors against the reference are larger by more than the margin, input by input, by the
    signed-rank test. How many steps quantised outputs are from the baseline's is told, beside how many the model's
    entry allows, and fails nothing: one step in an early layer, which is no fault, may become many at the end.
    """
    model = subject.model
    mine = [errors(got, right, model) for got, right in zip(outputs, exact, strict=False)]
    base = [errors(got, right, model) for got, right in zip(baseline, exact, strict=False)]
    apart = max((steps_apart(a, b, model) for a, b in zip(outputs, baseline, strict=True)), default=0)
    numbers: dict[str, float] = {"inputs": float(len(outputs)), "held against the reference": float(len(mine))}
    if not mine:
        return Judged(Judgement(Verdict.PASS, numbers=numbers, notes=("nothing was held against the reference",)))
    paired = worse(mine, base, model)
    numbers |= {
        "error over the baseline's": paired.ratio.value,
        "root mean square error": _middle([one.rms for one in mine]),
        "baseline's root mean square error": _middle([one.rms for one in base]),
        "mean error": math.fsum(one.mean for one in mine) / len(mine),
        "lowest error": min(one.lowest for one in mine),
        "highest error": max(one.highest for one in mine),
        "p worse": paired.p_worse,
        "p not worse": paired.p_not_worse,
    }
    if subject.off_by is not None:
        numbers |= {"steps from the baseline": float(apart), "steps that the entry allows": float(subject.off_by)}
    if paired.verdict == Comparison.WORSE:
        text = (
            f"errors against the reference are {_times(paired)} the baseline's, more than {1 + MARGIN:g} is worse "
            f"(signed-rank test over {len(mine)} inputs, p = {paired.p_worse:.1g})"
        )
        return Judged(Judgement(Verdict.FAIL, Cause.VALUE, RESULTS, text, numbers=numbers), mine, base, paired)
    notes: tuple[str, ...] = ()
    if paired.verdict == Comparison.UNDECIDED:
        notes = (f"{len(mine)} inputs do not tell whether results are worse than the baseline's",)
    return Judged(Judgement(Verdict.PASS, stage=RESULTS, numbers=numbers, notes=notes), mine, base, paired)


def judge_latency(measured: Measured) -> tuple[Judgement, Paired | None]:
    """Whether a driver is as quick as the baseline; POOR when it is surely slower by more than the margin."""
    if not measured.pairs:
        return Judgement(Verdict.NOT_RUN, stage=LATENCY, message="nothing was measured"), None
    paired = compare_pairs(measured.pairs)
    numbers = {
        "times the baseline's latency": paired.ratio.value,
        "p worse": paired.p_worse,
        "p not worse": paired.p_not_worse,
        "rounds": float(len(measured.pairs)),
    }
    notes = list(measured.notes)
    if len(measured.latency) < least_count(99):
        notes.append(f"{len(measured.latency)} executions are too few for p99: it takes {least_count(99)}")
    if paired.verdict == Comparison.WORSE:
        text = (
            f"latency is {_times(paired)} the baseline's, more than {1 + MARGIN:g} is slower "
            f"(signed-rank test over {len(measured.pairs)} pairs, p = {paired.p_worse:.1g})"
        )
        return Judgement(Verdict.POOR, Cause.SLOWDOWN, LATENCY, text, numbers=numbers, notes=tuple(notes)), paired
    if paired.verdict == Comparison.UNDECIDED:
        notes.append(f"{len(measured.pairs)} pairs do not tell whether it is slower than the baseline")
    return Judgement(Verdict.PASS, stage=LATENCY, numbers=numbers, notes=tuple(notes)), paired


def judge_stability(measured: Measured) -> Judgement:
    """Whether latency changes over the run; what befalls the baseline as well is the machine's, and does not count."""
    ratios = [a / b for a, b in measured.pairs]
    found = drift(ratios)
    numbers: Mapping[str, float] = {"change over the run": found.change, "p": found.p}
    if found.drifts and found.change > 0:
        text = (
            f"latency beside the baseline's grew by {100 * found.change:.1f} % from the first quarter of the run to "
            f"the last (trend test over {len(ratios)} pairs, p = {found.p:.1g})"
        )
        return Judgement(Verdict.POOR, Cause.SLOWDOWN, STABILITY, text, numbers=numbers)
    return Judgement(Verdict.PASS, stage=STABILITY, numbers=numbers)


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _times(paired: Paired) -> str:
    ratio = paired.ratio
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3g} times"
    return f"{ratio.value:.3g} times ({ratio.low:.3g} to {ratio.high:.3g})"
