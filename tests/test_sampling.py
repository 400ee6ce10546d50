"""RANDOM_MULTINOMIAL: frequencies judged by a bound whose false alarms are counted exactly, seeds, faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

from harness import distribution
from harness.case import Origin, TestCase
from harness.case_file import load, save, seal
from harness.expectations import Expected, Returns
from harness.isolation import IsolatedDriver
from harness.judge import judge
from harness.judge_output import judge_output
from harness.make import expected_outputs, positive_case
from harness.run import run
from harness.verdict import Cause, Verdict
from nnhal.device import Device
from nnhal.operations import Signature
from nnhal.types import FL3, Array, OperandType
from opset.call import Call, int32_tensor
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.sampling import RANDOM_MULTINOMIAL
from opset.source import SeededSource
from reference_driver.device import ReferenceDevice
from tests.judging import draws, noticed

SIGNATURES = RANDOM_MULTINOMIAL.signatures
ENOUGH = 500  # samples from which on a wrong distribution is told from chance


def each(signature: Signature, count: int, purpose: str) -> list[Call]:
    return list(draws(RANDOM_MULTINOMIAL, signature, count, purpose))


def softmax(call: Call) -> Array:
    logits = call["logits"].value
    assert logits is not None
    return np.asarray(special.softmax(logits.astype(np.float64), axis=1))


def sampled(call: Call, chances: Array, rng: np.random.Generator) -> Array:
    """Samples by NumPy's own choice."""
    number = call.integer("samples")
    return np.stack([rng.choice(len(row), number, p=row) for row in chances]).astype(np.int32)


def test_signatures() -> None:
    assert [(s.id, s.since, s.count) for s in SIGNATURES] == [("float32", FL3, 3), ("float16", FL3, 3)]


# --- second opinion ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.id)
def test_frequencies_are_those_of_scipy(signature: Signature) -> None:
    chances = []
    for call in each(signature, 200, "scipy"):
        samples = run_call(call)["output"].stored
        for row, due in zip(samples, softmax(call), strict=True):
            counts, expected = np.bincount(row, minlength=len(due)), due * row.size
            if len(due) > 1 and expected.min() >= 5:
                chances.append(stats.chisquare(counts, expected).pvalue)
    assert len(chances) > 100
    assert min(chances) > 1e-6
    assert stats.kstest(chances, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.id)
def test_samples_of_numpy_are_not_blamed(signature: Signature) -> None:
    rng = np.random.default_rng(3)
    for call in each(signature, 200, "numpy"):
        assert not noticed(call, {"output": sampled(call, softmax(call), rng)})


@pytest.mark.parametrize("number", [1, 2, 31, 100, 700])
@pytest.mark.parametrize("classes", [2, 9])
def test_false_alarms_are_as_rare_as_is_said(number: int, classes: int) -> None:
    """The exact binomial chance of every count that is refused, added up over classes and rows."""
    for first in (0.5, 0.1, 1e-3, 1e-8, 0.97, 1 - 1e-9):
        rest = np.full(classes - 1, (1 - first) / (classes - 1))
        chances = np.array([[first, *rest]])
        total = 0.0
        for place, times in ((0, 1), (1, classes - 1)):  # the classes behind the first are alike
            refused = []
            for count in range(number + 1):
                row = np.full((1, number), -1)
                row[0, :count] = place
                refused.append(bool(distribution.excess(row, chances)[0, place] > 1))
            tails = stats.binom.pmf(np.flatnonzero(refused), number, chances[0, place])
            total += times * float(tails.sum())
        assert total <= distribution.FALSE_ALARM


def test_the_limit() -> None:
    chances = np.array([[0.5, 0.5]])
    samples = np.zeros((1, 100), np.int32)
    due = 100 * math.log(2) / math.log(2 * 2 / 1e-9)  # KL(1 || 1/2) = ln 2
    assert distribution.excess(samples, chances)[0, 0] == pytest.approx(due)
    assert distribution.excess(np.array([[0, 1] * 50]), chances).max() == 0
    assert np.isinf(distribution.excess(np.array([[1]]), np.array([[1.0, 0.0]]))).all()


# --- faults -----------------------------------------------------------------------------------------------------------


def _other(change: Callable[[Array], Array]) -> Callable[[Call, np.random.Generator], Array]:
    """Right samples of wrong probabilities."""

    def fault(call: Call, rng: np.random.Generator) -> Array:
        logits = call["logits"].value
        assert logits is not None
        return sampled(call, special.softmax(change(logits.astype(np.float64)), axis=1), rng)

    return fault


def _changed(change: Callable[[Call, Array], Array]) -> Callable[[Call, np.random.Generator], Array]:
    """Right samples that are changed."""
    return lambda call, rng: change(call, sampled(call, softmax(call), rng)).astype(np.int32)


def _classes(call: Call) -> int:
    return call["logits"].shape[1]


FAULTS: dict[str, Callable[[Call, np.random.Generator], Array]] = {
    "uniform": _other(np.zeros_like),
    "largest always": _other(lambda x: x * 1e6),
    "negated logits": _other(lambda x: -x),
    "logits divided by the largest": _other(lambda x: x / np.abs(x).max(axis=1, keepdims=True)),
    "squared probabilities": _other(lambda x: 2 * x),
    "logits reversed": _other(lambda x: x[:, ::-1]),
    "next class": _changed(lambda call, y: (y + 1) % _classes(call)),
    "counted from 1": _changed(lambda call, y: y + 1),
    "one sample repeated": _changed(lambda call, y: np.repeat(y[:, :1], y.shape[1], axis=1)),
    "half left at 0": _changed(lambda call, y: np.where(np.arange(y.shape[1]) % 2, y, 0)),
    "last class never": _changed(lambda call, y: np.minimum(y, _classes(call) - 2)),
    "one sample out of range": _changed(lambda call, y: np.where(np.arange(y.shape[1]) == 7, -1, y)),
}


def detected(name: str, signature: Signature) -> tuple[int, int]:
    """In how many draws a fault is noticed, of those whose samples are many and whose distribution it changes."""
    rng = np.random.default_rng(4)
    seen = told = 0
    for call in each(signature, 200, "faults"):
        chances = softmax(call)
        spread = chances.max(axis=1) - chances.min(axis=1)
        if call.integer("samples") < ENOUGH or _classes(call) < 2 or spread.max() < 0.3 or chances.min() < 0.02:
            continue
        told += 1
        seen += noticed(call, {"output": FAULTS[name](call, rng)})
    return seen, told


@pytest.mark.thorough
@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.id)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_noticed(name: str, signature: Signature) -> None:
    seen, told = detected(name, signature)
    assert told >= 30
    least = 0.8 if name in ("logits divided by the largest", "logits reversed", "last class never") else 0.95
    assert seen >= least * told, f"{seen} of {told}"


def test_messages() -> None:
    due = Expected("output", OperandType.TENSOR_INT32, (1, 600), np.zeros((1, 600)), np.zeros((1, 600)),
                   distribution=np.array([[0.25, 0.75]]))  # fmt: skip
    found = judge_output(due, np.zeros((1, 600), np.int32))
    assert (found.verdict, found.cause) == (Verdict.FAIL, Cause.VALUE)
    assert found.message == (
        "output 'output' has class 0 of row 0 600 times in 600 samples, where its probability is 0.25: "
        "that comes by chance less than once in 1e+09 runs"
    )
    assert found.error is not None
    assert found.error > 1
    outside = judge_output(due, np.full((1, 600), 2, np.int32))
    assert outside.message == "output 'output' has 2 at (0, 0): classes are 0 to 1"
    good = judge_output(due, np.array([[0, 1, 1, 1] * 150], np.int32))
    assert (good.verdict, good.error) == (Verdict.PASS, 0.0)


# --- seeds ------------------------------------------------------------------------------------------------------------


def drawn(samples: int = 600, seeds: tuple[int, int] = (3, 4)) -> Call:
    """A call of two classes or more with its samples and seeds chosen."""
    for number in range(100):
        call = draw_call(RANDOM_MULTINOMIAL, SIGNATURES[0], Scope(SeededSource(f"seeds/{number}")))
        if call["logits"].shape[1] > 2 and softmax(call).max() < 0.8 and call.integer("samples") >= samples:
            return call.with_input("seeds", int32_tensor(seeds))
    raise AssertionError("no draw fits")


def test_seeds_decide_and_zeros_leave_it_to_chance() -> None:
    def samples(seeds: tuple[int, int]) -> Array:
        return run_call(drawn(seeds=seeds))["output"].stored

    assert np.array_equal(samples((3, 4)), samples((3, 4)))
    for other in ((4, 3), (3, 5), (-3, 4), (0, 4), (3, 0)):
        assert not np.array_equal(samples((3, 4)), samples(other))
    assert not np.array_equal(samples((0, 0)), samples((0, 0)))


def case_of(call: Call, constants: frozenset[str] = frozenset()) -> TestCase:
    return positive_case(call, Origin("RANDOM_MULTINOMIAL", "float32", "drawn", 0), constants)


def test_a_case_asks_again_with_other_seeds() -> None:
    case = case_of(drawn())
    first, second = case.steps[2:]
    assert not np.array_equal(first.inputs[1], second.inputs[1])  # type: ignore[arg-type]
    assert isinstance(second.expect, Returns)
    assert [due.differs_from for due in second.expect.outputs] == [1]
    assert len(case_of(drawn(), frozenset({"seeds"})).steps) == 3  # constant seeds cannot be others
    few = drawn().with_input("samples", replace(drawn()["samples"], value=np.array(2, np.int32)))
    few = few.with_result("output", replace(few["output"], shape=(few["logits"].shape[0], 2)))
    assert len(case_of(few).steps) == 3  # alike by chance


class SeedBlind(ReferenceDevice):
    """Draws the same samples whatever the seeds are."""

    def prepare_model(self, model: object, config: object = None) -> object:  # type: ignore[override]
        prepared = super().prepare_model(model)  # type: ignore[arg-type]
        evaluated = prepared._evaluate  # type: ignore[attr-defined]

        def same(inputs: list[Array], *rest: object) -> object:
            return evaluated([inputs[0], np.array([1, 1], np.int32)], *rest)

        prepared._evaluate = same  # type: ignore[attr-defined]
        return prepared


def test_seeds_that_are_not_read_are_noticed() -> None:
    case = case_of(drawn())
    good = judge(case, run(case, ReferenceDevice(), in_process=True))
    assert good.verdict == Verdict.PASS
    bad = judge(case, run(case, SeedBlind(), in_process=True))
    assert (bad.verdict, bad.cause) == (Verdict.FAIL, Cause.VALUE)
    assert bad.message == "output 'output' is that of an execution with other seeds: no chance makes them alike"


def test_the_isolated_reference_driver_passes() -> None:
    with IsolatedDriver("reference") as driver:
        device: Device = driver.device
        for seeds in ((3, 4), (0, 0)):
            case = case_of(drawn(seeds=seeds))
            assert judge(case, run(case, device)).verdict == Verdict.PASS


def test_a_case_is_saved_and_loaded(tmp_path: Path) -> None:
    case = case_of(drawn(seeds=(0, 0)))
    save(case, tmp_path / "case.npz")
    again = load(tmp_path / "case.npz")
    assert again.digest == case.digest == seal(again).digest
    for old, new in zip(case.steps, again.steps, strict=True):
        if isinstance(old.expect, Returns) and old.expect.outputs:
            assert isinstance(new.expect, Returns)
            due, read = old.expect.outputs[0], new.expect.outputs[0]
            assert np.array_equal(due.distribution, read.distribution)  # type: ignore[arg-type]
            assert due.differs_from == read.differs_from
    assert case_of(drawn(seeds=(0, 0))).digest == case.digest  # what is random is not in it


def test_results_are_no_operands_of_later_calls() -> None:
    scope = Scope(SeededSource("scope"))
    call = draw_call(RANDOM_MULTINOMIAL, SIGNATURES[0], scope)
    assert all(a.shape != call["output"].shape for a in scope.operands if a.type == OperandType.TENSOR_INT32)
    assert expected_outputs(call)[0].distribution is not None


def test_the_words_name_the_rate_of_false_alarms() -> None:
    power = round(-math.log10(distribution.FALSE_ALARM))
    assert f"one false alarm in 10^{power} " in RANDOM_MULTINOMIAL.judging.words
