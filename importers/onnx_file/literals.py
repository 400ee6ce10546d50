"""Values that an ONNX file holds as arrays: in typed fields, as raw bytes, or in a file beside it.

Source: the comments of TensorProto. Sizes are compared with what is there before anything is allocated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from importers.imported import UnreadableFile
from importers.onnx_file.graph import Untold
from nnhal.types import Array

# Codes of TensorProto.DataType.
DTYPES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
          10: "float16", 11: "float64", 12: "uint32", 13: "uint64"}  # fmt: skip
OTHER_TYPES = {0: "undefined", 8: "string", 14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8e4m3fn",
               18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4",
               23: "float4e2m1"}  # fmt: skip
RANK_LIMIT = 32  # NumPy has arrays of no more dimensions in all versions that are allowed
EXTERNAL = 1  # TensorProto.DataLocation


def dtype_name(code: int) -> str:
    """The name of an element type."""
    return DTYPES.get(code) or OTHER_TYPES.get(code) or f"type {code}"


@dataclass
class ExternalData:
    """Files beside a model that hold its values.

    Attributes:
        folder: what values are read from; None where nothing may be.
    """

    folder: Path | None
    _sizes: dict[Path, int] = field(default_factory=dict)
    _read: dict[tuple[Path, int, int], bytes] = field(default_factory=dict)
    _bytes: int = 0

    def read(self, name: str, entries: dict[str, str], length: int) -> bytes | Untold:
        """The bytes of a tensor.

        Args:
            name: of the tensor, for messages.
            entries: the tensor's `external_data`: location, offset, length.
            length: number of bytes that its type and shape ask for.

        Raises:
            UnreadableFile: the place is outside the folder or the file.
        """
        if self.folder is None:
            return Untold(f"the value of {name!r} is in a file beside the model, and no folder is given")
        path = self._inside(name, entries.get("location", ""))
        offset, given = _number(name, entries, "offset", 0), _number(name, entries, "length", length)
        if given != length:
            raise UnreadableFile(f"tensor {name!r} has {given} bytes beside the model, {length} are due")
        key = path, offset, length
        if key in self._read:
            return self._read[key]
        if path not in self._sizes:
            self._sizes[path] = path.stat().st_size
        self._bytes += length
        if offset + length > self._sizes[path]:
            raise UnreadableFile(f"tensor {name!r} reaches beyond the end of {path.name}")
        if self._bytes > sum(self._sizes.values()):
            raise UnreadableFile(f"tensors share parts of {path.name}, {name!r} among them")
        with path.open("rb") as file:
            file.seek(offset)
            self._read[key] = file.read(length)
        return self._read[key]

    def _inside(self, name: str, location: str) -> Path:
        assert self.folder is not None
        try:
            root = self.folder.resolve()
            path = (root / location).resolve()
            good = bool(location) and path.is_relative_to(root) and path.is_file()
        except (OSError, ValueError, RuntimeError):
            good = False
        if not good:
            raise UnreadableFile(f"tensor {name!r} names {location!r}, which is no file in the model's folder")
        return path


def _number(name: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise UnreadableFile(f"tensor {name!r} has the {key} {text!r} beside the model")
    return int(text)


def literal(proto: Any, external: ExternalData) -> Array | Untold:
    """The value of a TensorProto.

    Raises:
        UnreadableFile: type, shape and bytes contradict each other.
    """
    name = proto.name
    shape = tuple(proto.dims)
    if proto.data_type not in DTYPES:
        return Untold(f"{name!r} is of type {dtype_name(proto.data_type)}, which is not read")
    if len(shape) > RANK_LIMIT or any(size < 0 for size in shape):
        raise UnreadableFile(f"tensor {name!r} has dimensions {list(shape)[:RANK_LIMIT]}")
    dtype = np.dtype(DTYPES[proto.data_type])
    count = math.prod(shape)
    if proto.data_location == EXTERNAL:
        entries = {entry.key: entry.value for entry in proto.external_data}
        data = external.read(name, entries, count * dtype.itemsize)
        if isinstance(data, Untold):
            return data
    elif proto.HasField("raw_data"):
        data = proto.raw_data
    else:
        return _typed(proto, dtype, count).reshape(shape)
    if len(data) != count * dtype.itemsize:
        raise UnreadableFile(f"tensor {name!r} has {len(data)} bytes, {count * dtype.itemsize} are due")
    value = np.frombuffer(data, dtype.newbyteorder("<"))
    # Any byte but 0 is a truth; NumPy wants 1.
    return (value.view(np.uint8) != 0 if dtype == np.bool_ else value.astype(dtype)).reshape(shape)


def _typed(proto: Any, dtype: np.dtype[Any], count: int) -> Array:
    kind = dtype.name
    field_name = {"float32": "float_data", "float64": "double_data", "int64": "int64_data", "uint32": "uint64_data",
                  "uint64": "uint64_data"}.get(kind, "int32_data")  # fmt: skip
    values = getattr(proto, field_name)
    if len(values) != count:
        raise UnreadableFile(f"tensor {proto.name!r} has {len(values)} values, {count} are due")
    wide = np.array(values, {"float_data": np.float32, "double_data": np.float64, "uint64_data": np.uint64}.get(
        field_name, np.int64))  # fmt: skip
    if kind == "float16":
        return (wide & 0xFFFF).astype(np.uint16).view(np.float16)
    return wide.astype(dtype)
