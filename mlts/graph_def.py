"""Reads the constants of a frozen TensorFlow graph: the protobuf messages that it takes, and no more.

Field numbers are those of TensorFlow's graph.proto, node_def.proto, attr_value.proto and tensor.proto.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nnhal.errors import UsageError
from nnhal.types import Array

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
LONGEST_VARINT = 10  # bytes
MOST_DIMENSIONS = 8
FLOAT_TYPE = 1  # DT_FLOAT

GRAPH_NODE = 1
NODE_NAME, NODE_OPERATION, NODE_ATTRIBUTE = 1, 2, 5
KEY, VALUE = 1, 2  # of an entry of a map
ATTRIBUTE_TENSOR = 8
TENSOR_TYPE, TENSOR_SHAPE, TENSOR_CONTENT, TENSOR_FLOATS = 1, 2, 4, 5
SHAPE_DIMENSION, DIMENSION_SIZE = 2, 1


class _Damaged(Exception):
    """The bytes are no message; the text says why."""


def constants(data: bytes, name: str) -> dict[str, Array]:
    """The float32 constants of a frozen graph by the names of their nodes, in their own dimensions.

    Args:
        data: the file, a serialised GraphDef.
        name: of the file, for messages.

    Raises:
        UsageError: the file is damaged, or holds no such constant.
    """
    found: dict[str, Array] = {}
    try:
        for node in _all(memoryview(data), GRAPH_NODE):
            found.update(_constant(_message(node)))
    except _Damaged as error:
        raise UsageError(f"{name} is no frozen TensorFlow graph: {error}; fetch the file again") from None
    if not found:
        raise UsageError(f"{name} holds no float32 constant; a frozen TensorFlow graph (GraphDef) is needed")
    return found


def _constant(node: memoryview) -> Iterator[tuple[str, Array]]:
    """Name and value of a node, if it is a float32 constant."""
    if _text(_last(node, NODE_OPERATION)) != "Const":
        return
    for entry in _all(node, NODE_ATTRIBUTE):
        if _text(_last(_message(entry), KEY)) != "value":
            continue
        tensor = _last(_message(_last(_message(entry), VALUE)), ATTRIBUTE_TENSOR)
        if _last(_message(tensor), TENSOR_TYPE) == FLOAT_TYPE:
            yield _text(_last(node, NODE_NAME)), _tensor(_message(tensor))


def _tensor(tensor: memoryview) -> Array:
    """The value of a float32 TensorProto: raw bytes, or a list of numbers of which the last one goes on."""
    shape: list[int] = []
    described = _last(tensor, TENSOR_SHAPE)
    for dimension in _all(_message(described), SHAPE_DIMENSION) if described is not None else ():
        size = _last(_message(dimension), DIMENSION_SIZE) or 0
        if not isinstance(size, int) or len(shape) == MOST_DIMENSIONS:
            raise _Damaged("a constant's shape is none")
        shape.append(size)
    content = _last(tensor, TENSOR_CONTENT)
    data = b"".join(_floats(tensor)) if content is None else bytes(_message(content))
    if len(data) % 4:
        raise _Damaged(f"a constant of float32 has {len(data)} bytes")
    values = np.frombuffer(data, "<f4").astype(np.float32)
    count = math.prod(shape)
    if values.size == 1 < count <= 2**24:
        values = np.repeat(values, count)
    if values.size != count:
        raise _Damaged(f"a constant of shape {shape} has {values.size} values")
    return values.reshape(shape)


def _floats(tensor: memoryview) -> Iterator[bytes]:
    """The numbers of a tensor, packed or one by one."""
    for value in _all(tensor, TENSOR_FLOATS):
        if isinstance(value, int):
            raise _Damaged("a float is written as an integer")
        yield bytes(value)


def _message(value: memoryview | int | None) -> memoryview:
    if not isinstance(value, memoryview):
        raise _Damaged("a message is missing, or a number stands in its place")
    return value


def _text(value: memoryview | int | None) -> str:
    return bytes(_message(value)).decode("utf-8", "replace")


def _last(data: memoryview, field: int) -> memoryview | int | None:
    """The value of a field that is there once; of several the last one holds."""
    found = None
    for value in _all(data, field):
        found = value
    return found


def _all(data: memoryview, field: int) -> Iterator[memoryview | int]:
    """Every value of a field: an integer where it is a varint, else its bytes in place."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        wire = key & 7
        if wire == VARINT:
            value, place = _varint(data, place)
            if key >> 3 == field:
                yield value
            continue
        if wire == BYTES:
            length, place = _varint(data, place)
        elif wire in (FIXED32, FIXED64):
            length = 4 if wire == FIXED32 else 8
        else:
            raise _Damaged(f"wire type {wire} at byte {place} of a message")
        if length > len(data) - place:
            raise _Damaged(f"a field of {length} bytes at byte {place} of a message of {len(data)}")
        if key >> 3 == field:
            yield data[place : place + length]
        place += length


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """A number, and where the next one begins."""
    number = 0
    for count in range(LONGEST_VARINT):
        if place >= len(data):
            raise _Damaged("the end comes within a number")
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return number, place
    raise _Damaged(f"a number before byte {place} of a message has no end")
