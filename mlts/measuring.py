"""Measures a model on a driver and on the baseline in turns: preparation, latency by mode, throughput, resources.

Driver and baseline are run in short blocks one after the other, in an order that changes from pair to pair, so that
what the machine does meanwhile befalls both.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from harness.cache_files import CacheFiles
from harness.driver import Driver
from mlts.plan import Plan
from mlts.station import Station, prepare, sizes_known, throughput
from mlts.statistics import Comparison, compare_pairs, least_count, percentile
from mlts.subject import Measured, Subject
from nnhal.device import CompilationConfig, Device
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError, UsageError
from nnhal.model import Model
from nnhal.types import Array, ExecutionMode

BLOCK = 0.03  # seconds of executions in a row, at least; one where an execution takes longer
LARGEST_BLOCK = 40
NARROW = 0.01  # half width of the ratio's interval, as a share of it, at which there is no need to go on
NARROW_MEDIAN = 0.02
LONGER = 3  # times the planned length, at most, where the pairs do not tell who is quicker
MODES = (ExecutionMode.BURST, ExecutionMode.ASYNCHRONOUS, ExecutionMode.FENCED)
TOLD = 20  # executions with timing
RAPL = Path("/sys/class/powercap/intel-rapl:0/energy_uj")

Show = Callable[[str, float], None]


@dataclass
class Side:
    """The driver, or the baseline: one of the two that take turns."""

    driver: Driver
    model: Model
    measured: Measured
    is_baseline: bool = False
    outputs: list[list[Array]] = field(default_factory=list)

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Whatever ends the baseline is no fault of the driver.

        Raises:
            SuiteError: the baseline failed.
        """
        try:
            yield
        except (DriverError, DriverDied, DriverTimedOut, UncleanError) as error:
            if self.is_baseline:
                raise SuiteError(f"the baseline {self.measured.driver} failed: {error}") from error
            raise

    @property
    def device(self) -> Device:
        """The driver, as it is now."""
        return self.driver.device


class Bench:
    """A driver and the baseline, with a model on each.

    Args:
        subject: the model.
        driver: under test.
        baseline: what it is measured against.
        plan: how long.
        names: of driver, baseline and tier, for what is measured.
        show: is told what goes on, and which share of the model's work is done.
    """

    def __init__(
        self,
        subject: Subject,
        driver: Driver,
        baseline: Driver,
        plan: Plan,
        names: tuple[str, str, str],
        show: Show = lambda words, share: None,
    ) -> None:
        self.subject, self.plan, self._show = subject, plan, show
        if not sizes_known(subject.model):
            raise UsageError(f"{subject.name} has outputs whose size only a run tells; the benchmark needs known sizes")
        mine, base = (Measured(subject.name, name, names[2]) for name in names[:2])
        self.ours = Side(driver, subject.model, mine)
        self.theirs = Side(baseline, subject.baseline_model, base, is_baseline=True)

    def run(self) -> None:
        """Measures everything; what is known so far stays known when something is raised.

        Raises:
            DriverDied, DriverTimedOut, DriverError, UncleanError, DamageError: by the driver.
            SuiteError: the baseline failed.
        """
        stations: list[tuple[Side, Station]] = []
        try:
            for side in (self.ours, self.theirs):
                with side.blamed():
                    self._prepare(side)
                    stations.append((side, self._station(side)))
            self._warm_up(stations)
            self._rounds(stations)
            self._other_modes(stations[0][1])
            self._ask_timing(stations[0][1])
            for side, station in stations:
                with side.blamed():
                    self._resources(side, station)
                    self._side_by_side(side)
            self._take_outputs(stations)
        finally:
            for _, station in stations:
                station.close()

    # ---- preparation

    def _prepare(self, side: Side) -> None:
        self._show("prepares", 0.05)
        device, into = side.device, side.measured  # asked for first: only then it has a process
        into.memory["before"] = int(side.driver.sample().get("rss", 0))
        end = time.monotonic() + self.plan.prepare_seconds
        while len(into.prepare) < self.plan.preparations and (not into.prepare or time.monotonic() < end):
            seconds, prepared = prepare(device, side.model)
            into.prepare.append(seconds)
            prepared.close()
        if device.traits.caching:
            self._prepare_cached(device, side.model, into)

    def _prepare_cached(self, device: Device, model: Model, into: Measured) -> None:
        needed = device.get_number_of_cache_files_needed()
        if not needed.num_model_cache and not needed.num_data_cache:
            return
        token = hashlib.sha256(self.subject.name.encode()).digest()
        end = time.monotonic() + 2 * self.plan.prepare_seconds
        while len(into.from_cache) < self.plan.preparations and (not into.from_cache or time.monotonic() < end):
            with contextlib.closing(CacheFiles.create(needed)) as files:
                with files.handles() as (model_cache, data_cache):
                    config = CompilationConfig(model_cache=model_cache, data_cache=data_cache, cache_token=token)
                    seconds, prepared = prepare(device, model, config)
                into.to_cache.append(seconds)
                prepared.close()
                into.cache_bytes = files.size()
                with files.handles() as (model_cache, data_cache):
                    begun = time.perf_counter()
                    try:
                        prepared = device.prepare_model_from_cache(model_cache, data_cache, token)
                    except DriverError as error:  # it need not keep what it was asked to
                        into.notes.append(f"loading from its own cache was refused: {error}")
                        return
                into.from_cache.append(time.perf_counter() - begun)
                prepared.close()

    def _station(self, side: Side) -> Station:
        _, prepared = prepare(side.device, side.model)
        side.measured.memory["prepared"] = int(side.driver.sample().get("rss", 0))
        station = Station(side.device, side.model, prepared, self.subject.samples[0])
        side.measured.first = station.run()
        return station

    # ---- latencies

    def _warm_up(self, stations: Sequence[tuple[Side, Station]]) -> None:
        self._show("warms up", 0.15)
        for side, station in stations:
            end = time.monotonic() + self.plan.warm_up
            with side.blamed():
                while time.monotonic() < end:
                    station.run()
                    side.measured.warm_up += 1

    def _rounds(self, stations: Sequence[tuple[Side, Station]]) -> None:
        """Blocks in turns until the time is over, or enough is known."""
        subject, plan, mine = self.subject, self.plan, self.ours.measured
        sizes = []
        for side, station in stations:
            with side.blamed():
                sizes.append(_block(station.run()))
        begun, number = time.monotonic(), 0
        while number < plan.rounds or self._goes_on(time.monotonic() - begun):
            values = subject.samples[number % len(subject.samples)]
            medians = [0.0, 0.0]
            for place in (0, 1) if number % 2 else (1, 0):
                side, station = stations[place]
                station.place(values)
                with side.blamed():
                    taken = [station.run() for _ in range(sizes[place])]
                side.measured.latency += taken
                medians[place] = median(taken)
            mine.pairs.append((medians[0], medians[1]))
            number += 1
            self._show("executes", 0.2 + 0.4 * min(1.0, (time.monotonic() - begun) / max(plan.seconds, 1e-9)))
            if number >= plan.rounds and number % 8 == 0 and self._enough():
                mine.notes.append(f"ended after {number} rounds: the intervals are narrow enough")
                break

    def _goes_on(self, seconds: float) -> bool:
        """Whether there is time for another round: more of it where the pairs so far do not tell who is quicker."""
        if seconds < self.plan.seconds:
            return True
        if seconds > LONGER * self.plan.seconds:
            return False
        return compare_pairs(self.ours.measured.pairs).verdict == Comparison.UNDECIDED

    def _enough(self) -> bool:
        """Whether the ratio is known well, and p99 has the executions that it needs."""
        both = [side.measured.latency for side in (self.ours, self.theirs)]
        if min(map(len, both)) < least_count(99):
            return False
        paired = compare_pairs(self.ours.measured.pairs)
        narrow = all(percentile(latency, 50).width < NARROW_MEDIAN for latency in both)
        return narrow and paired.ratio.width < NARROW and paired.verdict != Comparison.UNDECIDED

    def _other_modes(self, station: Station) -> None:
        self._show("executes in other modes", 0.65)
        for mode in MODES:
            if mode not in station.device.traits.execution_modes:
                continue
            station.run(mode)
            end = time.monotonic() + self.plan.mode_seconds
            taken: list[float] = []
            while time.monotonic() < end or not taken:
                taken.append(station.run(mode))
            self.ours.measured.modes[mode.name.lower()] = taken

    def _ask_timing(self, station: Station) -> None:
        end = time.monotonic() + self.plan.mode_seconds
        for _ in range(TOLD):
            self.ours.measured.told.append(station.timed())
            if time.monotonic() > end:
                break

    def _side_by_side(self, side: Side) -> None:
        """Throughput with several requests in flight, each of a thread and memory of its own."""
        self._show("executes side by side", 0.75)
        _, prepared = prepare(side.device, side.model)
        stations: list[Station] = []
        try:
            for count in self.plan.in_flight:
                while len(stations) < count:
                    stations.append(Station(side.device, side.model, prepared, self.subject.samples[0]))
                side.measured.in_flight[count] = throughput(stations, self.plan.mode_seconds)
        finally:
            for station in stations:
                station.arena.close()
            prepared.close()

    # ---- resources and outputs

    def _resources(self, side: Side, station: Station) -> None:
        into = side.measured
        before, energy = side.driver.sample(), _energy()
        begun, count = time.monotonic(), 0
        while count < 3 or time.monotonic() - begun < self.plan.mode_seconds:
            station.run()
            count += 1
        after = side.driver.sample()
        if before and after:
            into.memory["executed"] = int(after["rss"])
            into.processor = (after["cpu_seconds"] - before["cpu_seconds"]) / count
        if (largest := largest_memory(side.driver.pid)) is not None:
            into.memory["largest"] = largest
        if energy is not None and (now := _energy()) is not None and now > energy:
            into.energy = (now - energy) / count

    def _take_outputs(self, stations: Sequence[tuple[Side, Station]]) -> None:
        samples = self.subject.samples[: self.plan.samples]
        for number, values in enumerate(samples):
            self._show(f"output {number + 1} of {len(samples)}", 0.8 + 0.2 * number / len(samples))
            for side, station in stations:
                station.place(values)
                with side.blamed():
                    station.run()
                side.outputs.append(station.outputs())
            damage = stations[0][1].damage()
            if damage:
                raise DamageError(damage)


class DamageError(Exception):
    """The driver wrote where it must not."""


def _block(seconds: float) -> int:
    return max(1, min(LARGEST_BLOCK, round(BLOCK / max(seconds, 1e-9))))


def _energy() -> float | None:
    """Joules that the processor has used since some moment; None where the system does not tell."""
    try:
        return int(RAPL.read_text()) / 1e6
    except (OSError, ValueError):
        return None


def largest_memory(pid: int) -> int | None:
    """The most memory that a process has held, in bytes; None where the system does not tell."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
