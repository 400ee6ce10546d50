"""The tensors of an ONNX graph under way, and what is known of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from importers.assembling import Kind, Shape
from importers.onnx_file.emitting import LOOKED_AT, STORED_TRUTH, Emitter, held
from importers.onnx_file.graph import Node, Refusal
from nnhal.model import ChannelQuant
from nnhal.types import Array, OperationType
from opset.definition import B8, F16, F32, I32, Q8, Q8CH, Q8S

KNOWN_RANK = 4  # most operations take no more dimensions
RANK_LIMIT = 32
PLAIN = {"float32": F32, "float16": F16, "int32": I32, "int64": I32, "bool": B8}
BYTES = {"uint8": Q8, "int8": Q8S}


class Lost(Refusal):
    """A tensor is not known because the node that writes it was refused."""


@dataclass(frozen=True)
class Quantization:
    """What stored integers stand for: scale * (stored - zero point).

    Attributes:
        axis: along which scales lie; None for one scale.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None = None


@dataclass
class Tensor:
    """A tensor of the file.

    Attributes:
        value: where it is known without running anything.
        operand: its place in the model, once it has one. Its dimensions are those of the tensor, but [1] for rank 0,
            and for ranks above 4 any with the same elements in the same order.
        source: the quantised tensor whose real value this is; `operand` is then made when somebody asks.
        origin: number of the node that writes it.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: Shape
    value: Array | None = None
    operand: int | None = None
    source: Tensor | None = None
    origin: int = 0


@dataclass
class Work(Emitter):
    """A graph under way.

    Attributes:
        tensors: by name; None for what a refused node would have written.
        quantization: of stored integers, by tensor, as far as the file says it anywhere.
        untold: tensors whose value the importer does not read, with the reason.
    """

    tensors: dict[str, Tensor | None] = field(default_factory=dict)
    quantization: dict[str, Quantization] = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)
    _placed: list[Tensor] = field(default_factory=list)

    def input(self, node: Node, position: int) -> Tensor:
        """An input of a node that must be there.

        Raises:
            Refusal: it is left out, or not known.
        """
        if not node.has_input(position):
            raise Refusal(f"input {position} is left out")
        return self.tensor(node.inputs[position])

    def optional(self, node: Node, position: int) -> Tensor | None:
        """An input of a node that may be left out."""
        return self.tensor(node.inputs[position]) if node.has_input(position) else None

    def tensor(self, name: str) -> Tensor:
        """A tensor that has been written.

        Raises:
            Lost: its node was refused.
            Refusal: the file's value of it is not read.
        """
        if name in self.untold:
            raise Refusal(self.untold[name])
        tensor = self.tensors.get(name)
        if tensor is None:
            raise Lost(f"{name!r} is not known")
        return tensor

    def known(self, node: Node, position: int, what: str) -> Array:
        """The value of an input that must be known at import.

        Raises:
            Refusal: only a run knows it.
        """
        tensor = self.input(node, position)
        if tensor.value is None:
            raise Refusal(f"known only when the model runs: {what}")
        return tensor.value

    def whole_list(self, node: Node, position: int, what: str) -> tuple[int, ...] | None:
        """A known list of integers; None where the input is left out."""
        if not node.has_input(position):
            return None
        value = self.known(node, position, what)
        if value.dtype.kind not in "iu" or value.size > LOOKED_AT:
            raise Refusal(f"{what} is no list of integers")
        return tuple(int(one) for one in value.reshape(-1))

    def kind(self, tensor: Tensor) -> Kind:
        """What a tensor is as an operand.

        Raises:
            Refusal: no operand type has its elements.
        """
        name = tensor.dtype.name
        if name in PLAIN:
            return Kind(PLAIN[name])
        if name not in BYTES:
            raise Refusal(f"{tensor.name!r} is of type {name}, which no operand type has")
        quantization = self.quantization.get(tensor.name)
        if quantization is None:
            return Kind(BYTES[name], 1.0, 0)
        if quantization.axis is None:
            return Kind(BYTES[name], quantization.scales[0], quantization.zero_points[0])
        if name == "uint8" or any(quantization.zero_points):
            raise Refusal(f"{tensor.name!r} has several scales, and zero points other than 0")
        return Kind(Q8CH, channel=ChannelQuant(quantization.axis, quantization.scales))

    def result_kind(self, node: Node, operand: int, position: int = 0) -> Kind:
        """What a node's result is: quantised as the file says, of the type of an operand."""
        kind = self.kind_of(operand)
        quantization = self.quantization.get(node.outputs[position])
        if kind.type not in (Q8, Q8S) or quantization is None or quantization.axis is not None:
            return kind
        return Kind(kind.type, quantization.scales[0], quantization.zero_points[0])

    def write(self, name: str, tensor: Tensor) -> None:
        """Makes a tensor known under a name."""
        if len(tensor.shape) > RANK_LIMIT:
            raise Refusal(f"{name!r} has {len(tensor.shape)} dimensions")
        tensor.origin = self.assembly.origin
        self.tensors[name] = tensor
        if tensor.operand is not None:
            self._placed.append(tensor)

    def give(self, node: Node, operand: int, shape: Shape, dtype: np.dtype[np.generic], position: int = 0) -> None:
        """Makes an operand, with as many elements, a result of a node.

        A quantised operand that stands for a boolean tensor becomes one again.
        """
        if position >= len(node.outputs) or not node.outputs[position]:
            return
        name = node.outputs[position]
        if 0 < len(shape) <= KNOWN_RANK:
            operand = self.reshape(operand, shape)
        operand = self.truths(operand) if dtype == np.bool_ else operand
        if self.result_kind(node, operand, position) != self.kind_of(operand):
            raise Refusal(f"{name!r} has another scale or zero point than what it is made of")
        self.write(name, Tensor(name, dtype, shape, operand=operand))

    def same(self, node: Node, tensor: Tensor, position: int = 0) -> None:
        """Makes a tensor a result of a node under another name."""
        if position < len(node.outputs) and node.outputs[position]:
            name = node.outputs[position]
            copy = Tensor(name, tensor.dtype, tensor.shape, tensor.value, tensor.operand, tensor.source)
            if tensor.name in self.quantization:
                own = self.quantization.setdefault(name, self.quantization[tensor.name])
                if own != self.quantization[tensor.name]:
                    raise Refusal(f"{name!r} has another scale or zero point than what it is made of")
            self.write(name, copy)

    def computed(self, name: str, value: Array) -> None:
        """Makes a value known."""
        self.write(name, Tensor(name, value.dtype, value.shape, np.asarray(value)))

    # --- operands of tensors ------------------------------------------------------------------------------------------

    def operand(self, tensor: Tensor, shape: Shape | None = None) -> int:
        """The operand of a tensor, in its own dimensions or others.

        Raises:
            Refusal: it cannot be one.
        """
        due = held(tensor.shape if shape is None else shape)
        if 0 in due:
            raise Refusal(f"{tensor.name!r} has no elements")
        if tensor.operand is None and tensor.value is not None:
            return self.constant(self.kind(tensor), tensor.value.reshape(due), tensor.name)
        if tensor.operand is None and tensor.source is not None:
            origin, self.assembly.origin = self.assembly.origin, tensor.origin
            try:
                tensor.operand = self.dequantized(tensor.source, tensor.dtype)
                self._placed.append(tensor)
            finally:
                self.assembly.origin = origin
        if tensor.operand is None:
            raise Refusal(f"{tensor.name!r} cannot be an operand: it is of type {tensor.dtype}")
        return self.reshape(tensor.operand, due)

    def movable(self, tensor: Tensor, shape: Shape | None = None) -> int:
        """As `operand`, for operations that only move values: those have no boolean tensors, so it becomes bytes."""
        if tensor.dtype != np.bool_:
            return self.operand(tensor, shape)
        if tensor.value is not None:
            return self.constant(STORED_TRUTH, tensor.value.reshape(held(tensor.shape if shape is None else shape)))
        stored = self.numbers(self.operand_as_is(tensor), STORED_TRUTH)
        return self.reshape(stored, held(tensor.shape if shape is None else shape))

    def operand_as_is(self, tensor: Tensor) -> int:
        """The operand of a tensor in whatever dimensions it is held."""
        return self.operand(tensor) if tensor.operand is None else tensor.operand

    def dequantized(self, source: Tensor, dtype: np.dtype[np.generic]) -> int:
        """The real value of a quantised tensor."""
        operand = self.operand_as_is(source)
        return self.emit(OperationType.DEQUANTIZE, (operand,), Kind(PLAIN[dtype.name]))

    def rewind(self, mark: tuple[int, int]) -> None:
        """Takes back what has been added since a point; tensors written since keep no operand."""
        super().rewind(mark)
        while self._placed and (self._placed[-1].operand or 0) >= mark[0]:
            self._placed.pop().operand = None
