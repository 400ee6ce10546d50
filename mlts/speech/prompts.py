"""The recordings that the speech models are trained and judged on: prompts of a telephone exchange, one speaker.

Source: Debian's `asterisk-core-sounds-en-g722` (sound, recorded by Allison Smith) and `asterisk-core-sounds-en` (what
is said), both CC-BY-SA-3.0. Nothing is installed.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from pathlib import Path

from mlts.packages import Package, fetch

SOUNDS = Package(
    "debian",
    "asterisk-core-sounds-en-g722",
    "1.6.1-1",
    "usr/share/asterisk/sounds/en_US_f_Allison/*.g722",
    "3482bb45298ae32944da8aff1aa38fa782ae2a2dcd5e43a7455df8be2f98b704",
)
TEXTS = Package(
    "debian",
    "asterisk-core-sounds-en",
    "1.6.1-1",
    "core-sounds-en.txt.gz",
    "436538195b7c7361bd227036686f1a4039f694648c76573bdaca956655d34450",
)
BYTES_PER_SECOND = 8000  # of G.722
LONGEST = 15 * BYTES_PER_SECOND  # longer prompts are whole menus: hard to align, slow to decode
SHORTEST = BYTES_PER_SECOND // 2
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True)
class Prompt:
    """A recording.

    Attributes:
        name: such as "vm-goodbye" or "digits/7".
        words: what is said, lower case, separated by single spaces.
        stream: the sound as G.722.
    """

    name: str
    words: str
    stream: bytes


def prompts(cache: Path) -> list[Prompt]:
    """All prompts whose words are known and that last between half a second and 15 seconds, by name.

    Args:
        cache: folder for what is taken from the packages, see `mlts.packages`.

    Raises:
        UsageError: a package cannot be had, or is of another version.
    """
    folder = fetch(SOUNDS, cache)
    known = transcripts(gzip.decompress(fetch(TEXTS, cache).read_bytes()).decode())
    found = []
    for path in folder.rglob("*.g722"):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in known and SHORTEST <= path.stat().st_size <= LONGEST:
            found.append(Prompt(name, known[name], path.read_bytes()))
    return sorted(found, key=lambda prompt: prompt.name)


def transcripts(text: str) -> dict[str, str]:
    """Words by name of prompt, from lines "name: what is said"; those with numbers above 9 or no words left out."""
    found = {}
    for line in text.splitlines():
        name, colon, said = line.partition(":")
        words = spoken(said)
        if colon and not line.startswith(";") and words:
            found[name.strip()] = words
    return found


def spoken(said: str) -> str:
    """The words of a sentence, lower case; empty where it has none or a number of several digits.

    A number may be said in several ways, and what stands in brackets is a sound, no speech.
    """
    said = said.lower().replace("’", "'")
    if "[" in said or re.search(r"\d\d", said):
        return ""
    said = re.sub(r"\d", lambda digit: f" {_DIGITS[int(digit.group())]} ", said)
    return " ".join(re.sub(r"[^a-z']+", " ", said).split())
