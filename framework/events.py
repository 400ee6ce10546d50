"""What a framework does besides answering: partitions made, devices left out, failures that the CPU hid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from framework.plan import Plan


class EventKind(str, Enum):
    """What happened."""

    LEFT_OUT = "left out"  # a device that does not say what it is
    QUERY_REFUSED = "query refused"  # a support query about a valid model was answered with an error
    UNCLAIMED = "unclaimed"  # a device claimed an operation in the model, and not in the part made for it
    PREPARED = "prepared"  # a model, as the plan says
    PREPARATION_FELL_BACK = "preparation fell back"  # the whole model went to the CPU
    EXECUTION_FELL_BACK = "execution fell back"  # the CPU ran the whole model for one execution
    BEYOND_PARTS = "beyond parts"  # the CPU ran the whole model, since a value could not go from one part to the next
    OVERRUN = "overrun"  # a device wrote outside its places in the memory between parts
    LOST = "lost"  # a device died, fell silent, or raised what is no answer


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        device: name of the device that it is about.
        text: a sentence for a person.
        plan: the partition, of events about a model.
    """

    kind: EventKind
    device: str
    text: str
    plan: Plan | None = None


Report: TypeAlias = Callable[[Event], None]
