"""Mutations of operations and graphs: order, writers, codes, index lists, what is there at all, control flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from conformance.mutation_edits import (
    COMPUTED,
    CONSTANTS,
    LIFE,
    Change,
    Changes,
    describe,
    placed,
    with_constant,
    with_main,
    with_operand,
    with_operation,
    with_operations,
    without,
)
from nnhal.model import (
    ChannelQuant,
    DataLocation,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    Operation,
    Subgraph,
)
from nnhal.types import (
    FL3,
    FL5,
    LARGEST_OPERAND_TYPE,
    LARGEST_OPERATION,
    OPERAND_TYPES,
    FeatureLevel,
    OperandType,
    OperationType,
)


def execution_order(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """An operation that reads a computed operand comes first; one whose result is read comes last."""
    main = model.main
    for number, operation in enumerate(main.operations):
        rest = (*main.operations[:number], *main.operations[number + 1 :])
        front, back = (operation, *rest), (*rest, operation)
        if any(main.operands[i].lifetime in COMPUTED for i in operation.inputs):
            yield f"operation {number} comes first", partial(with_operations, model, front)
        if any(i in other.inputs for other in rest for i in operation.outputs):
            yield f"operation {number} comes last", partial(with_operations, model, back)


def second_writer(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """A copy of an operation writes one of its results again."""
    for number, operation in enumerate(model.main.operations):
        for place, index in enumerate(operation.outputs):
            change = f"a copy of operation {number} writes operand {index} again"
            yield change, partial(_written_again, model, operation, place)


def _written_again(model: Model, operation: Operation, kept: int) -> Model:
    operands = list(model.main.operands)
    outputs = []
    for place, index in enumerate(operation.outputs):
        if place != kept:
            operands.append(replace(operands[index], lifetime=LIFE.TEMPORARY_VARIABLE))
            index = len(operands) - 1
        outputs.append(index)
    operations = (*model.main.operations, replace(operation, outputs=tuple(outputs)))
    return with_main(model, replace(model.main, operands=tuple(operands), operations=operations))


def operation_operand_type(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """An operand of an operation has another type, legal in itself."""
    largest = LARGEST_OPERAND_TYPE[level]
    used = sorted({i for o in model.main.operations for i in (*o.inputs, *o.outputs)})
    for index in used:
        operand = model.main.operands[index]
        if operand.lifetime == LIFE.SUBGRAPH:
            continue
        for kind in OperandType:
            if kind <= largest and kind != operand.type:
                change = f"{describe(index, operand)} becomes {kind.name}"
                yield change, partial(_retyped, model, index, kind)


def _retyped(model: Model, index: int, kind: OperandType) -> Model:
    """An operand of another type, legal in itself, so that only the operation's signature is broken."""
    operand, known = model.main.operands[index], OPERAND_TYPES[kind]
    shape = (operand.dimensions or (1,)) if known.tensor else ()
    extra = None
    if kind == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        shape = (max(shape[0], 1), *shape[1:])
        extra = ChannelQuant(0, (1.0,) * shape[0])
    scale = (operand.scale or 1.0) if known.scaled else 0.0
    if kind == OperandType.TENSOR_INT32:
        scale = operand.scale
    low, high = known.zero_points or (0, 0)
    zero = min(max(operand.zero_point, low), high)
    retyped = replace(operand, type=kind, dimensions=shape, scale=scale, zero_point=zero, extra_params=extra)
    if operand.lifetime in CONSTANTS and known.size:
        return with_constant(model, index, retyped)
    return with_operand(model, index, retyped)


def bad_operation_codes(level: FeatureLevel) -> tuple[int, ...]:
    """Codes of operations that a level does not know; on levels 3 and 4 -1 is an extension's and may be valid."""
    above = LARGEST_OPERATION[level] + 1
    if level >= FL5:
        return (-1, above)
    return (above, 9999, 10001) if level >= FL3 else (-1, above, 9999, 10001)


def operation_type(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Codes that the level does not know."""
    for number, operation in enumerate(model.main.operations):
        for code in bad_operation_codes(level):
            change = f"code of operation {number} is {code}"
            yield change, partial(with_operation, model, number, replace(operation, type=code))


def negative_code(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Codes below 0, which have been those of no extension since level 5."""
    for number, operation in enumerate(model.main.operations):
        for code in (-1, -(2**31)):
            change = f"code of operation {number} is {code}"
            yield change, partial(with_operation, model, number, replace(operation, type=code))


def rewritten(rewrite: Callable[[Model, Operation], Iterator[tuple[str, Operation]]]) -> Changes:
    """Changes of the index lists of single operations."""

    def changes(model: Model, level: FeatureLevel) -> Iterator[Change]:
        for number, operation in enumerate(model.main.operations):
            for words, other in rewrite(model, operation):
                yield f"operation {number} {words}", partial(with_operation, model, number, other)

    return changes


EDGES = (2**31 - 1, 2**31, 2**32 - 1)  # of indexes; no model has so many operands


def input_index(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    """An input out of range."""
    for place in range(len(operation.inputs)):
        for index in (len(model.main.operands), *EDGES):
            yield f"has {index} as input {place}", replace(operation, inputs=placed(operation.inputs, place, index))


def output_index(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    """A result out of range."""
    for place in range(len(operation.outputs)):
        for index in (len(model.main.operands), *EDGES):
            yield f"has {index} as output {place}", replace(operation, outputs=placed(operation.outputs, place, index))


def negative_index(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    """An index below 0, which in some languages counts from the end."""
    for place in range(len(operation.inputs)):
        for index in (-1, -len(model.main.operands), -(2**31)):
            yield f"has {index} as input {place}", replace(operation, inputs=placed(operation.inputs, place, index))
    for place in range(len(operation.outputs)):
        yield f"has -1 as output {place}", replace(operation, outputs=placed(operation.outputs, place, -1))


def own_result(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    """An operation that reads what it writes itself."""
    for place in range(len(operation.inputs)):
        for index in operation.outputs:
            words = f"has its own result {index} as input {place}"
            yield words, replace(operation, inputs=placed(operation.inputs, place, index))


def same_result(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    """An operation that writes one operand twice."""
    for index in operation.outputs:
        yield f"writes operand {index} twice", replace(operation, outputs=(*operation.outputs, index))
        for place, other in enumerate(operation.outputs):
            if other != index:
                words = f"writes operand {index} in place of {other} as well"
                yield words, replace(operation, outputs=placed(operation.outputs, place, index))


def operand_counts(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    """No inputs, no results, or far too many."""
    yield "has no inputs", replace(operation, inputs=())
    yield "has no outputs", replace(operation, outputs=())
    yield "has neither inputs nor outputs", replace(operation, inputs=(), outputs=())
    yield "has its inputs twice", replace(operation, inputs=operation.inputs * 2)
    yield (
        "has its last input 1000 times",
        replace(operation, inputs=operation.inputs[:-1] + operation.inputs[-1:] * 1000),
    )
    yield "has the first operand 1000 times as input", replace(operation, inputs=(0,) * 1000)


def circle(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Two operations each of which reads what the other writes."""
    main = model.main
    for number, operation in enumerate(main.operations):
        for later, other in list(enumerate(main.operations))[number + 1 :]:
            for place in range(len(operation.inputs)):
                if set(operation.outputs) & set(other.inputs):
                    back = replace(operation, inputs=placed(operation.inputs, place, other.outputs[0]))
                    change = f"operations {number} and {later} read one another's results (input {place})"
                    yield change, partial(with_operation, model, number, back)


def fewer_inputs(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    """One input fewer."""
    for place in range(len(operation.inputs)):
        yield f"lacks input {place}", replace(operation, inputs=without(operation.inputs, place))


def fewer_outputs(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    """One result fewer."""
    for place in range(len(operation.outputs)):
        yield f"lacks output {place}", replace(operation, outputs=without(operation.outputs, place))


def fixed_output(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    """A result that is a constant, an input or omitted."""
    for place in range(len(operation.outputs)):
        for lifetime in (LIFE.CONSTANT_COPY, LIFE.CONSTANT_REFERENCE, LIFE.SUBGRAPH_INPUT, LIFE.NO_VALUE):
            for index, operand in enumerate(model.main.operands):
                if operand.lifetime == lifetime:
                    outputs = placed(operation.outputs, place, index)
                    yield f"writes operand {index} ({lifetime.name})", replace(operation, outputs=outputs)
                    break


def removed_write(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """A result that is read goes to a fresh temporary instead."""
    main = model.main
    read = {i for operation in main.operations for i in operation.inputs}
    for number, operation in enumerate(main.operations):
        for place, index in enumerate(operation.outputs):
            if index in read:
                change = f"operation {number} writes a fresh temporary, not operand {index}"
                yield change, partial(_redirected, model, number, place)


def _redirected(model: Model, number: int, place: int) -> Model:
    operation = model.main.operations[number]
    operands = model.main.operands
    fresh = replace(operands[operation.outputs[place]], lifetime=LIFE.TEMPORARY_VARIABLE)
    grown = replace(model, main=replace(model.main, operands=(*operands, fresh)))
    outputs = placed(operation.outputs, place, len(operands))
    return with_operation(grown, number, replace(operation, outputs=outputs))


def removed_operand(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """An operand is erased with all references to it, and later indexes move down."""
    for index, operand in enumerate(model.main.operands):
        yield f"{describe(index, operand)} is removed", partial(_without_operand, model, index)


def _without_operand(model: Model, index: int) -> Model:
    main = model.main

    def moved(indexes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i - (i > index) for i in indexes if i != index)

    operations = tuple(replace(o, inputs=moved(o.inputs), outputs=moved(o.outputs)) for o in main.operations)
    operands = (*main.operands[:index], *main.operands[index + 1 :])
    graph = Subgraph(operands, operations, moved(main.input_indexes), moved(main.output_indexes))
    return with_main(model, graph)


def removed_operation(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """An operation is erased."""
    operations = model.main.operations
    for number in range(len(operations)):
        rest = (*operations[:number], *operations[number + 1 :])
        yield f"operation {number} is removed", partial(with_operations, model, rest)


def added_input(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """A fresh INT32 input of the model becomes one more input of an operation."""
    for number in range(len(model.main.operations)):
        yield f"operation {number} has one more input", partial(_grown, model, number, LIFE.SUBGRAPH_INPUT)


def added_output(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """A fresh INT32 output of the model becomes one more result of an operation."""
    for number in range(len(model.main.operations)):
        yield f"operation {number} has one more output", partial(_grown, model, number, LIFE.SUBGRAPH_OUTPUT)


def _grown(model: Model, number: int, lifetime: LIFE) -> Model:
    main, operation = model.main, model.main.operations[number]
    index = len(main.operands)
    operands = (*main.operands, Operand(OperandType.INT32, lifetime=lifetime))
    if lifetime == LIFE.SUBGRAPH_INPUT:
        main = replace(main, operands=operands, input_indexes=(*main.input_indexes, index))
        operation = replace(operation, inputs=(*operation.inputs, index))
    else:
        main = replace(main, operands=operands, output_indexes=(*main.output_indexes, index))
        operation = replace(operation, outputs=(*operation.outputs, index))
    return with_operation(replace(model, main=main), number, operation)


def index_lists(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """An index of the model's inputs or outputs repeated, missing, or out of range."""
    main = model.main
    for words, wrong in _wrong_lists(main.input_indexes, len(main.operands)):
        yield f"input {words}", partial(with_main, model, replace(main, input_indexes=wrong))
    for words, wrong in _wrong_lists(main.output_indexes, len(main.operands)):
        yield f"output {words}", partial(with_main, model, replace(main, output_indexes=wrong))


def _wrong_lists(indexes: tuple[int, ...], count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for place, index in enumerate(indexes):
        yield f"{place} is listed twice", (*indexes, index)
        yield f"{place} is not listed", without(indexes, place)
        for beyond in (count, *EDGES):
            yield f"{place} is operand {beyond}", placed(indexes, place, beyond)


def negative_listed(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """The lists of inputs and outputs with an index below 0."""
    main = model.main
    for place in range(len(main.input_indexes)):
        for index in (-1, -len(main.operands), -(2**31)):
            wrong = placed(main.input_indexes, place, index)
            yield f"input {place} is operand {index}", partial(with_main, model, replace(main, input_indexes=wrong))
    for place in range(len(main.output_indexes)):
        wrong = placed(main.output_indexes, place, -1)
        yield f"output {place} is operand -1", partial(with_main, model, replace(main, output_indexes=wrong))


def empty_graph(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """No operations; no operands."""
    main = model.main
    inputs_alone = tuple(o if o.lifetime not in COMPUTED else replace(o, lifetime=LIFE.NO_VALUE) for o in main.operands)
    without_operations = Subgraph(inputs_alone, (), main.input_indexes, ())
    yield "there are no operations", partial(with_main, model, without_operations)
    yield "there are no operands", partial(with_main, model, Subgraph((), (), (), ()))


def unwritten_temporary(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """A temporary that nobody writes, and nobody reads."""
    operands = (*model.main.operands, Operand(OperandType.TENSOR_FLOAT32, (2,)))
    yield "there is one more temporary", partial(with_main, model, replace(model.main, operands=operands))


def extension_table(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Rows of the extension table that are ill-formed or repeated; from level 3 on."""
    if level < FL3:
        return
    row = ExtensionNameAndPrefix
    for words, table in (
        ("a name twice", (row("com.example.one", 1), row("com.example.one", 2))),
        ("a prefix twice", (row("com.example.one", 1), row("com.example.two", 1))),
        ("a name without a dot", (row("example", 1),)),
        ("a name with a capital letter", (row("com.Example", 1),)),
        ("an empty name", (row("", 1),)),
        ("a name with a hyphen", (row("com.an-example", 1),)),
        ("a name with a line break", (row("com.example\n", 1),)),
    ):
        yield f"the extension table has {words}", partial(replace, model, extension_name_to_prefix=table)


def ring_of_additions() -> Model:
    """Three additions of which each reads the next one's result. Preparation may refuse it with any status."""
    shape = Operand(OperandType.TENSOR_FLOAT32, (1,))
    operands = (
        replace(shape, lifetime=LIFE.SUBGRAPH_INPUT),
        Operand(OperandType.INT32, lifetime=LIFE.CONSTANT_COPY, location=DataLocation(0, 0, 4)),
        shape,
        shape,
        shape,
        replace(shape, lifetime=LIFE.SUBGRAPH_OUTPUT),
    )
    add = int(OperationType.ADD)
    operations = (
        Operation(add, (0, 4, 1), (2,)),
        Operation(add, (0, 2, 1), (3,)),
        Operation(add, (0, 3, 1), (4,)),
        Operation(add, (0, 4, 1), (5,)),
    )
    return with_main(
        Model(Subgraph((), (), (), ()), operand_values=bytes(4)), Subgraph(operands, operations, (0,), (5,))
    )
