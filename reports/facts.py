"""What is known of a run besides its records, as words: driver, options, environment."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from harness.record import Run
from nnhal.types import FeatureLevel
from reports import headline as heading
from reports import parts, text
from reports.remarks import resources
from reports.tables import real

Facts = list[tuple[str, str]]

_FIRST_FACTS = {"python": "Python", "platform": "platform", "cpu": "processor", "cores": "cores", "numpy": "NumPy"}
_TRAITS = {
    "validates": "checks models itself",
    "execution_modes": "execution modes",
    "dynamic_shapes": "dynamic shapes",
    "caching": "compilation caching",
    "buffers": "driver-managed buffers",
    "deterministic": "deterministic",
}


def sections(run: Run) -> dict[str, Facts]:
    """What is known of a run's driver, of the run itself, and of where it ran."""
    return {"Driver": _driver_facts(run), "Run": _run_facts(run), "Environment": _environment_facts(run)}


def _driver_facts(run: Run) -> Facts:
    plan, traits = run.plan, heading.traits(run)
    facts = [
        ("asked for", plan.get("driver")),
        ("name", plan.get("driver_name")),
        ("version", plan.get("driver_version")),
    ]
    facts += [("type", plan.get("driver_type")), ("feature level", _level(plan.get("feature_level")))]
    facts += [(_TRAITS.get(name, name), traits[name]) for name in sorted(traits, key=_place(_TRAITS))]
    if not traits:
        facts.append(("traits", None))
    return [(label, _word(value)) for label, value in facts]


def _run_facts(run: Run) -> Facts:
    plan = run.plan
    facts = [("folder", run.folder.name), ("time", plan.get("time")), ("suite", parts.suite_of(run))]
    facts += [("profile", plan.get("profile"))] if "preset" not in plan else [("preset", plan.get("preset"))]
    facts += [("seed", plan.get("seed")), ("options", shlex.join(heading.options(run)) or None)]
    facts += [("filtered", plan.get("filtered")), ("suite version", plan.get("suite_version"))]
    records = list(run.records.values())
    spent = sum(real(record.seconds) or 0.0 for record in records)
    facts.append(("time in cases", text.seconds(spent)))
    used = resources(records)
    if "rss" in used:
        facts.append(("memory, at most", text.megabytes(used["rss"])))
    facts += [(f"{name}, at most", int(used[name])) for name in ("descriptors", "threads") if name in used]
    return [(label, _word(value)) for label, value in facts]


def _environment_facts(run: Run) -> Facts:
    found = run.environment
    facts = [(_FIRST_FACTS.get(name, name), found[name]) for name in sorted(found, key=_place(_FIRST_FACTS))]
    return [(label, _word(value)) for label, value in facts] or [("environment", _word(None))]


def _place(first: Mapping[str, str]) -> Callable[[str], tuple[int, str]]:
    order = {name: place for place, name in enumerate(first)}
    return lambda name: (order.get(name, len(order)), name)


def _level(value: object) -> object:
    try:
        return f"{value} ({FeatureLevel(value).version})"  # type: ignore[arg-type]
    except ValueError:
        return value


def _word(value: object) -> str:
    if value is None or value == "":
        return "not recorded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return text.clip(", ".join(f"{name} {_word(item)}" for name, item in value.items()), 1500)
    if isinstance(value, (list, tuple)):
        return text.clip(", ".join(_word(item) for item in value) or "none", 1500)
    return text.clip(value, 500)
