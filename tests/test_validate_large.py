"""Validation of models that are large on purpose: right answers, without recursion, large numbers or long searches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from conformance.mutation_sizes import LARGE, Large, extension_name, nested, wrapping_constant
from nnhal.errors import DriverError
from nnhal.model import DataLocation, RequestArgument
from nnhal.types import FL3, FL4, FL8
from nnhal.validate import request_violations, validate_model, violations
from nnhal.validation_graph import EXTENSION_NAME
from nnhal.validation_operation import tables
from nnhal.validation_rules import MANY_BYTES, bounded_product
from reference_driver import ReferenceDevice
from tests.small_models import addition, edit, labels, request_for


@pytest.mark.parametrize("large", LARGE, ids=lambda large: large.name)
def test_large_models_are_judged_by_their_rule(large: Large) -> None:
    model = large.make(min(large.size, 3000))
    for level in (large.level, FL8):
        found = [v.label for v in violations(model, level)]
        assert (large.rule in found) if large.rule else found == []
    if large.rule:
        with pytest.raises(DriverError, match="INVALID_ARGUMENT") as caught:
            validate_model(model)
        assert len(str(caught.value)) < 4096 or large.name in ("dimensions", "extension.name")


def test_the_reference_answers_for_graphs_in_graphs() -> None:
    """As many ways through the graphs as 2 to the power of their depth, and deeper than Python's stack."""
    assert ReferenceDevice().get_supported_operations(nested(2000)) == [True]


def test_products_that_wrap_are_told_from_those_that_fit() -> None:
    for bits in (32, 64):
        constant = wrapping_constant(bits).main.operands[0]
        assert 4 * math.prod(constant.dimensions) % 2**bits == constant.location.length == 8
        assert "G9" in labels(wrapping_constant(bits))


def test_bounded_products() -> None:
    assert bounded_product(()) == 1
    assert bounded_product((2, 3, 5)) == 30
    assert bounded_product((2**32, 2**32)) == MANY_BYTES
    assert bounded_product((2**31 - 1,) * 1_000_000) > MANY_BYTES


def test_dimensions_that_no_number_holds_are_refused_in_models_and_requests() -> None:
    vast = (2**31 - 1,) * 1000  # 31000 bits: Python would not even print it
    constant = edit(addition(), 2, dimensions=vast)
    assert "G3" in labels(constant)
    open_ = edit(addition(), 0, dimensions=())
    argument = RequestArgument(DataLocation(0, 0, 24), vast)
    request = request_for()
    bad = replace(request, inputs=(argument, *request.inputs[1:]))
    assert [v.label for v in request_violations(bad, open_, FL8)] == ["R8"]


@pytest.mark.parametrize(
    ("name", "good"),
    [("a.b", True), (".", True), ("a.", True), ("..", True), ("a_1.b2", True), ("ab", False), ("", False),
     ("a.B", False), ("a.b\n", False), ("a-b.c", False), ("\n.a", False), ("a.b c", False)],
)  # fmt: skip
def test_extension_names(name: str, good: bool) -> None:
    assert bool(EXTENSION_NAME.fullmatch(name)) == good


def test_a_name_of_many_dots_takes_no_long_search() -> None:
    assert "G22" in labels(extension_name(1_000_000), FL3)


def test_long_combinations_of_types_are_not_kept() -> None:
    concatenation = next(large for large in LARGE if large.name == "joined")
    assert violations(concatenation.make(1000), FL8) == []
    assert all(len(i) + len(o) < 500 for i, o in tables()[2]._matches)


def test_circles_of_graphs_are_found_wherever_they_are() -> None:
    model = nested(50)
    assert labels(model, FL4) == []
    for number in (0, 20, 48):
        back = replace(model.referenced[-1], operands=(*model.referenced[-1].operands, model.referenced[0].operands[1]))
        aimed = back.operands[-1]
        aimed = replace(aimed, location=DataLocation(offset=number), number_of_consumers=0)
        back = replace(back, operands=(*back.operands[:-1], aimed))
        circle = replace(model, referenced=(*model.referenced[:-1], back))
        assert labels(circle, FL4) == ["G24"]
