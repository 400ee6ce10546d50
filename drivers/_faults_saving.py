"""What faulty drivers do to cache files when they save, and when they look at them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from drivers._faults import Loading, Preparing, State
from nnhal.device import CacheFilesNeeded, PreparedModel
from nnhal.errors import invalid

Ready = Callable[[], PreparedModel]


def _content(descriptor: int) -> bytes:
    """All of a file; nothing where it cannot be read."""
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    except OSError:
        return b""


def contents(files: Sequence[int]) -> list[bytes]:
    """The contents of files."""
    return [_content(descriptor) for descriptor in files]


def strict(wrong: Callable[[Preparing], bool]) -> Callable[[Preparing, Ready], PreparedModel]:
    """Refuses to prepare where the descriptors are wrong."""

    def hook(occasion: Preparing, go: Ready) -> PreparedModel:
        if wrong(occasion):
            raise invalid("the cache files are wrong")
        return go()

    return hook


def wrong_count(occasion: Preparing) -> bool:
    """Neither no files nor as many as the inner driver needs."""
    needed, config = occasion.state.inner.get_number_of_cache_files_needed(), occasion.config
    given = len(config.model_cache), len(config.data_cache)
    return given not in ((0, 0), (needed.num_model_cache, needed.num_data_cache))


def _can_be_used(descriptor: int) -> bool:
    try:
        os.pwrite(descriptor, os.pread(descriptor, 1, 0), 0)
    except OSError:
        return False
    return True


def wrong_access(occasion: Preparing) -> bool:
    """A file that cannot be read and written."""
    return not all(_can_be_used(d) for d in (*occasion.config.model_cache, *occasion.config.data_cache))


def token_alone(occasion: Preparing) -> bool:
    """A token without files."""
    config = occasion.config
    return not config.model_cache and not config.data_cache and any(config.cache_token)


def zero_token(occasion: Preparing) -> bool:
    """A token of zeros with files."""
    config = occasion.config
    return bool(config.model_cache) and not any(config.cache_token)


def saves_nothing(occasion: Preparing, go: Ready) -> PreparedModel:
    """Leaves the files alone."""
    occasion.config = replace(occasion.config, model_cache=(), data_cache=())
    return go()


def keeps_tail(occasion: Preparing, go: Ready) -> PreparedModel:
    """Writes over what is in a file, and leaves the rest."""
    files = occasion.config.model_cache
    before = contents(files)
    made = go()
    for descriptor, old in zip(files, before, strict=True):
        with contextlib.suppress(OSError):
            length = os.fstat(descriptor).st_size
            os.pwrite(descriptor, old[length:], length)
    return made


def _position(descriptor: int) -> int:
    try:
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        return 0


def writes_on(occasion: Preparing, go: Ready) -> PreparedModel:
    """Writes from where the file's position is."""
    files = occasion.config.model_cache
    places = [_position(descriptor) for descriptor in files]
    made = go()
    for descriptor, place in zip(files, places, strict=True):
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, bytes(place) + _content(descriptor), 0)
    return made


def first_file(occasion: Preparing, go: Ready) -> PreparedModel:
    """Saves into the first model file alone."""
    occasion.config = replace(occasion.config, model_cache=occasion.config.model_cache[:1])
    return go()


def second_file(occasion: Loading, go: Ready) -> PreparedModel:
    """Takes the files in another order than at saving."""
    occasion.model_cache = occasion.model_cache[1:]
    return go()


def one_more(state: State, answer: CacheFilesNeeded) -> CacheFilesNeeded:
    """Needs a model file more."""
    return replace(answer, num_model_cache=answer.num_model_cache + 1)


def none(state: State, answer: CacheFilesNeeded) -> CacheFilesNeeded:
    """Needs no files."""
    return CacheFilesNeeded()
