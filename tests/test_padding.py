from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from nnhal.operations import Signature
from nnhal.types import FL1, FL2, FL3, FL7, FL8, Array, OperandType
from opset.call import Call, scalar
from opset.definition import F32, Q8, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.padding import MIRROR_PAD, PAD, PAD_V2
from opset.quantization import QUANTIZED, limits
from opset.source import SeededSource
from opset.validation import needed_level, violations
from opset.values import Values
from tests.judging import complaints_on_variants, detection, draws, noticed
from tests.variants import objections

DEFINITIONS = (PAD, PAD_V2, MIRROR_PAD)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]
cases = pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)

# --- second opinions --------------------------------------------------------------------------------------------------


def source_of(place: int, before: int, size: int, mode: int | None) -> int | None:
    """Where along a dimension an element of the output comes from; None in a border of one value."""
    i = place - before
    if mode is None:
        return i if 0 <= i < size else None
    # Walk there from the input's near end, turning at the border: after the outermost element, or on it.
    walk = list(range(size))
    if i < 0:
        return walk[-i - 1 if mode else -i]
    return i if i < size else walk[::-1][i - size if mode else i - size + 1]


def by_loop(call: Call) -> Array:
    source, paddings = call["input"], call["paddings"].value.tolist()
    mode = call.integer("mode") if call.definition is MIRROR_PAD else None
    fill = call["pad_value"].item() if call.definition is PAD_V2 else source.zero_point
    shape = [size + before + behind for size, (before, behind) in zip(source.shape, paddings, strict=True)]
    output = np.empty(shape, source.value.dtype)
    for place in itertools.product(*map(range, shape)):
        columns = zip(place, paddings, source.shape, strict=True)
        origin = [source_of(i, before, size, mode) for i, (before, _), size in columns]
        output[place] = fill if None in origin else source.value[tuple(origin)]
    return output


@cases
def test_a_loop_agrees(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 60, "opinion"):
        assert np.array_equal(run_call(call)["output"].stored, by_loop(call), equal_nan=True)


def padder(mode: str) -> ReferenceEvaluator:
    double, whole = TensorProto.DOUBLE, TensorProto.INT64
    node = helper.make_node("Pad", ["x", "pads", "value"], ["y"], mode=mode)
    kinds = [("x", double), ("pads", whole), ("value", double)]
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", double, None)])
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))


@cases
def test_onnx_and_numpy_agree(definition: OperationDef, signature: Signature) -> None:
    constant, reflect = padder("constant"), padder("reflect")
    for call in draws(definition, signature, 150, "onnx"):
        source, paddings = call["input"], call["paddings"].value
        fill = call["pad_value"].item() if definition is PAD_V2 else source.zero_point
        feeds = {"x": source.value.astype(np.float64), "pads": paddings.T.reshape(-1).astype(np.int64)}
        feeds["value"] = np.array(float(fill))
        if definition is MIRROR_PAD and call.integer("mode") == 1:
            due = np.pad(feeds["x"], paddings.tolist(), "symmetric")
        else:
            due = (reflect if definition is MIRROR_PAD else constant).run(None, feeds)[0]
        assert np.array_equal(run_call(call)["output"].stored.astype(np.float64), due, equal_nan=True)


@pytest.mark.thorough
@cases
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 40) == []
    assert objections(definition, signature, 40) == []


# --- faults -----------------------------------------------------------------------------------------------------------

Answer = Mapping[str, Array] | None


def answered(call: Call) -> Answer:
    """What the kernel makes of a wrong call, whatever its shape."""
    return {"output": np.asarray(call.definition.kernel(Values(call))["output"])}


def with_paddings(call: Call, value: Array) -> Answer:
    wrong = call.with_input("paddings", replace(call["paddings"], value=np.ascontiguousarray(value)))
    return None if violations(wrong) else answered(wrong)  # farther than there is anything to mirror


def before_and_behind_swapped(call: Call) -> Answer:
    return with_paddings(call, call["paddings"].value[:, ::-1])


def all_before_first(call: Call) -> Answer:
    """Read as all that stands before, then all that stands behind."""
    value = call["paddings"].value
    return with_paddings(call, value.reshape(2, -1).T)


def dimensions_reversed(call: Call) -> Answer:
    return with_paddings(call, call["paddings"].value[::-1])


def first_dimension_not_padded(call: Call) -> Answer:
    value = call["paddings"].value.copy()
    value[0] = 0
    return with_paddings(call, value)


def filled_with(fill: float) -> Callable[[Call], Answer]:
    def fault(call: Call) -> Answer:
        x, pads = call["input"].value, call["paddings"].value.tolist()
        return {"output": np.pad(x, pads, constant_values=x.dtype.type(fill))}

    fault.__name__ = f"filled_with_{fill:g}"
    return fault


def filled_with_edges(call: Call) -> Answer:
    return {"output": np.pad(call["input"].value, call["paddings"].value.tolist(), "edge")}


def fill_taken_for_real(call: Call) -> Answer:
    """The stored value is quantised once more."""
    x, fill = call["input"], call["pad_value"].item()
    if x.type not in QUANTIZED:
        return None
    again = int(np.clip(np.rint(fill / x.scale) + x.zero_point, *limits(x.type)))
    return answered(call.with_input("pad_value", scalar(OperandType.INT32, again)))


def fill_is_zero_point(call: Call) -> Answer:
    x = call["input"]
    return filled_with(x.zero_point)(call)


def other_mode(call: Call) -> Answer:
    """Where it can be done."""
    mode = 1 - call.integer("mode")
    other = call.with_input("mode", scalar(OperandType.INT32, mode))
    return None if "REACH" in violations(other) else answered(other)


def turned_once(call: Call) -> Answer:
    """Wrapped around instead of mirrored."""
    return {"output": np.pad(call["input"].value, call["paddings"].value.tolist(), "wrap")}


def in_float16(call: Call) -> Answer:
    if call["input"].type != F32:
        return None
    with np.errstate(over="ignore"):
        return {"output": call["output"].value.astype(np.float16).astype(np.float32)}


PADDINGS = (before_and_behind_swapped, all_before_first, dimensions_reversed, first_dimension_not_padded)
FAULTS: list[tuple[OperationDef, Callable[[Call], Answer], float]] = [
    *[(d, f, 0.95) for d in DEFINITIONS for f in PADDINGS],
    *[(d, filled_with_edges, 0.95) for d in DEFINITIONS],
    (PAD, filled_with(0.0), 0.95),
    (PAD_V2, filled_with(0.0), 0.95),
    (PAD_V2, fill_is_zero_point, 0.95),
    (PAD_V2, fill_taken_for_real, 0.95),
    (MIRROR_PAD, filled_with(0.0), 0.95),
    (MIRROR_PAD, other_mode, 0.95),
    (MIRROR_PAD, turned_once, 0.95),
    *[(d, in_float16, 0.95) for d in DEFINITIONS],
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=[f"{d.name}-{f.__name__}" for d, f, _ in FAULTS])
def test_faults_are_noticed(definition: OperationDef, fault: Callable[[Call], Answer], least: float) -> None:
    counts = [detection(definition, signature, fault, 60) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 0
    assert seen >= least * changed, f"{seen} of {changed}"


# --- rules, levels, draws ---------------------------------------------------------------------------------------------


def test_a_zero_point_needs_level_3() -> None:
    found = set()
    for call in draws(PAD, PAD.signature("quant8_asymm"), 100, "levels"):
        needed = needed_level(call)
        assert needed == (FL2 if call["input"].zero_point == 0 else FL3)
        found.add(needed)
    assert found == {FL2, FL3}


@pytest.mark.parametrize("level", [FL1, FL2, FL3, FL7, FL8])
def test_draws_keep_to_their_level(level: int) -> None:
    for definition, signature in SIGNATURES:
        if signature.since <= level:
            for number in range(30):
                call = draw_call(definition, signature, Scope(SeededSource(f"level/{number}"), level=level))
                assert violations(call) == []
                assert definition is not PAD or call["input"].type != Q8 or level >= FL3 or not call["input"].zero_point


def test_how_far_one_can_mirror() -> None:
    call = next(draws(MIRROR_PAD, MIRROR_PAD.signature("int32"), 1, "reach"))
    x = np.arange(3, dtype=np.int32)
    call = call.with_input("input", replace(call["input"], value=x, shape=x.shape))
    for mode, most in ((0, 2), (1, 3)):
        pads = np.array([[most, most]], np.int32)
        good = call.with_input("paddings", replace(call["paddings"], value=pads, shape=(1, 2)))
        good = good.with_input("mode", scalar(OperandType.INT32, mode))
        assert violations(good) == []
        bad = good.with_input("paddings", replace(good["paddings"], value=pads + np.array([[1, 0]], np.int32)))
        assert violations(bad) == ["REACH"]


def test_every_way_is_drawn() -> None:
    found = list(draws(MIRROR_PAD, MIRROR_PAD.signature("float32"), 300, "ways"))
    assert {(c["input"].rank, c.integer("mode")) for c in found} == set(itertools.product(range(1, 6), (0, 1)))
    farthest = [
        c for c in found
        if any(max(pair) == size - (c.integer("mode") == 0) > 1
               for pair, size in zip(c["paddings"].value.tolist(), c["input"].shape, strict=True))
    ]  # fmt: skip
    assert len(farthest) > 60
    for definition in DEFINITIONS:
        calls = list(draws(definition, definition.signature("float32"), 200, "ways"))
        uneven = [c for c in calls if (c["paddings"].value[:, 0] != c["paddings"].value[:, 1]).any()]
        assert len(uneven) > 140
        assert sum(not c["paddings"].value.any() for c in calls) < 20


def test_infinity_is_a_value_like_others() -> None:
    call = next(c for c in draws(PAD_V2, PAD_V2.signature("float32"), 200, "inf") if c["pad_value"].item() == -np.inf)
    due = run_call(call)["output"].stored
    assert np.isneginf(due).any()
    assert not noticed(call, {"output": due})
    assert noticed(call, {"output": np.where(np.isinf(due), -np.finfo(np.float32).max, due).astype(np.float32)})


def test_beyond_the_range_the_low_byte_is_stored() -> None:
    call = next(draws(PAD_V2, PAD_V2.signature("quant8_asymm_signed"), 1, "low"))
    call = call.with_input("pad_value", scalar(OperandType.INT32, 255))
    border = by_border(call, run_call(call)["output"].stored)
    assert set(border.tolist()) <= {-1}


def by_border(call: Call, output: Array) -> Array:
    inside = np.pad(np.ones(call["input"].shape, bool), call["paddings"].value.tolist())
    return output[~inside]
