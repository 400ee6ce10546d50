"""Operators on one element at a time: functions, activations, arithmetic, comparisons, choices, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from importers.assembling import INT32, Kind
from importers.tflite_file.kinds import InexpressibleError, dequantized
from importers.tflite_file.node import Node
from nnhal.types import OperandType, OperationType

Translator = Callable[[Node], None]
BOOL8 = Kind(OperandType.TENSOR_BOOL8)
TANH_SCALE = math.sqrt(2 / math.pi)  # of the approximate GELU
TANH_CUBE = 0.044715
MOST_SUMMANDS = 256


def _plain(code: OperationType) -> Translator:
    """An operator that is an operation, by way of real numbers where that does not take the steps."""

    def write(node: Node) -> None:
        node.compute(code, node.operands())

    return write


def _moving(code: OperationType) -> Translator:
    """MAXIMUM and MINIMUM: .tflite compares and moves stored values, the contract real ones."""

    def write(node: Node) -> None:
        _same_scales(node, node.operands())
        node.compute(code, node.operands())

    return write


def _same_scales(node: Node, operands: list[int]) -> None:
    kinds = {node.kind(operand) for operand in (*operands, node.result())}
    if len(kinds) > 1:
        raise InexpressibleError("stored values are moved between different scales")


def _arithmetic(code: OperationType, options: str) -> Translator:
    """Two tensors with broadcasting and a fused activation."""

    def write(node: Node) -> None:
        node.compute(code, node.operands(), [node.activation(node.options(options)["activation"])])

    return write


def _divide(node: Node) -> None:
    """DIV; of integers .tflite drops the fraction, the contract rounds down."""
    if node.kind(node.operand(0)).type == OperandType.TENSOR_INT32:
        raise InexpressibleError("integers are divided towards zero, and DIV rounds down")
    _arithmetic(OperationType.DIV, "DivOptions")(node)


def _floor_divide(node: Node) -> None:
    """FLOOR_DIV: DIV, and FLOOR of real numbers."""

    def compute(operands: list[int], into: int) -> None:
        inputs = [*operands, node.activation(0)]
        if node.kind(into).type == OperandType.TENSOR_INT32:
            node.apply(OperationType.DIV, inputs, into)
        else:
            node.apply(OperationType.FLOOR, [node.apply(OperationType.DIV, inputs)], into)

    node.in_reals(compute, node.operands(2))


def _floor_modulo(node: Node) -> None:
    """FLOOR_MOD of integers: a - b * (a / b). Of real numbers the rounding of the quotient would show."""
    a, b = node.operand(0), node.operand(1)
    if node.kind(a).type != OperandType.TENSOR_INT32:
        raise InexpressibleError(f"of {node.tensor(0).type} it cannot be computed without a loss")
    none = node.activation(0)
    quotient = node.apply(OperationType.DIV, [a, b, none])
    node.apply(OperationType.SUB, [a, node.apply(OperationType.MUL, [quotient, b, none]), none], node.result())


def _square(node: Node) -> None:
    """SQUARE."""
    node.compute(OperationType.MUL, [node.operand(0), node.operand(0)], [node.activation(0)])


def _squared_difference(node: Node) -> None:
    """SQUARED_DIFFERENCE: SUB, MUL."""

    def compute(operands: list[int], into: int) -> None:
        none = node.activation(0)
        difference = node.apply(OperationType.SUB, [*operands, none])
        node.apply(OperationType.MUL, [difference, difference, none], into)

    node.in_reals(compute, node.operands(2))


def _sum_of_several(node: Node) -> None:
    """ADD_N: ADDs from the left."""
    if not 2 <= node.count <= MOST_SUMMANDS:
        raise InexpressibleError(f"it has {node.count} summands, and 2 to {MOST_SUMMANDS} are added")

    def compute(operands: list[int], into: int) -> None:
        none, total = node.activation(0), operands[0]
        for operand in operands[1:-1]:
            total = node.apply(OperationType.ADD, [total, operand, none])
        node.apply(OperationType.ADD, [total, operands[-1], none], into)

    node.in_reals(compute, node.operands())


def _ceil(node: Node) -> None:
    """CEIL: NEG, FLOOR, NEG."""

    def compute(operands: list[int], into: int) -> None:
        floor = node.apply(OperationType.FLOOR, [node.apply(OperationType.NEG, operands)])
        node.apply(OperationType.NEG, [floor], into)

    node.in_reals(compute, node.operands(1))


def _cosine(node: Node) -> None:
    """COS: SIN of a quarter turn more."""

    def compute(operands: list[int], into: int) -> None:
        quarter = node.filled(math.pi / 2, node.kind(operands[0]))
        turned = node.apply(OperationType.ADD, [operands[0], quarter, node.activation(0)])
        node.apply(OperationType.SIN, [turned], into)

    node.in_reals(compute, node.operands(1))


def _gelu(node: Node) -> None:
    """GELU in its approximate form: x / 2 * (1 + tanh(c * (x + k * x^3)))."""
    if not node.options("GeluOptions")["approximate"]:
        raise InexpressibleError("the error function of its exact form is no operation")

    def compute(operands: list[int], into: int) -> None:
        (x,) = operands
        none = node.activation(0)
        kind = node.kind(x)

        def scaled(operand: int, factor: float) -> int:
            return node.apply(OperationType.MUL, [operand, node.filled(factor, kind), none])

        def product(a: int, b: int) -> int:
            return node.apply(OperationType.MUL, [a, b, none])

        cube = product(product(x, x), x)
        inner = node.apply(OperationType.ADD, [x, scaled(cube, TANH_CUBE), none])
        curve = node.apply(OperationType.TANH, [scaled(inner, TANH_SCALE)])
        share = node.apply(OperationType.ADD, [curve, node.filled(1, kind), none])
        node.apply(OperationType.MUL, [scaled(x, 0.5), share, none], into)

    node.in_reals(compute, node.operands(1))


def _leaky_relu(node: Node) -> None:
    """LEAKY_RELU: PRELU with one constant slope."""
    slope = node.options("LeakyReluOptions")["alpha"]

    def compute(operands: list[int], into: int) -> None:
        node.apply(OperationType.PRELU, [*operands, node.filled(slope, node.kind(operands[0]))], into)

    node.in_reals(compute, node.operands(1))


def _relu_0_to_1(node: Node) -> None:
    """RELU_0_TO_1: MAXIMUM, MINIMUM."""

    def compute(operands: list[int], into: int) -> None:
        kind = node.kind(operands[0])
        low = node.apply(OperationType.MAXIMUM, [operands[0], node.filled(0, kind)])
        node.apply(OperationType.MINIMUM, [low, node.filled(1, kind)], into)

    node.in_reals(compute, node.operands(1))


def _elu(node: Node) -> None:
    """ELU."""
    operand = node.operand(0)
    node.compute(OperationType.ELU, [operand], [node.real(1.0, operand)])


def _select(node: Node) -> None:
    """SELECT and SELECT_V2; what would be broadcast is repeated: the condition by LOGICAL_OR, values by TILE."""
    condition, *branches = node.operands(3)
    _same_scales(node, branches)
    shape = node.dims(node.result())
    if node.operator.name == "SELECT" and node.dims(condition) not in (shape, (1,)):
        raise InexpressibleError("its condition chooses rows")
    if node.dims(condition) != shape:
        condition = node.apply(OperationType.LOGICAL_OR, [condition, node.filled(False, BOOL8, shape)])
    node.apply(OperationType.SELECT, [condition, *(spread(node, b, shape) for b in branches)], node.result())


def spread(node: Node, operand: int, shape: tuple[int, ...], result: int | None = None) -> int:
    """An operand repeated to a shape that it broadcasts to.

    Raises:
        InexpressibleError: it does not.
    """
    given = node.dims(operand)
    if given == shape and result is None:
        return operand
    full = (1,) * (len(shape) - len(given)) + given
    if len(full) > len(shape) or any(a not in (1, b) for a, b in zip(full, shape, strict=True)):
        raise InexpressibleError(f"the shape {list(given)} does not broadcast to {list(shape)}")
    multiples = [due // size for due, size in zip(shape, full, strict=True)]
    return node.apply(OperationType.TILE, [node.view(operand, full), node.row(multiples)], result)


def _broadcast_to(node: Node) -> None:
    """BROADCAST_TO: TILE; of truths LOGICAL_OR."""
    operand, result = node.operand(0), node.result()
    if node.kind(operand) == BOOL8:
        false = node.filled(False, BOOL8, node.dims(result))
        node.apply(OperationType.LOGICAL_OR, [operand, false], result)
    else:
        spread(node, operand, node.dims(result), result)


def _cast(node: Node) -> None:
    """CAST of stored values; from and to truths SELECT and NOT_EQUAL."""
    operand = node.operand(0)
    given, due = node.kind(operand).type, node.result_kind().type
    if given == due and node.tensor(0).type != node.output().type:  # 64-bit and 32-bit integers are one type here
        node.same(0, operand)
        return
    result = node.result()
    if (given, due) == (OperandType.TENSOR_INT32, OperandType.TENSOR_QUANT8_ASYMM):
        raise InexpressibleError("the high bits of integers are dropped, and CAST saturates")
    if given == OperandType.TENSOR_BOOL8 and due in (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32):
        kind, shape = node.result_kind(), node.dims(operand)
        choices = [node.filled(value, kind, shape) for value in (1, 0)]
        node.apply(OperationType.SELECT, [operand, *choices], result)
    elif due == OperandType.TENSOR_BOOL8 and given in (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32):
        node.apply(OperationType.NOT_EQUAL, [operand, node.filled(0, node.kind(operand))], result)
    else:
        node.apply(OperationType.CAST, [operand], result)


def _quantize(node: Node) -> None:
    """QUANTIZE; from steps to steps by way of real numbers."""
    node.apply(OperationType.QUANTIZE, [node.reals(node.operand(0))], node.result())


def _dequantize(node: Node) -> None:
    """DEQUANTIZE; constants become real ones, and half precision single by CAST."""
    value = node.value(0)
    if value is not None:
        if node.output().type != "FLOAT32":
            raise InexpressibleError(f"it gives {node.output().type}")
        node.build.allowance.take(4 * value.size)
        node.fold(dequantized(node.tensor(0), value))
    elif node.tensor(0).type == "FLOAT16":
        node.apply(OperationType.CAST, [node.operand(0)], node.result())
    else:
        node.apply(OperationType.DEQUANTIZE, [node.operand(0)], node.result())


def _one_hot(node: Node) -> None:
    """ONE_HOT: EQUAL with each class, then SELECT."""
    depth, result = node.integer(1, "the depth"), node.result()
    shape, indices = node.dims(result), node.operand(0)
    rank = len(node.tensor(0).shape) + 1
    axis = node.axis(node.options("OneHotOptions")["axis"], rank)
    if len(shape) != rank or depth != shape[axis]:
        raise InexpressibleError(f"the file gives its result the shape {list(shape)}, and it has {depth} classes")
    spot = [1] * rank
    spot[axis] = depth
    node.build.allowance.take(4 * depth)
    classes = node.build.constant(INT32, np.arange(depth).reshape(spot))
    if node.tensor(0).shape:
        indices = node.apply(OperationType.EXPAND_DIMS, [indices, node.whole(axis)])
    chosen = node.apply(OperationType.EQUAL, [indices, classes], BOOL8)
    on, off = (spread(node, node.operand(place), shape) for place in (2, 3))
    node.apply(OperationType.SELECT, [chosen, on, off], result)


TRANSLATORS: Mapping[str, Translator] = {
    "ABS": _plain(OperationType.ABS),
    "CEIL": _ceil,
    "COS": _cosine,
    "ELU": _elu,
    "EXP": _plain(OperationType.EXP),
    "FLOOR": _plain(OperationType.FLOOR),
    "GELU": _gelu,
    "HARD_SWISH": _plain(OperationType.HARD_SWISH),
    "LEAKY_RELU": _leaky_relu,
    "LOG": _plain(OperationType.LOG),
    "LOGICAL_NOT": _plain(OperationType.LOGICAL_NOT),
    "LOGISTIC": _plain(OperationType.LOGISTIC),
    "NEG": _plain(OperationType.NEG),
    "PRELU": _plain(OperationType.PRELU),
    "RELU": _plain(OperationType.RELU),
    "RELU6": _plain(OperationType.RELU6),
    "RELU_0_TO_1": _relu_0_to_1,
    "RELU_N1_TO_1": _plain(OperationType.RELU1),
    "RSQRT": _plain(OperationType.RSQRT),
    "SIN": _plain(OperationType.SIN),
    "SQRT": _plain(OperationType.SQRT),
    "SQUARE": _square,
    "TANH": _plain(OperationType.TANH),
    "ADD": _arithmetic(OperationType.ADD, "AddOptions"),
    "ADD_N": _sum_of_several,
    "DIV": _divide,
    "FLOOR_DIV": _floor_divide,
    "FLOOR_MOD": _floor_modulo,
    "MAXIMUM": _moving(OperationType.MAXIMUM),
    "MINIMUM": _moving(OperationType.MINIMUM),
    "MUL": _arithmetic(OperationType.MUL, "MulOptions"),
    "POW": _plain(OperationType.POW),
    "SQUARED_DIFFERENCE": _squared_difference,
    "SUB": _arithmetic(OperationType.SUB, "SubOptions"),
    "EQUAL": _plain(OperationType.EQUAL),
    "GREATER": _plain(OperationType.GREATER),
    "GREATER_EQUAL": _plain(OperationType.GREATER_EQUAL),
    "LESS": _plain(OperationType.LESS),
    "LESS_EQUAL": _plain(OperationType.LESS_EQUAL),
    "LOGICAL_AND": _plain(OperationType.LOGICAL_AND),
    "LOGICAL_OR": _plain(OperationType.LOGICAL_OR),
    "NOT_EQUAL": _plain(OperationType.NOT_EQUAL),
    "BROADCAST_TO": _broadcast_to,
    "CAST": _cast,
    "DEQUANTIZE": _dequantize,
    "ONE_HOT": _one_hot,
    "QUANTIZE": _quantize,
    "SELECT": _select,
    "SELECT_V2": _select,
}
