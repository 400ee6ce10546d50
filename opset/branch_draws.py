"""Draws graphs for IF and WHILE: operations on operands of one type and shape, applied one by one with their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nnhal.model import Operation
from nnhal.types import FL4, OperandLifeTime, OperandType
from opset import activation, broadcast, comparison, elementwise
from opset.branch import Branch
from opset.building import GraphBuilder
from opset.call import Argument, Call, scalar
from opset.definition import F16, F32, I32, Q8, Q8S, OperationDef
from opset.drawing import Draft, Scope
from opset.drawn import complete
from opset.quantization import QUANTIZED

LIFE = OperandLifeTime
KINDS = (F32, F32, F16, Q8, Q8S, I32)
SUMS = (broadcast.ADD, broadcast.SUB)
PRODUCTS = (*SUMS, broadcast.MUL)
EXTREMA = (broadcast.MAXIMUM, broadcast.MINIMUM)
UNARY: dict[OperandType, tuple[OperationDef, ...]] = {
    F32: (activation.RELU, activation.RELU6, activation.TANH, activation.LOGISTIC, elementwise.ABS, elementwise.NEG),
    F16: (activation.RELU, activation.RELU1, activation.TANH, elementwise.ABS, elementwise.NEG),
    I32: (elementwise.NEG,),
    Q8: (activation.RELU,),
    Q8S: (activation.RELU,),
}
COMPARISONS = {
    "<": comparison.LESS,
    "<=": comparison.LESS_EQUAL,
    ">": comparison.GREATER,
    ">=": comparison.GREATER_EQUAL,
    "!=": comparison.NOT_EQUAL,
}
Wanted = tuple[float, int] | None


@dataclass
class BranchDraft:
    """A graph being drawn. Operands have values throughout, those of the call that is drawn around it.

    Attributes:
        draft: of the operation that runs the graph; choices come from it.
        reach: largest absolute value of a new constant.
    """

    draft: Draft
    reach: float = 2.0
    graph: GraphBuilder = field(default_factory=GraphBuilder)
    scope: Scope = field(init=False)
    places: dict[int, int] = field(default_factory=dict)  # index in the graph by the key in the scope

    def __post_init__(self) -> None:
        self.scope = Scope(self.draft.source, self.draft.scope.level, lazy=self.draft.scope.lazy)

    def take(self, argument: Argument) -> Argument:
        """Makes an input with the type, shape, quantisation and value of an operand outside."""
        known = self.scope.add(replace(argument, declared=None))
        self._place(known, LIFE.SUBGRAPH_INPUT)
        return known

    def apply(self, definition: OperationDef, *tensors: Argument, wanted: Wanted = None,
              activation: Argument | int | None = None) -> Argument:  # fmt: skip
        """Applies an operation to operands of the graph, or new ones, and gives its result.

        Args:
            definition: what to apply; its inputs are tensors, and a fused activation if it has one.
            tensors: in order. The first has a type that the operation takes.
            wanted: scale and zero point of a free result; fitted when None.
            activation: none when None.
        """
        kinds = [t.type for t in tensors]
        names = definition.forms[0].names(len(definition.forms[0].operands))
        signature = next(
            s for s in definition.signatures
            if s.since <= FL4 and [s.row.types.get(n) for n in names[: len(kinds)]] == kinds
        )  # fmt: skip
        step = Draft(self.scope, signature, len(names))
        for name, argument in zip(names, tensors, strict=False):
            step.put(name, argument)
        if len(names) > len(tensors):
            fused = activation or 0
            step.put(names[-1], fused if isinstance(fused, Argument) else scalar(OperandType.INT32, fused))
        if wanted is not None:
            step.wanted["output"] = wanted
        call = Call(definition, signature, {n: step.inputs[n] for n in names}, level=self.scope.level)
        return self.add(complete(step, call))[0]

    def add(self, call: Call) -> list[Argument]:
        """Adds a complete call whose inputs are operands of the graph, or become constants of it."""
        inputs = []
        for argument in call.inputs.values():
            if argument.key is None or argument.key not in self.places:
                lifetime = LIFE.SUBGRAPH if argument.type == OperandType.SUBGRAPH else LIFE.CONSTANT_COPY
                inputs.append(self._place(argument, lifetime))
            else:
                inputs.append(self.places[argument.key])
        results = list(call.results.values())
        outputs = [self._place(result, LIFE.TEMPORARY_VARIABLE) for result in results]
        self.graph.operations.append(Operation(int(call.definition.code), tuple(inputs), tuple(outputs)))
        return results

    def constant(self, kind: OperandType, shape: tuple[int, ...]) -> Argument:
        """A new operand with values up to the reach; it becomes a constant when an operation takes it."""
        reach = self.reach if kind != I32 else max(2.0, self.reach)
        return self.scope.add(self.draft.fresh(kind, shape, -reach, reach))

    def finish(self, outputs: Sequence[Argument]) -> Branch:
        """The graph, with results of its operations as outputs."""
        for output in outputs:
            assert output.key is not None
            index = self.places[output.key]
            self.graph.operands[index] = replace(self.graph.operands[index], lifetime=LIFE.SUBGRAPH_OUTPUT)
            self.graph.outputs.append(index)
        return Branch(self.graph.model())

    def _place(self, argument: Argument, lifetime: OperandLifeTime) -> int:
        index = self.graph.operand(argument, lifetime)
        if argument.key is not None:
            self.places[argument.key] = index
        return index


def stretched(draft: Draft, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to another."""
    if draft.chance(60):
        return shape
    sizes = tuple(size if draft.chance(50) else 1 for size in shape)
    return sizes[draft.integer(0, len(sizes) - 1) :]


def chain(branch: BranchDraft, start: Argument, others: Sequence[Argument], length: int, wanted: Wanted = None,
          activation: Argument | None = None, *, tame: bool = False) -> Argument:  # fmt: skip
    """Operations one behind the other; the result has the type and shape of the start.

    Args:
        branch: where they go.
        start: the first operand.
        others: operands of the graph that may be second ones: of the same type, and broadcasting to the start's shape.
        length: number of operations.
        wanted: scale and zero point of the result.
        activation: an operand that says what is fused to sums, at times.
        tame: values must not grow from turn to turn: no products of two large ones, sums first.
    """
    draft, kind, current = branch.draft, start.type, start
    for place in range(length):
        last = place == length - 1
        second = kind in QUANTIZED and last  # the result's quantisation is free there
        if not second and place and draft.chance(35):
            current = branch.apply(draft.choose(UNARY[kind]), current)
            continue
        which = SUMS if not place or kind == I32 else PRODUCTS
        if place and draft.chance(20):
            which = EXTREMA
        pool = [o for o in others if o.key != current.key]
        if pool and draft.chance(60 if place else 92):
            other = draft.choose(pool)
        else:
            other = branch.constant(kind, stretched(draft, start.shape))
        definition = draft.choose(which)
        if definition is broadcast.MUL and tame:
            other = branch.constant(kind, stretched(draft, start.shape))
        if definition is broadcast.MUL and last and wanted is not None and kind in QUANTIZED:
            # The scale of a product is greater than that of its factors together; the one that is due may not be.
            definition = definition if wanted[0] > 1.001 * current.scale * other.scale else broadcast.ADD
        pair = (current, other) if definition is broadcast.SUB or draft.chance(60) else (other, current)
        fused: Argument | int | None = None
        if definition in PRODUCTS and kind != I32 and not tame:
            fused = activation if activation is not None and draft.chance(70) else draft.choose((0, 0, 1, 2, 3))
        current = branch.apply(definition, *pair, wanted=wanted if last else None, activation=fused)
    return current


def flag(branch: BranchDraft, sign: str, left: Argument, right: Argument) -> Argument:
    """A comparison, written one of the ways that mean the same."""
    opposite = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
    mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
    if sign in opposite and branch.draft.chance(20):
        return branch.apply(elementwise.LOGICAL_NOT, branch.apply(COMPARISONS[opposite[sign]], left, right))
    if branch.draft.chance(30):
        return branch.apply(COMPARISONS[mirrored[sign]], right, left)
    return branch.apply(COMPARISONS[sign], left, right)
