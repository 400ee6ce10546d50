"""Models of several calls, wired by hand: each operand with the lifetime, and the pool, that a case wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from harness.layouts import pool_of
from nnhal.memory import Memory
from nnhal.model import DataLocation, Model, Operation, is_tensor
from nnhal.types import Array, FeatureLevel, OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.building import GraphBuilder
from opset.call import Argument, Call, int32_tensor
from opset.definition import B8, Shapes
from opset.evaluate import run_call
from opset.validation import needed_level, violations

Life = OperandLifeTime
COPY, REFERENCE, INPUT = Life.CONSTANT_COPY, Life.CONSTANT_REFERENCE, Life.SUBGRAPH_INPUT
ONLY_CAST = (OperandType.TENSOR_QUANT16_SYMM, OperandType.TENSOR_QUANT16_ASYMM, OperandType.TENSOR_QUANT8_SYMM)
OUTPUT, TEMPORARY = Life.SUBGRAPH_OUTPUT, Life.TEMPORARY_VARIABLE


@dataclass
class Net:
    """A model under way.

    Attributes:
        pool_kind: of the pools for constants that are referred to.
        calls: those that are in, in order.
        outputs: which result of which call each output of the model is.
    """

    pool_kind: str = "ashmem"
    graph: GraphBuilder = field(default_factory=GraphBuilder)
    values: list[Array] = field(default_factory=list)
    pools: list[Memory] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[tuple[Call, str]] = field(default_factory=list)

    def operand(self, argument: Argument, lifetime: Life) -> int:
        """Adds an operand; a value is a constant's or an input's."""
        if argument.omitted:
            return self.graph.operand(argument, Life.NO_VALUE)
        if argument.type == OperandType.SUBGRAPH:
            return self.graph.operand(argument, Life.SUBGRAPH)
        if lifetime == REFERENCE:
            return self._referred(argument)
        if lifetime == INPUT:
            assert argument.value is not None
            self.values.append(argument.value)
        return self.graph.operand(argument, lifetime)

    def _referred(self, argument: Argument) -> int:
        """A constant in a pool, a little behind its start."""
        assert argument.value is not None
        data, offset = argument.value.tobytes(), 64
        pool = pool_of(self.pool_kind, offset + len(data) + 64)
        pool.view()[offset : offset + len(data)] = data
        self.pools.append(pool)
        index = self.graph.operand(argument, Life.NO_VALUE)
        place = DataLocation(len(self.pools) - 1, offset, len(data))
        self.graph.operands[index] = replace(self.graph.operands[index], lifetime=REFERENCE, location=place)
        return index

    def call(
        self,
        call: Call,
        sources: Mapping[str, int] | None = None,
        lifetimes: Mapping[str, Life] | None = None,
    ) -> dict[str, int]:
        """Adds an operation and gives the operands of its results, by name.

        Args:
            call: with values throughout.
            sources: inputs that are operands which are there already.
            lifetimes: of the other inputs and of the results. Where it says nothing, parameters and scalars are copied
                constants, other inputs the model's inputs, and results its outputs.
        """
        places, wanted = dict(sources or {}), dict(lifetimes or {})
        for name, argument in call.inputs.items():
            if name not in places:
                fixed = call.signature.form.operand(name).parameter or not is_tensor(argument.type)
                places[name] = self.operand(argument, wanted.get(name, COPY if fixed else INPUT))
        results = {}
        for name, argument in call.results.items():
            lifetime = wanted.get(name, OUTPUT)
            results[name] = self.graph.operand(replace(argument, value=None), lifetime)
            if lifetime == OUTPUT:
                self.outputs.append((call, name))
        inputs = tuple(places[name] for name in call.inputs)
        self.graph.operations.append(Operation(int(call.definition.code), inputs, tuple(results.values())))
        self.calls.append(call)
        return results

    def model(self, *, relaxed: bool = False) -> Model:
        """The finished model."""
        return replace(self.graph.model(relaxed), pools=tuple(self.pools))

    @property
    def level(self) -> FeatureLevel:
        """The lowest level that knows all the calls."""
        return FeatureLevel(max(needed_level(call) for call in self.calls))


# --- calls by hand ----------------------------------------------------------------------------------------------------


def call_by_hand(
    code: Op, inputs: Mapping[str, Argument], results: Mapping[str, Argument] | None = None
) -> Call | None:
    """A valid call of an operation on these inputs, with its results computed; None where it is not valid.

    Args:
        code: the operation.
        inputs: by name; trailing ones that have a default may be left off.
        results: types and quantisation; those of the first input, or what the signature says, where nothing is given.
    """
    definition = OPSET[code]
    first = next(iter(inputs.values()))
    for signature in definition.signatures:
        names = signature.form.names(len(inputs))
        variadic = signature.form.variadic or signature.count == len(inputs)
        if not variadic or list(names) != list(inputs):
            continue
        kinds = {n: definition.info.type_of(signature, signature.form.operand(n)) for n in names}
        if any(kinds[n] != a.type for n, a in inputs.items()):
            continue
        call = Call(definition, signature, dict(inputs))
        if results is not None and any(
            definition.info.type_of(signature, operand) != results[operand.name].type
            for operand in definition.results
            if operand.name in results
        ):
            continue
        found = _computed(call, first, results)
        if found is not None:
            return found
    return None


def _shapes(call: Call) -> Shapes | None:
    """What shapes the results of a call have that may be invalid; None where it is so at once."""
    try:
        return call.definition.infer(call)
    except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError):
        return None  # inference relies on the rules, and some of these look at the results


def _computed(call: Call, first: Argument, results: Mapping[str, Argument] | None) -> Call | None:
    definition, row = call.definition, call.signature.row
    shapes = _shapes(call)
    if shapes is None:
        return None
    if call.signature.results is not None:
        shapes = {name: shapes[name] for name in definition.info.result_names(call.signature.results)}
    made = {}
    for name, shape in shapes.items():
        base = name if any(r.name == name for r in definition.results) else name.rstrip("0123456789")
        operand = next(r for r in definition.results if r.name == base)
        kind = operand.type if operand.type is not None else row.types[base]
        given = (results or {}).get(name) or (results or {}).get(base)
        like = given if given is not None else first
        scale, zero = (like.scale, like.zero_point) if like.type == kind else (0.0, 0)
        scale, zero = definition.quantization(call).get(name, (scale, zero))
        made[name] = Argument(kind, tuple(shape), scale, zero)
    call = replace(call, results=made)
    if violations(call):
        return None
    for name, result in run_call(call).items():
        call = call.with_result(name, replace(call.results[name], value=result.stored, shape=result.stored.shape))
    return call


def movers(argument: Argument) -> Iterator[list[Call]]:
    """Ways to keep a value as it is by operations that only move values: each a chain of one or two calls."""
    value = replace(argument, key=None, declared=None)
    ones, zeros = np.ones(value.rank, np.int32), np.zeros(value.rank, np.int32)
    ways: list[tuple[Op, dict[str, Argument]]] = [
        (Op.RESHAPE, {"input": value, "shape": int32_tensor(value.shape)}),
        (Op.SLICE, {"input": value, "begin": int32_tensor(zeros), "size": int32_tensor(value.shape)}),
        (Op.TRANSPOSE, {"input": value, "perm": int32_tensor(range(value.rank))}),
        (Op.TILE, {"input": value, "multiples": int32_tensor(ones)}),
    ]
    if value.type in ONLY_CAST:
        ways.append((Op.CAST, {"input": value}))
    for code, inputs in ways:
        call = call_by_hand(code, inputs, {"output": value})
        if call is not None and _keeps(call, value):
            yield [call]
    if value.type == B8 and value.value is not None and set(np.unique(value.value)) <= {0, 1}:
        first = call_by_hand(Op.LOGICAL_NOT, {"input": value})
        second = None if first is None else call_by_hand(Op.LOGICAL_NOT, {"input": first.results["output"]})
        if first is not None and second is not None and _keeps(second, value):
            yield [first, second]


def _keeps(call: Call, argument: Argument) -> bool:
    given = call.results["output"]
    same = (given.type, given.shape, given.scale, given.zero_point)
    if same != (argument.type, argument.shape, argument.scale, argument.zero_point):
        return False
    return given.value is not None and argument.value is not None and given.value.tobytes() == argument.value.tobytes()


# --- pairs ------------------------------------------------------------------------------------------------------------


class NoPairError(Exception):
    """This call has no such pair; another one may have."""


@dataclass(frozen=True)
class Link:
    """How an output of the second model relates to one of the first: as in `Agreement`."""

    position: int
    axes: tuple[int, ...] = ()
    first: int | None = None


@dataclass(frozen=True)
class Pair:
    """Two models of which the second gives what the first gives.

    Attributes:
        links: one for each output of the second.
        text: why they agree, as a sentence.
    """

    first: Net
    second: Net
    links: tuple[Link, ...]
    text: str


def alone(call: Call, lifetimes: Mapping[str, Life] | None = None) -> Net:
    """The model of one call; weights and the like are constants where nothing else is said."""
    net = Net()
    given = [n for n, a in call.inputs.items() if is_tensor(a.type) and not a.omitted]
    usual = dict.fromkeys(given[1:], COPY)
    net.call(call, {}, usual if lifetimes is None else lifetimes)
    return net


def recomputed(call: Call) -> Call:
    """The call with the results that its inputs give; types and quantisation stay.

    Raises:
        NoPairError: it is not valid.
    """
    shapes = _shapes(call)
    if shapes is None:
        raise NoPairError
    results = {n: replace(a, shape=tuple(shapes[n]), value=None, key=None) for n, a in call.results.items()}
    call = replace(call, results=results)
    if violations(call):
        raise NoPairError
    try:
        results_ = run_call(call)
    except ValueError:
        raise NoPairError from None  # a rule that the documents have and validity has not
    for name, result in results_.items():
        if result.stored.shape != call.results[name].shape:
            raise NoPairError  # only the values decide its shape
        call = call.with_result(name, replace(call.results[name], value=result.stored))
    return call


def bare(like: Argument) -> Argument:
    """Type, shape and quantisation of an operand, without its value."""
    return replace(like, value=None, key=None, declared=None)


@dataclass(frozen=True)
class Value:
    """A value in a chain: its operand, and all that is known of it."""

    index: int
    argument: Argument


@dataclass
class Chain:
    """A model of calls by hand, each on what those before it gave."""

    net: Net = field(default_factory=Net)

    def input(self, argument: Argument) -> Value:
        """An input of the model."""
        known = replace(argument, key=None, declared=None)
        return Value(self.net.operand(known, INPUT), known)

    def constant(self, argument: Argument) -> Value:
        """A copied constant."""
        known = replace(argument, key=None, declared=None)
        return Value(self.net.operand(known, COPY), known)

    def apply(self, code: Op, like: Argument | None = None, /, **inputs: Value | Argument) -> list[Value]:
        """Adds an operation whose results go on.

        Args:
            code: the operation.
            like: type and quantisation of its results; those of its first input where there is none.
            **inputs: by name, in order; what is no value of the chain becomes a constant.

        Raises:
            NoPairError: it takes no such operands.
        """
        return self._add(code, like, inputs, TEMPORARY)

    def end(self, code: Op, like: Argument | None = None, /, **inputs: Value | Argument) -> list[Value]:
        """The same, with results that are the model's outputs."""
        return self._add(code, like, inputs, OUTPUT)

    def _add(self, code: Op, like: Argument | None, inputs: Mapping[str, Value | Argument], end: Life) -> list[Value]:
        known = {n: v.argument if isinstance(v, Value) else v for n, v in inputs.items()}
        names = [r.name for r in OPSET[code].results]
        call = call_by_hand(code, known, None if like is None else dict.fromkeys(names, like))
        if call is None:
            raise NoPairError
        sources = {n: v.index for n, v in inputs.items() if isinstance(v, Value)}
        fixed = {n: COPY for n in known if n not in sources}
        ends = dict.fromkeys(call.results, end)
        indexes = self.net.call(call, sources, {**fixed, **ends})
        return [Value(index, call.results[name]) for name, index in indexes.items()]
