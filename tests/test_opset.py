"""What every definition must pass. Parametrised over OPSET: a new operation needs no edit here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import numpy as np
import pytest

from nnhal.operations import Signature, ValidationRule
from nnhal.types import Array
from opset import OPSET
from opset.call import Call
from opset.definition import ExecutionRule, Judging, LeftOpen, OperationDef, check_definition, moved, no_error
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import allowance, run_call
from opset.examples import from_example
from opset.quantization import QUANTIZED
from opset.source import BytesSource, SeededSource
from opset.validation import applies, broken, holds, violations
from opset.values import Values
from tests.thorough import one_in_three

SIGNATURES = [(d, s) for d in OPSET.values() for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]
DRAWS = 30
CLEAR = 8  # tries of which most are noticed: enough to say so
READ_NO_VALUES = ("RANK",)


def draws(definition: OperationDef, signature: Signature, count: int = DRAWS) -> Iterator[Call]:
    for number in range(count):
        seed = f"test_opset/{definition.name}/{signature.id}/{number}"
        yield draw_call(definition, signature, Scope(SeededSource(seed)))


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_draws_are_valid_and_inferred(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature):
        assert violations(call) == []
        for name, result in run_call(call).items():
            assert result.stored.shape == call.results[name].shape, name
            assert result.stored.size > 0
            if definition.judging.sampling is None:
                assert np.array_equal(result.stored, call.results[name].value, equal_nan=True)


@pytest.mark.parametrize(("definition", "signature"), one_in_three(SIGNATURES), ids=IDS)
def test_draws_from_bytes_are_valid(definition: OperationDef, signature: Signature) -> None:
    rng = np.random.default_rng(7)
    for _ in range(10):
        call = draw_call(definition, signature, Scope(BytesSource(rng.bytes(60))))
        assert violations(call) == []


@pytest.mark.parametrize("definition", OPSET.values(), ids=lambda d: d.name)
def test_each_rule_is_seen_to_hold_and_to_refuse(definition: OperationDef) -> None:
    seen: set[str] = set()
    for signature in definition.signatures:
        for call in draws(definition, signature, 15):
            for rule in definition.rules:
                levels = [signature.since] if isinstance(rule, ValidationRule) else [call.level]
                if isinstance(rule, ValidationRule) and not applies(rule, call, levels[0]):
                    continue
                if not holds(rule, call):  # drawn for a later level, which lifts the rule
                    continue
                bad = broken(rule, call)
                if bad is None:
                    continue
                level = levels[0]
                found = violations(bad, level)
                assert found[:1] == [rule.label], f"{signature.id}: {rule.label} gave {found}"
                seen.add(rule.label)
    lifted = {rule.label for rule in definition.rules if isinstance(rule, ExecutionRule) and rule.until is not None}
    assert seen == {rule.label for rule in definition.rules} - lifted


class Truth:
    """What is due of a call, worked out once for all that is held against it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.results = run_call(call)
        self.allowed = allowance(call, self.results)

    def differs(self, other: Mapping[str, Array]) -> bool:
        """Whether stored results lie outside what is allowed, or break a quality limit."""
        for name, allowed in self.allowed.items():
            got, want = other[name].astype(np.float64), self.results[name]
            if got.shape != want.stored.shape:
                return True
            with np.errstate(invalid="ignore"):
                error = np.abs(got - want.stored.astype(np.float64))
                if np.any((error > allowed.required) | (np.isnan(got) & np.isfinite(allowed.required))):
                    return True
                steps = np.mean(got - want.stored)
            if self.call.results[name].type in QUANTIZED and got.size >= 32 and abs(steps) > 0.25:
                return True
        return False


def clearly(noticed: Mapping[str, int], tried: Mapping[str, int]) -> bool:
    """Whether it can be said by now that each kind of change is noticed in half of its tries."""
    return all(count >= CLEAR and noticed[name] >= 0.75 * count for name, count in tried.items())


def changed(call: Call, name: str, rng: np.random.Generator) -> Call | None:
    """The call with other values of one input, of the same type, shape and range; None for fixed parameters."""
    argument = call.inputs[name]
    if argument.omitted or argument.value is None or call.signature.form.operand(name).parameter:
        return None
    value = argument.value
    if value.size == 1 or len(np.unique(value)) == 1:
        return None
    flat = value.reshape(-1).copy()
    rng.shuffle(flat)
    shuffled = flat.reshape(value.shape)
    if np.array_equal(shuffled, value):
        return None
    return call.with_input(name, replace(argument, value=shuffled))


@pytest.mark.parametrize(("definition", "signature"), one_in_three(SIGNATURES), ids=IDS)
def test_every_operand_matters(definition: OperationDef, signature: Signature) -> None:
    """Values of one input in another order must leave what is allowed in half of the draws or more."""
    if definition.name in READ_NO_VALUES:
        return
    rng = np.random.default_rng(11)
    tried: dict[str, int] = {}
    noticed: dict[str, int] = {}
    for number, call in enumerate(draws(definition, signature)):
        if number >= CLEAR and clearly(noticed, tried):
            break
        truth = Truth(call)
        for name in call.inputs:
            other = changed(call, name, rng)
            if other is None:
                continue
            family = name.rstrip("0123456789")
            tried[family] = tried.get(family, 0) + 1
            results = {n: r.stored for n, r in run_call(other).items()}
            noticed[family] = noticed.get(family, 0) + truth.differs(results)
    for name, count in tried.items():
        assert noticed[name] >= 0.5 * count, f"{name}: {noticed[name]} of {count}"


FAULTS = {
    "all zero": np.zeros_like,
    "first element dropped": lambda x: np.roll(x, 1),
    "last axis reversed": lambda x: x[..., ::-1] if x.ndim else x,
    "negated": lambda x: ~x if x.dtype.kind in "iu" else -x,
}


@pytest.mark.parametrize(("definition", "signature"), one_in_three(SIGNATURES), ids=IDS)
def test_generic_faults_are_found(definition: OperationDef, signature: Signature) -> None:
    """A result that is zero, shifted, reversed or negated is noticed in most draws where it changes anything."""
    tried = dict.fromkeys(FAULTS, 0)
    noticed = dict.fromkeys(FAULTS, 0)
    for number, call in enumerate(draws(definition, signature)):
        if number >= CLEAR and clearly(noticed, tried):
            break
        truth = Truth(call)
        for label, fault in FAULTS.items():
            wrong = {n: fault(r.stored) for n, r in truth.results.items()}
            if all(np.array_equal(wrong[n], truth.results[n].stored) for n in wrong):
                continue
            tried[label] += 1
            noticed[label] += truth.differs(wrong)
    for label, count in tried.items():
        assert noticed[label] >= 0.5 * count, f"{label}: {noticed[label]} of {count}"
    assert sum(tried.values()) > 0


EXAMPLES = [(d, e) for d in OPSET.values() for e in d.examples]


@pytest.mark.parametrize(("definition", "number"), [(d, i) for d in OPSET.values() for i in range(len(d.examples))],
                         ids=lambda x: x.name if isinstance(x, OperationDef) else str(x))  # fmt: skip
def test_examples_agree_with_the_kernel(definition: OperationDef, number: int) -> None:
    call, outputs = from_example(definition, definition.examples[number])
    assert violations(call) == []
    results = run_call(call)
    allowed = allowance(call, results)
    for name, value in outputs.items():
        assert results[name].stored.shape == value.shape
        error = np.abs(results[name].stored.astype(np.float64) - value.astype(np.float64))
        assert np.all(error <= allowed[name].required)


@pytest.mark.parametrize("definition", OPSET.values(), ids=lambda d: d.name)
def test_words_and_examples_are_there(definition: OperationDef) -> None:
    assert definition.examples
    assert definition.second_opinion
    assert not definition.judging.words.endswith(".")
    assert definition.doc.endswith(".")


QUANTIZED_RESULTS = [(d, s) for d, s in SIGNATURES if any(s.row.types.get(r.name) in QUANTIZED for r in d.results)]


@pytest.mark.parametrize(
    ("definition", "signature"), QUANTIZED_RESULTS, ids=[f"{d.name}-{s.id}" for d, s in QUANTIZED_RESULTS]
)
def test_steps_said_to_be_moved_are_steps_of_inputs(definition: OperationDef, signature: Signature) -> None:
    moves = 0
    movable = definition.judging.moves and any(
        signature.row.types.get(operand.name) in QUANTIZED for operand in signature.form.operands
    )
    for call in draws(definition, signature, 12):
        results = run_call(call)
        values = [argument.value for argument in call.inputs.values()]
        given = [value.reshape(-1) for value in values if value is not None and value.dtype.kind in "iu"]
        for name, allowed in allowance(call, results).items():
            due, result = results[name].exact, call.results[name]
            if result.type not in QUANTIZED or allowed.terms:
                continue
            moves += 1
            # Padding, what is not found, and the end of a range that lies on a step.
            ends = [result.zero_point + end / result.scale for end in (0, -1, 1, 6)]
            assert np.isin(due[due % 1 == 0], np.concatenate([*given, [0.0], ends])).all()
    assert bool(moves) == bool(movable), moves


def test_the_record_stays_small() -> None:
    assert len(fields(OperationDef)) <= 16


def no_masks(values: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    return {}


@pytest.mark.parametrize("judging", [Judging(no_error, ""), moved(LeftOpen("", no_masks))])
def test_judging_without_words_is_refused(judging: Judging) -> None:
    definition = next(iter(OPSET.values()))
    check_definition(definition)
    with pytest.raises(ValueError, match="no words"):
        check_definition(replace(definition, judging=judging))
