"""Cache files whose content is sealed: what a driver saves comes back as it was, or is seen not to be.

A file says whose it is and how long, and ends nowhere else; a checksum covers all of it. The data file names the model
file that it was saved with, so that another model's under the same token is seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import struct
from collections.abc import Sequence

from nnhal.device import CacheFilesNeeded
from nnhal.errors import DriverError, invalid
from nnhal.types import CACHE_TOKEN_BYTES, ErrorStatus

FILES = CacheFilesNeeded(num_model_cache=1, num_data_cache=1)
KIND = 8  # bytes of a mark
HEAD = struct.Struct(f"<{KIND}s{CACHE_TOKEN_BYTES}sQ32s")  # kind, token, bytes of content, checksum


class SealedCache:
    """One model and one data cache file of a driver.

    Args:
        model: mark of the driver's model files, 8 bytes.
        data: mark of its data files.
    """

    def __init__(self, model: bytes, data: bytes) -> None:
        self._model, self._data = model, data

    def save(self, content: bytes, token: bytes, model_cache: Sequence[int], data_cache: Sequence[int]) -> bool:
        """Writes the files; False where they are not fit for it, which is no reason to refuse the model."""
        if (len(model_cache), len(data_cache)) != (FILES.num_model_cache, FILES.num_data_cache):
            return False
        if not all(_is_usable(descriptor) for descriptor in (*model_cache, *data_cache)):
            return False
        whole = _sealed(self._model, token, content)
        try:
            _write(data_cache[0], _sealed(self._data, token, hashlib.sha256(whole).digest()))
            _write(model_cache[0], whole)
        except OSError:
            for descriptor in (*model_cache, *data_cache):
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)  # no half of it is left
            return False
        return True

    def load(self, model_cache: Sequence[int], data_cache: Sequence[int], token: bytes) -> memoryview:
        """What was saved. The files are read once, and what was read is what is checked.

        Raises:
            DriverError: INVALID_ARGUMENT for a wrong number of files or length of the token, else GENERAL_FAILURE.
        """
        if (len(model_cache), len(data_cache)) != (FILES.num_model_cache, FILES.num_data_cache):
            text = f"{len(model_cache)} model and {len(data_cache)} data cache files"
            raise invalid(f"{text}, {FILES.num_model_cache} and {FILES.num_data_cache} are due")
        if len(token) != CACHE_TOKEN_BYTES:
            raise invalid(f"the cache token has {len(token)} bytes, {CACHE_TOKEN_BYTES} are due")
        if not all(_is_usable(descriptor) for descriptor in (*model_cache, *data_cache)):
            raise unusable("a cache file cannot be read and written")
        try:
            whole, beside = _read(model_cache[0]), _read(data_cache[0])
        except OSError as error:
            raise unusable(f"a cache file cannot be read: {error.strerror}") from None
        content = _opened(self._model, token, whole)
        if content is None:
            raise unusable("the model cache is damaged, or another token's")
        named = _opened(self._data, token, beside)
        if named is not None and named != hashlib.sha256(whole).digest():
            raise unusable("the model cache is another model's")
        return content


def unusable(text: str) -> DriverError:
    """GENERAL_FAILURE, with what is wrong."""
    return DriverError(ErrorStatus.GENERAL_FAILURE, text)


def _is_usable(descriptor: int) -> bool:
    """Whether it is a file that can be read and written."""
    try:
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        return access == os.O_RDWR and stat.S_ISREG(os.fstat(descriptor).st_mode)
    except (OSError, ValueError):  # no descriptor at all
        return False


def _checksum(kind: bytes, token: bytes, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(kind + token + len(content).to_bytes(8, "little"))
    digest.update(content)
    return digest.digest()


def _sealed(kind: bytes, token: bytes, content: bytes) -> bytes:
    return HEAD.pack(kind, token, len(content), _checksum(kind, token, content)) + content


def _opened(kind: bytes, token: bytes, whole: bytes) -> memoryview | None:
    """The content of a file that is whole, of that kind and that token's; else None."""
    if len(whole) < HEAD.size:
        return None
    content = memoryview(whole)[HEAD.size :]
    expected = HEAD.pack(kind, token, len(content), _checksum(kind, token, content))
    return content if whole[: HEAD.size] == expected else None


def _read(descriptor: int) -> bytes:
    """All bytes of a file, wherever its position is."""
    parts: list[bytes] = []
    place, size = 0, os.fstat(descriptor).st_size
    while place < size:
        part = os.pread(descriptor, size - place, place)
        if not part:
            break
        parts.append(part)
        place += len(part)
    return b"".join(parts)


def _write(descriptor: int, content: bytes) -> None:
    """Makes this the whole content of a file, wherever its position is."""
    os.ftruncate(descriptor, 0)
    left, place = memoryview(content), 0
    while left:
        written = os.pwrite(descriptor, left, place)
        left, place = left[written:], place + written
