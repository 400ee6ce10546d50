"""Reads tables of a flatbuffer by field number, and believes none of the offsets and lengths in it.

A table starts with the distance back to its list of field places; a field that refers to something has the distance
forward to it; a vector starts with its length. Source: the binary format that the FlatBuffers project documents.
"""

from __future__ import annotations

import struct
from typing import NoReturn

import numpy as np

from importers.imported import UnreadableFile
from nnhal.types import Array

SLACK = 1 << 16  # entries that any file may have, however small
MOST_TABLES = 1 << 17  # tensors, operators and the like in a file, which takes about 1 KiB for each


class Flat:
    """The bytes of a file.

    Entries that are read out one by one are counted: a file in which many tables share one long vector could otherwise
    keep a reader busy for the square of its size.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        self._entries_left = len(data) + SLACK
        self._tables_left = MOST_TABLES

    def fail(self, words: str) -> NoReturn:
        """Refuses the file.

        Raises:
            UnreadableFile: always.
        """
        raise UnreadableFile(f"{self.name} is damaged: {words}; take an intact .tflite file")

    def spend(self, entries: int) -> None:
        """Counts entries that are about to be read out."""
        self._entries_left -= entries
        if self._entries_left < 0:
            self.fail("its tables share more entries than a file of its size has")

    def spend_tables(self, count: int) -> None:
        """Counts tables that are about to be read."""
        self._tables_left -= count
        if self._tables_left < 0:
            self.fail(f"it has more than {MOST_TABLES} tensors, operators and buffers")

    def number(self, form: str, at: int) -> int:
        """An integer at a byte, in the notation of `struct`."""
        if not 0 <= at <= len(self.data) - struct.calcsize(form):
            self.fail(f"it refers to byte {at} of {len(self.data)}")
        found: int = struct.unpack_from("<" + form, self.data, at)[0]
        return found

    def root(self) -> Table:
        """The table that the file is."""
        return Table(self, self.number("I", 0))

    def span(self, at: int, size: int) -> tuple[int, int]:
        """Where the elements of a vector start, and their number.

        Args:
            at: of the vector.
            size: bytes of an element.
        """
        count = self.number("I", at)
        if count * size > len(self.data) - at - 4:
            self.fail(f"a vector at byte {at} ends behind the file")
        return at + 4, count


class Table:
    """A table; its fields are known by number. A field that is left out has its default."""

    __slots__ = ("_at", "_fields", "_flat", "_size", "_width")

    def __init__(self, flat: Flat, at: int) -> None:
        self._flat = flat
        self._at = at
        self._fields = at - flat.number("i", at)
        self._width = flat.number("H", self._fields)  # bytes of the list of places
        self._size = flat.number("H", self._fields + 2)
        if self._fields + self._width > len(flat.data) or at + self._size > len(flat.data):
            flat.fail(f"a table at byte {at} ends behind the file")

    def _place(self, field: int, size: int) -> int:
        """The byte at which a field is; 0 where it is left out."""
        entry = 4 + 2 * field
        if entry + 2 > self._width:
            return 0
        offset = self._flat.number("H", self._fields + entry)
        if offset and not 4 <= offset <= self._size - size:
            self._flat.fail(f"a field of the table at byte {self._at} lies outside it")
        return self._at + offset if offset else 0

    def number(self, field: int, form: str = "i", default: float = 0) -> float:
        """A number, in the notation of `struct`."""
        at = self._place(field, struct.calcsize(form))
        return self._flat.number(form, at) if at else default

    def integer(self, field: int, form: str = "i", default: int = 0) -> int:
        """A whole number."""
        return int(self.number(field, form, default))

    def _target(self, field: int) -> int:
        """The byte that a field refers to; 0 where it is left out."""
        at = self._place(field, 4)
        return at + self._flat.number("I", at) if at else 0

    def has(self, field: int) -> bool:
        """Whether a field is there."""
        return self._place(field, 1) > 0

    def array(self, field: int, dtype: type[np.generic]) -> Array:
        """A vector of numbers, in place; empty where it is left out."""
        at = self._target(field)
        if not at:
            return np.empty(0, dtype)
        kind = np.dtype(dtype).newbyteorder("<")
        start, count = self._flat.span(at, kind.itemsize)
        return np.frombuffer(self._flat.data, kind, count, start)

    def integers(self, field: int) -> tuple[int, ...]:
        """A vector of 32-bit integers as Python numbers."""
        found = self.array(field, np.int32)
        self._flat.spend(found.size)
        return tuple(found.tolist())

    def text(self, field: int) -> str:
        """A text; what is no UTF-8 in it is replaced."""
        found = self.array(field, np.uint8)
        self._flat.spend(found.size)
        return found.tobytes().decode("utf-8", "replace")

    def table(self, field: int) -> Table | None:
        """A table that this one refers to."""
        at = self._target(field)
        return Table(self._flat, at) if at else None

    def tables(self, field: int) -> list[Table]:
        """A vector of tables."""
        at = self._target(field)
        if not at:
            return []
        start, count = self._flat.span(at, 4)
        self._flat.spend_tables(count)
        places = range(start, start + 4 * count, 4)
        return [Table(self._flat, place + self._flat.number("I", place)) for place in places]
