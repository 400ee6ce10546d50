"""What the tests of the families share: seeded draws, the suite's own judge on any answer, correct variants."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

import numpy as np

from harness.expectations import Expected
from harness.judge_output import judge_output
from harness.make import expected_outputs
from harness.verdict import Verdict
from nnhal.operations import Signature
from nnhal.types import Array
from opset.call import Call
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.source import SeededSource
from opset.values import Arithmetic

SETS_KEPT, CALLS_KEPT = 40, 2000
VARIANTS = [Arithmetic(np.float32, order) for order in ("natural", "reversed", "blocked")]

Fault = Callable[[Call], Mapping[str, Array] | None]


_drawn: OrderedDict[tuple[str, str, str], list[Call]] = OrderedDict()
_due: OrderedDict[int, tuple[Call, tuple[Expected, ...]]] = OrderedDict()


def draws(definition: OperationDef, signature: Signature, count: int, purpose: str = "") -> Iterator[Call]:
    """Seeded calls of a signature; another purpose gives others. Those asked for last are kept."""
    known = _drawn.setdefault((definition.name, signature.id, purpose), [])
    if len(_drawn) > SETS_KEPT:
        _drawn.popitem(last=False)
    for number in range(count):
        if number == len(known):
            seed = f"{purpose}/{definition.name}/{signature.id}/{number}"
            known.append(draw_call(definition, signature, Scope(SeededSource(seed))))
        yield known[number]


def due_of(call: Call) -> tuple[Expected, ...]:
    """What is due of a call: worked out once for all faults that are tried on it."""
    if id(call) not in _due:
        _due[id(call)] = (call, expected_outputs(call))  # holds the call: its id stays its own
        if len(_due) > CALLS_KEPT:
            _due.popitem(last=False)
    return _due[id(call)][1]


def verdicts(call: Call, answer: Mapping[str, Array]) -> list[str]:
    """What the judge says of each result; a wrong shape is a failure."""
    words = []
    for due in due_of(call):
        got = answer[due.name]
        if got.shape != due.shape:
            words.append(f"FAIL: shape {got.shape}, {due.shape} is due")
            continue
        found = judge_output(due, got)
        words.append(f"{found.verdict.value}: {found.message}")
    return words


def noticed(call: Call, answer: Mapping[str, Array]) -> bool:
    """Whether an answer is judged to be anything but right."""
    return any(not word.startswith(Verdict.PASS.value) for word in verdicts(call, answer))


def complaints_on_variants(definition: OperationDef, signature: Signature, count: int) -> list[str]:
    """What the judge finds in correct arithmetic of another kind. Should be nothing."""
    found = []
    for call in draws(definition, signature, count, "variants"):
        for arithmetic in VARIANTS:
            answer = {name: result.stored for name, result in run_call(call, arithmetic).items()}
            if noticed(call, answer):
                found.append(f"{call.signature.id} {arithmetic.order}: {verdicts(call, answer)}")
    return found


def detection(definition: OperationDef, signature: Signature, fault: Fault, count: int = 100) -> tuple[int, int]:
    """In how many draws a fault is noticed, and in how many it changes anything."""
    seen = changed = 0
    for call in draws(definition, signature, count, "faults"):
        answer = fault(call)
        if answer is None:
            continue
        truth = run_call(call)
        if all(
            answer[n].shape == truth[n].stored.shape and np.array_equal(answer[n], truth[n].stored, equal_nan=True)
            for n in truth
        ):
            continue
        changed += 1
        seen += noticed(call, answer)
    return seen, changed


def to_steps(real: Fraction, scale: float, zero_point: int, low: int, high: int) -> tuple[int, Fraction]:
    """A rational number rounded half away from zero into steps, and how far it was from a tie."""
    exact = real / Fraction(scale)
    whole = (abs(exact) + Fraction(1, 2)).__floor__()
    steps = (whole if exact >= 0 else -whole) + zero_point
    return min(max(steps, low), high), abs(abs(exact) % 1 - Fraction(1, 2))
