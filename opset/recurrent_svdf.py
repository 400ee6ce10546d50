"""SVDF: a filter over time, decomposed by rank."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnhal.types import FL1, FL3, Array, OperationType
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
    activation_rule,
    form,
    half_units,
    int32,
    magnitude,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.recurrent_cell import ranks_rule, shapes_rule
from opset.recurrent_draws import vector, weights
from opset.values import Values

HIGHEST = {0: 2.0, 1: 2.0, 2: 1.6, 3: 7.0}  # how large sums should be under each activation, for some to be clipped


def _memory(call: Call) -> tuple[int, int, int]:
    """Batch, filters and slots of the memory."""
    filters, slots = call["weights_time"].shape
    return call["input"].shape[0], filters, slots


def _infer(call: Call) -> Shapes:
    batch, filters, slots = _memory(call)
    return {"state_out": (batch, filters * slots), "output": (batch, filters // call.integer("rank"))}


def _kernel(v: Values) -> Mapping[str, Array]:
    batch, filters, slots = _memory(v.call)
    rank = v.integer("rank")
    state = v["state_in"].reshape(batch, filters, slots).copy()
    state[:, :, -1] = v.matmul(v["input"], v["weights_feature"].T)
    by_filter = v.sum(state * v["weights_time"], 2)
    output = v.sum(by_filter.reshape(batch, -1, rank), 2)
    if v.has("bias"):
        output = output + v["bias"]
    shifted = np.concatenate([state[:, :, 1:], np.zeros_like(state[:, :, :1])], axis=2)
    return {"state_out": shifted.reshape(batch, -1), "output": v.activate(output)}


def _bound(v: Values, results: Mapping[str, Array]) -> Bound:
    name = next(iter(results))
    size, (_, _, slots) = v.call["input"].shape[1], _memory(v.call)
    reach = magnitude(_kernel, v, name)
    if name == "output":
        return Bound(reach, size + slots * v.integer("rank") + 1)
    computed = np.zeros(reach.shape, np.bool_)
    computed.reshape(-1, slots)[:, -2:-1] = True  # the other slots are moved
    return Bound(np.where(computed, reach, 0.0), size)


def _draw(draft: Draft) -> None:
    batch, inputs = draft.integer(1, draft.choose((3, 9))), draft.integer(1, 6)
    units, rank, slots = draft.integer(1, draft.choose((4, 7))), draft.integer(1, 4), draft.integer(1, 6)
    filters = units * rank
    code = draft.activation()
    draft.scalar("rank", rank)
    draft.tensor("input", (batch, inputs))
    weights(draft, "weights_feature", (filters, inputs), 2.0)
    weights(draft, "weights_time", (filters, slots), HIGHEST[code] / rank**0.5)
    vector(draft, "bias", units, HIGHEST[code] / 2, absent=draft.chance(35))
    draft.tensor("state_in", (batch, filters * slots))


def _wrong_rank(call: Call) -> Call:
    return with_value(call, "rank", call["weights_feature"].shape[0] + 1)


def _sizes(call: Call) -> dict[str, tuple[int, ...]]:
    batch, filters, slots = _memory(call)
    return {
        "weights_feature": (filters, call["input"].shape[1]),
        "bias": (filters // call.integer("rank"),),
        "state_in": (batch, filters * slots),
    }


SVDF = OperationDef(
    code=OperationType.SVDF,
    doc="Filters over features, then over time. In each filter's memory the newest slot, the last, is set to "
    "input . weights_feature^T; the memory's product with weights_time, summed over `rank` consecutive filters, plus "
    "bias, activated, is the output; then the memory moves one slot forward and its last becomes 0, so what state_in "
    "holds in the last slot does not matter. The documents give the state (memory_size - 1) slots and the filters "
    "num_units rows; memory_size slots and num_units * rank rows are meant.",
    forms=(
        form(
            tensor("input", "[batch, input_size]: one frame.", 2, 2),
            tensor("weights_feature", "[num_filters, input_size], num_filters = num_units * rank.", 2, 2),
            tensor("weights_time", "[num_filters, memory_size].", 2, 2),
            tensor("bias", "[num_units].", 1, 1, omittable=True),
            tensor("state_in", "[batch, num_filters * memory_size]: the memory.", 2, 2),
            int32("rank", "Rank of the decomposition: filters behind one unit."),
            ACTIVATION,
        ),
    ),
    results=(
        tensor("state_out", "[batch, num_filters * memory_size]: the memory, moved by one slot.", 2, 2),
        tensor("output", "[batch, num_units].", 2, 2),
    ),
    rows=same(
        ("input", "weights_feature", "weights_time", "bias", "state_in", "state_out", "output"), (F32, FL1), (F16, FL3)
    ),
    rules=(
        ranks_rule({"input": 2, "weights_feature": 2, "weights_time": 2}),
        ExecutionRule(
            "RANK_DIVIDES",
            "the number of filters is a multiple of rank",
            lambda call: call.integer("rank") > 0 and call["weights_feature"].shape[0] % call.integer("rank") == 0,
            _wrong_rank,
        ),
        shapes_rule(
            "WEIGHTS_TIME",
            "both weights have num_filters rows, weights_feature a column for each input",
            lambda call: {
                "weights_time": (call["weights_feature"].shape[0], call["weights_time"].shape[1]),
                "weights_feature": (call["weights_time"].shape[0], call["input"].shape[1]),
            },
        ),
        shapes_rule("BIAS", "the bias is [num_units]", lambda call: {"bias": _sizes(call)["bias"]}),
        shapes_rule(
            "STATE",
            "the state is [batch, num_filters * memory_size]",
            lambda call: {"state_in": _sizes(call)["state_in"]},
        ),
        activation_rule(),
    ),
    infer=_infer,
    kernel=_kernel,
    judging=Judging(
        _bound,
        "output: "
        + half_units("(input_size + memory_size * rank + 1)", "the sum of absolute products and bias")
        + "; newest slot of state_out: "
        + half_units("(input_size)", "the sum of absolute products")
        + "; other slots exact: values are only moved",
    ),
    draw=_draw,
    examples=(
        # Two filters of rank 2 behind one unit, two slots: newest 3 and -1;
        # (1 * 0.5 + 3 * 2) + (4 * 1 + -1 * 3) - 10 = -2.5, RELU1 gives -1.
        Example(
            "float32",
            {
                "input": [[1.0, 2.0]],
                "weights_feature": [[1.0, 1.0], [3.0, -2.0]],
                "weights_time": [[0.5, 2.0], [1.0, 3.0]],
                "bias": [-10.0],
                "state_in": [[1.0, 9.0, 4.0, 9.0]],
                "rank": 2,
                "activation": 2,
            },
            {"state_out": [[3.0, 0.0, -1.0, 0.0]], "output": [[-1.0]]},
        ),
    ),
    second_opinion="a loop over filters and slots in Python numbers, with sums that round once",
)
