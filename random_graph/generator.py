"""Draws graphs of 1 to 600 operations over all operations and types, valid and connected by construction.

An operation draws itself (`OperationDef.draw`) in a scope that holds the operands of the graph under way, as it does
alone; here the scope sees to it that each takes what another gave, first of all what nobody has read yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from nnhal.model import Model, Operation, is_tensor
from nnhal.operations import Signature
from nnhal.types import FL3, Array, FeatureLevel, OperandLifeTime, OperandType, OperationType
from opset.building import GraphBuilder
from opset.call import Argument, Call
from opset.definition import OperationDef
from opset.drawing import Scope, UnsatisfiableError
from opset.drawn import draw_call
from opset.quantization import FLOATS, QUANTIZED, limits
from opset.source import Source, choice
from random_graph import adapters
from random_graph.mixes import Choice, Mix

WINDOW = 24  # operands that are looked through for one that fits; the graph's size must not decide what a draw costs
FRESH = 85  # percent: how often a result that nobody has read is taken before others
STUBBORN = 3  # draws of an operation before another is chosen
TRIES = 80  # operations in a row that do not fit before the graph is given up
FARTHEST = {OperandType.TENSOR_FLOAT32: 1e6, OperandType.TENSOR_FLOAT16: 2e4}
WOVEN = 60  # percent: how often an operation that nothing fits is woven in, in place of another one
# What they give no other operation takes, so that they do not come first.
I32 = OperandType.TENSOR_INT32
DEAD_ENDS = frozenset({OperationType.RANK, OperationType.RANDOM_MULTINOMIAL})
MANY = 50  # operations, of which the results of one may be saturated
HUNDREDS = 200  # operations, from which on two and a half in so many may be: where one is, others go on from it
SATURATED = 0.6  # share of a result's elements at the ends from which on it says too little


@dataclass(frozen=True)
class Drawn:
    """A graph with values for its inputs.

    Attributes:
        arguments: the inputs of the model in the order of its list.
        calls: the operations on their operands.
        level: the level that the graph was drawn for.
    """

    model: Model
    arguments: tuple[Argument, ...]
    calls: tuple[Call, ...]
    level: FeatureLevel

    @cached_property
    def inputs(self) -> tuple[Array | None, ...]:
        """Stored values in the order of the model's input list."""
        return tuple(argument.value for argument in self.arguments)

    @property
    def sound(self) -> bool:
        """Whether all results are finite and in range, and none is saturated for the most part."""
        # What may be computed as float16 must fit into it.
        relaxed = self.model.relax_computation_float32_to_float16
        farthest = dict.fromkeys(FARTHEST, FARTHEST[OperandType.TENSOR_FLOAT16]) if relaxed else FARTHEST
        count = len(self.calls)
        few = (5 * count // 2 if count >= HUNDREDS else count) // MANY  # of hundreds, some always are
        return all(_in_range(call, farthest) for call in self.calls) and sum(map(_saturated, self.calls)) <= few


@dataclass
class GraphScope(Scope):
    """The operands of a graph under way, of which the newest are handed out, unread results first.

    Attributes:
        unread: keys of results that no operation reads.
        given: keys of all results that others may read.
        kinds: their types.
        pool: keys of the operands that may be handed out, oldest first.
        joined: whether the operation under way has taken an operand of the graph.
        adapted: operations that make an operand of the graph fit the one under way, or weave that one in.
        cut: keys of operands of which nobody reads all: they are outputs of the model.
        cutting: those that come with the operation under way.
        weaves: whether the operation under way is woven in when it takes nothing of the graph.
        mark: key of the first operand that comes with the operation under way.
    """

    unread: dict[int, None] = field(default_factory=dict)
    given: set[int] = field(default_factory=set)
    kinds: frozenset[OperandType] = frozenset()
    pool: list[int] = field(default_factory=list)
    joined: bool = False
    adapted: list[Call] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)
    cutting: set[int] = field(default_factory=set)
    weaves: bool = False
    mark: int = 0
    _near: list[Argument] | None = None
    _near_of: dict[OperandType, list[Argument]] = field(default_factory=dict)
    _latest: list[Argument] | None = None

    def begin(self) -> None:
        """Before a call is drawn."""
        self.joined = False
        self.weaves = self.source.integer(0, 99) < WOVEN
        self.adapted = []
        self.cutting = set()
        self.mark = len(self.operands)

    def admit(self, call: Call) -> None:
        """Makes what a call that stays brought operands of the graph that others may read."""
        mark, unread, pool = self.mark, self.unread, self.pool
        for argument in call.inputs.values():
            key = argument.key
            if key is not None:
                unread.pop(key, None)
                # A bias has a scale that means nothing to others, and filters of channels fit nowhere else.
                if key >= mark and argument.channel is None and not (argument.type == I32 and argument.scale):
                    pool.append(key)
        open_ = _left_open(call)
        for name, argument in call.results.items():
            key = argument.key
            if key is None or name in open_:
                continue
            self.given.add(key)
            if argument.type not in self.kinds:
                self.kinds |= {argument.type}
            unread[key] = None
            pool.append(key)
        self._near = self._latest = None

    @property
    def latest(self) -> list[Argument]:
        """Operands of the graph that others gave, unread ones first."""
        if self._latest is None:
            newest = [key for key in self.pool[: -WINDOW - 1 : -1] if key in self.given]
            unread = [key for key in newest if key in self.unread]
            self._latest = [self.operands[key] for key in (*unread, *(k for k in newest if k not in self.unread))]
        return self._latest

    def _within_sight(self, kind: OperandType | None) -> list[Argument]:
        """The operands that are looked through for one that fits: all, or those of a type."""
        near = self._near
        if near is None:
            near = self._near = [self.operands[key] for key in self.pool[-WINDOW:]]
            self._near_of = {}
        if kind is None:
            return near
        found = self._near_of.get(kind)
        if found is None:
            found = self._near_of[kind] = [argument for argument in near if argument.type == kind]
        return found

    def supply(self, kind: OperandType, shape: tuple[int, ...], fits: Callable[[Argument], bool],
               scale: float | None, zero_point: int | None) -> Argument | None:  # fmt: skip
        if self.joined or self.adapted or not self.given:
            return None
        wanted = (scale, zero_point) if scale is not None and zero_point is not None else None
        found = adapters.supply(self, self.latest, kind, shape, fits, wanted)
        if found is None:
            return None
        made, adapter = found
        self.adapted += adapter.calls
        self.cutting |= adapter.cut
        return made

    def take(self, argument: Argument) -> None:
        if not self.joined:
            made = (result.key for call in self.adapted for result in call.results.values())
            self.joined = argument.key in self.given or argument.key in made

    def settle(self, inputs: Mapping[str, Argument]) -> None:
        if not self.given or self.joined:
            return
        woven = None
        if self.weaves:
            own = [a for a in inputs.values() if a.key is not None and a.key >= self.mark and a.channel is None]
            woven = adapters.weave(self, self.latest, own)
        if woven is None:
            raise UnsatisfiableError("the operation takes nothing of the graph")
        self.adapted, self.cutting, self.joined = woven.calls, woven.cut, True

    def find(self, fits: Callable[[Argument], bool], empty: bool = False,
             kind: OperandType | None = None) -> Argument | None:  # fmt: skip
        if not self.pool or (self.joined and self.source.integer(0, 99) >= self.reuse):
            return None
        found = [a for a in self._within_sight(kind) if (empty or 0 not in a.shape) and fits(a)]
        if not found:
            return None
        if not self.joined and self.given:  # or the operation would hang on nothing
            found = [a for a in found if a.key in self.given]
            if not found:
                return None
        unread = self.unread
        fresh = [a for a in found if a.key in unread]
        return choice(self.source, fresh if fresh and self.source.integer(0, 99) < FRESH else found)


def draw_model(source: Source, mix: Mix) -> Drawn:
    """A valid connected graph with values.

    Raises:
        UnsatisfiableError: the draw ran dry. Try the next one.
    """
    return _build(source, mix, draw_calls(source, mix))


def draw_calls(source: Source, mix: Mix) -> tuple[GraphScope, list[Call]]:
    """The operations of a graph in order, and the scope that holds their operands.

    Raises:
        UnsatisfiableError: see `draw_model`.
    """
    only = mix.operations if mix.closed else frozenset()
    scope = GraphScope(source, mix.level, reuse=60, stretch=mix.stretch, largest=mix.largest, lazy=True, only=only)
    calls: list[Call] = []
    count = source.integer(*mix.sizes)
    tries = 0
    while len(calls) < count:
        drawn = _next(source, mix, scope)
        if drawn:
            calls += drawn
            tries = 0
        elif (tries := tries + 1) > TRIES:
            raise UnsatisfiableError(f"no operation goes on from the {len(calls)} before")
    return scope, calls


def _next(source: Source, mix: Mix, scope: GraphScope) -> list[Call]:
    """One more operation, behind those that make something fit it; none where what was drawn is of no use.

    An operation is drawn several times before another is chosen, or those that ask for much would hardly ever come.
    """
    definition, signature = _choose(source, mix, scope)
    for _ in range(STUBBORN):
        calls = _applied(scope, definition, signature, last=mix.sizes[1] == 1)
        if calls:
            return calls
    return []


def _applied(scope: GraphScope, definition: OperationDef, signature: Signature, *, last: bool) -> list[Call]:
    """An operation drawn once, see `_next`; none may go on from the `last` one."""
    scope.begin()
    try:
        call = draw_call(definition, signature, scope)
        if not _joined(scope, call):
            raise UnsatisfiableError("the operation takes nothing of the graph")
        if not (last or scope.given) and _left_open(call) == set(call.results):
            raise UnsatisfiableError("no operation can go on from the first")
    except UnsatisfiableError:
        del scope.operands[scope.mark :]
        return []
    calls = [*scope.adapted, call]
    scope.cut |= scope.cutting
    for made in calls:
        scope.admit(made)
    return calls


def _joined(scope: GraphScope, call: Call) -> bool:
    """Whether a call takes what another operation gave, or an adapter made of that."""
    if not scope.given:
        return True
    made = {result.key for adapted in scope.adapted for result in adapted.results.values()} or scope.given
    return any(argument.key in made for argument in call.inputs.values())


def _choose(source: Source, mix: Mix, scope: GraphScope) -> tuple[OperationDef, Signature]:
    """An operation, each as often as any other, with a signature that takes a type which the graph has to give."""
    bridge = mix.bridging and scope.given and source.integer(0, 99) < mix.bridges
    choices: Sequence[Choice] = mix.bridging if bridge else mix.choices
    kinds = scope.kinds
    for _ in range(TRIES):
        chosen = choice(source, choices)
        if not kinds and chosen.definition.code in DEAD_ENDS and mix.sizes[1] > 1:
            continue
        fitting = chosen.fitting(kinds)
        if fitting or not kinds:
            return chosen.definition, choice(source, fitting or chosen.signatures)
    raise UnsatisfiableError("no operation takes what the graph gives")


def _left_open(call: Call) -> set[str]:
    """Results that others must not read: the specification leaves open what is in them, or in what order."""
    judging = call.definition.judging
    if judging.grouped_by:
        rows = call.results[judging.grouped_by].value
        if rows is not None and len(np.unique(rows)) < len(rows):
            return set(call.results)
    return {name for name in call.results if name.startswith("scratch")}


def _in_range(call: Call, farthest: Mapping[OperandType, float]) -> bool:
    """Whether the results are finite, and no farther from 0 than their type may be."""
    for argument in call.results.values():
        value = argument.value
        if argument.type not in FLOATS or value is None or not value.size:
            continue
        if not np.isfinite(value).all() or np.abs(value).max() > farthest[argument.type]:
            return False
    return True


def _saturated(call: Call) -> bool:
    """Whether a quantised result lies at the ends of its type for the most part."""
    for argument in call.results.values():
        value = argument.value
        if argument.type in QUANTIZED and value is not None and value.size >= 8:
            low, high = limits(argument.type)
            if ((value == low) | (value == high)).mean() > SATURATED:
                return True
    return False


# --- calls to models --------------------------------------------------------------------------------------------------


def _build(source: Source, mix: Mix, drawn: tuple[GraphScope, list[Call]]) -> Drawn:
    """A model of calls that share operands, and the values of its inputs."""
    scope, calls = drawn
    graph = GraphBuilder()
    arguments: list[Argument] = []
    places: dict[int, int] = {}
    read = {a.key for call in calls for a in call.inputs.values() if a.key is not None}
    read -= scope.cut
    shown = choice(source, mix.shown)
    loops = any(call.definition.code == OperationType.WHILE for call in calls)  # it wants every size to be known
    decides = {call["condition"].key for call in calls if call.definition.code == OperationType.IF}  # so does an IF
    hidden = source.integer(0, 99) < mix.unknown and mix.level >= FL3 and not loops

    def place(argument: Argument, lifetime: OperandLifeTime) -> int:
        index = graph.operand(argument, lifetime)
        if argument.key is not None:
            places[argument.key] = index
        return index

    def input_of(argument: Argument) -> int:
        if argument.key is not None and argument.key in places:
            return places[argument.key]
        if argument.omitted:
            return place(argument, OperandLifeTime.NO_VALUE)
        if argument.type == OperandType.SUBGRAPH:
            return place(argument, OperandLifeTime.SUBGRAPH)
        fixed = argument.key is None or not is_tensor(argument.type) or argument.channel is not None
        if fixed or source.integer(0, 99) < mix.constants:
            return place(argument, OperandLifeTime.CONSTANT_COPY)
        arguments.append(argument)
        return place(argument, OperandLifeTime.SUBGRAPH_INPUT)

    def output_of(argument: Argument) -> int:
        inner = argument.key in read and source.integer(0, 99) >= shown
        if hidden and source.integer(0, 99) < 50 and argument.key not in decides:
            argument = argument.declaring(_hidden(source, argument.shape))
        return place(argument, OperandLifeTime.TEMPORARY_VARIABLE if inner else OperandLifeTime.SUBGRAPH_OUTPUT)

    for call in calls:
        inputs = tuple([input_of(argument) for argument in call.inputs.values()])
        outputs = tuple([output_of(argument) for argument in call.results.values()])
        graph.operations.append(Operation(int(call.definition.code), inputs, outputs))
    relaxed = source.integer(0, 99) < mix.relaxed
    model = graph.model(relaxed)
    return Drawn(model, tuple(arguments), tuple(calls), mix.level)


def _hidden(source: Source, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of which some dimensions are left open."""
    return tuple(0 if source.integer(0, 1) else size for size in shape)
