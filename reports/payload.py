"""All cases of a page in little room: columns with dictionaries, deflated, as text that a page carries and unpacks.

A browser makes nothing of it until somebody asks for cases (`browser.js`). Thousands of cases share their words, so a
case costs a few bytes; its digest is what cannot be made smaller.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from harness.record import Record, Run
from reports import text
from reports.parts import suite_of
from reports.tables import DRIVER_FAULTS, INTERNAL, NOT_SUPPORTED, POOR, UNMEASURABLE, column, first_line, real, shape

# What a page holds at most of the texts of single cases, in characters before they are deflated. Records hold all.
MOST, SHORT = 2000, 200  # of one text; of a name
MESSAGES, TEXTS = 2_000_000, 1_000_000  # of different messages; of operands, logs, notes and measurements
_DIGITS = {"error": 4, "ulp": 4, "masked": 4, "seconds": 2}
_EXTRA = ("detail", "log", "notes", "worst", "numbers")
_WORST = ("output", "index", "got", "expected", "allowed", "ratio", "ulp")
_FIRST = (*DRIVER_FAULTS, INTERNAL, POOR, NOT_SUPPORTED)  # whose texts come first when not all fit


@dataclass(frozen=True)
class Payload:
    """The cases of a page.

    Attributes:
        content: base64 of deflated JSON; letters, digits, `+`, `/` and `=`.
        cases: how many there are.
        alike: number of each shape of a message, by which a link names cases that differ in numbers only.
        bare: number of cases that did not pass and whose texts had no room.
        twice: ids that several runs have.
    """

    content: str
    cases: int
    alike: Mapping[str, int]
    bare: int
    twice: frozenset[str]

    def name(self, record: Record, place: int) -> str:
        """What a case is called on the page; `place` is that of its run, beginning with 1."""
        return f"{record.id}@{place}" if record.id in self.twice else record.id


def payload(runs: Sequence[Run], names: Sequence[str]) -> Payload:
    """Packs the cases of runs.

    Args:
        runs: in the order of the page.
        names: of their drivers.
    """
    rows = [(place, record) for place, run in enumerate(runs) for record in _in_order(run)]
    records = [record for _, record in rows]
    alike: dict[str, int] = {}
    shapes = [alike.setdefault(shape(record.message), len(alike)) for record in records]
    batches, at = _batches(records)
    extra, bare = _texts(records)
    columns = {
        "run": [place for place, _ in rows],
        "batch": at,
        "number": [record.number for record in records],
        "alike": shapes,
        **{name: [getattr(record, name) for record in records] for name in ("verdict", "cause", "repeated")},
        **{name: [_clipped(getattr(record, name)) for record in records] for name in ("stage", "rule")},
        "message": _budgeted((record.message for record in records), MESSAGES),
        "waiver": _budgeted((record.waiver for record in records), MESSAGES),
        **{name: _numbers([getattr(record, name) for record in records], digits) for name, digits in _DIGITS.items()},
        **{name: [_pattern(record, getattr(record, name)) for record in records] for name in ("repeat", "saved")},
        **extra,
    }  # fmt: skip
    found = {
        "runs": [
            {"driver": _clipped(name), "suite": suite_of(run), "folder": _clipped(run.folder.name)}
            for name, run in zip(names, runs, strict=True)
        ],
        "cases": len(records),
        "batches": batches,
        "columns": {name: _column(values) for name, values in columns.items()},
        **_digests(records),
    }
    packed = zlib.compress(json.dumps(found, separators=(",", ":"), allow_nan=False).encode(), 9)
    ids = Counter(record.id for record in records) if len(runs) > 1 else Counter[str]()
    twice = frozenset(name for name, count in ids.items() if count > 1)
    return Payload(base64.b64encode(packed).decode("ascii"), len(records), alike, bare, twice)


def _in_order(run: Run) -> list[Record]:
    """Records batch by batch, as they come first, and by number: neighbours are alike then."""
    batches: dict[str, int] = {}
    for record in run.records.values():
        batches.setdefault(record.batch, len(batches))
    return sorted(run.records.values(), key=lambda record: (batches[record.batch], record.number))


def _column(values: Sequence[Any]) -> dict[str, Any]:
    """A column: its different values, the commonest first, and the place there of each row's; none where all agree."""
    counts = Counter(values)
    words = [word for word, _ in counts.most_common()]
    places = {word: place for place, word in enumerate(words)}
    return {"words": words, "at": [places[value] for value in values] if len(words) > 1 else []}


def _batches(records: Sequence[Record]) -> tuple[list[list[str]], list[int]]:
    """What cases of a batch share: operation, signature, mode, kind, type; its name where it is not made of these."""
    found: dict[tuple[str, ...], int] = {}
    at = [
        found.setdefault((record.operation, record.signature, record.mode, record.kind, record.batch), len(found))
        for record in records
    ]
    rows = []
    for *parts, batch in found:
        name = "" if batch == "-".join(parts) and max(map(len, parts)) <= SHORT else _clipped(batch)
        rows.append([*map(_clipped, parts), column(parts[1]), name])
    return rows, at


def _digests(records: Sequence[Record]) -> dict[str, Any]:
    """Ends of ids behind batch and number: those of the commonest length in one text, the others by row."""
    ends = [
        record.id[len(front) :] if record.id.startswith(front := f"{record.batch}-{record.number}") else None
        for record in records
    ]
    common = Counter(len(end) for end in ends if end and end.startswith("-") and end.isascii()).most_common(1)
    width = common[0][0] - 1 if common else 0
    plain, odd = [], {}
    for row, (record, end) in enumerate(zip(records, ends, strict=True)):
        fits = end is not None and len(end) == width + 1 and end[0] == "-" and end.isascii() and " " not in end
        plain.append(end[1:] if end and fits else " " * width)
        if end is None or (end and not fits):
            odd[str(row)] = text.clean(text.clip(record.id, 4 * SHORT))
    return {"width": width, "digests": text.clean("".join(plain)), "odd": odd}


@lru_cache(maxsize=1 << 14)  # cases say the same words again and again
def _clipped(value: str, limit: int = SHORT) -> str:
    return text.clean(text.clip(value, limit))


def _pattern(record: Record, line: str) -> str:
    """A text of a case with `{}` for its id, so that thousands of lines become one word."""
    if record.id and "{}" not in line and line.count(record.id) == 1:
        line = line.replace(record.id, "{}")
    return _clipped(line, MOST)


def _numbers(values: Sequence[object], digits: int) -> list[float | str | None]:
    """Numbers in few digits; infinities and what no longer measures anything as words, as in records."""
    known: dict[object, float | str | None] = {}
    for value in values:
        if value not in known:
            known[value] = _number(value, digits)
    return [known[value] for value in values]


def _number(value: object, digits: int) -> float | str | None:
    found = real(value)
    if found is None:
        return None
    if math.isnan(found) or abs(found) > UNMEASURABLE:
        return "nan" if math.isnan(found) else "inf" if found > 0 else "-inf"
    short = float(f"{found:.{digits}g}")
    return int(short) if short == int(short) else short


def _budgeted(values: Iterable[str], room: int) -> list[str]:
    """Texts cut off, and to a short first line where the different ones before took all the room."""
    known: dict[str, str] = {}
    found = []
    for value in values:
        if value not in known:
            short = text.clean(text.clip(value, MOST))
            if len(short) > room:
                short = text.clean(first_line(value, SHORT // 2))
            room = max(room - len(short), 0)
            known[value] = short
        found.append(known[value])
    return found


def _texts(records: Sequence[Record]) -> tuple[dict[str, list[Any]], int]:
    """Texts of cases that did not pass, failures first, as far as there is room; and how many cases lack theirs."""
    columns: dict[str, list[Any]] = {name: [""] * len(records) for name in _EXTRA}
    rank = {verdict: place for place, verdict in enumerate(_FIRST)}
    rows = [row for row, record in enumerate(records) if record.verdict != "PASS" or record.notes]
    rows.sort(key=lambda row: rank.get(records[row].verdict, len(_FIRST)))
    room, bare = TEXTS, 0
    for row in rows:
        found = _extra(records[row])
        size = sum(map(len, found.values()))
        if size > room:
            bare += 1
            continue
        room -= size
        for name, value in found.items():
            columns[name][row] = value
    return columns, bare


def _extra(record: Record) -> dict[str, str]:
    """What a page shows of a single case beside its line; lists and tables as JSON."""
    if record.verdict == "PASS":
        return {"notes": _listed(record.notes)}
    found = {
        "detail": text.clean(text.clip(record.detail, MOST)) if record.detail else "",
        "log": text.clean(text.tail(record.log, MOST)) if record.log else "",
        "notes": _listed(record.notes) if record.notes else "",
    }
    if record.worst:
        found["worst"] = _json([_shown(record.worst.get(name)) for name in _WORST])
    if record.numbers:
        found["numbers"] = _json({_clipped(name): _shown(value) for name, value in list(record.numbers.items())[:60]})
    return found


def _listed(notes: Sequence[str]) -> str:
    return _json([text.clean(text.clip(note, MOST // 4)) for note in notes[:20]])


def _shown(value: object) -> Any:
    """A value of a record as a page's script may have it."""
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value[:12]]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value if math.isfinite(value) else str(value)
    return _clipped(str(value))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
