"""Operands and operations of a model under way, each operation held against the specification when it is added.

An operand type, a rank or a value that an operation does not take refuses the node, in the words of the broken rule. So
no translator needs to know what operations do not do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from importers.assembling import Assembly, Kind, Shape
from importers.imported import to_operand
from importers.onnx_file.graph import Node, Refusal
from nnhal.errors import UsageError
from nnhal.model import ChannelQuant, is_tensor, operand_size
from nnhal.types import Array, FusedActivation, OperandLifeTime, OperandType, OperationType, info
from opset import OPSET
from opset.call import SCALAR_DTYPES, Argument, Call
from opset.definition import B8, F16, F32, I32, Q8, OperationDef
from opset.validation import violations

LARGEST_TENSOR = 2**24  # elements of a tensor that the importer computes
LARGEST_SUM = 2**26  # elements of all of them
MOST_OPERATIONS = 50_000  # of all graphs of a file
LARGEST_OPERAND = 2**32 - 1  # bytes
LARGEST_INT32 = 2**31 - 1
LOOKED_AT = 2**16  # elements of an INT32 constant whose values rules look at
STORED_TRUTH = Kind(Q8, 1.0)


@dataclass
class Budget:
    """What the importer may compute, over all graphs of a file."""

    left: int = LARGEST_SUM
    operations: int = MOST_OPERATIONS

    def spend(self, elements: int) -> None:
        """Accounts for a tensor that is about to be computed.

        Raises:
            Refusal: it is too large, or all are.
        """
        if elements > LARGEST_TENSOR:
            raise Refusal(f"a known tensor of {elements} elements is too large to be computed at import")
        self.charge(elements)

    def charge(self, elements: int) -> None:
        """Accounts for a tensor that the file holds, each time that it is put in another form.

        Raises:
            Refusal: all together are too large.
        """
        self.left -= elements
        if self.left < 0:
            raise Refusal("known tensors are too large together to be computed at import")


@dataclass
class Emitter:
    """Adds operands and operations.

    Attributes:
        budget: shared by all graphs of a file.
    """

    assembly: Assembly = field(default_factory=Assembly)
    budget: Budget = field(default_factory=Budget)
    _values: dict[int, Array] = field(default_factory=dict)
    _reshaped: dict[tuple[int, Shape], int] = field(default_factory=dict)

    # --- operands -----------------------------------------------------------------------------------------------------

    def constant(self, kind: Kind, value: Array, name: str = "a constant") -> int:
        """A constant operand.

        Raises:
            Refusal: an integer of it does not fit.
        """
        self.budget.charge(value.size)
        try:
            stored = to_operand(value, kind.type)
        except UsageError as error:
            raise Refusal(f"{name}: {error}") from None
        index = self.assembly.constant(kind, stored)
        if kind.type == I32 and stored.size <= LOOKED_AT:
            self._values[index] = stored.reshape(held(stored.shape))
        return index

    def reals(self, like: int, value: Array | float) -> int:
        """A constant of the floating-point type of an operand."""
        kind = Kind(self.kind_of(like).type)
        if kind.type not in (F32, F16):
            raise Refusal(f"it is done for floating-point tensors only, not for {kind.type.name}")
        return self.constant(kind, np.asarray(value, np.float64).astype(info(kind.type).dtype))

    def whole(self, value: int) -> int:
        """An INT32 parameter.

        Raises:
            Refusal: it does not fit.
        """
        if not -LARGEST_INT32 <= value <= LARGEST_INT32:
            raise Refusal(f"the number {value} does not fit into 32 bits")
        return self._scalar(OperandType.INT32, int(value))

    def flag(self, value: bool) -> int:
        """A BOOL parameter."""
        return self._scalar(OperandType.BOOL, bool(value))

    def real(self, like: int, value: float) -> int:
        """A parameter of the scalar type that belongs to an operand: FLOAT16 beside float16 tensors."""
        half = self.kind_of(like).type == F16
        return self._scalar(OperandType.FLOAT16 if half else OperandType.FLOAT32, float(value))

    def whole_tensor(self, values: Iterable[int] | Array) -> int:
        """A TENSOR_INT32 of parameters."""
        array = np.asarray(values if isinstance(values, np.ndarray) else list(values), np.int64)
        return self.constant(Kind(I32), array, "a list of numbers")

    def dimensions(self, operand: int) -> Shape:
        """The dimensions of an operand."""
        return self.assembly.what(operand).dimensions

    def kind_of(self, operand: int) -> Kind:
        """What an operand is."""
        what = self.assembly.what(operand)
        channel = what.extra_params if isinstance(what.extra_params, ChannelQuant) else None
        return Kind(OperandType(what.type), what.scale, what.zero_point, channel)

    # --- operations ---------------------------------------------------------------------------------------------------

    def emit(self, code: OperationType, inputs: Sequence[int], kind: Kind | None = None) -> int:
        """Adds an operation with one result and gives that.

        Args:
            code: the operation.
            inputs: its operands.
            kind: of the result; that of the first input when None.

        Raises:
            Refusal: the operation does not take such operands.
        """
        return self.emit_all(code, inputs, [kind or self.kind_of(inputs[0])])[0]

    def emit_all(self, code: OperationType, inputs: Sequence[int], kinds: Sequence[Kind]) -> list[int]:
        """Adds an operation with a result of each kind."""
        self.budget.operations -= 1
        if self.budget.operations < 0:
            raise Refusal(f"the model would have more than {MOST_OPERATIONS} operations")
        definition = OPSET[code]
        types = [self.kind_of(index).type for index in inputs]
        signature = definition.info.match(types, [kind.type for kind in kinds])
        if signature is None:
            names = ", ".join(dict.fromkeys(t.name for t in types if is_tensor(t)))
            made = ", ".join(dict.fromkeys(kind.type.name for kind in kinds))
            raise Refusal(f"{code.name} does not make {made} of {names}")
        arguments = [self._argument(index) for index in inputs]
        if code == OperationType.GATHER:  # its rule looks at every index, which the translator has done
            arguments[2] = arguments[2].holding(np.zeros(1, np.int32))
            arguments[2].__dict__["shape"] = self.dimensions(inputs[2])
        names_in = signature.form.names(len(inputs))
        results = {
            name: Argument(kind.type, (), kind.scale, kind.zero_point, kind.channel)
            for name, kind in zip(definition.info.result_names(len(kinds)), kinds, strict=True)
        }
        call = Call(definition, signature, dict(zip(names_in, arguments, strict=True)), results)
        broken = violations(call)
        if broken:
            raise Refusal(f"{code.name} demands: {_text(definition, broken[0])}")
        shapes = definition.infer(call)
        outputs = []
        for name, kind in zip(results, kinds, strict=True):
            shape = tuple(int(size) for size in shapes[name])
            if min(shape) <= 0:
                raise Refusal(f"the result of {code.name} has no elements")
            outputs.append(self.assembly.temporary(kind, shape))
            if operand_size(self.assembly.what(outputs[-1])) > LARGEST_OPERAND:
                raise Refusal(f"the result of {code.name} has more than {LARGEST_OPERAND} bytes")
        self.assembly.add(code, inputs, outputs)
        return outputs

    def activation(self, node: Node | None = None) -> int:
        """The parameter for what is fused into a node; for nothing when there is none."""
        return self.whole(node.activation if node is not None else FusedActivation.NONE)

    def reshape(self, operand: int, shape: Shape) -> int:
        """The same values in other dimensions."""
        if self.dimensions(operand) == shape:
            return operand
        key = operand, shape
        if key not in self._reshaped:
            if self.kind_of(operand).type == B8:
                stored = self.numbers(operand, STORED_TRUTH)
                moved = self.emit(OperationType.RESHAPE, (stored, self.whole_tensor(shape)))
                self._reshaped[key] = self.truths(moved)
            else:
                self._reshaped[key] = self.emit(OperationType.RESHAPE, (operand, self.whole_tensor(shape)))
        return self._reshaped[key]

    def transposed(self, operand: int, permutation: Sequence[int], kind: Kind | None = None) -> int:
        """The same values with dimensions in another order."""
        if list(permutation) == sorted(permutation):
            return operand
        return self.emit(OperationType.TRANSPOSE, (operand, self.whole_tensor(permutation)), kind)

    def numbers(self, truth: int, kind: Kind) -> int:
        """1 for true and 0 for false. CAST does not take boolean tensors, SELECT does."""
        shape = self.dimensions(truth)
        self.budget.spend(2 * elements(shape))
        ones, zeros = (self.constant(kind, np.full(shape, value)) for value in (1, 0))
        return self.emit(OperationType.SELECT, (truth, ones, zeros), kind)

    def truths(self, operand: int) -> int:
        """A boolean tensor of one, or of the bytes that `numbers` makes of it."""
        if self.kind_of(operand).type == B8:
            return operand
        return self.emit(OperationType.NOT_EQUAL, (operand, self.constant(STORED_TRUTH, np.zeros(1))), Kind(B8))

    def mark(self) -> tuple[int, int]:
        """A point to go back to."""
        return self.assembly.mark()

    def rewind(self, mark: tuple[int, int]) -> None:
        """Takes back what has been added since a point."""
        self.assembly.rewind(mark)
        operands = mark[0]
        while self._reshaped and next(reversed(self._reshaped.values())) >= operands:
            self._reshaped.popitem()
        while self._values and next(reversed(self._values)) >= operands:
            self._values.popitem()

    def _scalar(self, kind: OperandType, value: float | bool) -> int:
        index = self.assembly.scalar(kind, value)
        if index not in self._values:
            self._values[index] = np.array(value, SCALAR_DTYPES[kind])
        return index

    def _argument(self, index: int) -> Argument:
        what = self.assembly.what(index)
        kind = self.kind_of(index)
        omitted = what.lifetime == OperandLifeTime.NO_VALUE
        return Argument(kind.type, what.dimensions, kind.scale, kind.zero_point, kind.channel,
                        self._values.get(index), omitted)  # fmt: skip


def _text(definition: OperationDef, label: str) -> str:
    return next((rule.text for rule in definition.rules if rule.label == label), label)


def elements(shape: Iterable[int]) -> int:
    """Number of elements."""
    return math.prod(shape)


def held(shape: Iterable[int]) -> Shape:
    """The dimensions of an operand for a tensor: rank 0 stands for an unknown rank there."""
    return tuple(shape) or (1,)
