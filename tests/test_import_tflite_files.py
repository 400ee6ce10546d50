"""The .tflite importer: what operators become, what is refused and why, and files that are damaged."""

from __future__ import annotations

import random
import re
import struct
import time
from pathlib import Path

import numpy as np
import pytest

schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
flatbuffers = pytest.importorskip("flatbuffers")

from drivers.litert_translate import translate  # noqa: E402
from importers.imported import UnreadableFile  # noqa: E402
from importers.load import load, load_bytes  # noqa: E402
from importers.tflite_file import TRANSLATORS as IMPORTED  # noqa: E402
from importers.tflite_file import import_tflite  # noqa: E402
from importers.tflite_file.flat import Flat  # noqa: E402
from importers.tflite_file.folding import FOLDERS  # noqa: E402
from importers.tflite_file.schema import OPERATORS, TYPES, options_table, options_tables  # noqa: E402
from nnhal.errors import UsageError  # noqa: E402
from nnhal.types import OperationType  # noqa: E402
from nnhal.validate import violations  # noqa: E402
from opset import OPSET  # noqa: E402
from tests.tflite_cases import built, chain, drawn  # noqa: E402
from tests.tflite_files import File, check, steps  # noqa: E402


def kinds_of(imported):
    return [OperationType(operation.type).name for operation in imported.require().main.operations]


# --- what becomes what ------------------------------------------------------------------------------------------------

CHAINS = {
    "squared_difference": ["SUB", "MUL"],
    "squared_difference_of_steps": ["DEQUANTIZE", "DEQUANTIZE", "SUB", "MUL", "QUANTIZE"],
    "pack": ["RESHAPE", "RESHAPE", "RESHAPE", "CONCATENATION"],
    "pack_of_scalars": ["PACK", "RESHAPE"],
    "unpack": ["SLICE", "RESHAPE"] * 3,
    "split_v": ["SLICE"] * 3,
    "leaky_relu": ["PRELU"],
    "requantize": ["DEQUANTIZE", "QUANTIZE"],
    "shape_arithmetic": ["RESHAPE"],
    "float16_weights": ["FULLY_CONNECTED"],
    "hybrid_dense": ["FULLY_CONNECTED"],
    "grouped_convolution": ["GROUPED_CONV_2D"],
    "crops": ["BATCH_TO_SPACE_ND", "SLICE"],
    "outputs_that_no_operator_writes": ["ABS", "CAST", "CAST", "CAST"],
    "cast_int64_to_int32": ["CAST"],
    "basic_lstm_of_steps": ["QUANTIZED_16BIT_LSTM"],
    "svdf": ["SVDF"],
}


@pytest.mark.parametrize("name", CHAINS)
def test_becomes(name):
    assert kinds_of(import_tflite(built(name), name)) == CHAINS[name]


def refused(build):
    f = File()
    results = build(f)
    imported = import_tflite(f.finish(*(results if isinstance(results, list) else [results])), "no.tflite")
    assert imported.model is None
    assert all(port.operand == -1 for port in (*imported.inputs, *imported.outputs))
    return imported


def test_every_operator_that_is_missing_is_named():
    def build(f):
        a = f.input((2, 3))
        b = f.add("ROUND", [a], (2, 3))
        c = f.add("ABS", [b], (2, 3), options="AbsOptions")
        d = f.add("CUMSUM", [c, f.constant(0, "int32")], (2, 3), options="CumsumOptions")
        inputs = [f.input((2, 2, 2, 1)), f.constant(np.zeros((1, 1, 1, 1)), "float32"), f.constant([0], "float32")]
        e = f.add("CONV_2D", inputs, (2, 2, 2, 1), options="Conv2DOptions", FusedActivationFunction=4, StrideW=1,
                  StrideH=1)  # fmt: skip
        return [d, e]

    imported = refused(build)
    assert [(one.number, one.operator) for one in imported.missing] == [(0, "ROUND"), (2, "CUMSUM"), (3, "CONV_2D")]
    assert "fused activation 4" in imported.missing[2].reason
    with pytest.raises(UsageError, match=r"no\.tflite cannot be expressed.*operator 0 ROUND.*operator 3 CONV_2D"):
        imported.require()


REASONS = {
    "type": (lambda f: f.add("ABS", [f.input((3,), "int64")], (3,), "float16"), "ABS does not take"),
    "shape": (lambda f: f.add("ABS", [f.input((3,))], (4,)), r"shape \[4\], and \[3\] is due"),
    "dynamic": (lambda f: f.add("ABS", [f.input((-1, 3))], (-1, 3)), "tensor 0 has dimensions that only a run knows"),
    "empty": (lambda f: f.add("ABS", [f.input((0, 3))], (0, 3)), "tensor 0 has no elements"),
    "integers": (lambda f: f.add("DIV", [f.input((3,), "int32")] * 2, (3,), "int32", options="DivOptions"), "rounds"),
    "parameter": (
        lambda f: f.add("TILE", [f.input((3,)), f.input((1,), "int32")], (6,), options="TileOptions"),
        "the multiples is no constant",
    ),
    "large": (
        lambda f: f.add("ADD", [f.input((1,), "int64"), f.constant([2**40], "int64")], (1,), "int64",
                        options="AddOptions"),
        "does not fit into int32",
    ),
    "scales": (
        lambda f: f.add("MAXIMUM", [f.input((3,), "int8", steps(0.1)), f.input((3,), "int8", steps(0.2))], (3,),
                        "int8", steps(0.1), options="MaximumMinimumOptions"),
        "moved between different scales",
    ),
    "resource": (lambda f: f.add("READ_VARIABLE", [f.input((3,), "int32")], (3,)), "keeps a state"),
    "options": (lambda f: f.add("SOFTMAX", [f.input((3,))], (3,), options="PadOptions"), "it has no SoftmaxOptions"),
    "int16": (
        lambda f: f.add("ADD", [f.input((3,), "int16", steps(0.1))] * 2, (3,), "int16", steps(0.1),
                        options="AddOptions"),
        "ADD does not take TENSOR_QUANT16_SYMM",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_refuses_with_the_reason(name):
    build, reason = REASONS[name]
    missing = refused(build).missing
    assert re.search(reason, missing[-1].reason), missing


def test_refuses_states_that_others_read():
    def build(f):
        feature, slots = f.constant(np.ones((4, 3)), "float32"), f.constant(np.ones((4, 5)), "float32")
        memory = f.variable((2, 20))
        inputs = [f.input((2, 3)), feature, slots, -1, memory]
        return [f.add("SVDF", inputs, (2, 2), options="SVDFOptions", Rank=2), memory]

    assert "others read its memory" in refused(build).missing[0].reason


def test_a_graph_that_runs_a_graph_says_what_is_missing_there():
    f = File()
    condition, a = f.input((), "bool"), f.input((3,))
    for name in ("ABS", "ROUND"):
        branch = File.__new__(File)
        branch.model, branch.graph = f.model, f.model.graph()
        branch.graph.outputs = (branch.add(name, [branch.input((3,))], (3,)),)
    fields = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    missing = import_tflite(f.finish(f.add("IF", [condition, a], (3,), options="IfOptions", **fields)), "if").missing
    assert [one.number for one in missing] == [0]
    assert "in graph 2, which it runs, operator 0 ROUND" in missing[0].reason


# --- files ------------------------------------------------------------------------------------------------------------


def test_every_operator_stands_in_the_document():
    page = (Path(__file__).parents[1] / "docs/importers.md").read_text(encoding="utf-8")
    words = set(re.findall(r"[A-Z][A-Z0-9_]+", page))
    assert set(IMPORTED) | set(FOLDERS) <= words
    assert {"SHAPE", "RANK"} <= words


def test_names_and_numbers_are_those_of_the_schema():
    def numbered(kind):
        found = {number: name for name, number in vars(kind).items() if not name.startswith("_")}
        return [found[number] for number in range(len(found))]

    assert list(OPERATORS[: len(numbered(schema.BuiltinOperator))]) == numbered(schema.BuiltinOperator)
    assert list(TYPES) == numbered(schema.TensorType)
    assert set(IMPORTED) <= set(OPERATORS)


@pytest.mark.parametrize("table", options_tables())
def test_options_are_at_the_fields_of_the_schema(table):
    """Writes a number into each field by the schema's own functions and finds it where the importer looks."""
    number, fields = options_table(table)
    assert number == getattr(schema.BuiltinOptions, table)
    writers = {name.lower(): name for name in vars(schema) if name.startswith(f"{table}Add")}
    known = {"activation": "fusedactivationfunction", "dilation_w": "dilationwfactor", "dilation_h": "dilationhfactor",
             "filter_w": "filterwidth", "filter_h": "filterheight"}  # fmt: skip
    for key, place, form, default in fields:
        plain = known.get(key, key.replace("_", ""))
        plain = f"{plain}index" if key.endswith("subgraph") else plain
        builder = flatbuffers.Builder(64)
        value = builder.CreateNumpyVector(np.array([5], np.int32)) if form == "v" else not default if form == "?" else 7
        getattr(schema, f"{table}Start")(builder)
        getattr(schema, writers[f"{table}Add{plain}".lower()])(builder, value)
        builder.Finish(getattr(schema, f"{table}End")(builder))
        found = Flat(bytes(builder.Output()), "options").root()
        assert found.integers(place) == (5,) if form == "v" else found.number(place, form, -1) == value


def with_buffer_behind(data):
    """The file with the bytes of its largest buffer moved behind the flatbuffer, as large models have them."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    large = max(model.buffers, key=lambda buffer: 0 if buffer.data is None else len(buffer.data))
    moved, large.data = bytes(bytearray(large.data)), None
    large.offset, large.size = 1 << 20, len(moved)  # so that both fields are in the file before the place is known

    def packed():
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    large.offset = -(-len(packed()) // 16) * 16
    return packed().ljust(large.offset, b"\0") + moved


def test_reads_buffers_behind_the_flatbuffer():
    data = built("dilated_convolution")
    behind = with_buffer_behind(data)
    check(behind, "behind")
    model = import_tflite(data, "x").require()
    assert sorted(import_tflite(behind, "x").require().operand_values) == sorted(model.operand_values)
    with pytest.raises(UnreadableFile, match="ends behind the file"):
        import_tflite(behind[:-1], "short.tflite")


def test_load(tmp_path: Path):
    (tmp_path / "net.tflite").write_bytes(chain())
    assert load(tmp_path / "net.tflite").name == "net.tflite"
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "none.tflite")
    with pytest.raises(UnreadableFile, match=r"bad\.tflite is damaged"):
        load_bytes(chain()[:64], "bad.tflite")


def damaged(number, words):
    """The chain's file after a change to one table, by name of field."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(chain(), 0))
    number(model)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    with pytest.raises(UnreadableFile, match=words):
        import_tflite(bytes(builder.Output()), "net.tflite")


def test_names_the_damage():
    def graph(model):
        return model.subgraphs[0]

    def set_inputs(model, operator, inputs):
        graph(model).operators[operator].inputs = inputs

    damaged(lambda m: setattr(m, "version", 4), "schema has version 4")
    damaged(lambda m: m.subgraphs.clear(), "no graph")
    damaged(lambda m: setattr(graph(m).operators[1], "opcodeIndex", 99), "operator 1 has code 99")
    damaged(lambda m: set_inputs(m, 2, [999]), "operator 2 reads tensor 999")
    damaged(lambda m: set_inputs(m, 0, [graph(m).outputs[0]]), "operator 0 reads tensor .* before it has a value")
    damaged(lambda m: setattr(graph(m).operators[2], "outputs", graph(m).operators[0].outputs), "has a value already")
    damaged(lambda m: setattr(graph(m).tensors[1], "buffer", 999), "tensor 1 refers to buffer 999")
    damaged(lambda m: setattr(graph(m).tensors[1], "shape", [4, 3, 3, 3]), "tensor 1 has 72 bytes .* has 108")
    damaged(lambda m: setattr(graph(m), "outputs", [-1]), "outputs name a tensor that there is none of")
    damaged(lambda m: setattr(graph(m), "inputs", [0, 0]), "inputs name a tensor twice")


def test_a_graph_that_runs_itself_is_damaged():
    f = File()
    condition, a = f.input((), "bool"), f.input((3,))
    branch = File.__new__(File)
    branch.model, branch.graph = f.model, f.model.graph()
    inner = [branch.input((), "bool"), branch.input((3,))]
    fields = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 1}
    branch.graph.outputs = (branch.add("IF", inner, (3,), options="IfOptions", **fields),)
    outer = f.add("IF", [condition, condition, a], (3,), options="IfOptions", **fields)
    with pytest.raises(UnreadableFile, match="runs graph 1"):
        import_tflite(_raw(f, outer), "loop.tflite")


def _raw(f, output):
    """A file that its writer would search for loops for ever."""
    f.model._loops = lambda graph: ()  # type: ignore[method-assign]
    return f.finish(output)


def test_small_files_do_not_become_large():
    f = File()
    a = f.input((1,))
    huge = [f.add("ZEROS_LIKE", [a], (1 << 14, 1 << 14), options="ZerosLikeOptions") for _ in range(3)]
    with pytest.raises(UnreadableFile, match="far larger than the file"):
        import_tflite(f.finish(*huge), "bomb.tflite")


def test_a_table_that_is_named_very_often_is_not_read_for_ever():
    """A file of half a megabyte whose list of graphs names one graph 140,000 times."""
    builder = flatbuffers.Builder(1 << 20)
    schema.SubGraphStart(builder)
    graph = schema.SubGraphEnd(builder)
    builder.StartVector(4, 140_000, 4)
    for _ in range(140_000):
        builder.PrependUOffsetTRelative(graph)
    graphs = builder.EndVector()
    schema.ModelStart(builder)
    schema.ModelAddVersion(builder, 3)
    schema.ModelAddSubgraphs(builder, graphs)
    builder.Finish(schema.ModelEnd(builder), b"TFL3")
    with pytest.raises(UnreadableFile, match="more than 131072 tensors"):
        import_tflite(bytes(builder.Output()), "many.tflite")


def test_graphs_that_run_graphs_twice_over_do_not_grow_for_ever():
    """Each of 14 graphs runs the next one twice: 2^14 copies of the last."""
    f = File()
    graphs = [f, *(File.__new__(File) for _ in range(14))]
    for branch in graphs[1:]:
        branch.model, branch.graph = f.model, f.model.graph()
    for number, branch in enumerate(graphs):
        condition, a = branch.input((), "bool"), branch.input((3,))
        if number == len(graphs) - 1:
            result = branch.add("ADD", [a, branch.constant(np.ones(3), "float32")], (3,), options="AddOptions")
        else:
            fields = {"ThenSubgraphIndex": number + 1, "ElseSubgraphIndex": number + 1}
            result = branch.add("IF", [condition, condition, a], (3,), options="IfOptions", **fields)
        branch.graph.outputs = (result,)
    start = time.monotonic()
    with pytest.raises(UnreadableFile, match="far larger than the file"):
        import_tflite(_raw(f, f.graph.outputs[0]), "tree.tflite")
    assert time.monotonic() - start < 60  # for ever would be hours


WORDS = (0, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000)
FUZZED = ("shape_arithmetic", "sequence_lstm", "strided_slice_masks", "one_hot", "dense_per_channel", "split_v", "pack")


def mutated(data, rng):
    """The file with bytes flipped, words replaced, or its end cut off."""
    found = bytearray(data)
    way = rng.randrange(4)
    if way == 0:
        return bytes(found[: rng.randrange(len(found))])
    for _ in range(rng.randrange(1, 4)):
        if way == 1:
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
        elif way == 2:
            found[rng.randrange(len(found))] = rng.randrange(256)
        else:
            place = 4 * rng.randrange(len(found) // 4)
            struct.pack_into("<I", found, place, rng.choice((*WORDS, rng.randrange(64))))
    return bytes(found)


def hammer(rounds, seed):
    rng, files = random.Random(seed), [built(name) for name in FUZZED] + [chain(), with_graphs()]
    outcomes = {"read": 0, "refused": 0}
    for turn in range(rounds):
        data = mutated(files[turn % len(files)], rng)
        try:
            imported = import_tflite(data, "mutant.tflite")
        except UnreadableFile:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        assert (imported.model is None) == bool(imported.missing)
        if imported.model is not None:
            assert violations(imported.model) == []
    return outcomes


def with_graphs():
    _, model, _ = drawn(OPSET[OperationType.WHILE], OPSET[OperationType.WHILE].signatures[0], 0)
    data = translate(model).artifact
    assert data is not None
    return data


@pytest.fixture
def every_stumble(monkeypatch):
    """Lets no stumble of a translator be caught: it is a check that is missing."""
    monkeypatch.setattr("importers.tflite_file.STUMBLES", ())


@pytest.mark.usefixtures("every_stumble")
def test_damaged_files_are_refused_and_nothing_else_happens():
    outcomes = hammer(1500, 1)
    assert min(outcomes.values()) > 100, outcomes


@pytest.mark.thorough
@pytest.mark.usefixtures("every_stumble")
def test_very_many_damaged_files():
    for seed in range(8):
        hammer(5000, 100 + seed)
