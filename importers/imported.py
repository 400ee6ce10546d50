"""What a file of a runtime becomes: a model of the contract, and how its tensors and operators are found in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.types import Array, info


class UnreadableFile(UsageError):
    """A file is damaged, or of a kind or version that is not read; the text names it and says where."""


@dataclass(frozen=True)
class Port:
    """An input or output of a file's graph.

    Attributes:
        name: in the file.
        dtype: the NumPy name of its type in the file, such as "float32" or "int64".
        dimensions: in the file's own order; 0 is an unknown size, as in the contract.
        scale: 0.0 where it is not quantised.
        operand: its operand in the model's main graph; -1 where there is no model.
    """

    name: str
    dtype: str
    dimensions: tuple[int, ...]
    scale: float = 0.0
    zero_point: int = 0
    operand: int = -1


@dataclass(frozen=True)
class Inexpressible:
    """An operator that no operations of the contract express.

    Attributes:
        number: in the file's graph, from 0.
        operator: its name there.
        reason: why, in a few words that name the parameter or type.
    """

    number: int
    operator: str
    reason: str


@dataclass(frozen=True)
class Imported:
    """A file's graph.

    Attributes:
        name: of the file or graph, for people.
        model: None where some operator cannot be expressed.
        operators: names of the file's operators, in its order.
        missing: those that cannot be expressed.
        places: a tensor of the file (its name, or its number as text where names are not unique) to its operand in the
            model's main graph. Tensors that the model does not hold are left out.
        origins: for each operation of the model's main graph, the number of the file's operator that it is part of; -1
            for one that only copies an input or a constant to an output.
        level: the lowest feature level that has all operations.
        states: how many of the last inputs, and of the last outputs, are states: zeros before the first run, and what
            one run gives is what the next one takes, in this order.
    """

    name: str
    model: Model | None
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: tuple[str, ...]
    missing: tuple[Inexpressible, ...] = ()
    places: Mapping[str, int] = field(default_factory=dict)
    origins: tuple[int, ...] = ()
    level: int = 1
    states: int = 0

    def require(self) -> Model:
        """The model.

        Raises:
            UsageError: some operator cannot be expressed; the text names each with its reason.
        """
        if self.model is None:
            words = "; ".join(f"operator {one.number} {one.operator}: {one.reason}" for one in self.missing)
            raise UsageError(f"{self.name} cannot be expressed as a model: {words}")
        return self.model


def to_operand(value: Array, operand_type: int) -> Array:
    """A value in a file's type as the value of an operand: 64-bit integers become 32-bit ones, truths bytes.

    Raises:
        UsageError: an integer does not fit.
    """
    dtype = np.dtype(info(operand_type).dtype)
    if value.dtype.kind in "iu" and dtype.kind in "iu" and value.size:
        limits = np.iinfo(dtype)
        if int(value.min()) < limits.min or int(value.max()) > limits.max:
            raise UsageError(f"a value outside {limits.min}..{limits.max} does not fit into {dtype.name}")
    return np.ascontiguousarray(value.astype(dtype))
