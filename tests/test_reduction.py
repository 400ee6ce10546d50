from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from conformance.cases import may_be_relaxed
from harness.judge_output import judge_output
from harness.make import expected_outputs
from harness.verdict import Verdict
from nnhal.operations import Signature
from nnhal.types import FL1, FL2, FL3, FL4, FL8, Array, OperandType, info
from opset.call import Call, int32_tensor, scalar
from opset.definition import F16, F32, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.quantization import QUANTIZED
from opset.reduction import (
    ARGMAX,
    ARGMIN,
    MEAN,
    REDUCE_ALL,
    REDUCE_ANY,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_PROD,
    REDUCE_SUM,
)
from opset.source import SeededSource
from opset.validation import violations
from opset.values import Values
from tests.judging import complaints_on_variants, detection, draws, noticed
from tests.naive import assert_real, assert_steps, onnx_result, rational
from tests.reduction_faults import FAULTS, POSITIONS, REDUCTIONS, Answer, stored_sums
from tests.variants import complaints, in_float16, objections

DEFINITIONS = (*REDUCTIONS, *POSITIONS)
ONNX_NAMES = {
    MEAN.name: "ReduceMean",
    REDUCE_SUM.name: "ReduceSum",
    REDUCE_PROD.name: "ReduceProd",
    REDUCE_MAX.name: "ReduceMax",
    REDUCE_MIN.name: "ReduceMin",
    ARGMAX.name: "ArgMax",
    ARGMIN.name: "ArgMin",
}


def pairs(*definitions: OperationDef) -> list[tuple[OperationDef, Signature]]:
    return [(d, s) for d in definitions for s in d.signatures]


def ids(found: list[tuple[OperationDef, Signature]]) -> list[str]:
    return [f"{d.name}-{s.id}" for d, s in found]


def cases(*definitions: OperationDef) -> pytest.MarkDecorator:
    found = pairs(*definitions)
    return pytest.mark.parametrize(("definition", "signature"), found, ids=ids(found))


# --- second opinions --------------------------------------------------------------------------------------------------


def groups(call: Call) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """The places of the input behind each place of the result, one after another."""
    source, keep = call["input"], call["keep_dims"].item() > 0
    listed = call["axes"].value.tolist()
    axes = [axis + source.rank if axis < 0 else axis for axis in listed]
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for place in itertools.product(*map(range, source.shape)):
        if keep:
            target = tuple(0 if axis in axes else i for axis, i in enumerate(place))
        else:
            target = tuple(i for axis, i in enumerate(place) if axis not in axes) or (0,)
        found.setdefault(target, []).append(place)
    return found


@cases(MEAN, REDUCE_SUM, REDUCE_PROD)
def test_rational_numbers_agree(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 60, "opinion"):
        result, source = run_call(call)["output"], call["input"]
        behind = groups(call)
        assert len(behind) == result.stored.size
        for target, places in behind.items():
            terms = [rational(source, place) for place in places]
            if definition is REDUCE_PROD:
                assert_real(result, target, math.prod(terms))
                continue
            due = sum(terms, Fraction(0)) / (len(terms) if definition is MEAN else 1)
            if source.type in QUANTIZED:
                assert_steps(result, call["output"], target, due)
            else:
                assert_real(result, target, due, float(sum(map(abs, terms))))


@cases(REDUCE_MAX, REDUCE_MIN, REDUCE_ALL, REDUCE_ANY)
def test_a_loop_agrees(definition: OperationDef, signature: Signature) -> None:
    choose: Callable[..., object] = {"MAX": max, "MIN": min, "ALL": all, "ANY": any}[definition.name[-3:]]
    for call in draws(definition, signature, 100, "opinion"):
        result, value = run_call(call)["output"].stored, call["input"].value
        behind = groups(call)
        assert len(behind) == result.size
        for target, places in behind.items():
            assert result[target] == choose([value[place].item() for place in places])


@cases(MEAN, REDUCE_SUM, REDUCE_PROD, REDUCE_MAX, REDUCE_MIN)
def test_onnx_agrees_on_reductions(definition: OperationDef, signature: Signature) -> None:
    if signature.row.types["input"] != F32:
        return
    for call in draws(definition, signature, 200, "onnx"):
        axes = tuple(sorted({axis % call["input"].rank for axis in call["axes"].value.tolist()}))
        keep = int(call["keep_dims"].item() > 0)
        # Its older form, with axes as an attribute, takes no repeats: they are gone here.
        due = reduce_onnx(ONNX_NAMES[definition.name], call["input"].value.astype(np.float64), axes, keep)
        due = due.reshape(1) if due.ndim == 0 else due
        result = run_call(call)["output"]
        assert result.exact.shape == due.shape
        assert np.allclose(result.exact, due, rtol=1e-12, atol=1e-11)


def reduce_onnx(operator: str, x: Array, axes: tuple[int, ...], keep: int) -> Array:
    node = helper.make_node(operator, ["x", "axes"], ["y"], keepdims=keep)
    inputs = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, None)]
    inputs.append(helper.make_tensor_value_info("axes", TensorProto.INT64, None))
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    return np.asarray(ReferenceEvaluator(model).run(None, {"x": x, "axes": np.array(axes, np.int64)})[0])


@cases(*POSITIONS)
def test_a_loop_and_onnx_agree_on_positions(definition: OperationDef, signature: Signature) -> None:
    better = (lambda new, old: new > old) if definition is ARGMAX else (lambda new, old: new < old)
    tied = 0
    for call in draws(definition, signature, 100, "opinion"):
        value, axis = call["input"].value, call.integer("axis")
        result = run_call(call)["output"].stored
        if value.dtype in (np.float32, np.int32):
            by_onnx = onnx_result(ONNX_NAMES[definition.name], value, axis=axis, keepdims=0, select_last_index=0)
            assert np.array_equal(by_onnx.reshape(result.shape), result)
        rows = np.moveaxis(value, axis, -1)
        flat = result.reshape(rows.shape[:-1])
        for place in np.ndindex(rows.shape[:-1]):
            best = 0
            row = [x.item() for x in rows[place]]
            for i, x in enumerate(row):
                best = i if better(x, row[best]) else best
            assert flat[place] == best
            tied += row.count(row[best]) > 1
    assert tied > 50


# --- correct arithmetic of another kind -------------------------------------------------------------------------------


@pytest.mark.thorough
@cases(*DEFINITIONS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 40) == []
    if definition not in POSITIONS or signature.row.types["input"] != F32:
        count = 200 if definition in (MEAN, REDUCE_SUM, REDUCE_PROD) else 40
        assert objections(definition, signature, count) == []


@pytest.mark.parametrize("definition", POSITIONS, ids=lambda d: d.name)
def test_positions_are_the_same_in_relaxed_models(definition: OperationDef) -> None:
    calls = list(draws(definition, definition.signature("float32"), 200, "relaxed"))
    relaxed = [call for call in calls if may_be_relaxed(call)]
    assert 80 < len(relaxed) < 160
    for call in relaxed:
        assert complaints(call, in_float16(call), relaxed=True) == []


@cases(REDUCE_SUM, REDUCE_PROD)
def test_accumulation_in_float16_is_right_for_float16(definition: OperationDef, signature: Signature) -> None:
    """One term after another, as public code does it."""
    if signature.row.types["input"] != F16:
        return
    ufunc = np.add if definition is REDUCE_SUM else np.multiply

    def one_by_one(call: Call) -> Mapping[str, Array]:
        axes = tuple({axis % call["input"].rank for axis in call["axes"].value.tolist()})
        moved = np.moveaxis(call["input"].value, axes, range(len(axes))).reshape(-1, call["output"].value.size)
        total = moved[0]
        for row in moved[1:]:
            total = ufunc(total, row)
        return {"output": total.reshape(call["output"].shape)}

    assert detection(definition, signature, one_by_one, 200)[0] == 0


@cases(MEAN)
def test_a_truncated_mean_is_legal(definition: OperationDef, signature: Signature) -> None:
    """Public code divides stored sums and truncates: never further off than one step, but no good arithmetic."""
    if signature.row.types["input"] not in QUANTIZED:
        return
    found = []
    for call in draws(definition, signature, 200, "truncated"):
        sums, count = stored_sums(call)
        quotient = np.trunc(sums / count).astype(info(call["output"].type).dtype)
        judged = judge_output(expected_outputs(call)[0], quotient)
        found.append(judged.verdict)
        if quotient.size < 32:
            assert judged.verdict == Verdict.PASS
    assert Verdict.FAIL not in found
    assert Verdict.POOR in found


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=[f"{d.name}-{f.__name__}" for d, f, _ in FAULTS])
def test_faults_are_noticed(definition: OperationDef, fault: Callable[[Call], Answer], least: float) -> None:
    counts = [detection(definition, signature, fault, 100) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 0
    assert seen >= least * changed, f"{seen} of {changed}"


# --- what is left open, rules, draws ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("definition", "sign"), [(REDUCE_MAX, 1), (REDUCE_MIN, -1)], ids=["max", "min"])
def test_infinities(definition: OperationDef, sign: int) -> None:
    """The winning one wins; where there is only the losing one, public code gives the last finite value instead."""
    inf = sign * np.inf
    call = next(c for c in draws(definition, definition.signature("float32"), 50, "inf") if c["input"].rank == 2)
    x = np.array([[1.0, inf], [-inf, 2.0], [-inf, -inf]], np.float32)
    call = call.with_input("input", replace(call["input"], value=x, shape=x.shape))
    call = call.with_input("axes", int32_tensor([1])).with_input("keep_dims", scalar(OperandType.BOOL, False))
    call = call.with_result("output", replace(call["output"], shape=(3,)))
    due = np.array([inf, 2.0, -inf], np.float32)
    assert np.array_equal(run_call(call)["output"].stored, due)
    assert not noticed(call, {"output": due})
    lowest = np.array([inf, 2.0, -sign * np.finfo(np.float32).max], np.float32)
    assert not noticed(call, {"output": lowest})
    wrong = np.array([sign * np.finfo(np.float32).max, 2.0, -inf], np.float32)
    assert noticed(call, {"output": wrong})


def test_nan_is_left_open() -> None:
    call = next(c for c in draws(ARGMAX, ARGMAX.signature("float32"), 50, "nan") if c["input"].rank == 2)
    x = np.array([[1.0, np.nan, 2.0], [3.0, 2.0, 3.0]], np.float32)
    call = call.with_input("input", replace(call["input"], value=x, shape=x.shape))
    call = call.with_input("axis", scalar(OperandType.INT32, -1))
    call = call.with_result("output", replace(call["output"], shape=(2,)))
    for first in (0, 1, 2):
        assert not noticed(call, {"output": np.array([first, 0], np.int32)})
    assert noticed(call, {"output": np.array([1, 2], np.int32)})


def test_no_axes_reduce_nothing() -> None:
    for definition in (MEAN, REDUCE_SUM, REDUCE_MAX):
        call = next(draws(definition, definition.signature("float32"), 1, "empty"))
        call = call.with_input("axes", int32_tensor([]))
        assert definition.infer(call)["output"] == call["input"].shape
        assert np.array_equal(definition.kernel(Values(call))["output"], call["input"].value)


def test_every_way_to_name_axes_is_drawn() -> None:
    found = list(draws(MEAN, MEAN.signature("float32"), 400, "ways"))
    lists = [(c["input"].rank, c["axes"].value.tolist()) for c in found]
    assert {rank for rank, _ in lists} == {1, 2, 3, 4}
    assert {axis for rank, axes in lists if rank == 4 for axis in axes} == set(range(-4, 4))
    distinct = [(rank, {axis % rank for axis in axes}, axes) for rank, axes in lists]
    repeated = sum(len(axes) > len(some) for _, some, axes in distinct) / len(found)
    full = sum(len(some) == rank for rank, some, _ in distinct) / len(found)
    assert 0.15 < repeated < 0.4
    assert 0.1 < full < 0.4
    assert {c.integer("keep_dims") for c in found} == {-1, 0, 1, 100}
    assert {len(some) for rank, some, _ in distinct if rank == 4} == {1, 2, 3, 4}
    assert any(c["output"].shape == (1,) and c["input"].rank > 1 for c in found)


@pytest.mark.parametrize("level", [FL1, FL2, FL3, FL4, FL8])
def test_draws_keep_to_their_level(level: int) -> None:
    for definition, signature in pairs(*DEFINITIONS):
        if signature.since <= level:
            for number in range(20):
                call = draw_call(definition, signature, Scope(SeededSource(f"level/{number}"), level=level))
                assert violations(call) == []


def test_draws_in_a_graph() -> None:
    """Operands that exist are taken, and results of the one operation serve the next."""
    for seed in range(30):
        scope = Scope(SeededSource(f"graph/{seed}"), reuse=90)
        for definition, signature in pairs(*DEFINITIONS):
            call = draw_call(definition, signature, scope)
            assert violations(call) == []
            for result in call.results.values():
                if result.value.dtype.kind == "f" and definition not in (REDUCE_MAX, REDUCE_MIN):
                    assert np.isfinite(result.value).all()
