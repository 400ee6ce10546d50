"""A model ready to run on a driver, with its memory in place: what latencies are taken of, mode by mode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.guards import Arena, Guarded, guard
from harness.remote import WatchedDevice
from nnhal.device import (
    DEFAULT_COMPILATION,
    Burst,
    CompilationConfig,
    Device,
    ExecutionCallback,
    ExecutionConfig,
    PreparedModel,
)
from nnhal.errors import DriverError
from nnhal.model import Model, operand_size
from nnhal.types import Array, ErrorStatus, ExecutionMode, info

CALLBACK_SECONDS = 30.0
NANO = 1e-9


def sizes_known(model: Model) -> bool:
    """Whether the sizes of all outputs are known before a run, as the benchmark needs it."""
    return all(operand_size(model.main.operands[index]) > 0 for index in model.main.output_indexes)


@dataclass
class Station:
    """A prepared model and the memory of its request.

    Args:
        device: the driver.
        model: whose outputs have known sizes.
        prepared: the model on it.
        values: the first inputs, in stored form.
    """

    device: Device
    model: Model
    prepared: PreparedModel
    values: Sequence[Array]
    arena: Arena = field(default_factory=Arena)

    def __post_init__(self) -> None:
        outputs = [self.model.main.operands[index] for index in self.model.main.output_indexes]
        self._shapes = [(np.dtype(info(operand.type).dtype), operand.dimensions) for operand in outputs]
        self._guarded: Guarded = guard(self.arena, self.model, list(self.values), [operand_size(o) for o in outputs])
        self._burst: Burst | None = None

    def place(self, values: Sequence[Array]) -> None:
        """Puts other inputs in place."""
        self._guarded.refill(list(values))

    def outputs(self) -> list[Array]:
        """Copies of what the last run gave, in stored form."""
        found = [self._guarded.output(number, *what) for number, what in enumerate(self._shapes)]
        return [value for value in found if value is not None]

    def damage(self) -> str:
        """What the driver did to memory that is not its own, in a sentence; empty when nothing."""
        return "; ".join(text for _, text in self._guarded.findings())

    def run(self, mode: ExecutionMode = ExecutionMode.SYNCHRONOUS) -> float:
        """Seconds of one execution, from the call to its result.

        Raises:
            DriverError: it failed, or the driver does not have the mode.
            DriverDied, DriverTimedOut, UncleanError: as everywhere.
        """
        how = _MODES[mode]
        begun = time.perf_counter_ns()
        how(self)
        return (time.perf_counter_ns() - begun) * NANO

    def timed(self) -> tuple[float, float | None, float | None]:
        """Seconds of one execution as seen here, and as the driver says: on the device and in the driver, or None."""
        begun = time.perf_counter_ns()
        result = self.prepared.execute_synchronously(self._guarded.request, ExecutionConfig(measure_timing=True))
        seen = (time.perf_counter_ns() - begun) * NANO
        told = result.timing.time_on_device, result.timing.time_in_driver
        on_device, in_driver = (None if value is None or value < 0 else value * NANO for value in told)
        return seen, on_device, in_driver

    def _synchronous(self) -> None:
        _check(self.prepared.execute_synchronously(self._guarded.request).status)

    def _in_burst(self) -> None:
        if self._burst is None:
            self._burst = self.prepared.configure_execution_burst()
        request = self._guarded.request
        _check(self._burst.execute_synchronously(request, tuple(range(len(request.pools)))).status)

    def _asynchronous(self) -> None:
        callback = ExecutionCallback()
        self.prepared.execute(self._guarded.request, callback)
        if isinstance(self.device, WatchedDevice):
            status, _ = self.device.connection.wait_for_callback(callback)
        else:
            notified = callback.wait(CALLBACK_SECONDS)
            if notified is None:
                raise DriverError(ErrorStatus.GENERAL_FAILURE, "the callback was never notified")
            status = notified[0]
        _check(status)

    def _fenced(self) -> None:
        fence, report = self.prepared.execute_fenced(self._guarded.request, ())
        if fence is not None and not fence.wait(int(CALLBACK_SECONDS / NANO)):
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "the fence was never signalled")
        _check(report().status)

    def close(self) -> None:
        """Lets burst, model and memory go."""
        if self._burst is not None:
            self._burst.close()
            self._burst = None
        self.prepared.close()
        self.arena.close()


_MODES: dict[ExecutionMode, Callable[[Station], None]] = {
    ExecutionMode.SYNCHRONOUS: Station._synchronous,
    ExecutionMode.BURST: Station._in_burst,
    ExecutionMode.ASYNCHRONOUS: Station._asynchronous,
    ExecutionMode.FENCED: Station._fenced,
}


def _check(status: ErrorStatus) -> None:
    if status != ErrorStatus.NONE:
        raise DriverError(status, "an execution of a valid request failed")


def prepare(
    device: Device, model: Model, config: CompilationConfig = DEFAULT_COMPILATION
) -> tuple[float, PreparedModel]:
    """Prepares a model; seconds, and the model."""
    begun = time.perf_counter_ns()
    prepared = device.prepare_model(model, config)
    return (time.perf_counter_ns() - begun) * NANO, prepared


def throughput(stations: Sequence[Station], seconds: float) -> tuple[float, float]:
    """Runs stations side by side, each in a thread of its own.

    Returns:
        Executions a second of all, and the median seconds of one.
    """
    taken: list[list[float]] = [[] for _ in stations]
    errors: list[BaseException] = []
    gate = threading.Barrier(len(stations) + 1)
    end = [0.0]

    def work(station: Station, mine: list[float]) -> None:
        gate.wait()
        try:
            while time.monotonic() < end[0]:
                mine.append(station.run())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(stations, taken, strict=True)]
    for thread in threads:
        thread.start()
    begun = time.monotonic()
    end[0] = begun + seconds
    gate.wait()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    everything = [value for mine in taken for value in mine]
    return len(everything) / (time.monotonic() - begun), float(np.median(everything)) if everything else 0.0
