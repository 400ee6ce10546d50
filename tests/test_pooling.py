from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from nnhal.operations import Signature
from nnhal.types import FL1, FL3, Array, OperandType, info
from opset import pooling
from opset.call import Argument, Call, scalar
from opset.definition import F16, F32, Q8, Q8S, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.pooling import AVERAGE_POOL_2D, L2_POOL_2D, MAX_POOL_2D
from opset.quantization import QUANTIZED, limits
from opset.shapes import Window
from opset.source import SeededSource
from opset.validation import needed_level, violations
from opset.windows import covered, tap_counts, windows_of
from tests.judging import complaints_on_variants, detection, draws, to_steps
from tests.thorough import one_in_three

DEFINITIONS = (AVERAGE_POOL_2D, L2_POOL_2D, MAX_POOL_2D)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
FLOATS = [(d, s) for d, s in SIGNATURES if s.row.types["input"] in (F32, F16)]
INTEGERS = [(d, s) for d, s in SIGNATURES if s.row.types["input"] in (Q8, Q8S)]


def ids(pairs: list[tuple[OperationDef, Signature]]) -> list[str]:
    return [f"{d.name}-{s.id}" for d, s in pairs]


# --- second opinions --------------------------------------------------------------------------------------------------


def turned(image: Array, call: Call) -> Array:
    """With the channels last, whatever the call's layout."""
    return np.moveaxis(image, 1, 3) if call["nchw"].item() else image


def heads(call: Call) -> tuple[int, int]:
    if "pad_top" in call.inputs:
        return call.integer("pad_top"), call.integer("pad_left")
    if call.integer("padding_scheme") != 1:
        return 0, 0
    found = []
    for axis, name in ((1, "h"), (2, "w")):
        size, out = (turned(np.empty(call[n].shape), call).shape[axis] for n in ("input", "output"))
        spare = (out - 1) * call.integer(f"stride_{name}") + call.integer(f"filter_{name}") - size
        found.append(max(0, spare) // 2)
    return found[0], found[1]


def by_loops(call: Call) -> tuple[Array, Array]:
    """Stored results of a quantised call in rational numbers, and each one's distance from a tie."""
    source, output = call["input"], call["output"]
    image = turned(source.value.astype(np.int64) - source.zero_point, call)
    (top, left), shape = heads(call), turned(np.empty(output.shape), call).shape
    low, high = {0: (None, None), 1: (0, None), 2: (-1, 1), 3: (0, 6)}[call.integer("activation")]
    stored, margin = np.zeros(shape, info(output.type).dtype), np.ones(shape)
    for b, r, c, d in np.ndindex(shape):
        rows = range(r * call.integer("stride_h") - top, r * call.integer("stride_h") - top + call.integer("filter_h"))
        columns = range(
            c * call.integer("stride_w") - left, c * call.integer("stride_w") - left + call.integer("filter_w")
        )
        seen = [
            int(image[b, y, x, d])
            for y, x in itertools.product(rows, columns)
            if 0 <= y < image.shape[1] and 0 <= x < image.shape[2]
        ]
        steps = Fraction(max(seen)) if call.definition is MAX_POOL_2D else Fraction(sum(seen), len(seen))
        real = steps * Fraction(source.scale)
        real = real if low is None else max(real, Fraction(low))
        real = real if high is None else min(real, Fraction(high))
        stored[b, r, c, d], margin[b, r, c, d] = to_steps(real, output.scale, output.zero_point, *limits(output.type))
    if call["nchw"].item():
        return np.moveaxis(stored, 3, 1), np.moveaxis(margin, 3, 1)
    return stored, margin


def by_onnx(call: Call) -> Array:
    """Real results by ONNX's evaluator: of maxima, of means, or of means of squares."""
    image = call["input"].value.astype(np.float64)
    image = image if call["nchw"].item() else np.moveaxis(image, 3, 1)
    shape = turned(np.empty(call["output"].shape), call).shape
    strides = (call.integer("stride_h"), call.integer("stride_w"))
    size = (call.integer("filter_h"), call.integer("filter_w"))
    head = heads(call)
    # The tail that makes the due number of outputs; what lies behind the last window is not read.
    tails = [
        max(0, (out - 1) * stride + k - first - n)
        for out, stride, k, first, n in zip(shape[1:3], strides, size, head, image.shape[2:], strict=True)
    ]
    settings: dict[str, Any] = {"strides": strides, "kernel_shape": size, "pads": [*head, *tails]}
    if call.definition is MAX_POOL_2D:
        # The evaluator's own padding goes wrong where every stride is 1, so it gets none to do.
        edges = [(0, 0), (0, 0), *zip(head, tails, strict=True)]
        padded = np.pad(image, edges, constant_values=-np.inf)
        got = evaluate("MaxPool", padded, {"strides": strides, "kernel_shape": size})
    elif call.definition is AVERAGE_POOL_2D:
        got = evaluate("AveragePool", image, {**settings, "count_include_pad": 0})
    else:
        got = np.sqrt(evaluate("AveragePool", image**2, {**settings, "count_include_pad": 0}))
    got = got[:, :, : shape[1], : shape[2]]
    low, high = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}[call.integer("activation")]
    got = np.clip(got, low, high)
    return got if call["nchw"].item() else np.moveaxis(got, 1, 3)


def evaluate(kind: str, image: Array, settings: dict[str, Any]) -> Array:
    double = onnx.TensorProto.DOUBLE
    node = onnx.helper.make_node(kind, ["x"], ["y"], **settings)
    known = onnx.helper.make_tensor_value_info("x", double, None)
    result = onnx.helper.make_tensor_value_info("y", double, None)
    graph = onnx.helper.make_graph([node], "g", [known], [result])
    return ReferenceEvaluator(onnx.helper.make_model(graph)).run(None, {"x": image})[0]


@pytest.mark.parametrize(("definition", "signature"), one_in_three(FLOATS), ids=ids(FLOATS))
def test_floats_agree_with_onnx(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 80, "opinion"):
        np.testing.assert_allclose(run_call(call)["output"].exact, by_onnx(call), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("definition", "signature"), one_in_three(INTEGERS), ids=ids(INTEGERS))
def test_integers_agree_with_loops(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 60, "opinion"):
        got = run_call(call)["output"].stored
        stored, margin = by_loops(call)
        assert np.array_equal(got[margin > 1e-9], stored[margin > 1e-9])


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=ids(SIGNATURES))
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 60) == []


@pytest.mark.parametrize(("definition", "signature"), INTEGERS, ids=ids(INTEGERS))
def test_averages_of_stored_values_pass(definition: OperationDef, signature: Signature) -> None:
    """Public code averages stored values, uint8 rounded half up, then clamps; its single answers are within a step."""
    if definition is not AVERAGE_POOL_2D:
        return
    for call in draws(definition, signature, 60, "stored"):
        plain = replace(call, inputs={**call.inputs, "activation": scalar(OperandType.INT32, 0)})
        low, high = limits(call["output"].type)
        ends = {1: (0, None), 2: (-1, 1), 3: (0, 6)}.get(call.integer("activation"), (None, None))
        scale, zero = call["output"].scale, call["output"].zero_point
        first, final = (
            end if real is None else min(max(zero + int(np.floor(real / scale + 0.5)), low), high)
            for end, real in zip((low, high), ends, strict=True)
        )
        answer = np.clip(np.floor(run_call(plain)["output"].exact + 0.5 + 1e-9), first, final)
        assert np.abs(answer - call["output"].value.astype(int)).max() <= 1


# --- faults that a driver may have: each must be noticed ------------------------------------------------------------


def stored(call: Call, **changes: Argument) -> Mapping[str, Array]:
    changed = replace(call, inputs={**call.inputs, **changes})
    return {n: r.stored for n, r in run_call(changed).items()}


def without_activation(call: Call) -> Mapping[str, Array] | None:
    return stored(call, activation=scalar(OperandType.INT32, 0)) if call.integer("activation") else None


def truncated(call: Call) -> Mapping[str, Array] | None:
    if call["output"].type not in QUANTIZED or call.definition is MAX_POOL_2D:
        return None
    # A whole mean may come out of the division a trace below itself.
    exact = run_call(call)["output"].exact
    return {"output": np.floor(exact + 1e-9).astype(info(call["output"].type).dtype)}


def padding_counted(call: Call) -> Mapping[str, Array] | None:
    if call.definition is MAX_POOL_2D:
        return None

    def counts(windows: tuple[Window, Window], *lengths: int) -> Array:
        return np.full_like(tap_counts(windows, *lengths), windows[0].size * windows[1].size)

    with mock.patch.object(pooling, "tap_counts", counts):
        return stored(call)


def zero_wins(call: Call) -> Mapping[str, Array] | None:
    """The real value 0 in the padding of a maximum."""
    if call.definition is not MAX_POOL_2D:
        return None
    with mock.patch.object(pooling, "covered", lambda image, windows, fill: covered(image, windows, 0)):
        return stored(call)


Change = Callable[[Window, Window], tuple[Window, Window]]


def with_windows(change: Change) -> Callable[[Call], Mapping[str, Array] | None]:
    """Other windows under the shape that is due."""

    def fault(call: Call) -> Mapping[str, Array] | None:
        due = windows_of(call, (call.integer("filter_h"), call.integer("filter_w")))
        made = change(*due)
        if made == due:
            return None
        _, rows, columns, _ = turned(np.empty(call["output"].shape), call).shape
        # Padding behind the image lets the changed window run as often as the output is long.
        made = tuple(replace(w, tail=w.tail + 40) for w in made)

        def cut(image: Array, windows: tuple[Window, Window], fill: float = 0) -> Array:
            return covered(image, windows, fill)[:, :rows, :columns]

        def counts(windows: tuple[Window, Window], *lengths: int) -> Array:
            return np.maximum(tap_counts(windows, *lengths)[:rows, :columns], 1)

        with mock.patch.multiple(pooling, windows_of=lambda *_: made, covered=cut, tap_counts=counts):
            return stored(call)

    return fault


def surplus_first(rows: Window, columns: Window) -> tuple[Window, Window]:
    return tuple(replace(w, head=w.tail, tail=w.head) if w.tail == w.head + 1 else w for w in (rows, columns))


def strides_swapped(rows: Window, columns: Window) -> tuple[Window, Window]:
    return replace(rows, stride=columns.stride), replace(columns, stride=rows.stride)


def sizes_swapped(rows: Window, columns: Window) -> tuple[Window, Window]:
    return replace(rows, size=columns.size), replace(columns, size=rows.size)


FAULTS = {f.__name__: f for f in (without_activation, truncated, padding_counted, zero_wins)} | {
    f.__name__: with_windows(f) for f in (surplus_first, strides_swapped, sizes_swapped)
}
LEAST = {"truncated": 0.15}  # seen only as a mean over 32 elements or more
RARE = 5  # draws that a fault changes, below which a share says nothing


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_faults_are_noticed(definition: OperationDef, fault: str) -> None:
    seen = changed = 0
    for signature in definition.signatures:
        found = detection(definition, signature, FAULTS[fault], 15)
        seen, changed = seen + found[0], changed + found[1]
    assert changed < RARE or seen >= LEAST.get(fault, 0.8) * changed, f"{seen} of {changed}"


# --- shapes, rules and draws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=ids(SIGNATURES))
def test_an_empty_batch_gives_an_empty_batch(definition: OperationDef, signature: Signature) -> None:
    call = next(draws(definition, signature, 1, "empty"))
    shape = (0, *call["input"].shape[1:])
    call = call.with_input("input", replace(call["input"], shape=shape, value=call["input"].value[:0]))
    due = definition.infer(call)["output"]
    assert due == (0, *call["output"].shape[1:])
    call = call.with_result("output", replace(call["output"], shape=due, value=None))
    assert run_call(call)["output"].stored.shape == due


def test_each_window_of_a_draw_sees_the_image() -> None:
    for definition, signature in SIGNATURES:
        for call in draws(definition, signature, 20, "windows"):
            windows = windows_of(call, (call.integer("filter_h"), call.integer("filter_w")))
            assert tap_counts(windows, *turned(np.empty(call["input"].shape), call).shape[1:3]).min() > 0


def test_draws_of_old_levels_need_no_more() -> None:
    for definition in DEFINITIONS:
        for signature in definition.signatures:
            if signature.since == FL1:
                call = draw_call(definition, signature, Scope(SeededSource(3), FL1))
                assert needed_level(call) == FL1
            elif signature.count in (8, 11):
                assert signature.since >= FL3


def test_output_keeps_the_input_scale() -> None:
    for definition, signature in INTEGERS:
        call = next(draws(definition, signature, 1))
        output = call["output"]
        assert (output.scale, output.zero_point) == (call["input"].scale, call["input"].zero_point)
        for change in ({"scale": output.scale * 2}, {"zero_point": output.zero_point ^ 1}):
            assert violations(call.with_result("output", replace(output, **change))) == ["SAME_SCALE"]


def test_zero_points_stand_at_the_ends_at_times() -> None:
    for definition, signature in INTEGERS:
        ends = limits(signature.row.types["input"])
        points = [call["input"].zero_point for call in draws(definition, signature, 100, "ends")]
        assert points.count(ends[0]) >= 1
        assert len(set(points)) > 20


def test_layouts_agree() -> None:
    for definition in DEFINITIONS:
        for signature in definition.signatures:
            if signature.count not in (8, 11):
                continue
            for call in draws(definition, signature, 6, "layouts"):
                flag = bool(call["nchw"].item())
                turn = (0, 2, 3, 1) if flag else (0, 3, 1, 2)
                image = call["input"].value.transpose(turn)
                other = stored(
                    call,
                    input=replace(call["input"], value=image, shape=image.shape),
                    nchw=scalar(OperandType.BOOL, not flag),
                )
                assert np.array_equal(other["output"], run_call(call)["output"].stored.transpose(turn))
