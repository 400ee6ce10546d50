"""The benchmark's page: from a run's folder to one self-contained HTML file that opens offline.

It takes style and parts from the conformance report, so that what a vendor hands on reads alike. Nothing on it is
loaded; its content security policy admits its own style sheet and scripts by their digests, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from harness.record import Record, Run, read_run
from harness.verdict import Verdict
from mlts import page_cells, page_models
from mlts.catalogue import OTHER_TASK, SEEDED, SLOTS
from mlts.folder import SUITE, measurements, origin_of
from mlts.judging import ASPECTS
from mlts.page_headline import aspect_counts, headline, preset_words, problems
from mlts.page_models import MAIN, MAIN_SCORES, ModelView, views
from mlts.rows import PERCENTILES
from mlts.statistics import CONFIDENCE, MARGIN
from mlts.subjects import listed
from nnhal.errors import UsageError
from reports import charts, html, sections, text
from reports.tables import real

FOLDER = Path(__file__).with_name("templates")
PAGE = "page.html"
RANKED, NAMED = 20, 8  # operations of a ranking, and outliers, that are shown


def write_page(folder: Path, output: Path | None = None) -> Path:
    """Writes the page of a run of the benchmark.

    Args:
        folder: of the run.
        output: where the page goes; `page.html` in the folder where it is None.

    Returns:
        Where the page is.

    Raises:
        UsageError: the folder holds no run, or one of another kind, or the page cannot be written.
    """
    run = read_run(folder)
    if run.plan and run.plan.get("suite") != SUITE:
        raise UsageError(f"{folder} is no run of this benchmark; give the folder that python -m mlts wrote")
    path = output or folder / PAGE
    try:
        html.write(render(run, rows_of(run)), path)
    except OSError as error:
        raise UsageError(f"the page {path} cannot be written: {error.strerror or error}") from error
    return path


def render(run: Run, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page of a run with its lines of measurements."""
    page = environment().get_template("page.html.j2").render(run=run, prefix="", level=3, **content(run, rows))
    return text.clean(page)


def content(run: Run, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the templates show of a run with its lines of measurements."""
    known = {origin_of(one.name, "", "").signature: (one.slot, one.reality) for one in listed()}
    models = views(run, rows, known)
    without = [view for view in models if not view.row and any(one.record for one in view.aspects.values())]
    return {
        "name": html.driver_name(run),
        "headline": headline(run, models),
        "problems": problems(run, len(without)),
        "facts": _facts(run),
        "aspects": aspect_counts(models),
        "models": models,
        "slots": {slot: [view for view in models if view.slot == slot] for slot in SLOTS},
        "tiers": list(dict.fromkeys(view.tier for view in models)),
        "by_tier": _by_tier(models),
        "failures": _findings(models, _failed),
        "unsupported": _findings(models, lambda record: record.verdict == Verdict.NOT_SUPPORTED.value),
    }


def rows_of(run: Run) -> list[Mapping[str, Any]]:
    """The lines of measurements of a run; none where the file is missing or cannot be read."""
    with contextlib.suppress(UsageError, OSError, RecursionError):
        return list(measurements(run.folder))
    return []


@dataclass(frozen=True)
class Finding:
    """What is said of a model in one or more respects, in the same words."""

    view: ModelView
    aspects: tuple[str, ...]
    record: Record


def _findings(models: Sequence[ModelView], wanted: Callable[[Record], bool]) -> list[Finding]:
    found = []
    for view in models:
        alike: dict[tuple[str, str, str], list[tuple[str, Record]]] = {}
        for name, one in view.aspects.items():
            if one.record is not None and wanted(one.record):
                alike.setdefault((one.record.verdict, str(one.record.message), one.waiver), []).append(
                    (name, one.record)
                )
        found += [Finding(view, tuple(name for name, _ in some), some[0][1]) for some in alike.values()]
    return found


def _failed(record: Record) -> bool:
    return record.bad or record.verdict == Verdict.POOR.value


def _by_tier(models: Sequence[ModelView]) -> dict[str, dict[str, ModelView]]:
    found: dict[str, dict[str, ModelView]] = {}
    for view in models:
        found.setdefault(view.model, {})[view.tier] = view
    return found


def main_scores(models: Sequence[ModelView]) -> dict[str, bool]:
    """The scores that a table of models shows in columns; whether the baseline has them, too.

    Those that it lacks compare the driver with it.
    """
    there = {name for view in models for name in view.score_names}
    names = [name for name in MAIN_SCORES if name in there][:MAIN]
    return {name: any(name in view.scores("baseline") for view in models) for name in names}


def _facts(run: Run) -> dict[str, html.Facts]:
    plan, machine = run.plan, run.environment
    packages = page_cells.table(machine.get("packages"))
    sections = {
        "Driver": {
            "asked for": plan.get("driver"),
            "version": plan.get("driver_version"),
            "type": plan.get("driver_type"),
            "baseline": plan.get("baseline"),
            "float32 as float16": "not allowed" if plan.get("strict") else "allowed",
        },
        "Run": {
            "date": plan.get("time"),
            "preset": preset_words(run),
            "tiers": ", ".join(map(str, page_cells.listed(plan.get("tiers")))),
            "folder": run.folder.name,
            "suite version": plan.get("suite_version"),
        },
        "Machine": {
            "processor": machine.get("cpu"),
            "cores": machine.get("cores"),
            "platform": machine.get("platform"),
            "Python": machine.get("python"),
            "LiteRT": packages.get("ai-edge-litert"),
        },
    }
    return {
        title: [
            (label, "not recorded" if value in (None, "") else text.clip(value, 300)) for label, value in rows.items()
        ]
        for title, rows in sections.items()
    }


def megabytes(value: object) -> str:
    """Bytes for tables; a process that was not looked at has none."""
    found = real(value)
    return f"{found / 2**20:,.1f} MiB" if found else "–"


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates of the benchmark."""
    found = sections.environment(FOLDER)
    found.filters.update(
        milliseconds=lambda value: "–" if (known := real(value)) is None else page_cells.milliseconds(known),
        megabytes=megabytes,
        main_scores=main_scores,
    )
    sheet = "\n".join([_asset("style.css", html.FOLDER), *charts.styles(), models_sheet(), _asset("page.css")])
    scripts = [_asset("script.js", html.FOLDER), *charts.scripts()]
    found.globals.update(
        style=Markup(sheet),
        scripts=[Markup(script) for script in scripts],
        policy=html.policy(sheet, scripts),
        chart_licence=charts.LICENCE,
        outcomes=page_models.OUTCOMES,
        aspect_names=ASPECTS,
        percentiles=PERCENTILES,
        confidence=CONFIDENCE,
        margin=MARGIN,
        ranked=RANKED,
        named=NAMED,
        doubtful={SEEDED: "seeded", OTHER_TASK: "doubtful"},
    )
    return found


def models_sheet() -> str:
    """The style of tables and sections of models, wherever they stand."""
    return _asset("models.css")


def _asset(name: str, folder: Path = FOLDER) -> str:
    """A style sheet or script."""
    return (folder / name).read_text(encoding="utf-8")
