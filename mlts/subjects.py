"""From a name of the list to a subject: the model imported, its inputs made, and what scores its outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from importers.load import load_bytes
from mlts.accuracy import real_outputs
from mlts.catalogue import Entry, entries
from mlts.evaluators import Scores, evaluator
from mlts.files import model_file
from mlts.pictures import samples
from mlts.speech import held_out
from mlts.speech.models import MODELS
from mlts.speech.models import subject as speech_subject
from mlts.speech_entries import SpeechEntry, speech_entries
from mlts.subject import Subject
from mlts.user_models import user_entries
from nnhal.errors import SuiteError, UsageError
from nnhal.types import Array

QUICK = ("mobilenet_v1_0.25_128_float", "mobilenet_v1_0.25_128_quant", "asr_float", "tts_float")  # need no download
TFLITE = b"TFL3"


@dataclass(frozen=True)
class Named:
    """A model that can be chosen.

    Attributes:
        entry: of the list; None for speech.
        speech: the same for speech.
    """

    name: str
    slot: str
    reality: str
    entry: Entry | None = None
    speech: SpeechEntry | None = None

    @property
    def quick(self) -> bool:
        """Whether nothing has to be fetched for it."""
        return self.name in QUICK


def listed(folder: Path | None = None) -> tuple[Named, ...]:
    """All models, the user's first.

    Raises:
        UsageError: the user's folder holds none, or they cannot be read.
    """
    own = () if folder is None else user_entries(folder)
    found = [Named(entry.name, entry.slot, entry.reality, entry) for entry in (*own, *entries())]
    found += [Named(one.name, one.slot, one.reality, speech=one) for one in speech_entries()]
    return tuple(found)


def chosen(among: Sequence[Named], only: Sequence[str]) -> tuple[Named, ...]:
    """Those whose name matches one of the patterns, in which `*` stands for anything; all where there is none.

    Raises:
        UsageError: a pattern matches nothing.
    """
    if not only:
        return tuple(among)
    found: list[Named] = []
    for pattern in only:
        form = re.compile(".*".join(map(re.escape, pattern.split("*"))))
        hits = [named for named in among if form.fullmatch(named.name)]
        if not hits:
            raise UsageError(f"--only={pattern} matches no model; python -m mlts --list names them")
        found += [named for named in hits if named not in found]
    return tuple(found)


def subject_of(named: Named, cache: Path, most: int | None, *, relaxed: bool = False) -> Subject:
    """The model with its inputs.

    Args:
        named: which.
        cache: where packages and made files are kept.
        most: inputs at most.
        relaxed: allows the range and precision of float16, as the public benchmark does.

    Raises:
        UsageError: something cannot be fetched or read, or the model cannot be expressed.
    """
    if named.entry is None:
        return speech_subject(named.name, held_out.committed(), relaxed=relaxed)
    entry = named.entry
    data = model_file(entry, cache).read_bytes()
    imported = load_bytes(data, entry.name)
    imported.require()
    taken = list(samples(entry, cache, most=most))
    if not taken:
        raise UsageError(f"{entry.name} has no inputs: its data set {entry.data_set} is empty")
    return Subject(
        name=entry.name,
        slot=entry.slot,
        size=entry.size,
        type=entry.type,
        reality=entry.reality,
        imported=imported,
        file=data if data[4:8] == TFLITE else b"",
        samples=tuple(sample.inputs for sample in taken),
        truths=tuple(taken),
        off_by=entry.off_by if entry.type == "quant8" else None,
        relaxed=relaxed,
    )


def facts_of(named: Named) -> Mapping[str, object]:
    """What a page says of a model besides what was measured."""
    entry, speech = named.entry, named.speech
    if speech is not None:
        due = {speech.score: speech.value, "count": speech.count}
        return {"licence": speech.licence, "note": speech.note, "expected": due, "data_set": speech.data_set}
    if entry is None:
        raise SuiteError(f"{named.name} is neither of the list nor of speech")
    expected = entry.expected
    known = None if expected is None else {"top 1": expected.top1, "top 5": expected.top5, "count": expected.count}
    return {"licence": entry.licence, "note": entry.note, "expected": known, "data_set": entry.data_set}


Evaluation = Callable[[Subject, Sequence[Sequence[Array]], Sequence[Sequence[Array]]], Mapping[str, Scores]]


def evaluation(named: Named) -> Evaluation:
    """What scores a model's outputs: the driver's, which are also held against the baseline's, and the baseline's."""
    score = MODELS[named.name].scores if named.entry is None else evaluator(named.entry.evaluator)

    def evaluate(
        subject: Subject, ours: Sequence[Sequence[Array]], theirs: Sequence[Sequence[Array]]
    ) -> Mapping[str, Scores]:
        mine, base = ([real_outputs(outputs, subject.model) for outputs in side] for side in (ours, theirs))
        truths = subject.truths[: len(mine)]
        return {"driver": score(truths, mine, base), "baseline": score(truths, base, None)}

    return evaluate
