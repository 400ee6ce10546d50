"""A driver as a service: loads it in this process and answers requests of any number of clients over AF_UNIX sockets.

`python -m nnhal.service --driver SPEC (--fd N | --listen NAME)`. Needs nnhal and NumPy alone, Python 3.10 or newer.
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import ctypes
import faulthandler
import os
import platform
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

import numpy as np

from nnhal import loading
from nnhal.channel import Channel, Closed
from nnhal.device import Adapter, Device, Traits
from nnhal.errors import UsageError
from nnhal.parts import Json, Parts
from nnhal.serving import Session
from nnhal.types import FeatureLevel
from nnhal.wire import encode

SPARE_THREADS = 8
RESERVE = 4 << 20  # bytes that the service has for itself when a driver has taken all others
GRACE = 2.0  # seconds for a driver to let its objects go after its client has gone
PR_SET_PDEATHSIG = 1


T = TypeVar("T")
_reserve = [bytearray(RESERVE)]


def _insist(act: Callable[[], T]) -> T:
    """Does something again where there is no memory for it: what a driver takes must not silence its service."""
    while True:
        with contextlib.suppress(MemoryError):
            return act()
        _reserve.clear()
        time.sleep(0.01)  # others may let memory go


class Connection:
    """Serves one client. Threads take turns at reading; whoever has a request answers it."""

    def __init__(self, connection: socket.socket, session: Session, hello: Json) -> None:
        self._channel = Channel(connection)
        self._session = session
        self._turn = threading.Lock()
        self._sending = threading.Lock()
        self._counting = threading.Lock()
        self._waiting = 0
        self._running = 0
        self.gone = threading.Event()
        self.ended = threading.Event()
        session.send = self.send
        self.send(hello, Parts())

    def send(self, body: Json, parts: Parts) -> None:
        """Sends an answer or an event; nothing happens when the client is gone."""
        with self._sending, contextlib.suppress(Closed):
            _insist(lambda: self._channel.send(body, parts))

    def serve(self) -> None:
        """Serves until the client closes the connection, then lets go of all that it held."""
        self._loop()

    def _loop(self) -> None:
        with self._counting:
            self._running += 1
        while True:
            with self._counting:
                self._waiting += 1
                surplus = self._waiting > SPARE_THREADS
            if surplus:
                self._leave()
                return
            message = self._next()
            with self._counting:
                self._waiting -= 1
                lonely = not self._waiting and message is not None
            if lonely:
                self._start_another()
            if message is None:
                self._leave(waiting=False)
                return
            answer = self._session.answer(*message)
            del message  # what it holds is gone when the client has the answer
            if answer is not None:
                self.send(*answer)
            del answer

    def _start_another(self) -> None:
        """Has another thread read on; without memory for one, this one does when it has answered.

        A `threading.Thread` would wait for the other to run, for ever where that has no memory to begin.
        """
        with contextlib.suppress(RuntimeError, MemoryError):
            _thread.start_new_thread(self._loop, ())

    def _next(self) -> tuple[Json, Parts] | None:
        with self._turn:
            if self.gone.is_set():
                return None
            try:
                return _insist(self._channel.receive)
            except (Closed, ValueError) as error:
                if isinstance(error, ValueError):
                    sys.stderr.write(f"nncts: a client sent {error}\n")
                self.gone.set()
                return None

    def _leave(self, *, waiting: bool = True) -> None:
        with self._counting:
            self._waiting -= waiting
            self._running -= 1
            last = not self._running
        if last:
            self._session.end()
            self._channel.close()
            self.ended.set()


def _describe(device: Device) -> tuple[Json, Json, Json]:
    """Level, traits and the adapter's class name of a device.

    Raises:
        UsageError: the driver declares them wrongly.
    """
    try:
        level: Json = int(FeatureLevel(device.feature_level))
        traits = encode(Traits, device.traits, Parts())
    except (Exception, SystemExit) as error:  # properties of a vendor's class may raise anything
        raise UsageError(
            f"the driver declares no usable feature_level and traits: {type(error).__name__}: {error}"
        ) from error
    return level, traits, type(device).__qualname__ if isinstance(device, Adapter) else None


def _say_hello(device: Device | None, name: str) -> Json:
    level, traits, adapter = (None, None, None) if device is None else _describe(device)
    return {
        "pid": os.getpid(),
        "name": name,
        "level": level,
        "traits": traits,
        "adapter": adapter,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _bind(name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen(16)
    return listener


def _is_own_user(connection: socket.socket) -> bool:
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.getuid())


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    while True:
        connection, _ = listener.accept()
        if not _is_own_user(connection):
            connection.close()
            continue
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends; ends at once if it has already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that started the service is gone")


def leave(status: int) -> NoReturn:
    """Ends this process: threads that a driver has left hanging must not hold it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nnhal.service", description=__doc__)
    parser.add_argument("--driver", required=True, help="NAME[,key=value...]")
    parser.add_argument("--fd", type=int, help="a connected socket to serve")
    parser.add_argument("--listen", help="abstract AF_UNIX name to listen on")
    parser.add_argument("--parent", type=int, help="process whose end ends the service")
    parser.add_argument("--translate", help="class name: serve an adapter's translate alone")
    return parser.parse_args(arguments)


def _refuse(fd: int | None, message: str) -> int:
    if fd is None:
        sys.stderr.write(f"{message}\n")
        return 2
    connection = Channel(socket.socket(fileno=fd))
    with contextlib.suppress(Closed):
        connection.send({"usage": message}, Parts())
    connection.close()
    return 0


def main(arguments: list[str]) -> int:
    """Runs the service until its first client, or its parent, is gone."""
    options = _arguments(arguments)
    faulthandler.enable(all_threads=True)
    if options.parent:
        die_with(options.parent)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 65536), hard), hard))
    name = options.listen or f"nncts-{os.getpid()}-{os.urandom(8).hex()}"
    try:
        spec = loading.DriverSpec.parse(options.driver)
        device: Device | None = None
        translate: type[Adapter] | None = None
        if options.translate is None:
            device = loading.load(spec)
        else:
            translate = loading.adapter_of(spec, options.translate)
        hello = _say_hello(device, name)
    except UsageError as error:
        return _refuse(options.fd, str(error))

    def connect(connection: socket.socket) -> Connection:
        return Connection(connection, Session(device, translate, spec.options), hello)

    def serve(connection: socket.socket) -> None:
        connect(connection).serve()

    listener = _bind(name)
    if options.fd is None:
        _accept(listener, serve)
    threading.Thread(target=_accept, args=(listener, serve), daemon=True).start()
    first = connect(socket.socket(fileno=options.fd))
    threading.Thread(target=first.serve, daemon=True).start()
    first.gone.wait()
    first.ended.wait(GRACE)
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
