"""The networks of the benchmark: layers, published sizes, weights, quantisation and repair."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert.schema_py_generated")
pytest.importorskip("flatbuffers")
pytest.importorskip("scipy.signal")
pytest.importorskip("PIL.Image")

from scipy import signal

from importers.assembling import Kind
from mlts import nets
from mlts.evaluators import cosine
from mlts.interpreting import Interpreter, tflite_of
from mlts.nets import plan
from mlts.nets.building import build
from mlts.nets.layers import Layer, Norm, fold, of_lite0, of_mobilenet_v1, of_mobilenet_v2
from mlts.nets.plan import Convolution, Plan
from mlts.nets.seeding import seeded
from mlts.observing import observe
from mlts.pictures import smooth
from mlts.quantizing import asymmetric, quantize, real, stored
from mlts.rebuilding import weighted
from mlts.repairing import repaired
from nnhal.errors import UsageError
from nnhal.model import constant_value
from nnhal.types import OperandType, OperationType
from nnhal.validate import violations
from nnhal.versions import needed_level
from opset.graph import evaluate
from tests.small_networks import small_networks

Q8 = OperandType.TENSOR_QUANT8_ASYMM


@pytest.fixture(scope="module")
def small():
    return small_networks()


# --- layers and networks ----------------------------------------------------------------------------------------------


def draw(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_scipy(image, filters, padding, stride):
    """A convolution of [height, width, depth] with [out, h, w, in] by scipy, one channel at a time, in float64."""
    padded = np.pad(image.astype(np.float64), (padding, padding, (0, 0)))
    planes = [
        sum(signal.correlate2d(padded[..., c], one[..., c].astype(np.float64), "valid") for c in range(image.shape[-1]))
        for one in filters
    ]
    return np.stack(planes, -1)[::stride, ::stride]


def test_a_folded_layer_is_convolution_and_batch_norm():
    filters, image = draw((4, 3, 3, 2)), draw((6, 6, 2), 1)
    norm = Norm(draw(4, 2), draw(4, 3), draw(4, 4), np.abs(draw(4, 5)) + 0.1, 1e-3)
    layer = fold(filters, norm, depthwise=False)
    raw = by_scipy(image, filters, (1, 1), 1)
    due = (raw - norm.mean) / np.sqrt(norm.variance.astype(np.float64) + 1e-3) * norm.gamma + norm.beta
    np.testing.assert_allclose(by_scipy(image, layer.filter, (1, 1), 1) + layer.bias, due, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("symmetric", "padding"), [(True, (1, 1)), (False, (0, 1))])
def test_a_stride_pads_as_the_source_of_the_weights_does(symmetric, padding):
    """An even picture: PyTorch pads both sides, SAME the end alone."""
    net = Plan((Convolution("stem", 3, 2, 3, 4, relu6=False),))
    layers = {"stem": Layer(draw((4, 3, 3, 3)), draw(4, 1)), "classifier": Layer(draw((5, 1, 1, 4), 2), draw(5, 3))}
    model = build(net, layers, 32, symmetric=symmetric)
    image = draw((1, 32, 32, 3), 4)
    raw = by_scipy(image[0], layers["stem"].filter, padding, 2) + layers["stem"].bias
    logits = (
        raw.mean(axis=(0, 1)) @ layers["classifier"].filter[:, 0, 0].T.astype(np.float64) + layers["classifier"].bias
    )
    due = np.exp(logits - logits.max())
    np.testing.assert_allclose(Interpreter(tflite_of(model)).run([image])[0][0], due / due.sum(), rtol=1e-4)


# Million multiplications and parameters for 1001 classes: arXiv 1704.04861, tables 6 and 7, and the published list of
# MobileNetV2 models.
PUBLISHED = [
    ("mobilenet_v1", 1.0, 224, 569, 4.2),
    ("mobilenet_v1", 0.75, 224, 325, 2.6),
    ("mobilenet_v1", 0.5, 224, 149, 1.3),
    ("mobilenet_v1", 0.25, 224, 41, 0.5),
    ("mobilenet_v1", 1.0, 192, 418, 4.2),
    ("mobilenet_v1", 1.0, 128, 186, 4.2),
    ("mobilenet_v2", 1.0, 224, 300, 3.47),
    ("mobilenet_v2", 0.75, 192, 153, 2.61),
    ("mobilenet_v2", 0.5, 160, 50, 1.95),
    ("mobilenet_v2", 0.35, 128, 20, 1.66),
]


def zeros(network, classes=1001):
    """Layers of a plan without drawing any."""
    made = {}
    for one in network.convolutions:
        shape = (1, one.window, one.window, one.outputs)
        shape = shape if one.depthwise else (one.outputs, one.window, one.window, one.inputs)
        made[one.name] = Layer(np.zeros(shape, np.float32), np.zeros(one.outputs, np.float32))
    spread = (classes, network.features) if network.dense else (classes, 1, 1, network.features)
    made["classifier"] = Layer(np.zeros(spread, np.float32), np.zeros(classes, np.float32))
    return made


@pytest.mark.parametrize(("name", "width", "size", "millions", "parameters"), PUBLISHED)
def test_networks_have_the_published_size(name, width, size, millions, parameters):
    network = {"mobilenet_v1": plan.v1, "mobilenet_v2": plan.v2}[name](width)
    model = getattr(nets, name)(zeros(network), width, size)
    assert violations(model) == []
    assert needed_level(model) == 1
    layers = weighted(model)
    places = [math.prod(model.main.operands[one.result].dimensions[1:3]) for one in layers]
    count = sum(n * one.filter.size for n, one in zip(places, layers, strict=True)) / 1e6
    assert count == pytest.approx(millions, abs=max(0.6, 0.01 * millions))
    # Those of batch norm are counted there too: two a channel instead of one bias.
    total = sum(one.filter.size + 2 * one.bias.size for one in layers) / 1e6
    assert total == pytest.approx(parameters, rel=0.02, abs=0.05)


def test_lite0_has_its_blocks():
    network = plan.lite0()
    model = nets.efficientnet_lite0(zeros(network, 1000), 64)
    assert violations(model) == []
    kinds = collections.Counter(OperationType(operation.type).name for operation in model.main.operations)
    assert kinds == {
        "CONV_2D": 33, "DEPTHWISE_CONV_2D": 16, "ADD": 9, "AVERAGE_POOL_2D": 1, "RESHAPE": 1, "FULLY_CONNECTED": 1,
        "SOFTMAX": 1,
    }  # fmt: skip


def torch_tensors(network, names, classifier, classes):
    """A state dict with drawn tensors: names give the prefixes of filter and norm of each convolution."""
    tensors = {}
    for number, (one, (filters, norm)) in enumerate(zip(network.convolutions, names, strict=True)):
        shape = (one.outputs, 1 if one.depthwise else one.inputs, one.window, one.window)
        tensors[f"{filters}.weight"] = draw(shape, number)
        for part, value in (("weight", 1.0), ("bias", 2.0), ("running_mean", 3.0), ("running_var", 4.0)):
            tensors[f"{norm}.{part}"] = np.full(one.outputs, value, np.float32)
    tensors[f"{classifier}.weight"] = draw((classes, network.features), 99)
    tensors[f"{classifier}.bias"] = draw(classes, 98)
    return tensors


def v2_names():
    yield "features.0.0", "features.0.1"
    yield "features.1.conv.0.0", "features.1.conv.0.1"
    yield "features.1.conv.1", "features.1.conv.2"
    for block in range(2, 18):
        yield f"features.{block}.conv.0.0", f"features.{block}.conv.0.1"
        yield f"features.{block}.conv.1.0", f"features.{block}.conv.1.1"
        yield f"features.{block}.conv.2", f"features.{block}.conv.3"
    yield "features.18.0", "features.18.1"


def lite0_names():
    yield "_conv_stem", "_bn0"
    yield "_blocks.0._depthwise_conv", "_blocks.0._bn1"
    yield "_blocks.0._project_conv", "_blocks.0._bn2"
    for block in range(1, 16):
        for norm, part in enumerate(("expand", "depthwise", "project")):
            yield f"_blocks.{block}._{part}_conv", f"_blocks.{block}._bn{norm}"
    yield "_conv_head", "_bn1"


@pytest.mark.parametrize(
    ("read", "network", "names", "classifier", "epsilon"),
    [
        (of_mobilenet_v2, plan.v2(1.0), v2_names, "classifier.1", 1e-5),
        (of_lite0, plan.lite0(), lite0_names, "_fc", 1e-3),
    ],
)
def test_tensors_of_pytorch_find_their_layers(read, network, names, classifier, epsilon):
    tensors = torch_tensors(network, names(), classifier, 10)
    layers = read(tensors, network)
    for one, (filters, _) in zip(network.convolutions, names(), strict=True):
        weights = tensors[f"{filters}.weight"]
        due = weights[:, 0].transpose(1, 2, 0)[None] if one.depthwise else weights.transpose(0, 2, 3, 1)
        np.testing.assert_allclose(layers[one.name].filter, due / np.sqrt(4 + epsilon), rtol=1e-6)
        np.testing.assert_allclose(layers[one.name].bias, 2 - 3 / np.sqrt(4 + epsilon), rtol=1e-6)
    np.testing.assert_array_equal(layers["classifier"].filter.reshape(10, -1), tensors[f"{classifier}.weight"])
    del tensors[f"{classifier}.bias"]
    with pytest.raises(UsageError, match=rf"no float tensor {classifier}\.bias"):
        read(tensors, network)


def test_constants_of_tensorflow_find_their_layers():
    network = plan.v1(1.0)
    found = {}
    for number, one in enumerate(network.convolutions):
        base = f"MobilenetV1/{one.name}"
        kind = "depthwise_weights" if one.depthwise else "weights"
        shape = (one.window, one.window, one.inputs, 1 if one.depthwise else one.outputs)
        found[f"{base}/{kind}"] = draw(shape, number)
        for part, value in (("gamma", 1.0), ("beta", 2.0), ("moving_mean", 3.0), ("moving_variance", 4.0)):
            found[f"{base}/BatchNorm/{part}"] = np.full(one.outputs, value, np.float32)
        found[f"MobilenetV1/{base}/BatchNorm/batchnorm/add/y"] = np.float32(0.25).reshape(())
    found["MobilenetV1/Logits/Conv2d_1c_1x1/weights"] = draw((1, 1, 1024, 10))
    found["MobilenetV1/Logits/Conv2d_1c_1x1/biases"] = draw(10)
    layers = of_mobilenet_v1(found, network)
    np.testing.assert_allclose(
        layers["Conv2d_3_depthwise"].filter[0, ..., 5],
        found["MobilenetV1/Conv2d_3_depthwise/depthwise_weights"][..., 5, 0] / np.sqrt(4.25),
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        layers["Conv2d_2_pointwise"].filter[7, 0, 0],
        found["MobilenetV1/Conv2d_2_pointwise/weights"][0, 0, :, 7] / np.sqrt(4.25),
        rtol=1e-6,
    )
    np.testing.assert_allclose(layers["Conv2d_0"].bias, 2 - 3 / np.sqrt(4.25), rtol=1e-6)
    with pytest.raises(UsageError, match="other width"):
        of_mobilenet_v1(found, plan.v1(0.5))


@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2"])
def test_seeded_networks_run_alike_on_litert_and_the_reference(small, name):
    models, inputs = small
    model = models[name]
    assert violations(model) == []
    interpreter = Interpreter(tflite_of(model))
    for sample in inputs[:2]:
        due = evaluate(model, sample)[0].exact
        np.testing.assert_allclose(interpreter.run(sample)[0], due, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2"])
def test_seeded_activations_neither_vanish_nor_saturate(small, name):
    models, inputs = small
    seen = observe(models[name], inputs)
    for one in weighted(models[name])[:-1]:
        low, high = seen[one.result].range
        assert high - low > 0.5
        if one.relu6:
            mean = seen[one.result].mean
            assert np.mean((mean > 0.05) & (mean < 5.5)) > 0.9


def test_seeded_networks_tell_pictures_apart():
    model = nets.mobilenet_v1(seeded("mobilenet_v1", 0.25, 1), 0.25, 128)
    interpreter = Interpreter(tflite_of(model))
    found = [interpreter.run([p.astype(np.float32)[None] / 128 - 1])[0] for p in smooth(128, 128, 12, 4)]
    assert len({int(values.argmax()) for values in found}) > 2
    assert all(0.02 < values.max() < 0.99 for values in found)


def test_seeded_weights_repeat():
    first, second, other = (
        seeded("mobilenet_v1", 0.25, 1),
        seeded("mobilenet_v1", 0.25, 1),
        seeded("mobilenet_v1", 0.25, 2),
    )
    assert all(np.array_equal(first[n].filter, second[n].filter) for n in first)
    assert not np.array_equal(first["Conv2d_0"].filter, other["Conv2d_0"].filter)


# --- quantisation -----------------------------------------------------------------------------------------------------


def test_ranges_become_scales_and_zero_points():
    assert asymmetric(-1, 127 / 128) == Kind(Q8, 1 / 128, 128)
    assert asymmetric(0, 6) == Kind(Q8, float(np.float32(6 / 255)), 0)
    assert asymmetric(2, 4).zero_point == 0  # 0 is in every range
    assert asymmetric(-4, -2).zero_point == 255
    assert asymmetric(0, 0).scale > 0
    kind = Kind(Q8, 0.5, 10)
    assert stored(np.array([-99, -5, 0, 0.25, 0.75, 99]), kind).tolist() == [0, 0, 10, 10, 12, 208]
    assert real(np.array([0, 10, 11], np.uint8), kind).tolist() == [-5, 0, 0.5]


@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2"])
def test_quantized_networks_keep_the_rules_and_the_results(small, name):
    models, inputs = small
    model = quantize(models[name], inputs, (-1, 127 / 128))
    assert violations(model) == []
    graph = model.main
    assert {graph.operands[i].type for operation in graph.operations for i in operation.outputs} == {Q8}
    assert (graph.operands[graph.input_indexes[0]].scale, graph.operands[graph.input_indexes[0]].zero_point) == (
        1 / 128,
        128,
    )
    assert (graph.operands[graph.output_indexes[0]].scale, graph.operands[graph.output_indexes[0]].zero_point) == (
        1 / 256,
        0,
    )
    for operation in graph.operations:
        ends = [graph.operands[i] for i in (operation.inputs[0], operation.outputs[0])]
        if operation.type in (OperationType.AVERAGE_POOL_2D, OperationType.RESHAPE):
            assert (ends[0].scale, ends[0].zero_point) == (ends[1].scale, ends[1].zero_point)
        if operation.type == OperationType.CONV_2D:
            weights, bias = (graph.operands[operation.inputs[n]] for n in (1, 2))
            assert bias.scale == pytest.approx(ends[0].scale * weights.scale, rel=1e-6)
            assert constant_value(model, weights).min() == 0  # the range of the weights is used
            assert constant_value(model, weights).max() == 255
    interpreter, plain = Interpreter(tflite_of(model)), Interpreter(tflite_of(models[name]))
    kind = Kind(Q8, 1 / 128, 128)
    for sample in inputs[:2]:
        found = interpreter.run([stored(sample[0], kind)])[0]
        due = evaluate(model, [stored(sample[0], kind)])[0].stored
        assert np.abs(found.astype(int) - due.astype(int)).max() <= 25  # single steps grow on the way
        assert cosine(found[0] / 256, plain.run(sample)[0][0]) > 0.6


def test_what_cannot_be_quantised_is_named(small):
    from importers.assembling import FLOAT32, Assembly

    make = Assembly()
    given = make.input(FLOAT32, (1, 4))
    result = make.temporary(FLOAT32, (1, 4))
    make.add(OperationType.TANH, [given], [result])
    with pytest.raises(UsageError, match="operation 0, TANH, is not quantised"):
        quantize(make.finish([result]), [[np.ones((1, 4), np.float32)]])
    with pytest.raises(UsageError, match="no pictures to calibrate"):
        quantize(small[0]["mobilenet_v1"], [])


def test_repair_levels_weights_and_changes_no_result(small):
    inputs = small[1]
    layers = {n: Layer(v.filter.copy(), v.bias.copy()) for n, v in seeded("mobilenet_v1", 0.25, 3).items()}
    # One channel small where it is made, and large where it is read: the network computes what it did.
    layers["Conv2d_0"].filter[2] /= 40
    layers["Conv2d_0"].bias[2] /= 40
    layers["Conv2d_1_depthwise"].filter[..., 2] *= 40
    layers["Conv2d_1_pointwise"].filter[3] *= 30  # a channel that never fires
    layers["Conv2d_1_pointwise"].bias[3] = -1e4
    model = nets.mobilenet_v1(layers, 0.25, 32)
    mended = repaired(model, inputs)
    assert violations(mended) == []
    before, after = Interpreter(tflite_of(model)), Interpreter(tflite_of(mended))
    for sample in inputs:
        np.testing.assert_allclose(after.run(sample)[0], before.run(sample)[0], rtol=1e-2, atol=1e-4)

    def spread(made, number):
        one = weighted(made)[number]
        highest = np.abs(one.filter).max(axis=(0, 1, 2)) if one.depthwise else np.abs(one.filter).max(axis=(1, 2, 3))
        return highest.max() / np.median(highest)

    assert spread(mended, 1) < spread(model, 1) / 4
    silent = weighted(mended)[2]
    assert not silent.filter[3].any()
    assert silent.bias[3] == 0
