"""Turns models, requests and every other value of the contract into bytes and back, for sockets and for files.

A JSON head with a format number, then raw bytes; never pickle. The two directions follow from the dataclasses' hints.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import os
import struct
import types
import typing
from collections.abc import Callable, Hashable
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias, TypeVar, Union

from nnhal import device, model
from nnhal.device import CompilationConfig
from nnhal.fences import SharedFence
from nnhal.memory import Memory, SharedMemory
from nnhal.model import Model
from nnhal.parts import Json, Parts

FORMAT = 1
MAGIC = b"NNW\x01"
HEADER = struct.Struct("<4sIQI")  # magic, bytes of JSON, bytes behind it, descriptors beside it
MAX_HEAD = 1 << 28
MAX_BLOBS = 1 << 34

Encode: TypeAlias = "Callable[[object, Parts], Json]"
Decode: TypeAlias = "Callable[[Json, Parts], object]"
T = TypeVar("T")

_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


def _encode_int(value: object, parts: Parts) -> Json:
    return operator.index(value)  # type: ignore[arg-type]  # the TypeError is what is wanted


def _decode_int(data: Json, parts: Parts) -> int:
    if type(data) is not int:
        raise ValueError(f"{data!r} is not an integer")
    return data


def _encode_float(value: object, parts: Parts) -> Json:
    number = float(value)  # type: ignore[arg-type]
    return number if math.isfinite(number) else repr(number)


def _decode_float(data: Json, parts: Parts) -> float:
    if type(data) is float or type(data) is int or data in ("nan", "inf", "-inf"):
        return float(data)
    raise ValueError(f"{data!r} is not a number")


def _encode_bool(value: object, parts: Parts) -> Json:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):  # NumPy's too
        return bool(value)
    raise TypeError(f"{type(value).__name__} stands where bool is due")


def _decode_bool(data: Json, parts: Parts) -> bool:
    if type(data) is not bool:
        raise ValueError(f"{data!r} is not a boolean")
    return data


def _encode_str(value: object, parts: Parts) -> Json:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} stands where str is due")
    return value


def _decode_str(data: Json, parts: Parts) -> str:
    if type(data) is not str:
        raise ValueError(f"{data!r} is not a text")
    return data


def _encode_bytes(value: object, parts: Parts) -> Json:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{type(value).__name__} stands where bytes are due")
    return {"b": parts.add_blob(bytes(value))}


def _decode_bytes(data: Json, parts: Parts) -> bytes:
    if not isinstance(data, dict) or set(data) != {"b"}:
        raise ValueError(f"{data!r} does not refer to bytes")
    return bytes(parts.blob(data["b"]))


def _encode_memory(value: object, parts: Parts) -> Json:
    if not isinstance(value, Memory):
        raise TypeError(f"{type(value).__name__} stands where a pool is due")
    return {"m": parts.write_memory(value)}


def _decode_memory(data: Json, parts: Parts) -> Memory:
    if not isinstance(data, dict) or set(data) != {"m"}:
        raise ValueError(f"{data!r} is not a pool")
    return parts.read_memory(data["m"])


def _encode_fence(value: object, parts: Parts) -> Json:
    if not isinstance(value, SharedFence):
        raise TypeError(f"{type(value).__name__} stands where a SharedFence is due")
    return [parts.add_descriptor(value.event), parts.add_descriptor(value.word.descriptor)]


def _decode_fence(data: Json, parts: Parts) -> SharedFence:
    if not isinstance(data, list) or len(data) != 2:
        raise ValueError("a fence has the wrong form")
    return SharedFence(parts.take(data[0]), SharedMemory(parts.take(data[1]), SharedFence.WORD))


def _encode_descriptor(value: object, parts: Parts) -> Json:
    descriptor = operator.index(value)  # type: ignore[arg-type]
    try:
        os.fstat(descriptor)
    except (OSError, OverflowError):
        return -1  # a descriptor that is none stays none on the other side
    return parts.add_descriptor(descriptor)


def _decode_descriptor(data: Json, parts: Parts) -> int:
    return -1 if data == -1 else parts.borrow(data)


_DESCRIPTOR_FIELDS = {(CompilationConfig, "model_cache"), (CompilationConfig, "data_cache")}
_SIMPLE: dict[object, tuple[Encode, Decode]] = {
    int: (_encode_int, _decode_int),
    float: (_encode_float, _decode_float),
    bool: (_encode_bool, _decode_bool),
    str: (_encode_str, _decode_str),
    bytes: (_encode_bytes, _decode_bytes),
    Memory: (_encode_memory, _decode_memory),
    SharedFence: (_encode_fence, _decode_fence),
}


@functools.cache
def _codec(hint: object) -> tuple[Encode, Decode]:
    """The two directions for one type hint."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _fixed(arguments)
    if origin in (tuple, list, frozenset):
        return _sequence(origin, arguments[0])
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return _encode_int, _enum(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record(hint)
    raise TypeError(f"no wire form for {hint!r}")


def _enum(kind: type[IntEnum]) -> Decode:
    members = {int(member): member for member in kind}

    def decode(data: Json, parts: Parts) -> int:
        # A number that is no member stays a number: negative cases send such, drivers may answer such.
        value = _decode_int(data, parts)
        return members.get(value, value)

    return decode


def _integers(origin: type) -> tuple[Encode, Decode]:
    """The commonest of all sequences."""

    def encode(value: object, parts: Parts) -> Json:
        return list(map(operator.index, value))  # type: ignore[call-overload]

    def decode(data: Json, parts: Parts) -> object:
        if type(data) is not list or not {*map(type, data)} <= {int}:
            raise ValueError(f"{data!r} is not a list of integers")
        return origin(data)

    return encode, decode


def _sequence(origin: type, item: object) -> tuple[Encode, Decode]:
    if item is int:
        return _integers(origin)
    write, read = _codec(item)

    def encode(value: object, parts: Parts) -> Json:
        if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
            raise TypeError(f"{type(value).__name__} stands where a list is due")
        items = sorted(value) if origin is frozenset else value
        return [write(element, parts) for element in items]

    def decode(data: Json, parts: Parts) -> object:
        if type(data) is not list:
            raise ValueError(f"{data!r} is not a list")
        return origin([read(element, parts) for element in data])

    return encode, decode


def _fixed(items: tuple[object, ...]) -> tuple[Encode, Decode]:
    codecs = [_codec(item) for item in items]

    def encode(value: object, parts: Parts) -> Json:
        if not isinstance(value, (tuple, list)) or len(value) != len(codecs):
            raise TypeError(f"{value!r} stands where {len(codecs)} values are due")
        return [write(element, parts) for (write, _), element in zip(codecs, value, strict=True)]

    def decode(data: Json, parts: Parts) -> object:
        if type(data) is not list or len(data) != len(codecs):
            raise ValueError(f"{data!r} is not a list of {len(codecs)}")
        return tuple(read(element, parts) for (_, read), element in zip(codecs, data, strict=True))

    return encode, decode


def _union(members: tuple[object, ...]) -> tuple[Encode, Decode]:
    kinds: list[object] = [m for m in members if m is not type(None)]
    enums: list[object] = [m for m in kinds if isinstance(m, type) and issubclass(m, IntEnum)]
    if enums and int in kinds:
        kinds = enums
    optional = len(kinds) < len(members)
    codecs = [(kind, *_codec(kind)) for kind in kinds]

    def encode(value: object, parts: Parts) -> Json:
        if value is None and optional:
            return None
        for kind, write, _ in codecs:
            if len(codecs) == 1 or (isinstance(kind, type) and isinstance(value, kind)):
                return write(value, parts)
        raise TypeError(f"{type(value).__name__} stands where one of {len(codecs)} types is due")

    def decode(data: Json, parts: Parts) -> object:
        if data is None and optional:
            return None
        problems: list[str] = []
        for _, _, read in codecs:
            try:
                return read(data, parts)
            except ValueError as error:  # noqa: PERF203
                problems.append(str(error))
        raise ValueError("; ".join(problems))

    return encode, decode


def _record(cls: type) -> tuple[Encode, Decode]:
    """A dataclass is the list of its fields; fields at the end that have their default are left out."""
    hints = typing.get_type_hints(cls)
    fields = []
    for field in dataclasses.fields(cls):
        special = (cls, field.name) in _DESCRIPTOR_FIELDS
        codec = _codec_of_descriptors() if special else _codec(hints[field.name])
        fields.append((field.name, field.default, *codec))
    total = len(fields)
    required = sum(default is dataclasses.MISSING for _, default, _, _ in fields)

    def encode(value: object, parts: Parts) -> Json:
        if not isinstance(value, cls):
            raise TypeError(f"{type(value).__name__} stands where {cls.__name__} is due")
        left = total
        # By identity: it is quick, and -0.0 is not 0.0.
        while left > required and getattr(value, fields[left - 1][0]) is fields[left - 1][1]:
            left -= 1
        return [write(getattr(value, name), parts) for name, _, write, _ in fields[:left]]

    def decode(data: Json, parts: Parts) -> object:
        if type(data) is not list or not required <= len(data) <= total:
            raise ValueError(f"{cls.__name__} is not a list of {required} to {total} fields")
        return cls(*[read(item, parts) for (_, _, _, read), item in zip(fields, data, strict=False)])

    return encode, decode


def _codec_of_descriptors() -> tuple[Encode, Decode]:
    def encode(value: object, parts: Parts) -> Json:
        return [_encode_descriptor(element, parts) for element in value]  # type: ignore[attr-defined]

    def decode(data: Json, parts: Parts) -> object:
        if type(data) is not list:
            raise ValueError(f"{data!r} is not a list")
        return tuple(_decode_descriptor(element, parts) for element in data)

    return encode, decode


def encode(hint: object, value: object, parts: Parts) -> Json:
    """The JSON of a value of the given type.

    Raises:
        TypeError: the value is not of that type.
        ValueError: it cannot be sent, as a closed pool.
    """
    return _codec(hint)[0](value, parts)


def decode(hint: type[T], data: Json, parts: Parts) -> T:
    """The value of the given type that JSON stands for.

    Raises:
        ValueError: the JSON is not of that form.
    """
    return typing.cast(T, _codec(typing.cast(Hashable, hint))[1](data, parts))


def pack(body: Json, parts: Parts) -> list[bytes | memoryview]:
    """Header, head and blobs of a message, to be written one after another."""
    sizes: list[Json] = [len(blob) for blob in parts.blobs]
    document: dict[str, Json] = {"format": FORMAT, "blobs": sizes, "body": body}
    head = _to_json(document).encode()
    total = sum(len(blob) for blob in parts.blobs)
    header = HEADER.pack(MAGIC, len(head), total, len(parts.descriptors))
    return [header + head, *parts.blobs]


def read_header(data: bytes | bytearray | memoryview) -> tuple[int, int, int]:
    """Bytes of JSON, bytes behind it, number of descriptors.

    Raises:
        ValueError: these are not the first bytes of a message.
    """
    if len(data) < HEADER.size:
        raise ValueError(f"malformed wire data: {len(data)} bytes are too few")
    magic, head, blobs, descriptors = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"malformed wire data: it begins with {bytes(data[:4])!r}")
    if head > MAX_HEAD or blobs > MAX_BLOBS:
        raise ValueError(f"malformed wire data: it claims {head + blobs} bytes")
    return head, blobs, descriptors


def unpack(data: bytes | memoryview, descriptors: list[int] | None = None) -> tuple[Json, Parts]:
    """The body of a message and what stands beside it. The descriptors belong to the parts from then on.

    Raises:
        ValueError: the bytes are malformed or of another format.
    """
    view = memoryview(data)
    parts = Parts(None, descriptors)
    head_size, blob_size, count = read_header(view)
    if len(view) != HEADER.size + head_size + blob_size or count != len(parts.descriptors):
        raise ValueError("malformed wire data: its length is not what its header says")
    place = HEADER.size + head_size
    try:
        head = json.loads(bytes(view[HEADER.size : place]))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"malformed wire data: its head is no JSON ({error})") from None
    if not isinstance(head, dict) or "format" not in head:
        raise ValueError("malformed wire data: its head has no format number")
    if head["format"] != FORMAT:
        raise ValueError(f"wire format {head['format']!r} is unknown; this version reads {FORMAT}")
    sizes = head.get("blobs")
    if not isinstance(sizes, list) or "body" not in head:
        raise ValueError("malformed wire data: its head lacks a part")
    for size in sizes:
        if type(size) is not int or size < 0 or place + size > len(view):
            raise ValueError("malformed wire data: bytes are missing at its end")
        parts.blobs.append(view[place : place + size])
        place += size
    if place != len(view):
        raise ValueError("malformed wire data: bytes are left over at its end")
    return typing.cast(Json, head["body"]), parts


KINDS: dict[str, type] = {
    name: value
    for module in (model, device)
    for name, value in vars(module).items()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
}


def dumps(value: object) -> bytes:
    """A value of the contract as bytes that hold everything; pools are written with their content."""
    kind = type(value).__name__
    if KINDS.get(kind) is not type(value):
        raise TypeError(f"{kind} is not a value of the driver interface")
    parts = Parts(inline=True)
    body = encode(type(value), value, parts)
    return b"".join(pack([kind, body], parts))


def loads(kind: type[T], data: bytes | memoryview) -> T:
    """The value that `dumps` wrote; pools come back as `BytesMemory`.

    Raises:
        ValueError: malformed bytes, another format number, or a value of another kind.
    """
    body, parts = unpack(data)
    if not isinstance(body, list) or len(body) != 2 or body[0] != kind.__name__:
        raise ValueError(f"malformed wire data: this is no {kind.__name__}")
    try:
        return decode(kind, body[1], parts)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"malformed wire data: {error}") from None


def save_model(path: str | os.PathLike[str], saved: Model) -> None:
    """Writes a model with its constants to one file."""
    Path(path).write_bytes(dumps(saved))


def load_model(path: str | os.PathLike[str]) -> Model:
    """The model that `save_model` wrote.

    Raises:
        ValueError: the file holds no such model; the message names the file.
    """
    try:
        return loads(Model, Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None
