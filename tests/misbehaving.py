"""A driver that misbehaves on purpose, and a client that does: what the supervisor of stress runs is tried with.

`tests/misbehaving.py:DRIVER,kind=KIND,stage=STAGE[,after=N][,every=N]`; as a client's hook `tests.misbehaving:client`,
told the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import resource
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    CompilationConfig,
    ExecutionConfig,
    ExecutionResult,
    PreparedModel,
)
from nnhal.memory import Memory
from nnhal.model import Model, Request
from tests.light_driver import LightDriver

CHILDREN = 50
MEGABYTE = 1 << 20
ROOM = 64 * MEGABYTE  # that a process which grows gets beyond what it has
STAGES = ("load", "query", "prepare", "execute", "release")
JUMP_TO_ITSELF = {"x86_64": b"\xeb\xfe", "aarch64": b"\x00\x00\x00\x14"}
MARK = "misbehaves at "
kept: list[Any] = []


def _overflow() -> None:
    """Calls itself in native code until the stack is at its end."""
    again = ctypes.CFUNCTYPE(None)(lambda: again())
    import sys

    sys.setrecursionlimit(1 << 30)
    again()


def _children() -> None:
    for _ in range(CHILDREN):
        if not os.fork():
            try:
                os.setsid()
                signal.pause()
            finally:
                os._exit(0)


def _grow() -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, resource.RLIM_INFINITY))
    try:
        while True:
            kept.append(bytearray(MEGABYTE))
    except MemoryError:
        del kept[-8:]  # room to say so
        raise


def _spin() -> None:
    area = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(JUMP_TO_ITSELF[platform.machine()])
    ctypes.PYFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(area)))()


def _deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _sockets(act: Callable[[int], object]) -> None:
    """Does something to the connected sockets of the process, and stays where it is for a while."""
    for name in Path("/proc/self/fd").iterdir():
        descriptor = int(name.name)
        with contextlib.suppress(OSError):
            if descriptor > 2 and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                act(descriptor)
    time.sleep(30)


def _print_for_ever() -> None:
    while True:
        os.write(1, b"x" * 4096 + b"\n")


def _shut(descriptor: int) -> None:
    import socket

    found = socket.socket(fileno=os.dup(descriptor))
    with found:
        found.shutdown(socket.SHUT_RDWR)


def _raise() -> None:
    raise ValueError("an exception that nobody may raise")


KINDS: dict[str, Callable[[], object]] = {
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "fpe": lambda: signal.raise_signal(signal.SIGFPE),  # to this thread, as a division by zero does
    "exit": lambda: os._exit(0),
    "overflow": _overflow,
    "deadlock": _deadlock,
    "livelock": _spin,
    "stop": lambda: signal.raise_signal(signal.SIGSTOP),  # sent to the process, this thread would go on for a while
    "output": _print_for_ever,
    "children": _children,
    "grow": _grow,
    "close": lambda: _sockets(_shut),
    "garbage": lambda: _sockets(lambda descriptor: os.write(descriptor, os.urandom(4096))),
    "error": _raise,
}
ONLY_DRIVER = ("wrong", "leak", "descriptors", "slow")
CRASHES = ("segv", "abort", "kill", "fpe", "exit", "overflow", "close", "garbage")
HANGS = ("deadlock", "livelock", "stop", "output")


class Trouble:
    """Misbehaves at a stage, from the (after + 1)-th time on."""

    def __init__(self, kind: str, stage: str, after: int, every: int = 100) -> None:
        self.kind, self.stage, self.after, self.every = kind, stage, after, every
        self.prepared = 0  # models that are held
        self._count = 0
        self._lock = threading.Lock()

    def due(self, stage: str) -> bool:
        if stage != self.stage:
            return False
        with self._lock:
            self._count += 1
            return self._count > self.after

    def at(self, stage: str) -> None:
        if self.kind in KINDS and self.due(stage):
            if self.kind == "children":
                with self._lock:
                    if self._count > self.after + 1:
                        return
            if stage != "load":
                os.write(2, f"\n{MARK}{time.monotonic():.6f}\n".encode())
            KINDS[self.kind]()


class MisbehavingDriver(LightDriver):
    def __init__(self, kind: str, stage: str = "execute", after: str = "0", every: str = "100") -> None:
        self._trouble = Trouble(kind, stage, int(after), int(every))
        self._trouble.at("load")

    def get_supported_operations(self, model: Model) -> list[bool]:
        self._trouble.at("query")
        return super().get_supported_operations(model)

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        self._trouble.at("prepare")
        self._trouble.prepared += 1
        return MisbehavingModel(super().prepare_model(model, config), self._trouble)


class MisbehavingModel(PreparedModel):
    def __init__(self, inner: PreparedModel, trouble: Trouble) -> None:
        self._inner, self._trouble = inner, trouble

    def execute_synchronously(
        self,
        request: Request,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        trouble = self._trouble
        trouble.at("execute")
        result = self._inner.execute_synchronously(request, config, deadline)
        if trouble.kind in ONLY_DRIVER and trouble.due("execute"):
            self._spoil(request, trouble)
        return result

    def _spoil(self, request: Request, trouble: Trouble) -> None:
        if trouble.kind == "wrong" and not trouble._count % trouble.every:
            place = request.outputs[0].location
            pool = request.pools[place.pool_index]
            assert isinstance(pool, Memory)
            pool.view()[place.offset + 3] ^= 0x40
        elif trouble.kind == "leak":
            kept.append(bytearray(os.urandom(1)) * (32 << 10))
        elif trouble.kind == "descriptors" and not trouble._count % 5:
            kept.append(os.dup(2))
        elif trouble.kind == "slow" and trouble.prepared > 1:
            time.sleep(0.03)  # much against what a busy machine does to a call

    def close(self) -> None:
        self._trouble.prepared -= 1
        self._trouble.at("release")


def client(worker: Any, stage: str) -> None:
    """A client's hook."""
    shared = worker.shared
    trouble = shared.__dict__.setdefault("trouble", Trouble(**shared.order.hooking))
    trouble.at(stage)


DRIVER = MisbehavingDriver
