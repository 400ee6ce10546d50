"""What draws reach of that which test suites often miss: how many cases of a plan, by demand and operation.

`python -m tests.draw_reach` prints the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from conformance.cases import drawn, origin
from nnhal.model import is_tensor
from nnhal.types import Array, FusedActivation, OperationType, PaddingScheme
from opset import OPSET
from opset.call import Argument, Call, with_value
from opset.definition import OperationDef
from opset.evaluate import run_call
from opset.filters import filter_size
from opset.quantization import FLOATS, QUANTIZED, limits
from opset.shapes import same_padding
from opset.spreads import spreads_of
from opset.values import ACTIVATION_RANGE, Values
from opset.windows import image_size, is_nchw

Op = OperationType
NUMBERS = 48  # cases of each signature that every plan of profile `quick` has
LEAST = 3  # cases that each operation should have of a demand
ELEMENTS = 32  # fewer say nothing about the rounding mode
PRIMES = frozenset({3, 5, 7, 11, 13, 17, 19, 23})

MOVES = frozenset(
    {
        Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS, Op.TRANSPOSE, Op.CONCATENATION, Op.SPLIT, Op.PACK, Op.SLICE,
        Op.STRIDED_SLICE, Op.GATHER, Op.EMBEDDING_LOOKUP, Op.HASHTABLE_LOOKUP, Op.SELECT, Op.PAD, Op.PAD_V2,
        Op.MIRROR_PAD, Op.REVERSE, Op.TILE, Op.CHANNEL_SHUFFLE, Op.DEPTH_TO_SPACE, Op.SPACE_TO_DEPTH,
        Op.BATCH_TO_SPACE_ND, Op.SPACE_TO_BATCH_ND, Op.RESIZE_NEAREST_NEIGHBOR,
    }
)  # fmt: skip
CONVOLUTIONS = frozenset({Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.GROUPED_CONV_2D})
POOLS = frozenset({Op.AVERAGE_POOL_2D, Op.L2_POOL_2D, Op.MAX_POOL_2D})
REDUCTIONS = frozenset(
    {Op.MEAN, Op.REDUCE_ALL, Op.REDUCE_ANY, Op.REDUCE_MAX, Op.REDUCE_MIN, Op.REDUCE_PROD, Op.REDUCE_SUM}
)
CELLS = frozenset({Op.LSTM, Op.UNIDIRECTIONAL_SEQUENCE_LSTM, Op.BIDIRECTIONAL_SEQUENCE_LSTM})
PRODUCTS = CONVOLUTIONS | {Op.FULLY_CONNECTED, Op.TRANSPOSE_CONV_2D}  # MUL's output scale must exceed the product


@dataclass(frozen=True)
class Demand:
    """Something that draws should reach.

    Attributes:
        words: what it is.
        concerns: which operations.
        reached: whether a call does.
    """

    words: str
    concerns: Callable[[OperationDef], bool]
    reached: Callable[[Call], bool]


def among(*groups: frozenset[OperationType] | OperationType) -> Callable[[OperationDef], bool]:
    """Operations by name."""
    found = frozenset().union(*(g if isinstance(g, frozenset) else {g} for g in groups))
    return lambda definition: definition.code in found


# --- values -----------------------------------------------------------------------------------------------------------


def floats(call: Call) -> Iterator[Array]:
    """Values of results that are floats."""
    for argument in call.results.values():
        if argument.type in FLOATS and argument.value is not None:
            yield argument.value


def holds(test: Callable[[Array], Array]) -> Callable[[Call], bool]:
    """Whether a float result has an element of some kind."""
    return lambda call: any(bool(test(value).any()) for value in floats(call))


def subnormal(value: Array) -> Array:
    return np.asarray((value != 0) & (np.abs(value) < np.finfo(value.dtype).tiny))


def largest(value: Array) -> Array:
    return np.asarray(np.abs(value) == np.finfo(value.dtype).max)


# --- shapes, axes, operands -------------------------------------------------------------------------------------------


def data(call: Call) -> Argument | None:
    """The first tensor."""
    return next((a for a in call.inputs.values() if is_tensor(a.type) and not a.omitted), None)


def has_tensor(definition: OperationDef) -> bool:
    return definition.code not in (Op.FILL, Op.IF, Op.WHILE)  # what these are given is no tensor, or a graph's


def sized(fits: Callable[[int], bool]) -> Callable[[Call], bool]:
    """Whether a tensor input has a dimension of some size."""
    return lambda call: any(is_tensor(a.type) and any(map(fits, a.shape)) for a in call.inputs.values())


def axes(call: Call) -> list[int]:
    argument = next((a for n, a in call.inputs.items() if n in ("axis", "axes")), None)
    return [] if argument is None or argument.value is None else [int(x) for x in argument.value.reshape(-1)]


def full_reduction(call: Call) -> bool:
    return call["output"].shape == (1,) and call["input"].rank >= 2 and not call["keep_dims"].item()


def omits(call: Call) -> bool:
    return any(argument.omitted for argument in call.inputs.values())


# --- windows ----------------------------------------------------------------------------------------------------------


def window(call: Call) -> tuple[int, int]:
    """Height and width of a filter."""
    if call.definition.code in POOLS:
        return call.integer("filter_h"), call.integer("filter_w")
    return filter_size(call)


def long_stride(call: Call) -> bool:
    height, width = window(call)
    return call.integer("stride_h") > height or call.integer("stride_w") > width


def dilated(call: Call) -> bool:
    return call.has("dilation_w") and max(call.integer("dilation_w"), call.integer("dilation_h")) > 1


def surplus_on_the_right(call: Call) -> bool:
    if "padding_scheme" not in call.inputs or call.integer("padding_scheme") != PaddingScheme.SAME:
        return False
    if call.definition.code == Op.TRANSPOSE_CONV_2D:
        return any(spread.head != spread.tail for spread in spreads_of(call))
    _, height, width, _ = image_size(call["input"].shape, is_nchw(call))
    for axis, length, size in zip("hw", (height, width), window(call), strict=True):
        dilation = call.integer(f"dilation_{axis}") if call.has(f"dilation_{axis}") else 1
        head, tail = same_padding(length, size, call.integer(f"stride_{axis}"), dilation)
        if head != tail:
            return True
    return False


# --- quantisation and clipping ----------------------------------------------------------------------------------------


def free_results(call: Call) -> Iterator[str]:
    """Quantised results whose scale is not fixed by the operation or the inputs."""
    own = {(a.scale, a.zero_point) for a in call.inputs.values() if a.type in QUANTIZED}
    for name, argument in call.results.items():
        if argument.type in QUANTIZED and (argument.scale, argument.zero_point) not in own:
            yield name


def requantizes(definition: OperationDef) -> bool:
    return definition.code in PRODUCTS | {Op.ADD, Op.SUB, Op.MUL, Op.QUANTIZE, Op.CONCATENATION, Op.PRELU,
                                          Op.BATCH_MATMUL, Op.SELECT, Op.HARD_SWISH}  # fmt: skip


def saturates(call: Call) -> bool:
    """At both ends."""
    for name in free_results(call):
        value, ends = call[name].value, limits(call[name].type)
        if value is not None and all((value == end).any() for end in ends):
            return True
    return False


def rounds_enough(call: Call) -> bool:
    """Enough elements between whole steps to tell how they are rounded."""
    results = run_call(call)
    for name in free_results(call):
        exact, (low, high) = results[name].exact, limits(call[name].type)
        apart = np.abs(exact - np.rint(exact))
        if ((apart > 1e-6) & (apart < 0.499) & (exact > low) & (exact < high)).sum() >= ELEMENTS:
            return True
    return False


def has_rounding_tie(call: Call) -> bool:
    results = run_call(call)
    for name in free_results(call):
        part = results[name].exact - np.floor(results[name].exact)
        if (np.abs(part - 0.5) < 1e-9).any():
            return True
    return False


def coarse_product(call: Call) -> bool:
    """The product of the inputs' scales exceeds the output's scale."""
    if call["output"].type not in QUANTIZED:
        return False
    scales = [a for a in call.inputs.values() if a.type in QUANTIZED][:2]
    product = 1.0
    for argument in scales:
        product *= max(argument.channel.scales) if argument.channel else argument.scale
    return product > call["output"].scale


def activates(definition: OperationDef) -> bool:
    operands = {o.name for f in definition.forms for o in f.operands}
    return (
        "activation" in operands
        and definition.code not in CELLS
        and "RNN" not in definition.name
        and (definition.code not in (Op.SVDF, Op.DIV))
    )


def clips(call: Call) -> bool:
    """Whether the activation changes a result by more than a step or a trace."""
    low, high = ACTIVATION_RANGE[FusedActivation(call.integer("activation"))]
    if low is None and high is None:
        return False
    with np.errstate(all="ignore"):
        (value,) = call.definition.kernel(Values(call, linear=True)).values()
    least = 2 * max(a.scale for a in call.results.values()) + 1e-3
    return bool(
        (low is not None and (value < low - least).any()) or (high is not None and (value > high + least).any())
    )


def clip_matters(name: str) -> Callable[[Call], bool]:
    """Whether a result changes when a clip is left out."""

    def reached(call: Call) -> bool:
        if call[name].item() <= 0:
            return False
        with_clip, without = run_call(call), run_call(with_value(call, name, 0.0))
        return any(not np.array_equal(with_clip[n].stored, without[n].stored) for n in with_clip)

    return reached


# --- ties of order ----------------------------------------------------------------------------------------------------


def tied_places(call: Call) -> bool:
    """The largest, or smallest, element stands at two places."""
    value = call["input"].value
    assert value is not None
    axis = call.integer("axis")
    best = np.max if call.definition.code == Op.ARGMAX else np.min
    return bool(((value == best(value, axis=axis, keepdims=True)).sum(axis=axis) > 1).any())


def tied_ranks(call: Call) -> bool:
    """Two equal elements among the k largest."""
    value = call["values"].value
    assert value is not None
    return bool((value[..., 1:] == value[..., :-1]).any())


def omittable(definition: OperationDef) -> bool:
    return any(operand.omittable for form in definition.forms for operand in form.operands)


NEGATIVE = among(
    REDUCTIONS, Op.SOFTMAX, Op.LOG_SOFTMAX, Op.GATHER, Op.ARGMAX, Op.ARGMIN, Op.EXPAND_DIMS, Op.CHANNEL_SHUFFLE,
    Op.L2_NORMALIZATION, Op.LOCAL_RESPONSE_NORMALIZATION,
)  # fmt: skip
DEMANDS = (
    Demand("NaN among what is only moved", among(MOVES, Op.FILL), holds(np.isnan)),
    Demand("infinities among what is only moved", among(MOVES, Op.FILL), holds(np.isinf)),
    Demand("infinities where the largest or smallest is sought", among(Op.REDUCE_MAX, Op.REDUCE_MIN), holds(np.isinf)),
    Demand("subnormals", among(MOVES), holds(subnormal)),
    Demand("-0", among(MOVES, Op.FILL), holds(lambda x: np.signbit(x) & (x == 0))),
    Demand("the largest number of the type", among(MOVES), holds(largest)),
    Demand(
        "a dimension of 1",
        # Of one box or of the background alone nothing is suppressed.
        lambda definition: has_tensor(definition) and definition.code != Op.BOX_WITH_NMS_LIMIT,
        sized(lambda size: size == 1),
    ),
    Demand("an odd prime dimension", has_tensor, sized(lambda size: size in PRIMES)),
    Demand("a stride larger than the filter", among(CONVOLUTIONS, POOLS, Op.TRANSPOSE_CONV_2D), long_stride),
    Demand("dilation", among(Op.CONV_2D, Op.DEPTHWISE_CONV_2D), dilated),
    Demand(
        "SAME padding with one more at the end",
        among(CONVOLUTIONS, POOLS, Op.TRANSPOSE_CONV_2D),
        surplus_on_the_right,
    ),
    Demand("a negative axis", NEGATIVE, lambda call: min(axes(call), default=0) < 0),
    Demand("an axis given twice", among(REDUCTIONS, Op.SQUEEZE), lambda call: len(set(axes(call))) < len(axes(call))),
    Demand("a full reduction to shape [1]", among(REDUCTIONS), full_reduction),
    Demand("an omitted operand", omittable, omits),
    Demand("scales whose product exceeds the output's", among(PRODUCTS), coarse_product),
    Demand("saturation at both ends", requantizes, saturates),
    Demand("elements enough to tell rounding modes apart", requantizes, rounds_enough),
    Demand("a tie between two steps", among(Op.QUANTIZE), has_rounding_tie),
    Demand("an activation that clips", activates, clips),
    Demand("a tie for the first place", among(Op.ARGMAX, Op.ARGMIN), tied_places),
    Demand("a tie among the k largest", among(Op.TOPK_V2), tied_ranks),
    Demand("a clip of the cell that clips", among(CELLS, Op.QUANTIZED_LSTM), clip_matters("cell_clip")),
    Demand("a clip of the projection that clips", among(CELLS), clip_matters("proj_clip")),
    Demand(
        "a bias of the projection",
        among(CELLS, Op.QUANTIZED_LSTM),
        lambda call: any(n.endswith("projection_bias") and not a.omitted for n, a in call.inputs.items()),
    ),
)  # fmt: skip


def calls(definition: OperationDef, seed: int = 0, numbers: int = NUMBERS) -> Iterator[Call]:
    """Drawn calls as the plan has them."""
    for signature in definition.signatures:
        batch = origin(definition, signature, "drawn").batch
        for number in range(numbers):
            yield drawn(definition, signature, f"{seed}/{batch}/{number}")


def count() -> dict[str, dict[str, int]]:
    """Cases that reach a demand, by its words and the operation."""
    table: dict[str, dict[str, int]] = {demand.words: {} for demand in DEMANDS}
    for definition in OPSET.values():
        due = [demand for demand in DEMANDS if demand.concerns(definition)]
        for demand in due:
            table[demand.words][definition.name] = 0
        for call in calls(definition) if due else ():
            for demand in due:
                table[demand.words][definition.name] += demand.reached(call)
    return table


def lines(table: dict[str, dict[str, int]]) -> Iterator[str]:
    """The table in words: for each demand the operations with the fewest cases first."""
    for words, row in table.items():
        fewest = sorted(row.items(), key=lambda pair: pair[1])
        yield f"{words}: {sum(row.values())} cases of {len(row)} operations; " + ", ".join(
            f"{name} {number}" for name, number in fewest[:6]
        )


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines(count())) + "\n")
