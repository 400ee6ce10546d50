"""What became of a run's waivers, or of several runs', as rows of a table. Pure."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from harness.fates import EXPIRED, IN_USE, PASSING, STALE, UNMATCHED, Fate, merged
from harness.record import Run
from reports.text import clip, count_words

ORDER = (EXPIRED, STALE, UNMATCHED, PASSING, IN_USE)  # what asks for something comes first
SOON_DAYS = 30
NAMED = 5  # ids of a row that are named
MOST = 300  # characters of a text
_PLAIN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class Row:
    """One waiver.

    Attributes:
        tone: `bad`, `warn` or `good`.
        words: what became of it, in words.
        cases: id or glob; empty where the run did not come to its end, of which the reason alone is known.
        href: the link, where it may be one on the page; empty otherwise.
        soon: it is in use and expires within 30 days of the run.
        ids: cases to look at: those that pass, or the new ones of a stale entry.
    """

    state: str
    tone: str
    words: str
    cases: str
    reason: str
    link: str
    href: str
    expires: str
    soon: bool
    covered: int
    passed: int
    ids: tuple[str, ...]


def rows(runs: Sequence[Run]) -> list[Row]:
    """The waivers of runs on one page: what asks for something first, then by the cases that they name.

    A waiver of several runs has one row with the numbers of all. An entry for a suite that none of them is of has none.
    """
    known = merged(fate for run in runs for fate in run.waivers)
    partly = [run for run in runs if not run.ended]
    told = Counter(record.waiver for run in partly for record in run.records.values() if record.waiver)
    filtered = any(run.plan.get("filtered") for run in runs)
    day = _latest(runs)
    found = [_row(fate, filtered, day) for fate in known if fate.state != UNMATCHED or fate.concerned]
    found += [_untold(reason, number) for reason, number in told.items()]
    return sorted(found, key=lambda row: (ORDER.index(row.state), not row.soon, row.cases, row.reason))


def summary(found: Iterable[Row]) -> str:
    """How many there are of each state, in words; empty where there is none."""
    counts = Counter(row.state for row in found)
    soon = sum(row.soon for row in found)
    parts = [f"{counts[state]:,} {state}" for state in reversed(ORDER) if counts[state]]
    return ", ".join(parts + ([f"{soon:,} of them soon to expire"] if soon else []))


def _row(fate: Fate, filtered: bool, day: datetime.date | None) -> Row:
    state = fate.state
    ids = fate.stale if state == STALE else fate.passing
    return Row(
        state,
        "good" if state == IN_USE and not fate.passed else "bad" if state in (EXPIRED, STALE) else "warn",
        _words(fate, filtered),
        clip(fate.cases, MOST),
        clip(fate.reason, MOST),
        clip(fate.link, MOST),
        fate.link if _is_web(fate.link) else "",
        clip(fate.expires, MOST),
        state == IN_USE and _is_soon(fate.expires, day),
        fate.covered,
        fate.passed,
        tuple(clip(name, MOST) for name in ids[:NAMED]),
    )


def _untold(reason: str, number: int) -> Row:
    """Of a run that has no end marker: what the records of its cases say."""
    words = f"covers {count_words(number, 'failing case', 'failing cases')} so far"
    return Row(IN_USE, "good", words, "", clip(reason, MOST), "", "", "", False, number, 0, ())


def _words(fate: Fate, filtered: bool) -> str:
    passing = f"{count_words(fate.passed, 'case that it names passes', 'cases that it names pass')}"
    if fate.state == EXPIRED:
        return f"expired on {clip(fate.expires, MOST)}: covers nothing any more"
    if fate.state == IN_USE:
        words = f"covers {count_words(fate.covered, 'failing case', 'failing cases')}"
        return f"{words}; {passing}: it is too wide" if fate.passed else words
    if fate.state == STALE:
        return "stale: the case that it names has another content now and is not covered"
    if fate.state == PASSING:
        return f"not needed: {passing}, none fails" if fate.passed else "not needed: no case that it names was judged"
    return f"names no case of this run{', which was filtered' if filtered else ''}"


def _latest(runs: Sequence[Run]) -> datetime.date | None:
    """The day of the latest of the runs that tell it."""
    days = [_day(str(run.plan.get("time"))[:10]) for run in runs]
    return max((day for day in days if day is not None), default=None)


def _day(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        return None


def _is_soon(expires: str, day: datetime.date | None) -> bool:
    last = _day(expires)
    return day is not None and last is not None and (last - day).days <= SOON_DAYS


def _is_web(link: str) -> bool:
    """Whether a link leads to a page of the web and hides nothing of where it leads."""
    if not _PLAIN.fullmatch(link) or len(link) > MOST:
        return False
    try:
        parts = urlsplit(link)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False
