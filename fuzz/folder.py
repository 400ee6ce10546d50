"""The folder of one fuzzing run: records of what was found, each with its case, its input and words for a person."""

from __future__ import annotations

import datetime
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuzz.plan import Plan, plan_of
from fuzz.state import Finding
from fuzz.triage import CASE, INPUT
from harness.case_file import load, save, seal
from harness.driver import DriverFacts
from harness.environment import SUITE_VERSION, write_environment
from harness.record import Record, RecordFile, Run, read_run
from harness.session import facts_header, failure_text
from harness.verdict import BAD
from harness.waivers import Waivers
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec

RECORDS, FAILURES = "records.jsonl", "failures"
PROGRESS = "progress.jsonl"
KNOWN = "fuzz.json"  # what was known of the driver when its inputs became cases


class RunFolder:
    """Records and failures of a run.

    Attributes:
        counts: records by verdict.
        failed: failures that no waiver covers and that were not known before.
        records: those so far, earlier parts included.
    """

    def __init__(self, folder: Path, driver: str, arguments: Sequence[str], waivers: Waivers) -> None:
        self.folder, self.driver, self.waivers = folder, driver, waivers
        self.counts: Counter[str] = Counter()
        self.failed = 0
        self.records: list[Record] = []
        self._arguments = tuple(arguments)
        self._selected: Counter[str] = Counter()
        self._file = RecordFile(folder / RECORDS)
        self._resumed = False

    def begin(self, plan: Plan, facts: DriverFacts | None, options: Sequence[str]) -> None:
        """Writes the plan and what it runs on."""
        spec = DriverSpec.parse(self.driver) if self.driver else None
        header = {
            "driver": spec.text if spec else "",
            "driver_name": spec.name if spec else "the suite's own readers",
            **plan.header(),
            "options": list(options),
            "filtered": False,
            "time": datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds"),
            "suite_version": SUITE_VERSION,
            **self.waivers.header(),
            **(facts_header(facts) if facts else {}),
        }
        self._file.plan({}, header)
        write_environment(self.folder, {"driver_python": spec.python or "" if spec else ""})

    def resume(self, run: Run) -> None:
        """Goes on with a run.

        Raises:
            UsageError: it was begun with other waivers.
        """
        self.waivers.check_resumed(run.plan, self.folder)
        self._resumed = True
        for record in run.records.values():
            self.counts[record.verdict] += 1
            self._selected[record.batch] += 1
            self.records.append(record)
            self.waivers.cover(record.id, record.verdict)
            self.failed += record.bad and not record.waiver and not record.notes
        self._file.resume()

    def add(self, row: Mapping[str, Any], place: Path, known: Finding | None, text: str) -> Record:
        """Records what a look at an input came to.

        Args:
            row: the look's result.
            place: folder with the case and the input.
            known: the finding that it is one more of; None for a new one.
            text: the driver, with what must be loaded before it.
        """
        told = dict(row["record"])
        told["notes"] = tuple(told["notes"])
        record = Record(**told)
        batch = record.batch
        self._selected[batch] += 1
        number = self._selected[batch]
        case = load(place / CASE)
        case = seal(replace(case, digest="", origin=replace(case.origin, number=number)))
        record = replace(record, id=case.id, number=number)
        if known is None:
            folder = self.folder / FAILURES
            folder.mkdir(exist_ok=True)
            file = folder / f"{case.id}.case"
            save(case, file)
            repeat = shlex.join(["pytest", f"--driver={text}", *self._arguments, f"--case={file}"])
            record = replace(record, saved=f"{FAILURES}/{file.name}", repeat=repeat)
        else:
            record = replace(record, notes=(*record.notes, f"known since {known.first}: {known.id}"))
        failed = record.verdict in {v.value for v in BAD}
        record = replace(record, waiver=self.waivers.cover(record.id, record.verdict))
        if known is None:
            self._write_words(record, row, place)
        self._file.selected(self._selected, 0.0)
        self._file.case(record)
        self.counts[record.verdict] += 1
        self.records.append(record)
        self.failed += failed and not record.waiver and known is None
        return record

    def _write_words(self, record: Record, row: Mapping[str, Any], place: Path) -> None:
        folder = self.folder / FAILURES
        target = record.signature
        (folder / f"{target}-{record.id.rpartition('-')[2]}.bin").write_bytes((place / INPUT).read_bytes())
        words = failure_text(record, self.driver, self.folder)
        (folder / f"{record.id}.txt").write_text(f"{words}\n\n{row['listing']}\n\n{record.log}\n", encoding="utf-8")
        if row["dot"]:
            (folder / f"{record.id}.dot").write_text(row["dot"], encoding="utf-8")

    def note(self, seconds: float, numbers: Mapping[str, float]) -> None:
        """Notes where the run is, for the page's curves."""
        with (self.folder / PROGRESS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"seconds": round(seconds, 3), **numbers}) + "\n")

    def end(self, seconds: float, targets: Mapping[str, Mapping[str, float]], *, interrupted: bool) -> None:
        """Writes the end marker, with what each target came to."""
        more = {"interrupted": interrupted, "targets": dict(targets), **self.waivers.ending()}
        self._file.end(self.counts, seconds, self._resumed, **more)

    def close(self) -> None:
        """Closes the records."""
        self._file.close()


def read_fuzzing(folder: Path) -> tuple[Plan, Run]:
    """The fuzzing run in a folder.

    Raises:
        UsageError: there is none.
    """
    run = read_run(folder)
    try:
        return plan_of(str(run.plan["driver"]), run.plan), run
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"{folder} is no fuzzing run; give the folder of one, such as runs/<time>-fuzz-<driver>"
        ) from None
