"""How far what a speech model says is from what was said: sums over recordings, from which rates are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mlts.speech.features import CEPSTRA
from mlts.speech.phones import PHONES, SILENCE, Segments, collapsed
from mlts.speech.recordings import LOOK_AHEAD, Recording, asr_targets
from nnhal.types import Array

_DECIBEL = 10 / np.log(10) * np.sqrt(2)  # of a distance between cepstra without c0, see `distortion`
_LEAST = 1e-8  # probability; smaller ones say no more, and the logarithm of 0 would forbid a phone
_ADDED = 0.5  # to each count of pairs, for pairs that training does not have


@dataclass(frozen=True)
class Tally:
    """Errors in a recording; sums over recordings are divided by each other to a rate.

    Attributes:
        errors: phones that differ, or decibels or squares added up over frames.
        count: phones that are said, or frames.
    """

    name: str
    errors: float
    count: int


def edit_distance(found: Sequence[int], due: Sequence[int]) -> int:
    """The least number of phones to insert, to leave out or to exchange that makes one row of the other."""
    before = list(range(len(due) + 1))
    for row, one in enumerate(found, 1):
        here = [row]
        for column, other in enumerate(due, 1):
            here.append(min(here[-1] + 1, before[column] + 1, before[column - 1] + (one != other)))
        before = here
    return before[-1]


def likeliest(rows: Array) -> tuple[int, ...]:
    """The phones of rows [steps, phones] of probabilities: the best of each step, collapsed."""
    return collapsed(rows.argmax(1).tolist())


def likeliest_path(rows: Array, pairs: Array) -> tuple[int, ...]:
    """The phones of the best path through rows [steps, phones] (Viterbi), collapsed.

    Args:
        rows: probabilities. Each is divided by how frequent its phone is in training.
        pairs: how often phone j is one step behind phone i in training, [phones, phones].
    """
    counts = pairs + _ADDED
    frequent = np.log(counts.sum(0) / counts.sum())
    follows = np.log(counts / counts.sum(1, keepdims=True))
    seen = np.log(np.maximum(rows, _LEAST)) - frequent
    best = seen[0]
    came = np.zeros(rows.shape, np.int64)
    for step in range(1, len(rows)):
        ways = best[:, None] + follows
        came[step] = ways.argmax(0)
        best = ways.max(0) + seen[step]
    path = [int(best.argmax())]
    for step in range(len(rows) - 1, 0, -1):
        path.append(int(came[step, path[-1]]))
    return collapsed(path[::-1])


def pair_counts(frames: Iterable[Array]) -> Array:
    """How often phone j is one step behind phone i in rows of phones, float64 [phones, phones]."""
    counts = np.zeros((len(PHONES), len(PHONES)))
    for row in frames:
        np.add.at(counts, (row[:-1], row[1:]), 1)
    return counts


def distortion(found: Array, due: Array) -> Array:
    """Mel-cepstral distortion of each frame in dB, [frames]: 10 / ln 10 sqrt(2 sum of squared differences), c1 to c24.

    Args:
        found: cepstra from c0 on, [frames, at least 25].
        due: likewise.
    """
    return np.asarray(_DECIBEL * np.sqrt(((found[:, 1:CEPSTRA] - due[:, 1:CEPSTRA]) ** 2).sum(1)))


def spoken_frames(segments: Segments, count: int) -> Array:
    """Which of `count` frames are no silence."""
    return np.asarray(segments.frames(count) != SILENCE)


def step_errors(recording: Recording, rows: Array) -> Tally:
    """Steps whose likeliest phone is not the aligned one; those before the recording begins don't count."""
    wrong = rows.argmax(1)[LOOK_AHEAD:] != asr_targets(recording)[LOOK_AHEAD:]
    return Tally(recording.name, float(wrong.sum()), len(wrong))
