"""The suite's end of a connection to a driver service: requests, answers, deadlines, silence."""

from __future__ import annotations

import contextlib
import itertools
import select
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from nnhal.channel import Channel, Closed, Late
from nnhal.device import ExecutionCallback, ExecutionResult, OutputShape
from nnhal.errors import (
    DriverDied,
    DriverError,
    DriverTimedOut,
    SuiteError,
    UncleanError,
    UsageError,
)
from nnhal.parts import Json, Parts
from nnhal.types import ErrorStatus
from nnhal.wire import decode

MOST_DEADLINES = 3  # that a starved driver gets
PATIENCE = 0.05  # seconds after which a call's use of the processor is looked at
EXIT_SECONDS = 3.0
CALLBACKS_KEPT = 256

Answer = tuple[list[Json], Parts]
CopyBack = Callable[[], None]


class HasFileno(Protocol):
    """Something that can be polled."""

    def fileno(self) -> int:
        """Its descriptor."""


class Watched(Protocol):
    """What a connection needs of the process at its other end."""

    @property
    def control(self) -> HasFileno:
        """Readable when there is news of the process."""

    @property
    def exit(self) -> int | None:
        """How it ended; None while it lives."""

    @property
    def reason(self) -> str:
        """Why it is gone."""

    def listen(self) -> None:
        """Takes the news in, without waiting."""

    def wait(self, seconds: float) -> bool:
        """Waits until it has ended; False when it has not."""

    def stop(self, reason: str, *, stacks: bool = False, native: bool = False) -> str:
        """Stops it, where it is ours to stop; gives native stacks."""

    def log(self) -> str:
        """The end of what it wrote."""

    def cpu_seconds(self) -> float:
        """Processor time so far."""

    def is_runnable(self) -> bool:
        """Whether some thread of it would run if it had a processor."""


class ReleasedError(SuiteError):
    """What was asked of has been released meanwhile, by another thread of the suite."""


class Again(Exception):
    """The service does not keep the model any more and wants it whole."""


class Connection:
    """One connection. Any number of threads may call at once; whoever waits reads for all.

    Args:
        channel: the connected socket.
        process: the service behind it.
        deadline: seconds for a call.
        native_stacks: whether a hung driver's native stacks are taken, where gdb is installed.
    """

    def __init__(
        self,
        channel: Channel,
        process: Watched,
        deadline: float,
        *,
        native_stacks: bool = True,
    ) -> None:
        self.process = process
        self.deadline = deadline
        self.released: list[int] = []
        self._channel = channel
        self._native_stacks = native_stacks
        self._numbers = itertools.count(1)
        self._sending = threading.Lock()
        self._state = threading.Condition(threading.Lock())
        self._reading = False
        self._open: set[int] = set()
        self._answers: dict[int, Answer] = {}
        self._failure: str | None = None
        self._extra = ""
        self._local = threading.local()
        self._callbacks: OrderedDict[int, tuple[ExecutionCallback, CopyBack]] = OrderedDict()
        self._awaited: set[int] = set()
        self._trouble: weakref.WeakKeyDictionary[ExecutionCallback, UncleanError] = weakref.WeakKeyDictionary()
        self._listener: threading.Thread | None = None
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)
        self._poller.register(process.control, select.POLLIN)

    # ---- deadlines

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Another deadline for the calls of this thread meanwhile."""
        before = getattr(self._local, "limit", None)
        self._local.limit = seconds
        try:
            yield
        finally:
            self._local.limit = before

    def limit(self) -> float:
        """Seconds that a call of this thread may take."""
        chosen: float | None = getattr(self._local, "limit", None)
        return self.deadline if chosen is None else chosen

    # ---- calls

    def call(
        self, name: str, arguments: list[Json], parts: Parts | None = None, scale: float = 1.0
    ) -> tuple[Json, Parts]:
        """Asks the driver and waits for its answer.

        Args:
            name: the method.
            arguments: as `nnhal.serving` expects them.
            parts: what the arguments refer to by number.
            scale: times the deadline.

        Raises:
            DriverError: the driver answered so.
            UncleanError: the driver raised something else.
            DriverDied: its process is gone, or sent what is no answer.
            DriverTimedOut: it did not answer; its process has been stopped.
        """
        number = next(self._numbers)
        limit = self.limit() * scale
        started = time.monotonic()
        with self._state:
            self._raise_failure()
            self._open.add(number)
        released, self.released = self.released, []
        body: list[Json] = [number, name, arguments, list(released)]
        try:
            self._send(body, parts or Parts(), started + limit)
            self._wait_for(lambda: number in self._answers, started, limit)
        finally:
            with self._state:
                self._open.discard(number)
                answer = self._answers.pop(number, None)
        if answer is None:
            raise SuiteError(f"no answer to {name} and no failure either")
        return self._result(name, *answer)

    def _send(self, body: Json, parts: Parts, until: float) -> None:
        left = max(0.0, until - time.monotonic())
        if not self._sending.acquire(timeout=left):
            raise self._overdue(left)
        try:
            if self._failure is None:
                self._channel.send(body, parts, until)
        except Closed:
            pass  # the reader finds out why, and still takes what came before
        except Late:
            raise self._overdue(left) from None
        finally:
            self._sending.release()

    def _wait_for(self, done: Callable[[], bool], started: float, limit: float) -> None:
        if self._await(done, started + min(PATIENCE, limit)):
            return
        base, used = time.monotonic(), self.process.cpu_seconds()
        for turn in range(1, MOST_DEADLINES + 1):
            if self._await(done, started + turn * limit):
                return
            wall = time.monotonic() - base
            starved = self.process.cpu_seconds() - used < wall / 2 and self.process.is_runnable()
            if not starved:
                break
        raise self._overdue(time.monotonic() - started)

    def _overdue(self, seconds: float) -> Exception:
        """Stops the service; gives what to raise for the call that waited too long."""
        with self._state:
            first = self._failure is None
            if first:
                self._failure = "stopped because another call had not been answered in time"
            self._state.notify_all()
        if not first:
            return self._death()
        native = self.process.stop(self._failure or "", stacks=True, native=self._native_stacks)
        self._extra = f"\n{native}" if native else ""
        return DriverTimedOut(round(seconds, 3), self.process.log() + self._extra)

    def _death(self) -> DriverDied:
        return DriverDied(self._failure or self.process.reason, self.process.log() + self._extra)

    @property
    def has_failed(self) -> bool:
        """Whether it is known that the service has ended, or was stopped: every call raises DriverDied."""
        return self._failure is not None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._death()

    def _result(self, name: str, answer: list[Json], parts: Parts) -> tuple[Json, Parts]:
        kind, *rest = answer
        if kind == "ok" and len(rest) == 1:
            return rest[0], parts
        parts.close()
        if kind == "again" and not rest:
            raise Again
        if kind == "unclean" and len(rest) == 3:
            raise UncleanError(*(str(word) for word in rest))
        if kind == "released" and len(rest) == 1:
            raise ReleasedError(str(rest[0]))
        if kind == "misused" and len(rest) == 1:
            raise SuiteError(f"the service refused {name}: {rest[0]}")
        if kind == "usage" and len(rest) == 1:
            raise UsageError(str(rest[0]))
        if kind == "error" and len(rest) == 3 and isinstance(rest[1], str):
            try:
                shapes = decode(tuple[OutputShape, ...], rest[2], Parts())
                status = ErrorStatus(decode(ErrorStatus, rest[0], Parts()))
                raise DriverError(status, rest[1], shapes)
            except ValueError:
                pass
        raise self.malformed(f"an answer to {name} of the wrong form")

    def malformed(self, what: str) -> DriverDied:
        """Stops a service that sent nonsense; gives what to raise."""
        with self._state:
            self._failure = self._failure or f"sent {what}, and was stopped"
            self._state.notify_all()
        self.process.stop(self._failure)
        return self._death()

    # ---- reading

    def _await(self, done: Callable[[], bool], until: float | None) -> bool:
        """Waits until something has come, reading for all if nobody else does; False when time is up."""
        while True:
            with self._state:
                while not done():
                    self._raise_failure()
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    if not self._reading:
                        self._reading = True
                        break
                    self._state.wait(left)
                else:
                    return True
            self._take_turn(until)

    def _take_turn(self, until: float | None) -> None:
        events: list[Answer] = []
        try:
            events = self._read(until)
        finally:
            with self._state:
                self._reading = False
                self._state.notify_all()
        for event in events:  # nothing is locked here: a callback may call the driver
            self._notify(*event)

    def _read(self, until: float | None) -> list[Answer]:
        """Reads until there was at least one message, or time is up; gives the events among them."""
        events: list[Answer] = []
        try:
            if not self._take(events):
                timeout = None if until is None else max(0.0, until - time.monotonic()) * 1000
                ready = [descriptor for descriptor, _ in self._poller.poll(timeout)]
                if self._channel.fileno() in ready:
                    self._channel.fill()
                    self._take(events)
                elif ready:
                    self.process.listen()
                    if self.process.exit is not None:
                        while self._channel.fill():
                            self._take(events)
                        raise Closed
        except Closed:
            self._fail_closed()
        except ValueError as error:
            with self._state:
                self._failure = self._failure or f"sent {error}, and was stopped"
            self.process.stop(self._failure)
        return events

    def _fail_closed(self) -> None:
        if self._failure is not None:
            return
        if not self.process.wait(EXIT_SECONDS):
            self.process.stop("closed its connection, and was stopped")
        with self._state:
            self._failure = self._failure or self.process.reason

    def _take(self, events: list[Answer]) -> bool:
        found = False
        while (message := self._channel.take()) is not None:
            found = True
            body, parts = message
            if not isinstance(body, list) or len(body) < 2 or not isinstance(body[0], int):
                raise ValueError("malformed wire data: an answer of the wrong form")
            if body[0] == 0:
                events.append((body[1:], parts))
                continue
            with self._state:
                if body[0] not in self._open or body[0] in self._answers:
                    raise ValueError(f"malformed wire data: an answer to no request ({body[0]})")
                self._answers[body[0]] = (body[1:], parts)
        return found

    # ---- callbacks of `execute`

    def expect(self, callback: ExecutionCallback, copy_back: CopyBack) -> int:
        """Makes a callback known and gives the number by which the service calls it."""
        number = next(self._numbers)
        with self._state:
            self._callbacks[number] = (callback, copy_back)
            self._awaited.add(number)
            while len(self._callbacks) > CALLBACKS_KEPT + len(self._awaited):
                self._callbacks.popitem(last=False)
            if self._listener is None:
                self._listener = threading.Thread(target=self._listen, daemon=True)
                self._listener.start()
            self._state.notify_all()
        return number

    def forget(self, number: int) -> None:
        """The launch failed without a notification: nobody waits for one."""
        with self._state:
            self._awaited.discard(number)

    def _listen(self) -> None:
        try:
            while True:
                self._await(lambda: not self._awaited, None)
                with self._state:
                    while not self._awaited:
                        self._raise_failure()
                        self._state.wait()
        except DriverDied:
            return  # those who wait for a callback learn it from `wait_for_callback`

    def _notify(self, words: list[Json], parts: Parts) -> None:
        number = words[1] if len(words) > 1 and isinstance(words[1], int) else -1
        callback, copy_back = self._callbacks.get(number, (None, None))
        if callback is None or copy_back is None:
            parts.close()
            return  # too old to be known
        if words[0] == "unclean" and len(words) == 4:
            self._trouble[callback] = UncleanError(str(words[2]), str(words[3]))
        else:
            try:
                body = words[2] if len(words) == 3 and words[0] == "notify" else None
                status, result = decode(tuple[ErrorStatus, ExecutionResult], body, parts)
                copy_back()
                callback.notify(ErrorStatus(status), result)
            except ValueError as error:
                self.malformed(f"a notification of the wrong form ({error})")
                return
        with self._state:
            self._awaited.discard(number)
            self._state.notify_all()

    def wait_for_callback(
        self, callback: ExecutionCallback, seconds: float | None = None
    ) -> tuple[ErrorStatus, ExecutionResult]:
        """The first notification of a callback given to `execute`.

        Raises:
            UncleanError: the driver notified it with something that is no result.
            DriverDied: the driver's process ended first.
            DriverTimedOut: there was no notification in time; the process has been stopped.
        """
        limit = self.limit() if seconds is None else seconds
        ready = lambda: callback.notifications > 0 or callback in self._trouble  # noqa: E731
        self._wait_for(ready, time.monotonic(), limit)
        if callback in self._trouble:
            raise self._trouble[callback]
        result = callback.wait(0)
        if result is None:
            raise SuiteError("a callback was notified with nothing")
        return result

    # ---- the end

    def give_up(self, seconds: float) -> None:
        """Stops a driver that was waited for in vain outside a call, and raises accordingly."""
        raise self._overdue(seconds)

    @property
    def is_open(self) -> bool:
        """Whether the service can still be asked, as far as is known."""
        return self._failure is None

    def check(self) -> None:
        """Raises DriverDied when the service has ended, also between calls; takes late notifications."""
        with self._state:
            mine = not self._reading and self._failure is None
            self._reading = self._reading or mine
        if mine:
            self._take_turn(time.monotonic())
        self.process.listen()
        if self.process.exit is not None:
            self._fail_closed()
        with self._state:
            self._raise_failure()

    def close(self) -> None:
        """Closes the connection. A second call does nothing."""
        with self._state:
            self._failure = self._failure or "closed by the suite"
            self._state.notify_all()
        self._channel.close()
