"""Cache files as a client keeps them: what is handed to a driver, and what happens to them in between."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator

import pytest

from harness.cache_files import CacheFiles
from harness.steps import HANDLES, Tampering
from nnhal.device import CacheFilesNeeded

MODEL, DATA = b"a model cache of some bytes", b"data"


@pytest.fixture
def files() -> Iterator[CacheFiles]:
    made = CacheFiles.create(CacheFilesNeeded(2, 1))
    os.pwrite(made.model[0], MODEL, 0)
    os.pwrite(made.data[0], DATA, 0)
    yield made
    made.close()


def content(descriptor: int) -> bytes:
    return os.pread(descriptor, 1 << 16, 0)


def access(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE


def test_handles_are_files_that_can_be_read_and_written_from_the_start(files: CacheFiles) -> None:
    with files.handles() as (model, data):
        assert [len(model), len(data)] == [2, 1]
        for descriptor in (*model, *data):
            assert access(descriptor) == os.O_RDWR
            assert stat.S_ISREG(os.fstat(descriptor).st_mode)
            assert os.lseek(descriptor, 0, os.SEEK_CUR) == 0
        assert os.read(model[0], 100) == MODEL
        os.pwrite(model[1], b"second", 0)
    assert content(files.model[1]) == b"second"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(model[0])


@pytest.mark.parametrize(
    ("wrong", "counts"),
    [
        ("model_one_fewer", (1, 1)),
        ("model_one_more", (3, 1)),
        ("model_none", (0, 1)),
        ("data_one_fewer", (2, 0)),
        ("data_one_more", (2, 2)),
        ("data_none", (2, 0)),
    ],
)
def test_a_wrong_number_of_handles(files: CacheFiles, wrong: str, counts: tuple[int, int]) -> None:
    with files.handles(wrong) as (model, data):
        assert (len(model), len(data)) == counts


def test_handles_of_wrong_access_position_and_none_at_all(files: CacheFiles) -> None:
    with files.handles("read_only") as (model, data):
        assert {access(d) for d in (*model, *data)} == {os.O_RDONLY}
    with files.handles("write_only") as (model, data):
        assert {access(d) for d in (*model, *data)} == {os.O_WRONLY}
    with files.handles("moved") as (model, _):
        assert os.lseek(model[0], 0, os.SEEK_CUR) == len(MODEL)
    with files.handles("no_descriptor") as (model, _):
        assert model[0] == -1
        assert model[1] >= 0


def test_what_cannot_be_wrong_with_the_files_of_a_driver_is_told() -> None:
    def possible(model: int, data: int) -> set[str]:
        files = CacheFiles.create(CacheFilesNeeded(model, data))
        found = {wrong for wrong in HANDLES if files.can_be(wrong)}
        files.close()
        return found

    assert possible(1, 1) == set(HANDLES) - {"unsupported"}
    assert possible(1, 0) == set(HANDLES) - {"unsupported", "data_one_fewer", "data_none"}
    no_model = {"unsupported", "model_one_fewer", "model_none", "no_descriptor"}
    assert possible(0, 1) == set(HANDLES) - no_model
    assert possible(0, 0) == {"unsupported"}
    with CacheFiles.create(CacheFilesNeeded()).handles("unsupported") as (model, data):
        assert (len(model), len(data)) == (1, 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Tampering(0, "truncate", place=0.5), MODEL[: (len(MODEL) - 1) // 2]),
        (Tampering(0, "truncate", place=1.0), MODEL[:-1]),
        (Tampering(0, "extend"), MODEL + b"\0"),
        (Tampering(0, "flip", place=0.0, bit=0), bytes([MODEL[0] ^ 1]) + MODEL[1:]),
        (Tampering(0, "flip", place=1.0, bit=7), MODEL[:-1] + bytes([MODEL[-1] ^ 128])),
        (Tampering(0, "empty"), b""),
        (Tampering(0, "swap"), DATA),
    ],
)
def test_a_file_is_changed_and_brought_back(files: CacheFiles, change: Tampering, expected: bytes) -> None:
    assert files.tamper(Tampering(0, "remember"), None)
    assert files.tamper(change, None)
    assert content(files.model[0]) == expected
    assert content(files.data[0]) == (MODEL if change.change == "swap" else DATA)
    assert files.tamper(Tampering(0, "restore"), None)
    assert [content(files.model[0]), content(files.data[0])] == [MODEL, DATA]


def test_garbage_is_as_long_and_replacing_takes_the_others_content(files: CacheFiles) -> None:
    assert files.tamper(Tampering(0, "garbage"), None)
    assert len(content(files.model[0])) == len(MODEL)
    assert content(files.model[0]) != MODEL
    other = CacheFiles.create(CacheFilesNeeded(2, 1))
    os.pwrite(other.model[1], b"theirs", 0)
    assert files.tamper(Tampering(0, "replace", other=1), other)
    assert [content(d) for d in files.model] == [b"", b"theirs"]
    assert content(files.data[0]) == DATA
    other.close()


def test_where_there_is_nothing_to_change_it_says_so(files: CacheFiles) -> None:
    assert not files.tamper(Tampering(0, "flip", file=1), None)  # it is empty
    assert not files.tamper(Tampering(0, "truncate", file=2), None)
    assert not files.tamper(Tampering(0, "empty", file=1), None)
    bare = CacheFiles.create(CacheFilesNeeded(1, 0))
    assert not bare.tamper(Tampering(0, "swap"), None)
    assert not bare.tamper(Tampering(0, "extend", data=True), None)
    assert not bare.tamper(Tampering(0, "restore"), None)
    bare.close()
