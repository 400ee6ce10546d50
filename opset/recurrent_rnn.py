"""Basic recurrent cells in floats: one step, a sequence, a sequence in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nnhal.operations import OperandDef
from nnhal.types import FL1, FL3, FL4, Array, OperationType
from opset.call import Call, with_value
from opset.definition import (
    ACTIVATION,
    F16,
    F32,
    Bound,
    Example,
    ExecutionRule,
    Judging,
    OperationDef,
    Shapes,
    boolean,
    form,
    half_units,
    int32,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.recurrent_cell import AUX_RULE, DIRECTIONS, in_time, merge_rule, ranks_rule, shapes_rule, without
from opset.recurrent_draws import draw_frame, draw_units, vector, weights
from opset.recurrent_numbers import REACH_WORDS, Number, Numbers, PlainNumbers, ReachedNumbers
from opset.values import Values

FEW = 3  # roundings of a step beside those of its products
HIGHEST = {0: 2.0, 1: 2.0, 2: 1.6, 3: 7.0}  # how large sums should be under each activation, for some to be clipped
STEP = "h' = act(W x + R h + b)"
NOTE = (
    "Public code for float16 rounds every sum to float16, which the bound allows for. "
    "The activation is called optional in places; it is always given."
)

# --- what all of them share -------------------------------------------------------------------------------------------


def _operands(prefix: str = "") -> tuple[OperandDef, ...]:
    return (
        tensor(f"{prefix}weights", "[num_units, input_size].", 2, 2),
        tensor(f"{prefix}recurrent_weights", "[num_units, num_units].", 2, 2),
        tensor(f"{prefix}bias", "[num_units].", 1, 1),
        tensor(f"{prefix}hidden_state_in", "[batch, num_units]: output of the step before.", 2, 2),
    )


NAMES = tuple(o.name for o in _operands())


def _step(v: Values, numbers: Numbers[Number], x: Number, h: Number, aux: Number | None, prefix: str = "") -> Number:
    z = numbers.dense(x, v[f"{prefix}weights"]) + numbers.dense(h, v[f"{prefix}recurrent_weights"])
    if aux is not None:
        z = z + numbers.dense(aux, v[f"{prefix}aux_weights"])
    return numbers.fused(z + v[f"{prefix}bias"])


def _run(
    v: Values, numbers: Numbers[Number], steps: Sequence[Number], aux: Sequence[Number] | None, prefix: str = ""
) -> tuple[Number, Number]:
    """Outputs in the order of time, and the last state; prefix "bw_" runs backward."""
    h = numbers.known(v[f"{prefix}hidden_state_in"])
    order = range(len(steps))
    outputs = []
    for i in reversed(order) if prefix == "bw_" else order:
        h = _step(v, numbers, steps[i], h, None if aux is None else aux[i], prefix)
        outputs.append(h)
    return numbers.stack(outputs[::-1] if prefix == "bw_" else outputs), h


def _terms(call: Call, prefix: str = "") -> float:
    aux = call["aux_input"].shape[-1] if prefix and call.has("aux_input") else 0
    return (sum(call[f"{prefix}weights"].shape) + aux) / 2 + FEW


TERMS_WORDS = half_units(f"(most products of a sum / 2 + {FEW})", REACH_WORDS)


def _batch(call: Call) -> int:
    shape = call["input"].shape
    return shape[1] if len(shape) == 3 and call["time_major"].item() else shape[0]


def _shape_rules(prefix: str = "") -> tuple[ExecutionRule, ...]:
    tag = prefix.upper()

    def units(call: Call) -> int:
        return call[f"{prefix}weights"].shape[0]

    def of_weights(call: Call) -> dict[str, tuple[int, ...]]:
        parallel = prefix == "bw_" and call.has("aux_input") and not call.has("bw_aux_weights")
        size = call["aux_input" if parallel else "input"].shape[-1]
        square = {f"{prefix}recurrent_weights": (units(call), units(call))}
        return {**square, f"{prefix}weights": (units(call), size)}

    return (
        shapes_rule(
            f"{tag}WEIGHTS",
            "weights are [num_units, input_size], recurrent weights [num_units, num_units]",
            of_weights,
        ),
        shapes_rule(f"{tag}BIAS", "the bias is [num_units]", lambda call: {f"{prefix}bias": (units(call),)}),
        shapes_rule(
            f"{tag}STATE",
            "the state is [batch, num_units]",
            lambda call: {f"{prefix}hidden_state_in": (_batch(call), units(call))},
        ),
    )


# The codes above 3 are activations elsewhere; public code does not look at them here.
ACTIVATION_RULE = ExecutionRule(
    "ACTIVATION",
    "activation is 0 to 3",
    lambda call: call.integer("activation") in HIGHEST,
    lambda call: with_value(call, "activation", 7),
)


def _draw_weights(draft: Draft, batch: int, inputs: int, code: int, prefix: str = "", aux: int = 0) -> None:
    """Sums that grow little from step to step: the recurrent weights are small."""
    units = draw_units(draft)
    weights(draft, f"{prefix}weights", (units, inputs), HIGHEST[code])
    weights(draft, f"{prefix}recurrent_weights", (units, units), 1.4)
    vector(draft, f"{prefix}bias", units, HIGHEST[code] / 2)
    low, high = {0: (-1.5, 1.5), 1: (0.0, 1.5), 2: (-1.0, 1.0), 3: (0.0, 6.0)}[code]
    draft.tensor(f"{prefix}hidden_state_in", (batch, units), low=low, high=high)
    if draft.has(f"{prefix}aux_weights"):
        if aux:
            weights(draft, f"{prefix}aux_weights", (units, aux), HIGHEST[code])
        else:
            draft.omit(f"{prefix}aux_weights")


def _draw_code(draft: Draft) -> int:
    code = draft.choose(tuple(HIGHEST))
    draft.scalar("activation", code)
    return code


# --- RNN --------------------------------------------------------------------------------------------------------------


def _single(v: Values, numbers: Numbers[Number]) -> dict[str, Number]:
    h = _step(v, numbers, numbers.known(v["input"]), numbers.known(v["hidden_state_in"]), None)
    return {"hidden_state_out": h, "output": h}


def _bound_single(v: Values, results: Mapping[str, Array]) -> Bound:
    terms = _terms(v.call)
    return Bound(_single(v, ReachedNumbers(v, terms))[next(iter(results))].reach, terms)


def _draw_single(draft: Draft) -> None:
    frame = draw_frame(draft, 1)
    draft.tensor("input", (frame.batch, frame.inputs))
    _draw_weights(draft, frame.batch, frame.inputs, _draw_code(draft))


def _infer_single(call: Call) -> Shapes:
    shape = (call["input"].shape[0], call["weights"].shape[0])
    return {"hidden_state_out": shape, "output": shape}


RNN = OperationDef(
    code=OperationType.RNN,
    doc=f"One step of a basic recurrent cell: {STEP}, given twice. {NOTE}",
    forms=(form(tensor("input", "[batch, input_size].", 2, 2), *_operands(), ACTIVATION),),
    results=(
        tensor("hidden_state_out", "[batch, num_units].", 2, 2),
        tensor("output", "Equals hidden_state_out.", 2, 2),
    ),
    rows=same(("input", *NAMES, "hidden_state_out", "output"), (F32, FL1), (F16, FL3)),
    rules=(ranks_rule({"input": 2, "weights": 2}), *_shape_rules(), ACTIVATION_RULE),
    infer=_infer_single,
    kernel=lambda v: _single(v, PlainNumbers(v)),
    judging=Judging(_bound_single, TERMS_WORDS),
    draw=_draw_single,
    examples=(
        # 2 * 1 + 1 * -1 + 0.5 * 4 + 0.25 = 3.25; -2 + 3 * -1 + 4 * 1 - 1 = -2, which RELU makes 0
        Example(
            "float32",
            {
                "input": [[1.0, -1.0]],
                "weights": [[2.0, 1.0], [-2.0, 3.0]],
                "recurrent_weights": [[0.0, 0.5], [0.0, 1.0]],
                "bias": [0.25, -1.0],
                "hidden_state_in": [[7.0, 4.0]],
                "activation": 1,
            },
            {"hidden_state_out": [[3.25, 0.0]], "output": [[3.25, 0.0]]},
        ),
    ),
    second_opinion="a loop over units in Python numbers, with sums that round once",
)

# --- UNIDIRECTIONAL_SEQUENCE_RNN --------------------------------------------------------------------------------------


def _sequence(v: Values, numbers: Numbers[Number]) -> dict[str, Number]:
    major = v.flag("time_major")
    output, h = _run(v, numbers, in_time(numbers, v["input"], major), None)
    return {"output": output if major else numbers.swap(output), "hidden_state_out": h}


def _bound_sequence(v: Values, results: Mapping[str, Array]) -> Bound:
    terms = _terms(v.call)
    return Bound(_sequence(v, ReachedNumbers(v, terms))[next(iter(results))].reach, terms)


def _draw_sequence(draft: Draft) -> None:
    frame = draw_frame(draft)
    draft.tensor("input", frame.sequence(frame.inputs))
    _draw_weights(draft, frame.batch, frame.inputs, _draw_code(draft))
    draft.scalar("time_major", int(frame.time_major))


def _infer_sequence(call: Call) -> Shapes:
    units = call["weights"].shape[0]
    return {"output": (*call["input"].shape[:2], units), "hidden_state_out": (_batch(call), units)}


UNIDIRECTIONAL_SEQUENCE_RNN = OperationDef(
    code=OperationType.UNIDIRECTIONAL_SEQUENCE_RNN,
    doc=f"A basic recurrent cell along a sequence, each step from the state of the one before: {STEP}. {NOTE}",
    forms=(
        form(
            tensor("input", "[time, batch, input_size], or batch before time.", 3, 3),
            *_operands(),
            ACTIVATION,
            int32("time_major", "1 where the first dimension is time, 0 where it is the batch."),
            since=FL3,
        ),
    ),
    results=(
        tensor("output", "[time, batch, num_units], or batch before time.", 3, 3),
        tensor("hidden_state_out", "[batch, num_units]: output of the last step.", 2, 2),
    ),
    rows=same(("input", *NAMES, "output", "hidden_state_out"), (F32, FL3), (F16, FL3)),
    rules=(ranks_rule({"input": 3, "weights": 2}), *_shape_rules(), ACTIVATION_RULE),
    infer=_infer_sequence,
    kernel=lambda v: _sequence(v, PlainNumbers(v)),
    judging=Judging(_bound_sequence, TERMS_WORDS),
    draw=_draw_sequence,
    result_counts=((1, FL3), (2, FL4)),
    examples=(
        # One unit, batch of two, one input: h' = min(max(x + 2 h - 1, -1), 1), from 0.5 and 0
        Example(
            "float32/out2",
            {
                "input": [[[0.25], [0.75]], [[3.0], [0.5]]],
                "weights": [[1.0]],
                "recurrent_weights": [[2.0]],
                "bias": [-1.0],
                "hidden_state_in": [[0.5], [0.0]],
                "activation": 2,
                "time_major": 0,
            },
            {"output": [[[0.25], [0.25]], [[1.0], [1.0]]], "hidden_state_out": [[0.25], [1.0]]},
        ),
    ),
    second_opinion=RNN.second_opinion,
)

# --- BIDIRECTIONAL_SEQUENCE_RNN ---------------------------------------------------------------------------------------


def _both(v: Values, numbers: Numbers[Number]) -> dict[str, Number]:
    major = v.flag("time_major")
    steps = {name: in_time(numbers, v[name], major) for name in ("input", "aux_input") if v.has(name)}
    crossed = v.has("fw_aux_weights")
    results: dict[str, Number] = {}
    for prefix in DIRECTIONS:
        parallel = prefix == "bw_" and "aux_input" in steps and not crossed
        source = steps["aux_input" if parallel else "input"]
        output, h = _run(v, numbers, source, steps["aux_input"] if crossed else None, prefix)
        results[f"{prefix}output"] = output if major else numbers.swap(output)
        results[f"{prefix}hidden_state_out"] = h
    if v.flag("merge_outputs"):
        results["fw_output"] = numbers.join([results["fw_output"], results.pop("bw_output")], 2)
    return results


def _bound_both(v: Values, results: Mapping[str, Array]) -> Bound:
    terms = max(_terms(v.call, prefix) for prefix in DIRECTIONS)
    return Bound(_both(v, ReachedNumbers(v, terms))[next(iter(results))].reach, terms)


def _draw_both(draft: Draft) -> None:
    frame = draw_frame(draft)
    # Parallel linking came with the results that are states.
    linking = draft.choose(
        ("plain", "cross", "parallel") if draft.signature.results in STATE_COUNTS else ("plain", "cross")
    )
    draft.tensor("input", frame.sequence(frame.inputs))
    if linking == "plain":
        draft.omit("aux_input")
    else:
        draft.tensor("aux_input", frame.sequence(frame.inputs))
    code = _draw_code(draft)
    for prefix in DIRECTIONS:
        _draw_weights(draft, frame.batch, frame.inputs, code, prefix, frame.inputs if linking == "cross" else 0)
    draft.scalar("time_major", frame.time_major)
    draft.scalar("merge_outputs", draft.signature.results in MERGED_COUNTS)


def _infer_both(call: Call) -> Shapes:
    lead = call["input"].shape[:2]
    units = {prefix: call[f"{prefix}weights"].shape[0] for prefix in DIRECTIONS}
    shapes: dict[str, tuple[int, ...]] = {}
    for prefix in DIRECTIONS:
        shapes[f"{prefix}output"] = (*lead, units[prefix])
        shapes[f"{prefix}hidden_state_out"] = (_batch(call), units[prefix])
    if call["merge_outputs"].item():
        shapes["fw_output"] = (*lead, sum(units.values()))
    return shapes


def _linked(call: Call) -> bool:
    crossed = call.has("fw_aux_weights"), call.has("bw_aux_weights")
    return crossed == (False, False) or (crossed == (True, True) and call.has("aux_input"))


MERGED_COUNTS, STATE_COUNTS = (1, 3), (3, 4)
BOTH_NAMES = (
    "input",
    *(prefix + name for prefix in DIRECTIONS for name in (*NAMES, "aux_weights", "output", "hidden_state_out")),
    "aux_input",
)


def _aux_shapes(call: Call) -> dict[str, tuple[int, ...]]:
    if not call.has("aux_input"):
        return {}
    size = call["aux_input"].shape[-1]
    return {f"{p}aux_weights": (call[f"{p}weights"].shape[0], size) for p in DIRECTIONS}


BIDIRECTIONAL_SEQUENCE_RNN = OperationDef(
    code=OperationType.BIDIRECTIONAL_SEQUENCE_RNN,
    doc=f"Two basic recurrent cells along a sequence, one forward and one backward in time: {STEP}; the output of the "
    "backward one for step t stands at t. merge_outputs joins both outputs along the last dimension. An auxiliary "
    "input with weights is added to both sums (cross linking); without weights the backward cell reads it in place of "
    "the input (parallel linking; drawn from 1.3 on, which brought it). Its size may differ from the input's by the "
    f"documents, not in public code; it is drawn equal. {NOTE}",
    forms=(
        form(
            tensor("input", "[time, batch, input_size], or batch before time.", 3, 3),
            *_operands("fw_"),
            *_operands("bw_"),
            tensor("aux_input", "Auxiliary sequence, laid out as input.", 3, 3, omittable=True),
            tensor("fw_aux_weights", "[fw_num_units, aux_size].", 2, 2, omittable=True),
            tensor("bw_aux_weights", "[bw_num_units, aux_size].", 2, 2, omittable=True),
            ACTIVATION,
            boolean("time_major", "Whether the first dimension is time; else it is the batch."),
            boolean("merge_outputs", "Whether the outputs of both directions are joined in one."),
            since=FL3,
        ),
    ),
    results=(
        tensor("fw_output", "[time, batch, fw_num_units], + bw_num_units when merged; or batch first.", 3, 3),
        replace(
            tensor("bw_output", "[time, batch, bw_num_units]; or batch first. Not when merged.", 3, 3),
            with_counts=(2, 4),
        ),
        replace(tensor("fw_hidden_state_out", "[batch, fw_num_units].", 2, 2), with_counts=STATE_COUNTS),
        replace(tensor("bw_hidden_state_out", "[batch, bw_num_units], of time 0.", 2, 2), with_counts=STATE_COUNTS),
    ),
    rows=same(BOTH_NAMES, (F32, FL3), (F16, FL3)),
    rules=(
        ranks_rule({"input": 3, "fw_weights": 2, "bw_weights": 2}),
        ExecutionRule(
            "LINKING",
            "auxiliary weights are given for both directions and with an auxiliary input, or not at all",
            _linked,
            lambda call: without(call, "bw_aux_weights") if call.has("bw_aux_weights") else None,
        ),
        AUX_RULE,
        shapes_rule("AUX_WEIGHTS", "auxiliary weights are [num_units, aux_size]", _aux_shapes),
        *_shape_rules("fw_"),
        *_shape_rules("bw_"),
        ACTIVATION_RULE,
        merge_rule(MERGED_COUNTS),
    ),
    infer=_infer_both,
    kernel=lambda v: _both(v, PlainNumbers(v)),
    judging=Judging(_bound_both, TERMS_WORDS),
    draw=_draw_both,
    result_counts=((1, FL3), (2, FL3), (3, FL4), (4, FL4)),
    examples=(
        # Forward h' = x + h from 0; backward h' = 2 aux - h from 1, the last step first: 2 * 3 - 1 = 5, 2 * 4 - 5 = 3
        Example(
            "float32/out3",
            {
                "input": [[[1.0]], [[2.0]]],
                "fw_weights": [[1.0]],
                "fw_recurrent_weights": [[1.0]],
                "fw_bias": [0.0],
                "fw_hidden_state_in": [[0.0]],
                "bw_weights": [[2.0]],
                "bw_recurrent_weights": [[-1.0]],
                "bw_bias": [0.0],
                "bw_hidden_state_in": [[1.0]],
                "aux_input": [[[4.0]], [[3.0]]],
                "fw_aux_weights": None,
                "bw_aux_weights": None,
                "activation": 0,
                "time_major": True,
                "merge_outputs": True,
            },
            {
                "fw_output": [[[1.0, 3.0]], [[3.0, 5.0]]],
                "fw_hidden_state_out": [[3.0]],
                "bw_hidden_state_out": [[3.0]],
            },
        ),
    ),
    second_opinion=RNN.second_opinion,
)
