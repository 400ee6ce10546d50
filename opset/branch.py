"""A graph as the value of an operand: what IF and WHILE run. Made by `opset.graph` from models, by draws from calls."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnhal.model import Model, Operand
from nnhal.types import Array, OperationType
from opset.values import Arithmetic

if TYPE_CHECKING:
    from opset.call import Call
    from opset.evaluate import Result


# Nanoseconds that a loop may take where no driver is asked: what is due must not depend on how busy the machine is.
UNHURRIED = 600_000_000_000


class LoopTimedOutError(Exception):
    """A WHILE ran for longer than a loop may, or for more turns."""


def _accept(call: Call) -> None:
    """Refuses nothing."""


@dataclass(frozen=True, eq=False)
class Branch:
    """A graph that an operand refers to: the main graph of a model of its own.

    Attributes:
        model: its main graph is the one; constants and graphs that it refers to in turn are the model's.
        check: sees each call of the graph before it runs and may refuse it.
        loop_timeout: nanoseconds that a WHILE that has it as its body may run.
        most_turns: how often that WHILE may run it; None for any number.
    """

    model: Model
    check: Callable[[Call], None] = _accept
    loop_timeout: int = UNHURRIED
    most_turns: int | None = None

    @property
    def takes(self) -> list[Operand]:
        """Its inputs."""
        return [self.model.main.operands[i] for i in self.model.main.input_indexes]

    @property
    def gives(self) -> list[Operand]:
        """Its outputs."""
        return [self.model.main.operands[i] for i in self.model.main.output_indexes]

    def __call__(self, inputs: Sequence[Array | None], arithmetic: Arithmetic) -> list[Result]:
        """Runs the graph on stored values."""
        from opset.graph import evaluate  # it knows all operations, of which those that run graphs are two

        return evaluate(self.model, inputs, arithmetic, self.check, self.loop_timeout, self.most_turns)

    def __str__(self) -> str:
        return "graph of " + ", ".join(OperationType(o.type).name for o in self.model.main.operations)


def turns(branch: Branch) -> Iterator[None]:
    """One item for each turn of a loop, until its time is up or there were too many.

    Raises:
        LoopTimedOutError: in place of the next turn.
    """
    end = time.monotonic_ns() + branch.loop_timeout
    for done in itertools.count(1):
        yield
        if done == branch.most_turns:
            raise LoopTimedOutError(f"the loop took more than {done} turns")
        if time.monotonic_ns() >= end:
            raise LoopTimedOutError(f"the loop took more than {branch.loop_timeout / 1e9:g} s")
