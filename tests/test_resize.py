from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from nnhal.operations import Signature
from nnhal.types import FL1, FL3, FL4, FL8, Array, OperandType
from opset import resize
from opset.call import Call, scalar
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import allowance, run_call
from opset.quantization import QUANTIZED
from opset.resize import RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR, Axis
from opset.source import SeededSource
from opset.validation import needed_level, violations
from opset.values import Values
from tests.judging import complaints_on_variants, detection, draws, noticed
from tests.variants import objections

DEFINITIONS = (RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]
SOME = [(d, s) for d, s in SIGNATURES if s.count in (3, 6) or (s.count == 4 and d is RESIZE_NEAREST_NEIGHBOR)]
SOME_IDS = [f"{d.name}-{s.id}" for d, s in SOME]


def is_on(call: Call, name: str) -> bool:
    return name in call.inputs and bool(call[name].item())


def first(image: Array, call: Call) -> Array:
    """With the channels first, whatever the call's layout."""
    return image if is_on(call, "nchw") else np.moveaxis(image, 3, 1)


def place_in_source(call: Call, place: int, size: int, outputs: int) -> Fraction:
    """Where a row or column of the result lies among those of the input, whose first one lies at 0."""
    if is_on(call, "align_corners") and outputs > 1:
        return Fraction(place * (size - 1), outputs - 1)
    if is_on(call, "half_pixel_centers"):
        return (place + Fraction(1, 2)) * size / outputs - Fraction(1, 2)
    return Fraction(place * size, outputs)


# --- second opinions --------------------------------------------------------------------------------------------------


def hats(call: Call, size: int, outputs: int) -> Array:
    """What each pixel counts for each place: 1 at the pixel, 0 at its neighbours, straight between."""
    matrix = np.zeros((outputs, size))
    for place in range(outputs):
        where = min(max(place_in_source(call, place, size, outputs), Fraction(0)), Fraction(size - 1))
        matrix[place] = [float(max(Fraction(0), 1 - abs(where - pixel))) for pixel in range(size)]
    return matrix


def chosen(call: Call, size: int, outputs: int) -> Array:
    """One pixel for each place: the nearest centre with aligned corners, else the pixel whose square holds it."""
    matrix = np.zeros((outputs, size))
    for place in range(outputs):
        where = place_in_source(call, place, size, outputs)
        if is_on(call, "align_corners"):
            best = max(p for p in range(size) if abs(p - where) == min(abs(q - where) for q in range(size)))
        else:
            left = where + Fraction(1, 2) if is_on(call, "half_pixel_centers") else where
            best = max(p for p in range(size) if p <= left)
        matrix[place, best] = 1
    return matrix


def by_matrices(call: Call) -> Array:
    """Real results for the channels-first image; stored values where they are quantised."""
    x = first(call["input"].value.astype(np.float64), call)
    rows, columns = first(np.empty(call["output"].shape), call).shape[2:]
    matrix = hats if call.definition is RESIZE_BILINEAR else chosen
    down, right = matrix(call, x.shape[2], rows), matrix(call, x.shape[3], columns)
    return np.einsum("yi,bcij,xj->bcyx", down, x, right)


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_second_opinion(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 40, "opinion"):
        if not np.isfinite(call["input"].value).all():
            continue  # a product with 0 says nothing of it
        result, due = run_call(call)["output"], by_matrices(call)
        np.testing.assert_allclose(first(result.exact, call), due, rtol=1e-11, atol=1e-11)
        if call["output"].type in QUANTIZED:
            tied = np.abs(np.abs(due % 1) - 0.5) < 1e-6
            assert np.array_equal(first(result.stored, call)[~tied], np.rint(due)[~tied])


def by_onnx(call: Call) -> Array:
    """ONNX's evaluator, in float64, on the channels-first image."""
    x = first(call["input"].value.astype(np.float64), call)
    sizes = np.array(first(np.empty(call["output"].shape), call).shape, np.int64)
    mode = next((name for name in ("align_corners", "half_pixel_centers") if is_on(call, name)), "asymmetric")
    settings = {"coordinate_transformation_mode": mode.removesuffix("_centers"), "mode": "linear"}
    if call.definition is RESIZE_NEAREST_NEIGHBOR:
        settings["mode"] = "nearest"
        settings["nearest_mode"] = "floor" if mode == "asymmetric" else "round_prefer_ceil"
    helper, kinds = onnx.helper, (onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64)
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **settings)
    known = [helper.make_tensor_value_info(n, k, None) for n, k in zip(("x", "sizes"), kinds, strict=True)]
    result = helper.make_tensor_value_info("y", kinds[0], None)
    model = helper.make_model(helper.make_graph([node], "g", known, [result]))
    return ReferenceEvaluator(model).run(None, {"x": x, "sizes": sizes})[0]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_onnx_agrees(definition: OperationDef) -> None:
    compared = 0
    for call in draws(definition, definition.signature("float32/by_shape/in6"), 60, "onnx"):
        if call["output"].value.size > 60 or not np.isfinite(call["input"].value).all():
            continue  # it takes a millisecond an element; and it multiplies by 0 where it takes nothing
        result = run_call(call)
        decided = np.isfinite(first(allowance(call, result)["output"].required, call))
        got, due = by_onnx(call), first(result["output"].exact, call)
        np.testing.assert_allclose(got[decided], due[decided], rtol=1e-6, atol=1e-6)
        compared += 1
    assert compared >= 8


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 40) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SOME, ids=SOME_IDS)
def test_half_precision_passes_where_it_may(definition: OperationDef, signature: Signature) -> None:
    assert objections(definition, signature, 60) == []


def in_fixed_point(call: Call) -> Mapping[str, Array]:
    """Weights of 10 bits and one rounding: what a runtime does with int8."""
    x = first(call["input"].value.astype(np.int64), call)
    rows, columns = first(np.empty(call["output"].shape), call).shape[2:]
    down, right = (
        np.rint(hats(call, size, outputs) * 1024).astype(np.int64)
        for size, outputs in zip(x.shape[2:], (rows, columns), strict=True)
    )
    total = np.einsum("yi,bcij,xj->bcyx", down, x, right)
    stored = ((total + 2**19) >> 20).astype(call["input"].value.dtype)
    return {"output": stored if is_on(call, "nchw") else np.moveaxis(stored, 1, 3)}


@pytest.mark.parametrize("kind", ["quant8_asymm", "quant8_asymm_signed"])
def test_fixed_point_passes(kind: str) -> None:
    for call in draws(RESIZE_BILINEAR, RESIZE_BILINEAR.signature(f"{kind}/by_shape/in6"), 150, "fixed"):
        assert not noticed(call, in_fixed_point(call))


def in_float32(axis: Axis, ulps: int = 0) -> tuple[Array, Array]:
    """Indices with scale and products in float32, as public code has them; a scale that is rounded may be worse."""
    parts = (axis.length - 1, axis.outputs - 1) if axis.align and axis.outputs > 1 else (axis.length, axis.outputs)
    scale = np.float32(parts[0]) / np.float32(parts[1])
    if Fraction(float(scale)) != Fraction(*parts):
        scale = scale + np.float32(ulps) * np.spacing(scale)
    where = (np.arange(axis.outputs).astype(np.float32) + np.float32(0.5 if axis.half else 0)) * scale
    index = np.floor(where + np.float32(0.5)) if axis.align else np.floor(where)
    return np.minimum(index, axis.length - 1).astype(np.int64), np.zeros(axis.outputs, bool)


def a_little_more(axis: Axis) -> tuple[Array, Array]:
    return in_float32(axis, 2)


def a_little_less(axis: Axis) -> tuple[Array, Array]:
    return in_float32(axis, -2)


def products_first(axis: Axis) -> tuple[Array, Array]:
    """The place times the input's length, divided by the output's."""
    parts = (axis.length - 1, axis.outputs - 1) if axis.align and axis.outputs > 1 else (axis.length, axis.outputs)
    places = np.arange(axis.outputs).astype(np.float32) + np.float32(0.5 if axis.half else 0)
    where = places * np.float32(parts[0]) / np.float32(parts[1])
    index = np.floor(where + np.float32(0.5)) if axis.align else np.floor(where)
    return np.minimum(index, axis.length - 1).astype(np.int64), np.zeros(axis.outputs, bool)


def instead(call: Call, compute: Callable[[Axis], tuple[Array, Array]]) -> Mapping[str, Array]:
    """The answer of a kernel that finds nearest pixels in another way."""
    with mock.patch.object(Axis, "nearest", compute):
        return {name: result.stored for name, result in run_call(call).items()}


@pytest.mark.parametrize("compute", [in_float32, a_little_more, a_little_less, products_first])
def test_other_ways_to_the_nearest_pixel_pass(compute: Callable[[Axis], tuple[Array, Array]]) -> None:
    for signature in RESIZE_NEAREST_NEIGHBOR.signatures[:9]:
        for call in draws(RESIZE_NEAREST_NEIGHBOR, signature, 80, "ways"):
            assert not noticed(call, instead(call, compute))


# --- what is left open, and what is drawn -----------------------------------------------------------------------------


def test_ties_are_open_only_where_the_scale_is_no_binary_number() -> None:
    assert Axis(3, 9, False, False).nearest()[1].tolist() == [place in (3, 6) for place in range(9)]
    assert not Axis(4, 8, False, False).nearest()[1].any()
    assert not Axis(3, 5, True, False).nearest()[1].any()  # ties, but of halves
    assert Axis(4, 7, True, False).nearest()[0].tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert Axis(6, 9, False, True).nearest()[1].tolist() == [place in (1, 4, 7) for place in range(9)]


def test_little_is_left_open() -> None:
    masked = total = 0
    for signature in RESIZE_NEAREST_NEIGHBOR.signatures:
        for call in draws(RESIZE_NEAREST_NEIGHBOR, signature, 100, "open"):
            required = allowance(call, run_call(call))["output"].required
            masked += int(np.isinf(required).sum())
            total += required.size
    assert masked <= 0.2 * total, f"{masked / total}"


def test_every_way_is_drawn() -> None:
    calls = list(draws(RESIZE_BILINEAR, RESIZE_BILINEAR.signature("float32/by_scale/in6"), 300, "ways"))
    assert {(is_on(c, "align_corners"), is_on(c, "half_pixel_centers")) for c in calls} == {
        (False, False),
        (True, False),
        (False, True),
    }
    assert {is_on(c, "nchw") for c in calls} == {True, False}
    sizes = [(first(c["input"].value, c).shape[2:], first(c["output"].value, c).shape[2:]) for c in calls]
    assert sum(before[0] < after[0] for before, after in sizes) > 60
    assert sum(before[1] > after[1] for before, after in sizes) > 40
    assert any(before == after for before, after in sizes)
    assert any(1 in after for _, after in sizes)
    assert any(1 in before for before, _ in sizes)
    assert sum(c["width_scale"].item() % 0.25 == 0 for c in calls) > 20


@pytest.mark.parametrize("level", [FL1, FL3, FL4, FL8])
def test_draws_keep_to_their_level_and_serve_a_graph(level: int) -> None:
    for definition, signature in SIGNATURES:
        if signature.since > level:
            continue
        scope = Scope(SeededSource(f"level/{definition.name}/{signature.id}"), level=level, reuse=60)
        for _ in range(8):
            call = draw_call(definition, signature, scope)
            assert violations(call) == []
            assert needed_level(call) == signature.since


def test_scales_are_far_from_the_next_size() -> None:
    """The same size whether the product is taken in float16, float32 or float64."""
    for kind in ("float32", "float16"):
        for call in draws(RESIZE_BILINEAR, RESIZE_BILINEAR.signature(f"{kind}/by_scale/in6"), 200, "sizes"):
            before, after = (first(call[name].value, call).shape[2:] for name in ("input", "output"))
            for size, due, name in zip(before, after, ("height_scale", "width_scale"), strict=True):
                scale = call[name].value
                products = [np.float64(size) * np.float64(scale), np.float16(size) * np.float16(scale)]
                assert [int(np.floor(p)) for p in products] == [due, due]


def test_a_batch_of_none_gives_none() -> None:
    for definition in DEFINITIONS:
        call = next(draws(definition, definition.signature("float32/by_shape/in6"), 1, "empty"))
        shape = (0, *call["input"].shape[1:])
        empty = call.with_input("input", replace(call["input"], shape=shape, value=np.zeros(shape, np.float32)))
        due = definition.infer(empty)["output"]
        assert due == (0, *call["output"].shape[1:])
        empty = empty.with_result("output", replace(call["output"], shape=due, value=None))
        results = run_call(empty)
        assert results["output"].stored.shape == due
        assert allowance(empty, results)["output"].required.shape == due


# --- faults -----------------------------------------------------------------------------------------------------------


def stored(call: Call) -> Mapping[str, Array]:
    return {name: result.stored for name, result in run_call(call).items()}


def sides_swapped(call: Call) -> Mapping[str, Array] | None:
    names = ("out_width", "out_height") if call.signature.form.name == "by_shape" else ("width_scale", "height_scale")
    other = call.with_input(names[0], call[names[1]]).with_input(names[1], call[names[0]])
    return stored(other) if violations(other) == [] else None


def without(flag: str) -> Callable[[Call], Mapping[str, Array] | None]:
    def fault(call: Call) -> Mapping[str, Array] | None:
        if not is_on(call, flag):
            return None
        return stored(call.with_input(flag, scalar(OperandType.BOOL, False)))

    fault.__name__ = f"no_{flag}"
    return fault


def half_for_align(call: Call) -> Mapping[str, Array] | None:
    """The two flags exchanged."""
    if "half_pixel_centers" not in call.inputs or is_on(call, "align_corners") == is_on(call, "half_pixel_centers"):
        return None
    other = call.with_input("align_corners", call["half_pixel_centers"])
    return stored(other.with_input("half_pixel_centers", call["align_corners"]))


def layout_ignored(call: Call) -> Mapping[str, Array] | None:
    if not is_on(call, "nchw"):
        return None
    other = call.with_input("nchw", scalar(OperandType.BOOL, False))
    if violations(other):
        return None
    return {"output": np.resize(stored(other)["output"], call["output"].shape)}


def scale_of_the_operand(call: Call) -> Mapping[str, Array] | None:
    """Coordinates from the given factor, in place of the sizes."""
    if call.signature.form.name == "by_shape" or is_on(call, "align_corners"):
        return None
    x = first(Values(call)["input"], call)
    rows, columns = first(np.empty(call["output"].shape), call).shape[2:]
    found = []
    for size, outputs, name in ((x.shape[2], rows, "height_scale"), (x.shape[3], columns, "width_scale")):
        shift = 0.5 if is_on(call, "half_pixel_centers") else 0.0
        where = (np.arange(outputs) + shift) / call[name].item() - shift
        where = np.clip(where, 0, size - 1)
        found.append(np.maximum(0, 1 - np.abs(where[:, None] - np.arange(size))))
    real = np.einsum("yi,bcij,xj->bcyx", found[0], x, found[1])
    if call.definition is RESIZE_NEAREST_NEIGHBOR or call["output"].type in QUANTIZED:
        return None
    return {"output": (real if is_on(call, "nchw") else np.moveaxis(real, 1, 3)).astype(call["output"].value.dtype)}


def nearest_only(call: Call) -> Mapping[str, Array] | None:
    """No interpolation at all."""
    signature = RESIZE_NEAREST_NEIGHBOR.signature
    if call.signature.count == 3:
        return None
    other = replace(call, definition=RESIZE_NEAREST_NEIGHBOR, signature=signature(call.signature.id))
    return stored(other)


def rows_only(call: Call) -> Mapping[str, Array]:
    """Rows are interpolated, columns are the left neighbours."""

    def plain(self: resize.Between, x: Array, dimension: int) -> Array:
        return x.take(self.low, dimension) if dimension == 2 else mixed(self, x, dimension)

    mixed = resize.Between.mix
    with mock.patch.object(resize.Between, "mix", plain):
        return stored(call)


def truncated(call: Call) -> Mapping[str, Array] | None:
    if call["output"].type not in QUANTIZED or call["output"].value.size < 32:
        return None
    result = run_call(call)["output"]
    return {"output": np.floor(result.exact + 1e-9).astype(result.stored.dtype)}


def wrapped_past_the_end(call: Call) -> Mapping[str, Array]:
    """Behind the last pixel comes the first."""
    original = resize.Between.of.__func__

    def of(cls: type[resize.Between], axis: Axis, dtype: type[np.floating]) -> resize.Between:
        known = original(cls, axis, dtype)
        where = axis.coordinates(dtype)
        beyond = where > axis.length - 1
        return cls(known.low, np.where(beyond, 0, known.high), np.where(beyond, where - known.low, known.fraction))

    with mock.patch.object(resize.Between, "of", classmethod(of)):
        return stored(call)


def rounded_down(call: Call) -> Mapping[str, Array] | None:
    """Aligned corners without rounding."""
    if not is_on(call, "align_corners"):
        return None
    return instead(
        call,
        lambda axis: (
            np.array([int(place * axis.scale) for place in range(axis.outputs)]).clip(0, axis.length - 1),
            np.zeros(axis.outputs, bool),
        ),
    )


def half_to_even(call: Call) -> Mapping[str, Array] | None:
    """Aligned corners with ties to even."""
    if not is_on(call, "align_corners"):
        return None
    return instead(
        call,
        lambda axis: (
            np.array([round(place * axis.scale) for place in range(axis.outputs)]).clip(0, axis.length - 1),
            np.zeros(axis.outputs, bool),
        ),
    )


BILINEAR, NEAREST = DEFINITIONS
FAULTS: list[tuple[OperationDef, Callable[[Call], Mapping[str, Array] | None], float]] = [
    *((d, sides_swapped, 0.95) for d in DEFINITIONS),
    *((d, without("align_corners"), 0.9) for d in DEFINITIONS),
    *((d, without("half_pixel_centers"), 0.85) for d in DEFINITIONS),
    *((d, half_for_align, 0.9) for d in DEFINITIONS),
    *((d, layout_ignored, 0.95) for d in DEFINITIONS),
    (BILINEAR, scale_of_the_operand, 0.9),
    (BILINEAR, nearest_only, 0.9),
    (BILINEAR, rows_only, 0.9),
    (BILINEAR, truncated, 0.75),
    (BILINEAR, wrapped_past_the_end, 0.9),
    (NEAREST, rounded_down, 0.9),
    (NEAREST, half_to_even, 0.7),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_faults_are_noticed(definition: OperationDef, fault, least: float) -> None:
    counts = [detection(definition, signature, fault, 30) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 10
    assert seen >= least * changed, f"{seen} of {changed}"


def test_flags_exclude_each_other() -> None:
    call = next(draws(BILINEAR, BILINEAR.signature("float32/by_shape/in6"), 1, "rules"))
    both = call.with_input("align_corners", scalar(OperandType.BOOL, True))
    both = both.with_input("half_pixel_centers", scalar(OperandType.BOOL, True))
    assert violations(both) == ["FLAGS"]
