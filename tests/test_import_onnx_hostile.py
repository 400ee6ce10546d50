"""ONNX files that are damaged, enormous or malicious: an import or one sentence, within bounds."""

from __future__ import annotations

import builtins
import random as chances
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from importers.assembling import Kind
from importers.imported import UnreadableFile
from importers.onnx_file.emitting import Budget
from importers.onnx_file.graph import Refusal
from importers.onnx_file.reading import import_onnx
from importers.onnx_file.work import Work
from nnhal.errors import UsageError
from nnhal.types import OperandType, OperationType
from tests.onnx_models import attempt, model_of, node, random

MATRIX = {"x": random(3, 4)}
SEED = 20240


def small_models():
    """A few valid files that touch all of the importer."""
    image = {"x": random(1, 2, 6, 6)}
    quantised = {"s": np.float32(0.1), "z": np.uint8(128), "w": np.arange(36, dtype=np.int8).reshape(2, 2, 3, 3),
                 "ws": np.float32([0.1, 0.2]), "wz": np.zeros(2, np.int8)}  # fmt: skip
    yield model_of(
        [node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"),
         node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]), node("Shape", "p", "s"),
         node("Slice", "s zero one", "n"), node("Concat", "n minus", "t", axis=0), node("Reshape", "p t", "f"),
         node("Gemm", "f g", "m", transB=1), node("Softmax", "m", "y")], image,
        {"w": random(3, 2, 3, 3), "b": random(3), "g": random(4, 27), "zero": np.array([0]), "one": np.array([1]),
         "minus": np.array([-1])})  # fmt: skip
    yield model_of(
        [
            node("QuantizeLinear", "x s z", "q"),
            node("DequantizeLinear", "q s z", "r"),
            node("DequantizeLinear", "w ws wz", "v", axis=0),
            node("Conv", "r v", "c"),
            node("QuantizeLinear", "c s z", "o"),
            node("DequantizeLinear", "o s z", "y"),
        ],
        image,
        quantised,
        opset=19,
    )
    yield model_of(
        [node("LSTM", "x w r", "a h c", hidden_size=2, direction="bidirectional"), node("Squeeze", "h axes", "y")],
        {"x": random(3, 1, 2)},
        {"w": random(2, 8, 2), "r": random(2, 8, 2), "axes": np.array([1])},
    )
    inner = helper.make_graph([node("Mul", "x k", "u")], "inner", [], [onnx.ValueInfoProto(name="u")],
                              [numpy_helper.from_array(np.float32(2), "k")])  # fmt: skip
    yield model_of(
        [node("ReduceSum", "x", "s", keepdims=0), node("Less", "s c", "b"),
         node("If", "b", "i", then_branch=inner, else_branch=inner), node("TopK", "i k", "v w", axis=0),
         node("Resize", "j _ f", "z", mode="nearest"), node("Pad", "v p", "y")], {**MATRIX, "j": random(1, 1, 2, 2)},
        {"c": np.float32(1), "k": np.array([2]), "f": np.float32([1, 1, 2, 2]), "p": np.array([1, 0, 0, 1])},
        ("y", "z"))  # fmt: skip


def damaged(data, chance):
    """A file with bytes flipped, cut, doubled, taken out, or numbers replaced by extreme ones."""
    data = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(data)) if data else 0
        way = chance.randrange(6)
        if way == 0 and data:
            data[place] ^= 1 << chance.randrange(8)
        elif way == 1:
            del data[place:]
        elif way == 2:
            data[place:place] = data[place : place + chance.randint(1, 40)]
        elif way == 3:
            del data[place : place + chance.randint(1, 20)]
        elif way == 4:
            data[place : place + 1] = b"\xff" * chance.randint(1, 9) + bytes([chance.randrange(128)])
        elif data:
            data[place] = chance.choice((0, 1, 2, 7, 127, 128, 255))
    return bytes(data)


def storm(times):
    chance = chances.Random(SEED)
    files = [model.SerializeToString() for model in small_models()]
    assert all(attempt(data).model is not None for data in files)
    found = [attempt(damaged(chance.choice(files), chance)) for _ in range(times)]
    assert 0 < sum(one is None for one in found) < times


def test_damaged_files():
    storm(600)


@pytest.mark.thorough
def test_many_damaged_files():
    storm(20_000)


def refused(nodes, constants, outputs=("y",), megabytes=50):
    """The reasons why a model cannot be expressed, which must not cost much memory."""
    data = model_of(nodes, MATRIX, constants, outputs).SerializeToString()
    tracemalloc.start()
    found = import_onnx(data, "bomb.onnx")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < megabytes << 20
    assert found.model is None
    return " ".join(one.reason for one in found.missing)


HUGE = np.array([2**20, 2**20])
BOMBS = {
    "ConstantOfShape": ([node("ConstantOfShape", "n", "y")], {"n": HUGE}),
    "Expand": ([node("Expand", "k n", "y")], {"n": HUGE, "k": np.float32(1)}),
    "Expand of an input": ([node("Expand", "x n", "y")], {"n": np.array([2**20, 2**12, 3, 4])}),
    "Tile": ([node("Tile", "k n", "y")], {"n": HUGE, "k": np.float32([[1]])}),
    "Range": ([node("Range", "a b c", "y")], {"a": np.array(0), "b": np.array(2**40), "c": np.array(1)}),
    "Gather": ([node("Expand", "k m", "e"), node("Gather", "k e", "y")], {"m": np.array([2**25]), "k": np.array([0])}),
    "Pad": ([node("Pad", "k p", "y")], {"k": np.float32([0]), "p": np.array([2**40, 2**40])}),
    "Pad of an input": ([node("Pad", "x p", "y")], {"p": np.array([2**40, 0, 0, 0])}),
    "Where": ([node("Where", "k a b", "y")], {"k": np.ones((2**13, 1), bool), "a": np.zeros((1, 2**13), np.float32),
                                              "b": np.float32(1)}),
    "Resize": ([node("Unsqueeze", "x a", "u"), node("Resize", "u _ f", "y")],
               {"a": np.array([0, 1]), "f": np.float32([1, 1, 1e9, 1e9])}),
    "negative sizes": ([node("ConstantOfShape", "n", "y")], {"n": np.array([-1, -5])}),
    "a split of nothing": ([node("Split", "x n", "y z", axis=0)], {"n": np.array([4, -1])}),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_small_files_that_ask_for_large_tensors(name):
    nodes, constants = BOMBS[name]
    assert refused(nodes, constants)


def test_many_tensors_that_are_large_together():
    nodes = [node("ConstantOfShape", "n", f"k{n}") for n in range(200)]
    reasons = refused([*nodes, node("Relu", "x", "y")], {"n": np.array([2**10, 2**9])}, megabytes=300)
    assert "too large" in reasons


def test_operations_are_counted():
    work = Work(budget=Budget(operations=2))
    first = work.assembly.input(Kind(OperandType.TENSOR_FLOAT32), (2, 3))
    for _ in range(2):
        first = work.emit(OperationType.RELU, (first,))
    with pytest.raises(Refusal, match="operations"):
        work.emit(OperationType.RELU, (first,))


def test_loops_are_written_out_up_to_a_bound():
    body = helper.make_graph(
        [node("Add", "v v", "w"), node("Identity", "go", "on")], "body",
        [helper.make_tensor_value_info(n, k, s) for n, k, s in
         (("n", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, None))],
        [onnx.ValueInfoProto(name="on"), onnx.ValueInfoProto(name="w")])  # fmt: skip
    for count in (10**9, 2**62, 65):
        constants = {"c": np.array(count), "t": np.array(True)}
        assert "written out" in refused([node("Loop", "c t x", body=body)], constants)


def test_graphs_nested_too_deep():
    graph = helper.make_graph([node("Relu", "x", "r0")], "g", [], [onnx.ValueInfoProto(name="r0")])
    for depth in range(1, 15):
        inner = node("If", "b", f"r{depth}", then_branch=graph, else_branch=graph) if depth < 2 else node(
            "If", "b", f"r{depth}", then_branch=graph)  # fmt: skip
        graph = helper.make_graph([inner], "g", [], [onnx.ValueInfoProto(name=f"r{depth}")])
    model = model_of([node("If", "b", "y", then_branch=graph)], {**MATRIX, "b": np.array(True)})
    with pytest.raises(UnreadableFile, match="nested more than"):
        import_onnx(model.SerializeToString(), "deep.onnx")


def broken(change, match):
    model = next(small_models())
    change(model)
    with pytest.raises(UnreadableFile, match=match) as caught:
        import_onnx(model.SerializeToString(), "broken.onnx")
    assert str(caught.value).startswith("broken.onnx")


def test_what_contradicts_itself():
    def cut(model):
        model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-3]

    def grow(model):
        model.graph.initializer[0].dims[0] = 2**40

    def turn(model):
        model.graph.initializer[0].dims[0] = -3

    def twice(model):
        model.graph.node[1].output[0] = "c"

    def cycle(model):
        model.graph.node[0].input[0] = "y"

    def lose(model):
        model.graph.output[0].name = "nothing"

    def none(model):
        del model.graph.output[:]

    def old(model):
        model.opset_import[0].version = 3

    def new(model):
        model.opset_import[0].version = 99

    for change, match in ((cut, "bytes"), (grow, "bytes"), (turn, "dimensions"), (twice, "written twice"),
                          (cycle, "nothing before it writes"), (lose, "nothing writes"), (none, "no outputs"),
                          (old, "opset 3"), (new, "opset 99")):  # fmt: skip
        broken(change, match)


@pytest.mark.parametrize("data", [b"", b"\x08\x07", b"no model", b"\xff" * 100, b"\x3a\x00"])
def test_what_is_no_model(data):
    with pytest.raises(UnreadableFile, match=r"m\.onnx"):
        import_onnx(data, "m.onnx")


def test_types_that_are_not_read_are_named():
    words = helper.make_tensor("k", TensorProto.STRING, [1], [b"a"])
    brief = helper.make_tensor("h", TensorProto.BFLOAT16, [1], [1.0])
    model = model_of([node("Add", "x k", "a"), node("Add", "x h", "b"), node("Relu", "x", "y")], MATRIX)
    model.graph.initializer.extend([words, brief])
    reasons = [one.reason for one in import_onnx(model.SerializeToString(), "m").missing]
    assert "string" in reasons[0]
    assert "bfloat16" in reasons[1]
    double = import_onnx(model_of([node("Relu", "x")], {"x": np.zeros(3)}).SerializeToString(), "m")
    assert any("float64" in one.reason for one in double.missing)


# --- values beside the file -------------------------------------------------------------------------------------------


def external(location, offset=0, length=64, count=16):
    model = model_of([node("Add", "x k", "y")], {"x": random(count)})
    tensor = model.graph.initializer.add(name="k", data_type=TensorProto.FLOAT, dims=[count])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return model.SerializeToString()


def test_values_beside_the_file(tmp_path):
    inside = tmp_path / "model"
    inside.mkdir()
    values = np.arange(20, dtype=np.float32)
    (inside / "data.bin").write_bytes(values.tobytes())
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    model = import_onnx(external("data.bin", 16), "m", inside).require()
    assert values[4:].tobytes() in model.operand_values
    assert "no folder" in import_onnx(external("data.bin"), "m").missing[0].reason
    outside = ("../secret.bin", str(tmp_path / "secret.bin"), "link.bin")
    for location in (*outside, "missing.bin", ".", "", "a\0b", "x" * 5000):
        with pytest.raises(UnreadableFile, match="no file in the model's folder"):
            import_onnx(external(location), "m", inside)
    wrong = ((48, 64, "beyond the end"), (0, 60, "60 bytes"), (-4, 64, "offset"), (10**30, 64, "offset"))
    for offset, length, match in wrong:
        with pytest.raises(UnreadableFile, match=match):
            import_onnx(external("data.bin", offset, length), "m", inside)


def test_values_beside_the_file_are_read_once(tmp_path):
    (tmp_path / "data.bin").write_bytes(bytes(80))
    model = onnx.ModelProto.FromString(external("data.bin"))
    for n in range(3):
        copy = model.graph.initializer.add()
        copy.CopyFrom(model.graph.initializer[0])
        copy.name = f"k{n}"
        copy.external_data[1].value = str(4 * n)
    with pytest.raises(UnreadableFile, match="share parts"):
        import_onnx(model.SerializeToString(), "m", tmp_path)


# --- sizes, and what a user has to say --------------------------------------------------------------------------------


def named(*dimensions):
    model = model_of([node("Relu", "x")], MATRIX)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, dimensions))
    return model.SerializeToString()


def test_unknown_sizes():
    assert import_onnx(named("N", 4), "m").inputs[0].dimensions == (1, 4)
    assert import_onnx(named(None, 4), "m").inputs[0].dimensions == (1, 4)
    assert import_onnx(named("N", "N"), "m").inputs[0].dimensions == (1, 1)
    given = import_onnx(named("N", "height", None), "m", dimensions={"N": 2, "height": 5, "x[2]": 7})
    assert given.inputs[0].dimensions == given.outputs[0].dimensions == (2, 5, 7)
    with pytest.raises(UsageError, match="give the dimension 'height' one"):
        import_onnx(named("N", "height"), "m")
    with pytest.raises(UsageError, match=r"give the dimension 'x\[1\]' one"):
        import_onnx(named("N", None), "m")
    with pytest.raises(UsageError, match="no dimension 'width'"):
        import_onnx(named("N", "height"), "m", dimensions={"width": 3})
    with pytest.raises(UsageError, match="size 0"):
        import_onnx(named("N", 4), "m", dimensions={"N": 0})


def test_a_missing_package_is_named(monkeypatch):
    own = builtins.__import__

    def without(name, *rest):
        if name == "onnx":
            raise ImportError(name)
        return own(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install"):
        import_onnx(b"", "m")
