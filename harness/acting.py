"""Takes one step with a driver: every action of `harness.steps`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from harness.cache_files import CacheFiles
from harness.case import Step
from harness.executing import Executing, Missing, from_now, how_of, member_of
from harness.expectations import Rejects, Returns
from harness.guards import Arena
from harness.layouts import pool_of, pool_with
from harness.outcome import Description, StepOutcome
from harness.remote import WatchedDevice
from harness.steps import (
    SECOND,
    Action,
    Allocation,
    Copying,
    Preparation,
    Restarting,
    Running,
    Tampering,
)
from nnhal.device import (
    DEFAULT_EXECUTION,
    Buffer,
    BufferDesc,
    BufferRole,
    CacheFilesNeeded,
    CompilationConfig,
    ExecutionConfig,
    ExecutionResult,
    PreparedModel,
)
from nnhal.errors import DriverError
from nnhal.model import Model, Request
from nnhal.types import FL3, FL4, ErrorStatus, ExecutionPreference, FeatureLevel, Priority, info

LONG_LOOP = 2 * SECOND  # a loop that may run for longer needs a longer call


class _Foreign(PreparedModel):
    """A prepared model of another driver."""

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        raise DriverError(ErrorStatus.INVALID_ARGUMENT, "this prepared model is another driver's")


@dataclass
class Acting(Executing):
    """What exists on both sides while a case runs. `take` takes its steps."""

    _needed: CacheFilesNeeded | None = None
    _untouched: set[int] = field(default_factory=set)  # caches that could not be tampered with as was wanted
    _moved: dict[tuple[int, str], Model] = field(default_factory=dict)

    def take(self, number: int, step: Step, *, alone: bool = True) -> StepOutcome:
        """Takes a step. Raises what a driver may not raise; `harness.run` makes outcomes of it.

        Args:
            number: index of the step.
            step: what to do.
            alone: nothing else goes on meanwhile, so that the case's memory can be used again.
        """
        arena = self.arena
        if not alone or step.action == Action.LAUNCH:
            arena = Arena(pages=self.arena.pages)
            self.arenas.append(arena)
        waits = step.action in (Action.EXECUTE, Action.WAIT, Action.LAUNCH)
        with self._patience(step), self.helping() if waits else contextlib.nullcontext():
            if step.action in (Action.EXECUTE, Action.LAUNCH):
                return self._execute(number, step, arena)
            return getattr(self, f"_{step.action.value}")(number, step)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _patience(self, step: Step) -> Iterator[None]:
        """A longer deadline for calls that are to take long."""
        limit = step.how.loop_timeout if isinstance(step.how, Running) and not step.how.absolute else None
        if limit is None or limit <= LONG_LOOP or not isinstance(self.device, WatchedDevice):
            yield
            return
        connection = self.device.connection
        with connection.within(connection.limit() + limit / SECOND):
            yield

    def close(self) -> None:
        """Lets the suite's own things go."""
        for cache in self.caches.values():
            cache.close()
        for arena in self.arenas:
            arena.close()

    # ---- the device

    def _describe(self, number: int, step: Step) -> StepOutcome:
        device, level = self.device, self.level
        later = level >= FL3
        found = Description(
            FeatureLevel(device.feature_level),
            device.traits.caching,
            int(device.get_status()) if level <= FL4 else None,
            device.get_capabilities(),
            int(device.get_type()) if later else None,
            device.get_version_string() if later else None,
            tuple(device.get_supported_extensions()) if later else None,
            device.get_number_of_cache_files_needed() if later else None,
        )
        return StepOutcome(number, ErrorStatus.NONE, description=found)

    def _restart(self, number: int, step: Step) -> StepOutcome:
        for table in (self.prepared, self.bursts, self.executions, self.buffers, self.launches, self.callbacks):
            table.clear()  # they ended with the process
        self.fill = how_of(step, Restarting, Restarting()).fill
        if self.restart is not None:
            self.device = self.restart() if self.fill is None else self.restart(self.fill)
        return StepOutcome(number, ErrorStatus.NONE)

    def _query(self, number: int, step: Step) -> StepOutcome:
        model = self._model(step.model, how_of(step, Preparation, Preparation()))
        answer = self.device.get_supported_operations(model)
        supported = tuple(bool(value) for value in answer) if isinstance(answer, (list, tuple)) else ()
        if len(supported) != len(model.main.operations):
            text = f"the support query gave {len(supported)} booleans for {len(model.main.operations)} operations"
            return StepOutcome(number, ErrorStatus.NONE, supported=(), malformed=text)
        reasons: tuple[str | None, ...] = ()
        if not all(supported):
            with contextlib.suppress(DriverError):  # the answer to the query counts, whatever it is to a bad model
                reasons = tuple(self.device.explain_unsupported(model))
        return StepOutcome(number, ErrorStatus.NONE, supported=supported, reasons=reasons)

    def _prepare(self, number: int, step: Step) -> StepOutcome:
        how = how_of(step, Preparation, Preparation())
        with self._cached(how) as (model_cache, data_cache):
            config = CompilationConfig(
                preference=member_of(ExecutionPreference, how.preference),
                priority=member_of(Priority, how.priority),
                deadline=from_now(how.deadline),
                model_cache=model_cache,
                data_cache=data_cache,
                cache_token=how.token,
            )
            return self._keep(number, step, self.device.prepare_model(self._model(step.model, how), config))

    def _model(self, number: int, how: Preparation) -> Model:
        """A model of the case, its pools in memory of the kind that is asked for."""
        model = self.case.models[number]
        if not how.pools:
            return model
        key = number, how.pools
        if key not in self._moved:
            pools = tuple(pool_with(how.pools, bytes(pool.view())) for pool in model.pools)
            self._moved[key] = replace(model, pools=pools)
        return self._moved[key]

    def _load(self, number: int, step: Step) -> StepOutcome:
        how = how_of(step, Preparation, Preparation(cache=0))
        if isinstance(step.expect, Rejects) and not how.handles and how.cache in self._untouched:
            raise Missing
        with self._cached(how) as (model_cache, data_cache):
            deadline = from_now(how.deadline)
            prepared = self.device.prepare_model_from_cache(model_cache, data_cache, how.token, deadline)
            return self._keep(number, step, prepared)

    def _keep(self, number: int, step: Step, prepared: object) -> StepOutcome:
        if not isinstance(prepared, PreparedModel):
            method = "prepare_model" if step.action == Action.PREPARE else "prepare_model_from_cache"
            text = f"TypeError: {method} answered {type(prepared).__name__}, PreparedModel is due"
            return StepOutcome(number, None, unclean=text)
        self.prepared[step.place] = prepared
        return StepOutcome(number, ErrorStatus.NONE)

    @contextlib.contextmanager
    def _cached(self, how: Preparation) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        if how.cache is None:
            yield (), ()
            return
        files = self._cache(how.cache)
        if how.handles and not files.can_be(how.handles):
            raise Missing
        with files.handles(how.handles) as handles:
            yield handles

    def _cache(self, number: int) -> CacheFiles:
        if self._needed is None:
            self._needed = self.device.get_number_of_cache_files_needed()
        if number not in self.caches:
            self.caches[number] = CacheFiles.create(self._needed)
        return self.caches[number]

    def _tamper(self, number: int, step: Step) -> StepOutcome:
        how = how_of(step, Tampering, None)
        other = self._cache(how.other) if how.change == "replace" else None
        done = self._cache(how.cache).tamper(how, other)
        (self._untouched.discard if done else self._untouched.add)(how.cache)
        return StepOutcome(number, ErrorStatus.NONE if done else None, skipped=not done)

    # ---- buffers

    def _allocate(self, number: int, step: Step) -> StepOutcome:
        how = how_of(step, Allocation, None)
        models = [_Foreign() if slot < 0 else self.thing(self.prepared, slot) for slot in how.prepared]
        roles: dict[bool, list[BufferRole]] = {False: [], True: []}
        for role in how.roles:
            roles[role.output].append(BufferRole(role.model, role.place, role.frequency))
        buffer = self.device.allocate(BufferDesc(how.dimensions), models, roles[False], roles[True])
        if not isinstance(buffer, Buffer):
            text = f"TypeError: allocate answered {type(buffer).__name__}, Buffer is due"
            return StepOutcome(number, None, unclean=text)
        self.buffers[step.place] = buffer
        self.spent.pop(step.place, None)
        if not isinstance(buffer.token, int) or buffer.token <= 0:
            text = f"the buffer has the token {buffer.token!r}, a number above 0 is due"
            return StepOutcome(number, ErrorStatus.NONE, malformed=text)
        return StepOutcome(number, ErrorStatus.NONE)

    def _copy_in(self, number: int, step: Step) -> StepOutcome:
        how = how_of(step, Copying, Copying())
        value = step.inputs[0]
        data = b"" if value is None else value.tobytes()
        memory = pool_of(how.kind, len(data) if how.size is None else how.size)
        view = memory.view()
        view[: min(len(data), len(view))] = data[: len(view)]
        self.thing(self.buffers, step.place).copy_from(memory, how.dimensions)
        return StepOutcome(number, ErrorStatus.NONE)

    def _copy_out(self, number: int, step: Step) -> StepOutcome:
        how = how_of(step, Copying, Copying())
        buffer = self.thing(self.buffers, step.place)
        due = step.expect.outputs[0] if isinstance(step.expect, Returns) and step.expect.outputs else None
        dtype = np.dtype(np.uint8 if due is None else info(due.type).dtype)
        length = 1 if due is None else int(np.prod(due.shape, dtype=np.int64)) * dtype.itemsize
        memory = pool_of(how.kind, length if how.size is None else how.size)
        buffer.copy_to(memory)
        if due is None:
            return StepOutcome(number, ErrorStatus.NONE)
        value = np.frombuffer(bytes(memory.view()[:length]), dtype).reshape(due.shape)
        return StepOutcome(number, ErrorStatus.NONE, outputs=(value,), shapes=(due.shape,))
