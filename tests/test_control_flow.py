"""IF and WHILE: a second interpreter, faults, errors that add up, time-outs, and drivers in a process of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.isolation import IsolatedDriver
from harness.make import expected_outputs
from nnhal import wire
from nnhal.device import Device, ExecutionConfig
from nnhal.errors import DriverError
from nnhal.memory import SharedMemory
from nnhal.model import DataLocation, Model, Operation, Request, RequestArgument, Subgraph, count_consumers
from nnhal.types import (
    FL3,
    FL4,
    LOOP_TIMEOUT_DEFAULT_NS,
    LOOP_TIMEOUT_MAX_NS,
    Array,
    ErrorStatus,
    OperandLifeTime,
    OperandType,
    OperationType,
)
from nnhal.validate import violations as model_violations
from opset import OPSET
from opset import branch as branch_module
from opset.branch import LoopTimedOutError
from opset.broadcast import ADD
from opset.call import Call
from opset.comparison import EQUAL
from opset.control_flow import IF, WHILE
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import Result, allowance, run_call
from opset.graph import call_of, evaluate, model_of
from opset.normalization import SOFTMAX
from opset.quantization import QUANTIZED
from opset.source import SeededSource
from opset.tracking import certain, track_call
from opset.validation import violations
from opset.values import Arithmetic
from reference_driver.device import ReferenceDevice
from tests.control_flow_program import Program
from tests.judging import complaints_on_variants, draws, noticed, verdicts
from tests.small_models import branching, looping
from tests.variants import complaints

BOTH = (IF, WHILE)
COUNT = 120
MISSED = (ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT)


def by_name(call: Call, outputs: Sequence[Array]) -> dict[str, Array]:
    return dict(zip(call.results, outputs, strict=True))


def answer(call: Call, fault: str = "") -> dict[str, Array]:
    model, values = model_of(call)
    return by_name(call, Program(model, fault).run(values))


@pytest.mark.parametrize("definition", BOTH, ids=lambda d: d.name)
def test_signatures(definition: object) -> None:
    assert definition in BOTH
    found = [(s.id, s.since, s.count) for d in BOTH if d is definition for s in d.signatures]
    assert found == [("any", FL4, None)]


@pytest.mark.parametrize("definition", BOTH, ids=lambda d: d.name)
def test_a_second_interpreter_agrees(definition: object) -> None:
    judged = 0
    for d in BOTH:
        for call in draws(d, d.signatures[0], COUNT, "opinion") if d is definition else ():
            assert all(word.startswith("PASS") for word in verdicts(call, answer(call))), verdicts(call, answer(call))
            for name, value in answer(call).items():
                if call.results[name].type in (OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8):
                    assert np.array_equal(value, call.results[name].value)
            judged += 1
    assert judged == COUNT


@pytest.mark.thorough
@pytest.mark.parametrize("definition", BOTH, ids=lambda d: d.name)
def test_other_arithmetic_is_not_blamed(definition: object) -> None:
    for d in BOTH:
        if d is definition:
            assert complaints_on_variants(d, d.signatures[0], COUNT) == []


def kinds(call: Call) -> set[int]:
    model, _ = model_of(call)
    return {o.type for graph in (model.main, *model.referenced) for o in graph.operands}


def test_relaxed_arithmetic_is_not_blamed() -> None:
    """Float16 throughout, in graphs whose floats are float32 and whose model is relaxed."""
    half = Arithmetic(np.float16)  # type: ignore[arg-type]
    tried = 0
    for definition in BOTH:
        for call in draws(definition, definition.signatures[0], COUNT, "relaxed"):
            if OperandType.TENSOR_FLOAT32 in kinds(call) and OperandType.TENSOR_FLOAT16 not in kinds(call):
                results = {n: r.stored for n, r in run_call(call, half).items()}
                assert complaints(call, results, relaxed=True) == []
                tried += 1
    assert tried > 50


# --- draws ------------------------------------------------------------------------------------------------------------


def test_draws_meet_what_graphs_can_be() -> None:
    calls = {d.name: list(draws(d, d.signatures[0], COUNT, "reach")) for d in BOTH}
    for name, drawn in calls.items():
        models = [model_of(call)[0] for call in drawn]
        nested = [m for m in models if any(o.type == OperandType.SUBGRAPH for g in m.referenced for o in g.operands)]
        unused = [m for m in models if any(g.operands[i].number_of_consumers == 0 for g in m.referenced
                                           for i in g.input_indexes)]  # fmt: skip
        scalars = [c for c in drawn if any(a.type == OperandType.INT32 for a in c.inputs.values())]
        assert min(len(nested), len(unused), len(scalars)) >= 10, name
        types = {a.type for call in drawn for a in call.results.values()}
        assert len(types) == 5, name
    conditions = [int(call["condition"].item()) for call in calls["IF"]]
    assert 0.3 < np.mean(conditions) < 0.7
    assert any(len(call.inputs) == 3 for call in calls["IF"])
    turns = []
    for call in calls["WHILE"]:
        model, values = model_of(call)
        program = Program(model)
        program.run(values)
        turns.append(program.turns)
    assert min(turns.count(0), turns.count(1)) >= 5
    assert max(turns) > 10
    kept = [len(c["body_graph"].branch.gives) - len(c.results) for c in calls["WHILE"] if c["body_graph"].branch]
    assert min(kept.count(0), sum(k > 0 for k in kept)) >= 20


@pytest.mark.parametrize("definition", BOTH, ids=lambda d: d.name)
def test_drawn_models_are_valid_and_travel(definition: object) -> None:
    for d in BOTH:
        for call in draws(d, d.signatures[0], 60, "models") if d is definition else ():
            for constants in (frozenset(), frozenset(call.inputs)):
                model, values = model_of(call, constants)
                assert model_violations(model, FL4) == []
                assert [v.label for v in model_violations(model, FL3)]
                again = wire.loads(Model, wire.dumps(model))
                found = [r.stored for r in evaluate(again, values)]
                assert all(np.array_equal(a, b.value) for a, b in zip(found, call.results.values(), strict=True))
            graph = model.main
            known = {}
            for index, argument in zip(graph.operations[0].inputs, call.inputs.values(), strict=True):
                if argument.value is not None:
                    known[index] = argument.value
            whole, _ = model_of(call_of(model, graph, graph.operations[0], known))
            assert len(whole.referenced) == len(model.referenced)


# --- faults -----------------------------------------------------------------------------------------------------------

FAULTS = {
    IF.code: ("other branch", "always the first", "always the second", "operands reversed", "results rotated"),
    WHILE.code: (
        "at least once", "condition on first values", "body on first values", "one turn only", "stops at two",
        "one turn more", "one turn less", "initial values", "results rotated", "one value kept",
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("code", "fault"), [(c, f) for c, faults in FAULTS.items() for f in faults])
def test_faults_are_noticed(code: OperationType, fault: str) -> None:
    definition = next(d for d in BOTH if d.code == code)
    seen = changed = 0
    for call in draws(definition, definition.signatures[0], 100, "faults"):
        right, wrong = answer(call), answer(call, fault)
        if all(np.array_equal(right[n], wrong[n], equal_nan=True) for n in right):
            continue
        changed += 1
        seen += noticed(call, wrong)
    assert changed >= 10
    assert seen >= 0.95 * changed, f"{seen} of {changed}"


# --- errors that add up -----------------------------------------------------------------------------------------------


def sloppy(call: Call, rng: np.random.Generator) -> dict[str, Array]:
    """An implementation in which each operation is as far off as it may be, this way or that."""
    if call.definition.graphs is None:
        exact = run_call(call)
        allowed = allowance(call, exact)
        return {n: _off(r, allowed[n].required, rng) for n, r in exact.items()}

    def run(name: str, values: Sequence[Array]) -> list[Array]:
        branch = call[name].branch
        assert branch is not None
        graph = branch.model.main
        known = dict(zip(graph.input_indexes, values, strict=True))
        for operation in graph.operations:
            inner = call_of(branch.model, graph, operation, known)
            known.update(zip(operation.outputs, sloppy(inner, rng).values(), strict=True))
        return [known[i] for i in graph.output_indexes]

    handed = [a.value for n, a in call.inputs.items() if n != "condition" and a.value is not None]
    if call.definition is IF:
        return by_name(call, run("then_graph" if call["condition"].item() else "else_graph", handed))
    while run("cond_graph", handed)[0][0]:
        new = run("body_graph", handed)
        handed[: len(new)] = new
    return by_name(call, handed[: len(call.results)])


def _off(result: Result, required: Array, rng: np.random.Generator) -> Array:
    stored = result.stored
    sign = rng.choice([-1.0, 1.0]) if rng.random() < 0.5 else rng.choice([-1.0, 1.0], stored.shape)
    if stored.dtype.kind in "iu":
        ends = np.iinfo(stored.dtype)
        return np.asarray(np.clip(stored + sign * required, ends.min, ends.max).astype(stored.dtype))
    moved = (result.exact + sign * required).astype(stored.dtype)
    beyond = np.abs(moved.astype(np.float64) - result.exact) > required
    return np.where(beyond, np.nextafter(moved, stored), moved)


@pytest.mark.parametrize("definition", BOTH, ids=lambda d: d.name)
@pytest.mark.thorough
def test_operations_at_their_limit_stay_within_the_whole(definition: object) -> None:
    rng = np.random.default_rng(5)
    closest = 0.0
    for d in BOTH:
        for call in draws(d, d.signatures[0], COUNT, "sloppy") if d is definition else ():
            allowed = allowance(call, run_call(call))
            for name, value in sloppy(call, rng).items():
                if np.isinf(allowed[name].required).any():
                    continue
                real = run_call(call)[name]
                due = real.exact if value.dtype.kind == "f" else real.stored.astype(np.float64)
                error = np.abs(value.astype(np.float64) - due)
                assert np.all(error <= allowed[name].required), f"{name}: {error.max()}"
                some = allowed[name].required > 0
                closest = max(closest, float((error[some] / allowed[name].required[some]).max(initial=0)))
    assert closest > 0.9  # the allowance is not out of reach


def test_a_condition_in_doubt_leaves_the_results_open() -> None:
    """A float counter that meets its limit exactly: a rounding decides on a turn."""
    model = looping()
    graph = model.main
    values = {i: np.full(1, 1.0, np.float32) for i in graph.input_indexes}
    call = call_of(model, graph, graph.operations[0], values)
    assert allowance(call, run_call(call))["outputs0"].required[0] < 1e-4  # compared as handed in: no doubt
    errors = {"initial0": track_call(call, {}, False)["outputs0"]}
    assert np.isinf(track_call(call, errors, False)["outputs0"].error).all()


def test_initial_values_that_come_back_are_moved() -> None:
    """No turn at all: a step off is allowed, as in any quantised result, and yet poor."""
    found = 0
    for call in draws(WHILE, WHILE.signatures[0], COUNT, "still"):
        model, values = model_of(call)
        program = Program(model)
        program.run(values)
        for due in expected_outputs(call) if not program.turns else ():
            if due.type in QUANTIZED:
                assert (due.exact, set(due.required.flat)) == (True, {1.0})
                found += 1
    assert found >= 3


def test_loops_of_one_turn_show_how_values_are_rounded() -> None:
    rounding = 0
    for call in draws(WHILE, WHILE.signatures[0], COUNT, "once"):
        for due in expected_outputs(call):
            between = (due.value % 1 != 0) & (due.required == 1)
            rounding += due.type in QUANTIZED and int(between.sum()) >= 32
    assert rounding >= 5


def test_errors_in_what_is_mixed_or_equal_leave_results_open() -> None:
    for definition in (EQUAL, SOFTMAX):
        signature = next(s for s in definition.signatures if s.row.id == "float32")
        call = next(draws(definition, signature, 1, "open"))
        name = next(iter(call.inputs))
        exact = certain(call[name])
        off = {name: replace(exact, error=np.full(exact.error.shape, 1e-6))}
        assert np.isinf(track_call(call, off, False)["output"].error).all()
        assert np.isfinite(track_call(call, {name: exact}, False)["output"].error).all()


# --- what ends a loop -------------------------------------------------------------------------------------------------


def endless() -> Model:
    """WHILE 0 < 1: floor of the first."""
    return looping()


def request_of(model: Model) -> tuple[Request, SharedMemory]:
    """Four bytes for each input and output: 0.0, 1.0."""
    pool = SharedMemory.create(64)
    pool.view()[:8] = np.array([0, 1], np.float32).tobytes()
    inputs = tuple(RequestArgument(DataLocation(0, 4 * i, 4)) for i in range(2))
    return Request(inputs, (RequestArgument(DataLocation(0, 32, 4)),), (pool,)), pool


def refusal(action: Callable[[], object]) -> ErrorStatus:
    with pytest.raises(DriverError) as refused:
        action()
    return refused.value.status


def stops_an_endless_loop(device: Device) -> None:
    model = endless()
    assert device.get_supported_operations(model) == [True]
    prepared = device.prepare_model(model)
    request, _ = request_of(model)
    soon = ExecutionConfig(loop_timeout_duration=5_000_000)
    assert refusal(lambda: prepared.execute_synchronously(request, soon)) in MISSED
    assert refusal(lambda: prepared.create_reusable_execution(request, soon).execute_synchronously()) in MISSED
    late = ExecutionConfig(loop_timeout_duration=LOOP_TIMEOUT_MAX_NS + 1)
    assert refusal(lambda: prepared.execute_synchronously(request, late)) == ErrorStatus.INVALID_ARGUMENT


def test_an_endless_loop_is_stopped() -> None:
    stops_an_endless_loop(ReferenceDevice())


def test_an_endless_loop_is_stopped_in_a_process_of_its_own() -> None:
    with IsolatedDriver("reference") as driver:
        stops_an_endless_loop(driver.device)


def test_a_loop_is_ended_at_its_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0]

    def tick() -> int:
        clock[0] += 100_000_000
        return clock[0]

    monkeypatch.setattr(branch_module.time, "monotonic_ns", tick)
    values = [np.zeros(1, np.float32), np.ones(1, np.float32)]
    with pytest.raises(LoopTimedOutError, match="more than 2 s"):
        evaluate(endless(), values, loop_timeout=LOOP_TIMEOUT_DEFAULT_NS)
    assert clock[0] == 2_100_000_000
    with pytest.raises(LoopTimedOutError, match="more than 15 s"):
        evaluate(endless(), values, loop_timeout=LOOP_TIMEOUT_MAX_NS)


def test_rules_hold_inside_graphs_too() -> None:
    """A call that breaks a rule of stage EXECUTION within the chosen branch is refused, within the other it is not."""
    model = branching()
    operands = (
        replace(model.referenced[0].operands[0], dimensions=(2,)),
        replace(model.referenced[0].operands[0], lifetime=OperandLifeTime.CONSTANT_COPY,
                location=DataLocation(0, 0, 12), dimensions=(3,)),
        replace(model.referenced[0].operands[0], type=OperandType.INT32, lifetime=OperandLifeTime.CONSTANT_COPY,
                location=DataLocation(0, 12, 4), dimensions=()),
        model.referenced[0].operands[1],
    )  # fmt: skip
    bad = count_consumers(Subgraph(operands, (Operation(int(OperationType.ADD), (0, 1, 2), (3,)),), (0,), (3,)))
    model = replace(model, referenced=(bad, model.referenced[1]), operand_values=bytes(16))
    seen: list[str] = []

    def check(call: Call) -> None:
        seen.extend(violations(call))

    x = np.array([-1.5, 2.5], np.float32)
    (result,) = evaluate(model, [np.zeros(1, np.uint8), x], check=check)
    assert (seen, result.stored.tolist()) == ([], [0.0, 2.5])
    with pytest.raises(ValueError, match="broadcast"):
        evaluate(model, [np.ones(1, np.uint8), x], check=check)
    assert seen == ["BROADCAST"]


def test_a_graph_with_an_undefined_operation_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ReferenceDevice()
    assert device.get_supported_operations(branching()) == [True]
    # A table of its own: one that loses an operation for a while gets it back in another place.
    without = {code: definition for code, definition in OPSET.items() if code != OperationType.FLOOR}
    monkeypatch.setattr("reference_driver.device.OPSET", without)
    assert device.get_supported_operations(branching()) == [False]
    assert device.get_supported_operations(looping()) == [False]


def test_a_deadline_ends_a_loop_too() -> None:
    model = endless()
    prepared = ReferenceDevice().prepare_model(model)
    request, _ = request_of(model)
    patient = ExecutionConfig(loop_timeout_duration=LOOP_TIMEOUT_MAX_NS)
    soon = time.monotonic_ns() + 20_000_000
    assert refusal(lambda: prepared.execute_synchronously(request, patient, soon)) in MISSED


def test_operands_of_a_scope_are_taken() -> None:
    """In a graph under way IF and WHILE read what is there, and their results are read."""
    taken = {"IF": 0, "WHILE": 0}
    for number in range(25):
        scope = Scope(SeededSource(f"mixed/{number}"), reuse=70)
        for definition in (ADD, IF, WHILE, IF, WHILE, ADD):
            before = len(scope.operands)
            call = draw_call(definition, definition.signatures[0], scope)
            assert violations(call) == []
            if definition is not ADD:
                taken[definition.name] += any(a.key is not None and a.key < before for a in call.inputs.values())
            model, values = model_of(call)
            found = [r.stored for r in evaluate(model, values)]
            assert all(np.array_equal(a, b.value) for a, b in zip(found, call.results.values(), strict=True))
    assert min(taken.values()) >= 20
