"""Drivers under test behind a framework: each in a process of its own, all together one driver for a session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from framework import Event, EventKind, Framework, LeftOut, Plan
from harness.driver import Driver, open_driver
from harness.isolation import DEADLINE
from harness.remarks import Remarks
from harness.remote import WatchedDevice
from nnhal.device import (
    DEFAULT_COMPILATION,
    CompilationConfig,
    Device,
    ExecutionCallback,
    ExecutionResult,
    PreparedModel,
)
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError, UsageError
from nnhal.loading import REFERENCE, DriverSpec
from nnhal.model import Model
from nnhal.types import DeviceType, ErrorStatus

FRAMEWORK = "framework"
THROUGH = (FRAMEWORK,)
PARTS_IN_A_ROW = 3  # deadlines that an execution in parts may take before its silence counts as one
TROUBLE = (DriverError, DriverDied, DriverTimedOut, UncleanError, UsageError)
HIDDEN = (EventKind.PREPARATION_FELL_BACK, EventKind.EXECUTION_FELL_BACK)


def combined(specs: Sequence[DriverSpec], through: str | None) -> list[DriverSpec]:
    """What a run's drivers are: each by itself, or all in one framework.

    Raises:
        UsageError: there is no such framework.
    """
    if through is None:
        return list(specs)
    if through not in THROUGH:
        what = "is not offered" if through == "litert" else "is unknown"
        raise UsageError(f"--through={through} {what}; give --through={FRAMEWORK}, or leave it out")
    return [DriverSpec(f"{FRAMEWORK}({','.join(spec.text for spec in specs)})", FRAMEWORK)]


class _Links:
    """The connections of all devices of a framework, as one."""

    def __init__(self, framework: Framework, devices: Sequence[Device]) -> None:
        self._framework = framework
        self._connections = [device.connection for device in devices if isinstance(device, WatchedDevice)]

    def limit(self) -> float:
        """Seconds that a call of this thread may take."""
        return max((connection.limit() for connection in self._connections), default=DEADLINE)

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Another deadline for the calls of this thread meanwhile."""
        with contextlib.ExitStack() as stack:
            for connection in self._connections:
                stack.enter_context(connection.within(seconds))
            yield

    def wait_for_callback(
        self, callback: ExecutionCallback, seconds: float | None = None
    ) -> tuple[ErrorStatus, ExecutionResult]:
        """The first notification of a callback given to the framework's `execute`.

        Raises:
            DriverDied: a device ended first; whatever else ended the execution is raised, too.
            DriverTimedOut: there was no notification in time.
        """
        limit = self.limit() * PARTS_IN_A_ROW if seconds is None else seconds
        notified = callback.wait(limit)
        self._framework.raise_lost()
        if notified is None:
            self.give_up(limit)
            raise DriverTimedOut(limit)
        return notified

    def give_up(self, seconds: float) -> None:
        """Stops the drivers, and raises accordingly."""
        for connection in self._connections:
            connection.give_up(seconds)
        raise DriverTimedOut(seconds)

    def check(self) -> None:
        """Raises what ended a device, also between calls."""
        self._framework.raise_lost()
        for connection in self._connections:
            connection.check()


class CombinedDevice(Framework, WatchedDevice):
    """A framework whose devices are elsewhere."""

    def __init__(self, candidates: Sequence[tuple[str, Device]], cpu: Device, report: Callable[[Event], None]) -> None:
        super().__init__(candidates, cpu, report=report, wait=_await)
        self.connection = _Links(self, [device for _, device in candidates])


def _await(device: Device, callback: ExecutionCallback) -> tuple[ErrorStatus, ExecutionResult]:
    if isinstance(device, WatchedDevice):
        return device.connection.wait_for_callback(callback)
    notified = callback.wait(DEADLINE)
    if notified is None:
        raise DriverTimedOut(DEADLINE, "the callback of an asynchronous execution was never notified")
    return notified


class Speechless(Device):
    """Stands for a framework that a driver under test was left out of: that must not pass for a driver that works."""

    def __init__(self, left_out: LeftOut) -> None:
        error = left_out.error
        text = f"{error} (device {left_out.name})"
        self._error = error if isinstance(error, TROUBLE) else UncleanError(type(error).__name__, text)

    def get_type(self) -> DeviceType:
        raise self._error

    def get_supported_operations(self, model: Model) -> list[bool]:
        raise self._error

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        raise self._error


class FrameworkDriver:
    """Several drivers and the reference driver as their CPU, in one framework.

    Args:
        specs: the drivers under test.
        log_path: where the output of their processes goes; the reference driver's goes to `cpu.log` beside it.
    """

    def __init__(
        self,
        specs: Sequence[DriverSpec],
        *,
        log_path: Path,
        in_process: bool = False,
        deadline: float = DEADLINE,
        memory: int | None = None,
    ) -> None:
        self.in_process = in_process
        self.spec: DriverSpec | None = None
        self._names = [spec.name if _once(spec.name, specs) else spec.text for spec in specs]
        self._drivers: list[Driver] = [
            open_driver(
                spec,
                log_path=_numbered(log_path, number),
                in_process=in_process,
                deadline=deadline,
                memory=memory,
            )
            for number, spec in enumerate(specs)
        ]
        cpu_log = log_path if log_path.is_char_device() else log_path.with_name("cpu.log")
        self._cpu = open_driver(
            DriverSpec.parse(REFERENCE), log_path=cpu_log, in_process=in_process, deadline=deadline, spare=False
        )
        self._made: tuple[tuple[Device, ...], Device] | None = None
        self._events: list[Event] = []

    @property
    def device(self) -> Device:
        """The framework; after a death of a driver, a new one."""
        devices = tuple(driver.device for driver in self._drivers)
        cpu = self._cpu.device
        if self._made is None or any(a is not b for a, b in zip(self._made[0], (*devices, cpu), strict=True)):
            candidates = list(zip(self._names, devices, strict=True))
            try:
                found = CombinedDevice(candidates, cpu, self._events.append)
            except TROUBLE as error:
                raise SuiteError(f"the CPU of the framework does not say what it is: {error}") from error
            if found.left_out:  # asked again when it is needed again
                return Speechless(found.left_out[0])
            self._made = (*devices, cpu), found
        return self._made[1]

    @property
    def log(self) -> str:
        """The ends of the drivers' logs."""
        logs = [(name, driver.log) for name, driver in zip(self._names, self._drivers, strict=True)]
        return "\n".join(f"[{name}]\n{log}" if len(logs) > 1 else log for name, log in logs if log)

    @property
    def pid(self) -> int:
        """The first driver's process."""
        return self._drivers[0].pid

    def restart(self, fill: int | None = None) -> None:
        """Goes on with every driver in a fresh process. The CPU stays: it is no driver under test."""
        for driver in self._drivers:
            driver.restart(fill)

    def rest(self) -> None:
        """Ends all processes; the next question starts them again."""
        self._made = None
        for driver in (*self._drivers, self._cpu):
            driver.rest()

    def sample(self) -> dict[str, float]:
        """What the drivers' processes use together."""
        total: dict[str, float] = {}
        for driver in self._drivers:
            for name, value in driver.sample().items():
                total[name] = total.get(name, 0.0) + value
        return total

    def remarks(self) -> Remarks:
        """What the framework did since this was asked last."""
        events, self._events[:] = list(self._events), []
        return remarks_on(events)

    def close(self) -> None:
        """Ends all drivers."""
        self._made = None
        for driver in (*self._drivers, self._cpu):
            driver.close()


def _once(name: str, specs: Sequence[DriverSpec]) -> bool:
    return sum(spec.name == name for spec in specs) == 1


def _numbered(path: Path, number: int) -> Path:
    """The log of one of several drivers: `driver.log`, `driver-1.log`, and so on."""
    return path if number == 0 or path.is_char_device() else path.with_name(f"{path.stem}-{number}{path.suffix}")


def remarks_on(events: Sequence[Event]) -> Remarks:
    """Events as a record says them: the partition is that of the model with most parts."""
    plans = [event.plan for event in events if event.kind == EventKind.PREPARED and event.plan is not None]
    plans += [
        event.plan for event in events if event.kind == EventKind.PREPARATION_FELL_BACK and event.plan is not None
    ]
    plan = max(plans, key=lambda plan: len(plan.parts), default=None)
    quiet = (EventKind.PREPARED, EventKind.OVERRUN)
    overruns = [event.text for event in events if event.kind == EventKind.OVERRUN]
    hidden = sum(event.kind in HIDDEN for event in events)
    numbers = _numbers(plan)
    if hidden:
        numbers["taken over by the cpu"] = hidden
    return Remarks(
        notes=tuple(dict.fromkeys(event.text for event in events if event.kind not in quiet)),
        numbers=numbers,
        overrun=overruns[0] if overruns else "",
        partition=str(plan) if plan else "",
        draw=plan.to_dot if plan else None,
        hidden=bool(hidden),
    )


def _numbers(plan: Plan | None) -> dict[str, float]:
    if plan is None:
        return {}
    return {"parts": len(plan.parts), **{f"operations on {name}": n for name, n in plan.counts.items()}}
