"""Whether runs are a statement of conformance, and every reason for which they are none. Pure, from records alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.record import Run
from reports import headline as heading
from reports.comparable import checkout
from reports.headline import CONFORMANCE
from reports.parts import suite_of
from reports.tables import NOT_SUPPORTED, real
from reports.text import clip

CONFORMANT, PARTLY, NONE = "conformant", "conformant for what it supports", "not a statement of conformance"

PROFILES = {
    "ci": "a part of profile quick, for changes under way: a shortened run",
    "quick": "every signature of every operation, every rule and every scenario, with few cases of each",
    "full": "what quick has, with more cases of each and memory between inaccessible pages",
    "nightly": "what full has, with the most cases of each",
}
# What all runs of one statement must agree in: they speak of one driver, tested by one suite.
_SAME = {
    "driver": "drivers",
    "driver_name": "drivers by name",
    "driver_version": "versions of the driver",
    "feature_level": "levels of the driver",
    "suite_version": "versions of the suite",
}


def standing(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """The verdict on runs that are handed on together, with the reasons where it is none of conformance."""
    reasons = [*_between(runs)]
    for run in runs:
        name = f"{suite_of(run)} run {clip(run.folder.name, 100)}"
        reasons += [f"{name}: {reason}" for reason in _of_run(run)]
    if reasons:
        return NONE, reasons
    tallies = [heading.totals(run).tally for run in runs if suite_of(run) == CONFORMANCE]
    return (PARTLY if any(tally[NOT_SUPPORTED] for tally in tallies) else CONFORMANT), []


def _between(runs: Sequence[Run]) -> Iterator[str]:
    if not any(suite_of(run) == CONFORMANCE for run in runs):
        yield "No run of the conformance suite is among the runs."
    for key, words in _SAME.items():
        values = sorted({clip(run.plan.get(key), 120) for run in runs})
        if len(values) > 1:
            yield f"The runs are of different {words}: {', '.join(values)}."
    commits = sorted({clip(checkout(run).get("commit"), 60) for run in runs})
    if len(commits) > 1:
        yield f"The runs were made by different commits of the suite: {', '.join(commits)}."


def _of_run(run: Run) -> Iterator[str]:
    totals = heading.totals(run)
    if not run.plan:
        yield "The records hold no plan."
    elif not run.complete:
        yield "It is incomplete."
    yield from totals.problems
    if totals.failed:
        poor = ", poor ones among them" if heading.fail_poor(run) else ""
        yield f"{heading.cases(totals.failed)} failed{poor}."
    if totals.internal:
        yield f"{heading.cases(totals.internal)} ended in an error of the suite itself."
    yield from heading.limits(run, totals)
    if suite_of(run) == CONFORMANCE:
        yield from _of_conformance(run, totals)
    yield from _how(run)
    yield from _by_what(run)


def _of_conformance(run: Run, totals: heading.Totals) -> Iterator[str]:
    why = heading.unvalidated(run, totals)
    if why:
        yield f"Validation was not tested. {why}"
    if not totals.tally.valid:
        yield "No valid model was put to the driver."
    profile = run.plan.get("profile")
    if profile not in PROFILES:
        yield "Its profile is not recorded, or is none of this suite."
    asked, own = real(run.plan.get("level")), real(run.plan.get("feature_level"))
    if own is None:
        yield "The driver's level is not recorded."
    elif asked is not None and asked < own:
        yield f"It was tested at level {asked:g}, below the driver's own, {own:g}."


def _how(run: Run) -> Iterator[str]:
    """What makes a run say less of the driver than it seems to."""
    words = heading.options(run)
    if run.plan.get("in_process") or "--in-process" in words:
        yield "The driver was in the suite's own process, where the two can disturb each other."
    if run.plan.get("through"):
        yield f"It was tested through {clip(run.plan['through'], 60)}, which does elsewhere what the driver refuses."
    if not run.plan.get("driver_version") and run.plan.get("driver"):
        yield "The driver's version is not recorded."


def _by_what(run: Run) -> Iterator[str]:
    suite = checkout(run)
    if not isinstance(suite.get("commit"), str) or not isinstance(suite.get("dirty"), bool):
        yield "It is not known which commit of the suite tested it."
    elif suite["dirty"]:
        changed = suite.get("changed")
        names = [str(name) for name in changed] if isinstance(changed, list) else []
        more = f": {clip(', '.join(names), 300)}" if names else ""
        yield f"The suite's checkout was changed{more}."
