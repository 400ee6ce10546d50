"""The wire form: everything comes back equal, nothing malformed gets further than one ValueError."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal import device, wire
from nnhal.channel import Channel, Closed, Late
from nnhal.fences import SharedFence
from nnhal.guarded import GuardedMemory
from nnhal.memory import BytesMemory, HardwareBuffer, MappedFile, Memory, SharedMemory
from nnhal.model import (
    BufferToken,
    ChannelQuant,
    DataLocation,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    Operation,
    Request,
    RequestArgument,
    Subgraph,
    Translation,
)
from nnhal.parts import Parts
from nnhal.types import ErrorStatus, ExecutionMode, OperandLifeTime, OperandType, Priority
from tests.add_model import add_model, add_request

RICH = Model(
    Subgraph(
        (
            Operand(
                OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
                (2, 3),
                0.0,
                0,
                OperandLifeTime.CONSTANT_REFERENCE,
                DataLocation(0, 4, 6, 2),
                ChannelQuant(1, (0.5, 0.25, 1e-30)),
            ),
            Operand(0x10007, (0, -5), math.inf, -(2**40), extra_params=b"\x00vendor"),
        ),
        (Operation(0x10001, (0,), (1,)), Operation(-1, (), ())),
        (),
        (1,),
    ),
    referenced=(Subgraph((), (), (), ()),),
    operand_values=bytes(range(256)),
    relax_computation_float32_to_float16=True,
    extension_name_to_prefix=(ExtensionNameAndPrefix("com.example.ä", 1),),
    translation=Translation(b"artifact", (None, "no kernel")),
)

VALUES = [
    add_model(),
    RICH,
    dataclasses.replace(RICH, translation=Translation(None, ())),
    Request((RequestArgument(has_no_value=True),), (), (BufferToken(7),)),
    device.Capabilities((device.OperandPerformance(OperandType.TENSOR_FLOAT32, device.PerformanceInfo(0.1, 0.2)),)),
    device.ExecutionResult((device.OutputShape((1, 0), False),), device.Timing(None, 5), False),
    device.FencedResult(ErrorStatus.GENERAL_FAILURE, device.Timing(1, 2), device.Timing(3, None)),
    device.Extension("com.example", (device.OperandTypeInformation(1, True, 4),)),
    device.CacheFilesNeeded(1, 32),
    device.BufferRole(0, 1, 0.5),
    device.BufferDesc((1, 2)),
    device.CompilationConfig(
        priority=Priority.HIGH,
        deadline=2**62,
        cache_token=bytes(range(32)),
        compilation_hints=((1, b"x"), (2, b"")),
    ),
    device.ExecutionConfig(True, 5, ((3, b"hint"),), (ExtensionNameAndPrefix("a.b", 2),)),
    device.Traits(frozenset({ExecutionMode.BURST, ExecutionMode.FENCED}), caching=True),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_everything_comes_back_equal(value: object) -> None:
    assert wire.loads(type(value), wire.dumps(value)) == value


def test_every_dataclass_of_the_contract_has_a_wire_form() -> None:
    for kind in wire.KINDS.values():
        wire.encode(tuple[kind, ...], (), Parts())  # type: ignore[valid-type]


def test_types_come_back_as_they_were() -> None:
    back = wire.loads(Model, wire.dumps(RICH))
    assert type(back.main.operands[0].type) is OperandType
    assert type(back.main.operands[1].type) is int
    assert isinstance(back.main.operands[0].extra_params, ChannelQuant)
    assert back.main.operands[1].extra_params == b"\x00vendor"


def test_numpy_scalars_are_taken_and_nan_survives() -> None:
    operand = Operand(OperandType.TENSOR_INT32, (np.int64(2),), np.float32(0.5))  # type: ignore[arg-type]
    assert wire.loads(Operand, wire.dumps(operand)) == Operand(OperandType.TENSOR_INT32, (2,), 0.5)
    back = wire.loads(Operand, wire.dumps(Operand(OperandType.FLOAT32, scale=math.nan)))
    assert math.isnan(back.scale)


def test_a_number_outside_an_enumeration_stays_that_number() -> None:
    config = device.CompilationConfig(preference=9)  # type: ignore[arg-type]
    assert wire.loads(device.CompilationConfig, wire.dumps(config)).preference == 9


def test_a_value_of_the_wrong_type_is_refused_when_written() -> None:
    with pytest.raises(TypeError):
        wire.encode(list[bool], [1, 2], Parts())
    with pytest.raises(TypeError):
        wire.encode(Operand, Operand(1.5), Parts())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a value of the driver interface"):
        wire.dumps({"a": 1})


def test_a_file_holds_the_content_of_every_pool(tmp_path) -> None:
    shared = SharedMemory.create(8)
    shared.view()[:] = b"12345678"
    model = dataclasses.replace(add_model(), pools=(shared, BytesMemory(b"abc"), shared))
    wire.save_model(tmp_path / "model", model)
    back = wire.load_model(tmp_path / "model")
    assert [bytes(pool.view()) for pool in back.pools] == [b"12345678", b"abc", b"12345678"]
    assert back.pools[0] is back.pools[2]
    assert back.main == model.main


def test_a_file_that_is_no_model_is_named(tmp_path) -> None:
    (tmp_path / "bad").write_bytes(b"nonsense and more of it, as long as a header")
    with pytest.raises(ValueError, match=r"bad: malformed wire data"):
        wire.load_model(tmp_path / "bad")
    (tmp_path / "other").write_bytes(wire.dumps(device.Timing()))
    with pytest.raises(ValueError, match="this is no Model"):
        wire.load_model(tmp_path / "other")


def test_another_format_number_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(wire, "FORMAT", 2)
    newer = wire.dumps(add_model())
    monkeypatch.undo()
    with pytest.raises(ValueError, match="wire format 2 is unknown; this version reads 1"):
        wire.loads(Model, newer)


GOOD = wire.dumps(RICH)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_bytes_give_a_model_or_one_value_error(data: st.DataObject) -> None:
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))
    with contextlib.suppress(ValueError):  # nothing else
        wire.loads(Model, bytes(damaged[:cut]))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_random_bytes_give_one_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="malformed wire data"):
        wire.loads(Model, data)


def test_deep_json_gives_a_value_error() -> None:
    head = b"[" * 100_000
    data = wire.HEADER.pack(wire.MAGIC, len(head), 0, 0) + head
    with pytest.raises(ValueError, match="malformed wire data"):
        wire.loads(Model, data)


@pytest.fixture
def ends():
    pair = [Channel(end) for end in socket.socketpair()]
    yield pair
    for channel in pair:
        channel.close()


def carry(ends: list[Channel], hint: object, value: object) -> object:
    parts = Parts()
    body = wire.encode(hint, value, parts)
    ends[0].send(body, parts)
    back, beside = ends[1].receive()
    result = wire.decode(hint, back, beside)  # type: ignore[arg-type]
    beside.close()
    return result


def test_pools_with_a_descriptor_are_the_same_memory_on_the_other_side(ends, tmp_path) -> None:
    (tmp_path / "file").write_bytes(bytes(8192))
    pools: list[Memory] = [
        SharedMemory.create(100),
        MappedFile.open(tmp_path / "file", offset=5000, size=100, writable=True),
        HardwareBuffer.allocate(100),
        HardwareBuffer.allocate(100, blob=False),
    ]
    back = carry(ends, tuple[Memory, ...], tuple(pools))
    assert isinstance(back, tuple)
    assert [type(pool) for pool in back] == [type(pool) for pool in pools]
    assert back[3].blob is False
    for number, (here, there) in enumerate(zip(pools, back, strict=True)):
        there.view()[7] = number + 1
        assert here.view()[7] == number + 1
    assert (tmp_path / "file").read_bytes()[5007] == 2


def test_bytes_pools_are_copied(ends) -> None:
    pool = BytesMemory(b"abc")
    back = carry(ends, Memory, pool)
    assert isinstance(back, BytesMemory)
    back.view()[0] = 0
    assert bytes(pool.view()) == b"abc"


@pytest.mark.parametrize("count", [252, 253, 254, 600])
def test_more_descriptors_than_one_message_carries(ends, count) -> None:
    request = add_request(extra=count - 3)
    for number, pool in enumerate(request.pools[3:]):
        assert isinstance(pool, Memory)
        pool.view()[0] = number % 256
    back = carry(ends, Request, request)
    assert isinstance(back, Request)
    assert len(back.pools) == count
    extras = [pool.view()[0] for pool in back.pools[3:] if isinstance(pool, Memory)]
    assert extras == [number % 256 for number in range(count - 3)]


def test_no_descriptor_is_left_open(ends) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    request = add_request(extra=10)
    carry(ends, Request, request)
    parts = Parts()
    ends[0].send(wire.encode(Request, request, parts), parts)
    ends[1].receive()[1].close()  # nothing was taken from it
    for pool in request.pools:
        assert isinstance(pool, Memory)
        pool.close()
    assert count() == before


def test_a_fence_crosses(ends) -> None:
    fence = SharedFence.create()
    back = carry(ends, SharedFence, fence)
    assert isinstance(back, SharedFence)
    assert back.wait(0) is False
    assert fence.status is None
    back.signal(ErrorStatus.MISSED_DEADLINE_TRANSIENT)
    assert fence.status == ErrorStatus.MISSED_DEADLINE_TRANSIENT
    fence.signal()  # the first word counts
    with pytest.raises(Exception, match="MISSED_DEADLINE_TRANSIENT"):
        fence.wait()


def test_large_messages_and_a_closed_end(ends) -> None:
    data = os.urandom(3 << 20)
    parts = Parts()
    body = wire.encode(bytes, data, parts)
    sender = threading.Thread(target=ends[0].send, args=(body, parts))
    sender.start()
    back, beside = ends[1].receive()
    sender.join()
    assert wire.decode(bytes, back, beside) == data
    ends[0].close()
    with pytest.raises(Closed):
        ends[1].receive()
    with pytest.raises(Closed):
        ends[1].send(None, Parts())


def test_sending_to_somebody_who_does_not_read_ends(ends) -> None:
    parts = Parts()
    body = wire.encode(bytes, bytes(8 << 20), parts)
    with pytest.raises(Late):
        ends[0].send(body, parts, until=0.0)


def test_garbage_on_the_socket_is_a_value_error() -> None:
    near, far = socket.socketpair()
    channel = Channel(near)
    far.send(b"garbage that is longer than any header")
    with pytest.raises(ValueError, match="malformed wire data"):
        channel.receive()
    far.close()
    channel.close()


def test_guarded_memory_shares_its_bytes_and_ends_at_its_pages(ends) -> None:
    pool = GuardedMemory.allocate(100)
    pool.view()[:3] = b"abc"
    back = carry(ends, Memory, pool)
    assert isinstance(back, GuardedMemory)
    assert bytes(back.view()[:3]) == b"abc"
    back.view()[3] = 9
    assert pool.view()[3] == 9
    assert np.frombuffer(back.view(), np.uint8).ctypes.data % os.sysconf("SC_PAGE_SIZE") == 0
    name = f"{np.frombuffer(back.view(), np.uint8).ctypes.data:x}-"
    assert name in Path("/proc/self/maps").read_text()
    back.close()
    assert name not in Path("/proc/self/maps").read_text()
    read_only = carry(ends, Memory, GuardedMemory.allocate(10, read_only=True))
    assert isinstance(read_only, GuardedMemory)
    assert read_only.view().readonly
