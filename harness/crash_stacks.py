"""The native stack of a crash: the case is run once more in a process under gdb, where gdb is installed."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable

from harness.isolation import IsolatedDriver
from nnhal.device import Device
from nnhal.errors import DriverDied, DriverTimedOut, UsageError
from nnhal.loading import DriverSpec

STACKS = 8  # in a run
LINES = 40
DEADLINE = 60.0  # seconds; gdb reads symbols first
MARK = "received signal"
SANITIZER = "ERROR: AddressSanitizer"
FRAMES = 4  # that are shown at once
FRAME = re.compile(r"\s*#\d+ ")
ADDRESS = re.compile(r"0x[0-9a-f]+ in ")
ENDING = re.compile(r"\b(?:__pthread_kill\w*|__GI_raise|__GI_abort|raise|abort) ")  # how a process ends itself
CALLER = re.compile(r"libffi|\b(?:ffi_call|_call_function_pointer|_PyEval_)")
# What a debugger stops at by itself and a crash is not.
PASSED = ("SIGCHLD", "SIGPIPE", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGINT")


def debugger() -> tuple[str, ...]:
    """The program and options that a driver's process is started under; empty where gdb is not installed."""
    gdb = shutil.which("gdb")
    if gdb is None:
        return ()
    settings = ["set print thread-events off", "set debuginfod enabled off", "set startup-with-shell off"]
    settings += [f"handle {name} nostop noprint pass" for name in PASSED]
    commands = [*settings, "run", f"bt {LINES}", "kill"]
    return (gdb, "-nx", "-q", "-batch", *(part for command in commands for part in ("-ex", command)), "--args")


def crash_stack(spec: DriverSpec, act: Callable[[Device], object]) -> str:
    """The stack of the thread that crashes when something is done with a driver; empty where there is none.

    Args:
        spec: the driver, of which another process is started.
        act: what made it crash.
    """
    before = debugger()
    if not before or spec.preload is not None:  # a sanitizer's report has its own, and gdb would be given its runtime
        return ""
    try:
        driver = IsolatedDriver(spec, spare=False, deadline=DEADLINE, native_stacks=False, debugger=before)
    except UsageError:
        return ""
    with driver:
        device = driver.device
        with contextlib.suppress(DriverDied, DriverTimedOut, UsageError):
            act(device)
        if device.connection.is_open:
            return ""
        driver.process.wait(DEADLINE)  # gdb writes when the driver is gone
        return _stack_in(driver.log)


def frames_in(log: str) -> list[str]:
    """What a person asks first of a crash, out of a log: the signal or the sanitizer's sentence, the nearest frames."""
    lines = log.splitlines()
    start = next((number for number, line in enumerate(lines) if MARK in line or SANITIZER in line), None)
    if start is None:
        return []
    frames = [ADDRESS.sub("", line.strip()) for line in lines[start + 1 :] if FRAME.match(line)]
    own = [frame for frame in frames if not ENDING.search(frame)]
    return [lines[start].strip(), *own[:FRAMES]]


def _stack_in(log: str) -> str:
    """What gdb has told: the signal, then the frames down to where Python calls."""
    lines = iter(log.splitlines())
    signal = next((line for line in lines if MARK in line), None)
    if signal is None:
        return ""
    frames = [line for line in lines if line.startswith("#")][:LINES]
    called = next((number for number, frame in enumerate(frames) if CALLER.search(frame)), len(frames))
    return "\n".join([signal, *(frames[:called] or frames)])
