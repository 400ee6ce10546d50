"""What the benchmark says of models that are measured: results, latency, blame; small models, no packages."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from harness.driver import load_in_process
from harness.verdict import Verdict
from importers.assembling import FLOAT32, Assembly, Kind
from importers.imported import Imported
from mlts.accumulation import accumulate, ranking, single
from mlts.accuracy import Exact, errors, exact_outputs, steps_apart
from mlts.capabilities import RELAXED, figures, source
from mlts.judging import judge_latency, judge_results, judge_stability
from mlts.subject import Measured, Subject
from nnhal.loading import DriverSpec
from nnhal.model import Model
from nnhal.types import Array, OperandType, OperationType
from nnhal.validate import violations
from opset.graph import evaluate

Q8 = OperandType.TENSOR_QUANT8_ASYMM
LAYERS = 6
ROOT = Path(__file__).resolve().parent.parent


def layers(rng: np.random.Generator) -> tuple[Model, list[int]]:
    """Fully connected layers one behind the other, quantised, and the checksums of their weights."""
    assembly, kind = Assembly(), Kind(Q8, 0.05, 128)
    value, checksums = assembly.input(kind, (1, 16)), []
    for _ in range(LAYERS):
        weights = rng.integers(0, 256, (16, 16)).astype(np.uint8)
        checksums.append(zlib.crc32(weights.tobytes()))
        bias = rng.integers(-400, 400, 16).astype(np.int32)
        inputs = [value, assembly.constant(Kind(Q8, 0.004, 128), weights)]
        inputs += [assembly.constant(Kind(OperandType.TENSOR_INT32, 0.05 * 0.004), bias), assembly.int32(0)]
        value = assembly.temporary(kind, (1, 16))
        assembly.add(OperationType.FULLY_CONNECTED, inputs, (value,))
    model = assembly.finish([value])
    assert violations(model) == []
    return model, checksums


def quantised(rng: np.random.Generator, count: int) -> list[tuple[Array, ...]]:
    return [(rng.integers(60, 200, (1, 16)).astype(np.uint8),) for _ in range(count)]


def subject_of(model: Model, samples: list[tuple[Array, ...]], off_by: int | None = None) -> Subject:
    imported = Imported("made", model, (), (), ())
    return Subject("made", "other", "", "quant8", "seeded", imported, b"", tuple(samples), (None,) * 99, off_by)


# --- results ----------------------------------------------------------------------------------------------------------


def test_errors_are_in_steps_and_keep_their_sign() -> None:
    model, _ = layers(np.random.default_rng(0))
    exact = Exact((np.full((1, 16), 100.25),))
    got = np.full((1, 16), 100, np.uint8)
    got[0, 3], got[0, 4] = 97, 108
    found = errors([got], exact, model)
    assert (found.lowest, found.highest) == (pytest.approx(-3.25), pytest.approx(7.75))
    assert found.mean == pytest.approx((14 * -0.25 - 3.25 + 7.75) / 16)
    assert found.rms == pytest.approx(np.sqrt((14 * 0.25**2 + 3.25**2 + 7.75**2) / 16))
    assert steps_apart([got], [np.full((1, 16), 100, np.uint8)], model) == 8


def test_a_float_that_is_no_number_is_as_wrong_as_can_be() -> None:
    assembly = Assembly()
    x, y = assembly.input(FLOAT32, (1, 2)), assembly.temporary(FLOAT32, (1, 2))
    assembly.add(OperationType.RELU, (x,), (y,))
    found = errors([np.array([[np.nan, 1]], np.float32)], Exact((np.ones((1, 2)),)), assembly.finish([y]))
    assert found.rms == np.inf


def test_exact_outputs_are_kept_and_made_anew_when_damaged(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    model, _ = layers(rng)
    samples = quantised(rng, 2)
    first = exact_outputs(model, samples, tmp_path)
    files = sorted((tmp_path / "exact").iterdir())
    assert len(files) == 2
    files[0].write_bytes(b"damaged")
    again = exact_outputs(model, samples, tmp_path)
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one.real[0], other.real[0])


def test_larger_errors_than_the_baseline_s_are_worse_and_equal_ones_are_not() -> None:
    rng = np.random.default_rng(2)
    model, _ = layers(rng)
    samples = quantised(rng, 14)
    exact = [Exact(tuple(np.asarray(r.exact) for r in evaluate(model, list(s)))) for s in samples]
    right = [[np.clip(np.rint(e.real[0]), 0, 255).astype(np.uint8)] for e in exact]
    low = [[np.clip(np.floor(e.real[0]) - 1, 0, 255).astype(np.uint8)] for e in exact]
    subject = subject_of(model, samples)
    assert judge_results(subject, right, right, exact).judgement.verdict == Verdict.PASS
    worse = judge_results(subject, low, right, exact).judgement
    assert worse.verdict == Verdict.FAIL
    assert "signed-rank test over 14 inputs" in worse.message
    assert judge_results(subject, right, low, exact).judgement.verdict == Verdict.PASS
    few = judge_results(subject, low[:3], right[:3], exact[:3]).judgement
    assert few.verdict == Verdict.PASS
    assert "do not tell" in few.notes[0]


# --- latency ----------------------------------------------------------------------------------------------------------


def measured(ratios: list[float]) -> Measured:
    rng = np.random.default_rng(6)
    base = rng.lognormal(-5, 0.1, len(ratios))
    pairs = [(float(b * r), float(b)) for b, r in zip(base, ratios, strict=True)]
    return Measured("made", "driver", "default", pairs=pairs, latency=[a for a, _ in pairs])


def test_what_befalls_both_is_neither_slow_nor_drift() -> None:
    level = measured([1.0] * 40)
    assert judge_latency(level)[0].verdict == Verdict.PASS
    assert judge_stability(level).verdict == Verdict.PASS
    slow, paired = judge_latency(measured([1.2] * 40))
    assert slow.verdict == Verdict.POOR
    assert paired is not None
    assert paired.ratio.value == pytest.approx(1.2)
    assert judge_stability(measured([1.2] * 40)).verdict == Verdict.PASS
    assert judge_stability(measured(list(np.linspace(1, 1.3, 40)))).verdict == Verdict.POOR
    assert judge_stability(measured(list(np.linspace(1.3, 1, 40)))).verdict == Verdict.PASS  # it warms up
    assert judge_latency(Measured("made", "driver", "default"))[0].verdict == Verdict.NOT_RUN


# --- blame ------------------------------------------------------------------------------------------------------------


def test_one_operation_of_a_model_is_a_model() -> None:
    rng = np.random.default_rng(3)
    model, _ = layers(rng)
    for number in range(LAYERS):
        alone, inputs = single(model, number)
        assert violations(alone) == []
        assert inputs == [model.main.operations[number].inputs[0]]


@pytest.mark.parametrize("guilty", [0, 2, 5])
def test_the_operation_with_the_fault_ranks_first(guilty: int) -> None:
    rng = np.random.default_rng(guilty)
    model, checksums = layers(rng)
    samples = quantised(rng, 2)
    sound = load_in_process(DriverSpec.parse("reference"))
    clean = accumulate(sound, model, samples)
    assert [one.own for one in clean] == [0.0] * LAYERS
    assert [one.excess for one in clean] == [0.0] * LAYERS
    import opset.graph

    before = opset.graph.run_call
    try:
        faulty = load_in_process(DriverSpec.parse(f"{ROOT}/tests/worse_reference.py,filter={checksums[guilty]},by=3"))
        biased = opset.graph.run_call
        # In this process driver and oracle are one: the fault must be the driver's alone.
        opset.graph.run_call = before
        blames = accumulate(_Switching(faulty, before, biased), model, samples)
    finally:
        opset.graph.run_call = before
    first = ranking(blames)[0]
    assert first.number == guilty
    assert first.own is not None
    assert first.own >= 2
    assert first.excess > 0
    assert all(one.error == 0 for one in blames[:guilty])  # nothing is off before it


class _Switching:
    """A driver in this process whose fault is there only while it is asked."""

    def __init__(self, inner: object, sound: object, biased: object) -> None:
        self._inner, self._sound, self._biased = inner, sound, biased

    def __getattr__(self, name: str) -> object:
        import opset.graph

        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def switched(*arguments: object, **more: object) -> object:
            opset.graph.run_call = self._biased  # type: ignore[assignment]
            try:
                result = found(*arguments, **more)
            finally:
                opset.graph.run_call = self._sound  # type: ignore[assignment]
            return _Switching(result, self._sound, self._biased) if name == "prepare_model" else result

        return switched


# --- capabilities -----------------------------------------------------------------------------------------------------


def row(kind: str, ratio: float, *, relaxed: bool = False, whole: bool = True, energy: float | None = None) -> dict:
    driver = {"driver": "mine", "operations": 3, "on_driver": 3 if whole else 2, "energy": energy}
    return {"type": kind, "relaxed": relaxed, "driver": driver, "baseline": {"energy": 2.0},
            "ratio": {"ratio": [ratio, None, None, 20]}}  # fmt: skip


def test_capabilities_are_geometric_means_of_whole_models() -> None:
    rows = [row("quant8", 0.25), row("quant8", 1.0), row("float", 0.5, relaxed=True), row("float", 0.9, whole=False)]
    found = figures(rows)
    assert found["TENSOR_QUANT8_ASYMM"].exec_time == pytest.approx(0.5)
    assert found["TENSOR_QUANT8_ASYMM"].models == 2
    assert found[RELAXED].exec_time == pytest.approx(0.5)
    assert found[RELAXED].power is None
    assert set(found) == {"TENSOR_QUANT8_ASYMM", RELAXED}
    power = figures([row("float", 0.5, energy=0.5)])["TENSOR_FLOAT32"].power
    assert power == pytest.approx(0.5)  # a quarter of the energy in half of the time


def test_capabilities_are_source_that_runs() -> None:
    text = source(figures([row("quant8", 0.25), row("float", 0.5, relaxed=True)]), 'a"""driver\n', [Path("runs/x")])
    names: dict = {}
    exec(compile(text, "capabilities", "exec"), names)
    made = names["CAPABILITIES"]
    assert made.operand_performance[0].type == OperandType.TENSOR_QUANT8_ASYMM
    assert made.operand_performance[0].info.exec_time == 0.25
    assert made.relaxed_float32_to_float16_performance_tensor.exec_time == 0.5
    assert "power was not measured" in text
