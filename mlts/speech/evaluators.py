"""Scores of the speech models: a driver against what was said, and against the baseline on the same chunks.

Rates come with an interval of `CONFIDENCE` from a seeded bootstrap over recordings, since the errors within one are not
independent. A difference from the baseline is resampled in pairs: the same recordings on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mlts.evaluators import DRAWS, SEED, Outputs, mean
from mlts.speech.chunks import Chunk, joined
from mlts.speech.features import CEPSTRA, cepstra
from mlts.speech.measures import (
    Tally,
    distortion,
    edit_distance,
    likeliest,
    likeliest_path,
    spoken_frames,
    step_errors,
)
from mlts.speech.parameters import read_arrays
from mlts.speech.recordings import Recording
from mlts.statistics import CONFIDENCE
from nnhal.types import Array
from reports.paired import Interval

BIGRAM = "bigram.npz"  # how often phones follow each other in training
_INFINITE = np.errstate(invalid="ignore", over="ignore")  # drivers may give infinity and NaN: scores say so
Rows = Sequence[tuple[Recording, Array]]


def asr_tallies(chunks: Sequence[Chunk], outputs: Outputs) -> dict[str, list[Tally]]:
    """Errors of the asr model in each recording, by measure. The phones due are the dictionary's, without silences."""
    rows = joined(chunks, outputs)
    pairs = read_arrays(BIGRAM)["pairs"]
    return {
        "phone error rate": [_phones(r, likeliest(values)) for r, values in rows],
        "phone error rate, bigram": [_phones(r, likeliest_path(values, pairs)) for r, values in rows],
        "step error rate": [step_errors(r, values) for r, values in rows],
    }


def tts_tallies(chunks: Sequence[Chunk], outputs: Outputs) -> dict[str, list[Tally]]:
    """Errors of the tts model in each recording, by measure: dB over frames of phones, squares over voiced frames."""
    rows = joined(chunks, outputs)
    return {
        "mel-cepstral distortion": [_distortion(r, values, cepstra(r.bands)) for r, values in rows],
        "log F0 error": [_pitch(r, values, r.pitch.astype(np.float64)) for r, values in rows],
    }


@_INFINITE
def asr_scores(chunks: Sequence[Chunk], outputs: Outputs, baseline: Outputs | None = None, /) -> dict[str, Interval]:
    """What a driver's probabilities are worth, by name; empty where no recording was run as a whole.

    Args:
        chunks: that were run; a recording that is not whole is left out.
        outputs: of each.
        baseline: the same from the baseline; None where there is none.

    Raises:
        UsageError: the committed bigram is missing or damaged.
    """
    ours = joined(chunks, outputs)
    if not ours:
        return {}
    scores = _scores(asr_tallies(chunks, outputs), asr_tallies(chunks, baseline) if baseline is not None else {})
    if baseline is not None:
        theirs = joined(chunks, baseline)
        pairs = zip(ours, theirs, strict=True)
        moved = [_against(recording.name, likeliest(a), likeliest(b)) for (recording, a), (_, b) in pairs]
        scores["worst phone error rate from baseline"] = _worst(moved)
        scores |= _differences(ours, theirs)
    return scores


@_INFINITE
def tts_scores(chunks: Sequence[Chunk], outputs: Outputs, baseline: Outputs | None = None, /) -> dict[str, Interval]:
    """What a driver's cepstra and log F0 are worth, by name. As `asr_scores`."""
    ours = joined(chunks, outputs)
    if not ours:
        return {}
    scores = _scores(tts_tallies(chunks, outputs), tts_tallies(chunks, baseline) if baseline is not None else {})
    if baseline is not None:
        theirs = joined(chunks, baseline)
        pairs = [(recording, a, b) for (recording, a), (_, b) in zip(ours, theirs, strict=True)]
        scores["worst mel-cepstral distortion from baseline"] = _worst([_distortion(*pair) for pair in pairs])
        scores["worst log F0 error from baseline"] = _worst([_pitch(r, a, b[:, CEPSTRA]) for r, a, b in pairs], np.sqrt)
        scores |= _differences(ours, theirs)
    return scores


def rate(tallies: Sequence[Tally], shape: Callable[[Array], Array] = np.asarray) -> Interval:
    """Errors over counts of all recordings, with its interval; the count is that of what was judged.

    Args:
        tallies: of each recording.
        shape: applied to the quotient, such as a square root.
    """
    errors, counts = _columns(tallies)
    draws = _draws(len(tallies))
    return _interval(shape(errors.sum() / counts.sum()), shape(_quotients(errors, counts, draws)), counts)


def rate_difference(
    tallies: Sequence[Tally], baseline: Sequence[Tally], shape: Callable[[Array], Array] = np.asarray
) -> Interval:
    """A rate less the baseline's on the same recordings, with its interval. As `rate`."""
    errors, counts = _columns(tallies)
    other, others = _columns(baseline)
    draws = _draws(len(tallies))
    moved = shape(_quotients(errors, counts, draws)) - shape(_quotients(other, others, draws))
    return _interval(shape(errors.sum() / counts.sum()) - shape(other.sum() / others.sum()), moved, counts)


_SHAPES: Mapping[str, Callable[[Array], Array]] = {"log F0 error": np.sqrt}  # the others are plain quotients


def _scores(ours: Mapping[str, Sequence[Tally]], theirs: Mapping[str, Sequence[Tally]]) -> dict[str, Interval]:
    scores = {}
    for name, tallies in ours.items():
        shape = _SHAPES.get(name, np.asarray)
        scores[name] = rate(tallies, shape)
        scores[f"worst {name}"] = _worst(tallies, shape)
        if name in theirs:
            scores[f"{name}, less baseline"] = rate_difference(tallies, theirs[name], shape)
    return scores


def _differences(ours: Rows, theirs: Rows) -> dict[str, Interval]:
    """How the outputs differ from the baseline's, element by element; both signs kept apart."""
    moved = [a - b for (_, a), (_, b) in zip(ours, theirs, strict=True)]
    count = sum(m.size for m in moved)
    return {
        "mean squared error": mean([float(np.mean(m**2)) for m in moved]),
        "largest error above": Interval(float(np.max([0.0, *(m.max() for m in moved)])), None, None, count),
        "largest error below": Interval(float(np.min([0.0, *(m.min() for m in moved)])), None, None, count),
    }


def _phones(recording: Recording, found: Sequence[int]) -> Tally:
    return _against(recording.name, found, recording.segments.spoken())


def _against(name: str, found: Sequence[int], due: Sequence[int]) -> Tally:
    return Tally(name, edit_distance(found, due), len(due))


def _distortion(recording: Recording, found: Array, due: Array) -> Tally:
    spoken = spoken_frames(recording.segments, len(found))
    return Tally(recording.name, float(distortion(found, due)[spoken].sum()), int(spoken.sum()))


def _pitch(recording: Recording, found: Array, due: Array) -> Tally:
    voiced = recording.pitch != 0
    return Tally(recording.name, float(((found[:, CEPSTRA] - due)[voiced] ** 2).sum()), int(voiced.sum()))


def _columns(tallies: Sequence[Tally]) -> tuple[Array, Array]:
    return np.array([t.errors for t in tallies], np.float64), np.array([t.count for t in tallies])


def _draws(count: int) -> Array:
    return np.random.default_rng(SEED).integers(count, size=(DRAWS, count))


def _quotients(errors: Array, counts: Array, draws: Array) -> Array:
    return np.asarray(errors[draws].sum(1) / np.maximum(counts[draws].sum(1), 1))


def _interval(value: Array, resampled: Array, counts: Array) -> Interval:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(resampled, (tail, 100 - tail))
    return Interval(float(value), float(low), float(high), int(counts.sum()))


def _worst(tallies: Sequence[Tally], shape: Callable[[Array], Array] = np.asarray) -> Interval:
    """The rate of the recording that has the highest one, as MLTS reports it; counts recordings."""
    errors, counts = _columns(tallies)
    return Interval(float(shape(errors / np.maximum(counts, 1)).max()), None, None, len(tallies))
