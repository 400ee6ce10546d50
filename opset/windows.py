"""Windows that slide over images: layouts, paddings, the taps of each window, and how to draw them.

What convolution and pooling share: inference, kernels, rules and draws read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnhal.types import Array, OperandType, PaddingScheme
from opset.call import Argument, Call, scalar, with_shape, with_value
from opset.definition import ExecutionRule, boolean, int32
from opset.drawing import LARGEST_TENSOR, Draft, within
from opset.shapes import Window, implicit_window, same_padding
from opset.values import Values

EXPLICIT_PADDING = (
    int32("pad_left", "Columns added at the left."),
    int32("pad_right", "Columns added at the right."),
    int32("pad_top", "Rows added at the top."),
    int32("pad_bottom", "Rows added at the bottom."),
)
IMPLICIT_PADDING = (
    int32("padding_scheme", "1 SAME, 2 VALID; 0 is treated like VALID by public code and never drawn."),
)
STRIDES = (int32("stride_w", "Columns from one window to the next."), int32("stride_h", "Rows from one to the next."))
LAYOUT_WORDS = "True: input and output are [batch, channels, height, width]; false: the channels come last."
OPTIONAL_LAYOUT = boolean("nchw", LAYOUT_WORDS, False)
MANDATORY_LAYOUT = boolean("nchw", LAYOUT_WORDS)
DILATIONS = (
    int32("dilation_w", "Columns from one tap to the next.", 1),
    int32("dilation_h", "Rows from one tap to the next.", 1),
)


class Ends(Protocol):
    """What lies before and behind a dimension."""

    @property
    def head(self) -> int:
        """Before the first element."""

    @property
    def tail(self) -> int:
        """After the last one."""


Windows = tuple[Window, Window]  # along the height, along the width
Size = tuple[int, int]  # height, width

LARGEST_SIZE = 4  # rows and columns of a drawn window
LARGEST_STEP = 3  # drawn strides and dilations
LARGEST_PADDING = 3  # drawn explicit paddings that are neither SAME nor VALID


def explicit(left: int, right: int, top: int = 0, bottom: int = 0, stride_w: int = 1, stride_h: int = 1
             ) -> dict[str, int]:  # fmt: skip
    """Explicit paddings and strides of an example."""
    names = ("pad_left", "pad_right", "pad_top", "pad_bottom", "stride_w", "stride_h")
    return dict(zip(names, (left, right, top, bottom, stride_w, stride_h), strict=True))


def implicit(scheme: int, stride_w: int = 1, stride_h: int = 1) -> dict[str, int]:
    """Padding scheme and strides of an example."""
    return {"padding_scheme": scheme, "stride_w": stride_w, "stride_h": stride_h}


# --- layouts and sizes ------------------------------------------------------------------------------------------------


def is_nchw(call: Call) -> bool:
    """Whether the images of a call have their channels before height and width."""
    return call.has("nchw") and bool(call["nchw"].item())


def image_size(shape: tuple[int, ...], nchw: bool) -> tuple[int, int, int, int]:
    """Batch, height, width and channels of an image's shape."""
    batch, first, second, third = shape
    return (batch, second, third, first) if nchw else (batch, first, second, third)


def image_shape(batch: int, height: int, width: int, channels: int, nchw: bool) -> tuple[int, int, int, int]:
    """The shape of an image in a layout."""
    return (batch, channels, height, width) if nchw else (batch, height, width, channels)


def channels_last(image: Array, nchw: bool) -> Array:
    """An image as [batch, height, width, channels]."""
    return image.transpose(0, 2, 3, 1) if nchw else image


def in_layout(image: Array, nchw: bool) -> Array:
    """An image of [batch, height, width, channels] in the layout of a call."""
    return np.ascontiguousarray(image.transpose(0, 3, 1, 2)) if nchw else image


def windows_of(call: Call, size: Size) -> Windows:
    """The windows that a call's paddings, strides and dilations make."""
    height, width = image_size(call["input"].shape, is_nchw(call))[1:3]
    return _window(call, "h", height, size[0]), _window(call, "w", width, size[1])


def _window(call: Call, axis: str, length: int, size: int) -> Window:
    dilation = call.integer(f"dilation_{axis}") if call.has(f"dilation_{axis}") else 1
    stride = call.integer(f"stride_{axis}")
    if call.has("padding_scheme"):
        return implicit_window(call.integer("padding_scheme"), length, size, stride, dilation)
    head, tail = ("pad_top", "pad_bottom") if axis == "h" else ("pad_left", "pad_right")
    return Window(size, stride, dilation, call.integer(head), call.integer(tail))


def window_outputs(windows: Windows, height: int, width: int) -> Size:
    """Rows and columns of the output; none where the image is smaller than the window."""
    return max(0, windows[0].outputs(height)), max(0, windows[1].outputs(width))


# --- kernels ----------------------------------------------------------------------------------------------------------


def covered(image: Array, windows: Windows, fill: float = 0) -> Array:
    """A view of what each window covers: [batch, rows, columns, window height, window width, channels].

    Args:
        image: [batch, height, width, channels].
        windows: along height and width.
        fill: value in the padding.
    """
    batch, height, width, channels = image.shape
    rows, columns = windows
    out_height, out_width = window_outputs(windows, height, width)
    if rows.head or rows.tail or columns.head or columns.tail:
        shape = (batch, height + rows.head + rows.tail, width + columns.head + columns.tail, channels)
        padded = np.empty(shape, image.dtype)
        end_row, end_column = rows.head + height, columns.head + width
        padded[:, : rows.head] = padded[:, end_row:] = fill
        beside = padded[:, rows.head : end_row]
        beside[:, :, : columns.head] = beside[:, :, end_column:] = fill
        beside[:, :, columns.head : end_column] = image
        image = padded
    along_batch, down, right, deep = image.strides
    return as_strided(
        image,
        (batch, out_height, out_width, rows.size, columns.size, channels),
        (
            along_batch,
            down * rows.stride,
            right * columns.stride,
            down * rows.dilation,
            right * columns.dilation,
            deep,
        ),
        writeable=False,
    )


def taps(patches: Array) -> Iterator[Array]:
    """The view of each tap in turn: [batch, rows, columns, channels]."""
    for row in range(patches.shape[3]):
        for column in range(patches.shape[4]):
            yield patches[:, :, :, row, column]


def sum_terms(v: Values, terms: Iterable[Array]) -> Array:
    """Sum of arrays of one shape, in the arithmetic of `v`."""
    if v.arithmetic.order != "natural":
        return v.sum(np.stack(list(terms)), 0)
    iterator = iter(terms)
    total = np.array(next(iterator))
    for term in iterator:
        total += term
    return total


def tap_counts(windows: Windows, height: int, width: int) -> Array:
    """How many taps of each window lie in the image: [rows, columns, 1]."""
    rows, columns = (
        _counts(w, n, m)
        for w, n, m in zip(windows, (height, width), window_outputs(windows, height, width), strict=True)
    )
    return (rows[:, None] * columns[None, :])[:, :, None]


def _counts(window: Window, length: int, outputs: int) -> Array:
    places = np.arange(outputs)[:, None] * window.stride - window.head + np.arange(window.size) * window.dilation
    return np.asarray(((places >= 0) & (places < length)).sum(axis=1))


# --- rules ------------------------------------------------------------------------------------------------------------


def execution_rank_rule(label: str, operand: str, rank: int) -> ExecutionRule:
    """The rank of an operand, where public code looks at it only when the operation runs."""
    return ExecutionRule(
        label,
        f"{operand} has rank {rank}",
        lambda call: call[operand].rank == rank,
        lambda call: with_shape(call, operand, (1, *call[operand].shape)),
    )


def stride_rule() -> ExecutionRule:
    """Strides are positive."""
    return ExecutionRule(
        "STRIDE",
        "stride_w and stride_h are positive",
        lambda call: call.integer("stride_w") > 0 and call.integer("stride_h") > 0,
        lambda call: with_value(call, "stride_h", 0),
    )


def dilation_rule() -> ExecutionRule:
    """Dilations are positive."""
    return ExecutionRule(
        "DILATION",
        "dilation_w and dilation_h are positive",
        lambda call: call.integer("dilation_w") > 0 and call.integer("dilation_h") > 0,
        lambda call: with_value(call, "dilation_w", 0) if call.has("dilation_w") else None,
    )


def padding_rule(size_of: Callable[[Call], Size]) -> ExecutionRule:
    """Explicit paddings are not negative and smaller than the window with its gaps."""

    def holds(call: Call) -> bool:
        windows = windows_of(call, size_of(call))
        return all(0 <= padding < w.effective for w in windows for padding in (w.head, w.tail))

    def broken(call: Call) -> Call | None:
        if not call.has("pad_right"):
            return None
        return with_value(call, "pad_right", windows_of(call, size_of(call))[1].effective)

    return ExecutionRule(
        "PADDING", "each explicit padding is at least 0 and less than the window's extent along it", holds, broken
    )


# --- draws ------------------------------------------------------------------------------------------------------------


def draw_image(draft: Draft, span: tuple[float, float], reach: float, depths: tuple[int, ...] = (1, 2, 3, 4, 5, 6),
               largest: int = 8, fresh: Callable[[Draft, tuple[int, ...]], Argument] | None = None
               ) -> tuple[int, int, int, int]:  # fmt: skip
    """Draws layout and input, new or of the scope; returns batch, height, width and channels.

    Args:
        draft: the call under way.
        span: range of a new image's values.
        reach: largest magnitude that is taken from the scope.
        depths: numbers of channels of a new image.
        largest: most rows and columns of a new image.
        fresh: makes a new image of a shape, in place of the usual one.
    """
    nchw = draft.has("nchw") and draft.chance(40)
    if draft.has("nchw"):
        draft.put("nchw", scalar(OperandType.BOOL, nchw))
    kind = draft.type("input")

    def suits(a: Argument) -> bool:
        return (
            a.type == kind
            and a.rank == 4
            and a.value is not None
            and a.value.size <= LARGEST_TENSOR // 4
            and within(a, -reach, reach)
        )

    found = draft.scope.find(suits)
    if found is None:
        batch = draft.choose((1, 1, 1, 2, 3))
        height, width = (1 if draft.chance(8) else draft.integer(2, largest) for _ in range(2))
        shape = image_shape(batch, height, width, draft.choose(depths), nchw)
        if fresh is None:
            found = draft.tensor("input", shape, low=span[0], high=span[1], fits=suits)
        else:
            found = draft.scope.add(fresh(draft, shape))
    draft.put("input", found)
    return image_size(found.shape, nchw)


def draw_windows(draft: Draft, height: int, width: int) -> Windows:
    """Draws paddings, strides and dilations that give an output; explicit ones equal SAME or VALID by half."""
    explicit = draft.has("pad_left")
    scheme = draft.choose(("same", "valid", "any", "any") if explicit else ("same", "same", "valid"))
    dilated = draft.has("dilation_w")
    rows = _draw_window(draft, height, scheme, dilated)
    columns = _draw_window(draft, width, scheme, dilated)
    if explicit:
        put_paddings(draft, rows, columns)
    else:
        put_int32(draft, padding_scheme=PaddingScheme.SAME if scheme == "same" else PaddingScheme.VALID)
    put_int32(draft, stride_w=columns.stride, stride_h=rows.stride)
    if dilated:
        put_int32(draft, dilation_w=columns.dilation, dilation_h=rows.dilation)
    return rows, columns


def put_int32(draft: Draft, **values: int) -> None:
    """Makes constants the inputs of those names, which the form is known to have."""
    for name, value in values.items():
        draft.put(name, scalar(OperandType.INT32, value))


def put_paddings(draft: Draft, rows: Ends, columns: Ends) -> None:
    """Explicit paddings of a form that has them."""
    put_int32(draft, pad_left=columns.head, pad_right=columns.tail, pad_top=rows.head, pad_bottom=rows.tail)


def _draw_window(draft: Draft, length: int, scheme: str, dilated: bool) -> Window:
    stride = draft.choose((1, 1, 2, LARGEST_STEP))
    most = min(LARGEST_SIZE, length) if scheme == "valid" else LARGEST_SIZE
    size = draft.integer(1, most)
    dilation = draft.choose((1, 2, 3)) if dilated else 1
    if scheme == "valid" and size > 1:
        dilation = min(dilation, (length - 1) // (size - 1))
    window = Window(size, stride, dilation, 0, 0)
    if scheme == "same":
        head, tail = same_padding(length, size, stride, dilation)
    elif scheme == "valid":
        head, tail = 0, 0
    else:
        most = window.effective - 1
        head, tail = (draft.integer(0, min(most, LARGEST_PADDING)) for _ in range(2))
        missing = max(0, window.effective - length - head - tail)
        grown = min(most, tail + missing)
        head, tail = head + missing - (grown - tail), grown
    return replace(window, head=head, tail=tail)


def draw_span(draft: Draft, reach: float, sided: int = 20) -> tuple[float, float]:
    """A range of values; at times one-sided, so that zero points stand at an end."""
    if not draft.chance(sided):
        return -reach, reach
    return (0.0, reach) if draft.chance(60) else (-reach, 0.0)
