"""Tells failures apart by what fails, so that a thousand failing graphs become a few to look at."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.case import TestCase
from harness.expectations import Agrees, Returns
from harness.record import Record, plain
from harness.verdict import Cause, Verdict
from nnhal.errors import UsageError
from nnhal.model import Model, Operation, Subgraph, is_tensor
from nnhal.types import OperandType, OperationType

FILE = "failures.jsonl"
NEW_PER_KEY = 10  # failures alike at first sight that are minimised while nothing known explains them
EXPLAINED_PER_KEY = 2  # the same where operations that are known to fail are in the graph
EXPLAINED = 20  # failures that are minimised to one known
MINIMISED = 150  # in a campaign
WRITE_SECONDS = 5.0  # between two times that counts are written
WORDS = 160  # characters of a message that tell failures apart
SHORT = 60  # characters of it in one line about a failure
MOST_NAMED = 4  # operations in that line
_OF_VALUES = (Cause.VALUE.value, Cause.INCONSISTENT.value)
_UNSURE = (Verdict.FLAKY.value, Verdict.INTERNAL.value)
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Look:
    """What is seen of a failure.

    Attributes:
        verdict: and cause and stage as in the record.
        operation: that gives the output which is furthest off; empty where no output is.
        mismatch: in what way it is wrong.
        operations: of the model, referenced graphs included, each with its types.
        repeated: what came of running it again.
    """

    verdict: str
    cause: str
    stage: str
    operation: str
    mismatch: str
    operations: tuple[str, ...]
    repeated: str = ""

    @property
    def first_key(self) -> tuple[str, ...]:
        """What bounds the number of failures that are minimised."""
        return (self.verdict, self.cause, self.stage, self.operation)

    @property
    def minimisable(self) -> bool:
        """Whether the failure is of one model that fails by itself."""
        whole = self.repeated in ("sequence", "differs") or self.verdict in _UNSURE
        return bool(self.operations) and not whole and self.stage not in ("start", "make")

    @property
    def key(self) -> tuple[str, ...]:
        """What tells minimised failures apart."""
        return (self.verdict, self.cause, self.mismatch, *self.operations)


def look_at(case: TestCase, record: Record) -> Look:
    """A first look at a failing case, made or not."""
    model = case.models[0] if case.models else None
    return Look(
        record.verdict,
        record.cause,
        record.stage,
        _giver(case, record),
        mismatch(record),
        operations(model) if model else (),
        record.repeated,
    )


def mismatch(record: Record) -> str:
    """In what way a case fails, without the numbers."""
    if record.cause in _OF_VALUES and record.worst is not None:
        got, due = (float(record.worst[name]) for name in ("got", "expected"))
        if math.isnan(got) or math.isinf(got):
            return "NaN" if math.isnan(got) else "infinite"
        return "value" if math.isfinite(due) else "finite"
    if record.cause == Cause.VALUE.value:
        return "value"
    line = record.message.partition("\n")[0]
    return _NUMBERS.sub("#", line)[:WORDS]


def operations(model: Model) -> tuple[str, ...]:
    """The operations of a model in words, sorted: name and types of tensors."""
    graphs = (model.main, *model.referenced)
    return tuple(sorted(operation_words(graph, operation) for graph in graphs for operation in graph.operations))


def operation_words(graph: Subgraph, operation: Operation) -> str:
    """An operation with the types of its tensors, each once."""
    kinds = [graph.operands[index].type for index in (*operation.inputs, *operation.outputs)]
    names = [OperandType(kind).name.removeprefix("TENSOR_").lower() for kind in kinds if is_tensor(kind)]
    return f"{_name(operation)} {'/'.join(dict.fromkeys(names))}".strip()


def _name(operation: Operation) -> str:
    return OperationType(operation.type).name


def _giver(case: TestCase, record: Record) -> str:
    """Name of the operation that gives the output which a record finds fault with."""
    if record.worst is None:
        return ""
    name = str(record.worst["output"])
    for step in case.steps:
        outputs: tuple[tuple[str, int, int], ...] = ()  # what each is called, its model, its position there
        if isinstance(step.expect, Returns):
            outputs = tuple((due.name, step.model, n) for n, due in enumerate(step.expect.outputs))
        elif isinstance(step.expect, Agrees):
            model = case.steps[step.expect.step].model
            outputs = tuple((f"output {n}", model, due.position) for n, due in enumerate(step.expect.outputs))
        for called, model, position in outputs:
            if called == name or name.startswith(f"{called}, "):  # behind the comma: against which driver
                graph = case.models[model].main
                index = graph.output_indexes[position]
                return next((_name(o) for o in graph.operations if index in o.outputs), "")
    return ""


@dataclass
class Distinct:
    """Failures that are one as far as can be told.

    Attributes:
        record: of its minimised case, or of the first failing one where none was minimised.
        look: at that.
        note: why it was not minimised.
        pending: it was not come to.
        seeds: of the graphs that were minimised to it, by mix.
        alike: of graphs that are counted to it because its operations are in them and they fail the same way.
    """

    record: Record
    look: Look
    note: str = ""
    pending: bool = False
    seeds: dict[str, list[int]] = field(default_factory=dict)
    alike: dict[str, list[int]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Name of its files."""
        return self.record.id

    @property
    def minimised_to(self) -> int:
        """Number of graphs that were minimised to it."""
        return sum(map(len, self.seeds.values()))

    @property
    def count(self) -> int:
        """Number of graphs that it is seen in."""
        return self.minimised_to + sum(map(len, self.alike.values()))

    @property
    def minimised(self) -> bool:
        """Whether the case is smaller than what was drawn, or could not be made so."""
        return not self.note and not self.pending

    @property
    def line(self) -> str:
        """The failure in one line."""
        what = ", ".join(self.look.operations[:MOST_NAMED]) + (
            ", ..." if len(self.look.operations) > MOST_NAMED else ""
        )
        how = self.look.mismatch if len(self.look.mismatch) <= SHORT else f"{self.look.mismatch[:SHORT]}..."
        return f"{self.record.verdict} {self.record.cause} ({how}) in {what or 'no model'}: {self.id}"

    def explains(self, look: Look) -> bool:
        """Whether a graph fails as this does and holds all of its operations."""
        if not self.minimised or not self.look.operations:
            return False
        same = (self.look.verdict, self.look.cause) == (look.verdict, look.cause)
        if look.cause in _OF_VALUES:
            same = same and self.look.mismatch == look.mismatch
        return same and Counter(self.look.operations) <= Counter(look.operations)

    def row(self) -> dict[str, Any]:
        """The failure for its line in the file."""
        return {
            "id": self.id,
            "verdict": self.record.verdict,
            "cause": self.record.cause,
            "mismatch": self.look.mismatch,
            "operations": list(self.look.operations),
            "count": self.count,
            "note": self.note,
            "pending": self.pending,
            "seeds": self.seeds,
            "alike": self.alike,
            "look": asdict(self.look),
            "record": asdict(self.record),
        }


class Failures:
    """The distinct failures of one driver's run, in `failures.jsonl` of its folder."""

    def __init__(self, folder: Path) -> None:
        self.distinct: list[Distinct] = []
        self._path = folder / FILE
        self._minimised: Counter[tuple[str, ...]] = Counter()
        self._written = time.monotonic()
        self._known: set[tuple[str, int]] = set()
        if self._path.is_file():
            self._read()

    def knows(self, mix: str, seed: int) -> bool:
        """Whether a graph is counted."""
        return (mix, seed) in self._known

    def wants(self, look: Look, closing: bool = False) -> bool:
        """Whether a failure is worth minimising; it is then taken as being minimised.

        Args:
            look: at the failure.
            closing: no more graphs are made, so that only what nothing explains is worth the time.
        """
        if not look.minimisable:
            return False
        known = self._explanation(look)
        most = NEW_PER_KEY
        if known is not None:
            most = 0 if closing or known.minimised_to >= EXPLAINED else EXPLAINED_PER_KEY
        if self._minimised[look.first_key] >= most or self._minimised.total() >= MINIMISED:
            return False
        self._minimised[look.first_key] += 1
        return True

    def add(self, found: Distinct, mix: str, seed: int) -> bool:
        """Counts a failure that was minimised or cannot be; says whether there was none like it."""
        self._known.add((mix, seed))
        same = next((one for one in self.distinct if _alike(one, found)), None)
        if same is None:
            self.distinct.append(found)
        (same or found).seeds.setdefault(mix, []).append(seed)
        self.write(soon=same is None)
        return same is None

    def count(self, look: Look, mix: str, seed: int) -> bool:
        """Counts a failure that is not minimised to what explains it, or else to what looks like it, if anything."""
        found = self._explanation(look) or next(
            (one for one in self.distinct if one.look.first_key == look.first_key), None
        )
        if found is None:
            return False
        self._known.add((mix, seed))
        found.alike.setdefault(mix, []).append(seed)
        self.write()
        return True

    def _explanation(self, look: Look) -> Distinct | None:
        """The largest known failure whose operations are in a graph that fails the same way."""
        found = [one for one in self.distinct if one.explains(look)]
        return max(found, key=lambda one: len(one.look.operations), default=None)

    def write(self, soon: bool = False) -> None:
        """Writes the file, at once or when it was not written for a while."""
        if not soon and time.monotonic() - self._written < WRITE_SECONDS:
            return
        if not self.distinct and not self._path.exists():
            return
        part = self._path.with_suffix(".part")
        with part.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(plain(one.row())) + "\n" for one in self.distinct)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path)
        self._written = time.monotonic()

    def _read(self) -> None:
        try:
            rows = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
            found = [_distinct(row) for row in rows]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{self._path} is damaged ({error}): delete it, and failures are minimised anew") from None
        self.distinct = [one for one in found if not one.pending]  # what was not come to is failing and not counted
        for one in self.distinct:
            self._minimised[one.look.first_key] += one.minimised_to
            for seeds in (one.seeds, one.alike):
                self._known.update((mix, seed) for mix, numbers in seeds.items() for seed in numbers)


def _alike(one: Distinct, other: Distinct) -> bool:
    """Whether two failures are one: by all that a minimised case shows, or by the first look where neither is."""
    if one.minimised != other.minimised:
        return False
    if one.minimised:
        return one.look.key == other.look.key
    same = (one.look.mismatch, one.look.repeated, one.note) == (other.look.mismatch, other.look.repeated, other.note)
    return same and one.look.first_key == other.look.first_key


def _distinct(row: Mapping[str, Any]) -> Distinct:
    look = dict(row["look"])
    look["operations"] = tuple(look["operations"])
    record = dict(row["record"])
    record["notes"] = tuple(record["notes"])
    seeds, alike = (_seeds(row[name]) for name in ("seeds", "alike"))
    return Distinct(Record(**record), Look(**look), row["note"], row["pending"], seeds, alike)


def _seeds(found: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
    return {mix: [int(seed) for seed in numbers] for mix, numbers in found.items()}
