"""Products of matrices: Gemm and MatMul."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from importers.assembling import Kind, Shape
from importers.onnx_file.convolutions import bias_as
from importers.onnx_file.elementwise import Translate, common_shape, expanded
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.work import KNOWN_RANK, Tensor, Work
from nnhal.types import OperationType
from opset.definition import Q8, Q8S


def _matrix(work: Work, tensor: Tensor, *, turned: bool) -> int:
    """A matrix as an operand, turned where it is asked for; constants at import."""
    if not turned:
        return work.operand(tensor)
    if tensor.value is None:
        return work.transposed(work.operand(tensor), (1, 0))
    if tensor.name in work.quantization and work.quantization[tensor.name].axis is not None:
        raise Refusal("a matrix with several scales: FULLY_CONNECTED takes one")
    return work.constant(work.kind(tensor), tensor.value.T, tensor.name)


def _weights(work: Work, tensor: Tensor, like: Kind, *, turned: bool) -> int:
    """The weights of FULLY_CONNECTED: stored as its input is, where they are quantised and constant."""
    if like.type not in (Q8, Q8S) or tensor.value is None or work.kind(tensor).type == like.type:
        return _matrix(work, tensor, turned=turned)
    kind = work.kind(tensor)
    if kind.type not in (Q8, Q8S):
        raise Refusal("a matrix with several scales: FULLY_CONNECTED takes one")
    shift = 128 if like.type == Q8 else -128
    value = tensor.value.astype(np.int64) + shift
    return work.constant(Kind(like.type, kind.scale, kind.zero_point + shift), value.T if turned else value)


def _scaled(tensor: Tensor, factor: float) -> Tensor | None:
    """A constant times a factor; None where the value is not known."""
    if factor == 1.0:
        return tensor
    if tensor.value is None or tensor.dtype.kind != "f" or tensor.source is not None:
        return None
    value = (tensor.value.astype(np.float64) * factor).astype(tensor.dtype)
    return Tensor(tensor.name, tensor.dtype, tensor.shape, value)


def _gemm(work: Work, node: Node) -> None:
    """Gemm: FULLY_CONNECTED. Factors go into constants; a third matrix that is no bias is added after."""
    a, b, c = work.input(node, 0), work.input(node, 1), work.optional(node, 2)
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise Refusal(f"matrices of shapes {list(a.shape)} and {list(b.shape)}")
    x = _matrix(work, a, turned=bool(node.whole("transA", 0)))
    turned = not node.whole("transB", 0)
    rows, inner = work.dimensions(x)
    other, units = b.shape if turned else b.shape[::-1]
    if inner != other:
        raise Refusal(f"{inner} columns times {other} rows")
    like = work.kind_of(x)
    weights = _scaled(b, alpha)
    w = _weights(work, weights or b, like, turned=turned)
    bias = _scaled(c, beta) if c is not None else None
    fits = bias is not None and math.prod(bias.shape) == units and bias.shape in ((units,), (1, units))
    if bias is not None and bias.value is not None and not fits and math.prod(bias.shape) == 1:
        bias = Tensor(bias.name, bias.dtype, (units,), np.full(units, bias.value))
        fits = True
    inside = fits and weights is not None
    dense = (x, w, bias_as(work, bias if inside else None, like, w, units))
    rest = c is not None and not inside
    last = node if not rest and weights is not None else None
    result = work.emit(OperationType.FULLY_CONNECTED, (*dense, work.activation(last)), work.result_kind(node, x))
    if weights is None:
        factor = work.reals(result, alpha)
        result = work.emit(OperationType.MUL, (result, factor, work.activation(None if rest else node)))
    if rest and c is not None and beta != 0.0:
        if like.type in (Q8, Q8S):
            raise Refusal("a quantised matrix that is added")
        if common_shape([c.shape, (rows, units)]) != (rows, units):
            raise Refusal(f"a third matrix of shape {list(c.shape)} for a result {[rows, units]}")
        added = work.operand(bias or c)
        if bias is None:
            added = work.emit(OperationType.MUL, (added, work.reals(added, beta), work.activation()))
        result = work.emit(OperationType.ADD, (result, added, work.activation(node)))
    work.give(node, result, (rows, units), a.dtype)


def _matmul(work: Work, node: Node) -> None:
    """MatMul: FULLY_CONNECTED where the second one is a matrix, BATCH_MATMUL otherwise."""
    a, b = work.input(node, 0), work.input(node, 1)
    if not a.shape or not b.shape:
        raise Refusal("a tensor without dimensions")
    left = (1, *a.shape) if len(a.shape) == 1 else a.shape
    right = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    if left[-1] != right[-2]:
        raise Refusal(f"shapes {list(a.shape)} and {list(b.shape)} do not go together")
    batch = common_shape([left[:-2], right[:-2]])
    rows = left[-2:-1] if len(a.shape) > 1 else ()
    columns = right[-1:] if len(b.shape) > 1 else ()
    if len(right) == 2:
        x = work.operand(a, (math.prod(left[:-1]), left[-1]))
        like = work.kind_of(x)
        matrix = Tensor(
            b.name, b.dtype, right, None if b.value is None else b.value.reshape(right), b.operand, b.source
        )
        w = _weights(work, matrix, like, turned=True)
        inputs = (x, w, bias_as(work, None, like, w, right[1]), work.activation(node))
        result = work.emit(OperationType.FULLY_CONNECTED, inputs, work.result_kind(node, x))
    else:
        x, y = (_stacked(work, tensor, shape, batch) for tensor, shape in ((a, left), (b, right)))
        inputs = (x, y, work.flag(False), work.flag(False))
        result = work.emit(OperationType.BATCH_MATMUL, inputs, work.result_kind(node, x))
    work.give(node, result, (*batch, *rows, *columns), a.dtype)


def _stacked(work: Work, tensor: Tensor, shape: Shape, batch: Shape) -> int:
    """Matrices in as many copies as the batch asks for, of rank 4 at most."""
    whole = Tensor(tensor.name, tensor.dtype, shape, None if tensor.value is None else tensor.value.reshape(shape),
                   tensor.operand, tensor.source)  # fmt: skip
    due = (*batch, *shape[-2:])
    more = max(0, len(due) - KNOWN_RANK)
    return expanded(work, whole, due, (math.prod(batch[: more + 1]), *due[more + 1 :]))


PRODUCTS: Mapping[str, Translate] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
}
