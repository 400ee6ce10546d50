"""The memory of a request as a fault sees it: outputs in place, and what can be done to them unseen."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from nnhal.buffers import argument_bytes
from nnhal.memory import Memory
from nnhal.model import Model, Request, RequestArgument, is_tensor
from nnhal.types import OPERAND_TYPES, Array, OperandType, info

BYTES_OUTSIDE = 8


def poke(view: memoryview, offset: int, count: int = BYTES_OUTSIDE) -> None:
    """Writes bytes at an offset from a view's start, wherever that is, as native code would."""
    address = np.frombuffer(view, np.uint8).ctypes.data
    ctypes.memset(address + offset, 0x3C, count)


def _views(request: Request, arguments: Sequence[RequestArgument]) -> list[tuple[int, memoryview]]:
    """Number and bytes of each argument that lies in plain memory."""
    found = []
    for number, argument in enumerate(arguments):
        place, pools = argument.location, request.pools
        if argument.has_no_value or not place.length or not 0 <= place.pool_index < len(pools):
            continue
        pool = pools[place.pool_index]
        if isinstance(pool, Memory) and place.offset >= 0 and place.offset + place.length <= pool.size:
            found.append((number, argument_bytes(request, argument)))
    return found


def input_views(request: Request) -> list[memoryview]:
    """The bytes of each input that lies in plain memory."""
    return [view for _, view in _views(request, request.inputs)]


def input_bytes(request: Request) -> bytes:
    """All of them as one value, to tell requests apart."""
    return b"|".join(bytes(view) for view in input_views(request))


def damage(view: memoryview, kind: int) -> None:
    """Changes the middle element by more than any rounding."""
    dtype = info(kind).dtype
    count = len(view) // dtype.itemsize
    values: Array = np.frombuffer(view[: count * dtype.itemsize], dtype)
    place = count // 2
    if dtype.kind == "f":
        value = float(values[place])
        values[place] = 1 if not np.isfinite(value) else value / 2 if abs(value) >= 4 else value + 1
    elif kind in (OperandType.BOOL, OperandType.TENSOR_BOOL8):
        values[place] = not values[place]
    else:
        values[place] ^= 1 << (dtype.itemsize * 8 - 2)


class Outputs:
    """The outputs of one request, in place. Where the model is not known they are bytes."""

    def __init__(self, model: Model | None, request: Request) -> None:
        found = _views(request, request.outputs)
        self.views = [view for _, view in found]
        self.kinds = [self._kind(model, number) for number, _ in found]

    @staticmethod
    def _kind(model: Model | None, number: int) -> int:
        indexes = () if model is None else model.main.output_indexes
        if model is None or number >= len(indexes):
            return OperandType.TENSOR_QUANT8_ASYMM
        kind = model.main.operands[indexes[number]].type
        return kind if kind in OPERAND_TYPES else OperandType.TENSOR_QUANT8_ASYMM

    def copy(self) -> list[bytes]:
        """What they hold now."""
        return [bytes(view) for view in self.views]

    def write(self, content: Sequence[bytes]) -> None:
        """Puts such a copy back, as far as it fits."""
        for view, data in zip(self.views, content, strict=False):
            size = min(len(view), len(data))
            view[:size] = data[:size]

    def damage(self, kinds: Sequence[int] = ()) -> None:
        """Gets one element of the first output wrong; of the first of certain types, where some are given."""
        for view, kind in zip(self.views, self.kinds, strict=True):
            if not kinds or kind in kinds:
                damage(view, kind)
                return

    def put_nan(self) -> None:
        """Makes one element of the first float output NaN."""
        for view, kind in zip(self.views, self.kinds, strict=True):
            dtype = info(kind).dtype
            if dtype.kind == "f":
                values = np.frombuffer(view, dtype)
                values[len(values) // 2] = np.nan
                return


def output_dimensions(model: Model, request: Request) -> list[tuple[int, ...]]:
    """What model and request say of each output together; 0 where neither knows a size."""
    shapes: list[tuple[int, ...]] = []
    for index, argument in zip(model.main.output_indexes, request.outputs, strict=True):
        operand = model.main.operands[index]
        if not is_tensor(operand.type):
            shapes.append(())
            continue
        given = argument.dimensions or (0,) * len(operand.dimensions)
        said = operand.dimensions or (0,) * len(given)
        shapes.append(tuple(a or b for a, b in zip(given, said, strict=True)))
    return shapes
