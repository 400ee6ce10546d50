"""The devices of a framework: found, asked once what they are, and named so that each name stands for one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from framework.events import Event, EventKind, Report
from nnhal import loading
from nnhal.device import Capabilities, Device, Extension
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError, UsageError
from nnhal.loading import DriverSpec
from nnhal.types import FL3, FL4, DeviceStatus, DeviceType, FeatureLevel
from nnhal.vlog import vlog

CPU = "cpu"


@dataclass(frozen=True)
class Member:
    """A device as the framework knows it: what it said of itself when it was found.

    Attributes:
        cpu: it is the one that runs what no other can, and what others fail at.
    """

    name: str
    device: Device = field(repr=False)
    level: FeatureLevel
    version: str
    type: DeviceType
    capabilities: Capabilities = field(repr=False)
    extensions: tuple[Extension, ...] = ()
    cpu: bool = False


@dataclass(frozen=True)
class LeftOut:
    """A device that does not take part, and why."""

    name: str
    reason: str
    error: Exception = field(repr=False)


@dataclass(frozen=True)
class Found:
    """What a discovery gave."""

    members: tuple[Member, ...]
    left_out: tuple[LeftOut, ...] = ()


Candidate = tuple[str, "Device | Callable[[], Device]"]


def unique_names(wanted: Sequence[str], taken: Sequence[str] = ()) -> tuple[str, ...]:
    """The same names, a repeated one with `#2`, `#3` and so on behind it."""
    names: list[str] = []
    used = {*taken, *wanted}
    for name in wanted:
        number, unique = 1, name
        while unique in names or unique in taken or (number > 1 and unique in used):
            number += 1
            unique = f"{name}#{number}"
        names.append(unique)
    return tuple(names)


def discover(candidates: Sequence[Candidate], report: Report | None = None) -> Found:
    """Asks each candidate what it is; one that fails to answer is left out with a message.

    Args:
        candidates: name and device, or what makes it; the order decides where two are as good.
        report: told of each one that is left out.
    """
    members: list[Member] = []
    left_out: list[LeftOut] = []
    names = unique_names([name for name, _ in candidates], taken=(CPU,))
    for name, (_, made) in zip(names, candidates, strict=True):
        found = _try(name, made)
        if isinstance(found, Member):
            members.append(found)
            continue
        left_out.append(found)
        text = f"device {name} is left out: {found.reason}"
        vlog("manager", text)
        if report is not None:
            report(Event(EventKind.LEFT_OUT, name, text))
    return Found(tuple(members), tuple(left_out))


def _try(name: str, made: Device | Callable[[], Device]) -> Member | LeftOut:
    try:
        return introduce(name, made if isinstance(made, Device) else made())
    except Exception as error:  # a driver may raise anything; the framework goes on without it
        reason = str(error) if isinstance(error, DriverError) else f"{type(error).__name__}: {error}"
        return LeftOut(name, reason, error)


def installed_candidates() -> list[Candidate]:
    """Every driver that is installed, by name; nothing is loaded before a discovery asks for it."""
    return [(name, partial(loading.load, DriverSpec.parse(name))) for name in loading.installed()]


def introduce(name: str, device: Device, *, cpu: bool = False) -> Member:
    """Asks a device what its level knows to say.

    Raises:
        ValueError: an answer makes no sense.
        DriverError: the device does not answer. Whatever else it raises is raised, too.
    """
    if device.feature_level not in list(FeatureLevel):
        raise ValueError(f"feature_level is {device.feature_level!r}, 1 to 8 is due")
    level = FeatureLevel(device.feature_level)
    if level <= FL4 and device.get_status() == DeviceStatus.OFFLINE:
        raise ValueError("the device is offline")
    capabilities = device.get_capabilities()
    if not isinstance(capabilities, Capabilities):
        raise TypeError(f"get_capabilities answered {type(capabilities).__name__}, Capabilities is due")
    if level < FL3:
        return Member(name, device, level, level.version, DeviceType.OTHER, capabilities, cpu=cpu)
    kind, version = device.get_type(), device.get_version_string()
    if not isinstance(kind, DeviceType) or not isinstance(version, str):
        raise TypeError(f"type {kind!r} and version {version!r} are no DeviceType and no text")
    vlog("manager", f"device {name}: {version}, {kind.name}, level {level.version}")
    return Member(name, device, level, version, kind, capabilities, tuple(device.get_supported_extensions()), cpu)


def lost(member: Member, error: Exception, report: Report) -> NoReturn:
    """Hands on that a device died, fell silent or raised what is no answer: nothing hides that.

    Raises:
        SuiteError: the device is the CPU, which is no driver under test.
        DriverDied: with the device's name; or whatever the error was.
    """
    report(Event(EventKind.LOST, member.name, f"device {member.name}: {type(error).__name__}: {error}"))
    if isinstance(error, (SuiteError, UsageError)):
        raise error
    if member.cpu:
        raise SuiteError(f"the CPU of the framework failed: {type(error).__name__}: {error}") from error
    if isinstance(error, DriverDied):
        raise DriverDied(f"({member.name}) {error.reason}", error.log) from error
    if isinstance(error, UncleanError):
        raise UncleanError(error.type_name, f"{error.message} (device {member.name})", error.trace) from error
    if isinstance(error, DriverTimedOut):
        raise error
    raise UncleanError(type(error).__name__, f"{error} (device {member.name})") from error
