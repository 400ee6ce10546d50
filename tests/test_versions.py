"""`nnhal.versions` and the conversion of capabilities: what each level needs, can carry, and loses."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from nnhal.capabilities import (
    EarlyCapabilities,
    capabilities_at,
    capability_problems,
    from_early,
    listed_types,
    operand_performance,
    performance_of,
    to_early,
    uniform,
)
from nnhal.device import UNLISTED, Capabilities, CompilationConfig, ExecutionConfig, OperandPerformance, PerformanceInfo
from nnhal.memory import HardwareBuffer, SharedMemory
from nnhal.model import BufferToken, DataLocation, ExtensionNameAndPrefix, Model, Operand, Subgraph, count_consumers
from nnhal.types import (
    FL1,
    FL2,
    FL3,
    FL4,
    FL5,
    FL6,
    FL8,
    ErrorStatus,
    ExecutionMode,
    ExecutionPreference,
    FeatureLevel,
    OperandType,
    OperationType,
    Priority,
)
from nnhal.validate import violations
from nnhal.versions import (
    LossyConversionWarning,
    Obstacle,
    ResultCode,
    compilation_level,
    compliant_with,
    convert_to,
    execution_level,
    execution_modes,
    from_microseconds,
    from_nanoseconds,
    from_result_code,
    needed_level,
    request_level,
    status_at,
    to_microseconds,
    to_nanoseconds,
    to_result_code,
)
from tests.small_models import (
    F32,
    I32,
    LIFE,
    addition,
    branching,
    channels,
    edit,
    grown,
    in_pool,
    looping,
    main,
    operation,
    request_for,
)

ADD = addition()
F16 = OperandType.TENSOR_FLOAT16
TABLE = (ExtensionNameAndPrefix("com.example", 1),)


@pytest.mark.parametrize(
    ("model", "level"),
    [
        (ADD, FL1),
        (addition(kind=F16), FL3),
        (addition(kind=I32), FL4),
        (addition(()), FL3),
        (addition((0, 3)), FL1),
        (addition(kind=OperandType.TENSOR_QUANT8_ASYMM_SIGNED, scale=0.5), FL4),
        (channels(), FL3),
        (branching(), FL4),
        (looping(), FL4),
        (replace(ADD, extension_name_to_prefix=TABLE), FL3),
        (in_pool(ADD, SharedMemory.create(8)), FL1),
        (in_pool(ADD, HardwareBuffer.allocate(8)), FL3),
        (replace(ADD, relax_computation_float32_to_float16=True), FL1),
        (operation(ADD, 0, type=int(OperationType.OEM_OPERATION)), FL1),
    ],
)
def test_needed_levels(model: Model, level: FeatureLevel) -> None:
    assert needed_level(model) == level
    assert needed_level(replace(model, main=replace(model.main))) == level


def test_consumers_do_not_count_and_invalid_models_have_no_level() -> None:
    assert needed_level(edit(ADD, 0, number_of_consumers=0)) == FL1
    with pytest.raises(ValueError, match="G20"):
        needed_level(grown(ADD, Operand(F32, (2,))))


def mixed() -> Model:
    """Two additions of float32, and one of float16 beside them: operations 0, 1 and 2."""
    first, second = ADD.main, addition(kind=F16).main.operations[0]
    operands = (
        *first.operands,
        Operand(F16, (2, 3), lifetime=LIFE.SUBGRAPH_INPUT),
        Operand(F16, (2, 3), lifetime=LIFE.SUBGRAPH_OUTPUT),
    )
    last = replace(second, inputs=(5, 5, 2), outputs=(6,))
    graph = Subgraph(operands, (*first.operations, last), (0, 1, 5), (4, 6))
    return replace(ADD, main=count_consumers(graph))


def test_only_the_operations_that_fail_are_named() -> None:
    model = mixed()
    assert violations(model, FL3) == []
    assert compliant_with(model, FL3) == []
    found = compliant_with(model, FL2)
    assert [obstacle.operation for obstacle in found] == [2]
    assert "TENSOR_FLOAT16" in found[0].reason
    with pytest.raises(ValueError, match=r"level 1\.1.*TENSOR_FLOAT16"):
        convert_to(model, FL2)


def test_obstacles_of_each_kind() -> None:
    assert [o.operation for o in compliant_with(addition(kind=I32), FL3)] == [0, 1]
    assert [o.operation for o in compliant_with(branching(), FL3)] == [0]
    assert [o.operation for o in compliant_with(addition(()), FL2)] == [0, 1]
    assert [o.operation for o in compliant_with(in_pool(ADD, HardwareBuffer.allocate(8)), FL2)] == [0, 1]
    assert compliant_with(in_pool(ADD, SharedMemory.create(8)), FL1) == []
    assert [o.operation for o in compliant_with(operation(ADD, 1, type=10000), FL5)] == [1]
    unread = main(grown(ADD, Operand(F16, (1,), lifetime=LIFE.SUBGRAPH_INPUT)), input_indexes=(0, 1, 5))
    assert violations(unread, FL3) == []
    assert [o.operation for o in compliant_with(unread, FL2)] == [None]
    wide = replace(ADD, extension_name_to_prefix=(ExtensionNameAndPrefix("com.example", 0x8000),))
    assert [o.operation for o in compliant_with(wide, FL4)] == []
    assert compliant_with(wide, FL5) == [Obstacle(None, "the prefix 32768 is not in 0 to 32767")]


def test_a_newer_operation_inside_a_branch_is_an_obstacle_of_the_operation_that_runs_it() -> None:
    graphs = list(branching().referenced)
    newer = replace(graphs[1], operations=(replace(graphs[1].operations[0], type=106),))
    found = compliant_with(replace(branching(), referenced=(graphs[0], newer)), FL4)
    assert [o.operation for o in found] == [0]
    assert "graph 1" in found[0].reason


def test_conversion_keeps_valid_models_valid_at_the_level() -> None:
    for model in (ADD, addition((0, 3)), channels(), branching(), looping(), mixed(), addition(kind=I32)):
        for level in FeatureLevel:
            if compliant_with(model, level):
                assert level < needed_level(model)
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                converted = convert_to(model, level)
            assert violations(converted, level) == []
            assert converted.main.operations == model.main.operations
            consumers = [o.number_of_consumers for o in converted.main.operands]
            due = [o.number_of_consumers for o in count_consumers(model.main).operands]
            assert consumers == (due if level <= FL4 else [0] * len(due))


def test_what_is_lost_is_said() -> None:
    relaxed = replace(ADD, relax_computation_float32_to_float16=True)
    with pytest.warns(LossyConversionWarning, match=r"level 1\.0 loses .*float16"):
        assert not convert_to(relaxed, FL1).relax_computation_float32_to_float16
    assert convert_to(relaxed, FL2).relax_computation_float32_to_float16
    with pytest.warns(LossyConversionWarning, match="extension table"):
        assert convert_to(replace(ADD, extension_name_to_prefix=TABLE), FL2).extension_name_to_prefix == ()
    with pytest.warns(LossyConversionWarning, match="2 referenced graphs"):
        assert convert_to(replace(ADD, referenced=branching().referenced), FL3).referenced == ()
    between = (*ADD.main.operands[:2], Operand(F16, (1,), lifetime=LIFE.NO_VALUE), *ADD.main.operands[2:])
    steps = tuple(
        replace(o, inputs=tuple(i + (i > 1) for i in o.inputs), outputs=tuple(i + 1 for i in o.outputs))
        for o in ADD.main.operations
    )
    unused = replace(ADD, main=count_consumers(Subgraph(between, steps, (0, 1), (5,))))
    assert violations(unused, FL3) == []
    with pytest.warns(LossyConversionWarning, match="1 operands that no operation uses"):
        assert convert_to(unused, FL2).main == ADD.main


def test_an_unused_pool_of_a_newer_kind_is_no_obstacle() -> None:
    model = replace(ADD, pools=(HardwareBuffer.allocate(8),))
    assert violations(convert_to(model, FL2), FL2) == []


def test_levels_of_requests_and_settings() -> None:
    assert request_level(request_for(), ADD) == FL1
    good = request_for()
    given = replace(good, inputs=tuple(replace(a, dimensions=(2, 3)) for a in good.inputs))
    assert request_level(given, addition((0, 3))) == FL3
    assert request_level(replace(good, pools=(*good.pools, BufferToken(1))), ADD) == FL4
    with pytest.raises(ValueError, match="R1"):
        request_level(replace(good, inputs=()), ADD)
    assert compilation_level(CompilationConfig()) == FL1
    assert compilation_level(CompilationConfig(preference=ExecutionPreference.LOW_POWER)) == FL2
    assert compilation_level(CompilationConfig(cache_token=bytes(31) + b"x")) == FL3
    assert compilation_level(CompilationConfig(priority=Priority.HIGH)) == FL4
    assert compilation_level(CompilationConfig(deadline=1)) == FL4
    assert compilation_level(CompilationConfig(compilation_hints=((1, b""),))) == FL8
    assert execution_level(ExecutionConfig()) == FL1
    assert execution_level(ExecutionConfig(measure_timing=True)) == FL3
    assert execution_level(ExecutionConfig(), deadline=1) == FL4
    assert execution_level(ExecutionConfig(loop_timeout_duration=1)) == FL4
    assert execution_level(ExecutionConfig(execution_hints=((1, b""),))) == FL8


def test_execution_modes_of_each_level() -> None:
    mode = ExecutionMode
    assert execution_modes(FL1) == execution_modes(FL2) == {mode.ASYNCHRONOUS}
    assert execution_modes(FL3) == {mode.ASYNCHRONOUS, mode.SYNCHRONOUS, mode.BURST}
    assert execution_modes(FL4) == {mode.ASYNCHRONOUS, mode.SYNCHRONOUS, mode.BURST, mode.FENCED}
    assert execution_modes(FL5) == execution_modes(FL6) == {mode.SYNCHRONOUS, mode.BURST, mode.FENCED}
    assert execution_modes(FL8) == {mode.SYNCHRONOUS, mode.BURST, mode.FENCED, mode.REUSABLE}


def test_statuses_and_result_codes() -> None:
    for status in ErrorStatus:
        due = ErrorStatus.GENERAL_FAILURE if status >= 5 else status
        assert status_at(status, FL3) == due
        assert status_at(status, FL4) == status
        assert from_result_code(to_result_code(status)) == status
    assert from_result_code(ResultCode.UNEXPECTED_NULL) == ErrorStatus.INVALID_ARGUMENT
    assert from_result_code(4) == ErrorStatus.INVALID_ARGUMENT
    for code in (1, 2, 5, 6, 7, 14, 15, -1, 1000):
        assert from_result_code(code) == ErrorStatus.GENERAL_FAILURE
    assert [from_result_code(code) for code in (8, 9, 10, 11, 12, 13)] == [3, 1, 5, 6, 7, 8]


def test_times() -> None:
    assert to_microseconds(None) == 2**64 - 1
    assert to_microseconds(1999) == 1
    assert to_microseconds(0) == 0
    assert from_microseconds(2**64 - 1) is None
    assert from_microseconds(7) == 7000
    assert to_nanoseconds(None) == -1
    assert to_nanoseconds(5) == 5
    assert from_nanoseconds(-1) is None
    assert from_nanoseconds(0) == 0


# --- capabilities -----------------------------------------------------------------------------------------------------

FAST, SLOW = PerformanceInfo(0.25, 0.5), PerformanceInfo(2.0, 3.0)


def test_the_old_form_becomes_the_new_one_and_back() -> None:
    early = EarlyCapabilities(FAST, SLOW, PerformanceInfo(0.125, 0.5))
    modern = from_early(early)
    fast = {entry.type for entry in modern.operand_performance if entry.info == FAST}
    slow = {entry.type for entry in modern.operand_performance if entry.info == SLOW}
    t = OperandType
    assert fast == {t.FLOAT32, t.TENSOR_FLOAT32}
    assert slow == {t.TENSOR_QUANT8_ASYMM, t.INT32, t.UINT32, t.TENSOR_INT32, t.OEM, t.TENSOR_OEM_BYTE}
    assert modern.if_performance == modern.while_performance == UNLISTED
    assert performance_of(modern, t.TENSOR_FLOAT16) == UNLISTED
    assert to_early(modern) == early
    assert capability_problems(modern) == []
    first = EarlyCapabilities(FAST, SLOW)
    assert to_early(from_early(first), FL1) == first


def test_what_the_old_form_cannot_say_is_warned_of() -> None:
    with pytest.warns(LossyConversionWarning, match="operand type"):
        assert to_early(uniform(FAST)) == EarlyCapabilities(FAST, FAST, FAST)
    with pytest.warns(LossyConversionWarning, match=r"1\.2"):
        converted = capabilities_at(uniform(FAST), FL3)
    assert converted.if_performance == UNLISTED
    assert {entry.type for entry in converted.operand_performance} == set(range(14))
    assert capabilities_at(uniform(FAST, FL3), FL3) == uniform(FAST, FL3).__class__(
        tuple(e for e in uniform(FAST, FL3).operand_performance), FAST, FAST
    )
    with pytest.raises(ValueError, match="another form"):
        capabilities_at(uniform(FAST), FL2)


def test_lists_are_sorted_and_whole() -> None:
    assert [int(t) for t in listed_types(FL8)] == list(range(15))
    assert [int(t) for t in listed_types(FL3)] == [*range(14), 10000, 10001]
    listed = operand_performance(SLOW, {OperandType.TENSOR_FLOAT16: FAST})
    assert [entry.type for entry in listed] == sorted(entry.type for entry in listed)
    assert performance_of(Capabilities(listed), OperandType.TENSOR_FLOAT16) == FAST
    assert performance_of(Capabilities(listed), OperandType.TENSOR_FLOAT32) == SLOW
    only = operand_performance(None, {OperandType.TENSOR_INT32: FAST, OperandType.FLOAT32: SLOW})
    assert [entry.type for entry in only] == [OperandType.FLOAT32, OperandType.TENSOR_INT32]


def test_problems_of_capabilities_are_named() -> None:
    assert capability_problems(uniform(FAST)) == []
    assert capability_problems(Capabilities()) == []
    entry = OperandPerformance
    backward = (entry(OperandType.TENSOR_FLOAT32, FAST), entry(OperandType.FLOAT32, FAST))
    assert capability_problems(Capabilities(backward)) == ["the operand types are not sorted"]
    assert capability_problems(Capabilities(backward[1:] * 2)) == ["an operand type is listed twice"]
    assert "SUBGRAPH" in capability_problems(Capabilities((entry(OperandType.SUBGRAPH, FAST),)))[0]
    for bad in (0.0, -1.0, float("nan")):
        found = capability_problems(Capabilities((entry(OperandType.FLOAT32, PerformanceInfo(bad, 1.0)),)))
        assert found == [f"the execution time of operand type FLOAT32 is {bad}, not above 0"]
    assert "power use of WHILE" in capability_problems(Capabilities(while_performance=PerformanceInfo(1.0, 0.0)))[0]
    assert DataLocation() == DataLocation(0, 0, 0, 0)
