"""The small parts of the contract: logging, traces, graph dumps, fences, memory, queries on sizes and types."""

from __future__ import annotations

import io
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal import trace, vlog
from nnhal.errors import DriverError
from nnhal.fences import SharedFence, SyncFence
from nnhal.graph_dump import to_dot
from nnhal.memory import BytesMemory, HardwareBuffer, MappedFile, Memory, SharedMemory
from nnhal.model import (
    DataLocation,
    Model,
    Operand,
    Operation,
    combine_dimensions,
    constant_bytes,
    constant_value,
    count_consumers,
    is_known,
    is_tensor,
    operand_size,
    size_overflows,
)
from nnhal.operations import operations
from nnhal.types import OPERAND_TYPES, ErrorStatus, OperandLifeTime, OperandType, info, is_extension
from tests.small_models import F32, LIFE, addition, branching, channels, edit, in_pool, looping, operation


def test_the_names_of_the_package_are_there() -> None:
    for name in nnhal.__all__:
        assert getattr(nnhal, name) is not None
    assert nnhal.validate_model is nnhal.validate.validate_model
    nnhal.validate_model(addition(), nnhal.FeatureLevel.FL1)


# --- vlog -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    yield stream
    vlog.configure("")


@pytest.mark.parametrize(
    ("setting", "tags"),
    [
        ("", set()),
        ("driver", {"driver"}),
        ("compilation execution", {"compilation", "execution"}),
        ("cpuexe,manager", {"cpuexe", "manager"}),
        ("model:driver, execution", {"model", "driver", "execution"}),
        ("all", {"compilation", "cpuexe", "driver", "execution", "manager", "model"}),
        ("1", {"compilation", "cpuexe", "driver", "execution", "manager", "model"}),
    ],
)
def test_tags_of_a_setting(setting: str, tags: set[str], log: io.StringIO) -> None:
    assert vlog.configure(setting, log) == tags
    for tag in vlog.TAGS:
        assert vlog.is_on(tag) == (tag in tags)
        vlog.vlog(tag, "hello")
    lines = log.getvalue().splitlines()
    assert [line.split()[2].rstrip(":") for line in lines] == [tag for tag in vlog.TAGS if tag in tags]
    assert all(line.endswith(": hello") for line in lines)


def test_unknown_tags_give_one_warning(log: io.StringIO) -> None:
    with pytest.warns(UserWarning, match="unknown log tags") as caught:
        assert vlog.configure("driver,nonsense:foo", log) == {"driver"}
    assert len(caught) == 1
    assert str(caught[0].message).startswith("unknown log tags foo, nonsense; known are compilation, cpuexe")


def test_a_message_is_not_made_while_its_tag_is_off(log: io.StringIO) -> None:
    vlog.configure("driver", log)
    vlog.vlog("model", lambda: pytest.fail("made"))
    vlog.vlog("driver", lambda: "made")
    assert log.getvalue().endswith("driver: made\n")


def test_the_environment_sets_tags(monkeypatch: pytest.MonkeyPatch, log: io.StringIO) -> None:
    monkeypatch.setenv("NNCTS_VLOG", "cpuexe")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vlog.configure(None, log) == {"cpuexe"}


# --- trace ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "trace.json"
    trace.start(path)
    yield path
    trace.stop()


def test_spans_nest_and_name_their_thread(traced: Path) -> None:
    def work() -> None:
        with trace.span("inner", "driver", rows=3):
            trace.instant("now")

    with trace.span("outer", "harness"):
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        thread.join()
        trace.counter("memory", rss=1.5)
    trace.stop()
    events = trace.read(traced)
    plain = [(e["ph"], e["name"]) for e in events if e["ph"] != "M"]
    assert plain == [
        ("B", "outer"), ("B", "inner"), ("i", "now"), ("E", "inner"), ("C", "memory"), ("E", "outer"),
    ]  # fmt: skip
    times = [e["ts"] for e in events if e["ph"] != "M"]
    assert times == sorted(times)  # type: ignore[type-var]
    inner = next(e for e in events if e["name"] == "inner")
    outer = next(e for e in events if e["name"] == "outer")
    assert inner["args"] == {"rows": 3}
    assert inner["cat"] == "driver"
    assert inner["tid"] != outer["tid"]
    assert inner["pid"] == outer["pid"] == os.getpid()
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}  # type: ignore[index]
    assert names[inner["tid"]] == "worker"


def test_a_span_that_raises_ends(traced: Path) -> None:
    with pytest.raises(KeyError), trace.span("bad"):
        raise KeyError
    assert [e["ph"] for e in trace.read(traced) if e["ph"] != "M"] == ["B", "E"]


def test_nothing_is_written_while_it_is_off(tmp_path: Path) -> None:
    assert not trace.is_on()
    with trace.span("nothing"):
        trace.instant("nothing")
        trace.counter("nothing", value=1)
    assert not list(tmp_path.iterdir())


DIES = """
import os, signal
from nnhal import trace
with trace.span("quoted \\"name\\"", "driver"):
    with trace.span("second"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_file_is_whole_after_processes_died_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    environment = {**os.environ, "NNCTS_TRACE": str(path), "PYTHONPATH": str(Path(nnhal.__path__[0]).parent)}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", DIES], env=environment, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
    text = path.read_text()
    assert text.startswith("[\n")
    assert all(json.loads(line.rstrip(",")) for line in text.splitlines()[1:])
    events = [e for e in trace.read(path) if e["ph"] == "B"]
    assert [e["name"] for e in events] == ['quoted "name"', "second"] * 2
    assert len({e["pid"] for e in events}) == 2


def test_a_trace_that_cannot_be_written_is_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NNCTS_TRACE", str(tmp_path / "missing" / "trace.json"))
    with pytest.warns(UserWarning, match=r"NNCTS_TRACE=.*trace\.json is ignored: No such file or directory"):
        trace.start_from_environment()
    assert not trace.is_on()


# --- graph dump -------------------------------------------------------------------------------------------------------

STATEMENT = re.compile(
    r'\s*(digraph "([^"\\]|\\.)*" \{|subgraph cluster_\d+ \{|\}|\w+=("([^"\\]|\\.)*"|\w+);|'
    r'\w+( -> \w+)?( \[(\w+=(\w+|"([^"\\]|\\.)*")(, )?)+\])?;)'
)


def statements(text: str) -> list[str]:
    lines = text.splitlines()
    for line in lines:
        assert STATEMENT.fullmatch(line), line
    assert text.count("{") - sum(line.count("{") - line.rstrip().endswith("{") for line in lines) == sum(
        line.strip() == "}" for line in lines
    )
    return lines


@pytest.mark.parametrize("model", [addition(), channels(), branching(), looping()])
def test_every_operand_and_operation_is_drawn(model: Model) -> None:
    text = to_dot(model, 'a "quoted" title')
    lines = statements(text)
    graphs = [("main", model.main), *((f"graph{i}", g) for i, g in enumerate(model.referenced))]
    for prefix, graph in graphs:
        for index, operand in enumerate(graph.operands):
            drawn = [line for line in lines if f"  {prefix}_operand{index} [" in line]
            assert len(drawn) == 1
            assert OperandType(operand.type).name in drawn[0]
            assert OperandLifeTime(operand.lifetime).name in drawn[0]
        for number, step in enumerate(graph.operations):
            assert sum(f"  {prefix}_operation{number} [" in line for line in lines) == 1
            for place, index in enumerate(step.inputs):
                assert f'  {prefix}_operand{index} -> {prefix}_operation{number} [label="{place}"];' in text
            for place, index in enumerate(step.outputs):
                assert f'  {prefix}_operation{number} -> {prefix}_operand{index} [label="{place}"];' in text
    assert text.count("subgraph cluster_") == len(model.referenced)


def test_shapes_constants_and_quantisation_are_told() -> None:
    model = addition((2, 0), OperandType.TENSOR_QUANT8_ASYMM, 0.5)
    text = to_dot(edit(model, 0, zero_point=7))
    assert "TENSOR_QUANT8_ASYMM[2, ?]" in text
    assert "scale 0.5, zero point 7" in text
    assert "INT32\\nCONSTANT_COPY\\n= 0" in text
    assert "[unknown rank]" in to_dot(addition(()))
    assert "dimension 1 scales 0.5, 0.25, 2" in to_dot(channels())
    values = np.arange(20, dtype=np.float32).tobytes()
    place = DataLocation(0, 0, 80)
    constant = edit(model, 1, type=F32, dimensions=(20,), lifetime=LIFE.CONSTANT_COPY, location=place, scale=0.0)
    assert "= 0, 1, 2, 3, 4, 5, 6, 7, ..." in to_dot(replace(constant, operand_values=values))


def test_broken_models_are_drawn_too() -> None:
    model = operation(addition(), 0, inputs=(0, 99, -1), type=0x20001)
    model = edit(edit(model, 1, type=0x10002, lifetime=9), 2, location=DataLocation(0, 100, 4))
    text = to_dot(model)
    statements(text)
    assert "operand 99 does not exist" in text
    assert "operation 0x20001" in text
    assert "type 0x10002" in text
    assert "lifetime 9" in text


# --- fences -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [SyncFence, SharedFence.create])
def test_a_fence_is_signalled_once(make: type[SyncFence]) -> None:
    fence = make()
    assert fence.status is None
    assert not fence.wait(0)
    assert not fence.wait(1_000_000)
    fence.signal()
    fence.signal(ErrorStatus.GENERAL_FAILURE)
    assert fence.status == ErrorStatus.NONE
    assert fence.wait(None)
    assert fence.wait(0)
    fence.close()
    fence.close()


@pytest.mark.parametrize("make", [SyncFence, SharedFence.create])
def test_a_fence_that_ends_in_error_raises(make: type[SyncFence]) -> None:
    fence = make()
    waiting: list[object] = []

    def wait() -> None:
        try:
            waiting.append(fence.wait(10_000_000_000))
        except DriverError as error:
            waiting.append(error.status)

    thread = threading.Thread(target=wait)
    thread.start()
    fence.signal(ErrorStatus.MISSED_DEADLINE_TRANSIENT)
    thread.join()
    assert waiting == [ErrorStatus.MISSED_DEADLINE_TRANSIENT]
    assert fence.status == ErrorStatus.MISSED_DEADLINE_TRANSIENT
    fence.close()


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [BytesMemory, SharedMemory.create, HardwareBuffer.allocate], ids=["bytes", "shared", "hardware"]
)
def test_pools_are_zeroed_and_writable(make: type[BytesMemory]) -> None:
    pool: Memory = make(5)
    assert pool.size == 5
    assert bytes(pool.view()) == bytes(5)
    pool.view()[1:3] = b"ab"
    assert bytes(pool.view()) == b"\0ab\0\0"
    view = pool.view()
    pool.close()
    pool.close()
    assert bytes(view) == b"\0ab\0\0"


def test_closed_pools_and_empty_ones() -> None:
    pool = SharedMemory.create(4)
    pool.close()
    with pytest.raises(ValueError, match="the ashmem pool is closed"):
        pool.view()
    assert SharedMemory.create(0).size == 1  # zero-sized outputs get a byte


def test_mapped_files_start_at_any_offset(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    content = bytes(range(256)) * 40
    path.write_bytes(content)
    for offset in (0, 1, mmap.ALLOCATIONGRANULARITY, mmap.ALLOCATIONGRANULARITY + 7):
        pool = MappedFile.open(path, offset=offset, size=100)
        assert bytes(pool.view()) == content[offset : offset + 100]
        assert pool.view().readonly
        pool.close()
    assert MappedFile.open(path, offset=10).size == len(content) - 10
    writable = MappedFile.open(path, writable=True)
    writable.view()[0] = 99
    writable.close()
    assert path.read_bytes()[0] == 99


# --- queries ----------------------------------------------------------------------------------------------------------


def test_sizes_of_elements_and_operands() -> None:
    sizes = {"FLOAT32": 4, "INT32": 4, "UINT32": 4, "BOOL": 1, "FLOAT16": 2, "SUBGRAPH": 0, "OEM": 0}
    sizes |= {"TENSOR_FLOAT32": 4, "TENSOR_INT32": 4, "TENSOR_FLOAT16": 2, "TENSOR_BOOL8": 1, "TENSOR_OEM_BYTE": 1}
    sizes |= dict.fromkeys((t.name for t in OperandType if "QUANT8" in t.name), 1)
    sizes |= dict.fromkeys((t.name for t in OperandType if "QUANT16" in t.name), 2)
    assert {t.name: info(t).size for t in OperandType} == sizes
    for kind in OperandType:
        tensor = kind.name.startswith("TENSOR")
        assert is_tensor(kind) == tensor
        assert operand_size(Operand(kind, (2, 3) if tensor else ())) == sizes[kind.name] * (6 if tensor else 1)
        assert OPERAND_TYPES[kind].dtype.itemsize == (sizes[kind.name] or 1)
    assert operand_size(Operand(F32)) == 0
    assert operand_size(Operand(F32, (2, 0))) == 0
    assert operand_size(Operand(F32, (2, 0)), (2, 5)) == 40
    assert operand_size(Operand(0x10001, (4,))) == 0
    assert operand_size(Operand(77, (4,))) == 0
    assert not size_overflows(Operand(OperandType.TENSOR_BOOL8, (2**16, 2**16 - 1)))
    assert size_overflows(Operand(OperandType.TENSOR_BOOL8, (2**16, 2**16)))


def test_extension_codes() -> None:
    assert is_extension(0x10000)
    assert is_extension(-1)
    assert not is_extension(0xFFFF)
    assert is_tensor(0x10000)
    with pytest.raises(KeyError):
        info(99)


def test_partial_dimensions() -> None:
    assert is_known((1, 2))
    assert not is_known((1, 0))
    assert not is_known(())
    assert combine_dimensions((), (2, 0)) == (2, 0)
    assert combine_dimensions((2, 0), (0, 3)) == (2, 3)
    assert combine_dimensions((2, 0), (3, 0)) is None
    assert combine_dimensions((2,), (2, 1)) is None
    assert combine_dimensions((), ()) == ()


def test_constants_are_read_where_they_are() -> None:
    pool = BytesMemory(np.arange(4, dtype=np.int32).tobytes())
    model = in_pool(addition(), pool)
    assert constant_value(model, model.main.operands[2]) == 1
    assert constant_value(model, model.main.operands[2]).shape == ()
    with pytest.raises(ValueError, match="TEMPORARY_VARIABLE is not a constant"):
        constant_bytes(model, model.main.operands[3])
    for place in (DataLocation(0, 13, 4), DataLocation(1, 0, 4), DataLocation(0, -1, 4)):
        with pytest.raises(ValueError, match=r"lies outside its pool|refers to pool"):
            constant_bytes(model, replace(model.main.operands[2], location=place))


def test_consumers_are_the_reads_of_operations() -> None:
    graph = addition().main
    assert [o.number_of_consumers for o in graph.operands] == [2, 1, 2, 1, 0]
    twice = replace(graph, operations=(Operation(0, (0, 0, 2), (3,)),))
    assert [o.number_of_consumers for o in count_consumers(twice).operands] == [2, 0, 1, 0, 0]


def test_signatures_are_found_by_types() -> None:
    add = operations()[0]
    found = add.match([OperandType.TENSOR_FLOAT32] * 2 + [OperandType.INT32], [OperandType.TENSOR_FLOAT32])
    assert found is not None
    assert found.row.id == "float32"
    assert add.match([OperandType.TENSOR_FLOAT32] * 3, [OperandType.TENSOR_FLOAT32]) is None
    assert add.match([OperandType.TENSOR_FLOAT32], [OperandType.TENSOR_FLOAT32]) is None
