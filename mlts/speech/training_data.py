"""Makes recordings out of the packages: decoded, aligned, measured. Only training and the full held-out set need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mlts.speech.features import log_f0, log_mel
from mlts.speech.g722 import decode
from mlts.speech.phones import Aligner, Segments
from mlts.speech.prompts import SOUNDS, Prompt, prompts
from mlts.speech.recordings import Recording, is_held_out
from nnhal.types import Array


def aligned_recordings(cache: Path) -> tuple[list[Recording], list[Recording]]:
    """All prompts whose words PocketSphinx finds in them: those to train with, and those held out.

    Raises:
        UsageError: a package cannot be had.
    """
    aligner = Aligner()
    known = prompts(cache)
    made = measured(known, lambda prompt, sound: aligner.align(sound, prompt.words))
    kept = {prompt.name for prompt in known if is_held_out(prompt.words)}
    return [r for r in made if r.name not in kept], [r for r in made if r.name in kept]


def measured(known: Sequence[Prompt], find: Callable[[Prompt, Array], Segments | None]) -> list[Recording]:
    """Recordings of prompts.

    Args:
        find: gives the phones of a prompt with its sound, or None to leave it out.
    """
    made = []
    for prompt, sound in zip(known, decode([prompt.stream for prompt in known]), strict=True):
        segments = find(prompt, sound)
        if segments is not None:
            made.append(Recording(prompt.name, segments, log_mel(sound), log_f0(sound), SOUNDS.name))
    return made
