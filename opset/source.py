"""Where choices come from: a seeded generator, Hypothesis, or a fuzzer's bytes. One `draw` serves all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

T = TypeVar("T")


class Source(Protocol):
    """Makes choices."""

    def integer(self, low: int, high: int) -> int:
        """An integer, both ends included."""

    def generator(self) -> np.random.Generator:
        """A generator for the values of one array; costs one choice."""


class SeededSource:
    """Choices of a pseudo-random generator: the same seed gives the same choices."""

    def __init__(self, seed: int | str) -> None:
        self._integers = random.Random(seed)
        self._arrays: np.random.Generator | None = None

    def integer(self, low: int, high: int) -> int:
        return self._integers.randint(low, high)

    def generator(self) -> np.random.Generator:
        if self._arrays is None:
            self._arrays = np.random.Generator(np.random.PCG64(self._integers.getrandbits(64)))
        return self._arrays


class SwiftSource(SeededSource):
    """The same with integers that cost a third: graphs take thousands. Other choices than `SeededSource` for a seed."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(seed)
        self._random = self._integers.random

    def integer(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))


class BytesSource:
    """Choices decoded from bytes, as a fuzzer mutates them; when they run out every choice is the lowest.

    Attributes:
        position: bytes that were asked for so far.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def integer(self, low: int, high: int) -> int:
        width = self.width(low, high)
        piece = self._data[self.position : self.position + width]
        self.position += width
        return low + int.from_bytes(piece, "little") % (high - low + 1)

    @staticmethod
    def width(low: int, high: int) -> int:
        """Bytes of which an integer between two is made."""
        return max(1, ((high - low).bit_length() + 7) // 8)

    def generator(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.integer(0, 2**32 - 1)))


class HypothesisSource:
    """Choices of Hypothesis, which shrinks them. Made from the `data()` strategy's object."""

    def __init__(self, data: DataObject) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        from hypothesis import strategies as st  # only tests have it

        return self._data.draw(st.integers(low, high))

    def generator(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.integer(0, 2**16)))


def choice(source: Source, options: Sequence[T]) -> T:
    """One of the options."""
    return options[source.integer(0, len(options) - 1)]
