"""Arithmetic of shapes that inference, kernels and rules share: broadcasting, windows, axes."""

from __future__ import annotations

from dataclasses import dataclass

from nnhal.types import PaddingScheme


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The common shape, trailing dimensions aligned; None when there is none. 0 goes with 0 and 1."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    common = []
    for sizes in zip(*padded, strict=True):
        other = {size for size in sizes if size != 1}
        if len(other) > 1:
            return None
        common.append(other.pop() if other else 1)
    return tuple(common)


def normal_axis(axis: int, rank: int) -> int:
    """A negative axis counted from the end; the caller has checked the range."""
    return axis + rank if axis < 0 else axis


@dataclass(frozen=True)
class Window:
    """A window sliding along one dimension.

    Attributes:
        head: padding before the first element.
        tail: padding after the last one.
    """

    size: int
    stride: int
    dilation: int
    head: int
    tail: int

    @property
    def effective(self) -> int:
        """Elements from the first tap to the last."""
        return (self.size - 1) * self.dilation + 1

    def outputs(self, length: int) -> int:
        """Number of positions along a dimension of that length; rounded toward zero, as the HAL says."""
        return int((length - self.effective + self.stride + self.head + self.tail) / self.stride)


def same_padding(length: int, size: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Head and tail of scheme SAME: the surplus element goes to the tail."""
    outputs = -(-length // stride)
    effective = (size - 1) * dilation + 1
    total = max(0, (outputs - 1) * stride + effective - length)
    return total // 2, total - total // 2


def implicit_window(scheme: int, length: int, size: int, stride: int, dilation: int = 1) -> Window:
    """The window of a padding scheme; codes other than SAME are VALID."""
    head, tail = same_padding(length, size, stride, dilation) if scheme == PaddingScheme.SAME else (0, 0)
    return Window(size, stride, dilation, head, tail)
