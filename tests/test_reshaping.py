from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import FL4, FL8, Array, OperandType
from opset.call import Call, int32_tensor, scalar
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.graph import model_of
from opset.reshaping import EXPAND_DIMS, RANK, RESHAPE, SQUEEZE, TRANSPOSE
from opset.source import SeededSource
from opset.validation import violations
from opset.values import Values
from tests.judging import complaints_on_variants, detection, draws, noticed

DEFINITIONS = (RESHAPE, SQUEEZE, EXPAND_DIMS, TRANSPOSE)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]


def numbers(call: Call, name: str) -> list[int]:
    return call[name].value.reshape(-1).tolist()


def by_loops(call: Call) -> tuple[list[int], list[object]]:
    """Dimensions and flat values of the result, from row-major positions alone."""
    shape, flat = list(call["input"].shape), call["input"].value.reshape(-1).tolist()
    if call.definition is TRANSPOSE:
        order = numbers(call, "perm") if call.has("perm") else list(range(len(shape)))[::-1]
        strides = [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
        places = itertools.product(*(range(shape[d]) for d in order))
        moved = [flat[sum(i * strides[d] for i, d in zip(place, order, strict=True))] for place in places]
        return [shape[d] for d in order], moved
    if call.definition is RESHAPE:
        sizes = numbers(call, "shape")
        for size in range(1, len(flat) + 1):
            filled = [size if s == -1 else s for s in sizes]
            if int(np.prod(filled)) == len(flat):
                return filled, flat
        raise AssertionError("no size fills the shape in")
    if call.definition is EXPAND_DIMS:
        axis = call.integer("axis")
        shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 1)
        return shape, flat
    axes = numbers(call, "axes") if call.has("axes") else [d for d, size in enumerate(shape) if size == 1]
    for axis in sorted(set(axes), reverse=True):
        assert shape.pop(axis) == 1
    return shape or [1], flat


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_second_opinion(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 200, "opinion"):
        shape, flat = by_loops(call)
        result = run_call(call)["output"].stored
        assert list(result.shape) == shape
        assert np.array_equal(result.reshape(-1), flat, equal_nan=True)


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 40) == []


def test_every_way_is_drawn() -> None:
    reshapes = list(draws(RESHAPE, RESHAPE.signature("float32"), 300, "ways"))
    assert {-1 in numbers(c, "shape") for c in reshapes} == {True, False}
    assert {c["output"].rank for c in reshapes} == {1, 2, 3, 4}
    squeezes = list(draws(SQUEEZE, SQUEEZE.signature("float32"), 300, "ways"))
    assert {c.has("axes") for c in squeezes} == {True, False}
    assert any(c["output"].shape == (1,) and c["input"].rank > 1 for c in squeezes)
    assert any(len(set(numbers(c, "axes"))) < len(numbers(c, "axes")) for c in squeezes if c.has("axes"))
    assert any(1 in c["output"].shape and c["output"].rank > 1 for c in squeezes)  # not every 1 is dropped
    assert all(axis >= 0 for c in squeezes if c.has("axes") for axis in numbers(c, "axes"))
    expansions = list(draws(EXPAND_DIMS, EXPAND_DIMS.signature("float32"), 300, "ways"))
    assert {(c["input"].rank, c.integer("axis")) for c in expansions} == {
        (rank, axis) for rank in (1, 2, 3, 4) for axis in range(-rank - 1, rank + 1)
    }
    transposes = list(draws(TRANSPOSE, TRANSPOSE.signature("float32"), 400, "ways"))
    assert {c["input"].rank for c in transposes if not c.has("perm")} == {2}
    found = {tuple(numbers(c, "perm")) for c in transposes if c.has("perm")}
    assert all(p in found for rank in (1, 2, 3) for p in itertools.permutations(range(rank)))


def test_an_operand_of_any_range_is_taken_from_a_scope() -> None:
    scope = Scope(SeededSource("any range"), reuse=100)
    first = draw_call(RESHAPE, RESHAPE.signature("float32"), scope)["output"]
    assert first.value is not None
    scope.operands = [replace(a, value=np.full_like(a.value, 1e6)) for a in scope.operands]
    for definition in (RESHAPE, EXPAND_DIMS, TRANSPOSE):
        assert draw_call(definition, definition.signature("float32"), scope)["input"].key is not None
    assert scope.operands[0].key == 0


# --- faults -----------------------------------------------------------------------------------------------------------


def stored(call: Call) -> Mapping[str, Array]:
    return {name: result.stored for name, result in run_call(call).items()}


def input_order_reversed(call: Call) -> Mapping[str, Array] | None:
    """Column-major order."""
    value = call["input"].value
    return stored(call.with_input("input", replace(call["input"], value=value.ravel(order="F").reshape(value.shape))))


def inverse_permutation(call: Call) -> Mapping[str, Array] | None:
    if not call.has("perm"):
        return None
    value = call["input"].value
    inverse = np.argsort(numbers(call, "perm"))
    return {"output": value.transpose(inverse)}


def moved_without_turning(call: Call) -> Mapping[str, Array] | None:
    """The right shape, the values in their old order."""
    return {"output": call["input"].value.reshape(call["output"].shape)}


def first_axis_only(call: Call) -> Mapping[str, Array] | None:
    if not call.has("axes") or len(set(numbers(call, "axes"))) == 1:
        return None
    return {"output": call["input"].value.squeeze(numbers(call, "axes")[0])}


def no_dimension_left(call: Call) -> Mapping[str, Array] | None:
    if call["output"].shape != (1,) or call["input"].shape == (1,):
        return None
    return {"output": call["input"].value.reshape(())}


def all_ones_dropped(call: Call) -> Mapping[str, Array] | None:
    shape = tuple(size for size in call["input"].shape if size != 1) or (1,)
    return {"output": call["input"].value.reshape(shape)}


def axis_from_input_rank(call: Call) -> Mapping[str, Array] | None:
    """A negative axis counted from the end of the input."""
    axis = call.integer("axis")
    if not -call["input"].rank <= axis < 0:
        return None
    return {"output": np.expand_dims(call["input"].value, axis + call["input"].rank)}


def omitted_is_identity(call: Call) -> Mapping[str, Array] | None:
    return None if call.has("perm") else {"output": call["input"].value}


FAULTS: list[tuple[OperationDef, Callable[[Call], Mapping[str, Array] | None], float]] = [
    (RESHAPE, input_order_reversed, 0.9),
    (EXPAND_DIMS, input_order_reversed, 0.9),
    (EXPAND_DIMS, axis_from_input_rank, 0.9),
    (SQUEEZE, input_order_reversed, 0.9),
    (SQUEEZE, first_axis_only, 0.9),
    (SQUEEZE, no_dimension_left, 0.9),
    (SQUEEZE, all_ones_dropped, 0.9),
    (TRANSPOSE, inverse_permutation, 0.9),
    (TRANSPOSE, moved_without_turning, 0.9),
    (TRANSPOSE, omitted_is_identity, 0.9),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_faults_are_noticed(definition: OperationDef, fault, least: float) -> None:
    counts = [detection(definition, signature, fault, 60) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 0
    assert seen >= least * changed, f"{seen} of {changed}"


# --- what the documents and public code disagree about ----------------------------------------------------------------


def plain(definition: OperationDef, dimensions: tuple[int, ...], /, **inputs: object) -> Call:
    call = next(draws(definition, definition.signature("float32"), 1, "plain"))
    value = np.arange(np.prod(dimensions), dtype=np.float32).reshape(dimensions)
    call = call.with_input("input", replace(call["input"], shape=dimensions, value=value))
    for name, argument in inputs.items():
        call = call.with_input(name, argument)
    return call


def test_negative_axes_of_squeeze_are_computed() -> None:
    call = plain(SQUEEZE, (1, 3, 1), axes=int32_tensor([-1]))
    assert violations(call) == []
    assert SQUEEZE.infer(call)["output"] == (1, 3)
    assert violations(plain(SQUEEZE, (1, 3, 1), axes=int32_tensor([-4]))) == ["AXES"]


def test_omitted_permutation_reverses_any_rank() -> None:
    call = plain(TRANSPOSE, (2, 3, 4), perm=replace(int32_tensor([]), omitted=True))
    assert TRANSPOSE.infer(call)["output"] == (4, 3, 2)
    assert TRANSPOSE.kernel(Values(call))["output"][3, 2, 1] == 23


@pytest.mark.parametrize(
    ("sizes", "label"),
    [((-1, -1), "ONE_WILDCARD"), ((-2, 3), "SIZES"), ((0, 6), "SIZES"), ((-1, 4), "ELEMENTS"), ((7,), "ELEMENTS")],
)
def test_wrong_shapes_of_reshape(sizes: tuple[int, ...], label: str) -> None:
    assert violations(plain(RESHAPE, (2, 3), shape=int32_tensor(sizes)), FL8) == [label]


def test_axis_of_expand_dims_ends_at_the_rank() -> None:
    for axis, found in ((2, []), (3, ["AXIS"]), (-3, []), (-4, ["AXIS"])):
        assert violations(plain(EXPAND_DIMS, (2, 3), axis=scalar(OperandType.INT32, axis))) == found


def test_values_are_moved_whatever_they_are() -> None:
    odd = np.array([[np.nan, np.inf, -0.0], [1e-45, -np.inf, 3.0]], np.float32)
    call = plain(RESHAPE, (2, 3), shape=int32_tensor([3, 2]))
    call = call.with_input("input", replace(call["input"], value=odd))
    moved = run_call(call.with_result("output", replace(call["output"], shape=(3, 2))))["output"].stored
    assert moved.tobytes() == odd.tobytes()


# --- RANK -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signature", RANK.signatures, ids=lambda s: s.id)
def test_rank_is_the_number_of_sizes_in_the_model(signature: Signature) -> None:
    ranks = set()
    for call in draws(RANK, signature, 60, "rank"):
        model, _ = model_of(call)
        (place,), (result,) = model.main.operations[0].inputs, model.main.operations[0].outputs
        due = len(model.main.operands[place].dimensions)
        assert (call["output"].value, model.main.operands[result].dimensions) == (due, ())
        assert not noticed(call, {"output": np.array(due, np.int32)})
        for wrong in (due - 1, due + 1, int(np.prod(call["input"].shape)), 0):
            assert wrong == due or noticed(call, {"output": np.array(wrong, np.int32)})
        ranks.add(due)
    assert ranks >= {1, 2, 3, 4}
    assert max(ranks) > 4


def test_rank_takes_every_tensor_type_since_1_3() -> None:
    ids = "float32 float16 int32 quant8_asymm quant16_symm bool8 per_channel quant16_asymm quant8_symm"
    assert [(s.id, s.since) for s in RANK.signatures] == [(i, FL4) for i in [*ids.split(), "quant8_asymm_signed"]]
    assert len({s.row.types["input"] for s in RANK.signatures}) == 10
