"""Files for compilation caching as a client keeps them, and what happens to them. They leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.steps import Tampering
from nnhal.device import CacheFilesNeeded

MOST = 64  # files of a kind that are made for a driver that asks for more than the 32 allowed


def _new() -> int:
    return os.memfd_create("nncts-cache", os.MFD_CLOEXEC)


@dataclass
class CacheFiles:
    """The files of one prepared model: descriptors that can be read and written."""

    model: list[int]
    data: list[int]
    _remembered: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def create(cls, needed: CacheFilesNeeded) -> CacheFiles:
        """Empty files, as many as a driver needs."""
        counts = (needed.num_model_cache, needed.num_data_cache)
        model, data = ([_new() for _ in range(min(max(count, 0), MOST))] for count in counts)
        return cls(model, data)

    def can_be(self, wrong: str) -> bool:
        """Whether there is what is to be wrong with the descriptors: not where a driver asks for no such files."""
        if wrong == "unsupported":
            return not self.model and not self.data
        if wrong.startswith("data_") and wrong != "data_one_more":
            return bool(self.data)
        if wrong in ("no_descriptor", "model_none", "model_one_fewer"):
            return bool(self.model)
        return bool(self.model or self.data)

    @contextlib.contextmanager
    def handles(self, wrong: str = "") -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Descriptors to hand to a driver, for model and data, with what is to be wrong with them."""
        access = {"read_only": os.O_RDONLY, "write_only": os.O_WRONLY}.get(wrong, os.O_RDWR)
        opened: list[int] = []

        def reopen(descriptor: int) -> int:
            opened.append(os.open(f"/proc/self/fd/{descriptor}", access | os.O_CLOEXEC))
            if wrong == "moved":
                os.lseek(opened[-1], 0, os.SEEK_END)
            return opened[-1]

        try:
            lists = {"model": [reopen(d) for d in self.model], "data": [reopen(d) for d in self.data]}
            for kind, files in lists.items():
                if wrong == f"{kind}_one_fewer":
                    del files[-1:]
                elif wrong == f"{kind}_none":
                    files.clear()
                elif wrong in (f"{kind}_one_more", "unsupported"):
                    opened.append(_new())
                    files.append(opened[-1])
            if wrong == "no_descriptor":
                lists["model"][0] = -1
            yield tuple(lists["model"]), tuple(lists["data"])
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def tamper(self, change: Tampering, other: CacheFiles | None) -> bool:
        """Changes the files; False where there is nothing to change."""
        files = self.data if change.data else self.model
        if change.change == "remember":
            self._remembered = {d: _read(d) for d in (*self.model, *self.data)}
            return True
        if change.change == "restore":
            for descriptor, content in self._remembered.items():
                if _read(descriptor) != content:  # a driver may be reading the others meanwhile
                    _write(descriptor, content)
            return bool(self._remembered)
        if change.change == "replace":
            theirs = [] if other is None else other.data if change.data else other.model
            for mine, their in zip(files, theirs, strict=True):
                _write(mine, _read(their))
            return bool(files)
        if change.change == "swap":
            if not (self.model and self.data):
                return False
            first, second = _read(self.model[0]), _read(self.data[0])
            _write(self.model[0], second)
            _write(self.data[0], first)
            return first != second
        if change.file >= len(files):
            return False
        descriptor = files[change.file]
        before = _read(descriptor)
        after = _changed(before, change)
        _write(descriptor, after)
        return after != before

    def size(self) -> int:
        """Bytes in all files."""
        return sum(os.fstat(descriptor).st_size for descriptor in (*self.model, *self.data))

    def close(self) -> None:
        """Lets the files go."""
        for descriptor in (*self.model, *self.data):
            os.close(descriptor)
        self.model, self.data = [], []


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _write(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)


def _changed(content: bytes, change: Tampering) -> bytes:
    """A file's content after one change; the same where there is nothing that could change."""
    place = int(change.place * max(len(content) - 1, 0))
    if change.change == "empty":
        return b""
    if change.change == "extend":
        return content + b"\0"
    if change.change == "garbage":
        return random.Random(len(content)).randbytes(len(content))
    if not content:
        return content
    if change.change == "truncate":
        return content[:place]
    if change.change == "write":
        return content[:place] + change.content + content[place + len(change.content) :]
    if change.change == "cut":
        return content[:place] + content[place + change.length :]
    if change.change == "flip":
        return content[:place] + bytes([content[place] ^ (1 << change.bit)]) + content[place + 1 :]
    raise ValueError(f"no change of a cache file is called {change.change!r}")
