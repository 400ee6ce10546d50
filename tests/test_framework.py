"""The framework: naming, cost, partitions written by hand, parts as models, older levels, drawings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from framework import EventKind, Framework, NoDeviceError, discover, installed_candidates, unique_names
from framework.submodel import cut
from nnhal.capabilities import operand_performance
from nnhal.device import Capabilities, CompilationConfig, Device, PerformanceInfo
from nnhal.errors import DriverDied, DriverError, UncleanError
from nnhal.memory import SharedMemory
from nnhal.model import DataLocation, Model, Operand, constant_bytes
from nnhal.types import FL1, FL3, FL8, ErrorStatus, ExecutionPreference, OperandLifeTime, OperandType, Priority
from nnhal.types import OperationType as Op
from nnhal.validate import violations
from reference_driver import ReferenceDevice
from tests.framework_devices import Some, Together, failure, network
from tests.light_driver import LightDriver
from tests.small_models import branching, looping

FAST, SLOW = PerformanceInfo(0.5, 2.0), PerformanceInfo(2.0, 0.5)
A, B, C = Op.ABS, Op.FLOOR, Op.NEG


# ---- discovery and names


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (["x", "y"], ("x", "y")),
        (["x", "x", "x"], ("x", "x#2", "x#3")),
        (["x", "x", "x#2"], ("x", "x#3", "x#2")),
        (["cpu"], ("cpu#2",)),
    ],
)
def test_names_are_unique_and_none_is_the_cpus(wanted: list[str], names: tuple[str, ...]) -> None:
    assert unique_names(wanted, taken=("cpu",)) == names


class Speechless(LightDriver):
    def get_version_string(self) -> str:
        raise ValueError("no version")


class Offline(LightDriver):
    def get_capabilities(self) -> Capabilities:
        raise failure(ErrorStatus.DEVICE_UNAVAILABLE)


def dead() -> Device:
    raise DriverDied("killed by SIGSEGV")


def test_a_driver_that_does_not_answer_is_left_out_with_a_message() -> None:
    events = []
    found = discover([("good", LightDriver), ("bad", Speechless()), ("gone", Offline()), ("dead", dead)], events.append)
    assert [member.name for member in found.members] == ["good"]
    assert [(out.name, out.reason) for out in found.left_out] == [
        ("bad", "ValueError: no version"),
        ("gone", "DEVICE_UNAVAILABLE: so the test wants it"),
        ("dead", "DriverDied: killed by SIGSEGV"),
    ]
    assert events[0].text == "device bad is left out: ValueError: no version"
    with pytest.raises(NoDeviceError, match="no device is left: bad: ValueError: no version"):
        Framework([("bad", Speechless())])


def test_every_installed_driver_is_a_candidate_and_none_is_loaded_before() -> None:
    names = [name for name, made in installed_candidates() if callable(made)]
    assert "reference" in names
    assert "litert" in names


def test_the_framework_says_what_it_is_made_of() -> None:
    first = Some((A,), capabilities=Capabilities(operand_performance(None, {OperandType.TENSOR_FLOAT32: FAST})))
    framework = Framework([("x", first), ("x", LightDriver())], ReferenceDevice())
    assert [member.name for member in framework.members] == ["x", "x#2", "cpu"]
    assert framework.get_version_string() == (
        "framework of x (nncts-reference-0.1.0-float64-natural), x#2 (0), cpu (nncts-reference-0.1.0-float64-natural)"
    )
    told = {e.type: e.info for e in framework.get_capabilities().operand_performance}
    assert told[OperandType.TENSOR_FLOAT32] == PerformanceInfo(0.5, 1.0)
    assert told[OperandType.TENSOR_INT32] == PerformanceInfo(1.0, 1.0)
    old = Framework([("old", ReferenceDevice(level="4"))], ReferenceDevice())
    assert OperandType.OEM not in [e.type for e in old.get_capabilities().operand_performance]  # its level has none


# ---- which device


def test_the_smaller_time_wins_and_the_smaller_power_where_the_client_prefers_it() -> None:
    model = network(1, (A, (0,)))
    both = Together(Some((A,), cost=2.0, power=0.5), Some((A,), cost=0.5, power=2.0))
    assert both.parts(model) == [("b", (0,))]
    assert both.parts(model, CompilationConfig(ExecutionPreference.LOW_POWER)) == [("a", (0,))]
    assert both.parts(model, CompilationConfig(ExecutionPreference.SUSTAINED_SPEED)) == [("b", (0,))]


def test_of_equal_devices_the_first_one_gets_it_and_the_cpu_only_what_nobody_has() -> None:
    both = Together(Some((A,), cost=9.0), Some((A, B), cost=9.0))
    assert both.parts(network(1, (A, (0,)), (C, (1,)), (B, (2,)))) == [("a", (0,)), ("cpu", (1,)), ("b", (2,))]


def test_cost_goes_by_the_type_of_the_first_input() -> None:
    floats = Capabilities(operand_performance(SLOW, {OperandType.TENSOR_FLOAT32: FAST}))
    others = Capabilities(operand_performance(FAST, {OperandType.TENSOR_FLOAT32: SLOW}))
    both = Together(Some((A,), capabilities=others), Some((A,), capabilities=floats))
    assert both.parts(network(1, (A, (0,)))) == [("b", (0,))]
    assert both.parts(network(1, (A, (0,)), kind=OperandType.TENSOR_INT32)) == [("a", (0,))]


def test_relaxed_models_and_control_flow_have_figures_of_their_own() -> None:
    plain = operand_performance(FAST)
    first = Capabilities(plain, FAST, SLOW, FAST, SLOW)
    second = Capabilities(plain, SLOW, FAST, SLOW, FAST)
    flow = (A, Op.IF, Op.WHILE)
    both = Together(Some(flow, capabilities=first), Some(flow, capabilities=second))
    assert both.parts(network(1, (A, (0,)))) == [("a", (0,))]
    relaxed = replace(network(1, (A, (0,))), relax_computation_float32_to_float16=True)
    assert both.parts(relaxed) == [("b", (0,))]
    assert both.parts(branching()) == [("a", (0,))]
    assert both.parts(looping()) == [("b", (0,))]


# ---- which parts


def split(model: Model, *codes: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    return Together(*(Some(own) for own in codes)).parts(model)


def test_a_chain_is_cut_where_the_device_changes() -> None:
    chain = network(1, (A, (0,)), (A, (1,)), (B, (2,)), (A, (3,)))
    assert split(chain, (A,), (B,)) == [("a", (0, 1)), ("b", (2,)), ("a", (3,))]


def test_what_does_not_depend_on_each_other_goes_together() -> None:
    # 0 and 2 run on a, 1 and 3 on b, none needs another.
    assert split(network(1, (A, (0,)), (B, (0,)), (A, (0,)), (B, (0,))), (A,), (B,)) == [
        ("a", (0, 2)),
        ("b", (1, 3)),
    ]


def test_the_order_with_fewest_parts_is_taken_whatever_comes_first() -> None:
    # Begun with operation 0, three parts; begun with 1, what 2 needs is there when a has its turn.
    assert split(network(1, (A, (0,)), (B, (0,)), (A, (2,))), (A,), (B,)) == [("b", (1,)), ("a", (0, 2))]


def test_three_devices_take_turns_as_seldom_as_they_can() -> None:
    # a has 0 and 4, b 1 and 3, c 2; 1 needs 0, 3 needs 2, 4 needs 3. So c has to come before b, or b comes twice.
    model = network(1, (A, (0,)), (B, (1,)), (C, (0,)), (B, (3,)), (A, (4,)))
    parts = split(model, (A,), (B,), (C,))
    assert len(parts) == 4
    assert [name for name, _ in parts].count("b") == 1
    assert parts[-1] == ("a", (4,))


def test_operations_of_one_device_are_one_part_and_the_model_goes_as_it_is() -> None:
    model, device = network(2, (Op.ADD, (0, 1)), (A, (2,))), Some((Op.ADD, A))
    assert Together(device).parts(model) == [("a", (0, 1))]
    assert device.models[0] is model


def test_hundreds_of_operations_are_parted_too() -> None:
    # Two chains side by side, one device after the other in each: 100 turns of each device are enough.
    steps = []
    for turn in range(100):
        steps += [(A, (max(2 * turn - 1, 0),)), (B, (max(2 * turn, 0),))] if turn else [(A, (0,)), (B, (0,))]
    parts = split(network(1, *steps), (A,), (B,))
    assert sorted(number for _, numbers in parts for number in numbers) == list(range(200))
    done: set[int] = {0}
    for _, numbers in parts:
        for number in numbers:
            assert set(steps[number][1]) <= done
            done.add(number + 1)


# ---- support


def test_support_is_that_of_any_device() -> None:
    model = network(1, (A, (0,)), (B, (1,)), (C, (2,)))
    assert Together(Some((A,)), Some((C,)), cpu=False).framework.get_supported_operations(model) == [True, False, True]
    assert all(Together(Some((A,)), Some((C,))).framework.get_supported_operations(model))
    with pytest.raises(DriverError, match="no device runs operation 1"):
        Together(Some((A,)), Some((C,)), cpu=False).framework.prepare_model(model)


def test_reasons_are_those_of_all_devices() -> None:
    framework = Together(Some((A,), reason="too hot"), Some((), reason=None), cpu=False).framework
    assert framework.explain_unsupported(network(1, (A, (0,)), (B, (1,)))) == [None, "a: too hot; b: no reason"]


def test_a_claim_that_a_part_does_not_bear_out_is_taken_back() -> None:
    def whole_only(model: Model) -> list[bool]:
        return [o.type in (A, B) for o in model.main.operations] if len(model.main.operations) == 4 else [False]

    two = Together(Some((A, B), claims=whole_only), Some((A,), cost=5.0))
    assert two.parts(network(1, (A, (0,)), (C, (1,)), (A, (2,)), (C, (3,)))) == [
        ("b", (0,)), ("cpu", (1,)), ("b", (2,)), ("cpu", (3,)),
    ]  # fmt: skip
    assert two.kinds() == [EventKind.UNCLAIMED] * 2
    assert two.events[0].text == (
        "a claimed operation 0 in the whole model, and not in a part: it does not claim the part that was made for it"
    )


def test_a_part_refused_whole_is_asked_about_operation_by_operation() -> None:
    def no_b(model: Model) -> list[bool]:
        codes = [o.type for o in model.main.operations]
        return [code in (A, B) for code in codes] if C in codes else [B not in codes] * len(codes)

    one = Together(Some((A, B), claims=no_b))
    assert one.parts(network(1, (A, (0,)), (B, (1,)), (C, (2,)))) == [("a", (0,)), ("cpu", (1, 2))]


def test_a_refused_support_query_leaves_the_device_aside_and_is_reported() -> None:
    one = Together(Some((A,), raises={"query": failure()}))
    assert one.parts(network(1, (A, (0,)))) == [("cpu", (0,))]
    assert one.kinds() == [EventKind.QUERY_REFUSED]


def test_a_support_query_of_the_wrong_length_is_the_devices_fault() -> None:
    one = Together(Some((A,), claims=lambda model: [True, True]))
    with pytest.raises(UncleanError, match=r"2 booleans for 1 operations \(device a\)"):
        one.framework.get_supported_operations(network(1, (A, (0,))))
    assert one.kinds() == [EventKind.LOST]


def test_an_invalid_model_is_refused_before_a_device_sees_it() -> None:
    device, model = Some((A,)), network(1, (A, (0,)))
    bad = replace(model, main=replace(model.main, output_indexes=(0,)))
    framework = Together(device).framework
    for method in (framework.get_supported_operations, framework.prepare_model):
        with pytest.raises(DriverError) as caught:
            method(bad)
        assert caught.value.status == ErrorStatus.INVALID_ARGUMENT
    assert device.queried == device.models == []


# ---- parts as models


def test_a_part_is_valid_and_has_the_lifetimes_of_its_own() -> None:
    # 0: a+b, 1: abs of it, 2: floor of that, 3: abs + floor; the part is 1 and 3, 2 stands between them.
    model = network(2, (Op.ADD, (0, 1)), (A, (2,)), (B, (3,)), (Op.MUL, (3, 4)), outputs=(3,))
    part = cut(model, [1, 3])
    assert part.inputs == (2, 4)
    assert part.outputs == (3, 5)
    assert violations(part.model, FL8) == []
    assert violations(part.model, FL3) == []  # numbers of consumers are those of the part
    lifetimes = [operand.lifetime.name for operand in part.model.main.operands]
    assert lifetimes == [
        "SUBGRAPH_INPUT", "SUBGRAPH_OUTPUT", "SUBGRAPH_INPUT", "SUBGRAPH_OUTPUT", "CONSTANT_COPY",
    ]  # fmt: skip
    inside = cut(network(1, (A, (0,)), (A, (1,)), (A, (2,))), [0, 1])
    assert [operand.lifetime.name for operand in inside.model.main.operands] == [
        "SUBGRAPH_INPUT", "TEMPORARY_VARIABLE", "SUBGRAPH_OUTPUT",
    ]  # fmt: skip


def test_inputs_of_a_part_come_in_the_clients_order_and_then_what_other_parts_made() -> None:
    model = network(3, (A, (0,)), (Op.ADD, (3, 2)), (Op.ADD, (4, 1)))
    main = replace(model.main, input_indexes=(2, 0, 1))
    assert cut(replace(model, main=main), [1, 2]).inputs == (2, 1, 3)


def test_a_part_that_nobody_needs_has_outputs_all_the_same() -> None:
    model = network(1, (A, (0,)), (B, (0,)))
    operands = list(model.main.operands)
    operands[2] = replace(operands[2], lifetime=OperandLifeTime.TEMPORARY_VARIABLE)
    unread = replace(model, main=replace(model.main, operands=tuple(operands), output_indexes=(1,)))
    assert violations(unread, FL8) == []
    assert cut(unread, [1]).outputs == (2,)


def test_constants_and_pools_go_with_the_part_that_needs_them_and_with_no_other() -> None:
    model = network(1, (Op.ADD, (0, 0)), (Op.MUL, (1, 1)))
    pools = (SharedMemory.create(8), SharedMemory.create(16))
    pools[1].view()[8:12] = (3).to_bytes(4, "little")
    second = Operand(OperandType.INT32, lifetime=OperandLifeTime.CONSTANT_REFERENCE, location=DataLocation(1, 8, 4))
    steps = (model.main.operations[0], replace(model.main.operations[1], inputs=(1, 1, 4)))
    main = replace(model.main, operands=(*model.main.operands, second), operations=steps)
    whole = replace(model, main=main, pools=pools, operand_values=bytes([9, 9, 9, 9, 2, 0, 0, 0]))
    first_part, second_part = cut(whole, [0]).model, cut(whole, [1]).model
    assert (first_part.operand_values, first_part.pools) == (bytes([2, 0, 0, 0]), ())
    assert (second_part.operand_values, second_part.pools) == (b"", (pools[1],))
    assert bytes(constant_bytes(second_part, second_part.main.operands[-1])) == bytes([3, 0, 0, 0])


def test_a_branch_stays_whole_with_the_graphs_that_it_runs() -> None:
    model = branching()
    extra = Operand(OperandType.TENSOR_FLOAT32, (2,), lifetime=OperandLifeTime.SUBGRAPH_OUTPUT)
    operands = list(model.main.operands)
    operands[4] = replace(operands[4], lifetime=OperandLifeTime.TEMPORARY_VARIABLE)
    steps = (*model.main.operations, replace(network(1, (A, (0,))).main.operations[0], inputs=(4,), outputs=(5,)))
    main = replace(model.main, operands=(*operands, extra), operations=steps, output_indexes=(5,))
    grown = replace(model, main=main, referenced=(looping().referenced[0], *model.referenced))
    moved = [replace(o, location=DataLocation(offset=o.location.offset + 1)) if o.type == OperandType.SUBGRAPH else o
             for o in grown.main.operands]  # fmt: skip
    whole = replace(grown, main=replace(main, operands=tuple(moved)))
    assert cut(whole, [1]).model.referenced == ()
    part = cut(whole, [0])
    assert part.model.referenced == model.referenced
    assert [o.location.offset for o in part.model.main.operands if o.type == OperandType.SUBGRAPH] == [0, 1]
    assert violations(part.model, FL8) == []


# ---- older levels


def test_a_device_gets_only_what_its_level_knows() -> None:
    # HARD_SWISH came with 1.3, FLOOR with 1.0, ABS with 1.2.
    old = Some((Op.HARD_SWISH, B, A), at=3, cost=0.1)
    two = Together(old, Some((Op.HARD_SWISH,)))
    model = network(1, (B, (0,)), (Op.HARD_SWISH, (1,)), (A, (2,)))
    assert two.parts(model) == [("a", (0,)), ("b", (1,)), ("a", (2,))]
    for seen in (*old.queried, *old.models):
        assert violations(seen, FL3) == []
        assert Op.HARD_SWISH not in [operation.type for operation in seen.main.operations]


def test_a_device_of_the_first_level_counts_consumers_and_computes_exactly() -> None:
    old = Some((B,), at=1)
    model = replace(network(1, (B, (0,)), (B, (1,))), relax_computation_float32_to_float16=True)
    forgotten = tuple(replace(operand, number_of_consumers=0) for operand in model.main.operands)
    client = replace(model, main=replace(model.main, operands=forgotten))  # of level 8, where nobody counts
    config = CompilationConfig(ExecutionPreference.LOW_POWER, Priority.HIGH, 2**62)
    assert Together(old).parts(client, config) == [("a", (0, 1))]
    assert violations(old.models[0], FL1) == []
    assert not old.models[0].relax_computation_float32_to_float16
    assert old.configs == [CompilationConfig()]  # the first level has neither preference, priority nor deadline


def test_levels_without_output_shapes_get_nothing_of_unknown_size() -> None:
    model = network(1, (B, (0,)), (B, (1,)), inside=(0, 3))
    assert Together(Some((B,), at=2)).parts(model) == [("cpu", (0, 1))]
    assert Together(Some((B,), at=3)).parts(model) == [("a", (0, 1))]


def test_settings_are_handed_on_as_far_as_each_level_knows_them() -> None:
    devices = {level: Some((A,), at=level) for level in (3, 4, 8)}
    hints = ((1, b"x"),)
    config = CompilationConfig(ExecutionPreference.LOW_POWER, Priority.LOW, 2**62, compilation_hints=hints)
    for device in devices.values():
        Together(device).parts(network(1, (A, (0,))), config)
    assert devices[3].configs == [CompilationConfig(ExecutionPreference.LOW_POWER)]
    assert devices[4].configs == [CompilationConfig(ExecutionPreference.LOW_POWER, Priority.LOW, 2**62)]
    assert devices[8].configs == [config]


# ---- drawings


def test_a_drawing_shows_which_device_runs_what() -> None:
    two = Together(Some((A,)), Some((B,)))
    two.parts(network(1, (A, (0,)), (B, (1,)), (A, (2,))))
    plan = two.events[-1].plan
    assert plan is not None
    assert str(plan) == "a: 0, then b: 1, then a: 2"
    assert plan.counts == {"a": 2, "b": 1}
    text = plan.to_dot()
    for number, (name, colour) in enumerate([("a", "lightskyblue"), ("b", "palegreen"), ("a", "lightskyblue")]):
        assert f'subgraph cluster_group{number} {{\n    label="part {number}: {name}";' in text
        assert f'main_operation{number} [style=filled, fillcolor="{colour}"];' in text
    assert text.count("{") == text.count("}")


def test_numbers_in_words_put_runs_together() -> None:
    one = Together(Some((A,)))
    one.parts(network(1, *((A, (0,)) for _ in range(4)), (B, (0,)), (A, (0,))))
    assert str(one.events[-1].plan) == "a: 0-3, 5, then cpu: 4"
