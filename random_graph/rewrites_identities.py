"""Rewrites that put operations into a graph which together leave a value as it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnhal.model import Operand, Operation, is_tensor
from nnhal.types import OperandType, info
from nnhal.types import OperationType as Op
from opset.call import Argument, Call, int32_tensor, scalar
from opset.definition import B8, F16, F32, I32, Q8, Q8S
from opset.quantization import QUANTIZED
from random_graph.rewrites_graph import (
    INPUT,
    OUTPUT,
    TEMPORARY,
    Draft,
    Graph,
    argument_of,
    called,
    same_values,
)

NONE = scalar(OperandType.INT32, 0)  # no activation
TENSORS = 6  # values that are tried in search of one that can be led through something
Way = Callable[[Argument, random.Random], Sequence["Stage"]]


@dataclass(frozen=True)
class Stage:
    """One operation of a chain.

    Attributes:
        inputs: by name, in order; None stands for the value that comes in.
        result: type and quantisation of what comes out.
    """

    code: Op
    inputs: Mapping[str, Argument | None]
    result: Argument


def _bare(value: Argument) -> Argument:
    return replace(value, value=None)


def _plain(kind: OperandType) -> Argument:
    return Argument(kind)


# --- ways that move values --------------------------------------------------------------------------------------------


def _reshape(value: Argument, chance: random.Random) -> list[Stage]:
    return [Stage(Op.RESHAPE, {"input": None, "shape": int32_tensor(value.shape)}, _bare(value))]


def _flat(value: Argument, chance: random.Random) -> list[Stage]:
    return [Stage(Op.RESHAPE, {"input": None, "shape": int32_tensor([-1])}, _bare(value)), *_reshape(value, chance)]


def _transpose(value: Argument, chance: random.Random) -> list[Stage]:
    perm = list(range(value.rank))
    chance.shuffle(perm)
    orders = (int32_tensor(perm), int32_tensor(np.argsort(perm)))
    return [Stage(Op.TRANSPOSE, {"input": None, "perm": order}, _bare(value)) for order in orders]


def _pad(value: Argument, chance: random.Random) -> list[Stage]:
    nothing = Argument(I32, (value.rank, 2), value=np.zeros((value.rank, 2), np.int32))
    return [Stage(Op.PAD, {"input": None, "paddings": nothing}, _bare(value))]


def _slice(value: Argument, chance: random.Random) -> list[Stage]:
    begin, size = int32_tensor([0] * value.rank), int32_tensor(value.shape)
    return [Stage(Op.SLICE, {"input": None, "begin": begin, "size": size}, _bare(value))]


def _tile(value: Argument, chance: random.Random) -> list[Stage]:
    return [Stage(Op.TILE, {"input": None, "multiples": int32_tensor([1] * value.rank)}, _bare(value))]


def _reverse(value: Argument, chance: random.Random) -> list[Stage]:
    axis = int32_tensor([chance.randrange(value.rank)]) if value.rank else int32_tensor([0])
    return [Stage(Op.REVERSE, {"input": None, "axis": axis}, _bare(value))] * 2


def _expand(value: Argument, chance: random.Random) -> list[Stage]:
    axis = chance.randint(0, value.rank)
    back = Stage(Op.SQUEEZE, {"input": None, "axes": int32_tensor([axis])}, _bare(value))
    return [Stage(Op.EXPAND_DIMS, {"input": None, "axis": scalar(OperandType.INT32, axis)}, _bare(value)), back]


def _concatenate(value: Argument, chance: random.Random) -> list[Stage]:
    axis = scalar(OperandType.INT32, chance.randrange(max(value.rank, 1)))
    return [Stage(Op.CONCATENATION, {"inputs0": None, "axis": axis}, _bare(value))]


def _cast(value: Argument, chance: random.Random) -> list[Stage]:
    return [Stage(Op.CAST, {"input": None}, _bare(value))]


def _not(value: Argument, chance: random.Random) -> list[Stage]:
    return [Stage(Op.LOGICAL_NOT, {"input": None}, _bare(value))] * 2


# --- ways that compute ------------------------------------------------------------------------------------------------


def _constant(value: Argument, number: int) -> Argument:
    """One element of a value's type; of quantised ones the scale is 1/2, so that no product of scales is too large."""
    dtype = info(value.type).dtype
    if value.type in QUANTIZED:
        return Argument(value.type, (1,), 0.5, 0, value=np.array([2 * number], dtype))
    return Argument(value.type, (1,), value=np.array([number], dtype))


def _both_ways(value: Argument, code: Op, number: int, chance: random.Random) -> list[Stage]:
    a, b = (None, _constant(value, number)) if chance.random() < 0.5 else (_constant(value, number), None)
    return [Stage(code, {"a": a, "b": b, "activation": NONE}, _bare(value))]


def _add(value: Argument, chance: random.Random) -> list[Stage]:
    return _both_ways(value, Op.ADD, 0, chance)


def _multiply(value: Argument, chance: random.Random) -> list[Stage]:
    return _both_ways(value, Op.MUL, 1, chance)


def _negate(value: Argument, chance: random.Random) -> list[Stage]:
    return [Stage(Op.NEG, {"input": None}, _bare(value))] * 2


def _with_itself(value: Argument, chance: random.Random) -> list[Stage]:
    return [Stage(chance.choice((Op.MAXIMUM, Op.MINIMUM)), {"a": None, "b": None}, _bare(value))]


def _dequantize(value: Argument, chance: random.Random) -> list[Stage]:
    there = Stage(Op.DEQUANTIZE, {"input": None}, _plain(F32))
    return [there, Stage(Op.QUANTIZE, {"input": None}, _bare(value))]


def _wider(value: Argument, chance: random.Random) -> list[Stage]:
    there = Stage(Op.CAST, {"input": None}, _plain(F32))
    return [there, Stage(Op.CAST, {"input": None}, _bare(value))]


FLOATS, ASYMMETRIC = frozenset({F32, F16}), frozenset({Q8, Q8S})
EVERY = frozenset(OperandType)
MOVES: tuple[tuple[Way, frozenset[OperandType]], ...] = (
    (_reshape, EVERY), (_flat, EVERY), (_transpose, EVERY), (_pad, EVERY), (_slice, EVERY), (_tile, EVERY),
    (_reverse, EVERY), (_expand, EVERY), (_concatenate, EVERY), (_cast, EVERY), (_not, frozenset({B8})),
)  # fmt: skip
COMPUTES: tuple[tuple[Way, frozenset[OperandType]], ...] = (
    (_add, FLOATS | ASYMMETRIC | {I32}), (_multiply, FLOATS | ASYMMETRIC | {I32}), (_negate, FLOATS | {I32}),
    (_with_itself, FLOATS | ASYMMETRIC | {I32}), (_dequantize, ASYMMETRIC), (_wider, frozenset({F16})),
)  # fmt: skip


# --- putting them in --------------------------------------------------------------------------------------------------


def moved_through(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """A value led through operations that move it and move it back."""
    return _led(graph, chance, MOVES)


def computed_through(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """A value led through operations that compute what it is already."""
    return _led(graph, chance, COMPUTES)


def _led(graph: Graph, chance: random.Random, ways: Sequence[tuple[Way, frozenset[OperandType]]]) -> Iterator[Graph]:
    operands = graph.model.main.operands
    found = [i for i, o in enumerate(operands) if o.lifetime in (TEMPORARY, INPUT, OUTPUT) and _can_be_led(graph, i)]
    chance.shuffle(found)
    for index in found[:TENSORS]:
        value = argument_of(operands[index], graph.known[index])
        suited = [way for way, kinds in ways if value.type in kinds]
        chance.shuffle(suited)
        for way in suited:
            calls = _calls(way(value, chance), value, graph)
            if calls:
                yield _put_in(graph, index, calls, chance)


def _can_be_led(graph: Graph, index: int) -> bool:
    operand, value = graph.model.main.operands[index], graph.known.get(index)
    if value is None or not value.size or not is_tensor(operand.type):
        return False
    return (index in graph.reads and not graph.is_parameter(index)) or operand.lifetime == OUTPUT


def _calls(stages: Sequence[Stage], value: Argument, graph: Graph) -> list[tuple[Stage, Call]]:
    """The calls of a chain; none where it is not valid, or does not give the value as it is."""
    found, now = [], value
    for stage in stages:
        inputs = {name: now if argument is None else argument for name, argument in stage.inputs.items()}
        call = called(stage.code, inputs, stage.result, graph.level)
        if call is None:
            return []
        found.append((stage, call))
        now = next(iter(call.results.values()))
    assert now.value is not None
    assert value.value is not None
    return found if same_values(now.value, value.value) else []


def _put_in(graph: Graph, index: int, calls: Sequence[tuple[Stage, Call]], chance: random.Random) -> Graph:
    """The graph with a chain between a value and one that reads it, all that read it, or the model's output."""
    main, draft = graph.model.main, Draft.of(graph)
    operand, places = main.operands[index], list(graph.reads.get(index, ()))
    maker = next((n for n, o in enumerate(main.operations) if index in o.outputs), -1)
    if operand.lifetime == OUTPUT and (not places or chance.random() < 0.5):
        start = draft.operand(operand, lifetime=TEMPORARY)
        made = main.operations[maker]
        draft.operations[maker] = replace(made, outputs=tuple(start if i == index else i for i in made.outputs))
        draft.operations[maker + 1 : maker + 1] = _chain(draft, start, calls, end=index)
        return draft.finish()
    chosen = places if chance.random() < 0.5 else [chance.choice(places)]
    end = draft.operand(operand, lifetime=TEMPORARY)
    first = min(number for number, _ in chosen)
    for number, place in chosen:
        draft.read(number, place, end)
    at = chance.randint(maker + 1, first)
    draft.operations[at:at] = _chain(draft, index, calls, end=end)
    return draft.finish()


def _chain(draft: Draft, start: int, calls: Sequence[tuple[Stage, Call]], *, end: int) -> list[Operation]:
    """The operations of a chain from one operand to another."""
    operations, at = [], start
    for number, (stage, call) in enumerate(calls):
        inputs = tuple(at if stage.inputs[n] is None else draft.argument(a) for n, a in call.inputs.items())
        result = next(iter(call.results.values()))
        out = end if number == len(calls) - 1 else draft.operand(_operand(result))
        operations.append(Operation(int(stage.code), inputs, (out,)))
        at = out
    return operations


def _operand(argument: Argument) -> Operand:
    return Operand(argument.type, argument.shape, argument.scale, argument.zero_point, extra_params=argument.channel)
