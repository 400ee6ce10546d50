"""Where the values of results may lie, told from where those of the inputs lie: for graphs that are not evaluated yet.

Not every operation is told of: None says that the values must be computed to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from nnhal.model import is_tensor
from nnhal.types import OperandType
from nnhal.types import OperationType as Op
from opset.call import Argument, Call
from opset.quantization import QUANTIZED, limits
from opset.values import ACTIVATION_RANGE

Reach = tuple[float, float]

# Results are values of the inputs, or lie between them; a padding adds zero.
BETWEEN = frozenset(
    {
        Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS, Op.TRANSPOSE, Op.CHANNEL_SHUFFLE, Op.DEPTH_TO_SPACE, Op.SPACE_TO_DEPTH,
        Op.BATCH_TO_SPACE_ND, Op.REVERSE, Op.SLICE, Op.STRIDED_SLICE, Op.SPLIT, Op.CONCATENATION, Op.PACK, Op.TILE,
        Op.GATHER, Op.EMBEDDING_LOOKUP, Op.MIRROR_PAD, Op.MAX_POOL_2D, Op.AVERAGE_POOL_2D, Op.REDUCE_MAX, Op.REDUCE_MIN,
        Op.RESIZE_NEAREST_NEIGHBOR, Op.RESIZE_BILINEAR, Op.MAXIMUM, Op.MINIMUM, Op.SELECT, Op.DEQUANTIZE, Op.MEAN,
    }
)  # fmt: skip
WITH_ZERO = frozenset({Op.PAD, Op.SPACE_TO_BATCH_ND, Op.RELU, Op.RELU1, Op.RELU6, Op.HARD_SWISH})
BOUNDED: dict[Op, Reach] = {
    Op.TANH: (-1.0, 1.0),
    Op.LOGISTIC: (0.0, 1.0),
    Op.SOFTMAX: (0.0, 1.0),
    Op.SIN: (-1.0, 1.0),
    Op.L2_NORMALIZATION: (-1.0, 1.0),
    Op.RELU1: (-1.0, 1.0),
    Op.RELU6: (0.0, 6.0),
}


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


MONOTONE: dict[Op, Callable[[float], float]] = {
    Op.EXP: _exp,
    Op.FLOOR: math.floor,
    Op.LOG: lambda x: math.log(x) if x > 0 else -math.inf,
    Op.SQRT: lambda x: math.sqrt(max(x, 0.0)),
    Op.LOGISTIC: lambda x: 1 / (1 + _exp(-x)),
    Op.TANH: math.tanh,
    Op.RELU: lambda x: max(x, 0.0),
}


def reach_of(call: Call, name: str) -> Reach | None:
    """Smallest and largest real value that a result may have; None where that is not told."""
    argument = call.results[name]
    if argument.type == OperandType.TENSOR_BOOL8:
        return 0.0, 1.0
    if argument.type in QUANTIZED:
        low, high = limits(argument.type)
        return (low - argument.zero_point) * argument.scale, (high - argument.zero_point) * argument.scale
    if argument.type == OperandType.TENSOR_INT32:
        return None
    found = _computed(call)
    if found is None or math.isinf(found[0]) or math.isinf(found[1]):
        return None
    return _activated(call, found)


def _computed(call: Call) -> Reach | None:
    code = call.definition.code
    first = next(iter(call.inputs.values()))
    if code in MONOTONE:
        reach = _cheap(first)
        return None if reach is None else (MONOTONE[code](reach[0]), MONOTONE[code](reach[1]))
    if code in BETWEEN or (code in WITH_ZERO and code not in BOUNDED):
        return _hull(call, zero=code in WITH_ZERO)
    if code in BOUNDED:
        return BOUNDED[code]
    if code in (Op.ADD, Op.SUB, Op.MUL):
        a, b = (_cheap(argument) for argument in list(call.inputs.values())[:2])
        return None if a is None or b is None else _arithmetic(code, a, b)
    if code == Op.ABS:
        reach = _cheap(first)
        return (
            None
            if reach is None
            else (0.0 if reach[0] <= 0 <= reach[1] else min(map(abs, reach)), max(map(abs, reach)))
        )
    if code == Op.NEG:
        reach = _cheap(first)
        return None if reach is None else (-reach[1], -reach[0])
    return None


def _cheap(argument: Argument) -> Reach | None:
    """Where an operand's values lie, unless they must be computed first."""
    found = argument.__dict__.get("reach")
    if found is None and "value" in argument.__dict__:
        found = argument.reach
    return found


def _hull(call: Call, *, zero: bool) -> Reach | None:
    """From the smallest to the largest of all tensors that are read as numbers."""
    low, high = (0.0, 0.0) if zero else (math.inf, -math.inf)
    for name, argument in call.inputs.items():
        if not is_tensor(argument.type) or argument.omitted or call.signature.form.operand(name).parameter:
            continue
        if argument.type in (OperandType.TENSOR_BOOL8, OperandType.TENSOR_INT32):
            continue
        reach = _cheap(argument)
        if reach is None:
            return None
        low, high = min(low, reach[0]), max(high, reach[1])
    return None if low > high else (low, high)


def _arithmetic(code: Op, a: Reach, b: Reach) -> Reach:
    if code == Op.ADD:
        return a[0] + b[0], a[1] + b[1]
    if code == Op.SUB:
        return a[0] - b[1], a[1] - b[0]
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _activated(call: Call, reach: Reach) -> Reach:
    """Where values lie behind the fused activation."""
    if "activation" not in call.inputs or not call.signature.form.operand("activation").parameter:
        return reach
    low, high = ACTIVATION_RANGE.get(call.integer("activation"), (None, None))  # type: ignore[call-overload]
    bottom, top = (-math.inf if low is None else low), (math.inf if high is None else high)
    return min(max(reach[0], bottom), top), min(max(reach[1], bottom), top)
