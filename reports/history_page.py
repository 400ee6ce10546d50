"""The history of runs in words and pictures: a page, a summary in Markdown, a JSON document, lines for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from reports import html, markdown, text
from reports.history import History, Seen, Series, Summary

PAGE = "history.html"
MEASURES: Mapping[str, Callable[[Summary], float | None]] = {
    "failed": lambda run: float(run.failed),
    "kinds of failure": lambda run: float(run.findings),
    "passed": lambda run: float(run.counts.get("PASS", 0)),
    "poor": lambda run: float(run.counts.get("POOR", 0)),
    "not supported": lambda run: float(run.counts.get("NOT_SUPPORTED", 0)),
    "seconds": lambda run: run.seconds,
    "a second": lambda run: run.rate,
    "latency over the baseline's": lambda run: run.ratio,
}
ALWAYS = ("failed", "passed")  # drawn also where they never change from nothing
WORDS = {
    "bad": "A latest run is incomplete, or fails in what its last comparable run did not",
    "warn": "Nothing newly fails, and not all is well",
    "good": "Nothing fails in the latest runs",
}
WIDTH, HEIGHT, EDGE = 260, 64, 8
SHOWN = 100  # failures of a series
RUNS = 200  # of a series in its table and charts, the newest


@dataclass(frozen=True)
class Chart:
    """One measure of a series over its runs.

    Attributes:
        last: its latest value.
        picture: the drawing.
    """

    name: str
    last: float | None
    picture: Markup


def charts(series: Series) -> list[Chart]:
    """A small drawing of each measure that says something; none where there is one run only."""
    runs = series.runs[-RUNS:]
    found = []
    for name, measure in MEASURES.items():
        values = [measure(run) for run in runs]
        if len(runs) > 1 and (any(values) or name in ALWAYS):
            found.append(Chart(name, values[-1], _drawing(name, runs, values)))
    return found


def _drawing(name: str, runs: Sequence[Summary], values: Sequence[float | None]) -> Markup:
    """A line over the runs, from nothing up to the largest value; the dots of incomplete runs are hollow."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    step = (WIDTH - 2 * EDGE) / max(len(runs) - 1, 1)
    points = [
        (EDGE + step * place, HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * value / top)
        for place, value in enumerate(values)
        if value is not None
    ]
    dots = []
    for (x, y), (run, value) in zip(
        points, [(r, v) for r, v in zip(runs, values, strict=True) if v is not None], strict=True
    ):
        kind = "dot" if run.complete else "dot hollow"
        words = escape(f"{run.time or run.folder}: {text.number(value, 4)}{'' if run.complete else ', incomplete'}")
        dots.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{words}</title></circle>')
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    label = escape(f"{name} over {len(runs)} runs; the table below holds the numbers")
    return Markup(
        f'<svg class="trend" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f'<line class="base" x1="0" x2="{WIDTH}" y1="{HEIGHT - EDGE}" y2="{HEIGHT - EDGE}"/>'
        f'<polyline class="line" points="{path}"/>{"".join(dots)}</svg>'
    )


def page(found: History) -> str:
    """The page of a history."""
    return html.page(
        "history.html",
        [(html.FOLDER / "history.css").read_text(encoding="utf-8")],
        history=found,
        folder=found.folder.resolve().name,
        tone=tone(found),
        words=WORDS[tone(found)],
        lines=lines(found),
        charts=charts,
        measured=measured,
        shown=SHOWN,
        runs_shown=RUNS,
    )


def measured(series: Series) -> dict[str, Callable[[Summary], float | None]]:
    """The measures that some run of a series has."""
    return {name: measure for name, measure in MEASURES.items() if any(measure(run) is not None for run in series.runs)}


def tone(found: History) -> str:
    """The colour of the verdict on the latest runs."""
    if regressed(found):
        return "bad"
    return "warn" if found.unread or any(series.runs[-1].failed for series in found.series) else "good"


def regressed(found: History) -> bool:
    """Whether a latest run is incomplete, or fails in what its last comparable run did not."""
    return any(not series.runs[-1].complete or bool(series.fresh[-1]) for series in found.series)


def lines(found: History) -> list[str]:
    """The history in a few lines for a terminal."""
    count = text.count_words(sum(len(series.runs) for series in found.series), "run", "runs")
    told = [f"{count}; the latest of each suite and driver:"]
    for series in found.series:
        fresh = series.fresh[-1]
        news = "no comparable run before" if fresh is None else f"{len(fresh):,} newly failing"
        told.append(f"{series.suite} {series.driver}: {series.runs[-1].headline.text}; {news}")
    return [*told, *(f"not read: {name}: {reason}" for name, reason in found.unread)]


def document(found: History) -> dict[str, Any]:
    """The history as a JSON document."""
    return {
        "format": "nncts-history",
        "version": 1,
        "regressed": regressed(found),
        "unread": [{"folder": name, "reason": reason} for name, reason in found.unread],
        "series": [
            {
                "suite": series.suite,
                "driver": series.driver,
                "runs": [_run_document(series, place) for place in range(len(series.runs))],
                "failures": [_seen_document(series, seen) for seen in series.seen],
                "flaky": [seen.failure.name for seen in series.flaky],
            }
            for series in found.series
        ],
    }


def _run_document(series: Series, place: int) -> dict[str, Any]:
    run, fresh, previous = series.runs[place], series.fresh[place], series.previous[place]
    return {
        "folder": str(run.folder),
        "time": run.time,
        "driver_version": run.version,
        "profile": run.profile,
        "complete": run.complete,
        "headline": run.headline.text,
        "counts": dict(run.counts),
        "selected": run.selected,
        "failed": run.failed,
        "waived": run.waived,
        "findings": run.findings,
        "seconds": run.seconds,
        "rate": run.rate,
        "latency_ratio": run.ratio,
        "compared_with": None if previous is None else str(series.runs[previous].folder),
        "newly_failing": None if fresh is None else [failure.name for failure in fresh],
    }


def _seen_document(series: Series, seen: Seen) -> dict[str, Any]:
    failure = seen.failure
    return {
        "case": failure.name,
        "verdict": failure.verdict,
        "cause": failure.cause,
        "message": failure.message,
        "waived": failure.waived,
        "first_seen": str(series.runs[seen.first].folder),
        "last_seen": str(series.runs[seen.last].folder),
        "failed": seen.times,
        "passed": seen.passed,
        "fails_now": seen.now,
    }


def summary(found: History) -> str:
    """The history as Markdown for a pull request."""
    sheet = markdown.Sheet()
    runs = text.count_words(sum(len(series.runs) for series in found.series), "run", "runs")
    sheet.add(f"## {markdown.TONES[tone(found)]} nncts: history of {runs} in a folder")
    rows = []
    for series in found.series:
        run, fresh = series.runs[-1], series.fresh[-1]
        rows.append(
            [series.suite, markdown.code(series.driver), f"{len(series.runs):,}", markdown.code(run.time),
             f"{run.failed:,}", "–" if fresh is None else f"{len(fresh):,}", f"{len(series.flaky):,}",
             "" if run.complete else "incomplete"]
        )  # fmt: skip
    sheet.table(["suite", "driver", "runs", "latest", "failed", "newly failing", "flaky", ""], rows, len(rows))
    for series in found.series:
        title = f"{series.suite}: newly failing in the latest run"
        news = [[markdown.code(one.name), f"{one.verdict} {one.cause}".strip(), markdown.code(one.message)]
                for one in series.fresh[-1] or ()]  # fmt: skip
        sheet.table(["case", "verdict", "message"], news, markdown.FOLDED, title)
        flaky = [[markdown.code(one.failure.name), f"{one.times:,}", f"{one.passed:,}"] for one in series.flaky]
        sheet.table(["case", "failed", "passed"], flaky, markdown.FOLDED, f"{series.suite}: flaky cases")
    unread = [[markdown.code(name), markdown.code(reason)] for name, reason in found.unread]
    sheet.table(["folder", "why it could not be read"], unread, markdown.FOLDED, f"Not read: {len(unread):,}")
    return sheet.text()
