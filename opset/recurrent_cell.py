"""One LSTM cell in floats, which three operations share: its operands, its step along a sequence, its rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from nnhal.operations import OperandDef
from nnhal.types import Array, LstmActivation
from opset.call import Call, omitted, with_shape, with_value
from opset.definition import ExecutionRule, int32, real_scalar, tensor
from opset.recurrent_numbers import Number, Numbers
from opset.values import Values

GATES = ("input", "forget", "cell", "output")
DIRECTIONS = ("fw_", "bw_")
BIASES = {"input": "input_gate_bias", "forget": "forget_gate_bias", "cell": "cell_bias", "output": "output_gate_bias"}
PEEPHOLES = ("input", "forget", "output")  # the gates that look at the cell state

# --- operands ---------------------------------------------------------------------------------------------------------


def weight_operands(prefix: str = "") -> tuple[OperandDef, ...]:
    """The seventeen operands that every form of the cell has, in order."""
    cifg = "; omitted with its group, the input gate is 1 - forget gate"
    operands = []
    for source, size in (("input", "input_size"), ("recurrent", "output_size")):
        for gate in GATES:
            doc = f"[num_units, {size}]: {source} weights, {gate} gate{cifg if gate == 'input' else ''}."
            operands.append(tensor(f"{prefix}{source}_to_{gate}_w", doc, 2, 2, omittable=gate == "input"))
    for gate in PEEPHOLES:
        doc = f"[num_units]: what the {gate} gate sees of the cell state."
        operands.append(tensor(f"{prefix}cell_to_{gate}_w", doc, 1, 1, omittable=True))
    for gate in GATES:
        doc = f"[num_units]: bias, {gate} gate{cifg if gate == 'input' else ''}."
        operands.append(tensor(prefix + BIASES[gate], doc, 1, 1, omittable=gate == "input"))
    operands.append(tensor(f"{prefix}projection_w", "[output_size, num_units].", 2, 2, omittable=True))
    operands.append(tensor(f"{prefix}projection_bias", "[output_size]; only with a projection.", 1, 1, omittable=True))
    return tuple(operands)


def norm_operands(prefix: str = "") -> tuple[OperandDef, ...]:
    """The four weights of the layer normalisation, in order."""
    return tuple(
        tensor(f"{prefix}{gate}_layer_norm_w", f"[num_units]: layer normalisation, {gate} gate.", 1, 1, omittable=True)
        for gate in GATES
    )


SCALARS = (
    int32("activation", "Activation of the cell: 0 none, 1 RELU, 3 RELU6, 4 TANH, 6 LOGISTIC."),
    real_scalar("cell_clip", "Bound of the cell state; 0 for none. FLOAT16 beside float16 tensors, else FLOAT32."),
    real_scalar("proj_clip", "Bound of the projection; 0 for none. FLOAT16 beside float16 tensors, else FLOAT32."),
)

# --- computing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell(Generic[Number]):
    """A cell's operands as a kernel reads them; omitted ones are not there.

    Attributes:
        weights: by name without prefix.
    """

    numbers: Numbers[Number]
    weights: Mapping[str, Array]
    activation: int
    cell_clip: Array
    proj_clip: Array

    def _gate(
        self, gate: str, x: Number, aux: Number | None, h: Number, peek: Number, act: Callable[[Number], Number]
    ) -> Number:
        n, w = self.numbers, self.weights
        z = n.dense(x, w[f"input_to_{gate}_w"]) + n.dense(h, w[f"recurrent_to_{gate}_w"])
        if aux is not None:
            z = z + n.dense(aux, w[f"aux_input_to_{gate}_w"])
        if f"cell_to_{gate}_w" in w:
            z = z + peek * w[f"cell_to_{gate}_w"]
        if f"{gate}_layer_norm_w" in w:
            z = n.normalize(z) * w[f"{gate}_layer_norm_w"]
        return act(z + w[BIASES[gate]])

    def step(self, x: Number, aux: Number | None, h: Number, c: Number) -> tuple[Number, Number, list[Number]]:
        """One step: the new output state and cell state, and the gates on the way."""
        n, w = self.numbers, self.weights
        forget = self._gate("forget", x, aux, h, c, n.sigmoid)
        gates: list[Number] = [forget]
        if "input_to_input_w" in w:
            enter = self._gate("input", x, aux, h, c, n.sigmoid)
            gates.insert(0, enter)
        else:
            enter = n.complement(forget)
        fresh = self._gate("cell", x, aux, h, c, lambda z: n.activate(z, self.activation))
        c = n.clip(forget * c + enter * fresh, self.cell_clip)
        output = self._gate("output", x, aux, h, c, n.sigmoid)
        h = output * n.activate(c, self.activation)
        if "projection_w" in w:
            h = n.dense(h, w["projection_w"])
            if "projection_bias" in w:
                h = h + w["projection_bias"]
            h = n.clip(h, self.proj_clip)
        gates.append(fresh)
        gates.append(output)
        return h, c, gates

    def run(
        self, steps: Sequence[Number], aux: Sequence[Number] | None, h: Number, c: Number, *, backward: bool = False
    ) -> tuple[Number, Number, Number]:
        """A sequence: outputs in the order of time, the last output state and cell state."""
        outputs = []
        order = range(len(steps))
        for i in reversed(order) if backward else order:
            h, c, _ = self.step(steps[i], None if aux is None else aux[i], h, c)
            outputs.append(h)
        return self.numbers.stack(outputs[::-1] if backward else outputs), h, c


def read_cell(v: Values, numbers: Numbers[Number], prefix: str = "") -> Cell[Number]:
    """The cell of a call, or the one whose operands start with a prefix."""
    names = [o.name.removeprefix(prefix) for o in v.call.signature.form.operands if o.name.startswith(prefix)]
    known = [n for n in names if n.endswith(("_w", "_bias")) and v.has(prefix + n)]
    return Cell(numbers, {n: v[prefix + n] for n in known}, v.integer("activation"), v["cell_clip"], v["proj_clip"])


def in_time(numbers: Numbers[Number], sequence: Array, time_major: bool) -> list[Number]:
    """The steps of a sequence [time, batch, size], or [batch, time, size]."""
    ordered = sequence if time_major else sequence.swapaxes(0, 1)
    return [numbers.known(step) for step in ordered]


# --- shapes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """What the operands of a cell say about its sizes."""

    batch: int
    inputs: int
    units: int
    outputs: int


def sizes_of(call: Call, prefix: str = "", source: str = "input") -> Sizes:
    """Sizes from the input, and from the weights of the output gate, which are always there."""
    shape = call[source].shape
    major = len(shape) == 3 and not call["time_major"].item()
    return Sizes(
        shape[0] if len(shape) == 2 or major else shape[1],
        shape[-1],
        call[f"{prefix}input_to_output_w"].shape[0],
        call[f"{prefix}recurrent_to_output_w"].shape[1],
    )


# --- rules ------------------------------------------------------------------------------------------------------------


def shapes_rule(label: str, text: str, due: Callable[[Call], Mapping[str, tuple[int, ...]]]) -> ExecutionRule:
    """Operands that are there have the shapes due; broken by one element more in the last of them."""

    def holds(call: Call) -> bool:
        return all(call[name].shape == shape for name, shape in due(call).items() if call.has(name))

    def broken(call: Call) -> Call | None:
        there = [name for name in due(call) if call.has(name)]
        if not there:
            return None
        shape = call[there[-1]].shape
        return with_shape(call, there[-1], (*shape[:-1], shape[-1] + 1))

    return ExecutionRule(label, text, holds, broken)


def together_rule(label: str, text: str, group: Callable[[Call], Sequence[str]]) -> ExecutionRule:
    """All operands of a group are there, or none is; broken by leaving the last one out."""

    def holds(call: Call) -> bool:
        return len({call.has(name) for name in group(call)}) <= 1

    def broken(call: Call) -> Call | None:
        names = group(call)
        if len(names) < 2 or not all(call.has(name) for name in names):
            return None
        return without(call, names[-1])

    return ExecutionRule(label, text, holds, broken)


def without(call: Call, name: str) -> Call:
    """The call with an input omitted."""
    return call.with_input(name, omitted(call[name].type))


def ranks_rule(names: Mapping[str, int]) -> ExecutionRule:
    """The operands from which sizes are read have their ranks."""
    words = ", ".join(f"{name} has rank {rank}" for name, rank in names.items())
    first = next(iter(names))
    return ExecutionRule(
        "RANKS",
        words,
        lambda call: all(call[name].rank == rank for name, rank in names.items()),
        lambda call: with_shape(call, first, (1, *call[first].shape)),
    )


def group_rules(prefix: str = "") -> tuple[ExecutionRule, ...]:
    """Which operands of a cell go together."""
    tag = prefix.upper()

    def with_input_gate(call: Call) -> bool:
        return call.has(f"{prefix}input_to_input_w")

    def peepholes(call: Call) -> list[str]:
        gates = PEEPHOLES if with_input_gate(call) else PEEPHOLES[1:]
        return [f"{prefix}cell_to_{gate}_w" for gate in gates]

    def norms(call: Call) -> list[str]:
        gates = GATES if with_input_gate(call) else GATES[1:]
        return [f"{prefix}{gate}_layer_norm_w" for gate in gates]

    cifg = [f"{prefix}input_to_input_w", f"{prefix}recurrent_to_input_w", f"{prefix}input_gate_bias"]
    weights, bias = f"{prefix}projection_w", f"{prefix}projection_bias"
    return (
        together_rule(
            f"{tag}INPUT_GATE", "weights and bias of the input gate are all there or all omitted", lambda call: cifg
        ),
        together_rule(f"{tag}PEEPHOLES", "the peephole weights of the gates are all there or all omitted", peepholes),
        together_rule(
            f"{tag}LAYER_NORM", "the layer normalisation weights of the gates are all there or all omitted", norms
        ),
        ExecutionRule(
            f"{tag}PROJECTION_BIAS",
            "a projection bias comes with projection weights only",
            lambda call: call.has(weights) or not call.has(bias),
            lambda call: (
                without(call, weights)
                if call.has(bias) and sizes_of(call, prefix).units == sizes_of(call, prefix).outputs
                else None
            ),
        ),
    )


def shape_rules(
    prefix: str = "",
    source: Callable[[Call], str] = lambda call: "input",
    states: tuple[str, str] = ("output_state_in", "cell_state_in"),
) -> tuple[ExecutionRule, ...]:
    """The shapes of a cell's operands.

    Args:
        source: name of the input that the cell reads.
        states: names of the output state and the cell state.
    """
    tag = prefix.upper()

    def sizes(call: Call) -> Sizes:
        return sizes_of(call, prefix, source(call))

    def vectors(call: Call) -> dict[str, tuple[int, ...]]:
        names = [f"cell_to_{gate}_w" for gate in PEEPHOLES] + [f"{gate}_layer_norm_w" for gate in GATES]
        return {prefix + name: (sizes(call).units,) for name in (*names, *BIASES.values())}

    def of_projection(call: Call) -> dict[str, tuple[int, ...]]:
        size = sizes(call)
        return {
            f"{prefix}projection_bias": (size.outputs,),
            f"{prefix}projection_w": (size.outputs, size.units),
        }

    def of_states(call: Call) -> dict[str, tuple[int, ...]]:
        size = sizes(call)
        return {states[0]: (size.batch, size.outputs), states[1]: (size.batch, size.units)}

    return (
        shapes_rule(
            f"{tag}INPUT_WEIGHTS",
            "input weights are [num_units, input_size]",
            lambda call: {f"{prefix}input_to_{gate}_w": (sizes(call).units, sizes(call).inputs) for gate in GATES},
        ),
        shapes_rule(
            f"{tag}RECURRENT_WEIGHTS",
            "recurrent weights are [num_units, output_size]",
            lambda call: {
                f"{prefix}recurrent_to_{gate}_w": (sizes(call).units, sizes(call).outputs)
                for gate in ("output", "input", "forget", "cell")
            },
        ),
        shapes_rule(f"{tag}UNITS", "peepholes, layer normalisation weights and biases are [num_units]", vectors),
        shapes_rule(
            f"{tag}PROJECTION", "a projection is [output_size, num_units], its bias [output_size]", of_projection
        ),
        ExecutionRule(
            f"{tag}OUTPUT_SIZE",
            "without a projection, output_size is num_units",
            lambda call: call.has(f"{prefix}projection_w") or sizes(call).outputs == sizes(call).units,
            lambda call: (
                without(without(call, f"{prefix}projection_w"), f"{prefix}projection_bias")
                if sizes(call).outputs != sizes(call).units
                else None
            ),
        ),
        shapes_rule(f"{tag}STATES", "states are [batch, output_size] and [batch, num_units]", of_states),
    )


def _negative(name: str) -> ExecutionRule:
    return ExecutionRule(
        name.upper(),
        f"{name} is not negative",
        lambda call: call[name].item() >= 0,
        lambda call: with_value(call, name, -1.0),
    )


SCALAR_RULES = (
    ExecutionRule(
        "ACTIVATION",
        "activation is 0, 1, 3, 4 or 6",
        lambda call: call.integer("activation") in set(LstmActivation),
        lambda call: with_value(call, "activation", 7),
    ),
    _negative("cell_clip"),
    _negative("proj_clip"),
)

# --- both directions --------------------------------------------------------------------------------------------------


def _break_aux(call: Call) -> Call | None:
    if not call.has("aux_input"):
        return None
    shape = call["aux_input"].shape
    return with_shape(call, "aux_input", (shape[0], shape[1] + 1, shape[2]))


def merge_rule(merged: tuple[int, ...]) -> ExecutionRule:
    """The number of results goes with the flag that joins the outputs."""
    return ExecutionRule(
        "MERGE",
        f"there are {' or '.join(map(str, merged))} results if and only if merge_outputs is true",
        lambda call: (len(call.results) in merged) == bool(call["merge_outputs"].item()),
        lambda call: with_value(call, "merge_outputs", not call["merge_outputs"].item()),
    )


AUX_RULE = ExecutionRule(
    "AUX_INPUT",
    "aux_input has rank 3 and the time and batch of input",
    lambda call: (
        not call.has("aux_input")
        or (call["aux_input"].rank == 3 and call["aux_input"].shape[:2] == call["input"].shape[:2])
    ),
    _break_aux,
)
