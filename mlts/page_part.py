"""The benchmark's section in the page of several suites: what `mlts.page` shows of each run, one below the other."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from harness.record import Run
from mlts.folder import MEASUREMENTS, SUITE
from mlts.page import content, environment, models_sheet, rows_of
from reports import sections
from reports.parts import Part, suite_of

ANCHOR = "benchmark"
LEVEL = 5  # of headings within a model: below the page, its section, the run, and the list of models


def parts(runs: Sequence[Run]) -> list[Part]:
    """The section of all runs of the benchmark, where there are any.

    Sessions of pytest that ran models are among them: they have their measurements, too.
    """
    known = [run for run in runs if suite_of(run) == SUITE or (run.folder / MEASUREMENTS).is_file()]
    if not known:
        return []
    template = environment().get_template("part.html.j2")
    bodies = []
    models = 0
    for number, run in enumerate(known, 1):
        found = content(run, rows_of(run))
        models += len(found["models"])
        words = {"run": run, "prefix": f"{ANCHOR}-{number}-", "level": LEVEL, "last": number == len(known)}
        bodies.append(template.render(**words, **found))
    sheets = (sections.sheet(), models_sheet())
    return [Part(ANCHOR, "Benchmark", Markup("\n".join(bodies)), models, charts=True, styles=sheets)]
