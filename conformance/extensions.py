"""Scenarios of vendor extensions: what every driver owes for those that it does not know, and one that it may have.

`org.nncts.sample` is the reference driver's, described in docs/writing-a-driver.md: a vendor's own cases look like
those for it at the end of this file.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.behaviour import IA, Maker, Scenario, Vehicle, case, execute, prepared, refuses
from conformance.execution import SINCE, UNTIL, WORDS
from harness.case import EXTENSION, Step, TestCase
from harness.expectations import Agreement, Agrees, Describes, Expected, Rejects, Returns, Supports, Unspecified
from harness.steps import Action
from nnhal.memory import BytesMemory
from nnhal.model import (
    DataLocation,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    Operation,
    Subgraph,
    count_consumers,
)
from nnhal.types import FL3, FL5, Array, ExecutionMode, FeatureLevel, OperandLifeTime, OperandType

TOPIC = "EXTENSIONS"
UNKNOWN = "org.nncts.nobody.has.this"
SAMPLE = "org.nncts.sample"
INT64, WIDEN, MULTIPLY, UPPER_HALF = 0, 0, 1, 2  # numbers of the sample extension's operand type and operations
BEYOND = 0x7001  # a number that the sample extension has for nothing
NOT_KNOWN = "no driver knows the extension, and a driver says so in the support query: the model is valid"
SHAPE = (2, 3)
Life = OperandLifeTime
SIMPLE = (("ADD", "float32"),)


@dataclass
class Parts:
    """A graph that is put together operand by operand, on its own or behind another model's."""

    prefix: int
    name: str = UNKNOWN
    operands: list[Operand] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    values: bytearray = field(default_factory=bytearray)
    pools: list[BytesMemory] = field(default_factory=list)
    inputs: list[Array] = field(default_factory=list)

    @classmethod
    def behind(cls, v: Vehicle, prefix: int, name: str = UNKNOWN) -> Parts:
        """With a vehicle's model in front."""
        main = v.model.main
        values = bytearray(v.model.operand_values)
        return cls(prefix, name, list(main.operands), list(main.operations), values, [], list(v.inputs))

    def code(self, number: int) -> int:
        """The extension's code of an operand or operation type in this model."""
        return self.prefix << 16 | number

    def operand(self, kind: int, lifetime: Life, shape: tuple[int, ...] = SHAPE, extra: bytes | None = None) -> int:
        """Adds an operand of a type, the extension's or any."""
        self.operands.append(Operand(kind, shape, lifetime=lifetime, extra_params=extra))
        return len(self.operands) - 1

    def input(self, kind: int, value: Array) -> int:
        """Adds an input of the model with the value that it gets."""
        self.inputs.append(value)
        return self.operand(kind, Life.SUBGRAPH_INPUT, value.shape)

    def constant(self, kind: int, value: Array, *, pool: bool) -> int:
        """Adds a constant, among the copied values or in a pool of its own."""
        data = value.tobytes()
        if pool:
            self.pools.append(BytesMemory(data))
            place = DataLocation(len(self.pools) - 1, 0, len(data))
        else:
            self.values += bytes(-len(self.values) % 8)
            place = DataLocation(0, len(self.values), len(data))
            self.values += data
        lifetime = Life.CONSTANT_REFERENCE if pool else Life.CONSTANT_COPY
        self.operands.append(Operand(kind, value.shape, lifetime=lifetime, location=place))
        return len(self.operands) - 1

    def operation(self, code: int, inputs: Sequence[int], output: int) -> None:
        """Adds an operation."""
        self.operations.append(Operation(code, tuple(inputs), (output,)))

    def model(self, table: Sequence[tuple[str, int]] | None = None) -> Model:
        """The finished model; the extension alone is in its table where nothing else is given."""
        rows = [(self.name, self.prefix)] if table is None else table

        def listed(lifetime: Life) -> tuple[int, ...]:
            return tuple(i for i, operand in enumerate(self.operands) if operand.lifetime == lifetime)

        ends = listed(Life.SUBGRAPH_INPUT), listed(Life.SUBGRAPH_OUTPUT)
        main = Subgraph(tuple(self.operands), tuple(self.operations), *ends)
        names = tuple(ExtensionNameAndPrefix(name, prefix) for name, prefix in rows)
        return Model(count_consumers(main), (), bytes(self.values), tuple(self.pools), extension_name_to_prefix=names)


def _chance(v: Vehicle) -> random.Random:
    return random.Random(v.words)


def _prefix(v: Vehicle) -> int:
    """Any number that every level has room for."""
    return _chance(v).randint(1, 0x7FFF)


F32, I32 = int(OperandType.TENSOR_FLOAT32), int(OperandType.TENSOR_INT32)


def _one_operation(parts: Parts, number: int = 5, kind: int = F32) -> Model:
    taken, given = parts.operand(kind, Life.SUBGRAPH_INPUT), parts.operand(kind, Life.SUBGRAPH_OUTPUT)
    parts.operation(parts.code(number), [taken], given)
    return parts.model()


def _unknown(model: Model, *, refusable: bool = False, text: str = NOT_KNOWN) -> list[Step]:
    """What is due for a model of one graph whose operations are all an extension's that nobody knows."""
    due = (False,) * len(model.main.operations)
    unless = (IA,) if refusable else ()
    query = Step(Action.QUERY, expect=Supports(due, unless=unless, text=text))
    return [query, Step(Action.PREPARE, expect=Rejects((), "EXTENSION", text, valid=True))]


# --- what every driver owes ------------------------------------------------------------------------------------------


def _described(v: Vehicle) -> TestCase:
    return case([Step(Action.DESCRIBE, expect=Describes()), Step(Action.DESCRIBE, expect=Describes(0))], v, level=FL3)


def _unknown_operation(v: Vehicle) -> TestCase:
    model = _one_operation(Parts(_prefix(v)), _chance(v).choice((0, 1, 5, 0xFFFF)))
    return case(_unknown(model), models=(model,), level=FL3)


def _unknown_type(v: Vehicle) -> TestCase:
    """From an ordinary tensor into one of the extension's and back."""
    parts = Parts(_prefix(v))
    between = parts.operand(parts.code(7), Life.TEMPORARY_VARIABLE)
    taken, given = parts.operand(F32, Life.SUBGRAPH_INPUT), parts.operand(F32, Life.SUBGRAPH_OUTPUT)
    parts.operation(parts.code(0), [taken], between)
    parts.operation(parts.code(1), [between], given)
    model = parts.model()
    return case(_unknown(model), models=(model,), level=FL3)


def _unknown_ends(v: Vehicle) -> TestCase:
    """Inputs and outputs of the extension's types, and of unknown rank: it may be a scalar."""
    parts = Parts(_prefix(v))
    chance = _chance(v)
    taken = parts.operand(parts.code(chance.randint(0, 0xFFFF)), Life.SUBGRAPH_INPUT, chance.choice(((), (2, 3))))
    given = parts.operand(parts.code(chance.randint(0, 0xFFFF)), Life.SUBGRAPH_OUTPUT, chance.choice(((), (0, 3))))
    parts.operation(parts.code(0), [taken], given)
    model = parts.model()
    return case(_unknown(model), models=(model,), level=FL3)


def _extra_params(v: Vehicle) -> TestCase:
    """Operands of the extension with parameters, from one byte to many."""
    parts, chance = Parts(_prefix(v)), _chance(v)
    indexes = [
        parts.operand(parts.code(3), lifetime, extra=chance.randbytes(chance.choice((1, 7, 128, 5000))))
        for lifetime in (Life.SUBGRAPH_INPUT, Life.SUBGRAPH_OUTPUT)
    ]
    parts.operation(parts.code(2), indexes[:1], indexes[1])
    model = parts.model()
    return case(_unknown(model), models=(model,), level=FL3)


def _unknown_constant(v: Vehicle) -> TestCase:
    """A constant of the extension's type: only the extension knows how many bytes are due."""
    parts, chance = Parts(_prefix(v)), _chance(v)
    value = np.frombuffer(chance.randbytes(chance.choice((1, 24, 200))), np.uint8)
    fixed = parts.constant(parts.code(1), value, pool=chance.random() < 0.5)
    parts.operation(parts.code(0), [fixed], parts.operand(F32, Life.SUBGRAPH_OUTPUT))
    model = parts.model()
    return case(_unknown(model), models=(model,), level=FL3)


def _unlisted_prefix(v: Vehicle) -> TestCase:
    """Validation does not look for the prefix in the table; a driver may refuse the model, and knows nothing of it."""
    text = "the operation's prefix is not in the model's extension table, so that nobody knows what it is"
    parts = Parts(_prefix(v))
    _one_operation(parts)
    model = parts.model([] if _chance(v).random() < 0.5 else [(SAMPLE, parts.prefix % 0x7FFF + 1)])
    return case(_unknown(model, refusable=True, text=text), models=(model,), level=FL3)


def _prefix_zero(v: Vehicle) -> TestCase:
    """Prefix 0 makes an extension's codes those of ordinary operations: it is not refused, and means nothing."""
    model = replace(v.model, extension_name_to_prefix=(ExtensionNameAndPrefix(UNKNOWN, 0),))
    steps = [Step(Action.QUERY, expect=Unspecified()), Step(Action.PREPARE, expect=Unspecified())]
    return case([*steps, *(replace(step, model=1) for step in prepared()), execute(v, 1)], models=(model, v.model),
                level=FeatureLevel(max(v.level, FL3)))  # fmt: skip


def _mixed(v: Vehicle) -> TestCase:
    """An extension's operation beside an ordinary one: they have nothing to do with one another."""
    parts = Parts.behind(v, _prefix(v))
    model = _one_operation(parts)
    text = "what stands beside it in the model is no reason not to support an operation"
    due = Supports((None, False), 0, ((0, 0),), text=text)
    refused = Rejects((), "EXTENSION", NOT_KNOWN, valid=True)
    steps = [Step(Action.QUERY, 1), Step(Action.QUERY, 0, due), Step(Action.PREPARE, 0, refused)]
    steps += [Step(Action.PREPARE, 1), execute(v, 1)]
    return case(steps, models=(model, v.model), level=FeatureLevel(max(v.level, FL3)))


def _behind(v: Vehicle) -> TestCase:
    """An extension's operation that takes what an ordinary one gives."""
    parts = Parts.behind(v, _prefix(v))
    source = v.model.main.output_indexes[0]
    parts.operation(parts.code(4), [source], parts.operand(parts.code(1), Life.SUBGRAPH_OUTPUT))
    model = parts.model()
    refused = Rejects((), "EXTENSION", NOT_KNOWN, valid=True)
    steps = [Step(Action.QUERY, 1), Step(Action.QUERY, 0, Supports((None, False), text=NOT_KNOWN))]
    steps += [Step(Action.PREPARE, 0, refused), Step(Action.PREPARE, 1), execute(v, 1)]
    return case(steps, models=(model, v.model), level=FeatureLevel(max(v.level, FL3)))


def _unused_table(v: Vehicle) -> TestCase:
    """A table that names extensions which no operand or operation is of."""
    first = _prefix(v)
    rows = (ExtensionNameAndPrefix(UNKNOWN, first), ExtensionNameAndPrefix(f"{UNKNOWN}_2", first % 0x7FFF + 1))
    model = replace(v.model, extension_name_to_prefix=rows)
    text = "an extension that the model names and does not use is no reason not to support an operation"
    steps = [Step(Action.QUERY, 1), Step(Action.QUERY, 0, Supports(step=0, kept=((0, 0),), text=text))]
    steps += [Step(Action.PREPARE, 0), execute(v)]
    return case(steps, models=(model, v.model), level=FeatureLevel(max(v.level, FL3)))


def _sample_unknown_operation(v: Vehicle) -> TestCase:
    """Of an extension that the driver may have, an operation that it has not."""
    model = _one_operation(Parts(_prefix(v), SAMPLE), BEYOND, I32)
    text = "the extension has no operation of that number, whether the driver has the extension or not"
    return case(_unknown(model, text=text), models=(model,), level=FL3)


def _sample_bad_operands(v: Vehicle) -> TestCase:
    """An operation of an extension that the driver may have, on operands that it does not take."""
    parts = Parts(_prefix(v), SAMPLE)
    kind = _chance(v).choice((F32, parts.code(BEYOND)))
    model = _one_operation(parts, WIDEN, kind)
    text = "validation does not look into an extension's operation, and its driver does not support these operands"
    return case(_unknown(model, text=text), models=(model,), level=FL3)


def _before_extensions(v: Vehicle) -> TestCase:
    """Levels 1 and 2 have no extensions: operation, operand type and table are each refused."""
    prefix = _prefix(v)
    operation = replace(_one_operation(Parts(prefix)), extension_name_to_prefix=())
    parts = Parts.behind(v, prefix)
    parts.operand(parts.code(0), Life.NO_VALUE)
    kind = parts.model([])
    table = replace(v.model, extension_name_to_prefix=(ExtensionNameAndPrefix(UNKNOWN, prefix),))
    steps = [Step(Action.QUERY, 0), Step(Action.PREPARE, 0)]
    for number, (rule, what) in enumerate((("G15", "operation"), ("G2", "operand type"), ("G22", "table"))):
        due = refuses(rule, f"the model has an extension {what}, which levels 1.0 and 1.1 have not")
        steps += [Step(Action.QUERY, number + 1, due), Step(Action.PREPARE, number + 1, due)]
    return replace(case(steps, models=(v.model, operation, kind, table), level=v.level), until=FL3)


def _wide_prefix(v: Vehicle) -> TestCase:
    """Up to level 4 a prefix has sixteen bits."""
    model = _one_operation(Parts(0xFFFF - _chance(v).randint(0, 0x7FFF)))
    return replace(case(_unknown(model), models=(model,), level=FL3), until=FL5)


def _sign_bit(v: Vehicle) -> TestCase:
    """From level 5 on a code is a positive number of 31 bits."""
    chance = _chance(v)
    wide = 0xFFFF - chance.randint(0, 0x7FFF)
    parts = Parts(wide if chance.random() < 0.5 else wide - 0x10000)
    model = replace(_one_operation(parts), extension_name_to_prefix=())
    due = refuses("G15", "the operation's code does not fit 31 bits")
    steps = [*prepared(1), Step(Action.QUERY, 0, due), Step(Action.PREPARE, 0, due)]
    return case(steps, models=(model, v.model), level=FL5)


# --- an extension that a driver may have ------------------------------------------------------------------------------


def _wide(v: Vehicle, salt: str = "") -> Array:
    """64-bit numbers whose products float64 holds exactly."""
    chance = random.Random(v.words + salt)
    return np.array([chance.randint(-(2**25), 2**25) for _ in range(6)], np.int64).reshape(SHAPE)


def _due(name: str, value: Array) -> Expected:
    """Whole numbers, exactly."""
    stored = "<i8" if value.dtype == np.int64 else ""
    real = value.astype(np.float64)
    return Expected(name, OperandType.TENSOR_INT32, value.shape, real, np.zeros(value.shape), exact=True, stored=stored)


def _upper_of_product(parts: Parts, a: Array, b: Array) -> Expected:
    """WIDEN twice, MULTIPLY, UPPER_HALF: only 64-bit arithmetic gets it right."""
    wide = parts.code(INT64)
    indexes = []
    for value in (a, b):
        taken, widened = parts.input(I32, value), parts.operand(wide, Life.TEMPORARY_VARIABLE)
        parts.operation(parts.code(WIDEN), [taken], widened)
        indexes.append(widened)
    product, given = parts.operand(wide, Life.TEMPORARY_VARIABLE), parts.operand(I32, Life.SUBGRAPH_OUTPUT)
    parts.operation(parts.code(MULTIPLY), indexes, product)
    parts.operation(parts.code(UPPER_HALF), [product], given)
    return _due("output", ((a.astype(np.int64) * b) >> 32).astype(np.int32))


def _ordinary(v: Vehicle) -> tuple[Array, Array]:
    return _wide(v, "a").astype(np.int32), _wide(v, "b").astype(np.int32)


def _run(parts: Parts, *due: Expected, model: int = 0, mode: ExecutionMode = ExecutionMode.SYNCHRONOUS) -> Step:
    return Step(Action.EXECUTE, model, Returns(due), mode, tuple(parts.inputs))


def _sample(steps: Sequence[Step], *models: Model, level: FeatureLevel = FL3,
            highest: FeatureLevel | None = None) -> TestCase:  # fmt: skip
    return case(steps, models=models, level=level, highest=highest, needs=(EXTENSION + SAMPLE,))


def _sample_inside(mode: ExecutionMode) -> Scenario:
    """Values of the extension's type between its operations, in each way of running."""

    def make(v: Vehicle) -> TestCase:
        parts = Parts(_prefix(v), SAMPLE)
        due = _upper_of_product(parts, *_ordinary(v))
        level = FeatureLevel(max(FL3, SINCE[mode]))
        steps = [*prepared(), _run(parts, due, mode=mode)]
        return _sample(steps, parts.model(), level=level, highest=UNTIL.get(mode))

    text = "a listed extension's operations give what its vendor says"
    return Scenario(TOPIC, f"sample.inside.{WORDS[mode]}", make, text, mode=WORDS[mode], among=SIMPLE)


def _sample_ends(v: Vehicle) -> TestCase:
    """Values of the extension's type go into the model and out of it."""
    parts = Parts(_prefix(v), SAMPLE)
    wide, values = parts.code(INT64), [_wide(v, "a"), _wide(v, "b")]
    given = parts.operand(wide, Life.SUBGRAPH_OUTPUT)
    parts.operation(parts.code(MULTIPLY), [parts.input(wide, value) for value in values], given)
    return _sample([*prepared(), _run(parts, _due("output", values[0] * values[1]))], parts.model())


def _sample_constants(v: Vehicle) -> TestCase:
    """Constants of the extension's type, copied and in a pool."""
    parts = Parts(_prefix(v), SAMPLE)
    wide, values = parts.code(INT64), [_wide(v, "a"), _wide(v, "b")]
    fixed = [parts.constant(wide, value, pool=pool) for value, pool in zip(values, (False, True), strict=True)]
    product, given = parts.operand(wide, Life.SUBGRAPH_OUTPUT), parts.operand(I32, Life.SUBGRAPH_OUTPUT)
    parts.operation(parts.code(MULTIPLY), fixed, product)
    parts.operation(parts.code(UPPER_HALF), [product], given)
    due = values[0] * values[1]
    run = _run(parts, _due("product", due), _due("upper", (due >> 32).astype(np.int32)))
    return _sample([*prepared(), run], parts.model())


def _sample_prefixes(v: Vehicle) -> TestCase:
    """The prefix is the model's choice: another one, and another extension in the table, change nothing."""
    made = []
    for prefix, other in ((1, 0x7FFF), (0x7FFF, 2), (_prefix(v) % 0x7FF0 + 3, 1)):
        parts = Parts(prefix, SAMPLE)
        due = _upper_of_product(parts, *_ordinary(v))
        made.append((parts, due, parts.model([(UNKNOWN, other), (SAMPLE, prefix)])))
    text = "the prefix that a model chooses for an extension means nothing"
    steps = [Step(Action.QUERY, 0), *(Step(Action.QUERY, n, Supports(step=0, alike=True, text=text)) for n in (1, 2))]
    steps += [*(Step(Action.PREPARE, number) for number in range(3)), _run(made[0][0], made[0][1])]
    same = Agrees(6, (Agreement(0, np.zeros(SHAPE)),), text)
    steps += [Step(Action.EXECUTE, n, same, inputs=tuple(made[n][0].inputs)) for n in (1, 2)]
    return _sample(steps, *(model for _, _, model in made))


def _sample_beside(v: Vehicle) -> TestCase:
    """The extension's operations and an ordinary one in one model."""
    parts = Parts.behind(v, _prefix(v), SAMPLE)
    due = _upper_of_product(parts, *_ordinary(v))
    steps = [*prepared(), _run(parts, *v.returns.outputs, due)]
    return _sample(steps, parts.model(), level=FeatureLevel(max(v.level, FL3)))


def _plain(name: str, make: Maker, text: str, rule: str = "", *, simple: bool = True, once: bool = False) -> Scenario:
    among = SIMPLE if simple else Scenario.among
    return Scenario(TOPIC, name, make, text, rule, once, among)


SCENARIOS = (
    _plain("listed", _described, "extensions are listed with well-formed names and type tables", once=True),
    _plain("unknown.operation", _unknown_operation, NOT_KNOWN, "EXTENSION"),
    _plain("unknown.type", _unknown_type, NOT_KNOWN, "EXTENSION"),
    _plain("unknown.ends", _unknown_ends, NOT_KNOWN, "EXTENSION"),
    _plain("unknown.constant", _unknown_constant, NOT_KNOWN, "EXTENSION"),
    _plain("extra.params", _extra_params, NOT_KNOWN, "EXTENSION"),
    _plain("unlisted.prefix", _unlisted_prefix, "nobody knows an operation without an extension", "EXTENSION"),
    _plain("prefix.zero", _prefix_zero, "prefix 0 neither kills nor lasts", simple=False),
    _plain("beside", _mixed, "ordinary operations keep their support beside an extension's", "EXTENSION", simple=False),
    _plain("behind", _behind, "an extension's operation on an ordinary one's result", "EXTENSION", simple=False),
    _plain("unused.table", _unused_table, "a table that nothing uses changes nothing", simple=False),
    _plain("sample.unknown.operation", _sample_unknown_operation, "a listed extension has its operations only"),
    _plain("sample.bad.operands", _sample_bad_operands, "an extension's operation takes its own operands only"),
    _plain("before.extensions", _before_extensions, "levels 1.0 and 1.1 have no extensions", "G15"),
    _plain("wide.prefix", _wide_prefix, "sixteen bits of prefix up to level 1.3", "EXTENSION"),
    _plain("sign.bit", _sign_bit, "fifteen bits of prefix from level FL5 on", "G15"),
    *(_sample_inside(mode) for mode in WORDS),
    _plain("sample.ends", _sample_ends, "an extension's operand type as input and output"),
    _plain("sample.constants", _sample_constants, "an extension's operand type as constant"),
    _plain("sample.prefixes", _sample_prefixes, "any prefix will do", once=False),
    _plain("sample.beside", _sample_beside, "a listed extension's operations beside ordinary ones", simple=False),
)
