"""A call: an operation with its operands, types, shapes, quantisation and values. What rules and kernels look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from nnhal.model import ChannelQuant
from nnhal.operations import Signature
from nnhal.types import FL8, Array, FeatureLevel, OperandType
from opset.quantization import QUANTIZED

if TYPE_CHECKING:
    from opset.branch import Branch
    from opset.definition import OperationDef


@dataclass(frozen=True)
class Argument:
    """An operand as a call sees it.

    Attributes:
        shape: dimensions; () for scalars.
        value: in the stored form; None while it is not known.
        omitted: the operand has no value (lifetime NO_VALUE).
        key: which operand of a scope it is; None for one that is in none.
        declared: dimensions that a model declares, where they leave open (0) what only the values decide.
        branch: the graph that a SUBGRAPH operand refers to.
    """

    type: OperandType
    shape: tuple[int, ...] = ()
    scale: float = 0.0
    zero_point: int = 0
    channel: ChannelQuant | None = None
    value: Array | None = None
    omitted: bool = False
    key: int | None = None
    declared: tuple[int, ...] | None = None
    branch: Branch | None = None

    # By hand: what a frozen dataclass makes for itself takes three times as long, and graphs have thousands of these.
    def __init__(self, type: OperandType, shape: tuple[int, ...] = (), scale: float = 0.0, zero_point: int = 0,
                 channel: ChannelQuant | None = None, value: Array | None = None, omitted: bool = False,
                 key: int | None = None, declared: tuple[int, ...] | None = None,
                 branch: Branch | None = None) -> None:  # fmt: skip
        own = self.__dict__
        own["type"] = type
        own["shape"] = shape
        own["scale"] = scale
        own["zero_point"] = zero_point
        own["channel"] = channel
        own["value"] = value
        own["omitted"] = omitted
        own["key"] = key
        own["declared"] = declared
        own["branch"] = branch

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @cached_property
    def reach(self) -> tuple[float, float] | None:
        """Smallest and largest real value (stored ones per channel); None where there is none, or not a number."""
        if self.value is None or not self.value.size:
            return None
        low, high = float(self.value.min()), float(self.value.max())
        if low != low:
            return None
        if self.type in QUANTIZED and self.channel is None:
            return (low - self.zero_point) * self.scale, (high - self.zero_point) * self.scale
        return low, high

    def keyed(self, key: int | None) -> Argument:
        """The same operand under another key."""
        changed = object.__new__(type(self))
        own = changed.__dict__
        own.update(self.__dict__)
        own["key"] = key
        return changed

    def declaring(self, dimensions: tuple[int, ...] | None) -> Argument:
        """The same operand with other declared dimensions."""
        changed = object.__new__(type(self))
        own = changed.__dict__
        own.update(self.__dict__)
        own["declared"] = dimensions
        return changed

    def holding(self, value: Array) -> Argument:
        """The same operand with a value, and its shape. Graphs of hundreds of operations need it to be quick."""
        changed = object.__new__(Argument)
        changed.__dict__.update(self.__dict__, value=value, shape=value.shape)
        changed.__dict__.pop("reach", None)
        return changed

    def item(self) -> int | float | bool:
        """A scalar's value as a Python number.

        Raises:
            ValueError: the value is not known.
        """
        if self.value is None:
            raise ValueError("the value is not known")
        raw = self.value.item(0)
        return bool(raw) if self.type == OperandType.BOOL else raw


@dataclass(frozen=True)
class Call:
    """An operation applied to operands.

    Attributes:
        inputs: by name, in the order of the form; trailing operands that are left off are not there.
        results: by name; empty until shapes and quantisation are settled.
        level: the level that the call is meant for.
    """

    definition: OperationDef
    signature: Signature
    inputs: Mapping[str, Argument]
    results: Mapping[str, Argument] = field(default_factory=dict)
    level: FeatureLevel = FL8

    def __init__(self, definition: OperationDef, signature: Signature, inputs: Mapping[str, Argument],
                 results: Mapping[str, Argument] | None = None, level: FeatureLevel = FL8) -> None:  # fmt: skip
        own = self.__dict__
        own["definition"] = definition
        own["signature"] = signature
        own["inputs"] = inputs
        own["results"] = {} if results is None else results
        own["level"] = level

    def __getitem__(self, name: str) -> Argument:
        """The input or result of that name; a trailing input that was left off has its default."""
        found = self.inputs.get(name) or self.results.get(name)
        if found is not None:
            return found
        operand = self.signature.form.operand(name)
        if operand.default is None or operand.type is None:
            raise KeyError(name)
        return scalar(operand.type, operand.default)

    def has(self, name: str) -> bool:
        """Whether an input was given and not omitted."""
        return name in self.inputs and not self.inputs[name].omitted

    def all(self, name: str) -> list[Argument]:
        """The operands of a variadic input or result, in order."""
        both = {**self.inputs, **self.results}
        return [a for n, a in both.items() if n.startswith(name) and n[len(name) :].isdigit()]

    def integer(self, name: str) -> int:
        """An integer scalar, or its default."""
        return int(self[name].item())

    def holding(self, inputs: Mapping[str, Argument], results: Mapping[str, Argument]) -> Call:
        """The same operation on other operands."""
        return Call(self.definition, self.signature, inputs, results, self.level)

    def with_input(self, name: str, argument: Argument) -> Call:
        """The same call with one input exchanged (or added at the end)."""
        return self.holding({**self.inputs, name: argument}, self.results)

    def with_result(self, name: str, argument: Argument) -> Call:
        """The same call with one result exchanged."""
        return self.holding(self.inputs, {**self.results, name: argument})

    def with_operand(self, name: str, argument: Argument) -> Call:
        """The same call with one input or result exchanged."""
        return self.with_result(name, argument) if name in self.results else self.with_input(name, argument)


SCALAR_DTYPES = {
    OperandType.FLOAT32: np.float32,
    OperandType.FLOAT16: np.float16,
    OperandType.INT32: np.int32,
    OperandType.UINT32: np.uint32,
    OperandType.BOOL: np.uint8,
}


def scalar(operand_type: OperandType, value: float | bool) -> Argument:
    """A scalar operand with a value."""
    if type(value) is int or type(value) is bool:
        return _whole_scalar(operand_type, value)
    return Argument(operand_type, (), value=np.array(value, SCALAR_DTYPES[operand_type]))


@lru_cache(maxsize=1024)
def _whole_scalar(operand_type: OperandType, value: int) -> Argument:
    """Most scalars are codes and small numbers: the same ones again and again."""
    array = np.array(value, SCALAR_DTYPES[operand_type])
    array.flags.writeable = False
    return Argument(operand_type, (), value=array)


def int32_tensor(values: object) -> Argument:
    """A TENSOR_INT32 of rank 1 (shapes, axes, permutations)."""
    array = np.asarray(values, np.int32)
    if array.ndim != 1:
        array = array.reshape(-1)
    return Argument(OperandType.TENSOR_INT32, array.shape, value=array)


def omitted(operand_type: OperandType) -> Argument:
    """An operand without a value. One of a quantised type still needs a legal scale."""
    return Argument(operand_type, (0,), 1.0 if operand_type in QUANTIZED else 0.0, omitted=True)


def with_value(call: Call, name: str, value: float | bool) -> Call:
    """The call with another value of a scalar input: the commonest way to break a rule."""
    return call.with_input(name, scalar(call[name].type, value))


def with_shape(call: Call, name: str, shape: tuple[int, ...]) -> Call:
    """The call with another shape of an input, its values repeated or cut to fit."""
    old = call[name]
    value = None if old.value is None else np.resize(old.value, shape).astype(old.value.dtype)
    return call.with_operand(name, replace(old, shape=shape, value=value))
