"""Each operand of each operation with each lifetime, one at a time; and scenarios of lifetimes in a whole model.

A temporary is what an operation gives that only moves values, and such an operation is taken to keep them exactly: one
that does not is reported where it is tested alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from conformance import behaviour
from conformance.behaviour import Scenario, Vehicle, case, prepared, refuses
from conformance.cases import TRIES, constants, drawn
from conformance.nets import COPY, INPUT, OUTPUT, REFERENCE, TEMPORARY, Life, Net, call_by_hand, movers
from conformance.versions import with_operand
from harness.batch import Batch
from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Expected, Returns
from harness.make import describe, expected_outputs, row_groups
from harness.steps import Action
from nnhal.model import Model, Operand, is_tensor
from nnhal.operations import OperandDef, Signature
from nnhal.types import FL3, FeatureLevel, OperandType
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.call import Argument, Call, scalar
from opset.definition import F32, OperationDef
from opset.validation import needed_level

TOPIC = "LIFETIMES"
POOLS = ("ashmem", "mmap_fd", "hardware_buffer")
WAYS = ("copied", "pool", "input", "temporary", "output")  # how an operand's value comes to the operation
SCALAR_WAYS = ("pool", "input")
WORDS = {
    "copied": "is a copied constant",
    "pool": "is a constant in a pool",
    "input": "is an input of the model",
    "temporary": "is what an operation before gives",
    "output": "is what an operation before gives, and an output of the model at the same time",
    "omitted": "has no value",
}
MANY = 6  # tensors among the inputs: recurrent operations have more
Pick = tuple[OperandDef, str]  # an operand, and how its value comes


# --- one operand at a time --------------------------------------------------------------------------------------------


def picks(definition: OperationDef, row: int, signature: Signature, every: bool) -> list[Pick]:
    """What is tried with a row of types.

    Args:
        definition: of the operation.
        row: number of the row; another way comes first in each.
        signature: the row's widest.
        every: all ways of each operand; else one way in each row, and one scalar; of many operands every third.
    """
    tensors: list[OperandDef] = []
    scalars: list[OperandDef] = []
    for operand in signature.form.operands[: signature.count]:
        kind = None if operand.any_type else definition.info.type_of(signature, operand)
        if kind != OperandType.SUBGRAPH:
            (tensors if kind is None or is_tensor(kind) else scalars).append(operand)
    found: list[Pick] = []
    for place, operand in enumerate(tensors):
        if not every and len(tensors) > MANY and (place + row) % 3:
            continue
        ways = WAYS if every else (WAYS[(place + row) % len(WAYS)],)
        found += [(operand, way) for way in ways]
        if operand.omittable and (every or (place + row) % 2):
            found.append((operand, "omitted"))
    for place, operand in enumerate(scalars):
        if every or place == row % len(scalars):
            found += [(operand, way) for way in (SCALAR_WAYS if every else (SCALAR_WAYS[row % 2],))]
    return found


def _operand_batches(profile: str, seed: int) -> Iterator[Batch]:
    every = profile in ("full", "nightly")
    rounds = 4 if profile == "nightly" else 1
    for definition in OPSET.values():
        if definition.graphs is not None:
            continue  # what goes into graphs is another topic
        for number, row in enumerate(definition.rows):
            signatures = [s for s in definition.signatures if s.row is row]
            widest = max(signatures, key=lambda s: s.count or 0)
            chosen = picks(definition, number, widest, every)[:: 4 if profile == "ci" else 1]
            yield _batch(definition, signatures, chosen * rounds, seed)


def _batch(definition: OperationDef, signatures: Sequence[Signature], chosen: Sequence[Pick], seed: int) -> Batch:
    origin = Origin(definition.name, signatures[0].row.id, "lifetime", 0)

    def make(number: int) -> TestCase:
        words = f"{seed}/{origin.batch}/{number}"
        operand, way = chosen[number]
        call, name = _with_operand(definition, signatures, number, operand, way, words)
        way = "omitted" if call[name].omitted else "input" if way == "omitted" else way
        net, due, groups = placed(call, name, way, number, constants(call, 0))
        detail = f"{name} {WORDS[way]}; {describe(call)}"
        steps = [*prepared(), Step(Action.EXECUTE, 0, Returns(due, groups), inputs=tuple(net.values))]
        level = FeatureLevel(max(net.level, FL3 if _newer_pool(net) else net.level))
        made = TestCase(replace(origin, number=number, seed=words, detail=detail), (net.model(),), tuple(steps), level)
        return seal(made)

    return Batch(origin, tuple(range(len(chosen))), make)


def _newer_pool(net: Net) -> bool:
    return bool(net.pools) and net.pool_kind == "hardware_buffer"


def _with_operand(
    definition: OperationDef, signatures: Sequence[Signature], number: int, operand: OperandDef, way: str, words: str
) -> tuple[Call, str]:
    """A call that has the operand, with a value or without as the way demands, and the name that it has there.

    Where none is drawn with a value, or none without one, the other will do.
    """
    having = [s for s in signatures if s.count is None or operand in s.form.operands[: s.count]] or signatures
    other: tuple[Call, str] | None = None
    for attempt in range(TRIES):
        call = drawn(definition, having[(number + attempt) % len(having)], f"{words}/{attempt}")
        names = [n for n in call.inputs if call.signature.form.operand(n) is operand]
        given = [n for n in names if call[n].omitted == (way == "omitted")]
        if given:
            return call, given[number % len(given)]
        if names:
            other = call, names[0]
    if other is not None:
        return other
    raise ValueError(f"no draw of {definition.name} in which {operand.name} {WORDS[way]}")


def placed(
    call: Call, name: str, way: str, number: int, fixed: frozenset[str]
) -> tuple[Net, tuple[Expected, ...], tuple[int, ...]]:
    """The model in which one operand's value comes in this way, what is due, and the groups of rows.

    Args:
        call: the operation.
        name: of the operand.
        way: one of `WAYS`, or `omitted`.
        number: picks the kind of pool, and the operation in front.
        fixed: what is a constant besides.
    """
    net = Net(POOLS[number % len(POOLS)] if needed_level(call) >= FL3 else POOLS[number % 2])
    lifetimes = {n: COPY if n in fixed or not is_tensor(a.type) else INPUT for n, a in call.inputs.items()}
    groups = row_groups(call)
    due: list[Expected] = []
    sources: dict[str, int] = {}
    if way in ("copied", "pool", "input"):
        lifetimes[name] = {"copied": COPY, "pool": REFERENCE, "input": INPUT}[way]
    elif way != "omitted":
        kept = way == "output" and not groups
        front = _mover(call[name], needed_level(call), number)
        if front is None:
            lifetimes[name] = REFERENCE  # no operation gives such a type
        else:
            sources[name] = _through(net, front, OUTPUT if kept else TEMPORARY)
            due += expected_outputs(front[-1]) if kept else ()
    net.call(call, sources, lifetimes)
    return net, (*due, *expected_outputs(call)), groups


def _mover(argument: Argument, level: FeatureLevel, number: int) -> list[Call] | None:
    """A chain that keeps the value, of those that the level knows one in turn, else the oldest; None for none."""
    found = sorted(movers(argument), key=lambda chain: max(needed_level(call) for call in chain))
    known = [chain for chain in found if all(needed_level(call) <= level for call in chain)]
    return known[number % len(known)] if known else next(iter(found), None)


def _through(net: Net, chain: Sequence[Call], last: Life) -> int:
    """Adds a chain of calls of one tensor, and gives the operand of what it gives."""
    place: dict[str, int] = {}
    for number, call in enumerate(chain):
        lifetime = last if number == len(chain) - 1 else TEMPORARY
        first = next(iter(call.inputs))
        given = net.call(call, {first: place["output"]} if place else {}, {"output": lifetime})
        place = given
    return place["output"]


# --- whole models -----------------------------------------------------------------------------------------------------


def _chance(v: Vehicle) -> random.Random:
    return random.Random(v.words)


def _finished(net: Net, *due: Expected) -> TestCase:
    steps = [*prepared(), Step(Action.EXECUTE, 0, Returns(due), inputs=tuple(net.values))]
    level = FeatureLevel(max(net.level, FL3)) if _newer_pool(net) else net.level
    return case(steps, models=(net.model(),), level=level)


def _lifetimes(v: Vehicle) -> dict[str, Life]:
    call = v.call
    return {n: COPY if n in v.constant or not is_tensor(a.type) else INPUT for n, a in call.inputs.items()}


def _unused_inputs(v: Vehicle) -> TestCase:
    """Inputs that nothing reads, in front of and behind the one that is read."""
    chance, net = _chance(v), Net()
    spare = [Argument(F32, (3,), value=np.array([chance.random() for _ in range(3)], np.float32)),
             Argument(OperandType.TENSOR_INT32, (2, 2), value=np.arange(4, dtype=np.int32).reshape(2, 2)),
             scalar(OperandType.INT32, 7)]  # fmt: skip
    net.operand(chance.choice(spare), INPUT)
    net.call(v.call, {}, _lifetimes(v))
    net.operand(chance.choice(spare), INPUT)
    return _finished(net, *v.returns.outputs)


def _unused_constants(v: Vehicle) -> TestCase:
    """Constants of both kinds, and an operand without a value, that nothing reads."""
    net = Net("ashmem")
    spare = Argument(F32, (40,), value=np.arange(40, dtype=np.float32))
    net.operand(spare, COPY)
    net.call(v.call, {}, _lifetimes(v))
    net.operand(spare, REFERENCE)
    made = _finished(net, *v.returns.outputs)
    operand = Operand(F32, (2,), lifetime=Life.NO_VALUE)
    return replace(made, models=(with_operand(made.models[0], operand),))


def _unread_temporary(v: Vehicle) -> TestCase:
    """A temporary that is written and that nothing reads."""
    net = Net()
    net.call(v.call, {}, _lifetimes(v))
    net.call(_mover_of(v), {}, {"output": TEMPORARY})
    return _finished(net, *v.returns.outputs)


def _mover_of(v: Vehicle) -> Call:
    """RESHAPE, or another operation that keeps it, of the vehicle's first input."""
    front = _mover(next(iter(v.call.inputs.values())), v.level, 0)
    if front is None:
        raise ValueError("nothing keeps the vehicle's input")
    return front[0]


def _output_read(readers: int) -> Callable[[Vehicle], TestCase]:
    """An output that other operations read, once or many times."""

    def make(v: Vehicle) -> TestCase:
        net, name = Net(), next(iter(v.call.results))
        given = net.call(v.call, {}, _lifetimes(v))
        due = list(v.returns.outputs)
        for number in range(readers):
            chain = _mover(v.call.results[name], v.level, number)
            if chain is None:
                raise ValueError("nothing keeps the vehicle's output")
            net.call(chain[0], {next(iter(chain[0].inputs)): given[name]}, {"output": OUTPUT})
            due.append(replace(v.returns.outputs[0], name=f"copy{number}"))
        return _finished(net, *due)

    return make


def _all_constant(v: Vehicle) -> TestCase:
    """A model without inputs: everything is a constant."""
    net = Net("ashmem")
    chance = _chance(v)
    net.call(v.call, {}, {n: chance.choice((COPY, REFERENCE)) for n in v.call.inputs})
    return _finished(net, *v.returns.outputs)


def _all_inputs(v: Vehicle) -> TestCase:
    """A model without constant tensors: weights and all come with the request."""
    net = Net()
    net.call(v.call, {}, {n: INPUT if is_tensor(a.type) else COPY for n, a in v.call.inputs.items()})
    return _finished(net, *v.returns.outputs)


def _one_operand_twice(v: Vehicle) -> TestCase:
    """One operand as both inputs of an operation, of each lifetime."""
    chance = _chance(v)
    value = next(iter(v.call.inputs.values()))
    code = chance.choice((Op.ADD, Op.MUL))
    like = {"output": replace(value, scale=value.scale * 4, zero_point=value.zero_point)}
    call = call_by_hand(code, {"a": value, "b": value, "activation": scalar(OperandType.INT32, 0)}, like)
    if call is None:
        raise ValueError(f"{code.name} does not take the vehicle's input twice")
    net = Net("ashmem")
    lifetime = chance.choice((INPUT, COPY, REFERENCE))
    index = net.operand(value, lifetime)
    net.call(call, {"a": index, "b": index})
    return _finished(net, *expected_outputs(call))


def _large_constant(bytes_: int) -> Callable[[Vehicle], TestCase]:
    """ADD of a constant around 128 bytes, from where on a runtime refers to a constant's bytes, and a large one."""

    def make(v: Vehicle) -> TestCase:
        chance = _chance(v)
        rng = np.random.default_rng(chance.getrandbits(32))
        shape = (bytes_ // 4,)
        a, b = (Argument(F32, shape, value=rng.uniform(-2, 2, shape).astype(np.float32)) for _ in range(2))
        call = call_by_hand(Op.ADD, {"a": a, "b": b, "activation": scalar(OperandType.INT32, 0)})
        assert call is not None
        net = Net(chance.choice(POOLS))
        net.call(call, {}, {"b": chance.choice((COPY, REFERENCE))})
        return _finished(net, *expected_outputs(call))

    return make


def _shared_bytes(v: Vehicle) -> TestCase:
    """Two constants that are the same bytes of one pool."""
    rng = np.random.default_rng(_chance(v).getrandbits(32))
    a = Argument(F32, (2, 20), value=rng.uniform(-2, 2, (2, 20)).astype(np.float32))
    call = call_by_hand(Op.MUL, {"a": a, "b": a, "activation": scalar(OperandType.INT32, 0)})
    assert call is not None
    net = Net(_chance(v).choice(POOLS))
    first = net.operand(a, REFERENCE)
    net.graph.operands.append(net.graph.operands[first])
    net.call(call, {"a": first, "b": first + 1})
    return _finished(net, *expected_outputs(call))


def _input_and_output(v: Vehicle) -> TestCase:
    """No operand is an input of the model and an output at once: its lifetime is one of them."""
    main = v.model.main
    steps = [*prepared(2)]
    due = refuses("G13", "an input of the model is in the list of outputs, too")
    as_input = replace(main, output_indexes=(*main.output_indexes, main.input_indexes[0]))
    steps += [Step(Action.QUERY, 0, due), Step(Action.PREPARE, 0, due)]
    due = refuses("G13", "an output of the model is in the list of inputs, too")
    as_output = replace(main, input_indexes=(*main.input_indexes, main.output_indexes[0]))
    steps += [Step(Action.QUERY, 1, due), Step(Action.PREPARE, 1, due)]
    models: list[Model] = [replace(v.model, main=graph) for graph in (as_input, as_output)]
    return case(steps, models=(*models, v.model), level=v.level)


SCENARIOS = (
    Scenario(TOPIC, "unused.inputs", _unused_inputs, "inputs that nothing reads change nothing"),
    Scenario(TOPIC, "unused.constants", _unused_constants, "constants that nothing reads change nothing"),
    Scenario(TOPIC, "unread.temporary", _unread_temporary, "a temporary need not be read"),
    Scenario(TOPIC, "output.read", _output_read(1), "an output may be read by another operation"),
    Scenario(TOPIC, "output.read.often", _output_read(4), "an output may be read by several operations"),
    Scenario(TOPIC, "all.constant", _all_constant, "a model may have no inputs"),
    Scenario(TOPIC, "all.inputs", _all_inputs, "every tensor may be an input"),
    Scenario(TOPIC, "one.operand.twice", _one_operand_twice, "an operand may be read twice by one operation",
             among=(("ADD", "float32"), ("MUL", "quant8_asymm"), ("RESHAPE", "quant8_asymm"))),
    *(Scenario(TOPIC, f"constant.{size}", _large_constant(size), "constants of any size, copied or in a pool",
               among=(("ADD", "float32"),)) for size in (124, 128, 132, 200_000)),
    Scenario(TOPIC, "shared.bytes", _shared_bytes, "constants may share their bytes", among=(("ADD", "float32"),)),
    Scenario(TOPIC, "input.and.output", _input_and_output, "an operand is not input and output at once", "G13"),
)  # fmt: skip


def batches(profile: str, seed: int) -> Iterator[Batch]:
    """One batch a scenario, and one for each operation and row of types."""
    yield from behaviour.batches(SCENARIOS, profile, seed)
    yield from _operand_batches(profile, seed)
