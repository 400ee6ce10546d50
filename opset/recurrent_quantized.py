"""QUANTIZED_16BIT_LSTM: an LSTM cell that is defined by integer steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import OperandDef, TypeRow
from nnhal.types import FL3, Array, OperandType, OperationType
from opset.call import Call
from opset.definition import (
    I32,
    Q8,
    Example,
    ExecutionRule,
    OperationDef,
    Shapes,
    exact,
    form,
    tensor,
)
from opset.drawing import Draft
from opset.fixed_point import INT16, logistic_q15, product_q15, rescale, rounding_shift, saturate, tanh_q15
from opset.quantization import float32
from opset.recurrent_cell import (
    BIASES,
    GATES,
    ranks_rule,
    shapes_rule,
)
from opset.values import Values

INT8 = (-128, 127)
Q12 = 2.0**-12  # step of a gate's sum: three integer bits
Q16S, Q8Y = OperandType.TENSOR_QUANT16_SYMM, OperandType.TENSOR_QUANT8_SYMM

# --- QUANTIZED_16BIT_LSTM ---------------------------------------------------------------------------------------------

STATE_SCALE = 2.0**-11
ACTIVATION_QUANTIZATION = (1 / 128, 128)
NARROW_WEIGHTS = {g: (f"input_to_{g}_w", f"recurrent_to_{g}_w") for g in GATES}
ALL_WEIGHTS = tuple(name for pair in zip(*NARROW_WEIGHTS.values(), strict=True) for name in pair)
ALL_BIASES = tuple(BIASES.values())


def _narrow(v: Values) -> Mapping[str, Array]:
    # The weights' columns are [recurrent, input], the elements they meet [input, previous output].
    x = np.concatenate([v.factor("input")[0], v.factor("prev_output")[0]], axis=1)
    factor = v.call["input_gate_bias"].scale / Q12
    z = {}
    for gate, (own, recurrent) in NARROW_WEIGHTS.items():
        columns = np.concatenate([v.factor(recurrent)[0], v.factor(own)[0]], axis=1)
        total = v.matmul(x, columns.T)
        z[gate] = saturate(rescale(total + v.stored(BIASES[gate]).astype(np.int64), factor), *INT16)
    enter, forget, output = (logistic_q15(z[gate]) for gate in ("input", "forget", "output"))
    fresh = rounding_shift(product_q15(enter, tanh_q15(z["cell"])), 4)
    kept = product_q15(forget, v.stored("prev_cell_state").astype(np.int64))
    state = saturate(fresh + kept, *INT16)
    shown = product_q15(output, tanh_q15(saturate(2 * state, *INT16)))
    return {"cell_state_out": state, "output": saturate(rounding_shift(shown, 8), *INT8) + 128}


def _infer_narrow(call: Call) -> Shapes:
    shape = (call["input"].shape[0], call["recurrent_to_output_w"].shape[0])
    return {"cell_state_out": shape, "output": shape}


def _draw_narrow(draft: Draft) -> None:
    batch, inputs = draft.integer(1, draft.choose((3, 7))), draft.integer(1, 6)
    units = draft.integer(1, draft.choose((4, 9)))
    # Sums about as large as the gates can tell, or beyond what their 16 bits hold.
    reach = draft.choose((2.0, 2.0, 3.0, 12.0)) / math.sqrt(inputs + units)
    scale, zero = float32(reach / 128 * draft.real(0.7, 1.0)), draft.choose((128, draft.integer(90, 166), 0, 255))
    fixed = {"scale": ACTIVATION_QUANTIZATION[0], "zero_point": ACTIVATION_QUANTIZATION[1]}
    draft.tensor("input", (batch, inputs), **fixed)  # type: ignore[arg-type]
    for own, recurrent in NARROW_WEIGHTS.values():
        draft.tensor(own, (units, inputs), scale=scale, zero_point=zero)
        draft.tensor(recurrent, (units, units), scale=scale, zero_point=zero)
    of_bias = float32(scale / 128)
    for name in ALL_BIASES:
        steps = round(1.5 / of_bias)
        draft.tensor(name, (units,), low=-steps, high=steps, scale=of_bias, zero_point=0)
    share = draft.choose((8, 8, 1))
    draft.tensor("prev_cell_state", (batch, units), scale=STATE_SCALE, zero_point=0, adjust=lambda x: x // share)
    draft.tensor("prev_output", (batch, units), **fixed)  # type: ignore[arg-type]


def _narrow_shapes(call: Call) -> dict[str, tuple[int, ...]]:
    (batch, inputs), units = call["input"].shape, call["recurrent_to_output_w"].shape[0]
    due: dict[str, tuple[int, ...]] = {name: (units, inputs) for name, _ in NARROW_WEIGHTS.values()}
    due |= {name: (units, units) for _, name in NARROW_WEIGHTS.values()}
    due |= dict.fromkeys(ALL_BIASES, (units,))
    return due | {"prev_cell_state": (batch, units), "prev_output": (batch, units)}


def _narrow_fixed(call: Call) -> Mapping[str, tuple[float, int]]:
    weights = call["input_to_input_w"]
    due = {"input": ACTIVATION_QUANTIZATION, "prev_output": ACTIVATION_QUANTIZATION}
    due |= dict.fromkeys(ALL_WEIGHTS, (weights.scale, weights.zero_point))
    return due | {"prev_cell_state": (STATE_SCALE, 0)}


def _break_fixed(call: Call) -> Call:
    return call.with_input("prev_cell_state", replace(call["prev_cell_state"], scale=STATE_SCALE / 2))


def _bias_scales_hold(call: Call) -> bool:
    due = call["input_to_input_w"].scale / 128
    return all(abs(call[name].scale - due) <= 1e-6 * due and call[name].zero_point == 0 for name in ALL_BIASES)


def _break_bias(call: Call) -> Call:
    return call.with_input("cell_bias", replace(call["cell_bias"], scale=2 * call["cell_bias"].scale))


NARROW_INPUTS = (
    tensor("input", "[batch, input_size]; scale 1/128, zero point 128.", 2, 2),
    *(tensor(NARROW_WEIGHTS[g][0], f"[output_size, input_size]: weights, {g} gate.", 2, 2) for g in GATES),
    *(tensor(NARROW_WEIGHTS[g][1], f"[output_size, output_size]: weights, {g} gate.", 2, 2) for g in GATES),
    *(tensor(BIASES[g], f"[output_size]: bias, {g} gate; scale of the weights / 128.", 1, 1) for g in GATES),
    tensor("prev_cell_state", "[batch, output_size]; scale 2^-11.", 2, 2),
    tensor("prev_output", "[batch, output_size]; scale 1/128, zero point 128.", 2, 2),
)


def _narrow_type(operand: OperandDef) -> OperandType:
    return {"bias": I32, "state": Q16S}.get(operand.name.rsplit("_", 1)[-1], Q8)


QUANTIZED_16BIT_LSTM = OperationDef(
    code=OperationType.QUANTIZED_16BIT_LSTM,
    doc="One step of an LSTM cell in integers. A gate's sum, with bias, is exact; it is rescaled to steps of 2^-12 and "
    "saturated at 16 bits. Gates are sigmoid and tanh in steps of 2^-15, by the polynomials of public code. The state, "
    "in steps of 2^-11, is i * g + f * c, each product rounded, their sum saturated; the output is o * tanh(state), "
    "with the state saturated at 8, in steps of 2^-7 about 128. By the documents the weights meet input and previous "
    "output by name; in public code, and in all open results, the columns [recurrent weights, input weights] meet the "
    "elements [input, previous output], which is the definition here. The polynomials are up to 12 units off; with "
    "better ones the state may be off by 10 steps, the output by 1.",
    forms=(form(*NARROW_INPUTS, since=FL3),),
    results=(
        tensor("cell_state_out", "[batch, output_size]; scale 2^-11.", 2, 2),
        tensor("output", "[batch, output_size]; scale 1/128, zero point 128.", 2, 2),
    ),
    rows=(
        TypeRow(
            "quant8_asymm",
            FL3,
            {o.name: _narrow_type(o) for o in NARROW_INPUTS} | {"cell_state_out": Q16S, "output": Q8},
        ),
    ),
    rules=(
        ranks_rule({"input": 2, "recurrent_to_output_w": 2}),
        shapes_rule(
            "SHAPES",
            "weights are [output_size, input_size] and [output_size, output_size], biases [output_size], "
            "states [batch, output_size]",
            _narrow_shapes,
        ),
        ExecutionRule(
            "QUANTIZATION",
            "input and previous output have scale 1/128 and zero point 128, the state 2^-11; all weights share both",
            lambda call: all((call[n].scale, call[n].zero_point) == due for n, due in _narrow_fixed(call).items()),
            _break_fixed,
        ),
        ExecutionRule("BIAS_SCALE", "biases have the scale of the weights / 128", _bias_scales_hold, _break_bias),
    ),
    infer=_infer_narrow,
    kernel=_narrow,
    judging=exact("integer steps", steps={"cell_state_out": 10}, moves=False),
    draw=_draw_narrow,
    quantization=lambda call: {"cell_state_out": (STATE_SCALE, 0), "output": ACTIVATION_QUANTIZATION},
    examples=(
        # Weights 0. Biases in steps of 2^-12 already (weights' scale 1/32): i = f = o = 1/2, g = tanh(8) = 32767 steps;
        # i * g = 16384, in the state's steps 1024; f * c = 1024; tanh(1) = 24956 steps, half of it 12478, / 256 = 48.7.
        Example(
            "quant8_asymm",
            {
                "input": [[200]],
                **{name: [[10]] for pair in NARROW_WEIGHTS.values() for name in pair},
                **{name: [32767 if name == "cell_bias" else 0] for name in ALL_BIASES},
                "prev_cell_state": [[2048]],
                "prev_output": [[7]],
            },
            {"cell_state_out": [[2048]], "output": [[177]]},
            {
                "input": ACTIVATION_QUANTIZATION,
                **dict.fromkeys(ALL_WEIGHTS, (1 / 32, 10)),
                **dict.fromkeys(ALL_BIASES, (2.0**-12, 0)),
                "prev_cell_state": (STATE_SCALE, 0),
                "prev_output": ACTIVATION_QUANTIZATION,
                "cell_state_out": (STATE_SCALE, 0),
                "output": ACTIVATION_QUANTIZATION,
            },
        ),
    ),
    second_opinion="the same cell in real numbers",
)
