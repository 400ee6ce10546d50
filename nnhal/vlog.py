"""Verbose logging by tag: NNCTS_VLOG="compilation,execution" or "all". Costs next to nothing while it is off."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import TextIO

TAGS = ("compilation", "cpuexe", "driver", "execution", "manager", "model")
VARIABLE = "NNCTS_VLOG"
_SEPARATORS = re.compile(r"[\s,:]+")

_enabled: frozenset[str] = frozenset()
_stream: TextIO | None = None


def parse_tags(setting: str) -> frozenset[str]:
    """The tags of a setting, separated by space, comma or colon; `all` and `1` stand for every one.

    Warns once of everything that is no tag, and leaves it out.
    """
    words = [word for word in _SEPARATORS.split(setting.strip()) if word]
    unknown = sorted({word for word in words if word not in TAGS and word not in ("all", "1")})
    if unknown:
        text = f"unknown log tags {', '.join(unknown)}; known are {', '.join(TAGS)}, and all or 1 for every one"
        warnings.warn(text, stacklevel=2)
    if "all" in words or "1" in words:
        return frozenset(TAGS)
    return frozenset(words) & frozenset(TAGS)


def configure(setting: str | None = None, stream: TextIO | None = None) -> frozenset[str]:
    """Turns tags on, and all others off.

    Args:
        setting: as `parse_tags` takes it; None takes the environment's NNCTS_VLOG.
        stream: where lines go; standard error when None, which is the driver's log under isolation.

    Returns:
        The tags that are on.
    """
    global _enabled, _stream
    _enabled = parse_tags(os.environ.get(VARIABLE, "") if setting is None else setting)
    _stream = stream
    return _enabled


def is_on(tag: str) -> bool:
    """Whether lines of a tag are written: ask before making an expensive message."""
    return tag in _enabled


def vlog(tag: str, message: str | Callable[[], str]) -> None:
    """Writes one line when the tag is on.

    Args:
        tag: one of TAGS.
        message: the text, or what makes it; called only when the tag is on.
    """
    if tag not in _enabled:
        return
    text = message if isinstance(message, str) else message()
    line = f"{time.strftime('%H:%M:%S')} {os.getpid()} {tag}: {text}\n"
    (_stream or sys.stderr).write(line)


configure()
