"""A driver of ADD that hands out what nobody has written: with an option, in one of the ways in which that happens."""

from __future__ import annotations

import os

import numpy as np

from nnhal.buffers import argument_bytes, write_outputs
from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    CompilationConfig,
    ExecutionConfig,
    ExecutionResult,
    PreparedModel,
    Traits,
)
from nnhal.errors import DriverError
from nnhal.model import Model, Request
from nnhal.types import Array, ErrorStatus
from tests.light_driver import LightDriver, PreparedAdd


class UninitializedDriver(LightDriver):
    """ADD of float32.

    Args:
        how: `nothing` is wrong; `empty` leaves the last element of a fresh array as it is; `output` does not write the
            last element of the output; `behind` adds what stands behind the first input; `before` returns what the
            execution before this one gave, and on the first one what is due; `dies` in a process with filled memory.
        deterministic: what it declares.
    """

    def __init__(self, how: str = "nothing", deterministic: str = "yes") -> None:
        self.how = how
        self.last: Array | None = None
        self.traits = Traits(deterministic=deterministic == "yes")

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        super().prepare_model(model, config)
        return _Prepared(model, self)


class _Prepared(PreparedAdd):
    def __init__(self, model: Model, device: UninitializedDriver) -> None:
        super().__init__(model)
        self.device = device

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        if self.device.how == "dies" and "MALLOC_PERTURB_" in os.environ:
            os.abort()
        place = argument_bytes(request, request.outputs[0])
        before = bytes(place)
        done = super().execute_synchronously(request, config, deadline)
        right = np.frombuffer(bytes(place), np.float32)
        wrong = self._wrong(right, before, request)
        if wrong is right:
            return done
        shape = done.output_shapes[0].dimensions
        return write_outputs(self.model, request, [wrong.reshape(shape)])

    def _wrong(self, right: Array, before: bytes, request: Request) -> Array:
        how = self.device.how
        if how == "empty":
            fresh = np.empty(right.shape, np.float32)
            fresh[:-1] = right[:-1]
            return fresh
        if how == "output":
            return np.concatenate([right[:-1], np.frombuffer(before, np.float32)[-1:]])
        if how == "behind":
            first = request.inputs[0].location
            pool = request.pools[first.pool_index]
            end = first.offset + first.length
            beyond = np.frombuffer(pool.view()[end : end + 4], np.float32)  # type: ignore[union-attr]
            return right + beyond
        if how == "before":
            last, self.device.last = self.device.last, right.copy()
            return right if last is None else last
        return right


class RefusingDriver(UninitializedDriver):
    """Prepares nothing, whatever it says of its support."""

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "out of order")


DRIVER = UninitializedDriver
