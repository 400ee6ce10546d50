"""Cases as files, replayable anywhere: a JSON head with a format number, and arrays; no pickle. And their digest."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.case import Origin, Step, TestCase
from harness.expectations import (
    EXPECTATIONS,
    Agreement,
    Agrees,
    Describes,
    Expectation,
    Expected,
    MayReject,
    Rejects,
    Repeats,
    Returns,
    Short,
    Supports,
    Unspecified,
)
from harness.steps import HOWS, Action, How
from nnhal import wire
from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.parts import Json, Parts
from nnhal.types import Array, ErrorStatus, ExecutionMode, FeatureLevel, OperandType

FORMAT = 1
DIGITS = 6  # of probabilities, in the digest
OFF_TIES = 0.3183  # keeps zeros, ties and whole steps away from where a value's last digit decides

Row = dict[str, Any]
Put = Callable[[Array | None], str | None]


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
    if isinstance(expect, Agrees):
        outputs = tuple(replace(o, allowed=np.isinf(o.allowed).astype(np.float64)) for o in expect.outputs)
        return replace(expect, outputs=outputs)
    if not isinstance(expect, Returns):
        return expect
    return replace(expect, outputs=tuple(_coarse_output(due) for due in expect.outputs))


def _coarse_output(due: Expected) -> Expected:
    open_ = np.isinf(due.required) | np.isnan(due.value)
    with np.errstate(all="ignore"):
        steps = np.floor(due.value / due.required + OFF_TIES)
    value = np.where(open_, 0.0, np.where(due.required > 0, steps, due.value))
    drawn = None if due.distribution is None else np.round(due.distribution, DIGITS)
    return replace(due, value=value, required=open_.astype(np.float64), unit=None, distribution=drawn)


def dumps(case: TestCase) -> bytes:
    """The bytes of a case's file."""
    head, arrays = _to_parts(case)
    raw = np.frombuffer(json.dumps(head).encode(), np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, head=raw, **arrays)
    return file.getvalue()


def save(case: TestCase, path: Path) -> None:
    """Writes a case to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dumps(case))


def load(path: Path) -> TestCase:
    """Reads a case.

    Raises:
        UsageError: the file is missing, no case file, damaged, or of another format.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"case file {path} cannot be read: {error.strerror}") from None
    return loads(data, str(path))


def loads(data: bytes, name: str) -> TestCase:
    """Reads a case out of the bytes of its file.

    Args:
        data: the bytes.
        name: of the file, for messages.

    Raises:
        UsageError: they are no case file's, damaged, or of another format.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            head = json.loads(stored["head"].tobytes())
            arrays = {key: stored[key] for key in stored.files if key != "head"}
    except Exception:  # the readers of archives and arrays raise nearly anything over damaged ones
        raise UsageError(f"{name} is not a case file; save one with a failing run, or give a case id") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        found = head.get("format") if isinstance(head, dict) else None
        raise UsageError(f"case file {name} has format {found}, {FORMAT} is understood: use the suite that wrote it")
    try:
        return _from_parts(head, arrays)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise UsageError(f"case file {name} is damaged ({error}): make it again from its id") from None


def _to_parts(case: TestCase) -> tuple[Row, dict[str, Array]]:
    """Fields that are not always there stand in the head only where they say something."""
    arrays: dict[str, Array] = {}

    def put(array: Array | None) -> str | None:
        if array is None:
            return None
        arrays[f"a{len(arrays)}"] = np.asarray(array, order="C")
        return f"a{len(arrays) - 1}"

    for number, model in enumerate(case.models):
        arrays[f"model{number}"] = np.frombuffer(wire.dumps(model), np.uint8)
    head: Row = {
        "format": FORMAT,
        "origin": {f.name: getattr(case.origin, f.name) for f in fields(case.origin)},
        "models": len(case.models),
        "level": int(case.level),
        "until": None if case.until is None else int(case.until),
        "digest": case.digest,
        "steps": [_step_to_json(step, put) for step in case.steps],
    }
    if case.highest is not None:
        head["highest"] = int(case.highest)
    for name in ("needs", "observe"):
        if getattr(case, name):
            head[name] = list(getattr(case, name))
    return head, arrays


def _step_to_json(step: Step, put: Put) -> Row:
    row: Row = {
        "action": step.action.value,
        "model": step.model,
        "mode": int(step.mode),
        "inputs": [put(value) for value in step.inputs],
        "client": step.client,
        "thread": step.thread,
        "expect": _expectation_to_json(step.expect, put),
    }
    if step.slot is not None:
        row["slot"] = step.slot
    if step.how is not None:
        parts = Parts()
        data = wire.encode(type(step.how), step.how, parts)
        row["how"] = [type(step.how).__name__, data, [bytes(blob).hex() for blob in parts.blobs]]
    return row


def _expectation_to_json(expect: Expectation, put: Put) -> Row:
    row: Row = {"kind": type(expect).__name__}
    if isinstance(expect, Rejects):
        row |= {"statuses": [int(s) for s in expect.statuses], "rule": expect.rule, "text": expect.text}
        if expect.valid:
            row["valid"] = True
    elif isinstance(expect, MayReject):
        row |= {"rule": expect.rule, "text": expect.text}
    elif isinstance(expect, Returns):
        row["outputs"] = [_output_to_json(output, put) for output in expect.outputs]
        if expect.groups:
            row["groups"] = list(expect.groups)
    elif isinstance(expect, Short):
        row |= {"outputs": list(expect.outputs), "shapes": [list(s) for s in expect.shapes]}
        row["known"] = [list(s) for s in expect.known]
    elif isinstance(expect, Agrees):
        row |= {"step": expect.step, "text": expect.text}
        row["outputs"] = [
            {
                "position": o.position,
                "allowed": put(o.allowed),
                "axes": list(o.axes),
                "shift": o.shift,
                "first": o.first,
                **({"bits": True} if o.bits else {}),
            }
            for o in expect.outputs
        ]
    elif isinstance(expect, Describes):
        row["same_as"] = expect.same_as
    elif isinstance(expect, Repeats):
        row["step"] = expect.step
    elif isinstance(expect, Supports):
        row |= {"operations": list(expect.operations), "step": expect.step, "alike": expect.alike, "text": expect.text}
        row["kept"] = [list(pair) for pair in expect.kept]
    if isinstance(expect, (Returns, Short, Supports)) and expect.unless:
        row["unless"] = [int(status) for status in expect.unless]
    if isinstance(expect, (Returns, Short)) and expect.declines:
        row["declines"] = [int(status) for status in expect.declines]
    return row


def _output_to_json(output: Expected, put: Put) -> Row:
    special: Row = {"stored": output.stored} if output.stored else {}
    if not output.quality:
        special["quality"] = False
    return special | {
        "name": output.name,
        "type": int(output.type),
        "shape": list(output.shape),
        "value": put(output.value),
        "required": put(output.required),
        "unit": put(output.unit),
        "terms": output.terms,
        "exact": output.exact,
        "sums": output.sums,
        "distribution": put(output.distribution),
        "differs_from": output.differs_from,
    }


def _from_parts(head: Mapping[str, Any], arrays: Mapping[str, Array]) -> TestCase:
    models = tuple(wire.loads(Model, arrays[f"model{n}"].tobytes()) for n in range(head["models"]))
    steps = tuple(_step_from_json(row, models, arrays) for row in head["steps"])
    until, highest = _level(head["until"]), _level(head.get("highest"))
    level, digest = FeatureLevel(head["level"]), head["digest"]
    if not isinstance(digest, str):
        raise ValueError("the digest is no text")
    needs, observe = tuple(head.get("needs", ())), tuple(head.get("observe", ()))
    return TestCase(Origin(**head["origin"]), models, steps, level, until, digest, highest, needs, observe)


def _level(number: int | None) -> FeatureLevel | None:
    return None if number is None else FeatureLevel(number)


def _step_from_json(row: Mapping[str, Any], models: Sequence[Model], arrays: Mapping[str, Array]) -> Step:
    action, number = Action(row["action"]), row["model"]
    if number not in range(len(models)) and models:
        raise ValueError(f"a step with model {number} of {len(models)}")
    inputs = tuple(None if name is None else arrays[name] for name in row["inputs"])
    if action in (Action.EXECUTE, Action.LAUNCH) and inputs and len(inputs) != len(models[number].main.input_indexes):
        raise ValueError(f"a step with {len(inputs)} inputs for a model with {len(models[number].main.input_indexes)}")
    how = row.get("how")
    return Step(
        action,
        number,
        _expectation_from_json(row["expect"], arrays),
        ExecutionMode(row["mode"]),
        inputs,
        row["client"],
        row["thread"],
        row.get("slot"),
        None if how is None else _how_from_json(*how),
    )


def _how_from_json(kind: str, data: Json, blobs: Sequence[str]) -> How:
    return wire.decode(HOWS[kind], data, Parts([memoryview(bytes.fromhex(blob)) for blob in blobs]))


def _expectation_from_json(row: Mapping[str, Any], arrays: Mapping[str, Array]) -> Expectation:
    kind = EXPECTATIONS[row["kind"]]
    unless, declines = (tuple(ErrorStatus(s) for s in row.get(name, ())) for name in ("unless", "declines"))
    if kind is Rejects:
        statuses = tuple(ErrorStatus(s) for s in row["statuses"])
        return Rejects(statuses, row["rule"], row["text"], row.get("valid", False))
    if kind is MayReject:
        return MayReject(row["rule"], row["text"])
    if kind is Short:
        shapes, known = (tuple(tuple(s) for s in row[name]) for name in ("shapes", "known"))
        return Short(tuple(row["outputs"]), shapes, known, unless, declines)
    if kind is Agrees:
        outputs = tuple(
            Agreement(
                o["position"], arrays[o["allowed"]], tuple(o["axes"]), o["shift"], o["first"], o.get("bits", False)
            )
            for o in row["outputs"]
        )
        return Agrees(row["step"], outputs, row["text"])
    if kind is Describes:
        return Describes(row["same_as"])
    if kind is Repeats:
        return Repeats(row["step"])
    if kind is Supports:
        kept = tuple((here, there) for here, there in row["kept"])
        return Supports(tuple(row["operations"]), row["step"], kept, row["alike"], unless, row["text"])
    if kind is Returns:
        outputs_ = tuple(_output_from_json(o, arrays) for o in row["outputs"])
        return Returns(outputs_, tuple(row.get("groups", ())), unless, declines)
    return Unspecified()


def _output_from_json(row: Mapping[str, Any], arrays: Mapping[str, Array]) -> Expected:
    return Expected(
        row["name"],
        OperandType(row["type"]),
        tuple(row["shape"]),
        arrays[row["value"]],
        arrays[row["required"]],
        None if row["unit"] is None else arrays[row["unit"]],
        row["terms"],
        row["exact"],
        row["sums"],
        None if row["distribution"] is None else arrays[row["distribution"]],
        row["differs_from"],
        row.get("stored", ""),
        row.get("quality", True),
    )
