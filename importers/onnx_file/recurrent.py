"""Recurrent operators: LSTM and RNN as the operations along sequences, GRU and other RNNs step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from importers.onnx_file.elementwise import Translate
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.moving import concatenated, sliced
from importers.onnx_file.work import Work
from nnhal.types import Array, FusedActivation, LstmActivation, OperationType

MOST_STEPS = 64  # of a sequence that is taken apart
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LSTM_ACTIVATIONS = {"Tanh": LstmActivation.TANH, "Relu": LstmActivation.RELU, "Sigmoid": LstmActivation.SIGMOID}
RNN_ACTIVATIONS = {"Relu": FusedActivation.RELU}
STEP_ACTIVATIONS = {"Tanh": OperationType.TANH, "Sigmoid": OperationType.LOGISTIC, "Relu": OperationType.RELU}


@dataclass(frozen=True)
class Cell:
    """What the recurrent operators have in common.

    Attributes:
        x: operand of the sequence, [time, batch, inputs].
        steps: of it.
        w: weights of the inputs, [directions, gates * units, inputs].
        r: weights of the state, [directions, gates * units, units].
        b: biases of both, [directions, 2, gates * units].
        backward: for each direction whether it runs from the end.
    """

    work: Work
    node: Node
    x: int
    steps: int
    batch: int
    units: int
    w: Array
    r: Array
    b: Array
    backward: tuple[bool, ...]

    def real(self, value: Array) -> int:
        """A constant of the type of the sequence."""
        return self.work.reals(self.x, value)

    def state(self, position: int, direction: int) -> int:
        """A state before the first step, [batch, units]."""
        tensor = self.work.optional(self.node, position)
        if tensor is None:
            return self.real(np.zeros((self.batch, self.units)))
        if tensor.shape != (len(self.backward), self.batch, self.units):
            raise Refusal(f"a first state of shape {list(tensor.shape)}")
        if len(self.backward) == 1:
            return self.work.operand(tensor, tensor.shape[1:])
        if tensor.value is not None:
            return self.real(tensor.value[direction])
        part = sliced(self.work, self.work.operand(tensor), (direction, 0, 0), (1, self.batch, self.units))
        return self.work.reshape(part, (self.batch, self.units))

    def give(self, position: int, parts: Sequence[int], shape: tuple[int, ...], axis: int) -> None:
        """Makes parts, one for each direction, a result."""
        if position < len(self.node.outputs) and self.node.outputs[position]:
            part = (*shape[:axis], 1, *shape[axis + 1 :])
            operands = [self.work.reshape(operand, part) for operand in parts]
            dtype = self.work.input(self.node, 0).dtype
            self.work.give(self.node, concatenated(self.work, operands, axis), shape, dtype, position)

    def give_sequence(self, outputs: Sequence[int]) -> None:
        """Makes outputs [time, batch, units] of each direction the first two results."""
        directions = len(self.backward)
        self.give(0, outputs, (self.steps, directions, self.batch, self.units), 1)
        if any(self.node.outputs[1:2]):
            ends = [sliced(self.work, y, (0 if back else self.steps - 1, 0, 0), (1, self.batch, self.units))
                    for y, back in zip(outputs, self.backward, strict=True)]  # fmt: skip
            self.give(1, ends, (directions, self.batch, self.units), 0)

    def reversed(self, operand: int) -> int:
        """A sequence from its end."""
        order = self.work.whole_tensor(range(self.steps - 1, -1, -1))
        return self.work.emit(OperationType.GATHER, (operand, self.work.whole(0), order))


def cell_of(work: Work, node: Node) -> Cell:
    """Reads what the recurrent operators have in common.

    Raises:
        Refusal: lengths differ within the batch, weights are not known, or sums are clipped.
    """
    tensor = work.input(node, 0)
    w, r = work.known(node, 1, "W"), work.known(node, 2, "R")
    gates, directions = GATES[node.operator], {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    backward = directions.get(node.text("direction", "forward"))
    if backward is None or node.whole("layout", 0) or len(tensor.shape) != 3:
        raise Refusal("a direction that is none, or the batch before time")
    if node.attributes.get("clip"):
        raise Refusal("clip bounds the sums of the gates, which no operation does")
    steps, batch, size = tensor.shape
    units = r.shape[-1] if r.ndim == 3 else 0
    count = len(backward)
    if w.shape != (count, gates * units, size) or r.shape != (count, gates * units, units):
        raise Refusal(f"weights of shapes {list(w.shape)} and {list(r.shape)}")
    b = work.known(node, 3, "B") if node.has_input(3) else np.zeros((count, 2 * gates * units))
    if b.size != count * 2 * gates * units:
        raise Refusal(f"biases of shape {list(b.shape)}")
    lengths = work.whole_list(node, 4, "sequence_lens")
    if lengths is not None and set(lengths) != {steps}:
        raise Refusal("sequences of different lengths")
    x = work.operand(tensor)
    return Cell(work, node, x, steps, batch, units, w.astype(np.float64), r.astype(np.float64),
                b.astype(np.float64).reshape(count, 2, gates * units), backward)  # fmt: skip


def activations_of(node: Node, default: tuple[str, ...], directions: int) -> list[tuple[str, ...]]:
    """Names of the activations of each direction."""
    names = node.texts("activations") or default * directions
    if len(names) != len(default) * directions:
        raise Refusal(f"{len(names)} activations")
    known = {name.lower(): name for name in STEP_ACTIVATIONS}
    tidy = tuple(known.get(name.lower(), name) for name in names)
    return [tidy[n * len(default) : (n + 1) * len(default)] for n in range(directions)]


# --- LSTM -------------------------------------------------------------------------------------------------------------


def _lstm_weights(cell: Cell, direction: int) -> list[int]:
    """Weights, peepholes and biases in the operations' order: input, forget, cell, output; the file has iofc."""
    work = cell.work
    order = (0, 2, 3, 1)
    nothing = work.assembly.omitted(work.kind_of(cell.x).type)
    w, r, b = (np.split(array, 4) for array in (cell.w[direction], cell.r[direction], cell.b[direction].sum(axis=0)))
    peepholes = [nothing] * 3
    if cell.node.has_input(7):
        p = work.known(cell.node, 7, "P")
        if p.shape != (len(cell.backward), 3 * cell.units):
            raise Refusal(f"peepholes of shape {list(p.shape)}")
        inner, outer, forget = np.split(p[direction], 3)
        peepholes = [cell.real(part) for part in (inner, forget, outer)]
    gates = [cell.real(array[n]) for array in (w, r) for n in order]
    return [*gates, *peepholes, *(cell.real(b[n]) for n in order), nothing, nothing]


def _lstm(work: Work, node: Node) -> None:
    """UNIDIRECTIONAL_SEQUENCE_LSTM, or BIDIRECTIONAL_SEQUENCE_LSTM."""
    cell = cell_of(work, node)
    if node.whole("input_forget", 0):
        raise Refusal("input and forget gates are coupled; the operations couple them the other way round")
    names = activations_of(node, ("Sigmoid", "Tanh", "Tanh"), len(cell.backward))
    if len(set(names)) > 1 or names[0][0] != "Sigmoid" or names[0][1] != names[0][2] or (
        names[0][1] not in LSTM_ACTIVATIONS
    ):  # fmt: skip
        raise Refusal(f"activations {', '.join(names[0])}")
    kind = work.kind_of(cell.x)
    nothing = work.assembly.omitted(kind.type)
    with_cell = any(node.outputs[2:3])
    scalars = (work.whole(LSTM_ACTIVATIONS[names[0][1]]), work.real(cell.x, 0.0), work.real(cell.x, 0.0))
    weights = [_lstm_weights(cell, n) for n in range(len(cell.backward))]
    states = [cell.state(position, n) for n in range(len(cell.backward)) for position in (5, 6)]
    if len(cell.backward) == 1:
        x = cell.reversed(cell.x) if cell.backward[0] else cell.x
        inputs = (x, *weights[0], *states, *scalars, work.flag(True), *[nothing] * 4)
        results = work.emit_all(OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM, inputs, [kind] * (3 if with_cell else 1))
        outputs, cells = [cell.reversed(results[0]) if cell.backward[0] else results[0]], results[2:]
    else:
        inputs = (cell.x, *weights[0], *weights[1], *states, *[nothing] * 9, *scalars, work.flag(False),
                  work.flag(True), *[nothing] * 8)  # fmt: skip
        results = work.emit_all(OperationType.BIDIRECTIONAL_SEQUENCE_LSTM, inputs, [kind] * (6 if with_cell else 2))
        outputs, cells = results[:2], [results[3], results[5]] if with_cell else []
    cell.give_sequence(outputs)
    if with_cell:
        cell.give(2, cells, (len(cell.backward), cell.batch, cell.units), 0)


# --- step by step -----------------------------------------------------------------------------------------------------


def _dense(cell: Cell, x: int, weights: Array, bias: Array) -> int:
    work = cell.work
    inputs = (x, cell.real(weights), cell.real(bias), work.activation())
    return work.emit(OperationType.FULLY_CONNECTED, inputs)


def _gru_step(cell: Cell, direction: int, names: tuple[str, ...], parts: list[int], state: int) -> int:
    """The new state (1 - z) c + z h of candidate c and gate z, written as c + z (h - c)."""
    work, plain = cell.work, cell.work.activation()
    units, r, b = cell.units, cell.r[direction], cell.b[direction][1]
    inner, outer = STEP_ACTIVATIONS[names[0]], STEP_ACTIVATIONS[names[1]]
    z, reset = _gates(cell, direction, inner, parts, state)
    last = slice(2 * units, 3 * units)
    if cell.node.whole("linear_before_reset", 0):
        kept = work.emit(OperationType.MUL, (reset, _dense(cell, state, r[last], b[last]), plain))
    else:
        kept = _dense(cell, work.emit(OperationType.MUL, (reset, state, plain)), r[last], b[last])
    candidate = work.emit(outer, (work.emit(OperationType.ADD, (parts[2], kept, plain)),))
    moved = work.emit(OperationType.SUB, (state, candidate, plain))
    return work.emit(OperationType.ADD, (candidate, work.emit(OperationType.MUL, (z, moved, plain)), plain))


def _gates(cell: Cell, direction: int, code: OperationType, parts: list[int], state: int) -> list[int]:
    """Update and reset gates."""
    work, units = cell.work, cell.units
    made = []
    for n in range(2):
        rows = slice(n * units, (n + 1) * units)
        own = _dense(cell, state, cell.r[direction][rows], cell.b[direction][1][rows])
        made.append(work.emit(code, (work.emit(OperationType.ADD, (parts[n], own, work.activation())),)))
    return made


def _rnn_step(cell: Cell, direction: int, names: tuple[str, ...], parts: list[int], state: int) -> int:
    work = cell.work
    own = _dense(cell, state, cell.r[direction], cell.b[direction][1])
    total = work.emit(OperationType.ADD, (parts[0], own, work.activation()))
    return work.emit(STEP_ACTIVATIONS[names[0]], (total,))


def _by_steps(cell: Cell, activations: Sequence[tuple[str, ...]]) -> None:
    """The sequence taken apart; what comes from the inputs is computed for all steps at once."""
    work, gates = cell.work, GATES[cell.node.operator]
    if cell.steps > MOST_STEPS:
        raise Refusal(f"a sequence of {cell.steps} steps; up to {MOST_STEPS} are taken apart")
    if any(name not in STEP_ACTIVATIONS for names in activations for name in names):
        raise Refusal(f"activations {', '.join(activations[0])}")
    step = _gru_step if cell.node.operator == "GRU" else _rnn_step
    kind = work.kind_of(cell.x)
    outputs = []
    for direction, back in enumerate(cell.backward):
        flat = work.reshape(cell.x, (cell.steps * cell.batch, work.dimensions(cell.x)[2]))
        sums = _dense(cell, flat, cell.w[direction], cell.b[direction][0])
        state = cell.state(5, direction)
        states: list[int] = []
        for n in range(cell.steps - 1, -1, -1) if back else range(cell.steps):
            row = sums if cell.steps == 1 else sliced(work, sums, (n * cell.batch, 0), (cell.batch, gates * cell.units))
            parts = [row] if gates == 1 else work.emit_all(
                OperationType.SPLIT, (row, work.whole(1), work.whole(gates)), [kind] * gates)  # fmt: skip
            state = step(cell, direction, activations[direction], parts, state)
            states.append(state)
        rows = [work.reshape(one, (1, cell.batch, cell.units)) for one in (reversed(states) if back else states)]
        outputs.append(concatenated(work, rows, 0))
    cell.give_sequence(outputs)


def _gru(work: Work, node: Node) -> None:
    cell = cell_of(work, node)
    _by_steps(cell, activations_of(node, ("Sigmoid", "Tanh"), len(cell.backward)))


def _rnn(work: Work, node: Node) -> None:
    """UNIDIRECTIONAL_SEQUENCE_RNN forward with Relu, the only activation of both; otherwise step by step."""
    cell = cell_of(work, node)
    names = activations_of(node, ("Tanh",), len(cell.backward))
    if cell.backward != (False,) or names[0][0] not in RNN_ACTIVATIONS:
        _by_steps(cell, names)
        return
    inputs = (cell.x, cell.real(cell.w[0]), cell.real(cell.r[0]), cell.real(cell.b[0].sum(axis=0)), cell.state(5, 0),
              work.whole(RNN_ACTIVATIONS[names[0][0]]), work.whole(1))  # fmt: skip
    cell.give_sequence([work.emit(OperationType.UNIDIRECTIONAL_SEQUENCE_RNN, inputs)])


RECURRENT: Mapping[str, Translate] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
