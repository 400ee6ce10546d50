"""Models with vendor extensions out of bytes: operand types, operations, parameters and tables that nobody knows."""

from __future__ import annotations

from dataclasses import replace

from conformance.extensions import UNKNOWN
from fuzz.attempt import Attempt
from fuzz.fields import edit_model
from fuzz.graphs import Changed, judged_by_rules, origin_of
from fuzz.known import Known
from harness.case import Step, TestCase
from harness.expectations import Rejects, Supports
from harness.steps import Action
from nnhal.model import ExtensionNameAndPrefix, Model, Operand, count_consumers
from nnhal.types import FL3
from nnhal.validate import violations
from opset.source import Source, choice

NAMES = (UNKNOWN, "org.nncts.sample", "com.vendor.one", "")
NUMBERS = (0, 1, 2, 0x7FFF, 0xFFFF)
TEXT = "the model uses an extension that no driver knows: it is valid, and not supported"


def extension_model(source: Source, known: Known) -> Attempt | None:
    """A graph of which operations or operands are an extension's, with a right table or a wrong one."""
    vehicles = known.vehicles
    if not vehicles or known.level < FL3:
        return None
    twin = choice(source, vehicles)
    prefix = choice(source, (1, 2, 5, 0x7FFF))
    changed = Changed(twin.model, "")
    operations = _operations(source, twin.model, prefix)
    main = replace(twin.model.main, operations=operations)
    if source.integer(0, 1):
        main = replace(main, operands=_operands(source, main.operands, prefix))
    unknown = ExtensionNameAndPrefix(UNKNOWN, prefix)
    table = (unknown, *(_row(source) for _ in range(source.integer(0, 2))))
    model = replace(twin.model, main=count_consumers(main), extension_name_to_prefix=table)
    words = f"prefix {prefix} of an unknown extension, {len(table)} rows"
    if not source.integer(0, 2):
        model, more = edit_model(source, model)
        words = f"{words}; {more}"
    changed = Changed(model, words)
    if not violations(model, known.level) and _is_foreign(model, prefix):
        return _unsupported(changed, known)
    return judged_by_rules("extensions", changed, twin.model, twin.runs[0][0], known)


def _operations(source: Source, model: Model, prefix: int) -> tuple:  # type: ignore[type-arg]
    operations = list(model.main.operations)
    place = source.integer(0, len(operations) - 1)
    code = prefix << 16 | choice(source, NUMBERS)
    operations[place] = replace(operations[place], type=code)
    return tuple(operations)


def _operands(source: Source, operands: tuple[Operand, ...], prefix: int) -> tuple[Operand, ...]:
    """One operand has the extension's type, and maybe parameters of its own."""
    place = source.integer(0, len(operands) - 1)
    extra = bytes(source.integer(0, 16)) if source.integer(0, 1) else None
    code = prefix << 16 | choice(source, NUMBERS)
    bare = {} if source.integer(0, 1) else {"scale": 0.0, "zero_point": 0}
    made = replace(operands[place], type=code, extra_params=extra, **bare)  # type: ignore[arg-type]
    return (*operands[:place], made, *operands[place + 1 :])


def _row(source: Source) -> ExtensionNameAndPrefix:
    return ExtensionNameAndPrefix(choice(source, NAMES), choice(source, (0, 1, 2, 5, 0x7FFF, 0x8000, 0xFFFF, -1)))


def _is_foreign(model: Model, prefix: int) -> bool:
    """Whether an operation is of the extension that nobody knows, and by that name alone."""
    names = [row.name for row in model.extension_name_to_prefix if row.prefix == prefix]
    return names == [UNKNOWN] and any(int(o.type) >> 16 == prefix for o in model.main.operations)


def _unsupported(changed: Changed, known: Known) -> Attempt:
    """The case of a valid model that no driver supports."""
    model = changed.model
    prefixes = {row.prefix for row in model.extension_name_to_prefix if row.name == UNKNOWN}
    due = tuple(False if int(o.type) >> 16 in prefixes else None for o in model.main.operations)
    steps = (
        Step(Action.QUERY, expect=Supports(due, text=TEXT)),
        Step(Action.PREPARE, expect=Rejects((), "EXTENSION", TEXT, valid=True)),
    )
    highest = None if known.level == max(type(known.level)) else known.level
    return Attempt(TestCase(origin_of("extensions", changed.words), (model,), steps, known.level, highest=highest))
