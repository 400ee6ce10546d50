"""The .tflite importer: every operator against LiteRT's interpreter, and files that the adapter writes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert.schema_py_generated")
pytest.importorskip("flatbuffers")

from drivers.litert_translate import TRANSLATORS, translate
from importers.tflite_file import TRANSLATORS as IMPORTED
from importers.tflite_file import import_tflite
from nnhal.types import OperationType
from nnhal.validate import violations
from opset import OPSET
from opset.evaluate import allowance, run_call
from opset.graph import evaluate
from opset.quantization import QUANTIZED
from tests.tflite_cases import CASES, built, chain, drawn
from tests.tflite_files import File, agree, check, interpreter, ours, run, steps, values_for
from tests.thorough import one_in_three


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_litert(name):
    _, tolerance, low, high, steps_off, runs = CASES[name]
    check(built(name), name, tolerance, low, high, steps_off, runs)


def test_what_this_runtime_cannot_show():
    """Operators that its plain kernels lack or compute wrongly, against their formulas."""
    f, rng = File(), np.random.default_rng(2)
    a = f.input((3, 1))
    b, truths = f.input((2, 5, 3), "int8", steps(0.05, 3)), f.input((3, 1), "bool")
    results = [
        f.add("CEIL", [a], (3, 1)),
        f.add("BROADCAST_TO", [a, f.constant([2, 3, 4], "int32")], (2, 3, 4)),
        f.add("BROADCAST_TO", [truths, f.constant([3, 4], "int32")], (3, 4), "bool"),
        f.add("SUM", [b, f.constant([-1, 1], "int32")], (2,), "int8", steps(0.4, -7), options="ReducerOptions"),
    ]
    imported = import_tflite(f.finish(*results), "more.tflite")
    values = [
        rng.uniform(-3, 3, (3, 1)).astype(np.float32),
        rng.integers(-128, 128, (2, 5, 3)).astype(np.int8),
        rng.integers(0, 2, (3, 1)) > 0,
    ]
    found, _ = ours(imported, values, [])
    sums = np.clip(np.round(((values[1].astype(float) - 3) * 0.05).sum((1, 2)) / 0.4 - 7), -128, 127)
    due = [np.ceil(values[0]), np.broadcast_to(values[0], (2, 3, 4)), np.broadcast_to(values[2], (3, 4)), sums]
    for one, other in zip(found, due, strict=True):
        agree(one, np.asarray(other, one.dtype), 1e-6, 1)


# --- the other way round ----------------------------------------------------------------------------------------------

RANDOM = frozenset({"RANDOM_MULTINOMIAL"})
DRAWS = 2


def round_trip(code):
    """How many drawn models of an operation came back from a file, each checked against what went in."""
    definition, done = OPSET[code], 0
    for signature, number in itertools.product(definition.signatures, range(DRAWS)):
        call, model, values = drawn(definition, signature, number)
        data = translate(model).artifact
        if data is None:
            continue
        imported = import_tflite(data, definition.name)
        back = imported.require()
        assert violations(back) == []
        done += 1
        if definition.name in RANDOM:
            continue
        due = evaluate(model, values)
        found = evaluate(back, values)
        for (name, argument), one, other in zip(call.results.items(), found, due, strict=True):
            if name == "scratch":  # what it holds is left open
                continue
            assert one.stored.reshape(-1).shape == other.stored.reshape(-1).shape
            exact = argument.type in QUANTIZED or other.stored.dtype.kind != "f"
            tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-6, "atol": 1e-6}
            np.testing.assert_allclose(one.stored.reshape(-1), other.stored.reshape(-1), **tolerance)
    return done


@pytest.mark.parametrize("code", sorted(TRANSLATORS, key=int), ids=lambda code: OperationType(code).name)
def test_what_the_translator_writes_comes_back(code):
    name = OperationType(code).name
    assert round_trip(code) > 0 or name in {"SVDF", "TOPK_V2", "ELU"}  # of these no draw has a file


def litert_agrees(code):
    """Compares imported models of drawn calls with LiteRT's interpreter, within what the contract allows."""
    definition = OPSET[code]
    for signature in definition.signatures:
        call, model, values = drawn(definition, signature, 0)
        data = translate(model).artifact
        if data is None or (definition.name in COMPARISONS and "quant8" in signature.id):
            continue
        try:
            made = interpreter(data)
            taken = [np.asarray(v).astype(d["dtype"]) for v, d in zip(values, made.get_input_details(), strict=True)]
            due = run(made, taken)
        except (RuntimeError, ValueError):  # types that this build of the runtime does not take
            continue
        found = evaluate(import_tflite(data, definition.name).require(), values)
        allowed = allowance(call, run_call(call))
        for name, one, other in zip(call.results, found, due, strict=True):
            with np.errstate(invalid="ignore"):
                off = np.abs(one.stored.astype(float).reshape(-1) - other.astype(float).reshape(-1))
            least = 1 if call.results[name].type in QUANTIZED else 0
            bound = np.broadcast_to(np.maximum(allowed[name].required, least), one.stored.shape).reshape(-1)
            assert ((off <= bound) | np.isnan(off)).all(), signature.id


# What LiteRT computes by rules of its own, which tests/test_litert.py and docs/findings-litert.md know; and states.
OWN_RULES = frozenset({"RANDOM_MULTINOMIAL", "LOCAL_RESPONSE_NORMALIZATION"})
COMPARISONS = frozenset({"EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"})  # in steps of 1/256


COMPARED = [
    code
    for code in sorted(TRANSLATORS, key=int)
    if OperationType(code).name not in OWN_RULES and not any("state" in result.name for result in OPSET[code].results)
]


@pytest.mark.parametrize("code", one_in_three(COMPARED), ids=lambda code: OperationType(code).name)
def test_litert_agrees_on_drawn_operations(code):
    litert_agrees(code)


def test_every_operator_that_is_imported_has_been_compared():
    seen = set()
    for name in CASES:
        seen.update(import_tflite(built(name), name).operators)
    for definition in (OPSET[code] for code in TRANSLATORS):
        for signature, number in itertools.product(definition.signatures[:6], range(DRAWS)):
            data = translate(drawn(definition, signature, number)[1]).artifact
            seen.update(import_tflite(data, "drawn").operators if data is not None else ())
    assert set(IMPORTED) - seen <= {"BROADCAST_TO", "CEIL", "SUM"}  # test_what_this_runtime_cannot_show has these


def test_every_tensor_on_the_way_agrees():
    data = chain()
    imported = import_tflite(data, "chain.tflite")
    model, made = imported.require(), interpreter(data, keep_all=True)
    assert imported.operators == ("CONV_2D", "MAX_POOL_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX", "DEQUANTIZE")
    assert imported.origins == (0, 1, 2, 3, 3, 3, 4, 5)  # a dense layer with scales per channel is three operations
    values = values_for(made.get_input_details(), np.random.default_rng(8))
    run(made, values)
    seen = {}
    main = model.main
    opened = replace(model, main=replace(main, output_indexes=tuple(o for x in main.operations for o in x.outputs)))
    for index, result in zip(opened.main.output_indexes, evaluate(opened, values), strict=True):
        seen[index] = result.stored
    compared = 0
    for detail in made.get_tensor_details():
        place = imported.places.get(str(detail["index"]))
        if place in seen:
            agree(seen[place], made.get_tensor(detail["index"]), 1e-6, 1)
            compared += 1
    assert compared == len(imported.operators)


def test_states_are_the_last_ports():
    imported = import_tflite(built("sequence_lstm"), "lstm.tflite")
    assert imported.states == 2
    assert [port.dimensions for port in imported.inputs] == [(2, 6, 3), (2, 4), (2, 4)]
    assert [port.dimensions for port in imported.outputs] == [(2, 6, 4), (2, 4), (2, 4)]


def test_ports_say_what_the_file_says():
    imported = import_tflite(built("cast_int64_to_int32"), "cast.tflite")
    assert [(port.dtype, port.dimensions) for port in (*imported.inputs, *imported.outputs)] == [
        ("int64", (3,)),
        ("int32", (3,)),
    ]
    quantized = import_tflite(built("requantize"), "steps.tflite").inputs[0]
    assert (quantized.dtype, quantized.scale, quantized.zero_point) == ("int8", pytest.approx(0.05), 3)
