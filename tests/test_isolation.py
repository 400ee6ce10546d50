"""A driver in a process of its own: each method through the proxy, each way to fail, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from drivers.faulty import FAULTS
from harness.isolation import IsolatedDriver, find_crash_trace
from harness.process import tagged
from nnhal.device import (
    BufferDesc,
    BufferRole,
    CacheFilesNeeded,
    CompilationConfig,
    ExecutionCallback,
    ExecutionConfig,
    PreparedModel,
    Timing,
)
from nnhal.errors import (
    DriverDied,
    DriverError,
    DriverTimedOut,
    SuiteError,
    UncleanError,
    UsageError,
)
from nnhal.fences import SharedFence
from nnhal.guarded import GuardedMemory
from nnhal.memory import BytesMemory, Memory
from nnhal.model import DataLocation, Request, RequestArgument
from nnhal.types import FL7, DeviceStatus, DeviceType, ErrorStatus
from tests.add_model import EXPECTED, add_model, add_request, output, values

MINIMAL = "tests/minimal_driver.py:DRIVER"
FULL = "tests.full_driver:DRIVER"
ROOT = Path(__file__).parents[1]


@pytest.fixture
def isolate(monkeypatch) -> Iterator[object]:
    monkeypatch.chdir(ROOT)
    running: list[IsolatedDriver] = []

    def start(spec: str, **options: object) -> IsolatedDriver:
        settings: dict[str, object] = {"spare": False, "native_stacks": False, "deadline": 5.0}
        driver = IsolatedDriver(spec, **(settings | options))  # type: ignore[arg-type]
        running.append(driver)
        return driver

    yield start
    for driver in running:
        driver.close()
        assert tagged(driver.tag) == []


def faulty(fault: str, more: str = "") -> str:
    return f"faulty,inner={MINIMAL},fault={fault}{more}"


def prepare(driver: IsolatedDriver) -> PreparedModel:
    return driver.device.prepare_model(add_model())


# ---- the methods


def test_a_case_runs_as_in_process(isolate) -> None:
    driver = isolate(MINIMAL)
    device, model = driver.device, add_model()
    assert device.get_supported_operations(model) == [True]
    for shared in (True, False):
        request = add_request(shared=shared)
        result = device.prepare_model(model).execute_synchronously(request)
        assert result.output_shapes[0].dimensions == (1, 8, 8, 3)
        np.testing.assert_array_equal(output(request), EXPECTED)
        before_output = request.pools[2]
        assert isinstance(before_output, Memory)
        assert bytes(before_output.view()[:64]) == bytes(64)


def test_every_question_to_a_device_is_answered(isolate) -> None:
    device = isolate(FULL).device
    assert device.feature_level == FL7
    assert device.traits.caching
    assert len(device.traits.execution_modes) == 5
    assert device.get_status() == DeviceStatus.BUSY
    assert device.get_type() == DeviceType.ACCELERATOR
    assert device.get_version_string() == "1.0"
    assert device.get_capabilities().operand_performance[0].info.power_usage == 0.25
    assert device.get_supported_extensions()[0].operand_types[0].byte_size == 2
    assert device.get_number_of_cache_files_needed() == CacheFilesNeeded(1, 1)
    assert device.explain_unsupported(add_model()) == ["too hot"]


def test_an_invalid_enumeration_reaches_the_driver(isolate) -> None:
    with pytest.raises(DriverError, match="INVALID_ARGUMENT: priority 17"):
        isolate(FULL).device.prepare_model(add_model(), CompilationConfig(priority=17))  # type: ignore[arg-type]


def test_cache_files_are_the_same_files(isolate, tmp_path) -> None:
    device = isolate(FULL).device
    with open(tmp_path / "model", "w+b") as file:
        config = CompilationConfig(model_cache=(file.fileno(),), cache_token=b"abcd" + bytes(28))
        device.prepare_model(add_model(), config)
        assert (tmp_path / "model").read_bytes() == b"cache of abcd"
        with pytest.raises(DriverError, match=r"\[b'cache of abcd'\] b'ab' 77"):
            device.prepare_model_from_cache([file.fileno()], [], b"ab" + bytes(30), 77)


def test_buffers_are_filled_read_and_refused(isolate) -> None:
    device = isolate(FULL).device
    prepared = device.prepare_model(add_model())
    roles = [BufferRole(0, 0, 0.5)]
    buffer = device.allocate(BufferDesc((1, 2)), [prepared], roles, roles)
    assert buffer.token == 2
    target = BytesMemory(4)
    with pytest.raises(DriverError, match="GENERAL_FAILURE: empty"):
        buffer.copy_to(target)
    buffer.copy_from(BytesMemory(b"abcd"), (1, 4))
    buffer.copy_to(target)
    assert bytes(target.view()) == b"abcd"
    buffer.close()
    with pytest.raises(DriverError, match="somebody else"):
        device.allocate(BufferDesc(), [prepared, _Stranger()], roles, [])


class _Stranger(PreparedModel):
    def execute_synchronously(self, request, config=None, deadline=None):
        raise AssertionError


@pytest.mark.parametrize("shared", [True, False])
def test_asynchronous_execution_notifies_once(isolate, shared) -> None:
    device = isolate(FULL).device
    prepared = device.prepare_model(add_model())
    for _ in range(3):
        request, callback = add_request(shared=shared), ExecutionCallback()
        prepared.execute(request, callback)
        status, result = device.connection.wait_for_callback(callback)
        assert status == ErrorStatus.NONE
        assert result.output_shapes[0].is_sufficient
        np.testing.assert_array_equal(output(request), EXPECTED)
        assert callback.notifications == 1
    request, callback = add_request(shared=shared), ExecutionCallback()
    prepared.execute(request, callback)
    assert callback.wait(5) is not None  # also without asking the connection


def test_a_second_notification_is_seen(isolate) -> None:
    device = isolate(f"{FULL},odd=twice").device
    callback = ExecutionCallback()
    device.prepare_model(add_model()).execute(add_request(), callback)
    device.connection.wait_for_callback(callback)
    for _ in range(250):
        device.connection.check()
        if callback.notifications == 2:
            return
        time.sleep(0.02)
    raise AssertionError("the second notification was not seen")


def test_what_goes_wrong_in_a_callback_has_a_name(isolate) -> None:
    def run(odd: str, driver: IsolatedDriver) -> None:
        callback = ExecutionCallback()
        prepare(driver).execute(add_request(), callback)
        driver.device.connection.wait_for_callback(callback, 0.5)

    with pytest.raises(DriverError, match="no launch"):
        run("refuse_launch", isolate(f"{FULL},odd=refuse_launch"))
    with pytest.raises(UncleanError, match="notified wrongly"):
        run("bad_notify", isolate(f"{FULL},odd=bad_notify"))
    with pytest.raises(DriverTimedOut):
        run("never", isolate(f"{FULL},odd=never"))
    driver = isolate(f"{FULL},odd=die_in_callback")
    connection, callback = driver.device.connection, ExecutionCallback()
    prepare(driver).execute(add_request(), callback)
    with pytest.raises(DriverDied, match="killed by SIGABRT"):
        connection.wait_for_callback(callback)


def test_bursts(isolate) -> None:
    burst = prepare(isolate(FULL)).configure_execution_burst()
    request = add_request(shared=False)
    burst.execute_synchronously(request, [-1, 5, 6])
    np.testing.assert_array_equal(output(request), EXPECTED)
    with pytest.raises(DriverError, match="tokens"):
        burst.execute_synchronously(request, [-1])
    burst.release_memory_resource(5)
    with pytest.raises(DriverError, match="token"):
        burst.release_memory_resource(-5)
    burst.close()


def test_a_reusable_execution_sees_new_inputs(isolate) -> None:
    for shared in (True, False):
        request = add_request(shared=shared)
        execution = prepare(isolate(FULL)).create_reusable_execution(request)
        execution.execute_synchronously()
        np.testing.assert_array_equal(output(request), EXPECTED)
        pool = request.pools[1]
        assert isinstance(pool, Memory)
        values(pool)[:] = 10
        execution.execute_synchronously()
        np.testing.assert_array_equal(output(request), EXPECTED + np.float32(9.5))


@pytest.mark.parametrize("shared", [True, False])
def test_fenced_executions_wait_for_each_other(isolate, shared) -> None:
    prepared = prepare(isolate(FULL))
    start, request = SharedFence.create(), add_request(shared=shared)
    first, ask = prepared.execute_fenced(request, [start], ExecutionConfig(), 123)
    assert first is not None
    again = add_request(shared=shared)
    second, _ = prepared.execute_fenced(again, [first])
    assert second is not None
    assert second.wait(10_000_000) is False
    with pytest.raises(DriverError, match="not finished"):
        ask()
    assert not np.any(output(request))
    start.signal()
    assert second.wait(5_000_000_000)
    assert first.wait(0)
    np.testing.assert_array_equal(output(request), EXPECTED)
    np.testing.assert_array_equal(output(again), EXPECTED)
    assert ask().timing_launched == Timing(1, 2)
    assert ask().timing_fenced == Timing(None, 123)


def test_a_fence_in_error_spreads_and_none_may_be_returned(isolate) -> None:
    prepared = prepare(isolate(FULL))
    start = SharedFence.create()
    fence, _ = prepared.execute_fenced(add_request(), [start])
    start.signal(ErrorStatus.MISSED_DEADLINE_PERSISTENT)
    assert fence is not None
    with pytest.raises(DriverError, match="MISSED_DEADLINE_PERSISTENT"):
        fence.wait()
    request = add_request()
    nothing, ask = prepared.create_reusable_execution(request).execute_fenced([])
    assert nothing is None
    assert ask().status == ErrorStatus.NONE
    np.testing.assert_array_equal(output(request), EXPECTED)


def test_a_fence_that_is_never_signalled_is_a_hang(isolate) -> None:
    driver = isolate(f"{FULL},odd=fence_hangs", deadline=0.5)
    start = SharedFence.create()
    fence, _ = prepare(driver).execute_fenced(add_request(), [start])
    start.signal()
    assert fence is not None
    with pytest.raises(DriverTimedOut, match="no answer within 0.5 s"):
        fence.wait()


def test_300_pools_in_one_request(isolate) -> None:
    prepared = prepare(isolate(f"{FULL},odd=count"))
    with pytest.raises(DriverError, match="GENERAL_FAILURE: 300"):
        prepared.execute_synchronously(add_request(extra=297))


def test_output_shapes_of_an_error_come_along(isolate) -> None:
    with pytest.raises(DriverError) as caught:
        prepare(isolate(f"{FULL},odd=short")).execute_synchronously(add_request())
    assert caught.value.status == ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
    assert caught.value.output_shapes[0].dimensions == (1, 9)
    assert not caught.value.output_shapes[0].is_sufficient


def test_many_models_are_kept_apart(isolate) -> None:
    device = isolate(MINIMAL).device
    models = [add_model((1, size)) for size in range(1, 40)]
    for _ in range(2):
        for model in models:
            assert device.get_supported_operations(model) == [True]
    prepared = [device.prepare_model(model) for model in models]
    assert len({model.number for model in prepared}) == len(models)


def test_what_is_dropped_is_released(isolate) -> None:
    device = isolate(f"{FULL},odd=alive").device
    prepared = device.prepare_model(add_model())
    burst = prepared.configure_execution_burst()
    assert device.get_version_string() == "model,burst"
    del burst
    assert device.get_version_string() == "model"
    prepared.close()
    assert device.get_version_string() == ""


# ---- several at once


def test_many_threads_and_two_clients_at_once(isolate) -> None:
    driver = isolate(MINIMAL)
    devices = [driver.device, driver.connect()]
    wrong: list[str] = []

    def work(number: int) -> None:
        device, model = devices[number % 2], add_model()
        prepared = device.prepare_model(model)
        for turn in range(25):
            request = add_request()
            pool = request.pools[1]
            assert isinstance(pool, Memory)
            values(pool)[:] = number * 100 + turn
            prepared.execute_synchronously(request)
            if not np.array_equal(output(request), np.arange(1, 193) + number * 100 + turn):
                wrong.append(f"{number} {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_executions_are_under_way_at_once(isolate) -> None:
    prepared = prepare(isolate(f"{FULL},odd=meet"))
    requests = [add_request(), add_request()]
    threads = [threading.Thread(target=prepared.execute_synchronously, args=(r,)) for r in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for request in requests:
        np.testing.assert_array_equal(output(request), EXPECTED)


def test_requests_beside_the_culprit_learn_of_the_death(isolate) -> None:
    driver = isolate(faulty("abort", ",after=1"))
    hanging = isolate(faulty("hang", ",after=1"), deadline=0.8)
    for one, kinds in ((driver, {DriverDied}), (hanging, {DriverDied, DriverTimedOut})):
        prepared = prepare(one)
        prepared.execute_synchronously(add_request())
        caught: list[type] = []

        def work(prepared: PreparedModel = prepared, caught: list[type] = caught) -> None:
            try:
                prepared.execute_synchronously(add_request())
            except (DriverDied, DriverTimedOut) as error:
                caught.append(type(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(caught) == 4
        assert set(caught) == kinds
        assert caught.count(DriverTimedOut) <= 1


# ---- faults


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("abort", "killed by SIGABRT"),
        ("segfault", "killed by SIGSEGV"),
        ("exit", "exited with status 0"),
    ],
)
def test_a_death_is_told_and_a_fresh_process_goes_on(isolate, fault, reason) -> None:
    driver = isolate(faulty(fault))
    prepared, first = prepare(driver), driver.pid
    with pytest.raises(DriverDied) as caught:
        prepared.execute_synchronously(add_request())
    assert caught.value.reason == reason
    if fault != "exit":
        trace = find_crash_trace(caught.value.log)
        assert trace is not None
        assert "faulty.py" in trace
    with pytest.raises(DriverDied):
        prepared.execute_synchronously(add_request())  # the old object stays dead
    assert driver.device.get_supported_operations(add_model()) == [True]
    assert driver.deaths == 1
    assert driver.pid != first


@pytest.mark.parametrize("fault", ["hang", "spin"])
def test_silence_ends_at_the_deadline_with_a_stack(isolate, fault) -> None:
    driver = isolate(faulty(fault))
    prepared = prepare(driver)
    with (
        driver.device.connection.within(0.5),
        pytest.raises(DriverTimedOut, match=r"no answer within [0-9.]+ s") as caught,
    ):
        prepared.execute_synchronously(add_request())
    assert 0.5 <= caught.value.seconds < 5
    assert f"in _{fault}" in caught.value.log
    assert driver.device.get_supported_operations(add_model()) == [True]


def test_a_stopped_process_is_silent(isolate) -> None:
    driver = isolate(MINIMAL, deadline=0.5)
    device = driver.device
    os.kill(driver.pid, signal.SIGSTOP)
    with pytest.raises(DriverTimedOut):
        device.get_type()
    assert driver.device.get_type() == DeviceType.OTHER


def test_a_starved_driver_gets_more_time(isolate, monkeypatch) -> None:
    driver = isolate(f"{FULL},odd=sleep", deadline=0.2)
    prepared = prepare(driver)
    process = driver.device.connection.process
    monkeypatch.setattr(process, "is_runnable", lambda: True)  # 0.3 s without using a processor
    prepared.execute_synchronously(add_request())
    monkeypatch.setattr(process, "is_runnable", lambda: False)
    with pytest.raises(DriverTimedOut):
        prepared.execute_synchronously(add_request())


def test_garbage_from_the_driver_is_a_death_with_a_reason(isolate) -> None:
    driver = isolate(faulty("garbage"))
    prepared = prepare(driver)
    with pytest.raises(DriverDied, match="sent malformed wire data.*and was stopped"):
        prepared.execute_synchronously(add_request())
    assert driver.device.get_type() == DeviceType.OTHER


@pytest.mark.parametrize(
    ("spec", "call", "message"),
    [
        (faulty("value_error"), "execute", "ValueError: an exception that no driver may raise"),
        (f"{FULL},odd=none", "query", "TypeError: NoneType stands where a list is due"),
        (f"{FULL},odd=system_exit", "query", "SystemExit: 4"),
        (f"{FULL},odd=no_model", "prepare", "TypeError: prepare_model answered NoneType"),
        (f"{FULL},odd=version", "version", "TypeError: int stands where str is due"),
    ],
)
def test_other_exceptions_are_unclean_errors_with_a_traceback(isolate, spec, call, message) -> None:
    device = isolate(spec).device
    calls = {
        "execute": lambda: device.prepare_model(add_model()).execute_synchronously(add_request()),
        "query": lambda: device.get_supported_operations(add_model()),
        "prepare": lambda: device.prepare_model(add_model()),
        "version": device.get_version_string,
    }
    with pytest.raises(UncleanError) as caught:
        calls[call]()
    assert str(caught.value).startswith(message)
    assert "Traceback" in caught.value.trace
    assert device.get_type() in (DeviceType.OTHER, DeviceType.ACCELERATOR)


def test_memory_faults_are_visible_to_the_parent(isolate) -> None:
    for fault, pool, place in (("write_outside", 2, 832), ("write_before", 2, 56)):
        request = add_request()
        prepare(isolate(faulty(fault))).execute_synchronously(request)
        memory = request.pools[pool]
        assert isinstance(memory, Memory)
        changed = np.flatnonzero(np.frombuffer(memory.view(), np.uint8)[:64])
        behind = np.flatnonzero(np.frombuffer(memory.view(), np.uint8)[832:]) + 832
        assert [*changed, *behind] == list(range(place, place + 8))
        np.testing.assert_array_equal(output(request), EXPECTED)
    request = add_request()
    prepare(isolate(faulty("write_input"))).execute_synchronously(request)
    memory = request.pools[0]
    assert isinstance(memory, Memory)
    assert np.count_nonzero(values(memory) != np.arange(1, 193)) == 1


def guarded_request(*, read_only: bool) -> Request:
    page = 4096
    pools = [GuardedMemory.allocate(page, read_only=read_only) for _ in range(2)]
    pools.append(GuardedMemory.allocate(page))
    place = page - 768  # ends where the inaccessible page begins
    arguments = [RequestArgument(DataLocation(i, place, 768)) for i in range(3)]
    for pool in pools[:2]:
        np.frombuffer(pool.view()[place:], np.float32)[:] = 1
    return Request(tuple(arguments[:2]), (arguments[2],), tuple(pools))


def test_guarded_memory_stops_the_first_byte_outside(isolate) -> None:
    request = guarded_request(read_only=True)
    prepare(isolate(MINIMAL)).execute_synchronously(request)
    assert set(output(request)) == {np.float32(2)}
    with pytest.raises(DriverDied, match="SIGSEGV"):
        prepare(isolate(faulty("write_outside"))).execute_synchronously(request)
    with pytest.raises(UncleanError, match="read-only"):
        prepare(isolate(faulty("write_input"))).execute_synchronously(request)


@pytest.mark.parametrize("fault", ["wrong_value", "nan", "no_output", "stale", "flaky"])
def test_value_faults_are_wrong_values(isolate, fault) -> None:
    prepared = prepare(isolate(faulty(fault)))
    wrong = []
    for turn in range(3):
        request = add_request()
        pool = request.pools[1]
        assert isinstance(pool, Memory)
        values(pool)[:] = turn
        prepared.execute_synchronously(request)
        wrong.append(int(np.sum(output(request) != np.arange(1, 193) + turn)))
    due = {"no_output": [192] * 3, "stale": [0, 192, 192], "flaky": [0, 0, 1]}
    assert wrong == due.get(fault, [1, 1, 1])


def test_answer_faults(isolate) -> None:
    model = add_model()
    timed = ExecutionConfig(measure_timing=True)
    result = prepare(isolate(faulty("lie_timing"))).execute_synchronously(add_request(), timed)
    assert result.timing == Timing(2_000_000, 1_000_000)
    result = prepare(isolate(faulty("wrong_shape"))).execute_synchronously(add_request())
    assert result.output_shapes[0].dimensions == (1, 8, 8, 4)
    assert isolate(faulty("wrong_count")).device.get_supported_operations(model) == [True, True]
    device = isolate(faulty("refuse_prepare")).device
    assert device.get_supported_operations(model) == [True]
    with pytest.raises(DriverError, match="GENERAL_FAILURE"):
        device.prepare_model(model)
    with pytest.raises(DriverError, match="INVALID_ARGUMENT"):
        isolate(faulty("refuse_all")).device.get_supported_operations(model)
    with pytest.raises(DriverError, match="INVALID_ARGUMENT"):
        isolate(MINIMAL).device.get_supported_operations(empty_model())
    device = isolate(faulty("accept_all")).device
    assert device.get_supported_operations(empty_model()) == []
    device.prepare_model(empty_model()).execute_synchronously(add_request())


def empty_model():
    model = add_model()
    return model.__class__(model.main.__class__(model.main.operands, (), (0, 1), (3,)))


def test_a_fault_can_be_limited_to_an_operation(isolate) -> None:
    request = add_request()
    prepare(isolate(faulty("wrong_value", ",operation=CONV_2D"))).execute_synchronously(request)
    np.testing.assert_array_equal(output(request), EXPECTED)


def test_a_leak_shows_in_the_samples(isolate) -> None:
    driver = isolate(faulty("leak"))
    prepared = prepare(driver)
    prepared.execute_synchronously(add_request())
    before = driver.sample()
    for _ in range(10):
        prepared.execute_synchronously(add_request())
    after = driver.sample()
    assert before is not None
    assert after is not None
    assert after.descriptors - before.descriptors >= 8
    assert after.cpu_seconds >= before.cpu_seconds
    assert after.threads > 0


def test_every_fault_has_a_sentence_and_a_verdict() -> None:
    for fault in FAULTS.values():
        assert fault.text
        assert fault.verdict in {"PASS", "FAIL", "CRASH", "HANG", "FLAKY"}
        assert bool(fault.cause) == (fault.verdict != "PASS")


# ---- starting


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mydrivr", "driver 'mydrivr' not found; installed: "),
        (f"{MINIMAL},python=/no/such/python", "python=/no/such/python is no program"),
        (f"{FULL},odd=die_at_start", "could not be loaded: its process killed by SIGABRT"),
        (f"{FULL},bad=1", "does not take these options (given: bad)"),
    ],
)
def test_a_driver_that_cannot_be_loaded_is_a_usage_error(isolate, spec, message) -> None:
    with pytest.raises(UsageError) as caught:
        isolate(spec)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_driver_that_is_not_ready_in_time(isolate) -> None:
    with pytest.raises(UsageError, match="was not ready within 0.05 s"):
        isolate(f"{FULL},odd=slow_start", load_deadline=0.05)


def test_another_interpreter_runs_the_driver(isolate, tmp_path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    driver = isolate(f"{MINIMAL},python={link}")
    assert Path(f"/proc/{driver.pid}/cmdline").read_bytes().startswith(os.fsencode(link))
    assert driver.device.get_supported_operations(add_model()) == [True]


def test_an_interpreter_without_numpy_is_told(isolate, tmp_path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S -c "import numpy"\n')
    script.chmod(0o755)
    with pytest.raises(UsageError, match="No module named 'numpy'"):
        isolate(f"{MINIMAL},python={script}")


def test_a_spare_takes_over(isolate) -> None:
    driver = isolate(faulty("abort"), spare=True)
    for _ in range(2):
        with pytest.raises(DriverDied):
            prepare(driver).execute_synchronously(add_request())
        spare = driver._spare
        assert spare is not None
        assert driver.device.get_type() == DeviceType.OTHER
        assert driver._worker is spare
    assert driver.deaths == 2


def test_a_restart_is_a_fresh_process(isolate) -> None:
    driver = isolate(MINIMAL)
    old, pid = driver.device, driver.pid
    driver.restart()
    assert driver.pid != pid
    assert driver.deaths == 0
    assert driver.device.get_type() == DeviceType.OTHER
    with pytest.raises(DriverDied):
        old.get_type()
    driver.close()
    with pytest.raises(SuiteError, match="closed"):
        _ = driver.device


def test_the_log_is_kept(isolate, tmp_path) -> None:
    driver = isolate(f"{FULL},odd=talk", log_path=tmp_path / "driver.log")
    driver.device.get_supported_operations(add_model())
    for _ in range(250):
        if driver.log.endswith("the end\n"):
            break
        time.sleep(0.02)
    assert len(driver.log) == 65536
    text = (tmp_path / "driver.log").read_text()
    assert text.startswith("hello from the driver\nand from its stderr\nxxx")
    assert len(text) == 200_051


def test_an_address_space_can_be_limited(isolate) -> None:
    driver = isolate(MINIMAL, memory=4 << 30)
    limits = Path(f"/proc/{driver.pid}/limits").read_text()
    assert str(4 << 30) in next(line for line in limits.splitlines() if "address space" in line)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("fine\n==7==ERROR: AddressSanitizer: heap-buffer-overflow\n  #0 f\n", "==7==ERROR"),
        ("a.cc:3:5: runtime error: signed integer overflow\n", "a.cc:3:5"),
        ("x\nterminate called after throwing\n", "terminate"),
        ("drv: a.c:9: f: Assertion `x' failed.\n", "drv: a.c:9"),
        ("double free or corruption (out)\n", "double free"),
        ("Fatal signal 11 (SIGSEGV), code 1\n", "Fatal signal 11"),
        ("all is well, no errors\nfree memory: 7\n", None),
    ],
)
def test_crash_traces_are_found(log, found) -> None:
    trace = find_crash_trace(log)
    assert trace is None if found is None else trace is not None and trace.startswith(found)


# ---- adapters

ADAPTER = """
from nnhal.device import Adapter
from nnhal.errors import UsageError
from nnhal.model import Translation
from tests.minimal_driver import MinimalDriver
import os

class DRIVER(Adapter):
    def __init__(self, how="good"):
        self.inner = MinimalDriver()

    @staticmethod
    def translate(model, options):
        how = options.get("how")
        if how == "bad": raise ValueError("cannot")
        if how == "die": os.abort()
        if how == "usage": raise UsageError("pip install runtime")
        return Translation(str(os.getpid()).encode(), (None,))

    def get_supported_operations(self, model):
        return self.inner.get_supported_operations(model)

    def explain_unsupported(self, model):
        return [model.translation.artifact.decode() + " " + str(os.getpid())]

    def prepare_model(self, model, config=None):
        assert model.translation is not None
        return self.inner.prepare_model(model)
"""


def test_a_vendors_translation_has_a_process_of_its_own(isolate, tmp_path) -> None:
    path = tmp_path / "vendor_adapter.py"
    path.write_text(ADAPTER)
    device = isolate(f"{path}:DRIVER").device
    model, request = add_model(), add_request()
    translated = device.explain_unsupported(model)[0]
    assert translated is not None
    assert len({*translated.split(), str(os.getpid())}) == 3
    assert device.explain_unsupported(model) == [translated]  # not translated again
    device.prepare_model(model).execute_synchronously(request)
    np.testing.assert_array_equal(output(request), EXPECTED)
    with pytest.raises(UncleanError, match="ValueError: cannot"):
        isolate(f"{path}:DRIVER,how=bad").device.get_supported_operations(model)
    with pytest.raises(DriverDied, match="SIGABRT"):
        isolate(f"{path}:DRIVER,how=die").device.get_supported_operations(model)
    with pytest.raises(UsageError, match="pip install runtime"):
        isolate(f"{path}:DRIVER,how=usage").device.get_supported_operations(model)


def test_our_translation_runs_here_and_its_faults_are_ours(isolate, tmp_path, monkeypatch) -> None:
    path = tmp_path / "own_adapter.py"
    path.write_text(ADAPTER)
    monkeypatch.setattr("nnhal.loading.DriverSpec.is_ours", True)
    translated = isolate(f"{path}:DRIVER").device.explain_unsupported(add_model())[0]
    assert translated is not None
    assert translated.split()[0] == str(os.getpid())
    with pytest.raises(SuiteError, match="ValueError: cannot"):
        isolate(f"{path}:DRIVER,how=bad").device.get_supported_operations(add_model())


# ---- nothing is left behind

PARENT = """
import sys, time
from harness.isolation import IsolatedDriver
from tests.add_model import add_model, add_request

if __name__ == "__main__":
    driver = IsolatedDriver(sys.argv[1], tag=sys.argv[2])
    driver.device.prepare_model(add_model()).execute_synchronously(add_request())
    print("ready", flush=True)
    time.sleep(60)
"""


def wait_until_gone(tag: str) -> list[int]:
    for _ in range(250):
        if not tagged(tag):
            break
        time.sleep(0.02)
    return tagged(tag)


def test_nothing_survives_a_killed_suite() -> None:
    tag = f"killed-{os.urandom(6).hex()}"
    program = [sys.executable, "-c", PARENT, faulty("daemon"), tag]
    parent = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    assert len(tagged(tag)) >= 4  # two supervisors, service, spare, and the daemon
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until_gone(tag) == []


def test_a_daemon_goes_with_its_driver(isolate) -> None:
    driver = isolate(faulty("daemon"))
    prepare(driver).execute_synchronously(add_request())
    assert len(tagged(driver.tag)) == 3
    os.kill(driver.pid, signal.SIGKILL)
    with pytest.raises(DriverDied, match="killed by SIGKILL"):
        while True:
            driver._worker.device.get_type()  # type: ignore[union-attr]
    assert driver.strays == 1
    assert len(tagged(driver.tag)) == 1  # the supervisor


def test_a_killed_supervisor_takes_all_with_it(isolate) -> None:
    driver = isolate(faulty("daemon"))
    device = driver.device
    prepare(driver).execute_synchronously(add_request())
    driver._worker.process._supervisor.kill()
    with pytest.raises(DriverDied, match="its supervisor was killed"):
        while True:
            device.get_type()
    assert wait_until_gone(driver.tag) == []
    assert driver.device.get_type() == DeviceType.OTHER
