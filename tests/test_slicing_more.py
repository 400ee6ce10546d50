from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from nnhal.operations import Signature
from nnhal.types import FL1, FL2, FL3, FL4, FL6, FL7, FL8, Array, OperandType
from opset.call import Call, int32_tensor, scalar
from opset.definition import F32, I32, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.slicing import PACK, SLICE, STRIDED_SLICE
from opset.slicing_copies import FILL, REVERSE, TILE
from opset.source import SeededSource
from opset.validation import violations
from tests.judging import complaints_on_variants, detection, draws, noticed
from tests.variants import objections

DEFINITIONS = (PACK, SLICE, STRIDED_SLICE, REVERSE, TILE, FILL)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]
cases = pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)


def ints(call: Call, name: str) -> list[int]:
    return [int(x) for x in call[name].value.reshape(-1)]


# --- second opinions --------------------------------------------------------------------------------------------------


def walked(size: int, begin: int | None, end: int | None, stride: int) -> list[int]:
    """Indexes met on a walk from begin to before end; None where a mask says that one does not count."""
    if begin is None:
        begin = 0 if stride > 0 else size - 1
    elif begin < 0:
        begin += size
    if end is None:
        end = size if stride > 0 else -1
    elif end < 0:
        end += size
    # Outside there is nothing to take, but the walk starts at the nearest end of the dimension.
    begin = max(begin, 0) if stride > 0 else min(begin, size - 1)
    found = []
    while (begin < end) if stride > 0 else (begin > end):
        if not 0 <= begin < size:
            break
        found.append(begin)
        begin += stride
    return found


def masked(call: Call, name: str) -> list[int | None]:
    mask = call.integer(f"{name}_mask")
    return [None if mask & 2**axis else number for axis, number in enumerate(ints(call, name))]


def columns(call: Call) -> list[list[int]]:
    """For each dimension of the input, which of its indexes are taken."""
    shape = call["input"].shape
    if call.definition is SLICE:
        pairs = zip(shape, ints(call, "begin"), ints(call, "size"), strict=True)
        return [
            list(range(whole))[begin:] if size < 0 else list(range(begin, begin + size)) for whole, begin, size in pairs
        ]
    if call.definition is STRIDED_SLICE:
        rows = zip(shape, masked(call, "begin"), masked(call, "end"), ints(call, "strides"), strict=True)
        return [walked(*row) for row in rows]
    if call.definition is REVERSE:
        (axis,) = ints(call, "axis")
        return [list(range(size))[:: -1 if d == axis else 1] for d, size in enumerate(shape)]
    return [list(range(size)) * times for size, times in zip(shape, ints(call, "multiples"), strict=True)]


def by_loop(call: Call) -> Array:
    if call.definition is FILL:
        flat = [call["value"].value.reshape(-1)[0]] * math.prod(ints(call, "dims"))
        return np.array(flat).reshape(ints(call, "dims"))
    if call.definition is PACK:
        axis, parts = call.integer("axis"), call.all("inputs")
        output = np.empty(call["output"].shape, parts[0].value.dtype)
        for place in itertools.product(*map(range, output.shape)):
            output[place] = parts[place[axis]].value[place[:axis] + place[axis + 1 :]]
        return output
    taken, source = columns(call), call["input"].value
    flat = [source[place] for place in itertools.product(*taken)]
    dropped = call.integer("shrink_axis_mask") if call.definition is STRIDED_SLICE else 0
    shape = [len(some) for axis, some in enumerate(taken) if not dropped & 2**axis]
    return np.array(flat, source.dtype).reshape(shape or [1])


@cases
def test_a_loop_agrees(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 100, "opinion"):
        result, due = run_call(call)["output"].stored, by_loop(call)
        assert result.shape == due.shape
        assert np.array_equal(result, due, equal_nan=True)


def onnx_graph(operator: str, lists: Sequence[str]) -> ReferenceEvaluator:
    inputs = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, None)]
    inputs += [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in lists]
    output = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    node = helper.make_node(operator, ["x", *lists], ["y"])
    graph = helper.make_graph([node], "g", inputs, [output])
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))


FARTHEST = 2**31


@pytest.mark.parametrize("definition", [SLICE, STRIDED_SLICE, TILE], ids=lambda d: d.name)
def test_onnx_agrees(definition: OperationDef) -> None:
    slicer, tiler = onnx_graph("Slice", ["starts", "ends", "axes", "steps"]), onnx_graph("Tile", ["repeats"])
    for call in draws(definition, definition.signature("float32"), 300, "onnx"):
        x = call["input"].value.astype(np.float64)
        if definition is TILE:
            due = tiler.run(None, {"x": x, "repeats": np.array(ints(call, "multiples"), np.int64)})[0]
        else:
            if definition is SLICE:
                starts, steps = ints(call, "begin"), [1] * x.ndim
                ends = [FARTHEST if n < 0 else b + n for b, n in zip(starts, ints(call, "size"), strict=True)]
            else:
                steps = ints(call, "strides")
                far = [FARTHEST if step > 0 else -FARTHEST for step in steps]
                starts = [-f if b is None else b for b, f in zip(masked(call, "begin"), far, strict=True)]
                ends = [f if e is None else e for e, f in zip(masked(call, "end"), far, strict=True)]
            lists = {"starts": starts, "ends": ends, "axes": range(x.ndim), "steps": steps}
            due = slicer.run(None, {"x": x, **{n: np.array(list(v), np.int64) for n, v in lists.items()}})[0]
        result = run_call(call)["output"].stored
        assert result.size == due.size
        assert np.array_equal(result, due.reshape(result.shape), equal_nan=True)


@pytest.mark.thorough
@cases
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 40) == []
    assert objections(definition, signature, 40) == []


# --- faults -----------------------------------------------------------------------------------------------------------

Answer = Mapping[str, Array] | None


def of(wrong: Call) -> Answer:
    """What the kernel makes of a wrong call; nothing where the call is not valid."""
    if violations(wrong):
        return None
    results = {name: replace(wrong[name], shape=shape) for name, shape in wrong.definition.infer(wrong).items()}
    return {name: result.stored for name, result in run_call(replace(wrong, results=results)).items()}


def listed(name: str, change: Callable[[Call, list[int]], list[int]], title: str) -> Callable[[Call], Answer]:
    """A list is read wrongly."""

    def fault(call: Call) -> Answer:
        return of(call.with_input(name, int32_tensor(change(call, ints(call, name)))))

    fault.__name__ = title
    return fault


def numbered(name: str, value: Callable[[Call], int], title: str) -> Callable[[Call], Answer]:
    """A scalar is read wrongly."""

    def fault(call: Call) -> Answer:
        return of(call.with_input(name, scalar(OperandType.INT32, value(call))))

    fault.__name__ = title
    return fault


def mask_reversed(name: str) -> Callable[[Call], Answer]:
    """Bit 0 stands for the last dimension."""

    def value(call: Call) -> int:
        rank = call["input"].rank
        return int(f"{call.integer(name):0{rank}b}"[::-1], 2)

    return numbered(name, value, f"{name}_reversed")


def size_without_a_rest(call: Call) -> Answer:
    """The number of elements is the quotient, rounded down."""
    result = run_call(call)["output"].stored
    taken = columns(call)
    strides = ints(call, "strides")
    short = [
        len(some) - (len(some) > 1 and (some[-1] - some[0]) != 0 and abs(stride) > 1)
        for some, stride in zip(taken, strides, strict=True)
    ]
    dropped = call.integer("shrink_axis_mask")
    cut = tuple(slice(0, n) for axis, n in enumerate(short) if not dropped & 2**axis)
    return {"output": result[cut]} if cut else None


def dimension_kept(call: Call) -> Answer:
    return of(call.with_input("shrink_axis_mask", scalar(OperandType.INT32, 0)))


def rank_zero(call: Call) -> Answer:
    """Nothing left is a scalar."""
    whole = call.integer("shrink_axis_mask") == 2 ** call["input"].rank - 1
    return {"output": call["output"].value.reshape(())} if whole else None


def all_axes_reversed(call: Call) -> Answer:
    return {"output": np.flip(call["input"].value)}


def not_reversed(call: Call) -> Answer:
    return {"output": call["input"].value}


def elements_repeated(call: Call) -> Answer:
    """Each element several times, instead of the whole."""
    x = call["input"].value
    for axis, times in enumerate(ints(call, "multiples")):
        x = np.repeat(x, times, axis)
    return {"output": x}


def flat_repeats(call: Call) -> Answer:
    """The whole buffer again and again."""
    return {"output": np.resize(call["input"].value, call["output"].shape)}


def joined(call: Call) -> Answer:
    """The buffers one after another, whatever the axis."""
    return {"output": np.stack([a.value for a in call.all("inputs")]).reshape(call["output"].shape)}


def packed_backward(call: Call) -> Answer:
    return {"output": np.stack([a.value for a in call.all("inputs")][::-1], call.integer("axis"))}


def first_for_second(call: Call) -> Answer:
    parts = [a.value for a in call.all("inputs")]
    return {"output": np.stack([parts[0], parts[0], *parts[2:]], call.integer("axis"))} if len(parts) > 1 else None


def concatenated(call: Call) -> Answer:
    """Joined along a dimension that exists."""
    axis = min(call.integer("axis"), call["inputs0"].rank - 1)
    return {"output": np.concatenate([a.value for a in call.all("inputs")], axis)}


def in_float16(call: Call) -> Answer:
    if call["output"].type != F32:
        return None
    with np.errstate(over="ignore"):
        return {"output": call["output"].value.astype(np.float16).astype(np.float32)}


def in_float32(call: Call) -> Answer:
    if call["output"].type != I32:
        return None
    return {
        "output": call["output"].value.astype(np.float32).astype(np.float64).clip(-(2**31), 2**31 - 1).astype(np.int32)
    }


def dims_reversed(call: Call) -> Answer:
    return of(call.with_input("dims", int32_tensor(ints(call, "dims")[::-1])))


FAULTS: list[tuple[OperationDef, Callable[[Call], Answer], float]] = [
    (SLICE, listed("begin", lambda c, x: [0] * len(x), "begin_ignored"), 0.95),
    (SLICE, listed("begin", lambda c, x: x[::-1], "begin_reversed"), 0.95),
    (SLICE, listed("size", lambda c, x: [max(n, 1) for n in x], "rest_is_one"), 0.95),
    (SLICE, listed("size", lambda c, x: [n - b if n > b else n for b, n in zip(ints(c, "begin"), x, strict=True)],
                   "size_is_end"), 0.95),
    (STRIDED_SLICE, listed("begin", lambda c, x: [max(n, 0) for n in x], "negative_begin_is_zero"), 0.95),
    (STRIDED_SLICE, listed("strides", lambda c, x: [abs(n) for n in x], "stride_without_sign"), 0.95),
    (STRIDED_SLICE, listed("strides", lambda c, x: [n // abs(n) for n in x], "stride_of_one"), 0.95),
    (STRIDED_SLICE, numbered("begin_mask", lambda c: 0, "begin_mask_ignored"), 0.95),
    (STRIDED_SLICE, numbered("end_mask", lambda c: 0, "end_mask_ignored"), 0.95),
    (STRIDED_SLICE, numbered("begin_mask", lambda c: c.integer("end_mask"), "end_mask_for_begin"), 0.95),
    (STRIDED_SLICE, mask_reversed("begin_mask"), 0.95),
    (STRIDED_SLICE, mask_reversed("end_mask"), 0.95),
    (STRIDED_SLICE, mask_reversed("shrink_axis_mask"), 0.95),
    (STRIDED_SLICE, size_without_a_rest, 0.95),
    (STRIDED_SLICE, dimension_kept, 0.95),
    (STRIDED_SLICE, rank_zero, 0.95),
    (REVERSE, listed("axis", lambda c, x: [c["input"].rank - 1 - x[0]], "axis_from_the_end"), 0.95),
    (REVERSE, all_axes_reversed, 0.95),
    (REVERSE, not_reversed, 0.95),
    (TILE, elements_repeated, 0.95),
    (TILE, flat_repeats, 0.95),
    (TILE, listed("multiples", lambda c, x: x[::-1], "multiples_reversed"), 0.95),
    (PACK, joined, 0.95),
    (PACK, packed_backward, 0.95),
    (PACK, first_for_second, 0.95),
    (PACK, concatenated, 0.95),
    (FILL, dims_reversed, 0.95),
    (FILL, in_float32, 0.95),
    *[(d, in_float16, 0.95) for d in DEFINITIONS],
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=[f"{d.name}-{f.__name__}" for d, f, _ in FAULTS])
def test_faults_are_noticed(definition: OperationDef, fault: Callable[[Call], Answer], least: float) -> None:
    counts = [detection(definition, signature, fault, 100) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 0
    assert seen >= least * changed, f"{seen} of {changed}"


# --- rules, levels, draws ---------------------------------------------------------------------------------------------


def strided(x: object, begin: object, end: object, strides: object, *masks: int) -> Call:
    value = np.asarray(x, np.float32)
    call = next(draws(STRIDED_SLICE, STRIDED_SLICE.signature("float32"), 1, "rules"))
    call = call.with_input("input", replace(call["input"], value=value, shape=value.shape))
    for name, numbers in (("begin", begin), ("end", end), ("strides", strides)):
        call = call.with_input(name, int32_tensor(numbers))
    for name, mask in zip(("begin_mask", "end_mask", "shrink_axis_mask"), masks, strict=True):
        call = call.with_input(name, scalar(OperandType.INT32, mask))
    return call


@pytest.mark.parametrize(
    ("call", "due"),
    [
        (strided([1, 2, 3], [0], [-1], [1], 0, 0, 0), [1, 2]),
        (strided([1, 2, 3], [2], [-1], [-1], 0, 0, 0), []),
        (strided([1, 2, 3], [2], [-4], [-1], 0, 0, 0), [3, 2, 1]),
        (strided([1, 2, 3], [9], [-9], [-2], 0, 0, 0), [3, 1]),
        (strided([1, 2, 3], [0], [0], [-1], 1, 1, 0), [3, 2, 1]),
        (strided([1, 2, 3], [-9], [9], [2], 0, 0, 0), [1, 3]),
        (strided([1, 2, 3], [2], [1], [1], 0, 0, 0), []),
        (strided([1, 2, 3], [1], [2], [1], 0, 0, 1), [2]),
        (strided([1, 2, 3], [-1], [3], [5], 0, 0, 1), [3]),
        (strided([[1, 2], [3, 4]], [1, 0], [2, 2], [1, 1], 0, 0, 1), [3, 4]),
        (strided([[1, 2], [3, 4]], [1, 0], [2, 1], [1, 1], 0, 0, 3), [3]),
    ],
)
def test_what_begin_and_end_mean(call: Call, due: list[float]) -> None:
    assert violations(call) == []
    result = STRIDED_SLICE.infer(call)["output"]
    assert result == (len(due),)
    assert np.array_equal(by_loop(call), np.array(due, np.float32))
    assert np.array_equal(of(call)["output"], np.array(due, np.float32))


@pytest.mark.parametrize(
    ("call", "broken"),
    [
        (strided([1, 2, 3], [0], [2], [1], 0, 0, 1), "SHRINK"),
        (strided([1, 2, 3], [1], [0], [-1], 0, 0, 1), "SHRINK"),
        (strided([1, 2, 3], [1], [1], [1], 0, 0, 1), "SHRINK"),
        (strided([1, 2, 3], [0], [2], [0], 0, 0, 0), "STRIDES"),
        (strided([1, 2, 3], [0, 0], [2], [1], 0, 0, 0), "LENGTHS"),
    ],
)
def test_what_is_refused(call: Call, broken: str) -> None:
    assert violations(call) == [broken]


def test_every_way_to_write_a_range_is_drawn() -> None:
    ways = set()
    for call in draws(STRIDED_SLICE, STRIDED_SLICE.signature("float32"), 400, "ways"):
        assert call["output"].value.size > 0
        rows = zip(
            call["input"].shape,
            ints(call, "begin"),
            ints(call, "end"),
            ints(call, "strides"),
            columns(call),
            strict=True,
        )
        for axis, (size, begin, end, stride, taken) in enumerate(rows):
            bit = 2**axis
            forward = stride > 0
            ways.add(("dropped" if call.integer("shrink_axis_mask") & bit else "kept", forward))
            for name, number in (("begin", begin), ("end", end)):
                if call.integer(f"{name}_mask") & bit:
                    kind = "masked"
                elif number < -size:
                    kind = "below"
                elif number < 0:
                    kind = "negative"
                else:
                    kind = "beyond" if number > size - (not forward and name == "begin") else "plain"
                ways.add((name, kind, forward))
            ways.add(("rest", (abs(end - begin) % abs(stride)) > 0, forward))
            if abs(stride) > size:
                ways.add(("stride exceeds size", forward))
            if not forward and taken[-1] == 0:
                ways.add("through element 0")
    expected = {("dropped", True), ("kept", True), ("kept", False), "through element 0"}
    expected |= {("stride exceeds size", True), ("stride exceeds size", False)}
    for kind, forward in itertools.product(("masked", "negative", "plain"), (True, False)):
        expected |= {("begin", kind, forward), ("end", kind, forward)}
    expected |= {("begin", "below", True), ("begin", "beyond", False), ("end", "beyond", True), ("end", "below", False)}
    assert expected <= ways, expected - ways


@pytest.mark.parametrize("level", [FL1, FL2, FL3, FL4, FL6, FL7, FL8])
def test_draws_keep_to_their_level(level: int) -> None:
    for definition, signature in SIGNATURES:
        if signature.since <= level:
            for number in range(20):
                call = draw_call(definition, signature, Scope(SeededSource(f"level/{number}"), level=level))
                assert violations(call) == []


def test_ranks_and_axes_that_are_drawn() -> None:
    reversals = list(draws(REVERSE, REVERSE.signature("float32"), 400, "ways"))
    assert {c["input"].rank for c in reversals} == set(range(1, 9))
    assert {ints(c, "axis")[0] for c in reversals} == set(range(8))
    packs = list(draws(PACK, PACK.signature("int32"), 300, "ways"))
    assert {len(c.all("inputs")) for c in packs} == {1, 2, 3, 4, 5}
    pairs = {(c["inputs0"].rank, c.integer("axis")) for c in packs}
    assert pairs == {(rank, axis) for rank in range(1, 5) for axis in range(rank + 1)}
    assert {c["input"].rank for c in draws(SLICE, SLICE.signature("float32"), 100, "ways")} == set(range(1, 6))
    assert {c["input"].rank for c in draws(TILE, TILE.signature("float32"), 100, "ways")} == set(range(1, 6))
    assert {len(ints(c, "dims")) for c in draws(FILL, FILL.signature("float32"), 100, "ways")} == set(range(1, 6))


def test_a_slice_may_be_empty() -> None:
    """No case has one for an input or result, but a graph may: where nothing was detected, nothing is sliced."""
    call = next(draws(SLICE, SLICE.signature("float32"), 1, "empty"))
    x = np.zeros((0, 3), np.float32)
    call = call.with_input("input", replace(call["input"], value=x, shape=x.shape))
    call = call.with_input("begin", int32_tensor([0, 1])).with_input("size", int32_tensor([-1, 2]))
    assert violations(call) == []
    assert of(call)["output"].shape == (0, 2)


def test_packed_inputs_share_a_scale() -> None:
    call = next(c for c in draws(PACK, PACK.signature("quant8_asymm"), 50, "scale") if len(c.all("inputs")) > 1)
    assert len({(a.scale, a.zero_point) for a in (*call.all("inputs"), call["output"])}) == 1
    other = call.with_input("inputs1", replace(call["inputs1"], zero_point=call["inputs1"].zero_point ^ 1))
    assert violations(other) == ["SAME_QUANTIZATION"]


def test_infinity_is_a_value_like_others() -> None:
    call = next(c for c in draws(FILL, FILL.signature("float32"), 300, "inf") if c["value"].item() == np.inf)
    due = run_call(call)["output"].stored
    assert not noticed(call, {"output": due})
    assert noticed(call, {"output": np.full_like(due, np.finfo(np.float32).max)})
    assert noticed(call, {"output": -due})
