"""How far the results of a graph may be off: each operation's own bound, and what it makes of errors in its inputs.

The second part is found by running the operation at the corners of its inputs' errors. For operations that are
monotone or linear in each element, where results belong to single elements, or that only move values, no other point
lies further off. Where an operation mixes elements that may be off, its results are taken as open: never too strict.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnhal.types import Array, OperandType, info
from nnhal.types import OperationType as Op
from opset.branch import Branch
from opset.call import Argument, Call
from opset.evaluate import RELAXED_BITS, Allowance, Result, allowance, run_call, tolerance
from opset.quantization import FLOATS, MANTISSA_BITS, QUANTIZED

# Each element of the result depends on one element of each input, or is the largest or smallest of several, and is
# monotone or linear in it between its errors. ABS is as far off at a corner as anywhere, and a step or an order of two
# shows at a corner whether it is in doubt; EQUAL and NOT_EQUAL need not, and are not among them.
FARTHEST_AT_CORNERS = frozenset(
    {
        Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM, Op.MINIMUM, Op.ABS, Op.NEG, Op.FLOOR, Op.EXP, Op.SQRT,
        Op.RELU, Op.RELU1, Op.RELU6, Op.TANH, Op.LOGISTIC, Op.SELECT, Op.CAST, Op.QUANTIZE, Op.DEQUANTIZE,
        Op.LESS, Op.LESS_EQUAL, Op.GREATER, Op.GREATER_EQUAL, Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_NOT,
        Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS, Op.TRANSPOSE, Op.CONCATENATION, Op.SPLIT, Op.SLICE, Op.STRIDED_SLICE,
        Op.PAD, Op.PAD_V2, Op.MIRROR_PAD, Op.GATHER, Op.TILE, Op.REVERSE, Op.PACK, Op.CHANNEL_SHUFFLE,
        Op.SPACE_TO_DEPTH, Op.DEPTH_TO_SPACE, Op.SPACE_TO_BATCH_ND, Op.BATCH_TO_SPACE_ND, Op.MAX_POOL_2D, Op.REDUCE_MAX,
        Op.REDUCE_MIN,
    }
)  # fmt: skip
MOST_CORNERS = 4  # inputs in error whose corners are all tried


class UndecidedError(Exception):
    """What is run next depends on a value that may be off either way."""


@dataclass(frozen=True)
class Tracked:
    """A value in a graph.

    Attributes:
        result: what the specification gives.
        error: largest legal difference per element, in the units in which it is stored; infinite where it is open.
        moved: it was only moved, so that any difference at all is worth a report.
    """

    result: Result
    error: Array
    moved: bool

    def allowance(self) -> Allowance:
        """The same, for the judge. The limits on quality are those of single operations, so there is no unit."""
        return Allowance(self.error, None, 0.0 if self.moved else 1.0)


def certain(argument: Argument) -> Tracked:
    """The value of an argument, without error.

    Raises:
        ValueError: it has none.
    """
    if argument.value is None:
        raise ValueError("the value is not known")
    real = argument.value.astype(np.float64)
    return Tracked(Result(argument.value, real), np.zeros(real.shape), True)


def tolerated(value: Tracked, kind: OperandType, relaxed: bool) -> Tracked:
    """A result that leaves an operation: it has at least NNAPI's tolerance, even when it was only moved."""
    if kind in QUANTIZED:
        return replace(value, error=np.maximum(value.error, 1.0))
    if kind not in FLOATS:
        return value
    bits = RELAXED_BITS if relaxed else MANTISSA_BITS[kind]
    least = np.where(np.isfinite(value.result.exact), tolerance(value.result.exact, bits), 0.0)
    return replace(value, error=np.maximum(value.error, least))


def track_graph(branch: Branch, inputs: Sequence[Tracked | None], relaxed: bool) -> list[Tracked]:
    """The outputs of a graph whose inputs may be off.

    Raises:
        UndecidedError: a value that may be off either way decides what is run.
    """
    from opset.graph import call_of  # it knows all operations, of which those that run graphs are two

    graph = branch.model.main
    known = {i: v for i, v in zip(graph.input_indexes, inputs, strict=True) if v is not None}
    for operation in graph.operations:
        call = call_of(branch.model, graph, operation, {i: v.result.stored for i, v in known.items()})
        errors = {n: known[i] for n, i in zip(call.inputs, operation.inputs, strict=True) if i in known}
        tracked = track_call(call, errors, relaxed)
        known.update(zip(operation.outputs, tracked.values(), strict=True))
    return [known[i] for i in graph.output_indexes]


def track_call(call: Call, errors: Mapping[str, Tracked], relaxed: bool) -> dict[str, Tracked]:
    """The results of a call whose inputs may be off.

    Raises:
        UndecidedError: see `track_graph`.
    """
    if call.definition.graphs is not None:
        values = {n: errors[n] if n in errors else certain(a) for n, a in call.inputs.items() if a.value is not None}
        return dict(call.definition.graphs.track(call, values, relaxed))
    truth = run_call(call)
    own = allowance(call, truth, relaxed)
    wrong = {name: tracked for name, tracked in errors.items() if np.any(tracked.error > 0)}
    moved = all(tracked.moved for tracked in errors.values())
    tracked = {n: Tracked(r, own[n].required, moved and own[n].terms == 0) for n, r in truth.items()}
    if not wrong:
        return tracked
    opened = any(np.isinf(t.error).any() for name, t in wrong.items() if not _boolean(call[name]))
    if opened or call.definition.code not in FARTHEST_AT_CORNERS:
        return {n: replace(t, error=np.full(t.error.shape, np.inf)) for n, t in tracked.items()}
    corners = [(run_call(c), c) for c in _corners(call, wrong)]
    for answer, corner in corners:
        there = allowance(corner, answer, relaxed)
        for name, value in tracked.items():
            error = _grown(call[name] if name in call.results else None, value, answer[name], there[name])
            tracked[name] = replace(value, error=np.maximum(value.error, error))
    return tracked


def _boolean(argument: Argument) -> bool:
    return argument.type in (OperandType.TENSOR_BOOL8, OperandType.BOOL)


def _corners(call: Call, wrong: Mapping[str, Tracked]) -> Iterator[Call]:
    """The call with its uncertain inputs at either end of their errors, in every combination of ends."""
    names = list(wrong)
    if len(names) <= MOST_CORNERS:
        sides = list(itertools.product((-1, 1), repeat=len(names)))
    else:
        sides = [(s,) * len(names) for s in (-1, 1)]
    for signs in sides:
        changed = call
        for name, sign in zip(names, signs, strict=True):
            argument = call[name]
            changed = changed.with_input(name, replace(argument, value=_shifted(argument, wrong[name], sign)))
        yield changed


def _shifted(argument: Argument, tracked: Tracked, sign: int) -> Array:
    """A value at one end of its error; floats in float64, so that the error itself is not rounded away."""
    value, error = tracked.result.stored, tracked.error
    if _boolean(argument):
        return np.asarray(np.where(error > 0, 1 - value, value), value.dtype) if sign > 0 else value
    if argument.type in FLOATS:
        return np.asarray(tracked.result.exact + sign * error)
    moved = value.astype(np.float64) + sign * error
    ends = np.iinfo(info(argument.type).dtype)
    return np.asarray(np.clip(np.rint(moved), ends.min, ends.max).astype(value.dtype))


def _grown(argument: Argument | None, value: Tracked, answer: Result, there: Allowance) -> Array:
    """The error of a result, given what it is at one corner and how far an operation may be off there."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(answer.exact - value.result.exact)
    apart = np.where(np.isnan(apart), np.where(np.isnan(answer.exact) & np.isnan(value.result.exact), 0, np.inf), apart)
    if argument is None or argument.type in FLOATS:
        return np.asarray(there.required + apart)
    if argument.type in QUANTIZED:  # two roundings of values d apart are at most floor(d) + 1 apart
        return np.asarray(there.required + np.where(apart > 0, np.floor(apart) + 1, 0))
    return np.where(apart > 0, np.inf, there.required)
