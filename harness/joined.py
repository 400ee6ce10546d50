"""A driver's service that another process of the suite has started, as a further client sees it."""

from __future__ import annotations

import contextlib
import os
import select
import socket

from harness.client import Connection
from harness.greeting import greet
from harness.process import cpu_seconds, is_runnable
from harness.remote import RemoteDevice
from harness.translating import Translations, translate_here
from nnhal.channel import Channel
from nnhal.errors import DriverDied, SuiteError, UsageError
from nnhal.loading import DriverSpec

JOIN_SECONDS = 10.0


class ForeignProcess:
    """A process that is not ours to stop: watched, and nothing else.

    Raises:
        DriverDied: there is no such process.
        SuiteError: this system cannot watch a process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.exit: int | None = None
        self.reason = "closed its connection"
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise DriverDied("ended") from None
        except (OSError, AttributeError) as error:
            raise SuiteError(f"a process cannot be watched here (Linux 5.3 or newer is needed): {error}") from None

    @property
    def control(self) -> ForeignProcess:
        """What to poll: readable when the process has ended."""
        return self

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._descriptor

    def listen(self) -> None:
        """Looks whether it has ended."""
        if self.exit is None and self._has_ended(0):
            self.exit, self.reason = 0, "ended"  # its status is its parent's to know

    def _has_ended(self, milliseconds: float) -> bool:
        if self._descriptor < 0:
            return True
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return bool(poller.poll(milliseconds))

    def wait(self, seconds: float) -> bool:
        """Waits until it has ended; False when it has not."""
        self._has_ended(seconds * 1000)
        self.listen()
        return self.exit is not None

    def stop(self, reason: str, *, stacks: bool = False, native: bool = False) -> str:
        """Does nothing: whoever started it stops it."""
        return ""

    def log(self) -> str:
        """Nothing: whoever started it has it."""
        return ""

    def cpu_seconds(self) -> float:
        """Processor time so far."""
        return cpu_seconds(self.pid)

    def is_runnable(self) -> bool:
        """Whether some thread of it would run if it had a processor."""
        return is_runnable(self.pid)

    def close(self) -> None:
        """Lets the descriptor go. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def join(spec: DriverSpec, name: str, pid: int, deadline: float) -> RemoteDevice:
    """The driver behind a service's abstract socket name. Its connection is the caller's to close.

    Args:
        spec: the driver, for what an adapter does on this side.
        name: as the service's greeting tells it.
        pid: of the service.
        deadline: seconds for a call.

    Raises:
        DriverDied: nobody is there.
    """
    process = ForeignProcess(pid)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(JOIN_SECONDS)
        connection.connect(f"\0{name}")
    except OSError as error:
        connection.close()
        process.close()
        raise DriverDied(f"takes no connection ({error})") from None
    channel = Channel(connection)
    try:
        hello = greet(process, spec, channel, JOIN_SECONDS)
    except UsageError as error:
        channel.close()
        process.close()
        raise DriverDied(str(error)) from None
    adapter = hello.adapter
    translate = (
        (lambda model: model) if adapter is None else Translations(lambda model: translate_here(spec, adapter, model))
    )
    return RemoteDevice(Connection(channel, process, deadline), hello.level, hello.traits, translate)
