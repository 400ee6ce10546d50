"""`conformance.mutations`: every mutant of a valid model is refused, and for the reason that is meant."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from conformance.mutation_edits import with_constant
from conformance.mutation_graphs import ring_of_additions
from conformance.mutations import BAD_SETTINGS, MUTATIONS, OLDER_CODES, Mutation, mutants
from nnhal.device import CompilationConfig
from nnhal.errors import DriverError
from nnhal.model import Model, Operand
from nnhal.types import (
    FL1,
    FL2,
    FL3,
    FL4,
    FL5,
    FL8,
    ExecutionPreference,
    FeatureLevel,
    OperandType,
    Priority,
)
from nnhal.validate import validate_compilation, validate_model, violations
from opset import OPSET
from opset.definition import OperationDef
from opset.drawing import Scope, UnsatisfiableError
from opset.drawn import draw_call
from opset.graph import model_of
from opset.source import SeededSource
from tests.small_models import addition, branching, channels, grown, looping, main
from tests.thorough import one_in_three

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}

# The rules that a mutation is meant to break; `*` stands for the operation's own.
MEANT = {
    "execution-order": {"G18"},
    "operand-type": {"G2", "G3", "G5", "G6", "G7", "G8", "*"},
    "operand-rank": {"G3", "G4"},
    "operand-scale": {"G5"},
    "operand-zero-point": {"G6"},
    "operand-parameters": {"G4", "G7"},
    "operand-lifetime": {"G17", "G18", "G20"},
    "operand-unlisted": {"G13", "G14"},
    "consumers": {"G12"},
    "second-writer": {"G19"},
    "operation-operand-type": {"G8", "*"},
    "operation-type": {"G15"},
    "input-index": {"G16"},
    "output-index": {"G16"},
    "removed-write": {"G18"},
    "removed-operand": {"G1", "G18", "G20", "*"},
    "removed-operation": {"G1", "G18", "G20"},
    "removed-input": {"*"},
    "removed-output": {"G18", "G20", "*"},
    "added-input": {"*"},
    "added-output": {"*"},
    "constant-location": {"G9"},
    "other-location": {"G10", "G11"},
    "index-lists": {"G13", "G14"},
    "empty-graph": {"G1"},
    "fixed-output": {"G17"},
    "unwritten-temporary": {"G20"},
    "extension-table": {"G22"},
    "subgraph-operand": {"G8", "G10", "G24"},
    "branches": {"G3", "G5", "G7", "G12", "G13", "G14", "G20", "*"},
    "own-result": {"G18", "*"},
    "same-result": {"G19", "G20", "*"},
    "circle": {"G18"},
    "operand-counts": {"G14", "G18", "G20", "*"},
    "pool-constant": {"G9", "G21"},
    "constant-dimensions": {"G7", "G9"},
    "signed-numbers": {"G3", "G7", "G9", "G10"},
    "negative-index": {"G16"},
    "negative-listed": {"G13"},
    "graph-circle": {"G24"},
    "negative-code": {"G15"},
    "bad-graph": {"G1", "G13", "G16", "G18", "*"},
}


def drawn(definition: OperationDef, number: int = 0) -> Iterator[tuple[Model, FeatureLevel]]:
    """A model of each signature at its own level, with its second input a constant."""
    for signature in definition.signatures:
        scope = Scope(SeededSource(f"test_mutations/{definition.name}/{signature.id}/{number}"), level=signature.since)
        try:
            call = draw_call(definition, signature, scope)
        except UnsatisfiableError:
            continue
        names = list(call.inputs)
        model, _ = model_of(call, constants=names[1:2])
        yield model, signature.since


def check(mutation: Mutation, model: Model, level: FeatureLevel, rng: random.Random, most: int | None) -> int:
    found = mutation.apply(model, level, rng, most)
    for mutant in found:
        with pytest.raises(DriverError, match="INVALID_ARGUMENT"):
            validate_model(mutant.model, level)
        own = "*" if "." in mutant.label else mutant.label
        assert own in MEANT[mutation.name], (mutation.name, mutant.change, mutant.label)
        assert mutant.model != model
    return len(found)


@pytest.mark.parametrize("definition", one_in_three(OPSET.values()), ids=lambda d: d.name)
def test_mutants_of_drawn_models_are_refused(definition: OperationDef) -> None:
    rng = random.Random(f"test_mutations/{definition.name}")
    models = list(drawn(definition))
    for model, level in rng.sample(models, min(4, len(models))):
        assert violations(model, level) == []
        count = sum(check(mutation, model, level, rng, 3) for mutation in MUTATIONS)
        assert count > 30
        assert violations(model, level) == []


def test_every_mutation_offers_something_and_all_of_it_is_refused() -> None:
    assert len(BY_NAME) == len(MUTATIONS)
    assert set(MEANT) == set(BY_NAME)
    seen = dict.fromkeys(BY_NAME, 0)
    rng = random.Random("test_mutations/all")
    for model in (addition(), addition(kind=OperandType.TENSOR_QUANT8_ASYMM, scale=0.5)):
        for level in FeatureLevel:
            for mutation in MUTATIONS:
                seen[mutation.name] += check(mutation, model, level, rng, None)
    weights = main(with_constant(addition(), 1, addition().main.operands[1]), input_indexes=(0,))
    for model, level in ((branching(), FL4), (looping(), FL8), (channels(), FL3), (weights, FL1)):
        for mutation in MUTATIONS:
            seen[mutation.name] += check(mutation, model, level, rng, None)
    assert all(seen.values()), seen


def test_branches_of_quantised_graphs_must_agree_in_scale() -> None:
    plain = branching()

    def quantised(model: Model) -> Model:
        def as_q8(operand: Operand) -> Operand:
            return replace(operand, type=OperandType.TENSOR_QUANT8_ASYMM, scale=0.5)

        graphs = tuple(
            replace(
                graph,
                operands=tuple(as_q8(o) for o in graph.operands),
                operations=tuple(replace(o, type=19) for o in graph.operations),
            )
            for graph in model.referenced
        )
        outer = tuple(as_q8(o) if i in (3, 4) else o for i, o in enumerate(model.main.operands))
        return replace(model, main=replace(model.main, operands=outer), referenced=graphs)

    model = quantised(plain)
    assert violations(model, FL4) == []
    changes = [m.change for m in BY_NAME["branches"].apply(model, FL4, random.Random(1))]
    assert "operand 0 of graph 1 has another scale" in changes


def test_the_choice_depends_on_the_seed_alone() -> None:
    def changes(seed: int) -> list[str]:
        return [mutant.change for mutant in mutants(addition(), FL8, random.Random(seed), 2)]

    assert changes(3) == changes(3)
    assert changes(3) != changes(4)
    assert len(changes(3)) <= 2 * len(MUTATIONS)


def offered(model: Model, level: FeatureLevel, name: str) -> list[str]:
    return [mutant.change for mutant in BY_NAME[name].apply(model, level, random.Random(1))]


def of(name: str, signature_id: str, level: FeatureLevel) -> Model:
    definition = next(d for d in OPSET.values() if d.name == name)
    for number in range(50):
        scope = Scope(SeededSource(f"test_mutations/of/{name}/{signature_id}/{number}"), level=level)
        call = draw_call(definition, definition.signature(signature_id), scope)
        if name != "CONCATENATION" or len(call.inputs) >= 3:
            return model_of(call)[0]
    raise AssertionError("no call with enough inputs was drawn")


def test_changes_after_which_another_signature_fits_are_left_out() -> None:
    """The exceptions that the public driver tests list by hand, found from the signatures."""
    concatenation = of("CONCATENATION", "float32", FL3)
    count = len(concatenation.main.operations[0].inputs)
    assert offered(concatenation, FL3, "removed-input") == [f"operation 0 lacks input {count - 1}"]
    kinds = offered(of("CAST", "float32_to_float16", FL3), FL3, "operation-operand-type")
    for kind in ("FLOAT16", "INT32", "QUANT8_ASYMM"):
        assert f"operand 0 (TENSOR_FLOAT32) becomes TENSOR_{kind}" not in kinds
    assert "operand 0 (TENSOR_FLOAT32) becomes TENSOR_BOOL8" in kinds
    split = of("SPLIT", "float32", FL3)
    assert not any("SUBGRAPH_OUTPUT" in change for change in offered(split, FL3, "removed-operand"))
    assert offered(split, FL3, "removed-output") != []  # nobody writes the output any more
    softmax = next(s for s in OPSET[25].signatures if s.count == 3 and s.row.id == "float32")
    assert "operation 0 lacks input 2" not in offered(of("SOFTMAX", softmax.id, FL3), FL3, "removed-input")
    assert "operation 0 lacks input 1" in offered(of("SOFTMAX", softmax.id, FL3), FL3, "removed-input")


def test_levels_have_their_own_codes() -> None:
    def codes(level: FeatureLevel, name: str) -> set[str]:
        return {change.rsplit(" ", 1)[1] for change in offered(addition(), level, name)}

    assert codes(FL1, "operand-type") == {"-1", "6", "9999", "10002"}
    assert codes(FL3, "operand-type") == {str(0xFFFFFFFF), "14", "9999", "10002"}
    assert codes(FL4, "operand-type") == {str(0xFFFFFFFF), "16", "9999", "10002"}
    assert codes(FL5, "operand-type") == {"-1", "16"}
    assert codes(FL1, "operation-type") == {"-1", "29", "9999", "10001"}
    assert codes(FL2, "operation-type") == {"-1", "38", "9999", "10001"}
    assert codes(FL3, "operation-type") == {"95", "9999", "10001"}
    assert codes(FL4, "operation-type") == {"102", "9999", "10001"}
    assert codes(FL5, "operation-type") == {"-1", "102"}
    assert codes(FL8, "operation-type") == {"-1", "106"}
    assert offered(addition(), FL5, "consumers") == []
    assert len(offered(addition(), FL4, "consumers")) == 9


def test_bad_settings_are_refused() -> None:
    known = [[bad.name for bad in BAD_SETTINGS if bad.since <= level] for level in (FL1, FL2, FL4, FL8)]
    assert [len(names) for names in known] == [0, 2, 4, 4]
    for bad in BAD_SETTINGS:
        config = CompilationConfig(
            preference=cast(ExecutionPreference, bad.how.preference), priority=cast(Priority, bad.how.priority)
        )
        with pytest.raises(DriverError, match="INVALID_ARGUMENT"):
            validate_compilation(config, FL8)


def test_codes_of_older_levels_are_unknown_there_and_below() -> None:
    """The numbers of the public tests, by version."""
    found: dict[str, set[str]] = {}
    for codes in OLDER_CODES:
        for mutant in codes.mutation.apply(addition(), codes.level, random.Random(1)):
            found.setdefault(codes.mutation.name, set()).add(mutant.change.rsplit(" ", 1)[1])
            for level in FeatureLevel:
                extension = mutant.change.endswith("is -1") and "operation" in mutant.change and level in (FL3, FL4)
                if level <= codes.level and not extension:
                    assert violations(mutant.model, level)
        assert codes.mutation.apply(addition(), FeatureLevel(codes.level + 1), random.Random(1)) == []
    assert found == {
        "operand-type-1.1": {"-1", "6", "9999", "10002"},
        "operand-type-1.2": {str(0xFFFFFFFF), "14", "9999", "10002"},
        "operand-type-1.3": {str(0xFFFFFFFF), "16", "9999", "10002"},
        "operation-type-1.0": {"-1", "29", "9999", "10001"},
        "operation-type-1.1": {"-1", "38", "9999", "10001"},
        "operation-type-1.2": {"95", "9999", "10001"},
        "operation-type-1.3": {"102", "9999", "10001"},
        "operation-type-FL5": {"-1", "102"},
        "operation-type-FL6": {"-1", "104"},
    }


def test_a_ring_cannot_be_ordered() -> None:
    for level in FeatureLevel:
        assert [v.label for v in violations(ring_of_additions(), level)] == ["G18"]
    assert violations(grown(addition()), FL8) == []
