from __future__ import annotations

import itertools
import math
from functools import cache, partial

import numpy as np
import pytest

from drivers.litert_translate import translate
from mlts.catalogue import LIST
from mlts.speech import held_out, models, parameters
from mlts.speech.chunks import Chunk, asr_chunks, carry, joined, tts_chunks
from mlts.speech.evaluators import asr_scores, rate, rate_difference, tts_scores
from mlts.speech.measures import Tally, distortion, edit_distance, likeliest_path, pair_counts
from mlts.speech.nets import ASR_STEPS, TTS_STEPS, asr_model, tts_model
from mlts.speech.phones import PHONES, collapsed
from mlts.speech.plain import execute, run
from mlts.speech.recordings import (
    ASR_INPUTS,
    TTS_INPUTS,
    asr_inputs,
    tts_inputs,
    tts_targets,
)
from mlts.speech_entries import read_speech, speech_entries
from nnhal.errors import UsageError
from nnhal.types import Array
from nnhal.validate import violations
from nnhal.versions import needed_level
from opset.graph import evaluate
from tests.speech_recordings import a_recording, small_parameters


@cache
def litert(kind: str):
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    artifact = translate({"asr": asr_model, "tts": tts_model}[kind]()).artifact
    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=artifact, experimental_op_resolver_type=resolver)
    interpreter.allocate_tensors()
    return interpreter


def run_litert(kind: str, inputs) -> list[Array]:
    interpreter = litert(kind)
    for details, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(details["index"], np.asarray(value, np.float32))
    interpreter.invoke()
    return [interpreter.get_tensor(details["index"]) for details in interpreter.get_output_details()]


# --- measures ---------------------------------------------------------------------------------------------------------


def test_edit_distance() -> None:
    assert edit_distance([ord(c) for c in "kitten"], [ord(c) for c in "sitting"]) == 3
    assert edit_distance([], [1, 2]) == 2
    assert edit_distance([1, 2], []) == 2
    assert edit_distance([1, 2, 3], [1, 3]) == 1


def test_the_best_path_is_the_best_of_all() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        rows, pairs = rng.dirichlet(np.ones(3), 5), rng.integers(0, 9, (3, 3))
        counts = pairs + 0.5
        follows = counts / counts.sum(1, keepdims=True)
        share = counts.sum(0) / counts.sum()

        def worth(path, rows=rows, follows=follows, share=share) -> float:
            steps = sum(math.log(rows[t, p] / share[p]) for t, p in enumerate(path))
            return steps + sum(math.log(follows[p, q]) for p, q in itertools.pairwise(path))

        best = max(itertools.product(range(3), repeat=5), key=worth)
        assert likeliest_path(rows, pairs) == collapsed(best)


def test_pairs_are_counted() -> None:
    counts = pair_counts([np.array([0, 0, 3, 3, 0]), np.array([3, 0])])
    assert counts.shape == (len(PHONES),) * 2
    assert {(i, j): counts[i, j] for i, j in np.argwhere(counts)} == {(0, 0): 1, (0, 3): 1, (3, 3): 1, (3, 0): 2}


def test_distortion_of_one_cepstrum() -> None:
    due = np.zeros((2, 26))
    found = due.copy()
    found[0, 3], found[1, 0], found[1, 25] = 1.0, 9.0, 9.0  # c0 and log F0 do not count
    np.testing.assert_allclose(distortion(found, due), [10 / math.log(10) * math.sqrt(2), 0])


def test_rates_and_their_intervals() -> None:
    even = [Tally(str(n), 1, 4) for n in range(9)]
    found = rate(even)
    assert (found.value, found.low, found.high, found.count) == (0.25, 0.25, 0.25, 36)
    assert rate(even, np.sqrt).value == 0.5
    uneven = [Tally("a", 0, 10), Tally("b", 5, 10), Tally("c", 1, 10), Tally("d", 0, 30)]
    found = rate(uneven)
    assert found.value == pytest.approx(0.1)
    assert 0 <= found.low < 0.1 < found.high <= 0.5
    # In pairs the spread between recordings cancels: everywhere one phone more in ten.
    worse = [Tally(t.name, t.errors + t.count / 10, t.count) for t in uneven]
    moved = rate_difference(worse, uneven)
    np.testing.assert_allclose([moved.value, moved.low, moved.high], 0.1)


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "steps"),
    [("asr", ASR_INPUTS, len(PHONES), ASR_STEPS), ("tts", TTS_INPUTS, 26, TTS_STEPS)],
)
def test_small_models_carry_their_states(kind: str, inputs: int, outputs: int, steps: int) -> None:
    """The reference, chunk by chunk with the states that it gave, is plain NumPy in one go."""
    known = small_parameters(inputs, outputs)
    model = (asr_model if kind == "asr" else tts_model)(known)
    assert violations(model) == []
    assert needed_level(model) == 4
    cut = asr_chunks if kind == "asr" else tts_chunks
    recordings = [a_recording(233), a_recording(40, "two")]
    chunks = cut(recordings, known)
    assert all(chunk.inputs[0].shape == (1, steps, inputs) for chunk in chunks)
    made = carry(chunks, lambda values: [result.stored for result in evaluate(model, values)])
    for recording, rows in joined(chunks, made):
        whole = (
            asr_inputs(recording.bands, known.mean, known.deviation)
            if kind == "asr"
            else tts_inputs(recording.segments, len(recording.bands))
        )
        due, _ = run(known, whole)
        if kind == "asr":
            due = np.exp(due) / np.exp(due).sum(1, keepdims=True)
        np.testing.assert_allclose(rows, due, atol=1e-6)
    # Run each by itself: the states that stand in the chunks are the right ones.
    alone = [[result.stored for result in evaluate(model, chunk.inputs)] for chunk in chunks]
    for one, other in zip(alone, made, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_relaxed_models() -> None:
    known = small_parameters(ASR_INPUTS, len(PHONES))
    assert asr_model(known, relaxed=True).relax_computation_float32_to_float16
    assert not asr_model(known).relax_computation_float32_to_float16


@pytest.mark.parametrize("kind", ["asr", "tts"])
def test_trained_models_on_litert_and_the_reference(kind: str) -> None:
    known = parameters.read(kind)
    model = asr_model() if kind == "asr" else tts_model()
    assert violations(model) == []
    chunks = (asr_chunks if kind == "asr" else tts_chunks)(held_out.committed()[:1])[:2]
    runtime = carry(chunks, partial(run_litert, kind))
    reference = carry(chunks, lambda values: [result.stored for result in evaluate(model, values)])
    plain = carry(chunks, partial(execute, known, probabilities=kind == "asr"))
    for one, two, three in zip(runtime, reference, plain, strict=True):
        for a, b, c in zip(one, two, three, strict=True):
            assert a.shape == b.shape == c.shape
            np.testing.assert_allclose(b, c, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(a, c, rtol=1e-4, atol=5e-5)


def test_models_by_name() -> None:
    recordings = held_out.committed()[:2]
    for name in models.MODELS:
        made = models.subject(name, recordings, relaxed=True)
        graph = made.model.main
        assert made.model.relax_computation_float32_to_float16
        for values in made.samples:
            shapes = [graph.operands[i].dimensions for i in graph.input_indexes]
            assert [value.shape for value in values] == shapes
            assert all(value.dtype == np.float32 for value in values)
        zeros = [[np.zeros(graph.operands[i].dimensions) for i in graph.output_indexes] for _ in made.samples]
        assert models.MODELS[name].scores(made.truths, zeros, zeros)["mean squared error"].value == 0
        assert [port.operand for port in made.imported.inputs] == list(graph.input_indexes)
        assert made.imported.level == 4
    with pytest.raises(UsageError, match="asr_float, tts_float"):
        models.subject("asr_quant", recordings)


@pytest.mark.parametrize("kind", ["asr", "tts"])
@pytest.mark.thorough
def test_trained_models_are_of_use(kind: str) -> None:
    """LiteRT reaches on the committed recordings about what the record says of all; guessing would not."""
    recordings = held_out.committed()[:16]
    chunks = (asr_chunks if kind == "asr" else tts_chunks)(recordings)
    outputs = carry(chunks, partial(run_litert, kind))
    plain = carry(chunks, partial(execute, parameters.read(kind), probabilities=kind == "asr"))
    judge = asr_scores if kind == "asr" else tts_scores
    scores = judge(chunks, outputs, plain)
    said = parameters.record()[kind]["scores"]
    for name, worst in {"asr": {"phone error rate": 0.35}, "tts": {"mel-cepstral distortion": 3.2}}[kind].items():
        assert scores[name].value < worst
        assert scores[name].low <= said[name]["value"] <= scores[name].high
        assert abs(scores[f"{name}, less baseline"].value) < 5e-3
    assert scores["mean squared error"].value < 1e-9
    assert scores["largest error below"].value <= 0 <= scores["largest error above"].value
    if kind == "tts":  # the mean of all frames, the best without knowing a phone
        mean = np.mean(np.concatenate([tts_targets(r) for r in recordings]), axis=0)
        guessed = [[np.broadcast_to(mean, (TTS_STEPS, 26))] for _ in chunks]
        assert tts_scores(chunks, guessed)["mel-cepstral distortion"].value > 1.4 * said[name]["value"]


def test_a_wrong_driver_is_told_from_the_baseline() -> None:
    chunks = tts_chunks([a_recording(150), a_recording(90, "two")], small_parameters(TTS_INPUTS, 26))
    right = [[np.zeros((TTS_STEPS, 26))] for _ in chunks]
    wrong = [[np.zeros((TTS_STEPS, 26))] for _ in chunks]
    wrong[0][0][:, 25] = -0.5
    scores = tts_scores(chunks, wrong, right)
    assert scores["largest error below"].value == -0.5
    assert scores["largest error above"].value == 0
    assert scores["worst log F0 error from baseline"].value == pytest.approx(math.sqrt(0.25 * share(chunks[0])))
    assert scores["worst mel-cepstral distortion from baseline"].value == 0
    same = tts_scores(chunks, right, right)["mel-cepstral distortion, less baseline"]
    assert (same.value, same.low, same.high) == (0, 0, 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_outputs_that_are_no_numbers(value: float) -> None:
    recordings = [a_recording(150), a_recording(90, "two")]
    for cut, judge, size in ((asr_chunks, asr_scores, ASR_INPUTS), (tts_chunks, tts_scores, TTS_INPUTS)):
        outputs = len(PHONES) if cut is asr_chunks else 26
        chunks = cut(recordings, small_parameters(size, outputs))
        right = [[np.zeros((100, outputs))] for _ in chunks]
        wrong = [[np.zeros((100, outputs))] for _ in chunks]
        wrong[0][0][3:9, 4] = value
        scores = judge(chunks, wrong, right)
        assert not scores["mean squared error"].value < 1e12
        assert not scores["largest error above"].value - scores["largest error below"].value < 1e12


def test_recordings_that_were_not_run_whole_do_not_count() -> None:
    known = small_parameters(TTS_INPUTS, 26)
    chunks = tts_chunks([a_recording(150), a_recording(250, "two")], known)
    assert [(chunk.number, chunk.count, chunk.steps) for chunk in chunks] == [
        (0, 2, 100), (1, 2, 50), (0, 3, 100), (1, 3, 100), (2, 3, 50),
    ]  # fmt: skip
    outputs = [[np.zeros((TTS_STEPS, 26))] for _ in chunks]
    assert [r.name for r, _ in joined(chunks[:4], outputs[:4])] == ["one"]
    assert [r.name for r, _ in joined(chunks[1:], outputs[1:])] == ["two"]
    assert tts_scores(chunks[:1], outputs[:1], outputs[:1]) == {}
    assert asr_scores(chunks[:1], outputs[:1]) == {}


def share(chunk: Chunk) -> float:
    """Of the voiced frames of a recording, those in its first chunk."""
    voiced = chunk.recording.pitch != 0
    return voiced[:TTS_STEPS].sum() / voiced.sum()


def test_the_list_says_what_the_models_are() -> None:
    listed = {one.name: one for one in speech_entries()}
    assert set(listed) == set(models.MODELS)
    for name, one in listed.items():
        assert (one.slot, one.size) == (models.MODELS[name].slot, models.MODELS[name].size)
    text = LIST.read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="model and slot differ; write asr for both"):
        read_speech(text.replace('"model": "asr"', '"model": "tts"'), "models.json")
    with pytest.raises(UsageError, match="field 'sizes' is unknown"):
        read_speech(text.replace('"size": "50x20ms"', '"sizes": "50x20ms"'), "models.json")
