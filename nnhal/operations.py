"""Facts on the built-in operations as data: forms, operand order, defaults, types, validation rules.

The records are the vocabulary in which `opset` writes its definitions. Their content is read from `operations.json`,
which is generated from those definitions, so a driver needs no list of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any

from nnhal.types import FL1, FeatureLevel, OperandType, OperationType

FORMAT = 1  # of operations.json
MOST_KEPT = 64  # operands of a form whose names are kept


class RuleKind(str, Enum):
    """What a validation rule compares. A closed list: `nnhal.validate` interprets it, nothing else may be added ad hoc.

    RANK: the first operand's rank, where known, is in values[0]..values[1].
    RANK_KNOWN: the same, and an unknown rank breaks it.
    RANK_IN: the first operand's rank, where known, is one of the values.
    SCALE_ABOVE_PRODUCT: the first operand's scale is greater than the product of the others' (in float32).
    SAME_QUANTIZATION: every operand has the scale and zero point of the first.
    ZERO_POINT: the first operand's zero point is values[0].
    SAME_SHAPE: the operands' shapes, where fully known, are equal.
    MULTIPLE: the first operand's element count is a multiple of the second's dimension values[0], where known.
    SAME_DIMENSION: dimension values[0] of the first operand equals dimension values[1] of the second, where known.
    CONDITION: the first operand is a TENSOR_BOOL8 of shape [1].
    GRAPH: the graph that the first operand refers to takes and gives what the operation hands to it and returns.
        It needs the whole model, so `nnhal.validation_operation.control_flow_violations` says in code what fits.
    GRAPH_SIZES: no operand that goes into or out of the graphs has an unknown size; checked like GRAPH.
    """

    RANK = "RANK"
    RANK_KNOWN = "RANK_KNOWN"
    RANK_IN = "RANK_IN"
    SCALE_ABOVE_PRODUCT = "SCALE_ABOVE_PRODUCT"
    SAME_QUANTIZATION = "SAME_QUANTIZATION"
    ZERO_POINT = "ZERO_POINT"
    SAME_SHAPE = "SAME_SHAPE"
    MULTIPLE = "MULTIPLE"
    SAME_DIMENSION = "SAME_DIMENSION"
    CONDITION = "CONDITION"
    GRAPH = "GRAPH"
    GRAPH_SIZES = "GRAPH_SIZES"


@dataclass(frozen=True)
class ValidationRule:
    """One constraint that is checked when a model is validated: data, so that every driver can read it.

    Attributes:
        label: unique within the operation; cited by tests, messages and documents.
        text: the constraint as a sentence.
        kind: what is compared.
        operands: names of inputs and results; a variadic name stands for all of its operands.
        values: numbers that the kind needs.
        until: the level that lifts the rule, None for never.
        types: the rule holds only where the first operand has one of these types; empty for any.
        known_ranks: the rule holds only where the ranks of these operands are known.
    """

    label: str
    text: str
    kind: RuleKind
    operands: tuple[str, ...]
    values: tuple[int, ...] = ()
    until: FeatureLevel | None = None
    types: tuple[OperandType, ...] = ()
    known_ranks: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperandDef:
    """One operand of an operation.

    Attributes:
        type: fixed type (scalars, shape tensors); None where the type row says it.
        ranks: documented smallest and largest rank (None: no limit); None for scalars.
        default: value of a trailing operand that may be left off.
        omittable: may have lifetime NO_VALUE.
        variadic: stands for one or more operands.
        parameter: decides shapes or has few meanings; usually a constant.
        with_counts: of a result: the numbers of results that include it; empty for all.
        any_type: takes every operand type that the level knows, scalars too; no row says it.
        fewest: how many operands a variadic one stands for at least.
    """

    name: str
    doc: str
    type: OperandType | None = None
    ranks: tuple[int, int | None] | None = None
    default: float | bool | None = None
    omittable: bool = False
    variadic: bool = False
    parameter: bool = False
    with_counts: tuple[int, ...] = ()
    any_type: bool = False
    fewest: int = 1


@dataclass(frozen=True)
class Form:
    """One way to lay out an operation's inputs.

    Attributes:
        operands: in order; a count smaller than their number leaves the trailing ones off.
        counts: number of inputs and the first level that takes it; empty where an operand is variadic.
    """

    name: str
    operands: tuple[OperandDef, ...]
    counts: tuple[tuple[int, FeatureLevel], ...] = ()

    @property
    def variadic(self) -> bool:
        """Whether the number of inputs is open."""
        return any(operand.variadic for operand in self.operands)

    @property
    def fewest(self) -> int:
        """The smallest number of inputs of a form with a variadic operand."""
        return sum(operand.fewest if operand.variadic else 1 for operand in self.operands)

    @cached_property
    def _names(self) -> dict[int, tuple[str, ...]]:
        return {}

    @cached_property
    def _found(self) -> dict[str, OperandDef]:
        return {}

    def names(self, count: int) -> tuple[str, ...]:
        """Names of `count` inputs in order; those of a variadic operand are numbered: `inputs0`, `inputs1`."""
        known = self._names.get(count)
        if known is None:
            known = self._named(count)
            if count <= MOST_KEPT:
                self._names[count] = known
        return known

    def _named(self, count: int) -> tuple[str, ...]:
        names: list[str] = []
        for operand in self.operands:
            if operand.variadic:
                names += [f"{operand.name}{i}" for i in range(count - len(self.operands) + 1)]
            else:
                names.append(operand.name)
        return tuple(names[:count])

    def operand(self, name: str) -> OperandDef:
        """The operand of that name; a numbered name finds its variadic operand.

        Raises:
            KeyError: there is none.
        """
        known = self._found.get(name)
        if known is None:
            known = self._found[name] = self._find(name)
        return known

    def _find(self, name: str) -> OperandDef:
        for operand in self.operands:
            if operand.name == name or (
                operand.variadic and name.startswith(operand.name) and name[len(operand.name) :].isdigit()
            ):
                return operand
        raise KeyError(name)


@dataclass(frozen=True)
class TypeRow:
    """One line of an operation's table of types: which operand and result has which type, and since when."""

    id: str
    since: FeatureLevel
    types: Mapping[str, OperandType]


@dataclass(frozen=True)
class Signature:
    """A form, a number of inputs and a type row: what a model's operation must match.

    Attributes:
        results: number of results, where the operation has several; else None.
    """

    id: str
    since: FeatureLevel
    form: Form
    count: int | None
    row: TypeRow
    results: int | None = None


@dataclass(frozen=True)
class OperationInfo:
    """Everything about an operation that is data."""

    code: OperationType
    doc: str
    forms: tuple[Form, ...]
    results: tuple[OperandDef, ...]
    rows: tuple[TypeRow, ...]
    rules: tuple[ValidationRule, ...] = ()
    result_counts: tuple[tuple[int, FeatureLevel], ...] = ()

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.code.name

    @property
    def since(self) -> FeatureLevel:
        """First level that knows the operation."""
        return min(signature.since for signature in self.signatures)

    @cached_property
    def signatures(self) -> tuple[Signature, ...]:
        """All: type rows x forms x input counts x result counts. The id leaves out what does not tell two apart."""
        several_counts = any(len(form.counts) > 1 for form in self.forms)
        several = several_counts or len(self.forms) > 1
        results = self.result_counts if len(self.result_counts) > 1 else ()
        found = []
        for row in self.rows:
            for form in self.forms:
                for count, since in form.counts or ((None, FL1),):
                    name = row.id + (f"/{form.name}" if several else "")
                    name += f"/in{count}" if several_counts else ""
                    level = max(row.since, since)
                    if not results:
                        found.append(Signature(name, level, form, count, row))
                    for number, first in results:
                        found.append(Signature(f"{name}/out{number}", max(level, first), form, count, row, number))
        return tuple(found)

    @cached_property
    def _result_names(self) -> dict[int, tuple[str, ...]]:
        return {}

    def result_names(self, count: int) -> tuple[str, ...]:
        """Names of `count` results in order, numbered where variadic."""
        known = self._result_names.get(count)
        if known is None:
            there = tuple(r for r in self.results if not r.with_counts or count in r.with_counts)
            known = self._result_names[count] = Form("results", there).names(count)
        return known

    @cached_property
    def _result_types(self) -> dict[tuple[str, str], tuple[str, OperandType]]:
        return {}

    def result_type(self, signature: Signature, name: str) -> tuple[str, OperandType]:
        """The name of a result without the number that a variadic one has, and its type in a signature."""
        key = signature.id, name
        known = self._result_types.get(key)
        if known is None:
            base = name if name in signature.row.types else name.rstrip("0123456789")
            operand = next(result for result in self.results if result.name == base)
            known = self._result_types[key] = base, self.type_of(signature, operand)
        return known

    def match(self, inputs: Sequence[int], outputs: Sequence[int], form_hint: str | None = None) -> Signature | None:
        """The signature that operands of these types make, or None."""
        key = (tuple(inputs), tuple(outputs), form_hint)
        known = self._matches.get(key)
        if known is None:
            known = self._match(inputs, outputs, form_hint)
            if known is not None and len(inputs) <= MOST_KEPT:
                self._matches[key] = known
        return known

    @cached_property
    def _matches(self) -> dict[tuple[tuple[int, ...], tuple[int, ...], str | None], Signature]:
        return {}

    def _match(self, inputs: Sequence[int], outputs: Sequence[int], form_hint: str | None) -> Signature | None:
        for signature in self.signatures:
            if form_hint is None or signature.form.name == form_hint:
                names = self._fits(signature, len(inputs), len(outputs))
                if names is not None and all(
                    expected is None or kind == expected
                    for kind, expected in zip([*inputs, *outputs], self._types(signature, *names), strict=True)
                ):
                    return signature
        return None

    def _fits(self, signature: Signature, inputs: int, outputs: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        form = signature.form
        if form.variadic:
            if inputs < form.fewest:
                return None
        elif inputs != signature.count:
            return None
        if any(result.variadic for result in self.results):
            if outputs < len(self.results):
                return None
        elif outputs not in [count for count, _ in self.result_counts or ((len(self.results), FL1),)]:
            return None
        if signature.results not in (None, outputs):
            return None
        return form.names(inputs), self.result_names(outputs)

    def _types(
        self, signature: Signature, inputs: tuple[str, ...], outputs: tuple[str, ...]
    ) -> list[OperandType | None]:
        results = Form("results", self.results)
        operands = [signature.form.operand(name) for name in inputs] + [results.operand(name) for name in outputs]
        return [None if operand.any_type else self.type_of(signature, operand) for operand in operands]

    @staticmethod
    def type_of(signature: Signature, operand: OperandDef) -> OperandType:
        """The type of an operand or result in a signature."""
        return operand.type if operand.type is not None else signature.row.types[operand.name]


def to_json(operations: Sequence[OperationInfo]) -> dict[str, Any]:
    """The content of `operations.json`."""
    return {"format": FORMAT, "operations": [_operation_to_json(o) for o in operations]}


def from_json(content: Mapping[str, Any]) -> tuple[OperationInfo, ...]:
    """The operations of a file's content.

    Raises:
        ValueError: the format is another one.
    """
    if content.get("format") != FORMAT:
        raise ValueError(f"operations file has format {content.get('format')}, {FORMAT} is understood")
    return tuple(_operation_from_json(o) for o in content["operations"])


@lru_cache(maxsize=1)
def operations() -> Mapping[int, OperationInfo]:
    """All operations that are described, by code."""
    text = resources.files("nnhal").joinpath("operations.json").read_text(encoding="utf-8")
    return {int(o.code): o for o in from_json(json.loads(text))}


def _operand_to_json(operand: OperandDef) -> dict[str, Any]:
    known: dict[str, Any] = {"name": operand.name, "doc": operand.doc}
    if operand.type is not None:
        known["type"] = operand.type.name
    if operand.ranks is not None:
        known["ranks"] = list(operand.ranks)
    if operand.default is not None:
        known["default"] = operand.default
    for flag in ("omittable", "variadic", "parameter", "any_type"):
        if getattr(operand, flag):
            known[flag] = True
    if operand.fewest != 1:
        known["fewest"] = operand.fewest
    if operand.with_counts:
        known["with_counts"] = list(operand.with_counts)
    return known


def _operand_from_json(row: Mapping[str, Any]) -> OperandDef:
    ranks = row.get("ranks")
    return OperandDef(
        row["name"],
        row["doc"],
        OperandType[row["type"]] if "type" in row else None,
        (ranks[0], ranks[1]) if ranks else None,
        row.get("default"),
        row.get("omittable", False),
        row.get("variadic", False),
        row.get("parameter", False),
        tuple(row.get("with_counts", ())),
        row.get("any_type", False),
        row.get("fewest", 1),
    )


def _counts_to_json(counts: tuple[tuple[int, FeatureLevel], ...]) -> list[list[int]]:
    return [[count, int(since)] for count, since in counts]


def _counts_from_json(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, FeatureLevel], ...]:
    return tuple((count, FeatureLevel(since)) for count, since in rows)


def _operation_to_json(operation: OperationInfo) -> dict[str, Any]:
    return {
        "name": operation.name,
        "code": int(operation.code),
        "doc": operation.doc,
        "forms": [
            {
                "name": form.name,
                "operands": [_operand_to_json(o) for o in form.operands],
                "counts": _counts_to_json(form.counts),
            }
            for form in operation.forms
        ],
        "results": [_operand_to_json(o) for o in operation.results],
        "result_counts": _counts_to_json(operation.result_counts),
        "rows": [
            {
                "id": row.id,
                "since": int(row.since),
                "types": {k: t.name for k, t in row.types.items()},
            }
            for row in operation.rows
        ],
        "rules": [
            {
                "label": rule.label,
                "text": rule.text,
                "kind": rule.kind.value,
                "operands": list(rule.operands),
                "values": list(rule.values),
                "until": None if rule.until is None else int(rule.until),
                "types": [t.name for t in rule.types],
                "known_ranks": list(rule.known_ranks),
            }
            for rule in operation.rules
        ],
    }


def _operation_from_json(row: Mapping[str, Any]) -> OperationInfo:
    return OperationInfo(
        OperationType(row["code"]),
        row["doc"],
        tuple(
            Form(
                f["name"],
                tuple(_operand_from_json(o) for o in f["operands"]),
                _counts_from_json(f["counts"]),
            )
            for f in row["forms"]
        ),
        tuple(_operand_from_json(o) for o in row["results"]),
        tuple(
            TypeRow(
                r["id"],
                FeatureLevel(r["since"]),
                {k: OperandType[t] for k, t in r["types"].items()},
            )
            for r in row["rows"]
        ),
        tuple(
            ValidationRule(
                r["label"],
                r["text"],
                RuleKind(r["kind"]),
                tuple(r["operands"]),
                tuple(r["values"]),
                None if r["until"] is None else FeatureLevel(r["until"]),
                tuple(OperandType[t] for t in r["types"]),
                tuple(r["known_ranks"]),
            )
            for r in row["rules"]
        ),
        _counts_from_json(row["result_counts"]),
    )
