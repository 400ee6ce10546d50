"""The models of speech in the list: they come with the project, so that nothing of them is fetched or made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from mlts.catalogue import LIST, TRAINED
from mlts.json_fields import Fields, parsed
from nnhal.errors import UsageError

SLOTS = ("asr", "tts")
_KEYS = ("name", "slot", "size", "type", "reality", "model", "data_set", "expected", "licence", "note")


@dataclass(frozen=True)
class SpeechEntry:
    """A model of speech.

    Attributes:
        slot: which of the public models it stands for.
        size: steps of one run, and how long each is.
        score: what was measured of it on all held-out recordings, with the value and their number.
    """

    name: str
    slot: str
    size: str
    reality: str
    data_set: str
    score: str
    value: float
    count: int
    licence: str
    note: str


@cache
def speech_entries() -> tuple[SpeechEntry, ...]:
    """All of the list, in its order.

    Raises:
        UsageError: the list is damaged.
    """
    return read_speech(LIST.read_text(encoding="utf-8"), LIST.name)


def read_speech(text: str, name: str) -> tuple[SpeechEntry, ...]:
    """The models of speech of a list, as `models.schema.json` describes it.

    Raises:
        UsageError: something is missing or unknown.
    """
    top = Fields(parsed(text, name), name)
    return tuple(_entry(Fields(value, where, _KEYS)) for where, value in top.objects("speech"))


def _entry(fields: Fields) -> SpeechEntry:
    expected = fields.object("expected")
    expected.only(("score", "value", "count"))
    slot = fields.one_of("slot", SLOTS)
    if fields.one_of("model", SLOTS) != slot:
        raise UsageError(f"{fields.where}: model and slot differ; write {slot} for both")
    fields.one_of("type", ("float",))
    return SpeechEntry(
        name=fields.text("name"),
        slot=slot,
        size=fields.text("size"),
        reality=fields.one_of("reality", (TRAINED,)),
        data_set=fields.text("data_set"),
        score=expected.text("score"),
        value=expected.number("value"),
        count=expected.integer("count"),
        licence=fields.text("licence"),
        note=fields.text("note"),
    )
