"""One test case: models, steps and what is due at each. Frozen and complete; saved as one file, replayable anywhere."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from nnhal import wire
from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.types import FL1, Array, ErrorStatus, ExecutionMode, FeatureLevel, OperandType

FORMAT = 1
DIGITS = 6  # of probabilities, in the digest
OFF_TIES = 0.3183  # keeps zeros, ties and whole steps away from where a value's last digit decides
# What a damaged archive makes the readers of NumPy and of the standard library raise.
DAMAGE = (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)


class Action(str, Enum):
    """What a step asks of the driver."""

    QUERY = "query"  # get_supported_operations
    PREPARE = "prepare"
    EXECUTE = "execute"


@dataclass(frozen=True)
class Expected:
    """What one output should be, and how far off it may be.

    Attributes:
        value: before rounding, in float64: real numbers for floats; for quantised types steps, saturated but not
            rounded; whole numbers for integers and booleans.
        required: largest legal difference per element; infinite where the specification leaves it open.
        unit: size of one rounding unit per element for the quality limits, or None.
        terms: number of roundings behind an element.
        exact: any difference at all is worth a report, though `required` may allow it.
        sums: the sum of errors is judged; not in relaxed models, where one rounded weight moves many results alike.
        distribution: probability of each class, [rows, classes]: the output is [rows, samples], drawn at random and
            judged by how often each class comes. `value` says nothing then.
        differs_from: the output must not equal that of the step so many steps earlier; 0 for none.
    """

    name: str
    type: OperandType
    shape: tuple[int, ...]
    value: Array
    required: Array
    unit: Array | None = None
    terms: float = 0.0
    exact: bool = False
    sums: bool = True
    distribution: Array | None = None
    differs_from: int = 0


@dataclass(frozen=True)
class Returns:
    """The step must succeed; an execution must return these outputs.

    Attributes:
        groups: by row along the first dimension of every output: rows of one group may come in any order, the same in
            all outputs. Empty where the order is due.
    """

    outputs: tuple[Expected, ...] = ()
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rejects:
    """The step must be refused.

    Attributes:
        statuses: which answers count; empty means any but NONE.
        rule: label of the rule that the model breaks.
        text: the rule as a sentence, and how it is broken.
    """

    statuses: tuple[ErrorStatus, ...]
    rule: str
    text: str


@dataclass(frozen=True)
class MayReject:
    """The step may be refused, which ends the case well, or succeed, which leaves it to a later step to refuse."""

    rule: str
    text: str


@dataclass(frozen=True)
class Unspecified:
    """The step may end in any way, but must neither die nor hang."""


Expectation = Returns | Rejects | MayReject | Unspecified
EXPECTATIONS: dict[str, type[Expectation]] = {c.__name__: c for c in (Returns, Rejects, MayReject, Unspecified)}


@dataclass(frozen=True)
class Step:
    """One thing asked of the driver.

    Attributes:
        model: index of the case's model; an execution uses what the last preparation of that model gave.
        inputs: stored values for an execution, in the order of the model's input list; None where omitted.
        client: which client asks, where a case has several.
        thread: which thread of the client asks; steps of one thread run in order.
    """

    action: Action
    model: int = 0
    expect: Expectation = field(default_factory=Returns)
    mode: ExecutionMode = ExecutionMode.SYNCHRONOUS
    inputs: tuple[Array | None, ...] = ()
    client: int = 0
    thread: int = 0


@dataclass(frozen=True)
class Origin:
    """Where a case comes from: what its id is made of, and enough to make it again.

    Attributes:
        operation: name of the operation, or of what else is tested.
        signature: its signature's id, with dots.
        kind: `example`, `drawn`, `broken`, `mutated`.
        number: within the kind.
        rule: label of the rule that a negative case breaks.
        detail: shapes, parameters and seed in words, for messages.
    """

    operation: str
    signature: str
    kind: str
    number: int
    mode: str = "sync"
    rule: str = ""
    detail: str = ""
    seed: str = ""

    @property
    def batch(self) -> str:
        """The id without the number: cases that differ only in it are one pytest item."""
        return f"{self.operation}-{self.signature}-{self.mode}-{self.kind}"


@dataclass(frozen=True)
class TestCase:
    """Models and the steps to take with them. After it is made no later stage looks anything up.

    Attributes:
        level: the level that a driver needs to be asked; a driver below it is NOT_APPLICABLE.
        until: the level that lifts the rule which a negative case breaks; a driver at or above it is NOT_APPLICABLE.
    """

    __test__ = False  # not a pytest class

    origin: Origin
    models: tuple[Model, ...]
    steps: tuple[Step, ...]
    level: FeatureLevel = FL1
    until: FeatureLevel | None = None
    digest: str = ""

    @property
    def negative(self) -> bool:
        """Whether something must be refused."""
        return any(isinstance(step.expect, Rejects) for step in self.steps)

    @property
    def id(self) -> str:
        """Name of the case: operation, signature, mode, kind, number, and a digest of the content."""
        return f"{self.origin.batch}-{self.origin.number}-{self.digest}"


def seal(case: TestCase) -> TestCase:
    """The case with the digest of its content filled in.

    It covers expected values in units of what is allowed: in the digits below, processors and releases of NumPy differ.
    """
    steps = tuple(replace(step, expect=_coarse(step.expect)) for step in case.steps)
    head, arrays = _to_parts(replace(case, digest="", steps=steps))
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.tobytes())
    return replace(case, digest=digest.hexdigest()[:6])


def _coarse(expect: Expectation) -> Expectation:
    if not isinstance(expect, Returns):
        return expect
    outputs = []
    for due in expect.outputs:
        open_ = np.isinf(due.required) | np.isnan(due.value)
        with np.errstate(all="ignore"):
            steps = np.floor(due.value / due.required + OFF_TIES)
        value = np.where(open_, 0.0, np.where(due.required > 0, steps, due.value))
        drawn = None if due.distribution is None else np.round(due.distribution, DIGITS)
        coarse = replace(due, value=value, required=open_.astype(np.float64), unit=None, distribution=drawn)
        outputs.append(coarse)
    return Returns(tuple(outputs), expect.groups)


def save(case: TestCase, path: Path) -> None:
    """Writes a case to a file: a JSON head with a format number, and arrays; no pickle."""
    head, arrays = _to_parts(case)
    raw = np.frombuffer(json.dumps(head).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, head=raw, **arrays)


def load(path: Path) -> TestCase:
    """Reads a case.

    Raises:
        UsageError: the file is missing, no case file, damaged, or of another format.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            head = json.loads(stored["head"].tobytes())
            arrays = {name: stored[name] for name in stored.files if name != "head"}
    except OSError as error:
        raise UsageError(f"case file {path} cannot be read: {error.strerror}") from None
    except DAMAGE:
        raise UsageError(f"{path} is not a case file; save one with a failing run, or give a case id") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        found = head.get("format") if isinstance(head, dict) else None
        raise UsageError(f"case file {path} has format {found}, {FORMAT} is understood: use the suite that wrote it")
    try:
        return _from_parts(head, arrays)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"case file {path} is damaged ({error}): make it again from its id") from None


def _to_parts(case: TestCase) -> tuple[dict[str, Any], dict[str, Array]]:
    arrays: dict[str, Array] = {}

    def put(array: Array | None) -> str | None:
        if array is None:
            return None
        arrays[f"a{len(arrays)}"] = np.asarray(array, order="C")
        return f"a{len(arrays) - 1}"

    for number, model in enumerate(case.models):
        arrays[f"model{number}"] = np.frombuffer(wire.dumps(model), np.uint8)
    head = {
        "format": FORMAT,
        "origin": {f.name: getattr(case.origin, f.name) for f in fields(case.origin)},
        "models": len(case.models),
        "level": int(case.level),
        "until": None if case.until is None else int(case.until),
        "digest": case.digest,
        "steps": [
            {
                "action": step.action.value,
                "model": step.model,
                "mode": int(step.mode),
                "inputs": [put(value) for value in step.inputs],
                "client": step.client,
                "thread": step.thread,
                "expect": _expectation_to_json(step.expect, put),
            }
            for step in case.steps
        ],
    }
    return head, arrays


def _expectation_to_json(expect: Expectation, put: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": type(expect).__name__}
    if isinstance(expect, Rejects):
        row |= {"statuses": [int(s) for s in expect.statuses], "rule": expect.rule, "text": expect.text}
    elif isinstance(expect, MayReject):
        row |= {"rule": expect.rule, "text": expect.text}
    elif isinstance(expect, Returns):
        row["outputs"] = [
            {
                "name": o.name,
                "type": int(o.type),
                "shape": list(o.shape),
                "value": put(o.value),
                "required": put(o.required),
                "unit": put(o.unit),
                "terms": o.terms,
                "exact": o.exact,
                "sums": o.sums,
                "distribution": put(o.distribution),
                "differs_from": o.differs_from,
            }
            for o in expect.outputs
        ]
        if expect.groups:
            row["groups"] = list(expect.groups)
    return row


def _from_parts(head: Mapping[str, Any], arrays: Mapping[str, Array]) -> TestCase:
    models = tuple(wire.loads(Model, arrays[f"model{n}"].tobytes()) for n in range(head["models"]))
    steps = tuple(_step_from_json(row, models, arrays) for row in head["steps"])
    until = None if head["until"] is None else FeatureLevel(head["until"])
    level, digest = FeatureLevel(head["level"]), head["digest"]
    if not isinstance(digest, str):
        raise ValueError("the digest is no text")
    return TestCase(Origin(**head["origin"]), models, steps, level, until, digest)


def _step_from_json(row: Mapping[str, Any], models: Sequence[Model], arrays: Mapping[str, Array]) -> Step:
    action, number = Action(row["action"]), row["model"]
    if number not in range(len(models)):
        raise ValueError(f"a step with model {number} of {len(models)}")
    inputs = tuple(None if name is None else arrays[name] for name in row["inputs"])
    due = len(models[number].main.input_indexes)
    if action == Action.EXECUTE and inputs and len(inputs) != due:
        raise ValueError(f"a step with {len(inputs)} inputs for a model with {due}")
    expect = _expectation_from_json(row["expect"], arrays)
    return Step(action, number, expect, ExecutionMode(row["mode"]), inputs, row["client"], row["thread"])


def _expectation_from_json(row: Mapping[str, Any], arrays: Mapping[str, Array]) -> Expectation:
    kind = EXPECTATIONS[row["kind"]]
    if kind is Rejects:
        return Rejects(tuple(ErrorStatus(s) for s in row["statuses"]), row["rule"], row["text"])
    if kind is MayReject:
        return MayReject(row["rule"], row["text"])
    if kind is Unspecified:
        return Unspecified()
    return Returns(
        tuple(
            Expected(
                o["name"],
                OperandType(o["type"]),
                tuple(o["shape"]),
                arrays[o["value"]],
                arrays[o["required"]],
                None if o["unit"] is None else arrays[o["unit"]],
                o["terms"],
                o["exact"],
                o["sums"],
                None if o["distribution"] is None else arrays[o["distribution"]],
                o["differs_from"],
            )
            for o in row["outputs"]
        ),
        tuple(row.get("groups", ())),
    )
