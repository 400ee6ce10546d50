"""Operators on images and along one axis: resizing, space and depth, normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from importers.tflite_file.kinds import InexpressibleError
from importers.tflite_file.node import Node
from nnhal.types import OperationType

Translator = Callable[[Node], None]
SPATIAL = 2  # dimensions of an image between batch and depth


def _resize(code: OperationType, options: str) -> Translator:
    """RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR; parameters that have their defaults are left off."""

    def write(node: Node) -> None:
        known = node.options(options)
        flags = [known["align_corners"], known["half_pixel_centers"]]
        sizes = node.integers(1, "the size")
        if len(sizes) != SPATIAL:
            raise InexpressibleError(f"its size has {len(sizes)} elements")
        inputs = [node.operand(0), node.whole(sizes[1]), node.whole(sizes[0])]
        if any(flags):
            inputs += [node.flag(False), *(node.flag(value) for value in flags)]
        elif code == OperationType.RESIZE_NEAREST_NEIGHBOR:
            inputs.append(node.flag(False))
        node.apply(code, inputs, node.result())

    return write


def _move_depth(code: OperationType, options: str) -> Translator:
    """DEPTH_TO_SPACE and SPACE_TO_DEPTH."""

    def write(node: Node) -> None:
        size = node.whole(node.options(options)["block_size"])
        node.apply(code, [node.operand(0), size], node.result())

    return write


def _batch_to_space(node: Node) -> None:
    """BATCH_TO_SPACE_ND; what is cropped a SLICE takes away."""
    operand, block = node.operand(0), node.integers(1, "the block")
    crops = node.integers(2, "the cropping")
    if len(block) != SPATIAL or len(crops) != 2 * SPATIAL or min(crops) < 0:
        raise InexpressibleError("its block is not one of rows and columns")
    inputs = [operand, node.row(block)]
    if not any(crops):
        node.apply(OperationType.BATCH_TO_SPACE_ND, inputs, node.result())
        return
    whole = node.apply(OperationType.BATCH_TO_SPACE_ND, inputs)
    begin = node.row([0, crops[0], crops[2], 0])
    node.apply(OperationType.SLICE, [whole, begin, node.row(node.dims(node.result()))], node.result())


def _space_to_batch(node: Node) -> None:
    """SPACE_TO_BATCH_ND."""
    operand, block = node.operand(0), node.row(node.integers(1, "the block"))
    paddings = node.build.constant(node.kind(block), node.constant(2, "the padding"))
    node.apply(OperationType.SPACE_TO_BATCH_ND, [operand, block, paddings], node.result())


def _l2_normalization(node: Node) -> None:
    """L2_NORMALIZATION along the last axis."""
    if node.options("L2NormOptions")["activation"]:
        raise InexpressibleError("it has a fused activation")
    node.compute(OperationType.L2_NORMALIZATION, node.operands(1))


def _local_response_normalization(node: Node) -> None:
    """LOCAL_RESPONSE_NORMALIZATION along the last axis."""
    known, operand = node.options("LocalResponseNormalizationOptions"), node.operand(0)
    parameters = [node.whole(known["radius"]), *(node.real(known[name], operand) for name in ("bias", "alpha", "beta"))]
    node.apply(OperationType.LOCAL_RESPONSE_NORMALIZATION, [operand, *parameters], node.result())


def _softmax(node: Node) -> None:
    """SOFTMAX along the last axis."""
    operand = node.operand(0)
    beta = node.real(node.options("SoftmaxOptions")["beta"], operand)
    node.compute(OperationType.SOFTMAX, [operand], [beta])


def _log_softmax(node: Node) -> None:
    """LOG_SOFTMAX along the last axis."""
    operand = node.operand(0)
    node.compute(OperationType.LOG_SOFTMAX, [operand], [node.real(1.0, operand), node.whole(-1)])


TRANSLATORS: Mapping[str, Translator] = {
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "DEPTH_TO_SPACE": _move_depth(OperationType.DEPTH_TO_SPACE, "DepthToSpaceOptions"),
    "L2_NORMALIZATION": _l2_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response_normalization,
    "LOG_SOFTMAX": _log_softmax,
    "RESIZE_BILINEAR": _resize(OperationType.RESIZE_BILINEAR, "ResizeBilinearOptions"),
    "RESIZE_NEAREST_NEIGHBOR": _resize(OperationType.RESIZE_NEAREST_NEIGHBOR, "ResizeNearestNeighborOptions"),
    "SOFTMAX": _softmax,
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "SPACE_TO_DEPTH": _move_depth(OperationType.SPACE_TO_DEPTH, "SpaceToDepthOptions"),
}
