"""A batch: cases that are one pytest item. It knows how many there are before any is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from harness.case import Origin, TestCase
from harness.verdict import Judgement
from harness.waivers import DIGEST, matches, without_digest


class NotApplicableError(Exception):
    """A case that cannot be made for a stated reason: it counts, as NOT_APPLICABLE."""


class SettledError(Exception):
    """A case whose verdict is known without a run of steps: what it rests on has failed, or it is no case of steps.

    Args:
        judgement: the verdict.
        rest: fields of its record that a judgement does not know.
    """

    def __init__(self, judgement: Judgement, **rest: Any) -> None:
        super().__init__(judgement.message)
        self.judgement = judgement
        self.rest = rest


class Draft(Protocol):
    """A valid model of which it is not known yet what is due: to find out takes longer than to ask for support."""

    @property
    def question(self) -> TestCase:
        """Asks whether the model is supported, which is the first step of the case."""

    def make(self) -> TestCase | None:
        """The case; None where it is not worth running, and the next draft stands for it."""


def _may_name(pattern: str, start: str) -> bool:
    """Whether ids that begin so may fit a pattern; thousands of batches are asked, and most have nothing of it."""
    fixed = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    return fixed.startswith(start) or start.startswith(fixed)


@dataclass(frozen=True)
class Batch:
    """Cases whose ids differ only in their number.

    Attributes:
        origin: what the ids are made of; its number is not used.
        numbers: which cases.
        make: makes the case of a number; raises NotApplicableError where there is none.
        file: where a saved case comes from; it is named by this instead of its id.
        drafts: of a number, in order, where a driver is to be asked for support before the case is made: it is that of
            the first draft that gives one.
    """

    origin: Origin
    numbers: tuple[int, ...]
    make: Callable[[int], TestCase]
    file: str = ""
    drafts: Callable[[int], Iterable[Draft]] | None = None

    @property
    def id(self) -> str:
        """The ids' common front part."""
        return self.origin.batch

    def select(self, patterns: tuple[str, ...]) -> Batch:
        """Only the cases that a pattern names (id or glob, with or without digest); all when there is none."""
        if not patterns:
            return self
        patterns = tuple(pattern for pattern in patterns if _may_name(pattern, f"{self.id}-"))
        if not patterns:
            return replace(self, numbers=())
        # The digest is not known before a case is made: a pattern with one selects by what stands before it.
        bare = {pattern if not DIGEST.search(pattern) else without_digest(pattern) for pattern in patterns}
        numbers = tuple(n for n in self.numbers if any(matches(p, f"{self.id}-{n}") for p in bare | set(patterns)))
        return replace(self, numbers=numbers)
