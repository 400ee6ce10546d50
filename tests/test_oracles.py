"""What graphs are held against besides the reference: equal graphs, fresh processes, another driver."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.nets import Chain
from harness.batch import Batch, NotApplicableError, SettledError
from harness.case import Origin, TestCase
from harness.case_file import load, save
from harness.driver import open_driver
from harness.expectations import Agrees, Returns
from harness.guards import Arena, guard
from harness.judge import judge
from harness.make import graph_case
from harness.minimize import minimize
from harness.probing import prober
from harness.process import environment
from harness.record import RecordFile
from harness.run import run
from harness.session import Options, Session
from harness.steps import Action
from harness.verdict import Cause, Judgement, Verdict
from harness.waivers import Waivers
from nnhal.device import DEFAULT_COMPILATION, CompilationConfig, Device, PreparedModel
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from nnhal.model import Model, constant_bytes
from nnhal.types import FL1, FL3, OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from opset.call import Argument, int32_tensor, scalar
from opset.definition import F32
from random_graph.against import Against, compare
from random_graph.cases import graph_test_case
from random_graph.oracles import FILLS, ORACLES, equal, equal_graphs_case, fresh, graph_of, judge_by
from random_graph.rewrites import REWRITES, NoRewriteError, rewrite_at_random
from reference_driver import ReferenceDevice

ROOT = Path(__file__).parents[1]
UNINITIALIZED = "tests/uninitialized_driver.py"
ORIGIN = Origin("GRAPH", "small", "drawn", 0)
GRAPHS = {"small": 30, "float16": 6, "quant8_asymm": 6, "quant8_asymm_signed": 6, "level3": 6, "large": 1}
NONE = scalar(OperandType.INT32, 0)
ONE, VALID = scalar(OperandType.INT32, 1), scalar(OperandType.INT32, 2)


def judged(case: TestCase, make: Callable[[], Device]) -> Judgement:
    return judge(case, run(case, make(), in_process=True, restart=lambda fill=None: make()))


def real(*shape: int, seed: int = 0, low: float = -4, high: float = 4) -> Argument:
    value = np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)
    return Argument(F32, shape, value=value)


def case_of(chain: Chain) -> TestCase:
    return graph_case(chain.net.model(), chain.net.values, ORIGIN)


def convolution_and_relu() -> TestCase:
    """Results up to about 20, so that a clamp at 6 shows."""
    chain = Chain()
    x = chain.input(real(2, 4, 4, 3, low=0))
    bias = Argument(F32, (2,), value=np.zeros(2, np.float32))
    [y] = chain.apply(Op.CONV_2D, input=x, filter=real(2, 1, 1, 3, low=0, seed=1), bias=bias, padding_scheme=VALID,
                      stride_w=ONE, stride_h=ONE, activation=NONE)  # fmt: skip
    chain.end(Op.RELU, input=y)
    return case_of(chain)


def sums(count: int = 2, size: int = 6) -> TestCase:
    """x + c + d + ..., where all are of one size."""
    chain = Chain()
    y = chain.input(real(size))
    for number in range(count - 1):
        [y] = chain.apply(Op.ADD, a=y, b=real(size, seed=number + 1), activation=NONE)
    chain.end(Op.ADD, a=y, b=real(size, seed=count), activation=NONE)
    return case_of(chain)


def addition(*shape: int, seed: int = 0) -> TestCase:
    chain = Chain()
    chain.end(Op.ADD, a=chain.input(real(*shape, seed=seed)), b=real(*shape, seed=1), activation=NONE)
    return case_of(chain)


@cache
def cases(count: int = 12) -> tuple[TestCase, ...]:
    """Random graphs, of which something can be compared."""
    found = []
    for seed in range(2 * count):
        case = graph_test_case("small", seed)
        with contextlib.suppress(NotApplicableError):
            equal(case)
            found.append(case)
        if len(found) == count:
            break
    return tuple(found)


# --- equal graphs -----------------------------------------------------------------------------------------------------


class WronglyFusing(ReferenceDevice):
    """Does CONV_2D and the RELU right behind it in one, and clamps at 6."""

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        main = model.main
        operations = list(main.operations)
        for number, (first, second) in enumerate(itertools.pairwise(operations)):
            if (first.type, second.type) == (Op.CONV_2D, Op.RELU) and second.inputs == first.outputs:
                operations[number + 1] = replace(second, type=int(Op.RELU6))
        return super().prepare_model(replace(model, main=replace(main, operations=tuple(operations))), config)


class CachingByIndex(ReferenceDevice):
    """Takes a constant for one that it knows when the index of the operand and the size are those of that one."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[int, int], bytes] = {}

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        values = bytearray(model.operand_values)
        for index, operand in enumerate(model.main.operands):
            if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
                place = operand.location
                data = bytes(constant_bytes(model, operand))
                kept = self.known.setdefault((index, place.length), data)
                values[place.offset : place.offset + place.length] = kept
        return super().prepare_model(replace(model, operand_values=bytes(values)), config)


class SplittingWrongly(ReferenceDevice):
    """Computes with the first row alone where a batch has more than two."""

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        prepared = super().prepare_model(model, config)
        whole = prepared.execute_synchronously
        wide = model.main.operands[model.main.output_indexes[0]].dimensions[0] > 2

        def execute(request: Any, *rest: Any) -> Any:
            result = whole(request, *rest)
            place = request.outputs[0].location
            data = request.pools[place.pool_index].view()[place.offset : place.offset + place.length]
            if wide:
                data[len(data) // 2 :] = data[: len(data) - len(data) // 2]
            return result

        prepared.execute_synchronously = execute  # type: ignore[method-assign]
        return prepared


def verdicts(case: TestCase, make: Callable[[], Device], count: int = 24) -> Counter[tuple[str, str]]:
    """How the graph ends against itself, written in other ways that the oracle draws."""
    found: Counter[tuple[str, str]] = Counter()
    for number in range(count):
        other = equal(replace(case, origin=replace(case.origin, number=number)))
        judgement = judged(other, make)
        found[judgement.verdict.value, judgement.cause.value] += 1
    return found


@pytest.mark.parametrize(
    ("case", "make", "least"),
    [
        (convolution_and_relu(), WronglyFusing, 3),
        (sums(3), CachingByIndex, 3),
        (addition(4, 6), SplittingWrongly, 2),
    ],
    ids=["fuses", "caches", "splits"],
)
def test_a_driver_that_takes_a_short_cut_is_caught(case: TestCase, make: Callable[[], Device], least: int) -> None:
    found = verdicts(case, make)
    assert found["FAIL", "INCONSISTENT"] >= least
    assert set(found) == {("FAIL", "INCONSISTENT"), ("PASS", "")}
    assert set(verdicts(case, ReferenceDevice)) == {("PASS", "")}


def test_what_is_found_says_how_the_graphs_are_equal() -> None:
    case = convolution_and_relu()
    model, inputs = case.models[0], case.steps[2].inputs
    other = equal_graphs_case(model, inputs, ["moved_through"], ORIGIN, seed=7)
    found = judged(other, WronglyFusing)
    assert (found.verdict, found.cause, found.stage) == (Verdict.FAIL, Cause.INCONSISTENT, "execute")
    words = "the graph in another form (moved_through) gives the same: what is moved and moved back stays"
    assert found.message.startswith(f"{words}; output 0 differs in ")
    assert words in other.origin.detail


def test_no_value_of_the_reference_is_in_an_equal_graph_s_case() -> None:
    case = equal(convolution_and_relu())
    assert [step.action for step in case.steps] == [
        *[Action.QUERY] * 2, *[Action.PREPARE] * 2, *[Action.EXECUTE] * 2,
    ]  # fmt: skip
    for step in case.steps:
        for due in step.expect.outputs if isinstance(step.expect, Returns) else ():
            assert np.isinf(due.required).all()
            assert not due.value.any()
    assert isinstance(case.steps[5].expect, Agrees)
    assert case.steps[5].expect.step == 4


def test_both_may_be_off_by_what_is_allowed() -> None:
    case = sums()
    due = case.steps[2].expect
    assert isinstance(due, Returns)
    pair = equal_graphs_case(case.models[0], case.steps[2].inputs, ["swapped"], ORIGIN)
    expect = pair.steps[5].expect
    assert isinstance(expect, Agrees)
    assert np.allclose(expect.outputs[0].allowed, 2 * due.outputs[0].required, rtol=1e-3)


@pytest.mark.parametrize("name", GRAPHS)
def test_right_drivers_agree_with_themselves(name: str) -> None:
    """The reference and variants of it that are correct, but round otherwise."""
    variants: Mapping[str, ReferenceDevice] = {
        "float64": ReferenceDevice(),
        "float32": ReferenceDevice(arithmetic="float32", order="reversed"),
        "blocked": ReferenceDevice(arithmetic="float32", order="blocked"),
    }
    made = 0
    for seed in range(GRAPHS[name]):
        try:
            case = equal(graph_test_case(name, seed))
        except NotApplicableError:
            continue
        made += 1
        for variant, device in variants.items():
            found = judged(case, lambda device=device: device)  # type: ignore[misc]
            assert found.verdict == Verdict.PASS, f"{name} {seed} {variant}: {found.message}"
    assert made > 0.9 * GRAPHS[name]


def test_an_equal_graph_is_the_same_each_time() -> None:
    case = cases()[3]
    assert equal(case).digest == equal(case).digest
    assert equal(case).digest != case.digest
    assert equal(case).level == case.level


def test_parts_of_a_batch_are_held_against_rows() -> None:
    case = addition(4, 3)
    pair = equal_graphs_case(case.models[0], case.steps[2].inputs, ["rows_alone"], ORIGIN, seed=1)
    expect = pair.steps[5].expect
    assert isinstance(expect, Agrees)
    [agreement] = expect.outputs
    assert agreement.first is not None
    assert agreement.allowed.shape[0] < 4
    assert judged(pair, ReferenceDevice).verdict == Verdict.PASS


def test_what_cannot_be_written_in_another_way() -> None:
    case = sums()
    model, inputs = case.models[0], case.steps[2].inputs
    with pytest.raises(NoRewriteError):
        equal_graphs_case(model, inputs, ["constants_joined"], ORIGIN)
    with pytest.raises(UsageError, match="unknown"):
        equal_graphs_case(model, inputs, ["turned"], ORIGIN)
    assert equal_graphs_case(model, inputs, ["swapped"], ORIGIN).level == FL1
    assert equal_graphs_case(model, inputs, ["swapped"], ORIGIN, level=FL3).level == FL3


def test_samples_are_not_compared() -> None:
    chain = Chain()
    logits = chain.input(real(2, 4))
    seeds = int32_tensor([1, 2])
    chain.end(Op.RANDOM_MULTINOMIAL, logits=logits, samples=scalar(OperandType.INT32, 8), seeds=seeds)
    with pytest.raises(NotApplicableError, match="left open"):
        equal(case_of(chain))
    with pytest.raises(NotApplicableError, match="at random"):
        fresh(case_of(chain))


# --- fresh processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Session]]:
    monkeypatch.chdir(ROOT)
    opened: list[Session] = []

    def start(text: str, *, in_process: bool = False) -> Session:
        spec = DriverSpec.parse(text)
        driver = open_driver(spec, log_path=tmp_path / "driver.log", in_process=in_process, spare=False)
        records = RecordFile(tmp_path / f"records{len(opened)}.jsonl")
        opened.append(Session(driver, tmp_path, records, Waivers([], None), Options(text)))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    ("how", "verdict", "cause"),
    [
        ("nothing", "PASS", ""),
        ("empty", "FAIL", "INCONSISTENT"),
        ("output", "FAIL", "INCONSISTENT"),
        ("behind", "FAIL", "INCONSISTENT"),
        ("before", "FAIL", "INCONSISTENT"),
        ("dies", "CRASH", "DIED"),
    ],
)
def test_memory_that_nobody_has_written(session: Any, how: str, verdict: str, cause: str) -> None:
    case = fresh(addition(20, 30))
    found = prober(session(f"{UNINITIALIZED},how={how}").driver)(case)
    assert (found.verdict.value, found.cause.value) == (verdict, cause)
    if cause == "INCONSISTENT":
        assert found.message.startswith("the same request gives the same bits, whatever memory held that nobody has ")


def test_what_is_seen_of_fresh_memory_is_the_fill(session: Any) -> None:
    """The two runs show the two bytes: it was glibc's allocator that put them there."""
    one = session(f"{UNINITIALIZED},how=empty")
    case = fresh(addition(20, 30))
    outcome = run(case, one.driver.device, restart=one._restarted)
    last = [o.outputs[0][-1, -1].tobytes() for o in outcome.steps if o.outputs and o.outputs[0] is not None]
    assert last[0] == bytes([FILLS[0]]) * 4
    assert last[-1] == bytes([FILLS[1]]) * 4


@pytest.mark.thorough
def test_a_failure_in_fresh_processes_repeats_and_is_saved(session: Any, tmp_path: Path) -> None:
    record = session(f"{UNINITIALIZED},how=output").check(fresh(addition(20, 30)))
    assert (record.verdict, record.cause, record.repeated) == ("FAIL", "INCONSISTENT", "same")
    again = load(tmp_path / record.saved)
    assert [step.how for step in again.steps] == [step.how for step in fresh(addition(20, 30)).steps]
    assert prober(session(UNINITIALIZED).driver)(again).verdict == Verdict.PASS


def test_only_a_driver_that_calls_itself_deterministic_is_asked(session: Any) -> None:
    record = session(f"{UNINITIALIZED},how=empty,deterministic=no", in_process=True).check(fresh(addition(20, 30)))
    assert (record.verdict, record.message) == ("NOT_APPLICABLE", "the driver does not declare deterministic")


def test_values_of_other_executions_go_before() -> None:
    case = fresh(addition(2, 3))
    before, last = case.steps[6], case.steps[7]
    assert before.inputs[0] is not None
    assert np.array_equal(before.inputs[0].reshape(-1)[::-1], last.inputs[0].reshape(-1))  # type: ignore[union-attr]


def test_no_value_of_the_reference_is_in_a_fresh_case() -> None:
    case = fresh(convolution_and_relu())
    assert judged(case, WronglyFusing).verdict == Verdict.PASS  # it is wrong in the same way each time
    assert case.needs == ("deterministic",)


def test_the_fill_reaches_the_process() -> None:
    spec = DriverSpec.parse("reference")
    assert environment(spec, "x", 0x55)["MALLOC_PERTURB_"] == str(0xAA)
    assert "MALLOC_PERTURB_" not in environment(spec, "x")


def test_guards_hold_another_byte() -> None:
    model = addition(2, 3).models[0]
    arena = Arena()
    guarded = guard(arena, model, (np.ones((2, 3), np.float32),), [24], 0x55)
    assert set(guarded.bytes_at(guarded.outputs[0])) == {0x55}  # type: ignore[arg-type]
    assert guarded.findings() == []
    guarded.areas[1].memory.view()[0] = 0xA5
    [(kind, text)] = guarded.findings()
    assert (kind, text) == ("OVERRUN", "1 bytes written outside, the first 64 bytes before output 0")
    arena.close()


@pytest.mark.parametrize("how", [equal, fresh])
def test_cases_are_saved_and_loaded(how: Callable[[TestCase], TestCase], tmp_path: Path) -> None:
    case = how(cases()[5])
    save(case, tmp_path / "x.case")
    again = load(tmp_path / "x.case")
    assert again.id == case.id
    assert [step.how for step in again.steps] == [step.how for step in case.steps]
    for one, other in zip(case.steps, again.steps, strict=True):
        if isinstance(one.expect, Agrees) and isinstance(other.expect, Agrees):
            assert [a.bits for a in one.expect.outputs] == [a.bits for a in other.expect.outputs]
            assert [a.first for a in one.expect.outputs] == [a.first for a in other.expect.outputs]


# --- another driver ---------------------------------------------------------------------------------------------------


def against(first: str, second: str, tmp_path: Path, **rest: Any) -> Against:
    return Against(first, second, tmp_path / "second.log", **({"in_process": True} | rest))


def test_correct_drivers_agree_with_one_another(session: Any, tmp_path: Path) -> None:
    first = session("reference,arithmetic=float32,order=reversed", in_process=True)
    with against("reference,arithmetic=float32,order=reversed", "reference", tmp_path) as second:
        found = [compare(case, prober(first.driver), second) for case in cases()]
    assert {j.verdict for j in found} == {Verdict.PASS}


def test_a_difference_names_both(session: Any, tmp_path: Path) -> None:
    names = "faulty,fault=wrong_value", "reference,arithmetic=float32"
    first = session(names[0], in_process=True)
    with against(*names, tmp_path) as second:
        held = second(sums())
        found = prober(first.driver)(held)
    assert (found.verdict, found.cause) == (Verdict.FAIL, Cause.VALUE)
    assert f"{names[0]} against {names[1]}' differs in " in found.message
    assert held.origin.detail.endswith(f"{names[0]} against {names[1]}")


def test_the_other_driver_s_results_are_due_and_not_the_reference_s(session: Any, tmp_path: Path) -> None:
    """Of two drivers that are wrong in the same way neither is blamed; against the reference both are."""
    case, wrong = convolution_and_relu(), f"{__file__}:WronglyFusing"
    first = session(wrong, in_process=True)
    with against(wrong, wrong, tmp_path) as second:
        held = second(case)
        due, before = held.steps[2].expect, case.steps[2].expect
        assert compare(case, prober(first.driver), second).verdict == Verdict.PASS
    assert prober(first.driver)(case).verdict == Verdict.FAIL
    assert isinstance(due, Returns)
    assert isinstance(before, Returns)
    assert due.outputs[0].value.max() == 6
    assert np.array_equal(due.outputs[0].required, 2 * before.outputs[0].required)


def test_both_are_in_processes_of_their_own(session: Any, tmp_path: Path) -> None:
    first = session(UNINITIALIZED)
    with against(UNINITIALIZED, f"{UNINITIALIZED},how=before", tmp_path, in_process=False) as second:
        pids = {first.driver._running().pid, second.driver._running().pid}  # type: ignore[attr-defined]
        assert len(pids) == 2
        probe = prober(first.driver)
        assert compare(addition(2, 3), probe, second).verdict == Verdict.PASS
        assert compare(addition(2, 3, seed=5), probe, second).verdict == Verdict.FAIL
        found = compare(addition(5, 3), probe, second)  # of another shape than what it gave before
        assert (found.verdict, second.second in found.message) == (Verdict.FLAKY, True)


def test_what_the_other_driver_does_not_do_is_not_applicable(session: Any, tmp_path: Path) -> None:
    first = session("reference", in_process=True)
    with against("reference", UNINITIALIZED, tmp_path) as second:
        found = compare(convolution_and_relu(), prober(first.driver), second)
        assert (found.verdict, found.stage) == (Verdict.NOT_APPLICABLE, "make")
        assert found.message.startswith(f"{UNINITIALIZED}, against which it is held, does not support it: ")
        record = first.check_number(Batch(ORIGIN, (0,), lambda n: second(convolution_and_relu())), 0)
        assert record.verdict == "NOT_APPLICABLE"
    with against("reference", "reference,level=1", tmp_path) as second:
        case = next(case for case in cases() if case.level > FL1)
        assert "is of 1.0" in compare(case, prober(first.driver), second).message


def test_a_failure_of_the_other_driver_is_told(session: Any, tmp_path: Path) -> None:
    first = session(UNINITIALIZED)
    name = f"{UNINITIALIZED}:RefusingDriver"
    with against(UNINITIALIZED, name, tmp_path) as second:
        with pytest.raises(SettledError):
            second(addition(2, 3))
        record = first.check_number(Batch(ORIGIN, (0,), lambda n: second(addition(2, 3))), 0)
    assert (record.verdict, record.cause, record.stage) == ("FAIL", "STATUS", "prepare")
    assert record.message.startswith(
        f"{name}, against which {UNINITIALIZED} is held: prepare of a valid model answered "
    )


def test_a_driver_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="driver 'nobody' not found"):
        Against("reference", "nobody", tmp_path / "log")


# --- all of them ------------------------------------------------------------------------------------------------------


def test_oracles_by_name(session: Any) -> None:
    assert set(ORACLES) == {"reference", "equal", "fresh"}
    case = convolution_and_relu()
    assert ORACLES["reference"](case) is case
    first = session("reference", in_process=True)
    for oracle in ORACLES.values():
        assert judge_by(oracle, prober(first.driver))(case).verdict == Verdict.PASS


def test_a_failure_by_an_oracle_is_minimised(session: Any) -> None:
    """What is beside the two operations that are done in one goes away."""
    chain = Chain()
    bias = Argument(F32, (2,), value=np.zeros(2, np.float32))
    x = chain.input(real(2, 4, 4, 3, low=0))
    [y] = chain.apply(Op.CONV_2D, input=x, filter=real(2, 1, 1, 3, low=0, seed=1), bias=bias, padding_scheme=VALID,
                      stride_w=ONE, stride_h=ONE, activation=NONE)  # fmt: skip
    [z] = chain.apply(Op.RELU, input=y)
    chain.end(Op.TANH, input=chain.apply(Op.ABS, input=x)[0])
    chain.end(Op.SQRT, input=z)
    first = session(f"{__file__}:WronglyFusing", in_process=True)
    fails = judge_by(equal, prober(first.driver))
    for number in range(40):
        case = replace(case_of(chain), origin=replace(ORIGIN, number=number))
        if fails(case).verdict == Verdict.FAIL:
            break
    found = minimize(case, fails)
    assert [o.type for o in found.case.models[0].main.operations] == [Op.CONV_2D, Op.RELU]
    assert found.judgement.cause == Cause.INCONSISTENT


def test_every_rewrite_is_drawn() -> None:
    done: set[str] = set()
    for number, case in enumerate(cases()):
        model, inputs = graph_of(case)
        for seed in range(15):
            done |= {each.name for each in rewrite_at_random(model, inputs, f"{number}/{seed}", case.level, 3)[1]}
    rare = {"constants_joined", "constants_folded", "rows_alone"}  # few drawn graphs have a place for them
    assert set(REWRITES) - rare <= done <= set(REWRITES)
