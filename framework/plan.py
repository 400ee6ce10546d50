"""Which device runs what: a device for each operation by cost, and as few parts as that leaves room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from framework.members import Member
from framework.submodel import producers
from nnhal.capabilities import performance_of
from nnhal.device import Capabilities, PerformanceInfo
from nnhal.graph_dump import Group, to_dot
from nnhal.model import Model, Operation
from nnhal.types import ExecutionPreference, OperandType, OperationType

WIDTH = 4096  # partial orders times operations that a search for fewer parts keeps
COLOURS = ("lightskyblue", "palegreen", "khaki", "plum", "lightsalmon", "paleturquoise", "pink", "wheat")


@dataclass(frozen=True)
class Part:
    """Operations that one device runs in one go.

    Attributes:
        operations: numbers in the model's main graph, ascending.
    """

    member: Member
    operations: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A model's partition: parts in the order in which they run."""

    model: Model = field(repr=False)
    parts: tuple[Part, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Number of operations by device."""
        counts: dict[str, int] = {}
        for part in self.parts:
            counts[part.member.name] = counts.get(part.member.name, 0) + len(part.operations)
        return counts

    def __str__(self) -> str:
        return ", then ".join(f"{part.member.name}: {_numbers(part.operations)}" for part in self.parts)

    def to_dot(self, title: str = "partition") -> str:
        """The model for Graphviz, each part a cluster in its device's colour."""
        names = list(dict.fromkeys(part.member.name for part in self.parts))
        groups = [
            Group(
                f"part {n}: {part.member.name}", part.operations, COLOURS[names.index(part.member.name) % len(COLOURS)]
            )
            for n, part in enumerate(self.parts)
        ]
        return to_dot(self.model, title, groups)


def _numbers(operations: Sequence[int]) -> str:
    """Numbers with runs of them put together: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in operations:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


# --- cost -------------------------------------------------------------------------------------------------------------


def performance(capabilities: Capabilities, model: Model, operation: Operation) -> PerformanceInfo:
    """What a device states for an operation: by the type of its first input, IF and WHILE by figures of their own."""
    if operation.type == OperationType.IF:
        return capabilities.if_performance
    if operation.type == OperationType.WHILE:
        return capabilities.while_performance
    kind = model.main.operands[operation.inputs[0]].type if operation.inputs else OperandType.TENSOR_FLOAT32
    if model.relax_computation_float32_to_float16 and kind == OperandType.FLOAT32:
        return capabilities.relaxed_float32_to_float16_performance_scalar
    if model.relax_computation_float32_to_float16 and kind == OperandType.TENSOR_FLOAT32:
        return capabilities.relaxed_float32_to_float16_performance_tensor
    return performance_of(capabilities, kind)


def choose(
    members: Sequence[Member],
    supported: Mapping[str, Sequence[bool]],
    model: Model,
    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
) -> list[Member | None]:
    """A device for each operation; None where no device has it.

    The smaller figure wins: power where the client prefers that, else time; of equal ones the device that comes first.
    The CPU is no rival to the others: it gets what none of them has.

    Args:
        members: in the order in which they were given.
        supported: by name, what each says of the operations.
        model: valid.
        preference: the client's.
    """
    rivals = [m for m in members if not m.cpu] + [m for m in members if m.cpu]
    chosen: list[Member | None] = []
    for number, operation in enumerate(model.main.operations):
        able = [m for m in rivals if supported[m.name][number]]
        able = [m for m in able if not m.cpu] or able

        def cost(member: Member, operation: Operation = operation) -> float:
            figures = performance(member.capabilities, model, operation)
            return figures.power_usage if preference == ExecutionPreference.LOW_POWER else figures.exec_time

        chosen.append(min(able, key=cost) if able else None)
    return chosen


# --- parts ------------------------------------------------------------------------------------------------------------


def group(model: Model, chosen: Sequence[Member]) -> tuple[Part, ...]:
    """Puts operations together into parts, in an order that keeps to what they need of each other.

    A part takes all that its device can run by then: that is never worse than taking less. So with two devices the
    number of parts is the smallest; with more, as far as the search looks.

    Args:
        model: valid, so that its operations stand in an order that can be executed.
        chosen: a device for each.
    """
    made_by = producers(model.main)
    needs = [
        sum(1 << n for n in {made_by[i] for i in operation.inputs if i in made_by})
        for operation in model.main.operations
    ]
    names = list(dict.fromkeys(member.name for member in chosen))
    whole = (1 << len(chosen)) - 1
    width = max(2, WIDTH // max(len(chosen), 1))
    front: dict[int, tuple[tuple[str, int], ...]] = {0: ()}  # what is done, and by which parts
    while whole not in front:
        reached: dict[int, tuple[tuple[str, int], ...]] = {}
        for done, parts in front.items():
            for name in names:
                more = _all_that_can(name, chosen, needs, done)
                if more != done:
                    reached.setdefault(more, (*parts, (name, more & ~done)))
        best = sorted(reached, key=lambda done: -done.bit_count())
        kept: list[int] = []
        for done in best:
            if len(kept) < width and not any(done & other == done for other in kept):
                kept.append(done)
        front = {done: reached[done] for done in kept}
    by_name = {member.name: member for member in chosen}
    return tuple(
        Part(by_name[name], tuple(n for n in range(len(chosen)) if mask >> n & 1)) for name, mask in front[whole]
    )


def _all_that_can(name: str, chosen: Sequence[Member], needs: Sequence[int], done: int) -> int:
    """What is done when a device has run all that it can at this point."""
    for number, member in enumerate(chosen):
        if member.name == name and not done >> number & 1 and needs[number] & done == needs[number]:
            done |= 1 << number
    return done
