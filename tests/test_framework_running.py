"""Executions through the framework: parts in order, the CPU where a device fails, deadlines, every way of running."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from framework import EventKind
from nnhal.device import (
    DEFAULT_COMPILATION,
    CompilationConfig,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    OutputShape,
    PreparedModel,
    Timing,
)
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError
from nnhal.fences import SharedFence
from nnhal.model import Model, RequestArgument
from nnhal.types import ErrorStatus
from nnhal.types import OperationType as Op
from tests.framework_devices import (
    BYTES,
    FAR,
    Some,
    Together,
    due,
    failure,
    network,
    output,
    prepared,
    ramp,
    request_for,
    two_parts,
    until_past,
)

A, B = Op.ABS, Op.FLOOR
MEASURED = ExecutionConfig(measure_timing=True)


# ---- parts


def test_parts_run_in_order_with_memory_between_them() -> None:
    # (a + b), abs, floor, product of the two last, of which one went past a part.
    model = network(2, (Op.ADD, (0, 1)), (A, (2,)), (B, (3,)), (Op.MUL, (3, 4)), outputs=(3,))
    two = Together(Some((Op.ADD, A)), Some((B, Op.MUL)))
    request = request_for([ramp(), ramp(start=0.7)], [BYTES, BYTES])
    result = prepared(two, model).execute_synchronously(request)
    middle = np.abs(ramp() + ramp(start=0.7))
    np.testing.assert_array_equal(output(request, 0), middle)
    np.testing.assert_array_equal(output(request, 1), (middle * np.floor(middle)).astype(np.float32))
    assert result == ExecutionResult((OutputShape((2, 3)), OutputShape((2, 3))))
    assert two.kinds() == []


# The larger shape is more than is guessed at first.
@pytest.mark.parametrize(
    ("shape", "inside"),
    [((2, 3), (0, 0)), ((2, 3), ()), ((2, 3), (2, 0)), ((40, 50), (0, 0)), ((40, 50), ()), ((40, 50), (40, 0))],
)
def test_sizes_that_nobody_knows_beforehand_are_found_under_way(
    shape: tuple[int, ...], inside: tuple[int, ...]
) -> None:
    model = network(1, (A, (0,)), (B, (1,)), (A, (2,)), shape=shape, inside=inside)
    two = Together(Some((A,)), Some((B,)))
    request = request_for([ramp(shape)], [4 * int(np.prod(shape))])
    result = prepared(two, model).execute_synchronously(request)
    assert result.output_shapes == (OutputShape(shape),)
    np.testing.assert_array_equal(output(request, 0, shape), due(ramp(shape)))


def test_a_short_output_in_the_middle_tells_the_size_of_all() -> None:
    # Both results come out, the first has 4 bytes too little room.
    model = network(1, (A, (0,)), (B, (1,)), outputs=(1,), inside=(0, 0))
    two = Together(Some((A,)), Some((B,)))
    compiled = prepared(two, model)
    result = compiled.execute_synchronously(request_for([ramp()], [BYTES - 4, BYTES]))
    assert result == ExecutionResult((OutputShape((2, 3), False), OutputShape((2, 3))), output_sufficient_size=False)
    both = compiled.execute_synchronously(request_for([ramp()], [4, 4]), MEASURED)
    assert both == ExecutionResult((OutputShape((2, 3), False),) * 2, output_sufficient_size=False)
    request = request_for([ramp()], [BYTES, BYTES])
    assert compiled.execute_synchronously(request).output_sufficient_size
    np.testing.assert_array_equal(output(request, 1), due(ramp()))


def test_a_result_without_elements_between_parts_is_the_cpus() -> None:
    class Emptied(Some):
        def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
            inner = super().prepare_model(model, config)
            inner.execute_synchronously = lambda *_: ExecutionResult((OutputShape((0, 3)),))  # type: ignore[method-assign]
            return inner

    two = Together(Emptied((A,)), Some((B,)))
    model = network(1, (A, (0,)), (B, (1,)), inside=(0, 3))
    request = request_for([ramp()], [BYTES])
    assert prepared(two, model).execute_synchronously(request).output_shapes == (OutputShape((2, 3)),)
    assert two.kinds() == [EventKind.BEYOND_PARTS]
    assert two.events[-1].text == (
        "behind a, operand 1 came out with dimensions [0, 3]: no part can take it in; the CPU ran the whole model"
    )
    np.testing.assert_array_equal(output(request, 0), due(ramp()))


def test_inputs_may_be_omitted_where_a_part_reads_them() -> None:
    model = network(2, (A, (0,)), (B, (2,)))  # input 1 is read by nobody
    two = Together(Some((A,)), Some((B,)))
    request = request_for([ramp(), ramp()], [BYTES])
    omitted = replace(request, inputs=(request.inputs[0], RequestArgument(has_no_value=True)))
    prepared(two, model).execute_synchronously(omitted)
    np.testing.assert_array_equal(output(omitted, 0), due(ramp()))


def test_many_executions_at_once_have_memory_of_their_own() -> None:
    count = 6
    gate = threading.Barrier(count)
    two = Together(Some((A,), during=lambda: gate.wait(20)), Some((B,), during=lambda: gate.wait(20)))
    compiled = prepared(two, two_parts())
    requests = [request_for([ramp(start=float(n))], [BYTES]) for n in range(count)]
    threads = [threading.Thread(target=compiled.execute_synchronously, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, request in enumerate(requests):
        np.testing.assert_array_equal(output(request, 0), due(ramp(start=float(number))))


def test_a_write_outside_of_its_places_between_parts_is_reported() -> None:
    two = Together(Some((A,), spill=3), Some((B,)))
    request = request_for([ramp()], [BYTES])
    prepared(two, two_parts()).execute_synchronously(request)
    assert [event.text for event in two.events if event.kind == EventKind.OVERRUN] == [
        "a: 3 bytes written outside, the first 1 bytes behind operand 1"
    ]
    np.testing.assert_array_equal(output(request, 0), due(ramp()))


def test_closing_lets_every_part_go_and_a_failed_preparation_too() -> None:
    first, second = Some((A,)), Some((B,))
    prepared(Together(first, second), two_parts()).close()
    assert (first.closed, second.closed) == (1, 1)
    first, second = Some((A,)), Some((B,), raises={"prepare": failure()})
    prepared(Together(first, second), two_parts()).close()
    assert (first.closed, second.closed) == (1, 0)


def test_times_are_added_up_and_not_measured_where_one_part_does_not() -> None:
    first, second = Some((A,), timing=Timing(3, 5)), Some((B,), timing=Timing(10, 20))
    compiled = prepared(Together(first, second), two_parts())
    request = request_for([ramp()], [BYTES])
    assert compiled.execute_synchronously(request, MEASURED).timing == Timing(13, 25)
    assert compiled.execute_synchronously(request).timing == Timing()
    second.timing = Timing(None, 20)
    assert compiled.execute_synchronously(request, MEASURED).timing == Timing(None, 25)


# ---- the CPU takes over


def test_a_part_that_is_not_prepared_sends_the_whole_model_to_the_cpu() -> None:
    two = Together(Some((A,)), Some((B,), raises={"prepare": failure(ErrorStatus.INVALID_ARGUMENT)}))
    assert two.parts(two_parts()) == [("cpu", (0, 1))]
    assert two.kinds() == [EventKind.PREPARATION_FELL_BACK]
    assert two.events[0].text == (
        "b claimed its part and answered INVALID_ARGUMENT: so the test wants it when it was to prepare it; "
        "the CPU has it all"
    )
    assert str(two.events[0].plan) == "a: 0, then b: 1"
    alone = Together(Some((A,)), Some((B,), raises={"prepare": failure()}), cpu=False)
    with pytest.raises(DriverError, match="GENERAL_FAILURE: so the test wants it"):
        prepared(alone, two_parts())


FELL_BACK = (
    ErrorStatus.GENERAL_FAILURE, ErrorStatus.DEVICE_UNAVAILABLE, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
    ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT,
)  # fmt: skip
HANDED_ON = (
    ErrorStatus.INVALID_ARGUMENT, ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT,
)  # fmt: skip


@pytest.mark.parametrize("codes", [(A,), (A, B)])
@pytest.mark.parametrize("status", FELL_BACK)
def test_an_execution_that_fails_is_run_by_the_cpu(status: ErrorStatus, codes: tuple[int, ...]) -> None:
    device = Some(codes, raises={"execute": failure(status)})
    one = Together(device)
    compiled = prepared(one, two_parts())
    request = request_for([ramp()], [BYTES])
    assert compiled.execute_synchronously(request).output_sufficient_size
    np.testing.assert_array_equal(output(request, 0), due(ramp()))
    assert one.kinds() == [EventKind.EXECUTION_FELL_BACK]
    assert one.events[-1].text == f"a answered {failure(status)} to an execution; the CPU ran the whole model"
    device.raises.clear()  # for one execution only
    compiled.execute_synchronously(request)
    assert len(device.runs) == 2
    assert len(one.kinds()) == 1


@pytest.mark.parametrize("codes", [(A,), (A, B)])
@pytest.mark.parametrize("status", HANDED_ON)
def test_what_is_the_clients_to_know_is_handed_on(status: ErrorStatus, codes: tuple[int, ...]) -> None:
    one = Together(Some(codes, raises={"execute": failure(status)}))
    with pytest.raises(DriverError, match="so the test wants it") as caught:
        prepared(one, two_parts()).execute_synchronously(request_for([ramp()], [BYTES]))
    assert caught.value.status == status
    assert one.kinds() == []


def test_what_the_cpu_refuses_too_was_not_hidden() -> None:
    one = Together(Some((A, B), raises={"execute": failure()}))
    assert one.cpu is not None
    one.cpu.raises["execute"] = failure(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    with pytest.raises(DriverError) as caught:
        prepared(one, two_parts()).execute_synchronously(request_for([ramp()], [BYTES]))
    assert caught.value.status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT  # the CPU's, which has the last word
    assert one.kinds() == []


def test_without_a_cpu_the_devices_error_is_the_answer() -> None:
    alone = Together(Some((A, B), raises={"execute": failure()}), cpu=False)
    with pytest.raises(DriverError, match="GENERAL_FAILURE: so the test wants it"):
        prepared(alone, two_parts()).execute_synchronously(request_for([ramp()], [BYTES]))


def test_a_bad_request_reaches_no_device() -> None:
    device = Some((A, B))
    bad = replace(request_for([ramp()], [BYTES]), inputs=())
    with pytest.raises(DriverError) as caught:
        prepared(Together(device), two_parts()).execute_synchronously(bad)
    assert caught.value.status == ErrorStatus.INVALID_ARGUMENT
    assert device.runs == []


# ---- devices that die


@pytest.mark.parametrize(
    ("raised", "type_of", "words"),
    [
        (DriverDied("killed by SIGABRT"), DriverDied, r"\(a\) killed by SIGABRT"),
        (DriverTimedOut(3.0), DriverTimedOut, "no answer within 3 s"),
        (UncleanError("KeyError", "7"), UncleanError, r"KeyError: 7 \(device a\)"),
        (KeyError(7), UncleanError, r"KeyError: 7 \(device a\)"),
    ],
)
@pytest.mark.parametrize("stage", ["query", "prepare", "execute"])
def test_a_death_is_never_covered_up(raised: Exception, type_of: type[Exception], words: str, stage: str) -> None:
    one = Together(Some((A,), raises={stage: raised}))
    with pytest.raises(type_of, match=words):
        prepared(one, two_parts()).execute_synchronously(request_for([ramp()], [BYTES]))
    assert one.kinds() == [EventKind.LOST]


def test_a_death_of_the_cpu_is_the_suites() -> None:
    one = Together(Some((A,)))
    assert one.cpu is not None
    one.cpu.raises["execute"] = DriverDied("killed by SIGABRT")
    with pytest.raises(SuiteError, match="the CPU of the framework failed: DriverDied: killed by SIGABRT"):
        prepared(one, two_parts()).execute_synchronously(request_for([ramp()], [BYTES]))


def test_a_death_in_a_thread_reaches_whoever_waits() -> None:
    one = Together(Some((A,), raises={"execute": DriverDied("killed by SIGABRT")}))
    compiled, callback = prepared(one, two_parts()), ExecutionCallback()
    compiled.execute(request_for([ramp()], [BYTES]), callback)
    assert callback.wait(20) == (ErrorStatus.GENERAL_FAILURE, ExecutionResult())
    with pytest.raises(DriverDied, match="killed by SIGABRT"):
        one.framework.raise_lost()
    one.framework.raise_lost()  # once
    first = SharedFence.create()
    fence, report = compiled.execute_fenced(request_for([ramp()], [BYTES]), [first])
    assert fence is not None
    first.signal()
    with pytest.raises(DriverError):
        fence.wait(20_000_000_000)
    with pytest.raises(DriverDied, match="killed by SIGABRT"):
        report()


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (ExecutionResult((OutputShape((2, 3)),) * 2), "2 output shapes for 1 outputs"),
        (ExecutionResult((OutputShape((3, 2)),)), r"output 0 of dimensions \[3, 2\] where \[2, 3\] are known"),
        (ExecutionResult((), output_sufficient_size=False), "OUTPUT_INSUFFICIENT_SIZE and 0 shapes for 1 outputs"),
        (ExecutionResult((OutputShape((2, 3)),), output_sufficient_size=False), "no output that is marked"),
        (ExecutionResult((OutputShape((2, 3), False),), output_sufficient_size=False), "whose size is known"),
    ],
)
def test_a_senseless_answer_between_parts_is_the_devices_fault(result: ExecutionResult, words: str) -> None:
    class Odd(Some):
        def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
            inner = super().prepare_model(model, config)
            inner.execute_synchronously = lambda *_: result  # type: ignore[method-assign]
            return inner

    two = Together(Odd((A,)), Some((B,)))
    with pytest.raises(UncleanError, match=words):
        prepared(two, two_parts()).execute_synchronously(request_for([ramp()], [BYTES]))


# ---- deadlines


def test_a_deadline_that_passes_between_parts_ends_the_execution() -> None:
    deadline = time.monotonic_ns() + 20_000_000
    first, second = Some((A,), during=lambda: until_past(deadline)), Some((B,))
    compiled = prepared(Together(first, second), two_parts())
    with pytest.raises(DriverError) as caught:
        compiled.execute_synchronously(request_for([ramp()], [BYTES]), deadline=deadline)
    assert caught.value.status == ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert second.runs == []


def test_a_deadline_past_at_the_start_reaches_no_device() -> None:
    device = Some((A,))
    one = Together(device)
    with pytest.raises(DriverError) as caught:
        prepared(one, two_parts(), CompilationConfig(deadline=1))
    assert caught.value.status == ErrorStatus.MISSED_DEADLINE_PERSISTENT
    assert device.models == []
    compiled = prepared(one, two_parts())
    with pytest.raises(DriverError) as caught:
        compiled.execute_synchronously(request_for([ramp()], [BYTES]), deadline=1)
    assert caught.value.status == ErrorStatus.MISSED_DEADLINE_PERSISTENT
    assert device.runs == []


def test_a_missed_deadline_of_a_preparation_is_no_reason_for_the_cpu() -> None:
    one = Together(Some((A,), raises={"prepare": failure(ErrorStatus.MISSED_DEADLINE_TRANSIENT)}))
    with pytest.raises(DriverError) as caught:
        prepared(one, two_parts(), CompilationConfig(deadline=FAR))
    assert caught.value.status == ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert one.kinds() == []


def test_deadline_and_settings_are_handed_on_as_far_as_each_level_knows_them() -> None:
    config = ExecutionConfig(True, 5_000_000, ((1, b"x"),))
    seen = {}
    for level in (3, 4, 8):
        device = Some((B,), at=level)
        prepared(Together(device), two_parts()).execute_synchronously(request_for([ramp()], [BYTES]), config, FAR)
        ((_, seen[level], deadline),) = device.runs
        assert deadline == (FAR if level >= 4 else None)
    assert seen == {3: ExecutionConfig(True), 4: ExecutionConfig(True, 5_000_000), 8: config}
