"""Recordings as the models use them: phones in time, log-mel bands, log F0; inputs and targets of both models."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from mlts.speech.features import STACK, cepstra, stacked
from mlts.speech.phones import PHONES, SILENCE, Segments
from nnhal.types import Array

LOOK_AHEAD = 3  # steps of 20 ms that the asr model hears before it says what the phone was
HELD_OUT_SHARE = 5  # one sentence in five
ASR_INPUTS = 80
TTS_INPUTS = 3 * len(PHONES) + 3


@dataclass(frozen=True)
class Recording:
    """A prompt.

    Attributes:
        segments: its phones in time, found by alignment.
        bands: log-mel bands, float32 [frames, 40].
        pitch: log F0, float32 [frames]; 0 where there is no voice.
        source: where bands and pitch come from, for people.
    """

    name: str
    segments: Segments
    bands: Array
    pitch: Array
    source: str


def is_held_out(words: str) -> bool:
    """Whether a sentence is kept from training: decided by its words, so that no sentence is on both sides."""
    return hashlib.sha256(words.encode()).digest()[0] % HELD_OUT_SHARE == 0


def asr_inputs(bands: Array, mean: Array, deviation: Array) -> Array:
    """What the asr model hears, float32 [steps, 80]: pairs of normalised frames, the last one LOOK_AHEAD times more.

    Step t is asked for the phone at 20 (t - LOOK_AHEAD) ms.

    Args:
        bands: [frames, 40].
        mean: of each band in training, [40]; likewise its standard deviation.
        deviation: the latter.
    """
    heard = stacked((bands - mean) / deviation)
    return np.concatenate([heard, np.repeat(heard[-1:], LOOK_AHEAD, 0)]).astype(np.float32)


def asr_targets(recording: Recording) -> Array:
    """The phone at each step, int64 [steps]; silence before the recording begins."""
    phones = recording.segments.frames(len(recording.bands))[::STACK]
    return np.concatenate([np.full(LOOK_AHEAD, SILENCE), phones])


def tts_inputs(segments: Segments, frames: int) -> Array:
    """What the tts model is told of each frame, float32 [frames, 123].

    The phone before, this one and the next, one of 40 each (silence outside); the place in the phone, 0 to 1; the
    natural logarithm of the phone's length in frames; the place in the sentence, 0 to 1.
    """
    phones = np.array([SILENCE, *segments.phones, SILENCE])
    at = np.repeat(np.arange(len(segments.phones)), segments.lengths)[:frames]
    at = np.concatenate([at, np.full(frames - len(at), len(segments.phones) - 1, at.dtype)])
    starts = np.concatenate([[0], np.cumsum(segments.lengths)])
    lengths = np.maximum(segments.lengths, 1)
    here = np.arange(frames)
    told = np.zeros((frames, TTS_INPUTS), np.float32)
    for context in range(3):
        told[here, context * len(PHONES) + phones[at + context]] = 1
    told[:, -3] = np.minimum((here - starts[at] + 0.5) / lengths[at], 1)
    told[:, -2] = np.log(lengths[at])
    told[:, -1] = (here + 0.5) / frames
    return told


def tts_targets(recording: Recording) -> Array:
    """Cepstra c0 to c24 and log F0, float64 [frames, 26]; through frames without voice the pitch goes straight on.

    A recording without any voice has the pitch 0 throughout.
    """
    pitch = recording.pitch.astype(np.float64)
    voiced = np.flatnonzero(pitch)
    if len(voiced):
        pitch = np.interp(np.arange(len(pitch)), voiced, pitch[voiced])
    return np.column_stack([cepstra(recording.bands), pitch])
