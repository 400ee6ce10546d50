"""Memory in layouts of every kind: where values lie, what may be touched, and what is found where nothing may."""

from __future__ import annotations

import numpy as np
import pytest

from harness.layouts import arrange
from harness.requests import CHANGES, edited
from harness.steps import Edit, Layout
from nnhal.buffers import read_inputs, write_outputs
from nnhal.errors import DriverError
from nnhal.memory import HardwareBuffer, MappedFile, Memory, SharedMemory
from nnhal.model import BufferToken, RequestArgument
from nnhal.types import FL8
from nnhal.validate import request_violations, validate_request
from tests.add_model import add_model

MODEL = add_model((3,))
INPUTS = (np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32))
LENGTHS = (12,)
KINDS = {"ashmem": SharedMemory, "mmap_fd": MappedFile, "hardware_buffer": HardwareBuffer}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [{}, {"separate": True}, {"shift": 1}, {"padding": 8}, {"input_dimensions": False}])
def test_values_are_where_the_request_says(kind: str, layout: dict[str, object]) -> None:
    guarded = arrange(MODEL, INPUTS, LENGTHS, Layout(kind, **layout), {})  # type: ignore[arg-type]
    assert all(isinstance(pool, KINDS[kind]) for pool in guarded.request.pools)
    assert not request_violations(guarded.request, MODEL, FL8)
    found = read_inputs(MODEL, guarded.request)
    assert [value.tolist() for value in found if value is not None] == [[1, 2, 3], [4, 5, 6]]
    write_outputs(MODEL, guarded.request, [np.array([7, 8, 9], np.float32)])
    assert guarded.output(0, np.dtype(np.float32), (3,)) is not None
    assert guarded.output(0, np.dtype(np.float32), (3,)).tolist() == [7, 8, 9]  # type: ignore[union-attr]
    assert guarded.findings() == []
    assert len(guarded.request.pools) == (3 if layout.get("separate") else 2)
    assert [a.location.offset % 64 for a in guarded.request.inputs] == [layout.get("shift", 0)] * 2
    assert [a.dimensions for a in guarded.request.inputs] == [() if "input_dimensions" in layout else (3,)] * 2


def pool_of(request_pool: object) -> memoryview:
    assert isinstance(request_pool, Memory)
    return request_pool.view()


def test_padding_may_be_touched_and_what_is_behind_it_may_not() -> None:
    guarded = arrange(MODEL, INPUTS, LENGTHS, Layout(padding=8), {})
    place = guarded.request.inputs[0].location
    view = pool_of(guarded.request.pools[place.pool_index])
    view[place.offset + 12 : place.offset + 20] = bytes(8)
    assert guarded.findings() == []
    view[place.offset + 20] = 0
    assert [kind for kind, _ in guarded.findings()] == ["OVERRUN"]


def test_inputs_that_lie_on_one_another() -> None:
    same = (INPUTS[0], INPUTS[0].copy())
    guarded = arrange(MODEL, same, LENGTHS, Layout(overlap=True), {})
    assert guarded.request.inputs[0].location == guarded.request.inputs[1].location
    apart = arrange(MODEL, INPUTS, LENGTHS, Layout(overlap=True), {})
    assert apart.request.inputs[0].location != apart.request.inputs[1].location


def test_outputs_of_another_length_and_dimensions() -> None:
    layout = Layout(output_bytes=(5,), output_dimensions=((0,),))
    guarded = arrange(MODEL, INPUTS, LENGTHS, layout, {})
    output = guarded.request.outputs[0]
    assert (output.location.length, output.dimensions) == (5, (0,))


def test_arguments_in_driver_managed_buffers() -> None:
    guarded = arrange(MODEL, (None, INPUTS[1]), LENGTHS, Layout(), {(False, 0): 7, (True, 0): 9})
    request = guarded.request
    assert request.pools[1:] == (BufferToken(7), BufferToken(9))
    assert (request.inputs[0].location.pool_index, request.outputs[0].location.pool_index) == (1, 2)
    assert request.inputs[0].location.length == 0
    assert guarded.outputs == [None]
    assert not request_violations(request, MODEL, FL8)


def test_other_values_in_the_same_places() -> None:
    guarded = arrange(MODEL, INPUTS, LENGTHS, Layout(), {})
    guarded.refill((INPUTS[1], INPUTS[0]))
    found = read_inputs(MODEL, guarded.request)
    assert [value.tolist() for value in found if value is not None] == [[4, 5, 6], [1, 2, 3]]
    assert guarded.findings() == []


@pytest.mark.parametrize(
    "edit",
    [
        Edit("remove", 1),
        Edit("remove", output=True),
        Edit("add"),
        Edit("past_pool"),
        Edit("past_pool", output=True),
        Edit("wrap"),
        Edit("longer", value=(1,)),
        Edit("longer", value=(-1,), output=True),
        Edit("offset", value=(-1,)),
        Edit("offset", value=(2**32,)),
        Edit("length", value=(0,)),
        Edit("length", value=(2**31,)),
        Edit("padding", value=(2**31,)),
        Edit("pool_index", value=(-1,)),
        Edit("foreign_pool"),
        Edit("dimensions", value=(3, 1)),
        Edit("dimensions", value=(4,)),
        Edit("dimensions", value=(0,)),
        Edit("without_value", value=(0,)),
        Edit("without_value", value=(1,)),
        Edit("token", value=(0,)),
        Edit("no_pools"),
    ],
    ids=str,
)
def test_edits_break_the_request_and_leave_the_rest(edit: Edit) -> None:
    request = arrange(MODEL, INPUTS, LENGTHS, Layout(), {}).request
    broken = edited(request, (edit,))
    assert broken != request
    assert request_violations(broken, MODEL, FL8)
    with pytest.raises(DriverError):
        validate_request(broken, MODEL, FL8)
    assert not request_violations(request, MODEL, FL8)


def test_every_change_is_tried_here() -> None:
    tried = {"remove", "add", "past_pool", "wrap", "longer", "offset", "length", "padding", "pool_index", "token"}
    tried |= {"foreign_pool", "dimensions", "without_value", "no_pools"}
    assert set(CHANGES) >= tried


def test_a_valueless_argument_has_no_place() -> None:
    guarded = arrange(MODEL, (None, INPUTS[1]), LENGTHS, Layout(), {})
    assert guarded.request.inputs[0] == RequestArgument(has_no_value=True)
