"""Figures of a page: charts that charts.js draws from few numbers, however many were measured.

Without scripts a figure is not shown; what it shows stands in a table or list beside it, which whoever makes a figure
adds. A page with figures has the sheets of `styles` behind its own and the scripts of `scripts`, in their order,
behind its figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from reports import text

FOLDER = Path(__file__).resolve().parent
STYLES = ("assets/uplot.min.css", "charts.css")
SCRIPTS = ("assets/uplot.min.js", "charts.js")
KINDS = ("distribution", "rounds", "accumulation", "timeline")
DIGITS = 6  # a page holds this many of each number
NAME = 120  # characters of a name in a chart
LICENCE = "Charts by uPlot 1.6.32, © 2022 Leon Sorokin, MIT License."

_FIGURE = Markup(
    '<figure class="chart" data-kind="{kind}"><figcaption>{title}</figcaption>'
    '<div class="plot" role="img" aria-label="{title}: {words}"></div>'
    '<script type="application/json">{data}</script></figure>'
)


def styles() -> tuple[str, ...]:
    """The sheets of a page with charts."""
    return tuple((FOLDER / name).read_text(encoding="utf-8") for name in STYLES)


def scripts() -> tuple[str, ...]:
    """The scripts of a page with charts."""
    return tuple((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)


def figure(kind: str, title: str, data: Mapping[str, Any] | None, words: str) -> Markup:
    """A chart.

    Args:
        kind: one of `KINDS`; charts.js says what the data of each are.
        title: stands above it.
        data: numbers and names; what is not finite is left out. Without any there is no figure.
        words: what it shows and where the same stands in words, for who does not see it.
    """
    if not data:
        return Markup()
    return _FIGURE.format(kind=kind, title=title, words=words, data=htmlsafe_json_dumps(_plain(data)))


def timeline(
    x: Sequence[float],
    label: str,
    panels: Sequence[tuple[str, Mapping[str, Sequence[float | None]]]],
    marks: Sequence[tuple[float, str]] = (),
    *,
    stepped: bool = False,
) -> dict[str, Any] | None:
    """Data of a timeline: charts one beside the other over the same axis; None with fewer than two moments.

    Args:
        x: ascending; seconds, mostly.
        label: of that axis.
        panels: for each chart the label of what it shows and its unit, and values by name; those without any value
            are left out.
        marks: what happened when; drawn as numbered lines across each chart.
        stepped: values hold until the next.
    """
    if len(x) < 2:
        return None
    shown = []
    for title, series in panels:
        some = [
            {"name": name, "values": rounded(values)}
            for name, values in series.items()
            if any(value is not None for value in values)
        ]
        shown += [{"label": title, "series": some}] if some else []
    if not shown:
        return None
    lines = [[value, words] for (_, words), value in zip(marks, rounded([at for at, _ in marks]), strict=True)]
    return {"x": rounded(x), "label": label, "panels": shown, "marks": lines, "stepped": stepped}


def parts_of(count: int, most: int) -> Iterator[range]:
    """Divides places into at most so many neighbourhoods of all but equal size, each of which becomes one point."""
    number = min(count, most)
    for part in range(number):
        yield range(part * count // number, (part + 1) * count // number)


def quarters(count: int) -> list[int]:
    """Places at the start, after each quarter, and at the end of so many; each once, none where there are none."""
    return sorted({part * (count - 1) // 4 for part in range(5)}) if count else []


def rounded(values: Sequence[float | None]) -> list[float | None]:
    """Numbers in the digits that a page holds; what is not finite has none."""
    return [None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}") for value in values]


def _plain(value: Any) -> Any:
    """Data as JSON that a browser reads: no infinities, and texts without what turns or breaks a page."""
    if isinstance(value, str):
        return text.clean(text.clip(value, NAME))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return int(value)  # two characters fewer, of very many
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
