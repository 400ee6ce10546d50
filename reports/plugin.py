"""Writes the pages at the end of a pytest session: report.html and junit.xml beside the records of each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.record import read_run
from nnhal.errors import UsageError
from reports import html, junit

LINES = pytest.StashKey[list[tuple[str, bool]]]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Makes the pages, once the records have their end markers; under pytest-xdist the controller alone does."""
    config = session.config
    if hasattr(config, "workerinput"):
        return
    folders: Sequence[Path] = getattr(config, "nncts_run_folders", ())
    config.stash[LINES] = [line for folder in folders for line in write_pages(Path(folder))]


def write_pages(folder: Path) -> list[tuple[str, bool]]:
    """Writes a run's pages; says where, or why not, in lines each with whether it tells of trouble."""
    try:
        run = read_run(folder)
        html.write(html.render([run]), folder / html.REPORT)
        junit.write(run, folder / junit.FILE)
    except (UsageError, OSError) as error:
        return [(f"no report of {folder}: {error}", True)]
    return [(f"report: {folder / html.REPORT}", False), (f"junit: {folder / junit.FILE}", False)]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says where the pages are."""
    for line, trouble in config.stash.get(LINES, []):
        terminalreporter.write_line(line, red=trouble)
