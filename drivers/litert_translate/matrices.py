"""Operations on rows of a matrix: dense layers, matrix products, softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drivers.litert_translate.images import refuse_inner_axis
from drivers.litert_translate.node import Node, UntranslatableError
from nnhal.types import OperationType

Translator = Callable[[Node], None]


def _fully_connected(node: Node) -> None:
    """FULLY_CONNECTED."""
    node.add(
        "FULLY_CONNECTED",
        node.tensors("input", "weights", "bias"),
        node.all_results(),
        "FullyConnectedOptions",
        FusedActivationFunction=node.fused(),
    )


def _batch_matmul(node: Node) -> None:
    """BATCH_MATMUL."""
    node.add(
        "BATCH_MATMUL",
        node.tensors("lhs", "rhs"),
        node.all_results(),
        "BatchMatMulOptions",
        AdjX=node.flag("adj_lhs"),
        AdjY=node.flag("adj_rhs"),
    )


def _softmax(node: Node) -> None:
    """SOFTMAX."""
    refuse_inner_axis(node, "SOFTMAX", "input")
    node.add("SOFTMAX", node.tensors("input"), node.all_results(), "SoftmaxOptions", Beta=node.real("beta"))


def _log_softmax(node: Node) -> None:
    """LOG_SOFTMAX."""
    refuse_inner_axis(node, "LOG_SOFTMAX", "logits")
    if node.real("beta") != 1.0:
        raise UntranslatableError("LiteRT's LOG_SOFTMAX has no beta other than 1")
    node.add("LOG_SOFTMAX", node.tensors("logits"), node.all_results())


TRANSLATORS: Mapping[int, Translator] = {
    OperationType.FULLY_CONNECTED: _fully_connected,
    OperationType.BATCH_MATMUL: _batch_matmul,
    OperationType.SOFTMAX: _softmax,
    OperationType.LOG_SOFTMAX: _log_softmax,
}
