"""Tables of a run: pure functions from records to what the pages show. Nothing is read here but a Run."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from harness.record import Record, Run
from harness.verdict import Verdict

ORDER = ("PASS", "POOR", "FAIL", "CRASH", "HANG", "FLAKY", "INTERNAL", "NOT_SUPPORTED", "NOT_APPLICABLE", "NOT_RUN")
JUDGED = ("PASS", "FAIL", "POOR", "CRASH", "HANG", "FLAKY")
STRESS = "STRESS"  # the operation of stress runs
ENDINGS = {"PASS": "SUCCESS", "FAIL": "FAILURE"}  # of these in their own words
DRIVER_FAULTS = ("CRASH", "HANG", "FAIL", "FLAKY")  # in the order in which a reader wants them
INTERNAL, POOR, NOT_RUN = Verdict.INTERNAL.value, Verdict.POOR.value, Verdict.NOT_RUN.value
NOT_SUPPORTED, NOT_APPLICABLE = Verdict.NOT_SUPPORTED.value, Verdict.NOT_APPLICABLE.value
UNMEASURABLE = 3e38  # the judge writes the largest float32 where a difference is infinite

COLUMNS = {
    "f32": "32-bit float",
    "f16": "16-bit float",
    "q8": "unsigned 8-bit, asymmetric",
    "q8s": "signed 8-bit, asymmetric",
    "q8ch": "unsigned 8-bit data with a per-channel filter, or per-channel data",
    "q8sch": "signed 8-bit data with a per-channel filter",
    "q8sy": "signed 8-bit, symmetric",
    "q16": "16-bit quantised",
    "i32": "32-bit integer",
    "b8": "boolean",
    "any": "every type",
    "other": "no type of its own",
}
_COLUMN_OF = (
    ("quant8_asymm_signed_per_channel", "q8sch"),
    ("quant8_asymm_per_channel", "q8ch"),
    ("quant8_symm_per_channel", "q8ch"),
    ("per_channel", "q8ch"),
    ("quant8_asymm_signed", "q8s"),
    ("quant8_asymm", "q8"),
    ("quant8_symm", "q8sy"),
    ("quant16", "q16"),
    ("float32", "f32"),
    ("float16", "f16"),
    ("int32", "i32"),
    ("bool8", "b8"),
)


@lru_cache(maxsize=1 << 14)
def column(signature: str) -> str:
    """The matrix column of a signature id: the type of its first part; a conversion stands under what it reads."""
    first = re.split(r"[./]", signature, maxsplit=1)[0]
    if first in COLUMNS:
        return first
    return next((short for prefix, short in _COLUMN_OF if first.startswith(prefix)), "other")


def real(value: object) -> float | None:
    """A number of a record; infinities and NaN are words there. None where there is none."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def largest(values: Iterable[object]) -> float | None:
    """The largest of the numbers; a NaN or what cannot be measured counts as infinite."""
    found = [math.inf if number != number or number > UNMEASURABLE else number for number in map(real, values)
             if number is not None]  # fmt: skip
    return max(found, default=None)


@dataclass
class Tally:
    """Number of cases by verdict.

    Attributes:
        counts: by verdict.
        waived: how many of the driver's failures a waiver covers.
        valid: how many of the judged cases put a valid model to the driver; the others break a rule.
    """

    counts: Counter[str] = field(default_factory=Counter)
    waived: int = 0
    valid: int = 0

    def add(self, record: Record) -> None:
        """Counts a record."""
        self.counts[record.verdict] += 1
        self.waived += bool(record.waiver and record.verdict in DRIVER_FAULTS)
        self.valid += record.verdict in JUDGED and not record.rule

    def merge(self, other: Tally) -> None:
        """Counts what another one has counted."""
        self.counts.update(other.counts)
        self.waived += other.waived
        self.valid += other.valid

    def __getitem__(self, verdict: str) -> int:
        return self.counts[verdict]

    @property
    def total(self) -> int:
        """Number of cases."""
        return self.counts.total()

    @property
    def judged(self) -> int:
        """Number of cases in which the driver was judged."""
        return sum(self.counts[verdict] for verdict in JUDGED)

    @property
    def passed(self) -> int:
        """Number of cases that passed; poor ones are not among them."""
        return self.counts[Verdict.PASS.value]

    @property
    def failed(self) -> int:
        """Number of cases that the driver failed, waived or not."""
        return sum(self.counts[verdict] for verdict in DRIVER_FAULTS)

    @property
    def refused(self) -> bool:
        """Whether no valid model was judged because the driver supports none; that rules held is no support."""
        return not self.valid and bool(self.counts[NOT_SUPPORTED])

    @property
    def state(self) -> str:
        """The worst that happened, in one word."""
        counts = self.counts
        order = (
            ("failed", self.failed > self.waived),
            ("internal", counts[INTERNAL]),
            ("waived", self.failed),
            ("poor", counts[POOR]),
            ("unrun", counts[NOT_RUN]),
            ("passed", self.passed and not self.refused),
            ("unsupported", counts[NOT_SUPPORTED]),
            ("inapplicable", counts[NOT_APPLICABLE]),
        )
        return next((word for word, holds in order if holds), "empty")

    @property
    def words(self) -> str:
        """All counts in words."""
        parts = [f"{self.counts[verdict]:,} {verdict}" for verdict in ORDER if self.counts[verdict]]
        parts += [f"{self.waived:,} of the failures waived"] if self.waived else []
        return ", ".join(parts) or "no cases"


@dataclass(frozen=True)
class Matrix:
    """Operations by types.

    Attributes:
        cells: by operation and column; a pair without cases has none.
    """

    operations: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Tally]
    by_operation: Mapping[str, Tally]
    by_column: Mapping[str, Tally]
    total: Tally


@dataclass
class SignatureRow:
    """One signature of an operation.

    Attributes:
        error: largest observed error in units of the allowed one.
        ulp: largest observed error in units in the last place, for floats.
        compared: number of cases whose outputs were compared.
        masked: share of the compared elements that the specification leaves open, on average over the cases.
        behaviour: it is no operation but a part of the contract, and a scenario.
        owed: what the driver owes in the scenario.
    """

    operation: str
    signature: str
    tally: Tally = field(default_factory=Tally)
    error: float | None = None
    ulp: float | None = None
    compared: int = 0
    masked: float = 0.0
    behaviour: bool = False
    owed: str = ""

    @property
    def column(self) -> str:
        """The matrix column that it counts in."""
        return column(self.signature)


def planned(run: Run) -> dict[str, int]:
    """Number of selected cases by batch, as the plan says."""
    batches = run.plan.get("batches")
    if not isinstance(batches, dict):
        return {}
    return {str(name): int(count) for name, count in batches.items() if isinstance(count, int)}


def split_batch(batch: str) -> tuple[str, str]:
    """Operation and signature of a batch's name (`operation-signature-mode-kind`)."""
    operation, _, rest = batch.partition("-")
    return operation, rest.rsplit("-", 2)[0] if rest.count("-") >= 2 else rest


def is_behaviour(batch: str) -> bool:
    """Whether a batch is a scenario of how a driver behaves, and none of an operation."""
    return batch.endswith("-behaviour") or batch.startswith(f"{STRESS}-")


def missing(run: Run) -> Counter[tuple[str, str]]:
    """Number of cases that were selected and have no record, by operation and signature."""
    found: Counter[tuple[str, str]] = Counter()
    for batch, count in run.missing().items():
        found[split_batch(batch)] += count
    return found


def signatures(run: Run) -> list[SignatureRow]:
    """One row a signature, in the order of their names."""
    rows: dict[tuple[str, str], SignatureRow] = {}
    masked: dict[tuple[str, str], float] = defaultdict(float)
    for record in run.records.values():
        key = record.operation, record.signature
        row = rows.setdefault(key, SignatureRow(*key))
        row.tally.add(record)
        if is_behaviour(record.batch):
            row.behaviour, row.owed = True, record.detail.partition(";")[0]
        if real(record.error) is not None:
            row.compared += 1
            masked[key] += real(record.masked) or 0.0
            row.error = largest((row.error, record.error))
            row.ulp = largest((row.ulp, record.ulp))
    for key, count in missing(run).items():
        rows.setdefault(key, SignatureRow(*key)).tally.counts[NOT_RUN] += count
    for batch in planned(run):
        if is_behaviour(batch) and split_batch(batch) in rows:
            rows[split_batch(batch)].behaviour = True
    for key, row in rows.items():
        row.masked = masked[key] / row.compared if row.compared else 0.0
    return [rows[key] for key in sorted(rows)]


def joined(found: Sequence[Sequence[SignatureRow]]) -> list[SignatureRow]:
    """The rows of several runs of one driver as those of one."""
    if len(found) == 1:
        return list(found[0])
    rows: dict[tuple[str, str], SignatureRow] = {}
    for other in (row for rows_of_run in found for row in rows_of_run):
        row = rows.setdefault((other.operation, other.signature), SignatureRow(other.operation, other.signature))
        row.masked = _mean((row.masked, row.compared), (other.masked, other.compared))
        row.compared += other.compared
        row.tally.merge(other.tally)
        row.error, row.ulp = largest((row.error, other.error)), largest((row.ulp, other.ulp))
        row.behaviour, row.owed = row.behaviour or other.behaviour, row.owed or other.owed
    return [rows[key] for key in sorted(rows)]


def _mean(*parts: tuple[float, int]) -> float:
    """The mean of means, each over so many."""
    count = sum(number for _, number in parts)
    return sum(value * number for value, number in parts) / count if count else 0.0


def matrix(rows: Iterable[SignatureRow]) -> Matrix:
    """Sums the signatures up by operation and type; behaviour is no operation."""
    cells: dict[tuple[str, str], Tally] = defaultdict(Tally)
    by_operation: dict[str, Tally] = defaultdict(Tally)
    by_column: dict[str, Tally] = defaultdict(Tally)
    total = Tally()
    for row in (row for row in rows if not row.behaviour):
        for tally in (cells[row.operation, row.column], by_operation[row.operation], by_column[row.column], total):
            tally.merge(row.tally)
    columns = tuple(name for name in COLUMNS if name in by_column)
    return Matrix(tuple(sorted(by_operation)), columns, dict(cells), dict(by_operation), dict(by_column), total)


_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|[-+]?\b(?:\d[\d.]*(?:[eE][-+]?\d+)?|inf|nan)\b")
_SERIES = re.compile(r"#(?:[ ,]+#)+")


@lru_cache(maxsize=1 << 12)  # thousands of cases say the same
def shape(message: str) -> str:
    """The first line of a message without its numbers: what many failures have in common."""
    line = first_line(message, 400)
    return _SERIES.sub("#", _NUMBERS.sub("#", line))


def first_line(message: str, limit: int = 400) -> str:
    """The first line of a message, cut off at a limit."""
    line = next(iter(str(message)[: 4 * limit].strip().splitlines()), "")
    return line if len(line) <= limit else line[: limit - 1] + "…"
