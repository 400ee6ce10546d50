from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import FL1, FL2, FL3, FL8, Array, OperandType
from opset.call import Call, int32_tensor, scalar
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.quantization import QUANTIZED
from opset.rearrangement import CHANNEL_SHUFFLE, DEPTH_TO_SPACE, SPACE_TO_DEPTH
from opset.rearrangement_batch import BATCH_TO_SPACE_ND, SPACE_TO_BATCH_ND
from opset.source import SeededSource
from opset.validation import needed_level, violations
from tests.judging import complaints_on_variants, detection, draws
from tests.naive import onnx_result

IMAGES = (DEPTH_TO_SPACE, SPACE_TO_DEPTH, BATCH_TO_SPACE_ND, SPACE_TO_BATCH_ND)
DEFINITIONS = (CHANNEL_SHUFFLE, *IMAGES)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]


def is_nchw(call: Call) -> bool:
    return "nchw" in call.inputs and bool(call["nchw"].item())


def last(image: Array, call: Call) -> Array:
    return np.moveaxis(image, 1, 3) if is_nchw(call) else image


def numbers(call: Call, name: str) -> list[int]:
    return call[name].value.reshape(-1).tolist()


# --- second opinions --------------------------------------------------------------------------------------------------


def source_of(call: Call, place: tuple[int, ...], image: Array, out: tuple[int, ...]) -> float:
    """The element that a place [n, y, x, c] of the result comes from."""
    n, y, x, c = place
    if call.definition is DEPTH_TO_SPACE:
        b = call.integer("block_size")
        return image[n, y // b, x // b, ((y % b) * b + x % b) * out[3] + c]
    if call.definition is SPACE_TO_DEPTH:
        b, depth = call.integer("block_size"), image.shape[3]
        return image[n, y * b + c // depth // b, x * b + c // depth % b, c % depth]
    rows, columns = numbers(call, "block_shape")
    if call.definition is BATCH_TO_SPACE_ND:
        return image[((y % rows) * columns + x % columns) * out[0] + n, y // rows, x // columns, c]
    top, _, left, _ = numbers(call, "paddings")
    batch = image.shape[0]
    down, right = y * rows + n // batch // columns - top, x * columns + n // batch % columns - left
    if 0 <= down < image.shape[1] and 0 <= right < image.shape[2]:
        return image[n % batch, down, right, c]
    return call["input"].zero_point


def by_loops(call: Call) -> Array:
    x = call["input"].value
    result = np.empty(call["output"].shape, x.dtype)
    if call.definition is CHANNEL_SHUFFLE:
        groups, axis = call.integer("num_groups"), call.integer("axis") % x.ndim
        size = x.shape[axis] // groups
        for place in np.ndindex(result.shape):
            at = list(place)
            at[axis] = place[axis] % groups * size + place[axis] // groups
            result[place] = x[tuple(at)]
        return result
    image, view = last(x, call), last(result, call)
    for place in np.ndindex(view.shape):
        view[place] = source_of(call, place, image, view.shape)
    return result


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_second_opinion(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 80, "opinion"):
        assert np.array_equal(run_call(call)["output"].stored, by_loops(call), equal_nan=True)


@pytest.mark.parametrize("definition", [DEPTH_TO_SPACE, SPACE_TO_DEPTH], ids=lambda d: d.name)
def test_onnx_agrees(definition: OperationDef) -> None:
    for call in draws(definition, definition.signature("float32/default/in3"), 40, "onnx"):
        x, block = np.moveaxis(last(call["input"].value, call), 3, 1), call.integer("block_size")
        name = "DepthToSpace" if definition is DEPTH_TO_SPACE else "SpaceToDepth"
        got = onnx_result(name, x, blocksize=block)
        assert np.array_equal(np.moveaxis(got, 1, 3), last(run_call(call)["output"].stored, call), equal_nan=True)


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 20) == []


def test_batch_to_space_undoes_space_to_batch() -> None:
    for call in draws(SPACE_TO_BATCH_ND, SPACE_TO_BATCH_ND.signature("float32/default/in4"), 60, "inverse"):
        split = call["output"]
        signature = BATCH_TO_SPACE_ND.signature("float32/default/in3")
        inputs = {"input": split, "block_shape": call["block_shape"], "nchw": call["nchw"]}
        back = Call(BATCH_TO_SPACE_ND, signature, inputs)
        back = back.with_result("output", replace(split, shape=BATCH_TO_SPACE_ND.infer(back)["output"], value=None))
        top, _, left, _ = numbers(call, "paddings")
        whole, image = last(run_call(back)["output"].stored, call), last(call["input"].value, call)
        back = whole[:, top:, left:][:, : image.shape[1], : image.shape[2]]
        assert np.array_equal(back, image, equal_nan=True)


def test_every_way_is_drawn() -> None:
    padded = list(draws(SPACE_TO_BATCH_ND, SPACE_TO_BATCH_ND.signature("quant8_asymm/default/in4"), 300, "ways"))
    assert {is_nchw(c) for c in padded} == {True, False}
    assert any(c["input"].zero_point == 0 for c in padded)
    assert all(any(numbers(c, "paddings")[place] for c in padded) for place in range(4))
    assert sum(numbers(c, "block_shape")[0] != numbers(c, "block_shape")[1] for c in padded) > 100
    shuffles = list(draws(CHANNEL_SHUFFLE, CHANNEL_SHUFFLE.signature("float32"), 300, "ways"))
    assert {c["input"].rank for c in shuffles} == {1, 2, 3, 4}
    assert {c.integer("axis") for c in shuffles} == set(range(-4, 4))


# --- faults -----------------------------------------------------------------------------------------------------------


def stored(call: Call) -> Mapping[str, Array]:
    return {name: result.stored for name, result in run_call(call).items()}


def unsigned_axis(call: Call) -> Mapping[str, Array] | None:
    if call.integer("axis") % call["input"].rank == call["input"].rank - 1:
        return None
    other = call.with_input("axis", scalar(OperandType.INT32, -1))
    return stored(other) if violations(other) == [] else None


def unshuffled(call: Call) -> Mapping[str, Array]:
    """Groups and members exchanged: the inverse."""
    size = call["input"].shape[call.integer("axis")] if call["input"].rank else 1
    return stored(call.with_input("num_groups", scalar(OperandType.INT32, size // call.integer("num_groups"))))


def layout_ignored(call: Call) -> Mapping[str, Array] | None:
    """Computed with the channels last; the shape is right."""
    if not is_nchw(call):
        return None
    other = call.with_input("nchw", scalar(OperandType.BOOL, False))
    if violations(other):
        return None
    return {"output": np.resize(run_call(other)["output"].stored, call["output"].shape)}


def in_blocks(call: Call, change: Callable[[Array], Array]) -> Array:
    """A change of the image of [batch, height, width, depth] before it is moved."""
    image = np.ascontiguousarray(change(last(call["input"].value, call)))
    image = np.moveaxis(image, 3, 1) if is_nchw(call) else image
    return run_call(call.with_input("input", replace(call["input"], value=image)))["output"].stored


def depth_first(call: Call) -> Mapping[str, Array]:
    """The block's place counts slowest in one reading of the depth and fastest in the other."""
    if call.definition is DEPTH_TO_SPACE:
        block = call.integer("block_size") ** 2
        return {"output": in_blocks(call, lambda x: x.reshape(*x.shape[:3], -1, block).swapaxes(3, 4).reshape(x.shape))}
    out = last(run_call(call)["output"].stored, call)
    block = call.integer("block_size") ** 2
    moved = out.reshape(*out.shape[:3], block, -1).swapaxes(3, 4).reshape(out.shape)
    return {"output": np.moveaxis(moved, 3, 1) if is_nchw(call) else moved}


def columns_first(call: Call) -> Mapping[str, Array] | None:
    """Rows and columns of a block exchanged."""
    if call.definition is DEPTH_TO_SPACE:
        b = call.integer("block_size")
        return {"output": in_blocks(call, lambda x: x.reshape(*x.shape[:3], b, b, -1).swapaxes(3, 4).reshape(x.shape))}
    if call.definition is BATCH_TO_SPACE_ND:
        rows, columns = numbers(call, "block_shape")
        return {
            "output": in_blocks(
                call, lambda x: x.reshape(columns, rows, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
            )
        }
    return None


def batch_first(call: Call) -> Mapping[str, Array]:
    """The batch counts slower than the block's place."""
    rows, columns = numbers(call, "block_shape")
    block = rows * columns
    if call.definition is BATCH_TO_SPACE_ND:
        return {"output": in_blocks(call, lambda x: x.reshape(-1, block, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape))}
    out = run_call(call)["output"].stored
    return {"output": out.reshape(block, -1, *out.shape[1:]).swapaxes(0, 1).reshape(out.shape)}


def block_swapped(call: Call) -> Mapping[str, Array] | None:
    other = call.with_input("block_shape", int32_tensor(numbers(call, "block_shape")[::-1]))
    return stored(other) if violations(other) == [] else None


def padded_behind(call: Call) -> Mapping[str, Array] | None:
    top, bottom, left, right = numbers(call, "paddings")
    value = np.array([[0, top + bottom], [0, left + right]], np.int32)
    return stored(call.with_input("paddings", replace(call["paddings"], value=value)))


def padded_with_bytes(call: Call) -> Mapping[str, Array] | None:
    if call["input"].type not in QUANTIZED:
        return None
    return stored(call.with_input("input", replace(call["input"], zero_point=0)))


FAULTS: list[tuple[OperationDef, Callable[[Call], Mapping[str, Array] | None], float]] = [
    (CHANNEL_SHUFFLE, unsigned_axis, 0.95),
    (CHANNEL_SHUFFLE, unshuffled, 0.95),
    *((d, layout_ignored, 0.95) for d in IMAGES),
    (DEPTH_TO_SPACE, depth_first, 0.95),
    (SPACE_TO_DEPTH, depth_first, 0.95),
    (DEPTH_TO_SPACE, columns_first, 0.95),
    (BATCH_TO_SPACE_ND, columns_first, 0.95),
    (BATCH_TO_SPACE_ND, batch_first, 0.95),
    (SPACE_TO_BATCH_ND, batch_first, 0.95),
    (BATCH_TO_SPACE_ND, block_swapped, 0.95),
    (SPACE_TO_BATCH_ND, block_swapped, 0.95),
    (SPACE_TO_BATCH_ND, padded_behind, 0.95),
    (SPACE_TO_BATCH_ND, padded_with_bytes, 0.95),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_faults_are_noticed(definition: OperationDef, fault, least: float) -> None:
    counts = [detection(definition, signature, fault, 60) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 10
    assert seen >= least * changed, f"{seen} of {changed}"


# --- rules and levels -------------------------------------------------------------------------------------------------


def test_zero_points_need_level_3() -> None:
    signature = SPACE_TO_BATCH_ND.signature("quant8_asymm/default/in3")
    for call in draws(SPACE_TO_BATCH_ND, signature, 100, "levels"):
        assert needed_level(call) == (FL3 if call["input"].zero_point else FL2)


@pytest.mark.parametrize("level", [FL1, FL2, FL3, FL8])
def test_draws_keep_to_their_level_and_serve_a_graph(level: int) -> None:
    for definition, signature in SIGNATURES:
        if signature.since > level:
            continue
        scope = Scope(SeededSource(f"level/{definition.name}/{signature.id}"), level=level, reuse=60)
        for _ in range(12):
            call = draw_call(definition, signature, scope)
            assert violations(call) == []


def test_broken_shapes_are_seen() -> None:
    call = next(draws(SPACE_TO_BATCH_ND, SPACE_TO_BATCH_ND.signature("float32/default/in3"), 1, "rules"))
    three = replace(call["paddings"], shape=(3, 2), value=np.zeros((3, 2), np.int32))
    assert violations(call.with_input("paddings", three)) == ["PADDINGS"]
    assert violations(call.with_input("block_shape", int32_tensor([2, 2, 2]))) == ["BLOCK_LENGTH"]
