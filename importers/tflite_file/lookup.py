"""Operators that make one value of many along axes, or look for values: by size, index, key, hash or chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from importers.tflite_file.kinds import InexpressibleError
from importers.tflite_file.node import Node
from nnhal.types import LshProjectionType, OperandType, OperationType

Translator = Callable[[Node], None]
PROJECTIONS: Mapping[int, LshProjectionType] = {1: LshProjectionType.SPARSE, 2: LshProjectionType.DENSE}


def _reduce(code: OperationType) -> Translator:
    """MEAN, SUM and REDUCE_...; without axes nothing is reduced."""

    def write(node: Node) -> None:
        operand, axes = node.operand(0), node.integers(1, "the axes")
        if not axes or not node.tensor(0).shape:
            node.reshaped(operand)
            return
        keep = node.options("ReducerOptions")["keep_dims"]
        parameter = node.whole(keep) if code == OperationType.MEAN else node.flag(keep)
        node.compute(code, [operand], [node.row(axes), parameter])

    return write


def _find(code: OperationType) -> Translator:
    """ARG_MAX and ARG_MIN."""

    def write(node: Node) -> None:
        node.apply(code, [node.operand(0), node.whole(node.integer(1, "the axis"))], node.result())

    return write


def _gather(node: Node) -> None:
    """GATHER; a single index, which .tflite can give without a dimension, takes the dimension away."""
    known = node.options("GatherOptions")
    if known["batch_dims"]:
        raise InexpressibleError(f"it has {int(known['batch_dims'])} batch dimensions")
    inputs = [node.operand(0), node.whole(known["axis"]), node.operand(1)]
    if node.tensor(1).shape:
        node.apply(OperationType.GATHER, inputs, node.result())
    else:
        node.reshaped(node.apply(OperationType.GATHER, inputs))


def _top_k(node: Node) -> None:
    """TOPK_V2. Of equal values .tflite names the first index, the contract the last."""
    k = node.whole(node.integer(1, "the number of values"))
    node.add(OperationType.TOPK_V2, [node.operand(0), k], node.result(0), node.result(1))


def _embedding_lookup(node: Node) -> None:
    """EMBEDDING_LOOKUP."""
    number = node.number(1)
    real = node.output().type == "FLOAT32" and not node.build.is_float(number)
    table = node.build.floats(number) if real else node.operand(1)
    node.apply(OperationType.EMBEDDING_LOOKUP, [node.operand(0), table], node.result())


def _hashtable_lookup(node: Node) -> None:
    """HASHTABLE_LOOKUP; bytes that tell hits have no scale in .tflite."""
    node.add(OperationType.HASHTABLE_LOOKUP, node.operands(3), node.result(0), node.result(1))


def _lsh_projection(node: Node) -> None:
    """LSH_PROJECTION."""
    kind = int(node.options("LSHProjectionOptions")["type"])
    if kind not in PROJECTIONS:
        raise InexpressibleError(f"its type {kind} is neither sparse nor dense")
    weight = node.operand(2) if node.has(2) else node.build.assembly.omitted(OperandType.TENSOR_FLOAT32)
    inputs = [node.operand(0), node.operand(1), weight, node.whole(PROJECTIONS[kind])]
    node.apply(OperationType.LSH_PROJECTION, inputs, node.result())


def _multinomial(node: Node) -> None:
    """MULTINOMIAL: RANDOM_MULTINOMIAL, whose samples are as random."""
    known = node.options("RandomOptions")
    seeds = node.row([int(known["seed"]), int(known["seed2"])])
    samples = node.whole(node.integer(1, "the number of samples"))
    node.apply(OperationType.RANDOM_MULTINOMIAL, [node.operand(0), samples, seeds], node.result())


TRANSLATORS: Mapping[str, Translator] = {
    "ARG_MAX": _find(OperationType.ARGMAX),
    "ARG_MIN": _find(OperationType.ARGMIN),
    "EMBEDDING_LOOKUP": _embedding_lookup,
    "GATHER": _gather,
    "HASHTABLE_LOOKUP": _hashtable_lookup,
    "LSH_PROJECTION": _lsh_projection,
    "MEAN": _reduce(OperationType.MEAN),
    "MULTINOMIAL": _multinomial,
    "REDUCE_ALL": _reduce(OperationType.REDUCE_ALL),
    "REDUCE_ANY": _reduce(OperationType.REDUCE_ANY),
    "REDUCE_MAX": _reduce(OperationType.REDUCE_MAX),
    "REDUCE_MIN": _reduce(OperationType.REDUCE_MIN),
    "REDUCE_PROD": _reduce(OperationType.REDUCE_PROD),
    "SUM": _reduce(OperationType.REDUCE_SUM),
    "TOPK_V2": _top_k,
}
