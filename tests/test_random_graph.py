"""Random graphs: valid, connected, of what their mix says, the same for a seed, and all operations take part."""

from __future__ import annotations

import numpy as np
import pytest

from harness.expectations import Returns
from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.types import FL8, FeatureLevel, OperandLifeTime, OperandType, OperationType
from nnhal.validate import validate_model, violations
from opset import OPSET
from opset.drawing import UnsatisfiableError
from opset.graph import evaluate
from opset.source import BytesSource, SeededSource, SwiftSource
from random_graph.cases import MASKED, batches, drawn_case, graph_test_case, named
from random_graph.generator import Drawn, draw_model
from random_graph.mixes import BRIDGES, MIXES, PURE, Mix, mix
from tests import graph_reach

QUANTIZED_NAMES = tuple(name for name in PURE if name.startswith("quant"))
NO_DATA = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE, OperandLifeTime.NO_VALUE)


def drawn(name: str, count: int) -> list[Drawn]:
    found = []
    for seed in range(count * 3):
        try:
            found.append(draw_model(SwiftSource(f"test/{name}/{seed}"), mix(name)))
        except UnsatisfiableError:
            continue
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} of {count} graphs of {name} in {count * 3} draws")


def pieces(model: Model) -> int:
    """Number of parts of a graph that no data flow between."""
    parent: dict[tuple[str, int], tuple[str, int]] = {}

    def find(node: tuple[str, int]) -> tuple[str, int]:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for number, operation in enumerate(model.main.operations):
        for index in (*operation.inputs, *operation.outputs):
            if model.main.operands[index].lifetime not in (*NO_DATA, OperandLifeTime.SUBGRAPH):
                parent[find(("operand", index))] = find(("operation", number))
    return len({find(("operation", number)) for number in range(len(model.main.operations))})


@pytest.mark.parametrize("name", [name for name in MIXES if name != "huge"])
def test_graphs_are_valid_and_connected(name: str) -> None:
    for graph in drawn(name, 4 if name in ("large", "wide") else 15):
        assert validate_model(graph.model, mix(name).level) is None
        assert pieces(graph.model) == 1


def test_a_graph_of_600_operations() -> None:
    [graph] = drawn("huge", 1)
    assert 600 <= len(graph.model.main.operations) <= 610
    assert validate_model(graph.model, mix("huge").level) is None
    assert pieces(graph.model) == 1


@pytest.mark.parametrize("name", list(PURE))
def test_a_pure_graph_has_tensors_of_one_type(name: str) -> None:
    """But for indexes, such as ARGMAX gives, and the hits of HASHTABLE_LOOKUP."""
    for graph in drawn(name, 15):
        operands = graph.model.main.operands
        for operation in graph.model.main.operations:
            assert operation.type not in BRIDGES or name not in QUANTIZED_NAMES or operation.type == OperationType.CAST
            kinds = {OperandType(operands[i].type) for i in operation.outputs}
            if operation.type == OperationType.HASHTABLE_LOOKUP:
                kinds.discard(OperandType.TENSOR_QUANT8_ASYMM)
            assert {k for k in kinds if k.name.startswith("TENSOR_")} <= {PURE[name], OperandType.TENSOR_INT32}


@pytest.mark.parametrize("level", list(FeatureLevel))
def test_a_level_has_only_what_it_knows(level: FeatureLevel) -> None:
    for graph in drawn(f"level{level.value}", 5):
        assert all(OPSET[o.type].signatures[0].since <= level for o in graph.model.main.operations)


def test_a_seed_gives_one_graph() -> None:
    first, second = (graph_test_case("small", 3) for _ in range(2))
    assert first.id == second.id
    assert first.models == second.models
    assert first.id != graph_test_case("small", 4).id
    assert first.id.startswith("GRAPH-small-sync-drawn-3-")


def test_what_is_known_before_values_are_computed_holds() -> None:
    checked = 0
    for graph in drawn("small", 60):
        for call in graph.calls:
            for argument in (*call.inputs.values(), *call.results.values()):
                told = argument.__dict__.get("reach")
                value = argument.value
                if told is None or value is None or not value.size or argument.type == OperandType.TENSOR_BOOL8:
                    continue
                real = value.astype(np.float64)
                if argument.scale and argument.channel is None:
                    real = (real - argument.zero_point) * argument.scale
                slack = 1e-3 * max(abs(told[0]), abs(told[1]), 1)  # float16 rounds at the ends
                assert told[0] - slack <= real.min(), (call.definition.name, told)
                assert real.max() <= told[1] + slack, (call.definition.name, told)
                checked += 1
    assert checked > 500


def test_values_of_a_drawn_graph_are_those_of_its_model() -> None:
    for graph in drawn("small", 20):
        if any(c.definition.judging.sampling is not None for c in graph.calls):
            continue
        outputs = evaluate(graph.model, graph.inputs)
        operands = graph.model.main
        places = [(o.outputs, c) for o, c in zip(operands.operations, graph.calls, strict=True)]
        computed = {i: a.value for outs, c in places for i, a in zip(outs, c.results.values(), strict=True)}
        for index, result in zip(operands.output_indexes, outputs, strict=True):
            np.testing.assert_array_equal(result.stored, computed[index])


def test_bytes_make_graphs_too() -> None:
    rng, made = np.random.default_rng(5), 0
    for _ in range(10):
        try:
            graph = draw_model(BytesSource(rng.bytes(4000)), mix("small"))
        except UnsatisfiableError:
            continue
        assert validate_model(graph.model, graph.level) is None
        made += 1
    assert made >= 5


@pytest.mark.parametrize("name", ["small", "float16", "quant8_asymm"])
def test_outputs_say_something(name: str) -> None:
    """Few elements are open, saturated or zero, or a graph could hide a fault."""
    qualities = [drawn_case(name, seed)[1] for seed in range(40)]
    assert max(q.masked for q in qualities) <= MASKED
    assert np.mean([q.masked for q in qualities]) < 0.02
    assert np.mean([q.saturated for q in qualities]) < 0.15
    assert np.mean([q.zero for q in qualities]) < 0.3


@pytest.mark.thorough
def test_every_operation_and_type_takes_part() -> None:
    reach = graph_reach.count()
    rows = graph_reach.rows()
    assert {name for name, _ in rows} == {OperationType(code).name for code in OPSET}
    missing = {
        "drawn": sorted(rows - set(reach.drawn)),
        "fed": sorted(r for r in rows if not reach.fed[r] and not graph_reach.takes_nothing(r)),
        "feeding": sorted(r for r in rows if not reach.feeding[r] and r[0] not in graph_reach.GIVES_NOTHING),
    }
    assert missing == {"drawn": [], "fed": [], "feeding": []}, "python -m tests.graph_reach prints the table"


def test_batches_have_the_numbers_of_the_profile() -> None:
    counts: dict[str, int] = {}
    for batch in batches("quick", 0):
        counts[batch.origin.signature] = counts.get(batch.origin.signature, 0) + len(batch.numbers)
    assert counts == {name: chosen.count["quick"] for name, chosen in MIXES.items() if chosen.count["quick"]}
    assert [batch.numbers[0] for batch in batches("quick", 2, ("large",))] == [2_000_000, 2_000_025]


def test_a_graph_is_found_by_its_name_whatever_the_profile_has() -> None:
    planned = list(batches("ci", 0))
    [more] = named(["GRAPH-large-sync-drawn-4711-abc123"], planned)[len(planned) :]
    assert (more.id, more.numbers) == ("GRAPH-large-sync-drawn", (4711,))
    [more] = named(["GRAPH-large-sync-drawn-471100"], planned)[len(planned) :]  # a number that looks like a digest
    assert (more.id, more.numbers) == ("GRAPH-large-sync-drawn", (471100,))
    assert named(["GRAPH-small-sync-drawn-3", "ADD-*", "x.case"], planned) == planned


def test_a_mix_of_named_operations_has_nothing_else() -> None:
    name = "small:ADD+RELU+CONV_2D"
    codes = {OperationType.ADD, OperationType.RELU, OperationType.CONV_2D}
    seen = set()
    for seed in range(30):
        case = graph_test_case(name, seed)
        assert case.origin.operation == "GRAPH"
        found = {operation.type for operation in case.models[0].main.operations}
        assert found <= codes
        seen |= found
        assert len(case.models[0].main.operations) == 5
    assert seen == codes
    [batch] = named([f"GRAPH-{name}-sync-drawn-7-abc123"], [])
    assert batch.make(7).id == graph_test_case(name, 7).id


def test_what_is_no_mix_of_operations_is_named() -> None:
    with pytest.raises(UsageError, match="there is no operation 'SUM'; write names like small:ADD"):
        mix("small:ADD+SUM")
    with pytest.raises(UsageError, match="mix bool8 has none of these operations"):
        mix("bool8:CONV_2D")
    with pytest.raises(UsageError, match="--mix=tiny:ADD is unknown"):
        mix("tiny:ADD")


def test_an_unknown_mix_is_named() -> None:
    with pytest.raises(UsageError, match="--mix=smal is unknown; there are single, small"):
        mix("smal")


def test_graphs_hide_sizes_and_are_relaxed_at_times() -> None:
    graphs = drawn("small", 150)
    open_sizes = [g for g in graphs if any(0 in o.dimensions for o in g.model.main.operands if o.type >= 3)]
    assert len(open_sizes) > 3
    assert sum(g.model.relax_computation_float32_to_float16 for g in graphs) > 3
    assert any(g.model.referenced for g in graphs)


def test_a_condition_keeps_its_size_and_branches_their_scales() -> None:
    """An IF takes no condition of an open size; what both branches give has one scale, whatever it is a product of."""
    names = "IF", "REDUCE_ANY", "LOGICAL_NOT", "LESS", "LOGICAL_OR"
    codes = frozenset(OperationType[name] for name in names)
    mix = Mix("branches", (3, 5), operations=codes, closed=True, unknown=100, largest=64)
    hidden = 0
    for seed in range(400):
        drawn = draw_model(SeededSource(seed), mix)
        assert not violations(drawn.model, FL8), f"seed {seed}: {violations(drawn.model, FL8)[0]}"
        hidden += any(0 in operand.dimensions for operand in drawn.model.main.operands)
    assert hidden > 100


def test_a_case_expects_every_output() -> None:
    case = graph_test_case("small", 11)
    returns = case.steps[-1].expect
    assert isinstance(returns, Returns)
    assert len(returns.outputs) == len(case.models[0].main.output_indexes)
    assert [due.shape for due in returns.outputs] == [due.value.shape for due in returns.outputs]
