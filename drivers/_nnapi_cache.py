"""Compilation caching: the library has a directory, the driver interface has files; this packs one into the other.

The model is packed along with the library's files, since the C interface loads from a cache by compiling again.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from nnhal import wire
from nnhal.model import Model
from nnhal.sealed_cache import FILES, SealedCache, unusable

__all__ = ["FILES", "directory", "load", "save"]

CACHE = SealedCache(b"nnapim01", b"nnapid01")
_NUMBER = 8  # bytes of a length
_LONGEST_NAME = 255


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A directory for the library's cache files, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="nncts-nnapi-cache-") as name:
        yield Path(name)


def save(model: Model, files: Path, token: bytes, model_cache: Sequence[int], data_cache: Sequence[int]) -> None:
    """Writes the model and what the library has put into its directory; nothing where that is nothing."""
    saved = [(path.name.encode(), path.read_bytes()) for path in sorted(files.iterdir()) if path.is_file()]
    if saved:
        parts = [wire.dumps(model), *(part for pair in saved for part in pair)]
        CACHE.save(b"".join(map(_text, parts)), token, model_cache, data_cache)


def load(files: Path, token: bytes, model_cache: Sequence[int], data_cache: Sequence[int]) -> Model:
    """The model of cache files; the library's own go into its directory.

    Raises:
        DriverError: INVALID_ARGUMENT for a wrong number of files or length of the token, else GENERAL_FAILURE.
    """
    parts = list(_texts(bytes(CACHE.load(model_cache, data_cache, token))))
    try:
        model = wire.loads(Model, parts[0])
    except (ValueError, IndexError) as error:
        raise unusable(f"the model cache holds no model: {error}") from None
    for name, content in zip(parts[1::2], parts[2::2], strict=False):
        text = name.decode(errors="replace")
        if text and "/" not in text and "\0" not in text and text not in (".", "..") and len(name) <= _LONGEST_NAME:
            (files / text).write_bytes(content)
    return model


def _text(content: bytes) -> bytes:
    return len(content).to_bytes(_NUMBER, "little") + content


def _texts(whole: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(whole):
        start = place + _NUMBER
        place = start + int.from_bytes(whole[place:start], "little")
        yield whole[start:place]
