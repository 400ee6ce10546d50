"""`nnhal.validate` on garbage, and against the tables of signatures from outside this repository."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nnhal.errors import DriverError
from nnhal.memory import SharedMemory
from nnhal.model import (
    ChannelQuant,
    ExtensionNameAndPrefix,
    Model,
    Operand,
)
from nnhal.operations import operations
from nnhal.types import (
    FL1,
    FL3,
    OPERAND_TYPES,
    FeatureLevel,
    OperandType,
    OperationType,
)
from nnhal.validate import (
    request_violations,
    validate_model,
    violations,
)
from tests.small_models import (
    Q8,
    addition,
    branching,
    channels,
    edit,
    in_pool,
    labels,
    looping,
    one_operation,
    request_for,
)

ADD = addition()
Q = addition(kind=Q8, scale=0.5)
TWO_ROWS = (ExtensionNameAndPrefix("com.example.a", 1), ExtensionNameAndPrefix("com.example.b_2", 0))
OPEN = addition((0, 3))
GOOD = request_for()

NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    15,
    16,
    255,
    -129,
    10000,
    10001,
    0x10001,
    2**31 - 1,
    2**31,
    2**32,
    -(2**31),
    2**64,
    10**400,
]
REALS = [0.0, 1.0, -1.0, 0.5, math.nan, math.inf, -math.inf, 1e-320, 3e38, 1e300]
OTHERS: list[object] = [None, "text", b"bytes", (), (1, 2), {}, 1.5, object(), [], (None,)]


def scramble(value: Any, rng: random.Random, share: float) -> Any:
    """A copy with some fields, at any depth, exchanged."""
    if rng.random() < share:
        if isinstance(value, float):
            return rng.choice(REALS)
        if isinstance(value, int) and not isinstance(value, bool):
            return rng.choice(NUMBERS)
        if rng.random() < 0.2:
            return rng.choice(OTHERS)
    if isinstance(value, tuple):
        items = [scramble(item, rng, share) for item in value]
        if items and rng.random() < share:
            rng.choice([items.pop, items.clear, lambda: items.append(items[0]), items.reverse])()
        return tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: scramble(getattr(value, f.name), rng, share) for f in fields(value)})
    return value


@pytest.mark.parametrize("seed", range(8))
def test_garbage_leads_to_violations_and_nothing_else(seed: int) -> None:
    rng = random.Random(f"test_validate/garbage/{seed}")
    pooled = in_pool(ADD, SharedMemory.create(8))
    sources = [ADD, Q, channels(), branching(), looping(), pooled, replace(ADD, extension_name_to_prefix=TWO_ROWS)]
    refused = 0
    for _ in range(400):
        share = rng.choice([0.002, 0.01, 0.05, 0.3])
        garbage = scramble(rng.choice(sources), rng, share)
        level = rng.choice(list(FeatureLevel))
        found = violations(garbage, level)
        assert all(v.label and v.text for v in found)
        refused += bool(found)
        if found:
            with pytest.raises(DriverError):
                validate_model(garbage, level)
        assert isinstance(request_violations(scramble(GOOD, rng, share), rng.choice([ADD, OPEN]), level), list)
    assert 100 < refused < 400


SPEC = os.environ.get("NNCTS_SPEC", "")
needs_spec = pytest.mark.skipif(not SPEC, reason="NNCTS_SPEC does not name the folder of the specification's data")
VERSIONS = {"1.0": 1, "1.1": 2, "1.2": 3, "1.3": 4, "FL5": 5, "FL6": 6, "FL7": 7, "FL8": 8}


def described() -> list[Mapping[str, Any]]:
    entries = json.loads((Path(SPEC) / "operations.json").read_text())
    return [entry for entry in entries if entry["code"] in operations()]


def expand(types: list[str], spread: int) -> list[str]:
    """Types of a signature with `spread` operands where it has one or more."""
    found: list[str] = []
    for name in types:
        found += [name[:-1]] * spread if name.endswith(("+", "*")) else [name]
    return found


def unknown_shape(name: str, level: FeatureLevel) -> Operand:
    kind = OperandType[name]
    known = OPERAND_TYPES[kind]
    rank4 = level < FL3 or kind == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    shape = ((2, 2, 2, 2) if rank4 else ()) if known.tensor else ()
    extra = ChannelQuant(0, (1.0, 1.0)) if kind == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL else None
    return Operand(kind, shape, 0.5 if known.scaled else 0.0, extra_params=extra)


def of_signature(entry: Mapping[str, Any], inputs: list[str], outputs: list[str], level: FeatureLevel) -> Model:
    """A model whose operands have these types, and shapes and scales that no other rule minds."""
    operands = [unknown_shape(name, level) for name in inputs]
    results = [unknown_shape(name, level) for name in outputs]
    name = entry["name"]
    if (level < FL3 and name != "CONCATENATION") or name == "MUL":  # where the output's scale must be a large one
        results = [replace(o, scale=100.0) if o.scale else o for o in results]
    if name == "FULLY_CONNECTED":
        shapes = [(0, 0, 0, 0), (0, 0), (0,)]
        operands = [
            replace(o, dimensions=shape) if o.dimensions else o for o, shape in zip(operands, shapes, strict=False)
        ] + operands[3:]
        results = [replace(o, dimensions=(0, 0)) if o.dimensions else o for o in results]
    return one_operation(OperationType(entry["code"]), operands, results)


def signature_labels(model: Model, level: FeatureLevel) -> list[str]:
    unknown = {"G2", "G15"}
    return [x for x in labels(model, level) if x in unknown or x.endswith(".SIGNATURE")]


@needs_spec
def test_each_signature_is_accepted_at_its_level_and_refused_below() -> None:
    count = 0
    for entry in described():
        for signature in entry["signatures"]:
            if "ANY" in " ".join(signature["inputs"]):
                continue
            since = FeatureLevel(VERSIONS[signature["since"]])
            for spread in (1, 2, 3):
                inputs, outputs = expand(signature["inputs"], spread), expand(signature["outputs"], spread)
                model = of_signature(entry, inputs, outputs, since)
                assert labels(model, since) == [], (entry["name"], signature["id"])
                if since > FL1:
                    below = FeatureLevel(since - 1)
                    assert signature_labels(model, below), (entry["name"], signature["id"])
                count += 1
    assert count > 0


def table_of(entry: Mapping[str, Any]) -> dict[tuple[tuple[str, ...], tuple[str, ...]], int]:
    """Types of inputs and outputs, and the first level that takes them; variadic ones up to three times."""
    table: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    for signature in entry["signatures"]:
        for spread in (1, 2, 3):
            for results in (1, 2, 3):
                key = tuple(expand(signature["inputs"], spread)), tuple(expand(signature["outputs"], results))
                table[key] = min(VERSIONS[signature["since"]], table.get(key, 8))
    return table


def mutate(types: list[str], rng: random.Random) -> None:
    names = [t.name for t in OperandType if t <= OperandType.TENSOR_QUANT8_ASYMM_SIGNED]
    kind = rng.choice(("other", "other", "more", "fewer"))
    if kind == "other":
        types[rng.randrange(len(types))] = rng.choice(names)
    elif kind == "more":
        types.append(rng.choice(names))
    elif len(types) > 1:
        types.pop()


@needs_spec
def test_mutated_types_are_refused_unless_another_signature_has_them() -> None:
    rng = random.Random("test_validate/types")
    accepted = refused = 0
    for entry in described():
        table = table_of(entry)
        keys = [key for key in sorted(table) if "ANY" not in " ".join((*key[0], *key[1]))]
        variadic = any(x.endswith(("+", "*")) for s in entry["signatures"] for x in (*s["inputs"], *s["outputs"]))
        for _ in range(60 if keys else 0):
            inputs, outputs = (list(side) for side in rng.choice(keys))
            for _ in range(rng.choice((1, 1, 2))):
                mutate(rng.choice((inputs, outputs)), rng)
            if variadic and max(len(inputs), len(outputs)) > 3:
                continue  # more operands than the table was spread to
            level = rng.choice(list(FeatureLevel)[2:])
            due = table.get((tuple(inputs), tuple(outputs)), 9)
            found = bool(signature_labels(of_signature(entry, inputs, outputs, level), level))
            assert found == (due > level), (entry["name"], inputs, outputs, level)
            accepted += not found
            refused += found
    assert accepted > 50
    assert refused > 50


@needs_spec
def test_ranks_are_checked_exactly_where_the_facts_say() -> None:
    refused = 0
    for entry in described():
        forms = {form["name"]: form["inputs"] for form in entry["forms"]}
        for signature in entry["signatures"]:
            if "ANY" in " ".join(signature["inputs"]):
                continue
            level = max(FL3, FeatureLevel(VERSIONS[signature["since"]]))
            facts = forms[signature["form"]]
            valid = of_signature(entry, expand(signature["inputs"], 1), expand(signature["outputs"], 1), level)
            for index, fact in enumerate(facts[: len(signature["inputs"])]):
                ranks = fact.get("validated_ranks")
                if ranks and valid.main.operands[index].extra_params is None:
                    valid = edit(valid, index, dimensions=(0,) * min(ranks))
            assert labels(valid, level) == [], (entry["name"], signature["id"])
            for index, fact in enumerate(facts[: len(signature["inputs"])]):
                operand = valid.main.operands[index]
                if not OPERAND_TYPES[OperandType(operand.type)].tensor or operand.extra_params is not None:
                    continue
                ranks = fact.get("validated_ranks")
                for rank in range(1, 8):
                    due = bool(ranks) and rank not in ranks
                    found = labels(edit(valid, index, dimensions=(0,) * rank), level)
                    assert bool(found) == due, (entry["name"], signature["id"], fact["name"], rank, found)
                    refused += due
    assert refused > 100
