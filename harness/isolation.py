"""A driver in a process of its own: started, replaced after a death, asked as a Device, cleaned up after."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.client import Connection
from harness.greeting import Hello, greet
from harness.process import ServiceProcess, find_crash_trace
from harness.remote import RemoteDevice, Translate
from harness.translating import Translations, translate_here
from nnhal.channel import Channel
from nnhal.errors import DriverDied, SuiteError, UsageError
from nnhal.loading import DriverSpec
from nnhal.model import Model, Translation
from nnhal.parts import Parts
from nnhal.wire import decode, encode

__all__ = ["DEADLINE", "IsolatedDriver", "Sample", "find_crash_trace"]

DEADLINE = 10.0
LOAD_DEADLINE = 60.0


@dataclass(frozen=True)
class Sample:
    """What a driver's process uses at one moment."""

    rss: int
    descriptors: int
    threads: int
    cpu_seconds: float


def sample_of(process: psutil.Process) -> Sample:
    """What a process uses now.

    Raises:
        psutil.Error: it is gone.
    """
    with process.oneshot():
        times = process.cpu_times()
        return Sample(
            rss=process.memory_info().rss,
            descriptors=process.num_fds(),
            threads=process.num_threads(),
            cpu_seconds=times.user + times.system,
        )


class _Worker:
    """A service with its first connection."""

    def __init__(self, process: ServiceProcess) -> None:
        self.process = process
        self.channel = Channel(process.service.dup())
        self.hello: Hello | None = None
        self.device: RemoteDevice | None = None

    def close(self) -> None:
        if self.device is not None:
            self.device.connection.close()
        self.channel.close()
        self.process.close()


class IsolatedDriver:
    """A driver in a process of its own.

    Args:
        spec: what stands behind `--driver=`.
        deadline: seconds for a call; preparation gets more for large models.
        log_path: file that all output of the driver is appended to.
        memory: limit of the address space in bytes; breaks sanitizers and runtimes that map much.
        spare: once the driver has died or been restarted, keep another process ready to take over.
        native_stacks: take native stacks of a hung driver, where gdb is installed.
        tag: beginning of the mark in the environment of all that is started.
        debugger: program and options that the driver's process is started under.

    Raises:
        UsageError: the driver cannot be loaded; one sentence says why.
    """

    def __init__(
        self,
        spec: str | DriverSpec,
        *,
        deadline: float = DEADLINE,
        log_path: Path | None = None,
        memory: int | None = None,
        spare: bool = True,
        native_stacks: bool = True,
        load_deadline: float = LOAD_DEADLINE,
        tag: str | None = None,
        debugger: Sequence[str] = (),
    ) -> None:
        self.spec = DriverSpec.parse(spec) if isinstance(spec, str) else spec
        self.deadline = deadline
        self.tag = tag or f"{os.getpid()}-{os.urandom(6).hex()}"
        self.deaths = 0
        self._log_path = log_path
        self._memory = memory
        self._wants_spare = spare
        self._replaced = False
        self._native_stacks = native_stacks
        self._load_deadline = load_deadline
        self._debugger = tuple(debugger)
        self._lock = threading.RLock()
        self._started = 0
        self._spare: _Worker | None = None
        self._translator: _Worker | None = None
        self._translations: dict[str, Translations] = {}
        self._others: list[Connection] = []
        self._closed = False
        self._worker = self._begin()
        try:
            self._ready(self._worker)
        except BaseException:
            self.close()
            raise

    # ---- processes

    def _begin(self, translate: str | None = None, fill: int | None = None) -> _Worker:
        self._started += 1
        # A vendor's translation needs the suite's packages, not the runtime's.
        spec = self.spec if translate is None else dataclasses.replace(self.spec, python=None)
        process = ServiceProcess(
            spec,
            f"{self.tag}.{self._started}.",
            log_path=self._log_path,
            memory=self._memory,
            translate=translate,
            fill=fill,
            debugger=self._debugger,
        )
        return _Worker(process)

    def _ready(self, worker: _Worker) -> RemoteDevice:
        if worker.device is None:
            hello = worker.hello = greet(worker.process, self.spec, worker.channel, self._load_deadline)
            worker.device = self._device(worker, worker.channel, hello)
        if self._wants_spare and self._replaced and self._spare is None and worker is self._worker:
            self._spare = self._begin()  # gets ready by itself; asked for when it is needed
        return worker.device

    def _device(self, worker: _Worker, channel: Channel, hello: Hello) -> RemoteDevice:
        connection = Connection(channel, worker.process, self.deadline, native_stacks=self._native_stacks)
        translate = self._translation_for(hello)
        return RemoteDevice(connection, hello.level, hello.traits, translate)

    def _is_dead(self) -> bool:
        process, device = self._worker.process, self._worker.device
        process.listen()
        return process.exit is not None or device is None or not device.connection.is_open

    @property
    def device(self) -> RemoteDevice:
        """The driver. After a death this is another object, in a fresh process; keep it for one case, not longer.

        Raises:
            UsageError: the driver cannot be loaded any more.
        """
        with self._lock:
            if self._closed:
                raise SuiteError("the isolated driver is closed")
            if self._is_dead():
                self.deaths += 1
                self.restart()
            return self._ready(self._worker)

    def restart(self, fill: int | None = None) -> None:
        """Goes on in a fresh process, whether the present one lives or not.

        Args:
            fill: byte that memory from the process's allocator holds; None for what it holds by itself.
        """
        with self._lock:
            self._replaced = True
            if fill is None:
                old, self._worker = self._worker, self._spare or self._begin()
                self._spare = None
            else:
                old, self._worker = self._worker, self._begin(fill=fill)
            for connection in self._others:
                connection.close()
            self._others.clear()
            old.close()
            self._ready(self._worker)

    def connect(self) -> RemoteDevice:
        """The same driver as seen by another client: a further connection to the same process."""
        with self._lock:
            device, worker = self.device, self._worker
            if worker.hello is None:
                raise SuiteError("a service without a greeting")
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(f"\0{worker.hello.name}")
            except OSError:
                connection.close()
                device.connection.check()
                raise DriverDied("does not accept connections", self.log) from None
            channel = Channel(connection)
            try:
                hello = greet(worker.process, self.spec, channel, self._load_deadline)
            except UsageError as error:
                channel.close()
                raise DriverDied(str(error), self.log) from None
            other = self._device(worker, channel, hello)
            self._others.append(other.connection)
            return other

    # ---- looking

    @property
    def hello(self) -> Hello:
        """What the present process said of itself."""
        with self._lock:
            if self._worker.hello is None:
                self._ready(self._worker)
            if self._worker.hello is None:
                raise SuiteError("a service without a greeting")
            return self._worker.hello

    @property
    def process(self) -> ServiceProcess:
        """The present process."""
        return self._worker.process

    @property
    def pid(self) -> int:
        """Process id of the driver; 0 while it is not known."""
        self._worker.process.listen()
        return self._worker.process.pid

    @property
    def log(self) -> str:
        """The end of what the driver wrote to its standard outputs, at most 64 KiB."""
        return self._worker.process.log()

    @property
    def strays(self) -> int:
        """How many processes the driver had left behind when its own ended."""
        return self._worker.process.strays

    def sample(self) -> Sample | None:
        """What the driver's process uses now; None when it is gone."""
        process = self._worker.process.sample()
        if process is None:
            return None
        try:
            return sample_of(process)
        except psutil.Error:
            return None

    # ---- adapters

    def _translation_for(self, hello: Hello) -> Translate:
        adapter = hello.adapter
        if adapter is None:
            return lambda model: model
        if adapter not in self._translations:
            self._translations[adapter] = Translations(lambda model: self._translate(model, adapter))
        return self._translations[adapter]

    def _translate(self, model: Model, adapter: str) -> Translation:
        return translate_here(self.spec, adapter, model) if self.spec.is_ours else self._translate_apart(model, adapter)

    def _translate_apart(self, model: Model, adapter: str) -> Translation:
        """A vendor's `translate` gets a process of its own, under the suite's Python."""
        with self._lock:
            worker = self._translator
            if worker is None or worker.process.exit is not None:
                if worker is not None:
                    worker.close()
                worker = self._translator = self._begin(translate=adapter)
                hello = greet(worker.process, self.spec, worker.channel, self._load_deadline)
                worker.device = self._device(worker, worker.channel, hello)
            if worker.device is None:
                raise SuiteError("a translating process without a connection")
            connection = worker.device.connection
        parts = Parts()
        data, beside = connection.call("translate", [[0, encode(Model, model, parts)]], parts)
        try:
            return decode(Translation, data, beside)
        except ValueError as error:
            raise connection.malformed(f"a translation of the wrong form ({error})") from None

    # ---- the end

    def finish(self, seconds: float) -> tuple[int | None, str, int]:
        """Lets the driver end by itself, as it does when its clients are gone.

        Args:
            seconds: that it gets for it.

        Returns:
            Its status, None where it did not end in time; in words; and the number of processes that it left behind.
        """
        with self._lock:
            for connection in self._others:
                connection.close()
            self._others.clear()
            worker = self._worker
            if worker.device is not None:
                worker.device.connection.close()
            worker.channel.close()
            worker.process.service.close()
            worker.process.wait(seconds)
            return worker.process.exit, worker.process.reason, worker.process.strays

    def close(self) -> None:
        """Ends the driver and everything it has started. A second call does nothing."""
        with self._lock:
            self._closed = True
            for connection in self._others:
                connection.close()
            self._others.clear()
            for worker in (self._worker, self._spare, self._translator):
                if worker is not None:
                    worker.close()
            self._spare = self._translator = None

    def __enter__(self) -> IsolatedDriver:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
