"""What a page shows of one suite's runs besides what it shows of all: sections that know their suite's files."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.record import Run


@dataclass(frozen=True)
class Part:
    """A section of a page.

    Attributes:
        anchor: id of the section on the page; ids within begin with it and a hyphen.
        title: heading, and words of the link to it.
        body: what stands below the heading; everything from a driver or file is escaped in it.
        count: shown beside the link, or None.
        charts: whether figures in it are drawn by charts.js.
        styles: sheets besides those of every page, as text.
    """

    anchor: str
    title: str
    body: Markup
    count: int | None = None
    charts: bool = False
    styles: tuple[str, ...] = ()


Maker = Callable[[Sequence[Run]], list[Part]]

# In the order of the page. What stands above this package is found by name, as drivers are.
MAKERS = (
    "mlts.page_part:parts",
    "reports.stressing:parts",
    "reports.campaigns:fuzzing",
    "reports.campaigns:graphs",
)
SUITES = ("conformance", "mlts", "stress", "fuzz", "graphs")


def suite_of(run: Run) -> str:
    """The suite whose run it is, one of `SUITES`; a plan without its name is a session of pytest."""
    suite = run.plan.get("suite")
    return suite if isinstance(suite, str) and suite in SUITES else SUITES[0]


def parts(runs: Sequence[Run]) -> list[Part]:
    """The sections that the suites make of runs; each takes the runs that it knows something of."""
    found: list[Part] = []
    for name in MAKERS:
        module, _, attribute = name.partition(":")
        make: Maker = getattr(importlib.import_module(module), attribute)
        found += make(runs)
    return found
