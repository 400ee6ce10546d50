"""The speech models as models of the contract: two UNIDIRECTIONAL_SEQUENCE_LSTM and a FULLY_CONNECTED each.

A run takes one chunk, a second of sound, with the states of both layers in and out, so that a client goes through an
utterance chunk by chunk. All tensors are TENSOR_FLOAT32. With N units, the inputs in their order are

    the chunk [1, steps, inputs], output state [1, N] and cell state [1, N] of layer 1, the same of layer 2,

and the outputs the rows [steps, outputs], then the four states in the same order. The states as outputs need feature
level 4.

| | steps | inputs | N | outputs |
|---|---|---|---|---|
| asr | 50 of 20 ms | 80: two frames of 40 log-mel bands, normalised | 128 | 40 probabilities of phones (SOFTMAX) |
| tts | 100 of 10 ms | 123: phones around, place, length | 96 | 26: cepstra c0 to c24, log F0 |
"""

from __future__ import annotations

from importers.assembling import FLOAT32, Assembly
from mlts.speech.parameters import LstmLayer, Parameters, read
from nnhal.model import Model
from nnhal.types import FusedActivation, LstmActivation, OperandType, OperationType

ASR_STEPS = 50
TTS_STEPS = 100


def asr_model(parameters: Parameters | None = None, *, relaxed: bool = False) -> Model:
    """The model that gives phones from sound.

    Args:
        parameters: the trained ones if None.
        relaxed: allows the range and precision of float16.

    Raises:
        UsageError: the trained parameters are missing or damaged.
    """
    return _model(parameters or read("asr"), ASR_STEPS, softmax=True, relaxed=relaxed)


def tts_model(parameters: Parameters | None = None, *, relaxed: bool = False) -> Model:
    """The model that gives cepstra and log F0 from phones. As `asr_model`."""
    return _model(parameters or read("tts"), TTS_STEPS, softmax=False, relaxed=relaxed)


def _model(parameters: Parameters, steps: int, *, softmax: bool, relaxed: bool) -> Model:
    graph = Assembly()
    rows = graph.input(FLOAT32, (1, steps, parameters.layers[0].inward.shape[2]))
    states = [tuple(graph.input(FLOAT32, (1, layer.bias.shape[1])) for _ in range(2)) for layer in parameters.layers]
    last: list[int] = []
    for layer, before in zip(parameters.layers, states, strict=True):
        rows, *after = _lstm(graph, layer, rows, before, steps)
        last += after
    shape = (steps, parameters.dense.shape[0])
    made = graph.temporary(FLOAT32, shape)
    weights, bias = (graph.constant(FLOAT32, value) for value in (parameters.dense, parameters.bias))
    # The operation itself takes [1, steps, units] for steps rows.
    graph.add(OperationType.FULLY_CONNECTED, [rows, weights, bias, graph.int32(FusedActivation.NONE)], [made])
    if softmax:
        logits, made = made, graph.temporary(FLOAT32, shape)
        graph.add(OperationType.SOFTMAX, [logits, graph.float32(1.0)], [made])
    return graph.finish([made, *last], relaxed)


def _lstm(graph: Assembly, layer: LstmLayer, rows: int, before: tuple[int, ...], steps: int) -> tuple[int, int, int]:
    """Adds a layer: its outputs, output state and cell state."""
    absent = graph.omitted(OperandType.TENSOR_FLOAT32)
    units = layer.bias.shape[1]
    gates = [graph.constant(FLOAT32, w) for part in (layer.inward, layer.recurrent) for w in part]
    biases = [graph.constant(FLOAT32, b) for b in layer.bias]
    clips = [graph.float32(0.0)] * 2
    results = tuple(graph.temporary(FLOAT32, shape) for shape in ((1, steps, units), (1, units), (1, units)))
    graph.add(
        OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
        [
            rows, *gates, *[absent] * 3, *biases, *[absent] * 2, *before,
            graph.int32(LstmActivation.TANH), *clips, graph.flag(False), *[absent] * 4,
        ],
        results,
    )  # fmt: skip
    return results[0], results[1], results[2]
