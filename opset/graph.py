"""Between calls and models: a call becomes a model of one operation, and each operation of a model becomes a call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nnhal.model import Model, Operand, Operation, Subgraph, constant_value, is_tensor
from nnhal.types import Array, OperandLifeTime, OperandType
from opset import OPSET
from opset.branch import UNHURRIED, Branch
from opset.building import GraphBuilder
from opset.call import Argument, Call
from opset.evaluate import Result, run_call
from opset.values import BASELINE, Arithmetic


def model_of(call: Call, constants: Collection[str] = (), relaxed: bool = False) -> tuple[Model, list[Array]]:
    """A model of one operation, and the values of its inputs in the order of the model's list.

    Args:
        call: complete, with results.
        constants: names of the inputs that become constants; scalars always do, omitted ones have no value.
        relaxed: sets the flag that allows float16 range and precision.
    """
    graph = GraphBuilder()
    values: list[Array] = []
    indexes: dict[int, int] = {}  # an operand that the scope knows fills several inputs as one operand
    inputs = []
    for name, argument in call.inputs.items():
        if argument.key is not None and argument.key in indexes:
            inputs.append(indexes[argument.key])
            continue
        if argument.omitted:
            lifetime = OperandLifeTime.NO_VALUE
        elif argument.type == OperandType.SUBGRAPH:
            lifetime = OperandLifeTime.SUBGRAPH
        elif name in constants or not is_tensor(argument.type):
            lifetime = OperandLifeTime.CONSTANT_COPY
        else:
            lifetime = OperandLifeTime.SUBGRAPH_INPUT
            if argument.value is None:
                raise ValueError(f"input {name} has no value")
            values.append(argument.value)
        index = graph.operand(argument, lifetime)
        inputs.append(index)
        if argument.key is not None:
            indexes[argument.key] = index
    outputs = [graph.operand(argument, OperandLifeTime.SUBGRAPH_OUTPUT) for argument in call.results.values()]
    graph.operations.append(Operation(int(call.definition.code), tuple(inputs), tuple(outputs)))
    return graph.model(relaxed), values


def call_of(model: Model, graph: Subgraph, operation: Operation, known: Mapping[int, Array]) -> Call:
    """An operation of a model as a call. The model must be valid.

    Args:
        model: holds the constants.
        graph: the subgraph that the operation is in.
        operation: one of its operations.
        known: values of operands that are not constants, by index.

    Raises:
        KeyError: the operation is not described, or its operands match no signature.
    """
    definition = OPSET[operation.type]
    kinds = [graph.operands[i].type for i in operation.inputs]
    signature = definition.info.match(kinds, [graph.operands[i].type for i in operation.outputs])
    if signature is None:
        raise KeyError(f"no signature of {definition.name} takes these operands")
    names = signature.form.names(len(operation.inputs))
    inputs = {n: _argument(model, graph.operands[i], i, known) for n, i in zip(names, operation.inputs, strict=True)}
    names = definition.info.result_names(len(operation.outputs))
    results = {n: _argument(model, graph.operands[i], i, {}) for n, i in zip(names, operation.outputs, strict=True)}
    return Call(definition, signature, inputs, results)


def _argument(model: Model, operand: Operand, index: int, known: Mapping[int, Array]) -> Argument:
    channel = operand.extra_params if not isinstance(operand.extra_params, bytes) else None
    argument = Argument(
        OperandType(operand.type), operand.dimensions, operand.scale, operand.zero_point, channel, key=index
    )
    if operand.lifetime in (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE):
        return argument.holding(constant_value(model, operand))
    if index in known:
        return argument.holding(known[index])
    if operand.lifetime == OperandLifeTime.SUBGRAPH:
        return replace(argument, branch=Branch(replace(model, main=model.referenced[operand.location.offset])))
    # An input of the model without a value was omitted by the client.
    nothing = (OperandLifeTime.NO_VALUE, OperandLifeTime.SUBGRAPH_INPUT)
    return replace(argument, omitted=operand.lifetime in nothing or index in known)


def evaluate(
    model: Model,
    inputs: Sequence[Array | None],
    arithmetic: Arithmetic = BASELINE,
    check: Callable[[Call], None] = lambda call: None,
    loop_timeout: int = UNHURRIED,
    most_turns: int | None = None,
) -> list[Result]:
    """Runs a valid model: one rounding and saturation at the end of each operation.

    Args:
        model: its operations must all be described.
        inputs: stored values in the order of the model's input list; None for an omitted one.
        check: sees each call before it runs and may refuse it; those of referenced graphs too.
        loop_timeout: nanoseconds that a WHILE may run.
        most_turns: how often a WHILE may run its body; None for any number.

    Returns:
        Results in the order of the model's output list.

    Raises:
        LoopTimedOutError: a WHILE ran for longer, or more often.
    """
    graph = model.main
    known = {i: v for i, v in zip(graph.input_indexes, inputs, strict=True) if v is not None}
    last_read = {index: number for number, one in enumerate(graph.operations) for index in one.inputs}
    wanted = set(graph.output_indexes)
    results: dict[int, Result] = {}
    conduct = {"check": check, "loop_timeout": loop_timeout, "most_turns": most_turns}
    for number, operation in enumerate(graph.operations):
        call = with_conduct(call_of(model, graph, operation, known), **conduct)
        check(call)
        shapes = call.definition.infer(call)
        call = call.holding(call.inputs, {n: replace(a, shape=tuple(shapes[n])) for n, a in call.results.items()})
        given = dict(zip(operation.outputs, run_call(call, arithmetic).values(), strict=True))
        known |= {i: result.stored for i, result in given.items() if i in last_read}
        results |= {i: result for i, result in given.items() if i in wanted}
        # What nobody reads any more goes: its memory, still in the cache, serves the next operations.
        given.clear()
        for index in operation.inputs:
            if last_read[index] == number:
                known.pop(index, None)
    return [results[i] for i in graph.output_indexes]


def with_conduct(call: Call, **conduct: Any) -> Call:
    """The call with graphs that are run in a certain way: fields of `Branch`, exchanged."""
    if call.definition.graphs is None:
        return call
    inputs = {n: replace(a, branch=replace(a.branch, **conduct)) if a.branch else a for n, a in call.inputs.items()}
    return replace(call, inputs=inputs)
