"""Recurrent operations. NNAPI hands states in and out; LiteRT keeps them in variable tensors, see `Node.state`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from drivers.litert_translate.flatbuffer import Quantization
from drivers.litert_translate.node import TENSOR_TYPES, Node, UntranslatableError, quantization
from nnhal.types import Array, OperationType

Translator = Callable[[Node], None]
FUSED = range(5)  # none, RELU, RELU1, RELU6, TANH: one code in both
GATES = ("input", "forget", "cell", "output")
BIASES = ("input_gate_bias", "forget_gate_bias", "cell_bias", "output_gate_bias")
NORMS = tuple(f"{gate}_layer_norm_w" for gate in GATES)


def _activation(node: Node) -> int:
    code = node.integer("activation")
    if code not in FUSED:
        raise UntranslatableError(f"LiteRT's file format has no activation with code {code}")
    return code


def _rnn(node: Node) -> None:
    """RNN; its two results are the same."""
    inputs = node.tensors("input", "weights", "recurrent_weights", "bias")
    inputs.append(node.state("hidden_state_in", "hidden_state_out"))
    node.add("RNN", inputs, node.tensors("output"), "RNNOptions", FusedActivationFunction=_activation(node))


def _sequence_rnn(node: Node) -> None:
    """UNIDIRECTIONAL_SEQUENCE_RNN."""
    inputs = node.tensors("input", "weights", "recurrent_weights", "bias")
    inputs.append(node.state("hidden_state_in", "hidden_state_out"))
    node.add(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        inputs,
        node.tensors("output"),
        "SequenceRNNOptions",
        TimeMajor=node.flag("time_major"),
        FusedActivationFunction=_activation(node),
    )


def _bidirectional_rnn(node: Node) -> None:
    """BIDIRECTIONAL_SEQUENCE_RNN."""
    inputs = node.tensors("input")
    for way in ("fw", "bw"):
        inputs += node.tensors(f"{way}_weights", f"{way}_recurrent_weights", f"{way}_bias")
        inputs.append(node.state(f"{way}_hidden_state_in", f"{way}_hidden_state_out"))
    inputs += node.optionals(("aux_input", "fw_aux_weights", "bw_aux_weights"))
    merged = node.flag("merge_outputs")
    node.add(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        inputs,
        node.tensors("fw_output") if merged else node.tensors("fw_output", "bw_output"),
        "BidirectionalSequenceRNNOptions",
        TimeMajor=node.flag("time_major"),
        MergeOutputs=merged,
        FusedActivationFunction=_activation(node),
    )


def _cell_names(way: str = "") -> list[str]:
    """Weights, biases and projection of an LSTM cell, in the order that both have."""
    names = [f"{source}_to_{gate}_w" for source in ("input", "recurrent") for gate in GATES]
    names += [f"cell_to_{gate}_w" for gate in GATES if gate != "cell"]
    names += [*BIASES, "projection_w", "projection_bias"]
    return [way + name for name in names]


def _layer_norm(node: Node) -> list[int]:
    """Weights of the layer normalisation, nothing where there is none."""
    return node.optionals(NORMS) if any(node.has(name) for name in NORMS) else []


def _clips(node: Node) -> dict[str, float]:
    return {"CellClip": node.real("cell_clip"), "ProjClip": node.real("proj_clip")}


def _lstm(node: Node) -> None:
    """LSTM. What its scratch result holds is left open: zeros."""
    inputs = [node.tensor("input"), *node.optionals(_cell_names())]
    inputs += [node.state("output_state_in", "output_state_out"), node.state("cell_state_in", "cell_state_out")]
    inputs += _layer_norm(node)
    node.zeros("scratch")
    node.add(
        "LSTM",
        inputs,
        node.tensors("output"),
        "LSTMOptions",
        FusedActivationFunction=_activation(node),
        **_clips(node),
    )


def _sequence_lstm(node: Node) -> None:
    """UNIDIRECTIONAL_SEQUENCE_LSTM."""
    inputs = [node.tensor("input"), *node.optionals(_cell_names())]
    inputs += [node.state("output_state_in", "output_state_out"), node.state("cell_state_in", "cell_state_out")]
    inputs += _layer_norm(node)
    node.add(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        inputs,
        node.tensors("output"),
        "UnidirectionalSequenceLSTMOptions",
        FusedActivationFunction=_activation(node),
        TimeMajor=node.flag("time_major"),
        **_clips(node),
    )


def _bidirectional_lstm(node: Node) -> None:
    """BIDIRECTIONAL_SEQUENCE_LSTM."""
    if any(node.has(way + name) for way in ("fw_", "bw_") for name in NORMS):
        raise UntranslatableError("LiteRT's BIDIRECTIONAL_SEQUENCE_LSTM has no layer normalisation")
    if node.shape("fw_recurrent_to_output_w") != node.shape("bw_recurrent_to_output_w"):
        raise UntranslatableError("LiteRT's BIDIRECTIONAL_SEQUENCE_LSTM has cells of one size in both directions")
    if node.shape("fw_input_to_output_w")[1] != node.shape("bw_input_to_output_w")[1]:
        raise UntranslatableError("LiteRT's BIDIRECTIONAL_SEQUENCE_LSTM has inputs of one size in both directions")
    inputs = [node.tensor("input"), *node.optionals(_cell_names("fw_"), _cell_names("bw_"))]
    for way in ("fw", "bw"):
        inputs.append(node.state(f"{way}_activation_state_in", f"{way}_activation_state_out"))
        inputs.append(node.state(f"{way}_cell_state_in", f"{way}_cell_state_out"))
    aux = [f"{way}_aux_input_to_{gate}_w" for way in ("fw", "bw") for gate in GATES]
    inputs += node.optionals(("aux_input", *aux))
    merged = node.flag("merge_outputs")
    node.add(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        inputs,
        node.tensors("fw_output") if merged else node.tensors("fw_output", "bw_output"),
        "BidirectionalSequenceLSTMOptions",
        FusedActivationFunction=_activation(node),
        TimeMajor=node.flag("time_major"),
        MergeOutputs=merged,
        **_clips(node),
    )


def _svdf(node: Node) -> None:
    """SVDF."""
    raise UntranslatableError("LiteRT's SVDF makes room in its memory before it adds a value, NNAPI afterwards")


def _joined(node: Node, arrays: Sequence[Array], like: str) -> int:
    """A constant of several ones, with the type and scale of one of them."""
    operand, value = node[like], np.concatenate(arrays)
    return node.flat.tensor(value.shape, TENSOR_TYPES[operand.type], value.tobytes(), quantization(operand))


def _quantized_16bit_lstm(node: Node) -> None:
    """QUANTIZED_16BIT_LSTM: LiteRT's basic kernel, with one matrix for all gates. It keeps no state."""
    order = (0, 2, 1, 3)  # input, cell, forget, output
    rows = [
        np.concatenate([node.value(f"{source}_to_{GATES[gate]}_w") for source in ("recurrent", "input")], axis=1)
        for gate in order
    ]
    biases = [node.value(BIASES[gate]) for gate in order]
    batch, units = node.shape("prev_output")
    places = units + node.shape("input")[1]
    joined = node.flat.like(node.tensor("input"), (batch, places))
    sums = Quantization((2.0**-12,), (0,))
    gates = node.flat.tensor((batch, 4 * units), schema.TensorType.INT16, None, sums)
    node.add(
        "LSTM",
        [
            node.tensor("input"),
            node.state("prev_output"),
            _joined(node, rows, "input_to_input_w"),
            _joined(node, biases, "input_gate_bias"),
            node.state("prev_cell_state"),
        ],
        [*node.tensors("output", "cell_state_out"), joined, gates],
        "LSTMOptions",
        KernelType=schema.LSTMKernelType.BASIC,
        FusedActivationFunction=schema.ActivationFunctionType.TANH,
    )


def _quantized_lstm(node: Node) -> None:
    """QUANTIZED_LSTM: LiteRT's kernel in integers; scales of what is computed on the way are those of tensors.

    It adds weights up when tensors are allocated, and reads from nowhere where they are not there yet.
    """
    for name in (*_cell_names(), *NORMS):
        if node.has(name) and not node.is_constant(name):
            raise UntranslatableError(f"{name} is no constant, and LiteRT reads it before the first run")
    inputs = [node.tensor("input"), *node.optionals(_cell_names())]
    inputs += [node.state("prev_output", "output_state_out"), node.state("prev_cell_state", "cell_state_out")]
    inputs += _layer_norm(node)
    between = [
        node.flat.tensor(
            (), schema.TensorType.INT16, None, Quantization((node.real(f"{gate}_intermediate_scale"),), (0,))
        )
        for gate in GATES
    ]
    hidden = Quantization((node.real("hidden_scale"),), (node.integer("hidden_zero_point"),))
    between.append(node.flat.tensor((), schema.TensorType.INT8, None, hidden))
    node.add(
        "LSTM",
        inputs,
        node.tensors("output"),
        "LSTMOptions",
        FusedActivationFunction=schema.ActivationFunctionType.TANH,
        **_clips(node),
    )
    node.flat.scale_between(between)


TRANSLATORS: Mapping[int, Translator] = {
    OperationType.QUANTIZED_16BIT_LSTM: _quantized_16bit_lstm,
    OperationType.QUANTIZED_LSTM: _quantized_lstm,
    OperationType.RNN: _rnn,
    OperationType.SVDF: _svdf,
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN: _sequence_rnn,
    OperationType.BIDIRECTIONAL_SEQUENCE_RNN: _bidirectional_rnn,
    OperationType.LSTM: _lstm,
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM: _sequence_lstm,
    OperationType.BIDIRECTIONAL_SEQUENCE_LSTM: _bidirectional_lstm,
}
