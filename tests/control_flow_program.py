"""A second opinion on graphs with IF and WHILE: a plain interpreter in float32 and integers, written from the words.

It shares nothing with `opset` but the model. A fault can be put into what it does with graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nnhal.model import Model, Operand, Subgraph
from nnhal.types import Array, OperandLifeTime, OperandType, OperationType

STORED = {
    OperandType.TENSOR_FLOAT32: np.float32,
    OperandType.TENSOR_FLOAT16: np.float16,
    OperandType.TENSOR_INT32: np.int32,
    OperandType.TENSOR_BOOL8: np.uint8,
    OperandType.TENSOR_QUANT8_ASYMM: np.uint8,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: np.int8,
    OperandType.INT32: np.int32,
}
BYTES = (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED)
CLIPS = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}
MOST_TURNS = 40  # of a loop with a fault, which may have no end

Compute = Callable[..., Array]
TWO: dict[str, Compute] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "NOT_EQUAL": np.not_equal,
}
ONE: dict[str, Compute] = {
    "RELU": lambda x: np.maximum(x, 0),
    "RELU1": lambda x: np.clip(x, -1, 1),
    "RELU6": lambda x: np.clip(x, 0, 6),
    "TANH": np.tanh,
    "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)),
    "ABS": np.abs,
    "NEG": np.negative,
    "LOGICAL_NOT": lambda x: x == 0,
}


@dataclass
class Program:
    """Runs a model.

    Attributes:
        fault: name of what is done wrong, or nothing.
        turns: how often loops of the main graph ran.
    """

    model: Model
    fault: str = ""
    turns: int = 0

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Outputs of the main graph."""
        return self._graph(self.model.main, inputs, self.fault)

    def _graph(self, graph: Subgraph, inputs: Sequence[Array], fault: str = "") -> list[Array]:
        known: dict[int, Array] = dict(zip(graph.input_indexes, inputs, strict=True))
        for index, operand in enumerate(graph.operands):
            if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
                start = operand.location.offset
                data = self.model.operand_values[start : start + operand.location.length]
                known[index] = np.frombuffer(data, STORED[OperandType(operand.type)]).reshape(operand.dimensions)
        for operation in graph.operations:
            name = OperationType(operation.type).name
            takes, gives = [graph.operands[i] for i in operation.inputs], [graph.operands[i] for i in operation.outputs]
            values = [known.get(i) for i in operation.inputs]
            if name in ("IF", "WHILE"):
                graphs = [self.model.referenced[o.location.offset] for o in takes if o.type == OperandType.SUBGRAPH]
                given = [value for value in values if value is not None]
                results = self._if(graphs, given, fault) if name == "IF" else self._while(graphs, given, fault)
                results = results[: len(gives)]
            else:
                results = [_compute(name, takes, [v for v in values if v is not None], gives[0])]
            known.update(zip(operation.outputs, results, strict=True))
        return [known[i] for i in graph.output_indexes]

    def _if(self, graphs: Sequence[Subgraph], values: Sequence[Array], fault: str) -> list[Array]:
        condition, *handed = values
        chosen = int(condition[0] == 0)
        if fault == "other branch":
            chosen = 1 - chosen
        if fault in ("always the first", "always the second"):
            chosen = int(fault == "always the second")
        if fault == "operands reversed":
            handed = _like(handed, list(reversed(handed)))
        results = self._graph(graphs[chosen], handed)
        return _like(results, results[1:] + results[:1]) if fault == "results rotated" else results

    def _while(self, graphs: Sequence[Subgraph], values: Sequence[Array], fault: str) -> list[Array]:
        condition, body = graphs
        state, first = list(values), list(values)
        count, turns = len(body.output_indexes), 0
        while turns < MOST_TURNS:
            asked = first if fault == "condition on first values" else state
            holds = bool(self._graph(condition, asked)[0][0])
            if fault == "at least once" and not turns:
                holds = True
            if not holds:
                break
            before = list(state)
            state[:count] = self._graph(body, first if fault == "body on first values" else state)
            if fault == "results rotated":
                state[:count] = _like(before[:count], state[1:count] + state[:1])
            if fault == "one value kept":
                state[count - 1] = before[count - 1]
            turns += 1
            if (fault == "one turn only") or (fault == "stops at two" and turns == 2):
                break
        if fault == "one turn more":
            state[:count] = self._graph(body, state)
        if fault == "one turn less" and turns:
            state = before
        if fault == "initial values":
            state = first
        self.turns = turns
        return state[:count]


def _like(due: Sequence[Array], values: Sequence[Array]) -> list[Array]:
    """Values where they have the type and shape that is due, else those that were due."""
    return [v if v.shape == d.shape and v.dtype == d.dtype else d for d, v in zip(due, values, strict=True)]


def _real(operand: Operand, stored: Array) -> Array:
    if operand.type in BYTES:
        return (stored.astype(np.float32) - np.float32(operand.zero_point)) * np.float32(operand.scale)
    return stored


def _compute(name: str, takes: Sequence[Operand], values: Sequence[Array], result: Operand) -> Array:
    real = [_real(operand, value) for operand, value in zip(takes, values, strict=True)]
    with np.errstate(all="ignore"):
        found = TWO[name](*real[:2]) if name in TWO else ONE[name](real[0])
    if name in ("ADD", "SUB", "MUL"):
        low, high = CLIPS[int(values[2])]
        if (low, high) != (-np.inf, np.inf):
            found = np.clip(found, low, high)
    dtype = STORED[OperandType(result.type)]
    if result.type in BYTES:
        ends = np.iinfo(dtype)
        steps = np.asarray(found, np.float64) / result.scale
        away = np.sign(steps) * np.floor(np.abs(steps) + 0.5)
        return np.clip(away + result.zero_point, ends.min, ends.max).astype(dtype)
    return found.astype(dtype)
