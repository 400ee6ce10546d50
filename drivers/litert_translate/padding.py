"""Operations that add values at the edges, take parts out, or put copies in a new order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ai_edge_litert import schema_py_generated as schema

from drivers.litert_translate.node import TENSOR_TYPES, Node, UntranslatableError, quantization
from nnhal.types import OperationType

Translator = Callable[[Node], None]
MODES: dict[int, int] = {0: schema.MirrorPadMode.REFLECT, 1: schema.MirrorPadMode.SYMMETRIC}


def _constants(node: Node, *names: str) -> list[int]:
    """Tensors that decide the result's shape and are constants, so that it is known beforehand."""
    for name in names:
        node.value(name)
    return node.tensors(*names)


def _pad(node: Node) -> None:
    """PAD."""
    node.add("PAD", [node.tensor("input"), *_constants(node, "paddings")], node.all_results(), "PadOptions")


def _pad_with(node: Node) -> None:
    """PAD_V2. The value of a quantised tensor is a stored one: the low byte of an INT32."""
    known = quantization(node["input"])
    if known is None:
        value = node.tensor("pad_value")
    else:
        stored = bytes([node.integer("pad_value") & 0xFF])
        value = node.flat.tensor((), TENSOR_TYPES[node["input"].type], stored, known)
    inputs = [node.tensor("input"), *_constants(node, "paddings"), value]
    node.add("PADV2", inputs, node.all_results(), "PadV2Options")


def _mirror_pad(node: Node) -> None:
    """MIRROR_PAD."""
    mode = node.integer("mode")
    if mode not in MODES:
        raise UntranslatableError(f"mirror mode {mode} is none that LiteRT knows")
    inputs = [node.tensor("input"), *_constants(node, "paddings")]
    node.add("MIRROR_PAD", inputs, node.all_results(), "MirrorPadOptions", Mode=MODES[mode])


def _slice(node: Node) -> None:
    """SLICE."""
    inputs = [node.tensor("input"), *_constants(node, "begin", "size")]
    node.add("SLICE", inputs, node.all_results(), "SliceOptions")


def _strided_slice(node: Node) -> None:
    """STRIDED_SLICE; where all dimensions are dropped LiteRT's result has rank 0."""
    inputs = [node.tensor("input"), *_constants(node, "begin", "end", "strides")]
    shrunk = node.integer("shrink_axis_mask")
    every = (1 << len(node.shape("input"))) - 1
    fields = {
        "BeginMask": node.integer("begin_mask"),
        "EndMask": node.integer("end_mask"),
        "ShrinkAxisMask": shrunk,
    }
    if shrunk & every == every:
        node.add_to_vector("STRIDED_SLICE", inputs, "StridedSliceOptions", **fields)
    else:
        node.add("STRIDED_SLICE", inputs, node.all_results(), "StridedSliceOptions", **fields)


def _reverse(node: Node) -> None:
    """REVERSE."""
    inputs = [node.tensor("input"), *_constants(node, "axis")]
    node.add("REVERSE_V2", inputs, node.all_results(), "ReverseV2Options")


def _tile(node: Node) -> None:
    """TILE."""
    node.add("TILE", [node.tensor("input"), *_constants(node, "multiples")], node.all_results(), "TileOptions")


def _pack(node: Node) -> None:
    """PACK."""
    inputs = node.all_inputs()
    node.add("PACK", inputs, node.all_results(), "PackOptions", Axis=node.integer("axis"), ValuesCount=len(inputs))


def _fill(node: Node) -> None:
    """FILL."""
    node.add("FILL", [*_constants(node, "dims"), node.tensor("value")], node.all_results(), "FillOptions")


def _rank(node: Node) -> None:
    """RANK."""
    node.add("RANK", node.tensors("input"), node.all_results(), "RankOptions")


TRANSLATORS: Mapping[int, Translator] = {
    OperationType.PAD: _pad,
    OperationType.PAD_V2: _pad_with,
    OperationType.MIRROR_PAD: _mirror_pad,
    OperationType.SLICE: _slice,
    OperationType.STRIDED_SLICE: _strided_slice,
    OperationType.REVERSE: _reverse,
    OperationType.TILE: _tile,
    OperationType.PACK: _pack,
    OperationType.FILL: _fill,
    OperationType.RANK: _rank,
}
