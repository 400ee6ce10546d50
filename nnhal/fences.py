"""Sync fences: an eventfd that is polled and never read, and a status, in shared memory where it crosses processes."""

from __future__ import annotations

import os
import select
import threading
from typing import ClassVar

from nnhal.device import Fence
from nnhal.errors import DriverError
from nnhal.memory import SharedMemory
from nnhal.types import ErrorStatus


class SyncFence(Fence):
    """A fence inside one process. The descriptor is owned, and can be polled along with others.

    Args:
        event: an eventfd; above 0 when the fence has ended. A new one when None.
    """

    def __init__(self, event: int | None = None) -> None:
        self.event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if event is None else event
        self._lock = threading.Lock()
        self._status = ErrorStatus.NONE

    @property
    def status(self) -> ErrorStatus | None:
        """How the fence ended; None while it has not."""
        return self._load() if self._poll(0) else None

    def signal(self, status: ErrorStatus = ErrorStatus.NONE) -> None:
        """Ends the fence, in error when the status is not NONE. A second call does nothing."""
        with self._lock:
            if not self._poll(0):
                self._store(status)
                os.eventfd_write(self.event, 1)

    def wait(self, timeout: int | None = None) -> bool:
        milliseconds = None if timeout is None else max(0, -(-timeout // 1_000_000))
        if not self._poll(milliseconds):
            return False
        status = self.status
        if status:
            raise DriverError(status, "the fence ended in error")
        return True

    def _load(self) -> ErrorStatus:
        return self._status

    def _store(self, status: ErrorStatus) -> None:
        self._status = ErrorStatus(status)

    def _poll(self, milliseconds: int | None) -> bool:
        poller = select.poll()
        poller.register(self.event, select.POLLIN)
        return bool(poller.poll(milliseconds))

    def close(self) -> None:
        """Lets the descriptor go. A second call does nothing."""
        if self.event >= 0:
            os.close(self.event)
            self.event = -1

    def __del__(self) -> None:
        if getattr(self, "event", -1) >= 0:
            self.close()


class SharedFence(SyncFence):
    """A fence that client and driver can both wait for and signal. The descriptors are owned.

    Args:
        event: an eventfd; above 0 when the fence has ended.
        word: shared memory whose first four bytes hold the status.
    """

    WORD: ClassVar[int] = 4

    def __init__(self, event: int, word: SharedMemory) -> None:
        super().__init__(event)
        self.word = word

    @classmethod
    def create(cls) -> SharedFence:
        """A new fence, not signalled."""
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        return cls(os.eventfd(0, flags), SharedMemory.create(cls.WORD, "nncts-fence"))

    def _load(self) -> ErrorStatus:
        value = int.from_bytes(self.word.view()[: self.WORD], "little")
        try:
            return ErrorStatus(value)
        except ValueError:
            return ErrorStatus.GENERAL_FAILURE

    def _store(self, status: ErrorStatus) -> None:
        self.word.view()[: self.WORD] = int(status).to_bytes(self.WORD, "little")

    def close(self) -> None:
        super().close()
        self.word.close()
