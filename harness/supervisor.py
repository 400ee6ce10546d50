"""A small process between the suite and one driver service: keeps its log, tells how it died, leaves nothing behind.

Run by path with the standard library alone. Lives until its control socket ends or the suite's process does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

LOG_BYTES = 1 << 16
LOG_HEAD = struct.Struct("<Q")  # bytes ever written; the ring of LOG_BYTES follows
PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> list[int]:
    """Process ids of all living descendants, however deep. Zombies count."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  # pathlib costs 10 ms at start
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as f:
                # The name in parentheses may hold anything.
                children.setdefault(int(f.read().rpartition(")")[2].split()[1]), []).append(int(name))
    found: list[int] = []
    left = [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


class Log:
    """The last bytes that a process wrote, in memory shared with the suite, and all of them in a file if asked."""

    def __init__(self, ring: int, path: str | None) -> None:
        self._ring = ring
        self._file = open(path, "ab", buffering=0) if path else None  # noqa: SIM115  # open as long as the process
        self._written = 0

    def add(self, data: bytes) -> None:
        """Appends what came."""
        if self._file:
            self._file.write(data)
        kept = data[-LOG_BYTES:]
        place = (self._written + len(data) - len(kept)) % LOG_BYTES
        first = kept[: LOG_BYTES - place]
        os.pwrite(self._ring, first, LOG_HEAD.size + place)
        os.pwrite(self._ring, kept[len(first) :], LOG_HEAD.size)
        self._written += len(data)
        os.pwrite(self._ring, LOG_HEAD.pack(self._written), 0)


def start(order: dict[str, object], log: int) -> int:
    """Starts the service and gives its process id."""
    argv = [str(item) for item in order["argv"]]  # type: ignore[attr-defined]
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.set_inheritable(int(order["service"]), True)  # type: ignore[call-overload]
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if order.get("memory"):
            limit = int(order["memory"])  # type: ignore[call-overload]
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        os.execv(argv[0], [*argv, "--parent", str(os.getpid() if order["debugged"] else parent)])
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def sweep() -> int:
    """Kills and reaps every descendant; gives the number of those that were still alive."""
    killed: set[int] = set()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        left = descendants(os.getpid())
        if not left:
            break
        for pid in left:
            with contextlib.suppress(OSError):
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    continue
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.001)
    return len(killed)


class Supervisor:
    """Watches one service."""

    def __init__(self, order: dict[str, object]) -> None:
        self._control = socket.socket(fileno=int(order["control"]))  # type: ignore[call-overload]
        ring = int(order["ring"])  # type: ignore[call-overload]
        for descriptor in (self._control.fileno(), ring):
            os.set_inheritable(descriptor, False)  # none of the driver's business
        self._log = Log(ring, str(order["log"]) if order.get("log") else None)
        self._output, write = os.pipe()
        # Keeps lines in order and does not let a talkative driver wait for long.
        self._pid = start(order, write)
        os.close(write)
        os.close(int(order["service"]))  # type: ignore[call-overload]
        os.set_blocking(self._output, False)
        self._poller = select.poll()
        self._poller.register(self._control, select.POLLIN)
        self._poller.register(self._output, select.POLLIN)
        self._parent = _open_process(int(order["parent"]))  # type: ignore[call-overload]
        self._service = _open_process(self._pid)
        for descriptor in (self._parent, self._service):
            if descriptor >= 0:
                self._poller.register(descriptor, select.POLLIN)

    def tell(self, **words: object) -> None:
        """Sends one line to the suite, if it is still there."""
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(words).encode() + b"\n")

    def drain(self) -> None:
        """Takes what the service has written."""
        with contextlib.suppress(BlockingIOError):
            while self._output >= 0:
                data = os.read(self._output, 1 << 16)
                self._log.add(data)
                if not data:  # everybody who could write is gone
                    self._poller.unregister(self._output)
                    os.close(self._output)
                    self._output = -1

    def obey(self) -> bool:
        """Passes a signal on; False at end of file."""
        try:
            line = self._control.recv(4096)
        except OSError:
            return False
        for word in line.split():
            if self._pid:
                os.kill(self._pid, int(word))
        return bool(line)

    def mourn(self) -> None:
        """Reports the service's end when it has come."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return
        self._pid = 0
        if self._service >= 0:
            self._poller.unregister(self._service)
        self.drain()
        strays = sweep()
        self.drain()
        self.tell(exit=os.waitstatus_to_exitcode(status), strays=strays)

    def run(self) -> None:
        """Watches until the suite is gone."""
        self.tell(pid=self._pid)
        while True:
            timeout = None if self._service >= 0 and self._parent >= 0 else 20
            ready = [descriptor for descriptor, _ in self._poller.poll(timeout)]
            if self._output in ready:
                self.drain()
            if self._control.fileno() in ready and not self.obey():
                return
            if self._parent in ready or (self._parent < 0 and os.getppid() == 1):
                return
            if self._pid:
                self.mourn()


def _open_process(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1  # an old kernel: looked at every 20 ms instead


def main() -> None:
    """Does what the one argument, JSON, orders."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    order = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the suite decides what an interrupt ends
    try:
        Supervisor(order).run()
    finally:
        sweep()


if __name__ == "__main__":
    main()
