"""Recurrent operators. What .tflite keeps in variable tensors the contract hands in and out.

Weights of hybrid operators, steps beside real inputs, become real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from importers.assembling import Kind
from importers.tflite_file.kinds import InexpressibleError
from importers.tflite_file.node import Node
from nnhal.types import LstmActivation, OperandType, OperationType

Translator = Callable[[Node], None]
CELL_ACTIVATIONS: Mapping[int, LstmActivation] = {
    0: LstmActivation.NONE,
    1: LstmActivation.RELU,
    3: LstmActivation.RELU6,
    4: LstmActivation.TANH,
}
FULL_KERNEL = 0
CELL = 17  # inputs that describe an LSTM cell: weights, biases, projection
GATES = 4
NORMS = 4  # weights of the layer normalisation
BASIC_INPUTS = 5
BASIC_ORDER = (0, 2, 1, 3)  # places of the input, forget, cell and output gate among the rows of the one matrix
STEPS = OperandType.TENSOR_QUANT8_SYMM  # of the weights of QUANTIZED_LSTM


def _optional(node: Node, places: Iterable[int]) -> list[int]:
    """Operands of inputs that may be left out, real ones."""
    left_out = _left_out(node)
    return [node.weights(place, 0) if node.has(place) else left_out for place in places]


def _left_out(node: Node) -> int:
    """A real input that is left out."""
    return node.build.assembly.omitted(node.kind(node.operand(0)).type)


def _cell_activation(node: Node, code: float) -> int:
    if code not in CELL_ACTIVATIONS:
        raise InexpressibleError(f"the activation {int(code)} is none of a cell")
    return node.whole(CELL_ACTIVATIONS[int(code)])


def _clips(node: Node, options: Mapping[str, float]) -> list[int]:
    return [node.real(options[name], node.operand(0)) for name in ("cell_clip", "proj_clip")]


def _states(node: Node, places: Sequence[int]) -> list[int]:
    """The operands of states before the operator."""
    return [node.operand(place) for place in places]


def _leave(node: Node, places: Sequence[int], operands: Sequence[int]) -> None:
    """Lets the tensors of states be what the operator left."""
    for place, operand in zip(places, operands, strict=True):
        node.build.leave(node.number(place), operand)


def _rnn(node: Node) -> None:
    """RNN; its results are one."""
    state = node.operand(4)
    inputs = [node.operand(0), node.weights(1, 0), node.weights(2, 0), node.operand(3), state]
    inputs.append(node.activation(node.options("RNNOptions")["activation"]))
    left, _ = node.add(OperationType.RNN, inputs, node.kind(state), node.result())
    _leave(node, [4], [left])


def _sequence_rnn(node: Node) -> None:
    """UNIDIRECTIONAL_SEQUENCE_RNN."""
    options, state = node.options("SequenceRNNOptions"), node.operand(4)
    inputs = [node.operand(0), node.weights(1, 0), node.weights(2, 0), node.operand(3), state]
    inputs += [node.activation(options["activation"]), node.whole(options["time_major"])]
    _, left = node.add(OperationType.UNIDIRECTIONAL_SEQUENCE_RNN, inputs, node.result(), node.kind(state))
    _leave(node, [4], [left])


def _bidirectional_rnn(node: Node) -> None:
    """BIDIRECTIONAL_SEQUENCE_RNN."""
    options, places = node.options("BidirectionalSequenceRNNOptions"), [4, 8]
    merged = bool(options["merge_outputs"])
    inputs = [node.operand(0), *_optional(node, range(1, 12)), node.activation(options["activation"])]
    inputs += [node.flag(options["time_major"]), node.flag(merged)]
    kinds = [node.kind(state) for state in _states(node, places)]
    results = [node.result(place) for place in range(1 if merged else 2)]
    left = node.add(OperationType.BIDIRECTIONAL_SEQUENCE_RNN, inputs, *results, *kinds)
    _leave(node, places, left[len(results) :])


def _svdf(node: Node) -> None:
    """SVDF. .tflite makes room in its memory before a value comes, the contract afterwards: nobody else may see it."""
    options, memory = node.options("SVDFOptions"), node.tensor(4)
    graph = node.build.graph
    readers = sum(operator.inputs.count(memory.number) for operator in graph.operators)
    if memory.number in (*graph.inputs, *graph.outputs) or readers > 1:
        raise InexpressibleError("others read its memory, which the contract has in another order")
    state = node.operand(4)
    inputs = [node.operand(0), node.weights(1, 0), node.weights(2, 0), *_optional(node, [3]), state]
    inputs += [node.whole(options["rank"]), node.activation(options["activation"])]
    left, _ = node.add(OperationType.SVDF, inputs, node.kind(state), node.result())
    _leave(node, [4], [left])


def _lstm(node: Node) -> None:
    """LSTM: by its inputs one of four operations."""
    options = node.options("LSTMOptions")
    steps = node.build.is_quantized(node.operand(0))
    if options["kernel_type"] != FULL_KERNEL:
        _basic(node, steps)
    elif steps:
        _quantized(node, options)
    else:
        _full(node, options)


def _full(node: Node, options: Mapping[str, float]) -> None:
    """LSTM; what its scratch result holds is left open."""
    places = [CELL + 1, CELL + 2]
    inputs = [node.operand(0), *_optional(node, range(1, CELL + 1)), *_states(node, places)]
    norms = range(CELL + 3, CELL + 3 + NORMS)
    inputs += [_cell_activation(node, options["activation"]), *_clips(node, options)]
    if any(node.has(place) for place in norms):
        inputs += _optional(node, norms)
    kinds = [node.kind(node.operand(place)) for place in (places[0], *places)]
    _, *left, _ = node.add(OperationType.LSTM, inputs, *kinds, node.result())
    _leave(node, places, left)


def _sequence_lstm(node: Node) -> None:
    """UNIDIRECTIONAL_SEQUENCE_LSTM."""
    options, places = node.options("UnidirectionalSequenceLSTMOptions"), [CELL + 1, CELL + 2]
    if options["diagonal_recurrent_tensors"]:
        raise InexpressibleError("its recurrent weights are diagonal")
    inputs = [node.operand(0), *_optional(node, range(1, CELL + 1)), *_states(node, places)]
    inputs += [_cell_activation(node, options["activation"]), *_clips(node, options), node.flag(options["time_major"])]
    inputs += _optional(node, range(CELL + 3, CELL + 3 + NORMS))
    kinds = [node.kind(node.operand(place)) for place in places]
    _, *left = node.add(OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM, inputs, node.result(), *kinds)
    _leave(node, places, left)


def _bidirectional_lstm(node: Node) -> None:
    """BIDIRECTIONAL_SEQUENCE_LSTM, which has no layer normalisation here."""
    options = node.options("BidirectionalSequenceLSTMOptions")
    merged, first = bool(options["merge_outputs"]), 2 * CELL + 1
    places = list(range(first, first + 4))
    inputs = [node.operand(0), *_optional(node, range(1, first)), *_states(node, places)]
    inputs += _optional(node, range(first + 4, first + 5 + 2 * GATES))
    inputs += [_cell_activation(node, options["activation"]), *_clips(node, options)]
    inputs += [node.flag(merged), node.flag(options["time_major"])]
    inputs += [_left_out(node)] * (2 * NORMS)
    kinds = [node.kind(node.operand(place)) for place in places]
    results = [node.result(place) for place in range(1 if merged else 2)]
    left = node.add(OperationType.BIDIRECTIONAL_SEQUENCE_LSTM, inputs, *results, *kinds)
    _leave(node, places, left[len(results) :])


def _quantized(node: Node, options: Mapping[str, float]) -> None:
    """QUANTIZED_LSTM. The scales of what is computed on the way are those of tensors without values."""
    if len(node.operator.intermediates) != GATES + 1:
        raise InexpressibleError("it does not have the five scales of what is computed on the way")
    places = [CELL + 1, CELL + 2]

    def symmetric(place: int) -> int:
        if not node.has(place):
            weights = place <= 2 * GATES or place == CELL - 1
            return node.build.assembly.omitted(STEPS if weights else OperandType.TENSOR_INT32)
        kind = node.kind(node.operand(place))
        if kind.type != OperandType.TENSOR_QUANT8_ASYMM_SIGNED:
            return node.operand(place)
        if kind.zero_point:
            raise InexpressibleError(f"its weights have the zero point {kind.zero_point}")
        return node.build.constant(Kind(STEPS, kind.scale), node.constant(place, "weights"))

    def short(place: int) -> int:
        omitted = node.build.assembly.omitted(OperandType.TENSOR_QUANT16_SYMM)
        return node.operand(place) if node.has(place) else omitted

    peepholes, biases = range(2 * GATES + 1, 3 * GATES), range(3 * GATES, CELL + 1)
    weights = [symmetric(place) for place in range(1, 2 * GATES + 1)]
    inputs = [node.operand(0), *weights, *(short(p) for p in peepholes), *(symmetric(p) for p in biases)]
    inputs += [*_states(node, places), *(short(place) for place in range(CELL + 3, CELL + 3 + NORMS))]
    between = [node.build.tensor(number) for number in node.operator.intermediates]
    if any(not tensor.scales.size for tensor in between) or not between[-1].zero_points.size:
        raise InexpressibleError("what is computed on the way has no scale")
    inputs += [node.build.assembly.float32(options[name]) for name in ("cell_clip", "proj_clip")]
    inputs += [node.build.assembly.float32(float(tensor.scales[0])) for tensor in between[:-1]]
    inputs += [node.whole(int(between[-1].zero_points[0])), node.build.assembly.float32(float(between[-1].scales[0]))]
    kinds = [node.kind(node.operand(place)) for place in places]
    *left, _ = node.add(OperationType.QUANTIZED_LSTM, inputs, *kinds, node.result())
    _leave(node, places, left)


def _basic(node: Node, steps: bool) -> None:
    """The basic kernel, whose one matrix has the rows of all gates: QUANTIZED_16BIT_LSTM, or LSTM of real numbers."""
    if node.count != BASIC_INPUTS:
        raise InexpressibleError(f"its basic kernel has {node.count} inputs")
    given, output, cell = node.operand(0), node.operand(1), node.operand(4)
    units, size = node.dims(output)[-1], node.dims(given)[-1]
    matrix, bias = node.constant(2, "its matrix"), node.constant(3, "its bias")
    if matrix.shape != (GATES * units, units + size) or bias.shape != (GATES * units,):
        raise InexpressibleError("its matrix and bias do not fit its states")
    kind, bias_kind = (node.kind(node.operand(place)) for place in (2, 3))
    split = units if steps else size  # the columns for the states come first in the one kernel, last in the other

    def pieces(columns: slice) -> list[int]:
        blocks = [matrix[BASIC_ORDER[gate] * units :][:units, columns] for gate in range(GATES)]
        return [node.build.constant(kind, block) for block in blocks]

    first, second = pieces(slice(None, split)), pieces(slice(split, None))
    weights = [*second, *first] if steps else [*first, *second]
    biases = [node.build.constant(bias_kind, bias[BASIC_ORDER[g] * units :][:units]) for g in range(GATES)]
    if steps:
        inputs = [given, *weights, *biases, cell, output]
        node.add(OperationType.QUANTIZED_16BIT_LSTM, inputs, node.result(1), node.result(0))
        return
    left_out, options = _left_out(node), node.options("LSTMOptions")
    inputs = [given, *weights, *[left_out] * 3, *biases, left_out, left_out, output, cell]
    inputs += [node.whole(LstmActivation.TANH), *_clips(node, options)]
    kinds = [node.kind(cell), node.kind(output)]
    node.add(OperationType.LSTM, inputs, *kinds, node.result(1), node.result(0))


TRANSLATORS: Mapping[str, Translator] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": _bidirectional_lstm,
    "BIDIRECTIONAL_SEQUENCE_RNN": _bidirectional_rnn,
    "LSTM": _lstm,
    "RNN": _rnn,
    "SVDF": _svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence_lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _sequence_rnn,
}
