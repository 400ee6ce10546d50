"""Valid models that mutations start from: an operation alone, with another one behind it, with constants alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from conformance.cases import constants
from conformance.mutation_edits import LIFE, with_main
from nnhal.model import DataLocation, Model, Operand, Operation, is_tensor
from nnhal.types import FeatureLevel, OperandType, OperationType
from nnhal.validate import violations
from opset.call import Call
from opset.graph import model_of

Op, Kind = OperationType, OperandType
FLOAT = Kind.TENSOR_FLOAT32
# What may stand behind an operation, by the type of its result: code and type of the last result; the first that is
# valid is taken.
FOLLOWERS: dict[OperandType, tuple[tuple[OperationType, OperandType], ...]] = {
    FLOAT: ((Op.FLOOR, FLOAT), (Op.CAST, FLOAT)),
    Kind.TENSOR_FLOAT16: ((Op.FLOOR, Kind.TENSOR_FLOAT16), (Op.CAST, FLOAT)),
    Kind.TENSOR_QUANT8_ASYMM: ((Op.DEQUANTIZE, FLOAT), (Op.CAST, FLOAT)),
    Kind.TENSOR_QUANT8_ASYMM_SIGNED: ((Op.DEQUANTIZE, FLOAT), (Op.CAST, Kind.TENSOR_QUANT8_ASYMM_SIGNED)),
    Kind.TENSOR_QUANT8_SYMM: ((Op.DEQUANTIZE, FLOAT),),
    Kind.TENSOR_INT32: ((Op.CAST, FLOAT),),
    Kind.TENSOR_BOOL8: ((Op.LOGICAL_NOT, Kind.TENSOR_BOOL8), (Op.CAST, Kind.TENSOR_BOOL8)),
    Kind.TENSOR_QUANT16_ASYMM: ((Op.CAST, Kind.TENSOR_QUANT16_ASYMM),),
    Kind.TENSOR_QUANT16_SYMM: ((Op.CAST, Kind.TENSOR_QUANT16_SYMM),),
}


def lowest_level(model: Model) -> FeatureLevel | None:
    """The first level at which a model is valid; None where it is at none."""
    return next((level for level in FeatureLevel if not violations(model, level)), None)


def starting_models(call: Call, number: int) -> Iterator[Model]:
    """Valid models of a call: one operation, the same with one behind it, and with every input a constant."""
    alone, _ = model_of(call, constants(call, number))
    yield alone
    behind = followed(alone)
    if behind is not None:
        yield behind
    yield model_of(call, [n for n, a in call.inputs.items() if a.type != OperandType.SUBGRAPH])[0]


def followed(model: Model) -> Model | None:
    """The model with another operation that reads its first result; None where none takes such a result."""
    index = model.main.output_indexes[0]
    result = model.main.operands[index]
    if not is_tensor(result.type):
        return _filled(model, index)
    for code, kind in FOLLOWERS.get(OperandType(result.type), ()):
        last = replace(result, type=kind)
        if kind == FLOAT:
            last = Operand(FLOAT, result.dimensions, lifetime=LIFE.SUBGRAPH_OUTPUT)
        found = _behind(model, index, int(code), (index,), (), last)
        if lowest_level(found) is not None:
            return found
    return None


def _filled(model: Model, index: int) -> Model:
    """FILL with the first result, which is a scalar."""
    values = model.operand_values + bytes(-len(model.operand_values) % 4)
    place = DataLocation(0, len(values), 4)
    shape = Operand(OperandType.TENSOR_INT32, (1,), lifetime=LIFE.CONSTANT_COPY, location=place)
    last = Operand(OperandType.TENSOR_INT32, (2,), lifetime=LIFE.SUBGRAPH_OUTPUT)
    wider = replace(model, operand_values=values + (2).to_bytes(4, "little"))
    return _behind(wider, index, int(OperationType.FILL), (len(model.main.operands), index), (shape,), last)


def _behind(
    model: Model, index: int, code: int, inputs: tuple[int, ...], more: tuple[Operand, ...], last: Operand
) -> Model:
    """The model with an operation that reads a result, which is no output of the model any more."""
    main = model.main
    inner = replace(main.operands[index], lifetime=LIFE.TEMPORARY_VARIABLE)
    operands = (*main.operands[:index], inner, *main.operands[index + 1 :], *more, last)
    number = len(operands) - 1
    outputs = (number, *(i for i in main.output_indexes if i != index))
    operations = (*main.operations, Operation(code, inputs, (number,)))
    return with_main(model, replace(main, operands=operands, operations=operations, output_indexes=outputs))
