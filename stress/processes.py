"""What the system tells of processes: which thread holds the others up, what is used, what is open."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import psutil

from harness.isolation import sample_of
from stress.board import Slot, latest
from stress.clients import ClientProcess
from stress.evidence import Timed

BUSY = 0.9  # share of what a process uses that stands still, by which one thread holds the others up
# Numbers of kill, tkill and tgkill: what a thread is in that has a signal sent, as the system shows it.
SENDING = {"x86_64": ("62", "200", "234"), "aarch64": ("129", "130", "131")}


def held() -> tuple[int, ...]:
    """Descriptors of this process."""
    return tuple(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208  # names are all that is wanted


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def culprit(client: ClientProcess, slots: Sequence[Slot], now: float) -> Slot:
    """The thread by which nothing in a client runs.

    It sent the signal that stops all, or uses the processor alone, or else is the one that did something last.

    The others only seem to hang: they wait for the interpreter. Who did something last need not be it: a call of a
    driver may let others run before it holds them up.
    """
    sender = _sender(client.pid)
    signalled = [slot for slot in slots if slot.number == sender]
    if signalled:
        return signalled[0]
    used = _processor_seconds(client.pid)
    if client.frozen is None:
        client.frozen = now, used
    since, before = client.frozen
    busy = {number: seconds - before.get(number, 0.0) for number, seconds in used.items()}
    if busy and now > since:
        number = max(busy, key=lambda found: busy[found])
        alone = busy[number] > BUSY * sum(busy.values()) > 0.0
        burning = [slot for slot in slots if slot.number == number and alone]
        if burning:
            return burning[0]
    return latest(slots)


def _sender(pid: int) -> int:
    """Number of the thread of a stopped process that sent a signal last of all; 0 where that cannot be told."""
    if is_stopped(pid):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                if (task / "syscall").read_text().split()[0] in SENDING.get(platform.machine(), ()):
                    return int(task.name)
    return 0


def _processor_seconds(pid: int) -> dict[int, float]:
    """What each thread of a process has used of the processor; empty where that cannot be had."""
    with contextlib.suppress(psutil.Error):
        return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process(pid).threads()}
    return {}


def timed(pid: int, at: float, executions: int, working: float) -> Timed:
    """What a process uses now.

    Raises:
        psutil.Error: it is gone.
    """
    process = psutil.Process(pid)
    with process.oneshot():
        return Timed(at, sample_of(process), int(process.memory_info().shared), executions, working)
