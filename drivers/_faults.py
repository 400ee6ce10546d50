"""The faults that `drivers/faulty.py` can do: the table of all, and those that need nothing but a process."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import random
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nnhal.errors import UsageError

LEAK = 1 << 20
FLAKY = 30  # executions for each that `flaky` gets wrong


@dataclass(frozen=True)
class Fault:
    """A fault and what has to catch it.

    Attributes:
        text: what the driver does wrong.
        verdict: of the case in which it happens.
        cause: beside the verdict.
    """

    text: str
    verdict: str
    cause: str


FAULTS: dict[str, Fault] = {
    "abort": Fault("calls abort() during an execution", "CRASH", "DIED"),
    "segfault": Fault("reads address 0 during an execution", "CRASH", "DIED"),
    "exit": Fault("ends its process with status 0 during an execution", "CRASH", "DIED"),
    "hang": Fault("sleeps for ever during an execution", "HANG", "SILENT"),
    "spin": Fault("loops in native code for ever, holding the GIL", "HANG", "SILENT"),
    "slow": Fault("takes `seconds` (1) longer for an execution", "PASS", ""),
    "write_outside": Fault("writes behind the end of an output", "FAIL", "OVERRUN"),
    "write_before": Fault("writes in front of an output", "FAIL", "OVERRUN"),
    "write_input": Fault("changes an input", "FAIL", "INPUT_WRITTEN"),
    "wrong_shape": Fault("reports an output shape that is wrong", "FAIL", "SHAPE"),
    "wrong_value": Fault("gets one element of an output wrong", "FAIL", "VALUE"),
    "nan": Fault("writes NaN into one element of a float output", "FAIL", "VALUE"),
    "no_output": Fault("reports success and leaves the outputs untouched", "FAIL", "VALUE"),
    "stale": Fault("gives the outputs of the execution before", "FAIL", "VALUE"),
    "flaky": Fault("gets one execution in thirty wrong, by chance", "FLAKY", "VALUE"),
    "lie_timing": Fault("claims less time in the driver than on the device", "FAIL", "TIMING"),
    "leak": Fault("keeps 1 MiB and a descriptor of every execution: seen in the samples of the records", "PASS", ""),
    "daemon": Fault("leaves a daemonised process behind", "PASS", ""),
    "garbage": Fault("writes random bytes to the sockets of its process", "CRASH", "DIED"),
    "value_error": Fault("raises ValueError during an execution", "FAIL", "UNCLEAN_ERROR"),
    "refuse_all": Fault("answers INVALID_ARGUMENT to every model", "FAIL", "STATUS"),
    "refuse_prepare": Fault("claims support, then fails to prepare", "FAIL", "STATUS"),
    "accept_all": Fault("accepts invalid models and requests", "FAIL", "ACCEPTED"),
    "wrong_count": Fault("answers a query with one boolean too many", "FAIL", "MALFORMED"),
}


def _abort() -> None:
    os.abort()


def _segfault() -> None:
    ctypes.string_at(0)


def _exit() -> None:
    os._exit(0)


def _hang() -> None:
    while True:
        time.sleep(3600)


_JUMP_TO_ITSELF = {"x86_64": b"\xeb\xfe", "aarch64": b"\x00\x00\x00\x14"}


def _spin() -> None:
    code = _JUMP_TO_ITSELF.get(platform.machine())
    if code is None:
        raise UsageError(f"faulty: fault=spin is not made for {platform.machine()}")
    area = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    ctypes.PYFUNCTYPE(None)(address)()  # keeps the GIL: no other thread of the process runs either


def _value_error() -> None:
    raise ValueError("an exception that no driver may raise")


def _daemon() -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)  # the grandchild exists from here on
        return
    try:
        os.setsid()
        if not os.fork():
            signal.pause()
    finally:
        os._exit(0)


def _garbage() -> None:
    data = random.Random(0).randbytes(4096)
    for name in Path("/proc/self/fd").iterdir():
        descriptor = int(name.name)
        try:
            if descriptor > 2 and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, data)
        except OSError:
            continue  # a socket that listens


_leaked: list[tuple[bytearray, int]] = []


def _leak() -> None:
    _leaked.append((bytearray(LEAK), os.dup(2)))


BEFORE: dict[str, Callable[[], None]] = {
    "abort": _abort,
    "segfault": _segfault,
    "exit": _exit,
    "hang": _hang,
    "spin": _spin,
    "value_error": _value_error,
    "daemon": _daemon,
    "garbage": _garbage,
    "leak": _leak,
}
