"""Second opinions on recurrent cells: loops over units in Python numbers, and a plain walk through time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from nnhal.types import Array
from opset.call import Call
from opset.quantization import quantize

GATE_BIAS = {
    "input": "input_gate_bias",
    "forget": "forget_gate_bias",
    "cell": "cell_bias",
    "output": "output_gate_bias",
}
FUSED = {
    0: lambda x: x,
    1: lambda x: max(x, 0.0),
    2: lambda x: min(max(x, -1.0), 1.0),
    3: lambda x: min(max(x, 0.0), 6.0),
}


def logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


CELL = {0: FUSED[0], 1: FUSED[1], 3: FUSED[3], 4: math.tanh, 6: logistic}


def listed(call: Call, name: str) -> list:
    return call[name].value.astype(np.float64).tolist()


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def clipped(x: float, bound: float) -> float:
    return max(-bound, min(bound, x)) if bound > 0 else x


def lstm_step(call: Call, prefix: str, x: list[float], aux: list[float] | None, h: list[float], c: list[float]):
    """One step of one batch row by the documents' formulas, unit by unit."""
    act, clip = CELL[call.integer("activation")], call["cell_clip"].item()
    units = range(len(c))

    def sums(gate: str, state: list[float]) -> list[float]:
        found = []
        for unit in units:
            z = dot(listed(call, f"{prefix}input_to_{gate}_w")[unit], x)
            z += dot(listed(call, f"{prefix}recurrent_to_{gate}_w")[unit], h)
            if aux is not None:
                z += dot(listed(call, f"{prefix}aux_input_to_{gate}_w")[unit], aux)
            if gate != "cell" and call.has(f"{prefix}cell_to_{gate}_w"):
                z += listed(call, f"{prefix}cell_to_{gate}_w")[unit] * state[unit]
            found.append(z)
        bias = listed(call, prefix + GATE_BIAS[gate])
        if call.has(f"{prefix}{gate}_layer_norm_w"):
            mean = math.fsum(found) / len(found)
            spread = math.sqrt(math.fsum((z - mean) ** 2 for z in found) / len(found) + 1e-8)
            weights = listed(call, f"{prefix}{gate}_layer_norm_w")
            found = [(z - mean) / spread * w for z, w in zip(found, weights, strict=True)]
        return [z + b for z, b in zip(found, bias, strict=True)]

    forget = [logistic(z) for z in sums("forget", c)]
    if call.has(f"{prefix}input_to_input_w"):
        enter = [logistic(z) for z in sums("input", c)]
    else:
        enter = [1 - f for f in forget]
    fresh = [act(z) for z in sums("cell", c)]
    c = [clipped(forget[u] * c[u] + enter[u] * fresh[u], clip) for u in units]
    gate = [logistic(z) for z in sums("output", c)]
    h = [gate[u] * act(c[u]) for u in units]
    if call.has(f"{prefix}projection_w"):
        rows = listed(call, f"{prefix}projection_w")
        bias = listed(call, f"{prefix}projection_bias") if call.has(f"{prefix}projection_bias") else [0.0] * len(rows)
        h = [clipped(dot(row, h) + b, call["proj_clip"].item()) for row, b in zip(rows, bias, strict=True)]
    return h, c


def rnn_step(call: Call, prefix: str, x: list[float], aux: list[float] | None, h: list[float]) -> list[float]:
    """One step of one batch row."""
    found = []
    for unit, bias in enumerate(listed(call, f"{prefix}bias")):
        z = bias + dot(listed(call, f"{prefix}weights")[unit], x)
        z += dot(listed(call, f"{prefix}recurrent_weights")[unit], h)
        if aux is not None:
            z += dot(listed(call, f"{prefix}aux_weights")[unit], aux)
        found.append(FUSED[call.integer("activation")](z))
    return found


def walk(call: Call, prefix: str, states: tuple[str, ...], *, weights: str, lstm: bool) -> dict[str, Array]:
    """A direction of a sequence, batch row by batch row: output [batch, time, size] and the last states.

    Args:
        weights: name, behind the prefix, of a weight that an auxiliary input has when it is added.
    """
    major = bool(call["time_major"].item())
    crossed = call.has(f"{prefix}{weights}")
    source = "aux_input" if prefix == "bw_" and call.has("aux_input") and not crossed else "input"
    sequence = call[source].value.astype(np.float64)
    extra = call["aux_input"].value.astype(np.float64) if crossed else None
    batch = sequence.shape[1] if major else sequence.shape[0]
    outputs, last = [], []
    for row in range(batch):
        xs = (sequence[:, row] if major else sequence[row]).tolist()
        auxes = None if extra is None else (extra[:, row] if major else extra[row]).tolist()
        state = [listed(call, name)[row] for name in states]
        order = list(range(len(xs)))
        if prefix == "bw_":
            order.reverse()
        found: dict[int, list[float]] = {}
        for t in order:
            aux = None if auxes is None else auxes[t]
            if lstm:
                state = list(lstm_step(call, prefix, xs[t], aux, *state))
            else:
                state = [rnn_step(call, prefix, xs[t], aux, *state)]
            found[t] = state[0]
        outputs.append([found[t] for t in range(len(xs))])
        last.append(state)
    output = np.array(outputs)
    result = {"output": output.swapaxes(0, 1) if major else output}
    for number, name in enumerate(states):
        result[name.removesuffix("_in").removeprefix(prefix) + "_out"] = np.array([state[number] for state in last])
    return result


def both(forward: Mapping[str, Array], backward: Mapping[str, Array], merge: bool) -> dict[str, Array]:
    """Results of two directions under their names."""
    results = {f"fw_{n}": v for n, v in forward.items()} | {f"bw_{n}": v for n, v in backward.items()}
    if merge:
        results["fw_output"] = np.concatenate([forward["output"], backward["output"]], axis=2)
        del results["bw_output"]
    return results


def by_loops(call: Call) -> dict[str, Array]:
    """Results of any float operation of the family, without scratch."""
    name, lstm = call.definition.name, call.definition.name.endswith("LSTM")
    if name.startswith("BIDIRECTIONAL"):
        found = []
        for prefix in ("fw_", "bw_"):
            states = ("activation_state_in", "cell_state_in") if lstm else ("hidden_state_in",)
            weights = "aux_input_to_output_w" if lstm else "aux_weights"
            found.append(walk(call, prefix, tuple(prefix + s for s in states), weights=weights, lstm=lstm))
        return both(found[0], found[1], bool(call["merge_outputs"].item()))
    states = ("output_state_in", "cell_state_in") if lstm else ("hidden_state_in",)
    if name.startswith("UNIDIRECTIONAL"):
        return walk(call, "", states, weights="aux", lstm=lstm)
    rows = [listed(call, n) for n in ("input", *states)]
    if not lstm:
        h = np.array([rnn_step(call, "", x, None, h) for x, h in zip(*rows, strict=True)])
        return {"hidden_state_out": h, "output": h}
    steps = [lstm_step(call, "", x, None, h, c) for x, h, c in zip(*rows, strict=True)]
    h, c = np.array([s[0] for s in steps]), np.array([s[1] for s in steps])
    return {"output_state_out": h, "cell_state_out": c, "output": h}


def svdf_by_loops(call: Call) -> dict[str, Array]:
    """SVDF filter by filter and slot by slot."""
    x, feature, time = (listed(call, n) for n in ("input", "weights_feature", "weights_time"))
    slots, rank = len(time[0]), call.integer("rank")
    act = FUSED[call.integer("activation")]
    outputs, states = [], []
    for row, old in zip(x, listed(call, "state_in"), strict=True):
        memory = [[*old[f * slots : (f + 1) * slots - 1], dot(feature[f], row)] for f in range(len(feature))]
        sums = [dot(memory[f], time[f]) for f in range(len(feature))]
        units = [math.fsum(sums[u * rank : (u + 1) * rank]) for u in range(len(feature) // rank)]
        bias = listed(call, "bias") if call.has("bias") else [0.0] * len(units)
        outputs.append([act(z + b) for z, b in zip(units, bias, strict=True)])
        states.append([v for slot in memory for v in [*slot[1:], 0.0]])
    return {"state_out": np.array(states), "output": np.array(outputs)}


# --- the quantised cells in real numbers ------------------------------------------------------------------------------


def real(call: Call, name: str) -> Array:
    """An operand's real values."""
    a = call[name]
    return (a.value.astype(np.float64) - a.zero_point) * a.scale


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def narrow_in_reals(call: Call) -> dict[str, Array]:
    """QUANTIZED_16BIT_LSTM: state and output in real numbers; the columns meet as in its definition."""
    x = np.concatenate([real(call, "input"), real(call, "prev_output")], 1)
    z = {}
    for gate, bias in GATE_BIAS.items():
        weights = np.concatenate([real(call, f"recurrent_to_{gate}_w"), real(call, f"input_to_{gate}_w")], 1)
        z[gate] = np.clip(x @ weights.T + call[bias].value * call[bias].scale, -8, 8)
    c = sigmoid(z["forget"]) * real(call, "prev_cell_state") + sigmoid(z["input"]) * np.tanh(z["cell"])
    c = np.clip(c, -16, 16)
    return {"cell_state_out": c, "output": sigmoid(z["output"]) * np.tanh(c)}


def wide_in_reals(call: Call) -> dict[str, Array]:
    """QUANTIZED_LSTM without peepholes: state and output in real numbers."""

    def gate(name: str) -> Array:
        z = real(call, "input") @ real(call, f"input_to_{name}_w").T
        z = z + real(call, "prev_output") @ real(call, f"recurrent_to_{name}_w").T
        if not call.has(f"{name}_layer_norm_w"):
            return np.clip(z, -8, 8)
        limit = 2**15 * call[f"{name}_intermediate_scale"].item()
        z = np.clip(z, -limit, limit)
        z = (z - z.mean(1, keepdims=True)) / z.std(1, keepdims=True) * real(call, f"{name}_layer_norm_w")
        return np.clip(z + real(call, GATE_BIAS[name]), -8, 8)

    forget, fresh = sigmoid(gate("forget")), np.tanh(gate("cell"))
    enter = sigmoid(gate("input")) if call.has("input_to_input_w") else 1 - forget
    state = call["prev_cell_state"]
    limit = 2**15 * state.scale
    c = np.clip(forget * real(call, "prev_cell_state") + enter * fresh, -limit, limit)
    if call["cell_clip"].item() > 0:
        c = np.clip(c, -call["cell_clip"].item(), call["cell_clip"].item())
    h = sigmoid(gate("output")) * np.tanh(c)
    if call.has("projection_w"):
        bias, step = call["projection_bias"], call["hidden_scale"].item()
        h = np.rint(h / step) * step  # the one rounding on the way that shows in the output
        h = h @ real(call, "projection_w").T + bias.value * bias.scale
    return {"output_state_out": h, "cell_state_out": c, "output": h}


def stored(call: Call, reals: Mapping[str, Array]) -> dict[str, Array]:
    """Real results rounded once into the results' types."""
    return {
        name: quantize(value, call[name].type, call[name].scale, call[name].zero_point) for name, value in reals.items()
    }
