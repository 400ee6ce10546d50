"""Equal graphs: each rewrite on random graphs and on models made by hand, held against the specification."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from functools import cache

import numpy as np
import pytest

from conformance.nets import Chain
from nnhal.errors import UsageError
from nnhal.model import constant_value
from nnhal.types import FL1, FL2, FL3, FL8, FeatureLevel, OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from nnhal.validate import violations
from opset import OPSET
from opset.call import Argument, Call, int32_tensor, scalar
from opset.definition import B8, F16, F32, I32, Q8, Q8S
from opset.drawing import Scope, UnsatisfiableError
from opset.drawn import draw_call
from opset.evaluate import Result
from opset.graph import evaluate, model_of
from opset.source import SeededSource
from opset.validation import violations as call_violations
from random_graph.cases import draw
from random_graph.mixes import mix
from random_graph.rewrites import REWRITES, Graph, Link, NoRewriteError, level_of, named, rewrite, rewrite_at_random
from random_graph.rewrites_graph import close_values, same_values
from random_graph.rewrites_identities import COMPUTES, MOVES, _calls

GRAPHS = 40
STORED = {F32: "f4", F16: "f2", I32: "i4", B8: "u1", Q8: "u1", Q8S: "i1"}
NONE = scalar(OperandType.INT32, 0)
LIFE = OperandLifeTime


@cache
def drawn(name: str = "small", count: int = GRAPHS) -> tuple[Graph, ...]:
    found = []
    for attempt, seed in itertools.product(range(10), range(count)):
        try:
            graph = draw(mix(name), seed, attempt)
            found.append(Graph.of(graph.model, graph.inputs, level_of(graph.model)))
        except (UnsatisfiableError, ValueError):
            continue  # drawn again where cases are made of graphs
        if len(found) == count:
            break
    return tuple(found)


@cache
def results(graph: Graph) -> list[Result]:
    def keeps_the_rules(call: Call) -> None:
        assert call_violations(call) == []

    return evaluate(graph.model, graph.inputs, check=keeps_the_rules)


def held_against(graph: Graph, other: Graph, *, exact: bool) -> None:
    """Each output is that part of the one that its link names."""
    operands = graph.model.main.operands
    indexes = graph.model.main.output_indexes
    undetermined = any(
        OPSET[o.type].judging.sampling or OPSET[o.type].judging.grouped_by for o in graph.model.main.operations
    )
    for link, result in zip(other.links, results(other), strict=True):
        due = results(graph)[link.position].stored
        if link.first is not None:
            due = due[link.first : link.first + result.stored.shape[0]]
        if undetermined:
            assert result.stored.shape == due.shape
        elif exact:
            assert same_values(result.stored, due)
        else:
            assert close_values(result.stored, due, OperandType(operands[indexes[link.position]].type))


def codes(graph: Graph) -> Counter[int]:
    return Counter(operation.type for operation in graph.model.main.operations)


def real(*shape: int, seed: int = 0) -> Argument:
    rng = np.random.default_rng(seed)
    return Argument(F32, shape, value=rng.uniform(-4, 4, shape).astype(np.float32))


def graph_of(chain: Chain, level: FeatureLevel = FL8) -> Graph:
    return Graph.of(chain.net.model(), chain.net.values, level)


def done(graph: Graph, name: str, seed: int = 0) -> Graph:
    found = rewrite(graph, REWRITES[name], random.Random(seed))
    assert violations(found.model, graph.level) == []
    held_against(graph, found, exact=REWRITES[name].exact)
    return found


def ways(graph: Graph, name: str, count: int = 40) -> list[Graph]:
    return [done(graph, name, seed) for seed in range(count)]


# --- on random graphs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REWRITES)
def test_a_rewritten_graph_means_the_same(name: str) -> None:
    found = 0
    for number, graph in enumerate(drawn()):
        try:
            other = done(graph, name, number)
        except NoRewriteError:
            continue
        found += 1
        assert other.model != graph.model
    rare = name in ("constants_joined", "constants_folded")  # a drawn graph hardly ever has operations on constants
    assert found >= (0 if rare else 2)


@pytest.mark.parametrize("name", ["level1", "level2", "quant8_asymm_signed", "quant16_symm", "bool8"])
def test_rewrites_keep_the_level_and_the_types(name: str) -> None:
    for number, graph in enumerate(drawn(name, 12)):
        other, how = rewrite_at_random(graph.model, graph.inputs, number, graph.level, 3)
        assert 1 <= len(how) <= 3
        assert violations(other.model, graph.level) == []
        held_against(graph, other, exact=all(r.exact for r in how))


def test_a_long_chain_of_rewrites_means_the_same() -> None:
    for number, graph in enumerate(drawn()[:15]):
        other, how = rewrite_at_random(graph.model, graph.inputs, number, graph.level, len(REWRITES))
        assert len(how) > 5
        held_against(graph, other, exact=False)


def test_a_seed_decides_everything() -> None:
    graph = drawn()[0]
    first, second, third = (rewrite_at_random(graph.model, graph.inputs, seed, FL8, 2) for seed in (1, 1, 2))
    assert (first[0].model, first[0].links, first[1]) == (second[0].model, second[0].links, second[1])
    assert first[0].model != third[0].model


def test_the_lowest_level() -> None:
    assert level_of(two_weights().model) == FL1
    chain = Chain()
    chain.end(Op.ABS, input=chain.input(real(2, 2)))
    assert level_of(graph_of(chain).model) == FL3


# --- order ------------------------------------------------------------------------------------------------------------


def two_weights(level: FeatureLevel = FL8) -> Graph:
    """(x + c) * d, and RELU of x."""
    chain = Chain()
    x = chain.input(real(2, 3))
    [y] = chain.apply(Op.ADD, a=x, b=real(2, 3, seed=1), activation=NONE)
    chain.end(Op.MUL, a=y, b=real(2, 3, seed=2), activation=NONE)
    chain.end(Op.RELU, input=x)
    return graph_of(chain, level)


def test_operations_in_another_order() -> None:
    orders = {tuple(o.type for o in g.model.main.operations) for g in ways(two_weights(), "reordered")}
    assert orders == {(Op.ADD, Op.RELU, Op.MUL), (Op.RELU, Op.ADD, Op.MUL)}  # all but the one that is there


def test_nothing_to_reorder() -> None:
    chain = Chain()
    [y] = chain.apply(Op.RELU, input=chain.input(real(2, 3)))
    chain.end(Op.RELU, input=y)
    for name in ("reordered", "swapped", "duplicated", "constants_joined", "made_constant", "made_input"):
        with pytest.raises(NoRewriteError, match="no place"):
            done(graph_of(chain), name)


def test_operands_in_another_order() -> None:
    graph = two_weights()
    for other in ways(graph, "renumbered", 5):
        before, after = graph.model.main, other.model.main
        assert before.operands != after.operands
        assert Counter(o.type for o in before.operands) == Counter(o.type for o in after.operands)
        assert [o.type for o in before.operations] == [o.type for o in after.operations]


@pytest.mark.parametrize("code", [Op.IF, Op.WHILE])
def test_operands_of_graphs_that_are_run_in_another_order(code: Op) -> None:
    definition = OPSET[code]
    model, values = model_of(draw_call(definition, definition.signatures[0], Scope(SeededSource(1))))
    graph = Graph.of(model, values)
    for other in ways(graph, "renumbered", 5):
        assert other.model.referenced != model.referenced
    for name in ("made_constant", "moved_through"):
        ways(graph, name, 5)


def test_inputs_and_outputs_in_another_order() -> None:
    chain = Chain()
    a, b = chain.input(real(2, 3)), chain.input(real(2, 3, seed=1))
    chain.end(Op.SUB, a=a, b=b, activation=NONE)
    chain.end(Op.RELU, input=b)
    found = ways(graph_of(chain), "ends_reordered")
    assert {g.links for g in found} == {(Link(0), Link(1)), (Link(1), Link(0))}
    assert any(np.array_equal(g.inputs[0], b.argument.value) for g in found if g.inputs[0] is not None)


def test_operands_that_change_places() -> None:
    graph = two_weights()
    found = ways(graph, "swapped")
    changed = [
        sum(a != b for a, b in zip(graph.model.main.operations, g.model.main.operations, strict=True)) for g in found
    ]
    assert set(changed) == {1, 2}  # one of them, or both; never RELU
    for other in found:
        for before, after in zip(graph.model.main.operations, other.model.main.operations, strict=True):
            assert sorted(before.inputs) == sorted(after.inputs)


def test_an_operation_done_twice() -> None:
    chain = Chain()
    [y] = chain.apply(Op.RELU, input=chain.input(real(2, 3)))
    chain.end(Op.ADD, a=y, b=y, activation=NONE)
    chain.end(Op.TANH, input=y)
    for other in ways(graph_of(chain), "duplicated"):
        assert codes(other) == {Op.RELU: 2, Op.ADD: 1, Op.TANH: 1}
        read = [i for o in other.model.main.operations for i in o.inputs]
        made = [o.outputs[0] for o in other.model.main.operations if o.type == Op.RELU]
        assert sorted(read.count(i) for i in made) == [1, 2]


# --- constants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [F32, F16, Q8, Q8S], ids=lambda kind: kind.name)
def test_a_constant_in_two_parts(kind: OperandType) -> None:
    quantized = kind in (Q8, Q8S)
    value = np.arange(6).reshape(2, 3).astype(STORED[kind])
    x = Argument(kind, (2, 3), 0.5 if quantized else 0, 3 if quantized else 0, value=value)
    chain = Chain()
    chain.end(Op.ADD, a=chain.input(x), b=chain.constant(x), activation=NONE)
    graph = graph_of(chain)
    for other in ways(graph, "constant_split", 10):
        first, second = other.model.main.operations
        assert (first.type, second.type) == (Op.CONCATENATION, Op.ADD)
        operands = [other.model.main.operands[i] for i in first.inputs]
        parts = [constant_value(other.model, o) for o in operands[:2]]
        axis = int(constant_value(other.model, operands[2]))
        assert np.array_equal(np.concatenate(parts, axis), value)
        assert {(o.scale, o.zero_point) for o in operands[:2]} == {(x.scale, x.zero_point)}
        assert len(other.model.operand_values) <= 2 * len(graph.model.operand_values)  # the whole one is gone


def test_what_was_split_can_be_put_together_again() -> None:
    graph = two_weights(FL1)
    apart = done(graph, "constant_split")
    assert codes(done(apart, "constants_folded")) == codes(graph)
    joined = done(apart, "constants_joined")
    [concatenation] = [o for o in joined.model.main.operations if o.type == Op.CONCATENATION]
    assert len(concatenation.inputs) == 2  # one constant, and the axis
    assert done(joined, "constants_folded").known[0].shape == (2, 3)


def test_a_sum_of_constants_computed_beforehand() -> None:
    chain = Chain()
    fixed = chain.constant(real(3))
    [y] = chain.apply(Op.ADD, a=fixed, b=real(3, seed=1), activation=NONE)
    chain.end(Op.MUL, a=chain.input(real(2, 3)), b=y, activation=NONE)
    other = done(graph_of(chain), "constants_folded")
    assert codes(other) == {Op.MUL: 1}
    [weights] = [o for o in other.model.main.operands if o.lifetime == LIFE.CONSTANT_COPY and o.dimensions]
    due = real(3).value + real(3, seed=1).value  # type: ignore[operator]
    assert np.array_equal(constant_value(other.model, weights), due)


def test_constants_of_different_scales_stay_apart() -> None:
    parts = [Argument(Q8, (2, 2), scale, value=np.full((2, 2), 9, np.uint8)) for scale in (0.5, 0.25)]
    chain = Chain()
    fixed = {f"inputs{n}": chain.constant(part) for n, part in enumerate(parts)}
    chain.end(Op.CONCATENATION, parts[0], **fixed, axis=scalar(OperandType.INT32, 0))
    with pytest.raises(NoRewriteError):
        done(graph_of(chain), "constants_joined")


def test_constants_as_inputs_and_inputs_as_constants() -> None:
    graph = two_weights()
    more = done(graph, "made_input")
    assert len(more.inputs) == 2
    for other in ways(more, "made_constant"):
        assert len(other.inputs) == 1
        assert codes(other) == codes(graph)
    every = done(more, "made_input")
    with pytest.raises(NoRewriteError):
        done(every, "made_input")  # what is left are activations, which are scalars
    with pytest.raises(NoRewriteError):
        done(graph, "made_constant")  # a model keeps an input


def test_parameters_stay_constants() -> None:
    chain = Chain()
    chain.end(Op.TRANSPOSE, input=chain.input(real(2, 3)), perm=int32_tensor([1, 0]))
    for name in ("made_input", "constant_split"):
        with pytest.raises(NoRewriteError):
            done(graph_of(chain), name)


# --- identities -------------------------------------------------------------------------------------------------------


def one_operation(kind: OperandType) -> Graph:
    chain, quantized = Chain(), kind in (Q8, Q8S)
    value = np.array([[0, 1, 1], [1, 0, 1]]).astype(STORED[kind])
    x = chain.input(Argument(kind, (2, 3), 0.1 if quantized else 0, 1 if quantized else 0, value=value))
    chain.end(Op.LOGICAL_AND if kind == B8 else Op.MAXIMUM, a=x, b=x)
    return graph_of(chain)


@pytest.mark.parametrize(
    ("kind", "moves", "computes"),
    [
        (F32, 10, {Op.ADD, Op.MUL, Op.NEG, Op.MAXIMUM, Op.MINIMUM}),
        (F16, 10, {Op.ADD, Op.MUL, Op.NEG, Op.MAXIMUM, Op.MINIMUM, Op.CAST}),
        (I32, 6, {Op.ADD, Op.MUL, Op.NEG, Op.MAXIMUM, Op.MINIMUM}),
        (Q8, 10, {Op.ADD, Op.MUL, Op.MAXIMUM, Op.MINIMUM, Op.DEQUANTIZE, Op.QUANTIZE}),
        (Q8S, 10, {Op.ADD, Op.MUL, Op.MAXIMUM, Op.MINIMUM, Op.DEQUANTIZE, Op.QUANTIZE}),
        (B8, 2, set()),
    ],
    ids=lambda x: x.name if isinstance(x, OperandType) else "",
)
def test_every_way_to_leave_a_value_as_it_is(kind: OperandType, moves: int, computes: set[Op]) -> None:
    graph = one_operation(kind)
    index = graph.model.main.input_indexes[0]
    value = Argument(kind, (2, 3), graph.model.main.operands[index].scale, graph.model.main.operands[index].zero_point,
                     value=graph.known[index])  # fmt: skip
    found = [way for way, kinds in MOVES if kind in kinds and _calls(way(value, random.Random(0)), value, graph)]
    assert len(found) >= moves
    others = ways(graph, "moved_through", 60) + (ways(graph, "computed_through", 60) if computes else [])
    done_by = {code for other in others for code in codes(other)}
    assert computes <= done_by
    if kind in (F32, Q8):
        assert {Op.RESHAPE, Op.TRANSPOSE, Op.PAD, Op.SLICE, Op.TILE, Op.REVERSE, Op.CONCATENATION} <= done_by
    if kind == B8:
        assert {Op.LOGICAL_NOT, Op.CAST} <= done_by
    assert {kind for _, kinds in COMPUTES for kind in kinds} == {F32, F16, I32, Q8, Q8S}


@pytest.mark.parametrize(
    ("level", "known"),
    [(FL1, {Op.RESHAPE, Op.CONCATENATION}), (FL2, {Op.RESHAPE, Op.CONCATENATION, Op.TRANSPOSE, Op.PAD})],
)
def test_identities_that_a_level_does_not_know_are_not_put_in(level: FeatureLevel, known: set[Op]) -> None:
    chain = Chain()
    chain.end(Op.RELU, input=chain.input(real(2, 3)))
    others = ways(graph_of(chain, level), "moved_through", 60)
    assert {code for other in others for code in codes(other)} - {Op.RELU} == known


def test_an_identity_stands_in_front_of_one_reader_of_all_or_of_the_output() -> None:
    chain = Chain()
    [y] = chain.apply(Op.RELU, input=chain.input(real(2, 3)))
    chain.end(Op.TANH, input=y)
    chain.end(Op.LOGISTIC, input=y)
    graph = graph_of(chain)
    places = Counter()
    for other in ways(graph, "moved_through", 60):
        added = [o for o in other.model.main.operations if o.type not in codes(graph)]
        readers = {o.type for o in other.model.main.operations for i in o.inputs if i == added[-1].outputs[0]}
        at_the_end = added[-1].outputs[0] in other.model.main.output_indexes
        places["output" if at_the_end else tuple(sorted(readers))] += 1
    assert {"output", (Op.TANH,), (Op.LOGISTIC,), (Op.LOGISTIC, Op.TANH), (Op.RELU,)} <= set(places)


# --- batches ----------------------------------------------------------------------------------------------------------


def image_net(*, last: str = "mean") -> Graph:
    """A convolution of four images, a pool, a reshape, and what the test wants behind it."""
    chain = Chain()
    one, valid = scalar(OperandType.INT32, 1), scalar(OperandType.INT32, 2)
    x = chain.input(real(4, 3, 3, 2))
    bias = Argument(F32, (2,), value=np.array([0.5, -1], np.float32))
    [y] = chain.apply(Op.CONV_2D, input=x, filter=real(2, 1, 1, 2, seed=1), bias=bias, padding_scheme=valid,
                      stride_w=one, stride_h=one, activation=NONE)  # fmt: skip
    [y] = chain.apply(Op.RESHAPE, input=y, shape=int32_tensor([4, 18]))
    [y] = chain.apply(Op.ADD, a=y, b=real(4, 18, seed=2), activation=NONE)
    if last == "mean":
        chain.end(Op.MEAN, input=y, axes=int32_tensor([0]), keep_dims=scalar(OperandType.INT32, 0))
    else:
        chain.end(Op.SOFTMAX, input=y, beta=scalar(OperandType.FLOAT32, 1.0))
    return graph_of(chain)


def test_a_batch_in_two_parts() -> None:
    for other in ways(image_net(last="softmax"), "batch_divided", 10):
        assert codes(other) == {Op.CONV_2D: 2, Op.RESHAPE: 2, Op.ADD: 2, Op.SOFTMAX: 2}
        assert len(other.inputs) == 2
        cut = other.inputs[0].shape[0]  # type: ignore[union-attr]
        assert other.links == (Link(0, 0), Link(0, cut))


def test_parts_are_put_together_where_an_operation_needs_the_whole() -> None:
    for other in ways(image_net(), "batch_divided", 10):
        assert codes(other) == {Op.CONV_2D: 2, Op.RESHAPE: 2, Op.ADD: 2, Op.CONCATENATION: 1, Op.MEAN: 1}
        assert other.links == (Link(0),)


def test_rows_alone() -> None:
    with pytest.raises(NoRewriteError):
        done(image_net(), "rows_alone")  # the mean needs all of them
    for other in ways(image_net(last="softmax"), "rows_alone", 10):
        assert codes(other) == {Op.CONV_2D: 1, Op.RESHAPE: 1, Op.ADD: 1, Op.SOFTMAX: 1}
        [link] = other.links
        assert link.first is not None
        assert other.inputs[0].shape[0] < 4  # type: ignore[union-attr]


def test_rows_of_rows_count_from_the_beginning() -> None:
    graph = image_net(last="softmax")
    for seed in range(30):
        once = done(graph, "rows_alone", seed)
        if once.inputs[0].shape[0] == 3 and once.links[0].first == 1:  # type: ignore[union-attr]
            twice = rewrite(once, REWRITES["batch_divided"], random.Random(0))
            assert [link.first for link in twice.links] == [1, 1 + twice.inputs[0].shape[0]]  # type: ignore[union-attr]
            held_against(graph, twice, exact=False)
            return
    pytest.fail("no seed leaves the last three rows")


def test_a_batch_that_is_no_batch() -> None:
    """A softmax over the first dimension mixes rows."""
    chain = Chain()
    axis = scalar(OperandType.INT32, 0)
    chain.end(Op.SOFTMAX, input=chain.input(real(4, 5)), beta=scalar(OperandType.FLOAT32, 1.0), axis=axis)
    for name in ("batch_divided", "rows_alone"):
        with pytest.raises(NoRewriteError):
            done(graph_of(chain), name)


def test_a_name_that_is_none() -> None:
    with pytest.raises(UsageError, match="rewrite 'fused' is unknown; there are reordered, "):
        named(["fused"])
    assert [r.name for r in named(["swapped", "reordered"])] == ["swapped", "reordered"]
