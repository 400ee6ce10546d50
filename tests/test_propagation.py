"""What is allowed at the outputs of a graph: enough for any correct implementation, and not for a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from nnhal.model import Model, Operation
from nnhal.types import Array, OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from opset.branch_examples import BELOW_FOUR, DOUBLE_AND_COUNT
from opset.building import GraphBuilder
from opset.call import Argument, scalar
from opset.evaluate import tolerance
from opset.propagation import Due, UnforeseeableError, foretell

LIFE = OperandLifeTime
F32, Q8, B8, I32 = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_BOOL8,
    OperandType.TENSOR_INT32,
)
EPSILON = 2.0**-24  # half a unit in the last place of 1


class Chain:
    """A graph put together by hand."""

    def __init__(self) -> None:
        self.graph = GraphBuilder()
        self.values: list[Array] = []

    def input(self, value: Array, kind: OperandType = F32, scale: float = 0.0, zero: int = 0) -> int:
        self.values.append(value)
        return self.graph.operand(Argument(kind, value.shape, scale, zero), LIFE.SUBGRAPH_INPUT)

    def constant(self, argument: Argument) -> int:
        return self.graph.operand(argument, LIFE.CONSTANT_COPY)

    def apply(self, code: Op, inputs: list[int], like: Argument, *, last: bool = False) -> int:
        index = self.graph.operand(like, LIFE.SUBGRAPH_OUTPUT if last else LIFE.TEMPORARY_VARIABLE)
        self.graph.operations.append(Operation(int(code), tuple(inputs), (index,)))
        return index

    def none(self) -> int:
        return self.constant(scalar(OperandType.INT32, 0))

    def model(self) -> Model:
        return self.graph.model()


def sums(count: int, size: int = 64) -> tuple[Model, list[Array]]:
    """x + x + ... one behind the other, each with an input of its own."""
    rng, chain = np.random.default_rng(1), Chain()
    like = Argument(F32, (size,))
    current = chain.input(rng.uniform(1e6, 2e6, size).astype(np.float32))
    for number in range(count):
        other = chain.input(rng.uniform(1e6, 2e6, size).astype(np.float32))
        current = chain.apply(Op.ADD, [current, other, chain.none()], like, last=number == count - 1)
    return chain.model(), chain.values


def test_one_operation_is_allowed_what_its_bound_and_the_rule_say() -> None:
    model, values = sums(1)
    [due] = foretell(model, values)
    truth = values[0].astype(np.float64) + values[1].astype(np.float64)
    np.testing.assert_array_equal(due.result.exact, truth)
    assert (due.required >= tolerance(truth, 23)).all()
    assert (due.required <= 2 * tolerance(truth, 23)).all()


@pytest.mark.parametrize("count", [2, 8, 30])
def test_errors_of_one_sign_add_up_as_their_number(count: int) -> None:
    """Each sum may round by half a unit; a driver that always rounds up is off by the sum of all."""
    model, values = sums(count)
    [due] = foretell(model, values)
    total, worst = values[0].astype(np.float64), np.zeros(64)
    for value in values[1:]:
        total = total + value
        worst += np.abs(total) * EPSILON
    assert (due.required >= worst).all()
    assert (due.required < np.maximum(20 * worst, 2 * tolerance(total, 23))).all()


def test_steps_add_up() -> None:
    """Each quantised result may be one step off: five RELU one behind the other five steps."""
    rng, chain = np.random.default_rng(2), Chain()
    like = Argument(Q8, (40,), 0.5, 10)
    current = chain.input(rng.integers(40, 200, 40).astype(np.uint8), Q8, 0.5, 10)
    other = chain.input(np.full(40, 10, np.uint8), Q8, 0.5, 10)
    for number in range(5):
        current = chain.apply(Op.ADD, [current, other, chain.none()], like, last=number == 4)
    [due] = foretell(chain.model(), chain.values)
    np.testing.assert_array_equal(due.required, 5)


def test_what_is_only_moved_must_arrive_as_it_is() -> None:
    chain = Chain()
    value = np.arange(12, dtype=np.float32)
    given = chain.input(value)
    shape = chain.constant(Argument(I32, (2,), value=np.array([3, 4], np.int32)))
    middle = chain.apply(Op.RESHAPE, [given, shape], Argument(F32, (3, 4)))
    permutation = chain.constant(Argument(I32, (2,), value=np.array([1, 0], np.int32)))
    chain.apply(Op.TRANSPOSE, [middle, permutation], Argument(F32, (4, 3)), last=True)
    [due] = foretell(chain.model(), [value])
    assert due.moved
    np.testing.assert_array_equal(due.result.stored, value.reshape(3, 4).T)


def decided(distance: float) -> Array:
    """Whether 3 x + 1 > y is asked for, element by element, where both sides are a distance apart; what is allowed."""
    chain = Chain()
    x = np.linspace(0.5, 1.5, 20).astype(np.float32)
    three, one = (chain.constant(Argument(F32, (1,), value=np.array([v], np.float32))) for v in (3.0, 1.0))
    given = chain.input(x)
    product = chain.apply(Op.MUL, [given, three, chain.none()], Argument(F32, (20,)))
    total = chain.apply(Op.ADD, [product, one, chain.none()], Argument(F32, (20,)))
    y = chain.input((3.0 * x.astype(np.float64) + 1 - distance).astype(np.float32))
    chain.apply(Op.GREATER, [total, y], Argument(B8, (20,)), last=True)
    [due] = foretell(chain.model(), chain.values)
    return due.required


def test_a_decision_is_left_open_where_errors_may_turn_it() -> None:
    np.testing.assert_array_equal(decided(0.01), 0)
    assert np.isinf(decided(0.0)).all()


def test_what_hangs_on_an_open_element_is_open() -> None:
    """A quotient by zero is left open, and so is what is computed from it; the rest is not."""
    chain = Chain()
    a = chain.input(np.array([1, 2, 3, 4], np.int32), I32)
    b = chain.input(np.array([1, 0, 2, 3], np.int32), I32)
    like = Argument(I32, (4,))
    quotient = chain.apply(Op.DIV, [a, b, chain.none()], like)
    chain.apply(Op.ADD, [quotient, a, chain.none()], like, last=True)
    [due] = foretell(chain.model(), chain.values)
    np.testing.assert_array_equal(np.isinf(due.required), [False, True, False, False])
    np.testing.assert_array_equal(due.result.stored[[0, 2, 3]], [2, 4, 5])


def hashed(computed: bool) -> list[Due]:
    """Bits of an LSH_PROJECTION, and their product with 3; the hash values are inputs or sums of two."""
    rng, chain = np.random.default_rng(5), Chain()
    seeds = chain.input(rng.uniform(-1, 1, (4, 8)).astype(np.float32))
    if computed:
        other = chain.input(rng.uniform(-1, 1, (4, 8)).astype(np.float32))
        seeds = chain.apply(Op.ADD, [seeds, other, chain.none()], Argument(F32, (4, 8)))
    items = chain.input(rng.uniform(-1, 1, (3, 2)).astype(np.float32))
    weight = chain.input(np.ones(3, np.float32))
    dense = chain.constant(scalar(OperandType.INT32, 2))
    bits = chain.apply(Op.LSH_PROJECTION, [seeds, items, weight, dense], Argument(I32, (32,)), last=True)
    three = chain.constant(Argument(I32, (1,), value=np.array([3], np.int32)))
    chain.apply(Op.MUL, [bits, three, chain.none()], Argument(I32, (32,)), last=True)
    return foretell(chain.model(), chain.values)


def test_a_hash_of_values_that_may_be_off_is_open() -> None:
    """A value that is off by a last place has another hash, half of whose bits are the same by chance."""
    for due in hashed(computed=False):
        assert (due.required == 0).all()
    for due in hashed(computed=True):
        assert np.isinf(due.required).all()


def long_chain(seed: int) -> tuple[Model, list[Array], Callable[[np.random.Generator], Array]]:
    """TANH, products and sums; and the same in float32 with each result moved by half a unit in the last place."""
    rng, chain = np.random.default_rng(seed), Chain()
    like = Argument(F32, (50,))
    values = [rng.uniform(-1, 1, 50).astype(np.float32) for _ in range(13)]
    current = chain.input(values[0])
    for number, value in enumerate(values[1:]):
        other = chain.input(value)
        code = (Op.ADD, Op.MUL, Op.SUB)[number % 3]
        current = chain.apply(code, [current, other, chain.none()], like)
        current = chain.apply(Op.TANH, [current], like, last=number == len(values) - 2)

    def implementation(signs: np.random.Generator) -> Array:
        def rounded(x: Array) -> Array:
            return np.asarray(x * (1 + EPSILON * signs.uniform(-1, 1, x.shape)))

        now = values[0].astype(np.float64)
        for number, value in enumerate(values[1:]):
            now = rounded((now + value, now * value, now - value)[number % 3])
            now = rounded(np.tanh(now))
        return now

    return chain.model(), values, implementation


@pytest.mark.parametrize("seed", range(5))
def test_a_correct_implementation_stays_far_inside(seed: int) -> None:
    model, values, implementation = long_chain(seed)
    [due] = foretell(model, values)
    signs = np.random.default_rng(seed + 100)
    for _ in range(20):
        assert (np.abs(implementation(signs) - due.result.exact) <= 0.5 * due.required).all()


def test_a_wrong_operation_in_the_middle_is_outside() -> None:
    """TANH with eleven significant bits, in the middle of 24 operations, shows at the end."""
    model, values, _ = long_chain(3)
    [due] = foretell(model, values)
    now = values[0].astype(np.float64)
    for number, value in enumerate(values[1:]):
        now = np.tanh((now + value, now * value, now - value)[number % 3])
        if number == 6:
            fraction, exponent = np.frexp(now)
            now = np.ldexp(np.rint(fraction * 2**8) / 2**8, exponent)
    assert (np.abs(now - due.result.exact) > due.required).any()


def test_a_loop_of_too_many_turns_is_unforeseeable() -> None:
    """The second value is counted up to 4 while the first doubles: from -2000 on, more turns than are looked at."""
    graph = GraphBuilder()
    subgraph = Argument(OperandType.SUBGRAPH)
    places = [graph.operand(replace(subgraph, branch=b), LIFE.SUBGRAPH) for b in (BELOW_FOUR, DOUBLE_AND_COUNT)]
    one = Argument(I32, (1,))
    places += [graph.operand(one, LIFE.SUBGRAPH_INPUT) for _ in range(2)]
    out = graph.operand(one, LIFE.SUBGRAPH_OUTPUT)
    graph.operations.append(Operation(int(Op.WHILE), tuple(places), (out,)))
    model = graph.model()
    [due] = foretell(model, [np.array([3], np.int32), np.array([1], np.int32)])
    assert due.result.stored.tolist() == [24]
    with pytest.raises(UnforeseeableError, match="the loop took more than 1000 turns"):
        foretell(model, [np.array([3], np.int32), np.array([-2000], np.int32)])
