"""Draws calls of IF and WHILE: graphs of elementwise operations, loops that count and end, at times one in another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnhal.types import OperandType, OperationType
from opset import broadcast
from opset.branch import Branch
from opset.branch_draws import KINDS, BranchDraft, Wanted, chain, flag, stretched
from opset.call import Argument, Call, scalar
from opset.definition import B8, F16, F32, I32, OperationDef
from opset.drawing import WIDE, Draft, within
from opset.drawn import complete
from opset.quantization import QUANTIZED

DEEPEST = 1  # graphs within graphs within the operation
SHAPE_RANKS, LARGEST, MOST = (1, 4), 5, 1024
MANY = ((6, 9), (11, 16))
FEWEST = 64  # elements that show how values are rounded, though some saturate


def _frame(draft: Draft) -> tuple[OperandType, tuple[int, ...]]:
    """Type and shape of what is computed with: those of an operand of the scope, if one fits."""

    def suits(a: Argument) -> bool:
        reach = 100.0 if a.type == I32 else WIDE
        return (
            a.type in KINDS
            and 1 <= a.rank <= SHAPE_RANKS[1]
            and math.prod(a.shape) <= MOST
            and within(a, -reach, reach)
        )

    known = draft.scope.find(suits)
    if known:
        return known.type, known.shape
    kind = draft.choose(KINDS)
    if kind in QUANTIZED and draft.chance(30):  # enough elements to show how the last operation rounds
        return kind, tuple(draft.integer(*sizes) for sizes in MANY)
    return kind, draft.shape(SHAPE_RANKS, LARGEST)


def draw_if(draft: Draft) -> None:
    """A condition that is true or false, and two graphs that are not alike."""
    condition = draft.operand(B8, (1,), 0.0, 1.0)
    kind, shape = _frame(draft)
    handed = []
    if draft.chance(92):
        handed = [draft.operand(kind, shape)]
        handed += [draft.operand(kind, stretched(draft, shape)) for _ in range(draft.integer(0, 2))]
    if kind != I32 and draft.chance(25):  # a scalar goes in as any operand does
        handed.append(scalar(OperandType.INT32, draft.choose((0, 1, 2, 3))))
    if draft.chance(25):  # and one that no graph uses
        handed.insert(draft.integer(0, len(handed)), draft.operand(draft.choose((B8, I32, F32)), (2,)))
    start = Argument(kind, shape)
    fill_if(draft, condition, handed, start, [None] * draft.choose((1, 1, 2, 3)), 0)


def fill_if(draft: Draft, condition: Argument, handed: Sequence[Argument], start: Argument,
            wanted: Sequence[Wanted], depth: int) -> None:  # fmt: skip
    """Puts an IF together.

    Args:
        draft: of the IF.
        condition: what decides.
        handed: operands for both graphs.
        start: type and shape of all results; an operand handed in that has them is what the graphs begin with.
        wanted: scale and zero point of each result.
        depth: of the IF, 0 for the outermost.
    """
    draft.put("condition", condition)
    for number, argument in enumerate(handed):
        draft.put(f"inputs{number}", argument)
    draft.scope.settle(draft.inputs)
    draft.count = 3 + len(handed)
    order = ["then_graph", "else_graph"]
    if draft.chance(50):
        order.reverse()
    due = list(wanted)
    for name in order:  # the first settles the quantisation of results, the second follows
        branch = BranchDraft(draft)
        taken = [branch.take(argument) for argument in handed]
        outputs = [_alternative(branch, taken, start, place, depth) for place in due]
        draft.put(name, Argument(OperandType.SUBGRAPH, branch=branch.finish(outputs)))
        due = [(o.scale, o.zero_point) if o.type in QUANTIZED else None for o in outputs]
    results = [Argument(o.type, o.shape, o.scale, o.zero_point) for o in outputs]
    draft.results = {f"outputs{number}": result for number, result in enumerate(results)}


def _alternative(branch: BranchDraft, taken: Sequence[Argument], start: Argument, wanted: Wanted,
                 depth: int) -> Argument:  # fmt: skip
    """One result of a graph."""
    draft = branch.draft
    usable = [a for a in taken if a.type == start.type and _broadcasts(a.shape, start.shape)]
    whole = [a for a in usable if a.shape == start.shape]
    first = draft.choose(whole) if whole else branch.constant(start.type, start.shape)
    activation = next((a for a in taken if a.type == OperandType.INT32), None)
    if depth < DEEPEST and draft.chance(12):
        return nested(branch, first, usable, wanted, depth)
    return chain(branch, first, usable, draft.integer(1, 3), wanted, activation)


def _broadcasts(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return len(shape) <= len(whole) and all(a in (1, b) for a, b in zip(shape[::-1], whole[::-1], strict=False))


def nested(branch: BranchDraft, start: Argument, others: Sequence[Argument], wanted: Wanted, depth: int,
           condition: Argument | None = None) -> Argument:  # fmt: skip
    """An IF, or a WHILE unless there is a condition, within a graph; its result has the type and shape of the start."""
    draft = branch.draft
    loop = condition is None and draft.chance(40)
    if loop and wanted is not None:  # the loop's values have the quantisation of its result
        start = branch.apply(broadcast.ADD, start, branch.constant(start.type, (1,)), wanted=wanted)
    definition = _definition(OperationType.WHILE if loop else OperationType.IF)
    signature = definition.signatures[0]
    inner = Draft(branch.scope, signature, 0)
    if loop:
        fill_while(inner, [start], [o for o in others if o.key != start.key], _counting(inner, 4), depth + 1, only=0)
    else:
        if condition is None:
            sides = [branch.constant(F32, (1,)) for _ in range(2)]
            condition = flag(branch, draft.choose(("<", ">=")), *sides)
        handed = [start, *(o for o in others if o.key != start.key)]
        fill_if(inner, condition, handed, Argument(start.type, start.shape), [wanted], depth + 1)
    names = signature.form.names(inner.count)
    call = Call(definition, signature, {name: inner.inputs[name] for name in names}, level=branch.scope.level)
    return branch.add(complete(inner, call))[0]


def _definition(code: OperationType) -> OperationDef:
    from opset import OPSET  # the definitions of IF and WHILE draw from here

    return OPSET[code]


# --- loops ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counting:
    """How a loop counts: from a first value in steps while the comparison with the limit holds.

    Attributes:
        turns: how often the body runs.
    """

    kind: OperandType
    first: float
    step: float
    sign: str
    limit: float
    turns: int

    def tensor(self, value: float) -> Argument:
        """A value of the counter."""
        dtype = {I32: np.int32, F32: np.float32, F16: np.float16}[self.kind]
        return Argument(self.kind, (1,), value=np.array([value], dtype))


def _counting(draft: Draft, most: int) -> Counting:
    """Draws a count. Float limits lie between two values, so that no rounding decides on a turn."""
    kind = draft.choose((I32, I32, I32, F32, F16))
    most = min(most, 6) if kind == F16 else most
    turns = 0 if draft.chance(10) else draft.integer(1, most if draft.chance(25) else min(most, 6))
    first = draft.integer(-5, 5)
    if kind != I32:
        step = draft.choose((0.5, 1.0, -1.0) if kind == F32 else (2.0, -2.0))  # beyond what errors add up to
        sign = draft.choose(("<", "<=")) if step > 0 else draft.choose((">", ">="))
        return Counting(kind, first, step, sign, first + (turns - 0.5) * step, turns)
    step = draft.choose((1, 1, 2, 3, -1, -2))
    end, toward = first + turns * step, 1 if step > 0 else -1
    sign = draft.choose(("<", "<=", "!=")) if step > 0 else draft.choose((">", ">=", "!="))
    spare = draft.integer(0, abs(step) - 1) * toward
    limit = end if sign == "!=" else end - toward - spare if "=" in sign else end - spare
    return Counting(kind, first, step, sign, limit, turns)


def draw_while(draft: Draft) -> None:
    """A loop that counts, with values that each turn changes; 0 to some 20 turns."""
    kind, shape = _frame(draft)
    # The limits on rounding need one turn: several add up to several allowed steps.
    once = kind in QUANTIZED and math.prod(shape) >= FEWEST and draft.chance(60)
    counting = _counting(draft, 1 if once else 6 if kind in QUANTIZED else 20)
    state = [draft.operand(kind, shape) for _ in range(draft.integer(0 if draft.chance(15) else 1, 2))]
    number = draft.choose((0, 1, 1, 2)) if state else 0
    ends = (-100.0, 100.0) if kind == I32 else (-1.0, 1.0)
    fixed = [draft.operand(kind, stretched(draft, shape), *ends) for _ in range(number)]
    if draft.chance(20):
        fixed.append(draft.operand(draft.choose((B8, I32, F32)), (1,)))
    if draft.chance(20):
        fixed.append(scalar(OperandType.INT32, 0))
    fill_while(draft, state, fixed, counting, 0)


def fill_while(draft: Draft, values: Sequence[Argument], fixed: Sequence[Argument], counting: Counting, depth: int,
               only: int | None = None) -> None:  # fmt: skip
    """Puts a WHILE together.

    Args:
        draft: of the WHILE.
        values: operands that each turn changes; the counter is put among them.
        fixed: operands that the loop only reads; the limit may be put among them.
        counting: how the loop ends.
        depth: of the WHILE, 0 for the outermost.
        only: place among the values of the single result; a number of the first are results when None.
    """
    counter = draft.scope.add(counting.tensor(counting.first))
    state = list(values)
    place = draft.integer(0, len(state)) if only is None else len(state)
    state.insert(place, counter)
    results = draft.integer(1, len(state)) if only is None else 1
    read = list(fixed)
    limit_at = None
    if draft.chance(40):
        limit_at = len(state) + draft.integer(0, len(read))
        read.insert(limit_at - len(state), draft.scope.add(counting.tensor(counting.limit)))
    handed = [*state, *read]
    for number, argument in enumerate(handed):
        draft.put(f"initial{number}", argument)
    draft.scope.settle(draft.inputs)
    draft.count = 2 + len(handed)
    draft.put("cond_graph", _reference(_condition(draft, handed, place, limit_at, counting)))
    draft.put("body_graph", _reference(_body(draft, handed, len(state), place, counting, depth)))
    draft.results = {
        f"outputs{number}": Argument(a.type, a.shape, a.scale, a.zero_point) for number, a in enumerate(state[:results])
    }


def _reference(branch: Branch) -> Argument:
    return Argument(OperandType.SUBGRAPH, branch=branch)


def _condition(
    draft: Draft, handed: Sequence[Argument], place: int, limit_at: int | None, counting: Counting
) -> Branch:
    branch = BranchDraft(draft)
    taken = [branch.take(argument) for argument in handed]
    limit = counting.tensor(counting.limit) if limit_at is None else taken[limit_at]
    return branch.finish([flag(branch, counting.sign, taken[place], limit)])


def _body(draft: Draft, handed: Sequence[Argument], count: int, place: int, counting: Counting, depth: int) -> Branch:
    """New values of the first `count` operands; that at `place` is the counter."""
    branch = BranchDraft(draft, reach=1.0)
    taken = [branch.take(argument) for argument in handed]
    backward = draft.chance(30)
    step = counting.tensor(-counting.step if backward else counting.step)
    none = next((a for a in taken if a.type == OperandType.INT32), None)  # the activation of the counter's sum
    counter = branch.apply(broadcast.SUB if backward else broadcast.ADD, taken[place], step, activation=none)
    outputs = []
    for number, old in enumerate(taken[:count]):
        if number == place:
            outputs.append(counter)
            continue
        wanted = (old.scale, old.zero_point) if old.type in QUANTIZED else None
        near = taken if counting.turns <= 4 else taken[count:]  # values that feed one another grow fast
        others = [a for a in near if a.type == old.type and _broadcasts(a.shape, old.shape) and a.key != old.key]
        if old.type == counting.kind:  # the counter and its limit are no operands of what is counted
            others = [a for a in others if a.key != taken[place].key]
        if depth < DEEPEST and draft.chance(12):
            middle = counting.tensor(counting.first + counting.step * (counting.turns // 2 + 0.5))
            due = flag(branch, draft.choose(("<", ">")), taken[place], middle)
            outputs.append(nested(branch, old, others, wanted, depth, due))
            continue
        once = counting.turns == 1 and old.type in QUANTIZED and math.prod(old.shape) >= FEWEST
        outputs.append(chain(branch, old, others, 1 if once else draft.integer(1, 3), wanted, tame=True))
    return branch.finish(outputs)
