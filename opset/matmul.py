"""Matrix products: FULLY_CONNECTED BATCH_MATMUL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nnhal.operations import OperandDef, RuleKind, TypeRow, ValidationRule
from nnhal.types import FL1, FL3, FL4, FL6, Array, OperandType, OperationType, info
from opset.call import Argument, Call, with_shape
from opset.definition import (
    ACTIVATION,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Example,
    ExecutionRule,
    LeftOpen,
    OperationDef,
    Shapes,
    activation_rule,
    boolean,
    form,
    rank_rule,
    same,
    sums,
    tensor,
)
from opset.drawing import Draft
from opset.quantization import QUANTIZED, float32, limits
from opset.values import Values

INT32_LIMITS = (-(2**31), 2**31 - 1)
SCALE_SLACK = 1e-6  # how far a bias' scale may be from the product, relative

# --- FULLY_CONNECTED --------------------------------------------------------------------------------------------------

SHAPED = ("input", "weights", "bias")  # shapes are checked when a model is validated, once all three ranks are known


def _infer_dense(call: Call) -> Shapes:
    units, size = call["weights"].shape
    return {"output": (math.prod(call["input"].shape) // max(size, 1), units)}


def _dense(v: Values) -> Mapping[str, Array]:
    size = v.call["weights"].shape[1]
    (x, x_scale), (w, w_scale) = v.factor("input", size), v.factor("weights", size)
    total = v.summing("input").matmul(x.reshape(-1, size), w.T)
    if v.quantized("input"):
        dtype = v.arithmetic.dtype
        total = (total + v.stored("bias")).astype(dtype) * dtype(x_scale * w_scale)
    else:
        total = total + v["bias"]
    return {"output": v.activate(total)}


def bias_scale_rule(first: str, second: str) -> ExecutionRule:
    """The scale of a quantised operation's bias is the product of the scales of what it is added to."""

    def holds(call: Call) -> bool:
        if call["bias"].type != I32:
            return True
        due = float32(call[first].scale * call[second].scale)
        return abs(call["bias"].scale - due) <= SCALE_SLACK * min(call["bias"].scale, due)

    def broken(call: Call) -> Call | None:
        bias = call["bias"]
        return call.with_input("bias", replace(bias, scale=bias.scale * 2)) if bias.type == I32 else None

    return ExecutionRule("BIAS_SCALE", f"a TENSOR_INT32 bias has scale {first} * {second}", holds, broken)


def _near_zero_point(draft: Draft, name: str, shape: tuple[int, ...]) -> Argument:
    """A quantised operand of small numbers: the output scale then falls below the product of the inputs' scales."""
    kind = draft.type(name)
    low, high = limits(kind)
    zero = draft.integer(low + 2, high - 2)
    value = draft.source.generator().integers(zero - 2, zero + 3, shape).astype(info(kind).dtype)
    return draft.put(name, draft.scope.add(Argument(kind, shape, draft.real(0.01, 0.1), zero, value=value)))


def _spread(argument: Argument) -> float:
    """Root mean square of an operand's values; of its centred steps where it is quantised."""
    if argument.value is None:
        return 1.0
    value = argument.value.astype(np.float64).reshape(-1)
    if argument.type in QUANTIZED:
        value -= argument.zero_point
    return math.sqrt(float(value @ value) / max(value.size, 1))


REACH = {2: 1.2, 3: 6.0}  # how large sums should be under RELU1 and RELU6


def _span(draft: Draft, name: str) -> tuple[float, float]:
    """Quantised operands are one-sided at times: sums of one sign show arithmetic that truncates toward zero."""
    both = (-2.0, 2.0)
    return draft.choose((both, (0.0, 2.0), (-2.0, 0.0))) if draft.type(name) in QUANTIZED else both


def _draw_dense(draft: Draft) -> None:
    code = draft.activation()
    quantized = draft.type("input") in QUANTIZED
    # Fine outputs need level 3; below it the output scale must exceed the product of scales.
    tiny = quantized and draft.scope.level >= FL3 and draft.chance(12)
    largest = draft.choose((4, 7, 14))
    low, high = _span(draft, "input")
    if tiny:
        x = _near_zero_point(draft, "input", draft.shape((2, 4), largest))
    else:
        x = draft.tensor("input", ranks=(2, 4), largest=largest, low=low, high=high)
    whole = math.prod(x.shape)
    # The input is flattened: its last dimension need not be the input size.
    size = x.shape[-1]
    if draft.chance(30):
        size = draft.choose([n for n in range(1, min(whole, 32) + 1) if whole % n == 0])
    units = draft.integer(1, draft.choose((6, 18)))
    if tiny:
        w = _near_zero_point(draft, "weights", (units, size))
    else:
        # Sums about as large as the activation's range: some are clipped, some are not. One-sided ones are positive
        # where negative ones would all become 0.
        rms = _spread(x) * (x.scale if quantized else 1.0)
        wide = REACH[code] * math.sqrt(3) / (max(rms, 0.1) * math.sqrt(size)) if code in REACH else 2.0
        if code in (0, 2):
            low, high = _span(draft, "weights")
        w = draft.tensor("weights", (units, size), low=wide * low / 2, high=wide * high / 2)
    # In proportion to the sum, so that a bias that is left out shows.
    reach = 1.5 * _spread(x) * _spread(w) * math.sqrt(size)
    if quantized:
        reach = min(max(round(reach), 3), 10**8)
        scale = float32(x.scale * w.scale)
        draft.tensor("bias", (units,), low=-reach, high=reach, scale=scale, zero_point=0)
    else:
        reach = float32(max(reach, 0.1))
        draft.tensor("bias", (units,), low=-reach, high=reach)


def _dense_row(kind: OperandType) -> dict[str, OperandType]:
    bias = I32 if kind in QUANTIZED else kind
    return {"input": kind, "weights": kind, "bias": bias, "output": kind}


FULLY_CONNECTED = OperationDef(
    code=OperationType.FULLY_CONNECTED,
    doc="act(x . weights^T + bias), the input flattened to [batch, input_size]. Quantised: the sum of "
    "(x - zero point) * (w - zero point) and the bias are exact integers, scaled once by the product of the scales "
    "over the output's scale. Up to 1.1 an output scale that is not above that product needs 1.2; from 1.2 on any "
    "output scale is legal. Shapes are checked when a model is validated, once all three ranks are known.",
    forms=(
        form(
            tensor("input", "Source; flattened to [batch, input_size].", 2, 4),
            tensor("weights", "[num_units, input_size].", 2, 2),
            tensor("bias", "[num_units]; TENSOR_INT32 with the product of the scales where quantised.", 1, 1),
            ACTIVATION,
        ),
    ),
    results=(tensor("output", "[elements / input_size, num_units]; scale and zero point are free.", 2, 2),),
    rows=(
        TypeRow("float32", FL1, _dense_row(F32)),
        TypeRow("quant8_asymm", FL1, _dense_row(Q8)),
        TypeRow("float16", FL3, _dense_row(F16)),
        TypeRow("quant8_asymm_signed", FL4, _dense_row(Q8S)),
    ),
    rules=(
        replace(rank_rule("RANK_INPUT", "input", 2, 4), known_ranks=SHAPED),
        replace(rank_rule("RANK_WEIGHTS", "weights", 2, 2), known_ranks=SHAPED),
        replace(rank_rule("RANK_BIAS", "bias", 1, 1), known_ranks=SHAPED),
        ValidationRule(
            "INPUT_SIZE",
            "the elements of input are a multiple of dimension 1 of weights",
            RuleKind.MULTIPLE,
            ("input", "weights"),
            (1,),
            known_ranks=SHAPED,
        ),
        ValidationRule(
            "BIAS_LENGTH",
            "bias has as many elements as dimension 0 of weights",
            RuleKind.SAME_DIMENSION,
            ("bias", "weights"),
            (0, 0),
            known_ranks=SHAPED,
        ),
        ValidationRule(
            "OUTPUT_SCALE",
            "the scale of output exceeds the product of the scales of input and weights",
            RuleKind.SCALE_ABOVE_PRODUCT,
            ("output", "input", "weights"),
            until=FL3,
            types=(Q8,),
        ),
        bias_scale_rule("input", "weights"),
        activation_rule(),
    ),
    infer=_infer_dense,
    kernel=_dense,
    judging=sums(
        _dense,
        lambda call: call["weights"].shape[1] + 1,
        "(products + 1)",
        "the sum of absolute products and bias",
    ),
    draw=_draw_dense,
    examples=(
        Example(
            "float32",
            {
                "input": [[1.0, 2.0, -1.0], [0.5, -2.0, 4.0]],
                "weights": [[2.0, 0.5, 1.0], [-1.0, 3.0, 2.0]],
                "bias": [0.25, -4.0],
                "activation": 1,
            },
            {"output": [[2.25, 0.0], [4.25, 0.0]]},
        ),
        # Centred: x = (2, -1), w = (3, 4) and (-2, 1); sums 2 and -5, with bias 9 and -6, times 0.25 / 0.5.
        Example(
            "quant8_asymm",
            {"input": [[130, 127]], "weights": [[13, 14], [8, 11]], "bias": [7, -1], "activation": 0},
            {"output": [[105, 97]]},
            {"input": (0.5, 128), "weights": (0.5, 10), "bias": (0.25, 0), "output": (0.5, 100)},
        ),
    ),
    second_opinion="ONNX reference evaluator (Gemm); for quantised types a loop over elements in rational numbers",
)

# --- BATCH_MATMUL -----------------------------------------------------------------------------------------------------


def _turned(shape: tuple[int, ...], adjoint: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if adjoint else shape


def _sides(call: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the two operands after the transpositions asked for."""
    return tuple(  # type: ignore[return-value]
        _turned(call[name].shape, bool(call[f"adj_{name}"].item())) for name in ("lhs", "rhs")
    )


def _infer_batch(call: Call) -> Shapes:
    left, right = _sides(call)
    return {"output": (*left[:-1], right[-1])}


def _batch(v: Values) -> Mapping[str, Array]:
    size = _sides(v.call)[0][-1]
    (a, a_scale), (b, b_scale) = v.factor("lhs", size), v.factor("rhs", size)
    a = a.swapaxes(-1, -2) if v.flag("adj_lhs") else a
    b = b.swapaxes(-1, -2) if v.flag("adj_rhs") else b
    total = v.summing("lhs").matmul(a, b)
    if v.quantized("lhs"):
        dtype = v.arithmetic.dtype
        total = total.astype(dtype) * dtype(a_scale * b_scale)
    return {"output": total}


def _open_batch(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    del results
    if v.call["lhs"].type != I32:
        return {}
    total = _batch(v)["output"]
    return {"output": (total < INT32_LIMITS[0]) | (total > INT32_LIMITS[1])}


def _draw_batch(draft: Draft) -> None:
    flags = draft.chance(40), draft.chance(40)
    # Integers: small ones, or as large as sums in 32 bits allow, so that float arithmetic shows.
    low, high = _span(draft, "lhs")
    if draft.type("lhs") == I32:
        high = draft.choose((9, 100, 10_000))
        low = -high
    left = draft.tensor("lhs", ranks=(2, 4), largest=draft.choose((5, 8, 11)), low=low, high=high)
    inner = left.shape[-2 if flags[0] else -1]
    right = _turned((*left.shape[:-2], inner, draft.integer(1, draft.choose((5, 16)))), flags[1])
    if draft.type("rhs") != I32:
        low, high = _span(draft, "rhs")
    draft.tensor("rhs", right, low=low, high=high)
    draft.scalar("adj_lhs", flags[0])
    draft.scalar("adj_rhs", flags[1])


def _ranks_hold(call: Call) -> bool:
    return 2 <= call["lhs"].rank == call["rhs"].rank <= 4


def _break_inner(call: Call) -> Call:
    shape = list(call["lhs"].shape)
    shape[-2 if call["adj_lhs"].item() else -1] += 1
    return with_shape(call, "lhs", tuple(shape))


def _matrices(name: str, side: str) -> OperandDef:
    return tensor(name, f"{side} matrices [..., r, c]; own scale and zero point.", 2, 4)


BATCH_MATMUL = OperationDef(
    code=OperationType.BATCH_MATMUL,
    doc="Matrix products over the leading dimensions, either operand transposed in its last two dimensions on request. "
    "The documents let the two flags be left out; public validation demands four inputs, so they are always given. "
    "Leading dimensions are equal (public code does not compare them). TENSOR_QUANT8_ASYMM is not among the types. "
    "An integer sum beyond 32 bits wraps in public code and is left open here.",
    forms=(
        form(
            _matrices("lhs", "Left"),
            _matrices("rhs", "Right"),
            boolean("adj_lhs", "Whether the left matrices are transposed."),
            boolean("adj_rhs", "Whether the right matrices are transposed."),
            since=FL6,
        ),
    ),
    results=(
        tensor("output", "Leading dimensions of lhs, then rows and columns; scale and zero point are free.", 2, 4),
    ),
    rows=same(("lhs", "rhs", "output"), (F32, FL6), (F16, FL6), (Q8S, FL6), (I32, FL6)),
    rules=(
        ExecutionRule(
            "RANKS",
            "lhs and rhs have one rank, 2 to 4",
            _ranks_hold,
            lambda call: with_shape(call, "lhs", (1, *call["lhs"].shape)),
        ),
        ExecutionRule(
            "INNER",
            "the inner dimensions are equal after the transpositions",
            lambda call: _sides(call)[0][-1] == _sides(call)[1][-2],
            _break_inner,
        ),
    ),
    infer=_infer_batch,
    kernel=_batch,
    judging=sums(
        _batch,
        lambda call: _sides(call)[0][-1],
        "(products)",
        left_open=LeftOpen("INT32 sums that do not fit into 32 bits: they may wrap or not", _open_batch),
    ),
    draw=_draw_batch,
    examples=(
        Example(
            "float32",
            {
                "lhs": [[[1.0, 2.0], [3.0, 4.0], [-1.0, 0.5]]],
                "rhs": [[[2.0, -1.0, 0.0], [1.0, 1.0, 4.0]]],
                "adj_lhs": True,
                "adj_rhs": True,
            },
            {"output": [[[-1.0, 0.0], [0.0, 8.0]]]},
        ),
        Example(
            "int32",
            {"lhs": [[65536, 1]], "rhs": [[256], [1]], "adj_lhs": False, "adj_rhs": False},
            {"output": [[16777217]]},  # a float32 sum would give 16777216
        ),
        # Centred: (2, -3) . (5, -1) = 13, times 0.5 * 0.25 / 0.5 = 3.25 above the zero point.
        Example(
            "quant8_asymm_signed",
            {"lhs": [[12, 7]], "rhs": [[0], [-6]], "adj_lhs": False, "adj_rhs": False},
            {"output": [[-17]]},
            {"lhs": (0.5, 10), "rhs": (0.25, -5), "output": (0.5, -20)},
        ),
    ),
    second_opinion="ONNX reference evaluator (MatMul); for integers a loop over elements in exact numbers",
)
