"""LSTM in floats along a sequence in both directions. The cell is `recurrent_cell`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nnhal.types import FL3, FL4, Array, OperationType
from opset.call import Call
from opset.definition import Bound, Example, Judging, OperationDef, Shapes, boolean, form, tensor
from opset.drawing import Draft
from opset.recurrent_cell import (
    AUX_RULE,
    BIASES,
    DIRECTIONS,
    GATES,
    PEEPHOLES,
    SCALAR_RULES,
    SCALARS,
    group_rules,
    in_time,
    merge_rule,
    norm_operands,
    ranks_rule,
    read_cell,
    shape_rules,
    shapes_rule,
    sizes_of,
    together_rule,
    weight_operands,
)
from opset.recurrent_draws import Frame, draw_cell, draw_frame, draw_outputs, draw_scalars, draw_units
from opset.recurrent_lstm import CELL, LSTM, TERMS_WORDS, float_rows, step_terms
from opset.recurrent_numbers import Number, Numbers, PlainNumbers, ReachedNumbers
from opset.values import Values

BOTH_STATES = {p: (f"{p}activation_state_in", f"{p}cell_state_in") for p in DIRECTIONS}
AUX_WEIGHTS = {p: tuple(f"{p}aux_input_to_{gate}_w" for gate in GATES) for p in DIRECTIONS}


def crossed(call: Call) -> bool:
    """Whether the auxiliary input has weights of its own in both directions."""
    return call.has("aux_input") and call.has("fw_aux_input_to_output_w")


def backward_source(call: Call) -> str:
    """What the backward cell reads: the auxiliary input where that has no weights (parallel linking)."""
    return "aux_input" if call.has("aux_input") and not crossed(call) else "input"


def _both(v: Values, numbers: Numbers[Number]) -> dict[str, Number]:
    major = v.flag("time_major")
    steps = {name: in_time(numbers, v[name], major) for name in ("input", "aux_input") if v.has(name)}
    aux = steps["aux_input"] if crossed(v.call) else None
    results: dict[str, Number] = {}
    for prefix, source in (("fw_", "input"), ("bw_", backward_source(v.call))):
        h, c = (numbers.known(v[name]) for name in BOTH_STATES[prefix])
        cell = read_cell(v, numbers, prefix)
        output, h, c = cell.run(steps[source], aux, h, c, backward=prefix == "bw_")
        results[f"{prefix}output"] = output if major else numbers.swap(output)
        results[f"{prefix}activation_state_out"], results[f"{prefix}cell_state_out"] = h, c
    if v.flag("merge_outputs"):
        results["fw_output"] = numbers.join([results["fw_output"], results.pop("bw_output")], 2)
    return results


def _bound_both(v: Values, results: Mapping[str, Array]) -> Bound:
    terms = step_terms(v.call, *DIRECTIONS)
    return Bound(_both(v, ReachedNumbers(v, terms))[next(iter(results))].reach, terms)


def _infer_both(call: Call) -> Shapes:
    sizes = {prefix: sizes_of(call, prefix) for prefix in DIRECTIONS}
    lead = call["input"].shape[:2]
    shapes = {}
    for prefix, size in sizes.items():
        shapes[f"{prefix}output"] = (*lead, size.outputs)
        shapes[f"{prefix}activation_state_out"] = (size.batch, size.outputs)
        shapes[f"{prefix}cell_state_out"] = (size.batch, size.units)
    if call["merge_outputs"].item():
        shapes["fw_output"] = (*lead, sizes["fw_"].outputs + sizes["bw_"].outputs)
    return shapes


def _draw_both(draft: Draft) -> None:
    frame = draw_frame(draft, 4)
    # Parallel linking came with the results that are states.
    states = draft.signature.results in (5, 6)
    linking = draft.choose(("plain", "cross", "parallel") if states else ("plain", "cross"))
    # Alike in both directions, as most models have them and some drivers want them.
    alike = draft.chance(55)
    aux = frame.inputs if alike and linking == "parallel" else draft.integer(1, 3)
    draft.tensor("input", frame.sequence(frame.inputs))
    if linking == "plain":
        draft.omit("aux_input")
    else:
        draft.tensor("aux_input", frame.sequence(aux))
    units = draw_units(draft)
    sizes = (units, draw_outputs(draft, units) if draft.chance(55) else units) if alike else None
    read = {"fw_": frame.inputs, "bw_": aux if linking == "parallel" else frame.inputs}
    projected = False
    for prefix in DIRECTIONS:
        own = Frame(frame.steps, frame.batch, read[prefix], frame.time_major)
        crossing = aux if linking == "cross" else 0
        projected |= draw_cell(draft, own, prefix, crossing, BOTH_STATES[prefix], sizes)
    draw_scalars(draft, projected)
    draft.scalar("merge_outputs", draft.signature.results in (1, 5))
    draft.scalar("time_major", frame.time_major)


def aux_weights(call: Call) -> list[str]:
    """The auxiliary weights that come together: those of every gate that is there."""
    names: list[str] = []
    for prefix in DIRECTIONS:
        there = AUX_WEIGHTS[prefix] if call.has(f"{prefix}input_to_input_w") else AUX_WEIGHTS[prefix][1:]
        names += there
    return names


def _aux_shapes(call: Call) -> dict[str, tuple[int, ...]]:
    if not call.has("aux_input"):
        return {}
    size = call["aux_input"].shape[-1]
    units = {prefix: call[f"{prefix}input_to_output_w"].shape[0] for prefix in DIRECTIONS}
    return {name: (units[prefix], size) for prefix in DIRECTIONS for name in AUX_WEIGHTS[prefix]}


BOTH_FORMS = (
    form(
        tensor("input", "[time, batch, input_size], or batch before time.", 3, 3),
        *weight_operands("fw_"),
        *weight_operands("bw_"),
        tensor("fw_activation_state_in", "[batch, fw_output_size].", 2, 2),
        tensor("fw_cell_state_in", "[batch, fw_num_units].", 2, 2),
        tensor("bw_activation_state_in", "[batch, bw_output_size].", 2, 2),
        tensor("bw_cell_state_in", "[batch, bw_num_units].", 2, 2),
        tensor("aux_input", "Auxiliary sequence [time, batch, aux_size], or batch before time.", 3, 3, omittable=True),
        *(
            tensor(name, f"[num_units, aux_size]: auxiliary weights, {gate} gate.", 2, 2, omittable=True)
            for prefix in DIRECTIONS
            for name, gate in zip(AUX_WEIGHTS[prefix], GATES, strict=True)
        ),
        *SCALARS,
        boolean("merge_outputs", "Whether the outputs of both directions are joined in one."),
        boolean("time_major", "Whether the first dimension is time; else it is the batch."),
        *norm_operands("fw_"),
        *norm_operands("bw_"),
        since=FL3,
    ),
)

STATE_COUNTS = (5, 6)
BOTH_RESULTS = (
    tensor("fw_output", "[time, batch, fw_output_size], + bw_output_size when merged; or batch first.", 3, 3),
    replace(
        tensor("bw_output", "[time, batch, bw_output_size]; or batch first. Not when merged.", 3, 3), with_counts=(2, 6)
    ),
    *(
        replace(tensor(name, doc, 2, 2), with_counts=STATE_COUNTS)
        for name, doc in (
            ("fw_activation_state_out", "[batch, fw_output_size]: output of the last step forward."),
            ("fw_cell_state_out", "[batch, fw_num_units]."),
            ("bw_activation_state_out", "[batch, bw_output_size]: output of the last step backward, at time 0."),
            ("bw_cell_state_out", "[batch, bw_num_units]."),
        )
    ),
)


def _still(prefix: str, bias: float) -> dict[str, object]:
    """One unit with weights 0 and all gates at 1/2, but for a cell bias."""
    biases = {name: [bias if name == "cell_bias" else 0.0] for name in BIASES.values()}
    return {
        **{f"{prefix}{s}_to_{g}_w": [[0.0]] for s in ("input", "recurrent") for g in GATES},
        **{f"{prefix}cell_to_{g}_w": None for g in PEEPHOLES},
        **{prefix + name: value for name, value in biases.items()},
        f"{prefix}projection_w": None,
        f"{prefix}projection_bias": None,
    }


BIDIRECTIONAL_SEQUENCE_LSTM = OperationDef(
    code=OperationType.BIDIRECTIONAL_SEQUENCE_LSTM,
    doc="Two LSTM cells along a sequence, one forward and one backward in time; the output of the backward one for "
    "step t stands at t. merge_outputs joins both outputs along the last dimension, and the numbers of the results "
    "behind it shift down by one (the documents number them as if it did not). An auxiliary input with weights is "
    "added to the sums of every gate in both directions (cross linking); without weights the backward cell reads it "
    "in place of the input (parallel linking; drawn from 1.3 on, which brought it). The documents write the forward "
    f"states with the backward sizes; the forward ones are meant. Each cell: {CELL}",
    forms=BOTH_FORMS,
    results=BOTH_RESULTS,
    rows=float_rows(BOTH_FORMS, tuple(r.name for r in BOTH_RESULTS)),
    rules=(
        ranks_rule(
            {"input": 3}
            | {f"{p}{name}": 2 for p in DIRECTIONS for name in ("input_to_output_w", "recurrent_to_output_w")}
        ),
        AUX_RULE,
        together_rule(
            "AUX_WEIGHTS", "the auxiliary weights of both directions are all there or all omitted", aux_weights
        ),
        shapes_rule("AUX_SIZES", "auxiliary weights are [num_units, aux_size]", _aux_shapes),
        *group_rules("fw_"),
        *group_rules("bw_"),
        *shape_rules("fw_", states=BOTH_STATES["fw_"]),
        *shape_rules("bw_", backward_source, BOTH_STATES["bw_"]),
        *SCALAR_RULES,
        merge_rule((1, 5)),
    ),
    infer=_infer_both,
    kernel=lambda v: _both(v, PlainNumbers(v)),
    judging=Judging(_bound_both, TERMS_WORDS),
    draw=_draw_both,
    result_counts=((1, FL3), (2, FL3), (5, FL4), (6, FL4)),
    examples=(
        # c' = (c + g) / 2 with g = 0.6 forward and -1 backward, from 2 and 1; h = c / 2. Backward starts at the end.
        Example(
            "float32/out5",
            {
                "input": [[[3.0]], [[1.0]]],
                **_still("fw_", 0.6),
                **_still("bw_", -1.0),
                "fw_activation_state_in": [[0.0]],
                "fw_cell_state_in": [[2.0]],
                "bw_activation_state_in": [[0.0]],
                "bw_cell_state_in": [[1.0]],
                "aux_input": None,
                **{name: None for prefix in DIRECTIONS for name in AUX_WEIGHTS[prefix]},
                "activation": 0,
                "cell_clip": 0.0,
                "proj_clip": 0.0,
                "merge_outputs": True,
                "time_major": True,
                **{f"{prefix}{gate}_layer_norm_w": None for prefix in DIRECTIONS for gate in GATES},
            },
            {
                "fw_output": [[[0.65, -0.25]], [[0.475, 0.0]]],
                "fw_activation_state_out": [[0.475]],
                "fw_cell_state_out": [[0.95]],
                "bw_activation_state_out": [[-0.25]],
                "bw_cell_state_out": [[-0.5]],
            },
        ),
    ),
    second_opinion=LSTM.second_opinion,
)
