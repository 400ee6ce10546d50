"""Operations that make one value of many along axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ai_edge_litert import schema_py_generated as schema

from drivers.litert_translate.node import Node
from nnhal.types import OperationType

Translator = Callable[[Node], None]
INT32: int = schema.TensorType.INT32


def _reduce(operator: str) -> Translator:
    """MEAN and REDUCE_...; where no dimension is left LiteRT's result has rank 0."""

    def write(node: Node) -> None:
        rank = len(node.shape("input"))
        axes = {axis % rank for axis in node.ints("axes")}
        keep = node.integer("keep_dims") > 0
        inputs = node.tensors("input", "axes")
        if len(axes) == rank and not keep:
            node.add_to_vector(operator, inputs, "ReducerOptions", KeepDims=False)
        else:
            node.add(operator, inputs, node.all_results(), "ReducerOptions", KeepDims=keep)

    return write


def _find(operator: str, options: str) -> Translator:
    """ARGMAX and ARGMIN."""

    def write(node: Node) -> None:
        inputs = [node.tensor("input"), node.flat.ints([node.integer("axis")], ())]
        if len(node.shape("input")) == 1:
            node.add_to_vector(operator, inputs, options, OutputType=INT32)
        else:
            node.add(operator, inputs, node.all_results(), options, OutputType=INT32)

    return write


TRANSLATORS: Mapping[int, Translator] = {
    OperationType.MEAN: _reduce("MEAN"),
    OperationType.REDUCE_SUM: _reduce("SUM"),
    OperationType.REDUCE_PROD: _reduce("REDUCE_PROD"),
    OperationType.REDUCE_MAX: _reduce("REDUCE_MAX"),
    OperationType.REDUCE_MIN: _reduce("REDUCE_MIN"),
    OperationType.REDUCE_ALL: _reduce("REDUCE_ALL"),
    OperationType.REDUCE_ANY: _reduce("REDUCE_ANY"),
    OperationType.ARGMAX: _find("ARG_MAX", "ArgMaxOptions"),
    OperationType.ARGMIN: _find("ARG_MIN", "ArgMinOptions"),
}
