"""How a driver's errors grow through a model, and which operation is to blame for the error at its end.

Two looks at each operation of the main graph. The driver runs the whole model with all values as outputs: the error at
each place, its own and what came from before. And the driver runs each operation alone, on the exact inputs, its result
takes the place of the exact one, and the reference computes the rest: what that does to the final outputs is this
operation's part. The operation whose part is largest, but for what a correct one may have, ranks first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from mlts.interpreting import revealed
from mlts.measuring import Show
from mlts.station import Station, prepare
from nnhal.device import Device
from nnhal.errors import DriverError
from nnhal.model import Model, Operand, Operation, Subgraph, count_consumers
from nnhal.types import Array, OperandLifeTime, OperationType
from opset.call import Call
from opset.evaluate import allowance, run_call
from opset.graph import call_of
from opset.quantization import QUANTIZED

CONSTANTS = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE, OperandLifeTime.NO_VALUE)


@dataclass(frozen=True)
class Blame:
    """An operation's part in the error of a model.

    Attributes:
        number: of the operation, from 0.
        error: largest difference at its result when the driver runs the whole model, in units of the result's root mean
            square (of steps where quantised); None where the driver does not give values inside.
        own: the same when the driver runs it alone on exact inputs; None where it does not.
        allowed: of `own`, what a correct operation may have.
        effect: root mean square of what its result alone does to the model's outputs.
        excess: how much of the effect a correct operation would not have: `own` beyond `allowed`, by which ranks go.
    """

    number: int
    operation: str
    shape: tuple[int, ...]
    error: float | None
    own: float | None
    allowed: float
    effect: float
    excess: float


def accumulate(
    device: Device,
    model: Model,
    samples: Sequence[Sequence[Array]],
    show: Show = lambda words, share: None,
) -> list[Blame]:
    """Looks at every operation of a model that the driver runs.

    Args:
        device: the driver.
        model: valid, without unknown sizes.
        samples: inputs; effects are means over them.
        show: is told what goes on.

    Raises:
        DriverDied, DriverTimedOut, UncleanError: by the driver.
    """
    graph = model.main
    known = [_exact(model, values) for values in samples]
    inside = _inside(device, model, samples, show)
    found = []
    for number, operation in enumerate(graph.operations):
        show(f"operation {number + 1} of {len(graph.operations)}", number / len(graph.operations))
        parts = [_part(device, model, number, values) for values in known]
        errors = [
            max(_difference(model, i, values[i], got[i])[1] for i in operation.outputs if i in got)
            for values, got in zip(known, inside, strict=True)
            if any(i in got for i in operation.outputs)
        ]
        owns = [part.own for part in parts if part.own is not None]
        operand = graph.operands[operation.outputs[0]]
        found.append(
            Blame(
                number,
                _name(operation.type),
                tuple(operand.dimensions),
                max(errors, default=None),
                max(owns, default=None),
                max((part.allowed for part in parts), default=0.0),
                math.sqrt(math.fsum(part.effect**2 for part in parts) / max(len(parts), 1)),
                math.sqrt(math.fsum(part.excess**2 for part in parts) / max(len(parts), 1)),
            )
        )
    return found


def ranking(blames: Sequence[Blame]) -> list[Blame]:
    """The guilty first: by what their results do to the outputs beyond what correct ones may, then by the effect."""
    return sorted(blames, key=lambda one: (-one.excess, -one.effect, one.number))


def _name(code: int) -> str:
    return OperationType(code).name if code in list(OperationType) else str(code)


# --- the reference ----------------------------------------------------------------------------------------------------


def _exact(model: Model, values: Sequence[Array]) -> dict[int, Array]:
    """Every value of the main graph, as the reference stores it."""
    known = dict(zip(model.main.input_indexes, values, strict=True))
    _run(model, model.main.operations, known)
    return known


def _run(model: Model, operations: Sequence[Operation], known: dict[int, Array]) -> None:
    for operation in operations:
        for index, result in zip(operation.outputs, run_call(_call(model, operation, known)).values(), strict=True):
            known[index] = result.stored


def _call(model: Model, operation: Operation, known: Mapping[int, Array]) -> Call:
    """An operation with its values, and the shapes of its results."""
    call = call_of(model, model.main, operation, known)
    shapes = call.definition.infer(call)
    return replace(call, results={n: replace(a, shape=tuple(shapes[n])) for n, a in call.results.items()})


def _outputs_with(model: Model, number: int, known: Mapping[int, Array], results: Mapping[int, Array]) -> list[Array]:
    """The model's outputs where one operation gave other results."""
    operations = model.main.operations
    changed = {**known, **results}
    touched = set(results)
    rest = []
    for operation in operations[number + 1 :]:
        if touched.intersection(operation.inputs):
            touched.update(operation.outputs)
            rest.append(operation)
    _run(model, rest, changed)
    return [changed[index] for index in model.main.output_indexes]


def _difference(model: Model, index: int, right: Array, got: Array) -> tuple[float, float]:
    """Root mean square and largest difference, in units of the value's own, or in steps where quantised."""
    apart = np.abs(got.astype(np.float64) - right) / _unit(model, index, right)
    apart = np.where(np.isfinite(apart), apart, np.finfo(np.float64).max ** 0.25)
    return (float(np.sqrt(np.mean(np.square(apart)))), float(apart.max())) if apart.size else (0.0, 0.0)


def _unit(model: Model, index: int, right: Array) -> float:
    """What differences of a value are counted in: its root mean square, or one step where it is quantised."""
    if model.main.operands[index].type in QUANTIZED or not right.size:
        return 1.0
    return float(np.sqrt(np.mean(np.square(right.astype(np.float64))))) or 1.0


# --- the driver -------------------------------------------------------------------------------------------------------


def _inside(device: Device, model: Model, samples: Sequence[Sequence[Array]], show: Show) -> list[dict[int, Array]]:
    """What the driver computes at every place of the whole model; nothing where it does not run it so."""
    show("the whole model", 0.0)
    open_model, indexes = revealed(model)
    if not all(device.get_supported_operations(open_model)):
        return [{} for _ in samples]
    try:
        _, prepared = prepare(device, open_model)
    except DriverError:
        return [{} for _ in samples]
    found: list[dict[int, Array]] = []
    with closing(Station(device, open_model, prepared, samples[0])) as station:
        for values in samples:
            station.place(values)
            try:
                station.run()
            except DriverError:
                found.append({})
                continue
            found.append(dict(zip(indexes, station.outputs(), strict=True)))
    return found


@dataclass(frozen=True)
class _Part:
    own: float | None
    allowed: float
    effect: float
    excess: float


def _part(device: Device, model: Model, number: int, known: Mapping[int, Array]) -> _Part:
    """What the driver's result of one operation does to the model's outputs."""
    operation = model.main.operations[number]
    small, inputs = single(model, number)
    given = [known[index] for index in inputs]
    right = {index: known[index] for index in operation.outputs}
    limits = _limits(model, operation, known)
    finite = [limit[np.isfinite(limit)] / _unit(model, index, right[index]) for index, limit in limits.items()]
    allowed = max((float(some.max()) for some in finite if some.size), default=0.0)
    got = _alone(device, small, given, operation.outputs)
    if got is None:
        return _Part(None, allowed, 0.0, 0.0)
    own = max(_difference(model, index, right[index], got[index])[1] for index in operation.outputs)
    final = [known[index] for index in model.main.output_indexes]
    effect = _effect(model, final, _outputs_with(model, number, known, got))
    beyond = {index: _beyond(right[index], got[index], limit) for index, limit in limits.items()}
    excess = _effect(model, final, _outputs_with(model, number, known, beyond))
    return _Part(own, allowed, effect, excess)


def _alone(device: Device, model: Model, given: Sequence[Array], outputs: Sequence[int]) -> dict[int, Array] | None:
    if not all(device.get_supported_operations(model)):
        return None
    try:
        _, prepared = prepare(device, model)
    except DriverError:
        return None
    with closing(Station(device, model, prepared, given)) as station:
        try:
            station.run()
        except DriverError:
            return None
        return dict(zip(outputs, station.outputs(), strict=True))


def _effect(model: Model, right: Sequence[Array], got: Sequence[Array]) -> float:
    pairs = zip(model.main.output_indexes, right, got, strict=True)
    return max((_difference(model, index, a, b)[0] for index, a, b in pairs), default=0.0)


def _limits(model: Model, operation: Operation, known: Mapping[int, Array]) -> dict[int, Array]:
    """For each result how far a correct driver may be off, element by element, in stored units."""
    call = _call(model, operation, known)
    allowed = allowance(call, run_call(call), model.relax_computation_float32_to_float16)
    return {index: one.required for index, one in zip(operation.outputs, allowed.values(), strict=True)}


def _beyond(right: Array, got: Array, limit: Array) -> Array:
    """The right result, moved by as much as the driver's lies outside of what is allowed."""
    exact = right.astype(np.float64)
    moved = got.astype(np.float64) - exact
    outside = np.sign(moved) * np.maximum(np.abs(moved) - limit.reshape(exact.shape), 0.0)
    outside = np.where(np.isfinite(outside), outside, moved)
    return (exact + outside).astype(right.dtype)


def single(model: Model, number: int) -> tuple[Model, list[int]]:
    """A model of one operation of the main graph, and which operands of it are the inputs, in order."""
    graph, operation = model.main, model.main.operations[number]
    used = list(dict.fromkeys((*operation.inputs, *operation.outputs)))
    places = {index: place for place, index in enumerate(used)}
    operands: list[Operand] = []
    inputs: list[int] = []
    for index in used:
        operand = graph.operands[index]
        if index in operation.outputs:
            operand = replace(operand, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT)
        elif operand.lifetime not in (*CONSTANTS, OperandLifeTime.SUBGRAPH):
            operand = replace(operand, lifetime=OperandLifeTime.SUBGRAPH_INPUT)
            inputs.append(index)
        operands.append(operand)
    made = Operation(
        operation.type, tuple(places[i] for i in operation.inputs), tuple(places[i] for i in operation.outputs)
    )
    alone = Subgraph(
        tuple(operands), (made,), tuple(places[i] for i in inputs), tuple(places[i] for i in operation.outputs)
    )
    return replace(model, main=count_consumers(alone), translation=None), inputs
