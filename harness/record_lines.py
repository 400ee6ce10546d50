"""Lines of records, each told from what is none: whatever stands in a file, a reader gets values of the right types."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LINE = 1 << 26  # bytes; a longer line is no record
TEXT = 1 << 18  # characters of one text that are kept; no driver's message makes a run too large to be read
LARGEST = 2**1000  # what is below it is a float, too
COUNT = 10**9  # cases; more are a damaged number
_WORDS = frozenset({"inf", "-inf", "nan"})  # JSON has no such numbers
_DECODER = json.JSONDecoder(parse_constant={"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}.__getitem__)
_TEXTS = ("id", "batch", "operation", "signature", "kind", "mode", "verdict", "cause", "stage", "message", "rule",
          "detail", "repeat", "saved", "repeated", "waiver", "log")  # fmt: skip
REQUIRED = frozenset({"id", "batch", "number", "operation", "signature", "kind", "mode", "verdict"})


class _WrongError(ValueError):
    """A value of another type than the one due."""


def rows(file: Path) -> Iterator[dict[str, Any] | None]:
    """The objects of a file's lines; None for a line that holds none.

    Raises:
        OSError: the file cannot be read.
    """
    with file.open("rb") as lines:
        while line := lines.readline(LINE):
            if len(line) == LINE and not line.endswith(b"\n"):
                while rest := lines.readline(LINE):
                    if rest.endswith(b"\n"):
                        break
                yield None
            elif line.strip():
                yield _object(line)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = _DECODER.decode(line.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def values_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values of a case's line by the names of `Record`'s fields; None where one is missing or of another type."""
    values = {}
    try:
        for name, value in row.items():
            check = _CHECKS.get(name)
            if check is _text and type(value) is str and len(value) <= TEXT:  # most are, and calls take time
                values[name] = value
            elif check is not None:
                values[name] = check(value)
    except _WrongError:
        return None
    return values if values.keys() >= REQUIRED else None


def is_plan(row: Mapping[str, Any]) -> bool:
    """Whether a line has what a plan must have; its format may be another."""
    return type(row.get("format")) is int and has_counts(row)


def has_counts(row: Mapping[str, Any]) -> bool:
    """Whether what a line says of numbers of cases, and of seconds, is numbers."""
    batches, seconds = row.get("batches", {}), row.get("seconds", 0.0)
    counts = [row.get("selected", 0), *(batches.values() if type(batches) is dict else ["none"])]
    return type(seconds) in (int, float) and all(type(number) is int and 0 <= number <= COUNT for number in counts)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _WrongError
    return value if len(value) <= TEXT else f"{value[:TEXT]}… ({len(value) - TEXT:,} characters more)"


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise _WrongError
    return value


def _real(value: Any) -> float | str:
    """A number, or the word for one that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # 1e999 is infinite, too
    if isinstance(value, int) and not isinstance(value, bool) and -LARGEST < value < LARGEST:
        return value
    if isinstance(value, str) and value in _WORDS:
        return value
    raise _WrongError


def _real_or_none(value: Any) -> float | str | None:
    return None if value is None else _real(value)


def _finite(value: Any) -> float:
    """A number; one that JSON does not have counts as nothing."""
    found = _real(value)
    return 0.0 if isinstance(found, str) else found


def _numbers(value: Any) -> dict[str, float | str]:
    if type(value) is not dict:
        raise _WrongError
    if {*map(type, value.values())} <= {float} and all(map(math.isfinite, value.values())):
        return value
    return {name: _real(number) for name, number in value.items()}


def _notes(value: Any) -> tuple[str, ...]:
    if type(value) is not list:
        raise _WrongError
    return tuple(map(_text, value))


def _worst(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if type(value) is not dict:
        raise _WrongError
    return {name: _index(part) if name == "index" else _part(part) for name, part in value.items()}


def _part(value: Any) -> float | str | None:
    return _text(value) if type(value) is str else _real_or_none(value)


def _index(value: Any) -> list[Any]:
    if type(value) is not list:
        raise _WrongError
    return [_part(part) for part in value]


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(("number", "level"), _count),
    **dict.fromkeys(("error", "ulp"), _real_or_none),
    **dict.fromkeys(("masked", "seconds"), _finite),
    **dict.fromkeys(("numbers", "sample"), _numbers),
    "notes": _notes,
    "worst": _worst,
}
