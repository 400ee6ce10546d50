"""Runs made up for the tests of the reports: written as the suite writes them, and read back."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from harness.record import Record, RecordFile, Run, read_run
from reports import tables

HEADER = {
    "driver": "vendor,mode=fast",
    "driver_name": "vendor",
    "driver_version": "1.4",
    "driver_type": "ACCELERATOR",
    "feature_level": 6,
    "traits": {"execution_modes": ["synchronous"], "validates": True},
    "profile": "quick",
    "seed": 0,
    "options": ["--driver=vendor,mode=fast"],
    "filtered": False,
    "time": "2026-01-02T03:04:05+00:00",
    "suite_version": "0.1.0",
}


def made(number: int, verdict: str = "PASS", operation: str = "ADD", signature: str = "float32", kind: str = "drawn",
         **rest: object) -> Record:  # fmt: skip
    """A record; a failing one needs a cause and a message, which `rest` gives."""
    batch = f"{operation}-{signature}-sync-{kind}"
    defaults: dict[str, object] = {"rule": "RANK_A"} if kind == "broken" else {}
    defaults["repeat"] = f"pytest --driver=vendor --case={batch}-{number}-abcdef"
    values = {**defaults, **rest}
    return Record(f"{batch}-{number}-abcdef", batch, number, operation, signature, kind, "sync", verdict, **values)  # type: ignore[arg-type]


def write_run(folder: Path, records: list[Record], more: dict[str, int] | None = None, ended: bool = True,
              **header: object) -> Run:  # fmt: skip
    """Writes a run's folder as the suite does and reads it back; `more` are cases that get no record."""
    batches = Counter(record.batch for record in records)
    batches.update(more or {})
    file = RecordFile(folder / "records.jsonl")
    file.plan(batches, {**HEADER, **header})
    for record in records:
        file.case(record)
    if ended:
        file.end(tables.Tally().counts, 1.0)
    file.close()
    (folder / "environment.json").write_text(json.dumps({"python": "3.11.7", "packages": {"numpy": "2.0"}}))
    return read_run(folder)


def sound(count: int = 3) -> list[Record]:
    """Records of a driver without fault: valid cases and one that breaks a rule."""
    return [made(n, error=0.5, ulp=1.0) for n in range(count - 1)] + [made(0, kind="broken")]


NOT_SUPPORTED = made(7, "NOT_SUPPORTED", message="no")
FAILED = made(8, "FAIL", cause="VALUE", message="wrong")
