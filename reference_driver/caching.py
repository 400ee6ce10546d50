"""Compilation caching: the reference driver's cache files hold the model itself."""

from __future__ import annotations

from collections.abc import Sequence

from nnhal import wire
from nnhal.model import Model
from nnhal.sealed_cache import FILES, SealedCache, unusable

__all__ = ["FILES", "load", "save"]

CACHE = SealedCache(b"nnrefm01", b"nnrefd01")


def save(model: Model, token: bytes, model_cache: Sequence[int], data_cache: Sequence[int]) -> bool:
    """Writes a model to cache files; False where they are not fit for it, which is no reason to refuse the model."""
    return CACHE.save(wire.dumps(model), token, model_cache, data_cache)


def load(model_cache: Sequence[int], data_cache: Sequence[int], token: bytes) -> Model:
    """The model in cache files.

    Raises:
        DriverError: INVALID_ARGUMENT for a wrong number of files or length of the token, else GENERAL_FAILURE.
    """
    content = CACHE.load(model_cache, data_cache, token)
    try:
        return wire.loads(Model, content)
    except ValueError as error:
        raise unusable(f"the model cache holds no model: {error}") from None
