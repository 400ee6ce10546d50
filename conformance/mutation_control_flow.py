"""Mutations of referenced graphs, of the operands that refer to them, and of IF and WHILE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from conformance.mutation_edits import LIFE, Change, changed, describe, with_main, with_operations
from nnhal.model import DataLocation, Model, Operand, Operation, Subgraph, count_consumers
from nnhal.types import FeatureLevel, OperandType, OperationType


def subgraph_operands(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Subgraph operands that are constants, refer to no graph or to their own; other operands that claim to be one."""
    for index, operand in enumerate(model.main.operands):
        name = describe(index, operand)
        if operand.type != OperandType.SUBGRAPH:
            fields = {"lifetime": LIFE.SUBGRAPH, "location": DataLocation()}
            yield f"{name} has the lifetime SUBGRAPH", changed(model, index, **fields)
            continue
        constant = {"lifetime": LIFE.CONSTANT_COPY, "location": DataLocation()}
        yield f"{name} is a constant", changed(model, index, **constant)
        beyond = DataLocation(offset=len(model.referenced))
        yield f"{name} refers to no graph", changed(model, index, location=beyond)
    for number, graph in enumerate(model.referenced):
        itself = Operand(OperandType.SUBGRAPH, lifetime=LIFE.SUBGRAPH, location=DataLocation(offset=number))
        circular = replace(graph, operands=(*graph.operands, itself))
        yield f"graph {number} refers to itself", partial(_with_graph, model, number, circular)


def graph_circle(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Two referenced graphs that refer to one another, or each to itself, and an operand that refers to the first."""
    first, main = len(model.referenced), model.main
    named = Operand(OperandType.SUBGRAPH, lifetime=LIFE.SUBGRAPH, location=DataLocation(offset=first))
    grown = with_main(model, replace(main, operands=(*main.operands, named)))
    for words, targets in (("one another", (first + 1, first)), ("themselves", (first, first + 1))):
        graphs = tuple(_choice_of(target) for target in targets)
        change = f"graphs {first} and {first + 1} are there and refer to {words}"
        yield change, partial(replace, grown, referenced=(*model.referenced, *graphs))


def _choice_of(number: int) -> Subgraph:
    """A graph that is an IF whose branches are both that one."""
    condition = Operand(OperandType.TENSOR_BOOL8, (1,), lifetime=LIFE.SUBGRAPH_INPUT)
    branch = Operand(OperandType.SUBGRAPH, lifetime=LIFE.SUBGRAPH, location=DataLocation(offset=number))
    tensor = Operand(OperandType.TENSOR_FLOAT32, (2,), lifetime=LIFE.SUBGRAPH_INPUT)
    operands = (condition, branch, tensor, replace(tensor, lifetime=LIFE.SUBGRAPH_OUTPUT))
    return count_consumers(Subgraph(operands, (Operation(int(OperationType.IF), (0, 1, 1, 0, 2), (3,)),), (0, 2), (3,)))


def bad_graph(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """A referenced graph that breaks a rule of graphs, whether or not an operation runs it."""
    tensor = Operand(OperandType.TENSOR_FLOAT32, (2,))
    taken, given = replace(tensor, lifetime=LIFE.SUBGRAPH_INPUT), replace(tensor, lifetime=LIFE.SUBGRAPH_OUTPUT)
    relu = int(OperationType.RELU)
    number = len(model.referenced)
    for words, graph in (
        ("is empty", Subgraph((), (), (), ())),
        ("has no operations", Subgraph((taken,), (), (0,), ())),
        ("reads an operand that is not there", Subgraph((taken, given), (Operation(relu, (2,), (1,)),), (0,), (1,))),
        ("reads too early", Subgraph((taken, tensor, given), (Operation(relu, (1,), (2,)),), (0,), (2,))),
        ("lists an output as input", Subgraph((taken, given), (Operation(relu, (0,), (1,)),), (0, 1), (1,))),
        ("has an operation of no signature", Subgraph((taken, given), (Operation(relu, (0, 0), (1,)),), (0,), (1,))),
    ):
        one_more = (*model.referenced, count_consumers(graph))
        yield f"referenced graph {number} {words}", partial(replace, model, referenced=one_more)


def branches(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Referenced graphs that do not fit the operation that runs them."""
    for number, graph in enumerate(model.referenced):
        count = len(graph.operands)
        fresh = Operand(OperandType.INT32, lifetime=LIFE.SUBGRAPH_INPUT)
        taken = replace(graph, operands=(*graph.operands, fresh), input_indexes=(*graph.input_indexes, count))
        yield f"graph {number} has one more input", partial(_with_graph, model, number, taken)
        result = graph.output_indexes[0]
        writer = next((n for n, o in enumerate(graph.operations) if result in o.outputs), None)
        if writer is None:  # of a graph that is broken already
            continue
        twin = _with_twin(graph, writer, result)
        yield f"graph {number} has one more output", partial(_with_graph, model, number, twin)
        lost = replace(graph.operands[result], lifetime=LIFE.TEMPORARY_VARIABLE)
        fewer = replace(_operand_replaced(graph, result, lost), output_indexes=graph.output_indexes[1:])
        yield f"graph {number} has one output fewer", partial(_with_graph, model, number, fewer)
        for index in (*graph.input_indexes, *graph.output_indexes):
            operand = graph.operands[index]
            other_type = _operand_replaced(graph, index, replace(operand, type=OperandType.TENSOR_QUANT16_ASYMM))
            change = f"operand {index} of graph {number} has another type"
            yield change, partial(_with_graph, model, number, other_type)
            if operand.dimensions:
                longer = (*operand.dimensions[:-1], operand.dimensions[-1] + 1)
                change = f"operand {index} of graph {number} has dimensions {longer}"
                other_shape = _operand_replaced(graph, index, replace(operand, dimensions=longer))
                yield change, partial(_with_graph, model, number, other_shape)
            if operand.scale > 0:
                other = _operand_replaced(graph, index, replace(operand, scale=operand.scale * 1.5))
                change = f"operand {index} of graph {number} has another scale"
                yield change, partial(_with_graph, model, number, other)
    for operation in model.main.operations:
        if operation.type == OperationType.IF and operation.inputs:
            index = operation.inputs[0]
            yield "the condition has shape [2]", changed(model, index, dimensions=(2,))
            yield "the condition has another type", changed(model, index, type=OperandType.TENSOR_INT32)
        if operation.type == OperationType.WHILE:
            yield from _loops(model, operation)


def _loops(model: Model, operation: Operation) -> Iterator[Change]:
    """What WHILE alone demands."""
    if operation.outputs:
        none = replace(operation, outputs=())
        yield "the loop has no outputs", partial(with_operations, model, (none,))
    number = model.main.operands[operation.inputs[0]].location.offset
    condition = model.referenced[number]
    result = condition.output_indexes[0]
    for words, fields in (
        ("of shape [2]", {"dimensions": (2,)}),
        ("of unknown rank", {"dimensions": ()}),
        ("an INT32 tensor", {"type": OperandType.TENSOR_INT32}),
    ):
        other = _operand_replaced(condition, result, replace(condition.operands[result], **fields))
        yield f"the condition of the loop is {words}", partial(_with_graph, model, number, other)
    for index in operation.inputs[2:]:
        shape = model.main.operands[index].dimensions
        if shape:
            unknown = (0, *shape[1:])
            yield f"operand {index} of the loop has dimensions {unknown}", changed(model, index, dimensions=unknown)
    swapped = replace(operation, inputs=(operation.inputs[1], operation.inputs[0], *operation.inputs[2:]))
    yield "condition and body have changed places", partial(with_operations, model, (swapped,))


def _operand_replaced(graph: Subgraph, index: int, operand: Operand) -> Subgraph:
    return replace(graph, operands=(*graph.operands[:index], operand, *graph.operands[index + 1 :]))


def _with_twin(graph: Subgraph, writer: int, result: int) -> Subgraph:
    """The graph with an operation done twice, into one more output."""
    operation = graph.operations[writer]
    operands, outputs = list(graph.operands), []
    for index in operation.outputs:
        lifetime = LIFE.SUBGRAPH_OUTPUT if index == result else LIFE.TEMPORARY_VARIABLE
        operands.append(replace(graph.operands[index], lifetime=lifetime))
        outputs.append(len(operands) - 1)
    more = outputs[operation.outputs.index(result)]
    operations = (*graph.operations, replace(operation, outputs=tuple(outputs)))
    twin = Subgraph(tuple(operands), operations, graph.input_indexes, (*graph.output_indexes, more))
    return count_consumers(twin)


def _with_graph(model: Model, number: int, graph: Subgraph) -> Model:
    return replace(model, referenced=(*model.referenced[:number], graph, *model.referenced[number + 1 :]))
