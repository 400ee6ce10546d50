"""From runs, one or several, to one self-contained HTML file that opens offline and is whole without scripts.

Nothing on a page is loaded; its content security policy admits its own sheet and scripts by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.record import Run
from nnhal.errors import UsageError
from reports import charts, facts, parts, payload, tables, text, views
from reports import compare as comparing
from reports import headline as heading

FOLDER = Path(__file__).resolve().parent
REPORT, COMPARISON = "report.html", "compare.html"
SCRIPTS = ("cases.js", "panel.js", "browser.js")  # of the list of all cases; each stands on the ones before
MOST = views.MOST  # characters shown of a text
FEW = 20  # judged cases: fewer say little about a signature
CHANGES_SHOWN, CASES_SHOWN = 200, 40  # lines of a kind of change; cases named of a line
REPEATED = {
    "same": "failed again in a new process",
    "sequence": "fails only behind the cases before it; the sequence is saved",
    "differs": "did not fail again",
}

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
    "SUPPORT": "of two models that mean the same one is supported alone",
    "UNSUPPORTED": "the driver refuses the operation",
    "LEVEL": "above the driver's level",
    "TRAIT": "ruled out by a trait",
    "SUITE": "a defect of the suite",
}
Facts = facts.Facts


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates of pages, with what they are given; every text in them is escaped."""
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        bytecode_cache=FileSystemBytecodeCache(),  # to compile the page takes longer than to make a small one
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Callable[..., object]] = {
        "count": text.count,
        "number": text.number,
        "exact": text.exact,
        "units": text.units,
        "seconds": text.seconds,
        "percent": text.percent,
        "clip": text.clip,
        "tail": text.tail,
        "anchor": text.anchor,
        "ident": id,
        "first_line": tables.first_line,
    }
    found.filters.update(filters)
    found.globals.update(
        glossary=GLOSSARY,
        causes=CAUSES,
        repeated_words=REPEATED,
        column_titles=tables.COLUMNS,
        most=MOST,
        few=FEW,
        verdicts=tables.ORDER,
        count_words=text.count_words,
    )
    return found


def page(template: str, styles: Iterable[str] = (), scripts: Iterable[str] = (), **content: object) -> str:
    """A page of a template, which begins with the macro `head` and ends with the macro `scripts`.

    Args:
        template: name of a file of this folder.
        styles: sheets behind the common one, as text; each stands on the page once.
        scripts: the same behind the common script.
        content: what the template names.
    """
    sheet = text.clean("\n".join(dict.fromkeys([_asset("style.css"), *styles])))
    programs = [text.clean(script) for script in dict.fromkeys([_asset("script.js"), *scripts])]
    marked = [Markup(script) for script in programs]
    rendered = environment().get_template(template).render(
        style=Markup(sheet), programs=marked, policy=policy(sheet, programs), **content
    )  # fmt: skip
    return text.clean(rendered)


def policy(sheet: str, programs: Iterable[str]) -> str:
    """The content security policy of a page with a sheet and programs: nothing else, and nothing from elsewhere."""
    return (
        f"default-src 'none'; style-src '{_digest(sheet)}'; "
        f"script-src {' '.join(repr(_digest(script)) for script in programs)}; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=8)
def _asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    """What a policy names an inline element by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def render(runs: Run | Sequence[Run]) -> str:
    """The page of a run, or of several: of one driver or of many, of one suite or of all.

    Raises:
        UsageError: no run is given.
    """
    found = [runs] if isinstance(runs, Run) else list(runs)
    if not found:
        raise UsageError("no run is given; name the folder of one, such as runs/<time>-<driver>")
    names = [driver_name(run) for run in found]
    lines = views.lines(found, names)
    sections = parts.parts(found)
    drawn = any(part.charts for part in sections)
    sheets = [_asset("browser.css"), *(charts.styles() if drawn else ())]
    return page(
        "template.html",
        [*sheets, *(sheet for part in sections for sheet in part.styles)],
        [*(charts.scripts() if drawn else ()), *map(_asset, SCRIPTS)],
        lines=lines,
        headline=heading.overall(found, [(line.headline, line.totals) for line in lines]),
        drivers=views.views(lines),
        not_run=views.not_run(lines),
        facts=[facts.sections(run) for run in found],
        cases=payload.payload(found, names),
        texts=payload.TEXTS,
        parts=sections,
        drawn=drawn,
        licence=charts.LICENCE,
        limits={"rows": views.ROWS_SHOWN, "reasons": views.REASONS_SHOWN, "missing": views.MISSING},
        where="records*.jsonl in the folder of the run",
    )


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
    return page(
        "compare.html",
        runs=runs,
        comparison=found,
        headline=comparing.headline(found),
        kinds=comparing.KINDS,
        bundles={key: comparing.bundles(changes) for key, changes in found.changes.items()},
        operations=operations,
        columns=columns,
        facts=_paired(facts.sections(first), facts.sections(second)),
        changes_shown=CHANGES_SHOWN,
        cases_shown=CASES_SHOWN,
    )


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


def _paired(first: Mapping[str, Facts], second: Mapping[str, Facts]) -> dict[str, list[tuple[str, str, str]]]:
    paired = {}
    for section, known in first.items():
        before, after = dict(known), dict(second[section])
        labels = [*before, *(label for label in after if label not in before)]
        paired[section] = [(label, before.get(label, "–"), after.get(label, "–")) for label in labels]
    return paired
