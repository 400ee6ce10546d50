"""Rewrites of what is constant: divided, put together or computed beforehand, an input instead, or in place of one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np

from nnhal.model import Operation, is_tensor
from nnhal.types import OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.call import scalar
from random_graph.rewrites_graph import CONSTANTS, INPUT, TEMPORARY, Draft, Graph, is_determined

PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
LIMIT = 1 << 20  # elements of a constant that is computed beforehand
# What is computed beforehand as any driver would: values that are moved, or one rounding.
FOLDED = frozenset(
    {
        Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS, Op.MAXIMUM, Op.MINIMUM, Op.CONCATENATION, Op.RESHAPE, Op.TRANSPOSE,
        Op.SQUEEZE, Op.EXPAND_DIMS, Op.SLICE, Op.STRIDED_SLICE, Op.SPLIT, Op.PAD, Op.PAD_V2, Op.MIRROR_PAD, Op.TILE,
        Op.GATHER, Op.PACK, Op.REVERSE, Op.FILL, Op.CAST, Op.DEQUANTIZE, Op.QUANTIZE, Op.RELU, Op.RELU1, Op.RELU6,
    }
)  # fmt: skip


def _tensors(graph: Graph) -> list[int]:
    """Constant tensors that are read, and not as a parameter."""
    operands = graph.model.main.operands
    return [
        index
        for index in sorted(graph.reads)
        if operands[index].lifetime in CONSTANTS
        and is_tensor(operands[index].type)
        and operands[index].type != PER_CHANNEL
        and not graph.is_parameter(index)
    ]


def split(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """A constant as two that CONCATENATION joins, in front of all that read it."""
    main, found = graph.model.main, _tensors(graph)
    chance.shuffle(found)
    for index in found:
        value = graph.known[index]
        axes = [axis for axis, size in enumerate(value.shape) if size > 1]
        if not axes:
            continue
        axis = chance.choice(axes)
        cut = chance.randint(1, value.shape[axis] - 1)
        draft = Draft.of(graph)
        parts = [draft.constant(main.operands[index], part) for part in np.split(value, [cut], axis)]
        whole = draft.operand(main.operands[index], lifetime=TEMPORARY)
        number = draft.argument(scalar(OperandType.INT32, axis))
        for operation, place in graph.reads[index]:
            draft.read(operation, place, whole)
        first = min(operation for operation, _ in graph.reads[index])
        draft.operations.insert(first, Operation(int(Op.CONCATENATION), (*parts, number), (whole,)))
        yield draft.finish()


def joined(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """Neighbouring constants of a CONCATENATION as one."""
    main = graph.model.main
    places = []
    for number, operation in enumerate(main.operations):
        if operation.type == Op.CONCATENATION:
            given = [main.operands[index] for index in operation.inputs[:-1]]
            alike = [
                a.lifetime in CONSTANTS
                and b.lifetime in CONSTANTS
                and (a.scale, a.zero_point) == (b.scale, b.zero_point)
                for a, b in itertools.pairwise(given)
            ]
            places += [(number, place) for place, same in enumerate(alike) if same]
    chance.shuffle(places)
    for number, place in places:
        operation = main.operations[number]
        axis = int(graph.call(number)["axis"].item())
        values = [graph.known[index] for index in operation.inputs[place : place + 2]]
        draft = Draft.of(graph)
        one = draft.constant(main.operands[operation.inputs[place]], np.concatenate(values, axis))
        inputs = (*operation.inputs[:place], one, *operation.inputs[place + 2 :])
        draft.operations[number] = Operation(operation.type, inputs, operation.outputs)
        yield draft.finish()


def folded(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """An operation on nothing but constants, computed beforehand."""
    numbers = [n for n in range(len(graph.model.main.operations)) if _is_fixed(graph, n)]
    chance.shuffle(numbers)
    for number in numbers:
        draft = Draft.of(graph)
        for index in draft.operations[number].outputs:
            draft.to_constant(index, graph.known[index])
        del draft.operations[number]
        yield draft.finish()


def _is_fixed(graph: Graph, number: int) -> bool:
    main = graph.model.main
    operation = main.operations[number]
    definition = OPSET[operation.type]
    given = (*CONSTANTS, OperandLifeTime.NO_VALUE)
    return (
        operation.type in FOLDED
        and is_determined(definition)
        and len(main.operations) > 1
        and all(main.operands[index].lifetime in given for index in operation.inputs)
        and all(main.operands[index].lifetime == TEMPORARY for index in operation.outputs)
        and all(0 < graph.known[index].size <= LIMIT for index in operation.outputs)
    )


def made_inputs(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """A constant tensor as an input of the model."""
    found = _tensors(graph)
    chance.shuffle(found)
    for index in found:
        draft = Draft.of(graph)
        place = chance.randint(0, len(draft.inputs))
        taken = draft.operand(draft.operands[index], lifetime=INPUT)
        draft.inputs.insert(place, taken)
        draft.given.insert(place, graph.known[index])
        for operation, where in graph.reads[index]:
            draft.read(operation, where, taken)
        yield draft.finish()


def made_constants(graph: Graph, chance: random.Random) -> Iterator[Graph]:
    """An input of the model as a constant; one input stays."""
    places = [n for n, value in enumerate(graph.inputs) if value is not None and value.size]
    chance.shuffle(places)
    for place in places if len(graph.inputs) > 1 else []:
        value = graph.inputs[place]
        assert value is not None
        draft = Draft.of(graph)
        draft.to_constant(draft.inputs[place], value)
        del draft.inputs[place], draft.given[place]
        yield draft.finish()
