"""The vendor extension of the reference driver: one operand type and three operations, as a vendor would add them.

`org.nncts.sample`, whose meaning docs/writing-a-driver.md says: tensors of 64-bit integers, which the operations alone
take. Everything that the driver has to do for an extension is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnhal.device import Extension, OperandTypeInformation
from nnhal.errors import DriverError
from nnhal.model import Model, Operand, Operation, Subgraph, constant_bytes
from nnhal.types import Array, ErrorStatus, OperandLifeTime, OperandType, is_extension
from opset import graph as specification
from opset.call import Call
from opset.evaluate import Result
from opset.values import Arithmetic

NAME = "org.nncts.sample"
TENSOR_INT64 = 0  # the operand type's number
EXTENSION = Extension(NAME, (OperandTypeInformation(TENSOR_INT64, True, 8),))
TYPE_BITS = 16
LARGEST_NUMBER = (1 << TYPE_BITS) - 1
INT32 = -1  # stands for TENSOR_INT32 in the signatures
_CONSTANTS = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)


@dataclass(frozen=True)
class _Sample:
    """An operation of the extension: types of its inputs, of its output, and what it computes."""

    inputs: tuple[int, ...]
    output: int
    compute: Callable[..., Array]


OPERATIONS: dict[int, _Sample] = {
    0: _Sample((INT32,), TENSOR_INT64, lambda x: x.astype(np.int64)),  # WIDEN
    1: _Sample((TENSOR_INT64, TENSOR_INT64), TENSOR_INT64, lambda a, b: a * b),  # MULTIPLY, modulo 2^64
    2: _Sample((TENSOR_INT64,), INT32, lambda x: (x >> 32).astype(np.int32)),  # UPPER_HALF
}


def _prefixes(model: Model) -> list[int]:
    """What the model calls the extension; nothing where it does not name it."""
    return [row.prefix for row in model.extension_name_to_prefix if row.name == NAME and row.prefix]


def _number(model: Model, code: int) -> int | None:
    """The extension's own number of an operand or operation type in a model; None where it is none of its."""
    bits = code & 0xFFFFFFFF
    return bits & LARGEST_NUMBER if bits >> TYPE_BITS in _prefixes(model) else None


def _kind(model: Model, operand: Operand) -> int | None:
    """The operand's type as the signatures write it; None where the extension takes no such operand."""
    if operand.type == OperandType.TENSOR_INT32:
        return INT32 if operand.scale == 0 else None
    return None if operand.extra_params else _number(model, operand.type)


def knows(model: Model, operation: Operation) -> bool:
    """Whether an operation of the main graph is one of the extension, with operands that it takes."""
    number = _number(model, operation.type)
    if number not in OPERATIONS:
        return False
    known, operands = OPERATIONS[number], [model.main.operands[i] for i in (*operation.inputs, *operation.outputs)]
    if len(operation.outputs) != 1 or any(o.lifetime == OperandLifeTime.NO_VALUE for o in operands):
        return False
    shapes = {o.dimensions for o in operands if o.dimensions and 0 not in o.dimensions}
    return [_kind(model, o) for o in operands] == [*known.inputs, known.output] and len(shapes) <= 1


def touches(graph: Subgraph, operation: Operation) -> bool:
    """Whether an operation has operands of any extension's types, which IF and WHILE would hand on."""
    return any(is_extension(graph.operands[i].type) for i in (*operation.inputs, *operation.outputs))


def element_types(model: Model) -> dict[int, np.dtype[np.int64]]:
    """How the elements of the extension's operand types are stored, by the codes that they have in a model."""
    return {prefix << TYPE_BITS | TENSOR_INT64: np.dtype(np.int64) for prefix in _prefixes(model)}


def evaluate(
    model: Model,
    inputs: Sequence[Array | None],
    arithmetic: Arithmetic,
    check: Callable[[Call], None],
    loop_timeout: int,
) -> list[Result]:
    """As `opset.graph.evaluate`, for models that may have operations of the extension."""
    if all(_number(model, operation.type) is None for operation in model.main.operations):
        return specification.evaluate(model, inputs, arithmetic, check, loop_timeout)
    graph = model.main
    known = {i: v for i, v in zip(graph.input_indexes, inputs, strict=True) if v is not None}
    known |= dict(_constants(model))
    results: dict[int, Result] = {}
    for operation in graph.operations:
        if _number(model, operation.type) is None:
            alone = replace(graph, operations=(operation,), input_indexes=tuple(known))
            alone = replace(alone, output_indexes=operation.outputs)
            values, single = list(known.values()), replace(model, main=alone)
            given = specification.evaluate(single, values, arithmetic, check, loop_timeout)
        else:
            given = [_run(model, operation, known)]
        results |= zip(operation.outputs, given, strict=True)
        known |= {i: result.stored for i, result in zip(operation.outputs, given, strict=True)}
    return [results[i] for i in graph.output_indexes]


def _run(model: Model, operation: Operation, known: Mapping[int, Array]) -> Result:
    number = _number(model, operation.type)
    assert number is not None
    values = [known[i] for i in operation.inputs]
    if len({value.shape for value in values}) != 1:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "operands of one operation of the extension differ in shape")
    with np.errstate(over="ignore"):
        stored = OPERATIONS[number].compute(*values)
    return Result(stored, stored.astype(np.float64))


def _constants(model: Model) -> Iterator[tuple[int, Array]]:
    """The constants that operations of the extension read."""
    for index, operand in enumerate(model.main.operands):
        if operand.lifetime in _CONSTANTS and _kind(model, operand) is not None:
            dtype = np.int32 if operand.type == OperandType.TENSOR_INT32 else np.int64
            yield index, np.frombuffer(constant_bytes(model, operand), dtype).reshape(operand.dimensions)
