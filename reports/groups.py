"""Cases that ended in the same way put together, within the room that a page has for their texts. Pure."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from harness.record import Record
from reports.tables import DRIVER_FAULTS, INTERNAL, first_line, shape

_EXTENT = re.compile(r"\[([0-9, ]*)\]")  # of operands, as a record's detail has them


@dataclass(frozen=True)
class Group:
    """Cases that ended in the same way: same operation, verdict, cause, and message but for its numbers.

    Attributes:
        message: the first line of one of the messages.
        alike: shape of the messages.
        example: the case that repeats with the least, or None where a page has no room for it.
        others: some of the others, to be named.
        more: how many are neither shown nor named.
    """

    operation: str
    verdict: str
    cause: str
    message: str
    alike: str
    total: int
    example: Record | None
    others: tuple[Record, ...]
    more: int


class Budget:
    """Room that a page has for the texts of single cases. What does not fit is counted, not shown."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def take(self, record: Record, most: int) -> bool:
        """Whether a record, whose texts are cut off at `most` each, still fits; takes its room if so."""
        texts = (record.message, record.detail, record.log, record.repeat, record.id, record.waiver)
        cost = 300 + sum(min(len(str(text)), most) for text in texts)
        if cost > self._left:
            self._left = 0
            return False
        self._left -= cost
        return True


def groups(records: Iterable[Record], budget: Budget, named: int, most: int) -> list[Group]:
    """Cases by operation, verdict, cause and shape of the message; crashes first, then the largest groups.

    Args:
        records: in any order.
        budget: room for all groups together.
        named: how many cases of a group to name besides its example.
        most: length at which a page cuts a text off.
    """
    found: dict[tuple[str, str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        found[record.operation, record.verdict, record.cause, shape(record.message)].append(record)
    order = {verdict: place for place, verdict in enumerate((*DRIVER_FAULTS, INTERNAL))}
    keys = sorted(found, key=lambda key: (order.get(key[1], 9), -len(found[key]), key))
    result = []
    for key in keys:
        members = sorted(found[key], key=lambda record: (record.signature, record.mode, record.kind, record.number))
        first = min(members, key=_effort)
        example = first if budget.take(first, most) else None
        others = tuple(record for record in members if record is not example)[: named if example else 0]
        more = len(members) - len(others) - (example is not None)
        result.append(Group(*key[:3], first_line(first.message), key[3], len(members), example, others, more))
    return result


def _effort(record: Record) -> tuple[int, int]:
    """What it takes to understand a case: a sequence of cases before it, and the number of elements of its operands."""
    dimensions = _EXTENT.findall(record.detail[:2000])
    elements = sum(math.prod(int(one) for one in found.replace(" ", "").split(",") if one) for found in dimensions)
    return record.repeated != "same", elements
