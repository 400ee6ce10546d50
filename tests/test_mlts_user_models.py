"""A user's own models and pictures as entries of the benchmark."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert.schema_py_generated")
pytest.importorskip("flatbuffers")
pytest.importorskip("scipy.signal")
pytest.importorskip("PIL.Image")

from PIL import Image

from mlts.catalogue import Input, Preprocessing, entry
from mlts.files import model_file
from mlts.interpreting import tflite_of
from mlts.pictures import calibration, cropped, generated, on_white, samples, smooth
from mlts.quantizing import quantize
from mlts.user_models import user_entries
from nnhal.errors import UsageError
from tests.small_networks import small_networks


@pytest.fixture(scope="module")
def small():
    return small_networks()


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_made_pictures_are_smooth_and_repeat():
    first, second = list(smooth(40, 30, 3, 7)), list(smooth(40, 30, 3, 7))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0], first[1])
    assert first[0].shape == (40, 30, 3)
    assert (first[0].min(), first[0].max()) == (0, 255)
    assert np.abs(np.diff(first[0].astype(int), axis=0)).max() < 64


def test_made_inputs_have_the_stored_type_and_layout():
    (one,) = generated([Input((2, 3, 8, 9), "uint8", 1 / 128, 128)], 1, 0)
    assert one.inputs[0].shape == (2, 3, 8, 9)
    assert one.inputs[0].dtype == np.uint8
    assert np.array_equal(one.inputs[0][0], one.inputs[0][1])
    (other,) = generated([Input((3,), "float32"), Input((2, 2), "int8", 0.1, 3)], 1, 0)
    assert [value.dtype.name for value in other.inputs] == ["float32", "int8"]
    assert one.truth is None


def test_preprocessing_and_storage():
    prepared = Preprocessing((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
    assert prepared.range == pytest.approx((-0.485 / 0.229, (1 - 0.406) / 0.225), rel=1e-5)
    given = Input((1,), "uint8", 0.5, 10)
    assert given.stored(np.array([-99, 0.25, 0.75, 200], np.float32)).tolist() == [0, 10, 12, 255]


def test_made_calibration_is_never_what_is_judged(tmp_path):
    one = entry("mobilenet_v1_0.25_128_quant")
    judged = {sample.inputs[0].tobytes() for sample in samples(one, tmp_path)}
    assert len(judged) == 50
    seen = {one.inputs[0].stored(values[0]).tobytes() for values in calibration(one, tmp_path)}
    assert seen.isdisjoint(judged)
    genuine = entry("mobilenet_v1_1.0_224_quant")
    with pytest.raises(UsageError, match="calibrated on photos"):
        samples(genuine, tmp_path, "photos")
    with pytest.raises(UsageError, match="no data set 'cats'"):
        list(samples(genuine, tmp_path, "cats"))


# --- a user's models --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(small):
    """Bytes of a float and of a quantised file, [1, 32, 32, 3] to [1, 1001]."""
    models, inputs = small
    quantized = quantize(models["mobilenet_v1"], inputs, (-1, 127 / 128))
    return tflite_of(models["mobilenet_v1"]), tflite_of(quantized)


def picture(place, colour, size=(48, 40)):
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(place)


def test_a_folder_of_files_becomes_entries(tmp_path, files):
    (tmp_path / "a.tflite").write_bytes(files[0])
    (tmp_path / "b.tflite").write_bytes(files[1])
    picture(tmp_path / "b" / "red.png", (255, 0, 0))
    picture(tmp_path / "b" / "grey.png", (128, 128, 128))
    (tmp_path / "b" / "labels.txt").write_text("red.png 7  # a comment\n\ngrey.png\n")
    described = {"mean": [128, 128, 128], "deviation": [128, 128, 128], "first_class": 1}
    (tmp_path / "b" / "preprocessing.json").write_text(json.dumps(described))
    first, second = user_entries(tmp_path)
    assert (first.name, first.slot, first.type, first.evaluator) == ("a", "other", "float", "difference")
    assert first.inputs == (Input((1, 32, 32, 3)),)
    assert (second.type, second.evaluator, second.off_by) == ("quant8", "top_k", 3)
    assert second.inputs == (Input((1, 32, 32, 3), "uint8", 1 / 128, 128),)
    assert model_file(second, tmp_path) == tmp_path / "b.tflite"
    red, grey = samples(second, tmp_path)
    assert (red.name, red.truth, grey.truth) == ("red.png", (8,), None)
    assert (red.inputs[0].dtype, red.inputs[0].shape) == (np.uint8, (1, 32, 32, 3))
    assert red.inputs[0][0, 5, 5].tolist() == [255, 0, 0]  # a step of 1/128 with zero point 128 stores pixels
    (made, *_) = samples(first, tmp_path, most=2)
    assert made.inputs[0].dtype == np.float32
    assert np.abs(made.inputs[0]).max() == 1  # pixels as -1 to 1 where nothing is said


def test_the_public_list_becomes_entries(tmp_path, files):
    (tmp_path / "v1.tflite").write_bytes(files[1])
    picture(tmp_path / "set" / "b.png", (0, 0, 255))
    picture(tmp_path / "set" / "a.png", (0, 255, 0))
    (tmp_path / "labels.txt").write_text("background\ncat\ndog\n")
    (tmp_path / "truth.txt").write_text("dog\n1\n")
    golden = np.zeros((1, 32, 32, 3), np.uint8)
    (tmp_path / "in.bin").write_bytes(golden.tobytes())
    (tmp_path / "out.bin").write_bytes(bytes(1001))
    dataset = {"inputPath": "set", "groundTruth": "truth.txt", "labels": "labels.txt", "preprocessor": "Any"}
    common = {"baselineSec": 0.1, "inputSize": [1, 32, 32, 3], "dataSize": 1, "modelFile": "v1"}
    topk = {"className": "TopK", "expectedTop1": 0.7}
    listed = [
        {"name": "topk", **common, "dataset": dataset, "inputScale": 1 / 128, "inputZeroPoint": 128, "evaluator": topk,
         "minSdkVersion": 29},
        {"name": "golden", **common, "inputOutputs": [{"input": "in.bin", "outputs": ["out.bin"]}]},
    ]  # fmt: skip
    (tmp_path / "models_list").mkdir()
    (tmp_path / "models_list" / "some.json").write_text(json.dumps({"models": listed}))
    first, second = user_entries(tmp_path)
    assert (first.name, first.path, first.expected.top1, first.least_level) == ("topk", tmp_path / "v1.tflite", 0.7, 29)
    assert [(s.name, s.truth) for s in samples(first, tmp_path)] == [("a.png", (2,)), ("b.png", (1,))]
    (one,) = samples(second, tmp_path)
    assert np.array_equal(one.inputs[0], golden)
    assert one.golden[0].shape == (1001,)
    (tmp_path / "truth.txt").write_text("b.png dog\na.png 1\n")
    assert [(s.name, s.truth) for s in samples(user_entries(tmp_path)[0], tmp_path)] == [
        ("b.png", (2,)),
        ("a.png", (1,)),
    ]
    (tmp_path / "in.bin").write_bytes(b"1")
    with pytest.raises(UsageError, match="has 1 bytes, the model golden takes 3072"):
        list(samples(user_entries(tmp_path)[1], tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"modelFile": "none"}, "there is no none.tflite or none.onnx"),
        ({"modelFile": "../m"}, "lies outside"),
        ({"dataSize": 2}, "dataSize is 1 \\(quantised\\) or 4"),
        ({"inputSize": []}, "inputSize has sizes from 1"),
        ({"dataset": {"inputPath": "x"}}, "needs inputScale and inputZeroPoint"),
        ({"dataset": {}, "inputSize": [1, 2, 3, 3]}, "square pictures"),
        ({"evaluator": {"expectedTop1": 70}}, "expectedTop1 is 70"),
        ({"inputOutputs": [{"input": "/etc/passwd", "output": "x"}]}, "lies outside"),
        ({"colour": 1}, "field 'colour' is unknown"),
    ],
)
def test_a_wrong_public_list_is_refused_in_words(tmp_path, change, words):
    (tmp_path / "m.tflite").write_bytes(b"")
    entry_ = {"name": "m", "baselineSec": 1, "inputSize": [1, 8, 8, 3], "dataSize": 1} | change
    (tmp_path / "models_list").mkdir()
    (tmp_path / "models_list" / "some.json").write_text(json.dumps({"models": [entry_]}))
    with pytest.raises(UsageError, match=words):
        user_entries(tmp_path)


def test_a_wrong_folder_is_refused_in_words(tmp_path, files):
    with pytest.raises(UsageError, match="is no folder"):
        user_entries(tmp_path / "none")
    with pytest.raises(UsageError, match="has no models"):
        user_entries(tmp_path)
    (tmp_path / "m.tflite").write_bytes(files[0])
    labels = tmp_path / "m" / "labels.txt"
    labels.parent.mkdir()
    for text, words in (
        ("", "names no pictures"),
        ("a.png 1 2", "line 1: write `picture.jpg class`"),
        ("a.png cat", "line 1: write `picture.jpg class`"),
        ("../a.png 1", "is no .jpg or .png in this folder"),
        ("a.gif 1", "is no .jpg or .png in this folder"),
        ("a.png 1", "there is no a.png"),
    ):
        labels.write_text(text)
        with pytest.raises(UsageError, match=words):
            user_entries(tmp_path)
    (labels.parent / "a.png").write_bytes(b"no picture")
    with pytest.raises(UsageError, match="cannot be read as a picture"):
        list(samples(user_entries(tmp_path)[0], tmp_path))
    (tmp_path / "n.tflite").write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"n\.tflite"):
        user_entries(tmp_path)


def test_pictures_are_cropped_in_the_middle_and_put_on_white(tmp_path):
    wide = np.zeros((40, 80, 3), np.uint8)
    wide[:, 20:60] = 200  # the middle
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert np.array_equal(cropped(tmp_path / "wide.png")(40, 40), np.full((40, 40, 3), 200))
    clear = np.zeros((10, 20, 4), np.uint8)
    clear[..., 3] = [[255] * 10 + [0] * 10] * 10  # black on the left, nothing on the right
    Image.fromarray(clear).save(tmp_path / "clear.png")
    whole = on_white(tmp_path / "clear.png")(20, 20)
    assert whole[10, 2].tolist() == [0, 0, 0]
    assert whole[10, 17].tolist() == whole[1, 2].tolist() == [255, 255, 255]
