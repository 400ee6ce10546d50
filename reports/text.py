"""How texts and numbers are written on the pages. Whatever a driver says passes through here: it may say anything."""

from __future__ import annotations

import math
import re

from reports.tables import UNMEASURABLE, real

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
CUT = "…"
# Controls, lone surrogates, signs that turn the direction of writing, and what is no character: none may reach a page.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")


def clean(text: object) -> str:
    """A text with only what may stand in HTML and XML; colours meant for a terminal are dropped."""
    found = str(text)
    return _UNPRINTABLE.sub(REPLACEMENT, _TERMINAL.sub("", found.replace("\r\n", "\n")))


def clip(text: object, limit: int) -> str:
    """The beginning of a text, with a note of what is left out."""
    found = str(text)
    if len(found) <= limit:
        return found
    return f"{found[:limit]}{CUT} ({len(found) - limit:,} characters more)"


def tail(text: object, limit: int) -> str:
    """The end of a text, with a note of what is left out."""
    found = str(text).rstrip()
    if len(found) <= limit:
        return found
    return f"({len(found) - limit:,} characters before) {CUT}{found[-limit:]}"


def count(number: int) -> str:
    """A whole number, readable."""
    return f"{number:,}"


def count_words(number: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else many}"


def number(value: object, digits: int = 3) -> str:
    """A real number of a record, in a few digits; a dash where there is none."""
    found = real(value)
    if found is None:
        return "–"
    if math.isnan(found):
        return "NaN"
    if abs(found) > UNMEASURABLE:
        return "∞" if found > 0 else "−∞"
    return f"{found:,.0f}" if 1000 <= abs(found) < 1e7 else f"{found:.{digits}g}"


def units(error: object) -> str:
    """An observed error in units of the allowed one, in words."""
    words = number(error)
    return "where no difference is allowed" if words in ("∞", "NaN") else f"{words} × allowed"


def exact(value: object) -> str:
    """A stored value: as many digits as tell two float32 apart; words stay words."""
    found = real(value)
    if found is None:
        return "–" if value is None else clip(value, 60)
    return f"{found:.9g}"


def seconds(value: object) -> str:
    """A duration in a fitting unit."""
    found = real(value)
    if found is None or not math.isfinite(found):
        return "–"
    if found < 1:
        return f"{1000 * found:.3g} ms"
    if found < 120:
        return f"{found:.3g} s"
    return f"{int(found // 60)} min {int(found % 60)} s"


def percent(share: float) -> str:
    """A share in per cent; a dash for none at all."""
    if share <= 0:
        return "–"
    if share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.1f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def megabytes(value: object) -> str:
    """A number of bytes."""
    found = real(value)
    return "–" if found is None else f"{found / 2**20:,.0f} MiB"


def anchor(name: str) -> str:
    """A name as the target of a link within a page."""
    return "op-" + re.sub(r"[^A-Za-z0-9_]", "_", name)[:80]
