"""The proxy of a driver in another process: each method and mode, and several callers at once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from harness.isolation import IsolatedDriver
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
    UncleanError,
)
from nnhal.fences import SharedFence
from nnhal.memory import BytesMemory, Memory
from nnhal.types import FL7, DeviceStatus, DeviceType, ErrorStatus
from tests.add_model import EXPECTED, add_model, add_request, output, values

MINIMAL = "tests/minimal_driver.py:DRIVER"
FULL = "tests.full_driver:DRIVER"
ROOT = Path(__file__).parents[1]


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
    with pytest.raises(DriverTimedOut, match=r"no answer within 0\.5 s"):
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


def test_what_is_let_go_behind_an_end_does_not_hide_it(isolate) -> None:
    prepared = prepare(isolate(faulty("hang"), deadline=0.5))
    with pytest.raises(DriverTimedOut):
        prepared.execute_synchronously(add_request())
    prepared.close()


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
