"""A driver's service as a further process of the suite sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from harness.isolation import IsolatedDriver
from harness.joined import ForeignProcess, join
from harness.run import Course, run
from nnhal.errors import DriverDied, DriverTimedOut
from nnhal.loading import DriverSpec
from nnhal.types import ErrorStatus
from tests.plugin_runs import LIGHT
from tests.stress_trials import cases

SPEC = DriverSpec.parse(LIGHT)


@pytest.fixture
def driver() -> Iterator[IsolatedDriver]:
    with IsolatedDriver(LIGHT, spare=False) as found:
        yield found


def test_a_joined_driver_answers(driver: IsolatedDriver) -> None:
    device = join(SPEC, driver.hello.name, driver.pid, 10.0)
    outcome = run(cases()[0], device)
    assert [step.status for step in outcome.steps] == [ErrorStatus.NONE] * 3
    device.connection.close()


def test_a_death_is_seen_by_who_joined(driver: IsolatedDriver) -> None:
    device = join(SPEC, driver.hello.name, driver.pid, 10.0)
    os.kill(driver.pid, signal.SIGKILL)
    outcome = run(cases()[0], device)
    assert outcome.died is not None
    device.connection.close()


def test_silence_is_seen_and_the_driver_left_alone(driver: IsolatedDriver) -> None:
    """Whoever started it stops it."""
    device = join(SPEC, driver.hello.name, driver.pid, 0.3)
    os.kill(driver.pid, signal.SIGSTOP)
    with pytest.raises(DriverTimedOut):
        device.get_version_string()
    os.kill(driver.pid, signal.SIGCONT)
    assert driver.device.get_version_string() == "0"
    device.connection.close()


def test_nobody_is_there() -> None:
    with pytest.raises(DriverDied, match="takes no connection"):
        join(SPEC, "nncts-nobody-listens-here", os.getpid(), 1.0)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(DriverDied, match="ended"):
        ForeignProcess(process.pid)


def test_a_foreign_process_is_watched() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    found = ForeignProcess(process.pid)
    found.listen()
    assert found.exit is None
    assert not found.wait(0.01)
    process.kill()
    begun = time.monotonic()
    assert found.wait(20)
    assert time.monotonic() - begun < 20
    assert found.exit is not None
    process.wait()
    found.close()
    found.close()


def test_the_last_step_of_a_case_again_and_again(driver: IsolatedDriver) -> None:
    seen: list[str] = []

    class Watching:
        def __init__(self, stage: str) -> None:
            self.stage = stage

        def __enter__(self) -> None:
            seen.append(self.stage)

        def __exit__(self, *exception: object) -> None:
            seen.append(f"end of {self.stage}")

    case = cases()[0]
    with Course(case, driver.device, watch=lambda stage, model: Watching(stage)) as course:
        assert course.go(case.steps[:-1])
        for _ in range(3):
            outcome = course.again()
            assert [step.step for step in outcome.steps] == [0, 1, 2]
            assert outcome.steps[-1].status == ErrorStatus.NONE
        assert course.end() == course.outcome
    assert [word for word in seen if not word.startswith("end")] == [
        "query", "prepare", "execute", "execute", "execute", "release",
    ]  # fmt: skip


def test_a_course_ends_with_the_driver(driver: IsolatedDriver) -> None:
    case = cases()[0]
    with Course(case, driver.device) as course:
        assert course.go(case.steps[:-1])
        os.kill(driver.pid, signal.SIGKILL)
        assert course.again().died is not None
        assert course.again().died is not None
        assert not course.go()
        assert course.end().died is not None
