"""Operations on images: resizing, moving between space, depth and batch; and normalisation along an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drivers.litert_translate.node import Node, UntranslatableError
from nnhal.types import OperationType

Translator = Callable[[Node], None]
RANK = 4  # of an image
HEIGHT, WIDTH = 1, 2


def refuse_nchw(node: Node) -> None:
    """Refuses the layout that LiteRT does not have."""
    if node.flag("nchw"):
        raise UntranslatableError("LiteRT has NHWC only")


def refuse_inner_axis(node: Node, operator: str, name: str) -> None:
    """Refuses axes other than the last."""
    rank = len(node.shape(name))
    if node.axis("axis", rank) != rank - 1:
        raise UntranslatableError(f"LiteRT's {operator} works along the last axis only")


def _resize(operator: str, options: str) -> Translator:
    """RESIZE_...; of both forms LiteRT is told the sizes."""

    def write(node: Node) -> None:
        refuse_nchw(node)
        for name in ("out_width", "out_height", "width_scale", "height_scale"):
            if node.knows(name):
                node.value(name)
        size = node.shape("output")[HEIGHT : WIDTH + 1]
        node.add(
            operator,
            [node.tensor("input"), node.flat.ints(size)],
            node.all_results(),
            options,
            AlignCorners=node.flag("align_corners"),
            HalfPixelCenters=node.flag("half_pixel_centers"),
        )

    return write


def _move_depth(operator: str, options: str) -> Translator:
    """DEPTH_TO_SPACE and SPACE_TO_DEPTH."""

    def write(node: Node) -> None:
        refuse_nchw(node)
        node.add(operator, node.tensors("input"), node.all_results(), options, BlockSize=node.integer("block_size"))

    return write


def _batch_to_space(node: Node) -> None:
    """BATCH_TO_SPACE_ND: NNAPI crops nothing."""
    refuse_nchw(node)
    block, crops = node.ints("block_shape"), node.flat.ints([0, 0, 0, 0], (2, 2))
    inputs = [node.tensor("input"), node.flat.ints(block), crops]
    node.add("BATCH_TO_SPACE_ND", inputs, node.all_results(), "BatchToSpaceNDOptions")


def _space_to_batch(node: Node) -> None:
    """SPACE_TO_BATCH_ND."""
    refuse_nchw(node)
    block, paddings = node.ints("block_shape"), node.value("paddings").reshape(-1).tolist()
    inputs = [node.tensor("input"), node.flat.ints(block), node.flat.ints(paddings, (2, 2))]
    node.add("SPACE_TO_BATCH_ND", inputs, node.all_results(), "SpaceToBatchNDOptions")


def _l2_normalization(node: Node) -> None:
    """L2_NORMALIZATION."""
    refuse_inner_axis(node, "L2_NORMALIZATION", "input")
    node.add("L2_NORMALIZATION", node.tensors("input"), node.all_results(), "L2NormOptions")


def _local_response_normalization(node: Node) -> None:
    """LOCAL_RESPONSE_NORMALIZATION."""
    refuse_inner_axis(node, "LOCAL_RESPONSE_NORMALIZATION", "input")
    if len(node.shape("input")) != RANK:
        raise UntranslatableError("LiteRT's LOCAL_RESPONSE_NORMALIZATION takes images of rank 4 only")
    node.add(
        "LOCAL_RESPONSE_NORMALIZATION",
        node.tensors("input"),
        node.all_results(),
        "LocalResponseNormalizationOptions",
        Radius=node.integer("radius"),
        Bias=node.real("bias"),
        Alpha=node.real("alpha"),
        Beta=node.real("beta"),
    )


TRANSLATORS: Mapping[int, Translator] = {
    OperationType.RESIZE_BILINEAR: _resize("RESIZE_BILINEAR", "ResizeBilinearOptions"),
    OperationType.RESIZE_NEAREST_NEIGHBOR: _resize("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
    OperationType.DEPTH_TO_SPACE: _move_depth("DEPTH_TO_SPACE", "DepthToSpaceOptions"),
    OperationType.SPACE_TO_DEPTH: _move_depth("SPACE_TO_DEPTH", "SpaceToDepthOptions"),
    OperationType.BATCH_TO_SPACE_ND: _batch_to_space,
    OperationType.SPACE_TO_BATCH_ND: _space_to_batch,
    OperationType.L2_NORMALIZATION: _l2_normalization,
    OperationType.LOCAL_RESPONSE_NORMALIZATION: _local_response_normalization,
}
