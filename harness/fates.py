"""What became of waivers in a run: the end marker holds it, complaints and the page's list follow from it. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

GLOB = re.compile(r"[*?\[]")  # a pattern that may name several cases
IDS = 20  # of an entry that are kept by name
IN_USE, EXPIRED, STALE, PASSING, UNMATCHED = "in use", "expired", "stale", "passing", "unmatched"


@dataclass(frozen=True)
class Fate:
    """What became of a waiver in a run, or in a part of one.

    Attributes:
        expires: the last day on which it holds, as ISO 8601 writes it, or empty.
        covered: number of failing cases that it covered.
        passed: number of cases that it names and that passed.
        unjudged: number of cases that it names and that were neither judged to fail nor to pass.
        passing: ids of some that passed.
        stale: ids of some that it names but for the digest.
        expired: it held no more when the run began.
        concerned: the run has cases of the suite that it is for.
    """

    cases: str
    reason: str
    link: str = ""
    expires: str = ""
    covered: int = 0
    passed: int = 0
    unjudged: int = 0
    passing: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    expired: bool = False
    concerned: bool = True

    @property
    def state(self) -> str:
        """The one word for it; an entry that names a case with the right digest is not stale."""
        order = (
            (EXPIRED, self.expired),
            (IN_USE, self.covered),
            (PASSING, self.passed or self.unjudged),
            (STALE, self.stale),
        )
        return next((word for word, holds in order if holds), UNMATCHED)

    @property
    def entry(self) -> tuple[str, str, str, str]:
        """The entry of the file."""
        return self.cases, self.reason, self.link, self.expires

    def complaint(self, filtered: bool, sampled: bool) -> str:
        """What is to be said of it at the end of a run, or nothing; `harness.waivers.complaints` has the arguments."""
        name = f"waiver {self.cases!r}"
        if self.state == EXPIRED:
            return f"{name} expired on {self.expires}: mend the driver or renew it"
        if self.state == STALE:
            return f"{name} is stale: the case is now {self.stale[0]}; look at it again"
        if self.state == PASSING and not (sampled and GLOB.search(self.cases)):
            return f"{name} covers nothing: nothing that it names fails; delete it"
        if self.state == UNMATCHED and self.concerned and not (filtered or sampled):
            return f"{name} names no case of this run; delete it or correct the pattern"
        return ""

    def row(self) -> dict[str, Any]:
        """As it stands in an end marker."""
        values = asdict(self) | {"passing": list(self.passing), "stale": list(self.stale)}
        del values["expired"]  # the state says it
        return {**values, "state": self.state}


def merged(fates: Iterable[Fate]) -> list[Fate]:
    """One fate for each entry of a file, over the parts of a run or over several runs."""
    alike: dict[tuple[str, str, str, str], list[Fate]] = defaultdict(list)
    for fate in fates:
        alike[fate.entry].append(fate)
    return [
        Fate(
            *entry,
            sum(one.covered for one in found),
            sum(one.passed for one in found),
            sum(one.unjudged for one in found),
            _first(name for one in found for name in one.passing),
            _first(name for one in found for name in one.stale),
            any(one.expired for one in found),
            any(one.concerned for one in found),
        )
        for entry, found in alike.items()
    ]


def _first(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))[:IDS]


def read_fates(rows: object) -> list[Fate]:
    """The fates that an end marker holds; what is none is left out."""
    return [_fate(row) for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict) and _is_fate(row)]


_TEXTS, _NUMBERS, _LISTS = (
    ("cases", "reason", "link", "expires"),
    ("covered", "passed", "unjudged"),
    ("passing", "stale"),
)


def _is_fate(row: Mapping[str, Any]) -> bool:
    lists = [row.get(name) for name in _LISTS]
    return (
        all(isinstance(row.get(name), str) for name in _TEXTS)
        and all(type(number := row.get(name)) is int and 0 <= number < 2**63 for name in _NUMBERS)
        and all(isinstance(one, list) and all(isinstance(name, str) for name in one) for one in lists)
    )


def _fate(row: Mapping[str, Any]) -> Fate:
    return Fate(
        row["cases"],
        row["reason"],
        row["link"],
        row["expires"],
        row["covered"],
        row["passed"],
        row["unjudged"],
        tuple(row["passing"]),
        tuple(row["stale"]),
        row.get("state") == EXPIRED,
        bool(row.get("concerned", True)),
    )
