from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import FL1, FL2, FL3, Array, OperandType, PaddingScheme, info
from opset import convolution
from opset.call import Argument, Call, scalar
from opset.convolution import CONV_2D, DEPTHWISE_CONV_2D, GROUPED_CONV_2D, TRANSPOSE_CONV_2D
from opset.definition import F16, F32, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import allowance, run_call
from opset.filters import SCALE
from opset.quantization import QUANTIZED, quantize
from opset.shapes import Window
from opset.source import SeededSource
from opset.spreads import Spread, scattered
from opset.validation import broken, holds, needed_level, violations
from opset.values import Values
from opset.windows import covered, windows_of
from tests.convolution_opinion import accumulators, by_loops, by_onnx, last, option
from tests.judging import complaints_on_variants, detection, draws
from tests.thorough import one_in_three

DEFINITIONS = (CONV_2D, DEPTHWISE_CONV_2D, GROUPED_CONV_2D, TRANSPOSE_CONV_2D)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]
FLOATS = [(d, s) for d, s in SIGNATURES if s.row.types["input"] in (F32, F16)]
INTEGERS = [(d, s) for d, s in SIGNATURES if s.row.types["input"] not in (F32, F16)]


def ids(pairs: list[tuple[OperationDef, Signature]]) -> list[str]:
    return [f"{d.name}-{s.id}" for d, s in pairs]


@pytest.mark.parametrize(("definition", "signature"), FLOATS, ids=ids(FLOATS))
def test_floats_agree_with_onnx(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 60, "opinion"):
        np.testing.assert_allclose(run_call(call)["output"].exact, by_onnx(call), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("definition", "signature"), one_in_three(INTEGERS), ids=ids(INTEGERS))
def test_integers_agree_with_loops(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 25, "opinion"):
        got = run_call(call)["output"].stored
        stored, margin = by_loops(call)
        assert np.array_equal(got[margin > 1e-9], stored[margin > 1e-9])


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 50) == []


# --- faults that a driver may have: each must be noticed ------------------------------------------------------------


def stored(call: Call, **changes: Argument) -> Mapping[str, Array]:
    """Results of a call with other inputs, rounded as the call's own output."""
    changed = replace(call, inputs={**call.inputs, **changes})
    return {n: r.stored for n, r in run_call(changed).items()}


def without_bias(call: Call) -> Mapping[str, Array]:
    bias = call["bias"]
    return stored(call, bias=replace(bias, value=np.zeros_like(bias.value)))


def without_activation(call: Call) -> Mapping[str, Array] | None:
    return stored(call, activation=scalar(OperandType.INT32, 0)) if call.integer("activation") else None


def truncated(call: Call) -> Mapping[str, Array] | None:
    """Steps rounded down instead of to the nearest."""
    if call["output"].type not in QUANTIZED:
        return None
    exact = run_call(call)["output"].exact
    return {"output": np.floor(exact).astype(info(call["output"].type).dtype)}


def wrapped(call: Call) -> Mapping[str, Array] | None:
    """Results that are cut to eight bits instead of saturated."""
    output = call["output"]
    if output.type not in QUANTIZED:
        return None
    real = call.definition.kernel(Values(call))["output"]
    steps = np.rint(real / output.scale).astype(np.int64) + output.zero_point
    return {"output": steps.astype(info(output.type).dtype)}


def in_16_bits(call: Call) -> Mapping[str, Array] | None:
    """A sum that wraps at 16 bits."""
    output = call["output"]
    if output.type not in QUANTIZED or call["filter"].channel is not None:
        return None
    total = accumulators(call).astype(np.int16).astype(np.float64)
    real = total * call["input"].scale * call["filter"].scale
    low, high = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}[call.integer("activation")]
    real = np.clip(np.moveaxis(real, 3, 1) if call["nchw"].item() else real, low, high)
    return {"output": quantize(real, output.type, output.scale, output.zero_point)}


def first_scale_for_all(call: Call) -> Mapping[str, Array] | None:
    channel = call["filter"].channel
    if channel is None:
        return None
    alike = replace(channel, scales=channel.scales[:1] * len(channel.scales))
    return stored(call, filter=replace(call["filter"], channel=alike))


def raw_zero_in_padding(call: Call) -> Mapping[str, Array] | None:
    """The stored value 0 in the padding, where the zero point belongs."""
    if call["input"].type not in QUANTIZED or call.definition is TRANSPOSE_CONV_2D:
        return None
    with mock.patch.object(convolution, "covered", lambda x, w: covered(x, w, -call["input"].zero_point)):
        return stored(call)


Change = Callable[[Window, Window], tuple[Window, Window]]


def with_windows(change: Change) -> Callable[[Call], Mapping[str, Array] | None]:
    """Other windows under the shape that is due."""

    def fault(call: Call) -> Mapping[str, Array] | None:
        if call.definition is TRANSPOSE_CONV_2D:
            return None
        size = (call["filter"].shape[1], call["filter"].shape[2])
        due = windows_of(call, size)
        made = change(*due)
        if made == due:
            return None
        _, rows, columns, _ = last(np.empty(call["output"].shape), call).shape
        # Padding behind the image lets the changed window run as often as the output is long.
        made = tuple(replace(w, tail=w.tail + 40) for w in made)

        def cut(image: Array, windows: tuple[Window, Window]) -> Array:
            return covered(image, windows)[:, :rows, :columns]

        with mock.patch.multiple(convolution, windows_of=lambda *_: made, covered=cut):
            return stored(call)

    return fault


def surplus_first(rows: Window, columns: Window) -> tuple[Window, Window]:
    return tuple(replace(w, head=w.tail, tail=w.head) if w.tail == w.head + 1 else w for w in (rows, columns))


def strides_swapped(rows: Window, columns: Window) -> tuple[Window, Window]:
    return replace(rows, stride=columns.stride), replace(columns, stride=rows.stride)


def pads_swapped(rows: Window, columns: Window) -> tuple[Window, Window]:
    return replace(rows, head=columns.head, tail=columns.tail), replace(columns, head=rows.head, tail=rows.tail)


def undilated(rows: Window, columns: Window) -> tuple[Window, Window]:
    return replace(rows, dilation=1), replace(columns, dilation=1)


def surplus_cropped_first(call: Call) -> Mapping[str, Array] | None:
    """SAME of a transposed convolution, cropped the other way round."""
    if call.definition is not TRANSPOSE_CONV_2D or "padding_scheme" not in call.inputs:
        return None
    due = convolution.spreads_of(call)
    made = tuple(replace(s, head=s.tail, tail=s.head) if s.tail == s.head + 1 else s for s in due)
    if made == due:
        return None
    with mock.patch.object(convolution, "spreads_of", return_value=made):
        return stored(call)


def unturned(call: Call) -> Mapping[str, Array] | None:
    """A transposed convolution with the filter not turned."""
    if call.definition is not TRANSPOSE_CONV_2D:
        return None
    return stored(call, filter=replace(call["filter"], value=call["filter"].value[:, ::-1, ::-1]))


def channels_interleaved(call: Call) -> Mapping[str, Array] | None:
    """Output channel m * depth + ic in place of ic * multiplier + m."""
    if call.definition is not DEPTHWISE_CONV_2D or call.integer("multiplier") == 1:
        return None
    with mock.patch.object(
        convolution, "covered", lambda x, w: covered(np.tile(x[..., :: call.integer("multiplier")],
                                                             call.integer("multiplier")), w)
    ):  # fmt: skip
        return stored(call)


def filter_zero_point_ignored(call: Call) -> Mapping[str, Array] | None:
    weights = call["filter"]
    if weights.zero_point == 0:
        return None
    return stored(call, filter=replace(weights, zero_point=0))


FAULTS = {
    f.__name__: f
    for f in (
        without_bias,
        without_activation,
        truncated,
        wrapped,
        in_16_bits,
        first_scale_for_all,
        raw_zero_in_padding,
        surplus_cropped_first,
        unturned,
        channels_interleaved,
        filter_zero_point_ignored,
    )
} | {f.__name__: with_windows(f) for f in (surplus_first, strides_swapped, pads_swapped, undilated)}

LEAST = {"truncated": 0.3}  # seen only as a mean over 32 elements or more; every other fault shows in single elements
RARE = 5  # draws that a fault changes, below which a share says nothing


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_faults_are_noticed(definition: OperationDef, fault: str) -> None:
    seen = changed = 0
    for signature in definition.signatures:
        found = detection(definition, signature, FAULTS[fault], 60 // len(definition.signatures) + 2)
        seen, changed = seen + found[0], changed + found[1]
    assert changed < RARE or seen >= LEAST.get(fault, 0.85) * changed, f"{seen} of {changed}"


# --- relations between operations, layouts and types ------------------------------------------------------------------


def exact(call: Call, definition: OperationDef, signature: str, inputs: Mapping[str, Argument]) -> Array:
    made = Call(definition, definition.signature(signature), inputs, call.results)
    return run_call(made)["output"].exact


def test_layouts_agree() -> None:
    for definition in DEFINITIONS:
        for signature in definition.signatures:
            if not signature.form.names(signature.count or 0).count("nchw"):
                continue
            for call in draws(definition, signature, 4, "layouts"):
                flag = bool(call["nchw"].item())
                turn = (0, 2, 3, 1) if flag else (0, 3, 1, 2)
                image = call["input"].value.transpose(turn)
                changes = {
                    "input": replace(call["input"], value=image, shape=image.shape),
                    "nchw": scalar(OperandType.BOOL, not flag),
                }
                if "output_shape" in call.inputs:
                    changes["output_shape"] = replace(
                        call["output_shape"], value=call["output_shape"].value[list(turn)]
                    )
                other = stored(call, **changes)["output"]
                assert np.array_equal(other, run_call(call)["output"].stored.transpose(turn))


def test_signed_and_unsigned_twins_agree() -> None:
    unsigned = (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED)

    def twin(argument: Argument) -> Argument:
        if argument.type != unsigned[0]:
            return argument
        value = (argument.value.astype(np.int16) - 128).astype(np.int8)
        return replace(argument, type=unsigned[1], zero_point=argument.zero_point - 128, value=value)

    for definition in DEFINITIONS:
        for signature in definition.signatures:
            if signature.row.types["input"] != unsigned[0]:
                continue
            other = definition.signature(signature.id.replace("quant8_asymm", "quant8_asymm_signed"))
            for call in draws(definition, signature, 4, "twins"):
                inputs = {n: twin(a) for n, a in call.inputs.items()}
                results = {n: twin(a) for n, a in call.results.items()}
                got = run_call(Call(definition, other, inputs, results))["output"].stored
                assert np.array_equal(got, results["output"].value)


def test_depthwise_is_grouped_with_one_channel_a_group() -> None:
    for form, count in (("explicit", 12), ("implicit", 9)):
        for call in draws(DEPTHWISE_CONV_2D, DEPTHWISE_CONV_2D.signature(f"float32/{form}/in{count}"), 40, "groups"):
            weights = call["filter"].value.transpose(3, 1, 2, 0)
            groups = last(call["input"].value, call).shape[3]
            inputs = {
                **{n: a for n, a in call.inputs.items() if n != "multiplier"},
                "filter": replace(call["filter"], value=weights, shape=weights.shape),
                "num_groups": scalar(OperandType.INT32, groups),
            }
            got = exact(call, GROUPED_CONV_2D, f"float32/{form}", inputs)
            np.testing.assert_allclose(got, run_call(call)["output"].exact, atol=1e-12)


def test_transposed_convolution_is_the_adjoint_of_convolution() -> None:
    """<conv(x), y> = <x, transposed(y)> for the same filter, strides and paddings."""
    signature = CONV_2D.signature("float32/explicit/in10")
    for call in draws(CONV_2D, signature, 60, "adjoint"):
        windows = windows_of(call, call["filter"].shape[1:3])
        lengths = call["input"].shape[1:3]
        # Rows and columns that no window reaches have no counterpart: as much padding is taken from the tail.
        ends = [w.stride * (w.outputs(n) - 1) + w.size - w.head - n for w, n in zip(windows, lengths, strict=True)]
        weights, x = call["filter"].value.astype(float), call["input"].value.astype(float)
        plain = {"activation": scalar(OperandType.INT32, 0)}
        none = replace(call["bias"], value=np.zeros_like(call["bias"].value))
        forward = run_call(replace(call, inputs={**call.inputs, **plain, "bias": none}))["output"].exact
        y = np.random.default_rng(1).standard_normal(forward.shape).astype(np.float32)
        turned = weights.transpose(3, 1, 2, 0).astype(np.float32)
        zero = Argument(F32, (x.shape[3],), value=np.zeros(x.shape[3], np.float32))
        inputs = {
            **call.inputs,
            **plain,
            "input": Argument(F32, y.shape, value=y),
            "filter": Argument(F32, turned.shape, value=turned),
            "bias": zero,
            "pad_bottom": scalar(OperandType.INT32, ends[0]),
            "pad_right": scalar(OperandType.INT32, ends[1]),
            "nchw": scalar(OperandType.BOOL, False),
        }
        back = Call(TRANSPOSE_CONV_2D, TRANSPOSE_CONV_2D.signature("float32/explicit"), inputs)
        assert TRANSPOSE_CONV_2D.infer(back)["output"] == x.shape
        scattered_back = TRANSPOSE_CONV_2D.kernel(Values(back))["output"]
        assert np.isclose((forward * y).sum(), (x * scattered_back).sum(), rtol=1e-9, atol=1e-9)


# --- shapes, rules and draws ------------------------------------------------------------------------------------------


def test_windows_follow_the_documents() -> None:
    assert Window(2, 1, 1, 0, 1).outputs(5) == 5
    assert Window(3, 2, 2, 0, 0).outputs(8) == 2  # extent 5: places 0 and 2
    assert Window(4, 3, 1, 0, 0).outputs(2) == 0  # rounded toward zero
    assert scattered(PaddingScheme.SAME, 4, 3, 2) == Spread(3, 2, 0, 1)
    assert scattered(PaddingScheme.SAME, 6, 1, 3) == Spread(1, 3, 0, -2)  # two columns that only the bias reaches
    assert scattered(PaddingScheme.VALID, 5, 3, 2).outputs(2) == 5


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_an_empty_batch_gives_an_empty_batch(definition: OperationDef, signature: Signature) -> None:
    call = next(draws(definition, signature, 1, "empty"))
    shape = (0, *call["input"].shape[1:])
    empty = replace(call["input"], shape=shape, value=call["input"].value[:0])
    call = call.with_input("input", empty)
    due = definition.infer(call)["output"]
    assert due == (0, *call["output"].shape[1:])
    call = call.with_result("output", replace(call["output"], shape=due, value=None))
    results = run_call(call)
    assert results["output"].stored.shape == due
    assert allowance(call, results)["output"].required.shape == due


def test_a_window_larger_than_the_image_gives_no_output() -> None:
    call = next(draws(CONV_2D, CONV_2D.signature("float32/implicit/in7"), 1))
    weights = np.ones((2, 20, 1, call["input"].shape[3]), np.float32)
    call = call.with_input("filter", Argument(F32, weights.shape, value=weights))
    call = call.with_input("bias", Argument(F32, (2,), value=np.ones(2, np.float32)))
    call = call.with_input("padding_scheme", scalar(OperandType.INT32, PaddingScheme.VALID))
    shape = CONV_2D.infer(call)["output"]
    assert shape[1] == 0
    assert CONV_2D.kernel(Values(call))["output"].shape == shape


@pytest.mark.parametrize("definition", [CONV_2D, DEPTHWISE_CONV_2D], ids=lambda d: d.name)
def test_scale_rule_holds_before_level_3_in_both_readings(definition: OperationDef) -> None:
    for signature in definition.signatures:
        if signature.row.id != "quant8_asymm" or signature.since > FL2:
            continue
        for number in range(60):
            call = draw_call(definition, signature, Scope(SeededSource(f"scale/{number}"), FL1))
            assert violations(call, FL1) == []
            assert needed_level(call) == FL1
            product = np.float32(call["input"].scale) * np.float32(call["filter"].scale)
            assert np.float32(call["output"].scale) > product
            assert call["filter"].scale < 1
            bad = broken(SCALE, call)
            assert bad is not None
            assert violations(bad, FL2) == ["SCALE"]
            assert "SCALE" not in violations(bad, FL3)
            # Read with the input's scale in place of the output's, as newer public code does, it is a breach as well.
            assert bad["input"].scale <= bad["input"].scale * bad["filter"].scale


def test_output_scales_below_the_product_are_drawn_and_need_level_3() -> None:
    for definition in DEFINITIONS:
        small = 0
        for signature in definition.signatures:
            if signature.row.id not in ("quant8_asymm", "quant8_asymm_signed"):
                continue
            for call in draws(definition, signature, 60, "small"):
                if call["output"].scale <= call["input"].scale * call["filter"].scale:
                    small += 1
                    assert needed_level(call) >= FL3
        assert small >= 3, definition.name


def test_scale_rule_does_not_concern_per_channel_filters() -> None:
    call = next(draws(CONV_2D, CONV_2D.signature("quant8_asymm_per_channel/implicit/in7"), 1))
    call = call.with_result("output", replace(call["output"], scale=1e-6))
    assert holds(SCALE, call)
    assert needed_level(call) == FL3


def test_bias_scale_is_compared_with_a_tolerance() -> None:
    call = next(draws(CONV_2D, CONV_2D.signature("quant8_asymm/implicit/in7"), 1))
    for factor, label in ((1 + 5e-7, []), (1 - 5e-7, []), (1 + 2e-6, ["BIAS_SCALE"]), (0.0, ["BIAS_SCALE"])):
        bias = replace(call["bias"], scale=call["bias"].scale * factor)
        assert violations(call.with_input("bias", bias)) == label


def test_explicit_paddings_equal_an_implicit_scheme_by_half() -> None:
    for name in ("float32/explicit/in10", "float32/explicit/in13"):
        alike = 0
        for call in draws(CONV_2D, CONV_2D.signature(name), 400, "alike"):
            pads = [call.integer(f"pad_{side}") for side in ("top", "bottom", "left", "right")]
            implicit = replace(call, inputs={n: a for n, a in call.inputs.items() if not n.startswith("pad_")})
            due = []
            for axis, n in (("h", 1), ("w", 2)):
                length = last(np.empty(call["input"].shape), call).shape[n]
                stride, dilation = call.integer(f"stride_{axis}"), option(implicit, f"dilation_{axis}", 1)
                spare = (-(-length // stride) - 1) * stride + (call["filter"].shape[n] - 1) * dilation + 1 - length
                due += [max(spare, 0) // 2, max(spare, 0) - max(spare, 0) // 2]
            alike += pads in (due, [0, 0, 0, 0])
        assert 180 <= alike <= 320


def test_draws_vary_layout_and_serve_a_graph() -> None:
    flags = [
        bool(call["nchw"].item())
        for call in draws(GROUPED_CONV_2D, GROUPED_CONV_2D.signature("float16/explicit"), 300, "layout")
    ]
    assert 90 <= sum(flags) <= 150
    reused = 0
    for kind in ("float32", "float16", "quant8_asymm", "quant8_asymm_signed"):
        for seed in range(15):
            scope = Scope(SeededSource(f"{kind}/{seed}"), reuse=80)
            for definition in DEFINITIONS:
                for signature in definition.signatures:
                    if signature.row.id != kind or signature.form.name != ("implicit", "explicit")[seed % 2]:
                        continue
                    known = len(scope.operands)
                    call = draw_call(definition, signature, scope)
                    assert violations(call) == []
                    assert np.isfinite(call["output"].value).all()
                    reused += call["input"].key is not None and call["input"].key < known
    assert reused >= 100
