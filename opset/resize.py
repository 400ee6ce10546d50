"""Images in another size: RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from nnhal.operations import Form, OperandDef, TypeRow
from nnhal.types import FL1, FL3, FL4, Array, FeatureLevel, OperandType, OperationType
from opset.call import Call, scalar, with_value
from opset.definition import (
    F16,
    F32,
    Q8,
    Q8S,
    ROW_NAMES,
    Bound,
    Example,
    ExecutionRule,
    Judging,
    LeftOpen,
    OperationDef,
    Shapes,
    boolean,
    half_units,
    int32,
    moved,
    real_scalar,
    tensor,
)
from opset.drawing import Draft
from opset.reshaping import same_quantization, same_quantization_rule
from opset.values import Values
from opset.windows import (
    MANDATORY_LAYOUT,
    OPTIONAL_LAYOUT,
    channels_last,
    draw_image,
    execution_rank_rule,
    image_shape,
    image_size,
    in_layout,
    is_nchw,
    put_int32,
)

INTERPOLATION_ROUNDINGS = 6  # coordinate, weights, products and sums
LARGEST_RESULT = 12  # most rows and columns of a drawn result
REACH = 1e4  # largest magnitude of an operand taken from a scope: differences stay below float16's largest number

IMAGE = tensor("input", "Image batch: [batch, height, width, depth], or with the channels first.", 4, 4)
SIZES = (int32("out_width", "Columns of the result."), int32("out_height", "Rows of the result."))
SCALES = (
    real_scalar("width_scale", "Columns of the result per column, rounded down; FLOAT16 beside float16 tensors."),
    real_scalar("height_scale", "Rows of the result per row, rounded down; FLOAT16 beside float16 tensors."),
)
FLAGS = (
    boolean("align_corners", "The centres of the corner pixels of input and output coincide.", False),
    boolean("half_pixel_centers", "Pixel centres lie at half numbers; not together with align_corners.", False),
)


def _forms(layout: OperandDef, first: int, since: FeatureLevel) -> tuple[Form, Form]:
    """Both forms, from a number of inputs on."""
    levels = ((3, since), (4, FL3), (5, FL4), (6, FL4))
    counts = tuple((count, level) for count, level in levels if count >= first)
    scaled = tuple((count, max(level, FL3)) for count, level in counts)
    return (
        Form("by_shape", (IMAGE, *SIZES, layout, *FLAGS), counts),
        Form("by_scale", (IMAGE, *SCALES, layout, *FLAGS), scaled),
    )


def _rows(*levels: tuple[OperandType, FeatureLevel]) -> tuple[TypeRow, ...]:
    rows = []
    for kind, since in levels:
        factor = OperandType.FLOAT16 if kind == F16 else OperandType.FLOAT32
        types = {"input": kind, "width_scale": factor, "height_scale": factor, "output": kind}
        rows.append(TypeRow(ROW_NAMES[kind], since, types))
    return tuple(rows)


# --- geometry ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """Where the places along one dimension of the result lie in the input.

    Attributes:
        length: of the input.
        outputs: of the result.
        align: the corners coincide.
        half: pixel centres lie at half numbers.
    """

    length: int
    outputs: int
    align: bool
    half: bool

    @property
    def scale(self) -> Fraction:
        """Elements of the input per element of the result."""
        if self.align and self.outputs > 1:
            return Fraction(self.length - 1, self.outputs - 1)
        return Fraction(self.length, self.outputs)

    def coordinates(self, dtype: type[np.floating]) -> Array:
        """Real coordinates in the input for interpolation, computed in a type as public code does."""
        scale = dtype(self.scale.numerator) / dtype(self.scale.denominator)
        places: Array = np.arange(self.outputs).astype(dtype)
        return np.asarray((places + dtype(0.5)) * scale - dtype(0.5) if self.half else places * scale)

    def nearest(self) -> tuple[Array, Array]:
        """The index that each place takes, and whether it is undecided: a tie that only exact arithmetic sees."""
        scale = self.scale
        shift = Fraction(1, 2) if self.half else Fraction(0)
        exactly = [(place + shift) * scale + (Fraction(1, 2) if self.align else 0) for place in range(self.outputs)]
        index = [min(max(x.__floor__(), 0), self.length - 1) for x in exactly]
        safe = scale.denominator & (scale.denominator - 1) == 0  # a power of two: no arithmetic rounds it
        open_ = [x.denominator == 1 and x > 0 and not safe for x in exactly]
        # Past the end both neighbours are the last element.
        return np.array(index, np.int64), np.array([o and x < self.length for o, x in zip(open_, exactly, strict=True)])


def _out_size(call: Call) -> tuple[int, int]:
    """Rows and columns of the result; a scale's product is taken in float32 and rounded down."""
    if call.signature.form.name == "by_shape":
        return call.integer("out_height"), call.integer("out_width")
    _, height, width, _ = image_size(call["input"].shape, is_nchw(call))
    rows, columns = (
        int(np.floor(np.float32(size) * np.float32(call[name].item())))
        for size, name in ((height, "height_scale"), (width, "width_scale"))
    )
    return rows, columns


def _axes(call: Call) -> tuple[Axis, Axis]:
    """Height and width."""
    _, height, width, _ = image_size(call["input"].shape, is_nchw(call))
    rows, columns = _out_size(call)
    align = call.has("align_corners") and bool(call["align_corners"].item())
    half = call.has("half_pixel_centers") and bool(call["half_pixel_centers"].item())
    return Axis(height, rows, align, half), Axis(width, columns, align, half)


def _infer(call: Call) -> Shapes:
    nchw = is_nchw(call)
    batch, _, _, depth = image_size(call["input"].shape, nchw)
    return {"output": image_shape(batch, *_out_size(call), depth, nchw)}


# --- kernels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Between:
    """Neighbours along a dimension, and how far each place lies from the lower to the upper one."""

    low: Array
    high: Array
    fraction: Array

    @classmethod
    def of(cls, axis: Axis, dtype: type[np.floating]) -> Between:
        """The neighbours of each place along an axis; the same one before the first element and behind the last."""
        where = axis.coordinates(dtype)
        low = np.clip(np.floor(where), 0, axis.length - 1)
        high = np.clip(np.ceil(where), 0, axis.length - 1)
        return cls(low.astype(np.int64), high.astype(np.int64), np.where(high > low, where - low, dtype(0)))

    def mix(self, x: Array, dimension: int) -> Array:
        """Interpolates along a dimension."""
        shape = [1] * x.ndim
        shape[dimension] = -1
        fraction = self.fraction.reshape(shape)
        low, high = x.take(self.low, dimension), x.take(self.high, dimension)
        return np.asarray(low * (fraction.dtype.type(1) - fraction) + high * fraction)


def _bilinear(v: Values) -> Mapping[str, Array]:
    """Stored steps are interpolated where values are quantised: scale and zero point stay."""
    terms, scale = v.factor("input")
    dtype = v.arithmetic.dtype
    nchw = is_nchw(v.call)
    x = channels_last(terms, nchw).astype(dtype)
    rows, columns = (Between.of(axis, dtype) for axis in _axes(v.call))
    return {"output": in_layout(columns.mix(rows.mix(x, 1), 2), nchw) * dtype(scale)}


def _steepest(x: Array, places: Array, dimension: int) -> Array:
    """The largest difference of neighbours around each place: a rounded coordinate may fall into the next cell."""
    apart = np.abs(np.diff(x, axis=dimension))
    if not apart.shape[dimension]:
        return np.zeros_like(x.take(places, dimension))
    last = apart.shape[dimension] - 1
    around = [apart.take(np.clip(places + shift, 0, last), dimension) for shift in (-1, 0, 1)]
    return np.asarray(np.maximum(np.maximum(around[0], around[1]), around[2]))


def _bilinear_bound(v: Values, results: Mapping[str, Array]) -> Bound:
    """Of what is mixed, and of a coordinate's size times the slope there."""
    del results
    nchw = is_nchw(v.call)
    x = channels_last(v["input"], nchw)
    axes = _axes(v.call)
    rows, columns = (Between.of(axis, np.float64) for axis in axes)
    down, right = (np.abs(axis.coordinates(np.float64)) + axis.half for axis in axes)
    moved = columns.mix(rows.mix(np.abs(x), 1), 2)
    moved = moved + columns.mix(_steepest(x, rows.low, 1), 2) * down[:, None, None]
    moved = moved + rows.mix(_steepest(x, columns.low, 2), 1) * right[:, None]
    return Bound(in_layout(moved, nchw), INTERPOLATION_ROUNDINGS)


def _nearest(v: Values) -> Mapping[str, Array]:
    nchw = is_nchw(v.call)
    rows, columns = (axis.nearest()[0] for axis in _axes(v.call))
    return {"output": in_layout(channels_last(v.stored("input"), nchw).take(rows, 1).take(columns, 2), nchw)}


def _open_nearest(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    rows, columns = (axis.nearest()[1] for axis in _axes(v.call))
    opened = (rows[:, None] | columns[None, :])[None, :, :, None]
    shape = channels_last(results["output"], is_nchw(v.call)).shape
    return {"output": in_layout(np.broadcast_to(opened, shape), is_nchw(v.call))}


# --- rules ------------------------------------------------------------------------------------------------------------


def _break_size(call: Call) -> Call:
    by_shape = call.signature.form.name == "by_shape"
    return with_value(call, "out_height" if by_shape else "height_scale", 0)


def _break_flags(call: Call) -> Call | None:
    if not call.has("half_pixel_centers"):
        return None
    return with_value(with_value(call, "align_corners", True), "half_pixel_centers", True)


RULES = (
    execution_rank_rule("RANK_INPUT", "input", 4),
    ExecutionRule(
        "SIZE", "the result has at least one row and one column", lambda c: min(_out_size(c)) > 0, _break_size
    ),
    ExecutionRule(
        "FLAGS",
        "align_corners and half_pixel_centers are not both true",
        lambda call: not (_axes(call)[0].align and _axes(call)[0].half),
        _break_flags,
    ),
    same_quantization_rule("input", "output"),
)


# --- draws ------------------------------------------------------------------------------------------------------------


def _draw_outputs(draft: Draft, length: int) -> int:
    """Smaller, larger, the same, doubled, halved, and multiples, where coordinates are whole numbers."""
    way = draft.integer(0, 9)
    if way < 6:
        return draft.integer(1, LARGEST_RESULT)
    outputs = {6: length, 7: 2 * length, 8: -(-length // 2), 9: 2 * length - 1}[way]
    return min(outputs, LARGEST_RESULT)


def _draw_scale(draft: Draft, name: str, length: int, outputs: int) -> None:
    """A factor that gives the number of places, far enough from the next that no rounding of the product matters."""
    whole = Fraction(outputs, length)
    plain = whole.denominator & (whole.denominator - 1) == 0
    if not (plain and draft.chance(40)):
        whole = Fraction(draft.real(outputs + 0.15, outputs + 0.85)) / length
    draft.scalar(name, float(whole))


def _draw(draft: Draft) -> None:
    _, height, width, _ = draw_image(draft, draft.choose(((-2.0, 2.0), (-2.0, 2.0), (0.0, 3.0))), REACH)
    rows, columns = _draw_outputs(draft, height), _draw_outputs(draft, width)
    if draft.form == "by_shape":
        put_int32(draft, out_width=columns, out_height=rows)
    else:
        _draw_scale(draft, "width_scale", width, columns)
        _draw_scale(draft, "height_scale", height, rows)
    way = draft.choose(("align", "half", "none") if draft.has("half_pixel_centers") else ("align", "none"))
    for name, due in (("align_corners", "align"), ("half_pixel_centers", "half")):
        if draft.has(name):
            draft.put(name, scalar(OperandType.BOOL, way == due))


def _draw_nearest(draft: Draft) -> None:
    _draw(draft)
    draft.seed_odd("input")


# --- definitions ------------------------------------------------------------------------------------------------------

COORDINATES = (
    "A place o of the result lies at o * scale, or (o + 0.5) * scale - 0.5 with half_pixel_centers, where scale is "
    "in / out, or (in - 1) / (out - 1) with align_corners. Sizes by scale are rounded down in float32."
)


def _flat(*numbers: float, width: int) -> list[object]:
    """An image of one channel."""
    return np.array(numbers, np.float64).reshape(1, -1, width, 1).tolist()  # type: ignore[no-any-return]


RESIZE_BILINEAR = OperationDef(
    code=OperationType.RESIZE_BILINEAR,
    doc=f"Interpolates between the four pixels around each place. {COORDINATES} Quantised: stored values are "
    "interpolated; older public code truncates them, which one step allows.",
    forms=_forms(OPTIONAL_LAYOUT, 3, FL1),
    results=(tensor("output", "[batch, rows, columns, depth] in the input's layout; its scale and zero point.", 4, 4),),
    rows=_rows((F32, FL1), (F16, FL3), (Q8, FL3), (Q8S, FL4)),
    rules=RULES,
    infer=_infer,
    kernel=_bilinear,
    judging=Judging(
        _bilinear_bound,
        half_units(
            INTERPOLATION_ROUNDINGS,
            "the interpolated absolute values, and of each coordinate (1 more with half_pixel_centers) times the "
            "steepest slope around it",
        ),
    ),
    draw=_draw,
    quantization=same_quantization("output"),
    examples=(
        # Columns at 0, 2/3, 4/3 (the last pixel repeats): 3, 5, 6; rows at 0, 2/3, 4/3 add 4 a third.
        Example(
            "float32/by_shape/in3",
            {"input": _flat(3, 6, 9, 12, width=2), "out_width": 3, "out_height": 3},
            {"output": _flat(3, 5, 6, 7, 9, 10, 9, 11, 12, width=3)},
        ),
        # Aligned corners, then half pixels: columns at 0, 1/2, 1 and at -1/4, 1/4, 3/4, 5/4.
        Example(
            "float32/by_shape/in5",
            {"input": _flat(2, 4, width=2), "out_width": 3, "out_height": 1, "nchw": False, "align_corners": True},
            {"output": _flat(2, 3, 4, width=3)},
        ),
        Example(
            "quant8_asymm/by_scale/in6",
            {"input": _flat(10, 20, width=2), "width_scale": 2.0, "height_scale": 1.5, "nchw": False,
             "align_corners": False, "half_pixel_centers": True},
            {"output": _flat(10, 13, 18, 20, width=4)},  # 12.5 and 17.5
            {"input": (0.5, 3), "output": (0.5, 3)},
        ),
    ),
    second_opinion="products with matrices of hat functions; ONNX's Resize",
)  # fmt: skip

RESIZE_NEAREST_NEIGHBOR = OperationDef(
    code=OperationType.RESIZE_NEAREST_NEIGHBOR,
    doc="The pixel at floor(o * scale), floor((o + 0.5) * scale) with half_pixel_centers, or o * scale rounded half "
    "up with align_corners, and not beyond the last; scale is in / out, or (in - 1) / (out - 1) with align_corners. "
    "Sizes by scale are rounded down in float32. Places that lie exactly between two pixels, by a scale that is no "
    "binary number, are left open.",
    forms=_forms(MANDATORY_LAYOUT, 4, FL3),
    results=(tensor("output", "[batch, rows, columns, depth] in the input's layout; its scale and zero point.", 4, 4),),
    rows=_rows((F32, FL3), (F16, FL3), (Q8, FL3), (Q8S, FL4)),
    rules=RULES,
    infer=_infer,
    kernel=_nearest,
    judging=moved(
        LeftOpen(
            "rows and columns whose coordinate is exactly between two elements by a scale that no binary number holds",
            _open_nearest,
        )
    ),
    draw=_draw_nearest,
    quantization=same_quantization("output"),
    examples=(
        # Two of four columns: at 0 and 2; with half pixels at 1 and 3.
        Example(
            "float32/by_shape/in4",
            {"input": _flat(1, 2, 3, 4, width=4), "out_width": 2, "out_height": 1, "nchw": False},
            {"output": _flat(1, 3, width=2)},
        ),
        Example(
            "float32/by_scale/in6",
            {"input": _flat(1, 2, 3, 4, width=4), "width_scale": 0.5, "height_scale": 1.0, "nchw": False,
             "align_corners": False, "half_pixel_centers": True},
            {"output": _flat(2, 4, width=2)},
        ),
        # Aligned: at 0, 1/2 (a tie, up), 1, 3/2 (up), 2.
        Example(
            "float32/by_shape/in5",
            {"input": _flat(1, 2, 3, width=3), "out_width": 5, "out_height": 1, "nchw": False, "align_corners": True},
            {"output": _flat(1, 2, 2, 3, 3, width=5)},
        ),
    ),
    second_opinion="distances to pixel centres in rational numbers; ONNX's Resize",
)  # fmt: skip
