"""Whole messages, with file descriptors beside them, over an AF_UNIX stream socket."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import time

from nnhal import wire
from nnhal.parts import Json, Parts

MOST_DESCRIPTORS = 253  # SCM_MAX_FD of Linux
_ROOM = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
_READ = 1 << 16


class Closed(Exception):
    """The other side has closed the connection."""


class Late(Exception):
    """The other side did not take the bytes in time."""


class Channel:
    """One end of a connection. One thread at a time may send, and one receive."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self._needed = wire.HEADER.size
        self._closed = False

    def fileno(self) -> int:
        """The socket's descriptor, for polling."""
        return self._socket.fileno()

    def send(self, body: Json, parts: Parts, until: float | None = None) -> None:
        """Sends one message.

        Args:
            body: what `Parts` refers to by number.
            parts: raw bytes and descriptors; the descriptors stay the caller's.
            until: `time.monotonic()` at which to give up.

        Raises:
            Closed: the other side is gone.
            Late: the time ran out; the connection cannot be used any more.
        """
        left = list(parts.descriptors)
        chunks = wire.pack(body, parts)
        if sum(map(len, chunks)) <= _READ:
            chunks = [b"".join(chunks)]  # one system call costs more than one copy
        for chunk in chunks:
            view = memoryview(chunk)
            while len(view):
                now = left[:MOST_DESCRIPTORS]
                # Each group of descriptors needs a byte of its own to travel with.
                data = view[:1] if len(left) > len(now) else view
                view = view[self._send_some(data, now, until) :]
                del left[: len(now)]

    def _send_some(self, data: memoryview, descriptors: list[int], until: float | None) -> int:
        beside = []
        if descriptors:
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        while True:
            try:
                return self._socket.sendmsg([data], beside, socket.MSG_NOSIGNAL)
            except BlockingIOError:  # noqa: PERF203
                if not self._wait(select.POLLOUT, until):
                    raise Late from None
            except (BrokenPipeError, ConnectionError):
                raise Closed from None

    def _wait(self, event: int, until: float | None) -> bool:
        poller = select.poll()
        poller.register(self._socket, event)
        timeout = None if until is None else max(0.0, until - time.monotonic()) * 1000
        return bool(poller.poll(timeout))

    def receive(self) -> tuple[Json, Parts]:
        """Waits for one message.

        Raises:
            Closed: the other side has closed the connection.
            ValueError: malformed bytes.
        """
        while True:
            message = self.take()
            if message is not None:
                return message
            if not self.fill():
                self._wait(select.POLLIN, None)

    def fill(self) -> bool:
        """Reads what has come, without waiting; False when there was nothing.

        Raises:
            Closed: the other side has closed the connection.
        """
        try:
            room = max(_READ, min(self._needed - len(self._buffer), 1 << 24))
            data, beside, _, _ = self._socket.recvmsg(room, _ROOM, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            raise Closed from None
        for level, kind, content in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                self._descriptors.extend(numbers)
        if not data:
            raise Closed
        self._buffer += data
        return True

    def take(self) -> tuple[Json, Parts] | None:
        """The next whole message among the bytes that were read; None when there is none.

        Raises:
            ValueError: malformed bytes.
        """
        if len(self._buffer) < wire.HEADER.size:
            return None
        head, blobs, count = wire.read_header(self._buffer)
        self._needed = wire.HEADER.size + head + blobs
        if len(self._buffer) < self._needed:
            return None
        if count > len(self._descriptors):
            raise ValueError("malformed wire data: descriptors are missing")
        data = bytes(memoryview(self._buffer)[: self._needed])
        del self._buffer[: self._needed]
        self._needed = wire.HEADER.size
        mine, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        try:
            return wire.unpack(data, mine)
        except ValueError:
            close_all(mine)
            raise

    def close(self) -> None:
        """Closes the connection and whatever descriptors were left. A second call does nothing."""
        if not self._closed:
            self._closed = True
            # A thread that waits in poll is woken by the shutdown, not by the close.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            close_all(self._descriptors)
            self._descriptors = []


def close_all(descriptors: list[int]) -> None:
    """Closes descriptors, whatever became of them."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
