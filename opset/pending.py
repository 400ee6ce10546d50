"""Operands whose values are computed when somebody first asks: graphs can be drawn without being evaluated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nnhal.types import Array
from opset.call import Argument, Call

Reach = tuple[float, float]


class _Value:
    """Makes the value of a pending operand; what is then stored in the operand hides this."""

    def __get__(self, operand: Any, owner: type) -> Array | None:
        if operand is None:
            return None  # the default of the field
        value: Array = operand.__dict__["maker"]()
        operand.__dict__["value"] = value
        return value


class Pending(Argument):
    """An operand that is as good as any other, but has its value only when asked for it."""

    if not TYPE_CHECKING:
        value = _Value()


def later(argument: Argument, make: Callable[[], Array], reach: Reach | None = None) -> Argument:
    """An operand with a value that is made when it is needed.

    Args:
        argument: the operand without a value.
        make: makes the value; the same one each time.
        reach: smallest and largest real value, where it is known beforehand.
    """
    changed = object.__new__(Pending)
    own = changed.__dict__
    own.update(argument.__dict__)
    own["maker"] = make
    del own["value"]
    if reach is not None:
        own["reach"] = reach
    return changed


class Producer:
    """A call whose results are computed when one of them is asked for, after the calls that it hangs on."""

    def __init__(self, call: Call, number: int, run: Callable[[Call], dict[str, Array]]) -> None:
        """Takes a call that is complete but for the values of its results.

        Args:
            call: the call.
            number: later calls of a graph have larger ones.
            run: gives stored results by name.
        """
        self.call = call
        self.run = run
        self.number = number
        self._computed: dict[str, Array] | None = None

    def result(self, name: str, reach: Reach | None) -> Argument:
        """A result as an operand."""
        operand = later(self.call.results[name], partial(self._value, name), reach)
        operand.__dict__["producer"] = self
        return operand

    def _value(self, name: str) -> Array:
        """Computes this call and all before it that it needs: not one within the other, which would go deep."""
        needed: dict[int, Producer] = {}
        stack = [self]
        while stack:
            producer = stack.pop()
            if producer._computed is not None or producer.number in needed:
                continue
            needed[producer.number] = producer
            stack += [a.__dict__["producer"] for a in producer.call.inputs.values() if "producer" in a.__dict__]
        for number in sorted(needed):
            producer = needed[number]
            producer._computed = producer.run(producer.call)
        assert self._computed is not None
        return self._computed[name]
