"""What tells a fuzzer where it has been: code of a Python driver, and what any driver answers.

atheris is imported here alone, and this module before any other of the suite: what is imported already is not seen.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FEATURES = 1 << 12  # counters for what a driver answers


def watch_code(parts: Iterable[str]) -> None:
    """Has the modules of these files and folders tell where they have been, from their import on."""
    patterns = [str(ROOT / part) for part in parts]
    patch: Callable[[CodeType, bool], CodeType] = sys.modules["atheris"].patch_code
    plain = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        code = plain(self, fullname)
        path = str(Path(self.path).resolve())
        if code is not None and any(fnmatch(path, p) or path.startswith(f"{p}/") for p in patterns):
            return patch(code, True)
        return code

    setattr(SourceFileLoader, "get_code", get_code)  # noqa: B010  # a method is exchanged on purpose


# --- answers ----------------------------------------------------------------------------------------------------------


class Features:
    """Counts what is worth more than where a driver has been: which operations, types and answers came together."""

    def __init__(self) -> None:
        self._atheris: Any = sys.modules["atheris"]
        self._counters = [self._atheris._reserve_counter() for _ in range(FEATURES)]

    def saw(self, words: str) -> None:
        """Notes something; the same words again are the same."""
        # Looked up each time: what it does is exchanged when fuzzing begins.
        self._atheris._trace_branch(self._counters[zlib.crc32(words.encode()) % FEATURES])


_NUMBERS = re.compile(r"\d+")


def without_numbers(words: str) -> str:
    """A message of which only the kind is left."""
    return _NUMBERS.sub("#", words)[:80]
