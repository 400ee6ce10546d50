"""What the C interface cannot say: breaches of the driver interface's rules that no caller of a library could commit.

The adapter refuses those itself, in the library's stead; everything else goes to the library, which has to refuse it.
"""

from __future__ import annotations

from nnhal.errors import invalid
from nnhal.memory import Memory
from nnhal.model import BufferToken, Model, Request
from nnhal.types import FeatureLevel, OperandLifeTime
from nnhal.validate import request_violations, violations
from nnhal.validation_rules import LARGEST_UNSIGNED, Violation

# Lifetimes, locations, numbers of consumers and the order of operations follow from how a model is built; extensions
# are named when a type is looked up; a pool is there or is not handed over.
_UNSAID = frozenset({"G0", "G8", "G10", "G11", "G12", "G13", "G14", "G17", "G18", "G21", "G22", "G24"})
_UNSAID_OF_REQUESTS = frozenset({"R0", "R2", "R9", "R11", "R12"})
_SIGNED_END = 2**31


def refuse_unsaid(model: Model, level: FeatureLevel, *, all_rules: bool) -> None:
    """Refuses a model that cannot be built through the C interface, or breaks any rule at all where so wanted.

    Raises:
        DriverError: INVALID_ARGUMENT.
    """
    found = violations(model, level)
    if not found:
        return
    built = _built(model)
    for violation in found:
        unbuilt = violation.graph is not None and violation.graph not in built
        if all_rules or unbuilt or violation.label in _UNSAID or _misplaced(violation, model) or _too_large(model):
            raise invalid(str(violation))


def _built(model: Model) -> set[int]:
    """Numbers of the graphs that an operand refers to, at any depth: others have no place in a built model."""
    found: set[int] = set()
    left = [model.main]
    while left:
        for operand in left.pop().operands:
            number = operand.location.offset
            refers = operand.lifetime == OperandLifeTime.SUBGRAPH and 0 <= number < len(model.referenced)
            if refers and number not in found:
                found.add(number)
                left.append(model.referenced[number])
    return found


def refuse_unsaid_request(
    request: Request, model: Model, level: FeatureLevel, *, fenced: bool, all_rules: bool
) -> None:
    """The same of a request."""
    for violation in request_violations(request, model, level, fenced=fenced):
        if all_rules or violation.label in _UNSAID_OF_REQUESTS or _beyond(request):
            raise invalid(str(violation))


def _misplaced(violation: Violation, model: Model) -> bool:
    """Whether a constant lies outside what there is to point at; in a memory the library can see that itself."""
    if violation.label not in ("G9", "G4") or violation.operand is None:
        return False
    graph = model.main if violation.graph is None else model.referenced[violation.graph]
    operand = graph.operands[violation.operand]
    place = operand.location
    if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
        if place.pool_index:
            return True
        return place.offset < 0 or place.length < 0 or place.offset + place.length > len(model.operand_values)
    return not 0 <= place.pool_index < len(model.pools) or place.offset < 0 or place.length < 0


def _too_large(model: Model) -> bool:
    """Whether a number does not fit the field of the C interface that it belongs into."""
    for graph in (model.main, *model.referenced):
        for operand in graph.operands:
            if not all(0 <= size <= LARGEST_UNSIGNED for size in operand.dimensions):
                return True
            if not (_is_signed(operand.zero_point) and _is_signed(operand.type)):
                return True
        if not all(_is_signed(operation.type) for operation in graph.operations):
            return True
    return False


def _is_signed(number: int) -> bool:
    return -_SIGNED_END <= number < _SIGNED_END


def _beyond(request: Request) -> bool:
    """Whether an argument names no pool, or a place or size that no field of the C interface can hold."""
    for argument in (*request.inputs, *request.outputs):
        if argument.has_no_value:
            continue
        place = argument.location
        if not 0 <= place.pool_index < len(request.pools) or place.offset < 0 or place.length < 0 or place.padding < 0:
            return True
        if not all(0 <= size <= LARGEST_UNSIGNED for size in argument.dimensions):
            return True
        pool = request.pools[place.pool_index]
        if isinstance(pool, BufferToken) or not isinstance(pool, Memory):
            continue
        if place.padding and place.offset + place.length + place.padding > pool.size:
            return True
    return False
