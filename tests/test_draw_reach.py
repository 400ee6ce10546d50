"""Draws reach what test suites often miss: each demand in every operation that it concerns, several times in a plan."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.profiles import PROFILES
from opset.drawing import ODD_BITS, with_odd
from tests.draw_reach import DEMANDS, LEAST, NUMBERS, Demand, count, lines

Table = dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def table() -> Table:
    return count()


def test_the_numbers_are_those_of_every_plan() -> None:
    assert PROFILES["quick"].draws == NUMBERS


@pytest.mark.thorough
@pytest.mark.parametrize("demand", DEMANDS, ids=lambda demand: demand.words)
def test_every_operation_reaches_it(table: Table, demand: Demand) -> None:
    words = demand.words
    assert table[words]
    assert {name: number for name, number in table[words].items() if number < LEAST} == {}


@pytest.mark.thorough
def test_the_table_in_words_names_each_demand_and_the_fewest(table: Table) -> None:
    told = list(lines(table))
    assert len(told) == len(DEMANDS)
    for line, (words, row) in zip(told, table.items(), strict=True):
        assert line.startswith(f"{words}: {sum(row.values())} cases")
        assert f"{min(row, key=lambda name: row[name])} {min(row.values())}" in line


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_odd_numbers_are_what_their_kinds_say(dtype: type) -> None:
    kinds = ODD_BITS[np.dtype(dtype).itemsize]
    tests = {
        "zero": lambda x: x == 0 and np.signbit(x),
        "subnormal": lambda x: 0 < abs(x) < np.finfo(dtype).tiny,
        "large": lambda x: abs(x) == np.finfo(dtype).max,
        "infinite": np.isinf,
        "nan": np.isnan,
    }
    assert set(kinds) == set(tests)
    for kind, bits in kinds.items():
        values = np.array(bits, f"u{np.dtype(dtype).itemsize}").view(dtype)
        assert all(tests[kind](value) for value in values), kind


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_odd_numbers_leave_shape_and_most_values_alone(dtype: type) -> None:
    value = np.linspace(1, 2, 60, dtype=dtype).reshape(3, 20)
    for finite in (True, False):
        changed = with_odd(np.random.default_rng(5), value, finite)
        assert (changed.shape, changed.dtype) == (value.shape, value.dtype)
        assert 10 <= (changed != value).sum() <= 21
        assert np.isfinite(changed).all() == finite
    assert (value >= 1).all()  # the old array is as it was
