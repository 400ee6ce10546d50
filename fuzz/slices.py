"""A fuzzing process for a while: started, watched, ended when it takes too long or too much, its findings gathered."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from fuzz.board import Board, Reading
from fuzz.covering import environment_for, mutator
from fuzz.known import Known
from fuzz.plan import INPUT_SECONDS, MOST_RSS, Way
from fuzz.signature import crash_place
from fuzz.targets import Target
from fuzz.triage import Suspect
from fuzz.worker import MUTATOR, ORDER, Order
from harness.process import SupervisedProcess, environment, find_crash_trace
from harness.verdict import Cause, Verdict
from nnhal.loading import DriverSpec

LATE = 60.0  # seconds beyond its time that a process may take to load, or for its corpus
MOST_EXTENSIONS = 3  # times that a starved process gets the time of an input
STARVED = 0.5
HANDLES = ("abrt", "bus", "fpe", "ill", "int", "segv", "term", "xfsz", "usr1", "usr2")
NEVER = 1_000_000  # seconds; the process that watches decides what takes too long
SAMPLED = 0.5  # seconds between two looks at the memory
LOG = 16384  # characters of a log that are kept
EDGES = re.compile(r"cov: (\d+)")


class Slice:
    """A process under way.

    Attributes:
        target: its name.
        name: its own, unlike any other's of the run.
        length: seconds that it is to take.
        seconds: that it has taken.
        reading: what its board said last.
        suspects: what was found and not taken over yet.
        failed: why it could not begin, or nothing.
    """

    def __init__(self, order: Order, way: Way, seconds: int, log_path: Path | None) -> None:
        self.target, self.name = order.target, Path(order.folder).name
        self.suspects: list[Suspect] = []
        self.failed = ""
        self.reading = Reading()
        self.edges = 0
        self.ended = False
        self._order, self.length = order, seconds
        self._folder = Path(order.folder)
        self._folder.mkdir(parents=True)
        order.save(self._folder / "order")
        self._board = Board(self._folder / "board")
        self._taken: set[str] = set()
        self._begun = time.monotonic()
        self._sampled = 0.0
        self._suspended: tuple[int, float, float] | None = None  # input, since, processor seconds then
        tag = f"{os.getpid()}-{os.urandom(6).hex()}"
        spec = DriverSpec.parse(way.text) if order.driver else DriverSpec("", "")
        if not order.in_process:
            spec = dataclasses.replace(spec, preload=None)
        env = {**environment(dataclasses.replace(spec, python=None), tag), **environment_for(spec)}
        env[ORDER] = str(self._folder / "order")
        if order.changes and order.in_process and "LD_PRELOAD" in env:
            env[MUTATOR] = mutator()
            env["LD_PRELOAD"] += f":{env[MUTATOR]}"
        self._process = SupervisedProcess([sys.executable, "-m", "fuzz.worker"], env, tag, log_path=log_path)

    @property
    def seconds(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._begun

    def poll(self) -> bool:
        """Takes in what is new; says whether it has ended."""
        if self.ended:
            return True
        self._process.listen()
        self.reading = self._board.read()
        self._gather()
        if self._process.exit is not None:
            self._end()
        elif not self._too_long():
            self._too_much()
        return self.ended

    def _gather(self) -> None:
        """Takes over findings that the process has written down."""
        for path in self._folder.glob("*.json"):
            if path.stem in self._taken:
                continue
            self._taken.add(path.stem)
            row = json.loads(path.read_text(encoding="utf-8"))
            data = path.with_suffix(".bin").read_bytes()
            self.suspects.append(Suspect(self.target, data, **row))

    def _too_long(self) -> bool:
        """Ends a process whose input takes too long, or that does not come to its end."""
        reading, now = self.reading, time.monotonic()
        if not reading.since:
            if now - self._begun > self.length + LATE:
                self._stop("does not end")
                self.ended = True
                self.failed = "it did not come to its end in time"
                return True
            return False
        if self._suspended is None or self._suspended[0] != reading.inputs:
            self._suspended = (reading.inputs, now, self._process.cpu_seconds())
        _, first, used = self._suspended
        taken = now - first
        if taken <= INPUT_SECONDS:
            return False
        starved = self._process.cpu_seconds() - used < STARVED * taken and self._process.is_runnable()
        if starved and taken <= MOST_EXTENSIONS * INPUT_SECONDS:
            return False
        self._stop("takes too long")
        text = f"no end of an input within {INPUT_SECONDS:g} s"
        self._blame(reading, Verdict.HANG, Cause.SILENT, text)
        return True

    def _too_much(self) -> None:
        """Ends a process that holds too much memory."""
        now = time.monotonic()
        if now - self._sampled < SAMPLED:
            return
        self._sampled = now
        process = self._process.sample()
        with contextlib.suppress(psutil.Error):
            if process is not None and process.memory_info().rss > MOST_RSS:
                self._stop("holds too much memory")
                text = f"the process holds more than {MOST_RSS >> 20} MiB"
                self._blame(self.reading, Verdict.CRASH, Cause.LEAK, text)

    def _stop(self, reason: str) -> None:
        self._process.stop(reason, stacks=True)

    def _end(self) -> None:
        """What the end of the process means."""
        process, reading = self._process, self.reading
        if process.exit == 0:
            self.ended = True
            return
        if not (self._folder / "ready").exists() and not reading.since:
            self.failed = f"it could not begin: {process.reason}\n{process.log()[-2000:]}"
            self.ended = True
            return
        trace = find_crash_trace(process.log()) or ""
        first = trace.partition("\n")[0].strip()
        text = f"the process {process.reason}" + (f": {first}" if first else "")
        self._blame(reading, Verdict.CRASH, Cause.DIED, text)

    def _blame(self, reading: Reading, verdict: Verdict, cause: Cause, text: str) -> None:
        """Suspects the input that the process was at."""
        log = self._process.log()
        place = crash_place(log)
        kind = " ".join((verdict.value, cause.value, *(place or (text[:60],))))
        suspect = Suspect(
            self.target, reading.data, verdict.value, cause.value, "execute", text, kind, _end_of(log, place)
        )
        self.suspects.append(suspect)
        self.ended = True

    def close(self) -> None:
        """Ends the process and lets its files go."""
        found = EDGES.findall(self._process.log())
        self.edges = int(found[-1]) if found else 0
        self.checked = self._read_checked()
        self._process.signal(signal.SIGKILL)
        self._process.close()
        self._board.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read_checked(self) -> list[str]:
        path = self._folder / "checked"
        return path.read_text(encoding="ascii").split() if path.is_file() else []


def _end_of(log: str, place: tuple[str, ...]) -> str:
    """The part of a log that says what happened: from a report on, else its end."""
    trace = find_crash_trace(log, lines=80) if place else None
    return (trace or log)[-LOG:]


def order_of(
    target: Target,
    way: Way | None,
    known: Known | None,
    folder: str,
    corpus: Sequence[str],
    arguments: Sequence[str],
    **more: Any,
) -> Order:
    """What a process is to do for a target; a reader of the suite's own needs nothing of a driver."""
    apart = way is None or target.read is not None
    return Order(
        target=target.name,
        driver="" if way is None or apart else way.text,
        known="" if known is None or apart else known.to_json(),
        covered=target.files if way is None or apart else way.covered,
        in_process=way is not None and not apart and way.in_process,
        folder=folder,
        corpus=tuple(corpus),
        arguments=tuple(arguments),
        changes=target.make is not None,
        **more,
    )


def arguments_of(seconds: int, seed: int, longest: int, words: Path, *more: str) -> tuple[str, ...]:
    """What the fuzzer is told."""
    plain: Mapping[str, object] = {
        "max_total_time": seconds,
        "seed": seed,
        "max_len": longest,
        "dict": words,
        "timeout": NEVER,
        "rss_limit_mb": 0,
        "print_final_stats": 0,
        "artifact_prefix": f"{words.parent}/",
        "reload": 1,
        "len_control": 0,
        "reduce_inputs": 0,  # a shorter input has fewer choices that are worth a change
        **{f"handle_{name}": 0 for name in HANDLES},
    }
    return (*(f"-{name}={value}" for name, value in plain.items()), *more)
