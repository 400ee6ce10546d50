"""A driver under test as a session sees it: isolated in its own process, or in this one for a debugger."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from harness.isolation import DEADLINE, IsolatedDriver
from harness.remarks import NO_REMARKS, Remarks
from harness.translating import Translations
from nnhal import loading
from nnhal.device import (
    DEFAULT_COMPILATION,
    Adapter,
    Capabilities,
    CompilationConfig,
    Device,
    PreparedModel,
    Traits,
)
from nnhal.errors import UncleanError
from nnhal.loading import DriverSpec
from nnhal.model import Model
from nnhal.types import DeviceType, FeatureLevel


class Driver(Protocol):
    """What a session needs of a driver, wherever it runs."""

    in_process: bool
    spec: DriverSpec | None  # None where there are several

    @property
    def device(self) -> Device:
        """The driver; after a death, one in a fresh process."""

    @property
    def log(self) -> str:
        """The end of the driver's log."""

    @property
    def pid(self) -> int:
        """Process that the driver is in, the first one where there are several; 0 while it is not known."""

    def restart(self, fill: int | None = None) -> None:
        """Goes on in a fresh process.

        Args:
            fill: byte that memory from the process's allocator holds; None for what it holds by itself.
        """

    def rest(self) -> None:
        """Ends the driver's processes; the next question starts one again."""

    def sample(self) -> dict[str, float]:
        """What the driver's process uses now; empty when that cannot be told."""

    def remarks(self) -> Remarks:
        """What is known of the cases since this was asked last, besides their outcomes."""

    def close(self) -> None:
        """Ends the driver."""


class Translating(Device):
    """An adapter in this process: its two halves side by side."""

    def __init__(self, inner: Adapter, spec: DriverSpec) -> None:
        self._inner = inner
        self._translated = Translations(lambda model: inner.translate(model, spec.options))
        self.feature_level = inner.feature_level
        self.traits = inner.traits

    def get_capabilities(self) -> Capabilities:
        return self._inner.get_capabilities()

    def get_type(self) -> DeviceType:
        return self._inner.get_type()

    def get_version_string(self) -> str:
        return self._inner.get_version_string()

    def get_supported_operations(self, model: Model) -> list[bool]:
        return self._inner.get_supported_operations(self._translated(model))

    def explain_unsupported(self, model: Model) -> list[str | None]:
        return self._inner.explain_unsupported(self._translated(model))

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        return self._inner.prepare_model(self._translated(model), config)


def load_in_process(spec: DriverSpec) -> Device:
    """The driver in this process; an adapter with both its halves.

    Raises:
        UsageError: it cannot be loaded.
    """
    device = loading.load(spec)
    return Translating(device, spec) if isinstance(device, Adapter) else device


class InProcessDriver:
    """A driver in the suite's own process: nothing survives its death. For debuggers."""

    in_process = True
    log = ""
    pid = os.getpid()

    def __init__(self, spec: DriverSpec) -> None:
        self.spec: DriverSpec | None = spec
        self._spec = spec
        self.device = load_in_process(spec)

    def restart(self, fill: int | None = None) -> None:
        """A new device object; the process is the same."""
        self.device = load_in_process(self._spec)

    def sample(self) -> dict[str, float]:
        """Nothing: the process is the suite's own."""
        return {}

    def remarks(self) -> Remarks:
        """None."""
        return NO_REMARKS

    def rest(self) -> None:
        """Nothing to end."""

    def close(self) -> None:
        """Nothing to end."""


class SeparateDriver:
    """A driver in a process of its own, started when it is first asked for."""

    in_process = False

    def __init__(
        self, spec: DriverSpec, *, deadline: float, log_path: Path, memory: int | None, spare: bool = True
    ) -> None:
        self.spec: DriverSpec | None = spec
        self._start = partial(IsolatedDriver, spec, deadline=deadline, log_path=log_path, memory=memory, spare=spare)
        self._isolated: IsolatedDriver | None = None

    def _running(self) -> IsolatedDriver:
        if self._isolated is None:
            self._isolated = self._start()
        return self._isolated

    @property
    def device(self) -> Device:
        return self._running().device

    @property
    def log(self) -> str:
        return self._isolated.log if self._isolated else ""

    @property
    def pid(self) -> int:
        return self._isolated.pid if self._isolated else 0

    def restart(self, fill: int | None = None) -> None:
        self._running().restart(fill)

    def sample(self) -> dict[str, float]:
        found = self._isolated.sample() if self._isolated else None
        return {k: float(v) for k, v in asdict(found).items()} if found else {}

    def remarks(self) -> Remarks:
        return NO_REMARKS

    def rest(self) -> None:
        if self._isolated is not None:
            self._isolated.close()
            self._isolated = None

    def close(self) -> None:
        self.rest()


def open_driver(
    spec: DriverSpec,
    *,
    log_path: Path,
    in_process: bool = False,
    deadline: float = DEADLINE,
    memory: int | None = None,
    spare: bool = True,
) -> Driver:
    """Starts a driver, with another process of it that is ready to take over where `spare` says so.

    Raises:
        UsageError: it cannot be loaded; one sentence says why.
    """
    if in_process:
        return InProcessDriver(spec)
    return SeparateDriver(spec, deadline=deadline, log_path=log_path, memory=memory, spare=spare)


@dataclass(frozen=True)
class DriverFacts:
    """What a driver says of itself, asked once at the start of a run."""

    version: str
    type: str
    level: FeatureLevel
    traits: Traits


def ask_facts(device: Device) -> DriverFacts:
    """Version, type, level and traits of a driver.

    Raises:
        UncleanError: an answer makes no sense.
    """
    kind = device.get_type()
    if not isinstance(kind, DeviceType):
        raise UncleanError("TypeError", f"get_type answered {type(kind).__name__}, DeviceType is due")
    if device.feature_level not in list(FeatureLevel):
        raise UncleanError("ValueError", f"feature_level is {device.feature_level!r}, 1 to 8 is due")
    version, level = str(device.get_version_string()), FeatureLevel(device.feature_level)
    return DriverFacts(version, kind.name, level, device.traits)
