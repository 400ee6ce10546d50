"""What the supervisor of a run does to the driver's process, by name."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stress.supervision import Supervision

Act = Callable[["Supervision", float], None]


def _pid(supervision: Supervision) -> int:
    return supervision.driver.pid if supervision.driver is not None else 0


def _send(number: signal.Signals) -> Act:
    def act(supervision: Supervision, value: float) -> None:
        if supervision.driver is not None:
            supervision.driver.process.signal(number)
            supervision.mark(f"the driver gets {number.name}")

    return act


def _signal(supervision: Supervision, value: float) -> None:
    """A signal that a process ignores unless it asks for it; system calls are interrupted all the same."""
    if supervision.driver is not None:
        supervision.driver.process.signal(signal.Signals(int(value)))


def _kill(supervision: Supervision, value: float) -> None:
    """The driver's process dies and is started again, as a system does it."""
    if supervision.driver is not None:
        supervision.driver.process.signal(signal.SIGKILL)
        supervision.driver.process.wait(5)
        supervision.mark("the driver is killed")
        supervision.restart_driver()


def _limit(supervision: Supervision, value: float) -> None:
    """The driver's process may have so many bytes of address space more than it had at the start, and no more."""
    pid, held = _pid(supervision), supervision.held
    with contextlib.suppress(OSError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (held + int(value), hard))
        supervision.mark(f"the driver may have {int(value) >> 20} MiB more and no more")


def _lift(supervision: Supervision, value: float) -> None:
    with contextlib.suppress(OSError):
        _, hard = resource.prlimit(_pid(supervision), resource.RLIMIT_AS)
        resource.prlimit(_pid(supervision), resource.RLIMIT_AS, (hard, hard))
        supervision.mark("the limit of memory is lifted")


def _pin(supervision: Supervision, value: float) -> None:
    """All threads of the driver run on one processor."""
    pid = _pid(supervision)
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # names are all that is wanted
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(name), {min(os.sched_getaffinity(0))})
        supervision.mark("the driver has one processor, which others use, too")


ACTS: dict[str, Act] = {
    "stop": _send(signal.SIGSTOP),
    "continue": _send(signal.SIGCONT),
    "signal": _signal,
    "kill": _kill,
    "limit": _limit,
    "lift": _lift,
    "pin": _pin,
}
