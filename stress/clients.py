"""A client process as the supervisor of a run sees it. What it says is not trusted."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import time
from collections import deque
from pathlib import Path

from harness.process import SupervisedProcess, cpu_seconds, environment, is_runnable
from nnhal.channel import Channel, Closed, Late
from nnhal.loading import DriverSpec
from nnhal.parts import Json, Parts
from stress.board import Board, Place, Slot
from stress.evidence import ClientEnd, Failure
from stress.order import Order, Service, packed
from stress.scene import Group

LONGEST = 4000  # characters of a message that are kept
SEND_SECONDS = 2.0
FAILURES_KEPT = 50  # of one client


class Usage:
    """How much of the processor a process has had, for a while back."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._seen: deque[tuple[float, float]] = deque(maxlen=400)

    def look(self, now: float) -> None:
        """Notes what it has had by now."""
        if not self._seen or now - self._seen[-1][0] > 0.2:
            self._seen.append((now, cpu_seconds(self.pid)))

    def starved(self, since: float, now: float) -> bool:
        """Whether it has had less than half of the time since then, and would run if it could."""
        before = [seen for seen in self._seen if seen[0] <= since] or list(self._seen)[:1]
        if not before or now <= before[-1][0]:
            return False
        used = cpu_seconds(self.pid) - before[-1][1]
        return used < (now - before[-1][0]) / 2 and is_runnable(self.pid)


class ClientProcess:
    """A client with its board.

    Args:
        order: what it is to do.
        group: of the scene.
        spec: the driver.
        tag: for its environment.
        log_path: file for what it writes.

    Attributes:
        ready: it has said so.
        failed: number of failures, those not kept included.
        silent: what it told of a driver that does not answer: the words of the message.
        died: what it told of a driver that died.
        frozen: when it was first seen to stand still, and the seconds of the processor that each thread had used then.
    """

    def __init__(self, order: Order, group: Group, spec: DriverSpec, tag: str, log_path: Path | None) -> None:
        self.order, self.group, self.number = order, group, order.number
        env = environment(dataclasses.replace(spec, python=None), tag)
        argv = [sys.executable, "-m", "stress.client"]
        self.process = SupervisedProcess(argv, env, tag, log_path=log_path)
        self.channel = Channel(self.process.service.dup())
        self.process.service.close()  # its end of file must be the client's doing
        self.board = Board.create(order.threads)
        self.ready = False
        self.ready_at = 0.0
        self.failures: list[Failure] = []
        self.failed = 0
        self.unsupported: dict[str, str] = {}
        self.silent: dict[str, Json] | None = None
        self.died: dict[str, Json] | None = None
        self.numbers: dict[str, float] = {}
        self.nonsense = ""
        self.refused = ""
        self.suite = ""
        self.done = False
        self.closed = False
        self.killed = False
        self.stopped = False
        self.ended_at: float | None = None
        self.usage = Usage(0)
        self.frozen: tuple[float, dict[int, float]] | None = None
        self._slots: tuple[Slot, ...] | None = None
        with packed(order, self.board, group.cases) as (body, parts):
            self._tell(body, parts)

    def _tell(self, body: Json, parts: Parts | None = None) -> None:
        with contextlib.suppress(Closed, Late):  # it has ended, or hangs: seen elsewhere
            self.channel.send(body, parts or Parts(), time.monotonic() + SEND_SECONDS)

    def go(self, stop_at: float) -> None:
        """Has it begin, and end at that time."""
        self._tell({"go": stop_at})

    def move(self, service: Service) -> None:
        """Tells it where the driver is now."""
        self._tell({"service": [service.name, service.pid]})

    def stop(self) -> None:
        """Has it end as soon as it can."""
        self._tell({"stop": True})

    def kill(self) -> None:
        """Ends it."""
        self.process.signal(signal.SIGKILL)

    @property
    def alive(self) -> bool:
        """Whether its process is there, as far as is known."""
        return self.process.exit is None

    @property
    def pid(self) -> int:
        """Its process; 0 while it is not known."""
        return self.process.pid

    def listen(self, now: float, start: float) -> None:
        """Takes in what it has said, and whether it has ended."""
        self.process.listen()
        if self.usage.pid != self.pid:
            self.usage = Usage(self.pid)
        self.usage.look(now)
        self._read(now - start)
        if not self.alive and self.ended_at is None:
            self.ended_at = now - start
            self._read(now - start)  # what it said last

    def _read(self, at: float) -> None:
        try:
            while not self.closed and not self.nonsense:
                while (message := self.channel.take()) is not None:
                    words, parts = message
                    try:
                        self._take(words, parts, at)
                    finally:
                        parts.close()
                if not self.channel.fill():
                    return
        except Closed:
            self.closed = True
            self._freeze()
        except (ValueError, KeyError, TypeError) as error:
            self._freeze()
            self.nonsense = f"{type(error).__name__}: {error}"[:300]

    def _take(self, words: Json, parts: Parts, at: float) -> None:
        if not isinstance(words, dict):
            raise ValueError("a message is no object")
        kind = words.get("event")
        if words.get("ready"):
            self.ready, self.ready_at = True, time.monotonic()
        elif "done" in words:
            self.done = True
            found = words["done"]
            self.numbers = {str(k): float(v) for k, v in found.items()} if isinstance(found, dict) else {}  # type: ignore[arg-type]
        elif kind == "failure":
            self._take_failure(words, parts, at)
        elif kind == "unclean":
            self.failed += 1
            step, text = str(words.get("step")), str(words.get("message"))[:LONGEST]
            thread = _whole(words.get("thread"))
            self.failures.append(Failure(at, self.number, thread, 0, step, "UNCLEAN_ERROR", step.split(" ")[0], text))
        elif kind == "unsupported":
            self.unsupported[str(words.get("model"))[:200]] = str(words.get("reason"))[:LONGEST]
        elif kind == "silent":
            self.silent = self.silent or words
        elif kind == "died":
            self.died = self.died or words
        elif kind == "refused":
            self.refused = str(words.get("message"))[:LONGEST]
        elif kind == "suite":
            self.suite = self.suite or str(words.get("message"))[:LONGEST]
        else:
            raise ValueError(f"a message says nothing that is known: {str(words)[:100]}")

    def _take_failure(self, words: dict[str, Json], parts: Parts, at: float) -> None:
        self.failed += 1
        if len(self.failures) >= FAILURES_KEPT:
            return
        saved = words.get("saved")
        self.failures.append(
            Failure(
                at,
                self.number,
                _whole(words.get("thread")),
                _whole(words.get("turn")),
                str(words.get("id"))[:300],
                str(words.get("cause"))[:40],
                str(words.get("stage"))[:100],
                str(words.get("message"))[:LONGEST],
                b"" if saved is None else bytes(parts.blob(saved)),
            )
        )

    def slots(self) -> tuple[Slot, ...]:
        """Where its threads are, or were at last."""
        return self._slots if self._slots is not None else tuple(self.board.slots())

    def _freeze(self) -> None:
        """Keeps where the threads were when it ended, or did what no client does."""
        if self._slots is None:
            self._slots = tuple(self.board.slots())

    def beat(self) -> float:
        """When it last said that it runs at all."""
        return self.board.last_beat()

    def in_driver(self) -> bool:
        """Whether some thread is in a call of the driver."""
        return any(slot.place == Place.DRIVER for slot in self.slots())

    def end(self) -> ClientEnd:
        """What is known of it at last; its process is gone afterwards."""
        self._freeze()
        log = self.process.log()
        self.channel.close()
        self.process.close()
        self.board.close()
        return ClientEnd(
            self.number,
            self.group,
            self.ended_at,
            self.process.exit,
            self.process.reason,
            self.killed,
            self.stopped,
            self.done,
            self.slots(),
            self.numbers,
            self.nonsense,
            self.closed,
            self.refused,
            self.suite,
            self.process.strays,
            log,
        )


def _whole(value: Json) -> int:
    return value if isinstance(value, int) else -1
