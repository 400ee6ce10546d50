"""Reads values of the command line's options that have a form of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nnhal import loading
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from nnhal.types import FeatureLevel


def level_of(value: int | None) -> FeatureLevel | None:
    """The level that `--level` gives.

    Raises:
        UsageError: there is none of that number.
    """
    if value is None:
        return None
    if value not in list(FeatureLevel):
        raise UsageError(f"--level={value} is no feature level; give 1 to 8")
    return FeatureLevel(value)


def memory_of(text: str | None) -> int | None:
    """The bytes that `--memory` gives.

    Raises:
        UsageError: it is no size.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if match is None:
        raise UsageError(f"--memory={text} is no size; write a number of bytes, or 512M, or 4G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def matching(pattern: str, known: Sequence[DriverSpec]) -> list[DriverSpec]:
    """The drivers that `--driver-match` adds to those known already.

    Raises:
        UsageError: the pattern is none, or matches nothing.
    """
    try:
        found = sorted(name for name in loading.installed() if re.search(pattern, name))
    except re.error as error:
        raise UsageError(f"--driver-match={pattern} is no regular expression: {error}") from None
    if not found:
        raise UsageError(f"--driver-match={pattern} matches none of {', '.join(sorted(loading.installed()))}")
    texts = {spec.text for spec in known}
    return [DriverSpec.parse(name) for name in found if name not in texts]
