"""Graphs out of bytes: valid ones, which must be answered rightly, and changed ones, which must be refused or survived.

One draw serves all: what seeds draw for `random_graph` is drawn from a fuzzer's bytes here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.mutations import MUTATIONS
from fuzz.attempt import Attempt
from fuzz.fields import edit_model
from fuzz.known import Known
from fuzz.vehicles import is_known_size
from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.editable import CONSTANTS
from harness.expectations import Expectation, Expected, Rejects, Returns, Unspecified
from harness.make import INVALID, graph_case, graph_question
from harness.outcome import Outcome
from harness.steps import Action
from nnhal import wire
from nnhal.model import Model, Operand, constant_bytes, is_tensor, operand_size
from nnhal.types import OPERAND_TYPES, Array, ExecutionMode, FeatureLevel, OperandType
from nnhal.validate import Violation, violations
from opset.call import Argument
from opset.drawing import UnsatisfiableError
from opset.quantization import FLOATS
from opset.source import Source, choice
from random_graph.generator import Drawn, draw_model

KIND = "fuzzed"
RELATIVE, ABSOLUTE = 2e-5, 1e-5  # differences of floats below which what is allowed need not be computed
HALF = 2e-3  # the same for float16, and for float32 that may be computed so
MOST_CHANGES = 3
LOOKED_AT = 64  # places of one mutation among which one is chosen
MOST_BYTES = 1 << 24  # of a changed model's operands, so that running out of memory is no legal answer
LARGEST_NUMBER = 4096  # among the integers that say how much is to be done, for the same reason
NUMBERS = (OperandType.INT32, OperandType.UINT32, OperandType.TENSOR_INT32)
FEW = 64  # bytes of a constant that says so: longer ones are data


def origin_of(target: str, detail: str = "", rule: str = "") -> Origin:
    """What the id of an input's case is made of; its digest tells one from the other."""
    return Origin("FUZZ", target, KIND, 0, rule=rule, detail=detail)


# --- valid graphs -----------------------------------------------------------------------------------------------------


def valid_graph(source: Source, known: Known) -> Attempt | None:
    """A graph that the driver must answer rightly if it supports it."""
    mode = choice(source, known.modes)
    drawn = _drawn(source, known)
    if drawn is None or not drawn.sound:
        return None
    if mode == ExecutionMode.FENCED and not all(is_known_size(drawn.model, i) for i in drawn.model.main.output_indexes):
        mode = ExecutionMode.SYNCHRONOUS  # a fenced execution reports no sizes
    origin = origin_of("models")
    question = graph_question(drawn.model, origin)
    if question.level > known.level or (question.needs and not known.dynamic_shapes):
        return None
    results = tuple(_outputs(drawn))
    due = Returns(tuple(_open(number, argument) for number, argument in enumerate(results)))
    rest = Step(Action.PREPARE), Step(Action.EXECUTE, 0, due, mode, drawn.inputs)
    case = replace(question, steps=(*question.steps, *rest))
    half = drawn.model.relax_computation_float32_to_float16

    def whole() -> TestCase:
        return graph_case(drawn.model, drawn.inputs, origin, mode=mode)

    return Attempt(case, whole, lambda outcome: _near(outcome, results, half=half))


def _drawn(source: Source, known: Known) -> Drawn | None:
    try:
        return draw_model(source, known.mix)
    except (UnsatisfiableError, ValueError):
        return None


def _outputs(drawn: Drawn) -> list[Argument]:
    """The results that are outputs of the model, in the order of its list."""
    by_index: dict[int, Argument] = {}
    for operation, call in zip(drawn.model.main.operations, drawn.calls, strict=True):
        by_index.update(zip(operation.outputs, call.results.values(), strict=True))
    return [by_index[index] for index in drawn.model.main.output_indexes]


def _open(number: int, argument: Argument) -> Expected:
    """An output of which the shape alone is held to."""
    assert argument.value is not None
    shape = argument.value.shape
    return Expected(f"output{number}", argument.type, shape, np.zeros(shape), np.full(shape, math.inf), quality=False)


def _near(outcome: Outcome, results: Sequence[Argument], *, half: bool) -> bool:
    """Whether an execution gave what the baseline gives, or nearly so; False also where it did not come so far."""
    last = outcome.steps[-1] if outcome.steps else None
    if last is not None and len(outcome.steps) == 1 and not all(last.supported):
        return True
    if last is None or len(last.outputs) != len(results) or outcome.died or outcome.silent:
        return False
    return all(_alike(got, due, half=half) for got, due in zip(last.outputs, results, strict=True))


def _alike(got: Array | None, argument: Argument, *, half: bool) -> bool:
    due = argument.value
    if got is None or due is None or got.shape != due.shape or got.dtype != due.dtype:
        return False
    if argument.type not in FLOATS:
        return bool(np.array_equal(got, due))
    loose = half or argument.type in (OperandType.TENSOR_FLOAT16, OperandType.FLOAT16)
    with np.errstate(all="ignore"):
        allowed = HALF if loose else ABSOLUTE, HALF if loose else RELATIVE
        return bool(np.allclose(got.astype(np.float64), due.astype(np.float64), allowed[1], allowed[0]))


# --- changed graphs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Changed:
    """A model with what was changed, in words."""

    model: Model
    words: str


def changed_graph(source: Source, known: Known) -> Attempt | None:
    """A graph some of whose fields are changed: it must be refused where it breaks a rule, else be survived."""
    changes = source.integer(1, MOST_CHANGES)
    drawn = _drawn(source, known)
    if drawn is None or violations(drawn.model, known.level):
        return None
    changed = Changed(drawn.model, "")
    for _ in range(changes):
        changed = _change(source, changed, known.level)
    if changed.model == drawn.model:
        return None
    return judged_by_rules("mutants", changed, drawn.model, drawn.inputs, known)


def _change(source: Source, before: Changed, level: FeatureLevel) -> Changed:
    """One more change: one that the negative cases have, or any field at all."""
    number = source.integer(0, 2 * len(MUTATIONS) - 1)
    if number < len(MUTATIONS):
        mutation = MUTATIONS[number]
        if level < mutation.since or (mutation.until is not None and level >= mutation.until):
            return before
        place = source.integer(0, LOOKED_AT - 1)
        try:
            offered = list(itertools.islice(mutation.changes(before.model, level), LOOKED_AT))
            if not offered:
                return before
            words, make = offered[place % len(offered)]
            model = make()
        except (ValueError, IndexError, KeyError, TypeError, AttributeError):  # of a model that is broken already
            return before
    else:
        model, words = edit_model(source, before.model)
    return Changed(model, f"{before.words}; {words}" if before.words else words)


def judged_by_rules(
    target: str, changed: Changed, twin: Model, inputs: Sequence[Array | None], known: Known
) -> Attempt | None:
    """A model that the rules decide about: refused with INVALID_ARGUMENT behind its unbroken twin, or else survived.

    Args:
        target: for the case's id.
        changed: the model.
        twin: is valid.
        inputs: values for an execution, should it be valid.
        known: of the driver.
    """
    try:
        wire.dumps(changed.model)
    except (TypeError, ValueError, OverflowError):
        return None  # nobody could send it
    wrong = violations(changed.model, known.level)
    if not wrong:
        return _survived(target, changed, inputs, known)
    if not known.validates:
        return None
    return Attempt(refused(target, changed, twin, wrong, known.level))


def refused(target: str, changed: Changed, twin: Model, wrong: Sequence[Violation], level: FeatureLevel) -> TestCase:
    """The case of a model that must be refused at this level."""
    text = f"{wrong[0].text} ({changed.words})"
    origin = origin_of(target, changed.words, wrong[0].label)
    due = Rejects(INVALID, origin.rule, text)
    steps = (
        Step(Action.QUERY, 1),
        Step(Action.PREPARE, 1),
        Step(Action.QUERY, 0, due),
        Step(Action.PREPARE, 0, due),
    )
    highest = None if level == max(FeatureLevel) else level
    return TestCase(origin, (changed.model, twin), steps, level, highest=highest)


def _survived(target: str, changed: Changed, inputs: Sequence[Array | None], known: Known) -> Attempt | None:
    """A valid model of which nothing is known but that the driver must neither die nor hang."""
    model = changed.model
    steps: list[Step] = [Step(Action.QUERY, 0, Unspecified())]
    if _moderate(model):
        anything: Expectation = Unspecified()
        steps.append(Step(Action.PREPARE, 0, anything))
        if len(inputs) == len(model.main.input_indexes) and _fit(model, inputs):
            steps.append(Step(Action.EXECUTE, 0, anything, inputs=tuple(inputs)))
    highest = None if known.level == max(FeatureLevel) else known.level
    origin = origin_of(target, changed.words)
    return Attempt(TestCase(origin, (model,), tuple(steps), known.level, highest=highest))


def _moderate(model: Model) -> bool:
    """Whether neither the sizes of operands nor the numbers in constants ask for very much memory."""
    total = 0
    for graph in (model.main, *model.referenced):
        for operand in graph.operands:
            total += operand_size(operand)
            if total > MOST_BYTES:
                return False
            decides = operand.type in NUMBERS and operand.lifetime in CONSTANTS and operand.location.length <= FEW
            if decides and _largest(model, operand) > LARGEST_NUMBER:
                return False
    return True


def _largest(model: Model, operand: Operand) -> int:
    """The largest size of the integers in a constant; 0 where its bytes are none."""
    try:
        data = constant_bytes(model, operand)
    except ValueError:
        return 0
    whole = np.frombuffer(data[: len(data) // 4 * 4], np.int32).astype(np.int64)
    return int(np.abs(whole).max(initial=0))


def _fit(model: Model, inputs: Sequence[Array | None]) -> bool:
    """Whether values are those of the model's inputs, as it is now."""
    for index, value in zip(model.main.input_indexes, inputs, strict=True):
        operand = model.main.operands[index]
        if value is None or operand.type not in OPERAND_TYPES:
            return False
        known = all(size in (0, has) for size, has in zip(operand.dimensions, value.shape, strict=False))
        if np.dtype(OPERAND_TYPES[OperandType(operand.type)].dtype) != value.dtype or not known:
            return False
        if len(operand.dimensions) != value.ndim and (operand.dimensions or not is_tensor(operand.type)):
            return False
    return True


def with_digest(case: TestCase) -> TestCase:
    """The case as it is saved."""
    return case if case.digest else seal(case)
