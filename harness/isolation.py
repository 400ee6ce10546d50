"""A driver in a process of its own: started, replaced after a death, asked as a Device, cleaned up after."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.client import Connection
from harness.process import ServiceProcess, find_crash_trace, interpreter
from harness.remote import RemoteDevice, Translate
from nnhal import loading
from nnhal.channel import Channel, Closed
from nnhal.device import Traits
from nnhal.errors import DriverDied, DriverError, SuiteError, UsageError
from nnhal.loading import DriverSpec
from nnhal.model import Model, Translation
from nnhal.parts import Json, Parts
from nnhal.types import FeatureLevel
from nnhal.wire import decode, encode

__all__ = ["DEADLINE", "IsolatedDriver", "Sample", "find_crash_trace"]

DEADLINE = 10.0
LOAD_DEADLINE = 60.0
TRANSLATIONS_KEPT = 8


@dataclass(frozen=True)
class Sample:
    """What a driver's process uses at one moment."""

    rss: int
    descriptors: int
    threads: int
    cpu_seconds: float


@dataclass(frozen=True)
class Hello:
    """What a service says of itself when it is ready."""

    name: str
    level: FeatureLevel
    traits: Traits
    adapter: str | None
    python: str
    numpy: str


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1][:500]}" if lines else ""


def _greet(process: ServiceProcess, channel: Channel, seconds: float) -> Hello:
    """Waits until a service is ready.

    Raises:
        UsageError: the driver could not be loaded.
    """
    name = process.spec.name
    end = time.monotonic() + seconds
    try:
        while (message := channel.take()) is None:
            if time.monotonic() > end:
                process.stop("did not load in time", stacks=True)
                raise UsageError(f"driver {name!r} was not ready within {seconds:g} s{_last_line(process.log())}")
            if not channel.fill() and process.wait(0.002) and not channel.fill():
                raise Closed
        words, parts = message
        parts.close()
        return _understand(name, words)
    except Closed:
        process.wait(3)
        reason = f"its process {process.reason}{_last_line(process.log())}"
        if "No module named 'numpy'" in reason:
            reason += f"; run {interpreter(process.spec)} -m pip install 'numpy>=1.24'"
        raise UsageError(f"driver {name!r} could not be loaded: {reason}") from None
    except ValueError as error:
        process.stop("sent nonsense at its start")
        raise UsageError(f"driver {name!r} wrote to its service's socket: {error}") from None


def _understand(name: str, words: Json) -> Hello:
    if not isinstance(words, dict):
        raise ValueError("malformed wire data: the greeting has the wrong form")
    if "usage" in words:
        raise UsageError(str(words["usage"]))
    adapter, level = words.get("adapter"), words.get("level")
    traits = Traits() if level is None else decode(Traits, words.get("traits"), Parts())
    return Hello(
        name=str(words.get("name")),
        level=FeatureLevel.FL8 if level is None else FeatureLevel(decode(int, level, Parts())),
        traits=traits,
        adapter=None if adapter is None else str(adapter),
        python=str(words.get("python")),
        numpy=str(words.get("numpy")),
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
        spare: keep another process ready to take over.
        native_stacks: take native stacks of a hung driver, where gdb is installed.
        tag: beginning of the mark in the environment of all that is started.

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
    ) -> None:
        self.spec = DriverSpec.parse(spec) if isinstance(spec, str) else spec
        self.deadline = deadline
        self.tag = tag or f"{os.getpid()}-{os.urandom(6).hex()}"
        self.deaths = 0
        self._log_path = log_path
        self._memory = memory
        self._wants_spare = spare
        self._native_stacks = native_stacks
        self._load_deadline = load_deadline
        self._lock = threading.RLock()
        self._started = 0
        self._spare: _Worker | None = None
        self._translator: _Worker | None = None
        self._translations: OrderedDict[int, tuple[Model, Model]] = OrderedDict()
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
        )
        return _Worker(process)

    def _ready(self, worker: _Worker) -> RemoteDevice:
        if worker.device is None:
            hello = worker.hello = _greet(worker.process, worker.channel, self._load_deadline)
            worker.device = self._device(worker, worker.channel, hello)
        if self._wants_spare and self._spare is None and worker is self._worker:
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
                hello = _greet(worker.process, channel, self._load_deadline)
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
            with process.oneshot():
                times = process.cpu_times()
                return Sample(
                    rss=process.memory_info().rss,
                    descriptors=process.num_fds(),
                    threads=process.num_threads(),
                    cpu_seconds=times.user + times.system,
                )
        except psutil.Error:
            return None

    # ---- adapters

    def _translation_for(self, hello: Hello) -> Translate:
        if hello.adapter is None:
            return lambda model: model
        name = hello.adapter
        return lambda model: self._translated(model, name)

    def _translated(self, model: Model, adapter: str) -> Model:
        with self._lock:
            found = self._translations.get(id(model))
        if found is not None:
            return found[1]
        made = (self._translate_here if self.spec.is_ours else self._translate_apart)(model, adapter)
        ready = dataclasses.replace(model, translation=made)
        with self._lock:
            self._translations[id(model)] = (model, ready)
            while len(self._translations) > TRANSLATIONS_KEPT:
                self._translations.popitem(last=False)
        return ready

    def _translate_here(self, model: Model, adapter: str) -> Translation:
        try:
            return loading.adapter_of(self.spec, adapter).translate(model, self.spec.options)
        except (UsageError, DriverError):
            raise
        except Exception as error:
            raise SuiteError(f"translate of driver {self.spec.name!r}: {type(error).__name__}: {error}") from error

    def _translate_apart(self, model: Model, adapter: str) -> Translation:
        """A vendor's `translate` gets a process of its own, under the suite's Python."""
        with self._lock:
            worker = self._translator
            if worker is None or worker.process.exit is not None:
                if worker is not None:
                    worker.close()
                worker = self._translator = self._begin(translate=adapter)
                hello = _greet(worker.process, worker.channel, self._load_deadline)
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
