"""A run's records for other programs: JSON by a published schema, and CSV that a spreadsheet may open."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from harness.record import Record, Run, plain
from reports import compare as comparing
from reports import headline as heading
from reports.compare import Comparison
from reports.parts import suite_of
from reports.text import clean

FORMAT, VERSION = "nncts-run", 1
SCHEMA = Path(__file__).with_name("records.schema.json")

NUMBERS = ("level", "number", "error", "ulp", "masked", "seconds")
STRUCTURES = ("worst", "notes", "numbers", "sample")
COLUMNS = tuple(field.name for field in fields(Record))
# A spreadsheet takes a cell that begins so for a formula; such cells, and those that begin with an apostrophe, get one
# in front, which readers of the file take away again.
FORMULA = tuple("=+-@\t\r\n'＝＋－＠")


def schema() -> dict[str, Any]:
    """The schema of the JSON document."""
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return found


def document(run: Run, *, records: bool = True) -> dict[str, Any]:
    """A run as a JSON document by the schema: what was planned, what came of it, and every record.

    Args:
        run: of any suite.
        records: whether the records are in it; without them it follows no schema.
    """
    totals = heading.totals(run)
    headline = heading.headline(run, totals)
    return {
        "format": FORMAT,
        "version": VERSION,
        "run": {
            "folder": run.folder.resolve().name,
            "suite": suite_of(run),
            "complete": run.complete,
            "ended": run.ended,
            "damaged_lines": run.damaged,
        },
        "headline": {"tone": headline.tone, "text": headline.text, "notes": [*headline.notes]},
        "problems": [*totals.problems],
        "counts": dict(run.counts()),
        "totals": {
            "selected": totals.selected,
            "judged": totals.tally.judged,
            "failed": totals.failed,
            "waived": totals.waived,
            "internal": totals.internal,
            "negative": totals.negative,
        },
        "waivers": waivers(run),
        "plan": plain(run.plan),
        "environment": plain(run.environment),
        "end": plain(run.end),
        "records": [row(record) for record in run.records.values()] if records else [],
    }


def waivers(run: Run) -> list[dict[str, Any]]:
    """What became of each waiver; of a run without its end, the reasons that its records tell, with their number."""
    if run.waivers:
        return [plain(fate.row()) for fate in run.waivers]
    reasons = Counter(str(record.waiver) for record in run.records.values() if record.waiver)
    return [{"reason": reason, "covered": count} for reason, count in reasons.most_common()]


def text(run: Run) -> str:
    """The document as text, a line for each record."""
    content = document(run)
    records = content.pop("records")
    head = json.dumps(content, indent=1)[:-2]
    lines = ",\n".join(f"  {json.dumps(record)}" for record in records)
    return f'{head},\n "records": [\n{lines}\n ]\n}}\n' if records else f'{head},\n "records": []\n}}\n'


def row(record: Record) -> dict[str, Any]:
    """A record as the schema tells it."""
    return {name: plain(getattr(record, name)) for name in COLUMNS}


def comparison(first: Run, second: Run, found: Comparison) -> dict[str, Any]:
    """Two runs side by side as a JSON document: what changed, kind by kind, accuracy, and how quick they were."""
    headline = comparing.headline(found)
    return {
        "format": "nncts-comparison",
        "version": VERSION,
        "runs": [
            {
                "folder": run.folder.resolve().name,
                "suite": suite_of(run),
                "driver": plain(run.plan.get("driver")),
                "driver_version": plain(run.plan.get("driver_version")),
                "complete": run.complete,
                "counts": dict(run.counts()),
            }
            for run in (first, second)
        ],
        "headline": {"tone": headline.tone, "text": headline.text, "notes": [*headline.notes]},
        "regressed": found.regressed,
        "worse": found.worse,
        "same": found.same,
        "still_failing": found.still_failing,
        "slower": found.slower,
        "changes": [
            {
                "kind": kind.key,
                "title": kind.title,
                "worse": kind.worse,
                "cases": [_change(change) for change in found.changes.get(kind.key, ())],
            }
            for kind in comparing.KINDS
        ],
        "accuracy": [plain(asdict(one)) for one in found.accuracy],
        "paces": [{"title": table.title, "rows": [plain(asdict(one)) for one in table.rows]} for table in found.paces],
        "waived": [{"id": str(record.id), "reason": str(record.waiver)} for record in found.waived],
    }


def _change(change: comparing.Change) -> dict[str, Any]:
    sides = [
        None if record is None else {key: row(record)[key] for key in ("id", "verdict", "cause", "waiver")}
        for record in (change.before, change.after)
    ]
    found = row(change.record)
    return {"case": change.name, "before": sides[0], "after": sides[1], "message": found["message"],
            "repeat": found["repeat"]}  # fmt: skip


def table(run: Run) -> str:
    """A run's records as CSV (RFC 4180), a line for each and one of names; structures are JSON in their cells."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for record in run.records.values():
        values = row(record)
        writer.writerow([_cell(name, values[name]) for name in COLUMNS])
    return out.getvalue()


def _cell(name: str, value: Any) -> str | int | float:
    if name in NUMBERS and not isinstance(value, str):
        return "" if value is None else value
    if name in STRUCTURES:
        return "" if not value else harmless(json.dumps(value, ensure_ascii=False))
    return harmless(str(value))


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula: an apostrophe goes before what looks like one."""
    found = clean(text)
    return f"'{found}" if found.startswith(FORMULA) else found


def restored(cell: str) -> str:
    """The text of a cell."""
    return cell[1:] if cell.startswith("'") else cell
