"""Reads PyTorch's files of weights, of the zip format and of the older one, without PyTorch and without running them.

Both hold pickles. These are read with a short list of opcodes and three callables, of which each pickle gets fresh
copies: whatever a file says, nothing is imported, called or changed that is not made here.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnhal.errors import UsageError
from nnhal.types import Array

MAGIC = 0x1950A86A20F9469CFC6C  # first pickle of the older format
LARGEST_MEMO = 2**20  # entries; the unpickler makes room for the largest number it meets
MOST_TUPLES = 20_000  # in a pickle: nested without end as keys of a dictionary they would exhaust the stack
MOST_DIMENSIONS = 8
STORAGES: Mapping[str, str] = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "<u1",
}
OPCODES = frozenset(
    [
        "PROTO",
        "FRAME",
        "STOP",
        "GLOBAL",
        "STACK_GLOBAL",
        "MARK",
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINFLOAT",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "EMPTY_DICT",
        "EMPTY_LIST",
        "EMPTY_TUPLE",
        "TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
        "SETITEM",
        "SETITEMS",
        "APPEND",
        "APPENDS",
        "REDUCE",
        "BUILD",
        "BINPERSID",
        "BINPUT",
        "LONG_BINPUT",
        "MEMOIZE",
        "BINGET",
        "LONG_BINGET",
    ]
)
DAMAGE = (
    pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, ValueError, TypeError, KeyError, IndexError,
    AttributeError, EOFError, OverflowError, NotImplementedError, RuntimeError, MemoryError, UnicodeError,
)  # fmt: skip


def state_dict(data: bytes, name: str) -> dict[str, Array]:
    """The tensors of a saved state dict by name, in their own dimensions and types.

    Args:
        data: the file.
        name: of the file, for messages.

    Raises:
        UsageError: the file is damaged, holds something else than tensors, or none.
    """
    try:
        found = _zipped(data) if data[:4] == b"PK\x03\x04" else _plain(data)
        if not isinstance(found, dict):
            raise ValueError("the top of it is no dictionary")
        tensors = {str(key): value.array() for key, value in found.items() if isinstance(value, _Tensor)}
    except DAMAGE as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{name} is no file of PyTorch weights that can be read: {words}; fetch it again") from None
    if not tensors:
        raise UsageError(f"{name} holds no tensors by name; save a model's state_dict() alone")
    return tensors


class _Tensor:
    """A tensor whose storage may come later in the file."""

    __slots__ = ("_offset", "_shape", "_storage", "_strides")

    def __init__(self, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        numbers = (offset, *shape, *strides)
        if not all(type(n) is int and 0 <= n < 2**40 for n in numbers) or len(shape) != len(strides):
            raise ValueError("a tensor's shape or strides are none")
        if len(shape) > MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {len(shape)} dimensions")
        self._storage, self._offset, self._shape, self._strides = storage, offset, shape, strides

    def array(self) -> Array:
        """The value, copied out of its storage."""
        if type(self._storage) is not _Storage or self._storage.values is None:
            raise ValueError("a tensor has no storage")
        values = self._storage.values
        count = 1
        for size in self._shape:
            count *= size
        last = self._offset + sum((size - 1) * step for size, step in zip(self._shape, self._strides, strict=True))
        if count > values.size or (count and last >= values.size):
            raise ValueError("a tensor reaches behind its storage")
        steps = tuple(step * values.itemsize for step in self._strides)
        rows = np.lib.stride_tricks.as_strided(values[self._offset :], self._shape, steps, writeable=False)
        return np.array(rows)


class _Storage:
    """Numbers in a row, which tensors refer to."""

    __slots__ = ("count", "dtype", "values")

    def __init__(self, dtype: np.dtype[Any], count: int) -> None:
        if type(count) is not int or not 0 <= count < 2**40:
            raise ValueError("a storage's size is none")
        self.dtype, self.count = dtype, count
        self.values: Array | None = None

    def fill(self, data: bytes) -> None:
        """Takes its bytes, which may be followed by padding."""
        if len(data) < self.count * self.dtype.itemsize:
            raise ValueError(f"a storage of {self.count} numbers has {len(data)} bytes")
        self.values = np.frombuffer(data, self.dtype, self.count)


class _StorageType:
    """What `torch.FloatStorage` and its like stand for."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)


class _RebuildTensor:
    """What `torch._utils._rebuild_tensor_v2` stands for."""

    __slots__ = ()

    def __call__(self, storage: object, offset: Any, shape: Any, strides: Any, *rest: object) -> _Tensor:
        if type(storage) is not _Storage or type(shape) is not tuple or type(strides) is not tuple:
            raise ValueError("a tensor is not made of a storage, a shape and strides")
        return _Tensor(storage, offset, shape, strides)


class _RebuildParameter:
    """What `torch._utils._rebuild_parameter` stands for: the tensor within."""

    __slots__ = ()

    def __call__(self, tensor: object, *rest: object) -> object:
        return tensor


class _MakeDictionary:
    """What `collections.OrderedDict` stands for."""

    __slots__ = ()

    def __call__(self) -> OrderedDict[object, object]:
        return OrderedDict()


class _Unpickler(pickle.Unpickler):
    """Gives fresh objects for the few names that state dicts hold, and refuses all others."""

    def __init__(self, file: io.BytesIO, storage: Callable[[_StorageType, str, int], _Storage]) -> None:
        super().__init__(file, encoding="utf-8")
        self._storage = storage

    def find_class(self, module: str, name: str, /) -> Any:
        if module == "torch" and name in STORAGES:
            return _StorageType(STORAGES[name])
        made = {
            ("torch._utils", "_rebuild_tensor_v2"): _RebuildTensor,
            ("torch._utils", "_rebuild_parameter"): _RebuildParameter,
            ("collections", "OrderedDict"): _MakeDictionary,
        }.get((module, name))
        if made is None:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no tensor")
        return made()

    def persistent_load(self, pid: Any, /) -> Any:
        kind, storage_type, key, _, count, *view = pid
        if kind != "storage" or type(storage_type) is not _StorageType or any(part is not None for part in view):
            raise pickle.UnpicklingError("it refers to something else than a storage")
        return self._storage(storage_type, str(key), count)


def _load(file: io.BytesIO, storage: Callable[[_StorageType, str, int], _Storage]) -> Any:
    """The next pickle of a file, whose opcodes are looked at before it is read."""
    start, tuples = file.tell(), 0
    for opcode, argument, _ in pickletools.genops(file):
        tuples += opcode.name.startswith("TUPLE")
        if opcode.name not in OPCODES:
            raise pickle.UnpicklingError(f"a pickle uses {opcode.name}, which no state dict needs")
        if opcode.name == "LONG_BINPUT" and isinstance(argument, int) and argument > LARGEST_MEMO:
            raise pickle.UnpicklingError(f"a pickle numbers its objects up to {argument}")
    if tuples > MOST_TUPLES:
        raise pickle.UnpicklingError(f"a pickle has {tuples} tuples, where {MOST_TUPLES} are enough")
    end = file.tell()
    loaded = _Unpickler(io.BytesIO(file.getbuffer()[start:end]), storage).load()
    file.seek(end)
    return loaded


def _plain(data: bytes) -> Any:
    """The older format: four pickles, the list of storages, then their numbers one after the other."""
    file = io.BytesIO(data)
    storages: dict[str, _Storage] = {}

    def storage(kind: _StorageType, key: str, count: int) -> _Storage:
        if key not in storages:
            storages[key] = _Storage(kind.dtype, count)
        return storages[key]

    magic = _load(file, storage)
    if magic != MAGIC:
        raise ValueError("it does not begin as one")
    _load(file, storage)  # the format's version
    system = _load(file, storage)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise ValueError("its numbers are not little-endian")
    found = _load(file, storage)
    for key in _load(file, storage):
        count = int.from_bytes(file.read(8), "little")
        one = storages[key]
        if count != one.count:
            raise ValueError(f"a storage of {one.count} numbers is followed by {count}")
        one.fill(file.read(count * one.dtype.itemsize))
    return found


def _zipped(data: bytes) -> Any:
    """The zip format: a pickle, and each storage as a member of its own."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        top = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(top) != 1:
            raise ValueError("there is no data.pkl in it")
        folder = top[0].rsplit("/", 1)[0]
        if f"{folder}/byteorder" in names and _member(archive, f"{folder}/byteorder", len(data)) != b"little":
            raise ValueError("its numbers are not little-endian")
        storages: dict[str, _Storage] = {}

        def storage(kind: _StorageType, key: str, count: int) -> _Storage:
            if key not in storages:
                storages[key] = _Storage(kind.dtype, count)
                storages[key].fill(_member(archive, f"{folder}/data/{key}", len(data)))
            return storages[key]

        return _load(io.BytesIO(_member(archive, top[0], len(data))), storage)


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A member's bytes; PyTorch stores them as they are, so none is larger than the file."""
    if archive.getinfo(name).file_size > limit:
        raise ValueError(f"its member {name} is larger than the file")
    return archive.read(name)
