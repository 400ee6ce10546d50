"""Models of a size that no client needs and any client can send: validation must answer in bounded time and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from conformance.behaviour import Scenario, Vehicle, case, refuses
from conformance.mutation_graphs import ring_of_additions
from harness.case import Step, TestCase
from harness.expectations import Rejects, Returns
from harness.steps import Action
from nnhal.model import (
    DataLocation,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    Operation,
    Subgraph,
    count_consumers,
)
from nnhal.types import FL1, FL3, FL4, ErrorStatus, FeatureLevel, OperandLifeTime, OperandType, OperationType

LIFE = OperandLifeTime
FLOAT = Operand(OperandType.TENSOR_FLOAT32, (2,))
INPUT, OUTPUT = replace(FLOAT, lifetime=LIFE.SUBGRAPH_INPUT), replace(FLOAT, lifetime=LIFE.SUBGRAPH_OUTPUT)
LARGEST = 2**31 - 1
EXHAUSTED = (ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT)


@dataclass(frozen=True)
class Large:
    """A large model.

    Attributes:
        name: for case ids, with dots between words.
        text: what is large, and what is wrong where something is.
        make: the model of a size.
        size: of the large one.
        rule: label of the rule that it breaks; empty for a valid one.
        level: the lowest that knows what is in it.
    """

    name: str
    text: str
    make: Callable[[int], Model]
    size: int
    rule: str = ""
    level: FeatureLevel = FL1


def _model(operands: list[Operand], operations: list[Operation], inputs: list[int], outputs: list[int]) -> Model:
    graph = Subgraph(tuple(operands), tuple(operations), tuple(inputs), tuple(outputs))
    return Model(count_consumers(graph))


def chain(length: int) -> Model:
    """So many operations one behind the other."""
    operands = [INPUT, *[FLOAT] * (length - 1), OUTPUT]
    code = int(OperationType.RELU)
    return _model(operands, [Operation(code, (n,), (n + 1,)) for n in range(length)], [0], [length])


def chain_backwards(length: int) -> Model:
    """The same in the opposite order: every operation but the last reads too early."""
    model = chain(length)
    return replace(model, main=replace(model.main, operations=model.main.operations[::-1]))


def chain_out_of_range(length: int) -> Model:
    """A chain whose last operation reads an operand that is not there."""
    model = chain(length)
    last = replace(model.main.operations[-1], inputs=(length + 1,))
    return replace(model, main=count_consumers(replace(model.main, operations=(*model.main.operations[:-1], last))))


def ring(length: int) -> Model:
    """A chain whose first operation reads the last result."""
    model = chain(length)
    first = replace(model.main.operations[0], inputs=(length - 1,))
    return replace(model, main=count_consumers(replace(model.main, operations=(first, *model.main.operations[1:]))))


def unwritten(length: int) -> Model:
    """One operation, and so many temporaries that nobody writes."""
    return _model([INPUT, OUTPUT, *[FLOAT] * length], [Operation(int(OperationType.RELU), (0,), (1,))], [0], [1])


def joined(length: int) -> Model:
    """One CONCATENATION of so many inputs."""
    axis = Operand(OperandType.INT32, lifetime=LIFE.CONSTANT_COPY, location=DataLocation(0, 0, 4))
    operands = [*[INPUT] * length, axis, replace(OUTPUT, dimensions=(2 * length,))]
    operation = Operation(int(OperationType.CONCATENATION), tuple(range(length + 1)), (length + 1,))
    return replace(_model(operands, [operation], list(range(length)), [length + 1]), operand_values=bytes(4))


def joined_with_stranger(length: int) -> Model:
    """The same where the last input is of another type than the others."""
    model = joined(length)
    operands = list(model.main.operands)
    operands[length - 1] = replace(operands[length - 1], type=OperandType.TENSOR_INT32)
    return replace(model, main=replace(model.main, operands=tuple(operands)))


def indexes_repeated(length: int) -> Model:
    """An input that is listed so many times."""
    model = chain(1)
    return replace(model, main=replace(model.main, input_indexes=(0,) * length))


def read_many_times(length: int) -> Model:
    """RELU with so many inputs, all the same operand."""
    return _model([INPUT, OUTPUT], [Operation(int(OperationType.RELU), (0,) * length, (1,))], [0], [1])


def huge_constant(rank: int) -> Model:
    """A constant of so many dimensions, each of the largest size, and 8 bytes."""
    place = DataLocation(0, 0, 8)
    constant = replace(FLOAT, dimensions=(LARGEST,) * rank, lifetime=LIFE.CONSTANT_COPY, location=place)
    model = _model([constant, OUTPUT], [Operation(int(OperationType.RELU), (0,), (1,))], [], [1])
    return replace(model, operand_values=bytes(8))


def wrapping_constant(bits: int) -> Model:
    """A constant of 8 bytes whose dimensions say 8 more than a multiple of 2^bits: right in a narrower integer."""
    sizes = {32: (2, 2**29 + 1), 64: (2, 242243305, 49477, 384773)}[bits]
    constant = replace(FLOAT, dimensions=sizes, lifetime=LIFE.CONSTANT_COPY, location=DataLocation(0, 0, 8))
    model = _model([constant, OUTPUT], [Operation(int(OperationType.RELU), (0,), (1,))], [], [1])
    return replace(model, operand_values=bytes(8))


def extension_table(length: int) -> Model:
    """An extension table of so many rows."""
    rows = tuple(ExtensionNameAndPrefix(f"com.example.number_{n}", n) for n in range(length))
    return replace(chain(1), extension_name_to_prefix=rows)


def extension_twice(length: int) -> Model:
    """The same, the last name that of the first."""
    model = extension_table(length)
    last = replace(model.extension_name_to_prefix[-1], name="com.example.number_0")
    return replace(model, extension_name_to_prefix=(*model.extension_name_to_prefix[:-1], last))


def extension_name(length: int) -> Model:
    """An extension name of so many dots and a letter that is not allowed."""
    return replace(chain(1), extension_name_to_prefix=(ExtensionNameAndPrefix("." * length + "A", 1),))


# --- referenced graphs ------------------------------------------------------------------------------------------------


def _graph_operand(number: int) -> Operand:
    return Operand(OperandType.SUBGRAPH, lifetime=LIFE.SUBGRAPH, location=DataLocation(offset=number))


def _choice(first: int, second: int) -> Subgraph:
    """A graph that is an IF of two others."""
    condition = Operand(OperandType.TENSOR_BOOL8, (1,), lifetime=LIFE.SUBGRAPH_INPUT)
    operands = (condition, _graph_operand(first), _graph_operand(second), INPUT, OUTPUT)
    inner = Operation(int(OperationType.IF), (0, 1, 2, 0, 3), (4,))
    return count_consumers(Subgraph(operands, (inner,), (0, 3), (4,)))


def _leaf() -> Subgraph:
    condition = Operand(OperandType.TENSOR_BOOL8, (1,), lifetime=LIFE.SUBGRAPH_INPUT)
    relu = Operation(int(OperationType.RELU), (1,), (2,))
    return count_consumers(Subgraph((condition, INPUT, OUTPUT), (relu,), (0, 1), (2,)))


def nested(depth: int) -> Model:
    """An IF whose branches are an IF, and so on: both branches are the same graph, so there are 2^depth ways."""
    graphs = tuple(_choice(n + 1, n + 1) for n in range(depth - 1))
    return Model(_choice(0, 0), (*graphs, _leaf()))


def nested_in_a_circle(depth: int) -> Model:
    """The same, the innermost graph an IF of the outermost."""
    model = nested(depth)
    return replace(model, referenced=(*model.referenced[:-1], _choice(0, 0)))


def nested_too_far(depth: int) -> Model:
    """The same, the innermost graph an IF of graphs that are not there."""
    model = nested(depth)
    return replace(model, referenced=(*model.referenced[:-1], _choice(depth, depth)))


MANY, STEPS, ROWS, DEPTH = 100_000, 10_000, 30_000, 2_000
LARGE: tuple[Large, ...] = (
    Large("chain", "a valid chain of many operations", chain, STEPS),
    Large("chain.backwards", "operations in the opposite order", chain_backwards, STEPS, "G18"),
    Large("chain.end", "the last of many operations reads what is not there", chain_out_of_range, STEPS, "G16"),
    Large("ring", "many operations in a ring", ring, STEPS, "G18"),
    Large("unwritten", "many temporaries that nobody writes", unwritten, MANY, "G20"),
    Large("joined", "an operation with many inputs", joined, STEPS),
    Large("joined.stranger", "the last of many inputs has another type", joined_with_stranger, STEPS,
          "CONCATENATION.SIGNATURE"),
    Large("listed.again", "an input is listed many times", indexes_repeated, MANY, "G13"),
    Large("read.again", "an operation reads one operand many times", read_many_times, MANY, "RELU.SIGNATURE"),
    Large("dimensions", "a constant of many dimensions, each of the largest size", huge_constant, MANY, "G9"),
    Large("wrap.32", "a constant whose bytes are right in 32 bits alone", wrapping_constant, 32, "G9"),
    Large("wrap.64", "a constant whose bytes are right in 64 bits alone", wrapping_constant, 64, "G9"),
    Large("extensions", "a valid extension table of many rows", extension_table, ROWS, level=FL3),
    Large("extensions.twice", "a long extension table with one name twice", extension_twice, ROWS, "G22", FL3),
    Large("extension.name", "a long extension name that ends wrongly", extension_name, MANY, "G22", FL3),
    Large("nested", "graphs in graphs, very deep", nested, DEPTH, level=FL4),
    Large("nested.circle", "graphs in graphs, very deep, in a circle", nested_in_a_circle, DEPTH, "G24", FL4),
    Large("nested.end", "the innermost of many graphs refers to none", nested_too_far, DEPTH, "G10", FL4),
)  # fmt: skip


def _scenario(large: Large) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        model = large.make(large.size)
        if not large.rule:
            steps = [Step(Action.QUERY, 0, Returns(unless=EXHAUSTED))]
            return case(steps, models=(model,), level=large.level, needs=("validates",))
        twin = (Step(Action.QUERY, 1), Step(Action.PREPARE, 1))
        query = refuses(large.rule, f"{large.text} (size {large.size})")
        prepare = Rejects((), query.rule, query.text) if large.name == "ring" else query
        steps = [*twin, Step(Action.QUERY, 0, query), Step(Action.PREPARE, 0, prepare), Step(Action.QUERY, 1)]
        return case(steps, models=(model, chain(1)), level=large.level)

    return Scenario("VALIDATION", f"large.{large.name}", make, large.text, large.rule, once=True)


def _ring_of_additions(v: Vehicle) -> TestCase:
    """The ring that the public tests try: preparation may refuse it with any status."""
    query = refuses("G18", "three additions in a ring")
    steps = [Step(Action.QUERY, 0, query), Step(Action.PREPARE, 0, Rejects((), query.rule, query.text))]
    return case([Step(Action.QUERY, 1), *steps, Step(Action.QUERY, 1)], models=(ring_of_additions(), chain(1)))


SCENARIOS = (
    *(_scenario(large) for large in LARGE),
    Scenario("VALIDATION", "ring.of.additions", _ring_of_additions, "three additions in a ring", "G18", once=True),
)
