"""Models of which some shapes are not told, made of models of which all are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.behaviour import Vehicle
from conformance.sketch import INPUT, OUTPUT, TEMPORARY, Sketch, Sketched, operands_of, quarters, with_dimensions
from harness.expectations import Returns
from nnhal.model import Model, Operand, Operation, count_consumers, is_tensor
from nnhal.types import Array, OperandLifeTime, OperandType, OperationType
from opset.call import scalar

Dimensions = tuple[int, ...]
# How much of dimensions is told.
TOLD: dict[str, Callable[[Dimensions], Dimensions]] = {
    "first": lambda d: (0, *d[1:]),
    "last": lambda d: (*d[:-1], 0),
    "all": lambda d: (0,) * len(d),
    "rank": lambda d: (),
}
WORDS = {
    "first": "the first dimension",
    "last": "the last dimension",
    "all": "every dimension",
    "rank": "even the number of dimensions",
}


def untold(model: Model, told: str, *lifetimes: OperandLifeTime) -> Model:
    """The model with less told of the tensors of some lifetimes."""
    less = TOLD[told]
    indexes = [i for lifetime in lifetimes for i in operands_of(model, lifetime)]
    return with_dimensions(model, {i: less(model.main.operands[i].dimensions) for i in indexes})


def _floor(operand: Operand) -> int:
    return operand.zero_point if operand.type != OperandType.TENSOR_FLOAT32 else 0


def behind(v: Vehicle) -> Sketched:
    """The vehicle's operation, then RELU: what lies between is its result."""
    main = v.model.main
    (out,) = main.output_indexes
    result = main.operands[out]
    operands = list(main.operands)
    operands[out] = replace(result, lifetime=TEMPORARY)
    operands.append(replace(result, lifetime=OUTPUT))
    last = len(operands) - 1
    operations = (*main.operations, Operation(int(OperationType.RELU), (out,), (last,)))
    main = count_consumers(
        replace(main, operands=tuple(operands), operations=operations, output_indexes=(last,)),
    )
    outputs = tuple(replace(d, value=np.maximum(d.value, _floor(result)), unit=None) for d in v.returns.outputs)
    return Sketched(replace(v.model, main=main), v.inputs, Returns(outputs, v.returns.groups))


def in_front(v: Vehicle) -> Sketched:
    """RELU, then the vehicle's operation: what lies between is its first input."""
    name = next(n for n, a in v.call.inputs.items() if n not in v.constant and is_tensor(a.type) and not a.omitted)
    main = v.model.main
    at = main.input_indexes[0]
    taken = main.operands[at]
    operands = list(main.operands)
    operands[at] = replace(taken, lifetime=TEMPORARY)
    operands.append(replace(taken, lifetime=INPUT))
    first = len(operands) - 1
    operations = (Operation(int(OperationType.RELU), (first,), (at,)), *main.operations)
    inputs = (first, *main.input_indexes[1:])
    main = count_consumers(replace(main, operands=tuple(operands), operations=operations, input_indexes=inputs))
    value: Array = np.maximum(v.inputs[0], _floor(taken)).astype(v.inputs[0].dtype)
    there = replace(v, call=v.call.with_input(name, replace(v.call[name], value=value)))
    return Sketched(replace(v.model, main=main), v.inputs, there.returns)


def sized(shape: Dimensions) -> Sketched:
    """Two operations that take any shape, with an input of one: nothing but the input says it."""
    sketch = Sketch()
    at = sketch.apply(OperationType.RELU, sketch.input(quarters(shape)))
    sketch.apply(OperationType.LOGISTIC, at, out=True)
    made = sketch.finish()
    return replace(made, model=untold(made.model, "rank", INPUT, TEMPORARY, OUTPUT))


def rows(count: int, columns: int = 3) -> Sketched:
    """A sum with a constant row, for any number of rows."""
    sketch, none = Sketch(), scalar(OperandType.INT32, 0)
    at = sketch.apply(OperationType.ADD, sketch.input(quarters((count, columns))), quarters((columns,), 9), none)
    sketch.apply(OperationType.RELU, at, out=True)
    made = sketch.finish()
    return replace(made, model=untold(made.model, "first", INPUT, TEMPORARY, OUTPUT))


def two_results() -> Sketched:
    """Two outputs of different shapes, neither of which is told."""
    sketch, none = Sketch(), scalar(OperandType.INT32, 0)
    at = sketch.input(quarters((2, 3)))
    sketch.apply(OperationType.RELU, at, out=True)
    sketch.apply(OperationType.ADD, at, quarters((4, 2, 3), 3), none, out=True)
    made = sketch.finish()
    return replace(made, model=untold(made.model, "all", OUTPUT))
