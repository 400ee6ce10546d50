"""A driver's stress runs as a run's folder: plan, a record of each scene, samples, saved failures, end marker."""

from __future__ import annotations

import datetime
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.case import TestCase
from harness.environment import SUITE_VERSION, write_environment
from harness.record import Record, RecordFile, plain, record_of
from harness.verdict import Judgement
from harness.waivers import Waivers
from nnhal.loading import DriverSpec
from stress.evidence import Evidence
from stress.result import Result, Side
from stress.scene import Scene

RECORDS, SAMPLES = "records.jsonl", "samples.jsonl"
LOG_KEPT = 8192  # characters
POINTS = 500  # samples of a run that are kept


def judgement_of(result: Result) -> Judgement:
    """A result in the words of all suites."""
    side = f"{result.side.value}, " if result.side != Side.NONE else ""
    stage = f"{side}{result.step}" if result.step else result.side.value
    parts = [result.message]
    if result.stack:
        parts.append(result.stack)
    numbers = {**result.numbers, "seen_after": round(result.at, 4)}
    if result.exit is not None:
        numbers["exit"] = float(result.exit)
    text = "\n".join(part for part in parts if part)
    return Judgement(result.ending.verdict, result.cause, stage, text, notes=result.notes, numbers=numbers)


def command(driver: str, preset: str, seed: int, scene: str, more: Sequence[str] = ()) -> str:
    """The line that repeats one scene."""
    words = ["python", "-m", "stress", f"--driver={driver}", f"--preset={preset}", f"--only={scene}"]
    return shlex.join([*words, f"--seed={seed}", *more])


def save_failure(folder: Path, name: str, result: Result) -> str:
    """Writes the case that a client failed with; gives its place below the folder, or nothing where there is none."""
    if not result.saved:
        return ""
    saved = f"failures/{name}.case"
    (folder / "failures").mkdir(exist_ok=True)
    (folder / saved).write_bytes(result.saved)
    return saved


class StressFolder:
    """The folder of one driver's stress runs.

    Attributes:
        counts: records by verdict.
        failed: number of failing runs that no waiver covers.
        done: ids of the runs that have a record.
    """

    def __init__(self, path: Path, driver: str, waivers: Waivers) -> None:
        self.path, self.driver, self.waivers = path, driver, waivers
        self.counts: Counter[str] = Counter()
        self.failed = 0
        self.done: set[str] = set()
        self._records = RecordFile(path / RECORDS)
        self._resumed = False

    def begin(self, scenes: Sequence[Scene], header: Mapping[str, Any]) -> None:
        """Writes the plan and what it runs on."""
        spec = DriverSpec.parse(self.driver)
        words = {
            "driver": spec.text,
            "driver_name": spec.name,
            "suite": "stress",
            "time": datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds"),
            "suite_version": SUITE_VERSION,
            **self.waivers.header(),
            **header,
        }
        self._records.plan(dict(Counter(scene.origin.batch for scene in scenes)), words)
        write_environment(self.path, {"driver_python": spec.python or ""})

    def resume(self, records: Mapping[str, Record]) -> None:
        """Goes on with a run."""
        for name, record in records.items():
            self.done.add(name)
            self.counts[record.verdict] += 1
            reason = self.waivers.cover(record.id, record.verdict)
            self.failed += record.bad and not reason
        self._resumed = True
        self._records.resume()

    def add(self, scene: Scene, result: Result, evidence: Evidence, repeat: str, seconds: float) -> Record:
        """Records a run."""
        name = f"{scene.origin.batch}-0"
        saved = save_failure(self.path, name, result)
        case = TestCase(scene.origin, (), ())
        log = result.log[-LOG_KEPT:]
        rest = {"repeat": repeat, "saved": saved, "log": log, "seconds": round(seconds, 3)}
        record = replace(record_of(case, judgement_of(result), **rest), id=name)
        record = replace(record, waiver=self.waivers.cover(record.id, record.verdict))
        self._samples(name, evidence)
        self._records.case(record)
        self.done.add(name)
        self.counts[record.verdict] += 1
        self.failed += record.bad and not record.waiver
        return record

    def _samples(self, name: str, evidence: Evidence) -> None:
        """What the driver's process used over time, and what happened when: for the page."""
        step = max(1, len(evidence.samples) // POINTS)
        points = [
            [
                round(timed.at, 3),
                timed.sample.rss,
                timed.shared,
                timed.sample.descriptors,
                timed.sample.threads,
                round(timed.sample.cpu_seconds, 2),
                timed.executions,
                round(timed.working, 6),
            ]
            for timed in evidence.samples[::step]
        ]
        row = {"id": name, "marks": [list(mark) for mark in evidence.marks], "samples": points}
        with (self.path / SAMPLES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(row)) + "\n")

    def end(self, seconds: float, *, interrupted: bool) -> None:
        """Writes the end marker."""
        self._records.end(self.counts, seconds, self._resumed, interrupted=interrupted, **self.waivers.ending())

    def close(self) -> None:
        """Writes what is not written yet."""
        self._records.close()
