"""The recordings that no training has seen: a committed part that is always there, or all of them from the package.

The phones in time of every held-out recording are committed, so that nobody needs an aligner to measure a driver. The
log-mel bands and pitch of some are too, as float16; of all they are computed from Debian's package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlts.speech.parameters import read_arrays, record, write_arrays, write_record
from mlts.speech.phones import Segments
from mlts.speech.prompts import prompts
from mlts.speech.recordings import Recording
from mlts.speech.training_data import measured
from nnhal.types import Array

FILE = "held-out.npz"
COMMITTED = 40  # recordings whose bands are committed
COMMITTED_SOURCE = "committed features"


def committed() -> list[Recording]:
    """The recordings whose bands are in the repository, by name.

    Raises:
        UsageError: the file is missing or damaged.
    """
    arrays = read_arrays(FILE)
    every = _segments(arrays)
    names = [str(name) for name in arrays["committed"]]
    ends = np.cumsum(arrays["frames"], dtype=np.int64)[:-1]
    bands, pitch = np.split(arrays["bands"], ends), np.split(arrays["pitch"], ends)
    return [Recording(n, every[n], b, p, COMMITTED_SOURCE) for n, b, p in zip(names, bands, pitch, strict=True)]


def complete(cache: Path) -> list[Recording]:
    """All held-out recordings, by name, computed from the package.

    Args:
        cache: folder for the packages.

    Raises:
        UsageError: a package cannot be had, or the committed file is missing or damaged.
    """
    every = _segments(read_arrays(FILE))
    known = [prompt for prompt in prompts(cache) if prompt.name in every]
    return measured(known, lambda prompt, sound: every[prompt.name])


def pack(recordings: Sequence[Recording]) -> None:
    """Writes the held-out recordings: the phones of all, bands and pitch of some drawn by their names."""
    drawn = sorted(recordings, key=lambda r: hashlib.sha256(r.name.encode()).digest())[:COMMITTED]
    drawn.sort(key=lambda r: r.name)
    write_arrays(
        FILE,
        {
            "names": np.array([r.name for r in recordings]),
            "counts": np.array([len(r.segments.phones) for r in recordings], np.uint16),
            "phones": np.concatenate([r.segments.phones for r in recordings]).astype(np.uint8),
            "lengths": np.concatenate([r.segments.lengths for r in recordings]).astype(np.uint16),
            "committed": np.array([r.name for r in drawn]),
            "frames": np.array([len(r.bands) for r in drawn], np.uint16),
            "bands": np.concatenate([r.bands for r in drawn]).astype(np.float16),
            "pitch": np.concatenate([r.pitch for r in drawn]).astype(np.float16),
        },
    )
    known = record()
    known["held out"] = {"all": [r.name for r in recordings], "committed": [r.name for r in drawn]}
    write_record(known)


def _segments(arrays: dict[str, Array]) -> dict[str, Segments]:
    ends = np.cumsum(arrays["counts"], dtype=np.int64)[:-1]
    parts = zip(arrays["names"], np.split(arrays["phones"], ends), np.split(arrays["lengths"], ends), strict=True)
    return {str(name): Segments(tuple(phones.tolist()), tuple(lengths.tolist())) for name, phones, lengths in parts}
