"""Recordings cut into runs of a model: a second of sound each, the states handed on from chunk to chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlts.speech.nets import ASR_STEPS, TTS_STEPS
from mlts.speech.parameters import Parameters, read
from mlts.speech.plain import State, run
from mlts.speech.recordings import Recording, asr_inputs, tts_inputs
from nnhal.types import Array


@dataclass(frozen=True)
class Chunk:
    """One run of a model.

    Attributes:
        inputs: in the order of the model's list. The states of a later chunk are what plain NumPy has there, so that
            each chunk can be run by itself; `carry` puts the device's own in their place.
        truth: the phones said in the whole recording, for asr; None for tts, whose truth is the recording's sound.
        name: recording, number of the chunk, and where the sound comes from.
        recording: what it is cut from.
        number: of the chunk in its recording, from 0.
        count: of the recording's chunks.
        steps: that belong to the recording; what is behind them is filling.
    """

    inputs: tuple[Array, ...]
    truth: tuple[int, ...] | None
    name: str
    recording: Recording
    number: int
    count: int
    steps: int


def asr_chunks(recordings: Sequence[Recording], parameters: Parameters | None = None) -> list[Chunk]:
    """The runs that go through recordings with the asr model.

    Args:
        parameters: the trained ones if None.

    Raises:
        UsageError: the trained parameters are missing or damaged.
    """
    known = parameters or read("asr")
    chunks = []
    for recording in recordings:
        heard = asr_inputs(recording.bands, known.mean, known.deviation)
        chunks += _cut(recording, heard, ASR_STEPS, known, recording.segments.spoken())
    return chunks


def tts_chunks(recordings: Sequence[Recording], parameters: Parameters | None = None) -> list[Chunk]:
    """The runs that go through recordings with the tts model. As `asr_chunks`."""
    known = parameters or read("tts")
    chunks = []
    for recording in recordings:
        chunks += _cut(recording, tts_inputs(recording.segments, len(recording.bands)), TTS_STEPS, known, None)
    return chunks


def carry(chunks: Sequence[Chunk], execute: Callable[[Sequence[Array]], Sequence[Array]]) -> list[list[Array]]:
    """Outputs of each chunk where the states that a device gives go into its next run, as an application would do it.

    Args:
        chunks: those of a recording in their order, one behind the other.
        execute: runs the model once.
    """
    made: list[list[Array]] = []
    for chunk in chunks:
        inputs = chunk.inputs if chunk.number == 0 else (chunk.inputs[0], *made[-1][1:])
        made.append(list(execute(inputs)))
    return made


def joined(chunks: Sequence[Chunk], outputs: Sequence[Sequence[Array]]) -> list[tuple[Recording, Array]]:
    """Each recording with the rows [steps, outputs] that a model gave for it, filling removed, as float64.

    A recording some of whose chunks were not run is left out.
    """
    found: list[tuple[Recording, Array]] = []
    parts: list[Array] = []
    for chunk, output in zip(chunks, outputs, strict=True):
        if chunk.number == 0:
            parts = []
        parts.append(np.asarray(output[0], np.float64)[: chunk.steps])
        if len(parts) == chunk.count == chunk.number + 1:
            found.append((chunk.recording, np.concatenate(parts)))
    return found


def _cut(
    recording: Recording, rows: Array, steps: int, parameters: Parameters, truth: tuple[int, ...] | None
) -> list[Chunk]:
    states: list[State] = [
        (np.zeros(layer.bias.shape[1]), np.zeros(layer.bias.shape[1])) for layer in parameters.layers
    ]
    count = -(-len(rows) // steps)
    chunks = []
    for number in range(count):
        part = rows[number * steps : (number + 1) * steps]
        filled = np.zeros((1, steps, rows.shape[1]), np.float32)
        filled[0, : len(part)] = part
        flat = (value.astype(np.float32)[None] for state in states for value in state)
        name = f"{recording.name} {number + 1}/{count} ({recording.source})"
        chunks.append(Chunk((filled, *flat), truth, name, recording, number, count, len(part)))
        if number + 1 < count:
            _, states = run(parameters, part, states)
    return chunks
