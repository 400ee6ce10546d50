"""`nnhal.validate` against the rules of the interface: each one holds for a valid model, and refuses a broken one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from nnhal.errors import DriverError
from nnhal.memory import BytesMemory, HardwareBuffer, SharedMemory
from nnhal.model import (
    BufferToken,
    ChannelQuant,
    DataLocation,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    Operation,
    Subgraph,
    count_consumers,
)
from nnhal.operations import RuleKind, operations
from nnhal.types import (
    FL1,
    FL2,
    FL3,
    FL4,
    FL5,
    FL8,
    OPERAND_TYPES,
    ErrorStatus,
    FeatureLevel,
    OperandType,
    OperationType,
)
from nnhal.validate import (
    MODEL_RULES,
    validate_model,
    violations,
)
from nnhal.validation_operation import HOLDS
from tests.small_models import (
    F32,
    I32,
    LIFE,
    Q8,
    addition,
    branching,
    channels,
    closed,
    edit,
    grown,
    in_pool,
    labels,
    looping,
    main,
    one_operation,
    operation,
    subgraph_operand,
)

ADD = addition()
Q = addition(kind=Q8, scale=0.5)
TWO_ROWS = (ExtensionNameAndPrefix("com.example.a", 1), ExtensionNameAndPrefix("com.example.b_2", 0))
row = ExtensionNameAndPrefix
CIRCLE = replace(branching().referenced[0], operands=(*branching().referenced[0].operands, subgraph_operand(1)))
BACK = replace(branching().referenced[1], operands=(*branching().referenced[1].operands, subgraph_operand(0)))

VALID: list[tuple[str, Model, list[FeatureLevel]]] = [
    ("addition", ADD, list(FeatureLevel)),
    ("quantised", Q, list(FeatureLevel)),
    ("unknown size", addition((2, 0)), list(FeatureLevel)),
    ("unknown rank", addition(()), list(FeatureLevel)[2:]),
    ("constant in a pool", in_pool(ADD, SharedMemory.create(8)), list(FeatureLevel)),
    ("constant in a hardware buffer", in_pool(ADD, HardwareBuffer.allocate(8)), list(FeatureLevel)[2:]),
    ("extension table", replace(ADD, extension_name_to_prefix=TWO_ROWS), list(FeatureLevel)[2:]),
    ("unread extension operand", grown(ADD, Operand(0x10001, (3,), lifetime=LIFE.NO_VALUE)), list(FeatureLevel)[2:]),
    ("extension operation", operation(ADD, 0, type=0x20001, inputs=(), outputs=(3,)), list(FeatureLevel)[2:]),
    ("OEM operation", operation(ADD, 0, type=10000), list(FeatureLevel)[:4]),
    ("OEM operand", grown(ADD, Operand(10000, scale=-1.0, lifetime=LIFE.NO_VALUE)), list(FeatureLevel)[:4]),
    ("infinite scale", addition(kind=Q8, scale=math.inf), list(FeatureLevel)),
    ("relaxed", replace(ADD, relax_computation_float32_to_float16=True), list(FeatureLevel)),
    ("omitted mandatory operand", main(edit(ADD, 1, lifetime=LIFE.NO_VALUE), input_indexes=(0,)), list(FeatureLevel)),
    ("per channel", channels(), list(FeatureLevel)[2:]),
    ("IF", branching(), list(FeatureLevel)[3:]),
    ("WHILE", looping(), list(FeatureLevel)[3:]),
]


@pytest.mark.parametrize(("model", "levels"), [v[1:] for v in VALID], ids=[v[0] for v in VALID])
def test_valid_models_pass_at_exactly_these_levels(model: Model, levels: list[FeatureLevel]) -> None:
    assert [level for level in FeatureLevel if not violations(model, level)] == levels
    for level in levels:
        validate_model(model, level)


P = DataLocation
BROKEN: list[tuple[str, str, Model, FeatureLevel]] = [
    ("G1", "no operations", main(ADD, operations=()), FL8),
    ("G1", "no operands", replace(ADD, main=Subgraph((), (), (), ())), FL8),
    ("G1", "empty branch", replace(branching(), referenced=(Subgraph((), (), (), ()),) * 2), FL8),
    ("G2", "type -1", edit(ADD, 0, type=-1), FL8),
    ("G2", "type 16", edit(ADD, 0, type=16), FL4),
    ("G2", "float16 below 1.2", addition(kind=OperandType.TENSOR_FLOAT16), FL2),
    ("G2", "OEM in AIDL", grown(ADD, Operand(10000, lifetime=LIFE.NO_VALUE)), FL5),
    ("G2", "extension below 1.2", grown(ADD, Operand(0x10001, (3,), lifetime=LIFE.NO_VALUE)), FL2),
    ("G2", "extension with sign bit", grown(ADD, Operand(0x80000001, (3,), lifetime=LIFE.NO_VALUE)), FL5),
    ("G3", "scalar with dimensions", edit(ADD, 2, dimensions=(1,)), FL8),
    ("G3", "rank 0 below 1.2", addition(()), FL2),
    ("G3", "negative size", edit(ADD, 0, dimensions=(2, -3)), FL8),
    ("G3", "31 bits in AIDL", edit(ADD, 0, dimensions=(2, 2**31)), FL5),
    ("G3", "32 bits in HIDL", edit(ADD, 0, dimensions=(2, 2**32)), FL4),
    ("G4", "constant of unknown size", edit(ADD, 1, lifetime=LIFE.CONSTANT_COPY, dimensions=(2, 0)), FL8),
    ("G4", "constant of unknown rank", edit(ADD, 1, lifetime=LIFE.CONSTANT_COPY, dimensions=()), FL8),
    ("G5", "float with scale", edit(ADD, 0, scale=1.0), FL8),
    ("G5", "scalar with scale", edit(ADD, 2, scale=1.0), FL8),
    ("G5", "quantised without scale", edit(Q, 0, scale=0.0), FL8),
    ("G5", "negative scale", edit(Q, 0, scale=-0.5), FL8),
    ("G5", "no number", edit(Q, 0, scale=math.nan), FL8),
    ("G5", "no number on a float", edit(ADD, 0, scale=math.nan), FL8),
    ("G5", "0 as float32", edit(Q, 0, scale=1e-50), FL8),
    ("G5", "int32 below 0", addition(kind=I32, scale=-1.0), FL8),
    ("G5", "extension with scale", grown(ADD, Operand(0x10001, (3,), 1.0, lifetime=LIFE.NO_VALUE)), FL8),
    ("G6", "float with zero point", edit(ADD, 0, zero_point=1), FL8),
    ("G6", "uint8 -1", edit(Q, 0, zero_point=-1), FL8),
    ("G6", "uint8 256", edit(Q, 0, zero_point=256), FL8),
    ("G7", "float with channels", edit(ADD, 0, extra_params=ChannelQuant(0, (1.0, 1.0))), FL8),
    ("G7", "float with a blob", edit(ADD, 0, extra_params=b"x"), FL8),
    ("G7", "no channels", edit(channels(), 0, extra_params=None), FL8),
    ("G7", "channel dimension is the rank", edit(channels(), 0, extra_params=ChannelQuant(2, (1.0,) * 3)), FL8),
    ("G7", "negative channel dimension", edit(channels(), 0, extra_params=ChannelQuant(-1, (1.0,) * 3)), FL8),
    ("G7", "a scale too few", edit(channels(), 0, extra_params=ChannelQuant(1, (1.0,) * 2)), FL8),
    ("G7", "a scale of 0", edit(channels(), 0, extra_params=ChannelQuant(1, (1.0, 0.0, 1.0))), FL8),
    ("G7", "unknown channel size", edit(channels(), 0, dimensions=(2, 0)), FL8),
    ("G8", "lifetime 7", edit(ADD, 1, lifetime=7), FL8),
    ("G8", "tensor as subgraph", edit(ADD, 1, lifetime=LIFE.SUBGRAPH), FL8),
    ("G8", "subgraph as constant", edit(branching(), 1, lifetime=LIFE.CONSTANT_COPY), FL8),
    ("G9", "one byte past", edit(ADD, 2, location=P(0, 5, 4)), FL8),
    ("G9", "one byte short", edit(ADD, 2, location=P(0, 0, 3)), FL8),
    ("G9", "one byte long", edit(ADD, 2, location=P(0, 0, 5)), FL8),
    ("G9", "sum wraps", edit(ADD, 2, location=P(0, 2**32 - 4, 4)), FL8),
    ("G9", "negative offset", edit(ADD, 2, location=P(0, -4, 4)), FL8),
    ("G9", "copied, in pool 1", edit(ADD, 2, location=P(1, 0, 4)), FL8),
    ("G9", "pool that there is none of", in_pool(ADD), FL8),
    ("G9", "past the pool", in_pool(ADD, SharedMemory.create(7)), FL8),
    ("G10", "temporary in a pool", edit(ADD, 3, location=P(1, 0, 0)), FL8),
    ("G10", "input with an offset", edit(ADD, 0, location=P(0, 1, 0)), FL8),
    ("G10", "output with a length", edit(ADD, 4, location=P(0, 0, 1)), FL8),
    ("G10", "omitted with a length", edit(ADD, 1, lifetime=LIFE.NO_VALUE, location=P(0, 0, 1)), FL8),
    ("G10", "graph 2 of 2", edit(branching(), 1, location=P(0, 2, 0)), FL8),
    ("G10", "graph of no model", grown(ADD, Operand(OperandType.SUBGRAPH, lifetime=LIFE.SUBGRAPH)), FL8),
    ("G11", "padding", edit(ADD, 2, location=P(0, 0, 4, 1)), FL8),
    ("G11", "padding of a temporary", edit(ADD, 3, location=P(0, 0, 0, 1)), FL8),
    ("G12", "one consumer more", edit(ADD, 0, number_of_consumers=3), FL4),
    ("G12", "one consumer fewer", edit(ADD, 0, number_of_consumers=1), FL1),
    ("G13", "input twice", main(ADD, input_indexes=(0, 1, 1)), FL8),
    ("G13", "output out of range", main(ADD, output_indexes=(4, 5)), FL8),
    ("G13", "negative input", main(ADD, input_indexes=(0, 1, -1)), FL8),
    ("G13", "temporary as output", main(ADD, output_indexes=(4, 3)), FL8),
    ("G14", "input not listed", main(ADD, input_indexes=(0,)), FL8),
    ("G14", "output not listed", main(ADD, output_indexes=()), FL8),
    ("G15", "code 106", operation(ADD, 0, type=106), FL8),
    ("G15", "code 29 at 1.0", operation(ADD, 0, type=29), FL1),
    ("G15", "code -1", operation(ADD, 0, type=-1), FL8),
    ("G15", "OEM in AIDL", operation(ADD, 0, type=10000), FL5),
    ("G15", "extension below 1.2", operation(ADD, 0, type=0x20001), FL2),
    ("G16", "input 5 of 5", operation(ADD, 0, inputs=(0, 5, 2)), FL8),
    ("G16", "negative output", operation(ADD, 0, outputs=(-1,)), FL8),
    ("G17", "writes a constant", operation(ADD, 0, outputs=(2,)), FL8),
    ("G17", "writes an input", operation(ADD, 0, outputs=(1,)), FL8),
    ("G18", "order", main(ADD, operations=ADD.main.operations[::-1]), FL8),
    ("G18", "reads its own result", operation(ADD, 0, inputs=(0, 3, 2)), FL8),
    ("G19", "written twice", main(ADD, operations=(*ADD.main.operations, ADD.main.operations[1])), FL8),
    ("G20", "unread temporary", grown(ADD, Operand(F32, (2,))), FL8),
    ("G20", "output", main(ADD, operations=ADD.main.operations[:1]), FL8),
    ("G21", "empty", in_pool(ADD, BytesMemory(0)), FL8),
    ("G21", "closed", replace(ADD, pools=(closed(),)), FL8),
    ("G21", "hardware buffer below 1.2", replace(ADD, pools=(HardwareBuffer.allocate(8),)), FL2),
    ("G21", "no memory", replace(ADD, pools=cast(Any, (BufferToken(1),))), FL8),
    ("G22", "name twice", replace(ADD, extension_name_to_prefix=(row("a.b", 1), row("a.b", 2))), FL8),
    ("G22", "prefix twice", replace(ADD, extension_name_to_prefix=(row("a.b", 1), row("a.c", 1))), FL8),
    ("G22", "no dot", replace(ADD, extension_name_to_prefix=(row("ab", 1),)), FL8),
    ("G22", "capital", replace(ADD, extension_name_to_prefix=(row("a.B", 1),)), FL8),
    ("G22", "16 bits in AIDL", replace(ADD, extension_name_to_prefix=(row("a.b", 0x8000),)), FL5),
    ("G22", "17 bits in HIDL", replace(ADD, extension_name_to_prefix=(row("a.b", 0x10000),)), FL4),
    ("G22", "table below 1.2", replace(ADD, extension_name_to_prefix=(row("a.b", 1),)), FL2),
    ("G23", "graphs below 1.3", replace(ADD, referenced=branching().referenced), FL3),
    ("G24", "two graphs in a circle", replace(branching(), referenced=(CIRCLE, BACK)), FL8),
    ("G0", "no model", None, FL8),  # type: ignore[list-item]
    ("G0", "text as a number", edit(Q, 0, scale="1"), FL8),
    ("G0", "a number as dimensions", edit(ADD, 0, dimensions=5), FL8),
    ("G0", "nothing in dimensions", edit(ADD, 0, dimensions=(None, 2)), FL8),
    ("G0", "no graph", replace(ADD, main=cast(Any, None)), FL8),
    ("G0", "fraction as an index", main(ADD, input_indexes=(0, 1.5)), FL8),
    ("G0", "too large a scale", edit(addition(kind=Q8, scale=0.5), 0, scale=10**400), FL8),
]  # fmt: skip


@pytest.mark.parametrize(("label", "name", "model", "level"), BROKEN, ids=[f"{b[0]}-{b[1]}" for b in BROKEN])
def test_broken_models_are_refused_by_their_rule(label: str, name: str, model: Model, level: FeatureLevel) -> None:
    if name == "too large a scale":
        model = operation(model, 0, type=int(OperationType.MUL))  # the rule on scales computes with it
    assert label in labels(model, level)
    with pytest.raises(DriverError) as caught:
        validate_model(model, level)
    assert caught.value.status == ErrorStatus.INVALID_ARGUMENT
    assert caught.value.message == str(violations(model, level)[0])


def test_every_rule_on_models_is_tested() -> None:
    assert {label for label, *_ in BROKEN} == set(MODEL_RULES)


def test_a_violation_says_where_it_is() -> None:
    found = violations(edit(ADD, 3, scale=1.0), FL8)
    assert [(v.label, v.operand, v.operation, v.graph) for v in found] == [("G5", 3, None, None)]
    assert str(found[0]) == "G5 operand 3 (TENSOR_FLOAT32) has scale 1.0, not 0"
    found = violations(operation(ADD, 1, inputs=(0, 3)), FL8)
    assert [(v.label, v.operation) for v in found] == [("ADD.SIGNATURE", 1)]
    inner = replace(branching().referenced[1], operations=(Operation(106, (0,), (1,)),))
    found = violations(replace(branching(), referenced=(branching().referenced[0], inner)), FL8)
    assert [(v.label, v.operation, v.graph) for v in found] == [("G15", 0, 1)]


@pytest.mark.parametrize("kind", [t for t in OperandType if t < OperandType.SUBGRAPH], ids=lambda t: t.name)
def test_zero_points_at_both_ends_of_each_type(kind: OperandType) -> None:
    ends = {"TENSOR_QUANT8_ASYMM": (0, 255), "TENSOR_QUANT16_ASYMM": (0, 65535)}
    ends["TENSOR_QUANT8_ASYMM_SIGNED"] = (-128, 127)
    low, high = ends.get(kind.name, (0, 0))
    scaled = kind.name in ends or kind.name in ("TENSOR_QUANT8_SYMM", "TENSOR_QUANT16_SYMM")
    per_channel = kind == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    operand = Operand(kind, (2,) if kind.name.startswith("TENSOR") else (), 1.0 if scaled else 0.0)
    operand = replace(operand, extra_params=ChannelQuant(0, (1.0, 1.0)) if per_channel else None)
    for zero, good in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
        bad = labels(grown(ADD, replace(operand, zero_point=zero, lifetime=LIFE.NO_VALUE)))
        assert bad == ([] if good else ["G6"])


def test_types_are_known_from_their_level_on() -> None:
    first = dict.fromkeys(range(6), FL1) | dict.fromkeys(range(6, 14), FL3) | {14: FL4}
    for code, since in first.items():
        known = OPERAND_TYPES[OperandType(code)]
        extra = ChannelQuant(0, (1.0,)) if code == 11 else None
        operand = Operand(code, (1,) if known.tensor else (), 1.0 if known.scaled else 0.0, extra_params=extra)
        model = grown(ADD, replace(operand, lifetime=LIFE.NO_VALUE))
        for level in FeatureLevel:
            assert bool(violations(model, level)) == (level < since), (code, level)


# --- single operations ------------------------------------------------------------------------------------------------


INT = Operand(OperandType.INT32)


def test_ranks_that_are_known_are_checked_and_unknown_ones_pass() -> None:
    def model(first: tuple[int, ...], second: tuple[int, ...]) -> Model:
        kinds = [Operand(F32, first), Operand(F32, second), INT]
        return one_operation(OperationType.ADD, kinds, [Operand(F32)])

    assert labels(model((1, 2, 3, 4), (0, 0, 0, 0))) == []
    assert labels(model((), ())) == []
    assert labels(model((1, 1, 1, 1, 1), (2,)))[:1] == ["ADD.RANK_A"]
    assert labels(model((2,), (1, 1, 1, 1, 1)))[:1] == ["ADD.RANK_B"]


def test_the_product_of_scales_is_compared_in_float32() -> None:
    def model(a: float, b: float, out: float) -> Model:
        kinds = [Operand(Q8, (2,), a), Operand(Q8, (2,), b), INT]
        return one_operation(OperationType.MUL, kinds, [Operand(Q8, (2,), out)])

    assert labels(model(0.5, 0.5, 0.25)) == ["MUL.OUTPUT_SCALE"]
    assert labels(model(0.5, 0.5, 0.2500001)) == []
    # float32(0.1) * float32(0.1) is 0.010000000707805157 in float32; the next float32 above is allowed.
    assert labels(model(0.1, 0.1, 0.010000000707805157)) != []
    assert labels(model(0.1, 0.1, 0.010000001639127731)) == []


def test_every_kind_of_rule_is_understood() -> None:
    assert set(HOLDS) == set(RuleKind)


def test_an_operation_that_is_not_described_is_left_alone() -> None:
    undescribed = set(range(106)) - set(operations()) - {96, 97}
    for code in undescribed:
        assert labels(one_operation(OperationType(code), [INT], [INT])) == []


# --- control flow -----------------------------------------------------------------------------------------------------


def graph(model: Model, number: int, change: Callable[[Subgraph], Subgraph]) -> Model:
    graphs = list(model.referenced)
    graphs[number] = count_consumers(change(graphs[number]))
    return replace(model, referenced=tuple(graphs))


def one_more_input(inner: Subgraph) -> Subgraph:
    operands = (*inner.operands, Operand(OperandType.INT32, lifetime=LIFE.SUBGRAPH_INPUT))
    return replace(inner, operands=operands, input_indexes=(*inner.input_indexes, len(operands) - 1))


def one_more_output(inner: Subgraph) -> Subgraph:
    result = replace(inner.operands[inner.output_indexes[0]], lifetime=LIFE.SUBGRAPH_OUTPUT)
    step = replace(inner.operations[0], outputs=(len(inner.operands),))
    return Subgraph(
        (*inner.operands, result),
        (*inner.operations, step),
        inner.input_indexes,
        (*inner.output_indexes, len(inner.operands)),
    )


def other_operand(index: int, **changes: Any) -> Callable[[Subgraph], Subgraph]:
    def change(inner: Subgraph) -> Subgraph:
        operands = list(inner.operands)
        operands[index] = replace(operands[index], **changes)
        return replace(inner, operands=tuple(operands))

    return change


IF, WHILE = branching(), looping()
CONTROL: list[tuple[str, str, Model]] = [
    ("IF.CONDITION", "shape [2]", edit(IF, 0, dimensions=(2,))),
    ("IF.CONDITION", "INT32", edit(IF, 0, type=OperandType.TENSOR_INT32)),
    ("IF.CONDITION", "unknown shape", edit(IF, 0, dimensions=())),
    ("IF.BRANCH", "one more input", graph(IF, 0, one_more_input)),
    ("IF.BRANCH", "one more output", graph(IF, 1, one_more_output)),
    ("IF.BRANCH", "another shape", graph(IF, 1, other_operand(1, dimensions=(3,)))),
    ("IF.BRANCH", "another rank", graph(IF, 1, other_operand(0, dimensions=(2, 1)))),
    ("IF.BRANCH", "a branch that is no graph", operation(IF, 0, inputs=(0, 1, 3, 3))),
    ("IF.SIGNATURE", "no else", operation(IF, 0, inputs=(0, 1))),
    ("WHILE.CONDITION", "two outputs", graph(WHILE, 0, one_more_output)),
    ("WHILE.CONDITION", "not boolean", graph(WHILE, 0, other_operand(2, type=F32))),
    ("WHILE.CONDITION", "one more input", graph(WHILE, 0, one_more_input)),
    ("WHILE.BODY", "one more input", graph(WHILE, 1, one_more_input)),
    ("WHILE.BODY", "another type", graph(WHILE, 1, other_operand(1, type=OperandType.TENSOR_INT32))),
    ("WHILE.SIGNATURE", "no outputs", operation(WHILE, 0, outputs=())),
    ("WHILE.SIZES", "unknown size", edit(WHILE, 2, dimensions=(0,))),
    ("WHILE.SIZES", "unknown size inside", graph(WHILE, 1, other_operand(1, dimensions=(0,)))),
]


@pytest.mark.parametrize(("label", "model"), [(c[0], c[2]) for c in CONTROL], ids=[f"{c[0]}-{c[1]}" for c in CONTROL])
def test_graphs_that_do_not_fit_their_operation_are_refused(label: str, model: Model) -> None:
    assert label in labels(model)


def test_fewer_body_inputs_than_outputs() -> None:
    body = WHILE.referenced[1]
    outer = edit(WHILE, 4)
    two = graph(graph(WHILE, 1, one_more_output), 1, one_more_output)
    assert labels(graph(WHILE, 1, one_more_output)) == []  # a state that only the loop sees
    assert "WHILE.BODY" in labels(two)
    assert body == outer.referenced[1]
