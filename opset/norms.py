"""Division by the size or spread of what lies around: L2_, LOCAL_RESPONSE_ and INSTANCE_NORMALIZATION."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from nnhal.operations import Form, RuleKind, TypeRow, ValidationRule
from nnhal.types import FL1, FL3, FL4, Array, OperandType, OperationType
from opset.call import Argument, Call, with_value
from opset.definition import (
    F16,
    F32,
    Q8,
    Q8S,
    Bound,
    Example,
    ExecutionRule,
    Judging,
    OperationDef,
    Quantization,
    form,
    half_units,
    int32,
    rank_rule,
    real_scalar,
    same,
    tensor,
)
from opset.drawing import Draft, within
from opset.elementwise import infer_same
from opset.normalization import axis_rule, fixed_quantization_rule
from opset.quantization import QUANTIZED, limits
from opset.shapes import normal_axis
from opset.values import Values
from opset.windows import (
    MANDATORY_LAYOUT,
    channels_last,
    draw_image,
    execution_rank_rule,
    in_layout,
    is_nchw,
)

UNIT_SCALE = 1 / 128
SMALLEST_NORM = 1e-6  # a smaller norm counts as this one
ROOT_ROUNDINGS = 4  # a square root that is off by one or two units, and a quotient
LEAST_NORM = 0.05  # drawn norms: squares stay normal numbers of float16
LEAST_VALUE = 1 / 16  # drawn floats that are not 0
REACH = 8.0  # largest magnitude of an operand taken from a scope: sums of squares stay below float16's largest number
POWER_ROUNDINGS = 4
OPTIONAL_AXIS = int32("axis", "Axis, in [-n, n).", -1)


def _rank_4(operand: str) -> ValidationRule:
    text = f"{operand} has rank 4"
    return ValidationRule("RANK_4", text, RuleKind.RANK_KNOWN, (operand,), (4, 4), until=FL3)


def _ranks(draft: Draft) -> tuple[int, int]:
    """Rank 4 where the level takes no other, and often beside; the axis is then the last."""
    return (4, 4) if draft.scope.level < FL3 or draft.chance(40) else (1, 4)


def _axis(v: Values) -> int:
    return normal_axis(v.integer("axis"), v.call["input"].rank)


def _put_axis(draft: Draft, axis: int, rank: int) -> None:
    draft.scalar("axis", axis - rank if draft.chance(50) else axis)


# --- L2_NORMALIZATION -------------------------------------------------------------------------------------------------


def _norm(x: Array, axis: int) -> Array:
    return np.asarray(np.linalg.norm(x, axis=axis, keepdims=True))


def _l2(v: Values) -> Mapping[str, Array]:
    """The scale of a quantised input cancels, so its steps are exact integers."""
    x, axis = v.factor("input")[0].astype(v.arithmetic.dtype), _axis(v)
    size = np.sqrt(v.sum(np.square(x), axis, keepdims=True))
    return {"output": x / np.maximum(size, x.dtype.type(SMALLEST_NORM))}


def _l2_bound(v: Values, results: Mapping[str, Array]) -> Bound:
    """Of the size of the quotient: an error in the sum of squares counts half."""
    return Bound(np.abs(results["output"]), v.call["input"].shape[_axis(v)] / 2 + ROOT_ROUNDINGS)


def _no_zero_slice(call: Call) -> bool:
    source = call["input"]
    axis = normal_axis(call.integer("axis"), source.rank)
    return source.value is None or bool(((source.value != source.zero_point).any(axis=axis)).all())


def _l2_quantization(call: Call) -> Quantization:
    return {Q8: {"output": (UNIT_SCALE, 128)}, Q8S: {"output": (UNIT_SCALE, 0)}}.get(call["input"].type, {})


def _real(argument: Argument) -> Array:
    assert argument.value is not None
    return np.multiply(argument.value.astype(np.float64) - argument.zero_point, argument.scale or 1.0)


def _lifted(zero_point: int, hollow: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """No slice has a norm near 0, save those that are made hollow."""

    def adjust(stored: Array) -> Array:
        if stored.dtype.kind == "f":
            least = stored.dtype.type(LEAST_VALUE)
            return hollow(np.where(np.abs(stored) < least, stored + np.copysign(least, stored), stored))
        beside = zero_point + (1 if zero_point <= 0 else -1)
        return hollow(np.where(stored == zero_point, stored.dtype.type(beside), stored))

    return adjust


def _hollow(draft: Draft, shape: tuple[int, ...], axis: int, fill: int) -> Callable[[Array], Array]:
    """Zeros among the values, and, where the level says what becomes of them, whole slices of zeros."""
    whole = draft.scope.level >= FL4 and draft.chance(15)
    seed = draft.integer(0, 2**31)

    def change(stored: Array) -> Array:
        rng = np.random.default_rng(seed)
        holes = rng.random(shape) < 0.1
        holes &= ~holes.all(axis=axis, keepdims=True)
        if whole:
            thin = tuple(1 if d == axis else size for d, size in enumerate(shape))
            holes |= rng.random(thin) < 0.3
        return np.where(holes, stored.dtype.type(fill), stored)

    return change


def _draw_l2(draft: Draft) -> None:
    kind, low = draft.type("input"), _ranks(draft)
    place = draft.integer(0, 11) if draft.has("axis") else 11  # 11 is the last axis at any rank

    def suits(a: Argument) -> bool:
        return (
            a.type == kind
            and low[0] <= a.rank <= low[1]
            and within(a, -REACH, REACH)
            and bool((_norm(_real(a), place % a.rank) >= LEAST_NORM).all())
        )

    found = draft.scope.find(suits)
    if found is None:
        shape = draft.shape(low, draft.choose((4, 6, 11)))
        scale, zero_point = None, None
        if kind in QUANTIZED:
            ends = limits(kind)
            zero_point = draft.choose(ends) if draft.chance(20) else draft.integer(*ends)
            scale = draft.real(0.002, 0.06)
        hollow = _hollow(draft, shape, place % len(shape), zero_point or 0)
        found = draft.tensor(
            "input", shape, scale=scale, zero_point=zero_point, adjust=_lifted(zero_point or 0, hollow),
            fits=suits,
        )  # fmt: skip
    draft.put("input", found)
    _put_axis(draft, place % found.rank, found.rank)


L2_NORMALIZATION = OperationDef(
    code=OperationType.L2_NORMALIZATION,
    doc="input / sqrt(sum of squares along an axis); the last one unless given. A slice of zeros gives zeros from 1.3 "
    "on and is left open before, so no case of an older level has one. Quantised results have scale 1/128 and zero "
    "point 128 (signed 0), so that 1 saturates. Public code takes an inverse square root in fixed point; one rounding "
    "at the end is the definition. Before 1.2 only rank 4, and no axis.",
    forms=(Form("default", (tensor("input", "Source of rank n.", 1, 4), OPTIONAL_AXIS), ((1, FL1), (2, FL3))),),
    results=(tensor("output", "Shape of input; a quantised one has scale 1/128, zero point 128 (signed 0).", 1, 4),),
    rows=same(("input", "output"), (F32, FL1), (F16, FL3), (Q8, FL3), (Q8S, FL4)),
    rules=(
        rank_rule("RANK_INPUT", "input", 1, 4),
        _rank_4("input"),
        axis_rule("input"),
        ExecutionRule("NOT_ZERO", "no slice along the axis is zero throughout", _no_zero_slice, lambda call: None, FL4),
        fixed_quantization_rule("scale 1/128 and zero point 128, or 0 where signed"),
    ),
    infer=infer_same,
    kernel=_l2,
    judging=Judging(_l2_bound, half_units(f"(elements along the axis / 2 + {ROOT_ROUNDINGS})", "the result")),
    draw=_draw_l2,
    quantization=_l2_quantization,
    examples=(
        Example(
            "float32/default/in1",
            {"input": [[[[3.0, -4.0], [0.0, 2.0]]]]},
            {"output": [[[[0.6, -0.8], [0.0, 1.0]]]]},
        ),
        # Along axis 0: 3 and -4 steps of any size; 0.6 is 76.8 steps, -0.8 is -102.4. A column of zeros.
        Example(
            "quant8_asymm/default/in2",
            {"input": [[13, 10], [6, 10]], "axis": -2},
            {"output": [[205, 128], [26, 128]]},
            {"input": (0.7, 10), "output": (UNIT_SCALE, 128)},
        ),
    ),
    second_opinion="loops in rational numbers under a square root of 40 digits",
)

# --- LOCAL_RESPONSE_NORMALIZATION -------------------------------------------------------------------------------------


def _taps(v: Values) -> int:
    """Elements to each side that a window can reach."""
    return min(v.integer("radius"), max(v.call["input"].shape[_axis(v)] - 1, 0))


def _response(v: Values) -> Array:
    """Bias + alpha * sum of squares within the radius, cut at the ends."""
    axis, reach = _axis(v), _taps(v)
    squares = np.moveaxis(v["input"], axis, 0) ** 2
    size = len(squares)
    padded = np.pad(squares, [(reach, reach)] + [(0, 0)] * (squares.ndim - 1))
    total = v.sum(np.stack([padded[i : i + size] for i in range(2 * reach + 1)]), 0)
    return np.moveaxis(v["bias"] + v["alpha"] * total, 0, axis)


def _local(v: Values) -> Mapping[str, Array]:
    return {"output": v["input"] * np.power(_response(v), -v["beta"])}


def _local_bound(v: Values, results: Mapping[str, Array]) -> Bound:
    """An error of the base counts beta times; kernels raise e to beta * ln(base)."""
    beta = np.abs(v["beta"])
    moved = np.abs(results["output"]) * (1 + beta + beta * np.abs(np.log(np.abs(_response(v)))))
    return Bound(np.where(np.isfinite(moved), moved, 0.0), 2 * _taps(v) + 1 + POWER_ROUNDINGS)


def _draw_local(draft: Draft) -> None:
    common = draft.chance(40)  # what most models ask for, and all that some drivers have
    ranks = (4, 4) if common else _ranks(draft)
    x = draft.tensor("input", ranks=ranks, largest=draft.choose((4, 6, 11)), accept=(-REACH, REACH))
    axis = x.rank - 1 if common else draft.integer(0, x.rank - 1)
    _put_axis(draft, axis, x.rank)
    size = x.shape[axis] if draft.has("axis") else x.shape[-1]
    draft.scalar("radius", draft.integer(0, 2) if draft.chance(70) else draft.integer(0, size + 2))
    draft.scalar("bias", 1.0 if draft.chance(20) else draft.real(0.3, 4.0))
    draft.scalar("alpha", draft.real(0.1, 3.0))
    draft.scalar("beta", draft.choose((0.5, 0.75, 1.0)) if draft.chance(30) else draft.real(0.2, 1.3))


def _half(kind: OperandType) -> OperandType:
    """The scalar type beside a tensor type."""
    return OperandType.FLOAT16 if kind == F16 else OperandType.FLOAT32


def _rows(names: tuple[str, ...], *rows: TypeRow) -> tuple[TypeRow, ...]:
    """Type rows whose scalars of those names have the tensor's type."""
    return tuple(
        TypeRow(row.id, row.since, {**row.types, **dict.fromkeys(names, _half(row.types["input"]))}) for row in rows
    )


LOCAL_RESPONSE_NORMALIZATION = OperationDef(
    code=OperationType.LOCAL_RESPONSE_NORMALIZATION,
    doc="x * (bias + alpha * sum of x^2 within the radius)^-beta along an axis, the last one unless given; the window "
    "is cut at the ends and its size does not divide the sum. Before 1.2 only rank 4, and no axis. A bias of 0 is "
    "against the documents and never drawn.",
    forms=(
        Form(
            "default",
            (
                tensor("input", "Source of rank n.", 1, 4),
                int32("radius", "Elements to each side that count."),
                real_scalar("bias", "Added to the sum, so that it is not 0; FLOAT16 beside float16 tensors."),
                real_scalar("alpha", "Factor of the sum; FLOAT16 beside float16 tensors."),
                real_scalar("beta", "Exponent; FLOAT16 beside float16 tensors."),
                OPTIONAL_AXIS,
            ),
            ((5, FL1), (6, FL3)),
        ),
    ),
    results=(tensor("output", "Shape of input.", 1, 4),),
    rows=_rows(("bias", "alpha", "beta"), *same(("input", "output"), (F32, FL1), (F16, FL3))),
    rules=(
        rank_rule("RANK_INPUT", "input", 1, 4),
        _rank_4("input"),
        axis_rule("input"),
        ExecutionRule(
            "RADIUS",
            "radius is at least 0",
            lambda call: call.integer("radius") >= 0,
            lambda call: with_value(call, "radius", -1),
        ),
    ),
    infer=infer_same,
    kernel=_local,
    judging=Judging(
        _local_bound,
        half_units(
            f"(elements of the window + {POWER_ROUNDINGS})",
            "|result| * (1 + |beta| + |beta * ln(base)|), the base being what is raised to -beta",
        ),
    ),
    draw=_draw_local,
    examples=(
        # Sums of squares 5, 14, 13; 1 + 0.5 * them = 3.5, 8, 7.5; to the power of -1.
        Example(
            "float32/default/in5",
            {"input": [[[[1.0, -2.0, 3.0]]]], "radius": 1, "bias": 1.0, "alpha": 0.5, "beta": 1.0},
            {"output": [[[[1 / 3.5, -0.25, 0.4]]]]},
        ),
        # Along axis 0 with radius 0: 2 / sqrt(5 + 4) and 4 / sqrt(5 + 16 * 1) apart.
        Example(
            "float32/default/in6",
            {"input": [[2.0], [4.0]], "radius": 0, "bias": 5.0, "alpha": 1.0, "beta": 0.5, "axis": 0},
            {"output": [[2 / 3], [4 / math.sqrt(21)]]},
        ),
    ),
    second_opinion="loops over elements with a logarithm and an exponential of 40 digits",
)

# --- INSTANCE_NORMALIZATION -------------------------------------------------------------------------------------------


def _instances(v: Values) -> tuple[Array, Array, Array, int]:
    """Channels-last image, its mean and 1 / sqrt(variance + epsilon) by image and channel, elements behind each."""
    x = channels_last(v["input"], is_nchw(v.call))
    count = x.shape[1] * x.shape[2]
    number = x.dtype.type(max(count, 1))
    mean = v.sum(x, (1, 2), keepdims=True) / number
    variance = v.sum((x - mean) ** 2, (1, 2), keepdims=True) / number
    return x, mean, 1 / np.sqrt(variance + v["epsilon"]), count


def _instance(v: Values) -> Mapping[str, Array]:
    x, mean, inverse, _ = _instances(v)
    return {"output": in_layout((x - mean) * inverse * v["gamma"] + v["beta"], is_nchw(v.call))}


def _instance_bound(v: Values, results: Mapping[str, Array]) -> Bound:
    """Errors of mean, difference and root: some take the variance as mean of squares less square of the mean."""
    del results
    x, mean, inverse, count = _instances(v)
    square = (x * x).mean(axis=(1, 2), keepdims=True)
    size = np.abs(x) + np.abs(x).mean(axis=(1, 2), keepdims=True)
    spread = np.abs(x - mean) * (1 + square * inverse**2)
    moved = (size + spread) * inverse * np.abs(v["gamma"]) + np.abs(v["beta"])
    return Bound(in_layout(moved, is_nchw(v.call)), count + ROOT_ROUNDINGS + 2)


def _draw_instance(draft: Draft) -> None:
    middle = draft.choose((0.0, 0.0, 1.0, -1.5))
    draw_image(draft, (middle - 2.0, middle + 2.0), REACH, largest=7)
    draft.scalar("gamma", draft.real(-2.0, -0.3) if draft.chance(25) else draft.real(0.3, 3.0))
    draft.scalar("beta", draft.real(-2.0, 2.0))
    draft.scalar("epsilon", draft.choose((0.001, 0.01)) if draft.chance(40) else draft.real(0.05, 1.0))


INSTANCE_NORMALIZATION = OperationDef(
    code=OperationType.INSTANCE_NORMALIZATION,
    doc="gamma * (x - mean) / sqrt(variance + epsilon) + beta, with the mean and the population variance over height "
    "and width of each image and channel. Named n-dimensional and of rank 4 in one text; rank 4 is what public code "
    "takes. Public code computes float16 in float16, which the bound allows for.",
    forms=(
        form(
            tensor("input", "Image batch: [batch, height, width, depth], or with the channels first.", 4, 4),
            real_scalar("gamma", "Factor; FLOAT16 beside float16 tensors."),
            real_scalar("beta", "Offset; FLOAT16 beside float16 tensors."),
            real_scalar("epsilon", "Added to the variance; FLOAT16 beside float16 tensors."),
            MANDATORY_LAYOUT,
            since=FL3,
        ),
    ),
    results=(tensor("output", "Shape of input.", 4, 4),),
    rows=_rows(("gamma", "beta", "epsilon"), *same(("input", "output"), (F32, FL3), (F16, FL3))),
    rules=(execution_rank_rule("RANK_INPUT", "input", 4),),
    infer=infer_same,
    kernel=_instance,
    judging=Judging(
        _instance_bound,
        half_units(
            f"(n + {ROOT_ROUNDINGS + 2})",
            "(|x| + mean |x| + |x - mean| * (1 + mean x^2 / (variance + epsilon))) * |gamma| / "
            "sqrt(variance + epsilon) + |beta|, with n elements of each image and channel",
        ),
    ),
    draw=_draw_instance,
    examples=(
        # Channel 0: mean 2, variance 1, over sqrt(4). Channel 1: all alike.
        Example(
            "float32",
            {"input": [[[[1.0, 5.0], [3.0, 5.0]]]], "gamma": 4.0, "beta": 0.5, "epsilon": 3.0, "nchw": False},
            {"output": [[[[-1.5, 0.5], [2.5, 0.5]]]]},
        ),
    ),
    second_opinion="ONNX's InstanceNormalization; NumPy's mean and variance plane by plane",
)
