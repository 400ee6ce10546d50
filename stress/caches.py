"""Activities with cache files in bad circumstances: a full disk, files that cannot be written, or are damaged."""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import socket
import tempfile
from collections.abc import Iterator

from harness.case import TestCase
from harness.verdict import Verdict
from nnhal.device import CacheFilesNeeded, CompilationConfig, Device, PreparedModel
from nnhal.errors import DriverError, UsageError
from nnhal.model import Model
from stress.board import Count
from stress.work import Worker

TOKEN = bytes(range(32))
SMALL_DISK = 4096  # bytes
NEW_NAMESPACE, NEW_USER = 0x00020000, 0x10000000  # of unshare
FLIPS = 8  # bytes that are changed in a file


class _Kept(Device):
    """Gives one prepared model to whoever asks, so that a case can be run with it."""

    def __init__(self, device: Device, prepared: PreparedModel) -> None:
        self.feature_level, self.traits = device.feature_level, device.traits
        self._device, self._prepared = device, prepared

    def get_supported_operations(self, model: Model) -> list[bool]:
        return self._device.get_supported_operations(model)

    def prepare_model(self, model: Model, config: CompilationConfig | None = None) -> PreparedModel:
        return self._prepared


def cached(worker: Worker) -> None:
    """Prepares with cache files and loads from them, in circumstances that a driver must live with.

    Parameters:
        kind: `full`: the disk; `read_only`: the files; `corrupt`: they are changed between saving and loading.
    """
    kind, device = str(worker.parameters["kind"]), worker.device
    with worker.call("get_number_of_cache_files_needed"):
        needed = device.get_number_of_cache_files_needed()
    if not (needed.num_model_cache or needed.num_data_cache):
        return
    while worker.goes_on():
        case = worker.rng.choice(worker.cases)
        with _files(needed, kind) as (model, data):
            _save_and_load(worker, device, case, model, data, kind)


def _save_and_load(
    worker: Worker, device: Device, case: TestCase, model: tuple[int, ...], data: tuple[int, ...], kind: str
) -> None:
    config = CompilationConfig(model_cache=model, data_cache=data, cache_token=TOKEN)
    try:
        with worker.call("prepare", case.models[0]):
            prepared = device.prepare_model(case.models[0], config)
    except DriverError:
        worker.count(Count.DECLINED)
    else:
        worker.count(Count.PREPARATIONS)
        if worker.run(case, _Kept(device, prepared)).verdict == Verdict.NOT_SUPPORTED:
            return
    if kind == "corrupt":
        _damage(worker, (*model, *data))
    try:
        with worker.call("prepare_from_cache"):
            loaded = device.prepare_model_from_cache(model, data, TOKEN)
    except DriverError:
        worker.count(Count.DECLINED)
        return
    worker.run(case, _Kept(device, loaded))


def _damage(worker: Worker, files: tuple[int, ...]) -> None:
    with worker.own("damages cache files"):
        for descriptor in files:
            size = os.fstat(descriptor).st_size
            if worker.rng.random() < 0.3:
                os.ftruncate(descriptor, worker.rng.randrange(size + 1))
            size = os.fstat(descriptor).st_size
            for _ in range(FLIPS if size else 0):
                place = worker.rng.randrange(size)
                byte = os.pread(descriptor, 1, place)[0]
                os.pwrite(descriptor, bytes([byte ^ (1 << worker.rng.randrange(8))]), place)


@contextlib.contextmanager
def _files(needed: CacheFilesNeeded, kind: str) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    count = needed.num_model_cache + needed.num_data_cache
    if kind == "full":
        files = full_files(count)
    else:
        files = [os.memfd_create("nncts-cache", os.MFD_CLOEXEC) for _ in range(count)]
    opened = list(files)
    if kind == "read_only":
        files = [os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC) for descriptor in files]
        opened += files
    try:
        yield tuple(files[: needed.num_model_cache]), tuple(files[needed.num_model_cache :])
    finally:
        for descriptor in opened:
            os.close(descriptor)


def full_files(count: int) -> list[int]:
    """Files on a disk of their own that has room for almost nothing, and is gone when they are closed.

    A process of its own mounts it where nobody else sees it, and hands the files over.

    Raises:
        UsageError: this machine allows no such mount.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if not child:
            try:
                theirs.sendmsg(*_mounted(count))
            except BaseException as error:
                theirs.send(f"{error}".encode()[:200] or b"?")
            finally:
                os._exit(0)
        try:
            theirs.close()
            data, files, _, _ = socket.recv_fds(ours, 256, count)
        finally:
            os.waitpid(child, 0)
    if len(files) != count:
        raise UsageError(f"a small disk of its own cannot be had on this machine ({data.decode(errors='replace')})")
    return list(files)


def _mounted(count: int) -> tuple[list[bytes], list[tuple[int, int, bytes]]]:
    libc = ctypes.CDLL(None, use_errno=True)
    folder = tempfile.gettempdir()
    if libc.unshare(NEW_NAMESPACE if not os.getuid() else NEW_NAMESPACE | NEW_USER):
        raise OSError(ctypes.get_errno(), "unshare")
    libc.mount(b"none", b"/", None, 1 << 14 | 1 << 18, None)  # MS_REC | MS_PRIVATE: it stays among us
    if libc.mount(b"nncts", folder.encode(), b"tmpfs", 0, f"size={SMALL_DISK}".encode()):
        raise OSError(ctypes.get_errno(), "mount")
    files = [os.open(f"{folder}/cache{n}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for n in range(count)]
    rights = array.array("i", files).tobytes()
    return [b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
