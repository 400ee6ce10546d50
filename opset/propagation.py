"""What a whole graph gives, and how far a correct implementation may be off at its outputs.

Each operation may be off by its own bound, and what comes of that further on is found by computing the graph again:
every result is moved within its bound, by signs that differ from run to run, and each operation gets what the ones
before it made of that. Signs are all plus, all minus, one for each result, one for each channel, and one for each
element, since errors of one sign add up as their number and others as its root. A little more than the spread at an
output is allowed, and NNAPI's rule where that is larger. What is moved is at most the computational bound (one step
where quantised), not NNAPI's absolute tolerance, which RSQRT, DIV and LOG would blow up.

Elements that the specification leaves open are exchanged for others in further runs: whatever then changes is open. So
is every whole number and truth value that changes in any run: a comparison, a cast or an index hangs on it. What is
made of the bits of a value that may be off is open without a run, because few runs do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnhal.model import Model
from nnhal.types import Array, OperandType, info
from opset.branch import LoopTimedOutError
from opset.call import Argument, Call
from opset.evaluate import RELAXED_BITS, Allowance, Result, allowance, run_call, tolerance
from opset.graph import call_of, with_conduct
from opset.quantization import FLOATS, MANTISSA_BITS, QUANTIZED
from opset.values import Arithmetic, Values

SAFETY = 1.25  # times the spread that was seen: few runs do not reach the farthest correct implementation
OPEN_RUNS = 2
MOST_TURNS = 1000  # of a loop: moved values may keep one from ending
LOOSE = 0.25  # of what a float output's elements differ by: an element that may be so far off says nothing
LOOSE_STEPS = 32  # of 256 or 65536

Signs = Callable[[np.random.Generator, tuple[int, ...]], Array]


class UnforeseeableError(ValueError):
    """What a graph gives is not determined well enough to hold a driver to it."""


@dataclass(frozen=True)
class Due:
    """What one output of a graph should be.

    Attributes:
        result: what the specification gives.
        required: largest legal difference per element, in the units in which the output is stored; infinite where open.
        moved: nothing was computed on the way from inputs and constants: any difference is worth a report.
        loose: share of elements that are open, or may be so far off that they say nothing.
        distribution: for results drawn at random: probability of each class, [rows, classes].
    """

    result: Result
    required: Array
    moved: bool
    loose: float
    distribution: Array | None = None


# --- signs ------------------------------------------------------------------------------------------------------------


def _same(sign: float) -> Signs:
    return lambda rng, shape: np.full(shape, sign)


def _of_result(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.full(shape, float(rng.integers(0, 2)) * 2 - 1)


def _of_channel(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    if not shape:
        return _of_result(rng, shape)
    axis = int(rng.integers(0, len(shape))) if rng.integers(0, 3) == 0 else len(shape) - 1
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    return np.broadcast_to(rng.integers(0, 2, sizes) * 2.0 - 1, shape)


def _of_element(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 2, shape) * 2.0 - 1


RUNS: tuple[Signs, ...] = (
    _same(1.0),
    _same(-1.0),
    *(_of_result,) * 2,
    *(_of_channel,) * 2,
    *(_of_element,) * 4,
)


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moving(Arithmetic):
    """The baseline's arithmetic, with results moved: for the graphs that an operation runs.

    Attributes:
        move: changes the results of a call.
    """

    move: Callable[[Call, dict[str, Result]], dict[str, Result]] = lambda call, results: results

    def settled(self, call: Call, results: dict[str, Result]) -> dict[str, Result]:
        return self.move(call, results)


@dataclass(frozen=True)
class _Planned:
    """An operation of a graph: its call on the baseline's values, and where each operand is.

    Attributes:
        sources: index of the operand by the input's name, where an operation or the client gives it.
        targets: index of the operand by the result's name.
        allowed: how far each result may be off on the baseline's values; None for an operation that runs graphs.
        opened: whether the specification leaves elements of a result open.
    """

    call: Call
    sources: Mapping[str, int]
    targets: Mapping[str, int]
    results: Mapping[str, Result]
    allowed: Mapping[str, Allowance] | None
    opened: bool


def foretell(model: Model, inputs: Sequence[Array | None], relaxed: bool = False, seed: int = 0) -> list[Due]:
    """What a valid model gives, in the order of its output list.

    Args:
        model: its operations must all be described.
        inputs: stored values in the order of the model's input list; None for an omitted one.
        relaxed: float32 may be computed with the range and precision of float16.
        seed: of the signs.

    Raises:
        UnforeseeableError: a size hangs on values that may be off, or a loop does not end.
    """
    try:
        return _foretold(model, inputs, relaxed, seed)
    except LoopTimedOutError as error:
        raise UnforeseeableError(str(error)) from None


def _foretold(model: Model, inputs: Sequence[Array | None], relaxed: bool, seed: int) -> list[Due]:
    graph = model.main
    known = {i: v for i, v in zip(graph.input_indexes, inputs, strict=True) if v is not None}
    given = dict(known)
    rounded: set[int] = set()
    plan = list(_planned(model, known, relaxed, rounded))
    results = {index: step.results[name] for step in plan for name, index in step.targets.items()}
    spread = {i: np.zeros(results[i].exact.shape) for i in graph.output_indexes}
    rng = np.random.Generator(np.random.PCG64(seed))
    for signs in RUNS:
        there = _run(plan, given, _mover(rng, signs, relaxed))
        _widen(spread, results, there)
    open_ = {i: np.zeros(results[i].exact.shape, bool) for i in graph.output_indexes}
    if any(step.opened for step in plan):
        for _ in range(OPEN_RUNS):
            there = _run(plan, given, _exchanger(rng, relaxed))
            for index, mask in open_.items():
                mask |= _differs(there[index].exact, results[index].exact)
    last = {index: (step, name) for step in plan for name, index in step.targets.items()}
    return [_due(*last[i], spread[i], open_[i], relaxed, i in rounded) for i in graph.output_indexes]


def _planned(model: Model, known: dict[int, Array], relaxed: bool, rounded: set[int]) -> Iterator[_Planned]:
    """The operations in order, on the baseline's values.

    Args:
        model: what is planned.
        known: stored values by index; grows.
        relaxed: float32 may be computed as float16.
        rounded: operands with an operation behind them that rounds, or that runs graphs; grows.
    """
    graph = model.main
    for operation in graph.operations:
        call = with_conduct(call_of(model, graph, operation, known), most_turns=MOST_TURNS)
        shapes = call.definition.infer(call)
        named = {n: _shaped(a, tuple(shapes[n])) for n, a in call.results.items()}
        call = call.holding(call.inputs, named)
        results = run_call(call)
        targets = dict(zip(call.results, operation.outputs, strict=True))
        sources = {n: i for n, i in zip(call.inputs, operation.inputs, strict=True) if i in known}
        allowed = None if call.definition.graphs is not None else allowance(call, results, relaxed)
        if allowed is not None and any(sources.get(name) in rounded for name in call.definition.judging.hashed):
            allowed = {n: replace(a, required=np.full(a.required.shape, np.inf)) for n, a in allowed.items()}
        opened = allowed is None or any(_opened(call, n, results, a).any() for n, a in allowed.items())
        behind = any(index in rounded for index in sources.values())
        for name, index in targets.items():
            known[index] = results[name].stored
            if behind or allowed is None or allowed[name].terms:
                rounded.add(index)
        yield _Planned(call, sources, targets, results, allowed, opened)


def _shaped(argument: Argument, shape: tuple[int, ...]) -> Argument:
    changed = object.__new__(Argument)
    changed.__dict__.update(argument.__dict__, shape=shape)
    return changed


Mover = Callable[[Call, Mapping[str, Result], "Mapping[str, Allowance] | None"], dict[str, Result]]


def _run(plan: Sequence[_Planned], given: Mapping[int, Array], mover: Mover) -> dict[int, Result]:
    """Results by index, each moved before it is handed on."""
    known, results = dict(given), dict[int, Result]()
    moving = Moving(move=lambda call, found: mover(call, found, None))
    for step in plan:
        call = step.call
        inputs = {n: a.holding(known[step.sources[n]]) if n in step.sources else a for n, a in call.inputs.items()}
        call = call.holding(inputs, call.results)
        runs_graphs = call.definition.graphs is not None
        found = run_call(call, moving) if runs_graphs else mover(call, run_call(call), step.allowed)
        for name, index in step.targets.items():
            result = found[name]
            if result.stored.shape != step.results[name].stored.shape:
                raise UnforeseeableError(
                    f"the size of a result of {call.definition.name} hangs on how values are rounded"
                )
            known[index], results[index] = result.stored, result
    return results


def _mover(rng: np.random.Generator, signs: Signs, relaxed: bool) -> Mover:
    """Moves results by all of their bounds, in the directions that `signs` draws."""

    def move(call: Call, found: Mapping[str, Result], allowed: Mapping[str, Allowance] | None) -> dict[str, Result]:
        moved = dict(found)
        for name, own in (allowance(call, found, relaxed) if allowed is None else allowed).items():
            argument, result = call.results[name], found[name]
            if call.definition.judging.hashed:
                flipped = np.isinf(own.required) & (signs(rng, own.required.shape) > 0)
                stored = result.stored ^ flipped
                moved[name] = Result(stored, stored.astype(np.float64))
            if not own.terms or result.exact.shape != own.required.shape:
                continue
            if argument.type in QUANTIZED:
                steps = np.where(np.isinf(own.required), 1.0, own.required)
                moved[name] = _stepped(argument, result, signs(rng, result.exact.shape) * steps)
            elif own.unit is not None:
                exact = result.exact + signs(rng, result.exact.shape) * (2 * own.terms * own.unit)
                moved[name] = Result(exact.astype(result.stored.dtype), exact)
        return moved

    return move


def _stepped(argument: Argument, result: Result, steps: Array) -> Result:
    ends = np.iinfo(info(argument.type).dtype)
    stored = np.clip(result.stored + steps, ends.min, ends.max)
    return Result(stored.astype(result.stored.dtype), stored)


def _exchanger(rng: np.random.Generator, relaxed: bool) -> Mover:
    """Exchanges what the specification leaves open for other values of the same result, and others near them."""

    def move(call: Call, found: Mapping[str, Result], allowed: Mapping[str, Allowance] | None) -> dict[str, Result]:
        moved = dict(found)
        for name, own in (allowance(call, found, relaxed) if allowed is None else allowed).items():
            result = found[name]
            mask = _opened(call, name, found, own)
            if mask.any():
                moved[name] = _exchanged(rng, call.results[name], result, mask)
        return moved

    return move


def _opened(call: Call, name: str, found: Mapping[str, Result], own: Allowance) -> Array:
    """Elements of a result that the specification leaves open."""
    mask: Array = np.isinf(own.required)
    judging = call.definition.judging
    if judging.sampling is not None:
        return np.ones(mask.shape, bool)
    if judging.grouped_by:
        rows = found[judging.grouped_by].stored
        _, place, count = np.unique(rows, return_inverse=True, return_counts=True)
        many = count[place.reshape(-1)] > 1
        mask = mask | many.reshape([-1] + [1] * (mask.ndim - 1))
    return mask


def _exchanged(rng: np.random.Generator, argument: Argument, result: Result, mask: Array) -> Result:
    stored = result.stored.copy()
    if argument.type in (OperandType.TENSOR_BOOL8, OperandType.BOOL):
        other = 1 - stored
    elif stored.dtype.kind == "f":
        finite = np.where(np.isfinite(stored), stored, 0).astype(np.float64)
        other = rng.permutation(finite.reshape(-1)).reshape(stored.shape) + rng.choice([-1.0, 0.5, 1.0], stored.shape)
    else:
        # Others that are there, so that what is an index stays one.
        other = np.roll(stored.reshape(-1), int(rng.integers(1, max(stored.size, 2)))).reshape(stored.shape)
        if argument.type in QUANTIZED:
            other = stored ^ 1
    stored[mask] = other.astype(stored.dtype)[mask]
    return Result(stored, np.where(mask, stored.astype(np.float64), result.exact))


# --- what follows -----------------------------------------------------------------------------------------------------


def _differs(a: Array, b: Array) -> Array:
    return np.asarray((a != b) & ~(np.isnan(a) & np.isnan(b)))


def _widen(spread: dict[int, Array], results: Mapping[int, Result], there: Mapping[int, Result]) -> None:
    """Takes in how far the outputs of one run lie from the baseline."""
    for index, most in spread.items():
        with np.errstate(invalid="ignore"):
            apart = np.abs(there[index].exact - results[index].exact)
        apart = np.where(
            np.isnan(apart), np.where(_differs(there[index].exact, results[index].exact), np.inf, 0), apart
        )
        np.maximum(most, apart, out=most)


def _due(step: _Planned, name: str, spread: Array, open_: Array, relaxed: bool, computed: bool) -> Due:
    """What is due of one output."""
    argument, result = step.call.results[name], step.results[name]
    sampling = step.call.definition.judging.sampling
    if sampling is not None:
        probabilities = sampling.probabilities(Values(step.call))[name]
        return Due(result, np.zeros(result.exact.shape), False, 0.0, probabilities)
    own = step.allowed[name] if step.allowed is not None else None
    open_ = open_ | (np.isinf(own.required) if own is not None else False)
    if argument.type in FLOATS:
        bits = RELAXED_BITS if relaxed else MANTISSA_BITS[argument.type]
        least = np.where(np.isfinite(result.exact), tolerance(result.exact, bits), 0.0)
        required = np.maximum(least, SAFETY * spread)
        if own is not None:
            required = np.maximum(required, np.where(np.isfinite(own.required), own.required, 0.0))
        finite = result.exact[np.isfinite(result.exact)]
        reach = max(float(np.ptp(finite)) if finite.size else 0.0, float(np.abs(finite).max(initial=0.0)))
        loose = required > LOOSE * reach if reach else np.zeros(required.shape, bool)
        open_ = open_ | (np.isnan(result.exact) & computed)
    elif argument.type in QUANTIZED:
        required = np.maximum(float(step.call.definition.judging.steps_of(name)), np.ceil(spread))
        loose = required >= LOOSE_STEPS
    else:
        required = np.where(spread > 0, np.inf, 0.0)
        loose = np.zeros(required.shape, bool)
    required = np.where(open_, np.inf, required)
    loose = loose | np.isinf(required)
    share = float(loose.mean()) if loose.size else 0.0
    return Due(result, required, not computed and not spread.any(), share)
