"""Records: one JSON line for each case, appended as it happens, after a plan and before an end marker.

Reports, comparisons and resumption read records and nothing else. A run's folder holds `records*.jsonl` (one file for
each pytest worker), environment.json, failures/, driver.log and report.html.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.case import TestCase
from harness.fates import Fate, merged, read_fates
from harness.record_lines import has_counts, is_plan, rows, values_of
from harness.verdict import BAD, Cause, Judgement, Verdict
from nnhal.errors import UsageError

FORMAT = 1
SYNC_SECONDS = 1.0  # at most this much is lost when the machine dies
_VERDICTS, _CAUSES = frozenset(v.value for v in Verdict), frozenset(c.value for c in Cause)
_BAD = frozenset(verdict.value for verdict in BAD)


@dataclass(frozen=True)
class Record:
    """One case's line.

    Attributes:
        id: with the digest; `batch` and `number` are the id's front part.
        level: the level that a driver needs for the case.
        rule: label of the rule that a negative case breaks.
        worst: the element that is furthest off (output, index, got, expected, allowed, ratio, ulp), or None.
        error: largest observed error in units of the allowed one.
        masked: share of elements that the specification leaves open.
        detail: operands, shapes and parameters in words.
        repeat: the line that repeats this case, ready for the shell.
        saved: the case's file below the run's folder, or empty.
        repeated: what came of running a failure again: `same`, `sequence`, `differs`, or empty.
        waiver: the reason of the waiver that covers it, or empty.
        log: end of the driver's log, after a death or silence.
        notes: what is worth knowing and no failure, as sentences.
        numbers: measured in the case, by name.
        sample: resources of the driver's process after the case (rss, descriptors, threads, cpu).
    """

    id: str
    batch: str
    number: int
    operation: str
    signature: str
    kind: str
    mode: str
    verdict: str
    cause: str = ""
    stage: str = ""
    message: str = ""
    level: int = 1
    rule: str = ""
    worst: Mapping[str, Any] | None = None
    error: float | None = None
    ulp: float | None = None
    masked: float = 0.0
    detail: str = ""
    repeat: str = ""
    saved: str = ""
    repeated: str = ""
    waiver: str = ""
    log: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    sample: Mapping[str, float] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """Whether the case fails a run, waived or not."""
        return self.verdict in _BAD


def record_of(case: TestCase, judgement: Judgement, **rest: Any) -> Record:
    """The record of a judged case; `rest` fills in the fields that the judgement does not know."""
    origin = case.origin
    return Record(
        id=case.id,
        batch=origin.batch,
        number=origin.number,
        operation=origin.operation,
        signature=origin.signature,
        kind=origin.kind,
        mode=origin.mode,
        verdict=judgement.verdict.value,
        cause=judgement.cause.value,
        stage=judgement.stage,
        message=judgement.message,
        level=int(case.level),
        rule=origin.rule,
        worst=asdict(judgement.worst) if judgement.worst else None,
        error=judgement.error,
        ulp=judgement.ulp,
        masked=judgement.masked,
        notes=judgement.notes,
        numbers=judgement.numbers,
        detail=origin.detail,
        **rest,
    )


class RecordFile:
    """Appends lines; they reach the disk each second and at each failure."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        cut = _is_cut_off(path)
        self._file = path.open("a", encoding="utf-8")
        self._synced = time.monotonic()
        if cut:  # what comes must not be glued to the line that a killed run left half written
            self._file.write("\n")

    def plan(self, selected: Mapping[str, int], header: Mapping[str, Any]) -> None:
        """What will be run: number of cases by batch, and what is known of driver and options."""
        total = sum(selected.values())
        self._write({"record": "plan", "format": FORMAT, "selected": total, "batches": dict(selected), **header}, True)

    def selected(self, selected: Mapping[str, int], seconds: float) -> None:
        """What is selected by now, by batch, in a run whose plan grows; replaces what the plan says.

        Args:
            selected: number of cases by batch, those that the plan told included.
            seconds: that the run has taken so far.
        """
        total = sum(selected.values())
        self._write({"record": "selected", "selected": total, "batches": dict(selected), "seconds": seconds}, False)

    def resume(self) -> None:
        """Marks that a run goes on: an end marker before it no longer counts."""
        self._write({"record": "resume"}, True)

    def case(self, record: Record) -> None:
        """Appends a case's record."""
        self._write({"record": "case", **asdict(record)}, record.bad)

    def end(self, counts: Mapping[str, int], seconds: float, resumed: bool = False, **more: Any) -> None:
        """Marks the run as complete; a resumed one completes what other files left unfinished, too."""
        self._write({"record": "end", "counts": dict(counts), "seconds": seconds, "resumed": resumed, **more}, True)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, row: Mapping[str, Any], now: bool) -> None:
        self._file.write(json.dumps(plain(row), allow_nan=False) + "\n")
        self._file.flush()  # a killed suite loses nothing that was written
        if now or time.monotonic() - self._synced > SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()


def _is_cut_off(path: Path) -> bool:
    """Whether a file ends in the middle of a line."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become words."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


@dataclass
class Run:
    """A run as its folder tells it.

    Attributes:
        plan: the plan's line, or an empty one.
        records: by id without digest, the last one of each.
        ended: whether every file of the run has its end marker, or a resumed run came to the end of all.
        damaged: lines that could not be read (the one in flight when the suite was killed), or are no records.
        end: the last end marker, or an empty one.
        waivers: what became of each waiver, over all files, as the end markers tell it; empty in a run without its end,
            of which the records alone tell what was waived.
        foreign: verdicts and causes that this suite does not know; the lines that have them are counted as damaged.
    """

    folder: Path
    plan: dict[str, Any]
    records: dict[str, Record]
    ended: bool
    damaged: int
    environment: dict[str, Any]
    end: dict[str, Any] = field(default_factory=dict)
    waivers: list[Fate] = field(default_factory=list)
    foreign: tuple[str, ...] = ()

    @property
    def selected(self) -> int:
        """Number of cases that were to run."""
        return int(self.plan.get("selected", 0))

    def missing(self) -> dict[str, int]:
        """Number of cases that were selected and have no record, by batch."""
        have = Counter(record.batch for record in self.records.values())
        planned: dict[str, int] = self.plan.get("batches", {})
        return {batch: number - have[batch] for batch, number in planned.items() if number > have[batch]}

    def counts(self) -> dict[str, int]:
        """Number of cases by verdict; what was selected and has no record is NOT_RUN. The sum is `selected`."""
        counts = {verdict.value: 0 for verdict in Verdict}
        for record in self.records.values():
            counts[record.verdict] += 1
        counts[Verdict.NOT_RUN.value] += max(self.selected - len(self.records), 0)
        return counts

    @property
    def complete(self) -> bool:
        """Whether all that was selected has a record and the run came to its end."""
        return bool(self.plan) and self.ended and len(self.records) >= self.selected and not self.missing()


@dataclass
class _Reading:
    """What the lines of all files have told so far.

    Attributes:
        ends: the last end marker of each file; None where the file goes on behind it, or has none.
    """

    plan: dict[str, Any] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    ends: dict[Path, dict[str, Any] | None] = field(default_factory=dict)
    damaged: int = 0
    foreign: set[str] = field(default_factory=set)

    def take(self, row: dict[str, Any] | None, file: Path) -> None:
        """Takes in one line.

        Raises:
            UsageError: it is a plan of another format.
        """
        kind = None if row is None else row.get("record")
        known = row is not None and self._takes(row, kind if isinstance(kind, str) else "", file)
        self.damaged += not known

    def _takes(self, row: dict[str, Any], kind: str, file: Path) -> bool:
        if kind == "case":
            return self._case(row)
        if kind == "plan" and is_plan(row):
            if row["format"] != FORMAT:
                raise UsageError(
                    f"{file} has record format {row['format']}, {FORMAT} is understood: use the suite that wrote it"
                )
            self.plan = self.plan or row
            self.ends[file] = None
        elif kind == "resume":
            self.ends[file] = None
        elif kind == "selected" and self.plan and has_counts(row):
            self.plan |= {name: row[name] for name in ("selected", "batches", "seconds") if name in row}
        elif kind == "end":
            self.ends[file] = row
        else:
            return False
        return True

    def _case(self, row: dict[str, Any]) -> bool:
        values = values_of(row)
        if values is None:
            return False
        odd = {values["verdict"]} - _VERDICTS | {values.get("cause", "")} - _CAUSES
        self.foreign |= odd
        if not odd:
            record = Record(**values)
            self.records[f"{record.batch}-{record.number}"] = record
        return not odd

    def run(self, folder: Path) -> Run:
        """The run that the lines are of."""
        ends = [row for row in self.ends.values() if row is not None]
        everything = bool(self.plan) and len(self.records) >= int(self.plan.get("selected", 0))
        ended = len(ends) == len(self.ends) or (everything and any(row.get("resumed") for row in ends))
        found = Run(
            folder, self.plan, self.records, ended, self.damaged, _environment(folder), ends[-1] if ends else {}
        )
        found.foreign = tuple(sorted(self.foreign))
        if ended:
            last = max(str(row.get("part", "")) for row in ends)  # what came before a resumption is counted in it
            found.waivers = merged(
                fate for row in ends if str(row.get("part", "")) == last for fate in read_fates(row.get("waivers"))
            )
        return found


def read_run(folder: Path) -> Run:
    """Reads a run's folder; lines that are cut off or damaged are counted and left out.

    Raises:
        UsageError: there is no such folder or no records in it, they cannot be read, or the format is another.
    """
    files = sorted(folder.glob("records*.jsonl"))
    if not files:
        raise UsageError(f"{folder} holds no records*.jsonl; give the folder of a run, such as runs/<time>-<driver>")
    reading = _Reading()
    for file in files:
        reading.ends[file] = None
        try:
            for row in rows(file):
                reading.take(row, file)
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    return reading.run(folder)


def _environment(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "environment.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def tally(records: Iterable[Record]) -> dict[str, int]:
    """Number of records by verdict."""
    return dict(Counter(record.verdict for record in records))
