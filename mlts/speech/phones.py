"""Phones: the classes of the asr model and the inputs of the tts model, and how words become phones with times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby

import numpy as np

from mlts.speech.g722 import RATE
from nnhal.errors import UsageError
from nnhal.types import Array

SILENCE = 0
PHONES = (  # silence, and the 39 phones of the CMU dictionary
    "SIL", "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH", "IH", "IY", "JH",
    "K", "L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH",
)  # fmt: skip


@dataclass(frozen=True)
class Segments:
    """Phones of a recording in time.

    Attributes:
        phones: numbers in PHONES.
        lengths: frames of each, 100 in a second.
    """

    phones: tuple[int, ...]
    lengths: tuple[int, ...]

    def frames(self, count: int) -> Array:
        """The phone of each of `count` frames, int64; silence behind the last one."""
        each = np.repeat(self.phones, self.lengths)[:count]
        return np.concatenate([each, np.full(count - len(each), SILENCE, each.dtype)])

    def spoken(self) -> tuple[int, ...]:
        """The phones without silences."""
        return tuple(phone for phone in self.phones if phone != SILENCE)


def collapsed(frames: Sequence[int]) -> tuple[int, ...]:
    """The phones that a row of frames says: neighbours that are equal count once, silences not at all."""
    return tuple(phone for phone, _ in groupby(frames) if phone != SILENCE)


class Aligner:
    """Finds when each phone of known words is said, with PocketSphinx and its US English model.

    Needs the package `pocketsphinx`: only training does.
    """

    def __init__(self) -> None:
        try:
            pocketsphinx = import_module("pocketsphinx")
        except ImportError:
            raise UsageError("alignment needs PocketSphinx: pip install pocketsphinx==5.1.1") from None
        self._decoder = pocketsphinx.Decoder(lm=None, samprate=RATE, loglevel="FATAL")

    def align(self, sound: Array, words: str) -> Segments | None:
        """The phones of a recording, int16 at 16 kHz; None where a word is not in the dictionary or none fits."""
        decoder = self._decoder
        if any(decoder.lookup_word(word) is None for word in words.split()):
            return None
        try:
            decoder.set_align_text(words)
            self._decode(sound)
            if decoder.hyp() is None:
                return None
            decoder.set_alignment()  # a second pass, to phones
            self._decode(sound)
            found = [(phone.name, phone.duration) for word in decoder.get_alignment() for phone in word]
        except RuntimeError:
            return None
        numbers = tuple(PHONES.index(name) if name in PHONES else SILENCE for name, _ in found)
        return Segments(numbers, tuple(int(length) for _, length in found))

    def _decode(self, sound: Array) -> None:
        self._decoder.start_utt()
        self._decoder.process_raw(sound.tobytes(), full_utt=True)
        self._decoder.end_utt()
