"""Fuzzing processes by themselves: that changes reach the fuzzer, that leaks are seen, and what a look keeps."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.graphs import valid_graph
from fuzz.known import Known
from fuzz.plan import Way, way_of
from fuzz.seeds import write_dictionary
from fuzz.slices import Slice, arguments_of, order_of
from fuzz.targets import TARGETS
from fuzz.triage import INPUT, RESULT, Triage, TriageOrder
from nnhal.model import Model
from nnhal.types import FL6, ExecutionMode, OperandType, OperationType
from opset.source import BytesSource
from tests.native_library import build, compiler

CLANG = compiler("clang")
COUNTED = ("-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=undefined")
RELU = Known(FL6, (ExecutionMode.SYNCHRONOUS,), False, False, False, False, ("RELU",))
TAKING = replace(RELU, validates=True)
SECONDS = 4


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A native driver with counters whose RELU keeps 100 bytes of each run with certain shapes."""
    if CLANG is None:
        pytest.skip("needs clang: apt-get install clang")
    return build(tmp_path_factory.mktemp("leaking"), "DEEP_LEAK", program=CLANG, options=COUNTED)


def ran(place: Path, way: Way, *, corpus: Path, leaks: float = 0.0) -> Slice:
    """A process that has come to its end."""
    target = TARGETS["models"]
    write_dictionary(target, place / "words")
    arguments = arguments_of(SECONDS, 1, target.longest, place / "words")
    order = order_of(target, way, RELU, str(place / "slice"), [str(corpus)], arguments, leaks=leaks)
    one, end = Slice(order, way, SECONDS, None), time.monotonic() + 100
    try:
        while not one.poll() and time.monotonic() < end:
            time.sleep(0.1)
        assert one.ended
        assert not one.failed, one.failed
    finally:
        one.close()
    return one


def leaks_by_its_rule(model: Model) -> bool:
    """What `leak` of tests/native/deep.c asks for."""
    operands, (operation, *more) = model.main.operands, model.main.operations
    shape, taken = operands[operation.outputs[0]].dimensions, operands[operation.inputs[0]]
    quantised = taken.type == OperandType.TENSOR_QUANT8_ASYMM
    relu = operation.type == OperationType.RELU
    return not more and relu and quantised and len(shape) == 4 and (shape[0], shape[3]) == (3, 2)


def leaking_input() -> bytes:
    rng = random.Random(7)
    for _ in range(20_000):
        data = rng.randbytes(160)
        attempt = valid_graph(BytesSource(data), RELU)
        if attempt is not None and leaks_by_its_rule(attempt.case.models[0]):
            return data
    raise AssertionError("seed 7 gives no such graph any more; take another")


def test_the_suites_own_changes_reach_the_fuzzer_of_a_python_driver(tmp_path: Path) -> None:
    """The fuzzer looks for them once, when it is loaded."""
    (tmp_path / "corpus").mkdir()
    done = ran(tmp_path, way_of("reference", isolated=False), corpus=tmp_path / "corpus")
    assert done.reading.inputs > 50
    assert done.reading.changes > done.reading.inputs / 2


def test_they_reach_that_of_a_native_driver(leaking: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    done = ran(tmp_path, way_of(f"{leaking},validation=suite", isolated=False), corpus=tmp_path / "corpus")
    assert done.reading.inputs > 50
    assert done.reading.changes > done.reading.inputs / 2


def test_bytes_that_a_native_driver_keeps_are_a_leak(leaking: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "one").write_bytes(leaking_input())
    (tmp_path / "corpus" / "other").write_bytes(b"\x01" * 20)
    done = ran(tmp_path, way_of(f"{leaking},validation=suite", isolated=False), corpus=tmp_path / "corpus", leaks=20.0)
    found = [suspect for suspect in done.suspects if suspect.cause == "LEAK"]
    assert [(suspect.verdict, suspect.data) for suspect in found] == [("FAIL", leaking_input())]
    assert found[0].message.startswith("each run keeps 100 bytes: ")
    assert set(done.checked) == {"one", "other"}


def test_what_is_made_smaller_still_breaks_the_same_rule(tmp_path: Path) -> None:
    """Some smaller model always breaks some rule; of a driver that takes all of them it would be the same."""
    rng = random.Random(11)
    folders = 0
    for _ in range(200):
        data = rng.randbytes(160)
        attempt = TARGETS["mutants"].decode(data, TAKING)
        if attempt is None or not attempt.case.negative:
            continue
        rule = attempt.case.origin.rule
        folder = tmp_path / str(folders)
        folder.mkdir()
        (folder / INPUT).write_bytes(data)
        text = f"query accepted what breaks {rule}"
        driver = "faulty,fault=accept.query"
        order = TriageOrder(
            str(folder), "mutants", driver, TAKING.to_json(), "FAIL", "ACCEPTED", "query", text, "", 10.0
        )
        Triage(order).run()
        row = json.loads((folder / RESULT).read_text())["record"]
        assert (row["verdict"], row["cause"], row["rule"]) == ("FAIL", "ACCEPTED", rule), row["message"]
        folders += 1
        if folders == 4:
            return
    raise AssertionError("seed 11 gives too few negative cases")
