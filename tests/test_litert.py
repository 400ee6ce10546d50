"""The LiteRT adapter: files that hold what the model says, honest refusals, and results of the real runtime."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from nnhal.device import CompilationConfig, ExecutionConfig, ExecutionResult, PreparedModel
from nnhal.errors import DriverError, UsageError
from nnhal.loading import ROOT, DriverSpec, load
from nnhal.memory import BytesMemory
from nnhal.model import (
    DataLocation,
    Model,
    Operand,
    Operation,
    Request,
    RequestArgument,
    Subgraph,
    Translation,
)
from nnhal.operations import Signature
from nnhal.types import FL8, Array, ErrorStatus, OperandLifeTime, OperandType, OperationType
from nnhal.validate import violations
from opset import OPSET
from opset.building import GraphBuilder
from opset.call import Call, with_value
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import allowance, run_call
from opset.graph import evaluate, model_of
from opset.quantization import QUANTIZED
from opset.source import SeededSource
from tests.thorough import one_in_three

schema: ModuleType = pytest.importorskip("ai_edge_litert.schema_py_generated")
pytest.importorskip("flatbuffers")

from drivers.litert import RESOLVERS, LiteRT, _Prepared  # noqa: E402
from drivers.litert_translate import NO_SENSE, TRANSLATORS, UNKNOWN  # noqa: E402
from drivers.litert_translate.flatbuffer import FlatModel, Quantization  # noqa: E402

F32, Q8, I32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM, OperandType.INT32
INPUT, OUTPUT = OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT
CONSTANT, TEMPORARY = OperandLifeTime.CONSTANT_COPY, OperandLifeTime.TEMPORARY_VARIABLE


def scalar(value: int) -> tuple[Operand, bytes]:
    return Operand(I32, (), 0.0, 0, CONSTANT, DataLocation(0, 0, 4)), np.int32(value).tobytes()


def add_model(shape: tuple[int, ...] = (2, 3), activation: int = 0, kind: OperandType = F32, **known: float) -> Model:
    """a + b, both inputs of the model."""
    tensor = Operand(kind, shape, known.get("scale", 0.0), int(known.get("zero_point", 0)))
    number, data = scalar(activation)
    operands = (
        replace(tensor, lifetime=INPUT),
        replace(tensor, lifetime=INPUT),
        number,
        replace(tensor, lifetime=OUTPUT),
    )
    return Model(
        Subgraph(operands, (Operation(OperationType.ADD, (0, 1, 2), (3,)),), (0, 1), (3,)), operand_values=data
    )


def two_additions() -> Model:
    """(a + b) + c, where c is a constant."""
    tensor = Operand(F32, (2, 3), lifetime=INPUT)
    number, data = scalar(0)
    constant = replace(tensor, lifetime=CONSTANT, location=DataLocation(0, 4, 24))
    operands = (tensor, tensor, number, replace(tensor, lifetime=TEMPORARY), constant, replace(tensor, lifetime=OUTPUT))
    operations = (Operation(OperationType.ADD, (0, 1, 2), (3,)), Operation(OperationType.ADD, (3, 4, 2), (5,)))
    values = data + np.arange(6, dtype=np.float32).tobytes()
    return Model(Subgraph(operands, operations, (0, 1), (5,)), operand_values=values)


def translated(model: Model) -> Model:
    return replace(model, translation=LiteRT.translate(model, {}))


def request_for(inputs: list[Array], outputs: list[Array]) -> Request:
    """A request with a pool for each argument; the outputs give sizes."""
    pools = [BytesMemory(value.tobytes()) for value in inputs] + [BytesMemory(value.nbytes) for value in outputs]
    places = [RequestArgument(DataLocation(i, 0, pool.size)) for i, pool in enumerate(pools)]
    return Request(tuple(places[: len(inputs)]), tuple(places[len(inputs) :]), tuple(pools))


def run(device: LiteRT, model: Model, inputs: list[Array], outputs: list[Array]) -> list[Array]:
    """What the driver writes for the outputs."""
    request = request_for(inputs, outputs)
    result = device.prepare_model(translated(model)).execute_synchronously(request)
    assert [shape.dimensions for shape in result.output_shapes] == [value.shape for value in outputs]
    pools = [pool for pool in request.pools[len(inputs) :] if isinstance(pool, BytesMemory)]
    return [np.frombuffer(p.view(), v.dtype).reshape(v.shape) for p, v in zip(pools, outputs, strict=True)]


def numbers(seed: int, shape: tuple[int, ...] = (2, 3)) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- options and packages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["litert,resolver=fast", "litert,threads=0", "litert,threads=two", "litert,delegate=x"]
)
def test_a_wrong_option_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="litert"):
        load(DriverSpec.parse(text))


@pytest.mark.parametrize("resolver", RESOLVERS)
def test_every_resolver_adds(resolver: str) -> None:
    device = LiteRT(resolver=resolver, threads="2")
    a, b = numbers(1), numbers(2)
    (total,) = run(device, add_model(), [a, b], [a])
    assert np.array_equal(total, a + b)


def test_a_missing_package_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("drivers.litert_translate")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(UsageError, match=r"flatbuffers.*pip install"):
        LiteRT.translate(add_model(), {})


def test_the_runner_needs_neither_schema_nor_flatbuffers() -> None:
    program = (
        "import sys; sys.modules['flatbuffers'] = None; sys.modules['ai_edge_litert.schema_py_generated'] = None\n"
        "from drivers.litert import LiteRT; print(LiteRT().get_version_string())\n"
        "assert 'opset' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ai_edge_litert ")


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_holds_what_the_model_says() -> None:
    artifact = LiteRT.translate(add_model((1, 4), 3, Q8, scale=0.5, zero_point=7), {}).artifact
    assert artifact is not None
    assert schema.Model.ModelBufferHasIdentifier(artifact, 0)
    model = schema.Model.GetRootAs(artifact, 0)
    graph = model.Subgraphs(0)
    operator = graph.Operators(0)
    assert model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode() == schema.BuiltinOperator.ADD
    assert operator.BuiltinOptionsType() == schema.BuiltinOptions.AddOptions
    options = schema.AddOptions()
    options.Init(operator.BuiltinOptions().Bytes, operator.BuiltinOptions().Pos)
    assert options.FusedActivationFunction() == schema.ActivationFunctionType.RELU6
    assert operator.InputsAsNumpy().tolist() == graph.InputsAsNumpy().tolist()
    assert operator.OutputsAsNumpy().tolist() == graph.OutputsAsNumpy().tolist()
    for index in range(graph.TensorsLength()):
        tensor = graph.Tensors(index)
        assert tensor.Type() == schema.TensorType.UINT8
        assert tensor.ShapeAsNumpy().tolist() == [1, 4]
        assert tensor.Quantization().Scale(0) == 0.5
        assert tensor.Quantization().ZeroPoint(0) == 7


def test_constants_are_aligned_and_whole() -> None:
    artifact = LiteRT.translate(two_additions(), {}).artifact
    assert artifact is not None
    model = schema.Model.GetRootAs(artifact, 0)
    assert model.Buffers(0).DataLength() == 0
    data = model.Buffers(1).DataAsNumpy()
    assert data.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    start = artifact.index(data.tobytes())
    assert start % 16 == 0
    assert len(artifact) % 16 == 0


def test_operations_follow_one_another() -> None:
    a, b = numbers(3), numbers(4)
    (total,) = run(LiteRT(), two_additions(), [a, b], [a])
    assert np.array_equal(total, a + b + np.arange(6, dtype=np.float32).reshape(2, 3))


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_each_operation_has_its_own_reason() -> None:
    model = two_additions()
    first, second = model.main.operations
    strange = replace(model, main=replace(model.main, operations=(replace(first, type=1000), second)))
    device = LiteRT()
    reasons = device.explain_unsupported(translated(strange))
    assert reasons == ["the adapter has no translation of this operation", None]
    assert device.get_supported_operations(translated(strange)) == [False, True]
    with pytest.raises(DriverError, match="no translation"):
        device.prepare_model(translated(strange))


def test_unknown_dimensions_are_refused() -> None:
    model = add_model((0, 3))
    assert "known at execution only" in str(LiteRT().explain_unsupported(translated(model))[0])


def test_what_the_runtime_says_is_the_reason() -> None:
    flat = FlatModel()
    graph = flat.graph()
    tensors = [graph.tensor((4,), schema.TensorType.UINT8, None, Quantization((0.5,), (0,))) for _ in range(2)]
    graph.operator("RSQRT", tensors[:1], tensors[1:])  # there is a kernel for int8, none for uint8
    graph.inputs, graph.outputs = tuple(tensors[:1]), tuple(tensors[1:])
    model = replace(add_model(), translation=Translation(flat.finish(), (None,)))
    device = LiteRT()
    (reason,) = device.explain_unsupported(model)
    assert reason is not None
    assert reason.startswith(device.get_version_string())
    assert "rsqrt" in reason.lower()
    assert device.get_supported_operations(model) == [False]
    with pytest.raises(DriverError, match=r"(?i)rsqrt"):
        device.prepare_model(model)


def test_a_model_without_its_translation_is_refused() -> None:
    for ask in (LiteRT().get_supported_operations, LiteRT().prepare_model):
        with pytest.raises(DriverError) as caught:
            ask(add_model())
        assert caught.value.status == ErrorStatus.GENERAL_FAILURE


def test_a_scalar_that_is_no_constant_is_refused() -> None:
    model = add_model()
    operands = (*model.main.operands[:2], Operand(I32, lifetime=INPUT), model.main.operands[3])
    graph = replace(model.main, operands=operands, input_indexes=(0, 1, 2))
    assert "attribute" in str(LiteRT.translate(replace(model, main=graph), {}).unsupported[0])


def _pooled(stride: int) -> Model:
    """An average of windows of 2 by 2, with such a stride along the width."""
    numbers = (0, 0, 0, 0, stride, 1, 2, 2, 0)
    scalars = [Operand(I32, (), 0.0, 0, CONSTANT, DataLocation(0, 4 * place, 4)) for place in range(len(numbers))]
    operands = (Operand(F32, (1, 4, 4, 1), lifetime=INPUT), *scalars, Operand(F32, (1, 3, 3, 1), lifetime=OUTPUT))
    operation = Operation(OperationType.AVERAGE_POOL_2D, tuple(range(10)), (10,))
    return Model(Subgraph(operands, (operation,), (0,), (10,)), operand_values=np.array(numbers, np.int32).tobytes())


def _left_out(model: Model, place: int) -> Model:
    index = model.main.operations[0].inputs[place]
    omitted = replace(model.main.operands[index], lifetime=OperandLifeTime.NO_VALUE, location=DataLocation())
    operands = (*model.main.operands[:index], omitted, *model.main.operands[index + 1 :])
    listed = tuple(i for i in model.main.input_indexes if i != index)
    return replace(model, main=replace(model.main, operands=operands, input_indexes=listed))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: add_model(activation=16252931), "there is no activation with code 16252931"),
        (lambda: _left_out(add_model(), 0), "a is left out, and LiteRT needs it"),
        (lambda: _left_out(add_model(), 2), "activation is left out, and LiteRT needs it"),
        (lambda: add_model(shape=(1, 1 << 29)), "its operands take more than 1024 MiB"),
        (lambda: _pooled(0), "makes no sense of its numbers: ZeroDivisionError"),
    ],
)
def test_numbers_that_no_execution_takes_have_a_reason(make: Callable[[], Model], reason: str) -> None:
    """Rules of models say nothing of them: such a model is valid, and none that an adapter may fail on."""
    model = make()
    assert not violations(model, FL8)
    (found,) = LiteRT.translate(model, {}).unsupported
    assert found is not None
    assert reason in found


# --- execution --------------------------------------------------------------------------------------------------------


def test_a_deadline_that_has_passed_is_missed() -> None:
    device, model = LiteRT(), translated(add_model())
    past = time.monotonic_ns() - 1
    with pytest.raises(DriverError, match="MISSED_DEADLINE"):
        device.prepare_model(model, CompilationConfig(deadline=past))
    prepared = device.prepare_model(model)
    with pytest.raises(DriverError, match="MISSED_DEADLINE"):
        prepared.execute_synchronously(request_for([numbers(1), numbers(2)], [numbers(1)]), deadline=past)


def test_timing_is_given_when_asked_for() -> None:
    prepared = LiteRT().prepare_model(translated(add_model()))
    request = request_for([numbers(1), numbers(2)], [numbers(1)])
    timing = prepared.execute_synchronously(request, ExecutionConfig(measure_timing=True)).timing
    assert timing.time_on_device is not None
    assert timing.time_in_driver is not None
    assert 0 < timing.time_on_device <= timing.time_in_driver
    assert prepared.execute_synchronously(request).timing.time_in_driver is None


def test_any_byte_but_0_is_true() -> None:
    tensor = Operand(OperandType.TENSOR_BOOL8, (4,))
    operands = (replace(tensor, lifetime=INPUT), replace(tensor, lifetime=OUTPUT))
    model = Model(Subgraph(operands, (Operation(OperationType.LOGICAL_NOT, (0,), (1,)),), (0,), (1,)))
    stored = np.array([0, 1, 2, 255], np.uint8)
    assert run(LiteRT(), model, [stored], [stored])[0].tolist() == [1, 0, 0, 0]


def test_a_short_output_is_told() -> None:
    prepared = LiteRT().prepare_model(translated(add_model()))
    request = request_for([numbers(1), numbers(2)], [numbers(1, (1, 3))])
    result = prepared.execute_synchronously(request)
    assert not result.output_sufficient_size
    assert result.output_shapes[0].dimensions == (2, 3)


def test_executions_at_the_same_time_do_not_mix() -> None:
    prepared = LiteRT().prepare_model(translated(add_model((64, 64))))
    failures: list[int] = []

    def work(seed: int) -> None:
        for number in range(30):
            a, b = numbers(seed * 100 + number, (64, 64)), numbers(seed, (64, 64))
            request = request_for([a, b], [a])
            result: ExecutionResult = prepared.execute_synchronously(request)
            assert result.output_sufficient_size
            pool = request.pools[2]
            assert isinstance(pool, BytesMemory)
            if not np.array_equal(np.frombuffer(pool.view(), np.float32).reshape(64, 64), a + b):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_models_prepared_at_the_same_time_share_nothing() -> None:
    device, model = LiteRT(), translated(add_model())
    device.get_supported_operations(model)
    prepared: list[PreparedModel] = []
    threads = [threading.Thread(target=lambda: prepared.append(device.prepare_model(model))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one._idle[0]) for one in prepared if isinstance(one, _Prepared)}) == 8


def test_two_prepared_models_of_one_model_have_their_own_state() -> None:
    device, model = LiteRT(), translated(add_model())
    first, second = device.prepare_model(model), device.prepare_model(model)
    one = request_for([numbers(1), numbers(2)], [numbers(1)])
    two = request_for([numbers(3), numbers(4)], [numbers(1)])
    first.execute_synchronously(one)
    first.close()
    second.execute_synchronously(two)
    for request, seeds in ((one, (1, 2)), (two, (3, 4))):
        pool = request.pools[2]
        assert isinstance(pool, BytesMemory)
        total = np.frombuffer(pool.view(), np.float32).reshape(2, 3)
        assert np.array_equal(total, numbers(seeds[0]) + numbers(seeds[1]))


# --- drawn calls ------------------------------------------------------------------------------------------------------

CHANCE = OperationType.RANDOM_MULTINOMIAL  # has no one result; see test_litert_more.py
TRANSLATED = [definition for definition in OPSET.values() if definition.code in set(TRANSLATORS) - {CHANCE}]
SIGNATURES = [(definition, signature) for definition in TRANSLATED for signature in definition.signatures]
COARSE = {"EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"}  # of quantised types


def has_finding(call: Call) -> bool:
    """Whether LiteRT is known to be wrong: docs/findings-litert.md."""
    name = call.definition.name
    batch_major = name.startswith("BIDIRECTIONAL") and not call.integer("time_major")
    if name.endswith("LSTM") and "activation" in call.inputs:
        return call.integer("activation") == 0 or (batch_major and bool(call.integer("merge_outputs")))
    return batch_major and call.has("aux_input") and not call.has("fw_aux_weights")


def calls(definition: OperationDef, signature: Signature, count: int) -> Iterator[Call]:
    for number in range(count):
        source = SeededSource(f"test_litert/{definition.name}/{signature.id}/{number}")
        yield draw_call(definition, signature, Scope(source))


def parameters(call: Call) -> set[str]:
    return {name for name in call.inputs if call.signature.form.operand(name).parameter}


@pytest.fixture(scope="module")
def device() -> LiteRT:
    return LiteRT()


@pytest.mark.parametrize(
    ("definition", "signature"), one_in_three(SIGNATURES), ids=[f"{d.name}-{s.id}" for d, s in SIGNATURES]
)
def test_what_is_translated_agrees_with_the_baseline(
    definition: OperationDef, signature: Signature, device: LiteRT
) -> None:
    """The runtime is the second opinion: a fault of the translation would show as a difference."""
    for number, call in enumerate(calls(definition, signature, 8)):
        constants = parameters(call) if number % 2 else set(call.inputs) - {next(iter(call.inputs))}
        model, values = model_of(call, constants | parameters(call))
        translation = LiteRT.translate(model, {})
        assert (translation.artifact is None) == any(translation.unsupported)
        assert not any(NO_SENSE in (reason or "") for reason in translation.unsupported)  # a defect of the translation
        if any(device.explain_unsupported(replace(model, translation=translation))) or has_finding(call):
            continue
        due = run_call(call)
        got = run(device, model, values, [result.stored for result in due.values()])
        allowed = allowance(call, due)
        for (name, result), actual in zip(due.items(), got, strict=True):
            with np.errstate(invalid="ignore"):  # infinities of both are the same, below
                close = np.abs(actual.astype(np.float64) - result.stored) <= allowed[name].required
            same = (actual == result.stored) | (np.isnan(actual) & np.isnan(result.stored))
            coarse = definition.name in COARSE and call.inputs["a"].type in QUANTIZED
            assert (close | same).mean() >= (0.9 if coarse else 1), f"{definition.name} {signature.id} {number}"


def test_every_operation_is_translated_or_unknown_to_litert() -> None:
    assert set(TRANSLATORS) | UNKNOWN == {int(code) for code in OPSET}
    assert not set(TRANSLATORS) & UNKNOWN


REFUSED: dict[str, tuple[str, str, dict[str, float]]] = {
    "NCHW": ("CONV_2D", "float32/implicit/in8", {"nchw": 1}),
    "no alpha other than 1": ("ELU", "float32", {"alpha": 0.5}),
    "last axis only": ("SOFTMAX", "float32/default/in3", {"axis": 0}),
    "no beta other than 1": ("LOG_SOFTMAX", "float32", {"axis": -1, "beta": 2.0}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_attributes_that_litert_lacks_are_refused(words: str) -> None:
    name, signature_id, scalars = REFUSED[words]
    definition = next(d for d in OPSET.values() if d.name == name)
    signature = definition.signature(signature_id)
    call = next(c for c in calls(definition, signature, 50) if next(iter(c.inputs.values())).rank >= 2)
    for scalar_name, value in scalars.items():
        call = with_value(call, scalar_name, value)
    (reason,) = LiteRT.translate(model_of(call)[0], {}).unsupported
    assert reason is not None
    assert words.replace("NCHW", "NHWC only") in reason


@pytest.mark.parametrize("name", ["MAXIMUM", "MINIMUM", "SELECT"])
@pytest.mark.parametrize("kind", ["quant8_asymm", "quant8_asymm_signed"])
def test_operations_without_an_eye_for_scales_run_only_where_there_is_one(name: str, kind: str) -> None:
    definition = next(d for d in OPSET.values() if d.name == name)
    ran = refused = 0
    for call in calls(definition, definition.signature(kind), 10):
        for same in (False, True):
            known = replace(call["a"], scale=0.5, zero_point=3) if same else call["a"]
            twin = call.with_input("a", known)
            if same:
                twin = twin.with_input("b", replace(call["b"], scale=0.5, zero_point=3))
                twin = twin.with_result("output", replace(call["output"], scale=0.5, zero_point=3))
            elif (call["a"].scale, call["a"].zero_point) == (call["b"].scale, call["b"].zero_point):
                continue
            model, values = model_of(twin)
            (reason,) = LiteRT.translate(model, {}).unsupported
            if reason is not None:
                assert "rescales" in reason
                refused += 1
                continue
            due = run_call(twin)["output"].stored
            assert np.array_equal(run(LiteRT(), model, values, [due])[0], due)
            ran += 1
    assert ran >= 10
    assert refused


# --- several operations -----------------------------------------------------------------------------------------------


def test_a_graph_of_several_operations_agrees_with_the_baseline(device: LiteRT) -> None:
    ran = 0
    for number in range(30):
        model, values = drawn_graph(number)
        translation = LiteRT.translate(model, {})
        if any(device.explain_unsupported(replace(model, translation=translation))):
            continue
        due = evaluate(model, values)
        got = run(device, model, [v for v in values if v is not None], [result.stored for result in due])
        for result, actual in zip(due, got, strict=True):
            assert np.allclose(actual, result.stored, rtol=1e-4, atol=1e-4)
        ran += 1
    assert ran >= 10


def drawn_graph(number: int) -> tuple[Model, list[Array | None]]:
    """Three float operations that feed one another where their draws let them; every result goes out."""
    scope = Scope(SeededSource(f"test_litert/graph/{number}"), reuse=90)
    by_name = {d.name: d for d in OPSET.values()}
    names = ("ADD", "RELU", "TANH", "MUL", "SUB", "ABS", "LOGISTIC")
    graph = GraphBuilder()
    indexes: dict[int, int] = {}
    values: list[Array | None] = []
    for step in range(3):
        definition = by_name[names[(number * 3 + step * 2) % len(names)]]
        call = draw_call(definition, definition.signature("float32"), scope)
        taken = []
        for argument in call.inputs.values():
            if argument.key is not None and argument.key in indexes:
                taken.append(indexes[argument.key])
                continue
            constant = not argument.shape
            taken.append(graph.operand(argument, CONSTANT if constant else INPUT))
            if argument.key is not None:
                indexes[argument.key] = taken[-1]
            if not constant:
                values.append(argument.value)
        given = []
        for argument in call.results.values():
            given.append(graph.operand(argument, OUTPUT))
            if argument.key is not None:
                indexes[argument.key] = given[-1]
        graph.operations.append(Operation(int(definition.code), tuple(taken), tuple(given)))
    return Model(graph.subgraph(), operand_values=bytes(graph.values)), values
