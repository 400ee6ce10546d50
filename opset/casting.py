"""From one type to another: CAST QUANTIZE DEQUANTIZE."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnhal.operations import OperandDef, RuleKind, TypeRow, ValidationRule
from nnhal.types import FL1, FL3, FL4, Array, FeatureLevel, OperandType, OperationType, info
from opset.call import Argument
from opset.definition import (
    B8,
    EXACT,
    F16,
    F32,
    I32,
    Q8,
    Q8CH,
    Q8S,
    ROW_NAMES,
    Bound,
    Example,
    Judging,
    LeftOpen,
    OperationDef,
    exact,
    form,
    half_units,
    rank_rule,
    tensor,
)
from opset.drawing import Draft, UnsatisfiableError
from opset.elementwise import infer_same
from opset.quantization import FLOATS, QUANTIZED, limits
from opset.reshaping import any_tensor
from opset.values import Values

Q8Y, Q16, Q16A = OperandType.TENSOR_QUANT8_SYMM, OperandType.TENSOR_QUANT16_SYMM, OperandType.TENSOR_QUANT16_ASYMM
LARGEST_INT32 = 2.0**31
SMALLEST_NORMAL_HALF = 2.0**-14
HALF_REACH = 60_000.0  # a little below the largest float16


def _row(name: str, since: FeatureLevel, source: OperandType, target: OperandType) -> TypeRow:
    return TypeRow(name, since, {"input": source, "output": target})


def _source(doc: str, high: int | None = None) -> OperandDef:
    return tensor("input", doc, 1, high)


def _largest(draft: Draft) -> int:
    """Large enough, often enough, for a mean error to say something."""
    return draft.choose((6, 12, 40))


LEAST = "the result (in float16 of 2^-14 at least)"
ONE_ROUNDING, TWO_ROUNDINGS = half_units(1, LEAST), half_units(2, LEAST)


def _bound(v: Values, results: Mapping[str, Array]) -> Bound:
    """One rounding of a float, or two through float32; float16 loses digits near 0."""
    floor = SMALLEST_NORMAL_HALF if v.call["output"].type == F16 else 0.0
    return Bound(np.maximum(np.abs(results["output"]), floor), 2 if v.quantized("input") else 1)


def _bound_affine(v: Values, results: Mapping[str, Array]) -> Bound:
    """Where float32 has digits to spare, scale * q - scale * zero point is as good a way as any.

    Its second product has the same rounding error everywhere, hence a unit that is twice the largest sum's.
    """
    x, stored = v.call["input"], v.stored("input")
    if v.call["output"].type == F16 or not x.zero_point or not stored.size:
        return _bound(v, results)
    return Bound(2 * x.scale * (float(np.abs(stored.astype(np.int64)).max()) + abs(x.zero_point)), 1)


# --- CAST -------------------------------------------------------------------------------------------------------------

NUMERIC = (F32, F16, I32, Q8)
IDENTITIES = {
    "bool8_identity": B8,
    "quant16_asymm_identity": Q16A,
    "quant16_symm_identity": Q16,
    "quant8_asymm_signed_identity": Q8S,
    "quant8_symm_identity": Q8Y,
}
DOCUMENTED_LATER = "int32_to_int32"


def _cast(v: Values) -> Mapping[str, Array]:
    stored, target = v.stored("input"), v.call["output"].type
    if v.call["input"].type == target:
        return {"output": stored}
    if target in FLOATS:
        return {"output": stored.astype(np.float64)}
    whole = np.trunc(stored) if stored.dtype.kind == "f" else stored
    if target == Q8:
        return {"output": np.clip(np.where(np.isnan(whole), 0, whole), *limits(Q8)).astype(np.uint8)}
    return {"output": whole.astype(np.int64)}


def _bound_cast(v: Values, results: Mapping[str, Array]) -> Bound:
    source, target = v.call["input"].type, v.call["output"].type
    rounds = (target == F16 and source in (F32, I32)) or (target == F32 and source == I32)
    return _bound(v, results) if rounds else EXACT


def _open_cast(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    del results
    target, stored = v.call["output"].type, v.stored("input")
    if stored.dtype.kind != "f" or target in FLOATS:
        return {}
    if target == Q8:
        return {"output": np.isnan(stored)}
    whole = np.trunc(stored.astype(np.float64))
    return {"output": ~((whole >= -LARGEST_INT32) & (whole < LARGEST_INT32))}


def _span_cast(draft: Draft, source: OperandType, target: OperandType) -> tuple[float, float]:
    """A range of values that the target holds, or, where it saturates, that passes both ends."""
    if target == Q8:
        return draft.choose(((-80.0, 340.0), (0.0, 255.0), (-3.0, 12.0)))
    reach = draft.choose((3.0, 300.0, HALF_REACH, 2.1e9))
    if F16 in (source, target):
        reach = min(reach, HALF_REACH)
    return -reach, reach


def _draw_cast(draft: Draft) -> None:
    if draft.signature.row.id == DOCUMENTED_LATER and draft.scope.level < FL4:
        raise UnsatisfiableError("documented from 1.3 on only: drivers are not asked before")
    source, target = draft.type("input"), draft.type("output")
    if source in (F32, F16, I32):
        low, high = _span_cast(draft, source, target)
        most = HALF_REACH if F16 in (source, target) else 2.1e9
        draft.tensor("input", low=low, high=high, largest=_largest(draft), accept=(-most, most))
    else:
        any_tensor(draft)
    given = draft["input"]
    if given.type == target and target in QUANTIZED and draft.chance(50):
        draft.wanted["output"] = (given.scale, given.zero_point)
    elif target in QUANTIZED:
        zero_points = info(target).zero_points
        zero = draft.integer(*zero_points) if zero_points else 0
        draft.wanted["output"] = (draft.real(0.001, 3.0), zero)


CAST = OperationDef(
    code=OperationType.CAST,
    doc="Converts stored values; scale and zero point play no part, TENSOR_QUANT8_ASYMM is plain 0 to 255. A float "
    "becomes an integer by truncation toward zero and saturates at 0 and 255 where the result is 8-bit; beyond the "
    "range of int32 the result is left open. From int32 to int32 public validation allows from 1.2 on, the documents "
    "from 1.3 on: drivers are asked from 1.3 on.",
    forms=(form(_source("Source of any shape."), since=FL3),),
    results=(tensor("output", "Shape of input; its scale and zero point mean nothing here.", 1, None),),
    rows=(
        *(_row(f"{ROW_NAMES[a]}_to_{ROW_NAMES[b]}", FL3, a, b) for a in NUMERIC for b in NUMERIC),
        *(_row(name, FL4, kind, kind) for name, kind in IDENTITIES.items()),
    ),
    rules=(
        ValidationRule("SHAPE", "output has the shape of input", RuleKind.SAME_SHAPE, ("output", "input")),
    ),
    infer=infer_same,
    kernel=_cast,
    judging=Judging(
        _bound_cast,
        f"exact, save from int32 to floats and from float32 to float16: {ONE_ROUNDING}",
        LeftOpen("floats that no int32 holds, and NaN where the target has none", _open_cast),
        moves=True,
    ),
    draw=_draw_cast,
    examples=(
        Example("float32_to_int32", {"input": [2.9, -2.9, 0.5, -0.5]}, {"output": [2, -2, 0, 0]}),
        Example(
            "float16_to_quant8_asymm",
            {"input": [254.5, 255.5, 256.0, -1.0, -0.5, 7.75]},
            {"output": [254, 255, 255, 0, 0, 7]},
            {"output": (0.3, 128)},
        ),
        Example("int32_to_float32", {"input": [16777217, -3]}, {"output": [16777216.0, -3.0]}),
    ),
    second_opinion="Python's int() and struct packing, element by element",
)  # fmt: skip

# --- QUANTIZE ---------------------------------------------------------------------------------------------------------


def _draw_ties(draft: Draft) -> None:
    """Values halfway between steps of a dyadic scale, on both sides of zero and beyond both ends."""
    low, high = limits(draft.type("output"))
    zero = draft.choose((low, high, draft.integer(low, high), draft.integer(low, high)))
    scale = 2.0 ** -draft.integer(0, 6)
    rng, shape = draft.source.generator(), draft.shape((1, 4), _largest(draft))
    steps = rng.integers(low - zero - 8, high - zero + 8, shape) + 0.25 * rng.integers(0, 4, shape)
    kind = draft.type("input")
    value = (steps * scale).astype(info(kind).dtype)
    draft.put("input", draft.scope.add(Argument(kind, shape, value=value)))
    draft.wanted["output"] = (scale, zero)


def _draw_quantize(draft: Draft) -> None:
    way = draft.integer(0, 99)
    if way < 20:
        _draw_ties(draft)
        return
    reach = draft.choose((0.02, 2.0, 2.0, 300.0))
    # One-sided data put the zero point at an end.
    low, high = draft.choose(((-reach, reach), (-reach, reach), (0.0, reach), (-reach, 0.0), (reach / 2, reach)))
    accept = None if way < 40 else (-HALF_REACH, HALF_REACH)
    draft.tensor("input", low=low, high=high, largest=_largest(draft), accept=accept)
    if way < 40:
        bottom, top = limits(draft.type("output"))
        width = draft.real(0.3, 0.8) * (high - low)
        scale = width / (top - bottom)
        zero = round(bottom - (low + draft.real(0.1, 0.9) * (high - low - width)) / scale)
        draft.wanted["output"] = (scale, min(max(zero, bottom), top))


QUANTIZE = OperationDef(
    code=OperationType.QUANTIZE,
    doc="Zero point + x / scale, rounded half away from zero and saturated; infinities saturate too, NaN gives the "
    "largest value in public code.",
    forms=(form(_source("Source of any shape."), since=FL3),),
    results=(tensor("output", "Shape of input; scale and zero point are free.", 1, None),),
    rows=tuple(
        _row(f"{ROW_NAMES[source]}_to_{ROW_NAMES[target]}", since, source, target)
        for source in (F32, F16)
        for target, since in ((Q8, FL3), (Q8S, FL4))
    ),
    rules=(),
    infer=infer_same,
    kernel=lambda v: {"output": v["input"]},
    judging=exact(
        "values are only rounded to steps",
        LeftOpen("NaN", lambda v, results: {"output": np.isnan(v["input"])}),
        moves=False,
    ),
    draw=_draw_quantize,
    examples=(
        # Steps 0.5 and -0.5 from zero go away from it; 63.75 and -65 pass the ends.
        Example(
            "float32_to_quant8_asymm_signed",
            {"input": [0.125, -0.125, 0.375, 63.75, -65.0, 0.1]},
            {"output": [1, -1, 2, 127, -128, 0]},
            {"output": (0.25, 0)},
        ),
    ),
    second_opinion="round half away in rational numbers, element by element",
)  # fmt: skip

# --- DEQUANTIZE -------------------------------------------------------------------------------------------------------

SOURCES = (
    ("quant8_asymm", Q8, FL1),
    ("quant8_symm", Q8Y, FL3),
    ("per_channel", Q8CH, FL3),
    ("quant8_asymm_signed", Q8S, FL4),
)


def _draw_dequantize(draft: Draft) -> None:
    reach = draft.choose((0.5, 2.0, 20.0))
    # 256 elements at most: as there are 256 results, the rounding errors of more repeat and do not cancel.
    highest, largest = draft.choose(((2, 16), (3, 6), (4, 4)))
    ranks = (1 if draft.chance(30) else highest, highest)
    if draft.type("input") != Q8CH:
        draft.tensor("input", ranks=ranks, largest=largest, low=-reach, high=reach)
        return
    shape = draft.shape(ranks, largest)
    draft.tensor("input", shape, low=-reach, high=reach, channel_dim=draft.integer(0, len(shape) - 1))


def _dequantize_rows() -> tuple[TypeRow, ...]:
    return tuple(
        _row(f"{name}_to_{ROW_NAMES[kind]}", max(since, first), source, kind)
        for name, source, since in SOURCES
        for kind, first in ((F32, FL1), (F16, FL3))
    )


DEQUANTIZE = OperationDef(
    code=OperationType.DEQUANTIZE,
    doc="Scale * (q - zero point); per channel the scale of the element's channel. Signed input is documented from 1.3 "
    "on, where its type begins, though public validation names 1.2.",
    forms=(form(_source("Quantised source.", 4)),),
    results=(tensor("output", "Shape of input.", 1, 4),),
    rows=_dequantize_rows(),
    rules=(rank_rule("RANK_INPUT", "input", 1, 4),),
    infer=infer_same,
    kernel=lambda v: {"output": v["input"]},
    judging=Judging(
        _bound_affine,
        f"{TWO_ROUNDINGS}; to float32 from a zero point other than 0: "
        + half_units(1, "2 * scale * (largest |q| + |zero point|)"),
    ),
    draw=_draw_dequantize,
    examples=(
        Example(
            "quant8_asymm_to_float32",
            {"input": [0, 100, 255]},
            {"output": [-25.0, 0.0, 38.75]},
            {"input": (0.25, 100)},
        ),
        Example(
            "per_channel_to_float16",
            {"input": [[1, -128], [2, 127]]},
            {"output": [[0.5, -32.0], [1.0, 31.75]]},
            {"input": ((0.5, 0.25), 1)},  # one scale for each index of dimension 1
        ),
    ),
    second_opinion="products in rational numbers, element by element",
)
