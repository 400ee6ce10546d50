"""What sections that suites add to a page are made with: templates, and words of a run that may hold anything."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from harness import record_lines
from harness.record import Run
from reports import charts, html, text
from reports.tables import real

SHOWN = 200  # characters of a short text
LARGEST = 1e18  # numbers of files from this on are taken for none
_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")


@lru_cache(maxsize=4)
def environment(*folders: Path) -> Environment:
    """Templates of sections, in these folders and the reports' own; every text in them is escaped."""
    shared = html.environment()
    found = shared.overlay(loader=FileSystemLoader([*folders, html.FOLDER]))
    found.filters = {**shared.filters, "driver_of": html.driver_name, "words_of": words_of}
    found.globals = {**shared.globals, "figure": charts.figure}
    return found


def sheet() -> str:
    """The style of sections; it needs that of charts."""
    return (html.FOLDER / "sections.css").read_text(encoding="utf-8")


def words_of(run: Run) -> list[str]:
    """What tells a run from others of its driver: version, time, folder."""
    words = [text.clip(found, 80) for name in ("driver_version", "time") if (found := run.plan.get(name))]
    return [*words, text.clip(run.folder.name, 120)]


def anchors(prefix: str, names: Sequence[str]) -> list[str]:
    """Ids for names that may hold anything: the same for the same names in every run, and none twice."""
    found: dict[str, None] = {}
    for name in names:
        plain = f"{prefix}-{_PLAIN.sub('_', name)[:100]}"
        number = 1
        while (one := plain if number == 1 else f"{plain}-{number}") in found:
            number += 1
        found[one] = None
    return list(found)


def amount_of(value: object) -> float | None:
    """A number of a file, none below 0; None where there is none."""
    found = float(value) if type(value) is int and abs(value) < LARGEST else real(value)
    return found if found is not None and 0 <= found < LARGEST else None


def mapping_of(value: object) -> Mapping[str, Any]:
    """A table of a file; empty where there is none."""
    return value if isinstance(value, Mapping) else {}


def list_of(value: object) -> Sequence[Any]:
    """A list of a file; empty where there is none."""
    return value if isinstance(value, (list, tuple)) else ()


def word_of(value: object, limit: int = SHOWN) -> str:
    """A text or number of a file, cut off; empty where there is none."""
    return text.clip(value, limit) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def rows_of(path: Path) -> Iterator[Mapping[str, Any] | None]:
    """The lines of a file as tables, None for one that is none, as where it was cut off; nothing without the file."""
    with contextlib.suppress(OSError):
        yield from record_lines.rows(path)


def ending_words(run: Run) -> str:
    """How a run came to its end."""
    if not run.ended:
        return "no end marker: it was killed, or still runs"
    return "interrupted" if run.end.get("interrupted") is True else "to its end"
