"""In what two runs differ besides their results: what a reader must know before comparing them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.record import Run
from reports.parts import suite_of
from reports.text import clip

LONGEST = 120  # characters of a driver's own words

# What decides which cases a run makes, and how; runs that agree in all of it are comparable.
SELECTION = {
    "profile": "profiles",
    "preset": "presets",
    "seed": "seeds",
    "level": "levels asked for",
    "through": "runtimes between suite and driver",
    "baseline": "baselines",
    "mixes": "mixes of graphs",
    "for": "lengths",
    "tiers": "tiers",
}


def selection(run: Run) -> tuple[str, ...]:
    """What decides which cases a run makes: two runs of one driver with the same can be held against each other."""
    words = (*(str(run.plan.get(key)) for key in SELECTION), str(bool(run.plan.get("filtered"))))
    return (suite_of(run), *words, str(run.plan.get("case") or run.plan.get("only") or ""))


def differences(first: Run, second: Run) -> list[str]:
    """Sentences on what differs between two runs, and on what one of them lacks."""
    found = []
    if suite_of(first) != suite_of(second):
        found.append(f"The runs are of different suites, {suite_of(first)} and {suite_of(second)}.")
    for key, words in {"driver": "drivers", "driver_version": "versions of the driver", **SELECTION}.items():
        found += _differs(words, first.plan.get(key), second.plan.get(key))
    found += _differs("versions of the suite", first.plan.get("suite_version"), second.plan.get("suite_version"))
    found += _differs("commits of the suite", checkout(first).get("commit"), checkout(second).get("commit"))
    for key, words in (("cpu", "processors"), ("cores", "numbers of cores"), ("platform", "platforms")):
        found += _differs(words, first.environment.get(key), second.environment.get(key))
    for name, run in (("first", first), ("second", second)):
        found += _lacks(name, run)
    if suite_of(first) == suite_of(second) == "fuzz":
        found.append("Findings are compared by what they are; that one was not found again does not say it is mended.")
    times = [run.plan.get("time") for run in (first, second)]
    if all(isinstance(time, str) for time in times) and str(times[1]) < str(times[0]):
        found.append("The second run is the older one.")
    return found


def _differs(words: str, before: object, after: object) -> list[str]:
    if before == after:
        return []
    return [f"The runs have different {words}: {_word(before)} and {_word(after)}."]


def _lacks(name: str, run: Run) -> list[str]:
    found = []
    if not run.plan:
        found.append(f"The records of the {name} run hold no plan, so what was selected there is not known.")
    elif not run.complete:
        verb = "has" if len(run.records) == 1 else "have"
        ended = "" if run.ended else " and it did not end"
        found.append(
            f"The {name} run is incomplete: {len(run.records):,} of {run.selected:,} cases {verb} a record{ended}."
        )
    if run.damaged:
        lines = "1 line" if run.damaged == 1 else f"{run.damaged:,} lines"
        found.append(f"{lines} of the {name} run's records could not be read.")
    if run.plan.get("filtered"):
        found.append(f"The {name} run was filtered: only the cases named on its command line were selected.")
    return found


def checkout(run: Run) -> Mapping[str, Any]:
    """What the run's environment tells of the suite's own checkout; empty where it tells nothing."""
    found = run.environment.get("suite")
    return found if isinstance(found, dict) else {}


def _word(value: object) -> str:
    if value is None or value == "":
        return "not recorded"
    if isinstance(value, (list, tuple)):
        return clip(", ".join(map(str, value)), LONGEST)
    return clip(value, LONGEST)
