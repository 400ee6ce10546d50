"""Folders that a user names, opened as runs: what is wrong with one is a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.record import Run, read_run
from nnhal.errors import UsageError

HINT = "give the folder of a run, such as runs/<time>-<driver>"


def open_run(folder: Path) -> Run:
    """Reads the run in a folder.

    Raises:
        UsageError: it is no folder, cannot be read, or holds no run.
    """
    try:
        if not folder.exists():
            raise UsageError(f"{folder} does not exist; {HINT}")
        if not folder.is_dir():
            raise UsageError(f"{folder} is a file; {HINT}")
        return read_run(folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}") from None


def open_runs(folders: Sequence[Path]) -> list[Run]:
    """Reads several runs.

    Raises:
        UsageError: as `open_run`, or one of them is named twice.
    """
    known: dict[Path, Path] = {}
    for folder in folders:
        place = folder.resolve()
        if place in known:
            raise UsageError(f"{folder} is given twice; name each run once")
        known[place] = folder
    return [open_run(folder) for folder in folders]
