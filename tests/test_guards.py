"""Guarded memory: what a driver writes outside its outputs or into its inputs is seen, and what it may write is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from harness.guards import CANARY, INPUTS, OUTPUTS, UNWRITTEN_BYTE, Arena, Guarded, guard
from nnhal.memory import Memory
from nnhal.model import Model
from nnhal.types import Array
from tests.add_model import add_model

A = np.arange(10, dtype=np.float32)
B = np.arange(10, dtype=np.float32)[::-1] / 3
FLOAT = np.dtype(np.float32)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


def guarded(arena: Arena, values: tuple[Array | None, ...] = (A, B), model: Model | None = None) -> Guarded:
    return guard(arena, model or add_model((10,)), values, [40])


def memory(request: Guarded, which: int) -> Array:
    pool = request.request.pools[which]
    assert isinstance(pool, Memory)
    return np.frombuffer(pool.view(), np.uint8)


def test_a_driver_that_writes_where_it_may_is_not_blamed(arena: Arena) -> None:
    made = guarded(arena)
    assert made.findings() == []
    place = made.outputs[0]
    memory(made, OUTPUTS)[place.offset : place.offset + place.length] = 7
    assert made.findings() == []


def test_inputs_are_in_place_with_their_shapes(arena: Arena) -> None:
    made = guarded(arena, (A.reshape(2, 5), B))
    argument = made.request.inputs[0]
    assert argument.dimensions == (2, 5)
    start = argument.location.offset
    assert memory(made, INPUTS)[start : start + 40].tobytes() == A.tobytes()
    assert start % 64 == 0


def test_values_that_are_not_contiguous_are_laid_out_row_by_row(arena: Arena) -> None:
    turned = np.arange(10, dtype=np.float32).reshape(2, 5).T
    made = guarded(arena, (turned, B))
    start = made.request.inputs[0].location.offset
    assert memory(made, INPUTS)[start : start + 40].tobytes() == turned.tobytes()
    assert made.findings() == []


def test_an_output_is_unwritten_at_first_and_read_back_in_a_shape(arena: Arena) -> None:
    made = guarded(arena)
    found = made.output(0, FLOAT, (10,))
    assert found is not None
    assert set(found.tobytes()) == {UNWRITTEN_BYTE}
    place = made.outputs[0]
    memory(made, OUTPUTS)[place.offset : place.offset + 40] = np.frombuffer(A.tobytes(), np.uint8)
    again = made.output(0, FLOAT, (2, 5))
    np.testing.assert_array_equal(again, A.reshape(2, 5))
    assert set(found.tobytes()) == {UNWRITTEN_BYTE}  # a copy


@pytest.mark.parametrize("shape", [(11,), (1 << 40,), (1 << 40, 1 << 40), (-1,), (-1, -1), (2, -5), (-2, -5)])
def test_a_shape_that_does_not_fit_or_is_none(arena: Arena, shape: tuple[int, ...]) -> None:
    assert guarded(arena).output(0, FLOAT, shape) is None


def test_a_shape_with_nothing_in_it(arena: Arena) -> None:
    found = guarded(arena).output(0, FLOAT, (0, 3))
    assert found is not None
    assert found.shape == (0, 3)


@pytest.mark.parametrize(
    ("which", "kind", "place", "words"),
    [
        (OUTPUTS, "output", lambda m: m.outputs[0].offset - 1, "1 bytes before output 0"),
        (OUTPUTS, "output", lambda m: m.outputs[0].offset - CANARY, f"{CANARY} bytes before output 0"),
        (OUTPUTS, "output", lambda m: m.outputs[0].offset + 40, "0 bytes behind the end of output 0"),
        (OUTPUTS, "output", lambda m: m.areas[OUTPUTS].used - 1, "behind the end of output 0"),
        (INPUTS, "input", lambda m: 0, f"{CANARY} bytes before input 0"),
        (INPUTS, "input", lambda m: m.inputs[0].offset + 40, "0 bytes behind the end of input 0"),
        (INPUTS, "input", lambda m: m.inputs[1].offset - 1, "1 bytes before input 1"),
        (INPUTS, "input", lambda m: m.inputs[1].offset + 43, "3 bytes behind the end of input 1"),
    ],
)
def test_a_byte_outside(arena: Arena, which: int, kind: str, place: object, words: str) -> None:
    made = guarded(arena)
    memory(made, which)[place(made)] ^= 0x01  # type: ignore[operator]
    (found,) = made.findings()
    assert found[0] == "OVERRUN"
    assert found[1].startswith("1 bytes written outside, the first ")
    assert words in found[1]


def test_the_first_of_many_bytes_is_told(arena: Arena) -> None:
    made = guarded(arena)
    start = made.outputs[0].offset + 40
    memory(made, OUTPUTS)[start + 4 : start + 12] = 0
    assert made.findings() == [("OVERRUN", "8 bytes written outside, the first 4 bytes behind the end of output 0")]


def test_between_two_outputs(arena: Arena) -> None:
    model = add_model((10,))
    two = replace(model, main=replace(model.main, output_indexes=(3, 3)))
    made = guard(arena, two, (A, B), [40, 24])
    memory(made, OUTPUTS)[made.outputs[1].offset - 2] = 0
    assert "2 bytes before output 1" in made.findings()[0][1]


def test_an_input_that_was_written(arena: Arena) -> None:
    made = guarded(arena)
    place = made.inputs[1]
    assert place is not None
    memory(made, INPUTS)[place.offset + 4 : place.offset + 6] ^= 0xFF
    assert made.findings() == [("INPUT_WRITTEN", "input 1: 2 of 40 bytes changed, the first at 4")]


def test_an_input_written_with_what_it_held_is_not_seen(arena: Arena) -> None:
    made = guarded(arena)
    place = made.inputs[0]
    assert place is not None
    memory(made, INPUTS)[place.offset : place.offset + 40] = np.frombuffer(A.tobytes(), np.uint8)
    assert made.findings() == []


def test_outside_and_into_an_input(arena: Arena) -> None:
    made = guarded(arena)
    memory(made, INPUTS)[made.inputs[0].offset] ^= 1  # type: ignore[union-attr]
    memory(made, OUTPUTS)[0] = 0
    assert [kind for kind, _ in made.findings()] == ["OVERRUN", "INPUT_WRITTEN"]


def test_an_omitted_input_has_no_place_and_the_others_keep_their_numbers(arena: Arena) -> None:
    made = guarded(arena, (None, B))
    assert made.request.inputs[0].has_no_value
    place = made.inputs[1]
    assert place is not None
    memory(made, INPUTS)[place.offset + 40] = 0
    assert made.findings()[0][1].endswith("0 bytes behind the end of input 1")


def test_memory_of_inputs_that_are_all_omitted(arena: Arena) -> None:
    made = guarded(arena, (None, None))
    assert made.findings() == []
    memory(made, INPUTS)[9] = 0
    assert made.findings() == [("OVERRUN", "1 bytes written where there is no input, the first at 9")]


def test_an_output_of_unknown_size_gets_a_byte(arena: Arena) -> None:
    made = guard(arena, add_model((10,)), (A, B), [0])
    assert made.request.outputs[0].location.length == 1


def test_an_arena_forgets_the_case_before(arena: Arena) -> None:
    first = guarded(arena)
    memory(first, OUTPUTS)[:] = 1
    memory(first, INPUTS)[:] = 2
    second = guarded(arena)
    assert second.findings() == []
    found = second.output(0, FLOAT, (10,))
    assert found is not None
    assert set(found.tobytes()) == {UNWRITTEN_BYTE}
    assert second.request.pools[0] is first.request.pools[0]


def test_an_arena_grows(arena: Arena) -> None:
    first = guarded(arena)
    large = np.zeros(1 << 20, np.float32)
    second = guard(arena, add_model((1 << 20,)), (large, large), [large.nbytes])
    assert second.findings() == []
    pools = [p for p in second.request.pools if isinstance(p, Memory)]
    assert min(pool.size for pool in pools) > large.nbytes
    assert second.request.pools[0] is not first.request.pools[0]
