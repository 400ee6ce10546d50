"""A driver in a process of its own: each way to fail, to start and to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from drivers.faulty import FAULTS
from harness.isolation import IsolatedDriver, find_crash_trace
from harness.process import _version, tagged
from nnhal.device import (
    Device,
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
from nnhal.guarded import GuardedMemory
from nnhal.memory import Memory
from nnhal.model import DataLocation, Request, RequestArgument
from nnhal.types import DeviceType
from tests.add_model import EXPECTED, add_model, add_request, output, values

MINIMAL = "tests/minimal_driver.py:DRIVER"
FULL = "tests.full_driver:DRIVER"
ROOT = Path(__file__).parents[1]


def faulty(fault: str, more: str = "") -> str:
    return f"faulty,inner={MINIMAL},fault={fault}{more}"


def prepare(driver: IsolatedDriver) -> PreparedModel:
    return driver.device.prepare_model(add_model())


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
        assert "_faults_process.py" in trace
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
    with pytest.raises(DriverDied, match=r"sent malformed wire data.*and was stopped"):
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


@pytest.mark.parametrize("fault", ["wrong_value", "nan", "no_output", "stale"])
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
    due = {"no_output": [192] * 3, "stale": [0, 192, 192]}
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
    with pytest.raises(UsageError, match=r"was not ready within 0\.05 s"):
        isolate(f"{FULL},odd=slow_start", load_deadline=0.05)


def test_another_interpreter_runs_the_driver(isolate, tmp_path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    driver = isolate(f"{MINIMAL},python={link}")
    assert Path(f"/proc/{driver.pid}/cmdline").read_bytes().startswith(os.fsencode(link))
    assert driver.device.get_supported_operations(add_model()) == [True]


def test_an_interpreter_that_will_not_do_is_told(isolate, tmp_path) -> None:
    script = tmp_path / "python"

    def sentence(line: str) -> str:
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)
        _version.cache_clear()
        with pytest.raises(UsageError) as caught:
            isolate(f"{MINIMAL},python={script}")
        return str(caught.value)

    text = sentence(f'case $1 in -c) echo 3 10;; *) exec {sys.executable} -I -S -c "import numpy";; esac')
    assert "No module named 'numpy'" in text
    assert text.endswith(f"run {script} -m pip install 'numpy>=1.24'")
    assert "is Python 3.9; 3.10 or newer is needed" in sentence("echo 3 9")
    assert "does not run as a Python" in sentence("echo hello")


def test_a_spare_takes_over(isolate) -> None:
    driver = isolate(faulty("abort"), spare=True)
    assert driver._spare is None  # a driver that never dies needs none
    for number in range(3):
        with pytest.raises(DriverDied):
            prepare(driver).execute_synchronously(add_request())
        spare = driver._spare
        assert driver.device.get_type() == DeviceType.OTHER
        assert number == 0 or driver._worker is spare
        assert driver._spare is not None
    assert driver.deaths == 3


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
    driver.restart()
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


def ask_on(device: Device) -> None:
    """The kernel takes a moment to end a process."""
    while True:
        device.get_type()


def test_a_daemon_goes_with_its_driver(isolate) -> None:
    driver = isolate(faulty("daemon"))
    device = driver.device
    prepare(driver).execute_synchronously(add_request())
    assert len(tagged(driver.tag)) == 3
    os.kill(driver.pid, signal.SIGKILL)
    with pytest.raises(DriverDied, match="killed by SIGKILL"):
        ask_on(device)
    assert driver.strays == 1
    assert len(tagged(driver.tag)) == 1  # the supervisor


def test_a_killed_supervisor_takes_all_with_it(isolate) -> None:
    driver = isolate(faulty("daemon"))
    device = driver.device
    prepare(driver).execute_synchronously(add_request())
    driver._worker.process._supervisor.kill()
    with pytest.raises(DriverDied, match="its supervisor was killed"):
        ask_on(device)
    assert wait_until_gone(driver.tag) == []
    assert driver.device.get_type() == DeviceType.OTHER
