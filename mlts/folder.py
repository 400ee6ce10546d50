"""A driver's benchmark as a run's folder: plan, records, a line of measurements for each model, end marker."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import record_lines
from harness.case import Origin, TestCase
from harness.environment import SUITE_VERSION, write_environment
from harness.record import Record, RecordFile, plain, record_of
from harness.verdict import Judgement, Verdict
from harness.waivers import Waivers
from mlts.judging import ASPECTS
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec

RECORDS, MEASUREMENTS = "records.jsonl", "measurements.jsonl"
SUITE = "mlts"
LOG_KEPT = 8192  # characters


def origin_of(model: str, tier: str, aspect: str) -> Origin:
    """What the id of a record is made of; names of files may hold anything, ids may not."""
    word = "".join(c if c.isalnum() or c in "_." else "_" for c in model)
    return Origin("MLTS", word, aspect, 0, mode=tier)


class BenchFolder:
    """The folder of one driver's benchmark.

    Attributes:
        counts: records by verdict.
        failed: number of failing records that no waiver covers.
        poor: number of poor records that no waiver covers.
        done: (model, tier) pairs that have their records.
    """

    def __init__(self, path: Path, driver: str, waivers: Waivers) -> None:
        self.path, self.driver, self.waivers = path, driver, waivers
        self.counts: Counter[str] = Counter()
        self.failed, self.poor = 0, 0
        self.done: set[tuple[str, str]] = set()
        self._records = RecordFile(path / RECORDS)
        self._resumed = False

    def begin(self, models: Sequence[tuple[str, str]], header: Mapping[str, Any]) -> None:
        """Writes the plan, for models each in a tier, and what it runs on."""
        spec = DriverSpec.parse(self.driver)
        words = {
            "driver": spec.text,
            "driver_name": spec.name,
            "suite": SUITE,
            "time": datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds"),
            "suite_version": SUITE_VERSION,
            **self.waivers.header(),
            **header,
        }
        batches = {origin_of(model, tier, aspect).batch: 1 for model, tier in models for aspect in ASPECTS}
        self._records.plan(batches, words)
        write_environment(self.path, {"driver_python": spec.python or ""})

    def resume(self, records: Mapping[str, Record], models: Sequence[tuple[str, str]]) -> None:
        """Goes on with a run: models that have all their records are not measured again."""
        for record in records.values():
            self._count(record, self.waivers.cover(record.id, record.verdict))
        for model, tier in models:
            if all(f"{origin_of(model, tier, aspect).batch}-0" in records for aspect in ASPECTS):
                self.done.add((model, tier))
        self._resumed = True
        self._records.resume()

    def _count(self, record: Record, reason: str) -> None:
        self.counts[record.verdict] += 1
        self.failed += record.bad and not reason
        self.poor += record.verdict == Verdict.POOR.value and not reason

    def add(
        self, model: str, tier: str, judgements: Mapping[str, Judgement], *, repeat: str, log: str, seconds: float
    ) -> list[Record]:
        """Records what is said of a model, aspect by aspect."""
        found = []
        for aspect, judgement in judgements.items():
            origin = origin_of(model, tier, aspect)
            rest = {"repeat": repeat, "log": log[-LOG_KEPT:] if judgement.message else "", "seconds": round(seconds, 3)}
            record = replace(record_of(TestCase(origin, (), ()), judgement, **rest), id=f"{origin.batch}-0")
            record = replace(record, waiver=self.waivers.cover(record.id, record.verdict))
            self._records.case(record)
            self._count(record, record.waiver)
            found.append(record)
        self.done.add((model, tier))
        return found

    def measured(self, row: Mapping[str, Any]) -> None:
        """Writes a line of measurements."""
        append(self.path / MEASUREMENTS, row)

    def end(self, seconds: float, *, interrupted: bool) -> None:
        """Writes the end marker."""
        self._records.end(self.counts, seconds, self._resumed, interrupted=interrupted, **self.waivers.ending())

    def close(self) -> None:
        """Writes what is not written yet."""
        self._records.close()


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Writes a line of measurements."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(plain(row)) + "\n")


def measurements(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of measurements of a run; the last of a model and tier counts. What was cut off is left out.

    Raises:
        UsageError: there are none.
    """
    path = folder / MEASUREMENTS
    if not path.is_file():
        raise UsageError(f"{folder} holds no {MEASUREMENTS}: give the folder that python -m mlts wrote")
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in record_lines.rows(path):
        if row is not None and isinstance(row.get("model"), str) and isinstance(row.get("tier"), str):
            rows[row["model"], row["tier"]] = row
    yield from rows.values()
