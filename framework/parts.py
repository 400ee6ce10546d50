"""A model compiled: each part prepared on its device, and the memory that values take between parts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from framework.members import Member
from framework.plan import Plan
from framework.submodel import Cut
from nnhal.device import PreparedModel
from nnhal.memory import SharedMemory
from nnhal.model import DataLocation, Model, Operand, is_known, is_tensor, operand_size
from nnhal.types import is_extension

ALIGNMENT = 64
GAP = 64  # bytes around each place, which nobody may write
GAP_BYTE = 0xA5


@dataclass(frozen=True)
class Compiled:
    """A part that is ready to run."""

    member: Member
    cut: Cut
    prepared: PreparedModel


@dataclass(frozen=True)
class Compilation:
    """A plan with all its parts ready.

    Attributes:
        places: where operands between parts are in the reserved memory, as far as their size is known beforehand.
    """

    plan: Plan
    parts: tuple[Compiled, ...]
    places: Mapping[int, DataLocation] = field(default_factory=dict)
    size: int = 0

    @property
    def model(self) -> Model:
        """The whole model."""
        return self.plan.model

    @property
    def simple(self) -> bool:
        """Whether one device runs all, so that the client's requests are its own."""
        main = self.model.main
        first = self.parts[0].cut
        return len(self.parts) == 1 and (first.inputs, first.outputs) == (main.input_indexes, main.output_indexes)

    def close(self) -> None:
        """Lets every part go."""
        for part in self.parts:
            part.prepared.close()


def compiled(plan: Plan, cuts: Sequence[Cut], prepared: Sequence[PreparedModel]) -> Compilation:
    """A compilation with its memory laid out."""
    parts = tuple(Compiled(p.member, c, m) for p, c, m in zip(plan.parts, cuts, prepared, strict=True))
    position, places = GAP, {}
    client = set(plan.model.main.output_indexes)
    for part in parts:
        for index in part.cut.outputs:
            length = size_of(plan.model, plan.model.main.operands[index], parts)
            if index in client or not length:
                continue
            places[index] = DataLocation(0, position, length)
            position += -(-length // ALIGNMENT) * ALIGNMENT + GAP
    return Compilation(plan, parts, places, position if places else 0)


def size_of(model: Model, operand: Operand, parts: Sequence[Compiled]) -> int:
    """Bytes of an operand; 0 where its dimensions leave that open."""
    if not is_extension(operand.type):
        return operand_size(operand)
    width = _extension_width(model, operand, parts)
    return width * int(np.prod(operand.dimensions)) if is_known(operand.dimensions) else 0


def is_open(operand: Operand) -> bool:
    """Whether only an execution tells the size of an operand."""
    return is_tensor(operand.type) and not is_known(operand.dimensions)


def _extension_width(model: Model, operand: Operand, parts: Sequence[Compiled]) -> int:
    """Bytes of an element of an extension's type, as its device says; 0 where none does."""
    names = {row.prefix: row.name for row in model.extension_name_to_prefix}
    name, number = names.get(operand.type >> 16), operand.type & 0xFFFF
    for part in parts:
        for extension in part.member.extensions:
            for row in extension.operand_types:
                if (extension.name, row.type) == (name, number):
                    return row.byte_size
    return 0


class Reserve:
    """The memory between a model's parts: a pool for each execution under way, used again by later ones."""

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._idle: list[SharedMemory] = []
        self._lock = threading.Lock()
        gaps = np.ones(compilation.size, bool)
        for place in compilation.places.values():
            gaps[place.offset : place.offset + place.length] = False
        self._gaps = np.flatnonzero(gaps)

    def take(self) -> SharedMemory | None:
        """A pool for one execution; None where there is nothing between parts."""
        if not self._compilation.size:
            return None
        with self._lock:
            pool = self._idle.pop() if self._idle else None
        if pool is None:
            pool = SharedMemory.create(self._compilation.size, "nncts-framework")
            np.frombuffer(pool.view(), np.uint8)[:] = GAP_BYTE
        return pool

    def give_back(self, pool: SharedMemory | None) -> None:
        """Keeps a pool for the next execution."""
        if pool is not None:
            with self._lock:
                self._idle.append(pool)

    def overrun(self, pool: SharedMemory | None) -> str:
        """Where something was written between the places, as words; empty when nothing was. Mends it."""
        if pool is None:
            return ""
        data = np.frombuffer(pool.view(), np.uint8)
        hit = self._gaps[data[self._gaps] != GAP_BYTE]
        if not len(hit):
            return ""
        first = int(hit[0])
        places = self._compilation.places
        near = min(places, key=lambda index: _distance(places[index], first))
        data[self._gaps] = GAP_BYTE
        side = "before" if first < places[near].offset else "behind"
        return (
            f"{len(hit)} bytes written outside, the first {_distance(places[near], first)} bytes {side} operand {near}"
        )

    def close(self) -> None:
        """Lets the pools go that nobody uses."""
        with self._lock:
            for pool in self._idle:
                pool.close()
            self._idle.clear()


def _distance(place: DataLocation, position: int) -> int:
    return place.offset - position if position < place.offset else position - place.offset - place.length + 1
