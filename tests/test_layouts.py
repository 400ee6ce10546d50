"""Where the values of an execution lie, in every layout, and that bytes around them are still watched."""

from __future__ import annotations

import mmap
from dataclasses import replace

import numpy as np
import pytest

from conformance.buffer_steps import addition, binary
from conformance.sketch import tensor
from harness.guards import Guarded
from harness.layouts import arrange, pool_with
from harness.steps import KINDS, Layout
from nnhal.memory import HardwareBuffer, MappedFile, Memory, SharedMemory
from nnhal.model import BufferToken
from nnhal.types import OperationType

MADE = addition()
SIZE = 24
KIND = {"ashmem": SharedMemory, "hardware_buffer": HardwareBuffer, "opaque": HardwareBuffer}


def arranged(layout: Layout, **tokens: int) -> Guarded:
    named = {(name.startswith("output"), int(name[-1])): token for name, token in tokens.items()}
    values = [None if (False, n) in named else value for n, value in enumerate(MADE.inputs)]
    return arrange(MADE.model, values, [SIZE], layout, named)


def seen(guarded: Guarded, number: int, output: bool = False) -> memoryview:
    """The bytes of an argument as a driver finds them."""
    argument = (guarded.request.outputs if output else guarded.request.inputs)[number]
    pool = guarded.request.pools[argument.location.pool_index]
    assert isinstance(pool, Memory)
    place = argument.location
    return pool.view()[place.offset : place.offset + place.length] if place.length else pool.view()


LAYOUTS = [
    *(Layout(kind) for kind in KINDS),
    *(Layout(kind, tight=True) for kind in KINDS),
    Layout(separate=True),
    Layout(shift=3),
    Layout("mmap_fd_part", shift=1, separate=True, tight=True),
    Layout(together=True),
    Layout(together=True, tight=True),
    Layout(padding=5),
    Layout("opaque", together=True),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_driver_finds_the_inputs_and_its_results_are_found(layout: Layout) -> None:
    guarded = arranged(layout)
    for number, value in enumerate(MADE.inputs):
        assert value is not None
        assert bytes(seen(guarded, number)) == value.tobytes()
        assert guarded.request.inputs[number].dimensions == (2, 3)
    result = np.arange(6, dtype=np.float32).reshape(2, 3)
    seen(guarded, 0, output=True)[:] = result.tobytes()
    assert np.array_equal(guarded.output(0, np.dtype(np.float32), (2, 3)), result)  # type: ignore[arg-type]
    assert guarded.findings() == []


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x.kind != "mmap_fd_read_only"])
def test_what_is_written_to_an_input_is_seen(layout: Layout) -> None:
    guarded = arranged(layout)
    view = seen(guarded, 1)
    view[5] ^= 1
    assert [kind for kind, _ in guarded.findings()] == ["INPUT_WRITTEN"]


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if not x.tight and x.kind != "opaque"])
def test_what_is_written_behind_an_output_and_its_padding_is_seen(layout: Layout) -> None:
    guarded = arranged(layout)
    place = guarded.request.outputs[0].location
    pool = guarded.request.pools[place.pool_index]
    assert isinstance(pool, Memory)
    for behind in range(place.padding):
        pool.view()[place.offset + place.length + behind] ^= 1
    assert guarded.findings() == []
    pool.view()[place.offset + place.length + place.padding] ^= 1
    ((kind, text),) = guarded.findings()
    assert (kind, text[:23]) == ("OVERRUN", "1 bytes written outside")


def test_pools_by_layout() -> None:
    def pools(layout: Layout) -> list[int]:
        request = arranged(layout).request
        return [a.location.pool_index for a in (*request.inputs, *request.outputs)]

    assert pools(Layout()) == [0, 0, 1]
    assert pools(Layout(separate=True)) == [0, 1, 2]
    assert pools(Layout(together=True)) == [0, 0, 0]
    assert pools(Layout("opaque")) == [0, 1, 2]


def test_places_by_layout() -> None:
    def offsets(layout: Layout) -> list[int]:
        request = arranged(layout).request
        return [a.location.offset for a in (*request.inputs, *request.outputs)]

    assert all(offset % 64 == 0 for offset in offsets(Layout()))
    assert {offset % 64 for offset in offsets(Layout(shift=3))} == {3}
    tight = arranged(Layout(tight=True, separate=True)).request
    sizes = [pool.size for pool in tight.pools if isinstance(pool, Memory)]
    assert (offsets(Layout(tight=True, separate=True)), sizes) == ([0, 0, 0], [SIZE] * 3)
    padded = arranged(Layout(tight=True, separate=True, padding=61)).request
    assert [pool.size for pool in padded.pools if isinstance(pool, Memory)] == [SIZE + 61] * 3
    opaque = arranged(Layout("opaque", shift=3, padding=9)).request
    assert {(a.location.offset, a.location.length, a.location.padding) for a in opaque.inputs} == {(0, 0, 0)}


def test_kinds_of_pools() -> None:
    for kind in KINDS:
        pool = pool_with(kind, b"abc")
        assert isinstance(pool, KIND.get(kind, MappedFile))
        assert bytes(pool.view()[:3]) == b"abc"
        assert pool.size == 3
        assert pool.view().readonly == (kind == "mmap_fd_read_only")
    part = pool_with("mmap_fd_part", b"abc")
    assert isinstance(part, MappedFile)
    assert part.offset > mmap.PAGESIZE
    assert part.offset % mmap.PAGESIZE
    blob, opaque = pool_with("hardware_buffer", b"a"), pool_with("opaque", b"a")
    assert isinstance(blob, HardwareBuffer)
    assert isinstance(opaque, HardwareBuffer)
    assert (blob.blob, opaque.blob) == (True, False)
    with pytest.raises(ValueError, match="no kind of pool 'wool'"):
        pool_with("wool", b"a")


def test_inputs_of_a_pool_that_cannot_be_written_and_outputs_that_can() -> None:
    guarded = arranged(Layout("mmap_fd_read_only"))
    assert seen(guarded, 0).readonly
    assert not seen(guarded, 0, output=True).readonly


@pytest.mark.parametrize(
    ("second", "apart"),
    [((0, 12), 0), ((4, 8), 16), ((8, 20), 32), ((11, 23), 44)],
)
def test_inputs_lie_on_one_another_as_far_as_they_hold_the_same(second: tuple[int, int], apart: int) -> None:
    data = np.arange(24, dtype=np.float32)
    values = (data[:12], data[slice(*second)])
    made = binary(OperationType.ADD, *(tensor(value.reshape(-1, 4)) for value in values))
    guarded = arrange(made.model, made.inputs, [48], Layout(overlap=True), {})
    first, other = (argument.location for argument in guarded.request.inputs)
    assert first.pool_index == other.pool_index
    assert other.offset - first.offset == apart
    assert [bytes(seen(guarded, n)) for n in (0, 1)] == [value.tobytes() for value in values]
    assert guarded.findings() == []


def test_inputs_with_nothing_in_common_lie_apart() -> None:
    data = np.arange(12, dtype=np.float32).reshape(2, 6)
    made = binary(OperationType.ADD, tensor(data), tensor(data + 100))
    guarded = arrange(made.model, made.inputs, [48], Layout(overlap=True), {})
    first, other = (argument.location for argument in guarded.request.inputs)
    assert other.offset >= first.offset + first.length + 64


def test_buffers_stand_behind_the_pools_and_are_taken_whole() -> None:
    request = arranged(Layout(), input1=7, output0=9).request
    assert [type(pool).__name__ for pool in request.pools] == ["SharedMemory", "BufferToken", "BufferToken"]
    places = [a.location for a in (*request.inputs, *request.outputs)]
    assert [request.pools[p.pool_index] for p in places[1:]] == [BufferToken(7), BufferToken(9)]
    assert {(p.offset, p.length) for p in places[1:]} == {(0, 0)}
    both = arranged(Layout(), input0=7, input1=7).request
    assert [pool for pool in both.pools if isinstance(pool, BufferToken)] == [BufferToken(7)]


def test_what_a_request_says_of_dimensions() -> None:
    assert [a.dimensions for a in arranged(Layout(input_dimensions=False)).request.inputs] == [(), ()]
    told = ((5,), (0, 3))
    assert tuple(a.dimensions for a in arranged(Layout(input_shapes=told)).request.inputs) == told
    out = arranged(replace(Layout(), output_dimensions=((2, 0),), output_bytes=(3,))).request.outputs[0]
    assert (out.dimensions, out.location.length) == ((2, 0), 3)
