"""Operations that move values and compute nothing: reshaping, transposing, joining, splitting."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drivers.litert_translate.node import Node, UntranslatableError
from nnhal.types import OperandType, OperationType

Translator = Callable[[Node], None]


def _reshape(node: Node) -> None:
    """RESHAPE."""
    shape = node.ints("shape")
    node.add(
        "RESHAPE",
        [node.tensor("input"), node.flat.ints(shape)],
        node.all_results(),
        "ReshapeOptions",
        NewShape=shape,
    )


def _squeeze(node: Node) -> None:
    """SQUEEZE. Where no dimension would be left NNAPI keeps one and LiteRT none: one is not named then."""
    shape = node.shape("input")
    axes = node.ints("axes") if node.has("axes") else tuple(d for d, size in enumerate(shape) if size == 1)
    if len(set(axes)) == len(shape):
        axes = tuple(range(len(shape) - 1))
    if not axes and shape == (1,):  # without axes LiteRT drops every dimension of size 1
        raise UntranslatableError("LiteRT squeezes the shape [1] to rank 0, NNAPI keeps it")
    node.add("SQUEEZE", node.tensors("input"), node.all_results(), "SqueezeOptions", SqueezeDims=axes)


def _expand_dims(node: Node) -> None:
    """EXPAND_DIMS."""
    node.add("EXPAND_DIMS", [node.tensor("input"), node.flat.ints([node.integer("axis")])], node.all_results())


def _transpose(node: Node) -> None:
    """TRANSPOSE; without a permutation all dimensions are reversed."""
    rank = len(node.shape("input"))
    permutation = node.ints("perm") if node.has("perm") else tuple(reversed(range(rank)))
    node.add("TRANSPOSE", [node.tensor("input"), node.flat.ints(permutation)], node.all_results())


def _concatenation(node: Node) -> None:
    """CONCATENATION."""
    if node["output"].type == OperandType.TENSOR_QUANT8_ASYMM_SIGNED and len(node.quantizations()) > 1:
        raise UntranslatableError("LiteRT's CONCATENATION of int8 wants one scale and zero point everywhere")
    node.add(
        "CONCATENATION",
        node.all_inputs(),
        node.all_results(),
        "ConcatenationOptions",
        Axis=node.integer("axis"),
    )


def _split(node: Node) -> None:
    """SPLIT."""
    node.add(
        "SPLIT",
        [node.flat.ints([node.integer("axis")], ()), node.tensor("input")],
        node.all_results(),
        "SplitOptions",
        NumSplits=node.integer("num_splits"),
    )


TRANSLATORS: Mapping[int, Translator] = {
    OperationType.RESHAPE: _reshape,
    OperationType.SQUEEZE: _squeeze,
    OperationType.EXPAND_DIMS: _expand_dims,
    OperationType.TRANSPOSE: _transpose,
    OperationType.CONCATENATION: _concatenation,
    OperationType.SPLIT: _split,
}
