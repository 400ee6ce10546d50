"""Changes that make a valid model invalid, whatever its operations: a driver must answer each with INVALID_ARGUMENT.

Data for the negative cases. A change that leaves the model valid (another signature fits) is never offered:
`nnhal.validate.violations` decides. What breaks a rule of one operation comes from `opset.validation.broken`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from conformance import mutation_control_flow as flow
from conformance import mutation_graphs as graphs
from conformance import mutation_operands as operands
from conformance.mutation_edits import Changes
from harness.steps import Preparation
from nnhal.model import Model
from nnhal.types import FL1, FL2, FL3, FL4, FL5, FL6, FeatureLevel, OperationType
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
        since: the first level at which the changed numbers can be written.
        until: the level from which on the change is none, or another mutation says it.
        among: the operations that it is about; empty for all.
    """

    name: str
    sentence: str
    changes: Changes
    since: FeatureLevel = FL1
    until: FeatureLevel | None = None
    among: tuple[OperationType, ...] = ()

    def concerns(self, code: int, since: FeatureLevel) -> bool:
        """Whether there are models of an operation, with a signature of that level, that can be changed so."""
        return (not self.among or code in self.among) and (self.until is None or since < self.until)

    def apply(self, model: Model, level: FeatureLevel, rng: random.Random, most: int | None = None) -> list[Mutant]:
        """Mutants of a model that is valid at a level, each invalid there.

        Args:
            model: has at least one operation.
            level: of the device that is asked.
            rng: picks among the places.
            most: the largest number of mutants; all of them when None.
        """
        if level < self.since or (self.until is not None and level >= self.until):
            return []
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


CONTROL_FLOW = (OperationType.IF, OperationType.WHILE)
MUTATIONS: tuple[Mutation, ...] = (
    Mutation("execution-order", "operations change places, so that one reads too early", graphs.execution_order),
    Mutation("operand-type", "an operand has a type that the level does not know", operands.operand_type),
    Mutation("operand-rank", "an operand has dimensions that its type does not allow", operands.operand_rank),
    Mutation("operand-scale", "an operand has a scale that its type does not allow", operands.operand_scale),
    Mutation("operand-zero-point", "an operand has a zero point that is out of range", operands.operand_zero_point),
    Mutation("operand-parameters", "an operand has bad per-channel parameters", operands.extra_parameters),
    Mutation("operand-lifetime", "an operand has another lifetime, and is listed so", operands.operand_lifetime),
    Mutation("operand-unlisted", "an operand has another lifetime than the lists say", operands.unlisted_lifetime),
    Mutation("consumers", "the number of consumers is one off", operands.consumers, until=FL5),
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
    Mutation("subgraph-operand", "an operand refers to a graph in a wrong way", flow.subgraph_operands),
    Mutation("branches", "a referenced graph does not fit its operation", flow.branches, among=CONTROL_FLOW),
    Mutation("own-result", "an operation reads what it writes itself", graphs.rewritten(graphs.own_result)),
    Mutation("same-result", "an operation writes one operand twice", graphs.rewritten(graphs.same_result)),
    Mutation("circle", "two operations read one another's results", graphs.circle),
    Mutation("operand-counts", "an operation has too few or many operands", graphs.rewritten(graphs.operand_counts)),
    Mutation("pool-constant", "a constant lies outside its pool, or is too short", operands.pool_constant),
    Mutation("constant-dimensions", "a constant's dimensions do not give its length", operands.constant_dimensions),
    Mutation("signed-numbers", "a number is below 0 or beyond 31 bits", operands.signed_numbers, FL5),
    Mutation("negative-index", "an operation has an index below 0", graphs.rewritten(graphs.negative_index), FL5),
    Mutation("negative-listed", "the lists have an index below 0", graphs.negative_listed, FL5),
    Mutation("graph-circle", "referenced graphs refer to one another", flow.graph_circle, FL4),
    Mutation("negative-code", "an operation's code is below 0", graphs.negative_code, FL5),
    Mutation("bad-graph", "a referenced graph is wrong", flow.bad_graph, FL4),
)  # fmt: skip


def mutants(model: Model, level: FeatureLevel, rng: random.Random, most: int | None = None) -> Iterator[Mutant]:
    """Mutants of every kind, at most so many of each."""
    for mutation in MUTATIONS:
        yield from mutation.apply(model, level, rng, most)


@dataclass(frozen=True)
class Codes:
    """Codes of types or operations that no level below one knows, though later levels may.

    Attributes:
        mutation: with these codes; its changes are those that the last of the levels offers.
        level: the last level at which all of them are wrong.
    """

    mutation: Mutation
    level: FeatureLevel


def _codes() -> Iterator[Codes]:
    """The tables of codes of the older levels; that of the newest is the common mutation's."""
    kinds = (("operand-type", operands.operand_type, (FL2, FL3, FL4)),)
    kinds += (("operation-type", graphs.operation_type, (FL1, FL2, FL3, FL4, FL5, FL6)),)  # type: ignore[assignment]
    for name, changes, levels in kinds:
        sentence = next(m.sentence for m in MUTATIONS if m.name == name)
        for level in levels:
            until = FeatureLevel(level + 1)
            yield Codes(Mutation(f"{name}-{level.version}", sentence, changes, until=until), level)


OLDER_CODES: tuple[Codes, ...] = tuple(_codes())


@dataclass(frozen=True)
class BadSetting:
    """A setting with which `prepare_model` must refuse any model; the support query has none.

    Attributes:
        name: for labels.
        how: the preparation.
        text: what is wrong.
        since: the first level that has the setting.
    """

    name: str
    how: Preparation
    text: str
    since: FeatureLevel


BAD_SETTINGS = (
    *(BadSetting("preference", Preparation(preference=n), f"the execution preference is {n}", FL2) for n in (-1, 3)),
    *(BadSetting("priority", Preparation(priority=n), f"the priority is {n}", FL4) for n in (-1, 3)),
)
