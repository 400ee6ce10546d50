"""A graph of a .tflite file on its way into a model: which operand each tensor is, and checked operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from importers.assembling import FLOAT32, INT32, Assembly, Kind, Shape
from importers.imported import UnreadableFile, to_operand
from importers.tflite_file.contents import Graph, Tensor
from importers.tflite_file.kinds import (
    CONSTANT_LIMIT,
    CONSTANT_SLACK,
    PLAIN,
    QUANTIZED,
    InexpressibleError,
    dequantized,
    dimensions,
    kind_of,
)
from nnhal.errors import UsageError
from nnhal.model import ChannelQuant, Model, Subgraph
from nnhal.operations import ValidationRule
from nnhal.types import FL8, Array, OperandLifeTime, OperandType, OperationType, info
from opset import OPSET
from opset.call import Argument, Call
from opset.definition import ExecutionRule
from opset.validation import applies, holds

ENTRY = 1 << 12  # bytes that an operand or operation takes, about
NO_OPERATOR = -1  # origin of operations that only make outputs of what is there already


@dataclass
class Allowance:
    """What the constants of a model may still take, in bytes: small files can describe large ones many times over."""

    name: str
    left: int

    @classmethod
    def of(cls, data: bytes, name: str) -> Allowance:
        """The allowance of a file."""
        return cls(name, CONSTANT_LIMIT * len(data) + CONSTANT_SLACK)

    def take(self, size: int) -> None:
        """Takes bytes.

        Raises:
            UnreadableFile: there are not so many left.
        """
        self.left -= size
        if self.left < 0:
            raise UnreadableFile(f"{self.name} has constants that would be far larger than the file; make it smaller")


@dataclass
class Building:
    """A graph's model under way.

    Attributes:
        graph: in the file.
        allowance: of the whole file.
        branch: gives the model of another graph of the file, by number.
        assembly: where the operations go.
        operands: by number of the tensor; those of constants only where they were needed.
        values: of the constants, and of what was computed from constants alone, by number of the tensor.
        states: variable tensors that are read, with the operand that is their value before a run.
    """

    graph: Graph
    allowance: Allowance
    branch: Callable[[int], Model]
    assembly: Assembly = field(default_factory=Assembly)
    operands: dict[int, int] = field(default_factory=dict)
    values: dict[int, Array] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._given = {n for operator in self.graph.operators for n in operator.outputs}.union(self.graph.inputs)

    def value(self, number: int) -> Array | None:
        """The value of a constant tensor in the file's type; None where only a run knows it."""
        if number in self.values or number in self.operands:
            return self.values.get(number)
        return self.graph.tensors[number].value

    def operand(self, number: int) -> int:
        """The operand that a tensor is at this point of the graph.

        Raises:
            InexpressibleError: it can be none.
        """
        if number not in self.operands:
            tensor = self.graph.tensors[number]
            kind, value = kind_of(tensor), self.value(number)
            if value is not None:
                self.operands[number] = self.constant(kind, value)
                self.values.setdefault(number, value)
            elif tensor.variable and number not in self._given:
                self.operands[number] = self.states[number] = self.assembly.input(kind, dimensions(tensor.shape))
            else:
                self.operands[number] = self.assembly.temporary(kind, dimensions(tensor.shape))
        return self.operands[number]

    def constant(self, kind: Kind, value: Array) -> int:
        """A constant operand; 64-bit integers become 32-bit ones.

        Raises:
            InexpressibleError: a value does not fit, is of another kind, or there is none.
        """
        if not value.size:
            raise InexpressibleError("a constant has no elements")
        if (value.dtype.kind == "f") != (info(kind.type).dtype.kind == "f"):
            raise InexpressibleError(f"a constant has the type {value.dtype.name}, and {kind.type.name} is due")
        dtype = info(kind.type).dtype
        self.allowance.take(value.size * dtype.itemsize)
        try:
            return self.assembly.constant(kind, value if value.dtype == dtype else to_operand(value, kind.type))
        except UsageError as error:
            raise InexpressibleError(str(error)) from None

    def leave(self, number: int, operand: int) -> None:
        """Lets a tensor that an operator changes in place be another operand from here on."""
        self.operands[number] = operand

    def embed(self, model: Model) -> int:
        """An operand that refers to a graph, which is copied with all that it refers to."""
        self.allowance.take(len(model.operand_values) + ENTRY * (1 + sum(_entries(g) for g in model.referenced)))
        self.allowance.take(ENTRY * _entries(model.main))
        return self.assembly.graph(model)

    def floats(self, number: int) -> int:
        """A constant tensor of steps as float32: weights of hybrid operators."""
        value = self.value(number)
        if value is None:
            raise InexpressibleError(f"tensor {number} holds steps beside floats and is no constant")
        return self.constant(FLOAT32, dequantized(self.graph.tensors[number], value))

    def tensor(self, number: int) -> Tensor:
        """A tensor of the file."""
        return self.graph.tensors[number]

    def is_float(self, number: int) -> bool:
        """Whether a tensor holds real numbers."""
        return PLAIN.get(self.tensor(number).type) in (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)

    # --- operations ---------------------------------------------------------------------------------------------------

    def kind(self, operand: int) -> Kind:
        """Type and quantisation of an operand."""
        what = self.assembly.what(operand)
        channel = what.extra_params if isinstance(what.extra_params, ChannelQuant) else None
        return Kind(OperandType(what.type), what.scale, what.zero_point, channel)

    def shape(self, operand: int) -> Shape:
        """Dimensions of an operand."""
        return self.assembly.what(operand).dimensions

    def add(self, code: OperationType, inputs: Sequence[int], results: Sequence[int | Kind]) -> list[int]:
        """Adds an operation that keeps every rule of its definition.

        Args:
            code: which.
            inputs: operands.
            results: an operand that is written, whose dimensions must be due, or the kind of a new one.

        Returns:
            The operands of the results.

        Raises:
            InexpressibleError: the operation does not take these operands or does not give such results.
        """
        shapes = self._due(code, inputs, results)
        written = [
            self.assembly.temporary(result, shape) if isinstance(result, Kind) else result
            for result, shape in zip(results, shapes, strict=True)
        ]
        self.assembly.add(code, inputs, written)
        return written

    def fits(self, code: OperationType, inputs: Sequence[int], results: Sequence[int | Kind]) -> bool:
        """Whether `add` would take these."""
        try:
            self._due(code, inputs, results)
        except InexpressibleError:
            return False
        return True

    def _due(self, code: OperationType, inputs: Sequence[int], results: Sequence[int | Kind]) -> list[Shape]:
        """Shapes of the results of an operation, once it is known to be legal."""
        definition = OPSET[code]
        taken = [self._argument(operand) for operand in inputs]
        given = [self._result(result) for result in results]
        signature = definition.info.match([a.type for a in taken], [a.type for a in given])
        if signature is None:
            kinds = dict.fromkeys(a.type.name for a in (*taken, *given) if a.type.name.startswith("TENSOR"))
            raise InexpressibleError(f"{code.name} does not take {' with '.join(kinds)}")
        named = dict(zip(signature.form.names(len(taken)), taken, strict=True))
        results_named = dict(zip(definition.info.result_names(len(given)), given, strict=True))
        call = Call(definition, signature, named, results_named)
        self._check_rules(call)
        shapes = definition.infer(call)
        due = [tuple(shapes[name]) for name in results_named]
        for argument, shape in zip(given, due, strict=True):
            if argument.shape and argument.shape != shape:
                raise InexpressibleError(
                    f"the file gives its result the shape {list(argument.shape)}, and {list(shape)} is due"
                )
        return due

    def _argument(self, operand: int) -> Argument:
        what = self.assembly.what(operand)
        kind = self.kind(operand)
        return Argument(
            kind.type,
            what.dimensions,
            kind.scale,
            kind.zero_point,
            kind.channel,
            self.assembly.values.get(operand),
            what.lifetime == OperandLifeTime.NO_VALUE,
        )

    def _result(self, result: int | Kind) -> Argument:
        if isinstance(result, Kind):
            return Argument(result.type, (), result.scale, result.zero_point, result.channel)
        return self._argument(result)

    def _check_rules(self, call: Call) -> None:
        definition = call.definition
        for rule in definition.rules:
            if isinstance(rule, ValidationRule):
                # A result without dimensions has those that are due.
                known = all(call.results[name].shape for name in rule.operands if name in call.results)
                due = known and applies(rule, call, FL8)
            else:
                due = rule.until is None
            if due and not _holds(rule, call):
                raise InexpressibleError(f"{definition.name} demands that {rule.text}")

    # --- the ends of the graph ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Makes the graph's inputs.

        Raises:
            InexpressibleError: one cannot be an operand.
        """
        for number in self.graph.inputs:
            tensor = self.tensor(number)
            self.operands[number] = self.assembly.input(kind_of(tensor), dimensions(tensor.shape))

    def outputs(self) -> list[int]:
        """The operands of the graph's outputs and, behind them, of its states; each is written by an operation.

        Raises:
            InexpressibleError: one cannot be copied.
        """
        self.assembly.origin = NO_OPERATOR
        found: list[int] = []
        for number in (*self.graph.outputs, *self.states):
            operand = self.operand(number)
            lifetime = self.assembly.what(operand).lifetime
            if lifetime != OperandLifeTime.TEMPORARY_VARIABLE or operand in found:
                operand = self.add(OperationType.CAST, [operand], [self.kind(operand)])[0]
            found.append(operand)
        return found

    def shape_constant(self, values: Sequence[int]) -> int:
        """A constant TENSOR_INT32 of rank 1.

        Raises:
            InexpressibleError: a value does not fit, or there is none.
        """
        return self.constant(INT32, np.array(values, np.int64))

    def is_quantized(self, operand: int) -> bool:
        """Whether an operand holds 8-bit steps with one scale."""
        return self.kind(operand).type in QUANTIZED


def _entries(graph: Subgraph) -> int:
    return len(graph.operands) + len(graph.operations)


def _holds(rule: ValidationRule | ExecutionRule, call: Call) -> bool:
    """Whether a rule is kept; one that needs a value that only a run knows is not looked at."""
    try:
        return holds(rule, call)
    except ValueError:
        return True
