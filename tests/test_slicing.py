from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from nnhal.operations import Signature
from nnhal.types import FL1, FL2, FL3, FL8, Array, OperandType, info
from opset.call import Call, scalar
from opset.definition import Q8, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.quantization import QUANTIZED, limits
from opset.slicing import CONCATENATION, SPLIT
from opset.source import SeededSource
from opset.validation import needed_level, violations
from opset.values import Values
from tests.judging import complaints_on_variants, detection, draws, to_steps

SIGNATURES = [(d, s) for d in (CONCATENATION, SPLIT) for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]


def element(call: Call, part: int, place: tuple[int, ...]) -> tuple[object, bool]:
    """An element of an input as the output stores it, and whether it is clear of a tie."""
    source, output = call.all("inputs")[part], call["output"]
    value = source.value[place]
    if output.type not in QUANTIZED:
        return value, True
    real = (int(value) - source.zero_point) * Fraction(source.scale)
    steps, margin = to_steps(real, output.scale, output.zero_point, *limits(output.type))
    return steps, margin > 1e-9


@pytest.mark.parametrize("signature", CONCATENATION.signatures, ids=lambda s: s.id)
def test_second_opinion_on_concatenation(signature: Signature) -> None:
    for call in draws(CONCATENATION, signature, 100, "opinion"):
        result, axis = run_call(call)["output"].stored, call.integer("axis")
        starts = list(itertools.accumulate((a.shape[axis] for a in call.all("inputs")), initial=0))
        assert result.shape[axis] == starts[-1]
        for place in itertools.product(*map(range, result.shape)):
            part = max(i for i, start in enumerate(starts[:-1]) if start <= place[axis])
            inner = (*place[:axis], place[axis] - starts[part], *place[axis + 1 :])
            due, clear = element(call, part, inner)
            assert np.array_equal(result[place], due, equal_nan=True) or not clear


def splitter(number: int, axis: int) -> ReferenceEvaluator:
    names = [f"o{i}" for i in range(number)]
    node = onnx.helper.make_node("Split", ["x"], names, axis=axis, num_outputs=number)
    kind = onnx.TensorProto.DOUBLE
    results = [onnx.helper.make_tensor_value_info(name, kind, None) for name in names]
    graph = onnx.helper.make_graph([node], "g", [onnx.helper.make_tensor_value_info("x", kind, None)], results)
    return ReferenceEvaluator(onnx.helper.make_model(graph))


@pytest.mark.parametrize("signature", SPLIT.signatures, ids=lambda s: s.id)
def test_second_opinion_on_split(signature: Signature) -> None:
    for call in draws(SPLIT, signature, 200, "opinion"):
        number = call.integer("num_splits")
        due = splitter(number, call.integer("axis")).run(None, {"x": call["input"].value.astype(np.float64)})
        results = run_call(call)
        assert list(results) == [f"parts{i}" for i in range(number)]
        for part, result in zip(due, results.values(), strict=True):
            assert np.array_equal(result.stored.astype(np.float64), part, equal_nan=True)


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    count = 200 if definition is CONCATENATION and signature.row.types["output"] in QUANTIZED else 40
    assert complaints_on_variants(definition, signature, count) == []


@pytest.mark.parametrize("name", ["quant8_asymm", "quant8_asymm_signed"])
def test_requantisation_by_public_code_passes(name: str) -> None:
    """Scale and offset folded into one float32 factor each."""

    def fault(call: Call) -> Mapping[str, Array]:
        output, parts = call["output"], []
        for a in call.all("inputs"):
            ratio = np.float32(a.scale) / np.float32(output.scale)
            steps = a.value.astype(np.float32) * ratio - np.float32(a.zero_point) * ratio
            rounded = np.trunc(steps + np.copysign(np.float32(0.5), steps)) + output.zero_point
            parts.append(np.clip(rounded, *limits(output.type)).astype(info(output.type).dtype))
        return {"output": np.concatenate(parts, axis=call.integer("axis"))}

    assert detection(CONCATENATION, CONCATENATION.signature(name), fault, 200)[0] == 0


# --- faults -----------------------------------------------------------------------------------------------------------


def joined(call: Call, parts: list[Array], axis: int | None = None) -> Mapping[str, Array]:
    return {"output": np.concatenate(parts, axis=call.integer("axis") if axis is None else axis)}


def stored_values(call: Call) -> Mapping[str, Array] | None:
    """Not requantised."""
    return joined(call, [a.value for a in call.all("inputs")]) if call["output"].type in QUANTIZED else None


def first_scale_for_all(call: Call) -> Mapping[str, Array] | None:
    first, *rest = call.all("inputs")
    if first.type not in QUANTIZED or not rest:
        return None
    for i in range(1, len(rest) + 1):
        same = replace(call[f"inputs{i}"], scale=first.scale, zero_point=first.zero_point)
        call = call.with_input(f"inputs{i}", same)
    return {n: r.stored for n, r in run_call(call).items()}


def parts_in_reverse(call: Call) -> Mapping[str, Array] | None:
    parts = [a.value for a in call.all("inputs")]
    return joined(call, parts[::-1]) if call["output"].type not in QUANTIZED else None


def second_twice(call: Call) -> Mapping[str, Array] | None:
    """The third input is never read."""
    parts = [a.value for a in call.all("inputs")]
    if len(parts) < 3 or parts[1].shape != parts[2].shape or call["output"].type in QUANTIZED:
        return None
    parts[2] = parts[1]
    return joined(call, parts)


def outer_axis(call: Call) -> Mapping[str, Array] | None:
    """The buffers one after another, whatever the axis."""
    if call["output"].type in QUANTIZED:
        return None
    flat = np.concatenate([a.value.reshape(-1) for a in call.all("inputs")])
    return {"output": flat.reshape(call["output"].shape)}


def not_saturated(call: Call) -> Mapping[str, Array] | None:
    output = call["output"]
    if output.type not in QUANTIZED:
        return None
    steps = CONCATENATION.kernel(Values(call))["output"] / output.scale + output.zero_point
    return {"output": np.rint(steps).astype(np.int64).astype(info(output.type).dtype)}


def rounded_down(call: Call) -> Mapping[str, Array] | None:
    output = call["output"]
    if output.type not in QUANTIZED:
        return None
    exact = run_call(call)["output"].exact
    return {"output": np.floor(exact + 1e-9).astype(info(output.type).dtype)}


def parts_swapped(call: Call) -> Mapping[str, Array] | None:
    results = [r.stored for r in run_call(call).values()]
    return {f"parts{i}": part for i, part in enumerate(results[::-1])} if len(results) > 1 else None


def strided_parts(call: Call) -> Mapping[str, Array] | None:
    """Every n-th slice instead of n runs."""
    number, axis = call.integer("num_splits"), call.integer("axis")
    moved = np.moveaxis(call["input"].value, axis, 0)
    return {f"parts{i}": np.moveaxis(moved[i::number], 0, axis) for i in range(number)}


def outer_split(call: Call) -> Mapping[str, Array] | None:
    """The buffer cut into runs, whatever the axis."""
    number = call.integer("num_splits")
    runs = np.split(call["input"].value.reshape(-1), number)
    return {f"parts{i}": run.reshape(call["parts0"].shape) for i, run in enumerate(runs)}


FAULTS: list[tuple[OperationDef, Callable[[Call], Mapping[str, Array] | None], float]] = [
    (CONCATENATION, stored_values, 0.9),
    (CONCATENATION, first_scale_for_all, 0.9),
    (CONCATENATION, parts_in_reverse, 0.9),
    (CONCATENATION, second_twice, 0.9),
    (CONCATENATION, outer_axis, 0.9),
    (CONCATENATION, not_saturated, 0.9),
    (CONCATENATION, rounded_down, 0.3),
    (SPLIT, parts_swapped, 0.9),
    (SPLIT, strided_parts, 0.9),
    (SPLIT, outer_split, 0.9),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_faults_are_noticed(definition: OperationDef, fault, least: float) -> None:
    counts = [detection(definition, signature, fault, 60) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 0
    assert seen >= least * changed, f"{seen} of {changed}"


# --- rules and levels -------------------------------------------------------------------------------------------------


def test_inputs_of_other_scales_need_level_3() -> None:
    found = set()
    for call in draws(CONCATENATION, CONCATENATION.signature("quant8_asymm"), 100, "levels"):
        one = len({(a.scale, a.zero_point) for a in (*call.all("inputs"), call["output"])}) == 1
        assert needed_level(call) == (FL1 if one else FL3)
        found.add((one, len(call.all("inputs")) > 1))
    assert found == set(itertools.product((True, False), repeat=2))


@pytest.mark.parametrize("level", [FL1, FL2, FL3, FL8])
def test_draws_keep_to_their_level(level: int) -> None:
    for definition, signature in SIGNATURES:
        if signature.since > level:
            continue
        for number in range(40):
            call = draw_call(definition, signature, Scope(SeededSource(f"level/{number}"), level=level))
            assert violations(call) == []
            if definition is CONCATENATION and call["output"].type == Q8 and level < FL3:
                assert needed_level(call) == FL1


def test_every_number_of_inputs_and_parts_is_drawn() -> None:
    concatenations = list(draws(CONCATENATION, CONCATENATION.signature("float32"), 200, "ways"))
    assert {len(c.all("inputs")) for c in concatenations} == {1, 2, 3, 4, 5}
    assert {(c["output"].rank, c.integer("axis")) for c in concatenations} == {
        (rank, axis) for rank in (1, 2, 3, 4) for axis in range(rank)
    }
    splits = list(draws(SPLIT, SPLIT.signature("float32"), 300, "ways"))
    assert {len(c.results) for c in splits} == {1, 2, 3, 4, 5, 6}
    assert {(c["input"].rank, c.integer("axis")) for c in splits} == {
        (rank, axis) for rank in (1, 2, 3, 4) for axis in range(rank)
    }


def test_rules_of_split() -> None:
    call = next(c for c in draws(SPLIT, SPLIT.signature("int32"), 20, "rules") if len(c.results) == 2)
    assert violations(call.with_input("num_splits", scalar(OperandType.INT32, 1)), FL8) == ["NUM_SPLITS"]
    negative = call.with_input("axis", scalar(OperandType.INT32, call.integer("axis") - call["input"].rank))
    assert violations(negative) == []
    for name, result in run_call(negative).items():
        assert np.array_equal(result.stored, call[name].value, equal_nan=True)
    quantized = next(draws(SPLIT, SPLIT.signature("quant8_asymm_signed"), 1, "rules"))
    last = list(quantized.results)[-1]
    other = quantized.with_result(last, replace(quantized[last], zero_point=quantized[last].zero_point ^ 1))
    assert violations(other) == ["QUANTIZATION"]


def test_negative_axis_of_concatenation_is_refused() -> None:
    call = next(draws(CONCATENATION, CONCATENATION.signature("float32"), 1, "rules"))
    assert violations(call.with_input("axis", scalar(OperandType.INT32, -1))) == ["AXIS"]
