"""Changes that make a valid model invalid, whatever its operations: a driver must answer each with INVALID_ARGUMENT.

Data for the negative cases. A change that leaves the model valid (another signature fits) is never offered:
`nnhal.validate.violations` decides. What breaks a rule of one operation comes from `opset.validation.broken`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from conformance import mutation_graphs as graphs
from conformance import mutation_operands as operands
from conformance.mutation_edits import Changes
from nnhal.device import DEFAULT_COMPILATION, CompilationConfig
from nnhal.model import Model
from nnhal.types import FL2, FL4, ExecutionPreference, FeatureLevel, Priority
from nnhal.validate import violations


@dataclass(frozen=True)
class Mutant:
    """An invalid model made from a valid one.

    Attributes:
        mutation: name of the mutation.
        change: what was changed, as a phrase.
        label: of the first rule that is broken.
    """

    mutation: str
    change: str
    label: str
    model: Model


@dataclass(frozen=True)
class Mutation:
    """A kind of change.

    Attributes:
        name: for case ids; unique.
        sentence: what is done to the model.
        changes: every place and value, without making the models yet.
    """

    name: str
    sentence: str
    changes: Changes

    def apply(self, model: Model, level: FeatureLevel, rng: random.Random, most: int | None = None) -> list[Mutant]:
        """Mutants of a model that is valid at a level, each invalid there.

        Args:
            model: has at least one operation.
            level: of the device that is asked.
            rng: picks among the places.
            most: the largest number of mutants; all of them when None.
        """
        changes = list(self.changes(model, level))
        if most is not None:
            rng.shuffle(changes)
        found: list[Mutant] = []
        for change, make in changes:
            if most is not None and len(found) >= most:
                break
            mutated = make()
            wrong = violations(mutated, level)
            if wrong:
                found.append(Mutant(self.name, change, wrong[0].label, mutated))
        return found


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("execution-order", "operations change places, so that one reads too early", graphs.execution_order),
    Mutation("operand-type", "an operand has a type that the level does not know", operands.operand_type),
    Mutation("operand-rank", "an operand has dimensions that its type does not allow", operands.operand_rank),
    Mutation("operand-scale", "an operand has a scale that its type does not allow", operands.operand_scale),
    Mutation("operand-zero-point", "an operand has a zero point that is out of range", operands.operand_zero_point),
    Mutation("operand-parameters", "an operand has bad per-channel parameters", operands.extra_parameters),
    Mutation("operand-lifetime", "an operand has another lifetime, and is listed so", operands.operand_lifetime),
    Mutation("operand-unlisted", "an operand has another lifetime than the lists say", operands.unlisted_lifetime),
    Mutation("consumers", "the number of consumers is one off", operands.consumers),
    Mutation("second-writer", "an operand is written twice", graphs.second_writer),
    Mutation("operation-operand-type", "an operand of an operation has another type", graphs.operation_operand_type),
    Mutation("operation-type", "an operation's code is not known to the level", graphs.operation_type),
    Mutation("input-index", "an operation reads an operand that does not exist", graphs.rewritten(graphs.input_index)),
    Mutation("output-index", "an operation writes one that does not exist", graphs.rewritten(graphs.output_index)),
    Mutation("removed-write", "an operand that is read is not written any more", graphs.removed_write),
    Mutation("removed-operand", "an operand is removed", graphs.removed_operand),
    Mutation("removed-operation", "an operation is removed", graphs.removed_operation),
    Mutation("removed-input", "an operation has one input fewer", graphs.rewritten(graphs.fewer_inputs)),
    Mutation("removed-output", "an operation has one output fewer", graphs.rewritten(graphs.fewer_outputs)),
    Mutation("added-input", "an operation has one input more", graphs.added_input),
    Mutation("added-output", "an operation has one output more", graphs.added_output),
    Mutation("constant-location", "a constant lies outside its data, or is too short", operands.constant_location),
    Mutation("other-location", "an operand without data has a location", operands.other_location),
    Mutation("index-lists", "the lists of inputs and outputs are wrong", graphs.index_lists),
    Mutation("empty-graph", "the model has no operations, or no operands", graphs.empty_graph),
    Mutation("fixed-output", "an operation writes a constant or an input", graphs.rewritten(graphs.fixed_output)),
    Mutation("unwritten-temporary", "a temporary is neither written nor read", graphs.unwritten_temporary),
    Mutation("extension-table", "the extension table is wrong", graphs.extension_table),
    Mutation("subgraph-operand", "an operand refers to a graph in a wrong way", graphs.subgraph_operands),
    Mutation("branches", "a referenced graph does not fit its operation", graphs.branches),
)


def mutants(model: Model, level: FeatureLevel, rng: random.Random, most: int | None = None) -> Iterator[Mutant]:
    """Mutants of every kind, at most so many of each."""
    for mutation in MUTATIONS:
        yield from mutation.apply(model, level, rng, most)


def bad_configs(level: FeatureLevel) -> Iterator[tuple[CompilationConfig, str]]:
    """Settings with which `prepare_model` must refuse any model; the support query has none of them."""
    for code in (-1, 3):
        if level >= FL2:
            preference = cast(ExecutionPreference, code)
            yield replace(DEFAULT_COMPILATION, preference=preference), f"the execution preference is {code}"
    for code in (-1, 3):
        if level >= FL4:
            priority = cast(Priority, code)
            yield replace(DEFAULT_COMPILATION, priority=priority), f"the priority is {code}"
