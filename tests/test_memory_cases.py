"""Drivers that misuse memory, each seen by the scenario that is there for it, and by what words."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

from conformance import caching, dynamic_shapes, memory
from conformance.behaviour import batches
from conformance.memory import SCENARIOS
from harness.case_file import load, save, seal
from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    BufferDesc,
    BufferRole,
    CompilationConfig,
    ExecutionConfig,
    ExecutionResult,
    PreparedModel,
)
from nnhal.errors import DriverError, invalid
from nnhal.memory import HardwareBuffer, MappedFile, Memory, SharedMemory
from nnhal.model import Model, Request
from nnhal.types import ErrorStatus
from reference_driver import ReferenceDevice
from reference_driver.buffers import Buffers, Dimensions, ReferenceBuffer
from reference_driver.execution import ReferencePreparedModel
from tests.scenario_runs import caught


class Twisted(ReferencePreparedModel):
    """Sees another request than the one that came."""

    def twist(self, request: Request) -> Request:
        return request

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        return super().execute_synchronously(self.twist(request), config, deadline)


class Aligned(Twisted):
    def twist(self, request: Request) -> Request:
        places = [replace(a.location, offset=a.location.offset // 4 * 4) for a in request.inputs]
        inputs = tuple(replace(a, location=p) for a, p in zip(request.inputs, places, strict=True))
        return replace(request, inputs=inputs)


class FirstPool(Twisted):
    def twist(self, request: Request) -> Request:
        inputs = tuple(replace(a, location=replace(a.location, pool_index=0)) for a in request.inputs)
        return replace(request, inputs=inputs)


class FromStart(Twisted):
    def twist(self, request: Request) -> Request:
        pools = [SharedMemory(os.dup(p.descriptor), p.size) if isinstance(p, MappedFile) else p for p in request.pools]
        return replace(request, pools=tuple(pools))


class WritesBehind(Twisted):
    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        result = super().execute_synchronously(request, config, deadline)
        place = request.outputs[0].location
        pool = request.pools[place.pool_index]
        assert isinstance(pool, Memory)
        pool.view()[place.offset + place.length + place.padding] ^= 1
        return result


class NeedsDimensions(Twisted):
    def twist(self, request: Request) -> Request:
        if not all(argument.dimensions for argument in request.inputs):
            raise invalid("no dimensions")
        return request


class OpaqueIsEmpty(Twisted):
    def twist(self, request: Request) -> Request:
        pools = [
            HardwareBuffer.allocate(p.size, blob=False) if isinstance(p, HardwareBuffer) and not p.blob else p
            for p in request.pools
        ]
        return replace(request, pools=tuple(pools))


class OpaqueInParts(Twisted):
    def twist(self, request: Request) -> Request:
        if not any(isinstance(p, HardwareBuffer) and not p.blob for p in request.pools):
            return request
        whole = [[replace(a, location=replace(a.location, offset=0, length=0)) for a in arguments]
                 for arguments in (request.inputs, request.outputs)]  # fmt: skip
        return replace(request, inputs=tuple(whole[0]), outputs=tuple(whole[1]))


def running(kind: type[Twisted]) -> Callable[[], ReferenceDevice]:
    class Faulty(ReferenceDevice):
        def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
            prepared = super().prepare_model(model, config)
            prepared.__class__ = kind
            return prepared

    return Faulty


class NoFiles(ReferenceDevice):
    """Cannot use constants in a file, and says so late."""

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        if any(isinstance(pool, MappedFile) for pool in model.pools):
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "a file")
        return super().prepare_model(model, config)


class AnyRole(ReferenceBuffer):
    @property
    def roles(self) -> object:  # type: ignore[override]
        class All:
            def __contains__(self, role: object) -> bool:
                return True

        return All()

    @roles.setter
    def roles(self, value: object) -> None:
        pass


class Zeros(ReferenceBuffer):
    def content(self) -> tuple[bytes, Dimensions]:
        return self._content or (bytes(int(np.prod(self.dimensions)) * 4), self.dimensions)


class Keeps(ReferenceBuffer):
    """A copy that failed changes nothing."""

    def clear(self) -> None:
        pass


class AnySize(ReferenceBuffer):
    def copy_to(self, destination: Memory) -> None:
        data, _ = self.content()
        size = min(destination.size, len(data))
        destination.view()[:size] = data[:size]


class Fits(ReferenceBuffer):
    def takes(self, shape: Dimensions) -> bool:
        return True


class Emptied(ReferenceBuffer):
    def copy_to(self, destination: Memory) -> None:
        super().copy_to(destination)
        self.clear()


class Shared(ReferenceBuffer):
    """All buffers hold what the last one was given."""

    last: ClassVar[list[tuple[bytes, Dimensions] | None]] = [None]

    def _set(self, content: tuple[bytes, Dimensions] | None) -> None:
        super()._set(content)
        self.last[0] = content

    def content(self) -> tuple[bytes, Dimensions]:
        return self.last[0] or super().content()


def holding(kind: type[ReferenceBuffer]) -> Callable[[], ReferenceDevice]:
    class Kept(Buffers):
        def allocate(
            self,
            desc: BufferDesc,
            prepared_models: Sequence[ReferencePreparedModel],
            input_roles: Sequence[BufferRole],
            output_roles: Sequence[BufferRole],
        ) -> ReferenceBuffer:
            buffer = super().allocate(desc, prepared_models, input_roles, output_roles)
            buffer.__class__ = kind
            return buffer

    return with_buffers(Kept)


def with_buffers(kind: type[Buffers]) -> Callable[[], ReferenceDevice]:
    class Faulty(ReferenceDevice):
        def __init__(self) -> None:
            super().__init__()
            self._buffers = kind()

    return Faulty


class NeverForgets(Buffers):
    def forget(self, token: int) -> None:
        pass


class Tokenless(Buffers):
    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[ReferencePreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> ReferenceBuffer:
        buffer = super().allocate(desc, prepared_models, input_roles, output_roles)
        buffer.token = 0
        return buffer


class AcceptsAll(ReferenceDevice):
    """Gives out something, whatever is asked for."""

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> ReferenceBuffer:
        try:
            return super().allocate(desc, prepared_models, input_roles, output_roles)  # type: ignore[return-value]
        except DriverError:
            mine = next(m for m in (*prepared_models, self.first) if isinstance(m, ReferencePreparedModel))
            return self._buffers.allocate(BufferDesc(), [mine], [BufferRole(0, 0)], [])

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        self.first = super().prepare_model(model, config)
        return self.first


ALLOCATIONS = [s.name for s in SCENARIOS if s.name.startswith("allocate.") and s.name != "allocate.good"]


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (running(Aligned), "unaligned", "VALUE"),
        (running(FirstPool), "separate.pools", "VALUE"),
        (running(FromStart), "pool.mmap.fd.part", "VALUE"),
        (running(WritesBehind), "padding", "OVERRUN: 1 bytes written outside"),
        (running(WritesBehind), "one.pool", "OVERRUN: 1 bytes written outside, the first 0 bytes behind the end of"),
        (running(NeedsDimensions), "dimensions.left.out", "execute of a valid model answered INVALID_ARGUMENT"),
        (running(OpaqueIsEmpty), "opaque.sync", "VALUE"),
        (running(OpaqueInParts), "opaque.in.parts", "ACCEPTED: execute accepted what breaks R4 (offset 1 of an input"),
        (NoFiles, "constants.mmap.fd.part", "prepare of a valid model answered GENERAL_FAILURE"),
        (holding(AnyRole), "buffer.wrong.role.sync", "the buffer was made for input 0 and is used as input 1"),
        (holding(AnyRole), "buffer.prepared.again", "ACCEPTED"),
        (holding(Zeros), "buffer.uninitialised.sync", "nothing was ever put into the buffer"),
        (holding(Keeps), "buffer.failed.copy", "the copy before failed, so that the buffer is uninitialised"),
        (holding(Keeps), "buffer.failed.output", "the output before failed"),
        (holding(AnySize), "buffer.failed.copy.out", "24 bytes are copied into a memory of 1"),
        (holding(Fits), "buffer.failed.output", "the result of [4, 3] does not fit a buffer of [2, 3]"),
        (holding(Emptied), "buffer.copies", "copy_out of a valid model answered GENERAL_FAILURE"),
        (holding(Shared), "buffer.many", "VALUE: output 'input 0'"),
        (with_buffers(NeverForgets), "buffer.released", "ACCEPTED"),
        (with_buffers(Tokenless), "buffer.as.input", "MALFORMED: the buffer has the token 0"),
        *((AcceptsAll, name, "ACCEPTED: allocate accepted what breaks B1") for name in ALLOCATIONS),
    ],
)
def test_a_fault_is_seen(make: Callable[[], ReferenceDevice], name: str, words: str) -> None:
    assert words in caught(SCENARIOS, name, make)


def test_a_driver_without_memory_for_any_buffer_passes() -> None:
    class Refuses(ReferenceDevice):
        def allocate(self, *arguments: object) -> ReferenceBuffer:  # type: ignore[override]
            raise DriverError(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, "no memory")

    names = [s.name for s in SCENARIOS if s.name.startswith("buffer.")]
    assert [name for name in names if caught(SCENARIOS, name, Refuses, 1)] == []


def test_a_driver_that_refuses_opaque_memory_passes() -> None:
    class Plain(Twisted):
        def twist(self, request: Request) -> Request:
            if any(isinstance(p, HardwareBuffer) and not p.blob for p in request.pools):
                raise DriverError(ErrorStatus.GENERAL_FAILURE, "cannot be mapped")
            return request

    names = [s.name for s in SCENARIOS if "opaque" in s.name]
    assert [name for name in names if caught(SCENARIOS, name, running(Plain))] == []


@pytest.mark.parametrize("module", [memory, caching, dynamic_shapes])
def test_saved_cases_are_the_same_again(module: ModuleType, tmp_path: Path) -> None:
    for batch in batches(module.SCENARIOS, "ci", 0):
        case = batch.make(0)
        save(case, tmp_path / "one.case")
        again = load(tmp_path / "one.case")
        assert seal(again).digest == case.digest
