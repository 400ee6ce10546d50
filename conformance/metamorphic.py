"""Metamorphic pairs: two models that must give the same, run on one driver and held against one another.

No oracle is asked: each side may be off by what the specification allows, so the two may differ by the sum of both.
What pairs there are say `metamorphic_twins` (one operation, written in two ways), `metamorphic_equals` (an operation
and others that together do the same) and `metamorphic_undone` (an operation and another that undoes it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance import metamorphic_equals, metamorphic_twins, metamorphic_undone
from conformance.cases import drawn
from conformance.nets import Net, NoPairError, Pair
from harness.batch import Batch
from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Agreement, Agrees, Returns
from harness.make import describe
from harness.steps import Action
from nnhal.operations import Signature
from nnhal.types import Array, FeatureLevel, OperandType
from opset import OPSET
from opset.branch import Branch
from opset.call import Argument, Call
from opset.definition import OperationDef
from opset.tracking import Tracked, certain, track_graph

TRIES = 200  # draws in search of a call that a pair can be made of
CASES = {"ci": 1, "quick": 2, "full": 12, "nightly": 60}  # of each operation and kind of pair
RARE = frozenset({"constant", "numbering", "copies"})  # half as many will do: they hardly depend on the operation
Make = Callable[[Call, int], Pair]


@dataclass(frozen=True)
class Kind:
    """A kind of pair.

    Attributes:
        name: in case ids, with dots between words.
        concerns: whether calls of a signature have such pairs.
        make: the pair of a call; the number picks among several ways. Raises NoPairError where this call has none.
    """

    name: str
    concerns: Callable[[OperationDef, Signature], bool]
    make: Make


KINDS = (
    *(Kind(*row) for row in metamorphic_twins.KINDS),
    Kind("equal", metamorphic_equals.concerns, metamorphic_equals.equal),
    Kind("undone", metamorphic_undone.concerns, metamorphic_undone.undone),
)


def batches(profile: str, seed: int) -> Iterator[Batch]:
    """One batch for each operation, kind of pair that it has, and row of types that its turn comes to.

    The first case is of the first row, the others of different ones in each kind.
    """
    for definition in OPSET.values():
        for place, kind in enumerate(KINDS):
            signatures = by_rows([s for s in definition.signatures if kind.concerns(definition, s)])
            if not signatures:
                continue
            first, rest = signatures[:1], signatures[1:]
            start = place % max(len(rest), 1)
            turned = [*first, *rest[start:], *rest[:start]]
            count = -(-CASES[profile] // 2) if kind.name in RARE else CASES[profile]
            chosen = {number: turned[number % len(turned)] for number in range(count)}
            for row in dict.fromkeys(signature.row.id for signature in chosen.values()):
                mine = {number: signature for number, signature in chosen.items() if signature.row.id == row}
                yield _batch(definition, kind, row, mine, seed)


def by_rows(signatures: Sequence[Signature]) -> list[Signature]:
    """One signature of each row of types, then the next of each."""
    seen: dict[str, int] = {}
    places: list[tuple[int, int]] = []
    for signature in signatures:
        seen[signature.row.id] = seen.get(signature.row.id, 0) + 1
        places.append((seen[signature.row.id], len(places)))
    return [signatures[number] for _, number in sorted(places)]


def _batch(definition: OperationDef, kind: Kind, row: str, chosen: Mapping[int, Signature], seed: int) -> Batch:
    origin = Origin(definition.name, f"{row}.{kind.name}", "metamorphic", 0)

    def make(number: int) -> TestCase:
        words = f"{seed}/{origin.batch}/{number}"
        signature = chosen[number]
        for attempt in range(TRIES):
            call = drawn(definition, signature, f"{words}/{attempt}")
            try:
                pair = kind.make(call, number)
                made = _case(pair)
            except NoPairError:
                continue
            detail = f"{pair.text}; {describe(call)}"
            return seal(replace(made, origin=replace(origin, number=number, seed=words, detail=detail)))
        raise ValueError(f"no draw of {signature.id} makes a pair")

    return Batch(origin, tuple(chosen), make)


def _tracked(net: Net) -> list[Tracked]:
    """What each output of a model should be, and how far off it may be."""
    values = [certain(Argument(OperandType.TENSOR_FLOAT32, v.shape, value=v)) for v in net.values]
    return track_graph(Branch(net.model()), values, relaxed=False)


def _case(pair: Pair) -> TestCase:
    here, there = _tracked(pair.second), _tracked(pair.first)
    agreements = []
    for tracked, link in zip(here, pair.links, strict=True):
        other = there[link.position]
        due, error = (_moved(a, link.axes, link.first, tracked.error.shape) for a in (other.result.stored, other.error))
        if due.shape != tracked.result.stored.shape:
            raise NoPairError
        apart = _apart(due, tracked.result.stored)
        allowed = tracked.error + error
        if (apart > allowed).any():
            raise NoPairError  # by the specification they are not the same
        agreements.append(
            Agreement(link.position, allowed + np.where(np.isfinite(allowed), apart, 0), link.axes, 0, link.first)
        )
    if not any(np.isfinite(a.allowed).any() for a in agreements):
        raise NoPairError  # nothing would be compared
    steps = [
        *(Step(Action.QUERY, number) for number in (0, 1)),
        *(Step(Action.PREPARE, number) for number in (0, 1)),
        Step(Action.EXECUTE, 0, Returns(), inputs=tuple(pair.first.values)),
        Step(Action.EXECUTE, 1, Agrees(4, tuple(agreements), pair.text), inputs=tuple(pair.second.values)),
    ]
    level = FeatureLevel(max(pair.first.level, pair.second.level))
    return TestCase(Origin("", "", "", 0), (pair.first.model(), pair.second.model()), tuple(steps), level)


def _moved(array: Array, axes: tuple[int, ...], first: int | None, shape: tuple[int, ...]) -> Array:
    moved = np.transpose(array, axes) if axes else array
    return moved if first is None else moved[first : first + shape[0]]


def _apart(a: Array, b: Array) -> Array:
    """Distance of stored values; none between alike infinities and NaN."""
    first, second = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(first - second)
    alike = (first == second) | (np.isnan(first) & np.isnan(second))
    return np.where(alike, 0.0, np.where(np.isnan(apart), np.inf, apart))
