"""Edits of nets: what is cut along with a dimension, what is declared anew, and what is no valid edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from harness.case import TestCase
from harness.editable import MAIN, Net, assemble, take_apart
from harness.make import graph_case
from harness.minimize import minimize
from harness.searching import remade
from harness.settling import Unfit, known_sizes, settle
from harness.shrinking import axes, data, parameters, sliced
from nnhal.memory import BytesMemory
from nnhal.model import ChannelQuant, DataLocation, Model
from nnhal.types import FL1, FL8, Array, OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.branch_examples import graph_of
from opset.call import Argument, int32_tensor, scalar
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.graph import model_of
from opset.source import SeededSource
from tests.minimising import F32, NO_ACTIVATION, ORIGIN, computed, negated, sizes, tensor, tried
from tests.small_models import addition, in_pool

LIFE = OperandLifeTime


def net_of(case: TestCase) -> Net:
    return take_apart(case)


def chained(*steps: tuple[Op, tuple[int | Argument, ...], Argument], given: Argument) -> TestCase:
    """Operations in one line, the last of which gives the output."""
    last = len(steps) - 1
    model = graph_of([replace(given, value=None)], [(*step, n == last) for n, step in enumerate(steps)]).model
    return graph_case(model, [given.value], ORIGIN)


def counted(*shape: int) -> Argument:
    return tensor(*shape, value=np.arange(np.prod(shape), dtype=np.float32))


@pytest.mark.parametrize("definition", OPSET.values(), ids=lambda d: d.name)
def test_a_case_that_is_taken_apart_is_the_same_again(definition) -> None:
    for number, signature in enumerate(definition.signatures[:: max(1, len(definition.signatures) // 3)]):
        call = draw_call(definition, signature, Scope(SeededSource(f"{definition.name}/{number}")))
        model, inputs = model_of(call, relaxed=bool(number % 2))
        case = graph_case(model, inputs, ORIGIN)
        again = remade(settle(take_apart(case)), case.origin)
        assert again.models[0].relax_computation_float32_to_float16 == bool(number % 2)
        for mine, theirs in zip(computed_or_drawn(again), computed_or_drawn(case), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert (again.level, again.needs, again.steps[2].mode) == (case.level, case.needs, case.steps[2].mode)


def computed_or_drawn(case: TestCase) -> list[Array]:
    """Due values, or for random results their probabilities."""
    outputs = case.steps[2].expect.outputs  # type: ignore[union-attr]
    return [due.value if due.distribution is None else due.distribution for due in outputs]


def test_results_follow_what_goes_in() -> None:
    shape = int32_tensor([2, 6])
    case = chained(
        (Op.RELU, (0,), tensor(3, 4)), (Op.TRANSPOSE, (1, int32_tensor([1, 0])), tensor(4, 3)), given=counted(3, 4)
    )
    cut = settle(sliced(net_of(case), {((MAIN, 0), 1): 2}, tail=True))
    graph = cut.assembled.model.main
    assert [graph.operands[o.outputs[0]].dimensions for o in graph.operations] == [(3, 2), (2, 3)]
    np.testing.assert_array_equal(cut.assembled.inputs[0], [[2, 3], [6, 7], [10, 11]])
    with pytest.raises(Unfit, match="RESHAPE breaks ELEMENTS"):
        settle(
            sliced(
                net_of(chained((Op.RESHAPE, (0, shape), tensor(2, 6)), given=counted(3, 4))),
                {((MAIN, 0), 0): 2},
                tail=False,
            )
        )


def test_scales_of_channels_are_cut_with_them() -> None:
    weights = Argument(
        OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        (3, 2),
        channel=ChannelQuant(0, (0.5, 0.25, 2.0)),
        value=np.arange(6, dtype=np.int8).reshape(3, 2),
    )
    case = chained((Op.DEQUANTIZE, (0,), tensor(3, 2)), given=weights)
    for tail, scales in ((False, (0.5, 0.25)), (True, (0.25, 2.0))):
        cut = settle(sliced(net_of(case), {((MAIN, 0), 0): 2}, tail=tail))
        assert cut.assembled.model.main.operands[0].extra_params == ChannelQuant(0, scales)


def test_what_stays_open() -> None:
    """A size that a model leaves open is left open by an edit, and declared on demand."""
    steps = [(Op.RELU, (0,), replace(tensor(3, 4), declared=(0, 4)), False), (Op.ABS, (1,), tensor(3, 4), True)]
    case = graph_case(graph_of([tensor(3, 4)], steps).model, [counted(3, 4).value], ORIGIN)
    cut = settle(sliced(net_of(case), {((MAIN, 0), 1): 2}, tail=False))
    assert cut.net.main.operands[1].dimensions == (0, 2)
    assert known_sizes(cut).main.operands[1].dimensions == (3, 2)


def test_data_and_parameters() -> None:
    case = chained((Op.TRANSPOSE, (0, int32_tensor([1, 0])), tensor(4, 3)), given=counted(3, 4))
    settled = settle(net_of(case))
    assert data(settled.net, settled.trace) == [(MAIN, 0)]
    assert parameters(settled.trace, settled.net) == {(MAIN, 1): "perm"}
    assert axes(settled.net, settled.trace) == [((MAIN, 0), 0), ((MAIN, 0), 1)]


def test_pools_stay_pools() -> None:
    """Where constants lie is part of a case until it is tried whether it matters."""
    model = in_pool(addition(), BytesMemory(bytes(8)))
    case = graph_case(model, [np.ones((2, 3), np.float32)] * 2, ORIGIN)
    made = assemble(net_of(case)).model
    operand = next(o for o in made.main.operands if o.type == OperandType.INT32)
    assert (operand.lifetime, operand.location) == (LIFE.CONSTANT_REFERENCE, DataLocation(0, 0, 4))
    assert bytes(made.pools[0].view()) == bytes(4)

    def pooled(asked: TestCase):
        return tried(negated(Op.ADD)).judged(asked) if asked.models[0].pools else tried(negated()).judged(asked)

    assert minimize(case, pooled).case.models[0].pools
    assert minimize(case, tried(negated(Op.ADD))).case.models[0].pools == ()


# --- what is not valid ------------------------------------------------------------------------------------------------


def edited(case: TestCase, values: Mapping[int, object]) -> Net:
    graph = net_of(case).main
    for number, value in values.items():
        graph = graph.with_value(number, np.asarray(value, graph.values[number].dtype))
    return net_of(case).with_main(graph)


def test_rules_on_values_hold() -> None:
    indexes = Argument(OperandType.TENSOR_INT32, (2,), value=np.array([0, 2], np.int32))
    axis = scalar(OperandType.INT32, 0)
    case = chained((Op.GATHER, (0, axis, indexes), tensor(2, 4)), given=counted(3, 4))
    settle(edited(case, {2: [1, 1]}))
    with pytest.raises(Unfit, match="GATHER breaks"):
        settle(edited(case, {2: [0, 3]}))


def test_inputs_have_elements() -> None:
    case = chained((Op.RELU, (0,), tensor(3)), given=counted(3))
    with pytest.raises(Unfit, match="without elements"):
        settle(edited(case, {0: np.zeros(0)}))


def test_rules_of_the_level_hold() -> None:
    case = chained((Op.ABS, (0,), tensor(3)), given=counted(3))
    settle(net_of(case), FL8)
    with pytest.raises(Unfit, match=r"does not know|SIGNATURE"):
        settle(net_of(case), FL1)


def test_a_loop_that_does_not_end() -> None:
    from opset.branch_examples import BELOW_FOUR, DOUBLE_AND_COUNT

    inputs = {"cond_graph": BELOW_FOUR, "body_graph": DOUBLE_AND_COUNT}
    arguments = {name: Argument(OperandType.SUBGRAPH, branch=branch) for name, branch in inputs.items()}
    definition = OPSET[Op.WHILE]
    call = draw_call(definition, definition.signatures[0], Scope(SeededSource("loop")))
    start = {"initial0": int32_tensor([3]), "initial1": int32_tensor([1])}
    call = replace(call, inputs={**arguments, **start}, results={"outputs0": int32_tensor([0])})
    case = graph_case(*model_of(call), ORIGIN)
    settle(net_of(case), most=20)
    net = net_of(case)
    body = net.graphs[2]
    step = next(number for number, value in body.values.items() if value.tolist() == [1])
    with pytest.raises(Unfit, match="too many"):
        settle(net.with_graph(2, body.with_value(step, np.zeros(1, np.int32))), most=1000)


# --- cuts that need more than a cut -----------------------------------------------------------------------------------


def test_sizes_in_parameters_follow() -> None:
    """RESHAPE to sizes that are products of those cut, and SLICE of what is left."""
    case = chained(
        (Op.RESHAPE, (0, int32_tensor([6, 4])), tensor(6, 4)),
        (Op.SLICE, (1, int32_tensor([0, 0]), int32_tensor([5, 4])), tensor(5, 4)),
        given=counted(2, 3, 4),
    )
    both = negated(Op.SLICE)

    def judged(asked: TestCase):
        codes = [o.type for o in asked.models[0].main.operations]
        return tried(both if Op.RESHAPE in codes else negated()).judged(asked)

    found = minimize(case, judged)
    assert sizes(found) == ([Op.RESHAPE, Op.SLICE], found.elements[1])
    assert all(np.size(value) == 1 for value in found.case.steps[2].inputs)


def test_indexes_follow() -> None:
    table = Argument(OperandType.TENSOR_INT32, (3,), value=np.array([4, 2, 3], np.int32))
    steps = [(Op.EMBEDDING_LOOKUP, (table, 0), tensor(3, 2), True)]
    case = graph_case(graph_of([tensor(5, 2)], steps).model, [counted(5, 2).value], ORIGIN)
    found = minimize(case, tried(negated(Op.EMBEDDING_LOOKUP)))
    assert sizes(found) == ([Op.EMBEDDING_LOOKUP], 2)


def test_channels_in_a_ratio_are_cut_together() -> None:
    """A depthwise filter has a multiple of the input's channels."""
    weights, bias = tensor(1, 2, 2, 12, value=np.ones(48)), tensor(12, value=np.ones(12))
    parameters_ = [scalar(OperandType.INT32, n) for n in (2, 1, 1, 3, 0)]
    given = tensor(1, 4, 4, 4, value=np.ones(64))
    case = chained((Op.DEPTHWISE_CONV_2D, (0, weights, bias, *parameters_), tensor(1, 3, 3, 12)), given=given)
    found = minimize(case, tried(negated(Op.DEPTHWISE_CONV_2D)))
    assert [np.size(value) for value in found.case.steps[2].inputs] == [1]
    assert sizes(found)[1] == 3 + len(parameters_)


def test_padding_shrinks_with_its_filter() -> None:
    """A filter must be larger than what is padded."""
    parameters_ = [scalar(OperandType.INT32, n) for n in (2, 2, 2, 2, 1, 1, 0)]
    weights = tensor(1, 3, 3, 1, value=np.ones(9))
    given = tensor(1, 3, 3, 1, value=np.ones(9))
    steps = (Op.CONV_2D, (0, weights, tensor(1, value=[0]), *parameters_), tensor(1, 5, 5, 1))
    found = minimize(chained(steps, given=given), tried(negated(Op.CONV_2D)))
    assert sizes(found)[1] <= 3 + len(parameters_)


def test_a_model_of_one_operation_stays_what_it_is() -> None:
    """The smallest ADD there is: nothing to make smaller, so nothing is changed."""
    case = chained((Op.ADD, (0, tensor(1, value=[0]), NO_ACTIVATION), tensor(1)), given=tensor(1, value=[0]))
    found = minimize(case, tried(negated(Op.ADD)))
    assert found.operations == (1, 1)
    assert found.elements == (3, 3)
    assert found.note == ""
    assert isinstance(found.case.models[0], Model)
    assert computed(found.case)[0].dtype == np.float32
    assert found.case.models[0].main.operands[0].type == F32
