"""Activation functions, and the normalised exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from importers.assembling import Kind, Shape
from importers.onnx_file.elementwise import Translate, binary, common_shape, unary
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.work import KNOWN_RANK, Work
from nnhal.types import FusedActivation, OperationType
from opset.definition import B8, Q8, Q8S

Formula = Callable[[Work, Node, int], int]
FLATTENING = 13  # the first opset whose Softmax does not flatten
CLIPS = {(0.0, 6.0): OperationType.RELU6, (-1.0, 1.0): OperationType.RELU1, (0.0, math.inf): OperationType.RELU}
FUSIONS = {OperationType.RELU: FusedActivation.RELU, OperationType.RELU1: FusedActivation.RELU1,
           OperationType.RELU6: FusedActivation.RELU6}  # fmt: skip


def formula(make: Formula) -> Translate:
    """The translator of a function of each element, given as operations."""

    def translate(work: Work, node: Node) -> None:
        tensor = work.input(node, 0)
        work.give(node, make(work, node, work.operand_as_is(tensor)), tensor.shape, tensor.dtype)

    return translate


def function_of(code: OperationType) -> Translate:
    """The translator of an operator that one operation is, quantised ones included."""
    return formula(lambda work, node, x: unary(work, code, x, kind=work.result_kind(node, x)))


def _add(work: Work, a: int, b: int) -> int:
    return work.emit(OperationType.ADD, (a, b, work.activation()))


def _mul(work: Work, a: int, b: int) -> int:
    return work.emit(OperationType.MUL, (a, b, work.activation()))


def _scaled(work: Work, x: int, factor: float) -> int:
    return x if factor == 1.0 else _mul(work, x, work.reals(x, factor))


def _elu(work: Work, node: Node, x: int) -> int:
    return unary(work, OperationType.ELU, x, work.real(x, node.real("alpha", 1.0)))


def _selu(work: Work, node: Node, x: int) -> int:
    alpha = node.real("alpha", 1.67326319217681884765625)
    return _scaled(
        work, unary(work, OperationType.ELU, x, work.real(x, alpha)), node.real("gamma", 1.05070102214813232421875)
    )


def _celu(work: Work, node: Node, x: int) -> int:
    alpha = node.real("alpha", 1.0)
    if alpha == 0.0:
        raise Refusal("alpha is 0")
    return _scaled(work, unary(work, OperationType.ELU, _scaled(work, x, 1 / alpha), work.real(x, 1.0)), alpha)


def _leaky(work: Work, node: Node, x: int) -> int:
    return work.emit(OperationType.PRELU, (x, work.reals(x, node.real("alpha", 0.01))), work.result_kind(node, x))


def _thresholded(work: Work, node: Node, x: int) -> int:
    above = work.emit(OperationType.GREATER, (x, work.reals(x, node.real("alpha", 1.0))), Kind(B8))
    return work.emit(OperationType.SELECT, (above, x, _mul(work, x, work.reals(x, 0.0))), work.kind_of(x))


def _hard_sigmoid(work: Work, node: Node, x: int) -> int:
    line = _add(work, _scaled(work, x, node.real("alpha", 0.2)), work.reals(x, node.real("beta", 0.5)))
    low = work.emit(OperationType.MAXIMUM, (line, work.reals(x, 0.0)))
    return work.emit(OperationType.MINIMUM, (low, work.reals(x, 1.0)))


def softplus(work: Work, node: Node, x: int) -> int:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    del node
    size = unary(work, OperationType.NEG, unary(work, OperationType.ABS, x))
    small = unary(work, OperationType.LOG, _add(work, unary(work, OperationType.EXP, size), work.reals(x, 1.0)))
    return _add(work, unary(work, OperationType.RELU, x), small)


def _softsign(work: Work, node: Node, x: int) -> int:
    del node
    below = _add(work, unary(work, OperationType.ABS, x), work.reals(x, 1.0))
    return work.emit(OperationType.DIV, (x, below, work.activation()))


def _mish(work: Work, node: Node, x: int) -> int:
    return _mul(work, x, unary(work, OperationType.TANH, softplus(work, node, x)))


def _swish(work: Work, node: Node, x: int) -> int:
    default = 1.702 if node.operator == "QuickGelu" else 1.0
    return _mul(work, x, unary(work, OperationType.LOGISTIC, _scaled(work, x, node.real("alpha", default))))


def _gelu(work: Work, node: Node, x: int) -> int:
    """The approximation x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))); the function itself needs erf."""
    if node.text("approximate", "none") != "tanh":
        raise Refusal("no operation computes the error function; only the approximation by tanh can be had")
    cube = _scaled(work, _mul(work, _mul(work, x, x), x), 0.044715)
    bend = unary(work, OperationType.TANH, _scaled(work, _add(work, x, cube), math.sqrt(2 / math.pi)))
    return _mul(work, _scaled(work, x, 0.5), _add(work, bend, work.reals(x, 1.0)))


def clip_bounds(work: Work, node: Node) -> tuple[float, float]:
    """The known bounds of a Clip: attributes before opset 11, inputs since.

    Raises:
        Refusal: a bound is not known before the model runs.
    """
    bounds = []
    for place, (name, default) in enumerate((("min", -math.inf), ("max", math.inf)), start=1):
        if node.version < 11:
            bounds.append(node.real(name, default) if name in node.attributes else default)
        elif node.has_input(place):
            value = work.known(node, place, name)
            if value.size != 1:
                raise Refusal(f"{name} is no single number")
            bounds.append(float(value.reshape(())))
        else:
            bounds.append(default)
    return bounds[0], bounds[1]


def _clip(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    low, high = clip_bounds(work, node)
    operand = work.operand_as_is(tensor)
    kind = work.kind_of(operand)
    whole = tensor.dtype.name in ("int32", "int64")
    if (low, high) in CLIPS and not whole:
        operand = unary(work, CLIPS[low, high], operand, kind=work.result_kind(node, operand))
    elif kind.type in (Q8, Q8S):
        raise Refusal("quantised values are clipped to 0..6, -1..1 and from 0 on only")
    else:
        for bound, code in ((low, OperationType.MAXIMUM), (high, OperationType.MINIMUM)):
            if math.isinf(bound):
                continue
            limit = work.constant(kind, np.full(1, int(bound))) if whole else work.reals(operand, bound)
            operand = work.emit(code, (operand, limit))
        if operand == work.operand_as_is(tensor):
            work.same(node, tensor)
            return
    work.give(node, operand, tensor.shape, tensor.dtype)


def _prelu(work: Work, node: Node) -> None:
    tensor, slope = work.input(node, 0), work.input(node, 1)
    if common_shape([tensor.shape, slope.shape]) != tensor.shape:
        raise Refusal("the slope is larger than the input")
    work.give(node, binary(work, OperationType.PRELU, tensor, slope, node), tensor.shape, tensor.dtype)


def _exponential(code: OperationType) -> Translate:
    """Softmax and LogSoftmax: along an axis; before opset 13 over all dimensions from an axis on."""

    def translate(work: Work, node: Node) -> None:
        tensor = work.input(node, 0)
        rank = len(tensor.shape)
        axis = node.whole("axis", -1 if node.version >= FLATTENING else 1)
        if not -rank <= axis <= rank - (node.version >= FLATTENING):
            raise Refusal(f"axis {axis} of {rank} dimensions")
        axis += rank if axis < 0 else 0
        shape: Shape = tensor.shape
        if node.version < FLATTENING:
            shape, axis = (math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:])), 1
        elif rank > KNOWN_RANK:
            sides = math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis + 1 :])
            shape, axis = (sides[0], tensor.shape[axis], sides[1]), 1
        operand = work.operand(tensor, shape)
        inputs = (operand, work.real(operand, 1.0), work.whole(axis))
        work.give(node, work.emit(code, inputs, work.result_kind(node, operand)), tensor.shape, tensor.dtype)

    return translate


ACTIVATIONS: Mapping[str, Translate] = {
    "Relu": function_of(OperationType.RELU),
    "Sigmoid": function_of(OperationType.LOGISTIC),
    "Tanh": function_of(OperationType.TANH),
    "HardSwish": function_of(OperationType.HARD_SWISH),
    "Elu": formula(_elu),
    "Selu": formula(_selu),
    "Celu": formula(_celu),
    "LeakyRelu": formula(_leaky),
    "ThresholdedRelu": formula(_thresholded),
    "HardSigmoid": formula(_hard_sigmoid),
    "Softplus": formula(softplus),
    "Softsign": formula(_softsign),
    "Mish": formula(_mish),
    "Swish": formula(_swish),
    "Gelu": formula(_gelu),
    "Clip": _clip,
    "PRelu": _prelu,
    "Softmax": _exponential(OperationType.SOFTMAX),
    "LogSoftmax": _exponential(OperationType.LOG_SOFTMAX),
}
