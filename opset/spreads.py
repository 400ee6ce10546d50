"""Filters that are scattered over an output: the geometry of TRANSPOSE_CONV_2D, its rules, and how to draw it."""

from __future__ import annotations

from dataclasses import dataclass

from nnhal.types import PaddingScheme
from opset.call import Call, with_shape, with_value
from opset.definition import ExecutionRule
from opset.drawing import Draft
from opset.filters import filter_size
from opset.shapes import Window
from opset.windows import LARGEST_SIZE, LARGEST_STEP, image_size, is_nchw


@dataclass(frozen=True)
class Spread:
    """A filter that is scattered along one dimension.

    Attributes:
        head: cropped before the first place.
        tail: cropped after the last one; where negative, places that only the bias reaches are added.
    """

    size: int
    stride: int
    head: int
    tail: int

    def outputs(self, length: int) -> int:
        """Number of places in the output."""
        return length * self.stride + self.size - self.stride - self.head - self.tail

    def gathering(self) -> Window:
        """The window over the spaced input that covers, uncropped, what each place of the output receives."""
        return Window(self.size, 1, 1, self.size - 1, self.size - 1 + max(0, -self.tail))


def spaced(length: int, stride: int) -> int:
    """Length of an image with stride - 1 gaps between its elements."""
    return max(0, (length - 1) * stride + 1)


def scattered(scheme: int, wanted: int, size: int, stride: int) -> Spread:
    """The spread of a padding scheme, for a wanted output size; codes other than SAME crop nothing."""
    if scheme != PaddingScheme.SAME:
        return Spread(size, stride, 0, 0)
    total = (-(-wanted // stride) - 1) * stride + size - wanted
    head = max(total, 0) // 2
    return Spread(size, stride, head, total - head)


def spreads_of(call: Call) -> tuple[Spread, Spread]:
    """The spreads that a call's paddings and strides make, along height and width."""
    height, width = filter_size(call)
    down, right = call.integer("stride_h"), call.integer("stride_w")
    if not call.has("output_shape"):
        return (
            Spread(height, down, call.integer("pad_top"), call.integer("pad_bottom")),
            Spread(width, right, call.integer("pad_left"), call.integer("pad_right")),
        )
    wanted = call["output_shape"].value
    if wanted is None:
        raise ValueError("the value of output_shape is not known")
    _, rows, columns, _ = image_size(tuple(int(x) for x in wanted), is_nchw(call))
    scheme = call.integer("padding_scheme")
    return scattered(scheme, rows, height, down), scattered(scheme, columns, width, right)


# --- rules ------------------------------------------------------------------------------------------------------------

CROP = ExecutionRule(
    "CROP",
    "pad_left and pad_top are not negative",
    lambda call: not call.has("pad_left") or (call.integer("pad_left") >= 0 and call.integer("pad_top") >= 0),
    lambda call: with_value(call, "pad_top", -1) if call.has("pad_top") else None,
)
OUTPUT_SHAPE = ExecutionRule(
    "OUTPUT_SHAPE",
    "output_shape has four elements",
    lambda call: not call.has("output_shape") or call["output_shape"].shape == (4,),
    lambda call: with_shape(call, "output_shape", (3,)) if call.has("output_shape") else None,
)


def _places_are_left(call: Call) -> bool:
    _, height, width, _ = image_size(call["input"].shape, is_nchw(call))
    rows, columns = spreads_of(call)
    return rows.outputs(height) > 0 and columns.outputs(width) > 0


def _crop_all(call: Call) -> Call | None:
    if not call.has("pad_bottom"):
        return None
    height = image_size(call["input"].shape, is_nchw(call))[1]
    return with_value(call, "pad_bottom", call.integer("pad_bottom") + spreads_of(call)[0].outputs(height))


OUTPUT_SIZE = ExecutionRule(
    "OUTPUT_SIZE", "the output has at least one row and one column", _places_are_left, _crop_all
)


# --- draws ------------------------------------------------------------------------------------------------------------


def draw_spread(draft: Draft, length: int, scheme: PaddingScheme, exactly: bool) -> Spread:
    """A spread as a padding scheme makes it, or with other legal paddings."""
    size, stride = draft.integer(1, LARGEST_SIZE), draft.integer(1, LARGEST_STEP)
    if exactly:
        # Every wanted size that has `length` as its number of strides; the operand stays consistent with the formula.
        wanted = draft.integer((length - 1) * stride + 1, length * stride)
        return scattered(scheme, wanted, size, stride)
    head, tail = draft.integer(0, size - 1), draft.integer(1 - stride, size - 1)
    whole = Spread(size, stride, head, 0).outputs(length)
    return Spread(size, stride, head, min(tail, whole - 1))
