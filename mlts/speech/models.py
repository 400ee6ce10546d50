"""The speech models of the benchmark by name, ready to be measured: asr_float and tts_float."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from importers.imported import Imported, Port
from mlts.catalogue import TRAINED
from mlts.evaluators import Evaluator
from mlts.speech.chunks import Chunk, asr_chunks, tts_chunks
from mlts.speech.evaluators import asr_scores, tts_scores
from mlts.speech.nets import ASR_STEPS, TTS_STEPS, asr_model, tts_model
from mlts.speech.recordings import Recording
from mlts.subject import Subject
from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.types import OperationType, info
from nnhal.versions import needed_level

_STATES = ("output state 1", "cell state 1", "output state 2", "cell state 2")


@dataclass(frozen=True)
class SpeechModel:
    """A speech model: how it is made, cut into runs, and scored.

    Attributes:
        slot: "asr" or "tts".
        steps: of a chunk, and what they last together, for tables.
        heard, said: what the first input and the first output hold.
    """

    slot: str
    size: str
    heard: str
    said: str
    model: Callable[[], Model]
    chunks: Callable[[Sequence[Recording]], list[Chunk]]
    scores: Evaluator


MODELS = {
    "asr_float": SpeechModel("asr", f"{ASR_STEPS}x20ms", "bands", "phones", asr_model, asr_chunks, asr_scores),
    "tts_float": SpeechModel("tts", f"{TTS_STEPS}x10ms", "phones", "cepstra", tts_model, tts_chunks, tts_scores),
}


def subject(name: str, recordings: Sequence[Recording], *, relaxed: bool = False) -> Subject:
    """A speech model with the chunks of recordings, which are its truths as well.

    Short recordings come first: a run that stops after some chunks then has most of them whole.

    Args:
        name: of MODELS.
        recordings: of `mlts.speech.held_out`.
        relaxed: allows the range and precision of float16.

    Raises:
        UsageError: there is no such model, or a committed file is missing or damaged.
    """
    if name not in MODELS:
        raise UsageError(f"there is no speech model {name}; there are {', '.join(MODELS)}")
    known = MODELS[name]
    chunks = known.chunks(sorted(recordings, key=lambda recording: len(recording.bands)))
    return Subject(
        name=name,
        slot=known.slot,
        size=known.size,
        type="float",
        reality=TRAINED,
        imported=_imported(name, known),
        file=b"",
        samples=tuple(chunk.inputs for chunk in chunks),
        truths=tuple(chunks),
        relaxed=relaxed,
    )


def _imported(name: str, known: SpeechModel) -> Imported:
    model = known.model()
    graph = model.main

    def ports(indexes: Sequence[int], first: str) -> tuple[Port, ...]:
        return tuple(
            Port(word, info(graph.operands[i].type).dtype.name, graph.operands[i].dimensions, operand=i)
            for word, i in zip((first, *_STATES), indexes, strict=True)
        )

    return Imported(
        name,
        model,
        ports(graph.input_indexes, known.heard),
        ports(graph.output_indexes, known.said),
        operators=tuple(OperationType(operation.type).name for operation in graph.operations),
        origins=tuple(range(len(graph.operations))),
        level=needed_level(model),
    )
