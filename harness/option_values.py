"""Reads values of the command line's options that have a form of their own."""

from __future__ import annotations

import re

from nnhal.errors import UsageError
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
