"""LSTM in floats: one step, and a sequence. The cell is `recurrent_cell`'s."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnhal.operations import Form, TypeRow
from nnhal.types import FL1, FL3, FL4, Array, OperandType, OperationType
from opset.call import Call
from opset.definition import (
    F16,
    F32,
    Bound,
    Example,
    Judging,
    LeftOpen,
    OperationDef,
    Shapes,
    boolean,
    form,
    half_units,
    tensor,
)
from opset.drawing import Draft
from opset.recurrent_cell import (
    GATES,
    SCALAR_RULES,
    SCALARS,
    group_rules,
    in_time,
    norm_operands,
    ranks_rule,
    read_cell,
    shape_rules,
    sizes_of,
    weight_operands,
)
from opset.recurrent_draws import draw_cell, draw_frame, draw_scalars
from opset.recurrent_numbers import REACH_WORDS, Number, Numbers, PlainNumbers, ReachedNumbers
from opset.values import Values

FEW = 4  # roundings of a step beside those of its sums
CELL = (
    "i, f, o = sigmoid(W x + R h + p * c + b) for the input, forget and output gate, g = act(W x + R h + b), "
    "c' = clip(f * c + i * g), h' = o * act(c'), with a projection clip(P h' + b). The output gate's peephole sees c', "
    "the others c. Without an input gate (CIFG) i = 1 - f. With layer normalisation the sum of a gate becomes "
    "(z - mean) / sqrt(variance + 1e-8) over the units, times its weights, and the bias is added after it; public code "
    "takes the epsilon for a variance of 0 alone, which the bound allows for. Without a projection "
    "its clip does nothing."
)


def float_rows(parts: tuple[Form, ...], results: tuple[str, ...]) -> tuple[TypeRow, ...]:
    """Type rows: all tensors of one float type, the clips scalars of the same."""
    names = {o.name for f in parts for o in f.operands if o.type is None}
    rows = []
    for name, kind, number, since in (
        ("float32", F32, OperandType.FLOAT32, FL1),
        ("float16", F16, OperandType.FLOAT16, FL3),
    ):
        types = {n: number if n.endswith("_clip") else kind for n in (*sorted(names), *results)}
        rows.append(TypeRow(name, since, types))
    return tuple(rows)


def step_terms(call: Call, *prefixes: str) -> float:
    """Terms of a bound for one step's longest sums: n products, summed one by one, are off by n units at most."""
    most = 0
    for prefix in prefixes:
        size = sizes_of(call, prefix)
        aux = call["aux_input"].shape[-1] if prefix and call.has("aux_input") else 0
        most = max(most, size.inputs + size.outputs + aux, size.units)
    return most / 2 + FEW


TERMS_WORDS = half_units(f"(most products of a sum / 2 + {FEW})", REACH_WORDS)


# --- LSTM -------------------------------------------------------------------------------------------------------------


def _step(v: Values, numbers: Numbers[Number]) -> dict[str, Number]:
    cell = read_cell(v, numbers)
    x, h, c = (numbers.known(v[name]) for name in ("input", "output_state_in", "cell_state_in"))
    h, c, gates = cell.step(x, None, h, c)
    return {"scratch": numbers.join(gates, 1), "output_state_out": h, "cell_state_out": c, "output": h}


def _bound_step(v: Values, results: Mapping[str, Array]) -> Bound:
    terms = step_terms(v.call, "")
    return Bound(_step(v, ReachedNumbers(v, terms))[next(iter(results))].reach, terms)


def _infer_step(call: Call) -> Shapes:
    size = sizes_of(call)
    state, cell = (size.batch, size.outputs), (size.batch, size.units)
    gates = 4 if call.has("input_to_input_w") else 3
    scratch = (size.batch, gates * size.units)
    return {"scratch": scratch, "output_state_out": state, "cell_state_out": cell, "output": state}


def _open_scratch(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    del v
    return {"scratch": np.ones(results["scratch"].shape, np.bool_)}


def _draw_step(draft: Draft) -> None:
    frame = draw_frame(draft, 1)
    draft.tensor("input", (frame.batch, frame.inputs))
    draw_scalars(draft, draw_cell(draft, frame))


STATES = (
    tensor("output_state_in", "[batch, output_size]: output of the step before.", 2, 2),
    tensor("cell_state_in", "[batch, num_units]: cell state of the step before.", 2, 2),
)
LSTM_FORMS = (
    Form(
        "default",
        (
            tensor("input", "[batch, input_size].", 2, 2),
            *weight_operands(),
            *STATES,
            *SCALARS,
            *norm_operands(),
        ),
        ((23, FL1), (27, FL3)),
    ),
)
LSTM_RESULTS = (
    tensor("scratch", "[batch, num_units * 4], * 3 under CIFG. Contents not defined.", 2, 2),
    tensor("output_state_out", "[batch, output_size].", 2, 2),
    tensor("cell_state_out", "[batch, num_units].", 2, 2),
    tensor("output", "Equals output_state_out.", 2, 2),
)
# One unit, weights 0: all gates at sigmoid(0) = 1/2, g = 0.6; c' = 0.5 * 2 + 0.5 * 0.6 = 1.3, clipped to 1.2;
# h' = 0.5 * 1.2, projected by 2 and moved by -0.1, clipped to 1.
_STILL = {f"{s}_to_{g}_w": [[0.0]] for s in ("input", "recurrent") for g in GATES}
_ONE_UNIT: dict[str, object] = {
    "input": [[3.0]],
    **_STILL,
    "cell_to_input_w": None,
    "cell_to_forget_w": None,
    "cell_to_output_w": None,
    "input_gate_bias": [0.0],
    "forget_gate_bias": [0.0],
    "cell_bias": [0.6],
    "output_gate_bias": [0.0],
    "projection_w": [[2.0]],
    "projection_bias": [-0.1],
    "output_state_in": [[0.5]],
    "cell_state_in": [[2.0]],
    "activation": 0,
    "cell_clip": 1.2,
    "proj_clip": 1.0,
}

LSTM = OperationDef(
    code=OperationType.LSTM,
    doc=f"One step of an LSTM cell: {CELL}",
    forms=LSTM_FORMS,
    results=LSTM_RESULTS,
    rows=float_rows(LSTM_FORMS, tuple(r.name for r in LSTM_RESULTS)),
    rules=(
        ranks_rule({"input": 2, "input_to_output_w": 2, "recurrent_to_output_w": 2}),
        *group_rules(),
        *shape_rules(),
        *SCALAR_RULES,
    ),
    infer=_infer_step,
    kernel=lambda v: _step(v, PlainNumbers(v)),
    judging=Judging(
        _bound_step,
        TERMS_WORDS,
        LeftOpen("all of scratch: its contents are not defined", _open_scratch),
    ),
    draw=_draw_step,
    examples=(
        Example(
            "float32/default/in23",
            _ONE_UNIT,
            {
                "scratch": [[0.5, 0.5, 0.6, 0.5]],
                "output_state_out": [[1.0]],
                "cell_state_out": [[1.2]],
                "output": [[1.0]],
            },
        ),
    ),
    second_opinion="a loop over units in Python numbers, with sums that round once",
)

# --- UNIDIRECTIONAL_SEQUENCE_LSTM -------------------------------------------------------------------------------------


def _sequence(v: Values, numbers: Numbers[Number]) -> dict[str, Number]:
    major = v.flag("time_major")
    h, c = (numbers.known(v[name]) for name in ("output_state_in", "cell_state_in"))
    output, h, c = read_cell(v, numbers).run(in_time(numbers, v["input"], major), None, h, c)
    return {"output": output if major else numbers.swap(output), "output_state_out": h, "cell_state_out": c}


def _bound_sequence(v: Values, results: Mapping[str, Array]) -> Bound:
    terms = step_terms(v.call, "")
    return Bound(_sequence(v, ReachedNumbers(v, terms))[next(iter(results))].reach, terms)


def _infer_sequence(call: Call) -> Shapes:
    size = sizes_of(call)
    return {
        "output": (*call["input"].shape[:2], size.outputs),
        "output_state_out": (size.batch, size.outputs),
        "cell_state_out": (size.batch, size.units),
    }


def _draw_sequence(draft: Draft) -> None:
    frame = draw_frame(draft)
    draft.tensor("input", frame.sequence(frame.inputs))
    draft.scalar("time_major", frame.time_major)
    draw_scalars(draft, draw_cell(draft, frame))


SEQUENCE_FORMS = (
    form(
        tensor("input", "[time, batch, input_size], or batch before time.", 3, 3),
        *weight_operands(),
        *STATES,
        *SCALARS,
        boolean("time_major", "Whether the first dimension is time; else it is the batch."),
        *norm_operands(),
        since=FL3,
    ),
)
SEQUENCE_RESULTS = (
    tensor("output", "[time, batch, output_size], or batch before time.", 3, 3),
    tensor("output_state_out", "[batch, output_size]: output of the last step.", 2, 2),
    tensor("cell_state_out", "[batch, num_units]: cell state of the last step.", 2, 2),
)

UNIDIRECTIONAL_SEQUENCE_LSTM = OperationDef(
    code=OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
    doc=f"An LSTM cell along a sequence, each step from the states of the one before: {CELL}",
    forms=SEQUENCE_FORMS,
    results=SEQUENCE_RESULTS,
    rows=float_rows(SEQUENCE_FORMS, tuple(r.name for r in SEQUENCE_RESULTS)),
    rules=(
        ranks_rule({"input": 3, "input_to_output_w": 2, "recurrent_to_output_w": 2}),
        *group_rules(),
        *shape_rules(),
        *SCALAR_RULES,
    ),
    infer=_infer_sequence,
    kernel=lambda v: _sequence(v, PlainNumbers(v)),
    judging=Judging(_bound_sequence, TERMS_WORDS),
    draw=_draw_sequence,
    result_counts=((1, FL3), (3, FL4)),
    examples=(
        # As the example of LSTM without projection and bound, over two steps: c = 1.3, 0.95; h = c / 2.
        Example(
            "float32/out3",
            {
                **_ONE_UNIT,
                "input": [[[3.0], [1.0]]],
                "projection_w": None,
                "projection_bias": None,
                "cell_clip": 0.0,
                "time_major": False,
                **{f"{gate}_layer_norm_w": None for gate in GATES},
            },
            {"output": [[[0.65], [0.475]]], "output_state_out": [[0.475]], "cell_state_out": [[0.95]]},
        ),
    ),
    second_opinion=LSTM.second_opinion,
)
