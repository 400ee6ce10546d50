"""Driver-managed buffers: memory that the library makes for certain inputs and outputs of compiled models."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from ctypes import c_uint32

from drivers._nnapi_library import Library
from drivers._nnapi_memory import BufferMemories, memory_from
from drivers._nnapi_prepared import NativePreparedModel
from nnhal.device import Buffer, BufferDesc, BufferRole
from nnhal.errors import invalid
from nnhal.memory import Memory, SharedMemory
from nnhal.model import combine_dimensions


class NativeBuffers:
    """All buffers of a device."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.memories = BufferMemories(library)
        self._tokens = itertools.count(1)

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[NativePreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        """A new buffer for the roles.

        Raises:
            DriverError: the library refuses a role or the dimensions, or a role names no prepared model.
        """
        library = self.library
        made = library.make("MemoryDesc_create")
        whole = desc.dimensions
        try:
            for kind, roles in (("Input", input_roles), ("Output", output_roles)):
                for role in roles:
                    if not 0 <= role.model_index < len(prepared_models) or role.io_index < 0:
                        raise invalid(f"prepared model {role.model_index} of {len(prepared_models)}")
                    prepared = prepared_models[role.model_index]
                    library.call(f"MemoryDesc_add{kind}Role", made, prepared.address, role.io_index, role.probability)
                    main = prepared.model.main
                    indexes = main.input_indexes if kind == "Input" else main.output_indexes
                    whole = combine_dimensions(whole, main.operands[indexes[role.io_index]].dimensions) or whole
            if desc.dimensions:
                if min(desc.dimensions) < 0:
                    raise invalid(f"dimensions {desc.dimensions}")
                sizes = (c_uint32 * len(desc.dimensions))(*desc.dimensions)
                library.call("MemoryDesc_setDimensions", made, len(sizes), sizes)
            library.call("MemoryDesc_finish", made)
            address = library.make("Memory_createFromDesc", made)
        finally:
            library.free("MemoryDesc_free", made)
        token = next(self._tokens)
        self.memories.add(token, address)
        return _NativeBuffer(library, self.memories, token, whole)


class _NativeBuffer(Buffer):
    """Memory of the library."""

    def __init__(self, library: Library, memories: BufferMemories, token: int, dimensions: tuple[int, ...]) -> None:
        self.token = token
        self._library = library
        self._memories = memories
        self._dimensions = dimensions

    def copy_to(self, destination: Memory) -> None:
        self._copy(destination, outward=True)

    def copy_from(self, source: Memory, dimensions: tuple[int, ...] = ()) -> None:
        # The interface has no place for dimensions beside a copy: a memory of another size stands for other ones.
        if dimensions and combine_dimensions(dimensions, self._dimensions) is None:
            other = SharedMemory.create(source.size + 1)
            try:
                self._copy(other, outward=False)
            finally:
                other.close()
            raise invalid(f"dimensions {dimensions} do not fit a buffer of {self._dimensions}")
        self._copy(source, outward=False)

    def _copy(self, other: Memory, *, outward: bool) -> None:
        mine = self._memories.take(self.token)
        try:
            theirs = memory_from(self._library, other)
            try:
                self._library.call("Memory_copy", *((mine, theirs) if outward else (theirs, mine)))
            finally:
                self._library.free("Memory_free", theirs)
        finally:
            self._memories.give_back(self.token)

    def close(self) -> None:
        self._memories.forget(self.token)
