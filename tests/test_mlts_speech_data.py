from __future__ import annotations

import hashlib
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mlts.packages import cache_folder
from mlts.speech import g722, held_out, parameters, prompts, train
from mlts.speech.features import cepstra, log_f0, log_mel, stacked
from mlts.speech.phones import PHONES, Segments, collapsed
from mlts.speech.recordings import (
    ASR_INPUTS,
    LOOK_AHEAD,
    TTS_INPUTS,
    Recording,
    asr_inputs,
    asr_targets,
    tts_inputs,
    tts_targets,
)
from nnhal.errors import UsageError
from tests.speech_recordings import a_recording, small_parameters

SECOND = np.arange(16_000) / 16_000


# --- sound ------------------------------------------------------------------------------------------------------------


def test_the_decoder_gives_what_libav_gives() -> None:
    """Bytes drawn at random drive every limit of the predictors; digests are of libav's output (PyAV 18.1)."""
    due = {
        (7, 1200): "6b11b31b7fc3712455603d25490ebcee9d5c79b07597a612701588446f18ae76",
        (8, 500): "d17a13a099e8dcd2cff4fd9171f798705939b49a4a0a52e238ed6b42689a8fc6",
    }
    streams = [np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes() for seed, size in due]
    sounds = g722.decode(streams)  # side by side, of different lengths
    assert [hashlib.sha256(sound.astype("<i2").tobytes()).hexdigest() for sound in sounds] == list(due.values())
    assert g722.decode([]) == []
    assert len(g722.decode([b""])[0]) == 0


@pytest.mark.parametrize("pitch", [95.0, 187.3, 310.0])
def test_pitch_of_harmonics(pitch: float) -> None:
    harmonics = sum(np.sin(2 * np.pi * pitch * n * SECOND) / n for n in range(1, 15))
    found = log_f0((8000 * harmonics).astype(np.int16))
    assert len(found) == (16_000 - 400) // 160 + 1
    np.testing.assert_allclose(np.exp(found[3:-3]), pitch, rtol=3e-3)


def test_noise_and_silence_have_no_pitch() -> None:
    noise = np.random.default_rng(1).normal(0, 2000, 16_000).astype(np.int16)
    assert not log_f0(noise).any()
    assert not log_f0(np.zeros(16_000, np.int16)).any()
    assert log_f0(np.zeros(100, np.int16)).shape == (0,)


def test_bands_of_a_tone() -> None:
    """The power of a sine under a Hann window, on the two triangles around it: their weights add up to one."""
    frequency, amplitude = 1000.0, 0.25
    bands = log_mel((amplitude * 32768 * np.sin(2 * np.pi * frequency * SECOND)).astype(np.int16))
    mel = 1127 * math.log1p(frequency / 700)
    lowest, highest = (1127 * math.log1p(f / 700) for f in (60, 7600))
    place = (mel - lowest) / (highest - lowest) * 41 - 1  # the middle of band n is the edge n + 1
    assert set(np.argsort(bands[20])[-2:]) == {math.floor(place), math.ceil(place)}
    # Parseval, half of the lines: 512 / 2 * sum over 400 of (a w sin)^2 = 512 / 2 * 400 a^2 / 2 * 3 / 8, scaled by 400.
    due = 512 / 2 * amplitude**2 / 2 * 3 / 8
    assert np.exp(bands[20].astype(float)).sum() == pytest.approx(due, rel=0.02)


def test_cepstra_are_means_of_cosines() -> None:
    bands = np.random.default_rng(2).normal(-5, 2, (3, 40)).astype(np.float32)
    found = cepstra(bands)
    for frame, k in itertools.product(range(3), (0, 1, 7, 24)):
        due = sum(float(bands[frame, n]) / 2 * math.cos(math.pi * k * (n + 0.5) / 40) for n in range(40)) / 40
        assert found[frame, k] == pytest.approx(due, abs=1e-12)
    assert found.shape == (3, 25)


def test_pairs_of_frames() -> None:
    np.testing.assert_array_equal(stacked(np.arange(6).reshape(3, 2)), [[0, 1, 2, 3], [4, 5, 4, 5]])


# --- words and phones -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "due"),
    [
        ("Press 1, or call-forward.", "press one or call forward"),
        ("That's 7", "that's seven"),
        ("Extension 162", ""),
        ("[a beep]", ""),
        ("...", ""),
    ],
)
def test_spoken_words(said: str, due: str) -> None:
    assert prompts.spoken(said) == due


def test_transcripts() -> None:
    text = "; a comment: no\n\nvm-goodbye: Goodbye!\nbeep: [beep]\ndigits/7: seven: sometimes\n"
    assert prompts.transcripts(text) == {"vm-goodbye": "goodbye", "digits/7": "seven sometimes"}


def test_segments_as_frames() -> None:
    segments = Segments((0, 5, 9), (2, 3, 1))
    assert segments.frames(8).tolist() == [0, 0, 5, 5, 5, 9, 0, 0]
    assert segments.frames(4).tolist() == [0, 0, 5, 5]
    assert segments.spoken() == (5, 9)
    assert collapsed([0, 5, 5, 0, 5, 9, 9, 0]) == (5, 5, 9)


def test_what_the_models_are_told() -> None:
    recording = a_recording()
    heard = asr_inputs(recording.bands, np.full(40, -5.0), np.full(40, 2.0))
    assert heard.shape == (117 + LOOK_AHEAD, ASR_INPUTS)
    np.testing.assert_allclose(heard[3], (recording.bands[6:8].ravel() + 5) / 2, rtol=1e-5)
    # Frames 60 and 62 are steps 30 and 31, asked for LOOK_AHEAD steps later; 60 is where phone 7 begins.
    assert asr_targets(recording)[29 + LOOK_AHEAD : 32 + LOOK_AHEAD].tolist() == [0, 7, 7]
    told = tts_inputs(recording.segments, 233)
    assert told.shape == (233, TTS_INPUTS)
    assert np.flatnonzero(told[60, :-3]).tolist() == [0, 40 + 7, 80 + 12]  # silence behind, 7 here, 12 to come
    np.testing.assert_allclose(told[64, -3:], [4.5 / 45, math.log(45), 64.5 / 233], rtol=1e-6)
    assert np.flatnonzero(told[-1, :-3]).tolist() == [
        12,
        40 + 7,
        80 + 0,
    ]  # alignment ends early: the last phone goes on
    assert told[-1, -3] == 1


def test_pitch_goes_on_where_there_is_no_voice() -> None:
    recording = a_recording(5)
    pitch = np.array([0, 5.0, 0, 5.4, 0])
    found = tts_targets(Recording("r", recording.segments, recording.bands, pitch, ""))[:, 25]
    np.testing.assert_allclose(found, [5.0, 5.0, 5.2, 5.4, 5.4])


# --- files ------------------------------------------------------------------------------------------------------------


def test_parameters_come_back(tmp_path: Path) -> None:
    known = small_parameters(5, 3)
    parameters.write("asr", known, tmp_path)
    first = (tmp_path / "asr.npz").read_bytes()
    found = parameters.read("asr", tmp_path)
    np.testing.assert_array_equal(found.layers[1].recurrent, known.layers[1].recurrent.astype(np.float16))
    np.testing.assert_array_equal(found.dense, known.dense.astype(np.float16))
    parameters.write("asr", known, tmp_path)
    assert (tmp_path / "asr.npz").read_bytes() == first
    (tmp_path / "asr.npz").write_bytes(first[:-1])
    with pytest.raises(UsageError, match="SHA-256"):
        parameters.read("asr", tmp_path)
    (tmp_path / "asr.npz").unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        parameters.read("asr", tmp_path)


def test_committed_files_are_those_of_the_record() -> None:
    record = json.loads(parameters.RECORD.read_text())
    files = {path.name: path for path in parameters.FOLDER.glob("*.npz")}
    assert set(files) == set(record["sha256"])
    for name, path in files.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == record["sha256"][name]
        assert path.stat().st_size < 1_200_000
    assert [recording.name for recording in held_out.committed()] == record["held out"]["committed"]
    assert set(record["held out"]["committed"]) <= set(record["held out"]["all"])
    notice = (parameters.FOLDER / "NOTICE").read_text()
    assert "Allison Smith" in notice
    assert "CC-BY-SA-3.0" in notice


def test_committed_recordings_hang_together() -> None:
    for recording in held_out.committed():
        frames, said = len(recording.bands), sum(recording.segments.lengths)
        assert len(recording.pitch) == frames
        assert abs(said - frames) <= 3
        assert recording.segments.spoken()
        assert recording.source == held_out.COMMITTED_SOURCE


def test_packages_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="asterisk-core-sounds-en-g722"):
        held_out.complete(tmp_path)


def test_training_without_its_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("mlts.speech.phones.import_module", missing)
    with pytest.raises(SystemExit) as ended:
        train.main(["asr"])
    assert ended.value.code == 2
    assert "pip install pocketsphinx" in capsys.readouterr().err


def test_aligned_phones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the aligner makes of PocketSphinx's answers, with a stand-in for it."""
    from mlts.speech.phones import Aligner

    def entry(name: str, duration: int) -> SimpleNamespace:
        return SimpleNamespace(name=name, duration=duration)

    words = [[entry("SIL", 4)], [entry("AE", 7), entry("D", 5)], [entry("+NSN+", 2)]]
    decoder = SimpleNamespace(
        lookup_word=lambda word: None if word == "iax" else "AE D",
        set_align_text=lambda words: None,
        set_alignment=lambda: None,
        start_utt=lambda: None,
        process_raw=lambda data, full_utt: None,
        end_utt=lambda: None,
        hyp=lambda: "add",
        get_alignment=lambda: words,
    )
    monkeypatch.setattr("mlts.speech.phones.import_module", lambda name: SimpleNamespace(Decoder=lambda **_: decoder))
    aligner = Aligner()
    found = aligner.align(np.zeros(3, np.int16), "add")
    assert found == Segments((0, PHONES.index("AE"), PHONES.index("D"), 0), (4, 7, 5, 2))
    assert aligner.align(np.zeros(3, np.int16), "add iax") is None


def test_training_pieces_keep_inputs_and_targets_together() -> None:
    pairs = [(np.full((n, 2), n), np.full(n, n)) for n in (30, 50, 70)]
    x, y = train._pieces(pairs, 20, np.random.default_rng(5))
    assert x.shape == (7, 20, 2)
    np.testing.assert_array_equal(x[..., 0], y)


def test_layers_of_keras() -> None:
    """Keras multiplies from the left, the columns of each gate side by side."""
    rng = np.random.default_rng(6)
    kernel, recurrent, bias = rng.random((3, 8)), rng.random((2, 8)), rng.random(8)
    layer = train._layer(kernel, recurrent, bias)
    x, h = rng.random(3), rng.random(2)
    due = x @ kernel + h @ recurrent + bias
    for gate in range(4):
        found = layer.inward[gate] @ x + layer.recurrent[gate] @ h + layer.bias[gate]
        np.testing.assert_allclose(found, due[2 * gate : 2 * gate + 2], rtol=2e-3)  # float16


@pytest.mark.thorough
def test_all_held_out_recordings() -> None:
    """The committed features are those of the package, as far as float16 has them."""
    try:
        found = {recording.name: recording for recording in held_out.complete(cache_folder())}
    except UsageError as error:
        pytest.skip(str(error))
    assert sorted(found) == parameters.record()["held out"]["all"]
    for recording in held_out.committed():
        other = found[recording.name]
        assert recording.segments == other.segments
        np.testing.assert_allclose(recording.bands, other.bands, atol=0.01)
        np.testing.assert_allclose(recording.pitch, other.pitch, atol=0.005)
