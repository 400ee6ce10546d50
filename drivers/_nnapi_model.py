"""Builds models through the C interface, operand by operand, the way an application does."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char, c_float, c_int32, c_uint32
from typing import Any

from drivers._nnapi_library import ChannelQuantStruct, Library, OperandTypeStruct
from drivers._nnapi_memory import Pools, address_of, by_pointer
from nnhal.errors import DriverError
from nnhal.model import ChannelQuant, DataLocation, Model, Operand, Subgraph
from nnhal.types import ErrorStatus, OperandLifeTime, is_extension

PREFIX_BITS = 16


class NativeModel:
    """A finished model of the library, with all that it refers to. Freed with `close`.

    Args:
        library: whose model.
        model: what to build; one that the C interface can express.

    Raises:
        DriverError: the library refuses it, or it needs what the library does not have.
    """

    def __init__(self, library: Library, model: Model) -> None:
        self.library = library
        self.model = model
        self.address = 0
        self._kept: list[Any] = []  # what the library may point into until the model is freed
        self._addresses: list[int] = []
        self._pools = Pools(library, model.pools)
        self._graphs: dict[int, int] = {}
        try:
            self.address = self._build(model.main)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Frees the model, then those that it refers to, then memory. A second call does nothing."""
        while self._addresses:
            self.library.free("Model_free", self._addresses.pop())
        self._pools.close()
        self._kept.clear()

    def _build(self, graph: Subgraph) -> int:
        # Those that it refers to come first: they must be finished, and outlive it.
        for operand in graph.operands:
            if operand.lifetime == OperandLifeTime.SUBGRAPH and operand.location.offset not in self._graphs:
                self._graphs[operand.location.offset] = self._build(self.model.referenced[operand.location.offset])
        call = self.library.call
        address = self.library.make("Model_create")
        self._addresses.append(address)
        for operand in graph.operands:
            call("Model_addOperand", address, ctypes.byref(self._type(address, operand)))
        for index, operand in enumerate(graph.operands):
            self._fill(address, index, operand)
        for operation in graph.operations:
            inputs, outputs = _indexes(operation.inputs), _indexes(operation.outputs)
            code = self._code("Operation", address, operation.type)
            call("Model_addOperation", address, code, len(inputs), inputs, len(outputs), outputs)
        inputs, outputs = _indexes(graph.input_indexes), _indexes(graph.output_indexes)
        call("Model_identifyInputsAndOutputs", address, len(inputs), inputs, len(outputs), outputs)
        relaxed = self.model.relax_computation_float32_to_float16 and graph is self.model.main
        if relaxed and self.library.has("Model_relaxComputationFloat32toFloat16"):  # a permission, no demand
            call("Model_relaxComputationFloat32toFloat16", address, True)
        call("Model_finish", address)
        return address

    def _type(self, address: int, operand: Operand) -> OperandTypeStruct:
        dimensions = (c_uint32 * len(operand.dimensions))(*operand.dimensions)
        code = self._code("Operand", address, operand.type)
        return OperandTypeStruct(code, len(dimensions), dimensions, operand.scale, operand.zero_point)

    def _code(self, kind: str, address: int, code: int) -> int:
        """The library's number for a type or operation: its own for those of extensions."""
        if not is_extension(code):
            return int(code)
        prefix, number = (code >> PREFIX_BITS) & 0xFFFF, code & 0xFFFF
        name = next((row.name for row in self.model.extension_name_to_prefix if row.prefix == prefix), None)
        if name is None:
            raise DriverError(ErrorStatus.INVALID_ARGUMENT, f"code {code} belongs to no extension of the model")
        found = c_int32()
        self.library.call(f"Model_getExtension{kind}Type", address, name.encode(), number, ctypes.byref(found))
        return found.value

    def _fill(self, address: int, index: int, operand: Operand) -> None:
        """Gives an operand its extra parameters and its value."""
        call, lifetime, place = self.library.call, operand.lifetime, operand.location
        extra = operand.extra_params
        if isinstance(extra, ChannelQuant):
            scales = (c_float * len(extra.scales))(*extra.scales)
            quant = ChannelQuantStruct(extra.channel_dim & 0xFFFFFFFF, len(scales), scales)
            call("Model_setOperandSymmPerChannelQuantParams", address, index, ctypes.byref(quant))
        elif extra is not None:
            if not is_extension(operand.type):
                raise DriverError(ErrorStatus.INVALID_ARGUMENT, f"operand {index} has parameters that its type has not")
            call("Model_setOperandExtensionData", address, index, bytes(extra), len(extra))
        if lifetime == OperandLifeTime.CONSTANT_COPY:
            data = self.model.operand_values[place.offset : place.offset + place.length]
            kept = (c_char * max(len(data), 1)).from_buffer_copy(data or b"\0")
            self._kept.append(kept)
            call("Model_setOperandValue", address, index, ctypes.addressof(kept), len(data))
        elif lifetime == OperandLifeTime.CONSTANT_REFERENCE:
            self._refer(address, index, place)
        elif lifetime == OperandLifeTime.NO_VALUE:
            call("Model_setOperandValue", address, index, None, 0)
        elif lifetime == OperandLifeTime.SUBGRAPH:
            call("Model_setOperandValueFromModel", address, index, self._graphs[place.offset])

    def _refer(self, address: int, index: int, place: DataLocation) -> None:
        """Gives an operand a value that lies in a pool."""
        call, pool = self.library.call, self.model.pools[place.pool_index]
        if by_pointer(pool) and place.offset + place.length <= pool.size:
            view = pool.view()[place.offset : place.offset + place.length]
            self._kept.append(view)
            call("Model_setOperandValue", address, index, address_of(view) or None, place.length)
            return
        memory = self._pools.memory(place.pool_index)
        call("Model_setOperandValueFromMemory", address, index, memory, place.offset, place.length)


def _indexes(values: Sequence[int]) -> Any:
    return (c_uint32 * len(values))(*values)
