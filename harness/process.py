"""One driver service as the suite sees it: started under a supervisor, watched, signalled, stopped, its log read."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from harness import supervisor
from nnhal.errors import UsageError
from nnhal.loading import ROOT, DriverSpec

TAG = "NNCTS_TAG"
PERTURB = "MALLOC_PERTURB_"
OLDEST_PYTHON = (3, 10)
GDB_SECONDS = 10.0
ABORT_SECONDS = 2.0  # for faulthandler to write the stacks
_TICKS = os.sysconf("SC_CLK_TCK")
_TRACES = re.compile(
    r"ERROR: \w+Sanitizer"
    r"|WARNING: (?:Thread|Memory)Sanitizer"
    r"|: runtime error: "
    r"|Fatal Python error: "
    r"|Fatal signal \d+"
    r"|terminate called "
    r"|Assertion [`'].*failed"
    r"|\*\*\* stack smashing detected \*\*\*"
    r"|\*\*\* buffer overflow detected \*\*\*"
    r"|(?:free|malloc|realloc|munmap_chunk|corrupted|double free)\b.*(?:corrupt|invalid|size)"
    r"|Segmentation fault|Bus error|Floating point exception|Illegal instruction"
    r"|thread '.*' panicked at"
    r"|^F DEBUG\b",
    re.MULTILINE,
)


def find_crash_trace(log: str, lines: int = 40) -> str | None:
    """The first sanitizer report or crash trace in a log, with the lines after it; None when there is none."""
    found = _TRACES.search(log)
    if found is None:
        return None
    start = log.rfind("\n", 0, found.start()) + 1
    return "\n".join(log[start:].splitlines()[:lines])


def interpreter(spec: DriverSpec) -> str:
    """The Python that runs a driver.

    Raises:
        UsageError: the one asked for does not exist, is none, or is too old.
    """
    if spec.python is None:
        return sys.executable
    path = shutil.which(os.path.expanduser(spec.python))  # noqa: PTH111  # a bare name stays one
    if path is None:
        raise UsageError(f"driver option python={spec.python} is no program; give the path of a Python")
    version = _version(str(Path(path).absolute()))
    if version is None:
        raise UsageError(f"driver option python={spec.python} does not run as a Python; give the path of one")
    if version < OLDEST_PYTHON:
        found, due = (".".join(map(str, numbers)) for numbers in (version, OLDEST_PYTHON))
        raise UsageError(f"driver option python={spec.python} is Python {found}; {due} or newer is needed")
    return str(Path(path).absolute())


@functools.lru_cache(maxsize=64)
def _version(path: str) -> tuple[int, ...] | None:
    program = [path, "-c", "import sys; sys.stdout.write('%d %d' % sys.version_info[:2])"]
    try:
        run = subprocess.run(program, capture_output=True, timeout=30, check=True)
        return tuple(int(number) for number in run.stdout.split()[:2])
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def environment(spec: DriverSpec, tag: str, fill: int | None = None) -> dict[str, str]:
    """Environment of a driver's process: the suite's, the way to `nnhal` and the driver's file, and what is preloaded.

    Raises:
        UsageError: what is to be preloaded does not exist.
    """
    if spec.preload is not None and not Path(spec.preload).is_file():
        raise UsageError(f"driver option preload={spec.preload} is no file; give the path of a shared library")
    result = dict(os.environ)
    paths = [str(ROOT)]
    if spec.python is None:
        prefixes = (sys.prefix, sys.base_prefix)
        paths += [p for p in sys.path if p and not p.startswith(prefixes) and p != str(ROOT)]
    elif "PYTHONHOME" in result:
        del result["PYTHONHOME"]
    if result.get("PYTHONPATH"):
        paths.append(result["PYTHONPATH"])
    result.update({"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", TAG: tag})
    if spec.preload is not None:
        others = result.get("LD_PRELOAD", "").split(":")
        result["LD_PRELOAD"] = ":".join([spec.preload, *filter(None, others)])
        result.setdefault("ASAN_OPTIONS", "detect_leaks=0")  # Python itself keeps much to its end
    if fill is not None:
        result[PERTURB] = str(fill ^ 0xFF)  # glibc fills with the complement what it hands out
    return result


def tagged(tag: str) -> list[int]:
    """Processes whose environment holds a tag that begins so."""
    found = []
    mine = f"{TAG}={tag}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if any(v.startswith(mine) for v in (entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


def describe_exit(code: int) -> str:
    """One sentence about how a process ended."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def is_runnable(pid: int) -> bool:
    """Whether some thread of a process would run if it had a processor."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


def native_stack(pid: int) -> str:
    """The native stacks of a process, where gdb is installed; empty otherwise."""
    gdb = shutil.which("gdb")
    if gdb is None or not pid:
        return ""
    program = [gdb, "-nx", "-batch", "-p", str(pid), "-ex", "thread apply all bt 30"]
    try:
        run = subprocess.run(program, capture_output=True, timeout=GDB_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return run.stdout.decode(errors="replace")[-16384:]


class SupervisedProcess:
    """A process under a supervisor of its own, which keeps its log and leaves nothing behind.

    Args:
        argv: the program; `--fd N`, its end of a connection to here, and `--parent PID` are appended.
        env: its environment.
        tag: written into the environment of everything that is started.
        log_path: file that gets all that it writes.
        memory: address space in bytes.
        debugged: the program is a debugger, which starts the process itself.

    Attributes:
        control: to the supervisor; readable when there is news.
        service: to the process.
        exit: status, or minus the signal that killed it; None while it lives.
        strays: processes that it had left behind.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        tag: str,
        *,
        log_path: Path | None = None,
        memory: int | None = None,
        debugged: bool = False,
    ) -> None:
        self.tag = tag
        self.pid = 0
        self.exit: int | None = None
        self.strays = 0
        self.stopped_for: str | None = None
        self._ring = os.memfd_create("nncts-log", os.MFD_CLOEXEC)
        os.ftruncate(self._ring, supervisor.LOG_HEAD.size + supervisor.LOG_BYTES)
        self._lock = threading.RLock()
        self._heard = b""
        self._closed = False
        limits: dict[str, object] = {"memory": memory, "debugged": debugged}
        self._supervisor = self._start(argv, env, log_path, limits)

    def _start(
        self, argv: Sequence[str], env: Mapping[str, str], log_path: Path | None, limits: Mapping[str, object]
    ) -> subprocess.Popen[bytes]:
        self.control, control = socket.socketpair()
        self.service, service = socket.socketpair()
        self.control.setblocking(False)
        given = (control.fileno(), service.fileno(), self._ring)
        order = {
            "argv": [*argv, "--fd", str(service.fileno())],
            "control": control.fileno(),
            "service": service.fileno(),
            "ring": self._ring,
            "log": str(log_path) if log_path else None,
            "parent": os.getpid(),
            **limits,
        }
        program = [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(order)]
        try:
            return subprocess.Popen(program, pass_fds=given, env=env, start_new_session=True, stdin=subprocess.DEVNULL)
        finally:
            control.close()
            service.close()

    def listen(self) -> None:
        """Takes in what the supervisor has said, without waiting."""
        with self._lock:
            while self.exit is None:
                try:
                    data = self.control.recv(4096)
                except BlockingIOError:
                    break
                except OSError:
                    data = b""
                if not data:
                    self._orphaned()
                    break
                self._heard += data
                *lines, self._heard = self._heard.split(b"\n")
                for line in lines:
                    self._hear(json.loads(line))

    def _hear(self, words: dict[str, int]) -> None:
        self.pid = words.get("pid", self.pid)
        self.exit = words.get("exit", self.exit)
        self.strays = words.get("strays", self.strays)

    def _orphaned(self) -> None:
        """The supervisor is gone: somebody killed it, and what it kept must not stay."""
        for pid in tagged(self.tag):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.stopped_for = self.stopped_for or "stopped because its supervisor was killed"
        self.exit = -signal.SIGKILL

    def wait(self, seconds: float) -> bool:
        """Waits until the service has ended; False when it has not."""
        end = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        while True:
            self.listen()
            left = end - time.monotonic()
            if self.exit is not None or left <= 0:
                return self.exit is not None
            poller.poll(left * 1000)

    @property
    def reason(self) -> str:
        """Why the service is gone."""
        if self.stopped_for is not None:
            return self.stopped_for
        return "closed its connection" if self.exit is None else describe_exit(self.exit)

    def signal(self, number: int) -> None:
        """Sends a signal to the service, and to nothing else that may have its number later."""
        with contextlib.suppress(OSError):
            self.control.send(f"{int(number)} ".encode())

    def stop(self, reason: str, *, stacks: bool = False, native: bool = False) -> str:
        """Kills the service; gives the stacks that could be had beside those in the log."""
        with self._lock:
            self.stopped_for = self.stopped_for or reason
        self.listen()
        stack = native_stack(self.pid) if native and self.exit is None else ""
        if stacks:
            self.signal(signal.SIGABRT)
            self.wait(ABORT_SECONDS)
        if self.exit is None:
            self.signal(signal.SIGKILL)
            self.wait(ABORT_SECONDS)
        return stack

    def log(self) -> str:
        """The end of what the driver wrote to its standard outputs, at most 64 KiB."""
        if self._ring < 0:
            return ""
        size = supervisor.LOG_BYTES
        data = os.pread(self._ring, supervisor.LOG_HEAD.size + size, 0)
        (written,) = supervisor.LOG_HEAD.unpack_from(data)
        ring = data[supervisor.LOG_HEAD.size :]
        place = written % size
        text = ring[:written] if written <= size else ring[place:] + ring[:place]
        return text.decode(errors="replace")

    def log_position(self) -> int:
        """How many bytes the driver has written so far."""
        data = os.pread(self._ring, supervisor.LOG_HEAD.size, 0)
        return int(supervisor.LOG_HEAD.unpack(data)[0])

    def cpu_seconds(self) -> float:
        """Processor time of the process so far; 0 when it is gone."""
        return cpu_seconds(self.pid)

    def is_runnable(self) -> bool:
        """Whether some thread of the process would run if it had a processor."""
        return is_runnable(self.pid)

    def sample(self) -> psutil.Process | None:
        """The service as psutil sees it; None when it is gone."""
        self.listen()
        if self.exit is not None or not self.pid:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid)
        return None

    def close(self) -> None:
        """Ends service, descendants and supervisor. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.control.close()
        self.service.close()
        try:
            self._supervisor.wait(8)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
            self._orphaned()
        os.close(self._ring)
        self._ring = -1


class ServiceProcess(SupervisedProcess):
    """A driver service and its supervisor.

    Args:
        spec: the driver.
        tag: written into the environment of everything that is started.
        log_path: file that gets all that the driver writes.
        memory: address space in bytes.
        translate: class name, for a process that only runs an adapter's `translate`.
        fill: byte from 0 to 254 that memory from the process's allocator holds; None for what it holds by itself.
        debugger: program and options that the service is started under.
    """

    def __init__(
        self,
        spec: DriverSpec,
        tag: str,
        *,
        log_path: Path | None = None,
        memory: int | None = None,
        translate: str | None = None,
        fill: int | None = None,
        debugger: Sequence[str] = (),
    ) -> None:
        self.spec = spec
        argv = [*debugger, interpreter(spec), "-m", "nnhal.service", "--driver", spec.text]
        if translate is not None:
            argv += ["--translate", translate]
        super().__init__(
            argv, environment(spec, tag, fill), tag, log_path=log_path, memory=memory, debugged=bool(debugger)
        )
