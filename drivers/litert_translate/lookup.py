"""Operations that look for values: by index, by key, by size, by hash, by chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ai_edge_litert import schema_py_generated as schema

from drivers.litert_translate.node import Node, UntranslatableError
from nnhal.types import OperandType, OperationType

Translator = Callable[[Node], None]
PROJECTIONS: dict[int, int] = {2: schema.LSHProjectionType.DENSE, 3: schema.LSHProjectionType.SPARSE}


def _gather(node: Node) -> None:
    """GATHER."""
    axis = node.integer("axis")
    node.add("GATHER", node.tensors("input", "indices"), node.all_results(), "GatherOptions", Axis=axis)


def _embedding_lookup(node: Node) -> None:
    """EMBEDDING_LOOKUP."""
    node.add("EMBEDDING_LOOKUP", node.tensors("lookups", "values"), node.all_results())


def _hashtable_lookup(node: Node) -> None:
    """HASHTABLE_LOOKUP."""
    node.add("HASHTABLE_LOOKUP", node.tensors("lookups", "keys", "values"), node.all_results())


def _top_k(node: Node) -> None:
    """TOPK_V2."""
    raise UntranslatableError("LiteRT's TOPK_V2 puts the smaller index of equal values first, NNAPI the larger")


def _lsh_projection(node: Node) -> None:
    """LSH_PROJECTION."""
    kind = node.integer("type")
    if kind not in PROJECTIONS:
        raise UntranslatableError(f"LiteRT's LSH_PROJECTION has no type {kind}, only dense and sparse with offsets")
    if node["hash"].type != OperandType.TENSOR_FLOAT32:
        raise UntranslatableError("LiteRT's LSH_PROJECTION reads the hash functions as float32, whatever they are")
    inputs = node.tensors("hash", "input")
    if node.has("weight"):
        inputs.append(node.tensor("weight"))
    node.add("LSH_PROJECTION", inputs, node.all_results(), "LSHProjectionOptions", Type=PROJECTIONS[kind])


def _random_multinomial(node: Node) -> None:
    """RANDOM_MULTINOMIAL; the seeds are attributes."""
    seed, second = node.ints("seeds")
    inputs = [node.tensor("logits"), node.flat.ints([node.integer("samples")], ())]
    node.add("MULTINOMIAL", inputs, node.all_results(), "RandomOptions", Seed=seed, Seed2=second)


TRANSLATORS: Mapping[int, Translator] = {
    OperationType.GATHER: _gather,
    OperationType.EMBEDDING_LOOKUP: _embedding_lookup,
    OperationType.HASHTABLE_LOOKUP: _hashtable_lookup,
    OperationType.TOPK_V2: _top_k,
    OperationType.LSH_PROJECTION: _lsh_projection,
    OperationType.RANDOM_MULTINOMIAL: _random_multinomial,
}
