"""First inputs and words for a fuzzer, made of the definitions: small, and the same each time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fuzz.graphs import valid_graph, with_digest
from fuzz.known import Known
from fuzz.targets import Target
from harness import case_file
from harness.steps import Action
from harness.verdict import Verdict
from nnhal import wire
from nnhal.types import OperandType
from opset import OPSET
from opset.drawing import UnsatisfiableError
from opset.source import BytesSource, SeededSource, choice
from random_graph.generator import draw_model

COUNT = 24  # of targets that draw anything at all
LENGTH = 120  # bytes of such a one
LONGEST = 256  # of a graph
NUMBERS = (0, 1, 2, 3, 4, 6, 7, 8, 16, 32, 64, 127, 128, 255, 256, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
MOST_WORDS = 400


class RecordingSource(SeededSource):
    """Choices of a seed, written down as the bytes from which `BytesSource` reads the same ones.

    Args:
        seed: of the choices.
        first: the first of them, which no seed decides.
    """

    def __init__(self, seed: int | str, first: Sequence[int] = ()) -> None:
        super().__init__(seed)
        self._written = bytearray()
        self._first = list(first)

    @property
    def data(self) -> bytes:
        """The bytes of all choices so far."""
        return bytes(self._written)

    def integer(self, low: int, high: int) -> int:
        value = self._first.pop(0) if self._first else super().integer(low, high)
        self._written += (value - low).to_bytes(BytesSource.width(low, high), "little")
        return value

    def generator(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.integer(0, 2**32 - 1)))


def seeds_of(target: Target, known: Known) -> Iterator[bytes]:
    """A small corpus to begin with."""
    if target.name == "models":
        yield from _graphs(known)
    elif target.name in ("wire", "parse-wire"):
        yield from (wire.dumps(made.model) for made in known.vehicles)
    elif target.name == "parse-case":
        yield from _cases(known)
    elif target.name == "parse-waivers":
        yield b'[[waiver]]\ncases = "ADD-*"\nreason = "known"\nlink = "https://example.org/1"\nexpires = 2027-06-30\n'
    elif target.name == "parse-records":
        yield _records()
    elif target.name == "parse-tflite":
        yield from _tflite_files(known)
    elif target.name == "parse-onnx":
        yield _onnx_file()
    else:
        yield from _anything(target)


def _graphs(known: Known) -> Iterator[bytes]:
    """A graph of each operation that the driver has, as far as one is drawn at once."""
    for number in range(len(known.mix.choices)):
        for attempt in range(4):
            # The mode, one operation, and which.
            source = RecordingSource(f"{number}/{attempt}", (0, known.mix.sizes[0], number))
            choice(source, known.modes)
            try:
                drawn = draw_model(source, known.mix)
            except (UnsatisfiableError, ValueError):
                continue
            if drawn.sound and len(source.data) <= LONGEST:
                yield source.data
                break


def _cases(known: Known) -> Iterator[bytes]:
    found = 0
    for number in range(200):
        source = np.random.default_rng(number)
        made = valid_graph(BytesSource(source.bytes(LENGTH)), known)
        if made is not None and len(case := case_file.dumps(with_digest(made.complete))) <= 4096:
            yield case
            found += 1
        if found == 4:
            return


def _records() -> bytes:
    case = {"record": "case", "id": "ADD-1-abcdef", "batch": "ADD", "number": 1, "operation": "ADD", "signature": "x"}
    rows = (
        {"record": "plan", "format": 1, "selected": 2, "batches": {"ADD": 2}},
        {**case, "kind": "drawn", "mode": "sync", "verdict": Verdict.PASS.value, "numbers": {"a": 1.5}, "notes": ["b"]},
        {"record": "selected", "selected": 3, "batches": {"ADD": 3}, "seconds": 1.0},
        {"record": "resume"},
        {"record": "end", "counts": {"PASS": 1}, "seconds": 2.0, "resumed": True},
    )
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _tflite_files(known: Known) -> Iterator[bytes]:
    """The driver's vehicles, where the packages are there that write such files."""
    with contextlib.suppress(ModuleNotFoundError):
        from drivers.litert_translate import translate

        yield from (made for vehicle in known.vehicles if (made := translate(vehicle.model).artifact) is not None)


def _onnx_file() -> bytes:
    """An addition, a convolution and a constant."""
    from onnx import TensorProto, helper, numpy_helper

    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 2, 2])
    weights = numpy_helper.from_array(np.ones((3, 2, 3, 3), np.float32), "w")
    nodes = [helper.make_node("Add", ["x", "x"], ["z"]), helper.make_node("Conv", ["z", "w"], ["y"], group=1)]
    graph = helper.make_graph(nodes, "seed", [image], [result], [weights])
    made: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    return made


def _anything(target: Target) -> Iterator[bytes]:
    for number in range(COUNT):
        rng = np.random.default_rng([number, len(target.name)])
        yield rng.bytes(min(LENGTH, target.longest) * (number + 1) // COUNT)


# --- words ------------------------------------------------------------------------------------------------------------


def dictionary(target: Target) -> list[bytes]:
    """Words that a fuzzer puts into inputs of a target."""
    if target.name in ("wire", "parse-wire"):
        words = [wire.MAGIC, b'"format":1', b'"blobs":', b'"body":', b'["Model",', b'["Request",', b"null", b"true",
                 b"[]", b"-1", b"4294967295", b"2147483648", b"1e999", b'"nan"', b'{"b":0}', b'{"m":0}']  # fmt: skip
        words += [f"{int(code)}".encode() for code in (*OPSET, *OperandType)]
    elif target.name == "parse-case":
        words = [b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"head.npy", b"\x93NUMPY", b"descr", b"fortran_order",
                 b"shape", b"'<f8'", b"'|u1'", b"(1,)", *(f'"{a.value}"'.encode() for a in Action)]  # fmt: skip
    elif target.name == "parse-waivers":
        words = [b"[[waiver]]", b"cases", b"reason", b"link", b"expires", b"2027-06-30", b'"', b"'''", b" = ", b"\n",
                 b"inf", b"nan", b"{", b"[", b"0x", b"-abcdef"]  # fmt: skip
    elif target.name == "parse-records":
        keys = ("record", "plan", "case", "end", "selected", "format", "batches", "verdict", "cause", "notes", "number")
        words = [f'"{key}"'.encode() for key in keys]
        words += [b"null", b"NaN", b"1e999", b"-1", b"{}", b"[]", b"\n"]
    else:
        words = [bytes([number]) for number in NUMBERS if number < 256]
        words += [number.to_bytes(4, "little") for number in NUMBERS]
    return list(dict.fromkeys(words))[:MOST_WORDS]


def write_dictionary(target: Target, path: Path) -> None:
    """The words in the form that libFuzzer reads."""
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in dictionary(target)]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
