"""An ONNX graph as plain data: what is left of a file once it has been looked through, and what goes wrong with a node.

Sources: the ONNX intermediate representation and its operator documents, opsets 7 to 23.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from nnhal.types import Array, FusedActivation

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Array


class Refusal(Exception):
    """Why a node cannot be expressed, in a few words. Never leaves the package: it becomes an `Inexpressible`."""


@dataclass(frozen=True)
class Untold:
    """The value of a tensor that the importer does not read, and why."""

    reason: str


@dataclass(frozen=True)
class Declared:
    """What a file says of a tensor.

    Attributes:
        dtype: NumPy's name of its type, or the file's where NumPy has none.
        dimensions: sizes, names of sizes, or None for what is not said; None where the rank is not said.
    """

    name: str
    dtype: str
    dimensions: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Node:
    """An operator of a graph.

    Attributes:
        number: in the main graph, from 0; nodes of inner graphs have the number of the node that holds them.
        domain: "" for the standard's own operators.
        inputs: names of tensors; "" for one that is left out.
        graphs: attributes that are graphs.
        version: of the operators of its domain.
        activation: what the importer has fused into it.
        rewired: whether the importer has joined it with the conversions around it, so that quantised tensors stand for
            the real ones of the file.
    """

    number: int
    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    version: int = 13
    activation: FusedActivation = FusedActivation.NONE
    rewired: bool = False

    def whole(self, name: str, default: int) -> int:
        """An integer attribute.

        Raises:
            Refusal: it is of another kind; so do the other readers of attributes.
        """
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise Refusal(f"attribute {name} is no integer")
        return value

    def real(self, name: str, default: float) -> float:
        """A number."""
        value = self.attributes.get(name, default)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Refusal(f"attribute {name} is no finite number")
        return float(value)

    def text(self, name: str, default: str) -> str:
        """A text."""
        value = self.attributes.get(name, default)
        if not isinstance(value, str):
            raise Refusal(f"attribute {name} is no text")
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of texts, or None where it is not given."""
        value = self.attributes.get(name)
        if value is None:
            return None
        if not isinstance(value, tuple):
            raise Refusal(f"attribute {name} is no list of texts")
        return tuple(str(one) for one in value)

    def whole_list(self, name: str) -> tuple[int, ...] | None:
        """A list of integers, or None where it is not given."""
        value = self.attributes.get(name)
        if value is None:
            return None
        if not isinstance(value, tuple) or not all(isinstance(one, int) for one in value):
            raise Refusal(f"attribute {name} is no list of integers")
        return tuple(int(one) for one in value)

    def array(self, name: str) -> Array | None:
        """A tensor, or None where it is not given."""
        value = self.attributes.get(name)
        if value is not None and not isinstance(value, np.ndarray):
            raise Refusal(f"attribute {name} is no tensor that is read")
        return value

    def graph(self, name: str) -> Graph:
        """A graph."""
        if name not in self.graphs:
            raise Refusal(f"there is no graph {name}")
        return self.graphs[name]

    def has_input(self, position: int) -> bool:
        """Whether an optional input is given."""
        return position < len(self.inputs) and bool(self.inputs[position])


@dataclass(frozen=True)
class Graph:
    """Nodes in an order that can be executed.

    Attributes:
        constants: values that the file holds, by tensor; what the importer does not read as `Untold`.
        inputs: without those that the file gives a value to.
        declared: what the file says of other tensors, by name.
    """

    name: str
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array | Untold]
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    declared: Mapping[str, Declared] = field(default_factory=dict)
