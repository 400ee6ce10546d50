"""Operators that work element by element: arithmetic, comparisons, choices and conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from importers.assembling import Kind, Shape
from importers.onnx_file.emitting import held
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.literals import DTYPES, dtype_name
from importers.onnx_file.work import BYTES, KNOWN_RANK, PLAIN, Tensor, Work
from nnhal.types import OperationType
from opset.definition import B8

Translate = Callable[[Work, Node], None]
FUSED = (OperationType.ADD, OperationType.SUB, OperationType.MUL, OperationType.DIV)
WIDE = ("int32", "int64")


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape that tensors broadcast to.

    Raises:
        Refusal: they do not.
    """
    rank = max(map(len, shapes), default=0)
    columns = zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    found = [{size for size in column if size != 1} for column in columns]
    if any(len(sizes) > 1 for sizes in found):
        raise Refusal(f"shapes {', '.join(str(list(shape)) for shape in shapes)} do not go together")
    return tuple(sizes.pop() if sizes else 1 for sizes in found)


def joined(shapes: Sequence[Shape]) -> list[Shape]:
    """Shapes of fewer dimensions that broadcast alike: neighbours that all tensors treat alike become one."""
    rank = max(len(shape) for shape in shapes)
    columns = list(zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True))
    kept: list[tuple[int, ...]] = []
    spread: list[tuple[bool, ...]] = []
    for column in columns:
        if set(column) == {1}:
            continue
        pattern = tuple(size == 1 for size in column)
        if spread and spread[-1] == pattern:
            kept[-1] = tuple(a * b for a, b in zip(kept[-1], column, strict=True))
        else:
            kept.append(column)
            spread.append(pattern)
    return [tuple(column[place] for column in kept) or (1,) for place in range(len(shapes))]


def binary(work: Work, code: OperationType, first: Tensor, second: Tensor, node: Node, kind: Kind | None = None) -> int:
    """An operation of two tensors that broadcast; the result is that of a node, so far as it is quantised."""
    shapes = [first.shape, second.shape]
    common_shape(shapes)
    if max(map(len, shapes)) > KNOWN_RANK:
        shapes = joined(shapes)
    a, b = work.operand(first, shapes[0]), work.operand(second, shapes[1])
    inputs = (a, b, work.activation(node)) if code in FUSED else (a, b)
    return work.emit(code, inputs, kind or work.result_kind(node, a))


def binary_of(code: OperationType, *, whole: bool = True) -> Translate:
    """The translator of an operator of two tensors.

    Args:
        code: the operation.
        whole: whether it means the same for integers.
    """

    def translate(work: Work, node: Node) -> None:
        first, second = work.input(node, 0), work.input(node, 1)
        if not whole and first.dtype.kind in "iu" and first.dtype.name in WIDE:
            raise Refusal("integers: the standard rounds toward 0, DIV toward the smaller one")
        if first.dtype != second.dtype:
            raise Refusal(f"it is of {first.dtype} and {second.dtype}")
        operand = binary(work, code, first, second, node)
        work.give(node, operand, common_shape([first.shape, second.shape]), first.dtype)

    return translate


def comparison_of(code: OperationType, *, truths: bool = False) -> Translate:
    """The translator of a comparison, or of a connective of two truths."""

    def translate(work: Work, node: Node) -> None:
        first, second = work.input(node, 0), work.input(node, 1)
        if truths and {first.dtype, second.dtype} != {np.dtype(np.bool_)}:
            raise Refusal(f"it is of {first.dtype} and {second.dtype}")
        operand = binary(work, code, first, second, node, Kind(B8))
        work.give(node, operand, common_shape([first.shape, second.shape]), np.dtype(np.bool_))

    return translate


def several_of(code: OperationType, *, mean: bool = False) -> Translate:
    """The translator of an operator of any number of tensors."""

    def translate(work: Work, node: Node) -> None:
        tensors = [work.input(node, place) for place in range(len(node.inputs))]
        if not tensors:
            raise Refusal("it has no inputs")
        total = tensors[0]
        for tensor in tensors[1:]:
            operand = binary(work, code, total, tensor, node)
            shape = common_shape([total.shape, tensor.shape])
            total = Tensor("a sum", total.dtype, shape, operand=operand)
        if not mean:
            work.same(node, total)
            return
        operand = work.operand_as_is(total)
        count = work.reals(operand, 1.0 / len(tensors))
        work.give(node, work.emit(OperationType.MUL, (operand, count, work.activation())), total.shape, total.dtype)

    return translate


def unary(work: Work, code: OperationType, operand: int, *parameters: int, kind: Kind | None = None) -> int:
    """An operation of one tensor and parameters; its result is of the same kind when none is given."""
    return work.emit(code, (operand, *parameters), kind)


def unary_of(*codes: OperationType) -> Translate:
    """The translator of an operator that is operations of one tensor, one after the other."""

    def translate(work: Work, node: Node) -> None:
        tensor = work.input(node, 0)
        operand = work.operand_as_is(tensor)
        for code in codes:
            operand = unary(work, code, operand)
        work.give(node, operand, tensor.shape, tensor.dtype)

    return translate


def _reciprocal(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    operand = work.operand_as_is(tensor)
    one = work.reals(operand, 1.0)
    work.give(node, work.emit(OperationType.DIV, (one, operand, work.activation())), tensor.shape, tensor.dtype)


def _cosine(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    operand = work.operand_as_is(tensor)
    quarter = work.reals(operand, math.pi / 2)
    turned = work.emit(OperationType.ADD, (operand, quarter, work.activation()))
    work.give(node, unary(work, OperationType.SIN, turned), tensor.shape, tensor.dtype)


def _power(work: Work, node: Node) -> None:
    """POW has floats only; an exponent of whole numbers becomes real ones."""
    base, exponent = work.input(node, 0), work.input(node, 1)
    if exponent.dtype != base.dtype and base.dtype.kind == "f" and exponent.value is not None:
        exponent = Tensor(exponent.name, base.dtype, exponent.shape, exponent.value.astype(base.dtype))
    elif exponent.dtype != base.dtype and base.dtype.kind == "f":
        real = convert(work, work.operand_as_is(exponent), work.kind(base))
        exponent = Tensor(exponent.name, base.dtype, exponent.shape, operand=real)
    operand = binary(work, OperationType.POW, base, exponent, node)
    work.give(node, operand, common_shape([base.shape, exponent.shape]), base.dtype)


def _modulo(work: Work, node: Node) -> None:
    """For integers a - b * floor(a / b), whose sign is the divisor's, and DIV rounds as that asks for."""
    first, second = work.input(node, 0), work.input(node, 1)
    if node.whole("fmod", 0) or first.dtype.name not in WIDE:
        raise Refusal("only the remainder of 32-bit and 64-bit integers with fmod 0 can be had from DIV")
    shape = common_shape([first.shape, second.shape])
    quotient = Tensor("a quotient", first.dtype, shape, operand=binary(work, OperationType.DIV, first, second, node))
    product = Tensor("a product", first.dtype, shape, operand=binary(work, OperationType.MUL, quotient, second, node))
    work.give(node, binary(work, OperationType.SUB, first, product, node), shape, first.dtype)


def _sign(work: Work, node: Node) -> None:
    """1 where it is greater than 0, less 1 where it is less; both as chosen numbers, since CAST knows no truths."""
    tensor = work.input(node, 0)
    operand = work.operand_as_is(tensor)
    zero, kind = work.reals(operand, 0.0), work.kind_of(operand)
    above, below = (
        work.numbers(work.emit(code, (operand, zero), Kind(B8)), kind)
        for code in (OperationType.GREATER, OperationType.LESS)
    )
    work.give(node, work.emit(OperationType.SUB, (above, below, work.activation())), tensor.shape, tensor.dtype)


def _is_nan(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    operand = work.operand_as_is(tensor)
    work.give(node, work.emit(OperationType.NOT_EQUAL, (operand, operand), Kind(B8)), tensor.shape, np.dtype(np.bool_))


def expanded(work: Work, tensor: Tensor, shape: Shape, final: Shape) -> int:
    """A tensor repeated along the dimensions that broadcasting adds or stretches, as bytes where it is boolean.

    Args:
        work: the graph.
        tensor: what is repeated.
        shape: that it broadcasts to.
        final: dimensions of the operand, with as many elements.
    """
    if tensor.value is not None and tensor.shape != shape:
        work.budget.spend(math.prod(shape))
        tensor = Tensor(tensor.name, tensor.dtype, shape, np.broadcast_to(tensor.value, shape))
    if tensor.shape == shape:
        return work.movable(tensor, final)
    own, due = joined([tensor.shape, shape])
    copies = work.whole_tensor([b // a for a, b in zip(own, due, strict=True)])
    return work.reshape(work.emit(OperationType.TILE, (work.movable(tensor, own), copies)), final)


def _expand(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    wanted = work.whole_list(node, 1, "the shape") or ()
    if any(size < 0 for size in wanted):
        raise Refusal("a wanted size is negative")
    shape = common_shape([tensor.shape, wanted])
    if shape == tensor.shape:
        work.same(node, tensor)
    else:
        final = held(shape) if len(shape) <= KNOWN_RANK else (math.prod(shape),)
        work.give(node, expanded(work, tensor, shape, final), shape, tensor.dtype)


def _where(work: Work, node: Node) -> None:
    condition, first, second = (work.input(node, place) for place in range(3))
    shape = common_shape([condition.shape, first.shape, second.shape])
    final = held(shape) if len(shape) <= KNOWN_RANK else (math.prod(shape),)
    truth = work.truths(expanded(work, condition, shape, final))
    a, b = (expanded(work, tensor, shape, final) for tensor in (first, second))
    work.give(node, work.emit(OperationType.SELECT, (truth, a, b), work.result_kind(node, a)), shape, first.dtype)


def convert(work: Work, operand: int, target: Kind) -> int:
    """An operand in another type. Truth is what differs from 0, which CAST alone does not say of 0.5."""
    kind = work.kind_of(operand)
    if kind.type == target.type:
        return operand
    if kind.type == B8:
        return work.numbers(operand, target)
    if target.type != B8:
        return work.emit(OperationType.CAST, (operand,), target)
    zero = work.constant(kind, np.full(1, kind.zero_point))
    return work.emit(OperationType.NOT_EQUAL, (operand, zero), Kind(B8))


def _cast(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    code = node.whole("to", 0)
    name = work.input(node, 1).dtype.name if node.operator == "CastLike" else DTYPES.get(code)
    if name not in PLAIN and name not in BYTES:
        raise Refusal(f"to {name or dtype_name(code)}, which no operand type is")
    dtype = np.dtype(name)
    if PLAIN.get(tensor.dtype.name) == PLAIN.get(dtype.name, -1):
        work.same(node, Tensor(tensor.name, dtype, tensor.shape, None, work.operand_as_is(tensor)))
        return
    kind = work.kind(Tensor(node.outputs[0], dtype, tensor.shape))
    if dtype.name in BYTES and tensor.dtype.name in BYTES:
        raise Refusal(f"from {tensor.dtype} to {dtype}")
    work.give(node, convert(work, work.operand_as_is(tensor), kind), tensor.shape, dtype)


def _infinite(work: Work, node: Node) -> None:
    """EQUAL to an infinity; to either by way of ABS."""
    tensor = work.input(node, 0)
    operand = work.operand_as_is(tensor)
    below, above = node.whole("detect_negative", 1), node.whole("detect_positive", 1)
    if not (below or above):
        raise Refusal("no infinity is asked for")
    operand = unary(work, OperationType.ABS, operand) if below and above else operand
    infinity = work.reals(operand, math.inf if above else -math.inf)
    work.give(node, work.emit(OperationType.EQUAL, (operand, infinity), Kind(B8)), tensor.shape, np.dtype(np.bool_))


ELEMENTWISE: Mapping[str, Translate] = {
    "Add": binary_of(OperationType.ADD),
    "Sub": binary_of(OperationType.SUB),
    "Mul": binary_of(OperationType.MUL),
    "Div": binary_of(OperationType.DIV, whole=False),
    "Pow": _power,
    "Mod": _modulo,
    "Min": several_of(OperationType.MINIMUM),
    "Max": several_of(OperationType.MAXIMUM),
    "Sum": several_of(OperationType.ADD),
    "Mean": several_of(OperationType.ADD, mean=True),
    "Neg": unary_of(OperationType.NEG),
    "Abs": unary_of(OperationType.ABS),
    "Exp": unary_of(OperationType.EXP),
    "Log": unary_of(OperationType.LOG),
    "Sqrt": unary_of(OperationType.SQRT),
    "Sin": unary_of(OperationType.SIN),
    "Floor": unary_of(OperationType.FLOOR),
    "Ceil": unary_of(OperationType.NEG, OperationType.FLOOR, OperationType.NEG),
    "Not": unary_of(OperationType.LOGICAL_NOT),
    "Reciprocal": _reciprocal,
    "Cos": _cosine,
    "Sign": _sign,
    "IsNaN": _is_nan,
    "IsInf": _infinite,
    "Equal": comparison_of(OperationType.EQUAL),
    "Greater": comparison_of(OperationType.GREATER),
    "GreaterOrEqual": comparison_of(OperationType.GREATER_EQUAL),
    "Less": comparison_of(OperationType.LESS),
    "LessOrEqual": comparison_of(OperationType.LESS_EQUAL),
    "And": comparison_of(OperationType.LOGICAL_AND, truths=True),
    "Or": comparison_of(OperationType.LOGICAL_OR, truths=True),
    "Xor": comparison_of(OperationType.NOT_EQUAL, truths=True),
    "Where": _where,
    "Expand": _expand,
    "Cast": _cast,
    "CastLike": _cast,
}
