"""Brings an edited net in line with itself: runs it, declares the dimensions that come of it, and checks it.

What is checked is all that a client owes a driver: the rules on models and operations, and that the specification says
what comes of it. So whatever a driver then does wrong is its own fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.editable import CONSTANTS, MAIN, Assembled, Net, Place, assemble
from nnhal.model import Operand, is_known, is_tensor
from nnhal.types import FL8, Array, ExecutionMode, FeatureLevel, OperationType
from nnhal.validate import violations
from opset.branch import LoopTimedOutError
from opset.call import Call
from opset.evaluate import run_call
from opset.graph import call_of
from opset.validation import violations as call_violations

MOST_CALLS = 100_000  # operations of one run
# What rules, shapes and kernels raise on operands that no client would hand to them.
NO_RESULT = (ValueError, IndexError, KeyError, ZeroDivisionError, OverflowError, LoopTimedOutError)


class Unfit(ValueError):
    """An edit made something that is not valid, or of which nothing is due."""


@dataclass
class Trace:
    """What a run of a net came to.

    Attributes:
        values: of every operand that has one; in a graph that is run several times, in its first run.
        first: the values that went into a graph at its first run, in order; None where omitted.
        last: the same of its last run.
        calls: by graph and position of the operation: at its first run.
        chosen: by graph and position of an operation that runs graphs: those of which it took the results.
        count: operations that were run.
        finite: no real number is infinite or none.
        full: no result is without elements.
    """

    values: dict[Place, Array] = field(default_factory=dict)
    first: dict[int, tuple[Array | None, ...]] = field(default_factory=dict)
    last: dict[int, tuple[Array | None, ...]] = field(default_factory=dict)
    calls: dict[Place, Call] = field(default_factory=dict)
    chosen: dict[Place, int] = field(default_factory=dict)
    count: int = 0
    finite: bool = True
    full: bool = True


@dataclass(frozen=True)
class Settled:
    """A net that is valid and whose results are known."""

    net: Net
    trace: Trace
    assembled: Assembled


def settle(net: Net, level: FeatureLevel = FL8, most: int = MOST_CALLS) -> Settled:
    """Runs a net, declares the dimensions that come of it, and checks it at a level.

    Args:
        net: as an edit left it.
        level: of the rules.
        most: operations that one run may take; an edit may keep a loop from ending.

    Raises:
        Unfit: it is not valid, or an operation gives no results.
    """
    with np.errstate(all="ignore"):
        runner = _Runner(net, assemble(net), level, most)
        try:
            runner.main()
        except NO_RESULT as error:
            raise Unfit(f"{type(error).__name__}: {error}") from error
    declared = _declared(net, runner.trace.values)
    assembled = assemble(declared)
    found = violations(assembled.model, level)
    if found:
        raise Unfit(str(found[0]))
    if net.mode == ExecutionMode.FENCED and not _outputs_known(declared):
        raise Unfit("a fenced execution needs outputs of known size")
    return Settled(declared, runner.trace, assembled)


def _outputs_known(net: Net) -> bool:
    operands = [net.main.operands[i] for i in net.main.outputs]
    return all(is_known(o.dimensions) for o in operands if is_tensor(o.type))


@dataclass
class _Runner:
    """Runs a net operation by operation, those of referenced graphs included."""

    net: Net
    assembled: Assembled
    level: FeatureLevel
    most: int
    trace: Trace = field(default_factory=Trace)

    def main(self) -> None:
        """Runs the main graph."""
        inputs = self.assembled.inputs
        if any(value is not None and not value.size for value in inputs):
            raise Unfit("an input without elements")
        self.graph(MAIN, inputs)

    def graph(self, number: int, inputs: Sequence[Array | None], *, trial: bool = False) -> list[Array]:
        """The outputs of one run of a graph.

        Args:
            number: of the graph.
            inputs: stored values in the order of the graph's list.
            trial: only to know the sizes in a graph that is not run: rules on values need not hold.
        """
        graph, numbers = self.net.graphs[number], self.assembled.numbers[number]
        built = self.assembled.graph(number)
        known = {i: v for i, v in zip(built.input_indexes, inputs, strict=True) if v is not None}
        first = number not in self.trace.first
        if first:
            self.trace.first[number] = tuple(inputs)
            self._keep(number, {numbers[i]: v for i, v in known.items()})
            self._keep(number, graph.values)
        if not trial:
            self.trace.last[number] = tuple(inputs)
        for position, operation in enumerate(built.operations):
            self.trace.count += 1
            if self.trace.count > self.most:
                raise Unfit("the operations of one run are too many")
            call = call_of(self.assembled.model, built, operation, known)
            if first:
                self.trace.calls[number, position] = call
            results = self._results(number, position, call, trial)
            known.update(zip(operation.outputs, results, strict=True))
            if first:
                self._keep(number, dict(zip(graph.operations[position].outputs, results, strict=True)))
        return [known[i] for i in built.output_indexes]

    def _keep(self, number: int, values: Mapping[int, Array]) -> None:
        for operand, value in values.items():
            self.trace.values[number, operand] = value
            self.trace.full &= value.size > 0
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                self.trace.finite = False

    def _results(self, number: int, position: int, call: Call, trial: bool) -> list[Array]:
        if call.definition.graphs is None:
            broken = call_violations(call, self.level)
            if broken and not trial:
                raise Unfit(f"{call.definition.name} breaks {broken[0]}")
            shapes = call.definition.infer(call)
            results = {n: replace(a, shape=tuple(shapes[n])) for n, a in call.results.items()}
            return [result.stored for result in run_call(replace(call, results=results)).values()]
        operation = self.net.graphs[number].operations[position]
        handed = [a.value for a in call.inputs.values() if a.branch is None]
        graphs = self.net.run_by(number, operation)
        if call.definition.code == OperationType.IF:
            return self._if((number, position), graphs, handed[0], handed[1:], trial)
        return self._while((number, position), graphs, handed, len(operation.outputs), trial)

    def _if(
        self, at: Place, graphs: list[int], condition: Array | None, handed: list[Array | None], trial: bool
    ) -> list[Array]:
        if condition is None:
            raise Unfit("a condition without a value")
        then, other = graphs if _true(condition) else reversed(graphs)
        self.trace.chosen.setdefault(at, then)
        results = self.graph(then, handed, trial=trial)
        if other not in self.trace.first:
            self._try(other, handed)
        return results

    def _try(self, number: int, handed: Sequence[Array | None]) -> None:
        """Runs a graph for its sizes alone; where it cannot be run on these values, they stay as they are declared."""
        with contextlib.suppress(*NO_RESULT):
            self.graph(number, handed, trial=True)

    def _while(self, at: Place, graphs: list[int], handed: list[Array | None], count: int, trial: bool) -> list[Array]:
        condition, body = graphs
        state = list(handed)
        self.trace.chosen.setdefault(at, body)
        while _true(self.graph(condition, state, trial=trial)[0]):
            given = self.graph(body, state, trial=trial)
            state[: len(given)] = given
            if trial:
                break  # the turns of a graph that is not run need not end
        if body not in self.trace.first:
            self._try(body, state)
        results = state[:count]
        if any(value is None for value in results):
            raise Unfit("a loop gives a value that was omitted")
        return [value for value in results if value is not None]


def _true(value: Array) -> bool:
    return bool(value.reshape(-1)[0] != 0)


def _declared(net: Net, values: Mapping[Place, Array]) -> Net:
    """The net with the dimensions of the values; what was left open stays open, but for constants."""
    graphs = list(net.graphs)
    for number in net.live():
        operands = dict(graphs[number].operands)
        for operand, value in values.items():
            if operand[0] == number and operand[1] in operands:
                operands[operand[1]] = _sized_as(operands[operand[1]], value)
        graphs[number] = replace(graphs[number], operands=operands)
    return replace(net, graphs=tuple(graphs))


def _sized_as(operand: Operand, value: Array) -> Operand:
    if not is_tensor(operand.type) or operand.dimensions == value.shape:
        return operand
    if operand.lifetime in CONSTANTS:
        return replace(operand, dimensions=value.shape)
    if not operand.dimensions:
        return operand
    if len(operand.dimensions) != value.ndim:
        return replace(operand, dimensions=value.shape)
    open_ = tuple(0 if size == 0 else new for size, new in zip(operand.dimensions, value.shape, strict=True))
    return operand if open_ == operand.dimensions else replace(operand, dimensions=open_)


def known_sizes(settled: Settled) -> Net:
    """The net with all dimensions declared."""
    net = settled.net
    for number, operand in settled.trace.values:
        graph = net.graphs[number]
        shown = graph.operands.get(operand)
        value = settled.trace.values[number, operand]
        if shown is not None and is_tensor(shown.type) and shown.dimensions != value.shape:
            net = net.with_graph(number, graph.with_operand(operand, replace(shown, dimensions=value.shape)))
    return net
