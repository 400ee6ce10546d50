"""The suite's own readers of files and messages: whatever they are given, they answer or say what is wrong with it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness import case_file
from harness.case import TestCase
from harness.record import read_run
from harness.waivers import load_waivers
from importers.onnx_file.reading import import_onnx
from importers.tflite_file import import_tflite
from nnhal import wire
from nnhal.device import CompilationConfig, ExecutionConfig
from nnhal.errors import UsageError
from nnhal.model import Model, Request
from nnhal.validate import violations

KINDS: tuple[type, ...] = (Model, Request, CompilationConfig, ExecutionConfig)
ORDER = "NNCTS_FUZZ"  # names a file in the folder of a fuzzing process, which is removed whatever becomes of that


def read_wire(data: bytes) -> None:
    """A message of the wire form, of every kind; a model that comes out of it is validated."""
    for kind in KINDS:
        try:
            value: object = wire.loads(kind, data)
        except ValueError:
            continue
        if isinstance(value, Model):
            violations(value)


def read_case(data: bytes) -> None:
    """A saved case; what comes out of one is saved again."""
    try:
        case = case_file.loads(data, "it")
    except UsageError:
        return
    assert isinstance(case, TestCase)
    with contextlib.suppress(TypeError, ValueError):  # numbers that no Python value stands for
        case_file.dumps(case)


def read_waivers(data: bytes) -> None:
    """A waiver file."""
    with _file(data) as path, contextlib.suppress(UsageError):
        waivers = load_waivers(path)
        waivers.cover("ADD-float32-sync-drawn-0-abcdef", "FAIL")
        waivers.complaints(filtered=False)


def read_records(data: bytes) -> None:
    """The records of a run."""
    with _file(data) as path, contextlib.suppress(UsageError):
        run = read_run(path.parent)
        run.counts()


def read_tflite(data: bytes) -> None:
    """A .tflite file; the model that comes out of one is validated."""
    with contextlib.suppress(UsageError):
        imported = import_tflite(data, "it")
        if imported.model is not None:
            violations(imported.model)


def read_onnx(data: bytes) -> None:
    """An ONNX file, likewise."""
    with contextlib.suppress(UsageError):
        imported = import_onnx(data, "it")
        if imported.model is not None:
            violations(imported.model)


@contextlib.contextmanager
def _file(data: bytes):  # type: ignore[no-untyped-def]
    """A file of these bytes, of which nothing stays behind."""
    place = Path(os.environ[ORDER]).parent if ORDER in os.environ else None
    with tempfile.TemporaryDirectory(prefix="nncts-fuzz-", dir=place) as folder:
        path = Path(folder) / "records.jsonl"
        path.write_bytes(data)
        yield path


READERS: dict[str, tuple[Callable[[bytes], None], tuple[str, ...]]] = {
    "parse-wire": (read_wire, ("nnhal/wire.py", "nnhal/parts.py", "nnhal/model.py", "nnhal/validat*.py")),
    "parse-case": (read_case, ("harness/case_file.py", "nnhal/wire.py", "nnhal/parts.py")),
    "parse-waivers": (read_waivers, ("harness/waivers.py",)),
    "parse-records": (read_records, ("harness/record.py",)),
    "parse-tflite": (read_tflite, ("importers/tflite_file", "importers/assembling.py")),
}
if importlib.util.find_spec("onnx") is not None:  # without it nothing of the reader is reached
    READERS["parse-onnx"] = (read_onnx, ("importers/onnx_file", "importers/assembling.py"))
