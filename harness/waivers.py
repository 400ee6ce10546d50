"""A vendor's waivers: known failures with reason, link and expiry. They cover failures; they never hide them.

The file is TOML, one `[[waiver]]` a known failure:

    [[waiver]]
    cases = "SOFTMAX-quant8_asymm*-sync-drawn-*"   # id or glob, with or without digest
    reason = "table has 64 entries"
    link = "https://tracker.example/123"
    expires = 2027-06-30

What becomes of each in a run is a `Fate`: the end marker holds them, the run's complaints follow from them.
"""

from __future__ import annotations

import datetime
import fnmatch
import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.fates import GLOB, IDS, Fate, merged
from harness.verdict import BAD, Verdict
from nnhal.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DIGEST = re.compile(r"-[0-9a-f]{6}$")
KEYS = {"cases", "reason", "link", "expires"}
WAIVABLE = frozenset({verdict.value for verdict in BAD} | {Verdict.POOR.value})
SUITES = ("FUZZ", "GRAPH", "MLTS", "STRESS")  # first words of ids; all other ids are of one more suite


def without_digest(case_id: str) -> str:
    """The id without the digest of the content."""
    return DIGEST.sub("", case_id)


def matches(pattern: str, case_id: str) -> bool:
    """Whether an id or glob names a case, with or without digest."""
    return fnmatch.fnmatchcase(case_id, pattern) or fnmatch.fnmatchcase(without_digest(case_id), pattern)


def suite_of(name: str) -> str:
    """The suite of an id or pattern; empty for conformance, and for a pattern that may be of any."""
    word = name.partition("-")[0]
    return word if word in SUITES else ""


@dataclass
class Waiver:
    """One known failure, and what it came to so far; the numbers are those of `Fate`."""

    cases: str
    reason: str
    link: str = ""
    expires: datetime.date | None = None
    covered: int = 0
    passed: int = 0
    unjudged: int = 0
    passing: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)

    def names(self, case_id: str) -> bool:
        """Whether the pattern names a case, with or without its digest."""
        return matches(self.cases, case_id)

    @cached_property
    def undated(self) -> str:
        """The pattern without its digest; empty where it has none."""
        return without_digest(self.cases) if DIGEST.search(self.cases) else ""

    def note(self, case_id: str, verdict: str) -> None:
        """Counts a case that it names and does not cover."""
        if verdict == Verdict.PASS.value:
            self.passed += 1
            self.passing += [case_id] if len(self.passing) < IDS else []
        elif verdict not in WAIVABLE:
            self.unjudged += 1

    def note_other(self, case_id: str, verdict: str) -> None:
        """Looks whether a case that it does not name is the one that it meant, of another content by now."""
        if not self.undated or not matches(self.undated, case_id):
            return
        if not DIGEST.search(case_id):  # it was not made, so that nobody knows what its content is
            self.note(case_id, verdict)
        elif len(self.stale) < IDS:
            self.stale.append(case_id)


class Waivers:
    """The waivers of a run. Empty when no file is given.

    Attributes:
        file: name and SHA-256 of the file that they are from, or None.
    """

    def __init__(self, waivers: list[Waiver], today: datetime.date, file: Mapping[str, str] | None = None) -> None:
        self.waivers, self.file = waivers, file
        self._today = today
        self._suites: set[str] = set()
        # Most entries are ids, and they are looked up: a file of a thousand must not slow a run of 50,000 cases down.
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._globs: list[int] = []
        for place, waiver in enumerate(waivers):
            if GLOB.search(waiver.cases):
                self._globs.append(place)
            else:
                self._exact[waiver.cases].append(place)
                if waiver.undated:
                    self._exact[waiver.undated].append(place)

    def cover(self, case_id: str, verdict: str) -> str:
        """The reason of the first waiver that covers a case which failed or is poor, or nothing. Keeps count."""
        reason = ""
        self._suites.add(suite_of(case_id))
        names = {case_id, without_digest(case_id)}
        for place in sorted({*self._globs, *(place for name in names for place in self._exact.get(name, ()))}):
            waiver = self.waivers[place]
            if not waiver.names(case_id):
                waiver.note_other(case_id, verdict)
            elif verdict not in WAIVABLE:
                waiver.note(case_id, verdict)
            elif not self.expired(waiver):
                waiver.covered += 1
                reason = reason or waiver.reason
        return reason

    def expired(self, waiver: Waiver) -> bool:
        """Whether a waiver no longer holds."""
        return waiver.expires is not None and waiver.expires < self._today

    def fates(self) -> list[Fate]:
        """What became of each by now, in the order of the file."""
        return [
            Fate(
                waiver.cases,
                waiver.reason,
                waiver.link,
                waiver.expires.isoformat() if waiver.expires else "",
                waiver.covered,
                waiver.passed,
                waiver.unjudged,
                tuple(waiver.passing),
                tuple(waiver.stale),
                self.expired(waiver),
                suite_of(waiver.cases) in self._suites,
            )
            for waiver in self.waivers
        ]

    def complaints(self, filtered: bool, sampled: bool = False) -> list[str]:
        """What `complaints` says of them alone."""
        return complaints([self], filtered=filtered, sampled=sampled)

    def header(self) -> dict[str, Any]:
        """What a plan's line says of them."""
        return {"waivers_file": self.file}

    def ending(self) -> dict[str, Any]:
        """What an end marker says of them."""
        return {"waivers": [fate.row() for fate in self.fates()], **self.header()}

    def check_resumed(self, plan: Mapping[str, Any], folder: Path) -> None:
        """Looks whether they are those with which a run that goes on was begun: its records tell what those covered.

        Raises:
            UsageError: they are others.
        """
        given, wanted = self.file, plan.get("waivers_file")
        if "waivers_file" not in plan or given == wanted:
            return
        if not isinstance(wanted, dict):
            raise UsageError(f"{folder} was begun without waivers; --resume goes on without --waivers")
        if given is None or given.get("sha256") != wanted.get("sha256"):
            raise UsageError(
                f"{folder} was begun with the waivers of {wanted.get('name')} as it was then; --resume goes on with "
                "--waivers and that file unchanged, or start the run again"
            )


def complaints(parts: Iterable[Waivers], *, filtered: bool, sampled: bool = False) -> list[str]:
    """A sentence for each entry that is stale, expired, passes, or names nothing; any of them makes a run end badly.

    Args:
        parts: the same waivers for each driver of a run; what one of them needs is in use.
        filtered: the run was filtered, so that an entry which names nothing says nothing.
        sampled: its cases are a sample, or it was cut short: that those pass which a glob names says nothing, too.
    """
    fates = merged(fate for part in parts for fate in part.fates())
    return [words for fate in fates if (words := fate.complaint(filtered, sampled))]


def load_waivers(path: Path | None, today: datetime.date | None = None) -> Waivers:
    """Reads a waiver file; no path means no waivers.

    Raises:
        UsageError: the file is missing or malformed; the sentence names entry and key.
    """
    day = today or datetime.datetime.now(tz=datetime.timezone.utc).date()
    if path is None:
        return Waivers([], day)
    try:
        data = path.read_bytes()
        content = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise UsageError(f"waiver file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"waiver file {path} is not TOML: {error}") from None
    entries = content.get("waiver", [])  # an empty file is what a vendor without failures keeps
    if set(content) - {"waiver"} or not isinstance(entries, list):
        raise UsageError(f"waiver file {path} must hold [[waiver]] entries and nothing else; see docs/waivers.md")
    file = {"name": path.name, "sha256": hashlib.sha256(data).hexdigest()}
    return Waivers(_different(path, [_entry(path, i, row) for i, row in enumerate(entries, 1)]), day, file)


def _different(path: Path, entries: list[Waiver]) -> list[Waiver]:
    """The entries, if none is there twice: parts of a run are added up by entry."""
    places: dict[tuple[str, str, str, datetime.date | None], int] = {}
    for number, one in enumerate(entries, 1):
        first = places.setdefault((one.cases, one.reason, one.link, one.expires), number)
        if first != number:
            raise UsageError(f"waiver file {path}, entry {number} is entry {first} once more; delete one of them")
    return entries


def _entry(path: Path, number: int, row: Any) -> Waiver:
    where = f"waiver file {path}, entry {number}"
    if not isinstance(row, dict):
        raise UsageError(f"{where} is not a [[waiver]] table")
    unknown = sorted(set(row) - KEYS)
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(KEYS))}")
    for key in ("cases", "reason"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise UsageError(f"{where}: {key!r} is missing; give a text")
    link, expires = row.get("link", ""), row.get("expires")
    if not isinstance(link, str):
        raise UsageError(f"{where}: 'link' must be a text")
    if isinstance(expires, datetime.datetime) or not isinstance(expires, (datetime.date, type(None))):
        raise UsageError(f"{where}: 'expires' must be a date such as 2027-06-30, without quotes")
    return Waiver(row["cases"], row["reason"], link, expires)
