from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import FL3, FL4, Array
from opset.call import Call, omitted, scalar
from opset.definition import OperationDef
from opset.evaluate import run_call
from opset.fixed_point import logistic_q15, over_root, rescale, rounding_shift, tanh_q15
from opset.recurrent import (
    BIDIRECTIONAL_SEQUENCE_LSTM,
    BIDIRECTIONAL_SEQUENCE_RNN,
    LSTM,
    QUANTIZED_16BIT_LSTM,
    QUANTIZED_LSTM,
    RNN,
    SVDF,
    UNIDIRECTIONAL_SEQUENCE_LSTM,
    UNIDIRECTIONAL_SEQUENCE_RNN,
)
from opset.validation import needed_level, violations
from tests.judging import detection, draws, noticed
from tests.recurrent_opinion import by_loops, narrow_in_reals, stored, svdf_by_loops, wide_in_reals
from tests.variants import objections

FLOATS = (
    RNN,
    UNIDIRECTIONAL_SEQUENCE_RNN,
    BIDIRECTIONAL_SEQUENCE_RNN,
    LSTM,
    UNIDIRECTIONAL_SEQUENCE_LSTM,
    BIDIRECTIONAL_SEQUENCE_LSTM,
    SVDF,
)
QUANTIZED = ((QUANTIZED_16BIT_LSTM, narrow_in_reals), (QUANTIZED_LSTM, wide_in_reals))
CELLS = (LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM, BIDIRECTIONAL_SEQUENCE_LSTM)
SIGNATURES = [(d, s) for d in FLOATS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_second_opinion(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 20 if definition in CELLS else 60, "opinion"):
        results = run_call(call)
        other = svdf_by_loops(call) if definition is SVDF else by_loops(call)
        for name in set(results) - {"scratch"}:
            np.testing.assert_allclose(results[name].exact, other[name], rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize(("definition", "in_reals"), QUANTIZED, ids=lambda x: getattr(x, "name", None))
def test_quantised_cells_are_the_real_ones(definition: OperationDef, in_reals) -> None:
    """The cell computed in real numbers and rounded once is judged to be right."""
    for call in draws(definition, definition.signatures[0], 200, "opinion"):
        assert not noticed(call, stored(call, in_reals(call)))


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert objections(definition, signature, 30) == []


# --- fixed point ------------------------------------------------------------------------------------------------------


def test_gates_in_16_bits_are_close_to_the_functions() -> None:
    x = np.arange(-(2**15), 2**15, dtype=np.int64)
    assert np.abs(logistic_q15(x) - 2**15 / (1 + np.exp(-x / 2**12))).max() < 7
    for bits in (9, 10, 11, 12, 13, 15):
        assert np.abs(tanh_q15(x, bits) - 2**15 * np.tanh(x / 2**bits)).max() < 13
    assert np.array_equal(tanh_q15(-x[1:]), -tanh_q15(x[1:]))
    assert np.all(logistic_q15(x[1:]) + logistic_q15(-x[1:]) >= 2**15 - 1)


def test_rescaling_rounds_twice() -> None:
    # 5 * 0.75 * 2^-3 = 0.46875: the first rounding gives 4, and 4 / 8 goes away from zero
    assert rescale(np.array([5, -5, 0, 1000]), 0.75 * 2.0**-3).tolist() == [1, -1, 0, 94]
    assert rescale(np.array([3, -7]), 40.0).tolist() == [120, -280]
    assert rounding_shift(np.array([2, -2, 1, -6]), 2).tolist() == [1, -1, 0, -2]
    # 32256 / sqrt(656) = 1259.385; with two bits left it is 5038 / 4 = 1259.5
    assert over_root(np.array([[32256, -32256]]), np.array([[656]])).tolist() == [[1260, -1260]]


# --- faults -----------------------------------------------------------------------------------------------------------


def results_of(call: Call, original: Call) -> Mapping[str, Array]:
    return {name: r.stored for name, r in run_call(replace(call, results=original.results)).items()}


def scalar_changed(name: str, value: float):
    def fault(call: Call) -> Mapping[str, Array] | None:
        if name not in call.inputs or call[name].item() == value:
            return None
        return results_of(call.with_input(name, scalar(call[name].type, value)), call)

    fault.__name__ = f"{name}_is_{value}"
    return fault


def without(*endings: str):
    """Operands whose names end so are taken for omitted."""

    def fault(call: Call) -> Mapping[str, Array] | None:
        there = [n for n in call.inputs if n.endswith(endings) and call.has(n)]
        if not there:
            return None
        for name in there:
            call = call.with_input(name, omitted(call[name].type))
        return results_of(call, call)

    fault.__name__ = f"without_{endings[0]}"
    return fault


def zeroed(ending: str):
    """Operands whose names end so are taken for 0."""

    def fault(call: Call) -> Mapping[str, Array] | None:
        changed = call
        for name in call.inputs:
            if name.endswith(ending) and call.has(name):
                value = np.full_like(call[name].value, call[name].zero_point)
                changed = changed.with_input(name, replace(call[name], value=value))
        return results_of(changed, call)

    fault.__name__ = f"no_{ending}"
    return fault


def states_swapped_in_time(call: Call) -> Mapping[str, Array] | None:
    """The sequence is read with time and batch exchanged."""
    shape = call["input"].shape
    if shape[0] == shape[1] == 1:
        return None
    changed = call
    for name in ("input", "aux_input"):
        if name in call.inputs and call.has(name):
            value = call[name].value
            turned = value.reshape(shape[1], shape[0], -1).swapaxes(0, 1)
            changed = changed.with_input(name, replace(call[name], value=np.ascontiguousarray(turned)))
    return results_of(changed, call)


def backward_read_forward(call: Call) -> Mapping[str, Array] | None:
    """The backward cell's outputs stand in the order in which they were made."""
    if "fw_output" not in call.results or call["input"].shape[0 if call["time_major"].item() else 1] == 1:
        return None
    axis = 0 if call["time_major"].item() else 1
    found = {n: r.stored for n, r in run_call(call).items()}
    if "bw_output" in found:
        return {**found, "bw_output": np.flip(found["bw_output"], axis)}
    rows = call["bw_hidden_state_in" if "bw_bias" in call.inputs else "bw_activation_state_in"].shape[1]
    merged = found["fw_output"].copy()
    merged[..., -rows:] = np.flip(merged[..., -rows:], axis)
    return {**found, "fw_output": merged}


def state_not_updated(call: Call) -> Mapping[str, Array] | None:
    """State results are what came in."""
    found = {n: r.stored for n, r in run_call(call).items()}
    names = {n: n.removesuffix("_out") + "_in" for n in found if n.endswith("_out")}
    if call.definition is QUANTIZED_16BIT_LSTM:
        names = {"cell_state_out": "prev_cell_state"}
    if not names or any(n not in call.inputs for n in names.values()):
        return None
    return {**found, **{n: call[source].value for n, source in names.items()}}


def svdf_state_not_moved(call: Call) -> Mapping[str, Array] | None:
    found = {n: r.stored for n, r in run_call(call).items()}
    slots = call["weights_time"].shape[1]
    moved = found["state_out"].reshape(-1, slots)
    return {**found, "state_out": np.roll(moved, 1, axis=1).reshape(found["state_out"].shape)} if slots > 1 else None


FAULTS = [
    (LSTM, scalar_changed("cell_clip", 0.0), 0.9),
    (LSTM, scalar_changed("proj_clip", 0.0), 0.9),
    (LSTM, without("projection_bias"), 0.9),
    (LSTM, without("cell_to_input_w", "cell_to_forget_w", "cell_to_output_w"), 0.9),
    (LSTM, without("_layer_norm_w"), 0.9),
    (LSTM, zeroed("output_gate_bias"), 0.8),
    (LSTM, zeroed("cell_state_in"), 0.9),
    (LSTM, zeroed("output_state_in"), 0.9),
    (UNIDIRECTIONAL_SEQUENCE_LSTM, scalar_changed("cell_clip", 0.0), 0.9),
    (UNIDIRECTIONAL_SEQUENCE_LSTM, scalar_changed("proj_clip", 0.0), 0.9),
    (UNIDIRECTIONAL_SEQUENCE_LSTM, without("projection_bias"), 0.9),
    (UNIDIRECTIONAL_SEQUENCE_LSTM, states_swapped_in_time, 0.9),
    (UNIDIRECTIONAL_SEQUENCE_LSTM, state_not_updated, 0.9),
    (BIDIRECTIONAL_SEQUENCE_LSTM, scalar_changed("cell_clip", 0.0), 0.9),
    (BIDIRECTIONAL_SEQUENCE_LSTM, scalar_changed("proj_clip", 0.0), 0.9),
    (BIDIRECTIONAL_SEQUENCE_LSTM, without("projection_bias"), 0.85),
    (BIDIRECTIONAL_SEQUENCE_LSTM, backward_read_forward, 0.9),
    (BIDIRECTIONAL_SEQUENCE_LSTM, zeroed("aux_input"), 0.9),
    (RNN, scalar_changed("activation", 0), 0.9),
    (RNN, zeroed("bias"), 0.9),
    (UNIDIRECTIONAL_SEQUENCE_RNN, states_swapped_in_time, 0.9),
    (UNIDIRECTIONAL_SEQUENCE_RNN, scalar_changed("activation", 0), 0.9),
    (UNIDIRECTIONAL_SEQUENCE_RNN, state_not_updated, 0.9),
    (BIDIRECTIONAL_SEQUENCE_RNN, backward_read_forward, 0.9),
    (BIDIRECTIONAL_SEQUENCE_RNN, zeroed("aux_input"), 0.9),
    (BIDIRECTIONAL_SEQUENCE_RNN, state_not_updated, 0.9),
    (SVDF, svdf_state_not_moved, 0.9),
    (SVDF, zeroed("bias"), 0.9),
    (SVDF, scalar_changed("activation", 0), 0.9),
    (QUANTIZED_16BIT_LSTM, zeroed("cell_bias"), 0.9),
    (QUANTIZED_16BIT_LSTM, zeroed("prev_output"), 0.9),
    (QUANTIZED_16BIT_LSTM, state_not_updated, 0.9),
    (QUANTIZED_LSTM, scalar_changed("cell_clip", 0.0), 0.9),
    (QUANTIZED_LSTM, zeroed("projection_bias"), 0.9),
    (QUANTIZED_LSTM, zeroed("output_gate_bias"), 0.8),
    (QUANTIZED_LSTM, zeroed("prev_output"), 0.9),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_faults_are_noticed(definition: OperationDef, fault, least: float) -> None:
    counts = [detection(definition, signature, fault, 40) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 0
    assert seen >= least * changed, f"{seen} of {changed}"


# --- forms, levels, shapes --------------------------------------------------------------------------------------------


def test_numbers_of_results_have_their_levels_and_names() -> None:
    levels = {s.id: s.since for s in BIDIRECTIONAL_SEQUENCE_LSTM.signatures}
    assert levels == {f"{t}/out{n}": FL3 if n < 3 else FL4 for t in ("float32", "float16") for n in (1, 2, 5, 6)}
    names = BIDIRECTIONAL_SEQUENCE_LSTM.info.result_names
    assert names(1) == ("fw_output",)
    assert names(2) == ("fw_output", "bw_output")
    assert names(5) == tuple(n for n in names(6) if n != "bw_output")
    assert BIDIRECTIONAL_SEQUENCE_RNN.info.result_names(3) == (
        "fw_output",
        "fw_hidden_state_out",
        "bw_hidden_state_out",
    )
    assert UNIDIRECTIONAL_SEQUENCE_RNN.info.result_names(1) == ("output",)


@pytest.mark.parametrize("definition", FLOATS, ids=lambda d: d.name)
def test_draws_need_the_level_of_their_signature(definition: OperationDef) -> None:
    for signature in definition.signatures:
        for call in draws(definition, signature, 20, "levels"):
            assert needed_level(call) == signature.since
            assert violations(call, signature.since) == []


def test_every_linking_is_drawn_and_parallel_only_with_states() -> None:
    seen = set()
    for definition, weights in (
        (BIDIRECTIONAL_SEQUENCE_LSTM, "fw_aux_input_to_cell_w"),
        (BIDIRECTIONAL_SEQUENCE_RNN, "fw_aux_weights"),
    ):
        for signature in definition.signatures:
            for call in draws(definition, signature, 40, "linking"):
                parallel = call.has("aux_input") and not call.has(weights)
                seen.add((definition.name, call.has("aux_input"), call.has(weights)))
                assert not parallel or "fw_cell_state_out" in call.results or "fw_hidden_state_out" in call.results
    assert len(seen) == 6


@pytest.mark.parametrize("definition", CELLS, ids=lambda d: d.name)
def test_clips_clip_in_most_draws_that_have_them(definition: OperationDef) -> None:
    for name in ("cell_clip", "proj_clip"):
        changed = []
        for call in draws(definition, definition.signatures[0], 150, "clips"):
            bound = call[name].item()
            if bound > 0 and (name == "cell_clip" or any(call.has(f"{p}projection_w") for p in ("", "fw_", "bw_"))):
                free = results_of(call.with_input(name, scalar(call[name].type, 0.0)), call)
                truth = run_call(call)
                changed.append(any(not np.array_equal(free[n], truth[n].stored) for n in truth))
        assert np.mean(changed) > 0.7, name


def test_scratch_is_not_compared() -> None:
    for call in draws(LSTM, LSTM.signatures[0], 20, "scratch"):
        found = {n: r.stored for n, r in run_call(call).items()}
        gates = 4 if call.has("input_to_input_w") else 3
        assert found["scratch"].shape == (call["input"].shape[0], gates * call["cell_state_in"].shape[1])
        assert not noticed(call, {**found, "scratch": np.full_like(found["scratch"], 99)})
