"""A vendor's waivers: known failures with reason, link and expiry. They cover failures; they never hide them.

The file is TOML, one `[[waiver]]` a known failure:

    [[waiver]]
    cases = "SOFTMAX-quant8_asymm*-sync-drawn-*"   # id or glob, with or without digest
    reason = "table has 64 entries"
    link = "https://tracker.example/123"
    expires = 2027-06-30
"""

from __future__ import annotations

import datetime
import fnmatch
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnhal.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DIGEST = re.compile(r"-[0-9a-f]{6}$")
KEYS = {"cases", "reason", "link", "expires"}


@dataclass
class Waiver:
    """One known failure.

    Attributes:
        covered: number of failing cases that it covered in this run.
        passed: number of cases that it names and that passed.
        stale: ids of cases that it names but for the digest.
    """

    cases: str
    reason: str
    link: str = ""
    expires: datetime.date | None = None
    covered: int = 0
    passed: int = 0
    stale: list[str] = field(default_factory=list)

    def names(self, case_id: str) -> bool:
        """Whether the pattern names a case, with or without its digest."""
        return matches(self.cases, case_id)


def without_digest(case_id: str) -> str:
    """The id without the digest of the content."""
    return DIGEST.sub("", case_id)


def matches(pattern: str, case_id: str) -> bool:
    """Whether an id or glob names a case, with or without digest."""
    return fnmatch.fnmatchcase(case_id, pattern) or fnmatch.fnmatchcase(without_digest(case_id), pattern)


class Waivers:
    """The waivers of a run. Empty when no file is given."""

    def __init__(self, waivers: list[Waiver], today: datetime.date) -> None:
        self.waivers = waivers
        self._today = today

    def cover(self, case_id: str, failed: bool) -> str:
        """The reason of the waiver that covers a failing case, or an empty string. Keeps count."""
        reason = ""
        for waiver in self.waivers:
            if waiver.names(case_id):
                if not failed:
                    waiver.passed += 1
                elif not self.expired(waiver):
                    waiver.covered += 1
                    reason = reason or waiver.reason
            elif DIGEST.search(waiver.cases) and matches(without_digest(waiver.cases), case_id):
                waiver.stale.append(case_id)
        return reason

    def expired(self, waiver: Waiver) -> bool:
        """Whether a waiver no longer holds."""
        return waiver.expires is not None and waiver.expires < self._today

    def complaints(self, filtered: bool) -> list[str]:
        """A sentence for each entry that is stale, expired, passes, or names nothing.

        Args:
            filtered: the run was filtered, so that an entry which names nothing says nothing.
        """
        found = []
        for waiver in self.waivers:
            if self.expired(waiver):
                found.append(f"waiver {waiver.cases!r} expired on {waiver.expires}: mend the driver or renew it")
            elif waiver.stale:
                found.append(f"waiver {waiver.cases!r} is stale: the case is now {waiver.stale[0]}; look at it again")
            elif waiver.covered:
                continue
            elif waiver.passed:
                found.append(f"waiver {waiver.cases!r} covers nothing: nothing that it names fails; delete it")
            elif not filtered:
                found.append(f"waiver {waiver.cases!r} names no case of this run; delete it or correct the pattern")
        return found


def load_waivers(path: Path | None, today: datetime.date | None = None) -> Waivers:
    """Reads a waiver file; no path means no waivers.

    Raises:
        UsageError: the file is missing or malformed; the sentence names entry and key.
    """
    day = today or datetime.datetime.now(tz=datetime.timezone.utc).date()
    if path is None:
        return Waivers([], day)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"waiver file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"waiver file {path} is not TOML: {error}") from None
    entries = content.get("waiver", [])  # an empty file is what a vendor without failures keeps
    if set(content) - {"waiver"} or not isinstance(entries, list):
        raise UsageError(f"waiver file {path} must hold [[waiver]] entries and nothing else; see docs/waivers.md")
    return Waivers([_entry(path, i, row) for i, row in enumerate(entries, 1)], day)


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
