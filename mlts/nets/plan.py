"""The three families of networks as data: which convolutions follow each other, for any width.

Sources: MobileNets (arXiv 1704.04861, table 1), MobileNetV2 (arXiv 1801.04381, table 2), and for EfficientNet-Lite0
EfficientNet-B0 (arXiv 1905.11946, table 1), which it is without squeeze-and-excitation and with ReLU6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

DIVISOR = 8  # numbers of channels are multiples of it
CLASSIFIER = "classifier"
PICTURE_CHANNELS = 3
# Filters and strides of MobileNetV1's thirteen pairs of a depthwise and a pointwise convolution.
V1_PAIRS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1),
    (1024, 2), (1024, 1),
)  # fmt: skip
# Expansion, channels, number of blocks, stride of the first and window of the inverted residuals.
V2_STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
)  # fmt: skip
LITE0_STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip
STEM, HEAD = 32, 1280  # channels


@dataclass(frozen=True)
class Convolution:
    """A convolution and what follows it at once.

    Attributes:
        name: in the tables of weights.
        window: edge of its square window.
        depthwise: one filter for each channel.
        relu6: clips its results to 0..6.
        joins: name of the convolution whose result is added to this one's; empty for none.
    """

    name: str
    window: int
    stride: int
    inputs: int
    outputs: int
    depthwise: bool = False
    relu6: bool = True
    joins: str = ""


@dataclass(frozen=True)
class Plan:
    """A network without its numbers: convolutions, a mean over the picture, a classifier, SOFTMAX.

    Attributes:
        dense: the classifier is a FULLY_CONNECTED, else a CONV_2D with a window of one, as MobileNet's authors have it.
    """

    convolutions: tuple[Convolution, ...]
    dense: bool = False

    @property
    def features(self) -> int:
        """Channels that the classifier reads."""
        return self.convolutions[-1].outputs


def v1(width: float) -> Plan:
    """MobileNetV1."""
    depth = max(int(STEM * width), DIVISOR)
    convolutions = [Convolution("Conv2d_0", 3, 2, PICTURE_CHANNELS, depth)]
    for number, (filters, stride) in enumerate(V1_PAIRS, 1):
        outputs = max(int(filters * width), DIVISOR)
        convolutions.append(Convolution(f"Conv2d_{number}_depthwise", 3, stride, depth, depth, depthwise=True))
        convolutions.append(Convolution(f"Conv2d_{number}_pointwise", 1, 1, depth, outputs))
        depth = outputs
    return Plan(tuple(convolutions))


def v2(width: float) -> Plan:
    """MobileNetV2; below width 1 its last convolution keeps its 1280 channels."""
    return Plan(tuple(_inverted(V2_STAGES, width)))


def lite0() -> Plan:
    """EfficientNet-Lite0."""
    return Plan(tuple(_inverted(LITE0_STAGES, 1.0)), dense=True)


def _inverted(stages: tuple[tuple[int, int, int, int, int], ...], width: float) -> Iterator[Convolution]:
    """Stem, inverted residuals and head."""
    depth, before = _divisible(STEM * width), "stem"
    yield Convolution(before, 3, 2, PICTURE_CHANNELS, depth)
    number = 0
    for expansion, filters, repeats, first, window in stages:
        outputs = _divisible(filters * width)
        for repeat in range(repeats):
            stride, inner = first if repeat == 0 else 1, depth * expansion
            name = f"block{number}"
            if expansion > 1:
                yield Convolution(f"{name}/expand", 1, 1, depth, inner)
            yield Convolution(f"{name}/depthwise", window, stride, inner, inner, depthwise=True)
            joins = before if stride == 1 and depth == outputs else ""
            before = f"{name}/project"
            yield Convolution(before, 1, 1, inner, outputs, relu6=False, joins=joins)
            depth, number = outputs, number + 1
    yield Convolution("head", 1, 1, depth, _divisible(HEAD * max(width, 1.0)))


def _divisible(channels: float) -> int:
    """The nearest multiple of eight, not less than nine tenths."""
    rounded = max(DIVISOR, int(channels + DIVISOR / 2) // DIVISOR * DIVISOR)
    return rounded if rounded >= 0.9 * channels else rounded + DIVISOR
