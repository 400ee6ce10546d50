"""QUANTIZED_LSTM: an LSTM cell that is defined by integer steps, with layer normalisation and projection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import OperandDef, TypeRow
from nnhal.types import FL4, Array, OperandType, OperationType
from opset.call import Call
from opset.definition import (
    I32,
    Q8S,
    Example,
    ExecutionRule,
    OperationDef,
    Quantization,
    Shapes,
    exact,
    form,
    int32,
    tensor,
)
from opset.drawing import Draft
from opset.fixed_point import INT16, logistic_q15, over_root, rescale, rounding_shift, saturate, tanh_q15
from opset.quantization import float32
from opset.recurrent_cell import (
    BIASES,
    GATES,
    PEEPHOLES,
    group_rules,
    norm_operands,
    ranks_rule,
    shape_rules,
    sizes_of,
    weight_operands,
)
from opset.recurrent_draws import GAIN, SMALLEST_NORM
from opset.values import Values

INT8 = (-128, 127)
Q12 = 2.0**-12  # step of a gate's sum: three integer bits
Q16S, Q8Y = OperandType.TENSOR_QUANT16_SYMM, OperandType.TENSOR_QUANT8_SYMM
STEP_MOVED = 0.25  # output steps that one step of the hidden state may move the output by


def cell_bits(call: Call) -> int:
    """Fraction bits of the cell state, whose scale is a power of two."""
    return -round(math.log2(call["prev_cell_state"].scale))


def _weighted(v: Values, source: str, weights: str, scale: float) -> Array:
    """A sum of products, exact, rescaled to a gate's steps."""
    call = v.call
    total = v.matmul(v.factor(source)[0], v.factor(weights)[0].T)
    return rescale(total, call[source].scale * call[weights].scale / scale)


def _normalized(v: Values, z: Array, gate: str) -> Array:
    """Layer normalisation over the units in integers: steps of 2^-10 inside, of 2^-12 at its end."""
    size = z.shape[1]
    mean = np.trunc(z.sum(axis=1, keepdims=True) * 1024 / size).astype(np.int64)
    variance = ((z * z).sum(axis=1, keepdims=True) * (2**20 // size) - mean * mean) >> 20
    steps = over_root(1024 * z - mean, np.maximum(variance, 1))
    name = f"{gate}_layer_norm_w"
    weighted = steps * v.stored(name).astype(np.int64) + v.stored(BIASES[gate]).astype(np.int64)
    return saturate(rescale(rounding_shift(weighted, 10), v.call[name].scale / Q12), *INT16)


def _wide_gate(v: Values, gate: str, state: Array | None) -> Array:
    scale = float(v.call[f"{gate}_intermediate_scale"].item())
    z = saturate(_weighted(v, "input", f"input_to_{gate}_w", scale), *INT16)
    z = saturate(z + _weighted(v, "prev_output", f"recurrent_to_{gate}_w", scale), *INT16)
    if state is not None and v.has(f"cell_to_{gate}_w"):
        weights = v.call[f"cell_to_{gate}_w"]
        seen = state * v.stored(f"cell_to_{gate}_w").astype(np.int64)
        z = saturate(z + rescale(seen, v.call["prev_cell_state"].scale * weights.scale / scale), *INT16)
    return _normalized(v, z, gate) if v.has(f"{gate}_layer_norm_w") else z


def _wide(v: Values) -> Mapping[str, Array]:
    call, bits = v.call, cell_bits(v.call)
    state = v.stored("prev_cell_state").astype(np.int64)
    forget = logistic_q15(_wide_gate(v, "forget", state))
    fresh = tanh_q15(_wide_gate(v, "cell", None))
    enter = logistic_q15(_wide_gate(v, "input", state)) if v.has("input_to_input_w") else INT16[1] - forget
    kept = saturate(rounding_shift(forget * state, 15), *INT16)
    state = saturate(kept + saturate(rounding_shift(enter * fresh, 30 - bits), *INT16), *INT16)
    clip = float(call["cell_clip"].item())
    if clip > 0:
        bound = min(int(clip / call["prev_cell_state"].scale), INT16[1])
        state = saturate(state, -bound, bound)
    shown = logistic_q15(_wide_gate(v, "output", state)) * tanh_q15(state, bits)
    scale = float(call["hidden_scale"].item())
    zero = int(np.int64(call.integer("hidden_zero_point")).astype(np.int8))
    hidden = saturate(rescale(shown, 2.0**-30 / scale) - zero, *INT8)
    if v.has("projection_w"):
        hidden = _projected(v, hidden + zero, scale)
    return {"output_state_out": hidden, "cell_state_out": state, "output": hidden}


def _projected(v: Values, hidden: Array, scale: float) -> Array:
    weights, out = v.call["projection_w"], v.call["output_state_out"]
    total = v.matmul(hidden, v.stored("projection_w").astype(np.int64).T)
    if v.has("projection_bias"):
        total = total + v.stored("projection_bias").astype(np.int64)
    output = saturate(rescale(total, weights.scale * scale / out.scale) + out.zero_point, *INT8)
    clip = float(v.call["proj_clip"].item())
    if clip > 0:
        bound = min(int(clip / weights.scale), INT8[1])
        output = saturate(output, -bound, bound)
    return output


def _infer_wide(call: Call) -> Shapes:
    size = sizes_of(call)
    state = (size.batch, size.outputs)
    return {"output_state_out": state, "cell_state_out": (size.batch, size.units), "output": state}


def _wide_fixed(call: Call) -> Quantization:
    output, cell = call["prev_output"], call["prev_cell_state"]
    return {
        "output_state_out": (output.scale, output.zero_point),
        "cell_state_out": (cell.scale, 0),
        "output": (output.scale, output.zero_point),
    }


# --- draws ------------------------------------------------------------------------------------------------------------


def _draw_wide(draft: Draft) -> None:
    batch, inputs = draft.integer(1, draft.choose((3, 7))), draft.integer(1, 6)
    cifg, norm, project = draft.chance(35), draft.chance(70), draft.chance(65)
    units = draft.integer(SMALLEST_NORM if norm else 1, draft.choose((4, 9)))
    outputs = draft.choose((units, draft.integer(1, 5))) if project else units
    scale = draft.real(1 / 110, 1 / 70)
    reach = GAIN / math.sqrt(units)
    output, zero = scale, 0
    if project:
        output = float32(reach * scale / STEP_MOVED * draft.real(1.0, 1.4))
        zero = draft.choose((0, draft.integer(-60, 60), -120, 120))
    draft.scalar("hidden_scale", scale)
    # Subtracted from the hidden state and put back before the projection; small, so that nothing saturates.
    draft.scalar("hidden_zero_point", draft.integer(-15, 15) if project else 0)
    draft.tensor("input", (batch, inputs))
    draft.tensor("prev_output", (batch, outputs), scale=output, zero_point=zero)
    spread = max(output * 74, 0.3)  # of a uniform byte
    for gate in GATES:
        absent = cifg and gate == "input"
        _draw_gate(draft, gate, {"input": inputs, "recurrent": outputs}, units, spread, norm=norm, absent=absent)
    # Public code reads the peepholes' cell state from a buffer that is not written yet.
    for gate in PEEPHOLES:
        draft.omit(f"cell_to_{gate}_w")
    if project:
        weights = draft.tensor("projection_w", (outputs, units), low=-reach, high=reach)
        product = float32(weights.scale * scale)
        steps = round(0.6 / product)
        draft.tensor("projection_bias", (outputs,), low=-steps, high=steps, scale=product, zero_point=0)
    else:
        draft.omit("projection_w")
        draft.omit("projection_bias")
    share = draft.choose((8, 8, 1))
    state = 2.0 ** -draft.choose((10, 11, 12))
    draft.tensor("prev_cell_state", (batch, units), scale=state, zero_point=0, adjust=lambda x: x // share)
    draft.scalar("cell_clip", draft.real(0.5, 1.5) if draft.chance(45) else 0.0)
    draft.scalar("proj_clip", 0.0)


def _draw_gate(draft: Draft, gate: str, sources: Mapping[str, int], units: int, spread: float, *,
               norm: bool, absent: bool) -> None:  # fmt: skip
    # Without layer normalisation the sum is read in steps of 2^-12, and public code leaves the bias out.
    draft.scalar(f"{gate}_intermediate_scale", Q12 * draft.real(0.7, 1.6) if norm else Q12)
    for source, size in sources.items():
        name = f"{source}_to_{gate}_w"
        if absent:
            draft.omit(name)
        else:
            reach = GAIN / math.sqrt(size) / (spread if source == "recurrent" else 1.0)
            draft.tensor(name, (units, size), low=-reach, high=reach)
    if absent or not norm:
        draft.omit(f"{gate}_layer_norm_w")
    else:
        draft.tensor(f"{gate}_layer_norm_w", (units,), low=-1.8, high=1.8)
    if absent:
        draft.omit(BIASES[gate])
        return
    scale = float32(draft[f"{gate}_layer_norm_w"].scale / 1024) if norm else float32(2.0**-20)
    steps = round(1.5 / scale) if norm else 0
    draft.tensor(BIASES[gate], (units,), low=-steps, high=steps, scale=scale, zero_point=0)


# --- the definition ---------------------------------------------------------------------------------------------------


def _real(name: str, doc: str) -> OperandDef:
    return OperandDef(name, doc, OperandType.FLOAT32, parameter=True)


INPUTS = (
    tensor("input", "[batch, input_size].", 2, 2),
    *weight_operands(),
    tensor("prev_output", "[batch, output_size].", 2, 2),
    tensor("prev_cell_state", "[batch, num_units]; its scale is a power of two, 2^-9 at most.", 2, 2),
    *norm_operands(),
    _real("cell_clip", "Bound of the cell state in real units; not above 0 for none."),
    _real("proj_clip", "Bound of the projection; not above 0 for none."),
    *(_real(f"{gate}_intermediate_scale", f"Scale of the sum of the {gate} gate in 16 bits.") for gate in GATES),
    int32("hidden_zero_point", "Zero point of the hidden state before the projection; its low byte counts."),
    _real("hidden_scale", "Scale of the hidden state before the projection."),
)


def _type(name: str) -> OperandType:
    if name.endswith("_bias"):
        return I32
    if name.endswith("_layer_norm_w") or name.startswith(("cell_to_", "prev_cell")):
        return Q16S
    return Q8Y if name.endswith("_w") else Q8S


def _cell_scale_holds(call: Call) -> bool:
    scale = call["prev_cell_state"].scale
    power = math.log2(scale) if scale > 0 else 0.0
    return abs(power - round(power)) <= 1e-3 and round(power) <= -9


_STILL = {f"{s}_to_{g}_w": [[0]] for s in ("input", "recurrent") for g in GATES}

QUANTIZED_LSTM = OperationDef(
    code=OperationType.QUANTIZED_LSTM,
    doc="One step of an LSTM cell in integers. A gate's two sums are rescaled to its intermediate scale and saturated "
    "at 16 bits one after the other; layer normalisation over the units, in steps of 2^-10, times its weights, plus "
    "the bias, gives steps of 2^-12. Gates are sigmoid and tanh in steps of 2^-15; c' = f * c + i * g, each product "
    "rounded to the cell's scale; the hidden state is o * tanh(c') / hidden_scale - hidden_zero_point, the projection "
    "adds the zero point again. By the documents a gate's bias is always added, in public code only behind layer "
    "normalisation: drawn with layer normalisation, or 0. Peepholes read a buffer that is not written yet in public "
    "code, and the projection's clip is scaled by the weights' scale: neither is drawn. With a projection its bias is "
    "always given, since public code reads it. Without one, zero points are drawn 0: by the documents the hidden one "
    "is added, in public code subtracted. Other implementations round differently inside: the cell state may be off "
    "by 16 steps, the output by 1.",
    forms=(form(*INPUTS, since=FL4),),
    results=(
        tensor("output_state_out", "[batch, output_size].", 2, 2),
        tensor("cell_state_out", "[batch, num_units].", 2, 2),
        tensor("output", "Equals output_state_out.", 2, 2),
    ),
    rows=(
        TypeRow(
            "quant8_asymm_signed",
            FL4,
            {o.name: _type(o.name) for o in INPUTS if o.type is None}
            | {"output_state_out": Q8S, "cell_state_out": Q16S, "output": Q8S},
        ),
    ),
    rules=(
        ranks_rule({"input": 2, "input_to_output_w": 2, "recurrent_to_output_w": 2}),
        *(rule for rule in group_rules() if rule.label != "PEEPHOLES"),  # they are never drawn
        *shape_rules(states=("prev_output", "prev_cell_state")),
        ExecutionRule(
            "CELL_SCALE",
            "the scale of the cell state is a power of two, at most 2^-9",
            _cell_scale_holds,
            lambda call: call.with_input("prev_cell_state", replace(call["prev_cell_state"], scale=0.0007)),
        ),
    ),
    infer=_infer_wide,
    kernel=_wide,
    judging=exact("integer steps", steps={"cell_state_out": 16}, moves=False),
    draw=_draw_wide,
    quantization=_wide_fixed,
    examples=(
        # Weights 0 and no layer normalisation: i = f = o = 1/2, g = 0; c' = 3000 / 2, clipped to 0.5 = 1024 steps.
        # tanh(0.5) = 0.46212, half of it 0.23106, in steps of 1/64: 14.8.
        Example(
            "quant8_asymm_signed",
            {
                "input": [[5]],
                **_STILL,
                **{f"cell_to_{gate}_w": None for gate in PEEPHOLES},
                **{name: [0] for name in BIASES.values()},
                "projection_w": None,
                "projection_bias": None,
                "prev_output": [[1]],
                "prev_cell_state": [[3000]],
                **{f"{gate}_layer_norm_w": None for gate in GATES},
                "cell_clip": 0.5,
                "proj_clip": 0.0,
                **{f"{gate}_intermediate_scale": Q12 for gate in GATES},
                "hidden_zero_point": 0,
                "hidden_scale": 1 / 64,
            },
            {"output_state_out": [[15]], "cell_state_out": [[1024]], "output": [[15]]},
            {
                "input": (0.1, 3),
                **dict.fromkeys(_STILL, (0.01, 0)),
                **dict.fromkeys(BIASES.values(), (2.0**-20, 0)),
                "prev_output": (1 / 64, 0),
                "prev_cell_state": (2.0**-11, 0),
                "output_state_out": (1 / 64, 0),
                "cell_state_out": (2.0**-11, 0),
                "output": (1 / 64, 0),
            },
        ),
    ),
    second_opinion="the same cell in real numbers",
)
