"""From a Run, or two, to one self-contained HTML file that opens offline and works without scripts."""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.record import Record, Run
from nnhal.types import FeatureLevel
from reports import compare as comparing
from reports import headline as heading
from reports import tables, text

FOLDER = Path(__file__).resolve().parent
REPORT, COMPARISON = "report.html", "compare.html"

# What a page holds at most, so that 50,000 failures still make a page that opens. Records hold everything.
EACH, MOST = 12, 2000  # cases shown of a group; characters shown of a text
FAILURE_BUDGET, OTHER_BUDGET = 1_200_000, 200_000
GROUPS_SHOWN = 400
SLOWEST = 15
OBSERVATIONS = 40
FEW = 20  # judged cases: fewer say little about a signature
CHANGES_SHOWN, CASES_SHOWN = 200, 40  # lines of a kind of change; cases named of a line

GLOSSARY = {
    "PASS": "everything that was due came, within what is allowed",
    "POOR": "within what is allowed for each element, but biased, truncated or coarse as a whole; no failure",
    "FAIL": "a wrong value, shape or status, a write where none is allowed, or an unclean error",
    "CRASH": "the driver's process died; the run went on with a new one",
    "HANG": "no answer at the deadline; the process was stopped",
    "FLAKY": "failed once and not again, alone or behind the cases before it",
    "INTERNAL": "a defect of the suite itself; never charged to the driver",
    "NOT_SUPPORTED": "the driver said that it does not support the model; never a pass",
    "NOT_APPLICABLE": "ruled out by the driver's level or by what it declares of itself",
    "NOT_RUN": "selected, and without a record",
}
CAUSES = {
    "VALUE": "an element outside what is allowed",
    "SHAPE": "dimensions other than those due",
    "STATUS": "another answer than the one due",
    "ACCEPTED": "something invalid was accepted",
    "REFUSED": "the valid twin of an invalid model was refused, so refusing the other proves nothing",
    "OVERRUN": "bytes around an output were written",
    "INPUT_WRITTEN": "an input was written",
    "UNCLEAN_ERROR": "an exception that is not DriverError",
    "MALFORMED": "an answer that makes no sense",
    "TIMING": "times that contradict each other",
    "DIED": "the process ended",
    "SILENT": "no answer in time",
    "INCONSISTENT": "two answers that must agree do not",
    "QUALITY": "poor arithmetic",
    "LEAK": "memory, descriptors or threads grow without end",
    "SLOWDOWN": "slower beside others than is allowed",
    "LEFTOVERS": "processes outlived the one that started them",
    "REMNANT": "data of another client",
    "UNSUPPORTED": "the driver refuses the operation",
    "LEVEL": "above the driver's level",
    "TRAIT": "ruled out by a trait",
    "SUITE": "a defect of the suite",
}
_FIRST_FACTS = {"python": "Python", "platform": "platform", "cpu": "processor", "cores": "cores", "numpy": "NumPy"}
_TRAITS = {
    "validates": "checks models itself",
    "execution_modes": "execution modes",
    "dynamic_shapes": "dynamic shapes",
    "caching": "compilation caching",
    "buffers": "driver-managed buffers",
    "deterministic": "deterministic",
}

Facts = list[tuple[str, str]]


@lru_cache(maxsize=1)
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        bytecode_cache=FileSystemBytecodeCache(),  # to compile the page takes longer than to make a small one
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Callable[..., str]] = {
        "count": text.count,
        "number": text.number,
        "exact": text.exact,
        "units": text.units,
        "seconds": text.seconds,
        "percent": text.percent,
        "clip": text.clip,
        "tail": text.tail,
        "anchor": text.anchor,
        "first_line": tables.first_line,
    }
    found.filters.update(filters)
    script = (FOLDER / "script.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    found.globals.update(
        style=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=digest,
        glossary=GLOSSARY,
        causes=CAUSES,
        column_titles=tables.COLUMNS,
        most=MOST,
        few=FEW,
        verdicts=tables.ORDER,
    )
    return found


def render(run: Run) -> str:
    """The page of a run."""
    totals = heading.totals(run)
    rows = tables.signatures(run)
    records = list(run.records.values())
    poor_fails = heading.fail_poor(run)
    faults = {*tables.DRIVER_FAULTS} | ({tables.POOR} if poor_fails else set())
    failures = [record for record in records if record.verdict in faults and not record.waiver]
    internal = [record for record in records if record.verdict == tables.INTERNAL and not record.waiver]
    waived = [record for record in records if record.waiver]
    poor = [record for record in records if record.verdict == tables.POOR and not (record.waiver or poor_fails)]
    page = _environment().get_template("template.html").render(
        run=run,
        headline=heading.headline(run, totals),
        totals=totals,
        name=driver_name(run),
        facts=_sections(run),
        matrix=tables.matrix(rows),
        signatures=[row for row in rows if not row.behaviour],
        behaviours=[row for row in rows if row.behaviour and row.operation != tables.STRESS],
        stress=tables.stress(records),
        observations=tables.observations(records)[:OBSERVATIONS],
        first_runs=tables.first_runs(records),
        shown_verdicts=[verdict for verdict in tables.ORDER if totals.tally[verdict] or verdict == "PASS"],
        unsupported=tables.unjudged(run, rows, tables.NOT_SUPPORTED),
        inapplicable=tables.unjudged(run, rows, tables.NOT_APPLICABLE),
        failures=_grouped(failures, FAILURE_BUDGET),
        internal=_grouped(internal, OTHER_BUDGET),
        waived=_grouped(waived, OTHER_BUDGET),
        poor=_grouped(poor, OTHER_BUDGET),
        rules=tables.rules(records),
        count_words=text.count_words,
        slowest=tables.slowest(records, SLOWEST),
    )  # fmt: skip
    return text.clean(page)


def _grouped(records: Sequence[Record], budget: int) -> dict[str, object]:
    found = tables.groups(records, tables.Budget(budget), EACH, MOST)
    return {"total": len(records), "groups": found[:GROUPS_SHOWN], "more": found[GROUPS_SHOWN:]}


@dataclass(frozen=True)
class Side:
    """One of the two runs of a comparison, as its page needs it."""

    run: Run
    name: str
    headline: heading.Headline
    totals: heading.Totals
    matrix: tables.Matrix


def _side(run: Run) -> Side:
    totals = heading.totals(run)
    matrix = tables.matrix(tables.signatures(run))
    return Side(run, driver_name(run), heading.headline(run, totals), totals, matrix)


def render_comparison(first: Run, second: Run, found: comparing.Comparison) -> str:
    """The page that puts two runs side by side."""
    runs = [_side(run) for run in (first, second)]
    operations = sorted({name for side in runs for name in side.matrix.operations})
    columns = [name for name in tables.COLUMNS if any(name in side.matrix.columns for side in runs)]
    page = _environment().get_template("compare.html").render(
        runs=runs,
        comparison=found,
        headline=comparing.headline(found),
        kinds=comparing.KINDS,
        bundles={key: comparing.bundles(changes) for key, changes in found.changes.items()},
        operations=operations,
        columns=columns,
        facts=_paired(_sections(first), _sections(second)),
        changes_shown=CHANGES_SHOWN,
        cases_shown=CASES_SHOWN,
    )  # fmt: skip
    return text.clean(page)


def write(page: str, path: Path) -> None:
    """Writes a page; whoever reads the file meanwhile sees the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(page, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def driver_name(run: Run) -> str:
    """The driver as it was asked for, with its version."""
    spec = run.plan.get("driver") or run.plan.get("driver_name") or "unknown driver"
    return text.clip(spec, 120)


def _sections(run: Run) -> dict[str, Facts]:
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
    facts = [("folder", run.folder.name), ("time", plan.get("time")), ("profile", plan.get("profile"))]
    facts += [("seed", plan.get("seed")), ("options", shlex.join(heading.options(run)) or None)]
    facts += [("filtered", plan.get("filtered")), ("suite version", plan.get("suite_version"))]
    records = list(run.records.values())
    spent = sum(tables.real(record.seconds) or 0.0 for record in records)
    facts.append(("time in cases", text.seconds(spent)))
    used = tables.resources(records)
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


def _paired(first: Mapping[str, Facts], second: Mapping[str, Facts]) -> dict[str, list[tuple[str, str, str]]]:
    paired = {}
    for section, facts in first.items():
        before, after = dict(facts), dict(second[section])
        labels = [*before, *(label for label in after if label not in before)]
        paired[section] = [(label, before.get(label, "–"), after.get(label, "–")) for label in labels]
    return paired
