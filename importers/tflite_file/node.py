"""What a translator sees of an operator: its tensors by place, its options by name, and where its operations go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from importers.assembling import FLOAT32, Kind, Shape
from importers.tflite_file.contents import Operator, Tensor
from importers.tflite_file.graph import Building
from importers.tflite_file.kinds import QUANTIZED, InexpressibleError, dimensions, kind_of
from importers.tflite_file.schema import NO_TENSOR
from nnhal.types import Array, FusedActivation, OperandType, OperationType, info

ACTIVATIONS: Mapping[int, FusedActivation] = {
    0: FusedActivation.NONE,
    1: FusedActivation.RELU,
    2: FusedActivation.RELU1,
    3: FusedActivation.RELU6,
}
LARGEST_INT32 = 2**31 - 1


class Node:
    """One operator of a graph.

    Attributes:
        build: the graph's model under way.
        operator: as the file has it.
    """

    def __init__(self, build: Building, operator: Operator) -> None:
        self.build = build
        self.operator = operator

    # --- what the file says -------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of inputs, those that are left out too."""
        return len(self.operator.inputs)

    def has(self, place: int) -> bool:
        """Whether an input is there."""
        return place < self.count and self.operator.inputs[place] != NO_TENSOR

    def number(self, place: int) -> int:
        """The number of the tensor that an input is.

        Raises:
            InexpressibleError: the input is left out.
        """
        if not self.has(place):
            raise InexpressibleError(f"input {place} is left out")
        return self.operator.inputs[place]

    def tensor(self, place: int) -> Tensor:
        """An input."""
        return self.build.tensor(self.number(place))

    def output(self, place: int = 0) -> Tensor:
        """An output.

        Raises:
            InexpressibleError: there are fewer.
        """
        if place >= len(self.operator.outputs):
            raise InexpressibleError(f"output {place} is left out")
        return self.build.tensor(self.operator.outputs[place])

    def shape(self, place: int) -> Shape:
        """Dimensions of an input, at least one."""
        return dimensions(self.tensor(place).shape)

    def value(self, place: int) -> Array | None:
        """The value of an input in the file's type; None where only a run knows it."""
        return self.build.value(self.number(place))

    def constant(self, place: int, what: str) -> Array:
        """The value of a constant input.

        Raises:
            InexpressibleError: only a run knows it.
        """
        value = self.value(place)
        if value is None:
            raise InexpressibleError(f"{what} is no constant")
        return value

    def integers(self, place: int, what: str) -> list[int]:
        """A constant input of whole numbers, in one row.

        Raises:
            InexpressibleError: it is none.
        """
        value = self.constant(place, what)
        if value.dtype.kind not in "iu":
            raise InexpressibleError(f"{what} has the type {self.tensor(place).type}")
        return [int(x) for x in value.reshape(-1)]

    def integer(self, place: int, what: str) -> int:
        """A constant input of one whole number.

        Raises:
            InexpressibleError: it is none.
        """
        found = self.integers(place, what)
        if len(found) != 1:
            raise InexpressibleError(f"{what} has {len(found)} elements")
        return found[0]

    def options(self, name: str) -> dict[str, float]:
        """The numbers among the options.

        Raises:
            InexpressibleError: the operator has those of another one.
        """
        found = self.operator.options(name)
        if found is None:
            raise InexpressibleError(f"it has no {name}")
        return dict(found)

    def vector(self, name: str, field: str) -> tuple[int, ...]:
        """A vector of integers among the options."""
        return self.operator.vector(name, field)

    def axis(self, axis: float, rank: int) -> int:
        """An axis counted from the front.

        Raises:
            InexpressibleError: there is no such axis.
        """
        found = int(axis) + rank if axis < 0 else int(axis)
        if not 0 <= found < rank:
            raise InexpressibleError(f"the axis {int(axis)} is none of {rank} dimensions")
        return found

    # --- operands -----------------------------------------------------------------------------------------------------

    def operand(self, place: int) -> int:
        """The operand that an input is."""
        return self.build.operand(self.number(place))

    def operands(self, due: int | None = None) -> list[int]:
        """The operands of all inputs.

        Args:
            due: their number; None for any but 0.

        Raises:
            InexpressibleError: there are more or fewer, or one is left out.
        """
        if self.count != due if due is not None else not self.count:
            raise InexpressibleError(f"it has {self.count} inputs")
        return [self.operand(place) for place in range(self.count)]

    def weights(self, place: int, beside: int) -> int:
        """The operand of weights; where the input `beside` is real and they are steps they become real too."""
        number = self.number(place)
        if self.build.is_float(self.number(beside)) and not self.build.is_float(number):
            return self.build.floats(number)
        return self.build.operand(number)

    def result(self, place: int = 0) -> int:
        """The operand that an output is."""
        return self.build.operand(self.output(place).number)

    def result_kind(self, place: int = 0) -> Kind:
        """Type and quantisation of an output."""
        return kind_of(self.output(place))

    def kind(self, operand: int) -> Kind:
        """Type and quantisation of an operand."""
        return self.build.kind(operand)

    def dims(self, operand: int) -> Shape:
        """Dimensions of an operand."""
        return self.build.shape(operand)

    def same(self, place: int, operand: int) -> None:
        """Lets an output be an operand that is there.

        Raises:
            InexpressibleError: it has other dimensions.
        """
        if self.dims(operand) != dimensions(self.output(place).shape):
            raise InexpressibleError(f"the file gives its result a shape other than {list(self.dims(operand))}")
        self.build.operands[self.output(place).number] = operand

    def fold(self, value: Array, place: int = 0) -> None:
        """Lets an output be a constant."""
        number = self.output(place).number
        if value.shape != self.output(place).shape:
            raise InexpressibleError(f"the file gives its result a shape other than {list(value.shape)}, which is due")
        self.build.values[number] = value

    def whole(self, value: float) -> int:
        """An INT32 parameter.

        Raises:
            InexpressibleError: it does not fit.
        """
        if not -LARGEST_INT32 - 1 <= value <= LARGEST_INT32:
            raise InexpressibleError(f"the parameter {value} does not fit into 32 bits")
        return self.build.assembly.int32(int(value))

    def flag(self, value: float) -> int:
        """A BOOL parameter."""
        return self.build.assembly.flag(bool(value))

    def real(self, value: float, like: int) -> int:
        """A real parameter: FLOAT16 beside operands of that type."""
        half = self.kind(like).type == OperandType.TENSOR_FLOAT16
        return self.build.assembly.scalar(OperandType.FLOAT16 if half else OperandType.FLOAT32, float(value))

    def row(self, values: Sequence[int]) -> int:
        """A constant TENSOR_INT32 of rank 1."""
        return self.build.shape_constant(values)

    def filled(self, value: float, kind: Kind, shape: Shape = (1,)) -> int:
        """A constant tensor with one value throughout."""
        dtype = info(kind.type).dtype
        self.build.allowance.take(math.prod(shape) * dtype.itemsize)
        return self.build.assembly.constant(kind, np.full(shape, value, dtype))

    def activation(self, code: float) -> int:
        """A fused activation as a parameter.

        Raises:
            InexpressibleError: the contract has no such one.
        """
        if code not in ACTIVATIONS:
            raise InexpressibleError(f"the fused activation {int(code)} is none, RELU, RELU_N1_TO_1 or RELU6")
        return self.whole(ACTIVATIONS[int(code)])

    # --- operations ---------------------------------------------------------------------------------------------------

    def add(self, code: OperationType, inputs: Sequence[int], *results: int | Kind) -> list[int]:
        """Adds an operation; see `Building.add`."""
        return self.build.add(code, inputs, results)

    def apply(self, code: OperationType, inputs: Sequence[int], result: int | Kind | None = None) -> int:
        """Adds an operation with one result, which has the kind of the first input when it is not told."""
        return self.add(code, inputs, self.kind(inputs[0]) if result is None else result)[0]

    def reals(self, operand: int) -> int:
        """An operand's real numbers: steps are dequantised."""
        if not self.build.is_quantized(operand):
            return operand
        return self.apply(OperationType.DEQUANTIZE, [operand], FLOAT32)

    def in_reals(self, compute: Callable[[list[int], int], None], operands: Sequence[int]) -> None:
        """Computes the first output in real numbers and quantises it once, where steps go in or come out.

        Args:
            compute: adds the operations, given operands and where the result goes.
            operands: what goes in.
        """
        result = self.result()
        twin = self.build.assembly.temporary(FLOAT32, self.dims(result)) if self.build.is_quantized(result) else result
        compute([self.reals(operand) for operand in operands], twin)
        if twin != result:
            self.apply(OperationType.QUANTIZE, [twin], result)

    def compute(self, code: OperationType, operands: Sequence[int], parameters: Sequence[int] = ()) -> None:
        """Adds an operation for the first output; by way of real numbers where it does not take the steps."""
        result = self.result()
        direct = [*operands, *parameters]
        if self.build.fits(code, direct, [result]) or not self._steps([*operands, result]):
            self.apply(code, direct, result)
            return

        def write(reals: list[int], into: int) -> None:
            self.apply(code, [*reals, *parameters], into)

        self.in_reals(write, operands)

    def reshaped(self, operand: int, result: int | None = None) -> None:
        """Copies an operand into the first output, or another operand, with the dimensions of that one."""
        into = self.result() if result is None else result
        inputs = [operand, self.row(self.dims(into))]
        if self.dims(operand) == self.dims(into) and not self.build.fits(OperationType.RESHAPE, inputs, [into]):
            self.apply(OperationType.CAST, [operand], into)
        else:
            self.apply(OperationType.RESHAPE, inputs, into)

    def view(self, operand: int, shape: Shape) -> int:
        """An operand with other dimensions; itself where it has them."""
        if self.dims(operand) == shape:
            return operand
        return self.apply(OperationType.RESHAPE, [operand, self.row(shape)])

    def _steps(self, operands: Sequence[int]) -> bool:
        return any(self.kind(operand).type in QUANTIZED for operand in operands)
