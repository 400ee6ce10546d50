"""Draws in a scope that already has operands: what a random graph does."""

from __future__ import annotations

import random

import numpy as np

from opset import OPSET
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.source import SeededSource
from opset.validation import violations

GRAPHS = 120


def test_draws_that_take_operands_of_the_scope_are_valid_and_finite() -> None:
    pairs = [(d, s) for d in OPSET.values() for s in d.signatures]
    taken = 0
    for seed in range(GRAPHS):
        chooser = random.Random(seed)
        scope = Scope(SeededSource(seed), reuse=80)
        for _ in range(10):
            definition, signature = chooser.choice(pairs)
            before = len(scope.operands)
            call = draw_call(definition, signature, scope)
            where = f"seed {seed}, {definition.name} {signature.id}"
            assert violations(call) == [], where
            taken += any(a.key is not None and a.key < before for a in call.inputs.values())
            for argument in call.results.values():
                assert argument.value is not None
                assert argument.value.dtype.kind != "f" or np.isfinite(argument.value).all(), where
    assert taken > GRAPHS  # more than one draw in ten takes an operand that is there


def test_the_same_seed_gives_the_same_call() -> None:
    for definition in OPSET.values():
        signature = definition.signatures[0]
        first, second = (draw_call(definition, signature, Scope(SeededSource("again"))) for _ in range(2))
        assert first.inputs.keys() == second.inputs.keys()
        for name, argument in {**first.inputs, **first.results}.items():
            other = second[name]
            assert (argument.shape, argument.scale, argument.zero_point) == (other.shape, other.scale, other.zero_point)
            np.testing.assert_array_equal(argument.value, other.value)
