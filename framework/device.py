"""The framework: several drivers and a CPU behind the interface of one. What a client of NNAPI calls the runtime."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from framework.buffers import BufferTable
from framework.calls import Await, await_callback
from framework.events import Event, EventKind, Report
from framework.levels import compilation_at
from framework.members import CPU, Candidate, LeftOut, Member, discover, introduce, lost
from framework.parts import Compilation, Compiled, compiled
from framework.plan import Part, Plan
from framework.planning import Planner
from framework.prepared import FrameworkPreparedModel
from framework.running import check_deadline
from framework.submodel import Cut
from nnhal.capabilities import listed_types
from nnhal.device import (
    DEFAULT_COMPILATION,
    Buffer,
    BufferDesc,
    BufferRole,
    Capabilities,
    CompilationConfig,
    Device,
    Extension,
    OperandPerformance,
    PerformanceInfo,
    PreparedModel,
    Traits,
)
from nnhal.errors import DriverError, UncleanError, invalid
from nnhal.model import Model
from nnhal.types import DeviceType, ErrorStatus, ExecutionMode, FeatureLevel
from nnhal.validate import validate_compilation, validate_model
from nnhal.vlog import vlog

LOST_IN_TIME = (ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT)


class NoDeviceError(Exception):
    """A framework with nothing to run models on; the message says why each device was left out."""


class Framework(Device):
    """Runs models on several devices: each operation where it costs least, the rest on the CPU.

    It validates models and requests itself, at its own level: the CPU's, which has to run everything. Devices of older
    levels get what they know. When a device fails to prepare its part, the whole model goes to the CPU; when one fails
    in an execution, that execution does. Nothing of it is silent: `report` is told. A device that dies, hangs or
    raises what is no answer is not covered up: the error goes to the client.

    Args:
        candidates: name and device, or what makes it, best ones first.
        cpu: runs what no other can; None for a framework that has to do without.
        report: told what happens besides.
        wait: waits for the notification of a device of level 1 or 2.

    Raises:
        NoDeviceError: no candidate is left, and there is no CPU.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        cpu: Device | None = None,
        *,
        report: Report | None = None,
        wait: Await = await_callback,
    ) -> None:
        self.report: Report = report or _log
        self._wait = wait
        found = discover(candidates, self.report)
        self.left_out: tuple[LeftOut, ...] = found.left_out
        self.cpu = introduce(CPU, cpu, cpu=True) if cpu is not None else None
        self.members: tuple[Member, ...] = (*found.members, *((self.cpu,) if self.cpu else ()))
        if not self.members:
            reasons = "; ".join(f"{out.name}: {out.reason}" for out in self.left_out)
            raise NoDeviceError(f"no device is left: {reasons or 'none was given'}")
        self.feature_level = self.cpu.level if self.cpu else max(member.level for member in self.members)
        self.traits = self._traits()
        self._planner = Planner(self.members, self.feature_level, self.report)
        self._buffers = BufferTable()
        self._lost: list[Exception] = []
        self._lock = threading.Lock()

    def _traits(self) -> Traits:
        every = [member.device.traits for member in self.members]
        dynamic = self.cpu.device.traits.dynamic_shapes if self.cpu else all(traits.dynamic_shapes for traits in every)
        return Traits(
            execution_modes=frozenset(ExecutionMode),
            buffers=all(traits.buffers for traits in every),
            dynamic_shapes=dynamic,
            deterministic=all(traits.deterministic for traits in every),
            validates=all(traits.validates for traits in every),
        )

    # ---- what it says of itself

    def get_type(self) -> DeviceType:
        return DeviceType.OTHER

    def get_version_string(self) -> str:
        return "framework of " + ", ".join(f"{member.name} ({member.version})" for member in self.members)

    def get_capabilities(self) -> Capabilities:
        return best([member.capabilities for member in self.members], self.feature_level)

    def get_supported_extensions(self) -> tuple[Extension, ...]:
        found: dict[str, Extension] = {}
        for member in self.members:
            for extension in member.extensions:
                found.setdefault(extension.name, extension)
        return tuple(found.values())

    # ---- models

    def get_supported_operations(self, model: Model) -> list[bool]:
        validate_model(model, self.feature_level)
        supported = self._planner.ask(model, anew=True).supported
        return [any(column) for column in zip(*supported.values(), strict=True)]

    def explain_unsupported(self, model: Model) -> list[str | None]:
        reasons: list[str | None] = [None] * len(model.main.operations)
        supported = self.get_supported_operations(model)
        if all(supported):
            return reasons
        told = [(member.name, member.device.explain_unsupported(model)) for member in self.members]
        for number, yes in enumerate(supported):
            if not yes:
                reasons[number] = "; ".join(f"{name}: {words[number] or 'no reason'}" for name, words in told)
        return reasons

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        validate_model(model, self.feature_level)
        validate_compilation(config, self.feature_level)
        check_deadline(config.deadline, "preparing")
        try:
            compilation = self._compile(*self._planner.plan(model, config), config)
        except _PartFailedError as failure:
            compilation = self._fall_back(model, config, failure)
        self.report(Event(EventKind.PREPARED, "", str(compilation.plan), compilation.plan))
        whole = partial(self._compile_on_cpu, model, config) if self.cpu is not None else None
        return FrameworkPreparedModel(
            compilation, self.feature_level, self.report, self._wait, whole, self._buffers, self._lost.append
        )

    def _compile(self, plan: Plan, cuts: Sequence[Cut], config: CompilationConfig) -> Compilation:
        """Prepares every part of a plan; lets all go when one fails."""
        prepared: list[PreparedModel] = []
        try:
            for number, (part, piece) in enumerate(zip(plan.parts, cuts, strict=True)):
                check_deadline(config.deadline, f"preparing part {number}", late=number > 0)
                prepared.append(self._prepare(part, piece, config, plan))
        except BaseException:
            for done in prepared:
                done.close()
            raise
        return compiled(plan, cuts, prepared)

    def _prepare(self, part: Part, piece: Cut, config: CompilationConfig, plan: Plan) -> PreparedModel:
        member = part.member
        try:
            prepared = member.device.prepare_model(piece.model, compilation_at(config, member.level))
            if not isinstance(prepared, PreparedModel):
                raise UncleanError("TypeError", f"prepare_model answered {type(prepared).__name__}")
        except DriverError as error:
            if error.status in LOST_IN_TIME:
                raise
            raise _PartFailedError(member, error, plan) from error
        except Exception as error:
            lost(member, error, self.report)
        return prepared

    def _fall_back(self, model: Model, config: CompilationConfig, failure: _PartFailedError) -> Compilation:
        """The whole model on the CPU, after a device failed to prepare its part.

        Raises:
            DriverError: the device's, where the CPU cannot help.
        """
        text = f"{failure.member.name} claimed its part and answered {failure.error} when it was to prepare it"
        if self.cpu is None or failure.member.cpu:
            raise failure.error
        self.report(
            Event(EventKind.PREPARATION_FELL_BACK, failure.member.name, f"{text}; the CPU has it all", failure.plan)
        )
        check_deadline(config.deadline, "preparing on the CPU", late=True)
        try:
            return self._compile_on_cpu(model, config)
        except DriverError as error:
            raise (error if error.status in LOST_IN_TIME else failure.error) from failure

    def _compile_on_cpu(self, model: Model, config: CompilationConfig) -> Compilation:
        """The whole model on the CPU.

        Raises:
            DriverError: the CPU does not have it.
        """
        assert self.cpu is not None
        plan = Plan(model, (Part(self.cpu, tuple(range(len(model.main.operations)))),))
        try:
            return self._compile(plan, [self._planner.whole(self.cpu, model)], config)
        except _PartFailedError as failure:
            raise failure.error from failure
        except ValueError as reason:
            raise DriverError(ErrorStatus.GENERAL_FAILURE, f"the CPU cannot take the model: {reason}") from None

    # ---- buffers, and what went wrong in threads

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        parts: list[Compiled | None] = []
        for prepared in prepared_models:
            if not isinstance(prepared, FrameworkPreparedModel):
                raise invalid("a prepared model of another driver")
            parts.append(prepared.only_part)
        return self._buffers.allocate(desc, parts, input_roles, output_roles)

    def raise_lost(self) -> None:
        """Raises what ended a device in an execution that nobody waited for in its own thread, if anything did."""
        if self._lost:
            raise self._lost.pop(0)


class _PartFailedError(Exception):
    """A device did not prepare its part."""

    def __init__(self, member: Member, error: DriverError, plan: Plan) -> None:
        super().__init__(str(error))
        self.member = member
        self.error = error
        self.plan = plan


def _log(event: Event) -> None:
    vlog("manager", event.text)


def best(capabilities: Sequence[Capabilities], level: FeatureLevel) -> Capabilities:
    """For each figure that a level knows the smallest of several devices: an operation goes where it costs least."""
    known = listed_types(level)

    def least(figures: Sequence[PerformanceInfo]) -> PerformanceInfo:
        return PerformanceInfo(min(f.exec_time for f in figures), min(f.power_usage for f in figures))

    by_type: dict[int, list[OperandPerformance]] = {}
    for one in capabilities:
        for entry in one.operand_performance:
            if entry.type not in known:
                continue
            by_type.setdefault(int(entry.type), []).append(entry)
    return Capabilities(
        tuple(OperandPerformance(by_type[k][0].type, least([e.info for e in by_type[k]])) for k in sorted(by_type)),
        least([one.relaxed_float32_to_float16_performance_scalar for one in capabilities]),
        least([one.relaxed_float32_to_float16_performance_tensor for one in capabilities]),
        least([one.if_performance for one in capabilities]),
        least([one.while_performance for one in capabilities]),
    )
