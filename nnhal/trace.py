"""Traces what happens when, as events for a trace viewer (chrome://tracing, Perfetto): NNCTS_TRACE=path turns it on.

The file is an array of events, one a line, written as they happen; readers take it without its closing bracket, so it
is whole at any moment, also when the process dies. Several processes may share one file.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

VARIABLE = "NNCTS_TRACE"
Argument: TypeAlias = "str | int | float | bool | None"

_descriptor = -1
_process = 0
_named: set[int] = set()
_nothing = nullcontext()


def start(path: str | os.PathLike[str]) -> None:
    """Begins to trace into a file; events are added to those that are in it.

    Raises:
        OSError: the file cannot be written.
    """
    global _descriptor
    stop()
    _descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    if os.fstat(_descriptor).st_size == 0:
        os.write(_descriptor, b"[\n")


def stop() -> None:
    """Ends tracing. A second call does nothing."""
    global _descriptor
    if _descriptor >= 0:
        os.close(_descriptor)
    _descriptor = -1
    _named.clear()


def is_on() -> bool:
    """Whether events are written."""
    return _descriptor >= 0


def span(name: str, category: str = "nncts", **arguments: Argument) -> AbstractContextManager[None]:
    """A stretch of time in this thread: `with trace.span("prepare", "driver"): ...`.

    Args:
        name: what is being done.
        category: by which a viewer filters.
        arguments: shown with the event.
    """
    return _nothing if _descriptor < 0 else _span(name, category, arguments)


@contextmanager
def _span(name: str, category: str, arguments: dict[str, Argument]) -> Iterator[None]:
    _write("B", name, category, arguments)
    try:
        yield
    finally:
        _write("E", name, category, {})


def instant(name: str, category: str = "nncts", **arguments: Argument) -> None:
    """A moment in this thread."""
    if _descriptor >= 0:
        _write("i", name, category, arguments)


def counter(name: str, **values: float) -> None:
    """Figures that a viewer draws as a curve."""
    if _descriptor >= 0:
        _write("C", name, "nncts", dict(values))


def _write(phase: str, name: str, category: str, arguments: dict[str, Argument]) -> None:
    descriptor, thread = _descriptor, threading.get_native_id()
    if descriptor < 0:  # stopped inside a span
        return
    process = os.getpid()
    lines = ""
    if process != _process or thread not in _named:
        lines = _introduce(process, thread)
    event: dict[str, object] = {
        "ph": phase, "name": name, "cat": category, "pid": process, "tid": thread, "ts": time.monotonic_ns() / 1000,
    }  # fmt: skip
    if phase == "i":
        event["s"] = "t"
    if arguments:
        event["args"] = arguments
    # One write of whole lines at the end of the file: nothing is torn, neither by a death nor by another process.
    os.write(descriptor, (lines + json.dumps(event) + ",\n").encode())


def _introduce(process: int, thread: int) -> str:
    """The lines that tell a viewer the names of a process and a thread; once for each."""
    global _process
    lines = ""
    if process != _process:
        _named.clear()
        _process = process
        lines += json.dumps(_name_of("process_name", process, thread, f"nncts {process}")) + ",\n"
    _named.add(thread)
    return lines + json.dumps(_name_of("thread_name", process, thread, threading.current_thread().name)) + ",\n"


def _name_of(kind: str, process: int, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def read(path: str | os.PathLike[str]) -> list[dict[str, object]]:
    """The events of a trace file, ended or not.

    Raises:
        ValueError: a line is no event.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    body = text.strip().removeprefix("[").removesuffix("]").rstrip().rstrip(",")
    events: list[dict[str, object]] = json.loads(f"[{body}]")
    return events


def start_from_environment() -> None:
    """Begins to trace when NNCTS_TRACE names a file; warns, and goes on, when it cannot be written."""
    path = os.environ.get(VARIABLE)
    if path:
        try:
            start(path)
        except OSError as error:
            warnings.warn(f"{VARIABLE}={path} is ignored: {error.strerror}", stacklevel=2)


start_from_environment()
