"""Operations that slide a window over an image: convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ai_edge_litert import schema_py_generated as schema

from drivers.litert_translate.flatbuffer import Quantization
from drivers.litert_translate.images import refuse_nchw
from drivers.litert_translate.node import Node, UntranslatableError
from nnhal.model import ChannelQuant
from nnhal.types import OperandType, OperationType, PaddingScheme

Translator = Callable[[Node], None]
SAME: int = schema.Padding.SAME
VALID: int = schema.Padding.VALID
SCHEMES: dict[int, int] = {PaddingScheme.SAME: SAME, PaddingScheme.VALID: VALID}
HEIGHT, WIDTH = 1, 2  # dimensions of an image in NHWC
NO_PADDING = (0, 0)


@dataclass(frozen=True)
class _Extent:
    """One direction of an image: sizes, and padding at the head and at the tail."""

    size: int
    window: int
    stride: int
    padding: tuple[int, int]

    def outputs(self, head: int, tail: int) -> int:
        """Number of windows with the given padding."""
        return (self.size - self.window + self.stride + head + tail) // self.stride

    def same(self) -> tuple[int, int]:
        """Head and tail of the padding that SAME means."""
        count = -(-self.size // self.stride)
        total = max(0, (count - 1) * self.stride + self.window - self.size)
        return total // 2, total - total // 2

    def is_padded_like(self, other: tuple[int, int]) -> bool:
        """Whether another padding gives the same windows; what lies behind the last one does not matter."""
        return self.padding[0] == other[0] and self.outputs(*self.padding) == self.outputs(*other)


def _refuse_filter(node: Node) -> None:
    """Refuses what LiteRT would take and compute by another rule."""
    kind = node["filter"].type
    if kind == OperandType.TENSOR_QUANT8_ASYMM_SIGNED and node["filter"].zero_point != 0:
        raise UntranslatableError("LiteRT's int8 convolutions take a filter's zero point as 0, whatever it is")
    per_channel = kind == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    if per_channel and node["input"].type == OperandType.TENSOR_QUANT8_ASYMM:
        raise UntranslatableError("LiteRT has filters with a scale per channel for int8 images only")


def _extents(node: Node, windows: tuple[int, int]) -> tuple[_Extent, _Extent]:
    """Height and width of the operation's image, with the explicit padding."""
    sizes = node.shape("input")
    sides = (("top", "bottom"), ("left", "right"))
    paddings = [tuple(node.integer(f"pad_{side}") for side in pair) for pair in sides]
    strides = (node.integer("stride_h"), node.integer("stride_w"))
    height, width = (
        _Extent(sizes[d], windows[i], strides[i], (paddings[i][0], paddings[i][1]))
        for i, d in enumerate((HEIGHT, WIDTH))
    )
    return height, width


def _scheme(node: Node) -> int:
    """The padding that the implicit form names."""
    code = node.integer("padding_scheme")
    if code not in SCHEMES:
        raise UntranslatableError(f"padding scheme {code} is none that LiteRT knows")
    return SCHEMES[code]


def _padding(node: Node, windows: tuple[int, int]) -> tuple[int, tuple[_Extent, _Extent] | None]:
    """The padding as LiteRT has it, and the extents where it has none and VALID must be helped by a PAD."""
    if node.has("padding_scheme"):
        return _scheme(node), None
    extents = _extents(node, windows)
    if all(extent.is_padded_like(NO_PADDING) for extent in extents):
        return VALID, None
    if all(extent.is_padded_like(extent.same()) for extent in extents):
        return SAME, None
    return VALID, extents


def _padded_input(node: Node, extents: tuple[_Extent, _Extent]) -> int:
    """The image with zeros around it: a PAD in front, which fills quantised tensors with their zero point."""
    shape = list(node.shape("input"))
    for dimension, extent in zip((HEIGHT, WIDTH), extents, strict=True):
        shape[dimension] += sum(extent.padding)
    padded = node.flat.like(node.tensor("input"), shape)
    paddings = [0, 0, *extents[0].padding, *extents[1].padding, 0, 0]
    node.add("PAD", [node.tensor("input"), node.flat.ints(paddings, (4, 2))], [padded], "PadOptions")
    return padded


def _bias(node: Node) -> int:
    """The bias; behind a filter with a scale per channel it has these times the input's, as LiteRT wants it written."""
    channels = node["filter"].extra_params
    if not isinstance(channels, ChannelQuant) or not node.is_constant("bias"):
        return node.tensor("bias")
    scale = node["input"].scale
    scales = tuple(scale * channel for channel in channels.scales)
    return node.constant_with("bias", Quantization(scales, (0,) * len(scales), 0))


def _convolution(operator: str, options: str) -> Translator:
    """CONV_2D, GROUPED_CONV_2D and DEPTHWISE_CONV_2D."""

    def write(node: Node) -> None:
        refuse_nchw(node)
        _refuse_filter(node)
        dilated = node.knows("dilation_h")
        dilations = (node.integer("dilation_h"), node.integer("dilation_w")) if dilated else (1, 1)
        sizes = node.shape("filter")[HEIGHT : WIDTH + 1]
        windows = ((sizes[0] - 1) * dilations[0] + 1, (sizes[1] - 1) * dilations[1] + 1)
        padding, extents = _padding(node, windows)
        image = node.tensor("input") if extents is None else _padded_input(node, extents)
        more = {"DepthMultiplier": node.integer("multiplier")} if operator == "DEPTHWISE_CONV_2D" else {}
        node.add(
            operator,
            [image, node.tensor("filter"), _bias(node)],
            node.all_results(),
            options,
            Padding=padding,
            StrideH=node.integer("stride_h"),
            StrideW=node.integer("stride_w"),
            DilationHFactor=dilations[0],
            DilationWFactor=dilations[1],
            FusedActivationFunction=node.fused(),
            **more,
        )

    return write


def _transpose_convolution(node: Node) -> None:
    """TRANSPOSE_CONV_2D."""
    refuse_nchw(node)
    _refuse_filter(node)
    if node.has("output_shape"):
        node.ints("output_shape")  # LiteRT is told the output's dimensions: they must not depend on an input
    node.add(
        "TRANSPOSE_CONV",
        [node.flat.ints(node.shape("output")), node.tensor("filter"), node.tensor("input"), _bias(node)],
        node.all_results(),
        "TransposeConvOptions",
        Padding=_transposed_padding(node),
        StrideH=node.integer("stride_h"),
        StrideW=node.integer("stride_w"),
        FusedActivationFunction=node.fused(),
    )


def _transposed_padding(node: Node) -> int:
    """Padding of a transposed convolution as LiteRT has it: counted on the output, which is the image here."""
    named = _scheme(node) if node.has("padding_scheme") else None
    image, kernel, taken = node.shape("output"), node.shape("filter"), node.shape("input")
    strides = {HEIGHT: node.integer("stride_h"), WIDTH: node.integer("stride_w")}
    heads = {} if named is not None else {HEIGHT: node.integer("pad_top"), WIDTH: node.integer("pad_left")}
    for scheme in (VALID, SAME):
        fits = []
        for dimension, stride in strides.items():
            extent = _Extent(image[dimension], kernel[dimension], stride, NO_PADDING)
            padding = NO_PADDING if scheme == VALID else extent.same()
            fits.append(extent.outputs(*padding) == taken[dimension])
            fits.append(heads.get(dimension, padding[0]) == padding[0])
        if all(fits) and named in (None, scheme):
            return scheme
    raise UntranslatableError("LiteRT's TRANSPOSE_CONV has SAME and VALID padding only")


def _pool(operator: str) -> Translator:
    """AVERAGE_POOL_2D, MAX_POOL_2D and L2_POOL_2D."""

    def write(node: Node) -> None:
        refuse_nchw(node)
        windows = (node.integer("filter_h"), node.integer("filter_w"))
        padding, extents = _padding(node, windows)
        if extents is not None:
            raise UntranslatableError(
                f"LiteRT's {operator} has SAME and VALID padding only, and a PAD in front would be part of the window"
            )
        node.add(
            operator,
            node.tensors("input"),
            node.all_results(),
            "Pool2DOptions",
            Padding=padding,
            StrideH=node.integer("stride_h"),
            StrideW=node.integer("stride_w"),
            FilterHeight=windows[0],
            FilterWidth=windows[1],
            FusedActivationFunction=node.fused(),
        )

    return write


TRANSLATORS: Mapping[int, Translator] = {
    OperationType.CONV_2D: _convolution("CONV_2D", "Conv2DOptions"),
    OperationType.GROUPED_CONV_2D: _convolution("CONV_2D", "Conv2DOptions"),
    OperationType.DEPTHWISE_CONV_2D: _convolution("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"),
    OperationType.TRANSPOSE_CONV_2D: _transpose_convolution,
    OperationType.AVERAGE_POOL_2D: _pool("AVERAGE_POOL_2D"),
    OperationType.MAX_POOL_2D: _pool("MAX_POOL_2D"),
    OperationType.L2_POOL_2D: _pool("L2_POOL_2D"),
}
