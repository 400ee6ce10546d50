"""What a benchmark amounts to: the verdict in a sentence, one for each respect, and what limits them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.record import Run
from harness.verdict import Verdict
from mlts.judging import ASPECTS, LATENCY, RESULTS, STABILITY
from mlts.page_models import FAILED, NOT_RUN, NOT_WORSE, OUTCOMES, UNDECIDED, UNSUPPORTED, WORSE, Aspect, ModelView
from mlts.plan import PLANS
from reports import text
from reports.headline import Headline

FULL = "mlts"  # the preset with the lengths of the public benchmark
_WORSE_WORDS = {
    RESULTS: "errors are larger than the baseline's",
    LATENCY: "slower than the baseline",
    STABILITY: "slower and slower over the run",
}


@dataclass(frozen=True)
class AspectCounts:
    """How many models stand where in one respect.

    Attributes:
        counts: by outcome; together all models. One that runs in two tiers counts twice.
        waived: how many of them a waiver covers.
        text: the verdict in a sentence.
        tone: the verdict whose colour it has.
    """

    name: str
    counts: Mapping[str, int]
    waived: int
    text: str
    tone: str


def aspect_counts(models: Sequence[ModelView]) -> list[AspectCounts]:
    """For each respect how many models stand where."""
    found = []
    for name in ASPECTS:
        aspects = [view.aspects[name] for view in models]
        tally = Counter(one.outcome for one in aspects)
        counts = {one: tally[one] for one in OUTCOMES}
        tones = {one.tone for one in aspects if not one.waiver}
        order = (Verdict.FAIL.value, Verdict.POOR.value, Verdict.NOT_RUN.value)
        tone = next((one for one in order if one in tones), Verdict.PASS.value if tones else Verdict.NOT_RUN.value)
        sentence = _sentence(name, counts, noun(models))
        found.append(AspectCounts(name, counts, sum(bool(one.waiver) for one in aspects), sentence, tone))
    return found


def noun(models: Sequence[ModelView]) -> tuple[str, str]:
    """What is counted, one and many: models, or where there are several tiers, models in a tier."""
    several = len({view.tier for view in models}) > 1
    return ("model in a tier", "models in a tier") if several else ("model", "models")


def _sentence(name: str, counts: Mapping[str, int], of: tuple[str, str]) -> str:
    total = sum(counts.values())
    if not total:
        return "nothing was to be measured"
    every = text.count_words(total, *of)
    if counts[NOT_WORSE] == total:
        return f"not worse than the baseline in {'all ' if total > 1 else ''}{every}"
    parts = [f"{_WORSE_WORDS[name]} in {counts[WORSE]:,} of {every}"] if counts[WORSE] else []
    parts += [f"{counts[FAILED]:,} failed"] if counts[FAILED] else []
    parts += [f"not worse in {counts[NOT_WORSE]:,}" + ("" if parts else f" of {every}")]
    parts += [f"{counts[one]:,} {one}" for one in (UNDECIDED, UNSUPPORTED, NOT_RUN) if counts[one]]
    return ", ".join(parts)


def headline(run: Run, models: Sequence[ModelView]) -> Headline:
    """The verdict on all models, and what limits it."""
    notes = tuple(_notes(run, models))
    total, of = len(models), noun(models)
    every = text.count_words(total, *of)
    judged = [view for view in models if any(one.record for one in view.aspects.values())]
    if not judged:
        return Headline("warn", "Nothing was measured", notes)
    poor_fails = run.plan.get("fail_poor") is True
    failed = sum(_has(view, lambda one: one.outcome == FAILED) for view in models)
    worse = sum(_has(view, lambda one: one.outcome == WORSE and _fails(one, poor_fails)) for view in models)
    slow = sum(_has(view, lambda one: one.outcome == WORSE and not _fails(one, poor_fails)) for view in models)
    begun = "" if run.complete else f"INCOMPLETE, {len(judged):,} of {total:,} judged: "
    if failed or worse:
        parts = [f"{failed:,} failed"] if failed else []
        parts += [f"{worse:,} worse than the baseline"] if worse else []
        parts += [f"{slow:,} slower"] if slow else []
        return Headline("bad", _begun(f"{begun}of {every}, {', '.join(parts)}"), notes)
    if slow:
        return Headline("warn", _begun(f"{begun}no failures; {slow:,} of {every} slower than the baseline"), notes)
    ran = sum(view.driver is not None for view in models)
    if not ran:
        return Headline("warn", _begun(f"{begun}the driver ran none of {every}"), notes)
    settled = sum(all(one.outcome == NOT_WORSE for one in view.aspects.values()) for view in models)
    if settled == total and run.complete:
        return Headline("good", f"Not worse than the baseline in {'all ' if total > 1 else ''}{every}", notes)
    why = "no failures that are not waived" if any(view.waived for view in models) else "none is known to be worse"
    return Headline("warn", _begun(f"{begun}{why}; {settled:,} of {every} surely not worse"), notes)


def _begun(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _has(view: ModelView, holds: Callable[[Aspect], bool]) -> bool:
    return any(holds(one) for one in view.aspects.values() if not one.waiver)


def _fails(one: Aspect, poor_fails: bool) -> bool:
    return one.record is not None and (one.record.bad or (poor_fails and one.record.verdict == Verdict.POOR.value))


def preset_words(run: Run) -> str:
    """The preset, and whether it is shorter than the public benchmark."""
    name = text.clip(run.plan.get("preset") or "unknown", 40)
    if name == FULL:
        return f"{name}: {PLANS[name].text}"
    known = f": {PLANS[name].text}" if name in PLANS else ""
    return f"{name}{known}; shorter than the public benchmark"


def _notes(run: Run, models: Sequence[ModelView]) -> list[str]:
    """What a reader must know before believing the verdict."""
    found = []
    if run.plan.get("preset") != FULL:
        found.append(f"Preset {preset_words(run)}. Preset {FULL} has its lengths.")
    if run.plan.get("filtered"):
        found.append("The run was filtered: only the models named on the command line were selected.")
    missing = sum(all(one.record is None for one in view.aspects.values()) for view in models)
    if missing or not run.ended:
        how = "was interrupted" if run.end.get("interrupted") else "did not end" if not run.ended else "ended"
        found.append(f"The run {how}: {text.count_words(missing, *noun(models))} of {len(models):,} not measured.")
    seeded = sum(view.seeded for view in models)
    if seeded:
        found.append(
            f"{text.count_words(seeded, *noun(models))} of {len(models):,} without trained weights: they show latency "
            "and agreement with the baseline, no accuracy."
        )
    waived = sum(view.waived for view in models)
    if waived:
        found.append(f"{text.count_words(waived, *noun(models))} with waived failures, counted but not as failures.")
    return found


def problems(run: Run, damaged: int) -> list[str]:
    """What is wrong with the files of the run."""
    found = [] if run.plan else ["The records hold no plan, so what was to be measured is not known."]
    if run.damaged:
        lines = text.count_words(run.damaged, "line", "lines")
        found.append(f"{lines} of the records could not be read, as when the suite is killed while it writes.")
    if damaged:
        have = text.count_words(damaged, "model has", "models have")
        found.append(f"{have} a record and no measurements: they are cut off, or could not be read.")
    return found
