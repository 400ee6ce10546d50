"""A model under change: what every rewrite takes, alters and gives. Operands and operations go by their index."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from nnhal.model import (
    DataLocation,
    Model,
    Operand,
    Operation,
    Subgraph,
    constant_bytes,
    constant_value,
    count_consumers,
    is_tensor,
)
from nnhal.types import FL8, Array, FeatureLevel, OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.building import CONSTANT_ALIGNMENT
from opset.call import Argument, Call
from opset.definition import OperationDef
from opset.evaluate import run_call
from opset.graph import call_of
from opset.quantization import FLOATS, QUANTIZED
from opset.validation import violations as call_violations

TEMPORARY, INPUT, OUTPUT = (
    OperandLifeTime.TEMPORARY_VARIABLE,
    OperandLifeTime.SUBGRAPH_INPUT,
    OperandLifeTime.SUBGRAPH_OUTPUT,
)
COPY = OperandLifeTime.CONSTANT_COPY
CONSTANTS = (COPY, OperandLifeTime.CONSTANT_REFERENCE)


class NoRewriteError(ValueError):
    """A model offers no place for a rewrite; another one may."""


@dataclass(frozen=True)
class Link:
    """How an output relates to one of the model that everything began with.

    Attributes:
        position: of that output in the model's list.
        first: row of it, along its first dimension, at which this one begins; None where this is the whole of it.
    """

    position: int
    first: int | None = None

    def behind(self, before: Link) -> Link:
        """The same counted from one model earlier, where the output that this one is a part of had that link."""
        if self.first is None:
            return before
        return Link(before.position, self.first + (before.first or 0))


@dataclass(frozen=True, eq=False)
class Graph:
    """A valid model with the values of its inputs.

    Attributes:
        inputs: stored values in the order of the model's list; None for an omitted one.
        links: one for each output.
        level: at which the model is valid, and what is made of it must be.
    """

    model: Model
    inputs: tuple[Array | None, ...]
    links: tuple[Link, ...]
    level: FeatureLevel = FL8

    @classmethod
    def of(cls, model: Model, inputs: Sequence[Array | None], level: FeatureLevel = FL8) -> Graph:
        """A model that everything begins with."""
        return cls(model, tuple(inputs), tuple(Link(n) for n in range(len(model.main.output_indexes))), level)

    @cached_property
    def known(self) -> Mapping[int, Array]:
        """The value of every operand of the main graph that has one, as the specification gives it."""
        model, graph = self.model, self.model.main
        known = {i: v for i, v in zip(graph.input_indexes, self.inputs, strict=True) if v is not None}
        for index, operand in enumerate(graph.operands):
            if operand.lifetime in CONSTANTS:
                known[index] = constant_value(model, operand)
        for operation in graph.operations:
            results = computed(call_of(model, graph, operation, known))
            known.update(zip(operation.outputs, results.values(), strict=True))
        return known

    @cached_property
    def reads(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        """Where each operand of the main graph is read: (operation, place among its inputs)."""
        found: dict[int, list[tuple[int, int]]] = {}
        for number, operation in enumerate(self.model.main.operations):
            for place, index in enumerate(operation.inputs):
                found.setdefault(index, []).append((number, place))
        return {index: tuple(places) for index, places in found.items()}

    def call(self, number: int) -> Call:
        """An operation of the main graph with the values of its inputs."""
        graph = self.model.main
        return call_of(self.model, graph, graph.operations[number], self.known)

    def is_parameter(self, index: int) -> bool:
        """Whether an operation takes an operand for a parameter: one that decides shapes, and is constant as a rule."""
        operations = self.model.main.operations
        for number, place in self.reads.get(index, ()):
            operation = operations[number]
            given, made = ([self.model.main.operands[i].type for i in e] for e in (operation.inputs, operation.outputs))
            signature = OPSET[operation.type].info.match(given, made)
            if signature is None or signature.form.operand(signature.form.names(len(given))[place]).parameter:
                return True
        return False


def computed(call: Call) -> dict[str, Array]:
    """The stored results of a call, whose shapes need not be known."""
    shapes = call.definition.infer(call)
    shaped = {name: replace(a, shape=tuple(shapes[name])) for name, a in call.results.items()}
    return {name: result.stored for name, result in run_call(replace(call, results=shaped)).items()}


def is_determined(definition: OperationDef) -> bool:
    """Whether an operation gives the same whenever it gets the same: nothing random, no rows in any order."""
    return definition.judging.sampling is None and not definition.judging.grouped_by


@dataclass
class Draft:
    """A graph under change."""

    graph: Graph
    operands: list[Operand] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    given: list[Array | None] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    values: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, graph: Graph) -> Draft:
        """A draft that is the graph still."""
        main = graph.model.main
        return cls(
            graph,
            list(main.operands),
            list(main.operations),
            list(main.input_indexes),
            list(main.output_indexes),
            list(graph.inputs),
            list(graph.links),
            bytearray(graph.model.operand_values),
        )

    def operand(self, like: Operand, **changes: object) -> int:
        """Adds an operand, a temporary unless the changes say another lifetime, and gives its index."""
        bare = replace(like, lifetime=TEMPORARY, location=DataLocation())
        self.operands.append(replace(bare, **changes))  # type: ignore[arg-type]
        return len(self.operands) - 1

    def constant(self, like: Operand, value: Array) -> int:
        """Adds a constant with the type and quantisation of another operand."""
        shape = value.shape if is_tensor(like.type) else ()
        return self.operand(like, dimensions=shape, lifetime=COPY, location=self._place(value))

    def argument(self, argument: Argument) -> int:
        """Adds a constant that is an argument of a call."""
        assert argument.value is not None
        kind = Operand(argument.type, (), argument.scale, argument.zero_point, extra_params=argument.channel)
        return self.constant(kind, argument.value)

    def _place(self, value: Array) -> DataLocation:
        self.values += bytes(-len(self.values) % CONSTANT_ALIGNMENT)
        place = DataLocation(0, len(self.values), value.nbytes)
        self.values += np.ascontiguousarray(value).tobytes()
        return place

    def to_constant(self, index: int, value: Array) -> None:
        """Makes a constant of an operand that was an input."""
        shape = value.shape if is_tensor(self.operands[index].type) else ()
        place = self._place(value)
        self.operands[index] = replace(self.operands[index], dimensions=shape, lifetime=COPY, location=place)

    def read(self, operation: int, place: int, index: int) -> None:
        """Lets an operation read another operand in one place."""
        old = self.operations[operation]
        inputs = (*old.inputs[:place], index, *old.inputs[place + 1 :])
        self.operations[operation] = replace(old, inputs=inputs)

    def finish(self) -> Graph:
        """The graph as it has become, without operands that nothing refers to any more."""
        used = {*self.inputs, *self.outputs}
        for operation in self.operations:
            used.update(operation.inputs, operation.outputs)
        kept = sorted(used)
        place = {old: new for new, old in enumerate(kept)}

        def moved(indexes: Sequence[int]) -> tuple[int, ...]:
            return tuple(place[index] for index in indexes)

        operations = tuple(Operation(o.type, moved(o.inputs), moved(o.outputs)) for o in self.operations)
        operands = tuple(self.operands[index] for index in kept)
        main = Subgraph(operands, operations, moved(self.inputs), moved(self.outputs))
        model = replace(self.graph.model, main=main, operand_values=bytes(self.values), translation=None)
        return Graph(packed(model), tuple(self.given), tuple(self.links), self.graph.level)


def packed(model: Model, order: random.Random | None = None) -> Model:
    """The same model with its copied constants laid out anew, those that are not used left behind.

    Args:
        model: valid.
        order: shuffles the constants, and leaves gaps between them; without it they keep their order.
    """
    values = bytearray()
    graphs = [model.main, *model.referenced]
    found = [(g, i) for g, graph in enumerate(graphs) for i, o in enumerate(graph.operands) if o.lifetime == COPY]
    if order is not None:
        order.shuffle(found)
    places: dict[tuple[int, int], DataLocation] = {}
    for g, i in found:
        operand = graphs[g].operands[i]
        values += bytes(-len(values) % CONSTANT_ALIGNMENT)
        if order is not None:
            values += bytes(CONSTANT_ALIGNMENT * order.randrange(3))
        places[g, i] = DataLocation(0, len(values), operand.location.length)
        values += constant_bytes(model, operand)
    laid = [
        count_consumers(
            replace(
                graph,
                operands=tuple(
                    replace(o, location=places[g, i]) if (g, i) in places else o for i, o in enumerate(graph.operands)
                ),
            )
        )
        for g, graph in enumerate(graphs)
    ]
    return replace(model, main=laid[0], referenced=tuple(laid[1:]), operand_values=bytes(values))


def argument_of(operand: Operand, value: Array) -> Argument:
    """An operand with its value, as calls have it."""
    channel = operand.extra_params if not isinstance(operand.extra_params, bytes) else None
    kind = OperandType(operand.type)
    return Argument(kind, value.shape, operand.scale, operand.zero_point, channel, value=value)


def called(code: Op, inputs: Mapping[str, Argument], result: Argument, level: FeatureLevel) -> Call | None:
    """A valid call of an operation with one result, which has its value then; None where there is none such.

    Args:
        code: the operation.
        inputs: by name, with values.
        result: type and quantisation of the result.
        level: at which the call must be valid.
    """
    definition = OPSET[code]
    kinds = [a.type for a in inputs.values()]
    signature = definition.info.match(kinds, [result.type])
    if signature is None or list(signature.form.names(len(inputs))) != list(inputs):
        return None
    name = definition.results[0].name
    call = Call(definition, signature, dict(inputs), {name: result}, level)
    try:
        shape = tuple(definition.infer(call)[name])
        call = call.with_result(name, replace(result, shape=shape))
        if call_violations(call, level):
            return None
        stored = run_call(call)[name].stored
    except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError):
        return None  # inference relies on rules, and some of these look at the result
    return call.with_result(name, replace(result, shape=stored.shape, value=stored))


def same_values(first: Array, second: Array) -> bool:
    """Whether two arrays hold the same numbers in the same shape; NaN is NaN, and a zero's sign means nothing."""
    if first.shape != second.shape:
        return False
    equal = first == second
    if first.dtype.kind == "f":
        equal = equal | (np.isnan(first) & np.isnan(second))
    return bool(np.all(equal))


def close_values(first: Array, second: Array, kind: OperandType) -> bool:
    """The same but for the last digits of a float, or one step of a quantised value."""
    if first.shape != second.shape:
        return False
    if kind in FLOATS:
        precision = 1e-5 if first.dtype == np.float32 else 5e-3
        return bool(np.allclose(first, second, rtol=precision, atol=precision, equal_nan=True))
    apart = np.abs(first.astype(np.int64) - second.astype(np.int64))
    return bool(apart.max(initial=0) <= (1 if kind in QUANTIZED else 0))


Candidates = Callable[[Graph, random.Random], Iterator[Graph]]


@dataclass(frozen=True)
class Rewrite:
    """A way to write a model so that it means the same.

    Attributes:
        name: in options, records and messages.
        text: why the results are the same, as a sentence.
        exact: values are only moved or read from elsewhere: the specification gives the same values, not merely values
            within rounding.
        candidates: graphs that may do, in an order that the generator draws; not all of them are valid at the level.
        alike: the operations are the same ones on the same values, so that results may be off by as much as before.
    """

    name: str
    text: str
    exact: bool
    candidates: Candidates
    alike: bool = False
