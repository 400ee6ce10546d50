"""The two models in plain NumPy: a second way to compute them, and the one that training and evaluation report with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlts.speech.parameters import LstmLayer, Parameters
from nnhal.types import Array

State = tuple[Array, Array]  # output and cell state of a layer, [units] each


def lstm(layer: LstmLayer, inputs: Array, state: State | None = None) -> tuple[Array, State]:
    """An LSTM layer along inputs [steps, size], in float64: outputs [steps, units] and the last state.

    Args:
        state: the one to begin from; zeros if None.
    """
    units = layer.bias.shape[1]
    output, cell = state or (np.zeros(units), np.zeros(units))
    inward, recurrent = (w.reshape(4 * units, -1).astype(np.float64) for w in (layer.inward, layer.recurrent))
    sums = inputs.astype(np.float64) @ inward.T + layer.bias.reshape(-1)
    outputs = np.empty((len(inputs), units))
    for step, known in enumerate(sums):
        gates = (known + recurrent @ output).reshape(4, units)
        enter, forget, _, leave = 1 / (1 + np.exp(-gates))
        cell = forget * cell + enter * np.tanh(gates[2])
        output = leave * np.tanh(cell)
        outputs[step] = output
    return outputs, (output, cell)


def run(
    parameters: Parameters, inputs: Array, states: Sequence[State | None] = (None, None)
) -> tuple[Array, list[State]]:
    """All layers along inputs [steps, size]: the dense layer's outputs [steps, outputs], and each layer's state."""
    last = []
    values = inputs
    for layer, state in zip(parameters.layers, states, strict=True):
        values, state = lstm(layer, values, state)
        last.append(state)
    return values @ parameters.dense.T.astype(np.float64) + parameters.bias, last


def execute(parameters: Parameters, inputs: Sequence[Array], *, probabilities: bool) -> list[Array]:
    """One run of the model that `nets` makes of the parameters: the same inputs, the same outputs, in float64.

    Args:
        parameters: of the model.
        inputs: a chunk [1, steps, inputs] and the four states [1, units].
        probabilities: whether a softmax is behind the dense layer, as in the asr model.
    """
    chunk, *flat = inputs
    states = [(output[0], cell[0]) for output, cell in zip(flat[0::2], flat[1::2], strict=True)]
    rows, last = run(parameters, chunk[0], states)
    return [softmax(rows) if probabilities else rows, *(value[None] for state in last for value in state)]


def softmax(logits: Array) -> Array:
    """Probabilities along the last dimension."""
    grown = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(grown / grown.sum(-1, keepdims=True))
