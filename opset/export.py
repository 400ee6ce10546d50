"""Writes what follows from the definitions: `nnhal/operations.json` for drivers, `docs/operations.md` for people.

Run as `python -m opset.export [--check]`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from nnhal.operations import Form, OperandDef, ValidationRule, to_json
from nnhal.types import FL1, FeatureLevel, OperandType
from opset import FAMILIES, OPSET
from opset.branch import Branch
from opset.call import Argument
from opset.definition import ROW_NAMES, ExecutionRule, OperationDef
from opset.quantization import QUANTIZED

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "nnhal" / "operations.json"
PAGE = ROOT / "docs" / "operations.md"

HEAD = """\
# Operations

Generated from the definitions in `opset/` by `python -m opset.export`; do not edit.

Levels: 1.0 to 1.3 are the HIDL versions (feature levels 1 to 4), FL5 to FL8 the AIDL ones. A rule of stage VALIDATION
is checked when a model is validated, and a breach is INVALID_ARGUMENT; a breach of one of stage EXECUTION may be
refused at preparation or execution, with any status but NONE. A label is cited as `OPERATION.LABEL`.

A float is wrong where it is off by more than NNAPI's tolerance and more than the bound. The tolerance is 1e-5 +
5 * 2^-23 * |result| for float32, 5 * 2^-10 * (1 + |result|) for float16 and in relaxed models. A bound of `2 x n half
units` of a size stands for n roundings of what has that size, each counted twice: 2 * n * size * 2^-24, or 2^-11 for
float16 and in relaxed models. As results may be flushed to zero, a half unit is at least the smallest normal number
where a result is below that. An infinity must be met, NaN is open. Where a float's bound is `exact` any difference is
POOR, save in relaxed models. Quantised results may be off by so many stored steps; where they are said to be moved, and
have the scale and zero point of the inputs whose values they are, nothing is rounded, and any difference is POOR. INT32
and BOOL8 results must be equal. What is left open is not compared.
"""


def table_text() -> str:
    """The content of `operations.json`: one line for each operation, so that changes are easy to read."""
    content = to_json([OPSET[code].info for code in sorted(OPSET)])
    lines = [json.dumps(row, separators=(",", ":")) for row in content["operations"]]
    body = ",\n".join(lines)
    return f'{{"format":{content["format"]},"operations":[\n{body}\n]}}\n'


def page_text() -> str:
    """The content of `operations.md`."""
    parts = [HEAD, _contents()]
    parts += ["\n".join(_section(OPSET[code])) + "\n" for code in sorted(OPSET)]
    return "\n".join(parts)


def _contents() -> str:
    lines = ["| family | operations |", "|---|---|"]
    for family in FAMILIES:
        names = [d.name for d in vars(family).values() if isinstance(d, OperationDef) and OPSET[d.code] is d]
        links = ", ".join(f"[{name}](#{name.lower()})" for name in dict.fromkeys(names))
        lines.append(f"| {family.__name__.removeprefix('opset.')} | {links} |")
    return "\n".join(lines) + "\n"


def _section(definition: OperationDef) -> Iterator[str]:
    since = definition.info.since.version
    yield f"## {definition.name}"
    yield ""
    yield f"Code {int(definition.code)}, since {since}. {definition.doc}"
    for form in definition.forms:
        yield ""
        yield from _form(form, alone=len(definition.forms) == 1)
    yield ""
    yield from _operands("Results", definition.results)
    counts = ", ".join(_count(count, level) for count, level in definition.result_counts)
    if counts:
        yield ""
        yield f"Numbers of results: {counts}."
    yield ""
    yield from _types(definition)
    if definition.rules:
        yield ""
        yield from _rules(definition)
    yield ""
    yield from _remarks(definition)


def _form(form: Form, *, alone: bool) -> Iterator[str]:
    yield from _operands("Inputs" if alone else f"Inputs, form `{form.name}`", form.operands)
    counts = ", ".join(_count(count, level) for count, level in form.counts)
    if form.variadic:
        yield ""
        yield f"At least {form.fewest} inputs."
    elif len(form.counts) > 1 or any(level > FL1 for _, level in form.counts):
        yield ""
        yield f"Numbers of inputs: {counts}; a smaller one leaves the last off."


def _count(count: int, level: FeatureLevel) -> str:
    return f"{count}" if level == FL1 else f"{count} (since {level.version})"


def _operands(title: str, operands: Sequence[OperandDef]) -> Iterator[str]:
    yield f"{title}:"
    yield ""
    yield "| operand | type | rank | default | meaning |"
    yield "|---|---|---|---|---|"
    for operand in operands:
        name = operand.name + ("..." if operand.variadic else "")
        kind = "any" if operand.any_type else "by row" if operand.type is None else operand.type.name
        default = "" if operand.default is None else str(operand.default).lower()
        doc = operand.doc + (" May be omitted." if operand.omittable else "")
        yield f"| `{name}` | {kind} | {_ranks(operand)} | {default} | {_cell(doc)} |"


def _ranks(operand: OperandDef) -> str:
    if operand.ranks is None:
        return ""
    low, high = operand.ranks
    if high is None:
        return f"{low} or more"
    return str(low) if low == high else f"{low} to {high}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _types(definition: OperationDef) -> Iterator[str]:
    named = list(dict.fromkeys(name for row in definition.rows for name in row.types))
    yield "Types:"
    yield ""
    if not named:
        yield "| row | since |"
        yield "|---|---|"
    else:
        yield f"| row | since | {' | '.join(f'`{name}`' for name in named)} |"
        yield "|---|---|" + "---|" * len(named)
    for row in definition.rows:
        kinds = [_kind(row.types[name]) if name in row.types else "" for name in named]
        yield f"| {' | '.join([row.id, row.since.version, *kinds])} |"


def _kind(kind: OperandType) -> str:
    return ROW_NAMES.get(kind, kind.name)


def _rules(definition: OperationDef) -> Iterator[str]:
    yield "Rules:"
    yield ""
    yield "| label | stage | rule |"
    yield "|---|---|---|"
    for rule in definition.rules:
        text = rule.text
        if isinstance(rule, ExecutionRule) and rule.until is not None:
            text += f"; below {rule.until.version}"
        if isinstance(rule, ValidationRule):
            if rule.types:
                text += f"; for {', '.join(_kind(t) for t in rule.types)}"
            if rule.known_ranks:
                text += f"; where the rank of {' and '.join(rule.known_ranks)} is known"
            if rule.until is not None:
                text += f"; below {rule.until.version}"
        stage = "VALIDATION" if isinstance(rule, ValidationRule) else "EXECUTION"
        yield f"| {rule.label} | {stage} | {_cell(text)} |"


def _quantized_results(definition: OperationDef) -> list[str]:
    """Names of the results that are quantised in some row of the table of types."""
    kinds = {r.name: [r.type or row.types.get(r.name) for row in definition.rows] for r in definition.results}
    return [name for name, found in kinds.items() if any(kind in QUANTIZED for kind in found)]


def _steps(definition: OperationDef) -> str:
    names = _quantized_results(definition)
    if not names:
        return ""
    words = {name: _allowed(definition, name) for name in names}
    if len(set(words.values())) == 1:
        return f" Quantised results: {next(iter(words.values()))}."
    return f" Quantised results: {', '.join(f'{text} in `{name}`' for name, text in words.items())}."


def _allowed(definition: OperationDef, result: str) -> str:
    steps, moves = definition.judging.steps_of(result), definition.judging.moves
    text = f"{steps} step{'' if steps == 1 else 's'}"
    moved = result in moves if isinstance(moves, Mapping) else _moves(definition)
    return f"{text}, moved" if steps and moved else text


def _moves(definition: OperationDef) -> bool:
    """Whether results may be stored values of quantised inputs."""
    inputs = {o.name for form in definition.forms for o in form.operands}
    given = [kind for row in definition.rows for name, kind in row.types.items() if name in inputs]
    return definition.judging.moves is True and any(kind in QUANTIZED for kind in given)


def _judging(definition: OperationDef) -> Iterator[str]:
    judging = definition.judging
    yield f"Bound: {judging.words}.{_steps(definition)}"
    if judging.left_open is not None:
        yield ""
        yield f"Left open: {judging.left_open.words}."
    if judging.grouped_by:
        yield ""
        yield f"Rows of equal `{judging.grouped_by}` may come in any order, the same in all results."


def _remarks(definition: OperationDef) -> Iterator[str]:
    yield from _judging(definition)
    yield ""
    yield f"Second opinion: {definition.second_opinion}."
    for example in definition.examples:
        yield ""
        inputs = ", ".join(f"`{name}` = {_value(value)}" for name, value in example.inputs.items())
        outputs = ", ".join(f"`{name}` = {_value(value)}" for name, value in example.outputs.items())
        yield f"Example ({example.signature}): {inputs} gives {outputs}."


def _value(value: object) -> str:
    if value is None:
        return "omitted"
    if isinstance(value, Branch):
        return f"a {value}"
    listed = np.asarray(value.value if isinstance(value, Argument) else value).tolist()
    text = json.dumps(listed)
    return text if len(text) <= 120 else f"{text[:100]}... of shape {list(np.shape(listed))}"


def stale() -> list[str]:
    """The files that do not say what the definitions say, by their path in the repository."""
    return [
        str(path.relative_to(ROOT))
        for path, text in ((TABLE, table_text()), (PAGE, page_text()))
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes both files, or says whether they are stale."""
    parser = argparse.ArgumentParser(prog="python -m opset.export", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file is stale")
    options = parser.parse_args(arguments)
    if options.check:
        old = stale()
        if old:
            verb = "do" if len(old) > 1 else "does"
            text = f"{' and '.join(old)} {verb} not match the definitions; run `python -m opset.export`\n"
            sys.stderr.write(text)
        return 1 if old else 0
    TABLE.write_text(table_text(), encoding="utf-8")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page_text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
